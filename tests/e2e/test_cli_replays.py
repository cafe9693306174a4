"""`laneway run export|replay|diff|fork`, from a server, from its store, and from files."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from laneway import replay
from laneway.models import call, say
from tests.cli_stage import CliStage, cli_stage, run

RECORDING = """
default_model: scripted
system: Be brief.
record: true
permissions:
  allow: ["*"]
"""
SCRIPT: list[Any] = [[call("ls")], [say("nothing there")], [call("ls")], [say("still nothing")], [say("otherwise")]]


async def ran(stage: CliStage) -> list[str]:
    """Two runs."""
    for text in ("look", "again"):
        sent = await stage.run("send", "s1", text, "--wait")
        assert sent.exit_code == 0, sent.output
    found = await stage.json("run", "ls", "s1")
    return [each["run_id"] for each in found["items"]]


@pytest.mark.slow
async def test_runs_are_exported_replayed_compared_and_forked(tmp_path: Path) -> None:
    async with cli_stage(tmp_path, script=SCRIPT, text=RECORDING) as stage:
        first, second = await ran(stage)
        file = tmp_path / "run.jsonl"
        told = await stage.run("run", "export", first, "-o", str(file))
        assert told.exit_code == 0, told.output
        shown = await stage.run("run", "export", first)
        assert shown.stdout == file.read_text()
        stored = await stage.run("run", "export", first, "--store", stage.store)
        assert stored.stdout == shown.stdout
        assert (await stage.json("run", "replay", first))["text"] == "nothing there"
        other = await stage.run("run", "diff", first, second)
        assert other.exit_code == 3
        assert "what was said to the model" in other.stdout
        step = next(at for at, each in enumerate(replay.load(file).steps, 1) if each["op"] == "ask" and each["n"] == 2)
        forked = await stage.json("run", "fork", first, "--step", str(step), "--session", "mine")
        await stage.server.gateway.default.inbox.wait(forked["message_id"])
        (found,) = (await stage.json("run", "ls", "mine"))["items"]
        assert found["answer"] == "otherwise"
        refused = await stage.run("run", "fork", first)
        assert refused.exit_code == 2
        assert "nothing to go on with" in refused.stderr
    await asyncio.to_thread(_offline, file, tmp_path)


def _offline(file: Path, folder: Path) -> None:
    """Without a server, and without a store."""
    again = run("run", "replay", str(file), "--steps")
    assert again.exit_code == 0, again.output
    assert "goes the same way" in again.stdout
    assert run("run", "diff", str(file), str(file)).exit_code == 0
    agent = folder / "agent.yaml"
    agent.write_text(RECORDING.replace("brief", "long"))
    other = run("run", "replay", str(file), "--agent", str(agent))
    assert other.exit_code == 3, other.output
    assert "the system prompt is another one" in other.stderr
    facts = run("run", "replay", str(file), "--agent", str(agent), "--json")
    assert json.loads(facts.stdout)["same"] is False
    half = folder / "half.jsonl"
    half.write_text(file.read_text()[: file.stat().st_size // 2])
    refused = run("run", "replay", str(half))
    assert refused.exit_code == 2
    assert "is cut off" in refused.stderr
