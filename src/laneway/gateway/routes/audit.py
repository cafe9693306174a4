"""What operators have done."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field

from laneway.gateway.deps import GatewayOf, OperatorOf
from laneway.gateway.views import router_of

__all__ = ("router",)

router = router_of("audit")

SEQ_MAX = 2**63 - 1


class AuditView(BaseModel):
    """One action of an operator."""

    seq: int
    at_ms: int
    actor: str
    action: str
    target: str
    reason: str
    facts: dict[str, Any]


class AuditList(BaseModel):
    """Actions, oldest first; `next` is where the following page begins."""

    items: list[AuditView]
    next: str | None = Field(None, description="Give it as `after`.")


@router.get("/audit", summary="What operators have done")
async def entries(
    gateway: GatewayOf,
    caller: OperatorOf,
    after: Annotated[int, Query(ge=0, le=SEQ_MAX, description="Only what came after this one.")] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> AuditList:
    """The actions that concern the caller's tenant."""
    found = await gateway.audit.entries(caller.tenant, after_seq=after, limit=limit)
    items = [
        AuditView(
            seq=each.seq,
            at_ms=each.at_ms,
            actor=each.actor,
            action=each.action,
            target=each.target,
            reason=each.reason,
            facts=each.facts,
        )
        for each in found
    ]
    return AuditList(items=items, next=str(items[-1].seq) if len(items) == limit else None)
