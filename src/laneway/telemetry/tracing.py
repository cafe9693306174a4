"""Spans for OpenTelemetry, made from events: who sent what, which run it went into, what the run did.

A message has a producer span when it is taken. Its `traceparent` is stored with the message, so that the span of the
run that takes it up is linked to it, in another process too. Below the span of a run are those of its model calls and
of its calls of tools; a sub-agent's run is below the call that started it. What is said, and the arguments of tools,
are not in spans unless that is asked for.

OpenTelemetry is imported by `open_tracing` only: nothing else here needs it to be installed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from laneway.agent_events import (
    AGENT_EVENTS,
    AgentEvent,
    EndEvent,
    ErrorEvent,
    ReasoningDeltaEvent,
    StartEvent,
    SubagentEndEvent,
    SubagentProgressEvent,
    SubagentStartEvent,
    TextDeltaEvent,
    ToolEndEvent,
    ToolInputDeltaEvent,
    ToolQueuedEvent,
    ToolStartEvent,
    TurnEndEvent,
    TurnStartEvent,
)
from laneway.dialogue import ResultStatus, Usage
from laneway.errors import ConfigError, LanewayError
from laneway.events import Event, MessageInjected, TurnEnded, TurnStarted
from laneway.identity import IDENTITY_LABELS, Identity
from laneway.mail import Receipt, TurnState
from laneway.telemetry import semconv
from laneway.telemetry.redaction import redact, redact_tree

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Link, Span, SpanContext

__all__ = ("Tracing", "open_tracing")

ENDPOINT: Final = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
PATIENCE: Final = "OTEL_EXPORTER_OTLP_TIMEOUT"
PATIENCE_S: Final = 3
CONTENT: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
RUNS_MAX: Final = 10_000
TEXT_MAX: Final = 10_000
SPARE: Final = 1_000
"""So much of a text behind what is shown is looked at, too: a secret may begin before the cut and end behind it."""
PATH: Final = "/v1/traces"
DELTAS: Final = (TextDeltaEvent, ReasoningDeltaEvent, ToolInputDeltaEvent)
NESTED: Final = frozenset(
    kind.event_type
    for kind in (
        StartEvent,
        TurnStartEvent,
        TurnEndEvent,
        ToolQueuedEvent,
        ToolStartEvent,
        ToolEndEvent,
        ErrorEvent,
        EndEvent,
        SubagentStartEvent,
        SubagentProgressEvent,
        SubagentEndEvent,
        *DELTAS,
    )
)
ANSWERED: Final = (
    ToolQueuedEvent,
    ToolStartEvent,
    ToolEndEvent,
    TurnEndEvent,
    TurnStartEvent,
    EndEvent,
    ErrorEvent,
)


def open_tracing(endpoint: str, environ: Mapping[str, str], *, version: str = "") -> Tracing | None:
    """Spans that go to a collector by OTLP over HTTP; None unless an endpoint is configured, here or by variables."""
    address = _address(endpoint, environ)
    if not address or environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            f"spans are wanted, and OpenTelemetry is not installed: {error}",
            setting="otel_endpoint",
            value=endpoint,
            hint="install laneway with the extra `otel`",
        ) from None
    facts = {"service.name": environ.get("OTEL_SERVICE_NAME") or "laneway", "service.version": version}
    provider = TracerProvider(resource=Resource.create(facts), shutdown_on_exit=False)
    patience = None if environ.get(PATIENCE) else PATIENCE_S  # a server that stops waits no longer for its collector
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=address, timeout=patience)))
    return Tracing(provider, content=environ.get(CONTENT, "").strip().lower() == "true")


def _address(endpoint: str, environ: Mapping[str, str]) -> str:
    """Where spans go: what is configured for spans alone is the whole address, all else is what it begins with."""
    exact = environ.get(TRACES_ENDPOINT, "").strip()
    if exact and not endpoint:
        return exact
    found = (endpoint or environ.get(ENDPOINT, "")).strip().rstrip("/")
    return found if not found or found.endswith(PATH) else found + PATH


@dataclass(slots=True)
class _Run:
    """The spans of a run that is under way."""

    span: Span
    context: Context
    model: str = ""
    chat: Span | None = None
    chat_began_ms: int = 0
    chat_ended_ms: int = 0
    heard: bool = False  # the first piece of the answer has come
    calls: dict[str, Span] = field(default_factory=dict)
    queued: dict[str, int] = field(default_factory=dict)
    error: str = ""


class Tracing:
    """Makes spans of what happens in one gateway. `content`: texts and arguments are in them, redacted."""

    def __init__(self, provider: TracerProvider, *, content: bool = False) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("laneway", schema_url=semconv.SCHEMA_URL)
        self._content = content
        self._runs: dict[str, _Run] = {}
        self._children: dict[str, tuple[str, str]] = {}  # the session of a sub-agent: its parent's run and call

    async def close(self) -> None:
        """Send what is left. It may take as long as the exporter waits for its collector."""
        for run_id in list(self._runs):
            self._end_run(run_id, 0)
        await asyncio.to_thread(self._provider.shutdown)

    # ---- messages ----

    async def accept(
        self, take: Callable[..., Awaitable[Receipt]], *, workspace: str, session: str, parent: str
    ) -> Receipt:
        """Have a message taken, inside a producer span; the trace that is stored with it is that of the span."""
        from opentelemetry.trace import SpanKind

        span = self._tracer.start_span(
            f"send {workspace}",
            context=_context_of(parent),
            kind=SpanKind.PRODUCER,
            attributes={
                semconv.MESSAGING_SYSTEM: "laneway",
                semconv.MESSAGING_OPERATION: "submit",
                semconv.MESSAGING_OPERATION_TYPE: "send",
                semconv.MESSAGING_DESTINATION: workspace,
                semconv.MESSAGING_CONVERSATION_ID: session,
            },
        )
        try:
            receipt = await take(trace=_traceparent(span.get_span_context()))
            span.set_attribute(semconv.MESSAGING_MESSAGE_ID, receipt.message_id)
            span.set_attribute(semconv.DISPOSITION, receipt.disposition.value)
        except LanewayError as error:
            _fail(span, error.code)
            raise
        except Exception as error:
            _fail(span, type(error).__name__)
            raise
        finally:
            span.end()
        return receipt

    # ---- runs ----

    def on_mail_event(self, event: Event, trace_by_id: Callable[[str], str]) -> None:
        """A run begins, takes a message in, or ends. `trace_by_id` gives the trace that is stored with a message."""
        if isinstance(event, TurnStarted):
            self._begin_run(event, trace_by_id)
        elif isinstance(event, MessageInjected):
            run = self._runs.get(event.turn_id)
            link = _link_to(trace_by_id(event.message_id), event.message_id)
            if run is not None and link is not None:
                run.span.add_link(link.context, link.attributes)
        elif isinstance(event, TurnEnded):
            run = self._runs.get(event.turn_id)
            if run is not None and event.state is not TurnState.SUCCEEDED:
                _fail(run.span, run.error or event.state.value)
            self._end_run(event.turn_id, event.at_ms)

    def _begin_run(self, event: TurnStarted, trace_by_id: Callable[[str], str]) -> None:
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        links = [link for one in event.messages if (link := _link_to(trace_by_id(one), one)) is not None]
        span = self._tracer.start_span(
            f"{semconv.INVOKE_AGENT} {event.workspace}",
            context=self._parent_of(event.session_key),
            links=links,
            start_time=_ns(event.at_ms),
            attributes={
                semconv.OPERATION: semconv.INVOKE_AGENT,
                semconv.AGENT_NAME: event.workspace,
                semconv.CONVERSATION_ID: event.session_key,
                semconv.TENANT: event.tenant,
                semconv.RUN_ID: event.turn_id,
                semconv.LANE: event.lane,
                semconv.MESSAGING_SYSTEM: "laneway",
                semconv.MESSAGING_OPERATION_TYPE: "process",
                semconv.MESSAGING_BATCH_COUNT: len(event.messages),
            },
        )
        if len(self._runs) >= RUNS_MAX:  # an end that was never told must not cost memory for ever
            self._end_run(next(iter(self._runs)), event.at_ms)
        self._runs[event.turn_id] = _Run(span, set_span_in_context(span, Context()))

    def _parent_of(self, session: str) -> Context:
        """A sub-agent's run is below the call that started it; every other run begins a trace, linked to its causes."""
        from opentelemetry.context import Context
        from opentelemetry.trace import set_span_in_context

        run_id, call_id = self._children.get(session, ("", ""))
        run = self._runs.get(run_id)
        if run is None:
            return Context()
        call = run.calls.get(call_id)
        return run.context if call is None else set_span_in_context(call, Context())

    def _end_run(self, run_id: str, at_ms: int) -> None:
        run = self._runs.pop(run_id, None)
        if run is None:
            return
        self._end_chat(run, at_ms)
        for call in run.calls.values():
            call.end(_ns(at_ms))
        run.span.end(_ns(at_ms))

    # ---- inside a run ----

    def on_usage(self, run_id: str, round_usage: Usage | None, total: Usage) -> None:
        """A round of a run has used this (None: it is about no round), and the run so far that."""
        run = self._runs.get(run_id)
        if run is not None:
            _note_usage(run.span, total)
            if run.chat is not None and round_usage is not None:
                _note_usage(run.chat, round_usage)

    def on_agent_event(self, event: AgentEvent, model: str = "") -> None:
        """Something has happened in a run; `model` is what its session asks."""
        if isinstance(event, SubagentStartEvent):
            while len(self._children) >= RUNS_MAX:
                del self._children[next(iter(self._children))]
            self._children[event.child_session_id] = (event.run_id, event.tool_id)
        elif isinstance(event, SubagentEndEvent):
            self._children.pop(event.child_session_id, None)
        elif isinstance(event, SubagentProgressEvent):
            self._on_child(event.event, model)
        run = self._runs.get(event.run_id)
        if run is None:
            return
        if run.chat is not None and isinstance(event, ANSWERED):
            run.chat_ended_ms = run.chat_ended_ms or event.at_ms
        if isinstance(event, DELTAS):
            self._on_delta(run, event)
        elif isinstance(event, TurnStartEvent):
            self._begin_chat(run, event, model)
        elif isinstance(event, ToolQueuedEvent):
            run.queued[event.tool_id] = event.at_ms
        elif isinstance(event, ToolStartEvent):
            self._begin_call(run, event)
        elif isinstance(event, ToolEndEvent):
            self._end_call(run, event)
        elif isinstance(event, ErrorEvent):
            run.error = event.error_kind
        if isinstance(event, StartEvent) and event.identity is not None:
            run.span.set_attributes({semconv.IDENTITY + name: label for name, label in event.identity.labels.items()})
        if self._content and isinstance(event, StartEvent):
            run.span.set_attribute(semconv.INPUT_MESSAGES, _said("user", event.prompt))
        elif self._content and isinstance(event, EndEvent):
            run.span.set_attribute(semconv.OUTPUT_MESSAGES, _said("assistant", event.text))

    def _on_child(self, envelope: Mapping[str, Any], model: str) -> None:
        """An event of a sub-agent, as its parent tells it."""
        kind = envelope.get("type")
        if kind in NESTED:
            facts = dict(envelope["metadata"])
            identity = Identity(**{name: facts.pop(name) for name in IDENTITY_LABELS if name in facts})
            self.on_agent_event(AGENT_EVENTS[kind](**envelope["payload"], **facts, identity=identity), model)

    @staticmethod
    def _on_delta(run: _Run, event: AgentEvent) -> None:
        if run.chat is not None and not run.heard:
            run.heard = True
            run.chat.set_attribute(semconv.TIME_TO_FIRST_CHUNK, (event.at_ms - run.chat_began_ms) / 1000)

    def _begin_chat(self, run: _Run, event: TurnStartEvent, model: str) -> None:
        from opentelemetry.trace import SpanKind

        self._end_chat(run, event.at_ms)
        run.chat_began_ms, run.chat_ended_ms, run.heard = event.at_ms, 0, False
        run.chat = self._tracer.start_span(
            f"{semconv.CHAT} {model}".strip(),
            context=run.context,
            kind=SpanKind.CLIENT,
            start_time=_ns(event.at_ms),
            attributes={semconv.OPERATION: semconv.CHAT, semconv.REQUEST_MODEL: model},
        )

    @staticmethod
    def _end_chat(run: _Run, at_ms: int) -> None:
        # The answer is there when the first call is queued; what it has used is known when the round is over. That the
        # last round is over is told when it is on disk, and the run has ended a moment before.
        if run.chat is not None:
            ended_ms = min(run.chat_ended_ms or at_ms, at_ms or run.chat_ended_ms)
            run.chat.end(_ns(max(ended_ms, run.chat_began_ms) if ended_ms else 0))
            run.chat = None

    def _begin_call(self, run: _Run, event: ToolStartEvent) -> None:
        call = run.calls.get(event.tool_id)
        if call is not None:
            call.add_event("retry", {"attempt": event.attempt}, _ns(event.at_ms))
            return
        facts: dict[str, Any] = {
            semconv.OPERATION: semconv.EXECUTE_TOOL,
            semconv.TOOL_NAME: event.tool_name,
            semconv.TOOL_CALL_ID: event.tool_id,
            semconv.TOOL_TYPE: "function",
            semconv.LANE: event.lane,
        }
        queued_ms = run.queued.pop(event.tool_id, 0)
        if queued_ms:
            facts[semconv.QUEUED_MS] = max(0, event.at_ms - queued_ms)
        if self._content:
            facts[semconv.TOOL_ARGUMENTS] = _shown(json.dumps(redact_tree(event.args, text_max=TEXT_MAX), default=str))
        run.calls[event.tool_id] = self._tracer.start_span(
            f"{semconv.EXECUTE_TOOL} {event.tool_name}",
            context=run.context,
            start_time=_ns(event.at_ms),
            attributes=facts,
        )

    def _end_call(self, run: _Run, event: ToolEndEvent) -> None:
        run.queued.pop(event.tool_id, None)
        call = run.calls.pop(event.tool_id, None)
        if call is None:
            return  # it never began: a gate has refused it, or there is no such tool
        if self._content:
            call.set_attribute(semconv.TOOL_RESULT, _shown(event.tool_output))
        if event.status not in (ResultStatus.OK, ResultStatus.BACKGROUND):  # one of a sub-agent has come as text
            _fail(call, str(event.status))
        call.end(_ns(event.at_ms))


def _ns(at_ms: int) -> int | None:
    return at_ms * 1_000_000 if at_ms else None


def _fail(span: Span, kind: str) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute(semconv.ERROR_TYPE, kind)
    span.set_status(Status(StatusCode.ERROR))


def _note_usage(span: Span, usage: Usage) -> None:
    span.set_attribute(semconv.INPUT_TOKENS, usage.input_tokens)
    span.set_attribute(semconv.OUTPUT_TOKENS, usage.output_tokens)
    if usage.cache_read_tokens:
        span.set_attribute(semconv.CACHE_READ_TOKENS, usage.cache_read_tokens)
    if usage.cache_write_tokens:
        span.set_attribute(semconv.CACHE_WRITE_TOKENS, usage.cache_write_tokens)
    if usage.cost is not None:
        span.set_attribute(semconv.COST, usage.cost)


def _shown(text: str) -> str:
    return redact(text[: TEXT_MAX + SPARE])[:TEXT_MAX]  # cut first: to redact a long text takes its time


def _said(role: str, text: str) -> str:
    return json.dumps([{"role": role, "parts": [{"type": "text", "content": _shown(text)}]}], ensure_ascii=False)


def _traceparent(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags) & 1:02x}"


def _remote(trace: str) -> SpanContext | None:
    """The span that a stored trace names."""
    from opentelemetry.trace import SpanContext, TraceFlags

    if not trace:
        return None
    _, trace_id, span_id, flags = trace.split("-")
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))


def _context_of(trace: str) -> Context:
    from opentelemetry.context import Context
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    context = _remote(trace)
    return Context() if context is None else set_span_in_context(NonRecordingSpan(context), Context())


def _link_to(trace: str, message_id: str) -> Link | None:
    from opentelemetry.trace import Link

    context = _remote(trace)
    return None if context is None else Link(context, {semconv.MESSAGING_MESSAGE_ID: message_id})
