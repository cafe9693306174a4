"""Group commit on an SQLite connection: many batches, one transaction, a result for each.

First everything is written together, table by table. If that fails for something in the rows, it is rolled back and
done again batch by batch, each in a savepoint, so that a bad batch fails alone (and with it what the same owner sent
after it in this group: it stood on what was refused). If it fails for the disk, everything fails and nothing is
written. The next group is tried afresh either way.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Sequence
from operator import itemgetter
from threading import Lock
from typing import Final

from laneway.errors import FencedError, LanewayError, UnstorableError
from laneway.rows import NAMING_KINDS, Batch, BatchResult, EntryRow, EventRow, MessageRow, Owner, StateRow, taken_by
from laneway.stores.sqlite_file import SEQ_BLOCK, get_meta, refused, set_meta
from laneway.stores.statements import statement

__all__ = ("Sequencer", "begin", "roll_back", "write_group")

SEQ_MAX: Final = 2**63 - 1
_DONE: Final = BatchResult()
_OF_THE_DISK: Final = (
    "SQLITE_FULL",
    "SQLITE_IOERR",
    "SQLITE_READONLY",
    "SQLITE_CANTOPEN",
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_CORRUPT",
    "SQLITE_NOTADB",
    "SQLITE_PROTOCOL",
    "SQLITE_PERM",
    "SQLITE_NOLFS",
    "SQLITE_INTERRUPT",
    "SQLITE_ABORT",
)
_MESSAGE_SEQ: Final = itemgetter(MessageRow._fields.index("seq"))
_MESSAGE_PLACE: Final = itemgetter(MessageRow._fields.index("place"))
_STATE_SEQ: Final = itemgetter(StateRow._fields.index("seq"))
_EVENT_SEQ: Final = itemgetter(EventRow._fields.index("seq"))
_ENTRY_SEQ: Final = itemgetter(EntryRow._fields.index("seq"))


class Sequencer:
    """Gives out numbers, to any thread, above all that are in the store."""

    __slots__ = ("_last", "_lock", "noted")

    def __init__(self, last: int, *, noted: int) -> None:
        self._last = last
        self._lock = Lock()
        self.noted = noted
        """On disk it says that no number is higher than this."""

    @property
    def last(self) -> int:
        """The highest number that was given out or seen."""
        return self._last

    def next(self) -> int:
        """The next number."""
        with self._lock:
            self._last = number = self._last + 1
            return number

    def see(self, number: int) -> None:
        """A row has come with a number of its own."""
        if number > self._last:
            with self._lock:
                self._last = max(self._last, number)


class _Load:
    """Rows by table, in the order of their batches."""

    __slots__ = ("entries", "events", "forgotten", "messages", "states")

    def __init__(self) -> None:
        self.messages: list[MessageRow] = []
        self.states: list[StateRow] = []
        self.events: list[EventRow] = []
        self.entries: list[EntryRow] = []
        self.forgotten: dict[tuple[str, str], None] = {}

    def highest(self) -> int:
        """The highest number in it."""
        numbers = (
            (_MESSAGE_SEQ, self.messages),
            (_MESSAGE_PLACE, self.messages),
            (_STATE_SEQ, self.states),
            (_EVENT_SEQ, self.events),
            (_ENTRY_SEQ, self.entries),
        )
        return max([max(map(number_of, rows)) for number_of, rows in numbers if rows], default=0)

    def write(self, connection: sqlite3.Connection) -> None:
        """Rows first, then what is forgotten: as in a batch."""
        if self.messages:
            connection.executemany(statement("put_message"), self.messages)
        if self.states:
            connection.executemany(statement("put_state"), self.states)
            naming = [row._asdict() for row in self.states if row.kind in NAMING_KINDS and '"b":[' in row.body]
            if naming:
                connection.executemany(statement("put_blob_uses"), naming)
        if self.events:
            connection.executemany(statement("put_event"), self.events)
        if self.entries:
            connection.executemany(statement("put_entry"), self.entries)
        if self.forgotten:
            connection.executemany(statement("forget_state"), self.forgotten)


def _loads(batches: Iterable[Batch]) -> list[_Load]:
    """Usually one. A row that comes back after it was forgotten begins another: its order matters."""
    load = _Load()
    loads = [load]
    for batch in batches:
        for row in batch.rows:
            if type(row) is MessageRow:
                load.messages.append(row)
            elif type(row) is EventRow:
                load.events.append(row)
            elif type(row) is StateRow:
                if load.forgotten and row[:2] in load.forgotten:
                    load = _Load()
                    loads.append(load)
                load.states.append(row)
            elif type(row) is EntryRow:
                load.entries.append(row)
            else:
                raise TypeError(f"{type(row).__name__} is no row")
        for key in batch.forget:
            load.forgotten[key.kind, key.id] = None
    return loads


def write_group(
    connection: sqlite3.Connection, path: str, batches: Sequence[Batch], *, epoch: int, sequencer: Sequencer
) -> list[BatchResult]:
    """Write batches in one transaction; a result for each, in their order."""
    mine = [batch for batch in batches if batch.epoch == epoch]
    failed: dict[int, Exception] = {}
    try:
        try:
            if mine:
                _write_together(connection, mine, epoch=epoch, sequencer=sequencer)
        except Exception as error:
            if not _is_of_the_rows(error):
                raise
            roll_back(connection)
            failed = _write_one_by_one(connection, path, mine, epoch=epoch, sequencer=sequencer)
    except LanewayError as error:
        roll_back(connection)
        return [BatchResult(error if batch.epoch == epoch else _fenced(batch.epoch, epoch)) for batch in batches]
    except sqlite3.Error as error:
        roll_back(connection)
        reason = refused(error, path, "write")
        reason.__cause__ = error
        return [BatchResult(reason if batch.epoch == epoch else _fenced(batch.epoch, epoch)) for batch in batches]
    if not failed and len(mine) == len(batches):
        return [_DONE] * len(batches)
    return _in_order(batches, epoch, failed)


def _in_order(batches: Sequence[Batch], epoch: int, failed: dict[int, Exception]) -> list[BatchResult]:
    results: list[BatchResult] = []
    number = 0
    for batch in batches:
        if batch.epoch != epoch:
            results.append(BatchResult(_fenced(batch.epoch, epoch)))
            continue
        results.append(BatchResult(failed[number]) if number in failed else _DONE)
        number += 1
    return results


def roll_back(connection: sqlite3.Connection) -> None:
    """End a transaction that went wrong; SQLite may have ended it by itself."""
    if connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")


def begin(connection: sqlite3.Connection, epoch: int) -> None:
    """Begin a transaction of this owner; raises `FencedError` when there is another one."""
    connection.execute("BEGIN IMMEDIATE")
    current = get_meta(connection, "epoch")
    if current != epoch:
        raise _fenced(epoch, current)


def _write_together(
    connection: sqlite3.Connection, batches: Sequence[Batch], *, epoch: int, sequencer: Sequencer
) -> None:
    loads = _loads(batches)
    highest = max(load.highest() for load in loads)
    begin(connection, epoch)
    for load in loads:
        load.write(connection)
    _commit(connection, highest, sequencer)


def _write_one_by_one(
    connection: sqlite3.Connection, path: str, batches: Sequence[Batch], *, epoch: int, sequencer: Sequencer
) -> dict[int, Exception]:
    failed: dict[int, Exception] = {}
    owners: dict[Owner, Exception] = {}
    highest = 0
    begin(connection, epoch)
    for number, batch in enumerate(batches):
        if batch.owner in owners:
            failed[number] = owners[batch.owner]
            continue
        connection.execute("SAVEPOINT batch")
        try:
            loads = _loads([batch])
            top = max(load.highest() for load in loads)
            for load in loads:
                load.write(connection)
            highest = max(highest, top)
        except Exception as error:
            if not _is_of_the_rows(error):
                raise
            connection.execute("ROLLBACK TO batch")
            reason = _taken(connection, batch) or f"{type(error).__name__}: {error}"
            failed[number] = owners[batch.owner] = _bad_batch(batch, path, error, reason)
        connection.execute("RELEASE batch")
    _commit(connection, highest, sequencer)
    return failed


def _commit(connection: sqlite3.Connection, highest: int, sequencer: Sequencer) -> None:
    noted = sequencer.noted
    if highest > noted:
        noted = min(highest + SEQ_BLOCK, SEQ_MAX)
        set_meta(connection, "seq", noted)
    connection.execute("COMMIT")
    sequencer.noted = noted
    sequencer.see(highest)


def _is_of_the_rows(error: Exception) -> bool:
    """Whether something in the rows is to blame: then others can still be written."""
    if isinstance(error, LanewayError):
        return False
    if isinstance(error, sqlite3.Error):
        return not (getattr(error, "sqlite_errorname", None) or "").startswith(_OF_THE_DISK)
    return True


def _taken(connection: sqlite3.Connection, batch: Batch) -> str:
    """Which id of a batch is somebody else's already; empty if none is."""
    for row in batch.rows:
        old: MessageRow | StateRow | None = None
        with contextlib.suppress(sqlite3.Error, ValueError, OverflowError):  # an id that is no text is nobody's
            if isinstance(row, MessageRow):
                found = connection.execute(statement("message_by_id"), {"id": row.id}).fetchone()
                old = found and MessageRow._make(found)
            elif isinstance(row, StateRow):
                found = connection.execute(statement("state_by_key"), {"kind": row.kind, "id": row.id}).fetchone()
                old = found and StateRow._make(found)
        if old is not None and isinstance(row, MessageRow | StateRow) and (reason := taken_by(old, row)):
            return reason
    return ""


def _bad_batch(batch: Batch, path: str, error: Exception, reason: str) -> UnstorableError:
    refusal = UnstorableError(
        f"the store {path} refused a batch of {batch.owner}: {reason}",
        hint="nothing of it was written; mend its rows and send it again",
        path=path,
        owner=batch.owner,
        reason=reason,
    )
    refusal.__cause__ = error
    return refusal


def _fenced(epoch: int, current: int) -> FencedError:
    return FencedError(
        f"a batch of epoch {epoch} was refused: the store is at epoch {current}",
        hint="somebody has opened the store since; load again",
        epoch=epoch,
        current=current,
    )
