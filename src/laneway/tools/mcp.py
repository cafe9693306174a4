"""MCP servers as sources of tools.

A source has one connection at a time, and one task owns it: the context managers of the SDK are entered and left there.
Calls are made over its session by whoever makes them, so as many are under way as lanes allow, and a call that is
cancelled tells the server so. A connection that is lost fails the calls that wait on it; the next call makes a new one.

```text
 stopped ──start──▶ starting ──▶ running ──lost──▶ failed ──next call──▶ starting …
                       └── cannot be started ──────▶ failed          any ──close──▶ closed
```

A server that fails again and again is given time: the second failure in a row costs a second, the next two, and so on
up to a minute. Calls in between fail at once, and say when there will be another try.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from typing import Any, Final, NamedTuple, Protocol

from mcp.client.session import ClientSession
from mcp.shared.dispatcher import ProgressFnT
from mcp.shared.exceptions import MCPError
from mcp.shared.jsonrpc_dispatcher import JSONRPCDispatcher
from mcp_types import (
    CONNECTION_CLOSED,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED_PROTOCOL_VERSION,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    ListToolsRequest,
    ListToolsResult,
    PaginatedRequestParams,
    ToolListChangedNotification,
)
from pydantic import ValidationError

from laneway.dialogue import ToolContext, ToolOutput
from laneway.errors import ClosedError, TransportUnavailableError, describe, text_of
from laneway.policies import McpServerConfig
from laneway.records import Effect
from laneway.tools.mcp_tools import TOOLS_MAX, McpStatus, McpTool, Offered, text_of_result, tools_of

__all__ = ("Connect", "Connection", "McpSource")

_log = logging.getLogger("laneway")

PAGES_MAX: Final = 100
REFRESH_S: Final = 1.0
STEADY_S: Final = 60.0
BACKOFF_MAX_S: Final = 60.0
SILENT_MAX: Final = 3
REASON_MAX: Final = 1_000
REPORTS_MAX: Final = 200
REPORT_MAX: Final = 1_000
SECRET_MIN: Final = 4
KEY: Final = "laneway/key"
"""Where a server finds the key of a call, which is the same at every attempt, in the `_meta` of a request."""
NO_ANSWER: Final = "Server returned an error response"
"""What the SDK says for an HTTP status: a proxy may say so of a call that has run."""
LOOK: Final = "It may have had its effect: look before you do it again."


class Connection(Protocol):
    """A way to reach a server, for one life of the connection."""

    def open(self) -> AbstractAsyncContextManager[Any]:
        """The pair of streams that a `ClientSession` wants."""

    async def ended(self) -> str:
        """What is known about its end."""


Connect = Callable[[str, McpServerConfig, Callable[[str], None]], Connection]
"""Makes a connection; the function is to be called with the reason when it is lost."""


def connection_to(name: str, config: McpServerConfig, on_lost: Callable[[str], None]) -> Connection:
    """The connection that a configuration asks for."""
    if config.command is not None:
        from laneway.tools.mcp_stdio import Program

        return Program(name, config, on_lost)
    from laneway.tools.mcp_http import Address  # HTTP is for those who have an address

    return Address(config, on_lost)


class McpSource:
    """A server, started when it is needed, and its tools. `on_change` is called when it offers other tools."""

    def __init__(
        self,
        name: str,
        config: McpServerConfig,
        *,
        connect: Connect = connection_to,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.config = config
        self._connect = connect
        self._on_change = on_change
        self._link: _Link | None = None
        self._tools: list[McpTool] = []
        self._offered: list[Offered] | None = None
        self._error = ""
        self._starts = 0
        self._deaths = 0  # in a row
        self._not_before = 0.0
        self._is_closed = False

    # ---- for the agent ----

    @property
    def status(self) -> McpStatus:
        """How it is."""
        link = self._link if self._link is not None and not self._link.is_over else None
        if self._is_closed:
            state = "closed"
        elif link is not None:
            state = "running" if link.is_up else "starting"
        else:
            state = "failed" if self._error else "stopped"
        error = "" if state in ("running", "closed") else self._error
        return McpStatus(name=self.name, state=state, tools=len(self._tools), starts=self._starts, error=error)

    async def start(self) -> None:
        """Start it and get its tools, if it does not run. Raises `TransportUnavailableError`."""
        await self._linked()

    def tools(self) -> list[McpTool]:
        """Its tools, as it last offered them."""
        return list(self._tools)

    async def refresh(self) -> None:
        """Ask it again for its tools. Raises `TransportUnavailableError`."""
        self._not_before = 0.0  # somebody has asked for it
        link = await self._linked()
        await link.list_tools()

    def give_up(self) -> None:
        """Do not wait for it any longer if it has not started yet; what runs goes on."""
        if self._link is not None and not self._link.is_up:
            self._link.give_up()

    async def close(self) -> None:
        """End it. A second time changes nothing."""
        self._is_closed = True
        if self._link is not None:
            await self._link.close()

    # ---- calls ----

    async def call(
        self, tool: str, arguments: Mapping[str, Any], context: ToolContext, *, effect: Effect
    ) -> ToolOutput:
        """Have it do something, by the name that it knows the tool by."""
        made = _Made(tool, arguments, context, effect)
        link = await self._linked()
        try:
            return await link.call(made)
        except _ForgottenError:  # it answers, and knows nothing of us: it was started anew, and has not run the call
            await link.close()
            link = await self._linked()
            return await link.call(made)

    async def _linked(self) -> _Link:
        if self._is_closed:
            raise ClosedError(opened=True, what=f"MCP server {self.name}")
        loop = asyncio.get_running_loop()
        while self._link is not None and self._link.loop is loop and self._link.is_lost:
            await self._link.over()
        link = self._link
        if link is None or link.is_over or link.loop is not loop:
            wait_s = self._not_before - loop.time()
            if wait_s > 0 and self._deaths > 1:
                again = f"{self._deaths} times in a row; it may be started again in {max(1, round(wait_s))} s"
                raise self.unavailable(f"{self._error} ({again})")
            self._starts += 1
            link = self._link = _Link(self, self._connect)
        await link.ready()
        return link

    # ---- for the link ----

    def unavailable(self, reason: str, **facts: Any) -> TransportUnavailableError:
        """An error that names the server and holds no secret."""
        return TransportUnavailableError(f"MCP server {self.name}: {self.hide(reason)}", **facts)

    def hide(self, text: str) -> str:
        """A text without what the configuration says about variables, headers and the address."""
        config = self.config
        secrets = {*config.env.values(), *config.headers.values(), *([config.url] if config.url else [])}
        secrets |= {part for value in config.headers.values() for part in value.split()}
        for secret in sorted(secrets, key=len, reverse=True):
            if len(secret) >= SECRET_MIN:
                text = text.replace(secret, "***")
        return text[:REASON_MAX]

    def take(self, offered: list[Offered]) -> None:
        """The server offers these."""
        if offered != self._offered:
            self._offered = offered
            self._tools = tools_of(self.name, self.config, offered, self.call)
            self._on_change()

    def died(self, reason: str, *, up_s: float) -> None:
        """A connection is over, and nobody wanted that."""
        self._error = self.hide(reason)
        self._deaths = 1 if up_s >= STEADY_S else self._deaths + 1
        backoff_s = min(BACKOFF_MAX_S, 2.0 ** min(self._deaths - 2, 10)) if self._deaths > 1 else 0.0
        self._not_before = asyncio.get_running_loop().time() + backoff_s
        _log.warning("MCP server %s: %s", self.name, self._error)


class _ForgottenError(Exception):
    """The server does not know this connection any more."""


class _Made(NamedTuple):
    """A call that is being made."""

    tool: str
    arguments: Mapping[str, Any]
    context: ToolContext
    effect: Effect

    @property
    def note(self) -> str:
        """What is said when nobody knows how far it came."""
        return "" if self.effect is Effect.READ else f". {LOOK}"


class _Link:
    """One connection, and the task that owns it."""

    def __init__(self, source: McpSource, connect: Connect) -> None:
        self.loop = asyncio.get_running_loop()
        self._source = source
        self._config = source.config
        self._connect = connect
        self._connection: Connection | None = None
        self._session: ClientSession | None = None
        self._dispatcher: JSONRPCDispatcher[Any] | None = None
        self._up: asyncio.Future[None] = self.loop.create_future()
        self._up_at = 0.0
        self._wake = asyncio.Event()
        self._gone = asyncio.Event()
        self._is_stale = False
        self._lost = ""
        self._silent = 0  # calls in a row that it did not answer
        self._is_closing = False
        self._reason = ""
        self.is_over = False
        self._task = self.loop.create_task(self._hold(), name=f"mcp-{source.name}")

    @property
    def is_up(self) -> bool:
        """Whether calls can be made."""
        return self._up.done() and not self.is_over and not self._lost

    @property
    def is_lost(self) -> bool:
        """Whether it is being let go of, because nothing more can come of it."""
        return bool(self._lost) and not self.is_over

    async def ready(self) -> None:
        """Wait until it is up, or has failed."""
        await asyncio.wait([self._up])
        if self.is_over:
            raise self._source.unavailable(self._reason)

    async def over(self) -> None:
        """Wait until everything is gone; every wait in there has an end."""
        await asyncio.wait([self._task])

    def give_up(self) -> None:
        """Begin to end it."""
        self._is_closing = True
        if not self.loop.is_closed() and not self._task.done():
            self.loop.call_soon_threadsafe(self._task.cancel)  # whose loop may be that of another thread

    async def close(self) -> None:
        """End it, and wait until everything is gone."""
        self.give_up()
        if self.loop is asyncio.get_running_loop():
            await self.over()

    # ---- the owner ----

    async def _hold(self) -> None:
        reason = "it was closed"
        try:
            async with AsyncExitStack() as stack:
                try:
                    await self._open(stack)
                    self._up_at = self.loop.time()
                    self._up.set_result(None)
                    await self._serve()
                    reason = await self._why(self._lost)
                except Exception as error:
                    reason = await self._why(self._lost or _said(error))
                    raise
        except asyncio.CancelledError:
            raise
        except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001 - whatever a library raises, it is over
            if reason == "it was closed":  # it came to light only while everything was taken down
                reason = _said(error)
        finally:
            self._end(reason)

    def _end(self, reason: str) -> None:
        self.is_over = True
        self._reason = reason
        up_s = self.loop.time() - self._up_at if self._up_at else 0.0
        if not self._up.done():
            self._up.set_result(None)
        if not self._is_closing and reason != "it was closed":
            self._source.died(reason, up_s=up_s)

    async def _open(self, stack: AsyncExitStack) -> None:
        limit_ms = self._config.start_timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000) as limit:
                self._connection = self._connect(self._source.name, self._config, self.lose)
                read, write = await stack.enter_async_context(self._connection.open())
                self._dispatcher = JSONRPCDispatcher(read, write)
                self._session = await stack.enter_async_context(
                    ClientSession(
                        dispatcher=self._dispatcher,
                        message_handler=self._hear,
                        client_info=Implementation(name="laneway", version="1"),
                    )
                )
                await self._shake_hands(self._session)
                await self._list()
        except TimeoutError:
            if limit.expired():
                raise TransportUnavailableError(f"it was not ready within {limit_ms} ms") from None
            raise

    async def _shake_hands(self, session: ClientSession) -> None:
        try:
            await session.initialize()
        except MCPError as error:
            if error.code not in (METHOD_NOT_FOUND, UNSUPPORTED_PROTOCOL_VERSION):
                raise
            await session.discover()  # a server that knows the newest versions of the protocol only

    async def _serve(self) -> None:
        """Stay until it is lost; get the tools again when they have changed, and not more often than once a second."""
        while not self._lost:
            await self._wake.wait()
            self._wake.clear()
            if self._is_stale and not self._lost:
                self._is_stale = False
                try:
                    await self.list_tools()
                except TransportUnavailableError as error:
                    _log.warning("%s", error)
                with suppress(TimeoutError):
                    async with asyncio.timeout(REFRESH_S):
                        await self._gone.wait()

    def lose(self, reason: str) -> None:
        """It is lost: whoever owns it lets go of it."""
        if not self._lost:
            self._lost = reason
            self._gone.set()
            self._wake.set()

    async def _hear(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._is_stale = True
            self._wake.set()

    async def _why(self, said: str) -> str:
        """What is known about the end of a connection."""
        more = await self._connection.ended() if self._connection is not None else ""
        return f"{said or 'the connection was lost'} ({more})" if more else said or "the connection was lost"

    # ---- its tools ----

    async def list_tools(self) -> None:
        """Get its tools. Raises `TransportUnavailableError`."""
        limit_ms = self._config.start_timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._list()
        except TimeoutError:
            raise self._source.unavailable(f"it did not say within {limit_ms} ms what tools it has") from None
        except (MCPError, ValueError, TypeError, RuntimeError) as error:
            raise self._source.unavailable(f"it did not say what tools it has: {_said(error)}") from None

    async def _list(self) -> None:
        found: list[Offered] = []
        cursor: str | None = None
        for _ in range(PAGES_MAX):
            offered, cursor = await self._page(cursor)
            found += offered
            if cursor is None or len(found) > TOOLS_MAX:
                break
        self._source.take(found)

    async def _page(self, cursor: str | None) -> tuple[list[Offered], str | None]:
        assert self._session is not None
        assert self._dispatcher is not None
        params = PaginatedRequestParams(cursor=cursor) if cursor is not None else None
        try:
            page = await self._session.send_request(ListToolsRequest(params=params), ListToolsResult)
        except ValidationError:  # one bad tool must not take the others with it
            raw = await self._dispatcher.send_raw_request("tools/list", {"cursor": cursor} if cursor else None)
            return _offered(raw.get("tools")), _cursor(raw.get("nextCursor"))
        tools = [Offered.of(each.name, each.description, each.input_schema) for each in page.tools]
        return [each for each in tools if each is not None], page.next_cursor or None

    # ---- calls ----

    async def call(self, made: _Made) -> ToolOutput:
        """Make a call and wait for what comes of it, as long as the configuration allows."""
        assert self._session is not None
        limit_ms = self._config.timeout_ms
        meta: Any = {KEY: made.context.key} if made.context.key else None
        params = CallToolRequestParams(name=made.tool, arguments=dict(made.arguments), _meta=meta)
        try:
            async with asyncio.timeout(limit_ms / 1000) as limit:
                result = await self._session.send_request(
                    CallToolRequest(params=params), CallToolResult, progress_callback=_reporter(made.context)
                )
        except TimeoutError:
            if not limit.expired():
                raise
            self._note_silence()
            raise TimeoutError(f"MCP server {self._source.name} did not answer within {limit_ms} ms") from None
        except MCPError as error:
            return await self._refused(made, error)
        except ValidationError:
            return self._doubtful(made, "answered with something that is no result")
        except (OSError, RuntimeError) as error:
            raise self._unavailable(made, f"the call could not be made: {_said(error)}") from None
        self._silent = 0
        return ToolOutput(
            text=text_of_result(result.content, result.structured_content), is_error=bool(result.is_error)
        )

    async def _refused(self, made: _Made, error: MCPError) -> ToolOutput:
        """The server says no; or there is no server any more, and nobody knows how far the call came."""
        if error.message == "Session terminated":
            raise _ForgottenError from None
        cut = error.message == "Connection closed" or error.message.startswith("SSE stream")
        if error.code == CONNECTION_CLOSED and (cut or self._lost or self.is_over):
            if error.message == "Connection closed":
                self.lose("the connection was closed")
                await self.over()  # then it is known why
            raise self._unavailable(made, self._reason or self._lost or error.message)
        self._silent = 0
        what = f"says: {text_of(error.message)}"
        if error.code == PARSE_ERROR or error.message == NO_ANSWER:  # the answer could not be read, or was HTTP's own
            return self._doubtful(made, what)
        return self._error(what)

    def _doubtful(self, made: _Made, what: str) -> ToolOutput:
        """It has answered, and its answer does not say what became of the call."""
        if made.effect is Effect.READ:
            return self._error(what)
        raise self._source.unavailable(f"{what}{made.note}", may_have_run=True)

    def _unavailable(self, made: _Made, reason: str) -> TransportUnavailableError:
        return self._source.unavailable(f"{reason} while {made.tool} ran{made.note}", may_have_run=True)

    def _error(self, what: str) -> ToolOutput:
        return ToolOutput(text=f"MCP server {self._source.name} {self._source.hide(what)}", is_error=True)

    def _note_silence(self) -> None:
        self._silent += 1
        if self._silent >= SILENT_MAX:
            self.lose(f"it did not answer {self._silent} calls in a row")


# ---- reading what a server says ----


def _offered(tools: Any) -> list[Offered]:
    """The tools of a page that is not quite right: those that have a name."""
    listed = [each for each in tools if isinstance(each, dict)] if isinstance(tools, list) else []
    found = [Offered.of(each.get("name"), each.get("description"), each.get("inputSchema")) for each in listed]
    return [each for each in found if each is not None]


def _cursor(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _reporter(context: ToolContext) -> ProgressFnT:
    """Shows what a server says while it works, as far as anybody could read it."""
    left = REPORTS_MAX

    async def report(progress: float, total: float | None, message: str | None) -> None:
        nonlocal left
        if message and left > 0:
            left -= 1
            context.report(f"{text_of(message)[:REPORT_MAX]}\n")

    return report


def _said(error: BaseException) -> str:
    """The first cause of an error in one line."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TransportUnavailableError | MCPError):
        return text_of(error)
    return describe(error)
