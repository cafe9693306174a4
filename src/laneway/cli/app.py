"""The commands as one typer application, and what happens to errors: one line, the exit code of the error tree."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command, get_group

from laneway import __version__
from laneway.errors import LanewayError, NotAuthenticatedError, reaction_to

__all__ = ("app",)

HOW_TO_BE_LET_IN: Final = "--token - asks for a token without showing it; --token-file FILE reads one"


class Place(NamedTuple):
    """Where a command is: a module below `laneway.cli`, a name in it, and the class in `reach` that it is made with."""

    module: str
    name: str
    kind: str = ""


PLACES: Final[Mapping[str, Place]] = {
    "serve": Place("serve", "serve"),
    "worker": Place("worker", "worker_app"),
    "chat": Place("chat", "chat", "Asking"),
    "send": Place("send", "send", "Asking"),
    "status": Place("status", "status", "Reading"),
    "top": Place("top", "top", "Asking"),
    "queue": Place("queue", "queue_app"),
    "lane": Place("lane", "lane_app"),
    "run": Place("run", "run_app"),
    "session": Place("session", "session_app"),
    "task": Place("task", "task_app"),
    "dlq": Place("dlq", "dlq_app"),
    "ledger": Place("ledger", "ledger_app"),
    "approve": Place("approvals", "approve", "Reading"),
    "deny": Place("approvals", "deny", "Asking"),
    "cron": Place("cron", "cron_app"),
    "budget": Place("budget", "budget_app"),
    "token": Place("token", "token_app"),
    "doctor": Place("doctor", "doctor"),
    "tour": Place("tour", "tour_app"),
    "sim": Place("sim", "sim"),
    "store": Place("store", "store_app"),
    "config": Place("config", "config"),
}
"""Every command and noun, in the order of the help."""


class Shelf(Mapping[str, Any]):
    """The commands by their names. One is imported and made when it is asked for: to load all of them takes longer
    than most of them run."""

    def __init__(self, places: Mapping[str, Place]) -> None:
        self._places = places
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        place = self._places[name]
        if name not in self._made:
            self._made[name] = _made(name, place)
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def _made(name: str, place: Place) -> Any:
    found = getattr(import_module(f"laneway.cli.{place.module}"), place.name)
    if isinstance(found, typer.Typer):
        group = get_group(found)
        group.name = name
        return group
    kind = getattr(import_module("laneway.cli.reach"), place.kind) if place.kind else None
    single = typer.Typer(add_completion=False)
    single.command(name, cls=kind)(found)
    return get_command(single)


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
                from rich.console import Console  # only who has to say something needs these

                from laneway.cli.tables import clean

                console = Console(stderr=True, soft_wrap=True)
                console.print(clean(f"laneway: {error}"), style="red", markup=False, highlight=False)
                if isinstance(error, NotAuthenticatedError):
                    console.print(HOW_TO_BE_LET_IN, style="dim", markup=False, highlight=False)
            raise typer.Exit(reaction_to(error).exit_code) from None


class Laneway(Commands):
    """All commands."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**{**more, "commands": Shelf(PLACES)})

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names, without loading one."""
        return list(self.commands)


app = typer.Typer(
    name="laneway",
    cls=Laneway,
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
