"""What waits in a session can be seen, bounded and taken back, and a run that waits says for what."""

from __future__ import annotations

import pytest

from laneway import AsyncAgent, MailboxFullError, MemorySessionStore, ModelLimitedError, RunCancelledError, UsageError
from laneway.mail import Drop, QueueOptions
from laneway.models import ScriptedModel, fail, say
from laneway.sync import Agent
from tests.agent_stage import Held, Watch, agent_of, opened, post, session_of
from tests.inbox_stage import staged
from tests.stage import passing


@staged
async def test_a_message_that_waits_is_listed_and_can_be_taken_back() -> None:
    held = Held(say("first"))
    async with opened(ScriptedModel([held, [say("third")]])) as session:
        await post(session, "one")
        await held.asked.wait()
        second = await session.followup("two")
        await session.followup("three")
        assert [(each.text, each.position) for each in await session.pending()] == [("two", 1), ("three", 2)]
        await session.withdraw(second.message_id, "a slip")
        held.let_go()
        with pytest.raises(RunCancelledError, match="withdrawn: a slip"):
            await session.wait(second.message_id)
        await session.wait_idle()
        assert await session.pending() == []
        assert [info.prompt for info in await session.runs()] == ["one", "three"]


@staged
async def test_the_queue_of_a_session_is_bounded_by_its_own_settings() -> None:
    held = Held(say("first"))
    bounds = QueueOptions(cap=1, drop=Drop.NEW)
    async with opened(ScriptedModel([held, [say("second")]]), messages=bounds) as session:
        await post(session, "one")
        await held.asked.wait()
        await session.followup("two")
        with pytest.raises(MailboxFullError):
            await session.followup("three")
        held.let_go()
        await session.wait_idle()
        assert [info.answer for info in await session.runs()] == ["first", "second"]


@staged
async def test_the_bounds_of_a_file_hold_for_its_sessions() -> None:
    held = Held(say("first"))
    config = 'default_model = "scripted"\nqueue {\n  cap = 1\n  drop = "new"\n}\n'
    async with AsyncAgent.create(config, model=ScriptedModel([held, [say("second")]])) as agent:
        session = agent.session(".")
        await session.followup("one")
        await held.asked.wait()
        await session.followup("two")
        with pytest.raises(MailboxFullError):
            await session.followup("three")
        assert not session.has_queue()  # settings of messages make no queue of tools
        held.let_go()
        await session.wait_idle()


@staged
async def test_every_run_that_waits_for_a_model_says_so() -> None:
    limited = ModelLimitedError("too many requests", retry_after_ms=60_000)
    model = ScriptedModel([[fail(limited)], [say("one")], [say("two")]])
    async with agent_of(model) as agent:
        first, second = session_of(agent), session_of(agent)
        await first.ready()
        await second.ready()
        watches = [Watch(first.stream("a"))]
        await passing(10)
        watches.append(Watch(second.stream("b")))
        await passing(10)
        for session in (first, second):
            run = session.current_run()
            assert run is not None
            assert (run.state, "too many requests" in run.reason) == ("waiting", True)
        await passing(61_000)
        for watch in watches:
            await watch.task
            assert [event.until_ms > 0 for event in watch.of("run_waiting")] == [True]
        assert first.current_run() is None


@staged
async def test_a_paused_run_says_that_it_is_paused() -> None:
    async with opened(ScriptedModel([[say("hello")]])) as session:
        await session.ready()
        session.pause()
        await session.followup("go")
        await passing(10)
        run = session.current_run()
        assert run is not None
        assert (run.state, run.reason) == ("waiting", "the session is paused")
        assert run.messages
        session.resume()
        await session.wait_idle()


async def test_an_agent_knows_the_sessions_in_its_store() -> None:
    store = MemorySessionStore()
    async with AsyncAgent("scripted", session_store=store) as agent:
        for name in ("b", "a"):
            await agent.session(session_id=name).send("hello")
        assert await agent.stored_sessions() == ["a", "b"]
        assert await agent.stored_sessions(after="a", limit=1) == ["b"]
    async with AsyncAgent("scripted", session_store=store) as agent:
        assert await agent.stored_sessions() == ["a", "b"]
    async with AsyncAgent("scripted") as agent:
        with pytest.raises(UsageError, match="no session_store"):
            await agent.stored_sessions()


def test_the_synchronous_agent_knows_them_too() -> None:
    with Agent("scripted", session_store=MemorySessionStore()) as agent:
        agent.session(session_id="a").send("hello")
        assert agent.stored_sessions() == ["a"]
