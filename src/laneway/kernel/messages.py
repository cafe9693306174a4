"""Messages and turns as the kernel knows them: their states, the table of changes, and their rows.

A message is `queued` (or `parked`, when it aims at the running turn) until a turn takes it, and ends in exactly one
final state. What the table does not list is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from laneway.errors import InternalError
from laneway.mail import (
    FINAL_MESSAGE_STATES,
    HistoryEntry,
    Message,
    MessageKind,
    MessageState,
    Mode,
    Outcome,
    Route,
    Sender,
    TurnState,
)
from laneway.records import Priority
from laneway.rows import EntryRow, MessageRow, Owner, StateRow

__all__ = (
    "GATHERING",
    "MESSAGE_TRANSITIONS",
    "Change",
    "Item",
    "TurnEntry",
    "decode_entry_row",
    "decode_message",
    "decode_sender",
    "encode",
    "encode_sender",
    "route_key",
)

S = MessageState

GATHERING: Final = frozenset({Mode.COLLECT, Mode.STEER_BACKLOG})
"""Modes whose messages wait for a quiet moment and share a turn."""
STEERING: Final = frozenset({Mode.STEER, Mode.STEER_BACKLOG})
"""Modes whose messages go into the running turn if they may."""
CUTTING: Final = frozenset({Mode.INTERRUPT, Mode.ROLLBACK})
"""Modes whose messages end the running turn."""


class Change(Enum):
    """What can happen to a message."""

    PARK = "park"
    UNPARK = "unpark"
    HOLD = "hold"
    RELEASE = "release"
    BEGIN = "begin"
    GIVE_BACK = "give_back"
    INJECT = "inject"
    RETURN = "return"
    RUN = "run"
    MERGE = "merge"
    STEER = "steer"
    SUPERSEDE = "supersede"
    SUMMARIZE = "summarize"
    DROP = "drop"
    WITHDRAW = "withdraw"
    EXPIRE = "expire"
    REJECT = "reject"
    ANSWER = "answer"
    DEAD_LETTER = "dead_letter"


C = Change

MESSAGE_TRANSITIONS: Final[dict[tuple[MessageState, Change], MessageState]] = {
    (S.QUEUED, C.PARK): S.PARKED,
    (S.PARKED, C.UNPARK): S.QUEUED,
    (S.QUEUED, C.HOLD): S.HELD,
    (S.PARKED, C.HOLD): S.HELD,
    (S.HELD, C.RELEASE): S.QUEUED,
    (S.QUEUED, C.BEGIN): S.RUNNING,
    (S.RUNNING, C.GIVE_BACK): S.QUEUED,
    (S.QUEUED, C.INJECT): S.INJECTED,
    (S.PARKED, C.INJECT): S.INJECTED,
    (S.INJECTED, C.RETURN): S.QUEUED,
    (S.RUNNING, C.RUN): S.RAN,
    (S.RUNNING, C.MERGE): S.MERGED,
    (S.INJECTED, C.STEER): S.STEERED,
    (S.QUEUED, C.REJECT): S.REJECTED,
    (S.QUEUED, C.ANSWER): S.COMMAND,
    (S.QUEUED, C.DEAD_LETTER): S.DEAD_LETTERED,
    **{
        (state, change): final
        for state in (S.QUEUED, S.PARKED, S.HELD)
        for change, final in (
            (C.RUN, S.RAN),  # a turn that was put off, and will not go on
            (C.MERGE, S.MERGED),
            (C.SUPERSEDE, S.SUPERSEDED),
            (C.SUMMARIZE, S.SUMMARIZED),
            (C.DROP, S.DROPPED),
            (C.WITHDRAW, S.WITHDRAWN),
            (C.EXPIRE, S.EXPIRED),
        )
    },
}


def _encoder() -> Callable[[Any], str]:
    """JSON as it is stored. The standard library makes a C encoder for every call, which costs more than using it."""
    plain = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return plain.encode
    write = make(None, plain.default, json.encoder.encode_basestring, None, ":", ",", False, False, True)  # noqa: FBT003
    return lambda value: "".join(write(value, 0))


encode = _encoder()


@lru_cache(maxsize=4096)
def route_key(route: Route) -> str:
    """A route as the store knows it."""
    return encode([route.channel, route.account, route.thread, route.chat_type])


_RARE = (
    "expires_ms",
    "seen_by",
    "begun",
    "attempts",
    "more",
    "depth",
    "debounce_ms",
    "max_wait_ms",
    "steers",
    "forgets",
)
_BODY_TYPES: Final[dict[str, type]] = {
    "text": str,
    "mode": str,
    "kind": str,
    "sender": list,
    "attachments": list,
    "priority": int,
    "retry_of": str,
    "trace": str,
    "lane": str,
    "expires_ms": int,
    "seen_by": str,
    "begun": int,
    "attempts": int,
    "more": int,
    "depth": int,
    "debounce_ms": int,
    "max_wait_ms": int,
    "steers": bool,
    "forgets": list,
}


class Item:
    """A message in its session, as it is at this moment."""

    __slots__ = (
        "aim",
        "arrived_at",
        "attempts",
        "begun",
        "body",
        "debounce_ms",
        "depth",
        "eager",
        "ended_ms",
        "expires_at",
        "expires_ms",
        "forgets",
        "lane",
        "live",
        "max_wait_ms",
        "merge_key",
        "message",
        "more",
        "noticed",
        "outcome",
        "owner",
        "place",
        "reason",
        "route_key",
        "seen_by",
        "seq",
        "state",
        "steers",
        "turn_id",
    )

    def __init__(self, owner: Owner, message: Message, *, seq: int, lane: str = "main", expires_ms: int = 0) -> None:
        self.owner = owner
        self.message = message
        self.seq = self.place = seq
        self.state = MessageState.QUEUED
        self.live = 1
        self.outcome: Outcome | None = None
        self.turn_id = ""
        self.reason = ""
        self.ended_ms = 0
        self.lane = lane
        self.expires_ms = expires_ms  # on the wall clock; 0: never
        self.expires_at = 0  # on the monotonic clock
        self.arrived_at = 0
        self.debounce_ms = 0
        self.max_wait_ms = 0
        self.eager = False  # came to an idle session: it waits for no quiet window
        self.noticed = False
        self.aim = ""  # the turn it is parked for
        self.seen_by = ""  # a turn that saw it and did not succeed
        self.begun = 0  # of how many messages the turn is that began over it and goes on later; 0: none does
        self.attempts = 0  # how often a process died in its turn
        self.depth = 0  # how many request_followup lie behind it
        self.more = 0  # how many further messages this one stands for in an overflow summary
        self.steers = False  # no user sent it, and it goes into whichever turn of its route comes to a boundary
        self.forgets: list[str] = []  # messages and turns that it has rolled back while nobody was there to do it
        self.set_message(message)

    def set_message(self, message: Message) -> None:
        """Take what was sent (or edited), and encode it once."""
        self.message = message
        sender = message.sender
        rights = None if sender is None else (sender.owner, tuple(sorted(set(sender.rights))))
        self.route_key = route_key(message.route)
        self.merge_key = (self.route_key, rights, message.kind)
        self.set_body()

    def set_body(self) -> None:
        """What does not change when the message moves on has changed: encode it anew when it is written."""
        self.body = ""

    def _encode_body(self) -> str:
        message, sender = self.message, self.message.sender
        body: dict[str, Any] = {"text": message.text, "mode": message.mode._value_, "kind": message.kind._value_}
        if sender is not None:
            body["sender"] = encode_sender(sender)
        if message.attachments:
            body["attachments"] = message.attachments
        if message.priority != Priority.USER:
            body["priority"] = int(message.priority)
        if message.retry_of:
            body["retry_of"] = message.retry_of
        if message.trace:
            body["trace"] = message.trace
        if self.lane != "main":
            body["lane"] = self.lane
        for name in _RARE:
            value = getattr(self, name)
            if value:
                body[name] = value
        self.body = encode(body)
        return self.body

    @property
    def id(self) -> str:
        """Laneway's id of the message."""
        return self.message.id

    @property
    def mode(self) -> Mode:
        """What it does when its session is busy."""
        return self.message.mode

    @property
    def is_user(self) -> bool:
        """Whether a user sent it."""
        return self.message.kind is MessageKind.USER

    def fits(self, turn: TurnEntry) -> bool:
        """Whether it may go into a turn: the same route and the same rights; who began the turn does not matter."""
        return (self.is_user or self.steers) and self.merge_key[:2] == turn.merge_key[:2]

    def change(self, change: Change, reason: str) -> None:
        """Move on, by the table."""
        following = MESSAGE_TRANSITIONS.get((self.state, change))
        if following is None:
            raise InternalError(f"message {self.id} cannot {change.value} while it is {self.state}")
        self.state = following
        self.reason = reason
        if following in FINAL_MESSAGE_STATES:
            self.live = 0

    @property
    def row_key(self) -> Hashable:
        """What its row is known by."""
        return self.message.id

    def to_row(self) -> MessageRow:
        """Everything about it at this moment."""
        message, owner = self.message, self.owner
        return MessageRow(
            message.id,
            owner.tenant,
            owner.workspace,
            owner.session,
            self.seq,
            self.place,
            self.live,
            self.state._value_,  # as `value`, without the price of a descriptor
            self.outcome._value_ if self.outcome is not None else "",
            self.turn_id,
            self.reason,
            message.message_id,
            self.route_key,
            message.arrived_ms,
            self.ended_ms,
            self.body or self._encode_body(),
        )

    @classmethod
    def from_row(cls, row: MessageRow) -> Item:
        """A message as it was stored; refuses one that nothing could be made of later (`ValueError` and its like)."""
        message, body = decode_message(row)
        for name, value in body.items():
            if type(value) is not _BODY_TYPES.get(name, type(value)):
                raise ValueError(f"{name} should be {_BODY_TYPES[name].__name__}, and is {type(value).__name__}")
        item = cls(
            Owner(row.tenant, row.workspace, row.session),
            message,
            seq=row.seq,
            lane=body.get("lane", "main"),
            expires_ms=body.get("expires_ms", 0),
        )
        item.place = row.place
        item.state = _STATES[row.state]
        item.live = row.live
        item.outcome = Outcome(row.outcome) if row.outcome else None
        item.turn_id, item.reason, item.ended_ms = row.turn_id, row.reason, row.ended_ms
        item.seen_by = body.get("seen_by", "")
        item.begun = body.get("begun", 0)
        item.attempts = body.get("attempts", 0)
        item.more = body.get("more", 0)
        item.depth = body.get("depth", 0)
        item.steers = body.get("steers", False)
        item.forgets = body.get("forgets", [])
        item.debounce_ms = body.get("debounce_ms", 0)
        item.max_wait_ms = body.get("max_wait_ms", 0)
        item.body = row.body
        return item


def encode_sender(sender: Sender | None) -> list[Any] | None:
    """A sender as it is stored."""
    return None if sender is None else [sender.id, sender.name, sender.owner, sender.rights]


def decode_sender(value: list[Any] | None) -> Sender | None:
    """A sender as it was stored."""
    if value is None:
        return None
    sender_id, name, is_owner, rights = value
    is_somebody = isinstance(sender_id, str | int) and (name is None or isinstance(name, str | int))
    if not is_somebody or not isinstance(is_owner, int) or not _are_words(rights):  # hosts give numbers as ids, too
        raise ValueError("a sender should be an id, a name, whether it is an owner, and rights")
    return Sender(id=sender_id, name=name, owner=bool(is_owner), rights=tuple(rights))


def _are_words(value: object) -> bool:
    return type(value) is list and all(isinstance(each, str | int) for each in value)


_scan = json.JSONDecoder().raw_decode  # as `loads`, without its wrappers: a restart reads a hundred thousand of them
_MODES = {mode.value: mode for mode in Mode}
_KINDS = {kind.value: kind for kind in MessageKind}
_STATES = {state.value: state for state in MessageState}
_PRIORITIES = {int(priority): priority for priority in Priority}


@lru_cache(maxsize=4096)
def _route_of(key: str) -> Route:
    channel, account, thread, chat_type = parts = json.loads(key)
    if not _are_words(parts):
        raise ValueError("a route should be four words")
    return Route(channel=channel, account=account, thread=thread, chat_type=chat_type)


def decode_entry_row(row: EntryRow) -> HistoryEntry | None:
    """A line of a transcript; None if its run was taken back."""
    body: dict[str, Any] = json.loads(row.body)
    if type(body) is not dict or type(body.get("sender", "")) is not str:
        raise ValueError("the body of a line should be a mapping, and its sender a word")
    if body.get("forgotten"):
        return None
    return HistoryEntry(
        seq=row.seq,
        at_ms=row.at_ms,
        role=row.role,
        text=row.text,
        conversation=row.conversation,
        message_id=row.message_id,
        turn_id=row.turn_id,
        sender=body.get("sender", ""),
    )


def decode_message(row: MessageRow) -> tuple[Message, dict[str, Any]]:
    """What was sent, and the rest of the body."""
    body: dict[str, Any] = _scan(row.body)[0]
    message = Message(
        id=row.id,
        session_key=row.session,
        text=body["text"],
        sender=decode_sender(body.get("sender")),
        route=_route_of(row.route),
        message_id=row.platform_id,
        mode=_MODES[body["mode"]],
        kind=_KINDS[body["kind"]],
        priority=_PRIORITIES[body["priority"]] if "priority" in body else Priority.USER,
        tenant=row.tenant,
        attachments=tuple(body.get("attachments", ())),
        arrived_ms=row.arrived_ms,
        retry_of=body.get("retry_of"),
        trace=body.get("trace", ""),
    )
    return message, body


class TurnEntry:
    """One run of the agent over some messages, as it is at this moment."""

    __slots__ = (
        "answer",
        "answered_by",
        "asking",
        "began_at",
        "began_ms",
        "boundaries",
        "cancelled",
        "conversation",
        "delivered",
        "depth",
        "ended_ms",
        "entries",
        "fence_at",
        "forget",
        "id",
        "injected",
        "items",
        "kind",
        "lane",
        "live",
        "merge_key",
        "mode",
        "offered",
        "owner",
        "prompt",
        "reason",
        "route",
        "sender",
        "seq",
        "state",
        "stopped",
        "summarized",
        "tokens",
        "wait_ms",
    )

    def __init__(self, turn_id: str, owner: Owner, *, seq: int, began_ms: int, began_at: int) -> None:
        self.id = turn_id
        self.owner = owner
        self.seq = seq
        self.began_ms = began_ms
        self.began_at = began_at
        self.ended_ms = 0
        self.live = 1
        self.state = TurnState.STARTING
        self.items: list[Item] = []
        self.summarized: list[Item] = []
        self.injected: list[Item] = []
        self.delivered: set[str] = set()  # those of them that its handler has got
        self.offered: set[str] = set()  # those that are on their way to it
        self.entries: list[EntryRow] = []
        self.conversation = 0
        self.mode = Mode.COLLECT
        self.kind = MessageKind.USER
        self.lane = "main"
        self.merge_key: tuple[Any, ...] = ()
        self.route = Route()
        self.sender: Sender | None = None
        self.prompt = ""
        self.answer: str | None = None
        self.reason = ""
        self.cancelled = ""  # why it is being ended; empty while it is not
        self.stopped = False  # /stop or /new: what it has seen does not come back
        self.forget = False  # rollback: its lines leave the history
        self.fence_at = 0  # when its grace is over
        self.answered_by = ""  # the message that answers its question
        self.asking = False  # it waits for the next message of its own users
        self.boundaries = 0
        self.depth = 0  # how many request_followup lie behind it
        self.tokens = 0
        self.wait_ms = 0  # how long its oldest message waited

    @property
    def row_key(self) -> Hashable:
        """What its row is known by."""
        return ("turn", self.id)

    def to_row(self) -> StateRow:
        """Everything about it at this moment."""
        body = {
            "messages": [item.id for item in self.items],
            "summarized": [item.id for item in self.summarized],
            "injected": [item.id for item in self.injected],
            "mode": self.mode,
            "kind": self.kind,
            "began_ms": self.began_ms,
            "ended_ms": self.ended_ms,
            "reason": self.reason,
            "answer": self.answer,
            "conversation": self.conversation,
            "depth": self.depth,
            "tokens": self.tokens,
            "cancelled": self.cancelled,
            "stopped": self.stopped,
            "forget": self.forget,
        }
        owner = self.owner
        return StateRow(
            "turn",
            self.id,
            owner.tenant,
            owner.workspace,
            owner.session,
            self.seq,
            self.live,
            self.state.value,
            encode(body),
        )
