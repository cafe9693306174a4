"""From a stored event to what has to be said, if anything, and where."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from laneway.agent.subagents import is_child_id, root_of
from laneway.events import ApprovalAsked, ApprovalEnded, MessageEnded, TurnEnded, TurnReplied
from laneway.gateway.channels.port import Outgoing, Place, Saying
from laneway.kernel.messages import decode_message
from laneway.mail import ApprovalState, Message, MessageState, TurnState

if TYPE_CHECKING:
    from laneway.gateway.hub import Frame
    from laneway.ports import History

__all__ = ("SPOKEN", "Letters")

SPOKEN: Final = frozenset({TurnReplied.type, TurnEnded.type, MessageEnded.type, ApprovalAsked.type, ApprovalEnded.type})
"""The types of events that may have to be told."""
FAILED: Final = "This could not be answered: the run ended with an error. Send it again, or ask whoever runs this."


class Letters:
    """Makes what a channel says from the events of its sessions."""

    def __init__(self, history: History, place: Place, account: str = "") -> None:
        self._history = history
        self._place = place
        self._account = account

    async def of(self, frame: Frame) -> Outgoing | None:
        """What has to be said because of an event; None: nothing, or not here."""
        facts = frame.data
        match frame.type:
            case TurnReplied.type:
                return await self._reply(frame, facts)
            case TurnEnded.type if facts.get("state") == TurnState.FAILED:
                return await self._failure(frame, facts)
            case MessageEnded.type:
                return await self._ending(frame, facts)
            case ApprovalAsked.type:
                return self._request(frame, facts)
            case ApprovalEnded.type if facts.get("state") == ApprovalState.EXPIRED:
                text = f"Request {facts['approval_id']} has expired, and was not carried out."
                return self._saying(frame, Saying.NOTICE, text, f"{facts['approval_id']}.expired")
            case _:
                return None

    async def _reply(self, frame: Frame, facts: dict[str, Any]) -> Outgoing | None:
        # A turn of the clock or of a sub-agent's end has no route of its own: its session says whom it is for.
        is_ours = facts["channel"] in ("", self._place.name) and facts["account"] in ("", self._account)
        if not is_ours or is_child_id(frame.owner.session):
            return None
        message = await self._message(facts["message_id"])
        said_id = f"{facts['turn_id']}.{facts['part']}"
        return self._saying(frame, Saying.REPLY, facts["text"], said_id, message, part=facts["part"])

    async def _failure(self, frame: Frame, facts: dict[str, Any]) -> Outgoing | None:
        row = await self._history.state("turn", facts["turn_id"])
        ids = json.loads(row.body).get("messages") if row is not None else None
        message = await self._message(ids[0]) if ids else None
        if message is None or not self._is_ours(message) or is_child_id(frame.owner.session):
            return None
        return self._saying(frame, Saying.FAILURE, FAILED, f"{facts['turn_id']}.failed", message)

    async def _ending(self, frame: Frame, facts: dict[str, Any]) -> Outgoing | None:
        is_command = facts["state"] == MessageState.COMMAND
        if not (is_command or facts["notice"]):
            return None
        row = await self._history.message(facts["message_id"])
        if row is None:
            return None
        message, _ = decode_message(row)
        if not self._is_ours(message):
            return None
        said_id = f"{message.id}.ended"
        if is_command:
            return self._saying(frame, Saying.COMMAND, row.reason, said_id, message)
        return self._saying(frame, Saying.NOTICE, facts["notice"], said_id, message)

    def _request(self, frame: Frame, facts: dict[str, Any]) -> Outgoing:
        approval_id = facts["approval_id"]
        text = (
            f"Approval is needed: {facts['action']}\n{facts['arguments']}\n\n"
            f"/approve {approval_id}\n/deny {approval_id} reason"
        )
        facts = {name: facts[name] for name in ("approval_id", "action", "arguments", "expires_ms")}
        return self._saying(frame, Saying.APPROVAL, text, f"{approval_id}.{frame.seq}", **facts)

    def _is_ours(self, message: Message) -> bool:
        return message.channel == self._place.name and message.account == self._account

    async def _message(self, message_id: str) -> Message | None:
        row = await self._history.message(message_id) if message_id else None
        return None if row is None else decode_message(row)[0]

    def _saying(
        self, frame: Frame, kind: Saying, text: str, said_id: str, message: Message | None = None, **more: Any
    ) -> Outgoing:
        mine = message if message is not None and self._is_ours(message) else None
        return Outgoing(
            seq=frame.seq,
            id=said_id,
            kind=kind,
            event=frame.type,
            at_ms=frame.data["at_ms"],
            session_key=root_of(frame.owner.session),
            text=text,
            turn_id=frame.data.get("turn_id", ""),
            message_id=message.id if message is not None else "",
            reply_to=(mine.message_id or "") if mine is not None else "",
            thread=mine.thread if mine is not None else "",
            **more,
        )
