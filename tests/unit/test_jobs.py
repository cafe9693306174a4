"""Jobs: what can be submitted, how one is awaited, cancelled, timed out and shared."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import logging
from collections.abc import Awaitable

import pytest

from laneway import (
    AbortSignal,
    DuplicateJobError,
    Job,
    JobAbortedError,
    JobCancelledError,
    JobFailedError,
    JobState,
    JobTimeoutError,
    LaneConfig,
    Priority,
    RetryPolicy,
    WaitTimeoutError,
)
from tests.stage import Diary, never, new_lanes, now_ms, passing, simulated, value

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nobody's")


class AsyncCallable:
    async def __call__(self, number: int) -> int:
        return number + 1


class SyncCallable:
    def __call__(self, number: int) -> int:
        return number + 2

    async def method(self, number: int) -> int:
        return number + 3


def plain(number: int) -> int:
    return number + 4


def returns_awaitable(number: int) -> Awaitable[int]:
    return AsyncCallable()(number)


async def add(number: int, more: int) -> int:
    return number + more


@simulated
async def test_every_kind_of_function_runs() -> None:
    async with new_lanes({"lane": 2}) as lanes:
        assert await lanes.run("lane", AsyncCallable(), 0) == 1
        assert await lanes.run("lane", SyncCallable(), 0) == 2
        assert await lanes.run("lane", SyncCallable().method, 0) == 3
        assert await lanes.run("lane", plain, 0) == 4
        assert await lanes.run("lane", returns_awaitable, 0) == 1
        assert await lanes.run("lane", functools.partial(add, 3), 4) == 7
        assert await lanes.run("lane", functools.partial(functools.partial(plain), 1)) == 5
        assert await lanes.run("lane", functools.partial(add, more=5), 1) == 6
        assert await lanes.run("lane", lambda: AsyncCallable()(8)) == 9
        assert await lanes.run("lane", dict) == {}


@simulated
async def test_a_class_is_called_like_any_sync_function() -> None:
    async with new_lanes({"lane": 1}) as lanes:
        assert isinstance(await lanes.run("lane", AsyncCallable), AsyncCallable)
        assert isinstance(await lanes.run("lane", SyncCallable), SyncCallable)


@simulated
async def test_the_awaitable_of_a_sync_function_runs_on_the_loop() -> None:
    async def where() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    def make() -> Awaitable[asyncio.AbstractEventLoop]:
        with pytest.raises(RuntimeError):
            asyncio.get_running_loop()  # the function itself does not run there
        return where()

    async with new_lanes({"lane": 1}) as lanes:
        assert await lanes.run("lane", make) is asyncio.get_running_loop()


@simulated
async def test_submit_does_not_wait_and_a_job_can_be_awaited_many_times() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", diary.work, "a")
        assert diary.began == []
        assert not job.done()
        assert list(await asyncio.gather(job, job, job)) == ["a", "a", "a"]
        assert job.done()
        assert [await job, await job] == ["a", "a"]
    assert await job == "a"
    assert diary.began == ["a"]


@simulated
async def test_a_job_shows_id_state_attempt_and_label() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        first = lanes.submit("one", diary.hold, "first", label="deploy")
        second = lanes.submit("one", diary.hold, "second")
        assert (first.id, second.id) == ("job-1", "job-2")
        assert (first.state, second.state) == (JobState.RUNNING, JobState.QUEUED)
        assert (first.attempt, second.attempt) == (1, 0)
        assert all(word in repr(first) for word in ("job-1", "deploy", "running"))
        diary.let_go("first")
        await first
        assert first.state is JobState.SUCCEEDED
        assert first.state.is_final
        assert second.state is JobState.RUNNING
        diary.let_go("second")


@simulated
async def test_a_job_sees_the_context_of_its_submitter_and_changes_only_its_own() -> None:
    async def read_and_write() -> str:
        found = variable.get()
        variable.set("the job's")
        return found

    def read_in_thread() -> str:
        return variable.get()

    async with new_lanes({"lane": 2}) as lanes:
        token = variable.set("the submitter's")
        jobs: list[Job[str]] = [lanes.submit("lane", read_and_write), lanes.submit("lane", read_in_thread)]
        variable.set("changed since")
        assert await asyncio.gather(*jobs) == ["the submitter's"] * 2
        assert variable.get() == "changed since"
        variable.reset(token)


@simulated
async def test_every_attempt_sees_the_context_of_the_submitter() -> None:
    found: list[str] = []

    async def spoil() -> None:
        found.append(variable.get())
        variable.set("spoiled")
        if len(found) < 3:
            raise ValueError("again")

    async with new_lanes({"one": 1}) as lanes:
        await lanes.run("one", spoil, retry=RetryPolicy.fixed(2, 10))
    assert found == ["nobody's"] * 3


@simulated
async def test_awaiting_raises_the_functions_own_exception_with_a_note() -> None:
    error = KeyError("mine")
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", diary.fail, "x", error)
        for _ in range(2):
            with pytest.raises(KeyError) as caught:
                await job
            assert caught.value is error
        assert job.state is JobState.FAILED
    (note,) = error.__notes__
    assert "'one'" in note
    assert "attempt 1" in note


@simulated
async def test_run_raises_the_functions_own_exception_too() -> None:
    async with new_lanes({"one": 1}) as lanes:
        with pytest.raises(ZeroDivisionError):
            await lanes.run("one", divmod, 1, 0)


@simulated
async def test_a_function_that_raises_cancelled_error_itself_is_cancelled() -> None:
    async def quit_itself() -> None:
        raise asyncio.CancelledError

    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", quit_itself)
        with pytest.raises(JobCancelledError, match="itself"):
            await job
        assert job.state is JobState.CANCELLED


@simulated
async def test_cancelling_a_waiter_does_not_cancel_the_job() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", diary.work, "a", 50)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await job
        assert job.state is JobState.RUNNING
        assert await job == "a"


@simulated
async def test_cancelling_run_cancels_the_job() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        for name in ("running", "waiting"):
            lanes.submit("one", diary.work, "before", 5)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02 if name == "running" else 0.002):
                    await lanes.run("one", diary.hold, name)
            await passing(20)
            assert lanes.jobs() == []
    assert diary.cancelled == ["running"]
    assert "waiting" not in diary.began


@simulated
async def test_cancelling_a_running_job_cancels_its_function() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", diary.hold, "a")
        await passing()
        assert job.cancel("enough")
        assert not job.cancel("again")
        assert lanes.jobs()[0].cancelling
        with pytest.raises(JobCancelledError, match="enough") as caught:
            await job
        assert (caught.value.job_id, caught.value.lane, caught.value.reason) == (job.id, "one", "enough")
        assert diary.cancelled == ["a"]
        assert not job.cancel("too late")
        assert await lanes.run("one", value, "free again") == "free again"


@simulated
async def test_a_job_cancelled_before_its_first_step_frees_its_slot() -> None:
    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", never)
        assert job.state is JobState.RUNNING
        assert job.cancel()
        with pytest.raises(JobCancelledError):
            await job
        assert await lanes.run("one", value, 1) == 1


@simulated
async def test_jobs_are_cancelled_by_id() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        running, waiting = lanes.submit("one", diary.hold, "a"), lanes.submit("one", never)
        await passing()
        assert lanes.cancel(waiting.id, "by id")
        assert lanes.cancel(running.id)
        for job in (running, waiting):
            with pytest.raises(JobCancelledError, match="by id"):
                await job


@simulated
async def test_a_job_that_swallows_its_cancellation_is_cancelled_all_the_same() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", diary.cling, "a", 100)
        await passing()
        job.cancel()
        with pytest.raises(JobCancelledError):
            await job
        assert now_ms() == 100
        assert lanes.stats().abandoned == 0


@simulated
async def test_a_signal_ends_waiting_and_running_jobs_and_leaves_others() -> None:
    diary = Diary()
    signal = AbortSignal()
    assert (signal.aborted, signal.reason) == (False, None)
    async with new_lanes({"two": 2}) as lanes:
        running = lanes.submit("two", diary.hold, "running", signal=signal)
        other = lanes.submit("two", diary.hold, "other")
        waiting = lanes.submit("two", never, signal=signal)
        await passing()
        signal.abort("user left")
        signal.abort("a second time changes nothing")
        assert (signal.aborted, signal.reason) == (True, "user left")
        for job in (running, waiting):
            with pytest.raises(JobAbortedError, match="user left") as caught:
                await job
            assert not isinstance(caught.value, JobCancelledError)
            assert job.state is JobState.CANCELLED
        assert diary.cancelled == ["running"]
        diary.let_go("other")
        assert await other == "other"


@simulated
async def test_a_signal_that_fires_after_the_end_changes_nothing() -> None:
    signal = AbortSignal()
    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", value, 5, signal=signal)
        await job
        signal.abort()
        assert job.state is JobState.SUCCEEDED
    assert await job == 5


@simulated
async def test_wait_timeout_run_timeout_cancel_and_abort_are_four_errors() -> None:
    diary = Diary()
    signal = AbortSignal()
    async with new_lanes({"one": 1, "two": 2}) as lanes:
        lanes.submit("one", diary.hold, "busy")
        jobs: list[Job[object]] = [
            lanes.submit("one", value, 0, wait_timeout_ms=10),
            lanes.submit("two", diary.hold, "run", timeout_ms=10),
            lanes.submit("one", value, 0),
            lanes.submit("one", value, 0, signal=signal),
        ]
        jobs[2].cancel()
        signal.abort()
        outcomes = await asyncio.gather(*jobs, return_exceptions=True)
        assert [type(one) for one in outcomes] == [
            WaitTimeoutError,
            JobTimeoutError,
            JobCancelledError,
            JobAbortedError,
        ]
        assert all(isinstance(one, JobFailedError) for one in outcomes)
        states = [JobState.TIMED_OUT, JobState.TIMED_OUT, JobState.CANCELLED, JobState.CANCELLED]
        assert [job.state for job in jobs] == states
        assert "10 ms" in str(outcomes[0])
        assert "10 ms" in str(outcomes[1])
        diary.let_go("busy")


@simulated
async def test_a_lane_gives_its_timeouts_to_jobs_that_say_nothing() -> None:
    diary = Diary()
    config = LaneConfig(timeout_ms=100, wait_timeout_ms=30)
    async with new_lanes({"one": config}) as lanes:
        running = lanes.submit("one", diary.hold, "a")
        own = lanes.submit("one", diary.work, "own", 150, wait_timeout_ms=500, timeout_ms=200)
        waiting = lanes.submit("one", never)
        with pytest.raises(WaitTimeoutError):
            await waiting
        assert now_ms() == 30
        with pytest.raises(JobTimeoutError):
            await running
        assert now_ms() == 100
        assert await own == "own"


@simulated
async def test_a_late_result_is_ignored_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "laneway")
    caplog.clear()
    diary = Diary()
    async with new_lanes({"one": LaneConfig(cancel_grace_ms=10)}) as lanes:
        job = lanes.submit("one", diary.cling, "late", 500)
        await passing()
        job.cancel("stop it")
        with pytest.raises(JobCancelledError, match="abandoned"):
            await job
        assert now_ms() == 11
        await passing(1000)
        assert "late" in diary.ended
        with pytest.raises(JobCancelledError):
            await job
        assert lanes.stats().lanes["one"].completed == 0
    assert any("late result" in record.message and job.id in record.message for record in caplog.records)


@simulated
async def test_a_grace_of_zero_abandons_at_once() -> None:
    diary = Diary()
    async with new_lanes({"one": LaneConfig(cancel_grace_ms=0)}) as lanes:
        job = lanes.submit("one", diary.cling, "a", 50)
        await passing()
        job.cancel()
        following = lanes.submit("one", value, "next")
        assert await following == "next"
        assert now_ms() <= 2
        assert lanes.stats().abandoned == 1
        await passing(100)


@simulated
async def test_an_abandoned_attempt_cannot_act_as_the_next_one() -> None:
    states: list[JobState] = []

    async def attempt() -> str:
        if job.attempt > 1:
            await passing(1_000)
            return "second"
        with pytest.raises(asyncio.CancelledError):
            await passing(5_000)
        await passing(300)  # outlives the grace; the second attempt has begun meanwhile
        assert job.attempt == 2
        await lanes.submit("other", value)
        states.append(job.state)
        return "first"

    async with new_lanes({"one": LaneConfig(cancel_grace_ms=10), "other": 1}) as lanes:
        lanes.pause("other")
        job = lanes.submit("one", attempt, timeout_ms=2_000, retry=RetryPolicy.fixed(1, 10), effect="read")
        await passing(2_500)
        assert job.state is JobState.RUNNING
        lanes.resume("other")
        assert await job == "second"
    assert states == [JobState.RUNNING]


@simulated
async def test_a_delayed_job_is_scheduled_until_its_time() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        later = lanes.submit("one", diary.work, "later", 1, delay_ms=100)
        at_once = lanes.submit("one", diary.work, "at once", 1)
        assert (later.state, lanes.stats().scheduled, lanes.stats().waiting) == (JobState.SCHEDULED, 1, 0)
        assert lanes.stats().lanes["one"].scheduled == 1
        await at_once
        await later
        assert now_ms() == 101
    assert diary.began == ["at once", "later"]


@simulated
async def test_a_delayed_job_can_be_cancelled_and_its_wait_timeout_counts_from_its_time() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        lanes.submit("one", diary.hold, "busy")
        gone = lanes.submit("one", never, delay_ms=100)
        late = lanes.submit("one", never, delay_ms=100, wait_timeout_ms=50)
        assert gone.cancel()
        with pytest.raises(WaitTimeoutError):
            await late
        assert now_ms() == 150
        diary.let_go("busy")


@simulated
async def test_the_same_key_joins_the_live_job_with_handles_of_their_own() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        first = lanes.submit("one", diary.work, "a", key="k")
        second = lanes.submit("one", diary.work, "arguments are not compared", key="k")
        assert first is not second
        assert first.id == second.id
        assert list(await asyncio.gather(first, second)) == ["a", "a"]
        again = lanes.submit("one", diary.work, "b", key="k")
        assert again.id != first.id
        assert await again == "b"
    assert diary.began == ["a", "b"]


@simulated
async def test_joiners_detach_one_by_one_and_the_last_one_cancels() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        handles = [lanes.submit("one", diary.hold, "a", key="k") for _ in range(3)]
        await passing()
        for handle in handles[:2]:
            assert handle.cancel("not me")
            assert handle.done()
            with pytest.raises(JobCancelledError, match="not me"):
                await handle
            assert not handle.cancel("not me")
            assert handles[2].state is JobState.RUNNING
        await passing(10)
        assert diary.cancelled == []
        assert handles[2].cancel("nor me")
        with pytest.raises(JobCancelledError, match="nor me"):
            await handles[2]
        assert diary.cancelled == ["a"]


@simulated
async def test_a_joiner_keeps_the_result_that_the_first_handle_gave_up() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        first = lanes.submit("one", diary.work, "a", key="k")
        second = lanes.submit("one", diary.work, "a", key="k")
        first.cancel()
        assert await second == "a"
        assert (first.state, second.state) == (JobState.CANCELLED, JobState.SUCCEEDED)


@simulated
async def test_cancelling_run_of_a_shared_job_gives_up_only_its_share() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        kept = lanes.submit("one", diary.work, "a", 50, key="k")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await lanes.run("one", diary.work, "a", 50, key="k")
        assert await kept == "a"


@simulated
async def test_a_signal_of_a_joiner_detaches_that_joiner() -> None:
    diary = Diary()
    signal = AbortSignal()
    async with new_lanes({"one": 1}) as lanes:
        kept = lanes.submit("one", diary.work, "a", key="k")
        joined = lanes.submit("one", diary.work, "a", key="k", signal=signal)
        signal.abort("mine only")
        with pytest.raises(JobAbortedError, match="mine only"):
            await joined
        assert await kept == "a"


@simulated
async def test_joiners_that_detach_are_forgotten_by_their_signal() -> None:
    diary = Diary()
    signal = AbortSignal()

    def handles() -> int:
        gc.collect()
        return sum(type(one) is Job for one in gc.get_objects())  # isinstance would run code of others

    async with new_lanes({"one": 1}) as lanes:
        kept = lanes.submit("one", diary.hold, "a", key="k")
        before = handles()
        for _ in range(50):
            lanes.submit("one", diary.hold, "a", key="k", signal=signal).cancel()
        assert handles() == before
        diary.let_go("a")
        assert await kept == "a"


@simulated
async def test_cancelling_a_shared_job_by_id_ends_it_for_all() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        handles = [lanes.submit("one", diary.hold, "a", key="k") for _ in range(2)]
        await passing()
        lanes.cancel(handles[0].id, "for all")
        for handle in handles:
            with pytest.raises(JobCancelledError, match="for all"):
                await handle


@simulated
async def test_a_key_belongs_to_one_function_and_one_tenant() -> None:
    diary = Diary()
    async with new_lanes({"two": 2}) as lanes:
        first = lanes.submit("two", diary.work, "a", key="k")
        with pytest.raises(DuplicateJobError) as caught:
            lanes.submit("two", never, key="k")
        assert (caught.value.key, caught.value.job_id) == ("k", first.id)
        other = lanes.submit("two", diary.work, "b", key="k", tenant="other")
        assert other.id != first.id
        assert list(await asyncio.gather(first, other)) == ["a", "b"]


@simulated
async def test_a_partial_of_the_same_function_joins_by_key() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        first = lanes.submit("one", functools.partial(diary.work, "a"), key="k")
        second = lanes.submit("one", functools.partial(diary.work, "b"), key="k")
        assert second.id == first.id
        assert await second == "a"


@simulated
async def test_a_failure_that_nobody_awaits_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        for awaited in (True, False):
            job: Job[str] = lanes.submit("one", diary.fail, "x", ValueError("lost"))
            if awaited:
                with pytest.raises(ValueError, match="lost"):
                    await job
            await passing()
            del job
        lanes.submit("one", never).cancel()
    gc.collect()
    assert [record.message.split()[1] for record in caplog.records] == ["job-2"]
    assert "nobody awaited" in caplog.text


@simulated
async def test_a_running_sync_job_is_cancelled_when_it_returns() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        job = lanes.submit("one", diary.note, "sync")
        following = lanes.submit("one", diary.note, "following")
        await asyncio.sleep(0)
        job.cancel("too late to stop a thread")
        with pytest.raises(JobCancelledError, match="too late"):
            await job
        assert await following == "following"


@simulated
async def test_a_level_chooses_the_order_inside_a_lane() -> None:
    diary = Diary()
    async with new_lanes({"one": 1}) as lanes:
        lanes.submit("one", diary.work, "busy")
        for level in (Priority.BACKGROUND, Priority.SCHEDULED, Priority.USER):
            lanes.submit("one", diary.work, level.name, priority=level)
        lanes.submit("one", diary.work, "default is USER")
    assert diary.began == ["busy", "USER", "default is USER", "SCHEDULED", "BACKGROUND"]
