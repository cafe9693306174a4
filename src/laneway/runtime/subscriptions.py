"""Event streams: bounded, so that a slow reader costs a bounded amount of memory, and is told what it missed."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Self

from laneway.events import Event, EventsMissed, JobEvent, LaneEvent, SessionEvent

__all__ = ("Audience", "Subscription")


class Subscription(AsyncIterator[Event]):
    """The events that match any of its keys (all without keys), in order; ends when what it listens to is closed.

    Use it as `async for event in lanes.subscribe(...)`, or inside `async with` to leave it early. An inbox has one too.
    """

    def __init__(
        self, keys: frozenset[str], prefix: str, *, buffer_max: int, on_close: Callable[[Subscription], None]
    ) -> None:
        self._keys = keys
        self._prefix = prefix
        self._buffer_max = buffer_max
        self._buffer: deque[Event] = deque()
        self._missed = 0
        self._missed_at = 0
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self._on_close = on_close
        self.missed = 0

    def wants(self, event: Event) -> bool:
        """Whether an event is for this stream: by its type, or by what it is about; a scope sees its own lanes only."""
        if self._prefix and not (isinstance(event, JobEvent | LaneEvent) and event.lane.startswith(self._prefix)):
            return False
        if not self._keys or event.type in self._keys:
            return True
        if isinstance(event, SessionEvent):
            ids = (getattr(event, name, None) for name in ("session_key", "message_id", "turn_id"))
            return any(one in self._keys for one in ids)
        if isinstance(event, JobEvent):
            return event.job_id in self._keys or event.lane in self._keys
        return isinstance(event, LaneEvent) and event.lane in self._keys

    def push(self, event: Event) -> None:
        """Deliver an event, or count it as missed."""
        if len(self._buffer) >= self._buffer_max:
            self._missed += 1
            self._missed_at = event.at_ms
            self.missed += 1
        else:
            self._note_missed()
            self._buffer.append(event)
        self._wake()

    def close(self) -> None:
        """End the stream after what it still holds; a second time changes nothing."""
        if not self._closed:
            self._closed = True
            self._on_close(self)
            self._wake()

    async def __anext__(self) -> Event:
        while not self._buffer:
            self._note_missed()
            if self._buffer:
                break
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._buffer.popleft()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _note_missed(self) -> None:
        if self._missed:
            self._buffer.append(EventsMissed(at_ms=self._missed_at, count=self._missed))
            self._missed = 0

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Audience:
    """Everybody who listens to one engine; `on_change` hears whether anybody does, so that events are worth making."""

    def __init__(self, on_change: Callable[[bool], None]) -> None:
        self._on_change = on_change
        self._streams: list[Subscription] = []
        self._listeners: list[Callable[[Event], None]] = []

    def __bool__(self) -> bool:
        return bool(self._streams or self._listeners)

    def listen(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call somebody with every event at once, in order; returns how to stop. It must not raise."""
        self._listeners.append(listener)
        self._on_change(True)  # noqa: FBT003 - somebody listens

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)
            self._on_change(bool(self))

        return stop

    def admit(self, keys: tuple[str, ...], prefix: str, buffer_max: int) -> Subscription:
        """A new stream of events."""
        stream = Subscription(frozenset(keys), prefix, buffer_max=buffer_max, on_close=self._dismiss)
        self._streams.append(stream)
        self._on_change(True)  # noqa: FBT003 - somebody listens
        return stream

    def _dismiss(self, stream: Subscription) -> None:
        if stream in self._streams:
            self._streams.remove(stream)
        self._on_change(bool(self))

    def tell(self, event: Event) -> None:
        """Give an event to whoever wants it."""
        for listener in list(self._listeners):
            listener(event)
        for stream in list(self._streams):
            if stream.wants(event):
                stream.push(event)

    def close(self) -> None:
        """End every stream."""
        for stream in list(self._streams):
            stream.close()
