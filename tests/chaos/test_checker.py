"""The checker of the crash tests finds what it is there to find, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from laneway.mail import Mode
from laneway.rows import EntryRow, MessageRow
from tests.chaos.checker import Evidence, Stored, Verdict, judge
from tests.chaos.loader import Answers, Ended
from tests.chaos.plan import JobPlan, MessagePlan
from tests.chaos.witness import Account, Witness, read_witness


def row(
    number: int, *, seq: int = 0, state: str = "ran", outcome: str = "succeeded", message_id: str = ""
) -> MessageRow:
    return MessageRow(
        id=message_id or f"msg-{number}",
        tenant="default",
        workspace="default",
        session="plain-0",
        seq=seq or number,
        place=seq or number,
        live=0,
        state=state,
        outcome=outcome,
        turn_id=f"turn-{number}",
        reason="a reason",
        platform_id=f"p{number}",
        route="[]",
        arrived_ms=0,
        ended_ms=1,
        body="{}",
    )


def entry(number: int) -> EntryRow:
    return EntryRow("default", "default", "plain-0", number, 0, 0, "user", f"msg-{number}", f"turn-{number}", "x", "{}")


def ran(account: Account, number: int, *, life: int = 1, turn: str = "", end: str = "ok") -> None:
    """A turn of its own for a message."""
    turn = turn or f"turn-{number}"
    account.add(len(account.begun) * 10, "begin", life, [turn, "plain-0", [[f"msg-{number}", number]], 0])
    if end:
        account.add(len(account.begun) * 10 - 1, "end", life, [turn, end])


def world() -> Evidence:
    """Three messages and two jobs for which everything went well."""
    messages = {n: MessagePlan(number=n, session="plain-0", channel="plain", mode=Mode.FOLLOWUP) for n in (1, 2, 3)}
    jobs = {4: JobPlan(number=4, effect="write"), 5: JobPlan(number=5, effect="idempotent")}
    answers = Answers(
        acks={n: f"msg-{n}" for n in messages},
        finals={f"msg-{n}": Ended("ran", "succeeded", f"turn-{n}", "the handler returned") for n in messages},
        job_acks={4: "job-4", 5: "job-5"},
    )
    account = Account(jobs_begun={4: [1], 5: [1]}, jobs_ended={4: [1], 5: [1]})
    for number in messages:
        ran(account, number)
    stored = Stored(rows={f"msg-{n}": row(n) for n in messages}, entries=[entry(n) for n in messages])
    return Evidence(messages=messages, jobs=jobs, answers=answers, account=account, stored=stored, is_rerun=False)


def kinds(evidence: Evidence) -> set[str]:
    return set(judge(evidence).wrong)


def test_a_world_in_which_all_went_well_is_good() -> None:
    verdict = judge(world())
    assert verdict.is_good
    assert verdict.counts["accepted"] == 3


def test_an_acknowledged_message_that_nobody_knows_is_lost() -> None:
    evidence = world()
    del evidence.stored.rows["msg-2"], evidence.answers.finals["msg-2"]
    assert "lost" in kinds(evidence)


def test_a_success_that_the_witness_did_not_see_is_lost() -> None:
    evidence = world()
    evidence.account.turns["turn-2"].how = ""
    assert kinds(evidence) == {"lost"}


def test_a_message_given_up_in_a_session_that_gives_up_nothing_is_lost() -> None:
    evidence = world()
    evidence.answers.finals["msg-2"] = Ended("dropped", "", "", "one too many")
    evidence.stored.rows["msg-2"] = row(2, state="dropped", outcome="")
    assert kinds(evidence) == {"lost"}


def test_a_message_that_still_waits_when_all_is_over_is_lost() -> None:
    evidence = world()
    evidence.stored.rows["msg-9"] = row(9, state="queued", outcome="")._replace(live=1)
    assert kinds(evidence) == {"lost"}


@pytest.mark.parametrize(
    ("is_rerun", "life", "expected"), [(False, 2, {"run twice"}), (True, 2, set()), (True, 1, {"run twice"})]
)
def test_a_second_begin_is_allowed_only_in_another_life_with_rerun(
    is_rerun: bool, life: int, expected: set[str]
) -> None:
    evidence = world()
    evidence.is_rerun = is_rerun
    ran(evidence.account, 3, life=life, turn="turn-3b")
    assert kinds(evidence) == expected


def test_a_begin_after_the_end_was_published_is_run_twice() -> None:
    evidence = world()
    evidence.is_rerun = True
    evidence.account.add(25, "final", 1, ["msg-3", "ran", "succeeded"])
    ran(evidence.account, 3, life=2, turn="turn-3b")
    assert kinds(evidence) == {"run twice"}


def test_one_platform_id_in_two_messages_is_run_twice() -> None:
    evidence = world()
    evidence.stored.rows["msg-x"] = row(3, seq=4, message_id="msg-x")
    assert kinds(evidence) == {"run twice"}


def test_a_refused_message_that_runs_is_run_twice() -> None:
    evidence = world()
    evidence.answers.refused[3] = "mailbox_full"
    assert kinds(evidence) == {"run twice"}


def test_a_later_message_that_begins_first_is_out_of_order() -> None:
    evidence = world()
    evidence.account = Account(jobs_begun={4: [1], 5: [1]}, jobs_ended={4: [1], 5: [1]})
    for number in (1, 3, 2):
        ran(evidence.account, number)
    assert kinds(evidence) == {"out of order"}


def test_messages_stored_in_another_order_than_sent_are_out_of_order() -> None:
    evidence = world()
    evidence.stored.rows["msg-1"] = row(1, seq=7)
    assert kinds(evidence) == {"out of order"}


def test_an_end_that_changes_is_found() -> None:
    evidence = world()
    evidence.account.add(99, "final", 1, ["msg-1", "ran", "failed"])
    assert kinds(evidence) == {"changed"}


def test_two_turns_at_once_in_one_session_overlap() -> None:
    evidence = world()
    evidence.account.turns["turn-1"].ended = 15
    assert kinds(evidence) == {"overlap"}


def test_a_text_that_is_missing_or_doubled_in_the_transcript_is_found() -> None:
    evidence = world()
    evidence.stored.entries[0] = entry(2)
    verdict = judge(evidence)
    assert len(verdict.wrong["transcript"]) == 2


def test_messages_that_gave_way_and_of_which_no_turn_was_told_are_found() -> None:
    evidence = world()
    evidence.stored.rows["msg-8"] = row(8, state="summarized", outcome="")
    assert kinds(evidence) == {"untold"}
    evidence.account.add(90, "begin", 1, ["turn-8", "plain-0", [], 1])
    evidence.account.add(91, "end", 1, ["turn-8", "ok"])
    assert kinds(evidence) == set()


def poked(evidence: Evidence, what: str, message_id: str = "") -> None:
    """Something that was asked for and acknowledged while nothing had begun yet."""
    account = evidence.account
    for number in evidence.messages:
        account.add(-10, "accepted", 1, [f"msg-{number}", "plain-0"])
    account.add(-5, "poke", 1, [9])
    account.add(-4, "poked", 1, [9, what, "plain-0", message_id])


@pytest.mark.parametrize("what", ["stop", "withdraw"])
def test_what_was_ended_and_begins_all_the_same_is_found(what: str) -> None:
    evidence = world()
    poked(evidence, what, "msg-2")
    assert kinds(evidence) == {"unstopped"}


def test_what_was_accepted_after_a_stop_may_begin() -> None:
    evidence = world()
    evidence.account.add(-5, "poke", 1, [9])
    for number in evidence.messages:
        evidence.account.add(-4, "accepted", 1, [f"msg-{number}", "plain-0"])
    evidence.account.add(-3, "poked", 1, [9, "stop", "plain-0", ""])
    assert kinds(evidence) == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [("m2 please", {"unedited"}), ("edit 8 please", {"unedited"}), ("edit 9 please", set()), ("edit 10 please", set())],
)
def test_an_edit_that_was_acknowledged_and_forgotten_is_found(text: str, expected: set[str]) -> None:
    evidence = world()
    poked(evidence, "edit", "msg-2")
    evidence.account.begun = [one._replace(text=text) for one in evidence.account.begun]
    assert kinds(evidence) == expected


@pytest.mark.parametrize(
    ("is_awaited", "notes", "is_wrong"), [(False, 0, True), (False, 1, False), (False, 2, True), (True, 0, False)]
)
def test_a_sub_agent_gives_exactly_one_message_unless_somebody_waits(
    is_awaited: bool, notes: int, is_wrong: bool
) -> None:
    evidence = world()
    evidence.account.add(50, "child", 1, ["kid of turn-1", is_awaited])
    for number in range(notes):
        note = row(90 + number, seq=90 + number)._replace(platform_id=None, body='{"text":"\\"kid of turn-1\\" ended"}')
        evidence.stored.rows[note.id] = note
    assert kinds(evidence) == ({"notes"} if is_wrong else set())


def test_a_message_by_the_clock_that_never_came_is_found() -> None:
    evidence = world()
    poked(evidence, "schedule")
    assert kinds(evidence) == {"notes"}


def lose_job(evidence: Evidence) -> None:
    del evidence.account.jobs_ended[4]


def repeat_write(evidence: Evidence) -> None:
    evidence.account.jobs_begun[4] = [1, 2]


def repeat_in_one_life(evidence: Evidence) -> None:
    evidence.account.jobs_begun[5] = [1, 1]


@pytest.mark.parametrize(
    ("spoil", "kind"),
    [(lose_job, "jobs lost"), (repeat_write, "jobs run twice"), (repeat_in_one_life, "jobs run twice")],
)
def test_jobs_that_are_lost_or_run_twice_are_found(spoil: Callable[[Evidence], None], kind: str) -> None:
    evidence = world()
    spoil(evidence)
    assert kinds(evidence) == {kind}


def test_an_idempotent_job_may_run_again_in_another_life() -> None:
    evidence = world()
    evidence.account.jobs_begun[5] = [1, 2]
    assert kinds(evidence) == set()


def test_the_tally_names_what_must_be_nothing_even_when_it_is_nothing() -> None:
    line = judge(world()).line()
    assert "lost 0, run twice 0, out of order 0, interrupted (reported) 0" in line


def test_tallies_add_up() -> None:
    total = Verdict()
    bad = world()
    bad.answers.refused[3] = "mailbox_full"
    total.add(judge(world()))
    total.add(judge(bad))
    assert not total.is_good
    assert "6 messages accepted" in total.line()
    assert "run twice 1" in total.line()


def test_the_witness_reads_what_was_written_and_skips_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "witness"
    witness = Witness(path, life=3)
    witness.note("begin", "turn-1", "plain-0", [["msg-1", 1]], 0)
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(["end", 3, "turn-1"])[:9])
    witness.note("end", "turn-1", "ok")
    account = read_witness(path)
    assert account.torn == 1
    assert account.turns["turn-1"].how == "ok"
    assert [(one.life, one.number) for one in account.begun] == [(3, 1)]
