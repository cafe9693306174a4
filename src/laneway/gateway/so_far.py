"""What a run that goes on has told so far, for those who begin to watch in the middle of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from laneway.agent_events import (
    AgentEvent,
    BackgroundEndEvent,
    ConfirmationReceivedEvent,
    ConfirmationRequiredEvent,
    ExternalTaskCompletedEvent,
    ExternalTaskPendingEvent,
    ExternalTaskProgressEvent,
    ExternalTaskStartedEvent,
    ModelRetryEvent,
    PermissionDeniedEvent,
    PlanningEndEvent,
    PlanningStartEvent,
    ReasoningDeltaEvent,
    RunResumedEvent,
    RunWaitingEvent,
    StartEvent,
    SteeredEvent,
    SubagentEndEvent,
    SubagentStartEvent,
    TaskUpdatedEvent,
    TextDeltaEvent,
    ToolBackgroundedEvent,
    ToolEndEvent,
    ToolOutputDeltaEvent,
    ToolQueuedEvent,
    ToolStartEvent,
    TurnEndEvent,
    TurnStartEvent,
)
from laneway.gateway.hub import Frame
from laneway.telemetry.redaction import redact, redact_tree

if TYPE_CHECKING:
    from laneway.agent.session import AsyncSession

__all__ = ("rounds_done", "so_far", "summed_up")

OUTPUT_MAX: Final = 4_000  # the end of what a call that runs has put out


class _Round:
    """One round as it looks to somebody who has missed it."""

    def __init__(self, turn: int) -> None:
        self.turn = turn
        self.text: list[str] = []
        self.reasoning: list[str] = []
        self.calls: dict[str, dict[str, Any]] = {}
        self.steered: list[dict[str, Any]] = []

    def call(self, tool_id: str, tool_name: str, **facts: Any) -> dict[str, Any]:
        """One of its calls, with what is new about it."""
        known = self.calls.setdefault(tool_id, {"tool_id": tool_id, "tool_name": tool_name, "args": {}, "output": ""})
        known.update(facts)
        return known

    def task(self, task_id: str, **facts: Any) -> None:
        """What is new about the task that one of its calls has become."""
        for call in self.calls.values():
            if call.get("task", {}).get("task_id") == task_id:
                call["task"].update(facts)

    def shown(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "turn": self.turn,
            "text": "".join(self.text),
            "reasoning": "".join(self.reasoning),
            "calls": [_safe(call) for call in self.calls.values()],
            "steered": self.steered,
        }


class _Course:
    """What belongs to the run as a whole: its plan, its sub-agents, what it waits for."""

    def __init__(self) -> None:
        self.began_ms = 0
        self.resumed_from = ""
        self.plan: dict[str, Any] | None = None
        self.children: dict[str, dict[str, Any]] = {}
        self.waiting: dict[str, Any] | None = None
        self.retry: dict[str, Any] | None = None

    def hear(self, event: AgentEvent) -> None:
        """One more event of the run."""
        match event:
            case RunWaitingEvent():
                self.waiting = {"reason": event.reason, "until_ms": event.until_ms}
                return
            case ModelRetryEvent():
                self.retry = {"attempt": event.attempt, "delay_ms": event.delay_ms, "error": redact(event.error)}
                return
            case StartEvent():
                self.began_ms = event.at_ms
            case RunResumedEvent():
                self.resumed_from = event.resumed_from
            case PlanningStartEvent():
                self.plan = {"state": "planning", "reason": "", "steps": []}
            case PlanningEndEvent():
                self._planned(state="made" if event.steps else "none", reason=event.reason)
            case TaskUpdatedEvent():
                self._planned(state="made", steps=[dict(each) for each in event.tasks])
            case SubagentStartEvent() | SubagentEndEvent():
                self._child(event)
            case _:
                pass
        self.waiting = self.retry = None  # it goes on

    def _planned(self, **facts: Any) -> None:
        self.plan = {"state": "made", "reason": "", "steps": [], **(self.plan or {}), **facts}

    def _child(self, event: SubagentStartEvent | SubagentEndEvent) -> None:
        child = self.children.setdefault(event.task_id, {"task_id": event.task_id, "description": "", "tool_id": ""})
        child.update(agent=event.agent, child_session_id=event.child_session_id)
        if isinstance(event, SubagentStartEvent):
            child.update(description=event.description, tool_id=event.tool_id, state="running", began_ms=event.at_ms)
        else:
            child.update(state=event.status, duration_ms=event.duration_ms)

    def shown(self) -> dict[str, Any]:
        """As plain JSON values."""
        return {
            "began_ms": self.began_ms,
            "resumed_from": self.resumed_from,
            "plan": self.plan,
            "children": list(self.children.values()),
            "waiting": self.waiting,
            "retry": self.retry,
        }


def _safe(call: dict[str, Any]) -> dict[str, Any]:
    """A call without secrets; what somebody is asked to approve is whole."""
    return call if call.get("state") == "asked" else {**call, **redact_tree({k: call[k] for k in ("args", "output")})}


def summed_up(events: Iterable[AgentEvent]) -> dict[str, Any]:
    """What these events of a run add up to: the round under way (`turn`, `text`, `calls`) and those before it."""
    messages: list[str] = []
    rounds = [_Round(0)]
    course, last = _Course(), 0
    for event in events:
        course.hear(event)
        last = max(last, event.seq)
        match event:
            case StartEvent():
                messages += event.messages
            case SteeredEvent():
                messages += event.messages
                rounds[-1].steered.append({"messages": list(event.messages), "skipped": list(event.skipped)})
            case TurnStartEvent():
                rounds.append(_Round(event.turn))
            case _:
                _add(rounds, event)
    whole = [each.shown() for each in rounds]
    if len(whole) > 1 and not whole[0]["calls"]:
        del whole[0]
    return {"messages": messages, **whole[-1], "rounds": whole[:-1], **course.shown(), "last_seq": last}


def _end_background(rounds: list[_Round], event: BackgroundEndEvent) -> None:
    """The call may be of an earlier round: it went on behind that."""
    for one in rounds:
        if event.tool_id in one.calls:
            call = one.call(event.tool_id, event.tool_name, background=str(event.status))
            call.update(output=event.tool_output[-OUTPUT_MAX:], duration_ms=event.duration_ms)


def _add(rounds: list[_Round], event: AgentEvent) -> None:
    one = rounds[-1]
    match event:
        case TextDeltaEvent():
            one.text.append(event.text)
        case ReasoningDeltaEvent():
            one.reasoning.append(event.text)
        case ModelRetryEvent():  # what came of the attempt before is void
            one.text, one.reasoning = [], []
        case ToolQueuedEvent():
            one.call(event.tool_id, event.tool_name, state="queued", lane=event.lane, queued_ms=event.at_ms)
        case ConfirmationRequiredEvent():
            args = dict(event.args)
            one.call(event.tool_id, event.tool_name, state="asked", args=args, approval_id=event.approval_id)
        case ConfirmationReceivedEvent():
            one.call(event.tool_id, event.tool_name, state="queued")
        case ToolStartEvent():
            call = one.call(event.tool_id, event.tool_name, state="running", args=dict(event.args), lane=event.lane)
            call.update(output="", started_ms=event.at_ms, attempt=event.attempt)
        case ToolOutputDeltaEvent():
            call = one.call(event.tool_id, event.tool_name)
            call["output"] = (call["output"] + event.text)[-OUTPUT_MAX:]
        case ToolEndEvent():
            call = one.call(event.tool_id, event.tool_name, state=str(event.status))
            call.update(output=event.tool_output[-OUTPUT_MAX:], ended_ms=event.at_ms, duration_ms=event.duration_ms)
            call.update(exit_code=event.exit_code, artifact=event.artifact)
        case ToolBackgroundedEvent():
            one.call(event.tool_id, event.tool_name, background_id=event.background_id, background="running")
        case BackgroundEndEvent():
            _end_background(rounds, event)
        case PermissionDeniedEvent():
            denied = {"gate": event.gate, "reason": redact(event.reason)}
            one.call(event.tool_id, event.tool_name, state="denied", args=dict(event.args), denied=denied)
        case ExternalTaskPendingEvent() if event.tool_id:
            task = {"task_id": event.task_id, "state": "pending", "worker": "", "progress": None}
            one.call(event.tool_id, event.command_type, task=task)
        case ExternalTaskStartedEvent():
            one.task(event.task_id, state="started", worker=event.worker, progress=None)
        case ExternalTaskProgressEvent():
            one.task(event.task_id, progress={"text": redact(event.text), "percent": event.percent})
        case ExternalTaskCompletedEvent():
            one.task(event.task_id, state=event.state, worker=event.worker)
        case _:
            pass


def so_far(session: AsyncSession, run_id: str | None = None, *, only_open: bool = False) -> Frame | None:
    """What the run of a session has told; None if nothing runs. `only_open`: without the rounds that are done."""
    run = session.live_run(run_id)
    if run is None:
        return None
    facts = summed_up(run.log.events)
    if only_open:
        facts["rounds"] = []
    facts = {
        "type": "so_far",
        "session_key": session.session_id,
        "run_id": run.id,
        "waits_for": run.waits_for,
        **facts,
    }
    return Frame(session.owner, "so_far", 0, facts, run_id=run.id)


def rounds_done(session: AsyncSession, run_id: str) -> int | None:
    """The last round of a run that is on disk, if the run goes on here."""
    run = session.live_run(run_id)
    if run is None:
        return None
    done = 0
    for event in run.log.events:
        match event:
            case TurnEndEvent():
                done = event.turn
            case RunResumedEvent():
                done = event.rounds
            case _:
                pass
    return done
