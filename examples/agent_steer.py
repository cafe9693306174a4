"""Talk to an agent while it works: steer it, and see which calls were not made because of that."""

import asyncio
from typing import Any

from laneway import AsyncAgent, ModelRequest, tool
from laneway.models import ScriptedModel, call, say


@tool(effect="read")
async def look(where: str) -> str:
    """Look somewhere."""
    await asyncio.sleep(0.2)  # stands for a search
    return f"nothing in {where}"


def answer(request: ModelRequest) -> list[Any]:
    """A script may look at what the model is sent."""
    heard = [line for line in str(request).splitlines() if line.startswith("user: ")]
    return [say(f"I heard {len(heard)} things, the last one is {heard[-1].removeprefix('user: ')!r}.")]


async def main() -> None:
    places = ("the attic", "the cellar", "the garden", "the car")
    model = ScriptedModel([[say("I look everywhere."), *(call("look", where=place) for place in places)], answer])
    async with AsyncAgent(model, tools=[look]) as agent:
        session = agent.session()
        stream = session.stream("Where is my key?")
        async for event in stream:
            if event.event_type == "tool_start":
                print(f"looks in {event.args['where']}")
                if "cellar" in event.args["where"]:
                    await session.steer("I have found it!")
            elif event.event_type == "tool_end" and event.status != "ok":
                print(f"{event.status}: {event.tool_output}")
            elif event.event_type == "steered":
                print(f"heard {event.text!r}; {len(event.skipped)} calls were not made")
        print((await stream.result()).text)


asyncio.run(main())
