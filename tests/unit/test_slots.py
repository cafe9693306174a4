"""Slots without a function: `async with lanes.slot(...)`, `acquire` and `release`."""

from __future__ import annotations

import asyncio

import pytest

from laneway import (
    JobCancelledError,
    JobState,
    LaneConfig,
    LaneFullError,
    Lanes,
    Priority,
    UsageError,
    WaitTimeoutError,
)
from laneway.testing import fake_host
from tests.stage import Diary, contextless, new_lanes, now_ms, passing, seen, simulated, value


@simulated
async def test_a_slot_is_held_for_the_block_and_listed_with_its_label() -> None:
    async with new_lanes({"execute": 1}) as lanes:
        async with lanes.slot("execute", label="deploy", tenant="ada") as slot:
            (info,) = lanes.jobs()
            assert (info.id, info.label, info.tenant, info.state) == (slot.id, "deploy", "ada", JobState.RUNNING)
            assert lanes.stats().running == 1
            waiting = lanes.submit("execute", value, 1)
            assert waiting.state is JobState.QUEUED
        assert await waiting == 1
        assert slot.id is None


@simulated
async def test_a_slot_is_freed_when_the_block_raises() -> None:
    async with new_lanes({"one": 1}) as lanes:
        with pytest.raises(KeyError):
            async with lanes.slot("one"):
                raise KeyError
        assert lanes.stats().running == 0


@simulated
async def test_a_slot_that_waits_too_long_is_a_wait_timeout() -> None:
    diary = Diary()
    async with new_lanes({"one": 1, "patient": LaneConfig(wait_timeout_ms=40)}) as lanes:
        for lane, timeout, waited in (("one", 25, 25), ("patient", None, 40)):
            lanes.submit(lane, diary.hold, lane)
            start = now_ms()
            with pytest.raises(WaitTimeoutError):
                await lanes.slot(lane, wait_timeout_ms=timeout).acquire()
            assert now_ms() == start + waited
            assert lanes.stats().waiting == 0
            diary.let_go(lane)


@simulated
async def test_a_cancelled_request_for_a_slot_is_withdrawn() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        lanes.submit("one", diary.hold, "busy")
        request = asyncio.ensure_future(lanes.slot("one").acquire())
        await passing()
        assert lanes.stats().waiting == 1
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert lanes.stats().waiting == 0
        diary.let_go("busy")


@simulated
async def test_a_request_cancelled_in_the_moment_it_is_granted_loses_no_slot() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        held = await lanes.slot("one").acquire()
        request = asyncio.ensure_future(lanes.slot("one").acquire())
        await asyncio.sleep(0)
        await passing()
        held.release()
        request.cancel()
        outcome = (await asyncio.gather(request, return_exceptions=True))[0]
        if not isinstance(outcome, BaseException):
            outcome.release()
        assert await lanes.run("one", diary.work, "free") == "free"


@simulated
async def test_a_waiting_slot_is_ended_like_any_job_but_a_slot_in_use_is_not() -> None:
    async with new_lanes({"one": 1}) as lanes, lanes.slot("one") as used:
        assert used.id is not None
        request = asyncio.get_running_loop().create_task(
            lanes.slot("one", label="waits").acquire(), context=contextless()
        )
        await passing()
        assert lanes.cancel_waiting("one", "make room") == 1
        with pytest.raises(JobCancelledError, match="make room"):
            await request
        assert not lanes.cancel(used.id)
        assert lanes.stats().running == 1


@simulated
async def test_a_slot_is_one_use_at_a_time_and_can_be_used_again() -> None:
    async with new_lanes({"one": 1}) as lanes:
        slot = lanes.slot("one")
        for _ in range(2):
            await slot.acquire()
            with pytest.raises(UsageError, match="in use"):
                await slot.acquire()
            slot.release()
        slot.release()
        assert lanes.stats().running == 0


@simulated
async def test_slots_of_several_lanes_are_taken_and_freed_together() -> None:
    async with new_lanes({"a": 1, "b": 1}) as lanes:
        async with lanes.slot(["session:s", "a", "b"]):
            assert {name for name, lane in lanes.stats().lanes.items() if lane.running} == {"session:s", "a", "b"}
        assert not any(lane.running for lane in lanes.stats().lanes.values())


@simulated
async def test_slots_obey_levels_and_depth() -> None:
    order: list[str] = []

    async def use(name: str, level: Priority) -> None:
        async with lanes.slot("one", priority=level):
            order.append(name)
            await passing()

    async with new_lanes({"one": LaneConfig(queued_max=2)}) as lanes, asyncio.TaskGroup() as group:
        held = lanes.slot("one")
        await held.acquire()
        group.create_task(use("background", Priority.BACKGROUND), context=contextless())
        await passing()
        group.create_task(use("user", Priority.USER), context=contextless())
        await passing()
        before = seen(lanes)
        with pytest.raises(LaneFullError):
            lanes.submit("one", value)
        assert seen(lanes) == before
        held.release()
    assert order == ["user", "background"]


@simulated
async def test_slots_taken_one_after_the_other_in_one_task_are_all_counted() -> None:
    async with Lanes.limiter(3, host=fake_host()) as lanes:
        held = [await lanes.slot("agent").acquire() for _ in range(3)]
        assert lanes.status_line() == "Agent: 3/3"
        fourth = asyncio.ensure_future(lanes.slot("agent").acquire())
        await passing()
        assert not fourth.done()
        assert lanes.status_line() == "Agent: 3/3 (1 queued)"
        for slot in held:
            slot.release()
        (await fourth).release()
        assert lanes.status_line() == "Agent: 0/3"


@simulated
async def test_a_slot_inside_a_slot_of_the_same_lane_does_not_wait_for_itself() -> None:
    async with new_lanes({"one": 1}) as lanes:
        async with lanes.slot("one"), lanes.slot("one"):
            assert lanes.stats().lanes["one"].running == 1
            assert lanes.stats().running == 1
        assert lanes.stats().running == 0


@simulated
async def test_a_slot_released_by_another_task_is_free() -> None:
    async with new_lanes({"one": 1}) as lanes:
        slot = await lanes.slot("one").acquire()

        async def release() -> None:
            slot.release()

        await asyncio.ensure_future(release())
        assert lanes.stats().running == 0
        assert await lanes.run("one", value, 1) == 1
