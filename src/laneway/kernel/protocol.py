"""What goes into the kernel and what comes out: closed unions, nothing else crosses its border.

Commands are what the engine was asked to do, with everything that is not a decision (ids, time, random
numbers) already drawn, so that a logged command replays exactly. Effects are what the engine has to do, in
order. An effect carries back the opaque `payload` that came with the job; the kernel never looks into it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

from laneway.events import Event
from laneway.records import Effect as JobEffect
from laneway.records import JobId, JobState, Priority, RetryPolicy


class End(Enum):
    """How an attempt ended, as the executor saw it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RETRY_LATER = "retry_later"
    GAVE_UP = "gave_up"


class Stop(Enum):
    """Why a live job is being ended from outside."""

    CANCEL = "cancel"
    ABORT = "abort"
    TIMEOUT = "timeout"
    WAIT_TIMEOUT = "wait_timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """What a caller may say about a job; None means what the lane says."""

    priority: Priority = Priority.USER
    timeout_ms: int | None = None
    wait_timeout_ms: int | None = None
    deadline_ms: int | None = None
    delay_ms: int | None = None
    retry: RetryPolicy | None = None
    effect: JobEffect = JobEffect.WRITE
    tenant: str = "default"
    weight: float = 1.0
    key: str | None = None
    label: str = ""


# ---- commands -------------------------------------------------------------------------------------------


class SubmitJob(NamedTuple):
    """Take a job (`is_slot`: a slot without a function). `up` is the job it was submitted from."""

    job_id: JobId
    lanes: tuple[str, ...]
    spec: JobSpec
    payload: Any = None
    up: JobId | None = None
    threaded: bool = False
    is_slot: bool = False


class FinishJob(NamedTuple):
    """An attempt has ended. `jitter` is a random number from 0 to 1, used if it is to run again."""

    job_id: JobId
    attempt: int
    end: End = End.SUCCEEDED
    reason: str = ""
    after_ms: int = 0
    jitter: float = 0.0


class StopJob(NamedTuple):
    """End a live job from outside."""

    job_id: JobId
    stop: Stop = Stop.CANCEL
    reason: str = ""
    actor: str = "caller"


class StopWaiting(NamedTuple):
    """End everything that has not begun, in one lane or in all."""

    lane: str | None = None
    reason: str = ""


class BeginWait(NamedTuple):
    """Job `node_id` waits for job `target_id` and lends what it holds."""

    wait_id: int
    node_id: JobId
    target_id: JobId


class CancelWait(NamedTuple):
    """A wait is given up before its target has ended."""

    wait_id: int


class ResizeLane(NamedTuple):
    """Change the width of a lane, and with it how many may wait if that is said."""

    lane: str
    concurrency: int
    queued_max: int | None = None


class PauseLane(NamedTuple):
    """Start nothing in a lane until it is resumed."""

    lane: str


class ResumeLane(NamedTuple):
    """Start jobs in a paused lane again."""

    lane: str


class CloseLane(NamedTuple):
    """Close a lane's limit for `for_ms`; `until_ms` is the wall time to show."""

    lane: str
    for_ms: int
    until_ms: int
    reason: str


class ReopenLane(NamedTuple):
    """Open a closed limit before its time."""

    lane: str


class Drain(NamedTuple):
    """Take no new work: `stop` or `restart`."""

    purpose: str


class Reopen(NamedTuple):
    """Take work again after a drain."""


class Tick(NamedTuple):
    """Time has passed: do what is due."""


Command = (
    SubmitJob
    | FinishJob
    | StopJob
    | StopWaiting
    | BeginWait
    | CancelWait
    | ResizeLane
    | PauseLane
    | ResumeLane
    | CloseLane
    | ReopenLane
    | Drain
    | Reopen
    | Tick
)


# ---- effects --------------------------------------------------------------------------------------------


class StartJob(NamedTuple):
    """Run an attempt."""

    payload: Any
    job_id: JobId
    attempt: int


class CancelAttempt(NamedTuple):
    """Ask a running attempt to end; the kernel waits for its end or for its grace to pass."""

    payload: Any
    job_id: JobId
    attempt: int
    stop: Stop
    reason: str


class SettleJob(NamedTuple):
    """A job is final. `stop` says what ended it from outside, if anything did."""

    payload: Any
    job_id: JobId
    state: JobState
    attempt: int
    stop: Stop | None
    reason: str
    abandoned: bool


class ResumeWait(NamedTuple):
    """A wait is over and what was lent for it is back (or the wait was cancelled)."""

    wait_id: int


class KeepDeadLetter(NamedTuple):
    """A job died with its retries used up: keep it for a person to look at."""

    payload: Any
    job_id: JobId
    lanes: tuple[str, ...]
    attempts: int
    submitted_at: int
    reason: str


class Publish(NamedTuple):
    """Tell whoever listens."""

    event: Event


Effect = StartJob | CancelAttempt | SettleJob | ResumeWait | KeepDeadLetter | Publish
