"""Where the time of a round goes before its model answers: kept with the round, for whoever asks later why it took."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from laneway.kernel.rounds import RoundWait

if TYPE_CHECKING:
    from laneway.kernel.rounds import Round

__all__ = ("RoundClock",)

SHORT_MS: Final = 20  # a slot that is there at once was not waited for
REASON_MAX: Final = 300
WAITS_MAX: Final = 100  # a limit that closes again and again; the oldest are forgotten
RIGHT_AFTER_MS: Final = 1_000  # whoever looks again and waits on has not stopped waiting


class RoundClock:
    """Notes when the model was asked, and what the run waited for meanwhile."""

    def __init__(self, wall: Callable[[], int]) -> None:
        self._wall = wall
        self._queued: RoundWait | None = None
        self.is_sent = False  # whether the model has got the request
        self.number = 0  # of the round that the model is asked for; 0 while it is not
        self.asked_ms = 0
        self.waits: list[RoundWait] = []

    def asked(self, number: int) -> None:
        """The model is asked for a round."""
        self.number, self.asked_ms, self.is_sent = number, self._wall(), False

    @contextlib.contextmanager
    def waiting(self, kind: str, reason: str) -> Iterator[None]:
        """What is done inside is waiting."""
        wait = self._begin(kind, reason)
        try:
            yield
        finally:
            self._end(wait)

    def note(self, kind: str, reason: str) -> None:
        """Something was decided that is to be read beside what it waited for; it took no time."""
        now = self._wall()
        wait = RoundWait(kind=kind, reason=reason[:REASON_MAX], began_ms=now, ended_ms=now)
        self.waits = [*self.waits[-WAITS_MAX + 1 :], wait]

    def queued(self, kind: str, reason: str) -> None:
        """A call of the model waits for its slot."""
        self._queued = self._begin(kind, reason)

    def in_slot(self) -> None:
        """It has it."""
        self.is_sent = True
        if self._queued is not None:
            self._end(self._queued, least=SHORT_MS)
            self._queued = None

    def answered(self, one: Round) -> None:
        """The round is there, and knows from now on what it waited for."""
        one.asked_ms, one.waits = self.asked_ms, tuple(self.waits)
        self.number, self.asked_ms, self.waits, self.is_sent = 0, 0, [], False

    def cut(self, one: Round) -> None:
        """The run is ended before the model has answered: what it waited for is kept, and whether it was asked."""
        now = self._wall()
        self.waits = [wait if wait.ended_ms else replace(wait, ended_ms=now) for wait in self.waits]
        if not self.is_sent:
            self.asked_ms = 0
        self.answered(one)

    def _begin(self, kind: str, reason: str) -> RoundWait:
        now = self._wall()
        wait = RoundWait(kind=kind, reason=reason[:REASON_MAX], began_ms=now)
        if self.waits and _goes_on(self.waits[-1], wait) and not self.is_sent:  # else the model was at work between
            wait = replace(self.waits.pop(), ended_ms=0)
        self.waits = [*self.waits[-WAITS_MAX + 1 :], wait]
        return wait

    def _end(self, wait: RoundWait, least: int = 1) -> None:
        now = self._wall()
        ended = [replace(wait, ended_ms=now)] if now - wait.began_ms >= least else []
        at = next((at for at, each in enumerate(self.waits) if each is wait), None)
        if at is not None:
            self.waits[at : at + 1] = ended


def _goes_on(last: RoundWait, wait: RoundWait) -> bool:
    """Whether a wait is the one before it, which was looked at in between."""
    is_alike = (last.kind, last.reason) == (wait.kind, wait.reason)
    return is_alike and bool(last.ended_ms) and 0 <= wait.began_ms - last.ended_ms <= RIGHT_AFTER_MS
