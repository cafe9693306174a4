"""The last quarter of an hour of every lane, in steps of five seconds, in memory.

Nothing listens to jobs for this: lanes count by themselves what happens in them, and every five seconds the
differences are written down. So it costs a job nothing, and a lane in which nothing happens costs a comparison. Only
steps in which something happened are kept, and only for so many lanes; beyond that those that were quiet longest are
forgotten. `total` is exact in any case: what lanes had counted that are gone by now is found with their family.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from laneway.gateway.traffic_jobs import SESSION_TURNS

if TYPE_CHECKING:
    from laneway.kernel.lanes import Counters, Lane
    from laneway.kernel.registry import Registry

__all__ = ("FIELDS", "LANES_MAX", "STEPS", "STEP_MS", "TrafficHistory")

STEP_MS: Final = 5_000
STEPS: Final = 180
LANES_MAX: Final = 2_000
FIELDS: Final = ("started", "ended", "failed", "wait_p50_ms", "wait_p95_ms", "waiting", "running")
NONE: Final = (1 << 32) - 1
"""In a ring: nothing started, so nobody has waited."""
WIDTH: Final = 1 + len(FIELDS)


@dataclass(slots=True)
class Tally:
    """What was counted: jobs that ended, those of them that failed; those that began, by how long they had waited."""

    submitted: int = 0
    ended: int = 0
    failed: int = 0
    waits: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, counters: Counters) -> Tally:
        """What a lane has counted so far."""
        failed = counters.failed + counters.timed_out
        ended = counters.completed + counters.cancelled + failed
        return cls(counters.submitted, ended, failed, dict(counters.wait.spread()))

    def add(self, other: Tally, sign: int = 1) -> None:
        """Count what another has counted, or (with -1) count it no longer."""
        self.submitted += sign * other.submitted
        self.ended += sign * other.ended
        self.failed += sign * other.failed
        waits = self.waits
        for edge, count in other.waits.items():
            waits[edge] = waits.get(edge, 0) + sign * count

    def since(self, before: Tally) -> Tally:
        """What was counted after `before`."""
        new = Tally(self.submitted, self.ended, self.failed, dict(self.waits))
        new.add(before, -1)
        return new

    @property
    def started(self) -> int:
        """How many began."""
        return sum(self.waits.values())

    def percentile(self, percent: int) -> int | None:
        """What so many percent of those that began have waited at most."""
        waits = sorted((edge, count) for edge, count in self.waits.items() if count > 0)
        rank, seen = -(-sum(count for _, count in waits) * percent // 100), 0
        for edge, count in waits:
            seen += count
            if seen >= rank:
                return edge
        return None


class Ring:
    """The steps of one lane in which something happened, oldest first."""

    __slots__ = ("_steps",)

    def __init__(self) -> None:
        self._steps: array[int] = array("I")

    def put(self, step: int, values: Iterable[int | None]) -> None:
        """One more step; what is too old goes."""
        steps = self._steps
        steps.append(step)
        steps.extend(NONE if value is None else min(max(value, 0), NONE - 1) for value in values)
        oldest = step - STEPS
        gone = 0
        while steps[gone] <= oldest:
            gone += WIDTH
        if gone:
            del steps[:gone]

    def series(self, now: int, quiet: tuple[int | None, ...]) -> dict[str, list[int | None]]:
        """All steps up to `now`, oldest first; `quiet` is what a step says in which nothing happened."""
        rows: list[tuple[int | None, ...]] = [quiet] * STEPS
        steps = self._steps
        for at in range(0, len(steps), WIDTH):
            place = STEPS - 1 - (now - steps[at])
            if place >= 0:
                rows[place] = tuple(None if value == NONE else value for value in steps[at + 1 : at + WIDTH])
        return {name: [row[number] for row in rows] for number, name in enumerate(FIELDS)}

    @property
    def last(self) -> int:
        """Its newest step."""
        return self._steps[-WIDTH] if self._steps else -1


QUIET: Final[tuple[int | None, ...]] = (0, 0, 0, None, None, 0, 0)


class TrafficHistory:
    """What has happened in the lanes. `sample` is called every `STEP_MS`."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._marks: dict[str, tuple[Lane, tuple[int, ...], Tally]] = {}
        self._retired: dict[str, Tally] = {}
        self._rings: OrderedDict[str, Ring] = OrderedDict()  # quiet for longest first
        self._total = Ring()
        self.step = 0
        self.at_ms = 0
        """When the newest step ended, by the clock on the wall."""
        self.newest: dict[str, tuple[int | None, ...]] = {}
        """The lanes in which something happened in the newest step, and what."""
        self.newest_total: tuple[int | None, ...] = QUIET

    def sample(self, *, at_ms: int, running: int, waiting: int) -> None:
        """Write down what has happened since the last time; `running` and `waiting` are those of all lanes."""
        self.step += 1
        self.at_ms = at_ms
        self.newest = {}
        total = Tally()
        lanes, marks = self._registry.lanes, self._marks
        for name, lane in lanes.items():
            counters = lane.counters
            mark = marks.get(name)
            if mark is None and not counters.submitted:
                continue
            glance = _glance(lane, counters)
            if mark is None or mark[0] is not lane or mark[1] != glance:
                self._note(name, lane, glance, total)
            elif lane.held or lane.waiting:  # nothing began and nothing ended
                self._keep(name, (0, 0, 0, None, None, lane.waiting, lane.held))
        self._forget(total)
        self._count_retired(total)
        self.newest_total = _values(total, waiting, running)
        self._total.put(self.step, self.newest_total)

    def _note(self, name: str, lane: Lane, glance: tuple[int, ...], total: Tally) -> None:
        now = Tally.of(lane.counters)
        mark = self._marks.get(name)
        if mark is not None and mark[0] is not lane:  # another lane of that name: the old one is with its family
            _count(total, name, mark[2], -1)
            mark = None
        new = now if mark is None else now.since(mark[2])
        self._marks[name] = (lane, glance, now)
        _count(total, name, new)
        self._keep(name, _values(new, lane.waiting, lane.held))

    def _keep(self, name: str, values: tuple[int | None, ...]) -> None:
        self.newest[name] = values
        rings = self._rings
        ring = rings.get(name)
        if ring is None:
            if len(rings) >= LANES_MAX:
                quietest = next(iter(rings))
                if rings[quietest].last >= self.step - 1:
                    return  # all of them are busy: to let one go for each that comes would keep nobody's past
                del rings[quietest]
            ring = rings[name] = Ring()
        ring.put(self.step, values)
        rings.move_to_end(name)

    def _forget(self, total: Tally) -> None:
        """Lanes that are gone: what they had counted is with their family now, and was told already."""
        for name in self._marks.keys() - self._registry.lanes.keys():
            _count(total, name, self._marks.pop(name)[2], -1)
            ring = self._rings.get(name)
            if ring is not None and ring.last <= self.step - STEPS:
                del self._rings[name]

    def _count_retired(self, total: Tally) -> None:
        for family, counters in self._registry.retired.items():
            now = Tally.of(counters)
            before = self._retired.get(family)
            if now != before:
                _count(total, family, now if before is None else now.since(before))
                self._retired[family] = now

    def read(self, names: Iterable[str] = ()) -> dict[str, Any]:
        """The last quarter of an hour: all together, and these lanes, as far as anything is known of them."""
        rings = ((name, self._rings.get(name)) for name in names)
        return {
            "at_ms": self.at_ms,
            "step_ms": STEP_MS,
            "steps": STEPS,
            "total": self._total.series(self.step, QUIET),
            "lanes": {name: ring.series(self.step, QUIET) for name, ring in rings if ring is not None},
        }

    @property
    def size(self) -> Mapping[str, int]:
        """How much it holds: lanes, and numbers of them."""
        return {"lanes": len(self._rings), "numbers": sum(len(ring._steps) for ring in self._rings.values())}  # noqa: SLF001 - its own rings


def _glance(lane: Lane, counters: Counters) -> tuple[int, ...]:
    """What differs when anything has begun or ended in a lane."""
    return (
        counters.submitted,
        counters.completed,
        lane.held,
        lane.waiting,
        counters.cancelled,
        counters.failed,
        counters.timed_out,
        counters.retried,
        lane.lent,
    )


def _count(total: Tally, name: str, new: Tally, sign: int = 1) -> None:
    """Count what a lane has counted, once for each job: turns and model calls of sessions are in two lanes."""
    scope, _, short = name.rpartition("/")
    if not short.startswith(SESSION_TURNS) and not (scope and short == "generate"):
        total.add(new, sign)


def _values(new: Tally, waiting: int, running: int) -> tuple[int | None, ...]:
    # Of a job with several lanes the last one counts the wait: of the others it is known when it has ended.
    return (new.started, new.ended, new.failed, new.percentile(50), new.percentile(95), waiting, running)
