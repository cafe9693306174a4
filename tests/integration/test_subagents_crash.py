"""Sub-agents in real processes that are killed: the next process goes on with them, and tells each end once."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from laneway import AsyncAgent, FileSessionStore, PermissionPolicy, tool
from laneway.dialogue import Answer, ModelRequest, Prompt, Results
from laneway.models import ScriptedModel, call, say
from laneway.models.scripted import Piece

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PLAY: dict[str, list[list[Piece]]] = {
    "wait": [[call("task", prompt="find", description="it")]],
    "go on": [[call("spawn", prompt="find", description="it")]],
    "deep": [[call("task", prompt="wait")]],
    "find": [[call("pay", name="a")], [call("put", name="b")], [call("pay", name="c")]],
}


def answer(request: ModelRequest) -> list[Piece]:
    """What is said follows from the conversation alone."""
    said = request.conversation
    newest = max(at for at, each in enumerate(said) if isinstance(each, Prompt))
    prompt = said[newest]
    assert isinstance(prompt, Prompt)
    number = sum(isinstance(each, Answer) for each in said[newest:])
    answers = PLAY.get(prompt.text, [])
    if number < len(answers):
        return list(answers[number])
    told = [f"{r.name} {r.status}" for each in said[newest:] if isinstance(each, Results) for r in each.results]
    return [say(f"{prompt.text.splitlines()[0]}: {', '.join(told)}")]


async def live(folder: Path, prompt: str, kill: str) -> None:
    """One process: it goes on with what there is, and dies when it has done `kill`."""

    def do(kind: str, name: str) -> str:
        with (folder / "witness").open("a", encoding="utf-8") as witness:
            witness.write(f"{kind} {name}\n")
        if name == kill:
            os.kill(os.getpid(), signal.SIGKILL)
        return f"{kind} {name}"

    @tool(effect="write")
    async def pay(name: str) -> str:
        """Pay."""
        return do("pay", name)

    @tool(effect="idempotent")
    async def put(name: str) -> str:
        """Put."""
        return do("put", name)

    options: dict[str, Any] = {"builtin_tools": False, "permission_policy": PermissionPolicy(allow=["*"])}
    async with AsyncAgent(ScriptedModel([answer] * 100), tools=[pay, put], **options) as agent:
        store = FileSessionStore(folder / "store")
        session = agent.session(folder, session_id="chat", session_store=store, subagents=True)
        await session.followup(prompt, message_id="m1")
        for _ in range(1_000):
            await session.wait_idle()
            if all(each.status not in ("waiting", "running") for each in session.subagents()):
                break
            await asyncio.sleep(0.05)
        await session.wait_idle()
        messages = await session.host.inbox.messages("chat")
        answers = [(await session.host.inbox.status(each.message_id)).answer for each in messages]
        report = {"answers": answers, "sessions": await agent_sessions(session)}
        (folder / "report").write_text(json.dumps(report), encoding="utf-8")


async def agent_sessions(session: Any) -> list[str]:
    """Every session in the store."""
    return list(await session.host.inbox.sessions())


def run(folder: Path, prompt: str, kill: str = "") -> int:
    """A process of its own."""
    code = "import asyncio, sys, pathlib; from tests.integration.test_subagents_crash import live; "
    code += "asyncio.run(live(pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]))"
    program = [sys.executable, "-c", code, str(folder), prompt, kill]
    return subprocess.run(program, cwd=ROOT, check=False, timeout=120).returncode


@pytest.mark.parametrize("kill", ["a", "b", "c"])
@pytest.mark.parametrize("prompt", ["wait", "go on", "deep"])
def test_the_next_process_goes_on_with_the_same_sub_agent(tmp_path: Path, prompt: str, kill: str) -> None:
    assert run(tmp_path, prompt, kill) == -signal.SIGKILL
    assert run(tmp_path, prompt) == 0
    done = (tmp_path / "witness").read_text(encoding="utf-8").splitlines()
    assert [done.count(f"pay {name}") for name in "ac"] == [1, 1]
    assert done.count("put b") == (2 if kill == "b" else 1)
    report = json.loads((tmp_path / "report").read_text(encoding="utf-8"))
    assert len(report["sessions"]) == (3 if prompt == "deep" else 2)
    told = [text for text in report["answers"] if "Sub-agent" in text]
    assert len(told) == (1 if prompt == "go on" else 0)
    assert report["answers"][0] == f"{prompt}: {'spawn' if prompt == 'go on' else 'task'} ok"


def test_a_third_process_finds_nothing_left_to_do(tmp_path: Path) -> None:
    assert run(tmp_path, "go on", "a") == -signal.SIGKILL
    assert run(tmp_path, "go on") == 0
    before = (tmp_path / "witness").read_text(encoding="utf-8"), (tmp_path / "report").read_text(encoding="utf-8")
    assert run(tmp_path, "go on") == 0
    assert (
        (tmp_path / "witness").read_text(encoding="utf-8"),
        (tmp_path / "report").read_text(encoding="utf-8"),
    ) == before
