"""Scopes: one view for each session or workspace, isolated from the others."""

from __future__ import annotations

import asyncio

import pytest

from laneway import ConfigError, JobState, LaneConfig, LaneScope, RateLimit, Snapshot, UnknownJobError, UnknownLaneError
from laneway.events import Event, JobEvent
from tests.stage import Diary, never, new_lanes, now_ms, passing, simulated, value


@simulated
async def test_a_scope_has_lanes_of_its_own_with_the_settings_of_the_root() -> None:
    diary = Diary()
    async with new_lanes({"execute": 2}) as lanes:
        one, two = lanes.scope("w1"), lanes.scope("w2")
        assert isinstance(one, LaneScope)
        for scope, name in ((one, "one"), (two, "two"), (lanes, "root")):
            for number in range(3):
                scope.submit("execute", diary.hold, f"{name}{number}")
        await passing()
        assert sorted(diary.began) == ["one0", "one1", "root0", "root1", "two0", "two1"]
        assert set(lanes.stats().lanes) == {"execute", "w1/execute", "w2/execute"}
        diary.let_go(*[f"{name}{number}" for name in ("one", "two", "root") for number in range(3)])


@simulated
async def test_a_scope_can_have_settings_of_its_own() -> None:
    async with new_lanes({"execute": 2}) as lanes:
        scope = lanes.scope("w1", {"execute": 7, "private": LaneConfig(concurrency=1)})
        assert {name: lane.max_concurrent for name, lane in scope.stats().lanes.items()} == {
            "w1/execute": 7,
            "w1/private": 1,
        }
        assert await scope.run("private", value, 1) == 1
        with pytest.raises(UnknownLaneError):
            lanes.submit("private", never)
        assert lanes.scope("w1", {"execute": 7}).stats().lanes.keys() == scope.stats().lanes.keys()
        with pytest.raises(ConfigError, match="w1/execute"):
            lanes.scope("w1", {"execute": 8, "more": 1})
        assert "w1/more" not in lanes.stats().lanes


@simulated
async def test_everything_a_scope_does_stays_inside_it() -> None:
    diary = Diary()
    async with new_lanes({"execute": 1}) as lanes:
        one, two = lanes.scope("w1"), lanes.scope("w2")
        one.pause("execute")
        first = one.submit("execute", diary.work, "one")
        second = two.submit("execute", diary.hold, "two")
        third = two.submit("execute", diary.work, "three")
        await passing()
        assert (first.state, second.state) == (JobState.QUEUED, JobState.RUNNING)
        assert [info.id for info in one.jobs()] == [first.id]
        assert [info.id for info in two.jobs("execute")] == [second.id, third.id]
        assert (one.stats().running, one.stats().waiting) == (0, 1)
        assert (two.stats().running, two.stats().waiting) == (1, 1)
        assert list(two.metrics()) == ["w2/execute"]
        assert one.status_line().endswith(": 0/1 (1 queued)")
        assert one.cancel_waiting() == 1
        assert third.state is JobState.QUEUED
        two.resize("execute", 2)
        assert [third.state] == [JobState.RUNNING]
        one.close_until("execute", 1_700_000_001_000)
        one.resume("execute")
        late = one.submit("execute", value)
        diary.let_go("two")
        await asyncio.gather(second, third)
        assert late.state is JobState.QUEUED
        one.reopen("execute")
        await late


@simulated
async def test_sessions_of_two_scopes_with_one_name_are_two() -> None:
    diary = Diary()
    async with new_lanes() as lanes:
        await asyncio.gather(*[lanes.scope(name).submit("session:s", diary.work, name) for name in ("w1", "w2")])
        assert now_ms() == 10
    assert diary.peak == 2


@simulated
async def test_a_scope_cannot_reach_the_jobs_of_another() -> None:
    diary = Diary()
    async with new_lanes({"execute": 1}) as lanes:
        one, two = lanes.scope("w1"), lanes.scope("w2")
        job = one.submit("execute", diary.hold, "a")
        with pytest.raises(UnknownJobError):
            two.cancel(job.id)
        with pytest.raises(UnknownJobError):
            two.explain(job.id)
        assert one.explain(job.id).job_id == job.id
        assert lanes.explain(job.id).job_id == job.id
        await passing()
        assert one.cancel(job.id)


@simulated
async def test_a_key_belongs_to_its_scope() -> None:
    diary = Diary()
    async with new_lanes({"execute": 1}) as lanes:
        jobs = [lanes.scope(name).submit("execute", diary.work, name, key="k") for name in ("w1", "w2", "w1")]
        assert await asyncio.gather(*jobs) == ["w1", "w2", "w1"]
    assert sorted(diary.began) == ["w1", "w2"]


@simulated
async def test_a_scope_hears_its_own_events() -> None:
    async with new_lanes({"execute": 1}) as lanes:
        one, two = lanes.scope("w1"), lanes.scope("w2")
        everything, by_lane, by_session = one.subscribe(), one.subscribe("execute"), one.subscribe("session:s")
        for scope in (lanes, one, two):
            await scope.run("execute", value)
            await scope.run("session:s", value)
        found: list[set[str]] = []
        for stream in (everything, by_lane, by_session):
            stream.close()
            events: list[Event] = [event async for event in stream]
            found.append({event.lane for event in events if isinstance(event, JobEvent)})
        assert found == [{"w1/execute", "w1/session:s"}, {"w1/execute"}, {"w1/session:s"}]


@simulated
async def test_cancelling_what_waits_in_a_scope_is_one_snapshot() -> None:
    snapshots: list[Snapshot] = []
    async with new_lanes({"execute": 1}) as lanes:
        scope = lanes.scope("w1")
        scope.pause("execute")
        for _ in range(3):
            scope.submit("execute", never)
        lanes.on_change(snapshots.append)
        assert scope.cancel_waiting() == 3
    assert [(one.running, one.waiting) for one in snapshots] == [(0, 0)]


@simulated
async def test_an_idle_lane_of_a_scope_is_not_unknown() -> None:
    async with new_lanes({"execute": 1}) as lanes:
        scope = lanes.scope("w1")
        assert scope.jobs("execute") == []
        assert scope.cancel_waiting("execute") == 0
        scope.resume("execute")
        scope.reopen("execute")
        with pytest.raises(UnknownLaneError):
            scope.cancel_waiting("nonsense")


@simulated
async def test_lanes_of_a_scope_are_forgotten_when_idle_but_not_their_limit() -> None:
    config: dict[str, LaneConfig | int] = {"execute": 1, "rated": LaneConfig(rate_limit=RateLimit.per_minute(1))}
    async with new_lanes(config) as lanes:
        scope = lanes.scope("w1")
        await scope.run("execute", value)
        assert "w1/execute" not in lanes.stats().lanes
        await scope.run("rated", value)
        await scope.run("rated", value)
        assert now_ms() == 60_000
        await passing(200_000)
        assert "w1/rated" not in lanes.stats().lanes


@simulated
async def test_a_scope_runs_jobs_of_several_lanes_and_slots() -> None:
    diary = Diary()
    async with new_lanes({"main": 1}) as lanes:
        scope = lanes.scope("w1")
        assert await scope.run(["session:s", "main"], diary.work, "both") == "both"
        async with scope.slot("main", label="slot"):
            assert [info.lane for info in scope.jobs()] == ["w1/main"]


@pytest.mark.parametrize("name", ["", " w", "a\nb", "/", "a//b", "x" * 600, None, 5])
@simulated
async def test_a_scope_needs_a_decent_name(name: str) -> None:
    async with new_lanes({"execute": 1}) as lanes:
        with pytest.raises(ConfigError):
            lanes.scope(name)
