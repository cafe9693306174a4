"""The checker of the agents' chaos: what was accepted, what tools did and what sessions say must agree."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.chaos.agent_world import AgentAnswers, Ended

__all__ = ("AgentAccount", "AgentEvidence", "AgentVerdict", "judge_agents", "read_account")

ENDED: Final = frozenset({"done", "failed", "unknown"})
ANSWERED: Final = frozenset({"ran", "steered", "merged"})
GIVEN_UP: Final = "for the 5th time"
NOT_DONE: Final = frozenset({"skipped", "cancelled", "denied"})


@dataclass(slots=True)
class AgentAccount:
    """What the witness saw: the keys of the effects of each call, and conversations that no provider takes."""

    effects: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    malformed: list[str] = field(default_factory=list)
    torn: int = 0


def read_account(path: Path) -> AgentAccount:
    """What the witness says."""
    account = AgentAccount()
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else ():
        try:
            what, _, first, second = json.loads(line) if line.strip() else ("", 0, "", "")
        except ValueError:
            account.torn += 1
            continue
        if what == "effect":
            account.effects[first].append(second)
        elif what:
            account.malformed.append(f"{first}: {second}")
    return account


@dataclass(slots=True)
class AgentEvidence:
    """Everything the checker looks at."""

    answers: AgentAnswers
    account: AgentAccount
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class AgentVerdict:
    """What is wrong, by kind, and how much was looked at."""

    wrong: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not any(self.wrong.values())

    def add(self, other: AgentVerdict) -> None:
        """Take another world's verdict in."""
        for kind, places in other.wrong.items():
            self.wrong[kind] += places
        self.counts += other.counts

    def line(self) -> str:
        """The tally in one line."""
        counts = self.counts
        head = f"{counts['kills']:,} kills in {counts['lives']:,} lives, {counts['calls']:,} calls made: "
        wrongs = {"lost": 0, "write twice": 0} | {kind: len(places) for kind, places in self.wrong.items()}
        facts = [f"accepted {counts['accepted']:,}", f"answered {counts['answered']:,}"]
        facts += [f"{kind} {count:,}" for kind, count in wrongs.items()]
        facts += [f"unknown {counts['unknown']:,}", f"cut off by newer messages {counts['cut'] - counts['given up']:,}"]
        facts += [f"given up after 5 crashes {counts['given up']:,}"]
        return head + ", ".join(facts)


def judge_agents(evidence: AgentEvidence) -> AgentVerdict:
    """Every law, one after the other."""
    verdict = AgentVerdict()
    for law in (_lost, _effects, _told, _ledgers, _memories, _well_formed):
        for kind, what in law(evidence):
            verdict.wrong[kind].append(what)
    answers = evidence.answers
    finals = [answers.finals.get(message_id) for message_id in answers.acks.values()]
    statuses = Counter(status for report in answers.first.values() for status in report["ended"].values())
    verdict.counts.update(
        {
            "kills": answers.kills.total(),
            "lives": answers.lives,
            "accepted": len(answers.acks),
            "answered": sum(final is not None and final.outcome == "succeeded" for final in finals),
            "given up": sum(_is_given_up(final) for final in finals),
            "cut": sum(final is not None and _is_cut(final) for final in finals),
            "calls": sum(len(keys) for keys in evidence.account.effects.values()),
            "unknown": statuses["unknown"],
            "resent": answers.resent,
            "torn": evidence.account.torn,
        }
    )
    return verdict


Findings = Iterator[tuple[str, str]]


def _is_given_up(final: Ended | None) -> bool:
    return final is not None and final.outcome == "interrupted" and GIVEN_UP in final.reason


def _is_cut(final: Ended) -> bool:
    return final.outcome == "interrupted" or final.state == "superseded"


def _lost(evidence: AgentEvidence) -> Findings:
    """What was accepted has its answer, or was given up after too many crashes, or cut off by a newer message.

    Nothing is accepted twice.
    """
    answers = evidence.answers
    cut = {message.session for message in answers.messages.values() if message.mode == "interrupt"}
    for number, message_id in answers.acks.items():
        final = answers.finals.get(message_id)
        if final is not None and final.state == "superseded" and answers.messages[number].mode == "interrupt":
            continue  # a newer one that interrupts took its place
        if final is None or final.state not in ANSWERED:
            yield "lost", f"{answers.messages[number]} ({message_id}): {final}"
        elif final.outcome == "interrupted" and answers.messages[number].session in cut:
            continue
        elif final.outcome != "succeeded" and not _is_given_up(final):
            yield "lost", f"{answers.messages[number]} ({message_id}) got no answer: {final}"
    doubles = [message_id for message_id, count in Counter(answers.acks.values()).items() if count > 1]
    yield from (("lost", f"one message for two: {message_id}") for message_id in doubles)


def _effects(evidence: AgentEvidence) -> Findings:
    """A write has its effect at most once, an idempotent call under one key."""
    for name, keys in evidence.account.effects.items():
        if name.startswith("pay") and len(keys) > 1:
            yield "write twice", f"{name} was made {len(keys)} times: {keys}"
        if name.startswith("put") and len(set(keys)) > 1:
            yield "two keys", f"{name} was made under {len(set(keys))} keys: {keys}"


def _told(evidence: AgentEvidence) -> Findings:
    """What the model was told of a call is what really happened, as far as it can be known."""
    for session, report in evidence.answers.first.items():
        for name, status in report["ended"].items():
            made = len(evidence.account.effects.get(name, ()))
            if status == "ok" and not made:
                yield "never made", f"{name} of {session} is said to have worked"
            if status in NOT_DONE and made and not name.startswith("look"):
                yield "made all the same", f"{name} of {session} is {status}, and was made {made} times"
            if status == "unknown" and name.startswith("look"):
                yield "unknown read", f"{name} of {session}: a read can simply be made again"


def _ledgers(evidence: AgentEvidence) -> Findings:
    """Every entry of the ledger has come to its end, and every effect that is not a read has one."""
    keys: set[str] = set()
    for session, report in evidence.answers.first.items():
        for tool, state, key in report["ledger"]:
            keys.add(key)
            if state not in ENDED:
                yield "ledger", f"{tool} of {session} is {state}"
    for name, made in evidence.account.effects.items():
        if not name.startswith("look") and not keys.issuperset(made):
            yield "ledger", f"{name} was made and is not in the ledger"


def _memories(evidence: AgentEvidence) -> Findings:
    """A session that was closed and opened again says what it said before."""
    first, again = evidence.answers.first, evidence.answers.again
    for session, report in first.items():
        if again.get(session) != report:
            yield "memory", f"{session} remembers something else after a restart"


def _well_formed(evidence: AgentEvidence) -> Findings:
    """Every conversation that a model was sent is one that providers take; the store is whole."""
    yield from (("malformed", what) for what in evidence.account.malformed)
    for session, report in evidence.answers.first.items():
        yield from (("malformed", f"{session} at rest: {what}") for what in report["problems"])
    yield from (("store", what) for what in evidence.problems)
