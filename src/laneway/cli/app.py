"""The commands as one typer application, and what happens to errors: one line, the exit code of the error tree."""

from __future__ import annotations

import sys
import traceback
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from laneway import __version__
from laneway.cli.config import config
from laneway.cli.doctor import doctor
from laneway.cli.serve import serve
from laneway.cli.sim import sim
from laneway.cli.store import store_app
from laneway.cli.tour import tour
from laneway.errors import LanewayError, reaction_to

__all__ = ("app",)


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
                console.print(f"laneway: {error}", style="red", markup=False, highlight=False)
            raise typer.Exit(reaction_to(error).exit_code) from None


app = typer.Typer(
    name="laneway",
    cls=Commands,
    help="The traffic system for AI agents: what runs, when, and what happens to everything that has to wait.",
    no_args_is_help=True,
    add_completion=False,
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
app.command("doctor")(doctor)
app.command("tour")(tour)
app.command("sim")(sim)
app.add_typer(store_app)
app.add_typer(config, name="config")
