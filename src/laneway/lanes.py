"""Lanes: a priority scheduler for async work.

```python
async with Lanes({"query": 4, "execute": LaneConfig(concurrency=2, priority=1)}, max_concurrent=5) as lanes:
    job = lanes.submit("query", fetch, url)
    value = await job
```
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal, Self, TypedDict, TypeVar, TypeVarTuple, Unpack, overload

from laneway.errors import ConfigError, InvalidJobError, UnknownJobError, UsageError
from laneway.kernel import explain as questions
from laneway.kernel.protocol import PLAIN, JobSpec, SettleJob
from laneway.kernel.registry import Registry, check_name
from laneway.kernel.scheduler import Kernel
from laneway.ports import Store
from laneway.records import (
    DURATION_MAX_MS,
    DrainReport,
    Effect,
    Explanation,
    Group,
    JobId,
    JobInfo,
    JobState,
    LaneConfig,
    LaneMetrics,
    Priority,
    RetryPolicy,
    Snapshot,
    Stats,
    check_concurrency,
    check_whole,
)
from laneway.runtime.dead_letters import DeadLetters
from laneway.runtime.engine import Engine
from laneway.runtime.handles import Job, Slot
from laneway.runtime.signals import AbortSignal
from laneway.runtime.subscriptions import Subscription
from laneway.system import HostEnv

__all__ = ("JobOptions", "LaneScope", "Lanes")

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

TOOL_LANES: Mapping[str, LaneConfig] = {
    "control": LaneConfig(concurrency=2, priority=0),
    "query": LaneConfig(concurrency=4, priority=1),
    "execute": LaneConfig(concurrency=2, priority=2),
    "generate": LaneConfig(concurrency=1, priority=3),
}
GATEWAY_LANES: Mapping[str, LaneConfig] = {
    "main": LaneConfig(concurrency=4),
    "subagent": LaneConfig(concurrency=8),
    "cron": LaneConfig(concurrency=3),
}
LIMITER_LANE = "agent"
LIMITER_MAX = 10
LIMITER_DEPTH = 10

F = TypeVar("F", bound=Callable[[Any], Any])


class DurableOptions(TypedDict, total=False):
    """What may be said about a durable job when it is enqueued: what `JobOptions` has, but for `signal`."""

    priority: Priority
    timeout_ms: int | None
    wait_timeout_ms: int | None
    deadline_ms: int | None
    delay_ms: int | None
    retry: RetryPolicy | None
    effect: Effect | Literal["read", "idempotent", "write"]
    tenant: str
    weight: float
    key: str | None
    label: str


class JobOptions(TypedDict, total=False):
    """What may be said about a job when it is submitted; everything may be left out.

    - `priority`: its level inside the lane, `Priority.USER` if nothing is said.
    - `timeout_ms`, `wait_timeout_ms`: how long it may run, and wait; the lane's if nothing is said.
    - `delay_ms`: hold it back for so long. `deadline_ms`: feeds the lane's boost.
    - `retry`: your consent to run it again after a failure. After a timeout that is done only if `effect` is `read` or
      `idempotent` (`write` if nothing is said).
    - `tenant`, `weight`: whose share it uses in a lane with `fair_by`, and how large that share is.
    - `key`: a second submit with the same key joins the live job. `label`: what people call it.
    - `signal`: an `AbortSignal` that ends it.
    """

    priority: Priority
    timeout_ms: int | None
    wait_timeout_ms: int | None
    deadline_ms: int | None
    delay_ms: int | None
    retry: RetryPolicy | None
    effect: Effect | Literal["read", "idempotent", "write"]
    tenant: str
    weight: float
    key: str | None
    label: str
    signal: AbortSignal | None


_OPTIONS = tuple(JobOptions.__annotations__)
_Options = JobOptions | DurableOptions


class LaneScope:
    """A view of some lanes: all of them (`Lanes`), or those of one session or workspace (`lanes.scope("s1")`)."""

    def __init__(self, engine: Engine, prefix: str) -> None:
        self._engine = engine
        self._kernel = engine.kernel
        self._prefix = prefix

    @property
    def engine(self) -> Engine:
        """The engine below: for the façades that are built on lanes, not part of the public surface."""
        return self._engine

    def __contains__(self, lane: object) -> bool:
        """Whether a lane of that name could be submitted to; one made on the fly need not exist at the moment."""
        try:
            check_name(lane)
            self._kernel.registry.check_known(f"{self._prefix}{lane}")
        except UsageError:
            return False
        return True

    # ---- work ----

    @overload
    def submit(
        self, lane: str | Sequence[str], fn: Callable[[*Ts], Awaitable[T]], /, *args: *Ts, **options: Unpack[JobOptions]
    ) -> Job[T]: ...

    @overload
    def submit(
        self, lane: str | Sequence[str], fn: Callable[[*Ts], T], /, *args: *Ts, **options: Unpack[JobOptions]
    ) -> Job[T]: ...

    def submit(  # type: ignore[misc] # mypy cannot match *args: *Ts with *args: Any
        self, lane: str | Sequence[str], fn: Callable[..., Any], /, *args: Any, **options: Unpack[JobOptions]
    ) -> Job[Any]:
        """Take a job and return its handle without waiting.

        `fn` may be async, or sync (it then runs on a thread). `lane` may be a sequence of lanes, acquired in that
        order. What may be said about the job (`priority`, `timeout_ms`, `retry` …) is in `JobOptions`.
        """
        if not callable(fn):
            raise InvalidJobError(
                f"{fn!r} is not callable", hint="pass the function itself, and its arguments after it"
            )
        names = (self._prefix + lane if self._prefix else lane) if type(lane) is str else self._names(lane)
        if not options:
            return self._engine.submit(names, fn, args, PLAIN)
        signal = options.pop("signal", None)
        if signal is not None and not isinstance(signal, AbortSignal):
            raise InvalidJobError(f"signal must be an AbortSignal, not {signal!r}")
        return self._engine.submit(names, fn, args, _spec(self._prefix, options), signal)

    @overload
    async def run(
        self, lane: str | Sequence[str], fn: Callable[[*Ts], Awaitable[T]], /, *args: *Ts, **options: Unpack[JobOptions]
    ) -> T: ...

    @overload
    async def run(
        self, lane: str | Sequence[str], fn: Callable[[*Ts], T], /, *args: *Ts, **options: Unpack[JobOptions]
    ) -> T: ...

    async def run(  # type: ignore[misc] # as above
        self, lane: str | Sequence[str], fn: Callable[..., Any], /, *args: Any, **options: Unpack[JobOptions]
    ) -> Any:
        """Submit and await. Cancelling `run` cancels the job (of a shared one, only this share of it)."""
        job: Job[Any] = self.submit(lane, fn, *args, **options)
        try:
            return await job
        except asyncio.CancelledError:
            if not job.done():
                job.cancel("the caller of run() was cancelled")
            raise

    async def enqueue(
        self, lane: str | Sequence[str], handler: str, payload: object = None, /, **options: Unpack[DurableOptions]
    ) -> Job[Any]:
        """Take a durable job and return its handle once it is stored: it outlives this process.

        `handler` is a name that was registered with `Lanes.handler`; its function gets `payload`, any JSON value, as
        its one argument. A job whose `key` belongs to a live durable job joins that one. Cancelling `enqueue` does not
        take the job back. If the store fails, nothing was taken.
        """
        if "signal" in options:
            raise InvalidJobError(
                "a durable job takes no signal: it may outlive this process", hint="cancel it by its handle or its id"
            )
        spec = _spec(self._prefix, options) if options else PLAIN
        durable = self._engine.durable
        job, stored = durable.take(self._names(lane), handler, payload, spec)
        if stored is not None:
            try:
                await stored
            except asyncio.CancelledError:
                durable.forget_handle(job)
                raise
        return job

    def slot(
        self,
        lane: str | Sequence[str],
        *,
        priority: Priority = Priority.USER,
        wait_timeout_ms: int | None = None,
        tenant: str = "default",
        weight: float = 1,
        label: str = "",
    ) -> Slot:
        """A slot without a function: `async with lanes.slot("execute"):`."""
        options: JobOptions = {"priority": priority, "wait_timeout_ms": wait_timeout_ms}
        spec = _spec(self._prefix, {**options, "tenant": tenant, "weight": weight, "label": label})
        return Slot(self._engine, self._names(lane), spec)

    def cancel(self, job: str | Job[Any], reason: str = "cancelled by id") -> bool:
        """End a live job by its id (or handle). False: it is being ended already, or is a slot in use.

        A job that has ended is forgotten, so its id is an `UnknownJobError`; `Job.cancel` just says False then.
        """
        self._engine.check_caller("cancel")
        return self._engine.stop(self._own(job), reason)

    def cancel_waiting(self, lane: str | None = None, reason: str = "cancel_waiting") -> int:
        """End everything that has not begun, in one lane or in all; says how many. What runs is untouched."""
        self._engine.check_caller("cancel_waiting")
        name = None if lane is None else self._name(lane)
        effects = self._kernel.stop_waiting(name, reason, self._prefix, now=self._engine.now())
        self._engine.run(effects)
        return sum(1 for effect in effects if isinstance(effect, SettleJob))

    # ---- lanes ----

    def resize(self, lane: str, concurrency: int) -> None:
        """Change a width (0 to 1,000,000; 0 pauses): raising starts what waits, lowering evicts nobody."""
        self._engine.check_caller("resize")
        self._engine.run(self._kernel.resize(self._name(lane), concurrency, now=self._engine.now()))

    def pause(self, lane: str) -> None:
        """Start nothing in a lane until `resume`; what runs goes on."""
        self._engine.check_caller("pause")
        self._engine.run(self._kernel.pause(self._name(lane), now=self._engine.now()))

    def resume(self, lane: str) -> None:
        """Start jobs in a paused lane again."""
        self._engine.check_caller("resume")
        self._engine.run(self._kernel.resume(self._name(lane), now=self._engine.now()))

    def close_until(self, lane: str, wall_ms: int, reason: str = "") -> None:
        """Close a lane's limit until a wall-clock time (a provider's Retry-After, for one)."""
        self._engine.check_caller("close_until")
        check_whole(wall_ms, setting="wall_ms", least=0, most=1 << 53)
        if 0 < wall_ms * 100 < self._engine.wall_ms():
            hint = "it is in milliseconds since 1970; was it meant in seconds?"
            raise ConfigError(f"wall_ms {wall_ms} is decades ago", setting="wall_ms", value=wall_ms, hint=hint)
        for_ms = min(max(0, wall_ms - self._engine.wall_ms()), DURATION_MAX_MS)
        name = self._name(lane)
        self._engine.run(self._kernel.close_lane(name, for_ms, wall_ms, reason, now=self._engine.now()))

    def reopen(self, lane: str | None = None) -> None:
        """Open a closed limit before its time; without a lane, end a drain."""
        self._engine.check_caller("reopen")
        now = self._engine.now()
        if lane is None:
            self._engine.reopen()
        else:
            self._engine.run(self._kernel.reopen_lane(self._name(lane), now=now))

    # ---- questions ----

    def jobs(self, lane: str | None = None, state: JobState | str | None = None) -> list[JobInfo]:
        """What runs and waits, in the order in which it was submitted."""
        name = None if lane is None else self._name(lane)
        if name is not None:
            self._kernel.registry.check_known(name)
        wanted = None if state is None else _state(state)
        return questions.list_jobs(self._kernel, now=self._engine.now(), prefix=self._prefix, lane=name, state=wanted)

    def stats(self) -> Stats:
        """Everything at this moment: `running`, `waiting`, `lent` … and the same for each lane."""
        return questions.stats(self._kernel, now=self._engine.now(), prefix=self._prefix)

    def metrics(self) -> dict[str, LaneMetrics]:
        """Counters and wait and run histograms of each lane since the start."""
        return questions.metrics(self._kernel, now=self._engine.now(), prefix=self._prefix)

    def status_line(self) -> str:
        """`Agent: 2/3`, or `Agent: 3/3 (2 queued)`; the label is the lane's if there is only one."""
        stats = self.stats()
        configured = [name for name, lane in self._kernel.registry.lanes.items() if lane.configured]
        names = [name.removeprefix(self._prefix) for name in configured if name.startswith(self._prefix)]
        label = names[0].replace("_", " ").capitalize() if len(names) == 1 else "Lanes"
        queued = f" ({stats.waiting} queued)" if stats.waiting else ""
        return f"{label}: {stats.running}/{stats.max_concurrent}{queued}"

    def explain(self, job: str | Job[Any]) -> Explanation:
        """Why a live job is where it is, in one sentence and in data."""
        engine = self._engine
        return questions.explain(self._kernel, self._own(job), now=engine.now(), wall_ms=engine.wall_ms())

    def subscribe(self, *keys: str, buffer_max: int = 10_000) -> Subscription:
        """A stream of events: those of the given lanes, job ids or event types, or all of them.

        At most `buffer_max` unread events are kept; a slow reader gets an `EventsMissed` with how many it missed.
        """
        check_whole(buffer_max, setting="buffer_max", least=1, most=10_000_000)
        if not all(isinstance(key, str) for key in keys):
            raise InvalidJobError(f"subscribe takes lane names, job ids and event types, not {keys!r}")
        known = (*keys, *(self._prefix + key for key in keys)) if self._prefix else keys
        return self._engine.subscribe(known, self._prefix, buffer_max)

    def _name(self, lane: str) -> str:
        check_name(lane)
        return self._prefix + lane

    def _own(self, job: str | Job[Any]) -> JobId:
        """The id of a live job of this scope."""
        job_id = job.id if isinstance(job, Job) else job
        entry = self._kernel.jobs.get(JobId(job_id))
        if entry is None or not any(lane.name.startswith(self._prefix) for lane in entry.lanes):
            raise UnknownJobError(job_id=job_id)
        return entry.id

    def _names(self, lane: str | Sequence[str]) -> tuple[str, ...]:
        if isinstance(lane, str):
            return (self._prefix + lane,)
        names = tuple(lane) if isinstance(lane, Iterable) else ()
        if not names or not all(isinstance(name, str) for name in names):
            raise InvalidJobError(f"a lane is a name or a sequence of names, not {lane!r}")
        return tuple(self._prefix + name for name in names)


class Lanes(LaneScope):
    """Named lanes with widths and priorities for any async (or sync) function, on the loop that opens them.

    Open them with `async with`. Leaving waits for every job; leaving by an exception cancels them.

    With a `store` (an address such as `sqlite:///jobs.db`, or a `Store`) there are durable jobs too: `handler` names a
    function, `enqueue` takes a job for it. Opening goes on with those of this `workspace` that the store holds. Leaving
    leaves those in the store that cannot run now: they wait for a time, for their handler or in a paused lane. Leaving
    by an exception leaves all of them there.
    """

    def __init__(
        self,
        lanes: Mapping[str, LaneConfig | int] | None = None,
        *,
        max_concurrent: int | None = None,
        groups: Mapping[str, Group] | None = None,
        host: HostEnv | None = None,
        store: str | Store | None = None,
        workspace: str = "default",
        dlq_max_size: int = 1000,
        threads_max: int = 64,
        unknown: Literal["refuse", "create"] = "refuse",
        close_timeout_ms: int = 10_000,
    ) -> None:
        if max_concurrent is not None:
            check_concurrency(max_concurrent, setting="max_concurrent")
        check_whole(dlq_max_size, setting="dlq_max_size", least=0, most=10_000_000)
        check_whole(threads_max, setting="threads_max", least=1, most=10_000)
        check_whole(close_timeout_ms, setting="close_timeout_ms", least=0, most=DURATION_MAX_MS)
        for setting, value in (("lanes", lanes), ("groups", groups)):
            if value is not None and not isinstance(value, Mapping):
                raise ConfigError(f"{setting} must map names to settings, not {value!r}", setting=setting, value=value)
        if unknown not in ("refuse", "create"):
            raise ConfigError(f"unknown is 'refuse' or 'create', not {unknown!r}", setting="unknown", value=unknown)
        for name, group in (groups or {}).items():
            if not isinstance(group, Group):
                raise ConfigError(f"group {name!r} must be a Group, not {group!r}", setting="groups", value=group)
        registry = Registry(
            {name: _lane_config(name, value) for name, value in (lanes or {}).items()},
            groups=dict(groups or {}),
            max_concurrent=max_concurrent,
            threads_max=threads_max,
            creates_unknown=unknown == "create",
        )
        if host is not None and not isinstance(host, HostEnv):
            raise ConfigError(f"host must be a HostEnv, not {host!r}", setting="host", value=host)
        host = host or HostEnv()
        engine = Engine(Kernel(registry), clock=host.clock, ids=host.ids, random=host.random, dlq_max_size=dlq_max_size)
        super().__init__(engine, "")
        if not isinstance(workspace, str) or not workspace:
            raise ConfigError(f"workspace must be text, not {workspace!r}", setting="workspace", value=workspace)
        self._workspace = workspace
        self._store: Store | None = None
        if store is not None:
            from laneway.stores import open_store  # loaded only by those who use a store

            self._store = open_store(store)
        self._close_timeout_ms = close_timeout_ms
        self._limiter = False

    # ---- presets ----

    @classmethod
    def for_tools(cls, **options: Any) -> Self:
        """The lanes of an agent's tools: control P0 ×2, query P1 ×4, execute P2 ×2, generate P3 ×1."""
        return cls(TOOL_LANES, **options)

    @classmethod
    def for_gateway(cls, **options: Any) -> Self:
        """The lanes of a chat gateway: main ×4, subagent ×8, cron ×3; unknown names appear with width 1."""
        return cls(GATEWAY_LANES, unknown="create", **options)

    @classmethod
    def limiter(cls, max_concurrent: int = 3, *, config: LaneConfig | None = None, **options: Any) -> Self:
        """A concurrency limiter: one lane `agent` with 1 to 10 slots, in which ten times as many may wait.

        `config` gives the lane its other settings (timeouts, `abandon_threads` …); `options` are those of `Lanes`.
        """
        check_whole(max_concurrent, setting="max_concurrent", least=1, most=LIMITER_MAX)
        depth = max_concurrent * LIMITER_DEPTH
        lane = replace(config or LaneConfig(), concurrency=max_concurrent, queued_max=depth)
        lanes = cls({LIMITER_LANE: lane}, **options)
        lanes._limiter = True
        return lanes

    def resize(self, lane: str, concurrency: int) -> None:
        """Change a width (0 to 1,000,000; 0 pauses): raising starts what waits, lowering evicts nobody.

        The limiter's lane takes 1 to 10, and its depth follows.
        """
        if not self._limiter or lane != LIMITER_LANE:
            super().resize(lane, concurrency)
            return
        self._engine.check_caller("resize")
        check_whole(concurrency, setting="max_concurrent", least=1, most=LIMITER_MAX)
        depth = concurrency * LIMITER_DEPTH
        self._engine.run(self._kernel.resize(lane, concurrency, depth, now=self._engine.now()))

    # ---- the whole ----

    @property
    def dead_letters(self) -> DeadLetters:
        """Jobs whose retries were used up: `list`, `show`, `edit`, `retry`, `purge`."""
        return self._engine.dead_letters

    @overload
    def handler(self, name: str) -> Callable[[F], F]: ...

    @overload
    def handler(self, name: str, fn: F) -> F: ...

    def handler(self, name: str, fn: F | None = None) -> F | Callable[[F], F]:
        """Say which function runs the durable jobs of that name: `@lanes.handler("fetch")`, or `handler("fetch", fn)`.

        It takes one argument, the payload, and may be async, or sync (it then runs on a thread). Jobs in the store
        whose handler is not known yet wait until it is.
        """

        def register(function: F) -> F:
            if self._engine.is_open:
                self._engine.check_caller("handler")
            self._engine.durable.register(name, function)
            return function

        return register if fn is None else register(fn)

    def scope(self, name: str, lanes: Mapping[str, LaneConfig | int] | None = None) -> LaneScope:
        """A view whose lane `execute` is `<name>/execute`: one for each session or workspace, isolated from others.

        Its lanes have the settings of the lanes of the same name here, unless `lanes` gives them their own.
        """
        check_name(name)
        if "/" in name:
            raise ConfigError(f"a scope name has no slash, not {name!r}", setting="scope", value=name)
        configs = {f"{name}/{lane}": _lane_config(lane, value) for lane, value in (lanes or {}).items()}
        known = self._kernel.registry.configs
        for full, config in configs.items():
            if known.get(full, config) != config:
                raise ConfigError(f"lane {full!r} is configured differently already", setting="lanes")
        for full, config in configs.items():
            if full not in known:
                self._kernel.registry.configure(full, config, now=self._engine.now())
        return LaneScope(self._engine, f"{name}/")

    def on_change(self, callback: Callable[[Snapshot], object]) -> Callable[[], None]:
        """Call back with `running`, `waiting` and `max_concurrent` after every change; returns how to stop that.

        A callback may submit jobs; one that raises is logged and stops nothing.
        """
        if not callable(callback):
            raise InvalidJobError(f"{callback!r} is not callable")
        return self._engine.on_change(callback)

    async def drain(
        self, timeout_ms: int | None = None, *, purpose: Literal["stop", "restart"] = "stop"
    ) -> DrainReport:
        """Take no new work and wait for what there is; at the timeout what has not begun is cancelled.

        Jobs that run may still submit jobs of their own. Durable jobs that have not begun are not cancelled: they stay
        in the store. `reopen()` ends the drain, and goes on with them.
        """
        if timeout_ms is not None:
            check_whole(timeout_ms, setting="timeout_ms", least=0, most=DURATION_MAX_MS)
        if purpose not in ("stop", "restart"):
            raise ConfigError(f"purpose is 'stop' or 'restart', not {purpose!r}", setting="purpose", value=purpose)
        return await self._engine.drain(timeout_ms, purpose)

    async def close(self) -> None:
        """Cancel what is live, give it its grace, and leave nothing behind. Closing twice changes nothing."""
        await self._engine.close(cancel=True, timeout_ms=self._close_timeout_ms)

    async def __aenter__(self) -> Self:
        if self._store is None:
            self._engine.open()
        else:
            await self._engine.durable.open(self._store, self._workspace)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._engine.close(cancel=error is not None, timeout_ms=self._close_timeout_ms)


def _lane_config(name: str, value: object) -> LaneConfig:
    if isinstance(value, LaneConfig):
        return value
    return LaneConfig(concurrency=check_concurrency(value, setting=f"concurrency of lane {name!r}"))


def _state(value: JobState | str) -> JobState:
    try:
        return JobState(value)
    except ValueError:
        states = ", ".join(JobState)
        raise ConfigError(f"there is no state {value!r}", setting="state", value=value, hint=states) from None


def _spec(prefix: str, options: _Options) -> JobSpec:
    """Check what a caller said about a job."""
    given: dict[str, Any] = dict(options)
    unknown = [name for name in given if name not in _OPTIONS]
    if unknown:
        close = difflib.get_close_matches(unknown[0], _OPTIONS, n=1)
        guess = f"did you mean {close[0]!r}? " if close else ""
        hint = f"{guess}keyword arguments of the function itself go through functools.partial"
        raise InvalidJobError(f"there is no option {unknown[0]!r}", hint=hint)
    if not isinstance(given.get("priority", Priority.USER), Priority):
        hint = "Priority.USER, Priority.SCHEDULED or Priority.BACKGROUND; numbers are priorities of lanes"
        raise InvalidJobError(f"priority must be a Priority, not {given['priority']!r}", hint=hint)
    try:
        given["effect"] = Effect(given.get("effect", Effect.WRITE))
    except ValueError:
        raise InvalidJobError(f"there is no effect {given['effect']!r}", hint="read, idempotent or write") from None
    for name, least in (("timeout_ms", 1), ("wait_timeout_ms", 1), ("deadline_ms", 1), ("delay_ms", 0)):
        if given.get(name) is not None:
            check_whole(given[name], setting=name, least=least, most=DURATION_MAX_MS)
    weight = given.get("weight", 1)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 1e-9 <= weight <= 1e9:
        raise ConfigError(f"weight must be a number from 1e-9 to 1e9, not {weight!r}", setting="weight", value=weight)
    for name in ("tenant", "label", "key"):
        value = given.get(name, "")
        if not isinstance(value, str) and not (name == "key" and value is None):
            raise InvalidJobError(f"{name} must be text, not {value!r}")
    if given.get("key") is not None:
        given["key"] = f"{prefix}\0{given['key']}" if prefix else given["key"]
    retry = given.get("retry")
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise InvalidJobError(f"retry must be a RetryPolicy, not {retry!r}", hint="RetryPolicy.exponential(3), for one")
    return JobSpec(**given)
