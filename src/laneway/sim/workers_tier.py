"""Tier `workers`: the hall of a host with several desks over one store, and workers beyond a bad network.

The host is what a gateway has: a store, an inbox and a desk for each workspace, one hall. The workers are real ones,
over frames; beside them some lie. Frames are dropped, doubled, delayed, reordered and cut off in both directions; the
host and the workers die and come back, the store refuses, the host stands still for a while, wall clocks jump.

Phase one, safety: everything at once. Phase two, liveness: the network is well, nobody lies, and every task has to end.
The laws are in `workers_laws`.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

from laneway.errors import LanewayError, StoreUnavailableError
from laneway.external import ExternalTask, ExternalTaskResult
from laneway.inbox import Inbox
from laneway.kernel.task_entries import TaskNews, TaskOrder, decode_task
from laneway.lanes import Lanes
from laneway.rows import Owner
from laneway.runtime.task_desk import TaskDesk
from laneway.runtime.task_hall import Guest
from laneway.sim.mail_store import DiskFailedError, SimStore
from laneway.sim.mail_world import MailDice, SimClock
from laneway.sim.playing import LivingRun, nothing, play_to_end
from laneway.sim.shadow import LawBrokenError
from laneway.sim.trace import Outcome, Trace
from laneway.sim.workers_laws import Laws, WatchedHall
from laneway.sim.workers_liars import Liar
from laneway.sim.workers_network import Link, SimPlaces
from laneway.sim.workers_world import WorkersWorld, WorkerWorld, draw_workers_world
from laneway.stores.memory import MemoryDisk, MemoryHistory
from laneway.system import HostEnv, SequentialIdGenerator
from laneway.transports.wire import serve
from laneway.worker import Worker

__all__ = ("WorkersRun", "run_workers_seed")

# The simulator is no user: it looks into the engine to compare, and pulls the plug.
# ruff: noqa: SLF001

STEPS_MAX = 600_000
HEALED_S = 600.0
CLOSE_MAX_S = 120.0
LOOK_S = 0.05
WALL_MS = 1_700_000_000_000
OPENINGS = 200
DRAIN_MS = 500
STALL_MS = 3_000
JUMP_MS = 3_600_000


def run_workers_seed(seed: int, *, trace: Trace | None = None) -> Outcome:
    """Run the world of a seed; raise `SimFailedError` when a law is broken."""
    trace = trace or Trace()
    loop = SimPlaces(seed=seed, max_steps=STEPS_MAX)
    run = WorkersRun(draw_workers_world(seed), trace, loop)
    return play_to_end(run, loop, trace, seed=seed, tier="workers")


class _Clock(SimClock):
    """A clock whose monotonic side can leap: the process stood still."""

    def stall(self, ms: int) -> None:
        """Time has passed, and nothing has run."""
        self._base_ms += ms


class _History(MemoryHistory):
    """The read side; a question about one task may go unanswered."""

    def __init__(self, store: _Store) -> None:
        super().__init__(store._store)
        self._sim = store

    async def state(self, kind: str, state_id: str) -> Any:
        """One state row."""
        self._sim._trouble("state_fails")
        return await super().state(kind, state_id)


class _Store(SimStore):
    """A store that also fails to answer questions about tasks."""

    @property
    def history(self) -> MemoryHistory:
        """The read side."""
        return _History(self)


@dataclass(slots=True)
class _Life:
    """One process of the host."""

    number: int
    store: _Store
    clock: _Clock
    env: HostEnv
    hall: WatchedHall
    lanes: Lanes
    inboxes: dict[str, Inbox] = field(default_factory=dict)
    desks: dict[str, TaskDesk] = field(default_factory=dict)
    is_up: bool = False
    is_dead: bool = False

    @property
    def place(self) -> str:
        """What its tasks belong to."""
        return f"host-{self.number}"


class WorkersRun(LivingRun):
    """One world, one disk, one host after the other, and workers that come and go."""

    _loop: SimPlaces

    def __init__(self, world: WorkersWorld, trace: Trace, loop: SimPlaces) -> None:
        super().__init__(trace, loop)
        self.world = world
        self.dice = MailDice(world)  # type: ignore[arg-type] # it asks for the seed and the chances
        self.wall = [WALL_MS]
        self._disk = MemoryDisk()
        self.laws = Laws(self._disk, self._break)
        self._ids = SequentialIdGenerator()
        self._life: _Life | None = None
        self._lives = 0
        self._is_up = asyncio.Event()
        self._is_over = asyncio.Event()  # workers are to stop
        self._left = dict.fromkeys(world.owners, world.tasks)  # how many tasks each session will still ask for
        self._open: set[Owner] = set()  # sessions
        self._guests: dict[str, Guest] = {}  # by link
        self._links: list[Link] = []
        self._supervisors: list[asyncio.Task[None]] = []
        self._liars: list[asyncio.Task[None]] = []
        self._numbers = 0

    # ---- the run ----

    @property
    def starts(self) -> int:
        """How much was begun."""
        return sum(self.laws.begun.values())

    @property
    def faults(self) -> int:
        """How much went wrong on purpose."""
        return self.dice.faults

    def give_up(self) -> None:
        """The run has failed: what hangs shall let go."""
        self.dice.honest = True
        for link in self._links:
            link.is_cut = True

    async def play(self) -> None:
        """Live, heal, end; then nothing may be left."""
        self.say("world", str(self.world.seed), self.world.describe())
        await self._start_host()
        await self._live()
        self._check_broken()
        await self._heal()
        self._check_broken()
        await self._end()
        self._check_broken()

    async def _live(self) -> None:
        loop, world = self._loop, self.world
        self._supervisors = [
            loop.create_task(self._keep(number, each), name=f"sim worker-{number}")
            for number, each in enumerate(world.workers)
        ]
        self._liars = [
            loop.create_task(self._liar(name, tenant, link).live(self.dice, self), name=f"sim {name}")
            for name, tenant, link in world.liars
        ]
        clients = [loop.create_task(self._client(owner), name=f"sim client {owner}") for owner in world.owners]
        fate = loop.create_task(self._fate(), name="sim fate")
        looker = loop.create_task(self._look_on(), name="sim looker")
        fail = loop.create_task(self._failed.wait(), name="sim failed")
        everybody = loop.create_task(asyncio.wait([*clients, fate]), name="sim everybody")
        await asyncio.wait([everybody, fail], return_when=asyncio.FIRST_COMPLETED)
        ending = (*clients, *self._liars, fate, looker, fail, everybody)
        for task in ending:
            task.cancel()
        for result in await asyncio.gather(*ending, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _look_on(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            self._look()

    def _look(self) -> None:
        life = self._life
        if life is not None and life.is_up and not life.is_dead:
            self.laws.look(life.hall)

    async def _fate(self) -> None:
        span_ms = max(50, self.world.gap_ms * self.world.tasks // 4)
        for peril in ("reopen", "crash", "stall", "wall_jumps", "restart") * 2:
            await asyncio.sleep(self.dice.span(span_ms))
            await self._is_up.wait()
            if self.broken is None and self.dice.happens(peril):
                self.say(peril, f"life-{self._lives}")
                await getattr(self, f"_{peril}")()

    async def _stall(self) -> None:
        assert self._life is not None
        ms = self.dice.rng.randint(1, STALL_MS)
        self.laws.slack_ms += ms
        self._life.clock.stall(ms)

    async def _wall_jumps(self) -> None:
        self.wall[0] += self.dice.rng.randint(-JUMP_MS, JUMP_MS)

    # ---- the host ----

    async def _start_host(self) -> None:
        """A new process opens on what is on the disk; one that cannot ends, and the next one tries."""
        for _ in range(OPENINGS):
            life = self._new_host()
            try:
                await self._loop.start_in(life.place, self._open_host(life), name="opening")
            except (StoreUnavailableError, DiskFailedError):
                await self._end_host(life)
                await asyncio.sleep(0.1)
                continue
            self.say("open", f"life-{life.number}")
            self._is_up.set()
            return
        raise LawBrokenError("a host cannot be opened")

    def _new_host(self) -> _Life:
        self._lives += 1
        clock = _Clock(self.wall, base_ms=self.dice.rng.randint(0, 10_000_000))
        env = HostEnv(clock=clock, ids=self._ids, random=self.dice.rng)
        store = _Store(self._disk, self.dice, slow_ms=self.world.slow_ms, witness=self.laws.witness)
        hall = WatchedHall(self.laws, clock.monotonic_ms, clock.wall_ms)
        self._life = life = _Life(self._lives, store, clock, env, hall, Lanes(host=env))
        self.laws.void()
        self.laws.slack_ms = 0
        return life

    async def _open_host(self, life: _Life) -> None:
        await life.lanes.__aenter__()
        await life.store.open()
        life.is_up = True  # workers may come while it opens
        for workspace in self.world.workspaces:
            inbox = Inbox(_no_turns, store=life.store, lanes=life.lanes, workspace=workspace, host=life.env)
            life.inboxes[workspace], life.desks[workspace] = inbox, TaskDesk(inbox.engine, life.hall)
        for inbox in life.inboxes.values():
            await inbox.__aenter__()
        for owner in self.world.owners:
            await self._open_session(life, owner)

    async def _open_session(self, life: _Life, owner: Owner) -> None:
        """Go on with what an earlier process, or an earlier opening, has left."""
        desk = life.desks[owner.workspace]
        desk.attend(owner, lambda news: self._hear(life, news))
        for _ in range(OPENINGS):
            try:
                await desk.load(owner)
                break
            except (LanewayError, DiskFailedError):
                await asyncio.sleep(0.1)
        else:
            raise LawBrokenError("a session cannot be loaded")
        for entry in desk.held(owner):
            if self.dice.happens("unwanted"):
                desk.withdraw(entry.task_id, "its run has ended")
            else:
                desk.publish(entry.task_id)
                self._watch(life, entry.task_id, desk)
        self._open.add(owner)

    def _hear(self, life: _Life, news: TaskNews) -> None:
        if not life.is_dead:
            self.say(news.kind, news.entry.task_id, f"{news.entry.state} {news.entry.worker} {news.note}")
            self.laws.news(news, life.clock.monotonic_ms())

    async def _crash(self) -> None:
        """The process dies: nothing of it runs any more, and nothing it began is finished."""
        self._is_up.clear()
        assert self._life is not None
        await self._end_host(self._life)
        await self._start_host()

    async def _end_host(self, life: _Life) -> None:
        life.is_dead = True
        self._open.clear()
        life.store.cut()
        for inbox, desk in zip(life.inboxes.values(), life.desks.values(), strict=True):
            engine = inbox.engine
            if engine._timer is not None:
                engine._timer.cancel()
            engine._arm = nothing  # type: ignore[method-assign]  # a dead process has no timers
            desk.close()
        if not await self._loop.kill(life.place):
            raise LawBrokenError(self._loop.picture("a dead host goes on"))
        await life.lanes.close()

    async def _restart(self) -> None:
        """A clean end, and a new beginning."""
        self._is_up.clear()
        await self._close_host()
        await self._start_host()

    async def _close_host(self) -> None:
        life = self._life
        assert life is not None
        self._open.clear()
        closing = self._loop.start_in(life.place, self._closing(life), name="closing")
        done, _ = await asyncio.wait([closing], timeout=CLOSE_MAX_S)
        if not done:
            raise LawBrokenError(self._loop.picture("closing does not end"))
        closing.result()
        life.is_dead = True
        if not await self._loop.kill(life.place):
            raise LawBrokenError(self._loop.picture("a host that is closed goes on"))

    async def _closing(self, life: _Life) -> None:
        """As a gateway does it."""
        life.hall.close()
        for workspace, inbox in life.inboxes.items():
            life.desks[workspace].close()
            await inbox.close()
        await life.lanes.close()
        await life.store.close()

    async def _reopen(self) -> None:
        """One session is closed, and opened again in the same process."""
        life, owner = self._life, self.dice.one(self.world.owners)
        assert life is not None
        if owner not in self._open:
            return
        self._open.discard(owner)
        life.desks[owner.workspace].dismiss(owner)
        await asyncio.sleep(self.dice.span(300))
        if not life.is_dead:
            self.laws.void(owner)
            await self._loop.start_in(life.place, self._open_session(life, owner), name="opening a session")

    # ---- those who want something ----

    async def _client(self, owner: Owner) -> None:
        while self._left[owner]:
            await asyncio.sleep(self.dice.span(self.world.gap_ms))
            await self._is_up.wait()
            life = self._life
            if life is None or life.is_dead or owner not in self._open:
                await asyncio.sleep(0.01)
                continue
            for _ in range(min(self._left[owner], self.dice.rng.randint(1, self.world.burst))):
                self._left[owner] -= 1
                self._ask(life, owner)
            self._loop.start_in(life.place, self._meddle(life, owner), name="meddling")

    def _ask(self, life: _Life, owner: Owner) -> None:
        self._numbers += 1
        task_id, errand = f"t-{self._numbers}", self.world.errand(self.dice.rng, owner)
        self.laws.errands[task_id] = errand
        self.say("order", task_id, f"{errand.effect} {errand.lane} {errand.command} {errand.labels} {errand.sticky}")
        order = TaskOrder(
            owner=owner,
            task_id=task_id,
            lane=errand.lane,
            command_type=errand.command,
            payload={"n": self._numbers},
            timeout_ms=errand.timeout_ms,
            lease_ms=errand.lease_ms,
            effect=errand.effect,
            key=f"lw-{task_id}",
            labels=errand.labels,
            sticky=errand.sticky,
            sticky_ms=errand.sticky_ms,
        )
        self._loop.start_in(life.place, self._post(life, order), name=f"posting {task_id}")

    async def _post(self, life: _Life, order: TaskOrder) -> None:
        desk = life.desks[order.owner.workspace]
        try:
            await desk.post(order)
        except (LanewayError, DiskFailedError):
            return
        self._watch(life, order.task_id, desk)

    def _watch(self, life: _Life, task_id: str, desk: TaskDesk) -> None:
        self._loop.start_in(life.place, self._outcome(life, task_id, desk), name=f"waiting for {task_id}")

    async def _outcome(self, life: _Life, task_id: str, desk: TaskDesk) -> None:
        try:
            end = await desk.outcome(task_id)
        except (LanewayError, DiskFailedError):
            return
        row = self.laws.row_of(task_id)
        if life.is_dead:
            return
        if row is None or row.live or (row.state != end.state and end.state != "unknown"):
            self._break(f"whoever waits for {task_id} hears {end.state}, and the disk says {row}")

    async def _meddle(self, life: _Life, owner: Owner) -> None:
        """What a session and its people do with tasks that are out."""
        desk, dice = life.desks[owner.workspace], self.dice
        try:
            if dice.happens("poll"):
                await desk.hand_out(owner)
            shown = desk.tasks(owner)
            if shown and dice.happens("withdraw"):
                desk.withdraw(dice.one(shown)["task_id"], "nobody wants it")
            shown = desk.tasks(owner)
            if shown and dice.happens("host_completes"):
                await desk.complete_by_host(dice.one(shown)["task_id"], ExternalTaskResult(result="by hand"))
            for task in desk.tasks(owner):
                desk.why(task["task_id"])
        except (LanewayError, DiskFailedError):
            return

    # ---- frames ----

    async def _answer(self, link: str, frame: str) -> str:
        """What a host says to a frame, if there is a host."""
        life = self._life
        if life is None or life.is_dead or not life.is_up:
            raise ConnectionRefusedError("simulated: there is no host")
        answering = self._loop.start_in(life.place, self._serve(life, link, frame), name=f"answering {link}")
        try:
            return await asyncio.shield(answering)
        except asyncio.CancelledError:
            here = asyncio.current_task()
            if here is not None and here.cancelling():
                answering.cancel()  # whoever asked has hung up
                raise
            raise ConnectionResetError("simulated: the host has died") from None

    async def _serve(self, life: _Life, link: str, frame: str) -> str:
        guest = self._guests[link]
        body = _read(frame)
        self.laws.heard(body)
        answer = await serve(life.hall.bound(guest), frame)
        if life.is_dead:
            raise ConnectionResetError("simulated: the host is dead")
        said = json.loads(answer)
        self.say(str(body.get("op")), link, _told(body, said))
        self.laws.answered(link, guest, body, said, life.hall)
        self._look()
        return answer

    # ---- workers ----

    def _link(self, name: str, guest: Guest, world: Any) -> Link:
        link = Link(name, world, self.dice, self._answer, self._loop)
        self._guests[name] = guest
        self._links.append(link)
        return link

    def _liar(self, name: str, tenant: str | None, world: Any) -> Liar:
        return Liar(name, tenant, self._link(name, Guest(f"token-{name}", tenant), world), self.world, self.laws)

    async def _keep(self, number: int, world: WorkerWorld) -> None:
        """One worker after another, until all is over."""
        born = 0
        while not self._is_over.is_set():
            born += 1
            place = f"{world.name}/{number}.{born}"
            link = self._link(place, Guest(f"token-{world.name}", world.tenant), world.link)
            worker = self._worker(world, link)
            running = self._loop.start_in(place, worker.run(), name=f"worker {place}")
            over = self._loop.create_task(self._is_over.wait(), name="sim over")
            is_killed = self.dice.happens("killed")
            is_mortal = is_killed or self.dice.happens("drains")
            lives_s = self.dice.span(self.world.gap_ms * self.world.tasks) if is_mortal else None
            await asyncio.wait([running, over], timeout=lives_s, return_when=asyncio.FIRST_COMPLETED)
            if not running.done() and is_killed and not over.done():
                self.say("kill", place)
                link.is_cut = True
            elif not running.done():
                self.say("drain", place)
                await worker.stop(timeout_ms=DRAIN_MS)
            over.cancel()
            if not await self._loop.kill(place):
                self._break(f"{place} does not end")
                return
            if not running.cancelled() and (error := running.exception()) is not None:
                self.say("dead", place, type(error).__name__)
                if not isinstance(error, LanewayError) or not world.link.chances:
                    self._break(f"{place} ended with {error!r}")
            await asyncio.sleep(self.dice.span(self.world.gap_ms) + 0.01)

    def _worker(self, world: WorkerWorld, link: Link) -> Worker:
        wall = [WALL_MS + self.dice.rng.randint(-JUMP_MS, JUMP_MS)]  # its clock may be an hour off

        async def work(task: ExternalTask) -> object:
            return await self._work(world, link, task, wall)

        env = HostEnv(
            clock=SimClock(wall, base_ms=self.dice.rng.randint(0, 1_000_000)),
            ids=SequentialIdGenerator(f"{link.name}-"),
            random=random.Random(f"{self.world.seed} {link.name}"),
        )
        return Worker(
            link.transport(),
            handlers=dict.fromkeys(world.commands, work),
            name=world.name,
            lanes=world.lanes,
            labels=world.labels,
            workspaces=world.workspaces,
            concurrency=world.width,
            wait_ms=world.wait_ms,
            lease_ms=world.lease_ms,
            host=env,
        )

    async def _work(self, world: WorkerWorld, link: Link, task: ExternalTask, wall: list[int]) -> object:
        dice, task_id = self.dice, task["task_id"]
        if link.is_cut:
            return None
        self.say("begin", link.name, f"{task_id} {task['attempt']}")
        self.laws.begin(link.name, task_id)
        if dice.happens("wall_jumps"):
            wall[0] += dice.rng.randint(-JUMP_MS, JUMP_MS)
        if dice.happens("reports"):
            task.progress_is("half", 50)
        lease_ms = world.lease_ms or self.laws.errands[task_id].lease_ms
        await asyncio.sleep(lease_ms * 3 / 1000 if dice.happens("late") else dice.span(self.world.work_ms))
        if dice.happens("raises"):
            raise ValueError("simulated")
        return ExternalTaskResult(success=not dice.happens("refuses"), result={"output": f"{task_id} at {link.name}"})

    # ---- the end ----

    async def _heal(self) -> None:
        self.say("heal")
        self.dice.honest = True
        until = self._loop.time() + HEALED_S
        await asyncio.sleep(1)  # what was asked for just now is not on the disk yet
        while live := self._live_rows():
            if self._loop.time() > until:
                raise LawBrokenError(f"stuck: not everything has ended {HEALED_S:.0f} s after healing: {live[:12]}")
            await asyncio.sleep(1)
            self._look()
            self._check_broken()

    def _live_rows(self) -> list[str]:
        rows = [f"{row.id} {row.state}" for row in self._disk.states.values() if row.live and row.kind == "task"]
        assert self._life is not None
        for name, inbox in self._life.inboxes.items():
            if not inbox.engine.journal.is_idle:
                rows.append(f"{name} is on its way to the disk")
            rows += [f"{task_id} in memory" for task_id in self._life.desks[name].board.live]
            rows += [f"{task_id} is being saved" for task_id in self._life.desks[name]._unsaved]
        return rows

    async def _end(self) -> None:
        """Everything has ended as it should, workers stop, and nothing is left of anybody."""
        for problem in self.laws.check_ends():
            self._break(problem)
        for row in self._disk.states.values():
            if row.kind == "task":
                decode_task(row)
        self._is_over.set()
        await asyncio.gather(*self._supervisors)
        life = self._life
        assert life is not None
        await asyncio.sleep(30)  # what is still on its way arrives
        for record in life.hall.workers():
            if record.waiting or record.holds():
                self._break(f"{record.name} is gone, waits {record.waiting} times and has {len(record.holds())} tasks")
        if life.hall._claimers or life.hall._waking:
            self._break(f"somebody waits in the hall, and nobody is there: {life.hall._claimers}")
        for name, desk in life.desks.items():
            if desk.board.next_due() is not None or desk.board._lines or desk._waiting:
                self._break(f"the desk of {name} waits for something")
        await self._close_host()
        left = [task.get_name() for task in self._loop.pending_tasks() if task.get_name() != "sim main"]
        if left:
            raise LawBrokenError(f"closing left tasks behind: {left}")


async def _no_turns(_turn: object) -> str | None:
    raise LawBrokenError("nobody has sent a message")


def _read(frame: str) -> dict[str, Any]:
    try:
        body = json.loads(frame)
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _told(body: dict[str, Any], answer: dict[str, Any]) -> str:
    """What a frame was about, and what was said to it, in a few words."""
    if not answer.get("ok"):
        return f"{body.get('task_id', '')} {answer['error']['code']}"
    if body.get("op") == "claim":
        return ",".join(lease["task"]["task_id"] for lease in answer["leases"])
    return f"{body.get('task_id', '')} {answer.get('wanted', '')}"
