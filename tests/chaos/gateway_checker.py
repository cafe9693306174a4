"""Holds what clients of a gateway saw against what really happened: lost, twice, out of order, missed.

A message asks for one call, and what that call does carries the session and the number of the message. So what a model
was told of each call is held against what that very call did.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tests.chaos.calls import CallEvidence, CallsSeen, Told, judge_calls

__all__ = ("GatewayEvidence", "GatewayVerdict", "Sent", "judge_gateway", "verdict_on")


TOOL: Final = "bash"


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was accepted: what a client sent, and the id it got."""

    number: int
    session: str
    message_id: str


@dataclass(slots=True)
class GatewayEvidence:
    """What was accepted, how each ended, what was done, and which stored events each watcher saw."""

    accepted: list[Sent] = field(default_factory=list)
    ends: dict[str, tuple[str, str]] = field(default_factory=dict)  # by message: disposition and outcome
    done: list[tuple[str, int]] = field(default_factory=list)  # session and number, in the order it was done
    seen: dict[str, list[int]] = field(default_factory=dict)  # by session: ids of events, in the order they came
    stored: dict[str, list[int]] = field(default_factory=dict)  # by session: ids of all events in the store
    answers: dict[str, str] = field(default_factory=dict)  # by run: what its watcher heard at its end
    stored_answers: dict[str, str] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)  # of each call, by the name of what it does
    again: Counter[str] = field(default_factory=Counter)  # by kind: how often clients had to come again


@dataclass(slots=True)
class GatewayVerdict:
    """The tally, and what is wrong, by kind."""

    kills: int = 0
    accepted: int = 0
    done: int = 0
    unknown: int = 0
    events: int = 0
    wrong: dict[str, list[str]] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong

    def add(self, other: GatewayVerdict) -> None:
        """Take another one in."""
        for name in ("kills", "accepted", "done", "unknown", "events"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for kind, places in other.wrong.items():
            self.wrong.setdefault(kind, []).extend(places)

    def line(self) -> str:
        """The tally in one line."""
        bad = sum(map(len, self.wrong.values()))
        return (
            f"{self.kills} kills, {self.accepted:,} accepted, {self.done:,} done, {self.unknown} told unknown, "
            f"{self.events:,} events followed, {bad} promises broken"
        )


def verdict_on(found: GatewayEvidence) -> GatewayVerdict:
    """What is to be said about one world."""
    wrong: dict[str, list[str]] = {}
    for problem in judge_gateway(found):
        kind, _, rest = problem.partition(": ")
        wrong.setdefault(kind, []).append(rest)
    return GatewayVerdict(
        kills=found.again["kill"],
        accepted=len(found.accepted),
        done=len(found.done),
        unknown=sum(each.status == "unknown" for each in found.told),
        events=sum(map(len, found.seen.values())),
        wrong=wrong,
    )


def judge_gateway(found: GatewayEvidence) -> list[str]:
    """Every broken promise, one line each."""
    return [*_lost(found), *_calls(found), *_twice(found), *_order(found), *_missed(found)]


def call_name(session: str, number: int) -> str:
    """The name of the one call that a message asks for."""
    return f"{session} {number}"


def _lost(found: GatewayEvidence) -> list[str]:
    problems = []
    told = {each.call_id for each in found.told}
    for sent in found.accepted:
        end = found.ends.get(sent.message_id)
        if end is None:
            problems.append(f"lost: #{sent.number} was accepted as {sent.message_id} and nobody knows it")
        elif end[1] == "":
            problems.append(f"lost: #{sent.number} ({sent.message_id}) has not ended: {end[0]}")
        elif end == ("ran", "succeeded") and call_name(sent.session, sent.number) not in told:
            problems.append(f"lost: #{sent.number} in {sent.session} has succeeded, and its call was never asked for")
    return problems


def _calls(found: GatewayEvidence) -> list[str]:
    """What was told of a call is what it did: `cancelled` was not made, `ok` was, `unknown` may have been."""
    seen = CallsSeen()
    for session, number in found.done:
        name = call_name(session, number)
        seen.begun[name].append("")  # a shell has no key
        seen.ended[name] += 1
        seen.tools[name] = TOOL
    return judge_calls(CallEvidence(told=found.told, seen=seen, effects={TOOL: "write"}))


def _twice(found: GatewayEvidence) -> list[str]:
    problems = []
    ids = Counter(sent.message_id for sent in found.accepted)
    problems += [f"twice: message {each} was given to {count} messages" for each, count in ids.items() if count > 1]
    known = {(sent.session, sent.number) for sent in found.accepted}
    return problems + [
        f"done, but never accepted: #{number} in {session}" for session, number in set(found.done) - known
    ]


def _order(found: GatewayEvidence) -> list[str]:
    problems = []
    last: dict[str, int] = {}
    for session, number in dict.fromkeys(found.done):
        if number < last.get(session, 0):
            problems.append(f"out of order: #{number} in {session} was done after #{last[session]}")
        last[session] = max(number, last.get(session, 0))
    return problems


def _missed(found: GatewayEvidence) -> list[str]:
    problems = []
    for session, stored in found.stored.items():
        seen = found.seen.get(session, [])
        if seen != sorted(set(seen)):
            problems.append(f"events of {session} came twice or out of order")
        missing = set(stored) - set(seen)
        if missing:
            problems.append(f"missed: {len(missing)} stored events of {session}, the first {min(missing)}")
        more = set(seen) - set(stored)
        if more:
            problems.append(f"events of {session} that the store does not have: {sorted(more)[:3]}")
    for run, text in found.stored_answers.items():
        heard = found.answers.get(run)
        if heard is not None and heard != text:
            problems.append(f"the answer of {run} was heard as {heard!r:.80}, and is {text!r:.80}")
    return problems
