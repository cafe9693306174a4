"""The real clocks, ids and random numbers: the only place that reads them.

Everything else gets a `HostEnv`. Two clocks are kept apart: `wall_ms` for stamps that people read and times that
are stored, `monotonic_ms` for durations and timers. A jump of the wall clock therefore times nothing out.
"""

from __future__ import annotations

import itertools
import random
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laneway.ports import Clock, Ids, Random

__all__ = ("FixedClock", "HostEnv", "SequentialIdGenerator", "SystemClock", "SystemIds")


class SystemClock:
    """The clocks of this machine."""

    __slots__ = ()

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for stamps."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Milliseconds that never run backwards, for durations and timers."""
        return time.monotonic_ns() // 1_000_000


class FixedClock(SystemClock):
    """Stamps that stand still at `wall_ms`, for replay and tests; durations and timers run on as usual."""

    __slots__ = ("_wall_ms",)

    def __init__(self, wall_ms: int) -> None:
        self._wall_ms = wall_ms

    def wall_ms(self) -> int:
        """The fixed moment."""
        return self._wall_ms


class SystemIds:
    """Ids that differ between processes and machines: a random prefix and a counter."""

    __slots__ = ("_next", "_suffix")

    def __init__(self) -> None:
        self._suffix = f"-{uuid.uuid4().hex[:10]}-"
        self._next = 0

    def new_id(self, kind: str) -> str:
        """A new id, such as `job-5f0c9a41bd-17`."""
        self._next = number = self._next + 1
        return kind + self._suffix + str(number)


class SequentialIdGenerator:
    """Ids that are the same in every run: `job-1`, `job-2` …

    A store that was opened before has ids already. Whoever opens it again counts under the number of that opening:
    `job-2.1`, `job-2.2` …, so that no id comes twice, and the same store and the same inputs still give the same ids.
    """

    __slots__ = ("_numbers", "_opening", "_prefix")

    def __init__(self, prefix: str = "") -> None:
        self._prefix = prefix
        self._opening = ""
        self._numbers = itertools.count(1)

    def new_id(self, kind: str) -> str:
        """A new id, counted from 1."""
        return f"{self._prefix}{kind}-{self._opening}{next(self._numbers)}"

    def for_opening(self, epoch: int) -> SequentialIdGenerator:
        """The ids of somebody who has opened a store for the time `epoch`; the numbers are counted together."""
        ids = SequentialIdGenerator(self._prefix)
        ids._opening = "" if epoch <= 1 else f"{epoch}."
        ids._numbers = self._numbers
        return ids


def _system_random() -> Random:
    return random.Random()


@dataclass(frozen=True, slots=True, kw_only=True)
class HostEnv:
    """What a run gets from the machine it is on: clocks, ids, random numbers."""

    clock: Clock = field(default_factory=SystemClock)
    ids: Ids = field(default_factory=SystemIds)
    random: Random = field(default_factory=_system_random)
