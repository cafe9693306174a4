"""One life of a process whose agent has to be approved: `python approval_life.py FOLDER [approve|deny ID]`.

The first life asks, says the id of its request, and waits to be killed. A later one goes on by itself and answers the
request by its old id. Every payment is a line in a file outside of the process.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from laneway import AsyncAgent, ConfirmationPolicy, FileSessionStore, PermissionPolicy, tool
from laneway.models import ScriptedModel, call, say

FOLDER = Path(sys.argv[1])


@tool(effect="write")
def pay(to: str, cents: int) -> str:
    """Pay somebody."""
    with (FOLDER / "payments").open("a", encoding="utf-8") as file:
        file.write(f"{to} {cents}\n")
    return f"paid {cents} to {to}"


def tell(*what: object) -> None:
    """One line for whoever started this."""
    sys.stdout.write(" ".join(map(str, what)) + "\n")
    sys.stdout.flush()


async def main() -> None:
    """Ask, or go on and answer."""
    answer = sys.argv[2:]
    wants = [] if answer else [[call("pay", to="ada", cents=700)]]  # what was asked for is in the store
    agent = AsyncAgent(
        ScriptedModel([*wants, [say("the end")]]),
        tools=[pay],
        session_store=FileSessionStore(str(FOLDER / "sessions")),
        permission_policy=PermissionPolicy(ask=["pay"]),
        confirmation_policy=ConfirmationPolicy(default_timeout_ms=60_000),
    )
    async with agent:
        session = agent.session(str(FOLDER), session_id="chat")
        events = session.subscribe()
        await session.ready()
        if not answer:
            await session.followup("pay ada")
        async for event in events:
            if event.event_type == "confirmation_required":
                tell(event.approval_id, event.args)
                if answer:
                    tell(await session.command(f"/{answer[0]} {answer[1]}"))
            elif event.event_type == "end":
                tell(event.text)
                break
        results = [result.output for said in await session.history() for result in getattr(said, "results", ())]
        tell(results, await session.pending_confirmations())


asyncio.run(main())
