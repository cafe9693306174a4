"""`web_fetch` against a server of our own on loopback, which the settings allow."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from laneway.dialogue import ToolContext, ToolOutput
from laneway.errors import UnavailableError
from laneway.kernel.permissions import allows_url
from laneway.options import PermissionPolicy
from laneway.tools.web import WebSettings, web_fetch_tool

CONTEXT = ToolContext(workspace=".")
LOOPBACK = ("127.0.0.0/8",)
Answer = Callable[[str], bytes]

# For site.example, signed by itself, good for a hundred years, and good for nothing else.
CERTIFICATE = """\
-----BEGIN CERTIFICATE-----
MIIBnjCCAUSgAwIBAgIULRSFLPO8FeJsCcJpdro3XYrD79EwCgYIKoZIzj0EAwIw
FzEVMBMGA1UEAwwMc2l0ZS5leGFtcGxlMCAXDTI2MTExNjAzMDI0M1oYDzIxMjYx
MDIzMDMwMjQzWjAXMRUwEwYDVQQDDAxzaXRlLmV4YW1wbGUwWTATBgcqhkjOPQIB
BggqhkjOPQMBBwNCAASMJ5XJqCNqglqOyV0FiMF8hWt78OoXvILvUeV0lUVfN3+4
iYbcnp5DOe+FqWohSh2FmfXVahcBv2DQn9/sRcS7o2wwajAdBgNVHQ4EFgQUtjNT
YBNe0BauCkSONjYK7tHWZcEwHwYDVR0jBBgwFoAUtjNTYBNe0BauCkSONjYK7tHW
ZcEwDwYDVR0TAQH/BAUwAwEB/zAXBgNVHREEEDAOggxzaXRlLmV4YW1wbGUwCgYI
KoZIzj0EAwIDSAAwRQIgFBTy/pdZhNE75pn2gNURa9yuF+V60/CFwNFHhBCgjEsC
IQD0DbRRkFfxovvSSHTKOtE4bGKQGS8owbaSj7HK4nDH2A==
-----END CERTIFICATE-----
"""
KEY = """\
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQg+PaT/aYF77WbWxf7
vgm6itpm+UAhRw1EvsMrRxJls4ihRANCAASMJ5XJqCNqglqOyV0FiMF8hWt78OoX
vILvUeV0lUVfN3+4iYbcnp5DOe+FqWohSh2FmfXVahcBv2DQn9/sRcS7
-----END PRIVATE KEY-----
"""


@dataclass
class Server:
    """Answers each request with what `answer` makes of its path, byte for byte."""

    answer: Answer
    port: int = 0
    requests: list[str] = field(default_factory=list)
    resolved: list[str] = field(default_factory=list)
    addresses: dict[str, list[list[str]]] = field(default_factory=dict)
    context: ToolContext = CONTEXT

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.requests.append(request)
            writer.write(self.answer(request.split()[1]))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        self.resolved.append(host)
        answers = self.addresses.get(host, [["127.0.0.1"]])
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def fetch(self, path: str, *, host: str = "site.example", **options: int) -> ToolOutput:
        settings = WebSettings(
            allow_networks=LOOPBACK,
            resolve=self.resolve,
            timeout_ms=options.get("timeout_ms", 60_000),
            body_max=options.get("body_max", 5_000_000),
            redirects_max=options.get("redirects_max", 10),
        )
        return await web_fetch_tool(settings).run({"url": f"http://{host}:{self.port}{path}"}, self.context)


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Server]:
    server = Server(answer)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    async with listener:
        yield server


def page(body: bytes, content_type: str = "text/html", *more: str, status: str = "200 OK") -> bytes:
    kind = [f"Content-Type: {content_type}"] if content_type else []
    lines = [f"HTTP/1.1 {status}", *kind, f"Content-Length: {len(body)}", *more]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def redirect(location: str) -> bytes:
    return page(b"", "text/html", f"Location: {location}", status="302 Found")


async def test_a_page_is_fetched_by_its_name_and_read_as_text() -> None:
    async with serving(lambda path: page(b"<title>T</title><p>Hello <a href='/x'>there</a>")) as server:
        output = await server.fetch("/a%20b?q=1#part")
        assert output == ToolOutput(text=f"# T\n\nHello [there](http://site.example:{server.port}/x)")
        assert server.requests[0].startswith("GET /a%20b?q=1 HTTP/1.1\r\n")
        assert f"Host: site.example:{server.port}\r\n" in server.requests[0]
        assert "cookie" not in server.requests[0].lower()
        assert "authorization" not in server.requests[0].lower()


async def test_every_hop_of_a_redirect_is_resolved_once_and_checked() -> None:
    def answer(path: str) -> bytes:
        return redirect("/second") if path == "/first" else page(b"done", "text/plain")

    async with serving(answer) as server:
        assert (await server.fetch("/first")).text == "done"
        assert server.resolved == ["site.example", "site.example"]


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("http://inside.example:{port}/", "leads to 10.0.0.1"),
        ("//inside.example:{port}/", "leads to 10.0.0.1"),
        ("http://169.254.169.254/latest", "odd"),
        ("file:///etc/passwd", "only URLs that begin with"),
        ("http://[bad", "which is not a URL"),
        ("http://a b/", "is not a URL"),
        ("http://user:pw@site.example:{port}/", "user name or a password"),
        ("http://0x7f.1:{port}/", "odd spelling"),
        ("http://[::ffff:127.0.0.1]:{port}/", "leads to ::ffff:127.0.0.1"),
    ],
)
async def test_a_redirect_to_the_inside_is_refused(location: str, says: str) -> None:
    async with serving(lambda path: redirect(location.format(port=server.port))) as server:
        server.addresses["inside.example"] = [["10.0.0.1"]]
        server.addresses["169.254.169.254"] = [["169.254.169.254"]]
        server.addresses["::ffff:7f00:1"] = [["::ffff:127.0.0.1"]]
        server.addresses["::ffff:127.0.0.1"] = [["::ffff:127.0.0.1"]]
        output = await server.fetch("/")
        assert output.is_error
        assert (says if says != "odd" else "leads to 169.254.169.254") in output.text
        assert len(server.requests) == 1


async def test_a_redirect_is_held_against_the_permissions() -> None:
    def answer(path: str) -> bytes:
        if path == "/near":
            return redirect("/here")
        return redirect(f"http://other.example:{server.port}/") if path == "/far" else page(b"done", "text/plain")

    async with serving(answer) as server:
        policy = PermissionPolicy(deny=("web_fetch(other.example)",), default_decision="allow")
        server.context = ToolContext(workspace=".", extra={"allows_url": allows_url(policy)})
        assert (await server.fetch("/near")).text == "done"
        output = await server.fetch("/far")
        assert output.is_error
        assert f"redirects to http://other.example:{server.port}/, which the permissions do not allow" in output.text
        assert server.resolved == ["site.example"] * 3
        server.context = CONTEXT
        assert (await server.fetch("/far")).text == "done"


async def test_a_name_that_leads_elsewhere_a_moment_later_gains_nothing() -> None:
    """The second answer would be an inner address; it is never asked for, because the first one was connected to."""
    async with serving(lambda path: page(b"outside", "text/plain")) as server:
        server.addresses["site.example"] = [["127.0.0.1"], ["10.0.0.1"]]
        assert (await server.fetch("/")).text == "outside"
        assert server.resolved == ["site.example"]
        output = await server.fetch("/")
        assert "leads to 10.0.0.1" in output.text
        assert len(server.requests) == 1


async def test_the_next_address_is_tried_when_one_does_not_answer() -> None:
    async with serving(lambda path: page(b"here", "text/plain")) as server:
        server.addresses["site.example"] = [["127.0.0.2", "127.0.0.1"]]
        assert (await server.fetch("/")).text == "here"


async def test_redirects_without_end_are_ended() -> None:
    async with serving(lambda path: redirect(path + "x")) as server:
        output = await server.fetch("/", redirects_max=3)
        assert output.is_error
        assert "more than 3 redirects" in output.text
        assert len(server.requests) == 4


async def test_an_error_of_the_server_is_an_answer_with_its_text() -> None:
    async with serving(lambda path: page(b"<p>gone", status="404 Not Found")) as server:
        output = await server.fetch("/none")
        assert output == ToolOutput(text=f"HTTP 404 from http://site.example:{server.port}/none\n\ngone", is_error=True)


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("application/json; charset=utf-8", b'{"a": 1}', '{"a": 1}'),
        ("application/vnd.api+json", b"{}", "{}"),
        ("text/plain; charset=iso-8859-1", b"caf\xe9", "café"),
        ("text/plain; charset=windows-1252", b"\x80", "€"),
        ("text/plain; charset=utf-16", "ü".encode("utf-16"), "ü"),
        ("text/plain; charset=utf-7", b"+AGE-", "+AGE-"),
        ("text/plain; charset=hex", b"6161", "6161"),
        ("text/plain; charset=no-such", b"\xc3\xbc", "ü"),
        ("text/plain", b"\xff", "\ufffd"),
        ("text/html", b"<meta charset=latin-1><p>caf\xe9", "café"),
        ("", b"no type", "no type"),
        ("text/plain", b"\xef\xbb\xbfmark", "mark"),
    ],
)
async def test_text_of_every_kind_is_read(content_type: str, body: bytes, text: str) -> None:
    async with serving(lambda path: page(body, content_type)) as server:
        assert (await server.fetch("/")).text == text


@pytest.mark.parametrize("content_type", ["image/png", "application/pdf", "application/octet-stream", "video/mp4"])
async def test_what_is_not_text_is_refused(content_type: str) -> None:
    async with serving(lambda path: page(b"x", content_type)) as server:
        output = await server.fetch("/")
        assert output.is_error
        assert f"is {content_type}, not text" in output.text


async def test_text_that_is_binary_is_refused() -> None:
    async with serving(lambda path: page(b"\x89PNG\x00\x00", "text/plain")) as server:
        assert "is binary, not text" in (await server.fetch("/")).text


async def test_a_packed_page_is_unpacked_and_a_bomb_is_not() -> None:
    packed = gzip.compress(b"small")
    bomb = gzip.compress(b"x" * 20_000_000)

    def answer(path: str) -> bytes:
        return page(bomb if path == "/bomb" else packed, "text/plain", "Content-Encoding: gzip")

    async with serving(answer) as server:
        assert (await server.fetch("/")).text == "small"
        output = await server.fetch("/bomb", body_max=10_000)
        assert output.text == "x" * 10_000 + "\n[only the first 10000 bytes of it were read]"


@pytest.mark.parametrize("encoding", ["br", "gzip"])
async def test_a_page_that_cannot_be_unpacked_is_an_answer(encoding: str) -> None:
    async with serving(lambda path: page(b"nonsense", "text/plain", f"Content-Encoding: {encoding}")) as server:
        output = await server.fetch("/")
        assert output.is_error
        assert "the page is" in output.text


async def test_a_page_without_end_is_read_up_to_its_bound() -> None:
    async with serving(lambda path: page(b"y" * 3_000_000, "text/plain")) as server:
        output = await server.fetch("/", body_max=1000)
        assert output.text.startswith("y" * 1000 + "\n[only the first 1000 bytes")


async def test_a_server_that_never_answers_is_left_in_time() -> None:
    waiting = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await waiting.wait()
        writer.close()

    listener = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        fetch = web_fetch_tool(WebSettings(allow_networks=LOOPBACK, timeout_ms=100))
        with pytest.raises(UnavailableError, match="did not answer within 100 ms"):
            await fetch.run({"url": f"http://127.0.0.1:{port}/"}, CONTEXT)
        waiting.set()


@pytest.mark.parametrize(
    "raw",
    [b"", b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\nshort"],
)
async def test_a_server_that_breaks_the_rules_is_a_failure_that_may_be_tried_again(raw: bytes) -> None:
    async with serving(lambda path: raw) as server:
        with pytest.raises(UnavailableError, match="could not be"):
            await server.fetch("/")


async def test_a_port_where_nobody_listens_is_a_failure_that_may_be_tried_again() -> None:
    async with serving(lambda path: b"") as server:
        port = server.port
    fetch = web_fetch_tool(WebSettings(allow_networks=LOOPBACK))
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:\d+ could not be"):
        await fetch.run({"url": f"http://127.0.0.1:{port}/"}, CONTEXT)


async def test_a_handshake_that_never_ends_leaves_no_connection_open() -> None:
    closed = asyncio.Event()

    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1000):
            pass
        closed.set()
        writer.close()

    async with await asyncio.start_server(mute, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        fetch = web_fetch_tool(WebSettings(allow_networks=LOOPBACK, timeout_ms=200))
        with pytest.raises(UnavailableError, match="did not answer within 200 ms"):
            await fetch.run({"url": f"https://127.0.0.1:{port}/"}, CONTEXT)
        await asyncio.wait_for(closed.wait(), 60)
        assert closed.is_set()


async def test_a_server_without_tls_is_a_failure() -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(plain, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        fetch = web_fetch_tool(WebSettings(allow_networks=LOOPBACK))
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:\d+ could not be"):
            await fetch.run({"url": f"https://127.0.0.1:{port}/"}, CONTEXT)


async def test_the_certificate_must_be_that_of_the_name_although_the_address_was_decided_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cert.pem").write_text(CERTIFICATE)
    (tmp_path / "both.pem").write_text(KEY + CERTIFICATE)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "both.pem")
    server = Server(lambda path: page(b"safe", "text/plain"))
    async with await asyncio.start_server(server.serve, "127.0.0.1", 0, ssl=tls) as listener:
        port = listener.sockets[0].getsockname()[1]
        fetch = web_fetch_tool(WebSettings(allow_networks=LOOPBACK, resolve=server.resolve))
        assert (await fetch.run({"url": f"https://site.example:{port}/"}, CONTEXT)).text == "safe"
        with pytest.raises(UnavailableError, match=r"(?i)certificate"):
            await fetch.run({"url": f"https://other.example:{port}/"}, CONTEXT)


async def test_cancelling_closes_the_connection() -> None:
    begun, closed = asyncio.Event(), asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        begun.set()
        await reader.read()
        closed.set()
        writer.close()

    listener = await asyncio.start_server(listen, "127.0.0.1", 0)
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        fetch = web_fetch_tool(WebSettings(allow_networks=LOOPBACK))
        task = asyncio.ensure_future(fetch.run({"url": f"http://127.0.0.1:{port}/"}, CONTEXT))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(closed.wait(), 60)
        assert closed.is_set()
