"""What a budget chooses for a call that does not fit is told: to watchers and hooks, and in the words of its run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from laneway.agent_events import BudgetThresholdHitEvent
from laneway.dialogue import Usage
from laneway.errors import BudgetExhaustedError
from laneway.models import ScriptedModel, cut, say
from laneway.models.settings import Prices
from laneway.spending import Budget
from tests.agent_stage import Bench, Held, Watch, agent_of, opened, sending, session_of, use
from tests.stage import passing, simulated

USED = Usage(input_tokens=300, output_tokens=100)
DAILY: dict[str, Any] = {
    "name": "daily",
    "scope": "tenant",
    "window": "day",
    "tokens": 900,
    "on_exhausted": "park",
    "warn_at": 1,
}
PURSE: dict[str, Any] = {
    "name": "purse",
    "scope": "session",
    "money": 0.004,
    "on_exhausted": "cheaper",
    "cheaper": "small",
    "warn_at": 1,
}


class Told:
    """What watchers and hooks hear of budgets."""

    def __init__(self, session: Any) -> None:
        self.watch = Watch(session.subscribe())
        self.hooked: list[dict[str, Any]] = []
        session.register_hook("spending", "budget_threshold_hit", handler=self._hear)

    def _hear(self, event: Mapping[str, Any]) -> None:
        self.hooked.append(event["payload"])

    @property
    def events(self) -> list[BudgetThresholdHitEvent]:
        """What was told, if hooks were told the same."""
        found = self.watch.of("budget_threshold_hit")
        assert [each.message for each in found] == [each["message"] for each in self.hooked]
        return found


def model(*script: Any, price: float = 2.5, name: str = "scripted") -> ScriptedModel:
    entries = [[say(each)] if isinstance(each, str) else each for each in script]
    return ScriptedModel(entries, usage=USED, name=name, prices=Prices(input=price, output=4 * price))


@simulated
async def test_a_call_that_is_denied_says_which_budget_has_denied_it() -> None:
    rule = {"name": "talk", "scope": "session", "tokens": 900, "warn_at": 1}
    async with opened(model("one", "two"), budgets=[rule], max_output_tokens=300) as session:
        told = Told(session)
        await session.send("hello")
        assert told.events == []
        with pytest.raises(BudgetExhaustedError):
            await session.send("more")
        await passing(1)
        (event,) = told.events
        assert (event.resource, event.kind, event.consumed, event.limit) == ("talk", "hard", 400, 900)
        assert event.message is not None
        assert event.message.startswith("400 of 900 tokens of budget 'talk' are spent; this call may take up to ")
        assert event.message.endswith("and 500 are left: the call is denied")


@simulated
async def test_a_call_of_a_model_whose_price_nobody_knows_is_denied_aloud() -> None:
    async with opened(ScriptedModel([[say("one")]], usage=USED)) as session:
        await session.ready()
        told = Told(session)
        await session.host.budgets.set_rule(Budget(name="purse", scope="session", money=2))  # type: ignore[arg-type]
        with pytest.raises(BudgetExhaustedError):
            await session.send("hello")
        await passing(1)
        (event,) = told.events
        assert (event.resource, event.kind, event.consumed, event.limit) == ("purse", "hard", 0, 2)
        said = "what model 'scripted' costs is not known, and budget 'purse' counts money: the call is denied"
        assert event.message == said


@simulated
async def test_a_run_that_parks_says_so_once_until_it_could_go_on() -> None:
    async with opened(model(*["one"] * 4), budgets=[DAILY], max_output_tokens=300) as session:
        told = Told(session)
        await session.send("hello")
        run = sending(session, "more")
        await passing(600_000)  # it has looked again some times
        (event,) = told.events
        (waiting,) = told.watch.of("run_waiting")
        assert (event.resource, event.kind, event.consumed, event.limit) == ("daily", "hard", 400, 900)
        assert event.message is not None
        assert ": the run waits until " in event.message
        assert told.watch.events.index(event) < told.watch.events.index(waiting)  # what it does now comes last
        await session.host.budgets.set_rule(Budget(**{**DAILY, "tokens": 1_300}))
        await run
        run = sending(session, "still more")
        await passing(1_000)
        assert len(told.events) == len(told.watch.of("run_waiting")) == 2  # in the same window
        await run


@simulated
async def test_a_run_that_goes_on_with_a_cheaper_model_says_so_once() -> None:
    small = model(use("look", "b"), "done", "well", price=0.01, name="small")
    async with agent_of(model("one"), Bench(), budgets=[PURSE], max_output_tokens=300) as agent:
        agent._models["small"] = small  # noqa: SLF001 - as if a provider had it
        session = session_of(agent)
        told = Told(session)
        await session.send("hello")
        assert told.events == []
        result = await session.send("more")
        assert (result.text, len(small.requests)) == ("done", 2)
        (event,) = told.events
        assert (event.resource, event.kind, event.limit) == ("purse", "hard", 0.004)
        assert event.consumed == pytest.approx(0.00175)
        assert event.message is not None
        assert event.message.endswith(": model 'small' is asked instead")
        assert event.message.startswith("$0.0018 of $0.0040 of budget 'purse' are spent")
        words = await session.explain_run(result.run_id)
        assert words.count(event.message) == 1
        await session.send("and now?")
        assert len(told.events) == 2  # another run


@simulated
async def test_of_a_cheaper_model_that_does_not_fit_either_only_the_end_is_told() -> None:
    async with agent_of(model("one"), budgets=[PURSE], max_output_tokens=300) as agent:
        agent._models["small"] = model("never", name="small")  # noqa: SLF001 - as if a provider had it
        session = session_of(agent)
        told = Told(session)
        await session.send("hello")
        with pytest.raises(BudgetExhaustedError):
            await session.send("more")
        await passing(1)
        assert [str(each.message).rpartition(": ")[2] for each in told.events] == ["the call is denied"]


@simulated
async def test_a_run_that_is_ended_while_a_hook_hears_of_the_cheaper_model_reserves_nothing() -> None:
    held = Held()

    async def hear(_: Mapping[str, Any]) -> None:
        held.asked.set()
        await held.gate.wait()

    async with agent_of(model("one"), budgets=[PURSE], max_output_tokens=300) as agent:
        agent._models["small"] = small = model("never", price=0.01, name="small")  # noqa: SLF001 - as if a provider had it
        session = session_of(agent)
        await session.send("hello")
        (count,) = session.host.budgets.budgets.counts.values()
        before = count.spent
        session.register_hook("slow", "budget_threshold_hit", handler=hear)
        run = sending(session, "more")
        await held.asked.wait()
        await session.cancel("enough")
        with pytest.raises(Exception, match="enough"):
            await run
        assert (count.in_flight, count.reserved.tokens, count.spent, small.requests) == (0, 0, before, [])


@simulated
async def test_a_warning_that_a_call_without_an_end_has_reached_is_told() -> None:
    rule = {"name": "talk", "scope": "session", "tokens": 5_000, "warn_at": 0.2}
    async with opened(model([cut("half an ans")], "well"), budgets=[rule], max_output_tokens=1_000) as session:
        told = Told(session)
        await session.send("hello")
        assert [(each.resource, each.kind) for each in told.events] == [("talk", "soft")]
