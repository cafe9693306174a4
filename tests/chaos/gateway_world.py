"""Kills a real gateway under load from real HTTP clients, again and again, on one store.

Each session has a sender, which sends its messages one after the other under an idempotency key and tries again until
each is accepted, and a watcher, which follows the events of the session and comes back with the id of the last one. A
message asks for one call with an effect, which is written down in a file. The killer kills with SIGKILL at random
moments, also while the server starts, and starts it again.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx2

from laneway.agent.book import Book
from laneway.dialogue import ToolCall
from laneway.inbox import Inbox
from laneway.rows import Owner
from laneway.runtime.turns import Turn
from tests.chaos.calls import Told, told_in
from tests.chaos.gateway_checker import GatewayEvidence, Sent

__all__ = ("GatewayWorldOptions", "Life", "free_port", "run_gateway_world")

# ruff: noqa: ASYNC110 - what it waits for is in another process

AGENT: Final = """
default_model: scripted
permissions:
  allow: ["*"]
queue:
  mode: followup
  debounce_idle: false
  cap: 100000
  drop: new
lanes:
  main: 4
"""
RESTING: Final = """
gateway:
  passivate_after_ms: 30
"""
READY_S: Final = 60
WORKSPACE: Final = "work"
WITNESS: Final = "done.txt"
BACK_S: Final = 0.05
LASTING_PORTS: Final = range(20_000, 32_000)  # below those that the system hands out


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayWorldOptions:
    """One store, many lives."""

    folder: Path
    seed: int
    kills: int
    sessions: int = 5
    life_s: float = 0.8
    rest_s: float = 60.0
    passivates: bool = False  # an operator has sessions leave memory all the time, and they do so by themselves


class Life:
    """The server process, whichever it is at the moment."""

    def __init__(self, folder: Path, port: int) -> None:
        self._folder = folder
        self._port = port
        self._process: asyncio.subprocess.Process | None = None

    async def start(self, *, wait: bool = True) -> None:
        """Start it; with `wait`, until it says that it listens."""
        arguments = [
            *("-m", "laneway", "serve", "--port", str(self._port), "--config", str(self._folder / "agent.yaml")),
            *("--workspace", str(self._folder / WORKSPACE), "--store", f"sqlite:///{self._folder / 'laneway.db'}"),
        ]
        log = (self._folder / "server.log").open("ab")
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, stderr=log, start_new_session=True
        )
        log.close()
        if wait:
            assert self._process.stdout is not None
            line = await asyncio.wait_for(self._process.stdout.readline(), READY_S)
            assert b"listening on" in line, (line, (self._folder / "server.log").read_text()[-2000:])

    async def operator(self) -> str:
        """The secret of a token that may do everything; before the first start."""
        arguments = [
            *("-m", "laneway", "token", "create", "chaos", "--scope", "chat", "--scope", "operate", "--json"),
            *("--tenant", "default", "--store", f"sqlite:///{self._folder / 'laneway.db'}"),
        ]
        process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=asyncio.subprocess.PIPE)
        said, _ = await process.communicate()
        return str(json.loads(said)["secret"])

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process is not None
        return self._process.pid

    async def kill(self) -> None:
        """End it, and every process it has started, without a word."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()

    async def stop(self) -> int:
        """Ask it to end; its exit code."""
        assert self._process is not None
        self._process.terminate()
        return await asyncio.wait_for(self._process.wait(), READY_S)


class World:
    """The clients and the killer."""

    def __init__(self, options: GatewayWorldOptions) -> None:
        self.options = options
        self.random = random.Random(options.seed)
        self.found = GatewayEvidence()
        self.port = free_port()
        self.life = Life(options.folder, self.port)
        self.client = httpx2.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=20)
        self.enough = False
        self._last_id: dict[str, int] = {}

    async def run(self) -> GatewayEvidence:
        """Everything, from the first start to the tally."""
        (self.options.folder / WORKSPACE).mkdir(parents=True)
        (self.options.folder / "agent.yaml").write_text(AGENT + RESTING * self.options.passivates)
        if self.options.passivates:
            self.client.headers["Authorization"] = f"Bearer {await self.life.operator()}"
        await self.life.start()
        names = [f"s{number}" for number in range(self.options.sessions)]
        watchers = [asyncio.create_task(self._watch(name)) for name in names]
        watchers += [asyncio.create_task(self._passivate_often(name)) for name in names if self.options.passivates]
        senders = [asyncio.create_task(self._send_all(name)) for name in names]
        try:
            await self._kill_often()
            self.enough = True
            await asyncio.gather(*senders)
            if self.options.passivates:  # what was cut rests until somebody says something
                await asyncio.gather(*(self._send(name, 1_000_000) for name in names))
            async with asyncio.timeout(self.options.rest_s):
                await self._wait_for_ends()
                await self._read_store(names)
                await self._wait_for_watchers(names)
            assert await self.life.stop() == 0
        finally:
            for task in (*watchers, *senders):
                task.cancel()
            await asyncio.gather(*watchers, *senders, return_exceptions=True)
            await self.client.aclose()
        self.found.done = read_witness(self.options.folder / WORKSPACE / WITNESS)
        self.found.told = await told_by(self.options.folder / "laneway.db", names)
        return self.found

    async def _kill_often(self) -> None:
        for _ in range(self.options.kills):
            is_early = self.random.random() < 0.15
            if is_early:  # while it starts
                await asyncio.sleep(self.random.uniform(0.1, 1.0))
            else:
                await asyncio.sleep(self.random.uniform(0.1, 2 * self.options.life_s))
            await self.life.kill()
            self.found.again["kill"] += 1
            await self.life.start(wait=self.random.random() > 0.15)
        if self.options.kills:  # the last one may not have been waited for
            await self._answering()

    async def _answering(self) -> None:
        async with asyncio.timeout(READY_S):
            while True:
                try:
                    if (await self.client.get("/healthz")).status_code == 200:
                        return
                except httpx2.TransportError:
                    pass
                await asyncio.sleep(BACK_S)

    async def _send_all(self, name: str) -> None:
        number = 0
        while not self.enough:
            number += 1
            await self._send(name, number)
            await asyncio.sleep(self.random.uniform(0, 0.05))

    async def _send(self, name: str, number: int) -> None:
        text = f"run echo {name} {number} >> {WITNESS}"
        headers = {"Idempotency-Key": f"{name}-{number}"}
        while True:
            try:
                answer = await self.client.post(f"/v1/sessions/{name}/messages", json={"text": text}, headers=headers)
            except httpx2.TransportError:
                self.found.again["send"] += 1
                await asyncio.sleep(BACK_S)
                continue
            if answer.status_code == 202:
                self.found.accepted.append(Sent(number, name, answer.json()["message_id"]))
                return
            assert answer.status_code in (429, 503), answer.text
            self.found.again["refused"] += 1
            await asyncio.sleep(BACK_S)

    async def _passivate_often(self, name: str) -> None:
        while not self.enough:
            await asyncio.sleep(self.random.uniform(0, 0.3))
            body = {"reason": "chaos", "deadline_ms": self.random.choice((0, 1, 20, 1_000))}
            with suppress(httpx2.TransportError):
                answer = await self.client.post(f"/v1/sessions/{name}/passivate", json=body)
                assert answer.status_code in (200, 202, 404, 429, 503), answer.text
                self.found.again["passivate"] += answer.status_code < 300

    async def _watch(self, name: str) -> None:
        """Follow a session through all lives of the server."""
        seen = self.found.seen.setdefault(name, [])
        while True:
            headers = {"Last-Event-ID": str(seen[-1] if seen else 0)}
            try:
                async with self.client.stream(
                    "GET", f"/v1/sessions/{name}/events", headers=headers, timeout=60
                ) as answer:
                    assert answer.status_code == 200, await answer.aread()
                    async for number, kind, data in events_of(answer):
                        if number:
                            seen.append(int(number))
                        if kind == "turn.ended" and data.get("answer"):
                            self.found.answers[data["turn_id"]] = data["answer"]
            except httpx2.TransportError:
                self.found.again["watch"] += 1
            await asyncio.sleep(BACK_S)

    async def _wait_for_ends(self) -> None:
        for sent in self.found.accepted:
            while True:
                answer = await self.client.get(f"/v1/messages/{sent.message_id}")
                if answer.status_code == 404:
                    break
                body = answer.json()
                self.found.ends[sent.message_id] = (body["disposition"], body.get("outcome") or "")
                if body.get("turn_id") and body.get("answer"):
                    self.found.stored_answers[body["turn_id"]] = body["answer"]
                if body.get("outcome"):
                    break
                await asyncio.sleep(BACK_S)

    async def _read_store(self, names: list[str]) -> None:
        """The ids of all events, as a new watcher gets them."""
        for name in names:
            stored = self.found.stored.setdefault(name, [])
            async with self.client.stream(
                "GET", f"/v1/sessions/{name}/events?replay=all&follow=false", timeout=20
            ) as answer:
                async for number, kind, _ in events_of(answer):
                    if kind == "close":
                        break
                    if number:
                        stored.append(int(number))

    async def _wait_for_watchers(self, names: list[str]) -> None:
        while any((self.found.stored[name] or [0])[-1] not in (self.found.seen[name] or [0]) for name in names):
            await asyncio.sleep(BACK_S)


async def events_of(answer: httpx2.Response) -> AsyncIterator[tuple[str, str, dict[str, Any]]]:
    """The events of a stream: id, type and data."""
    number, kind, data = "", "", ""
    async for line in answer.aiter_lines():
        if line == "":
            if kind:
                yield number, kind, json.loads(data or "{}")
            number, kind, data = "", "", ""
        elif line.startswith("id: "):
            number = line[4:]
        elif line.startswith("event: "):
            kind = line[7:]
        elif line.startswith("data: "):
            data += line[6:]


async def told_by(path: Path, names: list[str]) -> list[Told]:
    """What the conversations say about every call, by the name of what it does; the server has ended."""
    found: list[Told] = []
    async with Inbox(_nothing, store=f"sqlite:///{path}", workspace=WORKSPACE) as inbox:
        for name in names:
            book = Book(inbox.engine, Owner("default", WORKSPACE, name))
            await book.load()
            found += told_in(name, book.utterances(0), _named)
    return found


def _named(call: ToolCall) -> str:
    """What a call does, as the witness has it: ids begin anew with every process."""
    command: str = json.loads(call.arguments)["command"]
    return command.removeprefix("echo ").partition(" >>")[0]


async def _nothing(_: Turn) -> None:
    raise AssertionError("everything has come to its end")


def read_witness(path: Path) -> list[tuple[str, int]]:
    """What was really done, in order."""
    if not path.exists():
        return []
    lines = [line.split() for line in path.read_text().splitlines()]
    return [(session, int(number)) for session, number in lines]


def free_port() -> int:
    """A port that nobody uses now, and that the system gives to nobody unasked: it stays free for who comes back."""
    for port in random.SystemRandom().sample(LASTING_PORTS, 100):
        with socket.socket() as one, suppress(OSError):
            one.bind(("127.0.0.1", port))
            return port
    raise AssertionError("a hundred ports are taken")


def run_gateway_world(options: GatewayWorldOptions) -> GatewayEvidence:
    """One world, on a loop of its own."""
    return asyncio.run(World(options).run())
