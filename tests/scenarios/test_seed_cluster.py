"""The document on hosting sessions on many nodes: its Python runs as it stands, and what it only describes works, too.

Snippets are played as they are written there, with the import name changed and a folder that exists. What it says is
configured elsewhere (ids and time, caps of memory) is configured from Python here. What needs another process is in
`test_seed_nodes.py`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from laneway import (
    Agent,
    AsyncAgent,
    FileSessionStore,
    FixedClock,
    HostEnv,
    LaneHandlerConfig,
    SequentialIdGenerator,
    SessionOptions,
    SessionQueueConfig,
    SessionRetentionLimits,
    replay,
    tool,
)
from laneway.agent_events import BudgetThresholdHitEvent, PassivationRequestedEvent, PeerInvocationEvent
from laneway.models import ScriptedModel, call, say
from laneway.options import PermissionPolicy
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.telemetry.logs import JsonFormatter
from tests.agent_stage import Held, final_of, opened, post
from tests.gateway_stage import gateway_stage
from tests.snippets import played
from tests.stage import passing, simulated
from tests.unit.telemetry.test_tracing import Spans, facts

LABELS: Final[dict[str, Any]] = {
    "tenant_id": "acme-corp",
    "principal": "user:42",
    "agent_template_id": "reviewer-v3",
    "correlation_id": "req-9f2c",
}
ANYTHING: Final = PermissionPolicy(default_decision="allow")


@tool(lane="query", effect="read")
def look(path: str) -> str:
    """Look at something."""
    return f"seen {path}"


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    with Agent(model="scripted", tools=[look], builtin_tools=False) as one:
        yield one


# ---- labels ----

LABELLED: Final = """
    opts = SessionOptions()
    opts.tenant_id = 'acme-corp'
    opts.principal = 'user:42'
    opts.agent_template_id = 'reviewer-v3'
    opts.correlation_id = 'req-9f2c'
    session = agent.session('/path/to/project', opts)
    # Getters are methods, return str | None
    print(session.tenant_id()) # 'acme-corp'
    print(session.principal()) # 'user:42'
    print(session.agent_template_id()) # 'reviewer-v3'
    print(session.correlation_id()) # 'req-9f2c'
"""


def test_labels_are_set_by_attributes_and_read_by_methods(
    agent: Agent, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = played(LABELLED, tmp_path, agent=agent, SessionOptions=SessionOptions)["session"]
    assert capsys.readouterr().out.splitlines() == list(LABELS.values())
    assert session.send("hello").text == "You said: hello"
    bare = agent.session(tmp_path)
    assert [getattr(bare, name)() for name in LABELS] == [None] * 4


def test_labels_come_back_and_the_callers_win(tmp_path: Path) -> None:
    store = FileSessionStore(tmp_path / "kept")
    for given, expected in (
        (LABELS, LABELS),
        ({"tenant_id": "acme-corp"}, LABELS),
        ({"tenant_id": "acme-corp", "correlation_id": "req-2"}, {**LABELS, "correlation_id": "req-2"}),
    ):
        with Agent(model="scripted", builtin_tools=False) as agent:
            session = agent.session(tmp_path, session_id="s", session_store=store, **given)
            session.send("hello")
            assert {name: getattr(session, name)() for name in LABELS} == expected


@simulated
async def test_labels_are_in_hooks_events_traces_and_stored_rows() -> None:
    disk, told = MemoryDisk(), list[Any]()
    async with opened(
        ScriptedModel([[call("look", path="a")], [say("done")]]),
        session_store=MemoryStore(disk),
        tools=[look],
        session_id="s",
        **LABELS,
    ) as session:
        for name in ("pre_tool_use", "post_tool_use", "generate_start", "post_response", "session_start"):
            session.register_hook(name, name, handler=lambda event: told.append(event["payload"]))
        events = session.subscribe()
        result = await session.send("go")
        traces = session.trace_events()
        later = [event.to_dict() for event in await session.run_events(result.run_id)]
        await session.close()
        seen = [event.to_dict() async for event in events]
    assert told
    for each in (*told, *(one["metadata"] for one in (*seen, *traces, *later))):
        assert LABELS.items() <= each.items()
    (row,) = [row for row in disk.states.values() if row.kind == "identity"]
    assert json.loads(row.body) == LABELS


@simulated
async def test_labels_are_in_external_tasks() -> None:
    queue = SessionQueueConfig(lane_handlers={"query": LaneHandlerConfig(mode="external")})
    async with AsyncAgent(
        model=ScriptedModel([[call("look", path="a")], [say("done")]]), tools=[look], builtin_tools=False
    ) as agent:
        session = agent.session(".", queue_config=queue, permission_policy=ANYTHING, **LABELS)
        events = session.subscribe()
        message = await session.followup("go")
        async for event in events:
            if event.event_type == "external_task_pending":
                break
        (task,) = await session.pending_external_tasks()
        assert {name: getattr(task, name) for name in LABELS} == LABELS
        await session.complete_external_task(task.task_id, success=True, result={"output": "seen"})
        assert (await session.wait(message.message_id)).text == "done"


async def test_labels_are_in_spans_and_in_every_line_that_is_logged_during_a_run(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonFormatter().format(record)))

    log, handler = logging.getLogger("laneway.of.a.tool"), Kept()

    async def noisy(_request: Any) -> list[Any]:
        log.warning("here I am")
        return [say("done")]

    text = "default_model: scripted\nidentity:\n" + "".join(
        f"  {name}: '{value}'\n" for name, value in LABELS.items() if name != "tenant_id"
    )
    log.addHandler(handler)
    try:
        async with gateway_stage(tmp_path, text=text, script=[noisy]) as stage:
            spans = Spans(stage.gateway)
            await stage.send("s1", "hello")
            run = spans.one("invoke_agent default")
            shown = await stage.client.get("/v1/sessions/s1")
    finally:
        log.removeHandler(handler)
    kept = {name: value for name, value in LABELS.items() if name != "tenant_id"}
    assert {f"laneway.identity.{name}": value for name, value in kept.items()}.items() <= facts(run).items()
    assert lines
    assert kept.items() <= lines[0].items()
    assert kept.items() <= shown.json()["identity"].items()


# ---- the guard ----

GUARDED: Final = """
    class MyGuard:
        def check_before_llm(self, session_id, estimated_tokens):
            if over_limit(session_id, estimated_tokens):
                return {'decision': 'deny', 'resource': 'tokens', 'reason': 'monthly cap reached'}
            return {'decision': 'allow'}
        def record_after_llm(self, session_id, usage):
            meter(session_id, usage)

    opts = SessionOptions()
    opts.budget_guard = MyGuard()
    session = agent.session('/path/to/project', opts)
    # To clear: set opts.budget_guard = None and re-create the session.
"""
CLEARED: Final = """
    opts.budget_guard = None
    session = agent.session('/path/to/project', opts)
"""


class Meter:
    """The free names of the guard."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.calls: list[tuple[str, int]] = []

    def over_limit(self, session_id: str, estimated_tokens: int) -> bool:
        assert estimated_tokens > 0
        return len(self.calls) >= self.limit

    def meter(self, session_id: str, usage: dict[str, Any]) -> None:
        self.calls.append((session_id, usage["total_tokens"]))


def test_a_guard_allows_and_denies_and_is_cleared_with_a_new_session(agent: Agent, tmp_path: Path) -> None:
    meter = Meter(limit=2)
    free: dict[str, Any] = {"agent": agent, "SessionOptions": SessionOptions}
    names = played(GUARDED, tmp_path, **free, over_limit=meter.over_limit, meter=meter.meter)
    session = names["session"]
    assert [session.send(text).text for text in ("one", "two")] == ["You said: one", "You said: two"]
    assert [name for name, _ in meter.calls] == [session.session_id] * 2
    with pytest.raises(RuntimeError, match=r"^Budget exhausted.*monthly cap reached"):
        session.send("three")
    assert len(meter.calls) == 2, "a call that was not made is not metered"
    again = played(CLEARED, tmp_path, **free, opts=names["opts"])["session"]
    assert again.send("four").text == "You said: four"
    assert len(meter.calls) == 2


@pytest.mark.parametrize("decision", [None, {"decision": "allow"}])
def test_none_and_allow_let_a_call_be_made(agent: Agent, tmp_path: Path, decision: Any) -> None:
    guard = type("Guard", (), {"check_before_llm": lambda *_: decision})()
    assert agent.session(tmp_path, budget_guard=guard).send("hi").text == "You said: hi"


def test_a_soft_decision_is_told_and_the_call_is_made(agent: Agent, tmp_path: Path) -> None:
    said = {"decision": "soft", "resource": "tokens", "consumed": 90, "limit": 100, "message": "soon"}
    guard = type("Guard", (), {"check_before_llm": lambda *_: said})()
    told: list[Any] = []
    session = agent.session(tmp_path, budget_guard=guard)
    session.register_hook("h", "budget_threshold_hit", handler=lambda event: told.append(event["payload"]))
    events = list(session.stream("hi"))
    (hit,) = [event for event in events if event.event_type == "budget_threshold_hit"]
    expected = {"resource": "tokens", "kind": "soft", "consumed": 90, "limit": 100, "message": "soon"}
    assert hit.data == expected
    assert expected.items() <= told[0].items()
    assert events[-1].event_type == "end"


def test_a_guard_is_set_and_cleared_while_a_session_lives(agent: Agent, tmp_path: Path) -> None:
    guard = type("Guard", (), {"check_before_llm": lambda *_: {"decision": "deny", "resource": "t", "reason": "no"}})()
    session = agent.session(tmp_path)
    session.set_budget_guard(guard)
    with pytest.raises(RuntimeError, match=r"^Budget exhausted \(t\): no"):
        session.send("one")
    session.set_budget_guard(None)
    assert session.send("two").text == "You said: two"


# ---- what the host says ----

HOST_EVENTS: Final[list[Any]] = [
    {"type": "budget_threshold_hit", "resource": "tokens", "kind": "hard", "consumed": 10, "limit": 10},
    {"type": "peer_invocation", "from_session_id": "other", "from_tenant_id": "acme", "correlation_id": "c"},
    {"type": "passivation_requested", "reason": "rebalance", "deadline_ms": 100},
]
TYPED: Final[list[Any]] = [
    BudgetThresholdHitEvent(resource="tokens", kind="hard", consumed=10, limit=10),
    PeerInvocationEvent(from_session_id="other", from_tenant_id="acme", correlation_id="c"),
    PassivationRequestedEvent(reason="rebalance", deadline_ms=100),
]


@pytest.mark.parametrize("events", [HOST_EVENTS, TYPED], ids=["mappings", "events"])
def test_hooks_see_the_three_events_of_a_host_without_asyncio(agent: Agent, tmp_path: Path, events: list[Any]) -> None:
    told: list[tuple[str, Any]] = []
    session = agent.session(tmp_path, session_store=FileSessionStore(tmp_path / "kept"), session_id="s")
    for each in HOST_EVENTS:
        session.register_hook(
            each["type"], each["type"], handler=lambda event: told.append((event["event_type"], event["payload"]))
        )
    for each in events:
        session.emit(each)
    assert [name for name, _ in told] == [each["type"] for each in HOST_EVENTS]
    for (_, payload), each in zip(told, HOST_EVENTS, strict=True):
        assert {name: value for name, value in each.items() if name != "type"}.items() <= payload.items()
    assert session.send("back?").text == "You said: back?", "what has left is opened by the next message"


# ---- ids and time ----


def same_host() -> HostEnv:
    return HostEnv(clock=FixedClock(1_700_000_000_000), ids=SequentialIdGenerator())


def test_with_sequential_ids_and_a_fixed_clock_two_runs_write_the_same_file(tmp_path: Path) -> None:
    def told() -> str:
        model = ScriptedModel([[call("look", path="a")], [say("done")]])
        with Agent(
            model, tools=[look], builtin_tools=False, host=same_host(), record=True, session_store=MemoryStore()
        ) as agent:
            session = agent.session(tmp_path, session_id="s", permission_policy=ANYTHING)
            result = session.send("go")
            history = session.run_history(result.run_id)
            assert session.replay(history).text == "done"
            return replay.dump(history)

    first = told()
    assert first == told()
    assert replay.dump(replay.run(replay.loads(first)).history) == first


# ---- caps ----


def test_each_of_the_four_caps_lets_the_oldest_go_first(tmp_path: Path) -> None:
    limits = SessionRetentionLimits(
        max_runs_retained=2, max_events_per_run=3, max_trace_events=4, max_terminal_subagent_tasks=2
    )
    script: list[Any] = []
    for number in range(4):
        script += [[call("task", prompt=f"part {number}")], [say(f"child {number}")], [say(f"parent {number}")]]
    with Agent(ScriptedModel(script), builtin_tools=False, subagents=True, retention_limits=limits) as agent:
        session = agent.session(tmp_path, permission_policy=ANYTHING)
        results = [session.send(f"go {number}") for number in range(4)]
        assert [each.text for each in results] == [f"parent {number}" for number in range(4)]
        assert len(session.trace_events()) == 4
        assert session.trace_events()[-1]["type"] == "end", "the newest stay"
        assert [each.output for each in session.subagents()] == ["child 2", "child 3"]


@simulated
async def test_who_comes_late_is_told_the_newest_events_of_a_run() -> None:
    held = Held(say("done"))
    model = ScriptedModel([[call("look", path=f"{at}") for at in range(20)], held])
    limits = SessionRetentionLimits(max_events_per_run=3)
    async with opened(model, tools=[look], retention_limits=limits) as session:
        message = await post(session, "go")
        await held.asked.wait()
        run = session._run  # noqa: SLF001 - what memory has of it
        assert run is not None
        assert len(run.log.events) == 3
        assert run.log.place > 40
        held.let_go()
        assert (await final_of(session, message)).answer == "done"


@simulated
async def test_the_oldest_runs_leave_memory_also_where_there_is_no_store() -> None:
    limits = SessionRetentionLimits(max_runs_retained=5)
    async with opened(ScriptedModel([[say(f"{at}")] for at in range(60)]), retention_limits=limits) as session:
        results = []
        for number in range(60):
            results.append(await session.send(f"go {number}"))
            await session.command("/new")
        await passing(10)
        left = [run.run_id for run in await session.runs()]
        assert len(left) < 20
        assert left == [each.run_id for each in results[-len(left) :]], "the oldest went first"
        disk = session.host.inbox.engine.store.disk  # type: ignore[attr-defined]
        assert len(disk.messages) < 20


@simulated
async def test_what_the_model_hears_stays_where_there_is_no_store() -> None:
    model = ScriptedModel([[say(f"answer {at}")] for at in range(40)])
    async with opened(model, retention_limits=SessionRetentionLimits(max_runs_retained=1)) as session:
        for number in range(40):
            await session.send(f"go {number}")
        assert len(await session.history()) == 80
    assert all(f"go {number}" in str(model.requests[-1]) for number in range(40))


@simulated
async def test_what_runs_is_never_dropped_however_small_the_caps_are() -> None:
    nothing = SessionRetentionLimits(
        max_runs_retained=0, max_events_per_run=0, max_trace_events=0, max_terminal_subagent_tasks=0
    )
    held = Held(say("child done"))
    model = ScriptedModel([[call("task", prompt="part")], held, [say("parent done")]])
    async with opened(model, subagents=True, retention_limits=nothing) as session:
        message = await post(session, "go")
        await held.asked.wait()
        await passing(10)
        assert [each.status for each in session.subagents()] == ["running"]
        assert [run.run_id for run in await session.runs()]
        held.let_go()
        assert (await final_of(session, message)).answer == "parent done"
        assert session.subagents() == []


def test_without_a_cap_everything_is_kept(tmp_path: Path) -> None:
    with Agent(model="scripted", builtin_tools=False, retention_limits=SessionRetentionLimits()) as agent:
        session = agent.session(tmp_path)
        results = [session.send(f"go {number}") for number in range(5)]
        assert [run.run_id for run in session.runs()] == [each.run_id for each in results]
        assert all(session.run_events(each.run_id) for each in results)
