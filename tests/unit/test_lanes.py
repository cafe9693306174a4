"""Lanes: who is next across lanes, several lanes at once, groups, fair share, ageing, pause, resize, jobs and stats."""

from __future__ import annotations

import asyncio

import pytest

from laneway import (
    Boost,
    ConfigError,
    Group,
    Job,
    JobState,
    LaneConfig,
    Lanes,
    Priority,
    RateLimit,
    UnknownLaneError,
)
from tests.stage import Diary, grouped, never, new_lanes, now_ms, passing, seen, simulated, value


async def drained_order(lanes: Lanes, diary: Diary) -> list[str]:
    """Let `busy` go, wait for the rest and say in which order the others began."""
    diary.let_go("busy")
    await lanes.drain()
    lanes.reopen()
    return [name for name in diary.began if name != "busy"]


# ---- between lanes ----


@simulated
async def test_lanes_are_served_by_priority_under_a_shared_cap() -> None:
    diary = Diary()
    config = {f"p{n}": LaneConfig(concurrency=9, priority=n) for n in (3, 1, 2)} | {"door": 1}
    async with new_lanes(config, max_concurrent=1) as lanes:
        lanes.submit("door", diary.hold, "busy")
        for name in ("p3", "p2", "p1", "p2", "p1"):
            lanes.submit(name, diary.work, name)
        assert await drained_order(lanes, diary) == ["p1", "p1", "p2", "p2", "p3"]
    assert diary.peak == 1


@simulated
async def test_equal_lanes_are_served_by_level_then_by_sequence() -> None:
    diary = Diary()
    async with new_lanes({"a": 9, "b": 9, "door": 1}, max_concurrent=1) as lanes:
        lanes.submit("door", diary.hold, "busy")
        for number, (lane, level) in enumerate([("a", 0), ("b", 1), ("a", 2), ("b", 2), ("b", 0), ("a", 1)]):
            lanes.submit(lane, diary.work, f"{lane}{level}-{number}", priority=Priority(level))
        assert await drained_order(lanes, diary) == ["a2-2", "b2-3", "b1-1", "a1-5", "a0-0", "b0-4"]


@simulated
async def test_a_lane_never_blocks_the_free_slots_of_another() -> None:
    diary = Diary()
    async with new_lanes({"a": LaneConfig(priority=0), "b": LaneConfig(priority=9)}) as lanes:
        for number in range(50):
            lanes.submit("a", diary.hold, f"a{number}")
        await lanes.run("b", diary.work, "b", 5)
        assert now_ms() == 5
        lanes.cancel_waiting()
        diary.let_go("a0")


@simulated
async def test_paused_closed_and_rated_lanes_give_way_under_a_shared_cap() -> None:
    diary = Diary()
    config = {
        "paused": LaneConfig(priority=0),
        "closed": LaneConfig(priority=0),
        "rated": LaneConfig(priority=0, rate_limit=RateLimit.per_minute(1)),
        "plain": LaneConfig(priority=5),
    }
    async with new_lanes(config, max_concurrent=1) as lanes:
        await lanes.run("rated", value)
        lanes.pause("paused")
        lanes.close_until("closed", 1_700_000_000_000 + 10_000)
        for name in config:
            lanes.submit(name, diary.work, name)
        await passing(50)
        assert diary.ended == ["plain"]
        lanes.resume("paused")
    assert diary.ended == ["plain", "paused", "closed", "rated"]


@simulated
async def test_control_is_outside_every_shared_cap() -> None:
    diary = Diary()
    group = Group(cap=1, lanes=["*"])
    async with new_lanes({"control": 2, "work": 5}, max_concurrent=1, groups={"all": group}) as lanes:
        lanes.submit("work", diary.hold, "busy")
        await lanes.run("control", diary.work, "control", 5)
        assert now_ms() == 5
        assert lanes.stats().max_concurrent == 1
        diary.let_go("busy")


@simulated
async def test_an_overdue_lane_goes_first_but_only_every_second_start() -> None:
    diary = Diary()
    config = {
        "high": LaneConfig(concurrency=9, priority=1),
        "low": LaneConfig(concurrency=9, priority=5, ageing_ms=100),
    }
    async with new_lanes(config, max_concurrent=1) as lanes:
        lanes.submit("high", diary.hold, "busy")
        for number in range(4):
            lanes.submit("low", diary.work, f"low{number}", 200)
            lanes.submit("high", diary.work, f"high{number}", 200)
        await passing(101)
        order = await drained_order(lanes, diary)
    assert order == ["low0", "high0", "low1", "high1", "low2", "high2", "low3", "high3"]


@simulated
async def test_without_ageing_a_lane_waits_until_the_better_ones_are_empty() -> None:
    diary = Diary()
    config = {"high": LaneConfig(priority=1), "low": LaneConfig(priority=5, ageing_ms=None)}
    async with new_lanes(config, max_concurrent=1) as lanes:
        lanes.submit("high", diary.hold, "busy")
        lanes.submit("low", diary.work, "low", 200)
        for number in range(5):
            lanes.submit("high", diary.work, f"high{number}", 1_000)
        assert (await drained_order(lanes, diary))[-1] == "low"


@simulated
async def test_the_longest_overdue_lane_goes_first() -> None:
    diary = Diary()
    config = {name: LaneConfig(priority=5, ageing_ms=100) for name in ("later", "earlier")}
    async with new_lanes({**config, "high": 9}, max_concurrent=1) as lanes:
        lanes.submit("high", diary.hold, "busy")
        lanes.submit("earlier", diary.work, "earlier")
        await passing(20)
        lanes.submit("later", diary.work, "later")
        lanes.submit("high", diary.work, "high")
        await passing(200)
        assert await drained_order(lanes, diary) == ["earlier", "high", "later"]


# ---- inside a lane ----


@simulated
async def test_a_native_user_job_goes_after_an_aged_one() -> None:
    diary = Diary()
    async with new_lanes({"one": LaneConfig(ageing_ms=100)}) as lanes:
        lanes.submit("one", diary.hold, "busy")
        for number in range(3):
            lanes.submit("one", diary.work, f"aged{number}", priority=Priority.BACKGROUND)
        await passing(250)
        for number in range(3):
            lanes.submit("one", diary.work, f"user{number}")
        order = await drained_order(lanes, diary)
    assert order == ["aged0", "user0", "aged1", "user1", "aged2", "user2"]


@simulated
async def test_ageing_never_lifts_a_job_above_user() -> None:
    diary = Diary()
    async with new_lanes({"one": LaneConfig(ageing_ms=10)}) as lanes:
        lanes.submit("one", diary.hold, "busy")
        lanes.submit("one", diary.work, "user")
        lanes.submit("one", diary.work, "background", priority=Priority.BACKGROUND)
        await passing(10_000)
        assert await drained_order(lanes, diary) == ["user", "background"]


@simulated
async def test_tenants_share_a_fair_lane() -> None:
    diary = Diary()
    async with new_lanes({"one": LaneConfig(fair_by="tenant")}) as lanes:
        lanes.submit("one", diary.hold, "busy", tenant="nobody")
        for number in range(6):
            lanes.submit("one", diary.work, f"greedy{number}", tenant="greedy")
        for number in range(2):
            lanes.submit("one", diary.work, f"modest{number}", tenant="modest")
        order = await drained_order(lanes, diary)
    assert order[:4] == ["greedy0", "modest0", "greedy1", "modest1"]


@simulated
async def test_weights_divide_a_fair_lane() -> None:
    diary = Diary()
    async with new_lanes({"one": LaneConfig(fair_by="tenant")}) as lanes:
        lanes.submit("one", diary.hold, "busy", tenant="nobody")
        for number in range(40):
            lanes.submit("one", diary.work, f"heavy{number}", tenant="heavy", weight=3)
            lanes.submit("one", diary.work, f"light{number}", tenant="light", weight=1)
        order = await drained_order(lanes, diary)
    first = order[:40]
    assert sum(name.startswith("heavy") for name in first) == 30
    assert [name for name in order if name.startswith("light")] == [f"light{number}" for number in range(40)]


@simulated
async def test_the_newest_weight_of_a_tenant_counts() -> None:
    diary = Diary()
    async with new_lanes({"one": LaneConfig(fair_by="tenant")}) as lanes:
        lanes.submit("one", diary.hold, "busy", tenant="nobody")
        for number in range(20):
            lanes.submit("one", diary.work, f"a{number}", tenant="a", weight=100 if number < 19 else 1)
            lanes.submit("one", diary.work, f"b{number}", tenant="b")
        order = await drained_order(lanes, diary)
    assert sum(name.startswith("a") for name in order[:20]) == 10


@simulated
async def test_sessions_share_a_lane_that_is_fair_by_session() -> None:
    diary = Diary()
    async with new_lanes({"main": LaneConfig(concurrency=1, fair_by="session")}) as lanes:
        lanes.submit("main", diary.hold, "busy")
        await passing()
        for number in range(3):
            for session in ("a", "b"):
                lanes.submit([f"session:{session}", "main"], diary.work, f"{session}{number}", tenant="same")
        order = await drained_order(lanes, diary)
    assert [name[0] for name in order] in (["a", "b"] * 3, ["b", "a"] * 3)


@simulated
async def test_levels_come_before_fair_share() -> None:
    diary = Diary()
    async with new_lanes({"one": LaneConfig(fair_by="tenant")}) as lanes:
        lanes.submit("one", diary.hold, "busy", tenant="nobody")
        lanes.submit("one", diary.work, "b-low", tenant="b", priority=Priority.BACKGROUND)
        for number in range(3):
            lanes.submit("one", diary.work, f"a{number}", tenant="a")
        assert await drained_order(lanes, diary) == ["a0", "a1", "a2", "b-low"]


# ---- several lanes ----


@simulated
async def test_a_job_of_several_lanes_holds_them_all_and_waits_in_order() -> None:
    diary = Diary()
    async with new_lanes({"a": 1, "b": 1}) as lanes:
        lanes.submit("b", diary.hold, "busy")
        both = lanes.submit(["a", "b"], diary.hold, "both")
        await passing()
        assert both.state is JobState.QUEUED
        assert lanes.stats().lanes["a"].running == 1  # it waits for the second holding the first
        behind = lanes.submit("a", diary.work, "behind")
        diary.let_go("busy")
        await passing()
        assert [both.state] == [JobState.RUNNING]
        assert behind.state is JobState.QUEUED
        assert {lane.running for lane in lanes.stats().lanes.values()} == {1}
        diary.let_go("both")
        assert await behind == "behind"


@simulated
async def test_while_it_waits_for_the_first_lane_it_holds_nothing() -> None:
    diary = Diary()
    async with new_lanes({"main": 1}) as lanes:
        first = lanes.submit("session:a", diary.hold, "session busy")
        lanes.submit(["session:a", "main"], diary.work, "waits for its session")
        await passing()
        assert await lanes.run(["session:b", "main"], diary.work, "b") == "b"
        diary.let_go("session busy")
        await first


@simulated
async def test_the_depth_of_every_lane_is_checked_at_submit() -> None:
    diary = Diary()
    async with new_lanes({"a": 1, "b": LaneConfig(queued_max=1)}) as lanes:
        lanes.submit("b", diary.hold, "busy")
        lanes.submit("b", diary.work, "waits")
        before = seen(lanes)
        with pytest.raises(Exception, match="lane 'b' is full"):
            lanes.submit(["session:s", "a", "b"], never)
        assert seen(lanes) == before
        diary.let_go("busy")


@simulated
async def test_the_shared_cap_is_taken_with_the_last_lane() -> None:
    diary = Diary()
    async with new_lanes({"a": 1, "b": 1, "c": 1}, max_concurrent=1) as lanes:
        lanes.pause("b")
        both = lanes.submit(["a", "b"], diary.work, "both")
        assert await lanes.run("c", diary.work, "c") == "c"
        lanes.resume("b")
        assert await both == "both"


@simulated
async def test_a_cancelled_job_of_several_lanes_gives_back_those_it_had() -> None:
    diary = Diary()
    async with new_lanes({"a": 1, "b": 1}) as lanes:
        lanes.submit("b", diary.hold, "busy")
        both = lanes.submit(["a", "b"], never)
        behind = lanes.submit("a", diary.work, "behind")
        await passing()
        both.cancel()
        assert await behind == "behind"
        diary.let_go("busy")


@simulated
async def test_rate_tokens_of_all_lanes_are_taken_only_at_the_start() -> None:
    diary = Diary()
    rated = LaneConfig(rate_limit=RateLimit.per_second(1))
    async with new_lanes({"rated": rated, "b": 1}) as lanes:
        lanes.submit("b", diary.hold, "busy")
        gone = lanes.submit(["rated", "b"], never)
        await passing()
        gone.cancel()
        assert await lanes.run("rated", diary.work, "token still there", 1) == "token still there"
        assert now_ms() == 2
        diary.let_go("busy")


# ---- groups ----


@simulated
async def test_a_group_holds_its_lanes_to_one_cap_and_wakes_the_sibling_that_is_due() -> None:
    diary = Diary()
    async with grouped({"a": 3, "b": LaneConfig(concurrency=3, priority=1), "c": 3}, g=Group(3, ["a", "b"])) as lanes:
        for number in range(4):
            lanes.submit("a", diary.hold, f"a{number}")
        waits = lanes.submit("b", diary.hold, "b")
        free = lanes.submit("c", diary.work, "c")
        await free
        assert waits.state is JobState.QUEUED
        diary.let_go("a0")
        await passing()
        assert [waits.state] == [JobState.RUNNING]
        assert "a3" not in diary.began
        diary.let_go("a1", "a2", "a3", "b")


@simulated
async def test_the_lanes_of_all_sessions_are_held_to_the_machines_limit() -> None:
    diary = Diary()
    async with grouped({"execute": 2}, machine=Group(cap=3, lanes=["*/execute"])) as lanes:
        scopes = [lanes.scope(f"s{number}") for number in range(4)]
        jobs = [scope.submit("execute", diary.work, f"{number}") for scope in scopes for number in range(3)]
        await asyncio.gather(*jobs)
    assert diary.peak == 3


@simulated
async def test_reservations_cannot_be_borrowed() -> None:
    diary = Diary()
    async with grouped({"a": 9, "b": 9}, g=Group(cap=3, lanes=["a", "b"], reserve={"b": 1})) as lanes:
        for number in range(3):
            lanes.submit("a", diary.hold, f"a{number}")
        await passing()
        assert sorted(diary.began) == ["a0", "a1"]
        for number in range(2):
            lanes.submit("b", diary.hold, f"b{number}")
        await passing()
        assert sorted(diary.began) == ["a0", "a1", "b0"]
        diary.let_go("a0")
        await passing()
        assert sorted(diary.began) == ["a0", "a1", "a2", "b0"]
        diary.let_go("b0")
        await passing()
        assert "b1" in diary.began
        diary.let_go("a1", "a2", "b1")


# ---- widths, pause, names ----


@simulated
async def test_width_zero_pauses_and_more_width_starts_at_once() -> None:
    diary = Diary()
    async with new_lanes({"lane": 2}) as lanes:
        running = lanes.submit("lane", diary.hold, "running")
        lanes.resize("lane", 0)
        waiting: list[Job[str]] = [lanes.submit("lane", diary.work, f"w{number}") for number in range(3)]
        await passing(100)
        assert (diary.began, lanes.stats().lanes["lane"].paused) == (["running"], True)
        lanes.resize("lane", 4)
        await passing()
        assert len(diary.began) == 4
        assert not lanes.stats().lanes["lane"].paused
        await asyncio.gather(*waiting)
        diary.let_go("running")
        await running


@simulated
async def test_pausing_stops_starts_and_not_what_runs() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        running, waiting = lanes.submit("one", diary.work, "a"), lanes.submit("one", diary.work, "b")
        lanes.pause("one")
        lanes.pause("one")
        assert await running == "a"
        await passing(100)
        assert waiting.state is JobState.QUEUED
        lanes.resume("one")
        lanes.resume("one")
        assert await waiting == "b"


@simulated
async def test_session_lanes_appear_by_themselves_and_are_forgotten_when_idle() -> None:
    diary = Diary()
    async with new_lanes({"main": 4}) as lanes:
        jobs = [lanes.submit("session:a", diary.work, name) for name in "xy"]
        assert lanes.stats().lanes["session:a"].max_concurrent == 1
        await asyncio.gather(*jobs)
        assert list(lanes.stats().lanes) == ["main"]
        assert diary.peak == 1


@simulated
async def test_paused_lanes_stay_and_are_forgotten_when_resumed_idle() -> None:
    async with new_lanes({"main": 4}) as lanes:
        lanes.pause("session:a")
        assert list(lanes.stats().lanes) == ["main", "session:a"]
        lanes.resume("session:a")
        assert list(lanes.stats().lanes) == ["main"]
        lanes.close_until("session:a", 1_700_000_000_000 + 1_000)
        assert list(lanes.stats().lanes) == ["main", "session:a"]
        lanes.reopen("session:a")
        assert list(lanes.stats().lanes) == ["main"]
        lanes.close_until("session:a", 1_700_000_000_000 + 1_000)
        await passing(1_500)
        assert list(lanes.stats().lanes) == ["main"]


@simulated
async def test_an_idle_session_lane_has_nothing_and_is_not_unknown() -> None:
    async with new_lanes({"main": 4}) as lanes:
        assert lanes.jobs("session:a") == []
        assert lanes.cancel_waiting("session:a") == 0


@simulated
async def test_unknown_names_are_refused_or_made_as_the_lanes_say() -> None:
    async with new_lanes({"execute": 1}) as lanes:
        before = seen(lanes)
        with pytest.raises(UnknownLaneError, match="did you mean 'execute'") as caught:
            lanes.submit("exectue", never)
        assert (caught.value.lane, caught.value.suggestion) == ("exectue", "execute")
        assert seen(lanes) == before
    diary = Diary()
    async with new_lanes({"execute": 1}, unknown="create") as lanes:
        await asyncio.gather(*[lanes.submit("brand new", diary.work, name) for name in "ab"])
        assert diary.peak == 1
        assert list(lanes.stats().lanes) == ["execute"]


# ---- lists ----


@simulated
async def test_jobs_lists_what_runs_and_waits_with_labels_and_ages() -> None:
    diary = Diary()
    async with new_lanes({"one": 1, "two": 2}) as lanes:
        lanes.submit("one", diary.hold, "a", label="first", tenant="ada")
        lanes.submit("one", diary.work, "b", label="second", priority=Priority.BACKGROUND)
        lanes.submit("two", diary.work, "c", delay_ms=1_000)
        lanes.submit(["session:s", "two"], diary.hold, "d")
        await passing(30)
        infos = lanes.jobs()
        assert [info.id for info in infos] == ["job-1", "job-2", "job-3", "job-4"]
        first, second, third, fourth = infos
        assert (first.label, first.tenant, first.state, first.run_ms) == ("first", "ada", JobState.RUNNING, 30)
        assert (second.state, second.wait_ms, second.age_ms, second.priority) == (JobState.QUEUED, 30, 30, 0)
        assert (third.state, third.attempt) == (JobState.SCHEDULED, 0)
        assert (fourth.lane, fourth.lanes) == ("two", ("session:s", "two"))
        assert [info.id for info in lanes.jobs("two")] == ["job-3", "job-4"]
        assert [info.id for info in lanes.jobs(state="queued")] == ["job-2"]
        assert [info.id for info in lanes.jobs("one", JobState.RUNNING)] == ["job-1"]
        with pytest.raises(ConfigError, match="nonsense"):
            lanes.jobs(state="nonsense")
        lanes.cancel_waiting()
        diary.let_go("a", "d")


@simulated
async def test_cancel_waiting_ends_what_has_not_begun_in_one_lane_or_in_all() -> None:
    diary = Diary()
    async with new_lanes({"a": 1, "b": 1}) as lanes:
        for lane in "ab":
            lanes.submit(lane, diary.hold, lane)
            lanes.submit(lane, never)
            lanes.submit(lane, never, delay_ms=50)
        assert lanes.cancel_waiting("a", "a only") == 2
        assert lanes.cancel_waiting() == 2
        assert lanes.cancel_waiting() == 0
        assert lanes.stats().running == 2
        diary.let_go("a", "b")


# ---- deadlines ----


@simulated
async def test_a_deadline_lifts_a_job_above_its_level() -> None:
    diary = Diary()
    async with new_lanes({"one": LaneConfig(boost=Boost.standard(), ageing_ms=None)}) as lanes:
        lanes.submit("one", diary.hold, "busy")
        lanes.submit("one", diary.work, "user")
        due = lanes.submit("one", diary.work, "background due", priority=Priority.BACKGROUND, deadline_ms=1_000)
        await passing(740)
        assert due.explain().position == 2
        await passing(20)
        assert due.explain().position == 1
        assert await drained_order(lanes, diary) == ["background due", "user"]


@pytest.mark.parametrize(("waited", "first"), [(200, "plain"), (260, "due")])
@simulated
async def test_a_boosted_head_moves_its_lane_up(waited: int, first: str) -> None:
    diary = Diary()
    config: dict[str, LaneConfig | int] = {
        "due": LaneConfig(priority=3, boost=Boost.standard(1_000), ageing_ms=None),
        "plain": LaneConfig(priority=3, ageing_ms=None),
        "door": 1,
    }
    async with new_lanes(config, max_concurrent=1) as lanes:
        lanes.submit("door", diary.hold, "busy")
        lanes.submit("plain", diary.work, "plain")
        lanes.submit("due", diary.work, "due")
        await passing(waited)
        assert (await drained_order(lanes, diary))[0] == first


@simulated
async def test_a_boost_never_lifts_a_lane_above_p1() -> None:
    diary = Diary()
    config: dict[str, LaneConfig | int] = {
        "urgent": LaneConfig(priority=0, ageing_ms=None),
        "due": LaneConfig(priority=3, boost=Boost.aggressive(100), ageing_ms=None),
        "door": 1,
    }
    async with new_lanes(config, max_concurrent=1) as lanes:
        lanes.submit("door", diary.hold, "busy")
        lanes.submit("due", diary.work, "due")
        lanes.submit("urgent", diary.work, "urgent")
        await passing(5_000)
        assert await drained_order(lanes, diary) == ["urgent", "due"]


@simulated
async def test_a_passed_deadline_changes_nothing_else_and_disabled_ones_nothing_at_all() -> None:
    diary = Diary()
    async with new_lanes({"one": LaneConfig(boost=Boost.disabled(), ageing_ms=None)}) as lanes:
        lanes.submit("one", diary.hold, "busy")
        late = lanes.submit("one", diary.work, "late", priority=Priority.BACKGROUND, deadline_ms=10)
        lanes.submit("one", diary.work, "user")
        await passing(1_000)
        assert await drained_order(lanes, diary) == ["user", "late"]
        assert await late == "late"
