"""Dead letters: messages whose turn could never be begun, calls and jobs that failed for good.

A message stays in the store whatever becomes of it; a row of its own, its mark, says that it is no dead letter any
more, or what it is to say when it is sent again. The mark of a letter that is sent again is written in one commit with
the new message: whatever dies when, either both are there or the letter waits as before.

Whoever changes a letter has it alone meanwhile (`changing`): whoever comes second finds what the first has made of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from laneway.errors import ConflictError, LanewayError, NotFoundError, UnknownJobError
from laneway.gateway.lookup import sees_shared
from laneway.gateway.writing import write_row
from laneway.kernel.messages import decode_message
from laneway.mail import MessageState
from laneway.options import SESSION_LANES
from laneway.rows import MessageRow, Owner, StateRow

if TYPE_CHECKING:
    from laneway.agent.session import AsyncSession
    from laneway.gateway.access import Caller
    from laneway.gateway.service import Gateway
    from laneway.gateway.workspaces import Workspace
    from laneway.mail import Receipt
    from laneway.records import DeadLetter

__all__ = (
    "GONE",
    "KIND",
    "DeadCall",
    "DeadJob",
    "DeadMessage",
    "Letter",
    "Sent",
    "changing",
    "dead_messages",
    "edit",
    "find",
    "first_letters",
    "purge",
    "retry",
    "retry_message",
    "sent_before",
)

_log = logging.getLogger("laneway")

KIND: Final = "dead_letter"
OPEN: Final = "open"
EDITED: Final = "edited"
RETRIED: Final = "retried"
PURGED: Final = "purged"
GONE: Final = frozenset({RETRIED, PURGED})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadMessage:
    """A message whose turn could not be begun. `text` is what it says when it is sent again, `became` the new one."""

    workspace: Workspace
    row: MessageRow
    text: str
    is_edited: bool = False
    status: str = OPEN
    became: str | None = None

    @property
    def id(self) -> str:
        """What it is known by."""
        return self.row.id


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadCall:
    """A call of a tool that failed for good, in a session that is in memory."""

    workspace: Workspace
    session: AsyncSession
    letter: Mapping[str, Any]

    @property
    def id(self) -> str:
        """What it is known by."""
        return str(self.letter["command_id"])


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadJob:
    """A job of the server itself; it belongs to no tenant."""

    gateway: Gateway
    letter: DeadLetter

    @property
    def id(self) -> str:
        """What it is known by."""
        return self.letter.id


Letter = DeadMessage | DeadCall | DeadJob


@dataclass(frozen=True, slots=True)
class Sent:
    """What a letter has become: a new message, or a new job."""

    message_id: str | None = None
    job_id: str | None = None


# ---- finding ----


async def dead_messages(workspace: Workspace, rows: list[MessageRow]) -> list[DeadMessage]:
    """The letters that dead messages are, with what their marks say."""
    history = workspace.inbox.engine.store.history
    marks = await history.states_by_id(KIND, [row.id for row in rows]) if rows else []
    return [_dead(workspace, row, mark) for row, mark in zip(rows, marks, strict=True)]


def _dead(workspace: Workspace, row: MessageRow, mark: StateRow | None) -> DeadMessage:
    message, _ = decode_message(row)
    said = _said(mark)
    text = str(said.get("text", message.text))
    facts: dict[str, Any] = {"workspace": workspace, "row": row, "text": text, "is_edited": "text" in said}
    if mark is None or mark.state not in GONE:
        return DeadMessage(**facts)
    return DeadMessage(**facts, status=mark.state, became=said.get("message_id"))


def _said(mark: StateRow | None) -> dict[str, Any]:
    found = {} if mark is None else json.loads(mark.body)
    return found if isinstance(found, dict) else {}


def first_letters(gateway: Gateway, workspace: Workspace, caller: Caller) -> Iterator[DeadCall | DeadJob]:
    """The letters that are in memory: calls of the tenant's sessions, and jobs for those who see what is shared."""
    for session in list(workspace.host.sessions.values()):
        if session.owner.tenant == caller.tenant:
            for letter in session.dead_letters():
                yield DeadCall(workspace=workspace, session=session, letter=letter)
    if workspace is gateway.default and sees_shared(caller):
        for job in gateway.lanes.dead_letters.list():
            if not _is_of_session(job.lane):
                yield DeadJob(gateway=gateway, letter=job)


def _is_of_session(lane: str) -> bool:
    """Whether a lane is one for the tools of a session, which keeps its own letters."""
    scope, _, name = lane.rpartition("/")
    return bool(scope) and name in SESSION_LANES


async def find(gateway: Gateway, caller: Caller, letter_id: str, *, gone: bool = False) -> Letter:
    """A dead letter that a caller may see; with `gone` also one that was sent again, or forgotten."""
    gateway.check_open()
    for workspace in gateway.workspaces.values():
        for letter in first_letters(gateway, workspace, caller):
            if letter.id == letter_id:
                return letter
    history = gateway.store.history
    row = await history.message(letter_id)
    mine = row is not None and row.tenant == caller.tenant and row.workspace in gateway.workspaces
    if row is not None and mine and row.state == MessageState.DEAD_LETTERED:
        dead = _dead(gateway.workspaces[row.workspace], row, await history.state(KIND, letter_id))
        if gone or dead.status not in GONE:
            return dead
    raise _unknown(letter_id)


def _unknown(letter_id: str) -> NotFoundError:
    return NotFoundError(what="dead letter", name=letter_id, hint="GET /v1/dead-letters lists them")


@contextlib.asynccontextmanager
async def changing(gateway: Gateway, caller: Caller, letter_id: str) -> AsyncIterator[Letter]:
    """A letter that nobody else changes meanwhile, as it is now."""
    async with gateway.letter_locks.setdefault(letter_id, asyncio.Lock()):
        yield await find(gateway, caller, letter_id)


async def sent_before(gateway: Gateway, caller: Caller, letter_id: str, by: str) -> Sent | None:
    """What a letter has become, if it was sent again by this very request; `by` is what that is known by."""
    mark = await gateway.store.history.state(KIND, letter_id) if by else None
    if mark is None or mark.state != RETRIED or mark.tenant != caller.tenant:
        return None
    said = _said(mark)
    return Sent(said.get("message_id"), said.get("job_id")) if said.get("by") == by else None


# ---- changing ----


async def edit(letter: Letter, *, text: str | None, args: list[Any] | None) -> Letter:
    """Change what a letter says (a message) or is called with (a job) when it is sent again."""
    match letter:
        case DeadMessage() if text is not None and args is None:
            await _mark(letter, EDITED, {"text": text})
            return replace(letter, text=text, is_edited=True)
        case DeadJob() if args is not None and text is None:
            changed = letter.gateway.lanes.dead_letters.edit(letter.letter.id, args=args)
            return replace(letter, letter=changed)
        case DeadCall():
            raise ConflictError(
                "a call is made again as it was", hint="retry it, or delete it and ask for something else"
            )
        case _:
            wanted = "text" if isinstance(letter, DeadMessage) else "args"
            raise ConflictError(f"of this letter only `{wanted}` can be changed", hint=f'{{"{wanted}": …}}')


async def retry(letter: Letter, caller: Caller, *, by: str = "") -> Sent:
    """Send it again; it is no dead letter any more. `by` is the request that asks for it, if that has a key."""
    match letter:
        case DeadMessage():
            receipt = await _sent_again(letter, by)
            return Sent(message_id=receipt.message_id)
        case DeadCall():
            assert letter.session.lanes is not None
            with _known(letter.id):
                sent = Sent(job_id=letter.session.lanes.retry_dead_letter(letter.id).id)
            await _note(letter.workspace.inbox.engine.store, letter.session.owner, letter.id, sent, by)
            return sent
        case DeadJob(gateway=gateway):
            with _known(letter.id):
                sent = Sent(job_id=gateway.lanes.dead_letters.retry(letter.id)[0].id)
            await _note(gateway.store, Owner(caller.tenant, gateway.default.name), letter.id, sent, by)
            return sent


async def retry_message(gateway: Gateway, caller: Caller, message_id: str) -> Receipt:
    """Send a dead message again for whoever talks to its session; it is no dead letter any more then."""
    async with gateway.letter_locks.setdefault(message_id, asyncio.Lock()):
        letter = await find(gateway, caller, message_id, gone=True)
        assert isinstance(letter, DeadMessage)
        if letter.status == RETRIED:
            raise ConflictError(
                f"it was sent again already, as {letter.became}",
                hint="GET /v1/messages/{id} says what became of that",
                message_id=letter.became,
            )
        return await _sent_again(letter, "")


async def purge(letter: Letter) -> None:
    """Forget it. A message stays in the history."""
    match letter:
        case DeadMessage():
            await _mark(letter, PURGED, {})
        case DeadCall():
            assert letter.session.lanes is not None
            with _known(letter.id):
                letter.session.lanes.purge_dead_letters(letter.id)
        case DeadJob():
            with _known(letter.id):
                letter.gateway.lanes.dead_letters.purge(letter.id)


@contextlib.contextmanager
def _known(letter_id: str) -> Iterator[None]:
    """Letters in memory may go by themselves: the oldest one when there are too many, all with their session."""
    try:
        yield
    except UnknownJobError:
        raise _unknown(letter_id) from None


async def _sent_again(letter: DeadMessage, by: str) -> Receipt:
    """A new message. Its mark is in the same commit: a crash leaves both or none."""
    store, row = letter.workspace.inbox.engine.store, letter.row

    def mark(receipt: Receipt) -> StateRow | None:
        if receipt.disposition is MessageState.REJECTED:
            return None  # nothing will come of the new one: the letter waits for a better moment
        facts = {"message_id": receipt.message_id, "by": by}
        facts |= {"text": letter.text} if letter.is_edited else {}
        return _mark_row(letter, store.next_seq(), RETRIED, facts)

    text = letter.text if letter.is_edited else None
    receipt = await letter.workspace.inbox.retry(row.id, text=text, beside=mark)
    if receipt.disposition is MessageState.REJECTED:
        raise ConflictError(
            f"its session does not take it now: {receipt.reason}", hint="send it again later", letter_id=row.id
        )
    return receipt


async def _mark(letter: DeadMessage, state: str, facts: Mapping[str, Any]) -> None:
    store = letter.workspace.inbox.engine.store
    await write_row(store, _mark_row(letter, store.next_seq(), state, facts), what="what became of the dead letter")


def _mark_row(letter: DeadMessage, seq: int, state: str, facts: Mapping[str, Any]) -> StateRow:
    row = letter.row
    return StateRow(KIND, row.id, *Owner(row.tenant, row.workspace, row.session), seq, 0, state, json.dumps(facts))


async def _note(store: Any, owner: Owner, letter_id: str, sent: Sent, by: str) -> None:
    """For whoever asks the same again: what a letter in memory has become. It has, whether this is kept or not."""
    if not by:
        return
    body = json.dumps({"job_id": sent.job_id, "by": by})
    try:
        row = StateRow(KIND, letter_id, *owner, store.next_seq(), 0, RETRIED, body)
        await write_row(store, row, what="what became of the dead letter")
    except LanewayError as error:
        _log.warning("letter %s was sent again, and that could not be kept: %s", letter_id, error)
