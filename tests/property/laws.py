"""The laws of the behaviour page as checks over a `World`: run after every command, and once at the end."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

from laneway.kernel.jobs import Entry
from laneway.kernel.lanes import Lane, Pool, Resource
from laneway.kernel.scheduler import Kernel
from laneway.records import JobId, JobState
from tests.property.worlds import BEGUN, Node, World

USER = 2


class Laws:
    """Checks a world after each command; remembers what was held before it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.before: Counter[str] = Counter()
        self.tokens: dict[str, Fraction] = {}
        self.at = 0
        self.stages: dict[JobId, int] = {}
        world.after.append(self.check)

    def check(self) -> None:
        """Everything that holds between two commands."""
        held = recount_held(self.world)
        check_books(self.world, held)
        self.check_caps(held)
        check_gates(self.world)
        self.check_tokens()
        check_exclusive(self.world)
        if not self.world.late:
            nothing_startable(self.world)
        if self.world.log[-1][0] == "tick":
            due = self.world.kernel.next_due()
            assert due is None or due > self.world.now, "a tick left something that was due"
        self.before = held
        self.stages = stages(self.world)

    def check_caps(self, held: Counter[str]) -> None:
        """Nothing starts while held >= cap; nothing is taken back while held >= max(cap, 1)."""
        started: set[str] = set()
        for job_id in self.world.started:
            node = self.world.nodes.get(job_id)
            if node is not None:
                started |= node.units - set(node.lanes[: self.stages.get(job_id, 0)])
        for job_id, stage in stages(self.world).items():
            started |= set(self.world.nodes[job_id].lanes[self.stages.get(job_id, 0) : stage])
        returned: set[str] = set()
        for job_id in self.world.took_back:
            node = self.world.nodes.get(job_id)
            returned |= node.units if node is not None else set()
        for name, resource in resources(self.world.kernel).items():
            if name in started:
                most = resource.cap
            elif name in returned:
                most = max(resource.cap, 1)
            else:
                most = self.before[name]
            assert held[name] <= max(most, 0), f"{name}: {held[name]} held, cap {resource.cap}"
            if name in returned and name in started:
                assert resource.cap > 0, f"{name}: something started at width 0"
        if not self.world.took_back:
            self.check_reservations(started, held)

    def check_tokens(self) -> None:
        """Every start takes a token from each of its lanes that has a rate, and there was one."""
        for name, config in self.world.setup.lanes.items():
            limit = config.rate_limit
            if limit is None:
                continue
            more = Fraction((self.world.now - self.at) * limit.count, limit.window_ms)
            left = min(Fraction(limit.count), self.tokens.get(name, Fraction(limit.count)) + more)
            nodes = [self.world.nodes[job_id] for job_id in self.world.started if job_id in self.world.nodes]
            self.tokens[name] = left - sum(1 for node in nodes if name in node.units)
            assert self.tokens[name] >= 0, f"{name}: a start without a token"
        self.at = self.world.now

    def check_reservations(self, started: set[str], held: Counter[str]) -> None:
        """A lane without a reservation never starts on what is reserved for others."""
        for group_name, group in self.world.setup.groups.items():
            lanes = [self.world.kernel.registry.lanes.get(name) for name in started if not name.startswith("pool:")]
            borrowers = [
                lane
                for lane in lanes
                if lane is not None and lane.name not in group.reserve and any(p.name == group_name for p in lane.pools)
            ]
            running_now = {
                n for job in self.world.started if job in self.world.nodes for n in self.world.nodes[job].units
            }
            if any(lane.name in running_now for lane in borrowers):
                used = units_used(self.world, group_name)
                unmet = sum(max(0, amount - used[name]) for name, amount in group.reserve.items())
                assert group.cap - held[f"pool:{group_name}"] >= unmet, f"{group_name}: a reservation was borrowed"


def stages(world: World) -> dict[JobId, int]:
    """How many lanes each waiting job has passed."""
    return {job_id: world.kernel.jobs[job_id].stage for job_id, n in world.nodes.items() if n.state is JobState.QUEUED}


def resources(kernel: Kernel) -> dict[str, Resource]:
    """Everything with a cap, by the names that the books use."""
    found: dict[str, Resource] = dict(kernel.registry.lanes)
    for lane in kernel.registry.lanes.values():
        for pool in lane.pools:
            found[f"pool:{pool.name}"] = pool
    found["pool:threads"] = kernel.threads
    return found


def units_used(world: World, group: str) -> Counter[str]:
    """How many units of a group the jobs of each lane have; a job on its way through a lane has none yet."""
    used: Counter[str] = Counter()
    for node in world.nodes.values():
        if node.state is JobState.RUNNING and f"pool:{group}" in node.units:
            used.update(node.lanes)
    return used


def recount_held(world: World) -> Counter[str]:
    """What is held, from the books alone (and how many lanes a waiting job has passed, which nobody is told)."""
    held: Counter[str] = Counter()
    passed = stages(world)
    for job_id, node in world.nodes.items():
        if node.state is JobState.RUNNING:
            held.update(node.units)
        elif node.state is JobState.LENT:
            held.update(node.units & {"pool:threads"})
        elif node.state is JobState.QUEUED:
            held.update(node.lanes[: passed[job_id]])
    held["pool:threads"] += len(world.zombies)
    return held


def check_books(world: World, held: Counter[str]) -> None:
    """The counters of the kernel equal what its effects have told."""
    kernel = world.kernel
    assert {job_id: entry.state for job_id, entry in kernel.jobs.items()} == {
        job_id: node.state for job_id, node in world.nodes.items()
    }
    states = Counter(node.state for node in world.nodes.values())
    jobs = Counter(node.state for node in world.nodes.values() if not node.is_part)  # a slot in a job is part of it
    counted = {
        "running": (kernel.running, jobs[JobState.RUNNING]),
        "waiting": (kernel.waiting, states[JobState.QUEUED]),
        "scheduled": (kernel.scheduled, states[JobState.SCHEDULED]),
        "lent": (kernel.lent, jobs[JobState.LENT]),
    }
    assert all(one == other for one, other in counted.values()), f"kernel, books: {counted}"
    passed = stages(world)
    for name, resource in resources(kernel).items():
        assert resource.held == held[name], f"{name}: {resource.held} held, by the books {held[name]}"
        if isinstance(resource, Lane):
            nodes = world.nodes.values()
            here = [n for n in nodes if n.state is JobState.QUEUED and n.lanes[passed[n.id]] == name]
            assert resource.waiting == len(here)
            assert resource.scheduled == sum(1 for n in nodes if n.state is JobState.SCHEDULED and name in n.lanes)
            lent = [n for n in nodes if n.state is JobState.LENT and name in n.units]
            assert resource.lent == len(lent), f"{name}: {resource.lent} lent, by the books {len(lent)}"
    for name in held:
        assert held[name] == 0 or name in resources(kernel), f"{name} is held and forgotten"


def check_gates(world: World) -> None:
    """No start in a paused or closed lane or one of width 0."""
    for job_id in world.started:
        node = world.nodes.get(job_id)
        if node is None:
            continue
        for name in node.lanes:
            lane = world.kernel.registry.lanes[name]
            if name not in node.units:
                continue
            assert lane.closed_until is None or lane.closed_until <= world.now, f"{job_id} started, {name} is closed"
            if name == node.lanes[-1]:
                assert not lane.paused, f"{job_id} started in paused {name}"


def check_exclusive(world: World) -> None:
    """An exclusive lane has at most one owner that has not lent it, and lends to descendants only."""
    passed = stages(world)
    for name, lane in world.kernel.registry.lanes.items():
        if not lane.config.exclusive:
            continue
        active = []
        for node in world.nodes.values():
            waits_on = node.state is JobState.QUEUED and name in node.lanes[: passed[node.id]]
            if waits_on or (node.state is JobState.RUNNING and name in node.units):
                active.append(node)
        assert len(active) <= 1, f"{name} is with {[node.id for node in active]}"
        for node in active:
            for lender in owners(world, name):
                assert lender is node or descends(node, lender), f"{name}: {node.id} has it of {lender.id}"


def owners(world: World, name: str) -> list[Node]:
    """Those that hold a lane or have lent it."""
    passed = stages(world)
    return [
        node
        for node in world.nodes.values()
        if (node.state in BEGUN and name in node.units)
        or (node.state is JobState.QUEUED and name in node.lanes[: passed[node.id]])
    ]


def descends(node: Node, ancestor: Node) -> bool:
    """Whether one was submitted from inside the other, directly or not."""
    up = node.up
    while up is not None and up is not ancestor:
        up = up.up
    return up is ancestor


def check_counters(world: World) -> None:
    """What the lanes have counted since the start, forgotten ones included, equals what was told."""
    registry = world.kernel.registry
    found: Counter[tuple[str, str]] = Counter()
    kept = [(name, lane.counters) for name, lane in registry.lanes.items()]
    for name, counters in [*kept, *registry.retired.items()]:
        family = "session:*" if name.startswith("session:") else name
        for what in (
            "submitted",
            "completed",
            "failed",
            "cancelled",
            "timed_out",
            "retried",
            "dead_lettered",
            "abandoned",
        ):
            found[family, what] += getattr(counters, what)
        found[family, "ran"] += counters.run.total
    for key in found.keys() | world.tally.keys():
        if key[1] != "ran":
            assert found[key] == world.tally[key], f"{key}: counted {found[key]}, told {world.tally[key]}"
    assert sorted(world.letters) == sorted(j for j, state in world.final.items() if state is JobState.DEAD)
    attempts = sum(count for (_, what), count in found.items() if what == "ran")
    assert attempts == world.counts.get("queue.command.started", 0)


# ---- no lost wake-up ------------------------------------------------------------------------------------------


def nothing_startable(world: World) -> None:
    """No lane has a free slot and only jobs at its front that nothing keeps from starting."""
    kernel, now = world.kernel, world.now
    for name, lane in kernel.registry.lanes.items():
        if lane.paused or lane.held + len(lane.takers) >= lane.cap or lane.limit_wait_ms(now):
            continue
        here = [e for e in kernel.jobs.values() if e.state is JobState.QUEUED and e.lanes[e.stage] is lane]
        if lane.config.exclusive:
            having = owners(world, name)
            here = [e for e in here if all(descends(world.nodes[e.id], owner) for owner in having)]
        here = [entry for entry in here if not _waits_for_passed_lane(world, entry)]
        if not here:
            continue
        top = max(_level(entry, lane, now) for entry in here)
        front = [entry for entry in here if _level(entry, lane, now) == top]
        front = [entry for entry in front if entry.wanted] or front
        stuck = [entry.id for entry in front if _could_start(world, entry)]
        assert len(stuck) < len(front), f"lane {name}: {stuck} could start and nobody starts them"


def _level(entry: Entry, lane: Lane, now: int) -> int:
    level = int(entry.spec.priority)
    ageing, boost = lane.config.ageing_ms, lane.config.boost
    aged = 0 if ageing is None else min(USER - level, (now - entry.queued_at) // ageing)
    deadline = entry.spec.deadline_ms
    if boost is not None and deadline is None:
        deadline = boost.deadline_ms
    if boost is None or deadline is None:
        return level + aged
    passed = now - entry.submitted_at
    steps = [s.levels for s in boost.steps if passed >= deadline - deadline * s.remaining_percent // 100]
    return level + aged + max(steps, default=0)


def _waits_for_passed_lane(world: World, entry: Entry) -> bool:
    """It is at its last lane and an earlier one has no token, or no room in its group."""
    if entry.stage + 1 < len(entry.lanes):
        return False
    last = entry.lanes[-1]
    own = {*last.pools, world.kernel.threads}
    if not all(_has_room(world, pool, entry) for pool in _pools_for(world, entry) & own):
        return False  # what its last lane shares holds it up as well, and with it those behind it
    return any(
        lane.limit_wait_ms(world.now) or any(p not in last.pools and not _has_room(world, p, entry) for p in lane.pools)
        for lane in entry.lanes[:-1]
    )


def _has_room(world: World, pool: Pool, entry: Entry) -> bool:
    """Whether a job may have a unit: what is reserved for one of its lanes is for it too."""
    free = pool.cap - pool.held - len(pool.takers)
    if free <= 0 or not pool.reserve:
        return free > 0
    used = units_used(world, pool.name)
    mine = {lane.name for lane in entry.lanes}
    if any(used[name] < amount for name, amount in pool.reserve.items() if name in mine):
        return True
    return free > sum(max(0, amount - used[name]) for name, amount in pool.reserve.items() if name not in mine)


def _could_start(world: World, entry: Entry) -> bool:
    if entry.stage + 1 < len(entry.lanes):
        return True
    if any(lane.limit_wait_ms(world.now) for lane in entry.lanes):
        return False
    return all(_has_room(world, pool, entry) for pool in _pools_for(world, entry))


def _pools_for(world: World, entry: Entry) -> set[Pool]:
    """The caps that a job needs a unit of: not those that the job around a slot has."""
    around = {name for one in _chain(world.nodes[entry.id]) for name in one.units}
    pools = {pool for lane in entry.lanes for pool in lane.pools if f"pool:{pool.name}" not in around}
    if entry.threaded:
        pools.add(world.kernel.threads)
    return pools


def _chain(node: Node) -> list[Node]:
    found = []
    while node.inside and node.up is not None:
        node = node.up
        found.append(node)
    return found


# ---- everything ends --------------------------------------------------------------------------------------------


def wind_down(world: World) -> None:
    """Open what is shut, let running jobs finish and time pass: then everything ends."""
    world.do("reopen")
    for name, lane in list(world.kernel.registry.lanes.items()):
        if lane.paused:
            world.do("resume", name)
        if lane.cap == 0:
            world.do("resize", name, 1)
        if lane.closed_until is not None:
            world.do("reopen_lane", name)
    for _ in range(2000):
        ready = next((node for node in world.nodes.values() if world.can_finish(node)), None)
        if ready is not None:
            world.finish(ready)
            continue
        due = world.kernel.next_due()
        if due is not None:
            world.pass_time(max(0, due - world.now))
        elif world.zombies:
            world.return_thread(min(world.zombies))
        else:
            break
    left = {node.id: str(node.state) for node in world.nodes.values()}
    assert not left, f"deadlock: {left} stay for ever"
    for note in world.waits.values():
        raise AssertionError(f"the wait of {note.node.id} for {note.target.id} never returned")
    check_counters(world)
    kernel = world.kernel
    assert (kernel.running, kernel.waiting, kernel.scheduled, kernel.lent) == (0, 0, 0, 0)
    for name, resource in resources(kernel).items():
        assert resource.held == 0, f"{name} is still held"
        assert not resource.takers, f"{name} still has takers"
