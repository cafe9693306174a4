"""What operators have changed about the tool lanes of all sessions of a workspace. It holds until the server ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from laneway.options import LaneHandlerConfig, SessionQueueConfig

if TYPE_CHECKING:
    from laneway.agent.session import AsyncSession

__all__ = ("NEVER", "LaneChange", "ToolLanes", "apply_to")


NEVER: Final = -1
"""Of `background_after_ms`: calls do not go on in the background. None would say that nothing is to be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneChange:
    """What is to be different about a lane; None where it stays as it is."""

    concurrency: int | None = None
    paused: bool | None = None
    mode: str | None = None
    timeout_ms: int | None = None
    ordered: bool | None = None
    lease_ms: int | None = None
    fallback: bool | None = None
    labels: tuple[str, ...] | None = None
    sticky: str | None = None
    sticky_ms: int | None = None
    background_after_ms: int | None = None

    @property
    def given(self) -> dict[str, Any]:
        """What it changes."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}

    def over(self, before: LaneChange) -> LaneChange:
        """Both, this one first."""
        return replace(before, **self.given)

    @property
    def handler(self) -> dict[str, Any]:
        """What it changes about who runs the calls."""
        found = {name: value for name, value in self.given.items() if name not in ("concurrency", "paused")}
        if found.get("background_after_ms") == NEVER:
            found["background_after_ms"] = None
        return found

    @property
    def without_handler(self) -> LaneChange:
        """What it changes beside that."""
        return LaneChange(concurrency=self.concurrency, paused=self.paused)


class ToolLanes:
    """The changes of one workspace, for the sessions that are open and for those that will be."""

    def __init__(self) -> None:
        self._changes: dict[str, LaneChange] = {}

    @property
    def changes(self) -> Mapping[str, LaneChange]:
        """What was changed, by lane."""
        return self._changes

    async def change(self, lane: str, change: LaneChange, sessions: Iterable[AsyncSession]) -> int:
        """Change a lane of every session, from now on; says of how many that are open."""
        self._changes[lane] = change.over(self._changes.get(lane, LaneChange()))
        count = 0
        for session in sessions:
            count += await apply_to(session, lane, change)
        return count

    def options(self, queue: SessionQueueConfig | None) -> Mapping[str, Any]:
        """The options that a session is opened with; `queue` is what its agent says."""
        if queue is None or not self._changes:
            return {}
        config = queue.copy()
        for lane, change in self._changes.items():
            if change.concurrency is not None:
                setattr(config, f"{lane}_max_concurrency", change.concurrency)
            if change.handler:
                config.lane_handlers = {**config.lane_handlers, lane: self.handler_of(lane, queue)}
        return {"queue_config": config}

    def handler_of(self, lane: str, queue: SessionQueueConfig | None) -> LaneHandlerConfig:
        """Who runs the calls of a lane in sessions that will be opened."""
        handler = LaneHandlerConfig() if queue is None else queue.lane_handlers.get(lane, LaneHandlerConfig())
        return replace(handler, **self._changes.get(lane, LaneChange()).handler)

    def pause_in(self, session: AsyncSession) -> None:
        """A session has been opened: its lanes are paused like those of the others."""
        for lane, change in self._changes.items():
            if change.paused and session.lanes is not None:
                session.lanes.pause(lane)


async def apply_to(session: AsyncSession, lane: str, change: LaneChange) -> bool:
    """Change a lane of one open session and of its sub-agents. False: its tools run without lanes."""
    lanes = session.lanes
    if lanes is None:
        return False
    engine = session.host.lanes
    name = f"{lanes.scope}/{lane}"
    if change.handler:
        await session.set_lane_handler(lane, replace(lanes.handler_of(lane), **change.handler))
    if name not in engine.engine.kernel.registry.lanes:
        return False  # the session was closed meanwhile: a lane that is made anew here would be nobody's
    if change.concurrency is not None:
        engine.resize(name, change.concurrency)
    if change.paused is not None:
        (engine.pause if change.paused else engine.resume)(name)
    for child in session.children():
        await apply_to(child, lane, change.without_handler)  # it has the handler already
    return True
