"""How values come from the background loop to whoever wants them: a thread that waits, or a task of another loop.

The loop puts, anybody takes. What is put and not taken yet is bounded: the loop's side is told to wait until half of it
is gone. A taker that was interrupted or cancelled has taken nothing, so nothing is lost, and it may take again. The end
stays: everybody who takes after it is told.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Generic, TypeVar

__all__ = ("HELD_MAX", "LOOK_UP_S", "Ended", "Handover", "result_of")

HELD_MAX: Final = 1024
"""How many values may lie between the two sides."""
LOOK_UP_S: Final = 0.5
"""How often the main thread looks up from a wait."""

T = TypeVar("T")


class Ended(Exception):  # noqa: N818 - not an error: nothing more will come
    """Nothing more will come."""


class Handover(Generic[T]):
    """Values on their way from one event loop to any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, held_max: int = HELD_MAX) -> None:
        self._loop = loop
        self._held_max = held_max
        self._lock = threading.RLock()  # a finalizer may run in the middle of anything, and may come here
        self._held: deque[T] = deque()
        self._takers: list[Future[None]] = []
        self._ended = False
        self._error: BaseException | None = None
        self._wide = False
        self._room = asyncio.Event()
        self._crowded = False
        self._on_leave: Callable[[], object] | None = None

    # ---- the loop's side ----

    async def put(self, value: T) -> None:
        """Give one value; waits as long as too many lie there."""
        while not self.offer(value):
            await self._room.wait()

    def offer(self, value: T) -> bool:
        """Give one value if there is room; False: wait for `put`'s moment. What nobody wants any more is dropped."""
        with self._lock:
            if self._ended:
                return True
            if len(self._held) >= self._held_max and not self._wide:
                self._crowded = True
                self._room.clear()
                return False
            self._held.append(value)
            takers = self._wake()
        _tell(takers)
        return True

    def widen(self) -> None:
        """From now on there is room for everything: what is on its way shall arrive before the loop goes away."""
        with self._lock:
            self._wide = True
        self._room.set()

    def end(self, error: BaseException | None = None) -> None:
        """Nothing more will come: `error` is why, None when it came to its natural end. Only the first call counts."""
        with self._lock:
            if self._ended:
                return
            self._ended, self._error = True, error
            takers = self._wake()
        _tell(takers)

    def on_leave(self, callback: Callable[[], object]) -> None:
        """What to do on the loop when nobody wants any more of it."""
        self._on_leave = callback

    # ---- anybody's side ----

    def take(self) -> T:
        """The next value; blocks this thread until there is one. Raises `Ended`, or what went wrong."""
        while True:
            taker = self._try()
            if not isinstance(taker, Future):
                return taker.value
            result_of(taker)

    async def take_async(self) -> T:
        """The next value; only the task that awaits it waits, on whatever loop that runs."""
        while True:
            taker = self._try()
            if not isinstance(taker, Future):
                return taker.value
            await asyncio.wrap_future(taker)

    def leave(self) -> None:
        """Nobody wants any more of it. Never blocks, from any thread."""
        with self._lock:
            self._held.clear()
            callback = None if self._ended else self._on_leave
            self._ended, self._error = True, None
            takers = self._wake()
        _tell(takers)
        if callback is not None:
            _post(self._loop, callback)

    def _try(self) -> Future[None] | _Taken[T]:
        with self._lock:
            if self._held:
                value = self._held.popleft()
                relieved = self._crowded and len(self._held) <= self._held_max // 2
                if relieved:
                    self._crowded = False
            elif not self._ended:
                taker: Future[None] = Future()
                self._takers.append(taker)
                return taker
            elif self._error is not None:
                raise self._error
            else:
                raise Ended
        if relieved:
            _post(self._loop, self._room.set)
        return _Taken(value)

    def _wake(self) -> list[Future[None]]:
        """Everybody who waits: one of them may have been interrupted at this very moment, and would not take it."""
        takers, self._takers = self._takers, []
        return takers


def result_of(future: Future[T]) -> T:
    """Wait for what a future gives.

    The main thread looks up now and then: an interrupt that comes just before it begins to wait is noticed then, and
    otherwise not before the end of the wait.
    """
    try:
        if threading.current_thread() is threading.main_thread():
            while not _has_ended(future):
                pass
        return future.result()
    finally:
        del future  # its error knows this frame: nobody shall need the collector to be rid of it


def _has_ended(future: Future[T]) -> bool:
    try:
        future.exception(LOOK_UP_S)
    except TimeoutError:
        return False
    return True


class _Taken(Generic[T]):
    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value


def _tell(takers: list[Future[None]]) -> None:
    for taker in takers:
        if taker.set_running_or_notify_cancel():
            taker.set_result(None)


def _post(loop: asyncio.AbstractEventLoop, callback: Callable[[], object]) -> None:
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:  # the loop was closed meanwhile: there is nobody left to tell
        return
