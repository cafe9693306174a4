"""A small server on this machine that speaks as OpenAI does, for tests: each request is answered by the next play.

```python
async with OpenAIStage(text("hello"), refuse(429, {"retry-after": "2"}), cut("hal")) as stage:
    model = open_model("openai/gpt-test", providers={"openai": ProviderSettings(base_url=stage.url)})
```

A play is an async function of an `Exchange`; write your own for what is not here. `stage.requests` keeps what came in.
Nothing waits for time: a slow answer waits for an event that the test sets.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

HEAD_MAX: Final = 65_536
USAGE: Final = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A request that came in."""

    path: str
    headers: Mapping[str, str]
    body: Any

    @property
    def messages(self) -> list[Any]:
        return list(self.body["messages"])


@dataclass(slots=True)
class Exchange:
    """One request and the answer to it."""

    request: Recorded
    writer: asyncio.StreamWriter
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the client has closed the connection; not with `keep_alive`."""
    begun: bool = False
    connection: str = "close"

    async def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """A whole answer, without a stream."""
        await self._head(status, {"content-type": "application/json", **headers, "content-length": str(len(body))})
        self.writer.write(body)
        await self.writer.drain()

    async def event(self, payload: Any, *, name: str = "") -> None:
        """An event of the stream; text is sent as it is."""
        if not self.begun:
            self.begun = True
            await self._head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
        text = payload if isinstance(payload, str) else json.dumps(payload)
        raw = (f"event: {name}\n" if name else "") + f"data: {text}\n\n"
        self._chunk(raw.encode())
        await self.writer.drain()

    async def delta(self, *, finish: str | None = None, usage: Mapping[str, Any] | None = None, **delta: Any) -> None:
        """A chunk of a chat completion."""
        chunk: dict[str, Any] = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "gpt-test",
        }
        chunk["choices"] = [{"index": 0, "delta": delta, "finish_reason": finish}] if delta or finish else []
        await self.event(chunk | ({"usage": dict(usage)} if usage is not None else {}))

    async def end(self, *, finish: str | None = "stop", usage: Mapping[str, Any] | None = USAGE) -> None:
        """The end of a good stream; with `finish=None` and `usage=None` one that just ends."""
        if finish is not None:
            await self.delta(finish=finish)
        if usage is not None:
            await self.delta(usage=usage)
        if finish is not None:
            await self.event("[DONE]")
        if not self.begun:
            await self._head(200, {"content-type": "text/event-stream", "transfer-encoding": "chunked"})
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()

    def abort(self) -> None:
        """Break the connection in the middle of whatever is being sent."""
        self.writer.transport.abort()

    def _chunk(self, raw: bytes) -> None:
        self.writer.write(f"{len(raw):x}\r\n".encode() + raw + b"\r\n")

    async def _head(self, status: int, headers: Mapping[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} Told", *(f"{name}: {value}" for name, value in headers.items())]
        self.writer.write("\r\n".join([*lines, f"connection: {self.connection}", "", ""]).encode())
        await self.writer.drain()


Play = Callable[[Exchange], Awaitable[None]]


class OpenAIStage:
    """The server; `url` is what goes into `base_url`. When its plays are used up it says `done`.

    A connection carries one exchange, or with `keep_alive` as many as the client likes. `connections` counts them.
    """

    def __init__(self, *plays: Play, keep_alive: bool = False) -> None:
        self.plays: list[Play] = list(plays)
        self.connections = 0
        self._keep_alive = keep_alive
        self.requests: list[Recorded] = []
        self.exchanges: list[Exchange] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        return f"{self.root}/v1"

    @property
    def root(self) -> str:
        """The address without `/v1`, as Anthropic's SDK wants it."""
        assert self._server is not None
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"http://{host}:{port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=HEAD_MAX)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            while True:
                exchange = Exchange(await _read(reader), writer)
                self.requests.append(exchange.request)
                self.exchanges.append(exchange)
                play = self.plays.pop(0) if self.plays else text("done")
                if not self._keep_alive:
                    return await _watched(play, exchange, reader)
                exchange.connection = "keep-alive"
                await play(exchange)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone: that is what some tests are about
        finally:
            self._tasks.discard(task)
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Recorded:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().rstrip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Recorded(path=first.split(" ")[1], headers=headers, body=json.loads(body) if body else None)


async def _watched(play: Play, exchange: Exchange, reader: asyncio.StreamReader) -> None:
    watch = asyncio.create_task(_watch(reader, exchange))
    try:
        await play(exchange)
    finally:
        watch.cancel()


async def _watch(reader: asyncio.StreamReader, exchange: Exchange) -> None:
    """A client sends nothing after its request: whatever comes next is its end."""
    try:
        await reader.read(1)
    finally:
        exchange.gone.set()


def text(*pieces: str, reasoning: Iterable[str] = (), usage: Mapping[str, Any] | None = USAGE) -> Play:
    """An answer in these pieces, after this reasoning."""

    async def play(exchange: Exchange) -> None:
        for piece in reasoning:
            await exchange.delta(role="assistant", reasoning_content=piece)
        for piece in pieces:
            await exchange.delta(role="assistant", content=piece)
        await exchange.end(usage=usage)

    return play


def tools(*calls: tuple[str, str, Iterable[str]], content: str = "") -> Play:
    """Calls: the id, the name and the fragments of the arguments of each; the fragments come in turn."""

    async def play(exchange: Exchange) -> None:
        if content:
            await exchange.delta(role="assistant", content=content)
        for index, (call_id, name, _) in enumerate(calls):
            function = {"name": name, "arguments": ""}
            await exchange.delta(tool_calls=[{"index": index, "id": call_id, "type": "function", "function": function}])
        rest = [list(fragments) for _, _, fragments in calls]
        while any(rest):
            for index, fragments in enumerate(rest):
                if fragments:
                    part = {"index": index, "function": {"arguments": fragments.pop(0)}}
                    await exchange.delta(tool_calls=[part])
        await exchange.end(finish="tool_calls")

    return play


def refuse(status: int, headers: Mapping[str, str] | None = None, body: Any = None) -> Play:
    """An error: the status, and the body as JSON, or as it is when it is text."""
    told = {"error": {"message": f"status {status}", "type": "test", "code": None}} if body is None else body
    raw = told if isinstance(told, str) else json.dumps(told)

    async def play(exchange: Exchange) -> None:
        await exchange.respond(status, headers or {}, raw.encode())

    return play


def cut(*pieces: str) -> Play:
    """These pieces, and then the connection breaks."""

    async def play(exchange: Exchange) -> None:
        for piece in pieces:
            await exchange.delta(role="assistant", content=piece)
        exchange.abort()

    return play


def fade(*pieces: str) -> Play:
    """These pieces, and then the stream ends as if all were well, only that nobody said so."""

    async def play(exchange: Exchange) -> None:
        for piece in pieces:
            await exchange.delta(role="assistant", content=piece)
        await exchange.end(finish=None, usage=None)

    return play


def raw(*events: Any) -> Play:
    """These events, whatever they are; then the stream ends."""

    async def play(exchange: Exchange) -> None:
        for each in events:
            await exchange.event(each)
        await exchange.end(finish=None, usage=None)

    return play


def slow(gates: Iterable[tuple[str, asyncio.Event]]) -> Play:
    """Pieces, each after its event is set."""

    async def play(exchange: Exchange) -> None:
        for piece, gate in gates:
            await gate.wait()
            await exchange.delta(role="assistant", content=piece)
        await exchange.end()

    return play


async def hold(exchange: Exchange) -> None:
    """One piece, and then nothing until the client goes away."""
    await exchange.delta(role="assistant", content="a")
    await exchange.gone.wait()
