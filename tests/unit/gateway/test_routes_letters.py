"""The routes of dead letters, schedules and settings."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from laneway.config import load
from laneway.config.agent import agent_settings
from laneway.gateway.settings import WorkspaceSpec
from laneway.records import RetryPolicy
from tests.gateway_stage import GatewayStage, gateway_stage
from tests.routes_stage import LANED, UNKNOWN, body_of, dead_message, ended, refusal

DAILY = {"session_key": "s1", "text": "good morning", "cron": "0 9 * * *"}


async def ids_of(stage: GatewayStage, path: str, name: str, headers: dict[str, str] | None = None) -> list[str]:
    """The ids of a list."""
    return [each[name] for each in (await body_of(await stage.client.get(path, headers=headers)))["items"]]


# ---- dead letters ----


async def test_a_dead_message_is_mended_and_sent_again_once(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        letter = await dead_message(stage, "s1", "helo")
        path, operator = f"/v1/dead-letters/{letter}", stage.operator()
        (listed,) = (await body_of(await stage.client.get("/v1/dead-letters")))["items"]
        assert (listed["kind"], listed["text"], listed["error"]) == ("message", "helo", "no model")
        mended = await body_of(await stage.client.patch(path, json={"text": "hello"}, headers=operator))
        assert mended["text"] == "hello"
        assert (await body_of(await stage.client.get(path)))["text"] == "hello"
        sent = await body_of(await stage.client.post(f"{path}/retry", headers=operator), 202)
        await ended(stage, sent["message_id"])
        again = await body_of(await stage.client.get(f"/v1/messages/{sent['message_id']}"))
        assert (again["answer"], again["sender"]["id"]) == ("You said: hello", "local")
        assert await ids_of(stage, "/v1/dead-letters", "letter_id") == []
        assert refusal(await stage.client.post(f"{path}/retry", headers=operator)) == (404, "not_found")
        actions = [each.action for each in await stage.gateway.audit.entries("default")]
        assert actions == ["dead_letter.edit", "dead_letter.retry"]


async def test_a_dead_message_that_two_send_again_is_sent_once(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        letter = await dead_message(stage, "s1", "hello")
        operator = stage.operator()
        answers = await asyncio.gather(
            *[stage.client.post(f"/v1/dead-letters/{letter}/retry", headers=operator) for _ in range(5)]
        )
        assert sorted(each.status_code for each in answers) == [202, 404, 404, 404, 404]
        (sent,) = [each.json()["message_id"] for each in answers if each.status_code == 202]
        await ended(stage, sent)
        assert (await body_of(await stage.client.get(f"/v1/messages/{sent}")))["retry_of"] == letter


async def test_a_dead_message_is_forgotten_and_stays_in_the_history(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        letter, kept = await dead_message(stage, "s1", "one"), await dead_message(stage, "s1", "two")
        operator = stage.operator()
        answer = await stage.client.delete(f"/v1/dead-letters/{letter}", params={"reason": "old"}, headers=operator)
        assert (answer.status_code, answer.content) == (204, b"")
        assert refusal(await stage.client.delete(f"/v1/dead-letters/{letter}", headers=operator)) == (404, "not_found")
        assert await ids_of(stage, "/v1/dead-letters", "letter_id") == [kept]
        assert (await body_of(await stage.client.get(f"/v1/messages/{letter}")))["disposition"] == "dead_lettered"


async def test_dead_messages_are_listed_page_by_page(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        letters = [await dead_message(stage, "s1", text) for text in ("one", "two", "three")]
        first = await body_of(await stage.client.get("/v1/dead-letters", params={"limit": 2}))
        rest = await body_of(await stage.client.get("/v1/dead-letters", params={"after": first["next"]}))
        assert [each["letter_id"] for each in first["items"] + rest["items"]] == letters


async def test_a_dead_call_is_made_again_as_it_was_or_forgotten(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=LANED) as stage:
        await stage.send("s1", "hello")
        session = await stage.gateway.default.session("default", "s1")
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await session.submit("query", lambda: 1 / 0)
        operator = stage.operator()
        found = (await body_of(await stage.client.get("/v1/dead-letters")))["items"]
        assert [(each["kind"], each["session_key"], each["lane"]) for each in found] == [("call", "s1", "query")] * 2
        again, gone = (f"/v1/dead-letters/{each['letter_id']}" for each in found)
        assert refusal(await stage.client.patch(again, json={"text": "x"}, headers=operator)) == (409, "conflict")
        sent = await body_of(await stage.client.post(f"{again}/retry", headers=operator), 202)
        assert sent["job_id"]
        assert (await stage.client.delete(gone, headers=operator)).status_code == 204
        assert refusal(await stage.client.delete(gone, headers=operator)) == (404, "not_found")


async def test_dead_jobs_of_the_server_are_shown_to_those_who_see_what_is_shared(tmp_path: Path) -> None:
    def divide(number: int) -> float:
        return 1 / number

    async with gateway_stage(tmp_path) as stage:
        with pytest.raises(ZeroDivisionError):
            await stage.gateway.lanes.run("main", divide, 0, retry=RetryPolicy.fixed(1, 0))
        operator, one = stage.operator(), await stage.token("operate", tenant="acme")
        (letter,) = (await body_of(await stage.client.get("/v1/dead-letters", headers=operator)))["items"]
        assert (letter["kind"], letter["arguments"], letter["attempts"]) == ("job", [0], 2)
        path = f"/v1/dead-letters/{letter['letter_id']}"
        assert await ids_of(stage, "/v1/dead-letters", "letter_id", one) == []
        assert refusal(await stage.client.get(path, headers=one)) == (404, "not_found")
        assert refusal(await stage.client.patch(path, json={"text": "x"}, headers=operator)) == (409, "conflict")
        assert (await body_of(await stage.client.patch(path, json={"args": [4]}, headers=operator)))["arguments"] == [4]
        assert (await body_of(await stage.client.post(f"{path}/retry", headers=operator), 202))["job_id"]


async def test_dead_letters_of_others_are_unknown_and_chat_changes_none(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        letter = await dead_message(stage, "s1", "hello")
        other, chat = await stage.token("operate", tenant="other"), await stage.token("chat")
        for name in (letter, UNKNOWN):
            path = f"/v1/dead-letters/{name}"
            asked = [
                await stage.client.get(path, headers=other),
                await stage.client.patch(path, json={"text": "x"}, headers=other),
                await stage.client.post(f"{path}/retry", headers=other),
                await stage.client.delete(path, headers=other),
            ]
            assert [refusal(each) for each in asked] == [(404, "not_found")] * 4
        path = f"/v1/dead-letters/{letter}"
        assert refusal(await stage.client.post(f"{path}/retry", headers=chat)) == (403, "permission_denied")
        assert refusal(await stage.client.delete(path, headers=chat)) == (403, "permission_denied")
        mine = await stage.token("operate")
        for body in ({}, {"text": ""}, {"reason": "x"}, {"text": 1}):
            assert refusal(await stage.client.patch(path, json=body, headers=mine)) == (422, "invalid_request")
        assert await ids_of(stage, "/v1/dead-letters", "letter_id", mine) == [letter]


# ---- schedules ----


async def test_a_schedule_is_added_shown_and_forgotten(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        operator = stage.operator()
        answer = await stage.client.post("/v1/schedules", json={**DAILY, "reason": "wanted"}, headers=operator)
        added = await body_of(answer, 201)
        assert answer.headers["location"] == f"/v1/schedules/{added['schedule_id']}"
        assert (added["cron"], added["text"], added["every_ms"]) == (DAILY["cron"], DAILY["text"], None)
        assert await ids_of(stage, "/v1/schedules", "schedule_id") == [added["schedule_id"]]
        assert await ids_of(stage, "/v1/schedules?session=s2", "schedule_id") == []
        path = f"/v1/schedules/{added['schedule_id']}"
        assert (await body_of(await stage.client.get(path))) == added
        assert (await body_of(await stage.client.get("/v1/sessions/s1")))["state"] == "idle"
        assert (await stage.client.delete(path, headers=operator)).status_code == 204
        assert refusal(await stage.client.delete(path, headers=operator)) == (404, "not_found")
        assert refusal(await stage.client.get(path)) == (404, "not_found")
        actions = [(each.action, each.reason) for each in await stage.gateway.audit.entries("default")]
        assert actions == [("schedule.add", "wanted"), ("schedule.remove", "")]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"every_ms": 5}, 422),
        ({"cron": None}, 422),
        ({"cron": "every morning"}, 400),
        ({"timezone": "Moon/Base"}, 400),
        ({"text": " "}, 400),
        ({"session_key": "a/b"}, 400),
        ({"session_key": "s1~0123456789ab"}, 400),
        ({"missed": "sometimes"}, 422),
        ({"kind": "user"}, 422),
    ],
)
async def test_what_is_no_schedule_is_refused(tmp_path: Path, change: dict[str, Any], status: int) -> None:
    async with gateway_stage(tmp_path) as stage:
        answer = await stage.client.post("/v1/schedules", json={**DAILY, **change}, headers=stage.operator())
        assert refusal(answer)[0] == status
        assert stage.gateway.default.inbox.schedules() == []


async def test_schedules_of_others_are_unknown_and_chat_changes_none(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        mine, other = await stage.token("operate"), await stage.token("operate", tenant="other")
        added = await body_of(await stage.client.post("/v1/schedules", json=DAILY, headers=mine), 201)
        for name in (added["schedule_id"], UNKNOWN):
            assert refusal(await stage.client.get(f"/v1/schedules/{name}", headers=other)) == (404, "not_found")
            assert refusal(await stage.client.delete(f"/v1/schedules/{name}", headers=other)) == (404, "not_found")
        assert await ids_of(stage, "/v1/schedules", "schedule_id", other) == []
        chat = await stage.token("chat")
        assert refusal(await stage.client.post("/v1/schedules", json=DAILY, headers=chat))[0] == 403
        assert await ids_of(stage, "/v1/schedules", "schedule_id", chat) == [added["schedule_id"]]


# ---- settings ----


async def test_settings_are_shown_with_their_origins_and_without_secrets(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text(
        "default_model: scripted\nproviders:\n  openai:\n    api_key: ${KEY}\nqueue:\n  mode: steer\n", encoding="utf-8"
    )
    effective = load(file, environ={"KEY": "sk-very-secret"})
    spec = WorkspaceSpec(name="default", folder=tmp_path, agent=agent_settings(effective), effective=effective)
    async with gateway_stage(tmp_path, specs=[spec]) as stage:
        answer = await stage.client.get("/v1/config")
        found = {each["setting"]: each for each in (await body_of(answer))["settings"]}
        assert found["queue.mode"]["value"] == "steer"
        assert found["queue.mode"]["origin"]["file"].endswith("agent.yaml")
        key = found["providers.openai.api_key"]
        assert (key["value"], key["hidden"]) == (None, True)
        assert "sk-very-secret" not in answer.text
        assert (found["queue.mode"]["default"], found["queue.mode"]["is_default"]) == ("collect", False)
        # its inbox goes by these, and an agent in a script by others
        assert [found[f"queue.{name}"]["value"] for name in ("cap", "drop")] == [20, "summarize"]
        assert found["queue.cap"]["is_default"] is True
        assert found["lanes.main.concurrency"]["used"] is True
        assert "message" in found["queue.mode"]["says"]


async def test_what_operators_have_changed_since_the_start_is_shown_with_the_settings(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=LANED) as stage:
        operator = stage.operator()
        assert (await body_of(await stage.client.get("/v1/config")))["changes"] == []
        await stage.client.patch("/v1/lanes/main", json={"concurrency": 9, "paused": True}, headers=operator)
        await stage.client.patch("/v1/lanes/query", json={"mode": "external"}, headers=operator)
        changes = (await body_of(await stage.client.get("/v1/config")))["changes"]
        assert [(each["lane"], each["name"], each["value"], each["configured"]) for each in changes] == [
            ("main", "concurrency", 9, 1),
            ("main", "paused", True, False),
            ("query of every session", "mode", "external", None),
        ]


async def test_settings_whose_origin_nobody_knows_are_an_empty_list(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        found = await body_of(await stage.client.get("/v1/config"))
        assert found == {"workspace": "default", "files": [], "settings": [], "changes": []}
