"""What a simulated run leaves behind: aligned lines, their hash, and a failure that says how to see it again.

Every line goes into the hash, whether or not anybody prints it: two runs with the same hash did the same.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = ("Outcome", "SimFailedError", "Tier", "Trace")

Tier = Literal["kernel", "engine", "mail", "mailroom", "agent", "gates", "workers", "budgets", "keeping"]
TAIL = 40


class SimFailedError(AssertionError):
    """A simulated run broke a law. `str()` is the end of the trace, what broke, and the command that replays it."""

    def __init__(self, *, seed: int, tier: Tier, problem: str, tail: tuple[str, ...]) -> None:
        self.seed = seed
        self.tier = tier
        self.problem = problem
        self.tail = tail
        self.replay = f"laneway sim --seed {seed} --tier {tier}"
        super().__init__("\n".join((*tail, f"FAILED {problem}", f"replay: {self.replay}")))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run that broke no law, in numbers. `digest` is the hash of its trace."""

    seed: int
    tier: Tier
    digest: str
    steps: int
    starts: int
    faults: int
    virtual_ms: int


class Trace:
    """One aligned line per transition; the last ones are kept for a failure."""

    def __init__(self, *, tail: int = TAIL, sink: Callable[[str], object] | None = None) -> None:
        self._tail: deque[str] = deque(maxlen=tail)
        self._sink = sink
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, at_ms: int, what: str, subject: str = "", detail: str = "") -> None:
        """Write one line."""
        line = f"{at_ms:>8} {what:<12} {subject:<10} {detail}".rstrip()
        self._hash.update(line.encode() + b"\n")
        self._tail.append(line)
        if self._sink is not None:
            self._sink(line)

    def digest(self) -> str:
        """The hash of all lines so far."""
        return self._hash.hexdigest()

    def tail(self) -> tuple[str, ...]:
        """The last lines."""
        return tuple(self._tail)
