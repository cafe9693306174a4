"""What somebody wants to buy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from shop.prices import with_tax

__all__ = ("Cart",)


class Cart:
    """Things and how many of each."""

    def __init__(self) -> None:
        self.things: Counter[str] = Counter()

    def put(self, thing: str, number: int = 1) -> None:
        """Put some in."""
        if number < 1:
            raise ValueError(f"put in at least one, not {number}")
        self.things[thing] += number

    def total(self, prices: Mapping[str, int]) -> int:
        """What it all costs, with tax."""
        return with_tax(sum(prices[thing] * number for thing, number in self.things.items()))
