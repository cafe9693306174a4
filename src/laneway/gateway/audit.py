"""What operators have done, kept in the store: who, what, on which thing, and why."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from laneway.errors import text_of
from laneway.gateway.access import Caller
from laneway.gateway.tokens import GATEWAY
from laneway.ports import Clock, Store
from laneway.rows import Batch, EventRow, Owner

__all__ = ("Audit", "AuditEntry")

SESSION: Final = "audit"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One action of an operator."""

    seq: int
    at_ms: int
    actor: str
    tenant: str
    action: str
    target: str
    reason: str
    facts: dict[str, Any]


class Audit:
    """The log of operators' actions. It is written before the action: what is not on disk is not done."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def record(self, caller: Caller, action: str, target: str, *, reason: str = "", **facts: Any) -> None:
        """Keep an action; raises what the store raises."""
        owner = Owner(caller.tenant, GATEWAY, SESSION)
        body = {"actor": caller.name, "target": text_of(target), "reason": text_of(reason), **facts}
        if caller.token_id:
            body["token"] = caller.token_id
        at = self._clock.wall_ms()
        row = EventRow(*owner, self._store.next_seq(), at, f"operator.{action}", "", "", json.dumps(body, default=str))
        result = (await self._store.commit([Batch(owner, self._store.epoch, (row,))]))[0]
        if result.error is not None:
            raise result.error

    async def entries(self, tenant: str, *, after_seq: int = 0, limit: int = 200) -> list[AuditEntry]:
        """The actions that concern a tenant, oldest first."""
        rows = await self._store.history.events(Owner(tenant, GATEWAY, SESSION), after_seq=after_seq, limit=limit)
        return [_entry(row) for row in rows]


def _entry(row: EventRow) -> AuditEntry:
    body: dict[str, Any] = json.loads(row.body)
    return AuditEntry(
        seq=row.seq,
        at_ms=row.at_ms,
        actor=body.pop("actor"),
        tenant=row.tenant,
        action=row.type.removeprefix("operator."),
        target=body.pop("target"),
        reason=body.pop("reason"),
        facts=body,
    )
