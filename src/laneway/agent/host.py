"""What the sessions of one store share on one event loop: an inbox, its lanes, and the limits of models.

A process has one host for each store and loop, whoever asks for it, because a store has one owner. Sessions without a
store share a host in memory with the other sessions of their agent.
"""

from __future__ import annotations

import asyncio
import functools
import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from laneway.agent.late_results import settling
from laneway.agent.subagents import is_child_id
from laneway.errors import InterruptSignalError
from laneway.inbox import Inbox
from laneway.kernel.registry import lane_part
from laneway.lanes import TOOL_LANES, Lanes
from laneway.mail import Final as Ended
from laneway.mail import OnCrash
from laneway.records import LaneConfig
from laneway.runtime.budget_desk import BudgetDesk
from laneway.runtime.errands import WAIT_LANE
from laneway.runtime.task_desk import TaskDesk
from laneway.system import HostEnv

if TYPE_CHECKING:
    from laneway.agent.session import AsyncSession
    from laneway.ports import Model, Store
    from laneway.rows import Owner
    from laneway.runtime.task_hall import TaskHall
    from laneway.runtime.turns import Turn

__all__ = ("Host", "account_of", "host_of", "tool_lanes")

WIDE = 1_000_000
THREADS_MAX = 2_000
MODEL_LANES = "model:"
SUBAGENT_LANE = "subagent"
GRACE_MS = 15_000

MAIL: Final = {
    "mode": "followup",
    "cap": 100_000,
    "drop": "new",
    "concurrency": WIDE,
    "interrupt_grace_ms": GRACE_MS,
}
"""How messages to sessions are queued, unless whoever makes the host says something else."""

_hosts: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[object, Host]] = WeakKeyDictionary()


class _Handler:
    """The handler of the inbox: hands a turn to the session that it belongs to."""

    resumes = True

    def __init__(self, host: Host) -> None:
        self._host = host

    async def __call__(self, turn: Turn) -> str | None:
        session = self._host.sessions.get((turn.tenant, turn.session_key))
        if session is None:
            raise InterruptSignalError("its session was closed")
        return await session.run_turn(turn)


class Host:
    """The inbox and the lanes of the sessions of one store."""

    def __init__(  # noqa: PLR0913 - what hosts may share is given one by one
        self,
        store: Store | None,
        env: HostEnv,
        *,
        key: object,
        before: Host | None = None,
        lanes: Lanes | None = None,
        hall: TaskHall | None = None,
        **mail: Any,
    ) -> None:
        self.key = key
        self._owns_lanes = lanes is None
        self.lanes = lanes or tool_lanes(env)
        given = {**MAIL, **mail}
        self.inbox = Inbox(_Handler(self), store=store, lanes=self.lanes, on_crash=OnCrash.RESUME, host=env, **given)
        self.inbox.has_agents = True
        self.inbox.engine.kernel.turn_reason = self._why_waits
        self.inbox.engine.on_loaded_again = self._loaded_again
        self.env = env
        self.sessions: dict[tuple[str, str], AsyncSession] = {}
        self.followed: dict[str, AsyncSession] = {}  # by the id of a message that has not ended
        self.guests: set[object] = set()  # everybody who uses it, or is about to
        self.fixed: frozenset[str] = frozenset()
        """Real paths of files that no file tool changes, without their case: what the agents here were made from."""
        self._before = before
        self._opening: asyncio.Task[None] | None = None
        self.closing: asyncio.Task[None] | None = None
        engine = self.inbox.engine
        self.desk = TaskDesk(engine, hall)
        self.budgets = BudgetDesk(engine)
        engine.on_loaded = self.budgets.load
        engine.before_letting_go = self.budgets.close
        engine.on_erased = self.budgets.end_session
        self.desk.settling = functools.partial(settling, self)
        engine.attends = lambda owner: (owner.tenant, owner.session) in self.sessions
        engine.turn_lane = self._turn_lane
        engine.on_settled = self._settled
        engine.asked_in = self._asked_in
        engine.followed = self.followed

    # ---- opening and closing ----

    async def open(self) -> None:
        """Open it, once, whoever asks."""
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open(), name="laneway-host")
        await asyncio.shield(self._opening)

    async def _open(self) -> None:
        before, self._before = self._before, None
        if before is not None and before.closing is not None:  # it lets go of the store first
            await asyncio.gather(before.closing, return_exceptions=True)
        if self._owns_lanes:
            await self.lanes.__aenter__()
        try:
            await self.inbox.__aenter__()
            self.env = replace(self.env, ids=self.inbox.engine.ids)
        except BaseException:
            _forget(self)
            if self._owns_lanes:
                await self.lanes.close()
            raise

    @property
    def workspace(self) -> str:
        """The workspace in the store that its sessions belong to."""
        return self.inbox.engine.workspace

    @property
    def is_open(self) -> bool:
        """Whether it takes messages."""
        return self.inbox.engine.is_open

    def use(self, session: AsyncSession) -> None:
        """A session lives here from now on: its turns may begin."""
        self.sessions[session.key] = session
        if self.is_open:
            self.inbox.engine.attend(session.owner)

    def _loaded_again(self, owner: Owner) -> None:
        """The store had failed, and a session was loaded anew: what it was told of ends may be lost."""
        session = self.sessions.get((owner.tenant, owner.session))
        if session is not None:
            session.background_calls.look_again()

    def _why_waits(self, owner: Owner) -> str:
        """What the run of a session waits for, if for anything."""
        session = self.sessions.get((owner.tenant, owner.session))
        run = session.live_run() if session is not None else None
        return run.waits_for if run is not None else ""

    def unuse(self, session: AsyncSession) -> None:
        """A session is being closed: no turn of it begins until it is opened again."""
        if self.sessions.get(session.key) is session:
            del self.sessions[session.key]

    def dismiss(self, session: AsyncSession) -> None:
        """End the turn of a session, to be begun again when it is opened again; tell whoever waits for its messages.

        Who waits in a gateway for what a passivated session has not done yet goes on waiting: it will be done.
        """
        if session.key not in self.sessions and self.is_open:
            self.inbox.engine.dismiss(session.owner, None if session.stays_known else session.cut_short)

    async def leave(self, guest: object) -> None:
        """A session (or a gateway) has no more use for the host; the last one closes it."""
        self.guests.discard(guest)
        if self.guests or self.closing is not None:
            return
        self.closing = asyncio.get_running_loop().create_task(self._close(), name="laneway-host-closing")
        await asyncio.shield(self.closing)

    async def _close(self) -> None:
        try:
            if self._opening is not None:
                await asyncio.gather(self._opening, return_exceptions=True)
            if self.is_open:
                self.desk.close()
                await self.inbox.close()
                if self._owns_lanes:
                    await self.lanes.close()
        finally:
            _forget(self)

    @property
    def is_closing(self) -> bool:
        """Whether its last session has left."""
        return self.closing is not None

    def _turn_lane(self, owner: Owner) -> str:
        """Turns of sub-agents run in a lane of their own."""
        session = self.sessions.get((owner.tenant, owner.session))
        return SUBAGENT_LANE if session is not None and session.depth else ""

    # ---- messages ----

    def _asked_in(self, owner: Owner, approval_id: str) -> Owner:
        """What a sub-agent asks is answered in the session that it works for, at every depth."""
        boxes = self.inbox.engine.kernel.boxes
        for each, box in boxes.items():
            if approval_id in box.approvals and each[:2] == owner[:2] and each.session.startswith(f"{owner.session}~"):
                return each if is_child_id(each.session) else owner
        return owner

    def _settled(self, final: Ended) -> None:
        session = self.followed.pop(final.message_id, None)
        if session is not None:
            session.settled(final)

    # ---- limits of models ----

    def model_lane(self, account: str) -> str:
        """The lane that every model call of an account goes through; its limit can be closed."""
        lane = f"{MODEL_LANES}{lane_part(account)}"
        registry = self.inbox.lanes.engine.kernel.registry
        if lane not in registry.configs:
            registry.configure(lane, LaneConfig(concurrency=WIDE), now=self.inbox.engine.now())
            for host in _neighbours():  # what another store has heard of the account holds here, too
                closed = host.closed_model(account) if host is not self and host.is_open else None
                if closed is not None:
                    self.inbox.lanes.close_until(lane, closed[1], closed[0])
        return lane

    def close_model(self, account: str, until_ms: int, reason: str) -> None:
        """A provider takes no calls of an account until then: nobody in this process tries before."""
        for host in dict.fromkeys([self, *_neighbours()]):  # a gateway keeps its hosts by itself
            if host.is_open:
                host.inbox.lanes.close_until(host.model_lane(account), until_ms, reason)

    def closed_model(self, account: str) -> tuple[str, int] | None:
        """Why an account takes no calls now, and until when; None if it does."""
        lane = self.lanes.engine.kernel.registry.lanes.get(f"{MODEL_LANES}{lane_part(account)}")
        until = lane.closed_wall_ms or 0 if lane is not None else 0
        return (lane.closed_reason, until) if lane is not None and until > self.inbox.engine.wall() else None

    async def wait(self, delay_ms: int) -> None:
        """Wait a while; a turn that waits lends its slots."""
        await self.inbox.lanes.run(WAIT_LANE, asyncio.sleep, delay_ms / 1000, label="a model that will be back")


def host_of(store: Store | None, env: HostEnv, *, shared_by: object) -> Host:
    """The host of a store on this loop; without a store, that of `shared_by`."""
    hosts = _hosts.setdefault(asyncio.get_running_loop(), {})
    path = getattr(store, "path", None)
    key: object = os.path.realpath(path) if path else store or shared_by
    host = hosts.get(key)
    if host is None or host.is_closing:
        hosts[key] = host = Host(store, env, key=key, before=host)
    return host


def tool_lanes(env: HostEnv) -> Lanes:
    """Lanes for tools and turns. A sync tool may wait on its thread for another session: there is room for many."""
    return Lanes(TOOL_LANES, host=env, unknown="create", threads_max=THREADS_MAX)


def account_of(model: Model) -> str:
    """Whose quota the calls of a model use up: those of one account share their limits."""
    return str(getattr(model, "account", "") or model.name)


def _neighbours() -> list[Host]:
    """Every host on this loop."""
    return list(_hosts.get(asyncio.get_running_loop(), {}).values())


def _forget(host: Host) -> None:
    for hosts in _hosts.values():
        if hosts.get(host.key) is host:
            del hosts[host.key]
