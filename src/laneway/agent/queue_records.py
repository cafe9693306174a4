"""What a session tells about its lanes: stats, metrics and dead letters, read by item or by attribute.

They are plain dicts (so they can be printed as JSON) whose keys are attributes too: `stats["total_pending"]` and
`stats.total_pending` are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from laneway.errors import InvalidJobError
from laneway.kernel.histograms import Histogram
from laneway.records import Fields

__all__ = (
    "ByLane",
    "DeadCommand",
    "LaneQueueStats",
    "QueueMetrics",
    "QueueStats",
    "arguments_in",
    "histogram",
    "tool_call",
)


class ByLane(Fields):
    """Something for each lane; the case of a lane's name does not matter: `["Query"]` is `["query"]`."""

    def __missing__(self, key: str) -> Any:
        lower = key.casefold() if isinstance(key, str) else key
        if lower == key:
            raise KeyError(key)
        return self[lower]


class LaneQueueStats(Fields):
    """One lane of a session at one moment. `pending` counts what waits for a slot, or for the time of a retry."""

    lane: str
    pending: int
    active: int
    completed: int
    failed: int
    max_concurrency: int
    handler_mode: str


class QueueStats(Fields):
    """The lanes of a session at one moment; `lanes` has a `LaneQueueStats` for each."""

    total_pending: int
    total_active: int
    external_pending: int
    lanes: ByLane


class QueueMetrics(Fields):
    """What the lanes of a session have counted and measured since it was made."""

    counters: dict[str, int]
    gauges: dict[str, int]
    histograms: dict[str, dict[str, float]]


class DeadCommand(Fields):
    """A call that failed for good. `payload` is what it was called with, `failed_at` wall-clock milliseconds."""

    command_id: str
    command_type: str
    lane: str
    lane_id: str
    error: str
    attempts: int
    failed_at: int
    payload: Any


def histogram(*parts: Histogram) -> dict[str, float]:
    """The numbers of some durations, in milliseconds; percentiles are right to about 3 %."""
    whole = Histogram()
    for part in parts:
        whole.merge(part)
    stats = whole.stats()
    return {
        "count": stats.count,
        "sum": stats.sum_ms,
        "min": whole.percentile(0) if stats.count else 0,
        "max": stats.max_ms,
        "mean": stats.sum_ms / stats.count if stats.count else 0.0,
        "p50": stats.p50_ms,
        "p90": stats.p90_ms,
        "p95": stats.p95_ms,
        "p99": stats.p99_ms,
    }


NATURAL: tuple[tuple[frozenset[str], str], ...] = (
    (frozenset({"command"}), "bash"),
    (frozenset({"url"}), "web_fetch"),
    (frozenset({"path", "content"}), "write"),
    (frozenset({"path", "old", "new"}), "edit"),
    (frozenset({"path", "diff"}), "patch"),
    (frozenset({"pattern", "glob"}), "grep"),
)
"""Which tool a payload means that names none: the first whose arguments it has."""

NAMES = ("tool", "command_type")
ARGUMENTS = ("arguments", "args", "payload")
AROUND = frozenset({*NAMES, "call_id", "task_id", "session_id", "lane", "timeout_ms"})


def arguments_in(payload: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments in a payload that names its tool: under a name of their own, or beside that of the tool."""
    for name in ARGUMENTS:
        if isinstance(payload.get(name), Mapping) and payload.keys() - AROUND == {name}:
            return dict(payload[name])
    return {name: value for name, value in payload.items() if name not in (*NAMES, "call_id")}


def tool_call(lane: str, payload: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The tool that a payload names and its arguments.

    `{"tool": "bash", "command": "ls"}` and `{"command_type": "bash", "payload": {"command": "ls"}}` name it. A payload
    without a name means the tool that takes such arguments: `command` is `bash`, `url` is `web_fetch`, `path` with
    `content` is `write`, with `old` and `new` it is `edit`, with `diff` it is `patch`, and in lane `query` a `path`
    alone is `read`.
    """
    values = {str(name): value for name, value in payload.items()}
    named = [values.pop(name) for name in NAMES if name in values]
    if named:
        tool = named[0]
        if not isinstance(tool, str) or not tool or any(other != tool for other in named):
            raise InvalidJobError(f"a payload names its tool as text, not {tool!r}")
        return tool, arguments_in(values)
    for needed, tool in NATURAL:
        if needed <= values.keys():
            return tool, values
    if lane == "query" and "path" in values and "pattern" not in values:
        return "read", values
    raise InvalidJobError(
        f"a payload with {', '.join(values) or 'nothing in it'} does not say which tool it is for",
        hint='name it: {"tool": "grep", "pattern": "TODO"}, for one',
    )
