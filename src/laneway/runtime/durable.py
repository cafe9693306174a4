"""Durable jobs: taken only once they are stored, started only once that is stored, gone only once that is stored.

A durable job is a job like any other to the kernel. Around its code the attempt writes its row: `running` before the
code begins, nothing (the row is forgotten) or `failed` after it has ended, and the kernel hears of the end only then.
So what anybody sees is on disk already, and after a crash the rows say what happened:

- `queued`, `scheduled`: it goes on, in its old order, with what is left of its time.
- `running`: it was interrupted. It runs again if its effect is `read` or `idempotent`, at most `CRASHES_MAX` times; a
  `write` becomes a dead letter, for nobody knows whether it had its effect.
- `failed`: its policy decides, as it would have done.

A write that fails is made again until it succeeds, one row at a time to find out whether the store is back, then all of
them. A job whose start could not be written does not start: it is held, and goes on when its row is stored.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from laneway.errors import (
    ClosedError,
    ConfigError,
    DuplicateJobError,
    FencedError,
    InvalidJobError,
    JobFailedError,
    RetryLater,
    UnknownHandlerError,
)
from laneway.kernel.protocol import End, Hold, JobSpec, KeepDeadLetter, RestoredJob, SettleJob, StoreJob
from laneway.ports import Store
from laneway.records import DeadLetter, JobId, JobState, WaitReason
from laneway.runtime.claims import ids_for
from laneway.runtime.endings import called, error_of, repr_of
from laneway.runtime.executor import call_in_thread, ends_process, is_unwinding, needs_thread, outcome_of
from laneway.runtime.garbage import collector_at_rest
from laneway.runtime.handles import CURRENT, Failure, Job, JoinedJob
from laneway.runtime.job_recovery import Moment, load_jobs
from laneway.runtime.job_rows import KIND, JobRecord, RowState, decode_payload, encode_payload
from laneway.runtime.job_writes import AGAIN_FIRST_MS, JobWrites

if TYPE_CHECKING:
    from laneway.runtime.engine import Engine

__all__ = ("Durable", "DurableJob", "run_durable")

# A part of the engine, the owner of the handles.
# ruff: noqa: SLF001

_log = logging.getLogger("laneway")
_BEGUN = (JobState.RUNNING, JobState.LENT)
CLOSE_PATIENCE_MS = 10_000
HANDLER_NAME_MAX = 512


class Handler(NamedTuple):
    """A function that runs durable jobs."""

    fn: Callable[[Any], Any]
    threaded: bool


class DurableJob(Job[Any]):
    """A job that is kept in a store."""

    __slots__ = ("acceptors", "began", "interrupted", "record")

    durable = True

    def __init__(self, engine: Engine, fn: Callable[[Any], Any], record: JobRecord) -> None:
        # In the context of whoever opened the lanes: that of the caller would be gone after a restart.
        names = record.lanes if len(record.lanes) > 1 else record.lanes[0]
        super().__init__(engine, fn, (), engine.context, names)
        self.record = record
        self.began = False  # the start of its newest attempt is stored and its code has begun
        self.interrupted = False  # it is cancelled only because the lanes are closed
        self.acceptors: list[asyncio.Future[None]] | None = None  # those that wait to hear whether it was taken

    def answered(self, error: Exception | None) -> None:
        """The store has answered to a new job."""
        if error is None:
            self.accept(None)
        else:
            self._engine.durable.doubt(self, error)

    def accept(self, error: Exception | None) -> None:
        """It is known whether the job was taken: tell whoever waits to hear so."""
        self.record.pending = False
        acceptors, self.acceptors = self.acceptors, None
        for waiter in acceptors or ():
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)


async def run_durable(engine: Engine, job: DurableJob, number: int) -> None:
    """Run an attempt of a durable job whose start is stored: store its end too, and only then report it."""
    job._begun = job.began = True
    CURRENT.set((engine, job.id, number, None))
    durable = engine.durable
    try:
        job._args = (decode_payload(job.record.payload),)
        value = await call_in_thread(engine, job) if job.threaded else await job._fn(*job._args)
    except BaseException as error:
        if is_unwinding(engine, error):
            raise
        await durable.attempt_raised(job, number, error)
        if ends_process(error):
            raise
    else:
        durable.succeeded(job, number, value)


async def _missing(_payload: Any) -> None:
    raise AssertionError("a job without its handler was started")


class Durable:
    """The durable jobs of one engine: their handlers, their rows and the way to the store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._kernel = engine.kernel
        self.handlers: dict[str, Handler] = {}
        self._workspace = ""
        self._opened = False
        self._closing = False
        self._writes: JobWrites | None = None
        self._homeless: dict[str, list[DurableJob]] = {}  # jobs whose handler is not registered yet, by its name
        self._left: list[JobRecord] = []  # jobs that a drain left in the store
        self._tasks: set[asyncio.Task[None]] = set()

    # ---- opening ----

    async def open(self, store: Store, workspace: str) -> None:
        """Open the store and go on with what it holds; if anything fails, nothing stays open."""
        engine = self._engine
        if self._opened:
            engine.open()  # refuses: it is open, or was closed
        self._opened = True
        try:
            await store.open()
            try:
                moment = Moment(engine.now(), engine.wall_ms(), engine.random.random())
                engine.take_ids(ids_for(engine.ids, store))
                records = await load_jobs(store, workspace, self._kernel, moment)
                engine.open()
                self._go_on_with(records, store, workspace)
            except BaseException:
                await store.close()
                raise
        except BaseException:
            self._opened = False
            raise

    def _go_on_with(self, records: list[JobRecord], store: Store, workspace: str) -> None:
        self._workspace = workspace
        self._writes = JobWrites(store, on_stored=self._go_on, on_fenced=self._let_go)
        letters = [record for record in records if record.state is RowState.DEAD]
        for record in sorted(letters, key=lambda record: (record.ended_ms, record.seq)):
            self._keep_letter(record)
        with collector_at_rest():
            self._restore([record for record in records if record.state is not RowState.DEAD])

    def _restore(self, records: list[JobRecord]) -> None:
        engine, wall_ms = self._engine, self._engine.wall_ms()
        jobs: list[RestoredJob] = []
        for record in records:
            handler = self.handlers.get(record.handler)
            job = DurableJob(engine, handler.fn if handler is not None else _missing, record)
            hold = None
            if handler is None:
                hold = Hold(WaitReason.HANDLER, f"for a handler {record.handler!r}: none of that name is registered")
                self._homeless.setdefault(record.handler, []).append(job)
            jobs.append(
                RestoredJob(
                    record.id,
                    record.lanes,
                    record.spec,
                    job,
                    record.attempt,
                    record.failures,
                    record.deferrals,
                    record.history,
                    max(0, wall_ms - record.submitted_ms),
                    record.due_in_ms(wall_ms),
                    threaded=handler is not None and handler.threaded,
                    hold=hold,
                )
            )
        engine.run(self._kernel.restore(jobs, now=engine.now()))

    # ---- handlers ----

    def register(self, name: str, fn: Callable[[Any], Any]) -> None:
        """From now on jobs of that handler run; those that waited for it start."""
        if not isinstance(name, str) or not 0 < len(name) <= HANDLER_NAME_MAX or not name.isprintable():
            raise ConfigError(
                f"a handler name is 1 to {HANDLER_NAME_MAX} printable characters, not {name!r}", setting="handler"
            )
        if not callable(fn):
            raise InvalidJobError(f"{fn!r} is not callable", hint="pass the function that runs the jobs")
        known = self.handlers.get(name)
        if known is not None and known.fn != fn:
            raise ConfigError(f"handler {name!r} is registered already", setting="handler", hint="use another name")
        handler = self.handlers[name] = Handler(fn, needs_thread(fn))
        waiting = self._homeless.pop(name, ())
        for job in waiting:
            job._fn = fn
        if waiting:
            ids = [job.id for job in waiting]
            self._engine.run(self._kernel.release(ids, handler.threaded, now=self._engine.now()))

    def _find(self, name: object) -> Handler:
        handler = self.handlers.get(name) if isinstance(name, str) else None
        if handler is None:
            raise UnknownHandlerError(handler=str(name), known=tuple(self.handlers)[:10])
        return handler

    # ---- taking jobs ----

    def take(
        self, lanes: tuple[str, ...], name: str, payload: object, spec: JobSpec
    ) -> tuple[Job[Any], asyncio.Future[None] | None]:
        """Take a durable job, or refuse it. It is taken for good when the future (if there is one) says so."""
        engine = self._engine
        engine.check_caller("enqueue")
        if self._writes is None:
            raise ConfigError(
                "durable jobs need a store", setting="store", hint='Lanes(..., store="sqlite:///jobs.db"), for one'
            )
        if self._closing:
            raise ClosedError(opened=True)
        if self._writes.fenced is not None:
            raise self._writes.fenced
        handler, text = self._find(name), encode_payload(payload)
        job = self._with_key(spec, name)
        if job is None:
            job = self._take(lanes, handler, spec, name=name, payload=text, told=True)
        handle: Job[Any] = job if spec.key is None else engine.share(job)
        if job.acceptors is None:
            return handle, None
        waiter = engine.loop.create_future()
        job.acceptors.append(waiter)
        return handle, waiter

    @staticmethod
    def forget_handle(handle: Job[Any]) -> None:
        """Whoever was to get a handle does not want it any more: nobody will ever cancel by it."""
        if isinstance(handle, JoinedJob):
            (handle._primary._handles or {}).pop(id(handle), None)

    def _with_key(self, spec: JobSpec, name: str) -> DurableJob | None:
        """The live job that has the key already."""
        job_id = self._kernel.keys.get((spec.tenant, spec.key)) if spec.key is not None else None
        if job_id is None:
            return None
        primary = self._kernel.jobs[job_id]
        if not isinstance(primary, DurableJob) or primary.record.handler != name:
            raise DuplicateJobError(key=spec.key or "", job_id=job_id)
        return primary

    def _take(  # noqa: PLR0913 - what a job is
        self,
        lanes: tuple[str, ...],
        handler: Handler,
        spec: JobSpec,
        *,
        name: str,
        payload: str,
        told: bool = False,
        replaces: JobRecord | None = None,
    ) -> DurableJob:
        """Give a job to the kernel and its row to the journal; `told` says that somebody waits to hear of it."""
        engine, writes = self._engine, self.writes
        store = writes.store
        seq = store.next_seq()
        wall_ms = engine.wall_ms()
        # Epoch and sequence: no job of this store, finished or not, was ever called so.
        record = JobRecord(
            f"job-{store.epoch}-{seq}",
            seq,
            self._workspace,
            lanes=lanes,
            handler=name,
            payload=payload,
            spec=spec,
            submitted_ms=wall_ms,
        )
        record.replaces = replaces
        job = DurableJob(engine, handler.fn, record)
        current = CURRENT.get()
        up = engine.live_node(current) if current is not None else None
        effects = self._kernel.submit(record.id, lanes, spec, job, engine.now(), up, handler.threaded)
        if job.state is JobState.SCHEDULED:
            record.schedule(spec.delay_ms or 0, wall_ms=wall_ms)
        if told:
            record.pending = True
            job.acceptors = []
            writes.write(record, job.answered)
        else:
            writes.write(record)
        engine.run(effects)
        return job

    def doubt(self, job: DurableJob, error: Exception) -> None:
        """The store has failed to take a new job, as far as anybody knows."""
        job.record.doubt = error
        self._watch(self._resolve(job, error))

    async def _resolve(self, job: DurableJob, error: Exception) -> None:
        """The store has failed: it may have stored the job all the same. Look, and make both sides agree."""
        record, writes = job.record, self.writes
        known, found = not isinstance(error, FencedError), False
        try:
            found = known and await writes.store.history.state(KIND, record.id) is not None
        except Exception:  # noqa: BLE001 - the store is down; whatever it raises, nobody knows
            known = False
        record.doubt = None
        if found and not record.gone:
            job.accept(None)
            return
        record.gone = True
        if found or not known:
            writes.note_unwritten(record, error)  # if it is there after all, it is forgotten when that can be done
        if self._engine.is_open:
            self._engine.abandon(record.id, f"the store did not take it: {error}")
        job.accept(error)

    # ---- what an attempt writes ----

    def start(self, job: DurableJob, number: int) -> None:
        """A job has its slots: its code begins once that is stored."""
        job._begun = job.began = False
        job._task = None
        if number > 1:
            job._ending, job._error = False, None
        record = job.record
        record.state = RowState.RUNNING
        record.attempt = number
        self.writes.write(record, functools.partial(self._started, job, number))

    def _started(self, job: DurableJob, number: int, error: Exception | None) -> None:
        """The store has answered to the start of an attempt."""
        if not self.counts(job, number) or job._ending:
            return  # it was ended meanwhile
        if error is None:
            self._engine.spawn(job, run_durable(self._engine, job, number))
        elif job.acceptors is None:
            self._put_back(job, number, error)
        else:  # it is not known yet whether the job itself was taken; if not, it ends there
            taken: asyncio.Future[None] = self._engine.loop.create_future()
            job.acceptors.append(taken)
            taken.add_done_callback(lambda done: self._put_back(job, number, error) if not done.exception() else None)

    def succeeded(self, job: DurableJob, number: int, value: Any) -> None:
        """The code of an attempt has returned: that is told once it is stored. Its task need not wait for that."""
        if not self.counts(job, number):
            self._engine.attempt_succeeded(job, number, value)
            return
        job._value = value
        job.record.gone = True
        self.writes.write(job.record, functools.partial(self._success_stored, job, number))

    def _success_stored(self, job: DurableJob, number: int, error: Exception | None) -> None:
        if error is not None:
            self._watch(self._succeed_late(job, number))
        elif self.counts(job, number):
            self._engine.attempt_succeeded(job, number, job._value)

    async def _succeed_late(self, job: DurableJob, number: int) -> None:
        await self.writes.recovered(job.record)
        if self.counts(job, number):
            self._engine.attempt_succeeded(job, number, job._value)

    def stop_between(self, job: DurableJob, number: int) -> None:
        """An attempt was asked to end before its code began, or while its success is being stored."""
        if not self.counts(job, number):
            return
        if job._task is None:
            self._engine.attempt_ended(job, number, End.CANCELLED, None)
        elif job._task.done():
            self._engine.attempt_succeeded(job, number, job._value)

    async def attempt_raised(self, job: DurableJob, number: int, error: BaseException) -> None:
        """An attempt raised: note it, if it is an outcome, and report it."""
        engine = self._engine
        if not self.counts(job, number):
            engine.attempt_ended(job, number, *outcome_of(job, error))
        elif isinstance(error, asyncio.CancelledError) and not job._ending:
            self._interrupt(job, number, error)
        elif ends_process(error):
            job.interrupted = True
            engine.attempt_ended(job, number, End.CANCELLED, error, type(error).__name__)
        else:
            end, cause, reason = outcome_of(job, error)
            if isinstance(error, Exception):
                after_ms = error.after_ms if isinstance(error, RetryLater) else 0
                job.record.fail(end, reason, repr_of(error), after_ms=after_ms, wall_ms=engine.wall_ms())
                await self.writes.write_outcome(job.record)
            engine.attempt_ended(job, number, end, cause, reason)

    def never_begun(self, job: DurableJob, number: int) -> None:
        """The task of an attempt was cancelled before its first step, which nobody asked Laneway for."""
        self._engine.attempt_put_back(job, number, End.PUT_BACK, after_ms=AGAIN_FIRST_MS)

    def _put_back(self, job: DurableJob, number: int, error: Exception) -> None:
        """The store did not take the start: the job waits until it has its row again."""
        if self.counts(job, number) and not job._ending:
            self.writes.held[job.id] = None
            hold = Hold(WaitReason.STORE, f"for the store: {error}")
            self._engine.attempt_put_back(job, number, End.PUT_BACK, hold=hold)

    def _interrupt(self, job: DurableJob, number: int, error: BaseException) -> None:
        """Somebody cancelled the task of an attempt, which nobody asked Laneway for: as if the process had ended."""
        record = job.record
        record.interrupt("its task was cancelled from outside", wall_ms=self._engine.wall_ms(), crashed=True)
        if record.state is RowState.DEAD:
            self._engine.attempt_ended(job, number, End.GAVE_UP, error, record.reason)
        else:
            self._engine.attempt_put_back(job, number, End.INTERRUPTED, after_ms=AGAIN_FIRST_MS << record.crashes)

    @staticmethod
    def counts(job: DurableJob, number: int) -> bool:
        """Whether an attempt is still the one that decides; an abandoned one must not touch the row."""
        return job.attempt == number and job.state in _BEGUN

    # ---- what the kernel decides ----

    def note_schedule(self, effect: StoreJob) -> None:
        """A job waits for another attempt."""
        job: DurableJob = effect.entry
        record, engine = job.record, self._engine
        record.gone = False
        record.attempt = job.attempt
        record.remember(job.failures, job.deferrals, job.history)
        if effect.due is None:
            record.state = RowState.QUEUED
        else:
            record.schedule(max(0, effect.due - engine.now()), wall_ms=engine.wall_ms())
        self.writes.write(record)

    def settle(self, job: DurableJob, effect: SettleJob) -> None:
        """A job has ended without a value: that is told once it is stored."""
        record = job.record
        failure = Failure(job, error_of(job, effect), quiet=effect.state is JobState.CANCELLED)
        writes = self.writes
        if record.gone or writes.fenced is not None:
            self._engine.settle(job, failure)
            return
        if effect.state is JobState.DEAD:
            record.state = RowState.DEAD  # the rest comes with the dead letter, the next effect
        elif job.interrupted and effect.state is JobState.CANCELLED:
            if job.began:
                record.interrupt("the lanes were closed", wall_ms=self._engine.wall_ms(), crashed=False)
            else:
                record.state, record.attempt = RowState.QUEUED, record.attempt - 1
            if record.state is RowState.DEAD:
                self._keep_letter(record)
        else:
            record.gone = True
        writes.write(record, functools.partial(self._settled, job, failure))

    def _settled(self, job: DurableJob, failure: Failure, error: Exception | None) -> None:
        if error is None:
            self._engine.settle(job, failure)
        else:
            self._watch(self._settle_late(job, failure))

    async def _settle_late(self, job: DurableJob, failure: Failure) -> None:
        await self.writes.recovered(job.record)
        self._engine.settle(job, failure)

    # ---- dead letters ----

    def keep_dead_letter(self, effect: KeepDeadLetter) -> None:
        """A job died: it stays in the store as a dead letter."""
        job: DurableJob = effect.entry
        record = job.record
        record.remember(job.failures, job.deferrals, list(effect.history))
        error = repr_of(job._error) if isinstance(job._error, Exception) else ""
        record.die(effect.reason, wall_ms=self._engine.wall_ms(), error=error)
        self.writes.write(record)
        self._keep_letter(record)

    def _keep_letter(self, record: JobRecord) -> None:
        def changed(letter: DeadLetter | None) -> None:
            self._engine.check_caller("dead_letters")
            if letter is None:
                record.gone = True
            else:
                record.payload = _only_argument(letter)
            self.writes.write(record)

        self._engine.dead_letters.keep(record.to_letter(), functools.partial(self._send_again, record), changed)

    def _send_again(self, record: JobRecord, letter: DeadLetter) -> Job[Any]:
        """A dead letter becomes a new job; its own row goes with the first write of the new one."""
        engine = self._engine
        engine.check_caller("retry")
        handler, payload = self._find(record.handler), _only_argument(letter)
        spec = replace(record.spec, delay_ms=None)
        job = self._with_key(spec, record.handler)
        if job is None:
            job = self._take(record.lanes, handler, spec, name=record.handler, payload=payload, replaces=record)
        else:
            record.gone = True
            self.writes.write(record)
        return job if spec.key is None else engine.share(job)

    # ---- what the store brings about ----

    @property
    def writes(self) -> JobWrites:
        """The way to the store, which is open as long as there are durable jobs."""
        assert self._writes is not None
        return self._writes

    def _go_on(self, job_ids: list[JobId]) -> None:
        """The rows of jobs that waited for the store are written."""
        self._engine.run(self._kernel.release(job_ids, now=self._engine.now()))

    def _let_go(self, error: FencedError) -> None:
        """Somebody else owns the store now, and with it the jobs."""
        _log.error("the durable jobs of workspace %r belong to another owner now: %s", self._workspace, error)
        for job in self._jobs():
            self._engine.abandon(job.id, f"another owner has the store: {error}")

    def _jobs(self) -> list[DurableJob]:
        return [job for job in self._kernel.jobs.values() if isinstance(job, DurableJob)]

    def _watch(self, coroutine: Any) -> None:
        task = self._engine.loop.create_task(coroutine, name="laneway-durable")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # ---- ending ----

    def leave_waiting(self, reason: str) -> None:
        """What has not begun stays in the store; whoever awaits it is told."""
        jobs = [job for job in self._jobs() if job.state not in _BEGUN]
        if not jobs:
            return
        engine = self._engine
        effects = self._kernel.leave([job.id for job in jobs], now=engine.now())
        self._homeless.clear()
        for job in jobs:
            self.writes.held.pop(job.id, None)
            self._left.append(job.record)
            text = f"job {called(job.id, job.spec.label)} in lane {job.lane_name!r} stays in the store: {reason}"
            hint = "it runs when the store is opened again"
            error = JobFailedError(text, job_id=job.id, lane=job.lane_name, reason=reason, hint=hint)
            engine.settle(job, Failure(job, error, quiet=True))
        engine.run(effects)

    def come_back(self) -> None:
        """A drain was ended: go on with the jobs that it had left in the store."""
        left, self._left = [record for record in self._left if not record.gone], []
        if left:
            self._restore(left)

    def begin_close(self) -> None:
        """Nothing durable is cancelled because a process ends: what waits stays, what runs is interrupted."""
        if self._writes is None:
            return
        self._closing = True
        self.leave_waiting("the lanes were closed")
        for job in self._jobs():
            if job.stop is None:
                job.interrupted = True

    async def close(self) -> None:
        """Wait until everything is written (or cannot be), and close the store."""
        writes = self._writes
        if writes is None:
            return
        self._closing = True
        try:
            async with asyncio.timeout(CLOSE_PATIENCE_MS / 1000):
                await writes.settled()
                while self._tasks:
                    await asyncio.wait(self._tasks)
                    await writes.settled()
                await writes.close(self._workspace)
        except TimeoutError:
            _log.error("the store did not answer within %s ms; it is closed all the same", CLOSE_PATIENCE_MS)
        finally:
            writes.shut()
            await writes.store.close()


def _only_argument(letter: DeadLetter) -> str:
    if len(letter.args) != 1 or letter.kwargs:
        raise InvalidJobError(
            f"durable job {letter.id!r} takes one argument, its payload", hint="edit(job_id, args=[payload])"
        )
    return encode_payload(letter.args[0])
