"""A response as an object: the same from a stream, at once, and after a restart. Pure."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from laneway.agent.results import RunResult
from laneway.mail import WAITING_STATES, Final, MessageState, Outcome

__all__ = ("ItemStatus", "ResponseObject", "Status", "message_item", "response_object", "status_of", "text_part")

Status = Literal["queued", "in_progress", "completed", "failed", "cancelled", "incomplete"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class ResponseObject(BaseModel):
    """What became of a message, as a response."""

    model_config = ConfigDict(extra="allow")

    id: str
    object: Literal["response"]
    created_at: int
    status: Status
    model: str
    background: bool
    conversation: dict[str, str]
    error: dict[str, Any] | None
    output: list[dict[str, Any]]
    usage: dict[str, Any] | None


def status_of(end: Final) -> Status:
    """Where a response is, by where its message is."""
    if end.disposition in WAITING_STATES:
        return "queued"
    if not end.disposition.is_final:
        return "in_progress"
    if end.disposition is MessageState.COMMAND or end.outcome is Outcome.SUCCEEDED:
        return "completed"
    if end.disposition is MessageState.WITHDRAWN or end.outcome is Outcome.INTERRUPTED:
        return "cancelled"
    return "incomplete" if end.outcome is Outcome.UNKNOWN else "failed"


def text_part(text: str) -> dict[str, Any]:
    """The content of a message: its text."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def message_item(
    message_id: str, index: int, text: str | None, count: int = 0, *, status: ItemStatus = "completed"
) -> dict[str, Any]:
    """What was said in one round; `count` is how many there are, if that is known: the last one is the answer."""
    item: dict[str, Any] = {
        "id": f"{message_id}_{index}",
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": [] if text is None else [text_part(text)],
    }
    if count:
        item["phase"] = "final_answer" if index == count - 1 else "commentary"
    return item


def response_object(
    *,
    status: Status,
    response_id: str,
    created_at: int,
    model: str,
    session: str,
    background: bool = False,
    previous: str | None = None,
    output: list[dict[str, Any]] | None = None,
    result: RunResult | None = None,
    error: str = "",
) -> dict[str, Any]:
    """A response."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "status": status,
        "model": model,
        "background": background,
        "conversation": {"id": session},
        "error": {"code": "server_error", "message": error} if error else None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "output": output or [],
        "parallel_tool_calls": True,
        "previous_response_id": previous,
        "store": True,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "usage": None if result is None else _usage(result),
    }


def _usage(result: RunResult) -> dict[str, Any]:
    return {
        "input_tokens": result.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": result.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": result.total_tokens,
    }
