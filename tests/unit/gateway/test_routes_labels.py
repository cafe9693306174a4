"""The labels of sessions on a server: operators say them, they hold at once, and budgets count by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laneway.kernel.budgets import Grant, Wish
from laneway.spending import Spender
from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.gateway_stage import GatewayStage, gateway_stage
from tests.routes_stage import body_of, post, refusal, until

TEXT = """
default_model: scripted
budgets:
  people: {scope: principal, window: day, tokens: 900000, on_exhausted: park}
"""
NAMED = """
default_model: scripted
identity: {principal: "service:desk"}
"""


async def label(stage: GatewayStage, headers: dict[str, str], key: str, **body: Any) -> dict[str, str]:
    found = await body_of(await stage.client.put(f"/v1/sessions/{key}/labels", json=body, headers=headers))
    labels: dict[str, str] = found["identity"]
    return labels


async def test_a_session_is_labelled_before_its_first_message_and_its_budget_counts_by_that(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        mine = await stage.token("operate")
        assert await label(stage, mine, "s1", principal="user:42") == {"principal": "user:42"}
        await stage.send("s1", "hello", headers=mine)
        await stage.send("s2", "hello", headers=mine)
        (people,) = (await body_of(await stage.client.get("/v1/budgets", headers=mine)))["items"]
        assert {each["whose"] for each in people["counts"]} == {"principal user:42", "sessions without a principal"}


async def test_a_session_that_has_only_labels_is_shown_with_them(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        mine = await stage.token("operate")
        assert (await stage.client.get("/v1/sessions/newone", headers=mine)).status_code == 404
        await label(stage, mine, "newone", principal="user:42")
        shown = await body_of(await stage.client.get("/v1/sessions/newone", headers=mine))
        assert (shown["state"], shown["identity"]) == ("idle", {"principal": "user:42"})
        for path in ("pending", "history"):
            assert (await body_of(await stage.client.get(f"/v1/sessions/newone/{path}", headers=mine)))["items"] == []


async def test_labels_hold_at_once_in_an_open_session_and_null_clears_one(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        mine = await stage.token("operate")
        await stage.send("s1", "hello", headers=mine)
        session = stage.gateway.default.live_session("default", "s1")
        assert session is not None
        await label(stage, mine, "s1", principal="user:42", correlation_id="req-1", reason="he asked")
        assert session.principal() == "user:42"
        assert session.hooks.labels == {"principal": "user:42", "correlation_id": "req-1"}
        assert await label(stage, mine, "s1", principal=None) == {"correlation_id": "req-1"}
        assert (session.principal(), session.hooks.labels) == (None, {"correlation_id": "req-1"})
        shown = await body_of(await stage.client.get("/v1/sessions/s1", headers=mine))
        assert shown["identity"] == {"correlation_id": "req-1"}
        log = (await body_of(await stage.client.get("/v1/audit", headers=mine)))["items"]
        assert ("session.label", "s1", "he asked") in [(each["action"], each["target"], each["reason"]) for each in log]


async def test_what_an_operator_says_counts_more_than_the_configuration_after_a_restart_too(tmp_path: Path) -> None:
    disk = MemoryDisk()
    for first in (True, False):
        async with gateway_stage(tmp_path, text=NAMED, store=MemoryStore(disk)) as stage:
            mine = await stage.token("operate")
            if first:
                assert await label(stage, mine, "s1", principal="user:42") == {"principal": "user:42"}
            await stage.send("s1", "hello", headers=mine)
            session = stage.gateway.default.live_session("default", "s1")
            assert session is not None
            assert session.principal() == "user:42"
            if not first:
                assert await label(stage, mine, "s1", principal=None) == {"principal": "service:desk"}


async def test_a_parked_run_goes_on_when_another_budget_pays_for_it(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        mine = await stage.token("operate")
        workspace = stage.gateway.default
        desk = workspace.host.budgets
        grant = await desk.reserve(Spender("default", workspace.name, "s0", "r0"), Wish(0, 900_000))
        assert isinstance(grant, Grant)
        desk.settle(grant, grant.amount)
        sent = await post(stage, "s1", "hello", headers=mine)
        await until(lambda: desk.parked)
        await label(stage, mine, "s1", principal="user:42")
        assert (await workspace.inbox.wait(sent["message_id"])).outcome == "succeeded"


async def test_whoever_only_talks_does_not_choose_whose_budget_pays(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        chat = await stage.token("chat")
        answer = await stage.client.put("/v1/sessions/s1/labels", json={"principal": "user:1"}, headers=chat)
        assert refusal(answer)[0] == 403


@pytest.mark.parametrize(
    "wrong",
    [{}, {"principal": ""}, {"principal": 5}, {"principal": "x" * 401}, {"principal": "a\nb"}, {"tenant_id": "acme"}],
)
async def test_labels_that_cannot_be_are_refused_and_nothing_is_changed(tmp_path: Path, wrong: dict[str, Any]) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        mine = await stage.token("operate")
        status, _ = refusal(await stage.client.put("/v1/sessions/s1/labels", json=wrong, headers=mine))
        assert status in (400, 422)
        assert "session.label" not in (await stage.client.get("/v1/audit", headers=mine)).text


async def test_a_sub_agent_has_the_labels_of_its_session(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=TEXT) as stage:
        mine = await stage.token("operate")
        answer = await stage.client.put("/v1/sessions/s1~aaaaaaaaaaaa/labels", json={"principal": "x"}, headers=mine)
        assert refusal(answer)[0] in (400, 422)


async def test_a_session_that_only_has_labels_is_deleted_with_them_and_can_have_others(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        mine = await stage.token("operate")
        await label(stage, mine, "s1", principal="user:42", correlation_id="req-1")
        gone = await body_of(await stage.client.delete("/v1/sessions/s1", headers=mine))
        assert gone == {"session_key": "s1", "rows": 1}
        assert refusal(await stage.client.delete("/v1/sessions/s1", headers=mine)) == (404, "not_found")
        assert await label(stage, mine, "s1", correlation_id="req-2") == {"correlation_id": "req-2"}
        await stage.send("s1", "hello", headers=mine)
        shown = await body_of(await stage.client.get("/v1/sessions/s1", headers=mine))
        assert shown["identity"] == {"correlation_id": "req-2"}


# ---- sessions are looked for by their labels ----


async def found_by(stage: GatewayStage, headers: dict[str, str], *labels: str, **query: Any) -> list[str]:
    page = await body_of(
        await stage.client.get("/v1/sessions", params={"label": list(labels), **query}, headers=headers)
    )
    return [each["session_key"] for each in page["items"]]


async def people(stage: GatewayStage, headers: dict[str, str]) -> None:
    for key, who, what in (("a", "user:42", "req-1"), ("b", "user:7", "req-1"), ("c", "user:42", "req-2")):
        await label(stage, headers, key, principal=who, correlation_id=what)
        await stage.send(key, "hello", headers=headers)
    await stage.send("d", "hello", headers=headers)


@pytest.mark.parametrize("in_memory", [True, False])
async def test_sessions_are_looked_for_by_label(tmp_path: Path, in_memory: bool) -> None:
    async with gateway_stage(tmp_path) as stage:
        mine = await stage.token("operate")
        await people(stage, mine)
        for key in () if in_memory else "abcd":
            await stage.gateway.default.passivate("default", key)
        assert await found_by(stage, mine, "principal=user:42") == ["a", "c"]
        assert await found_by(stage, mine, "principal=user:42", order="recent") == ["c", "a"]
        assert await found_by(stage, mine, "principal=user:42", "correlation_id=req-1") == ["a"]
        assert await found_by(stage, mine, "principal=user:42", q="C", order="recent") == ["c"]
        assert await found_by(stage, mine, "principal=user:4") == []
        assert await found_by(stage, mine, "principal=user:42", active=True) == []
        await label(stage, mine, "a", principal="user:7")
        assert await found_by(stage, mine, "principal=user:7") == ["a", "b"]


async def test_a_search_by_label_goes_on_page_by_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laneway.gateway.labels.SCANNED_MAX", 1)
    monkeypatch.setattr("laneway.gateway.routes.sessions.SCANNED_MAX", 1)
    monkeypatch.setattr("laneway.gateway.routes.sessions.SCAN", 1)
    async with gateway_stage(tmp_path) as stage:
        mine = await stage.token("operate")
        await people(stage, mine)
        for order, expected in (("key", ["a", "c"]), ("recent", ["c", "a"])):
            found: list[str] = []
            cursor: str | None = ""
            pages = 0
            while cursor is not None and pages < 9:
                query = {"label": "principal=user:42", "order": order, "after": cursor}
                page = await body_of(await stage.client.get("/v1/sessions", params=query, headers=mine))
                found += [each["session_key"] for each in page["items"]]
                cursor, pages = page["next"], pages + 1
            assert (found, cursor) == (expected, None)
            assert pages >= 4


async def test_a_search_by_label_finds_nothing_of_another_tenant(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        mine, other = await stage.token("operate"), await stage.token("operate", tenant="other")
        await people(stage, mine)
        await label(stage, other, "theirs", principal="user:42")
        await stage.send("theirs", "hello", headers=other)
        for order in ("key", "recent"):
            assert await found_by(stage, other, "principal=user:42", order=order) == ["theirs"]
            assert "theirs" not in await found_by(stage, mine, "principal=user:42", order=order)


@pytest.mark.parametrize("wrong", ["user:42", "principal", "colour=red", "principal=", "principal=a\nb", "=", ""])
async def test_a_label_that_no_session_can_have_is_refused(tmp_path: Path, wrong: str) -> None:
    async with gateway_stage(tmp_path) as stage:
        answer = await stage.client.get("/v1/sessions", params={"label": wrong})
        assert answer.status_code in (400, 422)
        assert "principal" in answer.text
