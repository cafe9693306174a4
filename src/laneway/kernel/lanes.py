"""Lanes and the caps they share: what has room, and which lane is next when a cap is shared.

A `Resource` is anything with a cap that jobs hold units of. A `Lane` is one with a queue of its own. A `Pool` is
one that several lanes share: a group, the threads for sync functions, the cap over everything. A lane whose head
could start but for a pool is parked at that pool; when a unit comes free the pool picks one of the parked lanes,
so the cost of a start grows with the logarithm of the lanes that wait, never with the number that exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from laneway.kernel.histograms import Histogram
from laneway.kernel.jobs import Entry
from laneway.kernel.queues import Waiting
from laneway.records import LaneConfig, RateLimit

if TYPE_CHECKING:
    from laneway.kernel.lending import Return

CONTROL = "control"
SESSION_PREFIX = "session:"
NEVER = 1 << 62


class Resource:
    """Something with a cap: `held` units are out, and `takers` wait to have back what they lent."""

    __slots__ = ("cap", "held", "name", "rank", "takers")

    def __init__(self, name: str, cap: int, rank: int = -1) -> None:
        self.name = name
        self.cap = cap
        self.rank = rank  # lanes are asked first, then the caps they share in the order of their ranks
        self.held = 0
        self.takers: dict[Return, None] = {}  # ordered: first come, first served

    def go_out(self, entry: Entry) -> None:
        """A job has a unit now; `entry` is whose it is."""
        self.held += 1

    def come_back(self, entry: Entry) -> None:
        """A job has a unit no longer."""
        self.held -= 1

    def can_take(self, taker: Return) -> bool:
        """Whether this taker may have its unit back now: takers before it count as served."""
        free = max(self.cap, 1) - self.held
        for other in self.takers:
            if free <= 0:
                return False
            if other is taker:
                return True
            if other.reaches(self):
                free -= 1
        return False

    def kept(self, most: int) -> int:
        """How many units (at most `most`) are kept for takers.

        A taker keeps a unit only of what comes before the first thing it cannot have, and of that thing: were it to
        keep what comes later, a job that holds the earlier lane and waits for the later one would wait for ever.
        """
        count = 0
        for taker in self.takers:
            if count >= most:
                break
            if taker.reaches(self):
                count += 1
        return count


class TokenBucket:
    """A rate limit in whole numbers: every millisecond adds `count` units, a token costs `window_ms` units."""

    __slots__ = ("_at", "_count", "_level", "_most", "_window")

    def __init__(self, limit: RateLimit, now: int) -> None:
        self._count = limit.count
        self._window = limit.window_ms
        self._most = limit.count * limit.window_ms
        self._level = self._most
        self._at = now

    def wait_ms(self, now: int) -> int:
        """How long until there is a token; 0 when there is one."""
        self._level = min(self._most, self._level + (now - self._at) * self._count)
        self._at = now
        return 0 if self._level >= self._window else -(-(self._window - self._level) // self._count)

    def left(self, now: int) -> int:
        """How many tokens there are."""
        self.wait_ms(now)
        return self._level // self._window

    def take(self, now: int) -> None:
        """Take one token."""
        waiting = self.wait_ms(now)
        assert waiting == 0
        self._level -= self._window

    def is_full(self, now: int) -> bool:
        """Whether forgetting this bucket would forget nothing."""
        self.wait_ms(now)
        return self._level == self._most


class Counters:
    """What has happened in a lane since it was made."""

    __slots__ = (
        "abandoned",
        "cancelled",
        "completed",
        "dead_lettered",
        "failed",
        "retried",
        "run",
        "submitted",
        "timed_out",
        "wait",
    )

    def __init__(self) -> None:
        self.submitted = 0
        self.completed = 0
        self.failed = 0
        self.cancelled = 0
        self.timed_out = 0
        self.retried = 0
        self.dead_lettered = 0
        self.abandoned = 0
        self.wait = Histogram()
        self.run = Histogram()

    def merge(self, other: Counters) -> None:
        """Add what another lane has counted."""
        for name in ("submitted", "completed", "failed", "cancelled", "timed_out", "retried"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.dead_lettered += other.dead_lettered
        self.abandoned += other.abandoned
        self.wait.merge(other.wait)
        self.run.merge(other.run)


class LaneFront(Resource):
    """What every job touches of a lane, side by side in memory: with ten thousand lanes that is what starts cost."""

    __slots__ = (
        "alone",
        "configured",
        "counters",
        "last_start",
        "parked",
        "paused",
        "plain",
        "queue",
        "run_counts",
        "units",
        "users",
        "wait_counts",
        "waiting",
        "watch_high",
        "watch_low",
    )


class Lane(LaneFront):
    """A named queue with a width."""

    __slots__ = (
        "alert_level",
        "bucket",
        "closed_reason",
        "closed_until",
        "closed_wall_ms",
        "config",
        "due_in",
        "is_control",
        "is_late",
        "is_session",
        "kin",
        "lent",
        "light",
        "needs_care",
        "order",
        "parked_for",
        "phase",
        "pools",
        "pressed",
        "queued_max",
        "scheduled",
        "stack",
        "threaded_units",
        "ticket",
    )

    def __init__(self, name: str, config: LaneConfig, *, order: tuple[int, str], configured: bool, now: int) -> None:
        super().__init__(name, config.concurrency)
        short = name.rpartition("/")[2]
        self.config = config
        self.order = order
        self.configured = configured
        self.is_control = short == CONTROL
        self.is_session = short.startswith(SESSION_PREFIX)
        self.queue = Waiting(ageing_ms=config.ageing_ms, boost=config.boost, fair_by=config.fair_by)
        self.bucket = TokenBucket(config.rate_limit, now) if config.rate_limit else None
        self.counters = Counters()
        self.wait_counts = self.counters.wait.counts
        self.run_counts = self.counters.run.counts
        self.pools: tuple[Pool, ...] = ()
        self.alone = (self,)
        self.units: tuple[Resource, ...] = (self,)
        self.threaded_units: tuple[Resource, ...] = (self,)
        self.users = 0  # live jobs that name this lane, if it may be forgotten
        self.waiting = 0  # those of them that wait here now
        self.scheduled = 0
        self.lent = 0
        self.light = 0  # jobs that wait here and may need less than others: slots, and those that only pass
        self.queued_max = config.queued_max
        self.paused = False
        self.closed_until: int | None = None
        self.closed_wall_ms: int | None = None
        self.closed_reason = ""
        self.last_start = -NEVER
        self.phase = 0  # for timers
        # The exclusive lane's owners, oldest first: all but the last have lent it, to their descendants only.
        self.stack: list[Entry] | None = [] if config.exclusive else None
        self.kin: dict[Entry, None] = {}  # those that wait here and were submitted from another job
        self.parked: Pool | None = None
        self.parked_for: Entry | None = None
        self.ticket = 0
        self.due_in: Pool | None = None
        self.is_late = False
        self.pressed = False
        self.alert_level = 0
        self.watch_high = NEVER
        self.watch_low = -1
        self.needs_care = False
        self.plain = False
        self.set_watch()
        self.set_care()

    def join(self, pools: tuple[Pool, ...], threads: Pool) -> None:
        """Say which caps this lane shares with others."""
        self.pools = pools
        self.units = (self, *pools)
        # Threads come after the group and before the cap over everything, as they are asked in this order.
        self.threaded_units = tuple(sorted((*self.units, threads), key=lambda unit: unit.rank))
        if pools:
            self.queue.keep_arrivals()
        self.set_care()

    def set_care(self) -> None:
        """Whether a start here needs more than a free slot of the lane; whether plain jobs may take the short way."""
        config = self.config
        limited = self.bucket is not None or self.closed_until is not None
        self.needs_care = bool(self.pools) or limited or self.stack is not None
        self.plain = not self.needs_care and not (
            config.fair_by or config.timeout_ms or config.wait_timeout_ms or config.boost or self.queued_max is not None
        )

    def head(self, now: int) -> Entry | None:
        """Who would start next here."""
        stack = self.stack
        if not stack:
            return self.queue.head(now)
        if not stack[-1].lent or any(taker.has(stack[-1]) for taker in self.takers):
            return None
        able = [entry for entry in self.kin if all(descends(entry, owner) for owner in stack)]
        self.queue.head(now)  # lets time move those that wait before their ranks are compared
        return min(able, key=lambda entry: (-entry.rank, not entry.wanted, entry.place), default=None)

    def can_take(self, taker: Return) -> bool:
        """The exclusive lane comes back to its newest owner only; others as every resource."""
        if self.stack is not None:
            return bool(self.stack) and taker.has(self.stack[-1])
        return super().can_take(taker)

    def is_open(self) -> bool:
        """Whether a free slot of its own is there; takers come first (in an exclusive lane, see `head`)."""
        free = self.cap - self.held
        if self.paused or free <= 0:
            return False
        return not self.takers or self.stack is not None or self.kept(free) < free

    def limit_wait_ms(self, now: int) -> int:
        """How long until the limit lets a job start; 0 when it does."""
        if self.closed_until is not None and self.closed_until > now:
            return self.closed_until - now
        return self.bucket.wait_ms(now) if self.bucket is not None else 0

    def late_at(self) -> int:
        """From when on this lane is overdue."""
        ageing = self.config.ageing_ms
        oldest = self.queue.oldest_at()
        if ageing is None or oldest is None:
            return NEVER
        return max(oldest, self.last_start) + ageing

    def priority_of(self, head: Entry) -> int:
        """P0 first; a boosted head moves its lane up, never above P1."""
        own = self.config.priority
        return min(own, max(1, own - head.boost))

    def set_watch(self) -> None:
        """Work out at which depths something has to be said."""
        config = self.config
        highs = []
        lows = []
        if config.pressure_threshold is not None:
            if self.pressed:
                lows.append(0)
            else:
                highs.append(config.pressure_threshold)
        for level, threshold in ((1, config.alert_warning), (2, config.alert_critical)):
            if threshold is None:
                continue
            if self.alert_level >= level:
                lows.append(recovered_at(threshold))
            else:
                highs.append(threshold)
        self.watch_high = min(highs, default=NEVER)
        self.watch_low = max(lows, default=-1)


def recovered_at(threshold: int) -> int:
    """An alert is over when the depth has fallen to 80 % of its threshold, so that it does not flicker."""
    return threshold * 4 // 5 if threshold > 1 else 0


def descends(entry: Entry, ancestor: Entry) -> bool:
    """Whether a job was submitted, directly or not, from inside another."""
    up = parent_of(entry)
    while up is not None:
        if up is ancestor:
            return True
        up = parent_of(up)
    return False


def parent_of(entry: Entry) -> Entry | None:
    """The nearest live job it was submitted from; ended ones are skipped and forgotten."""
    up = entry.up
    while up is not None and up.state.is_final:
        if not up.inside:
            entry.inside = False
        up = up.up
    entry.up = up
    return up


class Pool(Resource):
    """A cap that lanes share, and the lanes whose head could start but for it.

    Picks the lane with the best head (priority, level, place), but every second start goes to the lane that is
    longest overdue, if any is. `reserve` is kept for the named lanes and cannot be borrowed.
    """

    __slots__ = (
        "_after_late",
        "_dues",
        "_heap",
        "_late",
        "_limit",
        "_rekeys",
        "_tickets",
        "_used",
        "claimants",
        "parked",
        "reserve",
    )

    def __init__(self, name: str, cap: int, *, rank: int, reserve: Mapping[str, int] | None = None) -> None:
        super().__init__(name, cap, rank)
        self.reserve = dict(reserve or {})
        self._used = dict.fromkeys(self.reserve, 0)  # how many units jobs of those lanes have
        self.parked: dict[Lane, None] = {}
        self.claimants: dict[Lane, None] = {}  # those of them whose head may use a reservation
        self._heap: list[tuple[int, int, int, int, Lane]] = []
        self._rekeys: list[tuple[int, int, Lane]] = []
        self._dues: list[tuple[int, int, Lane]] = []
        self._late: list[tuple[int, str, Lane]] = []
        self._tickets = 0
        self._after_late = False
        self._limit = 256

    def go_out(self, entry: Entry) -> None:
        """A job has a unit now; it uses what is reserved for its lanes."""
        self.held += 1
        self._count(entry, 1)

    def come_back(self, entry: Entry) -> None:
        """A job has a unit no longer."""
        self.held -= 1
        self._count(entry, -1)

    def _count(self, entry: Entry, by: int) -> None:
        if self.reserve:
            for lane in entry.lanes:
                if lane.name in self._used:
                    self._used[lane.name] += by

    def has_room(self, lane: Lane | None = None) -> bool:
        """Whether a unit may go out: to this lane, or to any that has no reservation left to use."""
        free = self.cap - self.held
        if self.takers and free > 0:
            free -= self.kept(free)
        if self.reserve and free > 0:
            for name, amount in self.reserve.items():
                used = self._used.get(name, 0)
                if lane is None or name != lane.name:
                    free -= max(0, amount - used)
                elif used < amount:
                    return True
        return free > 0

    def has_room_for(self, entry: Entry) -> bool:
        """Whether a unit may go out to a job: what is reserved for any of its lanes is for it too."""
        if not self.reserve:
            return self.has_room()
        return any(self.has_room(lane) for lane in entry.lanes if self in lane.pools)

    def park(self, lane: Lane, now: int) -> Entry:
        """A lane waits here for a unit for its head; parking it again takes its new head into account."""
        head = lane.head(now)
        assert head is not None
        if lane.queue.arrivals is None:
            lane.queue.keep_arrivals()
        lane.parked = self
        lane.parked_for = head
        self._tickets += 1
        lane.ticket = self._tickets
        self.parked[lane] = None
        if self.reserve and any(one.name in self.reserve for one in head.lanes):
            self.claimants[lane] = None
        lane.is_late = False
        heappush(self._heap, (lane.priority_of(head), -head.rank, head.place, lane.ticket, lane))
        change = lane.queue.next_change()
        if change is not None:
            heappush(self._rekeys, (change, lane.ticket, lane))
        if lane.due_in is not self:
            lane.due_in = self
            heappush(self._dues, (lane.late_at(), lane.ticket, lane))
        if len(self._heap) > self._limit or len(self._dues) > 2 * len(self.parked) + 64:
            self._sweep()
        return head

    def unpark(self, lane: Lane) -> None:
        """A lane does not wait here any longer."""
        del self.parked[lane]
        self.claimants.pop(lane, None)
        lane.parked = None
        lane.parked_for = None
        lane.ticket = 0

    def pick(self, now: int) -> Lane | None:
        """Which of the parked lanes starts next; it stays parked."""
        if not self.has_room():
            return self._pick_reserved(now) if self.claimants else None
        self._pass_time(now)
        late = self._first_late(now)
        best = self._first_best()
        if late is not None and (best is None or not self._after_late):
            return late
        return best

    def note_start(self, *, late: bool) -> None:
        """A job of a late lane (or not) started with a unit of this pool; not twice in a row if it can be helped."""
        self._after_late = late

    def _pick_reserved(self, now: int) -> Lane | None:
        """Only what is reserved is left: the best of those that may use it."""
        able = []
        for lane in self.claimants:
            head = lane.head(now)
            if head is not None and self.has_room_for(head):
                able.append((lane.priority_of(head), -head.rank, head.place, lane))
        return min(able, key=lambda found: found[:3])[3] if able else None

    def _pass_time(self, now: int) -> None:
        while self._rekeys and self._rekeys[0][0] <= now:
            _, ticket, lane = heappop(self._rekeys)
            if lane.parked is self and lane.ticket == ticket:
                was_late = lane.is_late
                self.park(lane, now)
                lane.is_late = was_late
        while self._dues and self._dues[0][0] <= now:
            _, _, lane = heappop(self._dues)
            if lane.due_in is not self:
                continue
            lane.due_in = None
            if lane.parked is not self:
                continue
            late_at = lane.late_at()
            if late_at <= now:
                lane.is_late = True
                heappush(self._late, (late_at, lane.name, lane))
            else:
                lane.due_in = self
                heappush(self._dues, (late_at, lane.ticket, lane))

    def _first_late(self, now: int) -> Lane | None:
        while self._late:
            late_at, _, lane = self._late[0]
            if lane.parked is self and lane.is_late and lane.late_at() == late_at:
                return lane
            heappop(self._late)
            if lane.parked is self and lane.is_late:
                # It is still here but no longer the same oldest job: put it back among the others.
                self.park(lane, now)
                self._pass_time(now)
        return None

    def _first_best(self) -> Lane | None:
        heap = self._heap
        while heap:
            _, _, _, ticket, lane = heap[0]
            if lane.parked is self and lane.ticket == ticket and not lane.is_late:
                return lane
            heappop(heap)
        return None

    def _sweep(self) -> None:
        self._heap = sorted(
            item for item in self._heap if item[4].parked is self and item[3] == item[4].ticket and not item[4].is_late
        )
        self._rekeys = sorted(item for item in self._rekeys if item[2].parked is self and item[1] == item[2].ticket)
        for _, _, lane in self._dues:
            if lane.parked is not self and lane.due_in is self:
                lane.due_in = None
        self._dues = sorted(item for item in self._dues if item[2].due_in is self)
        self._late = sorted(item for item in self._late if item[2].parked is self and item[2].is_late)
        self._limit = max(256, 2 * len(self._heap))
