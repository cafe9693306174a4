"""Sessions of a gateway leave memory when somebody asks, or after a time of rest, and come back by themselves."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from laneway.agent.book import Book
from laneway.agent.reports import stored_info
from laneway.agent_events import PassivationRequestedEvent
from laneway.dialogue import Usage
from laneway.errors import ClosedError, FencedError, UnavailableError
from laneway.external import ExternalTaskResult
from laneway.gateway.access import LOCAL
from laneway.gateway.service import Gateway
from laneway.gateway.settings import GatewaySettings
from laneway.kernel.budgets import Grant, Wish
from laneway.mail import MessageState, Outcome
from laneway.models import ScriptedModel, call, say
from laneway.spending import Spender
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.testing import fake_host
from tests.agent_stage import Held, prompts, shape
from tests.gateway_stage import SIMPLE, gateway_in, gateway_stage, spec_of
from tests.stage import passing, simulated
from tests.subagent_stage import Cast
from tests.unit.gateway.test_background_calls import TEXT as BEHIND
from tests.unit.gateway.test_workspaces import ask

EXTERNAL = BEHIND.replace(", background_after_ms: 0", "")
ASKED = """
default_model: scripted
permissions: {ask: ["bash"]}
confirmation: {enabled: true, default_timeout_ms: 3600000}
queue: {mode: followup, debounce_idle: false}
"""
SPAWNING = """
default_model: scripted
subagents: true
permissions: {allow: ["*"]}
queue: {mode: followup, debounce_idle: false}
lanes: {main: 8}
"""
SOON = 5
DAY_MS = 86_400_000


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


async def test_a_run_that_was_cut_rests_until_a_message_comes(tmp_path: Path) -> None:
    held = Held(say("never"))
    script = [held, [say("first")], [say("second")]]
    async with gateway_in(tmp_path, script=script, store=MemoryStore()) as gateway:
        workspace = gateway.default
        receipt = await gateway.submit(workspace, LOCAL, "s", "go")
        await held.asked.wait()
        assert await workspace.passivate("default", "s", deadline_ms=SOON)
        assert not is_live(gateway)
        assert workspace.rest.resting == {("default", "s")}
        waits = (await workspace.inbox.status(receipt.message_id)).reason
        assert waits == "its session rests: a message, an answer, the result of a task or a restart brings it back"
        run = (await workspace.inbox.engine.store.history.states(workspace.owner("default", "s"), "turn"))[-1]
        assert "its session has left memory" in run.body
        assert (await ask(gateway, "s", "and now")).outcome is Outcome.SUCCEEDED
        assert (await workspace.inbox.wait(receipt.message_id)).answer == "first"
        assert not workspace.rest.resting


async def test_a_run_that_was_cut_is_back_at_once_while_somebody_waits_for_its_answer(tmp_path: Path) -> None:
    held = Held(say("never"))
    async with gateway_in(tmp_path, script=[held, [say("here")]], store=MemoryStore()) as gateway:
        waiting = asyncio.create_task(ask(gateway, "s", "go"))
        await held.asked.wait()
        assert await gateway.default.passivate("default", "s", deadline_ms=SOON)
        assert (await waiting).answer == "here"


async def test_whoever_begins_to_wait_for_a_run_that_was_cut_has_it_back(tmp_path: Path) -> None:
    held = Held(say("never"))
    async with gateway_in(tmp_path, script=[held, [say("here")]], store=MemoryStore()) as gateway:
        workspace = gateway.default
        receipt = await gateway.submit(workspace, LOCAL, "s", "go")
        await held.asked.wait()
        await workspace.passivate("default", "s", deadline_ms=SOON)
        assert workspace.rest.resting == {("default", "s")}
        assert (await workspace.inbox.wait(receipt.message_id)).answer == "here"


@pytest.mark.parametrize("ticks", range(0, 90, 9))
async def test_a_call_that_is_approved_while_its_session_leaves_is_made_when_it_is_back(
    tmp_path: Path, ticks: int
) -> None:
    script = [[call("bash", command="echo hi >> done.txt")], [say("well")]]
    async with gateway_in(tmp_path, script=script, text=ASKED) as gateway:
        workspace = gateway.default
        receipt = await gateway.submit(workspace, LOCAL, "s", "go")
        [approval] = await until(lambda: workspace.inbox.approvals())
        leaving = asyncio.create_task(workspace.passivate("default", "s", deadline_ms=0))
        for _ in range(ticks):
            await asyncio.sleep(0)
        assert await workspace.inbox.approve(approval.id)
        await leaving
        assert (await workspace.inbox.wait(receipt.message_id)).answer == "well"
        model: Any = (await workspace.session("default", "s")).model
        assert "Cancelled" not in str(model.requests[-1])


@simulated
async def test_a_run_that_waits_for_a_budget_is_back_when_that_is_raised_or_its_window_opens() -> None:
    text = f"{SIMPLE}budgets:\n  day: {{scope: tenant, window: day, tokens: 40000, on_exhausted: park}}\n"
    model = ScriptedModel([[say(str(at))] for at in range(3)], usage=Usage(input_tokens=38_900, output_tokens=100))
    spec = spec_of(Path("w"), text=text, model=model)
    async with Gateway(
        GatewaySettings(store="memory"), [spec], env=fake_host(), store=MemoryStore(), environ={}
    ) as one:
        workspace, desk = one.default, one.default.host.budgets
        assert (await ask(one, "s", "spends it all")).answer == "0"
        for answer in ("1", "2"):
            receipt = await one.submit(workspace, LOCAL, "s", "waits")
            await passing(1_000)
            assert desk.parked == 1
            behind = await one.submit(workspace, LOCAL, "s", "behind it")
            assert " and waits: " in behind.reason
            assert "budget 'day'" in behind.reason
            await workspace.inbox.withdraw(behind.message_id)
            assert await workspace.passivate("default", "s", deadline_ms=SOON)
            assert workspace.rest.resting == {("default", "s")}
            waits = (await workspace.inbox.status(receipt.message_id)).reason
            assert re.match(r"its session rests: .*budget 'day' .*until 20\d\d-\S+ 00:00 UTC; .*; a changed", waits)
            assert (desk.parked, workspace.rest.parked) == (0, 1)
            engine, owner = workspace.inbox.engine, workspace.owner("default", "s")
            cut = (await engine.store.history.states(owner, "turn"))[-1]
            assert stored_info(cut, await Book(engine, owner).read_run(cut.id)).rounds == 0  # no model was asked
            if answer == "1":
                await passing(DAY_MS)
            else:
                await desk.set_rule(replace(desk.budgets.rules["day"], tokens=900_000))
                await passing(1)
            final = await workspace.inbox.status(receipt.message_id)
            assert (final.outcome, final.answer) == (Outcome.SUCCEEDED, answer)


@simulated
async def test_a_run_that_waits_for_room_in_a_budget_is_back_when_there_is_room_or_the_budget_is_raised() -> None:
    text = f"{SIMPLE}budgets:\n  all: {{scope: tenant, tokens: 40000}}\n"
    model = ScriptedModel([[say(str(at))] for at in range(2)], usage=Usage(input_tokens=900, output_tokens=100))
    spec = spec_of(Path("w"), text=text, model=model)
    async with Gateway(
        GatewaySettings(store="memory"), [spec], env=fake_host(), store=MemoryStore(), environ={}
    ) as one:
        workspace, desk = one.default, one.default.host.budgets
        for answer in ("0", "1"):
            other = await desk.reserve(
                Spender("default", workspace.name, "other", "r"), Wish(0, 38_900 - 1_000 * int(answer))
            )
            assert isinstance(other, Grant)
            receipt = await one.submit(workspace, LOCAL, "s", "waits")
            await passing(1_000)
            assert len(desk.waiting()) == 1
            assert await workspace.passivate("default", "s", deadline_ms=SOON)
            assert workspace.rest.resting == {("default", "s")}
            if answer == "0":
                desk.give_back(other)
            else:
                await desk.set_rule(replace(desk.budgets.rules["all"], tokens=900_000))
            await passing(1)
            final = await workspace.inbox.status(receipt.message_id)
            assert (final.outcome, final.answer) == (Outcome.SUCCEEDED, answer)
            assert desk.cut_off == set()


async def test_looking_at_a_run_does_not_bring_its_session_back(tmp_path: Path) -> None:
    held = Held(say("never"))
    async with gateway_stage(tmp_path, script=[held], store=MemoryStore()) as stage:
        workspace = stage.gateway.default
        await stage.gateway.submit(workspace, LOCAL, "s", "what is it?")
        await held.asked.wait()
        await workspace.passivate("default", "s", deadline_ms=SOON)
        [row] = await workspace.inbox.engine.store.history.states(workspace.owner("default", "s"), "turn")
        found = (await stage.client.get(f"/v1/runs/{row.id}")).json()
        assert (found["state"], found["reason"]) == ("interrupted", "its session has left memory")
        assert found["waits_for"].startswith("its session rests: ")
        story = (await stage.client.get(f"/v1/runs/{row.id}/story")).json()
        assert (story["rests"], story["can_resume"]) == (found["waits_for"], False)
        assert workspace.rest.resting == {("default", "s")}
        assert not is_live(stage.gateway)


async def test_a_request_that_meets_a_session_on_its_way_out_is_told_to_ask_again(tmp_path: Path) -> None:
    async with gateway_in(tmp_path, store=MemoryStore()) as gateway:
        workspace = gateway.default

        async def read() -> list[Any]:
            async with workspace.using("default", "s") as session:
                for _ in range(2):
                    found = await session.history()
                    await going()
                return found

        async def leave() -> None:
            await workspace.passivate("default", "s", deadline_ms=0)

        going = leave
        with pytest.raises(UnavailableError, match="session 's' was leaving memory"):
            await read()

        async def stay() -> None:
            return None

        going = stay
        assert await read() == []


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
        assert await workspace.passivate("default", "s", deadline_ms=DAY_MS)  # which it does not wait for
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
        assert await workspace.passivate("default", "s", deadline_ms=DAY_MS)  # which it does not wait for
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
        assert answer.json() == {
            "session_key": "s",
            "was_in_memory": True,
            "in_memory": False,
            "resting": False,
            "resting_reason": "",
        }
        again = await stage.client.post(path, headers=operator)
        assert not again.json()["was_in_memory"]
        later = await stage.client.post(path, json={"reason": "once more"}, headers=operator)
        assert not later.json()["was_in_memory"]
        unknown = await stage.client.post("/v1/sessions/nobody/passivate", headers=operator)
        assert unknown.status_code == 404
        log = (await stage.client.get("/v1/audit", headers=operator)).json()["items"]
        left = [(each["target"], each["reason"]) for each in log if each["action"] == "session.passivate"]
        assert left == [("s", "moved")]  # what did not happen is not in it


# ---- what is said to a session at rest ----

TASKED = [[call("bash", command="make")], [say("made it")]]


async def rest_with_a_task(gateway: Gateway) -> str:
    """A session whose run is put off while a worker could take its call; the id of its message."""
    workspace = gateway.default
    receipt = await gateway.submit(workspace, LOCAL, "s", "go")
    await until(lambda: list(workspace.host.desk.tasks()))
    await workspace.passivate("default", "s", deadline_ms=DAY_MS)
    assert workspace.rest.resting == {("default", "s")}
    return receipt.message_id


@pytest.mark.parametrize("way", ["/stop", "/new", "cancel", "withdraw"])
async def test_what_is_stopped_at_rest_is_stopped(tmp_path: Path, way: str) -> None:
    async with gateway_in(tmp_path, script=TASKED, text=EXTERNAL, store=MemoryStore()) as gateway:
        workspace = gateway.default
        message = await rest_with_a_task(gateway)
        if way == "cancel":
            assert await workspace.inbox.cancel("s", "enough")
        elif way == "withdraw":
            await workspace.inbox.withdraw(message, "enough")
        else:
            reply = (await gateway.submit(workspace, LOCAL, "s", way)).reply
            assert reply is not None
            assert "running turn" in reply
        final = await workspace.inbox.wait(message)
        assert (final.disposition, final.outcome) == (MessageState.RAN, Outcome.INTERRUPTED)
        await until(lambda: not workspace.host.desk.held(workspace.owner("default", "s")))
        assert not await workspace.host.desk.claim("w", wait_ms=0)
        assert not workspace.rest.resting
        entries = await (await workspace.session("default", "s")).book.all_entries()
        assert [str(entry.state) for entry in entries] == ["failed"]  # nobody had begun with it


async def test_clearing_the_queue_leaves_a_run_at_rest_alone(tmp_path: Path) -> None:
    async with gateway_in(tmp_path, script=TASKED, text=EXTERNAL, store=MemoryStore()) as gateway:
        workspace, desk = gateway.default, gateway.default.host.desk
        message = await rest_with_a_task(gateway)
        assert (await gateway.submit(workspace, LOCAL, "s", "/queue clear")).reply == "Nothing waited."
        assert workspace.rest.resting
        [lease] = await desk.claim("w", wait_ms=10_000)
        await desk.start(lease.task["task_id"], lease.token)
        await desk.complete(lease.task["task_id"], lease.token, ExternalTaskResult(result="done"))
        assert (await workspace.inbox.wait(message)).answer == "made it"


async def test_an_interrupt_ends_a_run_at_rest(tmp_path: Path) -> None:
    held = Held(say("never"))
    async with gateway_in(tmp_path, script=[held, [say("instead")]], store=MemoryStore()) as gateway:
        workspace = gateway.default
        old = await gateway.submit(workspace, LOCAL, "s", "go")
        await held.asked.wait()
        await workspace.passivate("default", "s", deadline_ms=SOON)
        new = await gateway.submit(workspace, LOCAL, "s", "no, this", mode="interrupt")
        assert (await workspace.inbox.wait(new.message_id)).answer == "instead"
        final = await workspace.inbox.wait(old.message_id)
        assert (final.disposition, final.outcome) == (MessageState.RAN, Outcome.INTERRUPTED)
        assert len(workspace.spec.model.requests) == 2


async def test_what_steers_a_session_at_rest_is_heard_by_the_run_that_goes_on(tmp_path: Path) -> None:
    held = Held(say("never"))
    async with gateway_in(tmp_path, script=[held, [say("so")]], store=MemoryStore()) as gateway:
        workspace = gateway.default
        old = await gateway.submit(workspace, LOCAL, "s", "go")
        await held.asked.wait()
        parked = await gateway.submit(workspace, LOCAL, "s", "to the left", mode="steer")
        await workspace.passivate("default", "s", deadline_ms=SOON)
        later = await gateway.submit(workspace, LOCAL, "s", "no, right", mode="steer")
        assert (await workspace.inbox.wait(old.message_id)).answer == "so"
        for steered in (parked, later):
            assert (await workspace.inbox.wait(steered.message_id)).disposition is MessageState.STEERED
        model = workspace.spec.model
        assert prompts(model.requests[-1]) == ["go", "to the left", "no, right"]


@pytest.mark.parametrize("way", ["/stop", "/new"])
async def test_a_sub_agent_that_was_stopped_at_rest_does_not_go_on_with_the_next_message(
    tmp_path: Path, way: str
) -> None:
    cast = Cast(go=[[call("spawn", prompt="sub")]], sub=[[call("bash", command="echo did >> did.txt")]])
    cast.hold("sub")
    spec = spec_of(tmp_path, text=SPAWNING, model=cast.model)
    async with gateway_in(tmp_path, specs=[spec], store=MemoryStore()) as gateway:
        workspace = gateway.default
        await gateway.submit(workspace, LOCAL, "s", "go")
        await until(lambda: "sub" in cast.asked)
        await workspace.passivate("default", "s", deadline_ms=0)
        await gateway.submit(workspace, LOCAL, "s", way)
        cast.let_go()
        await ask(gateway, "s", "hello")
        session = await workspace.session("default", "s")
        await session.wait_idle()
        assert cast.asked.count("sub") == 1
        assert not (tmp_path / "did.txt").exists()


async def test_a_stop_of_the_server_does_not_wait_for_the_deadline_of_a_passivation(tmp_path: Path) -> None:
    held = Held(say("never"))
    async with gateway_in(tmp_path, script=[held], store=MemoryStore(), drain_ms=SOON) as gateway:
        await gateway.submit(gateway.default, LOCAL, "s", "go")
        await held.asked.wait()
        leaving = asyncio.create_task(gateway.default.passivate("default", "s", deadline_ms=DAY_MS))
        await until(lambda: gateway.default.rest.leaving)
    assert await leaving


async def test_an_earlier_deadline_holds_for_a_passivation_that_has_begun(tmp_path: Path) -> None:
    held = Held(say("never"))
    async with gateway_in(tmp_path, script=[held], store=MemoryStore()) as gateway:
        await gateway.submit(gateway.default, LOCAL, "s", "go")
        await held.asked.wait()
        first = asyncio.create_task(gateway.default.passivate("default", "s", deadline_ms=DAY_MS))
        await until(lambda: gateway.default.rest.leaving)
        assert await gateway.default.passivate("default", "s", deadline_ms=SOON)
        assert await first


async def test_a_session_leaves_although_its_store_is_somebody_elses(tmp_path: Path) -> None:
    unheard: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context["message"]))
    disk = MemoryDisk()
    async with gateway_in(tmp_path, store=MemoryStore(disk)) as gateway:
        await ask(gateway, "s", "one")
        await MemoryStore(disk).open()
        with pytest.raises(FencedError):
            await ask(gateway, "s", "two")
        session = gateway.default.live_session("default", "s")
        assert session is not None
        await session.passivate("evicted", deadline_ms=0)
        await asyncio.sleep(0)
        assert gateway.default.rest.leaving == {}
    assert unheard == []


# ---- what ends a run that was put off ----


@pytest.mark.parametrize("times", [1, 2])
async def test_a_rollback_forgets_a_run_that_was_put_off(tmp_path: Path, times: int) -> None:
    helds = [Held(say("never")) for _ in range(times)]
    model = ScriptedModel([[call("bash", command="true")], *helds, [say("new answer")]])
    spec = spec_of(tmp_path, text=SPAWNING, model=model)
    async with gateway_in(tmp_path, specs=[spec], store=MemoryStore()) as gateway:
        workspace = gateway.default
        old = await gateway.submit(workspace, LOCAL, "s", "old")
        for held in helds:
            workspace.rest.stir(("default", "s"))
            await held.asked.wait()
            assert await workspace.passivate("default", "s", deadline_ms=SOON)
        assert workspace.rest.resting
        new = await gateway.submit(workspace, LOCAL, "s", "new", mode="rollback")
        assert (await workspace.inbox.wait(new.message_id)).answer == "new answer"
        assert (await workspace.inbox.wait(old.message_id)).outcome is Outcome.INTERRUPTED
        assert shape(model.requests[-1]) == ["user: new"]
        lines = await workspace.inbox.engine.store.history.entries(workspace.owner("default", "s"))
        told = [(line.text, "forgotten" in line.body) for line in lines]
        assert told == [("old", True), ("new", False), ("new answer", False)]
        async with workspace.using("default", "s") as session:
            assert [str(said) for said in await session.history()] == ["user: new", "assistant: new answer"]


async def test_an_interrupt_that_comes_before_a_rollback_has_run_forgets_the_same(tmp_path: Path) -> None:
    held = Held(say("never"))
    model = ScriptedModel([held, [say("newest answer")]])
    spec = spec_of(tmp_path, text=SPAWNING, model=model)
    async with gateway_in(tmp_path, specs=[spec], store=MemoryStore()) as gateway:
        workspace = gateway.default
        await gateway.submit(workspace, LOCAL, "s", "old")
        await held.asked.wait()
        await workspace.passivate("default", "s", deadline_ms=SOON)
        modes = {"new": "rollback", "newest": "interrupt"}
        sent = (gateway.submit(workspace, LOCAL, "s", text, mode=mode) for text, mode in modes.items())
        first, newest = await asyncio.gather(*sent)
        assert (await workspace.inbox.wait(newest.message_id)).answer == "newest answer"
        assert (await workspace.inbox.wait(first.message_id)).disposition is MessageState.SUPERSEDED
        assert shape(model.requests[-1]) == ["user: newest"]


@pytest.mark.parametrize("end", ["interrupt", "rollback", "cancel"])
@pytest.mark.parametrize("is_live", [True, False])
@pytest.mark.parametrize("times", [1, 2, 3])
async def test_what_a_run_has_started_ends_with_it_however_often_it_was_put_off(
    tmp_path: Path, times: int, is_live: bool, end: str
) -> None:
    helds = [Held(say("never")) for _ in range(times + is_live)]
    asked, waits, at_work = iter(helds), asyncio.Event(), [0]

    async def play(request: Any) -> Any:
        text = prompts(request)[-1]
        if text not in ("go", "work"):  # it is new, or tells of the end of the other
            return [say("done")]
        if text == "go":
            return await next(asked)(request) if len(request.conversation) > 1 else [call("spawn", prompt="work")]
        at_work[0] += 1
        try:
            await waits.wait()
        finally:
            at_work[0] -= 1
        return [say("worked")]

    spec = spec_of(tmp_path, text=SPAWNING, model=ScriptedModel([play] * 50))
    async with gateway_in(tmp_path, specs=[spec], store=MemoryStore()) as gateway:
        workspace = gateway.default
        await gateway.submit(workspace, LOCAL, "s", "go")
        for held in helds:
            workspace.rest.stir(("default", "s"))
            await held.asked.wait()
            await until(lambda: at_work[0])
            if held is not helds[-1] or not is_live:
                assert await workspace.passivate("default", "s", deadline_ms=SOON)
        if end == "cancel":
            assert await workspace.inbox.cancel("s", "enough")
        else:
            receipt = await gateway.submit(workspace, LOCAL, "s", "new", mode=end)
            await workspace.inbox.wait(receipt.message_id)
        async with workspace.using("default", "s") as session:
            await until(lambda: not at_work[0])
            await session.wait_idle()
            assert session.children() == []
