"""How the synchronous surface is typed: checked by mypy, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, assert_type

from laneway import Agent, PermissionPolicy, Receipt, RunInfo, RunResult, RunStream, Session, SessionOptions
from laneway.agent.queue_records import DeadCommand, QueueMetrics, QueueStats
from laneway.agent_events import AgentEvent
from laneway.dialogue import ToolCall, ToolOutput, Utterance
from laneway.kernel.ledger import LedgerEntry
from laneway.models import ScriptedModel, say
from laneway.options import SessionQueueConfig
from laneway.sync import Stream


def agents() -> None:
    with Agent(ScriptedModel([[say("hello")]]), system="be brief", queue_config=SessionQueueConfig()) as agent:
        assert_type(agent, Agent)
        assert_type(agent.session("workspace"), Session)
        assert_type(agent.session(Path(), SessionOptions(), session_id="s1"), Session)
        assert_type(agent.resume_session("s1", workspace="."), Session)
        assert_type(agent.sessions(), list[Session])
        assert_type(agent.options, SessionOptions)
    assert_type(Agent.create("agent.hcl"), Agent)
    Agent("scripted", permission_policy=PermissionPolicy(allow=("read",)), session_store="sqlite:///s.db")
    Agent(model=5)  # type: ignore[arg-type]
    Agent("scripted", "tools")  # type: ignore[call-arg]


def messages(session: Session) -> None:
    result = session.send("hello", mode="steer", sender="ada", message_id="m", attachments=[{"name": "photo"}])
    assert_type(result, RunResult)
    assert_type(result.text, str)
    assert_type(session.run("hello"), RunResult)
    assert_type(session.wait("m"), RunResult)
    assert_type(session.steer("left"), Receipt)
    assert_type(session.followup("then"), Receipt)
    assert_type(session.interrupt("no"), Receipt)
    assert_type(session.cancel("enough"), bool)
    assert_type(session.cancel_run("r"), bool)
    assert_type(session.compact(), bool)
    assert_type(session.resume_run("r"), RunResult)
    session.send(5)  # type: ignore[arg-type]
    session.send("hello", nonsense=1)  # type: ignore[call-arg]
    session.send()  # type: ignore[call-arg]


def streams(session: Session) -> None:
    stream = session.stream("hello", mode="collect")
    assert_type(stream, RunStream)
    assert_type(stream.message_id, str)
    assert_type(stream.run_id, str | None)
    assert_type(stream.result(), RunResult)
    for event in stream:
        assert_type(event, AgentEvent)
        assert_type(event.event_type, str)
    with session.subscribe() as events:
        assert_type(events, Stream[AgentEvent])
        assert_type(next(events), AgentEvent)
    iterator: Iterator[AgentEvent] = stream
    elsewhere: AsyncIterator[AgentEvent] = stream
    del iterator, elsewhere


async def streams_elsewhere(session: Session) -> None:
    async for event in session.stream("hello"):
        assert_type(event, AgentEvent)


def questions(session: Session) -> None:
    assert_type(session.session_id, str)
    assert_type(session.workspace, str)
    assert_type(session.is_paused, bool)
    assert_type(session.has_queue(), bool)
    assert_type(session.queue_stats(), QueueStats)
    assert_type(session.queue_metrics(), QueueMetrics | None)
    assert_type(session.dead_letters(), list[DeadCommand])
    assert_type(session.history(), list[Utterance])
    assert_type(session.runs(), list[RunInfo])
    assert_type(session.run_snapshot("r"), RunInfo)
    assert_type(session.run_events("r"), list[AgentEvent])
    assert_type(session.current_run(), RunInfo | None)
    assert_type(session.active_tools(), list[ToolCall])
    assert_type(session.ledger("unknown"), list[LedgerEntry])
    assert_type(session.settle("e", "it was sent", actor="ada"), LedgerEntry)


def tools(session: Session) -> None:
    assert_type(session.tool("read", {"path": "a"}), ToolOutput)
    assert_type(session.read_file("a", limit=5), str)
    assert_type(session.write_file("a", "text"), str)
    assert_type(session.edit_file("a", "old", "new"), str)
    assert_type(session.patch_file("a", "diff"), str)
    assert_type(session.ls(), str)
    assert_type(session.glob("*.py"), str)
    assert_type(session.grep("TODO", glob="*.py"), str)
    assert_type(session.bash("ls", timeout_ms=5), str)
    assert_type(session.submit("query", {"path": "a"}), Any)
    assert_type(session.submit_batch("query", [lambda: 1], return_errors=True), list[Any])
    session.bash(5)  # type: ignore[arg-type]
