"""How evenly tenants are served: Jain's index, over the last five to ten minutes."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ("Fairness",)

WINDOW_MS = 300_000
TENANTS_MAX = 10_000


class Fairness:
    """How long runs of each tenant took, lately. A tenant that has asked and got nothing counts with nothing."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._began = now()
        self._current: dict[str, int] = {}
        self._before: dict[str, int] = {}

    def asked(self, tenant: str) -> None:
        """A tenant wants something."""
        self._add(tenant, 0)

    def served(self, tenant: str, run_ms: int) -> None:
        """A run of a tenant has ended."""
        self._add(tenant, run_ms)

    def index(self) -> float:
        """(Σx)² / nΣx²: 1 when all got the same, 1/n when one got it all; 1 while there is nothing to compare."""
        self._turn_over()
        shares = {tenant: self._current.get(tenant, 0) + self._before.get(tenant, 0) for tenant in self._tenants()}
        squares = sum(share * share for share in shares.values())
        return sum(shares.values()) ** 2 / (len(shares) * squares) if squares else 1.0

    def _tenants(self) -> set[str]:
        return {*self._current, *self._before}

    def _add(self, tenant: str, run_ms: int) -> None:
        self._turn_over()
        current = self._current
        if tenant in current or len(current) < TENANTS_MAX:
            current[tenant] = current.get(tenant, 0) + run_ms

    def _turn_over(self) -> None:
        passed = self._now() - self._began
        if passed >= WINDOW_MS:
            self._before = self._current if passed < 2 * WINDOW_MS else {}
            self._current = {}
            self._began += passed
