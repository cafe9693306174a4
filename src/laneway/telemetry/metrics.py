"""Numbers for Prometheus: counters that events feed, and gauges that are read when somebody asks.

Every gateway has a registry of its own. No label names a session or a user, and every label has a bounded number of
values: lanes of sessions are one lane, and names of tools beyond a hundred are `other`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from laneway.agent_events import AgentEvent, SubagentProgressEvent, ToolEndEvent, ToolStartEvent
from laneway.dialogue import Usage
from laneway.events import (
    Event,
    MessageAccepted,
    MessageEnded,
    MessageInjected,
    MessageParked,
    MessageRefused,
    MessageReturned,
    MessageStarted,
    TurnEnded,
    TurnStarted,
)
from laneway.kernel.histograms import Histogram as Distribution
from laneway.kernel.task_entries import TaskNews
from laneway.mail import MessageState
from laneway.options import SESSION_LANES
from laneway.telemetry.fairness import Fairness

__all__ = ("CONTENT_TYPE", "OTHER", "LaneMoment", "Metrics", "Moment", "lane_label", "task_lane")

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
OTHER: Final = "other"
TOOLS_MAX: Final = 100
LANES_MAX: Final = 200
BUDGETS_MAX: Final = 100
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
EDGES_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
EDGES_MS: Final = tuple(round(edge * 1000) for edge in EDGES_S)
DROPPED: Final = frozenset(
    {
        MessageState.DROPPED,
        MessageState.SUMMARIZED,
        MessageState.EXPIRED,
        MessageState.SUPERSEDED,
        MessageState.REJECTED,
        MessageState.DEAD_LETTERED,
    }
)
TOKENS: Final = {
    "input": "input_tokens",
    "output": "output_tokens",
    "cache_read": "cache_read_tokens",
    "cache_write": "cache_write_tokens",
}


@dataclass(slots=True)
class LaneMoment:
    """All lanes of one name at one moment. `waits` counts by the upper edge of `EDGES_MS`, the rest last."""

    waiting: int = 0
    running: int = 0
    width: int = 0
    oldest_ms: int = 0
    waits: list[int] = field(default_factory=lambda: [0] * (len(EDGES_MS) + 1))
    waited_ms: int = 0

    def add_waits(self, waits: Distribution) -> None:
        """Add how long the jobs of one lane have waited."""
        counts = self.waits
        for edge_ms, count in waits.spread():
            counts[bisect_left(EDGES_MS, edge_ms)] += count
        self.waited_ms += waits.total_ms


@dataclass(slots=True)
class Moment:
    """What there is at one moment; whoever has the gateway fills it in."""

    lanes: dict[str, LaneMoment] = field(default_factory=dict)
    messages_waiting: int = 0
    oldest_ms: int = 0
    dead_letters: int = 0
    sessions_open: int = 0
    approvals_pending: int = 0
    leases_lost: int = 0
    tasks: Counts[tuple[str, str]] = field(default_factory=Counts)
    """External tasks that have not ended, by lane and state."""
    workers: Counts[str] = field(default_factory=Counts)
    """Workers by their health."""
    budgets: dict[str, float] = field(default_factory=dict)
    """Budgets by name: how much of the limit the fullest count has spent."""
    runs_parked: int = 0
    tasks_claimed: int = 0
    task_leases_lost: dict[str, int] = field(default_factory=dict)

    def add_budget(self, name: str, share: float) -> None:
        """A count of a budget. Tenants name their own as they like: those are one."""
        if name not in self.budgets and len(self.budgets) >= BUDGETS_MAX:
            name = OTHER
        self.budgets[name] = max(share, self.budgets.get(name, 0.0))

    def lane(self, name: str) -> LaneMoment:
        """The lanes that are shown under a name."""
        found = self.lanes.get(name)
        if found is None:
            name = name if len(self.lanes) < LANES_MAX else OTHER
            found = self.lanes.setdefault(name, LaneMoment())
        return found


HEALTHS: Final = ("working", "waiting", "idle", "quiet")


def task_lane(name: str) -> str:
    """What the lane of a task is shown under."""
    return name if name in SESSION_LANES else OTHER


def lane_label(name: str) -> str:
    """What a lane is shown under: its bare name, without the session or the workspace it belongs to."""
    short = name.rpartition("/")[2]
    return "session" if short.startswith("session:") else short


class Metrics(Collector):
    """Everything that one gateway counts."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=False)
        self.fairness = Fairness(now)
        self.moment = Moment()
        self.streams = 0
        self.sockets = 0
        self._tools: set[str] = set()
        self._steering: set[str] = set()  # messages that aim at a turn, or are in one
        self._sums: dict[str, float] = dict.fromkeys(TOKENS, 0)
        self._cost = 0.0

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"laneway_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"laneway_{name}_seconds", text, labels, buckets=EDGES_S, registry=registry)

        self._accepted = counter("message_accepted", "Messages that were taken.", "mode")
        self._dropped = counter("message_dropped", "Messages that never got a turn, or were not taken.", "reason")
        self._ended = counter("message_ended", "Messages that are final.", "disposition", "outcome")
        self._wait = histogram("message_wait", "From the arrival of a message to the beginning of its turn.")
        self._steer = counter("steer", "Messages for a running turn, and what became of them.", "outcome")
        self._runs = counter("run_started", "Runs that have begun.", "lane")
        self._run = histogram("run_duration", "How long runs took.", "outcome")
        self._calls = counter("tool_execution", "Calls of tools that have ended.", "tool", "outcome")
        self._call = histogram("tool_execution_duration", "How long calls of tools took.", "tool")
        self._tasks_ended = counter("task_ended", "External tasks that have ended.", "lane", "state")
        self._tasks_back = counter("task_requeued", "External tasks that went back to those that wait.", "lane")
        self._tasks_late = counter("task_late", "Results that came late, and what became of them.", "outcome")
        self._task_wait = histogram("task_wait", "Until a worker began with an external task.", "lane")
        self._task = histogram("task_duration", "From the order of an external task to its end.", "lane", "state")
        self._requests = counter("http_requests", "Requests that were answered.", "route", "method", "status")
        self._request = histogram("http_request_duration", "Until the answer to a request began.", "route", "method")
        self._on: Mapping[type[Event], Callable[[Any], None]] = {
            MessageAccepted: self._on_accepted,
            MessageRefused: self._on_refused,
            MessageParked: self._on_parked,
            MessageInjected: self._on_injected,
            MessageReturned: self._on_returned,
            MessageStarted: self._on_started,
            MessageEnded: self._on_ended,
            TurnStarted: self._on_turn_started,
            TurnEnded: self._on_turn_ended,
        }
        registry.register(self)

    # ---- what happens ----

    def on_mail_event(self, event: Event) -> None:
        """Something has happened to a message or a turn."""
        handle = self._on.get(type(event))
        if handle is not None:
            handle(event)

    def on_agent_event(self, event: AgentEvent) -> None:
        """Something has happened in a run."""
        if isinstance(event, ToolEndEvent):
            self._on_tool(event.tool_name, event.status, event.duration_ms)
        elif isinstance(event, ToolStartEvent):
            self._know(event.tool_name)
        elif isinstance(event, SubagentProgressEvent):
            self._on_child(event.event)

    def _on_child(self, envelope: Mapping[str, Any]) -> None:
        kind, payload = envelope.get("type"), envelope.get("payload", {})
        if kind == ToolEndEvent.event_type:
            self._on_tool(payload["tool_name"], payload["status"], payload["duration_ms"])
        elif kind == ToolStartEvent.event_type:
            self._know(payload["tool_name"])
        elif kind == SubagentProgressEvent.event_type:
            self._on_child(payload["event"])

    def _know(self, tool: str) -> None:
        # Only what really starts: a model may make up any number of names.
        if len(self._tools) < TOOLS_MAX:
            self._tools.add(tool)

    def _on_tool(self, name: str, status: str, duration_ms: int) -> None:
        tool = name if name in self._tools else OTHER
        self._calls.labels(tool, str(status)).inc()
        self._call.labels(tool).observe(duration_ms / 1000)

    def on_task(self, news: TaskNews, now: int) -> None:
        """Something has happened to an external task; `now` is monotonic."""
        entry = news.entry
        lane = task_lane(entry.lane)
        match news.kind:
            case "started" if entry.attempt == 1:  # those that come after it have waited for somebody else's end
                self._task_wait.labels(lane).observe(max(0, now - entry.timeout_due + entry.timeout_ms) / 1000)
            case "requeued":
                self._tasks_back.labels(lane).inc()
            case "ended":
                self._tasks_ended.labels(lane, entry.state.value).inc()
                self._task.labels(lane, entry.state.value).observe(entry.end.duration_ms / 1000)
            case "settled" | "refused":
                self._tasks_late.labels(news.kind).inc()
            case _:
                pass

    def on_usage(self, usage: Usage) -> None:
        """A model has used so much more."""
        for name, attribute in TOKENS.items():
            self._sums[name] += max(0, getattr(usage, attribute))
        self._cost += max(0.0, usage.cost or 0.0)

    def on_request(self, route: str, method: str, status: int, took_s: float) -> None:
        """A request was answered."""
        method = method if method in METHODS else OTHER
        self._requests.labels(route, method, str(status)).inc()
        self._request.labels(route, method).observe(took_s)

    def on_overloaded(self) -> None:
        """A message was not taken because too much waits."""
        self._dropped.labels("overloaded").inc()

    def _on_accepted(self, event: MessageAccepted) -> None:
        self._accepted.labels(event.mode).inc()
        self.fairness.asked(event.tenant)
        if event.state is MessageState.PARKED:
            self._steering.add(event.message_id)

    def _on_refused(self, event: MessageRefused) -> None:
        self._dropped.labels("full").inc()

    def _on_parked(self, event: MessageParked) -> None:
        self._steering.add(event.message_id)

    def _on_injected(self, event: MessageInjected) -> None:
        self._steering.add(event.message_id)
        self._steer.labels("injected").inc()

    def _on_returned(self, event: MessageReturned) -> None:
        if event.message_id in self._steering:
            self._steering.discard(event.message_id)
            self._steer.labels("returned").inc()

    def _on_started(self, event: MessageStarted) -> None:
        self._wait.observe(event.wait_ms / 1000)

    def _on_ended(self, event: MessageEnded) -> None:
        outcome = event.outcome.value if event.outcome is not None else ""
        self._ended.labels(event.state.value, outcome).inc()
        if event.state in DROPPED:
            self._dropped.labels(event.state.value).inc()
        elif event.state is MessageState.STEERED:
            self._steer.labels("steered").inc()
        self._steering.discard(event.message_id)

    def _on_turn_started(self, event: TurnStarted) -> None:
        self._runs.labels(lane_label(event.lane)).inc()

    def _on_turn_ended(self, event: TurnEnded) -> None:
        self._run.labels(event.state.value).observe(event.run_ms / 1000)
        self.fairness.served(event.tenant, event.run_ms)

    # ---- what is asked for ----

    def text(self, moment: Moment) -> bytes:
        """Everything in the format of Prometheus."""
        self.moment = moment
        return generate_latest(self.registry)

    def collect(self) -> Iterable[Metric]:
        """What is read at the moment somebody asks."""
        yield from self._lanes()
        yield from self._gauges()
        tokens = CounterMetricFamily("laneway_model_tokens", "Tokens that models have used.", labels=["token_type"])
        for name, total in self._sums.items():
            tokens.add_metric([name], total)
        yield tokens
        lost = "Workspaces whose store another process has taken over."
        yield CounterMetricFamily("laneway_lease_lost", lost, self.moment.leases_lost)
        yield from self._tasks()
        yield from self._budgets()
        yield CounterMetricFamily("laneway_model_cost_usd", "What model calls have cost, as far as known.", self._cost)

    def _lanes(self) -> Iterator[Metric]:
        size = GaugeMetricFamily("laneway_queue_lane_size", "Jobs that wait in a lane.", labels=["lane"])
        running = GaugeMetricFamily("laneway_queue_lane_running", "Slots of a lane that are taken.", labels=["lane"])
        width = GaugeMetricFamily("laneway_queue_lane_width", "Slots that a lane has.", labels=["lane"])
        oldest = GaugeMetricFamily(
            "laneway_queue_oldest_age_seconds", "How long the oldest job of a lane has waited.", labels=["lane"]
        )
        waits = HistogramMetricFamily(
            "laneway_queue_lane_wait_seconds", "How long jobs waited in a lane before they started.", labels=["lane"]
        )
        for name, lane in sorted(self.moment.lanes.items()):
            size.add_metric([name], lane.waiting)
            running.add_metric([name], lane.running)
            width.add_metric([name], lane.width)
            oldest.add_metric([name], lane.oldest_ms / 1000)
            waits.add_metric([name], _buckets(lane.waits), lane.waited_ms / 1000)
        yield from (size, running, width, oldest, waits)

    def _budgets(self) -> Iterator[Metric]:
        spent = GaugeMetricFamily(
            "laneway_budget_spent_ratio", "How much of a budget its fullest count has spent.", labels=["budget"]
        )
        for name, share in sorted(self.moment.budgets.items()):
            spent.add_metric([name], share)
        yield spent
        yield GaugeMetricFamily(
            "laneway_runs_parked", "Runs that wait for a budget, those at rest included.", self.moment.runs_parked
        )

    def _tasks(self) -> Iterator[Metric]:
        now = self.moment
        size = GaugeMetricFamily("laneway_task_size", "External tasks that have not ended.", labels=["lane", "state"])
        for (lane, state), count in sorted(now.tasks.items()):
            size.add_metric([lane, state], count)
        workers = GaugeMetricFamily("laneway_workers", "Workers that were heard of lately.", labels=["health"])
        for health in HEALTHS:
            workers.add_metric([health], now.workers[health])
        lost = CounterMetricFamily(
            "laneway_task_lease_lost", "Leases that ended because nothing was heard of a worker.", labels=["started"]
        )
        for started, count in now.task_leases_lost.items():
            lost.add_metric([started], count)
        yield from (size, workers, lost)
        yield CounterMetricFamily(
            "laneway_task_claimed", "External tasks that were given to workers.", now.tasks_claimed
        )

    def _gauges(self) -> Iterator[Metric]:
        now = self.moment
        for name, text, value in (
            ("messages_waiting", "Messages that wait.", now.messages_waiting),
            ("message_oldest_age_seconds", "How long the oldest turn has waited for a slot.", now.oldest_ms / 1000),
            ("dlq_size", "Jobs among the dead letters.", now.dead_letters),
            ("sessions_open", "Sessions in memory.", now.sessions_open),
            ("approvals_pending", "Requests for approval that nobody has answered.", now.approvals_pending),
            ("sse_connections", "Open streams of events.", self.streams),
            ("websocket_connections", "Open WebSockets.", self.sockets),
            ("fairness_index", "Jain's index over the tenants of the last minutes; 1 is fair.", self.fairness.index()),
        ):
            yield GaugeMetricFamily(f"laneway_{name}", text, value)


def _buckets(counts: list[int]) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    total = 0
    for edge, count in zip((*map(str, EDGES_S), "+Inf"), counts, strict=True):
        total += count
        buckets.append((edge, total))
    return buckets
