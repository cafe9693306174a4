"""The client side of HTTP: what goes together into one request, what goes alone, and what refusals mean.

The server is a function; time is simulated.
"""

from __future__ import annotations

import asyncio
import io
import json
import logging
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import trustme
import yarl
from aiohttp.client_reqrep import ConnectionKey
from multidict import CIMultiDict, CIMultiDictProxy

from laneway.errors import (
    ConfigError,
    LanewayError,
    LeaseLostError,
    NotAuthenticatedError,
    NotFoundError,
    PermissionDeniedError,
    RateLimitedError,
    TransportUnavailableError,
    UsageError,
)
from laneway.external import ExternalTaskResult
from laneway.sim.loop import run_sim
from laneway.transports.http import BODY_MAX, FRAMES_MAX, GATHERED_MAX, HttpTransport, proxy_for
from laneway.transports.wire import FRAME_MAX
from tests.stage import passing

URL = "http://127.0.0.1:8420"
Answer = Callable[[list[dict[str, Any]]], Awaitable["Response"]]
HOST = ConnectionKey("127.0.0.1", 8420, False, True, None, None, None)
UNTRUSTED = aiohttp.ClientConnectorCertificateError(HOST, ssl.SSLError(1, "[SSL: CERTIFICATE_VERIFY_FAILED] expired"))
REQUEST = aiohttp.RequestInfo(yarl.URL(URL), "POST", CIMultiDictProxy(CIMultiDict()), yarl.URL(URL))

written = json.dumps


class Response:
    """What a server answers, as far as the transport looks at it."""

    def __init__(
        self, status: int, *, headers: Mapping[str, str] | None = None, text: str = "", json: Any = None
    ) -> None:
        self.status = status
        self.headers = CIMultiDict(headers or {})
        self.content = self
        self._text = text if json is None else written(json)

    async def iter_any(self) -> AsyncIterator[bytes]:
        yield self._text.encode()


def answers_of(frames: list[dict[str, Any]]) -> Response:
    """Yes to everything."""
    said: dict[str, Any] = {"ok": True, "leases": [], "wanted": True, "accepted": True}
    return Response(200, json={"answers": [{"v": 1, "id": frame["id"], **said} for frame in frames]})


class Server:
    """Notes what comes; `answer` says what goes back, after `takes_s`."""

    def __init__(self) -> None:
        self.requests: list[list[str]] = []  # the ops of each
        self.headers: list[Mapping[str, str]] = []
        self.timeouts: list[aiohttp.ClientTimeout] = []
        self.open = 0
        self.peak = 0
        self.takes_s = 0.008
        self.given_up = 0
        self.refusals: list[Response | Exception] = []
        self.answer: Answer | None = None

    async def __call__(self, frames: list[dict[str, Any]]) -> Response:
        self.requests.append([frame["op"] for frame in frames])
        self.open += 1
        self.peak = max(self.peak, self.open)
        try:
            waits = [frame["wait_ms"] / 1000 for frame in frames if frame["op"] == "claim"]
            await passing(1_000 * max([self.takes_s, *waits]))
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        finally:
            self.open -= 1
        if self.refusals:
            refusal = self.refusals.pop(0)
            if isinstance(refusal, Exception):
                raise refusal
            return refusal
        return answers_of(frames) if self.answer is None else await self.answer(frames)


class Wired(HttpTransport):
    """A transport whose server is a function."""

    def __init__(self, server: Server, **options: Any) -> None:
        super().__init__(URL, **{"token": "lw_x_y", **options})
        self.server = server

    def _client(self) -> Any:
        return Client(self.server, self._headers)


class Client:
    """What the transport uses of `aiohttp.ClientSession`."""

    def __init__(self, server: Server, headers: Mapping[str, str]) -> None:
        self._server = server
        self._headers = headers
        self.closed = False

    @asynccontextmanager
    async def post(
        self,
        url: str,
        *,
        data: bytes | io.BytesIO,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - it is called so there
        allow_redirects: bool,
    ) -> AsyncIterator[Response]:
        if self.closed:
            raise RuntimeError("Session is closed")
        assert url == f"{URL}/v1/tasks/frames"
        assert not allow_redirects
        self._server.headers.append(self._headers)
        self._server.timeouts.append(timeout)
        yield await self._server(json.loads(data if isinstance(data, bytes) else data.read())["frames"])

    async def close(self) -> None:
        self.closed = True


def played(play: Callable[[Server, Wired], Coroutine[Any, Any, None]]) -> Server:
    """Run a play in simulated time."""
    server = Server()

    async def run() -> None:
        transport = Wired(server)
        try:
            await play(server, transport)
        finally:
            await transport.close()

    run_sim(run(), seed=0, shuffle=False)
    return server


def problem(status: int, code: str, **facts: Any) -> Response:
    return Response(status, json={"status": status, "code": code, "detail": "no", "hint": "h", **facts})


# ---- what goes together ----


def test_what_is_said_in_one_step_goes_in_one_request() -> None:
    async def play(server: Server, transport: Wired) -> None:
        await asyncio.gather(*(transport.start(f"t{number}", "k") for number in range(20)))

    assert played(play).requests == [["start"] * 20]


def test_what_is_said_while_a_request_is_on_its_way_gathers_for_the_next() -> None:
    async def play(server: Server, transport: Wired) -> None:
        first = asyncio.ensure_future(transport.start("t", "k"))
        await passing(5)
        rest = [asyncio.ensure_future(transport.heartbeat(f"t{number}", "k")) for number in range(3)]
        done = asyncio.ensure_future(transport.complete("t", "k", ExternalTaskResult(result="x")))
        await asyncio.gather(first, *rest, done)

    server = played(play)
    assert server.requests == [["start"], ["heartbeat"] * 3 + ["complete"]]
    assert server.peak == 1


def test_each_hears_the_answer_to_its_own_frame() -> None:
    async def play(server: Server, transport: Wired) -> None:
        async def answer(frames: list[dict[str, Any]]) -> Response:
            wanted = [{"v": 1, "id": each["id"], "ok": True, "wanted": each["task_id"] == "t2"} for each in frames]
            return Response(200, json={"answers": wanted})

        server.answer = answer
        wanted = await asyncio.gather(*(transport.heartbeat(f"t{number}", "k") for number in range(4)))
        assert wanted == [False, False, True, False]

    assert played(play).requests == [["heartbeat"] * 4]


def test_a_claim_goes_alone_and_holds_up_nothing() -> None:
    async def play(server: Server, transport: Wired) -> None:
        claims = [asyncio.ensure_future(transport.claim("w", wait_ms=20_000)) for _ in range(2)]
        await asyncio.gather(transport.start("a", "k"), transport.start("b", "k"))
        await transport.complete("a", "k", ExternalTaskResult())
        assert not any(claim.done() for claim in claims)
        assert await asyncio.gather(*claims) == [[], []]

    server = played(play)
    assert sorted(server.requests) == [["claim"], ["claim"], ["complete"], ["start", "start"]]


def test_a_claim_may_be_silent_for_as_long_as_it_waits_and_others_may_not() -> None:
    async def play(server: Server, transport: Wired) -> None:
        await transport.claim("w", wait_ms=20_000)
        await transport.claim("w")
        await transport.start("a", "k")

    assert [each.sock_read for each in played(play).timeouts] == [50.0, 30.0, 30.0]


def test_a_claim_is_not_waited_for_longer_than_servers_let_it_wait() -> None:
    async def play(server: Server, transport: Wired) -> None:
        async with asyncio.timeout(1):
            await transport.claim("w", wait_ms=600_000)

    server = Server()
    with pytest.raises(TimeoutError):
        run_sim(play(server, Wired(server)), seed=0)
    assert [each.sock_read for each in server.timeouts] == [90.0]


def test_a_request_has_a_bounded_number_of_frames() -> None:
    async def play(server: Server, transport: Wired) -> None:
        await asyncio.gather(*(transport.start(f"t{number}", "k") for number in range(FRAMES_MAX + 1)))

    assert [len(request) for request in played(play).requests] == [FRAMES_MAX, 1]


def test_a_request_has_a_bounded_size_and_what_is_larger_goes_beside() -> None:
    async def play(server: Server, transport: Wired) -> None:
        half, large = "x" * (GATHERED_MAX // 2), "x" * GATHERED_MAX
        results = [ExternalTaskResult(result=text) for text in (half, half, half, large)]
        await asyncio.gather(
            *(transport.complete("t", "k", result) for result in results), transport.heartbeat("t", "k")
        )

    server = played(play)
    assert sorted(server.requests) == [["complete"], ["complete"], ["complete"], ["complete", "heartbeat"]]
    assert server.peak == 2  # the large one, and one of the others


def test_signs_of_life_do_not_wait_behind_an_upload() -> None:
    async def play(server: Server, transport: Wired) -> None:
        server.takes_s = 20
        large = ExternalTaskResult(result="x" * GATHERED_MAX)
        uploads = [asyncio.ensure_future(transport.complete("t", "k", large)) for _ in range(6)]
        await passing(1000)
        assert server.open == 4  # and no more at one time
        server.takes_s = 0.01
        assert await transport.heartbeat("t", "k") is True
        assert not any(upload.done() for upload in uploads)
        await asyncio.gather(*uploads)

    assert len(played(play).requests) == 7


@pytest.mark.slow
def test_what_no_server_would_take_is_not_sent() -> None:
    async def play(server: Server, transport: Wired) -> None:
        with pytest.raises(UsageError, match="less than"):
            await transport.release("t" * BODY_MAX, "k")

    assert played(play).requests == []


def test_an_answer_that_takes_long_does_not_hold_up_what_comes_after_it() -> None:
    async def play(server: Server, transport: Wired) -> None:
        server.takes_s = 10
        slow = asyncio.ensure_future(transport.start("a", "k"))
        await passing(1000)
        server.takes_s = 0.01
        assert await transport.heartbeat("b", "k") is True
        assert not slow.done()
        await slow

    assert played(play).requests == [["start"], ["heartbeat"]]


def test_requests_that_nobody_answers_do_not_pile_up() -> None:
    async def play(server: Server, transport: Wired) -> None:
        server.takes_s = 10
        said = []
        for number in range(20):
            said.append(asyncio.ensure_future(transport.start(f"t{number}", "k")))
            await passing(300)
        assert server.peak == 4
        await asyncio.gather(*said)

    assert played(play).peak == 4


# ---- giving up ----


def test_what_is_given_up_before_it_was_sent_is_not_sent() -> None:
    async def play(server: Server, transport: Wired) -> None:
        first = asyncio.ensure_future(transport.start("a", "k"))
        await passing(5)
        second = asyncio.ensure_future(transport.start("b", "k"))
        third = asyncio.ensure_future(transport.heartbeat("c", "k"))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(first, third)
        assert second.cancelled()

    assert played(play).requests == [["start"], ["heartbeat"]]


def test_what_is_given_up_on_its_way_costs_the_others_nothing() -> None:
    async def play(server: Server, transport: Wired) -> None:
        said = [asyncio.ensure_future(transport.heartbeat(name, "k")) for name in "abc"]
        await passing(5)
        said[1].cancel()
        assert await said[0]
        assert await said[2]

    server = played(play)
    assert (server.requests, server.given_up) == ([["heartbeat"] * 3], 0)


def test_a_claim_that_is_given_up_hangs_up() -> None:
    async def play(server: Server, transport: Wired) -> None:
        claim = asyncio.ensure_future(transport.claim("w", wait_ms=20_000))
        await passing(5)
        claim.cancel()
        await asyncio.wait([claim])
        assert server.open == 0

    assert played(play).given_up == 1


def test_closing_ends_everything_and_whoever_waits_is_told() -> None:
    async def play(server: Server, transport: Wired) -> None:
        server.takes_s = 10
        large = ExternalTaskResult(result="x" * GATHERED_MAX)
        said: list[asyncio.Future[Any]] = [
            asyncio.ensure_future(transport.claim("w", wait_ms=20_000)),
            asyncio.ensure_future(transport.start("a", "k")),
            asyncio.ensure_future(transport.complete("b", "k", large)),
        ]
        await passing(1)
        said.append(asyncio.ensure_future(transport.start("c", "k")))  # gathers
        await passing(1)
        await transport.close()
        errors = await asyncio.gather(*said, return_exceptions=True)
        assert [type(error) for error in errors] == [TransportUnavailableError] * 4
        assert server.open == 0
        with pytest.raises(TransportUnavailableError, match="closed"):
            await transport.start("d", "k")

    assert len(played(play).requests) == 3


# ---- what refusals mean ----


@pytest.mark.parametrize(
    ("refusal", "error", "facts"),
    [
        (problem(401, "not_authenticated"), NotAuthenticatedError, {}),
        (problem(403, "permission_denied", right="worker"), PermissionDeniedError, {"right": "worker"}),
        (problem(403, "wrong_origin"), PermissionDeniedError, {}),
        (problem(404, "not_found"), NotFoundError, {}),
        (problem(400, "usage"), UsageError, {}),
        (problem(400, "bad_path"), UsageError, {}),
        (problem(409, "lease_lost", state="completed"), LeaseLostError, {"state": "completed"}),
        (problem(421, "wrong_host"), UsageError, {}),
        (problem(413, "too_large", body_max=7), UsageError, {}),
        (Response(413, text="<html>nginx"), UsageError, {}),
        (problem(500, "internal"), TransportUnavailableError, {}),
        (problem(503, "unavailable", retry_after_ms=1_500), TransportUnavailableError, {"retry_after_ms": 1_500}),
        (problem(429, "rate_limited", retry_after_ms=60_000), TransportUnavailableError, {"retry_after_ms": 60_000}),
        (problem(408, "too_slow"), TransportUnavailableError, {}),
        (Response(502, text="<html>nginx", headers={"Retry-After": "7"}), TransportUnavailableError, {
            "retry_after_ms": 7_000, "status": 502,
        }),
        (Response(503, headers={"Retry-After": "soon"}), TransportUnavailableError, {}),
        (Response(404, text="<html>no such page"), TransportUnavailableError, {"status": 404}),
        (Response(403, json=["no"]), TransportUnavailableError, {"status": 403}),
        (Response(307, headers={"Location": "http://evil.example/"}), TransportUnavailableError, {}),
        (Response(200, text="<html>welcome"), TransportUnavailableError, {}),
        (Response(200, text="[" * 100_000), TransportUnavailableError, {}),
        (Response(200, json={"answers": []}), TransportUnavailableError, {}),
        (Response(200, json={"answers": [{}, {}]}), TransportUnavailableError, {}),
        (Response(200, json={"answers": ["yes"]}), TransportUnavailableError, {}),
        (Response(200, json={"answers": [{"v": 2}]}), TransportUnavailableError, {}),
        (Response(200, json={"answers": [{"v": 1, "id": 99, "ok": True}]}), TransportUnavailableError, {}),
        (Response(200, json=[]), TransportUnavailableError, {}),
        (aiohttp.ClientConnectorError(HOST, OSError(111, "refused")), TransportUnavailableError, {}),
        (UNTRUSTED, ConfigError, {"setting": "verify"}),
        (aiohttp.ClientOSError(1, "[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED]"), TransportUnavailableError, {}),
        (aiohttp.ServerDisconnectedError(), TransportUnavailableError, {}),
        (aiohttp.SocketTimeoutError("slow"), TransportUnavailableError, {}),
        (aiohttp.ConnectionTimeoutError("slow"), TransportUnavailableError, {}),
        (aiohttp.ClientPayloadError("gone"), TransportUnavailableError, {}),
        (aiohttp.ClientHttpProxyError(REQUEST, (), status=407), TransportUnavailableError, {}),
        (TimeoutError(), TransportUnavailableError, {}),
        (OSError(""), TransportUnavailableError, {}),
        (ValueError("a bug"), (TransportUnavailableError, ValueError), {}),
    ],
)  # fmt: skip
def test_a_refusal_is_the_error_that_it_means(refusal: Any, error: type[LanewayError], facts: dict[str, Any]) -> None:
    async def play(server: Server, transport: Wired) -> None:
        for call in (transport.start("t", "k"), transport.claim("w")):
            server.refusals = [refusal]
            with pytest.raises(error) as caught:
                await call
            assert facts.items() <= vars(caught.value).items()
            assert str(caught.value)
        await transport.start("t", "k")  # and the next one gets through

    assert len(played(play).requests) == 3


def test_a_certificate_that_was_good_once_may_be_good_again() -> None:
    async def play(server: Server, transport: Wired) -> None:
        await transport.start("t", "k")
        server.refusals = [UNTRUSTED]
        with pytest.raises(TransportUnavailableError, match=r"is not trusted here.*--ca FILE"):
            await transport.start("t", "k")

    assert len(played(play).requests) == 2


def test_a_server_that_is_not_there_is_named_once_and_with_the_reason() -> None:
    async def play(server: Server, transport: Wired) -> None:
        server.refusals = [aiohttp.ClientConnectorError(HOST, OSError(111, "Connect call failed ('127.0.0.1', 8420)"))]
        with pytest.raises(
            TransportUnavailableError, match=rf"^no server answers at {URL}: Connection refused \(is it"
        ):
            await transport.start("t", "k")

    assert len(played(play).requests) == 1


@pytest.mark.parametrize("is_known", [False, True])
def test_an_address_that_never_answered_may_be_one_with_https(is_known: bool) -> None:
    async def play(server: Server, transport: Wired) -> None:
        if is_known:
            await transport.start("t", "k")
        server.refusals = [aiohttp.ServerDisconnectedError() for _ in range(2)]
        with pytest.raises(TransportUnavailableError) as caught:
            await transport.start("t", "k")
        assert ("https" in caught.value.hint) is not is_known

    assert len(played(play).requests) == 1 + 2 * is_known  # one may have met a connection that had ended


@pytest.mark.parametrize(
    "stale",
    [
        aiohttp.ServerDisconnectedError(),
        aiohttp.ClientOSError(104, "reset"),
        aiohttp.ClientConnectionResetError("Cannot write to closing transport"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_connection_that_had_ended_meanwhile_costs_one_more_try_and_no_more(stale: Exception) -> None:
    async def play(server: Server, transport: Wired) -> None:
        await transport.start("t", "k")
        for call in (transport.start("t", "k"), transport.claim("w")):
            server.refusals = [stale]
            await call
        server.refusals = [stale, stale]
        with pytest.raises(TransportUnavailableError, match="broke"):
            await transport.start("t", "k")

    assert played(play).requests[1:] == [["start"], ["start"], ["claim"], ["claim"], ["start"], ["start"]]


def test_a_connection_that_ends_while_a_claim_waits_was_not_stale() -> None:
    async def play(server: Server, transport: Wired) -> None:
        await transport.claim("w")
        server.refusals = [aiohttp.ServerDisconnectedError()]
        with pytest.raises(TransportUnavailableError, match="broke"):
            await transport.claim("w", wait_ms=20_000)

    assert played(play).requests == [["claim"], ["claim"]]


def test_a_line_that_takes_nothing_any_more_is_given_up_and_a_slow_one_is_not() -> None:
    async def play(server: Server, transport: Wired) -> None:
        server.takes_s = 100  # for the other side to take it
        with pytest.raises(TransportUnavailableError, match="in time"):
            await transport.start("t", "k")
        await transport.complete("t", "k", ExternalTaskResult(result="x" * 4_000_000))

    assert played(play).given_up == 1


def test_a_refusal_of_a_request_is_told_to_each_of_its_frames_as_an_error_of_its_own() -> None:
    async def play(server: Server, transport: Wired) -> None:
        server.refusals = [problem(503, "unavailable", retry_after_ms=5)]
        errors = await asyncio.gather(*(transport.start(name, "k") for name in "abc"), return_exceptions=True)
        assert [getattr(error, "retry_after_ms", None) for error in errors] == [5, 5, 5]
        assert len({id(error) for error in errors}) == 3

    assert played(play).requests == [["start"] * 3]


def test_an_error_in_one_answer_is_that_frames_alone() -> None:
    async def play(server: Server, transport: Wired) -> None:
        error = {"code": "rate_limited", "message": "slow down", "hint": "", "facts": {"retry_after_ms": 9}}
        both = [{"v": 1, "id": 1, "ok": True}, {"v": 1, "id": 2, "ok": False, "error": error}]
        server.refusals = [Response(200, json={"answers": both})]
        good, bad = await asyncio.gather(transport.start("a", "k"), transport.start("b", "k"), return_exceptions=True)
        assert good is None
        assert isinstance(bad, RateLimitedError)
        assert bad.retry_after_ms == 9

    assert played(play).requests == [["start"] * 2]


def test_a_request_that_comes_too_often_waits_a_moment_and_comes_again() -> None:
    async def play(server: Server, transport: Wired) -> None:
        server.refusals = [problem(429, "rate_limited", retry_after_ms=100) for _ in range(2)]
        began = asyncio.get_running_loop().time()
        await transport.start("a", "k")
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.224)
        server.refusals = [problem(429, "rate_limited", retry_after_ms=100) for _ in range(3)]
        with pytest.raises(TransportUnavailableError) as caught:
            await transport.start("a", "k")
        assert vars(caught.value)["retry_after_ms"] == 100

    assert len(played(play).requests) == 6


def test_an_answer_without_end_is_cut() -> None:
    class Endless(Response):
        sent = 0

        async def iter_any(self) -> AsyncIterator[bytes]:
            while True:
                self.sent += 1
                yield b" " * 8_000_000

    async def play(server: Server, transport: Wired) -> None:
        stream = Endless(200)
        server.refusals = [stream]
        with pytest.raises(TransportUnavailableError, match="more than"):
            await transport.claim("w")
        assert stream.sent == FRAME_MAX // 8_000_000 + 1

    assert len(played(play).requests) == 1


# ---- settings ----


def test_the_token_and_the_tenant_go_with_every_request() -> None:
    server = Server()

    async def play() -> None:
        transport = Wired(server, tenant="acme", token="lw_a_b")
        await asyncio.gather(transport.start("a", "k"), transport.claim("w"))
        await transport.close()

    run_sim(play(), seed=0)
    assert {each["Authorization"] for each in server.headers} == {"Bearer lw_a_b"}
    assert {each["Laneway-Tenant"] for each in server.headers} == {"acme"}
    assert {each["Content-Type"] for each in server.headers} == {"application/json"}


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://127.0.0.1:8420", "http://127.0.0.1:8420"),
        ("http://localhost/", "http://localhost"),
        ("https://laneway.example.org/v1", "https://laneway.example.org"),
        ("https://example.org/laneway/v1/", "https://example.org/laneway"),
        (" http://[::1]:80 ", "http://[::1]:80"),
    ],
)
def test_an_address_may_end_as_those_of_other_clients_do(given: str, url: str) -> None:
    assert HttpTransport(given, verify=not url.startswith("https")).url == url


@pytest.mark.parametrize(
    ("url", "options", "setting"),
    [
        ("", {}, "url"),
        (7, {}, "url"),
        ("laneway.example.org", {}, "url"),
        ("ftp://example.org", {}, "url"),
        ("http://", {}, "url"),
        ("http://[::1", {}, "url"),
        ("http://a:99999", {}, "url"),
        ("http://a:b@example.org", {}, "url"),
        ("http://example.org/?token=x", {}, "url"),
        ("http://example.org/#x", {}, "url"),
        ("http://exa\nmple.org", {}, "url"),
        (URL, {"token": "lw_\n"}, "token"),
        (URL, {"token": "schlüssel"}, "token"),
        (URL, {"token": 7}, "token"),
        (URL, {"tenant": "a\r\nb"}, "tenant"),
        (URL, {"verify": "ca.pem"}, "url"),
        (URL, {"certificate": "c.pem"}, "url"),
        (URL, {"verify": 7}, "verify"),
        (URL, {"timeout_s": 0}, "timeout_s"),
        (URL, {"timeout_s": True}, "timeout_s"),
        (URL, {"timeout_s": float("nan")}, "timeout_s"),
        (URL, {"timeout_s": "5"}, "timeout_s"),
        ("https://a", {"key": "k.pem"}, "certificate"),
        ("https://a", {"verify": "nothing.pem"}, "verify"),
        ("https://a", {"verify": "/"}, "verify"),
        ("https://a", {"verify": False, "certificate": "nothing.pem"}, "certificate"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_at_once(url: Any, options: Any, setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        HttpTransport(url, **options)
    assert caught.value.setting == setting
    assert "lw_" not in str(caught.value)


def test_certificates_are_read_from_files(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    own = authority.issue_cert("worker")
    own.private_key_and_cert_chain_pem.write_to_path(tmp_path / "own.pem")
    (tmp_path / "bad.pem").write_text("nonsense")
    HttpTransport("https://a", verify=tmp_path / "ca.pem", certificate=str(tmp_path / "own.pem"))
    for options in ({"verify": tmp_path / "bad.pem"}, {"certificate": tmp_path / "bad.pem", "verify": False}):
        with pytest.raises(ConfigError, match=r"bad\.pem"):
            HttpTransport("https://a", **options)
    with pytest.raises(
        ConfigError, match=r"^the certificate of an authority in nope\.pem cannot be read: No such file"
    ):
        HttpTransport("https://a", verify="nope.pem")


@pytest.mark.parametrize(
    ("url", "environment", "proxy"),
    [
        ("http://example.org", {}, None),
        ("http://example.org", {"http_proxy": "http://p:1"}, "http://p:1"),
        ("http://example.org", {"https_proxy": "http://p:1"}, None),
        ("https://example.org", {"https_proxy": "p:1"}, "http://p:1"),
        ("https://example.org", {"HTTPS_PROXY": "https://u:w@p:1"}, "https://u:w@p:1"),
        ("https://example.org", {"all_proxy": "http://p:1", "http_proxy": "http://q:1"}, "http://p:1"),
        ("http://example.org", {"http_proxy": "http://p:1", "no_proxy": "example.org"}, None),
        ("http://a.example.org", {"http_proxy": "http://p:1", "no_proxy": ".example.org"}, None),
        ("http://example.org:80", {"http_proxy": "http://p:1", "no_proxy": "example.org:80"}, None),
        ("http://example.org:80", {"http_proxy": "http://p:1", "no_proxy": "example.org:81"}, "http://p:1"),
        ("http://[fd00::1]:80", {"http_proxy": "http://p:1", "no_proxy": "fd00::1"}, None),
        ("http://127.0.0.1", {"http_proxy": "http://p:1"}, None),  # it would look for the server on its own
        ("http://localhost:8420", {"all_proxy": "http://p:1"}, None),
    ],
)
def test_a_proxy_is_the_one_of_the_environment(
    url: str, environment: dict[str, str], proxy: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_proxies(monkeypatch)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert proxy_for(url) == proxy


def test_a_proxy_that_does_not_speak_http_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    without_proxies(monkeypatch)
    monkeypatch.setenv("all_proxy", "socks5://user:lw_secret@p:1")
    with pytest.raises(ConfigError, match="socks5") as caught:
        HttpTransport("http://example.org")
    assert "lw_secret" not in str(caught.value)


def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_its_name_does_not_tell_the_token() -> None:
    transport = HttpTransport(URL, token="lw_a_secret")
    assert repr(transport) == f"<HttpTransport {URL}>"


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("http://example.org", {"token": "lw_x_y"}, "use https"),
        ("http://127.example.org", {"token": "lw_x_y"}, "use https"),
        ("https://example.org", {"verify": False}, "may be anybody"),
        ("http://127.0.0.1", {"token": "lw_x_y"}, ""),
        ("http://example.org", {}, ""),
    ],
)
def test_what_others_could_read_is_warned_of(
    url: str, options: dict[str, Any], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="laneway"):
        HttpTransport(url, **options)
    assert said in caplog.text
    assert bool(caplog.records) == bool(said)
    assert "lw_x_y" not in caplog.text


async def test_without_its_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    transport = HttpTransport(URL)
    with pytest.raises(ConfigError, match="aiohttp"):
        await transport.start("t", "k")
    await transport.close()
