"""Whoever watches gets everything in order, is cut when it lags, and costs little."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from laneway.agent_events import (
    AgentEvent,
    ConfirmationRequiredEvent,
    ExternalTaskCompletedEvent,
    ExternalTaskPendingEvent,
    ExternalTaskProgressEvent,
    SubagentProgressEvent,
    TextDeltaEvent,
    ToolOutputDeltaEvent,
    ToolStartEvent,
)
from laneway.errors import OverloadedError
from laneway.events import LanePaused, MessageAccepted, TurnEnded, TurnReplied
from laneway.gateway.hub import Frame, Hub, frame_of, json_of
from laneway.gateway.so_far import summed_up
from laneway.mail import MessageState, TurnState
from laneway.rows import Owner

OWNER = Owner("default", "w", "s1")


def accepted(seq: int, session: str = "s1", tenant: str = "default") -> MessageAccepted:
    return MessageAccepted(
        session_key=session,
        tenant=tenant,
        workspace="w",
        seq=seq,
        message_id=f"m{seq}",
        state=MessageState.QUEUED,
    )


def delta(text: str) -> TextDeltaEvent:
    return TextDeltaEvent(text=text, session_id="s1", run_id="r1")


def test_a_watcher_of_a_session_hears_of_that_session_only() -> None:
    hub = Hub("w")
    mine = hub.watch("default", "s1")
    for event in (accepted(1), accepted(2, "s2"), accepted(3, tenant="other"), LanePaused(lane="main"), accepted(4)):
        hub.on_mail_event(event)
    assert [frame.seq for frame in mine.take()] == [1, 4]
    assert mine.take() == []


def test_events_of_one_commit_come_out_by_their_numbers_when_all_sessions_are_watched() -> None:
    hub = Hub("w")
    everything = hub.watch("default")
    for seq, session in ((1, "a"), (5, "a"), (3, "b")):
        hub.on_mail_event(accepted(seq, session))
    hub.on_agent_event(Owner("default", "w", "b"), delta("x"))
    hub.on_mail_event(accepted(4, "c"))
    taken = [(frame.seq, frame.owner.session) for frame in everything.take()]
    assert taken == [(1, "a"), (3, "b"), (0, "b"), (4, "c"), (5, "a")]


def test_who_lags_too_far_behind_is_cut_and_holds_nothing_beyond_what_it_has_taken() -> None:
    hub = Hub("w")
    slow = hub.watch("default", buffer_max=2)
    hub.on_mail_event(accepted(1))
    assert [frame.seq for frame in slow.take()] == [1]
    for seq in (2, 3, 4, 5):
        hub.on_mail_event(accepted(seq))
    assert (slow.end, slow.take(), len(hub)) == ("slow", [], 0)


def test_the_first_reason_of_an_end_stays() -> None:
    hub = Hub("w")
    watcher = hub.watch("default", "s1")
    watcher.close("gone")
    watcher.close("stopping")
    hub.close()
    assert watcher.end == "gone"


def test_a_hub_that_has_ended_its_streams_takes_no_new_ones() -> None:
    hub = Hub("w")
    watcher = hub.watch("default", "s1")
    hub.close("stopping")
    assert watcher.end == "stopping"
    with pytest.raises(OverloadedError, match="stopping"):
        hub.watch("default", "s1")


def test_only_the_streams_of_a_revoked_token_end() -> None:
    hub = Hub("w")
    one, other = hub.watch("default", "s1", token_id="t1"), hub.watch("default", "s1", token_id="t2")
    hub.close_token("t1")
    assert (one.end, other.end, len(hub)) == ("revoked", "", 1)


def test_the_end_of_a_turn_carries_its_whole_answer() -> None:
    hub = Hub("w")
    watcher = hub.watch("default", "s1")
    facts: dict[str, Any] = {"session_key": "s1", "workspace": "w", "turn_id": "t1"}
    hub.on_mail_event(TurnReplied(**facts, state=TurnState.DELIVERING, text="long " * 100))
    hub.on_mail_event(TurnEnded(**facts, state=TurnState.SUCCEEDED, answered=True))
    hub.on_mail_event(TurnEnded(**{**facts, "turn_id": "t2"}, state=TurnState.FAILED))
    assert [frame.data.get("answer", "-") for frame in watcher.take()] == ["-", "long " * 100, None]


async def test_a_watcher_waits_for_what_comes_and_ends_when_it_is_closed() -> None:
    hub = Hub("w")
    watcher = hub.watch("default", "s1")

    async def read() -> list[str]:
        return [frame.type async for frame in watcher]

    reading = asyncio.get_running_loop().create_task(read())
    await asyncio.sleep(0)
    hub.on_mail_event(accepted(1))
    hub.on_agent_event(OWNER, delta("x"))
    await asyncio.sleep(0)
    watcher.close()
    assert await reading == ["message.accepted", "text_delta"]


def test_a_frame_is_written_once_for_five_hundred_watchers() -> None:
    hub = Hub("w")
    watchers = [hub.watch("default", "s1") for _ in range(500)]
    hub.on_agent_event(OWNER, delta("a piece of text"))
    frames = {id(frame): frame for watcher in watchers for frame in watcher.take()}
    [frame] = frames.values()
    first = frame.sse()
    assert all(frame.sse() is first for _ in watchers)


def test_what_nobody_watches_costs_no_frame_and_still_counts_as_told() -> None:
    hub = Hub("w")
    hub.on_mail_event(accepted(7))
    watcher = hub.watch("default", "s1")
    assert (watcher.since, watcher.take()) == (7, [])


def test_an_event_is_three_lines_whatever_somebody_has_said() -> None:
    nasty = "line\r\nid: 9\n\nevent: close\x00\u2028 \ud83d"
    frame = Frame(OWNER, "text_delta", 0, {"text": nasty})
    lines = frame.sse().decode().split("\n")
    assert lines[0] == "event: text_delta"
    assert lines[2:] == ["", ""]
    assert json.loads(lines[1].removeprefix("data: ")) == {"text": nasty}


def test_values_that_json_lacks_do_not_break_a_stream() -> None:
    event = ToolStartEvent(tool_id="c", tool_name="t", args={"a": float("nan"), "b": {1}, "c": (2, OWNER)})
    told = json.loads(json_of(event.to_dict()))
    assert told["payload"]["args"] == {"a": None, "b": [1], "c": [2, ["default", "w", "s1"]]}
    assert json.loads(json_of({"e": ValueError("no"), "f": frozenset({3})})) == {"e": "no", "f": [3]}


def test_secrets_that_a_tool_has_come_upon_are_not_told_and_what_is_to_be_approved_is_whole() -> None:
    secret = "sk-abcdefghijklmnopqrstuvwxyz0123456789"
    owner = Owner("default", "w", "s")
    start = ToolStartEvent(tool_id="1", tool_name="bash", args={"command": f"curl -H 'Authorization: Bearer {secret}'"})
    delta = ToolOutputDeltaEvent(tool_id="1", tool_name="bash", text=f"OPENAI_API_KEY={secret}")
    asked = ConfirmationRequiredEvent(approval_id="a", tool_id="1", tool_name="bash", args={"key": secret})
    assert secret not in str(frame_of(owner, start, "r").data)
    assert secret not in str(frame_of(owner, delta, "r").data)
    assert secret in str(frame_of(owner, asked, "r").data)
    told = summed_up([start, delta])
    assert secret not in str(told)
    assert told["calls"][0]["tool_name"] == "bash"


def test_secrets_in_external_tasks_are_not_told_also_not_in_those_of_sub_agents() -> None:
    secret = "sk-abcdefghijklmnopqrstuvwxyz0123456789"
    task: dict[str, Any] = {"task_id": f"task-{'0f' * 20}", "lane": "execute", "command_type": "bash"}
    events: list[AgentEvent] = [
        ExternalTaskPendingEvent(**task, payload={"command": f"curl -H 'Authorization: Bearer {secret}'"}),
        ExternalTaskProgressEvent(**task, worker="w1", text=f"OPENAI_API_KEY={secret}"),
        ExternalTaskCompletedEvent(**task, success=False, error=f"token={secret}"),
        ToolStartEvent(tool_id="1", tool_name="bash", args={"command": f"export OPENAI_API_KEY={secret}"}),
    ]
    for event in events:
        for depth in range(3):
            told = str(frame_of(OWNER, event, "r").data)
            assert secret not in told, (event, depth)
            assert task["task_id"] in told or "tool_start" in told
            event = SubagentProgressEvent(task_id="sub-1", child_session_id="s1~0", event=event.to_dict())
    asked = ConfirmationRequiredEvent(approval_id="a", tool_id="1", tool_name="bash", args={"key": secret})
    inside = SubagentProgressEvent(task_id="sub-1", child_session_id="s1~0", event=asked.to_dict())
    assert secret in str(frame_of(OWNER, inside, "r").data)
