"""Who runs the jobs: the floor, a semaphore, and a3s-lane. Each takes a function and gives back something to await."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from heapq import heappop, heappush
from typing import Any

Call = Callable[[], Awaitable[int]]


class Floor:
    """The least that a priority scheduler can be: a heap, a counter, one task and one future per job.

    No cancel, no names, no limits, no questions answered: what Laneway costs is what it costs more than this.
    """

    def __init__(self, concurrency: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._free = concurrency
        self._heap: list[tuple[int, int, Call, asyncio.Future[int]]] = []
        self._count = 0
        self.paused = False

    def submit(self, fn: Call, priority: int = 0) -> asyncio.Future[int]:
        """Queue a job; lower priorities go first."""
        future: asyncio.Future[int] = self._loop.create_future()
        self._count += 1
        heappush(self._heap, (priority, self._count, fn, future))
        self.pump()
        return future

    def pump(self) -> None:
        """Start what may start."""
        while self._free and self._heap and not self.paused:
            _, _, fn, future = heappop(self._heap)
            self._free -= 1
            self._loop.create_task(self._run(fn, future))

    async def _run(self, fn: Call, future: asyncio.Future[int]) -> None:
        try:
            result = await fn()
        except BaseException as error:  # noqa: BLE001 - whatever a job raises is its outcome
            future.set_exception(error)
        else:
            future.set_result(result)
        self._free += 1
        self.pump()


class Semaphore:
    """What people write by hand: `asyncio.Semaphore` and one task per job. First come, first served."""

    def __init__(self, concurrency: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._semaphore = asyncio.Semaphore(concurrency)

    def submit(self, fn: Call) -> asyncio.Task[int]:
        """Start a task that waits for the semaphore."""
        return self._loop.create_task(self._run(fn))

    async def _run(self, fn: Call) -> int:
        async with self._semaphore:
            return await fn()


class A3sLane:
    """a3s-lane 0.4.0. Its `submit` blocks and runs no Python code: a command only echoes its payload.

    From asyncio it needs threads; it gets 64, so that they are not what limits it.
    """

    def __init__(self, concurrency: int) -> None:
        from _a3s_lane import PyLane, PyLaneConfig

        config = PyLaneConfig("query", priority=1, min_concurrency=1, max_concurrency=concurrency)
        self._lane: Any = PyLane.with_lanes([config])
        self._lane.start()
        self._pool = ThreadPoolExecutor(64)
        self._loop = asyncio.get_running_loop()

    def submit(self, fn: Call) -> asyncio.Future[int]:
        """Send one command; `fn` is not called, there is no way to."""
        return self._loop.run_in_executor(self._pool, partial(self._echo, 1))

    def _echo(self, value: int) -> int:
        answer = self._lane.submit("query", "noop", {"value": value})
        assert answer is not None
        return value

    def close(self) -> None:
        """Stop its threads."""
        self._lane.shutdown()
        self._lane.drain(timeout_secs=5.0)
        self._pool.shutdown()
