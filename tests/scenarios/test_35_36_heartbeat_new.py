"""Scenarios 35 and 36 of the behaviour page with sessions of a real agent: heartbeats, and `/new` while a run waits.

What the inbox alone does in them is in `test_19_36_modes.py`, and `/new` while a tool runs in `test_25_34_agent.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from laneway.agent.session import AsyncSession
from laneway.mail import MessageState, Mode, Outcome
from laneway.models import ScriptedModel, call, say
from laneway.models.scripted import Entry
from laneway.options import ConfirmationPolicy, PermissionPolicy, SessionQueueConfig
from tests.agent_stage import (
    QUEUES,
    Bench,
    Delivered,
    Held,
    Watch,
    check_model,
    final_of,
    opened,
    post,
    prompts,
    sending,
    shape,
    use,
)
from tests.inbox_stage import staged
from tests.stage import now_ms, passing

DEBOUNCE = 1_000
BUSY = [mode for mode in Mode if mode is not Mode.REJECT]


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("mode", BUSY)
@staged
async def test_35_a_heartbeat_that_thinks_gives_way_to_a_user(mode: Mode, queue: bool) -> None:
    """Heartbeat running / user message / heartbeat gives way."""
    beating = Held(say("all is quiet"))
    model = ScriptedModel([beating, [say("hello yourself")]])
    async with opened(model, queue=queue) as session:
        said = Delivered(await session.ready())
        beat = await post(session, "beat", kind="heartbeat")
        await beating.asked.wait()
        user = await post(session, "hello", mode, sender="ada")
        end, gone = await final_of(session, user), await final_of(session, beat)
        assert now_ms() <= DEBOUNCE  # a collected message may wait out its debounce
        beating.let_go()
        assert await said.texts() == ["hello yourself"]
    assert (gone.disposition, gone.outcome) == (MessageState.RAN, Outcome.INTERRUPTED)
    assert (end.disposition, end.outcome) == (MessageState.RAN, Outcome.SUCCEEDED)
    check_model(model)


@pytest.mark.parametrize("mode", BUSY)
@staged
async def test_35_the_tool_of_a_heartbeat_is_ended_and_its_calls_have_results(mode: Mode) -> None:
    """The same while a heartbeat uses tools: a write that was cut is unknown, what had not begun is not made."""
    bench = Bench("t1")
    model = ScriptedModel([use("act", "t1", "t2"), [say("hello yourself")]])
    async with opened(model, bench, queue=True) as session:
        await session.ready()
        beat = await post(session, "beat", kind="heartbeat")
        await bench.begun("t1").wait()
        user = await post(session, "hello", mode, sender="ada")
        assert (await final_of(session, user)).answer == "hello yourself"
        assert (await final_of(session, beat)).outcome is Outcome.INTERRUPTED
    assert (bench.cancelled, bench.began) == (["t1"], ["t1"])
    if mode is not Mode.ROLLBACK:  # which forgets it
        assert shape(model.requests[-1])[1:] == ["calls t1 t2", "results t1=unknown t2=cancelled", "user: hello"]
    check_model(model)


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_35_a_heartbeat_is_skipped_while_a_run_of_a_user_goes_on(queue: bool) -> None:
    """User turn running / heartbeat / skipped."""
    bench = Bench("t1")
    model = ScriptedModel([use("act", "t1"), [say("done")]])
    async with opened(model, bench, queue=queue) as session:
        first = sending(session, "go")
        await bench.begun("t1").wait()
        beat = await post(session, "beat", kind="heartbeat")
        assert (beat.disposition, "heartbeat" in beat.reason) == (MessageState.DROPPED, True)
        bench.let_go()
        assert (await first).text == "done"
        await passing(5_000)
    assert all("beat" not in prompts(request) for request in model.requests)
    assert len(model.requests) == 2


@staged
async def test_35_a_heartbeat_of_an_idle_session_runs_and_the_next_one_does_too() -> None:
    model = ScriptedModel([[say("quiet")], [say("still quiet")]])
    async with opened(model) as session:
        await session.ready()
        for expected in ("quiet", "still quiet"):
            beat = await post(session, "beat", kind="heartbeat")
            assert (await final_of(session, beat)).answer == expected
    check_model(model)


# ---- /new while the run waits for somebody ----


async def asks(session: AsyncSession) -> None:
    """A call waits for an approval."""
    while not await session.approvals():
        await passing()


async def is_out(session: AsyncSession) -> None:
    """Somebody else is to make a call."""
    while not await session.pending_external_tasks():
        await passing()


async def delegates(session: AsyncSession) -> None:
    """A sub-agent is at work."""
    await passing(1)
    assert len(session.host.inbox.engine.kernel.turns) == 2


WAITS: dict[str, tuple[Any, dict[str, Any], Callable[[AsyncSession], Awaitable[None]]]] = {
    "approval": (
        use("act", "t1"),
        {
            "permission_policy": PermissionPolicy(ask=("act",)),
            "confirmation_policy": ConfirmationPolicy(),
        },
        asks,
    ),
    "external": (use("act", "t1"), {"queue": SessionQueueConfig().set_lane_handler("execute", "external")}, is_out),
    "child": ([call("task", prompt="dig").with_id("t1")], {"subagents": True}, delegates),
}


@pytest.mark.parametrize("mode", [str(mode) for mode in Mode])
@pytest.mark.parametrize("waits", WAITS)
@staged
async def test_36_a_new_conversation_lets_nothing_of_a_run_that_waits_for_somebody_into_it(
    waits: str, mode: str
) -> None:
    """`/new` while an approval, a task or a sub-agent is out, in any mode / not queued, nothing leaks."""
    answer, options, waiting = WAITS[waits]
    bench, digging = Bench(), Held(say("dug"))
    script: list[Entry] = [answer, *([digging] if waits == "child" else []), [say("fresh")]]
    model = ScriptedModel(script)
    async with opened(model, bench, mode=mode, **options) as session:
        said = Delivered(await session.ready())
        watch = Watch(session.stream("old"))
        await waiting(session)
        behind = await post(session, "waits")
        reply = await session.command("/new")
        assert "new conversation" in (reply or "")
        await watch.task
        assert (await final_of(session, behind)).disposition is MessageState.WITHDRAWN
        assert (await session.send("hello")).text == "fresh"
        digging.let_go()
        await passing(100_000)
        assert await session.approvals() == []
        assert await session.pending_external_tasks() == []
        assert [str(each) for each in await session.history()] == ["user: hello", "assistant: fresh"]
        assert await said.texts() == ["fresh"]
    assert shape(model.requests[-1]) == ["user: hello"]
    assert bench.began == []
    assert watch.events[-1].event_type == "error"


@staged
async def test_36_a_late_result_of_the_old_conversation_says_nothing_in_the_new_one() -> None:
    """A worker that had the task says what became of it after `/new`: the ledger knows, the conversation does not."""
    model = ScriptedModel([use("act", "t1"), [say("fresh")]])
    queue = SessionQueueConfig().set_lane_handler("execute", "external")
    async with opened(model, Bench(), queue=queue) as session:
        sent = sending(await session.ready(), "old")
        await is_out(session)
        [task] = await session.pending_external_tasks()
        await session.command("/new")
        await asyncio.wait([sent])
        assert await session.complete_external_task(task["task_id"], "done after all")
        assert (await session.send("hello")).text == "fresh"
        assert "done after all" not in str(await session.history())
        [entry] = await session.ledger()
    assert entry.state == "done"
    assert shape(model.requests[-1]) == ["user: hello"]
