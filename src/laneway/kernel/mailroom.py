"""The kernel of the inbox: reception and delivery, and everything people do to a queue while it waits.

Pure like the kernel of the lanes: time, ids and sequence numbers come from outside, and `take()` gives what the
engine has to do. What has been decided is in memory before it is on disk; the engine makes nothing visible until it
is, and reloads a session whose rows the store refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from typing import NamedTuple, assert_never

from laneway.errors import MessageStateError, PermissionDeniedError, UnknownMessageError
from laneway.events import (
    ApprovalAsked,
    ChildEnded,
    ChildStarted,
    MessageEdited,
    MessageHeld,
    MessageMoved,
    MessageParked,
    MessageReleased,
    SessionReset,
    SessionStopped,
    SettingsChanged,
)
from laneway.kernel.delivery import CRASHES_MAX, PUT_OFF
from laneway.kernel.mailbox import (
    Add,
    ApprovalEntry,
    CancelChild,
    ChildEntry,
    Forget,
    Mailbox,
    SessionEntry,
    Touch,
    session_id,
)
from laneway.kernel.messages import CUTTING, GATHERING, Change, Item, TurnEntry, encode
from laneway.kernel.reception import Reception
from laneway.kernel.settings import options_to_json
from laneway.kernel.stored_mail import recall
from laneway.mail import (
    WAITING_STATES,
    Approval,
    ApprovalState,
    Message,
    MessageKind,
    MessageState,
    Mode,
    OnCrash,
    PendingMessage,
    QueueOptions,
    QueueSettings,
    Sender,
    Stopped,
    TurnState,
)
from laneway.records import Priority
from laneway.rows import EntryRow, Loaded, Owner, StateKey

__all__ = ("Mailroom", "Rules")

Running = Mapping[str, TurnEntry]
"""Turns whose handlers live on here, by their ids."""


class Rules(NamedTuple):
    """What holds for every session of a workspace."""

    grace_ms: int = 15_000
    debounce_idle: bool = False
    on_crash: OnCrash = OnCrash.REPORT


class Mailroom(Reception):
    """Every decision about the messages and turns of one workspace."""

    def __init__(self, rules: Rules, *, next_seq: Callable[[], int]) -> None:
        super().__init__(next_seq=next_seq, grace_ms=rules.grace_ms)
        self.debounce_idle = rules.debounce_idle
        self.on_crash = rules.on_crash
        self.to_forget: list[TurnEntry] = []  # rolled back by a process that died before it could take out their lines
        self.unreadable: dict[Owner, str] = {}
        """Sessions that were set aside, because nothing can be made of what is stored of them; and why."""

    # ---- the queue as an object ----

    def waiting_item(self, message_id: str, call: str) -> tuple[Mailbox, Item]:
        """A message that waits, with its mailbox."""
        item = self.items.get(message_id)
        if item is None:
            raise UnknownMessageError(message_id=message_id)
        if item.state not in WAITING_STATES:
            hint = "only messages that wait can be changed"
            raise MessageStateError(message_id=message_id, state=item.state, call=call, hint=hint)
        return self.boxes[item.owner], item

    def edit(self, message_id: str, text: str, *, actor: str, now: int, wall: int) -> None:
        """Change the text of a waiting message."""
        box, item = self.waiting_item(message_id, "edit")
        item.set_message(replace(item.message, text=text))
        self._message_event(MessageEdited, item, wall, reason="edited", actor=actor)
        self._out.append(Touch(box.owner, item))
        self._consider(box, now)

    def move(self, message_id: str, position: int, *, actor: str, now: int, wall: int) -> int:
        """Give a waiting message another place among those that wait (from 1); says which it got."""
        box, item = self.waiting_item(message_id, "move")
        others = [other for other in box.waiting_items() if other is not item]
        index = min(max(position, 1), len(others) + 1) - 1
        ordered = [other for other in box.items.values() if other is not item]
        ordered.insert(ordered.index(others[index]) if index < len(others) else len(ordered), item)
        places = sorted(other.place for other in ordered)  # those that a turn has taken keep their neighbours, too
        box.items.clear()
        for other, place in zip(ordered, places, strict=True):
            box.items[other.id] = other
            if other.place != place:
                other.place = place
                self._out.append(Touch(box.owner, other))
        self._message_event(MessageMoved, item, wall, reason="moved", actor=actor, position=index + 1)
        self._consider(box, now)
        return index + 1

    def hold(self, message_id: str, *, actor: str, now: int, wall: int) -> None:
        """Set a waiting message aside; others pass it."""
        box, item = self.waiting_item(message_id, "hold")
        if item.state is not MessageState.HELD:
            item.aim = ""
            item.change(Change.HOLD, f"held by {actor}")
            self._message_event(MessageHeld, item, wall, actor=actor)
            self._out.append(Touch(box.owner, item))
            self._consider(box, now)

    def release(self, message_id: str, *, actor: str, now: int, wall: int) -> None:
        """Let a held message wait in its place again."""
        box, item = self.waiting_item(message_id, "release")
        if item.state is not MessageState.HELD:
            raise MessageStateError(message_id=message_id, state=item.state, call="release", hint="it is not held")
        item.change(Change.RELEASE, f"released by {actor}")
        self._message_event(MessageReleased, item, wall, actor=actor)
        self._out.append(Touch(box.owner, item))
        self._consider(box, now)

    def withdraw(self, message_id: str, reason: str, *, actor: str, now: int, wall: int) -> None:
        """Take a waiting message back."""
        box, item = self.waiting_item(message_id, "withdraw")
        if item.begun:
            self.end_put_off(box, reason, actor=actor, now=now, wall=wall)
            return
        self._leave(box, item)
        self._finish(box, item, Change.WITHDRAW, reason, wall, actor=actor)
        self._consider(box, now)

    def steer_now(self, message_id: str, *, actor: str, now: int, wall: int) -> str:
        """Aim a waiting message at the running turn; the answer says why not, if it may not go in."""
        box, item = self.waiting_item(message_id, "steer_now")
        if not item.is_user:
            raise MessageStateError(message_id=message_id, state=item.state, call="steer_now", hint="only users steer")
        if box.turn is None:
            return "not steered: nothing runs in this session"
        if item.aim:
            return ""
        why_not = self.unsteerable(box, item)
        if why_not:
            return why_not
        if item.state is MessageState.HELD:
            item.change(Change.RELEASE, f"released by {actor}")
            self._message_event(MessageReleased, item, wall, actor=actor)
        self.park(box, item)
        if box.cutting is item:
            box.cutting = None
        item.message = replace(item.message, mode=Mode.STEER)
        item.set_body()
        self._message_event(MessageParked, item, wall, actor=actor)
        self._out.append(Touch(box.owner, item))
        self._consider(box, now)
        return ""

    def send_as(self, message_id: str, mode: Mode, settings: QueueSettings, *, actor: str, now: int, wall: int) -> None:
        """Let a waiting message do what another mode does, as if it came with it now. It keeps its place."""
        box, item = self.waiting_item(message_id, "send_as")
        if not item.is_user or mode is Mode.REJECT:
            why = "it waits already, so nothing can refuse it" if item.is_user else "only users choose a mode"
            raise MessageStateError(message_id=message_id, state=item.state, call="send_as", hint=why)
        if item.state is MessageState.HELD:
            item.change(Change.RELEASE, f"released by {actor}")
            self._message_event(MessageReleased, item, wall, actor=actor)
        elif item.state is MessageState.PARKED:
            item.aim = ""
            item.change(Change.UNPARK, f"sent as {mode.value} by {actor}")
        item.message = replace(item.message, mode=mode)
        gathers = mode in GATHERING
        item.debounce_ms, item.max_wait_ms = (settings.debounce_ms, settings.max_wait_ms) if gathers else (0, 0)
        item.set_body()
        if gathers:
            box.last_at = now
        if box.cutting is item:
            box.cutting = None if mode in CUTTING else box.newest_cut()
        item.reason = self._take_effect(box, item, now, wall)
        self._message_event(MessageEdited, item, wall, reason=f"sent as {mode.value}", actor=actor)
        if item.state is MessageState.PARKED:
            self._message_event(MessageParked, item, wall, actor=actor)
        self._out.append(Touch(box.owner, item))
        self._consider(box, now)

    def pending(self, owner: Owner, *, now: int, after: int = 0, limit: int | None = None) -> list[PendingMessage]:
        """What waits in a session, in order, and why; with `after` and `limit` only those behind a place."""
        box = self.boxes.get(owner)
        if box is None:
            return []
        waiting = box.waiting_items()[after : None if limit is None else after + limit]
        return [
            PendingMessage(
                message=item.message,
                state=item.state,
                position=position,
                reason=self.why(box, item, now) if self._is_soon(box, item, position) else "others are before it",
                waited_ms=max(0, now - item.arrived_at),
                seen_by=item.seen_by or None,
            )
            for position, item in enumerate(waiting, after + 1)
        ]

    @staticmethod
    def _is_soon(box: Mailbox, item: Item, position: int) -> bool:
        """Whether it is worth finding out why one waits: behind a hundred others, that would look at all of them."""
        return position <= 100 or box.turn is not None or item.state is not MessageState.QUEUED

    # ---- the whole session ----

    def clear(self, owner: Owner, reason: str, *, actor: str, now: int, wall: int) -> int:
        """Take back everything that waits; says how many."""
        box = self.boxes.get(owner)
        if box is None:
            return 0
        waiting = [item for item in box.waiting_items() if not item.begun]  # a turn that was put off is not cleared
        for item in waiting:
            self._leave(box, item)
            self._finish(box, item, Change.WITHDRAW, reason, wall, actor=actor)
        self._drop_overflow(box)
        self._consider(box, now)
        return len(waiting)

    def _drop_overflow(self, box: Mailbox) -> None:
        for item in box.overflow:
            item.live = 0
            self.items.pop(item.id, None)
            self._out.append(Touch(box.owner, item))
        box.overflow.clear()

    def stop(self, owner: Owner, reason: str, *, actor: str, now: int, wall: int) -> Stopped:
        """End everything in a session: what waits, then the turn, then its children and calls in the background."""
        box = self.boxes.get(owner)
        if box is None:
            return Stopped(0, 0, 0, 0)
        debounced = self._debounced(box, now)
        waiting = self.clear(owner, reason, actor=actor, now=now, wall=wall) - debounced
        children = [child for child in box.children.values() if child.live]
        turns = self.end_put_off(box, reason, now=now, wall=wall, actor=actor)
        if box.turn is not None:
            box.turn.stopped = True
            self._out.append(Touch(owner, box.turn))
            turns += int(self.cancel_turn(box, reason, now=now, wall=wall, actor=actor))
        for child in children:
            child.silenced = True  # whoever said stop is told how many there were
            self._out.append(Touch(owner, child))
            self._out.append(CancelChild(owner, child.id, reason))
        calls = sum(child.is_call for child in children)
        stopped = Stopped(waiting, debounced, turns, len(children) - calls, calls)
        self._event(SessionStopped, owner, wall, reason=reason, actor=actor, **stopped._asdict())
        return stopped

    def _debounced(self, box: Mailbox, now: int) -> int:
        """How many wait only for a quiet moment."""
        if box.turn is not None or box.requested is not None:
            return 0
        ready = box.ready_at()
        head = box.next_item()
        return len(box.batch_from(head)) if head is not None and ready is not None and ready > now else 0

    def new_conversation(self, owner: Owner, *, actor: str, now: int, wall: int) -> Stopped:
        """End everything and begin afresh: nothing old leaks into what comes."""
        stopped = self.stop(owner, "a new conversation begins", actor=actor, now=now, wall=wall)
        session = self._session(owner)
        session.conversation += 1
        why = "a new conversation begins"
        self._event(SessionReset, owner, wall, conversation=session.conversation, actor=actor, reason=why)
        self._out.append(Touch(owner, session))
        return stopped

    def set_options(self, owner: Owner, options: QueueOptions, *, actor: str, wall: int) -> None:
        """Give a session settings of its own (empty ones: what is configured counts again)."""
        session = self._session(owner)
        session.options = options
        shown = encode(options_to_json(options))
        why = "reset" if options.is_empty else "set for this session"
        self._event(SettingsChanged, owner, wall, settings=shown, actor=actor, reason=why)
        if session.is_plain:
            del self.sessions[owner]
            self._out.append(Forget(owner, StateKey("session", session_id(owner))))
        else:
            self._out.append(Touch(owner, session))

    def apply_cap(self, owner: Owner, settings: QueueSettings, *, now: int, wall: int) -> None:
        """A smaller cap acts on what waits already."""
        box = self.boxes.get(owner)
        if box is not None:
            self.bound(box, settings, now=now, wall=wall)

    def _session(self, owner: Owner) -> SessionEntry:
        session = self.sessions.get(owner)
        if session is None:
            self.sessions[owner] = session = SessionEntry(owner)
        return session

    def record_command(self, item: Item, reply: str, *, wall: int) -> None:
        """A message was a command and has been answered: it never queues."""
        box = self.boxes.get(item.owner) or Mailbox(item.owner)
        self._finish(box, item, Change.ANSWER, reply, wall)

    # ---- approvals and children ----

    def ask(self, turn: TurnEntry, approval: Approval, *, now: int, wall: int) -> Approval:
        """A turn asks for an approval and waits; what it gets is the request that stands for it.

        That is an older one when the turn goes on for one that was cut off and had asked the same: still pending, with
        its whole time before it, or answered meanwhile. Asking otherwise about the same thing supersedes the old one.
        """
        box = self.boxes[turn.owner]
        span = max(0, approval.expires_ms - approval.asked_ms)
        entry = self._asked_before(box, turn, approval, now=now, wall=wall)
        if entry is not None and entry.approval.state is not ApprovalState.PENDING:
            if not approval.key:
                self._forget_answers(box, [entry])
            return entry.approval
        if entry is not None:
            keep = {name: getattr(entry.approval, name) for name in ("id", "asked_ms", "escalated")}
            entry.approval = replace(approval, **keep)
        else:
            entry = ApprovalEntry(turn.owner, approval, seq=self._next_seq())
            box.approvals[approval.id] = entry
            self._event(
                ApprovalAsked,
                turn.owner,
                wall,
                turn_id=turn.id,
                approval_id=approval.id,
                state=approval.state,
                action=approval.action,
                arguments=encode(approval.arguments),
                expires_ms=approval.expires_ms,
                reason=approval.why or f"{approval.action} needs an approval",
            )
        entry.wait(now=now, span_ms=span)
        self._out.append(Touch(turn.owner, entry))
        self._arm(box, now)
        return entry.approval

    def _asked_before(
        self, box: Mailbox, turn: TurnEntry, approval: Approval, *, now: int, wall: int
    ) -> ApprovalEntry | None:
        """What a turn that this one goes on for had asked about the same thing."""
        found = None
        for entry in [*box.answers.values(), *box.approvals.values()]:
            old = entry.approval
            if old.turn_id != turn.id or old.key != approval.key:
                continue
            if not approval.key and entry.is_awaited:
                continue  # another question of this turn
            if old.is_about(approval.action, approval.arguments):
                found = found or entry
            elif approval.key and old.id in box.answers:
                self._forget_answers(box, [entry])
            elif approval.key:
                why = "the same call is to be made with other arguments"
                self.end_approval(box, entry, ApprovalState.SUPERSEDED, reason=why, by="", now=now, wall=wall)
        return found

    def answer_approval(
        self,
        owner: Owner,
        approval_id: str,
        state: ApprovalState,
        *,
        reason: str,
        by: str,
        now: int,
        wall: int,
        sender: Sender | None = None,
    ) -> Approval | None:
        """Approve or deny; None when no such approval is pending in this session (any more).

        Raises `PermissionDeniedError` for a sender without the right. None is the host.
        """
        box = self.boxes.get(owner)
        entry = box.approvals.get(approval_id) if box is not None else None
        if box is None or entry is None:
            return None
        if not entry.approval.may_be_answered_by(sender):
            raise PermissionDeniedError(f"{by} may not answer request {approval_id}", hint="ask one of its approvers")
        if self.expire_approval(box, entry, now=now, wall=wall):
            return None  # its time is over, and only the clock has not said so yet
        self.end_approval(box, entry, state, reason=reason, by=by, now=now, wall=wall)
        return entry.approval

    def withdraw_approvals(self, owner: Owner, ids: Iterable[str], reason: str, *, by: str, now: int, wall: int) -> int:
        """Take back requests of a session; says how many of them were pending. Its turn goes on."""
        box = self.boxes.get(owner)
        asked = [entry for name in ids if (entry := box.approvals.get(name)) is not None] if box is not None else []
        for entry in asked:
            assert box is not None
            self.end_approval(box, entry, ApprovalState.WITHDRAWN, reason=reason, by=by, now=now, wall=wall)
        return len(asked)

    def add_child(self, turn: TurnEntry, child_id: str, label: str, *, wall: int) -> ChildEntry:
        """A turn starts a sub-agent."""
        child = ChildEntry(turn.owner, child_id, seq=self._next_seq(), turn_id=turn.id, label=label)
        child.route, child.sender, child.depth = turn.route, turn.sender, turn.depth
        self.enter_child(child, wall=wall)
        return child

    def enter_child(self, child: ChildEntry, *, wall: int) -> None:
        """A sub-agent is started: by a turn, or by the host itself."""
        self._box(child.owner).children[child.id] = child
        self._event(
            ChildStarted,
            child.owner,
            wall,
            turn_id=child.turn_id,
            child_id=child.id,
            label=child.label,
            reason="its turn started it" if child.turn_id else "the host started it",
        )
        self._out.append(Touch(child.owner, child))

    def await_child(self, child: ChildEntry, *, awaited: bool) -> None:
        """Its turn waits for it (or no longer does)."""
        if child.live and child.awaited != awaited:
            child.awaited = awaited
            self._out.append(Touch(child.owner, child))

    def keep_child(self, child: ChildEntry, state: str, text: str) -> None:
        """A sub-agent has ended while its turn still runs and may await it: keep its result until that is clear."""
        child.state, child.text = state, text
        self._out.append(Touch(child.owner, child))

    def begin_child_again(self, child: ChildEntry, turn_id: str) -> None:
        """Somebody begins it once more, as after a store that had refused its start: it has no end yet."""
        child.state, child.text, child.turn_id = "running", "", turn_id
        self._out.append(Touch(child.owner, child))

    def end_child(
        self, child: ChildEntry, state: str, note: Message | None, settings: QueueSettings, *, now: int, wall: int
    ) -> None:
        """A sub-agent has ended: exactly one message about it, unless its turn waits for it.

        The end of a call in the background goes into the turn that runs, if it may.
        """
        if not child.live:
            return
        steers = child.is_call
        child.state, child.live, child.text, child.detail = state, 0, "", {}
        message_id = note.id if note is not None else ""
        self._event(
            ChildEnded,
            child.owner,
            wall,
            turn_id=child.turn_id,
            child_id=child.id,
            label=child.label,
            state=state,
            message_id=message_id,
            reason=f"it {state}",
        )
        self._out.append(Touch(child.owner, child))
        box = self.boxes.get(child.owner)
        if box is not None:
            box.children.pop(child.id, None)
        if note is not None:
            item = Item(child.owner, note, seq=self._next_seq())
            item.depth = child.depth + 1
            item.steers = steers
            self.accept(item, settings, now=now, wall=wall)
        elif box is not None:
            self._consider(box, now)

    # ---- after a start ----

    def load(
        self,
        loaded: Loaded,
        *,
        running: Running,
        unbegun: Set[str] = frozenset(),
        now: int,
        wall: int,
    ) -> list[TurnEntry]:
        """Take over what the store has, and put in order at once what a crash has left: see `OnCrash`.

        `running` are the turns whose handlers live on here, `unbegun` those whose handler never began; both matter
        when a session is reloaded because the store failed. Returns the turns that are attached again. A session that
        cannot be read is in `unreadable`, and nothing of it is loaded.
        """
        recalled = recall(loaded, now=now, wall=wall)
        self.unreadable.update(recalled.unreadable)
        turns: dict[str, TurnEntry] = {}
        owners = dict.fromkeys(Owner(row.tenant, row.workspace, row.session) for row in loaded.states)
        for entry in recalled.entries:
            self._load_entry(entry, running)
            if isinstance(entry, TurnEntry):
                turns[entry.id] = entry
        for item in recalled.items:
            owners[item.owner] = None
            self._load_message(item, turns, now, wall)
        for turn in turns.values():
            if turn.id in unbegun and turn.cancelled:
                self.untell(self.boxes[turn.owner], turn)
                self.end(turn, TurnState.CANCELLED, reason=turn.cancelled, now=now, wall=wall)
            elif turn.id in unbegun:
                self.give_back(turn, "its turn could not be begun", now=now, wall=wall)
            elif turn.id not in running:
                self._recover(turn, now, wall)
        for owner in owners:
            if owner in self.boxes:
                self.expire(self.boxes[owner], now, wall)
                self._sweep_approvals(self.boxes[owner], wall)
                self._consider(self.boxes[owner], now)
        return [turn for turn in turns.values() if turn.live]

    def open_box(self, owner: Owner, *, requested: tuple[str, Priority] | None, not_before: int) -> Mailbox:
        """The mailbox of a session that is being loaded again; nothing begins in it before its time."""
        box = self._box(owner)
        box.requested, box.not_before = requested, not_before
        return box

    def reconsider(self, owner: Owner, *, now: int) -> None:
        """Ask for a slot if a turn may begin now."""
        if owner in self.boxes:
            self._consider(self.boxes[owner], now)

    def _box(self, owner: Owner) -> Mailbox:
        box = self.boxes.get(owner)
        if box is None:
            self.boxes[owner] = box = Mailbox(owner)
        return box

    def _load_entry(self, entry: TurnEntry | SessionEntry | ChildEntry | ApprovalEntry, running: Running) -> None:
        match entry:
            case TurnEntry():
                if entry.id in running:
                    _carry_over(running[entry.id], entry)
                self._box(entry.owner).turn = entry
                self.turns[entry.id] = entry
            case SessionEntry():
                self.sessions[entry.owner] = entry
            case ChildEntry():
                self._box(entry.owner).children[entry.id] = entry
            case ApprovalEntry():  # its time stands still until a turn waits for it; see also `carry_over`
                box = self._box(entry.owner)
                pending = entry.approval.state is ApprovalState.PENDING
                (box.approvals if pending else box.answers)[entry.approval.id] = entry
            case _:
                assert_never(entry)

    def carry_over(self, old: Mailbox, box: Mailbox) -> None:
        """A session was loaded again while its turn lives on: the time of what it has asked goes on as before."""
        for approval_id, entry in box.approvals.items():
            known = old.approvals.get(approval_id) or old.answers.get(approval_id)
            if known is not None:
                entry.carry_over(known)

    def _load_message(self, item: Item, turns: dict[str, TurnEntry], now: int, wall: int) -> None:
        box = self._box(item.owner)
        self.items[item.id] = item
        item.arrived_at = now - min(max(0, wall - item.message.arrived_ms), now)
        if item.expires_ms:
            item.expires_at = now + max(0, item.expires_ms - wall)
        turn = turns.get(item.turn_id)
        if item.state is MessageState.SUMMARIZED:
            (box.overflow if turn is None else turn.summarized).append(item)
            if turn is None:
                item.turn_id = ""
            return
        if item.state is MessageState.RUNNING and turn is not None:
            turn.items.append(item)
            first = turn.items[0]
            turn.merge_key, turn.route, turn.sender = first.merge_key, first.message.route, first.message.sender
            return
        box.items[item.id] = item
        if item.state is MessageState.INJECTED and turn is not None:
            turn.injected.append(item)
            return
        if item.state is MessageState.PARKED:
            if turn is None and box.turn is not None:
                self._aim(box, item, box.turn.id)
            else:
                item.change(Change.UNPARK, "the turn it was parked for is gone")
                self._out.append(Touch(box.owner, item))
        box.count(item, 1)
        if item.mode in GATHERING:
            box.last_at = max(box.last_at, item.arrived_at)
        if item.mode in CUTTING and item.is_user:
            box.cutting = item

    def _recover(self, turn: TurnEntry, now: int, wall: int) -> None:
        """The process died in this turn."""
        box = self.boxes[turn.owner]
        for item in turn.items:
            item.attempts += 1
            item.set_body()
        if turn.forget:
            self.to_forget.append(turn)
        if turn.cancelled and turn.cancelled not in PUT_OFF:
            why = f"{turn.cancelled}; the process ended meanwhile"
            self.untell(box, turn)
            self.end(turn, TurnState.INTERRUPTED, reason=why, now=now, wall=wall)
            return  # its approvals end with it
        poison = any(item.attempts >= CRASHES_MAX for item in turn.items)
        if self.on_crash.runs_again and turn.kind is not MessageKind.HEARTBEAT and not poison:
            self.give_back(turn, "the process ended while it ran; it runs again", now=now, wall=wall)
        else:
            why = "the process ended while it ran"
            if poison and self.on_crash.runs_again:
                why += f", for the {CRASHES_MAX}th time"
            self.untell(box, turn)
            self.end(turn, TurnState.INTERRUPTED, reason=why, now=now, wall=wall)

    def forget_lines(self, turn: TurnEntry, entries: Iterable[EntryRow]) -> None:
        """Take the lines of a turn that was rolled back out of the history."""
        self.forget_entries(turn.owner, [entry for entry in entries if entry.turn_id == turn.id])

    def forget_entries(self, owner: Owner, entries: Iterable[EntryRow]) -> None:
        """Take lines out of the history of a session."""
        self._out += [Add(owner, entry._replace(body=encode({"forgotten": True}))) for entry in entries]

    def orphans(self) -> Iterable[ChildEntry]:
        """Children that have died with their process: each still owes its session a message."""
        children = [child for box in self.boxes.values() for child in box.children.values()]
        return [child for child in children if child.live and not child.detail]

    def forget_all(self) -> None:
        """Drop everything: somebody else owns it now."""
        self.boxes.clear()
        self.items.clear()
        self.turns.clear()
        self.sessions.clear()
        self._out.clear()

    def forget_session(self, owner: Owner) -> Mailbox | None:
        """Drop what is known about a session; the store is asked again."""
        box = self.boxes.pop(owner, None)
        self.sessions.pop(owner, None)
        if box is None:
            return None
        for item in [*box.items.values(), *box.overflow]:
            self.items.pop(item.id, None)
        if box.turn is not None:
            self.turns.pop(box.turn.id, None)
            for item in [*box.turn.items, *box.turn.summarized]:
                self.items.pop(item.id, None)
        return box


def _carry_over(old: TurnEntry, turn: TurnEntry) -> None:
    """What a turn that lives on knows and the store does not."""
    turn.state = old.state if not old.state.is_final else TurnState.DELIVERING
    if (
        not turn.cancelled and old.cancelled in PUT_OFF
    ):  # nobody wanted that but its session, which is not here any more
        turn.cancelled = old.cancelled
    if turn.cancelled:  # the store knows that it is being ended; else whoever wanted to end it was refused
        turn.fence_at = old.fence_at
    turn.boundaries, turn.entries, turn.began_at = old.boundaries, old.entries, old.began_at
    turn.merge_key, turn.route, turn.prompt, turn.lane = old.merge_key, old.route, old.prompt, old.lane
    turn.tokens, turn.asking, turn.answered_by = old.tokens, old.asking, old.answered_by
    turn.delivered, turn.offered = old.delivered, old.offered
