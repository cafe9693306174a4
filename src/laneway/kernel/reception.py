"""Messages as they come in: what the mode makes of them, and what gives way when there are too many.

A message is accepted, or refused by an error and nothing has changed.
"""

from __future__ import annotations

from laneway.errors import MailboxFullError
from laneway.events import MessageAccepted, MessageParked, MessageRefused, TypingStarted
from laneway.kernel.delivery import Delivery
from laneway.kernel.mailbox import CancelChild, Mailbox, Touch, WakeTurn
from laneway.kernel.messages import CUTTING, GATHERING, STEERING, Change, Item, TurnEntry
from laneway.mail import (
    WAITING_STATES,
    Drop,
    MessageKind,
    MessageState,
    Mode,
    Outcome,
    QueueSettings,
    Receipt,
    TurnState,
)

__all__ = ("AT_ONCE", "Reception")

AT_ONCE = "it runs at once"

_UNSTEERABLE = {
    TurnState.STARTING: "the running turn is only starting",
    TurnState.WAITING: "the running turn waits for an answer",
    TurnState.DELIVERING: "the running turn has ended and is being delivered",
}


class Reception(Delivery):
    """Takes messages in."""

    debounce_idle = False

    def accept(self, item: Item, settings: QueueSettings, *, now: int, wall: int) -> Receipt:
        """Take a message in; `MailboxFullError` if it is one too many and newcomers are to be refused."""
        owner = item.owner
        box = self.boxes.get(owner)
        if box is None:
            box = Mailbox(owner)
        was_idle = box.is_idle
        refused = self._refusal(box, item)
        if refused is not None:
            return self._refuse(box, item, *refused, wall=wall)
        victims = [] if was_idle else self._victims(box, item, settings, wall)
        self.boxes[owner] = box
        if item.is_user and box.waiting > box.waiting_users:
            self._drop_heartbeats(box, wall)
            was_idle = was_idle or box.is_idle
        self._make_room(box, victims, settings, wall)
        self._enter(box, item, settings, now, was_idle=was_idle)
        item.reason = self._take_effect(box, item, now, wall)
        position = box.waiting
        if item.state is MessageState.QUEUED and not item.reason:
            item.reason = (
                AT_ONCE if was_idle and item.eager and not box.setup_error else self._waits_for(box, item, now)
            )
        mode = item.mode.value
        self._message_event(MessageAccepted, item, wall, position=position, mode=mode)
        if item.is_user:
            self._tell(TypingStarted, owner, wall, message_id=item.id)
        self._out.append(Touch(owner, item))
        self._consider(box, now)
        return Receipt(message_id=item.id, disposition=item.state, position=position, reason=item.reason)

    def _drop_heartbeats(self, box: Mailbox, wall: int) -> None:
        """A heartbeat that has not begun gives way to a user."""
        for item in [item for item in box.items.values() if item.message.kind is MessageKind.HEARTBEAT]:
            if item.state in WAITING_STATES:
                self._leave(box, item)
                self._finish(box, item, Change.DROP, "heartbeat skipped: a user's message came", wall)

    def _waits_for(self, box: Mailbox, item: Item, now: int) -> str:
        # `why` looks at every waiting message; a receipt must not, when a hundred thousand wait.
        if box.turn is not None:
            return self.why(box, item, now)
        if box.waiting > 1 and item.mode not in CUTTING:
            return f"{box.waiting - 1} wait before it"
        return self.why(box, item, now)

    def _refusal(self, box: Mailbox, item: Item) -> tuple[Change, str] | None:
        if item.message.kind is MessageKind.HEARTBEAT and not box.is_idle:
            return Change.DROP, "heartbeat skipped: the session is busy"
        if item.mode is Mode.REJECT and item.is_user and box.is_busy:
            return Change.REJECT, "the session is busy, and its mode is to refuse meanwhile"
        return None

    def _refuse(self, box: Mailbox, item: Item, change: Change, reason: str, *, wall: int) -> Receipt:
        self._finish(box, item, change, reason, wall)
        return Receipt(message_id=item.id, disposition=item.state, reason=reason)

    def _enter(self, box: Mailbox, item: Item, settings: QueueSettings, now: int, *, was_idle: bool) -> None:
        item.arrived_at = now
        item.eager = was_idle and not self.debounce_idle
        if item.mode in GATHERING:
            item.debounce_ms, item.max_wait_ms = settings.debounce_ms, settings.max_wait_ms
            item.set_body()
            box.last_at = now
        if item.expires_ms:
            item.expires_at = now + max(0, item.expires_ms - item.message.arrived_ms)
        self.items[item.id] = item
        box.put(item)
        if item.is_user and self.listening:
            box.notices.append(item)

    def _take_effect(self, box: Mailbox, item: Item, now: int, wall: int) -> str:
        """What its mode does right away; the answer is why it waits, if that is special."""
        turn = box.turn
        if self.closing:
            if item.mode in CUTTING and item.is_user:
                box.cutting = item
            return "the inbox is closing; it runs after the next start"
        if not item.is_user:
            return ""
        if item.mode in CUTTING:
            self._cut(box, item, now, wall)
        elif turn is not None and turn.kind is MessageKind.HEARTBEAT:
            self.cancel_turn(box, "a user's message goes before a heartbeat", now=now, wall=wall)
        elif turn is not None and turn.asking and item.fits(turn) and not turn.cancelled:
            turn.asking = False
            turn.answered_by = item.id
            self._aim(box, item, turn.id)
            item.change(Change.PARK, f"it answers the question of {turn.id}")
            self._out.append(WakeTurn(box.owner, turn.id))
            return item.reason
        elif item.mode in STEERING and turn is not None:
            return self.park(box, item)
        return ""

    def _cut(self, box: Mailbox, item: Item, now: int, wall: int) -> None:
        older = box.cutting
        if older is not None and older.state in WAITING_STATES:
            if older.forgets:
                item.forgets = older.forgets
                item.set_body()
            self._leave(box, older)
            self._finish(box, older, Change.SUPERSEDE, f"message {item.id} came after it", wall)
        box.cutting = item
        turn = box.turn
        if turn is not None:
            self.cancel_turn(box, f"interrupted by message {item.id}", now=now, wall=wall)
            if turn.cancelled and item.mode is Mode.ROLLBACK:
                turn.forget = True
                self._out.append(Touch(box.owner, turn))
        else:
            if item.mode is Mode.ROLLBACK:
                self._roll_back(box, item)
            self.end_put_off(box, f"interrupted by message {item.id}", now=now, wall=wall)

    def _roll_back(self, box: Mailbox, item: Item) -> None:
        """A turn that was put off is to be forgotten: whoever runs this message does that, for they know its lines."""
        begun = [each for each in box.items.values() if each.begun and each.state in WAITING_STATES]
        turns = {each.seen_by for each in begun}
        steered = [each for each in box.items.values() if not each.begun and each.seen_by in turns]
        for each in steered:  # they are told again, as if that turn had never seen them
            each.seen_by = ""
            each.set_body()
            self._out.append(Touch(box.owner, each))
        item.forgets = [*item.forgets, *(each.id for each in (*begun, *steered)), *sorted(turns)]
        item.set_body()

    def cancel(self, box: Mailbox, reason: str, *, now: int, wall: int, actor: str = "inbox") -> bool:
        """End the turn of a session, also one that was put off. False: there is none, or it is ending."""
        if box.turn is not None:
            return self.cancel_turn(box, reason, now=now, wall=wall, actor=actor)
        return bool(self.end_put_off(box, reason, now=now, wall=wall, actor=actor))

    def end_put_off(self, box: Mailbox, reason: str, *, now: int, wall: int, actor: str = "inbox") -> int:
        """A turn that was to go on later will not: its messages end with it. How many turns that were."""
        begun = [item for item in box.items.values() if item.begun and item.state in WAITING_STATES]
        turns = {item.seen_by for item in begun}
        for item in begun:
            self._leave(box, item)
            item.outcome, item.turn_id = Outcome.INTERRUPTED, item.seen_by
            self._finish(box, item, Change.MERGE if item.begun > 1 else Change.RUN, reason, wall, actor=actor)
        for child in box.children.values():
            if child.live and child.ends_with in turns:  # it ends with its turn, and nobody waits for it
                child.silenced = True
                self._out.append(Touch(box.owner, child))
                self._out.append(CancelChild(box.owner, child.id, reason))
        if begun:
            self._consider(box, now)
        return len(turns)

    def started_in(self, turn: TurnEntry) -> frozenset[str]:
        """What ends with a turn: the children it has started, and those of the turns that it goes on for."""
        box = self.boxes.get(turn.owner)
        children = box.children.values() if box is not None else ()
        return frozenset(child.id for child in children if child.ends_with == turn.id)

    def resumed(self, turn: TurnEntry, *, wall: int) -> None:
        """A turn goes on for one that was put off: what came meanwhile to steer that one goes into this one."""
        box = self.boxes.get(turn.owner)
        if box is None or box.turn is not turn or not any(item.begun for item in turn.items):
            return
        if any(entry.approval.turn_id == turn.id for entry in (*box.approvals.values(), *box.answers.values())):
            return  # it waits for an answer, and nothing steers it meanwhile
        for item in box.waiting_items():
            if item.mode in STEERING and item.is_user and item.state is MessageState.QUEUED and not item.begun:
                self.park(box, item)
                if item.aim:
                    self._message_event(MessageParked, item, wall)
                    self._out.append(Touch(box.owner, item))

    def park(self, box: Mailbox, item: Item) -> str:
        """Aim a message at the running turn if it may go in; the answer says why, or why not."""
        turn = box.turn
        assert turn is not None
        why_not = self.unsteerable(box, item)
        if why_not:
            return why_not
        self._aim(box, item, turn.id)
        item.change(Change.PARK, f"it goes into {turn.id} at its next boundary")
        return item.reason

    @staticmethod
    def _aim(box: Mailbox, item: Item, turn_id: str) -> None:
        item.aim = turn_id
        box.parked[item.id] = item

    @staticmethod
    def unsteerable(box: Mailbox, item: Item) -> str:
        """Why a message may not go into the running turn; empty when it may."""
        turn = box.turn
        assert turn is not None
        why_not = _UNSTEERABLE.get(turn.state, "")
        if turn.cancelled:
            why_not = "the running turn is being ended"
        elif not why_not and not item.fits(turn):
            same_route = item.merge_key[:1] == turn.merge_key[:1]
            why_not = (
                "the running turn has other rights" if same_route else "the running turn belongs to another thread"
            )
        return f"not steered: {why_not}" if why_not else ""

    # ---- too many ----

    def _victims(self, box: Mailbox, item: Item, settings: QueueSettings, wall: int) -> list[Item]:
        """Who has to give way for this one; raises if nobody may."""
        superseded = box.cutting is not None and item.mode in CUTTING and box.cutting.state in WAITING_STATES
        excess = box.waiting_users - superseded - settings.cap + 1
        if not item.is_user or excess <= 0:
            return []
        victims: list[Item] = []
        if settings.drop is not Drop.NEW:
            for other in box.items.values():
                if other.state in WAITING_STATES and other.is_user and not (superseded and other is box.cutting):
                    if other.begun:  # its turn goes on later: it does not really wait
                        excess -= 1
                    else:
                        victims.append(other)
                    if len(victims) >= excess:
                        return victims[: max(0, excess)]
        sender = item.message.sender
        why = f"{settings.cap} messages wait already"
        self._tell(MessageRefused, box.owner, wall, sender=sender.id if sender else "", cap=settings.cap, reason=why)
        raise MailboxFullError(session_key=box.owner.session, cap=settings.cap)

    def _make_room(self, box: Mailbox, victims: list[Item], settings: QueueSettings, wall: int) -> None:
        for item in victims:
            self._leave(box, item)
            if settings.drop is Drop.OLD:
                why = f"more than {settings.cap} waited, and the oldest goes (drop=old)"
                self._finish(box, item, Change.DROP, why, wall)
                continue
            why = f"more than {settings.cap} waited; a line of it is kept for the agent (drop=summarize)"
            self._finish(box, item, Change.SUMMARIZE, why, wall)
            same = [one for one in box.overflow if one.merge_key == item.merge_key]
            if len(same) >= settings.cap:
                last = same[-1]
                last.more += 1  # its line would be one too many: it is only counted
                last.set_body()
                self._out.append(Touch(box.owner, last))
            else:
                item.live = 1  # a restart must still tell the agent, in the same order
                item.place = self._next_seq()
                self.items[item.id] = item
                box.overflow.append(item)

    def bound(self, box: Mailbox, settings: QueueSettings, *, now: int, wall: int) -> None:
        """The cap was made smaller: what is too much goes by the policy (`new` refuses only newcomers)."""
        if settings.drop is Drop.NEW:
            return
        waiting = box.waiting_items()
        users = [item for item in waiting if item.is_user and not item.begun]
        self._make_room(box, users[: max(0, len(users) - settings.cap)], settings, wall)
        self._consider(box, now)
