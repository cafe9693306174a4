"""One session as the kernel knows it, and what the kernel of the inbox asks the engine to do.

A mailbox exists while something waits or runs in its session; an idle session has none. Everything in it that a
restart must know has a row: messages, the turn, the session's own settings, approvals, children.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable
from heapq import heappop, heappush
from typing import Any, NamedTuple

from laneway.events import SessionEvent
from laneway.kernel.checkpoints import check_shape, refuse
from laneway.kernel.messages import CUTTING, GATHERING, Item, TurnEntry, encode, encode_sender
from laneway.kernel.settings import options_from_json, options_to_json
from laneway.mail import (
    WAITING_STATES,
    Approval,
    ApprovalState,
    Final,
    MessageKind,
    MessageState,
    QueueOptions,
    Route,
    Sender,
)
from laneway.records import Priority
from laneway.rows import EntryRow, EventRow, Owner, StateKey, StateRow

__all__ = ("ApprovalEntry", "ChildEntry", "MailEffect", "Mailbox", "SessionEntry")

NOTICE_MS = 2_000
NOTICE_STEP_MS = 250
NOTICE_FEW = 100
WARN_SHARE = 5  # an approval is warned about when a fifth of its time is left


# ---- effects --------------------------------------------------------------------------------------------


class Touch(NamedTuple):
    """A thing has changed: write its row."""

    owner: Owner
    thing: Item | TurnEntry | ApprovalEntry | ChildEntry | SessionEntry


class Add(NamedTuple):
    """Write a row that never changes."""

    owner: Owner
    row: EventRow | EntryRow


class Forget(NamedTuple):
    """A state row is no longer needed."""

    owner: Owner
    key: StateKey


class Tell(NamedTuple):
    """Publish, once everything before it is on disk."""

    owner: Owner
    event: SessionEvent


class Settle(NamedTuple):
    """A message is final: tell whoever waits for it, once it is on disk."""

    owner: Owner
    final: Final


class RequestTurn(NamedTuple):
    """Ask for a slot; `begin` is called when it is there."""

    owner: Owner
    lane: str
    level: Priority


class WithdrawRequest(NamedTuple):
    """The slot that was asked for is not wanted any more: another one is."""

    owner: Owner


class TellOfChildren(NamedTuple):
    """A turn has ended and did not await these children, which had ended before: tell the session of them."""

    owner: Owner
    children: tuple[str, ...]


class CancelTurn(NamedTuple):
    """Ask a running turn to end, once the reason for it is on disk."""

    owner: Owner
    turn_id: str
    reason: str


class AbandonTurn(NamedTuple):
    """Let go of a turn that would not end."""

    owner: Owner
    turn_id: str


class WakeTurn(NamedTuple):
    """The answer to the question of a turn has come."""

    owner: Owner
    turn_id: str


class CancelChild(NamedTuple):
    """Ask a sub-agent to end."""

    owner: Owner
    child_id: str
    reason: str


class AnswerApproval(NamedTuple):
    """An approval is final: tell the turn that waits for it, once it is on disk."""

    owner: Owner
    approval: Approval


class RemindOfApproval(NamedTuple):
    """Nobody has answered yet (`warned`, or `escalated` to others): tell the turn that waits, once it is on disk."""

    owner: Owner
    approval: Approval
    news: str
    remaining_ms: int


MailEffect = (
    Touch
    | Add
    | Forget
    | Tell
    | Settle
    | RequestTurn
    | WithdrawRequest
    | TellOfChildren
    | CancelTurn
    | AbandonTurn
    | WakeTurn
    | CancelChild
    | AnswerApproval
    | RemindOfApproval
)


# ---- what belongs to a session --------------------------------------------------------------------------


class SessionEntry:
    """What a session has of its own: queue settings, and which conversation it is in."""

    __slots__ = ("conversation", "options", "owner")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.options = QueueOptions()
        self.conversation = 0

    @property
    def is_plain(self) -> bool:
        """Whether there is nothing to remember."""
        return self.options.is_empty and not self.conversation

    @property
    def row_key(self) -> Hashable:
        """What its row is known by."""
        return ("session", session_id(self.owner))

    def to_row(self) -> StateRow:
        """Everything about it at this moment."""
        body = {"conversation": self.conversation, "queue": options_to_json(self.options)}
        return StateRow("session", session_id(self.owner), *self.owner, 0, 1, "open", encode(body))

    def read(self, body: dict[str, Any]) -> None:
        """Take over what was stored; what nothing can be made of is refused (`ValueError` and its like)."""
        conversation = body.get("conversation")
        if type(conversation) is not int or conversation < 0:
            raise ValueError(f"conversation should be a number, and is {conversation!r:.80}")
        self.conversation = conversation
        self.options = options_from_json(body["queue"])


def session_id(owner: Owner) -> str:
    """An id for the row of a session: no two sessions share it."""
    return encode(list(owner))


class ApprovalEntry:
    """A question of a turn, as it is at this moment.

    Its time runs only while a turn waits for the answer. A turn that is to go on later leaves its question behind:
    it stays pending, can be answered, and does not expire until the turn that goes on asks it again.
    """

    __slots__ = ("approval", "escalate_at", "expires_at", "is_awaited", "live", "owner", "seq", "warn_at")

    def __init__(self, owner: Owner, approval: Approval, *, seq: int) -> None:
        self.owner = owner
        self.approval = approval
        self.seq = seq
        self.is_awaited = False  # a turn waits for it: its time runs
        self.expires_at = 0  # monotonic, as the two others
        self.warn_at = 0  # 0: it was warned already
        self.escalate_at = 0  # 0: it was escalated already, or is not to be
        self.live = 1

    def wait(self, *, now: int, span_ms: int) -> None:
        """A turn waits for it: its whole time begins."""
        self.is_awaited = True
        self.expires_at = now + span_ms
        self.warn_at = self.expires_at - span_ms // WARN_SHARE
        later = self.approval.escalate_after_ms
        self.escalate_at = now + later if later and not self.approval.escalated else 0

    def leave(self) -> None:
        """The turn that waited for it is to go on later: its time stands still."""
        self.is_awaited = False
        self.expires_at = self.warn_at = self.escalate_at = 0

    def carry_over(self, old: ApprovalEntry) -> None:
        """The session was loaded again while a turn waits: time goes on as before."""
        self.is_awaited, self.expires_at = old.is_awaited, old.expires_at
        self.warn_at, self.escalate_at = old.warn_at, old.escalate_at
        if old.approval.escalated and not self.approval.escalated:
            self.escalate_at = 1  # the store has not heard of it: once more, at once

    @property
    def due(self) -> int | None:
        """When there is something to do about it; None while its time stands still."""
        if not self.is_awaited:
            return None
        return min(at for at in (self.expires_at, self.warn_at, self.escalate_at) if at)

    @property
    def row_key(self) -> Hashable:
        """What its row is known by."""
        return ("approval", self.approval.id)

    def to_row(self) -> StateRow:
        """Everything about it at this moment."""
        approval = self.approval
        body = {name: getattr(approval, name) for name in _APPROVAL_SHAPE}
        body |= {name: value for name in _APPROVAL_MAYBE if (value := getattr(approval, name))}
        return StateRow("approval", approval.id, *self.owner, self.seq, self.live, approval.state.value, encode(body))


_APPROVAL_SHAPE: dict[str, type] = {
    "turn_id": str,
    "action": str,
    "arguments": dict,
    "asked_ms": int,
    "expires_ms": int,
    "reason": str,
    "answered_by": str,
}
_APPROVAL_MAYBE: dict[str, type] = {
    "why": str,
    "call_id": str,
    "lane": str,
    "key": str,
    "approvers": list,
    "escalate_after_ms": int,
    "escalate_to": list,
    "escalated": bool,
}


def decode_approval(row: StateRow, body: dict[str, Any]) -> Approval:
    """A stored approval."""
    check_shape(row, body, _APPROVAL_SHAPE, _APPROVAL_MAYBE)
    facts: dict[str, Any] = dict(body)
    for name in ("approvers", "escalate_to"):
        if name in facts:
            facts[name] = tuple(facts[name])
            if not all(type(each) is str for each in facts[name]):
                refuse(row, f"{name} should be ids")
    return Approval(id=row.id, session_key=row.session, state=ApprovalState(row.state), **facts)


class ChildEntry:
    """A sub-agent, or a call in the background, as it is at this moment.

    `awaited`: its turn waits for it, so nobody else need be told.
    """

    __slots__ = (
        "awaited",
        "depth",
        "detail",
        "ends_with",
        "id",
        "label",
        "live",
        "owner",
        "route",
        "sender",
        "seq",
        "silenced",
        "state",
        "text",
        "turn_id",
    )

    def __init__(self, owner: Owner, child_id: str, *, seq: int, turn_id: str, label: str) -> None:
        self.owner = owner
        self.id = child_id
        self.seq = seq
        self.turn_id = turn_id
        self.ends_with = turn_id  # the last of the turns that go on for the one that started it
        self.label = label
        self.state = "running"
        self.route = Route()  # of the turn that started it: what it finds is answered there
        self.sender: Sender | None = None
        self.text = ""  # its result, until somebody has been told
        self.awaited = False
        self.depth = 0  # of the turn that started it: how many follow-ups lie behind
        self.silenced = False  # whoever said stop knows of its end
        self.detail: dict[str, Any] = {}  # what another process needs to go on with it; empty: it ends with this one
        self.live = 1

    @property
    def is_call(self) -> bool:
        """Whether it is no sub-agent but a call of a tool that goes on in the background."""
        return "call_id" in self.detail

    @property
    def row_key(self) -> Hashable:
        """What its row is known by."""
        return ("child", self.id)

    def to_row(self) -> StateRow:
        """Everything about it at this moment."""
        quiet = self.awaited or self.silenced
        route = self.route
        body = {
            "turn_id": self.turn_id,
            "label": self.label,
            "awaited": quiet,
            "text": self.text,
            "route": [route.channel, route.account, route.thread, route.chat_type],
            "sender": encode_sender(self.sender),
            "detail": self.detail,
        }
        if self.silenced:
            body["silenced"] = True
        if self.ends_with != self.turn_id:
            body["ends_with"] = self.ends_with
        if self.depth:
            body["depth"] = self.depth
        return StateRow("child", self.id, *self.owner, self.seq, self.live, self.state, encode(body))


class Mailbox:
    """One session while something waits or runs in it."""

    __slots__ = (
        "answers",
        "approvals",
        "children",
        "cutting",
        "expiries",
        "failures",
        "items",
        "last_at",
        "not_before",
        "notices",
        "overflow",
        "owner",
        "parked",
        "requested",
        "setup_error",
        "steering",
        "timer",
        "turn",
        "waiting",
        "waiting_users",
    )

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.items: OrderedDict[str, Item] = OrderedDict()  # those that wait and those the turn has seen, by place
        self.waiting = 0  # how many of them wait
        self.waiting_users = 0
        self.cutting: Item | None = None  # the one that runs before all others: an interrupt
        self.overflow: list[Item] = []  # summarized, and not yet told to the agent
        self.steering: dict[str, Item] = {}  # ends of calls in the background that wait, and some that no longer do
        self.parked: dict[str, Item] = {}  # those that aim at the turn, and some that no longer do
        self.turn: TurnEntry | None = None
        self.requested: tuple[str, Priority] | None = None  # which slot was asked for
        self.last_at = 0  # when the last gathering message came
        self.failures = 0  # how often the next turn could not be begun
        self.not_before = 0
        self.setup_error = ""
        self.expiries: list[tuple[int, int, Item]] = []
        self.notices: deque[Item] = deque()
        self.approvals: dict[str, ApprovalEntry] = {}  # those that are pending
        self.answers: dict[str, ApprovalEntry] = {}  # answered ones that a turn may still ask for again
        self.children: dict[str, ChildEntry] = {}
        self.timer: int | None = None

    @property
    def is_idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return self.turn is None and not self.items and not self.overflow

    @property
    def is_forgettable(self) -> bool:
        """Whether nothing would be lost without it."""
        quiet = self.is_idle and self.requested is None and self.timer is None
        return quiet and not self.children and not self.approvals and not self.answers

    @property
    def is_busy(self) -> bool:
        """Whether anything but a heartbeat runs or waits."""
        if self.turn is not None and self.turn.kind is not MessageKind.HEARTBEAT:
            return True
        return bool(self.overflow) or any(i.message.kind is not MessageKind.HEARTBEAT for i in self.items.values())

    def put(self, item: Item) -> None:
        """A new message at the end."""
        self.items[item.id] = item
        self.count(item, 1)

    def count(self, item: Item, step: int) -> None:
        """A message begins (1) or ceases (-1) to wait."""
        self.waiting += step
        if item.is_user:
            self.waiting_users += step
        if step > 0 and item.steers:
            self.steering[item.id] = item
        if step > 0 and item.expires_ms:
            heappush(self.expiries, (item.expires_at, item.seq, item))

    def parked_items(self) -> list[Item]:
        """What aims at the running turn, in order; looks at nothing else, because a turn has many boundaries."""
        found = [item for item in self.parked.values() if item.state is MessageState.PARKED]
        self.parked = {item.id: item for item in found}
        return sorted(found, key=lambda item: item.place)

    def steering_items(self) -> list[Item]:
        """What no user sent and may go into the running turn, in order."""
        if self.steering:
            self.steering = {name: item for name, item in self.steering.items() if item.state in WAITING_STATES}
        return [item for item in self.steering.values() if item.state is MessageState.QUEUED]

    def waiting_items(self) -> list[Item]:
        """What waits, in order."""
        return [item for item in self.items.values() if item.state in WAITING_STATES]

    def next_item(self) -> Item | None:
        """What a turn that began now would begin with: the newest interrupt, else the first that is not held."""
        cutting = self.cutting
        if cutting is not None and cutting.state is MessageState.QUEUED:
            return cutting
        for item in self.items.values():
            if item.state is MessageState.QUEUED or item.state is MessageState.PARKED:
                return item
        return None

    def newest_cut(self) -> Item | None:
        """The newest interrupt that waits; several may, if they came while the inbox closed or were given back."""
        for item in reversed(self.items.values()):
            if item.mode in CUTTING and item.is_user and item.state in WAITING_STATES:
                return item
        return None

    def batch_from(self, head: Item) -> list[Item]:
        """The messages that share a turn with `head`: its neighbours with the same route and rights, if it gathers."""
        if head.mode not in GATHERING or not head.is_user:
            return [head]
        batch: list[Item] = []
        for item in self.items.values():
            if item.state is not MessageState.QUEUED and item.state is not MessageState.PARKED:
                continue  # held ones are passed
            if item is not head and not batch:
                continue
            if item.mode not in GATHERING or item.merge_key != head.merge_key:
                break
            batch.append(item)
        return batch

    def ready_at(self) -> int | None:
        """When the next turn may begin, as far as the messages are concerned; None: nothing waits for one."""
        head = self.next_item()
        if head is None:
            return self.not_before if self.overflow else None
        if head.eager or head.mode not in GATHERING or not head.is_user:
            return self.not_before
        quiet = min(self.last_at + head.debounce_ms, head.arrived_at + head.max_wait_ms)
        return max(quiet, self.not_before)

    def next_due(self, *, closing: bool) -> int | None:
        """When there is something to do next without anybody asking."""
        due: list[int] = []
        if self.turn is None and self.requested is None and not closing:
            ready = self.ready_at()
            if ready is not None:
                due.append(ready)
        if self.turn is not None and self.turn.fence_at:
            due.append(self.turn.fence_at)
        while self.expiries and self.expiries[0][2].state not in WAITING_STATES:
            heappop(self.expiries)
        if self.expiries:
            due.append(self.expiries[0][0])
        while self.notices and (self.notices[0].noticed or self.notices[0].state not in WAITING_STATES):
            self.notices.popleft()
        if self.notices:
            # With many waiting they are told in groups, because each time everybody's position is counted.
            step = NOTICE_STEP_MS if self.waiting > NOTICE_FEW else 1
            due.append(-(-(self.notices[0].arrived_at + NOTICE_MS) // step) * step)
        due.extend(at for entry in self.approvals.values() if (at := entry.due) is not None)
        return min(due, default=None)
