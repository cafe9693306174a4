"""What model calls have used, from the rounds that the store keeps: by the hour, the session, the model and the run.

A book of a workspace is read once and added up; after that only what is new is read. Numbers of rows are given out
before the rows are on disk, so a row may appear behind one that was read already: what came in the last minutes (the
tail) is read anew each time, and is added to the rest when nothing before it can appear any more. What an earlier
process has left is the past, and is added at once.

A round that a run has taken over from another, or a fork from its run, is in the store twice and counts once.
What a summary of a long conversation took is in no round, and so not in here.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from laneway.agent.subagents import root_of
from laneway.kernel.checkpoints import ROUND
from laneway.ports import Clock, Store
from laneway.rows import Owner, StateRow

__all__ = ("HOUR_MS", "Call", "Key", "RunSum", "Sum", "UsageBook", "UsageBooks", "call_of")

HOUR_MS: Final = 3_600_000
FRESH_MS: Final = 1_000
SETTLED_MS: Final = 120_000
REST: Final = 5
PAGE: Final = 2_000
SLICE: Final = 100
RUNS_MAX: Final = 20_000
BOOKS_MAX: Final = 200


class Call(NamedTuple):
    """One call of a model, as its round tells it."""

    seq: int
    at_ms: int
    session: str
    run_id: str
    model: str
    input: int
    output: int
    cache_read: int
    cache_write: int
    cost: float | None


class Key(NamedTuple):
    """What calls are added up by: the hour they were made in (wall clock, ms), the session, the model."""

    hour_ms: int
    session: str
    model: str


@dataclass(slots=True)
class Sum:
    """What some calls have used together. `cost` is what the `priced` ones of them cost."""

    calls: int = 0
    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost: float = 0.0
    priced: int = 0
    last_ms: int = 0

    @property
    def tokens(self) -> int:
        """In and out."""
        return self.input + self.output

    def add(self, call: Call) -> None:
        """One call more."""
        self.calls += 1
        self.input += call.input
        self.output += call.output
        self.cache_read += call.cache_read
        self.cache_write += call.cache_write
        self.last_ms = max(self.last_ms, call.at_ms)
        if call.cost is not None:
            self.cost += call.cost
            self.priced += 1

    def merge(self, other: Sum) -> None:
        """Those of another sum, too."""
        self.calls += other.calls
        self.input += other.input
        self.output += other.output
        self.cache_read += other.cache_read
        self.cache_write += other.cache_write
        self.cost += other.cost
        self.priced += other.priced
        if other.last_ms > self.last_ms:
            self.last_ms = other.last_ms


@dataclass(slots=True)
class RunSum(Sum):
    """The same of one run, and the most that one call of it has used."""

    session: str = ""
    most_input: int = 0
    most_output: int = 0

    def add(self, call: Call) -> None:
        """One call more."""
        Sum.add(self, call)
        self.session = call.session
        self.most_input = max(self.most_input, call.input)
        self.most_output = max(self.most_output, call.output)

    def merge(self, other: Sum) -> None:
        """Those of another part of the run, too."""
        Sum.merge(self, other)
        if isinstance(other, RunSum):
            self.session = self.session or other.session
            self.most_input = max(self.most_input, other.most_input)
            self.most_output = max(self.most_output, other.most_output)


@dataclass(slots=True)
class _Layer:
    """Calls, added up."""

    hours: dict[Key, Sum] = field(default_factory=dict)
    runs: dict[str, RunSum] = field(default_factory=dict)

    def add(self, call: Call) -> None:
        key = Key(call.at_ms - call.at_ms % HOUR_MS, root_of(call.session), call.model)
        self.hours.setdefault(key, Sum()).add(call)
        self.runs.setdefault(call.run_id, RunSum()).add(call)

    def drop_small_runs(self) -> None:
        """Whoever looks at runs looks at the large ones: the small ones need not be remembered for ever."""
        if len(self.runs) > 2 * RUNS_MAX:
            by_size = sorted(self.runs.items(), key=lambda each: (each[1].cost, each[1].tokens), reverse=True)
            self.runs = dict(by_size[:RUNS_MAX])


class UsageBook:
    """What the sessions of one tenant in one workspace have used."""

    def __init__(self, store: Store, clock: Clock, owner: Owner, past_seq: int = 0) -> None:
        self._store = store
        self._clock = clock
        self._owner = owner
        self._past_seq = past_seq
        self._lock = asyncio.Lock()
        self._fresh_until: int | None = None
        self._settled = _Layer()
        self._settled_seq = 0
        self._tail = _Layer()
        self._marks: deque[tuple[int, int]] = deque()  # when it was read, and up to where

    async def refresh(self) -> None:
        """Read what is new; those who ask at the same time, or soon after, are served by one look."""
        async with self._lock:
            began = self._clock.monotonic_ms()
            if self._fresh_until is not None and began < self._fresh_until:
                return
            horizon = max(self._settled_seq, self._past_seq)
            while self._marks and began - self._marks[0][0] >= SETTLED_MS:
                horizon = max(horizon, self._marks.popleft()[1])
            self._marks.append((began, await self._read(horizon)))
            ended = self._clock.monotonic_ms()
            self._fresh_until = ended + max(FRESH_MS, REST * (ended - began))  # a long look is not made all the time

    async def _read(self, horizon: int) -> int:
        """Take in what is new; up to a number it is settled, and so is never read again. Returns the last number."""
        tail, seq = _Layer(), self._settled_seq
        while True:
            rows = await self._store.history.states(self._owner, ROUND, after_seq=seq, limit=PAGE)
            for number, row in enumerate(rows, 1):
                call = call_of(row)
                if call is not None:
                    (self._settled if row.seq <= horizon else tail).add(call)
                if row.seq <= horizon:
                    self._settled_seq = row.seq  # each on its own: a store that fails in between is read on from here
                if number % SLICE == 0:
                    await asyncio.sleep(0)  # others have their turn: a long history is many rows
            seq = rows[-1].seq if rows else seq
            if len(rows) < PAGE:
                break
        self._settled.drop_small_runs()
        self._tail = tail
        return seq

    def hours(self, from_ms: int = 0, to_ms: int = 1 << 62) -> Iterator[tuple[Key, Sum]]:
        """The sums of the hours that begin from one moment on and before another; a key may come twice."""
        for layer in (self._settled, self._tail):
            for key, found in layer.hours.items():
                if from_ms <= key.hour_ms < to_ms:
                    yield key, found

    def runs(self, from_ms: int = 0, to_ms: int = 1 << 62) -> Iterator[tuple[str, RunSum]]:
        """The runs whose last call was in that time, whole."""
        settled, tail = self._settled.runs, self._tail.runs
        for run_id, part in settled.items():
            whole = part
            if run_id in tail:
                whole = RunSum()
                whole.merge(part)
                whole.merge(tail[run_id])
            if from_ms <= whole.last_ms < to_ms:
                yield run_id, whole
        for run_id, part in tail.items():
            if run_id not in settled and from_ms <= part.last_ms < to_ms:
                yield run_id, part


class UsageBooks:
    """The books of all tenants and workspaces; those that were not asked for longest are forgotten."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.past_seq = 0  # what has no higher number is from earlier processes: nothing can appear among it
        self._books: OrderedDict[tuple[str, str], UsageBook] = OrderedDict()

    async def of(self, tenant: str, workspaces: Iterable[str]) -> dict[str, UsageBook]:
        """The books of a tenant, as new as they have to be."""
        found = {name: self._book(tenant, name) for name in workspaces}
        for book in found.values():
            await book.refresh()
        return found

    def _book(self, tenant: str, workspace: str) -> UsageBook:
        key = (tenant, workspace)
        if key not in self._books:
            self._books[key] = UsageBook(self._store, self._clock, Owner(tenant, workspace), self.past_seq)
            if len(self._books) > BOOKS_MAX:
                self._books.popitem(last=False)
        self._books.move_to_end(key)
        return self._books[key]


def call_of(row: StateRow) -> Call | None:
    """The call of a round; None if it never came to one, if it was that of another round, or if its row is damaged."""
    try:
        body = json.loads(row.body)
        if body.get("y"):
            return None  # the run that has asked for it has a row of its own
        answer = body["a"]
        counts = answer.get("u") or (0, 0, 0, 0, None)
        tokens_in, tokens_out, read, written = (int(each) for each in counts[:4])
        cost = None if counts[4] is None else float(counts[4])
        at_ms, model = int(body.get("t", 0)), str(answer.get("m", ""))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return None
    return Call(
        seq=row.seq,
        at_ms=at_ms,
        session=row.session,
        run_id=row.id.rpartition("/")[0],
        model=model,
        input=tokens_in,
        output=tokens_out,
        cache_read=read,
        cache_write=written,
        cost=cost,
    )
