"""A tool that an agent of a gateway knows from an MCP server, and whose calls a worker makes."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pytest

from laneway import ExternalTask, HttpTransport, Worker
from laneway.models import ScriptedModel, call, say
from tests.gateway_stage import serving

pytestmark = pytest.mark.slow

SERVER = Path(__file__).with_name("mcp_server.py")
AGENT = f"""
default_model: scripted
permissions: {{allow: ["mcp__jobs__*"]}}
mcp_servers:
  jobs: {{command: {json.dumps(sys.executable)}, args: [{json.dumps(str(SERVER))}], tools: [echo], lane: generate}}
queue:
  lane_handlers:
    generate: {{mode: external, labels: [gpu]}}
"""


async def test_a_tool_of_an_mcp_server_is_made_by_the_worker_that_has_a_handler_for_it(tmp_path: Path) -> None:
    seen: list[ExternalTask] = []
    worker = Worker(labels=["gpu"], name="w1")

    @worker.handler("mcp__jobs__echo")
    async def train(task: ExternalTask) -> str:
        seen.append(task)
        return f"trained on {task.payload['text']}"

    script = [[call("mcp__jobs__echo", text="birds")], [say("Well.")]]
    async with serving(tmp_path, script=script, text=AGENT) as stage:
        secret = (await stage.token("worker"))["Authorization"].removeprefix("Bearer ")
        transport = HttpTransport(stage.url, token=secret)
        worker.connect(transport)
        async with worker, asyncio.timeout(60):
            await stage.send("s1", "Train it")
        await transport.close()
        model = stage.gateway.default.spec.model
        assert isinstance(model, ScriptedModel)
        assert "trained on birds" in str(model.requests[-1])
    (task,) = seen
    assert (task.command_type, task.lane, task.labels) == ("mcp__jobs__echo", "generate", ["gpu"])
