"""Budgets at their edges: calls that never fit, models that cost nothing they say, sessions that leave."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from laneway.agent.estimates import FETCHED_TOKENS, IMAGE_TOKENS, Counted, estimated_tokens
from laneway.dialogue import Answer, ModelRequest, Prompt, ToolSpec, Usage
from laneway.errors import BudgetExhaustedError, ConfigError, ModelError
from laneway.models import ScriptedModel, call, say
from laneway.models.settings import Prices
from laneway.rows import Owner
from laneway.runtime.budget_rows import COUNT, read_count
from laneway.runtime.erasing import erase_all
from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.agent_stage import Bench, Held, agent_of, one, opened, post, prompts, sending, session_of
from tests.stage import now_ms, passing, simulated

USED = Usage(input_tokens=900, output_tokens=100)


def priced(name: str, price: float, *, usage: Usage = USED) -> Any:
    prices = Prices(input=price, output=price)
    return ScriptedModel([[say(name)]] * 20, usage=usage, name=name, prices=prices)


async def said_until_refused(session: Any, text: str) -> list[str]:
    said: list[str] = []
    with contextlib.suppress(BudgetExhaustedError):
        while len(said) < 100:
            said += [(await session.send(text)).text]
    return said


@simulated
async def test_two_budgets_that_name_different_cheaper_models_end_with_a_no() -> None:
    rules = [
        {"name": "house", "scope": "tenant", "money": 0.05, "on_exhausted": "cheaper", "cheaper": "nano"},
        {"name": "people", "scope": "session", "tokens": 4_000, "on_exhausted": "cheaper", "cheaper": "mini"},
    ]
    async with agent_of(priced("big", 20.0), max_output_tokens=1_000) as agent:
        agent._models |= {"nano": priced("nano", 0.01), "mini": priced("mini", 20.0)}  # noqa: SLF001 - as if providers had them
        session = session_of(agent, budgets=rules)
        said = await said_until_refused(session, "hello")
    assert said[0] == "big"
    assert "nano" in said


@pytest.mark.parametrize(
    "more",
    [
        {"window": "day", "on_exhausted": "park"},
        {"on_exhausted": "cheaper", "cheaper": "nano"},
        {"on_exhausted": "deny"},
    ],
)
@simulated
async def test_a_call_that_is_larger_than_the_whole_budget_is_refused_at_once(more: dict[str, Any]) -> None:
    rule = {"name": "tight", "scope": "session", "tokens": 100, **more}
    async with agent_of(priced("big", 1.0)) as agent:
        agent._models["nano"] = priced("nano", 0.01)  # noqa: SLF001 - as if a provider had it
        session = session_of(agent, budgets=[rule])
        with pytest.raises(BudgetExhaustedError, match=r"all of budget 'tight' \(100 tokens\) is not enough for it"):
            await asyncio.wait_for(session.send("hello " * 500), 5)
        (count,) = session.host.budgets.budgets.counts.values()
        assert (count.in_flight, session.host.budgets.parked) == (0, 0)


# ---- estimates ----


@pytest.mark.parametrize(
    ("attachment", "least"),
    [
        ("x" * 9_000, 3_000),
        ({"type": "text", "text": "x" * 9_000}, 3_000),
        ({"base64": "QUJD" * 3_000, "media_type": "application/pdf"}, 4_000),
        ({"base64": "QUJD", "media_type": "image/png"}, IMAGE_TOKENS),
        ({"url": "https://a.example/b.png"}, IMAGE_TOKENS),
        ({"url": "https://a.example/b.pdf", "media_type": "application/pdf"}, FETCHED_TOKENS),
    ],
)
def test_attachments_count_as_they_are_sent(attachment: Any, least: int) -> None:
    plain = ModelRequest(conversation=(Prompt(text="look"),))
    with_it = ModelRequest(conversation=(Prompt(text="look", attachments=(attachment,)),))
    assert least <= estimated_tokens(with_it) - estimated_tokens(plain) <= least * 1.1 + 20


def test_what_a_model_has_thought_aloud_counts_when_nobody_has_counted_it() -> None:
    said = (Prompt(text="hello"), Answer(text="well", reasoning="x" * 3_000), Prompt(text="and?"))
    assert estimated_tokens(ModelRequest(conversation=said)) > 1_000


COUNTED = Answer(text="well", usage=USED)
SAID = (Prompt(text="hello"), COUNTED, Prompt(text="and?"))


@pytest.mark.parametrize(
    "grown", [{"system": "x" * 9_000}, {"tools": (ToolSpec(name="look", description="x" * 9_000),)}]
)
@pytest.mark.parametrize("is_known", [True, False])
def test_system_text_and_tools_that_are_new_since_the_last_count_are_estimated(
    is_known: bool, grown: dict[str, Any]
) -> None:
    first = ModelRequest(conversation=SAID[:1], system="be brief", output_max=5)
    counted = Counted.of(first, COUNTED) if is_known else None
    same = estimated_tokens(ModelRequest(conversation=SAID, system="be brief"), counted)
    assert 1_000 < same < 1_020
    now = estimated_tokens(ModelRequest(conversation=SAID, **grown), counted)
    assert now >= (4_000 if is_known else 3_000)
    shrunk = estimated_tokens(ModelRequest(conversation=SAID, system="be"), counted)
    assert shrunk == same


def test_what_was_counted_before_a_summary_took_its_place_does_not_count() -> None:
    long = tuple(Prompt(text="x" * 30_000) for _ in range(3))
    last = Answer(text="well", usage=Usage(input_tokens=30_000, output_tokens=10))
    counted = Counted.of(ModelRequest(conversation=long), last)
    before = estimated_tokens(ModelRequest(conversation=(*long, last, Prompt(text="and?"))), counted)
    assert before > 30_000
    shorter = (Prompt(text="[Summary]", role="system"), last, Prompt(text="and?"))
    assert estimated_tokens(ModelRequest(conversation=shorter), counted) < 100


@simulated
async def test_what_a_provider_has_counted_is_taken_at_its_word_from_round_to_round_and_run_to_run() -> None:
    asked: list[int] = []

    class Noting:
        async def check_before_llm(self, session_id: str, estimated_tokens: int) -> None:
            asked.append(estimated_tokens)

    script: list[Any] = [[one("look", "a")], [say("one")], [one("look", "b")], [say("two")]]
    used = Usage(input_tokens=5, output_tokens=5)  # much less than its bytes say
    playing = ScriptedModel(script, usage=used)
    async with opened(playing, Bench(), budget_guard=Noting(), system="x" * 3_000) as session:
        await session.send("hello")
        await session.send("again")
    assert asked[0] > 1_000
    assert all(10 < each < 60 for each in asked[1:])


@pytest.mark.parametrize("grown", [0, 3_000])
def test_what_a_provider_has_counted_is_known_when_the_session_is_opened_again(grown: int) -> None:
    @simulated
    async def main() -> None:
        asked: list[int] = []

        class Noting:
            async def check_before_llm(self, session_id: str, estimated_tokens: int) -> None:
                asked.append(estimated_tokens)

        disk, used = MemoryDisk(), Usage(input_tokens=500, output_tokens=500)
        for system in ("x" * 3_000, "x" * (3_000 + grown)):
            model = ScriptedModel([[say("word " * 2_000)]] * 2, usage=used)
            options: dict[str, Any] = {"session_id": "s", "session_store": MemoryStore(disk)}
            async with opened(model, system=system, budget_guard=Noting(), **options) as session:
                await session.send("hello " * 500)
                await session.send("hello " * 500)
        first, second, third, fourth = asked
        assert (first > 2_000, 2_000 < second < 2_050) == (True, True)
        assert third == second + grown // 3  # it was as if nobody had counted anything
        assert fourth == second

    main()


@simulated
async def test_large_attachments_in_flight_take_no_more_than_there_is() -> None:
    async def answer(_: ModelRequest) -> Any:
        await passing(1_000)
        return [say("seen")]

    playing = ScriptedModel([answer] * 20, usage=Usage(input_tokens=3_000, output_tokens=10))
    async with agent_of(playing, budgets=[{"name": "all", "scope": "tenant", "tokens": 9_000}]) as agent:
        sessions = [session_of(agent, session_id=f"s{at}") for at in range(10)]
        sent = [each.send("read this", attachments=["x" * 9_000]) for each in sessions]
        ended = await asyncio.gather(*sent, return_exceptions=True)
        (count,) = sessions[0].host.budgets.budgets.counts.values()
        assert (count.overrun.tokens, count.spent.tokens <= 9_000) == (0, True)
        assert sum(not isinstance(each, BaseException) for each in ended) == 2


# ---- what models say of what they used ----


@simulated
async def test_a_model_that_reports_nothing_is_counted_by_its_estimates() -> None:
    playing = ScriptedModel([[say("well " * 60)]] * 50, usage=Usage())
    async with opened(playing, budgets=[{"name": "talk", "scope": "session", "tokens": 12_000}]) as session:
        await session.send("hello " * 100)
        (count,) = session.host.budgets.budgets.counts.values()
        assert 200 + 100 < count.spent.tokens < 500
        assert 5 < len(await said_until_refused(session, "hello " * 100)) < 45


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), float("-inf"), -5.0, 1e300, 10**400])
@simulated
async def test_a_cost_that_is_none_is_computed_from_the_price(cost: Any) -> None:
    usage = Usage(input_tokens=300, output_tokens=100, cost=cost)
    rule = {"name": "purse", "scope": "session", "money": 1}
    async with opened(priced("odd", 1.0, usage=usage), budgets=[rule]) as session:
        result = await session.send("hello")
        (count,) = session.host.budgets.budgets.counts.values()
        assert (count.spent.nanos, count.reserved.nanos, count.in_flight) == (400_000, 0, 0)
        assert result.cost is None


@pytest.mark.parametrize("tokens", [-1_000, 10**18, 1.5])
@simulated
async def test_a_count_that_is_none_leaves_nothing_reserved(tokens: Any) -> None:
    playing = ScriptedModel([[say("odd")]], usage=Usage(input_tokens=tokens))
    async with opened(playing, budgets=[{"name": "talk", "scope": "session", "tokens": 50_000}]) as session:
        with pytest.raises(ModelError, match="usage"):
            await session.send("hello")
        (count,) = session.host.budgets.budgets.counts.values()
        assert (count.reserved.tokens, count.in_flight) == (0, 0)
        assert 8_000 < count.spent.tokens < 9_000  # it has answered, and nobody knows what that took


# ---- sessions that are deleted ----


@pytest.mark.parametrize("way", ["inbox", "store"])
@simulated
async def test_what_was_counted_for_a_session_is_erased_with_it(way: str) -> None:
    disk = MemoryDisk()
    rules = [{"name": name, "scope": name, "tokens": 100_000} for name in ("run", "session", "tenant")]
    async with agent_of(priced("big", 1.0), budgets=rules, session_store=MemoryStore(disk)) as agent:
        session = session_of(agent, session_id="gone")
        await session.send("hello")
        await session_of(agent, session_id="stays").send("hello")
        if way == "inbox":
            await session.host.inbox.delete("gone")
            assert {key.subject for key in session.host.budgets.budgets.counts} == {"default", "default/stays"}
    if way == "store":
        store = MemoryStore(disk)
        await store.open()
        await erase_all(store, Owner("default", "default", "gone"))
        await store.close()
    counted = [read_count(row).key.subject for key, row in disk.states.items() if key.kind == COUNT]
    assert sorted(counted) == ["default", "default/stays"]


# ---- budgets of one session, and of all ----


def talk(tokens: int) -> list[dict[str, Any]]:
    return [{"name": "talk", "scope": "session", "tokens": tokens}]


@simulated
async def test_a_budget_that_a_session_brings_along_holds_for_it_alone() -> None:
    async with agent_of(ScriptedModel([[say("x")]] * 200, usage=USED), session_store=MemoryStore()) as agent:
        tight = session_of(agent, session_id="tight", budgets=talk(4_000), max_output_tokens=300)
        wide = session_of(agent, session_id="wide", budgets=talk(10_000), max_output_tokens=300)
        free = session_of(agent, session_id="free")
        said = [len(await said_until_refused(each, "x")) for each in (tight, wide, free)]
        assert said == [3, 9, 100]
        await session_of(agent, session_id="tight2", budgets=talk(2_000)).ready()
        assert len(await said_until_refused(wide, "x")) == 0
        assert wide.host.budgets.budgets.rules == {}


@simulated
async def test_what_a_session_has_spent_of_its_own_budget_is_spent_when_it_is_opened_again() -> None:
    disk = MemoryDisk()
    for limit, expected in ((4_000, 3), (4_000, 0), (6_000, 2)):
        playing = ScriptedModel([[say("x")]] * 20, usage=USED)
        async with agent_of(playing, session_store=MemoryStore(disk), max_output_tokens=300) as agent:
            session = session_of(agent, session_id="s", budgets=talk(limit))
            assert len(await said_until_refused(session, "x")) == expected
    async with agent_of(ScriptedModel([[say("x")]] * 200, usage=USED), session_store=MemoryStore(disk)) as agent:
        assert len(await said_until_refused(session_of(agent, session_id="s"), "x")) == 100


@simulated
async def test_two_agents_of_one_store_that_say_one_budget_in_two_ways_are_refused() -> None:
    store = MemoryStore()
    async with agent_of(priced("a", 1.0), session_store=store, budgets=talk(4_000)) as first:
        await session_of(first, session_id="a").ready()
        async with agent_of(priced("b", 1.0), session_store=store, budgets=talk(5_000)) as two:
            with pytest.raises(ConfigError, match="budget 'talk' is another one already"):
                await session_of(two, session_id="b").ready()
        async with agent_of(priced("b", 1.0), session_store=store, budgets=talk(4_000)) as two:
            await session_of(two, session_id="c").ready()


# ---- what a run has begun ----


def beginning(rounds: int) -> ScriptedModel:
    """A model whose runs begin a sub-agent that asks so often, and end before it."""

    async def answer(request: ModelRequest) -> Any:
        text = [each.text for each in request.conversation if isinstance(each, Prompt)][-1]
        said = sum(isinstance(each, Answer) for each in request.conversation)
        await passing(100 if text == "go" else 5_000)
        if text == "go" and isinstance(request.conversation[-1], Prompt):
            return [call("spawn", prompt="slow", description="e")]
        return [one("look", str(said))] if text == "slow" and said < rounds else [say("done")]

    return ScriptedModel([answer] * 100, usage=USED)


@simulated
async def test_what_a_run_has_begun_spends_of_its_budget_when_it_has_ended_itself() -> None:
    rule = {"name": "run", "scope": "run", "tokens": 8_000}
    playing = beginning(40)
    async with agent_of(playing, Bench(), session_store=MemoryStore(), max_output_tokens=300) as agent:
        session = session_of(agent, session_id="s", subagents=True, budgets=[rule])
        await session.send("go")
        (count,) = session.host.budgets.budgets.counts.values()
        await passing(300_000)
        assert (count.spent.tokens, session.host.budgets.budgets.counts) == (7_000, {})
        assert sum(prompts(each)[-1] == "slow" for each in playing.requests) == 5


@simulated
async def test_the_counts_of_a_run_go_with_the_last_of_what_it_has_begun() -> None:
    disk, rule = MemoryDisk(), {"name": "run", "scope": "run", "tokens": 100_000}
    options: dict[str, Any] = {"subagents": True, "session_id": "s"}
    async with agent_of(beginning(3), Bench(), session_store=MemoryStore(disk), budgets=[rule]) as agent:
        session = session_of(agent, **options)
        for _ in range(3):
            await session.send("go")
            assert len(session.host.budgets.budgets.counts) == 1
            await passing(60_000)
            await session.wait_idle()
            assert session.host.budgets.budgets.counts == {}
        await session.send("go")
    async with agent_of(beginning(3), Bench(), session_store=MemoryStore(disk), budgets=[rule]) as agent:
        session = session_of(agent, **options)
        await session.ready()
        assert len(session.host.budgets.budgets.counts) == 1
        await passing(60_000)
        assert session.host.budgets.budgets.counts == {}
    assert [key for key in disk.states if key.kind == COUNT] == []


# ---- leaving while nothing can be spent ----


@simulated
async def test_a_run_that_is_parked_leaves_at_once() -> None:
    rule = {"name": "daily", "scope": "tenant", "window": "day", "tokens": 1_500, "on_exhausted": "park"}
    playing = ScriptedModel([[say("one")], [say("two")]], usage=USED)
    async with agent_of(playing, session_store=MemoryStore(), budgets=[rule], max_output_tokens=300) as agent:
        session = session_of(agent, session_id="s")
        await session.send("hello")
        receipt = await post(session, "more")
        await passing(1_000)
        assert session.host.budgets.parked == 1
        began = now_ms()
        await session.passivate("room is needed")
        assert now_ms() - began < 1_000
        await session.ready()
        assert (await session.wait(receipt.message_id)).text == "two"  # when the window has opened


@simulated
async def test_a_run_that_waits_for_room_leaves_at_once_and_reserves_nothing() -> None:
    held = Held(say("at last"))
    playing = ScriptedModel([held, [say("two")]], usage=USED)
    rule = {"name": "all", "scope": "tenant", "tokens": 3_000}
    async with agent_of(playing, session_store=MemoryStore(), budgets=[rule], max_output_tokens=2_000) as agent:
        first, second = session_of(agent, session_id="a"), session_of(agent, session_id="b", max_output_tokens=1_500)
        run = sending(first, "hello " * 200)
        await held.asked.wait()
        receipt = await post(second, "hello " * 200)
        await passing(1_000)
        (count,) = first.host.budgets.budgets.counts.values()
        assert first.host.budgets.waiting() == {count.key: 1}
        began = now_ms()
        await second.passivate("room is needed")
        assert now_ms() - began < 1_000
        assert (count.in_flight, first.host.budgets.waiting()) == (1, {})
        held.let_go()
        await run
        await second.ready()
        assert (await second.wait(receipt.message_id)).text == "two"


@simulated
async def test_a_session_that_is_paused_while_it_is_parked_asks_nothing() -> None:
    rule = {"name": "daily", "scope": "tenant", "window": "day", "tokens": 1_500, "on_exhausted": "park"}
    playing = ScriptedModel([[say("one")], [say("two")]], usage=USED)
    async with opened(playing, budgets=[rule], max_output_tokens=300) as session:
        await session.send("hello")
        run = sending(session, "more")
        await passing(1_000)
        session.pause()
        await passing(3 * 86_400_000)
        assert len(playing.requests) == 1
        assert all(each.in_flight == 0 for each in session.host.budgets.budgets.counts.values())
        session.resume()
        assert (await run).text == "two"
