"""Server-sent events: a feed as a response that lasts.

Written by hand, since everything that matters here is exact: which events have an `id:`, a heartbeat only after
silence, an explicit end, and bytes that are made once for all who watch. A stream is one task that writes and one that
hears of the client's leaving; both end with the connection. What is watched never notices either.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from laneway.errors import LanewayError
from laneway.gateway.feeds import Feed
from laneway.gateway.hub import GONE, json_of
from laneway.gateway.problems import words_of

__all__ = ("EVENT_STREAM", "EventStreamResponse", "close_event")

EVENT_STREAM: Final = "text/event-stream"
BEAT: Final = b": beat\n\n"
RETRY_MS: Final = 1_000  # what browsers wait before they come back
SEND_TIMEOUT_MS: Final = 60_000  # a client that takes nothing at all for so long is given up
HEADERS: Final = {
    "content-type": f"{EVENT_STREAM}; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # proxies must not collect events
}


def close_event(reason: str, **facts: Any) -> bytes:
    """The explicit end of a stream."""
    return f"event: close\ndata: {json_of({'reason': reason, **facts})}\n\n".encode("utf-8", "backslashreplace")


class EventStreamResponse(Response):
    """An open stream. The feed is made when the response begins, so that one which never begins leaves nothing."""

    media_type = EVENT_STREAM

    def __init__(
        self, open_feed: Callable[[], Feed], *, hide: str = "", send_timeout_ms: int = SEND_TIMEOUT_MS
    ) -> None:
        super().__init__(headers=HEADERS, media_type=EVENT_STREAM)
        del self.headers["content-length"]
        self._open_feed = open_feed
        self._hide = hide  # where the store lies
        self._send_timeout_s = send_timeout_ms / 1000

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it until one side ends it."""
        feed = self._open_feed()
        watcher = feed.watcher
        ear = asyncio.get_running_loop().create_task(_hear_of_leaving(receive, feed), name="laneway-stream-ear")
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            begin = f"id: {feed.mark}\n" if feed.mark else ""
            await self._send(send, f"retry: {RETRY_MS}\n{begin}\n".encode())
            end = await self._tell(feed, send)
            if watcher.end != GONE:
                await self._send(send, end, more=False)
        except TimeoutError:
            pass  # it takes nothing: the server closes what is left of the connection
        finally:
            watcher.close()
            ear.cancel()
            await asyncio.gather(ear, return_exceptions=True)

    async def _tell(self, feed: Feed, send: Send) -> bytes:
        """Write what the feed gives; the end of the stream is returned, not written."""
        try:
            async with contextlib.aclosing(feed.groups()) as groups:
                async for group in groups:
                    if feed.watcher.end == GONE:
                        break
                    await self._send(send, b"".join([marked.sse() for marked in group]) or BEAT)
        except LanewayError as error:  # the store is gone, the session cannot be opened …
            return close_event(error.code, detail=words_of(error, self._hide)[0])
        return close_event(feed.end or feed.watcher.end)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        async with asyncio.timeout(self._send_timeout_s):
            await send({"type": "http.response.body", "body": body, "more_body": more})


async def _hear_of_leaving(receive: Receive, feed: Feed) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    feed.watcher.close(GONE)
