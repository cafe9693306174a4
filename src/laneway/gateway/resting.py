"""Sessions of a workspace that leave memory while they are kept: because somebody asks, or after a time of rest.

A session that was passivated in the middle of its work rests: nothing of it goes on until something stirs it: a new
message, a stop, the end of an approval or of an external task, the end of the time that its run waits for, a budget
that is raised, or room in one for which a call waited. What comes while it is on its way out is heard, and it is opened
again as soon as it has left; so is one that was cut while somebody waits here for its answer. An idle session needs
nothing of this: its next message opens it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from laneway.agent.subagents import root_of
from laneway.errors import LanewayError
from laneway.events import (
    ApprovalEnded,
    MessageAccepted,
    MessageEnded,
    MessageReleased,
    SessionEvent,
    SessionStopped,
    TurnEnded,
)
from laneway.mail import MessageState, Outcome
from laneway.runtime.budget_windows import moment_text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from laneway.agent.hosting import Awaits
    from laneway.agent.session import AsyncSession
    from laneway.events import Event
    from laneway.gateway.workspaces import Workspace
    from laneway.kernel.budgets import Parked
    from laneway.kernel.task_entries import TaskNews
    from laneway.ports import Clock
    from laneway.rows import Owner

__all__ = ("Key", "Rest")

_log = logging.getLogger("laneway.gateway")

Key = tuple[str, str]
STIRRING: Final = (MessageAccepted, MessageReleased, ApprovalEnded, SessionStopped)
ENDS: Final = frozenset({"ended", "settled"})
LOOK_MS: Final = 60_000
"""A wall clock may jump: whoever waits for a time of it is looked at so often."""
OPENING: Final = "its session is being opened"
RESTS: Final = "its session rests: a message, an answer, the result of a task or a restart brings it back"
RESTS_UNTIL: Final = (
    "its session rests until {moment} at the latest: {reason}; "
    "a changed budget, a message, an answer or a restart brings it back before"
)
RESTS_PARKED: Final = (
    "its session rests: {reason}; a changed budget, a message, an answer or a restart brings it back before"
)
REASON_MAX: Final = 300
IDLE: Final = "nothing has happened in it for a while"


class Rest:
    """Which sessions of a workspace are on their way out of memory, and which rest there with work undone."""

    def __init__(self, workspace: Workspace, clock: Clock, after_ms: int | None) -> None:
        self._workspace = workspace
        self._now = clock.monotonic_ms
        self._wall = clock.wall_ms
        self.after_ms = after_ms
        self.leaving: dict[Key, bool] = {}
        """Those on their way out, and whether something has come meanwhile."""
        self.resting: set[Key] = set()
        """Those that have work which goes on when somebody stirs them."""
        self._due: dict[Key, Awaits] = {}  # those of them that wait for a time
        self._waking: asyncio.TimerHandle | None = None
        self._quiet: OrderedDict[Key, int] = OrderedDict()  # since when nothing has happened; the longest first
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self) -> None:
        """Hear of what stirs a session."""
        self._workspace.inbox.engine.why_unattended = self._why
        self._workspace.inbox.engine.on_awaited = self._on_awaited
        self._workspace.inbox.engine.listen(self._on_event)
        self._workspace.host.desk.observers.append(self._on_task)
        self._workspace.host.budgets.on_change.append(self._on_budgets)
        self._workspace.host.budgets.on_room.append(self._on_room)

    def _why(self, owner: Owner) -> str:
        """What a turn of a session waits for that is not in memory."""
        return self.words((owner.tenant, root_of(owner.session))) or OPENING

    def words(self, key: Key) -> str:
        """What a session rests for, and what brings it back; empty if it does not rest."""
        due = self._due.get(key)
        if due is None:
            return RESTS if key in self.resting else ""
        if due.parked is not None:  # it says itself until when, in the time of the budget
            return RESTS_PARKED.format(reason=due.reason[:REASON_MAX])
        return RESTS_UNTIL.format(moment=moment_text(due.until_ms, "UTC"), reason=due.reason[:REASON_MAX])

    @property
    def parked(self) -> int:
        """How many of those at rest wait for a budget."""
        return len(self.parked_runs())

    def parked_runs(self) -> list[Parked]:
        """The runs at rest that wait for a budget."""
        return [due.parked for due in self._due.values() if due.parked is not None]

    def holds(self, owner: Owner, message_ids: Iterable[str]) -> bool:
        """Whether a message waits in a session at rest: the run that was about it goes on by itself."""
        if (owner.tenant, root_of(owner.session)) not in self.resting:
            return False
        box = self._workspace.inbox.engine.kernel.boxes.get(owner)
        items = {} if box is None else box.items
        return any(each in items and items[each].state is MessageState.QUEUED for each in message_ids)

    def close(self) -> None:
        """Nothing leaves any more: all of them are closed."""
        for timer in (self._timer, self._waking):
            if timer is not None:
                timer.cancel()
        self._timer = self._waking = None
        self._quiet.clear()
        self._due.clear()
        self.resting.clear()

    # ---- leaving ----

    def begin(self, key: Key) -> None:
        """A session is on its way out."""
        self._quiet.pop(key, None)
        self.leaving.setdefault(key, False)

    def ended(self, key: Key, awaits: Awaits | None) -> bool:
        """It has left; whether it is wanted already. What it has not done rests otherwise, perhaps until a time."""
        stirred = self.leaving.pop(key, False) or (awaits is None and self._is_wanted(key))
        if not stirred and self._has_work(key):
            self.resting.add(key)
            if awaits is not None:
                self._due[key] = awaits
                self._wake_later()
        return stirred

    def _is_wanted(self, key: Key) -> bool:
        """Whether somebody waits here for its answer, and nothing else will bring it back."""
        workspace = self._workspace
        if not workspace.inbox.engine.is_at_work:  # it is being closed, or its store is another owner's
            return False
        owner = workspace.owner(*key)
        waits = workspace.inbox.approvals(owner.session, tenant=owner.tenant) or workspace.host.desk.held(owner)
        return not waits and bool(workspace.inbox.engine.awaited(owner))

    def _has_work(self, key: Key) -> bool:
        workspace = self._workspace
        owner = workspace.owner(*key)
        box = workspace.inbox.engine.kernel.boxes.get(owner)
        return (box is not None and not box.is_forgettable) or bool(workspace.host.desk.held(owner))

    # ---- what stirs it ----

    def _on_event(self, event: Event) -> None:
        if isinstance(event, STIRRING) or (isinstance(event, MessageEnded) and event.outcome is Outcome.INTERRUPTED):
            self._stir(event)  # what was stopped is taken back by the session itself: its tasks, its sub-agents
        elif isinstance(event, TurnEnded):
            self.touch((event.tenant, root_of(event.session_key)))

    def _stir(self, event: SessionEvent) -> None:
        if event.workspace == self._workspace.name:
            self.stir((event.tenant, root_of(event.session_key)))

    def _on_task(self, news: TaskNews) -> None:
        if news.kind in ENDS:
            self.stir((news.entry.owner.tenant, root_of(news.entry.owner.session)))

    def _on_budgets(self) -> None:
        for key in [*self._due, *self.leaving]:  # what it waited for may be there
            self.stir(key)

    def _on_room(self) -> None:
        for key in self._workspace.host.budgets.cut_off & (self.resting | self.leaving.keys()):
            self.stir(key)  # it waited for what others in flight might give back, and they have

    def _on_awaited(self, owner: Owner) -> None:
        key = (owner.tenant, root_of(owner.session))
        if key in self.resting and key not in self._due and self._is_wanted(key):
            self.stir(key)

    def stir(self, key: Key) -> None:
        """Something has come for a session."""
        if key in self.leaving:
            self.leaving[key] = True
        elif key in self.resting:
            self.back(key)
            self._workspace.wake(self._workspace.owner(*key))

    def back(self, key: Key) -> None:
        """A session rests no more."""
        self.resting.discard(key)
        self._due.pop(key, None)

    def _wake_later(self) -> None:
        if self._waking is not None:
            self._waking.cancel()
            self._waking = None
        if self._due:
            delay_ms = max(1, min(LOOK_MS, min(due.until_ms for due in self._due.values()) - self._wall()))
            self._waking = asyncio.get_running_loop().call_later(delay_ms / 1000, self._wake_due)

    def _wake_due(self) -> None:
        self._waking = None
        now = self._wall()
        for key in [key for key, due in self._due.items() if due.until_ms <= now]:
            self.stir(key)
        self._wake_later()

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
        self.back(key)

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
