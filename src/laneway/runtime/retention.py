"""How old history goes: up to a boundary in each session, oldest first, in slices that let commits have their turn.

The boundary follows from age and count, whichever takes more. It is then held back by what is still needed: everything
from the beginning of the oldest run that is live, has a call of which nobody knows the end, waits for an answer, or
began over a dead letter that nobody has settled; everything that the model still hears; and whatever is so young that
a platform might send it again.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from laneway.checked import COUNT_MAX
from laneway.records import DURATION_MAX_MS, check_whole
from laneway.rows import HISTORY_KINDS, EntryRow, EventRow, MessageRow, Owner, StateRow
from laneway.runtime.erasing import Readable

if TYPE_CHECKING:
    from laneway.ports import History

__all__ = (
    "SPARED_MS",
    "HistoryLimits",
    "Prunable",
    "Pruned",
    "boundary",
    "foresee",
    "foresee_workspace",
    "prune",
    "prune_workspace",
)

PAGE: Final = 1_000
SLICE: Final = 200
DEAD: Final = "dead_lettered"
SETTLED: Final = frozenset({"retried", "purged"})
SPARED_MS: Final = 86_400_000
NONE: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryLimits:
    """How much of its history a session keeps on disk; None: all of it.

    `max_age_ms` by age, `max_runs` by the number of runs. Nothing younger than `spared_ms` goes.
    """

    max_age_ms: int | None = None
    max_runs: int | None = None
    spared_ms: int = SPARED_MS

    def __post_init__(self) -> None:
        if self.max_age_ms is not None:
            check_whole(self.max_age_ms, setting="max_age_ms", least=0, most=DURATION_MAX_MS)
        if self.max_runs is not None:
            check_whole(self.max_runs, setting="max_runs", least=0, most=COUNT_MAX)
        check_whole(self.spared_ms, setting="spared_ms", least=0, most=DURATION_MAX_MS)

    @property
    def is_empty(self) -> bool:
        """Whether everything is kept."""
        return self.max_age_ms is None and self.max_runs is None


@dataclass(slots=True)
class Pruned:
    """What pruning has done, or would do."""

    sessions: int = 0
    rows: int = 0


class Prunable(Readable, Protocol):
    """A store as far as a prune needs one."""

    async def erase(self, owner: Owner, *, until_seq: int | None = None, limit: int = 1000) -> int:
        """Take away a bounded slice of the rows of a session; how many went. 0: no more."""


async def prune_workspace(store: Prunable, workspace: str, limits: HistoryLimits, *, now_ms: int) -> Pruned:
    """Prune every session of a workspace. Files that are named no more stay until `artifacts.sweep_all`."""
    return await _in_each(store, workspace, limits, lambda owner: prune(store, owner, limits, now_ms=now_ms))


async def foresee_workspace(store: Readable, workspace: str, limits: HistoryLimits, *, now_ms: int) -> Pruned:
    """What `prune_workspace` would do; nothing is taken away."""
    return await _in_each(store, workspace, limits, lambda owner: foresee(store, owner, limits, now_ms=now_ms))


async def _in_each(
    store: Readable, workspace: str, limits: HistoryLimits, rows_of: Callable[[Owner], Awaitable[int]]
) -> Pruned:
    found = Pruned()
    if not limits.is_empty:
        async for owner in _owners(store.history, workspace):
            rows = await rows_of(owner)
            found.rows += rows
            found.sessions += bool(rows)
    return found


async def prune(store: Prunable, owner: Owner, limits: HistoryLimits, *, now_ms: int) -> int:
    """Take away what a session need not keep; how many rows went."""
    until = NONE if limits.is_empty else await boundary(store, owner, limits, now_ms=now_ms)
    gone = 0
    if until > 0:
        while slice_ := await store.erase(owner, until_seq=until, limit=SLICE):
            gone += slice_
    return gone


async def foresee(store: Readable, owner: Owner, limits: HistoryLimits, *, now_ms: int) -> int:
    """How many rows `prune` would take away from a session."""
    until = NONE if limits.is_empty else await boundary(store, owner, limits, now_ms=now_ms)
    if until <= 0:
        return 0
    history = store.history
    kept = [row for row in await _open_letters(history, owner) if row.seq <= until]
    rows = await _count(_messages(history, owner), until) - len(kept)
    rows += await _count(_events(history, owner), until)
    rows += await _count(_entries(history, owner), until)
    for kind in HISTORY_KINDS:
        rows += await _count(_states(history, owner, kind), until)
    return rows


async def _count(rows: AsyncIterator[MessageRow | StateRow | EventRow | EntryRow], until: int) -> int:
    """How many rows there are up to a number that are over."""
    count = 0
    async for row in rows:
        if row.seq > until:
            break
        count += isinstance(row, EventRow | EntryRow) or not row.live
    return count


async def boundary(store: Readable, owner: Owner, limits: HistoryLimits, *, now_ms: int) -> int:
    """Up to which number the rows of a session may go; not above 0: none."""
    history = store.history
    wanted = NONE
    if limits.max_age_ms is not None:
        wanted = await _older_than(history, owner, now_ms - limits.max_age_ms)
    if limits.max_runs is not None:
        wanted = max(wanted, await _beyond(history, owner, limits.max_runs))
    if wanted <= 0:
        return NONE
    wanted = min(wanted, await _older_than(history, owner, now_ms - limits.spared_ms))
    if wanted <= 0:
        return NONE
    runs = await _Runs.read(history, owner)
    needed = [row.seq for row in await _needed(store, owner)]
    if (heard := await _heard(history, owner)) is not None:
        needed.append(heard)
    for seq in needed:
        wanted = min(wanted, runs.beginning_of(seq) - 1)
    return runs.before_cut(wanted)


class _Runs:
    """From where to where each run of a session goes: from the oldest message that it is over to its last row."""

    def __init__(self) -> None:
        self.spans: dict[int, list[int]] = {}  # by the number of the run's own row

    @classmethod
    async def read(cls, history: History, owner: Owner) -> _Runs:
        runs = cls()
        numbers = {row.id: row.seq async for row in _states(history, owner, "turn")}
        runs.spans = {seq: [seq, seq] for seq in numbers.values()}
        async for message in _messages(history, owner):
            runs._note(numbers.get(message.turn_id), message.seq)
        async for event in _events(history, owner):
            runs._note(numbers.get(event.turn_id), event.seq)
        for kind in ("round", "record"):
            async for row in _states(history, owner, kind):
                runs._note(numbers.get(row.id.rpartition("/")[0]), row.seq)
        return runs

    def _note(self, run: int | None, seq: int) -> None:
        if run is not None:
            span = self.spans[run]
            span[:] = min(span[0], seq), max(span[1], seq)

    def beginning_of(self, seq: int) -> int:
        """Where the run begins that a row with this number belongs to, or may belong to."""
        before = [number for number in self.spans if number <= seq]
        return min(seq, self.spans[max(before)][0]) if before else seq

    def before_cut(self, until: int) -> int:
        """No higher than this, so that no run is cut. The newest one may still write: it stays."""
        newest = max(self.spans, default=None)
        if newest is not None:
            until = min(until, self.spans[newest][0] - 1)
        for first, last in sorted(self.spans.values(), key=lambda span: -span[1]):
            if last > until:
                until = min(until, first - 1)
        return until


async def _needed(store: Readable, owner: Owner) -> list[MessageRow | StateRow]:
    """What must stay, whatever its age."""
    loaded = await store.load_session(owner)
    kinds = frozenset(HISTORY_KINDS)
    letters = await _open_letters(store.history, owner)
    return [*loaded.messages, *(row for row in loaded.states if row.kind in kinds), *letters]


async def _open_letters(history: History, owner: Owner) -> list[MessageRow]:
    """The dead letters that nobody has settled."""
    dead = [row async for row in _messages(history, owner, state=DEAD)]
    marks = await history.states_by_id("dead_letter", [row.id for row in dead]) if dead else []
    return [row for row, mark in zip(dead, marks, strict=True) if mark is None or mark.state not in SETTLED]


async def _heard(history: History, owner: Owner) -> int | None:
    """The number of the first row that the model still hears of, a round or a summary; None: there is none."""
    newest = await history.states_newest(owner, "round", limit=1)
    if not newest:
        return None
    conversation = _of(newest[0], "c")
    after = before = 0
    first = None
    for row in await history.states_newest(owner, "compaction", limit=1):
        if _of(row, "c") == conversation:
            after = json.loads(row.body)["n"][0]
            first = row.seq
    while rows := await history.states_newest(owner, "round", before_seq=before, limit=PAGE):
        for row in rows:
            if row.seq <= after:
                return first
            if _of(row, "c") == conversation:
                first = row.seq if first is None else min(first, row.seq)
        before = rows[-1].seq
    return first


def _of(row: StateRow, name: str) -> int:
    value = json.loads(row.body).get(name, 0)
    return value if isinstance(value, int) else 0


async def _older_than(history: History, owner: Owner, at_ms: int) -> int:
    """The number of the last event before which everything is older than a moment."""
    last = NONE
    async for event in _events(history, owner):
        if event.at_ms > at_ms:
            break
        last = event.seq
    return last


async def _beyond(history: History, owner: Owner, most: int) -> int:
    """The number before the oldest run that stays; the newest one always does."""
    seen, before, most = 0, 0, max(most, 1)
    while rows := await history.states_newest(owner, "turn", before_seq=before, limit=min(most + 1 - seen, PAGE)):
        seen += len(rows)
        if seen > most:
            return rows[-2].seq - 1 if len(rows) > 1 else before - 1
        before = rows[-1].seq
    return NONE


async def _owners(history: History, workspace: str) -> AsyncIterator[Owner]:
    for tenant in await history.tenants(workspace):
        after = ""
        while keys := await history.sessions(tenant, workspace, after=after, limit=PAGE):
            for key in keys:
                yield Owner(tenant, workspace, key)
            after = keys[-1]


async def _states(history: History, owner: Owner, kind: str) -> AsyncIterator[StateRow]:
    after = 0
    while rows := await history.states(owner, kind, after_seq=after, limit=PAGE):
        for row in rows:
            yield row
        after = rows[-1].seq


async def _messages(history: History, owner: Owner, *, state: str = "") -> AsyncIterator[MessageRow]:
    after = 0
    while rows := await history.messages(owner, state=state, after_seq=after, limit=PAGE):
        for row in rows:
            yield row
        after = rows[-1].seq


async def _entries(history: History, owner: Owner) -> AsyncIterator[EntryRow]:
    after = 0
    while rows := await history.entries(owner, after_seq=after, limit=PAGE):
        for row in rows:
            yield row
        after = rows[-1].seq


async def _events(history: History, owner: Owner) -> AsyncIterator[EventRow]:
    after = 0
    while rows := await history.events(owner, after_seq=after, limit=PAGE if after else 1):  # most have nothing old
        for row in rows:
            yield row
        after = rows[-1].seq
