"""The queue as an object: edit, move, hold, release, withdraw, steer_now; and who has been seen before."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from laneway import (
    ConfigError,
    Inbox,
    InvalidMessageError,
    MailboxFullError,
    MessageState,
    MessageStateError,
    Outcome,
    Turn,
)
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
DAY = 86_400_000


def steers(heard: list[str]) -> Callable[[Turn], Awaitable[str]]:
    """A turn that writes down what it takes in until the prompt `enough` comes."""

    async def play(turn: Turn) -> str:
        while "enough" not in heard:
            heard.extend(texts_of(await turn.boundary()))
            await passing(10)
        return "heard"

    return play


# ---- edit ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["collect", "followup", "steer", "interrupt"])
@staged
async def test_an_edited_message_runs_with_its_new_text(mode: str) -> None:
    agent = Agent()
    async with new_inbox(agent, interrupt_grace_ms=1_000) as inbox, Log(inbox) as log:
        await busy(inbox, agent, "cling")
        (one,) = await send(inbox, "olt", mode=mode)
        await inbox.edit(one, "new", actor="olga")
        assert waiting(inbox) == ["new"]
        agent.let_go()
        await inbox.wait(one)
        assert [entry.text for entry in await inbox.history(S) if entry.role == "user"] == ["cling", "new"]
    assert agent.prompts == ["cling", "new"]
    (edited,) = log.of("message.edited")
    assert (edited.message_id, edited.actor) == (one, "olga")


@staged
async def test_an_edit_keeps_the_place_and_the_window() -> None:
    agent = Agent()
    async with new_inbox(agent, debounce_ms=500) as inbox:
        await busy(inbox, agent)
        at = now_ms()
        ids = await send(inbox, "one", "two")
        agent.let_go()
        await passing(300)
        await inbox.edit(ids[0], "ONE")
        await finals(inbox, ids)
    assert agent.prompts[1] == collected(("", "ONE"), ("", "two"))
    assert agent.began_at[1] == at + 500


@pytest.mark.parametrize("text", ["", "  \n", b"bytes", None, "half \ud83d", "x" * 2_000])
@staged
async def test_an_edit_to_no_text_is_refused_and_changes_nothing(text: Any) -> None:
    agent = Agent()
    async with new_inbox(agent, text_max=1_000) as inbox:
        await busy(inbox, agent)
        (one,) = await send(inbox, "one")
        with pytest.raises(InvalidMessageError):
            await inbox.edit(one, text)
        assert waiting(inbox) == ["one"]


# ---- move ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("which", "to", "got", "order"),
    [(2, 1, 1, "cab"), (0, 3, 3, "bca"), (0, 2, 2, "bac"), (1, 2, 2, "abc"), (0, 99, 3, "bca")],
)
@staged
async def test_a_moved_message_has_its_new_place(which: int, to: int, got: int, order: str) -> None:
    agent = Agent()
    async with new_inbox(agent, mode="followup") as inbox, Log(inbox) as log:
        await busy(inbox, agent)
        ids = await send(inbox, *"abc")
        assert await inbox.move(ids[which], to, actor="olga") == got
        assert "".join(waiting(inbox)) == order
        assert [entry.position for entry in inbox.pending(S)] == [1, 2, 3]
        agent.let_go()
        await finals(inbox, ids)
    assert "".join(agent.prompts[1:]) == order
    (moved,) = log.of("message.moved")
    assert (moved.message_id, moved.position, moved.actor) == (ids[which], got, "olga")


@staged
async def test_a_new_place_survives_a_restart() -> None:
    store = CutStore()
    inbox = new_inbox(Agent(), store=store, mode="followup")
    await inbox.__aenter__()
    await inbox.submit(S, "hold")
    await passing()
    ids = await send(inbox, *"abcd")
    await inbox.move(ids[3], 1)
    await inbox.move(ids[0], 4)
    after = Agent()
    async with new_inbox(after, store=MemoryStore(kill(inbox, store)), mode="followup") as second:
        await finals(second, ids)
    assert "".join(after.prompts) == "dbca"


@pytest.mark.parametrize("place", [0, -1, 1.5, "1", True])
@staged
async def test_a_place_that_is_none_is_refused(place: Any) -> None:
    agent = Agent()
    async with new_inbox(agent, mode="followup") as inbox:
        await busy(inbox, agent)
        ids = await send(inbox, *"ab")
        with pytest.raises(ConfigError):
            await inbox.move(ids[1], place)
        assert waiting(inbox) == ["a", "b"]


@staged
async def test_a_message_moved_between_two_of_another_route_parts_them() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent)
        ids = await send(inbox, "a1", "a2", thread="A")
        ids += await send(inbox, "b", thread="B")
        await inbox.move(ids[2], 2)
        agent.let_go()
        await finals(inbox, ids)
    assert agent.prompts[1:] == ["a1", "b", "a2"]


# ---- hold and release ------------------------------------------------------------------------------------------


@staged
async def test_a_held_head_is_passed_and_keeps_its_place() -> None:
    agent = Agent()
    async with new_inbox(agent, mode="followup") as inbox, Log(inbox) as log:
        await busy(inbox, agent)
        ids = await send(inbox, "a", "b", "hold c", "d")
        await inbox.hold(ids[0], actor="olga")
        assert [entry.state for entry in inbox.pending(S)] == [State.HELD] + [State.QUEUED] * 3
        assert "held" in inbox.pending(S)[0].reason
        agent.let_go()
        await passing(10)
        assert agent.prompts == ["hold", "b", "hold c"]
        await inbox.release(ids[0], actor="olga")
        assert waiting(inbox) == ["a", "d"]
        agent.let_go()
        await finals(inbox, ids)
    assert agent.prompts == ["hold", "b", "hold c", "a", "d"]
    assert [(e.type, e.actor) for e in log.of("message.held", "message.released")] == [
        ("message.held", "olga"),
        ("message.released", "olga"),
    ]


@staged
async def test_a_session_with_nothing_but_a_held_message_rests_until_it_is_released() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent)
        (one,) = await send(inbox, "one")
        await inbox.hold(one)
        agent.let_go()
        await passing(1_000_000)
        assert agent.prompts == ["hold"]
        await inbox.release(one)
        assert (await inbox.wait(one)).outcome is Outcome.SUCCEEDED


@staged
async def test_a_held_message_is_left_out_of_a_batch_that_closes_around_it() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent)
        ids = await send(inbox, *"abc")
        await inbox.hold(ids[1])
        agent.let_go()
        await finals(inbox, [ids[0], ids[2]])
        assert agent.prompts[1] == collected(("", "a"), ("", "c"))
        await inbox.release(ids[1])
        assert (await inbox.wait(ids[1])).disposition is State.RAN


@staged
async def test_a_held_steer_is_not_taken_in() -> None:
    heard: list[str] = []
    agent = Agent(steers=steers(heard))
    async with new_inbox(agent, mode="steer") as inbox:
        inbox.lanes.resize("main", 1)
        await busy(inbox, agent, "steers")
        task = [asyncio.get_running_loop().create_task(inbox.submit(S, text)) for text in ("one", "two")]
        one = (await task[0]).message_id
        await inbox.hold(one)
        await passing(50)
        assert heard == ["two"]
        await inbox.release(one)
        assert (await inbox.status(one)).disposition is State.QUEUED
        await send(inbox, "enough")
        assert (await inbox.wait(one)).disposition is State.RAN


@staged
async def test_a_hold_survives_a_restart() -> None:
    store = CutStore()
    inbox = new_inbox(Agent(), store=store, mode="followup")
    await inbox.__aenter__()
    await inbox.submit(S, "hold")
    await passing()
    ids = await send(inbox, *"ab")
    await inbox.hold(ids[0])
    after = Agent()
    async with new_inbox(after, store=MemoryStore(kill(inbox, store)), mode="followup") as second:
        await second.wait(ids[1])
        await passing(100)
        assert waiting(second) == ["a"]
        await second.release(ids[0])
        await second.wait(ids[0])
    assert after.prompts == ["b", "a"]


@staged
async def test_holding_twice_is_holding_once_and_releasing_what_is_free_is_refused() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox, Log(inbox) as log:
        await busy(inbox, agent)
        (one,) = await send(inbox, "one")
        with pytest.raises(MessageStateError):
            await inbox.release(one)
        await inbox.hold(one)
        await inbox.hold(one)
        await inbox.release(one)
        with pytest.raises(MessageStateError):
            await inbox.release(one)
        agent.let_go()
        await inbox.wait(one)
    assert [event.type for event in log.of("message.held", "message.released")] == ["message.held", "message.released"]


@staged
async def test_a_held_interrupt_ends_nothing_more_and_waits() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        inbox.lanes.pause("main")
        ids = await send(inbox, "one", mode="followup")
        ids += await send(inbox, "cut", mode="interrupt")
        await inbox.hold(ids[1])
        inbox.lanes.resume("main")
        await inbox.wait(ids[0])
        assert agent.prompts == ["one"]
        await inbox.release(ids[1])
        await inbox.wait(ids[1])
    assert agent.prompts == ["one", "cut"]


# ---- withdraw --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["collect", "followup", "steer", "interrupt", "steer-backlog"])
@staged
async def test_a_withdrawn_message_never_runs(mode: str) -> None:
    agent = Agent()
    async with new_inbox(agent, interrupt_grace_ms=1_000) as inbox, Log(inbox) as log:
        await busy(inbox, agent, "cling")
        (one,) = await send(inbox, "one", mode=mode)
        (two,) = await send(inbox, "two", mode="followup")
        await inbox.withdraw(one, "never mind", actor="ada")
        assert waiting(inbox) == ["two"]
        agent.let_go()
        await finals(inbox, [one, two])
    assert agent.prompts == ["cling", "two"]
    (ended,) = [event for event in log.of("message.ended") if event.message_id == one]
    assert (ended.state, ended.reason, ended.actor) == (State.WITHDRAWN, "never mind", "ada")


@staged
async def test_withdrawing_the_last_message_of_an_idle_session_leaves_nothing() -> None:
    agent = Agent()
    async with new_inbox(agent, debounce_ms=1_000) as inbox:
        await busy(inbox, agent)
        (one,) = await send(inbox, "one")
        agent.let_go()
        await passing(10)
        await inbox.withdraw(one)
        await passing(5_000)
        assert inbox._engine.kernel.boxes == {}  # noqa: SLF001 - an idle session costs nothing
    assert agent.prompts == ["hold"]


@staged
async def test_a_message_can_be_withdrawn_while_it_waits_for_a_slot() -> None:
    agent = Agent()
    async with new_inbox(agent, concurrency=1) as inbox:
        await busy(inbox, agent)
        other = await inbox.submit("other", "one")
        assert "slot" in (await inbox.status(other.message_id)).reason
        await inbox.withdraw(other.message_id)
        agent.let_go()
        await passing(1_000)
    assert agent.prompts == ["hold"]


# ---- steer_now -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["collect", "followup", "steer-backlog"])
@staged
async def test_a_waiting_message_can_be_aimed_at_the_running_turn(mode: str) -> None:
    heard: list[str] = []
    agent = Agent(steers=steers(heard))
    async with new_inbox(agent) as inbox, Log(inbox) as log:
        first = await busy(inbox, agent, "steers")
        (one,) = await send(inbox, "one", mode=mode)
        assert await inbox.steer_now(one, actor="olga")
        await passing(50)
        assert heard == ["one"]
        await send(inbox, "enough", mode="steer")
        await inbox.wait(first)
        end = await inbox.wait(one)
    kept = mode == "steer-backlog"
    assert end.disposition is (State.RAN if kept else State.STEERED)
    assert [event.actor for event in log.of("message.parked")] == ([] if kept else ["olga"])


@pytest.mark.parametrize("why", ["idle", "thread", "delivering", "compacting"])
@staged
async def test_what_may_not_go_in_keeps_its_place(why: str) -> None:
    gate = asyncio.Event()

    async def busied(turn: Turn) -> str:
        async with turn.phase("delivering" if why == "delivering" else "thinking"):
            await gate.wait()
        return ""

    agent = Agent(busied=busied)
    async with new_inbox(agent, mode="followup") as inbox:
        if why == "idle":
            inbox.lanes.pause("main")
        else:
            await busy(inbox, agent, "busied", thread="A")
        ids = await send(inbox, "one", "two", thread="B" if why == "thread" else "A")
        if why == "compacting":
            assert await inbox.steer_now(ids[1])
            assert (await inbox.status(ids[1])).disposition is State.PARKED
        else:
            assert not await inbox.steer_now(ids[1])
            assert (await inbox.status(ids[1])).disposition is State.QUEUED
        assert waiting(inbox) == ["one", "two"]
        gate.set()
        inbox.lanes.resume("main")
        await finals(inbox, ids)
    assert agent.prompts[-2:] == ["one", "two"]


@staged
async def test_a_held_message_that_may_not_steer_stays_held() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox, Log(inbox) as log:
        await busy(inbox, agent, thread="A")
        (one,) = await send(inbox, "one", thread="B")
        await inbox.hold(one)
        assert not await inbox.steer_now(one)
        assert (await inbox.status(one)).disposition is State.HELD
        await passing()
    assert [event.state for event in log.about(one)] == [State.QUEUED, State.HELD]


@staged
async def test_a_held_message_that_may_steer_goes_in() -> None:
    heard: list[str] = []
    agent = Agent(steers=steers(heard))
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent, "steers")
        (one,) = await send(inbox, "one")
        await inbox.hold(one)
        assert await inbox.steer_now(one)
        (enough,) = await send(inbox, "enough", mode="steer")
        assert await dispositions(inbox, [one, enough]) == [State.STEERED] * 2


@staged
async def test_system_messages_never_steer() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent)
        (note,) = await send(inbox, "note", kind="system")
        with pytest.raises(MessageStateError):
            await inbox.steer_now(note)
        assert waiting(inbox) == ["note"]


# ---- in the wrong state ------------------------------------------------------------------------------------------


def _calls(inbox: Inbox, one: str) -> dict[str, Callable[[], Awaitable[Any]]]:
    return {
        "edit": lambda: inbox.edit(one, "x"),
        "move": lambda: inbox.move(one, 1),
        "hold": lambda: inbox.hold(one),
        "release": lambda: inbox.release(one),
        "withdraw": lambda: inbox.withdraw(one),
        "steer_now": lambda: inbox.steer_now(one),
    }


@pytest.mark.parametrize("call", ["edit", "move", "hold", "release", "withdraw", "steer_now"])
@pytest.mark.parametrize("state", [State.RUNNING, State.INJECTED])
@staged
async def test_what_an_agent_has_seen_can_no_longer_be_changed(state: State, call: str) -> None:
    heard: list[str] = []
    agent = Agent(steers=steers(heard))
    async with new_inbox(agent, mode="steer") as inbox:
        running = await busy(inbox, agent, "steers")
        (one,) = await send(inbox, "one")
        await passing(50)
        target = running if state is State.RUNNING else one
        assert (await inbox.status(target)).disposition is state
        with pytest.raises(MessageStateError) as caught:
            await _calls(inbox, target)[call]()
        assert (caught.value.state, caught.value.call, caught.value.message_id) == (state, call, target)
        assert (await inbox.status(target)).disposition is state
        await send(inbox, "enough")
        assert await dispositions(inbox, [running, one]) == [State.RAN, State.STEERED]


@staged
async def test_pending_tells_place_state_reason_and_age() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent)
        await send(inbox, "one", mode="followup", sender="ada", message_id="m1")
        await passing(250)
        await send(inbox, "two", mode="steer")
        one, two = inbox.pending(S)
        assert (one.text, one.position, one.state, one.waited_ms) == ("one", 1, State.QUEUED, 250)
        assert (two.text, two.position, two.state, two.waited_ms) == ("two", 2, State.PARKED, 0)
        assert one.message.message_id == "m1"
        assert agent.turns[0].id in one.reason
        assert agent.turns[0].id in two.reason
        assert texts_of(inbox.peek_pending(S)) == ["one", "two"]
        assert [(await inbox.status(entry.id)).position for entry in (one, two)] == [1, 2]
        assert inbox.pending("nobody") == []
        assert inbox.peek_pending("nobody") == []


# ---- dedupe ----------------------------------------------------------------------------------------------------


@staged
async def test_the_same_message_many_times_at_once_is_taken_once() -> None:
    agent = Agent()
    async with new_inbox(agent, mode="followup") as inbox:
        await busy(inbox, agent)
        receipts = await asyncio.gather(*(inbox.submit(S, "one", message_id="m1") for _ in range(20)))
        assert len({receipt.message_id for receipt in receipts}) == 1
        assert sum(not receipt.duplicate for receipt in receipts) == 1
        assert waiting(inbox) == ["one"]


@staged
async def test_senders_keep_their_order_whatever_has_to_be_looked_up() -> None:
    agent = Agent()
    came: list[str] = []

    async def submit(inbox: Inbox, number: int) -> None:
        came.append(f"m{number}")
        await inbox.submit(S, f"m{number}", message_id=number if number % 3 else None)

    async with new_inbox(agent, mode="followup") as inbox:
        await busy(inbox, agent)
        await asyncio.gather(*(submit(inbox, number) for number in range(15)))
        assert waiting(inbox) == came


@pytest.mark.parametrize("part", ["channel", "account", "thread", "chat_type"])
@staged
async def test_another_route_is_another_message(part: str) -> None:
    agent = Agent()
    async with new_inbox(agent, mode="followup") as inbox:
        await busy(inbox, agent)
        one = await inbox.submit(S, "one", message_id="m1")
        route: dict[str, Any] = {part: "x"}
        two = await inbox.submit(S, "one", message_id="m1", **route)
        three = await inbox.submit("other", "one", message_id="m1")
        four = await inbox.submit(S, "one", message_id="m1", tenant="acme")
        assert len({receipt.message_id for receipt in (one, two, three, four)}) == 4


@staged
async def test_a_message_without_an_id_is_never_a_duplicate() -> None:
    agent = Agent()
    async with new_inbox(agent, mode="followup") as inbox:
        await busy(inbox, agent)
        await send(inbox, "one", "one", "one")
        assert waiting(inbox) == ["one"] * 3


@staged
async def test_a_number_and_its_text_are_the_same_id() -> None:
    async with new_inbox() as inbox:
        one = await inbox.submit(S, "one", message_id=77)
        assert (await inbox.submit(S, "one", message_id="77")).message_id == one.message_id


@pytest.mark.parametrize(("later", "again"), [(DAY - 1, True), (DAY + 1, False)])
@staged
async def test_an_id_is_remembered_for_its_window(later: int, again: bool) -> None:
    inbox, clock = stepping_inbox(Agent())
    async with inbox:
        one = await inbox.submit(S, "one", message_id="m1")
        await inbox.wait(one.message_id)
        clock.jump_wall(later)
        assert (await inbox.submit(S, "one", message_id="m1")).duplicate is again


@staged
async def test_without_a_window_nothing_is_a_duplicate() -> None:
    async with new_inbox(dedupe_ms=0) as inbox:
        one, two = await send(inbox, "one", "one", message_id="m1")
        assert one != two


@staged
async def test_an_id_is_remembered_across_a_restart() -> None:
    store = CutStore()
    first = new_inbox(Agent(), store=store, mode="followup")
    await first.__aenter__()
    await first.submit(S, "hold")
    await passing()
    waits = await first.submit(S, "waits", message_id="m1", channel="tg")
    agent = Agent()
    async with new_inbox(agent, store=MemoryStore(kill(first, store)), mode="followup") as second:
        again = await second.submit(S, "waits", message_id="m1", channel="tg")
        assert (again.message_id, again.duplicate) == (waits.message_id, True)
        await second.wait(waits.message_id)
        late = await second.submit(S, "waits", message_id="m1", channel="tg")
        assert (late.message_id, late.disposition) == (waits.message_id, State.RAN)
    assert agent.prompts == ["waits"]


@pytest.mark.parametrize("how", ["withdraw", "expire", "drop", "clear", "refuse", "reject", "supersede", "summarize"])
@staged
async def test_an_attempt_given_up_before_its_turn_frees_the_id(how: str) -> None:
    agent = Agent()
    drop = {"drop": "old", "refuse": "new", "summarize": "summarize"}.get(how, "old")
    cap = 1 if how in ("drop", "refuse", "summarize") else 20
    async with new_inbox(agent, cap=cap, drop=drop, mode="followup", interrupt_grace_ms=60_000) as inbox:
        await busy(inbox, agent, "cling")
        if how == "refuse":
            await send(inbox, "fills")
            with pytest.raises(MailboxFullError):
                await inbox.submit(S, "one", message_id="m1")
            await inbox.command(S, "/queue clear")
        else:
            mode = {"reject": "reject", "supersede": "interrupt"}.get(how, "followup")
            expires = 100 if how == "expire" else None
            (one,) = await send(inbox, "one", message_id="m1", mode=mode, expires_ms=expires)
            if how == "withdraw":
                await inbox.withdraw(one)
            elif how == "clear":
                await inbox.command(S, "/queue clear")
            elif how in ("drop", "summarize", "supersede"):
                await send(inbox, "two", mode=mode)
            assert (await inbox.wait(one)).outcome is None
        again = await inbox.submit(S, "again", message_id="m1")
        assert not again.duplicate
        assert again.disposition is State.QUEUED
        agent.let_go()
        assert (await inbox.wait(again.message_id)).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.INTERRUPTED])
@staged
async def test_an_attempt_whose_turn_began_does_not_free_the_id(outcome: Outcome) -> None:
    async def fail(turn: Turn) -> str:
        raise LookupError

    agent = Agent(fail=fail)
    async with new_inbox(agent) as inbox:
        (one,) = await send(inbox, "fail" if outcome is Outcome.FAILED else "hold", message_id="m1")
        await passing()
        await inbox.stop(S)
        assert (await inbox.wait(one)).outcome is outcome
        again = await inbox.submit(S, "again", message_id="m1")
        assert (again.message_id, again.duplicate) == (one, True)


@staged
async def test_the_same_command_twice_at_once_is_carried_out_once() -> None:
    async with new_inbox(commands=True) as inbox:
        receipts = await asyncio.gather(*(inbox.submit(S, "/new", message_id="m1") for _ in range(3)))
        late = await inbox.submit(S, "/new", message_id="m1")
        assert len({receipt.message_id for receipt in [*receipts, late]}) == 1
        await finals(inbox, await send(inbox, "hi"))
        assert [entry.conversation for entry in await inbox.history(S)] == [1, 1]
