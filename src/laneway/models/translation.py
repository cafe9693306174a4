"""Our conversation in the words of pydantic-ai's model layer, and its answers in ours.

What a provider wants back with an answer (signatures of reasoning, ids of items) is kept in `Answer.opaque` beside the
text, not with it: a layout of the answer's parts, each with its length, so that nothing is stored twice.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, assert_never

from pydantic_ai.messages import (
    BinaryContent,
    DocumentUrl,
    ImageUrl,
    InstructionPart,
    ModelMessage,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
    ToolCallPartDelta,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.messages import ModelRequest as ProviderRequest
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from laneway.dialogue import (
    Answer,
    CallChunk,
    Chunk,
    ModelRequest,
    Prompt,
    ReasoningChunk,
    Results,
    ResultStatus,
    TextChunk,
    ToolCall,
    ToolResult,
    Usage,
    Utterance,
    compact_json,
)

__all__ = ("Reply", "messages_of", "parameters_of")

LAYOUT_VERSION: Final = 1
EXTRAS: Final = ("id", "signature", "provider_name", "provider_details")
ORIGIN: Final = ("provider_name", "provider_url", "canonical_system", "model_name", "provider_response_id")


def parameters_of(request: ModelRequest) -> ModelRequestParameters:
    """The tools and the system text of a request."""
    tools = [
        ToolDefinition(name=each.name, description=each.description, parameters_json_schema=dict(each.parameters))
        for each in request.tools
    ]
    instructions = [InstructionPart(content=request.system)] if request.system else None
    return ModelRequestParameters(function_tools=tools, instruction_parts=instructions)


def messages_of(request: ModelRequest) -> list[ModelMessage]:
    """The conversation as messages: what comes between two answers is one message."""
    messages: list[ModelMessage] = []
    parts: list[ModelRequestPart] = []
    for said in request.conversation:
        if not isinstance(said, Answer):
            parts.extend(_told(said))
        elif (response := _response_of(said)) is not None:
            if parts:
                messages.append(ProviderRequest(parts=parts))
            parts = []
            messages.append(response)
    # A model is always asked by the user: an answer at the end would be one to go on with.
    messages.append(ProviderRequest(parts=parts, instructions=request.system or None))
    return messages


def _told(said: Prompt | Results) -> Iterable[ModelRequestPart]:
    match said:
        case Results(results=results):
            return [_result_part(each) for each in results]
        case Prompt(role="system", text=text):
            return [SystemPromptPart(content=text)]
        case Prompt(text=text, attachments=attachments):
            content: list[UserContent] = [text, *map(_content_of, attachments)]
            return [UserPromptPart(content=content if attachments else text)]
        case _:
            assert_never(said)


def _result_part(result: ToolResult) -> ToolReturnPart:
    plain = result.status in (ResultStatus.OK, ResultStatus.ERROR, ResultStatus.BACKGROUND)
    output = result.output if plain else f"[{result.status}] {result.output}"
    outcome: Any = "failed" if result.is_error else "success"
    return ToolReturnPart(tool_name=result.name, content=output, tool_call_id=result.call_id, outcome=outcome)


def _content_of(attachment: Any) -> UserContent:
    """An attachment: `{"url"}` or `{"base64", "media_type"}` is a file, anything else is shown as JSON."""
    match attachment:
        case str():
            return attachment
        case {"base64": str(encoded), "media_type": str(media_type)}:
            try:
                return BinaryContent(data=base64.b64decode(encoded, validate=True), media_type=media_type)
            except (binascii.Error, ValueError):
                return f"[an attachment of type {media_type} that cannot be read]"
        case {"url": str(url), "media_type": str(media_type)} if not media_type.startswith("image/"):
            return DocumentUrl(url=url, media_type=media_type)
        case {"url": str(url)}:
            return ImageUrl(url=url)
        case _:
            return compact_json(attachment)


# --- answers that were given before -----------------------------------------------------------------------------------


def _response_of(answer: Answer) -> ModelResponse | None:
    """An answer as its provider gave it, or as plain text and calls; None when there is nothing in it."""
    layout = answer.opaque if isinstance(answer.opaque, Mapping) else {}
    parts: list[ModelResponsePart] = []
    if layout.get("version") == LAYOUT_VERSION:
        parts = list(_laid_out(answer, layout.get("parts", ())))
    if not parts:
        parts = [TextPart(content=answer.text)] if answer.text else []
        parts += [_call_part(each) for each in answer.calls]
    if not parts:
        return None
    origin = {name: layout[name] for name in ORIGIN if isinstance(layout.get(name), str)}
    return ModelResponse(parts=parts, **origin)


def _laid_out(answer: Answer, layout: Iterable[Mapping[str, Any]]) -> Iterator[ModelResponsePart]:
    text_at = reasoning_at = call_at = 0
    for each in layout:
        extras = {name: each[name] for name in EXTRAS if name in each}
        length = each.get("length", 0)
        match each.get("part"):
            case "text":
                extras.pop("signature", None)
                yield TextPart(content=answer.text[text_at : text_at + length], **extras)
                text_at += length
            case "reasoning":
                yield ThinkingPart(content=answer.reasoning[reasoning_at : reasoning_at + length], **extras)
                reasoning_at += length
            case "call" if call_at < len(answer.calls):
                extras.pop("signature", None)
                yield replace(_call_part(answer.calls[call_at]), **extras)
                call_at += 1
            case _:
                continue


def _call_part(call: ToolCall) -> ToolCallPart:
    return ToolCallPart(tool_name=call.name, args=call.arguments, tool_call_id=call.id)


# --- an answer that comes in ------------------------------------------------------------------------------------------


class Reply:
    """An answer that is being streamed: its events become chunks, and in the end the whole `Answer`.

    Some servers begin to number their calls anew in each answer. A call whose id the conversation has already gets
    another one, so that no two calls share a result.
    """

    def __init__(self, conversation: Sequence[Utterance]) -> None:
        self._taken = {each.id for said in conversation if isinstance(said, Answer) for each in said.calls}
        self._calls: dict[int, tuple[str, str]] = {}  # by the place among the parts: id and name

    def chunks(self, event: ModelResponseStreamEvent) -> Iterator[Chunk]:
        """What an event says that was not said before."""
        match event:
            case PartStartEvent(part=TextPart(content=text)) | PartDeltaEvent(delta=TextPartDelta(content_delta=text)):
                if text:
                    yield TextChunk(text)
            case (
                PartStartEvent(part=ThinkingPart(content=text))
                | PartDeltaEvent(delta=ThinkingPartDelta(content_delta=text))
            ):
                if text:
                    yield ReasoningChunk(text)
            case PartStartEvent(index=index, part=ToolCallPart() as part):
                self._calls[index] = (self._new_id(part.tool_call_id), part.tool_name)
                yield CallChunk(*self._calls[index], _text_of(part.args))
            case PartDeltaEvent(index=index, delta=ToolCallPartDelta() as delta) if index in self._calls:
                if arguments := _text_of(delta.args_delta):
                    yield CallChunk(*self._calls[index], arguments)
            case _:
                return

    def answer(self, response: ModelResponse, *, usage: Usage, model: str) -> Answer:
        """The whole answer."""
        parts = [part for part in response.parts if isinstance(part, TextPart | ThinkingPart | ToolCallPart)]
        ids = iter([call_id for _, (call_id, _) in sorted(self._calls.items())])
        calls = tuple(
            ToolCall(
                id=next(ids, None) or self._new_id(part.tool_call_id),
                name=part.tool_name,
                arguments=_text_of(part.args).strip() or "{}",
            )
            for part in parts
            if isinstance(part, ToolCallPart)
        )
        text = "".join(part.content for part in parts if isinstance(part, TextPart))
        if not text and not calls:
            text = str((response.provider_details or {}).get("refusal", ""))
        return Answer(
            text=text,
            reasoning="".join(part.content for part in parts if isinstance(part, ThinkingPart)),
            calls=calls,
            usage=usage,
            model=model,
            opaque=_layout_of(response, parts),
        )

    def _new_id(self, given: str) -> str:
        call_id, number = given or "call", 1
        while call_id in self._taken:
            number += 1
            call_id = f"{given or 'call'}-{number}"
        self._taken.add(call_id)
        return call_id


def _text_of(arguments: str | Mapping[str, Any] | None) -> str:
    return arguments if isinstance(arguments, str) else "" if arguments is None else compact_json(arguments)


def _layout_of(
    response: ModelResponse, parts: Sequence[TextPart | ThinkingPart | ToolCallPart]
) -> dict[str, Any] | None:
    """The layout of an answer; None when it is plain text and calls, which need none."""
    layout = [_place_of(part) for part in parts]
    if not any(set(each) - {"part", "length"} for each in layout):
        return None
    origin = {name: value for name in ORIGIN if (value := getattr(response, name))}
    return {"version": LAYOUT_VERSION, **origin, "parts": layout}


def _place_of(part: TextPart | ThinkingPart | ToolCallPart) -> dict[str, Any]:
    extras = {name: value for name in EXTRAS if (value := getattr(part, name, None))}
    if "provider_details" in extras:
        extras["provider_details"] = json.loads(json.dumps(extras["provider_details"], default=str))
    match part:
        case TextPart(content=text):
            return {"part": "text", "length": len(text), **extras}
        case ThinkingPart(content=text):
            return {"part": "reasoning", "length": len(text), **extras}
        case ToolCallPart():
            return {"part": "call", **extras}
        case _:
            assert_never(part)
