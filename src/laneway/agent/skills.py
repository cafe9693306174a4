"""Skills: folders with instructions for the agent, and the tools that are allowed while one is followed."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laneway.agent.gates import Asked

__all__ = ("Skills",)


class Skills:
    """The skills of one session."""

    def refusal(self, asked: Asked) -> str:
        """Why the skill that is being followed does not allow a call; empty if it does."""
        return ""

    def system_text(self) -> str:
        """What the model is told about skills."""
        return ""
