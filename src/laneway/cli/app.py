"""The commands as one typer application, and what happens to errors: one line, the exit code of the error tree."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from typer.core import TyperGroup

from laneway import __version__
from laneway.cli.approvals import approve, deny
from laneway.cli.chat import chat
from laneway.cli.config import config
from laneway.cli.cron import cron_app
from laneway.cli.dlq import dlq_app
from laneway.cli.doctor import doctor
from laneway.cli.lane import lane_app
from laneway.cli.queue import queue_app
from laneway.cli.reach import Asking, Reading
from laneway.cli.run import run_app
from laneway.cli.send import send
from laneway.cli.serve import serve
from laneway.cli.session import session_app
from laneway.cli.sim import sim
from laneway.cli.status import status
from laneway.cli.store import store_app
from laneway.cli.tables import clean
from laneway.cli.task import task_app
from laneway.cli.token import token_app
from laneway.cli.top import top
from laneway.cli.tour import tour_app
from laneway.errors import LanewayError, NotAuthenticatedError, reaction_to

__all__ = ("app",)

HOW_TO_BE_LET_IN: Final = "--token - asks for a token without showing it; --token-file FILE reads one"


class Commands(TyperGroup):
    """Turns what a command raises into a line on standard error and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a traceback is shown only with `--debug`."""
        try:
            return super().invoke(ctx)
        except LanewayError as error:
            if ctx.params.get("debug"):
                traceback.print_exception(error)
            else:
                console = Console(stderr=True, soft_wrap=True)
                console.print(clean(f"laneway: {error}"), style="red", markup=False, highlight=False)
                if isinstance(error, NotAuthenticatedError):
                    console.print(HOW_TO_BE_LET_IN, style="dim", markup=False, highlight=False)
            raise typer.Exit(reaction_to(error).exit_code) from None


app = typer.Typer(
    name="laneway",
    cls=Commands,
    help="The traffic system for AI agents: what runs, when, and what happens to everything that has to wait.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(asked: bool) -> None:
    if not asked:
        return
    sys.stdout.write(f"laneway {__version__}\n")
    raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", help="Say the version and exit.", callback=_say_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """The options of every command."""


app.command("serve")(serve)
app.command("chat", cls=Asking)(chat)
app.command("send", cls=Asking)(send)
app.command("status", cls=Reading)(status)
app.command("top", cls=Asking)(top)
app.add_typer(queue_app, name="queue")
app.add_typer(lane_app, name="lane")
app.add_typer(run_app, name="run")
app.add_typer(session_app, name="session")
app.add_typer(task_app, name="task")
app.add_typer(dlq_app, name="dlq")
app.command("approve", cls=Reading)(approve)
app.command("deny", cls=Asking)(deny)
app.add_typer(cron_app, name="cron")
app.add_typer(token_app, name="token")
app.command("doctor")(doctor)
app.add_typer(tour_app, name="tour")
app.command("sim")(sim)
app.add_typer(store_app)
app.add_typer(config, name="config")
