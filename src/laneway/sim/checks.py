"""The laws of `Lanes`, held against the kernel after every step.

The checkers know the documentation and the simulator's own record (`shadow`), and look at the kernel only through
plain fields: who holds what, who waits where. They are slow and simple on purpose: everything is counted anew.
"""

from __future__ import annotations

from collections.abc import Iterable

from laneway.kernel.explain import explain
from laneway.kernel.jobs import Entry
from laneway.kernel.lanes import Lane, Pool, Resource
from laneway.kernel.lending import Return
from laneway.kernel.protocol import BeginWait, Command, Effect, StartJob
from laneway.kernel.scheduler import Kernel
from laneway.records import JobId, JobState
from laneway.sim.order import goes_first, heads, level_of, place_in
from laneway.sim.picture import BEGUN, Picture, pools_of
from laneway.sim.shadow import LawBrokenError, Shadow, ShadowJob, Tokens
from laneway.sim.starvation import Starvation
from laneway.sim.world import World

__all__ = ("Laws",)


class Laws:
    """Holds the kernel to the documentation after every command."""

    def __init__(self, kernel: Kernel, world: World, shadow: Shadow) -> None:
        self._kernel = kernel
        self._world = world
        self._shadow = shadow
        self._picture = Picture(kernel)
        self._starvation = Starvation(world)
        self._now = 0
        self._step = 0

    # ---- after a command ----

    def after(self, command: Command, effects: list[Effect], now: int) -> None:
        """Check everything; raise `LawBrokenError` for the first thing that is wrong."""
        self._now = now
        self._step += 1
        shadow = self._shadow
        shadow.command(command, now)
        started = []
        for effect in effects:
            shadow.effect(effect, now)
            if isinstance(effect, StartJob):
                started.append(shadow.jobs[effect.job_id])
        self._observe()
        before, self._picture = self._picture, Picture(self._kernel)
        if isinstance(command, BeginWait):
            before.wanted.add(command.target_id)  # it is awaited from before it can start
        self._check_counts()
        self._check_caps(before, lends=isinstance(command, BeginWait))
        self._check_exclusive()
        self._check_tokens(started)
        self._check_order(before)
        due = self._kernel.next_due()
        if due is None or due > now:
            self._check_wake_ups()
        ready = {lane: jobs for lane in self._picture.waiting if (jobs := self._ready_heads(lane))}
        self._starvation.after(before, self._picture, ready, now=now)

    def refused(self, command: Command) -> None:
        """A command was refused: nothing may have changed."""
        changed = Picture(self._kernel).changed(self._picture)
        if changed:
            raise LawBrokenError(f"{type(command).__name__} was refused, but changed {'; '.join(changed)}")
        self._check_counts()

    def _observe(self) -> None:
        """Bring the record up to date with what effects do not say."""
        jobs = self._kernel.jobs
        if jobs.keys() != self._shadow.live.keys():
            odd = jobs.keys() ^ self._shadow.live.keys()
            raise LawBrokenError(f"live in the kernel or by the effects, not both: {sorted(odd)}")
        for job in self._shadow.live.values():
            entry = jobs[job.id]
            state = entry.state
            if job.is_slot:
                job.lanes = tuple(lane.name for lane in entry.lanes)  # less what the job around it has
            if job.begun and state not in BEGUN:
                self._shadow.retried(job)
            if job.begun != (state in BEGUN) or (job.begun and job.attempt != entry.attempt):
                raise LawBrokenError(f"{job.id} is {state} (attempt {entry.attempt}), the effects say otherwise")
            if state is JobState.QUEUED:
                if job.stage == -1:
                    job.since = self._now
                if job.stage != entry.stage:
                    job.arrived[entry.stage] = self._now
                    job.stage = entry.stage
                for stage in range(entry.stage + 1):
                    job.places.setdefault(stage, self._step)
                    job.arrived.setdefault(stage, self._now)
            else:
                job.stage = -1
                for stage in range(len(job.lanes)) if job.begun else (0,):
                    job.places.setdefault(stage, self._step)
                    job.arrived.setdefault(stage, self._now)

    # ---- counting ----

    def _check_counts(self) -> None:
        kernel, now = self._kernel, self._picture
        states = now.states
        counted = (states[JobState.RUNNING], states[JobState.QUEUED], states[JobState.SCHEDULED], states[JobState.LENT])
        said = (kernel.running, kernel.waiting, kernel.scheduled, kernel.lent)
        if counted != said:
            raise LawBrokenError(f"running, waiting, scheduled, lent: counted {counted}, the kernel says {said}")
        for lane in kernel.registry.lanes.values():
            counted_lane = (
                now.held.get(lane, 0),
                len(now.waiting.get(lane, ())),
                now.scheduled.get(lane, 0),
                now.lent.get(lane, 0),
                now.users.get(lane, 0) if not lane.configured else lane.users,
            )
            said_lane = (lane.held, lane.waiting, lane.scheduled, lane.lent, lane.users)
            if counted_lane != said_lane:
                raise LawBrokenError(
                    f"lane {lane.name}: held, waiting, scheduled, lent, users: counted {counted_lane}, not {said_lane}"
                )
        for pool in pools_of(kernel):
            held = now.held.get(pool, 0)
            extra = pool.held - held  # abandoned attempts sit on their threads
            if extra and not (pool is kernel.threads and extra > 0):
                raise LawBrokenError(f"pool {pool.name}: {held} hold a unit, the kernel says {pool.held}")

    # ---- caps ----

    def _check_caps(self, before: Picture, *, lends: bool) -> None:
        """Nothing starts while held ≥ cap, nothing is taken back while held ≥ max(cap, 1)."""
        for unit, holders in self._picture.holders.items():
            started, back = self._picture.new_holders(unit, before)
            held = max(unit.held, len(holders))
            if started and held > unit.cap:
                raise LawBrokenError(f"{unit.name}: {started[0].id} started, and {held} hold what {unit.cap} may")
            if back and held > max(unit.cap, 1):
                raise LawBrokenError(f"{unit.name}: {back[0].id} took back, and {held} hold what {unit.cap} may")
            if started and isinstance(unit, Lane) and unit.paused:
                raise LawBrokenError(f"{unit.name}: {started[0].id} started although the lane is paused")
            # What was lent may come back within the same command, into what is reserved for others.
            if started and not back and not lends and isinstance(unit, Pool) and unit.reserve:
                self._check_reserve(unit, started)

    def _check_reserve(self, pool: Pool, started: list[Entry]) -> None:
        """What is reserved for a lane cannot be borrowed by another."""
        for entry in started:
            if len(entry.lanes) > 1 or entry.is_slot:
                continue
            name = entry.lanes[0].name
            taken = 0
            for used in self._used(pool):
                kept = sum(max(0, most - used.get(other, 0)) for other, most in pool.reserve.items() if other != name)
                taken += used[name] > pool.reserve.get(name, 0) and pool.cap - pool.held < kept
            if taken == len(self._used(pool)):
                raise LawBrokenError(f"{pool.name}: {entry.id} of {name} took a unit that is reserved for others")

    def _used(self, pool: Pool) -> tuple[dict[str, int], dict[str, int]]:
        """How much of its reservation each lane uses: the units that its jobs hold, or the jobs that run in it.

        The two differ only for a slot inside a job of another lane of the group, which needs no unit of its own. The
        documentation does not say which counts there, so only what both forbid is forbidden.
        """
        units: dict[str, int] = {}
        runs: dict[str, int] = {}
        for entry in self._picture.holders.get(pool, {}).values():
            for lane in entry.lanes:
                units[lane.name] = units.get(lane.name, 0) + 1
        for unit, holders in self._picture.holders.items():
            if isinstance(unit, Lane):
                runs[unit.name] = sum(1 for entry in holders.values() if entry.state in BEGUN)
        return units, runs

    def check_busy(self, nodes: Iterable[JobId]) -> None:
        """Whoever runs, with no wait outstanding and none given up, holds all it needs."""
        for job_id in nodes:
            entry = self._kernel.jobs[job_id]
            if entry.state is not JobState.RUNNING:
                raise LawBrokenError(f"{job_id} waits for nothing but is {entry.state}")
            job = self._shadow.jobs[job_id]
            missing = self._needs(job) - {unit.name for unit in entry.units}
            if missing and not job.is_slot:
                raise LawBrokenError(f"{job_id} runs without {sorted(missing)}")

    def check_lent(self, nodes: Iterable[JobId]) -> None:
        """Whoever waits for a job has lent everything."""
        for job_id in nodes:
            entry = self._kernel.jobs[job_id]
            if entry.state is not JobState.LENT:
                raise LawBrokenError(f"{job_id} waits for a job but is {entry.state}")

    def _needs(self, job: ShadowJob) -> set[str]:
        """The names of everything a job has to hold while it runs."""
        needs = set(job.lanes)
        for name in job.lanes:
            needs.update(self._shared_by(name))
        if job.threaded:
            needs.add("threads")
        return needs

    def _shared_by(self, name: str) -> list[str]:
        if name.rpartition("/")[2] == "control":
            return []
        group = self._world.group_of(name)
        shared = [group] if group is not None else []
        return shared if self._world.max_concurrent is None else [*shared, "max_concurrent"]

    def _check_exclusive(self) -> None:
        """An exclusive lane has one owner that has not lent it, and is lent to descendants only."""
        for lane in self._kernel.registry.lanes.values():
            if not self._world.config_of(lane.name).exclusive:
                continue
            if self._picture.held.get(lane, 0) > 1:
                names = [entry.id for entry in self._picture.holders[lane].values()]
                raise LawBrokenError(f"exclusive lane {lane.name} is with {', '.join(names)} at once")
            owners = list(lane.stack or ())
            for place, owner in enumerate(owners):
                for elder in owners[:place]:
                    if elder.state is not JobState.LENT:
                        raise LawBrokenError(f"exclusive lane {lane.name}: with {owner.id}, never lent by {elder.id}")
                    if not self._shadow.jobs[owner.id].descends_from(elder.id):
                        raise LawBrokenError(f"exclusive lane {lane.name}: {owner.id} does not descend from {elder.id}")

    # ---- rate ----

    def _check_tokens(self, started: list[ShadowJob]) -> None:
        for job in started:
            held = {unit.name for unit in self._kernel.jobs[job.id].units}
            for name in job.lanes:
                if name not in held:
                    continue  # a slot inside a job that has the lane already
                if self._shadow.closed.get(name, 0) > self._now:
                    raise LawBrokenError(f"{job.id} started although lane {name} is closed")
                tokens = self._tokens(name)
                if tokens is not None and not tokens.take(self._now):
                    raise LawBrokenError(f"{job.id} started without a token of lane {name}")

    def _tokens(self, name: str) -> Tokens | None:
        limit = self._world.config_of(name).rate_limit
        if limit is None:
            return None
        return self._shadow.tokens.setdefault(name, Tokens(limit))

    # ---- order ----

    def _check_order(self, before: Picture) -> None:
        """Whoever still waits in a lane was not to go before those that left it to start."""
        for lane, waiting in self._picture.waiting.items():
            config = self._world.config_of(lane.name)
            was_waiting = before.waiting.get(lane, {})
            for entry in self._picture.new_holders(lane, before)[0]:
                job = self._shadow.jobs[entry.id]
                if config.exclusive and job.up is not None:
                    continue  # heirs go by descent
                for key, other in waiting.items():
                    if key not in was_waiting or other.aside is not None or key in before.aside:
                        continue
                    if not _may_be_set_aside(other):
                        self._compare(self._shadow.jobs[other.id], job, lane, before)

    def _compare(self, rival: ShadowJob, job: ShadowJob, lane: Lane, before: Picture) -> None:
        config = self._world.config_of(lane.name)
        now, after = self._now, self._picture
        awaited = [(one.id in before.wanted) + (one.id in after.wanted) for one in (rival, job)]
        if awaited == [0, 0]:
            first = goes_first(rival, job, lane.name, config, now)
        elif awaited == [2, 0]:
            first = level_of(rival, lane.name, config, now) >= level_of(job, lane.name, config, now)
        else:
            first = level_of(rival, lane.name, config, now) > level_of(job, lane.name, config, now)
        if first:
            levels = [
                f"{one.id} level {level_of(one, lane.name, config, now)} place {place_in(one, lane.name)}"
                for one in (job, rival)
            ]
            raise LawBrokenError(f"lane {lane.name}: {' started before '.join(levels)} (awaited: {awaited[::-1]})")

    # ---- lost wake-ups ----

    def _check_wake_ups(self) -> None:
        """Nothing that could start is left waiting, and nothing that could be taken back is left lent."""
        picture = self._picture
        for lane in picture.waiting:
            jobs = self._heads(lane) if self._is_steady(lane) else self._all_able(lane)
            if jobs and all(self._blocked(entry) is None for entry in jobs):
                raise LawBrokenError(f"lost wake-up in lane {lane.name}: nothing stops {self._why(jobs[0])}")
        for entry in picture.aside.values():
            if self._blocked(entry) is None:
                raise LawBrokenError(f"lost wake-up, set aside: nothing stops {self._why(entry)}")
        resources: list[Resource] = [*self._kernel.registry.lanes.values(), *pools_of(self._kernel)]
        for resource in resources:
            for taker in resource.takers:
                if all(self._may_take(unit, taker) for unit in taker.needs):
                    names = ", ".join(node.id for node in taker.nodes)
                    raise LawBrokenError(f"lost wake-up: {names} could take back what was lent")

    def _why(self, entry: Entry) -> str:
        """What the kernel itself has to say about a job."""
        return str(explain(self._kernel, entry.id, now=self._now, wall_ms=0))

    def _may_take(self, unit: Resource, taker: Return) -> bool:
        """Whether a taker may have a unit back: first come, first served among those that have come so far."""
        if isinstance(unit, Lane) and unit.stack is not None:
            return bool(unit.stack) and unit.stack[-1] in taker.nodes
        before = list(unit.takers)[: list(unit.takers).index(taker)]
        free = max(unit.cap, 1) - unit.held
        return free > 0 and free > sum(self._reaches(other, unit) for other in before)

    def _reaches(self, taker: Return, unit: Resource) -> bool:
        """Whether everything that a taker needs before this unit is there for it."""
        needs = list(taker.needs)
        return all(self._may_take(earlier, taker) for earlier in needs[: needs.index(unit)])

    def _kept(self, unit: Resource) -> int:
        """How many units are kept for takers."""
        return sum(self._reaches(taker, unit) for taker in unit.takers)

    def _heads(self, lane: Lane) -> list[Entry]:
        """Who may be next in a lane."""
        entries = {entry.id: entry for entry in self._picture.waiting[lane].values() if entry.aside is None}
        if lane.stack:
            entries = {job_id: entry for job_id, entry in entries.items() if self._inherits(entry, lane)}
        if not entries:
            return []
        jobs = [self._shadow.jobs[job_id] for job_id in entries]
        config = self._world.config_of(lane.name)
        found = heads(jobs, lane.name, config, set(self._picture.wanted), self._now)
        return [entries[job.id] for job in found]

    def _is_steady(self, lane: Lane) -> bool:
        """Whether time alone cannot make another job the head; the kernel looks only when something happens."""
        config = self._world.config_of(lane.name)
        if config.boost is not None:
            return False
        levels = {entry.spec.priority for entry in self._picture.waiting[lane].values()}
        return config.ageing_ms is None or len(levels) == 1

    def _all_able(self, lane: Lane) -> list[Entry]:
        """All that wait in a lane and may have it at all."""
        entries = [entry for entry in self._picture.waiting[lane].values() if entry.aside is None]
        return [entry for entry in entries if not lane.stack or self._inherits(entry, lane)]

    def _inherits(self, entry: Entry, lane: Lane) -> bool:
        """Whether every owner of an exclusive lane has lent it to this job, and none takes it back."""
        assert lane.stack is not None
        job = self._shadow.jobs[entry.id]
        taking = any(lane.stack[-1] in taker.nodes for taker in lane.takers)
        return not taking and all(o.state is JobState.LENT and job.descends_from(o.id) for o in lane.stack)

    def _ready_heads(self, lane: Lane) -> list[Entry]:
        """The possible heads of a lane that has all it needs of its own; none otherwise."""
        jobs = self._heads(lane)
        return jobs if jobs and all(self._blocked_itself(entry) is None for entry in jobs) else []

    def _blocked(self, entry: Entry) -> str | None:
        """Why a waiting job cannot start at this moment; None when it can."""
        own = self._blocked_itself(entry)
        if own is not None or entry.stage + 1 < len(entry.lanes):
            return own
        around = self._around(entry)
        for lane in entry.lanes:
            for pool in lane.pools:
                if pool not in around and not self._has_room(pool, lane.name):
                    return f"{pool.name} is full"
        threads = self._kernel.threads
        if entry.threaded and not self._has_room(threads, ""):
            return "no thread is free"
        return None

    def _blocked_itself(self, entry: Entry) -> str | None:
        """What its own lanes have against it."""
        lane = entry.lanes[entry.stage]
        reserved = self._kept(lane) if lane.stack is None else 0
        if lane.paused or lane.held + reserved >= lane.cap:
            return f"lane {lane.name} is paused or full"
        if lane.stack and not self._inherits(entry, lane):
            return f"lane {lane.name} is with others"
        if entry.stage + 1 < len(entry.lanes):
            return None
        for each in entry.lanes:
            tokens = self._tokens(each.name)
            if self._shadow.closed.get(each.name, 0) > self._now or (
                tokens is not None and tokens.level(self._now) < 1
            ):
                return f"lane {each.name} has no token"
        return None

    def _around(self, entry: Entry) -> set[Resource]:
        """What the live nodes around a slot have."""
        taken: set[Resource] = set()
        job = self._shadow.jobs[entry.id]
        while job.is_slot and job.up is not None and job.up.final is None and job.up.attempt == job.up_attempt:
            job = job.up
            if not job.begun:
                break
            taken.update(self._kernel.jobs[job.id].units)
        return taken

    def _has_room(self, pool: Pool, name: str) -> bool:
        free = pool.cap - pool.held - self._kept(pool)
        if not pool.reserve or free <= 0:
            return free > 0
        return all(self._has_free(pool, name, free, used) for used in self._used(pool))

    @staticmethod
    def _has_free(pool: Pool, name: str, free: int, used: dict[str, int]) -> bool:
        if used.get(name, 0) < pool.reserve.get(name, 0):
            return True
        return free > sum(max(0, most - used.get(other, 0)) for other, most in pool.reserve.items() if other != name)

    # ---- the end ----

    def check_quiet(self) -> None:
        """Everything has ended: nothing is held, nobody waits for anything, nothing will ever be due."""
        kernel = self._kernel
        left = [
            lane.name for lane in kernel.registry.lanes.values() if lane.held or lane.takers or lane.stack or lane.kin
        ]
        left += [pool.name for pool in pools_of(kernel) if pool is not kernel.threads and (pool.held or pool.takers)]
        if left:
            raise LawBrokenError(f"all jobs have ended, but something is still held in {', '.join(left)}")
        if self._shadow.waits:
            raise LawBrokenError(f"all jobs have ended, but waits {sorted(self._shadow.waits)} never returned")
        forgotten = [name for name in kernel.registry.lanes if name not in self._world.lanes]
        stay = [name for name in forgotten if not kernel.registry.lanes[name].configured]
        if stay:
            raise LawBrokenError(f"lanes made on the fly are idle and not forgotten: {', '.join(stay)}")
        if kernel.next_due() is not None:
            raise LawBrokenError(f"an idle kernel has something due at {kernel.next_due()}")


def _may_be_set_aside(entry: Entry) -> bool:
    """Whether a job needs something of its earlier lanes: it may be passed, even be set aside for a moment."""
    last = entry.lanes[-1]
    return any(
        lane.bucket is not None or lane.closed_until is not None or any(pool not in last.pools for pool in lane.pools)
        for lane in entry.lanes[: entry.stage]
    )
