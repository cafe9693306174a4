"""`laneway task`: calls that wait for somebody else to make them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from laneway.cli.client import path_of
from laneway.cli.reach import JsonOption, Reading, read
from laneway.cli.tables import age, ago, console, dumps, print_json, print_rows, say, table
from laneway.system import SystemClock

__all__ = ("task_app",)

task_app = typer.Typer(help="External tasks: calls that somebody else makes.", no_args_is_help=True)


@task_app.command("ls", cls=Reading)
def ls(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many.")] = 200,
    as_json: JsonOption = False,
) -> None:
    """List the external tasks that have not ended. To look at one hands it out to nobody."""
    found = read(ctx, lambda source: source.page("/tasks", limit=limit))
    if as_json:
        print_json(found)
        return
    now_ms = SystemClock().wall_ms()
    rows = [
        (each["task_id"], each["lane"], each["tool"], each["state"], each["worker"], ago(each["created_ms"], now_ms),
         each["session_key"])
        for each in found["items"]
    ]  # fmt: skip
    columns = ("task", "lane", "tool", "state", "worker", "made", "*session")
    print_rows(columns, rows, empty="There are no external tasks.")


@task_app.command("show", cls=Reading)
def show(
    ctx: typer.Context,
    task: Annotated[str, typer.Argument(help="The task.")],
    as_json: JsonOption = False,
) -> None:
    """Show one external task with its arguments."""
    found: dict[str, Any] = read(ctx, lambda source: source.get(path_of("tasks", task)))
    if as_json:
        print_json(found)
        return
    say(f"Task {found['task_id']}: {found['tool']} in lane {found['lane']}, {found['state']}")
    now_ms = SystemClock().wall_ms()
    rows = [
        ("session", found["session_key"]),
        ("run", found["run_id"]),
        ("worker", found["worker"]),
        ("attempt", found["attempt"]),
        ("made", ago(found["created_ms"], now_ms)),
        ("time left", age(found["remaining_ms"]) if found["remaining_ms"] else ""),
        ("effect", found["effect"]),
    ]
    console().print(table(("", "+"), [row for row in rows if row[1]]))
    say(dumps(found["arguments"]))
