"""What operators have changed about the tool lanes of all sessions of a workspace. It holds until the server ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from laneway.options import LaneHandlerConfig, SessionQueueConfig

if TYPE_CHECKING:
    from laneway.agent.session import AsyncSession

__all__ = ("LaneChange", "ToolLanes", "apply_to")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneChange:
    """What is to be different about a lane; None where it stays as it is."""

    concurrency: int | None = None
    paused: bool | None = None
    mode: str | None = None
    timeout_ms: int | None = None

    def over(self, before: LaneChange) -> LaneChange:
        """Both, this one first."""
        given = {name: value for name in self.__slots__ if (value := getattr(self, name)) is not None}
        return replace(before, **given)

    @property
    def handler(self) -> dict[str, Any]:
        """What it changes about who runs the calls."""
        given = {"mode": self.mode, "timeout_ms": self.timeout_ms}
        return {name: value for name, value in given.items() if value is not None}


class ToolLanes:
    """The changes of one workspace, for the sessions that are open and for those that will be."""

    def __init__(self) -> None:
        self._changes: dict[str, LaneChange] = {}

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
                handler = replace(config.lane_handlers.get(lane, LaneHandlerConfig()), **change.handler)
                config.lane_handlers = {**config.lane_handlers, lane: handler}
        return {"queue_config": config}

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
    if change.concurrency is not None:
        engine.resize(name, change.concurrency)
    if change.paused is not None:
        (engine.pause if change.paused else engine.resume)(name)
    for child in session.children():
        await apply_to(child, lane, replace(change, mode=None, timeout_ms=None))  # it has the handler already
    return True
