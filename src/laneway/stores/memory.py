"""A store in memory: for scripts, for tests, and as the measure of what a store has to do.

Rows live on a `MemoryDisk`. Two stores on one disk are what two processes on one file are: whoever opens it last has
the higher epoch, and what the other one still wants to write is refused. What has ended is kept up to a bound; what is
live is kept always.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from operator import attrgetter
from threading import Lock
from typing import Any, Final, get_type_hints

from laneway.errors import FencedError, StoreUnavailableError, UnstorableError
from laneway.rows import (
    HISTORY_KINDS,
    NAMING_KINDS,
    Batch,
    BatchResult,
    EntryRow,
    EventRow,
    LastEvent,
    Loaded,
    Lookup,
    MessageRow,
    Owner,
    Row,
    StateKey,
    StateRow,
    Troubles,
    taken_by,
)

__all__ = ("MemoryDisk", "MemoryHistory", "MemoryStore")

KEPT_MAX: Final = 500_000
"""How many ended messages, ended states, events and entries are kept, of each."""

BROKEN: Final = frozenset({"failed", "interrupted", "fenced"})  # states of turns
SETTLED: Final = frozenset({"retried", "purged"})  # what became of dead letters that are none any more

INTEGER_MIN: Final = -(2**63)
INTEGER_MAX: Final = 2**63 - 1

_by_seq: Callable[[MessageRow | StateRow | EventRow | EntryRow], int] = attrgetter("seq")
_by_place: Callable[[MessageRow], tuple[int, int]] = attrgetter("place", "seq")


class _Drawer:
    """The rows of one owner."""

    __slots__ = ("entries", "events", "live_messages", "live_states", "messages", "platform_ids", "states")

    def __init__(self) -> None:
        self.messages: dict[str, MessageRow] = {}
        self.live_messages: dict[str, MessageRow] = {}
        self.states: dict[StateKey, StateRow] = {}
        self.live_states: dict[StateKey, StateRow] = {}
        self.events: dict[int, EventRow] = {}
        self.entries: dict[int, EntryRow] = {}
        self.platform_ids: dict[tuple[str, str], dict[str, None]] = {}

    @property
    def is_empty(self) -> bool:
        return not (self.messages or self.states or self.events or self.entries)


class MemoryDisk:
    """What stays when a store is closed."""

    def __init__(self, *, kept_max: int = KEPT_MAX) -> None:
        self.kept_max = kept_max
        self.epoch = 0
        self.messages: dict[str, MessageRow] = {}
        self.states: dict[StateKey, StateRow] = {}
        self.drawers: dict[Owner, _Drawer] = {}
        self._workspaces: dict[str, dict[Owner, None]] = {}
        self._ended_messages: dict[str, None] = {}
        self._ended_states: dict[StateKey, None] = {}
        self._events: dict[tuple[Owner, int], None] = {}
        self._entries: dict[tuple[Owner, int], None] = {}
        self._last_seq = 0
        self._lock = Lock()

    def next_seq(self) -> int:
        """The next number; callers may be on any thread."""
        with self._lock:
            self._last_seq += 1
            return self._last_seq

    def owners_of(self, workspace: str) -> Iterable[Owner]:
        """Everybody in a workspace who has rows, whatever the tenant."""
        return self._workspaces.get(workspace, ())

    def write(self, batch: Batch) -> None:
        """Take over a batch whose rows have been looked at."""
        for row in batch.rows:
            owner = Owner(row.tenant, row.workspace, row.session)
            match row:
                case MessageRow():
                    self._write_message(owner, row)
                case StateRow():
                    self._write_state(owner, row)
                case EventRow():
                    self._write_event(owner, row)
                case EntryRow():
                    self._drawer(owner).entries[row.seq] = row
                    self._entries[owner, row.seq] = None
            highest = max(row.seq, row.place) if isinstance(row, MessageRow) else row.seq
            if highest > self._last_seq:
                with self._lock:
                    self._last_seq = max(self._last_seq, highest)
        for key in batch.forget:
            self._forget_state(key)
        self._trim()

    def taken(self, row: Row) -> str:
        """Why the id of a row is not its own; empty if it is."""
        old: MessageRow | StateRow | None = None
        if isinstance(row, MessageRow):
            old = self.messages.get(row.id)
        elif isinstance(row, StateRow):
            old = self.states.get(StateKey(row.kind, row.id))
        return "" if old is None or not isinstance(row, MessageRow | StateRow) else taken_by(old, row)

    def erase(self, owner: Owner, until_seq: int | None, limit: int) -> int:
        """Take away a slice of the rows of a session, and the blobs that nobody names any more."""
        drawer = self.drawers.get(owner)
        if drawer is None:
            return 0
        most = INTEGER_MAX if until_seq is None else until_seq
        plan: list[tuple[Callable[..., object], list[tuple[Any, ...]]]] = []
        if until_seq is None:
            plan.append((self._forget_message, [(name,) for name in drawer.live_messages]))
            plan.append((self._forget_state, [(key,) for key in drawer.live_states]))
        ended = [row for row in drawer.messages.values() if not row.live and row.seq <= most]
        over = [row for row in ended if until_seq is None or not self.is_dead(row)]
        plan.append((self._forget_message, [(row.id,) for row in sorted(over, key=_by_seq)]))
        plan.append((self._forget_event, [(owner, seq) for seq in sorted(drawer.events) if seq <= most]))
        plan.append((self._forget_entry, [(owner, seq) for seq in sorted(drawer.entries) if seq <= most]))
        past = [row for row in drawer.states.values() if not row.live and row.seq <= most]
        past = [row for row in past if until_seq is None or row.kind in HISTORY_KINDS]
        plan.append((self._forget_state, [(StateKey(*row[:2]),) for row in sorted(past, key=_by_seq)]))
        named = {name for row in drawer.states.values() for name in _named_in(row)}
        chosen = list(islice(((forget, args) for forget, each in plan for args in each), limit))
        for forget, args in chosen:
            forget(*args)
        self._forget_blobs(owner.tenant, named)
        return len(chosen)

    def is_dead(self, row: MessageRow) -> bool:
        """Whether it is a dead letter that nobody has sent again or forgotten."""
        mark = self.states.get(StateKey("dead_letter", row.id))
        return row.state == "dead_lettered" and (mark is None or mark.state not in SETTLED)

    def _forget_blobs(self, tenant: str, names: set[str]) -> None:
        if names:
            owners = [each for each in self.drawers if each.tenant == tenant]
            kept = {name for each in owners for row in self.drawers[each].states.values() for name in _named_in(row)}
            for name in names - kept:
                self._forget_state(StateKey("blob", name))

    def _forget_event(self, owner: Owner, seq: int) -> None:
        del self._events[owner, seq]
        del self.drawers[owner].events[seq]
        self._drop_if_empty(owner, self.drawers[owner])

    def _forget_entry(self, owner: Owner, seq: int) -> None:
        del self._entries[owner, seq]
        del self.drawers[owner].entries[seq]
        self._drop_if_empty(owner, self.drawers[owner])

    def _drawer(self, owner: Owner) -> _Drawer:
        drawer = self.drawers.get(owner)
        if drawer is None:
            self.drawers[owner] = drawer = _Drawer()
            self._workspaces.setdefault(owner.workspace, {})[owner] = None
        return drawer

    def _write_message(self, owner: Owner, row: MessageRow) -> None:
        old = self.messages.get(row.id)
        if old is not None and (old[1:4], old.platform_id, old.route) != (row[1:4], row.platform_id, row.route):
            self._forget_message(row.id)
        drawer = self._drawer(owner)
        self.messages[row.id] = row
        drawer.messages[row.id] = row
        if row.live:
            drawer.live_messages[row.id] = row
            self._ended_messages.pop(row.id, None)
        else:
            drawer.live_messages.pop(row.id, None)
            self._ended_messages[row.id] = None
        if row.platform_id is not None:
            drawer.platform_ids.setdefault((row.route, row.platform_id), {})[row.id] = None

    def _write_state(self, owner: Owner, row: StateRow) -> None:
        key = StateKey(row.kind, row.id)
        old = self.states.get(key)
        if old is not None and old[2:5] != row[2:5]:
            self._forget_state(key)
        drawer = self._drawer(owner)
        self.states[key] = row
        drawer.states[key] = row
        self._ended_states.pop(key, None)
        if row.live:
            drawer.live_states[key] = row
        else:
            drawer.live_states.pop(key, None)
            self._ended_states[key] = None  # at the end: what is written again is needed again

    def _write_event(self, owner: Owner, row: EventRow) -> None:
        events = self._drawer(owner).events
        if row.seq not in events:  # what has happened never changes
            events[row.seq] = row
            self._events[owner, row.seq] = None

    def _forget_message(self, message_id: str) -> None:
        row = self.messages.pop(message_id)
        self._ended_messages.pop(message_id, None)
        owner = Owner(row.tenant, row.workspace, row.session)
        drawer = self.drawers[owner]
        del drawer.messages[message_id]
        drawer.live_messages.pop(message_id, None)
        if row.platform_id is not None:
            same = drawer.platform_ids[row.route, row.platform_id]
            same.pop(message_id, None)
            if not same:
                del drawer.platform_ids[row.route, row.platform_id]
        self._drop_if_empty(owner, drawer)

    def _forget_state(self, key: StateKey) -> None:
        row = self.states.pop(key, None)
        if row is None:
            return
        self._ended_states.pop(key, None)
        owner = Owner(row.tenant, row.workspace, row.session)
        drawer = self.drawers[owner]
        del drawer.states[key]
        drawer.live_states.pop(key, None)
        self._drop_if_empty(owner, drawer)

    def _drop_if_empty(self, owner: Owner, drawer: _Drawer) -> None:
        if drawer.is_empty:
            self.drawers.pop(owner, None)
            owners = self._workspaces[owner.workspace]
            owners.pop(owner, None)
            if not owners:
                del self._workspaces[owner.workspace]

    def _trim(self) -> None:
        while len(self._ended_messages) > self.kept_max:
            self._forget_message(next(iter(self._ended_messages)))
        while len(self._ended_states) > self.kept_max:
            self._forget_state(next(iter(self._ended_states)))
        while len(self._events) > self.kept_max:
            self._forget_event(*next(iter(self._events)))
        while len(self._entries) > self.kept_max:
            self._forget_entry(*next(iter(self._entries)))


class MemoryHistory:
    """The read side of a memory store."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    @property
    def _disk(self) -> MemoryDisk:
        return self._store.disk

    async def message(self, message_id: str) -> MessageRow | None:
        """One message, waiting or ended."""
        return self._disk.messages.get(message_id)

    async def messages(
        self, owner: Owner, *, state: str = "", after_seq: int = 0, limit: int = 200
    ) -> list[MessageRow]:
        """Messages of a session (of all sessions of the workspace if it is empty), oldest first."""
        rows = [
            row
            for drawer in self._drawers(owner)
            for row in drawer.messages.values()
            if row.seq > after_seq and (not state or row.state == state)
        ]
        return sorted(rows, key=_by_seq)[: max(limit, 0)]

    async def messages_newest(
        self, owner: Owner, *, state: str = "", before_seq: int = 0, limit: int = 200
    ) -> list[MessageRow]:
        """Messages as of `messages`, newest first; `before_seq` 0: from the last one."""
        rows = [
            row
            for drawer in self._drawers(owner)
            for row in drawer.messages.values()
            if (not before_seq or row.seq < before_seq) and state in ("", row.state)
        ]
        return sorted(rows, key=_by_seq, reverse=True)[: max(limit, 0)]

    async def messages_by_id(self, message_ids: Sequence[str]) -> list[MessageRow | None]:
        """One message for each id, in their order; None where there is none."""
        return [await self.message(each) for each in message_ids]

    async def state(self, kind: str, row_id: str) -> StateRow | None:
        """One state row."""
        return self._disk.states.get(StateKey(kind, row_id))

    async def states_by_id(self, kind: str, row_ids: Sequence[str]) -> list[StateRow | None]:
        """One state row for each id, in their order; None where there is none."""
        states = self._disk.states
        return [states.get(StateKey(kind, row_id)) for row_id in row_ids]

    async def states(self, owner: Owner, kind: str, *, after_seq: int = 0, limit: int = 200) -> list[StateRow]:
        """State rows of a session (of all sessions of the workspace if it is empty), oldest first."""
        rows = [
            row
            for drawer in self._drawers(owner)
            for row in drawer.states.values()
            if row.seq > after_seq and row.kind == kind
        ]
        return sorted(rows, key=_by_seq)[: max(limit, 0)]

    async def states_newest(  # noqa: PLR0913 - keyword-only: which rows are wanted
        self,
        owner: Owner,
        kind: str,
        *,
        state: str = "",
        live: bool = False,
        before_seq: int = 0,
        limit: int = 200,
    ) -> list[StateRow]:
        """State rows as of `states`, newest first, of one state if it is given; `before_seq` 0: from the last one.

        `live` True: only what a restart would load, which is found at once, however long the history is.
        """
        rows = [
            row
            for drawer in self._drawers(owner)
            for row in drawer.states.values()
            if row.kind == kind and (not before_seq or row.seq < before_seq) and state in ("", row.state)
            if row.live or not live
        ]
        return sorted(rows, key=_by_seq, reverse=True)[: max(limit, 0)]

    async def events(
        self, owner: Owner, *, message_id: str = "", turn_id: str = "", after_seq: int = 0, limit: int = 1000
    ) -> list[EventRow]:
        """Events of a session, or of one message or turn of it, oldest first."""
        drawer = self._disk.drawers.get(owner)
        rows = [
            row
            for row in (drawer.events.values() if drawer is not None else ())
            if row.seq > after_seq
            and (not message_id or row.message_id == message_id)
            and (not turn_id or row.turn_id == turn_id)
        ]
        return sorted(rows, key=_by_seq)[: max(limit, 0)]

    async def events_newest(self, owner: Owner, *, before_seq: int = 0, limit: int = 1000) -> list[EventRow]:
        """Events of a session, newest first; `before_seq` 0: from the last one."""
        drawer = self._disk.drawers.get(owner)
        found = drawer.events.values() if drawer is not None else ()
        rows = [row for row in found if not before_seq or row.seq < before_seq]
        return sorted(rows, key=_by_seq, reverse=True)[: max(limit, 0)]

    async def events_between(
        self, tenant: str, workspace: str, *, after_seq: int, until_seq: int, limit: int = 1000
    ) -> list[EventRow]:
        """Events of all sessions with numbers above one and up to another, oldest first."""
        rows = [
            row
            for owner, drawer in self._disk.drawers.items()
            if owner.session and (owner.tenant, owner.workspace) == (tenant, workspace)
            for row in drawer.events.values()
            if after_seq < row.seq <= until_seq
        ]
        return sorted(rows, key=_by_seq)[: max(limit, 0)]

    async def last_events(self, tenant: str, workspace: str) -> list[LastEvent]:
        """The newest event of each session, the session that was quiet longest first."""
        drawers = self._disk.drawers
        owners = [each for each in self._disk.owners_of(workspace) if each.tenant == tenant and each.session]
        newest = [max(drawers[each].events.values(), key=_by_seq) for each in owners if drawers[each].events]
        return sorted((LastEvent(row.session, row.seq, row.at_ms) for row in newest), key=lambda last: last.seq)

    async def entries(
        self,
        owner: Owner,
        *,
        after_seq: int = 0,
        limit: int = 200,
        newest: bool = False,
        conversation: int | None = None,
    ) -> list[EntryRow]:
        """The transcript of a session, or one conversation of it, oldest first; `newest`: the last `limit` lines."""
        drawer = self._disk.drawers.get(owner)
        found = [
            row
            for row in (drawer.entries.values() if drawer is not None else ())
            if row.seq > after_seq and conversation in (None, row.conversation)
        ]
        rows = sorted(found, key=_by_seq)
        if limit <= 0:
            return []
        return rows[-limit:] if newest else rows[:limit]

    async def sessions(self, tenant: str, workspace: str, *, after: str = "", limit: int = 200) -> list[str]:
        """Session keys that have messages, in alphabetical order after `after`."""
        drawers = self._disk.drawers
        found = [
            owner.session
            for owner in self._disk.owners_of(workspace)
            if owner.tenant == tenant and owner.session > after and drawers[owner].messages
        ]
        return list(islice(sorted(found), max(limit, 0)))

    async def tenants(self, workspace: str) -> list[str]:
        """Tenants that have messages in a workspace, in alphabetical order."""
        drawers = self._disk.drawers
        return sorted({each.tenant for each in self._disk.owners_of(workspace) if drawers[each].messages})

    async def troubles(self, tenant: str, workspace: str, *, limit: int = 200) -> Troubles:
        """What needs somebody in a workspace, at most so much of each kind."""
        unknown, dead, broken = list[StateRow](), list[MessageRow](), list[StateRow]()
        for drawer in self._drawers(Owner(tenant, workspace)):
            states = drawer.states.values()
            unknown += (row for row in states if row.kind == "intent" and row.state == "unknown" and row.live)
            dead += (row for row in drawer.messages.values() if self._disk.is_dead(row))
            last = max((row for row in states if row.kind == "turn"), key=_by_seq, default=None)
            broken += [last] if last is not None and last.state in BROKEN else []
        unknown.sort(key=_by_seq, reverse=True)
        dead.sort(key=_by_seq, reverse=True)
        broken.sort(key=_by_seq, reverse=True)
        most = max(limit, 0)
        return Troubles(unknown[:most], dead[:most], broken[:most])

    def _drawers(self, owner: Owner) -> list[_Drawer]:
        drawers = self._disk.drawers
        if owner.session:
            return [drawers[owner]] if owner in drawers else []
        return [drawers[each] for each in self._disk.owners_of(owner.workspace) if each.tenant == owner.tenant]


class MemoryStore:
    """Keeps rows as long as its disk lives; a disk of its own unless one is given."""

    def __init__(self, disk: MemoryDisk | None = None) -> None:
        self._disk = disk if disk is not None else MemoryDisk()
        self._history = MemoryHistory(self)
        self._epoch = 0
        self._users = 0

    def __repr__(self) -> str:
        return f"MemoryStore(epoch={self._epoch}, users={self._users})"

    @property
    def epoch(self) -> int:
        """The fencing number of this owner; 0 before it was opened."""
        return self._epoch

    @property
    def history(self) -> MemoryHistory:
        """The read side."""
        return self._history

    @property
    def disk(self) -> MemoryDisk:
        """What its rows are on."""
        self._check_open()
        return self._disk

    def next_seq(self) -> int:
        """A sequence number higher than every number in the store and every one given out before."""
        return self.disk.next_seq()

    async def open(self) -> None:
        """Become the owner, unless another user of this store has it open already."""
        if not self._users:
            self._disk.epoch += 1
            self._epoch = self._disk.epoch
        self._users += 1

    async def load_workspace(self, workspace: str) -> Loaded:
        """All live rows of a workspace."""
        disk = self.disk
        return _loaded([disk.drawers[owner] for owner in disk.owners_of(workspace)])

    async def load_session(self, owner: Owner) -> Loaded:
        """All live rows of one session."""
        drawer = self.disk.drawers.get(owner)
        return _loaded([drawer] if drawer is not None else [])

    async def find(self, lookups: Sequence[Lookup]) -> list[MessageRow | None]:
        """For each, the newest message that fits."""
        self._check_open()
        return [self._find(lookup) for lookup in lookups]

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Make batches durable, in order; a result for each."""
        self._check_open()
        results: list[BatchResult] = []
        failed: dict[Owner, Exception] = {}
        for batch in batches:
            error = self._fence(batch) or failed.get(batch.owner)
            if error is None:
                error = _refusal(batch, self._disk)
                if error is None:
                    self._disk.write(batch)
                else:
                    failed[batch.owner] = error
            results.append(BatchResult(error))
        return results

    async def erase(self, owner: Owner, *, until_seq: int | None = None, limit: int = 1000) -> int:
        """Take away a bounded slice of the rows of a session; how many went."""
        self._check_open()
        if self._epoch != self._disk.epoch:
            raise self._fenced(self._epoch)
        return self._disk.erase(owner, until_seq, max(limit, 1))

    async def close(self) -> None:
        """Let go of it. The rows stay on the disk."""
        if self._users:
            self._users -= 1

    def _check_open(self) -> None:
        if not self._users:
            raise StoreUnavailableError("the memory store is not open", hint="open() it first")

    def _fence(self, batch: Batch) -> FencedError | None:
        return None if batch.epoch == self._epoch == self._disk.epoch else self._fenced(batch.epoch)

    def _fenced(self, epoch: int) -> FencedError:
        current = self._disk.epoch
        return FencedError(
            f"a batch of epoch {epoch} was refused: the store is at epoch {current}",
            hint="somebody has opened the store since; load again",
            epoch=epoch,
            current=current,
        )

    def _find(self, lookup: Lookup) -> MessageRow | None:
        drawer = self._disk.drawers.get(lookup.owner)
        if drawer is None:
            return None
        ids = drawer.platform_ids.get((lookup.route, lookup.platform_id), ())
        rows = [row for row in map(drawer.messages.__getitem__, ids) if row.arrived_ms >= lookup.since_ms]
        return max(rows, key=_by_seq, default=None)


def _named_in(row: StateRow) -> Iterable[str]:
    """The ids of the blobs that a row names; none if it is no row that may."""
    if row.kind not in NAMING_KINDS or '"b":[' not in row.body:
        return ()
    with contextlib.suppress(ValueError, AttributeError):
        return [f"{row.tenant}:{digest}" for digest in json.loads(row.body).get("b", ())]
    return ()


def _loaded(drawers: list[_Drawer]) -> Loaded:
    messages = [row for drawer in drawers for row in drawer.live_messages.values()]
    states = [row for drawer in drawers for row in drawer.live_states.values()]
    return Loaded(sorted(messages, key=_by_place), sorted(states, key=_by_seq))


def _refusal(batch: Batch, disk: MemoryDisk) -> UnstorableError | None:
    """What a file could not keep is refused here too: code that works in memory shall work on disk."""
    for row in batch.rows:
        reason = _flaw(row) or disk.taken(row)
        if reason:
            return UnstorableError(
                f"a row of {batch.owner} was refused: {reason}",
                hint="nothing of its batch was written; mend the row and send it again",
                owner=batch.owner,
                reason=reason,
            )
    return None


class _Shape:
    """Which fields of a kind of row are texts and which are numbers."""

    def __init__(self, row: type[Row]) -> None:
        hints = get_type_hints(row)
        self.numbers = tuple(name for name in row._fields if hints[name] is int)
        self.texts = tuple(name for name in row._fields if hints[name] is not int)
        self._plain_texts = attrgetter(*(name for name in self.texts if name != "platform_id"))
        self._plain_numbers = attrgetter(*self.numbers)

    def is_plain(self, row: Row) -> bool:
        """Whether there is nothing to look at more closely: rows are mostly ASCII and small numbers."""
        try:
            numbers = self._plain_numbers(row)
            return (
                "".join(self._plain_texts(row)).isascii()
                and type(sum(numbers)) is int
                and min(numbers) >= 0
                and max(numbers) <= INTEGER_MAX
            )
        except TypeError:
            return False


_WITH_LIVE: Final = (MessageRow, StateRow)
_SHAPES: Final = {row: _Shape(row) for row in (MessageRow, StateRow, EventRow, EntryRow)}


def _flaw(row: Row) -> str:
    """What is wrong with a row."""
    shape = _SHAPES.get(type(row))
    if shape is None:
        return f"{type(row).__name__} is no row"
    if isinstance(row, _WITH_LIVE) and row.live not in {0, 1}:
        return f"live is {row.live!r}, not 0 or 1"
    if isinstance(row, MessageRow) and row.platform_id is not None:
        reason = _text_flaw("platform_id", row.platform_id)
        if reason:
            return reason
    if shape.is_plain(row):
        return ""
    reasons = [_text_flaw(name, getattr(row, name)) for name in shape.texts if name != "platform_id"]
    reasons += [_number_flaw(name, getattr(row, name)) for name in shape.numbers]
    return next(filter(None, reasons), "")


def _text_flaw(name: str, value: object) -> str:
    if not isinstance(value, str):
        return f"{name} is {type(value).__name__}, not text"
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            return f"{name} has a character that is no text: {error.reason}"
    return ""


def _number_flaw(name: str, value: object) -> str:
    if not isinstance(value, int):
        return f"{name} is {type(value).__name__}, not a whole number"
    return "" if INTEGER_MIN <= value <= INTEGER_MAX else f"{name} is too big a number: {value}"
