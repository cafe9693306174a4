"""Distributions of durations in constant memory.

Buckets are log-linear: whole milliseconds below 32, then 32 buckets for each doubling, so that a percentile is
off by at most about 3 % while the whole histogram is a few kilobytes whatever it has seen.
"""

from __future__ import annotations

from laneway.records import HistogramStats

_FINE_BITS = 5
_FINE = 1 << _FINE_BITS


class Histogram:
    """Counts of durations; grows only with the largest duration seen, by the logarithm."""

    __slots__ = ("counts", "largest", "smallest", "total", "total_ms")

    def __init__(self) -> None:
        self.counts: list[int] = [0]
        self.total = 0
        self.total_ms = 0
        self.smallest = 0
        self.largest = 0

    def add(self, value: int) -> None:
        """Count one duration."""
        if value < _FINE:
            index = value
        else:
            shift = value.bit_length() - _FINE_BITS - 1
            index = (shift << _FINE_BITS) + (value >> shift)
        counts = self.counts
        if index >= len(counts):
            counts.extend([0] * (index + 1 - len(counts)))
        counts[index] += 1
        if self.total == 0 or value < self.smallest:
            self.smallest = value
        if value > self.largest:
            self.largest = value
        self.total += 1
        self.total_ms += value

    def merge(self, other: Histogram) -> None:
        """Count everything that `other` has counted."""
        if not other.total:
            return
        if len(other.counts) > len(self.counts):
            self.counts.extend([0] * (len(other.counts) - len(self.counts)))
        for index, count in enumerate(other.counts):
            self.counts[index] += count
        self.smallest = other.smallest if self.total == 0 else min(self.smallest, other.smallest)
        self.largest = max(self.largest, other.largest)
        self.total += other.total
        self.total_ms += other.total_ms

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
            min_ms=self.smallest,
            max_ms=self.largest,
            p50_ms=self.percentile(50),
            p90_ms=self.percentile(90),
            p95_ms=self.percentile(95),
            p99_ms=self.percentile(99),
        )


def _upper_edge(index: int) -> int:
    if index < 2 * _FINE:
        return index
    shift = (index >> _FINE_BITS) - 1
    return ((index - (shift << _FINE_BITS) + 1) << shift) - 1
