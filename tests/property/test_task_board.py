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
from laneway.external import ExternalTaskResult, Progress
from laneway.kernel.task_board import ATTEMPTS_MAX, TASK_TRANSITIONS, TaskBoard
from laneway.kernel.task_entries import Taker, TaskEntry, TaskOrder, Wanted, decode_task
from laneway.records import Effect
from laneway.rows import Owner, StateRow
from tests.property.worlds import effort

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # a failing example takes minutes to shrink

OWNERS = (Owner("default", "default", "one"), Owner("default", "default", "two"), Owner("acme", "default", "one"))
TENANTS = (None, None, "default", "acme")
WORKERS = ("ann", "bob")
LABELS = ("gpu", "big")
STICKY = ("", "", "session:one", "tenant")
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
    labels: frozenset[str]
    sticky: str
    sticky_ms: int
    held_for: str = ""
    held_until: int = NEVER
    worker: str = ""
    wish: int | None = None  # how long its worker would like to be silent
    progress: Progress | None = None
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

    @property
    def silence(self) -> int:
        """How long its worker may be silent."""
        if self.wish is None:
            return self.lease
        return self.wish if self.told else min(self.wish, self.lease)

    @property
    def due(self) -> int:
        """When something happens to it by itself."""
        return min(self.times_out, self.lease_ends, self.held_until if self.held_for else NEVER)

    def back(self) -> None:
        """It waits again, for anybody."""
        self.state, self.token, self.told, self.lease_ends = "pending", "", False, NEVER
        self.progress = None

    def give_up(self) -> None:
        """Its worker had begun and is gone."""
        if self.effect is Effect.WRITE:
            self.state = "unknown"
        elif self.attempt == ATTEMPTS_MAX:
            self.state, self.result, self.token = "failed", False, ""
        else:
            self.back()
            self.attempt += 1

    def finish(self, *, success: bool) -> None:
        """Somebody has said what became of it."""
        self.held_for, self.held_until = "", NEVER
        self.told = self.told or bool(self.token)
        self.result = success
        if self.state != "timed_out":
            self.state = "completed" if success else "failed"

    def pass_time(self, now: int) -> bool:
        """What the clock does to it; the earlier of two times comes first, and its timeout if they are the same.

        Whether its worker was lost.
        """
        lost = False
        if self.held_until <= now:
            self.held_for, self.held_until = "", NEVER
        while self.state in LIVE and min(self.times_out, self.lease_ends) <= now:
            if self.times_out <= self.lease_ends:
                self.state = "timed_out"
                continue
            lost = True
            if self.told:
                self.give_up()
            else:
                self.back()
        return lost


Steps = st.data()
TAKERS = st.builds(Taker, st.sampled_from(WORKERS), st.sampled_from([None, None, 2, 40]))
PROGRESS = st.sampled_from([None, None, Progress("half", 50), Progress("most")])
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
        self.last: dict[tuple[str, str], str] = {}  # who began the newest task of a tenant and a key

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
            if paper.published and paper.pass_time(self.now):
                self.forget_last(paper)

    def forget_last(self, paper: Paper) -> None:
        """Its worker is not waited for any more."""
        key = paper.owner.tenant, paper.sticky
        if paper.sticky and self.last.get(key) == paper.worker:
            del self.last[key]

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
            labels=frozenset(data.draw(st.sets(st.sampled_from(LABELS), max_size=data.draw(st.integers(0, 2))))),
            sticky=data.draw(st.sampled_from(STICKY)),
            sticky_ms=data.draw(st.sampled_from([0, 4, 30])),
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
            labels=tuple(sorted(paper.labels)),
            sticky=paper.sticky,
            sticky_ms=paper.sticky_ms,
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
        worker = self.last.get((paper.owner.tenant, paper.sticky), "") if paper.sticky and paper.sticky_ms else ""
        if worker and paper.state == "pending":
            paper.held_for, paper.held_until = worker, self.now + paper.sticky_ms

    @precondition(lambda self: self.papers)
    @rule(
        lanes=st.sets(st.sampled_from(LANES)),
        commands=st.sets(st.sampled_from(COMMANDS)),
        labels=st.sets(st.sampled_from(LABELS)),
        tenant=st.sampled_from(TENANTS),
        taker=TAKERS,
    )
    def claim_some(
        self, lanes: set[str], commands: set[str], labels: set[str], tenant: str | None, taker: Taker
    ) -> None:
        """A worker asks for some tasks only."""
        self.claim(Wanted(frozenset(lanes), frozenset(commands), frozenset(labels), tenant), taker)

    def claim(self, wanted: Wanted, taker: Taker) -> bool:
        """A worker takes the oldest task that fits; whether there is one."""
        token = f"token-{len(self.tokens)}"
        taken = self.board.claim(wanted, taker, now=self.now, token=lambda: token)
        fits = [
            paper
            for paper in self.papers.values()
            if paper.state == "pending" and paper.published
            if not wanted.lanes or paper.lane in wanted.lanes
            if not wanted.commands or paper.command in wanted.commands
            if paper.labels <= wanted.labels
            if wanted.tenant in (None, paper.owner.tenant)
            if paper.held_for in ("", taker.worker)
        ]
        assert (taken.task_id if taken is not None else None) == (fits[0].id if fits else None)
        if not fits:
            return False
        paper = fits[0]
        paper.state, paper.token, paper.worker, paper.wish = "leased", token, taker.worker, taker.lease_ms
        paper.held_for, paper.held_until, paper.progress = "", NEVER, None
        paper.lease_ends = self.now + paper.silence
        self.tokens.append((paper.id, token))
        return True

    @precondition(lambda self: self.tokens)
    @rule(data=Steps, stored=STORED)
    def start(self, data: st.DataObject, stored: str) -> None:
        """A worker wants to begin; the store may fail it."""
        self.start_one(*self.held(data.draw), stored)

    @precondition(lambda self: any(paper.state == "pending" and paper.published for paper in self.papers.values()))
    @rule(stored=STORED, taker=TAKERS)
    def claim_and_start(self, stored: str, taker: Taker) -> None:
        """What most workers do most of the time."""
        if self.claim(Wanted(labels=frozenset(LABELS)), taker):
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
        paper.state, paper.lease_ends = "started", self.now + paper.silence
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
        paper.lease_ends = self.now + paper.silence
        self.told.setdefault(paper.id, set()).add(token)
        if paper.sticky:
            self.last[paper.owner.tenant, paper.sticky] = paper.worker

    @precondition(lambda self: self.tokens)
    @rule(data=Steps, progress=PROGRESS)
    def heartbeat(self, data: st.DataObject, progress: Progress | None) -> None:
        """A worker is alive, and may say how far it is."""
        paper, token = self.held(data.draw)
        try:
            wanted = self.board.heartbeat(self.entry(paper.id), token, now=self.now, progress=progress)
        except LeaseLostError:
            assert token != paper.token or token == ""
            return
        assert token == paper.token != ""
        if paper.state == "started":  # who has not begun cannot keep it by being there
            paper.lease_ends = self.now + paper.silence
        if paper.state in LIVE:
            paper.progress = progress or paper.progress
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
    @rule(data=Steps, begun=st.booleans())
    def release(self, data: st.DataObject, begun: bool) -> None:
        """A worker gives back what it has not begun, or says that it gives up."""
        paper, token = self.held(data.draw)
        held = token == paper.token != "" and paper.state in ("leased", "started")
        try:
            news = self.board.release(self.entry(paper.id), token, wall=WALL + self.now, begun=begun, reason="bye")
        except ConflictError:
            assert held
            assert paper.told
            assert not begun
            return
        assert (news is not None) is held
        if news is None:
            return
        self.forget_last(paper)
        if paper.told:
            paper.give_up()
        else:
            paper.back()
        assert news.kind == ("requeued" if paper.state == "pending" else "ended")
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
        self.last.clear()
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
                paper.lease_ends = self.now + paper.silence if begun else NEVER
                paper.held_for, paper.held_until, paper.progress = "", NEVER, None
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
            if paper.state in LIVE:
                assert (entry.held_for, entry.progress) == (paper.held_for, paper.progress), paper.id

    @invariant()
    def a_task_waits_in_one_place(self) -> None:
        """Every task that can be taken is in a line, and nothing else is."""
        papers = getattr(self, "papers", {}).values()
        for tenant in TENANTS:
            waiting = [
                paper
                for paper in papers
                if paper.published and paper.state == "pending" and tenant in (None, paper.owner.tenant)
            ]
            lines = self.board._lines.get(tenant, {}) if papers else {}  # noqa: SLF001 - nobody else can count them
            assert sum(line.waiting for line in lines.values()) == len(waiting)

    @invariant()
    def nothing_is_late(self) -> None:
        """Whatever was due by now has happened, and the next time is the right one."""
        papers = getattr(self, "papers", {}).values()
        times = [paper.due for paper in papers if paper.published and paper.state in LIVE]
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
TestBoardAgreesWithModel.settings = effort(300, steps=50)


def test_every_transition_is_one_that_the_model_knows() -> None:
    live_or_settled = {"unknown", "timed_out", *LIVE}
    assert {state.value for state, _ in TASK_TRANSITIONS} == live_or_settled
