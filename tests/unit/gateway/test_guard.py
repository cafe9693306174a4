"""The guard: forged hosts, other people's pages, bodies that are too large or too slow, too many requests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.errors import ConfigError, RateLimitedError
from laneway.external import RESULT_MAX
from laneway.gateway.access import SUBPROTOCOL, Scope, secret_of
from laneway.gateway.guard import Guard, Hosts
from laneway.gateway.rates import Rates, address_of
from laneway.gateway.settings import GatewaySettings
from laneway.gateway.tokens import TokenBook
from laneway.stores.memory import MemoryStore
from laneway.testing import FakeClock
from laneway.transports.http import BODY_MAX
from tests.gateway_stage import gateway_stage

HOST = (b"host", b"127.0.0.1:8420")
Headers = Iterable[tuple[bytes, bytes]]


class Door:
    """A guard around an application that only notes what it sees."""

    def __init__(self, **settings: Any) -> None:
        self.clock = FakeClock()
        self.settings = GatewaySettings(**settings)
        self.tokens = TokenBook(MemoryStore(), self.clock)
        self.rates = Rates(self.settings.requests_per_second, self.clock)
        self.bodies: list[bytes] = []
        self.answer: list[tuple[bytes, bytes]] = [(b"content-type", b"application/json")]
        gateway: Any = SimpleNamespace(settings=self.settings, tokens=self.tokens, rates=self.rates)
        self.guard = Guard(self._app, gateway)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            self.bodies.append(b"socket")
            await send({"type": "websocket.accept"})
            return
        body, more = b"", scope["method"] not in ("GET", "HEAD")
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": list(self.answer)})
        await send({"type": "http.response.body", "body": b"{}"})

    async def ask(
        self,
        method: str = "GET",
        *headers: tuple[bytes, bytes],
        host: Headers = (HOST,),
        path: str = "/v1/sessions",
        raw_path: bytes = b"",
        pieces: Iterable[bytes] = (),
        client: tuple[str, int] | None = ("127.0.0.1", 5),
    ) -> Seen:
        """One request; what comes back. After the pieces of a body the client says nothing more."""
        left = list(pieces)
        whole = asyncio.Event()
        has_body = any(name in (b"content-length", b"transfer-encoding") for name, _ in headers)

        async def receive() -> dict[str, Any]:
            if not left:
                if not has_body:
                    return {"type": "http.request", "body": b"", "more_body": False}
                await whole.wait()
            piece = left.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(left) or piece.endswith(b"...")}

        seen = Seen()
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": raw_path or path.encode(),
            "headers": [*host, *headers],
            "client": client,
        }
        await self.guard(scope, receive, seen.send)
        return seen

    async def open(
        self, *headers: tuple[bytes, bytes], extensions: dict[str, Any] | None = None, host: Headers = (HOST,)
    ) -> Seen:
        """Open a WebSocket."""
        seen = Seen()
        scope = {
            "type": "websocket",
            "path": "/v1/sessions/s/socket",
            "raw_path": b"/v1/sessions/s/socket",
            "headers": [*host, *headers],
            "client": ("127.0.0.1", 5),
            "subprotocols": [],
            "extensions": extensions or {},
        }

        async def receive() -> dict[str, Any]:
            return {"type": "websocket.connect"}

        await self.guard(scope, receive, seen.send)
        return seen


class Seen:
    """What the client sees."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    async def send(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.messages[0]["headers"])

    @property
    def code(self) -> str:
        assert self.headers[b"content-type"] == b"application/problem+json"
        found: str = json.loads(b"".join(each.get("body", b"") for each in self.messages[1:]))["code"]
        return found


# ---- hosts ----


@pytest.mark.parametrize(
    "host",
    [
        b"127.0.0.1",
        b"127.0.0.1:8420",
        b"127.0.0.1:9",
        b"localhost",
        b"LocalHost:8420",
        b"localhost.",
        b"[::1]",
        b"[::1]:8420",
        b"laneway.example.org",
        b"laneway.example.org:443",
        b"a.lab.example",
        b"b.a.lab.example:80",
    ],
)
async def test_our_own_names_are_let_in(host: bytes) -> None:
    door = Door(allowed_hosts=("laneway.example.org", "*.lab.example"))
    assert (await door.ask(host=[(b"host", host)])).status == 200
    assert (await door.ask(host=[(b"host", host)])).status == 200


@pytest.mark.parametrize(
    "host",
    [
        b"",
        b":8420",
        b"evil.example",
        b"evil.example:8420",
        b"127.0.0.1.evil.example",
        b"localhost.evil.example",
        b"evil.example#127.0.0.1",
        b"127.0.0.1@evil.example",
        b"127.0.0.1:8420@evil.example",
        b"127.0.0.1:port",
        b"127.0.0.1:123456",
        b"127.0.0.1 evil.example",
        b"127.0.0.1,evil.example",
        b"127.0.0.2",
        b"0.0.0.0:8420",
        b"2130706433",
        b"0x7f.1",
        b"[::1",
        b"[::1]x",
        b"[::ffff:127.0.0.1]",
        b"lab.example",
        b"xlab.example",
        b"*.lab.example.org",
        "löcalhost".encode(),
        b"\xff\xfe",
        b"localhost\0",
    ],
)
async def test_a_name_that_somebody_else_points_here_is_refused(host: bytes) -> None:
    door = Door(allowed_hosts=("*.lab.example",))
    seen = await door.ask(host=[(b"host", host)])
    assert (seen.status, seen.code) == (421, "wrong_host")
    assert door.bodies == []


async def test_a_request_without_a_host_or_with_two_is_refused() -> None:
    door = Door()
    assert (await door.ask(host=())).status == 421
    assert (await door.ask(host=(HOST, HOST))).status == 421
    assert (await door.ask(host=(HOST, (b"host", b"evil.example")))).status == 421
    assert door.bodies == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])  # noqa: S104 - nothing is bound
async def test_a_server_on_all_addresses_takes_addresses_and_no_foreign_names(host: str) -> None:
    door = Door(host=host)
    assert (await door.ask(host=[(b"host", b"192.0.2.7:8420")])).status == 200
    assert (await door.ask(host=[(b"host", b"[2001:db8::1]:8420")])).status == 200
    assert (await door.ask(host=[(b"host", b"evil.example")])).status == 421


async def test_the_hosts_that_are_remembered_are_bounded() -> None:
    hosts = Hosts(GatewaySettings(allowed_hosts=("*.lab.example",)))
    assert all(hosts.is_ours(b"h%d.lab.example" % number) for number in range(1_500))
    assert len(hosts._known) == 1_000  # noqa: SLF001


@given(st.binary(max_size=40))
def test_no_host_that_is_not_ours_gets_through(host: bytes) -> None:
    hosts = Hosts(GatewaySettings())
    name = host.lower().split(b":")[0].removesuffix(b".")
    assert not hosts.is_ours(host) or name in (b"localhost", b"127.0.0.1") or host.startswith(b"[::1]")


# ---- pages ----

OURS = (b"origin", b"http://127.0.0.1:8420")
REFUSED = [
    [(b"origin", b"http://evil.example")],
    [(b"origin", b"null")],
    [(b"origin", b"")],
    [(b"origin", b"http://127.0.0.1:3000")],
    [(b"origin", b"http://localhost:8420")],
    [(b"origin", b"http://127.0.0.1")],
    [(b"origin", b"file://")],
    [(b"origin", b"chrome-extension://127.0.0.1:8420")],
    [(b"origin", b"http://127.0.0.1:8420.evil.example")],
    [(b"origin", b"http://127.0.0.1:8420@evil.example")],
    [(b"origin", b"http://127.0.0.1:8420/")],
    [(b"origin", b"\xff\xfe")],
    [OURS, (b"origin", b"http://evil.example")],
    [OURS, OURS],
    [(b"sec-fetch-site", b"cross-site")],
    [(b"sec-fetch-site", b"same-site")],
    [OURS, (b"sec-fetch-site", b"cross-site")],
]
ALLOWED: list[list[tuple[bytes, bytes]]] = [
    [],
    [OURS],
    [(b"origin", b"HTTP://127.0.0.1:8420")],
    [(b"origin", b"https://127.0.0.1:8420")],
    [OURS, (b"sec-fetch-site", b"same-origin")],
    [(b"sec-fetch-site", b"none")],
]


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "QUERY", "FOO"])
@pytest.mark.parametrize("headers", REFUSED)
async def test_pages_of_other_sites_change_nothing(method: str, headers: list[tuple[bytes, bytes]]) -> None:
    door = Door()
    seen = await door.ask(method, *headers, (b"content-length", b"2"), pieces=[b"{}"])
    assert (seen.status, seen.code) == (403, "wrong_origin")
    assert door.bodies == []


@pytest.mark.parametrize("headers", ALLOWED)
async def test_our_own_page_and_programs_may_write(headers: list[tuple[bytes, bytes]]) -> None:
    door = Door()
    assert (await door.ask("POST", *headers, (b"content-length", b"2"), pieces=[b"{}"])).status == 200
    assert door.bodies == [b"{}"]


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
async def test_reading_is_left_to_the_browser_to_forbid(method: str) -> None:
    door = Door()
    seen = await door.ask(method, (b"origin", b"http://evil.example"), (b"content-length", b"2"), pieces=[b"{}"])
    assert seen.status == 200
    assert not [name for name in seen.headers if name.startswith(b"access-control")]


@pytest.mark.parametrize("headers", REFUSED)
async def test_pages_of_other_sites_open_no_sockets(headers: list[tuple[bytes, bytes]]) -> None:
    door = Door()
    closed = await door.open(*headers)
    told = await door.open(*headers, extensions={"websocket.http.response": {}})
    assert closed.messages == [{"type": "websocket.close", "code": 1008, "reason": "refused"}]
    assert told.messages[0]["type"] == "websocket.http.response.start"
    assert told.status == 403
    assert door.bodies == []


@pytest.mark.parametrize("headers", ALLOWED)
async def test_our_own_page_and_programs_open_sockets(headers: list[tuple[bytes, bytes]]) -> None:
    door = Door()
    assert (await door.open(*headers)).messages == [{"type": "websocket.accept"}]


async def test_a_rebound_name_opens_no_socket_even_with_an_origin_that_fits() -> None:
    door = Door()
    evil = [(b"host", b"evil.example:8420")]
    seen = await door.open((b"origin", b"http://evil.example:8420"), host=evil)
    assert seen.messages[0]["type"] == "websocket.close"
    assert door.bodies == []


async def test_an_origin_that_is_configured_may_write_from_another_site() -> None:
    door = Door(cors_origins=("https://app.example/",))
    site = (b"sec-fetch-site", b"cross-site")
    assert (await door.ask("POST", (b"origin", b"https://app.example"), site)).status == 200
    assert (await door.ask("POST", (b"origin", b"https://other.example"), site)).status == 403
    assert (await door.ask("POST", (b"origin", b"http://app.example"), site)).status == 403


@pytest.mark.parametrize("origin", ["*", "null", "example.org", "https://", "https://*.example.org", "https://a/b"])
def test_what_is_no_origin_cannot_be_configured(origin: str) -> None:
    with pytest.raises(ConfigError):
        Hosts(GatewaySettings(cors_origins=(origin,)))


async def test_there_is_no_cors_unless_it_is_configured(tmp_path: Path) -> None:
    ask = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    async with gateway_stage(tmp_path) as stage:
        closed = await stage.client.options("/v1/sessions/s/messages", headers=ask)
        assert closed.status_code == 405
        assert not [name for name in closed.headers if name.startswith("access-control")]


async def test_a_configured_origin_gets_cors_without_cookies_and_others_get_none(tmp_path: Path) -> None:
    ask = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
    async with gateway_stage(tmp_path, cors_origins=("https://app.example",)) as stage:
        preflight = await stage.client.options("/v1/sessions/s/messages", headers=ask)
        assert preflight.headers["access-control-allow-origin"] == "https://app.example"
        assert "access-control-allow-credentials" not in preflight.headers
        sent = await stage.client.post(
            "/v1/sessions/s/messages", json={"text": "x"}, headers={"Origin": "https://app.example"}
        )
        assert (sent.status_code, sent.headers["access-control-allow-origin"]) == (202, "https://app.example")
        other = await stage.client.options("/v1/sessions/s/messages", headers={**ask, "Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers
        refused = await stage.client.post(
            "/v1/sessions/s/messages", json={"text": "x"}, headers={"Origin": "https://evil.example"}
        )
        assert refused.status_code == 403


# ---- bodies ----


async def test_a_body_that_says_it_is_too_large_is_not_read() -> None:
    door = Door(body_max=10)
    seen = await door.ask("POST", (b"content-length", b"11"))
    assert (seen.status, seen.code) == (413, "too_large")
    assert door.bodies == []


async def test_a_body_in_pieces_is_cut_where_it_gets_too_large() -> None:
    door = Door(body_max=10)
    chunked = (b"transfer-encoding", b"chunked")
    assert (await door.ask("POST", chunked, pieces=[b"12345", b"67890", b"1", b"never read"])).status == 413
    assert (await door.ask("POST", chunked, pieces=[b"12345678901"])).status == 413
    assert (await door.ask("POST", chunked, pieces=[b"12345678901..."])).status == 413
    assert door.bodies == []
    assert (await door.ask("POST", chunked, pieces=[b"12345", b"67890"])).status == 200
    assert door.bodies == [b"1234567890"]


async def test_a_body_that_is_larger_than_it_said_is_cut() -> None:
    door = Door(body_max=10)
    assert (await door.ask("POST", (b"content-length", b"5"), pieces=[b"12345", b"6789012345"])).status == 413


@pytest.mark.parametrize("length", [b"-1", b"1e3", b"0x10", b"five", b"+5", b" ", b"9" * 5_000])
async def test_a_length_that_is_no_number_is_refused(length: bytes) -> None:
    door = Door()
    seen = await door.ask("POST", (b"content-length", length), pieces=[b"12345"])
    assert seen.status in (400, 413)
    assert door.bodies == []


@pytest.mark.parametrize("pieces", [[], [b"abc..."]])
async def test_a_body_that_does_not_come_is_not_waited_for(pieces: list[bytes]) -> None:
    door = Door(request_timeout_ms=1)
    seen = await door.ask("POST", (b"content-length", b"100"), pieces=pieces)
    assert (seen.status, seen.code) == (408, "too_slow")
    assert seen.headers[b"connection"] == b"close"
    assert door.bodies == []


async def test_many_large_bodies_at_one_time_are_bounded_in_all() -> None:
    door = Door(body_max=100)
    door.guard._held = 6_400  # noqa: SLF001 - as many as 64 of them
    chunked = (b"transfer-encoding", b"chunked")
    assert (await door.ask("POST", chunked, pieces=[b"x" * 50, b"x"])).status == 503
    assert door.guard._held == 6_400  # noqa: SLF001
    assert (await door.ask("POST", (b"content-length", b"5"), pieces=[b"12345"])).status == 200
    assert door.guard._held == 6_400  # noqa: SLF001


@pytest.mark.parametrize(
    ("scope", "path", "status"),
    [
        (Scope.WORKER, "/v1/tasks/t1/complete", 200),
        (Scope.WORKER, "/v1/tasks/frames", 200),
        (Scope.OPERATE, "/v1/tasks/t1/complete", 200),
        (Scope.CHAT, "/v1/tasks/t1/complete", 413),
        (Scope.WORKER, "/v1/sessions/s/messages", 413),
        (Scope.WORKER, "/v1/tasksandmore", 413),
        (None, "/v1/tasks/t1/complete", 413),
    ],
)
async def test_only_results_of_workers_may_be_large(scope: Scope | None, path: str, status: int) -> None:
    door = Door(body_max=10)
    secret = door.tokens.create_for_now("w", [scope]) if scope is not None else "nonsense"
    sender = (b"authorization", f"Bearer {secret}".encode())
    for head in ((b"content-length", b"11"), (b"transfer-encoding", b"chunked")):
        seen = await door.ask("POST", sender, head, path=path, pieces=[b"12345", b"678901"])
        assert seen.status == status


async def test_a_result_of_a_worker_has_a_limit_too_and_is_not_read() -> None:
    door = Door()
    sender = (b"authorization", f"Bearer {door.tokens.create_for_now('w', [Scope.WORKER])}".encode())
    for length in (BODY_MAX + 1, 100_000_000):
        seen = await door.ask("POST", sender, (b"content-length", str(length).encode()), path="/v1/tasks/frames")
        assert (seen.status, seen.code) == (413, "too_large")
    assert door.bodies == []
    assert BODY_MAX > 3 * RESULT_MAX


async def test_a_client_that_goes_away_in_its_body_starts_nothing() -> None:
    door = Door()
    scope = {"type": "http", "method": "POST", "path": "/", "headers": [HOST, (b"content-length", b"5")]}

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    await door.guard(scope, gone, Seen().send)
    assert door.bodies == []


# ---- paths ----


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        ("/v1/../etc/passwd", b"/v1/../etc/passwd"),
        ("/v1/sessions/../messages", b"/v1/sessions/%2e%2e/messages"),
        ("/v1/sessions/./messages", b"/v1/sessions/%2E/messages"),
        ("/v1/sessions/a\0b/messages", b"/v1/sessions/a%00b/messages"),
        ("/v1/sessions/a\r\nX: y/messages", b"/v1/sessions/a%0d%0aX:%20y/messages"),
        ("/v1/sessions/\x7f", b"/v1/sessions/%7f"),
        ("//evil.example/", b"//evil.example/"),
        ("/v1//sessions", b"/v1//sessions"),
        ("/v1/sessions/\ufffd", b"/v1/sessions/%ff"),
        ("/v1/sessions/\ufffd\ufffd", b"/v1/sessions/%c3%28"),
    ],
)
async def test_a_path_with_tricks_is_refused(path: str, raw: bytes) -> None:
    door = Door()
    seen = await door.ask(path=path, raw_path=raw)
    assert (seen.status, seen.code) == (400, "bad_path")
    assert door.bodies == []


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        ("/", b"/"),
        ("/v1/sessions/telegram:123/messages", b"/v1/sessions/telegram:123/messages"),
        ("/v1/sessions/größe 日本", b"/v1/sessions/gr%C3%B6%C3%9Fe%20%E6%97%A5%E6%9C%AC"),
        ("/v1/sessions/\ufffd", b"/v1/sessions/%EF%BF%BD"),
        ("/v1/sessions/a..b", b"/v1/sessions/a..b"),
        ("/v1/sessions/.hidden", b"/v1/sessions/.hidden"),
        ("/v1/sessions/a\\b", b"/v1/sessions/a%5Cb"),
        ("/v1/lanes/s1/execute", b"/v1/lanes/s1%2Fexecute"),
    ],
)
async def test_odd_names_in_a_path_are_let_through(path: str, raw: bytes) -> None:
    assert (await Door().ask(path=path, raw_path=raw)).status == 200


# ---- how often ----


async def test_whoever_asks_too_often_waits_and_others_do_not() -> None:
    door = Door(requests_per_second=2)
    assert [(await door.ask()).status for _ in range(3)] == [200, 200, 429]
    seen = await door.ask()
    assert (seen.code, seen.headers[b"retry-after"]) == ("rate_limited", b"1")
    assert (await door.ask(client=("192.0.2.1", 1))).status == 200
    door.clock.advance(499)
    assert (await door.ask()).status == 429
    door.clock.advance(1)
    assert [(await door.ask()).status for _ in range(2)] == [200, 429]


async def test_each_token_has_its_own_rate_and_wrong_ones_share_that_of_their_address() -> None:
    door = Door(requests_per_second=1)
    secrets = [door.tokens.create_for_now(name, (Scope.CHAT,)) for name in "ab"]
    good = [(b"authorization", f"Bearer {secret}".encode()) for secret in secrets]
    assert [(await door.ask("GET", each)).status for each in (*good, *good)] == [200, 200, 429, 429]
    wrong = [(b"authorization", b"Bearer lw_%d_x" % number) for number in range(3)]
    assert [(await door.ask("GET", each)).status for each in wrong] == [200, 429, 429]


async def test_sockets_count_as_requests() -> None:
    door = Door(requests_per_second=1)
    assert (await door.open()).messages == [{"type": "websocket.accept"}]
    assert (await door.open()).messages[0]["type"] == "websocket.close"


def test_the_table_of_callers_is_bounded_and_forgets_who_was_not_seen_for_longest() -> None:
    rates = Rates(1, FakeClock(), callers_max=3)
    for name in "abca":
        rates.wait_ms(name)
    rates.wait_ms("d")
    rates.wait_ms("e")
    assert len(rates) == 3
    assert rates.wait_ms("e") == 1_000
    assert rates.wait_ms("a") == 0


def test_without_a_limit_nobody_is_remembered() -> None:
    rates = Rates(0, FakeClock())
    assert [rates.wait_ms("a") for _ in range(5)] == [0] * 5
    assert len(rates) == 0


def test_a_check_raises_what_becomes_a_429() -> None:
    rates = Rates(1, FakeClock())
    rates.check("a")
    with pytest.raises(RateLimitedError) as caught:
        rates.check("a")
    assert caught.value.retry_after_ms == 1_000


@given(st.integers(1, 1_000), st.lists(st.integers(0, 50), max_size=200))
def test_nobody_gets_more_than_its_rate_and_one_burst(per_second: int, steps: list[int]) -> None:
    clock = FakeClock()
    rates = Rates(per_second, clock)
    taken = 0
    for step in steps:
        clock.advance(step)
        taken += rates.wait_ms("a") == 0
    assert taken <= per_second + sum(steps) * per_second / 1000 + 1


@pytest.mark.parametrize(
    ("client", "key"),
    [
        (None, "?"),
        (("192.0.2.1", 5), "192.0.2.1"),
        (("2001:db8:1:2:3:4:5:6", 5), "2001:0db8:0001:0002::/64"),
        (("2001:db8:1:2:ffff::1", 5), "2001:0db8:0001:0002::/64"),
        (("::ffff:192.0.2.1", 5), "192.0.2.1"),
        (("::1", 5), "::1"),
        (("fe80::1%eth0", 5), "fe80:0000:0000:0000::/64"),
        (("a:b", 5), "a:b"),
    ],
)
def test_an_address_is_that_of_a_customer(client: Any, key: str) -> None:
    assert address_of(client) == key


# ---- answers ----


async def test_every_answer_says_how_browsers_have_to_treat_it() -> None:
    door = Door()
    for seen in (await door.ask(), await door.ask(host=())):
        assert seen.headers[b"x-content-type-options"] == b"nosniff"
        assert seen.headers[b"referrer-policy"] == b"no-referrer"
        assert seen.headers[b"cross-origin-resource-policy"] == b"same-origin"
        assert seen.headers[b"cache-control"] == b"no-store"
        assert b"frame-ancestors 'none'" in seen.headers[b"content-security-policy"]


async def test_a_page_runs_scripts_of_its_own_files_only() -> None:
    door = Door()
    door.answer = [(b"content-type", b"text/html; charset=utf-8"), (b"cache-control", b"max-age=60")]
    headers = (await door.ask()).headers
    policy = headers[b"content-security-policy"]
    assert b"script-src 'self';" in policy
    assert b"unsafe" not in policy
    assert headers[b"cache-control"] == b"max-age=60"


@pytest.mark.parametrize("value", [b"a\r\nSet-Cookie: x=1", b"a\nb", b"a\rb", b"a\0b"])
async def test_a_header_with_a_line_break_never_goes_out(value: bytes) -> None:
    door = Door()
    door.answer += [(b"location", value), (b"x-good", b"yes")]
    headers = (await door.ask()).headers
    assert b"location" not in headers
    assert headers[b"x-good"] == b"yes"


@pytest.mark.parametrize(
    ("headers", "subprotocols", "secret"),
    [
        ([b"Bearer abc"], (), "abc"),
        ([b"bearer  abc "], (), "abc"),
        ([b"Basic abc"], (), ""),
        ([b"Bearer"], (), ""),
        ([b"Bearer abc", b"Bearer abc"], (), ""),
        ([], ("laneway", SUBPROTOCOL + "abc"), "abc"),
        ([], (SUBPROTOCOL + "abc", SUBPROTOCOL + "def"), ""),
        ([b"Basic x"], (SUBPROTOCOL + "abc",), ""),
        ([b"Bearer \xff"], (), "\xff"),
    ],
)
def test_a_secret_is_taken_from_one_place(headers: list[bytes], subprotocols: Any, secret: str) -> None:
    assert secret_of(headers, subprotocols) == secret


# ---- anything ----

LOOKED_AT = [
    b"host", b"origin", b"sec-fetch-site", b"authorization", b"content-length", b"transfer-encoding", b"x-other",
]  # fmt: skip
VALUES = st.one_of(st.binary(max_size=30), st.sampled_from([HOST[1], OURS[1], b"evil.example", b"5", b"Bearer x"]))


@given(
    st.sampled_from(["GET", "POST", "DELETE", "", "\0"]),
    st.lists(st.tuples(st.sampled_from(LOOKED_AT), VALUES), max_size=6),
    st.text(max_size=30).map(lambda text: f"/{text}"),
)
def test_whatever_comes_is_answered(method: str, headers: list[tuple[bytes, bytes]], path: str) -> None:
    door = Door()
    asked = door.ask(method, *headers, path=path, raw_path=b"/x", pieces=[b"{}"], host=())
    seen = asyncio.run(asked)
    assert seen.status in (200, 400, 403, 413, 421)
    hosts = [value for name, value in headers if name == b"host"]
    assert seen.status == 421 or (len(hosts) == 1 and hosts[0].lower().startswith((b"127.0.0.1", b"localhost")))
    assert bool(door.bodies) == (seen.status == 200)


# ---- the whole application ----


NAMES = ["Host", "Origin", "Authorization", "Laneway-Tenant", "Laneway-Workspace", "Idempotency-Key", "Content-Type"]
FUZZED = [
    "", " ", "a" * 5_000, "\x7f", "ÿþ", "../..", "%00", "<script>alert(1)</script>", "null", "{}", "Bearer ",
    "Bearer lw_x_y", "Bearer \xff", "*", "default", "a/b", "text/plain", "application/json; charset=utf-7", "-1",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
async def test_no_header_breaks_the_server(tmp_path: Path, name: str) -> None:
    async with gateway_stage(tmp_path, requests_per_second=0) as stage:
        for value in FUZZED:
            for method in ("GET", "POST"):
                answer = await stage.client.request(
                    method,
                    "/v1/sessions/s/messages",
                    content=b'{"text": "x"}' if method == "POST" else None,
                    headers=[(name.encode(), value.encode("latin-1"))],
                )
                assert answer.status_code < 500, (name, value, answer.text)
                if answer.is_error:
                    assert answer.headers["content-type"] == "application/problem+json"
                    assert "<script>" not in answer.headers.get("location", "")
