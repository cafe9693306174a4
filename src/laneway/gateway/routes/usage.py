"""Usage: what model calls have used and cost, and how close runs have come to their limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from heapq import nlargest
from typing import Annotated, Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

from fastapi import Query
from pydantic import Field

from laneway.gateway.deps import CallerOf, GatewayOf, NamedWorkspaceOf
from laneway.gateway.service import Gateway
from laneway.gateway.usage import Key, RunSum, Sum, UsageBook
from laneway.gateway.views import View, router_of
from laneway.gateway.workspaces import Workspace
from laneway.options import SessionOptions
from laneway.runtime.schedules import check_timezone

__all__ = ("router",)

router = router_of("usage")

DAY_MS = 86_400_000
WALL_MAX = 1 << 53
From = Annotated[int, Query(ge=0, le=WALL_MAX, description="From when on, by the hour: wall clock, ms; 0: ever.")]
To = Annotated[int, Query(ge=0, le=WALL_MAX, description="Before when; 0: until now.")]


class UsageSum(View):
    """What calls have used together."""

    calls: int = Field(description="Calls of a model.")
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost: float | None = Field(default=None, description="US dollars; null if no price is known of any of them.")
    priced_calls: int = Field(description="How many of them have a price.")


class UsageItem(UsageSum):
    """A part of the usage. Of a run also its session, its workspace and when it last called its model."""

    key: str = Field(description="The day (2026-11-16), the session, the model, the workspace or the run.")
    workspace: str | None = None
    session_key: str | None = None
    last_ms: int | None = None


class UsageView(View):
    """What was used in a time; days come in their order, anything else the most expensive first."""

    group: str
    from_ms: int
    to_ms: int | None = None
    timezone: str
    total: UsageSum
    items: list[UsageItem]
    left_out: int = Field(default=0, description="How many further parts there are.")


class RunLimit(View):
    """Something that a run may have at most, and the most that a run has had in that time."""

    workspace: str
    name: str
    limit: int | None = Field(default=None, description="null: there is none.")
    unit: Literal["rounds", "tokens", "ms", "calls", "runs", "levels"]
    used: int | None = Field(default=None, description="null: it is not measured.")
    run_id: str | None = Field(default=None, description="Which run it was.")
    session_key: str | None = None


class RunLimits(View):
    """How close runs have come to what they may have."""

    from_ms: int
    items: list[RunLimit]


@router.get("/usage", summary="What model calls have used and cost")
async def show(
    gateway: GatewayOf,
    caller: CallerOf,
    workspace: NamedWorkspaceOf,
    group: Literal["day", "session", "model", "workspace", "run"] = "day",
    from_ms: From = 0,
    to_ms: To = 0,
    timezone: Annotated[str, Query(max_length=100, description="Where a day begins.")] = "UTC",
    limit: Annotated[int, Query(ge=1, le=1_000)] = 100,
) -> UsageView:
    """Tokens and cost of the caller's tenant, in one workspace or in all. Sub-agents count for their session.

    Times are by the hour: an hour belongs to the day, and to the time, that it begins in.
    """
    zone = ZoneInfo(check_timezone(timezone))
    books = await gateway.usage.of(caller.tenant, _names(gateway, None if group == "workspace" else workspace))
    end = to_ms or 1 << 62
    total = Sum()
    for book in books.values():
        for _, part in book.hours(from_ms, end):
            total.merge(part)
    parts = _runs(books, from_ms, end) if group == "run" else _grouped(books, _key_of(group, zone), from_ms, end)
    if group == "day":
        shown = sorted(parts, key=lambda each: each.key)[-limit:]
    else:
        shown = nlargest(limit, parts, key=lambda each: (each.found.cost, each.found.tokens))
    return UsageView(
        group=group,
        from_ms=from_ms,
        to_ms=to_ms or None,
        timezone=timezone,
        total=UsageSum(**_facts(total)),
        items=[each.view() for each in shown],
        left_out=len(parts) - len(shown),
    )


@router.get("/usage/limits", summary="How close runs have come to their limits")
async def limits(
    gateway: GatewayOf, caller: CallerOf, workspace: NamedWorkspaceOf, from_ms: From = 0, to_ms: To = 0
) -> RunLimits:
    """What a run of each workspace may have at most, and the most that one of the caller's runs has had."""
    books = await gateway.usage.of(caller.tenant, _names(gateway, workspace))
    items: list[RunLimit] = []
    for name, book in books.items():
        items += _limits(gateway.workspaces[name], dict(book.runs(from_ms, to_ms or 1 << 62)))
    return RunLimits(from_ms=from_ms, items=items)


def _names(gateway: Gateway, workspace: Workspace | None) -> list[str]:
    return list(gateway.workspaces) if workspace is None else [workspace.name]


def _key_of(group: str, zone: ZoneInfo) -> Callable[[str, Key], str]:
    days: dict[int, str] = {}

    def day(_: str, key: Key) -> str:
        if key.hour_ms not in days:
            days[key.hour_ms] = datetime.fromtimestamp(key.hour_ms / 1000, zone).date().isoformat()
        return days[key.hour_ms]

    keys: Mapping[str, Callable[[str, Key], str]] = {
        "day": day,
        "session": lambda _, key: key.session,
        "model": lambda _, key: key.model,
        "workspace": lambda name, _: name,
    }
    return keys[group]


class _Part(NamedTuple):
    """A part of the usage, before anybody knows whether it is shown."""

    key: str
    found: Sum
    workspace: str | None = None
    session: str | None = None

    def view(self) -> UsageItem:
        """The same for the outside."""
        return UsageItem(
            key=self.key,
            workspace=self.workspace,
            session_key=self.session,
            last_ms=self.found.last_ms or None,
            **_facts(self.found),
        )


def _grouped(
    books: Mapping[str, UsageBook], key_of: Callable[[str, Key], str], from_ms: int, to_ms: int
) -> list[_Part]:
    found: dict[str, Sum] = {}
    for name, book in books.items():
        for key, part in book.hours(from_ms, to_ms):
            found.setdefault(key_of(name, key), Sum()).merge(part)
    return [_Part(key, each) for key, each in found.items()]


def _runs(books: Mapping[str, UsageBook], from_ms: int, to_ms: int) -> list[_Part]:
    return [
        _Part(run_id, each, name, each.session)
        for name, book in books.items()
        for run_id, each in book.runs(from_ms, to_ms)
    ]


def _facts(found: Sum) -> dict[str, Any]:
    return {
        "calls": found.calls,
        "input_tokens": found.input,
        "output_tokens": found.output,
        "cache_read_tokens": found.cache_read,
        "cache_write_tokens": found.cache_write,
        "cost": found.cost if found.priced else None,
        "priced_calls": found.priced,
    }


def _limits(workspace: Workspace, runs: Mapping[str, RunSum]) -> list[RunLimit]:
    """The limits of the agent of a workspace. What is not measured here has no `used`."""
    options, usual = workspace.agent.options, SessionOptions.defaults()

    def limit_of(name: str) -> Any:
        given = getattr(options, name)
        return getattr(usual, name) if given is None else given

    sized: tuple[tuple[str, Literal["rounds", "tokens"], str], ...] = (
        ("max_tool_rounds", "rounds", "calls"),
        ("max_output_tokens", "tokens", "most_output"),
    )
    items: list[RunLimit] = []
    for name, unit, measure in sized:
        top = max(runs.items(), key=lambda each: getattr(each[1], measure), default=None)
        items.append(
            RunLimit(
                workspace=workspace.name,
                name=name,
                limit=limit_of(name),
                unit=unit,
                used=None if top is None else getattr(top[1], measure),
                run_id=None if top is None else top[0],
                session_key=None if top is None else top[1].session,
            )
        )
    plain: tuple[tuple[str, Literal["ms", "calls", "tokens", "runs", "levels"]], ...] = (
        ("max_execution_time_ms", "ms"),
        ("max_calls_per_answer", "calls"),
        ("thinking_budget", "tokens"),
        ("max_parallel_tasks", "runs"),
        ("max_subagents", "runs"),
        ("max_subagent_depth", "levels"),
    )
    for name, what in plain:
        value = limit_of(name)
        if value is not None:
            items.append(RunLimit(workspace=workspace.name, name=name, limit=value, unit=what))
    return items
