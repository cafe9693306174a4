"""Ending with durable jobs about: what is waited for, what stays in the store, what a cancelled attempt leaves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random

import pytest

from laneway import JobCancelledError, JobFailedError, JobState, LaneConfig, RetryPolicy
from laneway.rows import Batch, BatchResult
from laneway.sim.loop import SimLoop
from laneway.stores import MemoryDisk, MemoryStore
from laneway.testing.faults import FaultyStore
from tests.durable_stage import Worker, body_of, durable_lanes, rows_of
from tests.stage import now_ms, passing, simulated

# ---- leaving ----


@simulated
async def test_leaving_runs_what_can_run() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        for name in "abcde":
            await lanes.enqueue("one", "work", name)
    assert (worker.ended, rows_of(disk)) == (list("abcde"), {})


@simulated
async def test_leaving_leaves_in_the_store_what_cannot_run_now() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        lanes.pause("two")
        later = await lanes.enqueue("one", "work", "later", delay_ms=3_600_000)
        retry = await lanes.enqueue("one", "fail", "retry", retry=RetryPolicy.fixed(1, 60_000))
        paused = await lanes.enqueue("two", "work", "paused")
        done = await lanes.enqueue("one", "work", "done")
    assert now_ms() == 10
    assert rows_of(disk) == {"later": "scheduled", "retry": "scheduled", "paused": "queued"}
    assert await done == "done"
    for job in (later, retry, paused):
        assert not job.state.is_final
        assert not job.cancel()
        with pytest.raises(JobFailedError, match="stays in the store") as caught:
            await job
        assert caught.value.reason == "the lanes were closed"
    async with durable_lanes(disk, wall_ms=1_700_000_000_000 + 3_600_000) as lanes:
        worker.register(lanes)
    assert sorted(worker.ended) == ["done", "later", "paused", "retry", "retry"]
    assert rows_of(disk) == {"retry": "dead"}


@simulated
async def test_leaving_runs_what_becomes_due_while_it_waits_for_others() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        await lanes.enqueue("one", "work", "soon", delay_ms=50)
        lanes.submit("two", worker.work, "plain", 100)
        lanes.submit("two", worker.work, "plain and late", delay_ms=500)
    assert worker.ended == ["soon", "plain", "plain and late"]


@simulated
async def test_leaving_cancels_plain_jobs_that_nothing_would_start_and_keeps_durable_ones() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        plain = lanes.submit("one", worker.work, "plain")
        await lanes.enqueue("one", "work", "durable")
    with pytest.raises(JobCancelledError, match="paused"):
        await plain
    assert rows_of(disk) == {"durable": "queued"}


@simulated
async def test_what_was_still_being_stored_when_the_lanes_were_left_is_stored() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        caller = asyncio.get_running_loop().create_task(lanes.enqueue("one", "work", "a"))
        await asyncio.sleep(0)
        if not lanes.jobs():
            await passing(1)
    job = await caller
    assert rows_of(disk) == {"a": "queued"}
    with pytest.raises(JobFailedError, match="stays"):
        await job


# ---- leaving in a hurry ----


@simulated
async def test_an_exception_cancels_nothing_durable() -> None:
    disk, worker = MemoryDisk(), Worker()
    lanes = await durable_lanes(disk).__aenter__()
    worker.register(lanes)
    reading = await lanes.enqueue("two", "hold", "reading", effect="read")
    writing = await lanes.enqueue("two", "hold", "writing")
    waiting = await lanes.enqueue("two", "hold", "waiting")
    await passing(10)
    await lanes.__aexit__(RuntimeError, RuntimeError("something broke elsewhere"), None)
    assert rows_of(disk) == {"reading": "queued", "writing": "dead", "waiting": "queued"}
    assert sorted(worker.cancelled) == ["reading", "writing"]
    assert body_of(disk, "reading").get("crashes", 0) == 0  # nobody crashed
    assert "interrupted: the lanes were closed while it ran" in body_of(disk, "writing")["reason"]
    for job in (reading, writing):
        with pytest.raises(JobCancelledError):
            await job
    with pytest.raises(JobFailedError, match="stays in the store"):
        await waiting
    assert [letter.args for letter in lanes.dead_letters.list()] == [("writing",)]
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        worker.let_go("reading", "waiting", "writing")
        (letter,) = lanes.dead_letters.list()
        assert letter.args == ("writing",)
    assert sorted(worker.ended[2:]) == ["reading", "waiting"]
    assert rows_of(disk) == {"writing": "dead"}


@simulated
async def test_what_was_cancelled_before_the_lanes_closed_stays_cancelled() -> None:
    disk, worker = MemoryDisk(), Worker()
    lanes = durable_lanes(disk)
    async with lanes:
        worker.register(lanes)
        job = await lanes.enqueue("one", "hold", "a", effect="read")
        await passing(1)
        job.cancel("not wanted")
        await lanes.close()
    with pytest.raises(JobCancelledError, match="not wanted"):
        await job
    assert rows_of(disk) == {}


@simulated
async def test_an_attempt_that_ends_well_within_its_grace_has_ended_well() -> None:
    disk, worker = MemoryDisk(), Worker()

    async def finish(name: str) -> str:
        return await worker.cling(name, 100)

    lanes = durable_lanes(disk)
    async with lanes:
        lanes.handler("finish", finish)
        job = await lanes.enqueue("one", "finish", "a")
        await passing(10)
        await lanes.close()
    assert worker.ended == ["a"]
    assert rows_of(disk) == {}
    assert job.done()


@simulated
async def test_an_attempt_that_outlives_the_lanes_leaves_what_a_crash_would() -> None:
    disk, worker = MemoryDisk(), Worker()

    async def cling(name: str) -> str:
        return await worker.cling(name, 60_000)

    async with durable_lanes(disk, close_timeout_ms=100) as lanes:
        lanes.handler("cling", cling)
        await lanes.enqueue("two", "cling", "reading", effect="read")
        await lanes.enqueue("two", "cling", "writing")
        await passing(10)
        await lanes.close()
    assert now_ms() < 200
    assert rows_of(disk) == {"reading": "queued", "writing": "dead"}
    await passing(100_000)  # what they do now changes nothing
    assert rows_of(disk) == {"reading": "queued", "writing": "dead"}


@simulated
async def test_closing_while_the_start_is_being_stored_leaves_the_job_as_it_was() -> None:
    disk, worker = MemoryDisk(), Worker()

    store = FaultyStore(MemoryStore(disk), Random(0))
    store.slow, store.delay_ms = 1.0, 100
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        blocker = lanes.submit("one", worker.hold, "blocker")
        await lanes.enqueue("one", "work", "a")
        worker.let_go("blocker")
        await blocker
        await passing(1)
        assert lanes.jobs(state="running")[0].attempt == 1
        await lanes.close()
    assert (worker.began, rows_of(disk)) == (["blocker"], {"a": "queued"})
    assert body_of(disk, "a")["attempt"] == 0


@simulated
async def test_no_room_for_letters_at_closing_forgets_the_row() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk, dlq_max_size=0) as lanes:
        worker.register(lanes)
        await lanes.enqueue("one", "hold", "a")
        await passing(1)
        await lanes.close()
    assert rows_of(disk) == {}
    assert lanes.dead_letters.dropped == 1


# ---- cancelled by others ----


@simulated
async def test_a_task_that_somebody_else_cancels_is_an_interruption_and_no_end() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        reading = await lanes.enqueue("two", "hold", "reading", effect="read")
        writing = await lanes.enqueue("two", "hold", "writing")
        await passing(1)
        for task in asyncio.all_tasks():
            if task.get_name() in (reading.id, writing.id):
                task.cancel()
        with pytest.raises(JobFailedError, match="interrupted"):
            await writing
        worker.let_go("reading", "writing")
        assert await reading == "reading"
        assert reading.attempt == 2
        assert rows_of(disk) == {"writing": "dead"}
        assert [letter.args for letter in lanes.dead_letters.list()] == [("writing",)]


class Gated(MemoryStore):
    """A store that commits nothing while its gate is shut."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self.gate = asyncio.Event()
        self.gate.set()

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Wait for the gate."""
        await self.gate.wait()
        return await super().commit(batches)


@simulated
async def test_a_failure_is_not_undone_by_who_cancels_the_task_while_it_is_stored() -> None:
    disk, calls = MemoryDisk(), []
    store = Gated(disk)

    async def shut(name: str) -> str:
        calls.append(name)
        store.gate.clear()
        raise ValueError(name)

    async with durable_lanes(store) as lanes:
        lanes.handler("shut", shut)
        job = await lanes.enqueue("one", "shut", "a", retry=RetryPolicy.fixed(1, 10_000))
        await passing(1)
        (task,) = [task for task in asyncio.all_tasks() if task.get_name() == job.id]
        task.cancel()
        await passing(1)
        store.gate.set()
        await passing(1)
        assert (job.state, job.attempt) == (JobState.SCHEDULED, 1)
        assert len(lanes.dead_letters) == 0
    assert (rows_of(disk), calls) == ({"a": "scheduled"}, ["a"])


@simulated
async def test_a_success_is_told_when_it_is_stored_and_a_cancel_meanwhile_waits_for_nothing() -> None:
    disk = MemoryDisk()
    store = Gated(disk)

    async def shut(name: str) -> str:
        store.gate.clear()
        return name

    async with durable_lanes(store) as lanes:
        lanes.handler("shut", shut)
        job = await lanes.enqueue("one", "shut", "a")
        await passing(1_000)
        assert not job.done()
        store.gate.set()
        assert await job == "a"
        job = await lanes.enqueue("one", "shut", "b", effect="read")
        await passing(1_000)
        assert job.cancel("too late")  # as for any job: asked to end before it was known to have ended
        await passing(1)
        assert (job.state, lanes.jobs(), lanes.stats().abandoned) == (JobState.CANCELLED, [], 0)
        store.gate.set()
        with pytest.raises(JobCancelledError, match="too late"):
            await job
    assert rows_of(disk) == {}


@pytest.mark.parametrize("answered", [False, True])
@simulated
async def test_a_job_whose_start_is_being_stored_is_cancelled_at_once_and_never_runs(answered: bool) -> None:
    """With `answered`, the store answers in the moment in which it is cancelled."""
    disk, worker = MemoryDisk(), Worker()
    store = Gated(disk)
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        job = await lanes.enqueue("one", "work", "a")
        store.gate.clear()
        lanes.resume("one")
        await passing(1)
        assert job.state is JobState.RUNNING
        if answered:
            store.gate.set()
        assert job.cancel("not wanted")
        await passing(1)
        assert lanes.jobs() == []
        assert lanes.stats().abandoned == 0
        store.gate.set()
        with pytest.raises(JobCancelledError, match="not wanted"):
            await job
    assert (worker.began, rows_of(disk)) == ([], {})


@simulated
async def test_a_start_that_takes_too_long_counts_as_running_too_long() -> None:
    disk, worker = MemoryDisk(), Worker()
    store = Gated(disk)
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        job = await lanes.enqueue("one", "work", "a", timeout_ms=50, retry=RetryPolicy.fixed(1, 100), effect="read")
        store.gate.clear()
        lanes.resume("one")
        await passing(60)
        assert job.state is JobState.SCHEDULED
        store.gate.set()
        assert await job == "a"
        assert job.attempt == 2
    assert (worker.began, rows_of(disk)) == (["a"], {})


@simulated
async def test_a_handler_that_cancels_itself_each_time_becomes_a_dead_letter() -> None:
    disk, calls = MemoryDisk(), []

    async def odd(_payload: None) -> None:
        calls.append(now_ms())
        raise asyncio.CancelledError

    async with durable_lanes(disk) as lanes:
        lanes.handler("odd", odd)
        job = await lanes.enqueue("one", "odd", effect="read")
        with pytest.raises(JobFailedError, match="5 times"):
            await job
        assert calls == [0, 200, 600, 1_400, 3_000]
        assert rows_of(disk) == {"None": "dead"}


async def test_a_task_that_is_cancelled_before_its_first_step_is_put_back() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        job = await lanes.enqueue("one", "work", "a")
        lanes.resume("one")
        tasks: list[asyncio.Task[None]] = []
        for _ in range(20):
            await asyncio.sleep(0)
            tasks = tasks or [task for task in asyncio.all_tasks() if task.get_name() == job.id]
            if tasks and not worker.began:
                tasks[0].cancel()
        assert tasks[0].cancelled()
        await asyncio.sleep(0)
        assert (job.state, job.attempt) == (JobState.SCHEDULED, 0)
    assert (rows_of(disk), worker.began) == ({"a": "scheduled"}, [])


# ---- drain ----


@simulated
async def test_a_drain_lets_durable_jobs_run_those_that_are_scheduled_too() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        await lanes.enqueue("one", "work", "a")
        await lanes.enqueue("one", "work", "b", delay_ms=500)
        report = await lanes.drain()
        assert (report.finished, report.cancelled, report.still_running) == (True, 0, 0)
    assert (worker.ended, rows_of(disk)) == (["a", "b"], {})


@simulated
async def test_at_the_timeout_of_a_drain_what_has_not_begun_stays_in_the_store() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        await lanes.enqueue("one", "hold", "running")
        waiting = await lanes.enqueue("one", "work", "waiting")
        plain = lanes.submit("one", worker.work, "plain")
        report = await lanes.drain(100)
        assert (report.finished, report.cancelled, report.still_running) == (False, 1, 1)
        with pytest.raises(JobFailedError, match="stays in the store") as caught:
            await waiting
        assert not isinstance(caught.value, JobCancelledError)
        with pytest.raises(JobCancelledError, match="drain"):
            await plain
        assert rows_of(disk) == {"running": "running", "waiting": "queued"}
        worker.let_go("running")
    assert rows_of(disk) == {"waiting": "queued"}
    assert worker.ended == ["running"]


@simulated
async def test_reopening_after_a_drain_goes_on_with_what_it_left() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        await lanes.enqueue("one", "hold", "running")
        await lanes.enqueue("one", "work", "waiting", key="k")
        await lanes.drain(100)
        assert [info.state for info in lanes.jobs()] == [JobState.RUNNING]
        lanes.reopen()
        joined = await lanes.enqueue("one", "work", "waiting", key="k")
        worker.let_go("running")
        assert await joined == "waiting"
    assert (worker.ended, rows_of(disk)) == (["running", "waiting"], {})


@simulated
async def test_a_drain_does_not_wait_for_a_handler_that_never_comes() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        await lanes.enqueue("one", "work", "a")
    async with durable_lanes(disk) as lanes:
        report = await lanes.drain()
        assert (report.finished, report.cancelled, report.still_running) == (True, 0, 0)
        assert lanes.jobs() == []
        lanes.reopen()
        assert len(lanes.jobs()) == 1
    assert rows_of(disk) == {"a": "queued"}


# ---- nothing stays behind ----


def test_closing_leaves_no_task_no_timer_and_a_closed_store() -> None:
    for cancel in (False, True):
        loop = SimLoop(seed=0)
        store = MemoryStore()

        async def main(store: MemoryStore = store, cancel: bool = cancel) -> None:
            worker = Worker()
            async with durable_lanes(store, {"one": LaneConfig(), "two": 2}) as lanes:
                worker.register(lanes)
                await lanes.enqueue("one", "hold", "a", effect="read")
                await lanes.enqueue("one", "work", "b")
                await lanes.enqueue("two", "work", "c", delay_ms=10_000)
                await passing(1)
                if cancel:
                    await lanes.close()
                worker.let_go("a")

        loop.run_until_complete(loop.create_task(main()))
        assert loop.pending_tasks() == []
        assert loop.pending_timers() == 0
        assert "users=0" in repr(store)
        loop.close()


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="laneway")
