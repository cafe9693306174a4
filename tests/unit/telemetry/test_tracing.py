"""Spans: who sent what, which run it went into, and what the run did; nothing of what was said."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from laneway.errors import InvalidMessageError, ModelError
from laneway.events import Event, MessageAccepted, TurnStarted
from laneway.gateway.access import LOCAL
from laneway.gateway.service import Gateway
from laneway.mail import TurnState
from laneway.models import call, fail, say
from laneway.stores import MemoryDisk, MemoryStore
from laneway.telemetry import semconv, tracing
from laneway.telemetry.context import TRACE
from laneway.telemetry.tracing import TEXT_MAX, Tracing, _shown, open_tracing
from tests.agent_stage import Held
from tests.gateway_stage import gateway_in, gateway_stage

FREE = """
default_model: scripted
subagents: true
permissions:
  default_decision: allow
queue:
  mode: followup
  debounce_idle: false
"""
INCOMING = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Spans:
    """What a gateway has exported."""

    def __init__(self, gateway: Gateway, *, content: bool = False) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = gateway.observer.tracing = Tracing(provider, content=content)

    @property
    def all(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    number: int = span.context.span_id
    return number


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def links(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def below(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


async def ask(gateway: Gateway, text: str, key: str = "s", **more: Any) -> None:
    receipt = await gateway.submit(gateway.default, LOCAL, key, text, **more)
    await gateway.default.inbox.wait(receipt.message_id)


def memory(disk: MemoryDisk | None = None) -> MemoryStore:
    return MemoryStore(disk) if disk is not None else MemoryStore()


async def test_a_run_has_a_span_with_its_model_calls_and_its_tools_below_it(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("hello")
    script = [[call("read", path="x.txt")], [say("done")]]
    gateway = gateway_in(tmp_path, script=script, text=FREE, store=memory())
    spans = Spans(gateway)
    async with gateway:
        await ask(gateway, "look")
    run, tool = spans.one("invoke_agent default"), spans.one("execute_tool read")
    chats = spans.named("chat scripted")
    assert [below(tool), *map(below, chats)] == [id_of(run)] * 3
    assert facts(tool)[semconv.TOOL_NAME] == "read"
    assert facts(run)[semconv.INPUT_TOKENS] == sum(facts(chat)[semconv.INPUT_TOKENS] for chat in chats) > 0
    assert run.start_time is not None
    assert run.end_time is not None
    for inside in (tool, *chats):
        assert run.start_time <= (inside.start_time or 0) <= (inside.end_time or 0) <= run.end_time


async def test_a_message_has_a_producer_span_that_its_run_is_linked_to(tmp_path: Path) -> None:
    gateway = gateway_in(tmp_path, store=memory())
    spans = Spans(gateway)
    async with gateway:
        token = TRACE.set(INCOMING)
        await ask(gateway, "hello")
        TRACE.reset(token)
    sent, run = spans.one("send default"), spans.one("invoke_agent default")
    assert sent.kind is SpanKind.PRODUCER
    assert sent.parent is not None
    assert f"{sent.parent.span_id:016x}" in INCOMING
    assert f"{sent.context.trace_id:032x}" in INCOMING
    assert links(run) == [id_of(sent)]
    assert below(run) is None


async def test_the_trace_of_a_request_is_that_of_its_message_also_without_spans(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, store=memory(), script=[[say("ok")]] * 3) as stage:
        seen: list[str] = []
        items = stage.gateway.default.inbox.engine.kernel.items

        def note(event: Event) -> None:
            if isinstance(event, MessageAccepted):
                seen.append(items[event.message_id].message.trace)

        stage.gateway.default.inbox.engine.listen(note)
        for header in (INCOMING, "nonsense", INCOMING.upper()):
            headers = {"traceparent": header}
            await stage.client.post("/v1/sessions/s/messages", json={"text": "hello"}, headers=headers)
    assert seen == [INCOMING, "", ""]


async def test_a_run_after_a_restart_is_linked_to_the_span_of_the_process_before(tmp_path: Path) -> None:
    disk = MemoryDisk()
    held = Held(say("never"))
    first = gateway_in(tmp_path, script=[held], store=memory(disk), drain_ms=1)
    before = Spans(first)
    async with first:
        await first.submit(first.default, LOCAL, "s", "hello")
        last = await first.submit(first.default, LOCAL, "s", "and then")
        await held.asked.wait()
    second = gateway_in(tmp_path, script=[[say("one")], [say("two")]], store=memory(disk))
    after = Spans(second)
    async with second:
        await second.default.inbox.wait(last.message_id)
    assert [links(run) for run in after.named("invoke_agent default")] == [
        [id_of(sent)] for sent in before.named("send default")
    ]


async def test_messages_that_share_a_turn_or_are_steered_into_it_are_all_linked(tmp_path: Path) -> None:
    held = Held(call("ls"))
    gateway = gateway_in(tmp_path, script=[held, [say("done")]], text=FREE, store=memory())
    spans = Spans(gateway)
    async with gateway:
        first = await gateway.submit(gateway.default, LOCAL, "s", "one")
        await held.asked.wait()
        await gateway.submit(gateway.default, LOCAL, "s", "two", mode="steer")
        held.let_go()
        await gateway.default.inbox.wait(first.message_id)
    assert links(spans.one("invoke_agent default")) == [id_of(sent) for sent in spans.named("send default")]


async def test_the_run_of_a_sub_agent_is_below_the_call_that_started_it(tmp_path: Path) -> None:
    script = [[call("task", prompt="find it")], [call("ls")], [say("found")], [say("done")]]
    gateway = gateway_in(tmp_path, script=script, text=FREE, store=memory())
    spans = Spans(gateway)
    async with gateway:
        await ask(gateway, "go")
    child, parent = spans.named("invoke_agent default")
    assert below(child) == id_of(spans.one("execute_tool task"))
    assert below(spans.one("execute_tool ls")) == id_of(child)
    assert [below(chat) for chat in spans.named("chat scripted")].count(id_of(child)) == 2
    assert below(parent) is None
    assert not spans.tracing._runs  # noqa: SLF001 - nothing is kept of what has ended
    assert not spans.tracing._children  # noqa: SLF001


async def test_what_fails_says_so_in_its_span(tmp_path: Path) -> None:
    script = [[call("read", path="nothing.txt")], [fail(ModelError("broken", model="scripted"))]]
    gateway = gateway_in(tmp_path, script=script, text=FREE, store=memory())
    spans = Spans(gateway)
    async with gateway:
        await ask(gateway, "go")
        with pytest.raises(InvalidMessageError):
            await gateway.submit(gateway.default, LOCAL, "s", "")
    run, tool = spans.one("invoke_agent default"), spans.one("execute_tool read")
    assert (run.status.status_code, tool.status.status_code) == (StatusCode.ERROR, StatusCode.ERROR)
    assert facts(tool)[semconv.ERROR_TYPE] == "error"
    assert facts(spans.named("send default")[-1])[semconv.ERROR_TYPE] == "invalid_message"


@pytest.mark.parametrize("content", [False, True])
async def test_nothing_that_was_said_is_in_spans_unless_it_is_asked_for_and_secrets_never_are(
    tmp_path: Path, content: bool
) -> None:
    (tmp_path / "private.txt").write_text("inside the file, and sk-0123456789abcdef01234567")
    script = [[call("read", path="private.txt")], [say("the answer")]]
    gateway = gateway_in(tmp_path, script=script, text=FREE, store=memory())
    spans = Spans(gateway, content=content)
    async with gateway:
        await ask(gateway, "the question")
    text = "".join(str(facts(span)) for span in spans.all)
    told = [word in text for word in ("the question", "the answer", "private.txt", "inside the file")]
    assert told == [content] * 4
    assert "sk-0123456789" not in text


def test_there_are_no_spans_unless_an_endpoint_is_configured() -> None:
    assert open_tracing("", {}) is None
    assert open_tracing("http://127.0.0.1:9", {"OTEL_SDK_DISABLED": "true"}) is None


@pytest.mark.parametrize(
    ("endpoint", "environ", "address"),
    [
        ("http://c:4318", {}, "http://c:4318/v1/traces"),
        ("http://c:4318/v1/traces/", {}, "http://c:4318/v1/traces"),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c/otlp/"}, "http://c/otlp/v1/traces"),
        ("", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/in"}, "http://c/in"),
        ("http://d", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c/in"}, "http://d/v1/traces"),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, ""),
    ],
)
def test_spans_go_where_the_settings_or_the_variables_say(endpoint: str, environ: dict[str, str], address: str) -> None:
    assert tracing._address(endpoint, environ) == address  # noqa: SLF001 - nothing else tells it


async def test_an_endpoint_makes_an_exporter_and_closing_it_leaves_no_thread() -> None:
    opened = open_tracing("http://127.0.0.1:9", {})
    assert isinstance(opened, Tracing)
    await opened.close()


def test_an_end_that_is_never_told_does_not_cost_memory_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "RUNS_MAX", 3)
    spans = Spans(gateway_in(tmp_path, store=memory()))
    for number in range(10):
        event = TurnStarted(session_key="s", turn_id=f"t{number}", state=TurnState.STARTING, at_ms=1)
        spans.tracing.on_mail_event(event, lambda _: "")
    assert list(spans.tracing._runs) == ["t7", "t8", "t9"]  # noqa: SLF001 - that is the claim


def test_a_secret_that_is_cut_is_hidden_and_the_rest_of_a_long_text_is_not_looked_at() -> None:
    secret = "lw_0123456789ab_" + "Q" * 43
    shown = _shown("x" * (TEXT_MAX - 21) + " " + secret + "y" * 10_000_000)
    assert len(shown) <= TEXT_MAX
    assert "lw_" not in shown
