"""Virtual workers: what an attempt does, as a script that the run plays step by step.

A worker is one attempt (or one task that takes slots outside any job). It has strands, as a real job has tasks: each
plays its own script, holds its own slots and waits by itself.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from laneway.kernel.protocol import End, JobSpec
from laneway.records import Effect, JobId, Priority, RetryPolicy
from laneway.sim.world import SCOPES, World

__all__ = ("Child", "Dice", "EndAttempt", "Hang", "Join", "Release", "Strand", "Take", "WaitForSome", "Work", "Worker")

DEPTH_MAX = 3


class Work(NamedTuple):
    """Be busy."""

    ms: int


class Hang(NamedTuple):
    """Be busy until somebody ends it."""


class Child(NamedTuple):
    """Submit a job, and wait for it or not."""

    lanes: tuple[str, ...]
    spec: JobSpec
    threaded: bool
    waits: bool


class WaitForSome(NamedTuple):
    """Wait for some live job, whoever's it is."""


class Take(NamedTuple):
    """Take a slot, do something inside, give it back."""

    lanes: tuple[str, ...]
    inner: tuple[Step, ...]


class Release(NamedTuple):
    """Give back the innermost slot."""


class Join(NamedTuple):
    """Wait until the other strands are through."""


class EndAttempt(NamedTuple):
    """Report how it ended."""

    end: End
    after_ms: int = 0


Step = Work | Hang | Child | WaitForSome | Take | Release | Join | EndAttempt


@dataclass(eq=False, slots=True)
class Worker:
    """One attempt of a job; `job_id` is None for a task outside any job."""

    job_id: JobId | None
    attempt: int = 0
    depth: int = 0
    stubborn: bool = False
    twice: bool = False
    tainted: bool = False  # it gave up a wait: it may go on while still counted as lent
    ending: bool = False
    ended: bool = False
    strands: list[Strand] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Strand:
    """One thread of control inside a worker."""

    worker: Worker
    script: deque[Step]
    slots: list[JobId] = field(default_factory=list)
    turn: int = 0  # what was planned in an earlier turn does not happen
    wait: int | None = None  # a wait that the kernel knows
    watched: JobId | None = None  # what it waits for without the kernel
    asked: JobId | None = None  # a slot that is not granted yet
    inner: tuple[Step, ...] = ()  # what to do once it is
    hangs: bool = False
    joining: bool = False
    cancelled: bool = False
    gave_up: bool = False  # the slot that is asked for is not wanted any more
    done: bool = False


class Dice:
    """Everything that is drawn during a run. `honest` workers do nothing wrong any more."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.rng = random.Random(f"run {world.seed}")
        self.honest = False
        self._names = list(world.lanes)

    def happens(self, name: str) -> bool:
        """Whether something that is common or rare in this world happens now."""
        chance = self._world.chance(name)
        return chance > 0 and self.rng.random() < chance

    def span(self, mean: int) -> int:
        """A duration: often near the mean, sometimes nothing, sometimes long."""
        draw = self.rng.random()
        if draw < 0.1:
            return 0
        return round(mean * (0.2 + 1.6 * draw)) if draw < 0.95 else mean * 5

    # ---- what is submitted ----

    def lanes(self) -> tuple[str, ...]:
        """Where a job goes: one lane, or several in order."""
        rng, world = self.rng, self._world
        if self.happens("unknown"):
            return (rng.choice(("extra", "querry")),)
        first = (rng.choice(world.sessions),) if self.happens("session") else ()
        if first and rng.random() < 0.3:
            return first
        plain = [name for name in self._names if not world.lanes[name].exclusive]
        if not self.happens("several") or not plain:
            name = rng.choice(self._names)
            if first and world.lanes[name].exclusive:
                return first
            return (*first, self._scoped(name))
        chosen = sorted(rng.sample(plain, rng.randint(1, len(plain))), key=self._names.index)
        return (*first, *chosen)

    def _scoped(self, name: str) -> str:
        return f"{self.rng.choice(SCOPES)}/{name}" if self.happens("scope") else name

    def spec(self) -> JobSpec:
        """What is said about a job."""
        rng = self.rng
        tenant = rng.choice(list(self._world.tenants)) if self.happens("tenants") else "default"
        retry = None
        if self.happens("retry"):
            retry = rng.choice((RetryPolicy.fixed(2, 0), RetryPolicy.exponential(3, 5), RetryPolicy.none()))
        return JobSpec(
            priority=rng.choice((Priority.BACKGROUND, Priority.SCHEDULED)) if self.happens("low") else Priority.USER,
            timeout_ms=rng.randint(1, 200) if self.happens("timeout") else None,
            wait_timeout_ms=rng.randint(1, 400) if self.happens("wait_timeout") else None,
            deadline_ms=rng.randint(10, 800) if self.happens("deadline") else None,
            delay_ms=rng.randint(0, 200) if self.happens("delay") else None,
            retry=retry,
            effect=rng.choice((Effect.READ, Effect.IDEMPOTENT)) if self.happens("repeatable") else Effect.WRITE,
            tenant=tenant,
            weight=self._world.tenants.get(tenant, 1.0),
        )

    def child(self) -> Child:
        """A job that is submitted from inside another."""
        return Child(self.lanes(), self.spec(), self.happens("threaded"), self.rng.random() < 0.8)

    # ---- what a worker does ----

    def worker(self, job_id: JobId, attempt: int, *, depth: int, threaded: bool) -> Worker:
        """What one attempt of a job is like."""
        worker = Worker(job_id, attempt, depth)
        worker.stubborn = not self.honest and self.happens("stubborn")
        worker.twice = not self.honest and self.happens("twice")
        steps: list[Step] = [Work(self.span(self._world.work_ms))]
        if not threaded:
            steps += self.block(depth)
            while self.happens("strands") and len(worker.strands) < 2:
                worker.strands.append(Strand(worker, deque(self.block(depth))))
            if not self.happens("orphans"):
                steps.append(Join())
        if not self.honest and self.happens("hang"):
            steps.append(Hang())
        steps.append(self._end())
        worker.strands.insert(0, Strand(worker, deque(steps)))
        return worker

    def loose(self) -> Worker:
        """A task outside any job that takes a slot."""
        worker = Worker(None)
        worker.strands.append(Strand(worker, deque([Take(self.lanes(), tuple(self.block(0)))])))
        return worker

    def block(self, depth: int) -> list[Step]:
        """Some steps in a row."""
        steps: list[Step] = []
        if depth < DEPTH_MAX and self.happens("parent"):
            steps += [self.child() for _ in range(self.rng.randint(1, 2))]
        if self.happens("foreign"):
            steps.append(WaitForSome())
        if depth < DEPTH_MAX and self.happens("slots"):
            steps.append(Take(self.lanes(), tuple(self.block(depth + 1))))
        steps.append(Work(self.span(self._world.work_ms)))
        return steps

    def _end(self) -> EndAttempt:
        if self.honest:
            return EndAttempt(End.SUCCEEDED)
        if self.happens("fail"):
            return EndAttempt(End.FAILED)
        if self.happens("retry_later"):
            return EndAttempt(End.RETRY_LATER, self.span(30))
        if self.happens("give_up"):
            return EndAttempt(End.GAVE_UP)
        return EndAttempt(End.SUCCEEDED)
