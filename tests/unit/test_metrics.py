"""Numbers: stats, metrics and the status line, the same everywhere."""

from __future__ import annotations

import asyncio
from typing import Any

from laneway import GiveUp, Job, LaneConfig, Lanes, LaneStats, RetryPolicy
from laneway.testing import fake_host
from tests.stage import Diary, new_lanes, passing, simulated, value


async def give_up() -> None:
    raise GiveUp("no")


async def busy_hour(lanes: Lanes) -> None:
    """One job of each fate, and some that still run and wait."""
    diary = Diary()
    flaky = [True]

    async def retried() -> None:
        if flaky.pop() if flaky else False:
            raise ValueError

    jobs: list[Job[Any]] = [
        lanes.submit("lane", value),
        lanes.submit("lane", diary.fail, "failed", ValueError("x")),
        lanes.submit("lane", diary.hold, "timeout", timeout_ms=10),
        lanes.submit("lane", diary.hold, "cancelled"),
        lanes.submit("lane", give_up),
        lanes.submit("lane", retried, retry=RetryPolicy.fixed(1, 5)),
        lanes.submit("lane", diary.cling, "abandoned", 500, timeout_ms=10),
    ]
    await passing()
    jobs[3].cancel()
    await asyncio.gather(*jobs, return_exceptions=True)
    await passing(1_000)


@simulated
async def test_counters_tell_what_became_of_every_job() -> None:
    async with new_lanes({"lane": LaneConfig(concurrency=9, cancel_grace_ms=20)}) as lanes:
        await busy_hour(lanes)
        stats = lanes.stats().lanes["lane"]
    assert (stats.submitted, stats.completed, stats.failed, stats.cancelled) == (7, 2, 2, 1)
    assert (stats.timed_out, stats.retried, stats.dead_lettered, stats.abandoned) == (2, 1, 1, 1)
    assert stats.submitted == stats.completed + stats.failed + stats.cancelled + stats.timed_out
    assert (stats.running, stats.waiting, stats.scheduled, stats.lent) == (0, 0, 0, 0)


@simulated
async def test_metrics_and_stats_are_the_same_numbers() -> None:
    diary = Diary()
    async with new_lanes({"lane": 1, "other": 2}) as lanes:
        lanes.submit("lane", diary.hold, "a")
        lanes.submit("lane", diary.work, "b")
        await passing(50)
        metrics = lanes.metrics()
        assert {name: one.stats for name, one in metrics.items()} == lanes.stats().lanes
        found: LaneStats = metrics["lane"].stats
        assert (found.running, found.waiting, found.oldest_wait_ms, found.max_concurrent) == (1, 1, 50, 1)
        diary.let_go("a")


@simulated
async def test_waits_and_runs_are_measured() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        jobs = [lanes.submit("one", diary.work, f"{number}", 100) for number in range(10)]
        await asyncio.gather(*jobs)
        one = lanes.metrics()["one"]
    assert (one.run.count, one.run.max_ms, one.run.sum_ms) == (10, 100, 1_000)
    assert all(abs(p - 100) <= 4 for p in (one.run.p50_ms, one.run.p90_ms, one.run.p95_ms, one.run.p99_ms))
    assert (one.wait.count, one.wait.max_ms, one.wait.sum_ms) == (10, 900, 4_500)
    assert one.wait.p50_ms <= one.wait.p90_ms <= one.wait.p95_ms <= one.wait.p99_ms <= 930


@simulated
async def test_forgotten_lanes_are_counted_under_their_family() -> None:
    async with new_lanes({"main": 4}, unknown="create") as lanes:
        for number in range(20):
            await lanes.run([f"session:{number}", "main"], value)
            await lanes.run(f"odd{number}", value)
            await lanes.scope(f"w{number}").run("main", value)
        metrics = lanes.metrics()
    assert metrics["session:*"].stats.completed == 20
    assert metrics["*"].stats.completed == 20
    assert metrics["*/main"].stats.completed == 20
    assert metrics["main"].stats.completed == 20
    assert len(metrics) == 4


@simulated
async def test_totals_count_jobs_and_lanes_count_slots() -> None:
    diary = Diary()
    async with new_lanes({"a": 1, "b": 1}) as lanes:
        lanes.submit(["session:s", "a", "b"], diary.hold, "x")
        await passing()
        stats = lanes.stats()
        assert stats.running == 1
        assert {lane.running for lane in stats.lanes.values()} == {1}
        diary.let_go("x")


@simulated
async def test_max_concurrent_is_the_shared_cap_or_the_sum_of_the_widths() -> None:
    async with new_lanes({"a": 2, "b": 3, "control": 2}) as lanes:
        assert lanes.stats().max_concurrent == 5
        lanes.resize("a", 10)
        assert lanes.stats().max_concurrent == 13
    async with new_lanes({"a": 2, "b": 3}, max_concurrent=4) as lanes:
        assert lanes.stats().max_concurrent == 4


@simulated
async def test_the_status_line_tells_slots_and_queue() -> None:
    diary = Diary()
    async with Lanes.limiter(3, host=fake_host()) as lanes:
        assert lanes.status_line() == "Agent: 0/3"
        for number in range(5):
            lanes.submit("agent", diary.hold, f"{number}")
            if number == 1:
                assert lanes.status_line() == "Agent: 2/3"
        assert lanes.status_line() == "Agent: 3/3 (2 queued)"
        diary.let_go(*"01234")
    async with new_lanes({"a": 1, "b": 1}) as lanes:
        assert lanes.status_line() == "Lanes: 0/2"
    async with new_lanes({"web_fetch": 2}) as lanes:
        assert lanes.status_line() == "Web fetch: 0/2"


@simulated
async def test_the_status_line_keeps_its_label_while_sessions_come_and_go() -> None:
    diary = Diary()
    async with Lanes.limiter(3, host=fake_host()) as lanes:
        lanes.submit(["session:a", "agent"], diary.hold, "a")
        await passing()
        assert lanes.status_line() == "Agent: 1/3"
        diary.let_go("a")
