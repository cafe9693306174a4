"""Edges between the parts: callers that go away, boundaries side by side, drained lanes, restarts to the last field."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from laneway import (
    ApprovalState,
    ClosedError,
    ConfigError,
    LaneConfig,
    LaneFullError,
    Lanes,
    Message,
    MessageState,
    Outcome,
    Priority,
    Sender,
    StoreUnavailableError,
    Turn,
    UsageError,
)
from laneway.events import TurnReplied
from laneway.rows import Lookup, MessageRow
from laneway.stores.memory import MemoryStore
from laneway.testing import fake_host
from tests.inbox_stage import (
    Agent,
    CutStore,
    Log,
    S,
    busy,
    dispositions,
    finals,
    kill,
    new_inbox,
    send,
    staged,
    texts_of,
    waiting,
)
from tests.stage import now_ms, passing, simulated

State = MessageState


# ---- callers that go away ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("message_id", [None, "m1"])
@staged
async def test_a_sender_that_goes_away_leaves_a_whole_message_or_none(message_id: str | None) -> None:
    store, agent = CutStore(), Agent()
    async with new_inbox(agent, store=store) as inbox:
        store.delay_ms = 100
        task = asyncio.get_running_loop().create_task(inbox.submit(S, "one", message_id=message_id))
        await passing(50)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await passing(1_000)
        listed = await inbox.messages(S)
        assert [final.outcome for final in listed] == [Outcome.SUCCEEDED] * len(agent.prompts)
        engine = inbox._engine  # noqa: SLF001 - that nothing is left behind cannot be seen otherwise
        assert (engine._unstored, list(engine._arrivals)) == ({}, [])  # noqa: SLF001 - as above


@staged
async def test_somebody_who_stops_waiting_is_forgotten() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        first = await busy(inbox, agent)
        tasks = [asyncio.get_running_loop().create_task(inbox.wait(first)) for _ in range(5)]
        await passing()
        for task in tasks[:4]:
            task.cancel()
        await passing()
        agent.let_go()
        assert (await tasks[4]).outcome is Outcome.SUCCEEDED
        assert inbox._engine._waiters == {}  # noqa: SLF001 - as above


@staged
async def test_many_may_wait_for_one_message() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        first = await busy(inbox, agent)
        tasks = [asyncio.get_running_loop().create_task(inbox.wait(first)) for _ in range(5)]
        await passing()
        agent.let_go()
        ends = await asyncio.gather(*tasks)
    assert {end.answer for end in ends} == {"re: hold"}


# ---- boundaries side by side ---------------------------------------------------------------------------------------


@staged
async def test_boundaries_of_two_tasks_give_each_message_once() -> None:
    heard: list[list[str]] = []
    gate = asyncio.Event()

    async def work(turn: Turn) -> str:
        await gate.wait()
        parts = await asyncio.gather(*(turn.boundary() for _ in range(3)), turn.consume_pending())
        heard.extend(map(texts_of, parts))
        return "done"

    agent = Agent(work=work)
    async with new_inbox(agent, mode="steer") as inbox:
        await busy(inbox, agent, "work")
        ids = await send(inbox, "s1", "s2")
        ids += await send(inbox, "later", mode="followup")
        gate.set()
        assert await dispositions(inbox, ids) == [State.STEERED] * 3
    assert sorted(text for part in heard for text in part) == ["later", "s1", "s2"]


@staged
async def test_a_boundary_that_was_given_up_loses_no_message() -> None:
    store = CutStore()
    heard: list[list[str]] = []
    gate = asyncio.Event()

    async def work(turn: Turn) -> str:
        await gate.wait()
        store.delay_ms = 100
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await turn.boundary()
        store.delay_ms = 0
        await passing(200)
        heard.append(texts_of(await turn.boundary()))
        return "done"

    agent = Agent(work=work)
    async with new_inbox(agent, store=store, mode="steer") as inbox:
        first = await busy(inbox, agent, "work")
        ids = await send(inbox, "steer")
        gate.set()
        assert await dispositions(inbox, [first, *ids]) == [State.RAN, State.STEERED]
    assert heard == [["steer"]]


@staged
async def test_what_was_taken_in_and_given_up_for_good_is_the_next_turn() -> None:
    store = CutStore()
    gate = asyncio.Event()

    async def work(turn: Turn) -> str:
        await gate.wait()
        store.delay_ms = 100
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await turn.boundary()
        store.delay_ms = 0
        return "done"

    agent = Agent(work=work)
    async with new_inbox(agent, store=store, mode="steer") as inbox:
        await busy(inbox, agent, "work")
        (steer,) = await send(inbox, "steer")
        gate.set()
        assert (await inbox.wait(steer)).disposition is State.RAN
        assert [entry.text for entry in await inbox.history(S)].count("steer") == 1
    assert agent.prompts == ["work", "steer"]


# ---- questions, at once --------------------------------------------------------------------------------------------


@staged
async def test_an_answer_that_comes_with_the_question_goes_to_it() -> None:
    answers: list[str | None] = []

    async def work(turn: Turn) -> str:
        answer = await turn.ask("which?", timeout_ms=60_000)
        answers.append(answer.text if answer else None)
        return "thanks"

    agent = Agent(work=work)
    async with new_inbox(agent) as inbox:
        stream = inbox.subscribe("turn.replied")
        first = (await inbox.submit(S, "work", sender="ada")).message_id
        event = await anext(stream)
        assert isinstance(event, TurnReplied)
        assert event.text == "which?"
        await inbox.submit(S, "this", sender="ada")
        await inbox.wait(first)
        assert now_ms() < 1_000
        stream.close()
    assert answers == ["this"]


@staged
async def test_one_question_takes_one_answer_and_the_rest_waits() -> None:
    answers: list[str | None] = []

    async def work(turn: Turn) -> str:
        for _ in range(2):
            answer = await turn.ask("and?", timeout_ms=5_000)
            answers.append(answer.text if answer else None)
        return "thanks"

    agent = Agent(work=work)
    async with new_inbox(agent, mode="followup") as inbox:
        first = await busy(inbox, agent, "work")
        ids = await send(inbox, "one")
        await passing(100)
        ids += await send(inbox, "two", "three")
        await finals(inbox, [first, *ids])
    assert answers == ["one", "two"]
    assert agent.prompts == ["work", "three"]


@staged
async def test_a_question_that_nobody_answers_ends() -> None:
    answers: list[Message | None] = []

    async def work(turn: Turn) -> str:
        answers.append(await turn.ask("anybody?", timeout_ms=5_000))
        return "went on"

    agent = Agent(work=work)
    async with new_inbox(agent, mode="followup") as inbox:
        first = await busy(inbox, agent, "work")
        assert (await inbox.wait(first)).answer == "went on"
        assert now_ms() == 5_000
        (end,) = await finals(inbox, await send(inbox, "too late"))
        assert end.disposition is State.RAN
    assert answers == [None]


# ---- lanes that do not take work -----------------------------------------------------------------------------------


@staged
async def test_drained_lanes_hold_messages_up_and_lose_none() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        await inbox.lanes.drain(1_000)
        (one,) = await send(inbox, "one")
        await passing(600_000)
        assert (agent.prompts, waiting(inbox)) == ([], ["one"])
        inbox.lanes.reopen()
        assert (await inbox.wait(one)).outcome is Outcome.SUCCEEDED


@staged
async def test_a_slot_that_somebody_cancels_is_asked_for_again() -> None:
    agent = Agent()
    async with new_inbox(agent, concurrency=1) as inbox:
        await busy(inbox, agent)
        other = await inbox.submit("other", "one")
        assert inbox.lanes.cancel_waiting() == 1
        agent.let_go()
        assert (await inbox.wait(other.message_id)).outcome is Outcome.SUCCEEDED


@staged
async def test_a_lane_of_no_width_holds_messages_up_until_it_has_one() -> None:
    agent = Agent()
    async with new_inbox(agent, concurrency=0) as inbox:
        (one,) = await send(inbox, "one")
        await passing(100_000)
        assert agent.prompts == []
        inbox.lanes.resize("main", 1)
        assert (await inbox.wait(one)).outcome is Outcome.SUCCEEDED


# ---- restarts to the last field --------------------------------------------------------------------------------------


@staged
async def test_a_message_is_the_same_after_a_restart() -> None:
    store = CutStore()
    first = new_inbox(Agent(), store=store)
    await first.__aenter__()
    await first.submit(S, "hold", tenant="acme")
    await passing()
    await first.submit(
        S,
        "e\u0301 \N{WOMAN}\u200d\N{MAN}\n\x00",
        channel="tg",
        account="bot",
        thread=-7,
        chat_type="group",
        sender=Sender(id="ada", name="Ada L.", rights=("queue", "approve")),
        message_id=77,
        mode="followup",
        priority=Priority.SCHEDULED,
        tenant="acme",
        attachments=[{"kind": "image", "size": 12, "deep": [None, True, 1.5, "\u202e"]}, "plain"],
        expires_ms=86_400_000,
    )
    before = first.peek_pending(S, tenant="acme")
    agent = Agent()
    async with new_inbox(agent, store=MemoryStore(kill(first, store))) as second:
        await passing(10)
        assert second.pending(S, tenant="acme") == []
    assert agent.turns[0].messages == tuple(before)


@staged
async def test_options_inside_a_message_survive_a_restart() -> None:
    store = CutStore()
    first = new_inbox(Agent(), store=store, commands=True)
    await first.__aenter__()
    await first.submit(S, "hold")
    await passing()
    at = now_ms()
    await first.submit(S, "/queue collect debounce:5s one")
    agent = Agent()
    async with new_inbox(agent, store=MemoryStore(kill(first, store))):
        await passing(10_000)
    assert agent.prompts == ["one"]
    assert agent.began_at == [at + 5_000]


@staged
async def test_the_depth_of_a_workflow_survives_a_restart() -> None:
    async def steps(turn: Turn) -> str:
        if turn.depth < 3:
            await turn.request_followup("go on")
        else:
            await asyncio.Event().wait()
        return ""

    store = CutStore()
    first = new_inbox(steps, store=store, on_crash="rerun")
    await first.__aenter__()
    await first.submit(S, "begin")
    await passing(10)
    agent = Agent()
    async with new_inbox(agent, store=MemoryStore(kill(first, store)), on_crash="rerun"):
        await passing(2_000)
    assert [turn.depth for turn in agent.turns] == [3]


# ---- what a turn leaves open ---------------------------------------------------------------------------------------


@staged
async def test_an_approval_that_is_pending_when_the_inbox_closes_ends() -> None:
    async def work(turn: Turn) -> str:
        await turn.ask_approval("deploy")
        return ""

    agent = Agent(work=work)
    inbox = new_inbox(agent, close_timeout_ms=1_000)
    log = Log(inbox)
    async with log, inbox:
        await busy(inbox, agent, "work")
        at = now_ms()
    assert now_ms() == at + 1_000
    assert [event.state for event in log.of("approval.ended")] == [ApprovalState.WITHDRAWN]
    assert agent.cancelled == ["work"]


@staged
async def test_an_interrupt_ends_the_wait_for_a_child_and_the_child_is_told_about() -> None:
    async def finds() -> str:
        await passing(500)
        return "found"

    async def work(turn: Turn) -> str:
        return str(await turn.spawn(finds))

    agent = Agent(work=work)
    async with new_inbox(agent, mode="interrupt") as inbox:
        first = await busy(inbox, agent, "work")
        at = now_ms()
        (cut,) = await send(inbox, "cut")
        await inbox.wait(cut)
        assert now_ms() == at
        assert (await inbox.wait(first)).outcome is Outcome.INTERRUPTED
        await passing(1_000)
    assert agent.prompts[:2] == ["work", "cut"]
    assert len(agent.prompts) == 3
    assert "found" in agent.prompts[2]


@staged
async def test_a_turn_that_starts_two_tasks_and_ends_leaves_neither_a_voice() -> None:
    errors: list[BaseException] = []

    async def late(turn: Turn) -> None:
        await passing(100)
        try:
            await turn.reply("from the past")
        except Exception as error:  # noqa: BLE001 - which one is the question
            errors.append(error)

    tasks: list[asyncio.Task[None]] = []

    async def work(turn: Turn) -> str:
        tasks.append(asyncio.get_running_loop().create_task(late(turn)))
        return "done"

    async with new_inbox(work) as inbox, Log(inbox, "turn.replied") as log:
        await finals(inbox, await send(inbox, "work"))
        await passing(200)
    assert log.answers() == ["done"]
    assert [type(error).__name__ for error in errors] == ["FencedError"]


# ---- listings ----------------------------------------------------------------------------------------------------


@staged
async def test_messages_are_listed_by_session_and_state() -> None:
    agent = Agent()
    async with new_inbox(agent, mode="followup") as inbox:
        await finals(inbox, await send(inbox, "a"))
        await inbox.submit("other", "b")
        await busy(inbox, agent)
        (gone,) = await send(inbox, "c")
        await inbox.withdraw(gone)
        await passing(10)
        listed = await inbox.messages(S)
        assert [final.disposition for final in listed] == [State.RAN, State.RUNNING, State.WITHDRAWN]
        assert [final.message_id for final in await inbox.messages(state="withdrawn")] == [gone]
        assert len(await inbox.messages()) == 4
        assert len(await inbox.messages(limit=2)) == 2
        assert await inbox.messages(tenant="acme") == []
        assert await inbox.sessions() == [S, "other"]
        assert await inbox.sessions(after=S) == ["other"]
        assert await inbox.sessions(tenant="acme") == []
        with pytest.raises(UsageError):
            await inbox.messages(state="nix")


@pytest.mark.parametrize("limit", [0, -1, 1.5, "2", True])
@staged
async def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    async with new_inbox() as inbox:
        for call in (inbox.history, inbox.messages):
            with pytest.raises(ConfigError):
                await call(S, limit=limit)


@staged
async def test_a_history_has_each_text_once_in_order_whatever_happened() -> None:
    async def work(turn: Turn) -> str:
        await turn.reply("part")
        while not await turn.boundary():
            await passing(10)
        raise LookupError

    agent = Agent(work=work)
    async with new_inbox(agent, mode="followup") as inbox:
        first = await busy(inbox, agent, "work")
        ids = await send(inbox, "steer", mode="steer")
        ids += await send(inbox, "note", kind="system")
        ids += await send(inbox, "last")
        await finals(inbox, [first, *ids])
        lines = await inbox.history(S)
    assert [(line.role, line.text) for line in lines] == [
        ("user", "work"),
        ("assistant", "part"),
        ("user", "steer"),
        ("assistant", "re: steer"),
        ("system", "note"),
        ("assistant", "re: note"),
        ("user", "last"),
        ("assistant", "re: last"),
    ]
    assert [line.seq for line in lines] == sorted(line.seq for line in lines)
    assert all(line.turn_id for line in lines)


# ---- lanes that were given -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("workspace", ["default", "red"])
@staged
async def test_lanes_that_know_only_main_are_enough(workspace: str) -> None:
    async def finds() -> str:
        return "found"

    async def work(turn: Turn) -> str:
        found = await turn.spawn(finds)
        approval = await turn.ask_approval("go", timeout_ms=100)
        return f"{found}, {approval.state}"

    agent = Agent(work=work)
    async with (
        Lanes({"main": 1}, host=fake_host()) as lanes,
        new_inbox(agent, lanes=lanes, workspace=workspace) as inbox,
    ):
        ids = [(await inbox.submit(S, "work")).message_id]
        ids += [(await inbox.submit("other", "beat", kind="heartbeat")).message_id]
        ends = await finals(inbox, ids)
    assert [end.answer for end in ends] == ["found, expired", "re: beat"]


@staged
async def test_an_inbox_outlives_lanes_that_were_closed_first() -> None:
    agent, after, store = Agent(), Agent(), MemoryStore()
    lanes = Lanes.for_gateway(host=fake_host())
    await lanes.__aenter__()
    async with new_inbox(agent, lanes=lanes, store=store) as inbox:
        await lanes.close()
        (one,) = await send(inbox, "one")
        await passing(60_000)
        assert waiting(inbox) == ["one"]
    async with new_inbox(after, store=store) as second:
        assert (await second.wait(one)).outcome is Outcome.SUCCEEDED
    assert (agent.prompts, after.prompts) == ([], ["one"])


@staged
async def test_a_child_that_finds_no_lane_is_refused_where_it_was_asked_for() -> None:
    async def work(turn: Turn) -> str:
        turn.spawn(passing, 1_000)
        turn.spawn(passing, 1_000)
        with pytest.raises(LaneFullError):
            turn.spawn(passing, 1_000)
        return "went on"

    agent = Agent(work=work)
    narrow = {"main": LaneConfig(), "subagent": LaneConfig(concurrency=1, queued_max=1)}
    async with Lanes(narrow, host=fake_host()) as lanes, new_inbox(agent, lanes=lanes) as inbox, Log(inbox) as log:
        (end,) = await finals(inbox, await send(inbox, "work"))
        await passing(5_000)
    assert end.answer == "went on"
    states = [event.state for event in log.of("child.ended")]
    assert sorted(states) == ["failed", "succeeded", "succeeded"]
    assert len(agent.prompts) == 3  # the one that was refused where it was asked for gives no message


@simulated
async def test_a_child_that_ends_while_the_store_is_away_is_told_about_once() -> None:
    async def finds() -> str:
        await passing(500)
        return "found"

    async def work(turn: Turn) -> str:
        turn.spawn(finds)
        return "begun"

    store, agent = CutStore(), Agent(work=work)
    async with new_inbox(agent, store=store) as inbox:
        await finals(inbox, await send(inbox, "work"))
        await passing(100)
        store.refuse = lambda batch: True
        await passing(2_000)
        store.refuse = lambda batch: False
        await passing(60_000)
        assert waiting(inbox) == []
    assert len(agent.prompts) == 2
    assert "found" in agent.prompts[1]


@pytest.mark.parametrize("lost", [False, True])
@simulated
async def test_a_child_whose_start_the_store_refused_is_told_about_once_or_never_began(lost: bool) -> None:
    began: list[str] = []

    async def finds() -> str:
        began.append("began")
        return "found"

    store = CutStore()
    store.loses_answer = lost

    async def work(turn: Turn) -> str:
        store.refuse = lambda batch: True
        turn.spawn(finds)
        await passing(100)
        store.refuse = lambda batch: False
        await passing(10_000)
        return "begun"

    agent = Agent(work=work)
    async with new_inbox(agent, store=store) as inbox:
        (end,) = await finals(inbox, await send(inbox, "work"))
        await passing(60_000)
        assert waiting(inbox) == []
    assert end.answer == "begun"
    assert len(began) <= 1
    assert len(agent.prompts) == 2  # the session hears of it exactly once, whatever became of it


class NoFind(MemoryStore):
    """A store that cannot say what it has seen."""

    is_away = False

    async def find(self, lookups: Sequence[Lookup]) -> list[MessageRow | None]:
        """Fail while it is away."""
        if self.is_away:
            raise StoreUnavailableError("the store is away")
        return await super().find(lookups)


@staged
async def test_a_message_that_cannot_be_looked_up_is_refused_and_others_are_not() -> None:
    store, agent = NoFind(), Agent()
    async with new_inbox(agent, store=store, commands=True) as inbox:
        store.is_away = True
        for text in ("one", "/status"):
            with pytest.raises(StoreUnavailableError):
                await inbox.submit(S, text, message_id="m1")
        (plain,) = await finals(inbox, await send(inbox, "plain"))
        assert plain.outcome is Outcome.SUCCEEDED
        store.is_away = False
        (again,) = await finals(inbox, await send(inbox, "one", message_id="m1"))
        assert again.outcome is Outcome.SUCCEEDED
    assert agent.prompts == ["plain", "one"]


@staged
async def test_callers_whose_message_is_still_looked_up_are_told_when_the_inbox_closes() -> None:
    class Stuck(MemoryStore):
        async def find(self, lookups: Sequence[Lookup]) -> list[MessageRow | None]:
            await asyncio.get_running_loop().create_future()
            return []

    async with new_inbox(Agent(), store=Stuck()) as inbox:
        tasks = [
            asyncio.get_running_loop().create_task(inbox.submit(S, str(number), message_id=number))
            for number in range(3)
        ]
        await passing()
        await inbox.close()
        for task in tasks:
            with pytest.raises(ClosedError):
                await task


@pytest.mark.parametrize("keys", [(7,), ("chat", None), (b"chat",)])
@staged
async def test_a_subscription_to_what_is_no_key_is_refused(keys: tuple[Any, ...]) -> None:
    async with new_inbox() as inbox:
        with pytest.raises(UsageError):
            inbox.subscribe(*keys)
