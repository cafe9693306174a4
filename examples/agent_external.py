"""Calls that somebody else makes: a host that polls, a worker, a worker that dies, and this process again."""

import asyncio
from typing import Any

from laneway import AsyncAgent, ExternalTask, LocalTransport, PermissionPolicy, SessionQueueConfig, Worker
from laneway.models import ScriptedModel, call, say

BUILD: list[list[Any]] = [[call("bash", command="echo built")], [say("Well.")]]


async def container(task: ExternalTask) -> str:
    return f"{task.command_type} ran {task.payload['command']!r} in a container, attempt {task.attempt}"


async def main() -> None:
    model = ScriptedModel(BUILD * 4)
    policy = PermissionPolicy(allow=["bash(echo *)"])
    effects = {"bash": "idempotent"}  # to do it twice does no harm
    queue = SessionQueueConfig()
    async with AsyncAgent(model, permission_policy=policy, tool_effects=effects, queue_config=queue) as agent:
        session = agent.session()
        await session.set_lane_handler("execute", mode="external", timeout_ms=60_000, lease_ms=200)

        async for event in session.stream("Build it: the host polls"):
            if event.event_type == "external_task_pending":
                for task in await session.pending_external_tasks():
                    print(f"{task['command_type']} {task['payload']} in {task['lane']}, attempt {task['attempt']}")
                    await session.complete_external_task(task["task_id"], success=False, error="no compiler here")
            elif event.event_type == "tool_end":
                print(f"  {event.status}: {event.tool_output}")

        transport = LocalTransport(await session.desk())
        async with Worker(transport, handlers={"bash": container}, name="box"):
            await session.send("Build it: a worker takes it")
            print((await session.history())[-2])

        answer = asyncio.create_task(session.send("Build it: the first worker dies"))
        [lease] = await transport.claim("doomed", wait_ms=5_000)
        await transport.start(lease.task.task_id, lease.token)  # and nothing is heard of it any more
        async with Worker(transport, handlers={"bash": container}, name="box"):
            await answer
            print((await session.history())[-2])

        await session.set_lane_handler("execute", mode="internal")
        await session.send("Build it: here")
        print((await session.history())[-2])
        print([(entry.tool, entry.state.value) for entry in await session.ledger()])


asyncio.run(main())
