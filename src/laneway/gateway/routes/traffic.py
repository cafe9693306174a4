"""Traffic: what is in every lane at this moment, what moves, and how it was in the last quarter of an hour."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Query
from pydantic import Field

from laneway.gateway.access import Caller
from laneway.gateway.deps import CallerOf, GatewayOf, NamedWorkspaceOf
from laneway.gateway.feeds import Feed, Pace
from laneway.gateway.problems import place_of
from laneway.gateway.routes.events import Follow
from laneway.gateway.routes.sessions import Limit
from laneway.gateway.service import Gateway
from laneway.gateway.streams import EVENT_STREAM, EventStreamResponse
from laneway.gateway.traffic import TrafficFeed
from laneway.gateway.views import View, router_of
from laneway.gateway.workspaces import Workspace

__all__ = ("JobView", "router")

router = router_of("traffic")

NAMES_MAX: Final = 50


class JobView(View):
    """A job in a lane. Of a job of another tenant only its kind, its state and its place are told."""

    id: str = Field(description="Empty for a job of another tenant.")
    label: str = ""
    kind: str = Field("job", description="`turn`, `model`, `tool`, or `job` for anything else.")
    state: str
    since_ms: int = Field(description="Since when it runs, or waits. Wall clock, milliseconds.")
    priority: str = Field("user", description="Its level inside the lane: `user`, `scheduled`, `background`.")
    position: int = Field(0, description="Its place among those that wait, from 1; 0: it has a slot.")
    attempt: int = Field(0, description="Which attempt this is, from the second on.")
    cancelling: bool = Field(default=False, description="It was told to end and has not ended yet.")
    foreign: bool = Field(default=False, description="It belongs to another tenant.")
    session: str = ""
    workspace: str = ""
    run: str = Field("", description="The run it is, or works for.")
    tool: str = ""
    lanes: list[str] = Field(default_factory=list, description="All lanes it needs a slot of, in this order.")
    reason: str = Field("", description="What it waits for, as a word.")
    why: str = Field("", description="What it waits for, as a sentence.")
    until_ms: int | None = Field(None, description="Until when, if that is known. Wall clock.")
    estimate_ms: int | None = Field(None, description="About how long still, by what jobs here have taken so far.")
    lent: bool = Field(default=False, description="It has lent its slot while it waits for another job.")
    lent_to: list[str] = Field(default_factory=list, description="The jobs it waits for meanwhile.")
    borrowed_from: str = Field("", description="The job whose slot it has meanwhile.")


class TrackView(View):
    """A lane, and the jobs in it."""

    name: str
    kind: str = Field(description="`shared` by all, of one `workspace`, or of one `session`.")
    role: str = Field(
        "",
        description="`turns`, `model` (calls of an account), `tools` and `session` (the tools and the turn of a "
        "session), `waits` (turns that wait for somebody), `template` (what the lanes of tools of all sessions "
        "are made from); empty: none of these.",
    )
    workspace: str = ""
    session: str = ""
    mode: str = Field("", description="Who makes the calls of a lane of tools: `internal`, `external`, `hybrid`.")
    concurrency: int = 0
    running: int = Field(0, description="How many slots are taken.")
    waiting: int = 0
    scheduled: int = Field(0, description="What waits for its time.")
    lent: int = Field(0, description="How many jobs have lent their slots here.")
    borrowed: int = Field(0, description="How many of the jobs that are shown have a slot from one of these.")
    paused: bool = False
    pause_reason: str = ""
    closed_until_ms: int | None = None
    closed_reason: str = ""
    pressure: bool = Field(default=False, description="More waits than its threshold.")
    pressure_threshold: int | None = None
    alert: str = Field("", description="`warning` or `critical` while its queue is long.")
    exclusive: bool = False
    rate: list[int] | None = Field(None, description="So many starts in so many milliseconds.")
    queued_max: int | None = None
    group: str = Field("", description="The group of lanes whose cap it shares.")
    oldest_since_ms: int | None = Field(None, description="Since when the oldest job here waits. Wall clock.")
    completed: int = 0
    failed: int = 0
    jobs: list[JobView] = Field(default_factory=list, description="Those that have a slot, longest first.")
    more_jobs: int = Field(0, description="How many more have one.")
    queue: list[JobView] = Field(default_factory=list, description="Those that wait, in the order of their starts.")
    more_queue: int = Field(0, description="How many more wait.")


class TotalsView(View):
    """All lanes together: jobs are counted, not slots."""

    lanes: int
    running: int
    waiting: int
    scheduled: int
    lent: int
    max_concurrent: int | None = Field(None, description="The cap over everything; null: none.")
    taken: int = Field(description="How much of it is taken.")
    draining: str = ""


class TrafficView(View):
    """Lanes by their names at one moment; ask again with `after` set to `next` for what follows."""

    at_ms: int
    totals: TotalsView
    items: list[TrackView]
    next: str | None = None


class SeriesView(View):
    """Numbers of the steps, oldest first."""

    started: list[int]
    ended: list[int]
    failed: list[int]
    wait_p50_ms: list[int | None] = Field(description="Half of those that began had waited no longer; null: none began")
    wait_p95_ms: list[int | None]
    waiting: list[int] = Field(description="At the end of the step.")
    running: list[int]


class TrafficHistoryView(View):
    """The last steps: the newest one ended at `at_ms`."""

    at_ms: int
    step_ms: int
    steps: int
    total: SeriesView
    lanes: dict[str, SeriesView]


EXAMPLE: Final = """event: look
data: {"type":"look","at_ms":1767268800000,"totals":{"running":1},"gone":[],"lanes":[{"name":"main"}],"count":1}

event: changes
data: {"type":"changes","at_ms":1767268800250,"totals":{"running":2},"gone":["session:s1"],"lanes":[{"name":"main"}]}

event: step
data: {"type":"step","at_ms":1767268805000,"step":1,"total":{"started":3,"ended":2},"lanes":{"main":{"started":3}}}

"""
STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "A stream: first `look` (as many of the lanes as fit; `changes` with the rest follow), then "
        "`changes` when lanes differ from what was told, at most four times a second, and every five seconds `step`, "
        "what has happened meanwhile. Lanes and jobs look as those of `GET /v1/traffic`, but what is empty, zero, "
        "false or null is left out. Nothing has an id: whoever comes back gets the whole look. A comment comes after "
        "silence; `close` says why the stream ends.",
        "content": {EVENT_STREAM: {"schema": {"type": "string"}, "example": EXAMPLE}},
    }
}


@router.get("/traffic", summary="Every lane and what is in it at this moment")
async def look(
    gateway: GatewayOf,
    caller: CallerOf,
    workspace: NamedWorkspaceOf,
    after: Annotated[str, Query(max_length=1_000)] = "",
    limit: Limit = 200,
) -> TrafficView:
    """Lanes by their names, with the first of the jobs that run and wait there, and why they wait.

    Lanes of sessions of other tenants are left out, and so is what other tenants' jobs in shared lanes are about.
    """
    caller.check_shared()
    traffic = gateway.traffic
    seen = traffic.fresh()
    lanes = [lane for lane in traffic.shown(caller.tenant, _places(workspace)) if lane.name > after][:limit]
    return TrafficView(
        at_ms=seen.wall,
        totals=TotalsView(**seen.totals()),
        items=[TrackView(**seen.lane(lane, caller.tenant)) for lane in lanes],
        next=lanes[-1].name if len(lanes) >= limit else None,
    )


@router.get(
    "/traffic/events",
    status_code=200,
    response_class=EventStreamResponse,
    responses=STREAM,
    summary="Watch the lanes",
)
async def watch(
    gateway: GatewayOf,
    caller: CallerOf,
    workspace: NamedWorkspaceOf,
    follow: Follow = True,  # noqa: FBT002 - a parameter of the address
) -> EventStreamResponse:
    """The whole look, and then what changes."""
    caller.check_shared()
    traffic = gateway.traffic
    traffic.hub.check_open()
    pace = Pace(heartbeat_ms=gateway.settings.heartbeat_ms, follow=follow)
    places = _places(workspace)

    def feed() -> Feed:
        return TrafficFeed(gateway, traffic.watch(caller), pace, places)

    return EventStreamResponse(feed, hide=place_of(gateway.store))


@router.get("/traffic/history", summary="The last quarter of an hour")
async def history(
    gateway: GatewayOf,
    caller: CallerOf,
    lane: Annotated[list[str] | None, Query(max_length=NAMES_MAX, description="Names of lanes.")] = None,
) -> TrafficHistoryView:
    """In steps of five seconds what has begun and ended and how long it had waited: of all, and of the lanes named.

    Without a name: of the lanes that all share. A lane of which nothing is known is left out.
    """
    caller.check_shared()
    names = _named(gateway, caller, lane)
    return TrafficHistoryView.model_validate(gateway.traffic.history.read(names))


def _named(gateway: Gateway, caller: Caller, wanted: list[str] | None) -> list[str]:
    """The names of lanes that the caller may see: of those wanted, or of those that all share."""
    known = gateway.lanes.engine.kernel.registry.lanes
    look = gateway.traffic.fresh()
    names = [name for name in known if "/" not in name][:NAMES_MAX] if wanted is None else wanted
    return [name for name in names if name in known and look.is_there_for(known[name], caller.tenant)]


def _places(workspace: Workspace | None) -> frozenset[str] | None:
    return None if workspace is None else frozenset({workspace.name})
