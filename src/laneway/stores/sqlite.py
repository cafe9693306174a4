"""A store in an SQLite file: one owner process, one writer thread, readers that never wait for it.

Whoever commits puts batches into the writer's queue. The writer takes everything that waits and makes it one
transaction (`synchronous = FULL`, write-ahead log), so a hundred callers share one wait for the disk. `find` runs on
the writer too and so sees every commit that was asked for before it. Loads and history run on threads of their own,
with connections of their own.

Two things keep a store whole when two processes want it. A lock on `<path>.lock` lets one in and is freed by its
death. The epoch fences: opening counts it up, every transaction checks it, and a batch with another epoch is refused.

Within a process all stores of one file are one: the first `open` opens the file, the last `close` closes it.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeVar

from laneway.errors import LanewayError, StoreUnavailableError, UnknownStoreError
from laneway.records import check_whole
from laneway.rows import (
    Batch,
    BatchResult,
    EntryRow,
    EventRow,
    LastEvent,
    Loaded,
    Lookup,
    MessageRow,
    Owner,
    StateRow,
    Troubles,
)
from laneway.stores.sqlite_file import StoreCheck, backup_file, check_file, connect, refused
from laneway.stores.sqlite_reading import SqliteReading
from laneway.stores.sqlite_threads import Reader
from laneway.stores.sqlite_writer import FILES, OpenFile
from laneway.stores.statements import statement

__all__ = ("BUSY_MS", "SqliteHistory", "SqliteLooking", "SqliteStore")

BUSY_MS: Final = 5000
BUSY_MAX_MS: Final = 600_000
SEQ_MAX: Final = 2**63 - 1
DEAD: Final = "dead_lettered"  # the one state with an index of its own
SETTLED_MAX: Final = 200  # dead letters and broken turns of old that are looked through for those that still matter

R = TypeVar("R", MessageRow, StateRow, EventRow, EntryRow)


class SqliteStore:
    """Keeps rows in the file at `path`, which is made if it is not there; its folder must be.

    `busy_ms` is how long to wait when another program (a shell, a backup) holds a lock on the file. Of several stores
    of one file, the first one to be opened decides.
    """

    def __init__(self, path: str | os.PathLike[str], *, busy_ms: int = BUSY_MS) -> None:
        check_whole(busy_ms, setting="busy_ms", least=0, most=BUSY_MAX_MS)
        self._path = _real(path)
        self._busy_ms = busy_ms
        self._file: OpenFile | None = None
        self._opens = 0
        self._epoch = 0
        self._history = SqliteHistory(self)

    def __repr__(self) -> str:
        return f"SqliteStore({self._path!r}, epoch={self._epoch}, users={self._opens})"

    @property
    def path(self) -> str:
        """The file, without links and dots."""
        return self._path

    @property
    def epoch(self) -> int:
        """The fencing number of this owner; 0 before it was opened."""
        return self._epoch

    @property
    def history(self) -> SqliteHistory:
        """The read side."""
        return self._history

    def next_seq(self) -> int:
        """A sequence number higher than every number in the store and every one given out before. Any thread."""
        return self._open_file().sequencer.next()

    async def open(self) -> None:
        """Become the owner, or share what another user in this process has opened."""
        file = FILES.join(self._path, busy_ms=self._busy_ms)
        try:
            await file.opened.wait()
        except BaseException as error:
            FILES.leave(file)
            if isinstance(error, LanewayError):
                file.thread.join()  # to say why was the last thing it did
            raise
        with FILES.lock:
            self._opens += 1
            self._file, self._epoch = file, file.epoch

    async def load_workspace(self, workspace: str) -> Loaded:
        """All live rows of a workspace."""
        return await self._load("workspace", {"workspace": workspace})

    async def load_session(self, owner: Owner) -> Loaded:
        """All live rows of one session."""
        return await self._load("session", owner._asdict())

    async def find(self, lookups: Sequence[Lookup]) -> list[MessageRow | None]:
        """For each, the newest message that fits; sees every commit that was asked for before."""
        file = self._open_file()
        return await file.find(lookups) if lookups else []

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Make batches durable, in order; a result for each. One bad batch never fails another."""
        file = self._open_file()
        return await file.commit(batches) if batches else []

    async def erase(self, owner: Owner, *, until_seq: int | None = None, limit: int = 1000) -> int:
        """Take away a bounded slice of the rows of a session; how many went."""
        return await self._open_file().erase(owner, until_seq, max(limit, 1))

    async def close(self) -> None:
        """Let go of it; what was asked before is done first. The last user to close really closes the file."""
        with FILES.lock:
            file = self._file
            if file is None:
                return
            self._opens -= 1
            if not self._opens:
                self._file = None
        if FILES.leave(file):
            await file.closed.wait()
            file.thread.join()  # to say so was the last thing it did

    async def backup(self, target: str | os.PathLike[str], *, overwrite: bool = False) -> int:
        """Copy the store as it is at one moment while work goes on; the size of the copy in bytes."""
        return await asyncio.to_thread(
            backup_file, self._path, os.fspath(target), busy_ms=self._busy_ms, overwrite=overwrite
        )

    async def check(self) -> StoreCheck:
        """Read the whole file and say how it is, while work goes on."""
        return await asyncio.to_thread(check_file, self._path, busy_ms=self._busy_ms)

    def _open_file(self) -> OpenFile:
        file = self._file
        if file is None:
            raise StoreUnavailableError(f"the store {self._path} is not open", hint="open() it first", path=self._path)
        if file.is_foreign:
            raise StoreUnavailableError(
                f"the store {self._path} was opened before this process was forked",
                hint="open a store in the process that uses it",
                path=self._path,
            )
        return file

    async def _load(self, scope: str, facts: dict[str, Any]) -> Loaded:
        def work(connection: sqlite3.Connection) -> Loaded:
            connection.execute("BEGIN")  # both tables as they are at one moment
            try:
                messages = _select(connection, MessageRow, f"live_messages_of_{scope}", facts)
                return Loaded(messages, _select(connection, StateRow, f"live_states_of_{scope}", facts))
            finally:
                connection.execute("ROLLBACK")

        file = self._open_file()
        return await _ask(file.loads, file.path, work)


class _Opened(Protocol):
    """What a history reads from."""

    def _open_file(self) -> Any:
        """Where its connection is."""


class SqliteLooking:
    """A store that is only looked at, while its owner may go on writing; nothing is locked. Close it on no loop."""

    def __init__(self, path: str | os.PathLike[str], *, busy_ms: int = BUSY_MS) -> None:
        self.path = _real(path)
        with SqliteReading(self.path, busy_ms=busy_ms):
            pass  # it is there, and of a version that is known
        self._busy_ms = busy_ms
        self.queries = Reader(f"laneway-store-look-{self.path}", self.path, self._connect, sqlite3.Connection.close)
        self.history = SqliteHistory(self)

    def _connect(self) -> sqlite3.Connection:
        connection = connect(self.path, busy_ms=self._busy_ms, read_only=True)
        connection.execute("BEGIN")  # everything as it is at one moment
        return connection

    def _open_file(self) -> SqliteLooking:
        return self

    async def load_session(self, owner: Owner) -> Loaded:
        """All live rows of one session."""

        def work(connection: sqlite3.Connection) -> Loaded:
            messages = _select(connection, MessageRow, "live_messages_of_session", owner._asdict())
            return Loaded(messages, _select(connection, StateRow, "live_states_of_session", owner._asdict()))

        return await _ask(self.queries, self.path, work)

    def close(self) -> None:
        """Let go of it."""
        self.queries.close()


class SqliteHistory:
    """The read side of an SQLite store: it has a thread of its own and never holds up a write."""

    def __init__(self, store: _Opened) -> None:
        self._store = store

    async def message(self, message_id: str) -> MessageRow | None:
        """One message, waiting or ended."""
        rows = await self._rows(MessageRow, "message_by_id", {"id": message_id})
        return rows[0] if rows else None

    async def messages(
        self, owner: Owner, *, state: str = "", after_seq: int = 0, limit: int = 200
    ) -> list[MessageRow]:
        """Messages of a session (of all sessions of the workspace if it is empty), oldest first."""
        return await self._rows(MessageRow, _messages_of(owner, state), _facts(owner, after_seq, limit, state=state))

    async def messages_newest(
        self, owner: Owner, *, state: str = "", before_seq: int = 0, limit: int = 200
    ) -> list[MessageRow]:
        """Messages as of `messages`, newest first; `before_seq` 0: from the last one."""
        facts = {**_facts(owner, 0, limit, state=state), "before_seq": before_seq or SEQ_MAX}
        return await self._rows(MessageRow, f"{_messages_of(owner, state)}_newest", facts)

    async def messages_by_id(self, message_ids: Sequence[str]) -> list[MessageRow | None]:
        """One message for each id, in their order; None where there is none."""
        wanted = list(message_ids)

        def work(connection: sqlite3.Connection) -> list[MessageRow | None]:
            found = (connection.execute(statement("message_by_id"), {"id": each}).fetchone() for each in wanted)
            return [None if row is None else MessageRow._make(row) for row in found]

        file = self._store._open_file()  # noqa: SLF001 - the two sides of one store
        return await _ask(file.queries, file.path, work) if wanted else []

    async def state(self, kind: str, row_id: str) -> StateRow | None:
        """One state row."""
        rows = await self._rows(StateRow, "state_by_key", {"kind": kind, "id": row_id})
        return rows[0] if rows else None

    async def states_by_id(self, kind: str, row_ids: Sequence[str]) -> list[StateRow | None]:
        """One state row for each id, in their order; None where there is none."""
        wanted = [{"kind": kind, "id": row_id} for row_id in row_ids]

        def work(connection: sqlite3.Connection) -> list[StateRow | None]:
            found = (connection.execute(statement("state_by_key"), facts).fetchone() for facts in wanted)
            return [None if row is None else StateRow._make(row) for row in found]

        file = self._store._open_file()  # noqa: SLF001 - the two sides of one store
        return await _ask(file.queries, file.path, work) if wanted else []

    async def states(self, owner: Owner, kind: str, *, after_seq: int = 0, limit: int = 200) -> list[StateRow]:
        """State rows of a session (of all sessions of the workspace if it is empty), oldest first."""
        name = "states_of_session" if owner.session else "states_of_workspace"
        return await self._rows(StateRow, name, _facts(owner, after_seq, limit, kind=kind))

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
        name = "states_of_session_newest" if owner.session else "states_of_workspace_newest"
        more = {"before_seq": before_seq or SEQ_MAX, "least": int(live)}
        return await self._rows(StateRow, name, {**_facts(owner, 0, limit, kind=kind, state=state), **more})

    async def events(
        self, owner: Owner, *, message_id: str = "", turn_id: str = "", after_seq: int = 0, limit: int = 1000
    ) -> list[EventRow]:
        """Events of a session, or of one message or turn of it, oldest first."""
        name = "events_of_message" if message_id else "events_of_turn" if turn_id else "events_of_session"
        facts = _facts(owner, after_seq, limit, message_id=message_id, turn_id=turn_id)
        return await self._rows(EventRow, name, facts)

    async def events_newest(self, owner: Owner, *, before_seq: int = 0, limit: int = 1000) -> list[EventRow]:
        """Events of a session, newest first; `before_seq` 0: from the last one."""
        facts = {**_facts(owner, 0, limit), "before_seq": before_seq or SEQ_MAX}
        return await self._rows(EventRow, "events_newest", facts)

    async def events_between(
        self, tenant: str, workspace: str, *, after_seq: int, until_seq: int, limit: int = 1000
    ) -> list[EventRow]:
        """Events of all sessions with numbers above one and up to another, oldest first."""
        facts = {**_facts(Owner(tenant, workspace), after_seq, limit), "until_seq": until_seq}
        return await self._rows(EventRow, "events_between", facts)

    async def last_events(self, tenant: str, workspace: str) -> list[LastEvent]:
        """The newest event of each session, the session that was quiet longest first."""
        facts = {"tenant": tenant, "workspace": workspace}

        def work(connection: sqlite3.Connection) -> list[LastEvent]:
            return list(map(LastEvent._make, connection.execute(statement("last_events"), facts)))

        file = self._store._open_file()  # noqa: SLF001 - the two sides of one store
        return await _ask(file.queries, file.path, work)

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
        name = "entries_newest" if newest else "entries_oldest"
        rows = await self._rows(EntryRow, name, {**_facts(owner, after_seq, limit), "conversation": conversation})
        return rows[::-1] if newest else rows

    async def sessions(self, tenant: str, workspace: str, *, after: str = "", limit: int = 200) -> list[str]:
        """Session keys that have messages, in alphabetical order after `after`."""
        facts = {"tenant": tenant, "workspace": workspace, "after": after, "limit": max(limit, 0)}

        def work(connection: sqlite3.Connection) -> list[str]:
            return [row[0] for row in connection.execute(statement("sessions"), facts)]

        file = self._store._open_file()  # noqa: SLF001 - the two sides of one store
        return await _ask(file.queries, file.path, work)

    async def workspaces(self) -> list[str]:
        """The workspaces that have messages, whatever the tenant."""

        def work(connection: sqlite3.Connection) -> list[str]:
            return [row[0] for row in connection.execute(statement("all_workspaces"))]

        file = self._store._open_file()  # noqa: SLF001 - the two sides of one store
        return await _ask(file.queries, file.path, work)

    async def tenants(self, workspace: str) -> list[str]:
        """Tenants that have messages in a workspace, in alphabetical order."""

        def work(connection: sqlite3.Connection) -> list[str]:
            return [row[0] for row in connection.execute(statement("tenants"), {"workspace": workspace})]

        file = self._store._open_file()  # noqa: SLF001 - the two sides of one store
        return await _ask(file.queries, file.path, work)

    async def troubles(self, tenant: str, workspace: str, *, limit: int = 200) -> Troubles:
        """What needs somebody in a workspace, at most so much of each kind."""
        most = max(limit, 0)
        facts = {"tenant": tenant, "workspace": workspace, "limit": most, "scan": most + SETTLED_MAX}

        def work(connection: sqlite3.Connection) -> Troubles:
            return Troubles(
                _select(connection, StateRow, "unknown_calls", facts),
                _select(connection, MessageRow, "dead_messages", facts),
                _select(connection, StateRow, "broken_turns", facts),
            )

        file = self._store._open_file()  # noqa: SLF001 - the two sides of one store
        return await _ask(file.queries, file.path, work)

    async def _rows(self, kind: type[R], name: str, facts: dict[str, Any]) -> list[R]:
        file = self._store._open_file()  # noqa: SLF001 - the two sides of one store
        return await _ask(file.queries, file.path, lambda connection: _select(connection, kind, name, facts))


T = TypeVar("T")


async def _ask(reader: Reader[sqlite3.Connection], path: str, work: Callable[[sqlite3.Connection], T]) -> T:
    def translated(connection: sqlite3.Connection) -> T:
        try:
            return work(connection)
        except sqlite3.Error as error:
            raise refused(error, path, "be read") from error

    answer: T = await reader.ask(translated)
    return answer


def _select(connection: sqlite3.Connection, kind: type[R], name: str, facts: dict[str, Any]) -> list[R]:
    return list(map(kind._make, connection.execute(statement(name), facts)))


def _messages_of(owner: Owner, state: str) -> str:
    """Which question finds messages."""
    if owner.session:
        return "messages_of_session"
    return "dead_of_workspace" if state == DEAD else "messages_of_workspace"


def _facts(owner: Owner, after_seq: int, limit: int, **others: str) -> dict[str, Any]:
    return {**owner._asdict(), "after_seq": after_seq, "limit": max(limit, 0), **others}


def _real(path: str | os.PathLike[str]) -> str:
    name = os.fspath(path)
    if not isinstance(name, str) or not name.strip() or name.startswith(":") or "\0" in name:
        raise UnknownStoreError(
            f"{path!r} is no path of a store", hint="name a file; MemoryStore() keeps rows in memory", address=path
        )
    return os.path.realpath(name)
