"""How no-op tasks are given to workers, whoever they work for: one at a time, many at once, all at once.

A task gives back when its handler began and in which process. Both sides read `perf_counter`, which all processes of a
Linux machine share.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.measures import robbed_seconds
from bench.workloads import Numbers

__all__ = (
    "CONCURRENCY",
    "IN_FLIGHT",
    "Begun",
    "Offer",
    "Plan",
    "Wait",
    "Watch",
    "begun_now",
    "measured",
    "processes",
    "report",
    "robbed_by_others",
    "spread",
)

CONCURRENCY: Final = 16
"""Tasks that one worker process does at once."""
IN_FLIGHT: Final = 64
"""Tasks that are offered at once: as many as four workers can do."""
IDLE_SHARE: Final = 5
"""Of five tasks, one is given alone before: when everything is idle."""
PATIENCE_S: Final = 100
OURS_LEAST: Final = 0.1
"""Of a short time, the clocks of the system can say that all of it was taken."""
TICKS: Final = os.sysconf("SC_CLK_TCK")


class Begun(NamedTuple):
    """What a no-op task says: when its handler began, and where."""

    at: float
    pid: int


Wait = Callable[[], Awaitable[Begun]]
"""Waits until the outcome of a task is known."""
Offer = Callable[[], Awaitable[Wait]]
"""Offers a task."""


def begun_now() -> Begun:
    """The no-op itself."""
    return Begun(time.perf_counter(), os.getpid())


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one process measures: where it may write, how many workers there are, how many tasks."""

    folder: Path
    workers: int
    tasks: int

    @classmethod
    def from_arguments(cls, arguments: Sequence[str]) -> Plan:
        """FOLDER WORKERS TASKS."""
        folder, workers, tasks = arguments
        return cls(folder=Path(folder), workers=int(workers), tasks=int(tasks))


async def measured(offer: Offer, plan: Plan) -> Numbers:
    """Wait for all workers; then give tasks one at a time, many at once, and all at once."""
    async with asyncio.timeout(PATIENCE_S):
        await _until_all_work(offer, plan.workers)
        alone = await _one_at_a_time(offer, max(1, plan.tasks // IDLE_SHARE))
        steady = await _many_at_once(offer, plan.tasks)
        burst = await _all_at_once(offer, plan.tasks)
    best = max(steady["tasks_per_second"], burst["burst_per_second"])
    return {**steady, **burst, "best_per_second": best, **alone}


def spread(seconds: Sequence[float], name: str) -> Numbers:
    """The middle and the slow end, in milliseconds."""
    ordered = sorted(seconds)
    return {f"{name}_p{share}_ms": ordered[len(ordered) * share // 100] * 1e3 for share in (50, 99)}


async def _until_all_work(offer: Offer, workers: int) -> None:
    """Warm up. Python processes begin one after the other: the last one must have had a task, too."""
    seen: set[int] = set()
    while len(seen) < workers:
        waits = await asyncio.gather(*(offer() for _ in range(IN_FLIGHT)))
        seen.update([(await wait()).pid for wait in waits])
    assert len(seen) == workers, seen


async def _one_at_a_time(offer: Offer, tasks: int) -> Numbers:
    """From the offer to the handler, and to the outcome."""
    claims: list[float] = []
    trips: list[float] = []
    for _ in range(tasks):
        began = time.perf_counter()
        begun = await (await offer())()
        trips.append(time.perf_counter() - began)
        claims.append(begun.at - began)
    return {**spread(claims, "claim"), **spread(trips, "alone")}


async def _many_at_once(offer: Offer, tasks: int) -> Numbers:
    """So many callers, each of which offers the next task when it knows the outcome of its last."""
    trips: list[float] = []
    left = iter(range(tasks))

    async def call() -> None:
        for _ in left:
            began = time.perf_counter()
            await (await offer())()
            trips.append(time.perf_counter() - began)

    watch = Watch()
    await asyncio.gather(*(call() for _ in range(min(IN_FLIGHT, tasks))))
    seconds, wall, cpu = watch.read()
    return {
        "tasks_per_second": len(trips) / seconds,
        "tasks_per_second_by_wall": len(trips) / wall,
        "cpu_ms_per_task": cpu * 1e3 / len(trips),
        **spread(trips, "trip"),
    }


async def _all_at_once(offer: Offer, tasks: int) -> Numbers:
    """All are offered, then one after the other is waited for: who has to ask for an outcome asks once for most."""
    watch = Watch()
    waits = await asyncio.gather(*(offer() for _ in range(tasks)))
    for wait in waits:
        await wait()
    return {"burst_per_second": tasks / watch.read().seconds}


class Spent(NamedTuple):
    """Seconds without those that others had, by the wall, and of all cores by these processes."""

    seconds: float
    wall: float
    cpu: float


class Watch:
    """What the processes of this group have needed since it was made.

    `Stopwatch` takes off the time in which the main thread stood in line for a core. Here it may have stood behind its
    own workers, and that counts: only the part is taken off that others had, by what they used of the cores.
    """

    def __init__(self) -> None:
        gc.collect()
        self._robbed, self._main = robbed_seconds(), time.process_time()
        self._busy, self._own = busy_seconds(), group_seconds()
        self._began = time.perf_counter()

    def read(self) -> Spent:
        """Since then."""
        wall = time.perf_counter() - self._began
        robbed, main = robbed_seconds() - self._robbed, time.process_time() - self._main
        own = group_seconds() - self._own
        others = busy_seconds() - self._busy - own
        taken = robbed_by_others(robbed, others=others, workers=own - main)
        return Spent(max(wall - taken, wall * OURS_LEAST), wall, own)


def robbed_by_others(robbed: float, *, others: float, workers: float) -> float:
    """The part of a wait that others have to answer for."""
    others, workers = max(0.0, others), max(0.0, workers)
    return robbed * others / max(others + workers, 1e-9)


def busy_seconds() -> float:
    """How long all cores together were busy since the machine began."""
    first = Path("/proc/stat").read_text(encoding="ascii").partition("\n")[0]
    user, nice, system, _idle, _waiting, *rest = (int(each) for each in first.split()[1:9])
    return (user + nice + system + sum(rest)) / TICKS


def group_seconds() -> float:
    """How long the processes of this group have run, those included that have ended and were waited for."""
    group, ticks = os.getpgrp(), 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if int(fields[2]) == group:
                ticks += sum(int(each) for each in fields[11:15])
    return ticks / TICKS


@contextlib.asynccontextmanager
async def processes(count: int, *arguments: str, **environment: str) -> AsyncIterator[None]:
    """Python processes that run as long as this block; what they print goes to standard error."""
    started = [
        await asyncio.create_subprocess_exec(
            sys.executable, *arguments, env={**os.environ, **environment}, stdout=sys.stderr
        )
        for _ in range(count)
    ]
    try:
        yield
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
        for process in started:
            await process.wait()


def report(run: Coroutine[Any, Any, Numbers]) -> None:
    """Run on the loop that servers run on, and print the numbers."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(run)))
