"""Sessions of a gateway leave memory when somebody asks, or after a time of rest, and come back by themselves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from laneway.agent_events import PassivationRequestedEvent
from laneway.errors import ClosedError
from laneway.external import ExternalTaskResult
from laneway.gateway.access import LOCAL
from laneway.gateway.service import Gateway
from laneway.mail import Outcome
from laneway.models import call, say
from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.agent_stage import Held
from tests.gateway_stage import gateway_in, gateway_stage
from tests.unit.gateway.test_background_calls import TEXT as BEHIND
from tests.unit.gateway.test_workspaces import ask

EXTERNAL = BEHIND.replace(", background_after_ms: 0", "")
ASKED = """
default_model: scripted
permissions: {ask: ["bash"]}
confirmation: {enabled: true, default_timeout_ms: 3600000}
queue: {mode: followup, debounce_idle: false}
"""
SOON = 5


async def until(seen: Any) -> Any:
    """Wait until something is so."""
    for _ in range(1_000_000):
        if found := seen():
            return found
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


def is_live(gateway: Gateway, key: str = "s") -> bool:
    return gateway.default.live_session("default", key) is not None


async def test_an_idle_session_leaves_and_the_next_message_brings_it_back(tmp_path: Path) -> None:
    async with gateway_in(tmp_path, store=MemoryStore()) as gateway:
        workspace = gateway.default
        await ask(gateway, "s", "one")
        before = workspace.live_session("default", "s")
        assert await workspace.passivate("default", "s", "evicted")
        assert not is_live(gateway)
        assert not workspace.rest.resting
        assert not await workspace.passivate("default", "s")  # it is not there any more
        assert (await ask(gateway, "s", "two")).answer == "You said: two"
        assert workspace.live_session("default", "s") is not before
        assert before is not None
        with pytest.raises(ClosedError):
            await before.ready()


async def test_a_run_that_was_cut_rests_until_a_message_comes_and_who_waits_for_it_goes_on_waiting(
    tmp_path: Path,
) -> None:
    held = Held(say("never"))
    script = [held, [say("first")], [say("second")]]
    async with gateway_in(tmp_path, script=script, store=MemoryStore()) as gateway:
        workspace = gateway.default
        waiting = asyncio.create_task(ask(gateway, "s", "go"))
        await held.asked.wait()
        assert await workspace.passivate("default", "s", deadline_ms=SOON)
        assert not is_live(gateway)
        assert workspace.rest.resting == {("default", "s")}
        assert not waiting.done()
        assert (await ask(gateway, "s", "and now")).outcome is Outcome.SUCCEEDED
        assert (await waiting).answer == "first"
        assert not workspace.rest.resting


async def test_a_message_that_comes_in_the_middle_is_kept_and_runs_once(tmp_path: Path) -> None:
    held = Held(say("first"))
    async with gateway_in(tmp_path, script=[held, [say("second")]], store=MemoryStore()) as gateway:
        workspace = gateway.default
        first = asyncio.create_task(ask(gateway, "s", "1"))
        await held.asked.wait()
        leaving = asyncio.create_task(workspace.passivate("default", "s", deadline_ms=60_000))
        await until(lambda: workspace.rest.leaving)
        second = asyncio.create_task(ask(gateway, "s", "2"))
        await until(lambda: workspace.rest.leaving.get(("default", "s")))
        held.let_go()
        assert await leaving
        assert [(await each).answer for each in (first, second)] == ["first", "second"]
        assert [entry.text for entry in await workspace.inbox.history("s")] == ["1", "first", "2", "second"]


async def test_the_result_of_a_task_brings_a_session_back(tmp_path: Path) -> None:
    script = [[call("bash", command="make")], [say("made it")]]
    async with gateway_in(tmp_path, script=script, text=EXTERNAL, store=MemoryStore()) as gateway:
        workspace, desk = gateway.default, gateway.default.host.desk
        asked = asyncio.create_task(ask(gateway, "s", "go"))
        await until(lambda: list(desk.tasks()))
        assert await workspace.passivate("default", "s", deadline_ms=SOON)
        assert not is_live(gateway)
        [lease] = await desk.claim("w", wait_ms=10_000)  # it can be taken while nobody is there
        await desk.start(lease.task["task_id"], lease.token)
        assert not is_live(gateway)
        await desk.complete(lease.task["task_id"], lease.token, ExternalTaskResult(result="done"))
        assert (await asked).answer == "made it"


async def test_the_answer_to_an_approval_brings_a_session_back(tmp_path: Path) -> None:
    script = [[call("bash", command="echo hi")], [say("well")]]
    async with gateway_in(tmp_path, script=script, text=ASKED, store=MemoryStore()) as gateway:
        workspace = gateway.default
        asked = asyncio.create_task(ask(gateway, "s", "go"))
        await until(lambda: workspace.inbox.approvals())
        assert await workspace.passivate("default", "s", deadline_ms=SOON)
        assert not is_live(gateway)
        [approval] = workspace.inbox.approvals()
        await workspace.inbox.deny(approval.id, "no")
        assert (await asked).answer == "well"


async def test_another_process_goes_on_with_what_rests(tmp_path: Path) -> None:
    disk, held = MemoryDisk(), Held(say("never"))
    async with gateway_in(tmp_path, script=[held], store=MemoryStore(disk)) as gateway:
        receipt = await gateway.submit(gateway.default, LOCAL, "s", "go")
        await held.asked.wait()
        await gateway.default.passivate("default", "s", deadline_ms=0)
    async with gateway_in(tmp_path, script=[[say("here")]], store=MemoryStore(disk)) as gateway:
        assert (await gateway.default.inbox.wait(receipt.message_id)).answer == "here"


async def test_a_session_leaves_by_itself_after_a_time_of_rest_and_a_busy_one_does_not(tmp_path: Path) -> None:
    held = Held(say("late"))
    script = [[say("one")], held, [say("two")]]
    async with gateway_in(tmp_path, script=script, store=MemoryStore(), passivate_after_ms=SOON) as gateway:
        await ask(gateway, "a", "hello")
        busy = asyncio.create_task(ask(gateway, "b", "hello"))
        await held.asked.wait()
        await until(lambda: not is_live(gateway, "a"))
        assert is_live(gateway, "b")
        held.let_go()
        assert (await busy).answer == "late"
        await until(lambda: not is_live(gateway, "b"))
        assert (await ask(gateway, "a", "again")).answer == "two"


async def test_an_emitted_request_takes_a_session_out_of_the_gateway_as_well(tmp_path: Path) -> None:
    async with gateway_in(tmp_path, store=MemoryStore()) as gateway:
        await ask(gateway, "s", "one")
        session = await gateway.default.session("default", "s")
        await session.emit(PassivationRequestedEvent(reason="rebalance", deadline_ms=0))
        assert not is_live(gateway)
        assert (await ask(gateway, "s", "two")).answer == "You said: two"


async def test_over_http_it_needs_an_operator_and_is_in_the_audit_log(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, store=MemoryStore()) as stage:
        path, operator = "/v1/sessions/s/passivate", stage.operator()
        await stage.send("s", "hello")
        assert (await stage.client.post(path)).status_code == 401
        wrong = await stage.client.post(path, json={"deadline_ms": -1}, headers=operator)
        assert wrong.status_code == 422
        assert is_live(stage.gateway)
        answer = await stage.client.post(path, json={"reason": "moved", "deadline_ms": 100}, headers=operator)
        assert answer.json() == {"session_key": "s", "was_in_memory": True, "in_memory": False, "resting": False}
        again = await stage.client.post(path, headers=operator)
        assert not again.json()["was_in_memory"]
        unknown = await stage.client.post("/v1/sessions/nobody/passivate", headers=operator)
        assert unknown.status_code == 404
        log = (await stage.client.get("/v1/audit", headers=operator)).json()["items"]
        assert ("session.passivate", "s", "moved") in [(each["action"], each["target"], each["reason"]) for each in log]
