"""What `laneway chat` answers by itself: the list of commands, and a command that is mistyped."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Final

__all__ = ("Words",)

COMMANDS: Final = {
    "/status": "how the session is",
    "/queue": "how messages wait here; /queue steer, /queue cap:5 change it, /queue list and /queue clear, too",
    "/steer": "TEXT goes into the run that is going on",
    "/followup": "TEXT runs after it",
    "/stop": "end everything of this session",
    "/new": "begin a new conversation",
    "/compact": "shorten the conversation",
    "/approve": "ID allows what a run asks for",
    "/deny": "ID refuses it; what you write behind it is told to the agent",
    "/help": "this list",
    "/quit": "leave; what runs goes on",
}
WORD: Final = re.compile(r"\s*(/[A-Za-z]+)(?=\s|@|[.!?]*\s*\Z)")


class Words:
    """Looks at what was typed. A command that nobody knows is held back once: typed again, it is a message."""

    def __init__(self) -> None:
        self._held = ""

    def answer(self, text: str) -> str:
        """What to say instead of sending it; empty for what is to be sent."""
        held, self._held = self._held, ""
        found = WORD.match(text)
        if found is None:
            return ""
        word = found[1].casefold()
        if word == "/help":
            return "\n".join(f"{name:<10} {says}" for name, says in COMMANDS.items())
        near = get_close_matches(word, COMMANDS, n=1, cutoff=0.7)
        if word in COMMANDS or not near or held == text:
            return ""
        self._held = text
        return f"There is no command {word}; did you mean {near[0]}? Send it again to say it to the agent."
