"""The desk of external tasks: the one place where they are handed out, on one event loop and over one store.

The board decides, the desk does: rows go to the journal of the inbox, whoever waits is told when they are on disk, and
time is one timer. The side of the workers (`claim` to `release`) is the port `Transport`; transports bring it to other
processes. Nothing here polls: a claim that waits is a future, and an idle desk has no timer.

What is on disk when: the order before it is published, the start of a `write` or `idempotent` task before the worker is
told to begin, every end before anybody hears of it. A claim is not stored. An end that the store refuses is written
again until it is there; a worker that was told so may also say it again.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from laneway.errors import (
    ClosedError,
    FencedError,
    LanewayError,
    LeaseLostError,
    StoreUnavailableError,
    TransportUnavailableError,
    UnknownTaskError,
    UsageError,
    describe,
    text_of,
)
from laneway.external import ExternalTask, ExternalTaskResult, Lease, TaskState
from laneway.kernel.checkpoints import to_json
from laneway.kernel.task_board import TASK, TaskBoard, TaskEnd, TaskEntry, TaskNews, TaskOrder, decode_task
from laneway.records import DURATION_MAX_MS, Effect, check_whole
from laneway.rows import Owner

if TYPE_CHECKING:
    from laneway.runtime.mail_engine import MailEngine

__all__ = ("CLAIM_MAX", "TaskDesk")

_log = logging.getLogger("laneway")

Listener = Callable[[TaskNews], None]
Filter = tuple[frozenset[str], frozenset[str]]

CLAIM_MAX = 1_000
NAME_MAX = 200
NAMES_MAX = 1_000
SAVE_DELAYS_S = (0.5, 1, 2, 4, 8, 10)


class _Claimer:
    """Somebody who waits for a task."""

    __slots__ = ("answer", "limit", "number", "worker")

    def __init__(self, worker: str, number: int, answer: asyncio.Future[list[Lease]]) -> None:
        self.worker = worker
        self.number = number
        self.answer = answer


class TaskDesk:
    """The external tasks of one host. Everything here belongs to the loop of its engine."""

    def __init__(self, engine: MailEngine) -> None:
        self._engine = engine
        self.board = TaskBoard()
        self._listeners: dict[Owner, Listener] = {}
        self._waiting: dict[str, list[asyncio.Future[TaskEnd]]] = {}  # by task
        self._claimers: dict[Filter, dict[_Claimer, None]] = {}  # in the order of their arrival
        self._claimer_number = 0
        self._unsaved: dict[str, tuple[TaskEntry, str]] = {}  # ends that are not on disk yet, and what to tell then
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
            self._serve(entry)
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
        self._catch_up()
        entry = self.board.get(task_id)
        if entry is None:
            raise UnknownTaskError(f"there is no task {task_id!r}", hint="it never existed, or was forgotten")
        if self.board.withdraw(entry, text_of(reason), wall=self._engine.wall()):
            self._save_end(entry, "ended")
            self._arm()
        return entry.end

    async def complete_by_host(self, task_id: str, result: ExternalTaskResult) -> bool:
        """The code of the host says what became of a task. True: it counts; a second time is answered the same."""
        kept = _kept(result)
        self._catch_up()
        entry = self.board.get(task_id) or await self._stored(task_id)
        if entry is None:
            return False
        entry = self.board.get(task_id) or entry
        settles = not entry.is_live
        counts = self.board.complete_by_host(entry, kept, wall=self._engine.wall())
        if counts:
            self._save_end(entry, "settled" if settles else "ended")
            self._arm()
        if counts is not False:
            await self._landed(entry)
        return counts is not False

    def tasks(self, owner: Owner | None = None) -> list[ExternalTask]:
        """The tasks that have not ended, oldest first."""
        self._catch_up()
        return [self._view(entry) for entry in self._shown(owner)]

    def live_task(self, task_id: str) -> ExternalTask | None:
        """A task that has not ended; None if there is none of this id."""
        entry = self.board.live.get(task_id)
        return self._view(entry) if entry is not None else None

    def _shown(self, owner: Owner | None) -> list[TaskEntry]:
        found = self.board.live if owner is None else self.board.by_owner.get(owner, {})
        return sorted((entry for entry in found.values() if entry.published), key=lambda entry: entry.seq)

    async def hand_out(self, owner: Owner) -> list[ExternalTask]:
        """The tasks that wait for somebody, oldest first; whoever asks may begin with them, and that is on disk."""
        self._catch_up()
        new = [entry for entry in self._shown(owner) if entry.state is TaskState.PENDING and not entry.handed_out]
        for entry in new:
            self.board.hand_out(entry)
            if entry.effect is Effect.WRITE:  # others may be begun again, whoever has them
                self._engine.journal.touch(owner, entry)
        if any(entry.effect is Effect.WRITE for entry in new):
            await self._engine.journal.committed(owner)
        return [self._view(entry) for entry in self._shown(owner) if entry.state is TaskState.PENDING]

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
        return entry

    def attend(self, owner: Owner, listener: Listener) -> None:
        """Tell what happens to the tasks of a session."""
        self._listeners[owner] = listener

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
        gone = TransportUnavailableError("the host is closing", hint="try again when it is back")
        for claimers in self._claimers.values():
            for claimer in claimers:
                if not claimer.answer.done():
                    claimer.answer.set_exception(gone)
        for task_id in list(self._waiting):
            self._fail_waiting(task_id, ClosedError(opened=True, what="desk"))

    # ---- the side of the workers ----

    async def claim(
        self, worker: str, *, lanes: Sequence[str] = (), limit: int = 1, wait_ms: int = 0, commands: Sequence[str] = ()
    ) -> list[Lease]:
        """Take up to `limit` tasks, oldest first; waits up to `wait_ms` for the first one."""
        worker = _checked_name(worker)
        wanted = (_checked_names("lanes", lanes), _checked_names("commands", commands))
        check_whole(limit, setting="limit", least=1, most=CLAIM_MAX)
        check_whole(wait_ms, setting="wait_ms", least=0, most=DURATION_MAX_MS)
        self._check_open()
        self._catch_up()
        leases: list[Lease] = []
        while len(leases) < limit:
            entry = self.board.claim(worker, *wanted, now=self._engine.now(), token=self._new_token)
            if entry is None:
                break
            leases.append(self._lease(entry))
        if leases:
            self._arm()
        elif wait_ms:
            return await self._wait_for_task(worker, wanted, wait_ms)
        return leases

    async def start(self, task_id: str, token: str) -> None:
        """A worker wants to begin: when this returns, it may."""
        entry = await self._entry_of(task_id)
        self.board.start(entry, token, now=self._engine.now())
        if not entry.confirmed:
            if entry.effect is not Effect.READ:
                self._engine.journal.touch(entry.owner, entry)
                await self._engine.journal.committed(entry.owner)
                self._catch_up()
            if self.board.confirm(entry, token, now=self._engine.now()):
                self._tell(TaskNews("started", entry))
        self._arm()

    async def heartbeat(self, task_id: str, token: str) -> bool:
        """A worker is alive. False: it should stop."""
        entry = await self._entry_of(task_id)
        return self.board.heartbeat(entry, token, now=self._engine.now())

    async def complete(self, task_id: str, token: str, result: ExternalTaskResult) -> bool:
        """A worker says what became of a task. True: it counts, and is on disk."""
        kept = _kept(result)
        entry = await self._entry_of(task_id)
        settles = not entry.is_live
        try:
            counts = self.board.complete(entry, token, kept, wall=self._engine.wall())
        except LeaseLostError as error:
            self._tell(TaskNews("refused", entry, text_of(error)))
            raise
        if counts:
            self._save_end(entry, "settled" if settles else "ended")
            self._arm()
        await self._landed(entry)
        return True

    async def release(self, task_id: str, token: str, reason: str = "") -> None:
        """A worker gives a task back that it has not started. A lease that is gone already is no error."""
        try:
            entry = await self._entry_of(task_id)
        except LeaseLostError:
            return
        worker = entry.worker
        if self.board.release(entry, token):
            self._back(TaskNews("requeued", entry, f"{worker} gave it back: {text_of(reason)[:NAME_MAX]}"))
            self._arm()

    # ---- claims that wait ----

    async def _wait_for_task(self, worker: str, wanted: Filter, wait_ms: int) -> list[Lease]:
        self._claimer_number += 1
        answer: asyncio.Future[list[Lease]] = self._engine.loop.create_future()
        claimer = _Claimer(worker, self._claimer_number, answer)
        claimers = self._claimers.setdefault(wanted, {})
        claimers[claimer] = None
        timer = self._engine.loop.call_later(wait_ms / 1000, _answer_nothing, answer)
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:
                for lease in answer.result():  # whoever asked is gone: it goes back
                    await self.release(lease.task["task_id"], lease.token, "it had gone away")
            raise
        finally:
            timer.cancel()
            claimers.pop(claimer, None)
            if not claimers and self._claimers.get(wanted) is claimers:
                del self._claimers[wanted]

    def _serve(self, entry: TaskEntry) -> None:
        """A task can be taken: give it to whoever has waited longest for one like it."""
        first: _Claimer | None = None
        for (lanes, commands), claimers in self._claimers.items():
            if (not lanes or entry.lane in lanes) and (not commands or entry.command_type in commands):
                head = next((each for each in claimers if not each.answer.done()), None)
                if head is not None and (first is None or head.number < first.number):
                    first = head
        if first is None:
            return
        # Nobody waits while something older could be taken, so this is the one.
        taken = self.board.claim(
            first.worker, (entry.lane,), (entry.command_type,), now=self._engine.now(), token=self._new_token
        )
        if taken is not None:
            first.answer.set_result([self._lease(taken)])

    # ---- what others hear of ----

    def _back(self, news: TaskNews) -> None:
        """A task has gone back to those that wait."""
        self._engine.journal.touch(news.entry.owner, news.entry)
        self._tell(news)
        self._serve(news.entry)

    def _tell(self, news: TaskNews) -> None:
        listener = self._listeners.get(news.entry.owner)
        if listener is not None:
            try:
                listener(news)
            except Exception:  # noqa: BLE001 - what one session does with the news must not cost others theirs
                _log.exception("a listener to the tasks of %s raised", news.entry.owner)

    def _save_end(self, entry: TaskEntry, kind: str) -> None:
        """Write an end down; whoever waits for it hears of it when it is on disk."""
        self._unsaved[entry.task_id] = entry, kind
        self._flying.add(entry.task_id)
        self._engine.journal.touch(entry.owner, entry)
        self._engine.journal.after(entry.owner, functools.partial(self._saved, entry))

    def _saved(self, entry: TaskEntry, error: Exception | None) -> None:
        kept, kind = self._unsaved.get(entry.task_id, (None, ""))
        if kept is not entry:
            return  # it was told already, or begun anew
        self._flying.discard(entry.task_id)
        if error is None:
            del self._unsaved[entry.task_id]
            self._stumbles = 0
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
        for entry, kind in list(self._unsaved.values()):
            self._save_end(entry, kind)

    def _is_being_saved(self, entry: TaskEntry) -> bool:
        return self._unsaved.get(entry.task_id, (None, ""))[0] is entry

    async def _landed(self, entry: TaskEntry) -> None:
        """Wait until the end of a task is on disk; raises what the store says."""
        if not self._is_being_saved(entry):
            return
        if entry.task_id not in self._flying:  # it was refused before; whoever says it again may wait for it
            self._save_end(entry, self._unsaved[entry.task_id][1])
        await self._engine.journal.committed(entry.owner)

    def _fail_waiting(self, task_id: str, error: Exception) -> None:
        for waiter in self._waiting.get(task_id, ()):
            if not waiter.done():
                waiter.set_exception(error)

    # ---- finding ----

    async def _entry_of(self, task_id: str) -> TaskEntry:
        """The task that a worker speaks of, also when its session is closed."""
        self._check_open()
        self._catch_up()
        entry = self.board.get(task_id)
        if entry is None:
            stored = await self._stored(task_id)
            self._check_open()
            self._catch_up()
            entry = self.board.get(task_id) or stored  # it may have been loaded meanwhile
        if entry is None:
            raise LeaseLostError(f"there is no task {text_of(task_id)[:NAME_MAX]!r}", hint="stop", task_id=task_id)
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
        if self._closed or not self._engine.is_at_work:
            raise TransportUnavailableError("the host is closed", hint="try again when it is back")

    def _view(self, entry: TaskEntry) -> ExternalTask:
        now = self._engine.now
        return entry.view(entry.remaining_ms(now()), remaining=lambda: entry.remaining_ms(now()))

    def _lease(self, entry: TaskEntry) -> Lease:
        return Lease(task=self._view(entry), token=entry.token, lease_ms=entry.lease_ms)

    def _new_token(self) -> str:
        # The epoch makes it differ from every token of an earlier process, whatever makes the ids.
        return f"{self._engine.ids.new_id('lease')}.{self._engine.store.epoch}"

    # ---- time ----

    def _catch_up(self) -> None:
        """End what has run out of time by now, before anything else is decided."""
        due = self.board.next_due()
        if due is not None and due <= self._engine.now():
            for news in self.board.tick(now=self._engine.now(), wall=self._engine.wall()):
                if news.kind == "ended":
                    self._save_end(news.entry, "ended")
                else:
                    self._back(news)
            self._arm()

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
            self._catch_up()
            self._arm()


def _answer_nothing(answer: asyncio.Future[list[Lease]]) -> None:
    if not answer.done():
        answer.set_result([])


def _kept(result: object) -> ExternalTaskResult:
    """A result as a restart would load it: checked, and nobody else's to change."""
    found = ExternalTaskResult.of(result)
    if found.result is None or isinstance(found.result, str):
        return found
    return ExternalTaskResult(success=found.success, result=json.loads(to_json(found.result)), error=found.error)


def _checked_name(worker: object) -> str:
    if not isinstance(worker, str) or not 0 < len(worker) <= NAME_MAX:
        raise UsageError(f"a worker has a name of 1 to {NAME_MAX} characters, not {worker!r:.80}")
    return text_of(worker)


def _checked_names(setting: str, names: object) -> frozenset[str]:
    if isinstance(names, str) or not isinstance(names, Sequence) or len(names) > NAMES_MAX:
        raise UsageError(f"{setting} must be a list of at most {NAMES_MAX} names, not {names!r:.80}")
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"{setting} must be a list of names, not {names!r:.80}")
    return frozenset(names)
