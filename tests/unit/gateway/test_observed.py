"""What is seen of a gateway: ids of requests, numbers, and who may read them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Message, Receive, Scope, Send

from laneway.agent.session import AsyncSession
from laneway.dialogue import Usage
from laneway.errors import LanewayError
from laneway.external import ExternalTaskResult
from laneway.gateway.access import LOCAL
from laneway.gateway.observed import Observed
from laneway.gateway.service import Gateway
from laneway.models import ScriptedModel, call, say
from laneway.stores import MemoryDisk, MemoryStore
from laneway.telemetry.context import REQUEST_ID, TRACE
from tests.gateway_stage import GatewayStage, gateway_in, gateway_stage, spec_of
from tests.routes_stage import EXTERNAL, until

FREE = """
default_model: scripted
subagents: true
permissions:
  default_decision: allow
queue:
  mode: followup
  debounce_idle: false
"""


async def ask(gateway: Gateway, text: str, key: str = "s") -> None:
    receipt = await gateway.submit(gateway.default, LOCAL, key, text)
    await gateway.default.inbox.wait(receipt.message_id)


async def samples(gateway: Gateway) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels, which are in the order of their names."""
    text = gateway.observer.metrics.text(await gateway.observer.moment()).decode()
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


# ---- requests ----


@pytest.mark.parametrize(
    ("sent", "kept"),
    [("abc-1.2:3", True), ("x" * 128, True), ("x" * 129, False), ("two words", False), ("", False), ('a"b', False)],
)
async def test_the_id_of_a_request_comes_back_unless_it_is_odd(tmp_path: Path, sent: str, kept: bool) -> None:
    async with gateway_stage(tmp_path, store=MemoryStore()) as stage:
        answer = await stage.client.get("/healthz", headers={"X-Request-Id": sent})
        assert (answer.headers["x-request-id"] == sent) is kept
        assert len(answer.headers.get_list("x-request-id")) == 1


async def test_a_request_without_an_id_gets_one_of_its_own_and_errors_have_one_too(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, store=MemoryStore()) as stage:
        answers = [await stage.client.get(path) for path in ("/healthz", "/healthz", "/nothing", "/v1/messages/none")]
        ids = [answer.headers["x-request-id"] for answer in answers]
        assert len(set(ids)) == 4
        assert all(each.startswith("req") for each in ids)


async def test_a_request_is_logged_at_debug_without_its_query(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "laneway.access")
    async with gateway_stage(tmp_path, store=MemoryStore()) as stage:
        await stage.client.get("/healthz?token=hidden")
    assert [
        record.getMessage().split(" after ")[0] for record in caplog.records if record.name == "laneway.access"
    ] == ["GET /healthz answered 200"]


async def test_requests_are_counted_by_the_template_of_their_route(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, store=MemoryStore()) as stage:
        for key in ("a", "b"):
            await stage.send(key, "hello")
        for path in ("/one", "/two"):
            await stage.client.get(path)
        found = await samples(stage.gateway)
        name = "laneway_http_requests_total"
        assert found[name, "POST", "/v1/sessions/{key}/messages", "202"] == 2
        assert found[name, "GET", "none", "404"] == 2
        assert found["laneway_http_request_duration_seconds_count", "POST", "/v1/sessions/{key}/messages"] == 2


class Played:
    """An application that does what a test says, behind `Observed`."""

    def __init__(self, gateway: Gateway, *steps: Any) -> None:
        self.steps = steps
        self.seen: list[Any] = []
        self.gateway = gateway
        self.observed = Observed(self, gateway)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen.append((REQUEST_ID.get(), TRACE.get(), self.gateway.observer.metrics.sockets))
        for step in self.steps:
            if isinstance(step, Exception):
                raise step
            await send(step)
            self.seen.append(self.gateway.observer.metrics.streams)

    async def serve(self, kind: str = "http", headers: Any = ()) -> None:
        async def nothing(message: Message | None = None) -> Any:
            return {}

        scope = {"type": kind, "method": "GET", "path": "/x", "headers": list(headers)}
        await self.observed(scope, nothing, nothing)


START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream; x")]}
END = {"type": "http.response.body", "body": b""}


async def test_an_open_stream_counts_until_it_ends_however_that_is(tmp_path: Path) -> None:
    async with gateway_in(tmp_path, store=MemoryStore()) as gateway:
        whole, broken = Played(gateway, dict(START), END), Played(gateway, dict(START), ValueError("broken"))
        await whole.serve()
        with pytest.raises(ValueError, match="broken"):
            await broken.serve()
        assert [whole.seen[1:], broken.seen[1:]] == [[1, 1], [1]]
        assert gateway.observer.metrics.streams == 0


async def test_a_socket_counts_until_it_ends(tmp_path: Path) -> None:
    async with gateway_in(tmp_path, store=MemoryStore()) as gateway:
        socket = Played(gateway)
        await socket.serve("websocket")
        assert (socket.seen[0][2], gateway.observer.metrics.sockets) == (1, 0)


async def test_a_request_that_fails_or_whose_sender_has_gone_is_counted(tmp_path: Path) -> None:
    async with gateway_in(tmp_path, store=MemoryStore()) as gateway:
        with pytest.raises(ValueError, match="broken"):
            await Played(gateway, ValueError("broken")).serve()
        await Played(gateway).serve()
        found = await samples(gateway)
        assert {name[3]: value for name, value in found.items() if name[0] == "laneway_http_requests_total"} == {
            "500": 1,
            "499": 1,
        }


async def test_two_traces_in_one_request_are_none_and_nothing_stays_behind(tmp_path: Path) -> None:
    trace = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    async with gateway_in(tmp_path, store=MemoryStore()) as gateway:
        one, two = Played(gateway), Played(gateway)
        await one.serve(headers=[(b"traceparent", trace), (b"x-request-id", b"me")])
        await two.serve(headers=[(b"traceparent", trace)] * 2)
        assert (one.seen[0][:2], two.seen[0][1]) == (("me", trace.decode()), "")
        assert (REQUEST_ID.get(), TRACE.get()) == ("", "")


async def test_a_session_that_a_request_has_opened_does_not_log_under_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real: Callable[[AsyncSession, Any], Any] = AsyncSession._move_in  # noqa: SLF001 - where a session is opened

    async def move_in(self: AsyncSession, host: Any) -> None:
        seen.append((REQUEST_ID.get(), TRACE.get()))
        await real(self, host)

    monkeypatch.setattr(AsyncSession, "_move_in", move_in)
    async with gateway_stage(tmp_path, store=MemoryStore()) as stage:
        await stage.send("s", "hello")
        await stage.client.get("/v1/sessions/t")
    assert set(seen) == {("", "")}


# ---- numbers ----


async def test_tokens_and_tools_of_a_run_and_of_its_sub_agents_are_counted_once(tmp_path: Path) -> None:
    script: list[Any] = [[call("task", prompt="find")], [call("ls")], [say("found")], [call("ls")], [say("done")]]
    model = ScriptedModel(script, usage=Usage(input_tokens=10, output_tokens=3, cache_read_tokens=2, cost=0.5))
    async with gateway_in(tmp_path, specs=[spec_of(tmp_path, text=FREE, model=model)], store=MemoryStore()) as gateway:
        await ask(gateway, "go")
        found = await samples(gateway)
        assert found["laneway_tool_execution_total", "ok", "ls"] == 2
        assert found["laneway_tool_execution_total", "ok", "task"] == 1
        kinds = ("input", "output", "cache_read", "cache_write")
        assert [found["laneway_model_tokens_total", kind] for kind in kinds] == [50, 15, 10, 0]
        assert found["laneway_model_cost_usd_total",] == 2.5
        assert gateway.observer._used == {}  # noqa: SLF001 - nothing is kept of a run that has ended


async def test_an_observer_that_fails_costs_no_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway_in(tmp_path, store=MemoryStore()) as gateway:

        def broken(event: Any) -> None:
            raise ValueError("broken")

        monkeypatch.setattr(gateway.observer.metrics, "on_mail_event", broken)
        monkeypatch.setattr(gateway.observer.metrics, "on_agent_event", broken)
        receipt = await gateway.submit(gateway.default, LOCAL, "s", "hello")
        final = await gateway.default.inbox.wait(receipt.message_id)
        assert final.answer == "You said: hello"
        assert "event message.accepted could not be observed" in caplog.text


async def test_the_waits_of_lanes_that_are_gone_are_still_counted(tmp_path: Path) -> None:
    async with gateway_in(tmp_path, store=MemoryStore(), sessions_max=1) as gateway:
        last = 0.0
        for number in range(5):
            await ask(gateway, "hello", f"s{number}")
            found = await samples(gateway)
            count = found["laneway_queue_lane_wait_seconds_count", "main"]
            assert count == last + 1
            last = count
        assert not any("s0" in label for name in found for label in name)


async def test_lanes_of_all_workspaces_are_shown_under_their_bare_names(tmp_path: Path) -> None:
    specs = [spec_of(tmp_path, name=name) for name in ("one", "two")]
    async with gateway_in(tmp_path, specs=specs, store=MemoryStore()) as gateway:
        for workspace in gateway.workspaces.values():
            receipt = await gateway.submit(workspace, LOCAL, "s", "hello")
            await workspace.inbox.wait(receipt.message_id)
        found = await samples(gateway)
        assert found["laneway_queue_lane_wait_seconds_count", "main"] == 2
        assert found["laneway_sessions_open",] == 2


async def test_a_store_that_another_process_has_taken_is_a_lost_lease_and_the_server_is_not_ready(
    tmp_path: Path,
) -> None:
    disk = MemoryDisk()
    async with gateway_stage(tmp_path, store=MemoryStore(disk)) as stage:
        assert (await samples(stage.gateway))["laneway_lease_lost_total",] == 0
        other = MemoryStore(disk)
        await other.open()
        with pytest.raises(LanewayError):
            await stage.gateway.submit(stage.gateway.default, LOCAL, "s", "hello")
        assert (await samples(stage.gateway))["laneway_lease_lost_total",] == 1
        answer = await stage.client.get("/readyz")
        assert (answer.status_code, answer.json()["store"] != "ok") == (503, True)
        await other.close()


async def test_external_tasks_and_workers_are_counted_without_their_names(tmp_path: Path) -> None:
    script = [[call("ls"), call("ls")], [say("done")]]
    async with gateway_stage(tmp_path, script=script, text=EXTERNAL, store=MemoryStore()) as stage:
        gateway, desk = stage.gateway, stage.gateway.default.host.desk
        receipt = await gateway.submit(gateway.default, LOCAL, "s", "hello")
        await until(lambda: len(desk.tasks()) == 2)
        (lease,) = await gateway.hall.claim("zebra", limit=1)
        found = await samples(gateway)
        assert found["laneway_task_size", "query", "pending"] == 1
        assert found["laneway_task_size", "query", "leased"] == 1
        assert found["laneway_workers", "working"] == 1
        assert found["laneway_task_claimed_total",] == 1
        await gateway.hall.start(lease.task["task_id"], lease.token)
        await gateway.hall.complete(lease.task["task_id"], lease.token, ExternalTaskResult(result="x"))
        await desk.complete_by_host(desk.tasks()[0].task_id, ExternalTaskResult(success=False, error="no"))
        await gateway.default.inbox.wait(receipt.message_id)
        found = await samples(gateway)
        assert found["laneway_task_ended_total", "query", "completed"] == 1
        assert found["laneway_task_ended_total", "query", "failed"] == 1
        assert found["laneway_task_wait_seconds_count", "query"] == 1
        assert not any("zebra" in label for name in found for label in name)


# ---- who may read them ----


async def status(stage: GatewayStage, headers: dict[str, str] | None = None) -> int:
    answer = await stage.client.get("/metrics", headers=headers)
    return answer.status_code


async def test_numbers_are_for_this_machine_and_with_tokens_for_operators_of_all_tenants(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, store=MemoryStore()) as stage:
        answer = await stage.client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert answer.status_code == 200
        chat, own = await stage.token("chat", tenant="*"), await stage.token("operate", tenant="acme")
        everybody = await stage.token("operate", tenant="*")
        worker = await stage.token("worker", tenant="*")
        found = [await status(stage, each) for each in (None, chat, own, worker, everybody)]
        assert found == [401, 403, 403, 403, 200]


async def test_numbers_can_be_made_public(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, store=MemoryStore(), metrics_public=True) as stage:
        await stage.token("chat")
        assert await status(stage) == 200


async def test_health_needs_no_token(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, store=MemoryStore()) as stage:
        await stage.token("chat")
        assert [(await stage.client.get(path)).status_code for path in ("/healthz", "/readyz")] == [200, 200]
