"""Ends of external tasks that are too big to keep in memory: what stays of them, and what everybody is told."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from laneway.errors import ConflictError, LeaseLostError, StoreUnavailableError
from laneway.external import ExternalTaskResult, TaskState
from laneway.kernel.task_board import BIG, FINISHED_MAX, TaskBoard
from laneway.kernel.task_entries import TaskEntry, TaskOrder
from laneway.records import Effect
from laneway.stores.memory import MemoryDisk
from tests.inbox_stage import staged
from tests.stage import passing
from tests.unit.test_task_desk import LEASE, OWNER, TIMEOUT, Stage, soon, stage

LONG = "x" * (BIG + 1)
HUGE = ExternalTaskResult(result={"output": LONG})
HUGE_ERROR = ExternalTaskResult(success=False, error=LONG)


def kept(on: Stage, task_id: str = "t") -> TaskEntry:
    """What is in memory of a task that has ended."""
    return on.desk.board.finished[task_id]


def is_small(entry: TaskEntry) -> bool:
    """Whether nothing in it is long."""
    return LONG not in repr(entry)


# ---- a write is never offered twice ----


@pytest.mark.parametrize("result", [HUGE, HUGE_ERROR, ExternalTaskResult(result="short")])
@pytest.mark.parametrize("by", ["worker", "host"])
@staged
async def test_a_write_that_has_ended_is_never_offered_again_however_big_its_result(
    result: ExternalTaskResult, by: str
) -> None:
    async with stage() as on:
        if by == "worker":
            lease = await on.begin(effect="write")
            assert await on.desk.complete("t", lease.token, result)
        else:
            await on.put(effect="write")
            assert await on.desk.complete_by_host("t", result)
        with pytest.raises(ConflictError, match="a write is never made twice"):
            on.offer(effect="write")
        assert await on.desk.claim("w") == []
        assert on.state() == ("completed" if result.success else "failed")


@staged
async def test_a_write_with_a_big_late_result_is_never_offered_again() -> None:
    async with stage() as on:
        lease = await on.begin(effect="write")
        await passing(LEASE + 1)
        assert on.state() == "unknown"
        assert await on.desk.complete("t", lease.token, HUGE)
        assert is_small(kept(on))
        with pytest.raises(ConflictError, match="a write is never made twice"):
            on.offer(effect="write")


@staged
async def test_a_read_with_a_big_result_may_be_made_again_and_is_the_next_attempt() -> None:
    async with stage() as on:
        lease = await on.begin()
        await on.desk.complete("t", lease.token, HUGE)
        await on.put()
        again = await on.take()
        assert again.task.attempt == 2
        assert await on.desk.complete("t", again.token, ExternalTaskResult(result="short"))
        assert (await on.desk.outcome("t")).result == ExternalTaskResult(result="short")


# ---- what stays, and what everybody is told ----


@pytest.mark.parametrize("result", [HUGE, HUGE_ERROR])
@staged
async def test_of_a_big_end_only_its_outcome_stays_in_memory(result: ExternalTaskResult) -> None:
    async with stage() as on:
        lease = await on.begin(effect="write")
        await on.desk.complete("t", lease.token, result)
        assert is_small(kept(on))
        assert kept(on).state == on.state()
        assert (await on.desk.outcome("t")).result == result, "the store has it"
        found = await on.desk.find("t")
        assert found is not None
        assert found.result == result
        assert is_small(kept(on)), "having been asked for it changes nothing"


@staged
async def test_whoever_waits_for_a_big_end_gets_all_of_it() -> None:
    async with stage() as on:
        lease = await on.begin()
        waiting = soon(on.desk.outcome("t"))
        await asyncio.sleep(0)
        await on.desk.complete("t", lease.token, HUGE)
        assert (await waiting).result == HUGE


@pytest.mark.parametrize("result", [HUGE, ExternalTaskResult(result="short")])
@staged
async def test_a_second_completion_is_answered_as_the_first_one_and_changes_nothing(result: ExternalTaskResult) -> None:
    async with stage() as on:
        lease = await on.begin(effect="write")
        other = ExternalTaskResult(success=False, error="another one")
        assert await on.desk.complete("t", lease.token, result)
        assert await on.desk.complete("t", lease.token, other)
        with pytest.raises(LeaseLostError):
            await on.desk.complete("t", "token of somebody else", other)
        assert not await on.desk.complete_by_host("t", other), "a worker has completed it"
        assert (await on.desk.outcome("t")).result == result
        assert on.kinds == ["pending", "started", "ended", "refused"]


@staged
async def test_a_host_that_says_a_big_end_twice_is_answered_the_same() -> None:
    async with stage() as on:
        await on.put(effect="write")
        answers = [await on.desk.complete_by_host("t", result) for result in (HUGE, ExternalTaskResult(), HUGE)]
        assert answers == [True, True, True]
        assert (await on.desk.outcome("t")).result == HUGE


@staged
async def test_a_big_late_result_of_a_write_that_timed_out_counts_once() -> None:
    async with stage() as on:
        lease = await on.begin(effect="write", lease_ms=10 * TIMEOUT)
        await passing(TIMEOUT)
        assert await on.desk.complete("t", lease.token, HUGE)
        assert await on.desk.complete("t", lease.token, ExternalTaskResult())
        end = await on.desk.outcome("t")
        assert (end.state, end.result) == (TaskState.TIMED_OUT, HUGE)
        assert on.kinds.count("settled") == 1


@staged
async def test_withdrawing_what_has_a_big_end_gives_that_end() -> None:
    async with stage() as on:
        lease = await on.begin(effect="write")
        await on.desk.complete("t", lease.token, HUGE)
        end = on.desk.withdraw("t", "its caller has gone")
        assert (end.state, end.had_started) == (TaskState.COMPLETED, True)
        assert not await on.desk.heartbeat("t", lease.token)


@staged
async def test_a_big_end_of_an_earlier_process_is_read_and_not_kept() -> None:
    disk = MemoryDisk()
    async with stage(disk) as on:
        lease = await on.begin(effect="write")
        await on.desk.complete("t", lease.token, HUGE)
    async with stage(disk) as on:
        found = await on.desk.find("t")
        assert found is not None
        assert found.result == HUGE
        assert is_small(kept(on))
        with pytest.raises(ConflictError, match="a write is never made twice"):
            on.offer(effect="write")


@staged
async def test_a_big_end_that_is_not_on_disk_yet_is_kept_whole() -> None:
    async with stage() as on:
        lease = await on.begin(effect="write")
        on.store.refuse = lambda batch: True
        with pytest.raises(StoreUnavailableError):
            await on.desk.complete("t", lease.token, HUGE)
        assert kept(on).result == HUGE
        on.store.refuse = lambda batch: False
        await passing(5_000)
        assert on.state() == "completed"
        assert is_small(kept(on))


# ---- bounds ----


def big_end(board: TaskBoard, number: int) -> TaskEntry:
    """A write of somebody that has ended with a big result, and is on disk."""
    facts: dict[str, Any] = {"lane": "execute", "command_type": "bash", "payload": {}, "timeout_ms": 1, "lease_ms": 1}
    order = TaskOrder(owner=OWNER, task_id=f"t{number}", effect=Effect.WRITE, **facts)
    entry = board.offer(order, seq=number + 1, wall=0)
    board.publish(entry.task_id, now=0)
    assert board.complete_by_host(entry, HUGE, wall=0)
    board.slim(entry)
    return entry


def test_a_bounded_number_of_big_ends_is_remembered() -> None:
    board = TaskBoard()
    entry = big_end(board, 0)
    assert board.get("t0") is not entry
    assert entry.result is HUGE, "whoever has the end in hand has all of it"
    text = ExternalTaskResult(result=LONG)
    for number in range(1, FINISHED_MAX + 5):
        ended = replace(entry, task_id=f"t{number}", result=text)
        board.remember(ended)
        board.slim(ended)
    assert len(board.finished) == FINISHED_MAX
    assert board.get("t4") is None
    assert not any(entry.result for entry in board.finished.values())


def test_slimming_what_was_begun_anew_meanwhile_changes_nothing() -> None:
    board = TaskBoard()
    entry = big_end(board, 0)
    board.finished.clear()
    board.slim(entry)
    assert board.get("t0") is None
