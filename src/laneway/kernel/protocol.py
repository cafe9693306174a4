"""What goes into the kernel and what comes out: closed unions, nothing else crosses its border.

Commands are what the engine was asked to do, with everything that is not a decision (ids, time, random
numbers) already drawn, so that a logged command replays exactly. Effects are what the engine has to do, in
order. An effect carries the `entry` of its job, which is the object that came with the command: the engine's own
handle. The engine reads it and never writes what belongs to the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from laneway.events import Event
from laneway.records import Effect as JobEffect
from laneway.records import JobId, JobState, Priority, RetryPolicy, WaitReason

if TYPE_CHECKING:
    from laneway.kernel.jobs import Entry


class End(Enum):
    """How an attempt ended, as the executor saw it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    RETRY_LATER = "retry_later"
    GAVE_UP = "gave_up"
    PUT_BACK = "put_back"  # its code never began: it does not count as an attempt
    INTERRUPTED = "interrupted"  # its code began, and is to run again: costs no retry


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
    is_plain: bool = field(init=False, default=False, compare=False)

    def __post_init__(self) -> None:
        # A plain job has no time to watch and no key: it may take the short way through the kernel.
        times = (self.timeout_ms, self.wait_timeout_ms, self.deadline_ms, self.delay_ms)
        plain = self.priority == Priority.USER and self.key is None and all(time is None for time in times)
        object.__setattr__(self, "is_plain", plain)


PLAIN: Final = JobSpec()
"""A job about which nothing was said."""


class Hold(NamedTuple):
    """Why a job of a store waits, however long: `text` completes "it waits …"."""

    reason: WaitReason
    text: str


# ---- commands -------------------------------------------------------------------------------------------


class SubmitJob(NamedTuple):
    """Take a job (`is_slot`: a slot without a function). `up` is the job it was submitted from."""

    job_id: JobId
    lanes: str | tuple[str, ...]
    spec: JobSpec
    entry: Entry | None = None
    up: JobId | None = None
    threaded: bool = False
    is_slot: bool = False


class RestoredJob(NamedTuple):
    """A job that was taken before, as a store has kept it. `due_in_ms` is what is left of a delay or a retry."""

    job_id: JobId
    lanes: tuple[str, ...]
    spec: JobSpec
    entry: Entry
    attempt: int = 0
    failures: int = 0
    deferrals: int = 0
    history: tuple[str, ...] = ()
    age_ms: int = 0
    due_in_ms: int = 0
    threaded: bool = False
    hold: Hold | None = None


class RestoreJobs(NamedTuple):
    """Go on with jobs that were taken before, in this order; they are neither refused nor counted as new."""

    jobs: tuple[RestoredJob, ...]


class ReleaseJobs(NamedTuple):
    """What held these jobs up is gone; `threaded` says how their function runs, if that was not known before."""

    job_ids: tuple[JobId, ...]
    threaded: bool | None = None


class LeaveJobs(NamedTuple):
    """Jobs that have not begun leave without an end: they stay in their store."""

    job_ids: tuple[JobId, ...]


class FinishJob(NamedTuple):
    """An attempt has ended. `jitter` is a random number from 0 to 1, used if it is to run again.

    `hold` is for an attempt that was put back: what it waits for now.
    """

    job_id: JobId
    attempt: int
    end: End = End.SUCCEEDED
    reason: str = ""
    after_ms: int = 0
    jitter: float = 0.0
    hold: Hold | None = None


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
    prefix: str = ""


class AbandonJob(NamedTuple):
    """Let go of a job that runs: nobody waits for its end any more."""

    job_id: JobId
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
    | RestoreJobs
    | ReleaseJobs
    | LeaveJobs
    | FinishJob
    | StopJob
    | StopWaiting
    | AbandonJob
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

    entry: Any
    job_id: JobId
    attempt: int


class CancelAttempt(NamedTuple):
    """Ask a running attempt to end; the kernel waits for its end or for its grace to pass."""

    entry: Any
    job_id: JobId
    attempt: int
    stop: Stop
    reason: str


class CompleteJob(NamedTuple):
    """A job is final and succeeded."""

    entry: Any
    job_id: JobId


class SettleJob(NamedTuple):
    """A job is final and did not succeed. `stop` says what ended it from outside, if anything did."""

    entry: Any
    job_id: JobId
    state: JobState
    attempt: int
    stop: Stop | None
    reason: str
    abandoned: bool
    lane: str


class ResumeWait(NamedTuple):
    """A wait is over and what was lent for it is back (or the wait was cancelled)."""

    wait_id: int


class KeepDeadLetter(NamedTuple):
    """A job died with its retries used up: keep it for a person to look at."""

    entry: Any
    job_id: JobId
    lanes: tuple[str, ...]
    attempts: int
    submitted_at: int
    reason: str
    history: tuple[str, ...]


class StoreJob(NamedTuple):
    """A job that is kept in a store waits for another attempt, due at `due` (or held, without a time)."""

    entry: Any
    job_id: JobId
    due: int | None


class Publish(NamedTuple):
    """Tell whoever listens."""

    event: Event


Effect = StartJob | CompleteJob | SettleJob | CancelAttempt | ResumeWait | KeepDeadLetter | StoreJob | Publish
