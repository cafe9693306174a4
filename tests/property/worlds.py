"""Random worlds: settings and commands drawn from any source of choices, and an outsider's record of what happened.

A `Choices` is Hypothesis in the tests (so that failures shrink) and may be a seeded generator for long hunts. A
`World` gives commands to a kernel as the engine would, believes only the effects that come back, and keeps its own
books from them; `laws` compares those books with the kernel.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from hypothesis import settings
from hypothesis import strategies as st

from laneway.errors import ConfigError, DrainingError, LaneCycleError, LaneFullError
from laneway.events import JobAbandoned, JobLent, JobQueued, JobRetried, JobSubmitted, JobTookBack
from laneway.kernel.protocol import (
    CancelAttempt,
    CompleteJob,
    Effect,
    End,
    JobSpec,
    KeepDeadLetter,
    Publish,
    ResumeWait,
    SettleJob,
    StartJob,
    Stop,
    StoreJob,
)
from laneway.kernel.registry import Registry
from laneway.kernel.scheduler import Kernel
from laneway.records import Boost, Group, JobId, JobState, LaneConfig, Priority, RateLimit, RetryPolicy
from laneway.records import Effect as JobEffect

T = TypeVar("T")
BEGUN = (JobState.RUNNING, JobState.LENT)
WAITING = (JobState.QUEUED, JobState.SCHEDULED)
SESSIONS = ("session:1", "session:2")
ENDED = {
    JobState.SUCCEEDED: "completed",
    JobState.FAILED: "failed",
    JobState.DEAD: "failed",
    JobState.CANCELLED: "cancelled",
    JobState.TIMED_OUT: "timed_out",
}


class Choices(Protocol):
    """Where decisions come from."""

    def number(self, least: int, most: int) -> int: ...

    def pick(self, options: Sequence[T]) -> T: ...


class Drawn:
    """Choices that Hypothesis makes, and shrinks when something fails."""

    def __init__(self, source: st.DataObject) -> None:
        self._source = source

    def number(self, least: int, most: int) -> int:
        """A whole number, both ends included."""
        return self._source.draw(st.integers(least, most))

    def pick(self, options: Sequence[T]) -> T:
        """One of them; the first is the simplest."""
        return options[self._source.draw(st.integers(0, len(options) - 1))]


def effort(examples: int, *, steps: int = 50) -> settings:
    """So many examples in the profile that always draws the same ones; what the profile says in every other."""
    profile = settings()
    return settings(
        max_examples=examples if profile.derandomize else profile.max_examples,
        stateful_step_count=steps if profile.derandomize else 2 * steps,
    )


def chance(choices: Choices, one_in: int) -> bool:
    """True once in a while; the simple case (False) is what a failing example shrinks to."""
    return choices.number(0, one_in - 1) == one_in - 1


# ---- settings -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a kernel is made of."""

    lanes: Mapping[str, LaneConfig]
    groups: Mapping[str, Group] = field(default_factory=dict)
    max_concurrent: int | None = None
    threads_max: int = 1000

    def kernel(self) -> Kernel:
        kernel = Kernel(
            Registry(
                self.lanes,
                groups=self.groups,
                max_concurrent=self.max_concurrent,
                threads_max=self.threads_max,
                creates_unknown=False,
            ),
        )
        kernel.listening = True
        return kernel


def draw_lane(choices: Choices, *, limited: bool = True) -> LaneConfig:
    """Settings of one lane, with short times so that they matter."""
    rate = RateLimit(count=choices.number(1, 2), window_ms=choices.pick([7, 10, 30])) if chance(choices, 4) else None
    deadline = choices.pick([None, 20, 40])
    return LaneConfig(
        concurrency=choices.number(1, 3),
        priority=choices.number(0, 4),
        queued_max=choices.number(0, 3) if chance(choices, 5) else None,
        timeout_ms=choices.number(1, 30) if chance(choices, 6) else None,
        wait_timeout_ms=choices.number(1, 30) if chance(choices, 6) else None,
        cancel_grace_ms=choices.pick([5, 0, 20]),
        abandon_threads=chance(choices, 3),
        retry=RetryPolicy.fixed(choices.number(1, 2), choices.number(0, 5)) if chance(choices, 5) else None,
        rate_limit=rate if limited else None,
        boost=choices.pick([Boost.standard(deadline), Boost.aggressive(deadline)]) if chance(choices, 4) else None,
        ageing_ms=choices.pick([None, 10, 25, 1000]),
        fair_by=choices.pick(["tenant", "session"]) if chance(choices, 4) else None,
        pressure_threshold=2 if chance(choices, 4) else None,
    )


def draw_spec(choices: Choices) -> JobSpec:
    """What a caller says about a job."""
    if chance(choices, 3):
        return JobSpec(priority=choices.pick(list(Priority)[::-1]))
    return JobSpec(
        priority=choices.pick(list(Priority)[::-1]),
        timeout_ms=choices.number(1, 30) if chance(choices, 8) else None,
        wait_timeout_ms=choices.number(1, 30) if chance(choices, 8) else None,
        deadline_ms=choices.pick([20, 40]) if chance(choices, 6) else None,
        delay_ms=choices.number(1, 12) if chance(choices, 8) else None,
        retry=RetryPolicy.fixed(choices.number(1, 2), choices.number(0, 5)) if chance(choices, 6) else None,
        effect=choices.pick([JobEffect.WRITE, JobEffect.READ]),
        tenant=choices.pick(["x", "y", "z"]),
        weight=choices.pick([1.0, 2.0, 0.5]),
    )


def draw_one_cap(choices: Choices) -> Setup:
    """No groups and at most one cap that lanes share: here the exact order can be told."""
    cap = choices.pick(["none", "root", "threads"])
    names = ["a", "b", "c"][: choices.number(1, 3)]
    # Rate limits only where jobs do not pass on: which of two lanes gets a token that both want is not said.
    return Setup(
        lanes={
            **{name: draw_lane(choices, limited=name == names[-1]) for name in names},
            **({"control": LaneConfig(concurrency=2, priority=0)} if chance(choices, 4) else {}),
        },
        max_concurrent=choices.number(1, 3) if cap == "root" else None,
        threads_max=choices.number(1, 2) if cap == "threads" else 1000,
    )


def draw_everything(choices: Choices) -> Setup:
    """Groups with reservations, a shared cap and few threads, all at once."""
    lanes = {name: draw_lane(choices) for name in ("a", "b", "c", "d")[: choices.number(1, 4)]}
    lanes["control"] = LaneConfig(concurrency=2, priority=0)
    groups = {}
    if chance(choices, 2):
        cap = choices.number(1, 3)
        reserve = {"a": choices.number(0, cap - 1)} if chance(choices, 2) else {}  # all of it would shut the others out
        groups["g"] = Group(cap, ["a", "b"], reserve)
    if "c" in lanes and chance(choices, 3):
        groups["h"] = Group(choices.number(1, 2), ["c", "session:*"])
    return Setup(
        lanes=lanes,
        groups=groups,
        max_concurrent=choices.number(1, 3) if chance(choices, 2) else None,
        threads_max=choices.number(1, 2),
    )


def draw_narrow(choices: Choices) -> Setup:
    """Few and narrow lanes without limits: jobs that wait for jobs are always in each other's way."""
    names = ("a", "b", "c")[: choices.number(1, 3)]
    return Setup(
        lanes={
            name: LaneConfig(concurrency=choices.number(1, 2), cancel_grace_ms=5, ageing_ms=choices.pick([None, 10]))
            for name in names
        },
        groups={"g": Group(choices.number(1, 2), names[:2])} if chance(choices, 3) else {},
        max_concurrent=choices.pick([None, 1, 2]),
    )


def draw_lanes(choices: Choices, setup: Setup) -> tuple[str, ...]:
    """Where a job goes: one lane, a session and a lane, or several lanes in the order of their configuration."""
    names = [name for name in setup.lanes if name != "control"]
    kind = choices.number(0, 9)
    if kind == 9 and "control" in setup.lanes:
        return ("control",)
    first = (choices.pick(SESSIONS),) if kind in (5, 6, 7) else ()
    if kind == 7:
        return first
    low = choices.number(0, len(names) - 1)
    if kind in (4, 6) and low + 1 < len(names):
        return (*first, names[low], names[choices.number(low + 1, len(names) - 1)])
    return (*first, names[low])


# ---- an outsider's books --------------------------------------------------------------------------------------


@dataclass(eq=False)
class Node:
    """A live job or slot, as told by effects."""

    id: JobId
    lanes: tuple[str, ...]
    up: Node | None
    is_slot: bool
    threaded: bool
    spec: JobSpec
    state: JobState = JobState.QUEUED
    attempt: int = 0
    stopping: bool = False
    ended: bool = False
    inside: bool = False
    units: frozenset[str] = frozenset()  # what it holds or has lent since it began
    waits: set[int] = field(default_factory=set)
    inner: list[Node] = field(default_factory=list)

    @property
    def is_part(self) -> bool:
        """Whether it is a slot inside a job: then the job is counted and it is not."""
        return self.inside


@dataclass(eq=False)
class WaitNote:
    """A wait that has not returned yet."""

    node: Node
    target: Node
    cancelled: bool = False


class World:
    """One kernel and everything that an outsider knows about it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.kernel = setup.kernel()
        self.now = 0
        self.late = False  # time has passed and `tick` was not called yet
        self.nodes: dict[JobId, Node] = {}
        self.final: dict[JobId, JobState] = {}
        self.waits: dict[int, WaitNote] = {}
        self.zombies: set[tuple[JobId, int]] = set()
        self.letters: list[JobId] = []
        self.counts: dict[str, int] = {}
        self.tally: Counter[tuple[str, str]] = Counter()  # by lane (or family) and what was counted
        self.log: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        self.started: list[JobId] = []  # by the last command
        self.took_back: list[JobId] = []  # by the last command
        self.follow_ups: list[Callable[[], None]] = []
        self.after: list[Callable[[], None]] = []  # called after every command
        self._number = 0

    # ---- giving commands ----

    def do(self, handler: str, *args: Any, **kwargs: Any) -> list[Effect]:
        """Call a handler, take in its effects, check; then do what those effects make the engine do."""
        self.log.append((handler, args, {**kwargs, "now": self.now}))
        self.started, self.took_back = [], []
        effects: list[Effect] = getattr(self.kernel, handler)(*args, now=self.now, **kwargs)
        for effect in effects:
            self._take_in(effect)
        for check in self.after:
            check()
        follow_ups, self.follow_ups = self.follow_ups, []
        for follow_up in follow_ups:
            follow_up()
        return effects

    def submit(
        self,
        lanes: tuple[str, ...],
        spec: JobSpec,
        *,
        up: Node | None = None,
        threaded: bool = False,
        is_slot: bool = False,
    ) -> Node | None:
        """Submit; None when it was refused."""
        self._number += 1
        job_id = JobId(f"{'s' if is_slot else 'j'}{self._number}")
        node = Node(job_id, lanes, up, is_slot, threaded, spec)
        if is_slot and up is not None:
            taken = _around(up)
            node.inside = True
            up.inner.append(node)
            node.lanes = tuple(name for name in lanes if name not in taken) or lanes
        self.nodes[job_id] = node
        before = snapshot(self.kernel)
        above = up.id if up is not None else None
        try:
            self.do("submit", job_id, lanes, spec, up=above, threaded=threaded, is_slot=is_slot)
        except (LaneFullError, DrainingError, ConfigError):
            del self.nodes[job_id]
            if node.inside and up is not None:
                up.inner.remove(node)
            assert snapshot(self.kernel) == before, "a refusal changed something"
            return None
        return node

    def begin_wait(self, node: Node, target: Node) -> bool:
        """Let a node wait; False when that would close a circle."""
        self._number += 1
        wait_id = self._number
        before = snapshot(self.kernel)
        self.waits[wait_id] = WaitNote(node, target)
        node.waits.add(wait_id)
        try:
            self.do("begin_wait", wait_id, node.id, target.id)
        except LaneCycleError:
            del self.waits[wait_id]
            node.waits.discard(wait_id)
            assert snapshot(self.kernel) == before, "a refused wait changed something"
            return False
        return True

    def open_slot(self, lanes: tuple[str, ...], spec: JobSpec, up: Node | None) -> None:
        """What `async with lanes.slot()` does: ask for it and, inside a job, wait for it."""
        slot = self.submit(lanes, spec, up=up, is_slot=True)
        if slot is not None and up is not None and slot.state in WAITING and not self.begin_wait(up, slot):
            self.withdraw(slot)

    def withdraw(self, slot: Node) -> None:
        """What the engine does when the task that wanted a slot goes away."""
        if slot.ended:
            return
        if slot.state in BEGUN:
            self.do("finish", slot.id, slot.attempt)
        else:
            self.do("stop", slot.id, Stop.CANCEL, "the wait was cancelled")

    def cancel_wait(self, wait_id: int) -> None:
        """The task that waits is cancelled."""
        note = self.waits.get(wait_id)
        if note is not None and not note.cancelled:
            note.cancelled = True
            self.do("cancel_wait", wait_id)

    def finish(self, node: Node, end: End = End.SUCCEEDED, **more: Any) -> None:
        """The code of a job has ended."""
        self.do("finish", node.id, node.attempt, end, **more)

    def stop(self, node: Node, stop: Stop = Stop.CANCEL) -> None:
        """End a job from outside."""
        self.do("stop", node.id, stop, "asked")

    def return_thread(self, zombie: tuple[JobId, int]) -> None:
        """The function of an abandoned attempt returns at last."""
        self.zombies.discard(zombie)
        self.do("finish", *zombie)

    def pass_time(self, ms: int, *, tick: bool = True) -> None:
        """Let time pass, with one tick at the end or none."""
        self.now += ms
        self.late = True
        if tick:
            self.tick()

    def tick(self) -> None:
        """The timer of the engine fires."""
        self.late = False
        self.do("tick")

    # ---- taking in effects ----

    def _take_in(self, effect: Effect) -> None:
        match effect:
            case StartJob(entry, job_id, attempt):
                self._started(self.nodes[job_id], attempt)
                assert entry.id == job_id
            case CompleteJob(entry, job_id):
                assert entry.id == job_id
                self._ended(self.nodes[job_id], JobState.SUCCEEDED)
            case SettleJob(entry, job_id, state, attempt):
                assert entry.id == job_id
                node = self.nodes[job_id]
                assert attempt == node.attempt
                if effect.abandoned and node.threaded:
                    self.zombies.add((job_id, attempt))
                self._ended(node, state)
            case CancelAttempt(_, job_id, attempt):
                node = self.nodes[job_id]
                assert node.state in BEGUN
                assert attempt == node.attempt
                assert not node.stopping, "asked to end twice"
                node.stopping = True
                for wait_id in self.waits_inside(node):
                    self.follow_ups.append(lambda wait_id=wait_id: self.cancel_wait(wait_id))  # type: ignore[misc]
            case ResumeWait(wait_id):
                self._resumed(wait_id)
            case KeepDeadLetter(_, job_id):
                self.letters.append(job_id)
            case Publish():
                self._heard(effect)
            case StoreJob():
                raise AssertionError("no job of these worlds is kept in a store")

    def _started(self, node: Node, attempt: int) -> None:
        assert node.state is JobState.QUEUED, f"{node.id} started while {node.state}"
        assert attempt == node.attempt + 1
        node.state = JobState.RUNNING
        node.attempt = attempt
        node.units = self._units_of(node)
        self.started.append(node.id)

    def _units_of(self, node: Node) -> frozenset[str]:
        taken = _around(node.up) if node.inside and node.up is not None else frozenset()
        if taken.issuperset(node.lanes):
            return frozenset()  # what is around it has all its lanes: it is granted at once and holds nothing itself
        wanted = set(node.lanes)
        for name in node.lanes:
            wanted.update(f"pool:{pool.name}" for pool in self.kernel.registry.lanes[name].pools)
        if node.threaded:
            wanted.add("pool:threads")
        return frozenset(wanted - taken)

    def _ended(self, node: Node, state: JobState) -> None:
        assert state.is_final
        assert node.id not in self.final, f"{node.id} ended twice"
        self.final[node.id] = state
        self._count(node, ENDED[state])
        if state is JobState.DEAD:
            self._count(node, "dead_lettered")
        node.state = state
        node.ended = True
        node.units = frozenset()
        del self.nodes[node.id]
        if node.inside and node.up is not None:
            node.up.inner.remove(node)
        self._left_run(node)

    def _left_run(self, node: Node) -> None:
        """Its slots inside are part of what is around it now, or stand alone; waits it left behind are nobody's."""
        for slot in node.inner:
            slot.up = node.up
            if node.inside and node.up is not None:
                node.up.inner.append(slot)
            else:
                slot.inside = False
        node.inner = []
        node.waits = set()
        node.stopping = False

    def _resumed(self, wait_id: int) -> None:
        assert wait_id in self.waits, f"wait {wait_id} returned twice or never began"
        note = self.waits.pop(wait_id)
        note.node.waits.discard(wait_id)
        if note.target.is_slot and note.cancelled:
            self.follow_ups.append(lambda: self.withdraw(note.target))

    def _heard(self, publish: Publish) -> None:
        event = publish.event
        self.counts[event.type] = self.counts.get(event.type, 0) + 1
        match event:
            case JobSubmitted() | JobQueued():
                node = self.nodes[event.job_id]
                node.state = event.state
                if isinstance(event, JobSubmitted):
                    self._count(node, "submitted")
            case JobLent():
                assert self.nodes[event.job_id].state is JobState.RUNNING
                self.nodes[event.job_id].state = JobState.LENT
            case JobTookBack():
                assert self.nodes[event.job_id].state is JobState.LENT
                self.nodes[event.job_id].state = JobState.RUNNING
                self.took_back.append(event.job_id)
            case JobRetried():
                node = self.nodes[event.job_id]
                assert node.state in BEGUN
                self._count(node, "retried")
                node.state = JobState.SCHEDULED
                node.units = frozenset()
                self._left_run(node)
            case JobAbandoned():
                node = self.nodes[event.job_id]
                self._count(node, "abandoned")
                if node.threaded:
                    self.zombies.add((node.id, node.attempt))
            case _:
                pass

    def _count(self, node: Node, what: str) -> None:
        for name in node.lanes:
            self.tally["session:*" if name.startswith("session:") else name, what] += 1

    # ---- what an outsider can tell ----

    def waits_inside(self, node: Node) -> list[int]:
        """The waits of a job and of the slots inside it, oldest first."""
        found = sorted(node.waits)
        for slot in node.inner:
            found.extend(self.waits_inside(slot))
        return found

    def begun(self) -> list[Node]:
        """Those whose code can submit and wait. A thread cannot be lent, so sync functions do not wait here."""
        return [node for node in self.nodes.values() if node.state in BEGUN and not node.threaded]

    def story(self) -> str:
        """Every command so far, as calls."""
        return "\n".join(
            f"kernel.{handler}({', '.join([*map(repr, args), *(f'{k}={v!r}' for k, v in kwargs.items())])})"
            for handler, args, kwargs in self.log
        )

    def can_finish(self, node: Node) -> bool:
        """Whether its code can come to its end: it waits for nothing and has no slot open."""
        return node.state in BEGUN and not node.waits and not node.inner


def _around(node: Node) -> frozenset[str]:
    """What a node and those around it hold or have lent."""
    taken: set[str] = set()
    current: Node | None = node
    while current is not None:
        taken |= current.units
        current = current.up if current.inside else None
    return frozenset(taken)


def snapshot(kernel: Kernel) -> tuple[Any, ...]:
    """Everything that a refused command must leave alone."""
    lanes = kernel.registry.lanes
    return (
        kernel.running,
        kernel.waiting,
        kernel.scheduled,
        kernel.lent,
        {name: (lane.held, lane.waiting, lane.scheduled) for name, lane in lanes.items() if lane.users},
        {job_id: (entry.state, entry.wanted, entry.waits) for job_id, entry in kernel.jobs.items()},
    )
