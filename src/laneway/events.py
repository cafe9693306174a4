"""The public event vocabulary: what has happened, in the past tense.

Each record has a stable `type` (`queue.command.started`), an `at_ms` wall-clock stamp that the engine puts on,
and the ids it is about. Events are built only while somebody listens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from laneway.records import JobId, JobState

__all__ = (
    "EVENT_TYPES",
    "Event",
    "EventsMissed",
    "JobAbandoned",
    "JobCancelled",
    "JobCompleted",
    "JobDeadLettered",
    "JobEvent",
    "JobFailed",
    "JobLent",
    "JobQueued",
    "JobRetried",
    "JobStarted",
    "JobSubmitted",
    "JobTimedOut",
    "JobTookBack",
    "LaneClosed",
    "LaneEvent",
    "LaneIdled",
    "LanePaused",
    "LanePressured",
    "LaneReopened",
    "LaneResized",
    "LaneResumed",
    "QueueAlerted",
    "ShutdownCompleted",
    "ShutdownStarted",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that has happened."""

    type: ClassVar[str] = "event"
    at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEvent(Event):
    """Something that has happened to one job; `state` is the state it has now."""

    job_id: JobId
    lane: str
    state: JobState
    attempt: int
    label: str = ""
    tenant: str = "default"
    reason: str = ""
    actor: str = "scheduler"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted(JobEvent):
    """A job was accepted."""

    type: ClassVar[str] = "queue.command.submitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobQueued(JobEvent):
    """A job whose time had come (a delay, a retry) waits for a slot now."""

    type: ClassVar[str] = "queue.command.queued"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(JobEvent):
    """A job has its slots and runs; it waited `wait_ms`."""

    type: ClassVar[str] = "queue.command.started"
    wait_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLent(JobEvent):
    """A job waits for another one and has lent its slots."""

    type: ClassVar[str] = "queue.command.lent"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTookBack(JobEvent):
    """A job has its lent slots back and goes on."""

    type: ClassVar[str] = "queue.command.took_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCompleted(JobEvent):
    """A job succeeded after `run_ms`."""

    type: ClassVar[str] = "queue.command.completed"
    run_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFailed(JobEvent):
    """A job ended with an error and will not run again by itself."""

    type: ClassVar[str] = "queue.command.failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTimedOut(JobEvent):
    """A job waited or ran too long; `reason` says which."""

    type: ClassVar[str] = "queue.command.timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRetried(JobEvent):
    """An attempt failed; the next one is due in `delay_ms`."""

    type: ClassVar[str] = "queue.command.retry"
    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelled(JobEvent):
    """A job was cancelled or aborted."""

    type: ClassVar[str] = "queue.command.cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobAbandoned(JobEvent):
    """An attempt outlived its grace; it can change nothing here any more, its slots are free."""

    type: ClassVar[str] = "queue.command.abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDeadLettered(JobEvent):
    """A job used up its retries or gave up, and is kept as a dead letter."""

    type: ClassVar[str] = "queue.command.dead_lettered"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneEvent(Event):
    """Something that has happened to one lane."""

    lane: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePressured(LaneEvent):
    """The lane's queue reached its pressure threshold; said once until the lane is empty again."""

    type: ClassVar[str] = "queue.lane.pressure"
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneIdled(LaneEvent):
    """The queue of a lane that was under pressure is empty again."""

    type: ClassVar[str] = "queue.lane.idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneResized(LaneEvent):
    """The width of a lane changed."""

    type: ClassVar[str] = "queue.lane.resized"
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LanePaused(LaneEvent):
    """Nothing starts in the lane until it is resumed."""

    type: ClassVar[str] = "queue.lane.paused"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneResumed(LaneEvent):
    """A paused lane starts jobs again."""

    type: ClassVar[str] = "queue.lane.resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneClosed(LaneEvent):
    """The lane's limit is closed until a time, for a reason (a provider's Retry-After, for one)."""

    type: ClassVar[str] = "queue.lane.closed"
    until_ms: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneReopened(LaneEvent):
    """A closed limit is open again."""

    type: ClassVar[str] = "queue.lane.reopened"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAlerted(LaneEvent):
    """The queue of a lane is long: `level` is `warning` or `critical`, or `ok` when it has recovered."""

    type: ClassVar[str] = "queue_alert"
    level: str
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownStarted(Event):
    """A drain began; no new work is taken."""

    type: ClassVar[str] = "queue.shutdown.started"
    purpose: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownCompleted(Event):
    """A drain ended."""

    type: ClassVar[str] = "queue.shutdown.complete"
    cancelled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventsMissed(Event):
    """This subscriber was too slow: `count` events did not fit between the one before and the one after."""

    type: ClassVar[str] = "events.missed"
    count: int


EVENT_TYPES: dict[str, type[Event]] = {
    cls.type: cls
    for cls in (
        JobSubmitted,
        JobQueued,
        JobStarted,
        JobLent,
        JobTookBack,
        JobCompleted,
        JobFailed,
        JobTimedOut,
        JobRetried,
        JobCancelled,
        JobAbandoned,
        JobDeadLettered,
        LanePressured,
        LaneIdled,
        LaneResized,
        LanePaused,
        LaneResumed,
        LaneClosed,
        LaneReopened,
        QueueAlerted,
        ShutdownStarted,
        ShutdownCompleted,
        EventsMissed,
    )
}
"""Every event type that is really published, by its name."""
