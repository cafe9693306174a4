"""Connections before they are requests: how many there may be, and for how long one may say nothing.

An ASGI application sees a request when its head is complete. Whoever opens thousands of connections, or sends a head
one byte a minute, is met here: in the protocol that uvicorn runs for each connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.http11 import Response

from laneway.errors import OverloadedError, RateLimitedError
from laneway.gateway.problems import Problem, problem, problem_of
from laneway.gateway.rates import address_of

try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from laneway.gateway.settings import GatewaySettings

__all__ = ("Doors", "protocol_of", "raise_file_limit", "room_of")

_log = logging.getLogger("laneway.gateway")

HEAD_MAX: Final = 65_536
HEADERS_MAX: Final = 200
REFUSED_MAX: Final = 100
"""So many connections at one time get an answer that says why they are refused; the others are cut."""
REFUSED_S: Final = 2.0
STUCK_S: Final = 90.0  # streams give up such a client a little sooner
RETRY_MS: Final = 5_000
NOT_TEXT: Final = 1007
WHY_MAX: Final = 300
FILES_MAX: Final = 65_536
SPARE_MIN: Final = 64
SPARE_MAX: Final = 1_024
ROOM_MIN: Final = 8
FEW: Final = 500


class Doors:
    """Counts connections, in all and from each address."""

    def __init__(self, *, in_all: int, per_address: int) -> None:
        self._in_all = in_all
        self._per_address = per_address
        self._inside: dict[str, int] = {}
        self.count = 0
        self.refused = 0  # that wait for their answer

    def enter(self, address: str) -> OverloadedError | RateLimitedError | None:
        """One more; what is wrong with that, if it is one too many. Only who was let in leaves."""
        if self.count >= self._in_all:
            return OverloadedError(f"{self._in_all:,} connections are open already", retry_after_ms=RETRY_MS)
        if self._inside.get(address, 0) >= self._per_address:
            return RateLimitedError(
                f"{self._per_address:,} connections from one address are open already",
                retry_after_ms=RETRY_MS,
                hint="close some, or let requests share them",
            )
        self.count += 1
        self._inside[address] = self._inside.get(address, 0) + 1
        return None

    def leave(self, address: str) -> None:
        """One less."""
        self.count -= 1
        left = self._inside[address] - 1
        if left:
            self._inside[address] = left
        else:
            del self._inside[address]


class SocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket. What a client does wrong is no error of the server, and is not logged as one."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        accept = self.conn.accept
        self.conn.accept = lambda request: _told(accept(request))  # type: ignore[method-assign]

    async def send(self, message: Any) -> None:
        """A refusal completes the handshake, too: uvicorn would miss it, and say so in the log."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True

    def send_receive_event_to_app(self) -> None:
        """A text that is none closes the connection; uvicorn would log where it noticed."""
        if self.curr_msg_data_type == "text" and not self.close_sent:
            try:
                b"".join(self.frames).decode()
            except UnicodeDecodeError:
                self.frames = []
                self.conn.send_close(NOT_TEXT)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()


def _told(response: Response) -> Response:
    """The answer to a handshake; one that refuses it says why as everything here does."""
    if response.status_code != HTTPStatus.SWITCHING_PROTOCOLS:
        why = bytes(response.body or b"").decode("utf-8", "replace").strip()[:WHY_MAX]
        answer = problem(response.status_code, "bad_handshake", why or "this is no handshake of a WebSocket")
        response.body = bytes(answer.body)
        for name, value in answer.headers.items():
            del response.headers[name]
            response.headers[name] = value
    return response


class GuardedProtocol(HttpToolsProtocol):
    """One connection. Until the head of a request is complete, a timer runs."""

    doors: ClassVar[Doors]
    head_s: ClassVar[float]
    stuck_s: ClassVar[float] = STUCK_S

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.ws_protocol_class = SocketProtocol
        self._address = ""
        self._refusal: Problem | None = None
        self._is_inside = False
        self._timer: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None
        self._is_in_head = True
        self._head_size = 0

    # ---- coming and going ----

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Let it in, or say why not."""
        super().connection_made(transport)
        self._address = address_of(self.client)
        error = self.doors.enter(self._address)
        if error is None:
            self._is_inside = True
            self._arm(self.head_s)
            return
        self.doors.refused += 1
        self._refusal = problem_of(error)
        if self.doors.refused > REFUSED_MAX:
            transport.abort()
        else:
            self._arm(REFUSED_S)  # it is answered when it has asked: an answer before that is often not read

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._disarm()
        self._unstick()
        self._let_go()
        super().connection_lost(exc)

    def _let_go(self) -> None:
        if self._is_inside:
            self._is_inside = False
            self.doors.leave(self._address)
        elif self._refusal is not None:
            self._refusal = None
            self.doors.refused -= 1

    def handle_websocket_upgrade(self) -> None:
        """Another protocol takes over: the connection counts until that one has lost it."""
        self._disarm()
        super().handle_websocket_upgrade()
        successor = self.transport.get_protocol()
        if successor is self:
            return
        lost: Callable[[Exception | None], None] = successor.connection_lost

        @functools.wraps(lost)
        def connection_lost(exc: Exception | None) -> None:
            self._let_go()
            lost(exc)

        successor.connection_lost = connection_lost  # type: ignore[method-assign]

    # ---- a client that does not read ----

    def pause_writing(self) -> None:
        """It takes nothing now. To close such a connection would wait for it, so in the end it is cut."""
        super().pause_writing()
        self._unstick()
        self._stuck = self.loop.call_later(self.stuck_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It reads again."""
        super().resume_writing()
        self._unstick()

    def _unstick(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    # ---- the head of a request ----

    def data_received(self, data: bytes) -> None:
        """More of a request, or of the next one."""
        if self._refusal is not None:
            self._answer(self._refusal)
            return
        if self._is_in_head:
            self._head_size += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self._is_in_head and self._head_size > HEAD_MAX:
            self._answer(_too_large())
        elif self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._arm(self.head_s)  # the rest of a head, or of a body that nobody wants any more

    def on_message_begin(self) -> None:
        """A head begins."""
        self._is_in_head = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header. What comes behind the body is none: it was not there when the request was looked at."""
        if self._is_in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """The head is complete."""
        self._is_in_head = False
        self._head_size = 0
        self._disarm()
        if len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > HEAD_MAX:
            self._answer(_too_large())  # it came in one piece
        elif len(self.headers) > HEADERS_MAX:
            self._answer(problem(431, "head_too_large", f"a request has at most {HEADERS_MAX} headers"))
        else:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self.cycle is not None:  # None: the request was refused for its head
            super().on_body(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if self.cycle is not None:
            super().on_message_complete()

    # ---- refusing ----

    def _arm(self, delay_s: float) -> None:
        self._timer = self.loop.call_later(delay_s, self._too_slow)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self._is_in_head and self._head_size:
            self._answer(problem(408, "too_slow", "the head of the request did not come in time"))
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """What came is not HTTP."""
        self._answer(problem(400, "bad_http", "this is not a request that HTTP knows"))

    def _answer(self, answer: Problem) -> None:
        """Say it without the application, and close."""
        if self.transport.is_closing():
            return
        lines = [name + b": " + value + b"\r\n" for name, value in answer.raw_headers]
        self.transport.write(
            b"".join((STATUS_LINE[answer.status_code], *lines, b"connection: close\r\n\r\n", bytes(answer.body)))
        )
        self.transport.close()


def _too_large() -> Problem:
    return problem(431, "head_too_large", f"the head of a request has at most {HEAD_MAX:,} bytes")


def raise_file_limit() -> None:
    """Let this process open as many files as the system lets it: the usual limit is meant for other programs."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems say they would, and do not
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def room_of(settings: GatewaySettings, files: int | None) -> tuple[int, int]:
    """How many connections there may be, in all and from one address, if so many files can be open at one time.

    Some are left for the store, for tools and for models. If files are short, one address does not get all of them.
    """
    in_all, per_address = settings.connections_max, settings.connections_per_address
    if files is None or in_all <= (room := max(ROOM_MIN, files - min(max(files // 4, SPARE_MIN), SPARE_MAX))):
        return in_all, per_address
    return room, min(per_address, max(1, room // 2))


def _files() -> int | None:
    """How many files this process may have open; None: nobody says."""
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft


def protocol_of(settings: GatewaySettings) -> type[GuardedProtocol]:
    """The protocol for the connections of one server: `uvicorn.Config(http=protocol_of(settings))`."""
    in_all, per_address = room_of(settings, files := _files())
    if in_all < settings.connections_max:
        _log.log(
            logging.WARNING if in_all < FEW else logging.INFO,
            "at most %d connections, %d from one address: this process may open only %s files (ulimit -n)",
            in_all,
            per_address,
            files,
        )

    class Protocol(GuardedProtocol):
        doors = Doors(in_all=in_all, per_address=per_address)
        head_s = settings.request_timeout_ms / 1000

    return Protocol
