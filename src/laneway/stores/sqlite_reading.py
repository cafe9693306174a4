"""An SQLite store as somebody else's: it is only looked at, while its owner may go on writing.

Nothing is locked, nothing is brought up to date, nothing is made. This blocks, so it is for commands.
"""

from __future__ import annotations

import os
import sqlite3
from typing import Any, Self, TypeVar

from laneway.errors import StoreVersionError
from laneway.rows import EntryRow, EventRow, Loaded, MessageRow, Owner, StateRow
from laneway.stores.sqlite_file import check_exists, connect, refused, version_of
from laneway.stores.statements import schema_version, statement

__all__ = ("SqliteReading",)

R = TypeVar("R", MessageRow, StateRow, EventRow, EntryRow)


class SqliteReading:
    """The rows of a store, for people and listings. Open it with `with`."""

    def __init__(self, path: str, *, busy_ms: int) -> None:
        self.path = os.path.abspath(path)
        check_exists(self.path)
        try:
            self._connection = connect(self.path, busy_ms=busy_ms, read_only=True)
        except sqlite3.Error as error:
            raise refused(error, self.path, "be opened") from error
        try:
            self._check_version()
        except sqlite3.Error as error:
            self._connection.close()
            raise refused(error, self.path, "be read") from error
        except BaseException:
            self._connection.close()
            raise

    def _check_version(self) -> None:
        version = version_of(self._connection, self.path)
        if version < schema_version():
            raise StoreVersionError(
                f"the store {self.path} has schema {version}, and {schema_version()} is read here",
                hint="start `laneway serve` on it once: that brings it up to date",
                path=self.path,
                version=version,
                known=schema_version(),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def workspaces(self, tenant: str) -> list[str]:
        """The workspaces in which a tenant has messages."""
        return [str(row[0]) for row in self._ask("workspaces", {"tenant": tenant})]

    def sessions(self, tenant: str, workspace: str, *, after: str = "", limit: int = 200) -> list[str]:
        """Session keys that have messages, in alphabetical order after `after`."""
        facts = {"tenant": tenant, "workspace": workspace, "after": after, "limit": max(limit, 0)}
        return [str(row[0]) for row in self._ask("sessions", facts)]

    def live(self, workspace: str) -> Loaded:
        """All live rows of a workspace."""
        facts = {"workspace": workspace}
        return Loaded(
            self._rows(MessageRow, "live_messages_of_workspace", facts),
            self._rows(StateRow, "live_states_of_workspace", facts),
        )

    def message(self, message_id: str) -> MessageRow | None:
        """One message, waiting or ended."""
        rows = self._rows(MessageRow, "message_by_id", {"id": message_id})
        return rows[0] if rows else None

    def messages(self, owner: Owner, *, state: str = "", after_seq: int = 0, limit: int = 200) -> list[MessageRow]:
        """Messages of a session (of all sessions of the workspace if it is empty), oldest first."""
        name = "messages_of_session" if owner.session else "messages_of_workspace"
        return self._rows(MessageRow, name, _facts(owner, after_seq, limit, state=state))

    def state(self, kind: str, row_id: str) -> StateRow | None:
        """One state row."""
        rows = self._rows(StateRow, "state_by_key", {"kind": kind, "id": row_id})
        return rows[0] if rows else None

    def states(self, owner: Owner, kind: str, *, after_seq: int = 0, limit: int = 200) -> list[StateRow]:
        """State rows of a session (of all sessions of the workspace if it is empty), oldest first."""
        name = "states_of_session" if owner.session else "states_of_workspace"
        return self._rows(StateRow, name, _facts(owner, after_seq, limit, kind=kind))

    def events(self, owner: Owner, *, message_id: str = "", turn_id: str = "", limit: int = 1000) -> list[EventRow]:
        """Events of a session, or of one message or turn of it, oldest first."""
        name = "events_of_message" if message_id else "events_of_turn" if turn_id else "events_of_session"
        return self._rows(EventRow, name, _facts(owner, 0, limit, message_id=message_id, turn_id=turn_id))

    def entries(
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
        rows = self._rows(EntryRow, name, {**_facts(owner, after_seq, limit), "conversation": conversation})
        return rows[::-1] if newest else rows

    def _rows(self, kind: type[R], name: str, facts: dict[str, Any]) -> list[R]:
        return list(map(kind._make, self._ask(name, facts)))

    def _ask(self, name: str, facts: dict[str, Any]) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(statement(name), facts).fetchall()
        except sqlite3.Error as error:
            raise refused(error, self.path, "be read") from error


def _facts(owner: Owner, after_seq: int, limit: int, **others: str) -> dict[str, Any]:
    return {**owner._asdict(), "after_seq": after_seq, "limit": max(limit, 0), **others}
