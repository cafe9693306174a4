"""Lanes: how full they are, and what an operator may change about them. All tenants share them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StringConstraints, model_validator

from laneway.agent.session import AsyncSession
from laneway.agent.session_lanes import SessionLanes
from laneway.config.problems import closest
from laneway.errors import ConflictError, UnknownLaneError
from laneway.gateway.deps import CallerOf, GatewayOf, NamedWorkspaceOf, OperatorOf
from laneway.gateway.routes.sessions import Limit
from laneway.gateway.service import Gateway
from laneway.gateway.tool_lanes import NEVER, LaneChange, apply_to
from laneway.gateway.views import LaneView, Page, page_of, router_of
from laneway.gateway.workspaces import Workspace
from laneway.kernel.explain import lane_stats
from laneway.options import SESSION_LANES, LaneHandlerConfig
from laneway.records import DURATION_MAX_MS, LABEL_MAX, LABELS_MAX, check_labels

__all__ = ("router",)

router = router_of("lanes")


Label = Annotated[str, StringConstraints(min_length=1, max_length=LABEL_MAX, pattern=r"^[^\s,\x00-\x1f]+$")]


class LaneOrder(BaseModel):
    """What is to be different about a lane. All but `concurrency` and `paused` is for the lanes of tools."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"concurrency": 4},
                {"paused": True, "reason": "maintenance"},
                {"mode": "external", "labels": ["gpu"], "sticky": "session"},
            ]
        },
    )

    concurrency: StrictInt | None = Field(None, ge=1, le=1_000_000)
    paused: StrictBool | None = None
    mode: Literal["internal", "external", "hybrid"] | None = Field(
        None, description="Who makes its calls from the next one on; what is out stays out."
    )
    timeout_ms: StrictInt | None = Field(
        None, ge=1, le=DURATION_MAX_MS, description="For whoever makes the calls elsewhere."
    )
    ordered: StrictBool | None = Field(None, description="False: neighbouring calls of one answer go out together.")
    lease_ms: StrictInt | None = Field(
        None, ge=1, le=DURATION_MAX_MS, description="How long a worker may be silent before its task is taken from it."
    )
    fallback: StrictBool | None = Field(None, description="Run a call here that nobody has taken in time.")
    labels: list[Label] | None = Field(
        None, max_length=LABELS_MAX, description="What a worker must have to be given its tasks."
    )
    sticky: Literal["", "session", "workspace", "tenant"] | None = Field(
        None, description="Whose tasks would like to go to the same worker; empty: nobody's."
    )
    sticky_ms: StrictInt | None = Field(
        None, ge=0, le=DURATION_MAX_MS, description="How long such a task waits for that worker."
    )
    background_after_ms: StrictInt | None = Field(
        None,
        ge=0,
        le=DURATION_MAX_MS,
        description="After how long a call goes on in the background, if its tool allows that; null: never.",
    )
    reason: str = Field("", max_length=2_000)

    @model_validator(mode="after")
    def _says_something(self) -> LaneOrder:
        if self.change == LaneChange():
            raise ValueError("nothing is to be changed")
        return self

    @property
    def change(self) -> LaneChange:
        """The same as a record."""
        given = self.model_dump(exclude={"reason", "labels"}, exclude_none=True)
        if self.labels is not None:
            given["labels"] = check_labels(self.labels)
        if "background_after_ms" in self.model_fields_set and self.background_after_ms is None:
            given["background_after_ms"] = NEVER
        return LaneChange(**given)


@router.get("/lanes", summary="Every lane at this moment")
async def ls(
    gateway: GatewayOf,
    caller: CallerOf,
    workspace: NamedWorkspaceOf,
    after: Annotated[str, Query(max_length=1_000)] = "",
    limit: Limit = 200,
) -> Page[LaneView]:
    """Lanes by their names. Those of the tools of a session are `<session>/<lane>`.

    With a workspace: the lanes that all share, those of its own, and those of its sessions that are open.
    """
    caller.check_shared()
    places = _places(gateway, workspace)
    open_lanes = _open_lanes(places)
    scopes = None if workspace is None else {"", workspace.name, *open_lanes}
    known = gateway.lanes.engine.kernel.registry.lanes
    own = (name for name in known if name > after and (scopes is None or name.rpartition("/")[0] in scopes))
    names = sorted(own)[:limit]
    return page_of([_view(gateway, name, places, open_lanes) for name in names], names, limit)


@router.patch("/lanes/{name:path}", summary="Change a lane")
async def change(
    name: str, body: LaneOrder, gateway: GatewayOf, caller: OperatorOf, workspace: NamedWorkspaceOf
) -> LaneView:
    """Change a lane until the server ends. The bare name of a tool lane means that lane of every session.

    The bare name of a lane for turns (`main`, `subagent`, `cron`) means that lane of every workspace. With a workspace
    both mean those of this workspace only.
    """
    caller.check_shared()
    if name not in gateway.lanes.engine.kernel.registry.lanes:
        raise UnknownLaneError(lane=name, suggestion=_near(gateway, name), known=("those of GET /v1/lanes",))
    wanted, places = body.change, _places(gateway, workspace)
    owner = _session_with(places, name)
    if name in SESSION_LANES:
        _check_queues(places, name)
    elif workspace is not None and owner is None and not _of_workspaces(gateway, places, name):
        raise ConflictError(
            f"workspace {workspace.name!r} has no lane {name!r} of its own", hint="leave the workspace out", lane=name
        )
    elif wanted.handler and owner is None:
        raise ConflictError(
            f"lane {name!r} runs no tools: it has no mode", hint="concurrency and paused can be changed", lane=name
        )
    facts = body.model_dump(exclude={"reason"}, exclude_unset=True)
    where = {} if workspace is None else {"workspace": workspace.name}
    await gateway.audit.record(caller, "lane.change", name, reason=body.reason, **facts, **where)
    if name not in gateway.lanes.engine.kernel.registry.lanes:  # its session was closed while the audit was written
        raise UnknownLaneError(lane=name, suggestion=_near(gateway, name), known=("those of GET /v1/lanes",))
    gateway.traffic.note_change(name, paused=wanted.paused, reason=body.reason)
    if owner is not None:
        await apply_to(owner, name.rpartition("/")[2], wanted)
        return _view(gateway, name, places)
    if name in SESSION_LANES:
        for each in places:
            await each.tool_lanes.change(name, wanted, each.live_sessions())
    shared = () if workspace is not None else (name,)
    own = _of_workspaces(gateway, places, name)
    for each in dict.fromkeys((*shared, *own)):
        if wanted.concurrency is not None:
            gateway.lanes.resize(each, wanted.concurrency)
        if wanted.paused is not None:
            (gateway.lanes.pause if wanted.paused else gateway.lanes.resume)(each)
    if workspace is None:
        return _view(gateway, name, places)
    if name not in SESSION_LANES:
        return _view(gateway, own[0], places)
    new = {key: value for key in ("concurrency", "paused") if (value := getattr(wanted, key)) is not None}
    return _view(gateway, name, places).model_copy(update=new)  # the lane that all share is as it was


def _places(gateway: Gateway, workspace: Workspace | None) -> list[Workspace]:
    """The workspaces that are meant."""
    return list(gateway.workspaces.values()) if workspace is None else [workspace]


def _near(gateway: Gateway, name: str) -> str | None:
    """The lane that was perhaps meant; lanes of sessions are too many to guess among."""
    known = [each for each in gateway.lanes.engine.kernel.registry.lanes if "/" not in each]
    return closest(name, known) or None


def _of_workspaces(gateway: Gateway, places: Sequence[Workspace], name: str) -> list[str]:
    """The lanes of that name that workspaces have for themselves."""
    known = gateway.lanes.engine.kernel.registry.lanes
    named = (name if name.startswith(f"{each.name}/") else f"{each.name}/{name}" for each in places)
    return [each for each in named if each in known]


def _session_with(places: Sequence[Workspace], name: str) -> AsyncSession | None:
    """The open session that a lane for tools belongs to."""
    scope, _, lane = name.rpartition("/")
    if lane not in SESSION_LANES or not scope:
        return None
    sessions = (each for workspace in places for each in workspace.host.sessions.values())
    return next((each for each in sessions if each.lanes is not None and each.lanes.scope == scope), None)


def _check_queues(places: Sequence[Workspace], name: str) -> None:
    """Refuse to change what no session has."""
    if all(workspace.agent.options.queue_config is None for workspace in places):
        raise ConflictError(
            f"no session has a lane {name!r}: the agents here run their tools without lanes",
            hint="give them a queue in their configuration: queue { query_max_concurrency = 4 }, for one",
            lane=name,
        )


def _open_lanes(places: Sequence[Workspace]) -> dict[str, SessionLanes]:
    """The lanes of tools of the sessions that are open, by what their names begin with."""
    sessions = (each for workspace in places for each in workspace.host.sessions.values())
    return {each.lanes.scope: each.lanes for each in sessions if each.lanes is not None}


def _handlers(
    places: Sequence[Workspace], name: str, open_lanes: Mapping[str, SessionLanes]
) -> list[LaneHandlerConfig]:
    """Who makes the calls of a lane: of one session, or of those of workspaces that will be opened. None: nobody."""
    scope, _, lane = name.rpartition("/")
    if lane not in SESSION_LANES:
        return []
    if scope:
        found = open_lanes.get(scope)
        return [] if found is None else [found.handler_of(lane)]
    return [each.tool_lanes.handler_of(lane, each.agent.options.queue_config) for each in places]


def _view(
    gateway: Gateway, name: str, places: Sequence[Workspace], open_lanes: Mapping[str, SessionLanes] | None = None
) -> LaneView:
    engine = gateway.lanes.engine
    lane = engine.kernel.registry.lanes[name]
    handlers = _handlers(places, name, _open_lanes(places) if open_lanes is None else open_lanes)
    return LaneView.of(name, lane_stats(lane, now=engine.now()), lane.closed_reason, handlers)
