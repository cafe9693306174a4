"""`laneway dlq`: dead letters, to be mended, sent again or forgotten."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer
from rich.progress import track

from laneway.cli.client import Server, path_of
from laneway.cli.reach import Asking, JsonOption, Reading, operating, read
from laneway.cli.tables import ago, dumps, errors, line, print_json, print_rows, say
from laneway.errors import NotFoundError, UsageError
from laneway.system import SystemClock

__all__ = ("dlq_app",)

dlq_app = typer.Typer(help="Dead letters: what could not be done, again and again.", no_args_is_help=True)

LetterArgument = Annotated[str, typer.Argument(help="The dead letter.", metavar="ID")]
LettersArgument = Annotated[list[str] | None, typer.Argument(help="The dead letters.", metavar="[ID]...")]
EveryOption = Annotated[bool, typer.Option("--all", help="All of them.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit log.")]


@dlq_app.command("ls", cls=Reading)
def ls(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many.")] = 200,
    as_json: JsonOption = False,
) -> None:
    """List the dead letters."""
    found = read(ctx, lambda source: source.page("/dead-letters", limit=limit))
    if as_json:
        print_json(found)
        return
    now_ms = SystemClock().wall_ms()
    rows = [
        (each["letter_id"], each["kind"], each["session_key"] or each["lane"], ago(each["died_ms"], now_ms),
         _content(each), each["error"])
        for each in found["items"]
    ]  # fmt: skip
    more = f"There are more: --limit {limit * 4}." if found.get("next") else ""
    columns = ("letter", "kind", "of", "died", "*what", "*error")
    print_rows(columns, rows, empty="There are no dead letters.", note=more)


def _content(letter: dict[str, Any]) -> str:
    if letter["kind"] == "message":
        return str(letter["text"])
    return f"{letter['what']} {dumps(letter['arguments'], indent=None)}"


@dlq_app.command("show", cls=Reading)
def show(ctx: typer.Context, letter: LetterArgument, as_json: JsonOption = False) -> None:
    """Show one dead letter, whole."""
    found = read(ctx, lambda source: source.get(path_of("dead-letters", letter)))
    if as_json:
        print_json(found)
        return
    died = ago(found["died_ms"], SystemClock().wall_ms())
    attempts = f" after {found['attempts']} attempts" if found["attempts"] else ""
    say(f"{found['kind']} {found['letter_id']} of {line(found['session_key'] or found['lane'])} died {died}{attempts}")
    say(f"Error: {line(found['error'], 2_000)}", style="yellow")
    say(found["text"] if found["kind"] == "message" else f"{found['what']} {dumps(found['arguments'])}")


@dlq_app.command("edit", cls=Asking)
def edit(
    ctx: typer.Context,
    letter: LetterArgument,
    text: Annotated[str | None, typer.Option("--text", help="What a message is to say.")] = None,
    args: Annotated[
        str | None, typer.Option("--args", help="What a job is to be called with, as a JSON list.", metavar="JSON")
    ] = None,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Change a dead letter before it is sent again."""
    body: dict[str, Any] = {"reason": reason}
    if (text is None) == (args is None):
        raise UsageError("say what is to be different", hint="--text for a message, --args for a job")
    if text is not None:
        body["text"] = text
    if args is not None:
        try:
            body["args"] = json.loads(args)
        except ValueError as error:
            raise UsageError(f"--args is no JSON: {error}", hint="for example '[\"a\", 1]'") from None
    with operating(ctx) as server:
        found = server.patch(path_of("dead-letters", letter), body)
    if as_json:
        print_json(found)
    else:
        say(f"{found['letter_id']} was changed: {line(_content(found))}")


@dlq_app.command("retry", cls=Asking)
def retry(
    ctx: typer.Context,
    letters: LettersArgument = None,
    every: EveryOption = False,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Send dead letters again."""
    with operating(ctx) as server:
        done = []
        for each in _tracked(_chosen(server, letters, every), "Sending again", quiet=as_json):
            found = server.post(path_of("dead-letters", each, "retry"), {"reason": reason})
            done.append(found)
            if not as_json:
                say(f"{each} was sent again as {found['message_id'] or found['job_id'] or 'the same call'}")
    if as_json:
        print_json({"items": done, "next": None})
    elif not done:
        say("There are no dead letters.", style="dim")


@dlq_app.command("purge", cls=Asking)
def purge(
    ctx: typer.Context,
    letters: LettersArgument = None,
    every: EveryOption = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Forget dead letters; a message stays in the history of its session."""
    with operating(ctx) as server:
        chosen = _chosen(server, letters, every)
        if every and chosen and not yes:
            if not sys.stdin.isatty():
                raise UsageError(f"this would forget {len(chosen)} dead letters", hint="say --yes if that is meant")
            typer.confirm(f"Forget {len(chosen)} dead letters?", abort=True)
        gone = []
        for each in _tracked(chosen, "Forgetting", quiet=as_json):
            try:
                server.delete(path_of("dead-letters", each), reason=reason or None)
            except NotFoundError:
                if not every:
                    raise
                continue  # somebody else was faster
            gone.append(each)
    if as_json:
        print_json({"items": gone, "next": None})
    else:
        say(f"{len(gone)} dead letter{'' if len(gone) == 1 else 's'} forgotten.")


def _chosen(server: Server, letters: list[str] | None, every: bool) -> list[str]:
    if bool(letters) == every:
        raise UsageError("say which dead letters", hint="their ids, or --all")
    return [each["letter_id"] for each in server.items("/dead-letters")] if every else list(letters or ())


def _tracked(ids: list[str], what: str, *, quiet: bool) -> Any:
    is_short = len(ids) < 20 or quiet or not sys.stderr.isatty()
    return track(ids, what, console=errors(), disable=is_short, transient=True)
