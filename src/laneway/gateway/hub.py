"""Everybody who watches sessions of a workspace: what is stored and what is only told, in the order it happens.

Stored events (of messages and turns) have the number that the store gave them, so that whoever comes back says which
one was the last it saw. Events of runs (pieces of text, calls of tools) are told and not kept in this form.

One commit may hold events of several sessions, and the sessions are told one after the other: whoever watches all of
them would get number 5 of one session before number 3 of another. A watcher therefore takes everything that it holds
at once, and stored events come out in the order of their numbers. That is also why a watcher that lags too far behind
drops what it holds: so the last number that was sent is always one up to which nothing is missing.

Commits are told in the order in which they were made, so whatever is told after a moment has a higher number than all
that was told before it: `told_seq` is where the past of a new watcher ends, and what it hears live begins.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

from laneway.agent_events import AgentEvent, SubagentProgressEvent
from laneway.errors import OverloadedError
from laneway.events import Event, SessionEvent, TurnEnded, TurnReplied
from laneway.rows import Owner
from laneway.telemetry.redaction import redact_tree

__all__ = ("GONE", "SLOW", "STOPPING", "Frame", "Hub", "Watcher", "fields_of", "frame_of", "json_of")

GONE: Final = "gone"
SLOW: Final = "slow"
STOPPING: Final = "stopping"
STOPPING_RETRY_MS: Final = 2_000
REDACTED: Final = frozenset(
    {
        *("tool_start", "tool_output_delta", "tool_end"),
        *("external_task_pending", "external_task_progress", "external_task_completed"),
    }
)
"""Events with what tools were called with, and what they said."""


@dataclass(slots=True, eq=False)
class Frame:
    """One event on its way out. `seq` is 0 for what is not stored. It is written once, whoever watches.

    `run_id` is that of the run which told it; it is empty for events of messages and turns.
    """

    owner: Owner
    type: str
    seq: int
    data: dict[str, Any]
    run_id: str = ""
    _json: str = field(default="", repr=False)
    _sse: bytes = field(default=b"", repr=False)

    def json(self) -> str:
        """What it says, as JSON in one line."""
        if not self._json:
            self._json = json_of(self.data)
        return self._json

    def sse(self) -> bytes:
        """As an event of a stream, with its number."""
        if not self._sse:
            self._sse = self.sse_with(str(self.seq) if self.seq else "")
        return self._sse

    def sse_with(self, mark: str) -> bytes:
        """The same with another mark for `Last-Event-ID`, or with none."""
        number = f"id: {mark}\n" if mark else ""
        return f"{number}event: {self.type}\ndata: {self.json()}\n\n".encode("utf-8", "backslashreplace")


def frame_of(owner: Owner, event: AgentEvent, run_id: str) -> Frame:
    """An event of a run. Secrets that a tool has come upon are hidden; what a person is asked to approve is whole."""
    data = _safe(event.to_dict())
    return Frame(owner, event.event_type, 0, data, run_id=run_id)


def _safe(envelope: dict[str, Any]) -> dict[str, Any]:
    """An event without secrets; what a sub-agent tells is inside that of the agent it works for."""
    kind, payload = envelope.get("type"), envelope.get("payload")
    if kind in REDACTED:
        return {**envelope, "payload": redact_tree(payload)}
    if (
        kind == SubagentProgressEvent.event_type
        and isinstance(payload, dict)
        and isinstance(payload.get("event"), dict)
    ):
        return {**envelope, "payload": {**payload, "event": _safe(payload["event"])}}
    return envelope


class Watcher(AsyncIterator[Frame]):
    """One open stream. Whoever lags too far behind is cut, and comes back with the number of what it saw last."""

    def __init__(
        self, hub: Hub, tenant: str, session: str | None = None, *, buffer_max: int = 1_000, token_id: str | None = None
    ) -> None:
        self._hub = hub
        self.tenant = tenant
        self.session = session
        self.token_id = token_id
        self.since = hub.told_seq  # what it hears has higher numbers
        self._buffer_max = buffer_max
        self._buffer: deque[Frame] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._until = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.end = ""
        """Why it ended: `slow`, `stopping`, `gone`, `revoked` …; empty while it goes on."""

    def push(self, frame: Frame) -> None:
        """One more event."""
        if self.end:
            return
        if len(self._buffer) >= self._buffer_max:
            self._buffer.clear()
            self.close(SLOW)
            return
        self._buffer.append(frame)
        self._wake()

    def nudge(self, frame: Frame) -> None:
        """The same for who only has to know that there is something: one is enough, however slowly it reads."""
        if not self._buffer:
            self.push(frame)

    def close(self, why: str = "closed") -> None:
        """End it after what it still holds. A second time changes nothing."""
        if not self.end:
            self.end = why
            self._hub.forget(self)
            self._wake()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def take(self) -> list[Frame]:
        """Everything that it holds: each session in its order, and stored events by their numbers."""
        frames = list(self._buffer)
        self._buffer.clear()
        return _in_order(frames) if self.session is None and len(frames) > 1 else frames

    async def wait(self, timeout_ms: int | None = None) -> None:
        """Wait until it holds something, has ended, or the time is over. One reader at a time."""
        if self._buffer or self.end:
            return
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        if timeout_ms is not None:
            # One timer for many waits: thousands of streams would otherwise make and cancel one for each event.
            self._until = loop.time() + timeout_ms / 1000
            if self._timer is None:
                self._timer = loop.call_at(self._until, self._ring)
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _ring(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        if self._waiter is None:
            return
        if loop.time() >= self._until:
            self._wake()
        else:
            self._timer = loop.call_at(self._until, self._ring)

    async def __anext__(self) -> Frame:
        await self.wait()
        if not self._buffer:
            raise StopAsyncIteration
        return self._buffer.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _in_order(frames: list[Frame]) -> list[Frame]:
    """Stored events by their numbers; what is not stored stays behind what came before it in its session."""
    reached: dict[str, int] = {}
    keys: list[int] = []
    for frame in frames:
        session = frame.owner.session
        reached[session] = max(frame.seq, reached.get(session, 0))
        keys.append(reached[session])
    if all(before <= after for before, after in itertools.pairwise(keys)):
        return frames
    return [frames[index] for index in sorted(range(len(frames)), key=keys.__getitem__)]


class Hub:
    """Hands the events of one workspace to whoever watches."""

    def __init__(self, workspace: str) -> None:
        self.workspace = workspace
        self.counts: Callable[[str], bool] = lambda _: True
        """Whether a token opens streams. None instead of a token is the gateway itself; an empty one, this machine."""
        self._watchers: dict[tuple[str, str | None], dict[Watcher, None]] = {}
        self.told_seq = 0  # the highest number that was told, or that the store had before
        self._said = ("", "")  # a turn, and what it said last: that is its answer if it ends now
        self._ended = ""

    def __len__(self) -> int:
        return sum(len(watchers) for watchers in self._watchers.values())

    def watch(
        self, tenant: str, session: str | None = None, *, buffer_max: int = 1_000, token_id: str | None = None
    ) -> Watcher:
        """Everything that happens from now on in one session of a tenant, or in all of them."""
        self.check_open()
        watcher = Watcher(self, tenant, session, buffer_max=buffer_max, token_id=token_id)
        self._watchers.setdefault((tenant, session), {})[watcher] = None
        if token_id is not None and not self.counts(token_id):
            watcher.close("revoked")  # while the request was on its way here
        return watcher

    def check_open(self) -> None:
        """Refuse new streams when the old ones were ended: the server could never stop otherwise."""
        if self._ended:
            raise OverloadedError("this server is stopping", retry_after_ms=STOPPING_RETRY_MS)

    def forget(self, watcher: Watcher) -> None:
        """A stream has ended."""
        key = (watcher.tenant, watcher.session)
        watchers = self._watchers.get(key, {})
        watchers.pop(watcher, None)
        if not watchers:
            self._watchers.pop(key, None)

    def is_watched(self, tenant: str, session: str) -> bool:
        """Whether somebody watches a session."""
        return (tenant, session) in self._watchers or (tenant, None) in self._watchers

    def close(self, why: str = STOPPING) -> None:
        """End every stream, and take no new ones."""
        self._ended = self._ended or why
        for watcher in self._all():
            watcher.close(why)

    def close_token(self, token_id: str, why: str = "revoked") -> None:
        """End the streams that were opened with a token."""
        for watcher in self._all():
            if watcher.token_id == token_id:
                watcher.close(why)

    def _all(self) -> list[Watcher]:
        return [watcher for watchers in self._watchers.values() for watcher in watchers]

    def on_mail_event(self, event: Event) -> None:
        """Something has happened to a message or a turn; it is on disk."""
        if not isinstance(event, SessionEvent):
            return
        self.told_seq = max(self.told_seq, event.seq)
        if not self.is_watched(event.tenant, event.session_key):
            return
        data = fields_of(event)
        if isinstance(event, TurnReplied):
            self._said = (event.turn_id, event.text)
        elif isinstance(event, TurnEnded):
            # Its answer was told right before it: both are of one commit.
            turn_id, text = self._said
            data["answer"] = text if event.answered and turn_id == event.turn_id else None
            self._said = ("", "")
        owner = Owner(event.tenant, event.workspace, event.session_key)
        self._hand_out(Frame(owner, event.type, event.seq, data))

    def on_agent_event(self, owner: Owner, event: AgentEvent) -> None:
        """Something has happened in a run."""
        if self.is_watched(owner.tenant, owner.session):
            self._hand_out(frame_of(owner, event, event.run_id))

    def nudge(self, frame: Frame) -> None:
        """Tell everybody, whatever they watch, unless they hold something that they have not taken."""
        for watcher in self._all():
            watcher.nudge(frame)

    def _hand_out(self, frame: Frame) -> None:
        owner = frame.owner
        for key in ((owner.tenant, owner.session), (owner.tenant, None)):
            watchers = self._watchers.get(key)
            if watchers:
                for watcher in list(watchers):
                    watcher.push(frame)


def fields_of(event: SessionEvent) -> dict[str, Any]:
    """A stored event as it goes out: its type, and its fields as plain JSON values."""
    facts = {each.name: getattr(event, each.name) for each in fields(event)}
    return {"type": event.type, **{name: list(v) if isinstance(v, tuple) else v for name, v in facts.items()}}


def json_of(value: Any) -> str:
    """Values as JSON in one line; numbers that JSON lacks are null, and what is no JSON value is its text."""
    try:
        return _written(value)
    except ValueError:
        return _written(_finite(value))


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain, skipkeys=True)


def _plain(value: object) -> object:
    match value:
        case Mapping():
            return dict(value)
        case set() | frozenset() | tuple():
            return list(value)
        case _:
            return str(value)


def _finite(value: Any) -> Any:
    match value:
        case float():
            return value if math.isfinite(value) else None
        case Mapping():
            return {str(name): _finite(each) for name, each in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_finite(each) for each in value]
        case _:
            return value
