"""Limits: rate tokens, limits closed until a time, threads for sync functions, depth."""

from __future__ import annotations

import asyncio

import pytest

from laneway import Job, JobState, LaneConfig, LaneFullError, RateLimit, WaitReason
from tests.stage import Diary, never, new_lanes, now_ms, passing, simulated, stepping_lanes, value

WALL = 1_700_000_000_000


@simulated
async def test_a_bucket_starts_full_and_refills_continuously() -> None:
    starts: list[int] = []

    async def note() -> None:
        starts.append(now_ms())

    async with new_lanes({"rated": LaneConfig(concurrency=99, rate_limit=RateLimit.per_second(4))}) as lanes:
        await asyncio.gather(*[lanes.submit("rated", note) for _ in range(8)])
        assert starts == [0, 0, 0, 0, 250, 500, 750, 1000]
        await passing(5_000)
        starts.clear()
        begin = now_ms()
        await asyncio.gather(*[lanes.submit("rated", note) for _ in range(8)])
    assert sum(start < begin + 1_000 for start in starts) == 7  # up to twice the count can start after a rest


@pytest.mark.parametrize(
    ("limit", "every_ms"),
    [(RateLimit.per_second(1), 1_000), (RateLimit.per_minute(2), 30_000), (RateLimit.per_hour(60), 60_000)],
)
@simulated
async def test_limits_are_given_per_second_minute_or_hour(limit: RateLimit, every_ms: int) -> None:
    async with new_lanes({"rated": LaneConfig(concurrency=99, rate_limit=limit)}) as lanes:
        await asyncio.gather(*[lanes.submit("rated", value) for _ in range(limit.count)])
        assert now_ms() == 0
        await lanes.run("rated", value)
        assert now_ms() == every_ms


@simulated
async def test_unlimited_is_no_limit() -> None:
    limit = RateLimit.unlimited()
    async with new_lanes({"free": LaneConfig(rate_limit=limit)}) as lanes:
        for _ in range(100):
            await lanes.run("free", value)
        assert now_ms() == 0


@simulated
async def test_a_token_is_taken_only_when_a_job_really_starts() -> None:
    diary = Diary()
    async with new_lanes({"rated": LaneConfig(rate_limit=RateLimit.per_minute(2))}) as lanes:
        lanes.submit("rated", diary.hold, "busy")
        for _ in range(5):
            lanes.submit("rated", never).cancel()
        diary.let_go("busy")
        assert await lanes.run("rated", diary.work, "second token", 1) == "second token"
        assert now_ms() < 10


@simulated
async def test_the_scheduler_sleeps_until_the_next_token() -> None:
    async with new_lanes({"rated": LaneConfig(rate_limit=RateLimit.per_hour(1))}) as lanes:
        await lanes.run("rated", value)
        job = lanes.submit("rated", value, "late")
        loop = asyncio.get_running_loop()
        steps = getattr(loop, "steps", 0)
        assert await job == "late"
        assert now_ms() == 3_600_000
        assert getattr(loop, "steps", 0) - steps < 20


@simulated
async def test_a_closed_limit_opens_at_its_time_and_says_why() -> None:
    async with new_lanes({"model": 1}) as lanes:
        lanes.close_until("model", WALL + 5_000, "retry-after")
        assert lanes.stats().lanes["model"].closed_until_ms == WALL + 5_000
        job = lanes.submit("model", value, "open")
        explanation = job.explain()
        assert (explanation.reason, explanation.until_ms) == (WaitReason.CLOSED, WALL + 5_000)
        assert "retry-after" in str(explanation)
        assert "model" in str(explanation)
        assert await job == "open"
        assert now_ms() == 5_000
        assert lanes.stats().lanes["model"].closed_until_ms is None


@simulated
async def test_a_closed_limit_can_be_reopened_moved_and_lies_in_the_past_without_harm() -> None:
    async with new_lanes({"model": 1}) as lanes:
        lanes.close_until("model", WALL + 50_000)
        lanes.close_until("model", WALL + 90_000, "longer")
        job = lanes.submit("model", value, 1)
        await passing(100)
        lanes.reopen("model")
        assert await job == 1
        assert now_ms() == 100
        lanes.reopen("model")
        lanes.close_until("model", WALL + 1)
        assert await lanes.run("model", value, 2) == 2
        assert now_ms() == 100


@simulated
async def test_closing_leaves_what_runs_alone() -> None:
    diary = Diary()
    async with new_lanes({"model": 2}) as lanes:
        running = lanes.submit("model", diary.work, "running")
        lanes.close_until("model", WALL + 1_000)
        waiting: Job[str] = lanes.submit("model", diary.work, "waiting")
        assert await running == "running"
        assert waiting.state is JobState.QUEUED
        lanes.reopen("model")
        assert await waiting == "waiting"


@simulated
async def test_a_step_of_the_wall_clock_times_nothing_out_and_opens_nothing() -> None:
    diary = Diary()
    lanes, clock = stepping_lanes({"one": 1, "closed": 1})
    async with lanes:
        running = lanes.submit("one", diary.work, "running", 100, timeout_ms=1_000)
        waiting = lanes.submit("one", diary.work, "waiting", 100, wait_timeout_ms=1_000)
        lanes.close_until("closed", WALL + 500)
        closed = lanes.submit("closed", value)
        clock.jump_wall(3_600_000)
        await passing(10)
        assert [running.state, waiting.state, closed.state] == [JobState.RUNNING, JobState.QUEUED, JobState.QUEUED]
        clock.jump_wall(-9_000_000)
        assert list(await asyncio.gather(running, waiting)) == ["running", "waiting"]
        await closed
        assert now_ms() == 500


@simulated
async def test_sync_functions_share_the_threads() -> None:
    diary = Diary()
    async with new_lanes({"lane": 4}, threads_max=2) as lanes:
        jobs = [lanes.submit("lane", diary.note, f"{number}") for number in range(4)]
        states = [job.state for job in jobs]
        assert states == [JobState.RUNNING, JobState.RUNNING, JobState.QUEUED, JobState.QUEUED]
        explanation = jobs[2].explain()
        assert explanation.reason is WaitReason.THREADS
        assert "threads_max" in str(explanation)
        assert await lanes.run("lane", diary.work, "async needs none") == "async needs none"
        assert await asyncio.gather(*jobs) == ["0", "1", "2", "3"]


@simulated
async def test_a_depth_of_zero_still_lets_start_what_need_not_wait() -> None:
    diary = Diary()
    async with new_lanes({"one": LaneConfig(queued_max=0)}) as lanes:
        job = lanes.submit("one", diary.work, "a")
        for delay in (None, 5):
            with pytest.raises(LaneFullError):
                lanes.submit("one", never, delay_ms=delay)
        assert await job == "a"
        assert await lanes.run("one", diary.work, "b") == "b"


@simulated
async def test_scheduled_jobs_count_for_the_depth() -> None:
    async with new_lanes({"one": LaneConfig(queued_max=1)}) as lanes:
        later = lanes.submit("one", value, 1, delay_ms=100)
        running = lanes.submit("one", passing, 5)
        with pytest.raises(LaneFullError, match="at most 1"):
            lanes.submit("one", never)
        await running
        assert await later == 1
