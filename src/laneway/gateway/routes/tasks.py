"""External tasks. Looking at one hands it out to nobody; what workers say of them is in `task_work`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Annotated

from fastapi import Query

from laneway.external import TaskState
from laneway.gateway.access import Caller
from laneway.gateway.deps import CallerOf, GatewayOf, WorkspaceOf
from laneway.gateway.lookup import find_task
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
    workspace: WorkspaceOf,
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
    if query.is_of_ended:
        return await _ended(caller, workspace, query, seq_of(after), limit)
    seq, items, cursor = seq_of(after), [], None
    explain, now = _why_of(workspace), workspace.inbox.engine.now()
    for entry in _live(caller, workspace):
        if entry.seq > seq and query.fits(entry):
            items.append(TaskView.of(entry, now, explain(entry)))
            if len(items) == limit:
                cursor = str(entry.seq)
                break
    return Page(items=items, next=cursor)


@router.get("/tasks/{task_id}", summary="One external task")
async def show(task_id: str, gateway: GatewayOf, caller: CallerOf) -> TaskDetails:
    """A task, also one that has ended, with what came of it. Its arguments are kept until it ends."""
    workspace, entry = await find_task(gateway, caller, task_id)
    return TaskDetails.of(entry, workspace.inbox.engine.now(), workspace.host.desk.why(task_id))


def _live(caller: Caller, workspace: Workspace) -> Iterator[TaskEntry]:
    """The tasks that have not ended, oldest first."""
    desk = workspace.host.desk
    desk.catch_up()
    own = (entry for entry in desk.board.live.values() if entry.owner.tenant == caller.tenant and entry.published)
    yield from sorted(own, key=lambda entry: entry.seq)


async def _ended(caller: Caller, workspace: Workspace, query: TaskQuery, seq: int, limit: int) -> Page[TaskView]:
    """Tasks that have ended, as the store has them."""
    owner, items = Owner(caller.tenant, workspace.name), []
    engine = workspace.inbox.engine
    for _ in range(0, SCANNED_MAX, SCAN):
        rows = await engine.store.history.states(owner, TASK, after_seq=seq, limit=SCAN)
        for row in rows:
            seq = row.seq
            entry = None if row.live else decode_task(row)
            if entry is not None and query.fits(entry):
                items.append(TaskView.of(entry, engine.now()))
                if len(items) == limit:
                    return Page(items=items, next=str(seq))
        if len(rows) < SCAN:
            return Page(items=items, next=None)
    return Page(items=items, next=str(seq))


def _why_of(workspace: Workspace) -> Callable[[TaskEntry], str]:
    """Why nobody works on a task; looked up once for all that are alike, because there may be many workers."""
    hall, known = workspace.host.desk.hall, dict[Hashable, str]()

    def why(entry: TaskEntry) -> str:
        if entry.state is not TaskState.PENDING:
            return ""
        alike = (entry.owner.tenant, entry.kind, entry.held_due)
        if alike not in known:
            known[alike] = hall.why(entry)
        return known[alike]

    return why
