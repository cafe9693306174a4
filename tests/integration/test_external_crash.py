"""A real process that is killed while somebody else makes a call of its agent, and the one that comes after it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

LIFE = """
import asyncio, json, sys
from laneway import AsyncAgent, FileSessionStore, PermissionPolicy, SessionQueueConfig
from laneway.external import ExternalTaskResult
from laneway.models import ScriptedModel, call, say

folder, life, tool, token = sys.argv[1:5]

async def main():
    script = [[call(tool, **({{"command": "deploy"}} if tool == "bash" else {{"path": "a.txt"}}))]]
    model = ScriptedModel([*(script if life == "1" else []), [say("done")]])
    agent = AsyncAgent(model=model, permission_policy=PermissionPolicy(allow=["*"]))
    config = SessionQueueConfig(lane_handlers={{
        "execute": {{"mode": "external", "timeout_ms": 300_000, "lease_ms": {lease_ms}}},
        "query": {{"mode": "external", "timeout_ms": 300_000, "lease_ms": {lease_ms}}},
    }})
    session = agent.session(folder, session_id="s1", session_store=FileSessionStore(folder + "/store"),
                            queue_config=config)
    await session.ready()
    if life == "1":
        await session.followup("go")
    desk = session.host.desk
    while not (tasks := desk.tasks()) and life == "1":
        await asyncio.sleep(0.01)
    {then}

asyncio.run(main())
"""
WAIT = """
    if token == "start":
        [lease] = await desk.claim("w1", wait_ms=60_000)
        await desk.start(lease.task["task_id"], lease.token)
        token_ = lease.token
    else:
        token_ = ""
    print(json.dumps({"task_id": tasks[0]["task_id"], "token": token_}), flush=True)
    await asyncio.sleep(600)
"""
COMPLETE = """
    task_id, _, said = token.partition("=")
    held, _, said = said.partition("=")
    first = bool(held) and await desk.complete(task_id, held, ExternalTaskResult(result=said))
    if said and not held:
        first = await session.complete_external_task(task_id, said)
        first = first and await session.complete_external_task(task_id, "once more")
    await session.wait_idle()
    results = [each.output for said in model.requests[-1].conversation for each in getattr(said, "results", ())]
    entries = [entry.state.value for entry in await session.ledger()]
    print(json.dumps({"accepted": first, "results": results, "ledger": entries, "asked": len(model.requests)}),
          flush=True)
    await agent.close()
"""


def _spawn(folder: Path, life: str, then: str, *args: str, lease_ms: int = 30_000) -> subprocess.Popen[str]:
    code = LIFE.format(then=then.strip(), lease_ms=lease_ms)
    return subprocess.Popen(
        [sys.executable, "-c", code, str(folder), life, *args], stdout=subprocess.PIPE, text=True, cwd=folder
    )


def killed(folder: Path, tool: str, how: str, *, lease_ms: int = 30_000) -> dict[str, Any]:
    """A process that is killed while its task is out: the task."""
    (folder / "a.txt").write_text("here")
    with _spawn(folder, "1", WAIT, tool, how, lease_ms=lease_ms) as process:
        assert process.stdout is not None
        task: dict[str, Any] = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    return task


def after(folder: Path, tool: str, said: str, *, lease_ms: int = 30_000) -> dict[str, Any]:
    """The next process: what it reports."""
    with _spawn(folder, "2", COMPLETE, tool, said, lease_ms=lease_ms) as process:
        out, _ = process.communicate(timeout=180)
        assert process.returncode == 0
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    return report


@pytest.mark.parametrize("tool", ["bash", "read"])
def test_a_task_survives_kill_9_and_its_result_is_accepted_once(tmp_path: Path, tool: str) -> None:
    task = killed(tmp_path, tool, "")
    report = after(tmp_path, tool, f"{task['task_id']}==from the worker")
    ledger = ["done"] if tool == "bash" else []
    assert report == {"accepted": True, "results": ["from the worker"], "ledger": ledger, "asked": 1}


def test_a_worker_that_had_begun_reports_to_the_next_process_with_its_old_lease(tmp_path: Path) -> None:
    task = killed(tmp_path, "bash", "start")
    report = after(tmp_path, "bash", f"{task['task_id']}={task['token']}=deployed")
    assert report == {"accepted": True, "results": ["deployed"], "ledger": ["done"], "asked": 1}


def test_a_worker_that_had_begun_and_is_never_heard_of_leaves_an_unknown_that_nobody_repeats(tmp_path: Path) -> None:
    killed(tmp_path, "bash", "start", lease_ms=5_000)
    report = after(tmp_path, "bash", "", lease_ms=5_000)
    assert report["ledger"] == ["unknown"]
    assert report["asked"] == 1
    [result] = report["results"]
    assert "had begun" in result
    assert "may have had its effect" in result
