"""A message of a channel on its way in: the one road to the inbox that all channels take."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from laneway.errors import ClosedError
from laneway.gateway.channels.port import Place
from laneway.kernel import directives
from laneway.mail import Receipt, Sender

if TYPE_CHECKING:
    from laneway.gateway.service import Gateway

__all__ = ("submit",)


async def submit(gateway: Gateway, place: Place, key: str, text: str, *, sender: Sender, **more: Any) -> Receipt:
    """Take a message; `more` are arguments of `Inbox.submit`. Returns when it is on disk.

    An answer to a request for approval is an action of an operator: it is in their log before it is done.
    """
    if gateway.is_stopping:
        raise ClosedError(opened=True, what="gateway")  # whoever sent it sends it again
    workspace = gateway.workspace(place.workspace)
    said = directives.parse(text)
    if isinstance(said, directives.Approve | directives.Deny):
        pending = [each for each in workspace.inbox.approvals(tenant=place.tenant) if each.id == said.approval_id]
        if pending and pending[0].may_be_answered_by(sender):
            action = "approval.approve" if isinstance(said, directives.Approve) else "approval.deny"
            who = replace(place.caller, name=sender.id)
            await gateway.audit.record(who, action, said.approval_id, reason=getattr(said, "reason", ""))
    return await gateway.submit(workspace, place.caller, key, text, sender=sender, channel=place.name, **more)
