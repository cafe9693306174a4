"""Whoever watches: streams of the events of a session, or of the run that a message ends in."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import fields, replace
from typing import Final

from laneway.agent.results import RunResult
from laneway.agent_events import (
    AGENT_EVENTS,
    AgentEvent,
    EndEvent,
    ErrorEvent,
    ExternalTaskProgressEvent,
    ReasoningDeltaEvent,
    TextDeltaEvent,
)
from laneway.dialogue import copied

__all__ = ("AgentStream", "EventLog", "EventStream")

JOINED_MAX = 4_096  # longer pieces are not joined: that would copy a long answer again with each of its pieces
DELTAS = (TextDeltaEvent, ReasoningDeltaEvent)
CHANGEABLE: Final = {
    kind: tuple(each.name for each in fields(kind) if "Mapping" in str(each.type)) for kind in AGENT_EVENTS.values()
}
"""The fields of each event whose values a reader could change."""


class EventStream(AsyncIterator[AgentEvent]):
    """Events in order. Pieces of text that nobody has read yet are joined, so a slow reader costs little memory.

    Leaving it early changes nothing for what it watches.
    """

    def __init__(self, on_close: Callable[[EventStream], None], *, ends_with_run: bool) -> None:
        self._on_close = on_close
        self._ends_with_run = ends_with_run
        self._buffer: deque[AgentEvent] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False

    def push(self, event: AgentEvent) -> None:
        """Deliver an event; after the end of its run nothing follows."""
        if self._closed:
            return
        _append(self._buffer, _own(event))
        if self._ends_with_run and isinstance(event, EndEvent | ErrorEvent):
            self.close()
        self._wake()

    def close(self) -> None:
        """End the stream after what it still holds; a second time changes nothing."""
        if not self._closed:
            self._closed = True
            self._on_close(self)
            self._wake()

    async def aclose(self) -> None:
        """Leave it; what it watches goes on."""
        self._buffer.clear()
        self.close()

    async def __anext__(self) -> AgentEvent:
        while not self._buffer:
            if self._closed:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._buffer.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class AgentStream(EventStream):
    """The events of the run that a message ends in. The message is sent when you begin to read.

    It ends after `end` or `error`. Leaving it early leaves the run going. `message_id` and `run_id` are None until they
    are known.
    """

    def __init__(
        self,
        begin: Callable[[AgentStream], Awaitable[None]],
        finish: Callable[[AgentStream], Awaitable[RunResult]],
        on_close: Callable[[EventStream], None],
    ) -> None:
        super().__init__(on_close, ends_with_run=True)
        self._begin = begin
        self._finish = finish
        self._start: asyncio.Task[None] | None = None
        self.message_id: str | None = None
        self.run_id: str | None = None

    def push(self, event: AgentEvent) -> None:
        """Deliver an event."""
        self.run_id = event.run_id or self.run_id
        super().push(event)

    async def __anext__(self) -> AgentEvent:
        await self.start()
        return await super().__anext__()

    async def start(self) -> None:
        """Send the message now, without waiting for the first event. A second time changes nothing.

        If it is refused, nothing was sent, and whoever reads hears why.
        """
        if self._start is None:
            self._start = asyncio.get_running_loop().create_task(self._send(), name="laneway-send")
        await asyncio.shield(self._start)

    async def _send(self) -> None:
        await self._begin(self)

    async def result(self) -> RunResult:
        """Wait for the end of the run; what `send` would have returned or raised."""
        await self.start()
        return await self._finish(self)


class EventLog:
    """The events of a run so far, for those who begin to watch late; pieces of text are joined.

    With a limit the oldest go first. A place in it stays the same, however many are gone.
    """

    def __init__(self, most: int | None = None) -> None:
        self.events: deque[AgentEvent] = deque()
        self._most = most
        self._gone = 0
        self._progress: dict[str, int] = {}  # where what a worker said last of a task is

    @property
    def place(self) -> int:
        """Where the next event will be."""
        return self._gone + len(self.events)

    def since(self, place: int) -> list[AgentEvent]:
        """The events from a place on, as far as they are still here."""
        return list(itertools.islice(self.events, max(0, place - self._gone), None))

    def add(self, event: AgentEvent) -> None:
        """One more. Of how far a task has come only the newest is kept: a worker may say it as often as it likes."""
        if isinstance(event, ExternalTaskProgressEvent):
            at = self._progress.setdefault(event.task_id, self.place)
            if self._gone <= at < self.place:
                self.events[at - self._gone] = event
                return
            self._progress[event.task_id] = self.place
        _append(self.events, event)
        while self._most is not None and len(self.events) > self._most:
            self.events.popleft()
            self._gone += 1


def _own(event: AgentEvent) -> AgentEvent:
    """An event that one reader may change, and nobody else hears of it."""
    names = CHANGEABLE.get(type(event))
    return replace(event, **{name: copied(getattr(event, name)) for name in names}) if names else event


def _append(events: deque[AgentEvent], event: AgentEvent) -> None:
    """Add an event, or join a piece of text with the one before it."""
    last = events[-1] if events else None
    if (
        isinstance(event, DELTAS)
        and isinstance(last, type(event))
        and last.run_id == event.run_id
        and len(last.text) < JOINED_MAX
    ):
        events[-1] = replace(event, text=last.text + event.text)
    else:
        events.append(event)
