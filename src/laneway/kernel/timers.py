"""Times at which the kernel has something to do, as one heap.

A timer belongs to a job (or a lane) in one phase of its life; when the owner has moved on, the timer is stale
and is dropped unseen. So nothing ever has to be searched for and removed, and an idle kernel has no due time.
"""

from __future__ import annotations

from enum import Enum
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from laneway.kernel.jobs import Entry
    from laneway.kernel.lanes import Lane


class Alarm(Enum):
    """What is due."""

    DUE = "due"  # a scheduled job
    WAIT = "wait"  # a wait timeout
    RUN = "run"  # a run timeout
    GRACE = "grace"  # the grace of an attempt that was asked to end
    LANE = "lane"  # a rate token, or the end of a closed limit


class Timers:
    """A heap of due times with lazy removal; its size stays within a constant of what is live."""

    __slots__ = ("_limit", "_sequence", "heap")

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Alarm, Entry | Lane, int]] = []
        self._sequence = 0
        self._limit = 1024

    def set(self, due: int, alarm: Alarm, owner: Entry | Lane) -> None:
        """Remember that `owner`, if it is still in this phase, has something to do at `due`."""
        self._sequence += 1
        heappush(self.heap, (due, self._sequence, alarm, owner, owner.phase))
        if len(self.heap) > self._limit:
            self.heap = [item for item in self.heap if item[3].phase == item[4]]
            heapify(self.heap)
            self._limit = max(1024, 2 * len(self.heap))

    def next_due(self) -> int | None:
        """When the next live timer is due."""
        heap = self.heap
        while heap and heap[0][3].phase != heap[0][4]:
            heappop(heap)
        return heap[0][0] if heap else None

    def due_of(self, owner: Entry | Lane) -> int | None:
        """When the next live timer of one owner is due; looks through all of them."""
        return min((item[0] for item in self.heap if item[3] is owner and owner.phase == item[4]), default=None)

    def pop_due(self, now: int) -> tuple[Alarm, Entry | Lane] | None:
        """The next live timer that is due by now, once."""
        due = self.next_due()
        if due is None or due > now:
            return None
        _, _, alarm, owner, _ = heappop(self.heap)
        return alarm, owner
