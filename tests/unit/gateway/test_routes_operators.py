"""The routes for operators: the ledger, lanes, limits, external tasks."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import ModelLimitedError
from laneway.kernel.ledger import LedgerState
from laneway.models import call, fail, say
from laneway.records import LaneConfig, RateLimit
from laneway.rows import Owner
from laneway.stores.memory import MemoryStore
from tests.agent_stage import Held
from tests.gateway_stage import SIMPLE, GatewayStage, gateway_stage
from tests.routes_stage import EXTERNAL, LANED, UNKNOWN, body_of, busy, entry_in, post, refusal, until

MINE = Owner("default", "default", "s1")


# ---- the ledger ----


async def test_the_ledger_is_listed_for_a_session_for_the_tenant_and_by_state(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send("s1", "hello")
        lost = await entry_in(stage, MINE, "a", LedgerState.UNKNOWN)
        done = await entry_in(stage, MINE._replace(session="s2"), "b", LedgerState.DONE)
        every = await body_of(await stage.client.get("/v1/ledger"))
        assert [each["entry_id"] for each in every["items"]] == [lost, done]
        unknown = await body_of(await stage.client.get("/v1/ledger", params={"state": "unknown"}))
        assert [each["arguments"] for each in unknown["items"]] == [{"command": "deploy"}]
        here = await body_of(await stage.client.get("/v1/ledger", params={"session": "s1"}))
        assert [each["entry_id"] for each in here["items"]] == [lost]
        one = await body_of(await stage.client.get("/v1/ledger", params={"limit": 1}))
        rest = await body_of(await stage.client.get("/v1/ledger", params={"after": one["next"]}))
        assert [each["entry_id"] for each in rest["items"]] == [done]
        assert refusal(await stage.client.get("/v1/ledger", params={"session": UNKNOWN})) == (404, "not_found")
        assert refusal(await stage.client.get("/v1/ledger", params={"state": "odd"})) == (422, "invalid_request")


@pytest.mark.parametrize("key", ["s1", "s1~0123456789ab"])
async def test_an_unknown_call_is_settled_once_and_it_is_known_by_whom(tmp_path: Path, key: str) -> None:
    async with gateway_stage(tmp_path) as stage:
        entry = await entry_in(stage, MINE._replace(session=key), "a", LedgerState.UNKNOWN)
        operator = await stage.token("operate", name="ada")
        path, said = f"/v1/ledger/{entry}/settle", {"reason": "it arrived"}
        settled = await body_of(await stage.client.post(path, json=said, headers=operator))
        assert (settled["state"], settled["reason"], settled["actor"]) == ("settled", "it arrived", "ada")
        shown = await body_of(await stage.client.get(f"/v1/ledger/{entry}", headers=operator))
        assert shown["state"] == "settled"
        assert refusal(await stage.client.post(path, json=said, headers=operator)) == (409, "conflict")
        actions = await stage.gateway.audit.entries("default")
        assert [(each.actor, each.action, each.target) for each in actions] == [("ada", "ledger.settle", entry)]


@pytest.mark.parametrize("key", ["s1", "s1~0123456789ab"])
async def test_of_two_who_settle_a_call_at_once_one_is_refused_and_the_session_hears_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    async with gateway_stage(tmp_path) as stage:
        entry = await entry_in(stage, MINE._replace(session=key), "a", LedgerState.UNKNOWN)
        path, operator, write = f"/v1/ledger/{entry}/settle", stage.operator(), stage.gateway.audit.record

        async def slow(*given: Any, **facts: Any) -> None:
            await write(*given, **facts)
            for _ in range(20):
                await asyncio.sleep(0)  # the other one comes meanwhile

        async def said(*, happened: bool) -> tuple[int, Any]:
            body = {"reason": "I have looked", "happened": happened, "go_on": True}
            answer = await stage.client.post(path, json=body, headers=operator)
            return answer.status_code, answer.json()

        monkeypatch.setattr(stage.gateway.audit, "record", slow)
        answers = sorted(await asyncio.gather(said(happened=True), said(happened=False)), key=lambda each: each[0])
        assert [status for status, _ in answers] == [200, 409]
        settled = answers[0][1]
        shown = await body_of(await stage.client.get(f"/v1/ledger/{entry}", headers=operator))
        assert shown["happened"] is settled["happened"]
        told = await body_of(await stage.client.get(f"/v1/messages/{settled['message_id']}"))
        assert ("do not make it again" in told["text"]) is settled["happened"]


async def test_nobody_else_settles_a_call(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        entry = await entry_in(stage, MINE, "a", LedgerState.UNKNOWN)
        said = {"reason": "it arrived"}
        assert refusal(await stage.client.post(f"/v1/ledger/{entry}/settle", json=said))[0] == 401
        other = await stage.token("operate", tenant="other")
        chat, mine = await stage.token("chat"), await stage.token("operate")
        assert refusal(await stage.client.post(f"/v1/ledger/{entry}/settle", json=said, headers=chat))[0] == 403
        theirs = await stage.client.post(f"/v1/ledger/{entry}/settle", json=said, headers=other)
        unknown = await stage.client.post(f"/v1/ledger/{UNKNOWN}/settle", json=said, headers=other)
        assert theirs.text.replace(entry, UNKNOWN) == unknown.text
        assert refusal(unknown) == (404, "not_found")
        assert (await body_of(await stage.client.get("/v1/ledger", headers=other)))["items"] == []
        silent = await stage.client.post(f"/v1/ledger/{entry}/settle", json={"reason": ""}, headers=mine)
        assert refusal(silent) == (422, "invalid_request")
        assert (await body_of(await stage.client.get(f"/v1/ledger/{entry}", headers=mine)))["state"] == "unknown"


# ---- lanes ----


async def lane_of(stage: GatewayStage, name: str) -> dict[str, Any]:
    """A lane as it is listed."""
    found = await body_of(await stage.client.get("/v1/lanes", headers=stage.operator()))
    (lane,) = [each for each in found["items"] if each["name"] == name]
    return dict(lane)


async def test_lanes_show_what_runs_and_waits_and_are_changed(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, _, _first):
        assert (await lane_of(stage, "main"))["running"] == 1
        said = {"concurrency": 7, "paused": True, "reason": "maintenance"}
        changed = await body_of(await stage.client.patch("/v1/lanes/main", json=said, headers=stage.operator()))
        assert (changed["concurrency"], changed["paused"]) == (7, True)
        opened = await stage.client.patch("/v1/lanes/main", json={"paused": False}, headers=stage.operator())
        assert (await body_of(opened))["paused"] is False
        entries = await stage.gateway.audit.entries("default")
        assert [(each.action, each.target, each.reason) for each in entries] == [
            ("lane.change", "main", "maintenance"),
            ("lane.change", "main", ""),
        ]
        assert entries[0].facts["concurrency"] == 7


async def test_the_bare_name_of_a_tool_lane_is_that_lane_of_every_session_now_and_later(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=LANED) as stage:
        await stage.send("s1", "hello")
        said = {"concurrency": 9, "mode": "external", "timeout_ms": 1_234}
        answer = await stage.client.patch("/v1/lanes/query", json=said, headers=stage.operator())
        assert (await body_of(answer))["concurrency"] == 9
        await stage.client.patch("/v1/lanes/execute", json={"paused": True}, headers=stage.operator())
        await stage.send("s2", "hello")
        for key in ("s1", "s2"):
            shown = (await body_of(await stage.client.get(f"/v1/sessions/{key}")))["lanes"]
            query = next(each for each in shown if each["name"] == "query")
            assert (query["concurrency"], query["mode"]) == (9, "external")
            session = stage.gateway.default.live_session("default", key)
            assert session is not None
            assert session.lanes is not None
            assert session.lanes.handler_of("query").timeout_ms == 1_234
            assert (await lane_of(stage, f"s:{key}/execute"))["paused"] is True
            assert (await lane_of(stage, f"s:{key}/query"))["paused"] is False


async def test_a_lane_of_one_session_is_changed_alone(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=LANED) as stage:
        for key in ("s1", "s2"):
            await stage.send(key, "hello")
        said = {"concurrency": 5, "mode": "hybrid"}
        await body_of(await stage.client.patch("/v1/lanes/s:s1/query", json=said, headers=stage.operator()))
        shown = [(await body_of(await stage.client.get(f"/v1/sessions/{key}")))["lanes"][1] for key in ("s1", "s2")]
        assert [(each["concurrency"], each["mode"]) for each in shown] == [(5, "hybrid"), (2, "internal")]


async def test_lanes_that_are_not_there_or_have_no_mode_are_refused(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        operator = stage.operator()
        unknown = await stage.client.patch(f"/v1/lanes/{UNKNOWN}", json={"paused": True}, headers=operator)
        assert refusal(unknown) == (404, "unknown_lane")
        no_mode = await stage.client.patch("/v1/lanes/main", json={"mode": "external"}, headers=operator)
        assert refusal(no_mode) == (409, "conflict")
        no_queue = await stage.client.patch("/v1/lanes/query", json={"mode": "external"}, headers=operator)
        assert refusal(no_queue) == (409, "conflict")
        assert await stage.gateway.audit.entries("default") == []


@pytest.mark.parametrize(
    "body", [{}, {"reason": "x"}, {"concurrency": 0}, {"mode": "odd"}, {"width": 1}, {"paused": 3}]
)
async def test_a_change_of_a_lane_that_says_nothing_is_refused(tmp_path: Path, body: dict[str, Any]) -> None:
    async with gateway_stage(tmp_path) as stage:
        answer = await stage.client.patch("/v1/lanes/main", json=body, headers=stage.operator())
        assert refusal(answer) == (422, "invalid_request")


@pytest.mark.parametrize("path", ["/v1/lanes", "/v1/limits", "/v1/config", "/v1/tenants"])
async def test_what_all_tenants_share_is_shown_to_those_who_may_see_it(tmp_path: Path, path: str) -> None:
    async with gateway_stage(tmp_path) as stage:
        assert (await stage.client.get(path)).status_code == 200  # this machine, while there is no token
        chat = await stage.token("chat")
        one = await stage.token("operate", tenant="acme")
        every = await stage.token("operate", tenant="*")
        answers = [await stage.client.get(path, headers=each) for each in (chat, one, every)]
        assert [each.status_code for each in answers] == [403, 403, 200]


async def test_an_operator_of_one_tenant_changes_nothing_that_others_use(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        one = await stage.token("operate", tenant="acme")
        answers = [
            await stage.client.patch("/v1/lanes/main", json={"paused": True}, headers=one),
            await stage.client.post("/v1/limits/main/close", headers=one),
            await stage.client.post("/v1/limits/main/open", headers=one),
        ]
        assert [refusal(each)[0] for each in answers] == [403] * 3
        assert (await lane_of(stage, "main"))["paused"] is False


async def test_tenants_with_something_to_do_are_listed_for_an_operator_of_all(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, _, _):
        every = await stage.token("operate", tenant="*")
        await post(stage, "s1", "more", headers=every)
        acme = await stage.token("chat", tenant="acme")
        await post(stage, "s", "x", headers=acme)
        found = await body_of(await stage.client.get("/v1/tenants", headers=every))
        assert [each["tenant"] for each in found["items"]] == ["acme", "default"]
        assert found["items"][1] == {"tenant": "default", "sessions": 1, "waiting": 1, "approvals": 0}
        first = await body_of(await stage.client.get("/v1/tenants?limit=1", headers=every))
        rest = await body_of(await stage.client.get(f"/v1/tenants?after={first['next']}", headers=every))
        assert (first["next"], [each["tenant"] for each in rest["items"]]) == ("acme", ["default"])


# ---- limits ----


async def test_an_account_of_a_model_is_closed_and_opened(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send("s1", "hello")
        operator = stage.operator()
        listed = await body_of(await stage.client.get("/v1/limits"))
        assert [(each["key"], each["account"], each["closed"]) for each in listed["items"]] == [
            ("model:scripted", "scripted", False)
        ]
        said = {"for_ms": 60_000, "reason": "used up"}
        closed = await body_of(await stage.client.post("/v1/limits/scripted/close", json=said, headers=operator))
        assert (closed["closed"], closed["reason"]) == (True, "used up")
        assert stage.gateway.default.host.closed_model("scripted") is not None
        opened = await body_of(await stage.client.post("/v1/limits/model:scripted/open", headers=operator))
        assert (opened["closed"], opened["closed_until_ms"]) == (False, None)
        assert stage.gateway.default.host.closed_model("scripted") is None
        actions = [each.action for each in await stage.gateway.audit.entries("default")]
        assert actions == ["limit.close", "limit.open"]


async def test_a_provider_that_says_to_wait_is_asked_by_no_other_session(tmp_path: Path) -> None:
    script = [[fail(ModelLimitedError("too many requests", retry_after_ms=60_000))], [say("later")], [say("later")]]
    async with gateway_stage(tmp_path, script=script, store=MemoryStore(), text=LANED, drain_ms=1) as stage:
        await post(stage, "s1", "hello")
        host = stage.gateway.default.host
        await until(lambda: host.closed_model("scripted") is not None)
        (limit,) = (await body_of(await stage.client.get("/v1/limits")))["items"]
        assert (limit["account"], limit["closed"]) == ("scripted", True)
        assert "too many requests" in limit["reason"]
        other = await post(stage, "s2", "hello")
        model = host.lanes.engine.kernel.registry.lanes["model:scripted"]
        await until(lambda: model.waiting == 1)
        (limit,) = (await body_of(await stage.client.get("/v1/limits")))["items"]
        (waiter,) = limit["waiters"]
        assert (waiter["session_key"], waiter["workspace"]) == ("s2", "default")
        every = stage.operator() | {"Laneway-Tenant": "acme"}
        (seen,) = (await body_of(await stage.client.get("/v1/limits", headers=every)))["items"]
        assert [(each["session_key"], each["label"]) for each in seen["waiters"]] == [(None, "a job")]
        found = await body_of(await stage.client.get(f"/v1/messages/{other['message_id']}"))
        assert found["outcome"] is None
        await body_of(await stage.client.post("/v1/limits/scripted/open", headers=stage.operator()))
        assert (await stage.gateway.default.inbox.wait(other["message_id"])).outcome == "succeeded"


async def test_a_lane_that_is_closed_is_among_the_limits(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        await body_of(await stage.client.post("/v1/limits/main/close", headers=stage.operator()))
        listed = await body_of(await stage.client.get("/v1/limits"))
        assert [(each["key"], each["account"]) for each in listed["items"]] == [("main", None)]


async def test_a_rate_limit_is_among_the_limits_with_what_is_left_of_it(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        engine = stage.gateway.lanes.engine
        config = LaneConfig(rate_limit=RateLimit.per_hour(2))
        engine.kernel.registry.configure("nightly", config, now=engine.now())
        await stage.gateway.lanes.run("nightly", asyncio.sleep, 0)
        (limit,) = (await body_of(await stage.client.get("/v1/limits")))["items"]
        assert (limit["key"], limit["closed"]) == ("nightly", False)
        rate = limit["rate"]
        assert (rate["count"], rate["window_ms"], rate["left"], rate["next_ms"]) == (2, 3_600_000, 1, 0)


async def test_turns_that_wait_for_a_lane_that_is_closed_are_told_by_their_sessions(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=LANED, drain_ms=1) as stage:
        await body_of(await stage.client.post("/v1/limits/main/close", headers=stage.operator()))
        await post(stage, "s1", "hello")
        main = stage.gateway.lanes.engine.kernel.registry.lanes["main"]
        await until(lambda: main.waiting == 1)
        listed = (await body_of(await stage.client.get("/v1/limits")))["items"]
        (limit,) = [each for each in listed if each["key"] == "main"]
        assert [(each["session_key"], each["label"]) for each in limit["waiters"]] == [("s1", "a turn")]


async def test_limits_that_are_not_there_or_closed_twice_over_are_refused(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        operator = stage.operator()
        for action in ("close", "open"):
            answer = await stage.client.post(f"/v1/limits/{UNKNOWN}/{action}", headers=operator)
            assert refusal(answer) == (404, "not_found")
        for body in ({"for_ms": 1, "until_ms": 1_800_000_000_000}, {"for_ms": 0}, {"until_ms": 5}, {"x": 1}):
            answer = await stage.client.post("/v1/limits/main/close", json=body, headers=operator)
            assert refusal(answer) == (422, "invalid_request")
        assert refusal(await stage.client.post("/v1/limits/main/close")) == (401, "not_authenticated")


# ---- tasks ----


async def test_external_tasks_are_shown_and_handed_out_to_nobody(tmp_path: Path) -> None:
    held = Held(say("never"))
    async with gateway_stage(tmp_path, script=[[call("ls")], held], text=EXTERNAL, store=MemoryStore()) as stage:
        await post(stage, "s1", "look")
        desk = stage.gateway.default.host.desk
        await until(desk.tasks)
        (task,) = (await body_of(await stage.client.get("/v1/tasks")))["items"]
        assert (task["tool"], task["lane"], task["state"], task["session_key"]) == ("ls", "query", "pending", "s1")
        one = await body_of(await stage.client.get(f"/v1/tasks/{task['task_id']}"))
        assert one["task_id"] == task["task_id"]
        assert (await body_of(await stage.client.get("/v1/tasks", params={"session": "s2"})))["items"] == []
        assert (await body_of(await stage.client.get("/v1/tasks", params={"state": "leased"})))["items"] == []
        assert (await body_of(await stage.client.get("/v1/workers")))["items"] == []
        (lease,) = await desk.claim("w1", wait_ms=0)
        (worker,) = (await body_of(await stage.client.get("/v1/workers")))["items"]
        assert (worker["name"], worker["tasks"], worker["health"]) == ("w1", [task["task_id"]], "working")
        assert lease.token not in (await stage.client.get("/v1/tasks")).text
        other = await stage.token("chat", "operate", tenant="other")
        assert (await body_of(await stage.client.get("/v1/tasks", headers=other)))["items"] == []
        assert (await body_of(await stage.client.get("/v1/workers", headers=other)))["items"] == []
        theirs = await stage.client.get(f"/v1/tasks/{task['task_id']}", headers=other)
        unknown = await stage.client.get(f"/v1/tasks/{UNKNOWN}", headers=other)
        assert refusal(unknown) == (404, "unknown_task")
        assert theirs.text.replace(task["task_id"], UNKNOWN) == unknown.text


# ---- settings ----


async def test_workspaces_are_listed_and_their_folders_told_to_few(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=SIMPLE) as stage:
        (seen,) = (await body_of(await stage.client.get("/v1/workspaces")))["items"]
        assert (seen["name"], seen["is_default"], seen["folder"]) == ("default", True, str(tmp_path))
        chat = await stage.token("chat")
        (told,) = (await body_of(await stage.client.get("/v1/workspaces", headers=chat)))["items"]
        assert (told["folder"], told["model"]) == (None, "scripted")
