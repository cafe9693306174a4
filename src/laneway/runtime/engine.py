"""The engine: the single writer. It hands commands to the kernel and carries out what comes back, in order.

Everything here runs on the loop that opened it and nothing awaits between a decision and its effects, so there is
no lock anywhere. One timer is armed, for the next moment the kernel has something to do; with nothing to do there
is none, and the loop sleeps.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from typing import Any, assert_never

from laneway.errors import (
    ClosedError,
    DuplicateJobError,
    GiveUp,
    JobAbortedError,
    JobCancelledError,
    JobFailedError,
    JobTimeoutError,
    LanewayError,
    RetryLater,
    UnknownJobError,
    WaitTimeoutError,
    WrongThreadError,
)
from laneway.events import Event, ShutdownCompleted
from laneway.kernel import explain as questions
from laneway.kernel.protocol import (
    CancelAttempt,
    Effect,
    End,
    JobSpec,
    KeepDeadLetter,
    Publish,
    ResumeWait,
    SettleJob,
    StartJob,
    Stop,
)
from laneway.kernel.scheduler import Kernel
from laneway.ports import Clock, Ids, Random
from laneway.records import DeadLetter, DrainReport, Explanation, JobId, JobState, Snapshot, WaitReason
from laneway.runtime.dead_letters import DeadLetters
from laneway.runtime.executor import name_of, needs_thread, run_attempt
from laneway.runtime.handles import CURRENT, Attempt, Failure, Job, Share, SlotNode
from laneway.runtime.signals import AbortSignal
from laneway.runtime.subscriptions import Subscription

_log = logging.getLogger("laneway")


class Engine:
    """One kernel on one event loop."""

    def __init__(self, kernel: Kernel, *, clock: Clock, ids: Ids, random: Random, dlq_max_size: int) -> None:
        self.kernel = kernel
        self._clock = clock
        self._ids = ids
        self._random = random
        self.dead_letters = DeadLetters(dlq_max_size)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._closed = False
        self._pool: ThreadPoolExecutor | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due: int | None = None
        self._waits: dict[int, asyncio.Future[None]] = {}
        self._next_wait = 0
        self._idle: list[asyncio.Future[None]] = []
        self._subscriptions: list[Subscription] = []
        self._callbacks: list[Callable[[Snapshot], object]] = []
        self._snapshots: list[Snapshot] = []
        self._seen = (0, 0, 0)
        self._notifying = False
        self._started: set[Attempt] = set()  # attempts whose code still runs, the abandoned ones included
        self._signals: dict[int, AbortSignal] = {}  # which signal a handle listens to
        self._histories: dict[JobId, list[str]] = {}  # what went wrong so far in jobs that may run again

    # ---- opening ----

    def open(self) -> None:
        """Belong to the running loop from now on."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._seen = self._counts()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop it belongs to."""
        if self._loop is None:
            raise ClosedError(opened=False)
        return self._loop

    def check_caller(self, call: str) -> None:
        """Refuse callers on other threads, before opening and after closing."""
        if threading.get_ident() != self._thread or self._closed:
            if self._loop is None or self._closed:
                raise ClosedError(opened=self._loop is not None)
            raise WrongThreadError(call=call)

    # ---- jobs ----

    def submit(
        self,
        lanes: tuple[str, ...],
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        spec: JobSpec,
        signal: AbortSignal | None = None,
    ) -> Job[Any]:
        """Give a job to the kernel and carry out what it says."""
        if threading.get_ident() != self._thread or self._closed:
            self.check_caller("submit")
        if signal is not None and signal.aborted:
            raise JobAbortedError(
                f"its signal had fired already: {signal.reason}",
                job_id="",
                lane=lanes[-1],
                reason=signal.reason or "",
            )
        if spec.key is not None:
            joined = self._join(spec, fn)
            if joined is not None:
                self._listen(joined, signal)
                return joined
        job: Job[Any] = Job(self, JobId(self._ids.new_id("job")), (fn, args, copy_context()), lanes, spec)
        current = CURRENT.get()
        up = self._live_node(current) if current is not None else None
        effects = self.kernel.submit(
            job.id, lanes, spec, job, now=self._clock.monotonic_ms(), up=up, threaded=needs_thread(fn)
        )
        if spec.key is not None:
            job._share = Share(job)  # noqa: SLF001 - the engine owns its handles
        if signal is not None:
            self._listen(job, signal)
        self._carry_out(effects)
        return job

    def _join(self, spec: JobSpec, fn: Callable[..., Any]) -> Job[Any] | None:
        job_id = self.kernel.keys.get((spec.tenant, spec.key or ""))
        if job_id is None:
            return None
        primary: Job[Any] = self.kernel.jobs[job_id].payload
        if primary._fn != fn:  # noqa: SLF001 - the engine owns its handles
            raise DuplicateJobError(key=spec.key or "", job_id=job_id)
        share = primary._share  # noqa: SLF001
        assert share is not None
        handle: Job[Any] = Job(self, job_id, (fn, (), copy_context()), primary._lanes, primary._spec)  # noqa: SLF001
        handle._share = share  # noqa: SLF001
        share.handles[id(handle)] = handle
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
        if job.done() or self._closed:
            return False
        self.check_caller("cancel")
        share = job._share  # noqa: SLF001 - the engine owns its handles
        if share is not None and id(job) in share.handles and len(share.handles) > 1:
            del share.handles[id(job)]
            job.settle(JobState.CANCELLED, Failure(job.id, _stop_error(job, stop, reason), quiet=True))
            return True
        return self.stop(job.id, reason, stop)

    def stop(self, job_id: JobId, reason: str, stop: Stop = Stop.CANCEL) -> bool:
        """End a live job. False: it is being ended already (or is a slot in use)."""
        if job_id not in self.kernel.jobs:
            raise UnknownJobError(job_id=job_id)
        if not self.kernel.can_stop(job_id):
            return False
        self._carry_out(self.kernel.stop(job_id, stop, reason, now=self.now()))
        return True

    def state_of(self, job: Job[Any]) -> JobState:
        """The state of a live job."""
        entry = self.kernel.jobs.get(job.id)
        assert entry is not None
        return entry.state

    def explain_handle(self, job: Job[Any]) -> Explanation:
        """Why a job is where it is, ended ones included."""
        if job.done() or job.id not in self.kernel.jobs:
            return Explanation(
                job_id=job.id,
                state=job.state,
                reason=WaitReason.NOTHING,
                detail=f"{job.id} has ended: {job.state}",
                lane=job._lanes[-1],  # noqa: SLF001 - the engine owns its handles
                position=None,
                estimate_ms=None,
                until_ms=None,
                blocked_by=(),
            )
        return questions.explain(self.kernel, job.id, now=self.now(), wall_ms=self._clock.wall_ms())

    # ---- waiting ----

    async def wait_for(self, job: Job[Any]) -> None:
        """Wait until a job has ended; from inside another job, lend what that one holds."""
        self.check_caller("await job")
        current = CURRENT.get()
        node = self._live_node(current) if current is not None else None
        if node is not None and job.id in self.kernel.jobs:
            await self._wait_inside(node, job.id)
            if job.done():
                return
        waiter = self.loop.create_future()
        if job._waiters is None:  # noqa: SLF001 - the engine owns its handles
            job._waiters = [waiter]  # noqa: SLF001
        else:
            job._waiters.append(waiter)  # noqa: SLF001
        try:
            await waiter
        finally:
            if job._waiters is not None and not job.done():  # noqa: SLF001
                job._waiters.remove(waiter)  # noqa: SLF001

    async def _wait_inside(self, node: JobId, target: JobId) -> None:
        """A job waits for a job: the kernel says when it may go on."""
        self._next_wait += 1
        wait_id = self._next_wait
        self._waits[wait_id] = self.loop.create_future()
        try:
            effects = self.kernel.begin_wait(wait_id, node, target, now=self.now())
        except LanewayError:
            del self._waits[wait_id]
            raise
        self._carry_out(effects)
        cancelled: asyncio.CancelledError | None = None
        while (future := self._waits.get(wait_id)) is not None and not future.done():
            try:
                await future
            except asyncio.CancelledError as error:
                # The wait is over when the kernel says so: heirs of an exclusive lane have to end first.
                if cancelled is None:
                    cancelled = error
                    self._waits[wait_id] = self.loop.create_future()
                    self._carry_out(self.kernel.cancel_wait(wait_id, now=self.now()))
                else:
                    self._waits[wait_id] = self.loop.create_future()
        self._waits.pop(wait_id, None)
        if cancelled is not None:
            raise cancelled

    def _live_node(self, current: Attempt | SlotNode) -> JobId | None:
        """The job that the calling code runs in, if it is one of ours and this attempt of it still counts."""
        if current.engine is not self:
            return None
        job_id = current.job.id if isinstance(current, Attempt) else current.id
        entry = self.kernel.jobs.get(job_id)
        if entry is None or entry.attempt != current.number or entry.state not in (JobState.RUNNING, JobState.LENT):
            return None
        return job_id

    # ---- slots ----

    async def acquire_slot(self, lanes: tuple[str, ...], spec: JobSpec) -> SlotNode:
        """Wait for a slot; if the wait is cancelled the request is withdrawn."""
        self.check_caller("slot")
        node = SlotNode(self, JobId(self._ids.new_id("slot")))
        node.granted = self.loop.create_future()
        current = CURRENT.get()
        up = self._live_node(current) if current is not None else None
        effects = self.kernel.submit(node.id, lanes, spec, node, now=self.now(), up=up, is_slot=True)
        self._carry_out(effects)
        try:
            if up is not None and not node.granted.done():
                await self._wait_inside(up, node.id)
            if not node.granted.done():
                await node.granted
        except BaseException:
            self._withdraw_slot(node)
            raise
        if node.error is not None:
            raise node.error
        return node

    def _withdraw_slot(self, node: SlotNode) -> None:
        entry = self.kernel.jobs.get(node.id)
        if entry is None:
            return
        if entry.state in (JobState.RUNNING, JobState.LENT):
            self.release_slot(node)
        else:
            self._carry_out(self.kernel.stop(node.id, Stop.CANCEL, "the wait was cancelled", now=self.now()))

    def release_slot(self, node: SlotNode) -> None:
        """Give a slot back."""
        if node.id in self.kernel.jobs:
            self._carry_out(self.kernel.finish(node.id, 1, now=self.now()))

    # ---- carrying out ----

    def now(self) -> int:
        """Monotonic milliseconds."""
        return self._clock.monotonic_ms()

    def wall_ms(self) -> int:
        """Wall-clock milliseconds."""
        return self._clock.wall_ms()

    def run(self, effects: list[Effect]) -> None:
        """Carry out the effects of a command that a façade gave to the kernel."""
        self._carry_out(effects)

    def attempt_ended(self, attempt: Attempt, end: End, result: Any, *, reason: str = "", after_ms: int = 0) -> None:
        """The code of an attempt has ended."""
        self._started.discard(attempt)
        if self._closed:
            return
        job = attempt.job
        if end is End.SUCCEEDED:
            attempt.value = result
            effects = self.kernel.finish(job.id, attempt.number, now=self._clock.monotonic_ms())
            if not effects and job._state is not None:  # noqa: SLF001
                _log.info("late result of abandoned attempt %s of %s ignored", attempt.number, job.id)
        else:
            attempt.error = result
            if job._spec.retry is not None or end is not End.CANCELLED:  # noqa: SLF001
                self._histories.setdefault(job.id, []).append(f"attempt {attempt.number}: {reason}")
            effects = self.kernel.finish(
                job.id,
                attempt.number,
                end,
                now=self.now(),
                reason=reason,
                after_ms=after_ms,
                jitter=self._random.random(),
            )
        self._carry_out(effects)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case StartJob(payload, _, number):
                    self._start(payload, number)
                case SettleJob():
                    self._settle(effect)
                case Publish(event):
                    self._publish(event)
                case CancelAttempt(payload, _, number):
                    self._cancel_attempt(payload, number)
                case ResumeWait(wait_id):
                    waiter = self._waits.get(wait_id)
                    if waiter is not None and not waiter.done():
                        waiter.set_result(None)
                case KeepDeadLetter():
                    self._keep_dead_letter(effect)
                case _:
                    assert_never(effect)
        if self._timer_due is not None or len(self.kernel.timers):
            self._arm()
        if self._callbacks:
            self._notify()
        if self._idle and not self.kernel.running:
            self._wake_idle()

    def _start(self, payload: Job[Any] | SlotNode, number: int) -> None:
        if type(payload) is SlotNode:
            assert payload.granted is not None
            payload.granted.set_result(None)
            return
        assert isinstance(payload, Job)
        attempt = Attempt(self, payload, number, threaded=needs_thread(payload.call[0]))
        payload._run = attempt  # noqa: SLF001 - the engine owns its handles
        self._started.add(attempt)
        attempt.task = self.loop.create_task(run_attempt(attempt), context=payload._context)  # noqa: SLF001

    def _cancel_attempt(self, payload: Job[Any], number: int) -> None:
        attempt = payload._run  # noqa: SLF001 - the engine owns its handles
        if attempt is None or attempt.number != number or attempt.task is None:
            return
        attempt.ending = True
        if attempt.in_thread:
            return  # a thread cannot be cancelled: the kernel waits for it, or abandons it
        attempt.task.cancel()
        if not attempt.begun:
            # A task that is cancelled before its first step never runs: report its end in its place.
            self.loop.call_soon(self.attempt_ended, attempt, End.CANCELLED, None)

    def run_in_thread(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Call a sync function on the pool, which grows to the sync jobs that run."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.kernel.threads.cap, thread_name_prefix="laneway")
        return self.loop.run_in_executor(self._pool, call)

    # ---- ends ----

    def _settle(self, effect: SettleJob) -> None:
        payload = effect.payload
        if type(payload) is SlotNode:
            if payload.granted is not None and not payload.granted.done():
                payload.error = _slot_error(payload.id, effect)
                payload.granted.set_result(None)
            return
        job: Job[Any] = payload
        state = effect.state
        if state is JobState.SUCCEEDED:
            run = job._run  # noqa: SLF001 - the engine owns its handles
            assert run is not None
            result = run.value
        else:
            error = self._error_of(job, effect)
            # Whoever cancelled a job knows; only errors that nobody asked for are worth a line in the log.
            result = Failure(job.id, error, quiet=state is JobState.CANCELLED)
        if self._histories:
            self._histories.pop(job.id, None)
        share = job._share  # noqa: SLF001
        handles = [job] if share is None else list(share.handles.values())
        for handle in handles:
            handle.settle(state, result)
            if self._signals and (signal := self._signals.pop(id(handle), None)) is not None:
                signal.forget(id(handle))

    def _error_of(self, job: Job[Any], effect: SettleJob) -> BaseException:
        lane = job._lanes[-1]  # noqa: SLF001 - the engine owns its handles
        if effect.stop is not None and effect.state is not JobState.DEAD:
            return _stop_error(job, effect.stop, effect.reason, abandoned=effect.abandoned)
        run = job._run  # noqa: SLF001
        own = run.error if run is not None else None
        if effect.state is JobState.CANCELLED:
            return JobCancelledError(
                f"job {job.id} in lane {lane!r} was cancelled from inside: {effect.reason}",
                job_id=job.id,
                lane=lane,
                reason=effect.reason,
            )
        from_signal = own is None or not isinstance(own, Exception) or _is_signal(own)
        if own is not None and not from_signal:
            note = f"in lane {lane!r}, job {job.id}, attempt {effect.attempt}"
            if note not in getattr(own, "__notes__", ()):
                own.add_note(note)
            return own
        error = JobFailedError(
            f"job {job.id} in lane {lane!r} failed after {effect.attempt} attempts: {effect.reason}",
            job_id=job.id,
            lane=lane,
            reason=effect.reason,
        )
        error.__cause__ = own
        return error

    def _keep_dead_letter(self, effect: KeepDeadLetter) -> None:
        job: Job[Any] = effect.payload
        now = self.wall_ms()
        run = job._run  # noqa: SLF001 - the engine owns its handles
        error = run.error if run is not None else None
        letter = DeadLetter(
            id=job.id,
            lane=effect.lanes[-1],
            lanes=effect.lanes,
            label=job._spec.label,  # noqa: SLF001
            handler=name_of(job._fn),  # noqa: SLF001
            args=job._args,  # noqa: SLF001
            kwargs={},
            error=repr(error) if error is not None else effect.reason,
            reason=effect.reason,
            attempts=effect.attempts,
            submitted_ms=now - (self.now() - effect.submitted_at),
            died_ms=now,
            history=tuple(self._histories.pop(job.id, ())),
        )
        fn, spec = job._fn, replace(job._spec, delay_ms=None)  # noqa: SLF001

        def again(kept: DeadLetter) -> Job[Any]:
            return self.submit(kept.lanes, fn, kept.args, spec)

        self.dead_letters.keep(letter, again)

    # ---- telling ----

    def subscribe(self, keys: tuple[str, ...], buffer_max: int) -> Subscription:
        """A new stream of events."""
        self.check_caller("subscribe")
        subscription = Subscription(frozenset(keys), buffer_max=buffer_max, on_close=self._unsubscribe)
        self._subscriptions.append(subscription)
        self.kernel.listening = True
        return subscription

    def _unsubscribe(self, subscription: Subscription) -> None:
        if subscription in self._subscriptions:
            self._subscriptions.remove(subscription)
        self.kernel.listening = bool(self._subscriptions)

    def _publish(self, event: Event) -> None:
        stamped = replace(event, at_ms=self._clock.wall_ms())
        for subscription in list(self._subscriptions):
            if subscription.wants(stamped):
                subscription.push(stamped)

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
                        callback(snapshot)
                    except Exception:
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
            delay = max(0, due - self._clock.monotonic_ms()) / 1000
            self._timer = self.loop.call_later(delay, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_due = None
        self._carry_out(self.kernel.tick(now=self._clock.monotonic_ms()))

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
        self._idle.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._idle:
                self._idle.remove(waiter)

    def _wake_idle(self) -> None:
        waiting, self._idle = self._idle, []
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    async def drain(self, timeout_ms: int | None, purpose: str) -> DrainReport:
        """Take no new work and wait for what there is; at the timeout what has not begun is cancelled."""
        self.check_caller("drain")
        self._carry_out(self.kernel.drain(purpose, now=self.now()))
        finished = await self.wait_idle(timeout_ms)
        cancelled = 0
        if not finished:
            before = len(self.kernel.jobs)
            self._carry_out(self.kernel.stop_waiting(None, "drain", now=self.now()))
            cancelled = before - len(self.kernel.jobs)
        if self._subscriptions:
            self._publish(ShutdownCompleted(cancelled=cancelled))
        return DrainReport(finished=finished, cancelled=cancelled, still_running=len(self.kernel.jobs))

    async def close(self, *, cancel: bool, timeout_ms: int) -> None:
        """Wait for all jobs (or cancel them), then leave no task, thread or timer behind."""
        if self._closed:
            return
        self.check_caller("close")
        if not cancel:
            await self._wait_out()
        self.cancel_all("the lanes are closing")
        await self.wait_idle(timeout_ms)
        self._shut()

    async def _wait_out(self) -> None:
        """Wait until everything has ended or only jobs in paused lanes are left, which nobody will start."""
        while self.kernel.jobs:
            stuck = questions.stuck_in_paused(self.kernel)
            if stuck:
                for job_id in stuck:
                    self.stop(job_id, "its lane is paused and the lanes are closing")
                continue
            await self._wait_quiet()

    def cancel_all(self, reason: str) -> int:
        """Cancel everything that is live."""
        live = [job_id for job_id in self.kernel.jobs if self.kernel.can_stop(job_id)]
        for job_id in live:
            if job_id in self.kernel.jobs:
                self.stop(job_id, reason)
        return len(live)

    def _shut(self) -> None:
        for subscription in list(self._subscriptions):
            subscription.close()
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._pool is not None:
            self._pool.shutdown(wait=not any(attempt.in_thread for attempt in self._started), cancel_futures=True)
        for waiter in self._waits.values():
            if not waiter.done():
                waiter.set_result(None)


def _is_signal(error: BaseException) -> bool:
    return isinstance(error, RetryLater | GiveUp)


def _stop_error(job: Job[Any], stop: Stop, reason: str, *, abandoned: bool = False) -> JobFailedError:
    lane = job._lanes[-1]  # noqa: SLF001 - same layer
    where = f"job {job.id} in lane {lane!r}"
    why = f": {reason}" if reason else ""
    if abandoned:
        why += "; it did not stop within its grace and was abandoned, what it does outside cannot be undone"
    match stop:
        case Stop.CANCEL:
            return JobCancelledError(f"{where} was cancelled{why}", job_id=job.id, lane=lane, reason=reason)
        case Stop.ABORT:
            return JobAbortedError(f"{where} was aborted{why}", job_id=job.id, lane=lane, reason=reason)
        case Stop.TIMEOUT:
            return JobTimeoutError(f"{where} timed out{why}", job_id=job.id, lane=lane, reason=reason)
        case Stop.WAIT_TIMEOUT:
            return WaitTimeoutError(f"{where} never started{why}", job_id=job.id, lane=lane, reason=reason)
        case _:
            assert_never(stop)


def _slot_error(slot_id: JobId, effect: SettleJob) -> JobFailedError:
    kinds = {Stop.ABORT: JobAbortedError, Stop.WAIT_TIMEOUT: WaitTimeoutError, Stop.TIMEOUT: JobTimeoutError}
    kind = kinds.get(effect.stop, JobCancelledError) if effect.stop is not None else JobCancelledError
    return kind(f"slot {slot_id} was not granted: {effect.reason}", job_id=slot_id, reason=effect.reason)
