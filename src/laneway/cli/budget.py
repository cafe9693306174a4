"""`laneway budget`: what may be spent on models, and what was."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from laneway.cli.client import path_of
from laneway.cli.reach import Asking, JsonOption, Reading, operating, read
from laneway.cli.tables import print_json, print_rows, say, until
from laneway.errors import NotFoundError, UsageError
from laneway.spending import BudgetScope, BudgetWindow, OnExhausted, Unpriced
from laneway.system import SystemClock

if TYPE_CHECKING:
    from laneway.cli.client import Server

__all__ = ("budget_app",)

NO_LIMIT: Final = "none"
SESSIONS_SHOWN: Final = 3

budget_app = typer.Typer(help="What may be spent on models, and what was.", no_args_is_help=True)

NameArgument = Annotated[str, typer.Argument(help="The budget.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; it is kept in the audit log.")]
SharedOption = Annotated[
    bool | None,
    typer.Option(
        "--shared/--own",
        help="The one of all tenants, or that of the tenant; else the tenant's own if it has one, else that of all.",
        show_default=False,
    ),
]


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
    name = _title(budget)
    limit = _amount(budget["tokens"], budget["money"])
    if not budget["counts"]:
        return [(name, f"each {budget['scope']}", "nothing", limit, budget["window"], end)]
    return [
        (
            name,
            each["whose"],
            _spent(budget, each),
            limit,
            budget["window"] if each["until_ms"] is None else f"new {until(each['until_ms'], now_ms)}",
            end + _parked(each),
        )
        for each in budget["counts"]
    ]


def _parked(count: dict[str, Any]) -> str:
    """How many runs wait for the next window, and in which sessions."""
    number = count.get("parked", 0)  # a server of an earlier version does not say it
    if not number:
        return ""
    sessions = list(dict.fromkeys(each["session_key"] for each in count["parked_runs"]))
    more = ", …" if len(sessions) > SESSIONS_SHOWN else ""
    named = ", ".join(sessions[:SESSIONS_SHOWN])
    return f", {number} run{' waits' if number == 1 else 's wait'} ({named}{more})"


def _title(budget: dict[str, Any]) -> str:
    return str(budget["name"]) + (" (all tenants)" if budget["shared"] else "")


def _spent(budget: dict[str, Any], count: dict[str, Any]) -> str:
    """What was spent, how much of the limit that is, and what of it was lost in crashes."""
    kinds = ("tokens", "money")
    spent, lost = (
        _amount(*(None if budget[kind] is None else count[kind][what] for kind in kinds)) for what in ("spent", "lost")
    )
    has_lost = any(budget[kind] is not None and count[kind]["lost"] for kind in kinds)
    return f"{spent} ({count['share']:.0%}{f', {lost} of it lost' if has_lost else ''})"


def _amount(tokens: float | None, money: float | None) -> str:
    parts = [] if tokens is None else [f"{tokens:,.0f} tokens"]
    return ", ".join([*parts, *([] if money is None else [f"${money:,.4f}".rstrip("0").rstrip(".")])])


@budget_app.command("set", cls=Asking)
def set_(
    ctx: typer.Context,
    name: NameArgument,
    scope: Annotated[
        BudgetScope | None, typer.Option("--scope", help="What has a count of its own; a new budget needs it.")
    ] = None,
    window: Annotated[BudgetWindow | None, typer.Option("--window", help="When a count begins anew.")] = None,
    tokens: Annotated[
        str | None,
        typer.Option("--tokens", help="How many tokens may be spent; none: as many as they like.", metavar="NUMBER"),
    ] = None,
    money: Annotated[
        str | None,
        typer.Option("--money", help="How many US dollars may be spent; none: as many as they like.", metavar="NUMBER"),
    ] = None,
    on_exhausted: Annotated[
        OnExhausted | None, typer.Option("--on-exhausted", help="What becomes of a call that does not fit.")
    ] = None,
    cheaper: Annotated[str | None, typer.Option("--cheaper", help="The model that answers then.")] = None,
    warn_at: Annotated[float | None, typer.Option("--warn-at", help="At which share it is told.")] = None,
    timezone: Annotated[str | None, typer.Option("--timezone", help="Where a day or a month begins.")] = None,
    only: Annotated[str | None, typer.Option("--only", help="The one principal or tenant that it is for.")] = None,
    unpriced: Annotated[
        Unpriced | None, typer.Option("--unpriced", help="Whether a model without a price may be called.")
    ] = None,
    shared: SharedOption = None,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Make a budget, or change what is said of one; what was spent stays spent, unless another scope counts."""
    given: dict[str, Any] = {
        "scope": scope,
        "window": window,
        "on_exhausted": on_exhausted,
        "cheaper": cheaper,
        "warn_at": warn_at,
        "timezone": timezone,
        "only": only,
        "unpriced": unpriced,
    }
    said = {option: value for option, value in given.items() if value is not None}
    said |= _limits(tokens, money)
    if warn_at is not None and not 0 < warn_at <= 1:  # nor is it a number that there is not
        raise UsageError(f"--warn-at is a share above 0 and up to 1, not {warn_at}", hint="for example --warn-at 0.8")
    if not said:
        raise UsageError("nothing is said of the budget", hint="for example --money 8")
    with operating(ctx) as server:
        found = _made(server, name, said, {"shared": shared, "reason": reason})
    if as_json:
        print_json(found)
    else:
        say(f"{_title(found)} allows each {found['scope']} {_amount(found['tokens'], found['money'])}")


def _limits(tokens: str | None, money: str | None) -> dict[str, Any]:
    """The limits that are said; one that is None is taken away."""
    said: dict[str, Any] = {}
    if tokens is not None:
        said["tokens"] = _limit(tokens, "--tokens", int)
    if money is not None:
        said["money"] = _limit(money, "--money", float)
    if len(said) > 1 and not any(value is not None for value in said.values()):
        raise UsageError("a budget without a limit limits nothing", hint="keep one of them, or `laneway budget clear`")
    return said


def _limit(text: str, option: str, number: Callable[[str], float]) -> float | None:
    if text.strip().lower() == NO_LIMIT:
        return None
    try:
        value = number(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        kind, example = ("a whole number", 500_000) if number is int else ("a number", 8)
        raise UsageError(f"{option} is {kind} or {NO_LIMIT}, not {text!r}", hint=f"for example {option} {example}")
    return value


def _made(server: Server, name: str, said: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """A budget that was changed, or made because there was none."""
    path = path_of("budgets", name)
    try:
        changed: dict[str, Any] = server.patch(path, {**said, **more})
    except NotFoundError:
        if "scope" not in said or (said.get("tokens") is None and said.get("money") is None):
            raise UsageError(
                f"there is no budget {name!r}, and a new one needs a scope and a limit",
                hint="say --scope, and --tokens or --money; `laneway budget ls` lists those that there are",
            ) from None
    else:
        return changed
    if "cheaper" in said:
        said.setdefault("on_exhausted", "cheaper")
    made: dict[str, Any] = server.ask("PUT", path, body={**said, **more})
    return made


@budget_app.command("clear", cls=Asking)
def clear(
    ctx: typer.Context,
    name: NameArgument,
    shared: Annotated[
        bool | None,
        typer.Option("--shared/--own", help="The one of all tenants, or that of the tenant.", show_default="--own"),
    ] = None,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Take a budget away, with what was counted for it. One of all tenants wants --shared."""
    is_shared = bool(shared)
    with operating(ctx) as server:
        try:
            server.delete(path_of("budgets", name), shared=_word(is_shared), reason=reason or None)
        except NotFoundError:
            if shared is None and _is_common(server, name):
                raise UsageError(
                    f"budget {name!r} is one of all tenants: without it nobody is held by it any more",
                    hint="say --shared if you mean that; one of the configuration stays away until it is set again",
                ) from None
            raise
    if as_json:
        print_json({"name": name, "shared": is_shared, "removed": True})
    else:
        say(f"{_title({'name': name, 'shared': is_shared})} was removed")


def _is_common(server: Server, name: str) -> bool:
    return any(each["shared"] and each["name"] == name for each in server.get("/budgets")["items"])


@budget_app.command("reset", cls=Asking)
def reset(
    ctx: typer.Context,
    name: NameArgument,
    shared: SharedOption = None,
    reason: ReasonOption = "",
    as_json: JsonOption = False,
) -> None:
    """Let what was spent begin anew."""
    with operating(ctx) as server:
        path, which = path_of("budgets", name, "reset"), {"shared": _word(shared)}
        found = server.ask("POST", path, params=which, body={"reason": reason})
    if as_json:
        print_json(found)
    else:
        say(f"{_title(found)} begins anew")


def _word(shared: bool | None) -> str | None:
    return None if shared is None else str(shared).lower()
