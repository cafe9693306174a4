"""Chat over a WebSocket: receipts, events, problems, and ends that leave nothing behind."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import websockets

from laneway.gateway.sockets import closing_of
from laneway.models import say
from tests.gateway_stage import serving
from tests.stream_stage import staged, talking

PATH = "/v1/sessions/s1/socket"


async def test_a_message_gets_a_receipt_with_the_id_of_the_client_and_then_its_answer(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, app), talking(app, PATH) as talk:
        talk.say({"type": "message", "text": "hello", "id": "one"})
        accepted = await talk.next("accepted")
        ended = await talk.next("turn.ended")
        assert accepted["data"]["id"] == "one"
        assert accepted["data"]["disposition"] == "queued"
        assert (ended["data"]["answer"], ended["id"]) == ("You said: hello", str(ended["data"]["seq"]))
        told = next(said for said in talk.said if said["event"] == "text_delta")
        assert "id" not in told
        final = await stage.gateway.default.inbox.status(accepted["data"]["message_id"])
        assert final.answer == "You said: hello"


async def test_the_same_id_again_changes_nothing_and_with_another_text_is_a_conflict(tmp_path: Path) -> None:
    async with staged(tmp_path) as (_, app), talking(app, PATH) as talk:
        talk.say({"type": "message", "text": "hello", "id": "one"})
        first = await talk.next("accepted")
        talk.say({"type": "message", "text": "hello", "id": "one"})
        again = await talk.next("accepted")
        talk.say({"type": "message", "text": "other", "id": "one"})
        problem = await talk.next("problem")
        assert again["data"]["message_id"] == first["data"]["message_id"]
        assert again["data"]["duplicate"] is True
        assert (problem["data"]["status"], problem["data"]["code"], problem["data"]["id"]) == (409, "conflict", "one")


async def test_who_comes_back_says_its_last_id(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, app):
        async with talking(app, PATH) as talk:
            await stage.send("s1", "one")
            last = (await talk.next("turn.ended"))["id"]
        await stage.send("s1", "two")
        async with talking(app, f"{PATH}?last_event_id={last}") as again:
            ended = await again.next("turn.ended")
        assert ended["data"]["answer"] == "You said: two"
        assert again.said[0]["event"] == "message.accepted"


async def test_cancel_ends_the_running_turn_and_stop_everything(tmp_path: Path) -> None:
    gate = asyncio.Event()
    script = [[say("a"), gate.wait], [say("b"), gate.wait], [say("c"), gate.wait]]
    async with staged(tmp_path, script=script) as (_, app), talking(app, PATH) as talk:
        talk.say({"type": "cancel", "id": 1})
        nothing = await talk.next("cancelled")
        for text in ("one", "two", "three"):
            talk.say({"type": "message", "text": text})
        await talk.next("text_delta")
        talk.say({"type": "cancel"})
        cancelled = await talk.next("cancelled")
        await talk.next("text_delta")
        talk.say({"type": "stop"})
        stopped = await talk.next("stopped")
        assert (nothing["data"], cancelled["data"]) == ({"cancelled": False, "id": 1}, {"cancelled": True})
        assert (stopped["data"]["turns"], stopped["data"]["waiting"]) == (1, 1)


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "{",
        "[]",
        "7",
        "null",
        b"\xff\xfe",
        "[" * 100_000,
        {},
        {"type": "dance"},
        {"type": "message"},
        {"type": "message", "text": 7},
        {"type": "message", "text": "a", "mode": "sideways"},
        {"type": "message", "text": "a", "more": 1},
        {"type": "message", "text": "   "},
        {"type": "message", "text": "a", "id": ""},
        {"type": "stop", "text": "a"},
        {"type": ["message"], "text": "a", "id": {"a": 1}},
    ],
)
async def test_garbage_gets_a_problem_and_the_socket_lives_on(tmp_path: Path, garbage: object) -> None:
    async with staged(tmp_path) as (_, app), talking(app, PATH) as talk:
        talk.say(garbage)
        problem = await talk.next("problem")
        assert problem["data"]["status"] == 400
        assert problem["data"]["type"].startswith("urn:laneway:problem:")
        talk.say({"type": "message", "text": "hello"})
        assert (await talk.next("turn.ended"))["data"]["answer"] == "You said: hello"


async def test_twenty_pieces_of_garbage_in_a_row_end_the_connection(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, app), talking(app, PATH) as talk:
        for _ in range(19):
            talk.say("{")
        talk.say({"type": "cancel"})
        for _ in range(20):
            talk.say("{")
        await talk.until(lambda each: each.closed is not None)
        assert talk.closed == (1008, "garbage")
        assert [said["event"] for said in talk.said].count("problem") == 39
        assert talk.said[-1] == {"event": "close", "data": {"reason": "garbage"}}
        assert len(stage.gateway.default.hub) == 0


async def test_a_frame_that_is_too_large_is_refused(tmp_path: Path) -> None:
    async with staged(tmp_path, body_max=1_000) as (_, app), talking(app, PATH) as talk:
        talk.say({"type": "message", "text": "x" * 1_000})
        problem = await talk.next("problem")
        assert "at most 1,000 bytes" in problem["data"]["detail"]


async def test_leaving_ends_both_tasks_and_leaves_the_run_alone(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with staged(tmp_path, script=[[say("a"), gate.wait, say("b")]]) as (stage, app):
        before = asyncio.all_tasks()
        async with talking(app, PATH) as talk:
            talk.say({"type": "message", "text": "hello"})
            message_id = (await talk.next("accepted"))["data"]["message_id"]
            await talk.next("text_delta")
        names = {task.get_name() for task in asyncio.all_tasks() - before}
        assert not {name for name in names if name.startswith("laneway-socket")}
        assert len(stage.gateway.default.hub) == 0
        gate.set()
        assert (await stage.gateway.default.inbox.wait(message_id)).answer == "ab"


async def test_a_server_that_stops_says_so(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, app), talking(app, PATH) as talk:
        stage.gateway.begin_stop()
        await talk.until(lambda each: each.closed is not None)
        assert (talk.closed, talk.said[-1]) == ((1001, "stopping"), {"event": "close", "data": {"reason": "stopping"}})
        async with talking(app, PATH) as refused:
            assert (refused.denied, refused.problem["code"]) == (503, "overloaded")


async def test_a_revoked_token_ends_its_socket_and_sends_nothing_more(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, app):
        headers = await stage.token()
        async with talking(app, PATH, headers) as talk:
            await stage.gateway.tokens.revoke(stage.gateway.tokens.tokens()[0].id)
            talk.say({"type": "message", "text": "hello"})
            await talk.until(lambda each: each.closed is not None)
            assert talk.closed == (1008, "revoked")
            assert "accepted" not in [said["event"] for said in talk.said]


@pytest.mark.parametrize(
    ("path", "status"),
    [(f"{PATH}?last_event_id=x", 400), (f"{PATH}?workspace=nowhere", 404), ("/v1/sessions/%0a/socket", 400)],
)
async def test_what_makes_no_sense_is_refused_before_anything_is_said(tmp_path: Path, path: str, status: int) -> None:
    async with staged(tmp_path) as (stage, app), talking(app, path) as talk:
        assert (talk.denied, talk.problem["status"]) == (status, status)
        assert (talk.accepted, len(stage.gateway.default.hub)) == (None, 0)


async def test_a_page_of_another_site_gets_no_socket(tmp_path: Path) -> None:
    async with staged(tmp_path) as (_, app):
        async with talking(app, PATH, {"Origin": "https://evil.example"}) as talk:
            assert talk.denied == 403
        async with talking(app, PATH, {"Origin": "http://127.0.0.1:8420"}) as talk:
            assert talk.accepted is not None


async def test_a_browser_brings_its_token_as_a_protocol_that_is_never_said_back(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, app):
        secret = (await stage.token(tenant="other"))["Authorization"].removeprefix("Bearer ")
        async with talking(app, PATH) as talk:
            assert talk.denied == 401
        async with talking(app, PATH, protocols=("laneway", f"laneway.token.{secret}")) as talk:
            assert talk.accepted is not None
            assert talk.accepted["subprotocol"] == "laneway"
            talk.say({"type": "message", "text": "hello"})
            assert (await talk.next("message.accepted"))["data"]["tenant"] == "other"


async def test_an_address_that_is_too_long_gets_no_socket(tmp_path: Path) -> None:
    async with staged(tmp_path) as (_, app), talking(app, f"{PATH}?last_event_id={'1' * 101}") as talk:
        assert talk.accepted is None


def test_every_reason_has_a_code() -> None:
    codes = [closing_of(reason).code for reason in ("ended", "stopping", "slow", "revoked", "store_unavailable")]
    assert codes == [1000, 1001, 1013, 1008, 1011]


@pytest.mark.slow
async def test_a_real_client_talks_to_a_real_server(tmp_path: Path) -> None:
    async with serving(tmp_path) as stage:
        url = stage.url.replace("http", "ws", 1) + PATH
        async with websockets.connect(url) as client:
            await client.send(json.dumps({"type": "message", "text": "hello", "id": "one"}))
            said: list[dict[str, Any]] = []
            while not said or said[-1]["event"] != "turn.ended":
                said.append(json.loads(await client.recv()))
            assert said[-1]["data"]["answer"] == "You said: hello"
            stage.gateway.begin_stop()
            rest = [json.loads(text) async for text in client]
            assert rest[-1] == {"event": "close", "data": {"reason": "stopping"}}
        assert (client.close_code, client.close_reason) == (1001, "stopping")
