"""The story of a run in words, for people: what it was asked, did and waited for, what it cost, how it ended."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from laneway.dialogue import ResultStatus, ToolCall, Usage
from laneway.kernel.explain import duration
from laneway.kernel.rounds import CallTimes, Round, RoundState

__all__ = ("state_words", "tell_run")

TEXT_MAX: Final = 200
ARGUMENT_MAX: Final = 80
TOLD_MS: Final = 100
"""Shorter waits are not worth a word."""

_ENDS: Final = {
    ResultStatus.OK: "it answered",
    ResultStatus.ERROR: "it failed",
    ResultStatus.DENIED: "it was not allowed",
    ResultStatus.SKIPPED: "it was skipped, because a message came in between",
    ResultStatus.CANCELLED: "it was cancelled",
    ResultStatus.TIMED_OUT: "it took too long",
    ResultStatus.UNKNOWN: "nobody knows how far it came",
    ResultStatus.BACKGROUND: "it went on in the background",
}
_STATES: Final = {
    "succeeded": "It ended with an answer",
    "failed": "It failed",
    "cancelled": "It was cancelled",
    "interrupted": "It was interrupted",
    "fenced": "It was given up, because another process took over",
}


_NOW: Final = {
    "succeeded": "has succeeded",
    "failed": "has failed",
    "cancelled": "was cancelled",
    "interrupted": "was interrupted",
    "fenced": "was given up",
}


def state_words(state: str) -> str:
    """What a run in this state does or has come to: "is thinking", "has failed"."""
    return _NOW.get(state, f"is {state}")


def tell_run(run_id: str, state: str, reason: str, answer: str, rounds: Sequence[Round]) -> str:
    """A paragraph for the beginning, one for each round, one for the end."""
    lines = [_beginning(run_id, state, rounds)]
    for one in rounds:
        lines += _round(one)
    lines.append(_cost(rounds))
    lines.append(_end(state, reason, answer))
    return "\n".join(lines)


def _beginning(run_id: str, state: str, rounds: Sequence[Round]) -> str:
    if not rounds and state not in _STATES:
        return f"Run {run_id} has not come to its first round yet."
    if not rounds:
        return f"Run {run_id} did not come to its first round."
    first = rounds[0]
    asked = _short(first.prompts[0].text) if first.prompts else ""
    if first.resumed_from:
        return f"Run {run_id} went on for run {first.resumed_from}, from round {first.number} on."
    return f"Run {run_id} was asked: {asked}" if asked else f"Run {run_id} began."


def _round(one: Round) -> list[str]:
    lines = [f"Round {one.number}:"]
    if one.number > 1 and one.prompts:
        lines.append(f"  It was told: {_short(' '.join(prompt.text for prompt in one.prompts))}")
    for wait in one.waits:
        if wait.kind == "cheaper":
            lines.append(f"  {wait.reason}.")
        elif not wait.ended_ms:
            lines.append(f"  It waits: {wait.reason or wait.kind}.")
        elif wait.ended_ms - wait.began_ms >= TOLD_MS:
            lines.append(f"  It waited {duration(wait.ended_ms - wait.began_ms)}: {wait.reason or wait.kind}.")
    if not one.was_asked:
        return [*lines, "  The model was not asked."]
    if one.state is RoundState.CUT and not one.has_answer:
        return [*lines, "  The model was asked, and did not come to its answer."]
    usage = one.answer.usage
    took = f" after {duration(one.at_ms - one.asked_ms)}" if one.asked_ms and one.at_ms > one.asked_ms else ""
    who = one.answer.model or "The model"
    before = ", paid by the run before" if one.is_copy else ""
    tokens = f" ({usage.input_tokens:,} tokens in, {usage.output_tokens:,} out{before})"
    calls = len(one.answer.calls)
    wants = f", and asked for {calls} call{'' if calls == 1 else 's'}" if calls else ""
    lines.append(f"  {who} answered{took}{tokens}{wants}.")
    if one.answer.text and calls:
        lines.append(f"  It said: {_short(one.answer.text)}")
    lines += [_call(one, call) for call in one.answer.calls]
    return lines


def _call(one: Round, call: ToolCall) -> str:
    result = one.results.get(call.id)
    end = "it has not ended" if result is None else _ENDS[result.status]
    if result is not None and result.exit_code:
        end += f" with exit code {result.exit_code}"
    if result is not None and result.status in (ResultStatus.ERROR, ResultStatus.DENIED):
        end += f": {_short(result.output, ARGUMENT_MAX)}"
    return f"  {call.name}({_arguments(call)}){_times(one.times.get(call.id))}: {end}."


def _times(times: CallTimes | None) -> str:
    if times is None:
        return ""
    parts = []
    if times.queued_ms and times.began_ms - times.queued_ms >= TOLD_MS:
        parts.append(f"waited {duration(times.began_ms - times.queued_ms)} for lane {times.lane}")
    if times.began_ms and times.ended_ms:
        parts.append(f"ran {duration(times.ended_ms - times.began_ms)}")
    if times.worker:
        parts.append(f"on worker {times.worker}")
    if times.attempt > 1:
        parts.append(f"in attempt {times.attempt}")
    return f" {', '.join(parts)}" if parts else ""


def _arguments(call: ToolCall) -> str:
    try:
        given = json.loads(call.arguments)
    except ValueError:
        return _short(call.arguments, ARGUMENT_MAX)
    if not isinstance(given, dict):
        return _short(call.arguments, ARGUMENT_MAX)
    return _short(", ".join(f"{name}={json.dumps(value)}" for name, value in given.items()), ARGUMENT_MAX)


def _cost(rounds: Sequence[Round]) -> str:
    usage, asked = sum((one.usage for one in rounds), Usage()), sum(one.was_asked for one in rounds)
    if rounds and not asked:
        return "The model was not asked, and nothing was spent."
    price = "at no known price" if usage.cost is None else f"for ${usage.cost:.4f}"
    calls = sum(len(one.answer.calls) for one in rounds)
    return (
        f"In all {asked} round{'' if asked == 1 else 's'} and {calls} call{'' if calls == 1 else 's'}, "
        f"{usage.input_tokens:,} tokens in and {usage.output_tokens:,} out, {price}."
    )


def _end(state: str, reason: str, answer: str) -> str:
    words = _STATES.get(state, f"It {state_words(state)}")
    if state == "succeeded":
        return f"{words}: {_short(answer)}" if answer else f"{words}."
    return f"{words}: {reason}." if reason else f"{words}."


def _short(text: str, most: int = TEXT_MAX) -> str:
    words = " ".join(text[: most * 2].split())
    return words if len(words) <= most and len(text) <= most * 2 else f"{words[: most - 1]}…"
