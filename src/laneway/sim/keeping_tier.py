"""Tier `keeping`: the sessions of the tier `agent`, some of which are pruned, deleted, exported, moved and forked.

An operator does it while people talk, models answer, the store fails and processes die. The laws beyond those of
agents: a deleted session leaves no row, and no blob that nobody else names; what is pruned had ended, and every run
that is left replays; a message that was taken after a delete, or while a session was imported, is not erased by it; a
file is whole and comes back as the same file; a fork is there with the message by which it goes on, or not at all.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from laneway.agent import AsyncSession
from laneway.agent.forking import FORK
from laneway.agent.replays import history_of
from laneway.dialogue import ToolContext, ToolOutput
from laneway.errors import ArchiveError, LanewayError
from laneway.records import Effect
from laneway.rows import MessageRow, Owner
from laneway.runtime.archive import check_archive, export_session, import_into, import_session
from laneway.runtime.erasing import ERASING, delete_session, erase_all, is_below
from laneway.runtime.retention import HistoryLimits, Prunable, prune_workspace
from laneway.sim.agent_tier import CLOSE_MAX_S, STEPS_MAX, AgentRun, _Life
from laneway.sim.agent_world import AgentWorld, draw_agent_world
from laneway.sim.loop import SimLoop
from laneway.sim.mail_store import DiskFailedError
from laneway.sim.playing import play_to_end
from laneway.sim.shadow import LawBrokenError
from laneway.sim.trace import Outcome, Trace
from laneway.stores.memory import MemoryDisk, MemoryStore

__all__ = ("KeepingRun", "run_keeping_seed")

# The simulator is no user: it looks into the engine to compare.
# ruff: noqa: SLF001

HOLDER = "holder"  # a session that nobody talks to: it keeps the inbox open while others are closed
ACTS = ("prune", "prune", "export", "delete", "move", "fork", "fork", "import_twice")
FORKS_MAX = 4
TRIES = 50


def run_keeping_seed(seed: int, *, trace: Trace | None = None) -> Outcome:
    """Run the world of a seed; raise `SimFailedError` when a law is broken."""
    trace = trace or Trace()
    loop = SimLoop(seed=seed, max_steps=STEPS_MAX)
    run = KeepingRun(draw_agent_world(seed), trace, loop)
    return play_to_end(run, loop, trace, seed=seed, tier="keeping")


class _WatchedDisk(MemoryDisk):
    """A disk that tells what is erased from it."""

    def __init__(self, run: KeepingRun) -> None:
        super().__init__()
        self._run = run

    @property
    def last_seq(self) -> int:
        """The highest number that was given."""
        return self._last_seq

    def erase(self, owner: Owner, until_seq: int | None, limit: int) -> int:
        """Take away a slice, and tell which messages went."""
        drawer = self.drawers.get(owner)
        before = dict(drawer.messages) if drawer is not None else {}
        gone = super().erase(owner, until_seq, limit)
        self._run.erased(owner, until_seq, [row for name, row in before.items() if name not in self.messages])
        return gone


class _Watched:
    """A store in which somebody looks at what is there before a slice of it goes."""

    def __init__(self, store: Prunable, look: Callable[[], Awaitable[None]]) -> None:
        self._store = store
        self._look = look
        self.history = store.history
        self.load_session = store.load_session

    async def erase(self, owner: Owner, *, until_seq: int | None = None, limit: int = 1000) -> int:
        """Take away a slice, after somebody has looked."""
        await self._look()
        return await self._store.erase(owner, until_seq=until_seq, limit=limit)


class KeepingRun(AgentRun):
    """One world with an operator who prunes, deletes, moves and forks."""

    def __init__(self, world: AgentWorld, trace: Trace, loop: SimLoop) -> None:
        super().__init__(world, trace, loop)
        self._disk: _WatchedDisk = _WatchedDisk(self)
        self._rng = random.Random(f"keeping {world.seed}")  # of its own: people do what they do in the tier `agent`
        self._looks = random.Random(f"keeping looks {world.seed}")  # of its own: what an operator does stays the same
        self._forks: dict[str, int] = {}  # with the settings that they have
        self._gone: set[str] = set()  # messages that were erased as they may be
        self._asked: dict[str, int] = {}  # sessions that are to be erased: everything up to this number
        self.kept = 0  # what an operator has brought to its end

    async def _work(self, life: _Life, name: str, effect: Effect, context: ToolContext) -> ToolOutput:
        """Some say so much that it is kept as a blob, a few of them the same."""
        output = await super()._work(life, name, effect, context)
        long = self._rng.choice(("", "", f"{self._rng.randint(0, 3)} " * 4_000))
        return replace(output, text=f"{long}{output.text}")

    # ---- lives ----

    async def _open(self) -> None:
        self._is_up.clear()
        await super()._open()

    async def _open_session(self, number: int, name: str) -> None:
        if HOLDER not in self._life.sessions:
            await super()._open_session(0, HOLDER)
            for fork in self._forks:
                await self._open_again(fork)
        await super()._open_session(number, name)

    async def _host(self) -> None:
        keeper = self._loop.create_task(self._keep(), name="sim keeper")
        try:
            await super()._host()
            await keeper
        finally:
            keeper.cancel()

    async def _keep(self) -> None:
        rng = self._rng
        for _ in range(rng.choice((1, 3, 6, 10))):
            await asyncio.sleep(rng.randint(0, self.world.gap_ms * self.world.actions // 3) / 1000)
            await self._is_up.wait()
            act = rng.choice(ACTS)
            task = self._loop.create_task(self._keep_once(act), name=f"call {act}")
            task.add_done_callback(lambda ended, act=act: self._check_call(act, ended))  # type: ignore[misc]
            done, _ = await asyncio.wait([task], timeout=CLOSE_MAX_S)
            if not done and self.broken is None:
                self._break(self._loop.picture(f"{act} does not end"))

    async def _keep_once(self, act: str) -> None:
        life, name = self._life, self._rng.choice((*self.world.sessions, *self._forks))
        session = life.sessions.get(name)
        self.say("keep", act, name)
        if session is None or not hasattr(session, "host"):
            return
        try:
            await getattr(self, f"_{act}")(session)
            self.kept += 1
            self.say("kept", act, name)
        except ArchiveError as error:
            self._break(f"{act} of {name} made a file that is none: {error}")
        except (LanewayError, DiskFailedError) as error:
            self.say("not kept", act, f"{name} {type(error).__name__}")
        finally:
            if session._closed and life is self._life and not life.is_dead:
                await self._reopen(session)

    async def _reopen(self, session: AsyncSession) -> None:
        life, name = self._life, session.session_id
        await self._is_up.wait()
        if life is self._life and life.sessions.get(name) is session and session._closed:
            await session.close()
            await self._open_again(name)

    async def _open_again(self, name: str) -> None:
        await super()._open_session(self._number_of(name), name)

    def _number_of(self, name: str) -> int:
        """Which of the drawn settings a session has: a fork those of the session it comes from."""
        return self._forks.get(name, 0) if name not in self.world.sessions else self.world.sessions.index(name)

    # ---- what an operator does ----

    async def _prune(self, session: AsyncSession) -> None:
        rng = self._rng
        limits = HistoryLimits(
            max_runs=rng.choice((None, 0, 1, 3)),
            max_age_ms=rng.choice((None, 0, 500, 5_000)),
            spared_ms=rng.choice((0, 0, 1_000)),
        )
        if self._looks.random() < 0.7:  # else the model hears of nearly everything, and little may go
            await session.command("/new")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_MAX_S / 4):
                    await session.send("anew")
        assert self._store is not None
        now_ms = session.host.env.clock.wall_ms()
        store = _Watched(self._store, lambda: self._look(session))
        await prune_workspace(store, session.owner.workspace, limits, now_ms=now_ms)
        self._check_blobs()

    async def _look(self, session: AsyncSession) -> None:
        """A slice is about to go, and somebody reads it: an old run, or all of a session that is opened again."""
        turns = self._turns_of(session)
        what = self._looks.choice(("nothing", "explain", "open"))
        try:
            if what == "open":
                await self._away(session, 0, 0)
                await session.ready()
                await session.history()
            elif what == "explain" and turns:
                await session.explain_run(self._looks.choice(turns))
        except (LanewayError, DiskFailedError) as error:
            self.say("not seen", what, f"{session.session_id} {type(error).__name__}")

    async def _delete(self, session: AsyncSession) -> None:
        owner, engine = session.owner, session.host.inbox.engine
        engine.check_session(owner)
        self._asked[owner.session] = self._disk.last_seq
        await delete_session(engine, owner, actor="sim", let_go=session.close)
        self._check_erased(owner)

    async def _export(self, session: AsyncSession) -> list[bytes]:
        assert self._store is not None
        lines = [line async for line in export_session(self._store, session.owner, at_ms=1)]
        check_archive(lines)
        other = MemoryStore()
        await other.open()
        await import_session(other, lines, session.owner)
        if [line async for line in export_session(other, session.owner, at_ms=1)] != lines:
            self._break(f"the file of {session.session_id} is another one when it is exported again")
        return lines

    async def _move(self, session: AsyncSession) -> None:
        """Away, and back again."""
        lines = await self._export(session)
        await self._delete(session)
        if self._rng.random() < 0.5:  # somebody has opened it meanwhile
            await self._reopen(session)
            session = self._life.sessions[session.session_id]
            await session.ready()
            await session.history()
        self._asked[session.session_id] = self._disk.last_seq
        await import_into(session.host.inbox.engine, lines, session.owner, let_go=session.close)
        if self._life.sessions.get(session.session_id) is session:
            await self._reopen(session)

    async def _import_twice(self, session: AsyncSession) -> None:
        """What is there already is refused, and stays as it is."""
        lines = await self._export(session)
        if session.owner not in session.host.inbox.engine.doomed:
            self._asked.pop(session.session_id, None)  # nothing of it may go
        try:
            await import_into(session.host.inbox.engine, lines, session.owner, let_go=session.close)
        except LanewayError:
            return
        self._break(f"{session.session_id} is there, and was imported")

    async def _fork(self, session: AsyncSession) -> None:
        turns = self._turns_of(session)
        if not turns or len(self._forks) >= FORKS_MAX:
            return
        store = session.host.inbox.engine.store
        history = await history_of(store.history, session.owner, self._rng.choice(turns))
        step = self._rng.choice((None, self._rng.randint(1, len(history.steps) + 1)))
        name = f"f{len(self._forks)}"
        self._forks[name] = self._number_of(session.session_id)
        life = self._life
        fork = await session.fork(history, step, prompt=self._rng.choice(("", "more")), session_id=name)
        if life is self._life and name not in life.sessions:
            life.sessions[name] = fork

    def _turns_of(self, session: AsyncSession) -> list[str]:
        states = self._disk.states.values()
        return [row.id for row in states if row.kind == "turn" and row.session == session.key[1]]

    # ---- laws ----

    def erased(self, owner: Owner, until_seq: int | None, rows: list[MessageRow]) -> None:
        """Messages were erased: by a prune if there is a number, else with all of their session."""
        root = next((name for name in self._asked if owner.session == name or is_below(owner.session, name)), None)
        for row in rows:
            if until_seq is not None:
                if row.live:
                    self._break(f"{row.id} of {owner.session} was pruned, and has not ended")
            elif root is None:
                self._break(f"{row.id} of {owner.session} was erased, and nobody has asked for it")
            elif row.seq > self._asked[root]:
                continue  # it came later: if somebody was told that it was taken, that is a lie
            self._gone.add(row.id)

    def _check_erased(self, owner: Owner) -> None:
        """Nothing of a session is left."""
        left = [
            each
            for each in self._disk.drawers
            if each.session == owner.session or is_below(each.session, owner.session)
        ]
        if left:
            drawer = self._disk.drawers[left[0]]
            kinds = sorted({key.kind for key in drawer.states})
            self._break(f"{left} was deleted, and has {len(drawer.messages)} messages, states {kinds}")
        self._check_blobs()

    def _check_blobs(self) -> None:
        """Every blob is there that is named, and nobody keeps one that is not."""
        named: dict[str, str] = {}
        for row in self._disk.states.values():
            if row.kind in {"round", "record", "compaction", "intent"} and '"b":[' in row.body:
                named.update({f"{row.tenant}:{each}": row.id for each in json.loads(row.body)["b"]})
        there = {key.id for key in self._disk.states if key.kind == "blob"}
        if missing := set(named) - there:
            self._break(f"{named[min(missing)]} names a blob that is not there")

    def _check_forks(self) -> None:
        for row in self._disk.states.values():
            if row.kind == FORK:
                message = json.loads(row.body)["message_id"]
                if message not in self._disk.messages and message not in self._gone:
                    self._break(f"{row.session} is a fork, and {message} by which it goes on is not there")

    # ---- the end ----

    async def _heal(self) -> None:
        self.dice.honest = True
        for name in self._forks:  # one that a fault has hidden from whoever asked for it
            if name not in self._life.sessions:
                await self._open_again(name)
        for name, session in list(self._life.sessions.items()):
            await self._finish(name, session)
        await super()._heal()

    async def _finish(self, name: str, session: AsyncSession) -> None:
        """A delete that has failed is asked for again."""
        for _ in range(TRIES):
            engine = self._life.sessions[HOLDER].host.inbox.engine
            if not any(owner.session == name for owner in engine.doomed):
                break
            await self._life.sessions[HOLDER].ready()
            await engine.reloaded(session.owner)
            await delete_session(engine, session.owner, actor="sim", let_go=session.close)
        if self._life.sessions[name]._closed:
            await self._life.sessions[name].close()
            await self._open_again(name)

    async def _end(self) -> None:
        self.accepted = {
            message: owner
            for message, owner in self.accepted.items()
            if message in self._disk.messages or message not in self._gone
        }
        self._check_forks()
        self._check_blobs()
        self._check_broken()
        await super()._end()
        await self._erase_everything()

    async def _erase_everything(self) -> None:
        """When all sessions were deleted, nothing of them is left."""
        store = MemoryStore(self._disk)
        await store.open()
        owners = {owner for owner in self._disk.drawers if owner.session}
        for owner in sorted(owners):
            self._asked[owner.session] = self._disk.last_seq
        for owner in sorted(owners):
            await erase_all(store, owner)
        await store.close()
        self._check_broken()
        rows: list[Any] = [*self._disk.messages.values(), *self._disk.states.values()]
        left = [row for row in rows if getattr(row, "session", "") or getattr(row, "kind", "") in {"blob", ERASING}]
        if left:
            raise LawBrokenError(f"everything was deleted, and {len(left)} rows are left: {left[:5]}")
