"""Budgets in a run: nothing is spent that was not there, and what has to wait goes on by itself."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from laneway.agent.budgeting import _exhausted, _parked_for
from laneway.dialogue import Usage
from laneway.errors import BudgetExhaustedError, ConfigError, ModelUnavailableError
from laneway.kernel.budgets import Count, CountKey, Refusal
from laneway.models import ScriptedModel, cut, fail, say
from laneway.models.settings import Prices
from laneway.spending import DOLLAR, Amount, Budget, BudgetScope, Period
from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.agent_stage import Bench, Held, Watch, agent_of, opened, sending, session_of, use
from tests.stage import now_ms, passing, simulated

USED = Usage(input_tokens=300, output_tokens=100)
DAY_MS = 86_400_000
TALK: dict[str, Any] = {"name": "talk", "scope": "session", "tokens": 50_000}
DAILY: dict[str, Any] = {
    "name": "daily",
    "scope": "tenant",
    "window": "day",
    "tokens": 900,
    "on_exhausted": "park",
}


class Priced(ScriptedModel):
    """A scripted model that costs something."""

    prices = Prices(input=2.5, output=10)


def model(*script: Any, **more: Any) -> ScriptedModel:
    return ScriptedModel([[say(each)] if isinstance(each, str) else each for each in script], usage=USED, **more)


def spent(session: Any) -> dict[str, int]:
    return {count.budget.name: count.spent.tokens for count in session.host.budgets.budgets.counts.values()}


@simulated
async def test_a_session_spends_until_its_budget_is_used_up() -> None:
    playing = model("one", "two", "three")
    budget = Budget(name="talk", scope="session", tokens=1_300)  # type: ignore[arg-type]
    async with opened(playing, budgets=[budget]) as session:
        await session.send("hello")
        await session.send("again")
        assert spent(session) == {"talk": 800}
        with pytest.raises(BudgetExhaustedError) as told:
            await session.send("once more")
    said = r"800 of 1,300 tokens of budget 'talk' are spent; this call may take up to [56]\d\d tokens, and 500 are left"
    assert re.search(said, str(told.value))
    assert len(playing.requests) == 2


@simulated
async def test_an_output_limit_is_always_sent_and_shrinks_with_what_is_left() -> None:
    playing = model("one", "two")
    async with opened(playing, budgets=[{"name": "talk", "scope": "session", "tokens": 2_000}]) as session:
        await session.send("hello")
        await session.send("again")
    first, second = (request.output_max for request in playing.requests)
    assert first is not None
    assert second is not None
    assert first <= 2_000
    assert second < first - 300


@pytest.mark.parametrize(
    ("own", "asked", "sent"), [(400, None, 400), (400, 300, 300), (400, 9_000, 400), (None, None, 8_192)]
)
@simulated
async def test_the_output_limit_is_the_least_that_somebody_has_said(
    own: int | None, asked: int | None, sent: int
) -> None:
    playing = model("one")
    playing.output_max = own  # type: ignore[attr-defined]
    talk = {"name": "talk", "scope": "session", "tokens": 900_000}
    async with opened(playing, budgets=[talk], max_output_tokens=asked) as session:
        await session.send("hello")
    assert [request.output_max for request in playing.requests] == [sent]


def refused(*, spent: Amount, wanted: Amount, is_never: bool = False, **limits: Any) -> Refusal:
    rule = Budget(name="people", scope="principal", window="day", **limits)  # type: ignore[arg-type]
    period = Period(0, 1_795_046_400_000)
    count = Count(CountKey(rule.key, "acme/user:42", 0), rule, period, spent=spent)
    return Refusal(count, wanted, waits=False, is_never=is_never)


@pytest.mark.parametrize(
    ("refusal", "words", "parked"),
    [
        (
            refused(spent=Amount(9, 3 * DOLLAR), wanted=Amount(1_380, 2_100_000_000), money=5),
            "$3.00 of $5.00 of budget 'people' are spent; this call may take up to $2.10, and $2.00 are left",
            "what is left of budget 'people' ($2.00 of $5.00) is too little for this call until",
        ),
        (
            refused(spent=Amount(9, 3 * DOLLAR), wanted=Amount(9, 2_000_400_000), money=5, tokens=1_000),
            "$3.0000 of $5.0000 of budget 'people' are spent; this call may take up to $2.0004, and $2.0000 are left",
            "what is left of budget 'people' ($2.0000 of $5.0000) is too little for this call until",
        ),
        (
            refused(spent=Amount(900, DOLLAR), wanted=Amount(101, 0), money=5, tokens=1_000),
            "900 of 1,000 tokens of budget 'people' are spent; this call may take up to 101 tokens, and 100 are left",
            "what is left of budget 'people' (100 of 1,000 tokens) is too little for this call until",
        ),
        (
            refused(spent=Amount(0, 6 * DOLLAR), wanted=Amount(1, 1), money=5),
            "this call may take up to $0.000000001, and $0.000000000 are left",
            "budget 'people' is used up until",
        ),
        (
            refused(spent=Amount(), wanted=Amount(9, 6 * DOLLAR), is_never=True, money=5, tokens=1_000),
            "this call would take $6.00 or more, and all of budget 'people' ($5.00) is not enough for it",
            "what is left of budget 'people' ($5.00 of $5.00) is too little for this call until",
        ),
    ],
)
def test_a_refusal_speaks_in_the_unit_that_is_short(refusal: Refusal, words: str, parked: str) -> None:
    assert words in str(_exhausted(refusal))
    assert _parked_for(refusal, 1_795_046_400_000).startswith(parked)


@simulated
async def test_a_session_says_which_budgets_hold_for_it_and_what_was_spent() -> None:
    held = Held(say("two"))
    rules = [
        DAILY,
        {"name": "once", "scope": "run", "tokens": 5_000},
        {"name": "olga's", "scope": "principal", "tokens": 9, "only": "olga"},
    ]
    async with opened(model("one", held), budgets=rules, max_output_tokens=300) as session:
        assert [(each.name, each.tokens, each.spent_tokens) for each in await session.budgets()] == [("daily", 900, 0)]
        await session.send("hello")
        (daily,) = await session.budgets()
        assert (daily.spent_tokens, daily.reserved_tokens, daily.until_ms > now_ms()) == (400, 0, True)
        run = sending(session, "x")
        await passing(DAY_MS)
        await held.asked.wait()
        daily, once = await session.budgets()
        assert (daily.spent_tokens, daily.reserved_tokens > 0) == (0, True)
        assert (once.name, once.reserved_tokens) == ("once", daily.reserved_tokens)
        held.let_go()
        await run


@simulated
async def test_calls_in_flight_never_take_more_than_there_is() -> None:
    held = [Held(say(str(at))) for at in range(5)]
    playing = model(*held)
    async with agent_of(playing, budgets=[{"name": "all", "scope": "tenant", "tokens": 2_500}]) as agent:
        sessions = [session_of(agent, session_id=f"s{at}", max_output_tokens=800) for at in range(5)]
        runs = [sending(each, "hello") for each in sessions]
        await passing(50)
        (count,) = sessions[0].host.budgets.budgets.counts.values()
        assert count.in_flight < 5
        assert count.spent.tokens + count.reserved.tokens <= 2_500
        for each in held:
            each.let_go()
        ended = await asyncio.gather(*runs, return_exceptions=True)
        answered = [each for each in ended if not isinstance(each, BaseException)]
        assert count.spent.tokens == 400 * len(answered) <= 2_500
        assert all(isinstance(each, BudgetExhaustedError) for each in ended if isinstance(each, BaseException))
        assert len(answered) >= 4


@simulated
async def test_a_run_that_is_parked_goes_on_when_the_window_opens() -> None:
    playing = model("one", "two")
    async with opened(playing, budgets=[DAILY], max_output_tokens=300) as session:
        await session.send("hello")
        began = now_ms()
        watch = Watch(session.subscribe())
        run = sending(session, "more")
        await passing(1_000)
        assert not run.done()
        (told,) = watch.of("run_waiting")
        words = "what is left of budget 'daily' (500 of 900 tokens) is too little for this call until "
        assert told.reason.startswith(words)
        assert re.search(r"; it may take up to \d+ tokens$", told.reason)
        assert (await run).text == "two"
        assert now_ms() - began <= DAY_MS + 60_000


@simulated
async def test_a_raised_budget_lets_a_parked_run_go_on_at_once() -> None:
    async with agent_of(model("one", "two"), budgets=[DAILY], max_output_tokens=300) as agent:
        session = session_of(agent)
        await session.send("hello")
        run = sending(session, "more")
        await passing(1_000)
        assert not run.done()
        began = now_ms()
        await session.host.budgets.set_rule(Budget(**{**DAILY, "tokens": 9_000}))
        assert (await run).text == "two"
        assert now_ms() - began < 1_000


@simulated
async def test_a_parked_run_can_be_cancelled() -> None:
    async with opened(model("one", "two"), budgets=[DAILY], max_output_tokens=300) as session:
        await session.send("hello")
        run = sending(session, "more")
        await passing(1_000)
        await session.cancel()
        with pytest.raises(Exception, match="ended"):
            await run
        (count,) = session.host.budgets.budgets.counts.values()
        assert (count.in_flight, count.reserved.tokens) == (0, 0)


@simulated
async def test_money_is_counted_by_the_price_of_the_model() -> None:
    playing = Priced([[say("one")], [say("two")]], usage=USED)
    async with opened(playing, budgets=[{"name": "purse", "scope": "session", "money": 0.005}]) as session:
        await session.send("hello")
        (count,) = session.host.budgets.budgets.counts.values()
        assert count.spent.dollars == pytest.approx(300 * 2.5e-6 + 100 * 10e-6)
        with pytest.raises(BudgetExhaustedError, match=r"\$0.002 of \$0.005 of budget 'purse' are spent"):
            await session.send("once more")
        assert count.spent.dollars <= 0.005


@simulated
async def test_a_model_without_a_price_is_refused_where_money_counts() -> None:
    playing = model("one")
    async with opened(playing) as session:
        await session.ready()
        await session.host.budgets.set_rule(Budget(name="purse", scope="session", money=1))  # type: ignore[arg-type]
        with pytest.raises(BudgetExhaustedError, match="what model 'scripted' costs is not known"):
            await session.send("hello")
    assert playing.requests == []


@simulated
async def test_a_model_without_a_price_is_refused_where_it_is_configured() -> None:
    purse = {"name": "purse", "scope": "session", "money": 1}
    with pytest.raises(ConfigError, match="what model 'scripted' costs is not known, and budget 'purse' counts money"):
        async with opened(model("one"), budgets=[purse]):
            raise AssertionError("it was opened")
    async with opened(model("one"), budgets=[{**purse, "unpriced": "allow", "tokens": 50_000}]) as session:
        await session.send("hello")
        (count,) = session.host.budgets.budgets.counts.values()
        assert count.spent == (400, 0)


@simulated
async def test_a_cheaper_model_answers_when_a_budget_says_so() -> None:
    rule = {"name": "purse", "scope": "session", "money": 0.004, "on_exhausted": "cheaper", "cheaper": "small"}
    small = Priced([[say("from the small one")]], usage=USED, name="small")
    small.prices = Prices(input=0.01, output=0.01)
    async with agent_of(Priced([[say("one")]] * 5, usage=USED), budgets=[rule], max_output_tokens=300) as agent:
        agent._models["small"] = small  # noqa: SLF001 - as if a provider had it
        session = session_of(agent)
        said = [(await session.send("hello")).text for _ in range(3)]
    assert said[0] == "one"
    assert "from the small one" in said
    assert small.requests


@simulated
async def test_a_call_that_its_provider_has_refused_costs_nothing() -> None:
    playing = model([fail(ModelUnavailableError("gone", model="m"))], "well")
    async with opened(playing, budgets=[TALK]) as session:
        await session.send("hello")
        assert spent(session) == {"talk": 400}


@simulated
async def test_a_call_that_was_cut_in_its_answer_counts_as_all_it_had_reserved() -> None:
    playing = model([cut("half an ans")], "well")
    async with opened(playing, budgets=[TALK], max_output_tokens=1_000) as session:
        await session.send("hello")
        assert spent(session)["talk"] > 400 + 1_000


@simulated
async def test_a_run_that_is_ended_while_its_model_thinks_pays_for_what_nobody_knows() -> None:
    held = Held(say("too late"))
    async with opened(model(held), budgets=[TALK], max_output_tokens=1_000) as session:
        run = sending(session, "hello")
        await held.asked.wait()
        await session.cancel()
        with pytest.raises(Exception, match="ended"):
            await run
        (count,) = session.host.budgets.budgets.counts.values()
        assert (count.in_flight, count.reserved.tokens) == (0, 0)
        assert count.spent.tokens > 1_000


@simulated
async def test_a_run_has_a_count_of_its_own_that_ends_with_it() -> None:
    bench = Bench()
    playing = model(use("look", "a"), "done", "next")
    async with opened(playing, bench, budgets=[{"name": "run", "scope": "run", "tokens": 3_000}]) as session:
        await session.send("hello")
        assert spent(session) == {}
        assert (await session.send("again")).text == "next"


@simulated
async def test_what_was_spent_is_spent_after_a_restart() -> None:
    disk = MemoryDisk()
    rule = {"name": "talk", "scope": "session", "tokens": 2_000}
    for expected in (400, 800):
        async with agent_of(model("one"), budgets=[rule], session_store=MemoryStore(disk)) as agent:
            session = session_of(agent, session_id="s")
            await session.send("hello")
            assert spent(session) == {"talk": expected}


@simulated
async def test_labels_decide_whose_count_it_is() -> None:
    rules = [{"name": "people", "scope": "principal", "tokens": 10_000}]
    async with agent_of(model("one", "two", "three"), budgets=rules) as agent:
        for name, principal in (("a", "olga"), ("b", "olga"), ("c", None)):
            session = session_of(agent, session_id=name, principal=principal)
            await session.send("hello")
        counts = session.host.budgets.budgets.counts
    found = {key.subject: count.spent.tokens for key, count in counts.items()}
    assert found == {"default/olga": 800, "default/": 400}


@simulated
async def test_two_budgets_of_one_name_are_refused() -> None:
    twice = [
        Budget(name="x", scope=BudgetScope.RUN, tokens=600),
        Budget(name="x", scope=BudgetScope.RUN, tokens=50_000),
    ]
    with pytest.raises(ConfigError, match="two of the budgets are named 'x'"):
        agent_of(ScriptedModel([]), budgets=twice)
