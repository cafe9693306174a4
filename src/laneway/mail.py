"""The records of the inbox: modes, messages, what becomes of them, and what callers get to see."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from laneway.errors import ConfigError, InvalidMessageError
from laneway.records import DURATION_MAX_MS, Priority, check_whole

__all__ = (
    "FINAL_MESSAGE_STATES",
    "Approval",
    "ApprovalState",
    "Drop",
    "Final",
    "HistoryEntry",
    "Message",
    "MessageKind",
    "MessageState",
    "Mode",
    "OnCrash",
    "Outcome",
    "PendingMessage",
    "QueueOptions",
    "QueueSettings",
    "Receipt",
    "Route",
    "Schedule",
    "Sender",
    "SessionView",
    "Stopped",
    "Story",
    "StoryStep",
    "TurnState",
    "trace_of",
)

CAP_MAX = 100_000


class Mode(StrEnum):
    """What a message does when its session is busy."""

    COLLECT = "collect"  # waits; one turn for all that came meanwhile
    FOLLOWUP = "followup"  # waits; a turn of its own, in order
    STEER = "steer"  # goes into the running turn at its next boundary
    STEER_BACKLOG = "steer-backlog"  # both: into the running turn, and a turn of its own later
    INTERRUPT = "interrupt"  # ends the running turn and runs next
    REJECT = "reject"  # is refused
    ROLLBACK = "rollback"  # ends the running turn, which is forgotten, and runs next

    @classmethod
    def parse(cls, value: object) -> Mode:
        """A mode by its name: case does not matter, and neither do the usual plurals and aliases."""
        if isinstance(value, Mode):
            return value
        name = value.strip().casefold().replace("_", "-") if isinstance(value, str) else ""
        mode = _MODES.get(name)
        if mode is None:
            raise ConfigError(
                f"there is no mode {value!r}", setting="mode", value=value, hint=", ".join([*Mode, "queue (= steer)"])
            )
        return mode


_MODES: dict[str, Mode] = {mode.value: mode for mode in Mode} | {
    "queue": Mode.STEER,
    "queued": Mode.STEER,
    "steering": Mode.STEER,
    "steers": Mode.STEER,
    "steer+backlog": Mode.STEER_BACKLOG,
    "steerbacklog": Mode.STEER_BACKLOG,
    "followups": Mode.FOLLOWUP,
    "follow-up": Mode.FOLLOWUP,
    "follow-ups": Mode.FOLLOWUP,
    "coalesce": Mode.COLLECT,
    "collects": Mode.COLLECT,
    "interrupts": Mode.INTERRUPT,
    "abort": Mode.INTERRUPT,
    "rejects": Mode.REJECT,
    "rollbacks": Mode.ROLLBACK,
}


class Drop(StrEnum):
    """What gives way when more messages wait than the cap allows."""

    OLD = "old"  # the oldest goes
    NEW = "new"  # the newcomer is refused
    SUMMARIZE = "summarize"  # the oldest goes, and a line of it is kept for the agent

    @classmethod
    def parse(cls, value: object) -> Drop:
        """A policy by its name, aliases included."""
        name = value.strip().casefold() if isinstance(value, str) else ""
        drop = {"oldest": "old", "newest": "new", "summary": "summarize", "summarise": "summarize"}.get(name, name)
        if drop not in set(Drop):
            raise ConfigError(f"there is no drop policy {value!r}", setting="drop", value=value, hint=", ".join(Drop))
        return Drop(drop)


class OnCrash(StrEnum):
    """What happens to a message whose turn had begun when the process died."""

    REPORT = "report"  # it ends `interrupted`, and its sender is told
    RERUN = "rerun"  # it runs again: for handlers that are idempotent
    RESUME = "resume"  # it goes on from its checkpoint: for agent sessions

    @property
    def runs_again(self) -> bool:
        """Whether the message gets another turn."""
        return self is not OnCrash.REPORT


class MessageKind(StrEnum):
    """Who speaks."""

    USER = "user"
    SYSTEM = "system"  # Laneway or the host: sub-agent results, schedules
    HEARTBEAT = "heartbeat"  # runs only while nothing else does


class MessageState(StrEnum):
    """Where a message is. From `ran` on they are final: its disposition, which never changes."""

    QUEUED = "queued"
    PARKED = "parked"  # waits for a boundary of the running turn
    HELD = "held"  # somebody set it aside; others pass it
    RUNNING = "running"
    INJECTED = "injected"  # the running turn has seen it
    RAN = "ran"  # a turn began over it
    MERGED = "merged"  # a turn began over it and others
    STEERED = "steered"  # it went into a turn that succeeded
    SUPERSEDED = "superseded"  # a newer one took its place
    SUMMARIZED = "summarized"  # it was one too many; a line of it was kept
    DROPPED = "dropped"  # it was one too many, or a heartbeat at a busy time
    WITHDRAWN = "withdrawn"  # somebody took it back
    EXPIRED = "expired"  # it waited longer than it was worth
    REJECTED = "rejected"  # the session was busy, and the mode says no
    COMMAND = "command"  # it was a command, and was answered
    DEAD_LETTERED = "dead_lettered"  # its turn could not be begun, again and again

    @property
    def is_final(self) -> bool:
        """Whether nothing more will become of it."""
        return self in FINAL_MESSAGE_STATES


WAITING_STATES = frozenset({MessageState.QUEUED, MessageState.PARKED, MessageState.HELD})
FINAL_MESSAGE_STATES = frozenset(set(MessageState) - WAITING_STATES - {MessageState.RUNNING, MessageState.INJECTED})


class Outcome(StrEnum):
    """How the turn of a message ended, as far as the message is concerned."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    UNKNOWN = "unknown"


class TurnState(StrEnum):
    """Where a turn is. The last five are final."""

    STARTING = "starting"
    THINKING = "thinking"
    ACTING = "acting"
    COMPACTING = "compacting"
    WAITING = "waiting"  # for an approval, a child, another machine, a quota
    DELIVERING = "delivering"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"  # the process died
    FENCED = "fenced"  # it would not end, and may say nothing more

    @property
    def is_final(self) -> bool:
        """Whether the turn has ended."""
        return self in FINAL_TURN_STATES


FINAL_TURN_STATES = frozenset(
    {TurnState.SUCCEEDED, TurnState.FAILED, TurnState.CANCELLED, TurnState.INTERRUPTED, TurnState.FENCED}
)


class ApprovalState(StrEnum):
    """Where a request for approval is."""

    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """Who sent a message. `id` and `rights` decide; `name` is only shown."""

    id: str
    name: str | None = None
    owner: bool = False
    rights: tuple[str, ...] = ()

    @classmethod
    def parse(cls, value: object) -> Sender | None:
        """A sender from an id, a mapping with the fields of `Sender`, a `Sender`, or None for the host itself."""
        if value is None or isinstance(value, Sender):
            return value
        if isinstance(value, str):
            if not value.strip():
                raise InvalidMessageError("a sender id must not be empty", hint="leave sender out to speak as the host")
            return cls(id=value)
        if isinstance(value, Mapping):
            return _sender_of(value)
        raise InvalidMessageError(f"sender must be an id, a Sender or a mapping, not {value!r}")

    def may(self, right: str) -> bool:
        """Whether this sender has a right; an owner has all."""
        return self.owner or right in self.rights


def _sender_of(value: Mapping[Any, Any]) -> Sender:
    unknown = set(value) - {"id", "name", "owner", "rights"}
    if unknown:
        raise InvalidMessageError(f"a sender has no {sorted(map(str, unknown))[0]!r}", hint="id, name, owner, rights")
    sender_id, name, owner = value.get("id"), value.get("name"), value.get("owner", False)
    rights = value.get("rights", ())
    if not isinstance(sender_id, str) or not sender_id.strip():
        raise InvalidMessageError(f"a sender needs an id, which is text, not {sender_id!r}")
    if name is not None and not isinstance(name, str):
        raise InvalidMessageError(f"the name of a sender is text, not {name!r}")
    if not isinstance(owner, bool):
        raise InvalidMessageError(f"owner is True or False, not {owner!r}")
    if isinstance(rights, str) or not all(isinstance(right, str) for right in rights):
        raise InvalidMessageError(f"rights is a list of names, not {rights!r}")
    return Sender(id=sender_id, name=name, owner=owner, rights=tuple(sorted(set(rights))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a message came from and its answer goes."""

    channel: str = ""
    account: str = ""
    thread: str = ""
    chat_type: str = ""


_TRACE = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)


def trace_of(value: object) -> str:
    """A W3C `traceparent`, as version 00 has it; empty when it is none, because a bad one is to be ignored."""
    found = _TRACE.fullmatch(value) if isinstance(value, str) and len(value) <= 512 else None
    if found is None:
        return ""
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not trace_id.strip("0") or not span_id.strip("0"):
        return ""
    return f"00-{trace_id}-{span_id}-{int(flags, 16) & 1:02d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message as it was sent. `id` is Laneway's, `message_id` the platform's."""

    id: str
    session_key: str
    text: str
    sender: Sender | None = None
    route: Route = field(default_factory=Route)
    message_id: str | None = None
    mode: Mode = Mode.COLLECT
    kind: MessageKind = MessageKind.USER
    priority: Priority = Priority.USER
    tenant: str = "default"
    attachments: tuple[Any, ...] = ()
    arrived_ms: int = 0
    retry_of: str | None = None
    trace: str = ""  # the W3C `traceparent` of whoever sent it

    @property
    def channel(self) -> str:
        """The channel it came by."""
        return self.route.channel

    @property
    def account(self) -> str:
        """The account it came to."""
        return self.route.account

    @property
    def thread(self) -> str:
        """The thread it belongs to."""
        return self.route.thread

    @property
    def chat_type(self) -> str:
        """What kind of chat it came from."""
        return self.route.chat_type


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueOptions:
    """Some of the settings of a queue; None means what the next level says."""

    mode: Mode | None = None
    debounce_ms: int | None = None
    cap: int | None = None
    drop: Drop | None = None

    def __post_init__(self) -> None:
        if self.mode is not None:
            object.__setattr__(self, "mode", Mode.parse(self.mode))
        if self.drop is not None:
            object.__setattr__(self, "drop", Drop.parse(self.drop))
        if self.debounce_ms is not None:
            check_whole(self.debounce_ms, setting="debounce_ms", least=0, most=DURATION_MAX_MS)
        if self.cap is not None:
            check_whole(self.cap, setting="cap", least=1, most=CAP_MAX)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is set."""
        return self.mode is None and self.debounce_ms is None and self.cap is None and self.drop is None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """What is in force for one message. `origins` says which level each value came from."""

    mode: Mode = Mode.COLLECT
    debounce_ms: int = 1000
    max_wait_ms: int = 10_000
    cap: int = 20
    drop: Drop = Drop.SUMMARIZE
    origins: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """The answer to `submit`: the message is durable. `position` counts from 1 among those that wait."""

    message_id: str
    disposition: MessageState
    position: int | None = None
    reason: str = ""
    reply: str | None = None
    duplicate: bool = False
    sent: str | None = None  # the message that a command has sent: `/new hello` begins with one


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """What became of a message. `disposition` may still be on the way when `status` says it."""

    message_id: str
    disposition: MessageState
    outcome: Outcome | None = None
    turn_id: str | None = None
    reason: str = ""
    answer: str | None = None
    session_key: str = ""
    position: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingMessage:
    """A message that waits, with its place and why it waits."""

    message: Message
    state: MessageState
    position: int
    reason: str
    waited_ms: int
    seen_by: str | None = None

    @property
    def id(self) -> str:
        """The id of the message."""
        return self.message.id

    @property
    def text(self) -> str:
        """The text of the message."""
        return self.message.text


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEntry:
    """One line of a transcript: each text once, in order. `role` is `user`, `system` or `assistant`."""

    seq: int
    at_ms: int
    role: str
    text: str
    conversation: int
    message_id: str = ""
    turn_id: str = ""
    sender: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryStep:
    """One change in the life of a message."""

    at_ms: int
    type: str
    reason: str
    actor: str
    turn_id: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """The whole life of a message, from arrival to its end; `str()` is for people."""

    message: Message
    final: Final
    steps: tuple[StoryStep, ...]
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """A question that a turn has asked and somebody with the right must answer.

    It covers exactly these `arguments`, once. `why` says what made it necessary; `reason` and `answered_by` say how it
    ended. `call_id` and `lane` are those of the call of a tool that it is about. `key` names the thing it is about: a
    turn that goes on after a crash asks with the same key and gets this request again, or its answer.
    """

    id: str
    session_key: str
    turn_id: str
    action: str
    arguments: Mapping[str, Any]
    state: ApprovalState
    asked_ms: int
    expires_ms: int
    reason: str = ""
    answered_by: str = ""
    why: str = ""
    call_id: str = ""
    lane: str = ""
    key: str = ""
    approvers: tuple[str, ...] = ()
    escalate_after_ms: int = 0
    escalate_to: tuple[str, ...] = ()
    escalated: bool = False

    def may_be_answered_by(self, sender: Sender | None) -> bool:
        """Whether a sender has the right: the host and owners always, others as the request says."""
        if sender is None or sender.owner:
            return True
        if self.escalated and sender.id in self.escalate_to:
            return True
        return sender.id in self.approvers if self.approvers else sender.may("approve")

    def is_about(self, action: str, arguments: Mapping[str, Any]) -> bool:
        """Whether it is about exactly this: 1, 1.0 and true are three different things."""
        return self.action == action and _exact(self.arguments) == _exact(arguments)

    @property
    def text(self) -> str:
        """The arguments as text, exactly as they run: whoever reads numbers as JavaScript does takes 1.0 for 1."""
        shown = json.dumps(dict(self.arguments), indent=2, ensure_ascii=False)
        try:
            shown.encode()
        except UnicodeEncodeError:
            return json.dumps(dict(self.arguments), indent=2)
        return shown

    @property
    def digest(self) -> str:
        """What it is about, in short: whoever sends it back has seen these arguments and no others."""
        return hashlib.sha256(json.dumps([self.action, _exact(self.arguments)]).encode()).hexdigest()


def _exact(arguments: Mapping[str, Any]) -> str:
    return json.dumps(arguments, sort_keys=True, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A message that is sent by the clock. Exactly one of `cron`, `at_ms` and `every_ms` is set.

    `last_ms` is when its time last came (0: never yet), `last_id` the message it sent last, and `last_note` why it
    sent none at that time.
    """

    id: str
    session_key: str
    text: str
    cron: str | None
    at_ms: int | None
    every_ms: int | None
    missed: str
    next_ms: int
    tenant: str = "default"
    kind: MessageKind = MessageKind.SYSTEM
    timezone: str = "UTC"
    paused: bool = False
    last_ms: int = 0
    last_id: str = ""
    last_note: str = ""


class Stopped(NamedTuple):
    """What a stop has ended, in the order in which it was ended; `calls` are those in the background."""

    waiting: int
    debounced: int
    turns: int
    children: int
    calls: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionView:
    """What a callable mode gets to see before it decides about `message`."""

    session_key: str
    tenant: str
    busy: bool
    turn_state: TurnState | None
    turn_mode: Mode | None
    running_ms: int
    waiting: int
    message: Message
