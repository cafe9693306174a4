"""The public event vocabulary: what has happened, in the past tense.

Each record has a stable `type` (`queue.command.started`), an `at_ms` wall-clock stamp that the engine puts on,
and the ids it is about. Events are built only while somebody listens.

An event that adds no field to its parent only gets a name: to make a dataclass of it would change nothing, and costs
half a millisecond whenever Laneway is imported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from laneway.mail import ApprovalState, MessageState, Outcome, TurnState
from laneway.records import JobId, JobState

__all__ = (
    "EVENT_TYPES",
    "ApprovalAsked",
    "ApprovalEnded",
    "ApprovalEscalated",
    "ApprovalEvent",
    "ApprovalWarned",
    "ChildEnded",
    "ChildEvent",
    "ChildStarted",
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
    "MessageAccepted",
    "MessageEdited",
    "MessageEnded",
    "MessageEvent",
    "MessageHeld",
    "MessageInjected",
    "MessageMoved",
    "MessageParked",
    "MessageRefused",
    "MessageReleased",
    "MessageReturned",
    "MessageStarted",
    "MessageWaited",
    "QueueAlerted",
    "ScheduleFired",
    "ScheduleMissed",
    "SessionEvent",
    "SessionReset",
    "SessionStopped",
    "SettingsChanged",
    "ShutdownCompleted",
    "ShutdownStarted",
    "TurnCancelling",
    "TurnEnded",
    "TurnEvent",
    "TurnReplied",
    "TurnStarted",
    "TypingStarted",
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


class JobSubmitted(JobEvent):
    """A job was accepted."""

    __slots__ = ()
    type: ClassVar[str] = "queue.command.submitted"


class JobQueued(JobEvent):
    """A job whose time had come (a delay, a retry) waits for a slot now."""

    __slots__ = ()
    type: ClassVar[str] = "queue.command.queued"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStarted(JobEvent):
    """A job has its slots and runs; it waited `wait_ms`."""

    type: ClassVar[str] = "queue.command.started"
    wait_ms: int


class JobLent(JobEvent):
    """A job waits for another one and has lent its slots."""

    __slots__ = ()
    type: ClassVar[str] = "queue.command.lent"


class JobTookBack(JobEvent):
    """A job has its lent slots back and goes on."""

    __slots__ = ()
    type: ClassVar[str] = "queue.command.took_back"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCompleted(JobEvent):
    """A job succeeded after `run_ms`."""

    type: ClassVar[str] = "queue.command.completed"
    run_ms: int


class JobFailed(JobEvent):
    """A job ended with an error and will not run again by itself."""

    __slots__ = ()
    type: ClassVar[str] = "queue.command.failed"


class JobTimedOut(JobEvent):
    """A job waited or ran too long; `reason` says which."""

    __slots__ = ()
    type: ClassVar[str] = "queue.command.timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRetried(JobEvent):
    """An attempt failed; the next one is due in `delay_ms`."""

    type: ClassVar[str] = "queue.command.retry"
    delay_ms: int


class JobCancelled(JobEvent):
    """A job was cancelled or aborted."""

    __slots__ = ()
    type: ClassVar[str] = "queue.command.cancelled"


class JobAbandoned(JobEvent):
    """An attempt outlived its grace; it can change nothing here any more, its slots are free."""

    __slots__ = ()
    type: ClassVar[str] = "queue.command.abandoned"


class JobDeadLettered(JobEvent):
    """A job used up its retries or gave up, and is kept as a dead letter."""

    __slots__ = ()
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


class LaneIdled(LaneEvent):
    """The queue of a lane that was under pressure is empty again."""

    __slots__ = ()
    type: ClassVar[str] = "queue.lane.idle"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneResized(LaneEvent):
    """The width of a lane changed."""

    type: ClassVar[str] = "queue.lane.resized"
    concurrency: int


class LanePaused(LaneEvent):
    """Nothing starts in the lane until it is resumed."""

    __slots__ = ()
    type: ClassVar[str] = "queue.lane.paused"


class LaneResumed(LaneEvent):
    """A paused lane starts jobs again."""

    __slots__ = ()
    type: ClassVar[str] = "queue.lane.resumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneClosed(LaneEvent):
    """The lane's limit is closed until a time, for a reason (a provider's Retry-After, for one)."""

    type: ClassVar[str] = "queue.lane.closed"
    until_ms: int
    reason: str


class LaneReopened(LaneEvent):
    """A closed limit is open again."""

    __slots__ = ()
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEvent(Event):
    """Something that has happened in one session. `seq` is its number in the store; 0 means that it is not kept."""

    session_key: str
    tenant: str = "default"
    workspace: str = "default"
    seq: int = 0
    reason: str = ""
    actor: str = "inbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypingStarted(SessionEvent):
    """A message was taken: show that somebody is at work. Not kept."""

    type: ClassVar[str] = "session.typing"
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsChanged(SessionEvent):
    """The queue settings of a session were changed or reset; `settings` are those it has of its own."""

    type: ClassVar[str] = "session.settings_changed"
    settings: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStopped(SessionEvent):
    """Everything in a session was stopped."""

    type: ClassVar[str] = "session.stopped"
    waiting: int = 0
    debounced: int = 0
    turns: int = 0
    children: int = 0
    calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionReset(SessionEvent):
    """A new conversation began."""

    type: ClassVar[str] = "session.reset"
    conversation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEvent(SessionEvent):
    """Something that has happened to one message; `state` is the state it has now."""

    message_id: str
    state: MessageState
    turn_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageAccepted(MessageEvent):
    """A message is durable. `position` counts from 1 among those that wait."""

    type: ClassVar[str] = "message.accepted"
    position: int = 0
    mode: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRefused(SessionEvent):
    """A message was not taken, because too many wait; its sender is told. Not kept."""

    type: ClassVar[str] = "message.refused"
    sender: str = ""
    cap: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageWaited(MessageEvent):
    """A message has waited for more than two seconds; says its position and why. Not kept."""

    type: ClassVar[str] = "message.waited"
    position: int = 0
    wait_ms: int = 0
    notice: str = ""


class MessageParked(MessageEvent):
    """A message aims at the running turn and waits for its next boundary."""

    __slots__ = ()
    type: ClassVar[str] = "message.parked"


class MessageEdited(MessageEvent):
    """The text of a waiting message was changed."""

    __slots__ = ()
    type: ClassVar[str] = "message.edited"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageMoved(MessageEvent):
    """A waiting message has another place."""

    type: ClassVar[str] = "message.moved"
    position: int = 0


class MessageHeld(MessageEvent):
    """A waiting message was set aside; others pass it."""

    __slots__ = ()
    type: ClassVar[str] = "message.held"


class MessageReleased(MessageEvent):
    """A held message waits in its place again."""

    __slots__ = ()
    type: ClassVar[str] = "message.released"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageStarted(MessageEvent):
    """A turn began over a message, which waited `wait_ms`; `number` is its place in the turn."""

    type: ClassVar[str] = "message.started"
    wait_ms: int = 0
    number: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageInjected(MessageEvent):
    """The running turn has taken a message at one of its boundaries."""

    type: ClassVar[str] = "message.injected"
    boundary: int = 0


class MessageReturned(MessageEvent):
    """A message that a turn had taken waits in its place again."""

    __slots__ = ()
    type: ClassVar[str] = "message.returned"


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageEnded(MessageEvent):
    """A message is final. `notice` is what its sender should be told, if anything."""

    type: ClassVar[str] = "message.ended"
    outcome: Outcome | None = None
    notice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEvent(SessionEvent):
    """Something that has happened to one turn; `state` is the state it has now."""

    turn_id: str
    state: TurnState


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStarted(TurnEvent):
    """A turn began over some messages."""

    type: ClassVar[str] = "turn.started"
    messages: tuple[str, ...] = ()
    lane: str = "main"
    mode: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReplied(TurnEvent):
    """A turn said something; `part` counts from 1, and the answer itself is the last."""

    type: ClassVar[str] = "turn.replied"
    text: str = ""
    part: int = 1
    channel: str = ""
    account: str = ""
    thread: str = ""
    message_id: str = ""


class TurnCancelling(TurnEvent):
    """A turn was asked to end."""

    __slots__ = ()
    type: ClassVar[str] = "turn.cancelling"


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnded(TurnEvent):
    """A turn has ended after `run_ms`."""

    type: ClassVar[str] = "turn.ended"
    run_ms: int = 0
    answered: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalEvent(SessionEvent):
    """Something that has happened to one request for approval."""

    approval_id: str
    turn_id: str
    state: ApprovalState


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAsked(ApprovalEvent):
    """A turn waits for somebody's approval; `arguments` is JSON, exactly what will be done."""

    type: ClassVar[str] = "approval.asked"
    action: str = ""
    arguments: str = ""
    expires_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalWarned(ApprovalEvent):
    """A request for approval expires soon. Not kept."""

    type: ClassVar[str] = "approval.warned"
    remaining_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalEscalated(ApprovalEvent):
    """Nobody has answered a request for approval for a while: these people may answer it from now on, too."""

    type: ClassVar[str] = "approval.escalated"
    escalated_to: tuple[str, ...] = ()
    remaining_ms: int = 0


class ApprovalEnded(ApprovalEvent):
    """A request for approval was answered, or has expired."""

    __slots__ = ()
    type: ClassVar[str] = "approval.ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildEvent(SessionEvent):
    """Something that has happened to one sub-agent."""

    child_id: str
    turn_id: str
    label: str = ""


class ChildStarted(ChildEvent):
    """A turn started a sub-agent."""

    __slots__ = ()
    type: ClassVar[str] = "child.started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildEnded(ChildEvent):
    """A sub-agent has ended: `succeeded`, `failed`, `timed_out`, `cancelled` or `interrupted`."""

    type: ClassVar[str] = "child.ended"
    state: str = ""
    message_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFired(SessionEvent):
    """A schedule sent its message; the next one is due at `next_ms` (0: it was the last)."""

    type: ClassVar[str] = "schedule.fired"
    schedule_id: str
    message_id: str = ""
    next_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleMissed(SessionEvent):
    """A schedule was due `count` times while nobody was there to send its message."""

    type: ClassVar[str] = "schedule.missed"
    schedule_id: str
    count: int = 0
    next_ms: int = 0


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
        TypingStarted,
        SettingsChanged,
        SessionStopped,
        SessionReset,
        MessageAccepted,
        MessageRefused,
        MessageWaited,
        MessageParked,
        MessageEdited,
        MessageMoved,
        MessageHeld,
        MessageReleased,
        MessageStarted,
        MessageInjected,
        MessageReturned,
        MessageEnded,
        TurnStarted,
        TurnReplied,
        TurnCancelling,
        TurnEnded,
        ApprovalAsked,
        ApprovalWarned,
        ApprovalEscalated,
        ApprovalEnded,
        ChildStarted,
        ChildEnded,
        ScheduleFired,
        ScheduleMissed,
    )
}
"""Every event type that is really published, by its name."""
