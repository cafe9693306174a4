"""Whether the gateway takes more work: by how much waits, and for how long the oldest turn has waited for a slot.

What was accepted is never given up for this, and commands (`/stop`, `/approve …`) and what the system itself has to
say are always taken. Whoever is refused is told when to come back, from how fast the queue gets shorter.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from laneway.errors import OverloadedError
from laneway.kernel import directives
from laneway.kernel.registry import Registry
from laneway.mail import MessageKind

if TYPE_CHECKING:
    from laneway.gateway.service import Gateway

__all__ = ("TURN_LANES", "Admission")

TURN_LANES: Final = ("main", "subagent", "cron")
RETRY_MIN_MS: Final = 1_000
RETRY_MAX_MS: Final = 60_000
RETRY_MS: Final = 5_000  # while nothing is known about how fast it goes
MARK_MS: Final = 1_000
MARKS: Final = 30
ROOM: Final = 20  # whoever is told to come back finds a twentieth of the queue free, if it goes on like this


class Admission:
    """Refuses messages while too much waits."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._now = gateway.env.clock.monotonic_ms
        self._started = 0
        self._marks: deque[tuple[int, int]] = deque([(self._now(), 0)], maxlen=MARKS)  # when, and how many by then

    def check(self, text: str = "", kind: MessageKind | str = MessageKind.USER) -> None:
        """Raise `OverloadedError` while too much waits, unless this is a command or comes from the system."""
        problem = self._depth_problem() or self._age_problem()
        if problem is None or kind != MessageKind.USER or _is_command(text):
            return
        self._gateway.observer.metrics.on_overloaded()
        raise problem

    def waiting(self) -> int:
        """How many messages wait."""
        kernels = [each.inbox.engine.kernel for each in self._gateway.workspaces.values()]
        taken = sum(
            len(turn.items) + len(turn.injected) + len(turn.summarized)
            for kernel in kernels
            for turn in kernel.turns.values()
        )
        return max(0, sum(len(kernel.items) for kernel in kernels) - taken)

    def oldest_ms(self) -> int:
        """How long the oldest turn has waited for a slot.

        A message that waits for its own session (behind a turn, held, for a quiet moment) says nothing about load.
        """
        registry: Registry = self._gateway.lanes.engine.kernel.registry
        now, oldest = self._now(), 0
        for workspace in self._gateway.workspaces:
            prefix = "" if workspace == "default" else f"{workspace}/"
            for name in TURN_LANES:
                lane = registry.lanes.get(prefix + name)
                if lane is not None and lane.waiting:
                    since = lane.queue.oldest_at()
                    oldest = max(oldest, now - since if since is not None else 0)
        return oldest

    def note_started(self, count: int) -> None:
        """So many messages have got their turn."""
        self._started += count
        now = self._now()
        if now - self._marks[-1][0] >= MARK_MS:
            self._marks.append((now, self._started))

    def _depth_problem(self) -> OverloadedError | None:
        most = self._gateway.settings.waiting_max
        live = 0
        for workspace in self._gateway.workspaces.values():
            live += len(workspace.inbox.engine.kernel.items)
        if live < most:  # those that wait are among them: most often there is nothing to count
            return None
        waiting = self.waiting()
        if waiting < most:
            return None
        return OverloadedError(
            f"{waiting:,} messages wait already (at most {most:,})",
            hint="come back later; what was accepted is not lost",
            retry_after_ms=self._time_for(waiting - most + most // ROOM + 1),
        )

    def _age_problem(self) -> OverloadedError | None:
        most = self._gateway.settings.oldest_max_ms
        if most is None:
            return None
        oldest = self.oldest_ms()
        if oldest < most:
            return None
        return OverloadedError(
            f"the oldest turn has waited for {oldest:,} ms already (at most {most:,})",
            hint="come back later; what was accepted is not lost",
            retry_after_ms=min(max(RETRY_MIN_MS, oldest - most), RETRY_MAX_MS) if oldest > most else RETRY_MIN_MS,
        )

    def _time_for(self, count: int) -> int:
        """How long it takes until so many have left the queue, from how fast they did lately."""
        now = self._now()
        began, started = self._marks[0]
        passed, left = now - began, self._started - started
        if passed < MARK_MS or not left:
            return RETRY_MS
        return min(max(RETRY_MIN_MS, count * passed // left), RETRY_MAX_MS)


def _is_command(text: str) -> bool:
    """Whether a text is carried out at once and never queued."""
    directive = directives.parse(text) if isinstance(text, str) else None
    if isinstance(directive, directives.New):
        return not directive.text  # what comes behind it is a message
    return directive is not None and not isinstance(directive, directives.Inline | directives.SendAs)
