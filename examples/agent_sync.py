"""Agents without asyncio: the same names, plain calls, from any thread."""

import threading
import time

from laneway import Agent, tool
from laneway.models import ScriptedModel, call, say


@tool(effect="read")
def search(topic: str) -> str:
    """Search for a topic."""
    time.sleep(0.2)  # blocking is fine: it runs on a thread
    return f"3 pages about {topic}"


def main() -> None:
    model = ScriptedModel([[call("search", topic="rivers")], [say("Three pages.")], [say("Short: three.")], [say("!")]])
    with Agent(model, tools=[search]) as agent:
        session = agent.session()
        for event in session.stream("Find something about rivers"):  # it is sent before the first event is read
            if event.event_type in ("tool_start", "tool_end", "end"):
                print(f"{event.event_type}: {event.tool_output or event.text or event.tool_name}")
        print(session.send("Shorter, please"))

        answers: list[str] = []
        thread = threading.Thread(target=lambda: answers.append(session.send("And from a thread?").text))
        thread.start()
        thread.join()
        print(answers, [run.state for run in session.runs()])


main()
