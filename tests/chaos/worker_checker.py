"""Holds what workers wrote down while they worked against the store, the ledger and what the models heard.

A label names one call of one message, wherever and however often it was made. A nonce names one time that it was done.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

__all__ = (
    "Done",
    "Ended",
    "Line",
    "Sent",
    "TaskSeen",
    "WorkerEvidence",
    "WorkerVerdict",
    "judge_workers",
    "verdict_on",
)

WRITE: Final = "write"
FINAL: Final = frozenset(("completed", "failed", "timed_out", "withdrawn", "unknown"))
SUCCEEDED: Final = ("ran", "succeeded")
GIVEN_UP: Final = ("ran", "interrupted")  # a run that was cut off five times is not tried again
HEARD: Final = re.compile(r"^(\w+) \((\w+)\): done (\S+) (\S+)$")
COUNT: Final = re.compile(r"^Done: (\d+) calls?\.$")


class Sent(NamedTuple):
    """A message that was accepted, and the labels of the calls that it asks for."""

    session: str
    message_id: str
    labels: tuple[str, ...]


class Ended(NamedTuple):
    """How a message ended; the answer says what the model heard of each call."""

    disposition: str
    outcome: str
    answer: str = ""


class Line(NamedTuple):
    """What a worker wrote down: `begun` before it did anything, `ended` when it was done."""

    what: str
    task_id: str
    label: str
    effect: str
    attempt: int
    nonce: str


class TaskSeen(NamedTuple):
    """A task in the store, at the end. `nonce` is of the result that counts."""

    task_id: str
    session: str
    key: str
    effect: str
    state: str
    nonce: str = ""


class Done(NamedTuple):
    """What the answer of a run says about a call that worked."""

    label: str
    nonce: str


@dataclass(slots=True)
class WorkerEvidence:
    """What was sent, what was done, and what is told of it."""

    accepted: list[Sent] = field(default_factory=list)
    ends: dict[str, Ended] = field(default_factory=dict)  # by message
    journal: list[Line] = field(default_factory=list)
    tasks: dict[str, TaskSeen] = field(default_factory=dict)
    ledger: dict[str, str] = field(default_factory=dict)  # by key: the state
    again: Counter[str] = field(default_factory=Counter)  # by kind: what was done to whom
    store_problems: tuple[str, ...] = ()


@dataclass(slots=True)
class WorkerVerdict:
    """The tally, and what is wrong, by kind."""

    counts: Counter[str] = field(default_factory=Counter)
    wrong: dict[str, list[str]] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong

    def add(self, other: WorkerVerdict) -> None:
        """Take another one in."""
        self.counts.update(other.counts)
        for kind, places in other.wrong.items():
            self.wrong.setdefault(kind, []).extend(places)

    def line(self) -> str:
        """The tally in one line."""
        counts, bad = self.counts, sum(map(len, self.wrong.values()))
        lost, twice = len(self.wrong.get("lost", ())), len(self.wrong.get("twice", ()))
        return (
            f"{counts['kill worker']} workers and {counts['kill gateway']} gateways killed, "
            f"{counts['stop worker']} and {counts['stop gateway']} asked to stop, "
            f"the network bad {counts['weather']} times; "
            f"{counts['messages']:,} messages ({counts['interrupted']} given up after five kills), "
            f"{counts['submitted']:,} submitted, {counts['completed']:,} completed, {counts['failed']} failed, "
            f"{counts['unknown']} unknown, {counts['again']} done again; "
            f"lost {lost}, duplicated write {twice}, {bad} promises broken"
        )


def verdict_on(found: WorkerEvidence) -> WorkerVerdict:
    """What is to be said about one world."""
    verdict = WorkerVerdict(counts=Counter(found.again))
    for problem in judge_workers(found):
        kind, _, rest = problem.partition(": ")
        verdict.wrong.setdefault(kind, []).append(rest)
    states = Counter(task.state for task in found.tasks.values())
    verdict.counts["messages"] = len(found.accepted)
    verdict.counts["interrupted"] = sum(end.outcome == "interrupted" for end in found.ends.values())
    verdict.counts["submitted"] = len(found.tasks)
    verdict.counts["completed"] = states["completed"]
    verdict.counts["unknown"] = states["unknown"]
    verdict.counts["failed"] = len(found.tasks) - states["completed"] - states["unknown"]
    begun = Counter(line.task_id for line in found.journal if line.what == "begun")
    verdict.counts["again"] = sum(count - 1 for count in begun.values())
    return verdict


def judge_workers(found: WorkerEvidence) -> list[str]:
    """Every broken promise, one line each; its kind stands before the colon."""
    checks = (_unended, _lost, _twice, _results, _heard, _untold)
    return [problem for check in checks for problem in check(found)] + [
        f"store: {each}" for each in found.store_problems
    ]


def _unended(found: WorkerEvidence) -> Iterator[str]:
    for sent in found.accepted:
        end = found.ends.get(sent.message_id)
        if end is None:
            yield f"lost: message {sent.message_id} of {sent.session} was accepted, and nobody knows it"
        elif not end.outcome:
            yield f"lost: message {sent.message_id} of {sent.session} has not ended: {end.disposition}"
        elif (end.disposition, end.outcome) not in (SUCCEEDED, GIVEN_UP):
            yield f"ends: message {sent.message_id} of {sent.session} is {end.disposition}, {end.outcome}"
    for task in found.tasks.values():
        if task.state not in FINAL:
            yield f"lost: {task.effect} task {task.task_id} of {task.session} has not ended: {task.state}"
    for task_id in dict.fromkeys(line.task_id for line in found.journal):
        if task_id not in found.tasks:
            yield f"lost: task {task_id} was begun, and the store does not know it"


def _lost(found: WorkerEvidence) -> Iterator[str]:
    """A call that nobody began must be told: as a task that nobody completed."""
    begun = {line.label for line in found.journal}
    known = {line.task_id for line in found.journal}
    undone: defaultdict[str, list[str]] = defaultdict(list)
    for sent in found.accepted:
        if found.ends.get(sent.message_id, Ended("", ""))[:2] == SUCCEEDED:
            undone[sent.session] += [label for label in sent.labels if label not in begun]
    told = Counter(
        task.session for task in found.tasks.values() if task.state != "completed" and task.task_id not in known
    )
    for session, labels in undone.items():
        if len(labels) > told[session]:
            yield f"lost: {labels} of {session} were never begun, and {told[session]} are told"


def _twice(found: WorkerEvidence) -> Iterator[str]:
    begun = [line for line in found.journal if line.what == "begun"]
    writes = Counter(line.label for line in begun if line.effect == WRITE)
    yield from (f"twice: write {label} was begun {count} times" for label, count in writes.items() if count > 1)
    for label, ids in _ids(begun).items():
        if len(ids) > 1:
            yield f"ids: {label} had the tasks {sorted(ids)}"
    # The start of a read is not on disk: after a restart its number is given again.
    attempts = Counter((line.label, line.attempt) for line in begun if line.effect == "idempotent")
    for (label, attempt), count in attempts.items():
        if count > 1:
            yield f"attempts: attempt {attempt} of {label} was begun {count} times"
    given = Counter(sent.message_id for sent in found.accepted)
    yield from (f"ids: message {each} was given to {count} messages" for each, count in given.items() if count > 1)
    wanted = {label for sent in found.accepted for label in sent.labels}
    for label in dict.fromkeys(line.label for line in begun):
        if label not in wanted:
            yield f"unasked: {label} was begun, and no accepted message asks for it"


def _ids(begun: Iterable[Line]) -> dict[str, set[str]]:
    ids: defaultdict[str, set[str]] = defaultdict(set)
    for line in begun:
        ids[line.label].add(line.task_id)
    return ids


def _results(found: WorkerEvidence) -> Iterator[str]:
    """A result that counts is one that a worker really had."""
    had = {(line.task_id, line.nonce) for line in found.journal if line.what == "ended"}
    for task in found.tasks.values():
        if task.nonce and (task.task_id, task.nonce) not in had:
            yield f"results: task {task.task_id} has the result {task.nonce}, which nobody had"
        if task.state == "completed" and not task.nonce:
            yield f"results: task {task.task_id} is completed and has no result"


def _heard(found: WorkerEvidence) -> Iterator[str]:
    """A model hears of every call once, and of a call that worked the result that counts."""
    task_of = {line.label: line.task_id for line in found.journal}
    for sent in found.accepted:
        end = found.ends.get(sent.message_id)
        if end is None or (end.disposition, end.outcome) != SUCCEEDED:
            continue
        lines = end.answer.splitlines()
        count = COUNT.match(lines[0]) if lines else None
        if count is None or int(count[1]) != len(sent.labels):
            yield f"heard: {sent.message_id} asks for {len(sent.labels)} calls, and the model says {end.answer!r:.80}"
        heard = [Done(match[3], match[4]) for line in lines if (match := HEARD.match(line))]
        if len({each.label for each in heard}) < len(heard):
            yield f"heard: a call of {sent.message_id} was heard of twice: {end.answer!r}"
        for each in heard:
            task = found.tasks.get(task_of.get(each.label, ""))
            if each.label not in sent.labels or task is None or task.nonce != each.nonce:
                yield f"heard: {each.label} as {each.nonce}, and the store has {task.nonce if task else 'no task'}"


def _untold(found: WorkerEvidence) -> Iterator[str]:
    """Of a write that was begun the ledger says what became of it, or that nobody knows."""
    begun = {line.task_id for line in found.journal}
    for task in found.tasks.values():
        state = found.ledger.get(task.key, "nothing")
        if task.effect != WRITE:
            continue
        if task.nonce:
            if state != "done":
                yield f"ledger: write {task.task_id} has a result, and the ledger says {state}"
        elif (task.state == "unknown" or task.task_id in begun) and state != "unknown":
            yield f"ledger: write {task.task_id} is {task.state}, and the ledger says {state}"
