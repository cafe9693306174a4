"""The days and months of budgets: calendar arithmetic in the timezone of each."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from laneway.spending import Budget, BudgetWindow, Period

__all__ = ("WRONG_MS", "Calendar", "moment_text", "period_of")

FOR_EVER: Final = Period()
WRONG_MS: Final = 3_600_000
"""So long a wall clock may say something before it is believed that it was wrong until then."""


def moment_text(wall_ms: int, timezone: str) -> str:
    """A moment for people, in the timezone of a budget."""
    return f"{datetime.fromtimestamp(wall_ms / 1000, ZoneInfo(timezone)):%Y-%m-%d %H:%M} {timezone}"


def period_of(window: BudgetWindow, timezone: str, wall_ms: int) -> Period:
    """The day or month of a timezone in which a moment lies."""
    if window is BudgetWindow.EVER:
        return FOR_EVER
    zone = ZoneInfo(timezone)
    midnight = datetime.fromtimestamp(wall_ms / 1000, zone).replace(hour=0, minute=0, second=0, microsecond=0, fold=0)
    if window is BudgetWindow.DAY:
        following = midnight + timedelta(days=1)
    else:
        midnight = midnight.replace(day=1)
        following = (midnight + timedelta(days=32)).replace(day=1)
    return Period(round(midnight.timestamp() * 1000), round(following.timestamp() * 1000))


class Calendar:
    """The windows of budgets at a moment that does not go back with every clock that is set back.

    Only a wall clock that has stayed behind for an hour, by the clock that nobody sets, was ahead before: then its
    time is the time, and what was counted in its window is found again.
    """

    def __init__(self) -> None:
        self._latest_ms = 0
        self._behind_since_ms: int | None = None  # by the clock that nobody sets
        self._ends_ms: int | None = None  # when the first of the windows ends
        self._periods: dict[tuple[BudgetWindow, str], Period] = {}

    def move(self, wall_ms: int, now_ms: int) -> bool:
        """It is so late now, or was already; whether windows are others with that. `now_ms` never goes back."""
        if wall_ms >= self._latest_ms:
            self._latest_ms, self._behind_since_ms = wall_ms, None
        elif self._behind_since_ms is None:
            self._behind_since_ms = now_ms
        elif now_ms - self._behind_since_ms >= WRONG_MS:
            self._latest_ms, self._behind_since_ms = wall_ms, None
            self._ends_ms, self._periods = None, {}
            return True
        if self._ends_ms is None or self._latest_ms < self._ends_ms:
            return False
        self._periods = {key: each for key, each in self._periods.items() if not self._is_over(each)}
        self._ends_ms = min((each.until_ms for each in self._periods.values() if each.until_ms), default=None)
        return True

    def _is_over(self, period: Period) -> bool:
        return period.until_ms is not None and period.until_ms <= self._latest_ms

    def period(self, budget: Budget) -> Period:
        """The window of a budget."""
        if budget.window is BudgetWindow.EVER:
            return FOR_EVER
        key = (budget.window, budget.timezone)
        period = self._periods.get(key)
        if period is None:
            self._periods[key] = period = period_of(*key, self._latest_ms)
            if period.until_ms is not None:
                self._ends_ms = min(period.until_ms, self._ends_ms or period.until_ms)
        return period
