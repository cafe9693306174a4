"""Holds what a model was told of each call against what that very call did: the laws of calls, one call at a time.

A tool writes the id of its call into the witness when it begins and when it ends, and whoever answers a request for
approval writes down what was answered, once it was taken. Totals prove little: a call that was lost and one that was
made unasked would make up for each other.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from laneway.dialogue import Answer, Results, ToolCall, Utterance

__all__ = ("CallEvidence", "CallsSeen", "Told", "judge_calls", "read_calls", "told_in")

NOT_MADE: Final = frozenset({"skipped", "cancelled", "denied"})
YES: Final = "approve"


class Told(NamedTuple):
    """What the conversation of a session says about a call; `status` is empty if it has no result."""

    session: str
    call_id: str
    tool: str
    status: str


@dataclass(slots=True)
class CallsSeen:
    """What the witness saw, by the id of the call: the key at each begin, how many ends, what people said.

    `answers` were given, and a kill may have come before they were taken; `decided` were taken. `asked_again` are calls
    that somebody was asked about afterwards.
    """

    begun: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    ended: Counter[str] = field(default_factory=Counter)
    tools: dict[str, str] = field(default_factory=dict)
    answers: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    decided: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    asked_again: list[str] = field(default_factory=list)
    torn: int = 0


@dataclass(slots=True)
class CallEvidence:
    """What models were told, and what was seen. `effects` are those of the tools; `asks`: tools that need a yes."""

    told: list[Told]
    seen: CallsSeen
    effects: Mapping[str, str]
    asks: frozenset[str] = frozenset()


def id_of(call: ToolCall) -> str:
    """The id that the model gave it."""
    return call.id


def told_in(
    session: str, conversation: Sequence[Utterance], name_of: Callable[[ToolCall], str] = id_of
) -> Iterator[Told]:
    """Every call of a conversation with each of its results, or with none; `name_of` where ids are used again."""
    for place, said in enumerate(conversation):
        if isinstance(said, Answer):
            after = conversation[place + 1] if place + 1 < len(conversation) else None
            results = after.results if isinstance(after, Results) else ()
            for call in said.calls:
                statuses = [each.status.value for each in results if each.call_id == call.id]
                yield from (Told(session, name_of(call), call.name, status) for status in statuses or [""])


def read_calls(path: Path) -> CallsSeen:
    """What the witness says: `begin` and `end` of calls, and what was `asked`, said (`answer`) and `decided`."""
    seen = CallsSeen()
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        if not line.strip():
            continue
        try:
            what, _, *facts = json.loads(line)
        except ValueError:
            seen.torn += 1
            continue
        match what, facts:
            case "begin", [call_id, tool, key]:
                seen.begun[call_id].append(key)
                seen.tools[call_id] = tool
            case "end", [call_id, *_]:
                seen.ended[call_id] += 1
            case "asked", [call_id] if seen.decided[call_id]:
                seen.asked_again.append(call_id)
            case "answer", [call_id, answer]:
                seen.answers[call_id].append(answer)
            case "decided", [call_id, answer]:
                seen.decided[call_id].append(answer)
            case _:
                pass  # it is about something else
    return seen


def judge_calls(evidence: CallEvidence) -> list[str]:
    """Every broken law, one line each; the first word is its kind."""
    return [*_each_has_one_result(evidence), *_told_is_true(evidence), *_made_once(evidence), *_approved(evidence)]


def _each_has_one_result(evidence: CallEvidence) -> Iterator[str]:
    counts = Counter(each.call_id for each in evidence.told)
    yield from (f"told twice: {each} has {count} results" for each, count in counts.items() if count > 1)
    for each in evidence.told:
        if not each.status:
            yield f"open: {_name(each)} has no result"
    for call_id in evidence.seen.begun:
        if call_id not in counts:
            yield f"untold: {evidence.seen.tools[call_id]} {call_id} has begun, and no conversation knows of it"


def _told_is_true(evidence: CallEvidence) -> Iterator[str]:
    for each in _of_effect(evidence, "write", "idempotent"):
        begun, ended = len(evidence.seen.begun.get(each.call_id, ())), evidence.seen.ended[each.call_id]
        if each.status == "ok" and not ended:
            yield f"never made: {_name(each)} is told ok; it has begun {begun} times and never ended"
        if each.status in NOT_MADE and begun:
            yield f"made all the same: {_name(each)} is told {each.status}, and has begun {begun} times"
        if each.status == "unknown" and evidence.effects[each.tool] == "idempotent":
            yield f"in doubt: {_name(each)} can simply be made again"


def _made_once(evidence: CallEvidence) -> Iterator[str]:
    for call_id, keys in evidence.seen.begun.items():
        tool = evidence.seen.tools[call_id]
        if evidence.effects[tool] == "write" and len(keys) > 1:
            yield f"twice: {tool} {call_id} has begun {len(keys)} times"
        if len(set(keys)) > 1:
            yield f"two keys: {tool} {call_id} has begun under {sorted(set(keys))}"


def _approved(evidence: CallEvidence) -> Iterator[str]:
    decided = evidence.seen.decided
    for call_id, tool in evidence.seen.tools.items():
        if tool in evidence.asks and set(answers := evidence.seen.answers.get(call_id, [])) != {YES}:
            yield f"unapproved: {tool} {call_id} has begun, and the answers were {answers}"
    for each in evidence.told:
        for answer in decided.get(each.call_id, ()):
            if (answer == YES and each.status in NOT_MADE) or (answer != YES and each.status != "denied"):
                yield f"ignored: the answer to {_name(each)} was {answer}, and it is told {each.status}"
    yield from (f"asked again: {call_id} had its answer" for call_id in evidence.seen.asked_again)


def _of_effect(evidence: CallEvidence, *effects: str) -> Iterable[Told]:
    return (each for each in evidence.told if evidence.effects.get(each.tool) in effects)


def _name(each: Told) -> str:
    return f"{each.tool} {each.call_id} of {each.session}"
