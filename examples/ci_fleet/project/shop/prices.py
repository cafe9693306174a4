"""Prices, in cents."""

from __future__ import annotations

__all__ = ("discounted", "shown", "with_tax")


def with_tax(cents: int, percent: int = 19) -> int:
    """A price with tax, rounded to the nearest cent."""
    return cents + (cents * percent + 50) // 100


def discounted(cents: int, percent: int) -> int:
    """A price with so many percent off, never below 0."""
    if not 0 <= percent <= 100:
        raise ValueError(f"a discount is 0 to 100 percent, not {percent}")
    return cents - cents * percent // 100


def shown(cents: int) -> str:
    """A price for people: `12.05`."""
    return f"{cents // 100}.{cents % 100:02}"
