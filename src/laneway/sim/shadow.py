"""What the simulator knows by itself: its own small record of every job, kept from commands and effects alone.

The record is deliberately naive. It is what a reader of the documentation would write down while watching, and
every effect is held against it: one end for each job, attempts counted from 1, the right end for the right reason.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from laneway.kernel.protocol import (
    CancelAttempt,
    CloseLane,
    Command,
    CompleteJob,
    Effect,
    End,
    FinishJob,
    JobSpec,
    ReopenLane,
    ResumeWait,
    SettleJob,
    StartJob,
    Stop,
    StopJob,
    StopWaiting,
    SubmitJob,
)
from laneway.records import Effect as JobEffect
from laneway.records import JobId, JobState, LaneConfig, RateLimit, RetryPolicy

__all__ = ("LawBrokenError", "Shadow", "ShadowJob")

DEFERRALS_MAX = 100
NO_RETRY = RetryPolicy.none()


class LawBrokenError(AssertionError):
    """The kernel did what the law forbids, or failed to do what it demands."""


class ShadowJob:
    """One job or slot as the simulator saw it."""

    __slots__ = (
        "arrived",
        "asked",
        "attempt",
        "begun",
        "deferrals",
        "ended",
        "failures",
        "final",
        "id",
        "is_slot",
        "lanes",
        "places",
        "since",
        "spec",
        "stage",
        "started_at",
        "submitted_at",
        "threaded",
        "up",
        "up_attempt",
    )

    def __init__(self, command: SubmitJob, up: ShadowJob | None, now: int) -> None:
        self.id = command.job_id
        self.lanes = command.lanes
        self.spec: JobSpec = command.spec
        self.is_slot = command.is_slot
        self.threaded = command.threaded
        self.up = up
        self.up_attempt: int = up.attempt if up is not None else 0
        self.submitted_at = now
        self.since = now  # when it began to wait for its next attempt
        self.arrived: dict[int, int] = {}  # by stage: when it came to the lane
        self.started_at = 0
        self.stage = -1  # which of its lanes it waits for; -1 when it does not wait
        self.places: dict[int, int] = {}  # by stage: where it stands, in steps of the simulator
        self.attempt: int = 0
        self.begun = False
        self.failures = 0
        self.deferrals = 0
        self.asked = False  # somebody asked for its end
        self.ended: End | None = None  # what the attempt that just ended said
        self.final: JobState | None = None

    def descends_from(self, job_id: JobId) -> bool:
        """Whether it was submitted, directly or not, from inside that job."""
        up = self.up
        while up is not None:
            if up.id == job_id:
                return True
            up = up.up
        return False


class Tokens:
    """A rate limit as the documentation has it: a bucket that starts full and refills continuously."""

    def __init__(self, limit: RateLimit) -> None:
        self._limit = limit
        self._level = Fraction(limit.count)
        self._at = 0

    def level(self, now: int) -> Fraction:
        """How many tokens there are."""
        limit = self._limit
        self._level = min(
            Fraction(limit.count), self._level + Fraction((now - self._at) * limit.count, limit.window_ms)
        )
        self._at = now
        return self._level

    def take(self, now: int) -> bool:
        """Take one; False when there is none."""
        if self.level(now) < 1:
            return False
        self._level -= 1
        return True


class Shadow:
    """All jobs that were ever accepted, and what is known about their lanes."""

    def __init__(self, config_of: Callable[[str], LaneConfig]) -> None:
        self._config_of = config_of
        self.jobs: dict[JobId, ShadowJob] = {}
        self.live: dict[JobId, ShadowJob] = {}
        self.waits: set[int] = set()
        self.tokens: dict[str, Tokens] = {}
        self.closed: dict[str, int] = {}  # lane: until when
        self.starts = 0

    # ---- commands ----

    def command(self, command: Command, now: int) -> None:
        """Write down a command that was accepted, before its effects."""
        match command:
            case SubmitJob(job_id=job_id, up=up):
                job = ShadowJob(command, self.jobs[up] if up is not None else None, now)
                self.jobs[job_id] = self.live[job_id] = job
            case FinishJob(job_id=job_id, attempt=attempt, end=end):
                job = self.jobs[job_id]
                if job.begun and job.attempt == attempt and job.final is None:
                    job.ended = end
            case StopJob(job_id=job_id):
                job = self.jobs[job_id]
                job.asked = job.asked or not (job.is_slot and job.begun)
            case StopWaiting(lane=lane):
                for job in self.live.values():
                    if not job.begun and (lane is None or lane in job.lanes):
                        job.asked = True
            case CloseLane(lane=name, for_ms=for_ms):
                self.closed[name] = now + for_ms
            case ReopenLane(lane=name):
                self.closed.pop(name, None)
            case _:
                pass

    # ---- effects ----

    def effect(self, effect: Effect, now: int) -> None:
        """Hold an effect against the record, then write it down."""
        match effect:
            case StartJob(job_id=job_id, attempt=attempt):
                self._start(self._known(job_id), attempt, now)
            case CompleteJob(job_id=job_id):
                job = self._known(job_id)
                if not job.begun or job.ended is not End.SUCCEEDED:
                    raise LawBrokenError(f"{job.id} succeeded, but its attempt said {job.ended}")
                self._end(job, JobState.SUCCEEDED)
            case SettleJob():
                self._settle(effect, now)
            case CancelAttempt(job_id=job_id, attempt=attempt):
                job = self._known(job_id)
                if not job.begun or job.attempt != attempt:
                    raise LawBrokenError(f"{job_id}: asked to end attempt {attempt}, which does not run")
            case ResumeWait(wait_id=wait_id):
                if wait_id not in self.waits:
                    raise LawBrokenError(f"wait {wait_id} returned twice, or was never begun")
                self.waits.remove(wait_id)
            case _:
                pass

    def _known(self, job_id: JobId) -> ShadowJob:
        job = self.jobs.get(job_id)
        if job is None:
            raise LawBrokenError(f"an effect about {job_id}, which was never accepted")
        if job.final is not None:
            raise LawBrokenError(f"{job_id} is {job.final}, and a final state never changes")
        return job

    def _start(self, job: ShadowJob, attempt: int, now: int) -> None:
        if job.begun and attempt == job.attempt + 1:
            self.retried(job)  # ended and due again within one command
        if job.begun or attempt != job.attempt + 1:
            raise LawBrokenError(f"{job.id}: attempt {attempt} starts after attempt {job.attempt} (begun: {job.begun})")
        if job.asked:
            raise LawBrokenError(f"{job.id} starts although its end was asked for")
        job.attempt = attempt
        job.begun = True
        job.ended = None
        job.started_at = now
        self.starts += 1

    def retried(self, job: ShadowJob) -> None:
        """An attempt is over and the job is to run again."""
        policy = job.spec.retry or self._config_of(job.lanes[-1]).retry or NO_RETRY
        if job.ended is End.RETRY_LATER and job.deferrals < DEFERRALS_MAX:
            job.deferrals += 1
        else:
            job.failures += 1
        if job.failures > policy.max_retries:
            raise LawBrokenError(f"{job.id} runs again after {job.ended}, {job.failures} failures, {policy}")
        job.begun = False

    def _settle(self, effect: SettleJob, now: int) -> None:
        job = self._known(effect.job_id)
        expected = self._expect(job, effect.stop, now)
        if effect.state is not expected:
            raise LawBrokenError(
                f"{job.id} ended {effect.state}, not {expected} (attempt said {job.ended}, stopped by {effect.stop})"
            )
        self._end(job, effect.state)

    def _end(self, job: ShadowJob, state: JobState) -> None:
        job.final = state
        job.begun = False
        del self.live[job.id]

    def _expect(self, job: ShadowJob, stop: Stop | None, now: int) -> JobState:
        """How a job that ends now has to end."""
        config = self._config_of(job.lanes[-1])
        policy = job.spec.retry or config.retry or NO_RETRY
        match stop:
            case Stop.CANCEL | Stop.ABORT:
                if not job.asked and job.up is None:
                    raise LawBrokenError(f"{job.id} was cancelled, but nobody asked for it")
                return JobState.CANCELLED
            case Stop.WAIT_TIMEOUT:
                _passed(job, job.spec.wait_timeout_ms, config.wait_timeout_ms, now - job.since)
                return JobState.TIMED_OUT
            case Stop.TIMEOUT:
                _passed(job, job.spec.timeout_ms, config.timeout_ms, now - job.started_at)
                if job.spec.effect is JobEffect.WRITE or not policy.max_retries:
                    return JobState.TIMED_OUT
                return JobState.DEAD
            case None:
                if not job.begun:
                    raise LawBrokenError(f"{job.id} ended before it began, and nothing stopped it")
        match job.ended:
            case End.SUCCEEDED:
                return JobState.SUCCEEDED
            case End.CANCELLED:
                return JobState.CANCELLED
            case End.GAVE_UP:
                return JobState.DEAD
            case End.FAILED | End.RETRY_LATER:
                return JobState.DEAD if policy.max_retries else JobState.FAILED
            case _:
                raise LawBrokenError(f"{job.id} ended, but its attempt did not say so")


def _passed(job: ShadowJob, own: int | None, of_lane: int | None, ms: int) -> None:
    limit = own if own is not None else of_lane
    if limit is None or ms < limit:
        raise LawBrokenError(f"{job.id} timed out after {ms} ms with a limit of {limit}")
