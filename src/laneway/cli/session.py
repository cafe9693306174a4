"""`laneway session`: the sessions of a workspace, what was said in them, how to stop one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn

from laneway.cli.client import path_of
from laneway.cli.completion import complete_session
from laneway.cli.reach import Asking, JsonOption, Reading, asking, read
from laneway.cli.session_hosting import add_hosting
from laneway.cli.session_keeping import add_to
from laneway.cli.tables import (
    ago,
    clean,
    console,
    errors,
    line,
    print_json,
    print_rows,
    say,
    sentence,
    table,
    to_json_line,
)
from laneway.cli.target_files import target_file
from laneway.identity import wanted_labels
from laneway.system import SystemClock

if TYPE_CHECKING:
    from laneway.cli.reach import Source

__all__ = ("active_sessions", "session_app")

SESSIONS_MAX = 10_000

session_app = typer.Typer(help="Sessions: what goes on in them, what was said, how to end one.", no_args_is_help=True)
add_to(session_app)
add_hosting(session_app)

SessionArgument = Annotated[str, typer.Argument(help="The session.", autocompletion=complete_session)]
LimitOption = Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many.")]


@session_app.command("ls", cls=Reading)
def ls(
    ctx: typer.Context,
    limit: LimitOption = 50,
    active: Annotated[bool, typer.Option("--active", help="Only those where something runs or waits.")] = False,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", help="Only those with this label; several: with all.", metavar="NAME=VALUE"),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the sessions that have messages; with --label principal=user:42 those of somebody."""
    wanted_labels(label or ())
    found = read(ctx, lambda source: _list(source, limit, active=active, label=label or None))
    if as_json:
        print_json(found)
        return
    rows = [(each["session_key"], _state(each), each["waiting"] or "", each["run_id"]) for each in found["items"]]
    more = f"There are more: --limit {limit * 4}." if found.get("next") else ""
    empty = f"No session has {' and '.join(label)}." if label else "There are no sessions yet."
    print_rows(("*session", "state", ">waiting", "run"), rows, empty=empty, note=more)


def _state(session: dict[str, Any]) -> str:
    return "rests" if session.get("resting") else str(session["state"])


def _list(source: Source, limit: int, *, active: bool, label: list[str] | None) -> dict[str, Any]:
    if not active:
        return source.page("/sessions", limit=limit, label=label)
    found = active_sessions(source, label)
    return {"items": found[:limit], "next": None}


def active_sessions(source: Source, label: list[str] | None = None) -> list[dict[str, Any]]:
    """The sessions where something runs or waits, perhaps only those with some labels."""
    found = source.page("/sessions", limit=SESSIONS_MAX, active=True, label=label)["items"]
    return [each for each in found if each["state"] != "idle" or each["waiting"]]


@session_app.command("show", cls=Reading)
def show(
    ctx: typer.Context,
    session: SessionArgument,
    limit: LimitOption = 20,
    as_json: JsonOption = False,
) -> None:
    """Show one session: its state, its settings, what waits, and the last lines of its conversation."""

    def work(source: Source) -> dict[str, Any]:
        found: dict[str, Any] = source.get(path_of("sessions", session))
        pending = source.get(path_of("sessions", session, "pending"))
        history = source.get(path_of("sessions", session, "history"), limit=limit)
        found.update(pending=pending["items"], history=history["items"])
        return found

    found = read(ctx, work)
    if as_json:
        print_json(found)
        return
    run = f", run {found['run_id']}" if found.get("run_id") else ""
    say(f"Session {line(session)} in workspace {found['workspace']}: {_state(found)}{run}")
    if reason := found.get("resting_reason") or found.get("waits_for"):  # an older server does not say it
        say(f"It waits: {sentence(reason)}.")
    if fork := found.get("forked_from"):
        say(f"It is a fork, and goes on from {fork['run_id']} at step {fork['step']:,}.")
    if found.get("identity"):
        say(f"For: {', '.join(f'{name} {line(label)}' for name, label in found['identity'].items())}")
    if found["settings"]:
        values = (f"{name} {each['value']} ({each['origin']})" for name, each in found["settings"].items())
        say(f"Queue: {', '.join(values)}", style="dim")
    if found["pending"]:
        print_waiting(found["pending"])
    now_ms = SystemClock().wall_ms()
    for entry in found["history"]:
        who = entry["sender"] or entry["role"]
        say(f"\n{line(who)}, {ago(entry['at_ms'], now_ms)}", style="bold")
        say(entry["text"])


def print_waiting(pending: list[dict[str, Any]]) -> None:
    """Print what waits in a session."""
    rows = [(each["position"], each["message_id"], each["disposition"], each["text"]) for each in pending]
    console().print(table((">place", "message", "state", "*text"), rows))


@session_app.command("transcript", cls=Reading)
def transcript(
    ctx: typer.Context,
    session: SessionArgument,
    target: Annotated[Path | None, typer.Argument(help="A new file; else standard output.", dir_okay=False)] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file that is there.")] = False,
) -> None:
    """Write the whole transcript of a session as JSON lines, all conversations included."""
    path = path_of("sessions", session, "transcript")
    count = read(ctx, lambda source: _write(source, path, target, overwrite=overwrite))
    if target is not None:
        say(f"{count:,} lines of {line(session)} were written to {target}")


def _write(source: Source, path: str, target: Path | None, *, overwrite: bool) -> int:
    """The lines of a transcript; a file appears whole or not at all."""
    count = 0
    if target is None:
        for text in source.lines(path):
            sys.stdout.write(f"{to_json_line(text)}\n")
            count += 1
        return count
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:,} lines"))
    with (
        target_file(target, overwrite=overwrite) as file,
        Progress(*columns, console=errors(), disable=not sys.stderr.isatty(), transient=True) as bar,
    ):
        task = bar.add_task(clean("Reading"), total=None)
        for text in source.lines(path):
            file.write(f"{text}\n".encode(errors="backslashreplace"))
            count += 1
            bar.update(task, completed=count)
    return count


@session_app.command("stop", cls=Asking)
def stop(
    ctx: typer.Context,
    session: SessionArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why.")] = "",
    as_json: JsonOption = False,
) -> None:
    """End everything in a session: what waits, the run, its sub-agents."""
    with asking(ctx) as server:
        found = server.post(path_of("sessions", session, "stop"), {"reason": reason} if reason else None)
    if as_json:
        print_json(found)
        return
    waiting = found["waiting"] + found["debounced"]
    parts = [
        _counted(waiting, "waiting message"),
        _counted(found["turns"], "run"),
        _counted(found["children"], "sub-agent"),
        _counted(found.get("calls", 0), "background call"),
    ]
    ended = ", ".join(part for part in parts if part)
    say(f"Stopped: {ended}." if ended else "Nothing ran or waited there.")


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}" if count else ""
