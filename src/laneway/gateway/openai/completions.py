"""`POST /v1/chat/completions`: a question to an agent, and its answer at once or in pieces.

A whole answer is what the run has answered in the end. A stream also has what the agent says between its calls of
tools, as it says it, with an empty line between two rounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Request, Response
from pydantic import BaseModel

from laneway.agent.results import RunResult
from laneway.errors import LanewayError
from laneway.gateway.deps import CallerOf, GatewayOf
from laneway.gateway.openai.asking import Asked, Beat, Piece, ask
from laneway.gateway.openai.errors import ERRORS, OpenAIRoute, error_of, json_bytes
from laneway.gateway.openai.models import named
from laneway.gateway.openai.requests import ChatRequest, check_chat, ignored
from laneway.gateway.openai.streaming import EVENT_STREAM, PieceResponse
from laneway.gateway.openai.translation import compose, said_in_chat
from laneway.gateway.problems import place_of

__all__ = ("SESSION_HEADER", "STREAM", "router")

router = APIRouter(tags=["openai"], route_class=OpenAIRoute, responses=ERRORS)

STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer; a stream of events if `stream` is true.",
        "content": {EVENT_STREAM: {"schema": {"type": "string"}}},
    }
}
SESSION_HEADER = Header(alias="Laneway-Session", description="The key of the session; goes before the body's.")
GONE = 499  # what servers note for a client that has gone; nobody reads it


class CompletionUsage(BaseModel):
    """What the run took."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionMessage(BaseModel):
    """What the agent says."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class Choice(BaseModel):
    """The one answer."""

    index: int = 0
    message: CompletionMessage
    finish_reason: Literal["stop"] = "stop"
    logprobs: None = None


class ChatCompletion(BaseModel):
    """An answer of an agent."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[Choice]
    usage: CompletionUsage


def usage_of(result: RunResult) -> CompletionUsage:
    """What a run took, in OpenAI's words."""
    return CompletionUsage(
        prompt_tokens=result.prompt_tokens,
        completion_tokens=result.completion_tokens,
        total_tokens=result.total_tokens,
    )


@router.post(
    "/chat/completions",
    summary="Ask an agent, in the shape of a chat completion",
    response_model=ChatCompletion,
    responses=STREAM,
    operation_id="openai_chat_completion",
)
async def complete(
    body: ChatRequest,
    request: Request,
    gateway: GatewayOf,
    caller: CallerOf,
    session: Annotated[str | None, SESSION_HEADER] = None,
) -> Response:
    """With a session key (`Laneway-Session`, or `user`) the newest message goes to that session; else to a new one."""
    check_chat(body)
    workspace = named(gateway, body.model)
    key = session or body.user or None
    told = said_in_chat(body.messages)
    said = compose(told, in_session=key is not None, param="messages")
    asked = await ask(request, gateway, workspace, caller, key=key, said=said)
    facts: dict[str, Any] = {
        "id": f"chatcmpl-{asked.message_id}",
        "created": gateway.env.clock.wall_ms() // 1000,
        "model": body.model,
    }
    unheard = key is not None and any(each.role == "system" for each in told)  # a session has those of its agent
    headers = asked.headers([*ignored(body), *(["messages.system"] if unheard else [])])
    if body.stream:
        with_usage = bool(body.stream_options and body.stream_options.include_usage)
        stream = _chunks(asked, facts, with_usage=with_usage)
        return PieceResponse(stream, headers)
    result = await asked.answered(request)
    if result is None:
        return Response(status_code=GONE)
    choice = Choice(message=CompletionMessage(content=result.text))
    completion = ChatCompletion(choices=[choice], usage=usage_of(result), **facts)
    return Response(json_bytes(completion.model_dump()), headers=headers, media_type="application/json")


async def _chunks(asked: Asked, facts: dict[str, Any], *, with_usage: bool) -> AsyncGenerator[bytes]:
    last = {"usage": None} if with_usage else {}

    def chunk(delta: dict[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        return _event({**facts, "object": "chat.completion.chunk", "choices": [choice], **last})

    with asked.retries.serving(asked.print, asked.key, asked.message_id) as delivery:
        yield chunk({"role": "assistant", "content": ""})
        index = 0
        try:
            async with contextlib.aclosing(asked.told()) as told:
                async for each in told:
                    match each:
                        case Beat(comment=comment):
                            yield f": {comment}\n\n".encode()
                        case Piece():
                            text = each.text if each.index == index else f"\n\n{each.text}"
                            index = each.index
                            yield chunk({"content": text})
                        case RunResult():
                            yield chunk({}, "stop")
                            if with_usage:
                                usage = usage_of(each).model_dump()
                                final = {"object": "chat.completion.chunk", "choices": [], "usage": usage}
                                yield _event({**facts, **final})
                            yield b"data: [DONE]\n\n"
        except LanewayError as error:
            yield _event({"error": error_of(error, place_of(asked.gateway.store))})
        delivery.done()


def _event(body: dict[str, Any]) -> bytes:
    return b"data: " + json_bytes(body) + b"\n\n"
