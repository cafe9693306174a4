"""What a store keeps, as rows. The kernel and the engine never see SQL; a store never sees a decision.

A row says everything about its thing at one moment and replaces the row with the same key, so writing it twice is the
same as writing it once: a commit of which nobody knows whether it happened can simply be made again. Only its own row
it replaces: one with the id of another session, or of an earlier message or turn, is refused. Rows that are
`live` are what a restart has to load; the others are history.

Every key begins with the tenant. `workspace` and `session` complete it: a row belongs to one session, or to a
workspace when `session` is empty (durable jobs do).
"""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = (
    "HISTORY_KINDS",
    "NAMING_KINDS",
    "Batch",
    "BatchResult",
    "EntryRow",
    "EventRow",
    "LastEvent",
    "Loaded",
    "Lookup",
    "MessageRow",
    "Owner",
    "Row",
    "StateKey",
    "StateRow",
    "Troubles",
    "taken_by",
)


HISTORY_KINDS: Final = ("turn", "approval", "child", "task", "round", "record", "compaction", "intent", "dead_letter")
"""Kinds of state rows that are history once they are not live: retention lets go of these, and of no others."""


NAMING_KINDS: Final = frozenset({"round", "record", "compaction", "intent"})
"""Kinds of state rows whose body may name blobs, as hashes in `b`."""


class Owner(NamedTuple):
    """Whose rows they are: a session, or (with an empty session) a workspace."""

    tenant: str
    workspace: str
    session: str = ""


class MessageRow(NamedTuple):
    """One message. Key: `id`. `place` is its order among the waiting ones, `body` what was sent, as JSON."""

    id: str
    tenant: str
    workspace: str
    session: str
    seq: int
    place: int
    live: int
    state: str
    outcome: str
    turn_id: str
    reason: str
    platform_id: str | None
    route: str
    arrived_ms: int
    ended_ms: int
    body: str


class StateRow(NamedTuple):
    """Anything else that has a state: a turn, a job, an approval, a schedule … Key: `kind` and `id`."""

    kind: str
    id: str
    tenant: str
    workspace: str
    session: str
    seq: int
    live: int
    state: str
    body: str


class EventRow(NamedTuple):
    """Something that has happened; only ever added. Key: tenant, workspace, session, `seq`."""

    tenant: str
    workspace: str
    session: str
    seq: int
    at_ms: int
    type: str
    message_id: str
    turn_id: str
    body: str


class LastEvent(NamedTuple):
    """The newest event of a session: when something last happened there."""

    session: str
    seq: int
    at_ms: int


class EntryRow(NamedTuple):
    """One line of a session's transcript. Key: tenant, workspace, session, `seq`."""

    tenant: str
    workspace: str
    session: str
    seq: int
    at_ms: int
    conversation: int
    role: str
    message_id: str
    turn_id: str
    text: str
    body: str


class StateKey(NamedTuple):
    """A state row that is to be forgotten."""

    kind: str
    id: str


Row = MessageRow | StateRow | EventRow | EntryRow


def taken_by(old: MessageRow | StateRow, new: MessageRow | StateRow) -> str:
    """Why a row must not replace the one that has its id: it is about another thing. Empty: it may."""
    kind = new.kind if isinstance(new, StateRow) else "message"
    owner = Owner(old.tenant, old.workspace, old.session)
    if owner != (new.tenant, new.workspace, new.session):
        return f"the id {new.id!r} is that of a {kind} of {owner} already"
    if kind in ("message", "turn") and old.seq != new.seq:
        return f"the id {new.id!r} is that of an earlier {kind} already, number {old.seq}"
    return ""


class Batch(NamedTuple):
    """What changes for one owner, all or nothing. An old `epoch` is refused: somebody else owns it now."""

    owner: Owner
    epoch: int
    rows: tuple[Row, ...]
    forget: tuple[StateKey, ...] = ()


class BatchResult(NamedTuple):
    """How one batch ended: `error` is None when it is on disk."""

    error: Exception | None = None


class Loaded(NamedTuple):
    """The live rows of a workspace or of one session: messages by place, the others by `seq`."""

    messages: list[MessageRow]
    states: list[StateRow]


class Troubles(NamedTuple):
    """What needs somebody in a workspace, each newest first.

    `unknown` are calls of which nobody knows how far they came, `dead` the messages that are dead letters, `broken` the
    turns that did not come to their end and after which nothing was tried in their session.
    """

    unknown: list[StateRow]
    dead: list[MessageRow]
    broken: list[StateRow]


class Lookup(NamedTuple):
    """Has this session seen that platform id on that route since then?"""

    owner: Owner
    route: str
    platform_id: str
    since_ms: int
