"""The list of the newest sessions, what waits in slices, and the whole queue taken back."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from laneway.events import SessionStopped
from laneway.gateway.recency import Recency
from laneway.rows import LastEvent
from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.gateway_stage import GatewayStage, gateway_stage
from tests.routes_stage import body_of, busy, post, refusal


async def recent(stage: GatewayStage, **query: Any) -> dict[str, Any]:
    found: dict[str, Any] = await body_of(await stage.client.get("/v1/sessions", params={"order": "recent", **query}))
    return found


def keys(page: dict[str, Any]) -> list[str]:
    return [each["session_key"] for each in page["items"]]


async def test_the_session_in_which_something_happened_last_comes_first(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        for key in ("a", "b", "c", "a"):
            await stage.send(key, f"hello {key}")
        found = await recent(stage)
        assert keys(found) == ["a", "c", "b"]
        assert (found["total"], found["busy"], found["next"]) == (3, 0, None)
        first = found["items"][0]
        assert (first["preview"], first["preview_role"]) == ("You said: hello a", "assistant")
        assert (first["mode"], first["state"], first["approvals"], first["reason"]) == ("followup", "idle", 0, "")
        await stage.send("b", "again")  # known by now: what happens is noted
        assert keys(await recent(stage)) == ["b", "a", "c"]


async def test_the_newest_are_read_page_by_page_and_what_has_changed_since(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        for key in ("a", "b", "c"):
            await stage.send(key, "hello")
        first = await recent(stage, limit=2)
        rest = await recent(stage, limit=2, after=first["next"])
        assert (keys(first), keys(rest), rest["next"]) == (["c", "b"], ["a"], None)
        assert keys(await recent(stage, since=first["newest"])) == []
        await stage.send("b", "again")
        assert keys(await recent(stage, since=first["newest"])) == ["b"]


async def test_sessions_are_looked_for_by_a_part_of_their_key(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        for key in ("telegram:Ada", "telegram:bob", "web"):
            await stage.send(key, "hello")
        assert keys(await recent(stage, q="ADA")) == ["telegram:Ada"]
        assert keys(await recent(stage, q="gram")) == ["telegram:bob", "telegram:Ada"]
        assert keys(await recent(stage, q="nobody")) == []


async def test_sessions_that_are_busy_or_have_something_waiting_are_found_and_say_why(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, _, _first):
        await post(stage, "idle", "/status")
        assert keys(await recent(stage)) == ["idle", "s1"]
        assert keys(await recent(stage, state="busy")) == ["s1"]
        assert keys(await recent(stage, state="waiting")) == []
        await post(stage, "s1", "second")
        found = await recent(stage, state="waiting")
        assert (keys(found), found["waiting"], found["needs"]) == (["s1"], 1, 0)
        assert "has run for" in found["items"][0]["reason"]
        assert found["items"][0]["preview"] == "first"
        assert keys(await recent(stage, active="true")) == ["s1"]


async def test_the_order_is_that_of_the_store_after_a_restart(tmp_path: Path) -> None:
    disk = MemoryDisk()
    async with gateway_stage(tmp_path, store=MemoryStore(disk)) as stage:
        for key in ("a", "b", "a"):
            await stage.send(key, "hello")
        before = await recent(stage)
    async with gateway_stage(tmp_path, store=MemoryStore(disk)) as stage:
        after = await recent(stage)
        assert keys(after) == keys(before) == ["a", "b"]
        assert [each["last_ms"] for each in after["items"]] == [each["last_ms"] for each in before["items"]]


async def test_another_tenant_sees_its_own_sessions_only(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send("mine", "hello")
        await recent(stage)
        other = await stage.token("chat", tenant="other")
        found = await body_of(await stage.client.get("/v1/sessions?order=recent", headers=other))
        assert (found["items"], found["total"]) == ([], 0)


@pytest.mark.parametrize(
    ("query", "status"),
    [("q=x", 400), ("state=busy", 400), ("order=recent&state=x", 422), ("order=recent&since=x", 400), ("order=x", 422)],
)
async def test_what_cannot_be_looked_for_is_refused(tmp_path: Path, query: str, status: int) -> None:
    async with gateway_stage(tmp_path) as stage:
        assert refusal(await stage.client.get(f"/v1/sessions?{query}"))[0] == status


async def test_what_waits_is_read_in_slices(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, _, _first):
        sent = [(await post(stage, "s1", f"more {number}"))["message_id"] for number in range(5)]
        page = await body_of(await stage.client.get("/v1/sessions/s1/pending?after=1&limit=2"))
        assert [(each["message_id"], each["position"]) for each in page["items"]] == [(sent[1], 2), (sent[2], 3)]
        assert (page["total"], page["next"]) == (5, "3")
        rest = await body_of(await stage.client.get("/v1/sessions/s1/pending?after=3&limit=2"))
        assert (len(rest["items"]), rest["next"]) == (2, None)
        whole = await body_of(await stage.client.get("/v1/sessions/s1/pending"))
        assert (len(whole["items"]), whole["next"]) == (5, None)
        assert (await body_of(await stage.client.get("/v1/sessions/s1/pending?after=99")))["items"] == []


async def test_everything_that_waits_is_taken_back_and_what_runs_goes_on(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, held, first):
        sent = [(await post(stage, "s1", f"more {number}"))["message_id"] for number in range(3)]
        assert await body_of(await stage.client.delete("/v1/sessions/s1/pending")) == {"withdrawn": 3}
        assert await body_of(await stage.client.delete("/v1/sessions/s1/pending")) == {"withdrawn": 0}
        inbox = stage.gateway.default.inbox
        assert {(await inbox.status(each)).disposition for each in sent} == {"withdrawn"}
        held.let_go()
        assert (await inbox.wait(first["message_id"])).answer == "first answer"


# ---- the order itself ----


def stopped(tenant: str, key: str, seq: int) -> SessionStopped:
    return SessionStopped(
        at_ms=seq, session_key=key, tenant=tenant, workspace="default", seq=seq, waiting=0, debounced=0, turns=0
    )


async def test_what_happens_while_the_store_is_read_is_not_lost() -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def read(_: str) -> list[LastEvent]:
        begun.set()
        await go.wait()
        return [LastEvent("a", 1, 1), LastEvent("b", 2, 2)]

    recency = Recency(read, lambda: 0)
    recency.on_mail_event(stopped("t", "c", 3))  # nobody has asked: the store knows
    async with asyncio.TaskGroup() as group:
        group.create_task(recency.load("t"))
        group.create_task(recency.load("t"))
        await begun.wait()
        recency.on_mail_event(stopped("t", "a", 4))
        go.set()
    assert [key for key, _ in recency.newest_first("t")] == ["a", "b"]
    assert (recency.newest("t"), recency.count("t")) == (4, 2)


async def test_numbers_only_ever_grow_and_the_oldest_give_way() -> None:
    async def read(_: str) -> list[LastEvent]:
        return []

    recency = Recency(read, lambda: 0, tenants_max=1, sessions_max=2)
    await recency.load("t")
    for key, seq in (("a", 5), ("b", 3), ("a~0123456789ab", 8), ("c", 9)):
        recency.on_mail_event(stopped("t", key, seq))
    assert [(key, seen.order) for key, seen in recency.newest_first("t")] == [("c", 9), ("b", 6)]
    assert recency.seen("t", "a") is None
    await recency.load("u")
    assert recency.count("t") == 0  # who asks next reads it again


async def test_a_store_that_cannot_be_read_is_asked_again() -> None:
    answers: list[list[LastEvent] | Exception] = [OSError("gone"), [LastEvent("a", 1, 1)]]

    async def read(_: str) -> list[LastEvent]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    recency = Recency(read, lambda: 0)
    with pytest.raises(OSError, match="gone"):
        await recency.load("t")
    await recency.load("t")
    assert recency.count("t") == 1
