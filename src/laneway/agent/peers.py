"""One session calls another: the message says where it comes from, and the receiver's hooks and watchers hear of it.

What marks such a message is an attachment that only counts together with a right of its sender, which nobody who
talks to a session from outside can have.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final

from laneway.agent_events import AgentEvent, PeerInvocationEvent
from laneway.errors import InvalidMessageError, UnknownMessageError
from laneway.kernel.messages import decode_message
from laneway.mail import Sender

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractAsyncContextManager

    from laneway.agent.host import Host
    from laneway.agent.subagents import Delegates
    from laneway.identity import Identity
    from laneway.mail import Final as Ended
    from laneway.mail import Message, Mode, Receipt
    from laneway.rows import Owner

__all__ = ("PEER", "Peering", "attachments_of", "invocation_of", "peer_marks")

PEER: Final = "laneway.peer"


def peer_marks(session_id: str, tenant: str, identity: Identity) -> tuple[Sender, dict[str, Any]]:
    """Who a message of a session is from, and the attachment that says so."""
    said = {
        "from_session_id": session_id,
        "from_tenant_id": identity.tenant_id or tenant,
        "correlation_id": identity.correlation_id,
    }
    return Sender(id=f"session:{session_id}", name=f"session {session_id}", rights=(PEER,)), {PEER: said}


def invocation_of(message: Message) -> PeerInvocationEvent | None:
    """Which session has sent a message; None for all that somebody else has sent."""
    if message.sender is None or PEER not in message.sender.rights:
        return None
    for each in message.attachments:
        said = each.get(PEER) if isinstance(each, dict) else None
        if isinstance(said, dict):
            return PeerInvocationEvent(**said)
    return None


def attachments_of(messages: Iterable[Message]) -> tuple[Any, ...]:
    """What came with messages, for the model: without what only Laneway reads."""
    return tuple(
        each
        for message in messages
        for each in message.attachments
        if not (isinstance(each, dict) and PEER in each and invocation_of(message) is not None)
    )


class Peering(ABC):
    """The side of a session that talks to its peers."""

    session_id: str
    owner: Owner
    host: Host
    identity: Identity
    delegates: Delegates

    @abstractmethod
    async def ready(self) -> Any:
        """Open what is needed."""

    @abstractmethod
    def arriving(self) -> AbstractAsyncContextManager[None]:
        """Open, and it does not leave before what is sent meanwhile is on disk."""

    @abstractmethod
    async def _publish(self, event: AgentEvent) -> None:
        """Tell watchers and hooks."""

    async def invoke_peer(
        self,
        session_id: str,
        text: str,
        *,
        tenant_id: str | None = None,
        mode: Mode | str | None = None,
        message_id: str | None = None,
    ) -> Receipt:
        """Say something to another session of the same store, of the same tenant unless `tenant_id` names another.

        It hears `peer_invocation` with the id, the tenant and the `correlation_id` of this one before its run begins.
        Returns when the message is on disk; `peer_answer` waits for what it says. Who runs it is whoever has that
        session open, now or later.
        """
        if not text:  # the mark beside it would let it pass
            raise InvalidMessageError("a message must not be empty")
        if session_id == self.session_id and tenant_id in (None, self.owner.tenant):
            raise InvalidMessageError(f"session {session_id!r} is no peer of its own", hint="followup() does that")
        async with self.arriving():
            sender, mark = peer_marks(self.session_id, self.owner.tenant, self.identity)
            return await self.host.inbox.submit(
                session_id,
                text,
                mode=mode or "followup",
                tenant=tenant_id or self.owner.tenant,
                sender=sender,
                message_id=message_id,
                attachments=[mark],
            )

    async def peer_answer(self, message_id: str) -> Ended:
        """Wait for the end of a message that `invoke_peer` has sent: its `answer`, or why there is none."""
        if not isinstance(message_id, str):
            raise InvalidMessageError(
                f"the id of a message is text, not {message_id!r:.100}",
                hint="it is message_id of what invoke_peer returns",
            )
        await self.ready()
        engine = self.host.inbox.engine
        item = engine.kernel.items.get(message_id)
        row = await engine.store.history.message(message_id) if item is None else None
        message = item.message if item is not None else None if row is None else decode_message(row)[0]
        said = None if message is None else invocation_of(message)
        mine = (self.session_id, self.identity.tenant_id or self.owner.tenant)
        if said is None or (said.from_session_id, said.from_tenant_id) != mine:
            raise UnknownMessageError(message_id=message_id)  # ids may be guessed, and tenants share a store
        return await engine.wait(message_id)

    async def tell_of_peers(self, messages: Iterable[Message]) -> None:
        """Messages of other sessions are about to be heard: watchers and hooks are told who sent them."""
        for message in messages:
            invocation = invocation_of(message)
            if invocation is not None:
                await self._publish(invocation)
