"""What a host does with a session: publishes events in it, holds it, and has it leave memory.

A session that is passivated starts nothing new, comes to a boundary within its deadline, is stored whole and leaves.
What was going on goes on when it is opened again, here or elsewhere, which the next message does by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final

from laneway.agent.peers import Peering
from laneway.agent_events import AgentEvent, PassivationRequestedEvent
from laneway.errors import UsageError
from laneway.host_events import host_event
from laneway.records import DURATION_MAX_MS, check_whole

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from laneway.agent.agent import AsyncAgent
    from laneway.agent.background import Background
    from laneway.agent.hooks import Hooks
    from laneway.agent.host import Host
    from laneway.agent.loop import Run
    from laneway.agent.session_lanes import SessionLanes
    from laneway.agent.subagents import Delegates
    from laneway.identity import Identity
    from laneway.ports import Store

__all__ = ("Hosted",)

_log = logging.getLogger("laneway")

DEADLINE_MS: Final = 30_000


class Hosted(Peering):
    """The side of a session that its host sees."""

    session_id: str
    host: Host
    hooks: Hooks
    lanes: SessionLanes | None
    identity: Identity
    delegates: Delegates
    background_calls: Background
    _agent: AsyncAgent
    _run: Run | None
    _store: Store | None
    _paused: asyncio.Future[None] | None
    _closed: bool
    _leaving: asyncio.Task[None] | None = None
    on_leaving: Callable[[asyncio.Task[None]], None] | None = None
    """Who keeps it hears that it leaves: the task ends when it has left."""

    @abstractmethod
    async def ready(self) -> Any:
        """Open what is needed."""

    @abstractmethod
    def emit_event(self, event: AgentEvent, run_id: str = "") -> None:
        """Tell whoever watches."""

    @abstractmethod
    def _check_inside(self) -> None:
        """Refuse what would wait for itself."""

    @abstractmethod
    async def _leave(self) -> None:
        """End what runs, so that it goes on later, and let go of everything."""

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

    # ---- leaving memory ----

    async def passivate(self, reason: str = "", *, deadline_ms: int | None = None) -> None:
        """Come to a boundary within the deadline (30 s), be stored whole, and leave memory.

        What runs then is cut as by a close, and goes on when the session is opened again: by the next call of any
        method here, or elsewhere. What waits stays in the store. In a gateway this object ends with it, and the next
        message, approval or result of a task has the session opened again.
        """
        checked = host_event(PassivationRequestedEvent(reason=reason, deadline_ms=deadline_ms))
        limit = DEADLINE_MS if deadline_ms is None else deadline_ms
        check_whole(limit, setting="deadline_ms", least=0, most=DURATION_MAX_MS)
        if self._store is None and not self._is_kept:
            raise UsageError(
                f"session {self.session_id!r} has no session_store: what leaves memory would be lost",
                hint="give it one: session_store=FileSessionStore('sessions')",
            )
        self._check_inside()
        if self._leaving is None:
            await self.ready()
        if self._leaving is None:
            leaving = self._passivate(checked, limit)
            self._leaving = asyncio.get_running_loop().create_task(leaving, name="laneway-passivation")
            self._leaving.add_done_callback(self._left)
            if self.on_leaving is not None:
                self.on_leaving(self._leaving)
        await asyncio.shield(self._leaving)

    @property
    def _is_kept(self) -> bool:
        """Whether a gateway keeps a store for it."""
        return self._agent.home is not None

    @property
    def stays_known(self) -> bool:
        """Whether its tasks can be taken and completed while it is not in memory: somebody will open it then."""
        return self.is_leaving and self._is_kept

    @property
    def is_leaving(self) -> bool:
        """Whether it is on its way out of memory, or the session that it works for is."""
        root: Any = self
        while root.parent is not None:
            root = root.parent
        return root._leaving is not None  # noqa: SLF001 - a session of the same family

    async def _passivate(self, event: AgentEvent, limit_ms: int) -> None:
        try:
            await self._publish(event)
            self._hold_steps()
            self.host.unuse(self)  # type: ignore[arg-type]  # it is a session
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(limit_ms / 1000):
                    await self._at_rest()
        finally:
            try:
                await self._leave()
            finally:
                if self._is_kept:
                    self._closed = True
                    self._agent.forget(self)  # type: ignore[arg-type]  # it is a session

    async def _at_rest(self) -> None:
        """Wait until every run below is held between two steps, and no call in the background is on its way here.

        A run that waits for its sub-agents is where it can stop as soon as they are.
        """
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
        if not below and self._run is not None and not self._run.is_resting:
            waits.append(self._run.rested())
        for child in below:
            waits += child._unrest()  # noqa: SLF001 - a session of the same family
        return waits

    def _left(self, task: asyncio.Task[None]) -> None:
        self._leaving = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("session %r did not leave well: %s", self.session_id, error)

    # ---- holding ----

    def pause(self) -> None:
        """Start nothing new until `resume`: no call of the model, none of a tool. What runs goes on."""
        if self._paused is None:
            self._hold_steps()
            if self.lanes is not None:
                self.lanes.pause()

    def _hold_steps(self) -> None:
        """Ask the model nothing until `resume`."""
        if self._paused is None:
            self._paused = asyncio.get_running_loop().create_future()

    def resume(self) -> None:
        """Go on after `pause`."""
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
