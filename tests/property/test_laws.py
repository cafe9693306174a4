"""The laws of the behaviour page, on worlds with everything switched on."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from laneway.errors import LanewayError
from laneway.kernel import protocol
from laneway.kernel.protocol import Command, Effect, JobSpec, Publish, StartJob
from laneway.kernel.scheduler import Kernel
from laneway.records import JobId, LaneConfig, Priority
from tests.property.actions import WEIGHTED, Actions
from tests.property.laws import Laws, wind_down
from tests.property.worlds import Choices, Drawn, Setup, World, draw_everything


class LawMachine(RuleBasedStateMachine):
    """Groups, caps, threads, rates, several lanes, slots, waits and cancels at once; `Laws` looks after each command."""

    def __init__(self) -> None:
        super().__init__()
        self.is_sound = False

    @initialize(source=st.data())
    def begin(self, source: st.DataObject) -> None:
        self.world = World(draw_everything(Drawn(source)))
        Laws(self.world)
        self.actions = Actions(self.world)
        self.is_sound = True

    @rule(action=st.sampled_from(WEIGHTED), source=st.data())
    def act(self, action: str, source: st.DataObject) -> None:
        self.is_sound = False
        getattr(self.actions, action)(Drawn(source))
        self.is_sound = True

    def teardown(self) -> None:
        """No deadlock: once lanes are open, running jobs finish and time passes, everything ends."""
        if self.is_sound:
            wind_down(self.world)


TestKernelKeepsTheLaws = LawMachine.TestCase
TestKernelKeepsTheLaws.settings = settings(max_examples=200, stateful_step_count=40)


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
        told: list[Any] = []
        real, self.now = self.now, max(0, self.now - self.back)
        try:
            told = super().do(handler, *args, **kwargs)
            first = outcome(lambda: told)
        except LanewayError as error:
            first = [repr(error)]
            raise
        finally:
            self.now = real
            if told or "first" in locals():
                assert first == stepped
                assert [one for one in first if "Publish" not in one] == [u for u in unheard if "Publish" not in u]
        return told


def outcome(call: Any) -> list[str]:
    """Effects as text, without the objects that belong to one kernel."""
    try:
        effects: list[Effect] = call()
    except LanewayError as error:
        return [repr(error)]
    return [f"{type(effect).__name__}{effect[1:] if hasattr(effect, 'entry') else effect[:]}" for effect in effects]


@settings(max_examples=100)
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


@settings(max_examples=60)
@given(levels=st.lists(st.sampled_from(list(Priority)), min_size=1, max_size=30), width=st.integers(1, 3), is_capped=st.booleans())
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
    """Lanes that never run dry under one shared cap; jobs take up to `longest` ms. Notes how long each lane had to wait."""

    def __init__(self, choices: Choices, lanes: int, cap: int) -> None:
        self.choices = choices
        self.cap = cap
        self.longest = 20
        names = [f"l{n}" for n in range(lanes)]
        self.ageing = {name: choices.pick([10, 50, 200]) for name in names}
        configs = {
            name: LaneConfig(concurrency=cap, priority=choices.number(1, 3), ageing_ms=self.ageing[name]) for name in names
        }
        self.kernel = kernel_of(configs, max_concurrent=cap)
        self.now = 0
        self.number = 0
        self.running: dict[str, int] = {}  # when it ends
        self.arrived: dict[str, dict[str, int]] = {name: {} for name in names}
        self.lane_of: dict[str, str] = {}
        self.last_start = dict.fromkeys(names, -1)
        self.rivals: dict[str, int] = {}  # lanes that had been overdue longer when this one became overdue

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
            due = self.overdue_at(name)
            rivals = sum(1 for other in self.arrived if other != name and self.arrived[other])
            bound = due + -(-2 * (rivals + 1) // self.cap) * self.longest
            assert self.now <= bound, f"{name} waited until {self.now}, at most {bound}"
            del self.arrived[name][job_id]
            self.last_start[name] = self.now
            self.running[job_id] = self.now + self.choices.number(1, self.longest)

    def finish_next(self) -> None:
        job_id = min(self.running, key=lambda one: (self.running[one], one))
        self.now = self.running.pop(job_id)
        name = self.lane_of[job_id]
        self.submit(name)
        self.take_in(self.kernel.finish(JobId(job_id), 1, now=self.now))


@settings(max_examples=30)
@given(source=st.data(), lanes=st.integers(2, 5), cap=st.integers(1, 3))
def test_no_lane_starves_beyond_the_bound(source: st.DataObject, lanes: int, cap: int) -> None:
    shop = Shop(Drawn(source), lanes, cap)
    for name in shop.arrived:
        for _ in range(2):
            shop.submit(name)
    for _ in range(60):
        shop.finish_next()
    assert len(shop.running) == cap, "a busy shop has no idle slot"
    for name, waiting in shop.arrived.items():
        rivals = lanes - 1
        assert shop.now <= shop.overdue_at(name) + -(-2 * (rivals + 1) // cap) * shop.longest, name
        assert waiting


def test_publish_is_an_effect_only_while_somebody_listens() -> None:
    kernel = kernel_of({"a": LaneConfig()})
    assert not any(isinstance(one, Publish) for one in kernel.submit(JobId("x"), ("a",), JobSpec(), now=0))
    kernel.listening = True
    assert any(isinstance(one, Publish) for one in kernel.finish(JobId("x"), 1, now=0))
