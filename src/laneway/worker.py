"""A worker: takes external tasks over a transport, does them in a workspace of its own, and says what became of them.

```python
worker = Worker(transport, workspace="/srv/checkout", concurrency=4)       # the built-in tools
worker = Worker(transport, handlers={"bash": run_in_container})            # functions of one's own
await worker.run()                                                         # until somebody calls stop()
```

A worker asks only for what it can do, and leaves the rest to others. Nothing is begun before the host has answered that
it may begin. While it works, a worker shows a sign of life three times within each lease, and by the answer it learns
that nobody wants the task any more: then it stops the work. When the host cannot be reached it goes on with what it has
begun, asks again after 0.1 to 5 seconds, and delivers what it has found when the host is back.
"""

from __future__ import annotations

import asyncio
import difflib
import inspect
import json
import logging
import os
import platform
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from laneway.checked import listed, one_of
from laneway.dialogue import ToolContext, ToolOutput
from laneway.errors import (
    ConfigError,
    ConflictError,
    DeniedError,
    LeaseLostError,
    ToolArgumentsError,
    UsageError,
    describe,
    text_of,
)
from laneway.external import ExternalTask, ExternalTaskResult, Lease
from laneway.kernel.permissions import Verdict, allows_url, check_policy, decide, hides
from laneway.options import SESSION_LANES
from laneway.policies import PermissionPolicy
from laneway.ports import Tool, Transport
from laneway.records import DURATION_MAX_MS, Effect, check_whole
from laneway.runtime.executor import needs_thread
from laneway.runtime.task_desk import NAME_MAX, NAMES_MAX
from laneway.system import HostEnv
from laneway.tools.outputs import ToolRefusedError, as_output
from laneway.tools.paths import locate
from laneway.tools.registry import Toolbox

__all__ = ("Worker", "WorkerStats")

_log = logging.getLogger("laneway")

T = TypeVar("T")
Handler = Callable[[ExternalTask], Any]
"""Does a task, sync or async; returns text, a dict with `output`, any JSON, or an `ExternalTaskResult`."""

CONCURRENCY_MAX = 10_000
FIRST_DELAY_S = 0.1
LAST_DELAY_S = 5.0
WAIT_MS = 20_000
STOP_GRACE_S = 5.0
BEATS = 3  # in each lease
ANSWER_S = 60.0  # a host that says nothing for so long is not there
NOT_BEGUN = "the worker could not reach its host in time, and did not begin"
FOR_GOOD = (UsageError, ConflictError, DeniedError)
"""What a host says that it would say again."""


class WorkerStats(NamedTuple):
    """What a worker has done so far."""

    running: int
    claimed: int
    completed: int
    failed: int
    stopped: int  # nobody wanted them any more
    refused: int  # the task, or its result, was somebody else's by then


class _Work:
    """A task that the worker has taken."""

    __slots__ = ("beating", "has_begun", "is_over", "lease", "run", "timer")

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.has_begun = False
        self.is_over = False
        self.run: asyncio.Task[ExternalTaskResult | None] | None = None
        self.timer: asyncio.TimerHandle | None = None  # until the next sign of life
        self.beating: asyncio.Task[None] | None = None  # while one is on its way

    @property
    def task_id(self) -> str:
        return str(self.lease.task["task_id"])


class Worker:
    """Does external tasks, up to `concurrency` at once.

    Without `tools` and `handlers` it has the built-in tools. It asks for tasks that these can do, of every lane;
    `commands` and `lanes` name the part of them that it asks for. Paths begin at `workspace`, or at the `working_dir`
    in it that a payload names. A `permission_policy` of its own can deny what the host has let pass, and hides files
    from tools that search.
    """

    def __init__(  # noqa: PLR0913 - the public surface is a contract: keyword options, not option records
        self,
        transport: Transport,
        tools: Iterable[Tool | Callable[..., Any]] | None = None,
        *,
        handlers: Mapping[str, Handler] | None = None,
        name: str | None = None,
        lanes: Sequence[str] = (),
        commands: Sequence[str] = (),
        concurrency: int = 4,
        workspace: str | os.PathLike[str] = ".",
        permission_policy: PermissionPolicy | None = None,
        environment: Mapping[str, str] | None = None,
        wait_ms: int = WAIT_MS,
        host: HostEnv | None = None,
    ) -> None:
        check_whole(concurrency, setting="concurrency", least=1, most=CONCURRENCY_MAX)
        check_whole(wait_ms, setting="wait_ms", least=1, most=DURATION_MAX_MS)
        self.name = _name(name)
        self._transport = _reachable(transport)
        self._handlers = _checked(handlers)
        self._toolbox = _toolbox(tools, handlers)
        self._asks_for = {"lanes": _lanes(lanes), "commands": _commands(commands, (*self._handlers, *self._toolbox))}
        self._concurrency = concurrency
        self._workspace = _folder(workspace)
        self._policy = _policy(permission_policy)
        self._environment = _environment(environment)
        self._wait_ms = wait_ms
        self._host = host or HostEnv()
        self._works: dict[asyncio.Task[None], _Work] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._asking: asyncio.Task[list[Lease]] | None = None
        self._changed = asyncio.Event()
        self._is_stopping = False
        self._is_cut = False
        self._running: asyncio.Future[None] | None = None
        self._background: asyncio.Task[None] | None = None
        self._counts = dict.fromkeys(("claimed", "completed", "failed", "stopped", "refused"), 0)

    def __repr__(self) -> str:
        return f"<Worker {self.name!r}: {len(self._works)} of {self._concurrency} busy>"

    @property
    def stats(self) -> WorkerStats:
        """What it has done so far."""
        return WorkerStats(running=len(self._works), **self._counts)

    # ---- running ----

    async def run(self) -> None:
        """Take tasks and do them until `stop`. Raises what the host refuses for good, such as a lane without a name."""
        if self._running is not None:
            raise UsageError("this worker runs already, or has run", hint="make a new one")
        self._running = asyncio.get_running_loop().create_future()
        self._threads = ThreadPoolExecutor(self._concurrency + 4, thread_name_prefix="laneway-worker")
        _log.info("worker %s asks for %s", self.name, ", ".join(self._asks_for["commands"]))
        try:
            await self._take_tasks()
            await self._drained()
        finally:  # whoever cancels it, too: nothing stays behind
            self._is_stopping = True
            await self._cut_short()
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._running.set_result(None)

    async def stop(self, *, timeout_ms: int = 30_000) -> None:
        """Take nothing more, give back what has not begun, and finish the rest; after `timeout_ms` it is cut short."""
        check_whole(timeout_ms, setting="timeout_ms", least=0, most=DURATION_MAX_MS)
        self._is_stopping = True
        self._changed.set()
        if self._asking is not None:
            self._asking.cancel()
        if self._running is None or self._running.done():
            return
        loop = asyncio.get_running_loop()
        timer = loop.call_later(timeout_ms / 1000, self._cut)
        try:
            await asyncio.shield(self._running)
        finally:
            timer.cancel()

    async def __aenter__(self) -> Self:
        self._background = asyncio.get_running_loop().create_task(self.run(), name=f"laneway-worker {self.name}")
        self._background.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._background is not None
        if self._running is None:  # it was left before it had begun
            self._background.cancel()
            return
        await self.stop()
        await self._background

    async def _take_tasks(self) -> None:
        delay = FIRST_DELAY_S
        while not self._is_stopping:
            self._changed.clear()
            free = self._concurrency - len(self._works)
            if not free:
                await self._changed.wait()
                continue
            try:
                leases = await self._claim(free)
            except FOR_GOOD:
                raise
            except Exception as error:  # noqa: BLE001 - a transport may raise anything; the host may be back soon
                _log.warning("worker %s: no task could be claimed: %s", self.name, describe(error))
                await self._pause(delay)
                delay = min(2 * delay, LAST_DELAY_S)
                continue
            delay = FIRST_DELAY_S
            for lease in leases:
                self._take(lease)

    async def _claim(self, limit: int) -> list[Lease]:
        """Ask for tasks; `stop` ends the wait."""
        ask = partial(self._transport.claim, self.name, limit=limit, wait_ms=self._wait_ms, **self._asks_for)
        self._asking = asking = asyncio.ensure_future(_answer(ask, more_s=self._wait_ms / 1000))
        try:
            await asyncio.wait([asking])
        finally:
            self._asking = None
            asking.cancel()
        return [] if asking.cancelled() else asking.result()

    def _take(self, lease: Lease) -> None:
        work = _Work(lease)
        self._counts["claimed"] += 1
        task = asyncio.get_running_loop().create_task(self._do(work), name=f"laneway-task {work.task_id}")
        self._works[task] = work
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        work = self._works.pop(task)
        self._changed.set()
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("worker %s: task %s: %s", self.name, work.task_id, describe(error))

    async def _drained(self) -> None:
        """Wait for what has begun, as long as `stop` allows."""
        while self._works and not self._is_cut:
            self._changed.clear()
            await self._changed.wait()

    def _cut(self) -> None:
        self._is_cut = True
        self._changed.set()

    async def _cut_short(self) -> None:
        """End what is still there; a thread that does not listen is left behind after a while."""
        if self._works:
            for task in self._works:
                task.cancel()
            _, left = await asyncio.wait(list(self._works), timeout=STOP_GRACE_S)
            for task in left:
                _log.error("worker %s: task %s does not end", self.name, self._works[task].task_id)

    async def _pause(self, delay_s: float) -> None:
        """Wait before asking again, a little less than the others; `stop` ends it."""
        if not self._is_stopping:
            self._changed.clear()
            waiting = delay_s * (0.5 + self._host.random.random() / 2)
            timer = asyncio.get_running_loop().call_later(waiting, self._changed.set)
            try:
                await self._changed.wait()
            finally:
                timer.cancel()

    # ---- one task ----

    async def _do(self, work: _Work) -> None:
        task = work.lease.task
        try:
            handler = self._handler_of(task["command_type"])
            if handler is None:  # it was not asked for; given back, it would come again and again
                said = f"this worker does not handle {text_of(task['command_type'])}"
                await self._deliver(work, ExternalTaskResult(success=False, error=said))
            elif await self._start(work):
                await self._work(work, handler)
        except asyncio.CancelledError:
            if not work.has_begun:
                await self._give_back(work)
            raise

    async def _start(self, work: _Work) -> bool:
        """Ask whether it may begin, until somebody answers. Only then it has begun."""
        delay = FIRST_DELAY_S
        while not self._is_stopping:
            try:
                await _answer(partial(self._transport.start, work.task_id, work.lease.token))
            except LeaseLostError as error:
                self._counts["refused"] += 1
                _log.info("worker %s: task %s is not to be begun: %s", self.name, work.task_id, text_of(error))
                if delay > FIRST_DELAY_S:  # an answer was lost: the host may believe that it has begun
                    await self._say_not_begun(work)
                return False
            except FOR_GOOD:
                raise
            except Exception as error:  # noqa: BLE001 - a transport may raise anything; nobody has begun
                _log.info("worker %s: task %s waits for its start: %s", self.name, work.task_id, describe(error))
                await self._rest(delay)
                delay = min(2 * delay, LAST_DELAY_S)
            else:
                work.has_begun = True
                return True
        await self._give_back(work)
        return False

    async def _work(self, work: _Work, handler: Callable[[ExternalTask], Awaitable[object]]) -> None:
        """It may begin: work, show signs of life, and say what became of it."""
        run = asyncio.get_running_loop().create_task(
            self._run(work.lease.task, handler), name=f"laneway-work {work.task_id}"
        )
        work.run = run
        self._beat_later(work)
        try:
            await asyncio.wait([run])
            result = None if run.cancelled() else run.result()
            if result is None:
                self._counts["stopped"] += 1
            else:
                await self._deliver(work, result)
        finally:
            work.is_over = True
            for beat in (work.timer, work.beating):
                if beat is not None:
                    beat.cancel()
            if not run.done():
                run.cancel()
                await asyncio.wait([run])

    def _beat_later(self, work: _Work) -> None:
        """Most work is done before it has to show that it is alive: until then, that costs a timer."""
        loop = asyncio.get_running_loop()
        work.timer = loop.call_later(work.lease.lease_ms / 1000 / BEATS, self._beat_now, work)

    def _beat_now(self, work: _Work) -> None:
        work.beating = asyncio.get_running_loop().create_task(self._beat(work), name=f"laneway-beat {work.task_id}")

    async def _beat(self, work: _Work) -> None:
        """Show a sign of life; when nobody wants the task any more, stop the work."""
        try:
            wanted = await _answer(partial(self._transport.heartbeat, work.task_id, work.lease.token))
        except LeaseLostError as error:
            _log.warning("worker %s: task %s was lost: %s", self.name, work.task_id, text_of(error))
            wanted = False
        except Exception as error:  # noqa: BLE001 - a transport may raise anything; the next sign may get through
            _log.info("worker %s: no sign of life could be given: %s", self.name, describe(error))
            wanted = True
        if wanted and not work.is_over:
            self._beat_later(work)
        elif work.run is not None and not work.run.done():
            work.run.cancel()

    async def _run(
        self, task: ExternalTask, handler: Callable[[ExternalTask], Awaitable[object]]
    ) -> ExternalTaskResult | None:
        """Do it. None: its time was over, and the host knows."""
        try:
            async with asyncio.timeout(max(0, task.remaining_ms()) / 1000) as limit:
                value = await handler(task)
        except (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it raises is told, and ends nobody else's work
            if isinstance(error, TimeoutError) and limit.expired():
                return None
            return ExternalTaskResult(success=False, error=describe(error))
        try:
            return ExternalTaskResult.of(value)
        except UsageError as error:
            said = f"what the handler of {text_of(task['command_type'])} gave back cannot be sent: {text_of(error)}"
            return ExternalTaskResult(success=False, error=said)

    async def _deliver(self, work: _Work, result: ExternalTaskResult) -> None:
        """Say what became of it, until somebody hears it."""
        delay = FIRST_DELAY_S
        while True:
            try:
                await _answer(partial(self._transport.complete, work.task_id, work.lease.token, result))
            except FOR_GOOD as error:
                self._counts["refused"] += 1
                _log.warning("worker %s: the result of %s does not count: %s", self.name, work.task_id, text_of(error))
                return
            except Exception as error:  # noqa: BLE001 - a transport may raise anything; the result waits
                _log.info("worker %s: the result of %s waits: %s", self.name, work.task_id, describe(error))
                await self._rest(delay)
                delay = min(2 * delay, LAST_DELAY_S)
            else:
                self._counts["completed" if result.success else "failed"] += 1
                return

    async def _rest(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s * (0.5 + self._host.random.random() / 2))

    async def _say_not_begun(self, work: _Work) -> None:
        """If the host believes that a write has begun, it should know better; anything else goes to another worker."""
        if work.lease.effect is Effect.WRITE:
            failure = ExternalTaskResult(success=False, error=NOT_BEGUN)
            await self._try(self._transport.complete(work.task_id, work.lease.token, failure))

    async def _give_back(self, work: _Work) -> None:
        reason = f"{self.name} stops"
        refusal = await self._try(self._transport.release(work.task_id, work.lease.token, reason))
        if isinstance(refusal, ConflictError):  # it has heard the start, and its answer was lost
            await self._say_not_begun(work)

    async def _try(self, call: Awaitable[object]) -> Exception | None:
        """Say something that costs only time if nobody hears it: the lease ends by itself."""
        try:
            async with asyncio.timeout(STOP_GRACE_S):
                await call
        except Exception as error:  # noqa: BLE001 - as above
            _log.info("worker %s: %s", self.name, describe(error))
            return error
        return None

    # ---- doing it ----

    def _handler_of(self, command: object) -> Callable[[ExternalTask], Awaitable[object]] | None:
        own = self._handlers.get(str(command))
        if own is not None:
            return partial(self._call, own)
        tool = self._toolbox.get(str(command))
        return partial(self._run_tool, tool) if tool is not None else None

    async def _call(self, handler: Handler, task: ExternalTask) -> object:
        value = await self._in_thread(handler, task) if needs_thread(handler) else handler(task)
        return await value if inspect.isawaitable(value) else value

    async def _run_tool(self, tool: Tool, task: ExternalTask) -> ExternalTaskResult:
        spec = tool.spec
        payload = dict(task["payload"])
        workspace = self._workspace
        try:
            if "working_dir" in payload and "working_dir" not in spec.parameters.get("properties", {}):
                workspace = locate(workspace, str(payload.pop("working_dir"))).path
            arguments = tool.check(json.dumps(payload))
        except (ToolArgumentsError, ToolRefusedError) as error:
            return ExternalTaskResult(success=False, error=f"[Not run: {text_of(error)}]")
        if self._policy is not None:
            decision = decide(self._policy, spec, arguments, workspace=workspace)
            if decision.verdict is Verdict.DENY:
                return ExternalTaskResult(success=False, error=f"[Denied by the worker: {decision.reason}]")
        value: object = await tool.run(arguments, self._context(task, workspace))
        return _result_of(as_output(value))

    def _context(self, task: ExternalTask, workspace: str) -> ToolContext:
        return ToolContext(
            workspace=workspace,
            session_id=task["session_id"],
            run_id=task["run_id"],
            call_id=task["task_id"],
            key=task["idempotency_key"],
            attempt=task["attempt"],
            in_thread=self._in_thread,
            extra={
                "environment": self._environment,
                "hides": hides(self._policy, workspace),
                "allows_url": allows_url(self._policy),
            },
        )

    async def _in_thread(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Run a blocking function. A thread cannot be stopped: whoever is cancelled waits for it, slot in hand."""
        loop = asyncio.get_running_loop()
        call = partial(copy_context().run, fn, *args)
        future = loop.run_in_executor(self._threads, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if not future.cancel():
                await asyncio.wait([future])
            if future.done() and not future.cancelled():
                future.exception()  # nobody wants to know any more
            raise


async def _answer(ask: Callable[[], Awaitable[T]], *, more_s: float = 0) -> T:
    """What the host says, if it says anything."""
    async with asyncio.timeout(ANSWER_S + more_s):
        return await ask()


def _result_of(output: ToolOutput) -> ExternalTaskResult:
    if output.exit_code is not None:
        return ExternalTaskResult(result={"output": output.text, "exit_code": output.exit_code})
    if output.is_error:
        return ExternalTaskResult(success=False, error=output.text)
    return ExternalTaskResult(result={"output": output.text})


# ---- settings ----


def _name(name: str | None) -> str:
    if name is None:
        return f"{platform.node() or 'worker'}-{os.getpid()}"[:NAME_MAX]
    if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX:
        raise ConfigError(f"a worker has a name of 1 to {NAME_MAX} characters, not {name!r:.80}", setting="name")
    return name


def _reachable(transport: Transport) -> Transport:
    """Refuse what no host can be reached by; else the log would say so again and again."""
    missing = [
        name
        for name in ("claim", "start", "heartbeat", "complete", "release")
        if not callable(getattr(transport, name, None))
    ]
    if missing:
        found = f"{transport!r:.80}"
        if inspect.iscoroutine(transport):
            transport.close()  # it is told here, and not again by Python
            found = "a coroutine that nobody has awaited"
        raise ConfigError(
            f"a worker needs a transport, not {found}: it has no {', '.join(missing)}",
            setting="transport",
            value=transport,
            hint="LocalTransport(await session.desk()) in one process, FrameTransport(exchange) between two",
        )
    return transport


def _checked(handlers: Mapping[str, Handler] | None) -> dict[str, Handler]:
    hint = 'handlers={"bash": run}: the name of a tool, and what does its tasks'
    if handlers is not None and not isinstance(handlers, Mapping):
        said = f"handlers are functions by the name of a tool, not {handlers!r:.80}"
        raise ConfigError(said, setting="handlers", value=handlers, hint=hint)
    for name, handler in (handlers or {}).items():
        if not isinstance(name, str) or not name or not callable(handler):
            said = f"handlers are functions by the name of a tool, not {name!r}: {handler!r:.80}"
            raise ConfigError(said, setting="handlers", value=handlers, hint=hint)
    return dict(handlers or {})


def _toolbox(tools: Iterable[Tool | Callable[..., Any]] | None, handlers: object) -> Toolbox:
    if tools is None and handlers is None:
        from laneway.tools import builtin_tools

        return Toolbox(builtin_tools())
    if isinstance(tools, str | Mapping) or not isinstance(tools, Iterable | None):
        hint = "handlers={…}" if isinstance(tools, Mapping) else "Worker(transport, [my_tool])"
        raise ConfigError(f"tools must be a list of tools, not {tools!r:.80}", setting="tools", value=tools, hint=hint)
    return Toolbox(tools or ())


def _lanes(lanes: Sequence[str]) -> tuple[str, ...]:
    if isinstance(lanes, str):
        said = f"lanes must be a list, not {lanes!r:.80}"
        raise ConfigError(said, setting="lanes", value=lanes, hint=f"lanes=[{lanes!r:.80}]")
    return tuple(one_of("lanes", lane, SESSION_LANES) for lane in listed("lanes", lanes))


def _commands(commands: Sequence[str], able: Sequence[str]) -> tuple[str, ...]:
    """What it asks for. Without a name the host would give it everything, so there has to be one."""
    can = tuple(dict.fromkeys(able))
    if not can:
        hint = "give it handlers={…} or tools; without either it has the built-in tools"
        raise ConfigError("a worker without handlers and tools can do nothing", setting="handlers", hint=hint)
    if isinstance(commands, str):
        said = f"commands must be a list, not {commands!r:.80}"
        raise ConfigError(said, setting="commands", value=commands, hint=f"commands=[{commands!r:.80}]")
    wanted = listed("commands", commands)
    for name in wanted:
        if name not in can:
            close = difflib.get_close_matches(str(name), can, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"it can do: {', '.join(can[:50])}"
            said = f"commands has {name!r:.80}, which this worker cannot do"
            raise ConfigError(said, setting="commands", value=name, hint=hint)
    if len(wanted or can) > NAMES_MAX:
        said = f"a worker can ask for {NAMES_MAX:,} commands, not {len(wanted or can):,}"
        raise ConfigError(
            said, setting="commands", hint="name some of them in commands=[…], and others in another worker"
        )
    return tuple(dict.fromkeys(wanted)) or can


def _folder(workspace: str | os.PathLike[str]) -> str:
    if not isinstance(workspace, str | os.PathLike):
        raise ConfigError(f"workspace must be a path, not {workspace!r:.80}", setting="workspace", value=workspace)
    place = os.path.expanduser(os.fspath(workspace))
    if not os.path.exists(place):  # a worker with handlers alone needs none
        _log.warning("the workspace %s of a worker does not exist: tools that work there will say so", workspace)
    elif not os.path.isdir(place):
        said = f"the workspace {os.fspath(workspace)!r} is not a folder"
        raise ConfigError(said, setting="workspace", value=workspace)
    return os.path.realpath(place)


def _policy(policy: PermissionPolicy | None) -> PermissionPolicy | None:
    if policy is not None and not isinstance(policy, PermissionPolicy):
        said = f"permission_policy must be a PermissionPolicy, not {policy!r:.80}"
        raise ConfigError(said, setting="permission_policy", value=policy, hint="PermissionPolicy(deny=[…])")
    if policy is not None:
        check_policy(policy)
    return policy


def _environment(environment: Mapping[str, str] | None) -> dict[str, str]:
    given = {} if environment is None else environment
    if not isinstance(given, Mapping) or not all(isinstance(each, str) for pair in given.items() for each in pair):
        said = "environment has text by the names of variables"
        raise ConfigError(said, setting="environment", hint='environment={"LANG": "C.UTF-8"}')
    return dict(given)
