"""Time of a real loop that can leap: what has to come first is waited for, and then time is up.

Between two looks at the clock hardly any time goes by, however long a machine stands still.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest.mock import patch

from laneway.system import SystemClock
from laneway.testing import transports
from laneway.testing.transports import DeskStage

Leap = Callable[[int], None]

LEASE_MS = 60_000
AT_ONCE_MS = 100
HASTY = (
    transports.check_a_claim_that_waits_is_woken_by_what_goes_back,
    transports.check_a_claim_that_is_given_up_costs_no_task,
    transports.check_closing_one_connection_leaves_the_others,
)
"""Checks that wait for the end of a lease, and let no time pass."""


class _Time:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen_s = self._now_s = time.monotonic()

    def now_s(self) -> float:
        with self._lock:
            seen_s = time.monotonic()
            self._now_s += min(seen_s - self._seen_s, AT_ONCE_MS / 1000)
            self._seen_s = seen_s
            return self._now_s

    def leap(self, ms: int) -> None:
        with self._lock:
            self._now_s += ms / 1000


@contextmanager
def leaping(loop: asyncio.AbstractEventLoop) -> Iterator[Leap]:
    """The timers of a loop, and the clocks that are made in this process meanwhile; what comes out moves them on."""
    shown = _Time()

    def leap(ms: int) -> None:
        shown.leap(ms)
        loop.call_soon_threadsafe(lambda: None)  # it may sleep until a moment that has passed now

    with (
        patch.object(loop, "time", shown.now_s),
        patch.object(SystemClock, "monotonic_ms", lambda _: int(shown.now_s() * 1000)),
    ):
        yield leap


async def passing(leap: Leap, ms: int) -> None:
    """Let time pass step by step, as it does where nothing stands still, and then a moment for what is on its way."""
    for begin in range(0, ms, AT_ONCE_MS):
        leap(min(AT_ONCE_MS, ms - begin))
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0.005)


@asynccontextmanager
async def hastened(leap: Leap, check: object) -> AsyncIterator[None]:
    """Time flies in a check that waits for the end of a lease."""

    async def hasten() -> None:
        while True:
            await asyncio.sleep(0.005)
            leap(AT_ONCE_MS)

    task = asyncio.ensure_future(hasten()) if check in HASTY else None
    try:
        yield
    finally:
        if task is not None:
            task.cancel()


class LeapingStage(DeskStage):
    """A stage on which time passes by leaps."""

    def __init__(self, *given: Any, leap: Leap, **more: Any) -> None:
        super().__init__(*given, lease_ms=LEASE_MS, **more)
        self.leap = leap

    async def passing(self, ms: int) -> None:
        """It is over soon."""
        await passing(self.leap, ms)
