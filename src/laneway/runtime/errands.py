"""What a turn starts and asks: sub-agents and approvals, each of which ends exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from laneway.errors import LanewayError, UsageError, text_of
from laneway.kernel import texts
from laneway.kernel.mailbox import ChildEntry
from laneway.kernel.messages import Item
from laneway.mail import Approval, ApprovalState, Message, MessageKind, Mode, QueueSettings, Route, Sender, TurnState
from laneway.records import DURATION_MAX_MS, check_whole
from laneway.rows import Owner
from laneway.runtime.arrivals import Arrivals
from laneway.runtime.executor import needs_thread
from laneway.runtime.handles import Job
from laneway.runtime.turns import Child, Turn

__all__ = ("FOLLOWUPS_MAX", "SYSTEM_SETTINGS", "WAIT_LANE", "Errands")

# The engine is the owner of its turns and children: it alone sets their private fields.
# ruff: noqa: SLF001

T = TypeVar("T")

SYSTEM_SETTINGS = QueueSettings(mode=Mode.FOLLOWUP)
FOLLOWUPS_MAX = 5
"""How many turns may follow each other that nobody but the agent has asked for."""
WAIT_LANE = "waiting/control"
"""Where waits for people are: like every `control` lane it is outside every cap, so a wait costs nobody a slot."""


OnNews = Callable[[str, Approval, int], None]
"""Hears what happens to a request for approval, and how much time is left for it."""


class _Asked(NamedTuple):
    """A turn that waits for an approval."""

    answer: asyncio.Future[Approval]
    on_news: OnNews | None

    def tell(self, news: str, approval: Approval, remaining_ms: int) -> None:
        if self.on_news is not None:
            self.on_news(news, approval, remaining_ms)


class _ChildEnd(NamedTuple):
    """How a sub-agent ended."""

    child: Child
    state: str
    text: str


class Errands(Arrivals):
    """Sub-agents and approvals."""

    def __init__(self, *args: Any, lanes: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.lanes = lanes
        self.waits = lanes  # the whole of the lanes, when `lanes` is the part of one workspace
        self._children: dict[str, Child] = {}
        self._child_ends: dict[str, _ChildEnd] = {}  # until the store has them
        self._approvals: dict[str, _Asked] = {}

    @abstractmethod
    def _note_quiet(self) -> None:
        """Something has ended."""

    # ---- approvals ----

    async def ask_approval(self, turn: Turn, action: str, arguments: dict[str, Any], timeout_ms: int) -> Approval:
        """Ask and wait; the slots of the turn are lent meanwhile."""
        check_whole(timeout_ms, setting="timeout_ms", least=1, most=DURATION_MAX_MS)
        return await self.ask_for(turn, self.new_approval(turn, action, arguments, timeout_ms))

    def new_approval(
        self, turn: Turn, action: str, arguments: Mapping[str, Any], timeout_ms: int, **more: Any
    ) -> Approval:
        """A request that is to be asked; `more` are other fields of `Approval`. What it is about cannot change then."""
        wall = self.wall()
        try:
            kept = json.loads(json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode())
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"the arguments of {action!r} cannot be kept as JSON: {error}") from None
        return Approval(
            id=self.ids.new_id("approval"),
            session_key=turn._entry.owner.session,
            turn_id=turn.id,
            action=text_of(action),
            arguments=kept,
            state=ApprovalState.PENDING,
            asked_ms=wall,
            expires_ms=wall + timeout_ms,
            **more,
        )

    async def ask_for(self, turn: Turn, wanted: Approval, on_news: OnNews | None = None) -> Approval:
        """Ask for an approval and wait for the answer; the slots of the turn are lent meanwhile.

        `on_news` hears `asked` (with the request that stands for it, which may be an older one), `warned`, `escalated`
        and `ended`, each when it is on disk.
        """
        owner = turn._entry.owner
        self.check_session(owner)
        answer: asyncio.Future[Approval] = self.loop.create_future()
        with self._waiting(turn):
            asked = self.kernel.ask(turn._entry, wanted, now=self.now(), wall=self.wall())
            self._approvals[asked.id] = waits = _Asked(answer, on_news)
            self.carry_out()
            listening = False
            try:
                if self.journal.has(owner):
                    await self.journal.committed(owner)
                if asked.state is not ApprovalState.PENDING:
                    waits.tell("ended", asked, 0)
                    return asked
                if not answer.done():
                    waits.tell("asked", asked, 0)
                label = f"approval {asked.id}"
                answered: Approval = await self.waits.run(WAIT_LANE, _wait_for, answer, label=label)
            except BaseException:
                listening = self._give_up(turn, asked.id)  # whoever listens hears of that, too
                raise
            finally:
                if not listening:
                    self._approvals.pop(asked.id, None)
        turn._check_fence()
        return answered

    def _give_up(self, turn: Turn, approval_id: str) -> bool:
        """A turn waits no more for an answer: the request is taken back, unless the turn itself is being ended."""
        entry, owner = turn._entry, turn._entry.owner
        at_work = self.is_at_work and owner not in self._reloads
        if not at_work or not entry.live or entry.cancelled:
            return False
        why = "whoever asked for it waits no more"
        withdraw = self.kernel.withdraw_approvals
        if not withdraw(owner, [approval_id], why, by="", now=self.now(), wall=self.wall()):
            return False
        self.carry_out()

        def forget(_: Exception | None) -> None:
            self._approvals.pop(approval_id, None)

        self.journal.after(owner, forget)
        return True

    @contextlib.contextmanager
    def _waiting(self, turn: Turn) -> Iterator[None]:
        """The turn waits as long as anything in it does, and then goes back to what it did before."""
        if not turn._waits:
            turn._before = turn._entry.state
            self.set_phase(turn, TurnState.WAITING)
        turn._waits += 1
        try:
            yield
        finally:
            turn._waits -= 1
            if not turn._waits and turn._entry.live and turn._entry.state is TurnState.WAITING:
                self.set_phase(turn, turn._before)

    @abstractmethod
    def set_phase(self, turn: Turn, state: TurnState) -> None:
        """A turn says what it does."""

    def _answer(self, approval: Approval) -> None:
        """Tell the turn that waits for an approval."""
        waits = self._approvals.pop(approval.id, None)
        if waits is None:
            return
        if not waits.answer.done():  # else nobody waits for it any more
            waits.answer.set_result(approval)
        waits.tell("ended", approval, 0)

    def _remind(self, approval: Approval, news: str, remaining_ms: int) -> None:
        """Tell the turn that waits for an approval that it still does."""
        waits = self._approvals.get(approval.id)
        if waits is not None:
            waits.tell(news, approval, remaining_ms)

    async def ask(self, turn: Turn, question: str, timeout_ms: int) -> Message | None:
        """Say something and wait for the next message of the turn's own users; its slots are lent meanwhile."""
        check_whole(timeout_ms, setting="timeout_ms", least=1, most=DURATION_MAX_MS)
        turn._answered = answered = self.loop.create_future()
        turn._entry.asking = True  # before anybody can hear the question: the answer may be quick
        timer = self.loop.call_later(timeout_ms / 1000, turn._wake)
        try:
            await turn.reply(question)
            with self._waiting(turn):
                await self.waits.run(WAIT_LANE, _wait_for, answered, label=f"question of {turn.id}")
        finally:
            timer.cancel()
            turn._entry.asking = False
            turn._answered = None
        answer_id, turn._entry.answered_by = turn._entry.answered_by, ""
        if not answer_id:
            return None
        taken = await self.take_in(turn, only=answer_id)
        return taken[0] if taken else None

    @abstractmethod
    async def take_in(
        self, turn: Turn, *, everything: bool = False, only: str = "", among: frozenset[str] | None = None
    ) -> list[Message]:
        """What goes into a turn at a boundary."""

    # ---- children ----

    def spawn(
        self, turn: Turn, fn: Callable[..., Any], args: tuple[Any, ...], *, label: str | None, timeout_ms: int | None
    ) -> Child:
        """Start a sub-agent in its lane."""
        if not callable(fn):
            raise UsageError(f"{fn!r} is not callable", hint="spawn takes a function and its arguments")
        owner = turn._entry.owner
        self.check_session(owner)
        name = text_of(label or getattr(fn, "__name__", "") or type(fn).__name__)
        child = Child(self, self.ids.new_id("child"), name, owner)
        child.route, child.sender = turn._entry.route, turn._entry.sender
        self.kernel.add_child(turn._entry, child.id, name, wall=self.wall())
        self.start_child(child, functools.partial(fn, *args), lane="subagent", timeout_ms=timeout_ms)
        return child

    def start_child(
        self,
        child: Child,
        fn: Callable[[], Any],
        *,
        lane: str = WAIT_LANE,
        timeout_ms: int | None = None,
        at_once: bool = False,
    ) -> None:
        """Run a sub-agent that the kernel knows, as soon as it is stored; its end is told here.

        `at_once`: what it is about runs already, and ends whether it could be stored or not.
        """
        owner = child.owner
        stored = None if child._stored or at_once else self.journal.committed(owner)
        if at_once and not child._stored:
            self.journal.after(owner, child.stored)
        try:
            call = functools.partial(self._run_child, child, stored, fn)
            lanes = self.waits if lane == WAIT_LANE else self.lanes
            child._job = lanes.submit(lane, call, label=child.label, timeout_ms=timeout_ms)
        except LanewayError:
            entry = self.kernel.boxes[owner].children[child.id]
            self.kernel.end_child(entry, "failed", None, SYSTEM_SETTINGS, now=self.now(), wall=self.wall())
            self.carry_out()
            raise
        self._children[child.id] = child
        self._child_ends.pop(child.id, None)  # of an earlier try
        self.carry_out()
        child._job.add_done_callback(lambda job: self._child_ended(owner, child, job))

    def has_child(self, child_id: str) -> bool:
        """Whether a sub-agent is at work here."""
        return child_id in self._children

    async def _run_child(self, child: Child, stored: asyncio.Future[None] | None, fn: Callable[[], Any]) -> Any:
        if stored is not None:
            await asyncio.shield(stored)  # a sub-agent that nobody would remember does not start
            child._stored = True
        if needs_thread(fn):
            return await self.lanes.engine.run_in_thread(fn)
        return await fn()

    def note_awaited(self, child: Child) -> None:
        """A turn waits for its child (or no longer does)."""
        box = self.kernel.boxes.get(child.owner)
        entry = box.children.get(child.id) if box is not None else None
        if entry is not None and self.is_open:
            if child.is_awaited and entry.state != "running":
                self._close_child(entry, entry.state, "", awaited=True)
            else:
                self.kernel.await_child(entry, awaited=child.is_awaited)
            self.carry_out()

    def _child_ended(self, owner: Owner, child: Child, job: Job[Any]) -> None:
        self._children.pop(child.id, None)
        end = child.end_of(job)
        if not child._detached:
            self._child_ends[child.id] = _ChildEnd(child, *end)
            if self.is_open and owner not in self._reloads:
                self._end_child(owner, child.id)
                self.carry_out()
        child.left()
        self._note_quiet()

    def _end_child(self, owner: Owner, child_id: str) -> None:
        """A sub-agent has ended: its turn may still ask for it, else the session is told."""
        child, state, text = self._child_ends[child_id]
        box = self.kernel.boxes.get(owner)
        entry = box.children.get(child_id) if box is not None else None
        if entry is None:
            self._tell_of_unborn(owner, child, state, text)
            return
        may_ask = entry.turn_id in self.kernel.turns and not entry.is_call
        if may_ask and not child.is_awaited and not entry.silenced:
            self.kernel.keep_child(entry, state, text)
        else:
            self._close_child(entry, state, text, awaited=child.is_awaited)
        self.journal.after(owner, functools.partial(self._child_stored, child_id))

    def _tell_of_unborn(self, owner: Owner, child: Child, state: str, text: str) -> None:
        """A sub-agent whose start was never stored has not started, and its turn does not know: tell the session."""
        told = child._note is not None and child._note.id in self.kernel.items
        if (told or child._stored) and self.journal.has(owner):  # whether it is on disk is not known yet
            self.journal.after(owner, functools.partial(self._child_stored, child.id))
            return
        if child._stored or child.is_awaited or told:
            del self._child_ends[child.id]
            return
        if child._note is None:
            note = _note_of(child, state, text)
            child._note = self._system_message(owner, note, child.route, child.sender)
        item = Item(owner, child._note, seq=self.store.next_seq())
        item.steers = child.is_call
        self.kernel.accept(item, SYSTEM_SETTINGS, now=self.now(), wall=self.wall())
        self.journal.after(owner, functools.partial(self._child_stored, child.id))

    def _child_stored(self, child_id: str, error: Exception | None) -> None:
        if error is None:
            self._child_ends.pop(child_id, None)

    async def _retell_children(self, owner: Owner) -> None:
        """A session was loaded again: say once more what the store has not heard of its sub-agents."""
        for child_id in [name for name, end in self._child_ends.items() if end.child.owner == owner]:
            if child_id not in self._child_ends:
                continue
            child = self._child_ends[child_id].child
            if await self.store.history.state("child", child_id) is not None:
                child._stored = True
            note = child._note
            if note is not None and await self.store.history.message(note.id) is not None:
                self._child_ends.pop(child_id, None)
            if child_id in self._child_ends and owner not in self._reloads:
                self._end_child(owner, child_id)
        box = self.kernel.boxes.get(owner)
        for entry in list(box.children.values()) if box is not None else ():
            if entry.id in self._child_ends:
                continue
            if entry.id in self._children:
                self.kernel.await_child(entry, awaited=self._children[entry.id].is_awaited)
                continue
            if entry.state == "running" and entry.detail:
                continue  # whoever opens the session goes on with it
            if entry.state == "running":
                self._close_child(entry, "interrupted", "", awaited=entry.awaited)  # its process has died
            elif entry.turn_id not in self.kernel.turns:
                self._close_child(entry, entry.state, entry.text, awaited=entry.awaited)
        self.carry_out()

    def close_call(self, entry: ChildEntry, state: str, text: str) -> None:
        """A call that an earlier process has left in the background has ended: the session is told, if it wants."""
        self._close_child(entry, state, text, awaited=entry.awaited)
        self.carry_out()

    def _close_child(self, entry: ChildEntry, state: str, text: str, *, awaited: bool) -> None:
        entry.awaited = awaited
        quiet = awaited or entry.silenced
        note = None if quiet else self._child_note(entry, state, text)
        self.kernel.end_child(entry, state, note, SYSTEM_SETTINGS, now=self.now(), wall=self.wall())

    def _tell_of_children(self, owner: Owner, children: tuple[str, ...]) -> None:
        """A turn has ended without asking for what its children had found: the session is told."""
        for child_id in children:
            box = self.kernel.boxes.get(owner)
            entry = box.children.get(child_id) if box is not None else None
            if entry is not None and entry.live:
                self._close_child(entry, entry.state, entry.text, awaited=entry.awaited)
        self.carry_out()

    def _child_note(self, entry: ChildEntry, state: str, text: str) -> Message:
        return self._system_message(entry.owner, _note_of(entry, state, text), entry.route, entry.sender)

    def _system_message(self, owner: Owner, text: str, route: Route, sender: Sender | None) -> Message:
        """A message of our own, on the route and with the rights of the turn that gave rise to it."""
        return Message(
            id=self.ids.new_id("msg"),
            session_key=owner.session,
            tenant=owner.tenant,
            text=text,
            route=route,
            sender=sender,
            kind=MessageKind.SYSTEM,
            mode=Mode.FOLLOWUP,
            arrived_ms=self.wall(),
        )


def _note_of(child: Child | ChildEntry, state: str, text: str) -> str:
    if child.is_call:
        return texts.call_note(child.label, child.id, state, text)
    return texts.child_note(child.label, state, text)


async def _wait_for(answer: asyncio.Future[T]) -> T:
    return await answer
