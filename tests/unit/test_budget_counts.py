"""The counts of budgets."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.errors import ConfigError
from laneway.kernel.budgets import GRANT_SHARE, Budgets, Count, Grant, Refusal, Wish
from laneway.spending import DOLLAR, Amount, Budget, BudgetScope, BudgetWindow, OnExhausted, Period, Price, Spender

WHO = Spender("acme", "default", "s1", "r1", "user:42")


def budgets(*rules: Budget) -> Budgets:
    made = Budgets()
    for each in rules:
        made.set_rule(each)
    return made


def counts_of(made: Budgets, who: Spender = WHO) -> tuple[Count, ...]:
    return made.counts_of(who, lambda _: Period())


def reserve(made: Budgets, *wish: Any, who: Spender = WHO) -> Grant | Refusal:
    return made.reserve(counts_of(made, who), Wish(*wish))


def granted(made: Budgets, *wish: Any, who: Spender = WHO) -> Grant:
    found = reserve(made, *wish, who=who)
    assert isinstance(found, Grant)
    return found


def test_a_call_reserves_its_input_and_all_the_output_it_may_have() -> None:
    made = budgets(Budget(name="b", scope=BudgetScope.SESSION, tokens=1_000))
    grant = granted(made, 300, 500)
    (count,) = counts_of(made)
    assert (grant.output_max, count.reserved, count.left) == (500, Amount(800, 0), (200, None))
    made.settle(grant, Amount(350, 0))
    assert (count.spent, count.reserved, count.left) == (Amount(350, 0), Amount(), (650, None))


def test_the_output_becomes_as_short_as_it_has_to() -> None:
    made = budgets(Budget(name="b", scope=BudgetScope.SESSION, tokens=1_000))
    assert granted(made, 300, 5_000, 100).output_max == 700
    refused = reserve(made, 300, 5_000, 100)
    assert isinstance(refused, Refusal)
    assert refused.waits  # what is in flight may give enough back


def test_what_does_not_fit_even_alone_does_not_wait() -> None:
    made = budgets(Budget(name="b", scope=BudgetScope.SESSION, tokens=1_000))
    made.settle(granted(made, 900, 10), Amount(910, 0))
    refused = reserve(made, 300, 10)
    assert isinstance(refused, Refusal)
    assert (refused.waits, refused.where.key.budget) == (False, "b")


def test_all_counts_or_none() -> None:
    wide = Budget(name="wide", scope=BudgetScope.TENANT, tokens=10_000)
    made = budgets(wide, Budget(name="run", scope=BudgetScope.RUN, tokens=10))
    assert isinstance(reserve(made, 300, 10), Refusal)
    assert all(count.reserved == Amount() for count in counts_of(made))


def test_money_is_counted_with_the_price_and_rounded_up() -> None:
    price = Price.per_million(2.5, 10)
    assert price == Price(2_500_000, 10_000_000)
    made = budgets(Budget(name="m", scope=BudgetScope.TENANT, money=0.01))
    grant = granted(made, 1_000, 5_000, 1, price)
    assert grant.output_max == 750  # the input costs 0.0025; 0.0075 buys 750 tokens
    assert grant.amount.nanos == DOLLAR // 100
    assert Price(1, 0).of(1, 0).nanos == 1


@pytest.mark.parametrize("is_first", [True, False])
def test_nobody_parks_for_one_budget_while_another_denies_the_call(is_first: bool) -> None:
    rules = [
        Budget(
            name="day", scope=BudgetScope.TENANT, window=BudgetWindow.DAY, tokens=100, on_exhausted=OnExhausted.PARK
        ),
        Budget(name="all", scope=BudgetScope.TENANT, tokens=100),
    ]
    made = budgets(*(rules if is_first else reversed(rules)))
    made.settle(granted(made, 90, 10), Amount(100))
    refused = reserve(made, 10, 10)
    assert isinstance(refused, Refusal)
    assert refused.where.key.budget == "all"


@pytest.mark.parametrize("is_first", [True, False])
def test_who_parks_parks_for_the_last_window_to_open(is_first: bool) -> None:
    rules = [
        Budget(name=each, scope=BudgetScope.TENANT, window=each, tokens=100, on_exhausted=OnExhausted.PARK)
        for each in (BudgetWindow.DAY, BudgetWindow.MONTH)
    ]
    made = budgets(*(rules if is_first else reversed(rules)))
    counts = made.counts_of(WHO, lambda rule: Period(0, 1 if rule.window is BudgetWindow.DAY else 30))
    grant = made.reserve(counts, Wish(90, 10))
    assert isinstance(grant, Grant)
    made.settle(grant, Amount(100))
    refused = made.reserve(counts, Wish(10, 10))
    assert isinstance(refused, Refusal)
    assert refused.where.key.budget == "month"


def test_thresholds_are_told_once_and_the_end_each_time() -> None:
    made = budgets(Budget(name="b", scope=BudgetScope.SESSION, tokens=1_000, warn_at=0.5))
    told = [made.settle(granted(made, 50, 50), Amount(used, 0)) for used in (400, 200, 100, 300)]
    assert [[each.kind for each in some] for some in told] == [[], ["soft"], [], ["hard"]]


def test_what_was_used_above_the_estimate_is_reported() -> None:
    made = budgets(Budget(name="b", scope=BudgetScope.SESSION, tokens=100))
    made.settle(granted(made, 50, 50), Amount(130, 0))
    (count,) = counts_of(made)
    assert (count.overrun, count.left) == (Amount(30, 0), (-30, None))


def test_after_a_crash_everything_granted_counts_as_spent() -> None:
    rule = Budget(name="b", scope=BudgetScope.SESSION, tokens=1_000)
    made = budgets(rule)
    granted(made, 100, 100)
    (count,) = counts_of(made)
    assert not count.is_covered
    count.cover()
    assert count.granted == Amount(200 + 1_000 // GRANT_SHARE, 0)
    again = budgets(rule)
    again.load([count])
    (loaded,) = counts_of(again)
    assert (loaded.spent, loaded.lost, loaded.reserved) == (Amount(220, 0), Amount(220, 0), Amount())


def test_a_grant_never_sets_aside_more_than_the_limit() -> None:
    made = budgets(Budget(name="b", scope=BudgetScope.SESSION, tokens=1_000))
    granted(made, 990, 5)
    (count,) = counts_of(made)
    count.cover()
    assert count.granted == Amount(1_000, 0)


def test_sessions_without_a_principal_share_a_count_of_their_tenant_and_only_is_for_one() -> None:
    made = budgets(
        Budget(name="people", scope=BudgetScope.PRINCIPAL, tokens=10),
        Budget(name="acme", scope=BudgetScope.TENANT, tokens=10, only="acme"),
        Budget(name="olga", scope=BudgetScope.PRINCIPAL, tokens=10, only="olga"),
    )
    assert [count.key.subject for count in counts_of(made)] == ["acme/user:42", "acme"]
    nobody = WHO._replace(tenant="other", principal=None)
    assert [count.key.subject for count in counts_of(made, nobody)] == ["other/"]
    assert counts_of(made, nobody._replace(session="another")) == counts_of(made, nobody)


def test_rules_change_while_calls_are_in_flight() -> None:
    made = budgets(Budget(name="b", scope=BudgetScope.SESSION, tokens=1_000))
    grant = granted(made, 300, 300)
    made.set_rule(Budget(name="b", scope=BudgetScope.SESSION, tokens=500))
    assert isinstance(reserve(made, 10, 10), Refusal)
    (gone,) = made.drop_rule("b")
    assert made.counts == {}
    made.settle(grant, Amount(20, 0))
    assert (gone.spent, gone.in_flight) == (Amount(20, 0), 0)


def test_counts_of_runs_and_old_windows_are_forgotten() -> None:
    daily = Budget(name="d", scope=BudgetScope.TENANT, window=BudgetWindow.DAY, tokens=10)
    made = budgets(Budget(name="run", scope=BudgetScope.RUN, tokens=10), daily)
    made.counts_of(WHO, lambda rule: Period(0, 100) if rule.name == "d" else Period())
    assert [count.key.budget for count in made.of_run(WHO)] == ["run"]
    assert made.over_before(99) == []
    assert [count.key.budget for count in made.over_before(100)] == ["d"]
    made.forget([*made.of_run(WHO), *made.over_before(100)])
    assert made.counts == {}


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({}, "limits nothing"),
        ({"tokens": 0}, "whole number"),
        ({"tokens": True}, "whole number"),
        ({"money": float("nan")}, "US dollars"),
        ({"tokens": 1, "timezone": "localtime"}, "has the timezone of its host"),
        ({"tokens": 1, "scope": "principal", "only": "user:\x1b[31m"}, "has no such only"),
        (
            {"tokens": 1, "scope": "tenant", "tenant": "acme", "only": "evil"},
            "is of tenant 'acme', and for 'evil' only",
        ),
        ({"money": "1"}, "US dollars"),
        ({"tokens": 1, "scope": "planet"}, "run, session, principal, tenant"),
        ({"tokens": 1, "window": "week"}, "ever, day, month"),
        ({"tokens": 1, "warn_at": 0}, "warns at 0"),
        ({"tokens": 1, "on_exhausted": "cheaper"}, "cheaper model"),
        ({"tokens": 1, "cheaper": "openai/x"}, "cheaper model"),
        ({"tokens": 1, "on_exhausted": OnExhausted.PARK}, "no window that could open"),
        ({"tokens": 1, "scope": "run", "window": "day"}, "counts a run by the day"),
        ({"tokens": 1, "only": "x"}, "only"),
        ({"tokens": 1, "timezone": "Mars/Base"}, "timezone"),
        ({"tokens": 1, "name": "a/b"}, "without a slash"),
        ({"tokens": 1, "name": "x" * 1_000_000}, "visible characters"),
    ],
)
def test_a_budget_that_makes_no_sense_is_refused_by_name(facts: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        Budget(**{"name": "team", "scope": "session", **facts})
    assert len(str(caught.value)) < 1_000
