"""What clients send in OpenAI's shapes, and which of it means something here.

Fields that change what is asked for and that no agent can honour are refused. Fields that only tune a model are left
to the settings of the agent: they are ignored, and named in the header `Laneway-Ignored`.
"""

from __future__ import annotations

import re
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt

from laneway.errors import InvalidMessageError

__all__ = ("ChatMessage", "ChatRequest", "ResponseRequest", "StreamOptions", "check_chat", "check_response", "ignored")

MESSAGES_MAX: Final = 10_000
IGNORED_MAX: Final = 30
FIELD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}", re.ASCII)


class ChatMessage(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = Field(None, description="Text, or parts: text, images, files.")


class StreamOptions(BaseModel):
    """What a stream tells beside the text."""

    model_config = ConfigDict(extra="allow")

    include_usage: StrictBool | None = Field(
        None, description="Whether the last chunk of a chat completion says the usage."
    )


class ChatRequest(BaseModel):
    """A chat completion that is asked for."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={"examples": [{"model": "laneway", "messages": [{"role": "user", "content": "Hello"}]}]},
    )

    model: str = Field(description="`laneway`, or `laneway/<workspace>`.")
    messages: list[ChatMessage] = Field(min_length=1, max_length=MESSAGES_MAX)
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(None, description="The key of a session.")
    n: StrictInt | None = None
    tools: list[Any] | None = None
    functions: list[Any] | None = None
    logprobs: StrictBool | None = None
    top_logprobs: StrictInt | None = None
    response_format: dict[str, Any] | None = None
    modalities: list[Any] | None = None
    audio: dict[str, Any] | None = None


class ResponseRequest(BaseModel):
    """A response that is asked for."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={"examples": [{"model": "laneway", "input": "Hello"}]},
    )

    model: str | None = Field(None, description="`laneway`, or `laneway/<workspace>`.")
    input: str | list[dict[str, Any]] = Field(description="What is said: text, or a list of items.")
    instructions: str | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    background: StrictBool | None = None
    store: StrictBool | None = Field(None, description="Taken, and without effect: what is said is always kept.")
    previous_response_id: str | None = Field(None, description="Goes on in the session of that response.")
    conversation: str | dict[str, Any] | None = Field(None, description="The key of a session.")
    user: str | None = Field(None, description="The key of a session.")
    tools: list[Any] | None = None
    text: dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    top_logprobs: StrictInt | None = None


USED: Final = {
    ChatRequest: frozenset({"model", "messages", "stream", "stream_options", "user"}),
    ResponseRequest: frozenset(
        {"model", "input", "instructions", "stream", "stream_options", "background", "store", "user"}
        | {"previous_response_id", "conversation"}
    ),
}
OWN_TOOLS: Final = "an agent has tools of its own: leave this out, and configure them in its workspace"


def _refuse(message: str, param: str, hint: str = "") -> InvalidMessageError:
    return InvalidMessageError(message, hint=hint, param=param)


def _check_shared(body: ChatRequest | ResponseRequest) -> None:
    if body.tools:
        raise _refuse("tools of a request are not called here", "tools", OWN_TOOLS)
    if body.top_logprobs:
        raise _refuse("an agent tells no log probabilities", "top_logprobs", "leave it out")


def _check_format(value: Any, param: str) -> None:
    kind = value.get("type", "text") if isinstance(value, dict) else "text"
    if kind != "text":
        raise _refuse(f"an agent answers with text, not with {kind!r}", param, "ask for JSON in the message")


def check_chat(body: ChatRequest) -> None:
    """Refuse what a chat completion of an agent cannot be."""
    _check_shared(body)
    if body.functions:
        raise _refuse("functions of a request are not called here", "functions", OWN_TOOLS)
    if body.n is not None and body.n != 1:
        raise _refuse(f"there is one answer, not {body.n}", "n", "ask several times, in several sessions")
    if body.logprobs:
        raise _refuse("an agent tells no log probabilities", "logprobs", "leave it out")
    if body.audio or "audio" in (body.modalities or ()):
        raise _refuse("an agent answers with text", "modalities", "leave out audio")
    _check_format(body.response_format, "response_format")


def check_response(body: ResponseRequest) -> None:
    """Refuse what a response of an agent cannot be."""
    _check_shared(body)
    if body.prompt:
        raise _refuse("there are no stored prompts here", "prompt", "say it in `input`")
    if body.previous_response_id and body.conversation:
        raise _refuse("`previous_response_id` and `conversation` both name a session", "conversation", "give one")
    _check_format((body.text or {}).get("format"), "text.format")


def ignored(body: ChatRequest | ResponseRequest) -> list[str]:
    """The fields that were given and have no effect."""
    given = [name for name in body.model_fields_set if _is_said(getattr(body, name, None))]
    given += [name for name, value in (body.model_extra or {}).items() if _is_said(value) and name not in given]
    unused = {name for name in given if name not in USED[type(body)] and FIELD.fullmatch(name)}
    return sorted(unused)[:IGNORED_MAX]


def _is_said(value: Any) -> bool:
    return value is not None and value != [] and value != {}
