"""Retention of a gateway: now and then old history goes, session by session, in slices that never hold up a write."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from laneway.errors import LanewayError, describe
from laneway.runtime.artifacts import sweep_all
from laneway.runtime.retention import HistoryLimits, Pruned, prune_workspace

if TYPE_CHECKING:
    from laneway.gateway.service import Gateway

__all__ = ("Pruning",)

_log = logging.getLogger("laneway.gateway")


class Pruning:
    """Looks through the sessions of a gateway at intervals."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._settings = gateway.settings.retention
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self.done = Pruned()
        """What it has done so far."""

    def open(self) -> None:
        """Begin, if there is anything to do."""
        if not self._limits("").is_empty:
            self._arm()

    async def close(self) -> None:
        """End. What a slice has taken is gone, the rest stays for another time."""
        if self._timer is not None:
            self._timer.cancel()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def prune(self) -> Pruned:
        """Look through everything once."""
        now = self._gateway.env.clock.wall_ms()
        for name in list(self._gateway.workspaces):
            found = await prune_workspace(self._gateway.store, name, self._limits(name), now_ms=now)
            self.done.sessions += found.sessions
            self.done.rows += found.rows
        await sweep_all(self._gateway.store)
        return self.done

    def _limits(self, name: str) -> HistoryLimits:
        settings = self._settings
        limits = HistoryLimits(max_age_ms=settings.max_age_ms, max_runs=settings.max_runs)
        workspace = self._gateway.workspaces.get(name)
        if workspace is None:
            return limits
        spared = workspace.inbox.dedupe_ms  # a platform may send again what came in this time
        return HistoryLimits(max_age_ms=settings.max_age_ms, max_runs=settings.max_runs, spared_ms=spared)

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._settings.every_ms / 1000, self._begin)

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._look(), name="laneway-prune")

    async def _look(self) -> None:
        try:
            before = self.done.rows
            await self.prune()
            if self.done.rows > before:
                _log.info("%d old rows were taken away", self.done.rows - before)
        except LanewayError as error:
            _log.warning("old history could not be taken away: %s", describe(error))
        self._arm()
