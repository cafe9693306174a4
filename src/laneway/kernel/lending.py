"""Lending: a job that waits for another job does not sit on its slots.

While job J waits for job K of the same kernel, J lends everything it holds; when its last wait is over it takes
all of it back at once, before anything that waits to start, and only then does the wait return. Slots taken inside
a job (`slot()` blocks) are nodes of their own: a wait lends the node it was made in and the nodes around it, up to
the job, and never what another task of the job holds in a slot of its own. A slot inside a job asks only for what
the nodes around it do not have, so a job counts once in each lane and cap however deep its slots are.

Taking back is all or nothing (`Return`). A node that held one lane while waiting for the next could close a circle
with a neighbour that does it the other way round; all-or-nothing with first come first served cannot.

An exclusive lane is lent to descendants only. Its owners form a stack; the newest owner has it or has lent it. A
wait that could never end, because what it waits for waits (through exclusive lanes or other waits) for the waiting
job itself, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Protocol

from laneway.errors import LaneCycleError
from laneway.events import JobLent, JobTookBack
from laneway.kernel.jobs import Entry
from laneway.kernel.lanes import Lane, Pool, Resource, descends, parent_of
from laneway.kernel.protocol import ResumeWait
from laneway.records import JobState


class Wait:
    """One node waits for one job (or for a slot to be granted); outstanding until it returns."""

    __slots__ = ("chain", "id", "pending", "target")

    def __init__(self, wait_id: int, chain: list[Entry], target: Entry) -> None:
        self.id = wait_id
        self.chain = chain  # the node that waits and those around it, up to the job
        self.target: Entry | None = target  # None when it has ended
        self.pending: Return | None = None  # what is to be taken back before it returns


class Return:
    """Nodes that take back what they have lent, all at once; then `wait` (if any) returns."""

    __slots__ = ("needs", "nodes", "wait")

    def __init__(self, wait: Wait | None) -> None:
        self.nodes: list[Entry] = []
        self.wait = wait
        self.needs: dict[Resource, None] = {}

    def reaches(self, resource: Resource) -> bool:
        """Whether everything that comes before this resource could be had now."""
        for unit in self.needs:
            if unit is resource:
                return True
            if not unit.can_take(self):
                return False
        return False

    def has(self, entry: Entry) -> bool:
        """Whether this return is for that node too."""
        return entry in self.nodes


class Bereavement:
    """Something that has to wait until descendants that have an exclusive lane have ended."""

    __slots__ = ("left", "then")

    def __init__(self, left: int, then: Callable[[int], None]) -> None:
        self.left = left
        self.then = then


class Host(Protocol):
    """What lending needs of the kernel around it."""

    threads: Pool

    def emit(self, effect: ResumeWait) -> None:
        """Hand an effect to the engine."""

    def announce_lending(self, entry: Entry, event: type[JobLent] | type[JobTookBack]) -> None:
        """Count a node as lent or as running again, and say so."""

    def count_alone(self, slot: Entry) -> None:
        """A slot that was part of a job stands alone: count it."""

    def mark(self, resource: Resource) -> None:
        """Look at this resource again before the command is over: it may have room."""


class Lending:
    """Waits, what is lent for them, and who takes back when."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self.waits: dict[int, Wait] = {}
        self._by_root: dict[Entry, dict[int, Wait]] = {}  # whose waits they are

    # ---- waits ----

    def begin(self, wait_id: int, node: Entry, target: Entry) -> None:
        """A node waits for a job: refuse a circle, lend, let the awaited job go first in its level."""
        chain = list(_chain(node))
        self._refuse_cycle(node, chain[-1], target)
        wait = Wait(wait_id, chain, target)
        self.waits[wait_id] = wait
        self._by_root.setdefault(chain[-1], {})[wait_id] = wait
        if target.waiters is None:
            target.waiters = []
        target.waiters.append(wait)
        target.simple = False
        for entry in chain:
            entry.simple = False
            entry.waits += 1
            for pending in list(entry.returns or ()):
                self._drop(pending, entry)
            if not entry.lent:
                self._lend(entry)
        target.wanted += 1
        if target.wanted == 1 and target.spot is not None:
            self._prefer(target)

    def settle(self, target: Entry) -> None:
        """What these waits waited for has ended, or the slot is granted: take back, then return."""
        waiters, target.waiters = target.waiters, None
        target.wanted = 0
        granted = target if not target.state.is_final else None
        for wait in waiters or ():
            wait.target = None
            wait.pending = pending = Return(wait)
            for entry in wait.chain:
                # A node that has other waits outstanding stays lent: the last of them takes it back.
                if entry.waits == 1 and entry.lent and not entry.state.is_final:
                    self._add(pending, entry)
            if self.try_return(pending) or granted is None:
                continue
            # The slot is granted, but what was lent for it is not back: held meanwhile, it could close a circle.
            self._lend(granted)
            self._add(pending, granted)
            self.try_return(pending)

    def cancel(self, wait_id: int) -> Wait | None:
        """A wait is given up. None: it is over. Else the caller ends it by `give_up` once it may return."""
        wait = self.waits.get(wait_id)
        if wait is None:
            return None
        if wait.pending is not None:
            wait.pending.wait = None  # it takes back when it can; nobody waits for that any more
            self._return(wait)
            return None
        target, wait.target = wait.target, None
        if target is None:
            return None  # it was given up before, and waits for heirs to end
        if target.waiters is not None:
            target.waiters.remove(wait)
        target.wanted -= 1
        if target.wanted == 0 and target.spot is not None:
            self._prefer(target)
        return wait

    def give_up(self, wait: Wait) -> None:
        """A cancelled wait returns now; what was lent for it is taken back when it can be."""
        self._return(wait)

    def forget(self, entry: Entry) -> None:
        """An attempt (or a slot) has ended: nobody takes back for it, and waits it left behind lend nothing more."""
        entry.waits = 0
        entry.lent = False  # first of all: what follows must not take back for it
        for wait in self._by_root.pop(entry, {}).values():
            wait.chain = [node for node in wait.chain if node is not entry and not node.state.is_final]
            if wait.chain:
                self._by_root.setdefault(wait.chain[-1], {})[wait.id] = wait
        for pending in list(entry.returns or ()):
            self._drop(pending, entry)
        slots, entry.inner = entry.inner, None
        for slot in slots or ():
            self._rehang(slot, entry)

    def _return(self, wait: Wait) -> None:
        """A wait is over: tell the engine, and let its nodes go with the wait that is left, or back on their own."""
        del self.waits[wait.id]
        if wait.chain:
            mine = self._by_root[wait.chain[-1]]
            del mine[wait.id]
            if not mine:
                del self._by_root[wait.chain[-1]]
        self._host.emit(ResumeWait(wait.id))
        for entry in wait.chain:
            entry.waits -= 1
        for entry in wait.chain:
            if not entry.lent or entry.returns or entry.state.is_final:
                continue
            if entry.waits == 0:
                pending = Return(None)
                self._add(pending, entry)
                self.try_return(pending)
            elif entry.waits == 1:
                others = self._by_root.get(wait.chain[-1], {}).values()
                left = next((other for other in others if entry in other.chain), None)
                if left is not None and left.pending is not None:
                    self._add(left.pending, entry)
                    self.try_return(left.pending)

    def _prefer(self, target: Entry) -> None:
        lane = target.lanes[target.stage]
        lane.queue.prefer(target)
        self._host.mark(lane)  # it may have another head now

    def _rehang(self, slot: Entry, entry: Entry) -> None:
        """The node around a slot has ended before it: the slot is part of what is around that now, or stands alone."""
        slot.up = parent_of(entry)
        if entry.inside and slot.up is not None:
            if slot.up.inner is None:
                slot.up.inner = []
            slot.up.inner.append(slot)
        else:
            slot.inside = False
            self._host.count_alone(slot)

    # ---- lending and taking back ----

    def _lend(self, entry: Entry) -> None:
        entry.lent = True
        for unit in lendable(entry, self._host.threads):
            unit.come_back(entry)
            self._host.mark(unit)
        self._host.announce_lending(entry, JobLent)

    def _add(self, pending: Return, entry: Entry) -> None:
        """One more node takes back with this return."""
        pending.nodes.append(entry)
        if entry.returns is None:
            entry.returns = []
        entry.returns.append(pending)
        for unit in lendable(entry, self._host.threads):
            pending.needs[unit] = None
            unit.takers[pending] = None
        # One order for all: exclusive lanes, lanes in the order of their configuration, then the caps they share.
        pending.needs = dict.fromkeys(sorted(pending.needs, key=_taking_order))

    def _drop(self, pending: Return, entry: Entry) -> None:
        """One node is no longer part of a return."""
        pending.nodes.remove(entry)
        assert entry.returns is not None
        entry.returns.remove(pending)
        still = {unit for node in pending.nodes for unit in lendable(node, self._host.threads)}
        for unit in [unit for unit in pending.needs if unit not in still]:
            del pending.needs[unit]
            del unit.takers[pending]
            self._host.mark(unit)
        self.try_return(pending)

    def try_return(self, pending: Return) -> bool:
        """Take everything back if all of it can be had at this moment."""
        if not all(unit.can_take(pending) for unit in pending.needs):
            return False
        for unit in pending.needs:
            del unit.takers[pending]
        nodes, pending.nodes = pending.nodes, []
        pending.needs = {}
        for entry in nodes:
            assert entry.returns is not None
            entry.returns.remove(pending)
            for unit in lendable(entry, self._host.threads):
                unit.go_out(entry)
                if isinstance(unit, Pool) and unit.reserve:
                    self._host.mark(unit)  # a reservation that is used again is kept for nobody else any more
            entry.lent = False
            self._host.announce_lending(entry, JobTookBack)
        wait, pending.wait = pending.wait, None
        if wait is not None:
            self._return(wait)
        return True

    def serve_takers(self, resource: Resource) -> None:
        """A unit may have come free: let those that lent one have it back, first come first served."""
        if isinstance(resource, Lane) and resource.stack is not None:
            candidates = [taker for taker in resource.takers if resource.can_take(taker)]
        else:
            free = max(0, max(resource.cap, 1) - resource.held)
            candidates = list(islice((taker for taker in resource.takers if taker.reaches(resource)), free))
        for pending in candidates:
            if pending in resource.takers:
                self.try_return(pending)

    # ---- circles ----

    def _refuse_cycle(self, node: Entry, root: Entry, target: Entry) -> None:
        path = self._path(target, root, set())
        if path is not None:
            raise LaneCycleError(job_id=node.id, target_id=target.id, path=(node.id, *path))

    def _path(self, entry: Entry, goal: Entry, seen: set[Entry]) -> tuple[str, ...] | None:
        """How `entry` comes to wait for `goal`, if it does."""
        stack: list[tuple[Entry, tuple[str, ...]]] = [(entry, (entry.id,))]
        while stack:
            current, path = stack.pop()
            begun = current.state in (JobState.RUNNING, JobState.LENT)
            if begun:
                current = root_of(current)
            if current is goal:
                return path
            if current in seen:
                continue
            seen.add(current)
            following = self._held_up_by(current) if begun else _owners_ahead(current)
            stack.extend((after, (*path, after.id)) for after in following)
        return None

    def _held_up_by(self, root: Entry) -> Iterator[Entry]:
        """What a job that has begun waits for: its waits, and those that have an exclusive lane it lent."""
        for wait in self._by_root.get(root, {}).values():
            if wait.target is not None:
                yield wait.target
        yield from heirs([root, *slots_inside(root)])


def _owners_ahead(entry: Entry) -> Iterator[Entry]:
    """What a job that has not begun waits for: the owners of its exclusive lane that are not its ancestors."""
    for owner in entry.lanes[entry.stage].stack or ():
        if not descends(entry, owner):
            yield owner


def _taking_order(unit: Resource) -> tuple[int, tuple[int, str]]:
    if isinstance(unit, Lane):
        return (0 if unit.stack is not None else 1), unit.order
    assert isinstance(unit, Pool)
    return 2 + unit.rank, (0, unit.name)


def slots_inside(entry: Entry) -> list[Entry]:
    """The slots inside a job, and those inside them."""
    found = []
    for slot in entry.inner or ():
        found.append(slot)
        found.extend(slots_inside(slot))
    return found


def lendable(entry: Entry, threads: Pool) -> list[Resource]:
    """What a node lends: everything it holds but the thread it may run on."""
    return [unit for unit in entry.units if unit is not threads]


def owned_exclusive(entry: Entry) -> list[Lane]:
    """The exclusive lanes that a node owns, lent or not."""
    return [unit for unit in entry.units if isinstance(unit, Lane) and unit.stack is not None and entry in unit.stack]


def heirs(nodes: list[Entry]) -> list[Entry]:
    """The descendants that have an exclusive lane lent by these nodes, newest first."""
    found: dict[Entry, None] = {}
    for node in nodes:
        for lane in owned_exclusive(node):
            assert lane.stack is not None
            for heir in reversed(lane.stack[lane.stack.index(node) + 1 :]):
                if heir not in nodes:
                    found[heir] = None
    return list(found)


def _chain(node: Entry) -> Iterator[Entry]:
    """A node and the nodes around it, up to the job."""
    current: Entry | None = node
    while current is not None:
        yield current
        up = parent_of(current)
        current = up if current.inside else None


def root_of(node: Entry) -> Entry:
    """The job (or outermost slot) that a node is part of."""
    for root in _chain(node):
        node = root
    return node
