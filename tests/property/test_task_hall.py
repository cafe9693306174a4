"""The hall against a naive model: who waits, and who gets which task, also when somebody goes away.

The model is two lists. A task that can be taken goes to the claim that has waited longest for one like it, and when
nobody waits, to one that was given a task in this very instant and has room. A claim takes the oldest tasks that fit.
The desks are real ones over a store that is always there.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from laneway.errors import TransportUnavailableError
from laneway.external import ExternalTaskResult, Lease
from laneway.kernel.task_entries import TaskOrder
from laneway.records import Effect
from laneway.rows import Owner
from laneway.runtime.task_desk import TaskDesk
from laneway.runtime.task_hall import Guest, TaskHall
from laneway.sim.loop import SimLoop
from laneway.system import SequentialIdGenerator
from tests.property.worlds import effort

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# The machine closes what it has opened, and looks at who waits.
# ruff: noqa: SLF001

WORKSPACES = ("alpha", "beta")
TENANTS = ("default", "acme")
LANES = ("query", "execute")
LABELS = ("gpu", "big")
WORKERS = ("ann", "bob", "cy")
TIMEOUT = 10**6
DONE = ExternalTaskResult(result="ok")


class Journal:
    """Everything is on disk at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def touch(self, owner: Owner, thing: object) -> None:
        """It is there."""

    def after(self, owner: Owner, callback: Any) -> None:
        """Tell so."""
        self._loop.call_soon(callback, None)

    def committed(self, owner: Owner) -> asyncio.Future[None]:
        """Now."""
        done: asyncio.Future[None] = self._loop.create_future()
        done.set_result(None)
        return done


class Engine:
    """As much of an engine as a desk needs."""

    is_at_work = is_open = True
    epoch = 1

    def __init__(self, machine: HallMachine, workspace: str) -> None:
        self.loop = machine.loop
        self.workspace = workspace
        self.journal = Journal(machine.loop)
        self.store = self
        self.ids = SequentialIdGenerator(f"{workspace}-")
        self._machine = machine

    def check_open(self) -> None:
        """It is."""

    def next_seq(self) -> int:
        """In the order in which tasks are asked for, whatever their desk."""
        return len(self._machine.papers)

    def now(self) -> int:
        """The time of the loop."""
        return round(self.loop.time() * 1_000)

    wall = now


@dataclass(eq=False)
class Paper:
    """A task."""

    id: str
    owner: Owner
    lane: str
    labels: frozenset[str]
    state: str = "pending"
    lease: Lease | None = None


@dataclass(eq=False)
class Claim:
    """Somebody asks, or has asked. `gets`: what the model says that it gets, in the end."""

    worker: str
    lanes: frozenset[str]
    labels: frozenset[str]
    tenant: str | None
    workspaces: frozenset[str]
    limit: int
    gets: list[str] = field(default_factory=list)
    state: str = "waiting"  # then given, empty, gone
    task: asyncio.Task[list[Lease]] | None = None
    is_seen: bool = False

    def fits(self, paper: Paper) -> bool:
        """Whether it asks for such a task."""
        return (
            (not self.lanes or paper.lane in self.lanes)
            and paper.labels <= self.labels
            and self.tenant in (None, paper.owner.tenant)
            and (not self.workspaces or paper.owner.workspace in self.workspaces)
        )


class HallMachine(RuleBasedStateMachine):
    """Draws what workers, sessions and the clock do."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = SimLoop(seed=0, shuffle=False)
        self.papers: dict[str, Paper] = {}
        self.claims: list[Claim] = []

    @initialize()
    def begin(self) -> None:
        """Two desks, one hall."""
        engines = [Engine(self, name) for name in WORKSPACES]
        self.hall = TaskHall(engines[0].now, engines[0].wall)
        self.desks = {engine.workspace: TaskDesk(engine, self.hall) for engine in engines}  # type: ignore[arg-type]

    def run(self, coro: Any) -> Any:
        """Have something happen, and everybody wake who can."""
        result = self.loop.run_until_complete(coro)
        self.loop.run_until_complete(_rest())
        return result

    def give(self, paper: Paper, claim: Claim) -> None:
        """In the model, a task goes to a claim."""
        paper.state = "leased"
        claim.state = "given"
        claim.gets.append(paper.id)

    def hand_out(self, papers: list[Paper]) -> None:
        """In the model, tasks can be taken, all in one instant."""
        waking: list[Claim] = []
        for paper in papers:
            for claim in self.claims:
                if claim.state == "waiting" and claim.fits(paper):
                    self.give(paper, claim)
                    waking.append(claim)
                    break
            else:
                for claim in waking:
                    if len(claim.gets) < claim.limit and claim.fits(paper):
                        self.give(paper, claim)
                        break

    def offer(self, workspace: str, tenant: str, lane: str, labels: frozenset[str]) -> Paper:
        """A new task, which nobody sees yet."""
        paper = Paper(f"t{len(self.papers)}", Owner(tenant, workspace, "s"), lane, labels)
        self.papers[paper.id] = paper
        order = TaskOrder(
            owner=paper.owner,
            task_id=paper.id,
            lane=lane,
            command_type="bash",
            payload={},
            timeout_ms=TIMEOUT,
            lease_ms=TIMEOUT,
            effect=Effect.READ,
            labels=tuple(sorted(labels)),
        )
        self.desks[workspace].offer(order)
        return paper

    # ---- what happens ----

    @rule(
        count=st.sampled_from((1, 1, 2, 4)),
        workspace=st.sampled_from(WORKSPACES),
        tenant=st.sampled_from(TENANTS),
        lane=st.sampled_from(LANES),
        labels=st.frozensets(st.sampled_from(LABELS), max_size=1),
    )
    def publish(self, count: int, workspace: str, tenant: str, lane: str, labels: frozenset[str]) -> None:
        """Tasks of one instant."""
        new = [self.offer(workspace, tenant, lane, labels) for _ in range(count)]
        self.hand_out(new)

        async def publish_all() -> None:
            for paper in new:
                self.desks[workspace].publish(paper.id)

        self.run(publish_all())

    @rule(
        worker=st.sampled_from(WORKERS),
        lanes=st.sampled_from((frozenset[str](), frozenset(LANES[:1]))),
        labels=st.sampled_from((frozenset(LABELS), frozenset[str]())),
        tenant=st.sampled_from((None, None, *TENANTS)),
        workspaces=st.sampled_from((frozenset[str](), frozenset[str](), frozenset(WORKSPACES[:1]))),
        limit=st.sampled_from((1, 1, 2, 5)),
        wait=st.sampled_from((False, True, True)),
    )
    def claim(
        self,
        worker: str,
        lanes: frozenset[str],
        labels: frozenset[str],
        tenant: str | None,
        workspaces: frozenset[str],
        limit: int,
        wait: bool,
    ) -> None:
        """A worker asks."""
        claim = Claim(worker, lanes, labels, tenant, workspaces, limit)
        fits = [paper for paper in self.papers.values() if paper.state == "pending" and claim.fits(paper)]
        for paper in fits[:limit]:
            self.give(paper, claim)
        if not fits and not wait:
            claim.state = "empty"
        self.claims.append(claim)
        asking = self.hall.claim(
            worker,
            limit=limit,
            wait_ms=TIMEOUT if wait else 0,
            lanes=sorted(lanes),
            labels=sorted(labels),
            workspaces=sorted(workspaces),
            guest=Guest("token", tenant),
        )

        async def ask() -> None:
            claim.task = asyncio.get_running_loop().create_task(asking)

        self.run(ask())

    @precondition(lambda self: any(claim.state == "waiting" for claim in self.claims))
    @rule(data=st.data())
    def hang_up(self, data: st.DataObject) -> None:
        """Somebody who waits goes away."""
        claim = data.draw(st.sampled_from([each for each in self.claims if each.state == "waiting"]))
        claim.state = "gone"

        async def cancel() -> None:
            assert claim.task is not None
            claim.task.cancel()

        self.run(cancel())

    @precondition(lambda self: any(claim.state == "waiting" for claim in self.claims))
    @rule(data=st.data())
    def hang_up_too_late(self, data: st.DataObject) -> None:
        """Somebody goes away in the instant in which it is given a task: the next one gets it."""
        claim = data.draw(st.sampled_from([each for each in self.claims if each.state == "waiting"]))
        workspace = min(claim.workspaces) if claim.workspaces else "alpha"
        lane = min(claim.lanes) if claim.lanes else "query"
        paper = self.offer(workspace, claim.tenant or "default", lane, frozenset())
        claim = next(each for each in self.claims if each.state == "waiting" and each.fits(paper))
        claim.state = "gone"
        self.hand_out([paper])

        async def publish_and_cancel() -> None:
            self.desks[workspace].publish(paper.id)
            assert claim.task is not None
            claim.task.cancel()

        self.run(publish_and_cancel())

    def held(self, data: st.DataObject, *states: str) -> Paper | None:
        """A task in somebody's hands."""
        papers = [paper for paper in self.papers.values() if paper.state in states and paper.lease is not None]
        return data.draw(st.sampled_from(papers)) if papers else None

    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        """A worker begins."""
        paper = self.held(data, "leased")
        if paper is not None and paper.lease is not None:
            self.run(self.hall.start(paper.id, paper.lease.token))
            paper.state = "started"

    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        """A worker is done."""
        paper = self.held(data, "leased", "started")
        if paper is not None and paper.lease is not None:
            assert self.run(self.hall.complete(paper.id, paper.lease.token, DONE))
            paper.state = "ended"

    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """A worker gives back what it has not begun."""
        paper = self.held(data, "leased")
        if paper is None or paper.lease is None:
            return
        token, paper.lease, paper.state = paper.lease.token, None, "pending"
        self.hand_out([paper])
        self.run(self.hall.release(paper.id, token))

    # ---- what must hold ----

    @invariant()
    def everybody_has_what_the_model_says(self) -> None:
        """Claims are answered with the tasks that they should get, in that order, and others wait."""
        for claim in self.claims:
            assert claim.task is not None
            assert claim.task.done() is (claim.state != "waiting"), claim
            if claim.state == "gone":
                assert claim.task.cancelled()
            elif claim.state != "waiting":
                leases = claim.task.result()
                assert [lease.task["task_id"] for lease in leases] == claim.gets
                for lease in leases if not claim.is_seen else ():
                    self.papers[lease.task["task_id"]].lease = lease
                claim.is_seen = True

    @invariant()
    def the_boards_and_the_book_agree(self) -> None:
        """About what waits, who waits, and who has what."""
        for paper in self.papers.values():
            entry = self.desks[paper.owner.workspace].board.get(paper.id)
            assert entry is not None
            assert (str(entry.state) if entry.is_live else "ended") == paper.state
        records = self.hall.workers() if self.claims else []
        assert sum(record.waiting for record in records) == sum(claim.state == "waiting" for claim in self.claims)
        held = sorted(entry.task_id for record in records for entry in record.holds())
        assert held == sorted(paper.id for paper in self.papers.values() if paper.state in ("leased", "started"))

    def teardown(self) -> None:
        """Closing tells everybody who waits."""
        if not hasattr(self, "hall"):
            return
        for desk in self.desks.values():
            desk.close()
        self.run(_rest())
        for claim in self.claims:
            assert claim.task is not None
            assert claim.task.done()
            if claim.state == "waiting":
                assert isinstance(claim.task.exception(), TransportUnavailableError)
        assert self.hall._claimers == {}
        assert self.hall._waking == {}
        self.loop.close()


async def _rest() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


TestHallAgreesWithModel = HallMachine.TestCase
TestHallAgreesWithModel.settings = effort(250, steps=40)
