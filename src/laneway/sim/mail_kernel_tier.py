"""Tier `mailroom`: the kernel of the inbox in a plain loop, without asyncio.

The run plays the engine: it writes what the kernel says, grants slots late, ends turns as drawn, and now and then dies
and loads what was written. Because every write succeeds at once, memory must equal what a restart would load after
every single command; so must every counter, timer and order inside a mailbox.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, assert_never

from laneway.errors import MailboxFullError, MessageStateError, UnknownMessageError
from laneway.kernel.mailbox import (
    AbandonTurn,
    Add,
    AnswerApproval,
    CancelChild,
    CancelTurn,
    ChildEntry,
    Forget,
    Mailbox,
    RemindOfApproval,
    RequestTurn,
    Settle,
    Tell,
    TellOfChildren,
    Touch,
    WakeTurn,
    WithdrawRequest,
)
from laneway.kernel.mailroom import Mailroom, Rules
from laneway.kernel.messages import Item, TurnEntry
from laneway.kernel.settings import resolve
from laneway.mail import (
    FINAL_MESSAGE_STATES,
    WAITING_STATES,
    Approval,
    ApprovalState,
    Drop,
    Message,
    MessageKind,
    MessageState,
    Mode,
    OnCrash,
    QueueOptions,
    QueueSettings,
    TurnState,
)
from laneway.rows import Batch, Owner, Row, StateKey
from laneway.sim.mail_mirror import differences, live_rows
from laneway.sim.mail_witness import MailWitness
from laneway.sim.mail_world import MailDice, MailWorld, draw_mail_world
from laneway.sim.shadow import LawBrokenError
from laneway.sim.trace import Outcome, SimFailedError, Trace
from laneway.stores.memory import MemoryDisk

__all__ = ("MailroomRun", "run_mailroom_seed")

WALL_MS = 1_700_000_000_000
HEALED_MS = 600_000
ACTIONS = 150
STUCK_SHOWN = 12
SYSTEM = QueueSettings(mode=Mode.FOLLOWUP)
ENDS = (TurnState.SUCCEEDED, TurnState.SUCCEEDED, TurnState.SUCCEEDED, TurnState.FAILED)
PHASES = (TurnState.THINKING, TurnState.ACTING, TurnState.COMPACTING, TurnState.WAITING, TurnState.DELIVERING)


def run_mailroom_seed(seed: int, *, trace: Trace | None = None) -> Outcome:
    """Run the world of a seed; raise `SimFailedError` when a law is broken."""
    trace = trace or Trace()
    run = MailroomRun(draw_mail_world(seed), trace)
    try:
        return run.play()
    except Exception as error:
        problem = str(error) if isinstance(error, LawBrokenError) else f"the kernel raised {error!r}"
        raise SimFailedError(seed=seed, tier="mailroom", problem=problem, tail=trace.tail()) from error


class MailroomRun:
    """One world, one kernel after the other, one virtual clock."""

    def __init__(self, world: MailWorld, trace: Trace) -> None:
        self.world = world
        self._trace = trace
        self._dice = MailDice(world)
        self._disk = MemoryDisk()
        self._witness = MailWitness(self._disk, fail=_broken, say=self._say)
        self._now = 0
        self._base = 0  # the monotonic clock of this process began here
        self._wall = WALL_MS
        self._planned = 0
        self._events: list[tuple[int, float, int, Callable[[], None]]] = []
        self._numbers = 0
        self._steps = 0
        self._starts = 0
        self._lives = 0
        self._requests: dict[Owner, int] = {}
        self._turns: dict[str, TurnEntry] = {}
        self._stubborn: set[str] = set()
        self._children: dict[str, ChildEntry] = {}
        self._settled: dict[str, MessageState] = {}
        self._accepted: dict[str, Item] = {}
        self._actions = ACTIONS
        self.kernel = self._new_kernel()

    def _new_kernel(self) -> Mailroom:
        options = self.world.options
        rules = Rules(
            grace_ms=options["interrupt_grace_ms"],
            debounce_idle=options["debounce_idle"],
            on_crash=OnCrash(options["on_crash"]),
        )
        kernel = Mailroom(rules, next_seq=self._disk.next_seq)
        kernel.listening = self._dice.rng.random() < 0.5
        return kernel

    # ---- the run ----

    def play(self) -> Outcome:
        """Both phases."""
        self._say("world", str(self.world.seed), self.world.describe())
        self._plan(0, self._act)
        while self._actions > 0:
            self._step()
        self._heal()
        deadline = self._now + HEALED_MS
        while self.kernel.boxes or self._events or self.kernel.next_due() is not None:
            if self._now > deadline or not self._step():
                self._report_stuck()
        self._check_end()
        return Outcome(
            seed=self.world.seed,
            tier="mailroom",
            digest=self._trace.digest(),
            steps=self._steps,
            starts=self._starts,
            faults=self._dice.faults,
            virtual_ms=self._now,
        )

    def _say(self, what: str, subject: str = "", detail: str = "") -> None:
        self._trace.add(self._now, what, subject, detail)

    def _plan(self, delay: int, call: Callable[[], None]) -> None:
        self._planned += 1
        heapq.heappush(self._events, (self._now + delay, self._dice.rng.random(), self._planned, call))

    def _later(self, most_ms: int, call: Callable[[], None]) -> None:
        """Let something happen after a while, unless the process dies before."""
        life = self._lives

        def alive() -> None:
            if life == self._lives:
                call()

        self._plan(round(self._dice.span(most_ms) * 1000), alive)

    def _step(self) -> bool:
        """Let the next thing happen; False when nothing ever will."""
        due = self.kernel.next_due()
        at = None if due is None else max(self._now, due - self._base)
        if at is not None and (not self._events or at <= self._events[0][0]):
            self._now = at
            self._do("tick", self.kernel.tick)
            return True
        if not self._events:
            return False
        at, _, _, call = heapq.heappop(self._events)
        self._now = max(self._now, at)
        call()
        return True

    def _times(self) -> dict[str, int]:
        return {"now": self._base + self._now, "wall": self._wall + self._now}

    def _do(self, what: str, call: Callable[..., Any], *args: Any, **facts: Any) -> Any:
        """One command: the kernel decides, what it says is written and carried out, every law is checked."""
        self._steps += 1
        if what != "tick":
            self._say(what, str(getattr(args[0], "id", args[0]))[:40] if args else "")
        try:
            return call(*args, **self._times(), **facts)
        finally:
            self._carry_out()
            self._check(what)

    # ---- the engine's part ----

    def _carry_out(self) -> None:
        effects = self.kernel.take()
        things: dict[Owner, dict[Any, Any]] = {}
        rows: dict[Owner, list[Row]] = {}
        forgotten: dict[Owner, list[StateKey]] = {}
        for effect in effects:
            match effect:
                case Touch(owner, thing):
                    things.setdefault(owner, {})[thing.row_key] = thing
                case Add(owner, row):
                    rows.setdefault(owner, []).append(row)
                case Forget(owner, key):
                    things.get(owner, {}).pop(tuple(key), None)
                    forgotten.setdefault(owner, []).append(key)
                case _:
                    pass
        for owner in dict.fromkeys((*things, *rows, *forgotten)):
            written = [thing.to_row() for thing in things.get(owner, {}).values()]
            batch = Batch(owner, 0, (*written, *rows.get(owner, ())), tuple(forgotten.get(owner, ())))
            self._witness(batch)
            self._disk.write(batch)
        for effect in effects:
            self._perform(effect)

    def _perform(self, effect: Any) -> None:
        match effect:
            case Touch() | Add() | Forget() | Tell() | AnswerApproval() | RemindOfApproval() | WakeTurn():
                pass
            case RequestTurn(owner, _, _):
                if owner in self._requests:
                    _broken(f"a second slot is asked for in {owner.session}")
                self._numbers += 1
                self._requests[owner] = number = self._numbers
                self._later(self.world.work_ms, lambda: self._slot(owner, number))
            case WithdrawRequest(owner):
                if self._requests.pop(owner, None) is None:
                    _broken(f"a slot of {owner.session} is withdrawn that nobody asked for")
            case Settle(_, final):
                if final.message_id in self._settled:
                    _broken(f"{final.message_id} was {self._settled[final.message_id]}, and is {final.disposition}")
                self._settled[final.message_id] = final.disposition
            case CancelTurn(_, turn_id, _):
                turn = self._turns.get(turn_id)
                if turn is not None and turn_id not in self._stubborn:
                    self._later(20, lambda: self._end_turn(turn, TurnState.CANCELLED))
            case AbandonTurn(_, turn_id):
                self._turns.pop(turn_id, None)
            case CancelChild(_, child_id, _):
                if child_id in self._children:
                    self._later(20, lambda: self._end_child(child_id, "cancelled"))
            case TellOfChildren(_, children):
                for child_id in children:
                    self._plan(0, partial(self._tell_of_child, child_id))
            case _:
                assert_never(effect)

    def _slot(self, owner: Owner, number: int) -> None:
        if self._requests.get(owner) != number:
            return
        del self._requests[owner]
        if self._dice.happens("fail_before"):
            self._do("no slot", self.kernel.setup_failed, owner, "drawn")
            return
        self._numbers += 1
        turn = self._do("slot", self.kernel.begin, owner, f"turn-{self._numbers}")
        if turn is None:
            return
        self._starts += 1
        self._check_turn(turn)
        self._turns[turn.id] = turn
        if self._dice.happens("stubborn"):
            self._stubborn.add(turn.id)
        self.kernel.started(turn)
        self._later(self.world.work_ms, lambda: self._work(turn, self._dice.rng.randint(0, 4)))

    def _is_mine(self, turn: TurnEntry) -> bool:
        return self._turns.get(turn.id) is turn and turn.live == 1

    def _work(self, turn: TurnEntry, left: int) -> None:
        """A handler does something, and goes on or ends."""
        if not self._is_mine(turn):
            return
        if not left or (turn.cancelled and turn.id not in self._stubborn):
            state = TurnState.CANCELLED if turn.cancelled else self._dice.one(ENDS)
            if self._dice.happens("hang") and not turn.cancelled:
                self._later(3_000, lambda: self._work(turn, 0))
                return
            self._end_turn(turn, state)
            return
        act = self._dice.one(self.world.acts) if not self._dice.honest and not turn.cancelled else "think"
        if act in ("boundary", "consume"):
            self._take_in(turn, everything=act == "consume")
        elif act == "reply":
            self.kernel.reply(turn, f"part {left}", wall=self._wall + self._now)
            self._do("reply", _nothing)
        elif act == "phase":
            self.kernel.set_phase(turn, self._dice.one(PHASES))
        elif act == "spawn":
            self._spawn(turn)
        elif act == "approval":
            self._ask(turn)
        elif act == "followup":
            self._send(turn.owner, kind=MessageKind.SYSTEM)
        self._later(self.world.work_ms, lambda: self._work(turn, left - 1))

    def _take_in(self, turn: TurnEntry, *, everything: bool) -> None:
        items = self._do("boundary", self.kernel.boundary, turn, everything=everything)
        places = [item.place for item in items]
        if places != sorted(places):
            _broken(f"{turn.id} took messages out of order: {places}")
        for item in items:
            if item.merge_key != turn.merge_key and not item.fits(turn):
                _broken(f"{item.id} went into {turn.id}, which has another route or other rights")
            if item.state is not MessageState.INJECTED:
                _broken(f"{item.id} was given to {turn.id} while it is {item.state}")
            turn.delivered.add(item.id)

    def _end_turn(self, turn: TurnEntry, state: TurnState) -> None:
        if not self._is_mine(turn):
            return
        answer = "answer" if state is TurnState.SUCCEEDED else None
        del self._turns[turn.id]
        self._do("end", self.kernel.end, turn, state, answer=answer, reason="" if answer else "drawn")

    def _spawn(self, turn: TurnEntry) -> None:
        self._numbers += 1
        child = self.kernel.add_child(turn, f"child-{self._numbers}", "child", wall=self._wall + self._now)
        self._children[child.id] = child
        self._do("spawn", _nothing)
        if self._dice.rng.random() < 0.3:
            self.kernel.await_child(child, awaited=True)
            self._do("await", _nothing)
        self._later(self.world.work_ms * 2, lambda: self._end_child(child.id, "succeeded"))

    def _end_child(self, child_id: str, state: str) -> None:
        child = self._children.get(child_id)
        if child is None or not child.live or child.state != "running":
            return
        if child.turn_id in self.kernel.turns and not child.awaited and not child.silenced:
            self.kernel.keep_child(child, state, "text")
            self._do("keep", _nothing)
        else:
            self._close_child(child, state)

    def _tell_of_child(self, child_id: str) -> None:
        child = self._children.get(child_id)
        if child is not None and child.live:
            self._close_child(child, child.state)

    def _close_child(self, child: ChildEntry, state: str) -> None:
        note = None if child.awaited or child.silenced else self._message(child.owner, MessageKind.SYSTEM)
        if note is not None:
            self._accepted[note.id] = Item(child.owner, note, seq=0)
        self._children.pop(child.id, None)
        self._do("child", self.kernel.end_child, child, state, note, SYSTEM)

    def _ask(self, turn: TurnEntry) -> None:
        self._numbers += 1
        wall = self._wall + self._now
        approval = Approval(
            id=f"approval-{self._numbers}",
            session_key=turn.owner.session,
            turn_id=turn.id,
            action="x",
            arguments={},
            state=ApprovalState.PENDING,
            asked_ms=wall,
            expires_ms=wall + self._dice.rng.choice((1, 100, 5_000)),
        )
        self._do("ask", self.kernel.ask, turn, approval)

    # ---- from outside ----

    def _act(self) -> None:
        self._actions -= 1
        if self._actions > 0:
            self._plan(round(self._dice.span(self.world.gap_ms // 4) * 1000), self._act)
        draw = self._dice.rng.random()
        tenant, session = self._dice.one(self.world.sessions)
        owner = Owner(tenant, "default", session)
        if draw < 0.6:
            self._send(owner)
        elif draw < 0.9:
            self._meddle(owner)
        elif draw < 0.95 and self._dice.happens("crash"):
            self._crash()
        elif self._dice.happens("load_fails"):
            self._reload(owner)

    def _message(self, owner: Owner, kind: MessageKind) -> Message:
        self._numbers += 1
        return Message(
            id=f"msg-{self._numbers}",
            session_key=owner.session,
            text=f"m{self._numbers}",
            tenant=owner.tenant,
            kind=kind,
            mode=Mode.FOLLOWUP,
            arrived_ms=self._wall + self._now,
        )

    def _settings(self, owner: Owner, inline: QueueOptions) -> QueueSettings:
        options = self.world.options
        session = self.kernel.sessions.get(owner)
        given = QueueOptions(
            mode=Mode.COLLECT if callable(options["mode"]) else Mode(options["mode"]),
            debounce_ms=options["debounce_ms"],
            cap=options["cap"],
            drop=Drop(options["drop"]),
        )
        levels = [("inline", inline), ("session", session.options if session else QueueOptions()), ("global", given)]
        return resolve(levels, max_wait_ms=options.get("max_wait_ms"))

    def _send(self, owner: Owner, kind: MessageKind = MessageKind.USER) -> None:
        dice, world = self._dice, self.world
        if kind is MessageKind.USER and (dice.happens("system") or dice.happens("heartbeat")):
            kind = dice.one((MessageKind.SYSTEM, MessageKind.HEARTBEAT))
        message = self._message(owner, kind)
        settings = SYSTEM
        if kind is MessageKind.USER:
            settings = self._settings(owner, QueueOptions(mode=dice.one(world.modes)))
            message = replace(message, mode=settings.mode, route=dice.one(world.routes), sender=dice.one(world.senders))
        expires = message.arrived_ms + world.expires_ms if dice.rng.random() < 0.2 else 0
        item = Item(owner, message, seq=self._disk.next_seq(), expires_ms=expires)
        before = len(self.kernel.items)
        try:
            receipt = self._do("send", self.kernel.accept, item, settings)
        except MailboxFullError:
            if settings.drop is not Drop.NEW and settings.cap > 0:
                _broken(f"{item.id} was refused although the policy is {settings.drop}")
            if len(self.kernel.items) != before or item.id in self._disk.messages:
                _broken(f"{item.id} was refused, and something has changed")
            return
        self._accepted[item.id] = item
        self._say("receipt", item.id, f"{receipt.disposition}; {receipt.reason}")
        box = self.kernel.boxes.get(owner)
        if box is not None and item.is_user and item.id in box.items and box.waiting_users > settings.cap:
            _broken(f"{box.waiting_users} users wait in {owner.session}, and the cap is {settings.cap}")

    def _meddle(self, owner: Owner) -> None:
        if not self.world.meddling:
            return
        what = self._dice.one(self.world.meddling)
        kernel = self.kernel
        box = kernel.boxes.get(owner)
        try:
            match what:
                case "edit" | "move" | "hold" | "release" | "withdraw" | "steer_now":
                    self._meddle_with_one(what, box)
                case "stop":
                    self._do("stop", kernel.stop, owner, "stopped", actor="sim")
                case "new":
                    self._do("new", kernel.new_conversation, owner, actor="sim")
                case "queue_clear":
                    self._do("clear", kernel.clear, owner, "cleared", actor="sim")
                case "queue_set" | "queue_reset":
                    self._set_options(owner, is_reset=what == "queue_reset")
                case "approve" | "deny" if box is not None and box.approvals:
                    state = ApprovalState.APPROVED if what == "approve" else ApprovalState.DENIED
                    one = next(iter(box.approvals))
                    self._do(what, kernel.answer_approval, owner, one, state, reason="drawn", by="sim")
                case "jump":
                    self._wall += self._dice.rng.randint(-100_000, 100_000)
                case _:
                    pass
        except (MessageStateError, UnknownMessageError):
            pass

    def _meddle_with_one(self, what: str, box: Mailbox | None) -> None:
        waiting = box.waiting_items() if box is not None else []
        if not waiting:
            return
        item = self._dice.one(waiting)
        args: tuple[Any, ...] = {"edit": (f"{item.id} edited",), "move": (self._dice.rng.randint(1, 5),)}.get(what, ())
        if what == "withdraw":
            args = ("withdrawn",)
        self._do(what, getattr(self.kernel, what), item.id, *args, actor="sim")

    def _set_options(self, owner: Owner, *, is_reset: bool) -> None:
        rng = self._dice.rng
        options = QueueOptions()
        if not is_reset:
            options = QueueOptions(
                mode=rng.choice([None, *Mode]), cap=rng.randint(1, 5), drop=rng.choice([None, *Drop])
            )
        self.kernel.set_options(owner, options, actor="sim", wall=self._wall + self._now)
        settings = self._settings(owner, QueueOptions())
        self._do("options", self.kernel.apply_cap, owner, settings)
        box = self.kernel.boxes.get(owner)
        if box is not None and settings.drop is not Drop.NEW and box.waiting_users > settings.cap:
            _broken(f"the cap of {owner.session} is {settings.cap} now, and {box.waiting_users} wait")

    # ---- death and reload ----

    def _crash(self) -> None:
        """The process dies; another one loads what was written."""
        self._say("crash", f"life-{self._lives}")
        self._lives += 1
        self._base = self._dice.rng.randint(0, 10_000_000)
        for known in (self._requests, self._turns, self._children):
            known.clear()
        self._stubborn.clear()
        self.kernel = self._new_kernel()
        self._do("load", self.kernel.load, live_rows(self._disk), running={})
        for child in list(self.kernel.orphans()):
            self._children[child.id] = child
            self._close_child(child, "interrupted")

    def _reload(self, owner: Owner) -> None:
        """A session is loaded again, as after a store that failed; its handler lives on."""
        kernel, box = self.kernel, self.kernel.boxes.get(owner)
        if box is None:
            return
        self._say("reload", owner.session)
        running = {box.turn.id: box.turn} if box.turn is not None else {}
        requested, not_before, failures = box.requested, box.not_before, box.failures
        kernel.forget_session(owner)
        drawer = self._disk.drawers[owner]
        rows = live_rows(self._disk)
        mine = rows._replace(
            messages=[row for row in rows.messages if row.id in drawer.live_messages],
            states=[row for row in rows.states if StateKey(row.kind, row.id) in drawer.live_states],
        )
        fresh = kernel.open_box(owner, requested=requested, not_before=not_before)
        fresh.failures = failures
        times = self._times()
        attached = kernel.load(mine, running=running, now=times["now"], wall=times["wall"])
        for turn in attached:
            old = running[turn.id]
            if self._turns.get(turn.id) is old:
                self._turns[turn.id] = turn
                self._later(self.world.work_ms, partial(self._work, turn, 1))
        for child_id in [name for name, child in self._children.items() if child.owner == owner]:
            entry = fresh.children.get(child_id)
            if entry is not None:
                self._children[child_id] = entry
        self._do("reconsider", _nothing)
        kernel.reconsider(owner, now=self._base + self._now)
        self._do("reconsider", _nothing)

    # ---- laws ----

    def _check(self, what: str) -> None:
        kernel = self.kernel
        times = self._times()
        for difference in differences(kernel, live_rows(self._disk), now=times["now"]):
            _broken(f"after {what} memory differs from the store: {difference}")
        for owner, box in kernel.boxes.items():
            self._check_box(owner, box, times["now"])

    def _check_box(self, owner: Owner, box: Mailbox, now: int) -> None:
        name = owner.session
        waiting = box.waiting_items()
        users = sum(item.is_user for item in waiting)
        if (box.waiting, box.waiting_users) != (len(waiting), users):
            _broken(f"{name} counts {box.waiting}, {box.waiting_users} and has {len(waiting)}, {users}")
        places = [item.place for item in box.items.values()]
        if places != sorted(set(places)):
            _broken(f"the places in {name} are {places}")
        for item in box.items.values():
            if item.state not in WAITING_STATES and item.state is not MessageState.INJECTED:
                _broken(f"{item.id} is {item.state}, and in the queue of {name}")
            aims = box.turn is not None and item.aim == box.turn.id
            if (item.state is MessageState.PARKED) != aims:
                _broken(f"{item.id} is {item.state}, and aims at {item.aim!r}")
        if (owner in self._requests) != (box.requested is not None):
            _broken(f"{name}: a slot is asked for {owner in self._requests}, and the mailbox says {box.requested}")
        ready = box.ready_at()
        if box.turn is None and box.requested is None and ready is not None and ready <= now:
            _broken(f"lost wake-up: something is ready in {name}, nothing runs, and no slot is asked for")
        due = box.next_due(closing=self.kernel.closing)
        if due is not None and (box.timer is None or box.timer > due):
            _broken(f"lost timer: {name} is due at {due}, and its timer is {box.timer}")
        if box.is_forgettable:
            _broken(f"the mailbox of {name} is empty, and kept")

    def _check_turn(self, turn: TurnEntry) -> None:
        keys = {item.merge_key for item in turn.items}
        if len(keys) > 1:
            _broken(f"{turn.id} mixes {keys}")
        if not turn.items and not turn.summarized:
            _broken(f"{turn.id} is about nothing")
        places = [item.place for item in turn.items]
        if places != sorted(places):
            _broken(f"{turn.id} has messages out of order")
        box = self.kernel.boxes[turn.owner]
        if turn.items and turn.items[0].mode not in (Mode.INTERRUPT, Mode.ROLLBACK):
            earlier = [item.id for item in box.waiting_items() if item.place < places[0] and item.state != "held"]
            if earlier:
                _broken(f"{turn.id} began with {turn.items[0].id}, and {earlier[0]} was before it")

    def _heal(self) -> None:
        self._say("heal")
        self._dice.honest = True
        for owner, box in list(self.kernel.boxes.items()):
            for item in box.waiting_items():
                if item.state is MessageState.HELD:
                    self._do("release", self.kernel.release, item.id, actor="sim")
            for approval_id in list(box.approvals):
                facts = {"reason": "healed", "by": "sim"}
                self._do("deny", self.kernel.answer_approval, owner, approval_id, ApprovalState.DENIED, **facts)

    def _report_stuck(self) -> None:
        now = self._times()["now"]
        lines = [
            f"{item.id} is {item.state} in {owner.session}: {self.kernel.why(box, item, now)}"
            for owner, box in self.kernel.boxes.items()
            for item in box.items.values()
        ]
        lines += [f"{turn_id} is live" for turn_id in self.kernel.turns]
        shown = "\n  ".join(lines[:STUCK_SHOWN])
        _broken(f"stuck: {len(lines)} things never end after everything was healed\n  {shown}")

    def _check_end(self) -> None:
        for message_id in self._accepted:
            row = self._disk.messages.get(message_id)
            if row is None or MessageState(row.state) not in FINAL_MESSAGE_STATES or row.live:
                _broken(f"{message_id} was accepted, and is {row and (row.state, row.live)} at the end")
            if message_id not in self._settled:
                _broken(f"{message_id} has ended, and nobody was told")
        if self.kernel.items or self.kernel.turns:
            _broken(f"left: {sorted(self.kernel.items)} {sorted(self.kernel.turns)}")


def _nothing(**_times: int) -> None:
    """What was done is only carried out and checked."""


def _broken(problem: str) -> None:
    raise LawBrokenError(problem)
