"""What the chapters of the tour play on: real lanes, the jobs they run, and what was heard of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from laneway.errors import JobFailedError
from laneway.events import Event, EventsMissed, JobEvent, JobStarted
from laneway.lanes import Lanes
from laneway.records import FINAL_STATES, JobId, JobState, LaneConfig, RateLimit
from laneway.runtime.handles import Job
from laneway.system import HostEnv, SequentialIdGenerator, SystemClock

__all__ = ("Chapter", "Ledger", "Stage")

EVENTS_KEPT: Final = 200
STEP_S: Final = 0.04


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """One thing to show: which lanes to look at, a sentence about it, and the play itself, which returns a finding."""

    title: str
    text: str
    lanes: tuple[str, ...]
    play: Callable[[Stage], Coroutine[Any, Any, str]]


@dataclass(slots=True)
class Ledger:
    """What the event stream said, kept apart from what the lanes count themselves: the two must agree."""

    submitted: set[JobId] = field(default_factory=set)
    ended: dict[JobId, JobState] = field(default_factory=dict)
    starts: list[JobStarted] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    missed: int = 0

    def hear(self, event: Event) -> None:
        """Write an event down."""
        self.counts[event.type] += 1
        if isinstance(event, EventsMissed):
            self.missed += event.count
        if not isinstance(event, JobEvent):
            return
        self.submitted.add(event.job_id)
        if event.state in FINAL_STATES:
            self.ended[event.job_id] = event.state
        if isinstance(event, JobStarted):
            self.starts.append(event)

    def first_start(self, label: str) -> JobStarted | None:
        """When a job began, by its label."""
        return next((event for event in self.starts if event.label == label), None)

    def waited_ms(self, prefix: str) -> float:
        """How long the jobs whose label begins so waited for their start, on average."""
        waits = [event.wait_ms for event in self.starts if event.label.startswith(prefix)]
        return sum(waits) / max(1, len(waits))

    def order(self, *prefixes: str) -> list[str]:
        """The labels that begin with one of these, in the order in which they started."""
        return [event.label for event in self.starts if event.label.startswith(prefixes)]


class Stage:
    """The lanes of the tour and everything that the view shows of them."""

    def __init__(self, pace: float) -> None:
        self.pace = pace
        self.clock = SystemClock()
        self.ledger = Ledger()
        self.progress: dict[str, float] = {}  # by label, told by the jobs themselves
        self.heard: deque[Event | str] = deque(maxlen=EVENTS_KEPT)
        self.chapter: Chapter | None = None
        self.number = 0
        self.finding = ""
        self.watched: Job[Any] | None = None
        self.curtain = asyncio.Event()
        self.echo: Callable[[str], None] | None = None  # prints lines where there is no view
        self.began_ms = self.clock.wall_ms()
        configs = {
            "query": LaneConfig(concurrency=3, priority=1),
            "execute": LaneConfig(concurrency=2, priority=2),
            "desk": LaneConfig(concurrency=1, ageing_ms=self.ms(1_500)),
            "agent": LaneConfig(concurrency=1),
            "model": LaneConfig(concurrency=2, rate_limit=RateLimit(count=3, window_ms=self.ms(3_000))),
            "post": LaneConfig(concurrency=2),
            "tools": LaneConfig(concurrency=2, cancel_grace_ms=self.ms(1_000)),
        }
        self.priorities = {name: config.priority for name, config in configs.items()}
        host = HostEnv(clock=self.clock, ids=SequentialIdGenerator())
        self.lanes = Lanes(configs, max_concurrent=3, host=host)

    def ms(self, milliseconds: int) -> int:
        """A duration at the pace of this tour."""
        return max(1, round(milliseconds * self.pace))

    async def breathe(self, milliseconds: int) -> None:
        """Let time pass."""
        await asyncio.sleep(self.ms(milliseconds) / 1000)

    async def work(self, label: str, milliseconds: int) -> str:
        """A job of the tour: takes its time and says how far it is."""
        loop = asyncio.get_running_loop()
        began, whole = loop.time(), self.ms(milliseconds) / 1000
        while (gone := loop.time() - began) < whole:
            self.progress[label] = gone / whole
            await asyncio.sleep(min(STEP_S, whole - gone))
        self.progress[label] = 1.0
        return label

    def submit(self, lane: str, label: str, milliseconds: int, **options: Any) -> Job[str]:
        """Send a job of the tour into a lane."""
        return self.lanes.submit(lane, self.work, label, milliseconds, label=label, **options)

    def watch(self, job: Job[Any] | None) -> None:
        """Show what `explain` says of a job, from now on."""
        self.watched = job
        if self.echo is not None and (why := self.why()):
            self.echo(f"why: {why}")

    def tell(self, line: str) -> None:
        """Say something between the events."""
        self.heard.append(line)
        if self.echo is not None:
            self.echo(line)

    def why(self) -> str:
        """What `explain` says of the watched job at this moment."""
        job = self.watched
        if job is None or job.done():
            return ""
        label = next((info.label for info in self.lanes.jobs() if info.id == job.id), "")
        return f"{label}: {job.explain()}"

    def hear(self, event: Event) -> None:
        """Take an event from the stream."""
        self.ledger.hear(event)
        self.heard.append(event)

    async def settle(self, *jobs: Awaitable[Any]) -> None:
        """Wait until these have ended, one way or the other."""
        for job in jobs:
            with contextlib.suppress(JobFailedError, OSError, ValueError):
                await job
        await asyncio.sleep(0)  # the event stream is read after this
