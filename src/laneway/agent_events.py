"""What a run of an agent tells whoever watches it: typed records with the names of the surface that agents know.

`event.event_type` says which it is, and its fields are attributes. A field that an event of another type has is None
here, so `if event.text:` is always safe. `event.to_dict()` is the versioned envelope for the wire.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from laneway.dialogue import ResultStatus, ToolResult
from laneway.identity import Identity

__all__ = (
    "AGENT_EVENTS",
    "AgentEvent",
    "BackgroundEndEvent",
    "BudgetThresholdHitEvent",
    "CommandDeadLetteredEvent",
    "CommandRetryEvent",
    "ConfirmationEscalatedEvent",
    "ConfirmationReceivedEvent",
    "ConfirmationRequiredEvent",
    "ConfirmationTimeoutEvent",
    "ConfirmationWarningEvent",
    "ContextCompactedEvent",
    "EndEvent",
    "ErrorEvent",
    "ExternalTaskCompletedEvent",
    "ExternalTaskPendingEvent",
    "ExternalTaskProgressEvent",
    "ExternalTaskStartedEvent",
    "HookFailedEvent",
    "MessageQueuedEvent",
    "ModelRetryEvent",
    "PassivationRequestedEvent",
    "PeerInvocationEvent",
    "PermissionDeniedEvent",
    "PlanningEndEvent",
    "PlanningStartEvent",
    "QueueAlertEvent",
    "ReasoningDeltaEvent",
    "RunResumedEvent",
    "RunWaitingEvent",
    "StartEvent",
    "SteeredEvent",
    "StepEndEvent",
    "StepStartEvent",
    "SubagentEndEvent",
    "SubagentProgressEvent",
    "SubagentStartEvent",
    "TaskUpdatedEvent",
    "TextDeltaEvent",
    "ToolBackgroundedEvent",
    "ToolEndEvent",
    "ToolInputDeltaEvent",
    "ToolOutputDeltaEvent",
    "ToolQueuedEvent",
    "ToolStartEvent",
    "TurnEndEvent",
    "TurnStartEvent",
)

ENVELOPE_VERSION = 1
META = ("session_id", "run_id", "seq", "at_ms")
BESIDE = (*META, "identity")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentEvent:
    """Something that has happened in a run. `seq` counts the events of one session in this process from 1."""

    event_type: ClassVar[str] = ""
    ephemeral: ClassVar[bool] = False

    session_id: str = ""
    run_id: str = ""
    seq: int = 0
    at_ms: int = 0
    identity: Identity | None = None

    def __getattr__(self, name: str) -> Any:
        if name in _FIELDS:
            return None
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    @property
    def type(self) -> str:
        """The same as `event_type`."""
        return self.event_type

    @property
    def data(self) -> dict[str, Any]:
        """The fields of its own, as a mapping."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in BESIDE}

    def to_dict(self) -> dict[str, Any]:
        """The versioned envelope: `version`, `type`, `payload`, `metadata`; plain JSON values."""
        metadata = {name: getattr(self, name) for name in META}
        if self.identity is not None:
            metadata |= self.identity.labels
        payload = {name: list(value) if isinstance(value, tuple) else value for name, value in self.data.items()}
        return {"version": ENVELOPE_VERSION, "type": self.event_type, "payload": payload, "metadata": metadata}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageQueuedEvent(AgentEvent):
    """The session is busy: the message waits. `disposition` is where it is, `reason` why."""

    event_type: ClassVar[str] = "message_queued"
    message_id: str
    disposition: str
    position: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEvent(AgentEvent):
    """A run has begun."""

    event_type: ClassVar[str] = "start"
    prompt: str
    messages: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResumedEvent(AgentEvent):
    """A run goes on where another was cut off. `rounds` were done; of the calls in `unknown` nobody knows the end."""

    event_type: ClassVar[str] = "run_resumed"
    resumed_from: str
    rounds: int
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnStartEvent(AgentEvent):
    """The model is asked; `turn` counts the rounds of a run from 1."""

    event_type: ClassVar[str] = "turn_start"
    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDeltaEvent(AgentEvent):
    """A piece of the answer's text."""

    event_type: ClassVar[str] = "text_delta"
    ephemeral: ClassVar[bool] = True
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningDeltaEvent(AgentEvent):
    """A piece of what the model thinks aloud."""

    event_type: ClassVar[str] = "reasoning_delta"
    ephemeral: ClassVar[bool] = True
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolInputDeltaEvent(AgentEvent):
    """A piece of the arguments of a call that the model is writing."""

    event_type: ClassVar[str] = "tool_input_delta"
    ephemeral: ClassVar[bool] = True
    tool_id: str
    tool_name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRetryEvent(AgentEvent):
    """A model call failed before anything came of it and is made again: text since `turn_start` is void."""

    event_type: ClassVar[str] = "model_retry"
    attempt: int
    delay_ms: int
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWaitingEvent(AgentEvent):
    """The run waits and goes on by itself; `until_ms` is the wall-clock time, 0 when nobody knows."""

    event_type: ClassVar[str] = "run_waiting"
    reason: str
    until_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolQueuedEvent(AgentEvent):
    """The model asks for a call, and it has been queued in its lane."""

    event_type: ClassVar[str] = "tool_queued"
    tool_id: str
    tool_name: str
    lane: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolStartEvent(AgentEvent):
    """A call really starts now. `args` are its checked arguments."""

    event_type: ClassVar[str] = "tool_start"
    tool_id: str
    tool_name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    lane: str = ""
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutputDeltaEvent(AgentEvent):
    """A piece of the output of a call that runs."""

    event_type: ClassVar[str] = "tool_output_delta"
    ephemeral: ClassVar[bool] = True
    tool_id: str
    tool_name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolEndEvent(AgentEvent):
    """A call has ended, whatever the end is: exactly one for each call."""

    event_type: ClassVar[str] = "tool_end"
    tool_id: str
    tool_name: str
    tool_output: str
    status: ResultStatus
    exit_code: int | None = None
    artifact: str | None = None
    duration_ms: int = 0

    @classmethod
    def of(cls, result: ToolResult, **more: Any) -> ToolEndEvent:
        """The end of a call, from its result."""
        return cls(
            tool_id=result.call_id,
            tool_name=result.name,
            tool_output=result.output,
            status=result.status,
            exit_code=result.exit_code,
            artifact=result.artifact,
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolBackgroundedEvent(AgentEvent):
    """A call takes longer than `after_ms` and goes on in the background; its `tool_end` follows at once."""

    event_type: ClassVar[str] = "tool_backgrounded"
    tool_id: str
    tool_name: str
    after_ms: int
    background_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundEndEvent(AgentEvent):
    """A call that went on in the background has really ended; `run_id` is that of the run that made it."""

    event_type: ClassVar[str] = "background_end"
    background_id: str
    tool_id: str
    tool_name: str
    tool_output: str
    status: ResultStatus
    exit_code: int | None = None
    artifact: str | None = None
    duration_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionDeniedEvent(AgentEvent):
    """A gate has refused a call before it was queued: `hook`, `permission`, `skill` or `approval`."""

    event_type: ClassVar[str] = "permission_denied"
    tool_id: str
    tool_name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    gate: str = "permission"


# ---- gates ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationRequiredEvent(AgentEvent):
    """A call waits for somebody's approval of exactly these arguments."""

    event_type: ClassVar[str] = "confirmation_required"
    approval_id: str
    tool_id: str
    tool_name: str
    args: Mapping[str, Any] = field(default_factory=dict)
    timeout_ms: int = 0
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationWarningEvent(AgentEvent):
    """A request for approval expires soon."""

    event_type: ClassVar[str] = "confirmation_warning"
    approval_id: str
    tool_id: str
    tool_name: str
    remaining_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationEscalatedEvent(AgentEvent):
    """Nobody has answered a request for a while: these people may answer it from now on."""

    event_type: ClassVar[str] = "confirmation_escalated"
    approval_id: str
    tool_id: str
    tool_name: str
    escalated_to: tuple[str, ...] = ()
    remaining_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationReceivedEvent(AgentEvent):
    """Somebody has answered a request for approval, or it was superseded (`approved` is False then)."""

    event_type: ClassVar[str] = "confirmation_received"
    approval_id: str
    tool_id: str
    tool_name: str
    approved: bool
    reason: str = ""
    answered_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationTimeoutEvent(AgentEvent):
    """Nobody has answered in time; `action_taken` is `rejected` or `auto_approved`."""

    event_type: ClassVar[str] = "confirmation_timeout"
    approval_id: str
    tool_id: str
    tool_name: str
    action_taken: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HookFailedEvent(AgentEvent):
    """A hook has raised, has taken too long, or has answered nonsense. A hook that is a gate stays closed then."""

    event_type: ClassVar[str] = "hook_failed"
    hook_id: str
    hook_event: str
    error: str
    blocked: bool = False


# ---- external tasks ----


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalTaskPendingEvent(AgentEvent):
    """A call waits for somebody to make it (with a `hybrid` lane it is made here, and this only says so)."""

    event_type: ClassVar[str] = "external_task_pending"
    task_id: str
    lane: str
    command_type: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    timeout_ms: int = 0
    attempt: int = 1
    tool_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalTaskStartedEvent(AgentEvent):
    """A worker begins with an external task."""

    event_type: ClassVar[str] = "external_task_started"
    task_id: str
    lane: str
    command_type: str
    worker: str
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalTaskProgressEvent(AgentEvent):
    """A worker says how far it has come with an external task; `percent` is 0 to 100, if it is known."""

    event_type: ClassVar[str] = "external_task_progress"
    task_id: str
    lane: str
    command_type: str
    worker: str
    text: str = ""
    percent: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalTaskCompletedEvent(AgentEvent):
    """An external task has ended; `state` says how: completed, failed, timed_out, withdrawn or unknown."""

    event_type: ClassVar[str] = "external_task_completed"
    task_id: str
    lane: str
    command_type: str
    success: bool
    state: str = ""
    error: str | None = None
    worker: str = ""
    attempt: int = 1
    duration_ms: int = 0


# ---- plans and sub-agents ----


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningStartEvent(AgentEvent):
    """The model is asked for a plan first."""

    event_type: ClassVar[str] = "planning_start"
    prompt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanningEndEvent(AgentEvent):
    """The plan is there (`steps` is how many), or there is none and the run goes on without: `reason` says why."""

    event_type: ClassVar[str] = "planning_end"
    steps: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskUpdatedEvent(AgentEvent):
    """The plan as it is now: each task has `id`, `content`, `status` and `result`."""

    event_type: ClassVar[str] = "task_updated"
    tasks: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStartEvent(AgentEvent):
    """A step of the plan begins."""

    event_type: ClassVar[str] = "step_start"
    step_id: str
    step_number: int
    total_steps: int
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEndEvent(AgentEvent):
    """A step of the plan has ended: `completed`, `failed`, `skipped` or `cancelled`."""

    event_type: ClassVar[str] = "step_end"
    step_id: str
    step_number: int
    total_steps: int
    status: str
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentStartEvent(AgentEvent):
    """A sub-agent begins, in a session of its own."""

    event_type: ClassVar[str] = "subagent_start"
    task_id: str
    agent: str
    description: str
    child_session_id: str
    tool_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentProgressEvent(AgentEvent):
    """Something has happened in a sub-agent: the event of its own session, as its envelope."""

    event_type: ClassVar[str] = "subagent_progress"
    ephemeral: ClassVar[bool] = True
    task_id: str
    child_session_id: str
    event: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubagentEndEvent(AgentEvent):
    """A sub-agent has ended: `succeeded`, `failed`, `timed_out` or `cancelled`."""

    event_type: ClassVar[str] = "subagent_end"
    task_id: str
    agent: str
    child_session_id: str
    status: str
    output: str = ""
    duration_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SteeredEvent(AgentEvent):
    """Messages came into the run at a boundary; `skipped` are the calls that were not made because of them."""

    event_type: ClassVar[str] = "steered"
    messages: tuple[str, ...]
    text: str
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEndEvent(AgentEvent):
    """A round is over and on disk."""

    event_type: ClassVar[str] = "turn_end"
    turn: int
    total_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextCompactedEvent(AgentEvent):
    """The older part of the conversation was replaced by a summary."""

    event_type: ClassVar[str] = "context_compacted"
    before_messages: int
    after_messages: int
    percent_before: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRetryEvent(AgentEvent):
    """A job of this session failed and will be tried again after `delay_ms`."""

    event_type: ClassVar[str] = "command_retry"
    command_id: str
    command_type: str
    lane: str
    attempt: int
    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandDeadLetteredEvent(AgentEvent):
    """The retries of a job of this session are used up."""

    event_type: ClassVar[str] = "command_dead_lettered"
    command_id: str
    command_type: str
    lane: str
    error: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueAlertEvent(AgentEvent):
    """A lane of this session holds more than it should. `level` is `warning` or `critical`."""

    event_type: ClassVar[str] = "queue_alert"
    level: str
    lane: str
    alert_type: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetThresholdHitEvent(AgentEvent):
    """A budget is nearly used up (`kind` is `soft`), or used up (`hard`); in tokens, or in dollars for money.

    With a call that does not fit, `message` says what was chosen: it is denied, waits, or goes to a cheaper model.
    """

    event_type: ClassVar[str] = "budget_threshold_hit"
    resource: str
    kind: str
    consumed: float
    limit: float
    message: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassivationRequestedEvent(AgentEvent):
    """The host wants the session to leave memory; `deadline_ms` is how long it may take to come to a boundary."""

    event_type: ClassVar[str] = "passivation_requested"
    reason: str
    deadline_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerInvocationEvent(AgentEvent):
    """Another session has sent something to this one."""

    event_type: ClassVar[str] = "peer_invocation"
    from_session_id: str
    from_tenant_id: str | None = None
    correlation_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndEvent(AgentEvent):
    """The run has answered; nothing follows."""

    event_type: ClassVar[str] = "end"
    text: str
    total_tokens: int = 0
    cost: float | None = None
    tool_calls_count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEvent(AgentEvent):
    """The run has ended without an answer (or the message never got a run); nothing follows.

    `error_kind` is the code of the error: `run_cancelled`, `model_unavailable` …
    """

    event_type: ClassVar[str] = "error"
    error: str
    error_kind: str = ""


AGENT_EVENTS: dict[str, type[AgentEvent]] = {kind.event_type: kind for kind in AgentEvent.__subclasses__()}
"""Every event by the name of its type."""

_FIELDS = {each.name for kind in AGENT_EVENTS.values() for each in fields(kind)} | {"verification_summary_text"}
