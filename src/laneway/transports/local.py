"""The transport inside one process: everything goes through the frames, as it would over a network.

A worker may live on another thread with an event loop of its own: its frames are answered on the loop of the desk.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from laneway.errors import TransportUnavailableError
from laneway.transports.wire import Desk, FrameTransport, check_desk, serve

__all__ = ("LocalTransport",)


class LocalDesk(Desk, Protocol):
    """A desk in this process."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that it belongs to."""


class LocalTransport(FrameTransport):
    """Reaches a desk in the same process."""

    def __init__(self, desk: LocalDesk) -> None:
        check_desk(desk, who="LocalTransport", more=("loop",))
        super().__init__(self._carry)
        self._desk = desk

    async def _carry(self, frame: str) -> str:
        loop = self._desk.loop
        if asyncio.get_running_loop() is loop:
            return await serve(self._desk, frame)
        answer = serve(self._desk, frame)
        try:
            future = asyncio.run_coroutine_threadsafe(answer, loop)
        except RuntimeError:
            answer.close()
            raise TransportUnavailableError("the loop of the desk is closed", hint="make a new host") from None
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if future.cancelled() and not _is_being_cancelled():
                raise TransportUnavailableError("the desk has gone away", hint="try again when it is back") from None
            raise


def _is_being_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
