"""Who uses a workspace of a store: a row that says so, because two users of one process would run everything twice.

A claim names the epoch of its owner. One of an earlier epoch belongs to a process that is gone, and counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from laneway.errors import StoreInUseError
from laneway.ports import Ids, Store
from laneway.rows import Batch, Owner, StateKey, StateRow

__all__ = ("claim", "give_back", "ids_for", "key_of", "take")

KIND = "claim"


def key_of(user: str, workspace: str) -> StateKey:
    """The claim of one kind of user (`inbox`, `lanes`) to a workspace."""
    return StateKey(KIND, f"{user}:{workspace}")


def claim(store: Store, user: str, workspace: str, rows: Iterable[StateRow]) -> Batch:
    """What makes a workspace ours; refused when `rows` say that another user of this process has it."""
    key, state = key_of(user, workspace), f"epoch {store.epoch}"
    if any((row.kind, row.id) == key and row.state == state for row in rows):
        raise StoreInUseError(
            f"workspace {workspace!r} of this store is in use by other {user} of this process",
            hint="share that one, or give this one a workspace= of its own",
        )
    owner = Owner("default", workspace)
    return Batch(owner, store.epoch, (StateRow(*key, *owner, store.next_seq(), 1, state, "{}"),))


async def take(store: Store, user: str, workspace: str, rows: Iterable[StateRow]) -> None:
    """Make a workspace ours, on disk."""
    await _commit(store, claim(store, user, workspace, rows))


async def give_back(store: Store, user: str, workspace: str) -> None:
    """Let others have it; raises what the store says, if it refuses."""
    owner = Owner("default", workspace)
    await _commit(store, Batch(owner, store.epoch, (), (key_of(user, workspace),)))


def ids_for(ids: Ids, store: Store) -> Ids:
    """New ids for whoever has opened a store: those that are counted must not meet the ids that it has already."""
    for_opening = getattr(ids, "for_opening", None)
    return ids if for_opening is None else cast("Ids", for_opening(store.epoch))


async def _commit(store: Store, batch: Batch) -> None:
    (result,) = await store.commit([batch])
    if result.error is not None:
        raise result.error
