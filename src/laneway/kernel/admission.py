"""Starting: how a job that waits comes to run, and what it holds then.

A handler marks the lanes and pools that may have room; `_settle` looks at each mark until none is left: what was
lent is given back first, then lanes start what they can or park at the pool they want for, then pools pick among
the lanes parked with them (groups first, the cap over everything last).

The invariant that rules out a lost wake-up: a lane with a job that could start is either started from, parked at a
pool that has no room, or has a timer for its limit; and whoever gives a unit back marks it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from laneway.events import Event, JobEvent, JobLent, JobStarted, JobTookBack, LaneIdled, LanePressured, QueueAlerted
from laneway.kernel.histograms import FINE
from laneway.kernel.jobs import TRANSITIONS, Entry, Trigger, move
from laneway.kernel.lanes import Lane, Pool, Resource, parent_of, recovered_at
from laneway.kernel.lending import Lending
from laneway.kernel.protocol import Effect, Publish, StartJob
from laneway.kernel.registry import Registry
from laneway.kernel.timers import Alarm, Timers
from laneway.records import JobId, JobState

_RUNNING = TRANSITIONS[JobState.QUEUED, Trigger.START]
_new = tuple.__new__  # makes a NamedTuple at half the price; only where every job passes
_ALERTS = ("ok", "warning", "critical")


class Admission:
    """The state of the kernel and the part of it that starts jobs."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self.threads = registry.threads
        self.lending = Lending(self)
        self.timers = Timers()
        self.jobs: dict[JobId, Entry] = {}
        self.listening = False  # build events only while somebody listens
        self.running = 0
        self.waiting = 0
        self.scheduled = 0
        self.lent = 0
        self._sequence = 0
        self._out: list[Effect] = []
        self._marked_lanes: dict[Lane, None] = {}
        self._marked_pools: dict[Pool, None] = {}
        self._marked_first: dict[Lane, None] = {}  # those of them with jobs that only pass
        self._deferred: dict[Lane, None] = {}  # to be looked at once the pools have chosen
        self._aside: dict[Entry, None] = {}  # jobs that wait for a token or a cap of an earlier lane

    # ---- what the parts share ----

    def emit(self, effect: Effect) -> None:
        """Hand an effect to the engine."""
        self._out.append(effect)

    def publish(self, event: Event) -> None:
        """Tell whoever listens; call only while somebody does."""
        self._out.append(Publish(event))

    def job_event(self, kind: type[JobEvent], entry: Entry, reason: str = "", **more: Any) -> None:
        """Publish an event about a job, if somebody listens."""
        if self.listening:
            self._out.append(
                Publish(
                    kind(
                        job_id=entry.id,
                        lane=entry.lane.name,
                        state=entry.state,
                        attempt=entry.attempt,
                        label=entry.spec.label,
                        tenant=entry.spec.tenant,
                        reason=reason or entry.reason,
                        actor=entry.actor,
                        **more,
                    ),
                ),
            )

    def announce_lending(self, entry: Entry, event: type[JobLent] | type[JobTookBack]) -> None:
        """Count a node as lent or as running again, and say so."""
        by = 1 if event is JobLent else -1
        move(entry, Trigger.LEND if event is JobLent else Trigger.TAKE_BACK)
        if not entry.is_part:
            self.running -= by
            self.lent += by
        for lane in entry.lanes:
            if lane in entry.units:
                lane.lent += by
        self.job_event(event, entry)

    def count_alone(self, slot: Entry) -> None:
        """A slot that was part of a job stands alone: count it."""
        if slot.is_part:
            slot.is_part = False
            if slot.state is JobState.RUNNING:
                self.running += 1
            elif slot.state is JobState.LENT:
                self.lent += 1

    def mark(self, resource: Resource) -> None:
        """Look at this resource again before the command is over: it may have room."""
        if isinstance(resource, Lane):
            self._marked_lanes[resource] = None
            if resource.light:
                self._marked_first[resource] = None
        elif isinstance(resource, Pool):
            self._marked_pools[resource] = None

    # ---- queueing ----

    def _next_place(self) -> int:
        self._sequence += 1
        return self._sequence

    def _queue(self, entry: Entry, now: int) -> Lane:
        """Let a job wait for the next of its lanes."""
        lane = entry.lanes[entry.stage]
        entry.phase += 1
        entry.queued_at = now
        lane.waiting += 1
        lane.queue.push(entry, now)
        if lane.stack is not None and entry.up is not None:
            lane.kin[entry] = None
        if entry.is_slot or entry.stage + 1 < len(entry.lanes):
            lane.light += 1
        if lane.waiting >= lane.watch_high:
            self._watch(lane)
        self._watch_wait(entry)
        return lane

    def _watch_wait(self, entry: Entry) -> None:
        timeout = entry.spec.wait_timeout_ms or entry.lanes[-1].config.wait_timeout_ms
        if timeout is not None:
            self.timers.set(entry.since + timeout, Alarm.WAIT, entry)

    def _unqueue(self, entry: Entry, lane: Lane, *, started: bool) -> None:
        """A job does not wait in this lane any longer."""
        if entry.aside is not None:
            del self._aside[entry]
            entry.aside = None
        else:
            lane.queue.remove(entry, started=started)
        if lane.kin:
            lane.kin.pop(entry, None)
        if entry.is_slot or entry.stage + 1 < len(entry.lanes):
            lane.light -= 1
        lane.waiting -= 1
        if lane.waiting <= lane.watch_low:
            self._watch(lane)

    def _watch(self, lane: Lane) -> None:
        """The depth of a lane crossed a line: say so once."""
        config, depth = lane.config, lane.waiting
        if config.pressure_threshold is not None:
            if not lane.pressed and depth >= config.pressure_threshold:
                lane.pressed = True
                if self.listening:
                    self.publish(LanePressured(lane=lane.name, waiting=depth))
            elif lane.pressed and depth == 0:
                lane.pressed = False
                if self.listening:
                    self.publish(LaneIdled(lane=lane.name))
        level = lane.alert_level
        for step, threshold in ((1, config.alert_warning), (2, config.alert_critical)):
            if threshold is not None and depth >= threshold:
                level = max(level, step)
        for step, threshold in ((2, config.alert_critical), (1, config.alert_warning)):
            if level == step and (threshold is None or depth <= recovered_at(threshold)):
                level = step - 1
        if level != lane.alert_level:
            lane.alert_level = level
            if self.listening:
                self.publish(QueueAlerted(lane=lane.name, level=_ALERTS[level], waiting=depth))
        lane.set_watch()

    # ---- starting ----

    def _settle(self, now: int) -> None:
        """Look at every mark until nothing more can start."""
        if self._aside:
            self._bring_back(now)
        lanes, pools, deferred = self._marked_lanes, self._marked_pools, self._deferred
        while lanes or pools or deferred:
            if lanes:
                # Those that only pass a lane go first: they may be first in the lane they go to.
                lane = next(iter(self._marked_first or lanes))
                self._marked_first.pop(lane, None)
                lanes.pop(lane, None)
                self._pump(lane, now)
            elif pools:
                pool = min(pools, key=lambda pool: pool.rank)
                del pools[pool]
                self._serve(pool, now)
            else:
                lane, _ = deferred.popitem()
                self._pump(lane, now, pools_have_chosen=True)

    def _pump(self, lane: Lane, now: int, *, pools_have_chosen: bool = False) -> None:
        """Start what this lane can start; park it where it needs a unit that it shares."""
        if lane.plain and not lane.takers and not lane.paused and lane.parked is None:
            pop = lane.queue.pop_plain
            while lane.held < lane.cap and (entry := pop()) is not None:
                lane.waiting -= 1
                if lane.waiting <= lane.watch_low:
                    self._watch(lane)
                self._start_plain(entry, lane, now)
            if not lane.waiting or lane.held >= lane.cap:
                return
        if lane.takers:
            self.lending.serve_takers(lane)
        queue = lane.queue
        while queue.count and lane.is_open():
            entry = lane.head(now)
            if entry is None:
                break
            if entry.stage + 1 < len(entry.lanes):
                self._advance(entry, lane, now)
            elif not lane.needs_care and not entry.threaded and not entry.inside and entry.stage == 0:
                self._unqueue(entry, lane, started=True)
                self._start_plain(entry, lane, now)
            elif not self._start_with_care(entry, lane, now, pools_have_chosen=pools_have_chosen):
                return
        if lane.parked is not None:
            lane.parked.unpark(lane)

    def _start_with_care(self, entry: Entry, lane: Lane, now: int, *, pools_have_chosen: bool) -> bool:
        """Start the head of a lane if its limit and every cap it shares allow. False: the lane waits with it."""
        wait = lane.limit_wait_ms(now)
        if wait:
            if lane.parked is not None:
                lane.parked.unpark(lane)
            self._set_lane_alarm(lane, now + wait)
            return False
        if entry.stage:
            blocking = self._blocking_lane(entry, now)
            if blocking is not None:
                self._set_aside(entry, lane, blocking, now)
                return True
            if not pools_have_chosen and self._is_contested(entry):
                self._deferred[lane] = None
                return False
        units = self._units_for(entry)
        own = [unit for unit in units if isinstance(unit, Pool) and (unit in lane.pools or unit is self.threads)]
        for pool in own:
            if pool.parked or not pool.has_room_for(entry):
                self._park(lane, pool, now)
                return False
        if own and self._marked_lanes:
            # Lanes that are still marked may have a better head: the last pool chooses, once all have been looked at.
            self._park(lane, own[-1], now)
            return False
        self._start(entry, lane, units, now)
        return True

    def _park(self, lane: Lane, pool: Pool, now: int) -> None:
        if lane.parked is not None and lane.parked is not pool:
            lane.parked.unpark(lane)
        head = pool.park(lane, now)
        if pool.has_room_for(head):
            self._marked_pools[pool] = None
        if pool is self.threads or lane.light or pool.reserve:
            # Waiting alone may bring a job to the head that does not need this pool.
            change = lane.queue.next_change()
            if change is not None:
                self._set_lane_alarm(lane, change)

    def _serve(self, pool: Pool, now: int) -> None:
        """A shared cap may have room: start from the lanes parked there, best first."""
        if pool.takers:
            self.lending.serve_takers(pool)
        while pool.parked:
            lane = pool.pick(now)
            if lane is None:
                return
            pool.unpark(lane)
            if self._pass_pool(lane, pool, now):
                self._pump(lane, now)
            if self._marked_lanes:
                self._marked_pools[pool] = None  # a start let a job pass into another lane: look there first
                return

    def _pass_pool(self, lane: Lane, pool: Pool, now: int) -> bool:
        """A pool gave way to this lane: start its head, or park it at the next pool that does not.

        False: there is nothing more to look at in this lane for now.
        """
        entry = lane.head(now) if lane.queue.count and lane.is_open() else None
        if entry is None or entry.stage + 1 < len(entry.lanes):
            return True
        if lane.limit_wait_ms(now) or (entry.stage and self._blocking_lane(entry, now) is not None):
            return True
        units = self._units_for(entry)
        for unit in units:
            if not isinstance(unit, Pool) or (unit not in lane.pools and unit is not self.threads):
                continue
            if not unit.has_room_for(entry) or (unit.rank > pool.rank and unit.parked):
                self._park(lane, unit, now)
                return False
        self._start(entry, lane, units, now)
        return True

    def _start(self, entry: Entry, lane: Lane, units: tuple[Resource, ...], now: int) -> None:
        """A job has everything it needs: it runs."""
        late = len(units) > len(entry.lanes) and lane.late_at() <= now
        self._unqueue(entry, lane, started=True)
        self._hold(entry, units, late=late)
        lane.last_start = now
        self._run(entry, now)

    def _start_plain(self, entry: Entry, lane: Lane, now: int) -> None:
        """The head of a lane that needs nothing but a slot of its own has left the queue: it runs."""
        lane.held += 1
        lane.last_start = now
        entry.units = lane.units
        if not entry.simple or self.listening:
            self._run(entry, now)
            return
        entry.state = _RUNNING
        entry.attempt = 1
        entry.started_at = now
        self.waiting -= 1
        self.running += 1
        waited = now - entry.queued_at
        if waited < FINE:
            lane.wait_counts[waited] += 1
        else:
            lane.counters.wait.add(waited)
        self._out.append(_new(StartJob, (entry, entry.id, 1)))

    def _hold(self, entry: Entry, units: Iterable[Resource], *, late: bool = False) -> None:
        had = entry.units
        for unit in units:
            if unit in had:
                continue
            unit.go_out(entry)
            if isinstance(unit, Lane):
                if unit.stack is not None:
                    unit.stack.append(entry)
            elif isinstance(unit, Pool):
                unit.note_start(late=late)
        entry.units = tuple(units)

    def _run(self, entry: Entry, now: int) -> None:
        entry.phase += 1
        entry.attempt = attempt = entry.attempt + 1
        entry.started_at = now
        move(entry, Trigger.START)
        self.waiting -= 1
        if not entry.is_part:
            self.running += 1
        lane = entry.lanes[-1]
        waited = now - entry.since
        lane.counters.wait.add(waited)
        self._take_tokens(entry, now)
        timeout = entry.spec.timeout_ms or lane.config.timeout_ms
        if timeout is not None and not entry.is_slot:
            self.timers.set(now + timeout, Alarm.RUN, entry)
        if self.listening:
            self.job_event(JobStarted, entry, wait_ms=waited)
        self._out.append(StartJob(entry, entry.id, attempt))
        if entry.is_slot and entry.waiters:
            self.lending.settle(entry)

    @staticmethod
    def _take_tokens(entry: Entry, now: int) -> None:
        for lane in entry.lanes:
            if lane.bucket is not None and lane in entry.units:
                lane.bucket.take(now)

    def _advance(self, entry: Entry, lane: Lane, now: int) -> None:
        """A job with several lanes has this one: it waits for the next, holding this."""
        self._unqueue(entry, lane, started=True)
        self._hold(entry, (*entry.units, lane))
        lane.last_start = now
        entry.stage += 1
        assert entry.places is not None
        if len(entry.places) <= entry.stage:
            entry.places.append(self._next_place())
        entry.place = entry.places[entry.stage]
        self.mark(self._queue(entry, now))

    def _units_for(self, entry: Entry) -> tuple[Resource, ...]:
        """What a job needs to run: its lanes, then the caps they share, less what the job around it has."""
        last = entry.lanes[-1]
        own = last.threaded_units if entry.threaded else last.units
        if len(entry.lanes) == 1 and not entry.inside:
            return own
        lanes = dict.fromkeys(entry.lanes)
        pools = dict.fromkeys(pool for lane in entry.lanes for pool in lane.pools)
        if entry.threaded:
            pools[self.threads] = None
        taken = self._around(entry)
        found: list[Resource] = [lane for lane in lanes if lane not in taken]
        found += sorted((pool for pool in pools if pool not in taken), key=lambda pool: pool.rank)
        return tuple(found)

    def _around(self, entry: Entry) -> set[Resource]:
        """What the job and the slots around a slot hold or have lent."""
        taken: set[Resource] = set()
        current = entry
        while (up := parent_of(current)) is not None and current.inside:
            taken.update(up.units)
            current = up
        return taken

    # ---- limits and caps of lanes that a job has already passed ----
    #
    # All of them are taken together with its last lane. A job at the head of its last lane that lacks one of an
    # earlier lane would hold up others there: it is set aside, and stands in its place again whenever something
    # has changed. There are at most as many such jobs as the earlier lanes are wide.

    def _blocking_lane(self, entry: Entry, now: int) -> Lane | None:
        """An earlier lane of a job whose token or cap is not to be had now."""
        for lane in entry.lanes[: entry.stage]:
            if lane.limit_wait_ms(now):
                return lane
        for lane, pool in self._earlier_pools(entry):
            if not pool.has_room_for(entry):
                return lane
        return None

    def _is_contested(self, entry: Entry) -> bool:
        """Whether other lanes want what a job needs of its earlier lanes: then the pools choose first."""
        for _, pool in self._earlier_pools(entry):
            if pool.parked or self._marked_lanes or pool in self._marked_pools:
                return True
        return False

    def _earlier_pools(self, entry: Entry) -> list[tuple[Lane, Pool]]:
        """The caps that a job shares through its earlier lanes only, less those that the job around it has."""
        last = entry.lanes[-1]
        around = self._around(entry) if entry.inside else ()
        return [
            (lane, pool)
            for lane in entry.lanes[: entry.stage]
            for pool in lane.pools
            if pool not in last.pools and pool not in around
        ]

    def _set_aside(self, entry: Entry, lane: Lane, blocking: Lane, now: int) -> None:
        lane.queue.remove(entry, started=False)
        entry.aside = blocking
        self._aside[entry] = None
        wait = blocking.limit_wait_ms(now)
        if wait:
            self._set_lane_alarm(blocking, now + wait)

    def _bring_back(self, now: int) -> None:
        """Something has changed: those that were set aside stand in their places again."""
        aside, self._aside = self._aside, {}
        for entry in aside:
            lane = entry.lanes[-1]
            entry.aside = None
            entry.phase += 1
            lane.queue.push(entry, now)
            self._watch_wait(entry)
            self.mark(lane)

    def _set_lane_alarm(self, lane: Lane, due: int) -> None:
        lane.phase += 1  # only the newest alarm of a lane counts
        self.timers.set(due, Alarm.LANE, lane)
