"""The worker itself: its settings, the loops that take tasks, and how it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from laneway.errors import ConfigError, UsageError, describe
from laneway.external import ExternalTask, Lease, Progress
from laneway.kernel.task_board import LEASE_MAX_MS
from laneway.policies import PermissionPolicy
from laneway.ports import Tool, Transport
from laneway.records import DURATION_MAX_MS, check_labels, check_whole
from laneway.system import HostEnv
from laneway.tools.sandbox import Sandbox
from laneway.worker import settings
from laneway.worker.hands import Hands, Places
from laneway.worker.host_line import STOP_GRACE_S, HostLine, Pauses, is_for_good, takes
from laneway.worker.settings import Handler, WorkerLimits
from laneway.worker.work import FACTS, End, Work

__all__ = ("THREADS", "Worker", "WorkerNews", "WorkerStats")

_log = logging.getLogger("laneway")

F = TypeVar("F", bound=Callable[..., Any])
WAIT_MS = 20_000
THREADS = "laneway-worker"
"""How the names of its threads begin."""
QUICK_S = 0.1  # an answer without a task that comes earlier has not waited for one
QUICK_PAUSE_S = 1.0
FACT_MAX = 200


class WorkerStats(NamedTuple):
    """What a worker has done so far."""

    running: int
    claimed: int
    completed: int
    failed: int
    stopped: int  # nobody wanted them any more
    refused: int  # the task, or its result, was somebody else's by then
    returned: int = 0  # given back to the host


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerNews:
    """What happens in a worker, for whoever watches it.

    `kind` is `ready` (the host has answered for the first time), `lost` and `back` (it does not answer, it does again),
    `denied` (it says that this worker has no right to ask), `began`, `progress` or `ended` (a task: `text` is then the
    `End`).
    """

    kind: str
    text: str = ""
    task: ExternalTask | None = None
    progress: Progress | None = None


class _Counter:
    """Where tasks of some lanes are taken, as long as there is room."""

    __slots__ = ("asking", "busy", "changed", "lanes", "width")

    def __init__(self, lanes: tuple[str, ...], width: int) -> None:
        self.lanes = lanes
        self.width = width
        self.busy = 0
        self.changed = asyncio.Event()
        self.asking: asyncio.Task[list[Lease]] | None = None

    def ask_again(self) -> None:
        """Wait no longer for an answer."""
        self.changed.set()
        if self.asking is not None:
            self.asking.cancel()


class Worker:
    """Does external tasks, up to `concurrency` at once, or so many of each lane (`{"execute": 2, "query": 8}`).

    Without `tools` and `handlers` it has the built-in tools. It asks for tasks that these can do, of every lane;
    `commands` and `lanes` name the part of them that it asks for, `workspaces` those of the gateway that it serves, and
    `labels` what it has: a task that needs labels goes to workers that have them all.

    Paths begin at `workspace`, or at the `working_dir` in it that a payload names. `mapping` has folders here for
    folders of the host (or for the name of a workspace), and what lies below one lies below the other. If it is given
    and no `workspace`, then tasks of other folders fail.

    A `permission_policy` of its own can deny what the host has let pass, and hides files from tools that search.
    `limits` and `sandbox` hold for the processes that tools start. `hidden` are files, such as that of a token, which
    tools for files and commands in the sandbox do not get to see; other commands do. `lease_ms` is how long it would
    like to be allowed to be silent.
    """

    def __init__(  # noqa: PLR0913 - the public surface is a contract: keyword options, not option records
        self,
        transport: Transport | None = None,
        tools: Iterable[Tool | Callable[..., Any]] | None = None,
        *,
        handlers: Mapping[str, Handler] | None = None,
        name: str | None = None,
        lanes: Sequence[str] = (),
        commands: Sequence[str] = (),
        concurrency: int | Mapping[str, int] = 4,
        labels: Sequence[str] = (),
        workspaces: Sequence[str] = (),
        workspace: str | os.PathLike[str] | None = None,
        mapping: Mapping[str, str | os.PathLike[str]] | None = None,
        permission_policy: PermissionPolicy | None = None,
        environment: Mapping[str, str] | None = None,
        limits: WorkerLimits | None = None,
        sandbox: bool | Sandbox = False,
        hidden: Sequence[str | os.PathLike[str]] = (),
        wait_ms: int = WAIT_MS,
        lease_ms: int | None = None,
        host: HostEnv | None = None,
    ) -> None:
        given = {**locals()}
        # As it was made: `copy` and the command line make others like it.
        self.given: dict[str, Any] = {name: given[name] for name in given if name not in ("self", "transport")}
        if tools is not None and not isinstance(tools, str | Mapping) and isinstance(tools, Iterable):
            tools = self.given["tools"] = list(tools)  # it may be read only once, and `copy` reads it again
        check_whole(wait_ms, setting="wait_ms", least=1, most=DURATION_MAX_MS)
        if lease_ms is not None:
            check_whole(lease_ms, setting="lease_ms", least=1, most=LEASE_MAX_MS)
        if limits is not None and not isinstance(limits, WorkerLimits):
            raise ConfigError(f"limits must be WorkerLimits, not {limits!r:.80}", setting="limits", value=limits)
        self.name = settings.checked_name(name)
        self.labels = check_labels(labels)
        self._widths = settings.checked_widths(concurrency, settings.checked_lanes(lanes))
        self._hands = _hands(self.given)
        self._commands = commands
        self._workspaces = settings.checked_names("workspaces", workspaces)
        self._wait_ms = wait_ms
        self._lease_ms = lease_ms
        self._host = host or HostEnv()
        self._instance = self._host.ids.new_id("worker")
        self._listeners: list[Callable[[WorkerNews], None]] = []
        self._line: HostLine | None = None
        self._heir: Worker | None = None
        self._asks_for: dict[str, Any] = {}
        self._works: dict[asyncio.Task[End], tuple[Work, _Counter]] = {}
        self._counters: list[_Counter] = []
        self._changed = asyncio.Event()
        self._is_ready = False
        self._is_stopping = False
        self._is_cut = False
        self._running: asyncio.Future[None] | None = None
        self._background: asyncio.Task[None] | None = None
        self._counts = dict.fromkeys(("claimed", *End), 0)
        if transport is not None:
            self.connect(transport)

    def __repr__(self) -> str:
        return f"<Worker {self.name!r}: {len(self._works)} of {self._width} busy>"

    @property
    def _width(self) -> int:
        return sum(width for _, width in self._widths)

    @property
    def stats(self) -> WorkerStats:
        """What it has done so far."""
        return WorkerStats(running=len(self._works), **{str(name): count for name, count in self._counts.items()})

    @property
    def commands(self) -> tuple[str, ...]:
        """What it asks for. Raises `ConfigError` for a command that it cannot do."""
        return settings.checked_commands(self._commands, self._hands.names)

    # ---- making it ----

    def handler(self, *commands: str) -> Callable[[F], F]:
        """Have a function do the tasks of some tools: `@worker.handler("bash")`, before it runs."""
        if not commands or not all(isinstance(name, str) and name for name in commands):
            said = f"a handler has the name of a tool, not {commands!r:.80}"
            raise ConfigError(said, setting="handlers", value=commands, hint='@worker.handler("bash")')

        def register(function: F) -> F:
            if self._running is not None:
                raise UsageError("this worker runs already, and has told its host what it can do")
            self._hands.handlers.update(settings.checked_handlers(dict.fromkeys(commands, function)))
            return function

        return register

    def connect(self, transport: Transport) -> None:
        """Name the host, for a worker that was made without one."""
        if self._line is not None:
            raise UsageError("this worker has a transport", hint="make a new one, or copy it")
        settings.check_transport(transport)
        _ = self.commands  # those that it cannot do are refused here
        wanted: dict[str, Any] = {"labels": self.labels, "workspaces": self._workspaces, "lease_ms": self._lease_ms}
        wanted = {name: value for name, value in wanted.items() if value}
        strange = [name for name in wanted if not takes(transport.claim, name)]
        if strange:
            said = f"{transport!r:.80} cannot tell the host of {', '.join(strange)}"
            raise ConfigError(said, setting=strange[0], hint=f"its claim(…) has to take {', '.join(strange)}")
        if takes(transport.claim, "about"):
            wanted["about"] = self._about()
        self._asks_for = wanted
        self._line = HostLine(self.name, transport, self._host, self._heard)

    def copy(self, **changes: Any) -> Worker:
        """A new worker like this one, handlers included, with other settings and without a transport."""
        strange = changes.keys() - self.given.keys()
        if strange:
            raise UsageError(f"a worker has no setting {', '.join(sorted(strange))}")
        handlers = self._hands.handlers
        made = Worker(**{**self.given, **changes})
        for name, function in handlers.items():
            made._hands.handlers.setdefault(name, function)
        self._heir = made  # handlers that were written for this one may ask it for their folder
        return made

    def watch(self, listener: Callable[[WorkerNews], None]) -> None:
        """Be told what happens in it, on its loop."""
        self._listeners.append(listener)

    def folder_of(self, task: ExternalTask) -> str:
        """The folder here of the task's workspace, for handlers of one's own."""
        return self._hands.places.folder_of(task) if self._heir is None else self._heir.folder_of(task)

    def _about(self) -> dict[str, Any]:
        from laneway import __version__  # the package loads this module

        facts = {"instance": self._instance, "version": __version__, "host": platform.node()}
        return {
            **{name: value[:FACT_MAX] for name, value in facts.items()},
            "concurrency": self._width,
            "pid": os.getpid(),
        }

    # ---- running ----

    async def run(self) -> None:
        """Take tasks and do them until `stop`. Raises what the host refuses for good, such as a lane without a name."""
        if self._running is not None:
            raise UsageError("this worker runs already, or has run", hint="make a new one")
        if self._line is None:
            raise UsageError("this worker has no transport", hint="Worker(transport), or worker.connect(transport)")
        self._asks_for["commands"] = self.commands
        self._running = asyncio.get_running_loop().create_future()
        self._hands.threads = ThreadPoolExecutor(self._width + 4, thread_name_prefix=THREADS)
        self._counters = [_Counter(lanes, width) for lanes, width in self._widths]
        _log.info("worker %s asks for %s", self.name, ", ".join(self._asks_for["commands"]))
        if self._hands.sandbox is not None and self._hands.handlers:
            said = "worker %s: the sandbox confines commands of tools; these handlers run as they are: %s"
            _log.warning(said, self.name, ", ".join(self._hands.handlers))
        if self._hands.sandbox is None and self._hands.runs_commands(self._asks_for["commands"]):
            for path in self._hands.in_reach():
                said = "worker %s: its commands can read %s in its workspace: keep it elsewhere, or use the sandbox"
                _log.warning(said, self.name, path)
        try:
            await self._take_all(self._line)
            await self._drained()
        finally:  # whoever cancels it, too: nothing stays behind
            self._stop_taking()
            try:
                await self._cut_short()
            finally:
                self._hands.threads.shutdown(wait=False, cancel_futures=True)
                self._running.set_result(None)

    async def stop(self, *, timeout_ms: int = 30_000) -> None:
        """Take nothing more, give back what has not begun, and finish the rest.

        What has not ended after `timeout_ms` is stopped and given back: another worker may do it again, unless it is a
        `write`, which is unknown then. A second call may cut a first one short.
        """
        check_whole(timeout_ms, setting="timeout_ms", least=0, most=DURATION_MAX_MS)
        self._stop_taking()
        if self._running is None or self._running.done():
            return
        timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, self._cut)
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
        if self._running is None and not self._background.done():  # it was left before it had begun
            self._background.cancel()
            return
        await self.stop()
        await self._background

    def _stop_taking(self) -> None:
        self._is_stopping = True
        if self._line is not None:
            self._line.stopping.set()
        for counter in self._counters:
            counter.ask_again()

    async def _take_all(self, line: HostLine) -> None:
        """Take tasks at every counter; what ends one of them ends all."""
        if len(self._counters) == 1:
            await self._take_tasks(line, self._counters[0])
            return
        loop = asyncio.get_running_loop()
        takers = [
            loop.create_task(self._take_tasks(line, counter), name=f"laneway-claims {counter.lanes}")
            for counter in self._counters
        ]
        try:
            await asyncio.wait(takers, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for taker in takers:
                taker.cancel()
            ended = await asyncio.gather(*takers, return_exceptions=True)
        for error in ended:
            if isinstance(error, BaseException) and not isinstance(error, asyncio.CancelledError):
                raise error

    async def _take_tasks(self, line: HostLine, counter: _Counter) -> None:
        pauses = Pauses(self._host.random)
        loop = asyncio.get_running_loop()
        is_there = False  # the first question does not wait for a task: its answer says that somebody is there
        while not self._is_stopping:
            if line.denial is not None:
                raise line.denial
            counter.changed.clear()
            free = counter.width - counter.busy
            if free <= 0:
                await counter.changed.wait()
                continue
            asked_s = loop.time()
            try:
                leases = await self._claim(line, counter, free, wait_ms=self._wait_ms if is_there else 0)
            except Exception as error:
                if is_for_good(error):
                    raise
                is_there = False
                await line.pause(pauses.next_s(error))
                continue
            was_there = is_there
            if not is_there:
                is_there = True
                self._say_ready()
            for lease in leases[:free]:
                self._take(line, counter, lease)
            if len(leases) > free:
                await self._send_back(line, leases[free:])
            if leases or loop.time() - asked_s >= min(QUICK_S, self._wait_ms / 2_000):
                pauses.begin_again()
            elif was_there:  # somebody on the way there does not wait: asking all the time would be all that it does
                await line.pause(min(pauses.next_s(None), QUICK_PAUSE_S))

    async def _send_back(self, line: HostLine, leases: Sequence[Lease]) -> None:
        """A host has given more than it was asked for."""
        _log.warning("worker %s: the host gave %s tasks too many, which are given back", self.name, len(leases))
        sent = (line.try_release(lease.task["task_id"], lease.token, begun=False) for lease in leases)
        await asyncio.gather(*sent)

    async def _claim(self, line: HostLine, counter: _Counter, limit: int, *, wait_ms: int) -> list[Lease]:
        """Ask for tasks; `stop` ends the wait."""
        claim = line.claim(limit, wait_ms, {**self._asks_for, "lanes": counter.lanes})
        counter.asking = asking = asyncio.get_running_loop().create_task(claim, name="laneway-claim")
        try:
            await asyncio.wait([asking])
        finally:
            counter.asking = None
            asking.cancel()
        return [] if asking.cancelled() else asking.result()

    def _take(self, line: HostLine, counter: _Counter, lease: Lease) -> None:
        work = Work(lease, line, self._hands.doing(lease.task["command_type"]), self._told)
        self._counts["claimed"] += 1
        counter.busy += 1
        task = asyncio.get_running_loop().create_task(work.do(), name=f"laneway-task {work.task_id}")
        self._works[task] = work, counter
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[End]) -> None:
        work, counter = self._works.pop(task)
        counter.busy -= 1
        counter.changed.set()
        self._changed.set()
        error = None if task.cancelled() else task.exception()
        end = End.RETURNED
        if error is not None:
            _log.error("worker %s: task %s: %s", self.name, work.task_id, describe(error))
            end = End.REFUSED
        elif not task.cancelled():
            end = task.result()
        self._counts[end] += 1
        if work.has_begun:
            said = f"{end.value}: {work.failure}" if work.failure else end.value
            extra = {FACTS: {**work.facts, "outcome": end.value}}
            _log.info("worker %s: task %s is %s", self.name, work.task_id, said, extra=extra)
            self._tell("ended", end.value, work)

    async def _drained(self) -> None:
        """Wait for what has begun, as long as `stop` allows."""
        while self._works and not self._is_cut:
            self._changed.clear()
            await self._changed.wait()

    def _cut(self) -> None:
        self._is_cut = True
        self._changed.set()

    async def _cut_short(self) -> None:
        """End what is still there and give it back; a thread that does not listen is left behind after a while."""
        if not self._works:
            return
        for task in self._works:
            task.cancel()
        _, left = await asyncio.wait(list(self._works), timeout=2 * STOP_GRACE_S)
        stubborn = [self._works[task][0] for task in left]  # while they are handed back, they may end after all
        for work in stubborn:
            _log.error("worker %s: task %s does not end", self.name, work.task_id)
        await asyncio.gather(*(work.hand_back() for work in stubborn))

    # ---- what others hear of it ----

    def _say_ready(self) -> None:
        if not self._is_ready:
            self._is_ready = True
            self._tell("ready", "", None)

    def _heard(self, kind: str, said: str) -> None:
        _log.warning("worker %s: %s", self.name, said, extra={FACTS: {"worker": self.name}})
        if kind == "denied":  # a claim that waits would hear of it much later
            for counter in self._counters:
                counter.ask_again()
        self._tell(kind, said, None)

    def _told(self, work: Work, progress: Progress | None) -> None:
        """A task has begun, or says how far it is."""
        if progress is not None:
            self._tell("progress", progress.text, work, progress)
            return
        about = (self.name, work.task_id, work.task["command_type"], work.task["session_id"])
        _log.info("worker %s: task %s begins: %s for session %s", *about, extra={FACTS: work.facts})
        self._tell("began", "", work)

    def _tell(self, kind: str, text: str, work: Work | None, progress: Progress | None = None) -> None:
        for listener in self._listeners:
            try:
                listener(WorkerNews(kind=kind, text=text, task=None if work is None else work.task, progress=progress))
            except Exception as error:  # noqa: BLE001 - who watches must not disturb
                _log.error("worker %s: who watches it raised %s", self.name, describe(error))


def _hands(given: Mapping[str, Any]) -> Hands:
    """Everything that does tasks, from the settings."""
    named, folders = settings.checked_mapping(given["mapping"])
    workspace = given["workspace"]
    if workspace is None and not (named or folders):
        workspace = "."
    places = Places(
        workspace=None if workspace is None else settings.checked_workspace(workspace), named=named, folders=folders
    )
    handlers = settings.checked_handlers(given["handlers"])
    hidden = settings.checked_hidden(given["hidden"])
    sandbox = settings.checked_sandbox(given["sandbox"], places.all, hidden)
    toolbox = settings.checked_toolbox(given["tools"], given["handlers"], sandbox)
    return Hands(
        handlers=handlers,
        toolbox=toolbox,
        places=places,
        policy=settings.checked_policy(given["permission_policy"]),
        environment=settings.checked_environment(given["environment"]),
        limits=given["limits"],
        sandbox=sandbox,
        hidden=hidden,
    )
