"""`laneway worker ls`: the workers of a server, how they are and what they do."""

from __future__ import annotations

from typing import Any, Final

import typer

from laneway.cli.reach import JsonOption, asking
from laneway.cli.tables import age, print_json, print_rows
from laneway.cli.watching import WatchOption, watched

__all__ = ("ls", "worker_line", "worker_rows")

COLUMNS: Final = ("worker", "health", "heard", ">tasks", ">done", ">failed", ">lost", "*lanes", "*labels", "*host")
SHARED: Final = "Workers share a name: give each its own (--name), or nobody can tell them apart."


def ls(ctx: typer.Context, as_json: JsonOption = False, watch: WatchOption = False) -> None:
    """List the workers that the server was asked by lately: their health, what they have, what they did."""
    watched(ctx, lambda: _fetched(ctx), lambda found: _show(found, as_json=as_json), watch=watch)


def _fetched(ctx: typer.Context) -> list[dict[str, Any]]:
    with asking(ctx) as server:
        return list(server.items("/workers"))


def _show(found: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json({"items": found, "next": None})
        return
    note = SHARED if any(each["shares_name"] for each in found) else ""
    empty = "No worker has asked for tasks lately: laneway worker --connect URL starts one."
    print_rows(COLUMNS, worker_rows(found), empty=empty, note=note)


def worker_rows(workers: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Workers as rows."""
    return [
        (
            each["name"],
            each["health"],
            f"{age(each['seen_ago_ms'])} ago" if each["seen_ago_ms"] >= 1_000 else "now",
            f"{each['holds']}/{each['concurrency']}" if each["concurrency"] else each["holds"] or "",
            each["completed"] or "",
            each["failed"] or "",
            each["lost"] or "",
            ",".join(each["lanes"]) or "all",
            ",".join(each["labels"]),
            each["host"],
        )
        for each in workers
    ]


def worker_line(workers: list[dict[str, Any]]) -> str:
    """All of them in one line: `3 workers: 2 working, 1 quiet`; empty if there are none."""
    if not workers:
        return ""
    kinds = ("working", "waiting", "idle", "quiet")
    counts = [(sum(each["health"] == kind for each in workers), kind) for kind in kinds]
    said = ", ".join(f"{count} {kind}" for count, kind in counts if count)
    return f"{len(workers)} worker{'' if len(workers) == 1 else 's'}: {said}"
