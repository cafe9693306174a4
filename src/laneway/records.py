"""The words of Laneway as types: ids, enums, settings and the frozen records that cross borders.

Settings validate themselves when they are made, so that a bad value is refused where it was written
and never half applied. Times are whole milliseconds everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Literal, NewType

from laneway.errors import ConfigError

__all__ = (
    "CONCURRENCY_MAX",
    "Boost",
    "BoostStep",
    "DeadLetter",
    "DrainReport",
    "Effect",
    "Explanation",
    "Fields",
    "Group",
    "HistogramStats",
    "JobId",
    "JobInfo",
    "JobState",
    "LaneConfig",
    "LaneMetrics",
    "LaneStats",
    "Priority",
    "RateLimit",
    "RetryPolicy",
    "Snapshot",
    "Stats",
    "WaitReason",
    "check_concurrency",
    "check_labels",
    "check_whole",
)

JobId = NewType("JobId", str)

CONCURRENCY_MAX = 1_000_000
DURATION_MAX_MS = 10 * 365 * 24 * 3600 * 1000
LABELS_MAX = 50
LABEL_MAX = 100
_LABEL = re.compile(r"[^\s,\x00-\x1f]+")


class Priority(IntEnum):
    """The level of a job inside its lane; higher goes first."""

    BACKGROUND = 0
    SCHEDULED = 1
    USER = 2


class Effect(StrEnum):
    """What a job does to the world: decides what may run again by itself after a timeout or a lost worker."""

    READ = "read"
    IDEMPOTENT = "idempotent"
    WRITE = "write"


class JobState(StrEnum):
    """Where a job is. The last five are final: a final state never changes."""

    SCHEDULED = "scheduled"  # waits for a time: a delay or a retry
    QUEUED = "queued"  # waits for a slot
    RUNNING = "running"  # has its slots
    LENT = "lent"  # waits for another job and has lent its slots meanwhile
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMED_OUT = "timed_out"
    DEAD = "dead"

    @property
    def is_final(self) -> bool:
        """Whether the job has ended."""
        return self in FINAL_STATES


FINAL_STATES = frozenset(
    {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED, JobState.TIMED_OUT, JobState.DEAD},
)


class WaitReason(StrEnum):
    """Why a job does not run at this moment."""

    NOTHING = "nothing"  # it runs, or it may start at once
    TIME = "time"  # a delay or a retry is not due yet
    LANE = "lane"  # every slot of the lane is taken
    PAUSED = "paused"  # the lane is paused or has width 0
    RATE = "rate"  # the lane's rate limit has no token yet
    CLOSED = "closed"  # the lane's limit is closed until a time
    GROUP = "group"  # the group of the lane is at its cap
    SHARED_CAP = "shared_cap"  # max_concurrent is reached
    THREADS = "threads"  # every thread for sync functions is busy
    EXCLUSIVE = "exclusive"  # another job has the exclusive lane
    TAKE_BACK = "take_back"  # it has lent its slots and waits to have them back
    CHILD = "child"  # it waits for another job
    HANDLER = "handler"  # no handler of its name is registered yet
    STORE = "store"  # the store did not take the note that it starts
    ORDER = "order"  # others are ahead of it


def check_whole(value: object, *, setting: str, least: int, most: int) -> int:
    """Refuse anything but a whole number in range; bools, floats, NaN and text are not whole numbers."""
    if type(value) is not int or not least <= value <= most:
        raise ConfigError(
            f"{setting} must be a whole number from {least} to {most:,}, not {value!r}",
            setting=setting,
            value=value,
        )
    return value


def check_labels(value: object, *, setting: str = "labels") -> tuple[str, ...]:
    """Labels of workers and of what wants one: short words such as `gpu` or `os=linux`, sorted, each once."""
    hint = "labels are words such as gpu or os=linux"
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError(f"{setting} must be a list, not {value!r:.80}", setting=setting, value=value, hint=hint)
    labels = list(value)
    for label in labels:
        if not isinstance(label, str) or not 0 < len(label) <= LABEL_MAX or not _LABEL.fullmatch(label):
            said = f"{setting} has {label!r:.80}, which is no label"
            raise ConfigError(said, setting=setting, value=label, hint=hint)
    if len(labels) > LABELS_MAX:
        said = f"{setting} has {len(labels):,} labels, and there may be {LABELS_MAX}"
        raise ConfigError(said, setting=setting, value=len(labels), hint=hint)
    return tuple(sorted(set(labels)))


def check_concurrency(value: object, *, setting: str = "concurrency") -> int:
    """A width: 0 (paused) to 1,000,000."""
    return check_whole(value, setting=setting, least=0, most=CONCURRENCY_MAX)


def _check_number(value: object, *, setting: str, least: float, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
        raise ConfigError(
            f"{setting} must be a number from {least} to {most}, not {value!r}", setting=setting, value=value
        )


def _check_flag(value: object, *, setting: str) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{setting} must be True or False, not {value!r}", setting=setting, value=value)


def _check_duration(value: object, *, setting: str, least: int = 1) -> None:
    if value is not None:
        check_whole(value, setting=setting, least=least, most=DURATION_MAX_MS)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Whether and when a failed job runs again. Made by `none`, `fixed` or `exponential`."""

    max_retries: int = 0
    initial_delay_ms: int = 0
    factor: float = 1.0
    max_delay_ms: int = DURATION_MAX_MS
    jitter: float = 0.0

    def __post_init__(self) -> None:
        check_whole(self.max_retries, setting="max_retries", least=0, most=1_000_000)
        check_whole(self.initial_delay_ms, setting="delay_ms", least=0, most=DURATION_MAX_MS)
        check_whole(self.max_delay_ms, setting="max_delay_ms", least=0, most=DURATION_MAX_MS)
        _check_number(self.factor, setting="factor", least=1, most=1000)
        _check_number(self.jitter, setting="jitter", least=0, most=1)

    @classmethod
    def none(cls) -> RetryPolicy:
        """Never again (the default)."""
        return cls()

    @classmethod
    def fixed(cls, max_retries: int, delay_ms: int, *, jitter: float = 0.0) -> RetryPolicy:
        """The same delay before each of at most `max_retries` further attempts."""
        return cls(max_retries=max_retries, initial_delay_ms=delay_ms, jitter=jitter)

    @classmethod
    def exponential(
        cls,
        max_retries: int,
        initial_delay_ms: int = 100,
        *,
        factor: float = 2.0,
        max_delay_ms: int = 30_000,
        jitter: float = 0.0,
    ) -> RetryPolicy:
        """A delay that grows by `factor` (100, 200, 400 ms …) up to `max_delay_ms`.

        `jitter=0.2` takes up to 20 % off each delay at random, so that many jobs do not come back at once.
        """
        return cls(
            max_retries=max_retries,
            initial_delay_ms=initial_delay_ms,
            factor=factor,
            max_delay_ms=max_delay_ms,
            jitter=jitter,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimit:
    """How many jobs may start in a window: a bucket of `count` that starts full and refills continuously.

    After a rest up to twice `count` can therefore start within one window.
    """

    count: int
    window_ms: int

    def __post_init__(self) -> None:
        check_whole(self.count, setting="rate limit", least=1, most=1_000_000_000)
        check_whole(self.window_ms, setting="rate limit window", least=1, most=DURATION_MAX_MS)

    @classmethod
    def per_second(cls, count: int) -> RateLimit:
        """At most `count` starts a second."""
        return cls(count=count, window_ms=1_000)

    @classmethod
    def per_minute(cls, count: int) -> RateLimit:
        """At most `count` starts a minute."""
        return cls(count=count, window_ms=60_000)

    @classmethod
    def per_hour(cls, count: int) -> RateLimit:
        """At most `count` starts an hour."""
        return cls(count=count, window_ms=3_600_000)

    @staticmethod
    def unlimited() -> None:
        """No limit; the same as leaving `rate_limit` out."""
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class BoostStep:
    """`levels` are added when at most `remaining_percent` of the time to the deadline remain."""

    remaining_percent: int
    levels: int

    def __post_init__(self) -> None:
        check_whole(self.remaining_percent, setting="remaining_percent", least=1, most=99)
        check_whole(self.levels, setting="levels", least=1, most=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Boost:
    """How a job climbs as its deadline comes near; `deadline_ms` is the lane's default deadline."""

    steps: tuple[BoostStep, ...] = ()
    deadline_ms: int | None = None

    def __post_init__(self) -> None:
        _check_duration(self.deadline_ms, setting="deadline_ms")
        if not isinstance(self.steps, tuple) or not all(isinstance(step, BoostStep) for step in self.steps):
            raise ConfigError(f"boost steps must be a tuple of BoostStep, not {self.steps!r}", setting="boost")
        percents = [step.remaining_percent for step in self.steps]
        levels = [step.levels for step in self.steps]
        if percents != sorted(set(percents), reverse=True) or levels != sorted(set(levels)):
            raise ConfigError("boost steps must fall in time remaining and rise in levels", setting="boost")

    @classmethod
    def standard(cls, deadline_ms: int | None = None) -> Boost:
        """+1, +2, +3 levels at 75, 50 and 25 % of the time remaining."""
        return cls(steps=_steps((75, 1), (50, 2), (25, 3)), deadline_ms=deadline_ms)

    @classmethod
    def aggressive(cls, deadline_ms: int | None = None) -> Boost:
        """+2, +4, +6, +8 levels at 80, 60, 40 and 20 % of the time remaining."""
        return cls(steps=_steps((80, 2), (60, 4), (40, 6), (20, 8)), deadline_ms=deadline_ms)

    @classmethod
    def disabled(cls) -> Boost:
        """Deadlines change nothing."""
        return cls()


def _steps(*pairs: tuple[int, int]) -> tuple[BoostStep, ...]:
    return tuple(BoostStep(remaining_percent=percent, levels=levels) for percent, levels in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneConfig:
    """What a lane is: its width, its priority (P0 first) and its rules. A bare number means a width."""

    concurrency: int = 1
    priority: int = 3
    queued_max: int | None = None
    timeout_ms: int | None = None
    wait_timeout_ms: int | None = None
    cancel_grace_ms: int = 5_000
    abandon_threads: bool = False
    retry: RetryPolicy | None = None
    rate_limit: RateLimit | None = None
    boost: Boost | None = None
    ageing_ms: int | None = 60_000
    pressure_threshold: int | None = None
    fair_by: Literal["tenant", "session"] | None = None
    exclusive: bool = False
    alert_warning: int | None = 50
    alert_critical: int | None = 100

    def __post_init__(self) -> None:
        check_concurrency(self.concurrency)
        check_whole(self.priority, setting="priority", least=0, most=9)
        if self.queued_max is not None:
            check_whole(self.queued_max, setting="queued_max", least=0, most=1_000_000_000)
        for setting in ("timeout_ms", "wait_timeout_ms", "ageing_ms"):
            _check_duration(getattr(self, setting), setting=setting)
        _check_duration(self.cancel_grace_ms, setting="cancel_grace_ms", least=0)
        for setting in ("pressure_threshold", "alert_warning", "alert_critical"):
            if getattr(self, setting) is not None:
                check_whole(getattr(self, setting), setting=setting, least=1, most=1_000_000_000)
        for setting in ("abandon_threads", "exclusive"):
            _check_flag(getattr(self, setting), setting=setting)
        if (self.alert_warning or 0) > (self.alert_critical or 1_000_000_000):
            raise ConfigError(
                f"alert_warning ({self.alert_warning}) is above alert_critical ({self.alert_critical})",
                setting="alert_warning",
            )
        for setting, kind in (("retry", RetryPolicy), ("rate_limit", RateLimit), ("boost", Boost)):
            value = getattr(self, setting)
            if value is not None and not isinstance(value, kind):
                raise ConfigError(f"{setting} must be a {kind.__name__}, not {value!r}", setting=setting, value=value)
        if self.fair_by not in (None, "tenant", "session"):
            raise ConfigError(f"fair_by is 'tenant', 'session' or None, not {self.fair_by!r}", setting="fair_by")
        if self.exclusive and self.concurrency > 1:
            raise ConfigError("an exclusive lane has width 1", setting="concurrency", value=self.concurrency)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Lanes that share a cap. `lanes` are names or patterns (`"*/execute"`); `reserve` cannot be borrowed."""

    cap: int
    lanes: tuple[str, ...]
    reserve: Mapping[str, int] = field(default_factory=dict)

    def __init__(self, cap: int, lanes: Iterable[str], reserve: Mapping[str, int] | None = None) -> None:
        object.__setattr__(self, "cap", check_concurrency(cap, setting="cap"))
        names = tuple(lanes) if isinstance(lanes, Iterable) and not isinstance(lanes, str) else None
        if not names or not all(isinstance(name, str) and name for name in names):
            raise ConfigError(f"lanes of a group is a list of names or patterns, not {lanes!r}", setting="lanes")
        if reserve is not None and not isinstance(reserve, Mapping):
            raise ConfigError(f"reserve maps lanes to numbers, not {reserve!r}", setting="reserve", value=reserve)
        object.__setattr__(self, "lanes", names)
        object.__setattr__(self, "reserve", dict(reserve or {}))
        for name, amount in self.reserve.items():
            check_concurrency(amount, setting=f"reserve of {name!r}")
        if sum(self.reserve.values()) > cap:
            raise ConfigError(
                f"reservations ({sum(self.reserve.values())}) are above the cap of the group ({cap})",
                setting="reserve",
                hint="lower them or raise the cap",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What `on_change` callbacks get."""

    running: int
    waiting: int
    max_concurrent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramStats:
    """A distribution of durations in milliseconds; percentiles are right to about 3 %."""

    count: int
    sum_ms: int
    max_ms: int
    p50_ms: int
    p90_ms: int
    p95_ms: int
    p99_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneStats:
    """One lane at one moment. `max_concurrent` is its width; `running` counts slots held, `lent` slots lent."""

    running: int
    waiting: int
    scheduled: int
    lent: int
    max_concurrent: int
    paused: bool
    closed_until_ms: int | None
    submitted: int
    completed: int
    failed: int
    cancelled: int
    timed_out: int
    retried: int
    dead_lettered: int
    abandoned: int
    oldest_wait_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """All lanes at one moment. `max_concurrent` is the shared cap, or the sum of the widths without one."""

    running: int
    waiting: int
    scheduled: int
    lent: int
    abandoned: int
    max_concurrent: int
    lanes: Mapping[str, LaneStats]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneMetrics:
    """The numbers of a lane (or of a family of lanes made on the fly, such as `session:*`) since the start."""

    stats: LaneStats
    wait: HistogramStats
    run: HistogramStats


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    """A live job as `jobs()` lists it. `age_ms` counts from submit, `wait_ms` and `run_ms` from the last change."""

    id: JobId
    lane: str
    lanes: tuple[str, ...]
    state: JobState
    label: str
    priority: Priority
    tenant: str
    attempt: int
    age_ms: int
    wait_ms: int
    run_ms: int
    cancelling: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a job is where it is; `str()` is one sentence."""

    job_id: JobId
    state: JobState
    reason: WaitReason
    detail: str
    lane: str
    position: int | None
    estimate_ms: int | None
    until_ms: int | None
    blocked_by: tuple[JobId, ...]

    def __str__(self) -> str:
        return self.detail


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A job whose retries were used up or that gave up: its payload, its error and its history."""

    id: JobId
    lane: str
    lanes: tuple[str, ...]
    label: str
    handler: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    error: str
    reason: str
    attempts: int
    submitted_ms: int
    died_ms: int
    history: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReport:
    """How a drain ended: `finished` is False when the timeout came first and `cancelled` jobs had to go."""

    finished: bool
    cancelled: int
    still_running: int


class Fields(dict[str, Any]):
    """A dict whose keys are attributes too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no {name!r}; it has {', '.join(self)}") from None
