"""The host: clocks, ids, random numbers, and the fakes that stand in for them."""

from __future__ import annotations

import asyncio
import threading

import pytest

from laneway import FixedClock, HostEnv, Lanes, RetryPolicy, SequentialIdGenerator
from laneway.ports import Clock
from laneway.sim.loop import run_sim
from laneway.system import SystemClock, SystemIds
from laneway.testing import FakeClock, LoopClock, fake_host
from tests.stage import value


@pytest.mark.parametrize("clock", [SystemClock(), FixedClock(5), FakeClock()])
def test_clocks_count_whole_milliseconds_and_never_run_backwards(clock: Clock) -> None:
    readings = [clock.monotonic_ms() for _ in range(1_000)]
    assert all(type(reading) is int for reading in (*readings, clock.wall_ms()))
    assert readings == sorted(readings)


def test_a_fixed_clock_fixes_stamps_only() -> None:
    clock = FixedClock(1_234)
    assert clock.wall_ms() == 1_234
    before = SystemClock().monotonic_ms()
    assert before <= clock.monotonic_ms() <= SystemClock().monotonic_ms()


def test_a_fake_clock_does_what_the_test_says() -> None:
    clock = FakeClock(wall_ms=1_000, monotonic_ms=5)
    clock.advance(10)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (1_010, 15)
    clock.jump_wall(-500)
    assert (clock.wall_ms(), clock.monotonic_ms()) == (510, 15)


def test_the_loops_clock_follows_virtual_time() -> None:
    async def main() -> tuple[int, int]:
        clock = LoopClock(wall_ms=1_000)
        await asyncio.get_running_loop().run_in_executor(None, int)
        before = clock.monotonic_ms()
        clock.jump_wall(50)
        return clock.wall_ms() - before, clock.monotonic_ms() - before

    assert run_sim(main(), seed=1) == (1_050, 0)


def test_ids_are_never_given_twice() -> None:
    first, second = SystemIds(), SystemIds()
    ids = [maker.new_id("job") for maker in (first, second) for _ in range(1_000)]
    assert len(set(ids)) == 2_000
    assert all(one.startswith("job-") for one in ids)


def test_sequential_ids_of_a_store_that_was_opened_before_are_counted_under_that_opening() -> None:
    ids = SequentialIdGenerator()
    first, second = ids.for_opening(1), ids.for_opening(2)
    assert [each.new_id("job") for each in (ids, first, second, ids)] == ["job-1", "job-2", "job-2.3", "job-4"]


def test_sequential_ids_are_the_same_in_every_run() -> None:
    for _ in range(2):
        maker = SequentialIdGenerator("test-")
        assert [maker.new_id("job"), maker.new_id("slot")] == ["test-job-1", "test-slot-2"]


def test_a_host_has_clocks_ids_and_random_numbers() -> None:
    host = HostEnv()
    assert isinstance(host.clock, SystemClock)
    assert host.ids.new_id("x") != host.ids.new_id("x")
    assert 0 <= host.random.random() < 1
    assert HostEnv(clock=FixedClock(7)).clock.wall_ms() == 7


def test_the_same_seed_gives_the_same_run() -> None:
    async def main(seed: int) -> list[int]:
        calls: list[int] = []
        loop = asyncio.get_running_loop()

        async def flaky() -> None:
            calls.append(round(loop.time() * 1000))
            if len(calls) < 6:
                raise ValueError

        async with Lanes({"one": 1}, host=fake_host(seed=seed)) as lanes:
            await lanes.run("one", flaky, retry=RetryPolicy.fixed(9, 1_000, jitter=1.0))
        return calls

    runs = {seed: run_sim(main(seed), seed=1) for seed in (1, 2)}
    assert runs[1] == run_sim(main(1), seed=1)
    assert runs[1] != runs[2]


def test_lanes_on_the_real_host_need_nothing_else() -> None:
    async def main() -> object:
        async with Lanes({"one": 1}) as lanes:
            return await lanes.run("one", value, "real")

    threads = set(threading.enumerate())
    assert asyncio.run(main()) == "real"
    assert set(threading.enumerate()) <= threads
