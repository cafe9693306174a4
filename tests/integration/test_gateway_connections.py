"""A real server and clients that mean no good: raw sockets, slow ones, many of them, and what is not HTTP at all."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from laneway.gateway.connections import GuardedProtocol
from tests.gateway_stage import GatewayStage, serving

WAIT_S = 60
BODY = b'{"text": "hello"}'


class Client:
    """One connection, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *lines: bytes, body: bytes = b"", end: bytes = b"\r\n\r\n") -> None:
        """The head of a request and its body."""
        self.writer.write(b"\r\n".join(lines) + end + body)

    async def answer(self) -> tuple[int, dict[str, Any]]:
        """The status and the JSON of the next answer."""
        async with asyncio.timeout(WAIT_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            body = await self.reader.readexactly(length)
        assert "content-type: application/" in head
        return int(head.split()[1]), json.loads(body)

    async def status(self) -> int:
        """The status of the next answer."""
        return (await self.answer())[0]

    async def is_closed(self) -> bool:
        """Whether the server closes it, and says nothing more."""
        async with asyncio.timeout(WAIT_S):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True


@contextlib.asynccontextmanager
async def client_of(stage: GatewayStage) -> AsyncIterator[Client]:
    """A connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.gateway.settings.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def head(stage: GatewayStage, *more: bytes, line: bytes = b"POST /v1/sessions/s/messages HTTP/1.1") -> list[bytes]:
    """The head of a good request."""
    port = stage.gateway.settings.port
    return [line, b"Host: 127.0.0.1:%d" % port, b"Content-Type: application/json", *more]


async def messages(stage: GatewayStage) -> int:
    """How many messages have come in."""
    found = await stage.gateway.default.inbox.history("s")
    return len(found)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[GatewayStage]:
    async with serving(tmp_path, connections_per_address=20, request_timeout_ms=60_000, body_max=1_000) as made:
        yield made


@pytest.fixture
async def impatient(tmp_path: Path) -> AsyncIterator[GatewayStage]:
    """A server that does not wait long."""
    async with serving(tmp_path, connections_per_address=20, request_timeout_ms=1_000, body_max=1_000) as made:
        yield made


async def works(stage: GatewayStage) -> bool:
    """Whether the server still takes a message of somebody else."""
    async with client_of(stage) as client:
        client.send(*head(stage, b"Content-Length: %d" % len(BODY)), body=BODY)
        return await client.status() == 202


async def test_a_body_that_is_too_large_is_refused_and_the_connection_can_still_be_used(stage: GatewayStage) -> None:
    async with client_of(stage) as client:
        client.send(*head(stage, b"Content-Length: 200000"), body=b"x" * 200_000)
        status, told = await client.answer()
        assert (status, told["code"], told["body_max"]) == (413, "too_large", 1_000)
        client.send(*head(stage, b"Content-Length: %d" % len(BODY)), body=BODY)
        assert await client.status() == 202


async def test_a_body_in_pieces_is_refused_where_it_gets_too_large(stage: GatewayStage) -> None:
    async with client_of(stage) as client:
        client.send(*head(stage, b"Transfer-Encoding: chunked"))
        for _ in range(20):
            client.writer.write(b"64\r\n" + b"x" * 100 + b"\r\n")
        assert await client.status() == 413
        client.writer.write(b"0\r\n\r\n")
        client.send(*head(stage, b"Content-Length: %d" % len(BODY)), body=BODY)
        assert await client.status() == 202


async def test_a_body_that_nobody_wants_is_not_taken_in_for_ever(impatient: GatewayStage) -> None:
    async with client_of(impatient) as client:
        client.send(*head(impatient, b"Transfer-Encoding: chunked"), body=b"7d0\r\n" + b"x" * 2_000 + b"\r\n")
        assert await client.status() == 413
        client.writer.write(b"64\r\n" + b"x" * 100 + b"\r\n")
        assert await client.is_closed()


async def test_a_body_that_does_not_come_is_given_up(impatient: GatewayStage) -> None:
    async with client_of(impatient) as client:
        client.send(*head(impatient, b"Content-Length: 17"), body=BODY[:5])
        status, told = await client.answer()
        assert (status, told["code"]) == (408, "too_slow")
        assert await client.is_closed()
    assert await works(impatient)


async def test_a_head_that_comes_too_slowly_is_given_up(impatient: GatewayStage) -> None:
    async with client_of(impatient) as client:
        client.send(*head(impatient), end=b"\r\nX-Slow: ")
        status, told = await client.answer()
        assert (status, told["code"]) == (408, "too_slow")
        assert await client.is_closed()


async def test_a_connection_on_which_nothing_is_said_is_closed(impatient: GatewayStage) -> None:
    async with client_of(impatient) as client:
        assert await client.is_closed()


async def test_empty_lines_do_not_keep_a_connection_open(impatient: GatewayStage) -> None:
    async with client_of(impatient) as client:
        client.send(*head(impatient, b"Content-Length: %d" % len(BODY)), body=BODY)
        assert await client.status() == 202
        client.writer.write(b"\r\n")
        assert await client.is_closed()


async def test_slow_clients_do_not_keep_others_out(impatient: GatewayStage) -> None:
    async with contextlib.AsyncExitStack() as stack:
        slow = [await stack.enter_async_context(client_of(impatient)) for _ in range(15)]
        for client in slow:
            client.writer.write(b"POST /v1/sess")
        assert await works(impatient)
        assert [await client.status() for client in slow] == [408] * 15


async def test_more_connections_than_one_address_may_have_are_told_so(stage: GatewayStage) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(20):
            await stack.enter_async_context(client_of(stage))
        one_more = await stack.enter_async_context(client_of(stage))
        one_more.send(*head(stage, b"Content-Length: %d" % len(BODY)), body=BODY)
        status, told = await one_more.answer()
        assert (status, told["code"]) == (429, "rate_limited")
        assert await one_more.is_closed()
    assert await messages(stage) == 0
    assert await works(stage)


async def test_hundreds_of_connections_at_one_time_leave_the_server_as_it_was(tmp_path: Path) -> None:
    # On a slow machine the first of them wait for the last one before they say anything: they have time for that.
    async with serving(tmp_path, connections_per_address=20, request_timeout_ms=25_000) as stage:
        async with asyncio.timeout(30):
            opened = await asyncio.gather(
                *(asyncio.open_connection("127.0.0.1", stage.gateway.settings.port) for _ in range(400))
            )
            for _, writer in opened:
                writer.write(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            ends = await asyncio.gather(*(reader.read() for reader, _ in opened), return_exceptions=True)
            for _, writer in opened:
                writer.close()
        answered = [end for end in ends if isinstance(end, bytes) and end]
        assert sum(end.startswith(b"HTTP/1.1 421") for end in answered) == 20
        assert sum(end.startswith(b"HTTP/1.1 429") for end in answered) <= 100
        assert await works(stage)


@pytest.mark.slow
async def test_a_client_that_asks_for_much_and_reads_nothing_is_cut(
    stage: GatewayStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardedProtocol, "stuck_s", 0.2)
    for number in range(8):
        await stage.gateway.default.inbox.wait(
            (await stage.gateway.default.inbox.submit("s", f"{number}" * 900_000)).message_id
        )
    lost = asyncio.Event()
    monkeypatch.setattr(GuardedProtocol, "connection_lost", _noting(GuardedProtocol.connection_lost, lost))
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(("127.0.0.1", stage.gateway.settings.port))
        lines = head(stage, line=b"GET /v1/sessions/s/transcript HTTP/1.1")
        client.sendall(b"\r\n".join(lines) + b"\r\n\r\n")
        async with asyncio.timeout(WAIT_S):
            await lost.wait()
    assert await works(stage)


def _noting(lose: Callable[..., None], lost: asyncio.Event) -> Callable[..., None]:
    def note(self: GuardedProtocol, exc: Exception | None) -> None:
        lose(self, exc)
        lost.set()

    return note


async def test_a_server_that_is_full_says_so(tmp_path: Path) -> None:
    async with serving(tmp_path, connections_max=1) as stage, client_of(stage), client_of(stage) as second:
        second.send(*head(stage, line=b"GET /v1/sessions HTTP/1.1"))
        status, told = await second.answer()
        assert (status, told["code"]) == (503, "overloaded")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 40,
        b"SSH-2.0-OpenSSH_9.6\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nBad Header: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: a\0b\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_not_http_gets_a_problem_and_no_more(stage: GatewayStage, sent: bytes) -> None:
    async with client_of(stage) as client:
        client.writer.write(sent)
        status, told = await client.answer()
        assert (status, told["status"]) == (400, 400)
        assert await client.is_closed()
    assert await works(stage)


async def test_a_head_that_never_ends_is_cut(stage: GatewayStage) -> None:
    async with client_of(stage) as client:
        client.send(*head(stage), end=b"\r\nX-Long: " + b"x" * 100_000)
        status, told = await client.answer()
        assert (status, told["code"]) == (431, "head_too_large")


@pytest.mark.parametrize("line", [b"GET /v1/sessions HTTP/1.1", b"GET /" + b"x" * 60_000 + b" HTTP/1.1"])
async def test_a_head_that_is_too_large_is_refused_however_it_comes(stage: GatewayStage, line: bytes) -> None:
    async with client_of(stage) as client:
        client.send(*head(stage, *(b"X-%d: %s" % (number, b"y" * 6_000) for number in range(12)), line=line))
        status, told = await client.answer()
        assert (status, told["code"]) == (431, "head_too_large")


async def test_a_body_that_is_packed_is_refused(stage: GatewayStage) -> None:
    for coding, status in ((b"gzip", 415), (b"identity", 202)):
        async with client_of(stage) as client:
            length = b"Content-Length: %d" % len(BODY)
            client.send(*head(stage, length, b"Content-Encoding: " + coding), body=BODY)
            assert await client.status() == status


@pytest.mark.parametrize(
    "more", [(), (b"Sec-WebSocket-Version: 13",), (b"Sec-WebSocket-Version: 99", b"Sec-WebSocket-Key: x")]
)
async def test_a_handshake_that_is_none_is_told_why(stage: GatewayStage, more: tuple[bytes, ...]) -> None:
    async with client_of(stage) as client:
        asked = (b"Connection: Upgrade", b"Upgrade: websocket", *more)
        client.send(*head(stage, *asked, line=b"GET /v1/sessions/s/socket HTTP/1.1"))
        status, told = await client.answer()
        assert (status, told["status"], told["code"]) == (400, 400, "bad_handshake")
        assert await client.is_closed()


async def test_a_request_has_a_bounded_number_of_headers(stage: GatewayStage) -> None:
    async with client_of(stage) as client:
        client.send(*head(stage, *(b"X-%d: y" % number for number in range(300))))
        assert await client.status() == 431
        assert await client.is_closed()


async def test_headers_behind_a_body_change_nothing(stage: GatewayStage) -> None:
    async with client_of(stage) as client:
        body = b"11\r\n" + BODY + b"\r\n0\r\nX-Forwarded-For: 192.0.2.1\r\nIdempotency-Key: k\r\n\r\n"
        client.send(*head(stage, b"Transfer-Encoding: chunked"), body=body)
        assert await client.status() == 202


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (b"/v1/../openapi.json", 400),
        (b"/v1/sessions/%2e%2e/messages", 400),
        (b"/v1/sessions/a%00b", 400),
        (b"/v1/sessions/a%0d%0aSet-Cookie:x", 400),
        (b"//evil.example/", 400),
        (b"/v1/sessions/%ff%fe", 400),
        (b"/page/..%2f..%2fetc%2fpasswd", 400),
        (b"/nothing", 404),
        (b"*", 404),
    ],
)
async def test_path_tricks_end_in_a_problem(stage: GatewayStage, path: bytes, status: int) -> None:
    async with client_of(stage) as client:
        client.send(*head(stage, line=b"GET " + path + b" HTTP/1.1"))
        assert await client.status() == status


async def test_a_name_that_is_rebound_to_this_machine_reads_and_writes_nothing(stage: GatewayStage) -> None:
    host = f"evil.example:{stage.gateway.settings.port}"
    for request in (
        stage.client.get("/v1/sessions", headers={"Host": host}),
        stage.client.post(
            "/v1/sessions/s/messages", json={"text": "x"}, headers={"Host": host, "Origin": f"http://{host}"}
        ),
    ):
        answer = await request
        assert (answer.status_code, answer.json()["code"]) == (421, "wrong_host")
    assert await messages(stage) == 0


async def test_pages_of_other_sites_open_no_socket_and_a_refused_one_is_told_why(stage: GatewayStage) -> None:
    url = stage.url.replace("http", "ws") + "/v1/sessions/s/socket"
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        with pytest.raises(InvalidStatus) as caught:
            await connect(url, additional_headers={"Origin": origin}, proxy=None)
        assert caught.value.response.status_code == 403
        assert b"wrong_origin" in (caught.value.response.body or b"")


async def test_a_connection_that_became_a_socket_counts_until_it_ends(tmp_path: Path) -> None:
    async with serving(tmp_path, connections_per_address=1) as stage:
        url = stage.url.replace("http", "ws") + "/v1/sessions/s/socket"
        for _ in range(2):
            async with connect(url, proxy=None), client_of(stage) as second:
                second.send(*head(stage, line=b"GET /v1/sessions HTTP/1.1"))
                assert await second.status() == 429


async def test_a_socket_that_is_refused_or_says_what_is_no_text_leaves_no_error_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as stage:
        url = stage.url.replace("http", "ws")
        paths = {"/nope": 404, "/v1/sessions/s/messages": 404, "/v1/sessions/s/socket?workspace=nope": 404}
        for path, status in {**paths, f"/v1/sessions/s/socket?last_event_id={'9' * 101}": 422}.items():
            with pytest.raises(InvalidStatus) as caught:
                await connect(url + path, proxy=None)
            assert caught.value.response.status_code == status
            assert json.loads(caught.value.response.body or b"")["status"] == status
        async with connect(url + "/v1/sessions/s/socket", proxy=None) as socket:
            await socket.send(b"\xff\xfe", text=True)
            await socket.wait_closed()
            assert socket.close_code == 1007
        async with connect(url + "/v1/sessions/s/socket", proxy=None) as socket:
            await socket.send([b'{"type": "cancel", "id": "', "ä".encode()[:1], "ä".encode()[1:], b'"}'], text=True)
            async for said in socket:
                if json.loads(said)["event"] == "cancelled":
                    break
    assert [each for each in caplog.records if each.levelname not in ("DEBUG", "INFO")] == []
