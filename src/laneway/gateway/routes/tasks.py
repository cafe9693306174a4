"""External tasks. Looking at one hands it out to nobody; what workers say of them is in `task_work`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Annotated, NamedTuple

from fastapi import Query

from laneway.external import TaskState
from laneway.gateway.access import Caller
from laneway.gateway.deps import CallerOf, GatewayOf, WorkspacesOf
from laneway.gateway.lookup import find_task, sees_shared
from laneway.gateway.routes.sessions import Limit
from laneway.gateway.task_facts import TaskQuery
from laneway.gateway.task_views import TaskDetails, TaskView
from laneway.gateway.views import Page, router_of, seq_of
from laneway.gateway.workspaces import Workspace
from laneway.kernel.task_entries import TASK, TaskEntry, decode_task
from laneway.rows import Owner

__all__ = ("router",)

router = router_of("tasks")

SCANNED_MAX = 20_000  # rows that one request looks through; the cursor goes on from there
SCAN = 1_000

Name = Annotated[str, Query(max_length=200)]


@router.get("/tasks", summary="External tasks")
async def ls(
    caller: CallerOf,
    workspaces: WorkspacesOf,
    *,
    state: Annotated[TaskState | None, Query(description="Without one: those that have not ended.")] = None,
    session: Annotated[str, Query(max_length=400, description="Of one session and its sub-agents only.")] = "",
    run: Annotated[str, Query(max_length=400, description="Of one run only.")] = "",
    lane: Annotated[Name, Query(description="Of one lane only.")] = "",
    tool: Annotated[Name, Query(description="For one tool only.")] = "",
    worker: Annotated[Name, Query(description="Those that one worker has, or had last.")] = "",
    after: Annotated[str, Query(max_length=20)] = "",
    limit: Limit = 200,
) -> Page[TaskView]:
    """Tasks of the caller's tenant, oldest first.

    With the state of tasks that have ended a page may be short, or empty, and still have a `next`.
    """
    asked = "" if state is None else state.value
    query = TaskQuery(asked, session=session, run=run, lane=lane, tool=tool, worker=worker)
    seq = seq_of(after)
    if query.is_of_ended:
        return _page([await _ended(caller, each, query, seq, limit) for each in workspaces], limit)
    return _page([_live(caller, each, query, seq, limit) for each in workspaces], limit)


@router.get("/tasks/{task_id}", summary="One external task")
async def show(task_id: str, gateway: GatewayOf, caller: CallerOf) -> TaskDetails:
    """A task, also one that has ended, with what came of it. Its arguments are kept until it ends."""
    workspace, entry = await find_task(gateway, caller, task_id)
    return TaskDetails.of(entry, workspace.inbox.engine.now(), _why_of(workspace, caller)(entry))


class Part(NamedTuple):
    """What one workspace has: its tasks with their numbers, and up to which number they are all."""

    items: list[tuple[int, TaskView]]
    until: int | None


def _page(parts: list[Part], limit: int) -> Page[TaskView]:
    """The tasks of several workspaces in one order: all workspaces of a server draw their numbers from one store.

    What lies behind the end of the shortest part waits for the next page: something may belong before it.
    """
    ends = [part.until for part in parts if part.until is not None]
    until = min(ends, default=None)
    found = sorted((item for part in parts for item in part.items), key=lambda item: item[0])
    whole = [item for item in found if until is None or item[0] <= until]
    shown = whole[:limit]
    if len(shown) < len(whole):
        until = shown[-1][0]
    return Page(items=[view for _, view in shown], next=None if until is None else str(until))


def _live(caller: Caller, workspace: Workspace, query: TaskQuery, seq: int, limit: int) -> Part:
    """The tasks that have not ended, oldest first."""
    desk = workspace.host.desk
    desk.catch_up()
    own = [
        entry
        for entry in desk.board.live.values()
        if entry.owner.tenant == caller.tenant and entry.published and entry.seq > seq and query.fits(entry)
    ]
    own.sort(key=lambda entry: entry.seq)
    explain, now, shown = _why_of(workspace, caller), workspace.inbox.engine.now(), own[:limit]
    items = [(entry.seq, TaskView.of(entry, now, explain(entry))) for entry in shown]
    return Part(items, shown[-1].seq if len(shown) < len(own) else None)


async def _ended(caller: Caller, workspace: Workspace, query: TaskQuery, seq: int, limit: int) -> Part:
    """Tasks that have ended, as the store has them."""
    owner, items = Owner(caller.tenant, workspace.name), list[tuple[int, TaskView]]()
    engine = workspace.inbox.engine
    for _ in range(0, SCANNED_MAX, SCAN):
        rows = await engine.store.history.states(owner, TASK, after_seq=seq, limit=SCAN)
        for row in rows:
            seq = row.seq
            entry = None if row.live else decode_task(row)
            if entry is not None and query.fits(entry):
                items.append((seq, TaskView.of(entry, engine.now())))
                if len(items) == limit:
                    return Part(items, seq)
        if len(rows) < SCAN:
            return Part(items, None)
    return Part(items, seq)


def _why_of(workspace: Workspace, caller: Caller) -> Callable[[TaskEntry], str]:
    """Why nobody works on a task; looked up once for all that are alike, because there may be many workers."""
    hall, known = workspace.host.desk.hall, dict[Hashable, str]()
    by_name = sees_shared(caller)

    def why(entry: TaskEntry) -> str:
        if entry.state is not TaskState.PENDING:
            return ""
        alike = (entry.owner.tenant, entry.kind, entry.held_due)
        if alike not in known:
            known[alike] = hall.why(entry, by_name=by_name)
        return known[alike]

    return why
