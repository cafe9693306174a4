"""The document on hosting sessions on many nodes, where it takes two: one process ends, another one goes on.

A node here is a process of its own with the same folder.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, Final

import pytest

from laneway import Agent, FileSessionStore, SessionOptions
from laneway.errors import LanewayError
from laneway.models import ScriptedModel, say
from tests.snippets import played

PATIENCE_S: Final = 55

NODE: Final = """
    import asyncio, os, sys
    from laneway import *
    from laneway import replay
    from laneway.models import ScriptedModel, call, say

    @tool(lane="query", effect="read")
    def look(path: str) -> str:
        "Look at something."
        return f"seen {path}"

    @tool(effect="write")
    def crash() -> str:
        "End the process in the middle of a call."
        print(session.current_run().run_id, flush=True)
        os._exit(9)

    def host():
        return HostEnv(clock=FixedClock(1_700_000_000_000), ids=SequentialIdGenerator())

    ANYTHING = PermissionPolicy(default_decision="allow")
"""


def node(code: str, folder: Path, *words: str, ends: int = 0) -> str:
    """Run a program on another node; what it prints."""
    program = textwrap.dedent(NODE) + textwrap.dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == ends, done.stderr
    return done.stdout


# ---- runs that go on elsewhere ----

DYING: Final = """
    with Agent(ScriptedModel([[call("look", path="a")], [call("crash")]]), tools=[look, crash]) as agent:
        session = agent.session(
            ".", session_store=FileSessionStore("kept"), session_id="session-from-node-a", on_crash="report",
            permission_policy=ANYTHING,
        )
        session.send("go")
"""

RESUMED: Final = """
    from a3s_code import FileSessionStore

    opts = SessionOptions()
    opts.session_store = FileSessionStore('./.a3s/sessions')
    opts.session_id = 'session-from-node-a'
    opts.on_crash = 'report'
    session = agent.session(workspace, opts)
    result = session.resume_run(run_id)
"""


@pytest.mark.slow
def test_another_node_goes_on_with_a_run_and_does_no_half_call_again(tmp_path: Path) -> None:
    run_id = node(DYING, tmp_path, ends=9).strip()
    model = ScriptedModel([[say("finished elsewhere")]])
    with Agent(model, builtin_tools=False) as agent:
        free: dict[str, Any] = {"agent": agent, "SessionOptions": SessionOptions, "workspace": tmp_path}
        names = played(RESUMED, tmp_path, **free, run_id=run_id)
        session, result = names["session"], names["result"]
        assert result.text == "finished elsewhere"
        assert result.run_id != run_id
        runs = {run.run_id: run for run in session.runs()}
        assert runs[result.run_id].resumed_from == run_id
        ended = [event.tool_output for event in session.run_events(run_id) if event.event_type == "tool_end"]
        assert "seen a" in ended, "the old run is left as it was"
    told = str(model.requests[0])
    assert "seen a" in told
    assert "unknown" in told, "the call in whose middle it ended is not made again"


def test_without_a_store_there_is_nothing_to_resume(tmp_path: Path) -> None:
    with Agent(model="scripted", builtin_tools=False) as agent:
        session = agent.session(tmp_path)
        with pytest.raises(LanewayError, match=r"^resume_run requires a session_store"):
            session.resume_run("run-id-from-node-a")
        assert session.send("a fresh start").text == "You said: a fresh start"


def test_a_run_without_a_checkpoint_is_named(tmp_path: Path) -> None:
    with Agent(model="scripted", builtin_tools=False) as agent:
        session = agent.session(tmp_path, session_store=FileSessionStore(tmp_path / "kept"), session_id="s")
        with pytest.raises(LanewayError, match=r"^no loop checkpoint found for run 'X'"):
            session.resume_run("X")


# ---- the same bytes elsewhere ----

RECORDING: Final = """
    async def with_asyncio():
        model = ScriptedModel([[call("look", path="a")], [say("done")]])
        async with AsyncAgent(
            model, tools=[look], builtin_tools=False, host=host(), record=True, session_store=MemorySessionStore()
        ) as agent:
            session = agent.session(".", session_id="s", permission_policy=ANYTHING)
            result = await session.send("go")
            return await session.run_history(result.run_id)

    def without():
        model = ScriptedModel([[call("look", path="a")], [say("done")]])
        with Agent(
            model, tools=[look], builtin_tools=False, host=host(), record=True, session_store=MemorySessionStore()
        ) as agent:
            session = agent.session(".", session_id="s", permission_policy=ANYTHING)
            return session.run_history(session.send("go").run_id)

    history = asyncio.run(with_asyncio()) if sys.argv[1] == "async" else without()
    replay.save(history, sys.argv[2])
"""

REPLAYING: Final = """
    history = replay.load(sys.argv[1])
    again = replay.run(history)
    replay.save(again.history, sys.argv[2])
    print(again.text)
"""


@pytest.mark.slow
@pytest.mark.parametrize("surface", ["async", "sync"])
def test_a_run_replays_to_the_same_bytes_on_another_node(tmp_path: Path, surface: str) -> None:
    node(RECORDING, tmp_path, surface, "run.jsonl")
    assert node(REPLAYING, tmp_path, "run.jsonl", "again.jsonl") == "done\n"
    assert (tmp_path / "again.jsonl").read_bytes() == (tmp_path / "run.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("surface", ["async", "sync"])
def test_the_same_inputs_are_the_same_run_on_another_node(tmp_path: Path, surface: str) -> None:
    for name in ("one", "two"):
        node(RECORDING, tmp_path, surface, name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


# ---- moving ----

LEAVING: Final = """
    with Agent("scripted", builtin_tools=False, session_store=FileSessionStore("kept")) as agent:
        session = agent.session(".", session_id="s", tenant_id="acme", principal="user:42")
        session.send("remember me")
        session.emit({"type": "passivation_requested", "reason": "rebalance", "deadline_ms": 1000})
"""


@pytest.mark.slow
def test_a_session_that_left_one_node_is_opened_by_the_next_message_on_another(tmp_path: Path) -> None:
    node(LEAVING, tmp_path)
    model = ScriptedModel([[say("of course")]])
    with Agent(model, builtin_tools=False, session_store=FileSessionStore(tmp_path / "kept")) as agent:
        session = agent.session(tmp_path, session_id="s", tenant_id="acme")
        assert session.send("do you?").text == "of course"
        assert session.principal() == "user:42"
    assert "remember me" in str(model.requests[0])
