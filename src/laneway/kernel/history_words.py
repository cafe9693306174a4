"""A step of a history in plain words, and as much of a step as somebody can take in at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from laneway.kernel.histories import Op, RunHistory, digest_of_tool, short_digest, tool_facts
from laneway.kernel.replaying import Code

__all__ = ("SHOWN", "behind_hashes", "shortened", "tell_step", "tell_steps")

SHOWN: Final = 160
"""The most characters that a step is told with."""
NAMES_MAX: Final = 5
DEPTH_MAX: Final = 20
SHORT: Final = 80
"""So short a member of a step is kept behind a text that was cut: how a call ended is worth more than its output."""
CUT: Final = "…"

Names = Mapping[str, str]
"""The tools of calls, by the ids of the calls."""


def tell_steps(steps: Iterable[Op]) -> Iterator[str]:
    """Each step in one line. A call is named by its tool once its answer was there."""
    names: dict[str, str] = {}
    for step in steps:
        names.update(_names_in(step))
        yield tell_step(step, names)


def tell_step(step: Op, names: Names | None = None) -> str:
    """One step in one line; what has a shape that nobody knows is told by its name."""
    op = str(step.get("op", ""))
    told = _TOLD.get(op)
    if told is None:
        return _line(op)
    try:
        return _line(told(step, names or _names_in(step)))
    except (LookupError, TypeError, ValueError, AttributeError):
        return _line(op)


def shortened(value: Any, most: int) -> tuple[Any, bool]:
    """A JSON value with at most so many characters of text in it, and whether something was left out."""
    scissors = _Scissors(most)
    return scissors.cut(value, 0), scissors.has_cut


def behind_hashes(history: RunHistory, step: int, code: Code) -> dict[str, str]:
    """What hashes of system prompts and tools stand for: those that held at a step, and those of today."""
    known: dict[str, str] = {}
    codes = [each for each in history.steps[:step] if each.get("op") == "code" and {"system", "tools"} <= each.keys()]
    tools = [tool_facts(spec) for spec in code.tools()]
    for system, facts in [(each["system"], each["tools"]) for each in codes[-1:]] + [(code.system(), tools)]:
        known[short_digest(system)] = system
        known.update({digest_of_tool(each): json.dumps(each, ensure_ascii=False) for each in facts})
    return known


# ---- words ----


def _line(text: str) -> str:
    folded = " ".join(text[: SHOWN * 8].split())
    return folded if len(folded) <= SHOWN else f"{folded[: SHOWN - 1]}{CUT}"


def _count(items: Sequence[Any] | int, one: str, many: str = "") -> str:
    count = items if isinstance(items, int) else len(items)
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _some(words: Sequence[str]) -> str:
    more = len(words) - NAMES_MAX
    return ", ".join(words[:NAMES_MAX]) + (f" and {more:,} more" if more > 0 else "")


def _names_in(step: Op) -> dict[str, str]:
    """The calls that a step brings, with their tools."""
    try:
        round_ = step.get("round") or {}
        answers = [step.get("answer") or {}, round_.get("answer") or {}]
        answers += [one.get("answer") or {} for one in step.get("rounds") or () if isinstance(one, dict)]
        return {str(call[0]): str(call[1]) for answer in answers for call in answer.get("calls") or ()}
    except (AttributeError, TypeError, LookupError):
        return {}


def _calls(ids: Sequence[str], names: Names) -> str:
    return _some([names.get(each, each) for each in ids])


def _prompts(prompts: Sequence[Any]) -> str:
    said = [each if isinstance(each, str) else each["text"] for each in prompts]
    return " / ".join(text[:SHOWN] for text in said)


def _answer(answer: Mapping[str, Any]) -> str:
    calls = [f"{name} {_text(arguments)}" for _, name, arguments in answer.get("calls", ())]
    text = _text(answer.get("text", ""))
    wants = f"wants {_count(calls, 'call')}: {_some(calls)}" if calls else ""
    if text and wants:
        return f"{wants}; says: {text}"
    return wants or (f"answers: {text}" if text else "answers with nothing")


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[: SHOWN * 2]


def _result(step: Op) -> str:
    code = step.get("exit_code")
    how = str(step["status"]).replace("_", " ") + ("" if code in (None, 0) else f", exit code {code}")
    output = _text(step.get("output", ""))
    return f"{step['tool']} has ended ({how})" + (f": {output}" if output.strip() else "")


def _machine(step: Op, _: Names) -> str:
    rounds = step["limits"][0]
    goes = f"It goes on for run {step['from']}, with round {step['first']}" if step["from"] else "The run begins"
    most = f", at most {_count(rounds, 'round')} of tools" if rounds < 1_000_000 else ""  # of limits nobody wrote down
    return goes + most


def _base(step: Op, _: Names) -> str:
    said = step.get("said", ())
    told = f"Before it, {_count(said, 'thing was', 'things were')} said" if said else "Nothing was said before it"
    return f"{told} (the store tells it otherwise by now)" if step.get("changed") and said else told


def _say(step: Op, names: Names) -> str:
    skipped = step.get("skipped", ())
    more = f" (it skips {_calls(skipped, names)})" if skipped else ""
    return f"It is told{more}: {_prompts(step['prompts'])}"


def _code(step: Op, _: Names) -> str:
    tools = [each["name"] for each in step["tools"]]
    told = f"{_count(tools, 'tool')}: {_some(tools)}" if tools else "no tools"
    system = _count(len(step["system"]), "character") if step["system"] else "none"
    return f"From here on: system prompt ({system}), {told}"


_PURPOSES: Final = {"answer": "an answer", "plan": "a plan", "summary": "a summary of what was said"}


def _ask(step: Op, _: Names) -> str:
    wanted = _PURPOSES.get(step["purpose"], step["purpose"])
    where = f" in round {step['n']}" if step["n"] else ""
    return f"The model is asked for {wanted}{where} ({_count(step['same'] + len(step['new']), 'part')} of conversation)"


def _answered(step: Op, _: Names) -> str:
    end = ", and that is the end" if step.get("is_final") and step["answer"].get("calls") else ""
    return f"Round {step['n']}: the model {_answer(step['answer'])}{end}"


def _failed(step: Op, _: Names) -> str:
    error = step["error"]
    what = error.get("message") or error.get("type") or "" if isinstance(error, dict) else error
    return f"The model did not answer: {_text(what)}"


def _event(step: Op, _: Names) -> str:
    data = step.get("data") or {}
    about = [data.get(each) for each in ("tool_name", "tool", "turn", "state", "reason", "prompt", "text")]
    known = next((str(each) for each in about if isinstance(each, str | int) and str(each)), "")
    return f"Event: {str(step['type']).replace('_', ' ')}" + (f" ({known[:SHOWN]})" if known else "")


def _cut(step: Op, _: Names) -> str:
    ends = step.get("results", ())
    how = "It was ended, and rolled back" if step.get("forget") else "It was ended before it had its answer"
    return f"{how}; {_count(ends, 'call')} cut off" if ends else how


def _round(step: Op, _: Names) -> str:
    one = step["round"]
    said = f"told {_prompts(one['prompts'])}; " if one["prompts"] else ""
    results = f"; {_count(one['results'], 'result')}" if one["results"] else ""
    return f"Round {one['n']}: {said}the model {_answer(one['answer'])}{results}"


_TOLD: Final[Mapping[str, Callable[[Op, Names], str]]] = {
    "machine": _machine,
    "base": _base,
    "say": _say,
    "add": lambda step, _: f"It is told as well: {_prompts(step['prompts'])}",
    "go_on": lambda step, _: f"It goes on for a run over {_count(step['messages'], 'message')}",
    "code": _code,
    "plan": lambda step, _: f"A plan of at most {_count(step['most'], 'step')} is wanted first",
    "ask": _ask,
    "failed": _failed,
    "chunks": lambda step, _: f"The answer came in {_count(step['pieces'], 'piece')}",
    "answered": _answered,
    "line": lambda step, _: f"The runs that it goes on for had {_count(step['rounds'], 'round')}",
    "act": lambda step, names: f"{_count(step['calls'], 'call is', 'calls are')} made: {_calls(step['calls'], names)}",
    "result": lambda step, _: _result(step) + (" (late)" if step.get("late") else ""),
    "amend": lambda step, _: f"In the background of round {step['n']}, {_result(step)}",
    "take_over": lambda step, _: f"It takes over round {step['round']['n']}, which was open",
    "close": lambda step, _: f"Round {step['n']} is whole",
    "leave_out": lambda step, _: "A summary stands for what was said before",
    "finish": lambda step, _: f"The run has its answer, in round {step['n']}",
    "cut": _cut,
    "fail": lambda step, _: f"A limit ends the run: {step['reason']}",
    "event": _event,
    "round": _round,
}


# ---- as much as can be taken in ----


def _is_short(value: Any) -> bool:
    return len(value) <= SHORT if isinstance(value, str) else not isinstance(value, dict | list | tuple)


class _Scissors:
    """Cuts texts, lists and depths of one value so that it fits."""

    def __init__(self, most: int) -> None:
        self._left = most
        self.has_cut = False

    def cut(self, value: Any, depth: int) -> Any:
        """The value, or its beginning."""
        if isinstance(value, str):
            return self._text(value)
        if not isinstance(value, dict | list | tuple):
            self._left -= 4
            return value
        if depth >= DEPTH_MAX:
            self.has_cut = True
            return CUT
        if isinstance(value, dict):
            return self._members(value, depth)
        found: list[Any] = []
        for each in value:
            if self._left <= 0:
                self.has_cut = True
                break
            found.append(self.cut(each, depth + 1))
        return found

    def _members(self, value: Mapping[str, Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, each in value.items():
            if self._left <= 0:
                if depth == 0 and _is_short(each):
                    found[name] = each
                else:
                    self.has_cut = True
                continue
            self._left -= len(name)
            found[name] = self.cut(each, depth + 1)
        return found

    def _text(self, text: str) -> str:
        kept = max(0, self._left)
        self._left -= len(text) + 1
        if len(text) <= kept:
            return text
        self.has_cut = True
        return text[:kept] + CUT
