"""Runs a script with a clock that stands still whenever the machine does: a pause of a few milliseconds stays one."""

from __future__ import annotations

import asyncio
import runpy
import selectors
import sys
import time
from typing import Any

from laneway.system import SystemClock

STEP_S = 0.002


class Steady(selectors.DefaultSelector):
    """Waits as long as it is told to; what it is late, and what a step of the loop takes, is not counted."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = self._seen_s = time.monotonic()

    def now_s(self) -> float:
        """What the loop takes for the time."""
        self._count(STEP_S)
        return self._now_s

    def select(self, timeout: float | None = None) -> Any:
        """Wait."""
        self._count(STEP_S)
        found = super().select(timeout)
        self._count(float("inf") if timeout is None else max(timeout, STEP_S))
        return found

    def _count(self, most_s: float) -> None:
        seen_s = time.monotonic()
        self._now_s += min(seen_s - self._seen_s, most_s)
        self._seen_s = seen_s


def run(main: Any) -> Any:
    """`asyncio.run`, steadily."""
    steady = Steady()

    def loop() -> asyncio.AbstractEventLoop:
        made = asyncio.SelectorEventLoop(steady)
        made.time = steady.now_s  # type: ignore[method-assign]
        return made

    SystemClock.monotonic_ms = lambda _: int(steady.now_s() * 1000)  # type: ignore[assignment, method-assign]
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(main)


if __name__ == "__main__":
    asyncio.run = run  # type: ignore[assignment]
    del sys.argv[0]
    runpy.run_path(sys.argv[0], run_name="__main__")
