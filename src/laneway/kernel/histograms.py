"""Distributions of durations in constant memory.

Buckets are log-linear: whole milliseconds below 32, then 32 buckets for each doubling, so that a percentile is
off by at most about 3 % while the whole histogram is a few kilobytes whatever it has seen.
"""

from __future__ import annotations

from laneway.records import HistogramStats

_BITS = 5
FINE = 1 << _BITS


class Histogram:
    """Counts of durations; grows only with the largest duration seen, by the logarithm.

    The first `FINE` counts are exact, so whoever is in a hurry may add to `counts` there directly.
    """

    __slots__ = ("_coarse_ms", "_largest", "counts")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * FINE
        self._coarse_ms = 0  # the sum of those that are not counted exactly
        self._largest = 0

    def add(self, value: int) -> None:
        """Count one duration."""
        counts = self.counts
        if value < FINE:
            counts[value] += 1
            return
        shift = value.bit_length() - _BITS - 1
        index = (shift << _BITS) + (value >> shift)
        if index >= len(counts):
            counts.extend([0] * (index + 1 - len(counts)))
        counts[index] += 1
        self._coarse_ms += value
        if value > self._largest:
            self._largest = value

    @property
    def total(self) -> int:
        """How many durations were counted."""
        return sum(self.counts)

    @property
    def total_ms(self) -> int:
        """Their sum."""
        return self._coarse_ms + sum(value * count for value, count in enumerate(self.counts[:FINE]))

    @property
    def largest(self) -> int:
        """The longest of them."""
        return self._largest or max((value for value, count in enumerate(self.counts[:FINE]) if count), default=0)

    def merge(self, other: Histogram) -> None:
        """Count everything that `other` has counted."""
        if len(other.counts) > len(self.counts):
            self.counts.extend([0] * (len(other.counts) - len(self.counts)))
        for index, count in enumerate(other.counts):
            self.counts[index] += count
        self._largest = max(self._largest, other._largest)
        self._coarse_ms += other._coarse_ms

    def percentile(self, percent: int) -> int:
        """The duration that `percent` % of all durations do not exceed (the upper edge of its bucket)."""
        rank = -(-self.total * percent // 100)
        seen = 0
        for index, count in enumerate(self.counts):
            seen += count
            if count and seen >= rank:
                return min(self.largest, _upper_edge(index))
        return 0

    def stats(self) -> HistogramStats:
        """A frozen summary."""
        return HistogramStats(
            count=self.total,
            sum_ms=self.total_ms,
            max_ms=self.largest,
            p50_ms=self.percentile(50),
            p90_ms=self.percentile(90),
            p95_ms=self.percentile(95),
            p99_ms=self.percentile(99),
        )


def _upper_edge(index: int) -> int:
    if index < 2 * FINE:
        return index
    shift = (index >> _BITS) - 1
    return ((index - (shift << _BITS) + 1) << shift) - 1
