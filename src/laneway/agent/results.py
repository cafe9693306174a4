"""What callers of a session get: the result of a run, and what is known about runs."""

from __future__ import annotations

from dataclasses import dataclass

from laneway.mail import MessageState

__all__ = ("RunInfo", "RunResult")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What a run has answered to a message, and what it took."""

    text: str
    run_id: str = ""
    message_id: str = ""
    disposition: MessageState = MessageState.RAN
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    tool_calls_count: int = 0
    rounds: int = 0

    @property
    def total_tokens(self) -> int:
        """What went in and what came out."""
        return self.prompt_tokens + self.completion_tokens

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """What is known about a run. `state` is that of its turn; `tools` are the calls that run at this moment."""

    run_id: str
    state: str
    prompt: str = ""
    answer: str = ""
    reason: str = ""
    rounds: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float | None = None
    resumed_from: str = ""
    messages: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    began_ms: int = 0
