"""The transport over HTTP: how a worker reaches the gateway of a host, from anywhere that can open a connection to it.

```python
transport = HttpTransport("https://laneway.example.org", token="lw_…", verify="ca.pem")
try:
    await Worker(transport).run()
finally:
    await transport.close()
```

Only the worker opens connections, so it may live behind a NAT, and long polls make tasks arrive at once. What it says
goes to `POST /v1/tasks/frames`. A claim goes alone, because its answer may take a minute. Everything else gathers while
a request is on its way, and the next request takes all of it: a busy worker needs a few requests for hundreds of
frames, and an idle one waits for nothing. An answer that takes long holds up nobody: after a moment the next request
goes beside it. A frame that is large has a request of its own, so that signs of life never wait behind an upload.

A request that was sent and whose answer did not come is a `TransportUnavailableError`: the worker says it again, and
the desk answers the same. Nothing has to be opened again after the server was away; the next request connects.
"""

from __future__ import annotations

import asyncio
import copy
import io
import json
import logging
import os
import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from laneway.checked import is_loopback
from laneway.errors import (
    ConfigError,
    LanewayError,
    NotAuthenticatedError,
    NotFoundError,
    PermissionDeniedError,
    TransportUnavailableError,
    UsageError,
    describe,
    text_of,
)
from laneway.external import RESULT_MAX
from laneway.transports.wire import FRAME_MAX, FrameTransport, error_classes, error_of

if TYPE_CHECKING:
    import aiohttp

__all__ = ("HttpTransport",)

_log = logging.getLogger("laneway")

PATH: Final = "/v1/tasks/frames"
TIMEOUT_S: Final = 30.0
CONNECT_S: Final = 10.0
WAIT_MAX_MS: Final = 60_000  # no server lets a claim wait longer
FRAMES_MAX: Final = 500
GATHERED_MAX: Final = 500_000
"""Bytes of frames in one request: less than what proxies let pass."""
BODY_MAX: Final = 3 * RESULT_MAX + 1_000_000
"""Bytes of one request: the largest result there is, in ASCII, which may take three times as much; and its frame."""
PATIENCE_S: Final = 0.01  # for an answer, before the next request goes beside it
SENDING_MAX: Final = 4
LARGE_MAX: Final = 4  # uploads at one time
IDLE_S: Final = 4.0  # a connection: less than servers keep it, so that a request does not meet its end
STALE_S: Final = 1.0  # a connection that breaks within this may have ended before the request
AT_ONCE_MAX: Final = 1_000_000  # bytes that are written in one go
SLOWEST: Final = 50_000
"""Bytes a second: a line that is slower is as good as none."""
TRIES: Final = 3  # of a request that comes too often
PAUSE_MAX_MS: Final = 1_000
UNTRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
NO_TOKEN: Final = 401
TOO_LARGE: Final = 413
TOO_OFTEN: Final = 429
LATER: Final = frozenset({408, 425, TOO_OFTEN})
"""What a later try may get past, beside everything that is the server's own fault."""
STANDARD: Final = frozenset({"type", "title", "status", "detail", "code", "hint", "instance"})
EXAMPLE: Final = "for example https://laneway.example.org"
HEADERS: Final = {"Content-Type": "application/json", "Accept": "application/json"}


class HttpTransport(FrameTransport):
    """Reaches the gateway at `url` with a token that has the scope `worker`.

    `verify` is the file of the authority that has signed the server's certificate, or False to believe anybody;
    `certificate` and `key` are this side's own, where the server (or a proxy before it) asks for one. `tenant` chooses
    one, if the token is for all. `timeout_s` is the longest silence while an answer is due.
    """

    def __init__(  # noqa: PLR0913 - the public surface is a contract: keyword options, not option records
        self,
        url: str,
        *,
        token: str | None = None,
        verify: str | os.PathLike[str] | bool = True,
        certificate: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        tenant: str = "",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        super().__init__(self._carry, close=self._hang_up)
        self.url, self._is_near = _checked_url(url)
        self._headers = {**HEADERS, **_headers(token, tenant)}
        self._context = _context(self.url, verify=verify, certificate=certificate, key=key)
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s <= 3_600:
            raise ConfigError(f"timeout_s is a number of seconds, not {timeout_s!r:.80}", setting="timeout_s")
        self._timeout_s = float(timeout_s)
        self._proxy = proxy_for(self.url)
        self._http: aiohttp.ClientSession | None = None
        self._was_there = False  # somebody has answered
        self._gathered: dict[asyncio.Future[Any], str] = {}
        self._gathering: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._uploads = asyncio.Semaphore(LARGE_MAX)
        if token and self.url.startswith("http:") and not self._is_near:
            _log.warning("the token for %s goes over the network as it is: use https", self.url)

    def __repr__(self) -> str:
        return f"<HttpTransport {self.url}>"

    # ---- one frame ----

    async def _carry(self, frame: str) -> Any:
        wait_ms = _wait_of(frame)
        if wait_ms is not None:
            [answer] = await self._post([frame], wait_s=wait_ms / 1000)
            return answer
        if len(frame) > GATHERED_MAX:
            if len(frame) >= BODY_MAX:
                raise UsageError(f"a frame has less than {BODY_MAX:,} bytes, not {len(frame):,}", hint="send less")
            async with self._uploads:
                [answer] = await self._post([frame])
            return answer
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[Any] = loop.create_future()
        self._gathered[waiter] = frame
        if self._gathering is None:
            self._gathering = loop.create_task(self._send_gathered(), name="laneway-frames")
        try:
            return await waiter
        finally:
            self._gathered.pop(waiter, None)  # it was given up before it was sent

    # ---- many frames ----

    async def _send_gathered(self) -> None:
        """Send what has gathered, and what gathers meanwhile, one request after the other."""
        loop = asyncio.get_running_loop()
        try:
            while self._gathered:
                sending = loop.create_task(self._send(self._next()), name="laneway-frames-request")
                self._sending.add(sending)
                sending.add_done_callback(self._sending.discard)
                await asyncio.wait([sending], timeout=PATIENCE_S)
                while len(self._sending) >= SENDING_MAX:
                    await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._gathering = None

    def _next(self) -> dict[asyncio.Future[Any], str]:
        """The oldest of what has gathered, as much as one request takes."""
        size = 0
        batch: dict[asyncio.Future[Any], str] = {}
        for waiter, frame in self._gathered.items():
            size += len(frame)
            if batch and (size > GATHERED_MAX or len(batch) >= FRAMES_MAX):
                break
            batch[waiter] = frame
        for waiter in batch:
            del self._gathered[waiter]
        return batch

    async def _send(self, batch: Mapping[asyncio.Future[Any], str]) -> None:
        """One request; whoever waits for a part of its answer gets that, or the error."""
        try:
            answers = await self._post(list(batch.values()))
            for waiter, answer in zip(batch, answers, strict=True):
                if not waiter.done():
                    waiter.set_result(answer)
        except LanewayError as error:
            _fail(batch, error)
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever
            _fail(batch, TransportUnavailableError(f"the request failed: {describe(error)}"))
        finally:  # it was cancelled: the transport is being closed
            _fail(batch, TransportUnavailableError("this transport was closed meanwhile", hint="make a new one"))

    # ---- requests ----

    async def _post(self, frames: Sequence[str], *, wait_s: float = 0) -> list[Any]:
        """The answers to some frames, in their order."""
        body = b"".join((b'{"frames":[', ",".join(frames).encode(), b"]}"))
        for tries in range(1, TRIES + 1):
            status, headers, content = await self._request(body, wait_s)
            if 200 <= status < 300:
                return self._answers(content, len(frames))
            error = self._refusal(status, headers, content)
            pause_ms = getattr(error, "retry_after_ms", PAUSE_MAX_MS + 1)
            if status != TOO_OFTEN or pause_ms > PAUSE_MAX_MS or tries == TRIES:
                raise error
            await asyncio.sleep(pause_ms / 1000)  # nothing was done there, and there is room again in a moment
        raise AssertionError("unreachable")

    async def _request(self, body: bytes, wait_s: float) -> tuple[int, Mapping[str, str], bytes]:
        """What the server answers; a connection that had ended while nobody used it costs one more try."""
        library = _library()
        clock = asyncio.get_running_loop().time
        breaks = (library.ServerDisconnectedError, library.ClientConnectionResetError, library.ClientOSError)
        began = clock()
        try:
            try:
                return await self._try(body, wait_s)
            except breaks as error:
                is_new = isinstance(error, library.ClientConnectorError) or not self._was_there
                if is_new or clock() - began > STALE_S:
                    raise
            return await self._try(body, wait_s)
        except (library.ClientError, OSError) as error:
            raise self._lost(error) from error
        except RuntimeError as error:
            if self._http is not None and not self._http.closed:
                raise
            raise TransportUnavailableError("this transport was closed meanwhile", hint="make a new one") from error

    async def _try(self, body: bytes, wait_s: float) -> tuple[int, Mapping[str, str], bytes]:
        if self._http is None:
            self._http = self._client()
        silence_s = wait_s + self._timeout_s
        timeout = _library().ClientTimeout(connect=min(CONNECT_S, self._timeout_s), sock_read=silence_s)
        sent = body if len(body) < AT_ONCE_MAX else io.BytesIO(body)
        # The library bounds the silence from when all is sent; a line that takes nothing any more has to end, too.
        async with asyncio.timeout(CONNECT_S + len(body) / SLOWEST + silence_s) as until_head:
            async with self._http.post(self.url + PATH, data=sent, timeout=timeout, allow_redirects=False) as response:
                self._was_there = True
                until_head.reschedule(None)
                return response.status, response.headers, await _whole(response)

    def _client(self) -> aiohttp.ClientSession:
        """A client without a bound on its connections: who waits for a task must not wait for a connection."""
        library = _library()
        # A name may lead elsewhere when a server has moved, so it is looked up for each connection.
        connector = library.TCPConnector(
            limit=0, keepalive_timeout=IDLE_S, ssl=self._context or True, use_dns_cache=False
        )
        client: aiohttp.ClientSession = library.ClientSession(
            connector=connector, headers=self._headers, proxy=self._proxy
        )
        return client

    async def _hang_up(self) -> None:
        tasks = [task for task in (self._gathering, *self._sending) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._http is not None:
            await self._http.close()

    # ---- what comes back ----

    def _answers(self, content: bytes, count: int) -> list[Any]:
        try:
            body: object = json.loads(content)
        except (ValueError, RecursionError):
            body = None
        answers = body.get("answers") if isinstance(body, dict) else None
        if not isinstance(answers, list) or len(answers) != count:
            raise TransportUnavailableError(
                f"{self.url} answered with something that is not from Laneway", hint="is it the address of a gateway?"
            )
        return answers

    def _refusal(self, status: int, headers: Mapping[str, str], content: bytes) -> LanewayError:
        """What it means that a request was refused: the error that the problem names, or that a later try may help."""
        body = _problem(content)
        if body is None:
            if status == TOO_LARGE:
                return UsageError(f"{self.url} takes no request of this size", hint="send less")
            return TransportUnavailableError(
                f"{self.url} answered {status} with something that is not from Laneway",
                hint="is it the address of a gateway?",
                status=status,
                **_retry_after(None, headers),
            )
        message, hint = text_of(body["detail"]), text_of(body.get("hint") or "")
        if status >= 500 or status in LATER:
            facts = _retry_after(body.get("retry_after_ms"), headers)
            return TransportUnavailableError(message, hint=hint, status=status, **facts)
        code = body.get("code")
        if status == NO_TOKEN:
            hint = "name one with the scope worker: --token-file FILE, in Python token=…"
        if code not in error_classes():
            kind = {NO_TOKEN: NotAuthenticatedError, 403: PermissionDeniedError}.get(status, UsageError)
            return kind(message, hint=hint, status=status)
        facts = {name: value for name, value in body.items() if name not in STANDARD}
        if code == NotFoundError.code:  # of the path itself: this server knows nothing of workers
            message, hint = f"{self.url} has no {PATH}", "is it a gateway, and of this version?"
        return error_of({"code": code, "message": message, "hint": hint, "facts": facts})

    def _lost(self, error: Exception) -> LanewayError:
        said, hint = text_of(error) or type(error).__name__, "try again"
        if UNTRUSTED in said:
            said = f"the certificate of {self.url} is not trusted here: {said}"
            hint = "name the file of its authority: --ca FILE, in Python verify=…"
            if not self._was_there:  # it will not get better by itself, as one may that has just run out
                return ConfigError(said, setting="verify", hint=hint)
        elif "CERTIFICATE_REQUIRED" in said:
            said = f"{self.url} asks for a certificate: {said}"
            hint = "name one of this side's own: --cert FILE --key FILE, in Python certificate=…, key=…"
        elif isinstance(error, TimeoutError):
            said = f"{self.url} did not answer in time ({type(error).__name__})"
        elif isinstance(error, _library().ClientConnectorError):
            why = error.os_error.strerror or text_of(error.os_error)
            if error.errno and why.startswith("Connect call failed"):  # asyncio says no more than the address
                why = os.strerror(error.errno)
            said, hint = f"no server answers at {self.url}: {why}", "is it running?"
        else:
            said = f"the connection to {self.url} broke: {said}"
            if not self._was_there and self.url.startswith("http:"):
                hint = "is it an address with https?"
        return TransportUnavailableError(said, hint=hint)


# ---- settings ----


def _library() -> Any:
    try:
        import aiohttp
    except ImportError:
        hint = 'install it with the extra: "laneway[worker]"'
        raise ConfigError("HttpTransport needs aiohttp", setting="transport", hint=hint) from None
    return aiohttp


def _checked_url(url: object) -> tuple[str, bool]:
    """The address without `/v1` at its end, and whether it is this machine."""
    if not isinstance(url, str):
        raise ConfigError(f"url is the address of a gateway, not {url!r:.80}", setting="url", value=url, hint=EXAMPLE)
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r:.200} is no address: {error}", setting="url", value=url, hint=EXAMPLE) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isprintable():
        raise ConfigError(f"{url!r:.200} is no address of a gateway", setting="url", value=url, hint=EXAMPLE)
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ConfigError(
            "the address of a gateway has a host and perhaps a path, and nothing else",
            setting="url",
            hint="the token is an argument of its own",
        )
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}", is_loopback(parts.hostname)


def proxy_for(url: str) -> str | None:
    """The proxy that the environment names for an address. None for this machine: it would look for it on its own."""
    parts, proxies = urlsplit(url), getproxies()
    found = proxies.get(parts.scheme) or proxies.get("all")
    host = parts.hostname or ""
    if not found or is_loopback(host) or proxy_bypass(host) or proxy_bypass(parts.netloc):
        return None
    proxy = found if "://" in found else f"http://{found}"
    if not proxy.startswith(("http://", "https://")):
        said = f"{parts.scheme}_proxy is {urlsplit(proxy).scheme}://…, and only proxies that speak HTTP can be used"
        raise ConfigError(said, setting="url", value=url, hint="name this host in no_proxy to reach it without one")
    return proxy


def _headers(token: str | None, tenant: str) -> dict[str, str]:
    headers: dict[str, str] = {}
    said: dict[str, tuple[object, str]] = {"token": (token, "Authorization"), "tenant": (tenant, "Laneway-Tenant")}
    for setting, (value, name) in said.items():
        if value is None or value == "":
            continue
        if not isinstance(value, str) or not (value.isascii() and value.isprintable()):
            raise ConfigError(f"a {setting} has only plain characters", setting=setting, hint="look at what was pasted")
        headers[name] = f"Bearer {value.strip()}" if setting == "token" else value
    return headers


def _context(
    url: str,
    *,
    verify: str | os.PathLike[str] | bool,
    certificate: str | os.PathLike[str] | None,
    key: str | os.PathLike[str] | None,
) -> ssl.SSLContext | None:
    """How certificates are looked at. Files that cannot be read are refused now, not at the first request."""
    if key is not None and certificate is None:
        raise ConfigError("a key needs its certificate", setting="certificate")
    if not isinstance(verify, bool | str | os.PathLike):
        raise ConfigError(f"verify is a file, True or False, not {verify!r:.80}", setting="verify", value=verify)
    if url.startswith("http:"):
        if certificate is not None or not isinstance(verify, bool):
            raise ConfigError("there are no certificates without https", setting="url", value=url, hint=EXAMPLE)
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if verify is False:
        _log.warning("%s may be anybody: its certificate is not looked at", url)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif verify is True:
        context = _authorities()
    else:
        authority = _place(verify)
        what = f"the certificate of an authority in {verify!s:.300}"
        _load("verify", what, lambda: context.load_verify_locations(authority))
    if certificate is not None:
        chain, own = _place(certificate), None if key is None else _place(key)
        # A key that asks for a password is refused: nobody sits before a worker.
        what = f"the certificate in {certificate!s:.300}" + ("" if key is None else f" with the key in {key!s:.300}")
        _load("certificate", what, lambda: context.load_cert_chain(chain, own, password=lambda: b""))
    return context


def _authorities() -> ssl.SSLContext:
    """Those that the command line believes, too: of the system, or of SSL_CERT_FILE and SSL_CERT_DIR."""
    try:
        import httpx2
    except ImportError:
        return ssl.create_default_context()
    return httpx2.create_ssl_context()


def _place(path: str | os.PathLike[str]) -> str:
    return os.path.expanduser(os.fspath(path))


def _load(setting: str, what: str, load: Any) -> None:
    try:
        load()
    except (OSError, ValueError) as error:  # what is wrong with a certificate is an OSError, too
        why = getattr(error, "strerror", None) or text_of(error)
        raise ConfigError(f"{what} cannot be read: {why}", setting=setting, hint="a file in PEM format") from None


# ---- reading ----


def _wait_of(frame: str) -> int | None:
    """How long a claim waits; None: it is no claim. What makes no sense is the host's to refuse."""
    if '"op":"claim"' not in frame[:80]:  # a frame begins with v, id and op
        return None
    wait_ms = json.loads(frame).get("wait_ms")
    return min(wait_ms, WAIT_MAX_MS) if type(wait_ms) is int and wait_ms > 0 else 0


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    pieces, size = [], 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > FRAME_MAX:
            raise TransportUnavailableError(f"the answer has more than {FRAME_MAX:,} bytes", hint="claim fewer tasks")
        pieces.append(piece)
    return b"".join(pieces)


def _problem(content: bytes) -> dict[str, Any] | None:
    try:
        body: object = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict) or not isinstance(body.get("detail"), str) or not isinstance(body.get("code"), str):
        return None
    return body


def _retry_after(said: object, headers: Mapping[str, str]) -> dict[str, int]:
    """When to try again, if it was said."""
    if type(said) is int and said >= 0:
        return {"retry_after_ms": said}
    seconds = headers.get("retry-after", "")
    return {"retry_after_ms": int(seconds) * 1000} if seconds.isdecimal() and len(seconds) < 8 else {}


def _fail(batch: Mapping[asyncio.Future[Any], str], error: LanewayError) -> None:
    for waiter in batch:
        if not waiter.done():
            waiter.set_exception(copy.copy(error))  # each has its own: a traceback is written into it
