"""Budgets over HTTP: whose they are, what they say, and what operators may do to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laneway.errors import ConfigError
from laneway.gateway.budget_facts import budget_facts
from laneway.kernel.budgets import Count, CountKey
from laneway.spending import Amount, Budget, BudgetScope, Period
from tests.gateway_stage import GatewayStage, gateway_stage
from tests.routes_stage import body_of, post, refusal, until

TEXT = """
default_model: scripted
budgets:
  daily: {scope: tenant, window: day, tokens: 900000, on_exhausted: park}
"""
OWN = {"scope": "session", "tokens": 50_000}


async def budgets(stage: GatewayStage, headers: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await body_of(await stage.client.get("/v1/budgets", headers=headers)))["items"]
    return found


async def test_what_the_configuration_says_is_there_from_the_start(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        mine = await stage.token("operate")
        (daily,) = await budgets(stage, mine)
        assert (daily["name"], daily["origin"], daily["shared"], daily["counts"]) == ("daily", "config", True, [])
        assert (daily["tokens"], daily["window"], daily["on_exhausted"]) == (900_000, "day", "park")


async def test_a_run_waits_for_a_budget_and_says_until_when(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=TEXT.replace("900000", "9")) as stage:
        all_ = await stage.token("operate", tenant="*")
        sent = await post(stage, "s1", "hello", headers=all_)
        workspace = stage.gateway.default
        await until(lambda: stage.gateway.default.host.budgets.parked)
        status = await body_of(await stage.client.get(f"/v1/messages/{sent['message_id']}", headers=all_))
        run = await body_of(await stage.client.get(f"/v1/runs/{status['run_id']}", headers=all_))
        assert run["waits_for"].startswith("budget 'daily' is used up until ")
        told = await body_of(await stage.client.get(f"/v1/runs/{status['run_id']}/explain", headers=all_))
        assert "waits: budget 'daily' is used up until" in told["text"]
        more = {"scope": "tenant", "window": "day", "tokens": 90_000, "on_exhausted": "park", "shared": True}
        await body_of(await stage.client.put("/v1/budgets/daily", json=more, headers=all_))
        final = await workspace.inbox.wait(sent["message_id"])
        assert final.outcome == "succeeded"
        (daily,) = await budgets(stage, all_)
        (count,) = daily["counts"]
        assert (daily["origin"], count["subject"], count["in_flight"]) == ("set", "default", 0)
        assert count["tokens"]["spent"] > 0


async def test_a_tenant_has_budgets_of_its_own(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        first, second = await stage.token("operate", tenant="a"), await stage.token("operate", tenant="b")
        made = await body_of(await stage.client.put("/v1/budgets/talk", json=OWN, headers=first))
        assert (made["shared"], made["origin"], made["tokens"]) == (False, "set", 50_000)
        assert [each["name"] for each in await budgets(stage, first)] == ["daily", "talk"]
        assert [each["name"] for each in await budgets(stage, second)] == ["daily"]
        await body_of(await stage.client.put("/v1/budgets/talk", json={**OWN, "tokens": 7}, headers=second))
        assert (await budgets(stage, first))[1]["tokens"] == 50_000
        assert refusal(await stage.client.delete("/v1/budgets/daily", headers=first)) == (404, "not_found")
        for method, path in (("DELETE", "daily?shared=true"), ("POST", "daily/reset?shared=true")):
            answer = await stage.client.request(method, f"/v1/budgets/{path}", headers=first)
            assert refusal(answer)[0] == 403
        answer = await stage.client.put("/v1/budgets/talk", json={**OWN, "shared": True}, headers=first)
        assert refusal(answer)[0] == 403
        assert (await stage.client.delete("/v1/budgets/talk", headers=first)).status_code == 204
        assert [each["name"] for each in await budgets(stage, second)] == ["daily", "talk"]


async def test_what_operators_do_is_in_the_audit_log(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        mine = await stage.token("operate")
        await stage.client.put("/v1/budgets/talk", json={**OWN, "reason": "too much"}, headers=mine)
        await stage.send("s1", "hello", headers=mine)
        (_, talk) = await budgets(stage, mine)
        assert talk["counts"][0]["subject"] == "s1"
        reset = await body_of(await stage.client.post("/v1/budgets/talk/reset", headers=mine))
        assert reset["counts"][0]["tokens"]["spent"] == 0
        await stage.client.delete("/v1/budgets/talk", headers=mine)
        found = await body_of(await stage.client.get("/v1/audit", headers=mine))
        actions = {each["action"]: each for each in found["items"]}
        assert {"budget.set", "budget.reset", "budget.clear"} <= set(actions)
        assert (actions["budget.set"]["reason"], actions["budget.set"]["target"]) == ("too much", "talk")


@pytest.mark.parametrize(
    "wrong",
    [
        {"scope": "house", "tokens": 5},
        {"scope": "session"},
        {"scope": "session", "tokens": 0},
        {"scope": "session", "tokens": 1.5},
        {"scope": "session", "tokens": True},
        {"scope": "session", "money": -1},
        {"scope": "session", "money": 1},  # nobody knows the price of the model
        {"scope": "session", "tokens": 5, "on_exhausted": "park"},
        {"scope": "run", "tokens": 5, "window": "day"},
        {"scope": "tenant", "tokens": 5, "window": "day", "timezone": "Mars"},
        {"scope": "tenant", "tokens": 5, "on_exhausted": "cheaper"},
        {"scope": "tenant", "tokens": 5, "on_exhausted": "cheaper", "cheaper": "nobody/nothing"},
        {"scope": "tenant", "tokens": 5, "warn_at": 0},
        {"scope": "tenant", "tokens": 5, "colour": "red"},
    ],
)
async def test_what_cannot_be_is_refused_and_nothing_is_changed(tmp_path: Path, wrong: dict[str, Any]) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        mine = await stage.token("operate")
        status, _ = refusal(await stage.client.put("/v1/budgets/odd", json=wrong, headers=mine))
        assert status in (400, 422)
        assert len(await budgets(stage, mine)) == 1
        assert "budget.set" not in (await stage.client.get("/v1/audit", headers=mine)).text


async def test_a_server_does_not_start_with_money_for_a_model_without_a_price(tmp_path: Path) -> None:
    text = "default_model: scripted\nbudgets:\n  purse: {scope: tenant, money: 5}\n"
    with pytest.raises(ConfigError, match="what model 'scripted' costs is not known"):
        async with gateway_stage(tmp_path, text=text):
            raise AssertionError("it has started")


def test_facts_of_a_budget_name_no_tenant_and_show_the_fullest_counts() -> None:
    rule = Budget(name="talk", scope=BudgetScope.SESSION, tokens=100, tenant="acme")
    counts = [
        Count(CountKey(rule.key, f"acme/s{at}", 0), rule, Period(), spent=Amount(at), reserved=Amount(1))
        for at in range(150)
    ]
    found = budget_facts(rule, counts, workspace="default", origin="set", waiting={counts[149].key: 2})
    assert (len(found["counts"]), found["left_out"]) == (100, 50)
    first = found["counts"][0]
    assert (first["subject"], first["share"], first["waiting"], first["tokens"]["reserved"]) == ("s149", 1.49, 2, 1)
