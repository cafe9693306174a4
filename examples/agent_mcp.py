"""Tools of an MCP server: what they are called, what they may do, and a server that cannot be started."""

import asyncio
import logging
import sys
from pathlib import Path

from laneway import AsyncAgent, McpServerConfig, PermissionPolicy, SessionQueueConfig
from laneway.models import ScriptedModel, call, say

logging.getLogger("laneway").setLevel(logging.ERROR)  # the server that is not there is looked at below
NOTES = McpServerConfig(
    command=sys.executable,
    args=[str(Path(__file__).parent / "servers" / "notes.py")],
    lanes={"find": "query"},  # what nobody says anything about is a write in `execute`
    effects={"find": "read"},
    parallel=["find"],
    timeout_ms=10_000,
)
GONE = McpServerConfig(command="a-program-that-is-not-here")


def script() -> ScriptedModel:
    looks = [call("mcp__notes__find", title="boat"), call("mcp__notes__find", name="car")]
    return ScriptedModel([looks, [call("mcp__notes__remove", title="boat")], [say("That is all I can do.")]])


async def main() -> None:
    policy = PermissionPolicy(allow=["mcp__notes__find"])
    servers = {"notes": NOTES, "gone": GONE}
    async with AsyncAgent(
        script(), builtin_tools=False, mcp_servers=servers, permission_policy=policy, queue_config=SessionQueueConfig()
    ) as agent:
        async for event in agent.session().stream("Clean up"):
            if event.event_type == "tool_end":
                print(f"{event.tool_name}, {event.status}: {event.tool_output}")
        for name, status in agent.mcp_status().items():
            print(f"{name} is {status.state}, {status.tools} tools {status.error}")
    print(f"notes is {agent.mcp_status()['notes'].state}")


asyncio.run(main())
