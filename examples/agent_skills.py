"""Skills: instructions in a folder, and the tools that an agent may use while it follows them."""

import asyncio
from pathlib import Path

from laneway import AsyncAgent, PermissionPolicy, tool
from laneway.models import ScriptedModel, call, say

SKILLS = Path(__file__).parent / "skills"


@tool(effect="read")
def merged() -> list[str]:
    """What was merged since the last release."""
    return ["a faster start", "fewer crashes"]


@tool
def publish(text: str) -> str:
    """Publish something."""
    return f"published {text!r}"


def script() -> ScriptedModel:
    return ScriptedModel(
        [
            [call("Skill", name="release-notes")],  # its result is the instructions
            [call("merged"), call("publish", text="2.0")],  # the skill allows the first one only
            [call("Skill", name="none"), call("publish", text="2.0")],  # what it may do without the skill
            [say("It starts faster and crashes less.")],
        ]
    )


async def main() -> None:
    policy = PermissionPolicy(allow=["Skill", "merged", "publish"])  # a skill allows nothing that this does not
    async with AsyncAgent(script(), tools=[merged, publish], permission_policy=policy, skill_dirs=[SKILLS]) as agent:
        session = agent.session()
        print(f"skills: {[skill.name for skill in session.skills_available()]}, broken: {session.skill_problems()}")
        async for event in session.stream("Write the release notes"):
            if event.event_type == "tool_end":
                print(f"{event.tool_name}, {event.status}: {event.tool_output.splitlines()[0]}")
            elif event.event_type == "end":
                print(event.text)


asyncio.run(main())
