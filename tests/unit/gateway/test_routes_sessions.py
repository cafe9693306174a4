"""The routes of sessions: what waits and runs there, what was said, how the queue is set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.gateway_stage import gateway_stage
from tests.routes_stage import LANED, UNKNOWN, body_of, busy, ended, post, refusal

READS = ("", "/pending", "/history", "/runs", "/transcript")


async def test_sessions_are_listed_page_by_page(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        for key in ("b", "a", "c"):
            await stage.send(key, "hello")
        first = await body_of(await stage.client.get("/v1/sessions", params={"limit": 2}))
        rest = await body_of(await stage.client.get("/v1/sessions", params={"limit": 2, "after": first["next"]}))
        assert [each["session_key"] for each in first["items"]] == ["a", "b"]
        assert [each["session_key"] for each in rest["items"]] == ["c"]
        assert rest["next"] is None
        assert first["items"][0]["state"] == "idle"


async def test_a_busy_session_shows_its_run_and_what_waits(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, _, _first):
        second = await post(stage, "s1", "second")
        found = await body_of(await stage.client.get("/v1/sessions/s1"))
        assert (found["state"], found["waiting"], found["in_memory"]) == ("thinking", 1, True)
        assert (await body_of(await stage.client.get(f"/v1/runs/{found['run_id']}")))["state"] == "thinking"
        waiting = await body_of(await stage.client.get("/v1/sessions/s1/pending"))
        assert [each["message_id"] for each in waiting["items"]] == [second["message_id"]]
        assert waiting["items"][0]["reason"]


async def test_sessions_at_work_are_listed_without_the_others(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, _, _first):
        await post(stage, "idle", "/status")
        found = await body_of(await stage.client.get("/v1/sessions", params={"active": "true"}))
        later = await body_of(await stage.client.get("/v1/sessions", params={"active": "true", "after": "s1"}))
        assert [each["session_key"] for each in found["items"]] == ["s1"]
        assert later["items"] == []


async def test_settings_are_shown_with_the_level_they_came_from_and_changed(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send("s1", "hello")
        before = (await body_of(await stage.client.get("/v1/sessions/s1")))["settings"]
        assert before["mode"] == {"value": "followup", "origin": "global"}
        change = {"mode": "steer", "cap": 3}
        after = (await body_of(await stage.client.patch("/v1/sessions/s1/settings", json=change)))["settings"]
        assert after["mode"] == {"value": "steer", "origin": "session"}
        assert after["cap"] == {"value": 3, "origin": "session"}
        back = await stage.client.patch("/v1/sessions/s1/settings", json={"mode": None})
        assert (await body_of(back))["settings"]["mode"] == before["mode"]
        assert back.json()["settings"]["cap"]["value"] == 3


@pytest.mark.parametrize("change", [{}, {"cap": 0}, {"mode": "fast"}, {"caps": 1}, {"debounce_ms": -1}])
async def test_settings_that_cannot_be_change_nothing(tmp_path: Path, change: dict[str, Any]) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send("s1", "hello")
        assert refusal(await stage.client.patch("/v1/sessions/s1/settings", json=change)) == (422, "invalid_request")
        found = (await body_of(await stage.client.get("/v1/sessions/s1")))["settings"]
        assert {each["origin"] for each in found.values()} <= {"global", "default"}


async def test_what_was_said_is_listed_in_order(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send("s1", "one")
        await stage.send("s1", "two")
        found = await body_of(await stage.client.get("/v1/sessions/s1/history"))
        assert [(each["role"], each["text"]) for each in found["items"]] == [
            ("user", "one"),
            ("assistant", "You said: one"),
            ("user", "two"),
            ("assistant", "You said: two"),
        ]
        newest = await body_of(await stage.client.get("/v1/sessions/s1/history", params={"limit": 1}))
        assert [each["text"] for each in newest["items"]] == ["You said: two"]
        other = await body_of(await stage.client.get("/v1/sessions/s1/history", params={"conversation": 7}))
        assert other["items"] == []


async def test_the_transcript_is_one_json_object_a_line(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send("s1", "line\nbreak \u2028")
        answer = await stage.client.get("/v1/sessions/s1/transcript")
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        lines = [json.loads(line) for line in answer.text.split("\n") if line]
        assert [line["text"] for line in lines] == ["line\nbreak \u2028", "You said: line\nbreak \u2028"]


async def test_a_stop_ends_what_runs_and_what_waits(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, _, first):
        second = await post(stage, "s1", "second")
        stopped = await body_of(await stage.client.post("/v1/sessions/s1/stop", json={"reason": "enough"}))
        assert (stopped["waiting"], stopped["turns"]) == (1, 1)
        await ended(stage, first["message_id"], second["message_id"])
        again = await body_of(await stage.client.post("/v1/sessions/s1/stop"))
        assert again == {"waiting": 0, "debounced": 0, "turns": 0, "children": 0, "calls": 0}


async def test_sessions_that_are_not_in_memory_are_read_from_the_store(tmp_path: Path) -> None:
    disk = MemoryDisk()
    async with gateway_stage(tmp_path, store=MemoryStore(disk)) as stage:
        await stage.send("s1", "hello")
        await body_of(await stage.client.patch("/v1/sessions/s1/settings", json={"mode": "collect"}))
    async with gateway_stage(tmp_path, store=MemoryStore(disk)) as stage:
        found = await body_of(await stage.client.get("/v1/sessions/s1"))
        assert (found["state"], found["in_memory"], found["lanes"]) == ("idle", False, [])
        assert found["settings"]["mode"] == {"value": "collect", "origin": "session"}
        assert len((await body_of(await stage.client.get("/v1/sessions/s1/history")))["items"]) == 2
        assert len((await body_of(await stage.client.get("/v1/sessions/s1/runs")))["items"]) == 1
        assert stage.gateway.default.live_session("default", "s1") is None


async def test_the_lanes_of_tools_are_shown_with_who_makes_their_calls(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=LANED) as stage:
        await stage.send("s1", "hello")
        found = await body_of(await stage.client.get("/v1/sessions/s1"))
        query = next(each for each in found["lanes"] if each["name"] == "query")
        assert query == {"name": "query", "mode": "internal", "concurrency": 2, "running": 0, "waiting": 0}


async def test_sessions_that_were_never_seen_and_those_of_others_are_the_same(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send("s1", "hello")
        other = await stage.token("chat", tenant="other")
        asked = [await stage.client.get(f"/v1/sessions/{UNKNOWN}{each}", headers=other) for each in READS]
        theirs = [await stage.client.get(f"/v1/sessions/s1{each}", headers=other) for each in READS]
        for answers in (asked, theirs):
            answers.append(await stage.client.post(f"{answers[0].url}/stop", headers=other))
            answers.append(await stage.client.patch(f"{answers[0].url}/settings", json={"cap": 1}, headers=other))
        assert [refusal(each) for each in asked] == [(404, "not_found")] * 7
        assert [each.text.replace(UNKNOWN, "s1") for each in asked] == [each.text for each in theirs]
        assert (await body_of(await stage.client.get("/v1/sessions", headers=other)))["items"] == []


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "limit=x", "after=" + "x" * 500])
async def test_bounds_of_a_list_are_checked(tmp_path: Path, query: str) -> None:
    async with gateway_stage(tmp_path) as stage:
        assert refusal(await stage.client.get(f"/v1/sessions?{query}")) == (422, "invalid_request")


@pytest.mark.parametrize("cursor", ["x", "-1", "9" * 19, "1.5", "\u0661"])
async def test_a_cursor_that_is_none_is_refused(tmp_path: Path, cursor: str) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send("s1", "hello")
        answer = await stage.client.get("/v1/sessions/s1/runs", params={"after": cursor})
        assert refusal(answer) == (400, "invalid_message")


async def test_a_workspace_that_is_not_served_is_unknown(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        answer = await stage.client.get("/v1/sessions", headers={"Laneway-Workspace": "elsewhere"})
        assert refusal(answer) == (404, "not_found")
