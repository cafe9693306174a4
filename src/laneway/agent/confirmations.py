"""Confirmations: somebody is asked before a call is made, about exactly what will be done."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.agent.gates import Refusal

if TYPE_CHECKING:
    from laneway.agent.gates import Asked
    from laneway.agent.session import AsyncSession

__all__ = ("Confirmations",)


class Confirmations:
    """The requests for approval of one session."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        policy = session.settings.confirmation_policy
        self.policy = policy if policy is not None and policy.enabled else None

    @property
    def is_on(self) -> bool:
        """Whether somebody can be asked."""
        return self.policy is not None

    @property
    def bypassed_lanes(self) -> tuple[str, ...]:
        """Lanes whose calls nobody is asked about."""
        return tuple(self.policy.yolo_lanes) if self.policy is not None else ()

    async def ask(self, asked: Asked) -> Refusal | None:
        """Ask about one call and wait; None: it may be made, with exactly these arguments."""
        return Refusal(gate="approval", reason=asked.approval_reason)
