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
ANSWER = "nothing\u2028there\u2029at\x85all"  # line ends that end no line of a file
SCRIPT: list[Any] = [[call("ls")], [say(ANSWER)], [call("ls")], [say("still nothing")], [say("otherwise")]]


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
        again = await stage.run("run", "export", second, "-o", str(file))
        assert (again.exit_code, "exists already" in again.stderr) == (3, True), again.output
        assert (await stage.run("run", "export", first, "-o", str(file), "--overwrite")).exit_code == 0
        shown = await stage.run("run", "export", first)
        assert shown.stdout == file.read_text()
        stored = await stage.run("run", "export", first, "--store", stage.store)
        assert stored.stdout == shown.stdout
        assert (await stage.json("run", "replay", first))["text"] == ANSWER
        today = await stage.run("run", "replay", first, "--today")
        assert (today.exit_code, "would go the same way today" in today.stdout) == (0, True), today.output
        assert (await stage.json("run", "replay", first, "--today"))["same"] is True
        for words in ((str(file),), (first, "--steps"), (first, "--store", stage.store)):
            assert (await stage.run("run", "replay", *words, "--today")).exit_code == 2
        unforked = await stage.run("run", "fork", str(file))
        assert unforked.exit_code == 2
        assert "a fork goes on from a run that a server has" in " ".join(unforked.stderr.split())
        other = await stage.run("run", "diff", first, second)
        assert other.exit_code == 3
        assert "what was said to the model" in other.stdout
        assert f", {second} [" in " ".join(other.stdout.split())  # it said "now" of a run that is another one
        step = next(at for at, each in enumerate(replay.load(file).steps, 1) if each["op"] == "ask" and each["n"] == 2)
        forked = await stage.json("run", "fork", first, "--step", str(step), "--session", "mine")
        await stage.server.gateway.default.inbox.wait(forked["message_id"])
        shown = await stage.run("session", "show", "mine")
        assert f"It is a fork, and goes on from {first} at step {step}." in " ".join(shown.stdout.split())
        (heir,) = (await stage.json("run", "ls", "mine"))["items"]
        for more in ((), ("--store", stage.store)):
            source = (await stage.run("run", "show", first, *more)).stdout
            assert f"Run {first} of session s1 has succeeded" in source
            assert f"mine (at step {step})" in source
            assert f"{first}, at step {step}" in (await stage.run("run", "show", heir["run_id"], *more)).stdout
            assert (await stage.json("run", "show", second, *more))["forks"] == []
        await stage.server.gateway.default.inbox.wait(forked["message_id"])
        (found,) = (await stage.json("run", "ls", "mine"))["items"]
        assert found["answer"] == "otherwise"
        parted = await stage.run("run", "diff", first, found["run_id"])
        assert parted.exit_code == 3
        assert f"goes on from step {step} of {first}: up to there they are the same" in " ".join(parted.stdout.split())
        parted = await stage.run("run", "diff", first, found["run_id"], "--json")
        facts = json.loads(parted.stdout)["difference"]
        assert (facts["fork_step"], facts["other_step"] > 0) == (step, True)
        refused = await stage.run("run", "fork", first)
        assert refused.exit_code == 2
        assert "nothing to go on with" in refused.stderr
    await asyncio.to_thread(_offline, file, tmp_path)


def _offline(file: Path, folder: Path) -> None:
    """Without a server, and without a store."""
    again = run("run", "replay", str(file), "--steps")
    assert again.exit_code == 0, again.output
    assert "goes the same way" in again.stdout
    assert "The model is asked for an answer" in again.stdout
    assert run("run", "diff", str(file), str(file)).exit_code == 0
    agent = folder / "agent.yaml"
    agent.write_text(RECORDING.replace("brief", "long"))
    other = run("run", "replay", str(file), "--agent", str(agent))
    assert other.exit_code == 3, other.output
    assert "the system prompt is another one" in other.stderr
    assert "Be brief." in other.stdout
    assert "Be long." in other.stdout
    facts = json.loads(run("run", "replay", str(file), "--agent", str(agent), "--json").stdout)
    assert (facts["same"], "Be brief." in facts["recorded"], "Be long." in facts["now"]) == (False, True, True)
    upto = run("run", "replay", str(file), "--agent", str(agent), "--upto", "3", "--json")
    assert (upto.exit_code, json.loads(upto.stdout)["steps"]) == (0, 2), upto.output
    half = folder / "half.jsonl"
    half.write_text(file.read_text()[: file.stat().st_size // 2])
    refused = run("run", "replay", str(half))
    assert refused.exit_code == 2
    assert "is cut off" in refused.stderr


@pytest.mark.slow
async def test_a_run_would_go_another_way_with_the_prompts_of_today(tmp_path: Path) -> None:
    async with cli_stage(tmp_path, script=SCRIPT, text=RECORDING) as stage:
        first, _ = await ran(stage)
    async with cli_stage(tmp_path, script=SCRIPT, text=RECORDING.replace("brief", "long")) as stage:
        own = await stage.run("run", "replay", first)
        assert (own.exit_code, "goes the same way" in own.stdout) == (0, True), own.output
        found = await stage.run("run", "replay", first, "--today")
        assert found.exit_code == 3, found.output
        assert "the system prompt is another one" in found.stderr
        assert "Be brief." in found.stdout
        assert "Be long." in found.stdout
        facts = await stage.run("run", "replay", first, "--today", "--json")
        assert (facts.exit_code, json.loads(facts.stdout)["same"]) == (3, False)
