"""`laneway lane`: how full lanes are, and what an operator changes about them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from laneway.cli.client import path_of
from laneway.cli.completion import complete_lane
from laneway.cli.reach import Asking, JsonOption, asking, operating, target_of
from laneway.cli.tables import age, line, print_json, print_rows, say
from laneway.cli.watching import WatchOption, watched
from laneway.errors import UsageError
from laneway.system import SystemClock

__all__ = ("lane_app", "lane_rows")

lane_app = typer.Typer(help="Lanes: how full they are, how wide they may be.", no_args_is_help=True)

LaneArgument = Annotated[str, typer.Argument(help="The lane.", autocompletion=complete_lane)]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit log.")]
WIDE = 100_000
TASKS = "Calls that somebody else makes"
COLUMNS = ("lane", "state", ">running", ">width", ">waiting", ">oldest", ">done", ">failed")


class Handling(StrEnum):
    """Who makes the calls of a lane of tools."""

    INTERNAL = "internal"
    EXTERNAL = "external"
    HYBRID = "hybrid"


class Sticky(StrEnum):
    """Whose tasks would like to go to the same worker."""

    SESSION = "session"
    WORKSPACE = "workspace"
    TENANT = "tenant"
    NONE = "none"


LeaseOption = Annotated[
    int | None, typer.Option("--lease-ms", min=1, help="How long a worker may be silent.", rich_help_panel=TASKS)
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option(
        "--label",
        help="What a worker must have to be given its tasks; may be given more than once. '' takes all away.",
        rich_help_panel=TASKS,
        metavar="LABEL",
    ),
]
StickyOption = Annotated[
    Sticky | None,
    typer.Option("--sticky", help="Whose tasks would like to go to the same worker.", rich_help_panel=TASKS),
]
StickyMsOption = Annotated[
    int | None,
    typer.Option("--sticky-ms", min=0, help="How long such a task waits for that worker.", rich_help_panel=TASKS),
]
FallbackOption = Annotated[
    bool | None,
    typer.Option(
        "--fallback/--no-fallback", help="Run a call here that nobody has taken in time.", rich_help_panel=TASKS
    ),
]
OrderedOption = Annotated[
    bool | None,
    typer.Option(
        "--ordered/--no-ordered",
        help="Whether the calls of one answer go out one after another.",
        rich_help_panel=TASKS,
    ),
]
BackgroundOption = Annotated[
    str | None,
    typer.Option(
        "--background-after-ms",
        help="After how long a call goes on in the background, if its tool allows that; or never.",
        rich_help_panel=TASKS,
        metavar="MS|never",
    ),
]


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
        rows = lane_rows(found, every=every)
        note = "\n".join(
            f"{each['name']}: {_by_whom(each)}"  # those of sessions are the same, and many
            for each in found
            if each["mode"] not in (None, Handling.INTERNAL) and "/" not in each["name"]
        )
        print_rows(COLUMNS, rows, empty="There are no lanes.", note=note)


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
    """How it is; and who makes its calls, if that is not this process alone."""
    mode = lane.get("mode")
    by = "" if mode in (None, Handling.INTERNAL) else f", {mode}"
    return f"{_how(lane, now_ms)}{by}"


def _how(lane: dict[str, Any], now_ms: int) -> str:
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
    lease_ms: LeaseOption = None,
    labels: LabelOption = None,
    sticky: StickyOption = None,
    sticky_ms: StickyMsOption = None,
    fallback: FallbackOption = None,
    ordered: OrderedOption = None,
    background_after_ms: BackgroundOption = None,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Change a lane until the server ends.

    The bare name of a tool lane means that lane of every session, of all workspaces or of the one of --workspace. One
    session has lanes of its own: lane ls --all shows their names.
    """
    wanted: dict[str, Any] = {
        "concurrency": concurrency,
        "mode": mode,
        "timeout_ms": timeout_ms,
        "lease_ms": lease_ms,
        "labels": None if labels is None else [each for each in labels if each],
        "sticky": None if sticky is None else "" if sticky is Sticky.NONE else sticky,
        "sticky_ms": sticky_ms,
        "fallback": fallback,
        "ordered": ordered,
    }
    change = {name: value for name, value in wanted.items() if value is not None}
    if background_after_ms is not None:
        change["background_after_ms"] = _after(background_after_ms)
    if not change:
        raise UsageError("nothing is to be changed", hint="--concurrency, --mode or --timeout-ms, for example")
    _change(ctx, lane, change, reason, "was changed", as_json=as_json)


def _after(said: str) -> int | None:
    """A time in milliseconds, or never."""
    if said.strip().casefold() == "never":
        return None
    if not (said.isascii() and said.isdecimal()):
        raise UsageError(f"--background-after-ms is a number of milliseconds or never, not {said!r:.80}")
    return int(said)


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
        counts = f"{found['running']} of {found['concurrency']} run, {found['waiting']} wait"
        workspace = target_of(ctx).workspace
        where = "" if "/" in found["name"] or not workspace else f" of workspace {line(workspace)}"
        say(f"Lane {found['name']}{where} {what}: {counts}")
        if set(change) - {"concurrency", "paused"}:
            said = _by_whom(found)
            say(f"{said[0].upper()}{said[1:]}")


def _by_whom(lane: dict[str, Any]) -> str:
    """Who makes the calls of a lane of tools, and what holds for that."""
    if lane["mode"] == Handling.INTERNAL:
        return "its calls are made here (internal)"
    if lane["mode"] == Handling.HYBRID:
        return "its calls are made here, and whoever watches is told of them (hybrid)"
    if lane["mode"] != Handling.EXTERNAL:
        return "who makes its calls differs from workspace to workspace: name one with --workspace"
    said = [
        f"its calls are made elsewhere (external), within {age(lane['timeout_ms'])}",
        f"a worker may be silent for {age(lane['lease_ms'])}",
        f"it must have {', '.join(lane['labels'])}" if lane["labels"] else "",
        f"those of a {lane['sticky']} wait {age(lane['sticky_ms'])} for the same worker" if lane["sticky"] else "",
        "" if lane["ordered"] else "neighbouring ones go out together",
        ""
        if lane["background_after_ms"] is None
        else f"in the background after {age(lane['background_after_ms'])}, if the tool allows it",
        "what nobody takes in time runs here" if lane["fallback"] else "what nobody takes in time fails",
    ]
    return "; ".join(each for each in said if each)
