"""Distributions of durations in constant memory.

Buckets are log-linear: whole milliseconds below 32, then 32 buckets for each doubling, so that a percentile is
off by at most about 3 % while the whole histogram is a few kilobytes whatever it has seen. A lane that has seen little
is smaller still: only buckets that have counted something exist, and there may be ten thousand lanes.
"""

from __future__ import annotations

from collections.abc import Iterator

from laneway.records import HistogramStats

_BITS = 5
FINE = 1 << _BITS


class Histogram:
    """Counts of durations.

    The first `FINE` counts are exact, so whoever is in a hurry may add to `counts` there directly.
    """

    __slots__ = ("_coarse", "_coarse_ms", "_largest", "counts")

    def __init__(self) -> None:
        self.counts: list[int] = [0] * FINE
        self._coarse: dict[int, int] = {}  # by number of bucket
        self._coarse_ms = 0  # the sum of those that are not counted exactly
        self._largest = 0

    def add(self, value: int) -> None:
        """Count one duration."""
        if value < FINE:
            self.counts[value] += 1
            return
        shift = value.bit_length() - _BITS - 1
        bucket = (shift << _BITS) + (value >> shift)
        coarse = self._coarse
        coarse[bucket] = coarse.get(bucket, 0) + 1
        self._coarse_ms += value
        if value > self._largest:
            self._largest = value

    @property
    def total(self) -> int:
        """How many durations were counted."""
        return sum(self.counts) + sum(self._coarse.values())

    @property
    def total_ms(self) -> int:
        """Their sum."""
        return self._coarse_ms + sum(value * count for value, count in enumerate(self.counts))

    @property
    def largest(self) -> int:
        """The longest of them."""
        return self._largest or max((value for value, count in enumerate(self.counts) if count), default=0)

    def merge(self, other: Histogram) -> None:
        """Count everything that `other` has counted."""
        for value, count in enumerate(other.counts):
            self.counts[value] += count
        for bucket, count in other._coarse.items():
            self._coarse[bucket] = self._coarse.get(bucket, 0) + count
        self._largest = max(self._largest, other._largest)
        self._coarse_ms += other._coarse_ms

    def percentile(self, percent: int) -> int:
        """The duration that `percent` % of all durations do not exceed (the upper edge of its bucket)."""
        rank = -(-self.total * percent // 100)
        seen = 0
        for bucket, count in (*enumerate(self.counts), *sorted(self._coarse.items())):
            seen += count
            if count and seen >= rank:
                return min(self.largest, _upper_edge(bucket))
        return 0

    def spread(self) -> Iterator[tuple[int, int]]:
        """Every bucket that has counted something: its upper edge in milliseconds, and its count."""
        for value, count in enumerate(self.counts):
            if count:
                yield value, count
        for bucket, count in self._coarse.items():
            yield _upper_edge(bucket), count

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


def _upper_edge(bucket: int) -> int:
    if bucket < 2 * FINE:
        return bucket
    shift = (bucket >> _BITS) - 1
    return ((bucket - (shift << _BITS) + 1) << shift) - 1
