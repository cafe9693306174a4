"""The desk of external tasks: the one place where they are handed out, on one event loop and over one store.

The board decides, the desk does: rows go to the journal of the inbox, whoever waits is told when they are on disk, and
time is one timer. The side of the workers (`claim` to `release`) is the port `Transport`; transports bring it to other
processes. Workers wait in the hall, which several desks may share. Nothing here polls: an idle desk has no timer.

What is on disk when: the order before it is published, the start of a `write` or `idempotent` task before the worker is
told to begin, every end before anybody hears of it. A claim is not stored. An end that the store refuses is written
again until it is there; a worker that was told so may also say it again.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from laneway.errors import (
    ClosedError,
    FencedError,
    LanewayError,
    LeaseLostError,
    StoreUnavailableError,
    TransportUnavailableError,
    UnknownTaskError,
    describe,
    text_of,
)
from laneway.external import ExternalTask, ExternalTaskResult, Lease, Progress, TaskState
from laneway.kernel.checkpoints import to_json
from laneway.kernel.task_board import TaskBoard
from laneway.kernel.task_entries import TASK, Taker, TaskEnd, TaskEntry, TaskNews, TaskOrder, decode_task
from laneway.records import DURATION_MAX_MS, Effect, check_whole
from laneway.rows import Owner
from laneway.runtime.task_hall import ANYBODY, NAME_MAX, Guest, TaskHall, no_task
from laneway.runtime.worker_book import WorkerRecord

if TYPE_CHECKING:
    from laneway.runtime.mail_engine import MailEngine

__all__ = ("TaskDesk",)

_log = logging.getLogger("laneway")

Listener = Callable[[TaskNews], None]

PROGRESS_GAP_MS = 200  # so that a worker that says very much holds up nobody who listens
STALL_MS = 1_000  # a timer is never so late, unless nothing runs here
SAVE_DELAYS_S = (0.5, 1, 2, 4, 8, 10)


class _Saving:
    """An end on its way to the disk, and what to tell when it is there."""

    __slots__ = ("entry", "kinds")

    def __init__(self, entry: TaskEntry, *kinds: str) -> None:
        self.entry = entry
        self.kinds = kinds


class TaskDesk:
    """The external tasks of one host. Everything here belongs to the loop of its engine."""

    def __init__(self, engine: MailEngine, hall: TaskHall | None = None) -> None:
        self._engine = engine
        self.board = TaskBoard()
        self.hall = hall or TaskHall(engine.now, engine.wall)
        self.hall.add(self)
        self._listeners: dict[Owner, Listener] = {}
        self.observers: list[Listener] = []
        """Hear of the tasks of all sessions."""
        self.settling: Callable[[TaskEntry], Awaitable[Callable[[TaskEntry], None]]] | None = None
        """Finds, before a late result counts, what is to be called to write something together with it."""
        self._waiting: dict[str, list[asyncio.Future[TaskEnd]]] = {}  # by task
        self._unsaved: dict[str, _Saving] = {}  # ends that are not on disk yet
        self._flying: set[str] = set()  # those of them that are on their way
        self._stumbles = 0
        self._saving: asyncio.TimerHandle | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due = 0
        self._closed = False

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that it belongs to."""
        return self._engine.loop

    @property
    def workspace(self) -> str:
        """The workspace whose tasks these are."""
        return self._engine.workspace

    @property
    def is_at_work(self) -> bool:
        """Whether tasks can be taken here."""
        return not self._closed and self._engine.is_at_work

    # ---- the side of the agent ----

    async def post(self, order: TaskOrder) -> TaskEntry:
        """Offer a task, and publish it when it is on disk."""
        entry = self.offer(order)
        if not entry.published:
            await self._engine.journal.committed(entry.owner)
            self.publish(entry.task_id)
        return entry

    def offer(self, order: TaskOrder) -> TaskEntry:
        """A new task. Its row goes to the journal; nobody sees the task before `publish`.

        If the store refuses the row, the task is withdrawn.
        """
        self._engine.check_open()
        if self._closed:
            raise ClosedError(opened=True, what="desk")
        check_whole(order.timeout_ms, setting="timeout_ms", least=1, most=DURATION_MAX_MS)
        check_whole(order.lease_ms, setting="lease_ms", least=1, most=DURATION_MAX_MS)
        entry = self.board.offer(order, seq=self._engine.store.next_seq(), wall=self._engine.wall())
        if not entry.published:
            self._unsaved.pop(entry.task_id, None)  # of one with the same id that has ended
            self._engine.journal.touch(entry.owner, entry)
            self._engine.journal.after(entry.owner, functools.partial(self._offered, entry))
        return entry

    def _offered(self, entry: TaskEntry, error: Exception | None) -> None:
        if error is not None and not entry.published and self.board.live.get(entry.task_id) is entry:
            # Perhaps it is on disk all the same: then a restart would find it, and somebody would run it.
            self.withdraw(entry.task_id, f"it could not be stored: {text_of(error)}")

    def publish(self, task_id: str) -> None:
        """It is on disk: somebody may take it now, and its time begins to run."""
        entry = self.board.publish(task_id, now=self._engine.now())
        if entry is not None:
            self._tell(TaskNews("pending", entry))
            self.hall.serve(self, entry)
            self._arm()

    async def outcome(self, task_id: str) -> TaskEnd:
        """Wait until it has ended, and the end is on disk. Cancelling this wait changes nothing."""
        entry = self._whole(task_id) or await self._stored(task_id)
        if entry is None:
            raise UnknownTaskError(f"there is no task {task_id!r}", hint="it never existed, or was forgotten")
        entry = self._whole(task_id) or entry
        if not entry.is_live and not self._is_being_saved(entry):
            return entry.end
        if self._closed:
            raise ClosedError(opened=True, what="desk")
        waiter: asyncio.Future[TaskEnd] = self._engine.loop.create_future()
        waiters = self._waiting.setdefault(task_id, [])
        waiters.append(waiter)
        try:
            return await waiter
        finally:
            waiters.remove(waiter)
            if not waiters and self._waiting.get(task_id) is waiters:
                del self._waiting[task_id]

    def withdraw(self, task_id: str, reason: str) -> TaskEnd:
        """Nobody wants it any more, from this moment on; who has it in hand hears of it at the next sign of life."""
        self.catch_up()
        entry = self.board.get(task_id)
        if entry is None:
            raise UnknownTaskError(f"there is no task {task_id!r}", hint="it never existed, or was forgotten")
        if self.board.withdraw(entry, text_of(reason), wall=self._engine.wall()):
            self._save_end(entry, "ended")
            self._arm()
        return entry.end

    def take_back(self, task_id: str, reason: str, *, begun: bool = False) -> bool:
        """Take a task from the worker that has it, so that another one gets it; False if nobody has it.

        With `begun` also one that has started: a `write` is unknown then.
        """
        self._check_open()
        self.catch_up()
        entry = self.board.live.get(task_id)
        news = None
        if entry is not None:
            news = self.board.take_back(entry, text_of(reason)[:NAME_MAX], wall=self._engine.wall(), begun=begun)
        if news is not None:
            self._carry_out(news)
            self._arm()
        return news is not None

    async def complete_by_host(self, task_id: str, result: ExternalTaskResult) -> bool:
        """The code of the host says what became of a task. True: it counts; a second time is answered the same."""
        kept = _kept(result)
        self.catch_up()
        entry = self.board.get(task_id) or await self._stored(task_id)
        if entry is None:
            return False
        entry = self.board.get(task_id) or entry
        settle = await self._settle_of(entry)
        settles = not entry.is_live
        counts = self.board.complete_by_host(entry, kept, wall=self._engine.wall())
        if counts:
            if settles and settle is not None:
                settle(entry)
            self._save_end(entry, "settled" if settles else "ended")
            self._arm()
        if counts is not False:
            await self._landed(entry)
        return counts is not False

    def tasks(self, owner: Owner | None = None) -> list[ExternalTask]:
        """The tasks that have not ended, oldest first."""
        self.catch_up()
        return [self._view(entry) for entry in self._shown(owner)]

    def live_task(self, task_id: str) -> ExternalTask | None:
        """A task that has not ended; None if there is none of this id."""
        entry = self.board.live.get(task_id)
        return self._view(entry) if entry is not None else None

    def why(self, task_id: str) -> str:
        """Why nobody works on a task at this moment; empty if somebody does."""
        entry = self.board.live.get(task_id)
        return self.hall.why(entry) if entry is not None else ""

    def _shown(self, owner: Owner | None) -> list[TaskEntry]:
        found = self.board.live if owner is None else self.board.by_owner.get(owner, {})
        return sorted((entry for entry in found.values() if entry.published), key=lambda entry: entry.seq)

    async def hand_out(self, owner: Owner) -> list[ExternalTask]:
        """The tasks that wait for somebody, oldest first; whoever asks may begin with them, and that is on disk."""
        self.catch_up()
        new = [entry for entry in self._shown(owner) if entry.state is TaskState.PENDING and not entry.handed_out]
        for entry in new:
            self.board.hand_out(entry)
        writes = [entry for entry in new if entry.effect is Effect.WRITE]  # others may be begun again, whoever has them
        for entry in writes:
            self._engine.journal.touch(owner, entry)
        if writes:
            self._engine.journal.after(owner, functools.partial(self._handed_out, writes))
        shown = [entry for entry in self._shown(owner) if entry.state is TaskState.PENDING]
        if any(entry.effect is Effect.WRITE for entry in shown) and self._engine.journal.has(owner):
            await self._engine.journal.committed(owner)  # also for what another question has handed out just now
        return [self._view(entry) for entry in shown if entry.state is TaskState.PENDING and entry.published]

    def _handed_out(self, entries: list[TaskEntry], error: Exception | None) -> None:
        if error is not None:  # nobody has got to see them: the next question hands them out anew
            for entry in entries:
                if entry.is_live:
                    self.board.hand_out(entry, handed_out=False)

    def held(self, owner: Owner) -> list[TaskEntry]:
        """The tasks of a session that have not ended, also those that nobody can see yet."""
        return list(self.board.by_owner.get(owner, {}).values())

    def count(self, owner: Owner) -> int:
        """How many tasks of a session have not ended."""
        return sum(entry.published for entry in self.board.by_owner.get(owner, {}).values())

    async def load(self, owner: Owner) -> None:
        """Take over what the store has of a session: what has begun goes on, what has not waits for `publish`."""
        if self._engine.journal.has(owner):
            await self._engine.journal.committed(owner)
        loaded = await self._engine.store.load_session(owner)
        entries = [decode_task(row) for row in loaded.states if row.kind == TASK]
        for entry in entries:
            if self.board.get(entry.task_id) is None:  # else somebody was quicker, or it has ended meanwhile
                self.board.load(entry, now=self._engine.now())
        self._arm()

    async def find(self, task_id: str) -> TaskEntry | None:
        """A task that is live here, or as the store has it: perhaps it has ended while nobody waited."""
        entry = self.board.live.get(task_id)
        if entry is None:
            stored = await self._stored(task_id)
            entry = self._whole(task_id) or stored
            if entry is not None and not entry.is_live:
                await self._landed(entry)  # until then nobody hears of it
        return entry

    def attend(self, owner: Owner, listener: Listener) -> None:
        """Tell what happens to the tasks of a session."""
        self._listeners[owner] = listener

    def step_back(self, owner: Owner) -> None:
        """A session has left memory: its tasks stay where they are, and observers hear what becomes of them."""
        self._listeners.pop(owner, None)

    def dismiss(self, owner: Owner) -> None:
        """A session was closed: its tasks stay in the store, and nobody can claim them here."""
        self._listeners.pop(owner, None)
        closed = ClosedError(opened=True, what="session")
        for entry in self.board.drop(owner):
            self._fail_waiting(entry.task_id, closed)
        self._arm()

    def close(self) -> None:
        """Hand out nothing more; what is in the store stays there."""
        self._closed = True
        for timer in (self._timer, self._saving):
            if timer is not None:
                timer.cancel()
        self._timer = self._saving = None
        self.hall.remove(self)
        for task_id in list(self._waiting):
            self._fail_waiting(task_id, ClosedError(opened=True, what="desk"))

    # ---- the side of the workers ----

    async def claim(self, worker: str, **wanted: Any) -> list[Lease]:
        """Take tasks of this desk; as `TaskHall.claim`."""
        self._check_open()
        wanted["workspaces"] = (self.workspace,)
        return await self.hall.claim(worker, **wanted)

    def lease(self, entry: TaskEntry, taker: Taker) -> Lease:
        """Give a task that waits to a worker."""
        self.board.lease(entry, taker, self._new_token(), now=self._engine.now())
        self._arm()
        return Lease(task=self._view(entry), token=entry.token, lease_ms=entry.granted_ms or entry.lease_ms)

    async def start(self, task_id: str, token: str, *, guest: Guest = ANYBODY) -> None:
        """A worker wants to begin: when this returns, it may."""
        entry = await self._entry_of(task_id)
        self.board.start(entry, token, now=self._engine.now())
        if not entry.confirmed:
            if entry.effect is not Effect.READ:
                self._engine.journal.touch(entry.owner, entry)
                await self._engine.journal.committed(entry.owner)
                self.catch_up()
            if self.board.confirm(entry, token, now=self._engine.now()):
                self._tell(TaskNews("started", entry))
        self.hall.book.began(self._heard(entry, guest))
        self._arm()

    async def heartbeat(
        self, task_id: str, token: str, progress: Progress | None = None, *, guest: Guest = ANYBODY
    ) -> bool:
        """A worker is alive, and may say how far it has come. False: it should stop."""
        entry = await self._entry_of(task_id)
        before = entry.progress
        wanted = self.board.heartbeat(entry, token, now=self._engine.now(), progress=progress)
        self._heard(entry, guest)
        now = self._engine.now()
        if entry.is_live and progress is not None and progress != before and now >= entry.progress_due:
            entry.progress_due = now + PROGRESS_GAP_MS
            self._tell(TaskNews("progress", entry))
        return wanted

    async def complete(self, task_id: str, token: str, result: ExternalTaskResult, *, guest: Guest = ANYBODY) -> bool:
        """A worker says what became of a task. True: it counts, and is on disk."""
        kept = _kept(result)
        entry = await self._entry_of(task_id)
        settle = await self._settle_of(entry) if token == entry.token else None
        settles = not entry.is_live
        try:
            counts = self.board.complete(entry, token, kept, wall=self._engine.wall())
        except LeaseLostError as error:
            self._tell(TaskNews("refused", entry, text_of(error)))
            raise
        if counts:
            self.hall.book.ended(self._heard(entry, guest), success=kept.success)
            if settles and settle is not None:
                settle(entry)
            self._save_end(entry, "settled" if settles else "ended")
            self._arm()
        await self._landed(entry)
        return True

    async def _settle_of(self, entry: TaskEntry) -> Callable[[TaskEntry], None] | None:
        if entry.is_live or not entry.is_settleable or self.settling is None:
            return None
        try:
            settle = await self.settling(entry)
        except LanewayError:
            raise
        except Exception as error:  # noqa: BLE001 - a store may raise anything
            raise StoreUnavailableError(f"the store failed: {describe(error)}") from None
        self._check_open()
        return settle

    async def release(
        self, task_id: str, token: str, reason: str = "", *, begun: bool = False, guest: Guest = ANYBODY
    ) -> None:
        """A worker gives a task back. A lease that is gone already is no error.

        With `begun` also one that it has started: a `write` is unknown then, anything else goes to another worker.
        """
        try:
            entry = await self._entry_of(task_id)
        except LeaseLostError:
            return
        news = self.board.release(
            entry, token, wall=self._engine.wall(), begun=begun, reason=text_of(reason)[:NAME_MAX]
        )
        if news is not None:
            self._heard(entry, guest)
            self._carry_out(news)
            self._arm()

    def _heard(self, entry: TaskEntry, guest: Guest) -> WorkerRecord:
        """Whoever has the lease of a task was heard of; after a restart it may not have claimed anything yet."""
        book = self.hall.book
        if not isinstance(entry.holder, WorkerRecord):
            entry.holder = book.meet_again(entry.worker, who=guest.who, tenant=guest.tenant)
            book.has(entry.holder, entry)
        book.seen(entry.holder)
        return entry.holder

    # ---- what others hear of ----

    def _back(self, news: TaskNews) -> None:
        """A task has gone back to those that wait."""
        if not news.entry.is_live:
            return  # its time has run out since then, at the same tick: that is told
        self._engine.journal.touch(news.entry.owner, news.entry)
        self._tell(news)
        self.hall.serve(self, news.entry)

    def _tell(self, news: TaskNews) -> None:
        listener = self._listeners.get(news.entry.owner)
        for each in self.observers if listener is None else (*self.observers, listener):
            try:
                each(news)
            except Exception:  # noqa: BLE001 - what one session does with the news must not cost others theirs
                _log.exception("a listener to the tasks of %s raised", news.entry.owner)

    def _save_end(self, entry: TaskEntry, *kinds: str) -> None:
        """Write an end down; whoever waits for it hears of it when it is on disk."""
        if isinstance(entry.holder, WorkerRecord):
            entry.holder.lets_go(entry)
        before = self._unsaved.get(entry.task_id)
        if before is not None and before.entry is entry:  # settled before its end is on disk: one row has both
            kinds = tuple(dict.fromkeys((*before.kinds, *kinds)))
        saving = self._unsaved[entry.task_id] = _Saving(entry, *kinds)
        self._flying.add(entry.task_id)
        self._engine.journal.touch(entry.owner, entry)
        self._engine.journal.after(entry.owner, functools.partial(self._saved, saving))

    def _saved(self, saving: _Saving, error: Exception | None) -> None:
        entry = saving.entry
        if self._unsaved.get(entry.task_id) is not saving:
            return  # it was told already, or begun anew, or has changed since: that is on its way
        self._flying.discard(entry.task_id)
        if error is None:
            del self._unsaved[entry.task_id]
            self._stumbles = 0
            for kind in saving.kinds:
                self._tell(TaskNews(kind, entry))
            for waiter in self._waiting.get(entry.task_id, ()):
                if not waiter.done():
                    waiter.set_result(entry.end)
            self.board.slim(entry)
        elif isinstance(error, FencedError):
            del self._unsaved[entry.task_id]
            self._fail_waiting(entry.task_id, error)
        elif self._saving is None and not self._closed:
            _log.warning("the end of task %s could not be stored yet: %s", entry.task_id, describe(error))
            delay = SAVE_DELAYS_S[min(self._stumbles, len(SAVE_DELAYS_S) - 1)]
            self._stumbles += 1
            self._saving = self._engine.loop.call_later(delay, self._save_again)

    def _save_again(self) -> None:
        self._saving = None
        for saving in list(self._unsaved.values()):
            self._save_end(saving.entry)

    def _is_being_saved(self, entry: TaskEntry) -> bool:
        saving = self._unsaved.get(entry.task_id)
        return saving is not None and saving.entry is entry

    async def _landed(self, entry: TaskEntry) -> None:
        """Wait until the end of a task is on disk; raises what the store says."""
        if not self._is_being_saved(entry):
            return
        if entry.task_id not in self._flying:  # it was refused before; whoever says it again may wait for it
            self._save_end(entry)
        await self._engine.journal.committed(entry.owner)

    def _fail_waiting(self, task_id: str, error: Exception) -> None:
        for waiter in self._waiting.get(task_id, ()):
            if not waiter.done():
                waiter.set_exception(error)

    # ---- finding ----

    async def _entry_of(self, task_id: str) -> TaskEntry:
        """The task that a worker speaks of, also when its session is closed."""
        self._check_open()
        self.catch_up()
        entry = self.board.get(task_id)
        if entry is None:
            stored = await self._stored(task_id)
            self._check_open()
            self.catch_up()
            entry = self.board.get(task_id) or stored  # it may have been loaded meanwhile
        if entry is None:
            raise no_task(task_id)
        return entry

    async def _stored(self, task_id: str) -> TaskEntry | None:
        if not isinstance(task_id, str):
            return None
        try:
            row = await self._engine.store.history.state(TASK, task_id)
        except LanewayError:
            raise
        except Exception as error:  # noqa: BLE001 - a store may raise anything
            raise StoreUnavailableError(f"the store failed: {describe(error)}") from None
        entry = decode_task(row) if row is not None and row.workspace == self._engine.workspace else None
        if entry is not None and not entry.is_live and self.board.get(task_id) is None:
            self.board.remember(entry)  # whoever asks once may ask again, and not all of them can wait for the store
            self.board.slim(entry)
        return entry

    def _whole(self, task_id: str) -> TaskEntry | None:
        """A task that is here with all there is of it; of a big end, the store has more."""
        entry = self.board.get(task_id)
        return None if entry is None or entry.is_slim else entry

    def _check_open(self) -> None:
        if not self.is_at_work:
            raise TransportUnavailableError("the host is closed", hint="try again when it is back")

    def _view(self, entry: TaskEntry) -> ExternalTask:
        now = self._engine.now
        return entry.view(entry.remaining_ms(now()), remaining=lambda: entry.remaining_ms(now()))

    def _new_token(self) -> str:
        # It proves who has a lease, so nobody may guess it. The epoch makes it differ from every token of an earlier
        # process, whatever makes the ids.
        return f"{self._engine.ids.new_id('lease')}.{self._engine.store.epoch}.{secrets.token_urlsafe(16)}"

    # ---- time ----

    def catch_up(self) -> None:
        """End what has run out of time by now, before anything else is decided."""
        due, now = self.board.next_due(), self._engine.now()
        if due is not None and now - due > STALL_MS:
            # This process itself was held up: signs of life may wait to be read. Leases do not run meanwhile.
            self.board.extend_leases(now - due)
        if due is not None and due <= now:
            for news in self.board.tick(now=self._engine.now(), wall=self._engine.wall()):
                if news.lost and isinstance(news.entry.holder, WorkerRecord):
                    self.hall.book.lost(news.entry.holder, had_begun=news.had_begun)
                self._carry_out(news)
            self._arm()

    def _carry_out(self, news: TaskNews) -> None:
        if news.kind == "ended":
            self._save_end(news.entry, "ended")
        elif news.kind == "open":
            self.hall.serve(self, news.entry)
        else:
            self._back(news)

    def _arm(self) -> None:
        """Have the timer go off when the board has something to do; one that goes off early sets itself again."""
        due = self.board.next_due()
        if self._timer is not None:
            if due is not None and self._timer_due <= due:
                return
            self._timer.cancel()
            self._timer = None
        if due is not None and not self._closed:
            self._timer_due = due
            delay_s = max(0, due - self._engine.now()) / 1000
            self._timer = self._engine.loop.call_later(delay_s, self._ring)

    def _ring(self) -> None:
        self._timer = None
        if self._engine.is_open:
            self.catch_up()
            self._arm()


def _kept(result: object) -> ExternalTaskResult:
    """A result as a restart would load it: checked, and nobody else's to change."""
    found = ExternalTaskResult.of(result)
    if found.result is None or isinstance(found.result, str):
        return found
    return ExternalTaskResult(success=found.success, result=json.loads(to_json(found.result)), error=found.error)
