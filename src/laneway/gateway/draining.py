"""The time that runs get when a gateway is to stop: no new one begins, those at work may end."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from laneway.gateway.service import Gateway
from laneway.records import Snapshot

__all__ = ("drain",)

BEGIN_IN: Final = ("main", "cron")
"""The lanes in which runs begin. Those of sub-agents stay open: a run at work may need one to end."""


async def drain(gateway: Gateway, timeout_ms: int) -> bool:
    """Wait until nothing is at work, or the time is up; whether everything has ended.

    What waits stays in the store, and so does a run that waits for somebody's approval: it holds no slot.
    """
    lanes = gateway.lanes
    prefixes = ["" if workspace == "default" else f"{workspace}/" for workspace in gateway.workspaces]
    names = [name for prefix in prefixes for lane in BEGIN_IN if (name := prefix + lane) in lanes]
    for name in names:
        lanes.pause(name)
    loop = asyncio.get_running_loop()
    quiet: asyncio.Future[None] = loop.create_future()
    looking = False

    def look() -> None:
        nonlocal looking
        looking = False
        now = lanes.stats().lanes
        if not quiet.done() and not any(now[name].running or now[name].lent for name in names):
            quiet.set_result(None)

    def on_change(_: Snapshot) -> None:
        nonlocal looking
        if not looking:  # many changes, one look
            looking = True
            loop.call_soon(look)

    forget = lanes.on_change(on_change)
    look()
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                await quiet
                return True
        return False
    finally:
        forget()
