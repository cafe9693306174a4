"""An agent that has to ask: a yes with exactly these arguments, a no with a reason, and nobody who answers."""

import asyncio

from laneway import AsyncAgent, ConfirmationPolicy, PermissionPolicy, Sender, tool
from laneway.models import ScriptedModel, call, say


@tool(effect="write")
async def pay(to: str, euros: int) -> str:
    """Pay somebody."""
    return f"paid {euros} to {to}"


model = ScriptedModel([[call("pay", to=name, euros=9)] for name in ("ada", "bob", "eve")] + [[say("That was all.")]])
ada, olga = Sender(id="ada"), Sender(id="olga")


async def main() -> None:
    agent = AsyncAgent(
        model,
        tools=[pay],
        permission_policy=PermissionPolicy(ask=["pay"]),
        confirmation_policy=ConfirmationPolicy(default_timeout_ms=500, approvers=["olga"]),
    )
    async with agent, asyncio.timeout(10):
        session = agent.session()
        async for event in session.stream("Pay everybody"):
            if event.event_type == "confirmation_required":
                print(f"may I {event.tool_name} {event.args}? {event.reason}")
                print(f"  the run: {session.explain().partition(':')[2].split(' until')[0].strip()}")
                if event.args["to"] == "ada":
                    for sender in (ada, olga):  # as a chat would hand it in
                        print(f"  {sender.id}: {await session.command(f'/approve {event.approval_id}', sender=sender)}")
                elif event.args["to"] == "bob":  # as a button of yours would
                    [waiting] = await session.pending_confirmations()
                    no = {"approved": False, "reason": "not him", "args": waiting.args, "by": "olga"}
                    await session.confirm_tool_use(waiting.tool_id, **no)
            elif event.event_type in ("confirmation_warning", "confirmation_timeout"):
                print(f"  {event.event_type}: {event.remaining_ms or event.action_taken}")
            elif event.event_type == "tool_end":
                print(f"  {event.status}: {event.tool_output}")


asyncio.run(main())
