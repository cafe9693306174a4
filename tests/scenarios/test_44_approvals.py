"""Scenario 44 of the behaviour page: an approval that is pending in session A never holds up session B."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from laneway import Group, Inbox, LaneConfig, Lanes, Turn
from laneway.dialogue import ModelRequest
from laneway.mail import Outcome
from laneway.models import ScriptedModel, say
from laneway.models.scripted import Piece
from laneway.options import SessionQueueConfig
from laneway.testing import fake_host
from tests.agent_stage import QUEUES, Bench, agent_of, final_of, post, results, sending, session_of, use
from tests.approval_stage import asks, pending, the_one
from tests.inbox_stage import staged
from tests.stage import passing

NARROW = SessionQueueConfig(
    control_max_concurrency=1, query_max_concurrency=1, execute_max_concurrency=1, generate_max_concurrency=1
)


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_44_a_session_that_waits_for_an_approval_holds_no_slot_of_another(queue: bool) -> None:
    """Approval pending in session A / session B / goes on, to its end, although one turn may run at a time."""
    bench = Bench()
    model = ScriptedModel([use("act", "a"), use("act", "b"), [say("b is done")], [say("a is done")]])
    async with agent_of(model, bench) as agent:
        first = session_of(agent, queue=NARROW if queue else False, **asks())
        second = session_of(agent, queue=NARROW if queue else False)
        await first.ready()
        await second.ready()
        first.host.lanes.resize("main", 1)
        held = await post(first, "go")
        found = await the_one(first)
        main = first.host.lanes.stats().lanes["main"]
        assert (main.running, main.waiting) == (0, 0)
        assert (await second.send("go")).text == "b is done"
        assert [each.approval_id for each in await pending(first)] == [found.approval_id]
        assert await first.confirm_tool_use("a", True)
        assert (await final_of(first, held)).answer == "a is done"
    assert bench.ended == ["b", "a"]


@staged
async def test_44_many_sessions_wait_and_many_others_go_on_in_lanes_of_width_one() -> None:
    """Ten wait for people, ten do not / all of the second ten end; then each of the first with its own answer."""
    bench = Bench()

    async def answer(request: ModelRequest) -> Sequence[Piece]:
        return [say("done")] if results(request) else use("act", "x")

    model = ScriptedModel([answer] * 40)
    async with agent_of(model, bench) as agent:
        waiting = [session_of(agent, queue=NARROW, **asks()) for _ in range(10)]
        others = [session_of(agent, queue=NARROW) for _ in range(10)]
        for session in (*waiting, *others):
            await session.ready()
        waiting[0].host.lanes.resize("main", 1)
        asked = [sending(session, "go") for session in waiting]
        ends = [sending(session, "go") for session in others]
        for end in ends:
            assert (await end).text == "done"
        assert len(bench.ended) == 10
        assert [len(await pending(session)) for session in waiting] == [1] * 10
        for number, session in enumerate(waiting):
            assert await session.confirm_tool_use("x", number % 2 == 0)
        for task in asked:
            assert (await task).text == "done"
    assert len(bench.ended) == 15


@staged
async def test_44_a_shared_cap_and_a_group_of_one_are_free_while_a_turn_waits() -> None:
    """Approval pending in session A / session B / goes on under `max_concurrent=1` and a group with one slot."""

    async def work(turn: Turn) -> str:
        if turn.session_key == "a":
            return f"it is {(await turn.ask_approval('rm', {'path': 'old'})).state}"
        return "done"

    lanes = Lanes(
        {"main": LaneConfig(concurrency=1)},
        max_concurrent=1,
        unknown="create",
        host=fake_host(),
    )
    async with lanes, Inbox(work, lanes=lanes, host=fake_host()) as inbox:
        first = await inbox.submit("a", "go")
        await passing()
        (approval,) = inbox.approvals("a")
        for number in range(5):
            other = await inbox.submit(f"b{number}", "go")
            assert (await inbox.wait(other.message_id)).outcome is Outcome.SUCCEEDED
        assert await inbox.approve(approval.id)
        assert (await inbox.wait(first.message_id)).answer == "it is approved"


@staged
async def test_44_a_group_with_one_slot_is_free_while_a_turn_waits() -> None:
    """The same, when the lanes share a cap by a group."""

    async def work(turn: Turn) -> str:
        if turn.session_key == "a":
            return f"it is {(await turn.ask_approval('rm', {'path': 'old'})).state}"
        return "done"

    lanes = Lanes(
        {"main": LaneConfig(concurrency=4)},
        groups={"machine": Group(cap=1, lanes=["main"])},
        unknown="create",
        host=fake_host(),
    )
    async with lanes, Inbox(work, lanes=lanes, host=fake_host()) as inbox:
        first = await inbox.submit("a", "go")
        await passing()
        (approval,) = inbox.approvals("a")
        other = await inbox.submit("b", "go")
        assert (await inbox.wait(other.message_id)).answer == "done"
        assert await inbox.deny(approval.id)
        assert (await inbox.wait(first.message_id)).answer == "it is denied"
