"""A run with a plan: the model makes one first, does it step by step, and finds that a step cannot be done."""

import asyncio
from typing import Any

from laneway import AsyncAgent, PermissionPolicy, tool
from laneway.models import ScriptedModel, call, plan, say


@tool(effect="read")
async def read_sources(module: str) -> str:
    """Read a module."""
    return f"{module} has no tests"


@tool(effect="write")
async def change(module: str) -> str:
    """Change a module."""
    return f"changed {module}"


SCRIPT: list[list[Any]] = [
    [
        plan(
            {"id": "ship", "content": "Release it", "depends_on": ["move"]},
            {"id": "look", "content": "Find out how auth works"},
            {"id": "move", "content": "Use tokens in auth", "depends_on": ["look"]},
            {"id": "test", "content": "Run the tests of auth", "depends_on": ["look"]},
            goal="auth with tokens",
        )
    ],
    [call("read_sources", module="auth")],
    [say("It has a session table.")],
    [call("change", module="auth")],
    [say("It uses tokens now.")],
    [call("update_plan", failed="it is Friday")],
    [say("They pass.")],
    [say("auth uses tokens, and its tests pass. It is not released: it is Friday.")],
]


async def main() -> None:
    policy = PermissionPolicy(allow=["change"])
    agent = AsyncAgent(ScriptedModel(SCRIPT), tools=[read_sources, change], permission_policy=policy)
    async with agent:
        stream = agent.session(planning=True).stream("Move auth to tokens and release it")
        async for event in stream:
            if event.event_type == "task_updated":
                done = sum(task["status"] == "completed" for task in event.tasks)
                print(f"{done} of {len(event.tasks)} done")
            elif event.event_type == "step_start":
                print(f"step {event.step_number}: {event.description}")
            elif event.event_type == "step_end":
                print(f"  {event.status}: {event.text}")
        print((await stream.result()).text)


asyncio.run(main())
