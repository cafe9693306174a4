"""The external tasks of one session: calls that somebody else makes.

A call in an `external` lane holds its slot while its task is out, so as many tasks are out as the lane is wide. The
task, the intent of its call and the answer that asks for it are one commit, and only then the task can be seen. When a
session is opened again, tasks of a run that goes on are found by the keys of their calls; all others are withdrawn.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from laneway.agent.hearing import heard_run
from laneway.agent.late_results import settle
from laneway.agent.session_lanes import INTERNAL
from laneway.agent_events import (
    AgentEvent,
    ExternalTaskCompletedEvent,
    ExternalTaskPendingEvent,
    ExternalTaskProgressEvent,
    ExternalTaskStartedEvent,
)
from laneway.dialogue import ToolOutput, copied
from laneway.external import ExternalTask, ExternalTaskResult, TaskState
from laneway.kernel.ledger import Change, LedgerState
from laneway.kernel.task_entries import TaskEnd, TaskEntry, TaskNews, TaskOrder
from laneway.options import LaneHandlerConfig
from laneway.records import DURATION_MAX_MS
from laneway.tools.outputs import cap_output

if TYPE_CHECKING:
    from laneway.agent.gates import Asked
    from laneway.agent.session import AsyncSession
    from laneway.dialogue import ToolContext
    from laneway.runtime.task_desk import TaskDesk

__all__ = ("Externals", "task_id_of")

GONE = "the run that wanted it has ended"


def task_id_of(key: str) -> str:
    """The id of the task of a call: found again after a restart by the key of the call."""
    return f"task-{key.removeprefix('lw-')[:40]}"


class Externals:
    """Tasks that are out, or go out."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    @property
    def desk(self) -> TaskDesk:
        """Where its tasks are handed out."""
        return self._session.host.desk

    # ---- opening and closing ----

    async def open(self) -> None:
        """Go on with the tasks that an earlier process has left: those whose runs go on."""
        session, desk = self._session, self.desk
        session.book.on_closed = self.take_back
        desk.attend(session.owner, self._news)
        await desk.load(session.owner)
        if desk.held(session.owner):
            await session.book.load()
        for run_id in dict.fromkeys(entry.run_id for entry in desk.held(session.owner)):
            if not session.book.is_awaited(run_id):
                self.take_back(run_id)

    def take_back(self, run_id: str) -> None:
        """Nobody goes on with a run: what is out of it is withdrawn, and what nobody had begun is known not to be.

        What is in the background goes on without its run.
        """
        book, behind = self._session.book, self._session.background_calls.keys()
        for entry in self.desk.held(self._session.owner):
            if entry.run_id != run_id or entry.key in behind:
                continue
            end = self.desk.withdraw(entry.task_id, GONE)
            known = book.entries.get(entry.key)
            if known is not None and known.state is LedgerState.INTENDED and not end.had_started:
                book.end_entry(known, Change.FAIL, "nobody had begun with it")

    def close(self, *, keep: bool = False) -> None:
        """The session is closed: its tasks stay in the store. With `keep` somebody can take them meanwhile."""
        if keep:
            self.desk.step_back(self._session.owner)
        else:
            self.desk.dismiss(self._session.owner)

    # ---- who makes a call ----

    def handler_of(self, asked: Asked) -> LaneHandlerConfig:
        """Who makes a call, if it is queued now."""
        lanes = self._session.lanes
        return lanes.handler_of("" if asked.tool.spec.local else asked.lane) if lanes is not None else INTERNAL

    def order_of(self, asked: Asked, handler: LaneHandlerConfig, task_id: str) -> TaskOrder:
        """What somebody else would need to make a call."""
        session = self._session
        return TaskOrder(
            owner=session.owner,
            task_id=task_id,
            run_id=asked.run.id if asked.run is not None else "",
            call_id=asked.call_id,
            lane=asked.lane,
            command_type=asked.name,
            payload=copied(asked.arguments),
            timeout_ms=handler.timeout_ms,
            lease_ms=handler.lease_ms,
            effect=asked.tool.spec.effect,
            key=asked.key,
            workspace=session.workspace,
            correlation_id=session.identity.correlation_id,
            principal=session.identity.principal,
            agent_template_id=session.identity.agent_template_id,
            labels=tuple(sorted({*handler.labels, *asked.tool.spec.labels})),
            sticky=self._sticky(handler.sticky),
            sticky_ms=handler.sticky_ms,
        )

    def _sticky(self, by: str) -> str:
        """What the tasks that would like to go to one worker have in common."""
        session = self._session
        names = {"session": session.owner.session, "workspace": session.workspace, "tenant": session.owner.tenant}
        return f"{by}:{names[by]}" if by else ""

    def offer(self, asked: Asked, handler: LaneHandlerConfig, task_id: str) -> None:
        """Make a task; it goes to the store with the next commit and cannot be seen before `publish`."""
        self.desk.offer(self.order_of(asked, handler, task_id))

    async def find(self, task_id: str) -> TaskEntry | None:
        """A task of this session or of a sub-agent of it, also one that has ended."""
        entry = await self.desk.find(task_id)
        return entry if entry is not None and self._session.is_family(entry.owner) else None

    def limit_of(self, asked: Asked, handler: LaneHandlerConfig) -> int | None:
        """How long the job of a call may take: if somebody else makes it, the time of its task is what counts."""
        if handler.mode == "external":
            return DURATION_MAX_MS
        return asked.tool.spec.timeout_ms or self._session.settings.tool_timeout_ms

    async def direct(self, asked: Asked, handler: LaneHandlerConfig, context: ToolContext) -> ToolOutput:
        """A call of the host itself, made by somebody else."""
        task_id = task_id_of(asked.key)
        try:
            await self.desk.post(self.order_of(asked, handler, task_id))
            end = await self.desk.outcome(task_id)
        except asyncio.CancelledError:
            self.desk.withdraw(task_id, "its caller has gone")
            raise
        if end.state is TaskState.TIMED_OUT and handler.fallback and not end.had_started:
            return await heard_run(asked.tool, copied(asked.arguments), context)
        return await self.output_of(end, context)

    async def output_of(self, end: TaskEnd, context: ToolContext) -> ToolOutput:
        """What the model gets to see of an end that is an answer."""
        if end.result is None:
            return ToolOutput(text=f"[{end.state.value.replace('_', ' ').capitalize()}: {end.reason}]", is_error=True)
        return await cap_output(end.result.to_output(), context)

    # ---- what the host asks ----

    async def pending(self) -> list[ExternalTask]:
        """What waits for somebody, here and in sub-agents; it counts as handed out from now on."""
        found = await self.desk.hand_out(self._session.owner)
        children = self._session.children()
        for child in children:
            found += await child.externals.pending()
        return sorted(found, key=lambda task: task["created_at"]) if children else found

    def where(self, task_id: str) -> str:
        """Where a task that is out is; empty if it is not out."""
        task = self.desk.live_task(task_id)
        if task is None:
            return ""
        by = f" by {task['worker']}" if task["worker"] else ""
        why = self.desk.why(task_id)
        more = f": {why}" if why else ""
        return f"task {task_id} is {task['state']}{by}, {task['remaining_ms']} ms are left{more}."

    def is_out(self, task_id: str) -> bool:
        """Whether a task of this session has not ended."""
        return any(entry.task_id == task_id for entry in self.desk.held(self._session.owner))

    def count(self) -> int:
        """How many tasks are out."""
        return self.desk.count(self._session.owner)

    async def complete(self, task_id: str, result: ExternalTaskResult) -> bool:
        """The host says what became of a task."""
        entry = await self.find(task_id)
        return entry is not None and await self.desk.complete_by_host(task_id, result)

    # ---- telling ----

    def _news(self, news: TaskNews) -> None:
        entry = news.entry
        event: AgentEvent
        if news.kind in ("pending", "requeued"):
            event = pending_event(entry, payload=json.loads(entry.payload), attempt=entry.attempt)
        elif news.kind == "started":
            self._session.worker_began(entry)
            event = ExternalTaskStartedEvent(
                task_id=entry.task_id,
                lane=entry.lane,
                command_type=entry.command_type,
                worker=entry.worker,
                attempt=entry.attempt,
            )
        elif news.kind == "progress" and entry.progress is not None:
            event = ExternalTaskProgressEvent(
                task_id=entry.task_id,
                lane=entry.lane,
                command_type=entry.command_type,
                worker=entry.worker,
                text=entry.progress.text,
                percent=entry.progress.percent,
            )
        elif news.kind == "ended":
            event = completed_event(entry)
        else:
            if news.kind == "settled":  # it is on disk; a book that was read meanwhile may not know
                settle(self._session.book, self._session.book.entries.get(entry.key), entry)
            return
        self._session.emit_event(event, entry.run_id)


def completed_event(entry: TaskEntry) -> ExternalTaskCompletedEvent:
    """A task has ended."""
    end = entry.end
    return ExternalTaskCompletedEvent(
        task_id=entry.task_id,
        lane=entry.lane,
        command_type=entry.command_type,
        success=end.state is TaskState.COMPLETED,
        state=end.state.value,
        error=None if end.state is TaskState.COMPLETED else end.reason or None,  # what was said, up to its bound
        worker=end.worker,
        attempt=end.attempt,
        duration_ms=end.duration_ms,
    )


def watched_end(
    order: TaskOrder, *, success: bool, error: str, attempt: int, took_ms: int
) -> ExternalTaskCompletedEvent:
    """A call that was made here, and that others may watch, has ended."""
    return ExternalTaskCompletedEvent(
        task_id=order.task_id,
        lane=order.lane,
        command_type=order.command_type,
        success=success,
        state=(TaskState.COMPLETED if success else TaskState.FAILED).value,
        error=None if success else error,
        attempt=attempt,
        duration_ms=took_ms,
    )


def pending_event(
    task: TaskOrder | TaskEntry, *, payload: Mapping[str, Any], attempt: int = 1
) -> ExternalTaskPendingEvent:
    """A task waits for somebody."""
    return ExternalTaskPendingEvent(
        task_id=task.task_id,
        lane=task.lane,
        command_type=task.command_type,
        payload=payload,
        timeout_ms=task.timeout_ms,
        attempt=attempt,
        tool_id=task.call_id,
    )
