"""What a turn asks people for: answers to its questions, and approvals of exactly what it wants to do."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from laneway import (
    Approval,
    ApprovalState,
    ConfigError,
    Inbox,
    Lanes,
    Message,
    MessageState,
    Outcome,
    Sender,
    StoreUnavailableError,
    Turn,
    TurnState,
    UsageError,
)
from laneway.rows import Owner
from laneway.stores import MemoryStore
from laneway.testing import fake_host
from tests.inbox_stage import (
    GUEST,
    OWNER,
    Agent,
    CutStore,
    Log,
    S,
    busy,
    finals,
    kill,
    new_inbox,
    send,
    staged,
    stepping_inbox,
)
from tests.stage import now_ms, passing

State = MessageState


# ---- questions ---------------------------------------------------------------------------------------------------


def asks(answers: list[Message | None], **options: Any) -> Callable[[Turn], Awaitable[str]]:
    """A turn that asks one question."""

    async def play(turn: Turn) -> str:
        answers.append(await turn.ask("which file?", **options))
        return "thanks"

    return play


@pytest.mark.parametrize("mode", ["collect", "followup", "steer", "steer-backlog"])
@staged
async def test_a_plain_answer_goes_to_the_pending_question(mode: str) -> None:
    answers: list[Message | None] = []
    agent = Agent(work=asks(answers))
    async with new_inbox(agent, concurrency=1) as inbox, Log(inbox, "turn.replied") as log:
        first = await busy(inbox, agent, "work", sender="ada")
        other = await inbox.submit("other", "hello")  # its slot is free meanwhile
        assert (await inbox.wait(other.message_id)).outcome is Outcome.SUCCEEDED
        (one,) = await send(inbox, "this one", mode=mode, sender="ada")
        end = await inbox.wait(first)
        answer = await inbox.wait(one)
    assert end.answer == "thanks"
    assert [message.text if message else None for message in answers] == ["this one"]
    assert answer.outcome is Outcome.SUCCEEDED
    assert log.answers()[0] == "which file?"


@pytest.mark.parametrize("who", [{"thread": "B"}, {"sender": Sender(id="x", owner=True)}, {"kind": "system"}])
@staged
async def test_somebody_else_does_not_answer_a_question(who: dict[str, Any]) -> None:
    answers: list[Message | None] = []
    agent = Agent(work=asks(answers, timeout_ms=5_000))
    async with new_inbox(agent) as inbox:
        await busy(inbox, agent, "work")
        at = now_ms()
        (one,) = await send(inbox, "not mine", **who)
        await inbox.wait(one)
        assert now_ms() >= at + 4_999
    assert answers == [None]
    assert agent.prompts == ["work", "not mine"]


@staged
async def test_an_interrupt_ends_a_question() -> None:
    answers: list[Message | None] = []
    agent = Agent(work=asks(answers))
    async with new_inbox(agent) as inbox:
        first = await busy(inbox, agent, "work")
        (cut,) = await send(inbox, "cut", mode="interrupt")
        ends = await finals(inbox, [first, cut])
    assert [end.outcome for end in ends] == [Outcome.INTERRUPTED, Outcome.SUCCEEDED]
    assert answers == []


# ---- approvals ---------------------------------------------------------------------------------------------------


def approval_play(got: list[Approval], **options: Any) -> Callable[[Turn], Awaitable[str]]:
    """A turn that asks for one approval."""

    async def play(turn: Turn) -> str:
        got.append(await turn.ask_approval("delete", {"path": "a.txt", "deep": [1, None]}, **options))
        return f"it is {got[-1].state}"

    return play


@pytest.mark.parametrize("say", ["approve", "deny"])
@pytest.mark.parametrize("way", ["call", "chat"])
@staged
async def test_an_approval_is_given_or_denied(say: str, way: str) -> None:
    got: list[Approval] = []
    agent = Agent(work=approval_play(got))
    async with new_inbox(agent, commands=True, mode="followup") as inbox, Log(inbox) as log:
        first = await busy(inbox, agent, "work")
        (later,) = await send(inbox, "later")
        (asked,) = inbox.approvals(S)
        assert (asked.state, asked.action, asked.arguments) == (
            ApprovalState.PENDING,
            "delete",
            {"path": "a.txt", "deep": [1, None]},
        )
        if way == "chat":
            reply = await inbox.submit(S, f"/{say} {asked.id}" + (" too risky" if say == "deny" else ""), sender=OWNER)
            assert asked.id in (reply.reply or "")
        elif say == "approve":
            assert await inbox.approve(asked.id, by="olga")
        else:
            assert await inbox.deny(asked.id, "too risky", by="olga")
        final = await inbox.wait(first)
        await inbox.wait(later)
        assert inbox.approvals() == []
    state = ApprovalState.APPROVED if say == "approve" else ApprovalState.DENIED
    assert [(one.id, one.state, one.answered_by) for one in got] == [(asked.id, state, "olga")]
    assert got[0].reason == ("too risky" if say == "deny" else "")
    assert final.answer == f"it is {state}"
    assert agent.prompts == ["work", "later"]
    assert [(e.type, e.state, e.actor) for e in log.of("approval.asked", "approval.ended")] == [
        ("approval.asked", ApprovalState.PENDING, "inbox"),
        ("approval.ended", state, "olga"),
    ]


@staged
async def test_an_approval_warns_and_expires() -> None:
    got: list[Approval] = []
    agent = Agent(work=approval_play(got, timeout_ms=10_000))
    async with new_inbox(agent) as inbox, Log(inbox) as log:
        first = await busy(inbox, agent, "work")
        at = now_ms() - 1
        await inbox.wait(first)
        assert now_ms() == at + 10_000
    assert [one.state for one in got] == [ApprovalState.EXPIRED]
    (warned,) = log.of("approval.warned")
    (ended,) = log.of("approval.ended")
    assert (warned.at_ms, warned.remaining_ms) == (1_700_000_000_000 + at + 8_000, 2_000)
    assert (ended.state, bool(ended.reason)) == (ApprovalState.EXPIRED, True)


ENDS = {
    "interrupt": ApprovalState.SUPERSEDED,
    "rollback": ApprovalState.SUPERSEDED,
    "stop": ApprovalState.WITHDRAWN,
    "new": ApprovalState.WITHDRAWN,
    "cancel": ApprovalState.WITHDRAWN,
}


@pytest.mark.parametrize("how", ENDS)
@staged
async def test_an_approval_is_over_when_its_turn_is_ended(how: str) -> None:
    got: list[Approval] = []
    agent = Agent(work=approval_play(got))
    async with new_inbox(agent) as inbox, Log(inbox) as log:
        first = await busy(inbox, agent, "work")
        (asked,) = inbox.approvals(S)
        if how in ("stop", "new"):
            await inbox.command(S, f"/{how}")
        elif how == "cancel":
            assert await inbox.cancel(S, "enough")
        else:
            await send(inbox, "cut", mode=how)
        assert (await inbox.wait(first)).outcome is Outcome.INTERRUPTED
        assert inbox.approvals(S) == []
        assert not await inbox.approve(asked.id)
        reply = await inbox.command(S, f"/approve {asked.id}")
        assert reply is not None
        assert ENDS[how].value in reply
        await passing(200_000)
    assert [event.state for event in log.of("approval.ended")] == [ENDS[how]]
    assert ApprovalState.APPROVED not in [one.state for one in got]


@staged
async def test_a_plain_yes_is_no_approval_and_a_guest_cannot_give_one() -> None:
    got: list[Approval] = []
    agent = Agent(work=approval_play(got))
    async with new_inbox(agent, commands=True, mode="steer") as inbox:
        first = await busy(inbox, agent, "work", sender=OWNER)
        (asked,) = inbox.approvals(S)
        yes = await inbox.submit(S, "yes", sender=OWNER)
        assert yes.disposition is State.QUEUED
        denied = await inbox.submit(S, f"/approve {asked.id}", sender=GUEST)
        assert "right" in (denied.reply or "")
        elsewhere = await inbox.submit("elsewhere", f"/approve {asked.id}", sender=OWNER)
        assert "No request" in (elsewhere.reply or "")
        assert got == []
        helper = Sender(id="h", rights=("approve",))
        assert "approved" in ((await inbox.submit(S, f"/approve {asked.id}", sender=helper)).reply or "")
        await inbox.wait(first)
    assert [one.answered_by for one in got] == ["h"]


@staged
async def test_an_approval_covers_one_request_only() -> None:
    states: list[str] = []

    async def work(turn: Turn) -> str:
        for _ in range(2):
            states.append((await turn.ask_approval("delete", {"path": "a"}, timeout_ms=5_000)).state)  # noqa: PERF401 - one after the other
        return ""

    agent = Agent(work=work)
    async with new_inbox(agent) as inbox:
        first = await busy(inbox, agent, "work")
        (asked,) = inbox.approvals(S)
        assert await inbox.approve(asked.id)
        assert not await inbox.approve(asked.id)
        await inbox.wait(first)
    assert states == [ApprovalState.APPROVED, ApprovalState.EXPIRED]


@staged
async def test_several_approvals_of_one_turn_are_answered_one_by_one() -> None:
    async def work(turn: Turn) -> str:
        asked = [turn.ask_approval("do", {"n": number}) for number in range(3)]
        return ",".join(approval.state for approval in await asyncio.gather(*asked))

    agent = Agent(work=work)
    async with new_inbox(agent) as inbox:
        first = await busy(inbox, agent, "work")
        by_number = {approval.arguments["n"]: approval.id for approval in inbox.approvals(S)}
        assert await inbox.deny(by_number[1])
        assert await inbox.approve(by_number[2])
        assert await inbox.approve(by_number[0])
        assert (await inbox.wait(first)).answer == "approved,denied,approved"


@pytest.mark.parametrize("timeout_ms", [0, -1, 1.5, "1s", True])
@staged
async def test_an_approval_with_a_time_that_is_none_is_refused(timeout_ms: Any) -> None:
    async def work(turn: Turn) -> str:
        with pytest.raises(ConfigError):
            await turn.ask_approval("do", timeout_ms=timeout_ms)
        return "went on"

    async with new_inbox(work) as inbox:
        (end,) = await finals(inbox, await send(inbox, "work"))
        assert inbox.approvals() == []
    assert end.answer == "went on"


@pytest.mark.parametrize("arguments", [{"file": object()}, {"x": float("nan")}, {"x": "half \ud83d"}])
@staged
async def test_an_approval_of_what_is_no_json_is_refused_and_harms_nothing(arguments: Any) -> None:
    async def work(turn: Turn) -> str:
        with pytest.raises(UsageError):
            await turn.ask_approval("do", arguments)
        return "went on"

    async with new_inbox(work) as inbox:
        (end,) = await finals(inbox, await send(inbox, "work"))
        assert inbox.approvals() == []
    assert end.answer == "went on"


@staged
async def test_approvals_do_not_wait_for_each_other_in_lanes_with_a_control_lane_of_their_own() -> None:
    async def work(turn: Turn) -> str:
        return str((await turn.ask_approval("x")).state)

    agent = Agent(work=work)
    async with (
        Lanes({"main": 10, "control": 1}, unknown="create", host=fake_host()) as lanes,
        new_inbox(agent, lanes=lanes) as inbox,
    ):
        ids = [(await inbox.submit(f"s{number}", "work")).message_id for number in range(4)]
        await passing(10)
        asked = {approval.session_key: approval.id for approval in inbox.approvals()}
        for number in (3, 1, 2, 0):
            assert await inbox.approve(asked[f"s{number}"])
            await passing(10)
            assert (await inbox.status(ids[number])).disposition.is_final


@staged
async def test_a_turn_with_several_questions_waits_until_the_last_is_answered() -> None:
    seen: list[TurnState] = []

    async def work(turn: Turn) -> str:
        async def one(number: int) -> None:
            await turn.ask_approval("do", {"n": number})
            seen.append(turn.state)

        await asyncio.gather(*(one(number) for number in range(3)))
        seen.append(turn.state)
        return ""

    agent = Agent(work=work)
    async with new_inbox(agent, mode="steer") as inbox:
        first = await busy(inbox, agent, "work")
        for approval in inbox.approvals(S):
            receipt = await inbox.submit(S, f"before {approval.id}")
            assert (receipt.disposition, "waits for an answer" in receipt.reason) == (State.QUEUED, True)
            assert await inbox.approve(approval.id)
            await passing()
        await inbox.wait(first)
    assert seen == [TurnState.WAITING, TurnState.WAITING, TurnState.THINKING, TurnState.THINKING]


@staged
async def test_whoever_waits_behind_an_approval_is_told_of_it() -> None:
    agent = Agent(work=approval_play([], timeout_ms=10_000))
    async with new_inbox(agent, mode="followup") as inbox:
        await busy(inbox, agent, "work")
        await send(inbox, "later")
        (asked,) = inbox.approvals(S)
        at = now_ms()
        await passing(3_000)
        (waits,) = inbox.pending(S)
        assert f"waits for approval {asked.id} ({10_000 - (now_ms() - at) - 1} ms left)" in waits.reason


@staged
async def test_a_question_that_its_turn_gives_up_is_withdrawn() -> None:
    seen: list[TurnState] = []

    async def work(turn: Turn) -> str:
        try:
            async with asyncio.timeout(5):
                await turn.ask_approval("do")
        except TimeoutError:
            seen.append(turn.state)
        await passing(5_000)
        return "went on"

    agent = Agent(work=work)
    async with new_inbox(agent) as inbox, Log(inbox) as log:
        first = await busy(inbox, agent, "work")
        (asked,) = inbox.approvals(S)
        await passing(6_000)
        assert inbox.approvals(S) == []
        assert not await inbox.approve(asked.id)
        assert (await inbox.wait(first)).answer == "went on"
        assert inbox.engine._approvals == {}  # noqa: SLF001 - nothing is left
    assert [event.state for event in log.of("approval.ended")] == [ApprovalState.WITHDRAWN]
    assert seen == [TurnState.THINKING]


# ---- who may answer ----------------------------------------------------------------------------------------------


def asks_people(got: list[Approval], **more: Any) -> Callable[[Turn], Awaitable[str]]:
    """A turn that says who may answer."""

    async def play(turn: Turn) -> str:
        engine = turn._engine  # noqa: SLF001 - the door of the agent loop
        got.append(await engine.ask_for(turn, engine.new_approval(turn, "do", {"n": 1}, 10_000, **more)))
        return got[-1].state

    return play


EVE = Sender(id="eve", rights=("approve", "queue", "stop"))
ADA = Sender(id="ada")
BOB = Sender(id="bob")


@pytest.mark.parametrize("say", ["approve", "deny"])
@staged
async def test_only_the_named_approvers_and_owners_may_answer(say: str) -> None:
    got: list[Approval] = []
    agent = Agent(work=asks_people(got, approvers=("ada",)))
    async with new_inbox(agent) as inbox, Log(inbox, "approval.ended") as log:
        first = await busy(inbox, agent, "work")
        (asked,) = inbox.approvals(S)
        for sender in (EVE, BOB, GUEST):
            reply = await inbox.command(S, f"/{say} {asked.id}", sender=sender)
            assert "You may not do that" in (reply or "")
        await passing()
        assert [one.id for one in inbox.approvals(S)] == [asked.id]
        assert log.events == []
        assert asked.id in (await inbox.command(S, f"/{say} {asked.id}", sender=ADA) or "")
        await inbox.wait(first)
        late = await inbox.command(S, f"/{say} {asked.id}", sender=OWNER)
        assert late == await inbox.command(S, f"/{say} {asked.id}", sender=ADA)
        assert got[0].state in (late or "")
        assert "You may not do that" in (await inbox.command(S, f"/{say} {asked.id}", sender=EVE) or "")
    assert [one.answered_by for one in got] == ["ada"]


@staged
async def test_after_a_while_others_may_answer_too_and_it_is_told() -> None:
    got: list[Approval] = []
    agent = Agent(work=asks_people(got, approvers=("ada",), escalate_after_ms=4_000, escalate_to=("bob",)))
    async with new_inbox(agent) as inbox, Log(inbox) as log:
        first = await busy(inbox, agent, "work")
        (asked,) = inbox.approvals(S)
        assert "You may not" in (await inbox.command(S, f"/approve {asked.id}", sender=BOB) or "")
        await passing(4_000)
        (told,) = log.of("approval.escalated")
        assert (told.approval_id, told.escalated_to, told.remaining_ms) == (asked.id, ("bob",), 6_000)
        assert "approved" in (await inbox.command(S, f"/approve {asked.id}", sender=BOB) or "")
        await inbox.wait(first)
        assert "approval escalated" in str(await inbox.explain(first))
    assert [(one.state, one.answered_by, one.escalated) for one in got] == [(ApprovalState.APPROVED, "bob", True)]


@staged
async def test_two_people_who_answer_at_once_are_one_answer() -> None:
    got: list[Approval] = []
    agent = Agent(work=asks_people(got))
    async with new_inbox(agent) as inbox, Log(inbox, "approval.ended") as log:
        first = await busy(inbox, agent, "work")
        (asked,) = inbox.approvals(S)
        replies = await asyncio.gather(
            inbox.command(S, f"/approve {asked.id}", sender=EVE),
            inbox.command(S, f"/deny {asked.id} never", sender=OWNER),
        )
        await inbox.wait(first)
        await passing()
    assert len(log.events) == 1
    assert len(got) == 1
    assert list(replies) == [f"Request {asked.id} is {got[0].state}."] * 2


@pytest.mark.parametrize("early", [0, 1])
@staged
async def test_an_answer_in_the_last_millisecond_counts_and_one_at_the_end_does_not(early: int) -> None:
    got: list[Approval] = []
    agent = Agent(work=approval_play(got, timeout_ms=1_000))
    async with new_inbox(agent) as inbox:
        first = await busy(inbox, agent, "work")
        (asked,) = inbox.approvals(S)
        box = inbox.engine.kernel.boxes[asked_by(inbox)]
        left = box.approvals[asked.id].expires_at - now_ms()
        await passing(left - early)
        assert await inbox.approve(asked.id) is bool(early)
        await inbox.wait(first)
    assert [one.state for one in got] == [ApprovalState.APPROVED if early else ApprovalState.EXPIRED]


def asked_by(inbox: Inbox) -> Owner:
    """The session of these tests."""
    (owner,) = inbox.engine.kernel.boxes
    return owner


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
@staged
async def test_a_clock_that_is_set_changes_nothing_about_the_time_of_an_approval(jump_ms: int) -> None:
    got: list[Approval] = []
    agent = Agent(work=approval_play(got, timeout_ms=10_000))
    inbox, clock = stepping_inbox(agent)
    async with inbox:
        first = (await inbox.submit(S, "work")).message_id
        await passing()
        at = now_ms()
        clock.jump_wall(jump_ms)
        await inbox.wait(first)
        assert at + 9_990 <= now_ms() <= at + 10_000
    assert [one.state for one in got] == [ApprovalState.EXPIRED]


# ---- across a restart --------------------------------------------------------------------------------------------


class Lives:
    """One store and the processes that use it, one after the other."""

    def __init__(self) -> None:
        self.store = CutStore()
        self.got: list[Approval] = []
        self.agent = Agent(work=approval_play(self.got, timeout_ms=10_000))

    async def ask(self, **options: Any) -> tuple[Inbox, str, Approval]:
        """A process whose turn asks: its inbox, the message, and the request."""
        options.setdefault("mode", "followup")
        inbox = new_inbox(self.agent, store=self.store, on_crash="rerun", **options)
        await inbox.__aenter__()
        message = (await inbox.submit(S, "work")).message_id
        await passing()
        (asked,) = inbox.approvals(S)
        return inbox, message, asked

    @contextlib.asynccontextmanager
    async def closing(self, inbox: Inbox) -> AsyncIterator[None]:
        """Close it at the end."""
        try:
            yield
        finally:
            await inbox.close()

    def next_life(self, inbox: Inbox, **options: Any) -> Inbox:
        """Kill that process; another one goes on."""
        options.setdefault("on_crash", "rerun")
        return new_inbox(self.agent, store=MemoryStore(kill(inbox, self.store)), **options)


@staged
async def test_a_turn_that_runs_again_asks_under_the_old_id_and_has_its_whole_time() -> None:
    lives = Lives()
    first, message, asked = await lives.ask()
    await passing(9_000)
    async with lives.next_life(first) as inbox:
        await passing()
        (again,) = inbox.approvals(S)
        assert (again.id, again.arguments, again.asked_ms) == (asked.id, asked.arguments, asked.asked_ms)
        await passing(9_000)
        assert await inbox.approve(asked.id, by="olga")
        assert (await inbox.wait(message)).answer == "it is approved"
    assert [(one.id, one.answered_by) for one in lives.got] == [(asked.id, "olga")]


@pytest.mark.parametrize("say", ["approve", "deny"])
@staged
async def test_an_answer_that_comes_before_the_turn_asks_again_counts_once(say: str) -> None:
    lives = Lives()
    first, message, asked = await lives.ask()
    inbox = lives.next_life(first)
    inbox.engine.attends = lambda _: False  # nobody runs turns yet
    async with inbox, Log(inbox, "approval.asked", "approval.ended") as log:
        await passing(60_000)  # its time stands still
        assert await getattr(inbox, say)(asked.id, by="olga")
        assert not await getattr(inbox, say)(asked.id, by="eve")
        assert inbox.approvals() == []
        inbox.engine.attends = lambda _: True
        inbox.engine.attend(asked_by(inbox))
        state = ApprovalState.APPROVED if say == "approve" else ApprovalState.DENIED
        assert (await inbox.wait(message)).answer == f"it is {state}"
        assert [event.type for event in log.events] == ["approval.ended"]
        assert (await send(inbox, "work"))[0]
        await passing()
        (new,) = inbox.approvals(S)
        assert new.id != asked.id  # what was said before covers nothing more
    assert [(one.id, one.state, one.answered_by) for one in lives.got[:1]] == [(asked.id, state, "olga")]
    assert [row.live for row in lives.store.disk.states.values() if row.id == asked.id] == [0]


@staged
async def test_an_answer_and_then_another_crash_is_still_the_answer() -> None:
    lives = Lives()
    first, message, asked = await lives.ask()
    lives.store = second_store = CutStore(kill(first, lives.store))
    second = new_inbox(lives.agent, store=second_store, on_crash="rerun")
    second.engine.attends = lambda _: False
    await second.__aenter__()
    assert await second.approve(asked.id, by="olga")
    async with lives.next_life(second) as third:
        assert (await third.wait(message)).answer == "it is approved"
    assert [(one.id, one.answered_by) for one in lives.got] == [(asked.id, "olga")]


@pytest.mark.parametrize("how", ["withdraw", "stop", "clear", "report"])
@staged
async def test_what_was_asked_by_a_turn_that_does_not_come_back_is_withdrawn(how: str) -> None:
    lives = Lives()
    first, message, asked = await lives.ask()
    inbox = lives.next_life(first, on_crash="report" if how == "report" else "rerun")
    inbox.engine.attends = lambda _: False
    async with Log(inbox, "approval.ended") as log, inbox:
        await passing()
        assert [one.id for one in inbox.approvals(S)] == ([] if how == "report" else [asked.id])
        if how == "withdraw":
            await inbox.withdraw(message)
        elif how == "stop":
            await inbox.stop(S)
        elif how == "clear":
            await inbox.command(S, "/queue clear")
        await passing()
        assert inbox.approvals() == []
        assert not await inbox.approve(asked.id)
        for box in inbox.engine.kernel.boxes.values():
            assert (box.approvals, box.answers) == ({}, {})
    assert [(event.approval_id, event.state) for event in log.of("approval.ended")] == [
        (asked.id, ApprovalState.WITHDRAWN)
    ]
    assert [row.live for row in lives.store.disk.states.values() if row.kind == "approval"] == [0]


@staged
async def test_an_interrupt_after_a_crash_leaves_the_question_to_the_turn_that_goes_on() -> None:
    lives = Lives()
    first, message, asked = await lives.ask()
    async with lives.next_life(first, mode="interrupt") as inbox:
        cut = await inbox.submit(S, "other")
        assert (await inbox.wait(cut.message_id)).answer == "re: other"
        await passing()
        found = [one.id for one in inbox.approvals(S)]
        if found:  # the old turn goes on after it; else it had begun again and was interrupted
            assert found == [asked.id]
            assert await inbox.approve(asked.id)
            assert (await inbox.wait(message)).answer == "it is approved"
        else:
            assert (await inbox.wait(message)).outcome is Outcome.INTERRUPTED
    rows = [row for row in lives.store.disk.states.values() if row.kind == "approval"]
    assert [(row.id, row.live) for row in rows] == [(asked.id, 0)]


@staged
async def test_a_turn_that_asks_for_something_else_after_a_crash_asks_anew() -> None:
    got: list[Approval] = []
    store = CutStore()
    numbers = iter((1, 2))

    async def work(turn: Turn) -> str:
        got.append(await turn.ask_approval("do", {"n": next(numbers)}))
        return got[-1].state

    first = new_inbox(Agent(work=work), store=store, on_crash="rerun", mode="followup")
    await first.__aenter__()
    message = (await first.submit(S, "work")).message_id
    await passing()
    (asked,) = first.approvals(S)
    async with new_inbox(Agent(work=work), store=MemoryStore(kill(first, store)), on_crash="rerun") as inbox:
        await passing()
        (new,) = [one for one in inbox.approvals(S) if one.id != asked.id]
        assert await inbox.approve(asked.id)  # the old one covers nothing that is asked now
        assert new.arguments == {"n": 2}
        await passing()
        assert got == []
        assert await inbox.deny(new.id)
        assert (await inbox.wait(message)).answer == "denied"
    rows = [row for row in store.disk.states.values() if row.kind == "approval"]
    assert [row.live for row in rows] == [0, 0]


@staged
async def test_a_closed_inbox_leaves_the_question_of_a_turn_that_runs_again() -> None:
    lives = Lives()
    inbox, message, asked = await lives.ask(close_timeout_ms=1_000)
    disk = lives.store.disk
    async with Log(inbox, "approval.ended") as log:
        await inbox.close()
        await passing()
    assert log.events == []
    async with new_inbox(lives.agent, store=MemoryStore(disk), on_crash="rerun") as again:
        await passing()
        assert [one.id for one in again.approvals(S)] == [asked.id]
        assert await again.approve(asked.id)
        assert (await again.wait(message)).answer == "it is approved"


@pytest.mark.parametrize("loses_answer", [False, True])
@staged
async def test_an_answer_that_the_store_refuses_is_none_until_it_takes_it(loses_answer: bool) -> None:
    lives = Lives()
    inbox, message, asked = await lives.ask()
    async with lives.closing(inbox):
        at = now_ms()
        lives.store.loses_answer = loses_answer
        lives.store.refuse = lambda batch: any(getattr(row, "kind", "") == "approval" for row in batch.rows)
        with pytest.raises(StoreUnavailableError):
            await inbox.approve(asked.id)
        lives.store.refuse = lambda _: False
        await passing(1_000)
        if not loses_answer:
            assert [one.id for one in inbox.approvals(S)] == [asked.id]
            await passing(at + 9_990 - now_ms())
            assert await inbox.approve(asked.id)  # its time went on as before
        assert (await inbox.wait(message)).answer == "it is approved"


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [({"n": 1}, {"n": True}), ({"n": 1}, {"n": 1.0}), ({"n": [1]}, {"n": [1, None]}), ({}, {"n": 1})],
)
def test_an_approval_is_about_exactly_its_arguments(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    facts: dict[str, Any] = {"id": "a", "session_key": "s", "turn_id": "t", "asked_ms": 0, "expires_ms": 1}
    approval = Approval(action="do", arguments=mine, state=ApprovalState.PENDING, **facts)
    assert approval.is_about("do", dict(reversed(mine.items())))
    assert not approval.is_about("do", theirs)
    assert not approval.is_about("undo", mine)
