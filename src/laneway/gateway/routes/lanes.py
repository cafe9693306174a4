"""Lanes: how full they are, and what an operator may change about them. All tenants share them."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator

from laneway.agent.session import AsyncSession
from laneway.errors import ConflictError, UnknownLaneError
from laneway.gateway.deps import CallerOf, GatewayOf, OperatorOf
from laneway.gateway.routes.sessions import Limit
from laneway.gateway.service import Gateway
from laneway.gateway.tool_lanes import LaneChange, apply_to
from laneway.gateway.views import LaneView, Page, page_of, router_of
from laneway.kernel.explain import lane_stats
from laneway.options import SESSION_LANES
from laneway.records import DURATION_MAX_MS

__all__ = ("router",)

router = router_of("lanes")


class LaneOrder(BaseModel):
    """What is to be different about a lane. `mode` and `timeout_ms` are for the lanes of tools."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"concurrency": 4}, {"paused": True, "reason": "maintenance"}]},
    )

    concurrency: StrictInt | None = Field(None, ge=1, le=1_000_000)
    paused: StrictBool | None = None
    mode: Literal["internal", "external", "hybrid"] | None = None
    timeout_ms: StrictInt | None = Field(
        None, ge=1, le=DURATION_MAX_MS, description="For whoever makes the calls elsewhere."
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
        return LaneChange(concurrency=self.concurrency, paused=self.paused, mode=self.mode, timeout_ms=self.timeout_ms)


@router.get("/lanes", summary="Every lane at this moment")
async def ls(
    gateway: GatewayOf,
    caller: CallerOf,
    after: Annotated[str, Query(max_length=1_000)] = "",
    limit: Limit = 200,
) -> Page[LaneView]:
    """Lanes by their names. Those of the tools of a session are `<session>/<lane>`."""
    caller.check_shared()
    known = gateway.lanes.engine.kernel.registry.lanes
    names = sorted(name for name in known if name > after)[:limit]
    return page_of([_view(gateway, name) for name in names], names, limit)


@router.patch("/lanes/{name:path}", summary="Change a lane")
async def change(name: str, body: LaneOrder, gateway: GatewayOf, caller: OperatorOf) -> LaneView:
    """Change a lane until the server ends. The bare name of a tool lane means that lane of every session.

    The bare name of a lane for turns (`main`, `subagent`, `cron`) means that lane of every workspace.
    """
    caller.check_shared()
    if name not in gateway.lanes.engine.kernel.registry.lanes:
        raise UnknownLaneError(lane=name, known=("those of GET /v1/lanes",))
    wanted = body.change
    owner = _session_with(gateway, name)
    if name in SESSION_LANES:
        _check_queues(gateway, name)
    elif wanted.handler and owner is None:
        raise ConflictError(
            f"lane {name!r} runs no tools: it has no mode", hint="concurrency and paused can be changed", lane=name
        )
    facts = body.model_dump(exclude={"reason"}, exclude_none=True)
    await gateway.audit.record(caller, "lane.change", name, reason=body.reason, **facts)
    if owner is not None:
        await apply_to(owner, name.rpartition("/")[2], wanted)
        return _view(gateway, name)
    if name in SESSION_LANES:
        for workspace in gateway.workspaces.values():
            await workspace.tool_lanes.change(name, wanted, workspace.live_sessions())
    for each in (name, *_of_workspaces(gateway, name)):
        if wanted.concurrency is not None:
            gateway.lanes.resize(each, wanted.concurrency)
        if wanted.paused is not None:
            (gateway.lanes.pause if wanted.paused else gateway.lanes.resume)(each)
    return _view(gateway, name)


def _of_workspaces(gateway: Gateway, name: str) -> list[str]:
    """The lanes of that name that workspaces have for themselves."""
    known = gateway.lanes.engine.kernel.registry.lanes
    return [each for each in (f"{workspace}/{name}" for workspace in gateway.workspaces) if each in known]


def _session_with(gateway: Gateway, name: str) -> AsyncSession | None:
    """The open session that a lane for tools belongs to."""
    scope, _, lane = name.rpartition("/")
    if lane not in SESSION_LANES or not scope:
        return None
    sessions = (each for workspace in gateway.workspaces.values() for each in workspace.host.sessions.values())
    return next((each for each in sessions if each.lanes is not None and each.lanes.scope == scope), None)


def _check_queues(gateway: Gateway, name: str) -> None:
    """Refuse to change what no session has."""
    if all(workspace.agent.options.queue_config is None for workspace in gateway.workspaces.values()):
        raise ConflictError(
            f"no session has a lane {name!r}: the agents here run their tools without lanes",
            hint="give them a queue in their configuration: queue { query_max_concurrency = 4 }, for one",
            lane=name,
        )


def _view(gateway: Gateway, name: str) -> LaneView:
    engine = gateway.lanes.engine
    lane = engine.kernel.registry.lanes[name]
    return LaneView.of(name, lane_stats(lane, now=engine.now()), lane.closed_reason)
