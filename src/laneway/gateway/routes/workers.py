"""Workers: who was heard of lately, how they do, and what they have in hand."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from laneway.errors import NotFoundError
from laneway.gateway.access import Caller
from laneway.gateway.deps import CallerOf, GatewayOf
from laneway.gateway.lookup import sees_shared
from laneway.gateway.routes.sessions import Limit
from laneway.gateway.service import Gateway
from laneway.gateway.task_views import WorkerView
from laneway.gateway.views import Page, router_of
from laneway.runtime.worker_book import WorkerRecord

__all__ = ("router",)

router = router_of("workers")


@router.get("/workers", summary="Workers that were heard of lately")
async def ls(
    gateway: GatewayOf,
    caller: CallerOf,
    after: Annotated[str, Query(max_length=200, description="The name of the last one that was seen.")] = "",
    limit: Limit = 200,
) -> Page[WorkerView]:
    """Workers by their names. Whoever sees one tenant only sees the workers that serve it alone.

    Workers of one name are never on two pages, so a page may be longer than `limit`.
    """
    records = [record for record in _seen(gateway, caller) if record.name > after]
    shown = records[:limit]
    shown += [record for record in records[limit:] if record.name == shown[-1].name]
    now = gateway.env.clock.monotonic_ms()
    cursor = shown[-1].name if len(shown) < len(records) else None
    return Page(items=[WorkerView.of(record, now) for record in shown], next=cursor)


@router.get("/workers/{name:path}", summary="One worker")
async def show(name: str, gateway: GatewayOf, caller: CallerOf) -> WorkerView:
    """A worker by its name; if several have it, the one that was heard of last."""
    found = [record for record in _seen(gateway, caller) if record.name == name]
    if not found:
        raise NotFoundError(what="worker", name=name, hint="GET /v1/workers lists those that were heard of lately")
    return WorkerView.of(max(found, key=lambda record: record.seen_at), gateway.env.clock.monotonic_ms())


def _seen(gateway: Gateway, caller: Caller) -> list[WorkerRecord]:
    """The workers that a caller may see: those that serve all tenants belong to the operators of all."""
    records = gateway.hall.workers()
    return records if sees_shared(caller) else [record for record in records if record.tenant == caller.tenant]
