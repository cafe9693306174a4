"""What the kernel does with jobs of a store: it restores, holds, releases and puts them back, and lets them leave."""

from __future__ import annotations

from typing import Any

import pytest

from laneway import JobId, JobState, LaneConfig, Priority, RateLimit, RetryPolicy, WaitReason
from laneway.kernel import explain as questions
from laneway.kernel.jobs import DEFERRALS_MAX, Entry, Trigger, verdict_on
from laneway.kernel.protocol import (
    Command,
    Effect,
    End,
    FinishJob,
    Hold,
    JobSpec,
    LeaveJobs,
    ReleaseJobs,
    RestoredJob,
    RestoreJobs,
    StartJob,
    StoreJob,
    SubmitJob,
)
from laneway.kernel.registry import Registry
from laneway.kernel.scheduler import Kernel

HOLD = Hold(WaitReason.HANDLER, "for a handler 'x'")


class Kept(Entry):
    """A job of a store."""

    durable = True


def new_kernel(**lanes: LaneConfig) -> Kernel:
    configs = lanes or {"one": LaneConfig(), "two": LaneConfig(concurrency=2)}
    return Kernel(Registry(configs, groups={}, max_concurrent=None, threads_max=8, creates_unknown=False))


def restored(name: str, *lanes: str, spec: JobSpec | None = None, **more: Any) -> RestoredJob:
    return RestoredJob(JobId(name), lanes or ("one",), spec or JobSpec(), Kept(), **more)


def started(effects: list[Effect]) -> list[str]:
    return [effect.job_id for effect in effects if isinstance(effect, StartJob)]


def test_restored_jobs_stand_in_their_places_before_the_first_starts() -> None:
    kernel = new_kernel()
    jobs = [restored("a", spec=JobSpec(priority=Priority.BACKGROUND)), restored("b"), restored("c")]
    assert started(kernel.restore(jobs, now=0)) == ["b"]
    assert started(kernel.finish(JobId("b"), 1, now=1)) == ["c"]
    assert started(kernel.finish(JobId("c"), 1, now=2)) == ["a"]


def test_a_restored_job_has_its_attempts_its_age_and_its_failures() -> None:
    kernel = new_kernel()
    spec = JobSpec(retry=RetryPolicy.fixed(3, 10), key="k")
    job = restored("a", spec=spec, attempt=4, failures=3, history=("attempt 4: no",), age_ms=5_000)
    (start,) = kernel.restore([job], now=100)
    assert start == StartJob(job.entry, JobId("a"), 5)
    assert kernel.keys == {("default", "k"): "a"}
    assert job.entry.submitted_at == -4_900
    effects = kernel.finish(JobId("a"), 5, End.FAILED, now=200, reason="no again")
    assert job.entry.state is JobState.DEAD
    assert job.entry.history == ["attempt 4: no", "attempt 5: no again"]
    assert not [effect for effect in effects if isinstance(effect, StoreJob)]


def test_neither_depth_nor_drain_nor_an_unknown_lane_refuses_what_was_taken_before() -> None:
    kernel = new_kernel(one=LaneConfig(queued_max=0))
    kernel.drain("restart", now=0)
    effects = kernel.restore([restored("a"), restored("b"), restored("c", "gone")], now=0)
    assert sorted(started(effects)) == ["a", "c"]
    assert kernel.waiting == 1
    kernel.finish(JobId("c"), 1, now=1)
    assert "gone" not in kernel.registry.lanes


def test_a_held_job_starts_when_it_is_released_and_not_before_its_time() -> None:
    kernel = new_kernel()
    jobs = [restored("a", hold=HOLD, due_in_ms=100), restored("b", hold=HOLD), restored("c")]
    assert started(kernel.restore(jobs, now=0)) == ["c"]
    assert kernel.next_due() is None
    assert (kernel.scheduled, kernel.waiting) == (2, 0)
    why = questions.explain(kernel, JobId("a"), now=0, wall_ms=0)
    assert (why.reason, str(why)) == (WaitReason.HANDLER, "a waits for a handler 'x'")
    kernel.finish(JobId("c"), 1, now=10)
    assert started(kernel.release([JobId("a"), JobId("b"), JobId("nobody")], threaded=True, now=20)) == ["b"]
    assert jobs[1].entry.threaded
    kernel.finish(JobId("b"), 1, now=30)
    assert started(kernel.tick(now=99)) == []
    assert started(kernel.tick(now=100)) == ["a"]
    assert kernel.release([JobId("a")], now=101) == []


def test_an_attempt_that_was_put_back_never_was() -> None:
    kernel = new_kernel()
    job = restored("a")
    kernel.restore([job, restored("b")], now=0)
    effects = kernel.finish(JobId("a"), 1, End.PUT_BACK, now=10, hold=Hold(WaitReason.STORE, "for the store"))
    assert started(effects) == ["b"]
    assert StoreJob(job.entry, JobId("a"), None) in effects
    assert (job.entry.state, job.entry.attempt, job.entry.failures) == (JobState.SCHEDULED, 0, 0)
    assert job.entry.lane.counters.retried == 0
    kernel.release([JobId("a")], now=20)
    assert started(kernel.finish(JobId("b"), 1, now=30)) == ["a"]
    assert job.entry.attempt == 1


def test_an_interrupted_attempt_counts_but_costs_no_retry() -> None:
    kernel = new_kernel()
    job = restored("a")
    kernel.restore([job], now=0)
    effects = kernel.finish(JobId("a"), 1, End.INTERRUPTED, now=10, after_ms=50)
    assert effects == [StoreJob(job.entry, JobId("a"), 60)]
    assert (job.entry.attempt, job.entry.failures) == (1, 0)
    assert kernel.tick(now=60) == [StartJob(job.entry, JobId("a"), 2)]


def test_only_jobs_of_a_store_are_to_be_stored() -> None:
    kernel = new_kernel()
    spec = JobSpec(retry=RetryPolicy.fixed(1, 10))
    kernel.submit(JobId("plain"), "one", spec, Entry(), 0)
    assert kernel.finish(JobId("plain"), 1, End.FAILED, now=1) == []
    kept = Kept()
    kernel.submit(JobId("kept"), "two", spec, kept, 0)
    assert kernel.finish(JobId("kept"), 1, End.FAILED, now=1) == [StoreJob(kept, JobId("kept"), 11)]


def test_jobs_leave_without_an_end_and_before_anything_takes_their_place() -> None:
    kernel = new_kernel()
    kernel.submit(JobId("plain"), "two", JobSpec(), Entry(), 0)
    kernel.restore([restored("a"), restored("b"), restored("c", due_in_ms=50), restored("d", hold=HOLD)], now=0)
    both = restored("e", "one", "two", spec=JobSpec(key="k"))
    kernel.restore([both], now=0)
    names = [JobId(name) for name in "abcde"]
    assert kernel.leave(names, now=10) == []
    assert list(kernel.jobs) == ["plain", "a"]  # a runs, and what runs stays
    assert (kernel.waiting, kernel.scheduled, kernel.keys) == (0, 0, {})
    assert both.entry.state is JobState.QUEUED
    assert kernel.next_due() is None
    assert kernel.leave(names, now=10) == []


def test_a_job_that_leaves_gives_back_the_lane_it_had_already() -> None:
    kernel = new_kernel(first=LaneConfig(), second=LaneConfig())
    kernel.submit(JobId("blocker"), "second", JobSpec(), Entry(), 0)
    kernel.restore([restored("both", "first", "second")], now=0)
    kernel.submit(JobId("next"), "first", JobSpec(), Entry(), 1)
    assert started(kernel.leave([JobId("both")], now=2)) == ["next"]


def test_what_can_wait_in_a_store_is_told_from_what_runs_soon() -> None:
    kernel = new_kernel(one=LaneConfig(), slow=LaneConfig(rate_limit=RateLimit.per_second(1)))
    assert questions.all_can_wait(kernel, now=0)
    kernel.restore([restored("held", hold=HOLD)], now=0)
    assert questions.all_can_wait(kernel, now=0, held_only=True)
    kernel.restore([restored("later", due_in_ms=50)], now=0)
    assert questions.all_can_wait(kernel, now=0)
    assert not questions.all_can_wait(kernel, now=0, held_only=True)
    kernel.restore([restored("a", "slow"), restored("b", "slow")], now=0)
    assert not questions.all_can_wait(kernel, now=0)
    kernel.finish(JobId("a"), 1, now=1)
    assert not questions.all_can_wait(kernel, now=1)  # the next token comes by itself
    kernel.pause("slow", now=1)
    kernel.submit(JobId("plain"), "slow", JobSpec(), Entry(), 2)
    assert not questions.all_can_wait(kernel, now=2_000)
    kernel.stop(JobId("plain"), now=2_000)
    assert questions.all_can_wait(kernel, now=2_000)
    assert questions.stuck(kernel) == []


@pytest.mark.parametrize(
    ("end", "failures", "deferrals", "policy", "trigger", "delay"),
    [
        (End.FAILED, 0, 0, RetryPolicy.none(), Trigger.FAIL, 0),
        (End.FAILED, 0, 0, RetryPolicy.fixed(1, 30), Trigger.RETRY, 30),
        (End.FAILED, 1, 0, RetryPolicy.fixed(1, 30), Trigger.DIE, 0),
        (End.FAILED, 2, 0, RetryPolicy.exponential(3, 100), Trigger.RETRY, 400),
        (End.GAVE_UP, 0, 0, RetryPolicy.fixed(1, 30), Trigger.DIE, 0),
        (End.RETRY_LATER, 0, 0, RetryPolicy.none(), Trigger.RETRY, 7),
        (End.RETRY_LATER, 0, DEFERRALS_MAX, RetryPolicy.none(), Trigger.FAIL, 0),
        (End.RETRY_LATER, 0, DEFERRALS_MAX, RetryPolicy.fixed(1, 30), Trigger.RETRY, 30),
    ],
)
def test_a_verdict_is_the_same_before_and_after_a_restart(
    end: End, failures: int, deferrals: int, policy: RetryPolicy, trigger: Trigger, delay: int
) -> None:
    ended = FinishJob(JobId("a"), 1, end, "why", after_ms=7)
    verdict = verdict_on(ended, policy, failures=failures, deferrals=deferrals)
    assert (verdict.trigger, verdict.delay_ms) == (trigger, delay)
    kernel = new_kernel(one=LaneConfig(retry=policy))
    job = restored("a", failures=failures, deferrals=deferrals)
    kernel.restore([job], now=0)
    kernel.finish(JobId("a"), 1, end, now=0, reason="why", after_ms=7)
    expected = {Trigger.RETRY: JobState.SCHEDULED, Trigger.DIE: JobState.DEAD, Trigger.FAIL: JobState.FAILED}
    assert job.entry.state is expected[trigger]
    assert kernel.next_due() == (delay if trigger is Trigger.RETRY else None)
    assert kernel.policy_for(JobSpec(), ("one",), now=0) == policy


def test_logged_commands_decide_what_the_handlers_decide() -> None:
    def commands() -> list[tuple[Command, int]]:
        jobs = (restored("a"), restored("b", hold=HOLD), restored("c", due_in_ms=10), restored("d"))
        return [
            (RestoreJobs(jobs), 0),
            (FinishJob(JobId("a"), 1, End.PUT_BACK, hold=HOLD), 1),
            (ReleaseJobs((JobId("a"), JobId("b")), threaded=False), 2),
            (LeaveJobs((JobId("c"), JobId("b"))), 3),
            (SubmitJob(JobId("e"), "one", JobSpec(), Kept()), 4),
            (FinishJob(JobId("d"), 1, End.INTERRUPTED, after_ms=5), 5),
        ]

    def handled(kernel: Kernel, command: Command, now: int) -> list[Effect]:
        match command:
            case RestoreJobs(jobs):
                return kernel.restore(jobs, now=now)
            case ReleaseJobs(job_ids, threaded):
                return kernel.release(job_ids, threaded, now=now)
            case LeaveJobs(job_ids):
                return kernel.leave(job_ids, now=now)
            case _:
                return kernel.step(command, now=now)

    one, other = new_kernel(), new_kernel()
    for (command, now), (same, _) in zip(commands(), commands(), strict=True):
        first, second = one.step(command, now=now), handled(other, same, now)
        assert [(type(effect), *effect[1:]) for effect in first] == [(type(effect), *effect[1:]) for effect in second]
    assert {job_id: entry.state for job_id, entry in one.jobs.items()} == {
        job_id: entry.state for job_id, entry in other.jobs.items()
    }
    assert one.jobs
