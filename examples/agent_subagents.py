"""An agent that hands work to sub-agents: two at once, and one that goes on while it answers."""

import asyncio
from collections.abc import Sequence

from laneway import AsyncAgent, PermissionPolicy, tool
from laneway.dialogue import ModelRequest, Prompt, Results
from laneway.models import ScriptedModel, call, say
from laneway.models.scripted import Piece


@tool(lane="query", effect="read")
async def read_chapter(number: int) -> str:
    """Read a chapter."""
    await asyncio.sleep(0.1)
    return f"chapter {number} is about {('roads', 'rails')[number % 2]}"


def answer(request: ModelRequest) -> Sequence[Piece]:
    """Play every session: what is said follows from the newest prompt, and from what has come of it."""
    said = request.conversation
    prompt = next(each.text for each in reversed(said) if isinstance(each, Prompt))
    results = [each.output for part in said if isinstance(part, Results) for each in part.results]
    done = isinstance(said[-1], Results)
    if prompt == "Tell me about the book":
        if done:
            return [say(f"In short:\n{results[0]}\nAn index will follow.")]
        chapters = [{"prompt": f"Sum up chapter {n}", "description": f"chapter {n}"} for n in (1, 2)]
        return [call("parallel_task", tasks=chapters), call("spawn", prompt="Make an index", description="the index")]
    if prompt.startswith("Sum up") and not done:
        return [call("read_chapter", number=int(prompt[-1]))]
    return [say(results[-1] if done else f"done: {prompt.splitlines()[-1]}")]


async def main() -> None:
    policy = PermissionPolicy(allow=["parallel_task", "spawn", "read_chapter"])
    async with AsyncAgent(ScriptedModel([answer] * 20), tools=[read_chapter], permission_policy=policy) as agent:
        session = agent.session(subagents=True)
        events = session.subscribe()
        print((await session.send("Tell me about the book")).text)
        await session.wait_idle()
        async for event in events:
            if event.event_type == "subagent_start":
                print(f"started: {event.description}")
            elif event.event_type == "subagent_end":
                print(f"{event.status}: {event.output}")
            elif event.event_type == "end" and event.text.startswith("done"):
                print(f"later: {event.text}")
                break
        print(sorted(each.description for each in session.subagents()))


asyncio.run(main())
