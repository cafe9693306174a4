"""What tests of sub-agents share: a model that plays every session, by the prompt it is asked about."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from laneway import Lanes
from laneway.dialogue import Answer, ModelRequest, Prompt
from laneway.models import ScriptedModel, call, say
from laneway.models.scripted import Piece
from tests.agent_stage import check_conversation, prompts, results

Part = Sequence[Piece]


class Cast:
    """Plays every session: each prompt has its answers in order, and `done <prompt>` when they are at their end."""

    def __init__(self, **parts: Sequence[Part]) -> None:
        self.parts: dict[str, Sequence[Part]] = dict(parts)
        self.held: dict[str, asyncio.Event] = {}  # prompts whose first answer waits
        self.asked: list[str] = []
        self.peak = 0  # of the slots that sub-agents held
        self.lanes: Lanes | None = None
        self.model = ScriptedModel([self] * 2_000)

    def hold(self, *texts: str) -> None:
        """Let the model wait with its answer to these."""
        self.held |= {text: asyncio.Event() for text in texts}

    def let_go(self, *texts: str) -> None:
        """Let it answer."""
        for text in texts or tuple(self.held):
            self.held[text].set()

    async def __call__(self, request: ModelRequest) -> Part:
        """The next answer to the newest prompt."""
        check_conversation(request)
        said = request.conversation
        newest = max(at for at, each in enumerate(said) if isinstance(each, Prompt))
        text = prompts(request)[-1]
        number = sum(isinstance(each, Answer) for each in said[newest:])
        self.asked.append(text)
        if self.lanes is not None:
            self.peak = max(self.peak, self.lanes.engine.kernel.registry.lanes["subagent"].held)
        if number == 0 and text in self.held:
            await self.held[text].wait()
        await asyncio.sleep(0)
        answers = self.parts.get(text, ())
        return answers[number] if number < len(answers) else [say(f"done {text}")]

    def said_to(self, text: str) -> list[str]:
        """The results that the model was told in the conversation with this prompt, newest request."""
        found = [request for request in self.model.requests if text in prompts(request)]
        return [each.output for each in results(found[-1])]


def notes(cast: Cast) -> list[str]:
    """The messages about ends of sub-agents that a model was told, each once."""
    return list(dict.fromkeys(text for text in cast.asked if "Sub-agent" in text))


def nested(depth: int) -> Cast:
    """Each hands its task on until the last one, which says so."""
    cast = Cast(go=[[call("task", prompt="level 1")]])
    for level in range(1, depth):
        cast.parts[f"level {level}"] = [[call("task", prompt=f"level {level + 1}")]]
    return cast
