"""An agent with one tool and a scripted model: it needs no key and no network. Run: python examples/agent_hello.py"""

import asyncio

from laneway import AsyncAgent, tool
from laneway.models import ScriptedModel, call, say


@tool(effect="read")  # reads may run; anything else is denied until a PermissionPolicy allows it
def weather(city: str) -> str:
    """Tell the weather in a city."""
    return f"sunny in {city}"


async def main() -> None:
    model = ScriptedModel([[call("weather", city="Rome")], [say("Take a hat: it is sunny in Rome.")]])
    async with AsyncAgent(model, tools=[weather]) as agent:
        result = await agent.session().send("What should I wear in Rome?")
        print(f"{result.text} ({result.rounds} rounds, {result.tool_calls_count} call)")


asyncio.run(main())
