"""The proxy that makes a network bad does to connections what it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.integration.processes import eventually
from tests.stalling_proxy import StallingProxy, Weather

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """A server that says everything again, and knows what it was told."""

    def __init__(self) -> None:
        self.heard = b""

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(1000):
                self.heard += piece
                writer.write(piece)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def network() -> AsyncIterator[tuple[StallingProxy, Echo]]:
    echo = Echo()
    server = await asyncio.start_server(echo.answer, "127.0.0.1", 0)
    async with StallingProxy(server.sockets[0].getsockname()[1]) as proxy:
        yield proxy, echo
    server.close()
    await server.wait_closed()


async def connected(proxy: StallingProxy) -> Ends:
    return await asyncio.open_connection("127.0.0.1", proxy.port)


async def said(ends: Ends, text: bytes) -> bytes:
    ends[1].write(text)
    return await ends[0].readexactly(len(text))


async def is_silent(reader: asyncio.StreamReader) -> bool:
    """Whether nothing comes, for as long as loopback would need many times over."""
    try:
        await asyncio.wait_for(reader.read(1), 0.05)
    except TimeoutError:
        return True
    return False


async def test_in_fair_weather_everything_gets_through_to_the_end() -> None:
    async with network() as (proxy, _):
        reader, writer = ends = await connected(proxy)
        assert await said(ends, b"x" * 300_000) == b"x" * 300_000
        writer.write_eof()
        assert await reader.read() == b""
        assert await eventually(lambda: proxy.links == 0)
        writer.close()


async def test_what_is_stalled_comes_late() -> None:
    async with network() as (proxy, echo):
        reader, writer = ends = await connected(proxy)
        assert await said(ends, b"one") == b"one"
        proxy.become(Weather.STALL)
        writer.write(b"two")
        assert await is_silent(reader)
        assert echo.heard == b"one"
        proxy.become(Weather.FAIR)
        assert await reader.readexactly(3) == b"two"
        writer.close()


async def test_a_connection_that_is_made_in_a_stall_is_half_open() -> None:
    async with network() as (proxy, echo):
        proxy.become(Weather.STALL)
        reader, writer = await connected(proxy)
        writer.write(b"hello")
        assert await is_silent(reader)
        assert echo.heard == b""
        proxy.become(Weather.FAIR)
        assert await reader.readexactly(5) == b"hello"
        writer.close()


async def test_what_a_deaf_client_says_is_heard_and_a_cut_loses_the_answer() -> None:
    async with network() as (proxy, echo):
        reader, writer = ends = await connected(proxy)
        assert await said(ends, b"one") == b"one"
        proxy.become(Weather.DEAF)
        writer.write(b"two")
        assert await is_silent(reader)
        assert await eventually(lambda: echo.heard == b"onetwo")
        proxy.cut()
        proxy.become(Weather.FAIR)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(3)
        writer.close()


async def test_in_slow_weather_bytes_come_a_few_at_a_time() -> None:
    async with network() as (proxy, _):
        proxy.become(Weather.SLOW)
        reader, writer = await connected(proxy)
        writer.write(b"x" * 200)
        assert len(await reader.read(1000)) <= 64
        writer.close()


async def test_refused_connections_are_reset_and_later_ones_are_not() -> None:
    async with network() as (proxy, _):
        proxy.become(Weather.REFUSE)
        reader, writer = await connected(proxy)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        writer.close()
        proxy.become(Weather.FAIR)
        ends = await connected(proxy)
        assert await said(ends, b"here") == b"here"
        ends[1].close()


async def test_a_server_that_is_not_there_is_a_reset() -> None:
    async with network() as (proxy, _):
        proxy.target = 1
        reader, writer = await connected(proxy)
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        assert proxy.links == 0
        writer.close()


async def test_a_forgotten_connection_is_silent_for_ever_and_a_new_one_works() -> None:
    async with network() as (proxy, echo):
        reader, writer = ends = await connected(proxy)
        assert await said(ends, b"one") == b"one"
        proxy.forget()
        writer.write(b"two")
        assert await is_silent(reader)
        other = await connected(proxy)
        assert await said(other, b"three") == b"three"
        assert echo.heard == b"onethree"
        for each in (writer, other[1]):
            each.close()
