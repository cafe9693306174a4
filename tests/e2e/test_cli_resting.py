"""Sessions at rest on the command line: every list says so, and what brings them back."""

from __future__ import annotations

from pathlib import Path

import pytest

from laneway.gateway.access import LOCAL
from laneway.models import say
from tests.agent_stage import Held
from tests.cli_stage import cli_stage

pytestmark = pytest.mark.slow

RESTS = "its session rests: a message, an answer, the result of a task or a restart brings it back"


async def test_a_session_at_rest_is_said_to_rest_and_what_brings_it_back(tmp_path: Path) -> None:
    held = Held(say("never"))
    async with cli_stage(tmp_path, script=[held]) as cli:
        gateway = cli.server.gateway
        await gateway.submit(gateway.default, LOCAL, "carol", "go")
        await held.asked.wait()
        left = await cli.run("session", "passivate", "carol", "--deadline-ms", "5")
        assert f"Session carol has left memory: {RESTS}." in left.stdout
        assert "rests" in (await cli.run("session", "ls")).stdout
        shown = (await cli.run("session", "show", "carol")).stdout
        assert ": rests" in shown
        assert RESTS in shown
        runs = await cli.run("run", "ls")
        assert "1 session rests with work undone" in runs.stderr
        assert RESTS in (await cli.run("queue", "ls", "carol")).stdout
