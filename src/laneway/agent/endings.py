"""Waiting for the end of what goes on beside."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

__all__ = ("all_over", "end_task")


async def all_over(overs: Iterable[asyncio.Future[None]]) -> None:
    """Wait until all of them have ended."""
    left = [over for over in overs if not over.done()]
    if left:
        await asyncio.wait(left)


async def end_task(task: asyncio.Task[Any]) -> None:
    """End a task, and wait for that."""
    if not task.done():
        task.cancel()
        await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
