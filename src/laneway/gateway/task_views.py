"""External tasks and workers as routes answer them."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from laneway.gateway.task_facts import result_facts, task_facts
from laneway.gateway.views import View
from laneway.kernel.task_entries import TaskEntry
from laneway.runtime.worker_book import WorkerRecord

__all__ = ("ProgressView", "TaskDetails", "TaskView", "WorkerView")

HELD_SHOWN: Final = 100


class ProgressView(View):
    """How far a worker says that it is."""

    text: str = ""
    percent: float | None = None


class TaskView(View):
    """An external task. Looking at it hands it out to nobody."""

    task_id: str
    session_key: str
    workspace: str
    run_id: str
    lane: str
    tool: str
    arguments: dict[str, Any]
    effect: str
    state: str
    worker: str = Field("", description="Who has it, or had it last; `host`: the code of the host, or an operator.")
    attempt: int
    created_ms: int
    timeout_ms: int
    remaining_ms: int
    idempotency_key: str
    labels: list[str] = Field(default_factory=list, description="What a worker must have.")
    progress: ProgressView | None = None
    lease_ms: int = Field(0, description="How long its worker may be silent.")
    lease_left_ms: int | None = Field(None, description="After how long without a sign of life the worker loses it.")
    heard_ago_ms: int | None = Field(None, description="How long ago its worker has shown a sign of life.")
    why: str = Field("", description="Why nobody works on it at this moment.")
    ended_ms: int | None = None
    reason: str = Field("", description="Why it has ended as it has.")

    @classmethod
    def of(cls, entry: TaskEntry, now: int, why: str = "") -> TaskView:
        """A task of a workspace; `now` is monotonic."""
        return cls(**task_facts(entry, now, why))


class TaskDetails(TaskView):
    """A task with what came of it."""

    result: Any = Field(None, description="What the worker said; text, if it had to be cut.")
    error: str | None = None
    result_cut: bool = Field(default=False, description="Whether there is more of it in the store.")

    @classmethod
    def of(cls, entry: TaskEntry, now: int, why: str = "") -> TaskDetails:
        """A task with what came of it; a result that is long is cut."""
        return cls(**task_facts(entry, now, why), **result_facts(entry))


class WorkerView(View):
    """A worker that was heard of lately. Times are those of the server."""

    name: str
    health: str = Field(description="`working`, `waiting` for a task, `idle`, or `quiet`: not heard of for a minute.")
    token: str = Field("", description="The name of the token that it came with.")
    tenant: str | None = Field(None, description="Whose tasks it takes; null: those of all tenants.")
    instance: str = ""
    host: str = ""
    pid: int = 0
    version: str = ""
    lanes: list[str] = Field(description="Whose tasks it takes; empty: those of all lanes.")
    commands: list[str] = Field(description="For which tools; empty: for all.")
    labels: list[str] = Field(description="What it has.")
    workspaces: list[str] = Field(description="Whose tasks it takes; empty: those of all workspaces.")
    concurrency: int = Field(0, description="How many tasks it works on at once, as it says; 0: it does not say.")
    tasks: list[str] = Field(description="The tasks that it has at this moment; at most a hundred are named.")
    holds: int = Field(description="How many those are.")
    completed: int
    failed: int
    lost: int = Field(description="Leases that ended because nothing was heard of it.")
    is_lost: bool = Field(
        default=False, description="One of them ended, and nothing was heard of it since: it is gone, or cut off."
    )
    unstarted: int = Field(description="Those of them that ended before it had begun.")
    shares_name: bool = Field(description="Another worker at work has the same name.")
    first_seen_ms: int
    last_seen_ms: int
    seen_ago_ms: int
    asked_ago_ms: int | None = Field(
        None, description="How long ago it asked for tasks; null: it waits for one. With room for more, it is stopping."
    )

    @classmethod
    def of(cls, record: WorkerRecord, now: int) -> WorkerView:
        """A worker as the hall knows it; `now` is monotonic."""
        held = sorted(entry.task_id for entry in record.holds())
        return cls(
            name=record.name,
            health=record.health(now),
            token=record.who,
            tenant=record.tenant,
            instance=record.instance,
            host=record.host,
            pid=record.pid,
            version=record.version,
            lanes=record.lanes,
            commands=record.commands,
            labels=record.labels,
            workspaces=list(record.workspaces),
            concurrency=record.concurrency,
            tasks=held[:HELD_SHOWN],
            holds=len(held),
            completed=record.completed,
            failed=record.failed,
            lost=record.lost,
            is_lost=record.lost_at > record.seen_at,
            unstarted=record.unstarted,
            shares_name=record.shares_name,
            first_seen_ms=record.first_seen_ms,
            last_seen_ms=record.last_seen_ms,
            seen_ago_ms=max(0, now - record.seen_at),
            asked_ago_ms=None if record.waiting else max(0, now - record.asked_at),
        )
