"""Durable jobs on a store that fails: nothing is lost, nothing runs unnoted, and what was refused never runs."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any, Literal

import pytest

from laneway import JobCancelledError, JobState, LanewayError, RetryPolicy, WaitReason
from laneway.errors import StoreUnavailableError
from laneway.rows import Batch, BatchResult, Owner, StateRow
from laneway.runtime.job_writes import OUTCOME_PATIENCE_MS
from laneway.stores import MemoryDisk, MemoryStore
from laneway.stores.memory import MemoryHistory
from laneway.testing.faults import FaultyStore
from tests.durable_stage import Mortal, Worker, durable_lanes, lifetimes, open_for_good, rows_of
from tests.stage import now_ms, passing, simulated

When = Literal["before", "after"]
WHEN: tuple[When, ...] = ("before", "after")


class Blind(MemoryStore):
    """A store that can be read no more than it can be written."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self.down = False

    @property
    def history(self) -> Any:
        """Reads fail while it is down."""
        if self.down:
            raise StoreUnavailableError("the disk is gone")
        return super().history

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Commits fail while it is down."""
        if self.down:
            raise StoreUnavailableError("the disk is gone")
        return await super().commit(batches)


# ---- taking ----


@simulated
async def test_a_job_that_could_not_be_stored_is_refused_and_never_runs() -> None:
    disk, worker = MemoryDisk(), Worker()
    store = FaultyStore(MemoryStore(disk))
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        store.fail_next("before")
        with pytest.raises(StoreUnavailableError):
            await lanes.enqueue("one", "work", "refused")
        assert (lanes.jobs(), rows_of(disk)) == ([], {})
        assert await (await lanes.enqueue("one", "work", "taken")) == "taken"
    assert worker.began == ["taken"]


@simulated
async def test_a_job_that_was_stored_although_the_answer_was_lost_is_taken() -> None:
    disk = MemoryDisk()
    worker = Worker(disk)
    store = FaultyStore(MemoryStore(disk))
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        for paused in (False, True):
            if paused:
                lanes.pause("one")
            store.fail_next("after")
            job = await lanes.enqueue("one", "work", f"paused {paused}")
            lanes.resume("one")
            assert await job == f"paused {paused}"
            assert job.attempt == 1
    assert (worker.began, rows_of(disk)) == (["paused False", "paused True"], {})


@simulated
async def test_what_nobody_can_look_up_is_refused_and_forgotten_when_the_store_is_back() -> None:
    disk, worker = MemoryDisk(), Worker()
    store = Blind(disk)

    class Liar(FaultyStore):
        async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
            results = await super().commit(batches)
            if any(result.error for result in results):
                store.down = True
            return results

    lying = Liar(store)
    async with durable_lanes(lying) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        lying.fail_next("after")
        with pytest.raises(StoreUnavailableError):
            await lanes.enqueue("one", "work", "a")
        assert (lanes.jobs(), rows_of(disk)) == ([], {"a": "queued"})
        await passing(1_000)
        store.down = False
        await passing(10_000)
        assert rows_of(disk) == {}
    assert worker.began == []


@simulated
async def test_a_job_of_which_nobody_knows_yet_whether_it_was_taken_writes_nothing() -> None:
    """It gets its slot while somebody looks into the store: its start must not be stored after that."""
    disk, worker = MemoryDisk(), Worker()

    class SlowToRead(MemoryHistory):
        async def state(self, kind: str, row_id: str) -> StateRow | None:
            found = await super().state(kind, row_id)
            await passing(50)
            return found

    inner = MemoryStore(disk)
    inner._history = SlowToRead(inner)  # noqa: SLF001 - a slow disk
    store = FaultyStore(inner)
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        lanes.submit("one", worker.work, "plain", 20)
        store.fail_next("before")
        with pytest.raises(StoreUnavailableError):
            await lanes.enqueue("one", "work", "refused")
        await passing(1_000)
        assert (lanes.jobs(), rows_of(disk)) == ([], {})
    assert worker.began == ["plain"]


@simulated
async def test_all_who_share_a_key_are_refused_with_it() -> None:
    disk, worker = MemoryDisk(), Worker()
    store = FaultyStore(MemoryStore(disk), Random(0))
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        store.slow, store.delay_ms = 1.0, 50
        store.fail_next("before")
        calls = [lanes.enqueue("one", "work", "a", key="k") for _ in range(3)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(answer) for answer in answers] == [StoreUnavailableError] * 3
        assert await (await lanes.enqueue("one", "work", "b", key="k")) == "b"
    assert worker.began == ["b"]


@simulated
async def test_one_bad_row_fails_only_its_own_job() -> None:
    disk, worker = MemoryDisk(), Worker()
    store = FaultyStore(MemoryStore(disk), Random(3))
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        lanes.pause("wide")
        store.fail_one = 1.0
        calls = [lanes.enqueue("wide", "work", f"{number}") for number in range(10)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        store.heal()
        refused = [answer for answer in answers if isinstance(answer, Exception)]
        assert 1 <= len(refused) <= store.faults < 10
        assert len(rows_of(disk)) == 10 - len(refused)
        lanes.resume("wide")
    assert len(worker.ended) == 10 - len(refused)


@simulated
async def test_a_cancelled_caller_costs_nobody_an_answer() -> None:
    disk, worker = MemoryDisk(), Worker()
    store = FaultyStore(MemoryStore(disk), Random(0))
    store.slow, store.delay_ms = 1.0, 100
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        store.fail_next("before")
        tasks = [asyncio.get_running_loop().create_task(lanes.enqueue("one", "work", "a", key="k")) for _ in range(2)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(answers[0], asyncio.CancelledError)
        assert isinstance(answers[1], StoreUnavailableError) or await answers[1] == "a"  # type: ignore[misc]
    assert rows_of(disk) == {}


# ---- starting and ending ----


@pytest.mark.parametrize("when", WHEN)
@simulated
async def test_a_start_that_could_not_be_stored_is_put_back_and_costs_no_attempt(when: When) -> None:
    disk = MemoryDisk()
    worker = Worker(disk)
    store = FaultyStore(MemoryStore(disk))
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        job = await lanes.enqueue("one", "work", "a", wait_timeout_ms=50, timeout_ms=1_000)
        store.fail_next(when, times=4)
        lanes.resume("one")
        await passing(20)
        assert worker.began == []
        assert (job.state, job.attempt) == (JobState.SCHEDULED, 0)
        why = job.explain()
        assert why.reason is WaitReason.STORE
        assert "waits for the store" in str(why)
        other = lanes.submit("one", worker.work, "plain")  # the slot is free meanwhile
        assert await other == "plain"
        assert await job == "a"
        assert job.attempt == 1
        assert now_ms() < 2_000
    assert rows_of(disk) == {}
    assert lanes.metrics()["one"].stats.retried == 0


@pytest.mark.parametrize("when", WHEN)
@simulated
async def test_an_end_is_told_once_it_is_stored(when: When) -> None:
    disk, worker = MemoryDisk(), Worker()
    store = FaultyStore(MemoryStore(disk))
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        good = await lanes.enqueue("two", "hold", "good")
        bad = await lanes.enqueue("two", "hold", "bad", retry=RetryPolicy.fixed(1, 10_000))
        await passing(1)
        store.fail_next(when, times=3)
        worker.let_go("good")
        await passing(150)
        assert not good.done()
        assert await good == "good"
        assert "good" not in rows_of(disk)
        assert bad.cancel()
        with pytest.raises(JobCancelledError):
            await bad
    assert (sorted(worker.began), rows_of(disk)) == (["bad", "good"], {})


@simulated
async def test_an_outcome_waits_for_the_store_but_not_for_ever() -> None:
    disk, worker = MemoryDisk(), Worker()
    store = Blind(disk)
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        job = await lanes.enqueue("one", "hold", "a")
        await passing(1)
        store.down = True
        worker.let_go("a")
        assert await job == "a"
        assert now_ms() >= OUTCOME_PATIENCE_MS
        assert rows_of(disk) == {"a": "running"}  # what a crash would leave: a person has to look
        store.down = False
        await passing(10_000)
        assert rows_of(disk) == {}


@simulated
async def test_an_outage_of_an_hour_costs_no_job_no_attempt_and_no_order() -> None:
    disk = MemoryDisk()
    worker = Worker(disk)
    store = Blind(disk)
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        names = [f"job {number}" for number in range(20)]
        jobs = [await lanes.enqueue("one", "work", name, timeout_ms=1_000) for name in names]
        store.down = True
        lanes.resume("one")
        await passing(3_600_000)
        assert worker.began == []
        with pytest.raises(StoreUnavailableError):
            await lanes.enqueue("one", "work", "refused")
        store.down = False
        assert [await job for job in jobs] == names
        assert {job.attempt for job in jobs} == {1}
    assert worker.began == names
    assert rows_of(disk) == {}


@simulated
async def test_a_job_that_waits_for_the_store_can_be_cancelled() -> None:
    disk, worker = MemoryDisk(), Worker()
    store = Blind(disk)
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        job = await lanes.enqueue("one", "work", "a")
        store.down = True
        lanes.resume("one")
        await passing(500)
        assert job.cancel("enough")
        with pytest.raises(JobCancelledError, match="enough"):
            await job
        assert rows_of(disk) == {"a": "queued"}
        store.down = False
        await passing(10_000)
        assert rows_of(disk) == {}
    assert worker.began == []


@simulated
async def test_leaving_during_an_outage_ends_and_says_what_could_not_be_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, logger="laneway")
    disk, worker = MemoryDisk(), Worker()
    store = Blind(disk)
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        await lanes.enqueue("one", "hold", "a")
        await passing(1)
        store.down = True
        worker.let_go("a")
    assert worker.ended == ["a"]
    assert any("could not be written" in message for message in caplog.messages)
    assert "users=0" in repr(store)


@simulated
async def test_a_dead_letter_is_stored_when_the_store_is_back() -> None:
    disk, worker = MemoryDisk(), Worker()
    store = Blind(disk)
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        job = await lanes.enqueue("one", "fail", "a", retry=RetryPolicy.fixed(1, 1_000))
        await passing(500)
        assert rows_of(disk) == {"a": "scheduled"}
        store.down = True
        await passing(5_000)
        store.down = False
        with pytest.raises(ValueError, match="no good"):
            await job
        await passing(10_000)
        assert rows_of(disk) == {"a": "dead"}
        store.down = True
        lanes.dead_letters.purge()
        await passing(5_000)
        store.down = False
        await passing(10_000)
        assert rows_of(disk) == {}


@simulated
async def test_a_store_that_raises_something_of_its_own_is_a_store_that_failed() -> None:
    worker = Worker()

    class Odd(MemoryStore):
        odd = False

        async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
            if self.odd:
                raise ZeroDivisionError("odd")
            return await super().commit(batches)

    store = Odd()
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        store.odd = True
        with pytest.raises(StoreUnavailableError, match="ZeroDivisionError"):
            await lanes.enqueue("one", "work", "a")
        store.odd = False
        assert await (await lanes.enqueue("one", "work", "b")) == "b"
        store.odd = True  # and stays so until after the end
    assert worker.began == ["b"]


@simulated
async def test_a_commit_that_somebody_cancels_is_made_again() -> None:
    disk = MemoryDisk()
    worker = Worker(disk)
    store = FaultyStore(MemoryStore(disk), Random(0))
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        job = await lanes.enqueue("one", "work", "a")
        store.slow, store.delay_ms = 1.0, 100
        lanes.resume("one")
        await passing(2)
        (commit,) = [task for task in asyncio.all_tasks() if task.get_name() == "laneway-commit"]
        commit.cancel()
        store.heal()
        assert await job == "a"
    assert (worker.began, rows_of(disk)) == (["a"], {})


@simulated
async def test_a_row_that_cannot_be_made_fails_only_its_job() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        lanes.pause("two")
        good, bad = [await lanes.enqueue("two", "work", name) for name in ("good", "bad")]
        record: Any = lanes.engine.kernel.jobs[bad.id]
        record.record.head = None
        record.record.to_row = lambda: 1 // 0
        lanes.resume("two")
        assert await good == "good"
        await passing(1_000)
        assert bad.explain().reason is WaitReason.STORE
        del record.record.to_row
    assert worker.began == ["good"]


# ---- every point at which it can fail ----


async def workflow(store: FaultyStore, disk: MemoryDisk) -> tuple[Worker, Counter[str], list[str]]:
    """Everything that jobs do, on a store that fails once; then all is well until everything has ended."""
    worker = Worker(disk)
    taken: Counter[str] = Counter()
    refused: list[str] = []
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        jobs = []
        for name, handler, options in (
            ("write", "work", {}),
            ("read", "work", {"effect": "read"}),
            ("failing", "fail", {"retry": RetryPolicy.fixed(2, 50)}),
            ("failed", "fail", {}),
            ("cancelled", "hold", {}),
            ("later", "note", {"delay_ms": 100}),
        ):
            try:
                job = await lanes.enqueue("two", handler, name, **options)
            except StoreUnavailableError:
                refused.append(name)
                continue
            taken[name] += 1
            jobs.append(job)
            if name == "cancelled":
                await passing(30)
                job.cancel()
        for job in jobs:
            with contextlib.suppress(ValueError, JobCancelledError):
                await job
        await passing(10_000)
        for letter in lanes.dead_letters.list():
            lanes.dead_letters.edit(letter.id, args=["mended"])
        await passing(10_000)
        assert lanes.jobs() == []
    return worker, taken, refused


@pytest.mark.parametrize("when", [*WHEN, "alone"])
@pytest.mark.parametrize("point", range(1, 20))
def test_a_fault_at_any_commit_loses_nothing_and_runs_nothing_twice(point: int, when: Any) -> None:
    disk = MemoryDisk()
    found: list[tuple[Worker, Counter[str], list[str]]] = []

    class Once(FaultyStore):
        async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
            if self.commits + 1 == point + 1:  # the first one claims the workspace
                owner = batches[-1].owner if when == "alone" else None
                self.fail_next("before" if when == "alone" else when, owner=owner)
            return await super().commit(batches)

    async def main() -> None:
        found.append(await workflow(Once(MemoryStore(disk)), disk))

    lifetimes(main, seed=point)
    ((worker, taken, refused),) = found
    runs = Counter(worker.began)
    assert set(taken) | set(refused) == {"write", "read", "failing", "failed", "cancelled", "later"}
    assert all(runs[name] == 0 for name in refused)
    assert runs["cancelled"] <= 1
    for name, times in (("write", 1), ("read", 1), ("failed", 1), ("later", 1), ("failing", 3)):
        assert runs[name] == (times if taken[name] else 0)
    assert rows_of(disk) == ({"mended": "dead"} if taken["failing"] else {})


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("point", range(2, 16))
def test_a_kill_at_any_commit_loses_nothing_and_runs_no_write_twice(point: int, before: bool) -> None:
    disk, told = MemoryDisk(), set[str]()
    worker, acknowledged = Worker(), set[str]()
    names = [f"{effect} {number}" for number in range(4) for effect in ("read", "write")]

    async def first() -> None:
        store = Mortal(disk, lives=point, before=before)
        lanes = await open_for_good(store)
        worker.register(lanes)

        async def use(name: str) -> None:
            job = await lanes.enqueue("two", "work", name, effect=name.split()[0])  # type: ignore[arg-type]
            acknowledged.add(name)
            told.add(await job)

        tasks = [asyncio.get_running_loop().create_task(use(name)) for name in names]
        await asyncio.wait(
            [asyncio.get_running_loop().create_task(store.died.wait()), *tasks], return_when="FIRST_COMPLETED"
        )
        while not store.died.is_set() and not all(task.done() for task in tasks):
            await passing(1)

    async def second() -> None:
        lanes = durable_lanes(disk)
        worker.register(lanes)
        async with lanes:
            await passing(100)
            letters = {letter.args[0] for letter in lanes.dead_letters.list()}
            done = set(worker.ended)
            assert acknowledged <= done | letters
            assert told <= done
            assert all(name.startswith("write") for name in letters)
            runs = Counter(worker.began)
            assert all(runs[name] <= 1 for name in names if name.startswith("write"))
            assert all(runs[name] <= 2 for name in names)
            assert not told & letters

    lifetimes(first, second, seed=point)
    assert set(rows_of(disk).values()) <= {"dead"}


# ---- slow stores ----


@simulated
async def test_a_slow_store_makes_nothing_wrong() -> None:
    disk = MemoryDisk()
    worker = Worker(disk)
    store = FaultyStore(MemoryStore(disk), Random(1))
    store.slow, store.delay_ms = 0.7, 50
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        jobs = [await lanes.enqueue("wide", "work", f"{number}") for number in range(20)]
        assert [await job for job in jobs] == [f"{number}" for number in range(20)]
    assert rows_of(disk) == {}


@simulated
async def test_a_flaky_store_makes_it_slow_and_nothing_else() -> None:
    disk = MemoryDisk()
    worker = Worker(disk)
    store = FaultyStore(MemoryStore(disk), Random(1))
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        store.fail_before = store.fail_after = store.fail_one = 0.2
        jobs = []
        for number in range(20):
            try:
                jobs.append(await lanes.enqueue("wide", "work", f"{number}"))
            except LanewayError:
                continue
        values = [await job for job in jobs]
        store.heal()
        assert sorted(values) == sorted(worker.began)
        assert len(set(values)) == len(values) >= 5
    assert rows_of(disk) == {}


@simulated
async def test_rows_of_others_in_the_workspace_are_left_alone() -> None:
    disk, worker = MemoryDisk(), Worker()
    store = MemoryStore(disk)
    await store.open()
    row = StateRow("turn", "turn-1", "default", "default", "ada", 1, 1, "thinking", "{}")
    await store.commit([Batch(Owner("default", "default", "ada"), store.epoch, (row,))])
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        await (await lanes.enqueue("one", "work", "a"))
    await store.close()
    assert list(disk.states.values()) == [row]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="laneway")
