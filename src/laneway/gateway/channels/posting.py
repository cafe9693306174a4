"""A POST to an address that somebody has configured: to the public Internet only, unless that is allowed by name.

The name is resolved once for each POST, every answer must be public, and the connection goes to an address that was
checked. Redirects are not followed, and proxies of the environment are not used.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from laneway.errors import GiveUp, UnavailableError, describe
from laneway.tools.addresses import Target, is_public

__all__ = ("Answer", "Poster", "Resolve")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""The addresses of a host, as numbers."""
BODY_MAX: Final = 64_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the other side says: only the status counts, and when it wants to be asked again."""

    status: int
    retry_after: str = ""


class Poster:
    """Posts to one address. It keeps nothing between two calls."""

    def __init__(
        self, target: Target, *, timeout_ms: int, allow_private: bool = False, resolve: Resolve | None = None
    ) -> None:
        self._target = target
        self._timeout_ms = timeout_ms
        self._allow_private = allow_private
        self._resolve = resolve or _resolve

    async def post(self, headers: Mapping[str, str], body: bytes) -> Answer:
        """Post once. `UnavailableError`: it did not get there; `GiveUp`: it must not go there."""
        try:
            async with asyncio.timeout(self._timeout_ms / 1000):
                addresses = await self._addresses()
                return await self._post(addresses[0], headers, body)
        except TimeoutError:
            raise UnavailableError(f"{self._target.authority} did not answer in {self._timeout_ms} ms") from None

    async def _addresses(self) -> Sequence[str]:
        found = await self._resolve(self._target.host, self._target.port)
        if not found:
            raise UnavailableError(f"{self._target.host} has no address")
        for address in found:
            if not self._allow_private and not is_public(address):
                raise GiveUp(f"{self._target.host} leads to {address}, which is not of the public Internet")
        return found

    async def _post(self, address: str, headers: Mapping[str, str], body: bytes) -> Answer:
        import httpcore2

        target = self._target
        url = httpcore2.URL(scheme=target.scheme, host=address, port=target.port, target=target.target)
        sent = [("Host", target.authority), ("Content-Length", str(len(body))), *headers.items()]
        names = {"sni_hostname": target.host}  # what the certificate is for
        try:
            async with (
                httpcore2.AsyncConnectionPool(max_connections=1, max_keepalive_connections=0, retries=0) as pool,
                pool.stream("POST", url, headers=sent, content=body, extensions=names) as response,
            ):
                size = 0
                async for piece in response.aiter_stream():
                    size += len(piece)
                    if size > BODY_MAX:
                        break
                said = {name.lower(): value.decode("latin-1") for name, value in response.headers}
                return Answer(status=response.status, retry_after=said.get(b"retry-after", ""))
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError) as error:
            raise UnavailableError(f"{target.authority} could not be reached: {describe(error)}") from error


async def _resolve(host: str, port: int) -> Sequence[str]:
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError) as error:
        raise UnavailableError(f"the name {host} cannot be resolved: {error}") from error
    return list(dict.fromkeys(str(address[0]) for *_, address in found))
