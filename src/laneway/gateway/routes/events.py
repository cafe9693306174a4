"""Events as they happen, as server-sent events: of a session, of a run, of everything a tenant has."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Header, Query

from laneway.gateway.deps import CallerOf, GatewayOf, WorkspaceOf
from laneway.gateway.feeds import Feed, Pace, Place, RunFeed, SessionFeed, round_of, watch
from laneway.gateway.problems import place_of
from laneway.gateway.streams import EVENT_STREAM, EventStreamResponse
from laneway.gateway.views import router_of
from laneway.runtime.envelope import check_key

__all__ = ("router",)

router = router_of("events")

LastSeen = Annotated[str, Header(alias="Last-Event-ID", max_length=100, description="The last id that was seen.")]
LastSeenQuery = Annotated[str, Query(max_length=100, description="The same, in the address; the header comes first.")]
Replay = Annotated[
    str, Query(max_length=10, description="Without a last id: how much of the past, `all`, a number, or `none`.")
]
Follow = Annotated[bool, Query(description="`false`: end with `caught_up` after what there is now.")]

EXAMPLE: Final = """id: 7
event: message.accepted
data: {"type":"message.accepted","session_key":"s1","message_id":"m-1","seq":7,"state":"queued","position":1}

event: text_delta
data: {"version":1,"type":"text_delta","payload":{"text":"You"},"metadata":{"session_id":"s1","run_id":"turn-1"}}

: beat

event: close
data: {"reason":"stopping"}

"""
STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "A stream. Stored events have an `id`; `so_far` is what a run has told already; "
        "a comment comes after silence; `close` says why the stream ends.",
        "content": {EVENT_STREAM: {"schema": {"type": "string"}, "example": EXAMPLE}},
    }
}


@router.get(
    "/sessions/{key}/events",
    status_code=200,  # FastAPI reads the usual one from the class, which has none
    response_class=EventStreamResponse,
    responses=STREAM,
    summary="Watch a session",
)
async def of_session(
    key: str,
    gateway: GatewayOf,
    caller: CallerOf,
    workspace: WorkspaceOf,
    last_event_id: LastSeen = "",
    last_seen: Annotated[LastSeenQuery, Query(alias="last_event_id")] = "",
    replay: Replay = "",
    follow: Follow = True,  # noqa: FBT002 - a parameter of the address
) -> EventStreamResponse:
    """Everything that happens in a session, one that has no message yet, too. Leaving changes nothing for it."""
    place = Place.of(last_event_id or last_seen, replay)
    session = check_key(key, "session key")
    workspace.hub.check_open()
    pace = Pace(heartbeat_ms=gateway.settings.heartbeat_ms, follow=follow)

    def feed() -> Feed:
        watcher = watch(gateway.settings, caller, workspace, session)
        return SessionFeed(workspace, watcher, pace, place)

    return EventStreamResponse(feed, hide=place_of(gateway.store))


@router.get(
    "/events", status_code=200, response_class=EventStreamResponse, responses=STREAM, summary="Watch everything"
)
async def of_tenant(
    gateway: GatewayOf,
    caller: CallerOf,
    workspace: WorkspaceOf,
    last_event_id: LastSeen = "",
    last_seen: Annotated[LastSeenQuery, Query(alias="last_event_id")] = "",
    replay: Replay = "",
    follow: Follow = True,  # noqa: FBT002 - a parameter of the address
) -> EventStreamResponse:
    """Everything that happens in all sessions of the caller's tenant in one workspace."""
    place = Place.of(last_event_id or last_seen, replay)
    workspace.hub.check_open()
    pace = Pace(heartbeat_ms=gateway.settings.heartbeat_ms, follow=follow)

    def feed() -> Feed:
        watcher = watch(gateway.settings, caller, workspace, None)
        return SessionFeed(workspace, watcher, pace, place)

    return EventStreamResponse(feed, hide=place_of(gateway.store))


@router.get(
    "/runs/{run_id}/events",
    status_code=200,
    response_class=EventStreamResponse,
    responses=STREAM,
    summary="Watch a run",
)
async def of_run(
    run_id: str,
    gateway: GatewayOf,
    caller: CallerOf,
    last_event_id: LastSeen = "",
    last_seen: Annotated[LastSeenQuery, Query(alias="last_event_id")] = "",
    follow: Follow = True,  # noqa: FBT002 - a parameter of the address
) -> EventStreamResponse:
    """What a run tells, from its first round on, until it has ended. Whole rounds have the id `r<round>`."""
    mark = last_event_id or last_seen
    round_of(mark)
    workspace, row = await gateway.find_run(caller, run_id)
    workspace.hub.check_open()
    pace = Pace(heartbeat_ms=gateway.settings.heartbeat_ms, follow=follow)

    def feed() -> Feed:
        watcher = watch(gateway.settings, caller, workspace, row.session)
        return RunFeed(workspace, watcher, pace, run_id, last_event_id=mark)

    return EventStreamResponse(feed, hide=place_of(gateway.store))
