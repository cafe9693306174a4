"""Ending: drain and reopen, leaving `async with`, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from laneway import (
    ClosedError,
    DrainingError,
    Group,
    Job,
    JobCancelledError,
    JobState,
    LaneConfig,
    Lanes,
    LanewayError,
    RateLimit,
    RetryPolicy,
)
from laneway.sim.loop import SimDeadlockError, SimLoop, run_sim
from tests.stage import Diary, grouped, never, new_lanes, now_ms, passing, simulated, value

# ---- drain ----


@simulated
async def test_a_drain_runs_what_runs_waits_and_is_scheduled() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        lanes.submit("one", diary.work, "running")
        lanes.submit("one", diary.work, "waiting")
        lanes.submit("one", diary.work, "scheduled", delay_ms=500)
        report = await lanes.drain()
        assert (report.finished, report.cancelled, report.still_running) == (True, 0, 0)
        assert now_ms() == 510
    assert diary.ended == ["running", "waiting", "scheduled"]


@simulated
async def test_at_the_timeout_what_has_not_begun_is_cancelled_with_the_reason_drain() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        running = lanes.submit("one", diary.hold, "running")
        others: list[Job[None]] = [lanes.submit("one", never), lanes.submit("one", never, delay_ms=90_000)]
        report = await lanes.drain(100)
        assert (report.finished, report.cancelled, report.still_running) == (False, 2, 1)
        assert now_ms() == 100
        for job in others:
            with pytest.raises(JobCancelledError) as caught:
                await job
            assert caught.value.reason == "drain"
        assert running.state is JobState.RUNNING
        diary.let_go("running")
        assert await running == "running"


@pytest.mark.parametrize(("purpose", "word"), [("stop", "reopen"), ("restart", "after the restart")])
@simulated
async def test_a_refusal_says_whether_to_wait_for_a_restart(purpose: str, word: str) -> None:
    async with new_lanes({"one": 1}) as lanes:
        await lanes.drain(purpose=purpose)  # type: ignore[arg-type] # both are allowed, mypy sees text
        with pytest.raises(DrainingError, match=word) as caught:
            lanes.submit("one", never)
        assert caught.value.purpose == purpose
        with pytest.raises(DrainingError):
            await lanes.slot("one").acquire()
        assert lanes.jobs() == []


@simulated
async def test_a_running_job_may_still_submit_while_draining() -> None:
    diary = Diary()

    async def parent() -> str:
        await passing(10)
        return await lanes.run("one", diary.work, "child")

    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", parent)
        report = await lanes.drain()
        assert report.finished
        assert await job == "child"


@simulated
async def test_a_drain_of_nothing_ends_at_once_and_can_be_repeated() -> None:
    async with new_lanes({"one": 1}) as lanes:
        for timeout in (None, 0, 100):
            assert (await lanes.drain(timeout)).finished
            lanes.reopen()
        lanes.reopen()
        assert now_ms() == 0
        assert await lanes.run("one", value, 1) == 1


@simulated
async def test_a_drain_waits_for_no_abandoned_attempt() -> None:
    diary = Diary()
    async with new_lanes({"one": LaneConfig(cancel_grace_ms=10)}) as lanes:
        job = lanes.submit("one", diary.cling, "stubborn", 10_000, timeout_ms=10)
        assert (await lanes.drain()).finished
        assert now_ms() == 20
        assert job.state is JobState.TIMED_OUT
    assert now_ms() < 100
    await passing(20_000)


# ---- leaving ----


@simulated
async def test_leaving_waits_for_every_job() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        jobs = [lanes.submit("one", diary.work, name) for name in "abc"]
        lanes.submit("one", diary.work, "later", delay_ms=100)
    assert diary.ended == ["a", "b", "c", "later"]
    assert all(job.state is JobState.SUCCEEDED for job in jobs)


@simulated
async def test_leaving_waits_for_retries_and_limits() -> None:
    calls: list[int] = []

    async def flaky() -> None:
        calls.append(now_ms())
        if len(calls) < 3:
            raise ValueError

    async with new_lanes({"one": LaneConfig(rate_limit=RateLimit.per_minute(2))}) as lanes:
        job = lanes.submit("one", flaky, retry=RetryPolicy.fixed(3, 100))
    assert calls == [0, 100, 30_000]
    assert job.state is JobState.SUCCEEDED


@simulated
async def test_leaving_by_an_exception_cancels_every_job() -> None:
    diary = Diary()
    jobs: list[Job[str]] = []

    async def owner() -> None:
        async with new_lanes({"one": 1}) as lanes:
            jobs.extend(lanes.submit("one", diary.hold, name) for name in "ab")
            jobs.append(lanes.submit("one", diary.hold, "later", delay_ms=1_000))
            await passing()
            raise KeyError

    with pytest.raises(KeyError):
        await owner()
    assert diary.cancelled == ["a"]
    for job in jobs:
        with pytest.raises(JobCancelledError, match="closing"):
            await job
    assert now_ms() == 1


@simulated
async def test_leaving_cancels_what_nobody_will_start() -> None:
    diary = Diary()
    async with new_lanes({"paused": 1, "narrow": 1, "a": 1, "b": 1}) as lanes:
        lanes.pause("paused")
        lanes.resize("narrow", 0)
        stuck: list[Job[None]] = [lanes.submit("paused", never), lanes.submit("narrow", never)]
        runs = lanes.submit("a", diary.work, "runs")
    for job in stuck:
        with pytest.raises(JobCancelledError, match="paused"):
            await job
    assert await runs == "runs"


@simulated
async def test_leaving_does_not_hang_behind_a_paused_lane_or_a_cap_of_zero() -> None:
    diary = Diary()
    async with new_lanes({"a": 1, "b": 1}) as lanes:
        lanes.pause("b")
        holds_a = lanes.submit(["a", "b"], diary.work, "holds a")
        behind = lanes.submit("a", diary.work, "behind")
    assert holds_a.state is JobState.CANCELLED
    assert behind.done()
    async with new_lanes({"a": 1}, max_concurrent=0) as lanes:
        first = lanes.submit("a", never)
    async with grouped({"a": 1}, none=Group(cap=0, lanes=["a"])) as lanes:
        second = lanes.submit("a", never)
    assert [first.state, second.state] == [JobState.CANCELLED] * 2


@simulated
async def test_closing_gives_the_grace_and_no_more_than_its_timeout() -> None:
    diary = Diary()
    waited: list[object] = []

    async def wait(job: Job[str]) -> None:
        waited.extend(await asyncio.gather(job, return_exceptions=True))

    async def owner(group: asyncio.TaskGroup) -> None:
        config = LaneConfig(cancel_grace_ms=60_000)
        async with new_lanes({"one": config}, close_timeout_ms=100) as lanes:
            jobs.append(lanes.submit("one", diary.cling, "stubborn", 5_000))
            group.create_task(wait(jobs[0]))
            await passing()
            raise KeyError

    jobs: list[Job[str]] = []
    async with asyncio.TaskGroup() as group:
        with pytest.raises(KeyError):
            await owner(group)
        assert now_ms() == 101
        await passing(10)
        assert isinstance(waited[0], JobCancelledError)
        assert jobs[0].state is JobState.CANCELLED
        await passing(10_000)


@simulated
async def test_close_cancels_and_twice_changes_nothing() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", diary.hold, "a")
        await passing()
        await lanes.close()
        await lanes.close()
        assert job.state is JobState.CANCELLED
        with pytest.raises(ClosedError):
            lanes.submit("one", never)
    assert diary.cancelled == ["a"]


@simulated
async def test_a_cancelled_task_that_owns_the_lanes_cancels_its_jobs() -> None:
    diary = Diary()

    async def owner() -> None:
        async with new_lanes({"one": 1}) as lanes:
            lanes.submit("one", diary.hold, "a")
            await passing(10_000)

    task = asyncio.ensure_future(owner())
    await passing()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert diary.cancelled == ["a"]


@simulated
async def test_a_task_cancelled_while_it_leaves_still_ends_its_jobs() -> None:
    diary = Diary()

    async def owner() -> None:
        async with new_lanes({"one": 1}) as lanes:
            lanes.submit("one", diary.hold, "a")

    task = asyncio.ensure_future(owner())
    await passing()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await passing()
    assert diary.cancelled == ["a"]


# ---- nothing left behind ----


@simulated
async def test_closing_leaves_no_task_and_no_thread() -> None:
    diary = Diary()
    threads = set(threading.enumerate())
    tasks = asyncio.all_tasks()
    async with new_lanes({"lane": 3}) as lanes:
        stream = lanes.subscribe()
        for number in range(5):
            lanes.submit("lane", diary.work, f"{number}", timeout_ms=60_000)
            lanes.submit("lane", diary.note, f"{number}")
        async with lanes.slot("lane"):
            await passing()
    assert asyncio.all_tasks() == tasks
    assert set(threading.enumerate()) <= threads
    stream.close()


def test_no_timer_is_armed_when_nothing_is_left_to_do() -> None:
    loop = SimLoop(seed=1, max_steps=10_000)
    moments: list[float] = []

    async def main() -> None:
        diary = Diary()
        config = LaneConfig(
            concurrency=2,
            timeout_ms=3_600_000,
            wait_timeout_ms=3_600_000,
            pressure_threshold=1,
            fair_by="tenant",
        )
        async with new_lanes({"lane": config}, max_concurrent=2) as lanes:
            jobs = [lanes.submit("lane", diary.work, f"{number}", deadline_ms=3_600_000) for number in range(10)]
            cancelled = lanes.submit("lane", never, delay_ms=3_600_000)
            cancelled.cancel()
            await asyncio.gather(*jobs)
            moments.append(loop.time())
            steps.append(loop.steps)
            await asyncio.Event().wait()  # idle lanes: nothing may ever wake this loop again

    steps: list[int] = []
    with pytest.raises(SimDeadlockError) as caught:
        loop.run_until_complete(loop.create_task(main()))
    assert f"virtual time {moments[0]}" in str(caught.value)
    assert loop.steps - steps[0] < 5
    loop.max_steps = None
    loop.cancel_leftovers()
    loop.close()


def test_closed_lanes_leave_no_timer() -> None:
    loop = SimLoop(seed=1, max_steps=10_000)

    async def owner() -> None:
        async with new_lanes({"lane": LaneConfig(timeout_ms=3_600_000)}) as lanes:
            lanes.submit("lane", Diary().hold, "a")
            lanes.submit("lane", never, delay_ms=3_600_000)
            lanes.close_until("lane", 1_700_009_000_000)
            await passing(5)
            raise KeyError

    async def main() -> None:
        with pytest.raises(KeyError):
            await owner()
        await asyncio.Event().wait()

    with pytest.raises(SimDeadlockError, match=r"virtual time 0\.005"):
        loop.run_until_complete(loop.create_task(main()))
    loop.max_steps = None
    loop.cancel_leftovers()
    loop.close()


def test_closed_lanes_are_garbage() -> None:
    async def main() -> None:
        diary = Diary()
        async with new_lanes({"lane": 2}) as lanes:
            lanes.on_change(lambda _: None)
            await asyncio.gather(*[lanes.submit("lane", diary.work, f"{number}") for number in range(10)])

    def count() -> int:
        gc.collect()
        return sum(type(one) in (Lanes, Job) for one in gc.get_objects())  # isinstance would run code of others

    before = count()
    run_sim(main(), seed=1)
    assert count() <= before


@simulated
async def test_lanes_are_opened_once() -> None:
    lanes = new_lanes({"one": 1})
    async with lanes:
        with pytest.raises(LanewayError, match="open"):
            async with lanes:
                pass
        assert await lanes.run("one", value, 1) == 1
    with pytest.raises(ClosedError):
        async with lanes:
            pass
