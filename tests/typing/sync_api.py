"""How the synchronous surface is typed: checked by mypy, never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, assert_type

from laneway import (
    Agent,
    Approval,
    ConfirmationPolicy,
    ExternalTask,
    ExternalTaskResult,
    Hook,
    Lease,
    LocalTransport,
    McpServerConfig,
    PermissionPolicy,
    Receipt,
    RunInfo,
    RunResult,
    RunStream,
    Session,
    SessionOptions,
    Transport,
    Worker,
)
from laneway.agent.queue_records import DeadCommand, QueueMetrics, QueueStats
from laneway.agent_events import AgentEvent
from laneway.dialogue import ToolCall, ToolOutput, Utterance
from laneway.kernel.ledger import LedgerEntry
from laneway.models import ScriptedModel, say
from laneway.options import SessionQueueConfig
from laneway.records import Fields
from laneway.runtime.task_desk import TaskDesk
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


def gates(session: Session) -> None:
    Agent("scripted", confirmation_policy=ConfirmationPolicy(approvers=["olga"]), hooks=[Hook("a", "post_tool_use")])
    Agent("scripted", mcp_servers={"git": McpServerConfig(command="git-mcp", effects={"log": "read"})})
    session.register_hook("a", "pre_tool_use", {"tool": "bash"}, {"priority": 1}, lambda event: None)
    assert_type(session.unregister_hook("a"), bool)
    assert_type(session.hook_count(), int)
    assert_type(session.approvals(), list[Approval])
    assert_type(session.pending_confirmations(), list[Fields])
    assert_type(session.confirm_tool_use("c", False, "no", args={"x": 1}, by="olga"), bool)
    assert_type(session.command("/approve a", sender="olga"), str | None)
    ConfirmationPolicy(timeout_action=5)  # type: ignore[arg-type]


def calls_that_somebody_else_makes(session: Session) -> None:
    session.set_lane_handler("execute", "external", timeout_ms=5, ordered=False, fallback=True)
    for task in session.pending_external_tasks():
        assert_type(task, ExternalTask)
        assert_type(task.payload, dict[str, Any])
        assert_type(task.remaining_ms(), int)
        assert_type(session.complete_external_task(task.task_id, {"success": True, "result": "x"}), bool)
        assert_type(session.complete_external_task(task.task_id, success=False, error="no"), bool)
        session.complete_external_task(task.task_id, ExternalTaskResult(result=[1]))
        session.complete_external_task()  # type: ignore[call-arg]


async def workers(session: Session) -> None:
    assert_type(session.desk(), TaskDesk)
    transport: Transport = LocalTransport(session.desk())
    assert_type(await transport.claim("w", lanes=["execute"], wait_ms=5), list[Lease])
    async with Worker(transport, handlers={"bash": lambda task: task.command_type}, concurrency=2) as worker:
        assert_type(worker.stats.completed, int)
        await worker.stop(timeout_ms=5)


def sub_agents(session: Session) -> None:
    assert_type(session.task("look", agent="reader", timeout_ms=5), RunResult)
    assert_type(session.parallel_task(["look", {"prompt": "listen"}]), list[Fields])
    assert_type(session.spawn("look"), str)
    assert_type(session.subagents(), list[Fields])
    assert_type(session.children(), list[Session])
