"""What has come of a call, as its model and the ledger hear it, whoever has made it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from laneway.dialogue import ResultStatus, ToolOutput, ToolResult
from laneway.external import TaskState
from laneway.kernel.ledger import OUTCOMES, Change

if TYPE_CHECKING:
    from laneway.kernel.task_entries import TaskEnd
    from laneway.runtime.handles import Job

__all__ = ("answer_of", "change_of", "task_result", "value_of", "within")

TASK_ENDS = {
    TaskState.TIMED_OUT: ResultStatus.TIMED_OUT,
    TaskState.UNKNOWN: ResultStatus.UNKNOWN,
    TaskState.WITHDRAWN: ResultStatus.CANCELLED,
}
"""Ends of a task that are no answer."""


async def within(work: Callable[[int], Awaitable[ToolOutput]], limit_ms: int | None) -> ToolOutput:
    """Make the one attempt there is without lanes, and give up after the limit."""
    if limit_ms is None:
        return await work(1)
    try:
        async with asyncio.timeout(limit_ms / 1000) as limit:
            return await work(1)
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(f"it ran longer than {limit_ms} ms") from None
        raise


def answer_of(call_id: str, name: str, output: ToolOutput) -> ToolResult:
    """What a tool has said, as the result of a call."""
    status = ResultStatus.ERROR if output.is_error else ResultStatus.OK
    facts: dict[str, Any] = {"status": status, "exit_code": output.exit_code, "artifact": output.artifact}
    return ToolResult(call_id=call_id, name=name, output=output.text, **facts)


def task_result(
    call_id: str, name: str, end: TaskEnd, *, has_effect: bool, may_have_run: bool | None = None
) -> ToolResult | None:
    """What the model is told of a task that has ended without an answer; None: it has one."""
    if end.state not in TASK_ENDS:
        return None
    if may_have_run is None:
        may_have_run = end.had_started
    note = " It may have had its effect: look before you do it again." if may_have_run else " It was not run."
    note = note if has_effect else ""
    what = {TaskState.TIMED_OUT: "Timed out", TaskState.UNKNOWN: "Unknown"}.get(end.state, "Cancelled")
    status = TASK_ENDS[end.state]
    return ToolResult(call_id=call_id, name=name, output=f"[{what}: {end.reason}.{note}]", status=status)


def change_of(result: ToolResult, end: TaskEnd | None, *, may_have_run: bool | None = None) -> Change:
    """What a result means for the ledger entry of its call."""
    if may_have_run is None:
        may_have_run = end is None or end.had_started
    if end is not None and end.state in TASK_ENDS and not may_have_run:
        return Change.FAIL  # nobody has had it: there is nothing unknown about it
    return OUTCOMES.get(result.status, Change.SUCCEED)


def value_of(job: Job[ToolOutput] | asyncio.Task[ToolOutput] | None) -> ToolOutput:
    """The value of something that has ended, or its error."""
    assert job is not None
    if isinstance(job, asyncio.Task):
        return job.result()
    try:
        job.__await__().send(None)
    except StopIteration as ended:
        output: ToolOutput = ended.value
        return output
    raise AssertionError("it has not ended")
