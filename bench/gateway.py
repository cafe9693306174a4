"""What is measured of the gateway: a real server in a process of its own, and clients that do little else than wait.

The bare route is what anybody would write first: FastAPI, one SQLite row, one commit with `synchronous = FULL`, on the
loop. Both are asked by the same client, over connections that stay open.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any, Final

from bench.durable import TEXT, percentiles, scratch
from bench.measures import Measure
from bench.workloads import Numbers

__all__ = ("MEASURES",)

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
  main: 64
gateway:
  requests_per_second: 100000
"""
MANY: Final = 32
BUSY: Final = "wait 600"
READY_S: Final = 60
PATIENCE_S: Final = 60
STEERS_A_RUN: Final = 20
PLAN: Final = "\nthen\n".join(["wait 0.02"] * 25)


class Connection:
    """One connection to a server, kept open."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        self._reader = reader
        self._writer = writer
        self._host = f"Host: 127.0.0.1:{port}\r\n"

    @classmethod
    async def to(cls, port: int) -> Connection:
        """A new connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        return cls(reader, writer, port)

    def message(self, session: str, text: str, **more: Any) -> bytes:
        """A request that sends a message."""
        body = json.dumps({"text": text, **more}).encode()
        head = f"POST /v1/sessions/{session}/messages HTTP/1.1\r\n{self._host}Content-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def ask(self, request: bytes) -> bytes:
        """Send a request; the body of its answer."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        body = await self._reader.readexactly(length)
        assert head.startswith(b"HTTP/1.1 20"), body
        return body

    async def events(self, session: str) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
        """The events of a session from now on."""
        self._writer.write(f"GET /v1/sessions/{session}/events HTTP/1.1\r\n{self._host}\r\n".encode())
        await self._reader.readuntil(b"\r\n\r\n")
        kind = ""
        while line := await self._reader.readline():
            if line.startswith(b"event: "):
                kind = line[7:].decode().strip()
            elif line.startswith(b"data: "):
                yield kind, json.loads(line[6:])

    def close(self) -> None:
        """Let go of it."""
        self._writer.close()


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextlib.asynccontextmanager
async def _process(*arguments: str) -> AsyncIterator[None]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), READY_S)
        assert b"listening on" in line, line
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


@contextlib.asynccontextmanager
async def _gateway(folder: Path) -> AsyncIterator[int]:
    port = _free_port()
    (folder / "agent.yaml").write_text(AGENT)
    (folder / "work").mkdir()
    where = ("--config", str(folder / "agent.yaml"), "--workspace", str(folder / "work"))
    async with _process(
        "-m", "laneway", "serve", "--port", str(port), "--store", f"sqlite:///{folder}/laneway.db", *where
    ):
        yield port


@contextlib.asynccontextmanager
async def _bare(folder: Path) -> AsyncIterator[int]:
    port = _free_port()
    async with _process("-m", "bench.bare_route", str(port), str(folder / "bare.db")):
        yield port


async def _accept(port: int, messages: int, connections: int, *, first: str = "") -> Numbers:
    """Send so many messages over so many connections, each to a session of its own."""
    open_ones = [await Connection.to(port) for _ in range(connections)]
    took: list[float] = []
    for number, each in enumerate(open_ones):
        for _ in range(5):
            await each.ask(each.message(f"s{number}", first or TEXT))

    async def send(number: int, each: Connection) -> None:
        request = each.message(f"s{number}", TEXT)
        for _ in range(messages // connections):
            began = time.perf_counter()
            await each.ask(request)
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(send(number, each) for number, each in enumerate(open_ones)))
    seconds = time.perf_counter() - began
    for each in open_ones:
        each.close()
    return {"accepted_per_second": len(took) / seconds, **percentiles(took, "ms")}


async def http_bare_one(messages: int) -> Numbers:
    """The bare route, one sender."""
    with scratch() as folder:
        async with _bare(folder) as port:
            return await _accept(port, messages, 1)


async def http_bare_many(messages: int) -> Numbers:
    """The bare route, many senders."""
    with scratch() as folder:
        async with _bare(folder) as port:
            return await _accept(port, messages, MANY)


async def http_accept_one(messages: int) -> Numbers:
    """The gateway, one sender whose agent is at work."""
    with scratch() as folder:
        async with _gateway(folder) as port:
            return await _accept(port, messages, 1, first=BUSY)


async def http_accept_many(messages: int) -> Numbers:
    """The gateway, many senders whose agents are at work."""
    with scratch() as folder:
        async with _gateway(folder) as port:
            return await _accept(port, messages, MANY, first=BUSY)


async def http_accept_idle(messages: int) -> Numbers:
    """The gateway, many senders whose agents answer each message."""
    with scratch() as folder:
        async with _gateway(folder) as port:
            return await _accept(port, messages, MANY)


async def http_steer(steers: int) -> Numbers:
    """How long after a steer was sent over HTTP the model is asked with it, beyond the call that was at work.

    A run makes one call of 20 ms after the other. What it is told while a call runs, it hears after that call: the
    time from the end of the call to the event that says so is what Laneway adds. A run is steered a few times and then
    told to end, and the next one has a session of its own: rounds of tools are limited, and a conversation that grows
    would be measured, too.
    """
    added: list[float] = []
    with scratch() as folder:
        async with _gateway(folder) as port, asyncio.timeout(PATIENCE_S):
            sender = await Connection.to(port)
            for first in range(0, steers, STEERS_A_RUN):
                added += await _steer_a_run(port, sender, f"s{first}", min(STEERS_A_RUN, steers - first))
            sender.close()
    return percentiles(added, "ms")


async def _steer_a_run(port: int, sender: Connection, session: str, steers: int) -> list[float]:
    added: list[float] = []
    watcher = await Connection.to(port)
    events = watcher.events(session)
    await sender.ask(sender.message(session, PLAN))
    ended, sent = 0.0, False
    async for kind, _ in events:
        now = time.perf_counter()
        if kind == "tool_start" and not sent:
            sent = True
            # the scripted model does what it was told last
            await sender.ask(sender.message(session, PLAN if len(added) + 1 < steers else "enough", mode="steer"))
        elif kind == "tool_end":
            ended = now
        elif kind == "steered":
            added.append(now - ended)
            sent = False
        elif kind == "end":
            break
    await events.aclose()
    watcher.close()
    assert len(added) == steers, added
    return added


MEASURES: Final[dict[str, Measure]] = {
    each.__name__: each
    for each in (http_bare_one, http_bare_many, http_accept_one, http_accept_many, http_accept_idle, http_steer)
}
