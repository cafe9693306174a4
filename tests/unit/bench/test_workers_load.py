"""The load on workers: all are waited for, nobody is given more than was planned, and numbers are what they say."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from pathlib import Path

import pytest

from bench.workers_load import (
    IN_FLIGHT,
    Begun,
    Plan,
    Wait,
    Watch,
    begun_now,
    group_seconds,
    measured,
    robbed_by_others,
    spread,
)


class Crew:
    """Workers that do each task in the next step of the loop; the last one comes late."""

    def __init__(self, workers: int, *, late: int = 0) -> None:
        self._pids = itertools.cycle(range(workers))
        self._workers = workers
        self._late = late
        self.offered = 0
        self.in_flight = 0
        self.peak = 0

    async def offer(self) -> Wait:
        self.offered += 1
        self.in_flight += 1
        self.peak = max(self.peak, self.in_flight)
        pid = next(self._pids)
        if pid == self._workers - 1 and self.offered <= self._late:
            pid = 0

        async def wait() -> Begun:
            await asyncio.sleep(0)
            self.in_flight -= 1
            return Begun(time.perf_counter(), pid)

        return wait


def plan(workers: int, tasks: int) -> Plan:
    return Plan(folder=Path(), workers=workers, tasks=tasks)


async def test_tasks_are_given_alone_then_many_at_once_then_all_at_once() -> None:
    crew = Crew(1)
    numbers = await measured(crew.offer, plan(1, 100))
    assert crew.offered == IN_FLIGHT + 20 + 100 + 100
    assert crew.peak == 100
    assert numbers["best_per_second"] == max(numbers["tasks_per_second"], numbers["burst_per_second"])
    assert 0 < numbers["claim_p50_ms"] < numbers["alone_p50_ms"] <= numbers["alone_p99_ms"]
    assert 0 < numbers["trip_p50_ms"] <= numbers["trip_p99_ms"]


async def test_nothing_is_measured_before_every_worker_has_had_a_task() -> None:
    crew = Crew(4, late=3 * IN_FLIGHT)
    await measured(crew.offer, plan(4, 5))
    assert crew.offered == 4 * IN_FLIGHT + 1 + 5 + 5


async def test_a_worker_too_many_is_no_pass() -> None:
    crew = Crew(3)
    with pytest.raises(AssertionError):
        await measured(crew.offer, plan(2, 5))


async def test_a_task_that_fails_is_no_pass() -> None:
    async def offer() -> Wait:
        raise ConnectionError("nobody is there")

    with pytest.raises(ConnectionError):
        await measured(offer, plan(1, 5))


def test_the_middle_and_the_slow_end_are_told_in_milliseconds() -> None:
    seconds = [number / 1_000 for number in range(200, 0, -1)]
    assert spread(seconds, "trip") == {"trip_p50_ms": pytest.approx(101), "trip_p99_ms": pytest.approx(199)}
    assert spread([0.5], "trip") == {"trip_p50_ms": 500, "trip_p99_ms": 500}


@pytest.mark.parametrize(
    ("others", "workers", "taken_off"),
    [(0.0, 3.0, 0.0), (3.0, 3.0, 1.0), (6.0, 0.0, 2.0), (-0.1, 3.0, 0.0), (0.0, 0.0, 0.0), (3.0, -0.1, 2.0)],
)
def test_only_what_others_had_is_taken_off(others: float, workers: float, taken_off: float) -> None:
    assert robbed_by_others(2.0, others=others, workers=workers) == pytest.approx(taken_off)


def test_a_watch_never_tells_more_than_the_wall() -> None:
    watch = Watch()
    spent = watch.read()
    assert 0 <= spent.seconds <= spent.wall
    assert spent.cpu >= 0
    assert group_seconds() > 0


def test_the_no_op_says_where_and_when() -> None:
    before = time.perf_counter()
    begun = begun_now()
    assert before <= begun.at <= time.perf_counter()
    assert begun.pid == os.getpid()


def test_a_plan_is_read_from_the_command_line() -> None:
    assert Plan.from_arguments(["/x", "4", "1000"]) == Plan(folder=Path("/x"), workers=4, tasks=1_000)
