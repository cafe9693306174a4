"""Scenarios 1 to 18 of the behaviour page: given / when / then."""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from types import FrameType

import pytest

from laneway import (
    AbortSignal,
    DrainingError,
    Job,
    JobAbortedError,
    JobCancelledError,
    JobState,
    JobTimeoutError,
    LaneConfig,
    LaneFullError,
    Lanes,
    Priority,
    Snapshot,
    WaitTimeoutError,
)
from laneway.sim.loop import run_sim
from laneway.testing import fake_host
from tests.stage import Diary, never, new_lanes, now_ms, passing, seen, simulated, stepping_lanes, value


@simulated
async def test_01_width_one_runs_in_order() -> None:
    """Width 1 / three jobs / one at a time, in order, results to their callers."""
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        jobs = [lanes.submit("one", diary.work, name) for name in "abc"]
        assert await asyncio.gather(*jobs) == ["a", "b", "c"]
    assert diary.began == diary.ended == ["a", "b", "c"]
    assert diary.peak == 1


@simulated
async def test_02_a_paused_lane_resumes_level_by_level() -> None:
    """Paused lane with 20 scheduled, 18 background, 18 user jobs / resume / user, scheduled, background, each FIFO."""
    diary = Diary()
    levels = [(Priority.SCHEDULED, 20), (Priority.BACKGROUND, 18), (Priority.USER, 18)]
    async with new_lanes({"one": 1}) as lanes:
        lanes.pause("one")
        names = [f"{level.name}-{number}" for level, count in levels for number in range(count)]
        jobs = [lanes.submit("one", diary.work, name, priority=Priority[name.split("-")[0]]) for name in names]
        await passing(500)
        assert diary.began == []
        lanes.resume("one")
        await asyncio.gather(*jobs)
    order = {"USER": 0, "SCHEDULED": 1, "BACKGROUND": 2}
    assert diary.began == sorted(names, key=lambda name: order[name.split("-")[0]])


@simulated
async def test_03_an_aged_background_job_goes_before_a_fresh_scheduled_one() -> None:
    """Background waiting 60 s and more / a fresh scheduled job arrives / the aged one goes first."""
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        lanes.submit("one", diary.hold, "busy")
        old = lanes.submit("one", diary.work, "aged", priority=Priority.BACKGROUND)
        await passing(60_001)
        fresh = lanes.submit("one", diary.work, "fresh", priority=Priority.SCHEDULED)
        diary.let_go("busy")
        await asyncio.gather(old, fresh)
    assert diary.began == ["busy", "aged", "fresh"]


@simulated
async def test_04_a_clock_stepped_back_changes_no_order() -> None:
    """Equal level and the clock stepped back 60 s / drain / sequence decides."""
    diary = Diary()
    lanes, clock = stepping_lanes({"one": 1})
    async with lanes:
        for name in "abcdef":
            lanes.submit("one", diary.work, name)
            clock.jump_wall(-60_000)
        report = await lanes.drain()
    assert report.finished
    assert diary.began == list("abcdef")


@simulated
async def test_05_a_cancelled_waiter_leaves_alone() -> None:
    """A waiting job is cancelled / then / only it leaves, its caller gets the reason, others keep their order."""
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        jobs = {name: lanes.submit("one", diary.work, name) for name in "abcde"}
        assert jobs["c"].cancel("changed my mind")
        with pytest.raises(JobCancelledError, match="changed my mind") as caught:
            await jobs["c"]
        assert caught.value.reason == "changed my mind"
        assert jobs["c"].state is JobState.CANCELLED
        assert [await jobs[name] for name in "abde"] == list("abde")
    assert diary.began == list("abde")


@simulated
async def test_06_a_fired_signal_refuses_before_the_queue() -> None:
    """The signal has fired already / submit with a free slot / refused, never started."""
    signal = AbortSignal()
    signal.abort("too late")
    async with new_lanes({"one": 1}) as lanes:
        before = seen(lanes)
        with pytest.raises(JobAbortedError, match="too late"):
            lanes.submit("one", never, signal=signal)
        assert seen(lanes) == before


@simulated
async def test_07_the_fourth_waits_for_one_of_three_slots() -> None:
    """3 slots / a 4th asks / waits; one is released / it starts; snapshots {3,1} then {3,0}."""
    snapshots: list[Snapshot] = []
    diary = Diary()

    async def use(name: str) -> None:
        async with lanes.slot("agent", label=name):
            await diary.hold(name)

    async with Lanes.limiter(3, host=fake_host()) as lanes, asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(use(name))
        await passing()
        stop = lanes.on_change(snapshots.append)
        group.create_task(use("fourth"))
        await passing()
        assert "fourth" not in diary.began
        assert lanes.status_line() == "Agent: 3/3 (1 queued)"
        diary.let_go("a")
        await passing()
        assert "fourth" in diary.began
        assert snapshots == [
            Snapshot(running=3, waiting=1, max_concurrent=3),
            Snapshot(running=3, waiting=0, max_concurrent=3),
        ]
        stop()
        diary.let_go("b", "c", "fourth")


@simulated
async def test_08_release_counts_once() -> None:
    """Release called three times / then / counted once."""
    diary = Diary()
    async with new_lanes({"two": 2}) as lanes:
        slot = lanes.slot("two")
        await slot.acquire()
        jobs = [lanes.submit("two", diary.hold, name) for name in "abc"]
        await passing()
        assert diary.began == ["a"]
        for _ in range(3):
            slot.release()
        await passing()
        assert sorted(diary.began) == ["a", "b"]
        assert (lanes.stats().running, jobs[2].state) == (2, JobState.QUEUED)
        diary.let_go(*"abc")


@simulated
async def test_09_a_full_lane_refuses_and_changes_nothing() -> None:
    """Depth reached / submit / LaneFullError, nothing changed."""
    diary = Diary()
    async with new_lanes({"one": LaneConfig(queued_max=2)}) as lanes:
        for name in "abc":
            lanes.submit("one", diary.work, name)
        before = seen(lanes)
        with pytest.raises(LaneFullError) as caught:
            lanes.submit("one", never)
        assert (caught.value.lane, caught.value.queued_max) == ("one", 2)
        assert caught.value.hint
        assert seen(lanes) == before
    assert diary.ended == list("abc")


@simulated
async def test_10_a_wait_timeout_is_not_a_cancel() -> None:
    """Wait timeout passes / then / WaitTimeoutError, not a cancel."""
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        lanes.submit("one", diary.hold, "busy")
        late = lanes.submit("one", never, wait_timeout_ms=250)
        with pytest.raises(WaitTimeoutError) as caught:
            await late
        assert not isinstance(caught.value, JobCancelledError)
        assert late.state is JobState.TIMED_OUT
        assert now_ms() == 250
        diary.let_go("busy")


@simulated
async def test_11_a_width_can_grow_and_shrink_at_any_time() -> None:
    """Width 1→2 / a waiter starts without a new submit; 3→1 / nobody is evicted, nobody admitted until under."""
    diary = Diary()
    async with new_lanes({"lane": 1}) as lanes:
        for name in "abcdef":
            lanes.submit("lane", diary.hold, name)
        lanes.resize("lane", 2)
        await passing()
        assert sorted(diary.began) == ["a", "b"]
        lanes.resize("lane", 3)
        lanes.resize("lane", 1)
        await passing()
        assert sorted(diary.began) == ["a", "b", "c"]
        diary.let_go("a", "b")
        await passing()
        assert (sorted(diary.began), sorted(diary.ended), diary.cancelled) == (["a", "b", "c"], ["a", "b"], [])
        diary.let_go("c")
        await passing()
        assert diary.began[3:] == ["d"]
        diary.let_go(*"def")


@simulated
async def test_12_cancel_waiting_leaves_what_runs() -> None:
    """cancel_waiting with 3 / then / 3 rejected, returns 3, running ones untouched."""
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        running = lanes.submit("one", diary.work, "running")
        waiting: list[Job[None]] = [lanes.submit("one", never) for _ in range(3)]
        assert lanes.cancel_waiting() == 3
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [JobCancelledError] * 3
        assert await running == "running"


@simulated
async def test_13_what_outlives_its_grace_is_abandoned() -> None:
    """A job outlives its timeout and its grace / the next one runs, its late result changes nothing, it is counted."""
    diary = Diary()
    async with new_lanes({"one": LaneConfig(cancel_grace_ms=100)}) as lanes:
        stubborn = lanes.submit("one", diary.cling, "stubborn", 5_000, timeout_ms=50)
        following = lanes.submit("one", diary.work, "following")
        with pytest.raises(JobTimeoutError, match="abandoned"):
            await stubborn
        assert now_ms() == 150
        assert await following == "following"
        assert (lanes.stats().abandoned, lanes.stats().lanes["one"].abandoned) == (1, 1)
        before = seen(lanes)
        await passing(10_000)
        assert "stubborn" in diary.ended
        assert stubborn.state is JobState.TIMED_OUT
        assert seen(lanes) == before


@simulated
async def test_14_a_lane_survives_a_handler_that_raises() -> None:
    """A handler raises / then / the lane lives on."""
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        bad = lanes.submit("one", diary.fail, "bad", ValueError("mine"))
        good = lanes.submit("one", diary.work, "good")
        with pytest.raises(ValueError, match="mine"):
            await bad
        assert await good == "good"
        assert (lanes.stats().lanes["one"].failed, lanes.stats().lanes["one"].completed) == (1, 1)


@simulated
async def test_15_sessions_share_the_width_and_never_overlap_themselves() -> None:
    """8 sessions, width 4 / peak exactly 4, never 2 of one session; B starts at once behind 80 jobs of A."""
    diary = Diary()
    busy: dict[str, int] = {}

    async def turn(session: str) -> None:
        busy[session] = busy.get(session, 0) + 1
        assert busy[session] == 1
        await diary.work(session)
        busy[session] -= 1

    async with new_lanes({"main": 4}) as lanes:
        sessions = [f"session:{number}" for number in range(8)]
        await asyncio.gather(*[lanes.submit([one, "main"], turn, one) for one in sessions * 5])
        assert diary.peak == 4
        for _ in range(80):
            lanes.submit(["session:a", "main"], turn, "session:a")
        start = now_ms()
        await lanes.submit(["session:b", "main"], turn, "session:b")
        assert now_ms() == start + 10


@pytest.mark.slow
def test_16_ten_thousand_session_lanes_leave_no_memory() -> None:
    """10,000 session lanes finish / then / memory back to the baseline."""

    async def round_of(lanes: Lanes, first: int) -> int:
        numbers = range(first, first + 10_000)
        await asyncio.gather(*[lanes.submit(f"session:{number}", value, number) for number in numbers])
        await passing()
        assert list(lanes.stats().lanes) == []
        assert lanes.jobs() == []
        gc.collect()
        ours = (tracemalloc.Filter(True, "*/laneway/*"), tracemalloc.Filter(False, "*/laneway/sim/*"))
        return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces(ours).traces)

    async def main() -> None:
        async with new_lanes() as lanes:
            baseline = await round_of(lanes, 0)  # empty dicts keep the room they once needed: not counted again
            after = await round_of(lanes, 10_000)
            assert after - baseline < 50_000

    tracemalloc.start()
    try:
        run_sim(main(), seed=1)
    finally:
        tracemalloc.stop()


@simulated
async def test_17_draining_refuses_new_work_until_reopened() -> None:
    """Draining / submit / typed refusal; active ones finish; reopen works."""
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        active = [lanes.submit("one", diary.work, name) for name in "ab"]
        draining = asyncio.ensure_future(lanes.drain())
        await passing()
        with pytest.raises(DrainingError, match="stop") as caught:
            lanes.submit("one", never)
        assert caught.value.hint
        report = await draining
        assert (report.finished, report.cancelled, report.still_running) == (True, 0, 0)
        assert [await job for job in active] == ["a", "b"]
        lanes.reopen()
        assert await lanes.run("one", value, "again") == "again"


def calls_to_drain(jobs: int) -> int:
    """How many functions are called to submit and run this many jobs, a third of each level, some cancelled."""
    calls = 0

    def count(_frame: FrameType, event: str, _arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    async def main() -> None:
        async with new_lanes({"one": 1, "two": LaneConfig(concurrency=2, fair_by="tenant")}, max_concurrent=2) as lanes:
            made = [
                lanes.submit(("one", "two")[n % 2], value, n, priority=Priority(n % 3), tenant=f"t{n % 7}")
                for n in range(jobs)
            ]
            for job in made[::10]:
                job.cancel()
            await asyncio.gather(*made, return_exceptions=True)

    sys.setprofile(count)
    try:
        run_sim(main(), seed=3, shuffle=False)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.slow
def test_18_work_grows_no_faster_than_n_log_n() -> None:
    """Queue length doubles / submit and drain / work grows no faster than n log n."""
    small, middle, large = (calls_to_drain(jobs) for jobs in (500, 1_000, 2_000))
    assert middle < small * 2.3
    assert large < middle * 2.3
