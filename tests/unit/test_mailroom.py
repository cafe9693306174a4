"""The kernel of the inbox by itself: no loop, no store, no clock; times go in, effects come out."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from laneway import (
    Approval,
    ApprovalState,
    Drop,
    InternalError,
    MailboxFullError,
    Message,
    MessageKind,
    MessageState,
    MessageStateError,
    Mode,
    OnCrash,
    Priority,
    QueueOptions,
    QueueSettings,
    Receipt,
    Route,
    Sender,
    TurnState,
)
from laneway.kernel.mailbox import (
    AbandonTurn,
    Add,
    AnswerApproval,
    CancelTurn,
    MailEffect,
    RequestTurn,
    Settle,
    Tell,
    Touch,
    WithdrawRequest,
)
from laneway.kernel.mailroom import Mailroom, Rules
from laneway.kernel.messages import MESSAGE_TRANSITIONS, Change, Item, TurnEntry
from laneway.mail import FINAL_MESSAGE_STATES, WAITING_STATES
from laneway.rows import EventRow, Loaded, MessageRow, Owner, StateRow

OWNER = Owner("default", "default", "chat")
State = MessageState


class Room:
    """A kernel with a clock in the hand, and the rows that it would have written."""

    def __init__(self, **rules: Any) -> None:
        self.seqs = itertools.count(1)
        self.ids = itertools.count(1)
        self.kernel = Mailroom(Rules(**rules), next_seq=lambda: next(self.seqs))
        self.kernel.listening = True
        self.now = 1_000
        self.messages: dict[str, MessageRow] = {}
        self.states: dict[tuple[str, str], StateRow] = {}
        self.events: list[EventRow] = []
        self.last: list[MailEffect] = []

    @property
    def times(self) -> dict[str, Any]:
        """Both clocks."""
        return {"now": self.now, "wall": 1_700_000_000_000 + self.now}

    def take(self) -> list[MailEffect]:
        """What the kernel wants done; its rows are kept."""
        self.last = self.kernel.take()
        for effect in self.last:
            if isinstance(effect, Touch):
                row = effect.thing.to_row()
                if isinstance(row, MessageRow):
                    self.messages[row.id] = row
                else:
                    assert isinstance(row, StateRow)
                    self.states[row.kind, row.id] = row
            elif isinstance(effect, Add) and isinstance(effect.row, EventRow):
                self.events.append(effect.row)
        return self.last

    def submit(self, text: str = "hi", mode: Mode = Mode.COLLECT, **options: Any) -> Item:
        """A message from a user, unless said otherwise."""
        names = ("cap", "drop", "debounce_ms", "max_wait_ms")
        settings = QueueSettings(mode=mode, **{name: options.pop(name) for name in names if name in options})
        expires_ms, lane = options.pop("expires_ms", 0), options.pop("lane", "main")
        wall = self.times["wall"]
        message = Message(id=f"m{next(self.ids)}", session_key="chat", text=text, mode=mode, arrived_ms=wall, **options)
        expires = wall + expires_ms if expires_ms else 0
        item = Item(OWNER, message, seq=next(self.seqs), lane=lane, expires_ms=expires)
        self.receipt: Receipt = self.kernel.accept(item, settings, **self.times)
        self.take()
        return item

    def begin(self) -> TurnEntry:
        """A slot is there."""
        turn = self.kernel.begin(OWNER, f"t{next(self.ids)}", **self.times)
        self.take()
        assert turn is not None
        self.kernel.started(turn)
        return turn

    def end(self, turn: TurnEntry, state: TurnState = TurnState.SUCCEEDED) -> None:
        """A turn has ended."""
        self.kernel.end(turn, state, answer="ok" if state is TurnState.SUCCEEDED else None, **self.times)
        self.take()

    def pass_time(self, ms: int) -> None:
        """Time passes, and everything that is due is done in its order."""
        until = self.now + ms
        while (due := self.kernel.next_due()) is not None and due <= until:
            self.now = max(self.now, due)
            self.kernel.tick(**self.times)
            self.take()
        self.now = until

    def of(self, kind: type[Any]) -> list[Any]:
        """The effects of one kind that the last call had."""
        return [effect for effect in self.last if isinstance(effect, kind)]

    def restarted(self, **rules: Any) -> Room:
        """Another kernel on the live rows."""
        room = Room(**rules)
        room.seqs, room.ids, room.now = self.seqs, self.ids, self.now
        room.messages, room.states = dict(self.messages), dict(self.states)
        live = sorted((row for row in self.messages.values() if row.live), key=lambda row: (row.place, row.seq))
        states = sorted((row for row in self.states.values() if row.live), key=lambda row: row.seq)
        room.kernel.load(Loaded(live, states), running={}, **room.times)
        room.take()
        return room


# ---- states --------------------------------------------------------------------------------------------------------


def test_a_final_state_has_no_way_out() -> None:
    assert not {state for state, _ in MESSAGE_TRANSITIONS if state in FINAL_MESSAGE_STATES}
    assert {after for after in MESSAGE_TRANSITIONS.values() if after.is_final} == FINAL_MESSAGE_STATES


def test_every_state_on_the_way_can_be_reached_and_left() -> None:
    on_the_way = set(State) - FINAL_MESSAGE_STATES
    assert {state for state, _ in MESSAGE_TRANSITIONS} == on_the_way
    assert on_the_way - {State.QUEUED} <= set(MESSAGE_TRANSITIONS.values())


@pytest.mark.parametrize("change", Change)
@pytest.mark.parametrize("state", State)
def test_what_the_table_does_not_list_is_refused_and_changes_nothing(state: State, change: Change) -> None:
    item = Room().submit()
    item.state = state
    following = MESSAGE_TRANSITIONS.get((state, change))
    if following is None:
        with pytest.raises(InternalError, match=change.value):
            item.change(change, "why")
        assert item.state is state
    else:
        item.change(change, "why")
        assert (item.state, item.reason, item.live) == (following, "why", int(following not in FINAL_MESSAGE_STATES))


# ---- slots -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "lane", "level"),
    [
        ({}, "main", Priority.USER),
        ({"priority": Priority.BACKGROUND}, "main", Priority.BACKGROUND),
        ({"kind": MessageKind.HEARTBEAT, "lane": "cron"}, "cron", Priority.USER),
    ],
)
def test_an_idle_session_asks_for_one_slot_in_the_lane_and_at_the_level_of_its_message(
    options: dict[str, Any], lane: str, level: Priority
) -> None:
    room = Room()
    room.submit(**options)
    assert room.of(RequestTurn) == [RequestTurn(OWNER, lane, level)]
    room.submit(mode=Mode.FOLLOWUP, **({} if "kind" in options else options))
    assert len(room.of(RequestTurn)) <= 1


def test_a_user_behind_a_heartbeat_asks_for_another_slot() -> None:
    room = Room()
    beat = room.submit("beat", kind=MessageKind.HEARTBEAT, lane="cron")
    room.submit("user")
    assert room.of(WithdrawRequest) == [WithdrawRequest(OWNER)]
    assert room.of(RequestTurn) == [RequestTurn(OWNER, "main", Priority.USER)]
    assert beat.state is State.DROPPED


def test_a_slot_for_a_session_that_has_nothing_left_is_given_back() -> None:
    room = Room()
    assert room.kernel.begin(OWNER, "t1", **room.times) is None
    item = room.submit()
    room.kernel.withdraw(item.id, "no", actor="host", **room.times)
    assert room.kernel.begin(OWNER, "t2", **room.times) is None
    assert room.kernel.boxes == {}


def test_a_slot_that_comes_too_early_is_asked_for_again() -> None:
    room = Room(debounce_idle=True)
    room.submit(debounce_ms=500)
    assert room.of(RequestTurn) == []
    assert room.kernel.begin(OWNER, "t1", **room.times) is None
    room.pass_time(499)
    assert room.of(RequestTurn) == []
    room.pass_time(1)
    assert len(room.of(RequestTurn)) == 1


def test_nothing_begins_while_closing() -> None:
    room = Room()
    room.submit()
    room.kernel.closing = True
    assert room.kernel.begin(OWNER, "t1", **room.times) is None
    room.submit("late")
    assert room.of(RequestTurn) == []
    assert room.receipt.disposition is State.QUEUED
    assert "closing" in room.receipt.reason


def test_the_end_of_a_turn_asks_for_the_next_one_in_the_same_call() -> None:
    room = Room()
    room.submit("one", Mode.FOLLOWUP)
    room.submit("two", Mode.FOLLOWUP)
    turn = room.begin()
    room.end(turn)
    assert len(room.of(RequestTurn)) == 1
    assert room.begin().prompt == "two"


def test_a_message_accepted_in_the_moment_of_the_end_is_in_this_turn_or_in_the_next() -> None:
    for before in (True, False):
        room = Room()
        room.submit("one", Mode.STEER)
        turn = room.begin()
        if before:
            late = room.submit("late", Mode.STEER)
            room.end(turn)
        else:
            room.end(turn)
            late = room.submit("late", Mode.STEER)
        assert late.state is State.QUEUED
        assert room.begin().items == [late]


def test_one_session_has_one_turn() -> None:
    room = Room()
    room.submit("one", Mode.FOLLOWUP)
    room.submit("two", Mode.FOLLOWUP)
    room.begin()
    assert room.kernel.begin(OWNER, "other", **room.times) is None


# ---- effects -----------------------------------------------------------------------------------------------------


def test_every_change_of_a_message_is_written_and_told_in_one_call() -> None:
    room = Room()
    item = room.submit("one", Mode.STEER)
    assert room.messages[item.id].state == "queued"
    turn = room.begin()
    assert room.messages[item.id].state == "running"
    steer = room.submit("steer", Mode.STEER)
    assert room.messages[steer.id].state == "parked"
    assert room.kernel.boundary(turn, everything=False, **room.times) == [steer]
    room.take()
    assert room.messages[steer.id].state == "injected"
    turn.delivered.add(steer.id)  # the engine has handed it over
    room.end(turn)
    assert {row.id: (row.state, row.live) for row in room.messages.values()} == {
        item.id: ("ran", 0),
        steer.id: ("steered", 0),
    }
    assert [effect.final.message_id for effect in room.of(Settle)] == [item.id, steer.id]


def test_events_carry_reason_actor_and_plain_json() -> None:
    room = Room(grace_ms=100)
    first = room.submit("one", Mode.STEER, sender=Sender(id="ada", rights=("stop",)), route=Route(thread="7"))
    turn = room.begin()
    two = room.submit("two", Mode.FOLLOWUP, cap=1, drop=Drop.SUMMARIZE)
    room.submit("three", Mode.FOLLOWUP, cap=1, drop=Drop.SUMMARIZE)
    room.kernel.hold(room.kernel.pending(OWNER, now=room.now)[0].id, actor="olga", **room.times)
    room.take()
    room.submit("cut", Mode.INTERRUPT)
    room.pass_time(200)
    assert (turn.state, first.state, two.state) == (TurnState.FENCED, State.RAN, State.SUMMARIZED)
    for row in room.events:
        facts = json.loads(row.body)
        assert facts["reason"], row
        assert facts.get("actor", "inbox"), row
    assert [row.seq for row in room.events] == sorted(row.seq for row in room.events)


def test_without_listeners_events_are_kept_and_not_told() -> None:
    room = Room()
    room.kernel.listening = False
    room.submit()
    assert room.of(Tell) == []
    assert [row.type for row in room.events] == ["message.accepted"]


def test_a_refused_newcomer_leaves_no_trace() -> None:
    room = Room()
    room.submit("one", Mode.FOLLOWUP)
    room.begin()
    room.submit("two", Mode.FOLLOWUP, cap=1, drop=Drop.NEW)
    before = dict(room.messages), len(room.events), list(room.kernel.items)
    with pytest.raises(MailboxFullError):
        room.submit("three", Mode.FOLLOWUP, cap=1, drop=Drop.NEW)
    room.take()
    assert (room.messages, len(room.events), list(room.kernel.items)) == before
    assert [effect.event.type for effect in room.of(Tell)] == ["message.refused"]


def test_an_interrupt_cancels_then_fences_and_abandons() -> None:
    room = Room(grace_ms=1_000)
    old = room.submit("old", Mode.FOLLOWUP)
    turn = room.begin()
    room.submit("cut", Mode.INTERRUPT)
    assert [(effect.turn_id, effect.reason) for effect in room.of(CancelTurn)] == [(turn.id, turn.cancelled)]
    assert room.of(RequestTurn) == []
    room.pass_time(999)
    assert turn.live
    room.pass_time(1)
    assert room.of(AbandonTurn) == [AbandonTurn(OWNER, turn.id)]
    assert (turn.live, turn.state, old.state) == (0, TurnState.FENCED, State.RAN)
    assert len(room.of(RequestTurn)) == 1
    room.end(turn)
    assert (turn.state, room.last) == (TurnState.FENCED, [])


# ---- time --------------------------------------------------------------------------------------------------------


def test_an_idle_kernel_is_due_never() -> None:
    room = Room()
    assert room.kernel.next_due() is None
    room.submit(expires_ms=60_000)
    room.end(room.begin())
    room.pass_time(1_000_000)
    assert room.kernel.next_due() is None
    assert (room.kernel.boxes, room.kernel.items, room.kernel.turns) == ({}, {}, {})


def test_timers_of_messages_that_are_gone_do_not_pile_up() -> None:
    room = Room()
    room.submit("old", Mode.FOLLOWUP)
    room.begin()
    for _ in range(500):
        item = room.submit("x", expires_ms=60_000)
        room.kernel.withdraw(item.id, "no", actor="host", **room.times)
        room.take()
        room.pass_time(10)
    box = room.kernel.boxes[OWNER]
    assert (box.waiting, box.waiting_users, len(box.items)) == (0, 0, 0)
    assert len(box.expiries) <= 1
    assert len(box.notices) <= 1


def test_a_tick_too_early_does_nothing() -> None:
    room = Room(debounce_idle=True)
    room.submit(debounce_ms=500)
    due = room.kernel.next_due()
    assert due is not None
    room.kernel.tick(now=due - 1, wall=0)
    assert room.take() == []
    assert room.kernel.next_due() == due


def test_an_approval_warns_once_and_expires_once() -> None:
    room = Room()
    room.submit()
    turn = room.begin()
    wall = room.times["wall"]
    approval = Approval(
        id="a1",
        session_key="chat",
        turn_id=turn.id,
        action="go",
        arguments={},
        state=ApprovalState.PENDING,
        asked_ms=wall,
        expires_ms=wall + 1_000,
    )
    room.kernel.ask(turn, approval, **room.times)
    room.take()
    room.last = []
    told: list[str] = []
    for _ in range(20):
        room.pass_time(100)
        told += [effect.event.type for effect in room.of(Tell)] if room.last else []
        room.last = []
    assert told == ["approval.warned", "approval.ended"]
    assert room.kernel.answer_approval(OWNER, "a1", ApprovalState.APPROVED, reason="", by="x", **room.times) is None


def test_an_approval_is_answered_once() -> None:
    room = Room()
    room.submit()
    turn = room.begin()
    wall = room.times["wall"]
    facts: dict[str, Any] = {"session_key": "chat", "turn_id": turn.id, "action": "go", "arguments": {}}
    approval = Approval(id="a1", state=ApprovalState.PENDING, asked_ms=wall, expires_ms=wall + 1_000, **facts)
    room.kernel.ask(turn, approval, **room.times)
    room.take()
    answer = {"reason": "", "by": "olga", **room.times}
    got = room.kernel.answer_approval(OWNER, "a1", ApprovalState.APPROVED, **answer)
    room.take()
    assert got is not None
    assert (got.state, got.answered_by) == (ApprovalState.APPROVED, "olga")
    assert [effect.approval for effect in room.of(AnswerApproval)] == [got]
    assert room.kernel.answer_approval(OWNER, "a1", ApprovalState.DENIED, **answer) is None


# ---- restarts ------------------------------------------------------------------------------------------------------


def _picture(room: Room) -> list[tuple[str, str, int, str, int]]:
    return [
        (entry.id, entry.state.value, entry.position, entry.message.mode.value, room.kernel.items[entry.id].place)
        for entry in room.kernel.pending(OWNER, now=room.now)
    ]


@pytest.mark.parametrize("on_crash", [OnCrash.REPORT, OnCrash.RERUN])
def test_a_restart_finds_everything_that_waits_in_its_place(on_crash: OnCrash) -> None:
    room = Room()
    room.submit("one", Mode.FOLLOWUP)
    turn = room.begin()
    steer = room.submit("steer", Mode.STEER)
    held = room.submit("held", Mode.FOLLOWUP)
    last = room.submit("last", Mode.COLLECT, priority=Priority.SCHEDULED, expires_ms=60_000)
    room.kernel.hold(held.id, actor="host", **room.times)
    room.kernel.move(last.id, 1, actor="host", **room.times)
    room.take()
    before = [(row[0], row[3], row[4]) for row in _picture(room)]
    again = room.restarted(on_crash=on_crash)
    after = [(row[0], row[3], row[4]) for row in _picture(again)]
    assert (after[1:] if on_crash is OnCrash.RERUN else after) == before
    states = {row[0]: row[1] for row in _picture(again)}
    assert (states[steer.id], states[held.id], states[last.id]) == ("queued", "held", "queued")
    ended = again.states["turn", turn.id]
    assert (ended.live, ended.state) == (0, "interrupted")
    loaded = again.kernel.items[last.id]
    assert loaded.message.priority is Priority.SCHEDULED
    assert loaded.expires_at == again.now + 60_000


def test_a_restart_of_a_restart_changes_nothing_more() -> None:
    room = Room()
    room.submit("one", Mode.FOLLOWUP)
    room.begin()
    for text in "abc":
        room.submit(text, Mode.FOLLOWUP, cap=2)
    once = room.restarted()
    twice = once.restarted()
    assert _picture(twice) == _picture(once)
    assert [(item.id, item.state) for item in twice.kernel.boxes[OWNER].overflow] == [
        (item.id, item.state) for item in once.kernel.boxes[OWNER].overflow
    ]
    assert not twice.events


def test_settings_of_a_session_have_a_row_until_they_are_reset() -> None:
    room = Room()
    options = QueueOptions(mode=Mode.STEER, debounce_ms=0, cap=3, drop=Drop.NEW)
    room.kernel.set_options(OWNER, options, actor="host", wall=0)
    room.take()
    assert room.restarted().kernel.sessions[OWNER].options == options
    room.kernel.set_options(OWNER, QueueOptions(), actor="host", wall=0)
    room.take()
    assert room.kernel.sessions == {}


def test_counts_follow_every_way_in_and_out() -> None:
    room = Room(grace_ms=10)
    room.submit("one", Mode.FOLLOWUP)
    turn = room.begin()
    box = room.kernel.boxes[OWNER]

    def check_counts() -> None:
        items = list(box.items.values())
        assert box.waiting == sum(item.state in WAITING_STATES for item in items)
        assert box.waiting_users == sum(item.state in WAITING_STATES and item.is_user for item in items)

    ways: list[dict[str, Any]] = [
        {"mode": Mode.STEER},
        {"mode": Mode.COLLECT, "expires_ms": 5},
        {"mode": Mode.STEER_BACKLOG},
        {"mode": Mode.FOLLOWUP, "kind": MessageKind.SYSTEM},
        {"mode": Mode.FOLLOWUP, "cap": 3, "drop": Drop.OLD},
    ]
    for way in ways:
        room.submit("x", **way)
        check_counts()
    room.kernel.boundary(turn, everything=False, **room.times)
    check_counts()
    room.pass_time(6)
    check_counts()
    room.submit("cut", Mode.INTERRUPT)
    room.submit("cut again", Mode.ROLLBACK)
    check_counts()
    room.pass_time(20)
    check_counts()
    room.end(room.begin())
    check_counts()
    room.kernel.clear(OWNER, "all", actor="host", **room.times)
    check_counts()
    assert box.waiting == 0


def _lines(call: Callable[[], object]) -> int:
    """How many lines of Python a call runs."""
    lines = 0

    def count(frame: FrameType, event: str, arg: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
    return lines


def test_a_boundary_and_the_end_of_a_turn_do_not_look_at_every_waiting_message() -> None:
    def lines_of(count: int) -> int:
        room = Room()
        room.submit("one", Mode.FOLLOWUP)
        turn = room.begin()
        for _ in range(count):
            room.submit("x", Mode.FOLLOWUP, cap=100_000)

        def ends() -> None:
            room.kernel.boundary(turn, everything=False, **room.times)
            room.kernel.end(turn, TurnState.SUCCEEDED, **room.times)

        return _lines(ends)

    few, many = lines_of(20), lines_of(500)
    assert many < few + 50


def test_a_receipt_does_not_count_the_whole_queue() -> None:
    """A hundred thousand may wait: what a newcomer costs must not depend on it."""

    def lines_of(count: int) -> int:
        room = Room()
        room.submit("one", Mode.FOLLOWUP)
        room.begin()
        for _ in range(count):
            room.submit("x", Mode.FOLLOWUP, cap=100_000)
        return _lines(lambda: room.submit("y", Mode.FOLLOWUP, cap=100_000))

    few, many = lines_of(20), lines_of(500)
    assert many < few + 50


def test_what_a_turn_took_and_its_handler_never_got_returns_even_when_it_succeeds() -> None:
    room = Room()
    room.submit("one", Mode.STEER)
    turn = room.begin()
    steer = room.submit("steer", Mode.STEER)
    assert room.kernel.boundary(turn, everything=False, **room.times) == [steer]
    room.take()
    room.end(turn)
    assert steer.state is State.QUEUED
    assert room.begin().items == [steer]


# ---- sent as another mode ----


def sent_as(room: Room, item: Item, mode: Mode) -> None:
    room.kernel.send_as(item.id, mode, QueueSettings(), actor="ada", **room.times)
    room.take()


def test_a_waiting_message_goes_into_the_running_turn_when_it_is_sent_as_steer() -> None:
    room = Room()
    room.submit()
    room.kernel.set_phase(room.begin(), TurnState.THINKING)
    item = room.submit(mode=Mode.FOLLOWUP)
    sent_as(room, item, Mode.STEER)
    assert (item.state, item.mode) == (State.PARKED, Mode.STEER)
    assert [event.type for event in room.events][-2:] == ["message.edited", "message.parked"]
    sent_as(room, item, Mode.FOLLOWUP)
    assert (item.state, item.aim) == (State.QUEUED, "")
    assert json.loads(room.messages[item.id].body)["mode"] == "followup"


def test_a_held_message_that_is_sent_as_interrupt_ends_the_running_turn_and_goes_first() -> None:
    room = Room()
    room.submit()
    turn = room.begin()
    before, item = room.submit(mode=Mode.FOLLOWUP), room.submit(mode=Mode.FOLLOWUP)
    room.kernel.hold(item.id, actor="ada", **room.times)
    sent_as(room, item, Mode.INTERRUPT)
    assert [effect.turn_id for effect in room.of(CancelTurn)] == [turn.id]
    room.end(turn, TurnState.CANCELLED)
    assert room.begin().items == [item]
    assert before.state is State.QUEUED


def test_an_interrupt_that_is_sent_as_followup_waits_in_its_place() -> None:
    room = Room()
    room.submit()
    turn = room.begin()
    first, cut = room.submit(mode=Mode.FOLLOWUP), room.submit(mode=Mode.INTERRUPT)
    sent_as(room, cut, Mode.FOLLOWUP)
    room.end(turn, TurnState.CANCELLED)
    assert room.begin().items == [first]


def test_only_users_choose_a_mode_and_none_that_refuses() -> None:
    room = Room()
    room.submit()
    room.begin()
    user, note = room.submit(mode=Mode.FOLLOWUP), room.submit(mode=Mode.FOLLOWUP, kind=MessageKind.SYSTEM)
    for item, mode in ((user, Mode.REJECT), (note, Mode.STEER)):
        with pytest.raises(MessageStateError):
            sent_as(room, item, mode)
        assert item.mode is Mode.FOLLOWUP


def test_what_waits_far_behind_says_what_can_be_said_cheaply() -> None:
    room = Room()
    items = [room.submit(f"{number}", mode=Mode.FOLLOWUP, cap=1000) for number in range(110)]
    room.kernel.hold(items[105].id, actor="ada", **room.times)
    found = room.kernel.pending(OWNER, now=room.now, after=104, limit=3)
    assert [each.position for each in found] == [105, 106, 107]
    assert [each.reason for each in found] == [
        "others are before it",
        "it is held until somebody releases it",
        "others are before it",
    ]
