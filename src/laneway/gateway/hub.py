"""Everybody who watches sessions of a workspace: what is stored and what is only told, in the order it happens.

Stored events (of messages and turns) have the number that the store gave them, so that whoever comes back says which
one was the last it saw. Events of runs (pieces of text, calls of tools) are told and not kept in this form.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, fields
from typing import Any

from laneway.agent_events import AgentEvent
from laneway.events import Event, SessionEvent
from laneway.rows import Owner

__all__ = ("Frame", "Hub", "Watcher")


@dataclass(slots=True, eq=False)
class Frame:
    """One event on its way out. `seq` is 0 for what is not stored. It is written once, whoever watches."""

    owner: Owner
    type: str
    seq: int
    data: dict[str, Any]
    _sse: bytes = b""

    def sse(self) -> bytes:
        """As an event of a stream."""
        if not self._sse:
            number = f"id: {self.seq}\n" if self.seq else ""
            text = json.dumps(self.data, ensure_ascii=False, separators=(",", ":"))
            self._sse = f"{number}event: {self.type}\ndata: {text}\n\n".encode("utf-8", "backslashreplace")
        return self._sse


class Watcher(AsyncIterator[Frame]):
    """One open stream. Whoever lags too far behind is cut, and comes back with the number of what it saw last."""

    def __init__(self, hub: Hub, tenant: str, session: str | None, buffer_max: int) -> None:
        self._hub = hub
        self.tenant = tenant
        self.session = session
        self._buffer_max = buffer_max
        self._buffer: deque[Frame] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.end = ""
        """Why it ended: `slow`, `stopping`, `closed`; empty while it goes on."""

    def push(self, frame: Frame) -> None:
        """One more event."""
        if self.end:
            return
        if len(self._buffer) >= self._buffer_max:
            self.close("slow")
            return
        self._buffer.append(frame)
        self._wake()

    def close(self, why: str = "closed") -> None:
        """End it after what it still holds. A second time changes nothing."""
        if not self.end:
            self.end = why
            self._hub.forget(self)
            self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def __anext__(self) -> Frame:
        while not self._buffer:
            if self.end:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._buffer.popleft()


class Hub:
    """Hands the events of one workspace to whoever watches."""

    def __init__(self, workspace: str) -> None:
        self.workspace = workspace
        self._watchers: dict[tuple[str, str | None], list[Watcher]] = {}

    def watch(self, tenant: str, session: str | None = None, *, buffer_max: int = 1_000) -> Watcher:
        """Everything that happens from now on in one session of a tenant, or in all of them."""
        watcher = Watcher(self, tenant, session, buffer_max)
        self._watchers.setdefault((tenant, session), []).append(watcher)
        return watcher

    def forget(self, watcher: Watcher) -> None:
        """A stream has ended."""
        key = (watcher.tenant, watcher.session)
        watchers = self._watchers.get(key, [])
        if watcher in watchers:
            watchers.remove(watcher)
        if not watchers:
            self._watchers.pop(key, None)

    def is_watched(self, tenant: str, session: str) -> bool:
        """Whether somebody watches a session."""
        return (tenant, session) in self._watchers or (tenant, None) in self._watchers

    def close(self, why: str = "stopping") -> None:
        """End every stream."""
        for watchers in list(self._watchers.values()):
            for watcher in list(watchers):
                watcher.close(why)

    def on_mail_event(self, event: Event) -> None:
        """Something has happened to a message or a turn; it is on disk."""
        if isinstance(event, SessionEvent) and self.is_watched(event.tenant, event.session_key):
            owner = Owner(event.tenant, event.workspace, event.session_key)
            self._hand_out(Frame(owner, event.type, event.seq, fields_of(event)))

    def on_agent_event(self, owner: Owner, event: AgentEvent) -> None:
        """Something has happened in a run."""
        if self.is_watched(owner.tenant, owner.session):
            self._hand_out(Frame(owner, event.event_type, 0, event.to_dict()))

    def _hand_out(self, frame: Frame) -> None:
        owner = frame.owner
        for key in ((owner.tenant, owner.session), (owner.tenant, None)):
            for watcher in list(self._watchers.get(key, ())):
                watcher.push(frame)


def fields_of(event: SessionEvent) -> dict[str, Any]:
    """A stored event as it goes out: its type, and its fields as plain JSON values."""
    facts = {each.name: getattr(event, each.name) for each in fields(event)}
    return {"type": event.type, **{name: list(v) if isinstance(v, tuple) else v for name, v in facts.items()}}
