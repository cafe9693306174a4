"""`web_fetch`: one page of the public Internet as text.

Where a name leads is asked once for each hop, every answer must be public (see `addresses`), and the connection goes to
an address that was checked, not to the name: a name that leads elsewhere a moment later gains nothing. Redirects are
followed by hand and take the same road; where they lead is held against the permissions, too. Proxies of the
environment are not used; they would resolve names themselves.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.message import Message
from typing import TYPE_CHECKING, Any, Final

from laneway.dialogue import ToolContext, ToolOutput
from laneway.errors import ConfigError, UnavailableError, describe
from laneway.records import Effect
from laneway.tools.addresses import Network, Target, is_public, join, parse_url
from laneway.tools.outputs import ToolRefusedError, in_thread
from laneway.tools.pages import page_text
from laneway.tools.registry import FunctionTool
from laneway.tools.searches import BINARY_START, looks_binary

if TYPE_CHECKING:
    import httpcore2

__all__ = ("Resolve", "WebSettings", "web_fetch_tool")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host, as numbers."""

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_TEXT_TYPES: Final = frozenset(
    {
        "application/ecmascript", "application/graphql", "application/javascript", "application/json",
        "application/jsonl", "application/ld+json", "application/rtf", "application/sql", "application/toml",
        "application/x-javascript", "application/x-ndjson", "application/x-sh", "application/x-yaml", "application/xml",
        "application/yaml", "image/svg+xml", "message/rfc822",
    }
)  # fmt: skip
_HTML_TYPES: Final = frozenset({"text/html", "application/xhtml+xml"})
_ENCODINGS: Final = ("utf", "iso8859", "latin", "ascii", "cp", "koi8", "shift_jis", "euc", "gb", "big5", "mac")
ADDRESSES_MAX: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """What may be fetched, and how much of it.

    `allow_networks` are networks that may be reached although they are not public, such as `127.0.0.0/8` in a test.
    """

    timeout_ms: int = 30_000
    body_max: int = 5_000_000
    redirects_max: int = 10
    user_agent: str = "laneway-web-fetch"
    allow_networks: tuple[str, ...] = ()
    resolve: Resolve | None = None


def web_fetch_tool(settings: WebSettings | None = None) -> FunctionTool[..., Any]:
    """The tool `web_fetch` with these settings."""
    used = settings or WebSettings()
    try:
        networks = tuple(ipaddress.ip_network(each) for each in used.allow_networks)
    except ValueError as error:
        raise ConfigError(f"allow_networks: {error}", setting="allow_networks", value=used.allow_networks) from None
    fetcher = _Fetcher(used, networks)

    async def web_fetch(context: ToolContext, url: str) -> ToolOutput:
        """Fetch a page of the public Internet and answer with its text.

        Args:
            url: The address, beginning with http:// or https://.
        """
        return await fetcher.fetch(context, url)

    return FunctionTool(web_fetch, effect=Effect.READ)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Response:
    target: Target
    status: int
    media_type: str
    charset: str
    location: str
    body: bytes
    is_cut: bool


class _Fetcher:
    """Fetches pages; keeps nothing between two calls, no connections and no cookies."""

    def __init__(self, settings: WebSettings, networks: Sequence[Network]) -> None:
        self._settings = settings
        self._networks = networks

    async def fetch(self, context: ToolContext, url: str) -> ToolOutput:
        try:
            async with asyncio.timeout(self._settings.timeout_ms / 1000):
                response = await self._follow(parse_url(url), context.extra.get("allows_url"))
        except TimeoutError:
            raise UnavailableError(f"{url[:200]} did not answer within {self._settings.timeout_ms} ms") from None
        output: ToolOutput = await in_thread(context, _answer, response)
        return output

    async def _follow(self, target: Target, allows: Callable[[str], bool] | None) -> _Response:
        for _ in range(self._settings.redirects_max + 1):
            response = await self._get(target)
            if not response.location:
                return response
            came_from, target = target, join(target, response.location)
            if allows is not None and not allows(str(target)):
                raise ToolRefusedError(f"{came_from} redirects to {target}, which the permissions do not allow")
        raise ToolRefusedError(f"more than {self._settings.redirects_max} redirects; the last one leads to {target}")

    async def _get(self, target: Target) -> _Response:
        import httpcore2

        addresses = await self._addresses(target)
        headers = [
            ("Host", target.authority),
            ("User-Agent", self._settings.user_agent),
            ("Accept", "text/html,text/*;q=0.9,application/json;q=0.9,*/*;q=0.1"),
            ("Accept-Encoding", "gzip"),
        ]
        url = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.target)
        try:
            async with _pool(addresses) as pool, pool.stream("GET", url, headers=headers) as response:
                return await self._read(target, response)
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as error:
            raise UnavailableError(f"{target.authority} could not be fetched from: {describe(error)}") from error
        except OSError as error:  # among them what TLS finds wrong
            raise UnavailableError(f"{target.authority} could not be reached: {error}") from error

    async def _addresses(self, target: Target) -> list[str]:
        found = await (self._settings.resolve or _resolve)(target.host, target.port)
        if not found:
            raise ToolRefusedError(f"{target.host} has no address")
        for address in found:
            if not is_public(address, self._networks):
                raise ToolRefusedError(
                    f"{target.host} leads to {address}, which is not of the public Internet; it is not fetched"
                )
        return list(found)[:ADDRESSES_MAX]

    async def _read(self, target: Target, response: httpcore2.Response) -> _Response:
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in response.headers}
        media_type, charset = _content_type(headers.get("content-type", ""))
        location = headers.get("location", "") if response.status in _REDIRECTS else ""
        body, is_cut = b"", False
        if not location:
            _check_type(media_type, target)
            body, is_cut = await self._body(response, headers.get("content-encoding", "identity"))
        return _Response(
            target=target,
            status=response.status,
            media_type=media_type,
            charset=charset,
            location=location,
            body=body,
            is_cut=is_cut,
        )

    async def _body(self, response: httpcore2.Response, encoding: str) -> tuple[bytes, bool]:
        """The first `body_max` bytes, unpacked, and whether there are more."""
        unpack = _unpacker(encoding.strip().lower())
        most = self._settings.body_max
        taken = bytearray()
        async for piece in response.aiter_stream():
            taken += unpack(piece, most + 1 - len(taken))
            if len(taken) > most:
                return bytes(taken[:most]), True
        return bytes(taken), False


async def _resolve(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise UnavailableError(f"the name {host} cannot be resolved now: {error.strerror}") from error
        raise ToolRefusedError(f"there is no host {host}: {error.strerror}") from None
    except UnicodeError:
        raise ToolRefusedError(f"{host} is not the name of a host") from None
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


@asynccontextmanager
async def _pool(addresses: Sequence[str]) -> AsyncIterator[httpcore2.AsyncConnectionPool]:
    """Connections that go to these addresses and nowhere else, whatever name they are asked for."""
    import httpcore2

    inner = httpcore2.AnyIOBackend()
    opened: list[httpcore2.AsyncNetworkStream] = []

    class Pinned(httpcore2.AsyncNetworkBackend):
        async def connect_tcp(
            self,
            host: str,  # for the certificate; the address was decided before
            port: int,
            timeout: float | None = None,  # noqa: ASYNC109 - the interface of httpcore
            local_address: str | None = None,
            socket_options: Iterable[Any] | None = None,
        ) -> httpcore2.AsyncNetworkStream:
            for last, address in enumerate(addresses, 1 - len(addresses)):
                try:
                    opened.append(await inner.connect_tcp(address, port, timeout, local_address, socket_options))
                except httpcore2.ConnectError:
                    if not last:
                        raise
                else:
                    return opened[-1]
            raise AssertionError("there is at least one address")

        async def sleep(self, seconds: float) -> None:
            await asyncio.sleep(seconds)

    try:
        async with httpcore2.AsyncConnectionPool(
            max_connections=1, max_keepalive_connections=0, retries=0, network_backend=Pinned()
        ) as pool:
            yield pool
    finally:
        for stream in opened:  # one that is cancelled in the middle of a TLS handshake is left open by the pool
            await stream.aclose()


def _content_type(header: str) -> tuple[str, str]:
    message = Message()
    message["content-type"] = header or "application/octet-stream"
    return ("" if not header else message.get_content_type()), str(message.get_param("charset") or "")


def _check_type(media_type: str, target: Target) -> None:
    is_text = media_type.startswith("text/") or media_type.endswith(("+json", "+xml", "+yaml"))
    if media_type and not is_text and media_type not in _TEXT_TYPES:
        raise ToolRefusedError(f"{target} is {media_type}, not text")


def _unpacker(encoding: str) -> Callable[[bytes, int], bytes]:
    """A function that unpacks pieces, and never makes more of them than it is told: a bomb stays folded."""
    match encoding:
        case "identity" | "":
            return lambda piece, most: piece[:most]
        case "gzip" | "x-gzip":
            inner = zlib.decompressobj(zlib.MAX_WBITS | 16)
        case "deflate":
            inner = zlib.decompressobj()
        case _:
            raise ToolRefusedError(f"the page is packed in a way that cannot be unpacked here: {encoding[:50]}")

    def unpack(piece: bytes, most: int) -> bytes:
        try:
            return inner.decompress(piece, most)
        except zlib.error as error:
            raise ToolRefusedError(f"the page is damaged: {error}") from None

    return unpack


def _answer(response: _Response) -> ToolOutput:
    """What the model gets to see; takes as long as the page is."""
    if looks_binary(response.body[:BINARY_START]) and not response.charset.lower().startswith("utf-16"):
        raise ToolRefusedError(f"{response.target} is binary, not text")
    text = _decoded(response)
    if response.media_type in _HTML_TYPES:
        text = page_text(text, str(response.target))
    if response.is_cut:
        text += f"\n[only the first {len(response.body)} bytes of it were read]"
    is_error = response.status >= 400
    return ToolOutput(
        text=f"HTTP {response.status} from {response.target}\n\n{text}" if is_error else text, is_error=is_error
    )


def _decoded(response: _Response) -> str:
    """The text in the encoding it claims, if that is one that texts have; else in UTF-8."""
    import codecs
    import re

    name = response.charset
    if not name and response.media_type in _HTML_TYPES:
        found = re.search(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?([A-Za-z0-9_-]{1,40})", response.body[:4096])
        name = found[1].decode() if found else ""
    try:
        known = codecs.lookup(name or "utf-8").name
    except (LookupError, ValueError):
        known = "utf-8"
    if not known.startswith(_ENCODINGS) or known in ("utf-7", "utf_7"):
        known = "utf-8"
    return response.body.decode(known, "replace").removeprefix("\ufeff")
