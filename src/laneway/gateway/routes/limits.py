"""Limits: accounts of models that take no calls for a while, and other lanes that are closed."""

from __future__ import annotations

from itertools import islice
from typing import Annotated

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from laneway.agent.host import MODEL_LANES
from laneway.errors import NotFoundError
from laneway.gateway.access import Caller
from laneway.gateway.deps import CallerOf, GatewayOf, OperatorOf
from laneway.gateway.routes.sessions import Limit
from laneway.gateway.service import Gateway
from laneway.gateway.traffic_jobs import MODEL, TURN, Census
from laneway.gateway.views import LimitView, Page, RateView, Reason, WaiterView, page_of, router_of
from laneway.kernel.explain import lane_stats
from laneway.kernel.jobs import Entry
from laneway.kernel.lanes import Lane
from laneway.kernel.registry import lane_part
from laneway.records import DURATION_MAX_MS

__all__ = ("router",)

router = router_of("limits")

CLOSED_MS = 60_000
WAITERS_MAX = 5
WORDS = {MODEL: "a call of its model", TURN: "a turn"}
WALL_MAX = 1 << 53
YEAR_2001_MS = 978_307_200_000


class Closing(BaseModel):
    """Until when nothing is started; for a minute if it is not said."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"for_ms": 60_000, "reason": "the quota is used up"}]}
    )

    for_ms: StrictInt | None = Field(default=None, ge=1, le=DURATION_MAX_MS)
    until_ms: StrictInt | None = Field(
        default=None, ge=YEAR_2001_MS, le=WALL_MAX, description="Wall clock, milliseconds."
    )
    reason: str = Field(default="", max_length=2_000)

    @model_validator(mode="after")
    def _says_one(self) -> Closing:
        if self.for_ms is not None and self.until_ms is not None:
            raise ValueError("say for_ms or until_ms, not both")
        return self


@router.get("/limits", summary="Accounts of models, and what is closed")
async def ls(
    gateway: GatewayOf,
    caller: CallerOf,
    after: Annotated[str, Query(max_length=1_000)] = "",
    limit: Limit = 200,
) -> Page[LimitView]:
    """Every account that models were called by, every lane with a rate limit, and what else is closed now."""
    caller.check_shared()
    now = gateway.lanes.engine.wall_ms()
    known = gateway.lanes.engine.kernel.registry.lanes
    names = [
        name
        for name, lane in known.items()
        if name.startswith(MODEL_LANES) or lane.bucket is not None or _is_closed(lane, now)
    ]
    shown = sorted(name for name in names if name > after)[:limit]
    census = Census(gateway)
    return page_of([_view(gateway, known[name], caller, census) for name in shown], shown, limit)


@router.post("/limits/{key:path}/close", summary="Start nothing there for a while")
async def close(key: str, gateway: GatewayOf, caller: OperatorOf, body: Closing | None = None) -> LimitView:
    """Close a limit: what runs goes on, what waits there waits on. The key is that of the list, or an account."""
    caller.check_shared()
    lane = _find(gateway, key)
    order = body or Closing()
    until = order.until_ms or gateway.lanes.engine.wall_ms() + (order.for_ms or CLOSED_MS)
    await gateway.audit.record(caller, "limit.close", lane.name, reason=order.reason, until_ms=until)
    gateway.lanes.close_until(lane.name, until, order.reason or f"closed by {caller.name}")
    return _view(gateway, lane, caller, Census(gateway))


@router.post("/limits/{key:path}/open", summary="Open a limit before its time")
async def open_again(key: str, gateway: GatewayOf, caller: OperatorOf, body: Reason | None = None) -> LimitView:
    """Open a limit; one that is open stays so."""
    caller.check_shared()
    lane = _find(gateway, key)
    await gateway.audit.record(caller, "limit.open", lane.name, reason="" if body is None else body.reason)
    gateway.lanes.reopen(lane.name)
    return _view(gateway, lane, caller, Census(gateway))


def _find(gateway: Gateway, key: str) -> Lane:
    known = gateway.lanes.engine.kernel.registry.lanes
    lane = known.get(key) or known.get(f"{MODEL_LANES}{lane_part(key)}")
    if lane is None:
        raise NotFoundError(what="limit", name=key, hint="GET /v1/limits lists them")
    return lane


def _is_closed(lane: Lane, wall_ms: int) -> bool:
    return (lane.closed_wall_ms or 0) > wall_ms


def _view(gateway: Gateway, lane: Lane, caller: Caller, census: Census) -> LimitView:
    engine = gateway.lanes.engine
    now = engine.now()
    stats = lane_stats(lane, now=now)
    closed = _is_closed(lane, engine.wall_ms())
    return LimitView(
        key=lane.name,
        account=lane.name.removeprefix(MODEL_LANES) if lane.name.startswith(MODEL_LANES) else None,
        closed=closed,
        closed_until_ms=lane.closed_wall_ms if closed else None,
        reason=lane.closed_reason if closed else "",
        running=stats.running,
        waiting=stats.waiting,
        concurrency=stats.max_concurrent,
        rate=_rate(lane, now),
        waiters=[_waiter(entry, caller, census, now) for entry in islice(lane.queue, WAITERS_MAX)]
        if lane.waiting
        else [],
    )


def _rate(lane: Lane, now: int) -> RateView | None:
    bucket, limit = lane.bucket, lane.config.rate_limit
    if bucket is None or limit is None:
        return None
    return RateView(count=limit.count, window_ms=limit.window_ms, left=bucket.left(now), next_ms=bucket.wait_ms(now))


def _waiter(entry: Entry, caller: Caller, census: Census, now: int) -> WaiterView:
    work, waited = census.work_of(entry), max(0, now - entry.queued_at)
    if work.owner is None or work.owner.tenant != caller.tenant:
        return WaiterView(label="a job", waited_ms=waited)
    label = work.tool or WORDS.get(work.kind) or entry.spec.label or "a job"
    return WaiterView(label=label, session_key=work.owner.session, workspace=work.owner.workspace, waited_ms=waited)
