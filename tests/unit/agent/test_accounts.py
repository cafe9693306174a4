"""The quota of a provider's account: whoever hears that it is used up closes it for every run of the process."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.errors import ModelLimitedError
from laneway.models import ScriptedModel, fail, say
from laneway.models.providers import open_model
from laneway.models.settings import Prices, ProviderSettings
from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.agent_stage import agent_of, sending, session_of
from tests.stage import now_ms, passing, simulated


class Metered(ScriptedModel):
    """A model whose calls are on somebody's account."""

    def __init__(self, script: list[Any], *, name: str, account: str, prices: Prices | None = None) -> None:
        super().__init__(script, prices=prices)
        self._called = name
        self.account = account

    @property
    def name(self) -> str:
        """What it is called."""
        return self._called


LIMITED = [fail(ModelLimitedError("slow down", model="a", retry_after_ms=5_000))]


@simulated
async def test_one_account_waits_as_a_whole_whatever_the_model_the_agent_and_the_store() -> None:
    first = Metered([LIMITED, [say("one")]], name="acme/big", account="acme")
    second = Metered([[say("two")]], name="acme/small", account="acme")
    other = Metered([[say("three")]], name="else/small", account="else")
    stored = MemoryStore(MemoryDisk())
    async with (
        agent_of(first) as one,
        agent_of(second, session_store=stored) as two,
        agent_of(other, session_store=stored) as three,
    ):
        waiting = session_of(two, session_id="two")
        await waiting.ready()
        tasks = [sending(session_of(one), "go")]
        await passing(10)
        tasks.append(sending(waiting, "go"))
        await passing(10)
        assert second.requests == []
        assert "is closed for" in waiting.explain()
        assert "slow down" in waiting.explain()
        assert (await session_of(three, session_id="three").send("go")).text == "three"
        assert now_ms() < 1_000
        assert [(await task).text for task in tasks] == ["one", "two"]
        assert now_ms() >= 5_000


@simulated
async def test_a_session_that_comes_later_hears_that_the_account_is_closed() -> None:
    first = Metered([LIMITED, [say("one")]], name="acme/big", account="acme")
    second = Metered([[say("two")]], name="acme/small", account="acme")
    async with agent_of(first) as one, agent_of(second, session_store=MemoryStore(MemoryDisk())) as two:
        task = sending(session_of(one), "go")
        await passing(10)
        assert (await session_of(two, session_id="two").send("go")).text == "two"
        assert now_ms() >= 5_000
        await task


def test_models_of_one_key_and_address_share_an_account_and_the_key_shows_nowhere() -> None:
    keys = {name: ProviderSettings(api_key=f"secret-{name}", base_url="http://127.0.0.1:9") for name in ("a", "b")}
    accounts = {name: open_model(name, providers=keys).account for name in ("a/x", "a/y", "b/x")}
    assert accounts["a/x"] == accounts["a/y"] != accounts["b/x"]
    assert "secret" not in "".join(accounts.values())


@simulated
async def test_a_limit_of_the_cheaper_model_closes_its_own_account_and_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    odd = [fail(ModelLimitedError("slow down", model="b", retry_after_ms=10**12))]
    big = Metered([[say("big")]] * 3, name="acme/big", account="acme", prices=Prices(input=10, output=10))
    small = Metered([LIMITED, odd, [say("small")]], name="else/small", account="else", prices=Prices(input=1, output=1))
    rule = {"name": "b", "scope": "principal", "money": 0.05, "on_exhausted": "cheaper", "cheaper": "else/small"}
    heard: list[str] = []

    async def note(event: Any) -> None:
        heard.append(event["payload"]["model_provider"])

    async with agent_of(big, budgets=[rule], max_output_tokens=1_000) as agent:
        agent._models["else/small"] = small  # noqa: SLF001 - as if a provider had it
        poor, rich = (session_of(agent, session_id=name, principal=name) for name in ("poor", "rich"))
        poor.register_hook("note", "on_rate_limit", handler=note)
        run = sending(poor, "x" * 15_000)
        await passing(500)
        assert (await rich.send("hello")).text == "big"
        assert now_ms() < 1_000
        assert "slow down" in poor.explain()
        assert (await run).text == "small"
    assert "model 'else/small' says to wait" in caplog.text
    assert heard == ["else", "else"]
