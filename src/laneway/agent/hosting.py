"""What a host does with a session: publishes events in it, holds it, and has it leave memory.

A session that is passivated starts nothing new, comes to a boundary within its deadline, is stored whole and leaves.
What was going on goes on when it is opened again, here or elsewhere, which the next message does by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from laneway.agent.peers import Peering
from laneway.agent_events import AgentEvent, PassivationRequestedEvent
from laneway.errors import ClosedError, LanewayError, PassivatedError, UsageError
from laneway.host_events import host_event
from laneway.records import DURATION_MAX_MS, check_whole
from laneway.runtime.retention import HistoryLimits, prune

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping

    from laneway.agent.agent import AsyncAgent
    from laneway.agent.background import Background
    from laneway.agent.book import Book
    from laneway.agent.budgeting import Purse
    from laneway.agent.hooks import Hooks
    from laneway.agent.host import Host
    from laneway.agent.loop import Run
    from laneway.agent.session_lanes import SessionLanes
    from laneway.agent.settings import SessionSettings
    from laneway.agent.subagents import Delegates
    from laneway.identity import Identity
    from laneway.kernel.budgets import Parked
    from laneway.ports import Store
    from laneway.records import Fields
    from laneway.rows import Owner

__all__ = ("Awaits", "Hosted")

_log = logging.getLogger("laneway")

DEADLINE_MS: Final = 30_000
FEW_RUNS: Final = 10
PATIENCE_S: Final = 10
HEARING_S: Final = 1


class Awaits(NamedTuple):
    """What a run waits for that a time ends: when, by the clock on the wall, why, and for which budget, if for one."""

    until_ms: int
    reason: str = ""
    parked: Parked | None = None


class Hosted(Peering):
    """The side of a session that its host sees."""

    session_id: str
    host: Host
    hooks: Hooks
    lanes: SessionLanes | None
    identity: Identity
    delegates: Delegates
    background_calls: Background
    purse: Purse
    _agent: AsyncAgent
    _run: Run | None
    _store: Store | None
    _paused: asyncio.Future[None] | None
    _closed: bool
    _opening: asyncio.Task[None] | None
    _leaving: asyncio.Task[None] | None = None
    _leaves_at: float = 0  # until when it comes to a boundary, by the clock of the loop
    _deadline: asyncio.Timeout | None = None
    awaits: Awaits | None = None
    """What its runs waited for when it left, of that the first to be over; None: nothing that a time could end."""
    _runs_over: int = 0
    book: Book
    settings: SessionSettings
    owner: Owner
    _is_held: bool = False  # the host has paused it, also while it is not in memory
    _in_hand: int = 0  # messages that are on their way to the store
    _in_store: asyncio.Future[None] | None = None
    on_leaving: Callable[[asyncio.Task[None]], None] | None = None
    """Who keeps it hears that it leaves: the task ends when it has left."""

    @abstractmethod
    async def ready(self) -> Any:
        """Open what is needed."""

    @abstractmethod
    def start(self) -> None:
        """Begin to open it on the running loop."""

    @abstractmethod
    def emit_event(self, event: AgentEvent, run_id: str = "") -> None:
        """Tell whoever watches."""

    @abstractmethod
    def _check_inside(self) -> None:
        """Refuse what would wait for itself."""

    @abstractmethod
    async def _leave(self) -> None:
        """End what runs, so that it goes on later, and let go of everything."""

    # ---- coming ----

    async def _come(self) -> None:
        """Be open, also if it was on its way out, or has left while this waited."""
        while True:
            if self._closed:
                raise ClosedError(opened=True, what="session")
            self._check_loop()
            if self._leaving is not None:  # it is opened again when it has left
                await asyncio.gather(asyncio.shield(self._leaving), return_exceptions=True)
                continue
            if self._opening is not None and self._opening.done() and self._opening.exception() is not None:
                self._opening = None  # it could not be opened; perhaps it can now
            self.start()
            opening = self._opening
            assert opening is not None
            await asyncio.shield(opening)
            if self._opening is opening and self._leaving is None:  # else it has left since
                return

    @contextlib.asynccontextmanager
    async def arriving(self) -> AsyncIterator[None]:
        """Open, and it does not leave before what is sent meanwhile is on disk."""
        await self.ready()
        self._in_hand += 1
        try:
            yield
        finally:
            self._in_hand -= 1
            if not self._in_hand and self._in_store is not None:
                self._in_store.set_result(None)
                self._in_store = None

    async def _all_stored(self) -> None:
        """Wait for what is being sent, if the store answers; what comes later waits until this session has left."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE_S):
                while self._in_hand:
                    if self._in_store is None:
                        self._in_store = asyncio.get_running_loop().create_future()
                    await asyncio.shield(self._in_store)

    def _check_loop(self) -> None:
        if self._opening is not None and self._opening.get_loop() is not asyncio.get_running_loop():
            raise UsageError(
                "this session was opened on another event loop",
                hint="use and close it inside one asyncio.run, or use Agent and Session, which need no loop",
            )

    # ---- events ----

    async def emit(self, event: AgentEvent | Mapping[str, Any]) -> None:
        """Publish an event of the host: `budget_threshold_hit`, `passivation_requested` or `peer_invocation`.

        Watchers and hooks see it like any other. The session acts on `passivation_requested` as `passivate` does, and
        this returns when it has left.
        """
        checked = host_event(event)
        if isinstance(checked, PassivationRequestedEvent):
            await self.passivate(checked.reason, deadline_ms=checked.deadline_ms)
            return
        await self.ready()
        await self._publish(checked)

    async def _publish(self, event: AgentEvent) -> None:
        run = self._run
        run_id = run.id if run is not None else ""
        self.emit_event(event, run_id)
        if self.hooks.wants(event.event_type):
            facts = {"session_id": self.session_id, "run_id": run_id, **event.data}
            await self.hooks.tell(event.event_type, facts)

    # ---- what it spends ----

    async def budgets(self) -> list[Fields]:
        """The budgets that hold here now, and what was spent of each in the present window.

        Each has `name`, `scope`, `window`, `on_exhausted`, the limits `tokens` and `money`, `spent_tokens`,
        `spent_money`, `reserved_tokens` and `reserved_money` (by calls in flight), and `until_ms`, when its count
        begins anew. Those of the scope `run` are there while a run goes on.
        """
        await self.ready()
        return self.purse.reports("" if self._run is None else self._run.counted_as)

    # ---- leaving memory ----

    async def passivate(self, reason: str = "", *, deadline_ms: int | None = None) -> None:
        """Come to a boundary within the deadline (30 s), be stored whole, and leave memory.

        What runs then is cut as by a close, and goes on when the session is opened again: by the next call that has
        something to do here (to read its past is not that), or elsewhere. What waits stays in the store. In a gateway
        this object ends with it, and the next message, approval or result of a task has the session opened again.
        """
        checked = host_event(PassivationRequestedEvent(reason=reason, deadline_ms=deadline_ms))
        limit = DEADLINE_MS if deadline_ms is None else deadline_ms
        check_whole(limit, setting="deadline_ms", least=0, most=DURATION_MAX_MS)
        if not self._has_disk:
            raise UsageError(
                f"session {self.session_id!r} has no session_store: what leaves memory would be lost",
                hint="give it one: session_store=FileSessionStore('sessions')",
            )
        self._check_inside()
        if self._leaving is None:
            await self.ready()
        if self._leaving is None:
            self._leaves_at = asyncio.get_running_loop().time() + limit / 1000
            leaving = self._passivate(checked)
            self._leaving = asyncio.get_running_loop().create_task(leaving, name="laneway-passivation")
            self._leaving.add_done_callback(self._left)
            if self.on_leaving is not None:
                self.on_leaving(self._leaving)
        else:
            self.hurry(limit)
        await asyncio.shield(self._leaving)

    def hurry(self, limit_ms: int) -> None:
        """It is on its way out of memory: its deadline is not later than this."""
        self._leaves_at = min(self._leaves_at, asyncio.get_running_loop().time() + limit_ms / 1000)
        if self._deadline is not None and not self._deadline.expired():
            self._deadline.reschedule(self._leaves_at)

    @property
    def waits_for(self) -> str:
        """Why its run does nothing at the moment; empty if it does something, or there is none."""
        return "" if self._run is None else self._run.waits_for

    @property
    def is_kept(self) -> bool:
        """Whether a gateway keeps a store for it."""
        return self._agent.home is not None

    @property
    def stays_known(self) -> bool:
        """Whether its tasks can be taken and completed while it is not in memory: somebody will open it then."""
        return self.is_leaving and self.is_kept

    @property
    def is_leaving(self) -> bool:
        """Whether it is on its way out of memory, or the session that it works for is."""
        root: Any = self
        while root.parent is not None:
            root = root.parent
        return root._leaving is not None  # noqa: SLF001 - a session of the same family

    def cut_short(self, message_id: str) -> ClosedError:
        """What becomes of whoever waits here for a message, when the session is closed before that has ended."""
        if self.is_leaving:
            return PassivatedError(session_id=self.session_id, message_id=message_id)
        return ClosedError(opened=True, what="session")

    async def _passivate(self, event: AgentEvent) -> None:
        telling = asyncio.get_running_loop().create_task(self._publish(event), name="laneway-passivation-told")
        try:
            self._hold_steps()
            self.host.unuse(self)  # type: ignore[arg-type]  # it is a session
            if self._run is None:  # a turn that is about to begin would find nobody
                self.host.dismiss(self)  # type: ignore[arg-type]
            try:
                async with asyncio.timeout_at(self._leaves_at) as self._deadline:
                    await self._at_rest()
                    await asyncio.wait({telling})
            except TimeoutError:
                pass  # what is not at rest yet is cut
            finally:
                self._deadline = None  # nobody can pull it in any more
            await self._told(telling)
        finally:
            self.awaits = min(self._awaited(), default=None)
            try:
                await self._all_stored()
                await self._leave()
            finally:
                if self.is_kept:
                    self._closed = True
                    self._agent.forget(self)  # type: ignore[arg-type]  # it is a session

    @staticmethod
    async def _told(telling: asyncio.Task[None]) -> None:
        """Hooks hear of it however short the deadline is, and none of them keeps the session much longer."""
        await asyncio.wait({telling}, timeout=HEARING_S)
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)

    async def _at_rest(self) -> None:
        """Wait until every run here and below is between two steps, and no call in the background is on its way."""
        while waits := self._unrest():
            tasks = [asyncio.ensure_future(each) for each in waits]
            try:
                await asyncio.wait(tasks)
            finally:
                for task in tasks:
                    task.cancel()

    def _unrest(self) -> list[Awaitable[None]]:
        self._hold_steps()
        below = self.delegates.sessions()
        waits: list[Awaitable[None]] = [asyncio.shield(each) for each in self.background_calls.in_hand()]
        if self._run is not None and not self._run.is_resting:
            waits.append(self._run.rested())
        for child in below:
            waits += child._unrest()  # noqa: SLF001 - a session of the same family
        return waits

    def _awaited(self) -> list[Awaits]:
        """What the runs here and below wait for that a time ends."""
        found = [each for child in self.delegates.sessions() for each in child._awaited()]  # noqa: SLF001 - its family
        run = self._run
        if run is not None and run.waits_until:
            is_parked = run.parked is not None and run.parked.until_ms == run.waits_until
            found.append(Awaits(run.waits_until, run.waits_for, run.parked if is_parked else None))
        return found

    def _left(self, task: asyncio.Task[None]) -> None:
        self._leaving = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("session %r did not leave well: %s", self.session_id, error)

    # ---- what memory keeps ----

    def _retain(self, busy: Collection[str]) -> None:
        """Forget the oldest runs, as many as its caps say; a store of its own keeps them.

        Without one the history is in memory as well, and goes the same way: every few runs, because it takes a while.
        """
        most = self.settings.retention_limits.max_runs_retained
        self.book.retain(most, busy)
        self._runs_over += 1
        if most is not None and not self._has_disk and self._runs_over >= max(FEW_RUNS, most // 4):
            self._runs_over = 0
            task = asyncio.get_running_loop().create_task(self._forget_history(most), name="laneway-retention")
            self._agent.keep(task)

    async def _forget_history(self, most: int) -> None:
        limits = HistoryLimits(max_runs=most, spared_ms=0)  # nobody but this process sends here: nothing comes twice
        now = self.host.env.clock.wall_ms()
        try:
            await prune(self.host.inbox.engine.store, self.owner, limits, now_ms=now)
        except LanewayError as error:  # it was closed meanwhile, and everything is gone
            _log.debug("session %r has kept its history: %s", self.session_id, error)

    @property
    def _has_disk(self) -> bool:
        """Whether what it forgets is still somewhere."""
        return self._store is not None or self.is_kept

    # ---- holding ----

    def pause(self) -> None:
        """Start nothing new until `resume`: no call of the model, none of a tool. What runs goes on."""
        self._is_held = True
        if self._paused is None:
            self._hold_steps()
            if self.lanes is not None:
                self.lanes.pause()

    def _hold_steps(self) -> None:
        """Ask the model nothing until `resume`."""
        if self._paused is None:
            self._paused = asyncio.get_running_loop().create_future()

    def resume(self) -> None:
        """Go on after `pause`. A session that is on its way out of memory goes on when it is back."""
        self._is_held = False
        if self._leaving is None:
            self._go_on()

    def _go_on(self) -> None:
        paused, self._paused = self._paused, None
        if paused is not None:
            if self.lanes is not None:
                self.lanes.resume()
            if not paused.done():
                paused.set_result(None)

    @property
    def is_paused(self) -> bool:
        """Whether `pause` holds."""
        return self._paused is not None

    async def unpaused(self) -> None:
        """Wait while the session is paused."""
        while self._paused is not None:
            await asyncio.shield(self._paused)
