"""What one watcher is told, from where it left off: first what the store has, then what is under way, then live.

The order of work makes sure that nothing is missing and nothing comes twice. The hub is watched first. The past ends
where the hub was at that moment (`told_seq`), and live events begin right behind it. What a run has told so far is
collected in one breath with taking what the watcher holds, so every piece of text is in one of the two.

A feed gives groups of marked frames, ready to be written; an empty group means that nothing has happened for a while.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from laneway.agent_events import AgentEvent, EndEvent, TurnEndEvent, TurnStartEvent
from laneway.errors import InvalidMessageError, NotFoundError
from laneway.events import EVENT_TYPES, SessionEvent, TurnEnded, TurnReplied
from laneway.gateway.hub import Frame, Watcher, fields_of, frame_of
from laneway.gateway.so_far import rounds_done, so_far
from laneway.mail import FINAL_TURN_STATES
from laneway.rows import EventRow, Owner

if TYPE_CHECKING:
    from laneway.agent.session import AsyncSession
    from laneway.gateway.access import Caller
    from laneway.gateway.settings import GatewaySettings
    from laneway.gateway.workspaces import Workspace
    from laneway.ports import History

__all__ = (
    "CAUGHT_UP",
    "ENDED",
    "Feed",
    "Marked",
    "Pace",
    "Past",
    "Place",
    "RunFeed",
    "SessionFeed",
    "round_of",
    "watch",
)

ENDED: Final = "ended"
CAUGHT_UP: Final = "caught_up"
END_MARK: Final = "end"
PAGE: Final = 1_000
WINDOW: Final = 4_000
WINDOW_MAX: Final = 1 << 40
"""How many numbers of the store are looked through at once: as many as give about a page of events."""
REPLAY_MAX: Final = 10_000
ID_MAX: Final = 2**63 - 1


class Marked(NamedTuple):
    """A frame, and what `Last-Event-ID` says after it; an empty mark leaves that as it was."""

    frame: Frame
    mark: str

    def sse(self) -> bytes:
        """As an event of a stream."""
        frame = self.frame
        return frame.sse() if self.mark == (str(frame.seq) if frame.seq else "") else frame.sse_with(self.mark)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a watcher left off. `after` None: it wants no past; `newest`: only so much of it."""

    after: int | None = None
    newest: int | None = None

    @classmethod
    def of(cls, last_event_id: str, replay: str = "") -> Place:
        """From what a client says; raises `InvalidMessageError` (400) for what is no place."""
        if last_event_id:
            return cls(after=_number(last_event_id, "Last-Event-ID"))
        if replay in ("", "none"):
            return cls()
        if replay == "all":
            return cls(after=0)
        newest = _number(replay, "replay")
        if not 1 <= newest <= REPLAY_MAX:
            raise InvalidMessageError(f"replay is all, none, or from 1 to {REPLAY_MAX:,}, not {replay!r}")
        return cls(after=0, newest=newest)


def _number(text: str, what: str) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 19 and (number := int(text)) <= ID_MAX:
        return number
    raise InvalidMessageError(
        f"{what} is the number of an event, not {text[:80]!r}", hint="send the last id: that you have seen"
    )


def round_of(last_event_id: str) -> int | None:
    """The last whole round that somebody has seen of a run; None: its end, too."""
    if not last_event_id:
        return 0
    if last_event_id == END_MARK:
        return None
    if last_event_id.startswith("r"):
        return _number(last_event_id[1:], "Last-Event-ID of a run (r<round>)")
    raise InvalidMessageError(
        f"Last-Event-ID of a run is r<round> or {END_MARK!r}, not {last_event_id[:80]!r}",
        hint="send the last id: that you have seen",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a feed goes on: after how much silence it says so, and whether it follows what happens at all.

    `rows_max` is how many rows of the past are read at once.
    """

    heartbeat_ms: int
    follow: bool = True
    rows_max: int = PAGE


def watch(settings: GatewaySettings, caller: Caller, workspace: Workspace, session: str | None) -> Watcher:
    """Begin to watch for a caller. Whoever does this ends it."""
    hub = workspace.hub
    return hub.watch(caller.tenant, session, buffer_max=settings.buffer_max, token_id=caller.token_id)


class Feed(ABC):
    """What one watcher is told."""

    def __init__(self, workspace: Workspace, watcher: Watcher, pace: Pace) -> None:
        self.workspace = workspace
        self.watcher = watcher
        self._pace = pace
        self.end = ""
        """Why it ended, once it has."""

    @property
    def mark(self) -> str:
        """Where it begins, if its client cannot know that: who is cut before the first event comes back with this."""
        return ""

    @abstractmethod
    def groups(self) -> AsyncGenerator[list[Marked], None]:
        """What is told, in order."""

    async def _live(self) -> AsyncIterator[list[Frame]]:
        """What happens from now on, until the watcher ends."""
        watcher = self.watcher
        while self._pace.follow:
            await watcher.wait(self._pace.heartbeat_ms)
            frames = watcher.take()
            if not frames and watcher.end:
                self.end = watcher.end
                return
            yield frames
        self.end = CAUGHT_UP

    def _gap(self, last_event_id: str, mark: str = "") -> Marked:
        """The client names an event that this store has never had; it is told so, and gets what comes after `mark`."""
        owner = self.workspace.owner(self.watcher.tenant, self.watcher.session or "")
        facts = {
            "type": "gap",
            "last_event_id": last_event_id,
            "reason": "there is no such event here: the store is another one, or an older copy of it",
        }
        return Marked(Frame(owner, "gap", 0, facts), mark)


class SessionFeed(Feed):
    """The events of one session of a tenant, or of all of them."""

    def __init__(self, workspace: Workspace, watcher: Watcher, pace: Pace, place: Place) -> None:
        super().__init__(workspace, watcher, pace)
        self._place = place

    @property
    def mark(self) -> str:
        """The number up to which a client that wants no past has missed nothing."""
        return str(self.watcher.since) if self._place.after is None else ""

    async def groups(self) -> AsyncGenerator[list[Marked], None]:
        """The past, what is under way, and what happens."""
        place, watcher = self._place, self.watcher
        if place.after is not None and place.after > watcher.since:
            yield [self._gap(str(place.after), str(watcher.since))]
        elif place.after is not None:
            store = self.workspace.inbox.engine.store
            owner = self.workspace.owner(watcher.tenant, watcher.session or "")
            past = Past(store.history, owner, rows_max=self._pace.rows_max)
            async for page in past.pages(place.after, watcher.since, newest=place.newest):
                yield [_marked(frame) for frame in page]
        held = [frame for frame in watcher.take() if not frame.run_id]  # what runs have told is part of `so_far`
        now = [_marked(frame) for frame in [*held, *self._under_way()]]
        if now:
            yield now
        async for frames in self._live():
            yield [_marked(frame) for frame in frames]

    def _under_way(self) -> list[Frame]:
        watcher = self.watcher
        if watcher.session is not None:
            session = self.workspace.live_session(watcher.tenant, watcher.session)
            sessions = [] if session is None else [session]
        else:
            sessions = [each for each in self.workspace.live_sessions() if each.owner.tenant == watcher.tenant]
        return [frame for frame in map(so_far, sessions) if frame is not None]


def _marked(frame: Frame) -> Marked:
    return Marked(frame, str(frame.seq) if frame.seq else "")


class RunFeed(Feed):
    """The events of one run. Rounds that are on disk are marked `r<round>`, its end is marked `end`."""

    def __init__(
        self, workspace: Workspace, watcher: Watcher, pace: Pace, run_id: str, *, last_event_id: str = ""
    ) -> None:
        super().__init__(workspace, watcher, pace)
        self._run_id = run_id
        self._seen = round_of(last_event_id)

    async def groups(self) -> AsyncGenerator[list[Marked], None]:
        """The rounds that are done, the one under way, and what happens until the run has ended."""
        if self._seen is None:
            self.end = ENDED
            return
        owner = self._owner
        history = self.workspace.inbox.engine.store.history
        row = await history.state("turn", self._run_id)
        is_over = row is not None and row.state in FINAL_TURN_STATES
        now = await self._so_far(is_over=is_over)
        held = [frame for frame in self.watcher.take() if not frame.run_id]
        if now:
            yield now
        if is_over:
            held = await Past(history, owner).end_of(self._run_id)
        mine = self._of_live(held)
        if mine:
            yield mine
        if is_over or _has_end(mine):
            self.end = ENDED
            return
        async for frames in self._live():
            mine = self._of_live(frames)
            if mine or not frames:
                yield mine
            if _has_end(mine):
                self.end = ENDED
                return

    @property
    def _owner(self) -> Owner:
        assert self.watcher.session is not None
        return self.workspace.owner(self.watcher.tenant, self.watcher.session)

    async def _so_far(self, *, is_over: bool) -> list[Marked]:
        """What the run has told by now: whole rounds, and the one under way."""
        try:
            async with self.workspace.using(self._owner.tenant, self._owner.session) as session:
                told = await session.run_events(self._run_id)
                # From here on nothing else runs until what the run has told so far is collected.
                done = None if is_over else rounds_done(session, self._run_id)
                now = self._of_rounds(told, done)
                if done is not None:
                    now += [Marked(frame, "") for frame in _open_round(session, self._run_id, done)]
                return now
        except NotFoundError:  # a sub-agent that has ended: its end is in the store, its rounds went with it
            return []

    def _of_rounds(self, told: Iterable[AgentEvent], done: int | None) -> list[Marked]:
        """What whole rounds have told; `done` is the last of them if the run goes on."""
        assert self._seen is not None
        marked: list[Marked] = []
        waiting: list[AgentEvent] = []
        number = last = 0
        for event in told:
            waiting.append(event)
            if isinstance(event, TurnStartEvent):
                number = event.turn
            if not isinstance(event, TurnEndEvent | EndEvent):
                continue
            if number > self._seen and (done is None or number <= done):
                marked += [self._of_event(each) for each in waiting]
            waiting, last = [], number
        if self._seen > last:
            marked.insert(0, self._gap(f"r{self._seen}"))
        return marked

    def _of_event(self, event: AgentEvent) -> Marked:
        owner = self._owner
        told = replace(event, session_id=owner.session)
        frame = frame_of(owner, told, self._run_id)
        return Marked(frame, f"r{event.turn}" if isinstance(event, TurnEndEvent) else "")

    def _of_live(self, frames: Iterable[Frame]) -> list[Marked]:
        """Live frames that are about this run."""
        mine: list[Marked] = []
        for frame in frames:
            if frame.run_id == self._run_id:
                is_round = frame.type == TurnEndEvent.event_type
                mine.append(Marked(frame, f"r{frame.data['payload']['turn']}" if is_round else ""))
            elif frame.type == TurnEnded.type and frame.data.get("turn_id") == self._run_id:
                mine.append(Marked(frame, END_MARK))
        return mine


def _has_end(marked: list[Marked]) -> bool:
    return any(each.mark == END_MARK for each in marked)


def _open_round(session: AsyncSession, run_id: str, done: int) -> list[Frame]:
    """The round of a run that is under way, if one is."""
    frame = so_far(session, run_id, only_open=True)
    return [] if frame is None or 0 < frame.data["turn"] <= done else [frame]


class Past:
    """What the store has of the events of one session, or of all sessions of a tenant (an empty key)."""

    def __init__(self, history: History, owner: Owner, *, rows_max: int = PAGE) -> None:
        self._history = history
        self._owner = owner
        self._rows_max = rows_max

    async def pages(self, after: int, until: int, *, newest: int | None = None) -> AsyncIterator[list[Frame]]:
        """The events with numbers above `after` and up to `until`, in order; `newest`: only the last so many."""
        if newest is None:
            async for rows in self._pages(after, until):
                yield await self._frames(rows)
            return
        last = await (self._newest if self._owner.session else self._newest_of_all)(after, until, newest)
        if last:
            yield await self._frames(last)

    async def end_of(self, turn_id: str) -> list[Frame]:
        """The event that tells of the end of a turn."""
        rows = await self._history.events(self._owner, turn_id=turn_id)
        return await self._frames([row for row in rows if row.type == TurnEnded.type][-1:])

    def _pages(self, after: int, until: int) -> AsyncIterator[list[EventRow]]:
        """Rows in the order of their numbers."""
        return self._pages_of_one(after, until) if self._owner.session else self._pages_of_all(after, until)

    async def _pages_of_one(self, after: int, until: int) -> AsyncIterator[list[EventRow]]:
        limit = self._rows_max
        while rows := await self._history.events(self._owner, after_seq=after, limit=limit):
            ready = [row for row in rows if row.seq <= until]
            if ready:
                yield ready
            if len(rows) < limit or rows[-1].seq >= until:
                return
            after = rows[-1].seq

    async def _newest(self, after: int, until: int, count: int) -> list[EventRow]:
        last: deque[EventRow] = deque(maxlen=count)
        async for rows in self._pages(after, until):
            last.extend(rows)
        return list(last)

    # All sessions are asked at once for the events in a window of numbers. It grows where events are few.

    async def _pages_of_all(self, after: int, until: int) -> AsyncIterator[list[EventRow]]:
        window = WINDOW
        while after < until:
            end = min(until, after + window)
            rows = await self._between(after, end)
            if rows:
                yield rows
            is_full = len(rows) >= self._rows_max
            after = rows[-1].seq if is_full else end
            window = _fitting(window, len(rows), self._rows_max)

    async def _newest_of_all(self, after: int, until: int, count: int) -> list[EventRow]:
        window, found = WINDOW, list[EventRow]()
        while after < until and len(found) < count:
            begin = max(after, until - window)
            rows = await self._between(begin, until)
            window = _fitting(window, len(rows), self._rows_max)
            if len(rows) < self._rows_max or until - begin == 1:  # else there are more, and these are the oldest
                found, until = [*rows, *found], begin
        return found[-count:] if count else []

    async def _between(self, after: int, until: int) -> list[EventRow]:
        owner = self._owner
        return await self._history.events_between(
            owner.tenant, owner.workspace, after_seq=after, until_seq=until, limit=self._rows_max
        )

    async def _frames(self, rows: list[EventRow]) -> list[Frame]:
        answers = await self._answers([row.turn_id for row in rows if row.type == TurnEnded.type])
        texts = await self._texts([row for row in rows if row.type == TurnReplied.type])
        frames = []
        for row in rows:
            facts = _facts_of(row)
            if row.type == TurnEnded.type:
                facts["answer"] = answers.get(row.turn_id) if facts.get("answered") else None
            elif row.seq in texts:
                facts["text"] = texts[row.seq]
            frames.append(Frame(Owner(*row[:3]), row.type, row.seq, facts))
        return frames

    async def _answers(self, turn_ids: list[str]) -> dict[str, str | None]:
        rows = await self._history.states_by_id("turn", turn_ids) if turn_ids else []
        return {row.id: json.loads(row.body).get("answer") for row in rows if row is not None}

    async def _texts(self, rows: list[EventRow]) -> dict[int, str]:
        """What turns have said, whole: an event keeps only the beginning, the transcript has the line before it."""
        texts: dict[int, str] = {}
        for row in rows:
            if row.seq not in texts:
                lines = await self._history.entries(Owner(*row[:3]), after_seq=row.seq - 2, limit=PAGE)
                texts.update({line.seq + 1: line.text for line in lines if line.role == "assistant"})
        wanted = {row.seq for row in rows}
        return {seq: text for seq, text in texts.items() if seq in wanted}


def _fitting(window: int, found: int, rows_max: int) -> int:
    """The next window after one in which so many rows were found."""
    if found >= rows_max:
        return max(1, window // 4)
    return min(window * 4, WINDOW_MAX) if found < rows_max // 4 or not found else window


def _facts_of(row: EventRow) -> dict[str, Any]:
    """A stored event in the shape in which it was told."""
    kind = EVENT_TYPES.get(row.type)
    facts: dict[str, Any] = {
        "at_ms": row.at_ms,
        "session_key": row.session,
        "tenant": row.tenant,
        "workspace": row.workspace,
        "seq": row.seq,
        "message_id": row.message_id,
        "turn_id": row.turn_id,
        **json.loads(row.body),
    }
    if kind is None or not issubclass(kind, SessionEvent):
        return {"type": row.type, **facts}
    known = {each.name for each in fields(kind)}
    try:
        return fields_of(kind(**{name: value for name, value in facts.items() if name in known}))
    except TypeError:  # it was stored by a version that had other fields
        return {"type": row.type, **facts}
