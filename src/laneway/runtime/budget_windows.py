"""The days and months of budgets: calendar arithmetic in the timezone of each."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from laneway.spending import Budget, BudgetWindow, Period

__all__ = ("Calendar", "period_of")


def period_of(window: BudgetWindow, timezone: str, wall_ms: int) -> Period:
    """The day or month of a timezone in which a moment lies."""
    if window is BudgetWindow.EVER:
        return Period()
    zone = ZoneInfo(timezone)
    midnight = datetime.fromtimestamp(wall_ms / 1000, zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if window is BudgetWindow.DAY:
        following = midnight + timedelta(days=1)
    else:
        midnight = midnight.replace(day=1)
        following = (midnight + timedelta(days=32)).replace(day=1)
    return Period(round(midnight.timestamp() * 1000), round(following.timestamp() * 1000))


class Calendar:
    """The windows of budgets at a moment that never goes back: a clock that is set back opens no old window."""

    def __init__(self) -> None:
        self._latest_ms = 0
        self._periods: dict[tuple[BudgetWindow, str], Period] = {}

    def move(self, wall_ms: int) -> None:
        """It is so late now, or was already."""
        self._latest_ms = max(self._latest_ms, wall_ms)

    def period(self, budget: Budget) -> Period:
        """The window of a budget."""
        key = (budget.window, budget.timezone)
        period = self._periods.get(key)
        if period is None or (period.until_ms is not None and period.until_ms <= self._latest_ms):
            self._periods[key] = period = period_of(*key, self._latest_ms)
        return period
