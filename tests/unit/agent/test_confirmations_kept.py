"""A request for approval outlives its process, and an answer to it counts once, whatever dies or fails meanwhile."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from laneway.agent.session import AsyncSession
from laneway.dialogue import ModelRequest
from laneway.errors import StoreUnavailableError
from laneway.mail import Outcome
from laneway.models import ScriptedModel, call, say
from laneway.models.scripted import Piece
from laneway.options import SessionQueueConfig
from laneway.policies import Hook
from laneway.sim.loop import run_sim
from laneway.stores.memory import MemoryStore
from tests.agent_stage import (
    Bench,
    Watch,
    agent_of,
    check_model,
    final_of,
    one,
    post,
    results,
    session_of,
    statuses,
    use,
)
from tests.approval_stage import SPAN, Lives, Store, asks, is_request, pending, rows_of, the_one
from tests.inbox_stage import CutStore, staged
from tests.stage import passing


@pytest.mark.parametrize("approved", [True, False])
@staged
async def test_a_request_outlives_its_process_with_its_id_and_its_whole_time(approved: bool) -> None:
    lives = Lives(use("act", "a"), [say("done")])
    async with lives.life(dies=True) as session:
        message = await post(session, "go")
        old = await the_one(session)
        await passing(29_000)
    async with lives.life() as session:
        new = await the_one(session)
        assert {**new, "remaining_ms": 0} == {**old, "remaining_ms": 0}
        assert new.remaining_ms > 29_000
        watch = Watch(session.subscribe())
        assert f"is {'approved' if approved else 'denied'}" in (
            await session.command(f"/{'approve' if approved else 'deny'} {old.approval_id}") or ""
        )
        assert (await final_of(session, message)).outcome is Outcome.SUCCEEDED
        await passing()
    assert lives.bench.ended == (["a"] if approved else [])
    assert len(watch.of("confirmation_received")) == 1
    assert [(row.id, row.live) for row in rows_of(lives.disk)] == [(old.approval_id, 0)]
    assert len(lives.model.requests) == 2
    check_model(lives.model)


@staged
async def test_a_run_is_asked_for_its_approval_once_in_all_of_its_lives() -> None:
    lives = Lives(use("act", "a"), [say("done")])
    ids: set[str] = set()
    for _ in range(8):
        async with lives.life(dies=True) as session:
            if not ids:
                await post(session, "go")
            ids.add((await the_one(session)).approval_id)
    async with lives.life() as session:
        assert {(await the_one(session)).approval_id} == ids
        assert await session.confirm_tool_use("a", True)
        await session.wait_idle()
    assert lives.bench.ended == ["a"]


@pytest.mark.parametrize("approved", [True, False])
@staged
async def test_an_answer_between_the_restart_and_the_question_counts_once(approved: bool) -> None:
    lives = Lives(use("act", "a"), [say("done")])
    async with lives.life(dies=True) as session:
        message = await post(session, "go")
        old = await the_one(session)
    agent = agent_of(ScriptedModel([]))
    async with agent:  # another session of the same store is open; that one is not
        store = MemoryStore(lives.disk)
        other = session_of(agent, session_store=store, session_id="other")
        await other.ready()
        inbox = other.host.inbox
        await passing(100_000)
        assert [each.id for each in inbox.approvals("s")] == [old.approval_id]
        assert await (inbox.approve(old.approval_id, by="ada") if approved else inbox.deny(old.approval_id, by="ada"))
        assert not await inbox.approve(old.approval_id)
    async with lives.life() as session:
        watch = Watch(session.subscribe())
        assert (await final_of(session, message)).outcome is Outcome.SUCCEEDED
        assert not await session.confirm_tool_use("a", True)
        await passing()
    assert lives.bench.ended == (["a"] if approved else [])
    asked = watch.of("confirmation_required")
    assert asked == []
    assert [(row.id, row.live) for row in rows_of(lives.disk)] == [(old.approval_id, 0)]


@staged
async def test_an_approval_counts_when_the_process_dies_before_the_call_begins() -> None:
    lives = Lives(use("act", "a"), [say("done")])
    async with lives.life(dies=True) as session:
        message = await post(session, "go")
        old = await the_one(session)
        lives.stores[-1].dies_at = "approved"  # the answer is on disk, the intent of the call is not
        answering = asyncio.get_running_loop().create_task(session.confirm_tool_use("a", True))
        await passing()
    assert not answering.done()
    answering.cancel()
    began = list(lives.bench.began)
    async with lives.life() as session:
        assert (await final_of(session, message)).outcome is Outcome.SUCCEEDED
        assert [row.id for row in rows_of(lives.disk)] == [old.approval_id]
    assert began == []
    assert lives.bench.ended == ["a"]


@staged
async def test_a_call_that_had_begun_before_a_crash_is_not_asked_about_again() -> None:
    lives = Lives(use("put", "a"), [say("done")])
    lives.bench.held.add("a")
    async with lives.life(dies=True) as session:
        message = await post(session, "go")
        await the_one(session)
        assert await session.confirm_tool_use("a", True)
        await lives.bench.begun("a").wait()
    lives.bench.let_go()
    async with lives.life() as session:
        assert (await final_of(session, message)).outcome is Outcome.SUCCEEDED
        assert len(rows_of(lives.disk)) == 1
    assert lives.bench.began == ["a", "a"]


@staged
async def test_other_arguments_after_a_restart_are_another_request() -> None:
    lives = Lives(use("act", "a"), [say("done")])
    async with lives.life(dies=True) as session:
        message = await post(session, "go")
        old = await the_one(session)

    async def change(event: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"action": "continue", "args": {"key": "b"}}

    async with lives.life(hooks=[Hook("h", "pre_tool_use", handler=change)]) as session:
        new = await the_one(session)
        assert (new.args, new.approval_id != old.approval_id) == ({"key": "b"}, True)
        reply = await session.command(f"/approve {old.approval_id}")
        assert reply == f"Request {old.approval_id} is superseded."
        assert lives.bench.began == []
        assert await session.confirm_tool_use("a", True)
        await final_of(session, message)
    assert lives.bench.ended == ["b"]


@staged
async def test_a_session_that_is_closed_leaves_its_request_and_goes_on_with_it() -> None:
    lives = Lives(use("act", "a"), [say("done")])
    async with lives.life() as session:
        message = await post(session, "go")
        old = await the_one(session)
        log = session.host.inbox.subscribe("approval.ended")
    assert [event async for event in log] == []
    assert [(row.id, row.state, row.live) for row in rows_of(lives.disk)] == [(old.approval_id, "pending", 1)]
    async with lives.life() as session:
        assert (await the_one(session)).approval_id == old.approval_id
        assert await session.confirm_tool_use("a", True)
        assert (await final_of(session, message)).outcome is Outcome.SUCCEEDED
    assert lives.bench.ended == ["a"]
    check_model(lives.model)


@staged
async def test_a_session_that_is_closed_and_opened_in_one_process_goes_on_with_its_request() -> None:
    bench, store = Bench(), CutStore()
    model = ScriptedModel([use("act", "a"), [say("done")]])
    async with agent_of(model, bench) as agent:
        keeper = session_of(agent, session_store=store, session_id="keeper")
        await keeper.ready()
        session = session_of(agent, session_store=store, session_id="s", **asks())
        message = await post(session, "go")
        old = await the_one(session)
        await session.close()
        await passing(100_000)  # its time stands still meanwhile
        again = session_of(agent, session_store=store, session_id="s", **asks())
        await again.ready()
        found = await the_one(again)
        assert (found.approval_id, found.remaining_ms > SPAN - 100) == (old.approval_id, True)
        assert await again.confirm_tool_use("a", True)
        assert (await final_of(again, message)).outcome is Outcome.SUCCEEDED
    assert bench.ended == ["a"]


@staged
async def test_what_a_run_has_asked_that_does_not_come_back_is_withdrawn() -> None:
    lives = Lives(use("act", "a"), [say("done")])
    async with lives.life(dies=True) as session:
        message = await post(session, "go")
        old = await the_one(session)
    async with lives.life(on_crash="report") as session:
        assert (await final_of(session, message)).outcome is Outcome.INTERRUPTED
        assert await pending(session) == []
        reply = await session.command(f"/approve {old.approval_id}")
        assert reply == f"Request {old.approval_id} is withdrawn."
    assert [(row.id, row.live) for row in rows_of(lives.disk)] == [(old.approval_id, 0)]


@staged
async def test_a_store_that_does_not_take_the_request_makes_a_no() -> None:
    lives = Lives(use("act", "a"), [say("done")])
    async with lives.life() as session:
        store = lives.stores[-1]
        store.refuse = lambda batch: any(is_request(row) for row in batch.rows)
        message = await post(session, "go")
        await passing(1_000)
        store.refuse = lambda batch: False
        await passing(30_000)
        assert (await final_of(session, message)).outcome is not None
        assert await pending(session) == []
    assert lives.bench.began == []
    assert all(not row.live for row in rows_of(lives.disk))


@staged
async def test_an_answer_that_the_store_does_not_take_is_none() -> None:
    lives = Lives(use("act", "a"), [say("done")])
    async with lives.life() as session:
        store = lives.stores[-1]
        message = await post(session, "go")
        await the_one(session)
        store.refuse = lambda batch: any(is_request(row) and row.state == "approved" for row in batch.rows)
        with pytest.raises(StoreUnavailableError):
            await session.confirm_tool_use("a", True)
        await passing(1_000)
        assert lives.bench.began == []
        store.refuse = lambda batch: False
        assert await session.confirm_tool_use("a", True)
        assert (await final_of(session, message)).outcome is Outcome.SUCCEEDED
    assert lives.bench.ended == ["a"]


@staged
async def test_the_row_of_a_request_says_everything() -> None:
    lives = Lives(use("act", "a"), [say("done")], approvers=("ada",), escalate_after_ms=9, escalate_to=("bob",))
    async with lives.life() as session:
        await post(session, "go")
        await the_one(session)
        (row,) = rows_of(lives.disk)
        body = json.loads(row.body)
    assert (body["action"], body["arguments"], body["call_id"], body["lane"]) == ("act", {"key": "a"}, "a", "execute")
    assert (body["approvers"], body["escalate_to"], body["escalate_after_ms"]) == (["ada"], ["bob"], 9)
    assert body["key"].startswith("lw-")


@staged
async def test_what_a_sub_agent_has_asked_is_there_after_a_restart_at_its_parent() -> None:
    lives = Lives([call("task", prompt="do it", description="work").with_id("t")], use("act", "a"), [say("child")])
    async with lives.life(dies=True, subagents=True) as session:
        message = await post(session, "go")
        old = await the_one(session)
        assert old.session_id != session.session_id
    async with lives.life(subagents=True) as session:
        await passing(100)
        new = await the_one(session)
        assert (new.approval_id, new.session_id, new.args) == (old.approval_id, old.session_id, old.args)
        assert "approved" in (await session.command(f"/approve {old.approval_id}") or "")
        assert (await final_of(session, message)).outcome is Outcome.SUCCEEDED
    assert lives.bench.ended == ["a"]
    assert [(row.id, row.live) for row in rows_of(lives.disk)] == [(old.approval_id, 0)]


@staged
async def test_a_batch_that_was_answered_in_part_is_asked_about_the_rest_after_a_restart() -> None:
    lives = Lives([one("look", key) for key in ("a", "b", "c")], [say("done")])
    async with lives.life(dies=True, queue_config=SessionQueueConfig()) as session:
        message = await post(session, "go")
        old = {each.tool_id: each.approval_id for each in await pending(session)}
        assert await session.confirm_tool_use("b", approved=True)
        assert await session.confirm_tool_use("c", approved=False, reason="no")
        await lives.bench.begun("b").wait()
        await passing()
    assert lives.bench.ended == ["b"]
    async with lives.life(queue_config=SessionQueueConfig()) as session:
        (left,) = await pending(session)
        assert left.approval_id == old["a"]
        assert await session.confirm_tool_use("a", approved=True)
        assert (await final_of(session, message)).outcome is Outcome.SUCCEEDED
    assert statuses(lives.model.requests[1]) == [("a", "ok"), ("b", "ok"), ("c", "denied")]
    assert [(row.live, row.id in old.values()) for row in rows_of(lives.disk)] == [(0, True)] * 3


async def act_once(request: ModelRequest) -> Sequence[Piece]:
    """An answer of a model that does one thing, whatever it has forgotten."""
    return [say("done")] if results(request) else use("act", "a")


async def answer_all(session: AsyncSession, store: Store, dice: random.Random) -> set[str]:
    """Somebody who says yes, sooner or later, while the process lives; which requests that were."""
    said: set[str] = set()
    for _ in range(20):
        await passing()
        for each in await session.pending_confirmations():
            if dice.random() < 0.3:
                said.add(each.approval_id)
                task = asyncio.get_running_loop().create_task(session.confirm_tool_use(each.tool_id, approved=True))
                await passing()
                task.cancel()
        if store.is_dead:
            break
    return said


@pytest.mark.parametrize("seed", range(12))
def test_wherever_the_process_dies_the_call_is_made_at_most_once_and_only_after_a_yes(seed: int) -> None:
    """The process dies at a commit that the seed draws, six times; somebody approves whenever it is asked."""

    async def main() -> None:
        lives, dice = Lives(*[act_once] * 40), random.Random(seed)
        async with lives.life(dies=True) as session:
            await post(session, "go")
        said: set[str] = set()
        for _ in range(6):
            async with lives.life(dies=True) as session:
                lives.stores[-1].commits_left = dice.randrange(1, 9)
                said |= await answer_all(session, lives.stores[-1], dice)
                assert said or not lives.bench.began
        async with lives.life() as session:
            said |= await answer_all(session, lives.stores[-1], dice)
            await session.wait_idle()
            entries = await session.ledger()
        (row,) = rows_of(lives.disk) or (None,)
        if row is not None:  # else it died again and again before anything was done
            assert (row.live, row.state) in ((0, "approved"), (0, "withdrawn"))
            assert row.id in said
        assert len(lives.bench.began) <= (row is not None and row.state == "approved")
        assert [entry.state for entry in entries] in ([], ["done"], ["unknown"])

    run_sim(main(), seed=seed)
