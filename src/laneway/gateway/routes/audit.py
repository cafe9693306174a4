"""What operators have done."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, Field

from laneway.errors import InvalidMessageError
from laneway.gateway.audit import AuditEntry, AuditQuery
from laneway.gateway.deps import GatewayOf, OperatorOf
from laneway.gateway.views import router_of

__all__ = ("router",)

router = router_of("audit")

SEQ_MAX = 2**63 - 1
FILTERS = {"actor", "action", "target", "text", "from_ms", "to_ms"}


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
    """Actions; `next` is where the following page begins."""

    items: list[AuditView]
    next: str | None = Field(None, description="Give it as `after`.")


class Wanted(BaseModel):
    """Which actions are wanted; the filters are for `order=newest`."""

    order: Literal["oldest", "newest"] = "oldest"
    after: int = Field(0, ge=0, le=SEQ_MAX, description="Only what follows this one in the order; 0: from the start.")
    limit: int = Field(200, ge=1, le=1000)
    actor: str = Field("", max_length=200, description="A part of who did it.")
    action: str = Field("", max_length=100, description="`lane.change`, or all about lanes: `lane`.")
    target: str = Field("", max_length=400, description="A part of what it was done to.")
    text: str = Field("", max_length=400, description="A part of anything that is known about it.")
    from_ms: int = Field(0, ge=0, le=1 << 53)
    to_ms: int = Field(0, ge=0, le=1 << 53)

    @property
    def query(self) -> AuditQuery:
        """The filters."""
        return AuditQuery(**self.model_dump(include=FILTERS))


@router.get("/audit", summary="What operators have done")
async def entries(gateway: GatewayOf, caller: OperatorOf, wanted: Annotated[Wanted, Query()]) -> AuditList:
    """The actions that concern the caller's tenant, oldest first, or newest first with filters.

    With filters a page may have fewer than `limit` although there are more: ask again as long as there is a `next`.
    """
    if wanted.order == "newest":
        found, following = await gateway.audit.newest(
            caller.tenant, wanted.query, before_seq=wanted.after, limit=wanted.limit
        )
        return AuditList(items=[_view(each) for each in found], next=str(following) if following else None)
    if wanted.query != AuditQuery():
        raise InvalidMessageError("filters are for order=newest", hint="add order=newest")
    found = await gateway.audit.entries(caller.tenant, after_seq=wanted.after, limit=wanted.limit)
    return AuditList(
        items=[_view(each) for each in found], next=str(found[-1].seq) if len(found) == wanted.limit else None
    )


def _view(entry: AuditEntry) -> AuditView:
    return AuditView(
        seq=entry.seq,
        at_ms=entry.at_ms,
        actor=entry.actor,
        action=entry.action,
        target=entry.target,
        reason=entry.reason,
        facts=entry.facts,
    )
