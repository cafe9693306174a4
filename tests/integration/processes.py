"""Whether processes run, and waiting for what they do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ("eventually", "is_running")


async def eventually(is_so: Callable[[], bool]) -> bool:
    """Wait until something is so, for a minute at most."""
    for _ in range(6_000):
        if is_so():
            return True
        await asyncio.sleep(0.01)
    return is_so()


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that has ended and waits for its parent is none."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z")
