"""External tasks and the workers that have taken some. Looking at a task hands it out to nobody."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import Query

from laneway.external import ExternalTask, TaskState
from laneway.gateway.access import Caller
from laneway.gateway.deps import CallerOf, GatewayOf, WorkspaceOf
from laneway.gateway.lookup import find_task, in_family
from laneway.gateway.routes.sessions import Limit
from laneway.gateway.views import Page, TaskView, View, page_of, router_of
from laneway.gateway.workspaces import Workspace

__all__ = ("router",)

router = router_of("tasks")


class WorkerView(View):
    """A worker that has taken a task."""

    name: str
    workspace: str
    tasks: int


@router.get("/tasks", summary="External tasks that have not ended")
async def ls(
    caller: CallerOf,
    workspace: WorkspaceOf,
    session: Annotated[str, Query(max_length=400, description="Of one session and its sub-agents only.")] = "",
    state: Annotated[TaskState | None, Query()] = None,
    after: Annotated[str, Query(max_length=1_000, description="The id of the last one that was seen.")] = "",
    limit: Limit = 200,
) -> Page[TaskView]:
    """Tasks of the caller's tenant, oldest first."""
    found = [task for task in _tasks(workspace, caller) if not session or in_family(task.session_id, session)]
    found = [task for task in found if state is None or task.state == state.value]
    ids = [task.task_id for task in found]
    begin = ids.index(after) + 1 if after in ids else 0
    shown = found[begin : begin + limit]
    return page_of([TaskView.of(task, workspace.name) for task in shown], [task.task_id for task in shown], limit)


@router.get("/tasks/{task_id}", summary="One external task")
async def show(task_id: str, gateway: GatewayOf, caller: CallerOf) -> TaskView:
    """A task, also one that has ended."""
    workspace, task = await find_task(gateway, caller, task_id)
    return TaskView.of(task, workspace.name)


@router.get("/workers", summary="Workers that have taken tasks", tags=["workers"], operation_id="workers_ls")
async def workers(caller: CallerOf, workspace: WorkspaceOf) -> Page[WorkerView]:
    """Who holds tasks of the caller's tenant at this moment. A worker without a task is known to nobody."""
    held = Counter(task.worker for task in _tasks(workspace, caller) if task.worker)
    return Page(items=[WorkerView(name=name, workspace=workspace.name, tasks=held[name]) for name in sorted(held)])


def _tasks(workspace: Workspace, caller: Caller) -> list[ExternalTask]:
    return [task for task in workspace.host.desk.tasks() if task.tenant_id == caller.tenant]
