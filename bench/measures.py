"""What is measured: one function for each measure, called in a process of its own (`python -m bench.sample`).

A measure takes a size and gives back numbers. Submitting and awaiting is written once (`submit_and_await`), so that
every contender is driven in the same way: all jobs are submitted in one go, then each is awaited.
"""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import selectors
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

from bench.contenders import A3sLane, Call, Floor, Semaphore
from bench.workloads import Numbers
from laneway import Job, LaneConfig, Lanes, Priority

Submit = Callable[[int], Awaitable[int]]
Measure = Callable[[int], Coroutine[Any, Any, Numbers]]

CONCURRENCY: Final = 8
SESSIONS: Final = 1_000
TENANTS: Final = 16
WARM_UP: Final = 500
LEVELS: Final = tuple(Priority)


async def noop() -> int:
    """The job that does nothing; its 1 is counted to prove that every job ran."""
    return 1


async def submit_and_await(submit: Submit, jobs: int) -> int:
    """Submit all jobs in one go, then await each; returns how many said that they ran."""
    handles = [submit(index) for index in range(jobs)]
    ran = 0
    for handle in handles:
        ran += await handle
    return ran


class Stopwatch:
    """The wall clock, less the time in which this process could have run but other processes had the cores.

    What it sleeps counts. Without that, a busy machine punishes whoever takes longer twice. Linux tells the time that
    the main thread stood in the run queue; elsewhere nothing is taken off.
    """

    def __init__(self) -> None:
        gc.collect()
        self._robbed = robbed_seconds()
        self._began = time.perf_counter()

    def wall(self) -> float:
        """Seconds by the wall clock."""
        return time.perf_counter() - self._began

    def seconds(self) -> float:
        """Seconds that were ours."""
        wall = self.wall()
        return wall - min(wall, robbed_seconds() - self._robbed)


def robbed_seconds() -> float:
    """How long the main thread has waited for a core so far."""
    try:
        with open("/proc/self/schedstat", encoding="ascii") as schedstat:
            return int(schedstat.read().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


async def timed(submit: Submit, jobs: int) -> Numbers:
    """Seconds per job, after a warm-up."""
    await submit_and_await(submit, min(jobs, WARM_UP))
    watch = Stopwatch()
    ran = await submit_and_await(submit, jobs)
    seconds, wall = watch.seconds(), watch.wall()
    assert ran == jobs, f"{ran} of {jobs} jobs ran"
    return {"seconds_per_job": seconds / jobs, "wall_per_job": wall / jobs}


# ---- no-op jobs, one lane ----


async def noop_lanes(jobs: int) -> Numbers:
    """One lane of Laneway."""
    async with Lanes({"main": CONCURRENCY}) as lanes:
        return await timed(lambda _: lanes.submit("main", noop), jobs)


async def noop_floor(jobs: int) -> Numbers:
    """The floor."""
    floor = Floor(CONCURRENCY)
    return await timed(lambda _: floor.submit(noop), jobs)


async def noop_semaphore(jobs: int) -> Numbers:
    """A semaphore."""
    semaphore = Semaphore(CONCURRENCY)
    return await timed(lambda _: semaphore.submit(noop), jobs)


async def noop_a3s(jobs: int) -> Numbers:
    """a3s-lane from Python, by the wall clock; no warm-up by 500 jobs, that would take it five seconds."""
    lane = A3sLane(CONCURRENCY)
    await submit_and_await(lambda _: lane.submit(noop), 8)
    began = time.perf_counter()
    ran = await submit_and_await(lambda _: lane.submit(noop), jobs)
    took = time.perf_counter() - began
    assert ran == jobs
    lane.close()
    return {"seconds_per_job": took / jobs}


# ---- levels and sessions ----


async def levels_lanes(jobs: int) -> Numbers:
    """USER, SCHEDULED and BACKGROUND in turn."""
    async with Lanes({"main": CONCURRENCY}) as lanes:
        return await timed(lambda index: lanes.submit("main", noop, priority=LEVELS[index % 3]), jobs)


async def levels_floor(jobs: int) -> Numbers:
    """Three priorities in turn in the floor's heap."""
    floor = Floor(CONCURRENCY)
    return await timed(lambda index: floor.submit(noop, index % 3), jobs)


async def sessions_lanes(jobs: int) -> Numbers:
    """A session lane, then `main`: 1,000 sessions in turn."""
    paths = [[f"session:{number}", "main"] for number in range(SESSIONS)]
    async with Lanes({"main": CONCURRENCY}) as lanes:
        return await timed(lambda index: lanes.submit(paths[index % SESSIONS], noop), jobs)


# ---- many queued, many lanes ----

DEPTH_JOBS_LEAST: Final = 100_000


async def depth_lanes(queued: int) -> Numbers:
    """Queue that many in a paused lane, then let them run; small queues are filled again until 100,000 ran."""
    async with Lanes({"main": CONCURRENCY}) as lanes:

        async def fill_and_drain(count: int) -> int:
            lanes.pause("main")
            handles = [lanes.submit("main", noop) for _ in range(count)]
            lanes.resume("main")
            return sum([await handle for handle in handles])

        return await _repeat(fill_and_drain, queued)


async def depth_floor(queued: int) -> Numbers:
    """The same in the floor."""
    floor = Floor(CONCURRENCY)

    async def fill_and_drain(count: int) -> int:
        floor.paused = True
        handles = [floor.submit(noop) for _ in range(count)]
        floor.paused = False
        floor.pump()
        return sum([await handle for handle in handles])

    return await _repeat(fill_and_drain, queued)


async def _repeat(fill_and_drain: Callable[[int], Coroutine[Any, Any, int]], queued: int) -> Numbers:
    await fill_and_drain(min(queued, WARM_UP))
    fills = max(1, DEPTH_JOBS_LEAST // queued)
    ran = 0
    watch = Stopwatch()
    for _ in range(fills):
        ran += await fill_and_drain(queued)
    seconds, wall = watch.seconds(), watch.wall()
    assert ran == fills * queued
    return {"seconds_per_job": seconds / ran, "wall_per_job": wall / ran}


LANES_JOBS: Final = 100_000


async def lanes_plain(count: int) -> Numbers:
    """100,000 jobs over that many lanes in turn: one level, no fair share, no shared cap.

    All lanes together are 10,000 wide, however many there are: what is compared is the cost of lanes, not that of
    ten thousand tasks that run at once against ten.
    """
    names = [f"lane{number}" for number in range(count)]
    async with Lanes(dict.fromkeys(names, max(1, 10_000 // count))) as lanes:
        return await timed(lambda index: lanes.submit(names[index % count], noop), LANES_JOBS)


async def lanes_floor(count: int) -> Numbers:
    """100,000 jobs in one floor that runs that many at once, as that many lanes of width 1 do."""
    floor = Floor(count)
    return await timed(lambda _: floor.submit(noop), LANES_JOBS)


async def lanes_all_on(count: int) -> Numbers:
    """The same with three levels, fair share between 16 tenants and a shared cap."""
    names = [f"lane{number}" for number in range(count)]
    tenants = [f"tenant{number}" for number in range(TENANTS)]
    config = LaneConfig(concurrency=1, fair_by="tenant")
    async with Lanes(dict.fromkeys(names, config), max_concurrent=CONCURRENCY) as lanes:

        def submit(index: int) -> Job[int]:
            # A job's level and tenant must not follow from its lane: divide by the number of lanes first.
            turn = index // count + index
            return lanes.submit(names[index % count], noop, priority=LEVELS[turn % 3], tenant=tenants[turn % TENANTS])

        return await timed(submit, LANES_JOBS)


# ---- memory ----


async def memory_lanes(jobs: int) -> Numbers:
    """Bytes per job that waits in a paused lane, the caller's handle counted."""
    async with Lanes({"main": CONCURRENCY}) as lanes:
        lanes.pause("main")
        numbers = _bytes_per_job(lambda: lanes.submit("main", noop), jobs)
        lanes.cancel_waiting()
        return numbers


async def memory_floor(jobs: int) -> Numbers:
    """The same in the floor."""
    floor = Floor(CONCURRENCY)
    floor.paused = True
    return _bytes_per_job(lambda: floor.submit(noop), jobs)


def _bytes_per_job(submit: Callable[[], object], jobs: int) -> Numbers:
    """Once by resident memory, then (more jobs on top) by what Python asked its allocator for."""
    kept: list[object] = [submit() for _ in range(100)]
    gc.collect()
    before = resident_bytes()
    kept.extend([submit() for _ in range(jobs)])
    resident = (resident_bytes() - before) / jobs
    kept.clear()
    gc.collect()
    tracemalloc.start()
    try:
        kept = [submit() for _ in range(jobs)]
        gc.collect()
        traced = tracemalloc.get_traced_memory()[0] / jobs
    finally:
        tracemalloc.stop()
    return {"bytes_per_job": traced, "resident_per_job": resident}


def resident_bytes() -> int:
    """Resident memory of this process (its peak where /proc does not exist)."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            return int(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# ---- latency and cancelling ----


async def pickup_lanes(jobs: int) -> Numbers:
    """From submit to the first line of the job, nothing else to do."""
    async with Lanes({"main": CONCURRENCY}) as lanes:
        return await _pickup(lambda fn: lanes.submit("main", fn), jobs)


async def pickup_floor(jobs: int) -> Numbers:
    """The same in the floor."""
    floor = Floor(CONCURRENCY)
    return await _pickup(floor.submit, jobs)


async def _pickup(submit: Callable[[Call], Awaitable[int]], jobs: int) -> Numbers:
    first_line = 0

    async def job() -> int:
        nonlocal first_line
        first_line = time.perf_counter_ns()
        return 1

    took: list[int] = []
    for _ in range(jobs + WARM_UP):
        await asyncio.sleep(0)
        submitted = time.perf_counter_ns()
        await submit(job)
        took.append(first_line - submitted)
    took = sorted(took[WARM_UP:])
    return {"p50_us": took[len(took) // 2] / 1e3, "p99_us": took[len(took) * 99 // 100] / 1e3}


CANCELS: Final = 500
CANCEL_JOBS_LEAST: Final = 20_000


async def cancel_lanes(queued: int) -> Numbers:
    """Seconds per cancel of 500 jobs from the middle half of the queue, in random order."""
    rounds = max(1, CANCEL_JOBS_LEAST // queued)
    spent = 0.0
    generator = random.Random(7)
    for _ in range(rounds):
        async with Lanes({"main": CONCURRENCY}) as lanes:
            lanes.pause("main")
            handles = [lanes.submit("main", noop) for _ in range(queued)]
            victims = generator.sample(handles[queued // 4 : queued * 3 // 4], min(CANCELS, queued // 2))
            spent += _cancel_each(victims) / len(victims)
            lanes.cancel_waiting()
    return {"seconds_per_cancel": spent / rounds}


def _cancel_each(victims: Sequence[Job[int]]) -> float:
    watch = Stopwatch()
    for victim in victims:
        assert victim.cancel()
    return watch.seconds()


# ---- idle ----

IDLE_JOBS: Final = 1_000


class CountingSelector(selectors.DefaultSelector):
    """Counts how often the event loop asks it for events: once for each turn of the loop."""

    selects = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Count and wait."""
        self.selects += 1
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(timeout)
        return ready


async def _nap(idle_ms: int) -> Numbers:
    selector = getattr(asyncio.get_running_loop(), "_selector")  # noqa: B009 - private, and the only way to count
    assert isinstance(selector, CountingSelector)
    gc.collect()
    selects, cpu = selector.selects, time.process_time()
    await asyncio.sleep(idle_ms / 1000)
    return {"selects": selector.selects - selects, "cpu_seconds": time.process_time() - cpu}


async def idle_lanes(idle_ms: int) -> Numbers:
    """Turns of the loop and CPU time while open lanes with 1,000 finished jobs (that had timeouts) do nothing.

    What the measuring nap itself costs is measured first, without lanes, and taken off.
    """
    alone = await _nap(idle_ms)
    async with Lanes({"main": LaneConfig(concurrency=CONCURRENCY, timeout_ms=60_000)}) as lanes:
        for handle in [lanes.submit("main", noop, timeout_ms=1_000) for _ in range(IDLE_JOBS)]:
            await handle
        await asyncio.sleep(0.05)  # let the last ends be settled
        with_lanes = await _nap(idle_ms)
    return {
        "wake_ups": max(0.0, with_lanes["selects"] - alone["selects"]),
        "cpu_ms": max(0.0, with_lanes["cpu_seconds"] - alone["cpu_seconds"]) * 1e3,
        "nap_turns": alone["selects"],
    }


MEASURES: Final[dict[str, Measure]] = {
    measure.__name__: measure
    for measure in (
        noop_lanes,
        noop_floor,
        noop_semaphore,
        noop_a3s,
        levels_lanes,
        levels_floor,
        sessions_lanes,
        depth_lanes,
        depth_floor,
        lanes_plain,
        lanes_floor,
        lanes_all_on,
        memory_lanes,
        memory_floor,
        pickup_lanes,
        pickup_floor,
        cancel_lanes,
        idle_lanes,
    )
}
