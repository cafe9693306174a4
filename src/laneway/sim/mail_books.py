"""What the simulator writes down by itself: every message sent, every turn that a handler really saw, every sub-agent.

Messages are known by a tag, the first word of their text, because a sender whose call failed never learns an id. The
laws that can be held against a single event are checked here at once; the rest at the end, by `mail_checks`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from laneway.kernel.messages import CUTTING
from laneway.mail import Message, MessageKind, Mode, OnCrash, Route, Sender
from laneway.rows import Owner
from laneway.runtime.turns import Turn
from laneway.sim.mail_world import MailWorld
from laneway.sim.shadow import LawBrokenError

__all__ = ("Books", "ChildRecord", "Letter", "Life", "TurnRecord", "Verdict", "tag_of")

OVERFLOW = "[Queue overflow] Dropped "


class Verdict(Enum):
    """What a sender was told."""

    SENT = "sent"  # no answer yet
    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    REFUSED = "refused"  # by a rule: nothing may have changed
    FAILED = "failed"  # by the store, or the process died: it may have been taken
    COMMAND = "command"


class Life:
    """One process: from opening an inbox to its end."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.is_dead = False  # nothing of it runs any more
        self.is_lost = False  # another process has taken the store over
        self.is_closing = False


@dataclass(slots=True, kw_only=True, eq=False)
class Letter:
    """One message as it was sent."""

    tag: str
    owner: Owner
    texts: list[str]  # as sent, then as edited; an edit that failed may count or not
    route: Route
    sender: Sender | None
    mode: Mode | None
    kind: MessageKind = MessageKind.USER
    platform_id: str | None = None
    prefix: str = ""  # a command in front of the text
    verdict: Verdict = Verdict.SENT
    id: str = ""
    touched: bool = False  # somebody held, moved or aimed it: its order is no longer by arrival
    begun: list[TurnRecord] = field(default_factory=list)


@dataclass(slots=True, kw_only=True, eq=False)
class TurnRecord:
    """One call of a handler."""

    life: Life
    turn: Turn
    owner: Owner
    tags: list[str]
    said: list[str] = field(default_factory=list)  # replies that were taken
    end: str = ""  # how the handler ended: return, raise, cancel, garbage
    answer: str | None = None
    is_inside: bool = True


@dataclass(slots=True, kw_only=True, eq=False)
class ChildRecord:
    """One sub-agent."""

    label: str
    owner: Owner
    life: Life
    id: str = ""
    awaited: bool = False  # its turn got the result, or waits for it
    doubtful: bool = False  # a crash, a stop or a failing store met it: none or one message
    ran: int = 0


def tag_of(text: str) -> str:
    """The tag of a message: its first word, or the label or text that a note of Laneway's quotes."""
    if text.startswith("[System note] Sub-agent"):
        return text.split('"')[1]
    if text.startswith("[System note]"):
        return text.splitlines()[1].split()[0]
    return text.split()[0]


class Books:
    """The record of one run, over all its lives."""

    def __init__(self, world: MailWorld) -> None:
        self.world = world
        self.on_crash = OnCrash(world.options["on_crash"])
        self.letters: dict[str, Letter] = {}
        self.turns: dict[str, TurnRecord] = {}
        self.children: dict[str, ChildRecord] = {}
        self.taken: dict[str, list[str]] = {}  # ids given at the boundaries of each turn
        self.inside: dict[Owner, list[TurnRecord]] = {}
        self.overflow_told = 0
        self.stopped: set[Owner] = set()  # sessions that were stopped or cleared: overflow lines may be gone
        self.starts = 0
        self._numbers = 0
        self._order: dict[tuple[Owner, Mode], tuple[int, str]] = {}

    def next_tag(self, kind: str) -> str:
        """A word that no other text begins with."""
        self._numbers += 1
        return f"{kind}{self._numbers}"

    def by_id(self, message_id: str) -> Letter | None:
        """The letter of a message, if its sender knows the id."""
        return next((letter for letter in self.letters.values() if letter.id == message_id), None)

    def stop(self, owner: Owner) -> None:
        """Somebody ends what is going on in a session: its sub-agents end without a word."""
        self.stopped.add(owner)
        for child in self.children.values():
            if child.owner == owner:
                child.doubtful = True

    # ---- turns ----

    def begin(self, life: Life, turn: Turn, seqs: dict[str, int]) -> TurnRecord:
        """The first line of a handler runs: everything about the turn is looked at."""
        owner = Owner(turn.tenant, turn.workspace, turn.session_key)
        record = TurnRecord(life=life, turn=turn, owner=owner, tags=[tag_of(each.text) for each in turn.messages])
        if turn.id in self.turns:
            raise LawBrokenError(f"turn {turn.id} was given to a handler twice")
        self.turns[turn.id] = record
        self.inside.setdefault(owner, []).append(record)
        self.starts += 1
        if life.is_dead:
            raise LawBrokenError(f"turn {turn.id} began in a process that is dead")
        self.check_single(owner)
        if turn.state.is_final:
            raise LawBrokenError(f"turn {turn.id} was {turn.state} before its first line")
        if not turn.messages:
            self._check_overflow(turn)
        self._check_equal(turn)
        for message in turn.messages:
            self._check_begin(record, message, seqs)
        self._check_prompt(turn)
        return record

    def leave(self, record: TurnRecord, end: str) -> None:
        """The last line of a handler has run."""
        record.end = end
        record.is_inside = False
        self.inside[record.owner].remove(record)

    def check_single(self, owner: Owner) -> None:
        """At most one unfenced turn in a session."""
        unfenced = [
            record
            for record in self.inside.get(owner, ())
            if not record.life.is_dead and not record.life.is_lost and not record.turn.state.is_final
        ]
        if len(unfenced) > 1:
            names = ", ".join(f"{record.turn.id} ({record.turn.state})" for record in unfenced)
            raise LawBrokenError(f"two unfenced turns in {owner.session}: {names}")

    def _check_equal(self, turn: Turn) -> None:
        keys = {
            (each.route, None if each.sender is None else (each.sender.owner, each.sender.rights), each.kind)
            for each in turn.messages
        }
        if len(keys) > 1:
            raise LawBrokenError(f"turn {turn.id} mixes {keys}")
        if len(turn.messages) > 1 and turn.messages[0].kind is not MessageKind.USER:
            raise LawBrokenError(f"turn {turn.id} merges {len(turn.messages)} system messages")
        if any(each.route != turn.route for each in turn.messages):
            raise LawBrokenError(f"turn {turn.id} answers on {turn.route}, not where its message came from")

    def _check_begin(self, record: TurnRecord, message: Message, seqs: dict[str, int]) -> None:
        tag = tag_of(message.text)
        letter = self.letters.get(tag)
        if letter is None:
            return  # a note: sub-agents, follow-ups and schedules have their own laws
        if letter.verdict in (Verdict.REFUSED, Verdict.COMMAND):
            raise LawBrokenError(f"{tag} was refused, and runs in {record.turn.id}")
        if message.id not in seqs:
            raise LawBrokenError(f"{tag} runs in {record.turn.id}, and the store does not have it")
        is_first = letter.verdict is Verdict.ACCEPTED and not letter.platform_id and message.retry_of is None
        if is_first and letter.id != message.id:
            raise LawBrokenError(f"{tag} is {letter.id}, but {message.id} runs")
        if message.text not in letter.texts:
            raise LawBrokenError(f"{tag} runs as {message.text!r}, which is none of {letter.texts}")
        if message.retry_of is None:
            self._check_once(letter, record)
            letter.begun.append(record)
            self._check_order(letter, record, message, seqs)

    def _check_once(self, letter: Letter, record: TurnRecord) -> None:
        for earlier in letter.begun:
            again = earlier.life is not record.life and self.on_crash is OnCrash.RERUN
            if not again:
                raise LawBrokenError(f"{letter.tag} ran in {earlier.turn.id}, and runs again in {record.turn.id}")

    def _check_order(self, letter: Letter, record: TurnRecord, message: Message, seqs: dict[str, int]) -> None:
        if letter.touched or message.mode in CUTTING or record.turn.mode in CUTTING:
            return
        seq = seqs[message.id]
        last, last_tag = self._order.get((record.owner, message.mode), (0, ""))
        if seq < last and not self.letters[last_tag].touched and len(letter.begun) == 1:
            raise LawBrokenError(f"{letter.tag} came before {last_tag} (both {message.mode}), and runs after it")
        if seq > last:
            self._order[record.owner, message.mode] = (seq, letter.tag)

    def _check_prompt(self, turn: Turn) -> None:
        messages = turn.messages
        if len(messages) == 1:
            wanted = messages[0].text
        elif messages:
            blocks = ["[Queued messages while agent was busy]"]
            for number, each in enumerate(messages, 1):
                name = "" if each.sender is None else f" (from {each.sender.name or each.sender.id})"
                blocks.append(f"\n\n---\nQueued #{number}{name}\n{each.text}")
            wanted = "".join(blocks)
        else:
            return
        if turn.prompt != wanted:
            raise LawBrokenError(f"the prompt of {turn.id} is {turn.prompt!r}, not {wanted!r}")

    def _check_overflow(self, turn: Turn) -> None:
        if not turn.prompt.startswith(OVERFLOW):
            raise LawBrokenError(f"turn {turn.id} is about nothing: {turn.prompt!r}")
        self.overflow_told += int(turn.prompt.removeprefix(OVERFLOW).split()[0])

    def take(self, record: TurnRecord, messages: list[Message]) -> None:
        """A boundary has given messages to a handler."""
        turn = record.turn
        taken = self.taken.setdefault(turn.id, [])
        for message in messages:
            if message.id in taken:
                raise LawBrokenError(f"turn {turn.id} was given {message.id} twice")
            if any(message.id == each.id for each in turn.messages):
                raise LawBrokenError(f"turn {turn.id} was given {message.id}, over which it began")
            letter = self.letters.get(tag_of(message.text))
            if letter is not None and letter.verdict is Verdict.REFUSED:
                raise LawBrokenError(f"{letter.tag} was refused, and went into {turn.id}")
            if message.kind is not MessageKind.USER and turn.kind is MessageKind.USER:
                raise LawBrokenError(f"{message.id}, a {message.kind} message, went into the user's turn {turn.id}")
            if turn.messages and rights_of(message) != rights_of(turn.messages[0]):
                raise LawBrokenError(f"{message.id} went into {turn.id}, which has another route or other rights")
            taken.append(message.id)


def rights_of(message: Message) -> tuple[Any, ...]:
    """What must be equal for messages to share a turn."""
    sender = message.sender
    return (message.route, None if sender is None else (sender.owner, sender.rights))
