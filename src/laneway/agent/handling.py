"""Who runs the calls of a session and who may stop them: lane handlers, external tasks, hooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Never

from laneway.agent.session_lanes import INTERNAL
from laneway.checked import made_of, refuse_unknown
from laneway.errors import UsageError
from laneway.external import ExternalTask, ExternalTaskResult
from laneway.options import DEFAULT_TIMEOUT_MS, LaneHandlerConfig
from laneway.records import check_labels
from laneway.tools.lanes import QUERY, lane_of

if TYPE_CHECKING:
    from laneway.agent.externals import Externals
    from laneway.agent.hooks import Hooks
    from laneway.agent.host import Host
    from laneway.agent.session_lanes import SessionLanes
    from laneway.agent.settings import SessionSettings
    from laneway.agent.subagents import Delegates
    from laneway.dialogue import ToolCall, ToolSpec
    from laneway.ports import Tool
    from laneway.runtime.task_desk import TaskDesk

__all__ = ("Handling",)


class Handling(ABC):
    """Lane handlers, external tasks and hooks of a session."""

    hooks: Hooks
    lanes: SessionLanes | None
    externals: Externals
    delegates: Delegates
    host: Host
    settings: SessionSettings
    toolbox: Mapping[str, Tool]

    @abstractmethod
    async def ready(self) -> Any:
        """Open what is needed."""

    # ---- hooks ----

    def register_hook(
        self,
        hook_id: str,
        event_type: str,
        matcher: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        handler: Callable[[Mapping[str, Any]], Any] | None = None,
    ) -> None:
        """Have a function told what happens here, and let it stop it: see `Hook`. The same id again replaces it."""
        self.hooks.register(hook_id, event_type, matcher, config, handler)

    def unregister_hook(self, hook_id: str) -> bool:
        """Take a hook away. False: there is none of that id."""
        return self.hooks.unregister(hook_id)

    def hook_count(self) -> int:
        """How many hooks there are."""
        return len(self.hooks)

    # ---- lanes ----

    def has_queue(self) -> bool:
        """Whether its tools run through lanes."""
        return self.settings.queue_config is not None

    def lane_of(self, spec: ToolSpec) -> str:
        """The lane of a tool here."""
        return lane_of(spec, self.settings.tool_lanes)

    def may_run_beside(self, call: ToolCall) -> bool:
        """Whether a call may run beside its neighbours: reads in the query lane, and tools that say so."""
        tool, queue = self.toolbox.get(call.name), self.settings.queue_config
        if queue is None or tool is None:
            return False
        lane = self.lane_of(tool.spec)
        if lane == QUERY or tool.spec.parallel:
            return True
        if tool.spec.local:  # what never goes out does not follow the handler of its lane
            return False
        # one that was never opened has no lanes yet, and is asked all the same when somebody replays a run
        handler = queue.lane_handlers.get(lane, INTERNAL) if self.lanes is None else self.lanes.handler_of(lane)
        return not handler.ordered

    # ---- lane handlers and external tasks ----

    async def set_lane_handler(
        self,
        /,
        lane: str,
        mode: str | LaneHandlerConfig | Mapping[str, Any] = "internal",
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        *,
        ordered: bool = True,
        lease_ms: int = 30_000,
        fallback: bool = False,
        labels: Sequence[str] = (),
        sticky: str = "",
        sticky_ms: int = 5_000,
        background_after_ms: int | None = None,
        **unknown: Never,
    ) -> None:
        """Say who makes the calls of a lane from the next one on: `internal`, `external` or `hybrid`.

        Everything may be given as one `LaneHandlerConfig`, or as a mapping with its fields.
        """
        refuse_unknown("set_lane_handler", unknown, LaneHandlerConfig.__dataclass_fields__)
        if isinstance(mode, Mapping):
            mode = made_of(LaneHandlerConfig, mode, what="lane_handler")
        elif not isinstance(mode, LaneHandlerConfig):
            mode = LaneHandlerConfig(
                mode,
                timeout_ms,
                ordered,
                lease_ms,
                fallback,
                check_labels(labels),
                sticky,
                sticky_ms,
                background_after_ms,
            )
        await self.ready()
        if self.lanes is None:
            raise UsageError("this session has no queue", hint="give it one: queue_config=SessionQueueConfig()")
        self.lanes.set_lane_handler(lane, mode)
        for child in self.delegates.sessions():
            if child.has_queue():
                await child.set_lane_handler(lane, mode)

    async def desk(self) -> TaskDesk:
        """What hands out the external tasks of all sessions of this store: `LocalTransport(await session.desk())`."""
        await self.ready()
        return self.host.desk

    async def pending_external_tasks(self) -> list[ExternalTask]:
        """The calls that wait for somebody to make them, oldest first; those that a worker has taken are not there.

        Those of sub-agents are among them, with the ids of their own sessions.
        Asking for them hands them out: from then on a call with side effects may have been made.
        """
        await self.ready()
        return await self.externals.pending()

    async def complete_external_task(
        self,
        task_id: str,
        outcome: ExternalTaskResult | Mapping[str, Any] | str | bool | None = None,  # noqa: FBT001 - one of two call forms
        result: Any = None,
        error: str | None = None,
        *,
        success: bool | None = None,
    ) -> bool:
        """Say what became of an external task: one `{"success", "result", "error"}`, or these one by one.

        Text alone is the result of something that worked.

        True: it counts (also when it is said a second time). False: nobody waits for it.
        """
        await self.ready()
        if not isinstance(task_id, str):
            raise UsageError(f"a task is known by its id, which is text, not {task_id!r:.80}")
        if outcome is None and success is None and result is None and error is None:
            raise UsageError(
                f"it is not said what became of task {task_id!r}",
                hint="give a result, an error, or success=True for something that worked and said nothing",
            )
        if isinstance(outcome, bool):  # `complete_external_task(task_id, True, result)`
            outcome, success = None, outcome
        if outcome is None:
            told = ExternalTaskResult(success=error is None if success is None else success, result=result, error=error)
            told.check()
        elif success is not None or result is not None or error is not None:
            raise UsageError("give the outcome as one mapping or as success, result and error, not both")
        else:
            told = ExternalTaskResult.of(outcome)
        return await self.externals.complete(task_id, told)
