"""Rows for tests of stores, and how they get there: what the checks of `laneway.testing.stores` are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from laneway.ports import Store
from laneway.rows import Batch, BatchResult, EntryRow, EventRow, MessageRow, Owner, Row, StateKey, StateRow

__all__ = (
    "DEAD",
    "OTHER",
    "OWNER",
    "OpenStore",
    "commit",
    "commit_each",
    "entry_row",
    "event_row",
    "message_row",
    "state_row",
)

OpenStore = Callable[[str], Store]
"""The store of a name, not opened yet: a new one for a new name, the one with its rows for a name used before."""

DEAD: Final = "dead_lettered"
OWNER: Final = Owner("acme", "main", "chat-1")
OTHER: Final = Owner("acme", "main", "chat-2")


def message_row(row_id: str, owner: Owner = OWNER, *, seq: int, **fields: Any) -> MessageRow:
    """A message that waits, unless the fields say otherwise."""
    row = MessageRow(
        id=row_id,
        tenant=owner.tenant,
        workspace=owner.workspace,
        session=owner.session,
        seq=seq,
        place=seq,
        live=1,
        state="queued",
        outcome="",
        turn_id="",
        reason="",
        platform_id=None,
        route="slack",
        arrived_ms=1000,
        ended_ms=0,
        body="{}",
    )
    return row._replace(**fields)


def state_row(kind: str, row_id: str, owner: Owner = OWNER, *, seq: int, **fields: Any) -> StateRow:
    """A live state row, unless the fields say otherwise."""
    return StateRow(kind, row_id, *owner, seq, 1, "running", "{}")._replace(**fields)


def event_row(owner: Owner = OWNER, *, seq: int, **fields: Any) -> EventRow:
    """An event."""
    row = EventRow(
        tenant=owner.tenant,
        workspace=owner.workspace,
        session=owner.session,
        seq=seq,
        at_ms=1000,
        type="message_queued",
        message_id="",
        turn_id="",
        body="{}",
    )
    return row._replace(**fields)


def entry_row(owner: Owner = OWNER, *, seq: int, **fields: Any) -> EntryRow:
    """A line of a transcript."""
    row = EntryRow(
        tenant=owner.tenant,
        workspace=owner.workspace,
        session=owner.session,
        seq=seq,
        at_ms=1000,
        conversation=1,
        role="user",
        message_id="",
        turn_id="",
        text="hello",
        body="{}",
    )
    return row._replace(**fields)


async def commit(store: Store, owner: Owner, *rows: Row, forget: Sequence[StateKey] = ()) -> None:
    """Rows of one owner in one batch, which the store has to take."""
    results = await store.commit([Batch(owner, store.epoch, rows, tuple(forget))])
    assert results == [BatchResult()], results


async def commit_each(store: Store, rows: Sequence[Row]) -> None:
    """Rows of any owners, each in a commit of its own."""
    for row in rows:
        await commit(store, Owner(row.tenant, row.workspace, row.session), row)
