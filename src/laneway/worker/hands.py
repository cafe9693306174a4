"""What does the tasks of a worker: functions of its own, and tools in a folder of its own.

The folder is the one that the mapping has for the workspace of the task, else the workspace of the worker. Paths of the
host's folder in the arguments `path` and `working_dir` mean the same place in the folder here.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import posixpath
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Final

from laneway.dialogue import ToolContext, ToolOutput, ToolSpec
from laneway.errors import ToolArgumentsError, text_of
from laneway.external import ExternalTask, ExternalTaskResult
from laneway.kernel.permissions import Hides, Verdict, allows_url, decide, hides
from laneway.policies import PermissionPolicy
from laneway.ports import Tool
from laneway.records import Effect
from laneway.runtime.executor import needs_thread
from laneway.tools.outputs import ToolRefusedError, as_output
from laneway.tools.paths import locate
from laneway.tools.registry import Toolbox
from laneway.tools.sandbox import Sandbox
from laneway.worker.settings import Handler, WorkerLimits
from laneway.worker.work import Does

__all__ = ("Hands", "Places", "below")

PATHS: Final = ("path", "working_dir")
SHELL: Final = "bash"
LINE_MAX: Final = 200
OUTPUT_MAX: Final = 30_000


def below(folder: str, path: str) -> str | None:
    """The rest of a path below a folder, both of some other machine; `.` for the folder, None if it is elsewhere."""
    root, place = posixpath.normpath(folder), posixpath.normpath(path)
    if place == root:
        return "."
    start = root if root.endswith("/") else f"{root}/"
    return place[len(start) :] if place.startswith(start) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where the workspaces of the host are here. `named` by their names, `folders` by their folders on the host."""

    workspace: str | None
    named: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)

    @property
    def all(self) -> tuple[str, ...]:
        """Every folder here."""
        found = (self.workspace, *self.named.values(), *self.folders.values())
        return tuple(dict.fromkeys(each for each in found if each is not None))

    def folder_of(self, task: ExternalTask) -> str:
        """The folder of a task; refuses a task that has none here."""
        name, host = str(task.get("workspace_name") or ""), str(task["workspace"] or "")
        if name in self.named:
            return self.named[name]
        fitting = [(len(folder), folder, rest) for folder in self.folders if (rest := below(folder, host)) is not None]
        if fitting:
            _, folder, rest = max(fitting)
            return locate(self.folders[folder], rest).path
        if self.workspace is None:
            raise ToolRefusedError(f"this worker has no folder for the workspace {name or host!r}")
        return self.workspace


def here(task: ExternalTask) -> dict[str, Any]:
    """The arguments of a task, with paths of the host's folder from that folder on."""
    payload, host = dict(task["payload"]), str(task["workspace"] or "")
    for name in PATHS:
        given = payload.get(name)
        if host and isinstance(given, str) and given.startswith("/"):
            rest = below(host, given)
            payload[name] = given if rest is None else rest
    return payload


@dataclass(slots=True, kw_only=True)
class Hands:
    """Everything a worker can do."""

    handlers: dict[str, Handler]
    toolbox: Toolbox
    places: Places
    policy: PermissionPolicy | None
    environment: dict[str, str]
    limits: WorkerLimits | None
    sandbox: Sandbox | None
    hidden: tuple[str, ...] = ()
    threads: ThreadPoolExecutor | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """What it can do."""
        return tuple(dict.fromkeys((*self.handlers, *self.toolbox)))

    def runs_commands(self, asked: Sequence[str]) -> bool:
        """Whether there are commands of a shell among what is asked for, which read what the worker can read."""
        return SHELL in asked and SHELL in self.toolbox and SHELL not in self.handlers

    def in_reach(self) -> list[str]:
        """What is hidden, and lies in a folder that commands work in."""
        return [each for each in self.hidden if any(below(place, each) is not None for place in self.places.all)]

    def doing(self, command: object) -> Does | None:
        """What does a command; None if nothing does."""
        own = self.handlers.get(str(command))
        if own is not None:
            return partial(self._call, own)
        tool = self.toolbox.get(str(command))
        return partial(self._run_tool, tool) if tool is not None else None

    async def _call(self, handler: Handler, task: ExternalTask) -> object:
        spec = ToolSpec(name=task["command_type"], effect=Effect(task["effect"]))
        denied = self._denial(spec, here(task), self.places.workspace or "")
        if denied is not None:
            return denied
        value = await self._in_thread(handler, task) if needs_thread(handler) else handler(task)
        return await value if inspect.isawaitable(value) else value

    async def _run_tool(self, tool: Tool, task: ExternalTask) -> ExternalTaskResult:
        spec = tool.spec
        try:
            payload = here(task)
            workspace = self.places.folder_of(task)
            if "working_dir" in payload and "working_dir" not in spec.parameters.get("properties", {}):
                workspace = locate(workspace, str(payload.pop("working_dir"))).path
            arguments = tool.check(json.dumps(payload))
        except (ToolArgumentsError, ToolRefusedError) as error:
            return ExternalTaskResult(success=False, error=f"[Not run: {text_of(error)}]")
        denied = self._denial(spec, arguments, workspace)
        if denied is not None:
            return denied
        value: object = await tool.run(arguments, self._context(task, workspace))
        return result_of(as_output(value))

    def _denial(self, spec: ToolSpec, arguments: dict[str, Any], workspace: str) -> ExternalTaskResult | None:
        """What is said instead of doing what the worker's own policy denies."""
        if self.policy is None:
            return None
        decision = decide(self.policy, spec, arguments, workspace=workspace)
        if decision.verdict is not Verdict.DENY:
            return None
        return ExternalTaskResult(success=False, error=f"[Denied by the worker: {decision.reason}]")

    def _context(self, task: ExternalTask, workspace: str) -> ToolContext:
        limits = self.limits
        return ToolContext(
            workspace=workspace,
            session_id=task["session_id"],
            run_id=task["run_id"],
            call_id=task["task_id"],
            key=task["idempotency_key"],
            attempt=task["attempt"],
            output_max=OUTPUT_MAX if limits is None or limits.output_max is None else limits.output_max,
            report=partial(_last_line, task),
            in_thread=self._in_thread,
            extra={
                "environment": self.environment,
                "hides": self._hides(workspace),
                "allows_url": allows_url(self.policy),
                "limits": {} if limits is None else limits.of_processes(),
                "sandbox": self.sandbox,
            },
        )

    def _hides(self, workspace: str) -> Hides | None:
        """What tools for files do not see: what the policy says, and what is secret."""
        denied = hides(self.policy, workspace)
        if not self.hidden:
            return denied

        def is_hidden(path: str, tool: str = "grep") -> bool:
            place = posixpath.normpath(posixpath.join(workspace, path))
            if any(below(each, place) is not None for each in self.hidden):
                return True
            return denied is not None and denied(path, tool)

        return is_hidden

    async def _in_thread(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Run a blocking function. A thread cannot be stopped: whoever is cancelled waits for it, slot in hand."""
        call = _Call(partial(copy_context().run, fn, *args))
        future = asyncio.get_running_loop().run_in_executor(self.threads, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if call.drop():
                future.cancel()
            else:
                await asyncio.wait([future])
                if not future.cancelled():
                    future.exception()  # nobody wants to know any more
            raise


class _Call:
    """A call that waits for a thread. The future of it can be cancelled although a thread has begun: this knows."""

    __slots__ = ("_call", "_has_begun", "_is_dropped", "_lock")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._lock = Lock()
        self._has_begun = False
        self._is_dropped = False

    def __call__(self) -> Any:
        with self._lock:
            if self._is_dropped:
                return None
            self._has_begun = True
        try:
            return self._call()
        except StopIteration as error:  # no future can carry it: the worker would wait for ever
            raise RuntimeError("the function raised StopIteration") from error

    def drop(self) -> bool:
        """Nobody wants it any more; False if a thread is at it."""
        with self._lock:
            self._is_dropped = True
            return not self._has_begun


def _last_line(task: ExternalTask, text: str) -> None:
    """What a tool shows while it works is how far it is."""
    line = text.rstrip().rpartition("\n")[2].strip()
    if line:
        task.progress_is(line[:LINE_MAX])


def result_of(output: ToolOutput) -> ExternalTaskResult:
    """What a tool gave back, as a result. A command that went over a limit has failed; any other exit is an answer."""
    if output.exit_code is not None:
        from laneway.tools.shell import OVER  # whoever has a result of a command has it loaded

        said, _, last = output.text.rpartition("\n")
        if output.exit_code and last.startswith(OVER):
            result = {"output": said, "exit_code": output.exit_code}
            return ExternalTaskResult(success=False, result=result, error=last)
        return ExternalTaskResult(result={"output": output.text, "exit_code": output.exit_code})
    if output.is_error:
        return ExternalTaskResult(success=False, error=output.text)
    return ExternalTaskResult(result={"output": output.text})
