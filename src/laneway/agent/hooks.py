"""Hooks: code of the user that is told what happens in a session, and may stop it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ("HookVerdict", "Hooks")


@dataclass(frozen=True, slots=True, kw_only=True)
class HookVerdict:
    """What the hooks of one event say together."""

    action: str = "continue"  # block, skip, retry
    reason: str = ""
    arguments: dict[str, Any] | None = None  # changed by a hook
    delay_ms: int = 0


class Hooks:
    """The hooks of one session."""

    def wants(self, event_type: str) -> bool:
        """Whether any hook is there for an event."""
        return False

    async def ask(self, event_type: str, payload: Mapping[str, Any]) -> HookVerdict:
        """Ask the hooks of an event that may be stopped."""
        return HookVerdict()

    async def tell(self, event_type: str, payload: Mapping[str, Any]) -> None:
        """Tell the hooks of an event that has happened."""

    def register(
        self,
        hook_id: str,
        event_type: str,
        matcher: Mapping[str, Any] | None = None,
        config: Mapping[str, Any] | None = None,
        handler: Callable[[Mapping[str, Any]], Any] | None = None,
    ) -> None:
        """Add a hook."""

    def unregister(self, hook_id: str) -> bool:
        """Take a hook away."""
        return False

    def __len__(self) -> int:
        return 0
