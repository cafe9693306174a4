"""Schedules: messages that are sent by the clock."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from laneway.agent.subagents import is_child_id, root_of
from laneway.errors import InvalidMessageError, NotFoundError
from laneway.gateway.deps import CallerOf, GatewayOf, OperatorOf, WorkspaceOf
from laneway.gateway.lookup import find_schedule
from laneway.gateway.views import Page, ScheduleView, router_of
from laneway.records import DURATION_MAX_MS

__all__ = ("router",)

router = router_of("schedules")


class NewSchedule(BaseModel):
    """A message and its times: exactly one of `cron`, `at_ms` and `every_ms`."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [{"session_key": "daily", "text": "What is new?", "cron": "0 9 * * 1-5", "timezone": "UTC"}]
        },
    )

    session_key: str = Field(min_length=1, max_length=400)
    text: str = Field(min_length=1)
    cron: str | None = Field(None, max_length=200)
    at_ms: StrictInt | None = Field(None, ge=0, le=1 << 53, description="One moment: wall clock, milliseconds.")
    every_ms: StrictInt | None = Field(None, ge=1, le=DURATION_MAX_MS)
    missed: Literal["skip", "run"] = "skip"
    kind: Literal["system", "heartbeat"] = "system"
    timezone: str = Field("UTC", max_length=100)
    reason: str = Field("", max_length=2_000)

    @model_validator(mode="after")
    def _says_when_once(self) -> NewSchedule:
        if sum(each is not None for each in (self.cron, self.at_ms, self.every_ms)) != 1:
            raise ValueError("say exactly one of cron, at_ms and every_ms")
        return self


@router.get("/schedules", summary="Messages that are sent by the clock")
async def ls(
    caller: CallerOf,
    workspace: WorkspaceOf,
    session: Annotated[str, Query(max_length=400, description="Of one session only.")] = "",
) -> Page[ScheduleView]:
    """The schedules of the caller's tenant, by their next time."""
    found = workspace.inbox.schedules(session or None, tenant=caller.tenant)
    return Page(items=[ScheduleView.of(each, workspace.name) for each in found])


@router.post("/schedules", status_code=201, summary="Send a message by the clock")
async def add(
    body: NewSchedule, gateway: GatewayOf, caller: OperatorOf, workspace: WorkspaceOf, response: Response
) -> ScheduleView:
    """Add a schedule. It is on disk when the answer comes."""
    if is_child_id(body.session_key):
        raise InvalidMessageError(
            f"session {body.session_key!r} belongs to a sub-agent, which only its parent talks to",
            hint=f"use {root_of(body.session_key)!r}",
        )
    await gateway.audit.record(caller, "schedule.add", body.session_key, reason=body.reason, text=body.text[:200])
    schedule = await workspace.inbox.schedule(
        body.session_key,
        body.text,
        cron=body.cron,
        at_ms=body.at_ms,
        every_ms=body.every_ms,
        missed=body.missed,
        kind=body.kind,
        timezone=body.timezone,
        tenant=caller.tenant,
    )
    response.headers["Location"] = f"/v1/schedules/{schedule.id}"
    return ScheduleView.of(schedule, workspace.name)


@router.get("/schedules/{schedule_id}", summary="One schedule")
async def show(schedule_id: str, gateway: GatewayOf, caller: CallerOf) -> ScheduleView:
    """A message that is sent by the clock."""
    workspace, schedule = find_schedule(gateway, caller, schedule_id)
    return ScheduleView.of(schedule, workspace.name)


@router.delete("/schedules/{schedule_id}", status_code=204, summary="Forget a schedule")
async def remove(
    schedule_id: str,
    gateway: GatewayOf,
    caller: OperatorOf,
    reason: Annotated[str, Query(max_length=2_000)] = "",
) -> None:
    """Forget a schedule; what it has sent already stays."""
    workspace, schedule = find_schedule(gateway, caller, schedule_id)
    await gateway.audit.record(caller, "schedule.remove", schedule.id, reason=reason)
    if not await workspace.inbox.unschedule(schedule.id):
        raise NotFoundError(what="schedule", name=schedule_id, hint="GET /v1/schedules lists them")
