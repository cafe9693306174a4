"""`laneway approve` and `laneway deny`: answer what runs ask, for exactly the arguments that are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from laneway.cli.client import Server, path_of
from laneway.cli.completion import complete_approval
from laneway.cli.reach import JsonOption, operating, read
from laneway.cli.tables import ago, dumps, line, print_json, say, until
from laneway.errors import UsageError
from laneway.system import SystemClock

if TYPE_CHECKING:
    from laneway.cli.reach import Source

__all__ = ("approve", "deny", "print_approvals")

ApprovalArgument = Annotated[str, typer.Argument(help="The request.", autocompletion=complete_approval)]


def approve(
    ctx: typer.Context,
    approval: Annotated[
        str | None,
        typer.Argument(help="The request; without one, all that wait are shown.", autocompletion=complete_approval),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit log.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Allow what a run asks for, or show what is asked. The answer covers exactly these arguments, once."""
    if approval is None:
        if reason:
            raise UsageError("a reason goes with a request", hint="laneway approve ID --reason …")
        found = read(ctx, _pending)
        if as_json:
            print_json(found)
        else:
            print_approvals(found["items"])
        return
    with operating(ctx) as server:
        _answer(server, approval, {"approve": True, "reason": reason}, as_json=as_json)


def deny(
    ctx: typer.Context,
    approval: ApprovalArgument,
    reason: Annotated[str, typer.Option("--reason", help="Why; the model is told.")] = "",
    as_json: JsonOption = False,
) -> None:
    """Refuse what a run asks for; it goes on and is told so."""
    with operating(ctx) as server:
        _answer(server, approval, {"approve": False, "reason": reason}, as_json=as_json)


def _pending(source: Source) -> dict[str, Any]:
    found: dict[str, Any] = source.get("/approvals")
    return found


def _answer(server: Server, approval_id: str, body: dict[str, Any], *, as_json: bool) -> None:
    path = path_of("approvals", approval_id)
    asked = server.get(path)
    if not as_json:
        say(f"{asked['action']} in session {line(asked['session_key'])}:", style="bold")
        say(dumps(asked["arguments"]))
    found = server.post(path, {**body, "args": asked["arguments"]})
    if as_json:
        print_json(found)
    else:
        say(f"{found['approval_id']} is {found['state']}")


def print_approvals(items: list[dict[str, Any]]) -> None:
    """Print requests with everything that an answer would cover."""
    now_ms = SystemClock().wall_ms()
    if not items:
        say("Nothing waits for an approval.", style="dim")
    for each in items:
        left = f", expires {until(each['expires_ms'], now_ms)}" if each["expires_ms"] else ""
        say(
            f"{each['approval_id']}  {each['action']} in session {line(each['session_key'])}, "
            f"asked {ago(each['asked_ms'], now_ms)}{left}",
            style="bold",
        )
        if each["why"]:
            say(f"  {line(each['why'])}", style="dim")
        say(dumps(each["arguments"]))
