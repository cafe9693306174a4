"""Open streams and sockets of a real server end when their token does; those of others go on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosedError, InvalidStatus

from laneway.gateway import tokens
from laneway.gateway.access import SUBPROTOCOL, Scope
from laneway.system import SystemClock
from tests.gateway_stage import GatewayStage, serving

WAIT_S = 60


async def events(stage: GatewayStage, headers: dict[str, str], opened: asyncio.Event) -> list[tuple[str, Any]]:
    """Watch a session to the end of the stream."""
    seen: list[tuple[str, Any]] = []
    kind = ""
    async with stage.client.stream("GET", "/v1/sessions/s/events?replay=all", headers=headers) as stream:
        assert stream.status_code == 200
        async for line in stream.aiter_lines():
            opened.set()
            name, _, value = line.partition(": ")
            if name == "event":
                kind = value
            elif name == "data":
                seen.append((kind, json.loads(value)))
    return seen


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[GatewayStage]:
    async with serving(tmp_path, heartbeat_ms=200) as made:
        yield made


async def test_a_stream_ends_when_its_token_is_revoked_and_says_why(stage: GatewayStage) -> None:
    admin = stage.operator(scopes=(Scope.ADMIN,))
    mine, theirs = await stage.token(name="mine"), await stage.token(name="theirs")
    token = next(each for each in stage.gateway.tokens.tokens() if each.name == "mine")
    opened = [asyncio.Event(), asyncio.Event()]
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        ended = group.create_task(events(stage, mine, opened[0]))
        other = group.create_task(events(stage, theirs, opened[1]))
        for each in opened:
            await each.wait()
        gone = await stage.client.delete(f"/v1/tokens/{token.id}", headers=admin)
        assert gone.status_code == 200
        assert (await ended)[-1] == ("close", {"reason": "revoked"})
        assert not other.done()
        other.cancel()
    again = await stage.client.get("/v1/sessions/s/events", headers=mine)
    assert again.status_code == 401


async def test_a_stream_ends_when_its_token_expires(stage: GatewayStage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "LOOK_AGAIN_MS", 20)
    end = stage.gateway.env.clock.wall_ms() + 3_600_000
    headers = await stage.token(expires_ms=end)
    opened = asyncio.Event()
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        ended = group.create_task(events(stage, headers, opened))
        await opened.wait()
        assert not ended.done()
        monkeypatch.setattr(SystemClock, "wall_ms", lambda _: end)
        assert (await ended)[-1] == ("close", {"reason": "expired"})


async def test_whoever_watches_without_a_token_is_sent_away_when_the_first_one_is_made(stage: GatewayStage) -> None:
    opened = asyncio.Event()
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as group:
        ended = group.create_task(events(stage, {}, opened))
        await opened.wait()
        await stage.token()
        assert (await ended)[-1] == ("close", {"reason": "revoked"})


async def talk(socket: ClientConnection) -> dict[str, Any]:
    """Say something, and wait until it is taken."""
    await socket.send(json.dumps({"type": "message", "text": "x", "id": "a"}))
    async for frame in socket:
        found: dict[str, Any] = json.loads(frame)
        if found["event"] in ("accepted", "problem"):
            return found
    raise AssertionError("the socket has ended")


async def test_a_socket_takes_its_token_from_a_subprotocol_and_ends_with_it(stage: GatewayStage) -> None:
    url = stage.url.replace("http", "ws") + "/v1/sessions/s/socket"
    headers = await stage.token()
    secret = headers["Authorization"].removeprefix("Bearer ")
    (token,) = stage.gateway.tokens.tokens()
    refused: Any
    for refused in (None, ["laneway"], [f"{SUBPROTOCOL}lw_x_y"]):
        with pytest.raises(InvalidStatus) as caught:
            await connect(url, subprotocols=refused, proxy=None)
        assert caught.value.response.status_code == 401
    offered: Any = ["laneway", f"{SUBPROTOCOL}{secret}"]
    async with asyncio.timeout(WAIT_S), connect(url, subprotocols=offered, proxy=None) as socket:
        assert socket.subprotocol == "laneway"
        assert (await talk(socket))["event"] == "accepted"
        await stage.gateway.tokens.revoke(token.id)
        with pytest.raises(ConnectionClosedError, match="revoked"):
            _ = [frame async for frame in socket]


async def test_the_secret_of_a_token_is_in_no_answer_but_its_own(stage: GatewayStage) -> None:
    admin = stage.operator(scopes=(Scope.ADMIN,))
    made = await stage.client.post("/v1/tokens", json={"name": "x", "scopes": ["chat"]}, headers=admin)
    secret = made.json()["secret"]
    answers: list[httpx2.Response] = []
    for path in ("/v1/tokens", "/v1/audit", "/v1/config", "/v1/sessions", "/openapi.json"):
        answers.append(await stage.client.get(path, headers=admin))
        answers.append(await stage.client.get(path, headers={"Authorization": f"Bearer {secret}x"}))
    assert all(secret not in answer.text and secret not in str(answer.headers) for answer in answers)
