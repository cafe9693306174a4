"""From waiting messages to turns and to their ends: who is delivered when.

The engine asks for nothing but times: it tells what has happened (a slot is there, a boundary is reached, a turn has
ended, time has passed) and carries out what comes back. Between "is the mailbox empty?" and "the session is free"
there is no gap, because both are decided in one call of `end`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from heapq import heappop, heappush
from typing import Any

from laneway.events import (
    ApprovalEnded,
    ApprovalEscalated,
    ApprovalWarned,
    MessageEnded,
    MessageEvent,
    MessageInjected,
    MessageReturned,
    MessageStarted,
    MessageWaited,
    SessionEvent,
    TurnCancelling,
    TurnEnded,
    TurnEvent,
    TurnReplied,
    TurnStarted,
)
from laneway.kernel import texts
from laneway.kernel.mailbox import (
    NOTICE_MS,
    AbandonTurn,
    Add,
    AnswerApproval,
    ApprovalEntry,
    CancelTurn,
    Mailbox,
    MailEffect,
    RemindOfApproval,
    RequestTurn,
    SessionEntry,
    Settle,
    Tell,
    TellOfChildren,
    Touch,
    WithdrawRequest,
)
from laneway.kernel.messages import Change, Item, TurnEntry, encode
from laneway.mail import (
    WAITING_STATES,
    ApprovalState,
    Final,
    MessageKind,
    MessageState,
    Mode,
    OnCrash,
    Outcome,
    TurnState,
)
from laneway.rows import EntryRow, EventRow, Owner

__all__ = ("RETRY_DELAYS_MS", "Delivery")

RETRY_DELAYS_MS = (500, 1_000, 2_000, 4_000, 8_000, 10_000, 10_000)
CRASHES_MAX = 5
PREVIEW = 160  # so much of a text is kept with the event that tells of it
CLOSING = "the inbox is closing"
LEAVING = "its session has left memory"
PUT_OFF = frozenset({CLOSING, LEAVING})
"""Reasons for which a turn is ended that goes on later."""
_ANSWERS = (ApprovalState.APPROVED, ApprovalState.DENIED, ApprovalState.EXPIRED)
DEFER_MS = 1_000

_OUTCOMES = {
    TurnState.SUCCEEDED: Outcome.SUCCEEDED,
    TurnState.FAILED: Outcome.FAILED,
    TurnState.CANCELLED: Outcome.INTERRUPTED,
    TurnState.INTERRUPTED: Outcome.INTERRUPTED,
    TurnState.FENCED: Outcome.INTERRUPTED,
}


class Delivery:
    """The mailboxes of one workspace, and the turns that empty them."""

    on_crash = OnCrash.REPORT
    slot_reason: Callable[[Owner], str] = staticmethod(lambda owner: "")
    turn_reason: Callable[[Owner], str] = staticmethod(lambda owner: "")
    """Why a turn that asked for a slot has none yet: the lanes know."""

    def __init__(self, *, next_seq: Callable[[], int], grace_ms: int) -> None:
        self.boxes: dict[Owner, Mailbox] = {}
        self.sessions: dict[Owner, SessionEntry] = {}  # only those that have something of their own
        self.items: dict[str, Item] = {}  # every live message
        self.turns: dict[str, TurnEntry] = {}  # every turn that may still say something
        self.closing = False
        self.listening = False
        self.grace_ms = grace_ms
        self._next_seq = next_seq
        self._heap: list[tuple[int, int, Owner]] = []
        self._timers = 0
        self._out: list[MailEffect] = []

    def take(self) -> list[MailEffect]:
        """What the engine has to do because of the last call."""
        out, self._out = self._out, []
        return out

    # ---- turns ----

    def begin(self, owner: Owner, turn_id: str, *, lane: str = "", now: int, wall: int) -> TurnEntry | None:
        """The slot is there, in `lane`: choose what the turn is about. None: nothing is left that would need one."""
        box = self.boxes.get(owner)
        if box is None:
            return None
        box.requested = None
        self.expire(box, now, wall)
        if box.turn is not None or self.closing or not self._is_ready(box, now):
            self._consider(box, now)
            return None
        turn = TurnEntry(turn_id, owner, seq=self._next_seq(), began_ms=wall, began_at=now)
        session = self.sessions.get(owner)
        turn.conversation = session.conversation if session is not None else 0
        head = box.next_item()
        if box.overflow and (head is None or head is not box.cutting):
            self._begin_overflow(box, turn, wall)
        else:
            assert head is not None
            self._begin_over(box, turn, head, now, wall)
        turn.lane = lane or turn.lane
        box.turn = turn
        box.setup_error = ""
        self.turns[turn_id] = turn
        self._adopt(box, turn)
        messages = tuple(item.id for item in turn.items)
        why = f"a slot in lane {turn.lane!r} was free"
        self._turn_event(TurnStarted, turn, wall, messages=messages, lane=turn.lane, mode=turn.mode, reason=why)
        self._out.append(Touch(owner, turn))
        self._arm(box, now)
        return turn

    def _is_ready(self, box: Mailbox, now: int) -> bool:
        ready = box.ready_at()
        return ready is not None and ready <= now

    def _begin_over(self, box: Mailbox, turn: TurnEntry, head: Item, now: int, wall: int) -> None:
        batch = box.batch_from(head)
        if self.on_crash is OnCrash.RESUME and head.seen_by:  # the turn goes on: what came meanwhile is another matter
            batch = [item for item in batch if item.seen_by == head.seen_by]
        turn.items = batch
        turn.mode, turn.kind, turn.lane = head.mode, head.message.kind, head.lane
        turn.merge_key, turn.route, turn.sender = head.merge_key, head.message.route, head.message.sender
        turn.depth = head.depth
        turn.prompt = texts.collected_prompt([item.message for item in batch])
        for number, item in enumerate(batch, 1):
            self._leave(box, item)
            item.turn_id = turn.id
            item.change(Change.BEGIN, f"{turn.id} began over it")
            self._write_entry(turn, item, wall)
            wait_ms = max(0, now - item.arrived_at)
            turn.wait_ms = max(turn.wait_ms, wait_ms)
            self._message_event(MessageStarted, item, wall, number=number, wait_ms=wait_ms)
            self._out.append(Touch(box.owner, item))

    def _begin_overflow(self, box: Mailbox, turn: TurnEntry, wall: int) -> None:
        first = box.overflow[0]
        group = [item for item in box.overflow if item.merge_key == first.merge_key]
        box.overflow = [item for item in box.overflow if item.merge_key != first.merge_key]
        turn.summarized = group
        turn.mode, turn.kind, turn.lane = first.mode, MessageKind.SYSTEM, first.lane
        turn.merge_key, turn.route, turn.sender = first.merge_key, first.message.route, first.message.sender
        count = sum(1 + item.more for item in group)
        lines = [texts.summary_line(item.message.text) for item in group]
        turn.prompt = texts.overflow_prompt(lines, count, max(1, len(lines)))
        for item in group:
            item.turn_id = turn.id  # it stays live until the agent has really been told
            self._out.append(Touch(box.owner, item))
        self._add_entry(turn, "system", turn.prompt, "", wall)

    def started(self, turn: TurnEntry) -> None:
        """The first line of the handler is about to run: from now on it can be steered."""
        if turn.state is TurnState.STARTING:
            turn.state = TurnState.THINKING
            box = self.boxes.get(turn.owner)
            if box is not None:
                box.failures = 0

    def set_phase(self, turn: TurnEntry, state: TurnState) -> None:
        """A running turn says what it does: thinking, acting, compacting, waiting or delivering."""
        if turn.live:
            turn.state = state

    def boundary(
        self,
        turn: TurnEntry,
        *,
        everything: bool = False,
        only: str = "",
        among: frozenset[str] | None = None,
        now: int,
        wall: int,
    ) -> list[Item]:
        """A safe point: what is parked for this turn goes in.

        `everything`: whatever of its users may go in, parked or not. `only`: one message, the answer to a question.
        `among`: those that the turn which this one goes on for had seen already.
        """
        box = self.boxes[turn.owner]
        turn.boundaries += 1
        if turn.state is TurnState.COMPACTING:
            return []
        if everything:
            known = box.items.values() if among is None else [item for item in box.items.values() if item.id in among]
            taken = [item for item in known if self._may_inject(turn, item)]
        else:
            taken = [item for item in box.parked_items() if item.aim == turn.id and only in ("", item.id)]
            if not only:
                taken += [item for item in box.steering_items() if item.fits(turn)]
        for item in taken:
            if item.state in WAITING_STATES:
                box.count(item, -1)
            item.turn_id, item.aim = turn.id, ""
            item.change(Change.INJECT, f"{turn.id} took it at boundary {turn.boundaries}")
            turn.injected.append(item)
            self._write_entry(turn, item, wall)
            self._message_event(MessageInjected, item, wall, boundary=turn.boundaries)
            self._out.append(Touch(box.owner, item))
        if taken:
            if any(item.is_user for item in taken):
                turn.depth = 0
            elif turn.kind is not MessageKind.USER:  # nobody but the agent has asked for what follows
                turn.depth = max(turn.depth, *(item.depth for item in taken))
            self._out.append(Touch(box.owner, turn))
            self._arm(box, now)
        seen = turn.delivered | turn.offered
        return [item for item in turn.injected if item.id not in seen and only in ("", item.id)]

    @staticmethod
    def _may_inject(turn: TurnEntry, item: Item) -> bool:
        if item.state is MessageState.PARKED:
            return item.aim == turn.id
        return item.state is MessageState.QUEUED and item.fits(turn)

    def reply(self, turn: TurnEntry, text: str, *, wall: int) -> None:
        """A turn says something."""
        source = turn.items[0].id if turn.items else ""
        self._add_entry(turn, "assistant", text, source, wall)
        part = sum(1 for entry in turn.entries if entry.role == "assistant")
        route = turn.route
        self._turn_event(
            TurnReplied,
            turn,
            wall,
            text=text,
            reason="said by the handler",
            part=part,
            channel=route.channel,
            account=route.account,
            thread=route.thread,
            message_id=source,
        )

    def end(
        self, turn: TurnEntry, state: TurnState, *, answer: str | None = None, reason: str = "", now: int, wall: int
    ) -> None:
        """A turn has ended: its messages get their outcome, and the next turn is asked for in the same breath."""
        if not turn.live:
            return
        box = self.boxes[turn.owner]
        if answer is not None and state is TurnState.SUCCEEDED:
            turn.answer = answer
            self.reply(turn, answer, wall=wall)
        reason = reason or "the handler returned"
        turn.state, turn.reason, turn.ended_ms, turn.live = state, reason, wall, 0
        outcome = _OUTCOMES[state]
        change = Change.MERGE if len(turn.items) > 1 else Change.RUN
        for item in turn.items:
            item.outcome = outcome
            self._finish(box, item, change, reason, wall, answer=turn.answer)
        for item in turn.summarized:
            item.live = 0
            self.items.pop(item.id, None)
            self._out.append(Touch(box.owner, item))
        self._return_injected(box, turn, outcome, wall)
        if turn.forget:
            for entry in turn.entries:
                self._out.append(Add(turn.owner, entry._replace(body=encode({"forgotten": True}))))
        self._end_approvals(box, turn, ApprovalState.WITHDRAWN, "its turn has ended", now=now, wall=wall)
        self._forget_answers(box, [entry for entry in box.answers.values() if entry.approval.turn_id == turn.id])
        box.turn = None
        self.turns.pop(turn.id, None)
        self._unpark(box, wall)
        untold = [child for child in box.children.values() if child.turn_id == turn.id and child.state != "running"]
        if untold:
            self._out.append(TellOfChildren(box.owner, tuple(child.id for child in untold)))
        self._turn_event(
            TurnEnded, turn, wall, run_ms=max(0, now - turn.began_at), answered=turn.answer is not None, reason=reason
        )
        self._out.append(Touch(box.owner, turn))
        self._consider(box, now)

    def _unpark(self, box: Mailbox, wall: int) -> None:
        for item in box.parked_items():
            item.aim = ""
            item.change(Change.UNPARK, "the turn ended before it could be steered")
            self._message_event(MessageReturned, item, wall)
            self._out.append(Touch(box.owner, item))
        box.parked = {}

    def _return_injected(self, box: Mailbox, turn: TurnEntry, outcome: Outcome, wall: int) -> None:
        for item in turn.injected:
            got = item.id in turn.delivered
            if got and outcome is Outcome.SUCCEEDED and item.mode is not Mode.STEER_BACKLOG:
                item.outcome = outcome
                box.items.pop(item.id, None)
                self._finish(box, item, Change.STEER, f"steered into {turn.id}", wall, answer=turn.answer)
                continue
            item.seen_by = "" if turn.forget else turn.id
            item.set_body()
            why = (
                "kept for a turn of its own"
                if outcome is Outcome.SUCCEEDED
                else f"{turn.id} saw it and did not succeed"
            )
            item.change(Change.RETURN, why)
            box.count(item, 1)
            self._message_event(MessageReturned, item, wall)
            item.turn_id = ""
            if turn.stopped:
                self._leave(box, item)
                self._finish(box, item, Change.WITHDRAW, turn.cancelled or "stopped", wall)
                continue
            self._out.append(Touch(box.owner, item))

    def cancel_turn(self, box: Mailbox, reason: str, *, now: int, wall: int, actor: str = "inbox") -> bool:
        """Ask the running turn to end; after its grace it is fenced. False: there is none, or it is ending."""
        turn = box.turn
        if turn is None or turn.state is TurnState.DELIVERING:
            return False
        if turn.cancelled:
            return self._end_for_good(box, turn, reason, now=now, wall=wall)
        turn.cancelled = reason
        turn.fence_at = now + self.grace_ms
        self._turn_event(TurnCancelling, turn, wall, reason=reason, actor=actor)
        self._out.append(Touch(box.owner, turn))  # a restart must not run again what somebody has ended
        self._out.append(CancelTurn(box.owner, turn.id, reason))
        if reason not in PUT_OFF or not self.on_crash.runs_again:  # else it goes on later, and asks again
            cutting = box.cutting is not None and box.cutting.state in WAITING_STATES
            ended = ApprovalState.SUPERSEDED if cutting else ApprovalState.WITHDRAWN
            self._end_approvals(box, turn, ended, reason, now=now, wall=wall)
        self._arm(box, now)
        return True

    def _end_for_good(self, box: Mailbox, turn: TurnEntry, reason: str, *, now: int, wall: int) -> bool:
        """A turn is on its way out already: one that was to go on later will not. False: nothing has changed."""
        if turn.cancelled not in PUT_OFF or reason in PUT_OFF:
            return False
        turn.cancelled = reason
        self._out.append(Touch(box.owner, turn))
        self._end_approvals(box, turn, ApprovalState.WITHDRAWN, reason, now=now, wall=wall)
        return True

    def _fence(self, box: Mailbox, now: int, wall: int) -> None:
        turn = box.turn
        assert turn is not None
        self._out.append(AbandonTurn(box.owner, turn.id))
        why = f"{turn.cancelled}; it did not end within {self.grace_ms} ms and was fenced"
        self.end(turn, TurnState.FENCED, reason=why, now=now, wall=wall)

    # ---- turns that could not be begun ----

    def setup_failed(self, owner: Owner, reason: str, *, now: int, wall: int) -> None:
        """The next turn could not be begun: again after a while, and not for ever."""
        box = self.boxes.get(owner)
        if box is None:
            return
        box.requested = None
        if box.failures < len(RETRY_DELAYS_MS):
            box.not_before = now + RETRY_DELAYS_MS[box.failures]
            box.setup_error = reason
            box.failures += 1
        else:
            box.failures = box.not_before = 0
            head = box.next_item()
            if head is not None:
                if head.state is MessageState.PARKED:
                    head.change(Change.UNPARK, reason)
                self._leave(box, head)
                self._finish(box, head, Change.DEAD_LETTER, reason, wall)
        self._consider(box, now)

    def unrequest(self, owner: Owner, *, now: int) -> None:
        """The slot that was asked for is not waited for any longer; if one is needed, it is asked for again."""
        box = self.boxes.get(owner)
        if box is not None:
            box.requested = None
            self._consider(box, now)

    def untell(self, box: Mailbox, turn: TurnEntry) -> None:
        """The turn that was to tell the agent of dropped messages has not: another one must."""
        for item in turn.summarized:
            item.turn_id = ""
            self._out.append(Touch(box.owner, item))
        box.overflow = sorted([*turn.summarized, *box.overflow], key=lambda item: item.place)
        turn.summarized = []

    def defer(self, owner: Owner, reason: str, *, now: int) -> None:
        """The lanes take no work just now: again in a second, as often as it takes."""
        box = self.boxes.get(owner)
        if box is not None:
            box.requested = None
            box.not_before, box.setup_error = now + DEFER_MS, reason
            self._arm(box, now)

    def give_back(self, turn: TurnEntry, reason: str, *, now: int, wall: int) -> None:
        """A turn ended before its handler began, or is to run again: its messages wait in their places."""
        box = self.boxes[turn.owner]
        goes_on = self.on_crash is OnCrash.RESUME and turn.state is not TurnState.STARTING
        turn.state, turn.reason, turn.live, turn.ended_ms = TurnState.INTERRUPTED, reason, 0, wall
        box.turn = None
        self.turns.pop(turn.id, None)
        self.untell(box, turn)
        waiting = list(box.items.values())
        box.items.clear()
        for item in sorted([*turn.items, *waiting], key=lambda item: item.place):
            box.items[item.id] = item
        for item in turn.items:
            item.change(Change.GIVE_BACK, reason)
            item.turn_id = ""
            item.seen_by = turn.id
            item.begun = len(turn.items) if goes_on else item.begun
            item.set_body()
            box.count(item, 1)
            self._message_event(MessageReturned, item, wall)
            self._out.append(Touch(box.owner, item))
        self._return_injected(box, turn, Outcome.INTERRUPTED, wall)
        for entry in box.approvals.values():
            if entry.approval.turn_id == turn.id:
                entry.leave()
        box.cutting = box.newest_cut()
        self._unpark(box, wall)
        self._turn_event(TurnEnded, turn, wall, run_ms=max(0, now - turn.began_at), reason=reason)
        self._out.append(Touch(box.owner, turn))

    def look_at(self, owner: Owner, *, now: int) -> None:
        """See whether a turn of a session may begin now."""
        box = self.boxes.get(owner)
        if box is not None:
            self._consider(box, now)

    # ---- approvals ----

    def end_approval(
        self, box: Mailbox, entry: ApprovalEntry, state: ApprovalState, *, reason: str, by: str, now: int, wall: int
    ) -> None:
        """An approval is answered, or will not be.

        An answer is kept while it may be asked for again: the process may die before its turn has acted on it, or
        nobody waits for it at the moment.
        """
        self._close_approval(box, entry, state, reason=reason, by=by, wall=wall)
        self._arm(box, now)

    def _close_approval(
        self, box: Mailbox, entry: ApprovalEntry, state: ApprovalState, *, reason: str, by: str, wall: int
    ) -> None:
        del box.approvals[entry.approval.id]
        entry.approval = replace(entry.approval, state=state, reason=reason, answered_by=by)
        if state in _ANSWERS and (entry.approval.key or not entry.is_awaited):
            box.answers[entry.approval.id] = entry
        else:
            entry.live = 0
        self._event(
            ApprovalEnded,
            box.owner,
            wall,
            turn_id=entry.approval.turn_id,
            reason=reason,
            actor=by or "inbox",
            approval_id=entry.approval.id,
            state=state,
        )
        self._out.append(Touch(box.owner, entry))
        self._out.append(AnswerApproval(box.owner, entry.approval))

    def _end_approvals(
        self, box: Mailbox, turn: TurnEntry, state: ApprovalState, reason: str, *, now: int, wall: int
    ) -> None:
        """What a turn has asked will not be answered."""
        for entry in list(box.approvals.values()):
            if entry.approval.turn_id == turn.id:
                self.end_approval(box, entry, state, reason=reason, by="", now=now, wall=wall)

    def _adopt(self, box: Mailbox, turn: TurnEntry) -> None:
        """A turn goes on for one that was cut off: what that one has asked and started is its own now."""
        if box.children:
            begun = {item.seen_by for item in turn.items if item.begun}
            for child in box.children.values():
                if child.live and child.ends_with in begun:
                    child.ends_with = turn.id
                    self._out.append(Touch(box.owner, child))
        if box.approvals or box.answers:
            before = {item.seen_by for item in turn.items}
            for entry in (*box.approvals.values(), *box.answers.values()):
                if entry.approval.turn_id in before:
                    entry.approval = replace(entry.approval, turn_id=turn.id)
                    self._out.append(Touch(box.owner, entry))

    def _sweep_approvals(self, box: Mailbox, wall: int) -> None:
        """What was asked by a turn that nobody will go on for is not to be answered any more."""
        alive = {item.seen_by for item in box.items.values()}
        if box.turn is not None:
            alive.add(box.turn.id)
        for entry in list(box.approvals.values()):
            if entry.approval.turn_id not in alive:
                why = "nobody goes on with what it was asked for"
                self._close_approval(box, entry, ApprovalState.WITHDRAWN, reason=why, by="", wall=wall)
        self._forget_answers(box, [entry for entry in box.answers.values() if entry.approval.turn_id not in alive])

    def _forget_answers(self, box: Mailbox, entries: list[ApprovalEntry]) -> None:
        for entry in entries:
            del box.answers[entry.approval.id]
            entry.live = 0
            self._out.append(Touch(box.owner, entry))

    # ---- time ----

    def next_due(self) -> int | None:
        """When `tick` is wanted next."""
        while self._heap:
            due, _, owner = self._heap[0]
            box = self.boxes.get(owner)
            if box is not None and box.timer == due:
                return due
            heappop(self._heap)
        return None

    def tick(self, *, now: int, wall: int) -> None:
        """Time has passed: do what is due."""
        while (due := self.next_due()) is not None and due <= now:
            _, _, owner = heappop(self._heap)
            box = self.boxes[owner]
            box.timer = None
            self._run_due(box, now, wall)
            self._consider(box, now)

    def _run_due(self, box: Mailbox, now: int, wall: int) -> None:
        if box.turn is not None and box.turn.fence_at and box.turn.fence_at <= now:
            self._fence(box, now, wall)
        self.expire(box, now, wall)
        if box.notices and box.notices[0].arrived_at + NOTICE_MS <= now:
            self._say_who_waits(box, now, wall)
        self._look_at_approvals(box, now, wall)

    def expire(self, box: Mailbox, now: int, wall: int) -> None:
        """What has waited longer than it was worth ends, before anything else can begin it."""
        while box.expiries and box.expiries[0][0] <= now:
            item = heappop(box.expiries)[2]
            if item.state in WAITING_STATES and not item.begun:
                self._leave(box, item)
                self._finish(box, item, Change.EXPIRE, "it waited longer than it was worth", wall)

    def _look_at_approvals(self, box: Mailbox, now: int, wall: int) -> None:
        for entry in list(box.approvals.values()):
            if self.expire_approval(box, entry, now=now, wall=wall) or not entry.is_awaited:
                continue
            approval, left = entry.approval, entry.expires_at - now
            if entry.escalate_at and entry.escalate_at <= now:
                entry.escalate_at = 0
                entry.approval = approval = replace(approval, escalated=True)
                self._event(
                    ApprovalEscalated,
                    box.owner,
                    wall,
                    turn_id=approval.turn_id,
                    approval_id=approval.id,
                    state=approval.state,
                    escalated_to=approval.escalate_to,
                    remaining_ms=left,
                    reason=f"nobody has answered for {approval.escalate_after_ms} ms",
                )
                self._out.append(Touch(box.owner, entry))
                self._out.append(RemindOfApproval(box.owner, approval, "escalated", left))
            if entry.warn_at and entry.warn_at <= now:
                entry.warn_at = 0
                self._tell(
                    ApprovalWarned,
                    box.owner,
                    wall,
                    turn_id=approval.turn_id,
                    approval_id=approval.id,
                    state=approval.state,
                    remaining_ms=left,
                )
                self._out.append(RemindOfApproval(box.owner, approval, "warned", left))

    def expire_approval(self, box: Mailbox, entry: ApprovalEntry, *, now: int, wall: int) -> bool:
        """End a request whose time is over; whether it was."""
        if not entry.is_awaited or entry.expires_at > now:
            return False
        why = "nobody answered in time"
        self.end_approval(box, entry, ApprovalState.EXPIRED, reason=why, by="", now=now, wall=wall)
        return True

    def _say_who_waits(self, box: Mailbox, now: int, wall: int) -> None:
        position = 0
        for item in box.items.values():
            if item.state not in WAITING_STATES:
                continue
            position += 1
            if not item.noticed and item.arrived_at + NOTICE_MS <= now:
                item.noticed = True
                waited, why = now - item.arrived_at, self.why(box, item, now)
                notice = texts.wait_notice(position, why, waited)
                self._tell(
                    MessageWaited,
                    box.owner,
                    wall,
                    message_id=item.id,
                    state=item.state,
                    position=position,
                    wait_ms=waited,
                    reason=why,
                    notice=notice,
                )

    def _consider(self, box: Mailbox, now: int) -> None:
        """Ask for a slot if a turn may begin now, else be woken when it may."""
        if box.turn is None and not self.closing:
            ready = box.ready_at()
            if ready is not None and ready <= now:
                head = box.next_item() or box.overflow[0]
                wanted = (head.lane, head.message.priority)
                if box.requested is not None and box.requested != wanted:
                    self._out.append(WithdrawRequest(box.owner))
                if box.requested != wanted:
                    box.requested = wanted
                    self._out.append(RequestTurn(box.owner, *wanted))
        self._arm(box, now)
        if box.is_forgettable:
            self.boxes.pop(box.owner, None)

    def _arm(self, box: Mailbox, now: int) -> None:
        due = box.next_due(closing=self.closing)
        if due is None:
            box.timer = None
        elif box.timer is None or due < box.timer:
            box.timer = due
            self._timers += 1
            heappush(self._heap, (due, self._timers, box.owner))

    # ---- questions ----

    def why(self, box: Mailbox, item: Item, now: int) -> str:
        """Why a message waits, in one sentence."""
        turn = box.turn
        if item.state is MessageState.HELD:
            return "it is held until somebody releases it"
        if item.state is MessageState.PARKED:
            return f"it goes into {item.aim} at its next boundary"
        if turn is not None:
            told = f", which is being ended: {turn.cancelled}" if turn.cancelled else self._asked_by(box, turn, now)
            if not told and (waits := self.turn_reason(box.owner)):
                told = f" and waits: {waits}"
            return f"{turn.id} has run for {max(0, now - turn.began_at)} ms{told}"
        if self.closing:
            return "the inbox is closing; it runs after the next start"
        if box.setup_error:
            return f"its turn could not be begun ({box.setup_error}); next try in {max(0, box.not_before - now)} ms"
        head = box.next_item()
        if head is not None and head is not item and item not in box.batch_from(head):
            return "others are before it"
        if box.requested is not None:
            lane = head.lane if head else item.lane
            return self.slot_reason(box.owner) or f"its turn waits for a slot in lane {lane!r}"
        ready = box.ready_at()
        if ready is not None and ready > now:
            return f"it waits for a quiet moment: {ready - now} ms more"
        return "its turn begins now"

    @staticmethod
    def _asked_by(box: Mailbox, turn: TurnEntry, now: int) -> str:
        asked = [entry for entry in box.approvals.values() if entry.is_awaited and entry.approval.turn_id == turn.id]
        if not asked:
            return ""
        waits = [f"{entry.approval.id} ({max(0, entry.expires_at - now)} ms left)" for entry in asked]
        return f" and waits for approval {' and '.join(waits)}"

    def position(self, box: Mailbox, item: Item) -> int | None:
        """Its place among those that wait, from 1."""
        if item.state not in WAITING_STATES:
            return None
        place = 0
        for other in box.items.values():
            place += other.state in WAITING_STATES
            if other is item:
                break
        return place

    # ---- parts ----

    def _leave(self, box: Mailbox, item: Item) -> None:
        """A waiting message leaves the queue."""
        del box.items[item.id]
        box.count(item, -1)
        if box.cutting is item:
            box.cutting = box.newest_cut()

    def _finish(
        self,
        box: Mailbox,
        item: Item,
        change: Change,
        reason: str,
        wall: int,
        *,
        answer: str | None = None,
        actor: str = "inbox",
    ) -> None:
        """A message reaches its final state."""
        item.change(change, reason)
        item.ended_ms = wall
        self.items.pop(item.id, None)
        final = Final(
            message_id=item.id,
            disposition=item.state,
            outcome=item.outcome,
            turn_id=item.turn_id or None,
            reason=reason,
            answer=answer,
            session_key=item.owner.session,
        )
        notice = texts.ending_notice(item.message, item.state, reason, item.outcome) or ""
        self._message_event(MessageEnded, item, wall, outcome=item.outcome, notice=notice, reason=reason, actor=actor)
        self._out.append(Touch(box.owner, item))
        self._out.append(Settle(box.owner, final))
        if box.approvals or box.answers:
            self._sweep_approvals(box, wall)

    def _write_entry(self, turn: TurnEntry, item: Item, wall: int) -> None:
        """A message goes into the transcript when a turn first sees it, and only then."""
        if item.seen_by:
            return
        sender = item.message.sender
        self._add_entry(
            turn, item.message.kind.value, item.message.text, item.id, wall, sender=sender.id if sender else ""
        )

    def _add_entry(
        self, turn: TurnEntry, role: str, text: str, message_id: str, wall: int, *, sender: str = ""
    ) -> None:
        owner = turn.owner
        body = encode({"sender": sender}) if sender else "{}"
        role = role if role in ("user", "assistant") else "system"
        entry = EntryRow(*owner, self._next_seq(), wall, turn.conversation, role, message_id, turn.id, text, body)
        turn.entries.append(entry)
        self._out.append(Add(owner, entry))

    def _message_event(self, kind: type[MessageEvent], item: Item, wall: int, **facts: Any) -> None:
        facts.setdefault("reason", item.reason)
        self._event(kind, item.owner, wall, message_id=item.id, turn_id=item.turn_id, state=item.state, **facts)

    def _turn_event(self, kind: type[TurnEvent], turn: TurnEntry, wall: int, **facts: Any) -> None:
        self._event(kind, turn.owner, wall, turn_id=turn.id, state=turn.state, **facts)

    def _event(self, kind: type[SessionEvent], owner: Owner, wall: int, **facts: Any) -> None:
        """Something has happened: it is kept, and whoever listens is told once it is on disk."""
        seq = self._next_seq()
        if self.listening:
            event = kind(
                at_ms=wall, session_key=owner.session, tenant=owner.tenant, workspace=owner.workspace, seq=seq, **facts
            )
            self._out.append(Tell(owner, event))
        message_id, turn_id = facts.pop("message_id", ""), facts.pop("turn_id", "")
        if len(facts.get("text", "")) > PREVIEW:
            facts["text"] = texts.summary_line(facts["text"])  # the transcript has it whole
        self._out.append(Add(owner, EventRow(*owner, seq, wall, kind.type, message_id, turn_id, encode(facts))))

    def note(self, kind: type[SessionEvent], owner: Owner, wall: int, **facts: Any) -> None:
        """Keep an event that the engine made."""
        self._event(kind, owner, wall, **facts)

    def _tell(self, kind: type[SessionEvent], owner: Owner, wall: int, **facts: Any) -> None:
        """Something worth telling, not worth keeping."""
        if self.listening:
            self._out.append(
                Tell(
                    owner,
                    kind(
                        at_ms=wall, session_key=owner.session, tenant=owner.tenant, workspace=owner.workspace, **facts
                    ),
                )
            )
