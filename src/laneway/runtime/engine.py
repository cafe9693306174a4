"""The engine: the single writer. It hands commands to the kernel and carries out what comes back, in order.

Everything here runs on the loop that opened it and nothing awaits between a decision and its effects, so there is
no lock anywhere. One timer is armed, for the next moment the kernel has something to do; with nothing to do there
is none, and the loop sleeps.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from typing import Any, assert_never, cast

from laneway.errors import (
    ClosedError,
    DuplicateJobError,
    InternalError,
    JobAbortedError,
    RetryLater,
    UnknownJobError,
    UsageError,
    WrongThreadError,
    text_of,
)
from laneway.events import Event, ShutdownCompleted
from laneway.kernel import explain as questions
from laneway.kernel.protocol import (
    CancelAttempt,
    CompleteJob,
    Effect,
    End,
    Hold,
    JobSpec,
    KeepDeadLetter,
    Publish,
    ResumeWait,
    SettleJob,
    StartJob,
    Stop,
    StoreJob,
)
from laneway.kernel.scheduler import Kernel
from laneway.ports import Clock, Ids, Random
from laneway.records import DeadLetter, DrainReport, Explanation, JobId, JobState, Snapshot
from laneway.runtime.dead_letters import DeadLetters
from laneway.runtime.durable import Durable, DurableJob
from laneway.runtime.endings import error_of, repr_of, stop_error
from laneway.runtime.executor import JobTask, name_of, needs_thread, run_attempt, same_function
from laneway.runtime.handles import CURRENT, Failure, Job, JoinedJob, Node, SlotEntry
from laneway.runtime.signals import AbortSignal
from laneway.runtime.subscriptions import Audience, Subscription

# The engine is the owner of its handles: it alone sets their private fields.
# ruff: noqa: SLF001

_log = logging.getLogger("laneway")
_BEGUN = (JobState.RUNNING, JobState.LENT)
_WAITERS_SWEPT = 64
PATIENCE_S = 10


class Engine:
    """One kernel on one event loop."""

    def __init__(self, kernel: Kernel, *, clock: Clock, ids: Ids, random: Random, dlq_max_size: int) -> None:
        self.kernel = kernel
        self._monotonic_ms = clock.monotonic_ms
        self._wall_ms = clock.wall_ms
        self.take_ids(ids)
        self.random = random
        self.durable = Durable(self)
        self.dead_letters = DeadLetters(dlq_max_size)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._plain_tasks = False
        self.context = copy_context()  # of whoever opens it
        self._thread = 0
        self._closed = False
        self._pool: ThreadPoolExecutor | None = None
        self._in_threads: set[asyncio.Task[Any]] = set()  # tasks that wait for a thread, the abandoned ones included
        self._busy: set[Callable[[], Any]] = set()  # what threads run now, whoever still waits for it
        self._unbegun: set[asyncio.Task[None]] = set()  # tasks that were cancelled before their first step
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due: int | None = None
        self._waits: dict[int, asyncio.Future[None]] = {}
        self._next_wait = 0
        self._quiet: list[asyncio.Future[None]] = []
        self._audience = Audience(self._note_listening)
        self._callbacks: list[Callable[[Snapshot], object]] = []
        self._snapshots: list[Snapshot] = []
        self._seen = (0, 0, 0)
        self._notifying = False
        self._signals: dict[int, AbortSignal] = {}  # which signal a handle listens to

    # ---- opening ----

    def take_ids(self, ids: Ids) -> None:
        """Where the ids of jobs and slots come from."""
        self.ids = ids
        self._new_id = cast("Callable[[str], JobId]", ids.new_id)

    def open(self) -> None:
        """Belong to the running loop from now on."""
        if self._closed:
            raise ClosedError(opened=True)
        if self._loop is not None:
            raise UsageError("these lanes are open already", hint="open them once, and pass them around")
        self._loop = loop = asyncio.get_running_loop()
        # A plain Task on every loop but a simulated one. A task factory is passed by: an eager one would run the code
        # of a job in the middle of a decision about others.
        self._plain_tasks = not getattr(loop, "makes_own_tasks", False)
        self._thread = threading.get_ident()
        self.context = copy_context()
        self._seen = self._counts()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop it belongs to."""
        if self._loop is None:
            raise ClosedError(opened=False)
        return self._loop

    @property
    def is_open(self) -> bool:
        """Whether it takes commands now."""
        return self._loop is not None and not self._closed

    def check_caller(self, call: str) -> None:
        """Refuse callers on other threads, before opening and after closing."""
        if self._loop is None or self._closed:
            raise ClosedError(opened=self._loop is not None)
        if threading.get_ident() != self._thread:
            raise WrongThreadError(call=call)

    # ---- jobs ----

    def submit(
        self,
        names: str | tuple[str, ...],
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        spec: JobSpec,
        signal: AbortSignal | None = None,
    ) -> Job[Any]:
        """Give a job to the kernel and carry out what it says."""
        if threading.get_ident() != self._thread or self._closed:
            self.check_caller("submit")
        if signal is not None and signal.aborted:
            lane = names if isinstance(names, str) else names[-1]
            raise JobAbortedError(
                f"a job for lane {lane!r} was not taken: its signal had fired already ({signal.reason})",
                job_id="",
                lane=lane,
                reason=signal.reason or "",
                hint="use a new AbortSignal",
            )
        if spec.key is not None:
            joined = self._join(spec, fn)
            if joined is not None:
                self._listen(joined, signal)
                return joined
        job: Job[Any] = Job(self, fn, args, copy_context(), names)
        current = CURRENT.get()
        up = self.live_node(current) if current is not None else None
        effects = self.kernel.submit(self._new_id("job"), names, spec, job, self._monotonic_ms(), up, needs_thread(fn))
        handle = job if spec.key is None else self.share(job)
        if signal is not None:
            self._listen(handle, signal)
        if effects or self._callbacks or self.kernel.timers.heap:
            self._carry_out(effects)
        return handle

    def _join(self, spec: JobSpec, fn: Callable[..., Any]) -> Job[Any] | None:
        job_id = self.kernel.keys.get((spec.tenant, spec.key or ""))
        if job_id is None:
            return None
        primary = cast("Job[Any]", self.kernel.jobs[job_id])
        if not same_function(primary._fn, fn):
            raise DuplicateJobError(key=spec.key or "", job_id=job_id)
        return self.share(primary)

    @staticmethod
    def share(job: Job[Any]) -> Job[Any]:
        """A handle of its own for each caller of a job with a key; the job itself is nobody's alone."""
        if job._handles is None:
            job._handles = {}
        handle = JoinedJob(job)
        job._handles[id(handle)] = handle
        return handle

    def _listen(self, job: Job[Any], signal: AbortSignal | None) -> None:
        if signal is None:
            return
        loop = self.loop

        def abort(reason: str) -> None:
            if threading.get_ident() == self._thread:
                self.cancel_handle(job, reason, Stop.ABORT)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(self.cancel_handle, job, reason, Stop.ABORT)

        signal.listen(id(job), abort)
        self._signals[id(job)] = signal

    def cancel_handle(self, job: Job[Any], reason: str, stop: Stop = Stop.CANCEL) -> bool:
        """Cancel for one handle: of a shared job only the last one really ends it."""
        if job._done or self._closed or job.id not in self.kernel.jobs:
            return False
        self.check_caller("cancel")
        reason = text_of(reason)
        handles = job._primary._handles if isinstance(job, JoinedJob) else None
        if not isinstance(job, JoinedJob) or handles is None or len(handles) <= 1:
            return self.stop(job.id, reason, stop)
        del handles[id(job)]
        job._detached = True
        for wait_id in list(job._waits or ()):  # jobs that wait for this handle need not wait for the shared job
            self._carry_out(self.kernel.cancel_wait(wait_id, now=self.now()))
        self._settle_handle(job, Failure(job, stop_error(job, stop, reason, lane=job.lane_name), quiet=True))
        return True

    def stop(self, job_id: JobId, reason: str, stop: Stop = Stop.CANCEL) -> bool:
        """End a live job. False: it is being ended already (or is a slot in use)."""
        if job_id not in self.kernel.jobs:
            raise UnknownJobError(job_id=job_id)
        if not self.kernel.can_stop(job_id):
            return False
        self._carry_out(self.kernel.stop(job_id, stop, text_of(reason), now=self.now()))
        return True

    def abandon(self, job_id: JobId, reason: str) -> None:
        """Let go of a job without waiting for its end: asked to end if it runs, it can change nothing here any more."""
        self.check_caller("abandon")
        entry = self.kernel.jobs.get(job_id)
        if isinstance(entry, Job) and entry.state in _BEGUN and not entry._ending:
            self._cancel_attempt(entry, entry.attempt)
        self._carry_out(self.kernel.abandon(job_id, text_of(reason), now=self.now()))

    def explain_handle(self, job: Job[Any]) -> Explanation:
        """Why a job is where it is, ended ones included."""
        if job._done or job.id not in self.kernel.jobs:
            return questions.explain_ended(job, job.state, job.lane_name)
        return questions.explain(self.kernel, job.id, now=self.now(), wall_ms=self._wall_ms())

    # ---- waiting ----

    async def wait_for(self, job: Job[Any]) -> None:
        """Wait until a job has ended; from inside another job, lend what that one holds."""
        self.check_caller("await job")
        current = CURRENT.get()
        node = self.live_node(current) if current is not None else None
        if node is not None and job.id in self.kernel.jobs:
            await self._wait_inside(node, job.id, job)
        if not job._done:
            await self.waiter_of(job)

    def waiter_of(self, job: Job[Any]) -> asyncio.Future[None]:
        """A future of its own for whoever awaits a job: cancelling one waiter touches no other."""
        if threading.get_ident() != self._thread or self._closed:
            self.check_caller("await job")
        waiter = self.loop.create_future()
        waiters = job._waiters
        if waiters is None:
            job._waiters = [waiter]
        else:
            if len(waiters) > _WAITERS_SWEPT:  # now and then, forget those that were cancelled
                waiters[:] = [other for other in waiters if not other.done()]
            waiters.append(waiter)
        return waiter

    async def _wait_inside(self, node: JobId, target: JobId, handle: Job[Any] | None = None) -> None:
        """A job waits for a job: the kernel says when it may go on."""
        self._next_wait += 1
        wait_id = self._next_wait
        if isinstance(handle, JoinedJob):
            handle._waits = {*(handle._waits or ()), wait_id}
        self._waits[wait_id] = future = self.loop.create_future()
        cancelled: asyncio.CancelledError | None = None
        try:
            self._carry_out(self.kernel.begin_wait(wait_id, node, target, now=self.now()))
            while wait_id in self._waits:  # until the kernel has said that it is over
                try:
                    await future
                except asyncio.CancelledError as error:
                    cancelled = cancelled or error
                    if wait_id in self._waits:
                        # Heirs of an exclusive lane may have to end first.
                        self._waits[wait_id] = future = self.loop.create_future()
                        self._carry_out(self.kernel.cancel_wait(wait_id, now=self.now()))
        finally:
            self._waits.pop(wait_id, None)
            if isinstance(handle, JoinedJob) and handle._waits:
                handle._waits.discard(wait_id)
        if cancelled is not None:
            raise cancelled

    def live_node(self, current: Node) -> JobId | None:
        """The job or slot that the calling code runs in: the nearest around it that is ours and still counts."""
        node: Node | None = current
        while node is not None:
            engine, job_id, number, node = node
            entry = self.kernel.jobs.get(job_id) if engine is self else None
            if entry is not None and entry.attempt == number and entry.state in _BEGUN:
                return job_id
        return None

    # ---- slots ----

    async def acquire_slot(self, names: tuple[str, ...], spec: JobSpec, *, as_block: bool) -> SlotEntry:
        """Wait for a slot; if the wait is cancelled the request is withdrawn."""
        self.check_caller("slot")
        current = CURRENT.get()
        up = self.live_node(current) if current is not None else None
        if up is not None and not as_block:
            raise UsageError(
                f"acquire() was called inside {up}: a slot without a block could not be lent while it waits",
                hint="inside a job use `async with lanes.slot(...)`",
            )
        slot = SlotEntry(self.loop.create_future())
        slot_id = self._new_id("slot")
        self._carry_out(self.kernel.submit(slot_id, names, spec, slot, self.now(), up, is_slot=True))
        try:
            if up is not None and not slot.granted.done():
                await self._wait_inside(up, slot_id)
            if not slot.granted.done():
                await slot.granted
        except BaseException:
            self._withdraw_slot(slot)
            raise
        if slot.error is not None:
            raise slot.error
        return slot

    def _withdraw_slot(self, slot: SlotEntry) -> None:
        if slot.id not in self.kernel.jobs or self._closed:
            return
        if slot.state in _BEGUN:
            self.release_slot(slot)
        else:
            self._carry_out(self.kernel.stop(slot.id, Stop.CANCEL, "the wait was cancelled", now=self.now()))

    def check_release(self) -> None:
        """Refuse a release on another thread, before anything has changed."""
        if not self._closed:
            self.check_caller("release")

    def release_slot(self, slot: SlotEntry) -> None:
        """Give a slot back."""
        if not self._closed and slot.id in self.kernel.jobs:
            self._carry_out(self.kernel.finish(slot.id, 1, End.SUCCEEDED, self.now()))

    # ---- carrying out ----

    def now(self) -> int:
        """Monotonic milliseconds."""
        return self._monotonic_ms()

    def wall_ms(self) -> int:
        """Wall-clock milliseconds."""
        return self._wall_ms()

    def run(self, effects: list[Effect]) -> None:
        """Carry out the effects of a command that a façade gave to the kernel."""
        self._carry_out(effects)

    def attempt_succeeded(self, job: Job[Any], number: int, value: Any) -> None:
        """The code of an attempt has returned."""
        if number == job.attempt and not job._done:
            job._value = value
        else:
            _log.info("late result of attempt %s of %s ignored", number, job.id)
        if not self._closed:
            self._carry_out(self.kernel.finish(job.id, number, End.SUCCEEDED, self._monotonic_ms()))

    def attempt_ended(
        self, job: Job[Any], number: int, end: End, error: BaseException | None, reason: str = ""
    ) -> None:
        """The code of an attempt has ended without a value."""
        if number == job.attempt and not job._done:
            job._error = error
        else:
            _log.info("late end of attempt %s of %s ignored: %s", number, job.id, reason)
        if self._closed:
            return
        after_ms = getattr(error, "after_ms", 0) if isinstance(error, RetryLater) else 0
        jitter = self.random.random()
        self._carry_out(self.kernel.finish(job.id, number, end, self.now(), reason, after_ms, jitter))

    def attempt_put_back(
        self, job: Job[Any], number: int, end: End, *, after_ms: int = 0, hold: Hold | None = None
    ) -> None:
        """An attempt that is to run again at no cost has ended: later, or when what holds it up is gone."""
        if not self._closed:
            self._carry_out(self.kernel.finish(job.id, number, end, self.now(), after_ms=after_ms, hold=hold))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            if type(effect) is StartJob:  # nearly all effects are of these two kinds, so they come first
                job = effect.entry
                if type(job) is Job:
                    job._begun = False
                    if effect.attempt > 1:
                        job._ending, job._error = False, None
                    coroutine = run_attempt(self, job, effect.attempt)
                    context = job._context.copy()  # each attempt starts with what the submitter had
                    if self._plain_tasks:  # as `spawn`, without the call
                        job._task = JobTask(coroutine, loop=self._loop, name=job.id, context=context)
                    else:
                        job._task = self.loop.create_task(coroutine, name=job.id, context=context)
                elif type(job) is DurableJob:
                    self.durable.start(job, effect.attempt)
                elif not job.granted.done():
                    job.granted.set_result(None)
            elif type(effect) is CompleteJob:
                job = effect.entry
                if type(job) is Job:
                    self._complete(job)
                elif type(job) is DurableJob:
                    self.settle(job, job._value)
            else:
                try:
                    self._carry_out_rare(effect)
                except Exception:  # noqa: BLE001 - what one job brought along must not cost others their effects
                    _log.exception("an effect could not be carried out: %s", type(effect).__name__)
        if self._timer_due is not None or self.kernel.timers.heap:
            self._arm()
        if self._callbacks:
            self._notify()
        if self._quiet and not self.kernel.running:
            self._wake_quiet()

    def spawn(self, job: Job[Any], coroutine: Coroutine[Any, Any, None]) -> None:
        """Run an attempt as a task."""
        context = job._context.copy()
        if self._plain_tasks:
            job._task = JobTask(coroutine, loop=self._loop, name=job.id, context=context)
        else:
            job._task = self.loop.create_task(coroutine, name=job.id, context=context)

    def _carry_out_rare(self, effect: Effect) -> None:
        match effect:
            case SettleJob(entry):
                if isinstance(entry, DurableJob):
                    self.durable.settle(entry, effect)
                elif isinstance(entry, Job):
                    # Whoever cancelled a job knows; only errors that nobody asked for are worth a line in the log.
                    quiet = effect.state is JobState.CANCELLED
                    self.settle(entry, Failure(entry, error_of(entry, effect), quiet=quiet))
                else:
                    self._refuse_slot(entry, effect)
            case Publish(event):
                self._publish(event)
            case CancelAttempt(entry, _, number):
                self._cancel_attempt(entry, number)
            case ResumeWait(wait_id):
                waiter = self._waits.pop(wait_id, None)
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)
            case KeepDeadLetter(entry):
                if isinstance(entry, DurableJob):
                    self.durable.keep_dead_letter(effect)
                else:
                    self._keep_dead_letter(effect)
            case StoreJob():
                self.durable.note_schedule(effect)
            case StartJob() | CompleteJob():
                raise InternalError(f"{effect} was not carried out where it should have been")
            case _:
                assert_never(effect)

    def _cancel_attempt(self, job: Job[Any], number: int) -> None:
        task = job._task
        job._ending = True
        if isinstance(job, DurableJob) and (task is None or task.done()):
            # Its start or its end is on its way to the store. Not in the middle of the effects of a decision: soon.
            self.loop.call_soon(self.durable.stop_between, job, number)
        if task is None or job._in_thread:
            return  # a thread cannot be cancelled: the kernel waits for it, or abandons it
        if not job._begun:
            self.watch_unbegun(task, job, number)
        task.cancel()

    def watch_unbegun(self, task: asyncio.Task[None], job: Job[Any], number: int) -> None:
        """A task that is cancelled before its first step never runs: report its end in its place."""
        if task not in self._unbegun:
            self._unbegun.add(task)
            task.add_done_callback(self._unbegun.discard)
            task.add_done_callback(lambda _: self._never_begun(job, number))

    def _never_begun(self, job: Job[Any], number: int) -> None:
        if not job._begun:
            if isinstance(job, DurableJob) and not job._ending:
                self.durable.never_begun(job, number)
                return
            reason = "" if job._ending else "its task was cancelled before its first step"
            self.attempt_ended(job, number, End.CANCELLED, None, reason)

    async def run_in_thread(self, call: Callable[[], Any]) -> Any:
        """Call a sync function on the pool, which grows to the sync jobs that run."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.kernel.threads.cap, thread_name_prefix="laneway")
        task = asyncio.current_task()
        assert task is not None
        self._in_threads.add(task)

        def counted() -> Any:
            self._busy.add(counted)
            try:
                return call()
            finally:
                self._busy.discard(counted)

        try:
            return await self.loop.run_in_executor(self._pool, counted)
        finally:
            self._in_threads.discard(task)

    # ---- ends ----

    def _complete(self, job: Job[Any]) -> None:
        if self._signals or job.spec.key is not None:
            self.settle(job, job._value)
            return
        job._done = True
        job._task = None
        waiters = job._waiters
        if waiters is not None:
            job._waiters = None
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)

    def settle(self, job: Job[Any], value: Any) -> None:
        """A job has ended, with a value or a `Failure`: wake whoever awaits it."""
        self._settle_handle(job, value)
        for handle in list((job._handles or {}).values()):
            self._settle_handle(handle, value)

    def _settle_handle(self, handle: Job[Any], value: Any) -> None:
        if not handle._done:
            handle.settle(value)
        signal = self._signals.pop(id(handle), None)
        if signal is not None:
            signal.forget(id(handle))

    def _refuse_slot(self, slot: SlotEntry, effect: SettleJob) -> None:
        if not slot.granted.done():
            slot.error = stop_error(slot, effect.stop or Stop.CANCEL, effect.reason, lane=effect.lane)
            slot.granted.set_result(None)

    def _keep_dead_letter(self, effect: KeepDeadLetter) -> None:
        job: Job[Any] = effect.entry
        now = self._wall_ms()
        error = job._error
        letter = DeadLetter(
            id=job.id,
            lane=effect.lanes[-1],
            lanes=effect.lanes,
            label=job.spec.label,
            handler=name_of(job._fn),
            args=job._args,
            kwargs={},
            error=repr_of(error) if isinstance(error, Exception) else effect.reason,
            reason=effect.reason,
            attempts=effect.attempts,
            submitted_ms=now - (self.now() - effect.submitted_at),
            died_ms=now,
            history=effect.history,
        )
        fn, names, spec = job._fn, job._names, replace(job.spec, delay_ms=None)

        def again(kept: DeadLetter) -> Job[Any]:
            call = functools.partial(fn, **kept.kwargs) if kept.kwargs else fn
            return self.submit(names, call, kept.args, spec)

        self.dead_letters.keep(letter, again)

    # ---- telling ----

    def subscribe(self, keys: tuple[str, ...], prefix: str, buffer_max: int) -> Subscription:
        """A new stream of events."""
        self.check_caller("subscribe")
        return self._audience.admit(keys, prefix, buffer_max)

    def _note_listening(self, listening: bool) -> None:  # noqa: FBT001 - all there is to say
        self.kernel.listening = listening

    def _publish(self, event: Event) -> None:
        self._audience.tell(replace(event, at_ms=self._wall_ms()))

    def on_change(self, callback: Callable[[Snapshot], object]) -> Callable[[], None]:
        """Call back with a snapshot after every change of running or waiting; returns how to stop that."""
        self._callbacks.append(callback)
        self._seen = self._counts()

        def stop() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return stop

    def _counts(self) -> tuple[int, int, int]:
        return self.kernel.running, self.kernel.waiting, questions.shared_cap(self.kernel)

    def _notify(self) -> None:
        counts = self._counts()
        if counts != self._seen:
            self._seen = counts
            self._snapshots.append(Snapshot(running=counts[0], waiting=counts[1], max_concurrent=counts[2]))
        if self._notifying:
            return  # a callback changed something: its snapshot is told after the one being told
        self._notifying = True
        try:
            while self._snapshots:
                snapshot = self._snapshots.pop(0)
                for callback in list(self._callbacks):
                    try:
                        # In the context of whoever opened the lanes: what it submits belongs to no job.
                        self.context.copy().run(callback, snapshot)
                    except (Exception, asyncio.CancelledError):  # noqa: BLE001 - a callback stops nothing
                        _log.exception("an on_change callback raised")
        finally:
            self._notifying = False

    # ---- time ----

    def _arm(self) -> None:
        due = self.kernel.next_due()
        if due == self._timer_due:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_due = due
        if due is not None:
            delay = max(0, due - self._monotonic_ms()) / 1000
            self._timer = self.loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_due = None
        self._carry_out(self.kernel.tick(now=self._monotonic_ms()))

    # ---- ending ----

    async def wait_idle(self, timeout_ms: int | None = None) -> bool:
        """Wait until no job is live; False when the time is up first."""
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                while self.kernel.jobs:
                    await self._wait_quiet()
        except TimeoutError:
            return False
        return True

    async def _wait_quiet(self) -> None:
        """Wait until nothing runs at some moment (which may be long before everything has ended)."""
        waiter = self.loop.create_future()
        self._quiet.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._quiet:
                self._quiet.remove(waiter)

    def _wake_quiet(self) -> None:
        waiting, self._quiet = self._quiet, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def drain(self, timeout_ms: int | None, purpose: str) -> DrainReport:
        """Take no new work and wait for what there is; at the timeout what has not begun is cancelled."""
        self._refuse_inside("drain")
        self._carry_out(self.kernel.drain(purpose, now=self.now()))
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                while self.kernel.draining is not None and not self._all_can_wait(held_only=True):
                    await self._wait_quiet()
        except TimeoutError:
            pass
        finished = self._all_can_wait(held_only=True)
        cancelled = 0
        if self.kernel.jobs and self.kernel.draining is not None:
            self.durable.leave_waiting("drain")
            before = len(self.kernel.jobs)
            self._carry_out(self.kernel.stop_waiting(None, "drain", now=self.now()))
            cancelled = before - len(self.kernel.jobs)
        if self._audience:
            self._publish(ShutdownCompleted(cancelled=cancelled))
        return DrainReport(finished=finished, cancelled=cancelled, still_running=len(self.kernel.jobs))

    def reopen(self) -> None:
        """End a drain: take work again, and let whoever waits for the drain go on."""
        self.check_caller("reopen")
        self._carry_out(self.kernel.reopen(now=self.now()))
        self.durable.come_back()
        self._wake_quiet()

    async def close(self, *, cancel: bool, timeout_ms: int) -> None:
        """Wait for all jobs (or cancel them), then leave no task, thread or timer behind."""
        if self._closed:
            return
        self._refuse_inside("close")
        try:
            if not cancel:
                await self._wait_out()
        finally:
            try:
                self.durable.begin_close()
                self._cancel_all("the lanes are closing")
                await self.wait_idle(timeout_ms)
            finally:
                tasks = self._shut()
                try:
                    if tasks:
                        await asyncio.wait(tasks)
                finally:
                    await self.durable.close()

    def _refuse_inside(self, call: str) -> None:
        self.check_caller(call)
        current = CURRENT.get()
        node = self.live_node(current) if current is not None else None
        if node is not None:
            raise UsageError(
                f"{call}() inside {node} would wait for {node} itself",
                hint=f"call {call}() outside the jobs of these lanes",
            )

    def _say_what_is_awaited(self) -> None:
        jobs = questions.list_jobs(self.kernel, now=self.now())
        shown = ", ".join(f"{job.label or job.id} ({job.state} in {job.lane!r})" for job in jobs[:5])
        more = f" and {len(jobs) - 5} more" if len(jobs) > 5 else ""
        _log.warning("the lanes are being left and still wait for %s%s", shown, more)

    async def _wait_out(self) -> None:
        """Wait until everything has ended; what nothing will ever start (a paused lane) is cancelled."""
        patience = self.loop.call_later(PATIENCE_S, self._say_what_is_awaited)
        try:
            await self._wait_for_all()
        finally:
            patience.cancel()

    async def _wait_for_all(self) -> None:
        while not self._all_can_wait():
            stuck = questions.stuck(self.kernel)
            for job_id in stuck:
                if job_id in self.kernel.jobs:
                    self.stop(job_id, "nothing would have started it: its lane (or a cap) is paused")
            if not stuck:
                await self._wait_quiet()

    def _all_can_wait(self, *, held_only: bool = False) -> bool:
        return questions.all_can_wait(self.kernel, now=self.now(), held_only=held_only)

    def _cancel_all(self, reason: str) -> None:
        for job_id in list(self.kernel.jobs):
            if self.kernel.can_stop(job_id):
                self.stop(job_id, reason)

    def _shut(self) -> list[asyncio.Task[Any]]:
        """Leave nothing behind: what still runs is abandoned, and whoever awaits it is told.

        Returns tasks that end now: those that wait for a thread (which cannot be ended, but nobody waits for it), and
        those that never took their first step.
        """
        in_threads = list(self._in_threads)
        for task in in_threads:
            task.cancel()
        for job_id in list(self.kernel.jobs):
            self._carry_out(self.kernel.abandon(job_id, "the lanes were closed", now=self.now()))
        self._audience.close()
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pool is not None:
            # Whoever was cancelled does not wait for its thread any more, but the thread may wait for this very loop.
            self._pool.shutdown(wait=not in_threads and not self._busy, cancel_futures=True)
        while self._waits:
            _, waiter = self._waits.popitem()
            if not waiter.done():
                waiter.set_result(None)
        return [*in_threads, *self._unbegun]
