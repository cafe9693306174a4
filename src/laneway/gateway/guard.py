"""What a request has to pass before anything of ours looks at it: where it goes, where it comes from, how big it is.

A server on this machine is within reach of every page that a browser on it has open. Two things keep those out: the
`Host` has to be one of ours (a name that somebody else's DNS points here is not), and whatever changes something, or
opens a WebSocket, comes from a page of ours or from no page at all (`Origin`, `Sec-Fetch-Site`). Reading is closed to
other pages by the browser itself, as long as nobody allows it (CORS).

The body of a request is read here as a whole, within a size and a time, so that a route never waits for a slow client
and never sees half a body. What is refused is refused with problem details.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote_to_bytes

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from laneway.errors import ConfigError, LanewayError, OverloadedError, RateLimitedError, UsageError
from laneway.gateway.access import Scope as Right
from laneway.gateway.access import secret_of
from laneway.gateway.problems import Problem, problem, problem_of
from laneway.gateway.rates import address_of
from laneway.gateway.service import Gateway
from laneway.gateway.settings import GatewaySettings
from laneway.gateway.tokens import Token, TokenBook
from laneway.transports.http import BODY_MAX

__all__ = ("Guard", "Hosts", "install", "token_of")

_log = logging.getLogger("laneway.gateway")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

TOKEN: Final = "laneway.token"  # noqa: S105 - the name of a place in the scope of a request
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
EVERYWHERE: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, not bound to
SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
OTHER_SITES: Final = frozenset({b"cross-site", b"same-site"})  # another port of this machine is of the same site
METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
CORS_HEADERS: Final = (
    "Authorization", "Content-Type", "Idempotency-Key", "Laneway-Session", "Laneway-Tenant", "Laneway-Workspace",
    "Last-Event-ID", "Traceparent", "X-Request-Id",
)  # fmt: skip
CORS_EXPOSED: Final = ("Idempotent-Replayed", "Location", "Retry-After", "X-Request-Id")
REMEMBERED_MAX: Final = 1_000
BODIES_MAX: Final = 64
"""So many bodies of the largest size may be under way at one time, in all."""
WORK: Final = "/v1/tasks/"
POLICY_VIOLATED: Final = 1008
CLOSE: Final = {"Connection": "close"}
NARROW: Final = b"default-src 'none'; frame-ancestors 'none'"
PAGE: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ALWAYS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
)
OURS_ONLY: Final = (b"cross-origin-resource-policy", b"same-origin")


class Refusal(Exception):  # noqa: N818 - it carries an answer, and is never seen outside
    """What is answered instead of the request."""

    def __init__(self, answer: Problem) -> None:
        super().__init__(answer.status_code)
        self.answer = answer


def token_of(tokens: TokenBook, scope: MutableMapping[str, Any]) -> Token | None:
    """The token that comes with a request, if it counts. It is looked up once."""
    if TOKEN in scope:
        found: Token | None = scope[TOKEN]
        return found
    said = [value for name, value in scope["headers"] if name == b"authorization"]
    secret = secret_of(said, scope.get("subprotocols", ()))
    scope[TOKEN] = token = tokens.find(secret) if secret else None
    return token


class Hosts:
    """The names under which the server is reached, and the origins whose pages may change something."""

    def __init__(self, settings: GatewaySettings) -> None:
        named = (*LOOPBACK, settings.host, *settings.allowed_hosts)
        self._names = {_bare(each) for each in named if each not in EVERYWHERE}
        self._suffixes = tuple(each[1:] for each in self._names if each.startswith("*."))
        self._takes_addresses = settings.host in EVERYWHERE
        self._origins = frozenset(_origin(each) for each in settings.cors_origins)
        self._known: set[bytes] = set()

    def is_ours(self, host: bytes) -> bool:
        """Whether a header `Host` names this server. A port may stand behind the name: any, there are tunnels."""
        if host in self._known:
            return True
        parts = _split(host)
        if parts is None or not self._has(parts[0]):
            return False
        if len(self._known) < REMEMBERED_MAX:
            self._known.add(host)
        return True

    def _has(self, name: str) -> bool:
        if name in self._names or name.endswith(self._suffixes or ("\0",)):
            return True
        # Only a name can be pointed here by somebody else's DNS; whoever has an address means this machine.
        return self._takes_addresses and _is_address(name)

    def may_write(self, origin: bytes | None, host: bytes, site: bytes) -> bool:
        """Whether a request that changes something may come from there; without an origin no page has sent it."""
        if origin is None:
            return site not in OTHER_SITES
        text = origin.decode("latin-1").lower()
        if text in self._origins:
            return True
        return site not in OTHER_SITES and _is_same(text, host)


def _origin(text: str) -> str:
    """An origin of the settings; "any" would be every page that somebody on this machine has open."""
    origin = text.strip().rstrip("/").lower()
    scheme, _, host = origin.partition("://")
    if not scheme or not host or "*" in host or "/" in host:
        raise ConfigError(
            f"{text!r} is no origin", setting="gateway.cors_origins", value=text, hint="for example https://example.org"
        )
    return origin


def _bare(name: str) -> str:
    return name.strip().lower().removeprefix("[").removesuffix("]").removesuffix(".")


def _split(host: bytes) -> tuple[str, str] | None:
    """The name and the port of a header `Host`; None for what is neither."""
    try:
        text = host.decode("ascii").lower()
    except UnicodeDecodeError:
        return None
    if text.startswith("["):
        name, bracket, port = text[1:].partition("]")
        if not bracket or (port and not port.startswith(":")):
            return None
        port = port[1:]
    else:
        name, _, port = text.partition(":")
    if not name or (port and not (port.isdigit() and len(port) <= 5)):
        return None
    return name.removesuffix("."), port


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_same(origin: str, host: bytes) -> bool:
    """Whether a page of that origin is one of ours. A proxy may have taken TLS off, so both schemes count."""
    scheme, _, rest = origin.partition("://")
    standard = {"http": "80", "https": "443"}.get(scheme)
    theirs, ours = _split(rest.encode("latin-1")), _split(host)
    if standard is None or theirs is None or ours is None:
        return False
    return (theirs[0], theirs[1] or standard) == (ours[0], ours[1] or standard)


@dataclass(slots=True)
class Said:
    """The headers of a request that the guard looks at. Empty: not there."""

    hosts: list[bytes] = field(default_factory=list)
    origins: list[bytes] = field(default_factory=list)
    authorization: list[bytes] = field(default_factory=list)
    site: bytes = b""
    length: bytes = b""
    coding: bytes = b""
    is_chunked: bool = False


def _said(headers: Iterable[tuple[bytes, bytes]]) -> Said:
    said = Said()
    for name, value in headers:
        match name:
            case b"host":
                said.hosts.append(value)
            case b"origin":
                said.origins.append(value)
            case b"authorization":
                said.authorization.append(value)
            case b"sec-fetch-site":
                said.site = value
            case b"content-length":
                said.length = value
            case b"content-encoding":
                said.coding = value
            case b"transfer-encoding":
                said.is_chunked = True
            case _:
                pass
    return said


class Guard:
    """ASGI middleware around everything."""

    def __init__(self, app: App, gateway: Gateway) -> None:
        self._app = app
        self._gateway = gateway
        self._hosts = Hosts(gateway.settings)
        self._body_max = gateway.settings.body_max
        self._timeout_s = gateway.settings.request_timeout_ms / 1000
        self._held = 0  # bytes of bodies that are under way
        shared = () if gateway.settings.cors_origins else (OURS_ONLY,)
        # The policy is the last one: an answer may bring its own.
        self._headers = [*ALWAYS, *shared, (b"content-security-policy", NARROW)]
        self._page_headers = [*ALWAYS, *shared, (b"content-security-policy", PAGE)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let it pass, or answer it here."""
        kind = scope["type"]
        if kind == "http":
            await self._http(scope, receive, self._dressed(send))
        elif kind == "websocket":
            await self._websocket(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        held = 0
        try:
            said = self._check(scope, is_write=scope["method"] not in SAFE)
            if said.is_chunked or said.length not in (b"", b"0"):
                body = await self._body(said, receive, self._most(scope))
                held = len(body)
                self._held += held
                receive = _replay(body, receive)
            await self._app(scope, receive, send)
        except Refusal as refusal:
            await refusal.answer(scope, receive, send)
        finally:
            self._held -= held

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check(scope, is_write=True)
        except Refusal as refusal:
            if "websocket.http.response" in scope.get("extensions", {}):
                await refusal.answer(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": POLICY_VIOLATED, "reason": "refused"})
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope, *, is_write: bool) -> Said:
        said = _said(scope["headers"])
        if len(said.hosts) != 1 or not self._hosts.is_ours(said.hosts[0]):
            raise Refusal(
                problem(
                    421,
                    "wrong_host",
                    "this server does not go by that name",
                    hint="use the address that it printed, or add the name to gateway.allowed_hosts",
                )
            )
        if is_write:
            origin = said.origins[0] if said.origins else None
            if len(said.origins) > 1 or not self._hosts.may_write(origin, said.hosts[0], said.site):
                raise Refusal(
                    problem(
                        403,
                        "wrong_origin",
                        "pages of other sites may change nothing here",
                        hint="add the origin to gateway.cors_origins, if it is yours",
                    )
                )
        _check_path(scope)
        secret = secret_of(said.authorization, scope.get("subprotocols", ()))
        token = self._gateway.tokens.find(secret) if secret else None
        scope[TOKEN] = token
        wait_ms = self._gateway.rates.wait_ms(address_of(scope.get("client")) if token is None else token.id)
        if wait_ms:
            raise _refused(
                RateLimitedError(
                    f"more than {self._gateway.rates.per_second:,} requests a second come from you",
                    retry_after_ms=wait_ms,
                )
            )
        return said

    def _most(self, scope: Scope) -> int:
        """How many bytes a body may have: more from a worker, and only where results go."""
        token: Token | None = scope[TOKEN]
        if token is None or not scope["path"].startswith(WORK):
            return self._body_max
        caller = token.caller()
        may = caller.may(Right.WORKER) or caller.may(Right.OPERATE)
        return max(self._body_max, BODY_MAX) if may else self._body_max

    async def _body(self, said: Said, receive: Receive, most: int) -> bytes:
        """The whole body, within its size and time."""
        if said.length and not (said.length.isdigit() and len(said.length) <= 20):
            raise _refused(UsageError("Content-Length is a number of bytes"), CLOSE)
        if said.length and int(said.length) > most:
            raise _too_large(most)
        if said.coding not in (b"", b"identity"):
            detail = "the body of a request is not packed here"
            raise Refusal(problem(415, "encoded", detail, hint="leave Content-Encoding out", headers=CLOSE))
        message = await _first(receive, self._timeout_s)
        body: bytes = message.get("body", b"")
        if message.get("more_body"):
            pieces = [body]
            size = len(body)
            self._held += size
            try:
                async with asyncio.timeout(self._timeout_s):
                    while message.get("more_body"):
                        if size > most:
                            raise _too_large(most)
                        self._check_room()
                        message = await receive()
                        if message["type"] == "http.disconnect":
                            raise Refusal(problem(400, "disconnected", "the client went away"))
                        piece = message.get("body", b"")
                        pieces.append(piece)
                        size += len(piece)
                        self._held += len(piece)
            except TimeoutError:
                raise _slow() from None
            finally:
                self._held -= size
            body = b"".join(pieces)
        if len(body) > most:
            raise _too_large(most)
        return body

    def _check_room(self) -> None:
        if self._held > self._body_max * BODIES_MAX:
            raise _refused(OverloadedError("too many large requests come at one time", retry_after_ms=1_000))

    def _dressed(self, send: Send) -> Send:
        """Put the headers on that every answer has."""

        async def dressed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = self._with_ours(message.get("headers", ()))
            await send(message)

        return dressed

    def _with_ours(self, headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        kept: list[tuple[bytes, bytes]] = []
        is_page = is_cached = has_policy = False
        for name, value in headers:
            if b"\n" in value or b"\r" in value or b"\0" in value:
                _log.error("a header of an answer was left out, because it has a line break: %r", name)
                continue
            if name == b"content-type":
                is_page = value.startswith(b"text/html")
            elif name == b"cache-control":
                is_cached = True
            elif name == b"content-security-policy":
                has_policy = True  # the dashboard knows its own better
            kept.append((name, value))
        ours = self._page_headers if is_page else self._headers
        kept += ours[:-1] if has_policy else ours
        if not is_cached:
            kept.append((b"cache-control", b"no-store"))
        return kept


async def _first(receive: Receive, timeout_s: float) -> Message:
    """The first part of a body; mostly it is there already, and is all of it."""
    try:
        async with asyncio.timeout(timeout_s):
            message = await receive()
    except TimeoutError:
        raise _slow() from None
    if message["type"] == "http.disconnect":
        raise Refusal(problem(400, "disconnected", "the client went away"))
    return message


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body in one piece; after it, whatever else comes."""
    is_told = False

    async def replay() -> Message:
        nonlocal is_told
        if is_told:
            return await receive()
        is_told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


def _too_large(most: int) -> Refusal:
    detail = f"the body of a request has at most {most:,} bytes"
    return Refusal(problem(413, "too_large", detail, hint="send less", body_max=most))


def _slow() -> Refusal:
    return Refusal(problem(408, "too_slow", "the request did not come in time", hint="send it again", headers=CLOSE))


def _refused(error: LanewayError, headers: dict[str, str] | None = None) -> Refusal:
    answer = problem_of(error)
    answer.headers.update(headers or {})
    return Refusal(answer)


def _check_path(scope: Scope) -> None:
    """Refuse paths that mean one thing to us and another one to somebody before us."""
    path: str = scope["path"]
    if path.isascii() and path.isprintable() and "//" not in path and "/." not in path and "\\" not in path:
        return
    wrong = ""
    if "//" in path:
        wrong = "an empty part"
    elif any(part in (".", "..") for part in path.split("/")):
        wrong = "a part that is . or .."
    elif any(ord(char) < 32 or ord(char) == 127 for char in path):
        wrong = "a control character"
    elif "\ufffd" in path and not _is_text(scope.get("raw_path") or b""):
        wrong = "what is not UTF-8"
    if wrong:
        raise Refusal(problem(400, "bad_path", f"the path has {wrong}"))


def _is_text(raw_path: bytes) -> bool:
    try:
        unquote_to_bytes(raw_path).decode()
    except UnicodeDecodeError:
        return False
    return True


def install(app: FastAPI, gateway: Gateway) -> None:
    """Put the guard around an application, and CORS around it, if pages of other sites are allowed at all."""
    app.add_middleware(Guard, gateway=gateway)
    origins = [_origin(each) for each in gateway.settings.cors_origins]
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=METHODS,
            allow_headers=CORS_HEADERS,
            expose_headers=CORS_EXPOSED,
        )
