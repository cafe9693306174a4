"""What there is to say of a budget, as plain JSON values: for routes, and for whoever reads a store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nlargest
from typing import Any, Final, NamedTuple

from laneway.kernel.budgets import Count, CountKey, Parked
from laneway.spending import DOLLAR, Budget, BudgetScope

__all__ = ("Waits", "budget_facts")

COUNTS_MAX: Final = 100
RUNS_MAX: Final = 20
"""So many of the runs that wait for a count are named."""
NOBODY: Final = "sessions without a principal"


class Waits(NamedTuple):
    """Who waits for budgets: calls for what others give back, by count, and runs for the next window."""

    calls: Mapping[CountKey, int]
    runs: Sequence[Parked]


def budget_facts(
    rule: Budget,
    counts: Iterable[Count],
    *,
    workspace: str,
    origin: str,
    waits: Waits | None = None,
) -> dict[str, Any]:
    """A budget with what was counted for it, the fullest counts first."""
    found = list(counts)
    runs: dict[CountKey, list[Parked]] = {}
    for run in () if waits is None else waits.runs:
        runs.setdefault(run.key, []).append(run)
    calls = {} if waits is None else waits.calls
    shown = nlargest(COUNTS_MAX, found, key=lambda count: count.share)
    return {
        "name": rule.name,
        "workspace": workspace,
        "shared": rule.tenant is None,
        "origin": origin,
        "scope": rule.scope.value,
        "window": rule.window.value,
        "timezone": rule.timezone,
        "tokens": rule.tokens,
        "money": rule.money,
        "on_exhausted": rule.on_exhausted.value,
        "cheaper": rule.cheaper,
        "warn_at": rule.warn_at,
        "only": rule.only,
        "unpriced": rule.unpriced.value,
        "counts": [_count_facts(each, calls.get(each.key, 0), runs.get(each.key, [])) for each in shown],
        "left_out": len(found) - len(shown),
    }


def _count_facts(count: Count, waiting: int, parked: Sequence[Parked]) -> dict[str, Any]:
    amounts = {"spent": count.spent, "reserved": count.reserved, "lost": count.lost, "overrun": count.overrun}
    _, slash, own = count.key.subject.partition("/")
    scope = count.budget.scope
    subject = own if slash and scope in (BudgetScope.SESSION, BudgetScope.PRINCIPAL) else count.key.subject
    return {
        "subject": subject,
        "whose": f"{scope.value} {subject}" if subject else NOBODY,
        "from_ms": count.period.from_ms or None,
        "until_ms": count.period.until_ms,
        "share": round(count.share, 6),
        "in_flight": count.in_flight,
        "waiting": waiting,
        "parked": len(parked),
        "parked_runs": [
            {"session_key": each.session, "run_id": each.run_id, "until_ms": each.until_ms}
            for each in parked[:RUNS_MAX]
        ],
        "tokens": {name: amount.tokens for name, amount in amounts.items()},
        "money": {name: amount.nanos / DOLLAR for name, amount in amounts.items()},
    }
