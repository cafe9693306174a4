"""What happens to a kernel from outside: submits, cancels, resizes, pauses, closed limits, drains."""

from __future__ import annotations

from collections.abc import Callable

from laneway.kernel import protocol as p
from laneway.kernel.scheduler import Kernel
from laneway.records import JobId
from laneway.sim.workers import Dice
from laneway.sim.world import World

__all__ = ("Outside",)

FLOOD_DEPTH = 4
Do = Callable[[p.Command], bool]


class Outside:
    """The caller, the operator and the provider in one."""

    def __init__(self, world: World, kernel: Kernel, dice: Dice, do: Do) -> None:
        self._world = world
        self._kernel = kernel
        self._dice = dice
        self._do = do
        self._ids = 0
        self.meddled = 0

    def new_id(self, kind: str = "job") -> JobId:
        """An id that counts."""
        self._ids += 1
        return JobId(f"{kind}-{self._ids}")

    def submit(self) -> None:
        """A job from outside."""
        dice = self._dice
        self._do(p.SubmitJob(self.new_id(), dice.lanes(), dice.spec(), None, None, dice.happens("threaded")))

    def flood(self) -> None:
        """Keep one lane from ever running out of work."""
        name = self._world.flood
        if name is None:
            return
        lane = self._kernel.registry.lanes[name]
        for _ in range(max(0, FLOOD_DEPTH - lane.waiting)):
            self._do(p.SubmitJob(self.new_id(), (name,), p.JobSpec()))

    def meddle(self) -> None:
        """Perhaps do something to what is already there."""
        dice, kernel = self._dice, self._kernel
        rng = dice.rng
        names = list(kernel.registry.lanes)
        name = rng.choice(names)
        if dice.happens("cancel") and kernel.jobs:
            chosen = rng.choice(list(kernel.jobs))
            self._meddle(p.StopJob(chosen, rng.choice((p.Stop.CANCEL, p.Stop.CANCEL, p.Stop.ABORT)), "meddled"))
        if dice.happens("cancel_waiting"):
            self._meddle(p.StopWaiting(rng.choice((None, name)), "meddled"))
        if dice.happens("resize"):
            queued_max = rng.randint(0, 9) if rng.random() < 0.2 else None
            self._meddle(p.ResizeLane(name, rng.randint(0, 4), queued_max))
        if dice.happens("pause"):
            self._meddle(p.PauseLane(name) if rng.random() < 0.5 else p.ResumeLane(name))
        if dice.happens("close"):
            if rng.random() < 0.7:
                for_ms = dice.span(100)
                self._meddle(p.CloseLane(name, for_ms, 1_700_000_000_000 + rng.randint(-10_000, 10_000), "meddled"))
            else:
                self._meddle(p.ReopenLane(name))
        if dice.happens("drain"):
            self._meddle(p.Drain(rng.choice(("stop", "restart"))))
        elif kernel.draining is not None and rng.random() < 0.3:
            self._meddle(p.Reopen())

    def _meddle(self, command: p.Command) -> None:
        self.meddled += 1
        self._do(command)

    def heal(self) -> None:
        """Put everything right that was done wrong."""
        for name in list(self._kernel.registry.lanes):
            lane = self._kernel.registry.lanes.get(name)
            if lane is not None and lane.paused:
                self._do(p.ResumeLane(name))
            if lane is not None and lane.closed_until is not None:
                self._do(p.ReopenLane(name))
            if lane is not None and lane.cap == 0:
                self._do(p.ResizeLane(name, 1))
        self._do(p.Reopen())
