"""The board of external tasks against a naive model, and against a witness that only counts.

The model is a list of papers without timers, heaps or rows: whenever it is asked, it goes through all of them. The
witness knows nothing of states. It counts who was told to begin and whose result was accepted, and remembers every end.
After every step the board must agree with the model about every task, and a restart from the rows gives a board that
goes on agreeing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from laneway.errors import ConflictError, LeaseLostError
from laneway.external import ExternalTaskResult
from laneway.kernel.task_board import ATTEMPTS_MAX, TASK_TRANSITIONS, TaskBoard
from laneway.kernel.task_entries import Taker, TaskEntry, TaskOrder, Wanted, decode_task
from laneway.records import Effect
from laneway.rows import Owner, StateRow
from tests.property.worlds import effort

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # a failing example takes minutes to shrink

OWNERS = (Owner("default", "default", "one"), Owner("default", "default", "two"))
WALL = 1_700_000_000_000
LANES = ("query", "execute")
COMMANDS = ("bash", "read")
LIVE = ("pending", "leased", "started")
NEVER = 10**12


@dataclass(eq=False)
class Paper:
    """A task as a reader of the documentation sees it."""

    id: str
    owner: Owner
    effect: Effect
    lane: str
    command: str
    timeout: int
    lease: int
    times_out: int = NEVER
    lease_ends: int = NEVER
    state: str = "pending"
    published: bool = False
    token: str = ""
    told: bool = False  # its worker was told to begin
    shown: bool = False  # the host has seen it
    attempt: int = 1
    result: bool | None = None
    by_host: bool = False
    unwanted: bool = False

    @property
    def begun(self) -> bool:
        """Whether somebody may have begun."""
        return self.told or self.shown

    def back(self) -> None:
        """It waits again."""
        self.state, self.token, self.told, self.lease_ends = "pending", "", False, NEVER

    def finish(self, *, success: bool) -> None:
        """Somebody has said what became of it."""
        self.told = self.told or bool(self.token)
        self.result = success
        if self.state != "timed_out":
            self.state = "completed" if success else "failed"

    def pass_time(self, now: int) -> None:
        """What the clock does to it; the earlier of two times comes first, and its timeout if they are the same."""
        while self.state in LIVE and min(self.times_out, self.lease_ends) <= now:
            if self.times_out <= self.lease_ends:
                self.state = "timed_out"
            elif not self.told:
                self.back()
            elif self.effect is Effect.WRITE:
                self.state = "unknown"
            elif self.attempt == ATTEMPTS_MAX:
                self.state, self.result, self.token = "failed", False, ""
            else:
                self.back()
                self.attempt += 1


Steps = st.data()
STORED = st.sampled_from(["yes", "yes", "yes", "no", "answer lost"])


class BoardMachine(RuleBasedStateMachine):
    """Draws what workers, hosts, clocks and crashes do."""

    @initialize()
    def begin(self) -> None:
        """An empty board."""
        self.board = TaskBoard()
        self.papers: dict[str, Paper] = {}
        self.disk: dict[str, StateRow] = {}
        self.now = 0
        self.numbers = 0
        self.tokens: list[tuple[str, str]] = []  # every one that was ever given out
        self.told: dict[str, set[str]] = {}  # by task: the tokens under which somebody was told to begin
        self.accepted: dict[str, int] = {}
        self.ends: dict[str, str] = {}

    # ---- what both sides are made of ----

    def entry(self, task_id: str) -> TaskEntry:
        """A task of the board."""
        found = self.board.get(task_id)
        assert found is not None, f"{task_id} is lost"
        return found

    def save(self, *ids: str) -> None:
        """Write tasks down, as the desk does."""
        for task_id in ids:
            row = self.entry(task_id).to_row()
            before = self.disk.get(task_id)
            assert before is None or before.live or row.state == before.state or before.state == "unknown"
            self.disk[task_id] = row

    def tick(self) -> None:
        """Both see what time it is."""
        for news in self.board.tick(now=self.now, wall=WALL + self.now):
            self.save(news.entry.task_id)
        for paper in self.papers.values():
            if paper.published:
                paper.pass_time(self.now)

    def choose(self, draw: Callable[..., Any]) -> Paper:
        """Any task."""
        return self.papers[draw(st.sampled_from(sorted(self.papers)))]

    def held(self, draw: Callable[..., Any]) -> tuple[Paper, str]:
        """A token, mostly with the task that it is for: the newest, or one that was lost long ago."""
        odds = draw(st.integers(0, 9))
        newest = [(task_id, token) for task_id, token in self.tokens if self.papers[task_id].token == token]
        task_id, token = draw(st.sampled_from((newest if odds > 2 else []) or self.tokens))
        if odds == 0:
            return self.choose(draw), draw(st.sampled_from([token, "", "foreign"]))
        return self.papers[task_id], token

    # ---- what happens ----

    @rule(data=Steps, effect=st.sampled_from(Effect), publish=st.booleans())
    def offer(self, data: st.DataObject, effect: Effect, publish: bool) -> None:
        """A new task."""
        self.numbers += 1
        paper = Paper(
            id=f"t{self.numbers:03}",
            owner=data.draw(st.sampled_from(OWNERS)),
            effect=effect,
            lane=data.draw(st.sampled_from(LANES)),
            command=data.draw(st.sampled_from(COMMANDS)),
            timeout=data.draw(st.sampled_from([500, 50, 5])),
            lease=data.draw(st.sampled_from([3, 10])),
        )
        order = TaskOrder(
            owner=paper.owner,
            task_id=paper.id,
            lane=paper.lane,
            command_type=paper.command,
            payload={"n": self.numbers},
            timeout_ms=paper.timeout,
            lease_ms=paper.lease,
            effect=effect,
            key=f"key-{paper.id}",
        )
        self.board.offer(order, seq=self.numbers, wall=WALL + self.now)
        self.papers[paper.id] = paper
        self.save(paper.id)
        if publish:
            self.publish_one(paper)

    @precondition(lambda self: any(not paper.published for paper in self.papers.values()))
    @rule()
    def publish(self) -> None:
        """The oldest that nobody sees yet is on disk."""
        self.publish_one(next(paper for paper in self.papers.values() if not paper.published))

    def publish_one(self, paper: Paper) -> None:
        """Let somebody take it."""
        assert (self.board.publish(paper.id, now=self.now) is not None) is (paper.state == "pending")
        paper.published = True
        paper.times_out = self.now + paper.timeout

    @precondition(lambda self: self.papers)
    @rule(lanes=st.sets(st.sampled_from(LANES)), commands=st.sets(st.sampled_from(COMMANDS)))
    def claim_some(self, lanes: set[str], commands: set[str]) -> None:
        """A worker asks for some tasks only."""
        self.claim(lanes, commands)

    def claim(self, lanes: set[str], commands: set[str]) -> None:
        """A worker takes the oldest task that fits."""
        token = f"token-{len(self.tokens)}"
        taken = self.board.claim(
            Wanted(frozenset(lanes), frozenset(commands)), Taker(f"w-{token}"), now=self.now, token=lambda: token
        )
        fits = [
            paper
            for paper in self.papers.values()
            if paper.state == "pending" and paper.published
            if (not lanes or paper.lane in lanes) and (not commands or paper.command in commands)
        ]
        assert (taken.task_id if taken is not None else None) == (fits[0].id if fits else None)
        if fits:
            paper = fits[0]
            paper.state, paper.token, paper.lease_ends = "leased", token, self.now + paper.lease
            self.tokens.append((paper.id, token))

    @precondition(lambda self: self.tokens)
    @rule(data=Steps, stored=STORED)
    def start(self, data: st.DataObject, stored: str) -> None:
        """A worker wants to begin; the store may fail it."""
        self.start_one(*self.held(data.draw), stored)

    @precondition(lambda self: any(paper.state == "pending" and paper.published for paper in self.papers.values()))
    @rule(stored=STORED)
    def claim_and_start(self, stored: str) -> None:
        """What most workers do most of the time."""
        self.claim(set(), set())
        task_id, token = self.tokens[-1]
        self.start_one(self.papers[task_id], token, stored)

    def start_one(self, paper: Paper, token: str, stored: str) -> None:
        """Say that it begins, and hear whether it may."""
        entry = self.entry(paper.id)
        fits = token == paper.token != "" and paper.state in ("leased", "started")
        try:
            self.board.start(entry, token, now=self.now)
        except LeaseLostError:
            assert not fits
            return
        assert fits
        paper.state, paper.lease_ends = "started", self.now + paper.lease
        if entry.confirmed:
            return
        if paper.effect is not Effect.READ:
            if stored == "no":
                return
            self.save(paper.id)
            if stored == "answer lost":
                return
        assert self.board.confirm(entry, token, now=self.now)
        paper.told = True
        self.told.setdefault(paper.id, set()).add(token)

    @precondition(lambda self: self.tokens)
    @rule(data=Steps)
    def heartbeat(self, data: st.DataObject) -> None:
        """A worker is alive."""
        paper, token = self.held(data.draw)
        try:
            wanted = self.board.heartbeat(self.entry(paper.id), token, now=self.now)
        except LeaseLostError:
            assert token != paper.token or token == ""
            return
        assert token == paper.token != ""
        if paper.state in LIVE:
            paper.lease_ends = self.now + paper.lease
        assert wanted is (paper.state in LIVE or (paper.state == "unknown" and not paper.unwanted))

    @precondition(lambda self: self.tokens)
    @rule(data=Steps, success=st.booleans())
    def complete(self, data: st.DataObject, success: bool) -> None:
        """A worker says what became of it."""
        paper, token = self.held(data.draw)
        late = paper.effect is Effect.WRITE and paper.told and paper.state == "timed_out"
        counts = paper.state in ("leased", "started", "unknown") or (late and paper.result is None)
        again = paper.state in ("completed", "failed") or (late and paper.result is not None)
        try:
            first = self.board.complete(
                self.entry(paper.id), token, ExternalTaskResult(success=success), wall=WALL + self.now
            )
        except LeaseLostError:
            assert token != paper.token or token == "" or not (counts or again)
            return
        assert token == paper.token != ""
        assert (first, not first) == (counts, again)
        if first:
            self.accept(paper, success=success)

    @precondition(lambda self: self.tokens)
    @rule(data=Steps)
    def release(self, data: st.DataObject) -> None:
        """A worker gives back what it has not begun."""
        paper, token = self.held(data.draw)
        held = token == paper.token != "" and paper.state in ("leased", "started")
        try:
            back = self.board.release(self.entry(paper.id), token, wall=WALL)
        except ConflictError:
            assert held
            assert paper.told
            return
        assert (back is not None) is (held and not paper.told)
        if back:
            paper.back()
            self.save(paper.id)

    @precondition(lambda self: self.papers)
    @rule(data=Steps, success=st.booleans(), odds=st.integers(0, 3))
    def complete_by_host(self, data: st.DataObject, success: bool, odds: int) -> None:
        """The code of the host says what became of it; rare, too."""
        if odds:
            return
        paper = self.choose(data.draw)
        result = ExternalTaskResult(success=success)
        counts = self.board.complete_by_host(self.entry(paper.id), result, wall=WALL + self.now)
        if paper.state in (*LIVE, "unknown"):
            assert counts is True
            paper.token, paper.by_host = "", True
            self.accept(paper, success=success)
        else:
            assert counts is (None if paper.by_host else False)

    def accept(self, paper: Paper, *, success: bool) -> None:
        """A result counts."""
        paper.finish(success=success)
        self.accepted[paper.id] = self.accepted.get(paper.id, 0) + 1
        self.save(paper.id)

    @precondition(lambda self: self.papers)
    @rule(data=Steps, odds=st.integers(0, 3))
    def withdraw(self, data: st.DataObject, odds: int) -> None:
        """Nobody wants it any more; that is rare, or nothing else would ever happen to a task."""
        if odds:
            return
        paper = self.choose(data.draw)
        was_live = paper.state in LIVE
        assert self.board.withdraw(self.entry(paper.id), "stop", wall=WALL + self.now) is was_live
        if was_live:
            paper.state = "unknown" if paper.effect is Effect.WRITE and paper.begun else "withdrawn"
            paper.unwanted = True
            self.save(paper.id)

    @rule(owner=st.sampled_from(OWNERS))
    def look(self, owner: Owner) -> None:
        """The host polls."""
        for entry in list(self.board.by_owner.get(owner, {}).values()):
            if entry.published and entry.state == "pending":
                self.board.hand_out(entry)
                self.papers[entry.task_id].shown = True
                if entry.effect is Effect.WRITE:
                    self.save(entry.task_id)

    @rule(ms=st.sampled_from([1, 2, 5, 20, 200]))
    def wait(self, ms: int) -> None:
        """Time passes; whoever keeps it may come late, or just in time, many times."""
        self.now += ms
        self.tick()

    @precondition(lambda self: any(paper.state in LIVE for paper in self.papers.values()))
    @rule()
    def wait_until_due(self) -> None:
        """Time passes until something has to happen: exactly then it does."""
        due = self.board.next_due()
        if due is not None:
            self.now = due
            self.tick()

    @precondition(lambda self: self.papers)
    @rule(odds=st.integers(0, 2))
    def restart(self, odds: int) -> None:
        """The process dies: what the rows say is all that is left."""
        if odds:
            return
        self.board = TaskBoard()
        self.now += 7
        for task_id, row in self.disk.items():
            entry = decode_task(row)
            paper = self.papers[task_id]
            if row.live:
                self.board.load(entry, now=self.now)
                begun = row.state == "started"
                paper.state, paper.told, paper.token = row.state, begun, entry.token
                paper.attempt = entry.attempt
                # What has begun goes on; what has not waits until somebody says that it is still wanted.
                paper.published, paper.shown = begun, entry.handed_out
                paper.times_out = self.now + paper.timeout if begun else NEVER
                paper.lease_ends = self.now + paper.lease if begun else NEVER
            else:
                self.board.remember(entry)

    # ---- what must hold ----

    @invariant()
    def the_board_agrees_with_the_model(self) -> None:
        """About every task."""
        for paper in getattr(self, "papers", {}).values():
            entry = self.entry(paper.id)
            assert (entry.state, entry.token, entry.attempt) == (paper.state, paper.token, paper.attempt), paper.id
            assert (paper.id in self.board.live) is (paper.state in LIVE)
            assert (entry.result.success if entry.result else None) == paper.result

    @invariant()
    def nothing_is_late(self) -> None:
        """Whatever was due by now has happened, and the next time is the right one."""
        papers = getattr(self, "papers", {}).values()
        times = [min(paper.times_out, paper.lease_ends) for paper in papers if paper.published and paper.state in LIVE]
        if times:
            assert self.board.next_due() == min(times) > self.now

    @invariant()
    def nothing_that_may_not_be_is_done_twice(self) -> None:
        """A write is begun at most once; of every task one result counts; an end stays as it is."""
        for paper in getattr(self, "papers", {}).values():
            if paper.told and paper.effect is not Effect.READ:
                assert self.disk[paper.id].state != "pending", "whoever was told to begin is on disk"
            if paper.effect is Effect.WRITE:
                assert len(self.told.get(paper.id, ())) <= 1, paper.id
            assert self.accepted.get(paper.id, 0) <= 1, paper.id
            if paper.state not in LIVE:
                before = self.ends.setdefault(paper.id, paper.state)
                if before != paper.state:
                    assert before == "unknown"
                    assert paper.state in ("completed", "failed")
                    self.ends[paper.id] = paper.state
            else:
                assert paper.id not in self.ends

    def teardown(self) -> None:
        """Whatever has happened, everything comes to its end."""
        if not hasattr(self, "board"):
            return
        note(f"{len(self.papers)} tasks at {self.now} ms")
        for paper in self.papers.values():
            if not paper.published:
                self.publish_one(paper)
        self.now += 10_000
        self.tick()
        self.the_board_agrees_with_the_model()
        assert not self.board.live
        assert not self.board.by_owner
        assert self.board.next_due() is None
        assert all(not row.live for row in self.disk.values())


TestBoardAgreesWithModel = BoardMachine.TestCase
TestBoardAgreesWithModel.settings = effort(400, steps=50)


def test_every_transition_is_one_that_the_model_knows() -> None:
    live_or_settled = {"unknown", "timed_out", *LIVE}
    assert {state.value for state, _ in TASK_TRANSITIONS} == live_or_settled
