"""The book of workers: who has asked for tasks lately, what they have, and how they do.

It decides nothing about tasks. It bounds what one worker may hold, so that one that claims and never begins takes
little from the others: after some leases in a row that ended before a start it gets one task at a time, and after more
of them it has to wait before it may ask again. Names cost nothing, so workers that have never begun anything are
counted together, by their token: one that comes with a new name each time is bounded like one that does not.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from laneway.errors import RateLimitedError, UsageError, text_of
from laneway.kernel.task_entries import HELD, TaskEntry, Wanted

__all__ = ("WorkerBook", "WorkerRecord")

_log = logging.getLogger("laneway")

HOLD_MAX: Final = 1_000
FIRST_MAX: Final = 100  # for a worker that has never begun anything
QUIET_MS: Final = 60_000
FORGET_MS: Final = 600_000
FORGET_EVERY_MS: Final = 1_000
WORKERS_MAX: Final = 10_000
NAMESAKES_MAX: Final = 100
WARY_AFTER: Final = 3
REFUSE_AFTER: Final = 10
REFUSE_FIRST_MS: Final = 1_000
REFUSE_LAST_MS: Final = 60_000
TEXT_MAX: Final = 200
ASKED_MAX: Final = 16
ASKED_TEXT_MAX: Final = 20_000  # characters of all that one worker asks for
NUMBER_MAX: Final = 10**9
_Name = tuple[str, str | None, str]  # whose token, tenant, name
_Key = tuple[str, str | None, str, str]  # the same, and which instance
ABOUT: Final[dict[str, type]] = {"instance": str, "concurrency": int, "version": str, "host": str, "pid": int}


@dataclass(slots=True, eq=False)
class Standing:
    """What is held against one worker, or against all workers of a token that have never begun anything."""

    in_vain: int = 0  # how many leases in a row ended before a start
    refused_until: int = 0  # monotonic
    struck_at: int = -1  # monotonic: when the last of those leases ended
    held: dict[str, TaskEntry] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True, eq=False)
class WorkerRecord:
    """One worker. Times are of the host: the clock of a worker plays no part."""

    name: str
    who: str = ""  # the token it came with
    tenant: str | None = None  # None: it serves every tenant
    instance: str = ""
    concurrency: int = 0
    version: str = ""
    host: str = ""
    pid: int = 0
    asked: dict[Wanted, None] = field(default_factory=dict)  # what its claims ask for: one for each lane, perhaps
    workspaces: tuple[str, ...] = ()
    first_seen_ms: int = 0  # wall
    last_seen_ms: int = 0  # wall
    seen_at: int = 0  # monotonic
    completed: int = 0
    failed: int = 0
    asked_at: int = 0  # monotonic: when it last asked, or stopped waiting for an answer
    lost: int = 0  # leases that ended because nothing was heard
    lost_at: int = -1  # monotonic: when the last of them did
    unstarted: int = 0  # those of them that ended before a start
    has_begun: bool = False  # anything, ever
    shared: Standing = field(default_factory=Standing)  # of its token
    own: Standing = field(default_factory=Standing)
    waiting: int = 0  # claims that are open
    shares_name: bool = False

    def asks(self, wanted: Wanted) -> None:
        """A claim of it asks for this. What it asked for longest ago is forgotten when there is much of it."""
        if wanted in self.asked:  # a claim as before: most of them are
            return
        self.asked[wanted] = None
        while len(self.asked) > 1 and (len(self.asked) > ASKED_MAX or sum(map(_size, self.asked)) > ASKED_TEXT_MAX):
            del self.asked[next(iter(self.asked))]
        if _size(wanted) > ASKED_TEXT_MAX:  # it is served all the same; the list is not for such
            self.asked = {wanted._replace(lanes=frozenset(), commands=frozenset()): None}

    @property
    def standing(self) -> Standing:
        """What counts for it."""
        return self.own if self.has_begun else self.shared

    @property
    def in_vain(self) -> int:
        """How many leases in a row ended before a start."""
        return self.standing.in_vain

    @property
    def refused_until(self) -> int:
        """When it may ask again, by the clock that never goes back."""
        return self.standing.refused_until

    @property
    def lanes(self) -> list[str]:
        """The lanes it asks for; none means all."""
        return _all_of(each.lanes for each in self.asked)

    @property
    def commands(self) -> list[str]:
        """The tools whose calls it makes; none means all."""
        return _all_of(each.commands for each in self.asked)

    @property
    def labels(self) -> list[str]:
        """The labels it has."""
        return sorted({label for each in self.asked for label in each.labels})

    def lets_go(self, entry: TaskEntry) -> None:
        """A task has ended: what it came to may be large, and is not kept here."""
        self.own.held.pop(entry.task_id, None)
        self.shared.held.pop(entry.task_id, None)

    def holds(self) -> list[TaskEntry]:
        """The tasks it has at this moment."""
        held = self.own.held
        for task_id, entry in list(held.items()):
            if entry.holder is not self or entry.state not in HELD or not entry.published:
                del held[task_id]
        return list(held.values())

    @property
    def room(self) -> int:
        """How many tasks more it may have."""
        most = 1 if self.in_vain >= WARY_AFTER else HOLD_MAX
        held = len(self.holds())
        if self.has_begun:
            return max(0, most - held)
        return max(0, min(FIRST_MAX - held, most - _unbegun(self.shared)))

    def health(self, now: int) -> str:
        """`working`, `waiting` for a task, `idle`, or `quiet`: not heard of for a minute."""
        if self.holds():
            return "quiet" if now - self.seen_at > QUIET_MS else "working"
        if self.waiting:
            return "waiting"
        return "quiet" if now - self.seen_at > QUIET_MS else "idle"


class WorkerBook:
    """The workers that were heard of lately."""

    def __init__(self, now: Callable[[], int], wall: Callable[[], int]) -> None:
        self._now = now
        self._wall = wall
        self._records: dict[_Key, WorkerRecord] = {}
        self._named: dict[_Name, dict[_Key, WorkerRecord]] = {}  # the same, by all but their instances
        self._standings: dict[tuple[str, str | None], Standing] = {}  # by token and tenant
        self._forgot_at = now()
        self._full_until = 0  # monotonic
        self.claimed = 0
        """How many leases were given; the next two are how many of them ended because nothing was heard."""
        self.lost_started = 0
        self.lost_unstarted = 0

    def __len__(self) -> int:
        return len(self._records)

    def meet(self, name: str, about: Mapping[str, Any], *, who: str = "", tenant: str | None = None) -> WorkerRecord:
        """Somebody asks: the record of it."""
        facts = _checked(about)
        key = (who, tenant, name, facts.get("instance", ""))
        record = self._records.get(key) or self._same(key)
        if record is None:
            self._make_room(key)
            shared = self._standings.setdefault((who, tenant), Standing())
            record = WorkerRecord(name=name, who=who, tenant=tenant, first_seen_ms=self._wall(), shared=shared)
            self._add(key, record)
            self._compare(record, key)
        for fact, value in facts.items():
            setattr(record, fact, value)
        self.seen(record)
        return record

    def meet_again(self, name: str, *, who: str, tenant: str | None) -> WorkerRecord:
        """The record of somebody who has a lease: it is heard, listed or not."""
        try:
            return self.meet(name, {}, who=who, tenant=tenant)
        except RateLimitedError:
            return WorkerRecord(name=name, who=who, tenant=tenant, first_seen_ms=self._wall())

    def _same(self, key: _Key) -> WorkerRecord | None:
        """The record of a worker of which one time the instance is known and another time not."""
        if key[3]:  # it was heard of by a task that an earlier process had given to it
            before = (*key[:3], "")
            record = self._records.get(before)
            if record is not None:
                self._drop(before)
                self._add(key, record)
            return record
        return max(self._named.get(key[:3], {}).values(), key=lambda record: record.seen_at, default=None)

    def _add(self, key: _Key, record: WorkerRecord) -> None:
        self._records[key] = self._named.setdefault(key[:3], {})[key] = record

    def _drop(self, key: _Key) -> None:
        del self._records[key]
        named = self._named[key[:3]]
        del named[key]
        if not named:
            del self._named[key[:3]]

    def _compare(self, new: WorkerRecord, key: _Key) -> None:
        """Two workers of one name are told apart by their leases; people should hear of it."""
        for record in self._named[key[:3]].values():
            if record is not new and self._is_at_work(record):
                _log.warning("two workers are called %r: %r and %r", new.name, record.instance, key[3])
                return

    def _is_at_work(self, record: WorkerRecord) -> bool:
        return record.health(self._now()) in ("working", "waiting")

    def check(self, record: WorkerRecord) -> None:
        """Refuse a worker that has taken tasks again and again and never begun."""
        wait_ms = record.refused_until - self._now()
        if wait_ms > 0:
            who = f"worker {record.name!r} has" if record.has_begun else "workers with your token have"
            raise RateLimitedError(
                f"{who} claimed {record.in_vain} tasks in a row and begun none of them",
                retry_after_ms=wait_ms,
                hint="start a task within its lease, or release it",
            )
        if not record.room:
            raise RateLimitedError(
                f"worker {record.name!r} may not have more tasks now: others wait to be begun, or it has too many",
                retry_after_ms=REFUSE_FIRST_MS,
                hint="complete or release what it has",
            )

    def seen(self, record: WorkerRecord) -> None:
        """It was heard of."""
        record.seen_at, record.last_seen_ms = self._now(), self._wall()

    def took(self, record: WorkerRecord, entry: TaskEntry) -> None:
        """It has taken a task."""
        self.has(record, entry)
        self.claimed += 1

    def has(self, record: WorkerRecord, entry: TaskEntry) -> None:
        """It has a task, perhaps since before a restart."""
        record.own.held[entry.task_id] = entry
        if not record.has_begun:
            record.shared.held[entry.task_id] = entry

    def began(self, record: WorkerRecord) -> None:
        """It has begun with one."""
        record.standing.in_vain = 0
        record.has_begun = True

    def ended(self, record: WorkerRecord, *, success: bool) -> None:
        """It has said what became of one."""
        self.began(record)
        if success:
            record.completed += 1
        else:
            record.failed += 1

    def lost(self, record: WorkerRecord, *, had_begun: bool) -> None:
        """A lease of it has ended because nothing was heard."""
        record.lost += 1
        record.lost_at = self._now()
        if had_begun:
            self.lost_started += 1
            return
        self.lost_unstarted += 1
        record.unstarted += 1
        standing = record.standing
        if standing.struck_at == self._now():  # one answer with many leases was lost: that is one loss
            return
        standing.struck_at = self._now()
        standing.in_vain += 1
        if standing.in_vain == WARY_AFTER:
            _log.warning("worker %r claims tasks and does not begin them: it gets one at a time", record.name)
        if standing.in_vain >= REFUSE_AFTER:
            delay = min(REFUSE_LAST_MS, REFUSE_FIRST_MS * 2 ** min(10, standing.in_vain - REFUSE_AFTER))
            standing.refused_until = self._now() + delay

    def records(self) -> list[WorkerRecord]:
        """Everybody, by name."""
        self._forget()
        at_work = Counter(key[:3] for key, record in self._records.items() if self._is_at_work(record))
        for key, record in self._records.items():
            record.shares_name = at_work[key[:3]] > 1 and self._is_at_work(record)  # one that is gone shares nothing
        return sorted(self._records.values(), key=lambda record: (record.name, record.first_seen_ms))

    def _make_room(self, key: _Key) -> None:
        """Somebody new comes. That is cheap, however many have come before: whoever is always another one is not."""
        now = self._now()
        is_full = len(self._records) >= WORKERS_MAX and now >= self._full_until
        if is_full or now - self._forgot_at >= FORGET_EVERY_MS:
            self._forget()
        if len(self._records) >= WORKERS_MAX:
            self._full_until = now + FORGET_EVERY_MS  # all of them are at work: it is not looked through again at once
            raise RateLimitedError(
                f"{WORKERS_MAX:,} workers are known here, and more cannot be",
                retry_after_ms=REFUSE_LAST_MS,
                hint="let one worker do more at once",
            )
        named = self._named.get(key[:3], {})
        if len(named) >= NAMESAKES_MAX:
            for _, other in _idle(named)[: 1 + len(named) - NAMESAKES_MAX]:
                self._drop(other)

    def _forget(self) -> None:
        """Drop who was not heard of for long; if there are too many, those first that were not heard of for longest."""
        now = self._forgot_at = self._now()
        excess = len(self._records) - WORKERS_MAX * 9 // 10 if len(self._records) >= WORKERS_MAX else 0
        for place, (seen_at, key) in enumerate(_idle(self._records)):
            if now - seen_at > FORGET_MS or place < excess:
                self._drop(key)
        known = {key[:2] for key in self._records}
        for account in [each for each in self._standings if each not in known]:
            if self._standings[account].refused_until <= now:
                del self._standings[account]


def _idle(records: Mapping[_Key, WorkerRecord]) -> list[tuple[int, _Key]]:
    """Those who neither wait nor have anything, with when they were heard of; the longest silence first."""
    idle = [(record.seen_at, key) for key, record in records.items() if not record.waiting and not record.holds()]
    return sorted(idle, key=lambda each: each[0])


def _unbegun(standing: Standing) -> int:
    """How many tasks are held by workers of a token that have never begun anything."""
    for task_id, entry in list(standing.held.items()):
        holder = entry.holder
        counts = isinstance(holder, WorkerRecord) and holder.shared is standing and not holder.has_begun
        if not counts or entry.state not in HELD or not entry.published:
            del standing.held[task_id]
    return len(standing.held)


def _size(wanted: Wanted) -> int:
    return sum(len(name) for names in (wanted.lanes, wanted.commands, wanted.labels) for name in names)


def _all_of(named: Iterable[frozenset[str]]) -> list[str]:
    """What is named at all; nothing if somebody names nothing, which means everything."""
    parts = list(named)
    return sorted(frozenset().union(*parts)) if all(parts) else []


def _checked(about: object) -> dict[str, Any]:
    """The facts that a worker tells of itself; those that nobody knows are passed over."""
    if not isinstance(about, Mapping):
        raise UsageError(f"about must be an object, not {about!r:.80}")
    facts: dict[str, Any] = {}
    for name, kind in ABOUT.items():
        value: Any = about.get(name)
        if value is None:
            continue
        if type(value) is not kind or (kind is int and not 0 <= about[name] <= NUMBER_MAX):
            raise UsageError(f"about.{name} should be {'text' if kind is str else 'a whole number'}, not {value!r:.80}")
        facts[name] = text_of(value)[:TEXT_MAX] if kind is str else value
    return facts
