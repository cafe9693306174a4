"""The rows of budgets: what the disk is told of counts, and of budgets that somebody has set."""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import asdict
from typing import Any

from laneway.kernel.budgets import Count, CountKey, Sums
from laneway.kernel.checkpoints import to_json
from laneway.rows import Owner, StateRow
from laneway.spending import Amount, Budget, Period

__all__ = ("COUNT", "RULE", "CountRow", "Cover", "RuleRow", "count_id", "read_count", "read_rule")

COUNT = "budget"
RULE = "budget_rule"
VERSION = 1


class CountRow:
    """A count with its row.

    While `resets` are on their way to the disk, the disk is told what will count then: memory follows when it is there.
    """

    __slots__ = ("before", "count", "covers", "is_unsure", "live", "owner", "resets", "said", "seq", "stored")

    def __init__(self, count: Count, owner: Owner, seq: int) -> None:
        self.count = count
        self.owner = owner
        self.seq = seq
        self.stored = Amount()  # what the disk knows of, at least
        self.covers: list[Cover] = []  # calls that wait for the disk
        self.is_unsure = False  # whether the store has refused a write: nobody knows what it has
        self.said: Budget | None = None  # the budget that the disk was told last
        self.resets = 0
        self.before = Sums()  # what a reset that is on its way will have taken away
        self.live = 1

    def lower(self, granted: Amount | None = None) -> None:
        """Less may be granted from now on than the disk was told, or is being told."""
        granted = self.count.granted if granted is None else granted
        self.stored = least(self.stored, granted)
        for cover in self.covers:
            cover.floor = least(cover.floor, granted)

    @property
    def is_covered(self) -> bool:
        """Whether the disk knows of everything that is spent or reserved."""
        taken = self.count.taken
        return taken.tokens <= self.stored.tokens and taken.nanos <= self.stored.nanos

    @property
    def is_exact(self) -> bool:
        """Whether the disk knows what is taken, and nothing else."""
        count = self.count
        is_known = not self.is_unsure and not self.resets and count.noted == count.spent
        return is_known and self.stored == count.granted == count.taken

    @property
    def row_id(self) -> str:
        """What its row is known by."""
        return count_id(self.owner, self.count.key)

    @property
    def row_key(self) -> Hashable:
        """What its row is known by in its table."""
        return (COUNT, self.row_id)

    def to_row(self) -> StateRow:
        """Everything about it at this moment."""
        count = self.count
        self.said = count.budget
        sums, granted, warned = count.sums, count.granted, count.warned
        if self.resets:
            self.before, sums, granted, warned = sums, Sums(), count.reserved, False
            self.lower(granted)
        body = {
            "v": VERSION,
            "key": count.key,
            "until_ms": count.period.until_ms,
            **sums._asdict(),
            "granted": granted,
            "warned": warned,
            "rule": asdict(count.budget),
        }
        return StateRow(COUNT, self.row_id, *self.owner, self.seq, self.live, "", to_json(body))

    def was_reset(self, *, is_stored: bool) -> None:
        """A reset has come to the disk, or has not."""
        self.resets -= 1
        before, self.before = self.before, Sums()
        if is_stored:
            self.count.begin_anew(before)
            self.lower()


class Cover:
    """A call that waits until the disk knows of what it has reserved. `floor`: what it knows of then, at least."""

    __slots__ = ("floor", "row")

    def __init__(self, row: CountRow) -> None:
        self.row = row
        self.floor = row.count.granted
        row.covers.append(self)

    def landed(self) -> None:
        """The disk has it."""
        stored, floor = self.row.stored, self.floor
        self.row.stored = Amount(max(stored.tokens, floor.tokens), max(stored.nanos, floor.nanos))


class RuleRow:
    """A budget that somebody has set while the server ran, with its row; `budget` None: taken away."""

    __slots__ = ("budget", "key", "owner", "seq")

    def __init__(self, key: str, budget: Budget | None, owner: Owner, seq: int) -> None:
        self.key = key
        self.budget = budget
        self.owner = owner
        self.seq = seq

    @property
    def row_id(self) -> str:
        """What its row is known by."""
        return to_json([self.owner.workspace, self.key])

    @property
    def row_key(self) -> Hashable:
        """What its row is known by in its table."""
        return (RULE, self.row_id)

    def to_row(self) -> StateRow:
        """Everything about it at this moment."""
        rule = None if self.budget is None else asdict(self.budget)
        body = to_json({"v": VERSION, "name": self.key, "rule": rule})
        return StateRow(RULE, self.row_id, *self.owner, self.seq, 1, "set" if rule else "cleared", body)


def read_rule(row: StateRow) -> tuple[str, Budget | None]:
    """The key of a budget that somebody has set, and the budget; None: taken away."""
    body: dict[str, Any] = json.loads(row.body)
    return body["name"], None if body["rule"] is None else Budget(**body["rule"])


def read_count(row: StateRow) -> Count:
    """What a row says of a count."""
    body: dict[str, Any] = json.loads(row.body)
    key = CountKey(*body["key"])
    count = Count(key, Budget(**body["rule"]), Period(key.from_ms, body["until_ms"]), warned=body["warned"])
    for name in ("spent", "granted", "lost", "overrun"):
        setattr(count, name, Amount(*body[name]))
    return count


def count_id(owner: Owner, key: CountKey) -> str:
    """What the row of a count is known by."""
    return to_json([owner.workspace, *key])


def least(one: Amount, other: Amount) -> Amount:
    return Amount(min(one.tokens, other.tokens), min(one.nanos, other.nanos))
