"""Schedules: messages that are sent by the clock."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator

from laneway.agent.subagents import is_child_id, root_of
from laneway.errors import InvalidMessageError, NotFoundError, UnknownMessageError
from laneway.gateway.deps import CallerOf, GatewayOf, OperatorOf, WorkspaceOf
from laneway.gateway.lookup import find_schedule
from laneway.gateway.views import Page, Reason, ScheduleView, View, router_of
from laneway.gateway.workspaces import Workspace
from laneway.mail import Final, MessageKind, Schedule
from laneway.records import DURATION_MAX_MS
from laneway.runtime.clockwork import PREVIEW_MAX, ScheduleChange, changed, preview

__all__ = ("router",)

router = router_of("schedules")

TEXT_MAX = 1_000_000
RESULTS_MAX = 500
"""Of how many schedules of a list it is said what became of the message they sent last: each is a look at the store."""


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


class Times(BaseModel):
    """When something would be sent: exactly one of `cron`, `at_ms` and `every_ms`."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"cron": "0 9 * * 1-5", "timezone": "Europe/Berlin"}]}
    )

    cron: str | None = Field(None, max_length=200)
    at_ms: StrictInt | None = Field(None, ge=0, le=1 << 53, description="One moment: wall clock, milliseconds.")
    every_ms: StrictInt | None = Field(None, ge=1, le=DURATION_MAX_MS)
    timezone: str = Field("UTC", max_length=100)
    count: StrictInt = Field(5, ge=1, le=PREVIEW_MAX)


class Preview(View):
    """The next times, the first one first."""

    times: list[int] = Field(description="Wall clock, milliseconds.")
    now_ms: int


class ScheduleOrder(BaseModel):
    """What is to be different about a schedule; another time takes the place of the one it had."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"paused": True, "reason": "holidays"}, {"cron": "0 8 * * *"}]},
    )

    text: str | None = Field(None, min_length=1, max_length=TEXT_MAX)
    cron: str | None = Field(None, max_length=200)
    at_ms: StrictInt | None = Field(None, ge=0, le=1 << 53)
    every_ms: StrictInt | None = Field(None, ge=1, le=DURATION_MAX_MS)
    missed: Literal["skip", "run"] | None = None
    kind: Literal["system", "heartbeat"] | None = None
    timezone: str | None = Field(None, max_length=100)
    paused: StrictBool | None = None
    reason: str = Field("", max_length=2_000)

    @model_validator(mode="after")
    def _says_something(self) -> ScheduleOrder:
        if sum(each is not None for each in (self.cron, self.at_ms, self.every_ms)) > 1:
            raise ValueError("say at most one of cron, at_ms and every_ms")
        if not self.change.given:
            raise ValueError("nothing is to be changed")
        return self

    @property
    def change(self) -> ScheduleChange:
        """The same as a record."""
        given = self.model_dump(exclude={"reason", "kind"}, exclude_none=True)
        return ScheduleChange(**given, kind=None if self.kind is None else MessageKind(self.kind))


class Sent(View):
    """What a schedule has sent now."""

    message_id: str
    schedule: ScheduleView


@router.get("/schedules", summary="Messages that are sent by the clock")
async def ls(
    caller: CallerOf,
    workspace: WorkspaceOf,
    session: Annotated[str, Query(max_length=400, description="Of one session only.")] = "",
) -> Page[ScheduleView]:
    """The schedules of the caller's tenant, by their next time."""
    found = workspace.inbox.schedules(session or None, tenant=caller.tenant)
    items = [await _view(workspace, each) for each in found[:RESULTS_MAX]]
    return Page(items=items + [ScheduleView.of(each, workspace.name) for each in found[RESULTS_MAX:]])


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
    preview(_draft(body, body.kind), gateway.env.clock.wall_ms(), 1)  # what is refused is not done, so it is not kept
    when = body.model_dump(include={"cron", "at_ms", "every_ms", "timezone"}, exclude_none=True)
    await gateway.audit.record(caller, "schedule.add", body.session_key, reason=body.reason, **when)
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


@router.post("/schedules/preview", summary="When something would be sent")
async def look(body: Times, gateway: GatewayOf, _caller: CallerOf) -> Preview:
    """The next times of a schedule that is not there yet; what is wrong with it names its `setting`."""
    now = gateway.env.clock.wall_ms()
    return Preview(times=preview(_draft(body), now, body.count), now_ms=now)


@router.get("/schedules/{schedule_id}", summary="One schedule")
async def show(schedule_id: str, gateway: GatewayOf, caller: CallerOf) -> ScheduleView:
    """A message that is sent by the clock."""
    workspace, schedule = find_schedule(gateway, caller, schedule_id)
    return await _view(workspace, schedule)


@router.patch("/schedules/{schedule_id}", summary="Change a schedule, pause it, or let it go on")
async def change(schedule_id: str, body: ScheduleOrder, gateway: GatewayOf, caller: OperatorOf) -> ScheduleView:
    """Change a schedule. After a pause, or with another time, it is due at its next time from now on."""
    workspace, schedule = find_schedule(gateway, caller, schedule_id)
    facts = body.model_dump(exclude={"reason", "text"}, exclude_none=True)
    if body.text is not None:
        facts["changed"] = "text"  # not what it says: the log stays when a session is deleted
    changed(schedule, body.change, gateway.env.clock.wall_ms())  # what is refused is not done, so it is not kept
    await gateway.audit.record(
        caller, "schedule.change", schedule.id, reason=body.reason, session_key=schedule.session_key, **facts
    )
    return await _view(workspace, await workspace.inbox.clockwork.change(schedule.id, body.change))


@router.post("/schedules/{schedule_id}/run", status_code=202, summary="Send the message of a schedule now")
async def run(schedule_id: str, gateway: GatewayOf, caller: OperatorOf, body: Reason | None = None) -> Sent:
    """Send it beside its times, which stay as they are. Refused while the message it sent before has not ended."""
    workspace, schedule = find_schedule(gateway, caller, schedule_id)
    gateway.admission.check()
    workspace.inbox.clockwork.check_sendable(schedule)
    reason = "" if body is None else body.reason
    await gateway.audit.record(caller, "schedule.run", schedule.id, reason=reason, session_key=schedule.session_key)
    message_id = await workspace.inbox.clockwork.send_now(schedule.id, reason or f"sent now by {caller.name}")
    _, schedule = find_schedule(gateway, caller, schedule_id)
    return Sent(message_id=message_id, schedule=await _view(workspace, schedule))


@router.delete("/schedules/{schedule_id}", status_code=204, summary="Forget a schedule")
async def remove(
    schedule_id: str,
    gateway: GatewayOf,
    caller: OperatorOf,
    reason: Annotated[str, Query(max_length=2_000)] = "",
) -> None:
    """Forget a schedule; what it has sent already stays."""
    workspace, schedule = find_schedule(gateway, caller, schedule_id)
    await gateway.audit.record(caller, "schedule.remove", schedule.id, reason=reason, session_key=schedule.session_key)
    if not await workspace.inbox.unschedule(schedule.id):
        raise NotFoundError(what="schedule", name=schedule_id, hint="GET /v1/schedules lists them")


def _draft(body: Times | NewSchedule, kind: str = "system") -> Schedule:
    """What somebody has in mind, as a schedule that nobody keeps."""
    return Schedule(
        id="",
        session_key="",
        text="",
        cron=body.cron,
        at_ms=body.at_ms,
        every_ms=body.every_ms,
        missed="skip",
        next_ms=0,
        kind=MessageKind(kind),
        timezone=body.timezone,
    )


async def _view(workspace: Workspace, schedule: Schedule) -> ScheduleView:
    last: Final | None = None
    if schedule.last_id:
        try:
            last = await workspace.inbox.status(schedule.last_id)
        except UnknownMessageError:  # it was deleted since
            last = None
    return ScheduleView.of(schedule, workspace.name, last)
