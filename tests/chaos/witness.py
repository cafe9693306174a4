"""The witness: a side file in which the process under test writes what it does before it does it.

A line is one `write` to a file opened with O_APPEND: the kernel has it then, and SIGKILL cannot take it back. (A power
cut could; that is not what is tested here.) A line that a kill has torn is skipped and counted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ("Account", "Poked", "Ran", "TurnSeen", "Witness", "read_witness")


class Witness:
    """The writing side."""

    def __init__(self, path: Path, life: int, *, synced: bool = False) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self._life = life
        self._synced = synced

    def note(self, what: str, *facts: Any) -> None:
        """Write a line; the line break in front separates it from one that was torn."""
        os.write(self._fd, f"\n{json.dumps([what, self._life, *facts])}\n".encode())
        if self._synced:
            os.fsync(self._fd)


class Ran(NamedTuple):
    """That a turn began over a message, or took it in at a boundary."""

    place: int
    life: int
    turn_id: str
    message_id: str
    number: int
    text: str = ""


class Poked(NamedTuple):
    """Something that was done to a session: when it was asked for, and when it was acknowledged."""

    number: int
    what: str
    session: str
    message_id: str
    asked: int
    done: int


@dataclass(slots=True)
class TurnSeen:
    """One turn as its handler saw it. `told` is how many dropped messages its prompt tells of."""

    turn_id: str
    session: str
    life: int
    began: int
    told: int
    ended: int | None = None
    how: str = ""


@dataclass(slots=True)
class Account:
    """Everything the witness says, in the order in which it happened."""

    turns: dict[str, TurnSeen] = field(default_factory=dict)
    begun: list[Ran] = field(default_factory=list)
    taken: list[Ran] = field(default_factory=list)
    finals: dict[str, list[tuple[int, str, str]]] = field(default_factory=dict)
    accepted: dict[str, tuple[int, str]] = field(default_factory=dict)
    pokes: list[Poked] = field(default_factory=list)
    asked: dict[int, int] = field(default_factory=dict)
    children: dict[str, bool] = field(default_factory=dict)
    jobs_begun: dict[int, list[int]] = field(default_factory=dict)
    jobs_ended: dict[int, list[int]] = field(default_factory=dict)
    turns_begun_twice: int = 0
    torn: int = 0

    def add(self, place: int, what: str, life: int, facts: list[Any]) -> None:
        """Take in one line."""
        match what:
            case "begin":
                turn_id, session, messages, told = facts
                self.turns_begun_twice += turn_id in self.turns
                self.turns[turn_id] = TurnSeen(turn_id, session, life, place, told)
                self.begun += [Ran(place, life, turn_id, *message) for message in messages]
            case "took":
                turn_id, messages = facts
                self.taken += [Ran(place, life, turn_id, *message) for message in messages]
            case "end":
                turn_id, how = facts
                self.turns[turn_id].ended, self.turns[turn_id].how = place, how
            case "final":
                message_id, state, outcome = facts
                self.finals.setdefault(message_id, []).append((place, state, outcome))
            case "accepted":
                message_id, session = facts
                self.accepted.setdefault(message_id, (place, session))
            case "poke":
                self.asked[facts[0]] = place
            case "poked":
                number, doing, session, message_id = facts
                self.pokes.append(Poked(number, doing, session, message_id, self.asked[number], place))
            case "child":
                label, is_awaited = facts
                self.children[label] = is_awaited
            case "job-begin":
                self.jobs_begun.setdefault(facts[0], []).append(life)
            case "job-end":
                self.jobs_ended.setdefault(facts[0], []).append(life)
            case _:
                raise AssertionError(what)


def read_witness(path: Path) -> Account:
    """What the witness says."""
    account = Account()
    for place, line in enumerate(_lines(path)):
        try:
            what, life, *facts = json.loads(line)
        except ValueError:
            account.torn += 1
        else:
            account.add(place, what, life, facts)
    return account


def _lines(path: Path) -> Iterator[str]:
    if path.exists():
        with path.open(encoding="utf-8", errors="replace") as lines:
            yield from (line for line in lines if line.strip())
