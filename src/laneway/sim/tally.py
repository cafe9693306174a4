"""A tally kept by the job bodies themselves: who really runs, compared with what `Lanes` says.

A body enters when its first line runs and leaves with its last; around every wait for another job it counts as lent.
What it counts is therefore never more than what the scheduler believes to be running, and never more than the caps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from laneway.records import JobState
from laneway.runtime.handles import Job
from laneway.runtime.signals import AbortSignal
from laneway.sim.shadow import LawBrokenError
from laneway.sim.world import World

__all__ = ("Body", "Boom", "Join", "Plan", "Tally")


class Boom(Exception):  # noqa: N818 - what a job raises on purpose
    """The error of a job that fails."""


class Plan:
    """One submitted job: what was said about it, what it did, and who asked for its end."""

    def __init__(self, label: str, lanes: tuple[str, ...], *, up: Plan | None = None) -> None:
        self.label = label
        self.lanes = lanes
        self.up = up
        self.depth: int = 0 if up is None else up.depth + 1
        self.options: dict[str, Any] = {}
        self.handle: Job[Any] | None = None
        self.signal: AbortSignal | None = None
        self.attempts = 0
        self.asked = False  # somebody asked for its end
        self.threaded = False
        self.ended = ""  # what its last attempt did
        self.error: Boom | None = None
        self.function: Callable[[], Any] | None = None
        self.joined: list[Join] = []


class Join:
    """A further handle of a job with a key."""

    def __init__(self, handle: Job[Any]) -> None:
        self.handle = handle
        self.cancelled = False


class Body:
    """One attempt (or slot) that really holds lanes at this moment."""

    __slots__ = ("around", "attempt", "lanes", "plan", "stubborn", "tainted", "waits")

    def __init__(self, plan: Plan, lanes: tuple[str, ...], around: Body | None = None) -> None:
        self.plan = plan
        self.lanes = lanes
        self.around = around
        self.attempt = plan.attempts
        self.waits = 0
        self.stubborn = False  # it was asked to end and goes on
        self.tainted = False  # it gave up a wait: it goes on while still counted as lent

    def chain(self) -> Iterator[Body]:
        """This one and those around it."""
        body: Body | None = self
        while body is not None:
            yield body
            body = body.around


class Tally:
    """Every body that is inside its own code now."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._inside: dict[Body, None] = {}
        self.widest: dict[str, int] = {}  # lanes that were resized: the most they ever were
        self.starts = 0
        self.peak = 0

    # ---- what bodies say ----

    def enter(self, body: Body) -> None:
        """The first line of a body runs."""
        self._inside[body] = None
        self.starts += 1
        self.check()

    def leave(self, body: Body) -> None:
        """The last line of a body has run."""
        del self._inside[body]

    @contextmanager
    def lending(self, body: Body) -> Iterator[None]:
        """Around a wait for another job."""
        for each in body.chain():
            each.waits += 1
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Exception) or isinstance(error, TimeoutError):
                for each in body.chain():
                    each.tainted = True
            raise
        finally:
            for each in body.chain():
                each.waits -= 1
            self.check()

    # ---- what has to hold ----

    def check(self) -> None:
        """Nobody runs whom the scheduler does not count as running, and no cap is exceeded."""
        counts: dict[str, int] = {}
        shared = 0
        groups: dict[str, int] = {}
        for body in self._inside:
            if body.waits or body.tainted or not self._counts(body):
                continue
            for lane in body.lanes:
                counts[lane] = counts.get(lane, 0) + 1
            if body.around is None:
                shared += any(lane.rpartition("/")[2] != "control" for lane in body.lanes)
                found = {self._world.group_of(lane) for lane in body.lanes if lane.rpartition("/")[2] != "control"}
                for group in found - {None}:
                    assert group is not None
                    groups[group] = groups.get(group, 0) + 1
        for lane, count in counts.items():
            self._hold(f"lane {lane}", count, self.widest.get(lane, self._world.config_of(lane).concurrency))
        for group, count in groups.items():
            self._hold(f"group {group}", count, self._world.groups[group].cap)
        if self._world.max_concurrent is not None:
            self._hold("max_concurrent", shared, self._world.max_concurrent)
        self.peak = max(self.peak, shared)

    @staticmethod
    def _hold(name: str, count: int, most: int) -> None:
        if count > most:
            raise LawBrokenError(f"{name}: {count} bodies run at once where {most} may")

    def _counts(self, body: Body) -> bool:
        """Whether the scheduler still answers for it; an abandoned attempt runs on its own account."""
        handle = body.plan.handle
        if handle is None:  # `run()` gives no handle: leave out what may have been abandoned
            config = self._world.config_of(body.plan.lanes[-1])
            limits = (body.plan.options.get("timeout_ms"), config.timeout_ms)
            # An heir can be ended for its lender's sake; without any grace it is abandoned before its code notices.
            return limits == (None, None) and not body.plan.asked and config.cancel_grace_ms > 0
        if handle.done() or handle.attempt != body.attempt or handle.state in (JobState.SCHEDULED, JobState.QUEUED):
            return False
        if handle.state is not JobState.RUNNING and body.around is None:
            raise LawBrokenError(f"{body.plan.label} runs and waits for nothing, but Lanes says it is {handle.state}")
        return True

    def left(self) -> int:
        """How many bodies are still inside their code."""
        return len(self._inside)

    def check_asked(self) -> None:
        """Whoever is still inside its code after closing was asked to end, and did not."""
        for body in self._inside:
            if not any(each.stubborn for each in body.chain()):
                raise LawBrokenError(f"{body.plan.label} runs on after closing, and nobody asked it to end")
