"""What is told: event streams, pressure and alerts, and `on_change`."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from laneway import GiveUp, JobState, LaneConfig, RetryPolicy, Snapshot, Subscription
from laneway.events import (
    EVENT_TYPES,
    Event,
    EventsMissed,
    JobAbandoned,
    JobCancelled,
    JobCompleted,
    JobDeadLettered,
    JobEvent,
    JobFailed,
    JobLent,
    JobQueued,
    JobRetried,
    JobStarted,
    JobSubmitted,
    JobTimedOut,
    JobTookBack,
    LaneClosed,
    LaneIdled,
    LanePaused,
    LanePressured,
    LaneReopened,
    LaneResized,
    LaneResumed,
    QueueAlerted,
    ShutdownCompleted,
    ShutdownStarted,
)
from tests.stage import Diary, never, new_lanes, passing, simulated, value

WALL = 1_700_000_000_000


async def read(stream: Subscription) -> list[Event]:
    """Everything that the stream holds by now; ends it."""
    stream.close()
    return [event async for event in stream]


def kinds(events: list[Event]) -> list[Any]:
    return [type(event) for event in events]


# ---- event streams ----


@simulated
async def test_the_life_of_a_job_is_told_in_order() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        stream = lanes.subscribe()
        await passing(7)
        await lanes.run("one", diary.work, "a", 30, label="mine", tenant="ada")
        submitted, started, completed = await read(stream)
    assert isinstance(submitted, JobSubmitted)
    assert isinstance(started, JobStarted)
    assert isinstance(completed, JobCompleted)
    for event in (submitted, started, completed):
        assert (event.job_id, event.lane, event.label, event.tenant) == ("job-1", "one", "mine", "ada")
    assert [submitted.at_ms, started.at_ms, completed.at_ms] == [WALL + 7, WALL + 7, WALL + 37]
    assert (started.wait_ms, started.attempt, completed.run_ms) == (0, 1, 30)
    assert [submitted.state, started.state, completed.state] == [
        JobState.QUEUED,
        JobState.RUNNING,
        JobState.SUCCEEDED,
    ]


@simulated
async def test_every_end_of_a_job_has_its_event() -> None:
    diary = Diary()

    async def give_up() -> None:
        raise GiveUp("hopeless")

    async with new_lanes({"lane": LaneConfig(concurrency=9, cancel_grace_ms=10)}) as lanes:
        stream = lanes.subscribe()
        jobs: list[Any] = [
            lanes.submit("lane", diary.fail, "failed", ValueError("x")),
            lanes.submit("lane", diary.hold, "timeout", timeout_ms=5),
            lanes.submit("lane", never, delay_ms=1_000),
            lanes.submit("lane", give_up),
            lanes.submit("lane", diary.cling, "abandoned", 100, timeout_ms=5),
        ]
        jobs[2].cancel("not needed")
        await asyncio.gather(*jobs, return_exceptions=True)
        ends = {
            event.job_id: event
            for event in await read(stream)
            if isinstance(event, JobEvent) and event.state.is_final and not isinstance(event, JobAbandoned)
        }
        await passing(200)
    found = [type(ends[job.id]) for job in jobs]
    assert found == [JobFailed, JobTimedOut, JobCancelled, JobDeadLettered, JobTimedOut]
    reasons = [ends[job.id].reason for job in jobs]
    assert reasons == ["ValueError: x", "ran 5 ms", "not needed", "hopeless", "ran 5 ms"]
    assert ends[jobs[2].id].actor == "caller"


@simulated
async def test_retries_delays_lending_and_abandonment_are_told() -> None:
    diary = Diary()
    failed = [False]

    async def flaky() -> None:
        if not failed[0]:
            failed[0] = True
            raise ValueError("once")

    async def parent() -> None:
        await lanes.run("one", value)

    async with new_lanes({"one": LaneConfig(cancel_grace_ms=10)}) as lanes:
        stream = lanes.subscribe()
        retried = lanes.submit("one", flaky, retry=RetryPolicy.fixed(1, 20))
        await retried
        lent = lanes.submit("one", parent)
        await lent
        stubborn = lanes.submit("one", diary.cling, "x", 50)
        await passing()
        stubborn.cancel()
        await asyncio.gather(stubborn, return_exceptions=True)
        events = [event for event in await read(stream) if isinstance(event, JobEvent)]
        await passing(100)
    told = {job.id: [type(event) for event in events if event.job_id == job.id] for job in (retried, lent, stubborn)}
    assert told[retried.id] == [JobSubmitted, JobStarted, JobRetried, JobQueued, JobStarted, JobCompleted]
    assert told[lent.id] == [JobSubmitted, JobStarted, JobLent, JobTookBack, JobCompleted]
    assert told[stubborn.id] == [JobSubmitted, JobStarted, JobAbandoned, JobCancelled]
    (retry,) = (event for event in events if isinstance(event, JobRetried))
    assert (retry.delay_ms, retry.reason) == (20, "ValueError: once")


@simulated
async def test_what_happens_to_lanes_is_told() -> None:
    async with new_lanes({"lane": 1}) as lanes:
        stream = lanes.subscribe()
        lanes.resize("lane", 3)
        lanes.pause("lane")
        lanes.pause("lane")
        lanes.resume("lane")
        lanes.resume("lane")
        lanes.close_until("lane", WALL + 100, "quota")
        lanes.reopen("lane")
        lanes.reopen("lane")
        await lanes.drain()
        events = await read(stream)
    assert kinds(events) == [
        LaneResized,
        LanePaused,
        LaneResumed,
        LaneClosed,
        LaneReopened,
        ShutdownStarted,
        ShutdownCompleted,
    ]
    resized, closed = events[0], events[3]
    assert isinstance(resized, LaneResized)
    assert (resized.lane, resized.concurrency) == ("lane", 3)
    assert isinstance(closed, LaneClosed)
    assert (closed.until_ms, closed.reason) == (WALL + 100, "quota")


@simulated
async def test_a_stream_is_filtered_by_lane_job_and_type() -> None:
    async with new_lanes({"a": 1, "b": 1}) as lanes:
        lanes.pause("a")
        job = lanes.submit("a", value)
        by_lane, by_job = lanes.subscribe("b"), lanes.subscribe(job.id)
        by_type = lanes.subscribe("queue.command.completed", "queue.lane.resumed")
        lanes.resume("a")
        await job
        await lanes.run("b", value)
        assert {getattr(event, "lane", None) for event in await read(by_lane)} == {"b"}
        expected: list[Any] = [JobStarted, JobCompleted]
        assert kinds(await read(by_job)) == expected
        assert kinds(await read(by_type)) == [LaneResumed, JobCompleted, JobCompleted]


@simulated
async def test_a_reader_that_waits_is_woken_and_the_stream_ends_with_the_lanes() -> None:
    events: list[Event] = []

    async def reader(stream: Subscription) -> None:
        async for event in stream:
            events.append(event)  # noqa: PERF401 - what was read before an error counts too

    async with asyncio.TaskGroup() as group, new_lanes({"one": 1}) as lanes:
        group.create_task(reader(lanes.subscribe("queue.command.completed")))
        for _ in range(3):
            await passing(10)
            await lanes.run("one", value)
    assert kinds(events) == [JobCompleted] * 3


@simulated
async def test_a_slow_reader_is_told_how_many_it_missed() -> None:
    async with new_lanes({"one": 1}) as lanes:
        stream = lanes.subscribe("queue.command.completed", buffer_max=2)
        for _ in range(7):
            await lanes.run("one", value)
        assert stream.missed == 5
        first, second, missed = [await anext(stream) for _ in range(3)]
        assert kinds([first, second]) == [JobCompleted] * 2
        assert isinstance(missed, EventsMissed)
        assert missed.count == 5
        await lanes.run("one", value)
        assert isinstance(await anext(stream), JobCompleted)
        stream.close()


@simulated
async def test_a_stream_left_early_gets_nothing_more() -> None:
    async with new_lanes({"one": 1}) as lanes:
        async with lanes.subscribe() as stream:
            await lanes.run("one", value)
        await lanes.run("one", value)
        assert len([event async for event in stream]) == 3
        stream.close()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


def test_every_event_type_is_in_the_table_under_its_name() -> None:
    assert all(EVENT_TYPES[name].type == name for name in EVENT_TYPES)
    commands = [
        "submitted",
        "started",
        "completed",
        "failed",
        "timeout",
        "retry",
        "cancelled",
        "abandoned",
        "dead_lettered",
    ]
    lane_events = ["pressure", "idle", "resized", "paused", "resumed"]
    expected = {f"queue.command.{name}" for name in commands} | {f"queue.lane.{name}" for name in lane_events}
    assert expected | {"queue.shutdown.started", "queue.shutdown.complete", "queue_alert"} <= set(EVENT_TYPES)


# ---- pressure and alerts ----


@simulated
async def test_pressure_is_told_once_and_idle_once_when_empty_again() -> None:
    diary = Diary()
    async with new_lanes({"one": LaneConfig(pressure_threshold=3)}) as lanes:
        stream = lanes.subscribe("queue.lane.pressure", "queue.lane.idle")
        for number in range(2):
            lanes.submit("one", diary.hold, "busy")
            for _ in range(5):
                lanes.submit("one", diary.work, "x")
            await passing()
            diary.let_go("busy")
            await lanes.drain()
            lanes.reopen()
            assert number < 2
        events = await read(stream)
    assert kinds(events) == [LanePressured, LaneIdled] * 2
    assert isinstance(events[0], LanePressured)
    assert (events[0].lane, events[0].waiting) == ("one", 3)


@simulated
async def test_a_dip_that_is_not_empty_tells_no_second_pressure() -> None:
    async with new_lanes({"one": LaneConfig(pressure_threshold=3)}) as lanes:
        lanes.pause("one")
        stream = lanes.subscribe("queue.lane.pressure", "queue.lane.idle")
        jobs = [lanes.submit("one", never) for _ in range(4)]
        for job in jobs[1:]:
            job.cancel()
        jobs += [lanes.submit("one", never) for _ in range(4)]
        lanes.cancel_waiting()
        assert kinds(await read(stream)) == [LanePressured, LaneIdled]


@simulated
async def test_alerts_rise_at_their_thresholds_and_fall_with_hysteresis() -> None:
    levels: list[tuple[str, int]] = []
    async with new_lanes({"one": LaneConfig(alert_warning=5, alert_critical=10)}) as lanes:
        lanes.pause("one")
        stream = lanes.subscribe("queue_alert")
        jobs = [lanes.submit("one", never) for _ in range(10)]
        for _ in range(3):  # up and down around the threshold
            jobs.pop().cancel()
            jobs.append(lanes.submit("one", never))
        while jobs:
            jobs.pop().cancel()
        for event in await read(stream):
            assert isinstance(event, QueueAlerted)
            levels.append((event.level, event.waiting))
    assert [level for level, _ in levels] == ["warning", "critical", "warning", "ok"]
    assert levels[:2] == [("warning", 5), ("critical", 10)]
    assert levels[2][1] < 10
    assert levels[3][1] < 5


@simulated
async def test_alerts_come_at_fifty_and_a_hundred_unless_set_otherwise() -> None:
    async with new_lanes({"one": 1, "mute": LaneConfig(alert_warning=None, alert_critical=None)}) as lanes:
        stream = lanes.subscribe("queue_alert")
        for lane in ("one", "mute"):
            lanes.pause(lane)
            for _ in range(120):
                lanes.submit(lane, never)
        found = [
            (event.lane, event.level, event.waiting) for event in await read(stream) if isinstance(event, QueueAlerted)
        ]
        lanes.cancel_waiting()
    assert found == [("one", "warning", 50), ("one", "critical", 100)]


# ---- on_change ----


def pairs(snapshots: list[Snapshot]) -> list[tuple[int, int]]:
    return [(one.running, one.waiting) for one in snapshots]


@simulated
async def test_every_change_is_one_snapshot_down_to_zero() -> None:
    snapshots: list[Snapshot] = []
    diary = Diary()
    async with new_lanes({"two": 2}) as lanes:
        lanes.on_change(snapshots.append)
        for number in range(4):
            lanes.submit("two", diary.work, f"{number}", 10 * (number + 1))
        await passing(1_000)
    assert pairs(snapshots) == [(1, 0), (2, 0), (2, 1), (2, 2), (2, 1), (2, 0), (1, 0), (0, 0)]
    assert {one.max_concurrent for one in snapshots} == {2}


@simulated
async def test_one_call_is_one_snapshot_after_everything_it_started() -> None:
    snapshots: list[Snapshot] = []
    diary = Diary()
    async with new_lanes({"lane": 1}) as lanes:
        for number in range(6):
            lanes.submit("lane", diary.hold, f"{number}")
        stop = lanes.on_change(snapshots.append)
        lanes.resize("lane", 4)
        assert pairs(snapshots) == [(4, 2)]
        lanes.cancel_waiting()
        assert pairs(snapshots) == [(4, 2), (4, 0)]
        stop()
        stop()
        diary.let_go(*"012345")
        await passing()
        assert len(snapshots) == 2


@simulated
async def test_a_callback_may_submit_and_sees_snapshots_in_order() -> None:
    snapshots: list[Snapshot] = []
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:

        def callback(snapshot: Snapshot) -> None:
            assert lanes.stats().running >= snapshot.running  # committed before the callback runs
            snapshots.append(snapshot)
            if len(snapshots) == 1:
                lanes.submit("one", diary.work, "from the callback")

        lanes.on_change(callback)
        await lanes.run("one", diary.work, "a")
        await passing(100)
    assert diary.ended == ["a", "from the callback"]
    assert pairs(snapshots) == [(1, 0), (1, 1), (1, 0), (0, 0)]


@simulated
async def test_a_callback_that_raises_is_logged_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "laneway")
    caplog.clear()
    snapshots: list[Snapshot] = []

    def broken(_snapshot: Snapshot) -> None:
        raise ValueError("broken callback")

    async with new_lanes({"one": 1}) as lanes:
        lanes.on_change(broken)
        lanes.on_change(snapshots.append)
        assert await lanes.run("one", value, 5) == 5
    assert pairs(snapshots) == [(1, 0), (0, 0)]
    assert len(caplog.records) == 2
    assert "broken callback" in caplog.text


@simulated
async def test_lending_alone_changes_no_snapshot() -> None:
    snapshots: list[Snapshot] = []

    async def parent() -> None:
        await lanes.run("one", passing, 10)

    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", parent)
        lanes.on_change(snapshots.append)
        await job
        await passing()
    assert all(one.running <= 1 for one in snapshots)
    assert pairs(snapshots)[-1] == (0, 0)
