"""Scenarios 37 to 47 of the behaviour page: caps and time, and what goes wrong. (45 and 46 are about workers.)"""

from __future__ import annotations

import asyncio

import pytest

from laneway import (
    ApprovalState,
    MailboxFullError,
    MessageState,
    Outcome,
    StoreUnavailableError,
    Turn,
    TurnState,
    UnknownMessageError,
)
from laneway.rows import Batch
from laneway.stores.memory import MemoryStore
from tests.inbox_stage import (
    Agent,
    CutStore,
    Log,
    S,
    busy,
    collected,
    dispositions,
    finals,
    kill,
    new_inbox,
    send,
    waiting,
)
from tests.stage import now_ms, passing, simulated

OVERFLOW = "[Queue overflow] Dropped"


@simulated
async def test_37_the_same_id_on_the_same_route_is_answered_with_the_first_receipt() -> None:
    """Same id again, same route / ignored with the first receipt; other route / accepted."""
    agent = Agent()
    async with new_inbox(agent, mode="followup") as inbox:
        await busy(inbox, agent)
        first = await inbox.submit(S, "hello", channel="tg", message_id="77")
        again = await inbox.submit(S, "hello", channel="tg", message_id="77")
        other = await inbox.submit(S, "hello", channel="slack", message_id="77")
        assert (again.message_id, again.disposition) == (first.message_id, first.disposition)
        assert again.duplicate
        assert not first.duplicate
        assert other.message_id != first.message_id
        assert waiting(inbox) == ["hello", "hello"]
        agent.let_go()
        await finals(inbox, [first.message_id, other.message_id])
        late = await inbox.submit(S, "hello", channel="tg", message_id="77")
        assert (late.message_id, late.disposition) == (first.message_id, MessageState.RAN)
    assert agent.prompts == ["hold", "hello", "hello"]


@simulated
async def test_38_one_turn_at_the_end_of_the_quiet_window() -> None:
    """Busy, debounce 500, messages at 0, 400, 800 / one turn at 1300."""
    agent = Agent()
    async with new_inbox(agent, debounce_ms=500) as inbox:
        await busy(inbox, agent)
        start = now_ms()
        ids = await send(inbox, "one")
        agent.let_go()
        for text in ("two", "three"):
            await passing(400)
            ids += await send(inbox, text)
        await finals(inbox, ids)
    assert agent.prompts[1:] == [collected(("", "one"), ("", "two"), ("", "three"))]
    assert agent.began_at[1] == start + 1300


@simulated
async def test_38_messages_faster_than_the_debounce_do_not_wait_for_ever() -> None:
    """Messages faster than the debounce for ever / a turn at max_wait."""
    agent = Agent()
    async with new_inbox(agent, debounce_ms=500, cap=1000) as inbox:
        await busy(inbox, agent)
        start = now_ms()
        await send(inbox, "0")
        agent.let_go()
        for number in range(1, 60):
            await passing(100)
            await send(inbox, str(number))
    assert agent.began_at[1] == start + 5000
    assert agent.turns[1].prompt.startswith(collected(("", "0"), ("", "1")))
    assert len(agent.turns[1].messages) in (50, 51)  # the one of that very moment is in this batch or in the next


@simulated
async def test_39_a_refused_newcomer_changes_nothing() -> None:
    """Cap 3, new / 4th / refused, sender told, debounce unchanged."""
    agent = Agent()
    async with new_inbox(agent, cap=3, drop="new", debounce_ms=1000) as inbox, Log(inbox) as log:
        await busy(inbox, agent)
        start = now_ms()
        ids = await send(inbox, "one", "two", "three")
        agent.let_go()
        await passing(600)
        before = inbox.pending(S)
        with pytest.raises(MailboxFullError) as caught:
            await inbox.submit(S, "four", sender="ada", message_id="m4")
        assert (caught.value.cap, caught.value.session_key) == (3, S)
        assert [entry.id for entry in inbox.pending(S)] == [entry.id for entry in before]
        await finals(inbox, ids)
        assert agent.began_at[1] == start + 1000
        assert not (await inbox.submit(S, "four", sender="ada", message_id="m4")).duplicate
    (told,) = log.of("message.refused")
    assert (told.sender, told.cap) == ("ada", 3)
    assert agent.prompts[1:] == [collected(("", "one"), ("", "two"), ("", "three")), "four"]


@simulated
async def test_40_summarize_tells_of_the_first_before_the_second() -> None:
    """Summarize, cap 1 / two / overflow turn with the first one's line, then the second."""
    agent = Agent()
    async with new_inbox(agent, cap=1, drop="summarize") as inbox, Log(inbox) as log:
        await busy(inbox, agent)
        first, second = await send(inbox, "the  first\n one", "the second", sender="ada")
        agent.let_go()
        assert (await inbox.wait(second)).disposition is MessageState.RAN
        assert (await inbox.status(first)).disposition is MessageState.SUMMARIZED
    assert agent.prompts[1:] == [f"{OVERFLOW} 1 message due to cap.\nSummary:\n- the first one", "the second"]
    (ended,) = [event for event in log.of("message.ended") if event.message_id == first]
    assert ended.notice
    assert ended.reason


@pytest.mark.parametrize(
    ("drop", "lost"), [("old", MessageState.DROPPED), ("summarize", MessageState.SUMMARIZED), ("new", None)]
)
@simulated
async def test_41_a_smaller_cap_acts_at_once_and_every_loss_is_told(drop: str, lost: MessageState | None) -> None:
    """Cap made smaller live / bounded, every loss has a disposition. `new` drops nobody and refuses newcomers."""
    agent = Agent()
    async with new_inbox(agent, mode="followup", cap=10, drop=drop) as inbox, Log(inbox) as log:
        await busy(inbox, agent)
        ids = await send(inbox, *"abcdefgh")
        assert await inbox.command(S, "/queue cap:3")
        kept = "abcdefgh" if lost is None else "fgh"
        assert waiting(inbox) == list(kept)
        states = [(await inbox.status(message_id)).disposition for message_id in ids]
        assert states == [lost or MessageState.QUEUED] * (8 - len(kept)) + [MessageState.QUEUED] * len(kept)
        if lost is None:
            with pytest.raises(MailboxFullError):
                await inbox.submit(S, "i")
        agent.let_go()
        await finals(inbox, ids[8 - len(kept) :])
    told = [event.message_id for event in log.of("message.ended") if event.notice]
    assert told == ids[: 8 - len(kept)]


@pytest.mark.parametrize("mode", ["collect", "followup", "steer", "steer-backlog"])
@simulated
async def test_42_ten_waiting_messages_survive_a_kill(mode: str) -> None:
    """Kill at any point with 10 waiting / restart / all 10 once, in order, settings kept."""
    store = CutStore()
    before, after = Agent(), Agent()
    first = new_inbox(before, store=store)
    await first.__aenter__()
    await first.command(S, f"/queue {mode} debounce:100 cap:50")
    begun = await busy(first, before)
    ids = await send(first, *(f"m{number}" for number in range(10)))
    async with new_inbox(after, store=MemoryStore(kill(first, store))) as second, Log(second) as log:
        ends = await finals(second, ids)
        assert (await second.wait(begun)).outcome is Outcome.INTERRUPTED
        (told,) = [step for step in (await second.explain(begun)).steps if step.type == "message.ended"]
        assert begun in told.facts["notice"]  # its sender is told how to run it again
        assert f"mode={mode}" in (await second.command(S, "/queue") or "")
    assert {event.state for event in log.of("turn.ended")} == {TurnState.SUCCEEDED}
    ran = [message.text for turn in after.turns for message in turn.messages]
    assert ran == [f"m{number}" for number in range(10)]
    assert {end.outcome for end in ends} == {Outcome.SUCCEEDED}
    assert before.prompts == ["hold"]


@simulated
async def test_42_what_a_killed_turn_had_seen_of_a_steer_runs_after_the_restart() -> None:
    """Kill after a boundary / restart / the steer waits in its place, marked with the turn that saw it."""
    store = CutStore()

    async def work(turn: Turn) -> str:
        while not await turn.boundary():
            await passing(10)
        await asyncio.Event().wait()
        return ""

    first = new_inbox(Agent(work=work), store=store, mode="steer")
    await first.__aenter__()
    begun = (await first.submit(S, "work")).message_id
    await passing()
    (steer,) = await send(first, "steer")
    await passing(50)
    assert (await first.status(steer)).disposition is MessageState.INJECTED
    seen_by = (await first.status(begun)).turn_id
    async with new_inbox(Agent(), store=MemoryStore(kill(first, store))) as second:
        (pending,) = second.pending(S)
        assert (pending.text, pending.seen_by) == ("steer", seen_by)
        assert (await second.wait(steer)).disposition is MessageState.RAN
        texts = [entry.text for entry in await second.history(S)]
    assert texts == ["work", "steer", "re: steer"]


@simulated
async def test_43_stop_ends_everything_in_order_and_counts_it() -> None:
    """`/stop` with a running turn, waiting messages and children / all gone in order, counted."""
    ends: list[str] = []

    async def child() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("child")

    async def work(turn: Turn) -> str:
        turn.spawn(child)
        turn.spawn(child)
        try:
            await asyncio.Event().wait()
        finally:
            ends.append("turn")
        return ""

    agent = Agent(work=work)
    async with new_inbox(agent, commands=True) as inbox, Log(inbox) as log:
        first = await busy(inbox, agent, "work")
        ids = await send(inbox, "one", "two", "three")
        receipt = await inbox.submit(S, "/stop")
        assert receipt.disposition is MessageState.COMMAND
        for part in ("3 waiting messages", "0 debounced", "1 running turn", "2 sub-agents"):
            assert part in (receipt.reply or "")
        assert await dispositions(inbox, ids) == [MessageState.WITHDRAWN] * 3
        assert (await inbox.wait(first)).outcome is Outcome.INTERRUPTED
        await passing(10)
        assert waiting(inbox) == []
        assert sorted(ends) == ["child", "child", "turn"]
    gone = [event.type for event in log.events if getattr(event, "message_id", "") in ids][-3:]
    assert gone == ["message.ended"] * 3
    order = {event.type: event.seq for event in log.of("turn.cancelling", "child.ended")}
    assert max(log.about(one)[-1].seq for one in ids) < order["turn.cancelling"] < order["child.ended"]


@simulated
async def test_43_stop_empties_a_debounce_buffer() -> None:
    """`/stop` with debounced messages / gone, counted, nothing runs."""
    agent = Agent()
    async with new_inbox(agent, commands=True, debounce_ms=5_000) as inbox:
        await busy(inbox, agent)
        ids = await send(inbox, "one", "two")
        agent.let_go()
        await passing(100)
        receipt = await inbox.submit(S, "stop")
        assert "2 debounced messages" in (receipt.reply or "")
        assert "0 waiting messages" in (receipt.reply or "")
        assert await dispositions(inbox, ids) == [MessageState.WITHDRAWN] * 2
        await passing(60_000)
    assert agent.prompts == ["hold"]


@simulated
async def test_44_an_approval_that_is_pending_holds_up_nobody_else() -> None:
    """Approval pending in session A / session B / goes on, though there is one slot."""

    async def work(turn: Turn) -> str:
        approval = await turn.ask_approval("rm", {"path": "old.txt"})
        return f"it is {approval.state}"

    agent = Agent(work=work)
    async with new_inbox(agent, concurrency=1) as inbox:
        first = await busy(inbox, agent, "work")
        other = await inbox.submit("another", "hello")
        assert (await inbox.wait(other.message_id)).outcome is Outcome.SUCCEEDED
        (approval,) = inbox.approvals(S)
        assert (approval.state, approval.action, approval.arguments) == (
            ApprovalState.PENDING,
            "rm",
            {"path": "old.txt"},
        )
        assert await inbox.approve(approval.id, by="olga")
        assert (await inbox.wait(first)).answer == "it is approved"
        assert not await inbox.approve(approval.id)


@simulated
async def test_47_a_refused_write_is_told_and_leaves_nothing_half_done() -> None:
    """Store refuses a write / submit / the caller gets StoreUnavailableError, nothing half done."""
    agent = Agent()
    store = CutStore()
    async with new_inbox(agent, store=store, mode="followup") as inbox, Log(inbox) as log:
        store.refuse = lambda batch: True
        with pytest.raises(StoreUnavailableError):
            await inbox.submit(S, "lost", message_id="m1")
        await passing(10)
        store.refuse = lambda batch: False
        await passing(60_000)
        assert waiting(inbox) == []
        assert await inbox.history(S) == []
        again = await inbox.submit(S, "kept", message_id="m1")
        assert not again.duplicate
        assert (await inbox.wait(again.message_id)).outcome is Outcome.SUCCEEDED
        with pytest.raises(UnknownMessageError):
            await inbox.status("msg-1")
    assert agent.prompts == ["kept"]
    assert {event.message_id for event in log.of("message.accepted")} == {again.message_id}


@simulated
async def test_47_one_bad_row_never_fails_its_neighbours() -> None:
    """One bad row in a group commit / only its own sender is told."""
    agent = Agent()
    store = CutStore()
    async with new_inbox(agent, store=store) as inbox:

        def is_bad(batch: Batch) -> bool:
            return batch.owner.session == "s3"

        store.refuse = is_bad
        results = await asyncio.gather(
            *(inbox.submit(f"s{number}", f"m{number}") for number in range(6)), return_exceptions=True
        )
        assert [isinstance(result, StoreUnavailableError) for result in results] == [n == 3 for n in range(6)]
        await passing(100)
        assert sorted(agent.prompts) == ["m0", "m1", "m2", "m4", "m5"]
