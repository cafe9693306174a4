"""What operators have done, kept in the store: who, what, on which thing, and why."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from laneway.errors import text_of
from laneway.gateway.access import Caller
from laneway.gateway.tokens import GATEWAY
from laneway.gateway.writing import write_row
from laneway.ports import Clock, Store
from laneway.rows import EventRow, Owner
from laneway.telemetry.redaction import redact, redact_tree

__all__ = ("Audit", "AuditEntry")

SESSION: Final = "audit"
TEXT_MAX: Final = 2_000


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
        """Keep an action, in the log of the tenant whose things it is about; raises what the store raises."""
        owner = Owner(caller.tenant, GATEWAY, SESSION)
        body = {**redact_tree(facts), "actor": caller.name, "target": _short(target), "reason": _short(reason)}
        if caller.token_id:
            body["token"] = caller.token_id
        at = self._clock.wall_ms()
        row = EventRow(*owner, self._store.next_seq(), at, f"operator.{action}", "", "", json.dumps(body, default=str))
        await write_row(self._store, row, what="an action of an operator")

    async def entries(self, tenant: str, *, after_seq: int = 0, limit: int = 200) -> list[AuditEntry]:
        """The actions that concern a tenant, oldest first."""
        rows = await self._store.history.events(Owner(tenant, GATEWAY, SESSION), after_seq=after_seq, limit=limit)
        return [_entry(row) for row in rows]


def _short(value: str) -> str:
    text = redact(text_of(value)[: 2 * TEXT_MAX])
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"


def _entry(row: EventRow) -> AuditEntry:
    body = _facts(row.body)
    return AuditEntry(
        seq=row.seq,
        at_ms=row.at_ms,
        actor=str(body.pop("actor", "?")),
        tenant=row.tenant,
        action=row.type.removeprefix("operator."),
        target=str(body.pop("target", "?")),
        reason=str(body.pop("reason", "")),
        facts=body,
    )


def _facts(text: str) -> dict[str, Any]:
    """What a row says; a damaged one still shows that something was done."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    return body if isinstance(body, dict) else {"damaged": True}
