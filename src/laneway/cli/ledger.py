"""`laneway ledger`: calls with side effects; what became of one when nobody knows, because somebody was killed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from laneway.cli.client import Server, path_of
from laneway.cli.completion import complete_session
from laneway.cli.reach import Asking, JsonOption, asking, operating
from laneway.cli.tables import ago, dumps, line, print_json, print_rows, say, sentence
from laneway.system import SystemClock

__all__ = ("ledger_app", "unknown_calls")

UNKNOWN = "unknown"

ledger_app = typer.Typer(
    help="The ledger: calls with side effects, and those of which nobody knows how far they came.",
    no_args_is_help=True,
)


@ledger_app.command("ls", cls=Asking)
def ls(
    ctx: typer.Context,
    session: Annotated[
        str,
        typer.Option(
            "--session",
            help="Of one session only.",
            autocompletion=complete_session,
            metavar="NAME",
            show_default=False,
        ),
    ] = "",
    every: Annotated[bool, typer.Option("--all", help="Those with a known end, too.")] = False,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many.")] = 200,
    as_json: JsonOption = False,
) -> None:
    """List the calls of which nobody knows whether they were done: the server, or a worker, died while they ran."""
    with asking(ctx) as server:
        found = server.page("/ledger", limit=limit, session=session or None, state=None if every else UNKNOWN)
    if as_json:
        print_json(found)
        return
    now_ms = SystemClock().wall_ms()
    rows = [
        (
            each["entry_id"],
            each["tool"],
            each["state"],
            ago(each["started_ms"], now_ms),
            "" if each["arguments"] is None else dumps(each["arguments"], indent=None),
            each["reason"],
        )
        for each in found["items"]
    ]
    empty = "The ledger is empty." if every else "Of every call it is known what became of it."
    print_rows(("call", "tool", "state", "began", "*arguments", "*because"), rows, empty=empty)


@ledger_app.command("settle", cls=Asking)
def settle(
    ctx: typer.Context,
    call: Annotated[str, typer.Argument(help="The call, as `ls` shows it.")],
    reason: Annotated[
        str, typer.Option("--reason", help="What you have found out; it is kept in the audit log.", metavar="TEXT")
    ],
    as_json: JsonOption = False,
) -> None:
    """Say what became of a call that is unknown. Nothing is done again: you have looked, and this is the record."""
    with operating(ctx) as server:
        found: dict[str, Any] = server.post(f"{path_of('ledger', call)}/settle", {"reason": reason})
    if as_json:
        print_json(found)
    else:
        say(f"{line(found['entry_id'])} ({line(found['tool'])}) is settled: {sentence(found['reason'])}")


def unknown_calls(server: Server) -> list[dict[str, Any]]:
    """Calls that wait to be settled."""
    found: list[dict[str, Any]] = server.get("/ledger", state=UNKNOWN)["items"]
    return found
