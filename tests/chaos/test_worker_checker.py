"""The checker of the workers' chaos finds every kind of broken promise, and blames nothing that was told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.chaos.worker_checker import Ended, Line, Sent, TaskSeen, WorkerEvidence, judge_workers, verdict_on

EFFECTS = {"a": "write", "b": "read", "c": "idempotent"}
ANSWER = "Done: 3 calls.\nbash (ok): done a na\nread (ok): done b nb\nwait (ok): done c nc"


def clean() -> WorkerEvidence:
    found = WorkerEvidence()
    found.accepted.append(Sent("s", "m1", ("a", "b", "c")))
    found.ends["m1"] = Ended("ran", "succeeded", ANSWER)
    for label, effect in EFFECTS.items():
        found.journal += [Line(what, f"t{label}", label, effect, 1, f"n{label}") for what in ("begun", "ended")]
        found.tasks[f"t{label}"] = TaskSeen(f"t{label}", "s", f"k{label}", effect, "completed", f"n{label}")
    found.ledger = {"ka": "done", "kc": "done"}
    return found


def as_unknown(found: WorkerEvidence) -> None:
    """The worker of the write dies: nobody knows, and that is told."""
    found.journal.remove(Line("ended", "ta", "a", "write", 1, "na"))
    found.tasks["ta"] = TaskSeen("ta", "s", "ka", "write", "unknown")
    found.ledger["ka"] = "unknown"
    found.ends["m1"] = Ended("ran", "succeeded", ANSWER.replace("bash (ok): done a na", "bash (unknown): nobody knows"))


def test_what_holds_is_not_blamed() -> None:
    assert judge_workers(clean()) == []


def test_a_write_that_is_told_to_be_unknown_is_not_blamed() -> None:
    found = clean()
    as_unknown(found)
    assert judge_workers(found) == []
    assert verdict_on(found).counts["unknown"] == 1


def test_a_write_whose_worker_died_before_its_first_line_is_told_and_not_blamed() -> None:
    found = clean()
    as_unknown(found)
    found.journal = [line for line in found.journal if line.label != "a"]
    assert judge_workers(found) == []


def test_a_late_result_that_settles_an_unknown_was_not_heard_and_counts() -> None:
    found = clean()
    found.ends["m1"] = Ended("ran", "succeeded", ANSWER.replace("bash (ok): done a na", "bash (unknown): nobody knows"))
    assert judge_workers(found) == []


def test_a_read_that_was_done_again_by_another_worker_is_not_blamed() -> None:
    found = clean()
    found.journal += [Line("begun", "tb", "b", "read", 1, "x"), Line("begun", "tc", "c", "idempotent", 2, "y")]
    verdict = verdict_on(found)
    assert verdict.is_good
    assert verdict.counts["again"] == 2


def forget_message(found: WorkerEvidence) -> None:
    del found.ends["m1"]


def never_end(found: WorkerEvidence) -> None:
    found.ends["m1"] = Ended("running", "")


def fail_message(found: WorkerEvidence) -> None:
    found.ends["m1"] = Ended("ran", "failed")


def leave_task(found: WorkerEvidence) -> None:
    found.tasks["tb"] = found.tasks["tb"]._replace(state="pending")


def forget_task(found: WorkerEvidence) -> None:
    del found.tasks["tb"]


def never_begin(found: WorkerEvidence) -> None:
    found.journal = [line for line in found.journal if line.label != "b"]


def write_twice(found: WorkerEvidence) -> None:
    found.journal.append(Line("begun", "ta", "a", "write", 2, "other"))


def write_twice_under_two_ids(found: WorkerEvidence) -> None:
    found.journal.append(Line("begun", "tz", "a", "write", 1, "other"))
    found.tasks["tz"] = TaskSeen("tz", "s", "kz", "write", "completed", "other")


def share_attempt(found: WorkerEvidence) -> None:
    found.journal.append(Line("begun", "tc", "c", "idempotent", 1, "other"))


def do_unasked(found: WorkerEvidence) -> None:
    found.journal.append(Line("begun", "ta", "z", "read", 1, "other"))


def merge_messages(found: WorkerEvidence) -> None:
    found.accepted.append(Sent("s", "m1", ()))


def invent_result(found: WorkerEvidence) -> None:
    found.tasks["tb"] = found.tasks["tb"]._replace(nonce="other")


def lose_result(found: WorkerEvidence) -> None:
    found.tasks["tb"] = found.tasks["tb"]._replace(nonce="")


def hear_fewer(found: WorkerEvidence) -> None:
    found.ends["m1"] = Ended("ran", "succeeded", "Done: 2 calls.\nbash (ok): done a na\nread (ok): done b nb")


def hear_twice(found: WorkerEvidence) -> None:
    found.ends["m1"] = Ended("ran", "succeeded", ANSWER.replace("wait (ok): done c nc", "read (ok): done b nb"))


def hear_another(found: WorkerEvidence) -> None:
    found.journal.append(Line("ended", "tb", "b", "read", 1, "late"))
    found.ends["m1"] = Ended("ran", "succeeded", ANSWER.replace("done b nb", "done b late"))


def hide_unknown(found: WorkerEvidence) -> None:
    as_unknown(found)
    found.ledger["ka"] = "intended"


def hide_done(found: WorkerEvidence) -> None:
    found.ledger["ka"] = "unknown"


def spoil_store(found: WorkerEvidence) -> None:
    found.store_problems = ("row 3 is missing from an index",)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (forget_message, "lost: message m1 of s was accepted, and nobody knows it"),
        (never_end, "lost: message m1 of s has not ended"),
        (fail_message, "ends: message m1 of s is ran, failed"),
        (leave_task, "lost: read task tb of s has not ended: pending"),
        (forget_task, "lost: task tb was begun"),
        (never_begin, "lost: ['b'] of s were never begun, and 0 are told"),
        (write_twice, "twice: write a was begun 2 times"),
        (write_twice_under_two_ids, "twice: write a was begun 2 times"),
        (write_twice_under_two_ids, "ids: a had the tasks ['ta', 'tz']"),
        (share_attempt, "attempts: attempt 1 of c was begun 2 times"),
        (do_unasked, "unasked: z was begun"),
        (merge_messages, "ids: message m1 was given to 2 messages"),
        (invent_result, "results: task tb has the result other, which nobody had"),
        (lose_result, "results: task tb is completed and has no result"),
        (hear_fewer, "heard: m1 asks for 3 calls"),
        (hear_twice, "heard: a call of m1 was heard of twice"),
        (hear_another, "heard: b as late, and the store has nb"),
        (hide_unknown, "ledger: write ta is unknown, and the ledger says intended"),
        (hide_done, "ledger: write ta has a result, and the ledger says unknown"),
        (spoil_store, "store: row 3 is missing"),
    ],
)
def test_a_broken_promise_is_found(spoil: Callable[[WorkerEvidence], None], says: str) -> None:
    found = clean()
    spoil(found)
    assert any(problem.startswith(says) for problem in judge_workers(found)), judge_workers(found)


def test_the_tallies_of_worlds_add_up_and_show_what_is_wrong() -> None:
    total = verdict_on(clean())
    other = clean()
    write_twice(other)
    total.add(verdict_on(other))
    assert not total.is_good
    assert total.counts["submitted"] == 6
    assert "6 submitted, 6 completed, 0 failed, 0 unknown, 1 done again; lost 0, duplicated write 1" in total.line()
