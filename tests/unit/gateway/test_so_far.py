"""What a run has told so far, as somebody sees it who comes in the middle."""

from __future__ import annotations

from typing import Any

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
    QueueAlertEvent,
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
from laneway.dialogue import ResultStatus
from laneway.gateway.so_far import OUTPUT_MAX, summed_up

CALL: dict[str, Any] = {"tool_id": "c1", "tool_name": "bash"}
ASKED = ConfirmationRequiredEvent(**CALL, approval_id="a1", args={"command": "ls"})


def told(*events: AgentEvent) -> dict[str, Any]:
    return summed_up([StartEvent(prompt="go", messages=("m1",)), TurnStartEvent(turn=1), *events])


def test_a_run_that_has_said_nothing_yet_has_its_messages_only() -> None:
    assert summed_up([]) == {
        "messages": [],
        "turn": 0,
        "text": "",
        "reasoning": "",
        "calls": [],
        "steered": [],
        "rounds": [],
        "began_ms": 0,
        "resumed_from": "",
        "plan": None,
        "children": [],
        "waiting": None,
        "retry": None,
        "last_seq": 0,
    }
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


def test_the_plan_is_there_as_far_as_it_has_come() -> None:
    step = {"id": "s1", "content": "look", "status": "in_progress", "result": ""}
    assert told(PlanningStartEvent(prompt="go"))["plan"] == {"state": "planning", "reason": "", "steps": []}
    none = told(PlanningStartEvent(prompt="go"), PlanningEndEvent(steps=0, reason="it is too small"))
    assert none["plan"] == {"state": "none", "reason": "it is too small", "steps": []}
    events = (PlanningStartEvent(prompt="go"), PlanningEndEvent(steps=1), TaskUpdatedEvent(tasks=(step,)))
    assert told(*events)["plan"] == {"state": "made", "reason": "", "steps": [step]}
    assert told(TaskUpdatedEvent(tasks=(step,)))["plan"]["steps"] == [step]  # a run that goes on with its plan


def test_calls_have_their_times_and_what_came_of_them_behind_the_run() -> None:
    events = (
        ToolQueuedEvent(**CALL, lane="execute", at_ms=10),
        ToolStartEvent(**CALL, args={}, lane="execute", attempt=2, at_ms=30),
        ToolBackgroundedEvent(**CALL, after_ms=5, background_id="b1", at_ms=40),
        ToolEndEvent(**CALL, tool_output="goes on", status=ResultStatus.OK, duration_ms=10, at_ms=40),
    )
    [call] = told(*events)["calls"]
    assert (call["queued_ms"], call["started_ms"], call["ended_ms"], call["attempt"]) == (10, 30, 40, 2)
    assert (call["background_id"], call["background"]) == ("b1", "running")
    later = (
        TurnStartEvent(turn=2),
        BackgroundEndEvent(**CALL, background_id="b1", tool_output="x", status=ResultStatus.ERROR),
    )
    [ended] = told(*events, *later)["rounds"][0]["calls"]
    assert (ended["background"], ended["output"]) == ("error", "x")


def test_what_was_refused_says_by_whom() -> None:
    [call] = told(PermissionDeniedEvent(**CALL, args={"command": "rm"}, reason="no", gate="permission"))["calls"]
    assert (call["state"], call["denied"]) == ("denied", {"gate": "permission", "reason": "no"})


def test_what_a_run_waits_for_is_there_until_it_goes_on() -> None:
    waits = RunWaitingEvent(reason="the limit is closed", until_ms=99)
    retry = ModelRetryEvent(attempt=1, delay_ms=5, error="busy")
    assert told(waits)["waiting"] == {"reason": "the limit is closed", "until_ms": 99}
    assert told(retry)["retry"] == {"attempt": 1, "delay_ms": 5, "error": "busy"}
    over = told(waits, retry, TextDeltaEvent(text="a"))
    assert (over["waiting"], over["retry"]) == (None, None)


def test_sub_agents_and_what_came_in_are_there() -> None:
    task: dict[str, Any] = {"task_id": "k1", "agent": "scout", "child_session_id": "s~1"}
    begun = SubagentStartEvent(**task, description="look", tool_id="c1", at_ms=7)
    [child] = told(begun)["children"]
    assert (child["agent"], child["state"], child["began_ms"], child["tool_id"]) == ("scout", "running", 7, "c1")
    [child] = told(begun, SubagentEndEvent(**task, status="succeeded", output="x", duration_ms=4))["children"]
    assert (child["state"], child["duration_ms"], child["description"]) == ("succeeded", 4, "look")
    steered = told(SteeredEvent(messages=("m2",), text="also", skipped=("c9",), seq=8))
    assert steered["steered"] == [{"messages": ["m2"], "skipped": ["c9"]}]
    assert steered["last_seq"] == 8
    resumed = summed_up([RunResumedEvent(resumed_from="r0", rounds=1), TurnStartEvent(turn=2)])
    assert resumed["resumed_from"] == "r0"
