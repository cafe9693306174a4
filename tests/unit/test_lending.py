"""Lending: a job that waits for a job or a slot of the same lanes does not sit on what it holds."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from laneway import (
    Group,
    Job,
    JobCancelledError,
    JobState,
    JobTimeoutError,
    LaneConfig,
    LaneCycleError,
    RateLimit,
    UsageError,
    WaitTimeoutError,
)
from laneway.sim.loop import run_sim
from tests.stage import Diary, contextless, grouped, new_lanes, now_ms, passing, simulated, value


@simulated
async def test_a_job_awaits_a_child_in_its_own_lane_of_width_one() -> None:
    diary = Diary()

    async def parent() -> str:
        job = lanes.submit("one", diary.work, "child")
        await passing()
        assert diary.began == []
        answer = await job
        assert lanes.stats().lanes["one"].running == 1
        return f"parent of {answer}"

    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", parent)
        other = lanes.submit("one", diary.work, "other")
        await passing(5)
        assert job.state is JobState.LENT
        assert (lanes.stats().lent, lanes.stats().running, lanes.stats().lanes["one"].lent) == (1, 1, 1)
        assert await job == "parent of child"
        await other
    assert diary.began == ["child", "other"]  # a job that a lent job waits for goes first, taking back before starting


@simulated
async def test_a_chain_of_ten_generations_fits_into_width_one() -> None:
    async def descend(depth: int) -> int:
        assert lanes.stats().lanes["one"].running == 1
        return 1 + (await lanes.run("one", descend, depth - 1) if depth else 0)

    async with new_lanes({"one": 1}, max_concurrent=1) as lanes:
        assert await lanes.run("one", descend, 9) == 10


@simulated
async def test_children_that_are_gathered_run_one_at_a_time() -> None:
    diary = Diary()

    async def parent() -> list[str]:
        return list(await asyncio.gather(*[lanes.run("one", diary.work, name) for name in "abc"]))

    async with new_lanes({"one": 1}) as lanes:
        assert await lanes.run("one", parent) == ["a", "b", "c"]
    assert diary.peak == 1


@simulated
async def test_the_parent_takes_back_before_what_waits_to_start() -> None:
    order: list[str] = []

    async def parent() -> None:
        await lanes.run("other", value)
        order.append("parent again")

    async def late() -> None:
        order.append("late")

    async with new_lanes({"one": 1, "other": 1}) as lanes:
        lanes.pause("other")
        job = lanes.submit("one", parent)
        await passing()
        blocker = Diary()
        lanes.submit("one", blocker.hold, "blocker")  # has the lane while the parent has lent it
        await passing()
        lanes.submit("one", late)
        lanes.resume("other")
        await passing()
        assert (job.state, str(job.explain()).count("lent")) == (JobState.LENT, 1)
        blocker.let_go("blocker")
    assert order == ["parent again", "late"]


@simulated
async def test_what_was_lent_comes_back_in_spite_of_pause_width_zero_and_rate() -> None:
    async def parent(lane: str) -> str:
        await lanes.run("other", value)
        return lane

    config: dict[str, LaneConfig | int] = {
        "paused": 1,
        "narrow": 1,
        "rated": LaneConfig(rate_limit=RateLimit.per_hour(1)),
        "other": 3,
    }
    async with new_lanes(config) as lanes:
        lanes.pause("other")
        jobs = [lanes.submit(lane, parent, lane) for lane in ("paused", "narrow", "rated")]
        await passing()
        lanes.pause("paused")
        lanes.resize("narrow", 0)
        lanes.resume("other")
        assert await asyncio.gather(*jobs) == ["paused", "narrow", "rated"]


@simulated
async def test_group_and_shared_cap_are_lent_too() -> None:
    async def parent(depth: int) -> int:
        return 1 + (await lanes.run("ab"[depth % 2], parent, depth - 1) if depth else 0)

    group = Group(cap=1, lanes=["a", "b"])
    async with new_lanes({"a": 1, "b": 1}, groups={"both": group}, max_concurrent=1) as lanes:
        assert await lanes.run("a", parent, 5) == 6
        assert lanes.stats().running == 0


@simulated
async def test_a_slot_inside_a_job_lends_the_job_while_it_waits() -> None:
    order: list[str] = []

    async def first() -> None:
        async with lanes.slot("b"):
            order.append("first has b")
            await passing()

    async def second() -> None:
        async with lanes.slot("a"):
            order.append("second has a")
            await passing()

    async with new_lanes({"a": 1, "b": 1}) as lanes:  # each has what the other wants
        await asyncio.gather(lanes.submit("a", first), lanes.submit("b", second))
        assert sorted(order) == ["first has b", "second has a"]
        assert all(lane.running == 0 for lane in lanes.stats().lanes.values())


@simulated
async def test_a_slot_block_that_awaits_a_job_lends_its_slot() -> None:
    async with new_lanes({"one": 1}) as lanes:
        async with lanes.slot("one"):
            assert await lanes.run("one", value, "inside") == "inside"
            assert lanes.stats().lanes["one"].running == 1
        assert lanes.stats().lanes["one"].running == 0


@simulated
async def test_a_slot_of_the_jobs_own_lane_is_counted_once() -> None:
    async def job() -> int:
        async with lanes.slot("one"):
            return lanes.stats().lanes["one"].running

    async with new_lanes({"one": 1}, max_concurrent=1) as lanes:
        assert await lanes.run("one", job) == 1


@simulated
async def test_two_slots_of_one_lane_in_two_tasks_of_a_job_exclude_each_other() -> None:
    diary = Diary()

    async def use(name: str) -> None:
        async with lanes.slot("tool"):
            await diary.work(name)

    async def job() -> None:
        await asyncio.gather(use("a"), use("b"))

    async with new_lanes({"main": 1, "tool": 1}) as lanes:
        await lanes.run("main", job)
    assert (diary.peak, sorted(diary.ended)) == (1, ["a", "b"])


@simulated
async def test_a_cancelled_wait_returns_at_once_and_the_job_goes_on_lent() -> None:
    diary = Diary()
    states: list[JobState] = []

    async def parent() -> str:
        child = lanes.submit("one", diary.hold, "child")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await child
        assert now_ms() == 50
        states.append(job.state)
        diary.let_go("child")
        await passing(10)
        states.append(job.state)
        return "done"

    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", parent)
        assert await job == "done"
    assert states == [JobState.LENT, JobState.RUNNING]


@simulated
async def test_a_cancelled_request_for_a_slot_inside_a_job_leaves_the_job_whole() -> None:
    diary = Diary()

    async def parent() -> int:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02), lanes.slot("tool"):
                pass
        with pytest.raises(WaitTimeoutError):
            async with lanes.slot("tool", wait_timeout_ms=20):
                pass
        return lanes.stats().lanes["main"].running

    async with new_lanes({"main": 1, "tool": 1}) as lanes:
        lanes.submit("tool", diary.hold, "busy")
        assert await lanes.run("main", parent) == 1
        assert lanes.stats().waiting == 0
        diary.let_go("busy")


@pytest.mark.parametrize("seed", range(40))
def test_a_wait_cancelled_in_the_moment_it_ends_does_not_hang(seed: int) -> None:
    async def main() -> None:
        async def wait_for_a_job() -> str:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01):  # due at the very instant at which the child ends
                    await lanes.submit("other", passing, 10)
            return "job"

        async def wait_for_a_slot() -> str:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.01), lanes.slot("busy"):
                    await passing()
            return "slot"

        async with new_lanes({"one": 2, "other": 2, "busy": 1}) as lanes:
            lanes.submit("busy", passing, 10)
            jobs = [lanes.submit("one", wait_for_a_job), lanes.submit("one", wait_for_a_slot)]
            assert list(await asyncio.gather(*jobs)) == ["job", "slot"]
            await passing()
            assert lanes.jobs() == []

    run_sim(main(), seed=seed)


@simulated
async def test_a_wait_cancelled_while_the_job_takes_back_returns_at_once() -> None:
    diary = Diary()
    moments: list[tuple[int, JobState]] = []

    async def parent() -> str:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await lanes.submit("other", passing, 10)
        moments.append((now_ms(), job.state))
        return "goes on"

    async with new_lanes({"one": 1, "other": 1}) as lanes:
        job = lanes.submit("one", parent)
        await passing()
        lanes.submit("one", diary.work, "has the lane", 200)
        assert await job == "goes on"
    assert moments == [(50, JobState.LENT)]


@simulated
async def test_the_run_timeout_runs_on_while_lent() -> None:
    diary = Diary()

    async def parent() -> None:
        await lanes.submit("other", diary.hold, "child")

    async with new_lanes({"one": 1, "other": 1}) as lanes:
        job = lanes.submit("one", parent, timeout_ms=100)
        with pytest.raises(JobTimeoutError):
            await job
        assert now_ms() == 100
        diary.let_go("child")


@simulated
async def test_waits_of_several_tasks_return_when_the_last_is_over() -> None:
    diary = Diary()
    back: list[tuple[str, int]] = []

    async def wait_for(name: str, ms: int) -> None:
        await lanes.submit("other", diary.work, name, ms)
        back.append((name, now_ms()))

    async def parent() -> None:
        await asyncio.gather(wait_for("short", 10), wait_for("long", 30))

    async with new_lanes({"one": 1, "other": 2}) as lanes:
        job = lanes.submit("one", parent)
        await passing(20)
        assert job.state is JobState.LENT
        await job
    assert back[-1] == ("long", 30)


@simulated
async def test_what_a_lent_job_waits_for_goes_first_inside_its_level() -> None:
    diary = Diary()

    async def parent(child: Job[str]) -> str:
        return await child

    async with new_lanes({"work": 1, "main": 1}) as lanes:
        lanes.submit("work", diary.hold, "busy")
        jobs = {name: lanes.submit("work", diary.work, name) for name in "abc"}
        waiter = lanes.submit("main", parent, jobs["c"])
        await passing()
        diary.let_go("busy")
        assert await waiter == "c"
    assert diary.began == ["busy", "c", "a", "b"]


@simulated
async def test_a_wait_from_outside_lends_nothing() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", diary.work, "a")
        await job
        assert lanes.stats().lent == 0
    async with new_lanes({"one": 1}) as outer, new_lanes({"one": 1}) as inner:

        async def parent() -> object:
            waited = asyncio.ensure_future(inner.run("one", diary.work, "elsewhere"))
            await passing(5)
            assert outer.stats().lent == 0
            return await waited

        assert await outer.run("one", parent) == "elsewhere"


@simulated
async def test_slots_released_out_of_order_leave_the_job_able_to_lend() -> None:
    async def parent() -> object:
        first, second = lanes.slot("x"), lanes.slot("y")
        async with first, second:
            first.release()  # before the one inside it
            second.release()
            assert await lanes.run("one", value, "inside") == "inside"
        return await lanes.run("one", value, "child")

    async with new_lanes({"one": 1, "x": 1, "y": 1}) as lanes:
        assert await asyncio.wait_for(asyncio.shield(lanes.submit("one", parent)), 1) == "child"


@simulated
async def test_a_slot_without_a_block_is_refused_inside_a_job() -> None:
    async def job() -> str:
        slot = lanes.slot("x")
        with pytest.raises(UsageError, match="async with"):
            await slot.acquire()
        assert slot.id is None
        return "goes on"

    async with new_lanes({"one": 1, "x": 1}) as lanes:
        assert await lanes.run("one", job) == "goes on"
        assert lanes.stats().lanes["x"].running == 0


@simulated
async def test_a_task_made_inside_a_slot_lends_the_job_after_the_slot_is_gone() -> None:
    async def later() -> object:
        await passing(10)
        return await lanes.run("one", value, "child")

    async def parent() -> object:
        async with lanes.slot("x"):
            task = asyncio.ensure_future(later())
        return await task

    async with new_lanes({"one": 1, "x": 1}) as lanes:
        assert await asyncio.wait_for(asyncio.shield(lanes.submit("one", parent)), 1) == "child"


@simulated
async def test_a_job_cannot_wait_for_itself() -> None:
    async def itself() -> str:
        with pytest.raises(LaneCycleError) as caught:
            await jobs[0]
        assert (caught.value.job_id, caught.value.target_id) == (jobs[0].id, jobs[0].id)
        assert caught.value.hint
        return "alive"

    async with new_lanes({"one": 1}) as lanes:
        jobs: list[Job[str]] = []
        jobs.append(lanes.submit("one", itself))
        assert await jobs[0] == "alive"


@simulated
async def test_a_circle_of_waits_is_refused_and_the_awaited_job_is_untouched() -> None:
    refused: list[str] = []

    async def wait_for(name: str, other: str) -> str:
        await passing(1 if name == "a" else 2)
        outcome = (await asyncio.gather(wait(other), return_exceptions=True))[0]
        if isinstance(outcome, LaneCycleError):
            assert set(outcome.path) == {job.id for job in jobs.values()}
            refused.append(name)
            assert jobs[other].state is JobState.LENT
        return name

    async def wait(name: str) -> str:
        return await jobs[name]

    async with new_lanes({"lane": 3}) as lanes:
        jobs: dict[str, Job[str]] = {}
        for name, other in ("ab", "bc", "ca"):
            jobs[name] = lanes.submit("lane", wait_for, name, other)
        assert await asyncio.gather(*jobs.values()) == ["a", "b", "c"]
    assert len(refused) == 1


@simulated
async def test_awaiting_a_stranger_behind_oneself_in_an_exclusive_lane_is_a_cycle() -> None:
    async def owner() -> str:
        with pytest.raises(LaneCycleError):
            await stranger
        assert stranger.state is JobState.QUEUED
        return "owner"

    async with new_lanes() as lanes:
        job = lanes.submit("session:s", owner)
        stranger = lanes.submit("session:s", value, "stranger")
        assert await job == "owner"
        assert await stranger == "stranger"


@simulated
async def test_an_exclusive_lane_is_lent_to_descendants_only() -> None:
    diary = Diary()

    async def parent() -> str:
        return await lanes.run("session:s", child)

    async def child() -> str:
        await passing()
        assert stranger.state is JobState.QUEUED
        return await lanes.run("session:s", diary.work, "grandchild")

    async with new_lanes() as lanes:
        job = lanes.submit("session:s", parent)
        stranger = lanes.submit("session:s", diary.work, "stranger")
        assert await job == "grandchild"
        await stranger
    assert diary.began == ["grandchild", "stranger"]


@simulated
async def test_cancelling_the_lender_first_ends_the_descendants_that_have_the_lane() -> None:
    order: list[str] = []

    async def child() -> None:
        try:
            await passing(10_000)
        finally:
            await passing(50)
            order.append("child ended")

    async def parent() -> None:
        try:
            await lanes.run("session:s", child)
        finally:
            order.append("parent ended")

    async with new_lanes() as lanes:
        job = lanes.submit("session:s", parent)
        await passing(10)
        job.cancel("stop")
        with pytest.raises(JobCancelledError, match="stop"):
            await job
        assert now_ms() == 60
    assert order == ["child ended", "parent ended"]


@simulated
async def test_cancelling_the_wait_of_a_lender_first_ends_its_heirs() -> None:
    diary = Diary()

    async def parent() -> str:
        child = lanes.submit("session:s", diary.hold, "heir")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await child
        assert child.state is JobState.CANCELLED
        with pytest.raises(JobCancelledError, match="stopped waiting"):
            await child
        return "goes on"

    async with new_lanes() as lanes:
        job = lanes.submit("session:s", parent)
        assert await job == "goes on"
    assert diary.cancelled == ["heir"]


@simulated
async def test_an_heir_that_will_not_end_is_abandoned_and_the_lender_goes_on() -> None:
    diary = Diary()

    async def parent() -> int:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await lanes.submit("session:s", diary.cling, "heir", 60_000)
        return now_ms()

    async with new_lanes() as lanes:
        assert await lanes.run("session:s", parent) == 5_010  # the wait, then the grace
        assert lanes.stats().abandoned == 1
        await passing(60_000)


@simulated
async def test_a_descendant_keeps_an_exclusive_lane_past_its_lender() -> None:
    diary = Diary()
    left: list[asyncio.Task[str]] = []

    async def parent() -> None:
        async def wait() -> str:
            return await lanes.submit("other", diary.hold, "elsewhere")

        left.append(asyncio.ensure_future(wait()))  # lends the session to descendants
        lanes.submit("session:s", diary.hold, "heir")
        await passing(10)

    async with new_lanes({"other": 1}) as lanes:
        job = lanes.submit("session:s", parent)
        await passing(5)
        assert "heir" in diary.began
        following = lanes.submit("session:s", diary.work, "following")
        await job
        await passing(50)
        assert "following" not in diary.began
        diary.let_go("heir", "elsewhere")
        await following
        await left[0]
    assert diary.began[-1] == "following"


@simulated
async def test_takers_are_served_first_come_first_served() -> None:
    diary = Diary()
    order: list[str] = []

    async def parent(name: str, ms: int) -> None:
        await lanes.submit("other", diary.work, name, ms)
        order.append(name)
        await passing(10)

    async with new_lanes({"one": 1, "other": 9}) as lanes:
        jobs = [lanes.submit("one", parent, name, ms) for name, ms in (("a", 30), ("b", 20), ("c", 10))]
        await passing(1)
        lanes.submit("one", diary.hold, "holds the lane")
        await passing(50)
        assert order == []
        diary.let_go("holds the lane")
        await asyncio.gather(*jobs)
    assert order == ["c", "b", "a"]


@simulated
async def test_a_cap_kept_for_a_taker_does_not_lock_out_the_job_that_has_its_lane() -> None:
    diary = Diary()

    async def parent() -> str:
        return await lanes.submit("other", diary.work, "child")

    async with new_lanes({"a": 1, "b": 1, "other": 1}, max_concurrent=1) as lanes:
        job = lanes.submit("a", parent)
        await passing()
        both = lanes.submit(["a", "b"], diary.work, "both")  # has the lent `a`, waits for the cap
        await passing()
        assert lanes.stats().lanes["a"].running == 1
        assert list(await asyncio.wait_for(asyncio.gather(job, both), 10)) == ["child", "both"]


@simulated
async def test_a_taker_behind_a_blocked_one_does_not_lock_the_cap() -> None:
    diary = Diary()

    async def parent(name: str) -> str:
        return await lanes.submit("other", diary.work, name)

    async with new_lanes({"a": 1, "b": 1, "c": 1, "other": 1}, max_concurrent=1) as lanes:
        lanes.pause("other")
        lanes.pause("b")
        first = lanes.submit("a", parent, "first")
        second = lanes.submit("c", parent, "second")
        await passing()
        both = lanes.submit(["a", "b"], diary.work, "both")  # has the `a` that the first has lent
        await passing()
        lanes.resume("other")
        await passing(50)
        lanes.resume("b")
        outcomes = await asyncio.wait_for(asyncio.gather(first, second, both), 10)
    assert list(outcomes) == ["first", "second", "both"]


@simulated
async def test_random_families_of_jobs_all_come_to_an_end() -> None:
    running: dict[str, int] = {}

    async def work(lane: str, seed: int) -> None:
        running[lane] = running.get(lane, 0) + 1
        await passing(seed % 3)
        running[lane] -= 1
        if seed > 1:
            children = [lanes.submit(("a", "b", "session:s")[(seed + n) % 3], work_in, seed // 2, n) for n in range(2)]
            await asyncio.gather(*children[: seed % 3], return_exceptions=True)

    async def work_in(seed: int, n: int) -> None:
        await work(("a", "b", "session:s")[(seed + n) % 3], seed)

    async with grouped({"a": 1, "b": 2}, both=Group(cap=2, lanes=["a", "b"])) as lanes:
        jobs = [lanes.submit(("a", "b")[seed % 2], work, ("a", "b")[seed % 2], seed) for seed in range(12)]
        await asyncio.gather(*jobs)
    assert set(running.values()) == {0}


@simulated
async def test_a_task_that_was_made_elsewhere_is_not_inside_the_job() -> None:
    async with new_lanes({"one": 1, "other": 1}) as lanes:

        async def parent() -> JobState:
            task = asyncio.get_running_loop().create_task(lanes.run("other", passing, 50), context=contextless())
            await passing(10)
            state = job.state
            await task
            return state

        job = lanes.submit("one", parent)
        assert await job is JobState.RUNNING
