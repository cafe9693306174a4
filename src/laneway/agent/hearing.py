"""What models and tools of one's own hand in, checked where it comes in: whatever passes can be stored and sent on."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from laneway.dialogue import Answer, ToolCall, ToolContext, ToolOutput, Usage, compact_json
from laneway.errors import LanewayError, ModelError, describe, text_of
from laneway.kernel.checkpoints import to_json
from laneway.ports import Tool
from laneway.spending import MONEY_MAX, TOKENS_MAX

__all__ = ("heard_answer", "heard_output", "heard_run", "trace_of")

COUNTS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")


def heard_answer(answer: Answer, model: str) -> Answer:
    """An answer that is what it should be; raises `ModelError` with the field that is not."""

    def refuse(what: str, value: object) -> ModelError:
        hint = "a Model yields an Answer as laneway.dialogue describes it"
        return ModelError(f"the answer of the model has {what}, not {value!r:.100}", model=model, hint=hint)

    for name in ("text", "reasoning", "model"):
        if not isinstance(getattr(answer, name), str):
            raise refuse(f"{name} that must be text", getattr(answer, name))
    if not isinstance(answer.calls, tuple | list):
        raise refuse("calls that must be a tuple", answer.calls)
    calls = tuple(_call(call, refuse) for call in answer.calls)
    usage = answer.usage
    if not isinstance(usage, Usage) or not all(_is_count(getattr(usage, name)) for name in COUNTS):
        raise refuse("usage that must be a Usage with whole numbers", usage)
    if usage.cost is not None and (isinstance(usage.cost, bool) or not isinstance(usage.cost, int | float)):
        raise refuse("a cost that must be a number", usage.cost)
    if usage.cost is not None and not 0 <= usage.cost <= MONEY_MAX:  # no amount of money: nobody knows what it cost
        usage = replace(usage, cost=None)
    if answer.opaque is not None:
        try:
            to_json(answer.opaque)
        except LanewayError as error:
            raise refuse(f"opaque that must be JSON ({error})", answer.opaque) from None
    return replace(
        answer,
        text=text_of(answer.text),
        reasoning=text_of(answer.reasoning),
        calls=calls,
        model=text_of(answer.model) or model,
        usage=usage,
    )


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= TOKENS_MAX


def _call(call: object, refuse: Any) -> ToolCall:
    if not isinstance(call, ToolCall):
        raise refuse("a call that must be a ToolCall", call)
    if isinstance(call.arguments, Mapping):  # the natural slip: what is meant is clear
        try:
            call = replace(call, arguments=compact_json(dict(call.arguments)))
        except (TypeError, ValueError):
            raise refuse("arguments that must be JSON", call.arguments) from None
    for name in ("id", "name", "arguments"):
        if not isinstance(getattr(call, name), str):
            raise refuse(f"a call whose {name} must be text", getattr(call, name))
    return ToolCall(id=text_of(call.id), name=text_of(call.name), arguments=text_of(call.arguments))


def trace_of(error: BaseException) -> str:
    """Where an error of somebody's code comes from, for a log: text that can be written anywhere."""
    return text_of("".join(traceback.format_exception(error)).rstrip())


async def heard_run(tool: Tool, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
    """Run a tool; what it gives back can be kept, and what it raises is an `Exception`."""
    try:
        return heard_output(await tool.run(arguments, context))
    except (Exception, asyncio.CancelledError, KeyboardInterrupt):
        raise
    except SystemExit as error:  # it would end the loop of everybody
        raise RuntimeError(f"the tool called exit({error.code!r})") from error
    except BaseException as error:
        raise RuntimeError(f"the tool raised {describe(error)}") from error


def heard_output(value: object) -> ToolOutput:
    """What a tool has given back, as it can be kept: text is an output, None an empty one."""
    if value is None or isinstance(value, str):
        return ToolOutput(text=text_of(value or ""))
    if not isinstance(value, ToolOutput):
        return ToolOutput(text=text_of(value))
    wrong = [
        f"{name} {getattr(value, name)!r:.80}, which is no {kind.__name__}"
        for name, kind in (("text", str), ("exit_code", int), ("artifact", str))
        if not isinstance(getattr(value, name), kind) and (name == "text" or getattr(value, name) is not None)
    ]
    if not wrong:
        return replace(value, text=text_of(value.text), is_error=bool(value.is_error))
    text = f"{text_of(value.text)}\n[The tool gave back {' and '.join(wrong)}]"
    return ToolOutput(text=text, is_error=True)
