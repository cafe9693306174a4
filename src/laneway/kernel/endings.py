"""Ending: how attempts and jobs come to their end, whoever asks for it.

An attempt that did not succeed either runs again (its policy allows it, and its effect, if it timed out) or ends
the job. A job that is ended from outside leaves its queue at once; if it runs it is asked to end and given its grace,
after which the attempt is abandoned: it may go on outside, but it can change nothing here any more.
"""

from __future__ import annotations

from laneway.events import (
    JobAbandoned,
    JobCancelled,
    JobCompleted,
    JobDeadLettered,
    JobEvent,
    JobFailed,
    JobRetried,
    JobTimedOut,
)
from laneway.kernel.admission import Admission
from laneway.kernel.jobs import Entry, Trigger, move, verdict_on
from laneway.kernel.lanes import Lane
from laneway.kernel.lending import Bereavement, Wait, heirs, root_of, slots_inside
from laneway.kernel.protocol import (
    CancelAttempt,
    CompleteJob,
    End,
    FinishJob,
    Hold,
    JobSpec,
    KeepDeadLetter,
    SettleJob,
    Stop,
    StoreJob,
)
from laneway.kernel.registry import Registry
from laneway.kernel.timers import Alarm
from laneway.records import FINAL_STATES, JobId, JobState, LaneConfig, RetryPolicy
from laneway.records import Effect as JobEffect

HISTORY_MAX = 100
BEGUN = (JobState.RUNNING, JobState.LENT)
STOP_TRIGGERS = {
    Stop.CANCEL: Trigger.CANCEL,
    Stop.ABORT: Trigger.CANCEL,
    Stop.TIMEOUT: Trigger.TIME_OUT,
    Stop.WAIT_TIMEOUT: Trigger.TIME_OUT,
}
_NO_RETRY = RetryPolicy.none()
_END_EVENTS: dict[JobState, type[JobEvent]] = {
    JobState.FAILED: JobFailed,
    JobState.CANCELLED: JobCancelled,
    JobState.TIMED_OUT: JobTimedOut,
    JobState.DEAD: JobDeadLettered,
}


class Endings(Admission):
    """The part of the kernel that ends attempts and jobs."""

    def __init__(self, registry: Registry) -> None:
        super().__init__(registry)
        self.keys: dict[tuple[str, str], JobId] = {}
        self._zombies: set[tuple[JobId, int]] = set()  # abandoned attempts that still sit on a thread

    # ---- how an attempt ends ----

    def _attempt_over(self, entry: Entry, ended: FinishJob, now: int, *, abandoned: bool = False) -> None:
        """An attempt did not simply succeed: decide between another one and an end."""
        policy = policy_of(entry.spec, entry.lanes[-1].config)
        if entry.stop is not None:
            reason = entry.reason + (" (abandoned)" if abandoned else "")
            if entry.stop is not Stop.TIMEOUT or entry.spec.effect is JobEffect.WRITE or not policy.max_retries:
                self._finish_job(entry, STOP_TRIGGERS[entry.stop], now, abandoned=abandoned)
                return
            ended = ended._replace(end=End.FAILED, reason=reason)
        elif ended.end is End.CANCELLED:
            entry.reason = ended.reason
            self._finish_job(entry, Trigger.CANCEL, now)
            return
        elif ended.end in (End.PUT_BACK, End.INTERRUPTED):
            entry.attempt -= ended.end is End.PUT_BACK
            self._wait_again(entry, ended.after_ms, now, hold=ended.hold)
            return
        verdict = verdict_on(ended, policy, failures=entry.failures, deferrals=entry.deferrals)
        if verdict.deferred:
            entry.deferrals += 1
        elif ended.end is not End.GAVE_UP:
            entry.failures += 1
        _remember(entry, verdict.reason)
        if verdict.trigger is Trigger.RETRY:
            self._wait_again(entry, verdict.delay_ms, now, abandoned=abandoned)
            for lane in entry.lanes:
                lane.counters.retried += 1
            self.job_event(JobRetried, entry, verdict.reason, delay_ms=verdict.delay_ms)
            return
        entry.reason = verdict.reason
        self._finish_job(entry, verdict.trigger, now, abandoned=abandoned)

    def _wait_again(
        self, entry: Entry, delay: int, now: int, *, hold: Hold | None = None, abandoned: bool = False
    ) -> None:
        """An attempt is over and the job is not: it waits for a time, or is held."""
        self._leave_run(entry, now, abandoned=abandoned)
        entry.simple = False
        move(entry, Trigger.RETRY)
        entry.phase += 1
        entry.stage = 0
        entry.stop = None
        entry.reason = ""
        entry.actor = "scheduler"
        if entry.places is not None:
            entry.place = entry.places[0]
        self._schedule(entry, now + delay, hold)
        if entry.durable:
            self.emit(StoreJob(entry, entry.id, now + delay if hold is None else None))

    def _schedule(self, entry: Entry, due: int, hold: Hold | None = None) -> None:
        self.scheduled += 1
        for lane in entry.lanes:
            lane.scheduled += 1
        if hold is None:
            self.timers.set(due, Alarm.DUE, entry)
        else:
            entry.held = hold
            entry.held_until = due

    def _unschedule(self, entry: Entry) -> None:
        self.scheduled -= 1
        for lane in entry.lanes:
            lane.scheduled -= 1

    def _leave_run(self, entry: Entry, now: int, *, abandoned: bool = False) -> None:
        """A job that has begun gives back what it holds."""
        was_lent = entry.lent
        if entry.is_part:
            pass  # the job around it is counted
        elif was_lent:
            self.lent -= 1
        else:
            self.running -= 1
        units = entry.units
        if abandoned and entry.threaded:
            # Its slots are free, its thread is not: it comes back when the function returns.
            self._zombies.add((entry.id, entry.attempt))
            units = tuple(unit for unit in units if unit is not self.threads)
        for unit in units:
            if isinstance(unit, Lane):
                if was_lent:
                    unit.lent -= 1
                if unit.stack is not None:
                    unit.stack.remove(entry)
            if not was_lent or unit is self.threads:
                unit.come_back(entry)
            self.mark(unit)
        entry.units = ()
        entry.lanes[-1].counters.run.add(now - entry.started_at)
        if was_lent or entry.waits or entry.inner:
            self.lending.forget(entry)

    def _finish_job(self, entry: Entry, trigger: Trigger, now: int, *, abandoned: bool = False) -> None:
        """A job reaches a final state: everybody who cares is told, and the kernel forgets it."""
        if entry.state in BEGUN:
            self._leave_run(entry, now, abandoned=abandoned)
        elif entry.state is JobState.SCHEDULED:
            self._unschedule(entry)
        else:
            self._leave_queue(entry)
        move(entry, trigger)
        self._forget(entry)
        self._tell_end(entry, now, abandoned=abandoned)
        self._let_others_go_on(entry, now)

    def _forget(self, entry: Entry) -> None:
        entry.phase += 1
        del self.jobs[entry.id]
        if entry.spec.key is not None:
            self.keys.pop((entry.spec.tenant, entry.spec.key), None)
        if entry.inside and entry.up is not None and entry.up.inner:
            entry.up.inner.remove(entry)

    def _let_others_go_on(self, entry: Entry, now: int) -> None:
        """A job is no longer here: those that wait for it, and the lanes made for it, need not stay either."""
        if entry.waiters:
            self.lending.settle(entry)
        for bereaved in entry.mourners or ():
            bereaved.left -= 1
            if bereaved.left == 0:
                bereaved.then(now)
        for lane in entry.lanes:
            if not lane.configured:
                lane.users -= 1
                self._retire(lane, now)

    def _leave_queue(self, entry: Entry) -> None:
        """A job that has not begun leaves its queue, and the lanes it had already passed."""
        self.waiting -= 1
        lane = entry.lanes[entry.stage]
        self._unqueue(entry, lane, started=False)
        for unit in entry.units:
            assert isinstance(unit, Lane)
            if unit.stack is not None:
                unit.stack.remove(entry)
            unit.come_back(entry)
            self.mark(unit)
        entry.units = ()
        self.mark(lane)

    def _retire(self, lane: Lane, now: int) -> None:
        """Forget a lane made on the fly that nothing uses; one with a rate limit when its bucket is full again."""
        if lane.configured or lane.users:
            return
        if lane.bucket is not None and not lane.bucket.is_full(now):
            self._set_lane_alarm(lane, now + lane.config.rate_limit.window_ms if lane.config.rate_limit else now)
            return
        if lane.parked is not None:
            lane.parked.unpark(lane)
        self.registry.retire_if_idle(lane, now)

    def _tell_end(self, entry: Entry, now: int, *, abandoned: bool) -> None:
        state = entry.state
        for lane in entry.lanes:
            counters = lane.counters
            if state is JobState.SUCCEEDED:
                counters.completed += 1
            elif state is JobState.CANCELLED:
                counters.cancelled += 1
            elif state is JobState.TIMED_OUT:
                counters.timed_out += 1
            else:
                counters.failed += 1
                if state is JobState.DEAD:
                    counters.dead_lettered += 1
        if state is JobState.SUCCEEDED:
            self.emit(CompleteJob(entry, entry.id))
        else:
            name = entry.lane.name
            self.emit(SettleJob(entry, entry.id, state, entry.attempt, entry.stop, entry.reason, abandoned, name))
        if state is JobState.DEAD:
            names = tuple(lane.name for lane in entry.lanes)
            history = tuple(entry.history or ())
            self.emit(
                KeepDeadLetter(entry, entry.id, names, entry.attempt, entry.submitted_at, entry.reason, history),
            )
        if not self.listening:
            return
        if state is JobState.SUCCEEDED:
            self.job_event(JobCompleted, entry, run_ms=now - entry.started_at)
            return
        self.job_event(_END_EVENTS[state], entry)

    # ---- ending from outside ----

    def _stop(self, entry: Entry, stop: Stop, reason: str, actor: str, now: int) -> None:
        if not may_stop(entry, stop):
            return
        entry.simple = False
        entry.reason = reason
        entry.actor = actor
        if entry.state not in BEGUN:
            entry.stop = stop
            self._finish_job(entry, STOP_TRIGGERS[stop], now)
            return
        asked_already = entry.stop is not None
        entry.stop = stop
        if asked_already:
            return  # it was asked to end when its time was up; now it will not run again either
        ended_first = self._job_heirs([entry, *slots_inside(entry)])
        if ended_first:
            self._after(ended_first, entry, now, reason="the job that lent it the lane is being ended")
        else:
            self._deliver_stop(entry, now)

    def _deliver_stop(self, entry: Entry, now: int) -> None:
        if entry.state in FINAL_STATES or entry.stop is None:
            return
        self.emit(CancelAttempt(entry, entry.id, entry.attempt, entry.stop, entry.reason))
        config = entry.lanes[-1].config
        if not entry.threaded or config.abandon_threads:
            self.timers.set(now + config.cancel_grace_ms, Alarm.GRACE, entry)

    def _job_heirs(self, nodes: list[Entry]) -> list[Entry]:
        """The jobs to be ended first: descendants that have an exclusive lane which these nodes lent."""
        own = root_of(nodes[0]) if nodes else None
        found = dict.fromkeys(root_of(heir) for heir in heirs(nodes))
        return [job for job in found if job is not own and not job.is_slot]

    def _after(self, ended_first: list[Entry], subject: Entry | Wait, now: int, *, reason: str) -> None:
        """End these jobs, then go on with what was asked for."""

        def go_on(at: int) -> None:
            if isinstance(subject, Wait):
                self.lending.give_up(subject)
            else:
                self._deliver_stop(subject, at)

        bereaved = Bereavement(len(ended_first), go_on)
        for heir in ended_first:
            heir.simple = False
            if heir.mourners is None:
                heir.mourners = []
            heir.mourners.append(bereaved)
        for heir in ended_first:
            self._stop(heir, Stop.CANCEL, reason, "scheduler", now)

    def _abandon(self, entry: Entry, now: int) -> None:
        """An attempt outlived its grace: it can change nothing here any more."""
        self._note_abandoned(entry)
        self._attempt_over(entry, FinishJob(entry.id, entry.attempt, End.CANCELLED), now, abandoned=True)

    def _note_abandoned(self, entry: Entry) -> None:
        for lane in entry.lanes:
            lane.counters.abandoned += 1
        self.job_event(JobAbandoned, entry)


def policy_of(spec: JobSpec, lane: LaneConfig) -> RetryPolicy:
    """Whether a job may run again: what it says itself, else what its lane says."""
    return spec.retry or lane.retry or _NO_RETRY


def may_stop(entry: Entry, stop: Stop) -> bool:
    """Whether a job can be ended so: once, but a cancel also counts for a job that is ending because it timed out."""
    if entry.is_slot and entry.state in BEGUN:
        return False
    return entry.stop is None or (entry.stop is Stop.TIMEOUT and stop in (Stop.CANCEL, Stop.ABORT))


def _remember(entry: Entry, reason: str) -> None:
    """Note how an attempt ended, for the dead letter that the job may become; the newest hundred are enough."""
    if entry.history is None:
        entry.history = []
    entry.history.append(f"attempt {entry.attempt}: {reason}")
    del entry.history[:-HISTORY_MAX]
