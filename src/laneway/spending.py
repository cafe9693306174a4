"""What may be spent: budgets in tokens and money, prices, and amounts of both. Money is counted in whole nanodollars.

A budget belongs to everything of its scope (a run, a session, a principal, a tenant) and holds for ever, for a day or
for a month of its timezone. Each run, session, principal or tenant has a count of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo

from laneway.errors import ConfigError
from laneway.records import check_whole

__all__ = (
    "DOLLAR",
    "MONEY_MAX",
    "TOKENS_MAX",
    "Amount",
    "Budget",
    "BudgetScope",
    "BudgetWindow",
    "OnExhausted",
    "Period",
    "Price",
    "Spender",
    "Unpriced",
    "check_money",
)

DOLLAR: Final = 1_000_000_000
"""A US dollar in nanodollars."""
TOKENS_MAX: Final = 10**15
MONEY_MAX: Final = 10**9  # dollars
NAME_MAX: Final = 100
SUBJECT_MAX: Final = 400
HOST_ZONES: Final = frozenset({"localtime", "posixrules"})


class BudgetScope(StrEnum):
    """What has a count of its own."""

    RUN = "run"
    SESSION = "session"
    PRINCIPAL = "principal"
    TENANT = "tenant"


class BudgetWindow(StrEnum):
    """How long a count goes on before it begins anew."""

    EVER = "ever"
    DAY = "day"
    MONTH = "month"


class OnExhausted(StrEnum):
    """What becomes of a call that does not fit any more."""

    DENY = "deny"  # the run fails
    PARK = "park"  # the run waits until the window ends, and goes on by itself
    CHEAPER = "cheaper"  # another model answers, if that fits; else the run fails


class Unpriced(StrEnum):
    """What becomes of a call of a model whose price nobody knows, where money is counted."""

    DENY = "deny"  # it is not made
    ALLOW = "allow"  # it is made, and its money is not counted


class Amount(NamedTuple):
    """Tokens, and nanodollars."""

    tokens: int = 0
    nanos: int = 0

    def plus(self, other: Amount) -> Amount:
        """Both together."""
        return Amount(self.tokens + other.tokens, self.nanos + other.nanos)

    def minus(self, other: Amount) -> Amount:
        """What is left of it."""
        return Amount(self.tokens - other.tokens, self.nanos - other.nanos)

    @property
    def dollars(self) -> float:
        """The money, for people."""
        return self.nanos / DOLLAR


class Price(NamedTuple):
    """What a model costs, in picodollars a token: whole numbers, however cheap it is."""

    input_picos: int = 0
    output_picos: int = 0

    @classmethod
    def per_million(cls, input_dollars: float, output_dollars: float) -> Price:
        """From dollars for a million tokens, as providers say it; rounded up."""
        return cls(-int(-input_dollars * 1_000_000 // 1), -int(-output_dollars * 1_000_000 // 1))

    def of(self, input_tokens: int, output_tokens: int) -> Amount:
        """What so many tokens are, and cost, rounded up."""
        picos = input_tokens * self.input_picos + output_tokens * self.output_picos
        return Amount(input_tokens + output_tokens, -(-picos // 1000))


class Spender(NamedTuple):
    """Who makes a call of a model."""

    tenant: str
    workspace: str
    session: str
    run_id: str
    principal: str | None = None


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What may be spent. `warn_at` is the share of a limit at which `budget_threshold_hit` is told, once a window."""

    name: str
    scope: BudgetScope
    window: BudgetWindow = BudgetWindow.EVER
    tokens: int | None = None
    money: float | None = None
    on_exhausted: OnExhausted = OnExhausted.DENY
    cheaper: str | None = None
    warn_at: float = 0.8
    timezone: str = "UTC"
    only: str | None = None
    """The one principal or tenant that it is for; None: each has its own."""
    unpriced: Unpriced = Unpriced.DENY
    tenant: str | None = None
    """The tenant whose calls it is about; None: those of all."""
    session: str | None = None
    """The session of that tenant whose calls it is about, which has brought it along; None: those of all."""

    def __post_init__(self) -> None:
        _check_name(self.name)
        for name, kind in WORDS:
            object.__setattr__(self, name, _one_of(kind, getattr(self, name), f"{self.name}.{name}"))
        if self.tokens is None and self.money is None:
            raise _bad(self.name, "limits nothing", "say tokens, money or both")
        if self.tokens is not None:
            check_whole(self.tokens, setting=f"budget {self.name}.tokens", least=1, most=TOKENS_MAX)
        if self.money is not None:
            check_money(self.money, setting=f"budget {self.name}.money")
        if isinstance(self.warn_at, bool) or not isinstance(self.warn_at, int | float) or not 0 < self.warn_at <= 1:
            raise _bad(self.name, f"warns at {self.warn_at!r}", "warn_at is a share above 0 and up to 1, such as 0.8")
        self._check_end()
        self._check_whose()
        self._check_timezone()

    def _check_timezone(self) -> None:
        if str(self.timezone).casefold() in HOST_ZONES:
            hint = "name the place, such as Europe/Zurich: a day has to be the same on every host"
            raise _bad(self.name, f"has the timezone of its host: {self.timezone!r}", hint)
        try:
            ZoneInfo(self.timezone)
        except (LookupError, OSError, ValueError, TypeError) as error:
            raise _bad(self.name, f"has no such timezone: {self.timezone!r}", "Europe/Zurich, for one") from error

    def _check_end(self) -> None:
        if (self.on_exhausted is OnExhausted.CHEAPER) != (self.cheaper is not None):
            hint = 'on_exhausted = "cheaper" and cheaper = "provider/model" belong together'
            raise _bad(self.name, "names no cheaper model, or one for nothing", hint)
        if self.on_exhausted is OnExhausted.PARK and self.window is BudgetWindow.EVER:
            raise _bad(self.name, "has no window that could open again", 'park needs window = "day" or "month"')
        if self.scope is BudgetScope.RUN and self.window is not BudgetWindow.EVER:
            raise _bad(self.name, "counts a run by the day", "a budget of a run holds as long as the run")

    def _check_whose(self) -> None:
        if self.only is not None and self.scope not in (BudgetScope.PRINCIPAL, BudgetScope.TENANT):
            raise _bad(self.name, f"is for {self.only!r:.80} only", "`only` names a principal or a tenant")
        for name in ("only", "tenant", "session", "cheaper"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not 0 < len(value) <= SUBJECT_MAX):
                raise _bad(self.name, f"has no such {name}: {value!r:.80}", f"a text of 1 to {SUBJECT_MAX} characters")
        for name in ("only", "cheaper"):
            if not (getattr(self, name) or "").isprintable():
                raise _bad(self.name, f"has no such {name}: {getattr(self, name)!r:.80}", "visible characters only")
        if not self.concerns(self.tenant):
            hint = "a budget of one tenant is about that tenant: leave `only` out, or make it one of all tenants"
            raise _bad(self.name, f"is of tenant {self.tenant!r:.80}, and for {self.only!r:.80} only", hint)

    def concerns(self, tenant: str | None) -> bool:
        """Whether it may be about what a tenant does; None: about what any does."""
        if tenant is not None and self.scope is BudgetScope.TENANT and self.only not in (None, tenant):
            return False
        return tenant is None or self.tenant in (None, tenant)

    @cached_property
    def key(self) -> str:
        """What it is known by among all: a tenant's own budget may be called what others' are."""
        if self.session is not None:
            return "\n".join((self.tenant or "", self.session, self.name))  # no other key has more than one line
        return self.name if self.tenant is None else f"{self.tenant}/{self.name}"

    @property
    def counts_by(self) -> tuple[str, ...]:
        """What its counts go by: with another of these what was counted means something else."""
        return self.scope, self.window, self.timezone

    @cached_property
    def limit(self) -> tuple[int | None, int | None]:
        """The limit in tokens and nanodollars."""
        return self.tokens, None if self.money is None else round(self.money * DOLLAR)

    def subject_of(self, who: Spender) -> str | None:
        """Whose count a call belongs to; None when this budget has nothing to do with it."""
        if self.tenant not in (None, who.tenant) or self.session not in (None, who.session):
            return None
        scope = self.scope
        if scope is BudgetScope.RUN:
            return who.run_id
        if scope is BudgetScope.SESSION:
            return f"{who.tenant}/{who.session}"
        is_tenants = scope is BudgetScope.TENANT
        subject = who.tenant if is_tenants else who.principal or ""  # those without one share a count: a limit holds
        if self.only is not None and subject != self.only:
            return None
        return subject if is_tenants else f"{who.tenant}/{subject}"


WORDS: Final = (
    ("scope", BudgetScope),
    ("window", BudgetWindow),
    ("on_exhausted", OnExhausted),
    ("unpriced", Unpriced),
)


class Period(NamedTuple):
    """A window of a budget, in wall time; one for ever begins at 0 and has no end."""

    from_ms: int = 0
    until_ms: int | None = None


def check_money(value: object, *, setting: str) -> float:
    """Refuse anything but an amount of dollars that can be spent."""
    if not isinstance(value, int | float | str):
        from decimal import Decimal  # few say it so, and it takes a while to load

        if isinstance(value, Decimal) and value.is_finite():
            value = float(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 1 / DOLLAR <= value <= MONEY_MAX:  # type: ignore[operator]
        raise ConfigError(
            f"{setting} must be an amount of US dollars above 0 and up to {MONEY_MAX:,}, not {value!r}",
            setting=setting,
            value=value,
        )
    return float(value)  # type: ignore[arg-type]


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX or not name.isprintable() or "/" in name:
        said = f"a budget has a name of 1 to {NAME_MAX} visible characters without a slash, not {name!r:.120}"
        raise ConfigError(said, setting="budgets", value=name)


def _one_of(kind: type[StrEnum], value: object, setting: str) -> StrEnum:
    try:
        return kind(str(value))
    except ValueError:
        known = ", ".join(each.value for each in kind)
        raise ConfigError(
            f"budget {setting} must be one of {known}, not {value!r:.80}", setting=setting, value=value
        ) from None


def _bad(name: str, what: str, hint: str) -> ConfigError:
    return ConfigError(f"budget {name!r} {what}", setting=f"budgets.{name}", value=name, hint=hint)
