"""Sessions: what waits and runs in them, what was said, how their queue is set."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from laneway.agent.subagents import is_child_id
from laneway.gateway.deps import CallerOf, WorkspaceOf
from laneway.gateway.lookup import current_turn, find_session
from laneway.gateway.views import (
    LIMIT_MAX,
    HistoryView,
    Page,
    PendingView,
    Reason,
    SettingView,
    View,
    page_of,
    router_of,
    settings_view,
)
from laneway.gateway.workspaces import Workspace
from laneway.mail import CAP_MAX, Drop, Mode, QueueOptions
from laneway.records import DURATION_MAX_MS
from laneway.rows import Owner

__all__ = ("Limit", "router")

router = router_of("sessions")

Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="At most so many.")]


class SessionSummary(View):
    """A session in a list."""

    session_key: str
    workspace: str
    state: str = Field(description="`idle`, `waiting`, or the state of the run that goes on.")
    run_id: str | None = None
    waiting: int


class ToolLane(View):
    """A lane for the tools of a session."""

    name: str
    mode: str = Field(description="Who makes its calls: `internal`, `external`, `hybrid`.")
    concurrency: int
    running: int
    waiting: int


class SessionDetails(SessionSummary):
    """A session, its settings in force and where each came from."""

    conversation: int
    settings: dict[str, SettingView]
    in_memory: bool
    lanes: list[ToolLane] = Field(default_factory=list, description="While it is in memory and has a queue.")


class QueueChange(BaseModel):
    """Settings for the queue of one session; null gives one back to the next level."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"mode": "steer"}, {"cap": None}]})

    mode: Mode | None = None
    debounce_ms: StrictInt | None = Field(None, ge=0, le=DURATION_MAX_MS)
    cap: StrictInt | None = Field(None, ge=1, le=CAP_MAX)
    drop: Drop | None = None

    @model_validator(mode="after")
    def _says_something(self) -> QueueChange:
        if not self.model_fields_set:
            raise ValueError("nothing is to be changed")
        return self


class Halted(View):
    """What a stop has ended."""

    waiting: int
    debounced: int
    turns: int
    children: int
    calls: int = 0


@router.get("/sessions", summary="The sessions that have messages")
async def ls(
    caller: CallerOf,
    workspace: WorkspaceOf,
    after: Annotated[str, Query(max_length=400)] = "",
    limit: Limit = 200,
    *,
    subagents: Annotated[bool, Query(description="Those of sub-agents, too.")] = False,
    active: Annotated[bool, Query(description="Only those in which something runs or waits.")] = False,
) -> Page[SessionSummary]:
    """Sessions of the workspace, by their keys."""
    if active:
        keys = _at_work(workspace, caller.tenant, after)[:limit]
    else:
        keys = await workspace.inbox.sessions(tenant=caller.tenant, after=after, limit=limit)
    shown = [key for key in keys if subagents or not is_child_id(key)]
    items = [SessionSummary(**_summary(workspace, workspace.owner(caller.tenant, key))) for key in shown]
    return page_of(items, keys, limit)


def _at_work(workspace: Workspace, tenant: str, after: str) -> list[str]:
    """The keys of sessions in which something runs or waits: all of that is in memory."""
    boxes = workspace.inbox.engine.kernel.boxes
    return sorted(
        owner.session
        for owner, box in boxes.items()
        if owner.tenant == tenant and owner.session > after and (not box.is_idle or box.waiting)
    )


@router.get("/sessions/{key}", summary="One session")
async def show(key: str, caller: CallerOf, workspace: WorkspaceOf) -> SessionDetails:
    """What goes on in a session, and which settings hold for its queue."""
    return _details(workspace, await find_session(workspace, caller, key))


@router.patch("/sessions/{key}/settings", summary="Change the settings of a session's queue")
async def configure(key: str, body: QueueChange, caller: CallerOf, workspace: WorkspaceOf) -> SessionDetails:
    """Give a session settings of its own. What waits keeps the mode it came with; a smaller cap acts at once."""
    owner = await find_session(workspace, caller, key)
    engine = workspace.inbox.engine
    session = engine.kernel.sessions.get(owner)
    before = session.options if session is not None else QueueOptions()
    names = ("mode", "debounce_ms", "cap", "drop")
    given = {name: getattr(body if name in body.model_fields_set else before, name) for name in names}
    await engine.set_options(owner, QueueOptions(**given), caller.name, workspace.inbox.settings_of)
    return _details(workspace, owner)


@router.get("/sessions/{key}/pending", summary="What waits in a session")
async def pending(key: str, caller: CallerOf, workspace: WorkspaceOf) -> Page[PendingView]:
    """The messages that wait, in order, each with its place and why it waits."""
    await find_session(workspace, caller, key)
    waiting = workspace.inbox.pending(key, tenant=caller.tenant)
    return Page(items=[PendingView.of(each) for each in waiting], next=None)


@router.get("/sessions/{key}/history", summary="What was said in a session")
async def history(
    key: str,
    caller: CallerOf,
    workspace: WorkspaceOf,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 200,
    conversation: Annotated[int | None, Query(ge=0, le=1 << 53, description="Else the current one.")] = None,
) -> Page[HistoryView]:
    """The newest lines of the transcript, oldest first, each text once."""
    await find_session(workspace, caller, key)
    found = await workspace.inbox.history(key, tenant=caller.tenant, limit=limit, conversation=conversation)
    return Page(items=[HistoryView.of(each) for each in found], next=None)


class LinesResponse(Response):
    """JSON lines."""

    media_type = "application/x-ndjson"


@router.get(
    "/sessions/{key}/transcript",
    summary="The whole transcript as JSON lines",
    response_class=LinesResponse,
    responses={200: {"description": "One line for each entry.", "content": {"application/x-ndjson": {}}}},
)
async def transcript(key: str, caller: CallerOf, workspace: WorkspaceOf) -> Response:
    """Every line of every conversation, one JSON object each, to be kept elsewhere."""
    await find_session(workspace, caller, key)
    return LinesResponse(await workspace.inbox.transcript(key, tenant=caller.tenant))


@router.post("/sessions/{key}/stop", summary="End everything in a session")
async def stop(key: str, caller: CallerOf, workspace: WorkspaceOf, body: Reason | None = None) -> Halted:
    """End what waits, the running turn and its sub-agents; says how many of each."""
    await find_session(workspace, caller, key)
    actor = f"{caller.name}: {body.reason}" if body is not None and body.reason else caller.name
    stopped = await workspace.inbox.stop(key, tenant=caller.tenant, actor=actor)
    return Halted(**stopped._asdict())


def _summary(workspace: Workspace, owner: Owner) -> dict[str, Any]:
    box = workspace.inbox.engine.kernel.boxes.get(owner)
    turn = current_turn(workspace, owner)
    waiting = 0 if box is None else box.waiting
    idle: Literal["waiting", "idle"] = "waiting" if waiting else "idle"
    return {
        "session_key": owner.session,
        "workspace": owner.workspace,
        "state": idle if turn is None else turn.state.value,
        "run_id": None if turn is None else turn.id,
        "waiting": waiting,
    }


def _details(workspace: Workspace, owner: Owner) -> SessionDetails:
    session = workspace.host.sessions.get((owner.tenant, owner.session))  # those of sub-agents are there, too
    stats = {} if session is None else session.queue_stats().lanes
    return SessionDetails(
        **_summary(workspace, owner),
        conversation=workspace.inbox.engine.conversation(owner),
        settings=settings_view(workspace.inbox.settings_of(owner)),
        in_memory=session is not None,
        lanes=[
            ToolLane(
                name=name,
                mode=each.handler_mode,
                concurrency=each.max_concurrency,
                running=each.active,
                waiting=each.pending,
            )
            for name, each in stats.items()
        ],
    )
