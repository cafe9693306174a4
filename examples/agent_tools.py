"""Tools, and who may call them: reads side by side, a write that is denied, and the same write allowed."""

import asyncio

from laneway import AsyncAgent, PermissionPolicy, SessionQueueConfig, ToolContext, tool
from laneway.models import ScriptedModel, call, say

STOCK = {"apples": 3, "pears": 0}


@tool(lane="query", effect="read")  # neighbours in `query` run side by side
async def stock(fruit: str) -> int:
    """How many there are."""
    await asyncio.sleep(0.1)  # stands for a request
    return STOCK[fruit]


@tool(effect="write")  # which it is if you say nothing; it never runs twice by itself
async def order(fruit: str, boxes: int, context: ToolContext) -> str:
    """Order boxes of a fruit.

    Args:
        fruit: What to order.
        boxes: How many, at least one.
    """
    context.report(f"ordering {boxes} × {fruit} …")  # shown while it works
    return f"ordered {boxes} boxes of {fruit}"


def script() -> ScriptedModel:
    looks = [call("stock", fruit="apples"), call("stock", fruit="pears")]
    orders = [call("order", fruit="pears", boxes=2), call("order", fruit="pears", boxes="many")]
    return ScriptedModel([looks, orders, [say("I did what I could.")]])


async def show(title: str, policy: PermissionPolicy | None) -> None:
    print(title)
    async with AsyncAgent(script(), tools=[stock, order], queue_config=SessionQueueConfig()) as agent:
        session = agent.session(permission_policy=policy)
        async for event in session.stream("Refill what is missing"):
            if event.event_type == "tool_end":
                print(f"  {event.tool_name} in {event.duration_ms // 50 * 50} ms, {event.status}: {event.tool_output}")
        print(f"  the ledger: {[f'{entry.tool} {entry.state}' for entry in await session.ledger()]}")


async def main() -> None:
    await show("without a policy", None)
    await show("with one", PermissionPolicy(allow=["stock", "order"]))


asyncio.run(main())
