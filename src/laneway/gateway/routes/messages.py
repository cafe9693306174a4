"""Messages: taken, looked at, changed while they wait."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Response
from pydantic import BaseModel, ConfigDict, Field

from laneway.errors import ConflictError
from laneway.gateway.deps import CallerOf, GatewayOf, WorkspaceOf
from laneway.mail import Mode

__all__ = ("router",)

router = APIRouter(tags=["messages"])


class NewMessage(BaseModel):
    """A message to a session."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"text": "Hello"}]})

    text: str = Field(description="What is said.")
    mode: Mode | None = Field(None, description="What it does if the session is busy; else the session's own mode.")
    sender: str | None = Field(None, min_length=1, max_length=200, description="For whom the caller speaks.")
    sender_name: str | None = Field(None, max_length=200)
    channel: str = Field("", max_length=100)
    thread: str = Field("", max_length=200)
    attachments: list[dict[str, Any]] = Field(default_factory=list, max_length=100)
    expires_ms: int | None = Field(None, ge=1, le=31_536_000_000)


class Taken(BaseModel):
    """A receipt: the message is on disk."""

    message_id: str
    disposition: str
    position: int | None = None
    reason: str = ""
    reply: str | None = Field(None, description="The answer of a command.")
    duplicate: bool = Field(default=False, description="The same idempotency key was seen before.")


@router.post("/sessions/{key}/messages", status_code=202, summary="Send a message")
async def send(
    key: str,
    body: NewMessage,
    gateway: GatewayOf,
    caller: CallerOf,
    workspace: WorkspaceOf,
    response: Response,
    idempotency_key: Annotated[str | None, Header(max_length=512)] = None,
) -> Taken:
    """Take a message. The answer comes when it is on disk; what becomes of it is told by the events."""
    receipt = await gateway.submit(
        workspace,
        caller,
        key,
        body.text,
        sender=caller.sender(body.sender, body.sender_name),
        mode=body.mode,
        channel=body.channel or "api",
        account=caller.token_id,
        thread=body.thread,
        attachments=body.attachments,
        message_id=idempotency_key,
        expires_ms=body.expires_ms,
    )
    if receipt.duplicate:
        _, row = await gateway.find_message(caller, receipt.message_id)
        if not _is_same(row.body, body):
            raise ConflictError(
                "this idempotency key was used for another message",
                hint="use a new key for a new message",
                message_id=receipt.message_id,
            )
        response.headers["Idempotent-Replayed"] = "true"
    response.headers["Location"] = f"/v1/messages/{receipt.message_id}"
    return Taken(
        message_id=receipt.message_id,
        disposition=receipt.disposition,
        position=receipt.position,
        reason=receipt.reason,
        reply=receipt.reply,
        duplicate=receipt.duplicate,
    )


def _is_same(stored: str, body: NewMessage) -> bool:
    import json

    return str(json.loads(stored).get("text", "")) == body.text
