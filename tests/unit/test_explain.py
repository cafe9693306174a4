"""Why a job is where it is: one sentence and data, for every reason to wait."""

from __future__ import annotations

import asyncio

import pytest

from laneway import (
    Explanation,
    Group,
    Job,
    JobCancelledError,
    JobState,
    LaneConfig,
    Priority,
    RateLimit,
    RetryLater,
    RetryPolicy,
    UnknownJobError,
    WaitReason,
)
from tests.stage import Diary, never, new_lanes, passing, simulated, value

WALL = 1_700_000_000_000


def check_reason(job: Job[object], reason: WaitReason, *words: str) -> Explanation:
    """The explanation has this reason, and its sentence names the job and these words."""
    explanation = job.explain()
    assert explanation.reason is reason, str(explanation)
    assert explanation.job_id == job.id
    assert explanation.state is job.state
    for word in (job.id, *words):
        assert word in str(explanation), str(explanation)
    assert "\n" not in str(explanation)
    return explanation


@simulated
async def test_a_running_job_waits_for_nothing() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        job: Job[object] = lanes.submit("one", diary.hold, "a")
        await passing(1_500)
        explanation = check_reason(job, WaitReason.NOTHING, "1.5 s", "'one'", "attempt 1")
        assert (explanation.position, explanation.estimate_ms, explanation.blocked_by) == (None, None, ())
        assert lanes.explain(job.id) == explanation
        diary.let_go("a")
        await job
        check_reason(job, WaitReason.NOTHING, "ended", "succeeded")
        with pytest.raises(UnknownJobError):
            lanes.explain(job.id)


@simulated
async def test_a_job_that_is_being_ended_says_so() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        job: Job[object] = lanes.submit("one", diary.cling, "a", 50)
        await passing()
        job.cancel("enough")
        check_reason(job, WaitReason.NOTHING, "being ended", "enough")
        with pytest.raises(JobCancelledError):
            await job
        check_reason(job, WaitReason.NOTHING, "ended", "cancelled")


@simulated
async def test_a_full_lane_gives_position_estimate_and_holders() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        await lanes.run("one", diary.work, "a measure", 100)
        running = lanes.submit("one", diary.hold, "a")
        waiting: list[Job[object]] = [lanes.submit("one", value) for _ in range(3)]
        for number, job in enumerate(waiting, start=1):
            explanation = check_reason(job, WaitReason.LANE, "'one'", "1 of 1", f"position {number}")
            assert (explanation.position, explanation.estimate_ms) == (number, 100 * number)
            assert explanation.blocked_by == (running.id,)
            assert explanation.lane == "one"
        diary.let_go("a")


@simulated
async def test_without_a_measure_there_is_no_estimate() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        lanes.submit("one", diary.hold, "a")
        job: Job[object] = lanes.submit("one", value)
        assert check_reason(job, WaitReason.LANE).estimate_ms is None
        diary.let_go("a")


@simulated
async def test_positions_follow_levels() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        lanes.submit("one", diary.hold, "a")
        low = lanes.submit("one", value, priority=Priority.BACKGROUND)
        high = lanes.submit("one", value)
        assert (high.explain().position, low.explain().position) == (1, 2)
        diary.let_go("a")


@simulated
async def test_positions_follow_fair_shares() -> None:
    diary = Diary()
    order: list[object] = []

    async def note(name: str) -> None:
        order.append(name)

    async with new_lanes({"one": LaneConfig(fair_by="tenant")}) as lanes:
        lanes.submit("one", diary.hold, "busy", tenant="nobody")
        jobs = {f"a{n}": lanes.submit("one", note, f"a{n}", tenant="a") for n in range(3)}
        jobs["b0"] = lanes.submit("one", note, "b0", tenant="b")
        positions = sorted(jobs, key=lambda name: jobs[name].explain().position or 0)
        diary.let_go("busy")
        await asyncio.gather(*jobs.values())
    assert positions == order


@simulated
async def test_paused_and_width_zero_say_so() -> None:
    async with new_lanes({"one": 1}) as lanes:
        lanes.pause("one")
        job: Job[object] = lanes.submit("one", value)
        assert check_reason(job, WaitReason.PAUSED, "'one'", "paused").position == 1
        lanes.resume("one")
        await job
        lanes.resize("one", 0)
        job = lanes.submit("one", value)
        check_reason(job, WaitReason.PAUSED, "'one'", "width 0")
        lanes.resize("one", 1)
        await job


@simulated
async def test_delays_and_retries_say_when_they_are_due() -> None:
    diary = Diary()

    async def later() -> None:
        raise RetryLater(2_000, "quota")

    async with new_lanes({"lane": 9}) as lanes:
        delayed: Job[object] = lanes.submit("lane", value, delay_ms=5_000)
        retried: Job[object] = lanes.submit("lane", diary.fail, "x", ValueError("x"), retry=RetryPolicy.fixed(1, 3_000))
        deferred: Job[object] = lanes.submit("lane", later)
        await passing(1_000)
        explanation = check_reason(delayed, WaitReason.TIME, "delay", "4.0 s")
        assert (explanation.until_ms, explanation.estimate_ms) == (WALL + 5_000, 4_000)
        explanation = check_reason(retried, WaitReason.TIME, "retry 1", "2.0 s")
        assert (explanation.until_ms, explanation.estimate_ms) == (WALL + 3_000, 2_000)
        assert check_reason(deferred, WaitReason.TIME, "1.0 s").until_ms == WALL + 2_000
        assert lanes.cancel_waiting() == 3


@simulated
async def test_a_rate_limit_says_when_the_next_token_comes() -> None:
    async with new_lanes({"rated": LaneConfig(rate_limit=RateLimit.per_minute(1))}) as lanes:
        await lanes.run("rated", value)
        job: Job[object] = lanes.submit("rated", value)
        await passing(20_000)
        explanation = check_reason(job, WaitReason.RATE, "'rated'", "40.0 s")
        assert (explanation.estimate_ms, explanation.until_ms) == (40_000, WALL + 60_000)


@simulated
async def test_a_closed_limit_says_until_when_and_why() -> None:
    async with new_lanes({"model": 1}) as lanes:
        lanes.close_until("model", WALL + 300_000, "provider said 429")
        job: Job[object] = lanes.submit("model", value)
        explanation = check_reason(job, WaitReason.CLOSED, "'model'", "5 min", "provider said 429")
        assert (explanation.until_ms, explanation.estimate_ms) == (WALL + 300_000, 300_000)
        lanes.reopen("model")


@simulated
async def test_a_group_and_the_shared_cap_are_named() -> None:
    diary = Diary()
    group = Group(cap=1, lanes=["a", "b"])
    async with new_lanes({"a": 1, "b": 1, "c": 1, "d": 1}, groups={"machine": group}, max_concurrent=2) as lanes:
        lanes.submit("a", diary.hold, "a")
        by_group: Job[object] = lanes.submit("b", value)
        check_reason(by_group, WaitReason.GROUP, "'machine'", "1 of 1")
        lanes.submit("c", diary.hold, "c")
        by_cap: Job[object] = lanes.submit("d", value)
        check_reason(by_cap, WaitReason.SHARED_CAP, "max_concurrent", "2 of 2")
        diary.let_go("a", "c")


@simulated
async def test_threads_and_those_behind_a_job_that_waits_for_one_are_told_apart() -> None:
    diary = Diary()
    async with new_lanes({"other": 1, "lane": 2}, threads_max=1) as lanes:
        lanes.submit("other", diary.note, "has the thread")
        waits: Job[object] = lanes.submit("lane", diary.note, "waits for it")
        behind: Job[object] = lanes.submit("lane", value)
        check_reason(waits, WaitReason.THREADS, "threads_max", "1 of 1")
        assert check_reason(behind, WaitReason.ORDER, "'lane'", "behind", "position 2").position == 2


@simulated
async def test_an_exclusive_lane_names_its_owner() -> None:
    diary = Diary()
    async with new_lanes() as lanes:
        owner = lanes.submit("session:s", diary.hold, "owner")
        job: Job[object] = lanes.submit("session:s", value)
        assert check_reason(job, WaitReason.EXCLUSIVE, "'session:s'", owner.id).blocked_by == (owner.id,)
        diary.let_go("owner")


@simulated
async def test_a_lent_job_names_what_it_waits_for_and_then_what_it_wants_back() -> None:
    diary = Diary()

    async def parent() -> None:
        await lanes.submit("other", diary.hold, "child")

    async with new_lanes({"one": 1, "other": 1}) as lanes:
        job: Job[object] = lanes.submit("one", parent)
        await passing()
        (child,) = lanes.jobs("other")
        assert check_reason(job, WaitReason.CHILD, child.id, "lent").blocked_by == (child.id,)
        lanes.submit("one", diary.hold, "has the lane")
        await passing()
        diary.let_go("child")
        await passing()
        assert job.state is JobState.LENT
        check_reason(job, WaitReason.TAKE_BACK, "'one'")
        diary.let_go("has the lane")


@simulated
async def test_a_job_of_several_lanes_names_the_one_it_waits_for() -> None:
    diary = Diary()
    async with new_lanes({"a": 1, "b": 1}) as lanes:
        lanes.submit("b", diary.hold, "busy")
        job: Job[object] = lanes.submit(["a", "b"], value)
        await passing()
        assert check_reason(job, WaitReason.LANE, "'b'").lane == "b"
        diary.let_go("busy")


@simulated
async def test_explaining_changes_nothing() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        lanes.submit("one", diary.work, "a")
        jobs: list[Job[object]] = [lanes.submit("one", diary.work, f"{number}") for number in range(3)]
        for _ in range(3):
            assert [job.explain().position for job in jobs] == [1, 2, 3]
        gone = lanes.submit("one", never)
        gone.cancel()
        assert [job.explain().position for job in jobs] == [1, 2, 3]
    assert diary.began == ["a", "0", "1", "2"]
