"""`laneway worker ls` and `show`: the workers of a server, how they are and what they do."""

from __future__ import annotations

from typing import Annotated, Any, Final

import typer

from laneway.cli.client import path_of
from laneway.cli.reach import JsonOption, asking
from laneway.cli.tables import age, ago, console, errors, print_json, print_rows, say, table
from laneway.cli.watching import WatchOption, watched
from laneway.system import SystemClock

__all__ = ("ls", "show", "worker_line")

NAMED: Final = 6
EVERYTHING: Final = "all"
AT_TIMES: Final = ("*tools", "*workspaces", "*labels", "*host")
TAKES: Final = ("*lanes", "*tools", "*workspaces")
SHARED: Final = "Workers share a name: give each its own (--name), or nobody can tell them apart."


def ls(ctx: typer.Context, as_json: JsonOption = False, watch: WatchOption = False) -> None:
    """List the workers that the server was asked by lately: their health, what they have, what they did."""
    watched(ctx, lambda: _fetched(ctx), lambda found: _show(found, as_json=as_json), watch=watch)


def show(
    ctx: typer.Context, name: Annotated[str, typer.Argument(help="The worker.")], as_json: JsonOption = False
) -> None:
    """Show one worker: how it is, what it takes, and the tasks that it has. If several have the name, the newest."""
    with asking(ctx) as server:
        found = server.get(path_of("workers", name))
    if as_json:
        print_json(found)
        return
    say(f"Worker {found['name']}: {found['health']}, heard of {_heard(found)}")
    now_ms = SystemClock().wall_ms()
    process = f"process {found['pid']}" if found["pid"] else ""
    rows = [
        ("where", ", ".join(each for each in (found["host"], process) if each)),
        ("version", found["version"]),
        ("token", found["token"]),
        ("tenant", found["tenant"] or EVERYTHING),
        ("since", ago(found["first_seen_ms"], now_ms)),
        ("workspaces", ", ".join(found["workspaces"]) or EVERYTHING),
        ("lanes", ", ".join(found["lanes"]) or EVERYTHING),
        ("tools", ", ".join(found["commands"]) or EVERYTHING),
        ("labels", ", ".join(found["labels"])),
        ("at once", found["concurrency"] or ""),
        ("completed", found["completed"]),
        ("failed", found["failed"]),
        ("lost", found["lost"]),
        ("has", ", ".join(found["tasks"]) or "no task"),
    ]
    console().print(table(("", "+"), [row for row in rows if row[1] != ""]))
    if found["shares_name"]:
        say(SHARED, style="dim", to=errors())


def _heard(worker: dict[str, Any]) -> str:
    return f"{age(worker['seen_ago_ms'])} ago" if worker["seen_ago_ms"] >= 1_000 else "now"


def _fetched(ctx: typer.Context) -> list[dict[str, Any]]:
    with asking(ctx) as server:
        return list(server.items("/workers"))


def _show(found: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json({"items": found, "next": None})
        return
    note = SHARED if any(each["shares_name"] for each in found) else ""
    empty = "No worker has asked for tasks lately: laneway worker --connect URL starts one."
    columns, rows = _table(found)
    print_rows(columns, rows, empty=empty, note=note)


def _table(workers: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Workers as rows. What none of them says anything of has no column."""
    seen = [_cells(each) for each in workers]
    is_said = {name for cells in seen for name, value in cells.items() if value or name not in AT_TIMES}
    kept = [name for name in (seen[0] if seen else ()) if name in is_said]
    return kept, [[cells[name] or (EVERYTHING if name in TAKES else "") for name in kept] for cells in seen]


def _cells(worker: dict[str, Any]) -> dict[str, Any]:
    holds = worker["holds"]
    return {
        "worker": worker["name"],
        "health": worker["health"],
        "heard": _heard(worker),
        ">tasks": f"{holds}/{worker['concurrency']}" if worker["concurrency"] else holds,
        ">done": worker["completed"],
        ">failed": worker["failed"],
        ">lost": worker["lost"],
        "*lanes": _some(worker["lanes"]),
        "*tools": _some(worker["commands"]),
        "*workspaces": _some(worker["workspaces"]),
        "*labels": ",".join(worker["labels"]),
        "*host": worker["host"],
    }


def _some(names: list[str]) -> str:
    """The first few of them."""
    return ",".join([*names[:NAMED], *([f"+{len(names) - NAMED}"] if len(names) > NAMED else [])])


def worker_line(workers: list[dict[str, Any]]) -> str:
    """All of them in one line: `3 workers: 2 working, 1 quiet`; empty if there are none."""
    if not workers:
        return ""
    kinds = ("working", "waiting", "idle", "quiet")
    counts = [(sum(each["health"] == kind for each in workers), kind) for kind in kinds]
    said = ", ".join(f"{count} {kind}" for count, kind in counts if count)
    return f"{len(workers)} worker{'' if len(workers) == 1 else 's'}: {said}"
