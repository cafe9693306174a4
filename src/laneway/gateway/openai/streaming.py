"""A stream of events in OpenAI's shapes, as a response that lasts until one side ends it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping
from typing import Final

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

__all__ = ("EVENT_STREAM", "PieceResponse")

EVENT_STREAM: Final = "text/event-stream"
SEND_TIMEOUT_S: Final = 60  # a client that takes nothing at all for so long is given up


class PieceResponse(Response):
    """Writes what a generator gives. A client that goes ends the generator, and nothing else."""

    media_type = EVENT_STREAM

    def __init__(self, pieces: AsyncGenerator[bytes], headers: Mapping[str, str]) -> None:
        super().__init__(headers={**headers, "X-Accel-Buffering": "no"}, media_type=EVENT_STREAM)
        del self.headers["content-length"]
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve it."""
        loop = asyncio.get_running_loop()
        writing = loop.create_task(self._write(send), name="laneway-openai-write")
        leaving = loop.create_task(_gone(receive), name="laneway-openai-leave")
        try:
            await asyncio.wait({writing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            writing.cancel()
            leaving.cancel()
            await asyncio.wait({writing, leaving})
        if not writing.cancelled():
            with contextlib.suppress(TimeoutError, OSError):  # it takes nothing, or has gone
                writing.result()

    async def _write(self, send: Send) -> None:
        async with contextlib.aclosing(self._pieces) as pieces:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async for piece in pieces:
                await _send(send, piece, more=True)
            await _send(send, b"", more=False)


async def _send(send: Send, body: bytes, *, more: bool) -> None:
    async with asyncio.timeout(SEND_TIMEOUT_S):
        await send({"type": "http.response.body", "body": body, "more_body": more})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
