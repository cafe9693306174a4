"""A store that fails on purpose, for tests and the simulator: before, after, alone, slowly."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from laneway.errors import StoreUnavailableError
from laneway.ports import History, Random, Store
from laneway.rows import Batch, BatchResult, Loaded, Lookup, MessageRow, Owner

__all__ = ("FaultyStore",)

When = Literal["before", "after"]
Call = Literal["open", "load", "find", "commit", "erase"]


@dataclass(slots=True)
class _Order:
    """A fault that was asked for."""

    call: Call
    when: When
    times: int
    owner: Owner | None
    error: Exception | None


class FaultyStore:
    """A store that fails as told: by chance, or the next time.

    `fail_before`: the chance that a call fails and nothing was done. `fail_after`: that a commit is done and its answer
    lost, so that it looks as if it had failed. `fail_one`: that one batch of a commit is refused alone. `slow`: that a
    call takes up to `delay_ms` longer (a few rounds of the loop if that is 0). Calls keep their order however slow they
    are.
    """

    def __init__(self, inner: Store, random: Random | None = None) -> None:
        self.inner = inner
        self.fail_before = 0.0
        self.fail_after = 0.0
        self.fail_one = 0.0
        self.slow = 0.0
        self.delay_ms = 0
        self.faults = 0
        """How many faults there have been."""
        self.commits = 0
        """How many commits were asked for."""
        self._random = random
        self._orders: list[_Order] = []
        self._turn = asyncio.Lock()

    @property
    def epoch(self) -> int:
        """The fencing number of this owner."""
        return self.inner.epoch

    @property
    def history(self) -> History:
        """The read side; it never fails by itself."""
        return self.inner.history

    def next_seq(self) -> int:
        """A sequence number higher than every other."""
        return self.inner.next_seq()

    def fail_next(
        self,
        when: When = "before",
        *,
        call: Call = "commit",
        times: int = 1,
        owner: Owner | None = None,
        error: Exception | None = None,
    ) -> None:
        """Let the next calls of a kind fail (before or after they were done); with an owner, only its batches."""
        self._orders.append(_Order(call, when, times, owner, error))

    def heal(self) -> None:
        """No more faults."""
        self.fail_before = self.fail_after = self.fail_one = self.slow = 0.0
        self._orders.clear()

    async def open(self) -> None:
        """Become the owner."""
        await self._pass("open")
        await self.inner.open()

    async def load_workspace(self, workspace: str) -> Loaded:
        """All live rows of a workspace."""
        async with self._turn:
            await self._pass("load")
            return await self.inner.load_workspace(workspace)

    async def load_session(self, owner: Owner) -> Loaded:
        """All live rows of one session."""
        async with self._turn:
            await self._pass("load")
            return await self.inner.load_session(owner)

    async def find(self, lookups: Sequence[Lookup]) -> list[MessageRow | None]:
        """For each, the newest message that fits."""
        async with self._turn:
            await self._pass("find")
            return await self.inner.find(lookups)

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Make batches durable, or not, or do it and deny it."""
        async with self._turn:
            self.commits += 1
            await self._dawdle()
            order = self._next_order("commit", {batch.owner for batch in batches})
            if order is None and self._draw() < self.fail_before:
                order = _Order("commit", "before", 1, None, None)
            elif order is None and self._draw() < self.fail_after:
                order = _Order("commit", "after", 1, None, None)
            elif order is None and batches and self._draw() < self.fail_one:
                unlucky = batches[int(self._draw() * len(batches))].owner
                order = _Order("commit", "before", 1, unlucky, None)
            results = await self._commit(batches, order)
            await self._dawdle()
            return results

    async def erase(self, owner: Owner, *, until_seq: int | None = None, limit: int = 1000) -> int:
        """Take away a slice, or not."""
        async with self._turn:
            await self._pass("erase")
            return await self.inner.erase(owner, until_seq=until_seq, limit=limit)

    async def close(self) -> None:
        """Let go of it."""
        await self.inner.close()

    async def _commit(self, batches: Sequence[Batch], order: _Order | None) -> list[BatchResult]:
        if order is None:
            return await self.inner.commit(batches)
        self.faults += 1
        failure = BatchResult(_failure(order))
        hit = [order.owner is None or batch.owner == order.owner for batch in batches]
        sent = (
            batches
            if order.when == "after"
            else [batch for batch, fails in zip(batches, hit, strict=True) if not fails]
        )
        answers = iter(await self.inner.commit(sent))
        results: list[BatchResult] = []
        for fails in hit:
            answer = BatchResult() if fails and order.when == "before" else next(answers)
            results.append(failure if fails else answer)
        return results

    async def _pass(self, call: Call) -> None:
        await self._dawdle()
        order = self._next_order(call, set())
        if order is None and self._draw() < self.fail_before:
            order = _Order(call, "before", 1, None, None)
        if order is not None:
            self.faults += 1
            raise _failure(order)

    def _next_order(self, call: Call, owners: set[Owner]) -> _Order | None:
        for order in self._orders:
            if order.call == call and (order.owner is None or order.owner in owners):
                order.times -= 1
                if order.times <= 0:
                    self._orders.remove(order)
                return order
        return None

    async def _dawdle(self) -> None:
        if self.slow and self._draw() < self.slow:
            if self.delay_ms:
                await asyncio.sleep(self._draw() * self.delay_ms / 1000)
            else:
                for _ in range(1 + int(self._draw() * 4)):
                    await asyncio.sleep(0)

    def _draw(self) -> float:
        return self._random.random() if self._random is not None else 1.0


def _failure(order: _Order) -> Exception:
    if order.error is not None:
        return order.error
    done = "although it was done" if order.when == "after" else "and nothing was done"
    return StoreUnavailableError(f"the store was told to fail, {done}", hint="this is a test", reason=order.when)
