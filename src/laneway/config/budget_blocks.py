"""The block of a budget: what may be spent, by whom, in which time, and what happens when it is used up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from laneway.config.agent_kinds import ModelName
from laneway.config.declaring import Setting
from laneway.config.kinds import Choice, Number, Text, Whole
from laneway.spending import (
    MONEY_MAX,
    SUBJECT_MAX,
    TOKENS_MAX,
    Budget,
    BudgetScope,
    BudgetWindow,
    OnExhausted,
    Unpriced,
)

__all__ = ("BudgetBlock", "budget_of")

LEAST: Final = 0.000_000_001
SCOPE: Final = Choice(words=BudgetScope, parse=lambda text: BudgetScope(text.strip().casefold()))
WINDOW: Final = Choice(words=BudgetWindow, parse=lambda text: BudgetWindow(text.strip().casefold()))
END: Final = Choice(words=OnExhausted, parse=lambda text: OnExhausted(text.strip().casefold()))
UNPRICED: Final = Choice(words=Unpriced, parse=lambda text: Unpriced(text.strip().casefold()))


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetBlock:
    """What may be spent on calls of models."""

    scope: Annotated[
        BudgetScope | None,
        Setting(kind=SCOPE, says="What has a count of its own.", unset="needed in this block"),
    ] = None
    window: Annotated[
        BudgetWindow | None,
        Setting(kind=WINDOW, says="When a count begins anew: each day, each month, or never.", unset="`ever`"),
    ] = None
    tokens: Annotated[
        int | None,
        Setting(
            kind=Whole(least=1, most=TOKENS_MAX), says="How many tokens may be spent.", unset="any number, with `money`"
        ),
    ] = None
    money: Annotated[
        float | None,
        Setting(
            kind=Number(least=LEAST, most=MONEY_MAX),
            says="How many US dollars may be spent.",
            unset="any number, with `tokens`",
        ),
    ] = None
    on_exhausted: Annotated[
        OnExhausted | None,
        Setting(
            kind=END,
            says="What becomes of a call that does not fit: it fails, waits for the window, or `cheaper` answers.",
            unset="`deny`",
        ),
    ] = None
    cheaper: Annotated[
        str | None,
        Setting(kind=ModelName(most=SUBJECT_MAX), says="The model that answers then.", unset="needed for `cheaper`"),
    ] = None
    warn_at: Annotated[
        float | None,
        Setting(
            kind=Number(least=0.000_001, most=1),
            says="At which share of it `budget_threshold_hit` is told.",
            unset="0.8",
        ),
    ] = None
    timezone: Annotated[
        str | None, Setting(kind=Text(least=1, most=100), says="Where a day or a month begins.", unset="`UTC`")
    ] = None
    only: Annotated[
        str | None,
        Setting(kind=Text(least=1, most=400), says="The one principal or tenant that it is for.", unset="each"),
    ] = None
    unpriced: Annotated[
        Unpriced | None,
        Setting(kind=UNPRICED, says="Whether money is spent on a model whose price nobody knows.", unset="`deny`"),
    ] = None


def budget_of(name: str, given: Mapping[str, Any]) -> Budget:
    """The budget that a block makes; raises `ConfigError`."""
    return Budget(name=name, **{key: value for key, value in given.items() if value is not None})
