"""`laneway budget`: what may be spent on models, and what was."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from laneway.cli.client import path_of
from laneway.cli.reach import Asking, JsonOption, Reading, operating, read
from laneway.cli.tables import print_json, print_rows, say, until
from laneway.errors import UsageError
from laneway.spending import BudgetScope, BudgetWindow, OnExhausted, Unpriced
from laneway.system import SystemClock

__all__ = ("budget_app",)

budget_app = typer.Typer(help="What may be spent on models, and what was.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="The budget.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit log.")]
SharedOption = Annotated[bool, typer.Option("--shared", help="The one that holds for all tenants.")]


@budget_app.command("ls", cls=Reading)
def ls(ctx: typer.Context, as_json: JsonOption = False) -> None:
    """List the budgets, with what was spent of each. A store without a server tells what it has set aside for calls."""
    found = read(ctx, lambda source: source.get("/budgets"))
    if as_json:
        print_json(found)
        return
    now_ms = SystemClock().wall_ms()
    rows = [row for each in found["items"] for row in _rows(each, now_ms)]
    print_rows(("budget", "whose", "spent", "limit", "window", "when used up"), rows, empty="There are no budgets.")


def _rows(budget: dict[str, Any], now_ms: int) -> list[tuple[str, ...]]:
    end = budget["on_exhausted"] + (f": {budget['cheaper']}" if budget["cheaper"] else "")
    name = budget["name"] + (" (all tenants)" if budget["shared"] else "")
    limit = _amount(budget["tokens"], budget["money"])
    if not budget["counts"]:
        return [(name, f"each {budget['scope']}", "nothing", limit, budget["window"], end)]
    return [
        (
            name,
            f"{budget['scope']} {each['subject']}",
            f"{_spent(budget, each)} ({each['share']:.0%})",
            limit,
            budget["window"] if each["until_ms"] is None else f"new {until(each['until_ms'], now_ms)}",
            end,
        )
        for each in budget["counts"]
    ]


def _spent(budget: dict[str, Any], count: dict[str, Any]) -> str:
    tokens = None if budget["tokens"] is None else count["tokens"]["spent"]
    money = None if budget["money"] is None else count["money"]["spent"]
    return _amount(tokens, money)


def _amount(tokens: float | None, money: float | None) -> str:
    parts = [] if tokens is None else [f"{tokens:,.0f} tokens"]
    return ", ".join([*parts, *([] if money is None else [f"${money:,.4f}".rstrip("0").rstrip(".")])])


@budget_app.command("set", cls=Asking)
def set_(
    ctx: typer.Context,
    name: NameArgument,
    scope: Annotated[BudgetScope, typer.Option("--scope", help="What has a count of its own.")],
    window: Annotated[BudgetWindow, typer.Option("--window", help="When a count begins anew.")] = BudgetWindow.EVER,
    tokens: Annotated[int | None, typer.Option("--tokens", help="How many tokens may be spent.")] = None,
    money: Annotated[float | None, typer.Option("--money", help="How many US dollars may be spent.")] = None,
    on_exhausted: Annotated[
        OnExhausted, typer.Option("--on-exhausted", help="What becomes of a call that does not fit.")
    ] = OnExhausted.DENY,
    cheaper: Annotated[str | None, typer.Option("--cheaper", help="The model that answers then.")] = None,
    warn_at: Annotated[float, typer.Option("--warn-at", help="At which share it is told.")] = 0.8,
    timezone: Annotated[str, typer.Option("--timezone", help="Where a day or a month begins.")] = "UTC",
    only: Annotated[str | None, typer.Option("--only", help="The one principal or tenant that it is for.")] = None,
    unpriced: Annotated[
        Unpriced, typer.Option("--unpriced", help="Whether a model without a price may be called.")
    ] = Unpriced.DENY,
    shared: SharedOption = False,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make or change a budget; what was spent stays spent."""
    if tokens is None and money is None:
        raise UsageError("a budget limits something", hint="say --tokens, --money or both")
    body = {
        "scope": scope.value,
        "window": window.value,
        "tokens": tokens,
        "money": money,
        "on_exhausted": on_exhausted.value,
        "cheaper": cheaper,
        "warn_at": warn_at,
        "timezone": timezone,
        "only": only,
        "unpriced": unpriced.value,
        "shared": shared,
        "reason": reason,
    }
    with operating(ctx) as server:
        found = server.ask("PUT", path_of("budgets", name), body=body)
    if as_json:
        print_json(found)
    else:
        say(f"{name} allows each {scope.value} {_amount(tokens, money)}")


@budget_app.command("clear", cls=Asking)
def clear(
    ctx: typer.Context,
    name: NameArgument,
    shared: SharedOption = False,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Take a budget away, with what was counted for it."""
    with operating(ctx) as server:
        server.delete(path_of("budgets", name), shared="true" if shared else None, reason=reason or None)
    if as_json:
        print_json({"name": name, "removed": True})
    else:
        say(f"{name} was removed")


@budget_app.command("reset", cls=Asking)
def reset(
    ctx: typer.Context,
    name: NameArgument,
    shared: SharedOption = False,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Let what was spent begin anew."""
    suffix = "?shared=true" if shared else ""
    with operating(ctx) as server:
        found = server.post(f"{path_of('budgets', name)}/reset{suffix}", {"reason": reason})
    if as_json:
        print_json(found)
    else:
        say(f"{name} begins anew")
