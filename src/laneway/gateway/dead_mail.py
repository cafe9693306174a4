"""Dead letters: messages whose turn could never be begun, calls and jobs that failed for good.

A message stays in the store whatever becomes of it; a row of its own says that it is no dead letter any more, or what
it is to say when it is sent again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from laneway.errors import ConflictError, NotFoundError
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
    "DeadCall",
    "DeadJob",
    "DeadMessage",
    "Letter",
    "edit",
    "find",
    "first_letters",
    "messages",
    "purge",
    "retry",
)

KIND: Final = "dead_letter"
EDITED: Final = "edited"
GONE: Final = frozenset({"retried", "purged"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadMessage:
    """A message whose turn could not be begun. `text` is what it says when it is sent again."""

    workspace: Workspace
    row: MessageRow
    text: str
    is_edited: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadCall:
    """A call of a tool that failed for good, in a session that is in memory."""

    workspace: Workspace
    session: AsyncSession
    letter: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadJob:
    """A job of the server itself; it belongs to no tenant."""

    gateway: Gateway
    letter: DeadLetter


Letter = DeadMessage | DeadCall | DeadJob


# ---- finding ----


async def messages(workspace: Workspace, tenant: str, *, after_seq: int, limit: int) -> tuple[list[DeadMessage], int]:
    """Dead messages of a tenant, oldest first, and the cursor of the rest; 0 at the end."""
    history = workspace.inbox.engine.store.history
    owner = Owner(tenant, workspace.name)
    state = MessageState.DEAD_LETTERED.value
    rows = await history.messages(owner, state=state, after_seq=after_seq, limit=limit)
    marks = await history.states_by_id(KIND, [row.id for row in rows]) if rows else []
    found = [
        _dead(workspace, row, mark)
        for row, mark in zip(rows, marks, strict=True)
        if mark is None or mark.state not in GONE
    ]
    return found, rows[-1].seq if len(rows) >= limit else 0


def _dead(workspace: Workspace, row: MessageRow, mark: StateRow | None) -> DeadMessage:
    message, _ = decode_message(row)
    if mark is None or mark.state != EDITED:
        return DeadMessage(workspace=workspace, row=row, text=message.text)
    return DeadMessage(workspace=workspace, row=row, text=str(json.loads(mark.body)["text"]), is_edited=True)


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


async def find(gateway: Gateway, caller: Caller, letter_id: str) -> Letter:
    """A dead letter that a caller may see."""
    gateway.check_open()
    for workspace in gateway.workspaces.values():
        for letter in first_letters(gateway, workspace, caller):
            name = letter.letter["command_id"] if isinstance(letter, DeadCall) else letter.letter.id
            if name == letter_id:
                return letter
    history = gateway.store.history
    row = await history.message(letter_id)
    mine = row is not None and row.tenant == caller.tenant and row.workspace in gateway.workspaces
    if row is not None and mine and row.state == MessageState.DEAD_LETTERED:
        mark = await history.state(KIND, letter_id)
        if mark is None or mark.state not in GONE:
            return _dead(gateway.workspaces[row.workspace], row, mark)
    raise _unknown(letter_id)


def _unknown(letter_id: str) -> NotFoundError:
    return NotFoundError(what="dead letter", name=letter_id, hint="GET /v1/dead-letters lists them")


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


async def retry(letter: Letter) -> tuple[str | None, str | None]:
    """Send it again: the id of the new message, or of the new job. It is no dead letter any more."""
    match letter:
        case DeadMessage():
            busy = letter.workspace.retrying
            if letter.row.id in busy:
                raise _unknown(letter.row.id)  # somebody else is doing it at this moment
            busy.add(letter.row.id)
            try:
                receipt = await _sent_again(letter)
                await _mark(letter, "retried", {"message_id": receipt.message_id})
            finally:
                busy.discard(letter.row.id)
            return receipt.message_id, None
        case DeadCall():
            assert letter.session.lanes is not None
            return None, letter.session.lanes.retry_dead_letter(letter.letter["command_id"]).id
        case DeadJob():
            return None, letter.gateway.lanes.dead_letters.retry(letter.letter.id)[0].id


async def purge(letter: Letter) -> None:
    """Forget it. A message stays in the history."""
    match letter:
        case DeadMessage():
            await _mark(letter, "purged", {})
        case DeadCall():
            assert letter.session.lanes is not None
            letter.session.lanes.purge_dead_letters(letter.letter["command_id"])
        case DeadJob():
            letter.gateway.lanes.dead_letters.purge(letter.letter.id)


async def _sent_again(letter: DeadMessage) -> Receipt:
    inbox = letter.workspace.inbox
    if not letter.is_edited:
        return await inbox.retry(letter.row.id)
    message, _ = decode_message(letter.row)
    return await inbox.submit(
        message.session_key,
        letter.text,
        channel=message.channel,
        account=message.account,
        thread=message.thread,
        chat_type=message.chat_type,
        sender=message.sender,
        mode=message.mode,
        kind=message.kind,
        priority=message.priority,
        tenant=message.tenant,
        attachments=message.attachments,
    )


async def _mark(letter: DeadMessage, state: str, facts: Mapping[str, Any]) -> None:
    store = letter.workspace.inbox.engine.store
    row = letter.row
    owner = Owner(row.tenant, row.workspace, row.session)
    mark = StateRow(KIND, row.id, *owner, store.next_seq(), 0, state, json.dumps(facts))
    await write_row(store, mark, what="what became of the dead letter")
