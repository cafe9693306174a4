"""Fixed seeds of budgets, and that the laws can be broken."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from laneway.kernel.budgets import Budgets, Count, Grant, Wish
from laneway.runtime.budget_desk import BudgetDesk
from laneway.sim.budget_tier import run_budgets_seed
from laneway.sim.trace import SimFailedError
from laneway.spending import Amount, Spender

_TRY = BudgetDesk._try  # noqa: SLF001 - what a planted bug changes
CHUNK = 50
SABOTAGE_SEEDS = range(60)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 500, CHUNK))
def test_budgets_keep_every_law(first: int) -> None:
    outcomes = [run_budgets_seed(seed) for seed in range(first, first + CHUNK)]
    assert sum(outcome.starts for outcome in outcomes) > CHUNK
    assert sum(outcome.faults for outcome in outcomes) > CHUNK // 2


def test_a_seed_is_the_same_run_every_time() -> None:
    assert run_budgets_seed(3) == run_budgets_seed(3)


# ---- the laws can be broken ----


async def _cover_in_memory_only(self: BudgetDesk, who: Spender, grant: Grant) -> None:
    for count in grant.counts:
        self._row(who, count)


def _reserve_in_memory_only(self: BudgetDesk, who: Spender, wish: Wish) -> Grant | None:
    found = None if self._closed else self.budgets.reserve(self._counts_of(who), wish)
    for count in () if not isinstance(found, Grant) else found.counts:
        self._row(who, count)
    return found if isinstance(found, Grant) else None


def _forget_what_was_granted(self: Budgets, counts: Iterable[Count]) -> None:
    for count in counts:
        count.reserved, count.in_flight = Amount(), 0
        self.counts[count.key] = count


def _left_alone(self: Count) -> tuple[int | None, int | None]:
    tokens, nanos = self.budget.limit
    return (
        None if tokens is None else tokens - self.spent.tokens,
        None if nanos is None else nanos - self.spent.nanos,
    )


def _settle_nothing(self: Budgets, grant: Grant, used: Amount) -> list[Any]:
    self._end(grant)
    return []


def _settle_twice(self: Budgets, grant: Grant, used: Amount) -> list[Any]:
    self._end(grant)
    for count in grant.counts:
        count.spent = count.spent.plus(used)
    return []


def _wake_nobody(self: BudgetDesk) -> None:
    return None


def _overtake(self: BudgetDesk, waiter: Any, claimed: set[Any]) -> Any:
    return _TRY(self, waiter, set())


def _run_seeds() -> None:
    for seed in SABOTAGE_SEEDS:
        run_budgets_seed(seed)


@pytest.mark.parametrize(
    ("owner", "name", "broken", "law"),
    [
        (BudgetDesk, "_cover", _cover_in_memory_only, "and the disk knows of"),
        (BudgetDesk, "reserve_now", _reserve_in_memory_only, "and the disk knows of|came first"),
        (Budgets, "load", _forget_what_was_granted, "was spent before the crash|calls may take"),
        (Count, "left", property(_left_alone), "calls may take"),
        (Budgets, "settle", _settle_nothing, "calls may take|counts"),
        (Budgets, "settle", _settle_twice, "counts"),
        (Count, "is_ample", False, "are lost"),
        (BudgetDesk, "_try", _overtake, "came first"),
        (BudgetDesk, "_wake", _wake_nobody, "deadlock|nothing can ever happen|waits"),
    ],
)
def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: Any, law: str) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(SimFailedError, match=law):
        _run_seeds()
