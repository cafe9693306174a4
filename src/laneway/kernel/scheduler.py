"""The one owner of queue state: every decision about jobs and lanes is taken here.

Each handler takes the time (monotonic milliseconds) and returns what the engine has to do. Handlers never wait,
read no clock and draw no random number, so the same commands give the same effects everywhere; `step` unpacks a
logged command and calls the handler. A handler that refuses has changed nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import assert_never

from laneway.errors import ConfigError, DrainingError, LaneFullError, UnknownJobError, UsageError
from laneway.events import (
    JobCompleted,
    JobQueued,
    JobSubmitted,
    LaneClosed,
    LanePaused,
    LaneReopened,
    LaneResized,
    LaneResumed,
    ShutdownStarted,
)
from laneway.kernel import protocol
from laneway.kernel.endings import BEGUN, STOP_TRIGGERS, Endings, may_stop, policy_of
from laneway.kernel.histograms import FINE
from laneway.kernel.jobs import TRANSITIONS, Entry, Trigger, move
from laneway.kernel.lanes import Lane, Pool, parent_of
from laneway.kernel.protocol import (
    Command,
    CompleteJob,
    Effect,
    End,
    FinishJob,
    Hold,
    JobSpec,
    RestoredJob,
    ResumeWait,
    Stop,
)
from laneway.kernel.registry import Registry
from laneway.kernel.timers import Alarm
from laneway.records import FINAL_STATES, JobId, JobState, RetryPolicy, check_concurrency

_SUCCEEDED = TRANSITIONS[JobState.RUNNING, Trigger.SUCCEED]
_new = tuple.__new__  # makes a NamedTuple at half the price; only where every job passes


class Kernel(Endings):
    """Takes commands, decides, answers with effects. Pure: time, ids and random numbers come with the command."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self.draining: str | None = None
        self._lanes = registry.lanes
        self._now = 0

    # ---- jobs ----

    def submit(
        self,
        job_id: JobId,
        lanes: str | Sequence[str],
        spec: JobSpec,
        entry: Entry | None = None,
        now: int = 0,
        up: JobId | None = None,
        threaded: bool = False,
        is_slot: bool = False,
    ) -> list[Effect]:
        """Take a job: it starts at once, waits, or is refused and nothing has changed."""
        if now > self._now:  # as `_begin`, without the call
            self._now = now
        else:
            now = self._now
        self._out = []
        if spec.is_plain and up is None and not threaded and not is_slot and self.draining is None:
            lane = self._lanes.get(lanes if type(lanes) is str else lanes[0])
            if lane is not None and lane.plain and (type(lanes) is str or len(lanes) == 1):
                self._submit_plain(job_id, lane, spec, entry or Entry(), now)
                return self._out
        above = self.jobs.get(up) if up is not None else None
        if self.draining is not None and above is None:
            raise DrainingError(purpose=self.draining)
        found = self._find_all((lanes,) if isinstance(lanes, str) else lanes, now)
        if entry is None:
            entry = Entry()
        entry.admit(job_id, found, spec, self._sequence + 1, now)
        if threaded:
            entry.threaded = True
        if above is not None:
            parent_of(above)
            entry.up = above
            if is_slot:
                entry.inside = True
        if is_slot:
            entry.is_slot = True
        try:
            if len(found) > 1:
                self._check_order(found)
                entry.places = [entry.place]
            for lane in found:
                if lane.queued_max is not None and lane.waiting + lane.scheduled >= lane.queued_max:
                    self._refuse_if_full(entry, lane, now)
        except (LaneFullError, ConfigError):
            for lane in found:
                self.registry.retire_if_idle(lane, now)
            raise
        self._sequence += 1
        self.jobs[job_id] = entry
        if entry.inside:
            entry.is_part = True
        for lane in found:
            if not lane.configured:
                lane.users += 1
            lane.counters.submitted += 1
        if spec.key is not None:
            self.keys[spec.tenant, spec.key] = job_id
        self._accept(entry, now)
        return self._end_command(now)

    def _find_all(self, names: Sequence[str], now: int) -> tuple[Lane, ...]:
        """All of these lanes, or none of them: a refusal leaves no lane behind that was made for it."""
        found: list[Lane] = []
        try:
            for name in names:
                found.append(self.registry.find(name, now))  # noqa: PERF401 - those found so far matter
        except UsageError:
            for lane in found:
                self.registry.retire_if_idle(lane, now)
            raise
        return tuple(found)

    def _submit_plain(self, job_id: JobId, lane: Lane, spec: JobSpec, entry: Entry, now: int) -> None:
        """The short way for a plain job in a plain lane; it decides what the long way would."""
        entry.id = job_id
        entry.lanes = lane.alone
        entry.spec = spec
        entry.state = JobState.QUEUED
        entry.phase = 1
        entry.attempt = 0
        entry.simple = lane.configured
        entry.units = ()
        entry.submitted_at = entry.queued_at = now
        self._sequence = entry.place = self._sequence + 1
        self.jobs[job_id] = entry
        if not lane.configured:
            lane.users += 1
        lane.counters.submitted += 1
        self.waiting += 1
        if self.listening:
            self.job_event(JobSubmitted, entry)
        lane.queue.push_plain(entry)
        lane.waiting = waiting = lane.waiting + 1
        if waiting >= lane.watch_high:
            self._watch(lane)
        if lane.held < lane.cap:
            self._pump(lane, now)

    def _accept(self, entry: Entry, now: int) -> None:
        if entry.inside and self._trim_slot(entry):
            self.waiting += 1
            self.job_event(JobSubmitted, entry)
            self._run(entry, now)  # the job around it has all it asks for
            return
        delay = entry.spec.delay_ms
        if delay:
            entry.state = JobState.SCHEDULED
            self._schedule(entry, now + delay)
            self.job_event(JobSubmitted, entry)
            return
        self.waiting += 1
        self.job_event(JobSubmitted, entry)
        lane = self._queue(entry, now)
        if lane.parked is not None and lane.head(now) is lane.parked_for:
            return  # the head of a parked lane has not changed, so nothing can start
        self._pump(lane, now)

    def _trim_slot(self, entry: Entry) -> bool:
        """A slot asks only for lanes that the job around it does not have. True: it has them all already."""
        up = entry.up
        assert up is not None
        up.simple = False
        if up.inner is None:
            up.inner = []
        up.inner.append(entry)
        taken = self._around(entry)
        left = tuple(lane for lane in entry.lanes if lane not in taken)
        if len(left) != len(entry.lanes) and left:
            for lane in entry.lanes:
                if lane not in left:
                    if not lane.configured:
                        lane.users -= 1
                    lane.counters.submitted -= 1
            entry.lanes = left
        return not left

    def finish(
        self,
        job_id: JobId,
        attempt: int,
        end: End = End.SUCCEEDED,
        now: int = 0,
        reason: str = "",
        after_ms: int = 0,
        jitter: float = 0.0,
        hold: Hold | None = None,
    ) -> list[Effect]:
        """An attempt has ended. What comes from an attempt that is no longer the current one changes nothing."""
        if now > self._now:  # as `_begin`, without the call
            self._now = now
        else:
            now = self._now
        self._out = []
        entry = self.jobs.get(job_id)
        if entry is not None and entry.simple and end is End.SUCCEEDED and entry.attempt == attempt:
            self._finish_simple(entry, entry.lanes[0], now)
            return self._out
        if entry is None or entry.attempt != attempt or entry.state not in BEGUN:
            if (job_id, attempt) in self._zombies:
                self._zombies.remove((job_id, attempt))
                self.threads.held -= 1
                self.mark(self.threads)
            return self._end_command(now)
        if end is End.SUCCEEDED and entry.stop is None:
            self._finish_job(entry, Trigger.SUCCEED, now)
        else:
            self._attempt_over(entry, FinishJob(job_id, attempt, end, reason, after_ms, jitter, hold), now)
        return self._end_command(now)

    def _finish_simple(self, entry: Entry, lane: Lane, now: int) -> None:
        """The short way for the success of a simple job: its slot passes to the next in the lane."""
        if entry.state is not JobState.RUNNING:
            return  # an attempt of before a retry: nobody waits for its word
        job_id = entry.id
        entry.state = _SUCCEEDED
        del self.jobs[job_id]
        lane.counters.completed += 1
        ran = now - entry.started_at
        if ran < FINE:
            lane.run_counts[ran] += 1
        else:
            lane.counters.run.add(ran)
        self._out.append(_new(CompleteJob, (entry, job_id)))
        if self.listening:
            self.job_event(JobCompleted, entry, run_ms=ran)
        lane.held -= 1
        self.running -= 1
        if lane.waiting:
            if lane.plain and lane.held < lane.cap and not lane.paused and not lane.takers:
                following = lane.queue.pop_plain()
                if following is not None:
                    lane.waiting = waiting = lane.waiting - 1
                    if waiting <= lane.watch_low:
                        self._watch(lane)
                    self._start_plain(following, lane, now)
                    if lane.held >= lane.cap:
                        return
        elif not lane.takers:
            return
        self._pump(lane, now)
        if self._marked_lanes or self._marked_pools:
            self._settle(now)

    def stop(
        self,
        job_id: JobId,
        stop: Stop = Stop.CANCEL,
        reason: str = "",
        actor: str = "caller",
        *,
        now: int,
    ) -> list[Effect]:
        """End a job from outside: what waits ends at once, what runs is asked to end and given its grace."""
        now = self._begin(now)
        entry = self.jobs.get(job_id)
        if entry is None:
            raise UnknownJobError(job_id=job_id)
        self._stop(entry, stop, reason, actor, now)
        return self._end_command(now)

    def can_stop(self, job_id: JobId) -> bool:
        """Whether `stop` would do anything: the job is live, not being ended, and not a slot in use."""
        entry = self.jobs.get(job_id)
        return entry is not None and may_stop(entry, Stop.CANCEL)

    def stop_waiting(self, lane: str | None, reason: str, prefix: str = "", *, now: int) -> list[Effect]:
        """End everything that has not begun, in one lane, in all whose name begins so, or in all."""
        now = self._begin(now)
        if lane is not None:
            self.registry.check_known(lane)
        for entry in list(self.jobs.values()):
            if entry.state in BEGUN or entry.state in FINAL_STATES:
                continue
            names = [one.name for one in entry.lanes]
            if (lane is None or lane in names) and any(name.startswith(prefix) for name in names):
                self._stop(entry, Stop.CANCEL, reason, "caller", now)
        return self._end_command(now)

    def abandon(self, job_id: JobId, reason: str, *, now: int) -> list[Effect]:
        """Let go of a live job without waiting for its end: it is cancelled, or was never more than waiting."""
        now = self._begin(now)
        entry = self.jobs.get(job_id)
        if entry is None:
            return self._end_command(now)
        if entry.stop is None:
            entry.stop, entry.reason, entry.simple = Stop.CANCEL, reason, False
        begun = entry.state in BEGUN
        if begun and not entry.is_slot:
            self._note_abandoned(entry)
        self._finish_job(entry, STOP_TRIGGERS[entry.stop], now, abandoned=begun)
        return self._end_command(now)

    # ---- jobs of a store ----

    def restore(self, jobs: Sequence[RestoredJob], *, now: int) -> list[Effect]:
        """Go on with jobs that were taken before: all of them stand in their places before the first one starts.

        Nothing is refused: neither a depth nor a drain is about work that was taken long ago.
        """
        now = self._begin(now)
        for job in jobs:
            self._restore(job, now)
        return self._end_command(now)

    def _restore(self, job: RestoredJob, now: int) -> None:
        found = tuple(self.registry.find(name, now, make=True) for name in job.lanes)
        entry, spec = job.entry, job.spec
        entry.admit(job.job_id, found, spec, self._next_place(), now)
        if len(found) > 1:
            entry.places = [entry.place]
        entry.submitted_at = now - job.age_ms
        entry.due_at = now  # it has waited for as long as somebody was there to let it start: not at all
        entry.attempt, entry.failures, entry.deferrals = job.attempt, job.failures, job.deferrals
        entry.history = list(job.history) or None
        entry.threaded = job.threaded
        self.jobs[entry.id] = entry
        for lane in found:
            if not lane.configured:
                lane.users += 1
            lane.counters.submitted += 1
        if spec.key is not None:
            self.keys[spec.tenant, spec.key] = entry.id
        if job.due_in_ms or job.hold is not None:
            entry.state = JobState.SCHEDULED
            self._schedule(entry, now + job.due_in_ms, job.hold)
            self.job_event(JobSubmitted, entry)
        else:
            self.waiting += 1
            self.job_event(JobSubmitted, entry)
            self.mark(self._queue(entry, now))

    def check_restored(self, lanes: Sequence[str], *, now: int) -> None:
        """Refuse what `restore` could not put into its lanes as they are configured today."""
        found = tuple(self.registry.find(name, now, make=True) for name in lanes)
        try:
            if len(found) > 1:
                self._check_order(found)
        finally:
            for lane in found:
                self.registry.retire_if_idle(lane, now)

    def policy_for(self, spec: JobSpec, lanes: Sequence[str], *, now: int) -> RetryPolicy:
        """Whether a job that is about to be restored may run again."""
        lane = self.registry.find(lanes[-1], now, make=True)
        self.registry.retire_if_idle(lane, now)
        return policy_of(spec, lane.config)

    def release(self, job_ids: Sequence[JobId], threaded: bool | None = None, *, now: int) -> list[Effect]:
        """What held these jobs up is gone: they are due now, or when they would have been."""
        now = self._begin(now)
        for job_id in job_ids:
            entry = self.jobs.get(job_id)
            if entry is None or entry.held is None:
                continue
            entry.held = None
            if threaded is not None:
                entry.threaded = threaded
            if entry.held_until > now:
                self.timers.set(entry.held_until, Alarm.DUE, entry)
            else:
                self._job_due(Alarm.DUE, entry, now)
        return self._end_command(now)

    def leave(self, job_ids: Sequence[JobId], *, now: int) -> list[Effect]:
        """Jobs that have not begun leave without an end, before anything else starts; those that run stay."""
        now = self._begin(now)
        for job_id in job_ids:
            entry = self.jobs.get(job_id)
            if entry is None or entry.state in BEGUN:
                continue
            if entry.state is JobState.SCHEDULED:
                self._unschedule(entry)
            else:
                self._leave_queue(entry)
            self._forget(entry)
            self._let_others_go_on(entry, now)
        return self._end_command(now)

    # ---- waits ----

    def begin_wait(self, wait_id: int, node_id: JobId, target_id: JobId, *, now: int) -> list[Effect]:
        """A running job waits for another live job and lends what it holds; circles are refused."""
        now = self._begin(now)
        node, target = self.jobs.get(node_id), self.jobs.get(target_id)
        if node is None or node.state not in BEGUN or target is None:
            raise UnknownJobError(job_id=node_id if target is not None else target_id)
        if target.is_slot and target.state in BEGUN:
            self.emit(ResumeWait(wait_id))
            return self._end_command(now)
        self.lending.begin(wait_id, node, target)
        return self._end_command(now)

    def cancel_wait(self, wait_id: int, *, now: int) -> list[Effect]:
        """A wait is given up: it returns at once, or when the heirs of an exclusive lane have ended."""
        now = self._begin(now)
        wait = self.lending.cancel(wait_id)
        if wait is not None:
            ended_first = self._job_heirs(wait.chain)
            if ended_first:
                self._after(ended_first, wait, now, reason="the job that lent it the lane stopped waiting")
            else:
                self.lending.give_up(wait)
        return self._end_command(now)

    # ---- lanes ----

    def resize(self, lane: str, concurrency: int, queued_max: int | None = None, *, now: int) -> list[Effect]:
        """Change a width: raising starts what waits, lowering evicts nobody."""
        check_concurrency(concurrency, setting=f"concurrency of lane {lane!r}")
        now = self._begin(now)
        found = self.registry.find(lane, now)
        if found.stack is not None and concurrency > 1:
            self.registry.retire_if_idle(found, now)
            raise ConfigError(
                f"lane {lane!r} is exclusive: its width is 0 or 1, not {concurrency}", setting="concurrency"
            )
        found.cap = concurrency
        found.configured = True
        if queued_max is not None:
            found.queued_max = queued_max
            found.set_care()
        if self.listening:
            self.publish(LaneResized(lane=lane, concurrency=concurrency))
        self.mark(found)
        for taker in found.takers:
            for unit in taker.needs:
                self.mark(unit)  # what a taker keeps elsewhere depends on whether it can have this lane
        return self._end_command(now)

    def pause(self, lane: str, *, now: int) -> list[Effect]:
        """Start nothing in a lane; what runs goes on."""
        now = self._begin(now)
        found = self.registry.find(lane, now)
        if not found.paused:
            found.paused = True
            if self.listening:
                self.publish(LanePaused(lane=lane))
            self.mark(found)
        return self._end_command(now)

    def resume(self, lane: str, *, now: int) -> list[Effect]:
        """Start jobs in a paused lane again."""
        now = self._begin(now)
        found = self.registry.lanes.get(lane)
        if found is None:
            self.registry.check_known(lane)
        elif found.paused:
            found.paused = False
            if self.listening:
                self.publish(LaneResumed(lane=lane))
            self.mark(found)
            self._retire(found, now)
        return self._end_command(now)

    def close_lane(self, lane: str, for_ms: int, until_ms: int, reason: str, *, now: int) -> list[Effect]:
        """Close a lane's limit for a while; what waits says so."""
        now = self._begin(now)
        found = self.registry.find(lane, now)
        found.closed_until = now + for_ms
        found.closed_wall_ms = until_ms
        found.closed_reason = reason
        found.set_care()
        self._set_lane_alarm(found, now + for_ms)
        if self.listening:
            self.publish(LaneClosed(lane=lane, until_ms=until_ms, reason=reason))
        self.mark(found)
        return self._end_command(now)

    def reopen_lane(self, lane: str, *, now: int) -> list[Effect]:
        """Open a closed limit before its time."""
        now = self._begin(now)
        found = self.registry.lanes.get(lane)
        if found is None:
            self.registry.check_known(lane)
        else:
            self._open_limit(found)
            self._retire(found, now)
        return self._end_command(now)

    def _open_limit(self, lane: Lane) -> None:
        if lane.closed_until is None:
            return
        lane.closed_until = lane.closed_wall_ms = None
        lane.closed_reason = ""
        lane.phase += 1
        lane.set_care()
        if self.listening:
            self.publish(LaneReopened(lane=lane.name))
        self.mark(lane)

    def drain(self, purpose: str, *, now: int) -> list[Effect]:
        """Take no new work but what live jobs submit; everything that was taken still runs."""
        now = self._begin(now)
        self.draining = purpose
        if self.listening:
            self.publish(ShutdownStarted(purpose=purpose))
        return self._end_command(now)

    def reopen(self, *, now: int) -> list[Effect]:
        """Take work again after a drain."""
        self._begin(now)
        self.draining = None
        return self._end_command(now)

    # ---- time ----

    def tick(self, *, now: int) -> list[Effect]:
        """Do everything that is due by now."""
        now = self._begin(now)
        while (due := self.timers.pop_due(now)) is not None:
            alarm, owner = due
            if isinstance(owner, Lane):
                self._lane_due(owner, now)
            else:
                self._job_due(alarm, owner, now)
        return self._end_command(now)

    def next_due(self) -> int | None:
        """When `tick` has something to do; None when the kernel sleeps."""
        return self.timers.next_due()

    def _lane_due(self, lane: Lane, now: int) -> None:
        if lane.closed_until is not None and lane.closed_until <= now:
            self._open_limit(lane)
        elif lane.closed_until is not None:
            self._set_lane_alarm(lane, lane.closed_until)
        self._retire(lane, now)
        self.mark(lane)

    def _job_due(self, alarm: Alarm, entry: Entry, now: int) -> None:
        match alarm:
            case Alarm.DUE:
                self._unschedule(entry)
                move(entry, Trigger.BECOME_DUE)
                entry.due_at = now
                self.waiting += 1
                self.job_event(JobQueued, entry)
                self.mark(self._queue(entry, now))
            case Alarm.WAIT:
                self._stop(entry, Stop.WAIT_TIMEOUT, f"waited {now - entry.since} ms for a slot", "clock", now)
            case Alarm.RUN:
                self._stop(entry, Stop.TIMEOUT, f"ran {now - entry.started_at} ms", "clock", now)
            case Alarm.GRACE:
                self._abandon(entry, now)
            case Alarm.LANE:
                raise AssertionError(alarm)
            case _:
                assert_never(alarm)

    # ---- checks ----

    @staticmethod
    def _check_order(lanes: tuple[Lane, ...]) -> None:
        """Several lanes: at most one exclusive one, first; the others in the order of their configuration."""
        if any(lane.stack is not None for lane in lanes[1:]):
            names = ", ".join(lane.name for lane in lanes)
            raise ConfigError(
                f"lanes {names}: of several lanes at most one is exclusive, and it comes first",
                setting="lane",
                hint="session lanes are exclusive; name one, and name it first",
            )
        rest = lanes[1:] if lanes[0].stack is not None else lanes
        if any(one.order >= other.order for one, other in pairwise(rest)):
            names = ", ".join(lane.name for lane in lanes)
            raise ConfigError(
                f"lanes {names} are not in the order of their configuration",
                setting="lane",
                hint="name them in the order in which they were configured, each once",
            )

    def _refuse_if_full(self, entry: Entry, lane: Lane, now: int) -> None:
        """The depth is reached: refuse, unless the job would not have to wait at all."""
        could_start = not entry.spec.delay_ms and all(
            one.waiting == 0 and one.is_open() and not one.limit_wait_ms(now) and not one.stack for one in entry.lanes
        )
        pools = [unit for unit in self._units_for(entry) if isinstance(unit, Pool)]
        if not could_start or not all(pool.has_room_for(entry) for pool in pools):
            assert lane.queued_max is not None
            raise LaneFullError(lane=lane.name, queued_max=lane.queued_max, waiting=lane.waiting + lane.scheduled)

    # ---- the frame of every handler ----

    def _begin(self, now: int) -> int:
        """Time never runs backwards in here, whatever the clock does."""
        if now > self._now:
            self._now = now
        self._out = []
        return self._now

    def _end_command(self, now: int) -> list[Effect]:
        if self._marked_lanes or self._marked_pools:
            self._settle(now)
        out, self._out = self._out, []  # what was handed over is not kept alive here
        return out

    def step(self, command: Command, *, now: int) -> list[Effect]:
        """Unpack a command and call its handler."""
        match command:
            case protocol.SubmitJob(job_id, lanes, spec, entry, up, threaded, is_slot):
                return self.submit(job_id, lanes, spec, entry, now, up, threaded, is_slot)
            case protocol.RestoreJobs(jobs):
                return self.restore(jobs, now=now)
            case protocol.ReleaseJobs(job_ids, threaded):
                return self.release(job_ids, threaded, now=now)
            case protocol.LeaveJobs(job_ids):
                return self.leave(job_ids, now=now)
            case protocol.FinishJob(job_id, attempt, end, reason, after_ms, jitter, hold):
                return self.finish(job_id, attempt, end, now, reason, after_ms, jitter, hold)
            case protocol.StopJob(job_id, stop, reason, actor):
                return self.stop(job_id, stop, reason, actor, now=now)
            case protocol.StopWaiting(lane, reason, prefix):
                return self.stop_waiting(lane, reason, prefix, now=now)
            case protocol.AbandonJob(job_id, reason):
                return self.abandon(job_id, reason, now=now)
            case protocol.BeginWait(wait_id, node_id, target_id):
                return self.begin_wait(wait_id, node_id, target_id, now=now)
            case protocol.CancelWait(wait_id):
                return self.cancel_wait(wait_id, now=now)
            case protocol.ResizeLane(name, concurrency, queued_max):
                return self.resize(name, concurrency, queued_max, now=now)
            case protocol.PauseLane(name):
                return self.pause(name, now=now)
            case protocol.ResumeLane(name):
                return self.resume(name, now=now)
            case protocol.CloseLane(name, for_ms, until_ms, reason):
                return self.close_lane(name, for_ms, until_ms, reason, now=now)
            case protocol.ReopenLane(name):
                return self.reopen_lane(name, now=now)
            case protocol.Drain(purpose):
                return self.drain(purpose, now=now)
            case protocol.Reopen():
                return self.reopen(now=now)
            case protocol.Tick():
                return self.tick(now=now)
            case _:
                assert_never(command)
