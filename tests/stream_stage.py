"""What tests of streams share: a client on the application itself, whose connection lives as long as it is held."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Coroutine, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx2

from laneway.gateway.app import create_app
from laneway.stores.memory import MemoryStore
from tests.gateway_stage import BASE, GatewayStage, gateway_in

App = Callable[[Any, Any, Any], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Heard:
    """One event of a stream. A comment has the type `comment`."""

    type: str
    id: str
    data: Any


class Ear:
    """Somebody who reads a stream, at its own pace."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.heard: list[Heard] = []
        self.raw = b""
        self.is_over = False
        self._taken = 0
        self._more = asyncio.Event()
        self._gone = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()

    async def receive(self) -> MutableMapping[str, Any]:
        """For the application: nothing comes from the client but its leaving."""
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """For the application."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            await self._may_read.wait()
            self.raw += message["body"]
            self.heard += events_of(message["body"])
            self.is_over = not message.get("more_body", False)
        self._more.set()

    def leave(self) -> None:
        """The client has gone."""
        self._gone.set()
        self._may_read.set()

    def stall(self) -> None:
        """It reads nothing until `go_on`."""
        self._may_read.clear()

    def go_on(self) -> None:
        """It reads again."""
        self._may_read.set()

    async def until(self, is_there: Callable[[Ear], bool]) -> None:
        """Wait until something has come."""
        while not is_there(self):
            self._more.clear()
            await self._more.wait()

    async def next(self, *types: str) -> Heard:
        """The next event, of one of these types if they are given."""
        while True:
            await self.until(lambda ear: len(ear.heard) > self._taken)
            event = self.heard[self._taken]
            self._taken += 1
            if not types or event.type in types:
                return event

    async def end(self) -> str:
        """Why the stream has ended."""
        return str((await self.next("close")).data["reason"])

    def types(self) -> list[str]:
        """What has come so far."""
        return [event.type for event in self.heard]

    def ids(self) -> list[str]:
        """The ids that have come so far."""
        return [event.id for event in self.heard if event.id]


def events_of(text: bytes) -> list[Heard]:
    """The events in a piece of a stream."""
    found = []
    for block in text.decode().split("\n\n"):
        facts: dict[str, str] = {}
        for line in block.splitlines():
            name, _, value = line.partition(": ")
            facts[name or "comment"] = value or name
        if "data" in facts:
            found.append(Heard(facts["event"], facts.get("id", ""), json.loads(facts["data"])))
        elif block.startswith(":"):
            found.append(Heard("comment", "", block[1:].strip()))
    return found


def scope_of(path: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """The scope of a GET."""
    given = {"host": "127.0.0.1:8420", **(headers or {})}
    path, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 5000),
        "server": ("127.0.0.1", 8420),
    }


@contextlib.asynccontextmanager
async def staged(folder: Path, **options: Any) -> AsyncIterator[tuple[GatewayStage, App]]:
    """A gateway that keeps everything in memory, unless it gets a store, and its application."""
    async with gateway_in(folder, **{"store": MemoryStore(), **options}) as gateway:
        app = create_app(gateway)
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url=BASE) as client:
            yield GatewayStage(gateway, client), app


@contextlib.asynccontextmanager
async def listening(app: App, path: str, headers: dict[str, str] | None = None) -> AsyncIterator[Ear]:
    """An open stream; the client leaves at the end, and the application must notice."""
    ear = Ear()
    task = asyncio.get_running_loop().create_task(app(scope_of(path, headers), ear.receive, ear.send))
    try:
        await ear.until(lambda each: each.status != 0)
        yield ear
    finally:
        ear.leave()
        async with asyncio.timeout(60):
            await task


class Talk:
    """A WebSocket from the side of the client."""

    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []
        self.accepted: MutableMapping[str, Any] | None = None
        self.denied: int = 0
        self.problem: Any = None
        self.closed: tuple[int, str] | None = None
        self._inbox: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()
        self._inbox.put_nowait({"type": "websocket.connect"})
        self._taken = 0
        self._more = asyncio.Event()

    async def receive(self) -> MutableMapping[str, Any]:
        """For the application."""
        return await self._inbox.get()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """For the application."""
        match message["type"]:
            case "websocket.accept":
                self.accepted = message
            case "websocket.send":
                self.said.append(json.loads(message["text"]))
            case "websocket.close":
                self.closed = (message["code"], message.get("reason") or "")
                self._inbox.put_nowait({"type": "websocket.disconnect", "code": message["code"]})
            case "websocket.http.response.start":
                self.denied = message["status"]
            case "websocket.http.response.body":
                self.problem = json.loads(message["body"])
            case other:
                raise AssertionError(f"nobody says {other!r} on a WebSocket")
        self._more.set()

    def say(self, said: Any) -> None:
        """Send an object as JSON, text as it is, or bytes."""
        if isinstance(said, bytes):
            self._inbox.put_nowait({"type": "websocket.receive", "bytes": said})
        else:
            text = said if isinstance(said, str) else json.dumps(said)
            self._inbox.put_nowait({"type": "websocket.receive", "text": text})

    def leave(self) -> None:
        """Close it from here."""
        self._inbox.put_nowait({"type": "websocket.disconnect", "code": 1000})

    async def until(self, is_there: Callable[[Talk], bool]) -> None:
        """Wait until something has come."""
        while not is_there(self):
            self._more.clear()
            await self._more.wait()

    async def next(self, *events: str) -> dict[str, Any]:
        """The next thing that is said, of one of these kinds if they are given."""
        while True:
            await self.until(lambda talk: len(talk.said) > self._taken)
            said = self.said[self._taken]
            self._taken += 1
            if not events or said["event"] in events:
                return said


@contextlib.asynccontextmanager
async def talking(
    app: App, path: str, headers: dict[str, str] | None = None, *, protocols: tuple[str, ...] = ()
) -> AsyncIterator[Talk]:
    """An open WebSocket, or one that was refused; the client leaves at the end, and the application must notice."""
    talk = Talk()
    scope = {**scope_of(path, headers), "type": "websocket", "scheme": "ws", "subprotocols": list(protocols)}
    scope["extensions"] = {"websocket.http.response": {}}
    task = asyncio.get_running_loop().create_task(app(scope, talk.receive, talk.send))
    try:
        await talk.until(lambda each: each.accepted is not None or each.problem is not None or each.closed is not None)
        yield talk
    finally:
        talk.leave()
        async with asyncio.timeout(60):
            await task
