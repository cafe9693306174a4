"""Many dead letters at once: pages of those that are asked for, and one action for all of them.

A page begins with the letters that are in memory, by when they died; messages follow, by their numbers. A cursor says
where the rest begins: `c.<when it died>.<id>` in the first part, a number in the second.

What was asked for with a key is kept before anything is done: whoever asks again with it, after a crash too, is told
what became of the same letters, and those that were not dealt with are dealt with then.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from laneway.errors import ConflictError, InvalidMessageError, LanewayError, NotFoundError
from laneway.gateway import dead_mail
from laneway.gateway.dead_mail import DeadCall, DeadJob, DeadMessage, Letter, Sent
from laneway.gateway.letter_facts import LetterQuery, kind_of, letter_facts
from laneway.gateway.tokens import GATEWAY
from laneway.gateway.views import seq_of
from laneway.gateway.writing import write_row
from laneway.mail import MessageState
from laneway.rows import MessageRow, Owner, StateRow

if TYPE_CHECKING:
    from laneway.gateway.access import Caller
    from laneway.gateway.service import Gateway
    from laneway.gateway.workspaces import Workspace

__all__ = ("Action", "Chosen", "Dealer", "Dealt", "Letters", "chosen", "key_of")

PLAN: Final = "letters_plan"
PLANS: Final = "letters"
SCAN: Final = 500
SCANNED_MAX: Final = 20_000  # messages that one request looks through; the cursor goes on from there
NAMED_MAX: Final = 100
MEMORY_MARK: Final = "c."

Action = Literal["retry", "purge"]


# ---- pages ----


@dataclass(frozen=True, slots=True)
class Letters:
    """The dead letters of a workspace, as one caller sees them."""

    gateway: Gateway
    caller: Caller
    workspace: Workspace

    async def page(
        self, query: LetterQuery, *, after: str = "", limit: int = 200, newest: bool = False
    ) -> tuple[list[Letter], str | None]:
        """Letters that are asked for, and the cursor of the rest; None at the end."""
        found: list[Letter] = []
        if not after or after.startswith(MEMORY_MARK):
            kept = self._in_memory(query, after, newest=newest)
            found += kept[:limit]
            if len(kept) > limit:
                return found, _cursor(found[-1])
            after = ""
        if not query.wants_messages:
            return found, None
        if len(found) == limit:
            return found, "0"
        more, rest = await self._messages(query, seq_of(after), limit - len(found), newest=newest)
        return [*found, *more], str(rest) if rest else None

    def _in_memory(self, query: LetterQuery, after: str, *, newest: bool) -> list[DeadCall | DeadJob]:
        if not query.wants_memory:
            return []
        letters = dead_mail.first_letters(self.gateway, self.workspace, self.caller)
        fitting = sorted(filter(query.fits, letters), key=_place, reverse=newest)
        if not after:
            return fitting
        seen = _place_of(after)
        return [each for each in fitting if (_place(each) < seen if newest else _place(each) > seen)]

    async def _messages(
        self, query: LetterQuery, seq: int, limit: int, *, newest: bool
    ) -> tuple[list[DeadMessage], int]:
        """Dead messages, and the number where the rest begins; 0 at the end."""
        found: list[DeadMessage] = []
        for _ in range(0, SCANNED_MAX, SCAN):
            rows = await self._rows(seq, newest=newest)
            for letter in await dead_mail.dead_messages(self.workspace, rows):
                seq = letter.row.seq
                if query.fits(letter):
                    found.append(letter)
                    if len(found) == limit:
                        return found, 0 if len(rows) < SCAN and letter.row is rows[-1] else seq
            if len(rows) < SCAN:
                return found, 0
        return found, seq

    async def _rows(self, seq: int, *, newest: bool) -> list[MessageRow]:
        history, owner = self.gateway.store.history, Owner(self.caller.tenant, self.workspace.name)
        state = MessageState.DEAD_LETTERED.value
        if newest:
            return await history.messages_newest(owner, state=state, before_seq=seq, limit=SCAN)
        return await history.messages(owner, state=state, after_seq=seq, limit=SCAN)


def _came(letter: Letter) -> tuple[int, int]:
    """When it came: messages by their numbers, everything else by its end."""
    return (0, letter.row.seq) if isinstance(letter, DeadMessage) else (1, letter_facts(letter)["died_ms"])


def _place(letter: Letter) -> tuple[int, str]:
    return letter_facts(letter)["died_ms"], letter.id


def _cursor(letter: Letter) -> str:
    died_ms, letter_id = _place(letter)
    return f"{MEMORY_MARK}{died_ms}.{letter_id}"


def _place_of(cursor: str) -> tuple[int, str]:
    died, _, letter_id = cursor.removeprefix(MEMORY_MARK).partition(".")
    if not (died.isascii() and died.isdecimal() and len(died) <= 19 and letter_id):
        raise InvalidMessageError("this is no cursor of this list", hint="use what `next` said, as it is")
    return int(died), letter_id


# ---- one action for many ----


@dataclass(frozen=True, slots=True)
class Chosen:
    """The letters that something is to be done to, and where the rest of those begins that were asked for."""

    ids: list[str]
    rest: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """What became of one letter: `sent`, `purged`, `gone` (somebody else was faster, or it never was) or `refused`."""

    letter_id: str
    kind: str | None = None
    outcome: Literal["sent", "purged", "gone", "refused"]
    sent: Sent = field(default_factory=Sent)
    error: LanewayError | None = None


def key_of(caller: Caller, key: str | None) -> str:
    """What a request with a key is known by in the store; empty without one."""
    if not key:
        return ""
    return hashlib.sha256(f"{caller.tenant}\0{key}".encode("utf-8", "surrogatepass")).hexdigest()[:40]


async def chosen(gateway: Gateway, caller: Caller, asked: Any, first: Chosen, by: str) -> Chosen:
    """What a request is about: the letters that it named the first time, if it has a key and has come before."""
    if not by:
        return first
    row = await gateway.store.history.state(PLAN, by)
    if row is None:
        body = json.dumps({"asked": asked, "ids": first.ids, "rest": first.rest})
        owner = Owner(caller.tenant, GATEWAY, PLANS)
        plan = StateRow(PLAN, by, *owner, gateway.store.next_seq(), 0, "asked", body)
        await write_row(gateway.store, plan, what="what is to be done to dead letters")
        return first
    plan_body = json.loads(row.body)
    if plan_body["asked"] != json.loads(json.dumps(asked)):
        raise ConflictError("this key was used for something else", hint="take a new Idempotency-Key for a new request")
    return Chosen(plan_body["ids"], plan_body["rest"])


@dataclass(frozen=True, slots=True)
class Dealer:
    """Does one thing to many letters. `by` is what the request is known by, if it has a key."""

    gateway: Gateway
    caller: Caller
    action: Action
    by: str = ""

    async def deal_with(self, letters: Sequence[str], reason: str = "") -> list[Dealt]:
        """Send letters again, or forget them; one that is refused changes nothing for the others.

        Letters of one session are dealt with in the order in which they came.
        """
        ids = list(dict.fromkeys(letters))
        lines, dealt = await self._by_session(ids), dict[str, Dealt]()
        if lines:
            named = {"letters": ids[:NAMED_MAX], "count": len(ids)}
            action, target = f"dead_letter.{self.action}_many", f"{len(ids)} letters"
            await self.gateway.audit.record(self.caller, action, target, reason=reason, **named)

        async def one_by_one(line: list[str]) -> None:
            for each in line:
                dealt[each] = await self._deal_with_one(each)

        await asyncio.gather(*(one_by_one(line) for line in lines.values()))
        return [dealt[each] if each in dealt else await self._gone(each) for each in ids]

    async def _by_session(self, ids: Sequence[str]) -> dict[tuple[str, str], list[str]]:
        """The letters that are there, by their sessions, in the order in which they came, whoever named them how."""
        there: list[Letter] = []
        for each in ids:
            with contextlib.suppress(NotFoundError):
                there.append(await dead_mail.find(self.gateway, self.caller, each))
        lines: dict[tuple[str, str], list[str]] = {}
        for letter in sorted(there, key=_came):
            facts = letter_facts(letter)
            name = (facts.get("workspace") or "", facts.get("session_key") or "")
            lines.setdefault(name, []).append(facts["letter_id"])
        return lines

    async def _deal_with_one(self, letter_id: str) -> Dealt:
        kind: str | None = None
        try:
            async with dead_mail.changing(self.gateway, self.caller, letter_id) as letter:
                kind = kind_of(letter)
                if self.action == "purge":
                    await dead_mail.purge(letter)
                    return Dealt(letter_id=letter_id, kind=kind, outcome="purged")
                self.gateway.admission.check()
                sent = await dead_mail.retry(letter, self.caller, by=self.by)
                return Dealt(letter_id=letter_id, kind=kind, outcome="sent", sent=sent)
        except NotFoundError:
            return await self._gone(letter_id)
        except LanewayError as error:
            return Dealt(letter_id=letter_id, kind=kind, outcome="refused", error=error)

    async def _gone(self, letter_id: str) -> Dealt:
        """It is not there: perhaps because this very request has sent it before its answer was lost."""
        sent = await dead_mail.sent_before(self.gateway, self.caller, letter_id, self.by)
        if sent is None:
            return Dealt(letter_id=letter_id, outcome="gone")
        return Dealt(letter_id=letter_id, kind="message" if sent.message_id else None, outcome="sent", sent=sent)
