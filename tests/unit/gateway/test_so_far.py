"""What a run has told so far, as somebody sees it who comes in the middle."""

from __future__ import annotations

from typing import Any

from laneway.agent_events import (
    AgentEvent,
    ConfirmationReceivedEvent,
    ConfirmationRequiredEvent,
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
