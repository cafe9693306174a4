"""What a turn asks people for: answers to its questions, and approvals of exactly what it wants to do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from laneway import (
    Approval,
    ApprovalState,
    ConfigError,
    Lanes,
    Message,
    MessageState,
    Outcome,
    Sender,
    Turn,
    UsageError,
)
from laneway.testing import fake_host
from tests.inbox_stage import GUEST, OWNER, Agent, Log, S, busy, finals, new_inbox, send, staged
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


@pytest.mark.parametrize("how", ["interrupt", "rollback", "stop", "new"])
@staged
async def test_an_approval_is_superseded_when_its_turn_is_ended(how: str) -> None:
    got: list[Approval] = []
    agent = Agent(work=approval_play(got))
    async with new_inbox(agent) as inbox, Log(inbox) as log:
        first = await busy(inbox, agent, "work")
        (asked,) = inbox.approvals(S)
        if how in ("stop", "new"):
            await inbox.command(S, f"/{how}")
        else:
            await send(inbox, "cut", mode=how)
        assert (await inbox.wait(first)).outcome is Outcome.INTERRUPTED
        assert inbox.approvals(S) == []
        assert not await inbox.approve(asked.id)
        await passing(200_000)
    assert [event.state for event in log.of("approval.ended")] == [ApprovalState.SUPERSEDED]
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
