"""The engine of the inbox: the single writer of its mailboxes.

Every call goes to the kernel and is carried out in one breath: rows to the journal, requests for slots to the lanes,
and everything that can be seen from outside (receipts, events, ends, cancelled turns) only once the rows are on disk.
When the store refuses the rows of a session, what was decided on them is void, and the session is loaded again
(`laneway.runtime.reloads`).
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
import traceback
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import replace
from typing import Any, assert_never

from laneway.errors import (
    ClosedError,
    DrainingError,
    InterruptSignalError,
    InvalidMessageError,
    LanewayError,
    RunFailedError,
    UsageError,
    describe,
    text_of,
)
from laneway.kernel import texts
from laneway.kernel.delivery import CLOSING, LEAVING, PUT_OFF
from laneway.kernel.explain import why_queued
from laneway.kernel.mailbox import (
    AbandonTurn,
    Add,
    AnswerApproval,
    CancelChild,
    CancelTurn,
    Forget,
    MailEffect,
    RemindOfApproval,
    RequestTurn,
    Settle,
    Tell,
    TellOfChildren,
    Touch,
    WakeTurn,
    WithdrawRequest,
)
from laneway.kernel.messages import Item, route_key
from laneway.mail import Message, TurnState
from laneway.records import JobState
from laneway.rows import Lookup, Owner, StateRow
from laneway.runtime import claims, erasing
from laneway.runtime.arrivals import fail
from laneway.runtime.envelope import storable
from laneway.runtime.errands import FOLLOWUPS_MAX, SYSTEM_SETTINGS
from laneway.runtime.garbage import collector_at_rest
from laneway.runtime.handles import CURRENT, Job
from laneway.runtime.journal import Journal
from laneway.runtime.reloads import Reloads
from laneway.runtime.turns import Turn, TurnEnd, cancelled_by, session_lane

__all__ = ("Handler", "MailEngine")

# The engine is the owner of its turns and children: it alone sets their private fields.
# ruff: noqa: SLF001

_log = logging.getLogger("laneway")

Handler = Callable[[Turn], Awaitable[str | None]]
CLOSE_PATIENCE_S = 10
UNOPENED = "nobody has its session open: it runs as soon as somebody does, here or elsewhere"


class MailEngine(Reloads):
    """The mailboxes of one workspace on one event loop."""

    def __init__(self, *args: Any, handler: Handler, **more: Any) -> None:
        super().__init__(*args, **more)
        self._handler = handler
        self.kernel.slot_reason = self.slot_reason
        self._context = copy_context()
        self._quiet: list[asyncio.Future[None]] = []
        self._gone: asyncio.Future[None] | None = None  # while it closes: when it has
        self._unattended: dict[Owner, RequestTurn] = {}  # turns that wait for somebody who can run them
        self.attends: Callable[[Owner], bool] = lambda owner: True
        """Whether there is somebody who can run the turns of a session; if not, they wait for `attend`."""
        self.why_unattended: Callable[[Owner], str] = lambda owner: UNOPENED
        """What such a turn waits for."""
        self.on_unattended: Callable[[Owner], None] = lambda owner: None
        """Hears of a session whose turn waits for somebody who can run it."""
        self.turn_lane: Callable[[Owner], str] = lambda owner: ""
        """The lane that the turns of a session run in, whatever their messages say; empty: what they say."""
        self.asked_in: Callable[[Owner, str], Owner] = lambda owner, approval_id: owner
        """The session that a request belongs to which somebody answers in a session: sub-agents ask in their own."""
        self.compact: Callable[[Owner], Awaitable[bool]] = _nothing_to_compact
        """Has the conversation of a session shortened, when it is its turn; whether there is anybody who can."""
        self.on_loaded: Callable[[list[StateRow]], None] = lambda rows: None
        """Gets the live rows of the workspace before anything goes on."""
        self.before_letting_go: Callable[[], Awaitable[None]] = _nothing_more
        """Writes what it has left while the store is open, when every turn has ended."""
        self.on_erased: Callable[[Owner], None] = lambda owner: None
        """Hears of a session that is deleted: nothing runs there any more, and nothing is to be kept of it."""

    # ---- opening and closing ----

    async def open(self) -> list[StateRow]:
        """Load what the store has and go on; returns the rows of its schedules."""
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self._context = copy_context()
        self._context.run(CURRENT.set, None)  # what the inbox starts belongs to no job of the caller
        await self.store.open()
        self.ids = claims.ids_for(self.ids, self.store)
        try:
            self.journal = Journal(self.store, on_failure=self._on_failure)
            loaded = await erasing.load(self.store, self.workspace)
            await claims.take(self.store, "inbox", self.workspace, loaded.states)
            now, wall = self.now(), self.wall()
            with collector_at_rest():
                self.kernel.load(loaded, running={}, now=now, wall=wall)
            for owner in self.kernel.unreadable:
                self.tell_set_aside(owner)
            for child in list(self.kernel.orphans()):
                state = child.state if child.state != "running" else "interrupted"
                note = None if child.awaited else self._child_note(child, state, child.text)
                self.kernel.end_child(child, state, note, SYSTEM_SETTINGS, now=now, wall=wall)
            for turn in self.kernel.to_forget:
                self.kernel.forget_lines(turn, await self.store.history.entries(turn.owner, newest=True, limit=1000))
            self.kernel.to_forget.clear()
        except BaseException:
            await self.store.close()
            raise
        self.on_loaded(loaded.states)
        self.is_open = True
        self.carry_out()
        aside = self.kernel.unreadable
        return [row for row in loaded.states if row.kind == "schedule" and Owner(*row[2:5]) not in aside]

    def running_turn(self, owner: Owner) -> Turn | None:
        """The turn that runs in a session."""
        self.check_open()
        box = self.kernel.boxes.get(owner)
        return self._turns.get(box.turn.id) if box is not None and box.turn is not None else None

    def check_close(self) -> None:
        """Refuse to be closed from another thread, or by a turn that it would wait for."""
        self.check_thread("close")
        for inside in self.turns_around().values():
            raise UsageError(f"close() inside {inside} would wait for it", hint="close the inbox outside its turns")

    async def close(self, timeout_ms: int) -> None:
        """Give running turns their time, then end them; what has not begun stays in the store."""
        if not self.is_open:
            return
        if self._gone is not None:  # somebody else is closing it already
            await asyncio.shield(self._gone)
            return
        self._gone = self.loop.create_future()
        self.kernel.closing = True
        for job in self._jobs.values():
            job.cancel("the inbox is closing")
        try:
            await self._wait_quiet(timeout_ms)
            self._end_turns()
            await self._wait_quiet(min(timeout_ms, self.kernel.grace_ms))
        finally:  # whoever cancels the closing, even: nothing stays behind
            self._fence_turns()
            await self._let_go()

    def _end_turns(self) -> None:
        for turn in list(self._turns.values()):
            box = self.kernel.boxes.get(turn._entry.owner)
            if box is not None:
                self.kernel.cancel_turn(box, CLOSING, now=self.now(), wall=self.wall())
        for child in list(self._children.values()):
            child.cancel("the inbox is closing")
        self.carry_out()

    def _fence_turns(self) -> None:
        for turn in list(self._turns.values()):
            if turn._entry.live:
                self._end(turn, TurnState.FENCED, None, "the inbox closed, and it did not end")
                if turn._job is not None:
                    self.lanes.engine.abandon(turn._job.id, "the inbox closed")

    async def _let_go(self) -> None:
        """Write what is left, if the store answers, and leave nothing behind in any case."""
        self._is_settling = True
        reloads = [*self._reloads.values(), *self._tellers]
        for task in reloads:
            task.cancel()
        try:
            async with asyncio.timeout(CLOSE_PATIENCE_S):
                await asyncio.gather(*reloads, return_exceptions=True)
                await self.before_letting_go()
                await self.journal.settled()
                await claims.give_back(self.store, "inbox", self.workspace)
        except TimeoutError:
            _log.error("the store did not answer within %s s; it is closed all the same", CLOSE_PATIENCE_S)
        except Exception as error:  # noqa: BLE001 - the store must be let go of, whatever it says
            _log.warning("the claim to workspace %r was not given back: %s", self.workspace, error)
        finally:
            self.is_open = False
            self._shut()
            try:
                await self.store.close()
            finally:
                if self._gone is not None and not self._gone.done():
                    self._gone.set_result(None)

    def turns_around(self) -> dict[Owner, str]:
        """The turns that the calling code runs in, by their sessions."""
        node = CURRENT.get()
        jobs: set[str] = set()
        while node is not None:
            jobs.add(node[1])
            node = node[3]
        turns = self._turns.values() if jobs else ()
        return {turn._entry.owner: turn.id for turn in turns if turn._job is not None and turn._job.id in jobs}

    async def _wait_quiet(self, timeout_ms: int) -> None:
        """Wait until no turn and no child is at work, or the time is up."""
        if not self._turns and not self._children:
            return
        waiter = self.loop.create_future()
        self._quiet.append(waiter)
        timer = self.loop.call_later(timeout_ms / 1000, _succeed, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._quiet.remove(waiter)

    # ---- carrying out ----

    def carry_out(self) -> None:
        """Do what the kernel has decided: rows to the journal, the rest when they are on disk."""
        effects = self.kernel.take()
        visible: dict[Owner, list[MailEffect]] = {}
        requests: list[RequestTurn | WithdrawRequest] = []
        journal = self.journal
        for effect in effects:
            if type(effect) is Touch:
                journal.touch(effect.owner, effect.thing)
            elif type(effect) is Add:
                journal.add(effect.owner, effect.row)
            elif type(effect) is RequestTurn or type(effect) is WithdrawRequest:
                requests.append(effect)
            elif type(effect) is Forget:
                journal.forget(effect.owner, effect.key)
            else:
                visible.setdefault(effect.owner, []).append(effect)
        for owner, things in visible.items():
            if journal.has(owner):
                journal.after(owner, functools.partial(self._show, things))
            else:
                self._show(things, None)
        for request in requests:
            if isinstance(request, RequestTurn):
                self._request(request)
            else:
                self._unattended.pop(request.owner, None)
                if (unwanted := self._jobs.pop(request.owner, None)) is not None:
                    unwanted.cancel("another slot is wanted")
        self._arm()

    def _show(self, effects: list[MailEffect], error: Exception | None) -> None:
        """What was decided is on disk: now it may be seen."""
        if error is not None:
            return  # it is void; the session is loaded again
        for effect in effects:
            match effect:
                case Tell(_, event):
                    self._audience.tell(event)
                case Settle(_, final):
                    self._settle(final)
                case TellOfChildren(owner, children):
                    self._tell_of_children(owner, children)
                case CancelTurn(_, turn_id, reason):
                    turn = self._turns.get(turn_id)
                    if turn is not None and turn._job is not None:
                        turn._job.cancel(reason)
                case AbandonTurn(_, turn_id):
                    turn = self._turns.pop(turn_id, None)
                    if turn is not None and turn._job is not None:
                        self.lanes.engine.abandon(turn._job.id, "fenced")
                    self._note_quiet()
                case WakeTurn(_, turn_id):
                    turn = self._turns.get(turn_id)
                    if turn is not None:
                        turn._wake()
                case CancelChild(_, child_id, reason):
                    child = self._children.get(child_id)
                    if child is not None:
                        child.cancel(reason)
                case AnswerApproval(_, approval):
                    self._answer(approval)
                case RemindOfApproval(_, approval, news, remaining_ms):
                    self._remind(approval, news, remaining_ms)
                case Touch() | Add() | Forget() | RequestTurn() | WithdrawRequest():
                    raise AssertionError(effect)
                case _:
                    assert_never(effect)

    def _request(self, request: RequestTurn) -> None:
        """Ask the lanes for a slot: the session's own lane first, then the lane of the turn."""
        owner = request.owner
        if not self.attends(owner):
            self._unattended[owner] = request
            self.on_unattended(owner)
            return
        names = (session_lane(owner), self.turn_lane(owner) or request.lane)
        label = f"turn of {owner.session}"
        submit = functools.partial(
            self.lanes.submit, names, self._run_turn, owner, priority=request.level, label=label, tenant=owner.tenant
        )
        try:
            job = self._context.copy().run(submit)
        except (ClosedError, DrainingError) as error:
            self.kernel.defer(owner, text_of(error), now=self.now())
            self._arm()
            return
        except LanewayError as error:
            self.kernel.setup_failed(owner, text_of(error), now=self.now(), wall=self.wall())
            self.carry_out()
            return
        self._jobs[owner] = job
        job.add_done_callback(lambda ended: self._slot_ended(owner, ended))

    def attend(self, owner: Owner) -> None:
        """Somebody can run the turns of a session now: a turn that waits for that gets its slot."""
        request = self._unattended.pop(owner, None)
        if request is not None and self.is_open and not self.kernel.closing:
            self._request(request)

    def slot_reason(self, owner: Owner) -> str:
        """Why the turn of a session has no slot yet, as its lanes see it; empty if it waits for none."""
        if owner in self._unattended:
            return self.why_unattended(owner)
        job = self._jobs.get(owner)
        if job is None or job.state is not JobState.QUEUED:
            return ""
        return f"its turn {why_queued(job, self.now())}"  # without its place: that would be counted each time

    def drop_slot(self, owner: Owner) -> None:
        """Stop waiting for the slot of a turn that would be about nothing any more."""
        job, box = self._jobs.get(owner), self.kernel.boxes.get(owner)
        is_needed = box is not None and (box.next_item() is not None or bool(box.overflow))
        if job is not None and job.state is JobState.QUEUED and not is_needed:
            del self._jobs[owner]
            self.kernel.unrequest(owner, now=self.now())
            job.cancel("nothing is left for it to do")
            self.carry_out()

    def forget(self, owner: Owner) -> None:
        """Nothing is known of a session any more: it was deleted."""
        job = self._jobs.pop(owner, None)
        self._unattended.pop(owner, None)
        self.kernel.forget_session(owner)
        self.kernel.unreadable.pop(owner, None)
        if job is not None:
            job.cancel("its session was deleted")

    async def adopt(self, owner: Owner) -> None:
        """The store has a session that it did not have before: go on with what waits there, unless this closes."""
        self.check_open()
        if owner not in self._reloads and not self._is_settling:
            self._reloads[owner] = self.loop.create_task(self._reload(owner, None), name="laneway-adopt")
        reload = self._reloads.get(owner)
        if reload is None or ((await asyncio.wait({reload}))[0] and reload.cancelled()):
            raise ClosedError(opened=True, what="inbox")
        reload.result()

    def is_unattended(self, owner: Owner) -> bool:
        """Whether a turn of a session waits for somebody who can run it."""
        return owner in self._unattended

    def dismiss(self, owner: Owner, error_of: Callable[[str], Exception] | None) -> None:
        """Nobody runs the turns of a session any more: its turn is ended, to be begun again when somebody does.

        Whoever waits for one of its messages is told, if there is an error to tell of it.
        """
        box = self.kernel.boxes.get(owner)
        if box is not None and self.kernel.cancel_turn(box, LEAVING, now=self.now(), wall=self.wall()):
            self.carry_out()
        job = self._jobs.pop(owner, None)
        if job is not None and box is not None and box.requested is not None:
            lane, level = box.requested
            self._unattended[owner] = RequestTurn(owner, lane, level)
            job.cancel("nobody runs the turns of this session now")
            self.on_unattended(owner)
        if error_of is not None:
            for message_id in self.awaited(owner):
                for waiter in self._waiters[message_id]:
                    fail(waiter, error_of(message_id))

    def awaited(self, owner: Owner) -> list[str]:
        """The messages of a session that somebody waits for here."""
        items = self.kernel.items
        return [each for each in self._waiters if (item := items.get(each)) is not None and item.owner == owner]

    def _slot_ended(self, owner: Owner, job: Job[Any]) -> None:
        """A slot that was never used (its wait was cancelled or timed out) is asked for again, after a while."""
        if self._jobs.get(owner) is job:
            del self._jobs[owner]
            if self.is_open and not self.kernel.closing and job.state is not JobState.SUCCEEDED:
                why = f"its slot was not granted: the job {job.state}"
                self.kernel.setup_failed(owner, why, now=self.now(), wall=self.wall())
                self.carry_out()

    # ---- turns ----

    async def _run_turn(self, owner: Owner) -> None:
        """The slot is there: run one turn."""
        node = CURRENT.get()
        assert node is not None
        job = self.lanes.engine.kernel.jobs[node[1]]
        if self._jobs.get(owner) is job:
            del self._jobs[owner]
        lane = self.turn_lane(owner)
        entry = self.kernel.begin(owner, self.ids.new_id("turn"), lane=lane, now=self.now(), wall=self.wall())
        self.carry_out()
        if entry is None:
            return
        turn = Turn(self, entry)
        turn._job = job
        self._unbegun[turn.id] = owner
        self._turns[turn.id] = turn
        try:
            await self.journal.committed(owner)
        except asyncio.CancelledError:
            self._cut_short(turn)
            raise
        except LanewayError as error:
            self._turns.pop(turn.id, None)
            self._note_quiet()
            _log.warning("a turn of %r could not be begun: %s", owner.session, error)
            return  # the reload that is under way asks for the turn again
        if not turn._entry.live:
            self._end(turn, TurnState.FENCED, None, "")
            return  # it was fenced before it began
        if turn._entry.cancelled:
            self._end(turn, TurnState.CANCELLED, None, turn._entry.cancelled)
            return
        self._begin(turn)
        try:
            answer = await self._handler(turn)
        except asyncio.CancelledError:
            self._end(turn, *cancelled_by(turn))
            raise
        except InterruptSignalError as signal:
            self._end(turn, TurnState.CANCELLED, None, turn._entry.cancelled or text_of(signal))
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is the outcome of its turn
            # As text: what an error says may be anything, and a log that chokes on it helps nobody.
            # What Laneway itself says is told to whoever waits; the place in the code helps with other errors only.
            expected = isinstance(error, LanewayError)
            trace = "" if expected else "\n" + text_of("".join(traceback.format_exception(error)))
            level = logging.INFO if isinstance(error, RunFailedError) and error.is_intended else logging.WARNING
            _log.log(level, "a turn of %r failed: %s%s", owner.session, describe(error), trace)
            self._end(turn, TurnState.FAILED, None, describe(error))
        except BaseException as error:
            self._end(turn, TurnState.FAILED, None, describe(error))
            raise  # the lanes know what to do with what ends more than a job
        else:
            self._finish_turn(turn, answer)

    def _begin(self, turn: Turn) -> None:
        """The first line of its handler is about to run."""
        turn._begun = True
        self._unbegun.pop(turn.id, None)
        self.kernel.started(turn._entry)
        self.kernel.resumed(turn._entry, wall=self.wall())
        self.carry_out()

    def _cut_short(self, turn: Turn) -> None:
        """The task of a turn was cancelled before its handler began: by us, or by somebody who cancels everything."""
        entry = turn._entry
        if entry.cancelled or not entry.live or entry.owner in self._reloads:
            self._end(turn, *cancelled_by(turn))
            return
        self._turns.pop(turn.id, None)
        self._unbegun.pop(turn.id, None)
        why = "its task was cancelled before it began"
        self.kernel.give_back(entry, why, now=self.now(), wall=self.wall())
        self.kernel.setup_failed(entry.owner, why, now=self.now(), wall=self.wall())
        self.carry_out()
        self._note_quiet()

    def _finish_turn(self, turn: Turn, answer: object) -> None:
        """The handler has returned: what it returned is the answer, if it is one and nobody interrupted it."""
        if turn._entry.cancelled:
            self._end(turn, TurnState.CANCELLED, None, turn._entry.cancelled)
        elif answer is None:
            self._end(turn, TurnState.SUCCEEDED, None, "")
        elif not isinstance(answer, str):
            self._end(turn, TurnState.FAILED, None, f"the handler returned {type(answer).__name__}, not text or None")
        else:
            try:
                # As plain text: a kind of text may have methods of its own.
                text = storable(str.__str__(answer), "the answer of the handler")
            except InvalidMessageError as error:
                self._end(turn, TurnState.FAILED, None, text_of(error))
            else:
                self._end(turn, TurnState.SUCCEEDED, text or None, "")

    def _end(self, turn: Turn, state: TurnState, answer: str | None, reason: str) -> None:
        """The handler has ended; the store is told until it listens."""
        self._turns.pop(turn.id, None)
        entry = turn._entry
        if not entry.live:
            self._unbegun.pop(turn.id, None)
            self._end_fenced(turn)
            return
        if entry.owner in self._reloads:
            if turn._begun:  # else the reload finds that it never began
                self._ends[turn.id] = TurnEnd(state, answer, reason)
                self._turns[turn.id] = turn
            return
        self._unbegun.pop(turn.id, None)
        self._ends[turn.id] = TurnEnd(state, answer, reason)
        now, wall = self.now(), self.wall()
        if not turn._begun:
            self.kernel.untell(self.kernel.boxes[entry.owner], entry)
        unended = (not entry.cancelled or entry.cancelled in PUT_OFF) and state is not TurnState.SUCCEEDED
        closing = self.kernel.closing or entry.cancelled in PUT_OFF
        if closing and unended and self.kernel.on_crash.runs_again:
            self.kernel.give_back(entry, reason, now=now, wall=wall)
            self.kernel.look_at(entry.owner, now=now)
        else:
            closed = closing and state is TurnState.CANCELLED
            self.kernel.end(
                entry, TurnState.INTERRUPTED if closed else state, answer=answer, reason=reason, now=now, wall=wall
            )
        self.journal.after(entry.owner, functools.partial(self._end_stored, turn))
        self.carry_out()

    def _end_fenced(self, turn: Turn) -> None:
        """The handler of a fenced turn has ended: nobody listens, but the fence itself may not be on disk yet."""
        owner = turn._entry.owner
        if turn._begun and (owner in self._reloads or self.journal.has(owner)) and self._lost is None:
            self._ends[turn.id] = TurnEnd(TurnState.FENCED, None, turn._entry.reason)
            self._turns[turn.id] = turn
            if owner not in self._reloads:
                self.journal.after(owner, functools.partial(self._end_stored, turn))
        self._note_quiet()

    def _end_stored(self, turn: Turn, error: Exception | None) -> None:
        if error is None:
            self._turns.pop(turn.id, None)
            self._ends.pop(turn.id, None)
            self._note_quiet()
        else:
            self._turns[turn.id] = turn  # the reload that follows ends it again

    def _note_quiet(self) -> None:
        if not self._turns and not self._children:
            for waiter in self._quiet:
                _succeed(waiter)

    async def take_in(
        self, turn: Turn, *, everything: bool = False, only: str = "", among: frozenset[str] | None = None
    ) -> list[Message]:
        """What goes into a turn at a boundary; nothing, if the store does not take it."""
        entry = turn._entry
        if entry.owner in self._reloads:
            return []
        now, wall = self.now(), self.wall()
        items = self.kernel.boundary(entry, everything=everything, only=only, among=among, now=now, wall=wall)
        if not items:
            return []
        ids = {item.id for item in items}
        entry.offered |= ids  # two tasks of one handler may ask: each message goes to one of them
        self.carry_out()
        try:
            if self.journal.has(entry.owner):
                await self.journal.committed(entry.owner)
        except LanewayError:
            return []  # they wait in their places, or come with the next boundary
        finally:
            turn._entry.offered -= ids
        turn._check_fence()
        turn._entry.delivered |= ids
        return [item.message for item in items]

    async def reply(self, turn: Turn, text: str) -> None:
        """Say something now."""
        storable(text, "a reply")
        owner = turn._entry.owner
        self.check_session(owner)
        self.kernel.reply(turn._entry, text, wall=self.wall())
        self.carry_out()
        await self.journal.committed(owner)

    def set_phase(self, turn: Turn, state: TurnState) -> None:
        """A turn says what it does."""
        self.kernel.set_phase(turn._entry, state)

    def note_progress(self, turn: Turn) -> None:
        """Something of a turn is done and stored with what is changed now: crashes before that count no more."""
        for item in turn._entry.items:
            if item.attempts:
                item.attempts = 0
                item.set_body()
                self.journal.touch(item.owner, item)

    async def request_followup(self, turn: Turn, text: str, *, key: str | None = None) -> str:
        """A further turn after this one; a second request with the same `key` is the first one."""
        entry = turn._entry
        if key is not None:
            lookup = Lookup(entry.owner, route_key(entry.route), key, 0)
            known = (await self.store.find([lookup]))[0]
            if known is not None:
                return known.id
        if entry.depth >= FOLLOWUPS_MAX:
            raise UsageError(
                f"this is follow-up number {entry.depth} already",
                hint=f"a workflow goes on at most {FOLLOWUPS_MAX} times",
            )
        if not isinstance(text, str) or not text.strip():
            raise InvalidMessageError(f"a follow-up is text that is not empty, not {text!r}")
        note = texts.followup_note(storable(text, "a follow-up"), entry.depth + 1)
        message = replace(self._system_message(entry.owner, note, entry.route, entry.sender), message_id=key)
        item = Item(entry.owner, message, seq=self.store.next_seq(), lane=entry.lane)
        item.depth = entry.depth + 1
        item.set_body()
        await self.change(entry.owner, self.kernel.accept, item, SYSTEM_SETTINGS)
        return item.id


async def _nothing_more() -> None:
    pass


async def _nothing_to_compact(_: Owner) -> bool:
    return False


def _succeed(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
