"""A row of the gateway itself: written at once, or an error that says what was not kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from laneway.errors import LanewayError, StoreUnavailableError
from laneway.rows import Batch, Owner

if TYPE_CHECKING:
    from laneway.ports import Store
    from laneway.rows import EventRow, StateKey, StateRow

__all__ = ("write_row",)


async def write_row(store: Store, row: EventRow | StateRow, *, what: str, forget: Iterable[StateKey] = ()) -> None:
    """Have a row on disk; raises what the store says, or that `what` could not be stored."""
    owner = Owner(row.tenant, row.workspace, row.session)
    [result] = await store.commit([Batch(owner, store.epoch, (row,), tuple(forget))])
    if isinstance(result.error, LanewayError):
        raise result.error
    if result.error is not None:
        raise StoreUnavailableError(f"{what} could not be stored: {result.error}") from result.error
