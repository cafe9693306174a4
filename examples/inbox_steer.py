"""Say something while the agent is at work: it finishes its step, drops the rest of its plan and follows you."""

from __future__ import annotations

import asyncio

from laneway import Inbox, Turn

PLANS = {
    "tidy up": ["read files", "delete old files", "delete logs", "empty the bin"],
    "only list them": ["list files"],
}


async def agent(turn: Turn) -> str:
    """Stands for a model with tools: a plan is what it asked for, a boundary is before each call."""
    plan, done = list(PLANS[turn.prompt]), []
    while plan:
        call = plan.pop(0)
        await asyncio.sleep(0.1)  # the tool runs
        done.append(call)
        print(f"  {call}: done")
        for message in await turn.boundary():
            for skipped, result in turn.skipped(plan):
                print(f"  {skipped}: {result}")  # the model has to see a result for every call it made
            plan = list(PLANS[message.text])
    return f"I did: {', '.join(done)}"


async def main() -> None:
    async with Inbox(agent, mode="steer") as inbox:
        first = await inbox.submit("chat", "tidy up", sender="ada")
        await asyncio.sleep(0.05)
        print("  ada: only list them")
        second = await inbox.submit("chat", "only list them", sender="ada")
        print(f"  it is {second.disposition}: {second.reason}")
        final = await inbox.wait(second.message_id)
        print(f"{final.answer} ({final.disposition}, {final.outcome})")
        assert final.turn_id == (await inbox.wait(first.message_id)).turn_id
        print(await inbox.explain(second.message_id))


if __name__ == "__main__":
    asyncio.run(main())
