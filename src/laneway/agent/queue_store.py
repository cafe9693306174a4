"""What of a session's lanes outlives the process: submitted payloads that have not ended, and dead letters.

The rows are in `<storage_path>/queue.db`, a file that the sessions of this process share and no other process may have
open. A payload is taken once its row says `queued`. Before a call that changes something begins its row says `running`,
so that after a crash nobody does it again by himself: it becomes a dead letter. A call that has ended has no row.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from laneway.agent.queue_records import DeadCommand
from laneway.errors import ConfigError, FencedError, InvalidJobError, StoreUnavailableError, text_of
from laneway.options import SESSION_LANES
from laneway.records import Effect
from laneway.rows import Batch, Owner, StateKey, StateRow

if TYPE_CHECKING:
    from laneway.ports import Store

__all__ = ("QueueStore", "StoredCommand")

KIND = "queue_command"
FILE = "queue.db"
VERSION = 1
TEXT_MAX = 10_000
BODY_MAX = 16 * 1024 * 1024

_log = logging.getLogger("laneway")


@dataclass(slots=True, kw_only=True)
class StoredCommand:
    """One call as its row has it. `state` is `queued`, `running` or `dead`."""

    id: str
    seq: int
    lane: str
    tool: str
    payload: Any
    effect: Effect
    state: str = "queued"
    attempts: int = 0
    error: str = ""
    failed_at: int = 0
    timeout_ms: int | None = None

    def to_row(self, owner: Owner) -> StateRow:
        """Everything about it at this moment."""
        body = {
            "v": VERSION,
            "lane": self.lane,
            "tool": self.tool,
            "payload": self.payload,
            "effect": self.effect.value,
            "attempts": self.attempts,
            "error": _storable(self.error[:TEXT_MAX]),
            "failed_at": self.failed_at,
            "timeout_ms": self.timeout_ms,
        }
        try:
            text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            size = len(text.encode())
        except (TypeError, ValueError, RecursionError) as error:
            hint = "pass text, numbers, True, None, lists and mappings"
            raise InvalidJobError(f"the payload is not JSON: {text_of(error)}", hint=hint) from None
        if size > BODY_MAX:
            raise InvalidJobError(f"the payload has {size:,} bytes, and at most {BODY_MAX:,} are kept")
        return StateRow(KIND, self.id, *owner, self.seq, 1, self.state, text)

    @classmethod
    def from_row(cls, row: StateRow) -> StoredCommand:
        """What a row says; raises ValueError for one that cannot be read."""
        body = json.loads(row.body)
        if not isinstance(body, dict) or body.get("v") != VERSION:
            raise ValueError("it is not of this version")
        if body.get("lane") not in SESSION_LANES:
            raise ValueError("there is no such lane")
        if row.state not in ("queued", "running", "dead"):
            raise ValueError(f"there is no state {row.state!r}")
        try:
            return cls(
                id=row.id,
                seq=row.seq,
                lane=str(body["lane"]),
                tool=str(body["tool"]),
                payload=body["payload"],
                effect=Effect(body["effect"]),
                state=row.state,
                attempts=int(body["attempts"]),
                error=str(body["error"]),
                failed_at=int(body["failed_at"]),
                timeout_ms=None if body["timeout_ms"] is None else int(body["timeout_ms"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"a field is missing or wrong: {text_of(error)}") from error

    def to_letter(self) -> DeadCommand:
        """A dead one as people see it."""
        return DeadCommand(
            command_id=self.id,
            command_type=self.tool,
            lane=self.lane,
            lane_id=self.lane,
            error=self.error,
            attempts=self.attempts,
            failed_at=self.failed_at,
            payload=self.payload,
        )


_open: set[tuple[str, str]] = set()  # the queues that sessions of this process use: each has one


class QueueStore:
    """The rows of one session."""

    def __init__(self, store: Store, session: str) -> None:
        self._store = store
        self._owner = Owner("default", "queue", session)
        self._place = (os.path.realpath(getattr(store, "path", "") or str(id(store))), session)

    @classmethod
    def at(cls, folder: str, session: str) -> QueueStore:
        """The rows in a folder, which is made if it is not there."""
        from laneway.stores.sqlite import SqliteStore  # sqlite3 is loaded when somebody uses it

        path = os.path.expanduser(folder)
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise StoreUnavailableError(
                f"the folder of the queue cannot be made: {text_of(error)}", hint="choose another storage_path"
            ) from error
        return cls(SqliteStore(os.path.join(path, FILE)), session)

    async def open(self) -> list[StoredCommand]:
        """Open it and read what it holds of this session, oldest first; rows that cannot be read are left alone."""
        if self._place in _open:
            raise ConfigError(
                f"the queue of session {self._owner.session!r} in this storage_path is in use by this process",
                setting="storage_path",
                hint="use that session, close it first, or give this one another session_id",
            )
        _open.add(self._place)
        try:
            await self._store.open()
        except BaseException:
            _open.discard(self._place)
            raise
        try:
            loaded = await self._store.load_session(self._owner)
        except BaseException:
            await self.close()
            raise
        found = []
        for row in loaded.states:
            if row.kind != KIND:
                continue
            try:
                found.append(StoredCommand.from_row(row))
            except ValueError as error:
                _log.warning("row %s of the queue of %s cannot be read: %s", row.id, self._owner.session, error)
        return found

    async def close(self) -> None:
        """Let go of it."""
        _open.discard(self._place)
        await self._store.close()

    def new(self, **facts: Any) -> StoredCommand:
        """A command with an id that no other command of this store ever had."""
        seq = self._store.next_seq()
        return StoredCommand(id=f"command-{self._store.epoch}-{seq}", seq=seq, **facts)

    async def write(self, *commands: StoredCommand) -> None:
        """Make these durable as they are now, all or none; raises if that cannot be done."""
        rows = tuple(command.to_row(self._owner) for command in commands)
        if rows:
            await self._commit(Batch(self._owner, self._store.epoch, rows))

    async def forget(self, *ids: str) -> None:
        """These have ended: they have no row any more."""
        keys = tuple(StateKey(KIND, each) for each in ids)
        if keys:
            await self._commit(Batch(self._owner, self._store.epoch, (), keys))

    async def _commit(self, batch: Batch) -> None:
        [result] = await self._store.commit([batch])
        if result.error is None:
            return
        if isinstance(result.error, StoreUnavailableError | FencedError):
            raise result.error
        raise StoreUnavailableError(f"the queue could not be written: {text_of(result.error)}") from result.error


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
