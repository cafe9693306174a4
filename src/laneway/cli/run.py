"""`laneway run`: what agents do and have done."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from laneway.cli.client import path_of
from laneway.cli.completion import complete_run, complete_session
from laneway.cli.reach import Asking, JsonOption, Reading, asking, read
from laneway.cli.replays import COMMANDS
from laneway.cli.session import active_sessions
from laneway.cli.tables import age, ago, console, errors, line, print_json, print_rows, say, sentence, table
from laneway.system import SystemClock

if TYPE_CHECKING:
    from laneway.cli.reach import Source

__all__ = ("run_app",)

run_app = typer.Typer(help="Runs: what agents do and have done.", no_args_is_help=True)

RunArgument = Annotated[str, typer.Argument(help="The run.", autocompletion=complete_run)]


@run_app.command("ls", cls=Reading)
def ls(
    ctx: typer.Context,
    session: Annotated[
        str | None, typer.Argument(help="All runs of this session.", autocompletion=complete_session)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="The newest so many.")] = 50,
    as_json: JsonOption = False,
) -> None:
    """List the runs that go on, or all runs of a session."""
    active: list[dict[str, Any]] = []

    def work(source: Source) -> list[dict[str, Any]]:
        active[:] = [] if session is not None else active_sessions(source)
        return _found(source, session, active, limit)

    found = read(ctx, work)
    if as_json:
        print_json({"items": found, "next": None})
        return
    now_ms = SystemClock().wall_ms()
    rows = [
        (each["run_id"], each["session_key"], each["state"], ago(each["began_ms"], now_ms), _took(each, now_ms),
         each["tokens"] or "", _end(each))
        for each in found
    ]  # fmt: skip
    columns = ("run", "*session", "state", "began", ">took", ">tokens", "*end")
    print_rows(columns, rows, empty="Nothing runs." if session is None else "This session has no runs.")
    at_rest = sum(bool(each.get("resting")) for each in active)
    if at_rest:
        many = f"{at_rest} session rests" if at_rest == 1 else f"{at_rest} sessions rest"
        say(f"{many} with work undone: `laneway session ls --active` lists them.", style="dim", to=errors())


def _found(source: Source, session: str | None, active: list[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    if session is None:
        running = [each["run_id"] for each in active if each["run_id"]]
        return [source.get(path_of("runs", each)) for each in running[:limit]]
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:  # lists are oldest first, and people want the newest
        page = source.get(path_of("sessions", session, "runs"), limit=1_000, after=cursor)
        found = [*found, *page["items"]][-limit:]
        cursor = page["next"]
        if not cursor:
            return found


def _end(run: dict[str, Any]) -> str:
    """What a list says about the end of a run: its answer, or why there is none."""
    return str(run["answer"] or "") if run["state"] == "succeeded" else str(run["reason"])


def _took(run: dict[str, Any], now_ms: int) -> str:
    return age((run["ended_ms"] or now_ms) - run["began_ms"]) if run["began_ms"] else ""


@run_app.command("show", cls=Reading)
def show(ctx: typer.Context, run: RunArgument, as_json: JsonOption = False) -> None:
    """Show one run: what it began over, what it took, its answer."""

    def work(source: Source) -> dict[str, Any]:
        found: dict[str, Any] = source.get(path_of("runs", run))
        return {**found, "forks": source.get(path_of("runs", run, "forks"))["items"]}

    from laneway.kernel.run_words import state_words  # a list of commands needs nothing that they work with

    found = read(ctx, work)
    if as_json:
        print_json(found)
        return
    now_ms = SystemClock().wall_ms()
    fork, forks = found.get("forked_from"), found["forks"]
    reason = f": {sentence(found['reason'])}" if found["reason"] else ""
    say(f"Run {found['run_id']} of session {line(found['session_key'])} {state_words(found['state'])}{reason}")
    rows: list[tuple[str, Any]] = [
        ("began", ago(found["began_ms"], now_ms)),
        ("took", _took(found, now_ms)),
        ("messages", ", ".join(found["messages"])),
        ("steered by", ", ".join(found["steered"])),
        ("mode", found["mode"]),
        ("rounds", found.get("rounds") or ""),
        ("tokens", found["tokens"] or ""),
        ("cost", f"${found['cost']:.4f}" if found.get("cost") is not None else ""),
        ("calls at work", ", ".join(found.get("tools") or ())),
        ("waits for", found.get("waits_for") or ""),
        ("goes on from", found.get("resumed_from") or ""),
        ("fork of", f"{fork['run_id']}, at step {fork['step']}" if fork else ""),
        ("forks", ", ".join(f"{line(each['session_key'])} (at step {each['step']})" for each in forks)),
    ]
    console().print(table(("", "+"), [row for row in rows if row[1]]))
    for title, text in (("Prompt", found.get("prompt")), ("Answer", found["answer"])):
        if text:
            say(f"\n{title}:", style="bold")
            say(text)


@run_app.command("explain", cls=Reading)
def explain(ctx: typer.Context, run: RunArgument, as_json: JsonOption = False) -> None:
    """Say why a run is where it is, what it has done, and how it came there."""
    found = read(ctx, lambda source: source.get(path_of("runs", run, "explain")))
    if as_json:
        print_json(found)
        return
    say(found["text"])
    if found.get("story"):
        say(f"\n{found['story']}\n")
    began_ms = found["run"]["began_ms"]
    rows = [
        (f"{each['at_ms'] - began_ms:+,} ms", each["type"], each["actor"], each["reason"]) for each in found["steps"]
    ]
    if rows:
        console().print(table((">after", "event", "by", "*why"), rows))


@run_app.command("cancel", cls=Asking)
def cancel(
    ctx: typer.Context,
    run: RunArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why.")] = "",
    as_json: JsonOption = False,
) -> None:
    """End a run that goes on; what waits in its session stays."""
    with asking(ctx) as server:
        found = server.post(path_of("runs", run, "cancel"), {"reason": reason} if reason else None)
    if as_json:
        print_json(found)
    else:
        say(f"{found['run_id']} is being cancelled")


@run_app.command("resume", cls=Asking)
def resume(ctx: typer.Context, run: RunArgument, as_json: JsonOption = False) -> None:
    """Go on with a run that was cut off, in a run of its own."""
    with asking(ctx) as server:
        found = server.post(path_of("runs", run, "resume"))
    if as_json:
        print_json(found)
    else:
        say(f"{run} goes on by message {found['message_id']} ({found['disposition']})")


for _name, _command, _kind in COMMANDS:
    run_app.command(_name, cls=_kind)(_command)
