"""The transport over HTTP behind a proxy of the environment, and on connections that ended while nobody used them."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from pathlib import Path
from typing import Self

import pytest
import trustme

from laneway.errors import TransportUnavailableError
from laneway.transports.http import HttpTransport

HOST = "laneway.test"  # no such host: only a proxy can lead there
PASS = f"Basic {base64.b64encode(b'user:secret').decode()}"


class Proxy:
    """A proxy, and behind it a server that says yes to everything. `hang_up` ends all connections."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context
        self._writers: set[asyncio.StreamWriter] = set()
        self.url = ""
        self.asked: list[str] = []  # the first line of each request
        self.passes: list[str] = []
        self.tokens: list[str] = []
        self._server: asyncio.Server

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._answer_all, "127.0.0.1", 0)
        self.url = f"http://user:secret@127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.hang_up()

    def hang_up(self) -> None:
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def _answer_all(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        while not reader.at_eof():
            try:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
            except (asyncio.IncompleteReadError, OSError):
                break
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
            self.asked.append(first)
            if "proxy-authorization" in headers:
                self.passes.append(headers["proxy-authorization"])
            if first.startswith("CONNECT"):
                assert self._context is not None
                writer.write(b"HTTP/1.1 200 yes\r\n\r\n")
                await writer.start_tls(self._context)
                continue
            self.tokens.append(headers["authorization"])
            frames = json.loads(await reader.readexactly(int(headers["content-length"])))["frames"]
            said = json.dumps({"answers": [{"v": 1, "id": each["id"], "ok": True, "leases": []} for each in frames]})
            writer.write(f"HTTP/1.1 200 yes\r\nContent-Length: {len(said)}\r\n\r\n{said}".encode())
        writer.close()


def behind(monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("all_proxy", proxy)


@pytest.mark.slow
async def test_a_proxy_is_asked_with_its_own_password_and_the_server_with_the_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Proxy() as proxy:
        behind(monkeypatch, proxy.url)
        transport = HttpTransport(f"http://{HOST}", token="lw_a_b")
        await transport.start("t", "k")
        assert await transport.claim("w") == []
        await transport.close()
    assert proxy.asked == [f"POST http://{HOST}/v1/tasks/frames HTTP/1.1"] * 2
    assert set(proxy.passes) == {PASS}
    assert proxy.tokens == ["Bearer lw_a_b"] * 2


@pytest.mark.slow
async def test_a_proxy_sees_nothing_of_what_is_said_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(HOST).configure_cert(context)
    async with Proxy(context) as proxy:
        behind(monkeypatch, proxy.url)
        transport = HttpTransport(f"https://{HOST}", token="lw_a_b", verify=tmp_path / "ca.pem")
        await transport.start("t", "k")
        assert await transport.claim("w") == []
        await transport.close()
    assert proxy.asked == [f"CONNECT {HOST}:443 HTTP/1.1", *["POST /v1/tasks/frames HTTP/1.1"] * 2]
    assert proxy.passes == [PASS]
    assert proxy.tokens == ["Bearer lw_a_b"] * 2


@pytest.mark.slow
async def test_a_proxy_that_is_not_there_is_an_error_that_a_later_try_may_get_past(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Proxy() as proxy:
        behind(monkeypatch, proxy.url)
    transport = HttpTransport(f"http://{HOST}", token="lw_a_b")
    with pytest.raises(TransportUnavailableError) as caught:
        await transport.start("t", "k")
    assert "secret" not in str(caught.value)
    await transport.close()


@pytest.mark.slow
async def test_a_connection_that_the_server_has_ended_meanwhile_is_not_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Proxy() as server:
        behind(monkeypatch, server.url)
        transport = HttpTransport(f"http://{HOST}", token="lw_a_b")
        for _ in range(20):
            await transport.start("t", "k")
            server.hang_up()  # and the next request goes out before anybody has heard of it
        assert len(server.tokens) == 20
        await transport.close()
