"""Budgets over HTTP: whose they are, what they say, and what operators may do to them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import ConfigError
from laneway.gateway.budget_facts import Waits, budget_facts
from laneway.gateway.problems import problem
from laneway.kernel.budgets import Count, CountKey, Grant, Wish
from laneway.spending import Amount, Budget, BudgetScope, Period, Spender
from tests.gateway_stage import GatewayStage, gateway_in, gateway_stage
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


async def test_a_start_says_which_budget_of_the_configuration_stays_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway_in(tmp_path, text=TEXT) as gateway:
        await gateway.default.host.budgets.drop_rule("daily")
    assert "stays away" not in caplog.text
    async with gateway_in(tmp_path, text=TEXT):
        assert "budget 'daily' of the configuration stays away: it was cleared" in caplog.text


async def test_a_run_waits_for_a_budget_and_says_until_when(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        all_ = await stage.token("operate", tenant="*")
        workspace = stage.gateway.default
        desk = workspace.host.budgets
        grant = await desk.reserve(Spender("default", workspace.name, "s0", "r0"), Wish(0, 900_000))
        assert isinstance(grant, Grant)
        desk.settle(grant, grant.amount)
        sent = await post(stage, "s1", "hello", headers=all_)
        await until(lambda: desk.parked)
        status = await body_of(await stage.client.get(f"/v1/messages/{sent['message_id']}", headers=all_))
        run = await body_of(await stage.client.get(f"/v1/runs/{status['run_id']}", headers=all_))
        assert run["waits_for"].startswith("budget 'daily' is used up until ")
        told = await body_of(await stage.client.get(f"/v1/runs/{status['run_id']}/explain", headers=all_))
        assert "waits: budget 'daily' is used up until" in told["text"]
        (count,) = (await budgets(stage, all_))[0]["counts"]
        (run,) = count["parked_runs"]
        assert (count["parked"], run["session_key"], run["run_id"]) == (1, "s1", status["run_id"])
        assert run["until_ms"] == count["until_ms"]
        other = await stage.token("operate", tenant="other")
        assert [each["counts"] for each in await budgets(stage, other)] == [[]]
        await workspace.passivate("default", "s1", deadline_ms=1_000)
        assert (desk.parked, (await budgets(stage, all_))[0]["counts"][0]["parked_runs"]) == (0, [run])  # at rest, too
        more = {"scope": "tenant", "window": "day", "tokens": 9_000_000, "on_exhausted": "park", "shared": True}
        await body_of(await stage.client.put("/v1/budgets/daily", json=more, headers=all_))
        final = await workspace.inbox.wait(sent["message_id"])
        assert final.outcome == "succeeded"
        (daily,) = await budgets(stage, all_)
        (count,) = daily["counts"]
        assert (daily["origin"], count["subject"], count["in_flight"]) == ("set", "default", 0)
        assert (count["parked"], count["parked_runs"]) == (0, [])
        assert count["tokens"]["spent"] > 0


async def test_a_budget_that_several_take_away_at_once_is_gone_for_all_but_one(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        mine = await stage.token("operate")
        await body_of(await stage.client.put("/v1/budgets/own", json=OWN, headers=mine))
        ends = await asyncio.gather(*(stage.client.delete("/v1/budgets/own", headers=mine) for _ in range(4)))
        assert sorted(each.status_code for each in ends) == [204, 404, 404, 404]


async def test_a_tenant_has_budgets_of_its_own(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        first, second = await stage.token("operate", tenant="a"), await stage.token("operate", tenant="b")
        made = await body_of(await stage.client.put("/v1/budgets/talk", json=OWN, headers=first))
        assert (made["shared"], made["origin"], made["tokens"]) == (False, "set", 50_000)
        assert [each["name"] for each in await budgets(stage, first)] == ["daily", "talk"]
        assert [each["name"] for each in await budgets(stage, second)] == ["daily"]
        await body_of(await stage.client.put("/v1/budgets/talk", json={**OWN, "tokens": 7}, headers=second))
        assert (await budgets(stage, first))[1]["tokens"] == 50_000
        answer = await stage.client.delete("/v1/budgets/daily?shared=false", headers=first)
        assert refusal(answer) == (404, "not_found")
        for method, path in (("DELETE", "daily?shared=true"), ("POST", "daily/reset?shared=true"), ("DELETE", "daily")):
            answer = await stage.client.request(method, f"/v1/budgets/{path}", headers=first)
            assert refusal(answer)[0] == 403
        answer = await stage.client.put("/v1/budgets/talk", json={**OWN, "shared": True}, headers=first)
        assert refusal(answer)[0] == 403
        assert (await stage.client.delete("/v1/budgets/talk", headers=first)).status_code == 204
        assert [each["name"] for each in await budgets(stage, second)] == ["daily", "talk"]


async def test_a_name_means_the_budget_of_the_tenant_and_else_that_of_all(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        all_, mine = await stage.token("operate", tenant="*"), await stage.token("operate", tenant="default")
        whole = {"scope": "tenant", "window": "day", "tokens": 5_000_000, "on_exhausted": "park"}
        answer = await stage.client.put("/v1/budgets/daily", json=whole, headers=mine)
        assert refusal(answer) == (403, "permission_denied")
        assert "budget 'daily' is one of all tenants" in answer.json()["detail"]
        assert "shared=false" in answer.json()["hint"]
        found = await body_of(await stage.client.put("/v1/budgets/daily", json=whole, headers=all_))
        assert (found["shared"], found["tokens"]) == (True, 5_000_000)
        assert len(await budgets(stage, all_)) == 1
        own = await body_of(await stage.client.put("/v1/budgets/daily", json={**whole, "shared": False}, headers=mine))
        assert own["shared"] is False
        own = await body_of(await stage.client.patch("/v1/budgets/daily", json={"tokens": 7}, headers=all_))
        assert (own["shared"], own["tokens"]) == (False, 7)
        assert (await stage.client.delete("/v1/budgets/daily", headers=all_)).status_code == 204
        assert [each["shared"] for each in await budgets(stage, all_)] == [True]
        reset = await body_of(await stage.client.post("/v1/budgets/daily/reset", headers=all_))
        assert reset["shared"] is True


async def test_a_budget_that_is_for_another_tenant_only_is_not_there(tmp_path: Path) -> None:
    text = "default_model: scripted\nbudgets:\n  theirs: {scope: tenant, tokens: 9, only: acme}\n"
    async with gateway_stage(tmp_path, text=text) as stage:
        mine = await stage.token("operate", tenant="other")
        assert refusal(await stage.client.delete("/v1/budgets/theirs", headers=mine)) == (404, "not_found")
        assert (await body_of(await stage.client.put("/v1/budgets/theirs", json=OWN, headers=mine)))["shared"] is False


async def test_a_change_changes_only_what_it_says(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        all_ = await stage.token("operate", tenant="*")
        (before,) = await budgets(stage, all_)
        found = await body_of(await stage.client.patch("/v1/budgets/daily", json={"tokens": 950_000}, headers=all_))
        assert found == {**before, "tokens": 950_000, "origin": "set"}
        found = await body_of(await stage.client.patch("/v1/budgets/daily", json={"cheaper": "scripted"}, headers=all_))
        assert (found["on_exhausted"], found["cheaper"]) == ("cheaper", "scripted")
        change = {"on_exhausted": "deny"}
        found = await body_of(await stage.client.patch("/v1/budgets/daily", json=change, headers=all_))
        assert (found["on_exhausted"], found["cheaper"]) == ("deny", None)
        for wrong in ({}, {"reason": "none"}, {"tokens": None}, {"window": None}, {"scope": "run"}, {"colour": "red"}):
            status, _ = refusal(await stage.client.patch("/v1/budgets/daily", json=wrong, headers=all_))
            assert status in (400, 422)
        answer = await stage.client.patch("/v1/budgets/none", json={"tokens": 5}, headers=all_)
        assert refusal(answer) == (404, "not_found")


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


async def test_the_audit_log_tells_a_limit_that_was_taken_away(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        mine = await stage.token("operate")
        await stage.client.put("/v1/budgets/talk", json=OWN, headers=mine)
        await stage.client.patch("/v1/budgets/talk", json={"tokens": 7, "money": None}, headers=mine)
        found = await body_of(await stage.client.get("/v1/audit?order=newest", headers=mine))
        facts = found["items"][0]["facts"]
        assert (facts["tokens"], facts["money"], facts["workspace"]) == (7, None, "default")
        assert "scope" not in facts


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


async def test_the_scripted_model_costs_what_the_configuration_says(tmp_path: Path) -> None:
    text = (
        "default_model: scripted\n"
        "providers: {scripted: {models: {scripted: {input_price: 1000, output_price: 2000}}}}\n"
        "budgets:\n  purse: {scope: tenant, money: 500}\n"
    )
    async with gateway_stage(tmp_path, text=text) as stage:
        mine = await stage.token("operate")
        await stage.send("s1", "hello", headers=mine)
        (purse,) = await budgets(stage, mine)
        (count,) = purse["counts"]
        assert count["money"]["spent"] > 0


async def test_a_cheaper_scripted_model_answers_and_costs_what_the_configuration_says(tmp_path: Path) -> None:
    text = (
        "default_model: scripted\n"
        "providers: {scripted: {models: {scripted: {input_price: 1000, output_price: 2000},"
        " small: {input_price: 0.1, output_price: 0.2}}}}\n"
        "budgets:\n  purse: {scope: tenant, money: 0.1, on_exhausted: cheaper, cheaper: scripted/small}\n"
    )
    async with gateway_stage(tmp_path, text=text) as stage:
        mine = await stage.token("operate", tenant="*")
        await stage.send("s1", "hello " * 300, headers=mine)
        (used,) = (await body_of(await stage.client.get("/v1/usage?group=model", headers=mine)))["items"]
        assert (used["key"], 0 < used["cost"] < 0.01) == ("scripted/small", True)
        (purse,) = await budgets(stage, mine)
        assert purse["cheaper"] == "scripted/small"
        assert purse["counts"][0]["money"]["spent"] == pytest.approx(used["cost"])
        made = {"scope": "tenant", "money": 5, "cheaper": "nobody/knows", "on_exhausted": "cheaper"}
        assert refusal(await stage.client.put("/v1/budgets/odd", json=made, headers=mine))[0] in (400, 422)


def test_facts_of_a_budget_name_no_tenant_and_show_the_fullest_counts() -> None:
    rule = Budget(name="talk", scope=BudgetScope.SESSION, tokens=100, tenant="acme")
    counts = [
        Count(CountKey(rule.key, f"acme/s{at}", 0), rule, Period(), spent=Amount(at), reserved=Amount(1))
        for at in range(150)
    ]
    found = budget_facts(rule, counts, workspace="default", origin="set", waits=Waits({counts[149].key: 2}, ()))
    assert (len(found["counts"]), found["left_out"]) == (100, 50)
    first = found["counts"][0]
    assert (first["subject"], first["share"], first["waiting"], first["tokens"]["reserved"]) == ("s149", 1.49, 2, 1)
    assert first["whose"] == "session s149"


def test_facts_of_sessions_without_a_principal_say_whose_they_are() -> None:
    rule = Budget(name="people", scope=BudgetScope.PRINCIPAL, tokens=100)
    counts = [Count(CountKey("people", f"acme/{each}", 0), rule, Period()) for each in ("user:42", "")]
    found = budget_facts(rule, counts, workspace="default", origin="config")["counts"]
    assert [(each["subject"], each["whose"]) for each in found] == [
        ("user:42", "principal user:42"),
        ("", "sessions without a principal"),
    ]


async def test_changes_of_several_at_once_are_all_made(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        mine = await stage.token("operate")
        for _ in range(5):
            await body_of(await stage.client.put("/v1/budgets/own", json=OWN, headers=mine))
            changes: list[dict[str, Any]] = [{"tokens": 777}, {"warn_at": 0.5}, {"money": 7, "unpriced": "allow"}]
            await asyncio.gather(*(stage.client.patch("/v1/budgets/own", json=each, headers=mine) for each in changes))
            own = (await budgets(stage, mine))[1]
            assert (own["tokens"], own["warn_at"], own["money"], own["unpriced"]) == (777, 0.5, 7, "allow")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e400", "-Infinity"])
@pytest.mark.parametrize("field", ["money", "warn_at"])
async def test_a_number_that_is_none_is_refused(tmp_path: Path, field: str, number: str) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        mine = {**await stage.token("operate"), "Content-Type": "application/json"}
        await body_of(await stage.client.put("/v1/budgets/own", json=OWN, headers=mine))
        order = f'{{"scope": "tenant", "tokens": 5, "{field}": {number}}}'
        for method in ("PUT", "PATCH"):
            answer = await stage.client.request(method, "/v1/budgets/own", content=order, headers=mine)
            assert (answer.status_code, field in answer.json()["detail"]) == (422, True)


def test_a_problem_with_a_number_that_is_none_is_told() -> None:
    assert b'"value": "nan"' in problem(400, "config", "no", value=float("nan")).body


async def test_a_budget_for_one_tenant_is_listed_to_who_may_see_all(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        all_, other = await stage.token("operate", tenant="*"), await stage.token("operate", tenant="b")
        order = {"scope": "tenant", "tokens": 5, "only": "a", "shared": True}
        await body_of(await stage.client.put("/v1/budgets/one", json=order, headers=all_))
        assert [each["name"] for each in await budgets(stage, all_)] == ["daily", "one"]
        assert [each["name"] for each in await budgets(stage, other)] == ["daily"]
        order = {"scope": "tenant", "tokens": 5, "only": "a", "shared": False}
        answer = await stage.client.put("/v1/budgets/mine", json=order, headers=other)
        assert answer.status_code in (400, 422)
        assert "is of tenant 'b', and for 'a' only" in answer.json()["detail"]
