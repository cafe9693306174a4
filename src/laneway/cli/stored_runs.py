"""The history and the story of a run out of a store that is read without its server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

from laneway.agent.replays import history_of, tell_stored
from laneway.kernel.histories import write_history
from laneway.rows import EntryRow, Owner, StateRow
from laneway.stores.sqlite_reading import SqliteReading

__all__ = ("stored_history", "stored_story")


class _Reading:
    """As much of the read side of a store as a history is made of."""

    def __init__(self, rows: SqliteReading) -> None:
        self._rows = rows

    async def state(self, kind: str, row_id: str) -> StateRow | None:
        return self._rows.state(kind, row_id)

    async def states_by_id(self, kind: str, row_ids: Sequence[str]) -> list[StateRow | None]:
        return [self._rows.state(kind, each) for each in row_ids]

    async def states(self, owner: Owner, kind: str, *, after_seq: int = 0, limit: int = 200) -> list[StateRow]:
        return self._rows.states(owner, kind, after_seq=after_seq, limit=limit)

    async def entries(self, owner: Owner, *, after_seq: int = 0, limit: int = 200) -> list[EntryRow]:
        return self._rows.entries(owner, after_seq=after_seq, limit=limit)


def stored_history(rows: SqliteReading, run: StateRow) -> str:
    """The text of the file of a run."""
    owner = Owner(run.tenant, run.workspace, run.session)
    return write_history(asyncio.run(history_of(cast("Any", _Reading(rows)), owner, run.id)))


def stored_story(rows: SqliteReading, run: StateRow) -> str:
    """A run in words."""
    return asyncio.run(tell_stored(cast("Any", _Reading(rows)), run))
