"""The checkers of calls and of kills in passivation find every kind of broken promise, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from laneway.dialogue import Answer, Prompt, Results, ResultStatus, ToolCall, ToolResult, Utterance
from tests.chaos.calls import CallEvidence, CallsSeen, Told, read_calls, told_in
from tests.chaos.leaving_checker import LeavingEvidence, Message, judge_leaving
from tests.chaos.witness import Witness

EFFECTS = {"spend": "write", "pay": "write", "put": "idempotent"}


def seen(*begun: str, cut: str = "") -> CallsSeen:
    """Calls that were made once, each under a key of its own, but for one that has not ended."""
    found = CallsSeen()
    for name in begun:
        tool = name.split("-")[0]
        found.begun[name].append(f"key of {name}")
        found.tools[name] = tool
        found.ended[name] += name != cut
    return found


def clean() -> LeavingEvidence:
    """One call of every fate, a sub-agent in the foreground and one in the background."""
    fates = {"spend-1": "ok", "spend-2": "unknown", "spend-3": "cancelled", "put-1": "ok", "pay-1": "ok"}
    fates |= {"pay-2": "denied", "task-1": "ok", "spawn-1": "ok"}
    found = seen("spend-1", "spend-2", "put-1", "put-1", "pay-1", cut="spend-2")
    for name, answer in (("pay-1", "approve"), ("pay-2", "deny")):
        found.answers[name] = [answer]
        found.decided[name] = [answer]
    told = [Told("chat", name, name.split("-")[0], status) for name, status in fates.items()]
    done = ("ran", "succeeded", "done")
    return LeavingEvidence(
        calls=CallEvidence(told=told, seen=found, effects=EFFECTS, asks=frozenset({"pay"})),
        accepted={"m1"},
        messages=[
            Message("chat", "m1", "go", *done),
            Message("chat~a", "m2", "work", *done),
            Message("chat~b", "m3", "work", *done),
            Message("chat", "m4", '[System note] Sub-agent "b" is done.', *done),
        ],
    )


def tell(evidence: LeavingEvidence, name: str, *statuses: str) -> None:
    told = [each for each in evidence.calls.told if each.call_id != name]
    evidence.calls.told = told + [Told("chat", name, name.split("-")[0], status) for status in statuses]


def test_what_holds_is_not_blamed() -> None:
    assert judge_leaving(clean()) == []


def test_two_faults_that_make_up_for_each_other_are_both_found() -> None:
    evidence = clean()
    del evidence.calls.seen.begun["spend-1"]  # it was told done, and was never made
    evidence.calls.seen.ended["spend-1"] = 0
    evidence.calls.seen.begun["spend-3"] = ["k"]  # it was told cancelled, and was made
    evidence.calls.seen.tools["spend-3"] = "spend"
    kinds = {each.partition(":")[0] for each in judge_leaving(evidence)}
    assert kinds == {"never made", "made all the same"}


def begin_again(evidence: LeavingEvidence) -> None:
    evidence.calls.seen.begun["spend-1"].append("key of spend-1")


def begin_unknown_again(evidence: LeavingEvidence) -> None:
    evidence.calls.seen.begun["spend-2"].append("key of spend-2")


def change_key(evidence: LeavingEvidence) -> None:
    evidence.calls.seen.begun["put-1"].append("another")


def never_make(evidence: LeavingEvidence) -> None:
    del evidence.calls.seen.begun["spend-1"]
    del evidence.calls.seen.ended["spend-1"]


def never_end(evidence: LeavingEvidence) -> None:
    evidence.calls.seen.ended["spend-1"] = 0


def make_cancelled(evidence: LeavingEvidence) -> None:
    tell(evidence, "spend-1", "cancelled")


def make_denied(evidence: LeavingEvidence) -> None:
    tell(evidence, "spend-1", "denied")


def doubt_idempotent(evidence: LeavingEvidence) -> None:
    tell(evidence, "put-1", "unknown")


def leave_open(evidence: LeavingEvidence) -> None:
    tell(evidence, "spend-2", "")


def tell_twice(evidence: LeavingEvidence) -> None:
    tell(evidence, "spend-1", "ok", "ok")


def forget_call(evidence: LeavingEvidence) -> None:
    tell(evidence, "spend-2")


def never_ask(evidence: LeavingEvidence) -> None:
    evidence.calls.seen.answers.pop("pay-1")
    evidence.calls.seen.decided.pop("pay-1")


def pay_denied(evidence: LeavingEvidence) -> None:
    evidence.calls.seen.answers["pay-1"] = ["deny"]


def ignore_yes(evidence: LeavingEvidence) -> None:
    evidence.calls.seen.decided["pay-2"] = ["approve"]


def ignore_no(evidence: LeavingEvidence) -> None:
    evidence.calls.seen.decided["pay-1"] = ["deny"]


def ask_again(evidence: LeavingEvidence) -> None:
    evidence.calls.seen.asked_again.append("pay-1")


def lose_message(evidence: LeavingEvidence) -> None:
    evidence.accepted.add("m9")


def never_answer(evidence: LeavingEvidence) -> None:
    evidence.messages[0] = evidence.messages[0]._replace(disposition="queued", outcome=None)


def say_nothing(evidence: LeavingEvidence) -> None:
    evidence.messages[1] = evidence.messages[1]._replace(answer=None)


def take_twice(evidence: LeavingEvidence) -> None:
    evidence.messages.append(evidence.messages[0]._replace(message_id="m9"))


def two_children(evidence: LeavingEvidence) -> None:
    evidence.messages.append(evidence.messages[1]._replace(session="chat~c"))


def fail_child(evidence: LeavingEvidence) -> None:
    tell(evidence, "task-1", "unknown")


def tell_no_end(evidence: LeavingEvidence) -> None:
    evidence.messages.pop()


def doubt(evidence: LeavingEvidence) -> None:
    evidence.is_sure = True


def misshape(evidence: LeavingEvidence) -> None:
    evidence.problems.append("results of no calls")


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [
        (begin_again, "twice"),
        (begin_unknown_again, "twice"),
        (change_key, "two keys"),
        (never_make, "never made"),
        (never_end, "never made"),
        (make_cancelled, "made all the same"),
        (make_denied, "made all the same"),
        (doubt_idempotent, "in doubt"),
        (leave_open, "open"),
        (tell_twice, "told twice"),
        (forget_call, "untold"),
        (never_ask, "unapproved"),
        (pay_denied, "unapproved"),
        (ignore_yes, "ignored"),
        (ignore_no, "ignored"),
        (ask_again, "asked again"),
        (lose_message, "lost"),
        (never_answer, "lost"),
        (say_nothing, "lost"),
        (take_twice, "taken twice"),
        (two_children, "sub-agents"),
        (fail_child, "sub-agent"),
        (tell_no_end, "ends"),
        (doubt, "in doubt"),
        (misshape, "malformed"),
    ],
)
def test_a_broken_promise_is_found(spoil: Callable[[LeavingEvidence], None], kind: str) -> None:
    evidence = clean()
    spoil(evidence)
    assert {each.partition(":")[0] for each in judge_leaving(evidence)} == {kind}


def test_the_witness_is_read_by_call_and_a_torn_line_is_skipped(tmp_path: Path) -> None:
    witness = Witness(tmp_path / "witness", 1, synced=True)
    for line in (
        ("begin", "c1", "pay", "k"),
        ("asked", "c1"),
        ("answer", "c1", "approve"),
        ("decided", "c1", "approve"),
    ):
        witness.note(*line)
    with (tmp_path / "witness").open("a") as book:
        book.write('["end", 1, "c')
    for again in (("end", "c1", "pay", "k"), ("asked", "c1"), ("accepted", "m1")):
        witness.note(*again)
    found = read_calls(tmp_path / "witness")
    assert (found.begun, found.ended, found.tools) == ({"c1": ["k"]}, {"c1": 1}, {"c1": "pay"})
    assert (found.answers, found.decided, found.asked_again) == ({"c1": ["approve"]}, {"c1": ["approve"]}, ["c1"])
    assert found.torn == 1


def test_a_conversation_tells_each_call_with_its_result_or_without_one() -> None:
    calls = tuple(ToolCall(id=name, name="pay", arguments="{}") for name in ("c1", "c2"))
    results = Results(results=(ToolResult(call_id="c1", name="pay", status=ResultStatus.UNKNOWN, output="?"),))
    said: list[Utterance] = [Prompt(text="go"), Answer(text="", calls=calls), results, Answer(text="so")]
    assert list(told_in("s", said)) == [Told("s", "c1", "pay", "unknown"), Told("s", "c2", "pay", "")]
