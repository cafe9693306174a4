"""Whoever looks at the past of a session that is not in memory starts nothing there."""

from __future__ import annotations

from typing import Any

import pytest

from laneway import replay
from laneway.errors import ClosedError, PassivatedError, UnknownRunError, UnknownSessionError, UsageError
from laneway.mail import TurnState
from laneway.models import ScriptedModel, say
from laneway.options import LaneHandlerConfig, SessionQueueConfig
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.stores.sessions import FileSessionStore
from laneway.sync import Agent
from tests.agent_stage import ALLOW, Bench, Held, agent_of, sending, session_of, use
from tests.stage import passing, simulated


async def cut(disk: MemoryDisk, **options: Any) -> str:
    """A run that a process has left in the middle: `act` was made, and the model was to be asked again."""
    held, bench = Held(say("never")), Bench()
    model = ScriptedModel([use("act", "a"), held])
    async with agent_of(model, bench, session_store=MemoryStore(disk), record=True, **options) as agent:
        session = session_of(agent, session_id="s")
        sending(session, "go")
        await held.asked.wait()
        return (await session.runs())[0].run_id


@simulated
async def test_a_past_that_is_looked_at_brings_nothing_back() -> None:
    disk = MemoryDisk()
    run = await cut(disk)
    model = ScriptedModel([[say("on")]])
    async with agent_of(model, Bench(), session_store=MemoryStore(disk), record=True) as agent:
        session = session_of(agent, session_id="s", start=False)
        history = await session.run_history(run)
        again = await session.replay(run)
        assert replay.dump(again.history) == replay.dump(history)
        assert [each.run_id for each in await session.runs()] == [run]
        assert (await session.run_snapshot(run)).prompt == "go"
        assert "act(key=" in await session.explain_run(run)
        assert "tool_end" in [event.event_type for event in await session.run_events(run)]
        assert next(str(said) for said in await session.history()) == "user: go"
        assert [entry.state for entry in await session.ledger()] == ["done"]
        await passing()
        assert model.requests == []
        await session.wait_idle()  # which has something to do: it opens the session, and the run goes on
        assert len(model.requests) == 1
        assert [each.state for each in await session.runs()] == [TurnState.INTERRUPTED, TurnState.SUCCEEDED]


@simulated
async def test_a_session_that_was_passivated_is_read_where_it_is() -> None:
    held = Held(say("never"))
    model = ScriptedModel([use("act", "a"), held, [say("on")]])
    async with agent_of(model, Bench(), session_store=MemoryStore(), record=True) as agent:
        session = session_of(agent, session_id="s")
        task = sending(session, "go")
        await held.asked.wait()
        await session.passivate(deadline_ms=0)
        with pytest.raises(PassivatedError):
            await task
        (found,) = await session.runs()
        await session.replay(found.run_id)
        await passing()
        assert (found.state, len(model.requests)) == (TurnState.INTERRUPTED, 2)
        await session.wait_idle()
        assert len(model.requests) == 3


@simulated
async def test_a_fork_leaves_the_session_that_it_comes_from_at_rest() -> None:
    disk = MemoryDisk()
    run = await cut(disk)
    model = ScriptedModel([[say("forked")]])
    bench = Bench()
    async with agent_of(model, bench, session_store=MemoryStore(disk), record=True) as agent:
        session = session_of(agent, session_id="s", start=False)
        fork = await session.fork(run, prompt="and now?")
        await fork.wait_idle()
        await passing()
        assert len(model.requests) == 1
        assert bench.began == []
        assert [each.run_id for each in await session.runs()] == [run]


@simulated
async def test_calls_are_made_beside_each_other_by_the_same_rules_while_it_rests() -> None:
    handlers = {"execute": LaneHandlerConfig(ordered=False)}
    queue = SessionQueueConfig(lane_handlers=handlers)
    disk = MemoryDisk()
    model = ScriptedModel([use("look", "a", "b"), use("check", "c", "d"), [say("done")]])
    async with agent_of(model, Bench(), session_store=MemoryStore(disk), record=True) as agent:
        run = (await session_of(agent, queue=queue, session_id="s").send("go")).run_id
    async with agent_of(ScriptedModel([]), Bench(), session_store=MemoryStore(disk)) as agent:
        again = await session_of(agent, queue=queue, session_id="s", start=False).replay(run)
    assert [step["calls"] for step in again.history.steps if step["op"] == "act"] == [["a", "b"], ["c", "d"]]


@simulated
async def test_a_run_that_is_not_there_is_told_and_nothing_is_opened() -> None:
    disk = MemoryDisk()
    await cut(disk)
    model = ScriptedModel([])
    async with agent_of(model, Bench(), session_store=MemoryStore(disk)) as agent:
        session = session_of(agent, session_id="s", start=False)
        for ask in (session.run_history, session.replay, session.run_snapshot, session.explain_run):
            with pytest.raises(UnknownRunError, match="turn-99"):
                await ask("turn-99")
        await session.close()
        with pytest.raises(ClosedError):
            await session.runs()


@simulated
async def test_what_a_crash_has_left_is_not_told_as_going_on() -> None:
    disk = MemoryDisk()
    held = Held(say("never"))
    async with agent_of(ScriptedModel([held]), session_store=MemoryStore(disk)) as agent:
        sending(session_of(agent, session_id="s"), "go")
        await held.asked.wait()
        async with agent_of(ScriptedModel([]), session_store=MemoryStore(disk)) as other:  # as if that one had died
            session = session_of(other, session_id="s", start=False)
            (found,) = await session.runs()
            assert (await session.run_snapshot(found.run_id)).reason == found.reason
            assert "it goes on when its session is opened" in found.reason
            assert "it goes on when its session is opened" in await session.explain_run(found.run_id)


# ---- sessions that are resumed ----


@pytest.mark.parametrize("start", [True, False])
@simulated
async def test_a_session_that_the_store_does_not_know_is_not_resumed(start: bool) -> None:
    disk = MemoryDisk()
    await cut(disk)
    model = ScriptedModel([[say("one")], [say("two")]])
    async with agent_of(model, Bench(), session_store=MemoryStore(disk)) as agent:
        await session_of(agent, session_id="review-7", tenant_id="acme").send("go")
        await session_of(agent, session_id="review-8").send("go")
        session = agent.resume_session("reveiw-7", start=start)
        for ask in (session.runs, session.history, lambda: session.send("hello"), session.ready):
            with pytest.raises(UnknownSessionError, match="there is no session 'reveiw-7' in this MemoryStore") as told:
                await ask()
        assert told.value.near == ("review-8",)
        assert "did you mean 'review-8'? agent.session(session_id='reveiw-7') begins a new one" in str(told.value)
        await session.close()
        with pytest.raises(UnknownSessionError, match=r"of tenant 'acme'.*did you mean 'review-7'\?"):
            await agent.resume_session("review-8", tenant_id="acme").ready()
        assert await agent.stored_sessions() == ["review-8", "s"]


@simulated
async def test_a_session_with_a_past_is_resumed_even_if_it_has_only_labels() -> None:
    disk = MemoryDisk()
    await cut(disk)
    async with agent_of(ScriptedModel([]), session_store=MemoryStore(disk)) as agent:
        await session_of(agent, session_id="labelled", principal="user:42").ready()
    async with agent_of(ScriptedModel([[say("on")]]), Bench(), session_store=MemoryStore(disk)) as agent:
        resumed = await agent.resume_session("labelled").ready()
        assert resumed.principal() == "user:42"
        again = agent.resume_session("s")
        await again.wait_idle()
        assert (await again.runs())[-1].answer == "on"


@simulated
async def test_nothing_is_resumed_without_a_store() -> None:
    async with agent_of(ScriptedModel([])) as agent:
        with pytest.raises(UsageError, match=r"resume_session\('s'\) requires a session_store"):
            agent.resume_session("s")


def test_a_sync_session_that_is_not_there_is_told_at_once(tmp_path: Any) -> None:
    with Agent(ScriptedModel([]), session_store=FileSessionStore(tmp_path)) as agent:
        with pytest.raises(UnknownSessionError, match=r"no session 's' in .*sessions\.db"):
            agent.resume_session("s")
        assert agent.sessions() == []


def test_a_sync_session_is_not_opened_to_look_either(tmp_path: Any) -> None:
    options: dict[str, Any] = {"session_store": FileSessionStore(tmp_path), "permission_policy": ALLOW}
    with Agent(ScriptedModel([[say("one")]]), **options) as agent:
        run = agent.session(str(tmp_path), session_id="s").send("go").run_id
    with Agent(ScriptedModel([]), **options) as agent:
        session = agent.session(str(tmp_path), session_id="s", start=False)
        assert session.replay(run).text == "one"
        assert "asked: go" in session.explain_run(run)
