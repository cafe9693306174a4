"""Tools called by the host itself, without a model: `session.bash("ls")`, `session.submit("query", …)`.

The host is its own approver: what its policy denies is refused, what would have to be asked is made.
"""

from __future__ import annotations

import asyncio
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from laneway.agent.call_results import within
from laneway.agent.gates import Asked, Gates
from laneway.agent.hearing import heard_run
from laneway.dialogue import ResultStatus, ToolContext, ToolOutput, ToolResult, ToolSpec, compact_json, copied
from laneway.errors import JobTimeoutError, PermissionDeniedError, ToolFailedError, UsageError, describe, text_of
from laneway.records import Effect

if TYPE_CHECKING:
    from laneway.agent.agent import AsyncAgent
    from laneway.agent.externals import Externals
    from laneway.agent.host import Host
    from laneway.agent.session_lanes import SessionLanes
    from laneway.agent.settings import SessionSettings
    from laneway.options import LaneHandlerConfig
    from laneway.ports import Tool

__all__ = ("DirectTools",)


class _Made:
    """A call of the host: whether it has begun, and whether the hooks have heard of its end."""

    __slots__ = ("asked", "began_ms", "handler", "is_told")

    def __init__(self, asked: Asked, handler: LaneHandlerConfig) -> None:
        self.asked = asked
        self.handler = handler
        self.began_ms = -1
        self.is_told = False


class DirectTools(ABC):
    """What a host may do in a session beside talking to it."""

    toolbox: Mapping[str, Tool]
    settings: SessionSettings
    lanes: SessionLanes | None
    tool_context: ToolContext
    gates: Gates
    host: Host
    externals: Externals
    _agent: AsyncAgent

    @abstractmethod
    async def ready(self) -> Any:
        """Open what is needed."""

    @abstractmethod
    def lane_of(self, spec: ToolSpec) -> str:
        """The lane of a tool."""

    def spec_of(self, name: str) -> ToolSpec | None:
        """What a tool of this session is."""
        tool = self.toolbox.get(name)
        return None if tool is None else tool.spec

    async def tool(self, name: str, arguments: Mapping[str, Any] | None = None) -> ToolOutput:
        """Call a tool of this session, in its lane; raises what the tool raises."""
        await self.ready()
        asked = await self._admitted(name, arguments or {})
        tool, lane = asked.tool, asked.lane
        made = _Made(asked, self.externals.handler_of(asked))
        attempt = functools.partial(self._call, made)
        limit = self.externals.limit_of(asked, made.handler)
        try:
            if self.lanes is None:
                return await within(attempt, limit)
            job = self.lanes.submit_tool(
                replace(tool.spec, timeout_ms=limit),
                attempt,
                lane=lane,
                payload={"tool": name, "arguments": asked.arguments},
                label=name,
            )
            try:
                return await job
            except asyncio.CancelledError:
                job.cancel("its caller has gone")
                raise
        except Exception as error:
            await self._tell_failed(made, error)
            raise

    async def _admitted(self, name: str, arguments: Mapping[str, Any]) -> Asked:
        tool = self.toolbox.get(name)
        if tool is None:
            known = ", ".join(self.toolbox) or "none"
            raise UsageError(f"there is no tool {name!r}", hint=f"there are: {known}")
        try:
            text = compact_json(dict(arguments))
        except (TypeError, ValueError) as error:
            raise UsageError(f"the arguments of {name!r} are no JSON: {error}") from None
        key = self.host.env.ids.new_id("call")
        asked = Asked("", tool, tool.check(text), text, self.lane_of(tool.spec), key=key)
        refusal = await self.gates.admit(asked)
        if refusal is not None:
            hint = "the permissions of this session deny it" if refusal.gate == "permission" else f"a {refusal.gate}"
            raise PermissionDeniedError(f"{name}: {refusal.reason}", hint=hint)
        return asked

    async def _call(self, made: _Made, attempt: int) -> ToolOutput:
        asked = made.asked
        context = replace(self.tool_context, key=asked.key, attempt=attempt)
        made.began_ms = self.host.inbox.engine.now()
        if made.handler.mode == "external":
            output = await self.externals.direct(asked, made.handler, context)
        else:
            output = await heard_run(asked.tool, copied(asked.arguments), context)
        made.is_told = True
        await self.gates.tell_output(asked, output, self._took(made))
        return output

    def _took(self, made: _Made) -> int:
        return max(0, self.host.inbox.engine.now() - made.began_ms)

    async def _tell_failed(self, made: _Made, error: BaseException) -> None:
        """A call has ended with an exception; one that was made may have had its effect, so the hooks are told."""
        if made.began_ms < 0 or made.is_told:
            return
        made.is_told = True
        asked, status, said = made.asked, ResultStatus.ERROR, f"[Failed: {describe(error)}]"
        if isinstance(error, TimeoutError | JobTimeoutError):
            status, said = ResultStatus.TIMED_OUT, f"[Timed out: {text_of(error)}]"
        elif isinstance(error, asyncio.CancelledError):
            status = ResultStatus.CANCELLED if asked.tool.spec.effect is Effect.READ else ResultStatus.UNKNOWN
            said = "[Cut off: nobody waited for it any longer]"
        result = ToolResult(call_id=asked.call_id, name=asked.name, output=said, status=status)
        if self.gates.wants_ends:
            await self.gates.tell_end(asked, result, self._took(made))

    async def _run_payload(self, tool: str, arguments: Mapping[str, Any], *, attempt: int) -> Any:
        """Run a payload that is in a lane already."""
        asked = await self._admitted(tool, arguments)
        made = _Made(asked, self.externals.handler_of(asked))
        try:
            output = await self._call(made, attempt)
        except asyncio.CancelledError as error:  # its time is over, or its job was ended: nothing may wait here
            telling = self._tell_failed(made, error)
            self._agent.keep(asyncio.get_running_loop().create_task(telling, name=f"laneway-told {tool}"))
            raise
        except Exception as error:
            await self._tell_failed(made, error)
            raise
        return output.text

    async def _text(self, name: str, **arguments: Any) -> str:
        output = await self.tool(name, {key: value for key, value in arguments.items() if value is not None})
        if output.is_error and output.exit_code is None:
            raise ToolFailedError(output.text, tool=name)
        return output.text

    async def read_file(self, path: str, offset: int | None = None, limit: int | None = None) -> str:
        """The tool `read`."""
        return await self._text("read", path=path, offset=offset, limit=limit)

    async def write_file(self, path: str, content: str) -> str:
        """The tool `write`."""
        return await self._text("write", path=path, content=content)

    async def edit_file(self, path: str, old: str, new: str) -> str:
        """The tool `edit`."""
        return await self._text("edit", path=path, old=old, new=new)

    async def patch_file(self, path: str, diff: str) -> str:
        """The tool `patch`."""
        return await self._text("patch", path=path, diff=diff)

    async def ls(self, path: str | None = None) -> str:
        """The tool `ls`."""
        return await self._text("ls", path=path)

    async def glob(self, pattern: str, path: str | None = None) -> str:
        """The tool `glob`."""
        return await self._text("glob", pattern=pattern, path=path)

    async def grep(self, pattern: str, path: str | None = None, glob: str | None = None) -> str:
        """The tool `grep`."""
        return await self._text("grep", pattern=pattern, path=path, glob=glob)

    async def bash(self, command: str, timeout_ms: int | None = None, working_dir: str | None = None) -> str:
        """The tool `bash`: what it printed, whatever its exit code; `tool("bash", …)` has that, too."""
        return await self._text("bash", command=command, timeout_ms=timeout_ms, working_dir=working_dir)

    # ---- the lanes ----

    async def submit(
        self,
        lane: str,
        work: Mapping[str, Any] | Callable[[], Any],
        *,
        effect: Effect | str | None = None,
        timeout_ms: int | None = None,
    ) -> Any:
        """Run a function, or the call that a payload stands for, in a lane of this session; what comes of it."""
        lanes = await self._queue()
        return await lanes.submit(lane, work, effect=effect, timeout_ms=timeout_ms)

    async def submit_batch(
        self,
        lane: str,
        items: Iterable[Mapping[str, Any] | Callable[[], Any]],
        *,
        effect: Effect | str | None = None,
        timeout_ms: int | None = None,
        return_errors: bool = False,
    ) -> list[Any]:
        """Run several things in a lane, as many at once as it allows; what comes of them, in their order."""
        lanes = await self._queue()
        return await lanes.submit_batch(lane, items, effect=effect, timeout_ms=timeout_ms, return_errors=return_errors)

    async def retry_dead_letter(self, command_id: str) -> Any:
        """Make a dead call again; what comes of it."""
        lanes = await self._queue()
        return await lanes.retry_dead_letter(command_id)

    async def _queue(self) -> SessionLanes:
        await self.ready()
        if self.lanes is None:
            raise UsageError("this session has no queue", hint="give it one: queue_config=SessionQueueConfig()")
        return self.lanes
