"""External tasks. Looking at one hands it out to nobody; what workers say of them is in `task_work`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Annotated, Literal, NamedTuple

from fastapi import Query

from laneway.errors import ConflictError
from laneway.external import TaskState
from laneway.gateway.access import Caller
from laneway.gateway.deps import CallerOf, GatewayOf, OperatorOf, WorkspacesOf
from laneway.gateway.lookup import find_task, sees_shared
from laneway.gateway.routes.sessions import Limit
from laneway.gateway.task_facts import TaskQuery
from laneway.gateway.task_views import TaskDetails, TaskView
from laneway.gateway.views import Page, Reason, router_of, seq_of
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
    group: Annotated[Literal["waiting", "out", "ended"] | None, Query(description="Several states at once.")] = None,
    order: Annotated[Literal["oldest", "newest"], Query(description="Which come first.")] = "oldest",
    after: Annotated[str, Query(max_length=20)] = "",
    limit: Limit = 200,
) -> Page[TaskView]:
    """Tasks of the caller's tenant.

    Of tasks that have ended a page may be short, or empty, and still have a `next`.
    """
    asked = "" if state is None else state.value
    query = TaskQuery(asked, session, run, lane, tool, worker, group or "")
    window = Window(seq_of(after), limit, is_newest=order == "newest")
    if query.is_of_ended:
        return _page([await _ended(caller, each, query, window) for each in workspaces], window)
    return _page([_live(caller, each, query, window) for each in workspaces], window)


@router.get("/tasks/{task_id}", summary="One external task")
async def show(task_id: str, gateway: GatewayOf, caller: CallerOf) -> TaskDetails:
    """A task, also one that has ended, with what came of it. Its arguments are kept until it ends."""
    workspace, entry = await find_task(gateway, caller, task_id)
    return TaskDetails.of(entry, workspace.inbox.engine.now(), _why_of(workspace, caller)(entry))


@router.post("/tasks/{task_id}/cancel", summary="Say that nobody wants a task any more")
async def cancel(task_id: str, gateway: GatewayOf, caller: OperatorOf, body: Reason | None = None) -> TaskDetails:
    """End a task that has not ended: its caller hears that it was cancelled, its worker at the next sign of life.

    A `write` that has started is `unknown` then: it may have had its effect.
    """
    reason = "" if body is None else body.reason
    workspace, entry = await find_task(gateway, caller, task_id)
    if not entry.is_live:
        raise _has_ended(task_id)
    facts = {"state": entry.state, "command": entry.command_type}
    await gateway.audit.record(caller, "task.cancel", task_id, reason=reason, **facts)
    desk = workspace.host.desk
    live = desk.board.live.get(task_id)
    if live is None:
        raise _has_ended(task_id)
    desk.withdraw(task_id, reason or f"{caller.name} has cancelled it")
    ended = await desk.find(task_id)  # when its end is on disk
    assert ended is not None
    return TaskDetails.of(ended, workspace.inbox.engine.now())


def _has_ended(task_id: str) -> ConflictError:
    return ConflictError(
        f"task {task_id!r} has ended, and this does not change it",
        hint="GET /v1/tasks/{id} says what became of it",
        task_id=task_id,
    )


class Window(NamedTuple):
    """Which part of a list: so many behind a number, which is 0 at the beginning."""

    seq: int
    limit: int
    is_newest: bool

    def follows(self, seq: int) -> bool:
        """Whether something comes behind that number."""
        return not self.seq or (seq < self.seq if self.is_newest else seq > self.seq)


class Part(NamedTuple):
    """What one workspace has: its tasks with their numbers, and up to which number they are all."""

    items: list[tuple[int, TaskView]]
    until: int | None


def _page(parts: list[Part], window: Window) -> Page[TaskView]:
    """The tasks of several workspaces in one order: all workspaces of a server draw their numbers from one store.

    What lies behind the end of the shortest part waits for the next page: something may belong before it.
    """
    newest = window.is_newest
    ends = [part.until for part in parts if part.until is not None]
    until = (max if newest else min)(ends, default=None)
    found = sorted((item for part in parts for item in part.items), key=lambda item: item[0], reverse=newest)
    whole = [item for item in found if until is None or (item[0] >= until if newest else item[0] <= until)]
    shown = whole[: window.limit]
    if len(shown) < len(whole):
        until = shown[-1][0]
    return Page(items=[view for _, view in shown], next=None if until is None else str(until))


def _live(caller: Caller, workspace: Workspace, query: TaskQuery, window: Window) -> Part:
    """The tasks that have not ended."""
    desk = workspace.host.desk
    desk.catch_up()
    own = [
        entry
        for entry in desk.board.live.values()
        if entry.owner.tenant == caller.tenant and entry.published and window.follows(entry.seq) and query.fits(entry)
    ]
    own.sort(key=lambda entry: entry.seq, reverse=window.is_newest)
    explain, now, shown = _why_of(workspace, caller), workspace.inbox.engine.now(), own[: window.limit]
    items = [(entry.seq, TaskView.of(entry, now, explain(entry))) for entry in shown]
    return Part(items, shown[-1].seq if len(shown) < len(own) else None)


async def _ended(caller: Caller, workspace: Workspace, query: TaskQuery, window: Window) -> Part:
    """Tasks that have ended, as the store has them."""
    owner, items = Owner(caller.tenant, workspace.name), list[tuple[int, TaskView]]()
    engine, seq = workspace.inbox.engine, window.seq
    history = engine.store.history
    for _ in range(0, SCANNED_MAX, SCAN):
        if window.is_newest:
            rows = await history.states_newest(owner, TASK, before_seq=seq, limit=SCAN)
        else:
            rows = await history.states(owner, TASK, after_seq=seq, limit=SCAN)
        for row in rows:
            seq = row.seq
            entry = None if row.live else decode_task(row)
            if entry is not None and query.fits(entry):
                items.append((seq, TaskView.of(entry, engine.now())))
                if len(items) == window.limit:
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
