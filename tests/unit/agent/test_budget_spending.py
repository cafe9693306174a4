"""What a call has taken is counted, whatever its model says of it, and however the call ends."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from laneway import AsyncAgent
from laneway.dialogue import Usage
from laneway.errors import BudgetExhaustedError, ModelLimitedError, RunCancelledError
from laneway.models import ScriptedModel, fail, say
from laneway.models.settings import Prices
from laneway.runtime.budget_rows import COUNT
from laneway.sim.loop import run_sim
from laneway.spending import Budget
from laneway.stores.memory import MemoryDisk
from laneway.system import HostEnv, SequentialIdGenerator
from laneway.testing import LoopClock
from tests.agent_stage import Held, Watch, agent_of, opened, post, sending, session_of
from tests.durable_stage import Mortal
from tests.stage import passing, simulated

USED = Usage(input_tokens=300, output_tokens=100)
TALK: dict[str, Any] = {"name": "talk", "scope": "session", "tokens": 5_000}


def count_of(session: Any) -> Any:
    (count,) = session.host.budgets.budgets.counts.values()
    return count


# ---- what models say of what they used ----


@pytest.mark.parametrize("cost", [None, 0.0])
@simulated
async def test_a_model_with_a_price_that_reports_nothing_costs_what_was_estimated(cost: float | None) -> None:
    playing = ScriptedModel([[say("well " * 60)]], usage=Usage(cost=cost), prices=Prices(input=10, output=10))
    async with opened(playing, budgets=[{"name": "purse", "scope": "session", "money": 1}]) as session:
        result = await session.send("hello " * 100)
        count = count_of(session)
        assert count.spent.tokens > 300
        assert count.spent.nanos == count.spent.tokens * 10_000
        assert result.cost == cost


@simulated
async def test_a_model_without_a_price_costs_nothing_where_that_is_allowed_whatever_it_reports() -> None:
    playing = ScriptedModel([[say("one")], [say("two")]], usage=Usage(input_tokens=300, output_tokens=100, cost=1.0))
    rule = {"name": "purse", "scope": "session", "money": 1, "unpriced": "allow"}
    async with opened(playing, budgets=[rule]) as session:
        assert [(await session.send("hello")).text for _ in range(2)] == ["one", "two"]
        assert (count_of(session).spent.nanos, count_of(session).spent.tokens) == (0, 800)


# ---- how calls end ----


@simulated
async def test_a_limit_of_the_provider_in_the_midst_of_an_answer_is_paid() -> None:
    limited = fail(ModelLimitedError("overloaded", model="m", retry_after_ms=1))
    playing = ScriptedModel([[say("half an ans"), limited]] * 20, usage=USED)
    async with opened(playing, budgets=[TALK], max_output_tokens=1_000) as session:
        with pytest.raises(BudgetExhaustedError):
            await session.send("hello")
        assert len(playing.requests) < 10
        assert count_of(session).spent.tokens > 4_000


@simulated
async def test_a_limit_of_the_provider_before_an_answer_costs_nothing() -> None:
    limited = fail(ModelLimitedError("overloaded", model="m", retry_after_ms=1))
    playing = ScriptedModel([[limited], [limited], [say("well")]], usage=USED)
    async with opened(playing, budgets=[TALK], max_output_tokens=1_000) as session:
        await session.send("hello")
        assert count_of(session).spent.tokens == 400


@simulated
async def test_a_budget_that_is_set_while_the_guard_thinks_is_asked() -> None:
    asked, decided = asyncio.Event(), asyncio.Event()

    class Thinking:
        async def check_before_llm(self, session_id: str, estimated_tokens: int) -> None:
            asked.set()
            await decided.wait()

    playing = ScriptedModel([[say("well")]], usage=USED)
    async with opened(playing, budget_guard=Thinking()) as session:
        run = sending(session, "hello")
        await asked.wait()
        await session.host.budgets.set_rule(Budget(name="tight", scope="tenant", tokens=1))  # type: ignore[arg-type]
        decided.set()
        with pytest.raises(BudgetExhaustedError, match="'tight'"):
            await run
    assert playing.requests == []


# ---- runs that are run again ----


def life(disk: MemoryDisk, at: int, *, is_killed: bool = True) -> list[int | None]:
    """One process, in which the model of the one message never answers; the output limits of its calls."""

    async def main() -> list[int | None]:
        held, store = Held(), Mortal(disk)
        ids = SequentialIdGenerator(f"life{at}-")
        host = HostEnv(clock=LoopClock(), ids=ids, random=random.Random(0))
        playing = ScriptedModel([held], usage=USED)
        rule = {"name": "runaway", "scope": "run", "tokens": 5_000}
        options: dict[str, Any] = {"session_store": store, "budgets": [rule], "max_output_tokens": 2_000}
        agent = AsyncAgent(model=playing, builtin_tools=False, host=host, **options)
        session = session_of(agent, session_id="s")
        if at == 1:
            await post(session, "hello")
        else:
            await session.ready()
        await passing(1_000)
        if is_killed:
            store.die()
        else:
            await agent.close()
        return [request.output_max for request in playing.requests]

    return run_sim(main(), seed=at)


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_message_that_is_run_again_is_the_same_run_for_its_budget(is_killed: bool) -> None:
    disk = MemoryDisk()
    calls = [life(disk, at, is_killed=is_killed) for at in (1, 2, 3, 4, 5)]
    taken = [each or 0 for one in calls for each in one]
    assert len(taken) >= 2
    assert sum(taken) < 5_000
    assert calls[-1] == []
    assert [key for key in disk.states if key.kind == COUNT] == []  # it has ended, for want of budget


# ---- runs that wait for room ----


@simulated
async def test_a_run_that_waits_for_room_says_so_and_lends_its_slot() -> None:
    held = Held(say("one"))
    playing = ScriptedModel([held, [say("rich")], [say("two")]], usage=USED)
    rule = {"name": "people", "scope": "principal", "only": "poor", "tokens": 5_000}
    async with agent_of(playing, budgets=[rule], max_output_tokens=4_000) as agent:
        first, second = (session_of(agent, session_id=name, principal="poor") for name in ("first", "second"))
        rich = session_of(agent, session_id="rich", principal="rich")
        for each in (first, second, rich):
            await each.ready()
        rich.host.lanes.resize("main", 2)
        watch = Watch(second.subscribe())
        runs = [sending(first, "hello " * 400)]
        await held.asked.wait()
        runs.append(sending(second, "hello " * 400))
        await passing(1_000)
        reason = "calls in flight have what is left of budget 'people'"
        assert [(each.reason, each.until_ms) for each in watch.of("run_waiting")] == [(reason, 0)]
        assert reason in second.explain()
        assert (await rich.send("hello")).text == "rich"  # there are two slots, and one was lent
        assert not any(each.done() for each in runs)
        held.let_go()
        assert [(await each).text for each in runs] == ["one", "two"]
        assert rich.host.budgets.waiting() == {}


@simulated
async def test_a_run_that_is_cancelled_while_it_waits_for_room_keeps_nothing() -> None:
    held = Held(say("one"))
    playing = ScriptedModel([held], usage=USED)
    rule = {"name": "all", "scope": "tenant", "tokens": 5_000}
    async with agent_of(playing, budgets=[rule], max_output_tokens=4_000) as agent:
        first, second = (session_of(agent, session_id=name) for name in ("first", "second"))
        running = sending(first, "hello " * 400)
        await held.asked.wait()
        waiting = sending(second, "hello " * 400)
        await passing(1_000)
        held.let_go()
        await second.cancel("enough")
        with pytest.raises(RunCancelledError, match="enough"):
            await waiting
        await running
        count = count_of(first)
        assert (count.in_flight, count.reserved.tokens, first.host.budgets.waiting()) == (0, 0, {})


@simulated
async def test_a_call_that_waits_for_the_disk_alone_does_not_say_that_it_waits_for_room() -> None:
    async with opened(ScriptedModel([[say("one")]] * 5, usage=USED), budgets=[TALK], max_output_tokens=500) as session:
        watch = Watch(session.subscribe())
        for _ in range(5):
            await session.send("hello")
        assert watch.of("run_waiting") == []
