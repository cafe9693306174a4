"""What a restart finds: everything that was taken and not finished, as it was, and decided as it would have been."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from laneway import (
    Effect,
    JobFailedError,
    JobState,
    LaneConfig,
    Lanes,
    Priority,
    RetryPolicy,
    UnknownJobError,
    UsageError,
    WaitReason,
)
from laneway.errors import FencedError, StoreInUseError, StoreUnavailableError
from laneway.rows import Batch, Owner, StateRow
from laneway.stores import MemoryDisk, MemoryStore
from laneway.testing.faults import FaultyStore
from tests.durable_stage import LANES, Mortal, Worker, body_of, durable_lanes, lifetimes, open_for_good, rows_of
from tests.stage import now_ms, passing, simulated

START = 1_700_000_000_000


def crash_with(disk: MemoryDisk, *jobs: tuple[str, str, str, dict[str, Any]]) -> None:
    """A process that takes these jobs (lane, handler, name, options), works for 100 ms and is killed."""

    async def main() -> None:
        store = Mortal(disk)
        lanes = await open_for_good(store)
        Worker().register(lanes)
        for lane, handler, name, options in jobs:
            await lanes.enqueue(lane, handler, name, **options)
        await passing(100)
        store.die()

    lifetimes(main)


# ---- what waits ----


@simulated
async def test_what_was_not_begun_runs_after_a_restart_by_itself_in_its_old_order() -> None:
    disk, worker = MemoryDisk(), Worker()
    names = [f"job {number}" for number in range(10)]
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        for name in names:
            await lanes.enqueue("one", "work", name)
    assert rows_of(disk) == dict.fromkeys(names, "queued")
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
    assert worker.ended == names
    assert rows_of(disk) == {}


def test_ten_jobs_survive_a_kill_once_each_and_in_order() -> None:
    disk, worker = MemoryDisk(), Worker()
    read = {"effect": "read"}
    crash_with(disk, *[("one", "hold", f"job {number}", read) for number in range(10)])
    assert list(rows_of(disk).values()) == ["running", *["queued"] * 9]

    async def second() -> None:
        worker.let_go(*rows_of(disk))
        async with durable_lanes(disk) as lanes:
            worker.register(lanes)

    lifetimes(second)
    assert worker.ended == [f"job {number}" for number in range(10)]
    assert rows_of(disk) == {}


@simulated
async def test_levels_count_after_a_restart_before_the_first_job_starts() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        for priority in (Priority.BACKGROUND, Priority.SCHEDULED, Priority.USER):
            await lanes.enqueue("one", "work", priority.name, priority=priority)
    lanes = durable_lanes(disk)
    worker.register(lanes)
    async with lanes:
        pass
    assert worker.began == ["USER", "SCHEDULED", "BACKGROUND"]


@simulated
async def test_everything_that_was_said_about_a_job_is_kept() -> None:
    disk, worker = MemoryDisk(), Worker()
    options: dict[str, Any] = {
        "priority": Priority.SCHEDULED,
        "timeout_ms": 30_000,
        "wait_timeout_ms": 40_000,
        "deadline_ms": 50_000,
        "retry": RetryPolicy.exponential(3, 200, factor=3, max_delay_ms=9_000, jitter=0.5),
        "effect": "idempotent",
        "tenant": "acme",
        "weight": 2.5,
        "key": "k",
        "label": "Grüße",
    }
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        first = await lanes.enqueue("one", "work", "a", **options)
        before = lanes.engine.kernel.jobs[first.id].spec
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        (info,) = lanes.jobs()
        assert (info.id, info.label, info.tenant, info.priority) == (first.id, "Grüße", "acme", Priority.SCHEDULED)
        assert lanes.engine.kernel.jobs[info.id].spec == before
        joined = await lanes.enqueue("one", "work", "b", key="k", tenant="acme")
        assert joined.id == first.id
        lanes.resume("one")
        assert await joined == "a"


@pytest.mark.parametrize(
    ("down_ms", "due_ms"),
    [(0, 5_000), (2_000, 3_000), (5_000, 0), (90_000, 0), (-3_600_000, 5_000)],
    ids=["at once", "later", "just due", "long due", "the wall clock was set back"],
)
@simulated
async def test_a_delay_goes_on_with_what_is_left_of_it(down_ms: int, due_ms: int) -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        await lanes.enqueue("one", "work", "a", delay_ms=5_000)
    assert rows_of(disk) == {"a": "scheduled"}
    began = now_ms()
    async with durable_lanes(disk, wall_ms=START + down_ms) as lanes:
        worker.register(lanes)
        await passing(due_ms + 1)
    assert worker.times == [began + due_ms]


@simulated
async def test_a_retry_is_kept_with_its_attempts() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        await lanes.enqueue("one", "fail", "a", retry=RetryPolicy.fixed(2, 1_000))
        await passing(1_010)
    assert rows_of(disk) == {"a": "scheduled"}
    async with durable_lanes(disk, wall_ms=START) as lanes:
        worker.register(lanes)
        (info,) = lanes.jobs()
        assert (info.state, info.attempt) == (JobState.SCHEDULED, 2)
        await passing(2_000)
        (letter,) = lanes.dead_letters.list()
        assert letter.attempts == 3
        assert [line.partition(":")[0] for line in letter.history] == ["attempt 1", "attempt 2", "attempt 3"]
    assert worker.began == ["a"] * 3


@simulated
async def test_time_in_which_nobody_could_start_it_does_not_count_as_waiting() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        await lanes.enqueue("one", "work", "a", wait_timeout_ms=5_000)
    async with durable_lanes(disk, wall_ms=START + 3_600_000) as lanes:
        worker.register(lanes)
        assert lanes.jobs()[0].age_ms >= 3_600_000
    assert worker.ended == ["a"]


# ---- handlers that come late ----


@simulated
async def test_a_job_waits_for_its_handler_and_says_so() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        for name in "abc":
            await lanes.enqueue("one", "work", name)
        await lanes.enqueue("one", "hold", "d")
    async with durable_lanes(disk) as lanes:
        await passing(1_000)
        assert [info.state for info in lanes.jobs()] == [JobState.SCHEDULED] * 4
        why = lanes.explain(lanes.jobs()[0].id)
        assert why.reason is WaitReason.HANDLER
        assert "waits for a handler 'work'" in str(why)
        assert lanes.cancel(lanes.jobs()[1].id)
        other = lanes.submit("one", worker.work, "plain")
        await other
        lanes.handler("work", worker.do_work)
        await passing(1_000)
        assert worker.ended == ["plain", "a", "c"]
        assert rows_of(disk) == {"d": "queued"}
    assert rows_of(disk) == {"d": "queued"}


@simulated
async def test_a_sync_handler_that_comes_late_still_gets_a_thread() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        await lanes.enqueue("one", "note", "a")
    async with durable_lanes(disk) as lanes:
        await passing(10)
        worker.register(lanes)
        await passing(10)
        assert worker.ended == ["a"]


@simulated
async def test_a_delay_runs_on_while_the_handler_is_missing() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        await lanes.enqueue("one", "work", "a", delay_ms=5_000)
    began = now_ms()
    async with durable_lanes(disk, wall_ms=START) as lanes:
        await passing(1_000)
        worker.register(lanes)
        await passing(5_000)
    assert worker.times == [began + 5_000]


# ---- what ran ----


def test_a_read_that_was_interrupted_runs_again_and_a_write_does_not() -> None:
    disk, worker = MemoryDisk(), Worker()
    effects = [("wide", "hold", str(effect), {"effect": str(effect)}) for effect in Effect]
    crash_with(disk, *effects)
    assert set(rows_of(disk).values()) == {"running"}

    async def second() -> None:
        worker.let_go("read", "idempotent", "write")
        async with durable_lanes(disk) as lanes:
            worker.register(lanes)
            await passing(10)
            assert sorted(worker.ended) == ["idempotent", "read"]
            (letter,) = lanes.dead_letters.list()
            assert letter.args == ("write",)
            assert letter.reason.startswith("interrupted: the process ended while it ran")
            assert "unknown" in letter.reason
            assert letter.history == (f"attempt 1: {letter.reason}",)
            assert rows_of(disk) == {"write": "dead"}
            (job,) = lanes.dead_letters.retry(letter.id)
            assert await job == "write"
            assert rows_of(disk) == {}

    lifetimes(second)


def test_an_interrupted_attempt_counts_as_one() -> None:
    disk = MemoryDisk()
    crash_with(disk, ("one", "hold", "a", {"effect": "read"}))

    async def second() -> None:
        async with durable_lanes(disk) as lanes:
            worker = Worker()
            worker.register(lanes)
            (info,) = lanes.jobs()
            assert info.attempt == 2
            worker.let_go("a")

    lifetimes(second)


def test_a_job_that_ends_the_process_each_time_becomes_a_dead_letter() -> None:
    disk = MemoryDisk()
    crash_with(disk, ("one", "hold", "poison", {"effect": "read"}), ("one", "hold", "innocent", {"effect": "read"}))

    async def again() -> None:
        store = Mortal(disk)
        lanes = await open_for_good(store)
        Worker().register(lanes)
        await passing(100)
        store.die()

    for crashes in range(1, 5):
        assert rows_of(disk)["poison"] == "running"
        assert body_of(disk, "poison").get("crashes", 0) == crashes - 1
        lifetimes(again)
    lifetimes(again)
    assert rows_of(disk) == {"poison": "dead", "innocent": "running"}
    body = body_of(disk, "poison")
    assert (body["attempt"], body["crashes"]) == (5, 5)
    assert "5 times" in body["reason"]


def test_a_job_that_waits_is_not_to_blame_for_crashes() -> None:
    disk = MemoryDisk()
    crash_with(disk, ("two", "hold", "once", {"effect": "read"}))

    async def crash_early() -> None:  # after the jobs were loaded, before any could start
        store = Mortal(disk)
        await open_for_good(store)
        store.die()

    for _ in range(10):
        lifetimes(crash_early)
    assert body_of(disk, "once")["crashes"] == 1


@pytest.mark.parametrize(
    ("policy", "state"),
    [(RetryPolicy.fixed(3, 1_000), "scheduled"), (RetryPolicy.fixed(1, 50), "dead"), (None, None)],
    ids=["a retry is left", "none is left", "there was no policy"],
)
def test_an_attempt_that_had_failed_is_decided_by_its_policy(policy: RetryPolicy | None, state: str | None) -> None:
    """The process dies when the failure is stored and what follows is not."""
    disk = MemoryDisk()

    async def second() -> None:
        store = Mortal(disk)
        lanes = await open_for_good(store, wall_ms=START + 100)
        assert rows_of(disk) == ({"a": state} if state else {})
        assert len(lanes.dead_letters) == (state == "dead")
        if state == "scheduled":
            assert body_of(disk, "a")["failures"] == 1
            assert 800 < body_of(disk, "a")["due_ms"] - START < 1_100
        store.die()

    # The commit of a failure and that of what follows are apart: stop between them.
    class Slow(Mortal):
        async def commit(self, batches: Any) -> Any:
            await passing(2)
            return await super().commit(batches)

    async def first() -> None:
        store = Slow(disk)
        lanes = await open_for_good(store)
        Worker().register(lanes)
        await lanes.enqueue("one", "fail", "a", retry=policy)
        for _ in range(200):
            body = body_of(disk, "a")
            if body["state"] == "failed" and body["attempt"] == (2 if state == "dead" else 1):
                store.die()
                return
            await passing(1)
        raise AssertionError(rows_of(disk))

    lifetimes(first, second)


# ---- rows that do not fit any more ----


@simulated
async def test_a_lane_that_is_no_longer_configured_is_made_for_what_waits_in_it() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk, {"old": 1}) as lanes:
        worker.register(lanes)
        lanes.pause("old")
        await lanes.enqueue("old", "work", "a")
        await lanes.enqueue("old", "work", "b")
    async with durable_lanes(disk, {"new": 1}) as lanes:
        worker.register(lanes)
    assert worker.ended == ["a", "b"]
    assert worker.peak == 1


@simulated
async def test_lanes_in_another_order_make_a_dead_letter_and_hold_up_nobody() -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk, {"a": 1, "b": 1}) as lanes:
        worker.register(lanes)
        lanes.pause("b")
        await lanes.enqueue(("a", "b"), "work", "both")
        await lanes.enqueue("b", "work", "fine")
    async with durable_lanes(disk, {"b": 1, "a": 1}) as lanes:
        worker.register(lanes)
        (letter,) = lanes.dead_letters.list()
        assert "order" in letter.reason
    assert worker.ended == ["fine"]
    assert rows_of(disk) == {"both": "dead"}


@pytest.mark.parametrize(
    ("state", "body"),
    [
        ("queued", "not json"),
        ("queued", "{}"),
        ("queued", '{"v":1,"handler":"work","lanes":["one"],"submitted_ms":1,"payload":'),
        ("queued", '{"v":1,"handler":"work","lanes":["one"],"submitted_ms":1,"payload":1'),
        ("queued", '{"v":1,"handler":"work","lanes":["one"],"submitted_ms":1,"payload":1 "attempt":0}'),
        ("queued", '{"v":1,"handler":"work","lanes":["one"],"submitted_ms":1,"payload":1,"attempt":0,"due_ms":[]}'),
        ("queued", '{"v":1,"handler":"work","lanes":[],"submitted_ms":1,"payload":1,"attempt":0}'),
        ("queued", '{"v":1,"handler":"work","lanes":3,"submitted_ms":1,"payload":1,"attempt":0}'),
        ("asleep", '{"v":1,"handler":"work","lanes":["one"],"submitted_ms":1,"payload":1,"attempt":0}'),
        (
            "queued",
            '{"v":1,"handler":"work","lanes":["one"],"submitted_ms":1,"spec":{"effect":"odd"},"payload":1,"attempt":0}',
        ),
    ],
)
@simulated
async def test_a_row_that_cannot_be_read_stays_as_it_is_and_fails_nobody(state: str, body: str) -> None:
    disk, worker = MemoryDisk(), Worker()
    store = MemoryStore(disk)
    await store.open()
    row = StateRow("job", "strange", "default", "default", "", 1, 1, state, body)
    await store.commit([Batch(Owner("default", "default"), store.epoch, (row,))])
    await store.close()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        assert await (await lanes.enqueue("one", "work", "fine")) == "fine"
    assert list(disk.states.values()) == [row]


# ---- opening ----


@pytest.mark.parametrize("call", ["open", "load", "commit"])
@simulated
async def test_a_store_that_cannot_be_opened_is_an_error_and_nothing_stays_open(call: Any) -> None:
    disk, worker = MemoryDisk(), Worker()
    async with durable_lanes(disk) as lanes:
        worker.register(lanes)
        lanes.pause("one")
        await lanes.enqueue("one", "work", "a")
    inner = MemoryStore(disk)
    store = FaultyStore(inner)
    store.fail_next(call=call)
    lanes = durable_lanes(store)
    worker.register(lanes)
    with pytest.raises(StoreUnavailableError):
        await lanes.__aenter__()
    assert "users=0" in repr(inner)
    assert worker.began == []
    async with lanes:  # the store is back, and so is everything in it
        await passing(1)
    assert worker.ended == ["a"]
    assert "users=0" in repr(inner)


@simulated
async def test_lanes_are_opened_once() -> None:
    disk, worker = MemoryDisk(), Worker()
    store = MemoryStore(disk)
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        await lanes.enqueue("one", "hold", "a")
        with pytest.raises(UsageError, match="open already"):
            await lanes.__aenter__()
        await passing(1)
        assert rows_of(disk) == {"a": "running"}
        worker.let_go("a")
    assert worker.ended == ["a"]
    assert "users=0" in repr(store)


@simulated
async def test_a_workspace_has_one_owner_in_a_process_and_others_are_apart() -> None:
    disk, worker = MemoryDisk(), Worker()
    store = MemoryStore(disk)
    async with durable_lanes(store) as lanes:
        worker.register(lanes)
        await lanes.enqueue("one", "hold", "a")
        with pytest.raises(StoreInUseError, match="workspace"):
            await durable_lanes(store).__aenter__()
        async with durable_lanes(store, workspace="blue") as other:
            worker.register(other)
            assert other.jobs() == []
            assert await (await other.enqueue("one", "work", "b")) == "b"
        assert rows_of(disk) == {"a": "running"}
        worker.let_go("a")
    async with durable_lanes(store) as lanes:
        assert lanes.jobs() == []
    assert disk.states == {}


@simulated
async def test_who_lost_the_store_to_another_owner_lets_go_of_its_jobs() -> None:
    disk, mine, other = MemoryDisk(), Worker(), Worker()
    async with durable_lanes(disk) as lanes:
        mine.register(lanes)
        running = await lanes.enqueue("one", "hold", "running", effect="read")
        waiting = await lanes.enqueue("one", "work", "waiting")
        plain = lanes.submit("two", mine.work, "plain", 1_000)
        await passing(1)
        theirs = durable_lanes(disk)
        other.register(theirs)
        other.let_go("running")
        async with theirs:  # as another process would, in spite of the lock
            with pytest.raises(FencedError):
                await lanes.enqueue("one", "work", "late")
            for job in (running, waiting):
                with pytest.raises(JobFailedError, match="another owner"):
                    await job
            with pytest.raises(FencedError):
                await lanes.enqueue("one", "work", "later")
            await passing(100)
        assert await plain == "plain"
    assert (mine.cancelled, other.ended) == (["running"], ["running", "waiting"])
    assert rows_of(disk) == {}


# ---- dead letters ----


async def make_letters(disk: MemoryDisk, *names: str) -> None:
    async with durable_lanes(disk) as lanes:
        Worker().register(lanes)
        for name in names:
            job = await lanes.enqueue("one", "fail", {"name": name}, retry=RetryPolicy.fixed(1, 10), label=name.upper())
            with pytest.raises(ValueError, match="no good"):
                await job


@simulated
async def test_dead_letters_come_back_with_everything() -> None:
    disk = MemoryDisk()
    async with durable_lanes(disk) as lanes:
        Worker().register(lanes)
        job = await lanes.enqueue("one", "fail", {"name": "a"}, retry=RetryPolicy.fixed(1, 10), label="A")
        with pytest.raises(ValueError, match="no good"):
            await job
        (before,) = lanes.dead_letters.list()
    async with durable_lanes(disk) as lanes:
        assert lanes.dead_letters.list() == [before]
        assert (before.label, before.args, before.attempts) == ("A", ({"name": "a"},), 2)


@simulated
async def test_an_edited_letter_is_sent_again_as_edited_even_after_a_restart() -> None:
    disk, worker = MemoryDisk(), Worker()
    await make_letters(disk, "a", "b")
    async with durable_lanes(disk) as lanes:
        first, second = lanes.dead_letters.list()
        lanes.dead_letters.edit(first.id, args=[{"name": "mended"}])
        bad: list[dict[str, Any]] = [{"args": []}, {"args": [1, 2]}, {"kwargs": {"a": 1}}]
        for change in bad:
            with pytest.raises(UsageError, match="payload"):
                lanes.dead_letters.edit(second.id, **change)
        with pytest.raises(UsageError, match="JSON"):
            lanes.dead_letters.edit(second.id, args=[object()])
    assert rows_of(disk) == {"mended": "dead", "b": "dead"}
    async with durable_lanes(disk) as lanes:
        lanes.handler("fail", worker.do_work)
        jobs = lanes.dead_letters.retry()
        assert [await job for job in jobs] == ["mended", "b"]
        assert len(lanes.dead_letters) == 0
    assert rows_of(disk) == {}


def test_a_letter_that_is_sent_again_is_never_both_or_neither() -> None:
    for before in (True, False):
        disk = MemoryDisk()

        async def first(disk: MemoryDisk = disk) -> None:
            await make_letters(disk, "a")

        async def second(disk: MemoryDisk = disk, before: bool = before) -> None:
            store = Mortal(disk, lives=2, before=before)  # its first commit claims the workspace
            lanes = await open_for_good(store)
            Worker().register(lanes)
            lanes.pause("one")
            lanes.dead_letters.retry()
            await store.died.wait()

        lifetimes(first, second)
        assert list(rows_of(disk).values()) == (["dead"] if before else ["queued"])


@simulated
async def test_sending_again_needs_the_handler_and_the_lane_and_keeps_the_letter_if_refused() -> None:
    disk, worker = MemoryDisk(), Worker()
    await make_letters(disk, "a")
    async with durable_lanes(disk) as lanes:
        with pytest.raises(UsageError, match="handler"):
            lanes.dead_letters.retry()
        assert len(lanes.dead_letters) == 1
    async with durable_lanes(disk, {"other": 1}) as lanes:
        worker.register(lanes)
        with pytest.raises(UsageError, match="one"):
            lanes.dead_letters.retry()
        assert len(lanes.dead_letters) == 1
    assert rows_of(disk) == {"a": "dead"}


@simulated
async def test_purged_letters_and_those_that_are_too_many_leave_the_store() -> None:
    disk = MemoryDisk()
    await make_letters(disk, *"abcde")
    async with durable_lanes(disk, dlq_max_size=3) as lanes:
        assert [letter.label for letter in lanes.dead_letters.list()] == ["C", "D", "E"]
        assert lanes.dead_letters.dropped == 2
        assert lanes.dead_letters.purge(lanes.dead_letters.list()[0].id) == 1
    assert rows_of(disk) == {"d": "dead", "e": "dead"}
    async with durable_lanes(disk) as lanes:
        assert lanes.dead_letters.purge() == 2
        with pytest.raises(UnknownJobError):
            lanes.dead_letters.show("job-1-1")
    assert rows_of(disk) == {}


@simulated
async def test_without_room_for_letters_nothing_is_kept() -> None:
    disk = MemoryDisk()
    async with durable_lanes(disk, dlq_max_size=0) as lanes:
        Worker().register(lanes)
        job = await lanes.enqueue("one", "fail", "a", retry=RetryPolicy.fixed(1, 10))
        with pytest.raises(ValueError, match="no good"):
            await job
        assert (len(lanes.dead_letters), lanes.dead_letters.dropped) == (0, 1)
    assert rows_of(disk) == {}


@simulated
async def test_letters_are_touched_only_while_the_lanes_are_open() -> None:
    disk = MemoryDisk()
    await make_letters(disk, "a")
    async with durable_lanes(disk) as lanes:
        (letter,) = lanes.dead_letters.list()
    for touch in (lanes.dead_letters.purge, lanes.dead_letters.retry):
        with pytest.raises(Exception, match="closed"):
            touch(letter.id)
    with pytest.raises(Exception, match="closed"):
        lanes.dead_letters.edit(letter.id, args=[1])
    assert rows_of(disk) == {"a": "dead"}
    assert lanes.dead_letters.show(letter.id) == letter


# ---- numbers ----


def test_many_jobs_are_restored_in_their_order() -> None:
    disk, worker = MemoryDisk(), Worker()
    lanes: dict[str, LaneConfig | int] = {**LANES}

    async def first() -> None:
        async with durable_lanes(disk, lanes) as opened:
            worker.register(opened)
            opened.pause("one")
            for number in range(200):
                await opened.enqueue("one", "note", f"{number:04}")

    async def second() -> None:
        opened: Lanes = durable_lanes(disk, lanes)
        worker.register(opened)
        async with opened:
            assert len(opened.jobs()) == 200

    lifetimes(first, second)
    assert worker.ended == sorted(worker.ended)
    assert len(worker.ended) == 200


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="laneway")
