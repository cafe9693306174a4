"""Whether the gateway takes more work: by how much waits, and for how long the oldest has waited."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.errors import OverloadedError

if TYPE_CHECKING:
    from laneway.gateway.service import Gateway

__all__ = ("Admission",)

RETRY_AFTER_MS = 5_000


class Admission:
    """Refuses messages while too much waits. What was accepted is never given up for this."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def check(self) -> None:
        """Raise `OverloadedError` while too much waits."""
        most = self._gateway.settings.waiting_max
        waiting = sum(len(each.inbox.engine.kernel.items) for each in self._gateway.workspaces.values())
        if waiting >= most:
            raise OverloadedError(
                f"{waiting:,} messages are under way already (at most {most:,})", retry_after_ms=RETRY_AFTER_MS
            )
