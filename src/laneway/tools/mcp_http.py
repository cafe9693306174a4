"""A server that speaks MCP over HTTP, at an address that the configuration names.

The transport is that of the SDK; what goes through it is watched here. A body has a bound, a flood is read slowly, and
what may be a secret (a password or a query in the address) is added to a request at the last moment, so that no log of
the libraries in between ever shows it.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from urllib.parse import unquote

import anyio
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.streamable_http import MCP_SESSION_ID, streamable_http_client
from mcp.shared.message import SessionMessage

from laneway.errors import TransportUnavailableError
from laneway.policies import McpServerConfig
from laneway.tools.mcp_sieve import Sieve

__all__ = ("BODY_MAX", "Address")

BODY_MAX: Final = 8 * 1024 * 1024
BURST: Final = 256 * 1024
PAUSE_S: Final = 0.01
LEAVE_S: Final = 2.0
REDIRECTS_MAX: Final = 3  # a call is told again at the next address


class Address:
    """One connection to such a server."""

    def __init__(self, config: McpServerConfig, on_lost: Callable[[str], None]) -> None:
        assert config.url is not None
        self._on_lost = on_lost
        self._sieve = Sieve()
        try:
            url = httpx2.URL(config.url)
            headers = httpx2.Headers(dict(config.headers))
        except (httpx2.InvalidURL, TypeError, ValueError):  # what they say may hold a secret
            raise TransportUnavailableError("its address or its headers cannot be used") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise TransportUnavailableError("its address is no http or https address")
        if url.userinfo and "authorization" not in headers:
            user, _, password = url.userinfo.decode().partition(":")
            token = base64.b64encode(f"{unquote(user)}:{unquote(password)}".encode()).decode()
            headers["authorization"] = f"Basic {token}"
        headers["accept-encoding"] = "identity"  # what is packed has no bound until it is unpacked
        self._query = url.query
        self._shown = url.copy_with(userinfo=b"", query=None, fragment=None)
        self._headers = headers
        self._connect_s = config.start_timeout_ms / 1000

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        """The streams that the SDK wants of a transport."""
        timeout = httpx2.Timeout(connect=self._connect_s, read=None, write=30.0, pool=None)
        transport = _Watched(self._headers, self._shown.host, self._query)
        address = str(self._shown)
        async with (
            httpx2.AsyncClient(timeout=timeout, transport=transport, max_redirects=REDIRECTS_MAX) as client,
            streamable_http_client(address, http_client=client, max_sse_event_size=BODY_MAX) as (heard, told),
        ):
            to_session, read = anyio.create_memory_object_stream[SessionMessage | Exception](16)
            write, from_session = anyio.create_memory_object_stream[SessionMessage](64)
            loop = asyncio.get_running_loop()
            tasks = [
                loop.create_task(self._hear(heard, to_session), name="mcp-heard"),
                loop.create_task(self._tell(from_session, told), name="mcp-told"),
            ]
            try:
                yield read, write
            finally:
                for stream in (to_session, read, write, from_session):
                    stream.close()
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)  # the SDK may not let anybody wait here

    async def _hear(self, heard: Any, to_session: MemoryObjectSendStream[SessionMessage | Exception]) -> None:
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for each in heard:
                if isinstance(each, SessionMessage) and self._sieve.takes(each.message):
                    await to_session.send(each)
                await self._sieve.pace()
        self._on_lost("the connection was closed")
        to_session.close()

    async def _tell(self, from_session: MemoryObjectReceiveStream[SessionMessage], told: Any) -> None:
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for each in from_session:
                self._sieve.told(each.message)
                await told.send(each)

    async def ended(self) -> str:
        """An address has no exit code."""
        return ""


class _Watched(httpx2.AsyncBaseTransport):
    """The transport of a client, with bounds. The headers and the query of the address are known here only."""

    def __init__(self, headers: httpx2.Headers, host: str, query: bytes) -> None:
        self._headers = headers
        self._host = host
        self._query = query
        self._inner = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.url.host != self._host:  # the headers are for nobody else
            raise httpx2.UnsupportedProtocol("the server leads to another host")
        headers = request.headers.copy()
        headers.update(self._headers)
        extensions = dict(request.extensions)
        if request.method == "DELETE":  # saying goodbye must not hold up anybody
            extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), LEAVE_S)
        url = request.url.copy_with(query=self._query) if self._query else request.url
        sent = httpx2.Request(request.method, url, headers=headers, stream=request.stream, extensions=extensions)
        response = await self._inner.handle_async_request(sent)
        if response.status_code == httpx2.codes.NOT_FOUND and MCP_SESSION_ID in request.headers:
            # It does not know this session any more, and has run nothing. How it says so, the SDK must not go by.
            await response.aclose()
            return httpx2.Response(response.status_code)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        kind = response.headers.get("content-type", "").lower()
        is_endless = request.method == "GET" and kind.startswith("text/event-stream")
        response.stream = _Bounded(response.stream, None if is_endless else BODY_MAX)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise httpx2.RemoteProtocolError("the answer is packed, which was not asked for")
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Bounded(httpx2.AsyncByteStream):
    """The body of an answer: read slowly if there is much of it, and not beyond its bound."""

    def __init__(self, stream: httpx2.AsyncByteStream, most: int | None) -> None:
        self._stream = stream
        self._most = most

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = burst = 0
        async for piece in self._stream:
            size += len(piece)
            burst += len(piece)
            if self._most is not None and size > self._most:
                raise httpx2.StreamError(f"its answer has more than {self._most:,} bytes")
            if burst > BURST:
                burst = 0
                await asyncio.sleep(PAUSE_S)
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
