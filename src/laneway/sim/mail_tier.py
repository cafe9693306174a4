"""Tier `mail`: the real `Inbox`, through the door that users take, on a simulated loop and over a store that fails.

Phase one, safety: senders and operators act, handlers do what they like, the store fails, processes die and others go
on from the rows that were written. Phase two, liveness: everything is healed, and every message has to end. After each
step memory is held against what a restart would load.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from laneway.errors import ClosedError, FencedError, LanewayError, StoreUnavailableError
from laneway.events import SessionEvent
from laneway.inbox import Inbox
from laneway.lanes import Lanes
from laneway.mail import Final
from laneway.rows import Owner, StateKey
from laneway.sim.loop import SimLoop
from laneway.sim.mail_agents import Agents
from laneway.sim.mail_books import Books, Letter, Life
from laneway.sim.mail_checks import end_problems, leftovers
from laneway.sim.mail_mirror import differences, live_rows
from laneway.sim.mail_people import CallLostError, People
from laneway.sim.mail_store import DiskFailedError, SimStore
from laneway.sim.mail_witness import MailWitness
from laneway.sim.mail_world import MailDice, MailWorld, SimClock, draw_mail_world
from laneway.sim.playing import LivingRun, nothing, play_to_end
from laneway.sim.shadow import LawBrokenError
from laneway.sim.trace import Outcome, Trace
from laneway.stores.memory import MemoryDisk
from laneway.system import HostEnv, SequentialIdGenerator

__all__ = ("MailRun", "run_mail_seed")

# The simulator is no user: it looks into the engine to compare, and pulls the plug.
# ruff: noqa: SLF001

T = TypeVar("T")
STEPS_MAX = 400_000
CALL_MAX_S = 900.0  # a call to the inbox may take as long as a slow store makes it, and no longer
HEALED_S = 600.0
CLOSE_MAX_S = 120.0
LOOK_S = 1.0
STUCK_SHOWN = 12
ENDING_KINDS = ("turn", "child", "approval", "schedule")  # of state rows: those that end
WALL_MS = 1_700_000_000_000


def run_mail_seed(seed: int, *, trace: Trace | None = None) -> Outcome:
    """Run the world of a seed; raise `SimFailedError` when a law is broken."""
    trace = trace or Trace()
    loop = SimLoop(seed=seed, max_steps=STEPS_MAX)
    run = MailRun(draw_mail_world(seed), trace, loop)
    return play_to_end(run, loop, trace, seed=seed, tier="mail")


class MailRun(LivingRun):
    """One world, one disk, one inbox after the other."""

    def __init__(self, world: MailWorld, trace: Trace, loop: SimLoop) -> None:
        super().__init__(trace, loop)
        self.world = world
        self.dice = MailDice(world)
        self.books = Books(world)
        self.wall = [WALL_MS]
        self._disk = MemoryDisk()
        self._witness = MailWitness(self._disk, fail=self._break, say=self.say)
        self._ids = SequentialIdGenerator()
        self._agents = Agents(world, self.dice, self.books, self._disk, self.guard)
        self._people = People(world, self.dice, self.books, self._disk, self)
        self._lives = 0
        self._life = Life(0)
        self._inbox: Inbox | None = None
        self._store: SimStore | None = None
        self._is_up = asyncio.Event()
        self._calls: dict[asyncio.Task[Any], None] = {}
        self._waits: dict[asyncio.Task[None], Letter] = {}
        self._old: list[asyncio.Task[None]] = []

    # ---- what everybody uses ----

    @property
    def starts(self) -> int:
        """How much was begun."""
        return self.books.starts

    @property
    def faults(self) -> int:
        """How much went wrong on purpose."""
        return self.dice.faults

    @property
    def inbox(self) -> Inbox:
        """The inbox that is open now."""
        if self._inbox is None:
            raise CallLostError
        return self._inbox

    def guard(self, check: Callable[[], object]) -> None:
        """Note a broken law; the run ends soon."""
        try:
            check()
        except LawBrokenError as error:
            self._break(str(error))

    async def call(
        self, what: str, call: Callable[[Inbox], Coroutine[Any, Any, T]], patience: float | None = None
    ) -> T:
        """Call the inbox that is open now; `CallLostError` when its process dies meanwhile, or patience ends."""
        while self._inbox is None or not self._is_up.is_set():
            await self._is_up.wait()
        task: asyncio.Task[T] = self._loop.create_task(call(self._inbox), name=f"call {what}")
        self._calls[task] = None
        done, _ = await asyncio.wait([task], timeout=CALL_MAX_S if patience is None else patience)
        if not done and patience is not None:
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=CALL_MAX_S)
        self._calls.pop(task, None)
        if not done:
            self._break(f"{what} has not returned after {CALL_MAX_S} s: {self._loop.picture('hangs')}")
            task.cancel()
            raise CallLostError
        if task.cancelled():
            raise CallLostError
        self.check_mirror()
        return task.result()

    def watch(self, letter: Letter) -> None:
        """Wait for the end of a message, for as long as the process lives."""
        inbox, life = self._inbox, self._life
        if inbox is None or life.is_dead:
            return  # the process that gave the receipt is gone

        async def wait() -> None:
            try:
                final = await inbox.wait(letter.id)
            except (ClosedError, StoreUnavailableError, FencedError):
                return
            self.guard(lambda: self._check_final(letter, final))

        self._waits[self._loop.create_task(wait(), name=f"wait {letter.id}")] = letter

    def _check_final(self, letter: Letter, final: Final) -> None:
        row = self._disk.messages[letter.id]
        if not final.disposition.is_final:
            raise LawBrokenError(f"wait({letter.id}) returned {final.disposition}")
        if (final.disposition, final.outcome or "") != (row.state, row.outcome):
            raise LawBrokenError(f"wait({letter.id}) says {final}, the store {row.state} {row.outcome}")
        if final.answer is not None and final.outcome == "succeeded":
            record = self.books.turns.get(final.turn_id or "")
            if record is None or record.answer != final.answer:
                raise LawBrokenError(f"wait({letter.id}) says {final.answer!r}, which its handler did not answer")

    def check_mirror(self) -> None:
        """At a quiet moment memory equals what a restart would load."""
        inbox = self._inbox
        if inbox is None or self._life.is_closing or self.broken is not None:
            return
        engine = inbox._engine
        if not engine.is_open or not engine.journal.is_idle or engine._reloads or engine._lost is not None:
            return
        rows = live_rows(self._disk, self.world.workspace)
        for difference in differences(engine.kernel, rows, now=engine.now()):
            self._break(f"memory differs from the store: {difference}")
            return
        stored = {row.id: row.body for row in rows.states if row.kind == "schedule"}
        known = {entry.schedule.id: entry.to_row().body for entry in inbox._clockwork._entries.values()}
        if stored != known:
            self._break(f"schedules differ: {known} in memory, {stored} in the store")

    # ---- the run ----

    def give_up(self) -> None:
        """The run has failed: handlers that hang shall let go."""
        self.dice.honest = True

    async def play(self) -> None:
        """Live, heal, end, close; then nothing may be left."""
        self.say("world", str(self.world.seed), self.world.describe())
        await self._open()
        await self._live()
        self._check_broken()
        await self._heal()
        self._check_broken()
        for problem in end_problems(self.books, self._disk, lives=self._lives):
            raise LawBrokenError(problem)
        await self._end()
        self._check_broken()

    async def _live(self) -> None:
        tasks = [self._loop.create_task(self._client(), name=f"sim client-{n}") for n in range(self.world.clients)]
        tasks.append(self._loop.create_task(self._operator(), name="sim operator"))
        tasks.append(self._loop.create_task(self._looker(), name="sim looker"))
        ruler = self._loop.create_task(self._fate(), name="sim fate")
        fail = self._loop.create_task(self._failed.wait(), name="sim failed")
        everybody = self._loop.create_task(asyncio.wait(tasks[:-1]), name="sim everybody")
        await asyncio.wait([everybody, fail], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([ruler], timeout=0 if self.broken else None)
        for task in (*tasks, ruler, fail, everybody):
            task.cancel()
        for result in await asyncio.gather(*tasks, ruler, fail, everybody, return_exceptions=True):
            if isinstance(result, Exception):
                raise result

    async def _client(self) -> None:
        for _ in range(self.world.actions):
            await asyncio.sleep(self.dice.span(self.world.gap_ms))
            await self._people.send()

    async def _operator(self) -> None:
        for _ in range(self.world.actions):
            await asyncio.sleep(self.dice.span(self.world.gap_ms * 2))
            await self._is_up.wait()
            await self._people.meddle()

    async def _looker(self) -> None:
        while True:
            await asyncio.sleep(self.dice.span(self.world.gap_ms) + 0.001)
            self.check_mirror()

    async def _fate(self) -> None:
        """Processes die, are replaced, or are closed and opened again."""
        for peril in ("crash", "takeover", "restart") * 2:
            await asyncio.sleep(self.dice.span(self.world.gap_ms * self.world.actions // 2))
            if self.broken is None and self.dice.happens(peril):
                self.say(peril, f"life-{self._lives}")
                try:
                    await getattr(self, f"_{peril}")()
                    await self._open()
                except Exception as error:
                    self._break(f"{peril} of life {self._lives} raised {error!r}")
                    raise

    # ---- lives ----

    async def _open(self) -> None:
        """A new process opens an inbox on what is on the disk."""
        self._lives += 1
        self._life = life = Life(self._lives)
        for _ in range(1_000):
            clock = SimClock(self.wall, base_ms=self.dice.rng.randint(0, 10_000_000))
            host = HostEnv(clock=clock, ids=self._ids, random=self.dice.rng)
            store = SimStore(self._disk, self.dice, slow_ms=self.world.slow_ms, witness=self._witness)
            inbox = await self._new_inbox(life, store, host)
            try:
                await inbox.__aenter__()
                break
            except (StoreUnavailableError, DiskFailedError):
                if self.world.shares_lanes:
                    await inbox.lanes.close()
                await asyncio.sleep(0.1)
        else:
            raise LawBrokenError("an inbox cannot be opened")
        self.say("open", f"life-{self._lives}")
        self._inbox, self._store = inbox, store
        if self.dice.rng.random() < 0.5:
            self._listen(inbox)
        self._is_up.set()
        self.check_mirror()

    async def _new_inbox(self, life: Life, store: SimStore, host: HostEnv) -> Inbox:
        options, world = self.world.options, self.world
        lanes: Lanes | None = None
        if world.shares_lanes:
            lanes = Lanes({"main": options["concurrency"]}, host=host, unknown="create")
            await lanes.__aenter__()
        return Inbox(
            self._agents.handler(life), store=store, host=host, lanes=lanes, workspace=world.workspace, **options
        )

    def _listen(self, inbox: Inbox) -> None:
        """What is published was written before."""
        events = inbox.subscribe(buffer_max=1_000_000)

        async def listen() -> None:
            async for event in events:
                if isinstance(event, SessionEvent) and event.seq:
                    owner = Owner(event.tenant, event.workspace, event.session_key)
                    row = self._disk.drawers[owner].events.get(event.seq) if owner in self._disk.drawers else None
                    if row is None or row.type != event.type:
                        self._break(f"{event} was published, and is not in the store")

        self._old.append(self._loop.create_task(listen(), name="call listen"))

    def _take_down(self) -> tuple[Inbox, Life]:
        inbox, life, store = self.inbox, self._life, self._store
        assert store is not None
        self._is_up.clear()
        self._inbox = None
        store.cut()
        return inbox, life

    async def _crash(self) -> None:
        """The process dies: nothing of it runs any more, and nothing it began is finished."""
        inbox, life = self._take_down()
        life.is_dead = True
        self._doubt_children(life)
        await self._bury(inbox)

    def _doubt_children(self, life: Life) -> None:
        """A process has ended: nobody knows of sub-agents whose start was not written, or who waited for them."""
        for child in self.books.children.values():
            if child.life is life and (child.awaited or StateKey("child", child.id) not in self._disk.states):
                child.doubtful = True

    async def _bury(self, inbox: Inbox) -> None:
        """Stop what a dead process would no longer do."""
        engine = inbox._engine
        for thing in (engine, inbox._clockwork):
            if thing._timer is not None:
                thing._timer.cancel()
            thing._arm = nothing  # type: ignore[method-assign]  # a dead process has no timers
        await self._end_tasks()
        self._calls.clear()
        self._waits.clear()
        await inbox.lanes.close()

    async def _takeover(self) -> None:
        """Another process takes the store; this one lives on for a while and must not matter any more."""
        inbox, life = self._take_down()
        life.is_lost = True
        self._doubt_children(life)
        self._old.append(self._loop.create_task(self._close_lost(inbox), name="sim lost"))

    async def _close_lost(self, inbox: Inbox) -> None:
        await asyncio.sleep(self.dice.span(5_000))
        await self._close(inbox)

    async def _restart(self) -> None:
        """A clean end: turns get their time, what has not begun stays."""
        inbox, life = self.inbox, self._life
        life.is_closing = True
        self._is_up.clear()
        await self._close(inbox)
        life.is_dead = True
        self._inbox = None
        store = self._store
        assert store is not None
        store.cut()
        self._doubt_children(life)

    async def _close(self, inbox: Inbox) -> None:
        closing = self._loop.create_task(inbox.close(), name="sim closing")
        done, _ = await asyncio.wait([closing], timeout=CLOSE_MAX_S)
        if not done:
            self._break(self._loop.picture("closing does not end"))
            closing.cancel()
            return
        try:
            closing.result()
        except (LanewayError, DiskFailedError) as error:
            self.say("close", "", f"{type(error).__name__}: {error}")
        if self.world.shares_lanes:
            await inbox.lanes.close()

    # ---- the end ----

    async def _heal(self) -> None:
        self.say("heal")
        self.dice.honest = True
        await self._is_up.wait()
        inbox = self.inbox
        until = self._loop.time() + HEALED_S
        while True:
            with contextlib.suppress(StoreUnavailableError):  # a session is still being loaded again
                await self._set_free(inbox)
            self.check_mirror()
            self._check_broken()
            if self._is_quiet(inbox):
                break
            if self._loop.time() > until:
                raise LawBrokenError(self._stuck(inbox))
            await asyncio.sleep(LOOK_S)
        for problem in leftovers(inbox):
            raise LawBrokenError(f"everything has ended, and this is left: {problem}")

    async def _set_free(self, inbox: Inbox) -> None:
        """Nothing waits for people any more."""
        with contextlib.suppress(LanewayError):
            inbox.lanes.reopen()
            inbox.lanes.resume("main")
            inbox.lanes.resume(f"{self.world.workspace}/main")
        kernel = inbox._engine.kernel
        for item in list(kernel.items.values()):
            if item.state == "held":
                await inbox.release(item.id)
        for tenant in sorted({tenant for tenant, _ in self.world.sessions}):
            for approval in inbox.approvals(tenant=tenant):
                await inbox.deny(approval.id)
            for schedule in inbox.schedules(tenant=tenant):
                await inbox.unschedule(schedule.id)

    def _is_quiet(self, inbox: Inbox) -> bool:
        self._waits = {task: letter for task, letter in self._waits.items() if not task.done()}
        return not any(self._disk_live()) and not any(leftovers(inbox)) and not self._waits and not self._calls

    def _disk_live(self) -> list[str]:
        rows = live_rows(self._disk, self.world.workspace)
        return [row.id for row in rows.messages] + [row.id for row in rows.states if row.kind in ENDING_KINDS]

    def _stuck(self, inbox: Inbox) -> str:
        lines = [f"live in the store: {each}" for each in self._disk_live()]
        lines += [f"in memory: {each}" for each in leftovers(inbox)]
        lines += [f"wait({letter.id}) of {letter.tag} hangs" for letter in self._waits.values()]
        lines += [f"call {task.get_name()} hangs" for task in self._calls]
        for tenant, session in self.world.sessions:
            for each in inbox.pending(session, tenant=tenant):
                lines.append(f"{each.id} is {each.state} in {session}: {each.reason}")
        shown = "\n  ".join(lines[:STUCK_SHOWN])
        return f"stuck: not everything has ended {HEALED_S:.0f} s after everything was healed\n  {shown}"

    async def _end(self) -> None:
        """Close for good: no task and no timer stays, and a new inbox finds nothing to do."""
        for task in self._old:
            if task.get_name() == "sim lost":
                await task
        await self._restart()
        for task in self._old:
            task.cancel()
        await asyncio.wait(self._old) if self._old else None
        inside = sum(len(records) for records in self.books.inside.values())
        left = [task.get_name() for task in self._loop.pending_tasks()]
        if not inside and left != ["sim main"]:
            raise LawBrokenError(self._loop.picture("closing left tasks behind"))
        if not inside and self._loop.pending_timers():
            raise LawBrokenError(f"closing left {self._loop.pending_timers()} timers behind")
