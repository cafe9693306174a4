"""`laneway lane`: how full lanes are, and what an operator changes about them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from laneway.cli.client import path_of
from laneway.cli.completion import complete_lane
from laneway.cli.reach import Asking, JsonOption, asking, operating
from laneway.cli.tables import age, print_json, print_rows, say
from laneway.cli.watching import WatchOption, watched
from laneway.errors import UsageError
from laneway.system import SystemClock

__all__ = ("lane_app", "lane_rows")

lane_app = typer.Typer(help="Lanes: how full they are, how wide they may be.", no_args_is_help=True)

LaneArgument = Annotated[str, typer.Argument(help="The lane.", autocompletion=complete_lane)]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit log.")]
WIDE = 100_000
COLUMNS = ("lane", "state", ">running", ">width", ">waiting", ">oldest", ">done", ">failed")


class Handling(StrEnum):
    """Who makes the calls of a lane of tools."""

    INTERNAL = "internal"
    EXTERNAL = "external"
    HYBRID = "hybrid"


@lane_app.command("ls", cls=Asking)
def ls(
    ctx: typer.Context,
    every: Annotated[bool, typer.Option("--all", help="Those of sessions where nothing happens, too.")] = False,
    as_json: JsonOption = False,
    watch: WatchOption = False,
) -> None:
    """List the lanes: what runs, what waits, how wide they are."""
    watched(ctx, lambda: _fetched(ctx), lambda found: _show(found, every=every, as_json=as_json), watch=watch)


def _fetched(ctx: typer.Context) -> list[dict[str, Any]]:
    with asking(ctx) as server:
        return list(server.items("/lanes"))


def _show(found: list[dict[str, Any]], *, every: bool, as_json: bool) -> None:
    if as_json:
        print_json({"items": found, "next": None})
    else:
        print_rows(COLUMNS, lane_rows(found, every=every), empty="There are no lanes.")


def lane_rows(lanes: list[dict[str, Any]], *, every: bool = False) -> list[tuple[Any, ...]]:
    """Lanes as rows; those of sessions (`s1/query`) only while something is in them."""
    now_ms = SystemClock().wall_ms()
    rows = []
    for each in lanes:
        is_quiet = not (each["running"] or each["waiting"] or each["paused"] or each["closed_until_ms"])
        if "/" in each["name"] and is_quiet and not every:
            continue
        oldest = age(each["oldest_wait_ms"]) if each["waiting"] else ""
        counts = (each["running"], _width(each["concurrency"]), each["waiting"] or "", oldest)
        rows.append((each["name"], _state(each, now_ms), *counts, each["completed"] or "", each["failed"] or ""))
    return rows


def _width(concurrency: int) -> str:
    return str(concurrency) if concurrency < WIDE else "any"  # as good as without a bound


def _state(lane: dict[str, Any], now_ms: int) -> str:
    if lane["paused"]:
        return "paused"
    if lane["closed_until_ms"]:
        return f"closed {age(lane['closed_until_ms'] - now_ms)}"
    return "full" if lane["running"] >= lane["concurrency"] else "open"


@lane_app.command("set", cls=Asking)
def set_(
    ctx: typer.Context,
    lane: LaneArgument,
    concurrency: Annotated[int | None, typer.Option("--concurrency", "-c", min=1, help="How wide it is.")] = None,
    mode: Annotated[Handling | None, typer.Option("--mode", help="Who makes its calls (lanes of tools).")] = None,
    timeout_ms: Annotated[
        int | None, typer.Option("--timeout-ms", min=1, help="For whoever makes its calls elsewhere.")
    ] = None,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Change a lane until the server ends; the bare name of a tool lane means that lane of every session."""
    wanted: dict[str, Any] = {"concurrency": concurrency, "mode": mode, "timeout_ms": timeout_ms}
    change = {name: value for name, value in wanted.items() if value is not None}
    if not change:
        raise UsageError("nothing is to be changed", hint="--concurrency, --mode or --timeout-ms")
    _change(ctx, lane, change, reason, "was changed", as_json=as_json)


@lane_app.command("pause", cls=Asking)
def pause(ctx: typer.Context, lane: LaneArgument, reason: ReasonOption = "", as_json: JsonOption = False) -> None:
    """Start nothing in a lane until it is resumed; what runs goes on."""
    _change(ctx, lane, {"paused": True}, reason, "is paused", as_json=as_json)


@lane_app.command("resume", cls=Asking)
def resume(ctx: typer.Context, lane: LaneArgument, reason: ReasonOption = "", as_json: JsonOption = False) -> None:
    """Let a paused lane start jobs again."""
    _change(ctx, lane, {"paused": False}, reason, "goes on", as_json=as_json)


def _change(ctx: typer.Context, lane: str, change: dict[str, Any], reason: str, what: str, *, as_json: bool) -> None:
    with operating(ctx) as server:
        found = server.patch(path_of("lanes", lane), {**change, "reason": reason} if reason else change)
    if as_json:
        print_json(found)
    else:
        say(f"Lane {found['name']} {what}: {found['running']} of {found['concurrency']} run, {found['waiting']} wait")
