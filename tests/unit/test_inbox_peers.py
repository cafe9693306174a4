"""What other message queues for agents get wrong, each as a claim that this one does not.

The numbers are those of two lists of observed weaknesses: `a` of a large gateway, `b` of a small one.
"""

from __future__ import annotations

import asyncio

import pytest

from laneway import (
    ApprovalState,
    MailboxFullError,
    MessageKind,
    MessageState,
    Outcome,
    Priority,
    StoreUnavailableError,
    Turn,
    TurnState,
    UnknownMessageError,
)
from laneway.kernel.texts import SKIPPED
from laneway.rows import Batch, MessageRow
from laneway.sim.loop import SimLoop
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
    staged,
    stepping_inbox,
    texts_of,
    waiting,
)
from tests.stage import now_ms, passing

State = MessageState


# ---- a: the large gateway ------------------------------------------------------------------------------------------


@staged
async def test_a01_an_interrupt_is_not_lost_when_the_old_run_does_not_die() -> None:
    agent = Agent()
    async with new_inbox(agent, mode="interrupt") as inbox:
        await busy(inbox, agent, "cling")
        at = now_ms()
        (cut,) = await send(inbox, "cut")
        assert (await inbox.wait(cut)).outcome is Outcome.SUCCEEDED
        assert now_ms() == at + 15_000
        agent.let_go()


@staged
async def test_a03_every_sender_beyond_twice_the_cap_is_told() -> None:
    agent = Agent()
    async with new_inbox(agent, cap=3, mode="followup") as inbox, Log(inbox, "message.ended") as log:
        await busy(inbox, agent)
        ids = await send(inbox, *map(str, range(30)))
        agent.let_go()
        await finals(inbox, ids[-3:])
    told = [event.message_id for event in log.events if event.notice]  # type: ignore[attr-defined]
    assert told == ids[:27]
    assert "Dropped 27 messages" in agent.prompts[1]


@staged
async def test_a05_a_head_that_cannot_begin_does_not_poison_its_session() -> None:
    """The store refuses to begin a turn over one message: the messages behind it flow all the same."""
    store, agent = CutStore(), Agent()
    async with new_inbox(agent, store=store, mode="followup") as inbox:
        inbox.lanes.pause("main")
        ids = await send(inbox, "poison", "two", "three")

        def is_poison(batch: Batch) -> bool:
            rows = [row for row in batch.rows if isinstance(row, MessageRow)]
            return any(row.state == "running" and '"poison"' in row.body for row in rows)

        store.refuse = is_poison
        inbox.lanes.resume("main")
        ends = await asyncio.wait_for(finals(inbox, ids), 100)
    assert [end.disposition for end in ends] == [State.DEAD_LETTERED, State.RAN, State.RAN]
    assert agent.prompts == ["two", "three"]


@staged
async def test_a06_background_sessions_are_not_starved_by_users() -> None:
    agent = Agent()

    async def chats(number: int) -> None:
        for _ in range(80):
            receipt = await inbox.submit(f"user {number}", "work")
            await inbox.wait(receipt.message_id)

    async def work(turn: Turn) -> str:
        await passing(2_000)
        return ""

    agent.plays["work"] = work
    async with new_inbox(agent, concurrency=1) as inbox:
        users = [asyncio.get_running_loop().create_task(chats(number)) for number in range(3)]
        await passing(10)
        quiet = await inbox.submit("quiet", "at last", priority=Priority.BACKGROUND)
        await inbox.wait(quiet.message_id)
        assert now_ms() < 200_000
        assert not all(task.done() for task in users)
        for task in users:
            task.cancel()


@staged
async def test_a07_a_slot_that_is_freed_early_makes_no_second_writer() -> None:
    agent = Agent()
    async with new_inbox(agent, mode="interrupt", interrupt_grace_ms=1_000) as inbox, Log(inbox) as log:
        await busy(inbox, agent, "cling")
        await finals(inbox, await send(inbox, "cut"))
        assert agent.running == 1  # the old one is still at it, and may write nothing
        agent.let_go()
        await passing(10)
        lines = [entry.text for entry in await inbox.history(S)]
    assert lines == ["cling", "cut", "re: cut"]
    assert log.answers() == ["re: cut"]


@staged
async def test_a08_ageing_does_not_follow_the_wall_clock() -> None:
    agent = Agent()
    inbox, clock = stepping_inbox(agent, concurrency=1)
    async with inbox:
        await busy(inbox, agent)
        await inbox.submit("background", "background", priority=Priority.BACKGROUND)
        clock.jump_wall(86_400_000)
        await inbox.submit("user", "user")
        agent.let_go()
        await passing(10)
    assert agent.prompts == ["hold", "user", "background"]


@staged
async def test_a10_a_drop_that_was_not_stored_has_not_happened() -> None:
    store, agent = CutStore(), Agent()
    async with new_inbox(agent, store=store, cap=2, drop="old", mode="followup") as inbox, Log(inbox) as log:
        await busy(inbox, agent)
        await send(inbox, "one", "two")
        store.refuse = lambda batch: True
        with pytest.raises(StoreUnavailableError):
            await inbox.submit(S, "three")
        store.refuse = lambda batch: False
        await passing(30_000)
        assert waiting(inbox) == ["one", "two"]
    assert log.of("message.ended") == []


@staged
async def test_a12_no_debounce_is_a_debounce_and_hours_are_units() -> None:
    async with new_inbox() as inbox:
        for text, ms in (("0", 0), ("1h", 3_600_000), ("0.5d", 43_200_000)):
            await inbox.command(S, f"/queue debounce:{text}")
            assert f"debounce={ms}ms" in (await inbox.command(S, "/queue") or "")
        assert "mode=collect" in (await inbox.command(S, "/queue") or "")


@staged
async def test_a13_a_queue_is_not_lost_with_its_process() -> None:
    store = CutStore()
    first = new_inbox(Agent(), store=store)
    await first.__aenter__()
    await first.submit(S, "hold")
    await passing()
    ids = await send(first, "one", "two")
    agent = Agent()
    async with new_inbox(agent, store=MemoryStore(kill(first, store))) as second:
        assert await dispositions(second, ids) == [State.MERGED] * 2
    assert agent.prompts == [collected(("", "one"), ("", "two"))]


# ---- b: the small one ----------------------------------------------------------------------------------------------


@staged
async def test_b01_the_width_is_real_and_a_wait_for_approval_blocks_nobody() -> None:
    async def asks(turn: Turn) -> str:
        return str((await turn.ask_approval("go")).state)

    agent = Agent(asks=asks)
    async with new_inbox(agent, concurrency=3) as inbox:
        for number in range(3):
            await inbox.submit(f"asks {number}", "asks")
        for number in range(6):
            await inbox.submit(f"s{number}", f"hold {number}")
        await passing(10)
        assert agent.running == 6
        assert sum(prompt.startswith("hold") for prompt in agent.prompts) == 3
        agent.let_go()
        await passing(10)
        agent.let_go()


@staged
async def test_b02_a_full_lane_does_not_spin() -> None:
    agent = Agent()
    async with new_inbox(agent, concurrency=1) as inbox:
        await busy(inbox, agent)
        for number in range(20):
            await inbox.submit(f"s{number}", "waits")
        await passing(10)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        steps = loop.steps
        await passing(1_000)
        assert loop.steps - steps < 20
        agent.let_go()


@staged
async def test_b03_an_exception_ends_no_queue() -> None:
    async def fails(turn: Turn) -> str:
        raise RuntimeError("escaped")

    agent = Agent(fails=fails)
    async with new_inbox(agent, mode="followup") as inbox:
        ends = await finals(inbox, await send(inbox, "fails", "fails", "next"))
    assert [end.outcome for end in ends] == [Outcome.FAILED, Outcome.FAILED, Outcome.SUCCEEDED]


@staged
async def test_b04_drop_new_refuses() -> None:
    agent = Agent()
    async with new_inbox(agent, cap=3, drop="new") as inbox:
        await busy(inbox, agent)
        results = []
        for number in range(10):
            try:
                results.append((await inbox.submit(S, str(number))).position)
            except MailboxFullError:
                results.append(0)
        assert results == [1, 2, 3] + [0] * 7


@staged
async def test_b06_a_message_that_comes_while_a_batch_waits_for_a_slot_is_in_it() -> None:
    agent = Agent()
    async with new_inbox(agent, concurrency=1, debounce_ms=100) as inbox:
        await busy(inbox, agent)
        first = await inbox.submit("other", "one")
        await passing(1_000)
        second = await inbox.submit("other", "two")
        agent.let_go()
        ends = await finals(inbox, [first.message_id, second.message_id])
    assert agent.prompts[1:] == [collected(("", "one"), ("", "two"))]
    assert {end.disposition for end in ends} == {State.MERGED}


@staged
async def test_b07_a_message_is_somewhere_at_every_moment() -> None:
    agent = Agent()
    places: set[str] = set()
    async with new_inbox(agent, debounce_ms=100) as inbox:
        await busy(inbox, agent)
        (one,) = await send(inbox, "one")

        async def watches() -> None:
            looks = 0
            while not (status := await inbox.status(one)).disposition.is_final:
                places.add(status.disposition)
                assert (one in [entry.id for entry in inbox.pending(S)]) == (status.disposition is State.QUEUED)
                looks += 1
                await passing(1 if looks % 20 == 0 else 0)

        task = asyncio.get_running_loop().create_task(watches())
        agent.let_go()
        await inbox.wait(one)
        await task
    assert State.QUEUED in places


@staged
async def test_b08_thirty_messages_in_a_short_time_do_not_starve() -> None:
    agent = Agent()
    async with new_inbox(agent, debounce_ms=50, cap=50) as inbox:
        await busy(inbox, agent)
        agent.let_go()
        for number in range(30):
            await send(inbox, str(number))
            await passing(20)
        assert len(agent.prompts) > 1


@staged
async def test_b09_followup_is_one_turn_each_and_steer_backlog_is_reached() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent)
        ids = await send(inbox, "a", "b", mode="followup")
        ids += await send(inbox, "c", mode="steer-backlog")
        agent.let_go()
        await finals(inbox, ids)
    assert agent.prompts[1:] == ["a", "b", "c"]


@staged
async def test_b10_two_channels_are_not_reordered() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent)
        ids = [(await inbox.submit(S, text, channel=channel)).message_id for text, channel in ("1a", "2b", "3a")]
        agent.let_go()
        await finals(inbox, ids)
    assert agent.prompts[1:] == ["1", "2", "3"]


@pytest.mark.parametrize("mode", ["steer", "interrupt"])
@staged
async def test_b11_a_channel_nobody_configured_loses_nothing(mode: str) -> None:
    agent = Agent()
    async with new_inbox(agent, mode=mode, by_channel={"tg": "collect"}) as inbox:
        await busy(inbox, agent)
        (one,) = await send(inbox, "one", channel="carrier pigeon")
        agent.let_go()
        assert (await inbox.wait(one)).outcome is Outcome.SUCCEEDED


@staged
async def test_b12_a_run_that_raises_after_it_was_steered_loses_no_message() -> None:
    async def work(turn: Turn) -> str:
        while not await turn.boundary():
            await passing(10)
        raise RuntimeError

    agent = Agent(work=work)
    async with new_inbox(agent, mode="steer") as inbox:
        await busy(inbox, agent, "work")
        ids = await send(inbox, "one", "two")
        ends = await finals(inbox, ids)
    assert [end.outcome for end in ends] == [Outcome.SUCCEEDED] * 2
    assert agent.prompts == ["work", "one", "two"]


@staged
async def test_b13_an_interrupted_run_can_pair_its_open_calls() -> None:
    results: dict[str, str] = {}

    async def work(turn: Turn) -> str:
        calls = ["c1", "c2", "c3"]
        try:
            await asyncio.Event().wait()
        finally:
            results.update(turn.skipped(calls))
        return ""

    agent = Agent(work=work)
    async with new_inbox(agent, mode="interrupt") as inbox:
        await busy(inbox, agent, "work")
        await finals(inbox, await send(inbox, "cut"))
    assert results == dict.fromkeys(["c1", "c2", "c3"], SKIPPED)


@staged
async def test_b14_turns_of_two_sessions_share_no_state() -> None:
    heard: dict[str, list[str]] = {"a": [], "b": []}
    gate = asyncio.Event()

    async def work(turn: Turn) -> str:
        await gate.wait()
        heard[turn.session_key] += texts_of(await turn.boundary())
        return ""

    agent = Agent(work=work)
    async with new_inbox(agent, mode="steer") as inbox:
        for key in "ab":
            await inbox.submit(key, "work")
        await passing()
        ids = [(await inbox.submit(key, f"for {key}")).message_id for key in "ab"]
        gate.set()
        await finals(inbox, ids)
    assert heard == {"a": ["for a"], "b": ["for b"]}


@staged
async def test_b15_taking_what_waits_leaves_system_messages_alone() -> None:
    taken: list[str] = []
    gate = asyncio.Event()

    async def work(turn: Turn) -> str:
        await gate.wait()
        taken.extend(texts_of(await turn.consume_pending()))
        return ""

    agent = Agent(work=work)
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent, "work")
        await send(inbox, "user")
        await send(inbox, "a sub-agent is done", kind="system")
        gate.set()
        await passing(100)
    assert taken == ["user"]
    assert [turn.kind for turn in agent.turns] == [MessageKind.USER, MessageKind.SYSTEM]


@staged
async def test_b16_a_long_call_is_interrupted_where_it_stands() -> None:
    agent = Agent()
    async with new_inbox(agent, mode="interrupt") as inbox:
        await busy(inbox, agent)
        await passing(600_000)
        at = now_ms()
        (cut,) = await send(inbox, "cut")
        await inbox.wait(cut)
        assert now_ms() == at
    assert agent.cancelled == ["hold"]


@staged
async def test_b17_an_approval_is_for_one_request_with_its_arguments() -> None:
    states: list[ApprovalState] = []

    async def work(turn: Turn) -> str:
        first = await turn.ask_approval("bash", {"command": "ls"})
        second = await turn.ask_approval("bash", {"command": "rm -rf ."}, timeout_ms=1_000)
        states.extend([first.state, second.state])
        return ""

    agent = Agent(work=work)
    async with new_inbox(agent) as inbox:
        first = await busy(inbox, agent, "work")
        (asked,) = inbox.approvals(S)
        assert asked.arguments == {"command": "ls"}
        await inbox.approve(asked.id)
        await inbox.wait(first)
    assert states == [ApprovalState.APPROVED, ApprovalState.EXPIRED]


@staged
async def test_b19_compact_starts_no_second_run_beside_the_first() -> None:
    agent = Agent()
    async with new_inbox(agent, commands=True) as inbox:
        await busy(inbox, agent)
        receipt = await inbox.submit(S, "/compact keep the plan")
        assert receipt.disposition is State.COMMAND
        await passing(1_000)
        assert (agent.running, len(agent.turns)) == (1, 1)
        agent.let_go()


@staged
async def test_b20_a_session_that_is_idle_is_forgotten() -> None:
    agent = Agent()
    async with new_inbox(agent, concurrency=100) as inbox:
        ids = [(await inbox.submit(f"s{number}", "one")).message_id for number in range(40)]
        await finals(inbox, ids)
        await passing(10)
        engine = inbox._engine  # noqa: SLF001 - what is left of forty sessions is the question
        assert (engine.kernel.boxes, engine.kernel.items, engine.kernel.turns) == ({}, {}, {})
        left = [getattr(engine, name) for name in ("_jobs", "_turns", "_ends", "_waiters", "_children", "_unstored")]
        assert left == [{}] * 6
        assert not [name for name in inbox.lanes.stats().lanes if name.startswith("session:s")]
        with pytest.raises(UnknownMessageError):
            await inbox.withdraw("nix")
    assert {turn.state for turn in agent.turns} == {TurnState.SUCCEEDED}
