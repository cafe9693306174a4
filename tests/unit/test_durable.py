"""Durable jobs: what is taken and what is refused, what a handler gets, how jobs end, and what the store says then."""

from __future__ import annotations

import asyncio
import contextvars
from typing import Any

import pytest

from laneway import (
    AbortSignal,
    ClosedError,
    ConfigError,
    DrainingError,
    DuplicateJobError,
    GiveUp,
    InvalidJobError,
    JobCancelledError,
    JobFailedError,
    JobState,
    JobTimeoutError,
    LaneConfig,
    LaneFullError,
    Lanes,
    LanewayError,
    Priority,
    RetryLater,
    RetryPolicy,
    UnknownLaneError,
    WaitTimeoutError,
)
from laneway.errors import UnknownHandlerError, UnknownStoreError
from laneway.runtime.job_rows import PAYLOAD_MAX
from laneway.stores import MemoryDisk
from tests.durable_stage import Worker, body_of, durable_lanes, rows_of
from tests.stage import new_lanes, now_ms, passing, seen, simulated

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nobody's")


# ---- taking ----


@simulated
async def test_a_job_is_stored_when_enqueue_returns_and_gone_when_its_value_is_there() -> None:
    disk = MemoryDisk()
    async with durable_lanes(disk) as lanes:
        worker = Worker(disk)
        worker.register(lanes)
        lanes.pause("one")
        job = await lanes.enqueue("one", "work", "a")
        assert rows_of(disk) == {"a": "queued"}
        assert job.state is JobState.QUEUED
        lanes.resume("one")
        assert await job == "a"
        assert rows_of(disk) == {}
        assert job.attempt == 1


@simulated
async def test_nothing_runs_before_its_start_is_stored() -> None:
    disk = MemoryDisk()
    async with durable_lanes(disk) as lanes:
        worker = Worker(disk)  # its handlers look into the store
        worker.register(lanes)
        jobs = [await lanes.enqueue("two", "work", f"job {number}") for number in range(5)]
        jobs.append(await lanes.enqueue("two", "note", "sync"))
        assert [await job for job in jobs] == [f"job {number}" for number in range(5)] + ["sync"]
        assert len(worker.payloads) == 6


@simulated
async def test_jobs_run_in_order_and_share_lanes_with_others() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        await lanes.enqueue("one", "work", "first")
        lanes.submit("one", worker.work, "second")
        await lanes.enqueue("one", "work", "third", priority=Priority.BACKGROUND)
        await lanes.enqueue("one", "work", "fourth")
        lanes.resume("one")
    assert worker.began == ["first", "second", "fourth", "third"]


@simulated
async def test_without_a_store_enqueue_says_what_to_do() -> None:
    async with new_lanes({"one": 1}) as lanes:
        lanes.handler("work", print)
        with pytest.raises(ConfigError, match="store=") as caught:
            await lanes.enqueue("one", "work")
        assert caught.value.setting == "store"


@simulated
async def test_an_unknown_handler_is_refused_and_the_known_ones_are_named() -> None:
    disk = MemoryDisk()
    async with durable_lanes(disk) as lanes:
        Worker().register(lanes)
        before = seen(lanes)
        with pytest.raises(UnknownHandlerError, match="hold") as caught:
            await lanes.enqueue("one", "wrok", "a")
        assert caught.value.handler == "wrok"
        assert (seen(lanes), rows_of(disk)) == (before, {})


def endless() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def deep() -> list[Any]:
    nest: list[Any] = []
    for _ in range(100_000):
        nest = [nest]
    return nest


@pytest.mark.parametrize(
    "payload",
    [object(), {1, 2}, b"bytes", float("nan"), [float("inf")], {"a": "\ud800"}, "\udfff", {(1, 2): 3}, 10**5000],
    ids=lambda value: type(value).__name__,
)
@simulated
async def test_what_json_cannot_carry_is_refused_and_nothing_is_done(payload: object) -> None:
    disk = MemoryDisk()
    async with durable_lanes(disk) as lanes:
        Worker().register(lanes)
        before = seen(lanes)
        with pytest.raises(InvalidJobError, match="payload"):
            await lanes.enqueue("one", "work", payload)
        assert (seen(lanes), rows_of(disk)) == (before, {})


async def test_a_payload_without_end_or_bottom_or_too_large_is_refused() -> None:
    disk = MemoryDisk()
    async with durable_lanes(disk) as lanes:
        Worker().register(lanes)
        for payload in (endless(), deep(), "x" * PAYLOAD_MAX):
            with pytest.raises(InvalidJobError, match="payload"):
                await lanes.enqueue("one", "work", payload)
        assert (lanes.jobs(), rows_of(disk)) == ([], {})


@pytest.mark.parametrize("option", [{"label": "\ud800"}, {"key": "\ud800"}, {"tenant": "\ud800"}])
@simulated
async def test_names_that_cannot_be_stored_are_refused(option: dict[str, Any]) -> None:
    disk = MemoryDisk()
    async with durable_lanes(disk) as lanes:
        Worker().register(lanes)
        with pytest.raises(InvalidJobError):
            await lanes.enqueue("one", "work", "a", **option)
        assert (lanes.jobs(), rows_of(disk)) == ([], {})


@pytest.mark.parametrize(
    "payload",
    [None, True, 0, -1.5, "", "é\0🜁 \u202e", [], {}, {"a": [1, {"b": None}]}, 2**63, "x" * 100_000],
    ids=lambda value: str(value)[:10].encode("ascii", "replace").decode(),
)
@simulated
async def test_a_handler_gets_the_payload_as_it_was(payload: object) -> None:
    got: list[object] = []
    async with durable_lanes(MemoryDisk()) as lanes:
        lanes.handler("take", got.append)
        await (await lanes.enqueue("one", "take", payload))
    assert got == [payload]


@simulated
async def test_a_payload_may_be_left_out() -> None:
    got: list[object] = []
    async with durable_lanes(MemoryDisk()) as lanes:
        lanes.handler("take", got.append)
        await (await lanes.enqueue("one", "take"))
    assert got == [None]


@simulated
async def test_each_attempt_gets_a_payload_of_its_own() -> None:
    payload, got = {"list": [1]}, []

    async def spoil(mine: dict[str, list[int]]) -> None:
        got.append(list(mine["list"]))
        mine["list"].append(2)
        if len(got) < 3:
            raise ValueError("again")

    async with durable_lanes(MemoryDisk()) as lanes:
        lanes.handler("spoil", spoil)
        lanes.pause("one")
        job = await lanes.enqueue("one", "spoil", payload, retry=RetryPolicy.fixed(5, 10))
        payload["list"].append(9)  # too late
        lanes.resume("one")
        await job
    assert got == [[1], [1], [1]]


@simulated
async def test_refusals_are_those_of_submit_and_nothing_is_stored() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk, {"full": LaneConfig(concurrency=1, queued_max=1), "one": 1}) as lanes:
        worker.register(lanes)
        await lanes.enqueue("full", "hold", "runs")
        await lanes.enqueue("full", "hold", "waits")
        stored = rows_of(disk)
        with pytest.raises(LaneFullError):
            await lanes.enqueue("full", "work", "refused")
        with pytest.raises(UnknownLaneError, match="full"):
            await lanes.enqueue("ful", "work", "refused")
        with pytest.raises(ConfigError):
            await lanes.enqueue(("one", "full"), "work", "refused")
        with pytest.raises(ConfigError):
            await lanes.enqueue("one", "work", "refused", timeout_ms=0)
        with pytest.raises(InvalidJobError, match="delay_ms"):
            await lanes.enqueue("one", "work", "refused", delayms=1)  # type: ignore[call-arg]
        with pytest.raises(InvalidJobError, match="signal"):
            await lanes.enqueue("one", "work", "refused", signal=AbortSignal())  # type: ignore[call-arg]
        worker.let_go("runs", "waits")
        await lanes.drain()
        with pytest.raises(DrainingError):
            await lanes.enqueue("one", "work", "refused")
        assert stored == {"runs": "running", "waits": "queued"}
        assert rows_of(disk) == {}
        assert "refused" not in worker.began


@simulated
async def test_closed_lanes_take_nothing() -> None:
    lanes = durable_lanes(MemoryDisk())
    Worker().register(lanes)
    with pytest.raises(ClosedError):
        await lanes.enqueue("one", "work", "a")
    async with lanes:
        pass
    with pytest.raises(ClosedError):
        await lanes.enqueue("one", "work", "a")


@simulated
async def test_a_cancelled_enqueue_does_not_take_the_job_back() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        caller = asyncio.get_running_loop().create_task(lanes.enqueue("one", "work", "a"))
        await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
    assert worker.ended in (["a"], [])  # with some seeds it was cancelled before it had asked for anything
    assert rows_of(disk) == {}


@simulated
async def test_a_store_address_that_names_nothing_is_refused_at_once() -> None:
    with pytest.raises(UnknownStoreError):
        Lanes({"one": 1}, store="sqlit:///jobs.db")
    with pytest.raises(ConfigError):
        Lanes({"one": 1}, store="memory:", workspace="")


# ---- handlers ----


@simulated
async def test_a_decorated_handler_stays_what_it_was() -> None:
    async with durable_lanes(MemoryDisk()) as lanes:

        @lanes.handler("double")
        async def double(number: int) -> int:
            return 2 * number

        assert await double(2) == 4
        assert await (await lanes.enqueue("one", "double", 4)) == 8


@simulated
async def test_a_name_belongs_to_one_function() -> None:
    async with durable_lanes(MemoryDisk()) as lanes:
        lanes.handler("print", print)
        assert lanes.handler("print", print) is print
        with pytest.raises(ConfigError, match="already"):
            lanes.handler("print", repr)
        for name in ("", "a\nb", "x" * 1000, None, 3):
            with pytest.raises(ConfigError):
                lanes.handler(name, print)  # type: ignore[arg-type]
        with pytest.raises(InvalidJobError):
            lanes.handler("nothing", 3)  # type: ignore[call-overload]


@simulated
async def test_a_handler_runs_in_the_context_of_whoever_opened_the_lanes() -> None:
    variable.set("the opener's")

    async def look(_payload: None) -> str:
        return variable.get()

    async with durable_lanes(MemoryDisk()) as lanes:
        lanes.handler("look", look)
        variable.set("the caller's")
        assert await (await lanes.enqueue("one", "look")) == "the opener's"


@simulated
async def test_a_handler_may_use_lanes_itself() -> None:
    disk, worker = MemoryDisk(), Worker()

    async def parent(name: str) -> list[str]:
        inner = await lanes.enqueue("one", "work", f"{name}.1")
        return [await inner, await lanes.run("one", worker.work, f"{name}.2")]

    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        lanes.handler("parent", parent)
        assert await (await lanes.enqueue("one", "parent", "a")) == ["a.1", "a.2"]


@simulated
async def test_scopes_and_several_lanes_are_kept() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        lanes.pause("two")
        scope = lanes.scope("blue")
        scope.pause("one")
        first = await scope.enqueue("one", "work", "first")
        second = await lanes.enqueue(("session:ada", "two"), "work", "second")
        assert body_of(disk, "first")["lanes"] == ["blue/one"]
        assert body_of(disk, "second")["lanes"] == ["session:ada", "two"]
        scope.resume("one")
        lanes.resume("two")
        assert [await first, await second] == ["first", "second"]


# ---- keys ----


@simulated
async def test_a_live_key_is_joined_and_runs_once() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        jobs = await asyncio.gather(*(lanes.enqueue("one", "hold", "a", key="k") for _ in range(3)))
        assert len({job.id for job in jobs}) == 1
        assert len(rows_of(disk)) == 1
        with pytest.raises(DuplicateJobError):
            await lanes.enqueue("one", "work", "a", key="k")
        with pytest.raises(DuplicateJobError):
            lanes.submit("one", worker.work, "a", key="k")
        assert jobs[0].cancel("not me")
        with pytest.raises(JobCancelledError, match="not me"):
            await jobs[0]
        worker.let_go("a")
        assert [await job for job in jobs[1:]] == ["a", "a"]
        assert worker.began == ["a"]
        again = await lanes.enqueue("one", "work", "b", key="k")
        assert await again == "b"


@simulated
async def test_a_cancelled_enqueue_leaves_no_handle_that_would_keep_a_shared_job_alive() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        caller = asyncio.get_running_loop().create_task(lanes.enqueue("one", "hold", "a", key="k"))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.wait([caller])
        job = await lanes.enqueue("one", "hold", "a", key="k")
        await passing(1)
        assert job.cancel()
        with pytest.raises(JobCancelledError):
            await job
        assert rows_of(disk) == {}


# ---- ends ----


@simulated
async def test_a_failure_without_a_policy_is_told_and_forgotten() -> None:
    disk = MemoryDisk()
    worker = Worker(disk)
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        job = await lanes.enqueue("one", "fail", "a")
        with pytest.raises(ValueError, match="a is no good") as caught:
            await job
        assert "in lane 'one'" in caught.value.__notes__[0]
        assert job.state is JobState.FAILED
        assert rows_of(disk) == {}
        assert len(lanes.dead_letters) == 0


@simulated
async def test_a_retry_waits_in_the_store_with_its_time_and_its_history() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        job = await lanes.enqueue("one", "fail", "a", retry=RetryPolicy.fixed(2, 500))
        await passing(10)
        body = body_of(disk, "a")
        assert (body["state"], body["attempt"], body["failures"]) == ("scheduled", 1, 1)
        assert body["due_ms"] == 1_700_000_000_500
        assert body["history"] == ["attempt 1: ValueError: a is no good"]
        with pytest.raises(ValueError, match="no good"):
            await job
        assert (now_ms(), worker.began) == (1_000, ["a"] * 3)
        assert rows_of(disk) == {"a": "dead"}
        letter = lanes.dead_letters.show(job.id)
        assert (letter.handler, letter.args, letter.attempts) == ("fail", ("a",), 3)
        assert letter.error == "ValueError('a is no good')"
        assert len(letter.history) == 3


@simulated
async def test_a_handler_may_come_back_later_or_give_up() -> None:
    disk, calls = MemoryDisk(), []

    async def busy(_payload: None) -> str:
        calls.append(now_ms())
        if len(calls) == 1:
            raise RetryLater(5_000, "busy")
        return "done"

    async def hopeless(_payload: None) -> None:
        raise GiveUp("no such page")

    async with durable_lanes(disk) as lanes:
        lanes.handler("busy", busy)
        lanes.handler("hopeless", hopeless)
        assert await (await lanes.enqueue("one", "busy")) == "done"
        assert calls == [0, 5_000]
        with pytest.raises(JobFailedError, match="no such page"):
            await (await lanes.enqueue("one", "hopeless"))
        assert [letter.reason for letter in lanes.dead_letters.list()] == ["no such page"]
        assert rows_of(disk) == {"None": "dead"}


@simulated
async def test_a_cancelled_job_is_gone_from_the_store_when_its_caller_hears_of_it() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        running = await lanes.enqueue("one", "hold", "running")
        waiting = await lanes.enqueue("one", "hold", "waiting")
        later = await lanes.enqueue("one", "hold", "later", delay_ms=1_000)
        await passing(1)
        assert rows_of(disk) == {"running": "running", "waiting": "queued", "later": "scheduled"}
        for job in (waiting, later, running):
            assert job.cancel("not wanted")
            assert not job.cancel("again")
            with pytest.raises(JobCancelledError, match="not wanted"):
                await job
        assert rows_of(disk) == {}
        assert worker.cancelled == ["running"]


@simulated
async def test_cancel_waiting_ends_durable_jobs_too() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        jobs = [await lanes.enqueue("one", "work", name) for name in "abc"]
        assert lanes.cancel_waiting("one") == 3
        for job in jobs:
            with pytest.raises(JobCancelledError):
                await job
        assert (rows_of(disk), worker.began) == ({}, [])


@simulated
async def test_timeouts_end_a_durable_job_as_any_other() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        again = RetryPolicy.fixed(1, 100)
        runs = await lanes.enqueue("one", "hold", "a", timeout_ms=1_000, retry=again)
        waits = await lanes.enqueue("one", "hold", "b", wait_timeout_ms=500)
        with pytest.raises(WaitTimeoutError):
            await waits
        with pytest.raises(JobTimeoutError):
            await runs
        assert (rows_of(disk), worker.began) == ({}, ["a"])
        reads = await lanes.enqueue("one", "hold", "c", timeout_ms=1_000, retry=again, effect="read")
        with pytest.raises(JobTimeoutError):
            await reads
        assert worker.began == ["a", "c", "c"]
        assert rows_of(disk) == {"c": "dead"}


@simulated
async def test_an_abandoned_attempt_can_change_nothing_any_more() -> None:
    disk, worker = MemoryDisk(), Worker()

    async def cling(name: str) -> str:
        return await worker.cling(name, 10_000 if worker.began.count(name) == 0 else 10)

    async with durable_lanes(disk, {"one": LaneConfig(cancel_grace_ms=100)}) as lanes:
        lanes.handler("cling", cling)
        job = await lanes.enqueue(
            "one", "cling", "a", timeout_ms=1_000, retry=RetryPolicy.fixed(1, 50_000), effect="idempotent"
        )
        await passing(20_000)  # the first attempt was abandoned, and returned after all
        assert job.state is JobState.SCHEDULED
        assert (rows_of(disk), worker.ended) == ({"a": "scheduled"}, ["a"])
        assert await job == "a"
        assert rows_of(disk) == {}


@simulated
async def test_a_job_that_waits_says_what_for() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        job = await lanes.enqueue("one", "hold", "a", label="tidy up")
        assert "has run" in str(lanes.explain(job.id))
        assert lanes.jobs()[0].label == "tidy up"
        worker.let_go("a")
        await job
        assert "succeeded" in str(job.explain())


@simulated
async def test_what_a_handler_says_in_half_characters_is_stored_all_the_same() -> None:
    disk = MemoryDisk()

    async def rude(_payload: None) -> None:
        raise ValueError("half a character: \ud800, and then " + "much " * 10_000)

    async with durable_lanes(disk) as lanes:
        lanes.handler("rude", rude)
        job = await lanes.enqueue("one", "rude", retry=RetryPolicy.fixed(1, 1))
        with pytest.raises(ValueError, match="half"):
            await job
        assert rows_of(disk) == {"None": "dead"}
        assert len(lanes.dead_letters.show(job.id).error) <= 10_000


class UnspeakableError(Exception):
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


@pytest.mark.parametrize("error", [UnspeakableError(), StopIteration("a"), GeneratorExit("b"), LanewayError("c")])
@simulated
async def test_strange_errors_are_outcomes_too(error: BaseException) -> None:
    disk = MemoryDisk()

    async def raise_it(_payload: None) -> None:
        raise error

    async with durable_lanes(disk) as lanes:
        lanes.handler("raise", raise_it)
        job = await lanes.enqueue("one", "raise", retry=RetryPolicy.fixed(1, 1))
        with pytest.raises((Exception, GeneratorExit)):
            await job
        assert job.state is JobState.DEAD
        assert rows_of(disk) == {"None": "dead"}
