"""Tier (a): the kernel in a plain loop, without asyncio.

Phase one, safety: a world drawn from the seed lives for a while, with everything that can go wrong in it going wrong,
and every law is checked after every command. Phase two, liveness: everything is healed (lanes resumed and reopened,
workers honest, nothing new from outside) and all work has to end; what does not is printed with the kernel's own
explanation of why.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Literal

from laneway.errors import (
    ConfigError,
    DrainingError,
    LaneCycleError,
    LaneFullError,
    LanewayError,
    UnknownJobError,
    UnknownLaneError,
)
from laneway.kernel import protocol as p
from laneway.kernel.explain import explain
from laneway.kernel.registry import Registry
from laneway.kernel.scheduler import Kernel
from laneway.records import JobId, JobState
from laneway.sim.actions import Outside
from laneway.sim.checks import Laws
from laneway.sim.shadow import LawBrokenError, Shadow
from laneway.sim.trace import Outcome, SimFailedError, Trace
from laneway.sim.workers import (
    Child,
    Dice,
    EndAttempt,
    Hang,
    Join,
    Release,
    Strand,
    Take,
    WaitForSome,
    Work,
    Worker,
)
from laneway.sim.world import World, draw_world

__all__ = ("KernelRun", "run_kernel_seed")

HEALED_MS = 3_600_000  # virtual time in which everything has to end once it is healed
STEPS_MAX = 60_000
STUCK_SHOWN = 12
Door = Literal["handlers", "step"]


def run_kernel_seed(seed: int, *, trace: Trace | None = None, door: Door = "handlers", actions: int = 120) -> Outcome:
    """Run the world of a seed; raise `SimFailedError` when a law is broken."""
    trace = trace or Trace()
    run = KernelRun(draw_world(seed, actions=actions), trace, door)
    try:
        return run.play()
    except SimFailedError:
        raise
    except Exception as error:
        problem = str(error) if isinstance(error, LawBrokenError) else f"the kernel raised {error!r}"
        raise SimFailedError(seed=seed, tier="kernel", problem=problem, tail=trace.tail()) from error


class KernelRun:
    """One world, one kernel, one virtual clock."""

    def __init__(self, world: World, trace: Trace, door: Door) -> None:
        self.world = world
        self.kernel = Kernel(
            Registry(
                world.lanes,
                groups=world.groups,
                max_concurrent=world.max_concurrent,
                threads_max=world.threads_max,
                creates_unknown=world.creates_unknown,
            )
        )
        self._trace = trace
        self._door = door
        self._dice = Dice(world)
        self.kernel.listening = world.listens
        self._shadow = Shadow(world.config_of)
        self._laws = Laws(self.kernel, world, self._shadow)
        self._outside = Outside(world, self.kernel, self._dice, self._do)
        self._now = 0  # what the clock shows
        self._latest = 0  # the latest it ever showed, which is what the kernel goes by
        self._events: list[tuple[int, float, int, Callable[[], None]]] = []
        self._planned = 0
        self._tick: tuple[int, int] | None = None  # what is due, and when the tick for it comes
        self._workers: dict[Worker, None] = {}
        self._waits: dict[int, Strand] = {}
        self._watchers: dict[JobId, list[Strand]] = {}
        self._wait_ids = 0
        self._depths: dict[JobId, int] = {}
        self._steps = 0
        self._faults = 0
        self._actions = world.actions

    def play(self) -> Outcome:
        """Both phases."""
        self._trace.add(0, "world", str(self.world.seed), self.world.describe())
        self._plan(0, self._act)
        while self._actions > 0:
            self._step()
        self._heal()
        deadline = self._now + HEALED_MS
        while self.kernel.jobs or self._events or self.kernel.next_due() is not None:
            if self._now > deadline or not self._step():
                self._report_stuck()
        self._laws.check_quiet()
        return Outcome(
            seed=self.world.seed,
            tier="kernel",
            digest=self._trace.digest(),
            steps=self._steps,
            starts=self._shadow.starts,
            faults=self._faults + self._outside.meddled,
            virtual_ms=self._latest,
        )

    # ---- time ----

    def _plan(self, delay: int, call: Callable[[], None]) -> None:
        """Let something happen later; what happens at the same moment happens in a drawn order."""
        self._planned += 1
        heapq.heappush(self._events, (self._now + delay, self._dice.rng.random(), self._planned, call))

    def _step(self) -> bool:
        """Let the next thing happen; False when nothing ever will."""
        tick_at = self._tick_at()
        if tick_at is not None and (not self._events or tick_at <= self._events[0][0]):
            self._now = max(self._now, tick_at)
            self._do(p.Tick())
            return True
        if not self._events:
            return False
        at, _, _, call = heapq.heappop(self._events)
        self._now = max(self._now, at)
        call()
        return True

    def _tick_at(self) -> int | None:
        due = self.kernel.next_due()
        if due is None:
            return None
        if self._tick is None or self._tick[0] != due:
            late = self._dice.span(20) if not self._dice.honest and self._dice.happens("late_tick") else 0
            self._faults += late > 0
            self._tick = (due, due + late)
        return self._tick[1]

    def _act(self) -> None:
        """One action from outside, and the next one planned."""
        self._actions -= 1
        if self._actions <= 0:
            return
        dice = self._dice
        self._plan(dice.span(self.world.gap_ms), self._act)
        self._outside.flood()
        self._outside.meddle()
        if dice.happens("give_up_wait"):
            self._give_up_some_wait()
        if dice.happens("loose_slot"):
            self._begin(dice.loose())
        else:
            self._outside.submit()

    # ---- commands ----

    def _do(self, command: p.Command) -> bool:
        """Give a command to the kernel, check everything, carry out the effects. False: it was refused."""
        self._steps += 1
        if self._steps > STEPS_MAX:
            raise LawBrokenError(f"no end after {STEPS_MAX} steps")
        at = self._now
        if not self._dice.honest and self._dice.happens("clock_back"):
            at = max(0, at - self._dice.rng.randint(1, 50))
            self._faults += 1
        self._latest = max(self._latest, at)
        self._trace.add(self._latest, type(command).__name__, *_words(command))
        if isinstance(command, p.BeginWait):
            self._shadow.waits.add(command.wait_id)
        try:
            effects = self.kernel.step(command, now=at) if self._door == "step" else _call(self.kernel, command, at)
        except (ConfigError, DrainingError, LaneCycleError, LaneFullError, UnknownJobError, UnknownLaneError) as error:
            self._refused(command, error)
            return False
        self._laws.after(command, effects, self._latest)
        for effect in effects:
            self._carry_out(effect)
        self._laws.check_lent(self._lent_nodes())
        self._laws.check_busy(self._busy_nodes())
        return True

    def _refused(self, command: p.Command, error: LanewayError) -> None:
        self._trace.add(self._latest, "  refused", "", type(error).__name__)
        if isinstance(command, p.BeginWait):
            self._shadow.waits.discard(command.wait_id)
        expected: dict[type, tuple[type[LanewayError], ...]] = {
            p.SubmitJob: (ConfigError, DrainingError, LaneFullError, UnknownLaneError),
            p.BeginWait: (LaneCycleError,),
            p.ResizeLane: (ConfigError,),
            p.StopWaiting: (UnknownLaneError,),
            p.ResumeLane: (UnknownLaneError,),
            p.ReopenLane: (UnknownLaneError,),
        }
        if not isinstance(error, expected.get(type(command), ())):
            raise LawBrokenError(f"{type(command).__name__} was refused with {error!r}")
        self._laws.refused(command)

    def _carry_out(self, effect: p.Effect) -> None:
        match effect:
            case p.StartJob(job_id=job_id, attempt=attempt):
                self._trace.add(self._latest, "  start", job_id, f"attempt {attempt}")
                job = self._shadow.jobs[job_id]
                if job.is_slot:
                    self._wake_watchers(job_id)
                    return
                depth = self._depths.get(job_id, 0)
                worker = self._dice.worker(job_id, attempt, depth=depth, threaded=job.threaded)
                self._plan(0, lambda: self._begin(worker))
                self._workers[worker] = None
            case p.CompleteJob(job_id=job_id):
                self._trace.add(self._latest, "  end", job_id, "succeeded")
                self._wake_watchers(job_id)
            case p.SettleJob(job_id=job_id, state=state, stop=stop, abandoned=abandoned):
                detail = f"{state} {stop.value if stop is not None else '-'}{' abandoned' if abandoned else ''}"
                self._trace.add(self._latest, "  end", job_id, detail)
                self._wake_watchers(job_id)
            case p.CancelAttempt(job_id=job_id, attempt=attempt, stop=stop):
                self._trace.add(self._latest, "  ask to end", job_id, f"attempt {attempt} {stop.value}")
                self._plan(0, lambda: self._cancel(job_id, attempt))
            case p.ResumeWait(wait_id=wait_id):
                self._trace.add(self._latest, "  resume", str(wait_id))
                strand = self._waits.pop(wait_id)
                self._continue(strand)
            case _:
                pass

    def _wake_watchers(self, job_id: JobId) -> None:
        for strand in self._watchers.pop(job_id, ()):
            strand.watched = None
            self._continue(strand)

    # ---- strands ----

    def _begin(self, worker: Worker) -> None:
        self._workers[worker] = None
        if worker.ending and not worker.stubborn:
            return  # it was asked to end before its first step, and has
        for strand in worker.strands:
            self._advance(strand)

    def _continue(self, strand: Strand, delay: int = 0) -> None:
        """Let a strand go on later, unless something else happens to it first."""
        turn = strand.turn

        def go_on() -> None:
            if strand.turn == turn and not strand.done:
                strand.turn += 1
                self._advance(strand)

        self._plan(delay, go_on)

    def _advance(self, strand: Strand) -> None:
        """Play the next step of a strand."""
        if strand.wait is not None:
            strand.wait = None
        if strand.asked is not None and not self._take_over(strand):
            return
        if strand.cancelled:
            self._unwind(strand)
            return
        if not strand.script:
            self._strand_done(strand)
            return
        step = strand.script.popleft()
        match step:
            case Work(ms=ms):
                self._continue(strand, ms)
            case Hang():
                self._faults += 1
                strand.hangs = True
                if self._dice.honest:
                    self._continue(strand)
            case Child():
                self._submit_child(strand, step)
            case WaitForSome():
                others = [job_id for job_id, job in self._shadow.live.items() if not job.is_slot]
                self._wait_for(strand, self._dice.rng.choice(others) if others else None)
            case Take():
                self._ask_for_slot(strand, step)
            case Release():
                self._do(p.FinishJob(strand.slots.pop(), 1))
                self._continue(strand)
            case Join():
                if all(other.done or other is strand for other in strand.worker.strands):
                    self._continue(strand)
                else:
                    strand.joining = True
            case EndAttempt():
                self._end_attempt(strand, step)

    def _live_node(self, strand: Strand) -> JobId | None:
        """The innermost node that a strand runs in, if that still counts."""
        worker = strand.worker
        job_id, attempt = (strand.slots[-1], 1) if strand.slots else (worker.job_id, worker.attempt)
        entry = self.kernel.jobs.get(job_id) if job_id is not None else None
        if entry is None or entry.attempt != attempt or entry.state not in (JobState.RUNNING, JobState.LENT):
            return None
        return job_id

    def _submit_child(self, strand: Strand, step: Child) -> None:
        job_id = self._outside.new_id()
        self._depths[job_id] = strand.worker.depth + 1
        up = self._live_node(strand)
        accepted = self._do(p.SubmitJob(job_id, step.lanes, step.spec, None, up, step.threaded))
        self._wait_for(strand, job_id if accepted and step.waits else None)

    def _wait_for(self, strand: Strand, target: JobId | None) -> None:
        """Wait for a job, with the kernel's knowledge if the strand runs inside one."""
        if target is None or target not in self.kernel.jobs:
            self._continue(strand)
            return
        node = self._live_node(strand)
        if node is None:
            strand.watched = target
            self._watchers.setdefault(target, []).append(strand)
            return
        self._wait_ids += 1
        wait_id = self._wait_ids
        strand.wait = wait_id
        self._waits[wait_id] = strand
        if not self._do(p.BeginWait(wait_id, node, target)):
            strand.wait = None
            del self._waits[wait_id]
            if strand.asked is not None:
                self._withdraw(strand)
            self._continue(strand)

    def _ask_for_slot(self, strand: Strand, step: Take) -> None:
        slot = self._outside.new_id("slot")
        up = self._live_node(strand)
        if not self._do(p.SubmitJob(slot, step.lanes, self._slot_spec(), None, up, is_slot=True)):
            self._continue(strand)
            return
        strand.asked = slot
        strand.inner = step.inner
        if self._shadow.jobs[slot].begun or self._shadow.jobs[slot].final is not None:
            self._continue(strand)
        else:
            self._wait_for(strand, slot)

    def _slot_spec(self) -> p.JobSpec:
        spec = self._dice.spec()
        return p.JobSpec(priority=spec.priority, wait_timeout_ms=spec.wait_timeout_ms, tenant=spec.tenant)

    def _take_over(self, strand: Strand) -> bool:
        """A slot that was asked for is granted, or never will be. False: the strand waits on."""
        slot = strand.asked
        assert slot is not None
        job = self._shadow.jobs[slot]
        if strand.cancelled or strand.gave_up:
            strand.gave_up = False
            self._withdraw(strand)
            return True
        if job.begun:
            strand.script.extendleft(reversed((*strand.inner, Release())))
            strand.slots.append(slot)
        elif job.final is None:
            self._watchers.setdefault(slot, []).append(strand)
            strand.watched = slot
            return False
        strand.asked = None
        return True

    def _withdraw(self, strand: Strand) -> None:
        slot, strand.asked = strand.asked, None
        assert slot is not None
        job = self._shadow.jobs[slot]
        if job.final is None:
            self._do(p.FinishJob(slot, 1) if job.begun else p.StopJob(slot, p.Stop.CANCEL, "withdrawn"))

    def _end_attempt(self, strand: Strand, step: EndAttempt) -> None:
        worker = strand.worker
        assert worker.job_id is not None
        strand.done = worker.ended = True
        report = p.FinishJob(
            worker.job_id, worker.attempt, step.end, step.end.value, step.after_ms, self._dice.rng.random()
        )
        self._do(report)
        if worker.twice:
            self._faults += 1
            self._plan(self._dice.span(20), lambda: self._report_again(report))
        self._forget(worker)

    def _report_again(self, report: p.FinishJob) -> None:
        self._do(report)

    def _strand_done(self, strand: Strand) -> None:
        strand.done = True
        worker = strand.worker
        if all(other.done for other in worker.strands) and worker.ending and not worker.stubborn and not worker.ended:
            self._report_cancelled(worker)
        first = worker.strands[0]
        if first.joining and all(other.done or other is first for other in worker.strands):
            first.joining = False
            self._continue(first)
        self._forget(worker)

    def _report_cancelled(self, worker: Worker) -> None:
        worker.ended = True
        if worker.job_id is not None:
            self._do(p.FinishJob(worker.job_id, worker.attempt, p.End.CANCELLED, "asked to"))

    def _forget(self, worker: Worker) -> None:
        if all(strand.done for strand in worker.strands):
            self._workers.pop(worker, None)

    # ---- ending from outside ----

    def _cancel(self, job_id: JobId, attempt: int) -> None:
        for worker in list(self._workers):
            if worker.job_id == job_id and worker.attempt == attempt and not worker.ended:
                worker.ending = True
                if worker.stubborn:
                    self._faults += 1
                else:
                    self._cancel_worker(worker)

    def _cancel_worker(self, worker: Worker) -> None:
        for strand in worker.strands:
            if strand.done or strand.cancelled:
                continue
            strand.cancelled = True
            if strand.wait is not None and strand.wait in self._shadow.waits:
                self._do(p.CancelWait(strand.wait))
            elif strand.wait is None:
                self._stop_watching(strand)
                strand.turn += 1
                self._advance(strand)

    def _stop_watching(self, strand: Strand) -> None:
        if strand.watched is not None:
            self._watchers[strand.watched].remove(strand)
            strand.watched = None

    def _unwind(self, strand: Strand) -> None:
        """A cancelled strand gives back its slots, innermost first."""
        while strand.slots:
            self._do(p.FinishJob(strand.slots.pop(), 1))
        strand.script.clear()
        self._strand_done(strand)

    def _give_up_some_wait(self) -> None:
        waiting = [strand for wait_id, strand in self._waits.items() if wait_id in self._shadow.waits]
        if waiting:
            strand = self._dice.rng.choice(waiting)
            strand.worker.tainted = True
            strand.gave_up = strand.asked is not None
            self._faults += 1
            assert strand.wait is not None
            self._do(p.CancelWait(strand.wait))

    # ---- what the workers know ----

    def _lent_nodes(self) -> Iterator[JobId]:
        """The nodes from which somebody waits at this moment."""
        for wait_id, strand in self._waits.items():
            if wait_id in self._shadow.waits:
                yield from self._live_nodes(strand)

    def _live_nodes(self, strand: Strand) -> Iterator[JobId]:
        node = self._live_node(strand)
        if node is not None:
            yield node

    def _busy_nodes(self) -> Iterator[JobId]:
        """The nodes in which work goes on and nothing is waited for or was given up."""
        waiting = {strand.worker for wait_id, strand in self._waits.items() if wait_id in self._shadow.waits}
        for worker in self._workers:
            if worker in waiting or worker.tainted or worker.ending or worker.ended or worker.job_id is None:
                continue
            job = self._shadow.jobs[worker.job_id]
            if job.begun and job.attempt == worker.attempt:
                yield job.id

    # ---- healing ----

    def _heal(self) -> None:
        self._trace.add(self._now, "heal")
        self._dice.honest = True
        self._outside.heal()
        for worker in list(self._workers):
            worker.stubborn = False
            if worker.ending and not worker.ended:
                self._cancel_worker(worker)
            for strand in worker.strands:
                if strand.hangs and not strand.done:
                    self._continue(strand)

    def _report_stuck(self) -> None:
        stages = (JobState.RUNNING, JobState.LENT, JobState.SCHEDULED, JobState.QUEUED)
        jobs = sorted(self.kernel.jobs.values(), key=lambda entry: stages.index(entry.state))
        lines = [str(explain(self.kernel, entry.id, now=self._latest, wall_ms=0)) for entry in jobs]
        shown = "\n  ".join(lines[:STUCK_SHOWN])
        raise LawBrokenError(f"stuck: {len(lines)} jobs never end after everything was healed\n  {shown}")


def _words(command: p.Command) -> tuple[str, str]:
    """A command as the subject and the rest of a line."""
    subject, *rest = [*command, "", ""] if len(command) else ["", ""]
    shown = [_word(value) for value in rest if value not in (None, "", 0, False)]
    return _word(subject), " ".join(shown)


def _word(value: object) -> str:
    if isinstance(value, p.JobSpec):
        return value.priority.name
    if isinstance(value, tuple):
        return "+".join(value)
    if isinstance(value, float):
        return ""
    return str(getattr(value, "value", value))


def _call(kernel: Kernel, command: p.Command, now: int) -> list[p.Effect]:
    """The other door: the handler itself."""
    match command:
        case p.SubmitJob(job_id, lanes, spec, payload, up, threaded, is_slot):
            return kernel.submit(job_id, lanes, spec, payload, now=now, up=up, threaded=threaded, is_slot=is_slot)
        case p.FinishJob(job_id, attempt, end, reason, after_ms, jitter):
            return kernel.finish(job_id, attempt, end, now=now, reason=reason, after_ms=after_ms, jitter=jitter)
        case p.StopJob(job_id, stop, reason, actor):
            return kernel.stop(job_id, stop, reason, actor, now=now)
        case p.BeginWait(wait_id, node_id, target_id):
            return kernel.begin_wait(wait_id, node_id, target_id, now=now)
        case p.CancelWait(wait_id):
            return kernel.cancel_wait(wait_id, now=now)
        case p.Tick():
            return kernel.tick(now=now)
        case _:
            return kernel.step(command, now=now)
