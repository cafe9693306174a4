"""`laneway session label` and `passivate`: say whose a session is, have it leave the memory of the server."""

from __future__ import annotations

from typing import Annotated

import typer

from laneway.cli.client import path_of
from laneway.cli.completion import complete_session
from laneway.cli.reach import Asking, JsonOption, asking, operating
from laneway.cli.tables import line, print_json, say, sentence
from laneway.errors import UsageError

__all__ = ("add_hosting",)


def add_hosting(app: typer.Typer) -> None:
    """Give `laneway session` these verbs."""
    app.command("label", cls=Asking)(label)
    app.command("passivate", cls=Asking)(passivate)


SessionArgument = Annotated[str, typer.Argument(help="The session.", autocompletion=complete_session)]
LABELS = ("principal", "agent_template_id", "correlation_id")


def label(
    ctx: typer.Context,
    session: SessionArgument,
    principal: Annotated[
        str | None, typer.Option("--principal", help="For whom it works: budgets of principals count by it.")
    ] = None,
    agent_template_id: Annotated[
        str | None, typer.Option("--agent-template-id", help="What its agent was made from.")
    ] = None,
    correlation_id: Annotated[str | None, typer.Option("--correlation-id", help="What it is part of.")] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit log.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Say whose a session is, also before its first message. An empty text clears a label: --principal ''."""
    given = dict(zip(LABELS, (principal, agent_template_id, correlation_id), strict=True))
    said = {name: value or None for name, value in given.items() if value is not None}
    if not said:
        raise UsageError("no label is said", hint="for example --principal user:42")
    with operating(ctx) as server:
        found = server.ask("PUT", path_of("sessions", session, "labels"), body={**said, "reason": reason})
    if as_json:
        print_json(found)
        return
    labels = ", ".join(f"{name} {line(value)}" for name, value in found["identity"].items())
    say(f"Session {line(session)} has {labels or 'no labels'}.")


def passivate(
    ctx: typer.Context,
    session: SessionArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why.")] = "",
    deadline_ms: Annotated[
        int | None, typer.Option("--deadline-ms", min=0, help="How long a run may take to come to a boundary.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Have a session leave the server's memory. It says what brings it back; a message always does."""
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
        say(f"Session {line(session)} has left memory: {sentence(found['resting_reason'])}.")
    else:
        say(f"Session {line(session)} has left memory.")
