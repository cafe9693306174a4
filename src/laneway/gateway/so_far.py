"""What a run that goes on has told so far, for those who begin to watch in the middle of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from laneway.agent_events import (
    AgentEvent,
    ConfirmationReceivedEvent,
    ConfirmationRequiredEvent,
    ExternalTaskCompletedEvent,
    ExternalTaskPendingEvent,
    ExternalTaskProgressEvent,
    ExternalTaskStartedEvent,
    ModelRetryEvent,
    ReasoningDeltaEvent,
    RunResumedEvent,
    StartEvent,
    SteeredEvent,
    TextDeltaEvent,
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
        }


def _safe(call: dict[str, Any]) -> dict[str, Any]:
    """A call without secrets; what somebody is asked to approve is whole."""
    return call if call.get("state") == "asked" else {**call, **redact_tree({k: call[k] for k in ("args", "output")})}


def summed_up(events: Iterable[AgentEvent]) -> dict[str, Any]:
    """What these events of a run add up to: the round under way (`turn`, `text`, `calls`) and those before it."""
    messages: list[str] = []
    rounds = [_Round(0)]
    for event in events:
        match event:
            case StartEvent() | SteeredEvent():
                messages += event.messages
            case TurnStartEvent():
                rounds.append(_Round(event.turn))
            case _:
                _add(rounds[-1], event)
    whole = [each.shown() for each in rounds]
    if len(whole) > 1 and not whole[0]["calls"]:
        del whole[0]
    return {"messages": messages, **whole[-1], "rounds": whole[:-1]}


def _add(one: _Round, event: AgentEvent) -> None:
    match event:
        case TextDeltaEvent():
            one.text.append(event.text)
        case ReasoningDeltaEvent():
            one.reasoning.append(event.text)
        case ModelRetryEvent():  # what came of the attempt before is void
            one.text, one.reasoning = [], []
        case ToolQueuedEvent():
            one.call(event.tool_id, event.tool_name, state="queued", lane=event.lane)
        case ConfirmationRequiredEvent():
            args = dict(event.args)
            one.call(event.tool_id, event.tool_name, state="asked", args=args, approval_id=event.approval_id)
        case ConfirmationReceivedEvent():
            one.call(event.tool_id, event.tool_name, state="queued")
        case ToolStartEvent():
            one.call(event.tool_id, event.tool_name, state="running", args=dict(event.args), lane=event.lane, output="")
        case ToolOutputDeltaEvent():
            call = one.call(event.tool_id, event.tool_name)
            call["output"] = (call["output"] + event.text)[-OUTPUT_MAX:]
        case ToolEndEvent():
            one.call(event.tool_id, event.tool_name, state=str(event.status), output=event.tool_output[-OUTPUT_MAX:])
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
