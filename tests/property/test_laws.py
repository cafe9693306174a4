"""The laws of the behaviour page, on worlds with everything switched on."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from laneway.errors import LanewayError
from laneway.kernel import protocol
from laneway.kernel.protocol import Command, Effect, JobSpec, Publish, StartJob
from laneway.kernel.scheduler import Kernel
from laneway.records import JobId, LaneConfig, Priority
from tests.property.actions import LENDING, WEIGHTED, Actions
from tests.property.laws import Laws, wind_down
from tests.property.worlds import Choices, Drawn, Setup, World, draw_everything, draw_narrow, effort

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # a failing example takes minutes to shrink


class LawMachine(RuleBasedStateMachine):
    """Groups, caps, threads, rates, several lanes, slots, waits, cancels at once; `Laws` looks after each command."""

    def __init__(self) -> None:
        super().__init__()
        self.is_sound = False
        self.world: World | None = None

    def draw(self, choices: Choices) -> Setup:
        return draw_everything(choices)

    @initialize(source=st.data())
    def begin(self, source: st.DataObject) -> None:
        self.world = World(self.draw(Drawn(source)))
        Laws(self.world)
        self.actions = Actions(self.world)
        self.is_sound = True

    def take(self, action: str, source: st.DataObject) -> None:
        self.is_sound = False
        getattr(self.actions, action)(Drawn(source))
        self.is_sound = True

    def teardown(self) -> None:
        """No deadlock: once lanes are open, running jobs finish and time passes, everything ends."""
        if self.world is None:
            return
        try:
            if self.is_sound:
                wind_down(self.world)
        finally:
            note(self.world.story())


class EverythingMachine(LawMachine):
    """All features, all commands."""

    @rule(action=st.sampled_from(WEIGHTED), source=st.data())
    def act(self, action: str, source: st.DataObject) -> None:
        self.take(action, source)


class LendingMachine(LawMachine):
    """Narrow lanes, and jobs that wait for each other most of the time."""

    def draw(self, choices: Choices) -> Setup:
        return draw_narrow(choices)

    @rule(action=st.sampled_from(LENDING), source=st.data())
    def act(self, action: str, source: st.DataObject) -> None:
        self.take(action, source)


TestKernelKeepsTheLaws = EverythingMachine.TestCase
TestKernelKeepsTheLaws.settings = effort(220, steps=40)
TestLendingNeverDeadlocks = LendingMachine.TestCase
TestLendingNeverDeadlocks.settings = effort(180, steps=50)


# ---- the same commands, given in another way --------------------------------------------------------------------

COMMANDS: dict[str, type[Any]] = {
    "submit": protocol.SubmitJob,
    "finish": protocol.FinishJob,
    "stop": protocol.StopJob,
    "stop_waiting": protocol.StopWaiting,
    "begin_wait": protocol.BeginWait,
    "cancel_wait": protocol.CancelWait,
    "resize": protocol.ResizeLane,
    "pause": protocol.PauseLane,
    "resume": protocol.ResumeLane,
    "close_lane": protocol.CloseLane,
    "reopen_lane": protocol.ReopenLane,
    "drain": protocol.Drain,
    "reopen": protocol.Reopen,
    "tick": protocol.Tick,
}


class TwinWorld(World):
    """Three kernels: handlers under a clock that steps back, `step` under one that never does, and one nobody hears."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.stepped = setup.kernel()
        self.unheard = setup.kernel()
        self.unheard.listening = False
        self.seen = 0
        self.back = 0  # how far the clock of the first kernel is behind

    def do(self, handler: str, *args: Any, **kwargs: Any) -> list[Effect]:
        """Give the command to all three and compare what comes back."""
        self.seen = max(self.seen, self.now - self.back)
        command: Command = COMMANDS[handler](*args, **kwargs)
        stepped = outcome(lambda: self.stepped.step(command, now=self.seen))
        unheard = outcome(lambda: getattr(self.unheard, handler)(*args, now=self.seen, **kwargs))
        real, self.now = self.now, max(0, self.now - self.back)
        told: list[Effect] = []
        refusal: LanewayError | None = None
        try:
            told = super().do(handler, *args, **kwargs)
        except LanewayError as error:
            refusal = error
        finally:
            self.now = real
        first = [repr(refusal)] if refusal is not None else outcome(lambda: told)
        assert first == stepped
        assert [one for one in first if not one.startswith("Publish")] == unheard
        if refusal is not None:
            raise refusal
        return told


def outcome(call: Any) -> list[str]:
    """Effects as text, without the objects that belong to one kernel."""
    try:
        effects: list[Effect] = call()
    except LanewayError as error:
        return [repr(error)]
    return [f"{type(effect).__name__}{effect[1:] if hasattr(effect, 'entry') else effect[:]}" for effect in effects]


@effort(150)
@given(source=st.data())
def test_step_listeners_and_clock_steps_change_nothing(source: st.DataObject) -> None:
    choices = Drawn(source)
    world = TwinWorld(draw_everything(choices))
    actions = Actions(world)
    for _ in range(choices.number(1, 40)):
        world.back = choices.pick([0, 0, 1, 50, 10_000])
        getattr(actions, choices.pick(WEIGHTED))(choices)
    assert world.kernel.jobs.keys() == world.stepped.jobs.keys() == world.unheard.jobs.keys()


# ---- order and starvation ---------------------------------------------------------------------------------------


def starts(effects: list[Effect]) -> list[str]:
    return [effect.job_id for effect in effects if isinstance(effect, StartJob)]


def kernel_of(lanes: dict[str, LaneConfig], **more: Any) -> Kernel:
    kernel = Setup(lanes=lanes, **more).kernel()
    kernel.listening = False
    return kernel


@effort(60)
@given(
    levels=st.lists(st.sampled_from(list(Priority)), min_size=1, max_size=30),
    width=st.integers(1, 3),
    is_capped=st.booleans(),
)
def test_a_lane_goes_by_level_then_first_come_first_served(levels: list[Priority], width: int, is_capped: bool) -> None:
    kernel = kernel_of({"a": LaneConfig(concurrency=width)}, max_concurrent=2 if is_capped else None)
    kernel.pause("a", now=0)
    for number, level in enumerate(levels):
        assert starts(kernel.submit(JobId(f"{number}"), ("a",), JobSpec(priority=level), now=0)) == []
    order = starts(kernel.resume("a", now=0))
    for job_id in order:  # grows while it is read
        order.extend(starts(kernel.finish(JobId(job_id), 1, now=0)))
    assert order == [str(number) for number in sorted(range(len(levels)), key=lambda n: (-levels[n], n))]


class Shop:
    """Lanes that never run dry under one shared cap; jobs take up to `longest` ms. Checks how long lanes wait."""

    def __init__(self, choices: Choices, lanes: int, cap: int) -> None:
        self.choices = choices
        self.cap = cap
        self.longest = 20
        names = [f"l{n}" for n in range(lanes)]
        self.ageing = {name: choices.pick([10, 50, 200]) for name in names}
        configs = {
            name: LaneConfig(concurrency=cap, priority=choices.number(1, 3), ageing_ms=self.ageing[name])
            for name in names
        }
        self.kernel = kernel_of(configs, max_concurrent=cap)
        self.now = 0
        self.number = 0
        self.running: dict[str, int] = {}  # when it ends
        self.arrived: dict[str, dict[str, int]] = {name: {} for name in names}
        self.lane_of: dict[str, str] = {}
        self.last_start = dict.fromkeys(names, -1)
        self.ahead: dict[tuple[str, int], int] = {}  # lanes overdue longer at the moment a lane became overdue

    def submit(self, name: str) -> None:
        self.number += 1
        job_id = f"j{self.number}"
        self.lane_of[job_id] = name
        self.arrived[name][job_id] = self.now
        spec = JobSpec(priority=self.choices.pick(list(Priority)))
        self.take_in(self.kernel.submit(JobId(job_id), (name,), spec, now=self.now))

    def overdue_at(self, name: str) -> int:
        return max(min(self.arrived[name].values()), self.last_start[name]) + self.ageing[name]

    def take_in(self, effects: list[Effect]) -> None:
        for job_id in starts(effects):
            name = self.lane_of[job_id]
            self.check_bound(name)
            del self.arrived[name][job_id]
            self.last_start[name] = self.now
            self.running[job_id] = self.now + self.choices.number(1, self.longest)

    def check_bound(self, name: str) -> None:
        """It waits at most `ageing_ms` plus the longest job, for every second start of those overdue longer."""
        due = self.overdue_at(name)
        longer = self.ahead.get((name, due), 0)
        bound = due + -(-2 * (longer + 1) // self.cap) * self.longest
        assert self.now <= bound, f"{name} waited until {self.now}, at most {bound}"

    def note_overdue(self) -> None:
        dues = {name: self.overdue_at(name) for name, waiting in self.arrived.items() if waiting}
        for name, due in dues.items():
            if due <= self.now and (name, due) not in self.ahead:
                self.ahead[name, due] = sum(1 for other in dues if (dues[other], other) < (due, name))

    def finish_next(self) -> None:
        job_id = min(self.running, key=lambda one: (self.running[one], one))
        self.now = self.running.pop(job_id)
        self.note_overdue()
        name = self.lane_of[job_id]
        self.submit(name)
        self.take_in(self.kernel.finish(JobId(job_id), 1, now=self.now))


@effort(30)
@given(source=st.data(), lanes=st.integers(2, 5), cap=st.integers(1, 3))
def test_no_lane_starves_beyond_the_bound(source: st.DataObject, lanes: int, cap: int) -> None:
    shop = Shop(Drawn(source), lanes, cap)
    for name in shop.arrived:
        for _ in range(cap + 1):  # more than can run: no lane is ever empty
            shop.submit(name)
    for _ in range(60):
        shop.finish_next()
        assert len(shop.running) == cap, "a busy shop has no idle slot"
    for name in shop.arrived:
        shop.check_bound(name)


def test_publish_is_an_effect_only_while_somebody_listens() -> None:
    kernel = kernel_of({"a": LaneConfig()})
    assert not any(isinstance(one, Publish) for one in kernel.submit(JobId("x"), ("a",), JobSpec(), now=0))
    kernel.listening = True
    assert any(isinstance(one, Publish) for one in kernel.finish(JobId("x"), 1, now=0))
