"""A TCP proxy that makes a network bad: it stalls, slows, swallows answers, refuses and cuts.

What is stalled is not lost: it comes when the network is well again, late. What is on its way when a connection is cut
is lost. A connection that is made while everything is stalled is accepted, and nobody says anything: half open.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from enum import StrEnum
from types import TracebackType
from typing import Final, Self

__all__ = ("StallingProxy", "Weather")

PIECE: Final = 65_536
SLOW_PIECE: Final = 64
SLOW_S: Final = 0.02
RESET: Final = struct.pack("ii", 1, 0)  # close without a farewell: the other side gets a reset


class Weather(StrEnum):
    """How the network is."""

    FAIR = "fair"
    STALL = "stall"  # nothing gets through, in neither direction
    DEAF = "deaf"  # what the server says does not get through; what it is told does
    SLOW = "slow"  # a few bytes at a time
    REFUSE = "refuse"  # new connections are reset


class _Link:
    """One connection and its other half."""

    def __init__(self, client: asyncio.StreamWriter) -> None:
        self.client = client
        self.server: asyncio.StreamWriter | None = None
        self.known = asyncio.Event()  # not set: nothing gets through, for ever
        self.known.set()

    def cut(self) -> None:
        """End it without a word; what is on its way is lost."""
        for writer in (self.client, self.server):
            if writer is None:
                continue
            sock: socket.socket | None = writer.get_extra_info("socket")
            if sock is not None:
                with contextlib.suppress(OSError):  # it is closed already
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.transport.abort()


class StallingProxy:
    """Listens on a port of its own and leads to another one on this machine. Open it with `async with`."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.weather = Weather.FAIR
        self.accepted = 0
        self._to_server = asyncio.Event()
        self._to_client = asyncio.Event()
        self._links: dict[_Link, asyncio.Task[None]] = {}
        self._listener: asyncio.Server | None = None
        self.become(Weather.FAIR)

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._listener is not None
        self._listener.close()
        tasks = list(self._links.values())
        self.cut()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._listener.wait_closed()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._listener is not None
        return int(self._listener.sockets[0].getsockname()[1])

    @property
    def links(self) -> int:
        """How many connections there are."""
        return len(self._links)

    def become(self, weather: Weather) -> None:
        """Change the weather for all connections."""
        self.weather = weather
        for gate, closed in ((self._to_server, (Weather.STALL,)), (self._to_client, (Weather.STALL, Weather.DEAF))):
            if weather in closed:
                gate.clear()
            else:
                gate.set()

    def cut(self) -> None:
        """Reset every connection there is. New ones are as the weather is."""
        for link, task in list(self._links.items()):
            link.cut()
            task.cancel()

    def forget(self) -> None:
        """Let nothing through on the connections there are, for ever, as a NAT that forgets them. New ones work."""
        for link in self._links:
            link.known.clear()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(writer)
        self.accepted += 1
        if self.weather is Weather.REFUSE:
            link.cut()
            return
        task = asyncio.current_task()
        assert task is not None
        self._links[link] = task
        try:
            await self._to_server.wait()  # nobody is there yet
            await self._join(link, reader)
        except (OSError, asyncio.CancelledError):
            link.cut()  # one side is gone, so the other one hears of it; or the proxy cut it itself
        finally:
            del self._links[link]

    async def _join(self, link: _Link, reader: asyncio.StreamReader) -> None:
        answers, link.server = await asyncio.open_connection("127.0.0.1", self.target)
        pumps = [
            asyncio.create_task(self._pump(reader, link.server, (self._to_server, link.known))),
            asyncio.create_task(self._pump(answers, link.client, (self._to_client, link.known))),
        ]
        try:
            await asyncio.gather(*pumps)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        for writer in (link.client, link.server):
            writer.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, gates: tuple[asyncio.Event, ...]
    ) -> None:
        while piece := await reader.read(PIECE):
            await _all_open(gates)
            for part in self._parts(piece):
                if len(part) < len(piece):
                    await asyncio.sleep(SLOW_S)
                    await _all_open(gates)
                if writer.is_closing():
                    raise ConnectionResetError("the other side is gone")
                writer.write(part)
            await writer.drain()
        await _all_open(gates)
        if writer.can_write_eof():
            writer.write_eof()

    def _parts(self, piece: bytes) -> list[bytes]:
        if self.weather is not Weather.SLOW:
            return [piece]
        return [piece[at : at + SLOW_PIECE] for at in range(0, len(piece), SLOW_PIECE)]


async def _all_open(gates: tuple[asyncio.Event, ...]) -> None:
    for gate in gates:
        await gate.wait()
