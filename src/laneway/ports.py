"""What Laneway needs of the outside, as Protocols. Adapters implement them; the core never names an adapter."""

from __future__ import annotations

from typing import Protocol

__all__ = ("Clock", "Ids", "Random")


class Clock(Protocol):
    """Two clocks: one for stamps, one for durations."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970; may jump."""

    def monotonic_ms(self) -> int:
        """Milliseconds since some moment; never runs backwards."""


class Ids(Protocol):
    """Where new ids come from."""

    def new_id(self, kind: str) -> str:
        """An id that was never given out before."""


class Random(Protocol):
    """Where random numbers come from; `random.Random` is one."""

    def random(self) -> float:
        """A number from 0 (included) to 1 (not included)."""
