"""`laneway config`: check a configuration, say where each value came from, print its JSON Schema."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from laneway.errors import ConfigError, UsageError, reaction_to

if TYPE_CHECKING:  # what reads files takes its time to load; a list of commands need not wait for it
    from laneway.config import Effective, Problem, Value
    from laneway.config.agent_view import Seen

__all__ = ("config",)

HIDDEN = "(hidden)"
UNUSED = " (an agent does not use it)"
WIDE = 500  # in a pipe a line stays a line
OF_SERVER: Final = "gateway."

config = typer.Typer(
    help="Check a configuration, say where each value came from, print its JSON Schema.", no_args_is_help=True
)


@config.command("check")
def check(
    files: Annotated[list[str], typer.Argument(help="The files to check.", metavar="FILE...")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find everything that is wrong with files, the `agent.yaml` of a workspace too.

    Variables that a file refers to have to be set.
    """
    from laneway.config import check as check_file

    found = {file: check_file(file, environ=os.environ) or _more_problems(file) for file in files}
    if as_json:
        print(json.dumps({"files": [_report(file, problems) for file, problems in found.items()]}, indent=2))
    else:
        for file, problems in found.items():
            for problem in problems:
                print(problem)
            if not problems:
                print(f"{file}: good")
    if any(found.values()):
        raise typer.Exit(reaction_to(ConfigError("")).exit_code)


@config.command("explain")
def explain(
    ctx: typer.Context,
    named: Annotated[
        str | None, typer.Argument(help="The main file, as with --config.", metavar="FILE", show_default=False)
    ] = None,
    file: Annotated[
        str | None, typer.Option("--config", help="The main file.", envvar="LANEWAY_CONFIG", metavar="FILE")
    ] = None,
    workspace: Annotated[
        str | None,
        typer.Option(help="A workspace: its folder or its name.", envvar="LANEWAY_WORKSPACE", metavar="DIR"),
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", help="Set a value: queue.mode=steer.", metavar="KEY=VALUE")
    ] = None,
    of_agent: Annotated[
        bool | None,
        typer.Option(
            "--agent/--inbox",
            help="Show the values as an agent has them, or as an inbox; by default as the settings look.",
            show_default=False,
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Show settings that nobody has set, too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, with all settings.")] = False,
) -> None:
    """Show every value in force and where it came from.

    With settings that only an agent has, these are the values of an agent.
    """
    from laneway.config import load
    from laneway.config.agent_view import is_of_agent, seen_by_agent, seen_by_inbox

    effective = load(_main_file(ctx, named, file), environ=os.environ, workspace=workspace, overrides=overrides or ())
    for_agent = is_of_agent(effective) if of_agent is None else of_agent
    found = seen_by_agent(effective) if for_agent else seen_by_inbox(effective)
    if as_json:
        print(json.dumps(_facts(effective, found, for_agent), indent=2, ensure_ascii=False))
        return
    table = Table("setting", "value", "from", box=None, pad_edge=False, header_style="bold")
    for value, is_used in ((each.value, each.is_used) for each in found):
        if every or _tells(value):
            style = "" if _is_set(value) else "dim"
            # Text, since a value may look like markup; fold, since a path that is cut short is of no use.
            cells = (value.name, _shown(value), f"{value.origin}{'' if is_used else UNUSED}")
            table.add_row(*(Text(cell, style=style, overflow="fold") for cell in cells))
    Console(width=None if sys.stdout.isatty() else WIDE).print(table)


def _main_file(ctx: typer.Context, named: str | None, given: str | None) -> str | None:
    """The file that is meant; what is said here counts more than the environment."""
    source = ctx.get_parameter_source("file")
    is_said = source is not None and source.name == "COMMANDLINE"
    if named is not None and is_said and named != given:
        raise UsageError(f"two main files: {named} and --config {given}", hint="name one of them")
    return given if named is None else named


@config.command("schema")
def schema() -> None:
    """Print a JSON Schema (draft 2020-12) for editors and other tools."""
    from laneway.config import json_schema

    print(json.dumps(json_schema(), indent=2, ensure_ascii=False))


def _more_problems(file: str) -> tuple[Problem, ...]:
    """What only a server would find in a file that is good in itself."""
    from laneway.config import InvalidConfigError, load

    try:
        effective = load(file, environ=os.environ)
    except InvalidConfigError:  # together with what the environment sets: that is not what is checked
        return ()
    return (*_channel_problems(effective), *_price_problems(effective))


def _channel_problems(effective: Effective) -> tuple[Problem, ...]:
    """What is wrong with its channels: only the server knows what they need."""
    if not effective.settings.gateway.channels:
        return ()
    try:
        from laneway.gateway.channels import channel_problems
    except ModuleNotFoundError:  # the extra `gateway` is not installed
        return ()
    return tuple(channel_problems(effective))


def _price_problems(effective: Effective) -> Iterator[Problem]:
    """Budgets in money for the model that the file names, if nobody knows what that costs."""
    if not effective.settings.budgets or effective.settings.default_model is None:
        return
    from laneway.agent.budgeting import unpriced, wants_price
    from laneway.config import Problem
    from laneway.config.agent import agent_settings
    from laneway.models.prices import is_known

    agent = agent_settings(effective)
    for rule in filter(wants_price, agent.budgets):
        names = (agent.default_model, rule.cheaper)
        for name in [each for each in names if each is not None and not is_known(each, agent.providers)]:
            origin = effective.origin(f"budgets.{rule.name}.money")
            error = unpriced(rule, name)
            yield Problem(
                source=origin.file or str(origin),
                line=origin.line,
                column=origin.column,
                message=error.message,
                setting=f"{error.setting}",
                hint=error.hint,
            )


def _is_set(value: Value) -> bool:
    from laneway.config import Layer

    return value.origin.layer is not Layer.DEFAULT


def _tells(value: Value) -> bool:
    """Whether a value is worth a line to everybody. Only who runs a server wonders about the defaults of one."""
    return _is_set(value) or (value.value not in (None, "", ()) and not value.name.startswith(OF_SERVER))


def _report(file: str, problems: tuple[Problem, ...]) -> dict[str, Any]:
    listed = [
        {
            "line": problem.line,
            "column": problem.column,
            "setting": problem.setting,
            "message": problem.message,
            "hint": problem.hint,
        }
        for problem in problems
    ]
    return {"file": file, "good": not problems, "problems": listed}


def _facts(effective: Effective, found: tuple[Seen, ...], for_agent: bool) -> dict[str, Any]:
    whose = "agent" if for_agent else "inbox"
    return {
        "files": list(effective.files),
        "of": whose,
        "settings": [_fact(each.value, each.is_used) for each in found],
    }


def _fact(value: Value, is_used: bool) -> dict[str, Any]:
    origin = value.origin
    return {
        "setting": value.name,
        "value": None if value.hidden else value.value,
        "hidden": value.hidden,
        "used": is_used,
        "origin": {
            "layer": str(origin.layer),
            "file": origin.file or None,
            "line": origin.line or None,
            "column": origin.column or None,
            "name": origin.name or None,
            "note": origin.note or None,
        },
    }


def _shown(value: Value) -> str:
    if value.hidden:
        return HIDDEN
    match value.value:
        case None:
            return "–"
        case bool() as flag:
            return str(flag).lower()
        case StrEnum() as word:
            return word.value
        case tuple() as items:
            return ", ".join(map(str, items))
        case dict() as block:
            return json.dumps(block, ensure_ascii=False)
        case other:
            return str(other)
