"""Messages: taken, looked at, changed while they wait."""

from __future__ import annotations

from typing import Any, Final

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, StrictInt, model_validator

from laneway.errors import ConflictError, MailboxFullError
from laneway.gateway import dead_mail
from laneway.gateway.access import Caller, Scope
from laneway.gateway.deps import (
    WORKSPACE_PARAMETERS,
    CallerOf,
    GatewayOf,
    asked_workspace,
    checked_caller,
    gateway_of,
)
from laneway.gateway.keys import IdempotencyKey
from laneway.gateway.lookup import run_now
from laneway.gateway.service import Gateway
from laneway.gateway.views import MessageView, StepView, Taken, View, router_of
from laneway.gateway.workspaces import Workspace
from laneway.kernel import directives
from laneway.kernel.messages import decode_message
from laneway.mail import MessageState, Mode, Sender
from laneway.rows import MessageRow, Owner

__all__ = ("router",)

router = router_of("messages")

KEY_MAX: Final = 512
IDEMPOTENCY_PARAMETER: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "The same key again changes nothing.",
    "schema": {"type": "string", "minLength": 1, "maxLength": KEY_MAX},
}


class NewMessage(BaseModel):
    """A message to a session."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"text": "Hello"}, {"text": "Use the other file", "mode": "steer"}]},
    )

    text: str = Field(description="What is said.")
    mode: Mode | None = Field(None, description="What it does if the session is busy; else the session's own mode.")
    sender: str | None = Field(None, min_length=1, max_length=200, description="For whom the caller speaks.")
    sender_name: str | None = Field(None, max_length=200)
    channel: str = Field("", max_length=100)
    thread: str = Field("", max_length=200)
    attachments: list[dict[str, Any]] = Field(default_factory=list, max_length=100)
    expires_ms: StrictInt | None = Field(None, ge=1, le=31_536_000_000)


class Edit(BaseModel):
    """Another text for a message that waits, or another mode, or both."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"text": "Hello, everybody"}, {"mode": "interrupt"}]}
    )

    text: str | None = None
    mode: Mode | None = Field(None, description="It does what this mode does, as if it came with it now.")

    @model_validator(mode="after")
    def _says_something(self) -> Edit:
        if self.text is None and self.mode is None:
            raise ValueError("nothing is to be changed")
        return self


class Move(BaseModel):
    """Another place for a message that waits."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"position": 1}]})

    position: StrictInt = Field(ge=1, le=1_000_000_000, description="Its place among those that wait, from 1.")


class MessageStory(View):
    """The whole life of a message."""

    message: MessageView
    steps: list[StepView]
    text: str = Field(description="The same for people.")


@router.post(
    "/sessions/{key}/messages",
    status_code=202,
    summary="Send a message",
    response_model=Taken,
    openapi_extra={"parameters": [*WORKSPACE_PARAMETERS, IDEMPOTENCY_PARAMETER]},
)
async def send(key: str, body: NewMessage, request: Request) -> Response:
    """Take a message. The answer comes when it is on disk; what becomes of it is told by the events."""
    # The busiest route: it reads its headers by itself and writes its answer once, which halves what FastAPI costs.
    gateway, caller, workspace = gateway_of(request), checked_caller(request, Scope.CHAT), asked_workspace(request)
    taken = await take(gateway, caller, workspace, key, body, idempotency_key=_idempotency_key(request))
    headers = {"Location": f"/v1/messages/{taken.message_id}"}
    if taken.duplicate:
        headers["Idempotent-Replayed"] = "true"
    return Response(taken.model_dump_json(), 202, headers, "application/json")


async def take(
    gateway: Gateway,
    caller: Caller,
    workspace: Workspace,
    key: str,
    body: NewMessage,
    *,
    idempotency_key: str | None = None,
) -> Taken:
    """Take a message of a caller; its receipt."""
    sender = caller.sender(body.sender, body.sender_name)
    try:
        receipt = await gateway.submit(
            workspace,
            caller,
            key,
            body.text,
            sender=sender,
            mode=body.mode,
            channel=body.channel or "api",
            account=caller.token_id,
            thread=body.thread,
            attachments=body.attachments,
            message_id=idempotency_key,
            expires_ms=body.expires_ms,
        )
    except MailboxFullError as error:
        vars(error)["waiting"] = len(workspace.inbox.pending(key, tenant=caller.tenant))  # a fact of the problem
        raise
    if receipt.duplicate:
        _, row = await gateway.find_message(caller, receipt.message_id)
        if not _is_same(row, body, sender):
            raise ConflictError(
                "this idempotency key was used for another message",
                hint="use a new key for a new message",
                message_id=receipt.message_id,
            )
    return Taken.of(receipt)


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("idempotency-key")
    if key is not None and not 1 <= len(key) <= KEY_MAX:
        wrong = f"an idempotency key has 1 to {KEY_MAX} characters, not {len(key)}"
        raise RequestValidationError([{"type": "length", "loc": ("header", "Idempotency-Key"), "msg": wrong}])
    return key


def _is_same(row: MessageRow, body: NewMessage, sender: Sender) -> bool:
    """Whether a message that was taken is the one that is sent now. A mode that is not said is not compared."""
    before, _ = decode_message(row)
    directive = directives.parse(body.text)
    texts = {body.text}
    if isinstance(directive, directives.Inline | directives.SendAs):
        texts.add(directive.text)  # what is left of it once its options are taken out
    return (
        before.text in texts
        and (before.sender.id if before.sender is not None else None) == sender.id
        and list(before.attachments) == body.attachments
        and (body.mode is None or before.mode is body.mode)
    )


@router.get("/messages/{message_id}", summary="One message and what became of it")
async def show(message_id: str, gateway: GatewayOf, caller: CallerOf) -> MessageView:
    """Where a message is, or what has become of it."""
    workspace, row = await gateway.find_message(caller, message_id)
    return MessageView.of(row, await workspace.inbox.status(message_id))


@router.patch("/messages/{message_id}", summary="Change the text or the mode of a waiting message")
async def edit(message_id: str, body: Edit, gateway: GatewayOf, caller: CallerOf) -> MessageView:
    """Change what a message says while it waits, or what it does: it keeps its place, and a held one is released."""
    workspace, _ = await gateway.find_message(caller, message_id)
    if body.text is not None:
        await workspace.inbox.edit(message_id, body.text, actor=caller.name)
    if body.mode is not None:
        await workspace.inbox.send_as(message_id, body.mode, actor=caller.name)
    return await _shown(gateway, caller, message_id)


@router.delete("/messages/{message_id}", summary="Take a waiting message back")
async def withdraw(message_id: str, gateway: GatewayOf, caller: CallerOf) -> MessageView:
    """Take a message back that has not begun. It stays in the history, as withdrawn."""
    workspace, _ = await gateway.find_message(caller, message_id)
    await workspace.inbox.withdraw(message_id, actor=caller.name)
    return await _shown(gateway, caller, message_id)


@router.post("/messages/{message_id}/steer", summary="Send a waiting message into the running turn")
async def steer(message_id: str, gateway: GatewayOf, caller: CallerOf) -> MessageView:
    """Aim a waiting message at the run that goes on. `parked`: it goes in at the next boundary."""
    workspace, _ = await gateway.find_message(caller, message_id)
    if not await workspace.inbox.steer_now(message_id, actor=caller.name):
        raise ConflictError(
            "this message may not go into what runs; it keeps its place",
            hint="nothing runs there, or the run belongs to another route",
            message_id=message_id,
        )
    return await _shown(gateway, caller, message_id)


@router.post("/messages/{message_id}/hold", summary="Set a waiting message aside")
async def hold(message_id: str, gateway: GatewayOf, caller: CallerOf) -> MessageView:
    """Set a message aside; others pass it."""
    workspace, _ = await gateway.find_message(caller, message_id)
    await workspace.inbox.hold(message_id, actor=caller.name)
    return await _shown(gateway, caller, message_id)


@router.post("/messages/{message_id}/release", summary="Let a held message wait again")
async def release(message_id: str, gateway: GatewayOf, caller: CallerOf) -> MessageView:
    """Let a held message wait in its place again."""
    workspace, _ = await gateway.find_message(caller, message_id)
    await workspace.inbox.release(message_id, actor=caller.name)
    return await _shown(gateway, caller, message_id)


@router.post("/messages/{message_id}/move", summary="Give a waiting message another place")
async def move(message_id: str, body: Move, gateway: GatewayOf, caller: CallerOf) -> MessageView:
    """Give a message another place among those that wait."""
    workspace, _ = await gateway.find_message(caller, message_id)
    await workspace.inbox.move(message_id, body.position, actor=caller.name)
    return await _shown(gateway, caller, message_id)


@router.post("/messages/{message_id}/retry", status_code=202, summary="Send a message again that did not succeed")
async def retry(
    message_id: str, gateway: GatewayOf, caller: CallerOf, response: Response, key: IdempotencyKey = None
) -> Taken:
    """Send it again: a new message with the same content, at the end of its queue."""
    workspace, row = await gateway.find_message(caller, message_id)
    gateway.admission.check()
    if row.state == MessageState.DEAD_LETTERED:
        receipt = await dead_mail.retry_message(gateway, caller, message_id)
    else:
        receipt = await workspace.inbox.retry(message_id, key=None if key is None else f"retry/{message_id}/{key}")
    response.headers["Location"] = f"/v1/messages/{receipt.message_id}"
    return Taken.of(receipt)


@router.get("/messages/{message_id}/explain", summary="The whole life of a message")
async def explain(message_id: str, gateway: GatewayOf, caller: CallerOf) -> MessageStory:
    """Everything that has happened to a message, and why."""
    workspace, row = await gateway.find_message(caller, message_id)
    story = await workspace.inbox.explain(message_id)
    steps = [StepView.of(step) for step in story.steps]
    now = run_now(workspace, Owner(row.tenant, row.workspace, row.session), story.final.turn_id)
    text = f"{story.text}\n{now}" if now else story.text
    return MessageStory(message=MessageView.of(row, story.final), steps=steps, text=text)


async def _shown(gateway: Gateway, caller: Caller, message_id: str) -> MessageView:
    workspace, row = await gateway.find_message(caller, message_id)
    return MessageView.of(row, await workspace.inbox.status(message_id))
