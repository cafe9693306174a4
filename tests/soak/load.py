"""Many watchers and a steady stream of messages against a real server: nothing is lost, and its memory stays flat."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.chaos.gateway_world import Life, free_port

__all__ = ("Load", "LoadResult", "run_load")

# ruff: noqa: ASYNC110, ASYNC240 - what it waits for is in another process; /proc is no disk

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
  connections_per_address: 100000
  connections_max: 100000
  requests_per_second: 100000
"""
LAG_S: Final = 60.0
SAMPLE_S: Final = 1.0
AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How much of it: open streams (each watches a session of its own), messages a second, and for how long."""

    folder: Path
    clients: int = 2_000
    rate: int = 200
    seconds: int = 60
    seed: int = 1
    say: Callable[[str], None] = lambda _: None


@dataclass(slots=True)
class LoadResult:
    """What came of it."""

    accepted: int = 0
    refused: int = 0
    ended: int = 0
    lost: list[str] = field(default_factory=list)
    reconnects: int = 0
    accept_s: list[float] = field(default_factory=list)
    answer_s: list[float] = field(default_factory=list)
    memory_kb: list[int] = field(default_factory=list)
    behind_s: float = 0.0

    def accept_ms(self, share: float) -> float:
        """A quantile of the time until a message was accepted."""
        return _quantile(self.accept_s, share) * 1000

    def answer_ms(self, share: float) -> float:
        """A quantile of the time from sending to hearing of the end."""
        return _quantile(self.answer_s, share) * 1000

    def growth(self) -> float:
        """How much bigger it was in the last quarter than in the third, as a share."""
        quarter = len(self.memory_kb) // 4
        if not quarter:
            return 0.0
        before = sum(self.memory_kb[-2 * quarter : -quarter]) / quarter
        return (sum(self.memory_kb[-quarter:]) / quarter - before) / before


def _quantile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


class _Clients:
    def __init__(self, load: Load, port: int) -> None:
        self._load = load
        self._port = port
        self._random = random.Random(load.seed)
        self.result = LoadResult()
        self._sent_at: dict[str, float] = {}
        self._ended: dict[str, float] = {}
        self._pool: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.open_streams = 0

    # ---- watching ----

    async def watch(self, number: int) -> None:
        """Follow one session, and come back when the stream ends."""
        last = 0
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)
                where = f"GET /v1/sessions/s{number}/events HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
                writer.write(f"{where}Last-Event-ID: {last}\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                assert b" 200 " in head.split(b"\r\n", 1)[0], head
                self.open_streams += 1
                try:
                    last = await self._read(reader, last)
                finally:
                    self.open_streams -= 1
                    writer.close()
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.1)
            self.result.reconnects += 1

    async def _read(self, reader: asyncio.StreamReader, last: int) -> int:
        kind = b""
        while line := await reader.readline():
            if line.startswith(b"id: "):
                last = int(line[4:])
            elif line.startswith(b"event: "):
                kind = line[7:].strip()
            elif line.startswith(b"data: ") and kind == b"message.ended":
                self._ended[json.loads(line[6:])["message_id"]] = time.perf_counter()
        return last

    # ---- sending ----

    async def send_all(self) -> None:
        """Send at a steady rate, whatever the answers take."""
        began = time.perf_counter()
        tasks: set[asyncio.Task[None]] = set()
        for number in range(self._load.rate * self._load.seconds):
            due = began + number / self._load.rate
            late = time.perf_counter() - due
            if late < 0:
                await asyncio.sleep(-late)
            self.result.behind_s = max(self.result.behind_s, late)
            task = asyncio.create_task(self._send(number))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)

    async def _send(self, number: int) -> None:
        body = json.dumps({"text": f"message {number}"}).encode()
        key = self._random.randrange(self._load.clients)
        request = (
            f"POST /v1/sessions/s{key}/messages HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n"
            f"Idempotency-Key: {number}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body
        began = time.perf_counter()
        head, answer = await self._ask(request)
        if b" 202 " not in head.split(b"\r\n", 1)[0]:
            self.result.refused += 1
            return
        self.result.accept_s.append(time.perf_counter() - began)
        self.result.accepted += 1
        self._sent_at[json.loads(answer)["message_id"]] = began

    async def _ask(self, request: bytes) -> tuple[bytes, bytes]:
        """Send a request over a connection that is free; one that the server has closed meanwhile is replaced."""
        while True:
            is_new = not self._pool
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port) if is_new else self._pool.pop()
            writer.write(request)
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                if is_new:
                    raise
                continue
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            answer = await reader.readexactly(length)
            self._pool.append((reader, writer))
            return head, answer

    async def wait_for_ends(self) -> None:
        """Until every accepted message has been heard of, or it takes too long."""
        until = time.perf_counter() + LAG_S
        while len(self._ended) < len(self._sent_at) and time.perf_counter() < until:
            await asyncio.sleep(0.1)
        self.result.lost = sorted(set(self._sent_at) - set(self._ended))
        self.result.ended = len(self._ended)
        self.result.answer_s = [self._ended[each] - at for each, at in self._sent_at.items() if each in self._ended]


async def _sample(pid: int, into: list[int]) -> None:
    while True:
        status = Path(f"/proc/{pid}/status").read_text()
        into.append(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")))
        await asyncio.sleep(SAMPLE_S)


async def run_load(load: Load) -> LoadResult:
    """Start a server, open the streams, send, and count."""
    (load.folder / "work").mkdir(parents=True)
    (load.folder / "agent.yaml").write_text(AGENT)
    port = free_port()
    life = Life(load.folder, port)
    await life.start()
    clients = _Clients(load, port)
    watchers: list[asyncio.Task[None]] = []
    try:
        for number in range(load.clients):
            watchers.append(asyncio.create_task(clients.watch(number)))
            if number % AT_ONCE == AT_ONCE - 1:
                await asyncio.sleep(0.05)
        async with asyncio.timeout(LAG_S):
            while clients.open_streams < load.clients:
                await asyncio.sleep(0.05)
        load.say(f"{clients.open_streams:,} streams are open")
        sampler = asyncio.create_task(_sample(life.pid, clients.result.memory_kb))
        await clients.send_all()
        sampler.cancel()
        load.say(f"{clients.result.accepted:,} messages were accepted")
        await clients.wait_for_ends()
        assert clients.open_streams == load.clients
        return clients.result
    finally:
        for task in watchers:
            task.cancel()
        await asyncio.gather(*watchers, return_exceptions=True)
        await life.stop()
