"""`laneway task`: calls that wait for somebody else to make them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from laneway.cli.client import path_of
from laneway.cli.completion import complete_task
from laneway.cli.reach import Asking, JsonOption, Reading, operating, read, target_of
from laneway.cli.tables import age, ago, console, dumps, print_json, print_rows, say, table
from laneway.cli.watching import WatchOption, watched
from laneway.errors import UnknownTaskError, UsageError
from laneway.external import TaskState
from laneway.system import SystemClock

if TYPE_CHECKING:
    from laneway.cli.reach import Source

__all__ = ("task_app",)

task_app = typer.Typer(help="External tasks: calls that somebody else makes.", no_args_is_help=True)

TaskArgument = Annotated[
    str, typer.Argument(help="The task: its id, or as much of it as no other has.", autocompletion=complete_task)
]
FILE_MAX: Final = 10_000_000
STDIN: Final = "-"
ALL: Final = "*"
ID_LENGTH: Final = 45  # of an id as Laneway makes them; a whole one is not looked for among those that begin with it
LOOKED_THROUGH: Final = 10_000  # of the tasks that have ended, for one whose id is cut
NAMED: Final = 5


@task_app.command("ls", cls=Reading)
def ls(
    ctx: typer.Context,
    *,
    state: Annotated[
        TaskState | None, typer.Option("--state", help="Of this state. Without it: those that have not ended.")
    ] = None,
    session: Annotated[str | None, typer.Option("--session", help="Of one session and its sub-agents.")] = None,
    run: Annotated[str | None, typer.Option("--run", help="Of one run.")] = None,
    lane: Annotated[str | None, typer.Option("--lane", help="Of one lane.")] = None,
    tool: Annotated[str | None, typer.Option("--tool", help="For one tool.")] = None,
    worker: Annotated[str | None, typer.Option("--worker", help="Those that one worker has, or had last.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="At most so many.")] = 200,
    as_json: JsonOption = False,
    watch: WatchOption = False,
) -> None:
    """List the external tasks that have not ended, or those of one state: of one workspace, or else of all of them.

    To look at one hands it out to nobody.
    """
    asked = {"session": session, "run": run, "lane": lane, "tool": tool, "worker": worker}
    given = {name: value for name, value in asked.items() if value is not None}
    if state is not None:
        given["state"] = state.value
    if not target_of(ctx).workspace:
        given["workspace"] = ALL
    watched(
        ctx,
        lambda: read(ctx, lambda source: source.page("/tasks", limit=limit, **given)),
        lambda found: _show_all(found, as_json=as_json),
        watch=watch,
    )


def _show_all(found: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(found)
        return
    now_ms = SystemClock().wall_ms()
    places = {each["workspace"] for each in found["items"]}
    where = ("*workspace",) if places - {"default"} else ()
    rows = [
        (each["task_id"], each["lane"], each["tool"], each["state"], each["worker"], ago(each["created_ms"], now_ms),
         *(each["workspace"] for _ in where), each["session_key"], each["why"] or _progress(each) or each["reason"])
        for each in found["items"]
    ]  # fmt: skip
    columns = ("task", "lane", "tool", "state", "worker", "made", *where, "*session", "*because")
    note = "There are more: -n 10000 shows up to ten thousand." if found["next"] else ""
    print_rows(columns, rows, empty="There are no external tasks.", note=note)


def _progress(task: dict[str, Any]) -> str:
    said = task["progress"]
    if said is None or task["ended_ms"] is not None:
        return ""
    percent = "" if said["percent"] is None else f"{said['percent']:g} %"
    return " ".join(each for each in (percent, said["text"]) if each)


@task_app.command("show", cls=Reading)
def show(ctx: typer.Context, task: TaskArgument, as_json: JsonOption = False) -> None:
    """Show one external task: its arguments while it waits or runs, what came of it when it has ended."""
    found: dict[str, Any] = read(ctx, lambda source: _found(source, task))
    if as_json:
        print_json(found)
        return
    say(f"Task {found['task_id']}: {found['tool']} in lane {found['lane']}, {found['state']}")
    now_ms = SystemClock().wall_ms()
    rows = [
        ("workspace", found["workspace"]),
        ("session", found["session_key"]),
        ("run", found["run_id"]),
        ("worker", found["worker"]),
        ("why", found["why"]),
        ("progress", _progress(found)),
        ("needs", ", ".join(found["labels"])),
        ("attempt", found["attempt"]),
        ("made", ago(found["created_ms"], now_ms)),
        ("ended", ago(found["ended_ms"], now_ms)),
        ("because", found["reason"]),
        ("time left", age(found["remaining_ms"]) if found["remaining_ms"] else ""),
        ("lease ends", f"after {age(found['lease_left_ms'])} of silence" if found["lease_left_ms"] else ""),
        ("effect", found["effect"]),
        ("error", found["error"]),
    ]
    console().print(table(("", "+"), [row for row in rows if row[1]]))
    if found["ended_ms"] is None:
        say(dumps(found["arguments"]))
    elif found["result"] is not None:
        result = found["result"]
        say(result if isinstance(result, str) else dumps(result))
    if found["result_cut"]:
        say("There is more of it in the store.", style="dim")


def _found(source: Source, said: str) -> dict[str, Any]:
    """A task by its id, or by what its id begins with."""
    try:
        found: dict[str, Any] = source.get(path_of("tasks", said))
    except UnknownTaskError:
        task_id = _whole(source, said)
        if not task_id:
            raise
        found = source.get(path_of("tasks", task_id))
    return found


def _whole(source: Source, said: str) -> str:
    """The one id that begins so; empty, if none does. Tasks that have not ended come first, then the others."""
    if not said or len(said) >= ID_LENGTH:
        return ""
    for states in ((None,), tuple(state.value for state in TaskState if state.is_final)):
        pages = [source.page("/tasks", limit=LOOKED_THROUGH, workspace=ALL, state=state) for state in states]
        ids = [each["task_id"] for page in pages for each in page["items"] if each["task_id"].startswith(said)]
        if len(ids) > 1:
            some = ", ".join(ids[:NAMED])
            raise UsageError(
                f"{len(ids)} tasks begin with {said!r}: {some}{', …' * (len(ids) > NAMED)}", hint="write more of the id"
            )
        if ids:
            return str(ids[0])
    return ""


@task_app.command("complete", cls=Asking)
def complete(
    ctx: typer.Context,
    task: TaskArgument,
    result: Annotated[str | None, typer.Option("--result", help="What came of it: text.", metavar="TEXT")] = None,
    result_file: Annotated[
        str | None,
        typer.Option(
            "--result-file",
            help="A file with it; '-' is standard input. A file whose name ends in .json is JSON.",
            metavar="FILE",
        ),
    ] = None,
    error: Annotated[
        str | None, typer.Option("--error", help="It did not work, and this is why.", metavar="TEXT")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why you say so; it is kept in the audit log.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Say what became of an external task, in the place of a worker; one that has it loses it."""
    said = sum(each is not None for each in (result, result_file, error))
    if said != 1:
        which = "only one of --result, --result-file and --error can be" if said else "nothing says"
        raise UsageError(f"{which} what became of it", hint="--result TEXT, --result-file FILE, or --error TEXT")
    body: dict[str, Any] = {"reason": reason} if reason else {}
    if error is not None:
        step, body["error"] = "fail", error
    else:
        step, body["result"] = "complete", result if result_file is None else _read(result_file)
    with operating(ctx) as server:
        before = _found(server, task)
        found = server.post(path_of("tasks", before["task_id"], step), body)
        after = None if as_json else server.get(path_of("tasks", before["task_id"]))
    if after is None:
        print_json(found)
        return
    # What an operator says of a task that has ended is answered in the same way, and changes nothing; but of one of
    # which nobody knew how far it came.
    is_new = before["ended_ms"] is None or before["state"] != after["state"]
    was = "has ended" if is_new else "had ended before, and this changes nothing"
    say(f"Task {after['task_id']} {was}: it is {after['state']}.")


def _read(name: str) -> Any:
    """The result in a file."""
    try:
        content = sys.stdin.buffer.read(FILE_MAX + 1) if name == STDIN else _bytes(Path(name))
        if len(content) > FILE_MAX:
            raise UsageError(f"a result has at most {FILE_MAX:,} bytes, and {name} has more", hint="send a part")
        text = content.decode()
        return json.loads(text) if name.endswith(".json") else text
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{name} is no {'JSON' if name.endswith('.json') else 'text'}: {error}") from None


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(FILE_MAX + 1)
