"""Chat over a WebSocket: what a client says comes in, what happens in its session goes out.

A socket has two tasks: one reads what the client says and answers each with a receipt or a problem, the other one
writes what the feed of the session gives. Whichever ends first ends the other, and then the connection. What was taken
before stays taken: a client that comes back says its ids again, and nothing is done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from laneway.errors import InvalidMessageError, LanewayError
from laneway.gateway.feeds import Feed, Marked
from laneway.gateway.hub import GONE, SLOW, STOPPING, json_of
from laneway.gateway.problems import problem_of

__all__ = ("Closing", "Reply", "Socket", "closing_of")

GARBAGE_MAX: Final = 20
SEND_TIMEOUT_MS: Final = 60_000
NORMAL: Final = 1000
GOING_AWAY: Final = 1001
POLICY_VIOLATED: Final = 1008
BROKEN: Final = 1011
TRY_AGAIN_LATER: Final = 1013
CODES: Final = {
    "ended": NORMAL,
    STOPPING: GOING_AWAY,
    SLOW: TRY_AGAIN_LATER,
    "revoked": POLICY_VIOLATED,
    "expired": POLICY_VIOLATED,
    "garbage": POLICY_VIOLATED,
}
PLAIN: Final = (str, int)


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """How a connection ends, and why in a word."""

    reason: str
    code: int


def closing_of(reason: str) -> Closing:
    """The end for a reason of a feed; the codes of errors are all one to a WebSocket."""
    return Closing(reason=reason, code=CODES.get(reason, BROKEN))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What is said at once to something that a client said."""

    event: str
    facts: dict[str, Any]


class Socket:
    """One open connection."""

    def __init__(
        self,
        websocket: WebSocket,
        feed: Feed,
        act: Callable[[dict[str, Any]], Awaitable[Reply]],
        *,
        size_max: int,
        hide: str = "",
    ) -> None:
        self._websocket = websocket
        self._feed = feed
        self._act = act
        self._size_max = size_max
        self._hide = hide  # where the store lies

    async def serve(self) -> None:
        """Talk until one side ends it."""
        loop = asyncio.get_running_loop()
        writer = loop.create_task(self._write(), name="laneway-socket-writer")
        reader = loop.create_task(self._read(), name="laneway-socket-reader")
        try:
            await asyncio.wait({writer, reader}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._feed.watcher.close(GONE)
            ends = await _ended(writer, reader)
        closing = next((end for end in ends if isinstance(end, Closing)), None)
        error = next((end for end in ends if isinstance(end, Exception)), None)
        if error is not None and not isinstance(error, WebSocketDisconnect | TimeoutError):
            closing = closing_of("internal")
        if closing is not None:
            await self._close(closing)
        if closing is not None and closing.reason == "internal" and error is not None:
            raise error

    async def _close(self, closing: Closing) -> None:
        with contextlib.suppress(WebSocketDisconnect, TimeoutError):
            await self._say("close", {"reason": closing.reason})
            await self._websocket.close(closing.code, closing.reason)

    # ---- what goes out ----

    async def _write(self) -> Closing | None:
        feed = self._feed
        try:
            async with contextlib.aclosing(feed.groups()) as groups:
                async for group in groups:
                    for marked in group:  # an empty group is silence, and the server pings by itself
                        await self._send(_text_of(marked))
        except LanewayError as error:
            return closing_of(error.code)
        return closing_of(feed.end or feed.watcher.end)

    async def _say(self, event: str, facts: dict[str, Any]) -> None:
        await self._send(f'{{"event":{json_of(event)},"data":{json_of(facts)}}}')

    async def _send(self, text: str) -> None:
        async with asyncio.timeout(SEND_TIMEOUT_MS / 1000):
            await self._websocket.send_text(text.encode("utf-8", "backslashreplace").decode())

    # ---- what comes in ----

    async def _read(self) -> Closing | None:
        """Take what the client says, one after the other; None when it has left."""
        garbage = 0
        while garbage < GARBAGE_MAX:
            message = await self._websocket.receive()
            if message["type"] == "websocket.disconnect":
                return None
            garbage = 0 if await self._take(message.get("text"), message.get("bytes")) else garbage + 1
        return closing_of("garbage")

    async def _take(self, text: str | None, raw: bytes | None) -> bool:
        """Do what the client says; False: it makes no sense."""
        said: dict[str, Any] = {}
        try:
            said = self._parsed(text if text is not None else raw or b"")
            reply = await self._act(said)
        except LanewayError as error:
            facts = json.loads(bytes(problem_of(error, hide=self._hide).body))
            await self._say("problem", {**facts, **_id_of(said)})
            return not isinstance(error, InvalidMessageError)
        await self._say(reply.event, {**reply.facts, **_id_of(said)})
        return True

    def _parsed(self, text: str | bytes) -> dict[str, Any]:
        if len(text) > self._size_max:
            raise InvalidMessageError(f"a frame has at most {self._size_max:,} bytes, not {len(text):,}")
        try:
            said = json.loads(text)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise InvalidMessageError(
                "this is no JSON object", hint='{"type": "message", "text": "…"}, {"type": "stop"}, {"type": "cancel"}'
            )
        return said


async def _ended(*tasks: asyncio.Task[Closing | None]) -> list[Closing | BaseException | None]:
    """End tasks, wait for them, and say what became of each."""
    for task in tasks:
        task.cancel()
    return list(await asyncio.gather(*tasks, return_exceptions=True))


def _id_of(said: dict[str, Any]) -> dict[str, Any]:
    """What the client calls what it said, if that is something that can be said again."""
    name = said.get("id")
    return {"id": name} if isinstance(name, PLAIN) and len(str(name)) <= 512 else {}


def _text_of(marked: Marked) -> str:
    mark = f'"id":"{marked.mark}",' if marked.mark else ""
    return f'{{"event":"{marked.frame.type}",{mark}"data":{marked.frame.json()}}}'
