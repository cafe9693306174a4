"""The lanes of one session: control, query, execute and generate, in the `Lanes` that all sessions of a process share.

`<session>/execute` is a lane like any other, with the width, the timeout and the limits that the session's settings
give it. The session is the only one to put jobs there, so everything that it has to tell about them is known here
without listening to all events of the process: alerts are read off the lane after each change, retries and dead
letters off the job when an attempt has ended.

A model call takes `generate` of its session and the lane of the model, in the order of their configuration. Where many
calls share a narrow lane of a model, `generate` should come first, so that a session that waits for itself holds up
nobody: let the shared lanes know `control`, `query`, `execute` and `generate` before any lane of a model.

With `storage_path`, submitted payloads and dead letters are rows in that folder (see `queue_store`); the calls still
run here, in the same lanes as all others.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import quote

from laneway.agent.queue_records import (
    ByLane,
    DeadCommand,
    LaneQueueStats,
    QueueMetrics,
    QueueStats,
    arguments_in,
    histogram,
    tool_call,
)
from laneway.agent.queue_store import QueueStore, StoredCommand
from laneway.agent_events import AgentEvent, CommandDeadLetteredEvent, CommandRetryEvent, QueueAlertEvent
from laneway.dialogue import ToolSpec
from laneway.errors import (
    ClosedError,
    InvalidJobError,
    LanewayError,
    RetryLater,
    UnknownJobError,
    describe,
    text_of,
)
from laneway.kernel.histograms import Histogram
from laneway.kernel.jobs import backoff_ms
from laneway.kernel.lanes import Counters
from laneway.lanes import JobOptions, Lanes
from laneway.options import SESSION_LANES, LaneHandlerConfig, SessionQueueConfig, lane_named, one_of
from laneway.records import DURATION_MAX_MS, Effect, JobState, LaneConfig, RetryPolicy
from laneway.runtime.executor import needs_thread

if TYPE_CHECKING:
    from laneway.kernel.lanes import Lane
    from laneway.runtime.handles import Job

__all__ = ("RunPayload", "SessionLanes")

T = TypeVar("T")
Run = Callable[[int], Awaitable[Any]]

NAME_MAX = 200
CLOSE_PATIENCE_MS = 10_000
ALERTS = ("", "warning", "critical")
DIED = (JobState.FAILED, JobState.TIMED_OUT, JobState.DEAD)
INTERNAL = LaneHandlerConfig()
INTERRUPTED = "the process ended while it ran; nobody knows whether it had its effect"

_log = logging.getLogger("laneway")


class RunPayload(Protocol):
    """What a session gives its lanes so that a payload can be run: it calls a tool, gates included."""

    def __call__(self, tool: str, arguments: Mapping[str, Any], *, attempt: int) -> Awaitable[Any]:
        """Call a tool of the session."""


class _Command:
    """Something that was put into a lane of the session."""

    __slots__ = (
        "effect",
        "error",
        "function",
        "given_up",
        "is_model",
        "job",
        "lane",
        "payload",
        "row",
        "run",
        "told",
        "tool",
    )

    job: Job[Any]

    def __init__(
        self, lane: str, tool: str, effect: Effect, run: Run, payload: Mapping[str, Any] | None = None
    ) -> None:
        self.lane = lane
        self.tool = tool
        self.effect = effect
        self.run = run
        self.payload = payload  # None: it is no call of a tool
        self.function: Callable[[], Any] | None = None  # a sync function, which runs on a thread
        self.is_model = False
        self.given_up = False  # whoever wanted it does not any more
        self.error: BaseException | None = None  # of its newest attempt
        self.told = 0  # the newest attempt of which it was told that another follows
        self.row: StoredCommand | None = None

    @property
    def id(self) -> str:
        return self.row.id if self.row is not None else self.job.id

    def again(self) -> _Command:
        """The same, to be put in once more."""
        other = _Command(self.lane, self.tool, self.effect, self.run, self.payload)
        other.function = self.function
        return other


class SessionLanes:
    """The lanes of one session and what is in them.

    `on_event` hears of retries, dead letters and alerts. `run_payload` calls a tool (payloads that are submitted, dead
    letters that are sent again); `spec_of` says what a tool is, so that its effect decides about retries.
    """

    def __init__(  # noqa: PLR0913 - keyword-only: what the session lends it
        self,
        lanes: Lanes,
        name: str,
        config: SessionQueueConfig,
        *,
        on_event: Callable[[AgentEvent], None],
        run_payload: RunPayload | None = None,
        spec_of: Callable[[str], ToolSpec | None] | None = None,
    ) -> None:
        self._config = config = config.copy()  # checked again: its mappings may have been changed from outside
        self._lanes = lanes
        self._kernel = lanes.engine.kernel
        self._on_event = on_event
        self._run_payload = run_payload
        self._spec_of = spec_of
        self._retry = config.retry_policy.to_retry() if config.retry_policy is not None else RetryPolicy.none()
        self._store = QueueStore.at(config.storage_path, name) if config.storage_path is not None else None
        self.name = name
        self.scope = self._free_scope(name)
        lanes.scope(self.scope, {lane: self._lane_config(lane) for lane in SESSION_LANES})
        self._live: dict[str, _Command] = {}
        self._letters: dict[str, tuple[DeadCommand, _Command]] = {}
        self._died = dict.fromkeys(SESSION_LANES, 0)
        self._model_runs = Histogram()
        self._model_waits = Histogram()
        self._alerted: dict[str, tuple[int, bool]] = {}
        self._opening: asyncio.Task[None] | None = None
        self._opened = False  # the store is open
        self._writes: set[asyncio.Task[None]] = set()
        self._closed = False

    # ---- making and ending ----

    def _free_scope(self, name: str) -> str:
        """A scope of its own: two sessions of one name in one process do not share their lanes."""
        safe = quote(name, safe=":@+=~")
        if not 0 < len(safe) <= NAME_MAX:
            safe = f"{safe[:NAME_MAX]}~{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:16]}"
        scope, number = safe, 1
        while f"{scope}/{SESSION_LANES[0]}" in self._kernel.registry.lanes:
            number += 1
            scope = f"{safe}~{number}"
        return scope

    def _lane_config(self, lane: str) -> LaneConfig:
        config = self._config
        return LaneConfig(
            concurrency=config.concurrency_of(lane),
            priority=SESSION_LANES.index(lane),
            timeout_ms=config.timeout_of(lane),
            rate_limit=config.rate_limit.to_rate_limit() if config.rate_limit is not None else None,
            boost=config.priority_boost.to_boost() if config.priority_boost is not None else None,
            pressure_threshold=config.pressure_threshold,
            alert_warning=50 if config.enable_alerts else None,
            alert_critical=100 if config.enable_alerts else None,
        )

    @property
    def config(self) -> SessionQueueConfig:
        """The settings; a copy."""
        return self._config.copy()

    async def open(self) -> None:
        """With `storage_path`: open the store and go on with what it holds. Calling it again changes nothing."""
        if self._store is None:
            return
        self._check_open()
        if self._opening is None or (self._opening.done() and not self._opened):
            self._opening = self._loop.create_task(self._go_on(self._store), name=f"laneway-queue {self.name}")
        await asyncio.shield(self._opening)

    async def _go_on(self, store: QueueStore) -> None:
        rows = await store.open()
        self._opened = True
        for row in rows:
            if self._closed:
                return  # they stay where they are
            again = row.state == "queued" or (row.state == "running" and row.effect is not Effect.WRITE)
            command = self._command(row.lane, row.tool, row.payload, row.effect)
            command.row = row
            if again:
                self._launch(command, timeout_ms=row.timeout_ms)
                continue
            if row.state == "running":
                row.state, row.error, row.failed_at = "dead", INTERRUPTED, self._lanes.engine.wall_ms()
                if not self._config.enable_dlq:
                    _log.warning("%s in %s is forgotten: %s", row.tool, self.name, INTERRUPTED)
                    await store.forget(row.id)
                    continue
                await store.write(row)
            self._keep_letter(command, row.to_letter())

    async def close(self, reason: str = "the session was closed") -> None:
        """End what is in the lanes and forget the lanes; payloads in a store stay there. Twice is once."""
        if self._closed:
            return
        self._closed = True
        running = [command.job for command in self._live.values()]
        for job in running:
            job.cancel(reason)
        ended = [self._end_of(job) for job in running if not job.done()]
        if ended:
            await asyncio.wait(ended, timeout=CLOSE_PATIENCE_MS / 1000)
        kernel, now = self._kernel, self._lanes.engine.now()
        for lane in SESSION_LANES:
            kernel.registry.forget(self._full(lane), kernel.jobs.values(), now)
        self._letters.clear()
        if self._store is not None and self._opening is not None:
            await asyncio.gather(self._opening, return_exceptions=True)
            while self._writes:
                await asyncio.wait(self._writes)
            if self._opened:
                await self._store.close()

    def _end_of(self, job: Job[Any]) -> asyncio.Future[None]:
        ended: asyncio.Future[None] = self._loop.create_future()
        job.add_done_callback(lambda _: None if ended.done() else ended.set_result(None))
        return ended

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        return self._lanes.engine.loop

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(opened=True, what="session")

    def _full(self, lane: str) -> str:
        return f"{self.scope}/{lane}"

    # ---- what the agent loop puts in ----

    def submit_tool(
        self,
        spec: ToolSpec,
        run: Callable[[int], Awaitable[T]],
        *,
        lane: str,
        payload: Mapping[str, Any],
        label: str = "",
    ) -> Job[T]:
        """Run a call of a tool in a lane; `run` gets the number of the attempt, from 1.

        It runs again by itself only if the effect of the tool is `read` or `idempotent` and the settings have a retry
        policy. Its own timeout wins over that of the lane.
        """
        self._check_open()
        arguments = arguments_in(payload) if payload.get("tool") == spec.name else dict(payload)
        command = _Command(lane_named(lane), spec.name, spec.effect, run, arguments)
        return self._launch(command, timeout_ms=spec.timeout_ms, label=label or spec.name)

    def submit_model(self, run: Callable[[int], Awaitable[T]], *, model_lane: str, label: str = "model") -> Job[T]:
        """Run a model call: in `generate` of this session and in the lane of the model, which all share.

        It never runs again by itself: what a cut answer is worth is for the caller to say.
        """
        self._check_open()
        command = _Command("generate", label, Effect.WRITE, run)
        command.run = functools.partial(self._timed, run, self._lanes.engine.now())
        command.is_model = True
        return self._launch(command, timeout_ms=self._config.timeout_of("generate"), label=label, then=model_lane)

    def _launch(
        self, command: _Command, *, timeout_ms: int | None = None, label: str = "", then: str | None = None
    ) -> Job[Any]:
        """Put a command into its lane."""
        first = self._full(command.lane)
        if timeout_ms is None and command.payload is not None and self.handler_of(command.lane).mode == "external":
            timeout_ms = DURATION_MAX_MS  # the time of its task is what counts
        options: JobOptions = {"effect": command.effect, "label": label or command.tool}
        if timeout_ms is not None:
            options["timeout_ms"] = timeout_ms
        if self._may_retry(command):
            options["retry"] = self._retry
        lanes = first if then is None else self._in_order(first, then)
        job: Job[Any]
        if command.function is not None:
            job = self._lanes.submit(lanes, command.function, **options)
        else:
            job = self._lanes.submit(lanes, self._attempt, command, **options)
        command.job = job
        self._live[job.id] = command
        job.add_done_callback(functools.partial(self._ended, command))
        self._look_at(command.lane)
        return job

    def _in_order(self, *names: str) -> tuple[str, ...]:
        """Lanes in the order of their configuration, in which every job takes them."""
        find, now = self._kernel.registry.find, self._lanes.engine.now()
        return tuple(sorted(names, key=lambda name: find(name, now).order))

    def _may_retry(self, command: _Command) -> bool:
        return command.effect is not Effect.WRITE and self._retry.max_retries > 0

    # ---- attempts and ends ----

    async def _attempt(self, command: _Command) -> Any:
        number = command.job.attempt
        if command.told < number - 1:  # the attempt before was abandoned: nobody has seen it end
            self._tell_retry(command, number - 1)
        self._look_at(command.lane)
        try:
            if command.row is not None:
                return await self._run_stored(command, command.row, number)
            return await command.run(number)
        except BaseException as error:
            command.error = error
            self._loop.call_soon(self._look_after, command, number)
            raise

    async def _timed(self, run: Run, submitted_ms: int, number: int) -> Any:
        # The kernel counts the time of a job in the last of its lanes, which here need not be the session's.
        engine = self._lanes.engine
        began_ms = engine.now()
        self._model_waits.add(began_ms - submitted_ms)
        try:
            return await run(number)
        finally:
            self._model_runs.add(engine.now() - began_ms)

    def _look_after(self, command: _Command, number: int) -> None:
        """An attempt has ended without a value, and by now it is decided what follows."""
        job = command.job
        if job.state is JobState.SCHEDULED and job.attempt == number and command.told < number:
            self._tell_retry(command, number)

    def _tell_retry(self, command: _Command, number: int) -> None:
        command.told = number
        error = command.error
        if isinstance(error, RetryLater):
            delay_ms = error.after_ms
        else:
            delay_ms = backoff_ms(self._retry, retry=max(1, command.job.failures), jitter=0)
        event = CommandRetryEvent(
            command_id=command.id,
            command_type=command.tool,
            lane=command.lane,
            attempt=number,
            delay_ms=delay_ms,
        )
        self._tell(event)

    def _ended(self, command: _Command, job: Job[Any]) -> None:
        self._live.pop(job.id, None)
        if job.state is JobState.DEAD:
            self._forget_shared(job.id)
        self._look_at(command.lane)
        if command.given_up:
            self._forget_row(command)
        elif job.state in DIED and not command.is_model and not self._closed:
            self._bury(command, job)
        # What was ended because the session or the process ends keeps its row: it goes on when it is opened again.

    def _forget_shared(self, job_id: str) -> None:
        """The dead letters of a session are its own; the shared lanes need not keep them too."""
        with contextlib.suppress(UnknownJobError):
            self._lanes.dead_letters.purge(job_id)

    def _look_at(self, lane: str) -> None:
        """Tell if more waits in a lane than should: once when it begins, and again when it gets worse."""
        found = self._lane(lane)
        if found is None:
            return
        level, pressed = self._alerted.get(lane, (0, False))
        if (found.alert_level, found.pressed) == (level, pressed):
            return
        self._alerted[lane] = (found.alert_level, found.pressed)
        waiting = found.waiting
        if found.alert_level > level:
            text = f"{waiting} calls wait in lane {lane!r}"
            self._tell(
                QueueAlertEvent(level=ALERTS[found.alert_level], lane=lane, alert_type="queue_depth", message=text)
            )
        if found.pressed and not pressed:
            text = f"lane {lane!r} is under pressure: {waiting} calls wait"
            self._tell(QueueAlertEvent(level="warning", lane=lane, alert_type="pressure", message=text))

    def _tell(self, event: AgentEvent) -> None:
        try:
            self._on_event(event)
        except Exception:  # noqa: BLE001 - whoever listens must not cost a call its end
            _log.exception("an event of the lanes of %s could not be told", self.name)

    # ---- what others put in ----

    async def submit(
        self,
        lane: str,
        work: Mapping[str, Any] | Callable[[], Any],
        *,
        effect: Effect | str | None = None,
        timeout_ms: int | None = None,
    ) -> Any:
        """Run something in a lane and give back what comes of it. Cancelling the caller ends it.

        A callable (async, or sync: it then runs on a thread) takes no arguments. A payload is a mapping that names a
        tool, or whose keys say which one it is for (see `tool_call`); the tool is called as by the model, gates
        included. `effect` decides about retries: the tool's if nothing is said, and `write` for a callable.
        """
        [value] = await self.submit_batch(lane, [work], effect=effect, timeout_ms=timeout_ms)
        return value

    async def submit_batch(
        self,
        lane: str,
        items: Iterable[Mapping[str, Any] | Callable[[], Any]],
        *,
        effect: Effect | str | None = None,
        timeout_ms: int | None = None,
        return_errors: bool = False,
    ) -> list[Any]:
        """Run several things in a lane; what comes of them, in their order.

        If one fails the others go on, and the first error is raised when all have ended; with `return_errors` errors
        stand in the places of results. If one of them cannot be run at all, none is.
        """
        self._check_open()
        name = lane_named(lane)
        if timeout_ms is not None:
            LaneConfig(timeout_ms=timeout_ms)
        commands = [self._asked(name, item, effect) for item in _listed(items)]
        if self._store is not None:
            await self.open()
            await self._keep(self._store, commands, timeout_ms)
        jobs: list[Job[Any]] = []
        try:
            self._check_open()
            for command in commands:
                jobs.append(self._launch(command, timeout_ms=timeout_ms))  # noqa: PERF401 - those before an error count
            results = [await _outcome(job) for job in jobs]
        except BaseException:
            self._give_up(commands, jobs)
            raise
        if not return_errors:
            for result in results:
                if isinstance(result, _Raised):
                    raise result.error
        return [result.error if isinstance(result, _Raised) else result for result in results]

    def _give_up(self, commands: list[_Command], jobs: list[Job[Any]]) -> None:
        """Nobody wants these any more."""
        for command in commands:
            command.given_up = True
        for command in commands[len(jobs) :]:
            self._forget_row(command)
        for job in jobs:
            if not job.done():
                job.cancel("its caller has gone")

    def _asked(self, lane: str, item: object, effect: Effect | str | None) -> _Command:
        """What somebody wants to have run."""
        given = None if effect is None else Effect(one_of("effect", effect, tuple(Effect)))
        if isinstance(item, Mapping):
            tool, arguments = tool_call(lane, item)
            return self._command(lane, tool, arguments, given)
        if not callable(item):
            raise InvalidJobError(
                f"{item!r} is neither a payload nor callable",
                hint='pass a mapping such as {"command": "ls"}, or a function without arguments',
            )
        function: Callable[[], Any] = item
        name: str = getattr(item, "__name__", type(item).__name__)
        command = _Command(lane, name, given or Effect.WRITE, lambda _: function())
        if needs_thread(function):
            command.function = function
        return command

    def _command(self, lane: str, tool: str, payload: Any, effect: Effect | None) -> _Command:
        """A call of a tool by its name."""
        run_payload = self._run_payload
        if run_payload is None:
            raise InvalidJobError("this session runs no payloads", hint="submit a function")
        if effect is None:
            spec = self._spec_of(tool) if self._spec_of is not None else None
            effect = spec.effect if spec is not None else Effect.WRITE
        return _Command(lane, tool, effect, lambda attempt: run_payload(tool, payload, attempt=attempt), payload)

    # ---- the store ----

    async def _keep(self, store: QueueStore, commands: list[_Command], timeout_ms: int | None) -> None:
        """Payloads are taken once they are stored: all of them, or none. A function cannot be stored."""
        for command in commands:
            if command.payload is not None:
                facts = {"lane": command.lane, "tool": command.tool, "payload": command.payload}
                command.row = store.new(**facts, effect=command.effect, timeout_ms=timeout_ms)
        rows = [command.row for command in commands if command.row is not None]
        try:
            await asyncio.shield(self._track(store.write(*rows)))
        except BaseException:
            self._write(store.forget(*(row.id for row in rows)))  # they may be there all the same
            raise

    def _forget_row(self, command: _Command) -> None:
        if self._store is not None and command.row is not None:
            self._write(self._store.forget(command.row.id))

    async def _run_stored(self, command: _Command, row: StoredCommand, number: int) -> Any:
        store = self._store
        assert store is not None
        row.attempts = number
        if command.effect is not Effect.READ:
            row.state = "running"
            await store.write(row)
        value = await command.run(number)
        try:
            await store.forget(row.id)
        except LanewayError as error:
            _log.warning("the end of %s in %s could not be stored: %s", row.tool, self.name, error)
        return value

    def _write(self, work: Coroutine[Any, Any, None]) -> None:
        """Write something soon; whoever closes waits for it."""

        async def write() -> None:
            try:
                await work
            except LanewayError as error:
                _log.warning("the queue of %s could not be written: %s", self.name, text_of(error))

        self._track(write())

    def _track(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """A task that whoever closes waits for."""

        def ended(task: asyncio.Task[None]) -> None:
            self._writes.discard(task)
            if not task.cancelled():
                task.exception()  # whoever waited for it may have gone

        task = self._loop.create_task(work, name=f"laneway-queue {self.name}")
        self._writes.add(task)
        task.add_done_callback(ended)
        return task

    # ---- dead letters ----

    def _bury(self, command: _Command, job: Job[Any]) -> None:
        """A call has failed for good."""
        self._died[command.lane] += 1
        if not self._config.enable_dlq:
            self._forget_row(command)
            return
        error, failed_at = self._why(command, job), self._lanes.engine.wall_ms()
        self._store_letter(command, error, job.attempt, failed_at)
        letter = DeadCommand(
            command_id=command.id,
            command_type=command.tool,
            lane=command.lane,
            lane_id=command.lane,
            error=error,
            attempts=job.attempt,
            failed_at=failed_at,
            payload=command.payload,
        )
        self._keep_letter(command, letter)
        self._tell(
            CommandDeadLetteredEvent(
                command_id=letter.command_id,
                command_type=letter.command_type,
                lane=letter.lane,
                error=letter.error,
                attempts=letter.attempts,
            )
        )

    def _store_letter(self, command: _Command, error: str, attempts: int, failed_at: int) -> None:
        store, row = self._store, command.row
        if store is None or not self._opened or command.payload is None:
            return
        if row is None:
            facts = {"lane": command.lane, "tool": command.tool, "payload": command.payload}
            command.row = row = store.new(**facts, effect=command.effect)
        row.state, row.error, row.attempts, row.failed_at = "dead", error, attempts, failed_at
        self._write(store.write(row))

    def _why(self, command: _Command, job: Job[Any]) -> str:
        if isinstance(command.error, Exception):
            return describe(command.error)
        if job.state is JobState.TIMED_OUT or isinstance(command.error, asyncio.CancelledError):
            limit = job.spec.timeout_ms or self._config.timeout_of(command.lane)
            return f"it ran longer than {limit} ms" if limit is not None else "it was ended"
        return job.reason or str(job.state)

    def _keep_letter(self, command: _Command, letter: DeadCommand) -> None:
        self._letters[letter.command_id] = (letter, command)
        while len(self._letters) > self._config.dlq_max_size:
            self._drop_letter(next(iter(self._letters)))

    def _drop_letter(self, command_id: str) -> None:
        _, command = self._letters.pop(command_id)
        self._forget_row(command)

    def dead_letters(self) -> list[DeadCommand]:
        """The calls that failed for good, oldest first; empty unless dead letters are kept."""
        return [letter for letter, _ in self._letters.values()]

    def retry_dead_letter(self, command_id: str) -> Job[Any]:
        """Send a dead letter again as a new job: it leaves the dead letters, whatever becomes of the job."""
        self._check_open()
        if command_id not in self._letters:
            raise UnknownJobError(job_id=command_id, hint="it is not among the dead letters")
        letter, old = self._letters[command_id]
        if self._run_payload is not None and letter.payload is not None:
            # The run that made the call is over: the tool is called anew, and its answer is for the caller.
            command = self._command(letter.lane, letter.command_type, letter.payload, old.effect)
        else:
            command = old.again()
        job = self._launch(command)
        self._drop_letter(command_id)
        return job

    def purge_dead_letters(self, *command_ids: str) -> int:
        """Forget these (all of them without ids); says how many."""
        for command_id in command_ids:
            if command_id not in self._letters:
                raise UnknownJobError(job_id=command_id, hint="it is not among the dead letters")
        wanted = dict.fromkeys(command_ids or list(self._letters))
        for command_id in wanted:
            self._drop_letter(command_id)
        return len(wanted)

    # ---- lanes ----

    def pause(self, lane: str | None = None) -> None:
        """Start nothing in a lane until `resume`; without a lane in all but `control`. What runs goes on."""
        self._check_open()
        for name in self._named(lane):
            self._lanes.pause(self._full(name))

    def resume(self, lane: str | None = None) -> None:
        """Start again what waits in a lane, or in all."""
        self._check_open()
        for name in self._named(lane):
            self._lanes.resume(self._full(name))

    def set_lane_handler(self, lane: str, handler: LaneHandlerConfig) -> None:
        """Say who runs the calls of a lane, from the next one on."""
        self._check_open()
        self._config.lane_handlers = {**self._config.lane_handlers, lane_named(lane): handler}

    def handler_of(self, lane: str) -> LaneHandlerConfig:
        """Who runs the calls of a lane."""
        return self._config.lane_handlers.get(lane, INTERNAL)

    @staticmethod
    def _named(lane: str | None) -> tuple[str, ...]:
        return tuple(name for name in SESSION_LANES if name != "control") if lane is None else (lane_named(lane),)

    # ---- questions ----

    def call_of(self, job_id: str) -> tuple[str, bool]:
        """Which tool a job that is in here calls (or its name, if it is no call), and whether it is a model call."""
        command = self._live.get(job_id)
        return ("", False) if command is None else (command.tool, command.is_model)

    def stats(self) -> QueueStats:
        """What waits and runs at this moment, and what has ended so far."""
        lanes = ByLane({lane: self._stats_of(lane) for lane in SESSION_LANES})
        return QueueStats(
            total_pending=sum(each.pending for each in lanes.values()),
            total_active=sum(each.active for each in lanes.values()),
            external_pending=0,
            lanes=lanes,
        )

    def _stats_of(self, lane: str) -> LaneQueueStats:
        found = self._lane(lane)
        counters = found.counters if found is not None else Counters()
        return LaneQueueStats(
            lane=lane,
            pending=found.waiting + found.scheduled if found is not None else 0,
            active=found.held + found.lent if found is not None else 0,
            completed=counters.completed,
            failed=counters.failed + counters.timed_out,
            max_concurrency=found.cap if found is not None else self._config.concurrency_of(lane),
            handler_mode=self.handler_of(lane).mode,
        )

    def _lane(self, lane: str) -> Lane | None:
        """The lane as the kernel has it; None once the session is closed."""
        return self._kernel.registry.lanes.get(self._full(lane))

    def metrics(self) -> QueueMetrics | None:
        """Counters, gauges and histograms (in milliseconds) of each lane and of all; None unless they are on."""
        if not self._config.enable_metrics:
            return None
        counters: dict[str, int] = {}
        gauges: dict[str, int] = {}
        waits, runs = {}, {}
        for lane in SESSION_LANES:
            found = self._lane(lane)
            counted = found.counters if found is not None else Counters()
            for name, count in self._counts(lane, counted).items():
                counters[f"lane.commands.{name}"] = counters.get(f"lane.commands.{name}", 0) + count
                counters[f"lane.commands.{name}.{lane}"] = count
            gauges[f"lane.queue.depth.{lane}"] = found.waiting + found.scheduled if found is not None else 0
            gauges[f"lane.queue.active.{lane}"] = found.held + found.lent if found is not None else 0
            waits[lane] = self._model_waits if lane == "generate" else counted.wait
            runs[lane] = self._model_runs if lane == "generate" else counted.run
        histograms: dict[str, dict[str, float]] = {}
        for name, parts in (("latency_ms", runs), ("wait_time_ms", waits)):
            histograms[f"lane.command.{name}"] = histogram(*parts.values())
            histograms |= {f"lane.command.{name}.{lane}": histogram(part) for lane, part in parts.items()}
        return QueueMetrics(counters=counters, gauges=gauges, histograms=histograms)

    def _counts(self, lane: str, counted: Counters) -> dict[str, int]:
        return {
            "submitted": counted.submitted,
            "completed": counted.completed,
            "failed": counted.failed,
            "timeout": counted.timed_out,
            "cancelled": counted.cancelled,
            "retried": counted.retried,
            "dead_lettered": self._died[lane] if self._config.enable_dlq else 0,
        }


class _Raised:
    """How something ended that gave no value."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


async def _outcome(job: Job[Any]) -> Any:
    try:
        return await job
    except Exception as error:  # noqa: BLE001 - it is told when all have ended
        return _Raised(error)


def _listed(items: object) -> list[Any]:
    if isinstance(items, str | Mapping) or not isinstance(items, Iterable):
        raise InvalidJobError(f"a batch is a list of payloads or functions, not {items!r}")
    return list(items)
