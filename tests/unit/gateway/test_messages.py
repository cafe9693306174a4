"""Messages over HTTP."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.gateway_stage import gateway_stage, serving


async def test_a_message_is_taken_and_answered(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        receipt = await stage.send("s1", "hello")
        final = await stage.gateway.default.inbox.status(receipt["message_id"])
        assert final.answer == "You said: hello"


async def test_the_same_key_with_another_text_is_a_conflict(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        headers = {"Idempotency-Key": "k"}
        first = await stage.send("s1", "hello", headers=headers)
        again = await stage.send("s1", "hello", headers=headers)
        other = await stage.client.post("/v1/sessions/s1/messages", json={"text": "other"}, headers=headers)
        assert again["message_id"] == first["message_id"]
        assert again["duplicate"] is True
        assert (other.status_code, other.json()["code"]) == (409, "conflict")


async def test_a_real_server_takes_messages(tmp_path: Path) -> None:
    async with serving(tmp_path) as stage:
        receipt = await stage.send("s1", "hello")
        assert receipt["disposition"] == "queued"


async def test_a_body_that_does_not_say_that_it_is_json_is_told_how(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        form = {"Content-Type": "application/x-www-form-urlencoded"}
        answer = await stage.client.post("/v1/sessions/s1/messages", content=b'{"text": "hi"}', headers=form)
        assert (answer.status_code, answer.json()["code"]) == (415, "not_json")
        assert "application/json" in answer.json()["hint"]


async def test_nobody_else_on_the_machine_can_read_the_store(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send("s1", "hello")
        found = [name for name in os.listdir(tmp_path) if name.startswith("laneway.db") and "lock" not in name]
        modes = {name: os.stat(tmp_path / name).st_mode & 0o077 for name in found}
        assert modes
        assert set(modes.values()) == {0}


async def test_everything_that_is_wrong_with_a_body_is_said(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        body = (await stage.client.post("/v1/sessions/s1/messages", json={"txt": "hi"})).json()
        assert body["detail"] == "body.text: Field required; body.txt: Extra inputs are not permitted"
        broken = await stage.client.post(
            "/v1/sessions/s1/messages", content=b'{"text": "hi", }', headers={"Content-Type": "application/json"}
        )
        assert (broken.status_code, broken.json()["code"]) == (400, "invalid_json")
        assert broken.json()["detail"].startswith("the body is no JSON, at character 15: Expecting property name")


@pytest.mark.parametrize("key", ["a/b", "a%2Fb", "messages/.."])
async def test_a_name_that_no_session_can_have_is_told_why(tmp_path: Path, key: str) -> None:
    async with gateway_stage(tmp_path) as stage:
        answer = await stage.client.post(f"/v1/sessions/{key}/messages", json={"text": "hi"})
        assert answer.status_code in (404, 405)
        assert "the name of a session has no '/'" in answer.json()["hint"]
        other = (await stage.client.get("/v1/nothing")).json()
        assert (other["detail"], other["hint"]) == ("there is no GET /v1/nothing", "see /openapi.json")
