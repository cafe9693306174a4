"""Live traffic: what moves in the lanes, for whoever looks.

Nothing listens to single jobs. While somebody watches, the lanes are compared four times a second with what they were,
a handful of numbers for each, and those that differ are looked at closely; so a job costs nothing, a lane in which
nothing moves costs well under a microsecond, and with nobody watching there is no timer at all. When the comparing
gets dear (very many lanes), it is done less often.

A watcher holds no events. It is told that there is something, and takes what has changed since it last took: who reads
slowly gets fewer and larger pieces, and is never cut for it. Whoever comes back gets the whole look again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from laneway.gateway.feeds import Feed, Marked, Pace
from laneway.gateway.hub import Frame, Hub, Watcher
from laneway.gateway.traffic_history import FIELDS, STEP_MS, TrafficHistory
from laneway.gateway.traffic_look import Look, brief
from laneway.rows import Owner

if TYPE_CHECKING:
    from laneway.gateway.access import Caller
    from laneway.gateway.service import Gateway
    from laneway.kernel.lanes import Lane

__all__ = ("PERIOD_MS", "Traffic", "TrafficFeed")

PERIOD_MS: Final = 250
DEAREST: Final = 20
"""Of the time, at most one part in so many goes into comparing."""
CHUNK: Final = 250
"""So many lanes are told in one event."""
STEP_LANES_MAX: Final = 500
NOBODY: Final = Owner("", "", "")
TICK: Final = Frame(NOBODY, "tick", 0, {})

Mark = tuple[int | bool | None, ...]


class Traffic:
    """The lanes of a gateway as they move."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._engine = gateway.lanes.engine
        self._registry = gateway.lanes.engine.kernel.registry
        self.hub = Hub("")
        self.history = TrafficHistory(self._registry)
        self.pauses: dict[str, str] = {}
        """Why lanes are paused, as far as whoever did it has said so; by their names, or what they end with."""
        self.period_ms = PERIOD_MS
        """How often lanes are compared while somebody watches."""
        self.version = 0
        self._marks: dict[str, Mark] = {}
        self._changed: dict[str, int] = {}  # by lane: the version in which it was last seen to differ
        self._gone: dict[str, int] = {}
        self._unowned: set[str] = set()  # lanes of sessions that are being opened
        self._totals: dict[str, Any] = {}
        self._look: Look | None = None
        self._told: dict[str, dict[str, dict[str, Any]]] = {}  # by tenant and lane: as it is told in this version
        self._timer: asyncio.TimerHandle | None = None
        self._steps: asyncio.TimerHandle | None = None

    # ---- opening and closing ----

    def open(self) -> None:
        """Begin to write down what happens, on the running loop."""
        self.history.at_ms = self._engine.wall_ms()
        self._next_step()

    def begin_stop(self) -> None:
        """End the streams."""
        self.hub.close()

    def close(self) -> None:
        """Leave no timer behind."""
        self.hub.close()
        for timer in (self._timer, self._steps):
            if timer is not None:
                timer.cancel()
        self._timer = self._steps = None

    # ---- history ----

    def _next_step(self) -> None:
        loop = asyncio.get_running_loop()
        self._steps = loop.call_later(STEP_MS / 1000, self._step_is_over)

    def _step_is_over(self) -> None:
        self._next_step()
        self.step()

    def step(self) -> None:
        """One more step of the history."""
        kernel = self._engine.kernel
        self.history.sample(at_ms=self._engine.wall_ms(), running=kernel.running, waiting=kernel.waiting)
        self.hub.nudge(TICK)

    # ---- what differs ----

    @property
    def is_comparing(self) -> bool:
        """Whether lanes are compared from time to time, or anything is held for that."""
        return self._timer is not None or bool(self._marks)

    def watch(self, caller: Caller) -> Watcher:
        """Begin to watch. Whoever does this ends it."""
        watcher = self.hub.watch(caller.tenant, token_id=caller.token_id)
        if self._timer is None:
            self.compare()
            self._timer = asyncio.get_running_loop().call_later(self.period_ms / 1000, self._tick)
        return watcher

    def _tick(self) -> None:
        self._timer = None
        if not len(self.hub):
            self._rest()
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        if self.compare():
            self.hub.nudge(TICK)
        pause = max(self.period_ms / 1000, DEAREST * (loop.time() - began))
        self._timer = loop.call_later(pause, self._tick)

    def _rest(self) -> None:
        """Nobody watches: hold nothing."""
        self._look = None
        self._marks, self._changed, self._gone, self._told, self._unowned = {}, {}, {}, {}, set()

    def note_change(self, lane: str, *, paused: bool | None, reason: str) -> None:
        """An operator changes lanes: why one is paused is shown as long as it is, and all of them are told again."""
        if paused is not None:
            self.pauses.pop(lane, None)
        if paused and reason:
            self.pauses[lane] = reason
        self._marks = {}  # what is changed may be something that the numbers of a lane do not show

    def compare(self) -> bool:
        """See which lanes differ from what they were; whether anything does."""
        marks, changed, version = self._marks, self._changed, self.version + 1
        lanes = self._registry.lanes
        differs = False
        for name, lane in lanes.items():
            mark = _mark(lane)
            if marks.get(name) != mark:
                marks[name] = mark
                changed[name] = version
                differs = True
        if changed.keys() != lanes.keys():
            for name in changed.keys() - lanes.keys():
                marks.pop(name, None)
                del changed[name]
                self._gone[name] = version
                differs = True
        self._look = None
        self._told = {}
        look = self.look()
        for name in [name for name in self._unowned if name in lanes and not look.is_nobodys(lanes[name])]:
            changed[name] = version  # now somebody can tell whose it is
            differs = True
        self._unowned = {name for name, at in changed.items() if at == version and look.is_nobodys(lanes[name])} | {
            name for name in self._unowned if name in lanes and changed[name] < version
        }
        totals = look.totals()
        if not differs and totals == self._totals:
            return False
        self._totals = totals
        self.version = version
        while len(self._gone) > max(1_000, len(lanes)):
            del self._gone[next(iter(self._gone))]
        return True

    def look(self) -> Look:
        """The lanes as they are: what has changed since the last comparison is seen by the next one."""
        if self._look is None or self._look.now != self._engine.now():
            self._look = Look(self._gateway, self.pauses)
            self._told = {}
        return self._look

    def fresh(self) -> Look:
        """The lanes as they are at this very moment."""
        self._look = None
        return self.look()

    def changed(self, tenant: str, places: Collection[str] | None, since: int) -> list[str]:
        """The lanes that a tenant may see and that differ from what they were in a version; from 0 on: all."""
        look, lanes = self.look(), self._registry.lanes
        names = [name for name, at in self._changed.items() if at > since and name in lanes]
        return sorted(name for name in names if look.is_there_for(lanes[name], tenant, places))

    def gone(self, since: int) -> list[str]:
        """The lanes that have gone after a version, whoever's they were."""
        return [name for name, at in self._gone.items() if at > since and name not in self._registry.lanes]

    def tell(self, names: Iterable[str], tenant: str) -> list[dict[str, Any]]:
        """These lanes as a tenant sees them, without what says nothing; written down once for all who watch."""
        look, lanes = self.look(), self._registry.lanes
        told = self._told.setdefault(tenant, {})
        found = []
        for name in names:
            lane = lanes.get(name)
            if lane is not None and name not in told:
                told[name] = brief(look.lane(lane, tenant))
            if lane is not None:
                found.append(told[name])
        return found

    def shown(self, tenant: str, places: Collection[str] | None) -> list[Lane]:
        """Every lane that a tenant may see, by name."""
        look, lanes = self.look(), self._registry.lanes
        return [lanes[name] for name in sorted(lanes) if look.is_there_for(lanes[name], tenant, places)]

    def step_for(self, tenant: str, places: Collection[str] | None) -> dict[str, Any]:
        """The newest step of the history as a tenant may see it."""
        history, look, lanes = self.history, self.look(), self._registry.lanes
        mine: dict[str, Any] = {}
        for name, values in history.newest.items():
            lane = lanes.get(name)
            if lane is not None and look.is_there_for(lane, tenant, places):
                mine[name] = dict(zip(FIELDS, values, strict=True))
            if len(mine) >= STEP_LANES_MAX:
                break
        total = dict(zip(FIELDS, history.newest_total, strict=True))
        return {"at_ms": history.at_ms, "step": history.step, "total": total, "lanes": mine}


def _mark(lane: Lane) -> Mark:
    """What is different about a lane when anything has happened in it."""
    counters = lane.counters
    return (
        lane.held,
        lane.waiting,
        counters.submitted,
        counters.completed,
        counters.cancelled,
        counters.failed,
        lane.lent,
        lane.scheduled,
        lane.cap,
        lane.paused,
        lane.closed_wall_ms,
        lane.pressed,
        lane.alert_level,
        counters.timed_out,
        counters.retried,
    )


class TrafficFeed(Feed):
    """The traffic for one watcher: `look` (the first lanes of all), then `changes` and `step`."""

    def __init__(self, gateway: Gateway, watcher: Watcher, pace: Pace, places: Collection[str] | None) -> None:
        super().__init__(gateway.default, watcher, pace)
        self._traffic = gateway.traffic
        self._places = places
        self._seen = 0
        self._step = 0
        self._known: set[str] = set()  # what it has been told of: names of others' sessions go unsaid, too

    async def groups(self) -> AsyncGenerator[list[Marked], None]:
        """What there is, and what changes."""
        self._step = self._traffic.history.step
        for group in self._changes("look"):
            yield group
        async for frames in self._live():
            if not frames:
                yield []
                continue
            if self._traffic.version > self._seen:
                for group in self._changes("changes"):
                    yield group
            if self._traffic.history.step > self._step:
                self._step = self._traffic.history.step
                yield self._event("step", self._traffic.step_for(self.watcher.tenant, self._places))

    def _changes(self, kind: str) -> Iterator[list[Marked]]:
        """What differs from what was told, in parts: others run while one is on its way."""
        traffic, tenant = self._traffic, self.watcher.tenant
        names = traffic.changed(tenant, self._places, self._seen)
        gone = [name for name in traffic.gone(self._seen) if name in self._known]
        self._seen = traffic.version
        self._known.difference_update(gone)
        self._known.update(names)
        for at in range(0, len(names) or 1, CHUNK):
            look = traffic.look()
            facts: dict[str, Any] = {"at_ms": look.wall, "totals": look.totals(), "gone": gone}
            facts["lanes"] = traffic.tell(names[at : at + CHUNK], tenant)
            if kind == "look":
                facts["count"] = len(names)
            yield self._event(kind, facts)
            kind, gone = "changes", []

    @staticmethod
    def _event(kind: str, facts: dict[str, Any]) -> list[Marked]:
        return [Marked(Frame(NOBODY, kind, 0, {"type": kind, **facts}), "")]
