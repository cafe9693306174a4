"""The settings of a session as its user writes them: `SessionOptions`, `SessionQueueConfig` and what goes into them.

The objects with many settings are mutable, because they are filled in one by one (`options.session_id = "s1"`). Every
value is checked when it is set: a wrong one is refused where it was written, and an unknown name is answered with the
nearest known one. The small ones are frozen records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, Self, cast

from laneway.checked import (
    COUNT_MAX,
    Check,
    Checked,
    Switch,
    anything,
    by_tool,
    effect,
    flag,
    listed,
    made_of,
    number,
    one_of,
    optional,
    path_text,
    string,
    text,
    whole,
    word,
)
from laneway.checked import (
    record as record_of,
)
from laneway.errors import ConfigError
from laneway.identity import identity_label, tenant_label
from laneway.mail import Mode, QueueOptions
from laneway.policies import ConfirmationPolicy, Hook, McpServerConfig, PermissionPolicy
from laneway.records import DURATION_MAX_MS, Boost, Effect, RateLimit, RetryPolicy, check_labels, check_whole
from laneway.spending import Budget

__all__ = (
    "SESSION_LANES",
    "ConfirmationPolicy",
    "Hook",
    "LaneHandlerConfig",
    "McpServerConfig",
    "PermissionPolicy",
    "PriorityBoostConfig",
    "RateLimitConfig",
    "RetryPolicyConfig",
    "SessionOptions",
    "SessionQueueConfig",
    "SessionRetentionLimits",
    "Switch",
    "lane_named",
    "merge",
    "one_of",
)

SESSION_LANES = ("control", "query", "execute", "generate")
"""The lanes of a session, the first in priority first."""

MODES = ("internal", "external", "hybrid")
STICKY = ("session", "workspace", "tenant")
ON_CRASH = ("resume", "report", "ask")
DEFAULT_TIMEOUT_MS = 60_000
DEAD_LETTERS = 1_000


def lane_named(value: object, *, setting: str = "lane") -> str:
    """A lane of a session by its name, whatever its case: `Execute` is `execute`."""
    return one_of(setting, value, SESSION_LANES)


def _each(check: Check) -> Check:
    return lambda setting, value: tuple(check(setting, each) for each in listed(setting, value))


def _named(check: Check) -> Check:
    """Several things with names: no two have one, because only one of them would count."""

    def checked(setting: str, value: object) -> tuple[Any, ...]:
        found = tuple(check(setting, each) for each in listed(setting, value))
        names = [each.name for each in found]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"two of the {setting} are named {twice!r}: give each a name of its own", setting=setting)
        return found

    return checked


def _queue(setting: str, value: object) -> SessionQueueConfig:
    if isinstance(value, Mapping):
        return SessionQueueConfig.from_mapping(value)
    if not isinstance(value, SessionQueueConfig):
        raise ConfigError(f"{setting} must be a SessionQueueConfig, not {value!r}", setting=setting, value=value)
    return value


def _by_lane(check: Check) -> Check:
    """A mapping from lanes of a session to values."""

    def checked(setting: str, value: object) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{setting} maps lanes to settings, not {value!r}", setting=setting, value=value)
        found: dict[str, Any] = {}
        for name, each in value.items():
            lane = lane_named(name, setting=setting)
            if lane in found:
                raise ConfigError(f"{setting} names lane {lane!r} twice", setting=setting, value=value)
            found[lane] = check(f"{setting}.{lane}", each)
        return found

    return checked


def _handler(setting: str, value: object) -> LaneHandlerConfig:
    """Who runs the calls of a lane: a `LaneHandlerConfig`, a mapping with its fields, or only its mode."""
    found = record_of(LaneHandlerConfig)(setting, {"mode": value} if isinstance(value, str) else value)
    assert isinstance(found, LaneHandlerConfig)
    return found


# ---- the small records ----


@dataclass(frozen=True, slots=True)
class RetryPolicyConfig:
    """Whether and when a failed call runs again: `exponential`, `fixed` (needs `fixed_delay_ms`) or `none`.

    Only calls with effect `read` or `idempotent` are ever tried again; a `write` is never.
    """

    strategy: str = "exponential"
    max_retries: int = 3
    initial_delay_ms: int = 100
    fixed_delay_ms: int | None = None

    def __post_init__(self) -> None:
        strategy = one_of("strategy", self.strategy, ("exponential", "fixed", "none"))
        object.__setattr__(self, "strategy", strategy)
        check_whole(self.max_retries, setting="max_retries", least=0, most=1_000_000)
        check_whole(self.initial_delay_ms, setting="initial_delay_ms", least=0, most=DURATION_MAX_MS)
        if self.fixed_delay_ms is not None:
            check_whole(self.fixed_delay_ms, setting="fixed_delay_ms", least=0, most=DURATION_MAX_MS)
        elif strategy == "fixed":
            raise ConfigError("a fixed retry needs fixed_delay_ms", setting="fixed_delay_ms")

    def to_retry(self) -> RetryPolicy:
        """The same as the lanes know it."""
        if self.strategy == "none":
            return RetryPolicy.none()
        if self.strategy == "fixed":
            assert self.fixed_delay_ms is not None
            return RetryPolicy.fixed(self.max_retries, self.fixed_delay_ms)
        return RetryPolicy.exponential(self.max_retries, self.initial_delay_ms)


@dataclass(frozen=True, slots=True)
class RateLimitConfig:
    """How many calls may start in a window: `per_second`, `per_minute`, `per_hour` or `unlimited`."""

    limit_type: str
    max_operations: int | None = None

    def __post_init__(self) -> None:
        kind = one_of("limit_type", self.limit_type, ("per_second", "per_minute", "per_hour", "unlimited"))
        object.__setattr__(self, "limit_type", kind)
        if self.max_operations is not None:
            check_whole(self.max_operations, setting="max_operations", least=1, most=COUNT_MAX)
        elif kind != "unlimited":
            raise ConfigError(f"a limit {kind} needs max_operations", setting="max_operations")

    def to_rate_limit(self) -> RateLimit | None:
        """The same as the lanes know it; None for no limit."""
        if self.limit_type == "unlimited":
            return None
        assert self.max_operations is not None
        makers = {"per_second": RateLimit.per_second, "per_minute": RateLimit.per_minute}
        return makers.get(self.limit_type, RateLimit.per_hour)(self.max_operations)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRetentionLimits:
    """How much a session keeps in memory of what is over; None: all of it. What is oldest goes first.

    What runs, waits or is unknown is never dropped, nor what the model still hears. A store keeps everything all the
    same: these are bounds of memory. A session without any has those of `usual()`; to change one of them and keep the
    others: `replace(SessionRetentionLimits.usual(), max_runs_retained=5)`.
    """

    max_runs_retained: int | None = None
    max_events_per_run: int | None = None
    max_trace_events: int | None = None
    max_terminal_subagent_tasks: int | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None:
                check_whole(value, setting=each.name, least=0, most=COUNT_MAX)

    @classmethod
    def usual(cls) -> SessionRetentionLimits:
        """What holds where nobody says anything: generous, and flat."""
        return cls(
            max_runs_retained=1_000,
            max_events_per_run=100_000,
            max_trace_events=10_000,
            max_terminal_subagent_tasks=100,
        )


@dataclass(frozen=True, slots=True)
class PriorityBoostConfig:
    """How a call climbs as its deadline comes near: `standard`, `aggressive` or `disabled`."""

    strategy: str = "standard"
    deadline_ms: int | None = 300_000

    def __post_init__(self) -> None:
        strategy = one_of("strategy", self.strategy, ("standard", "aggressive", "disabled"))
        object.__setattr__(self, "strategy", strategy)
        if self.deadline_ms is not None:
            check_whole(self.deadline_ms, setting="deadline_ms", least=1, most=DURATION_MAX_MS)

    def to_boost(self) -> Boost:
        """The same as the lanes know it."""
        if self.strategy == "disabled":
            return Boost.disabled()
        return (Boost.aggressive if self.strategy == "aggressive" else Boost.standard)(self.deadline_ms)


@dataclass(frozen=True, slots=True)
class LaneHandlerConfig:
    """Who runs the calls of a lane: this process (`internal`), somebody else (`external`), or both hear (`hybrid`).

    `timeout_ms` is how long somebody else may take; calls in this process follow the timeouts of their lanes.
    `ordered=False` lets neighbouring calls of one answer go out together. `lease_ms` is how long a worker may be silent
    before its task is taken from it. `fallback=True` runs a call here that nobody has taken within `timeout_ms`.

    Only workers that have all `labels` are given its tasks. `sticky` (`session`, `workspace` or `tenant`) has a task
    wait up to `sticky_ms` for the worker that began the one before it of the same session, workspace or tenant; after
    that anybody may take it. A call of a tool that allows it goes on in the background after `background_after_ms`.
    """

    mode: str = "internal"
    timeout_ms: int = DEFAULT_TIMEOUT_MS
    ordered: bool = True
    lease_ms: int = 30_000
    fallback: bool = False
    labels: tuple[str, ...] = ()
    sticky: str = ""
    sticky_ms: int = 5_000
    background_after_ms: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", one_of("mode", self.mode, MODES))
        check_whole(self.timeout_ms, setting="timeout_ms", least=1, most=DURATION_MAX_MS)
        check_whole(self.lease_ms, setting="lease_ms", least=1, most=DURATION_MAX_MS)
        flag("ordered", self.ordered)
        flag("fallback", self.fallback)
        object.__setattr__(self, "labels", check_labels(self.labels))
        object.__setattr__(self, "sticky", one_of("sticky", self.sticky, STICKY) if self.sticky else "")
        check_whole(self.sticky_ms, setting="sticky_ms", least=0, most=DURATION_MAX_MS)
        if self.background_after_ms is not None:
            check_whole(self.background_after_ms, setting="background_after_ms", least=0, most=DURATION_MAX_MS)


# ---- the settings that are filled in one by one ----


class SessionQueueConfig(Checked):
    """The lanes of a session: how wide they are, and what happens to the calls in them.

    - `control_max_concurrency`, `query_…`, `execute_…`, `generate_…`: how many at once in each lane.
    - `enable_dlq` with `dlq_max_size`: keep the calls that failed for good. `enable_metrics`: count and measure.
      `enable_alerts`: tell when 50 (warning) or 100 (critical) wait in a lane. Each is read as a bool and may be called
      to be switched on.
    - `default_timeout_ms` and `lane_timeouts`: how long a call may run; those of a lane win. The default does not hold
      for `generate`, because long answers are normal there: give that lane its own.
    - `retry_policy`: for calls with effect `read` and `idempotent`; a `write` is never tried again.
    - `rate_limit`, `priority_boost`, `pressure_threshold`: of each lane.
    - `storage_path`: a folder that keeps dead letters and submitted payloads over a restart.
    - `lane_handlers`: who runs the calls of a lane; a bare word is the mode.
    """

    __slots__ = (
        "_alerts",
        "_dlq",
        "_metrics",
        "control_max_concurrency",
        "default_timeout_ms",
        "dlq_max_size",
        "execute_max_concurrency",
        "generate_max_concurrency",
        "lane_handlers",
        "lane_timeouts",
        "pressure_threshold",
        "priority_boost",
        "query_max_concurrency",
        "rate_limit",
        "retry_policy",
        "storage_path",
    )

    CHECKS: ClassVar[Mapping[str, Check]] = {
        **{
            f"{lane}_max_concurrency": whole(1, 1_000_000)  # a lane of width 0 would let a run wait for ever
            for lane in SESSION_LANES
        },
        "lane_handlers": _by_lane(_handler),
        "enable_dlq": flag,
        "dlq_max_size": whole(1, 10_000_000),
        "enable_metrics": flag,
        "enable_alerts": flag,
        "default_timeout_ms": optional(whole(1, DURATION_MAX_MS)),
        "storage_path": optional(path_text),
        "retry_policy": optional(record_of(RetryPolicyConfig)),
        "rate_limit": optional(record_of(RateLimitConfig)),
        "priority_boost": optional(record_of(PriorityBoostConfig)),
        "pressure_threshold": optional(whole(1)),
        "lane_timeouts": _by_lane(whole(1, DURATION_MAX_MS)),
    }

    _dlq: bool
    _metrics: bool
    _alerts: bool
    control_max_concurrency: int
    query_max_concurrency: int
    execute_max_concurrency: int
    generate_max_concurrency: int
    lane_handlers: dict[str, LaneHandlerConfig]
    dlq_max_size: int
    default_timeout_ms: int | None
    storage_path: str | None
    retry_policy: RetryPolicyConfig | None
    rate_limit: RateLimitConfig | None
    priority_boost: PriorityBoostConfig | None
    pressure_threshold: int | None
    lane_timeouts: dict[str, int]

    def __init__(  # noqa: PLR0913 - the surface is a contract: one keyword for each setting
        self,
        *,
        control_max_concurrency: int = 2,
        query_max_concurrency: int = 4,
        execute_max_concurrency: int = 2,
        generate_max_concurrency: int = 1,
        lane_handlers: Mapping[str, LaneHandlerConfig | Mapping[str, Any] | str] | None = None,
        enable_dlq: bool = False,
        dlq_max_size: int | None = None,
        enable_metrics: bool = False,
        enable_alerts: bool = False,
        default_timeout_ms: int | None = None,
        storage_path: object = None,
        retry_policy: RetryPolicyConfig | Mapping[str, Any] | None = None,
        rate_limit: RateLimitConfig | Mapping[str, Any] | None = None,
        priority_boost: PriorityBoostConfig | Mapping[str, Any] | None = None,
        pressure_threshold: int | None = None,
        lane_timeouts: Mapping[str, int] | None = None,
    ) -> None:
        given: dict[str, Any] = {
            "control_max_concurrency": control_max_concurrency,
            "query_max_concurrency": query_max_concurrency,
            "execute_max_concurrency": execute_max_concurrency,
            "generate_max_concurrency": generate_max_concurrency,
            "lane_handlers": {} if lane_handlers is None else lane_handlers,
            "enable_dlq": enable_dlq,
            "dlq_max_size": DEAD_LETTERS if dlq_max_size is None else dlq_max_size,
            "enable_metrics": enable_metrics,
            "enable_alerts": enable_alerts,
            "default_timeout_ms": default_timeout_ms,
            "storage_path": storage_path,
            "retry_policy": retry_policy,
            "rate_limit": rate_limit,
            "priority_boost": priority_boost,
            "pressure_threshold": pressure_threshold,
            "lane_timeouts": {} if lane_timeouts is None else lane_timeouts,
        }
        for name, value in given.items():
            setattr(self, name, value)

    # ---- switches: read as a bool, called to be switched on ----

    @property
    def enable_dlq(self) -> Switch:
        """Whether calls that failed for good are kept; `enable_dlq(max_size=500)` says that they are."""
        return Switch(on=self._dlq, turn_on=self._keep_dead_letters)

    @enable_dlq.setter
    def enable_dlq(self, value: bool | Switch) -> None:
        object.__setattr__(self, "_dlq", value)

    @property
    def enable_metrics(self) -> Switch:
        """Whether calls are counted and measured; `enable_metrics()` says that they are."""
        return Switch(on=self._metrics, turn_on=lambda _: self._switch_on("enable_metrics"))

    @enable_metrics.setter
    def enable_metrics(self, value: bool | Switch) -> None:
        object.__setattr__(self, "_metrics", value)

    @property
    def enable_alerts(self) -> Switch:
        """Whether it is told when many calls wait; `enable_alerts()` says that it is."""
        return Switch(on=self._alerts, turn_on=lambda _: self._switch_on("enable_alerts"))

    @enable_alerts.setter
    def enable_alerts(self, value: bool | Switch) -> None:
        object.__setattr__(self, "_alerts", value)

    def _switch_on(self, name: str) -> Self:
        setattr(self, name, True)
        return self

    def _keep_dead_letters(self, max_size: int | None) -> Self:
        if max_size is not None:
            self.dlq_max_size = max_size
        return self._switch_on("enable_dlq")

    def with_lane_features(self) -> Self:
        """Switch on what a lane can do: 1,000 dead letters, metrics, alerts, 60 s for a call, 3 retries.

        The retries (after 100, 200 and 400 ms) are for reads and idempotent calls. What was set before stays.
        """
        for name in ("enable_dlq", "enable_metrics", "enable_alerts"):
            self._switch_on(name)
        if self.default_timeout_ms is None:
            self.default_timeout_ms = DEFAULT_TIMEOUT_MS
        if self.retry_policy is None:
            self.retry_policy = RetryPolicyConfig("exponential")
        return self

    # ---- setters: each gives back the settings, so that they can be chained ----

    def set_default_timeout(self, ms: int | None) -> Self:
        """How long a call may run in a lane without a timeout of its own."""
        self.default_timeout_ms = ms
        return self

    def set_timeout(self, ms: int | None) -> Self:
        """The same as `set_default_timeout`."""
        return self.set_default_timeout(ms)

    def set_lane_timeout(self, lane: str, ms: int) -> Self:
        """How long a call may run in one lane."""
        self.lane_timeouts = {**self.lane_timeouts, lane_named(lane): ms}
        return self

    def set_control_concurrency(self, n: int) -> Self:
        """How many run at once in `control`."""
        self.control_max_concurrency = n
        return self

    def set_query_concurrency(self, n: int) -> Self:
        """How many run at once in `query`."""
        self.query_max_concurrency = n
        return self

    def set_execute_concurrency(self, n: int) -> Self:
        """How many run at once in `execute`."""
        self.execute_max_concurrency = n
        return self

    def set_generate_concurrency(self, n: int) -> Self:
        """How many run at once in `generate`."""
        self.generate_max_concurrency = n
        return self

    def set_lane_handler(
        self, lane: str, mode: str = "internal", timeout_ms: int = DEFAULT_TIMEOUT_MS, *, ordered: bool = True
    ) -> Self:
        """Who runs the calls of a lane."""
        handler = LaneHandlerConfig(mode, timeout_ms, ordered)
        self.lane_handlers = {**self.lane_handlers, lane_named(lane): handler}
        return self

    def set_retry_policy(self, strategy: str, **settings: Any) -> Self:
        """Whether and when reads and idempotent calls run again: the fields of `RetryPolicyConfig`."""
        self.retry_policy = made_of(RetryPolicyConfig, {"strategy": strategy, **settings}, what="retry_policy")
        return self

    def set_rate_limit(self, limit_type: str, max_operations: int | None = None) -> Self:
        """How many calls may start in a window, in each lane."""
        self.rate_limit = RateLimitConfig(limit_type, max_operations)
        return self

    def set_priority_boost(self, strategy: str, deadline_ms: int | None = 300_000) -> Self:
        """How a call climbs as its deadline comes near."""
        self.priority_boost = PriorityBoostConfig(strategy, deadline_ms)
        return self

    def set_pressure_threshold(self, n: int | None) -> Self:
        """From how many waiting calls on a lane is under pressure."""
        self.pressure_threshold = n
        return self

    def set_storage_path(self, path: object) -> Self:
        """The folder that keeps dead letters and submitted payloads over a restart."""
        object.__setattr__(self, "storage_path", optional(path_text)("storage_path", path))
        return self

    def concurrency_of(self, lane: str) -> int:
        """How many run at once in a lane."""
        return cast("int", getattr(self, f"{lane_named(lane)}_max_concurrency"))

    def timeout_of(self, lane: str) -> int | None:
        """How long a call may run in a lane: its own timeout, else the default; `generate` has only its own."""
        name = lane_named(lane)
        return self.lane_timeouts.get(name, None if name == "generate" else self.default_timeout_ms)


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class SessionOptions(Checked):
    """What may be said about a session; what is None follows the agent, and then the defaults.

    Of the calls: `tool_lanes` and `tool_effects` say by the name of a tool where it runs and what it does to the world.
    Of the run: `max_tool_rounds` (50), `max_calls_per_answer` (64), `max_execution_time_ms`, `tool_timeout_ms`,
    `output_max` (30,000 characters of a tool's output are shown to the model). `background_after_ms`: a call that takes
    longer goes on in the background, if its tool allows it or is one of `background_tools`. Of the session:
    `session_store`, `session_id`, `mode` (what a message does while the session is busy), `messages` (the cap of its
    queue, what gives way, debounce), `on_crash` (`resume`, `report` or `ask`).
    Of the gates: `permission_policy`, `confirmation_policy`, `hooks`, `skill_dirs`. Of how work is broken up:
    `planning` with `max_plan_steps` (20), `subagents` (whether the model has the tools for them; on by itself with
    `agent_dirs`), `max_parallel_tasks` (of one run at once), `max_subagents` (of all sessions of a store at once, 8;
    the newest value counts), `max_subagent_depth` (3). Of where tools come from: `mcp_servers` by name.
    `tenant_id` is whose session it is: the same `session_id` of another tenant is another session. `principal`,
    `agent_template_id` and `correlation_id` are labels that Laneway never reads. With `record` its runs are written
    down so that they can be replayed to the same bytes.
    """

    model: Any = None
    system: str | None = None
    tools: Iterable[Any] | None = None
    tool_lanes: Mapping[str, str] | None = None
    tool_effects: Mapping[str, Effect | Literal["read", "idempotent", "write"]] | None = None
    queue_config: SessionQueueConfig | None = None
    permission_policy: PermissionPolicy | None = None
    confirmation_policy: ConfirmationPolicy | None = None
    hooks: Iterable[Hook | Mapping[str, Any]] | None = None
    skill_dirs: Sequence[Any] | None = None
    agent_dirs: Sequence[Any] | None = None
    mcp_servers: Mapping[str, McpServerConfig | Mapping[str, Any]] | None = None
    planning: bool | None = None
    max_plan_steps: int | None = None
    max_parallel_tasks: int | None = None
    subagents: bool | None = None
    max_subagents: int | None = None
    max_subagent_depth: int | None = None
    session_store: Any = None
    session_id: str | None = None
    mode: Mode | str | None = None
    messages: QueueOptions | None = None
    on_crash: str | None = None
    max_tool_rounds: int | None = None
    max_calls_per_answer: int | None = None
    max_execution_time_ms: int | None = None
    tool_timeout_ms: int | None = None
    background_after_ms: int | None = None
    background_tools: Iterable[str] | None = None
    output_max: int | None = None
    auto_compact: bool | None = None
    auto_compact_threshold: float | None = None
    temperature: float | None = None
    thinking_budget: int | None = None
    max_output_tokens: int | None = None
    budget_guard: Any = None
    budget_on_error: Literal["allow", "deny"] | None = None
    budget_guard_timeout_ms: int | None = None
    budgets: Iterable[Budget | Mapping[str, Any]] | None = None
    record: bool | None = None
    retention_limits: SessionRetentionLimits | Mapping[str, Any] | None = None
    host: Any = None
    tenant_id: str | None = None
    principal: str | None = None
    agent_template_id: str | None = None
    correlation_id: str | None = None
    environment: Mapping[str, str] | None = None
    artifacts_dir: str | None = None

    CHECKS: ClassVar[Mapping[str, Check]] = {
        "model": anything,
        "system": optional(string),
        "tools": optional(listed),
        "tool_lanes": optional(by_tool(word(*SESSION_LANES))),
        "tool_effects": optional(by_tool(effect)),
        "queue_config": optional(_queue),
        "permission_policy": optional(record_of(PermissionPolicy)),
        "confirmation_policy": optional(record_of(ConfirmationPolicy)),
        "hooks": optional(_each(record_of(Hook))),
        "skill_dirs": optional(_each(path_text)),
        "agent_dirs": optional(_each(path_text)),
        "mcp_servers": optional(by_tool(record_of(McpServerConfig))),
        "planning": optional(flag),
        "max_plan_steps": optional(whole(1, 1_000)),
        "max_parallel_tasks": optional(whole(1, 1_000_000)),
        "subagents": optional(flag),
        "max_subagents": optional(whole(1, 1_000_000)),
        "max_subagent_depth": optional(whole(0, 100)),
        "session_store": anything,
        "session_id": optional(text),
        "mode": optional(lambda _, value: Mode.parse(value)),
        "messages": optional(record_of(QueueOptions)),
        "on_crash": optional(word(*ON_CRASH)),
        "max_tool_rounds": optional(whole(1, 1_000_000)),
        "max_calls_per_answer": optional(whole(1, 1_000_000)),
        "max_execution_time_ms": optional(whole(1, DURATION_MAX_MS)),
        "tool_timeout_ms": optional(whole(1, DURATION_MAX_MS)),
        "background_after_ms": optional(whole(0, DURATION_MAX_MS)),
        "background_tools": optional(_each(text)),
        "output_max": optional(whole(1)),
        "auto_compact": optional(flag),
        "auto_compact_threshold": optional(number(0.05, 1)),
        "temperature": optional(number(0, 2)),
        "thinking_budget": optional(whole(0)),
        "max_output_tokens": optional(whole(1)),
        "budget_guard": anything,
        "budget_on_error": optional(word("allow", "deny")),
        "budget_guard_timeout_ms": optional(whole(1, DURATION_MAX_MS)),
        "budgets": optional(_named(record_of(Budget))),
        "record": optional(flag),
        "retention_limits": optional(record_of(SessionRetentionLimits)),
        "host": anything,
        "tenant_id": optional(tenant_label),
        "principal": optional(identity_label),
        "agent_template_id": optional(identity_label),
        "correlation_id": optional(identity_label),
        "environment": optional(by_tool(string)),
        "artifacts_dir": optional(path_text),
    }

    @classmethod
    def defaults(cls) -> Self:
        """What holds where neither the session nor its agent says anything."""
        return cls(
            on_crash="resume",
            max_tool_rounds=50,
            max_calls_per_answer=64,
            output_max=30_000,
            auto_compact_threshold=0.8,
            max_plan_steps=20,
            max_subagent_depth=3,
        )


def merge(base: SessionOptions, over: SessionOptions) -> SessionOptions:
    """New options: what `over` says, and what `base` says where `over` says nothing."""
    given = {name: value for name, value in over.to_mapping().items() if value is not None}
    return SessionOptions(**{**base.to_mapping(), **given})
