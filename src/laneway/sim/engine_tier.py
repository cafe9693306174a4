"""Tier (b): the real `Lanes`, through the door that users take, on a simulated loop.

Clients submit, await, run, take slots, cancel, abort, resize and pause in virtual time; the seed draws what they do
and the order in which ready callbacks run. Bodies keep a tally of who really runs. Every awaited job has to return or
raise the right thing, everything has to end once it is healed, and closing has to leave nothing behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from laneway.errors import (
    ConfigError,
    DrainingError,
    DuplicateJobError,
    GiveUp,
    JobAbortedError,
    JobCancelledError,
    JobFailedError,
    JobTimeoutError,
    LaneCycleError,
    LaneFullError,
    LanewayError,
    RetryLater,
    UnknownLaneError,
    WaitTimeoutError,
)
from laneway.events import (
    Event,
    JobCancelled,
    JobCompleted,
    JobDeadLettered,
    JobEvent,
    JobFailed,
    JobSubmitted,
    JobTimedOut,
)
from laneway.lanes import Lanes
from laneway.records import Snapshot
from laneway.runtime.signals import AbortSignal
from laneway.runtime.subscriptions import Subscription
from laneway.sim.loop import SimLoop
from laneway.sim.playing import play_to_end
from laneway.sim.shadow import LawBrokenError
from laneway.sim.tally import Body, Boom, Join, Plan, Tally
from laneway.sim.trace import Outcome, Trace
from laneway.sim.workers import DEPTH_MAX, Dice
from laneway.sim.world import World, draw_world
from laneway.testing import LoopClock, fake_host

__all__ = ("EngineRun", "run_engine_seed")

STEPS_MAX = 500_000
HEALED_MS = 3_600_000
CLIENTS = 4
ACTIONS = 30
STUCK_SHOWN = 12
REFUSALS = (ConfigError, DrainingError, LaneFullError, UnknownLaneError, DuplicateJobError)

ENDS = (JobCancelled, JobCompleted, JobDeadLettered, JobFailed, JobTimedOut)

logging.getLogger("laneway").addHandler(logging.NullHandler())


def run_engine_seed(seed: int, *, trace: Trace | None = None) -> Outcome:
    """Run the world of a seed; raise `SimFailedError` when a law is broken."""
    trace = trace or Trace()
    loop = SimLoop(seed=seed, max_steps=STEPS_MAX)
    run = EngineRun(draw_world(seed), trace, loop)
    return play_to_end(run, loop, trace, seed=seed, tier="engine")


class EngineRun:
    """One world, one `Lanes`, some clients."""

    def __init__(self, world: World, trace: Trace, loop: SimLoop) -> None:
        self.world = world
        self.tally = Tally(world)
        self.broken: LawBrokenError | None = None  # found inside a job, where raising would be its outcome
        self.broken_tail: tuple[str, ...] = ()
        self.faults = 0
        self._trace = trace
        self._loop = loop
        self._dice = Dice(world)
        self._clock = LoopClock()
        self._lanes = Lanes(
            world.lanes,
            max_concurrent=world.max_concurrent,
            groups=world.groups,
            threads_max=world.threads_max,
            unknown="create" if world.creates_unknown else "refuse",
            host=fake_host(seed=world.seed, clock=self._clock),
        )
        self._plans: list[Plan] = []
        self._labels = 0
        self._swept = False  # somebody cancelled whatever waited
        self._draining = False
        self._drains: list[asyncio.Task[None]] = []
        self._paused: set[str] = set()
        self._snapshot: Snapshot | None = None

    @property
    def starts(self) -> int:
        """How much was begun."""
        return self.tally.starts

    def _say(self, what: str, subject: str = "", detail: str = "") -> None:
        self._trace.add(round(self._loop.time() * 1000), what, subject, detail)

    def _happens(self, name: str) -> bool:
        happens = self._dice.happens(name)
        self.faults += happens
        return happens

    # ---- the run ----

    def give_up(self) -> None:
        """The run has failed; everything in it ends by being cancelled."""

    async def play(self) -> None:
        """Live, heal, close; then nothing may be left."""
        self._say("world", str(self.world.seed), self.world.describe())
        by_error = self._dice.rng.random() < 0.3
        try:
            async with self._lanes:
                events = self._lanes.subscribe(buffer_max=100_000) if self.world.listens else None
                stop_watching = self._lanes.on_change(self._note)
                await self._live()
                if by_error:
                    self._leave()
                await self._heal()
        except Boom:
            self._say("left", "", "by an error")
        stop_watching()
        await self._check_ends()
        self._check_closed()
        if events is not None:
            await self._check_events(events)
        await asyncio.sleep(0.001)  # those that were asked to end at the last moment have heard of it by now
        self.tally.check_asked()

    def _leave(self) -> None:
        """Leave the lanes by an exception: what is live is cancelled."""
        self._swept = True
        raise Boom("leave by an error")

    async def _live(self) -> None:
        """Phase one, for as long as the clients take, or until they have waited long enough for what is paused."""
        clients = [self._loop.create_task(self._client(), name=f"client-{n}") for n in range(CLIENTS)]
        await asyncio.wait(clients, timeout=self.world.gap_ms * CLIENTS * ACTIONS * 4 / 1000)
        for task in (*clients, *self._drains):
            task.cancel()
        for result in await asyncio.gather(*clients, *self._drains, return_exceptions=True):
            if isinstance(result, Exception):
                raise result
        self._draining = False

    def _note(self, snapshot: Snapshot) -> None:
        if snapshot == self._snapshot:
            self._fail(LawBrokenError(f"the same snapshot twice: {snapshot}"))
        self._snapshot = snapshot

    async def _heal(self) -> None:
        self._say("heal")
        self._dice.honest = True
        for name, lane in self._lanes.stats().lanes.items():
            if name in self._paused:
                self._lanes.resume(name)
            if lane.max_concurrent == 0:
                self._resize(name, 1)
            if lane.closed_until_ms is not None:
                self._lanes.reopen(name)
        self._lanes.reopen()
        try:
            async with asyncio.timeout(HEALED_MS / 1000):
                for plan in list(self._plans):
                    await self._collect(plan)
                    await self._collect_joined(plan)
        except TimeoutError:
            live = [str(self._lanes.explain(info.id)) for info in self._lanes.jobs()]
            shown = "\n  ".join(live[:STUCK_SHOWN])
            raise LawBrokenError(f"stuck: {len(live)} jobs never end after everything was healed\n  {shown}") from None

    async def _check_ends(self) -> None:
        """Whatever was accepted has ended, and says how."""
        for plan in self._plans:
            if plan.handle is not None and not plan.handle.done():
                raise LawBrokenError(f"{plan.label} is {plan.handle.state} after closing")
            await self._collect(plan)
            await self._collect_joined(plan)
        if self.broken is not None:
            raise self.broken
        if self._snapshot is not None and (self._snapshot.running, self._snapshot.waiting) != (0, 0):
            raise LawBrokenError(f"all jobs have ended, but the last snapshot says {self._snapshot}")

    async def _check_events(self, events: Subscription) -> None:
        """Whoever listened was told of one submit and one end of every job."""
        told: dict[str, list[type[Event]]] = {}
        async for event in events:
            if isinstance(event, JobEvent):
                told.setdefault(event.job_id, []).append(type(event))
        for plan in self._plans:
            assert plan.handle is not None
            kinds = told.get(plan.handle.id, [])
            if kinds[:1] != [JobSubmitted] or kinds[-1] not in ENDS or sum(kind in ENDS for kind in kinds) != 1:
                raise LawBrokenError(f"events of {plan.label}: {', '.join(kind.__name__ for kind in kinds) or 'none'}")

    def _check_closed(self) -> None:
        """Closing leaves no task and no timer, but for bodies that did not end when asked to."""
        if self.tally.left():
            return
        names = [task.get_name() for task in self._loop.pending_tasks()]
        if names != ["sim main"]:
            raise LawBrokenError(self._loop.picture("closing left tasks behind"))
        if self._loop.pending_timers():
            raise LawBrokenError(f"closing left {self._loop.pending_timers()} timers behind")

    def _fail(self, error: LawBrokenError) -> None:
        if self.broken is None:
            self.broken = error
            self.broken_tail = self._trace.tail()

    # ---- clients ----

    async def _client(self) -> None:
        for _ in range(ACTIONS):
            await asyncio.sleep(self._dice.span(self.world.gap_ms * CLIENTS) / 1000)
            self._meddle()
            draw = self._dice.rng.random()
            if self._dice.happens("loose_slot"):
                await self._use_slot(Plan(self._label("s"), self._dice.lanes()), None)
            elif draw < 0.25:
                await self._run_and_wait(None)
            elif draw < 0.5:
                plan = self._submit(None)
                if plan is not None:
                    await self._collect(plan)
            else:
                self._submit(None)

    def _label(self, kind: str = "j") -> str:
        self._labels += 1
        return f"{kind}{self._labels}"

    def _plan(self, up: Plan | None) -> Plan:
        """What the next job is."""
        dice = self._dice
        plan = Plan(self._label(), dice.lanes(), up=up)
        spec = dice.spec()
        names = ("priority", "timeout_ms", "wait_timeout_ms", "deadline_ms", "delay_ms", "retry", "effect", "tenant")
        plan.options = {name: getattr(spec, name) for name in names} | {"label": plan.label, "weight": spec.weight}
        plan.threaded = dice.happens("threaded")
        if dice.happens("cancel"):
            plan.signal = plan.options["signal"] = AbortSignal()
        return plan

    def _submit(self, up: Plan | None) -> Plan | None:
        """Submit a job; None when it is refused, for a good reason."""
        plan = self._plan(up)
        lanes = plan.lanes[0] if len(plan.lanes) == 1 else plan.lanes
        plan.function = self._function(plan)
        if self._dice.happens("foreign"):
            plan.options["key"] = f"key-{self._dice.rng.randint(1, 3)}"
        scope, _, short = plan.lanes[0].rpartition("/") if len(plan.lanes) == 1 else ("", "", "")
        try:
            if scope:
                plan.handle = self._lanes.scope(scope).submit(short, plan.function, **plan.options)
            else:
                plan.handle = self._lanes.submit(lanes, plan.function, **plan.options)
        except DuplicateJobError as error:
            self._join(plan.options["key"], error)
            return None
        except REFUSALS as error:
            self._refused(plan, error)
            return None
        self._plans.append(plan)
        self._say("submit", plan.label, "+".join(plan.lanes))
        return plan

    def _join(self, key: str, error: DuplicateJobError) -> None:
        """The key belongs to a live job: submit the same function again and share it."""
        plan = next((plan for plan in self._plans if plan.handle is not None and plan.handle.id == error.job_id), None)
        if plan is None or plan.function is None or plan.options.get("key") != key:
            self._fail(LawBrokenError(f"{key} is said to belong to {error.job_id}, which does not have it"))
            return
        if "/" in plan.lanes[0]:
            return  # a key of a scope is another key outside it
        try:
            handle = self._lanes.submit(
                plan.lanes, plan.function, key=key, tenant=plan.options["tenant"], label=plan.label
            )
        except JobFailedError as refusal:
            self._fail(LawBrokenError(f"joining {plan.label} was refused: {refusal!r}"))
            return
        plan.joined.append(Join(handle))
        self._say("join", plan.label, key)

    async def _collect_joined(self, plan: Plan) -> None:
        """A share ends as its job does, or by its own cancel."""
        for join in plan.joined:
            if join.cancelled:
                with contextlib.suppress(Boom, JobFailedError):
                    await join.handle
            else:
                await self._await_as(plan, None, join.handle)

    def _refused(self, plan: Plan, error: LanewayError) -> None:
        self._say("refused", plan.label, type(error).__name__)
        if isinstance(error, DrainingError) and not self._draining:
            self._fail(LawBrokenError(f"{plan.label} was refused by a drain that nobody began"))
        if isinstance(error, ConfigError):
            self._fail(LawBrokenError(f"{plan.label} was refused: {error}"))

    async def _run_and_wait(self, body: Body | None) -> None:
        """`run()`, sometimes cancelled by its caller."""
        plan = self._plan(body.plan if body is not None else None)
        lanes = plan.lanes[0] if len(plan.lanes) == 1 else plan.lanes
        limit = self._dice.span(100) / 1000 if self._happens("cancel") else None
        plan.asked = limit is not None
        self._say("run", plan.label, "+".join(plan.lanes))
        plan.handle = None
        try:
            async with asyncio.timeout(limit):
                await self._await_as(plan, body, self._lanes.run(lanes, self._function(plan), **plan.options))
        except asyncio.CancelledError:
            plan.asked = True
            raise
        except TimeoutError:
            self._say("run cancelled", plan.label)
        except REFUSALS as error:
            self._refused(plan, error)

    async def _collect(self, plan: Plan, body: Body | None = None) -> None:
        """Await a handle and look at what comes back."""
        assert plan.handle is not None
        await self._await_as(plan, body, plan.handle)

    async def _await_as(self, plan: Plan, body: Body | None, awaited: Awaitable[Any]) -> None:
        try:
            if body is None:
                value = await awaited
            else:
                with self.tally.lending(body):
                    value = await awaited
        except (LaneCycleError, *REFUSALS):
            if body is None:
                raise
            self._say("refused", plan.label)
        except (Boom, JobFailedError) as error:
            self._check_error(plan, error)
        else:
            if value != plan.label or plan.ended != "return":
                self._fail(LawBrokenError(f"{plan.label} gave {value!r} after {plan.ended!r}"))

    def _check_error(self, plan: Plan, error: Boom | JobFailedError) -> None:
        """A job may end only by what it did and by what was done to it."""
        config = self.world.config_of(plan.lanes[-1])
        kind = type(error)
        fair = {
            Boom: error is plan.error and plan.ended == "fail" and bool(getattr(error, "__notes__", ())),
            JobAbortedError: plan.signal is not None and plan.signal.aborted,
            JobCancelledError: plan.asked or self._swept or plan.up is not None or plan.ended == "cancelled",
            JobTimeoutError: plan.options["timeout_ms"] is not None or config.timeout_ms is not None,
            WaitTimeoutError: plan.options["wait_timeout_ms"] is not None or config.wait_timeout_ms is not None,
            JobFailedError: plan.ended in ("give_up", "retry_later", "") or bool(plan.options["retry"] or config.retry),
        }
        if not fair.get(kind, False):
            self._fail(LawBrokenError(f"{plan.label} ended with {error!r} after {plan.ended or 'nothing'!r}"))

    # ---- meddling ----

    def _meddle(self) -> None:
        dice, lanes = self._dice, self._lanes
        rng = dice.rng
        live = [plan for plan in self._plans if plan.handle is not None and not plan.handle.done()]
        name = rng.choice(list(lanes.stats().lanes))
        if live and self._happens("cancel"):
            self._cancel(rng.choice(live))
        if self._happens("cancel_waiting"):
            self._swept = True
            self._say("sweep", name, str(lanes.cancel_waiting(name)))
        if self._happens("resize"):
            self._resize(name, rng.randint(0, 4))
        if self._happens("pause"):
            self._pause(name)
        if self._happens("close"):
            self._say("close", name)
            lanes.close_until(name, self._clock.wall_ms() + dice.span(100), "meddled")
        if self._happens("clock_back"):
            self._clock.jump_wall(rng.randint(-100_000, 100_000))
        if self._happens("drain"):
            self._draining = True
            self._drains.append(self._loop.create_task(self._drain(), name="drain"))

    def _cancel(self, plan: Plan) -> None:
        assert plan.handle is not None
        live = [join for join in plan.joined if not join.handle.done()]
        if live and self._dice.rng.random() < 0.5:
            live[0].cancelled = True
            others = len(live) > 1 or not plan.handle.done()
            plan.asked = plan.asked or not others  # the last one to detach ends the job
            self._say("detach", plan.label, str(live[0].handle.cancel("meddled")))
            return
        plan.asked = True
        if plan.signal is not None and self._dice.rng.random() < 0.5:
            self._say("abort", plan.label)
            plan.signal.abort("meddled")
        elif self._dice.rng.random() < 0.5:
            self._say("cancel", plan.label, str(plan.handle.cancel("meddled")))
        else:
            self._say("cancel id", plan.label, str(self._lanes.cancel(plan.handle.id, "meddled")))

    def _resize(self, name: str, width: int) -> None:
        if self.world.config_of(name).exclusive:
            width = min(width, 1)
        self.tally.widest[name] = max(self.tally.widest.get(name, self.world.config_of(name).concurrency), width)
        self._say("resize", name, str(width))
        self._lanes.resize(name, width)

    def _pause(self, name: str) -> None:
        if name in self._paused:
            self._paused.remove(name)
            self._say("resume", name)
            self._lanes.resume(name)
        else:
            self._paused.add(name)
            self._say("pause", name)
            self._lanes.pause(name)

    async def _drain(self) -> None:
        self._swept = True
        report = await self._lanes.drain(timeout_ms=self._dice.span(100), purpose="restart")
        self._say("drained", "", str(report))
        self._lanes.reopen()
        self._draining = False

    # ---- bodies ----

    def _function(self, plan: Plan) -> Callable[[], Any]:
        if plan.threaded:
            return lambda: self._sync_body(plan)

        async def body() -> str:
            return await self._async_body(plan)

        return body

    def _sync_body(self, plan: Plan) -> str:
        plan.attempts += 1
        self.tally.starts += 1
        self._say("call", plan.label, f"attempt {plan.attempts}")
        return self._end(plan, plan.attempts)

    async def _async_body(self, plan: Plan) -> str:
        plan.attempts += 1
        body = Body(plan, plan.lanes)
        self._say("begin", plan.label, f"attempt {plan.attempts}")
        try:
            self._guard(lambda: self.tally.enter(body))
            try:
                await self._work(plan, body)
            except asyncio.CancelledError:
                if self._dice.honest or not self._happens("stubborn"):
                    if body.attempt == plan.attempts:
                        plan.ended = "cancelled"
                    raise
                body.stubborn = body.tainted = True  # it may be abandoned any moment, and then runs on its own account
                await self._hold_on(self._dice.span(400))
            return self._end(plan, body.attempt)
        finally:
            self._say("leave", plan.label, plan.ended)
            self.tally.leave(body)

    def _guard(self, check: Callable[[], None]) -> None:
        """A law that is found broken inside a job is the run's failure, not the job's."""
        try:
            check()
        except LawBrokenError as error:
            self._fail(error)

    async def _hold_on(self, ms: int) -> None:
        """Go on whatever anybody asks."""
        until = self._loop.time() + ms / 1000
        while self._loop.time() < until:
            try:
                await asyncio.sleep(until - self._loop.time())
            except asyncio.CancelledError:
                self.faults += 1

    async def _work(self, plan: Plan, body: Body) -> None:
        dice = self._dice
        await asyncio.sleep(dice.span(self.world.work_ms) / 1000)
        if plan.depth < DEPTH_MAX and dice.happens("parent"):
            await self._children(body)
        if plan.depth < DEPTH_MAX and dice.happens("slots"):
            await self._use_slot(plan, body)
        if not dice.honest and self._happens("hang"):
            await asyncio.sleep(dice.span(1_000) / 1000)

    async def _children(self, body: Body) -> None:
        """Wait for one child, or for two at once."""
        if self._dice.happens("strands"):
            both = await asyncio.gather(self._run_and_wait(body), self._run_and_wait(body), return_exceptions=True)
            for result in both:
                if isinstance(result, BaseException):
                    raise result
            return
        if self._dice.rng.random() < 0.5:
            await self._run_and_wait(body)
            return
        child = self._submit(body.plan)
        if child is not None and self._dice.rng.random() < 0.8:
            await self._collect(child, body)

    async def _use_slot(self, plan: Plan, around: Body | None) -> None:
        lanes = self._dice.lanes()
        timeout = self._dice.spec().wait_timeout_ms
        slot = self._lanes.slot(lanes, wait_timeout_ms=timeout)
        try:
            # Entered by hand: the wait for the slot is a wait for a job, what is done inside is not.
            with self.tally.lending(around) if around is not None else contextlib.nullcontext():
                await slot.__aenter__()
        except (LaneCycleError, *REFUSALS):
            return
        except WaitTimeoutError:
            if timeout is None and all(self.world.config_of(lane).wait_timeout_ms is None for lane in lanes):
                self._fail(LawBrokenError(f"a slot of {plan.label} timed out without a limit"))
            return
        except JobCancelledError:
            if not self._swept and around is None:
                self._fail(LawBrokenError(f"a slot of {plan.label} was cancelled, but nobody asked for it"))
            return
        held = {lane for each in around.chain() for lane in each.lanes} if around is not None else set()
        body = Body(plan, tuple(lane for lane in lanes if lane not in held), around)
        try:
            self._guard(lambda: self.tally.enter(body))
            await asyncio.sleep(self._dice.span(self.world.work_ms) / 1000)
            if plan.depth < DEPTH_MAX and self._dice.happens("parent"):
                await self._run_and_wait(body)
        finally:
            self.tally.leave(body)
            await slot.__aexit__(None, None, None)
            slot.release()

    def _end(self, plan: Plan, attempt: int) -> str:
        """Return or raise, as drawn. What an attempt does that was abandoned for a newer one is not noted."""
        ended = "return"
        if not self._dice.honest:
            ended = next((name for name in ("fail", "retry_later", "give_up") if self._happens(name)), ended)
        error = Boom(plan.label)
        if attempt == plan.attempts:
            plan.ended, plan.error = ended, error
        match ended:
            case "fail":
                raise error
            case "retry_later":
                raise RetryLater(self._dice.span(30))
            case "give_up":
                raise GiveUp("enough")
            case _:
                return plan.label
