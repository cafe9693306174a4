"""The past and the present are joined without gap or repetition, whatever happens while somebody connects."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from laneway.errors import InvalidMessageError, NotFoundError
from laneway.events import MessageAccepted
from laneway.gateway.feeds import Pace, Past, Place, RunFeed, SessionFeed, round_of
from laneway.gateway.hub import Hub
from laneway.gateway.workspaces import Workspace
from laneway.mail import MessageState
from laneway.rows import EventRow, Owner, StateRow

PACE = Pace(heartbeat_ms=0)


class World:
    """A store and its engine, a step at a time: rows of a commit are there before anybody is told of them."""

    def __init__(self, commits: Iterable[str], moves: Iterable[int]) -> None:
        self.hub = Hub("w")
        self.history = self
        self.inbox = self.engine = self.store = self
        self.made: list[int] = []
        self._disk: dict[str, list[EventRow]] = {}
        self._commits = deque(commits)
        self._moves = deque(moves)
        self._unseen: deque[tuple[str, list[int]]] = deque()
        self._untold: list[tuple[str, list[int]]] = []

    # ---- what happens ----

    def step(self) -> None:
        """One thing: a commit begins, one session of it is on disk, or all of it is told."""
        if self._unseen:
            session, seqs = self._unseen.popleft()
            rows = [EventRow("default", "w", session, seq, 0, "message.accepted", f"m{seq}", "", "{}") for seq in seqs]
            self._disk.setdefault(session, []).extend(rows)
        elif self._untold:
            for session, seqs in self._untold:
                for seq in seqs:
                    self.hub.on_mail_event(_event(session, seq))
            self._untold = []
        elif self._commits:
            seqs_of: dict[str, list[int]] = {}
            for session in self._commits.popleft():
                self.made.append(len(self.made) + 1)
                seqs_of.setdefault(session, []).append(self.made[-1])
            self._unseen.extend(seqs_of.items())
            self._untold = list(seqs_of.items())

    def move(self) -> None:
        """As many steps as the draw says."""
        for _ in range(self._moves.popleft() if self._moves else 1):
            self.step()

    @property
    def is_over(self) -> bool:
        return not (self._commits or self._unseen or self._untold)

    # ---- what a feed asks ----

    def owner(self, tenant: str, session: str) -> Owner:
        return Owner(tenant, "w", session)

    def live_session(self, tenant: str, session: str) -> None:
        return None

    def live_sessions(self) -> list[Any]:
        return []

    async def events_between(
        self, tenant: str, workspace: str, *, after_seq: int, until_seq: int, limit: int
    ) -> list[EventRow]:
        self.move()
        rows = [row for each in self._disk.values() for row in each if after_seq < row.seq <= until_seq]
        self.move()
        return sorted(rows, key=lambda row: row.seq)[:limit]

    async def events(self, owner: Owner, *, after_seq: int, limit: int) -> list[EventRow]:
        self.move()
        rows = [row for row in self._disk.get(owner.session, []) if row.seq > after_seq][:limit]
        self.move()
        return rows


def _event(session: str, seq: int) -> MessageAccepted:
    return MessageAccepted(session_key=session, workspace="w", seq=seq, message_id=f"m{seq}", state=MessageState.QUEUED)


async def watched(world: World, session: str | None, cuts: Iterable[int], *, buffer_max: int, pace: Pace) -> list[int]:
    """What a client has got in the end that is cut off again and again, and comes back with its last id."""
    got: list[int] = []
    last = 0
    breaks = deque(cuts)
    for _ in range(1_000):
        left = breaks.popleft() if breaks else 1_000_000
        watcher = world.hub.watch("default", session, buffer_max=buffer_max)
        feed = SessionFeed(cast(Workspace, world), watcher, pace, Place.of(str(last)))
        world.move()
        async for group in feed.groups():
            marks = [int(marked.mark) for marked in group][:left]
            got += marks
            last = got[-1] if got else 0
            left -= len(marks)
            if not group and world.is_over:
                return got
            if left <= 0:
                break
            world.move()
        watcher.close()
    raise AssertionError("it never came to an end")


@given(
    commits=st.lists(st.text("abc", min_size=1, max_size=5), max_size=12),
    moves=st.lists(st.integers(0, 9), max_size=60),
    cuts=st.lists(st.integers(1, 6), max_size=8),
    buffer_max=st.integers(1, 12),
    page=st.integers(1, 12),
)
@pytest.mark.slow
def test_a_client_that_is_cut_off_at_any_moment_gets_every_event_once(
    commits: list[str], moves: list[int], cuts: list[int], buffer_max: int, page: int
) -> None:
    pace = Pace(heartbeat_ms=0, rows_max=page)
    world = World(commits, moves)
    got = asyncio.run(watched(world, None, cuts, buffer_max=buffer_max, pace=pace))
    assert got == world.made
    world = World(commits, moves)
    mine = asyncio.run(watched(world, "a", cuts, buffer_max=buffer_max, pace=pace))
    assert mine == [seq for seq, session in enumerate("".join(commits), 1) if session == "a"]


async def test_an_id_from_the_future_is_said_to_be_unknown_and_what_comes_is_told() -> None:
    world = World(["a"], [])
    watcher = world.hub.watch("default", "a")
    groups = SessionFeed(cast(Workspace, world), watcher, PACE, Place.of("99")).groups()
    [gap] = await anext(groups)
    for _ in range(3):
        world.step()
    [told] = await anext(groups)
    assert (gap.frame.type, gap.mark, gap.frame.data["last_event_id"]) == ("gap", str(watcher.since), "99")
    assert told.mark == "1"


async def test_the_newest_events_are_asked_for_by_their_number() -> None:
    world = World(["abababab"], [])
    for _ in range(4):
        world.step()
    for wanted, expected in (("3", ["6", "7", "8"]), ("all", [str(seq) for seq in range(1, 9)]), ("", [])):
        feed = SessionFeed(
            cast(Workspace, world),
            world.hub.watch("default"),
            Pace(heartbeat_ms=0, follow=False),
            Place.of("", wanted),
        )
        got = [marked.mark async for group in feed.groups() for marked in group]
        assert (got, feed.end) == (expected, "caught_up")


@pytest.mark.parametrize(
    "last", ["x", "-1", "1.5", "１", "9" * 19, "9" * 400, "1 ", "r1", "\x00", "1\n2"]  # noqa: RUF001 - a digit of another script
)  # fmt: skip
def test_an_id_that_is_no_number_is_refused(last: str) -> None:
    with pytest.raises(InvalidMessageError, match="number of an event"):
        Place.of(last)


@pytest.mark.parametrize("replay", ["-1", "0", "10001", "some", "ALL"])
def test_a_replay_that_makes_no_sense_is_refused(replay: str) -> None:
    with pytest.raises(InvalidMessageError, match="replay"):
        Place.of("", replay)


def test_marks_of_runs_are_rounds_or_the_end() -> None:
    assert [round_of(mark) for mark in ("", "r3", "end")] == [0, 3, None]
    for wrong in ("3", "r", "r-1", "rx", "END", "r1r"):
        with pytest.raises(InvalidMessageError):
            round_of(wrong)


class Childless(World):
    """A workspace whose sub-agent has ended: its session cannot be opened any more."""

    def using(self, tenant: str, key: str) -> Any:
        raise NotFoundError(what="session", name=key)

    async def state(self, kind: str, row_id: str) -> StateRow:
        return StateRow(kind, row_id, "default", "w", "s~1", 1, 0, "succeeded", '{"answer": "found"}')

    async def states_by_id(self, kind: str, row_ids: list[str]) -> list[StateRow]:
        return [await self.state(kind, row_id) for row_id in row_ids]

    async def events(self, owner: Owner, *, turn_id: str = "", after_seq: int = 0, limit: int = 0) -> list[EventRow]:
        body = '{"state": "succeeded", "answered": true, "run_ms": 5}'
        return [EventRow(*owner, 9, 0, kind, "", turn_id, body) for kind in ("turn.started", "turn.ended")]


async def test_of_a_sub_agent_that_is_gone_the_end_of_its_run_is_told() -> None:
    world = Childless([], [])
    feed = RunFeed(cast(Workspace, world), world.hub.watch("default", "s~1"), PACE, "t1")
    [[end]] = [group async for group in feed.groups()]
    assert (end.mark, end.frame.type, end.frame.data["answer"], feed.end) == ("end", "turn.ended", "found", "ended")


class Strange(World):
    """A store with events that this version does not know, or knows otherwise."""

    async def events(self, owner: Owner, *, after_seq: int, limit: int) -> list[EventRow]:
        kinds = [("message.danced", '{"steps": 3}'), ("message.accepted", '{"colour": "red"}')]
        rows = [EventRow(*owner, seq, 0, kind, "m", "t", body) for seq, (kind, body) in enumerate(kinds, 1)]
        return [row for row in rows if row.seq > after_seq]


async def test_events_of_another_version_are_told_as_they_were_stored() -> None:
    world = Strange([], [])
    world.hub.told_seq = 5
    watcher = world.hub.watch("default", "s1")
    pace = Pace(heartbeat_ms=0, follow=False)
    feed = SessionFeed(cast(Workspace, world), watcher, pace, Place.of("", "all"))
    [[danced, accepted]] = [group async for group in feed.groups()]
    assert (danced.frame.type, danced.frame.data["steps"], danced.frame.data["message_id"]) == (
        "message.danced",
        3,
        "m",
    )
    assert (accepted.frame.data["colour"], accepted.frame.data["type"]) == ("red", "message.accepted")


class Shelf:
    """Events of many sessions, and how often they were asked for."""

    def __init__(self, seqs: Iterable[int]) -> None:
        self.rows = [
            EventRow("default", "w", f"s{seq % 7}", seq, 0, "message.held", "m", "", "{}") for seq in sorted(seqs)
        ]
        self.asked = 0

    async def events_between(
        self, tenant: str, workspace: str, *, after_seq: int, until_seq: int, limit: int
    ) -> list[EventRow]:
        self.asked += 1
        return [row for row in self.rows if after_seq < row.seq <= until_seq][:limit]

    async def told(self, after: int, until: int, *, newest: int | None = None, rows_max: int = 1_000) -> list[int]:
        history: Any = self
        past = Past(history, Owner("default", "w", ""), rows_max=rows_max)
        return [frame.seq async for page in past.pages(after, until, newest=newest) for frame in page]


@given(
    seqs=st.sets(st.integers(1, 20_000), max_size=60),
    after=st.integers(0, 20_000),
    until=st.integers(0, 20_000),
    newest=st.none() | st.integers(0, 40),
    rows_max=st.integers(1, 12),
)
async def test_the_past_of_all_sessions_is_told_in_order_whatever_is_asked_for(
    seqs: set[int], after: int, until: int, newest: int | None, rows_max: int
) -> None:
    wanted = [seq for seq in sorted(seqs) if after < seq <= until]
    if newest is not None:
        wanted = wanted[-newest:] if newest else []
    assert await Shelf(seqs).told(after, until, newest=newest, rows_max=rows_max) == wanted


async def test_the_past_of_all_sessions_is_not_read_for_its_end() -> None:
    shelf = Shelf(range(1, 100_000, 2))
    assert await shelf.told(0, 100_000, newest=3) == [99_995, 99_997, 99_999]
    assert await shelf.told(99_999, 100_000) == []
    assert shelf.asked < 10


async def test_numbers_that_a_store_has_left_out_cost_little() -> None:
    shelf = Shelf([1, 5_000_000_000, 5_000_000_001])
    assert await shelf.told(0, 6_000_000_000) == [1, 5_000_000_000, 5_000_000_001]
    assert await shelf.told(0, 6_000_000_000, newest=1) == [5_000_000_001]
    assert shelf.asked < 40
