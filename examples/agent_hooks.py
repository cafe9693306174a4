"""Hooks: one stops a call, one changes it, one takes too long, one writes down what was done."""

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from laneway import AsyncAgent, PermissionPolicy, tool
from laneway.models import ScriptedModel, call, say

Event = Mapping[str, Any]
logging.getLogger("laneway").setLevel(logging.ERROR)  # a hook that fails is logged, too


@tool
def transfer(to: str, amount: int) -> str:
    """Transfer some money."""
    return f"{amount} to {to}"


async def small_sums_only(event: Event) -> dict[str, Any]:
    arguments = event["payload"]["args"]
    if arguments["amount"] > 1_000:
        return {"action": "block", "reason": "more than 1,000 needs a signature"}
    return {"action": "continue", "modified": {**arguments, "amount": min(arguments["amount"], 100)}}


async def ask_the_bank(event: Event) -> None:
    if event["payload"]["args"]["to"] == "carl":
        await asyncio.sleep(60)  # nobody answers


def audit(event: Event) -> None:
    payload = event["payload"]
    print(f"audit: {payload['tool']} {payload['result']['output']}, for {payload['principal']}")


async def main() -> None:
    sums = {"ada": 5_000, "bob": 700, "carl": 20}
    model = ScriptedModel([[call("transfer", to=to, amount=amount) for to, amount in sums.items()], [say("Done.")]])
    policy = PermissionPolicy(allow=["transfer"])
    async with AsyncAgent(model, tools=[transfer], permission_policy=policy, principal="olga") as agent:
        session = agent.session()
        session.register_hook("sums", "pre_tool_use", {"tool": "transfer"}, {"priority": 1}, small_sums_only)
        session.register_hook("bank", "pre_tool_use", {"tool": "transfer"}, {"timeout_ms": 200}, ask_the_bank)
        session.register_hook("audit", "post_tool_use", None, None, audit)
        async for event in session.stream("Pay everybody"):
            if event.event_type == "tool_end":
                print(f"{event.status}: {event.tool_output}")


asyncio.run(main())
