"""Traffic for the page: sessions, a long queue, and a steady rate of events, made from a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import time
from multiprocessing.sharedctypes import Synchronized
from typing import Final

import httpx2

__all__ = ("drive", "fill")

AT_ONCE: Final = 24
STEP_S: Final = 1.0
LINES: Final = "i=0; while [ $i -lt 1000000 ]; do i=$((i+1)); echo line $i; sleep 0.02; done"
TALK: Final = "call bash " + json.dumps({"command": LINES, "timeout_ms": 600_000})
CHATTER: Final = "\nthen\n".join([TALK] * 12)  # a command has ten minutes at most; the next one follows


async def fill(url: str, token: str, *, sessions: int, waiting: int) -> None:
    """A thousand sessions in which something was said, and one with a long queue behind a run that talks."""
    async with _client(url, token) as client:
        gate = asyncio.Semaphore(AT_ONCE)

        async def post(key: str, text: str) -> None:
            async with gate:
                answer = await client.post(f"/v1/sessions/{key}/messages", json={"text": text})
                answer.raise_for_status()

        await post("long", CHATTER)
        for numbers in _groups(sessions):
            await asyncio.gather(*(post(f"session-{number}", f"hello {number}") for number in numbers))
        for numbers in _groups(waiting):
            await asyncio.gather(*(post("long", f"waiting message {number}") for number in numbers))


def _groups(count: int, size: int = 500) -> list[range]:
    return [range(start, min(start + size, count)) for start in range(0, count, size)]


def drive(url: str, token: str, heard: Synchronized[int], *, sessions: int, rate: int) -> None:
    """Make about `rate` events a second until the process is ended: messages to one session after another.

    `heard` counts the events of all sessions, as a stream tells them.
    """
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_drive(url, token, heard, sessions, rate))


async def _drive(url: str, token: str, heard: Synchronized[int], sessions: int, rate: int) -> None:
    async with _client(url, token) as client, asyncio.TaskGroup() as group:
        group.create_task(_listen(client, heard), name="listen")
        numbers = itertools.cycle(range(sessions))
        per_second, before = rate / 8, 0  # a message makes about eight events; what is heard corrects that
        while True:
            began = time.monotonic()
            posts = [_post(client, f"session-{next(numbers)}", began) for _ in range(max(1, round(per_second)))]
            await asyncio.gather(*posts)
            await asyncio.sleep(max(0.0, STEP_S - (time.monotonic() - began)))
            events, before = heard.value - before, heard.value
            per_second = min(rate, max(1.0, per_second * min(2.0, max(0.5, rate / max(1, events)))))


async def _post(client: httpx2.AsyncClient, key: str, began: float) -> None:
    with contextlib.suppress(httpx2.HTTPError):  # a server that is busy is part of it
        await client.post(f"/v1/sessions/{key}/messages", json={"text": f"it is {began:.3f}"})


async def _listen(client: httpx2.AsyncClient, heard: Synchronized[int]) -> None:
    while True:
        with contextlib.suppress(httpx2.HTTPError):
            async with client.stream("GET", "/v1/events", params={"replay": "none"}) as stream:
                async for line in stream.aiter_lines():
                    heard.value += line.startswith("event:")


def _client(url: str, token: str) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=120)
