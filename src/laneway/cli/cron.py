"""`laneway cron`: messages that are sent by the clock."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from laneway.cli.client import path_of
from laneway.cli.completion import complete_session
from laneway.cli.reach import Asking, JsonOption, Reading, operating, read
from laneway.cli.tables import age, print_json, print_rows, say, until
from laneway.cli.times import duration_ms, moment_ms
from laneway.errors import UsageError
from laneway.system import SystemClock

__all__ = ("cron_app",)

cron_app = typer.Typer(help="Messages that are sent by the clock.", no_args_is_help=True)


class Missed(StrEnum):
    """What becomes of times at which nobody was there."""

    SKIP = "skip"
    RUN = "run"


@cron_app.command("ls", cls=Reading)
def ls(
    ctx: typer.Context,
    session: Annotated[str | None, typer.Argument(help="Only this session.", autocompletion=complete_session)] = None,
    as_json: JsonOption = False,
) -> None:
    """List the schedules, with their next time."""
    found = read(ctx, lambda source: source.get("/schedules", session=session))
    if as_json:
        print_json(found)
        return
    now_ms = SystemClock().wall_ms()
    rows = [
        (each["schedule_id"], each["session_key"], _when(each), _next(each, now_ms), each["text"])
        for each in found["items"]
    ]
    print_rows(("schedule", "session", "when", "next", "*text"), rows, empty="There are no schedules.")


def _next(schedule: dict[str, Any], now_ms: int) -> str:
    return "paused" if schedule.get("paused") else until(schedule["next_ms"], now_ms)


def _when(schedule: dict[str, Any]) -> str:
    if schedule["cron"]:
        zone = f" {schedule['timezone']}" if schedule["timezone"] != "UTC" else ""
        return f"{schedule['cron']}{zone}"
    return f"every {age(schedule['every_ms'])}" if schedule["every_ms"] else "once"


@cron_app.command("add", cls=Asking)
def add(
    ctx: typer.Context,
    session: Annotated[str, typer.Argument(help="The session.", autocompletion=complete_session)],
    text: Annotated[list[str], typer.Argument(help="What is sent.")],
    cron: Annotated[str | None, typer.Option("--cron", help="As in crontab: '0 9 * * 1-5'.", metavar="EXPR")] = None,
    every: Annotated[str | None, typer.Option("--every", help="A duration: 90s, 15m, 2h.", metavar="TIME")] = None,
    at: Annotated[
        str | None, typer.Option("--at", help="Once: 2027-01-31T09:00, or from now on: 90s, 2h.", metavar="TIME")
    ] = None,
    timezone: Annotated[str, typer.Option("--timezone", help="Of --cron and --at.")] = "UTC",
    missed: Annotated[Missed, typer.Option("--missed", help="If nobody was there at its time.")] = Missed.SKIP,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit log.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Send a message by the clock: with --cron, with --every, or once with --at."""
    if sum(each is not None for each in (cron, every, at)) != 1:
        raise UsageError("say when it is to be sent", hint="one of --cron, --every and --at")
    body: dict[str, Any] = {
        "session_key": session,
        "text": " ".join(text),
        "missed": missed.value,
        "timezone": timezone,
        "reason": reason,
    }
    if cron is not None:
        body["cron"] = cron
    elif every is not None:
        body["every_ms"] = duration_ms(every)
    elif at is not None:
        body["at_ms"] = moment_ms(at, timezone, SystemClock().wall_ms())
    with operating(ctx) as server:
        found = server.post("/schedules", body)
    if as_json:
        print_json(found)
    else:
        say(f"{found['schedule_id']} sends it {until(found['next_ms'], SystemClock().wall_ms())}")


ScheduleArgument = Annotated[str, typer.Argument(help="The schedule.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit log.")]


@cron_app.command("pause", cls=Asking)
def pause(
    ctx: typer.Context, schedule: ScheduleArgument, reason: ReasonOption = "", as_json: JsonOption = False
) -> None:
    """Send nothing until the schedule goes on."""
    found = _change(ctx, schedule, paused=True, reason=reason)
    if as_json:
        print_json(found)
    else:
        say(f"{schedule} is paused")


@cron_app.command("resume", cls=Asking)
def resume(
    ctx: typer.Context, schedule: ScheduleArgument, reason: ReasonOption = "", as_json: JsonOption = False
) -> None:
    """Let a schedule go on, at its next time from now."""
    found = _change(ctx, schedule, paused=False, reason=reason)
    if as_json:
        print_json(found)
    else:
        say(f"{schedule} sends it {until(found['next_ms'], SystemClock().wall_ms())}")


@cron_app.command("run", cls=Asking)
def run(ctx: typer.Context, schedule: ScheduleArgument, reason: ReasonOption = "", as_json: JsonOption = False) -> None:
    """Send the message of a schedule now; its times stay as they are."""
    with operating(ctx) as server:
        found = server.post(f"{path_of('schedules', schedule)}/run", {"reason": reason})
    if as_json:
        print_json(found)
    else:
        say(f"{schedule} has sent {found['message_id']}")


def _change(ctx: typer.Context, schedule: str, **change: Any) -> Any:
    with operating(ctx) as server:
        return server.patch(path_of("schedules", schedule), change)


@cron_app.command("rm", cls=Asking)
def rm(
    ctx: typer.Context,
    schedule: Annotated[str, typer.Argument(help="The schedule.")],
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit log.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Forget a schedule; what it has sent already stays."""
    with operating(ctx) as server:
        server.delete(path_of("schedules", schedule), reason=reason or None)
    if as_json:
        print_json({"schedule_id": schedule, "removed": True})
    else:
        say(f"{schedule} was removed")
