"""A workspace: a folder, the agent that works there, and its sessions, which are opened when they have something to do.

A session is opened when a message has come for it, or when somebody asks about its runs. At most `sessions_max` are
held in memory: beyond that the ones that have been idle longest are closed, and opened again when they are needed. It
may leave before that, when somebody asks for it or after a time of rest: `resting` is about those.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
from collections import Counter, OrderedDict
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from laneway.agent.agent import AsyncAgent
from laneway.agent.budgeting import check_budgets
from laneway.agent.files import arguments_of
from laneway.agent.host import Host
from laneway.agent.subagents import root_of
from laneway.config import inbox_options, lane_configs
from laneway.config.files import WORKSPACE_FILES
from laneway.errors import ClosedError, LanewayError, NotFoundError, UnavailableError, describe
from laneway.gateway.hub import Hub
from laneway.gateway.recency import Recency
from laneway.gateway.resting import Key, Rest
from laneway.gateway.tool_lanes import ToolLanes
from laneway.rows import Owner
from laneway.runtime.archive import import_into
from laneway.runtime.erasing import delete_session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Mapping

    from laneway.agent.session import AsyncSession
    from laneway.agent_events import AgentEvent
    from laneway.gateway.settings import WorkspaceSpec
    from laneway.inbox import Inbox
    from laneway.lanes import Lanes
    from laneway.ports import Store
    from laneway.records import LaneConfig
    from laneway.runtime.task_hall import TaskHall
    from laneway.spending import Budget
    from laneway.system import HostEnv

__all__ = ("Workspace", "fair")

_log = logging.getLogger("laneway.gateway")

REOPEN_DELAY_S = 5


class Workspace:
    """One workspace of a gateway."""

    def __init__(
        self,
        spec: WorkspaceSpec,
        *,
        store: Store,
        lanes: Lanes,
        hall: TaskHall,
        env: HostEnv,
        sessions_max: int,
        passivate_after_ms: int | None = None,
        close_timeout_ms: int,
        environ: Mapping[str, str],
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self._store = store
        self._sessions_max = sessions_max
        options: dict[str, Any] = {**inbox_options(spec.agent.settings)}
        del options["on_crash"]  # runs go on: that is what checkpoints are for
        options.update(workspace=spec.name, commands=True, close_timeout_ms=close_timeout_ms)
        self.host = Host(store, env, key=self, lanes=lanes, hall=hall, **options)
        own = [str(spec.folder / name) for name in WORKSPACE_FILES]
        self.host.fixed = frozenset(os.path.realpath(each).casefold() for each in (*spec.files, *own))
        self.hub = Hub(spec.name)
        self.recency = Recency(lambda tenant: store.history.last_events(tenant, spec.name), env.clock.wall_ms)
        self.tool_lanes = ToolLanes()
        given = arguments_of(spec.agent, environ)
        given.pop("tenant_id", None)  # whose a session is, the token of its caller says
        given.update(messages=None, mode=None, session_store=store)  # the inbox of the host goes by these
        if spec.model is not None:
            given["model"] = spec.model
        self.agent = AsyncAgent(host=env, **given)
        self.agent.home = self.host
        self._sessions: OrderedDict[tuple[str, str], AsyncSession] = OrderedDict()  # least recently used first
        self._used: Counter[tuple[str, str]] = Counter()  # by how many
        self._opening: dict[tuple[str, str], asyncio.Task[AsyncSession]] = {}
        self._closing: dict[tuple[str, str], asyncio.Task[None]] = {}
        self._leaving: dict[Key, AsyncSession] = {}
        self._close_timeout_ms = close_timeout_ms
        self.labelling = asyncio.Lock()
        """Held by whoever changes the labels of a session: one after the other."""
        self._later: set[asyncio.TimerHandle] = set()
        self.rest = Rest(self, env.clock, passivate_after_ms)
        self._context = copy_context()
        self._now = env.clock.monotonic_ms
        self._wall = env.clock.wall_ms
        self.opened_at = 0
        """When it was opened, by the clock that never goes back; `opened_ms` is the same by that on the wall."""
        self.opened_ms = 0
        self.unopened: dict[tuple[str, str], int] = {}
        """Sessions that are being opened, or could not be: since when."""
        self.observers: list[Callable[[Owner, AgentEvent], None]] = []
        """Hear of every event of every run, at once. They must not raise."""
        self._is_closed = False

    @property
    def inbox(self) -> Inbox:
        """The inbox of its sessions."""
        return self.host.inbox

    async def open(self) -> None:
        """Begin: what an earlier process has left goes on."""
        self._context = copy_context()
        engine = self.inbox.engine
        self._set_up_lanes()
        self.hub.told_seq = self._store.next_seq()  # what the store has by now is the past
        self.opened_at, self.opened_ms = self._now(), self._wall()
        engine.listen(self.hub.on_mail_event)
        engine.listen(self.recency.on_mail_event)
        engine.on_unattended = self.wake
        self.rest.open()
        engine.compact = self._compact
        budgets = cast("tuple[Budget, ...]", self.agent.options.budgets or ())  # the options have made them so
        self.check_budgets(budgets)
        self.host.guests.add(self)
        try:
            await self.host.open()
        except BaseException:
            self.host.guests.discard(self)
            raise
        self.host.budgets.adopt(budgets)
        self._say_cleared(budgets)
        for owner in list(engine.kernel.boxes):
            if self._is_owed(owner):
                self.wake(owner)

    def _say_cleared(self, budgets: Iterable[Budget]) -> None:
        """A budget that was cleared while an earlier server ran limits nobody, whatever the configuration says."""
        for each in budgets:
            if each.key not in self.host.budgets.budgets.rules:
                _log.warning(
                    "budget %r of the configuration stays away: it was cleared; `laneway budget set` brings it back",
                    each.name,
                )

    def check_budgets(self, budgets: Iterable[Budget]) -> None:
        """Refuse budgets in money for a model whose price nobody knows."""
        agent = self.agent
        for each in budgets:
            check_budgets((each,), agent._model(agent.options.model), agent._model)  # noqa: SLF001 - its own agent

    def _is_owed(self, owner: Owner) -> bool:
        """Whether a session has a call in the background whose end nobody can tell but the session itself."""
        box = self.inbox.engine.kernel.boxes.get(owner)
        children = box.children.values() if box is not None else ()
        return any(child.live and child.is_call for child in children)

    def _set_up_lanes(self) -> None:
        """The lanes of this workspace are as wide as its own file says; those of all are as the first one says."""
        if self.name == "default":
            return
        registry = self.host.lanes.engine.kernel.registry
        for name, config in fair(lane_configs(self.spec.agent.settings)).items():
            lane = f"{self.name}/{name}"
            if lane not in registry.lanes:
                registry.configure(lane, config, now=self.inbox.engine.now())

    async def close(self) -> None:
        """Give what runs its time, leave the rest in the store."""
        self._is_closed = True
        for timer in self._later:
            timer.cancel()
        self.rest.close()
        self.hub.close()
        for task in list(self._opening.values()):
            task.cancel()
        for session in self._leaving.values():
            session.hurry(self._close_timeout_ms)
        await asyncio.gather(*self._opening.values(), *self._closing.values(), return_exceptions=True)
        try:
            await self.agent.close()
        finally:
            await self.host.leave(self)

    def _check_open(self) -> None:
        if self._is_closed:
            raise UnavailableError("the gateway is being stopped", hint="try again in a moment")

    async def _compact(self, owner: Owner) -> bool:
        async with self.using(owner.tenant, owner.session) as session:
            await session.submit_compaction()
        return True

    def owner(self, tenant: str, key: str) -> Owner:
        """Whose rows those of a session are."""
        return Owner(tenant, self.name, key)

    # ---- sessions ----

    async def session(self, tenant: str, key: str) -> AsyncSession:
        """An open session: the one in memory, or one that is opened now."""
        root = root_of(key)
        session = self._sessions.get((tenant, root))
        if session is None:
            self._check_open()
            self.inbox.engine.check_doomed(self.owner(tenant, root))
            task = self._opening.get((tenant, root)) or self._open_soon((tenant, root))
            try:
                session = await asyncio.shield(task)
            except asyncio.CancelledError:
                me = asyncio.current_task()
                if task.cancelled() and me is not None and not me.cancelling():
                    self._check_open()  # it was given up because of the stop; who waits for it was not cancelled
                raise
        else:
            self._sessions.move_to_end((tenant, root))
        if root == key:
            return session
        for child in _family(session):
            if child.session_id == key:
                return child
        raise NotFoundError(what="session", name=key, hint="its sub-agent has ended")

    @contextlib.asynccontextmanager
    async def using(self, tenant: str, key: str) -> AsyncIterator[AsyncSession]:
        """An open session that stays in memory as long as somebody uses it."""
        name = (tenant, root_of(key))
        self._used[name] += 1
        session: AsyncSession | None = None
        try:
            session = await self.session(tenant, key)
            yield session
        except ClosedError as error:
            if session is None or self._sessions.get(name) is session or self._is_closed:
                raise
            raise UnavailableError(f"session {key!r} was leaving memory", hint="ask again: that opens it") from error
        finally:
            self._used[name] -= 1
            if not self._used[name]:
                del self._used[name]
                self.rest.touch(name)
                self._make_room()

    async def delete(self, tenant: str, key: str, *, actor: str) -> int:
        """Erase everything about a session; what runs in it is ended first. How many rows there were."""
        owner, name = self.owner(tenant, key), (tenant, key)
        gone = await delete_session(self.inbox.engine, owner, actor=actor, let_go=functools.partial(self._let_go, name))
        self.recency.forget(tenant, key)
        self.unopened.pop(name, None)
        return gone

    async def take_in(self, owner: Owner, lines: Iterable[bytes]) -> None:
        """Write the rows of a file, which was checked, as those of a new session, and go on with it."""
        let_go = functools.partial(self._let_go, (owner.tenant, owner.session))
        await import_into(self.inbox.engine, lines, owner, let_go=let_go)

    async def _let_go(self, name: Key) -> None:
        """Have a session that takes no more messages leave memory."""
        opening = self._opening.get(name)
        if opening is not None:
            await asyncio.gather(asyncio.shield(opening), return_exceptions=True)
        closing = self._closing.get(name)
        if closing is not None:
            await asyncio.gather(asyncio.shield(closing), return_exceptions=True)
        session = self._sessions.pop(name, None)
        if session is not None:
            await self._shut(session)
        self.rest.forget(name)

    async def passivate(self, tenant: str, key: str, reason: str = "", *, deadline_ms: int | None = None) -> bool:
        """Have a session leave memory, with all of its sub-agents; False: it was not there. Returns when it has left.

        What runs in it comes to a boundary, or is cut when the deadline is over, and goes on when something comes.
        """
        name = (tenant, root_of(key))
        await self.opened(name)
        if (closing := self._closing.get(name)) is not None:
            if deadline_ms is not None and (leaving := self._leaving.get(name)) is not None:
                leaving.hurry(deadline_ms)
            await asyncio.gather(asyncio.shield(closing), return_exceptions=True)
            return True
        session = self._sessions.get(name)
        if session is not None:
            await session.passivate(reason, deadline_ms=deadline_ms)
        return session is not None

    async def is_here(self, tenant: str, key: str) -> bool:
        """Whether a session is in memory, or on its way out; one that is being opened is waited for."""
        name = (tenant, root_of(key))
        await self.opened(name)
        return name in self._sessions or name in self._closing

    async def opened(self, name: Key) -> None:
        """Wait until a session that is being opened is open, or is not."""
        if (opening := self._opening.get(name)) is not None:
            await asyncio.wait({opening})

    def live_session(self, tenant: str, key: str) -> AsyncSession | None:
        """A session, if it is in memory."""
        return self._sessions.get((tenant, key))

    def live_sessions(self) -> list[AsyncSession]:
        """The sessions in memory."""
        return list(self._sessions.values())

    def wake(self, owner: Owner) -> None:
        """A turn, or the end of a call, waits for its session to be opened."""
        key = (owner.tenant, root_of(owner.session))
        root, engine = self.owner(*key), self.inbox.engine
        if root in engine.doomed or root in engine.kernel.unreadable:
            return
        known = key in self._opening or key in self._sessions or key in self.rest.leaving
        if not self._is_closed and not known:
            self._open_soon(key)

    def _open_soon(self, key: tuple[str, str]) -> asyncio.Task[AsyncSession]:
        # A session outlives the request it was opened for: what that has in its context is not the session's.
        context = self._context.copy()
        task = asyncio.get_running_loop().create_task(self._open(key), name="laneway-open-session", context=context)
        self._opening[key] = task
        self.unopened.setdefault(key, self._now())
        task.add_done_callback(functools.partial(self._opened, key))
        return task

    def _opened(self, key: tuple[str, str], task: asyncio.Task[AsyncSession]) -> None:
        self._opening.pop(key, None)
        error = None if task.cancelled() else task.exception()
        if error is None or self._is_closed:
            self.unopened.pop(key, None)
        else:
            _log.warning("session %r could not be opened: %s", key[1], describe(error))
            self._try_again(key)

    def _try_again(self, key: tuple[str, str]) -> None:
        """A session with waiting turns that could not be opened (an MCP server is gone, a file is broken …)."""
        loop = asyncio.get_running_loop()

        def again() -> None:
            self._later.discard(timer)
            owner, engine = self.owner(*key), self.inbox.engine
            if engine.is_open and (engine.is_unattended(owner) or self._is_owed(owner)):
                self.wake(owner)
            elif key not in self._opening:
                self.unopened.pop(key, None)  # nothing waits for it any more

        timer = loop.call_later(REOPEN_DELAY_S, again)
        self._later.add(timer)

    async def _open(self, key: tuple[str, str]) -> AsyncSession:
        closing = self._closing.get(key)
        if closing is not None:
            await asyncio.gather(asyncio.shield(closing), return_exceptions=True)
        session = self._made(key)
        session.start()
        session.relay(functools.partial(self._on_agent_event, session.owner))
        session.on_leaving = functools.partial(self._leaves, key, session)
        try:
            await session.ready()
        except BaseException:
            await session.shut()
            raise
        self.tool_lanes.pause_in(session)
        self._sessions[key] = session
        self.rest.back(key)
        self.rest.touch(key)
        self._make_room()
        return session

    def _made(self, key: Key) -> AsyncSession:
        """A session as the agent has it today, not opened yet."""
        tenant, session_id = key
        tenant_id = None if tenant == "default" else tenant
        options = self.tool_lanes.options(self.agent.options.queue_config)
        return self.agent.session(self.spec.folder, session_id=session_id, tenant_id=tenant_id, start=False, **options)

    @contextlib.asynccontextmanager
    async def looking(self, tenant: str, key: str) -> AsyncIterator[AsyncSession]:
        """A session, for what it would tell its model today: the one in memory, or one that is never opened."""
        if self.live_session(tenant, root_of(key)) is not None or root_of(key) != key:
            async with self.using(tenant, key) as session:
                yield session
            return
        self._check_open()
        session = self._made((tenant, key))
        try:
            await self.agent.sources.equip(session)
            yield session
        finally:
            await session.shut()

    def _leaves(self, key: Key, session: AsyncSession, task: asyncio.Task[None]) -> None:
        """A session is on its way out of memory: whoever wants it meanwhile gets another one, when it has left."""
        if self._sessions.get(key) is session:
            del self._sessions[key]
        self.rest.begin(key)
        self._closing[key] = task
        self._leaving[key] = session
        task.add_done_callback(functools.partial(self._left, key, session))

    def _left(self, key: Key, session: AsyncSession, task: asyncio.Task[None]) -> None:
        self._closed(key, task)
        self._leaving.pop(key, None)
        if self.rest.ended(key, session.awaits):
            self.wake(self.owner(*key))

    def _on_agent_event(self, owner: Owner, event: AgentEvent) -> None:
        self.hub.on_agent_event(owner, event)
        self.recency.on_agent_event(owner, event)
        for observe in self.observers:
            observe(owner, event)

    def _make_room(self) -> None:
        """Close the sessions that were idle longest, if there are too many."""
        excess = 0 if self._is_closed else len(self._sessions) - self._sessions_max
        if excess <= 0:
            return
        for key, session in list(self._sessions.items()):
            if excess <= 0:
                break
            if self.is_idle(session):
                excess -= 1
                del self._sessions[key]
                self.rest.forget(key)
                task = asyncio.get_running_loop().create_task(self._shut(session), name="laneway-close-session")
                self._closing[key] = task
                task.add_done_callback(functools.partial(self._closed, key))

    def is_idle(self, session: AsyncSession) -> bool:
        """Whether nothing goes on in a session, and nobody uses it."""
        box = self.inbox.engine.kernel.boxes.get(session.owner)
        is_used = (session.owner.tenant, session.session_id) in self._used
        return not is_used and (box is None or box.is_idle) and not session.delegates.at_work()

    @staticmethod
    async def _shut(session: AsyncSession) -> None:
        try:
            await session.shut()
        except LanewayError as error:
            _log.warning("session %r was not closed well: %s", session.session_id, error)

    def _closed(self, key: tuple[str, str], task: asyncio.Task[None]) -> None:
        if self._closing.get(key) is task:
            del self._closing[key]
        if not task.cancelled():
            task.exception()


def fair(lanes: Mapping[str, LaneConfig]) -> dict[str, LaneConfig]:
    """Lanes that tenants share fairly: one that sends much does not hold up the others."""
    return {name: replace(config, fair_by=config.fair_by or "tenant") for name, config in lanes.items()}


def _family(session: AsyncSession) -> list[AsyncSession]:
    found = [session]
    for child in session.children():
        found += _family(child)
    return found
