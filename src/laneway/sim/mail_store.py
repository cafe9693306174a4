"""A store that fails in every way a store can: before it wrote, after it wrote, for one owner only, slowly, for good.

It keeps its rows in a `MemoryDisk`, which outlives it. Each simulated process has a store of its own; when the process
dies its store is cut off, and whatever that process still tries is refused and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from laneway.errors import FencedError, StoreUnavailableError
from laneway.rows import Batch, BatchResult, Loaded, Lookup, MessageRow, Owner
from laneway.sim.mail_world import MailDice
from laneway.stores.memory import MemoryDisk, MemoryHistory, MemoryStore

__all__ = ("DiskFailedError", "SimStore")

Witness = Callable[[Batch], None]


class DiskFailedError(Exception):
    """An error of the store's own kind, which no `LanewayError` wraps."""


class _SimHistory(MemoryHistory):
    """The read side; a question about one message may go unanswered."""

    def __init__(self, store: MemoryStore, check: Callable[[str], None]) -> None:
        super().__init__(store)
        self._check = check

    async def message(self, message_id: str) -> MessageRow | None:
        """One message, waiting or ended."""
        self._check("read_fails")
        return await super().message(message_id)


class SimStore:
    """One process's way to the disk. `witness` sees every batch just before it is written."""

    def __init__(self, disk: MemoryDisk, dice: MailDice, *, slow_ms: int, witness: Witness) -> None:
        self.disk = disk
        self.is_cut = False
        self.commits = 0
        self._store = MemoryStore(disk)
        self._dice = dice
        self._slow_ms = slow_ms
        self._witness = witness
        self._turn = asyncio.Lock()  # commits and the questions after them happen in the order in which they came
        self._history = _SimHistory(self._store, self._trouble)

    @property
    def epoch(self) -> int:
        """The fencing number of this owner."""
        return self._store.epoch

    @property
    def history(self) -> MemoryHistory:
        """The read side."""
        return self._history

    def next_seq(self) -> int:
        """A number higher than all before it."""
        return self._store.next_seq()

    def cut(self) -> None:
        """The process has lost the store: from now on nothing it does changes anything."""
        self.is_cut = True

    async def open(self) -> None:
        """Become the owner."""
        self._check_cut()
        await self._store.open()

    async def load_workspace(self, workspace: str) -> Loaded:
        """All live rows of a workspace."""
        async with self._turn:
            await self._wait()
            self._trouble("load_fails")
            return await self._store.load_workspace(workspace)

    async def load_session(self, owner: Owner) -> Loaded:
        """All live rows of one session."""
        async with self._turn:
            await self._wait()
            self._trouble("load_fails")
            loaded = await self._store.load_session(owner)
        await self._wait()
        self._check_cut()
        return loaded

    async def find(self, lookups: Sequence[Lookup]) -> list[MessageRow | None]:
        """For each, the newest message that fits."""
        async with self._turn:
            await self._wait()
            self._trouble("find_fails")
            found = await self._store.find(lookups)
        await self._wait()
        self._check_cut()
        return found

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Write batches, or not, and say so, or not."""
        self.commits += 1
        async with self._turn:
            await self._wait()
            self._trouble("fail_before")
            results = await self._write(batches)
        await self._wait()
        self._check_cut()
        self._trouble("fail_after")
        if self._dice.happens("own_error"):
            raise DiskFailedError("the disk controller says 0x80")
        return results

    async def _write(self, batches: Sequence[Batch]) -> list[BatchResult]:
        spoilt = self._dice.rng.randrange(len(batches)) if self._dice.happens("fail_one") else None
        results: list[BatchResult] = []
        for number, batch in enumerate(batches):
            if number == spoilt and self._dice.rng.random() < 0.5:
                results.append(BatchResult(_unavailable("fail_one, not written")))
                continue
            self._witness(batch)
            result = (await self._store.commit([batch]))[0]
            results.append(BatchResult(_unavailable("fail_one, written")) if number == spoilt else result)
        return results

    async def erase(self, owner: Owner, *, until_seq: int | None = None, limit: int = 1000) -> int:
        """Take away a slice of rows, or not, and say so, or not."""
        async with self._turn:
            await self._wait()
            self._trouble("fail_before")
            gone = await self._store.erase(owner, until_seq=until_seq, limit=limit)
        await self._wait()
        self._check_cut()
        self._trouble("fail_after")
        return gone

    async def close(self) -> None:
        """Let go of it."""
        await self._store.close()

    async def _wait(self) -> None:
        if self._dice.happens("slow"):
            await asyncio.sleep(self._dice.span(self._slow_ms))
        self._check_cut()

    def _check_cut(self) -> None:
        if self.is_cut:
            raise FencedError("another process owns the store", hint="simulated", epoch=self.epoch, current=-1)

    def _trouble(self, peril: str) -> None:
        self._check_cut()
        if self._dice.happens(peril):
            raise _unavailable(peril)


def _unavailable(what: str, **facts: Any) -> StoreUnavailableError:
    return StoreUnavailableError(f"simulated: {what}", **facts)
