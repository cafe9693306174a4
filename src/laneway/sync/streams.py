"""Events of the background loop for everybody: `for` on any thread, `async for` on any other loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from types import TracebackType
from typing import Self, TypeVar

from laneway.sync.background import Portal
from laneway.sync.handover import Ended, Handover

__all__ = ("Stream",)

T_co = TypeVar("T_co", covariant=True)


class Stream(Iterator[T_co], AsyncIterator[T_co]):
    """What comes, in order: `for event in stream`, or `async for event in stream`, which does not block the loop.

    Leaving it early (`break`, `close()`, or just forgetting it) changes nothing for what it watches. A wait that was
    interrupted has lost nothing: iterate again. Threads that share one stream get every event once between them.
    """

    def __init__(self, portal: Portal, handover: Handover[T_co]) -> None:
        self._portal = portal
        self._handover = handover

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T_co:
        self._portal.check("next()")
        try:
            return self._handover.take()
        except Ended:
            raise StopIteration from None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T_co:
        try:
            return await self._handover.take_async()
        except Ended:
            raise StopAsyncIteration from None

    def close(self) -> None:
        """Leave it. What it watches goes on."""
        self._handover.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self._handover.leave()
