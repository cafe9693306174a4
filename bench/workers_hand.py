"""What `laneway worker --handlers bench.workers_hand` does: nothing."""

from __future__ import annotations

from typing import Any, Final

from bench.workers_load import begun_now

__all__ = ("handlers",)


async def noop(_task: Any) -> list[float]:
    """Say where and when."""
    return list(begun_now())


handlers: Final = {"noop": noop}
