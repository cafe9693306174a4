"""What is stored of sessions, read back at a start: mail, turns, questions, sub-agents, settings.

A session with a row of which nothing can be made is set aside as a whole: half of it would run as if the rest had never
been. Its rows stay as they are, and the other sessions go on.
"""

from __future__ import annotations

import json
from typing import Any, Final, NamedTuple

from laneway.errors import LanewayError, describe
from laneway.kernel.checkpoints import check_shape, refuse
from laneway.kernel.mailbox import ApprovalEntry, ChildEntry, SessionEntry, decode_approval
from laneway.kernel.messages import Item, TurnEntry, decode_sender
from laneway.mail import MessageKind, Mode, Route, TurnState
from laneway.rows import Loaded, Owner, StateRow

__all__ = ("UNREADABLE", "Recalled", "entry_of", "recall")

UNREADABLE: Final = (LanewayError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)
"""What reading a row raises when nothing can be made of it."""

Entry = TurnEntry | SessionEntry | ChildEntry | ApprovalEntry

_TURN: Final[dict[str, type]] = {
    "messages": list,
    "injected": list,
    "mode": str,
    "kind": str,
    "began_ms": int,
    "ended_ms": int,
    "reason": str,
    "conversation": int,
    "depth": int,
    "tokens": int,
    "cancelled": str,
    "stopped": bool,
    "forget": bool,
}
_CHILD: Final[dict[str, type]] = {"turn_id": str, "label": str, "awaited": bool, "text": str, "route": list}
_CHILD_MAYBE: Final[dict[str, type]] = {"silenced": bool, "detail": dict, "depth": int, "ends_with": str}


class Recalled(NamedTuple):
    """What a store has of sessions; `unreadable` are those that were set aside, each with the reason."""

    entries: list[Entry]
    items: list[Item]
    unreadable: dict[Owner, str]


def recall(loaded: Loaded, *, now: int, wall: int) -> Recalled:
    """Read all live rows, in their order."""
    entries: list[Entry] = []
    items: list[Item] = []
    unreadable: dict[Owner, str] = {}
    for row in loaded.states:
        try:
            entry = entry_of(row, now=now, wall=wall)
        except UNREADABLE as error:
            unreadable.setdefault(Owner(row.tenant, row.workspace, row.session), _why(row.kind, row.id, error))
        else:
            if entry is not None:
                entries.append(entry)
    for message in loaded.messages:
        try:
            items.append(Item.from_row(message))
        except UNREADABLE as error:
            owner = Owner(message.tenant, message.workspace, message.session)
            unreadable.setdefault(owner, _why("message", message.id, error))
    if unreadable:
        entries = [entry for entry in entries if entry.owner not in unreadable]
        items = [item for item in items if item.owner not in unreadable]
    return Recalled(entries, items, unreadable)


def entry_of(row: StateRow, *, now: int = 0, wall: int = 0) -> Entry | None:
    """What the row of a session was made of; None: it is of a kind that only others read."""
    match row.kind:
        case "turn":
            return _turn_of(row, now, wall)
        case "session":
            session = SessionEntry(Owner(row.tenant, row.workspace, row.session))
            session.read(_body_of(row))
            return session
        case "child":
            return _child_of(row)
        case "approval":
            owner = Owner(row.tenant, row.workspace, row.session)
            return ApprovalEntry(owner, decode_approval(row, _body_of(row)), seq=row.seq)
        case _:
            return None


def _why(kind: str, name: str, error: Exception) -> str:
    return f"{kind} {name!r}: {describe(error)}"


def _body_of(row: StateRow) -> dict[str, Any]:
    body = json.loads(row.body)
    if type(body) is not dict:
        refuse(row, "its body is no mapping")
    return body


def _turn_of(row: StateRow, now: int, wall: int) -> TurnEntry:
    body = _body_of(row)
    check_shape(row, body, _TURN, {})
    if not isinstance(body.get("answer"), str | None):
        refuse(row, "its answer is no text")
    began_at = now - min(max(0, wall - body["began_ms"]), now)
    owner = Owner(row.tenant, row.workspace, row.session)
    turn = TurnEntry(row.id, owner, seq=row.seq, began_ms=body["began_ms"], began_at=began_at)
    turn.state = TurnState.THINKING
    turn.mode, turn.kind = Mode(body["mode"]), MessageKind(body["kind"])
    turn.depth, turn.tokens, turn.conversation = body["depth"], body["tokens"], body["conversation"]
    turn.cancelled, turn.stopped, turn.forget = body["cancelled"], body["stopped"], body["forget"]
    return turn


def _child_of(row: StateRow) -> ChildEntry:
    body = _body_of(row)
    check_shape(row, body, _CHILD, _CHILD_MAYBE)
    owner = Owner(row.tenant, row.workspace, row.session)
    child = ChildEntry(owner, row.id, seq=row.seq, turn_id=body["turn_id"], label=body["label"])
    child.awaited, child.text, child.state = body["awaited"], body["text"], row.state
    child.silenced = body.get("silenced", False)
    child.ends_with = body.get("ends_with", child.turn_id)
    child.route = Route(**dict(zip(("channel", "account", "thread", "chat_type"), body["route"], strict=True)))
    child.sender = decode_sender(body["sender"])
    child.detail = body.get("detail", {})
    child.depth = body.get("depth", 0)
    return child
