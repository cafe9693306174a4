"""`laneway session passivate`: have a session leave the memory of the server."""

from __future__ import annotations

from typing import Annotated

import typer

from laneway.cli.client import path_of
from laneway.cli.completion import complete_session
from laneway.cli.reach import Asking, JsonOption, asking
from laneway.cli.tables import line, print_json, say

__all__ = ("add_passivate",)


def add_passivate(app: typer.Typer) -> None:
    """Give `laneway session` this verb."""
    app.command("passivate", cls=Asking)(passivate)


def passivate(
    ctx: typer.Context,
    session: Annotated[str, typer.Argument(help="The session.", autocompletion=complete_session)],
    reason: Annotated[str, typer.Option("--reason", help="Why.")] = "",
    deadline_ms: Annotated[
        int | None, typer.Option("--deadline-ms", min=0, help="How long a run may take to come to a boundary.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Have a session leave the server's memory. Its next message brings it back."""
    body = {"reason": reason, "deadline_ms": deadline_ms}
    with asking(ctx) as server:
        found = server.post(path_of("sessions", session, "passivate"), body)
    if as_json:
        print_json(found)
    elif not found["was_in_memory"]:
        say(f"Session {line(session)} was not in memory.")
    elif found["in_memory"]:
        say(f"Session {line(session)} has left memory, and is back: something has come for it meanwhile.")
    elif found["resting"]:
        say(f"Session {line(session)} has left memory. What it has not done goes on with the next message.")
    else:
        say(f"Session {line(session)} has left memory.")
