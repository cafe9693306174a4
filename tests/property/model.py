"""A naive model of the kernel, written from the behaviour page: plain lists, sorted each time, nothing clever.

It knows no groups and no lending, and at most one cap that lanes share (`max_concurrent`, or the threads for sync
functions). What it says is compared start by start with what the kernel does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction

from laneway.kernel.jobs import backoff_ms
from laneway.kernel.protocol import End, JobSpec, Stop
from laneway.records import Effect, JobState, LaneConfig, Priority, RetryPolicy

USER = int(Priority.USER)
STOPPED = {
    Stop.CANCEL: JobState.CANCELLED,
    Stop.ABORT: JobState.CANCELLED,
    Stop.TIMEOUT: JobState.TIMED_OUT,
    Stop.WAIT_TIMEOUT: JobState.TIMED_OUT,
}
SESSION = LaneConfig(concurrency=1, exclusive=True)


class Refused(Exception):  # noqa: N818 - the model's word for every refusal
    """The model says no: `full` or `draining`."""


@dataclass(eq=False)
class ModelJob:
    """One job, with the place it has in each of its lanes."""

    id: str
    lanes: tuple[str, ...]
    spec: JobSpec
    threaded: bool
    submitted_at: int
    places: list[int]
    state: JobState = JobState.QUEUED
    stage: int = 0
    queued_at: int = 0
    since: int = 0
    started_at: int = 0
    attempt: int = 0
    failures: int = 0
    due: int | None = None  # of a delay or a retry
    grace: int | None = None
    stop: Stop | None = None

    @property
    def lane(self) -> str:
        return self.lanes[self.stage]

    @property
    def place(self) -> int:
        return self.places[self.stage]

    @property
    def is_last(self) -> bool:
        return self.stage == len(self.lanes) - 1

    @property
    def weight(self) -> Fraction:
        return Fraction(self.spec.weight)


@dataclass(eq=False)
class ModelLane:
    """One lane: its settings and the little that has to be remembered about the past."""

    name: str
    config: LaneConfig
    configured: bool
    cap: int
    tokens: Fraction | None
    at: int
    queued_max: int | None
    paused: bool = False
    closed_until: int | None = None
    last_start: int | None = None
    user_was_aged: bool = False
    times: dict[str, Fraction] = field(default_factory=dict)
    weights: dict[str, Fraction] = field(default_factory=dict)
    virtual_now: Fraction = Fraction(0)

    def refill(self, now: int) -> None:
        limit = self.config.rate_limit
        if limit is not None and self.tokens is not None:
            more = Fraction((now - self.at) * limit.count, limit.window_ms)
            self.tokens = min(Fraction(limit.count), self.tokens + more)
        self.at = now

    def limit_allows(self, now: int) -> bool:
        self.refill(now)
        if self.closed_until is not None and self.closed_until > now:
            return False
        return self.tokens is None or self.tokens >= 1


@dataclass(eq=False)
class ModelPool:
    """The cap that lanes share."""

    cap: int
    threads_only: bool
    after_late: bool = False


class Model:
    """The same commands as the kernel; `started` collects what each command started, in order."""

    def __init__(
        self, configs: Mapping[str, LaneConfig], *, max_concurrent: int | None = None, threads_max: int | None = None
    ) -> None:
        self.configs = configs
        self.lanes: dict[str, ModelLane] = {}
        self.jobs: dict[str, ModelJob] = {}
        self.ended: dict[str, JobState] = {}
        self.zombies: set[tuple[str, int]] = set()
        self.draining = False
        self.sequence = 0
        self.now = 0
        self.started: list[str] = []
        self.arrival_order: Callable[[str], int] | None = None  # for arrivals in one command, which no law orders
        self.pool: ModelPool | None = None
        if max_concurrent is not None:
            self.pool = ModelPool(max_concurrent, threads_only=False)
        elif threads_max is not None:
            self.pool = ModelPool(threads_max, threads_only=True)
        for name, config in configs.items():
            self.lanes[name] = self._make(name, config, configured=True)

    # ---- commands ----

    def submit(self, job_id: str, lanes: tuple[str, ...], spec: JobSpec, *, threaded: bool = False) -> None:
        if self.draining:
            raise Refused("draining")
        for name in lanes:
            self.find(name)
        if self._is_full(lanes, spec, threaded=threaded):
            self._forget_idle()
            raise Refused("full")
        self.sequence += 1
        job = ModelJob(job_id, lanes, spec, threaded, self.now, [self.sequence])
        self.jobs[job_id] = job
        if spec.delay_ms:
            job.state = JobState.SCHEDULED
            job.due = self.now + spec.delay_ms
        else:
            job.since = self.now
            self._queue(job)
        self.settle()

    def finish(self, job_id: str, attempt: int, end: End, *, after_ms: int = 0, jitter: float = 0.0) -> None:
        job = self.jobs.get(job_id)
        if job is None or job.attempt != attempt or job.state is not JobState.RUNNING:
            self.zombies.discard((job_id, attempt))
        else:
            self._attempt_over(job, end, after_ms=after_ms, jitter=jitter)
        self.settle()

    def stop(self, job_id: str, stop: Stop) -> None:
        self._stop(self.jobs[job_id], stop)
        self.settle()

    def stop_waiting(self, lane: str | None) -> None:
        for job in list(self.jobs.values()):
            if job.state is not JobState.RUNNING and (lane is None or lane in job.lanes):
                self._stop(job, Stop.CANCEL)
        self.settle()

    def resize(self, name: str, concurrency: int, queued_max: int | None = None) -> None:
        lane = self.find(name)
        lane.cap = concurrency
        lane.configured = True
        if queued_max is not None:
            lane.queued_max = queued_max
        self.settle()

    def pause(self, name: str) -> None:
        self.find(name).paused = True
        self.settle()

    def resume(self, name: str) -> None:
        self.find(name).paused = False
        self.settle()

    def close_lane(self, name: str, for_ms: int) -> None:
        self.find(name).closed_until = self.now + for_ms
        self.settle()

    def reopen_lane(self, name: str) -> None:
        self.find(name).closed_until = None
        self.settle()

    def tick(self, now: int) -> None:
        self.now = now
        for lane in self.lanes.values():
            if lane.closed_until is not None and lane.closed_until <= now:
                lane.closed_until = None
        while due := sorted(self._dues(), key=lambda one: one[0]):
            at, kind, job = due[0]
            if at > now:
                break
            match kind:
                case "due":
                    job.due = None
                    job.since = now
                    self._queue(job)
                case "wait":
                    self._stop(job, Stop.WAIT_TIMEOUT)
                case "run":
                    self._stop(job, Stop.TIMEOUT)
                case _:
                    self._attempt_over(job, End.CANCELLED, abandoned=True)
        self.settle()

    def _dues(self) -> Iterator[tuple[int, str, ModelJob]]:
        for job in self.jobs.values():
            config = self.lanes[job.lanes[-1]].config
            if job.state is JobState.SCHEDULED:
                assert job.due is not None
                yield job.due, "due", job
            elif job.state is JobState.QUEUED:
                timeout = _or(job.spec.wait_timeout_ms, config.wait_timeout_ms)
                if timeout is not None:
                    yield job.since + timeout, "wait", job
            elif job.stop is None:
                timeout = _or(job.spec.timeout_ms, config.timeout_ms)
                if timeout is not None:
                    yield job.started_at + timeout, "run", job
            elif job.grace is not None:
                yield job.grace, "grace", job

    # ---- lanes ----

    def _make(self, name: str, config: LaneConfig, *, configured: bool) -> ModelLane:
        tokens = Fraction(config.rate_limit.count) if config.rate_limit is not None else None
        return ModelLane(name, config, configured, config.concurrency, tokens, self.now, config.queued_max)

    def find(self, name: str) -> ModelLane:
        if name not in self.lanes:
            self.lanes[name] = self._make(name, self.configs.get(name.rpartition("/")[2], SESSION), configured=False)
        return self.lanes[name]

    def waiting(self, name: str) -> list[ModelJob]:
        return [job for job in self.jobs.values() if job.state is JobState.QUEUED and job.lane == name]

    def scheduled(self, name: str) -> int:
        return sum(1 for job in self.jobs.values() if job.state is JobState.SCHEDULED and name in job.lanes)

    def held(self, name: str) -> int:
        """Jobs that run in a lane, and those that have passed it on the way to their last one."""
        return sum(
            1
            for job in self.jobs.values()
            if (job.state is JobState.RUNNING and name in job.lanes)
            or (job.state is JobState.QUEUED and name in job.lanes[: job.stage])
        )

    def _forget_idle(self) -> None:
        for name, lane in list(self.lanes.items()):
            limit = lane.config.rate_limit
            lane.refill(self.now)
            spent = limit is not None and lane.tokens != limit.count
            busy = any(name in job.lanes for job in self.jobs.values())
            if not (lane.configured or lane.paused or lane.closed_until is not None or busy or spent):
                del self.lanes[name]

    # ---- order inside a lane ----

    def aged(self, job: ModelJob) -> int:
        ageing = self.lanes[job.lane].config.ageing_ms
        if ageing is None:
            return 0
        return min(max(0, USER - int(job.spec.priority)), (self.now - job.queued_at) // ageing)

    def boost(self, job: ModelJob) -> int:
        boost = self.lanes[job.lane].config.boost
        deadline = _or(job.spec.deadline_ms, boost.deadline_ms) if boost is not None else None
        if boost is None or deadline is None:
            return 0
        passed = self.now - job.submitted_at
        steps = [s.levels for s in boost.steps if passed >= deadline - deadline * s.remaining_percent // 100]
        return max(steps, default=0)

    def level(self, job: ModelJob) -> int:
        return int(job.spec.priority) + self.aged(job) + self.boost(job)

    def who(self, job: ModelJob) -> str:
        if self.lanes[job.lane].config.fair_by == "session":
            for name in job.lanes:
                if name.rpartition("/")[2].startswith("session:"):
                    return name
        return job.spec.tenant

    def head(self, name: str) -> ModelJob | None:
        """Who is next in a lane; jobs that only wait for the limit of a lane they have passed hold nobody up."""
        lane = self.lanes[name]
        able = [job for job in self.waiting(name) if not (job.is_last and self._is_held_up(job))]
        if not able:
            return None
        top = max(self.level(job) for job in able)
        able = [job for job in able if self.level(job) == top]
        native = [job for job in able if self.aged(job) == 0]
        if top == USER and lane.user_was_aged and native:
            able = native

        def key(job: ModelJob) -> tuple[Fraction, int]:
            return lane.times[self.who(job)] if lane.config.fair_by else Fraction(0), job.place

        return min(able, key=key)

    def _is_held_up(self, job: ModelJob) -> bool:
        return any(not self.lanes[name].limit_allows(self.now) for name in job.lanes[:-1])

    # ---- the next start ----

    def settle(self) -> None:
        """Let jobs pass to their next lane, then start one job, until nothing can."""
        while True:
            self._advance_all()
            heads = {
                name: head
                for name in self.lanes
                if (head := self._able_head(name)) is not None
                and head.is_last
                and self.lanes[name].limit_allows(self.now)
            }
            free = [(name, head) for name, head in heads.items() if not self.needs_pool(head)]
            if free:
                self._start(*free[0])
                continue
            shared = [name for name, head in heads.items() if self.needs_pool(head)]
            if not shared or self.pool is None or self.pool_held() >= self.pool.cap:
                break
            chosen = self._choose(shared, heads)
            self.pool.after_late = self.late_at(chosen) <= self.now
            self._start(chosen, heads[chosen])
        self._forget_idle()

    def _able_head(self, name: str) -> ModelJob | None:
        lane = self.lanes[name]
        return None if lane.paused or self.held(name) >= lane.cap else self.head(name)

    def needs_pool(self, job: ModelJob) -> bool:
        if self.pool is None:
            return False
        if self.pool.threads_only:
            return job.threaded
        return any(not _is_control(name) for name in job.lanes)

    def pool_held(self) -> int:
        held = sum(1 for job in self.jobs.values() if job.state is JobState.RUNNING and self.needs_pool(job))
        threads = self.pool is not None and self.pool.threads_only
        return held + (len(self.zombies) if threads else 0)

    def late_at(self, name: str) -> float:
        """From when on a lane is overdue."""
        lane = self.lanes[name]
        if lane.config.ageing_ms is None:
            return float("inf")
        oldest = min(job.queued_at for job in self.waiting(name))
        return max(oldest, oldest if lane.last_start is None else lane.last_start) + lane.config.ageing_ms

    def _choose(self, names: list[str], heads: Mapping[str, ModelJob]) -> str:
        assert self.pool is not None
        late = [name for name in names if self.late_at(name) <= self.now]
        others = [name for name in names if name not in late]
        if late and not (others and self.pool.after_late):
            return min(late, key=lambda name: (self.late_at(name), name))

        def key(name: str) -> tuple[int, int, int]:
            head = heads[name]
            own = self.lanes[name].config.priority
            return min(own, max(1, own - self.boost(head))), -self.level(head), head.place

        return min(others, key=key)

    def _advance_all(self) -> None:
        """Jobs with several lanes take those they can have; who arrives together is put in order by the kernel."""
        while True:
            moving = [
                job for name in list(self.lanes) if (job := self._able_head(name)) is not None and not job.is_last
            ]
            if not moving:
                return
            job = min(moving, key=self._moving_order)
            self._leave(job, started=True)
            job.stage += 1
            if len(job.places) == job.stage:
                self.sequence += 1
                job.places.append(self.sequence)
            self._queue(job)

    def _moving_order(self, job: ModelJob) -> tuple[int, int]:
        """Into earlier lanes first: so all who can come to a lane are there before it chooses."""
        order = list(self.configs).index(job.lanes[job.stage + 1])
        return order, self.arrival_order(job.id) if self.arrival_order is not None else job.place

    def _queue(self, job: ModelJob) -> None:
        lane = self.lanes[job.lane]
        if lane.config.fair_by:
            who = self.who(job)
            if all(self.who(other) != who for other in self.waiting(lane.name) if other is not job):
                lane.times[who] = max(lane.times.get(who, Fraction(0)), lane.virtual_now)
            lane.weights[who] = job.weight
        job.state = JobState.QUEUED
        job.queued_at = self.now

    def _leave(self, job: ModelJob, *, started: bool) -> None:
        lane = self.lanes[job.lane]
        if not started:
            return
        if self.level(job) == USER:
            lane.user_was_aged = self.aged(job) > 0
        lane.last_start = self.now
        if lane.config.fair_by:
            who = self.who(job)
            lane.virtual_now = max(lane.virtual_now, lane.times[who])
            lane.times[who] += 1 / lane.weights[who]

    def _start(self, name: str, job: ModelJob) -> None:
        assert job.lane == name
        self._leave(job, started=True)
        for one in job.lanes:
            lane = self.lanes[one]
            if lane.tokens is not None:
                lane.refill(self.now)
                lane.tokens -= 1
        job.state = JobState.RUNNING
        job.attempt += 1
        job.started_at = self.now
        self.started.append(job.id)

    def _is_full(self, lanes: tuple[str, ...], spec: JobSpec, *, threaded: bool) -> bool:
        """Whether some lane of a new job is at its depth; a job that can start at once need not wait in any."""
        at_depth = [
            lane
            for lane in map(self.find, lanes)
            if lane.queued_max is not None
            and len(self.waiting(lane.name)) + self.scheduled(lane.name) >= lane.queued_max
        ]
        if not at_depth or spec.delay_ms:
            return bool(at_depth)
        probe = ModelJob("", lanes, spec, threaded, self.now, [0])
        no_room = self.pool is not None and self.needs_pool(probe) and self.pool_held() >= self.pool.cap
        return no_room or any(
            lane.paused
            or self.held(lane.name) >= lane.cap
            or self.waiting(lane.name)
            or not lane.limit_allows(self.now)
            for lane in map(self.find, lanes)
        )

    # ---- endings ----

    def _attempt_over(
        self, job: ModelJob, end: End, *, after_ms: int = 0, jitter: float = 0.0, abandoned: bool = False
    ) -> None:
        policy = job.spec.retry or self.lanes[job.lanes[-1]].config.retry or RetryPolicy.none()
        if abandoned and job.threaded:
            self.zombies.add((job.id, job.attempt))
        again_after_timeout = (
            job.stop is Stop.TIMEOUT and job.spec.effect is not Effect.WRITE and policy.max_retries > 0
        )
        if job.stop is not None and not again_after_timeout:
            self._end(job, STOPPED[job.stop])
        elif job.stop is None and end is End.SUCCEEDED:
            self._end(job, JobState.SUCCEEDED)
        elif job.stop is None and end is End.CANCELLED:
            self._end(job, JobState.CANCELLED)
        elif job.stop is None and end is End.GAVE_UP:
            self._end(job, JobState.DEAD)
        elif job.stop is None and end is End.RETRY_LATER:
            self._again(job, after_ms)
        else:
            job.failures += 1
            if job.failures <= policy.max_retries:
                self._again(job, backoff_ms(policy, retry=job.failures, jitter=jitter))
            else:
                self._end(job, JobState.DEAD if policy.max_retries else JobState.FAILED)

    def _again(self, job: ModelJob, delay: int) -> None:
        job.state = JobState.SCHEDULED
        job.stage = 0
        job.stop = None
        job.grace = None
        job.due = self.now + delay

    def _stop(self, job: ModelJob, stop: Stop) -> None:
        if job.stop is Stop.TIMEOUT and stop in (Stop.CANCEL, Stop.ABORT):
            job.stop = stop  # it is ending already; now it will not run again either
        if job.stop is not None:
            return
        job.stop = stop
        if job.state is not JobState.RUNNING:
            self._end(job, STOPPED[stop])
            return
        config = self.lanes[job.lanes[-1]].config
        if not job.threaded or config.abandon_threads:
            job.grace = self.now + config.cancel_grace_ms

    def _end(self, job: ModelJob, state: JobState) -> None:
        job.state = state
        del self.jobs[job.id]
        self.ended[job.id] = state


def _or(value: int | None, default: int | None) -> int | None:
    return default if value is None else value


def _is_control(name: str) -> bool:
    return name.rpartition("/")[2] == "control"
