"""Sessions of a workspace that leave memory while they are kept: because somebody asks, or after a time of rest.

A session that was passivated in the middle of its work rests: nothing of it goes on until somebody stirs it, which a
new message does, the end of an approval, or that of an external task. What comes while it is on its way out is heard,
and it is opened again as soon as it has left. An idle session needs nothing of this: its next message opens it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from laneway.agent.subagents import root_of
from laneway.errors import LanewayError
from laneway.events import ApprovalEnded, MessageAccepted, MessageReleased, SessionEvent, TurnEnded

if TYPE_CHECKING:
    from collections.abc import Callable

    from laneway.agent.session import AsyncSession
    from laneway.events import Event
    from laneway.gateway.workspaces import Workspace
    from laneway.kernel.task_entries import TaskNews

__all__ = ("Key", "Rest")

_log = logging.getLogger("laneway.gateway")

Key = tuple[str, str]
STIRRING: Final = (MessageAccepted, MessageReleased, ApprovalEnded)
ENDS: Final = frozenset({"ended", "settled"})
IDLE: Final = "nothing has happened in it for a while"


class Rest:
    """Which sessions of a workspace are on their way out of memory, and which rest there with work undone."""

    def __init__(self, workspace: Workspace, now: Callable[[], int], after_ms: int | None) -> None:
        self._workspace = workspace
        self._now = now
        self.after_ms = after_ms
        self.leaving: dict[Key, bool] = {}
        """Those on their way out, and whether something has come meanwhile."""
        self.resting: set[Key] = set()
        """Those that have work which goes on when somebody stirs them."""
        self._quiet: OrderedDict[Key, int] = OrderedDict()  # since when nothing has happened; the longest first
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Hear of what stirs a session."""
        self._workspace.inbox.engine.listen(self._on_event)
        self._workspace.host.desk.observers.append(self._on_task)

    def close(self) -> None:
        """Nothing leaves any more: all of them are closed."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._quiet.clear()
        self.resting.clear()

    # ---- leaving ----

    def begin(self, key: Key) -> None:
        """A session is on its way out."""
        self._quiet.pop(key, None)
        self.leaving.setdefault(key, False)

    def ended(self, key: Key) -> bool:
        """It has left; whether it is wanted already. What it has not done rests otherwise."""
        stirred = self.leaving.pop(key, False)
        if not stirred and self._has_work(key):
            self.resting.add(key)
        return stirred

    def _has_work(self, key: Key) -> bool:
        workspace = self._workspace
        owner = workspace.owner(*key)
        box = workspace.inbox.engine.kernel.boxes.get(owner)
        return (box is not None and not box.is_forgettable) or bool(workspace.host.desk.held(owner))

    # ---- what stirs it ----

    def _on_event(self, event: Event) -> None:
        if isinstance(event, STIRRING):
            self._stir(event)
        elif isinstance(event, TurnEnded):
            self.touch((event.tenant, root_of(event.session_key)))

    def _stir(self, event: SessionEvent) -> None:
        if event.workspace == self._workspace.name:
            self.stir((event.tenant, root_of(event.session_key)))

    def _on_task(self, news: TaskNews) -> None:
        if news.kind in ENDS:
            self.stir((news.entry.owner.tenant, root_of(news.entry.owner.session)))

    def stir(self, key: Key) -> None:
        """Something has come for a session."""
        if key in self.leaving:
            self.leaving[key] = True
        elif key in self.resting:
            self.resting.discard(key)
            self._workspace.wake(self._workspace.owner(*key))

    # ---- after a time of rest ----

    def touch(self, key: Key) -> None:
        """Something has happened in a session that is in memory."""
        if self.after_ms is None or self._workspace.live_session(*key) is None:
            return
        self._quiet[key] = self._now()
        self._quiet.move_to_end(key)
        if self._timer is None:
            self._arm()

    def forget(self, key: Key) -> None:
        """A session was closed for good, or is not in memory any more: nothing stirs it."""
        self._quiet.pop(key, None)
        self.resting.discard(key)

    def _arm(self) -> None:
        assert self.after_ms is not None
        since = next(iter(self._quiet.values()), None)
        if since is not None:
            delay_ms = max(0, since + self.after_ms - self._now())
            self._timer = asyncio.get_running_loop().call_later(delay_ms / 1000, self._ring)

    def _ring(self) -> None:
        self._timer = None
        assert self.after_ms is not None
        before = self._now() - self.after_ms
        busy: list[Key] = []
        while self._quiet and next(iter(self._quiet.values())) <= before:
            key, _ = self._quiet.popitem(last=False)
            session = self._workspace.live_session(*key)
            if session is not None and self._workspace.is_idle(session):
                self._passivate_soon(session)
            elif session is not None:
                busy.append(key)
        for key in busy:
            self._quiet[key] = self._now()
        self._arm()

    def _passivate_soon(self, session: AsyncSession) -> None:
        task = asyncio.get_running_loop().create_task(self._quietly(session), name="laneway-idle-passivation")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self, session: AsyncSession) -> None:
        try:
            await session.passivate(IDLE)
        except LanewayError as error:
            _log.warning("session %r did not leave memory well: %s", session.session_id, error)
