"""Rows of the gateway itself are on disk, or somebody is told that they are not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from laneway.errors import FencedError, StoreUnavailableError
from laneway.gateway.writing import write_row
from laneway.rows import Batch, BatchResult, StateKey, StateRow
from laneway.stores import MemoryStore


class StubbornStore(MemoryStore):
    """A store that keeps nothing, and says why."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        return [BatchResult(error=self._error) for _ in batches]


def row(name: str, seq: int) -> StateRow:
    return StateRow("token", name, "default", "w", "", seq, 1, "valid", "{}")


async def test_a_row_is_on_disk_and_what_it_replaces_is_not() -> None:
    store = MemoryStore()
    await store.open()
    await write_row(store, row("old", store.next_seq()), what="the token")
    await write_row(store, row("new", store.next_seq()), what="the token", forget=[StateKey("token", "old")])
    kept = [await store.history.state("token", name) is not None for name in ("old", "new")]
    await store.close()
    assert kept == [False, True]


async def test_what_a_store_refuses_is_an_error_of_ours_in_any_case() -> None:
    known = StubbornStore(FencedError("somebody else has it"))
    with pytest.raises(FencedError, match="somebody else has it"):
        await write_row(known, row("a", 1), what="the token")
    unknown = StubbornStore(OSError("no space left"))
    with pytest.raises(StoreUnavailableError, match="the token could not be stored: no space left"):
        await write_row(unknown, row("a", 1), what="the token")
