"""A program that speaks MCP over its input and output: one JSON message a line.

The SDK has a transport for this, which keeps a line however long it is, writes a traceback for every line that is no
message, and ends with what it is told. This one is for servers that nobody can vouch for:

- A line has at most `LINE_MAX` bytes. The call that a longer one answers fails; one that never ends ends the server.
- Lines that are no messages are counted and left out, and a line that answers a call with nonsense fails that call.
- What nobody reads is left out, and a flood of lines is read slowly (see `mcp_sieve`).
- What it writes to its error output is read and forgotten, but for the last words.
- It is ended with everything it has started, whatever happens here; also when the interpreter ends.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    jsonrpc_message_adapter,
)
from pydantic_core import from_json

from laneway.errors import TransportUnavailableError, text_of
from laneway.policies import McpServerConfig
from laneway.tools.mcp_sieve import Sieve
from laneway.tools.outputs import clean
from laneway.tools.processes import MARK, Processes
from laneway.tools.shell import ShellSettings, tool_environment

__all__ = ("LINE_MAX", "Program")

_log = logging.getLogger("laneway")

LINE_MAX: Final = 8 * 1024 * 1024
LINE_LOST_MAX: Final = 8 * LINE_MAX
READ_SIZE: Final = 65_536
TAIL_MAX: Final = 500
TOLD_AT: Final = frozenset({1, 1_000, 1_000_000})
GRACE_S: Final = 1.0
DRAIN_S: Final = 0.5
_ANSWERS: Final = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*(\d{1,18})\s*,\s*"(?:result|error)"'
)
_CONTROLS: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x1f\x7f]+")
_numbers: Final = count(1)
_alive: Final[set[tuple[int, int]]] = set()  # the process that has started a server that runs, and its group


def _end_all() -> None:
    """The interpreter ends, and somebody has let go of a loop without ending its tasks."""
    for starter, group in list(_alive):
        if starter != os.getpid():  # this is a fork of the process that has it
            continue
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


atexit.register(_end_all)


class Program:
    """One life of such a program. `on_lost` is called once, with the reason, when nothing more can come of it."""

    def __init__(self, name: str, config: McpServerConfig, on_lost: Callable[[str], None]) -> None:
        self._name = name
        self._config = config
        self._on_lost = on_lost
        self._is_lost = False
        self._tail = b""
        self._garbage = 0
        self._sieve = Sieve()
        self._mark = f"{os.getpid()}-mcp-{next(_numbers)}"
        self._processes: Processes | None = None
        self._to_session: MemoryObjectSendStream[SessionMessage | Exception]
        self._from_session: MemoryObjectReceiveStream[SessionMessage]

    @property
    def last_words(self) -> str:
        """The end of what it wrote to its error output."""
        return _CONTROLS.sub(" ", clean(self._tail.decode(errors="replace"))).strip()

    @asynccontextmanager
    async def open(
        self,
    ) -> AsyncIterator[
        tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
    ]:
        """Start it; the streams are what the SDK wants of a transport. At the end it is gone."""
        leader = self._start()
        processes = self._processes = Processes(leader, self._mark)
        known = (os.getpid(), processes.pid)
        _alive.add(known)
        self._to_session, read = anyio.create_memory_object_stream[SessionMessage | Exception](16)
        write, self._from_session = anyio.create_memory_object_stream[SessionMessage](64)
        pipes: list[asyncio.BaseTransport] = []
        tasks: list[asyncio.Task[None]] = []
        try:
            try:
                tasks += await self._connect(leader, pipes)
                yield read, write
            finally:
                await self._stop(processes, pipes)
        finally:
            _alive.discard(known)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for stream in (self._to_session, read, write, self._from_session):
                stream.close()
            for pipe in pipes:
                pipe.close()
            await asyncio.sleep(0)  # a pipe is closed in the next round of the loop

    def _start(self) -> subprocess.Popen[bytes]:
        config = self._config
        assert config.command is not None
        folder = None if config.cwd is None else os.path.expanduser(config.cwd)
        environment = {**tool_environment(ShellSettings(), session=config.env), MARK: self._mark}
        try:
            return subprocess.Popen(  # noqa: S603 - the program that the configuration names
                [os.path.expanduser(config.command), *config.args],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                close_fds=True,
                bufsize=0,
            )
        except OSError as error:
            what = "its folder" if folder and error.filename == folder else f"{config.command!r}"
            raise TransportUnavailableError(f"{what} cannot be used: {error.strerror or error}") from None
        except ValueError:  # a NUL, an equals sign in a name; what it is might be a secret
            raise TransportUnavailableError("its arguments or its environment cannot be given to a program") from None

    async def _connect(
        self, leader: subprocess.Popen[bytes], pipes: list[asyncio.BaseTransport]
    ) -> list[asyncio.Task[None]]:
        loop = asyncio.get_running_loop()
        assert leader.stdin is not None
        assert leader.stdout is not None
        assert leader.stderr is not None
        out = await self._reader(leader.stdout, pipes)
        err = await self._reader(leader.stderr, pipes)
        protocol = asyncio.StreamReaderProtocol(asyncio.StreamReader())  # for its flow control
        pipe, _ = await loop.connect_write_pipe(lambda: protocol, leader.stdin)
        pipes.append(pipe)
        writer = asyncio.StreamWriter(pipe, protocol, None, loop)

        def begin(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
            return loop.create_task(work, name=f"mcp-{name}-{leader.pid}")

        reading = begin(self._take_all(out), "out")
        return [
            reading,
            begin(self._keep_tail(err), "err"),
            begin(self._send_all(writer), "in"),
            begin(self._watch(reading), "watch"),
        ]

    async def _reader(self, file: Any, pipes: list[asyncio.BaseTransport]) -> asyncio.StreamReader:
        reader = asyncio.StreamReader(limit=READ_SIZE)
        loop = asyncio.get_running_loop()
        pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
        pipes.append(pipe)
        return reader

    async def _stop(self, processes: Processes, pipes: list[asyncio.BaseTransport]) -> None:
        """Close its input, which is how a server is asked to end; then end it, and what it has started."""
        self._is_lost = True
        self._to_session.close()
        try:
            if pipes:
                pipes[-1].close()
            async with asyncio.timeout(GRACE_S):
                await processes.wait()
        except TimeoutError:
            pass
        finally:
            await processes.end(grace_s=GRACE_S)

    def _lose(self, reason: str) -> None:
        """Nothing more can come of it: whoever waits for an answer is told."""
        if self._is_lost:
            return
        self._is_lost = True
        self._on_lost(reason)
        self._to_session.close()

    # ---- its output ----

    async def _take_all(self, out: asyncio.StreamReader) -> None:
        """Read to the end; after a line that is too long, or when nobody listens any more, only to keep it going."""
        parts: list[bytes] = []
        size = 0
        while piece := await out.read(READ_SIZE):
            first, *rest = piece.split(b"\n")
            size += len(first)
            if size <= LINE_MAX:
                parts.append(first)
            elif parts:
                await self._drop(b"".join(parts)[:READ_SIZE])
                parts = []
            if size > LINE_LOST_MAX:
                self._lose(f"it has written a line of more than {LINE_LOST_MAX:,} bytes")
            for line in rest:
                if size <= LINE_MAX:
                    await self._take(b"".join(parts))
                parts, size = [line], len(line)
            if self._is_lost:
                await self._sieve.rest()
        self._lose("it has closed its output")

    async def _take(self, line: bytes) -> None:
        if self._is_lost or not line.strip():
            return
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            await self._take_nonsense(line)
            return
        if self._sieve.takes(message):
            await self._give(message)
        await self._sieve.pace()

    async def _take_nonsense(self, line: bytes) -> None:
        """A line that is no message; if it means to answer a call, that call has failed."""
        self._garbage += 1
        if self._garbage in TOLD_AT:
            _log.warning("MCP server %s: %d of its lines were no messages", self._name, self._garbage)
        try:
            value = from_json(line) if line.lstrip().startswith(b"{") else None
        except ValueError:
            value = None
        answered = value.get("id") if isinstance(value, dict) and "method" not in value else None
        if isinstance(answered, int | str) and not isinstance(answered, bool):
            await self._fail(answered, "its answer is no message")
        await self._sieve.pace()

    async def _drop(self, beginning: bytes) -> None:
        """A line is too long to be kept; if it says first what it answers, that call has failed."""
        found = _ANSWERS.match(beginning)
        _log.warning("MCP server %s: a line of more than %d bytes was left out", self._name, LINE_MAX)
        if found is not None:
            await self._fail(int(found[1]), f"its answer has more than {LINE_MAX:,} bytes")

    async def _fail(self, call: int | str, why: str) -> None:
        await self._give(JSONRPCError(jsonrpc="2.0", id=call, error=ErrorData(code=PARSE_ERROR, message=why)))

    async def _give(self, message: Any) -> None:
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # nobody listens any more
            await self._to_session.send(SessionMessage(message))

    async def _keep_tail(self, err: asyncio.StreamReader) -> None:
        pieces = 0
        while piece := await err.read(READ_SIZE):
            self._tail = (self._tail + piece)[-TAIL_MAX:]
            pieces += 1
            if pieces % 16 == 0:
                await self._sieve.rest()

    # ---- its input, and its end ----

    async def _send_all(self, writer: asyncio.StreamWriter) -> None:
        try:
            async for each in self._from_session:
                self._sieve.told(each.message)
                writer.write(each.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await writer.drain()
        except (OSError, anyio.ClosedResourceError) as error:
            self._lose(f"it does not take anything any more ({text_of(error) or 'its input is closed'})")
        finally:
            writer.close()

    async def _watch(self, reading: asyncio.Task[None]) -> None:
        """It may have ended while something that it started holds its output."""
        assert self._processes is not None
        await self._processes.wait()
        await asyncio.wait([reading], timeout=DRAIN_S)
        self._lose("it has ended")

    async def ended(self) -> str:
        """How it has ended, if it has: its exit code and its last words, for whoever wants to know why."""
        if self._processes is None:
            return ""
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await self._processes.wait()
        code = self._processes.exit_code
        said = f": {self.last_words}" if self.last_words else ""
        return f"exit code {code}{said}" if code is not None else said.removeprefix(": ")
