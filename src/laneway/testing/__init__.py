"""Fakes for tests of code that uses Laneway: clocks that do what the test says, a host that repeats itself."""

from __future__ import annotations

import asyncio
import random

from laneway.system import HostEnv, SequentialIdGenerator

__all__ = ("FakeClock", "LoopClock", "fake_host")


class FakeClock:
    """Both clocks stand still until the test moves them."""

    def __init__(self, *, wall_ms: int = 1_700_000_000_000, monotonic_ms: int = 0) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms

    def wall_ms(self) -> int:
        """The wall clock as the test has set it."""
        return self._wall_ms

    def monotonic_ms(self) -> int:
        """The monotonic clock as the test has set it."""
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Let time pass."""
        self._wall_ms += ms
        self._monotonic_ms += ms

    def jump_wall(self, ms: int) -> None:
        """Step the wall clock, as an operator or a time server does; no time passes."""
        self._wall_ms += ms


class LoopClock:
    """The clock of the running event loop: on a simulated loop, virtual time. The wall clock can be stepped."""

    def __init__(self, *, wall_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = wall_ms

    def wall_ms(self) -> int:
        """The start of the wall clock plus the time of the loop."""
        return self._wall_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        """The time of the running loop."""
        return round(asyncio.get_running_loop().time() * 1000)

    def jump_wall(self, ms: int) -> None:
        """Step the wall clock; no time passes."""
        self._wall_ms += ms


def fake_host(*, seed: int = 0, clock: FakeClock | LoopClock | None = None) -> HostEnv:
    """A host whose ids count from 1 and whose random numbers come from a seed."""
    return HostEnv(
        clock=clock or LoopClock(),
        ids=SequentialIdGenerator(),
        random=random.Random(seed),
    )
