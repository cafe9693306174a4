"""Dead letters: what needs somebody's care, to be mended, sent again or forgotten, one by one or many at once."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final, Literal

from fastapi import Header, Query
from pydantic import BaseModel, ConfigDict, Field, StrictInt, StringConstraints, model_validator

from laneway.errors import NotFoundError
from laneway.gateway import dead_mail
from laneway.gateway.deps import CallerOf, GatewayOf, OperatorOf, WorkspaceOf
from laneway.gateway.letter_facts import LetterQuery, kind_of, letter_facts
from laneway.gateway.letter_lists import Action, Chosen, Dealer, Dealt, Letters, chosen, key_of
from laneway.gateway.routes.messages import KEY_MAX
from laneway.gateway.routes.sessions import Limit
from laneway.gateway.views import REASON_MAX, Page, Reason, View, router_of

__all__ = ("router",)

router = router_of("dead-letters")

MANY_MAX: Final = 500
CURSOR_MAX: Final = 300
TEXT_MAX: Final = 1_000
TIME_MAX: Final = 1 << 53

Kind = Literal["message", "call", "job"]
Status = Literal["open", "retried", "purged"]
Part = Annotated[str, StringConstraints(max_length=TEXT_MAX)]
Name = Annotated[str, StringConstraints(max_length=400)]
When = Annotated[int, Field(ge=0, le=TIME_MAX)]
KeyOf = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key", min_length=1, max_length=KEY_MAX, description="The same key again changes nothing."
    ),
]


class LetterView(View):
    """A message whose turn could never be begun, a call that failed for good, or a job of the server."""

    letter_id: str
    kind: Kind
    workspace: str | None = None
    session_key: str | None = None
    lane: str | None = None
    what: str = Field(description="The tool or the handler; `message` for a message.")
    text: str | None = Field(None, description="What a message says when it is sent again.")
    edited: bool = Field(default=False, description="Whether that is something else than it said.")
    arguments: Any = Field(None, description="What a call or a job is called with.")
    error: str
    attempts: int | None = None
    died_ms: int
    status: Status = Field("open", description="What became of it: `open` if nothing did.")
    message_id: str | None = Field(None, description="The message that it has become.")


class Mending(BaseModel):
    """What a letter is to say, or to be called with, when it is sent again."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"text": "Hello, once more"}]})

    text: str | None = Field(None, min_length=1, max_length=1_000_000, description="Of a message.")
    args: list[Any] | None = Field(None, max_length=100, description="Of a job.")
    reason: str = Field("", max_length=REASON_MAX)

    @model_validator(mode="after")
    def _says_something(self) -> Mending:
        if self.text is None and self.args is None:
            raise ValueError("nothing is to be changed")
        return self


class SentAgain(View):
    """What a letter has become."""

    letter_id: str
    kind: Kind
    message_id: str | None = None
    job_id: str | None = None


class LetterFilter(BaseModel):
    """Which letters: those that fit everything that is said here."""

    model_config = ConfigDict(extra="forbid")

    kind: Kind | None = None
    session: Name = Field("", description="Of one session and its sub-agents only.")
    lane: Name = Field("", description="A part of the name of the lane.")
    tool: Name = Field("", description="Of one tool or handler only; `message` for messages.")
    text: Part = Field("", description="A part of what it says, or is called with.")
    error: Part = Field("", description="A part of what went wrong.")
    since_ms: When = Field(0, description="Died at this time or later.")
    until_ms: When = Field(0, description="Died before this time.")

    def to_query(self, status: str = "open") -> LetterQuery:
        """The same for those who look."""
        return LetterQuery(status=status, **{**self.model_dump(), "kind": self.kind or ""})


class Choice(BaseModel):
    """Which letters something is to be done to: those that are named, or those that fit a filter."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"ids": ["msg-1", "msg-2"]}]})

    ids: list[Name] | None = Field(None, min_length=1, max_length=MANY_MAX)
    filter: LetterFilter | None = Field(None, description="Oldest first; an empty one means all of them.")
    after: str = Field("", max_length=CURSOR_MAX, description="With a filter: what `next` said.")
    limit: StrictInt = Field(100, ge=1, le=MANY_MAX, description="With a filter: at most so many in one request.")
    reason: str = Field("", max_length=REASON_MAX)

    @model_validator(mode="after")
    def _is_one_of_two(self) -> Choice:
        if (self.ids is None) == (self.filter is None):
            raise ValueError("either ids or a filter is needed")
        return self


class DealtView(View):
    """What became of one letter."""

    letter_id: str
    kind: Kind | None = None
    outcome: Literal["sent", "purged", "gone", "refused"] = Field(
        description="`gone`: somebody else was faster, or there never was such a letter. `refused`: it waits as before."
    )
    message_id: str | None = None
    job_id: str | None = None
    code: str | None = None
    detail: str | None = Field(None, description="Why it was refused.")

    @classmethod
    def of(cls, dealt: Dealt) -> DealtView:
        """The same for a caller."""
        facts: dict[str, Any] = {"letter_id": dealt.letter_id, "kind": dealt.kind, "outcome": dealt.outcome}
        facts |= {"message_id": dealt.sent.message_id, "job_id": dealt.sent.job_id}
        if dealt.error is not None:
            facts |= {"code": dealt.error.code, "detail": str(dealt.error)}
        return cls(**facts)


@router.get("/dead-letters", summary="What could not be done, again and again")
async def ls(
    gateway: GatewayOf,
    caller: CallerOf,
    workspace: WorkspaceOf,
    *,
    status: Annotated[Status | Literal["any"], Query(description="What became of them.")] = "open",
    kind: Annotated[Kind | None, Query()] = None,
    session: Annotated[str, Query(max_length=400, description="Of one session and its sub-agents only.")] = "",
    lane: Annotated[str, Query(max_length=400, description="A part of the name of the lane.")] = "",
    tool: Annotated[str, Query(max_length=400, description="Of one tool or handler only.")] = "",
    text: Annotated[str, Query(max_length=TEXT_MAX, description="A part of what it says, or is called with.")] = "",
    error: Annotated[str, Query(max_length=TEXT_MAX, description="A part of what went wrong.")] = "",
    since_ms: Annotated[int, Query(ge=0, le=TIME_MAX, description="Died at this time or later.")] = 0,
    until_ms: Annotated[int, Query(ge=0, le=TIME_MAX, description="Died before this time.")] = 0,
    order: Annotated[Literal["oldest", "newest"], Query(description="Which come first.")] = "oldest",
    after: Annotated[str, Query(max_length=CURSOR_MAX)] = "",
    limit: Limit = 200,
) -> Page[LetterView]:
    """Dead letters of the caller's tenant: calls of sessions in memory first, then messages.

    A page may be short, or empty, and still have a `next`.
    """
    query = LetterQuery(status, kind or "", session, lane, tool, text, error, since_ms, until_ms)
    letters = Letters(gateway, caller, workspace)
    found, rest = await letters.page(query, after=after, limit=limit, newest=order == "newest")
    return Page(items=[LetterView(**letter_facts(letter)) for letter in found], next=rest)


@router.post("/dead-letters/retry", summary="Send many dead letters again")
async def retry_many(
    body: Choice, gateway: GatewayOf, caller: OperatorOf, workspace: WorkspaceOf, key: KeyOf = None
) -> Page[DealtView]:
    """Send letters again, and say of each what became of it. One that is refused changes nothing for the others.

    With an `Idempotency-Key` the same request may be made again, after a crash too: no letter is sent twice.
    """
    return await _many(Letters(gateway, caller, workspace), body, "retry", key)


@router.post("/dead-letters/purge", summary="Forget many dead letters")
async def purge_many(
    body: Choice, gateway: GatewayOf, caller: OperatorOf, workspace: WorkspaceOf, key: KeyOf = None
) -> Page[DealtView]:
    """Forget letters, and say of each what became of it; messages stay in the history of their sessions."""
    return await _many(Letters(gateway, caller, workspace), body, "purge", key)


@router.get("/dead-letters/{letter_id}", summary="One dead letter")
async def show(letter_id: str, gateway: GatewayOf, caller: CallerOf) -> LetterView:
    """What could not be done, and why; of a message also when it was sent again or forgotten since."""
    return LetterView(**letter_facts(await dead_mail.find(gateway, caller, letter_id, gone=True)))


@router.patch("/dead-letters/{letter_id}", summary="Change a dead letter before it is sent again")
async def edit(letter_id: str, body: Mending, gateway: GatewayOf, caller: OperatorOf) -> LetterView:
    """Change the text of a message or the arguments of a job. A call of a tool is made again as it was."""
    async with dead_mail.changing(gateway, caller, letter_id) as letter:
        await gateway.audit.record(caller, "dead_letter.edit", letter_id, reason=body.reason)
        return LetterView(**letter_facts(await dead_mail.edit(letter, text=body.text, args=body.args)))


@router.post("/dead-letters/{letter_id}/retry", status_code=202, summary="Send a dead letter again")
async def retry(
    letter_id: str, gateway: GatewayOf, caller: OperatorOf, body: Reason | None = None, key: KeyOf = None
) -> SentAgain:
    """Send it again, as a new message or a new job; it leaves the dead letters."""
    by, reason = key_of(caller, key), "" if body is None else body.reason
    try:
        async with dead_mail.changing(gateway, caller, letter_id) as letter:
            gateway.admission.check()
            await gateway.audit.record(caller, "dead_letter.retry", letter_id, reason=reason)
            sent, kind = await dead_mail.retry(letter, caller, by=by), kind_of(letter)
    except NotFoundError:
        before = await dead_mail.sent_before(gateway, caller, letter_id, by)
        if before is None:
            raise
        sent, kind = before, "message" if before.message_id else "call"
    facts: dict[str, Any] = {"letter_id": letter_id, "kind": kind}
    return SentAgain(**facts, message_id=sent.message_id, job_id=sent.job_id)


@router.delete("/dead-letters/{letter_id}", status_code=204, summary="Forget a dead letter")
async def purge(
    letter_id: str,
    gateway: GatewayOf,
    caller: OperatorOf,
    reason: Annotated[str, Query(max_length=REASON_MAX)] = "",
) -> None:
    """Forget it; a message stays in the history of its session."""
    async with dead_mail.changing(gateway, caller, letter_id) as letter:
        await gateway.audit.record(caller, "dead_letter.purge", letter_id, reason=reason)
        await dead_mail.purge(letter)


async def _many(letters: Letters, body: Choice, action: Action, key: str | None) -> Page[DealtView]:
    gateway, caller, by = letters.gateway, letters.caller, key_of(letters.caller, key)
    lock = gateway.letter_locks.setdefault(f"plan {by}", asyncio.Lock()) if by else asyncio.Lock()
    async with lock:  # the same request at the same time is answered when the first one is over
        asked = {"action": action, "workspace": letters.workspace.name, **body.model_dump(exclude={"reason"})}
        which = await chosen(gateway, caller, asked, await _first(letters, body), by)
        dealt = await Dealer(gateway, caller, action, by).deal_with(which.ids, body.reason)
    return Page(items=[DealtView.of(each) for each in dealt], next=which.rest)


async def _first(letters: Letters, body: Choice) -> Chosen:
    """What a request is about if it has not come before."""
    if body.filter is None:
        return Chosen(body.ids or [])
    found, rest = await letters.page(body.filter.to_query(), after=body.after, limit=body.limit)
    return Chosen([letter.id for letter in found], rest)
