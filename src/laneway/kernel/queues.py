"""The order inside one lane: levels, ageing, deadline boosts, fair share, first come first served.

A lane's waiting jobs stand in buckets, one for each level (0 BACKGROUND, 1 SCHEDULED, 2 USER, higher only by a
boost). A job stands in exactly one queue at a time, its `spot`; what a queue still holds of a job that has
moved on is stale and skipped when it comes to the front. So joining, leaving and being served cost the same
whether ten jobs wait or a million.

Time moves jobs up only when somebody asks for the head (`Waiting.head`): order depends on when it is looked at,
never on a background timer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Protocol

from laneway.kernel.jobs import Entry
from laneway.records import Boost, Priority

USER = int(Priority.USER)
USER_BIT = 1 << USER
RANKS = USER + 8 + 1
NO_PLACE = -1
_ONE_BY_AGE = 0
_STALE_MAX = 64
Change = tuple[int, int, int, int, Entry]
"""When due, the job's place, how many levels its deadline gives it then (or `_ONE_BY_AGE`), its phase, and the job."""


class Line(Protocol):
    """Jobs of one level: who of them is next."""

    def push(self, entry: Entry) -> None:
        """Let a job stand here."""

    def head(self) -> Entry | None:
        """The next job, without taking it."""

    def compact(self) -> None:
        """Forget what is stale."""


class Fifo:
    """First come first served by place; a job that comes back (a retry, a promotion) stands where it belongs."""

    __slots__ = ("early", "last", "tail")

    def __init__(self) -> None:
        self.tail: deque[Entry] = deque()
        self.early: list[tuple[int, str, Entry]] = []  # those that came out of order
        self.last = NO_PLACE

    def push(self, entry: Entry) -> None:
        """Let a job stand here."""
        entry.spot = self
        place = entry.place
        if place > self.last:
            self.last = place
            self.tail.append(entry)
        else:
            heappush(self.early, (place, entry.id, entry))

    def head(self) -> Entry | None:
        """The next job, without taking it."""
        tail = self.tail
        while tail and tail[0].spot is not self:
            tail.popleft()
        early = self.early
        if not early:
            return tail[0] if tail else None
        while early and early[0][2].spot is not self:
            heappop(early)
        if not early:
            return tail[0] if tail else None
        first = early[0][2]
        return tail[0] if tail and tail[0].place < first.place else first

    def compact(self) -> None:
        """Forget what is stale."""
        live = [entry for entry in self.tail if entry.spot is self]
        self.tail.clear()
        self.tail.extend(live)
        self.early = [item for item in self.early if item[2].spot is self]
        heapify(self.early)


class Shares:
    """Who has had how much of a lane: virtual time per tenant (or session), advanced by 1 ÷ weight at each start."""

    __slots__ = ("_limit", "_now", "_times", "_waiting", "_weights")

    def __init__(self) -> None:
        self._limit = 64
        self._times: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        self._waiting: dict[str, int] = {}
        self._now = 0.0

    def join(self, who: str, weight: float) -> None:
        """A job of `who` waits; who was away does not get back the time it did not use."""
        count = self._waiting.get(who, 0)
        if count == 0:
            self._times[who] = max(self._times.get(who, 0.0), self._now)
        self._waiting[who] = count + 1
        self._weights[who] = weight

    def leave(self, who: str) -> None:
        """A job of `who` waits no longer."""
        count = self._waiting[who] - 1
        if count:
            self._waiting[who] = count
            return
        del self._waiting[who]
        if len(self._times) > self._limit:
            for name in [n for n, time in self._times.items() if n not in self._waiting and time <= self._now]:
                del self._times[name]
                del self._weights[name]
            self._limit = max(64, 2 * len(self._times))

    def charge(self, who: str) -> None:
        """A job of `who` starts."""
        time = self._times[who]
        self._now = max(self._now, time)
        self._times[who] = time + 1.0 / self._weights[who]

    def times(self) -> dict[str, float]:
        """A copy of all shares."""
        return dict(self._times)

    def time_of(self, who: str) -> float:
        """How much `who` has had; the least goes first."""
        return self._times[who]


def share_key(entry: Entry, fair_by: str) -> str:
    """Whose share a job uses: its tenant's, or that of its session lane."""
    if fair_by == "session":
        for lane in entry.lanes:
            if lane.is_session:
                return lane.name
    return entry.spec.tenant


class Fair:
    """One first-come-first-served line per tenant; the tenant that has had the least goes first."""

    __slots__ = ("_fair_by", "_heap", "_keys", "_lines", "_shares")

    def __init__(self, shares: Shares, fair_by: str) -> None:
        self._shares = shares
        self._fair_by = fair_by
        self._lines: dict[str, Fifo] = {}
        self._heap: list[tuple[float, int, str]] = []
        self._keys: dict[str, tuple[float, int, str]] = {}  # the one of each tenant that counts; others are stale

    def push(self, entry: Entry) -> None:
        """Let a job stand here."""
        who = share_key(entry, self._fair_by)
        line = self._lines.get(who)
        if line is None:
            line = self._lines[who] = Fifo()
        line.push(entry)
        if line.head() is entry:
            self._keys[who] = key = (self._shares.time_of(who), entry.place, who)
            heappush(self._heap, key)

    def head(self) -> Entry | None:
        """The next job, without taking it."""
        heap = self._heap
        while heap:
            key = heap[0]
            who = key[2]
            if key is not self._keys.get(who):
                heappop(heap)  # brought up to date it would stay for ever beside the one that counts
                continue
            line = self._lines.get(who)
            first = line.head() if line is not None else None
            if first is None:
                heappop(heap)
                self._lines.pop(who, None)
                del self._keys[who]
                continue
            actual = (self._shares.time_of(who), first.place, who)
            if key == actual:
                return first
            # Times and places only grow while a tenant waits, so an old key is always too small, never too large.
            self._keys[who] = actual
            heapreplace(heap, actual)
        return None

    def compact(self) -> None:
        """Forget what is stale."""
        for line in self._lines.values():
            line.compact()

    def lines(self) -> list[Fifo]:
        """The lines of all tenants."""
        return list(self._lines.values())

    def time_of(self, entry: Entry) -> float:
        """The share used so far by the one whose job this is."""
        return self._shares.time_of(share_key(entry, self._fair_by))


class Projection:
    """Jobs of one line in the order in which they would start; `times` (shared by lines) are the shares used."""

    __slots__ = ("_fair_by", "_heap", "_lines", "_times")

    def __init__(self, entries: Iterable[Entry], times: dict[str, float] | None, fair_by: str | None) -> None:
        self._times = times
        self._fair_by = fair_by
        self._lines: dict[str, deque[Entry]] = {}
        # A job that left a line and came back may be found twice in it.
        for entry in sorted({entry.id: entry for entry in entries}.values(), key=lambda entry: entry.place):
            self._lines.setdefault(share_key(entry, fair_by) if fair_by else "", deque()).append(entry)
        self._heap = [(*self._key(who), who) for who in self._lines]
        heapify(self._heap)

    def _key(self, who: str) -> tuple[float, int]:
        return self._times[who] if self._times is not None else 0.0, self._lines[who][0].place

    def peek(self) -> tuple[float, int] | None:
        """The share and the place of the next one."""
        while self._heap:
            time, place, who = self._heap[0]
            if not self._lines[who]:
                heappop(self._heap)
            elif (time, place) != self._key(who):
                heapreplace(self._heap, (*self._key(who), who))
            else:
                return time, place
        return None

    def pop(self) -> Entry:
        """The next one, charged to its share."""
        self.peek()
        who = self._heap[0][2]
        return self._take(who)

    def by_place(self) -> Iterator[Entry]:
        """All of them by place, whoever's they are, charged to their shares."""
        for entry in sorted((entry for line in self._lines.values() for entry in line), key=lambda one: one.place):
            yield self._take(share_key(entry, self._fair_by) if self._fair_by else "")

    def _take(self, who: str) -> Entry:
        entry = self._lines[who].popleft()
        if self._times is not None:
            self._times[who] += 1.0 / entry.spec.weight
        return entry


class Bucket:
    """The jobs of one level: those a lent job waits for, those of this level by birth, those aged into it.

    Most levels of most lanes have only the second kind; lines for the others are made when they are needed, so that
    ten thousand lanes stay small.
    """

    __slots__ = ("aged", "live", "native", "wanted")

    def __init__(self, native: Line) -> None:
        self.native = native
        self.aged: Line | None = None
        self.wanted: Fifo | None = None
        self.live = 0

    def lines(self) -> list[Line]:
        """Those that there are."""
        return [line for line in (self.wanted, self.native, self.aged) if line is not None]

    def head(self, *, native_turn: bool) -> Entry | None:
        """The next job of this level. `native_turn`: the last start was an aged job, so a native one is next."""
        first = self.wanted.head() if self.wanted is not None else None
        if first is not None:
            return first
        native = self.native.head()
        aged = self.aged.head() if self.aged is not None else None
        if native is None or aged is None:
            return native if aged is None else aged
        if native_turn:
            return native
        if isinstance(self.native, Fair) and isinstance(self.aged, Fair):
            native_time, aged_time = self.native.time_of(native), self.aged.time_of(aged)
            if native_time != aged_time:
                return native if native_time < aged_time else aged
        return native if native.place < aged.place else aged


class Waiting:
    """Everything that waits in one lane, in order."""

    __slots__ = (
        "_ageing_ms",
        "_boost",
        "_buckets",
        "_changes",
        "_fair_by",
        "_line_of_users",
        "_mask",
        "_mixed",
        "_shares",
        "_stale",
        "_user",
        "_user_was_aged",
        "arrivals",
        "count",
    )

    def __init__(self, *, ageing_ms: int | None, boost: Boost | None, fair_by: str | None) -> None:
        self._ageing_ms = ageing_ms
        self._boost = boost
        self._fair_by = fair_by
        self._shares = Shares() if fair_by else None
        self._buckets: list[Bucket | None] = [None] * RANKS
        self._user = self._buckets[USER] = Bucket(self._line())
        self._line_of_users = self._user.native if isinstance(self._user.native, Fifo) else Fifo()
        self._mixed = False  # something here did not come by `push_plain`
        self._mask = 0  # which buckets have live jobs
        self._user_was_aged = False
        self._changes: list[Change] = []  # when waiting alone moves a job to another level
        self._stale = 0
        self.count = 0
        # Kept only where the exact oldest counts (shared caps) or lines do not show it (fair share).
        self.arrivals: list[tuple[int, int, int, Entry]] | None = [] if fair_by else None

    # ---- joining and leaving ----

    def push(self, entry: Entry, now: int) -> None:
        """Let a job wait here; its level is its own, plus what its waiting and its deadline have given it by now."""
        if entry.aged or entry.boost:
            entry.aged = entry.boost = 0
        level = int(entry.spec.priority)
        if level < USER and self._ageing_ms is not None:
            entry.aged = min(USER - level, (now - entry.queued_at) // self._ageing_ms)
            self._set_climb(entry)
        deadline = self._deadline_of(entry)
        if deadline is not None:
            self._set_boost(entry, deadline, now)
        if self._shares is not None:
            self._shares.join(share_key(entry, self._fair_by or ""), entry.spec.weight)
        if self.arrivals is not None:
            if len(self.arrivals) > 2 * self.count + 64:
                self.arrivals = [item for item in self.arrivals if _is_live(item[2], item[3])]
                heapify(self.arrivals)
            heappush(self.arrivals, (entry.queued_at, entry.place, entry.phase, entry))
        self.count += 1
        self._stand(entry, level + entry.aged + entry.boost)

    def push_plain(self, entry: Entry) -> None:
        """Let a new plain job wait in a plain lane: no ageing to watch, no deadline, no share, no arrival to note."""
        line = self._line_of_users
        entry.rank = USER
        entry.spot = line
        line.last = entry.place
        line.tail.append(entry)
        self._user.live += 1
        self._mask |= USER_BIT
        self.count += 1

    def pop_plain(self) -> Entry | None:
        """Take the head if all that waits came by `push_plain`; None: ask `head`."""
        if self._mask != USER_BIT or self._mixed:
            return None
        line = self._line_of_users
        tail = line.tail
        while tail:
            entry = tail.popleft()
            if entry.spot is line:
                entry.spot = None
                self.count -= 1
                self._user.live = live = self._user.live - 1
                if not live:
                    self._mask = 0
                return entry
        return None

    def remove(self, entry: Entry, *, started: bool) -> None:
        """A job leaves: it starts here, or it was cancelled, timed out or set aside."""
        bucket = self._buckets[entry.rank]
        assert bucket is not None
        assert entry.spot is not None
        entry.spot = None
        bucket.live -= 1
        if bucket.live == 0:
            self._mask ^= 1 << entry.rank
        self.count -= 1
        if self.count == 0:
            self._mixed = False
        if self._shares is not None:
            who = share_key(entry, self._fair_by or "")
            if started:
                self._shares.charge(who)
            self._shares.leave(who)
        if started:
            if entry.rank == USER:
                self._user_was_aged = entry.aged > 0
        else:
            self._note_stale()

    def prefer(self, entry: Entry) -> None:
        """A lent job waits for it (or does so no longer): inside its level it goes first (or no longer)."""
        self._leave_bucket(entry)
        self._stand(entry, entry.rank)
        self._note_stale()

    def _stand(self, entry: Entry, rank: int) -> None:
        bucket = self._buckets[rank]
        if bucket is None:
            bucket = self._buckets[rank] = Bucket(self._line())
        entry.rank = rank
        self._mixed = True
        if entry.wanted:
            if bucket.wanted is None:
                bucket.wanted = Fifo()
            bucket.wanted.push(entry)
        elif entry.aged:
            if bucket.aged is None:
                bucket.aged = self._line()
            bucket.aged.push(entry)
        else:
            bucket.native.push(entry)
        bucket.live += 1
        self._mask |= 1 << rank

    def _line(self) -> Line:
        return Fifo() if self._shares is None else Fair(self._shares, self._fair_by or "")

    def _leave_bucket(self, entry: Entry) -> None:
        bucket = self._buckets[entry.rank]
        assert bucket is not None
        entry.spot = None
        bucket.live -= 1
        if bucket.live == 0:
            self._mask ^= 1 << entry.rank

    def _note_stale(self) -> None:
        """Something stale stays behind; sweep when it outweighs what is live, so that it never holds much memory."""
        self._stale += 1
        if self._stale > (_STALE_MAX if self.count else 0) and self._stale > self.count:
            self.sweep()

    def sweep(self) -> None:
        """Forget everything stale."""
        self._stale = 0
        for bucket in self._buckets:
            if bucket is not None:
                for line in bucket.lines():
                    line.compact()
        self._changes = [item for item in self._changes if _is_live(item[3], item[4])]
        heapify(self._changes)
        if self.arrivals is not None:
            self.arrivals = [item for item in self.arrivals if _is_live(item[2], item[3])]
            heapify(self.arrivals)

    # ---- order ----

    def head(self, now: int) -> Entry | None:
        """Who is next, without taking it."""
        if self._changes and self._changes[0][0] <= now:
            self._pass_time(now)
        mask = self._mask
        if not mask:
            return None
        rank = mask.bit_length() - 1
        bucket = self._buckets[rank]
        assert bucket is not None
        return bucket.head(native_turn=rank == USER and self._user_was_aged)

    def keep_arrivals(self) -> None:
        """From now on, know exactly who has waited longest (a lane that shares no cap need not)."""
        self.arrivals = [(entry.queued_at, entry.place, entry.phase, entry) for entry in self]
        heapify(self.arrivals)

    def oldest_at(self) -> int | None:
        """When the oldest of those that wait was queued."""
        arrivals = self.arrivals
        if arrivals is None:
            # Without a shared cap every line here is in order of arrival (but for retries), so heads are enough.
            lines = (line for b in self._buckets if b and b.live for line in b.lines())
            return min((first.queued_at for line in lines if (first := line.head()) is not None), default=None)
        while arrivals and not _is_live(arrivals[0][2], arrivals[0][3]):
            heappop(arrivals)
        return arrivals[0][0] if arrivals else None

    def next_change(self) -> int | None:
        """When waiting alone would change the order here."""
        changes = self._changes
        while changes and not _is_live(changes[0][3], changes[0][4]):
            heappop(changes)
        return changes[0][0] if changes else None

    def __iter__(self) -> Iterator[Entry]:
        """Every waiting job in the order in which they would start if nothing changed."""
        times = self._shares.times() if self._shares is not None else None
        aged_turn_over = self._user_was_aged
        for rank in range(RANKS - 1, -1, -1):
            bucket = self._buckets[rank]
            if bucket is None or not bucket.live:
                continue
            wanted, native, aged = (
                Projection(_of(line) if line is not None else (), times, self._fair_by)
                for line in (bucket.wanted, bucket.native, bucket.aged)
            )
            for entry in wanted.by_place():
                aged_turn_over = entry.aged > 0 if rank == USER else aged_turn_over
                yield entry
            while True:
                first, second = native.peek(), aged.peek()
                if first is None and second is None:
                    break
                must_be_native = rank == USER and aged_turn_over and first is not None
                take_aged = second is not None and not must_be_native and (first is None or second < first)
                entry = aged.pop() if take_aged else native.pop()
                aged_turn_over = take_aged if rank == USER else aged_turn_over
                yield entry

    def _pass_time(self, now: int) -> None:
        """Move those whose time has come to their new level."""
        while self._changes and self._changes[0][0] <= now:
            _, _, levels, phase, entry = heappop(self._changes)
            if not _is_live(phase, entry):
                continue
            self._leave_bucket(entry)
            if levels == _ONE_BY_AGE:
                entry.aged += 1
                self._set_climb(entry)
            else:
                entry.boost = levels
            self._stand(entry, int(entry.spec.priority) + entry.aged + entry.boost)
            self._note_stale()  # only now: a sweep takes what stands nowhere for gone

    def _set_change(self, due: int, levels: int, entry: Entry) -> None:
        if len(self._changes) > 8 * self.count + 64:
            self._changes = [item for item in self._changes if _is_live(item[3], item[4])]
            heapify(self._changes)
        heappush(self._changes, (due, entry.place, levels, entry.phase, entry))

    def _set_climb(self, entry: Entry) -> None:
        """Waiting gives one level for each `ageing_ms`, never above USER."""
        assert self._ageing_ms is not None
        if int(entry.spec.priority) + entry.aged < USER:
            self._set_change(entry.queued_at + self._ageing_ms * (entry.aged + 1), _ONE_BY_AGE, entry)

    def _deadline_of(self, entry: Entry) -> int | None:
        boost = self._boost
        if boost is None or not boost.steps:
            return None
        return entry.spec.deadline_ms if entry.spec.deadline_ms is not None else boost.deadline_ms

    def _set_boost(self, entry: Entry, deadline: int, now: int) -> None:
        assert self._boost is not None
        for step in self._boost.steps:
            due = entry.submitted_at + deadline - deadline * step.remaining_percent // 100
            if due <= now:
                entry.boost = step.levels
            else:
                self._set_change(due, step.levels, entry)


def _is_live(phase: int, entry: Entry) -> bool:
    """Whether what was noted about a job that waits still holds."""
    return entry.spot is not None and entry.phase == phase


def _of(line: Line) -> Iterator[Entry]:
    if isinstance(line, Fair):
        for inner in line.lines():
            yield from _of(inner)
    elif isinstance(line, Fifo):
        yield from (entry for entry in line.tail if entry.spot is line)
        yield from (entry for _, _, entry in line.early if entry.spot is line)
