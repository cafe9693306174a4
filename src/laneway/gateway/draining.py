"""The time that runs get when a gateway is to stop: no new one begins, those at work may end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from laneway.gateway.service import Gateway
from laneway.gateway.workspaces import Workspace
from laneway.kernel.explain import lane_stats
from laneway.mail import TurnState

__all__ = ("drain",)

BEGIN_IN: Final = ("main", "cron")
"""The lanes in which runs begin. Those of sub-agents stay open: a run at work may need one to end."""


async def drain(gateway: Gateway, timeout_ms: int) -> bool:
    """Wait until nothing is at work, or the time is up; whether everything has ended.

    What waits stays in the store, and so does a run that waits for an approval or a quota, and does nothing meanwhile.
    """
    lanes = gateway.lanes
    prefixes = ["" if name == "default" else f"{name}/" for name in gateway.workspaces]
    names = [name for prefix in prefixes for lane in BEGIN_IN if (name := prefix + lane) in lanes]
    for name in names:
        lanes.pause(name)
    loop = asyncio.get_running_loop()
    quiet: asyncio.Future[None] = loop.create_future()
    looking = False

    def look() -> None:
        nonlocal looking
        looking = False
        if not quiet.done() and not _is_at_work(gateway, names):
            quiet.set_result(None)

    def on_change(*_: object) -> None:
        nonlocal looking
        if not looking:  # many changes, one look
            looking = True
            loop.call_soon(look)

    forget = lanes.on_change(on_change)
    for workspace in gateway.workspaces.values():
        workspace.observers.append(on_change)
    look()
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                await quiet
                return True
        return False
    finally:
        forget()
        for workspace in gateway.workspaces.values():
            workspace.observers.remove(on_change)


def _is_at_work(gateway: Gateway, names: Iterable[str]) -> bool:
    """Whether a run does something. One that waits has lent its slot: to a sub-agent, or because nobody needs it."""
    engine = gateway.lanes.engine
    now = [lane_stats(engine.kernel.registry.lanes[name], now=engine.now()) for name in names]
    if any(lane.running for lane in now):
        return True
    return any(lane.lent for lane in now) and any(map(_has_work, gateway.workspaces.values()))


def _has_work(workspace: Workspace) -> bool:
    if any(turn.state is not TurnState.WAITING for turn in workspace.inbox.engine.kernel.turns.values()):
        return True
    runs = (session.current_run() for session in workspace.host.sessions.values())
    return any(run is not None and run.tools for run in runs)  # a call beside the one that waits for an approval
