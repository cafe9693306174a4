"""What a run has told so far, as somebody sees it who comes in the middle."""

from __future__ import annotations

from typing import Any

from laneway.agent_events import (
    AgentEvent,
    ConfirmationReceivedEvent,
    ConfirmationRequiredEvent,
    ExternalTaskCompletedEvent,
    ExternalTaskPendingEvent,
    ExternalTaskProgressEvent,
    ExternalTaskStartedEvent,
    ModelRetryEvent,
    QueueAlertEvent,
    ReasoningDeltaEvent,
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
from laneway.dialogue import ResultStatus
from laneway.gateway.so_far import OUTPUT_MAX, summed_up

CALL: dict[str, Any] = {"tool_id": "c1", "tool_name": "bash"}
ASKED = ConfirmationRequiredEvent(**CALL, approval_id="a1", args={"command": "ls"})


def told(*events: AgentEvent) -> dict[str, Any]:
    return summed_up([StartEvent(prompt="go", messages=("m1",)), TurnStartEvent(turn=1), *events])


def test_a_run_that_has_said_nothing_yet_has_its_messages_only() -> None:
    assert summed_up([]) == {"messages": [], "turn": 0, "text": "", "reasoning": "", "calls": [], "rounds": []}
    assert told()["messages"] == ["m1"]


def test_pieces_are_joined_and_what_a_second_try_makes_void_is_left_out() -> None:
    pieces = (ReasoningDeltaEvent(text="hm"), TextDeltaEvent(text="a"), TextDeltaEvent(text="b"))
    assert (told(*pieces)["text"], told(*pieces)["reasoning"]) == ("ab", "hm")
    again = told(*pieces, ModelRetryEvent(attempt=1, delay_ms=0, error="cut"), TextDeltaEvent(text="c"))
    assert (again["text"], again["reasoning"]) == ("c", "")


def test_a_call_is_shown_as_far_as_it_has_come() -> None:
    steps: list[tuple[AgentEvent, str]] = [
        (ToolQueuedEvent(**CALL, lane="execute"), "queued"),
        (ASKED, "asked"),
        (ConfirmationReceivedEvent(**CALL, approval_id="a1", approved=True), "queued"),
        (ToolStartEvent(**CALL, args={"command": "ls"}), "running"),
        (ToolOutputDeltaEvent(**CALL, text="x" * OUTPUT_MAX), "running"),
        (ToolOutputDeltaEvent(**CALL, text="end"), "running"),
        (ToolEndEvent(**CALL, tool_output="whole", status=ResultStatus.OK), "ok"),
    ]
    for count, (_, state) in enumerate(steps, 1):
        [call] = told(*(event for event, _ in steps[:count]))["calls"]
        assert (call["tool_id"], call["tool_name"], call["state"]) == ("c1", "bash", state)
    [running] = told(*(event for event, _ in steps[:6]))["calls"]
    assert (len(running["output"]), running["output"][-4:]) == (OUTPUT_MAX, "xend")
    assert (call["args"], call["output"]) == ({"command": "ls"}, "whole")


def test_the_exact_arguments_of_what_is_asked_are_there() -> None:
    [call] = told(ASKED)["calls"]
    assert (call["approval_id"], call["args"]) == ("a1", {"command": "ls"})


def test_rounds_that_are_done_stand_before_the_one_under_way() -> None:
    facts = told(
        TextDeltaEvent(text="one"),
        TurnEndEvent(turn=1, total_tokens=3),
        SteeredEvent(messages=("m2",), text="also"),
        TurnStartEvent(turn=2),
        QueueAlertEvent(level="warning", lane="l", alert_type="depth", message="long"),
        TextDeltaEvent(text="two"),
    )
    assert (facts["turn"], facts["text"], facts["messages"]) == (2, "two", ["m1", "m2"])
    assert [(each["turn"], each["text"]) for each in facts["rounds"]] == [(1, "one")]


def test_a_call_that_somebody_else_makes_is_shown_with_its_task_and_how_far_that_is() -> None:
    task: dict[str, Any] = {"task_id": "t1", "lane": "execute", "command_type": "bash"}
    events = (
        ToolStartEvent(**CALL, args={}),
        ExternalTaskPendingEvent(**task, tool_id="c1"),
        ExternalTaskStartedEvent(**task, worker="w1"),
        ExternalTaskProgressEvent(**task, worker="w1", text="half", percent=50),
        ExternalTaskProgressEvent(**{**task, "task_id": "t2"}, worker="w1", text="of another"),
    )
    [call] = told(*events)["calls"]
    assert call["state"] == "running"
    progress = {"text": "half", "percent": 50}
    assert call["task"] == {"task_id": "t1", "state": "started", "worker": "w1", "progress": progress}
    [ended] = told(*events, ExternalTaskCompletedEvent(**task, success=True, state="completed", worker="w1"))["calls"]
    assert ended["task"]["state"] == "completed"
    secret = ExternalTaskProgressEvent(**task, worker="w1", text="key sk-abcdefghijklmnopqrstuvwxyz0123456789")
    assert "abcdefghijklmnop" not in str(told(*events, secret))
