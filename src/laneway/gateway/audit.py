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

__all__ = ("Audit", "AuditEntry", "AuditQuery")

SESSION: Final = "audit"
TEXT_MAX: Final = 2_000
SCAN: Final = 500
SCANNED_MAX: Final = 20_000
CLOCKS_MS: Final = 86_400_000
"""The wall clock may have been set back between two actions; nobody sets it back by more than a day."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuery:
    """Which actions are wanted; what is empty, or 0, says nothing. Case does not matter."""

    actor: str = ""
    action: str = ""
    target: str = ""
    text: str = ""
    from_ms: int = 0
    to_ms: int = 0

    def fits(self, entry: AuditEntry) -> bool:
        """Whether an action is one of them. An `action` is a whole word of it, or all: `lane`, `lane.change`."""
        if self.from_ms and entry.at_ms < self.from_ms:
            return False
        if self.to_ms and entry.at_ms >= self.to_ms:
            return False
        if self.action and self.action != entry.action and self.action != entry.action.partition(".")[0]:
            return False
        if not _has(entry.actor, self.actor) or not _has(entry.target, self.target):
            return False
        return not self.text or _has(_everything(entry), self.text)


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

    async def newest(
        self, tenant: str, query: AuditQuery, *, before_seq: int = 0, limit: int = 200
    ) -> tuple[list[AuditEntry], int]:
        """The actions that are wanted, newest first, and where to go on; 0: there are no more.

        It looks through a bounded number of actions, so there may be fewer than `limit` although there are more.
        """
        owner, found, seq = Owner(tenant, GATEWAY, SESSION), list[AuditEntry](), before_seq
        for _ in range(0, SCANNED_MAX, SCAN):
            rows = await self._store.history.events_newest(owner, before_seq=seq, limit=SCAN)
            for row in rows:
                entry = _entry(row)
                if query.from_ms and entry.at_ms < query.from_ms - CLOCKS_MS:
                    return found, 0  # those before are older still
                if query.fits(entry):
                    found.append(entry)
                    if len(found) == limit:
                        return found, row.seq
            if len(rows) < SCAN:
                return found, 0
            seq = rows[-1].seq
        return found, seq


def _has(text: str, part: str) -> bool:
    return part.casefold() in text.casefold()


def _everything(entry: AuditEntry) -> str:
    facts = json.dumps(entry.facts, ensure_ascii=False, default=str)
    return "\n".join((entry.actor, entry.action, entry.target, entry.reason, facts))


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
