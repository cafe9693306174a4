"""A server of the tour's own, in a process of its own: started, killed without a word, and started again.

It lives in a temporary folder and listens on a free port of this machine. What happens in it is followed over its
stream of events, taken up again with the id of the last event after a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import httpx2

from laneway.errors import UnavailableError

__all__ = ("Follower", "Happened", "TourServer")

READY: Final = "Laneway is listening on "
START_S: Final = 30
AGAIN_S: Final = 0.1
CONFIG: Final = """\
name: tour
default_model: scripted
permissions: {allow: [bash, read, wait], default_decision: ask}
queue: {mode: collect, debounce_ms: 500, debounce_idle: false}
"""


@dataclass(frozen=True, slots=True)
class Happened:
    """One event of the stream. `seq` is 0 for what is not stored."""

    type: str
    seq: int
    facts: dict[str, Any]


class TourServer:
    """`laneway serve` on a folder. Use it with `async with`: whatever happens, no process is left behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "server.log"
        self.started = asyncio.Event()
        self.url = ""
        self._process: Process | None = None
        (folder / "agent.yaml").write_text(CONFIG, encoding="utf-8")

    @property
    def command(self) -> list[str]:
        """What is started, as one would type it."""
        return ["laneway", "serve", "--port", "0", "--workspace", ".", "--store", "sqlite:///tour.db"]

    @property
    def pid(self) -> int:
        """Of the process, as long as there is one."""
        return 0 if self._process is None else self._process.pid

    async def __aenter__(self) -> TourServer:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end(signal.SIGKILL)

    async def start(self) -> str:
        """Start it and wait for its address."""
        hidden = ("LANEWAY_", "OTEL_")
        env = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", *self.command, cwd=self.folder, env=env, stdout=PIPE, stderr=log
            )
        assert self._process.stdout is not None
        line = ""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(START_S):
                line = (await self._process.stdout.readline()).decode()
        if not line.startswith(READY):
            said = self.log.read_text(errors="replace").strip().splitlines()
            raise UnavailableError(
                f"the server of the tour did not start: {said[-1] if said else 'it said nothing'}",
                hint="laneway doctor finds out why",
            )
        self.url = line.removeprefix(READY).strip()
        self.started.set()
        return self.url

    async def kill(self) -> None:
        """End it as a power cut would."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> int | None:
        """Ask it to end; its exit code."""
        return await self._end(signal.SIGTERM)

    async def _end(self, number: int) -> int | None:
        process, self._process = self._process, None
        if process is None:
            return None
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        return await process.wait()


@dataclass(slots=True)
class Follower:
    """Reads the stream of all sessions, comes back when it breaks, and notes everything that happened, each once."""

    server: TourServer
    on_event: Callable[[Happened], None]
    happened: list[Happened] = field(default_factory=list)
    last_id: int = 0
    breaks: int = 0
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _up: asyncio.Event = field(default_factory=asyncio.Event)

    async def follow(self) -> None:
        """Until cancelled."""
        while True:
            with contextlib.suppress(httpx2.HTTPError):
                async for each in self._stream():
                    self._take(each)
            self.breaks += 1
            self._up.clear()
            await asyncio.sleep(AGAIN_S)

    async def connected(self) -> None:
        """Wait until the stream is open."""
        await self._up.wait()

    async def until(self, claim: Callable[[Happened], bool], *, since: int = 0) -> Happened:
        """Wait for an event, or take one that has happened since a place in `happened`."""
        at = since
        while True:
            for each in self.happened[at:]:
                if claim(each):
                    return each
            at = len(self.happened)
            self._changed.clear()
            await self._changed.wait()

    def _take(self, each: Happened) -> None:
        if each.seq:
            assert each.seq > self.last_id, "a stored event came twice"
            self.last_id = each.seq
        self.happened.append(each)
        self._changed.set()
        self.on_event(each)

    async def _stream(self) -> AsyncIterator[Happened]:
        headers = {"Last-Event-ID": str(self.last_id)}
        async with (
            httpx2.AsyncClient(timeout=httpx2.Timeout(10, read=60), trust_env=False) as client,  # no proxy: it is here
            client.stream("GET", f"{self.server.url}/v1/events", headers=headers) as answer,
        ):
            answer.raise_for_status()
            self._up.set()
            seq, name = 0, ""
            async for line in answer.aiter_lines():
                key, _, value = line.partition(":")
                match key:
                    case "id":
                        seq = int(value)
                    case "event":
                        name = value.strip()
                    case "data":
                        yield Happened(name, seq, json.loads(value))
                        seq, name = 0, ""
                    case _:
                        pass  # a blank line, or a sign of life
