"""What is on the shelves."""

from __future__ import annotations

__all__ = ("OutOfStockError", "Stock")


class OutOfStockError(Exception):
    """There is not enough of something."""


class Stock:
    """How many there are of each thing."""

    def __init__(self, **counts: int) -> None:
        self._counts = dict(counts)

    def count(self, thing: str) -> int:
        """How many there are."""
        return self._counts.get(thing, 0)

    def add(self, thing: str, number: int) -> None:
        """A delivery."""
        self._counts[thing] = self.count(thing) + number

    def take(self, thing: str, number: int) -> None:
        """Take some; all of them or none."""
        if number > self.count(thing):
            raise OutOfStockError(f"there are {self.count(thing)} of {thing}, not {number}")
        self._counts[thing] = self.count(thing) - number
