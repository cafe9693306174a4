"""The routes that say what goes on, what waits for what, and what needs somebody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from laneway.gateway import attention
from laneway.gateway.access import LOCAL
from laneway.kernel.ledger import LedgerState
from laneway.models import call, say
from laneway.rows import Batch, Owner, StateRow
from laneway.stores.memory import MemoryStore
from tests.agent_stage import Held
from tests.gateway_stage import GatewayStage, gateway_stage
from tests.routes_stage import EXTERNAL, LANED, body_of, busy, dead_message, ended, entry_in, post, until

MINE = Owner("default", "default", "s1")
KINDS = ("approvals", "ledger", "dead_letters", "tasks", "runs", "lanes", "limits")
BY_WORKERS = EXTERNAL.replace('ask: ["write"]', 'ask: ["bash"]')


async def attention_of(stage: GatewayStage, headers: dict[str, str] | None = None, **query: str) -> dict[str, Any]:
    """What needs somebody."""
    found = await body_of(await stage.client.get("/v1/attention", headers=headers, params=query))
    assert tuple(found) == KINDS
    return dict(found)


async def now_of(stage: GatewayStage, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """What goes on."""
    return dict(await body_of(await stage.client.get("/v1/now", headers=headers)))


async def broken_run(stage: GatewayStage, owner: Owner, run_id: str, state: str, *, ended_ms: int) -> None:
    """A run as an earlier process has left it."""
    store = stage.gateway.store
    body = json.dumps({"ended_ms": ended_ms, "reason": "the model is gone"})
    row = StateRow("turn", run_id, *owner, store.next_seq(), 0, state, body)
    (result,) = await store.commit([Batch(owner, store.epoch, (row,))])
    assert result.error is None


# ---- what needs somebody ----


async def test_nothing_needs_anybody_on_a_new_server(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        assert await attention_of(stage) == {kind: {"count": 0, "more": False, "items": []} for kind in KINDS}
        assert await now_of(stage) == {"running": 0, "waiting": 0, "sessions": 0, "at_work": [], "groups": []}


async def test_calls_and_letters_are_counted_until_somebody_has_seen_to_them(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        entry = await entry_in(stage, MINE, "a", LedgerState.UNKNOWN)
        await entry_in(stage, MINE, "b", LedgerState.DONE)
        letters = [await dead_message(stage, "s1", text) for text in ("one", "two")]
        found = await attention_of(stage)
        assert [each["id"] for each in found["ledger"]["items"]] == [entry]
        assert (found["ledger"]["count"], found["ledger"]["items"][0]["title"]) == (1, "bash")
        assert found["ledger"]["items"][0]["run_id"] == "turn-old"
        assert {each["id"] for each in found["dead_letters"]["items"]} == set(letters)
        assert found["dead_letters"]["items"][0]["why"] == "no model"
        operator = stage.operator()
        said = {"reason": "it arrived"}
        await body_of(await stage.client.post(f"/v1/ledger/{entry}/settle", json=said, headers=operator))
        sent = await body_of(await stage.client.post(f"/v1/dead-letters/{letters[0]}/retry", headers=operator), 202)
        await ended(stage, sent["message_id"])
        await stage.client.delete(f"/v1/dead-letters/{letters[1]}", headers=operator)
        later = await attention_of(stage)
        assert (later["ledger"]["count"], later["dead_letters"]["count"]) == (0, 0)


async def test_a_run_that_broke_is_a_care_until_something_is_tried_again(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        wall = stage.gateway.env.clock.wall_ms()
        await broken_run(stage, MINE, "turn-a", "failed", ended_ms=wall)
        await broken_run(stage, MINE._replace(session="old"), "turn-b", "failed", ended_ms=wall - 4 * 86_400_000)
        await broken_run(stage, MINE._replace(session="s1~0123456789ab"), "turn-c", "fenced", ended_ms=wall)
        (care,) = (await attention_of(stage))["runs"]["items"]
        assert (care["id"], care["title"], care["why"]) == ("turn-a", "failed", "the model is gone")
        await stage.send("s1", "once more")
        assert (await attention_of(stage))["runs"]["count"] == 0


async def test_an_approval_is_a_care_with_its_time(tmp_path: Path) -> None:
    asks = [[call("write", path="a.txt", content="x")], [say("done")]]
    async with gateway_stage(tmp_path, text=LANED, script=asks) as stage:
        sent = await post(stage, "s1", "write it")
        inbox = stage.gateway.default.inbox
        await until(lambda: inbox.approvals())
        (care,) = (await attention_of(stage))["approvals"]["items"]
        assert (care["title"], care["session_key"]) == ("write", "s1")
        assert care["until_ms"] > care["since_ms"]
        now = await now_of(stage)
        assert (now["running"], now["at_work"][0]["doing"]) == (1, "waiting")
        assert now["at_work"][0]["words"] == "waits for an approval: write"
        await post(stage, "s1", "and then this")
        (group,) = (await now_of(stage))["groups"]
        assert (group["why"], group["count"], group["examples"]) == ("approval", 1, ["s1"])
        await inbox.approve(care["id"])
        await ended(stage, sent["message_id"])


async def test_a_task_is_a_care_as_long_as_there_is_no_worker_for_it(tmp_path: Path) -> None:
    script = [[call("read", path="a.txt")], [say("done")]]
    async with gateway_stage(tmp_path, text=BY_WORKERS, script=script) as stage:
        await post(stage, "s1", "read it")
        desk = stage.gateway.default.host.desk
        await until(lambda: any(each.published for each in desk.board.live.values()))
        (care,) = (await attention_of(stage))["tasks"]["items"]
        assert (care["title"], care["why"]) == ("read", "no worker has asked for tasks lately")
        (work,) = (await now_of(stage))["at_work"]
        assert work["words"] == "waits for a worker: read; no worker has asked for tasks lately"
        (lease,) = await stage.gateway.hall.claim("w1")
        assert (await attention_of(stage))["tasks"]["count"] == 0
        assert lease.task.task_id == care["id"]
        assert (await now_of(stage))["at_work"][0]["words"] == "waits for worker w1: read"


async def test_paused_lanes_and_closed_limits_are_shown_to_those_who_see_what_is_shared(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        stage.gateway.lanes.pause("main")
        wall = stage.gateway.env.clock.wall_ms()
        stage.gateway.lanes.close_until("subagent", wall + 60_000, "the quota is used up")
        found = await attention_of(stage)
        assert [each["id"] for each in found["lanes"]["items"]] == ["main"]
        (limit,) = found["limits"]["items"]
        assert (limit["id"], limit["why"], limit["until_ms"]) == ("subagent", "the quota is used up", wall + 60_000)
        other = await stage.token("operate", tenant="other")
        theirs = await attention_of(stage, other)
        assert (theirs["lanes"]["count"], theirs["limits"]["count"]) == (0, 0)


async def test_counts_end_at_a_bound_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "COUNTED_MAX", 2)
    async with gateway_stage(tmp_path) as stage:
        for name in "abc":
            await entry_in(stage, MINE, name, LedgerState.UNKNOWN)
        found = (await attention_of(stage))["ledger"]
        assert (found["count"], found["more"]) == (2, True)


async def test_another_tenant_sees_none_of_it(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, _, _first):
        await post(stage, "s1", "second")
        await entry_in(stage, MINE, "a", LedgerState.UNKNOWN)
        other = await stage.token("chat", tenant="other")
        found, now = await attention_of(stage, other), await now_of(stage, other)
        assert [kind for kind in KINDS if found[kind]["count"]] == []
        assert (now["running"], now["waiting"], now["at_work"], now["groups"]) == (0, 0, [], [])


# ---- what goes on ----


async def test_it_is_said_what_each_session_does_and_what_waits_for_it(tmp_path: Path) -> None:
    async with busy(tmp_path, text=LANED) as (stage, held, _first):
        waiting = [await post(stage, "s1", text) for text in ("second", "third")]
        await body_of(await stage.client.post(f"/v1/messages/{waiting[1]['message_id']}/hold"))
        now = await now_of(stage)
        (work,) = now["at_work"]
        assert (work["session_key"], work["doing"], work["words"]) == ("s1", "model", "the model answers")
        assert (now["running"], now["waiting"], now["sessions"], work["waiting"]) == (1, 2, 1, 2)
        assert {(each["why"], each["count"]) for each in now["groups"]} == {("run", 1), ("held", 1)}
        await body_of(await stage.client.delete(f"/v1/messages/{waiting[1]['message_id']}"))
        held.let_go()


async def test_what_waits_for_a_lane_says_which_and_why(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=LANED) as stage:
        await stage.send("s1", "open it")
        stage.gateway.lanes.pause("main")
        for key in ("s1", "s2"):
            await post(stage, key, "hello")
        box = stage.gateway.default.inbox.engine
        await until(lambda: not box.is_unattended(MINE._replace(session="s2")))
        (group,) = [each for each in (await now_of(stage))["groups"] if each["why"] == "slot"]
        assert (group["lane"], group["count"], group["sessions"]) == ("main", 2, 2)
        assert "'main' is paused" in group["words"]
        stage.gateway.lanes.resume("main")


async def test_of_a_long_queue_only_the_beginning_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "LOOKED_AT", 2)
    async with busy(tmp_path, text=LANED) as (stage, held, _first):
        for number in range(5):
            await post(stage, "s1", f"message {number}")
        (group,) = (await now_of(stage))["groups"]
        assert (group["why"], group["count"]) == ("run", 5)
        await stage.client.post("/v1/sessions/s1/stop")
        held.let_go()


async def test_a_tool_that_runs_is_named(tmp_path: Path) -> None:
    held = Held(say("hidden"))
    async with gateway_stage(tmp_path, script=[[call("wait", seconds=30)], held], text=LANED) as stage:
        await post(stage, "s1", "wait")
        engine = stage.gateway.default.inbox.engine

        def runs() -> bool:
            session = stage.gateway.default.live_session("default", "s1")
            return session is not None and bool(session.active_tools())

        await until(runs)
        assert engine.is_open
        (work,) = (await now_of(stage))["at_work"]
        assert (work["doing"], work["tools"], work["words"]) == ("tools", ["wait"], "runs wait")
        await stage.client.post("/v1/sessions/s1/stop")
        held.let_go()


async def test_a_run_of_a_session_at_rest_needs_nobody_and_its_message_says_what_it_waits_for(tmp_path: Path) -> None:
    held = Held(say("never"))
    async with gateway_stage(tmp_path, script=[held, [say("here")], [say("more")]], store=MemoryStore()) as stage:
        workspace = stage.gateway.default
        await stage.gateway.submit(workspace, LOCAL, "s1", "go")
        await held.asked.wait()
        await workspace.passivate("default", "s1", deadline_ms=5)
        assert (await attention_of(stage))["runs"]["count"] == 0
        [group] = (await now_of(stage))["groups"]
        assert (group["why"], group["examples"]) == ("rests", ["s1"])
        assert group["words"].startswith("its session rests: a message")
        [listed] = (await body_of(await stage.client.get("/v1/sessions")))["items"]
        assert (listed["resting"], listed["resting_reason"]) == (True, group["words"])
