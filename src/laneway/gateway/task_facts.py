"""What there is to say of an external task, as plain JSON values: for routes, and for whoever reads a store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from laneway.dialogue import compact_json
from laneway.external import TaskState
from laneway.gateway.lookup import in_family
from laneway.kernel.task_entries import HELD, TaskEntry

__all__ = ("RESULT_MAX", "TaskQuery", "result_facts", "task_facts", "task_lines")

RESULT_MAX: Final = 20_000
LINES_MAX: Final = 50
GROUPS: Final = {
    "waiting": frozenset({TaskState.PENDING}),
    "out": HELD,
    "ended": frozenset(state for state in TaskState if state.is_final),
}


def task_facts(entry: TaskEntry, now: int, why: str = "") -> dict[str, Any]:
    """A task. `now` is monotonic, `why` is why nobody works on it."""
    progress, is_held = entry.progress, entry.state in HELD
    return {
        "task_id": entry.task_id,
        "session_key": entry.owner.session,
        "workspace": entry.owner.workspace,
        "run_id": entry.run_id,
        "lane": entry.lane,
        "tool": entry.command_type,
        "arguments": json.loads(entry.payload),
        "effect": entry.effect.value,
        "state": entry.state.value,
        "worker": entry.worker if is_held or not entry.is_live else "",
        "attempt": entry.attempt,
        "created_ms": entry.created_ms,
        "timeout_ms": entry.timeout_ms,
        "remaining_ms": entry.remaining_ms(now) if entry.is_live else 0,
        "idempotency_key": entry.key,
        "labels": list(entry.labels),
        "progress": None if progress is None else {"text": progress.text, "percent": progress.percent},
        "lease_ms": entry.silence_ms,
        "lease_left_ms": max(0, entry.lease_due - now) if is_held and entry.published else None,
        "heard_ago_ms": max(0, now - entry.lease_due + entry.silence_ms) if is_held and entry.published else None,
        "why": why,
        "ended_ms": None if entry.is_live else entry.ended_ms,
        "reason": "" if entry.is_live else entry.reason,
    }


def result_facts(entry: TaskEntry) -> dict[str, Any]:
    """What came of a task; what is long is cut."""
    found = entry.result
    if found is None:
        return {"result": None, "error": None, "result_cut": False}
    result, error, is_cut = found.result, found.error, False
    text = result if isinstance(result, str) else compact_json(result)
    if len(text) > RESULT_MAX:
        result, is_cut = text[:RESULT_MAX], True
    if error is not None and len(error) > RESULT_MAX:
        error, is_cut = error[:RESULT_MAX], True
    return {"result": result, "error": error, "result_cut": is_cut}


def task_lines(entries: Sequence[TaskEntry]) -> str:
    """What became of the calls of a run that somebody else made, for people: a line for each, oldest first."""
    lines = []
    for entry in entries[:LINES_MAX]:
        by = f" by {entry.worker}" if entry.worker else ""
        again = f", attempt {entry.attempt}" if entry.attempt > 1 else ""
        why = f": {entry.reason}" if entry.reason and entry.state is not TaskState.COMPLETED else ""
        lines.append(f"  {entry.task_id}  {entry.command_type}{by}{again}, {entry.state.value}{why}")
    if len(entries) > LINES_MAX:
        lines.append(f"  and {len(entries) - LINES_MAX} more")
    return "\n".join(["Calls that somebody else made:", *lines]) if lines else ""


class TaskQuery(NamedTuple):
    """Which tasks are asked for; what is empty is not asked for."""

    state: str = ""
    session: str = ""
    run: str = ""
    lane: str = ""
    tool: str = ""
    worker: str = ""
    group: str = ""

    def fits(self, entry: TaskEntry) -> bool:
        """Whether a task is one of them; those of sub-agents are among those of their session."""
        return (
            (not self.state or entry.state == self.state)
            and (not self.group or entry.state in GROUPS[self.group])
            and (not self.session or in_family(entry.owner.session, self.session))
            and (not self.run or entry.run_id == self.run)
            and (not self.lane or entry.lane == self.lane)
            and (not self.tool or entry.command_type == self.tool)
            and (not self.worker or entry.worker == self.worker)
        )

    @property
    def is_of_ended(self) -> bool:
        """Whether tasks that have ended are asked for; the others are in memory."""
        return self.group == "ended" or (bool(self.state) and TaskState(self.state).is_final)
