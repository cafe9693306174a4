"""Dead letters: what needs somebody's care, to be mended, sent again or forgotten."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, model_validator

from laneway.gateway import dead_mail
from laneway.gateway.deps import CallerOf, GatewayOf, OperatorOf, WorkspaceOf
from laneway.gateway.routes.sessions import Limit
from laneway.gateway.views import Page, Reason, View, router_of, seq_of

__all__ = ("router",)

router = router_of("dead-letters")


class LetterView(View):
    """A message whose turn could never be begun, a call that failed for good, or a job of the server."""

    letter_id: str
    kind: Literal["message", "call", "job"]
    workspace: str | None = None
    session_key: str | None = None
    lane: str | None = None
    what: str = Field(description="The tool or the handler; `message` for a message.")
    text: str | None = Field(None, description="What a message says when it is sent again.")
    arguments: Any = Field(None, description="What a call or a job is called with.")
    error: str
    attempts: int | None = None
    died_ms: int


class Mending(BaseModel):
    """What a letter is to say, or to be called with, when it is sent again."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"text": "Hello, once more"}]})

    text: str | None = Field(None, min_length=1, max_length=1_000_000, description="Of a message.")
    args: list[Any] | None = Field(None, max_length=100, description="Of a job.")
    reason: str = Field("", max_length=2_000)

    @model_validator(mode="after")
    def _says_something(self) -> Mending:
        if self.text is None and self.args is None:
            raise ValueError("nothing is to be changed")
        return self


class SentAgain(View):
    """What a letter has become."""

    letter_id: str
    kind: Literal["message", "call", "job"]
    message_id: str | None = None
    job_id: str | None = None


@router.get("/dead-letters", summary="What could not be done, again and again")
async def ls(
    gateway: GatewayOf,
    caller: CallerOf,
    workspace: WorkspaceOf,
    after: Annotated[str, Query(max_length=20)] = "",
    limit: Limit = 200,
) -> Page[LetterView]:
    """Dead letters of the caller's tenant: calls of sessions in memory on the first page, then messages."""
    found, rest = await dead_mail.messages(workspace, caller.tenant, after_seq=seq_of(after), limit=limit)
    first = [] if after else list(dead_mail.first_letters(gateway, workspace, caller))
    return Page(items=[_view(letter) for letter in (*first, *found)], next=str(rest) if rest else None)


@router.get("/dead-letters/{letter_id}", summary="One dead letter")
async def show(letter_id: str, gateway: GatewayOf, caller: CallerOf) -> LetterView:
    """What could not be done, and why."""
    return _view(await dead_mail.find(gateway, caller, letter_id))


@router.patch("/dead-letters/{letter_id}", summary="Change a dead letter before it is sent again")
async def edit(letter_id: str, body: Mending, gateway: GatewayOf, caller: OperatorOf) -> LetterView:
    """Change the text of a message or the arguments of a job. A call of a tool is made again as it was."""
    letter = await dead_mail.find(gateway, caller, letter_id)
    await gateway.audit.record(caller, "dead_letter.edit", letter_id, reason=body.reason)
    return _view(await dead_mail.edit(letter, text=body.text, args=body.args))


@router.post("/dead-letters/{letter_id}/retry", status_code=202, summary="Send a dead letter again")
async def retry(letter_id: str, gateway: GatewayOf, caller: OperatorOf, body: Reason | None = None) -> SentAgain:
    """Send it again, as a new message or a new job; it leaves the dead letters."""
    letter = await dead_mail.find(gateway, caller, letter_id)
    gateway.admission.check()
    await gateway.audit.record(caller, "dead_letter.retry", letter_id, reason="" if body is None else body.reason)
    message_id, job_id = await dead_mail.retry(letter)
    return SentAgain(letter_id=letter_id, kind=_kind(letter), message_id=message_id, job_id=job_id)


@router.delete("/dead-letters/{letter_id}", status_code=204, summary="Forget a dead letter")
async def purge(
    letter_id: str,
    gateway: GatewayOf,
    caller: OperatorOf,
    reason: Annotated[str, Query(max_length=2_000)] = "",
) -> None:
    """Forget it; a message stays in the history of its session."""
    letter = await dead_mail.find(gateway, caller, letter_id)
    await gateway.audit.record(caller, "dead_letter.purge", letter_id, reason=reason)
    await dead_mail.purge(letter)


def _kind(letter: dead_mail.Letter) -> Literal["message", "call", "job"]:
    match letter:
        case dead_mail.DeadMessage():
            return "message"
        case dead_mail.DeadCall():
            return "call"
        case dead_mail.DeadJob():
            return "job"


def _view(letter: dead_mail.Letter) -> LetterView:
    facts: dict[str, Any]
    match letter:
        case dead_mail.DeadMessage(row=row):
            facts = {"session_key": row.session, "workspace": row.workspace, "what": "message", "text": letter.text}
            facts |= {"letter_id": row.id, "error": row.reason, "died_ms": row.ended_ms}
        case dead_mail.DeadCall(letter=call):
            facts = {"session_key": letter.session.session_id, "workspace": letter.workspace.name}
            facts |= {"lane": call["lane"], "what": call["command_type"], "arguments": _plain(call["payload"])}
            facts |= {"letter_id": call["command_id"], "error": call["error"], "died_ms": call["failed_at"]}
            facts["attempts"] = call["attempts"]
        case dead_mail.DeadJob(letter=job):
            facts = {"lane": job.lane, "what": job.handler, "arguments": _plain(list(job.args))}
            facts |= {"letter_id": job.id, "error": job.error, "died_ms": job.died_ms, "attempts": job.attempts}
    return LetterView(kind=_kind(letter), **facts)


def _plain(value: Any) -> Any:
    """As JSON: what a job is called with may be anything."""
    return json.loads(json.dumps(value, default=repr))
