"""What a handler holds: boundaries, replies, phases, fences, approvals, questions and follow-ups."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from laneway import (
    FencedError,
    InterruptSignalError,
    InvalidMessageError,
    MessageKind,
    MessageState,
    Mode,
    Outcome,
    Turn,
    TurnState,
    UsageError,
)
from laneway.kernel.texts import SKIPPED
from tests.inbox_stage import (
    GUEST,
    OWNER,
    Agent,
    Log,
    S,
    busy,
    finals,
    new_inbox,
    send,
    staged,
    texts_of,
    waiting,
)
from tests.stage import now_ms, passing

State = MessageState


# ---- what it is about --------------------------------------------------------------------------------------------


@staged
async def test_a_turn_says_what_it_is_about() -> None:
    agent = Agent()
    async with new_inbox(agent, workspace="w") as inbox:
        receipt = await inbox.submit(
            S,
            "hello",
            channel="tg",
            account="bot",
            thread=7,
            chat_type="group",
            sender=OWNER,
            message_id="m1",
            mode="followup",
            tenant="acme",
            attachments=[{"kind": "image", "bytes": 12}],
        )
        final = await inbox.wait(receipt.message_id)
    (turn,) = agent.turns
    (message,) = turn.messages
    assert (turn.id, turn.session_key, turn.tenant, turn.workspace) == (final.turn_id, S, "acme", "w")
    assert (turn.prompt, turn.mode, turn.kind, turn.depth) == ("hello", Mode.FOLLOWUP, MessageKind.USER, 0)
    assert (message.id, message.message_id, message.text) == (receipt.message_id, "m1", "hello")
    assert (message.channel, message.account, message.thread, message.chat_type) == ("tg", "bot", "7", "group")
    assert message.sender == OWNER
    assert message.attachments == ({"kind": "image", "bytes": 12},)
    assert (turn.route.channel, turn.route.thread) == ("tg", "7")
    assert turn.state is TurnState.SUCCEEDED
    assert turn.id in repr(turn)


@staged
async def test_a_message_of_attachments_alone_is_a_message() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        receipt = await inbox.submit(S, "", attachments=["photo.jpg"])
        assert (await inbox.wait(receipt.message_id)).outcome is Outcome.SUCCEEDED
    assert agent.turns[0].messages[0].attachments == ("photo.jpg",)


@staged
async def test_what_a_handler_returns_is_the_answer() -> None:
    answers: dict[str, str | None] = {"a": "text", "b": "", "c": None}

    async def says(turn: Turn) -> str | None:
        return answers[turn.prompt]

    async with new_inbox(says, mode="followup") as inbox, Log(inbox, "turn.replied") as log:
        ends = await finals(inbox, await send(inbox, "a", "b", "c"))
    assert [end.answer for end in ends] == ["text", None, None]
    assert {end.outcome for end in ends} == {Outcome.SUCCEEDED}
    assert log.answers() == ["text"]


# ---- boundaries --------------------------------------------------------------------------------------------------


@staged
async def test_a_boundary_gives_the_steered_messages_in_order_and_once() -> None:
    heard: list[list[str]] = []
    gate = asyncio.Event()

    async def work(turn: Turn) -> str:
        await gate.wait()
        heard.extend([texts_of(await turn.boundary()) for _ in range(3)])
        return "done"

    agent = Agent(work=work)
    async with new_inbox(agent, mode="steer") as inbox, Log(inbox) as log:
        first = await busy(inbox, agent, "work")
        ids = await send(inbox, "one", "two", "three")
        gate.set()
        ends = await finals(inbox, [first, *ids])
        lines = [entry.text for entry in await inbox.history(S)]
    assert heard == [["one", "two", "three"], [], []]
    assert [end.disposition for end in ends] == [State.RAN] + [State.STEERED] * 3
    assert {end.turn_id for end in ends} == {agent.turns[0].id}
    assert {end.answer for end in ends} == {"done"}
    assert lines == ["work", "one", "two", "three", "done"]
    assert [event.boundary for event in log.of("message.injected")] == [1, 1, 1]


@pytest.mark.parametrize("how", ["fails", "cancelled"])
@staged
async def test_a_message_that_went_into_a_turn_in_vain_returns_to_its_place(how: str) -> None:
    gate = asyncio.Event()

    async def work(turn: Turn) -> str:
        while not await turn.boundary():
            await passing(10)
        if how == "fails":
            await gate.wait()
            raise LookupError
        await asyncio.Event().wait()
        return ""

    agent = Agent(work=work)
    async with new_inbox(agent, mode="followup") as inbox, Log(inbox) as log:
        first = await busy(inbox, agent, "work")
        (steer,) = await send(inbox, "steer", mode="steer")
        await passing(50)
        (later,) = await send(inbox, "later")
        if how == "fails":
            gate.set()
            ids = [first, steer, later]
        else:
            (cut,) = await send(inbox, "cut", mode="interrupt")
            ids = [first, cut, steer, later]
        ends = await finals(inbox, ids)
        lines = [entry.text for entry in await inbox.history(S) if entry.role == "user"]
    order = ["steer", "later"] if how == "fails" else ["cut", "steer", "later"]
    assert agent.prompts == ["work", *order]
    assert ends[ids.index(steer)].disposition is State.RAN
    (returned,) = log.of("message.returned")
    assert agent.turns[0].id in returned.reason
    assert sorted(lines) == sorted(["work", *order])  # each text once


@staged
async def test_what_a_turn_saw_in_vain_is_marked_with_it() -> None:
    async def work(turn: Turn) -> str:
        while not await turn.boundary():
            await passing(10)
        raise LookupError

    agent = Agent(work=work)
    async with new_inbox(agent, concurrency=1) as inbox:
        first = await busy(inbox, agent, "work")
        other = await inbox.submit("other", "hold")
        await send(inbox, "steer", mode="steer")
        turn_id = (await inbox.wait(first)).turn_id
        await passing()
        (entry,) = inbox.pending(S)
        assert (entry.text, entry.seen_by, entry.state) == ("steer", turn_id, State.QUEUED)
        agent.let_go()
        assert (await inbox.wait(other.message_id)).outcome is Outcome.SUCCEEDED


@staged
async def test_peek_takes_nothing_and_consume_takes_what_may_go_in() -> None:
    seen: dict[str, list[str]] = {}
    gate = asyncio.Event()

    async def work(turn: Turn) -> str:
        await gate.wait()
        seen["peek"] = texts_of(turn.peek_pending())
        seen["boundary"] = texts_of(await turn.boundary())
        seen["consume"] = texts_of(await turn.consume_pending())
        seen["left"] = texts_of(turn.peek_pending())
        return "done"

    agent = Agent(work=work)
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent, "work", sender=OWNER)
        ids = await send(inbox, "collect", sender=OWNER)
        ids += await send(inbox, "steer", sender=OWNER, mode="steer")
        ids += await send(inbox, "followup", sender=OWNER, mode="followup")
        ids += await send(inbox, "guest", sender=GUEST)
        ids += await send(inbox, "thread", sender=OWNER, thread="B")
        ids += await send(inbox, "note", kind="system")
        gate.set()
        ends = await finals(inbox, ids)
    everything = ["collect", "steer", "followup", "guest", "thread", "note"]
    assert seen == {
        "peek": everything,
        "boundary": ["steer"],
        "consume": ["collect", "followup"],
        "left": ["guest", "thread", "note"],
    }
    assert [end.disposition for end in ends] == [State.STEERED] * 3 + [State.RAN] * 3


@staged
async def test_middleware_without_a_turn_can_take_what_waits() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox:
        assert await inbox.consume_pending(S) == []
        first = await busy(inbox, agent)
        (one,) = await send(inbox, "one")
        assert texts_of(await inbox.consume_pending(S)) == ["one"]
        assert await inbox.consume_pending(S) == []
        assert waiting(inbox) == []
        agent.let_go()
        ends = await finals(inbox, [first, one])
    assert [end.disposition for end in ends] == [State.RAN, State.STEERED]


@staged
async def test_skipped_pairs_every_call_with_the_marker() -> None:
    async def work(turn: Turn) -> str:
        pairs = turn.skipped(iter([{"id": 1}, "two"]))
        assert pairs == [({"id": 1}, SKIPPED), ("two", SKIPPED)]
        assert turn.skipped([]) == []
        return "paired"

    async with new_inbox(work) as inbox:
        (end,) = await finals(inbox, await send(inbox, "work"))
    assert end.answer == "paired"


# ---- replies -----------------------------------------------------------------------------------------------------


@staged
async def test_replies_are_said_at_once_in_order_on_the_route_of_the_message() -> None:
    gate = asyncio.Event()

    async def work(turn: Turn) -> str:
        await turn.reply("first")
        await turn.reply("second")
        await gate.wait()
        return "last"

    agent = Agent(work=work)
    async with new_inbox(agent) as inbox, Log(inbox, "turn.replied") as log:
        first = await busy(inbox, agent, "work", channel="tg", account="bot", thread="7")
        await passing()
        assert log.answers() == ["first", "second"]
        gate.set()
        assert (await inbox.wait(first)).answer == "last"
        lines = [(entry.role, entry.text) for entry in await inbox.history(S)]
    events: list[Any] = list(log.events)
    assert [(event.text, event.part) for event in events] == [("first", 1), ("second", 2), ("last", 3)]
    assert {(event.channel, event.account, event.thread, event.message_id) for event in events} == {
        ("tg", "bot", "7", first)
    }
    assert lines == [("user", "work"), ("assistant", "first"), ("assistant", "second"), ("assistant", "last")]


@staged
async def test_the_reply_route_comes_from_one_source_message() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox, Log(inbox, "turn.replied") as log:
        await busy(inbox, agent)
        ids = [(await inbox.submit(S, text, sender=who)).message_id for text, who in (("a", "ada"), ("b", "bob"))]
        agent.let_go()
        await finals(inbox, ids)
    assert log.events[-1].message_id == ids[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize("text", ["", None, 7, b"bytes", "half \ud83d"])
@staged
async def test_a_reply_that_is_no_text_is_refused(text: Any) -> None:
    async def work(turn: Turn) -> str:
        with pytest.raises(InvalidMessageError):
            await turn.reply(text)
        return "went on"

    async with new_inbox(work) as inbox:
        (end,) = await finals(inbox, await send(inbox, "work"))
    assert end.answer == "went on"


# ---- interrupts and fences -----------------------------------------------------------------------------------------


@staged
async def test_a_shielded_handler_meets_the_signal_at_its_next_boundary() -> None:
    met: list[str] = []
    gate = asyncio.Event()

    async def shielded(turn: Turn) -> str:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                met.append("cancelled")
        assert turn.cancelled
        await turn.boundary()
        return "never"

    agent = Agent(shielded=shielded)
    async with new_inbox(agent, mode="interrupt") as inbox:
        first = await busy(inbox, agent, "shielded")
        assert not agent.turns[0].cancelled
        (cut,) = await send(inbox, "cut")
        assert agent.turns[0].cancelled
        await passing(3_000)
        at = now_ms()
        gate.set()
        ends = await finals(inbox, [first, cut])
        assert now_ms() == at  # it did not wait for the rest of the grace
    assert met == ["cancelled"]
    assert [end.outcome for end in ends] == [Outcome.INTERRUPTED, Outcome.SUCCEEDED]


CALLS: dict[str, Callable[[Turn], Any]] = {
    "boundary": lambda turn: turn.boundary(),
    "peek_pending": lambda turn: turn.peek_pending(),
    "consume_pending": lambda turn: turn.consume_pending(),
    "skipped": lambda turn: turn.skipped(["call"]),
    "reply": lambda turn: turn.reply("text"),
    "add_usage": lambda turn: turn.add_usage(7),
    "request_followup": lambda turn: turn.request_followup("more"),
    "spawn": lambda turn: turn.spawn(passing),
    "ask": lambda turn: turn.ask("what?"),
    "ask_approval": lambda turn: turn.ask_approval("do it"),
    "phase": lambda turn: turn.phase("acting").__aenter__(),
}


async def _try_all(turn: Turn) -> dict[str, type[BaseException] | None]:
    met: dict[str, type[BaseException] | None] = {}
    for name, call in CALLS.items():
        try:
            result = call(turn)
            if isinstance(result, Awaitable):
                await result
            met[name] = None
        except (FencedError, InterruptSignalError) as error:
            met[name] = type(error)
    return met


@staged
async def test_every_method_of_a_fenced_turn_raises() -> None:
    agent = Agent()
    async with new_inbox(agent, mode="interrupt", interrupt_grace_ms=100) as inbox, Log(inbox) as log:
        await busy(inbox, agent, "cling")
        (cut,) = await send(inbox, "cut")
        await inbox.wait(cut)
        turn = agent.turns[0]
        assert (turn.cancelled, turn.state) == (True, TurnState.FENCED)
        assert await _try_all(turn) == dict.fromkeys(CALLS, FencedError)
        agent.let_go()
        await passing()
        assert inbox.approvals(S) == []
    assert log.answers() == ["re: cut"]
    assert log.of("child.started", "approval.asked") == []


@staged
async def test_every_method_of_a_turn_that_has_ended_raises() -> None:
    agent = Agent()
    async with new_inbox(agent) as inbox, Log(inbox) as log:
        await finals(inbox, await send(inbox, "one"))
        assert await _try_all(agent.turns[0]) == dict.fromkeys(CALLS, FencedError)
    assert log.answers() == ["re: one"]


@staged
async def test_an_interrupted_turn_can_still_look_but_do_nothing_new() -> None:
    met: dict[str, type[BaseException] | None] = {}

    async def work(turn: Turn) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            met.update(await _try_all(turn))
            raise
        return ""

    agent = Agent(work=work)
    async with new_inbox(agent, mode="interrupt") as inbox:
        await busy(inbox, agent, "work")
        await finals(inbox, await send(inbox, "cut"))
    looking = {"peek_pending", "skipped", "add_usage"}
    assert met == {name: None if name in looking else InterruptSignalError for name in CALLS}


@pytest.mark.parametrize("takes", [0, 1_000, 4_999, 5_001, 14_999])
@staged
async def test_a_turn_may_use_its_grace_to_end(takes: int) -> None:
    async def slow(turn: Turn) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await passing(takes)
        return ""

    agent = Agent(slow=slow)
    async with new_inbox(agent, mode="interrupt") as inbox:
        first = await busy(inbox, agent, "slow")
        at = now_ms()
        (cut,) = await send(inbox, "cut")
        await inbox.wait(cut)
        assert now_ms() == at + takes
        final = await inbox.wait(first)
    assert agent.turns[0].state is TurnState.CANCELLED
    assert "fenced" not in final.reason


@pytest.mark.parametrize("grace", [0, 1, 15_000])
@staged
async def test_at_most_one_turn_of_a_session_is_not_fenced(grace: int) -> None:
    agent = Agent()
    async with new_inbox(agent, mode="interrupt", interrupt_grace_ms=grace) as inbox:
        await passing(10)
        await busy(inbox, agent, "cling 1")
        at = now_ms()
        await send(inbox, "cling 2")
        await passing(grace + 5)
        assert agent.prompts == ["cling 1", "cling 2"]
        assert agent.began_at[1] == at + grace
        assert [turn.state for turn in agent.turns] == [TurnState.FENCED, TurnState.THINKING]
        agent.let_go()
        await passing()
        assert [turn.state for turn in agent.turns] == [TurnState.FENCED, TurnState.SUCCEEDED]


@staged
async def test_an_answer_that_comes_after_the_interrupt_is_not_delivered() -> None:
    async def stubborn(turn: Turn) -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "stale"
        return ""

    agent = Agent(stubborn=stubborn)
    async with new_inbox(agent, mode="interrupt") as inbox, Log(inbox) as log:
        first = await busy(inbox, agent, "stubborn")
        (cut,) = await send(inbox, "cut")
        ends = await finals(inbox, [first, cut])
    assert log.answers() == ["re: cut"]
    assert [(end.outcome, end.answer) for end in ends] == [
        (Outcome.INTERRUPTED, None),
        (Outcome.SUCCEEDED, "re: cut"),
    ]


@staged
async def test_a_handler_that_raises_cancelled_error_by_itself_is_interrupted_and_the_session_lives() -> None:
    async def odd(turn: Turn) -> str:
        raise asyncio.CancelledError

    agent = Agent(odd=odd)
    async with new_inbox(agent, mode="followup") as inbox:
        ends = await finals(inbox, await send(inbox, "odd", "next"))
    assert [end.outcome for end in ends] == [Outcome.INTERRUPTED, Outcome.SUCCEEDED]
    assert ends[0].reason


# ---- phases ------------------------------------------------------------------------------------------------------


@staged
async def test_a_phase_is_left_as_it_was_entered() -> None:
    states: list[TurnState] = []

    async def work(turn: Turn) -> str:
        states.append(turn.state)
        async with turn.phase("acting"):
            states.append(turn.state)
            async with turn.phase(TurnState.COMPACTING):
                states.append(turn.state)
            states.append(turn.state)
        states.append(turn.state)
        return "done"

    async with new_inbox(work) as inbox:
        (end,) = await finals(inbox, await send(inbox, "work"))
    assert end.answer == "done"
    thinking, acting = TurnState.THINKING, TurnState.ACTING
    assert states == [thinking, acting, TurnState.COMPACTING, acting, thinking]


@pytest.mark.parametrize("state", ["starting", "succeeded", "failed", "cancelled", "interrupted", "fenced", "nix", 7])
@staged
async def test_a_phase_that_is_none_is_refused(state: Any) -> None:
    async def work(turn: Turn) -> str:
        with pytest.raises((UsageError, ValueError)):
            async with turn.phase(state):
                pass
        return str(turn.state)

    async with new_inbox(work) as inbox:
        (end,) = await finals(inbox, await send(inbox, "work"))
    assert end.answer == "thinking"


# ---- follow-ups --------------------------------------------------------------------------------------------------


@staged
async def test_a_workflow_goes_on_at_most_five_deep() -> None:
    depths: list[int] = []
    refused: list[UsageError] = []

    async def steps(turn: Turn) -> str:
        depths.append(turn.depth)
        try:
            await turn.request_followup("go on")
        except UsageError as error:
            refused.append(error)
        return f"step {turn.depth}"

    async with new_inbox(steps) as inbox, Log(inbox, "turn.replied") as log:
        await inbox.submit(S, "begin")
        await passing(1_000)
    assert depths == [0, 1, 2, 3, 4, 5]
    assert len(refused) == 1
    assert "5" in refused[0].hint
    assert log.answers() == [f"step {depth}" for depth in range(6)]


@staged
async def test_a_follow_up_is_a_system_message_that_comes_after_what_waits() -> None:
    async def work(turn: Turn) -> str:
        await turn.request_followup("check the tests")
        return "first half"

    agent = Agent(work=work)
    async with new_inbox(agent, mode="followup", concurrency=1) as inbox:
        inbox.lanes.pause("main")
        ids = await send(inbox, "work", "user")
        inbox.lanes.resume("main")
        await finals(inbox, ids)
        await passing(10)
    assert agent.prompts[:2] == ["work", "user"]
    assert "check the tests" in agent.prompts[2]
    assert agent.prompts[2].startswith("[System note]")
    assert (agent.turns[2].kind, agent.turns[2].depth) == (MessageKind.SYSTEM, 1)


@staged
async def test_the_count_of_follow_ups_starts_again_after_an_interrupt() -> None:
    depths: list[int] = []

    async def steps(turn: Turn) -> str:
        depths.append(turn.depth)
        if turn.depth == 4 and depths.count(4) == 1:
            await asyncio.Event().wait()
        if len(depths) < 9:
            await turn.request_followup("go on")
        return ""

    async with new_inbox(steps) as inbox:
        await inbox.submit(S, "begin")
        await passing()
        await inbox.submit(S, "news", mode="interrupt")
        await passing(1_000)
    assert depths == [0, 1, 2, 3, 4, 0, 1, 2, 3]


@pytest.mark.parametrize("text", ["", " ", None, 7, "half \ud83d"])
@staged
async def test_a_follow_up_without_text_is_refused(text: Any) -> None:
    async def work(turn: Turn) -> str:
        with pytest.raises(InvalidMessageError):
            await turn.request_followup(text)
        return "went on"

    agent = Agent(work=work)
    async with new_inbox(agent) as inbox:
        (end,) = await finals(inbox, await send(inbox, "work"))
        await passing(100)
    assert end.answer == "went on"
    assert agent.prompts == ["work"]


@pytest.mark.parametrize("how", ["followup", "child"])
@staged
async def test_what_a_turn_has_set_going_is_answered_on_its_route(how: str) -> None:
    async def child() -> str:
        return "found it"

    async def work(turn: Turn) -> str:
        if how == "child":
            turn.spawn(child)
        else:
            await turn.request_followup("go on")
        return "begun"

    agent = Agent(work=work)
    async with new_inbox(agent) as inbox, Log(inbox, "turn.replied") as log:
        await inbox.submit(S, "work", channel="tg", account="bot", thread="7", sender="ada")
        await passing(100)
    assert [(event.channel, event.account, event.thread) for event in log.events] == [("tg", "bot", "7")] * 2  # type: ignore[attr-defined]


@staged
async def test_a_steer_goes_into_a_follow_up_turn_and_starts_the_count_again() -> None:
    depths: list[int] = []
    gate = asyncio.Event()

    async def steps(turn: Turn) -> str:
        if turn.depth == 4 and not gate.is_set():
            gate.set()
            while not await turn.boundary():
                await passing(10)
            depths.append(-1)
        else:
            depths.append(turn.depth)
        if len(depths) < 8:
            await turn.request_followup("go on")
        return ""

    async with new_inbox(steps) as inbox:
        await inbox.submit(S, "begin", sender="ada", thread="7")
        await gate.wait()
        await inbox.submit(S, "news", mode="steer", sender="ada", thread="7")
        await passing(1_000)
    assert depths == [0, 1, 2, 3, -1, 1, 2, 3]
