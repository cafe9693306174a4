"""The checker of the kills in passivation: calls one by one, messages, and sub-agents."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from tests.chaos.calls import CallEvidence, Told, judge_calls, read_calls
from tests.chaos.leaving_scene import ASKS, EFFECTS, SESSION

__all__ = ("LeavingEvidence", "Message", "judge_leaving", "read_leaving")

NOTE: Final = "[System note] Sub-agent"


class Message(NamedTuple):
    """A message as the store has it when all is over."""

    session: str
    message_id: str
    text: str
    disposition: str
    outcome: str | None
    answer: str | None


@dataclass(slots=True)
class LeavingEvidence:
    """Everything the checker looks at. `is_sure`: nothing was cut or killed while it was on its way."""

    calls: CallEvidence
    accepted: set[str] = field(default_factory=set)
    messages: list[Message] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    is_sure: bool = False


def read_leaving(folder: Path, life: int, *, is_sure: bool) -> LeavingEvidence:
    """What the witness says, and the report of the last life."""
    report = json.loads((folder / f"report-{life}").read_text(encoding="utf-8"))
    lines = [json.loads(line) for line in (folder / "witness").read_text(encoding="utf-8").splitlines() if line]
    told = [Told(*each) for each in report["told"]]
    return LeavingEvidence(
        calls=CallEvidence(told=told, seen=read_calls(folder / "witness"), effects=EFFECTS, asks=ASKS),
        accepted={facts[0] for what, _, *facts in lines if what == "accepted"},
        messages=[Message(*each) for each in report["messages"]],
        problems=report["problems"],
        is_sure=is_sure,
    )


def judge_leaving(evidence: LeavingEvidence) -> list[str]:
    """Every broken law, one line each; the first word is its kind."""
    problems = [f"malformed: {each}" for each in evidence.problems]
    return [*judge_calls(evidence.calls), *_messages(evidence), *_children(evidence), *_doubts(evidence), *problems]


def _messages(evidence: LeavingEvidence) -> Iterator[str]:
    """What was accepted is there, once, and every message has its answer."""
    known = {each.message_id for each in evidence.messages}
    yield from (f"lost: {each} was accepted, and nobody knows it" for each in sorted(evidence.accepted - known))
    for each in evidence.messages:
        if (each.disposition, each.outcome) != ("ran", "succeeded") or not each.answer:
            yield f"lost: {each} has no answer"
    texts = Counter((each.session, each.text) for each in evidence.messages)
    yield from (f"taken twice: {text} in {session}" for (session, text), count in texts.items() if count > 1)


def _children(evidence: LeavingEvidence) -> Iterator[str]:
    """Each call for a sub-agent has had one, which has done its work; the end of one that was spawned is told once."""
    calls = Counter(each.tool for each in evidence.calls.told)
    for each in evidence.calls.told:
        if each.tool in ("task", "spawn") and each.status != "ok":
            yield f"sub-agent: {each.tool} {each.call_id} is told {each.status}"
    children = {each.session for each in evidence.messages if each.session != SESSION}
    if len(children) != calls["task"] + calls["spawn"]:
        yield f"sub-agents: {len(children)} have worked for {calls['task'] + calls['spawn']} calls"
    notes = sum(each.text.startswith(NOTE) for each in evidence.messages)
    if notes != calls["spawn"]:
        yield f"ends: {notes} were told of {calls['spawn']} sub-agents in the background"


def _doubts(evidence: LeavingEvidence) -> Iterator[str]:
    """A call that ends within the deadline is never in doubt."""
    for each in evidence.calls.told if evidence.is_sure else ():
        if each.status == "unknown":
            yield f"in doubt: {each.tool} {each.call_id} was neither cut nor killed, and is told unknown"
