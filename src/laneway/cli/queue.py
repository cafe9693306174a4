"""`laneway queue`: what waits, why, and what to do about it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from laneway.cli.client import path_of
from laneway.cli.completion import complete_message, complete_session
from laneway.cli.reach import Asking, JsonOption, Reading, asking, read
from laneway.cli.session import active_sessions
from laneway.cli.tables import age, ago, line, print_json, print_rows, say, sentence
from laneway.cli.watching import WatchOption, watched
from laneway.errors import UsageError
from laneway.mail import Drop, Mode
from laneway.system import SystemClock

if TYPE_CHECKING:
    from laneway.cli.reach import Source

__all__ = ("queue_app", "waiting_in")

queue_app = typer.Typer(help="What waits, why, and what to do about it.", no_args_is_help=True)

MessageArgument = Annotated[str, typer.Argument(help="The message.", autocompletion=complete_message)]


@queue_app.command("ls", cls=Reading)
def ls(
    ctx: typer.Context,
    session: Annotated[str | None, typer.Argument(help="Only this session.", autocompletion=complete_session)] = None,
    as_json: JsonOption = False,
    watch: WatchOption = False,
) -> None:
    """List what waits, in order, and why."""
    watched(
        ctx,
        lambda: read(ctx, lambda source: waiting_in(source, session)),
        lambda found: _show_waiting(found, as_json=as_json, is_one=session is not None),
        watch=watch,
    )


def _show_waiting(found: list[dict[str, Any]], *, as_json: bool, is_one: bool) -> None:
    if as_json:
        print_json({"items": found, "next": None})
        return
    # Who has named the session knows it: the room is for the reason.
    columns = ("*session", ">#", "message", "state", ">waited", "*text", "+why")[is_one:]
    rows = [
        (each["session_key"], each["position"], each["message_id"], each["disposition"], age(each["waited_ms"]),
         each["text"], each["reason"])[is_one:]
        for each in found
    ]  # fmt: skip
    print_rows(columns, rows, empty="Nothing waits.")


def waiting_in(source: Source, session: str | None = None) -> list[dict[str, Any]]:
    """What waits in a session, or in all of them."""
    if session is not None:
        return list(source.get(path_of("sessions", session, "pending"))["items"])
    found: list[dict[str, Any]] = []
    for each in active_sessions(source):
        if each["waiting"]:
            found += source.get(path_of("sessions", each["session_key"], "pending"))["items"]
    return found


@queue_app.command("show", cls=Reading)
def show(ctx: typer.Context, message: MessageArgument, as_json: JsonOption = False) -> None:
    """Show one message and everything that has happened to it."""
    found = read(ctx, lambda source: source.get(path_of("messages", message, "explain")))
    if as_json:
        print_json(found)
        return
    say(found["text"])
    facts = found["message"]
    now_ms = SystemClock().wall_ms()
    say(f"\nCame {ago(facts['arrived_ms'], now_ms)} as {facts['mode']}.", style="dim")
    if facts.get("position"):
        say(f"Waits at place {facts['position']}: {sentence(facts['reason'])}")
    if facts.get("answer"):
        say("\nAnswer:", style="bold")
        say(facts["answer"])


@queue_app.command("retry", cls=Asking)
def retry(ctx: typer.Context, message: MessageArgument, as_json: JsonOption = False) -> None:
    """Send a message again that has failed, was cancelled or was cut off. Dead letters: laneway dlq retry."""
    with asking(ctx) as server:
        receipt = server.post(path_of("messages", message, "retry"))
    if as_json:
        print_json(receipt)
    else:
        say(f"{line(message)} is sent again as {receipt['message_id']}: {receipt['disposition']}")


@queue_app.command("edit", cls=Asking)
def edit(
    ctx: typer.Context,
    message: MessageArgument,
    text: Annotated[list[str], typer.Argument(help="What it is to say.")],
    as_json: JsonOption = False,
) -> None:
    """Change the text of a message that waits."""
    with asking(ctx) as server:
        _tell(server.patch(path_of("messages", message), {"text": " ".join(text)}), "was changed", as_json=as_json)


@queue_app.command("move", cls=Asking)
def move(
    ctx: typer.Context,
    message: MessageArgument,
    position: Annotated[int, typer.Argument(help="Its new place, from 1.", min=1)],
    as_json: JsonOption = False,
) -> None:
    """Give a message that waits another place."""
    with asking(ctx) as server:
        found = server.post(path_of("messages", message, "move"), {"position": position})
        _tell(found, f"is at place {found.get('position')}", as_json=as_json)


@queue_app.command("hold", cls=Asking)
def hold(ctx: typer.Context, message: MessageArgument, as_json: JsonOption = False) -> None:
    """Set a message aside; others pass it."""
    with asking(ctx) as server:
        _tell(server.post(path_of("messages", message, "hold")), "is held", as_json=as_json)


@queue_app.command("release", cls=Asking)
def release(ctx: typer.Context, message: MessageArgument, as_json: JsonOption = False) -> None:
    """Let a held message wait in its place again."""
    with asking(ctx) as server:
        _tell(server.post(path_of("messages", message, "release")), "waits again", as_json=as_json)


@queue_app.command("drop", cls=Asking)
def drop(ctx: typer.Context, message: MessageArgument, as_json: JsonOption = False) -> None:
    """Take back a message that has not begun."""
    with asking(ctx) as server:
        _tell(server.delete(path_of("messages", message)), "was taken back", as_json=as_json)


@queue_app.command("steer", cls=Asking)
def steer(ctx: typer.Context, message: MessageArgument, as_json: JsonOption = False) -> None:
    """Send a message that waits into the run that goes on."""
    with asking(ctx) as server:
        found = server.post(path_of("messages", message, "steer"))
        _tell(found, "goes into the run at its next step", as_json=as_json)


@queue_app.command("mode", cls=Asking)
def mode(
    ctx: typer.Context,
    session: Annotated[str, typer.Argument(help="The session.", autocompletion=complete_session)],
    new_mode: Annotated[
        Mode | None, typer.Argument(help="What messages do from now on.", metavar="[MODE]", case_sensitive=False)
    ] = None,
    debounce_ms: Annotated[int | None, typer.Option("--debounce-ms", min=0, help="How long to gather.")] = None,
    cap: Annotated[int | None, typer.Option("--cap", min=1, help="How many may wait.")] = None,
    drop_policy: Annotated[
        Drop | None, typer.Option("--drop", help="What gives way when more come.", case_sensitive=False)
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Back to what is configured.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show or change how the queue of a session works."""
    wanted: dict[str, Any] = {"mode": new_mode, "debounce_ms": debounce_ms, "cap": cap, "drop": drop_policy}
    change = {name: value for name, value in wanted.items() if value is not None}
    if reset and change:
        raise UsageError("--reset takes everything back; it goes with no other change")
    path = path_of("sessions", session)
    with asking(ctx) as server:
        if reset or change:
            found = server.patch(f"{path}/settings", dict.fromkeys(wanted) if reset else change)
        else:
            found = server.get(path)
    if as_json:
        print_json(found)
        return
    rows = [(name, each["value"], each["origin"]) for name, each in found["settings"].items()]
    print_rows(("setting", "value", "from"), rows, empty="Nothing is set.")


def _tell(found: dict[str, Any], what: str, *, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        say(f"{found['message_id']} {what}")
