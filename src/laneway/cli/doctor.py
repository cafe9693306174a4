"""`laneway doctor`: look at the set-up and say what to fix."""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape

from laneway.cli.checkup import Finding, Patient, State, examine
from laneway.cli.reach import AuthorityOption

__all__ = ("doctor",)

MARKS: Final = {State.OK: "[green]✓[/]", State.WARN: "[yellow]![/]", State.FAIL: "[red]✗[/]"}
NAME_WIDTH: Final = 14


def doctor(
    config: Annotated[str | None, typer.Option(help="The main file.", envvar="LANEWAY_CONFIG", metavar="FILE")] = None,
    workspaces: Annotated[
        list[str] | None,
        typer.Option("--workspace", help="A folder to serve.", envvar="LANEWAY_WORKSPACE", metavar="DIR"),
    ] = None,
    store: Annotated[str | None, typer.Option(help="Which store.", envvar="LANEWAY_STORE", metavar="ADDRESS")] = None,
    url: Annotated[
        str, typer.Option(help="A server that should answer.", envvar="LANEWAY_URL", metavar="URL", show_default=False)
    ] = "",
    ca: AuthorityOption = "",
    online: Annotated[bool, typer.Option("--online", help="Ask the models something, too: a few tokens.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check the set-up: Python, extras, store, configuration, models, tokens, port, server, workers.

    Nothing is changed. The exit code is 1 if something has to be fixed.
    """
    from laneway.gateway.launch import ServeOptions

    overrides = [] if store is None else [f"gateway.store={store}"]
    patient = Patient(
        options=ServeOptions(config=config, workspaces=workspaces or (), overrides=overrides),
        environ=os.environ,
        url=url,
        ca=ca,
        must_answer=url != os.environ.get("LANEWAY_URL"),  # which is set for good, before the first start, too
        is_online=online,
    )
    console = Console(soft_wrap=True, highlight=False)
    quiet = as_json or not sys.stderr.isatty()
    found: list[Finding] = []
    with nullcontext() if quiet else Console(stderr=True).status("Looking") as status:
        for finding in examine(patient, lambda name: None if status is None else status.update(f"Looking at {name}")):
            found.append(finding)
            if not as_json:
                _show(console, finding)
    failed = sum(each.state is State.FAIL for each in found)
    warned = sum(each.state is State.WARN for each in found)
    if as_json:
        print(
            json.dumps({"good": not failed, "checks": [asdict(each) for each in found]}, indent=2, ensure_ascii=False)
        )
    else:
        console.print()
        console.print(_verdict(failed, warned))
    if failed:
        raise typer.Exit(1)


def _show(console: Console, finding: Finding) -> None:
    console.print(f"{MARKS[finding.state]} {finding.check:<{NAME_WIDTH}} {escape(finding.says)}")
    if finding.hint and finding.state is not State.OK:
        console.print(f"  {'':<{NAME_WIDTH}} → {escape(finding.hint)}")


def _verdict(failed: int, warned: int) -> str:
    if failed:
        return f"[red]{failed} to fix[/]" + (f", {warned} to look at" if warned else "")
    return f"[green]Good[/]{f', {warned} to look at' if warned else ''}."
