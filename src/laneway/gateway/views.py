"""What routes answer: records as JSON shapes, lists with a cursor, and problems, all of them in the OpenAPI."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Final, Generic, TypeVar

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field

from laneway.agent.replays import how_ended
from laneway.errors import InvalidMessageError
from laneway.gateway.problems import PROBLEM_JSON, TITLES
from laneway.kernel.ledger import LedgerEntry
from laneway.kernel.messages import decode_message
from laneway.mail import (
    Approval,
    HistoryEntry,
    Message,
    PendingMessage,
    QueueSettings,
    Receipt,
    Schedule,
    StoryStep,
)
from laneway.mail import Final as Ended
from laneway.options import LaneHandlerConfig
from laneway.records import LaneStats
from laneway.rows import MessageRow, StateRow

__all__ = (
    "ApprovalView",
    "HistoryView",
    "LaneView",
    "LedgerView",
    "LimitView",
    "MessageView",
    "Page",
    "PendingView",
    "ProblemView",
    "RateView",
    "Reason",
    "RunView",
    "ScheduleView",
    "SenderView",
    "SettingView",
    "StepView",
    "Taken",
    "View",
    "WaiterView",
    "describe",
    "page_of",
    "router_of",
    "seq_of",
    "settings_view",
)

T = TypeVar("T")
SEQ_MAX: Final = 1 << 62
LIMIT_MAX: Final = 1_000
REASON_MAX: Final = 2_000


class View(BaseModel):
    """Something that goes out."""

    model_config = ConfigDict(extra="forbid", json_schema_serialization_defaults_required=True)


class Page(View, Generic[T]):
    """A part of a list; ask again with `after` set to `next` for what follows."""

    items: list[T]
    next: str | None = Field(default=None, description="Where the rest begins; null at the end.")


def page_of(items: list[T], cursors: Sequence[object], limit: int) -> Page[T]:
    """A page whose rest, if there may be one, begins after the last of the rows it was made of."""
    return Page(items=items, next=str(cursors[-1]) if len(cursors) >= limit else None)


def seq_of(after: str) -> int:
    """The number that a cursor stands for."""
    if not after:
        return 0
    if not (after.isascii() and after.isdecimal() and len(after) <= 19 and int(after) < SEQ_MAX):
        raise InvalidMessageError("this is no cursor of this list", hint="use what `next` said, as it is")
    return int(after)


class Reason(BaseModel):
    """Why something is done. Nobody has to say it."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"reason": "it takes too long"}]})

    reason: str = Field("", max_length=REASON_MAX)


# ---- problems ----


class ProblemView(BaseModel):
    """Problem details (RFC 9457). `code` is stable; further facts of the problem stand beside it."""

    model_config = ConfigDict(
        extra="allow",
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:laneway:problem:unknown_message",
                    "title": "Not found",
                    "status": 404,
                    "detail": "there is no message 'msg-1'",
                    "code": "unknown_message",
                    "message_id": "msg-1",
                }
            ]
        },
    )

    type: str
    title: str
    status: int
    detail: str
    code: str
    hint: str | None = None


PROBLEM_CODES: Final = (400, 401, 403, 404, 409, 413, 415, 421, 422, 429, 502, 503)
PROBLEMS: Final[dict[int | str, dict[str, Any]]] = {
    status: {
        "description": TITLES[status],
        "content": {PROBLEM_JSON: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
    for status in PROBLEM_CODES
}
for _status in (429, 503):
    PROBLEMS[_status]["headers"] = {
        "Retry-After": {"description": "Seconds until it is worth another try.", "schema": {"type": "string"}}
    }


def router_of(tag: str) -> APIRouter:
    """A router for one noun: its problems are documented, its operation ids stay the same."""
    return APIRouter(tags=[tag], responses=PROBLEMS, generate_unique_id_function=operation_of)


def operation_of(route: APIRoute) -> str:
    """`messages_send` for the function `send` of the routes of messages."""
    return f"{route.tags[0]}_{route.name}".replace("-", "_")


def describe(app: FastAPI) -> None:
    """Put what every route refers to into the OpenAPI: the shape of problems, and how a caller says who it is."""
    plain: Callable[[], dict[str, Any]] = app.openapi

    def openapi() -> dict[str, Any]:
        schema = plain()
        parts: dict[str, Any] = schema.setdefault("components", {})
        if "Problem" in parts.setdefault("schemas", {}):
            return schema  # FastAPI gives the same one every time
        parts["schemas"]["Problem"] = ProblemView.model_json_schema()
        parts["responses"] = {f"Problem{status}": each for status, each in PROBLEMS.items()}
        bearer = {"type": "http", "scheme": "bearer", "description": "A token: laneway token create."}
        parts.setdefault("securitySchemes", {}).setdefault("token", bearer)
        schema.setdefault("security", [{}, {"token": []}])
        for operations in schema["paths"].values():
            for operation in operations.values():
                _share_problems(operation["responses"])
        return schema

    app.openapi = openapi  # type: ignore[method-assign]


def _share_problems(responses: dict[str, Any]) -> None:
    """Say each problem once, not for every route."""
    for status, usual in PROBLEMS.items():
        if responses.get(str(status)) == usual:
            responses[str(status)] = {"$ref": f"#/components/responses/Problem{status}"}


# ---- messages ----


class SenderView(View):
    """Who sent it."""

    id: str
    name: str | None = None


class MessageView(View):
    """A message, and what has become of it so far."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "message_id": "msg-1",
                    "session_key": "telegram:7",
                    "workspace": "default",
                    "text": "Hello",
                    "disposition": "ran",
                    "outcome": "succeeded",
                    "run_id": "turn-1",
                    "answer": "Hello to you",
                }
            ]
        }
    )

    message_id: str
    session_key: str
    workspace: str
    text: str
    disposition: str
    outcome: str | None = None
    run_id: str | None = None
    reason: str = ""
    answer: str | None = None
    position: int | None = Field(None, description="Its place among those that wait, from 1.")
    mode: str
    kind: str
    sender: SenderView | None = None
    channel: str = ""
    thread: str = ""
    attachments: list[Any] = Field(default_factory=list)
    idempotency_key: str | None = None
    arrived_ms: int
    retry_of: str | None = None

    @classmethod
    def of(cls, row: MessageRow, final: Ended) -> MessageView:
        """A message as the store has it, with its state at this moment."""
        message, _ = decode_message(row)
        return cls(
            **said(message),
            workspace=row.workspace,
            disposition=final.disposition.value,
            outcome=None if final.outcome is None else final.outcome.value,
            run_id=final.turn_id,
            reason=final.reason,
            answer=final.answer,
            position=final.position,
        )


def said(message: Message) -> dict[str, Any]:
    """What was sent."""
    sender = message.sender
    return {
        "message_id": message.id,
        "session_key": message.session_key,
        "text": message.text,
        "mode": message.mode.value,
        "kind": message.kind.value,
        "sender": None if sender is None else SenderView(id=sender.id, name=sender.name),
        "channel": message.channel,
        "thread": message.thread,
        "attachments": list(message.attachments),
        "idempotency_key": message.message_id,
        "arrived_ms": message.arrived_ms,
        "retry_of": message.retry_of,
    }


class PendingView(View):
    """A message that waits."""

    message_id: str
    session_key: str
    text: str
    mode: str
    kind: str
    sender: SenderView | None = None
    channel: str = ""
    thread: str = ""
    attachments: list[Any] = Field(default_factory=list)
    idempotency_key: str | None = None
    arrived_ms: int
    retry_of: str | None = None
    disposition: str
    position: int
    reason: str = Field(description="Why it waits.")
    waited_ms: int
    seen_by: str | None = Field(None, description="The run that has seen it already.")

    @classmethod
    def of(cls, pending: PendingMessage) -> PendingView:
        """A message that waits, with its place."""
        return cls(
            **said(pending.message),
            disposition=pending.state.value,
            position=pending.position,
            reason=pending.reason,
            waited_ms=max(0, pending.waited_ms),
            seen_by=pending.seen_by,
        )


class Taken(View):
    """A receipt: the message is on disk."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"message_id": "msg-1", "disposition": "queued", "position": 1}]}
    )

    message_id: str
    disposition: str
    position: int | None = None
    reason: str = ""
    reply: str | None = Field(None, description="The answer of a command.")
    sent: str | None = Field(None, description="The message that a command has sent.")
    duplicate: bool = Field(default=False, description="The same idempotency key was seen before.")

    @classmethod
    def of(cls, receipt: Receipt) -> Taken:
        """What the inbox has said."""
        return cls(
            message_id=receipt.message_id,
            disposition=receipt.disposition.value,
            position=receipt.position,
            reason=receipt.reason,
            reply=receipt.reply,
            sent=receipt.sent,
            duplicate=receipt.duplicate,
        )


class StepView(View):
    """One change in the life of a message or a run."""

    at_ms: int
    type: str
    reason: str = ""
    actor: str = ""
    run_id: str = ""
    facts: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def of(cls, step: StoryStep) -> StepView:
        """A step of a story."""
        return cls(
            at_ms=step.at_ms,
            type=step.type,
            reason=step.reason,
            actor=step.actor,
            run_id=step.turn_id,
            facts=dict(step.facts),
        )


class HistoryView(View):
    """One line of a transcript."""

    seq: int
    at_ms: int
    role: str
    text: str
    conversation: int
    message_id: str = ""
    run_id: str = ""
    sender: str = ""

    @classmethod
    def of(cls, entry: HistoryEntry) -> HistoryView:
        """A line of a transcript."""
        return cls(
            seq=entry.seq,
            at_ms=entry.at_ms,
            role=entry.role,
            text=entry.text,
            conversation=entry.conversation,
            message_id=entry.message_id,
            run_id=entry.turn_id,
            sender=entry.sender,
        )


class SettingView(View):
    """A value in force, and which level it came from."""

    value: str | int
    origin: str


def settings_view(settings: QueueSettings) -> dict[str, SettingView]:
    """The settings of a queue, by their names."""
    names = ("mode", "debounce_ms", "max_wait_ms", "cap", "drop")
    return {
        name: SettingView(value=getattr(settings, name), origin=settings.origins.get(name, "default")) for name in names
    }


# ---- runs ----


class ForkedFrom(View):
    """The run that the first run of a fork goes on from, and at which step."""

    run_id: str
    step: int


class RunView(View):
    """A run: one turn of an agent over one or more messages."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "run_id": "turn-1",
                    "session_key": "telegram:7",
                    "workspace": "default",
                    "state": "succeeded",
                    "messages": ["msg-1"],
                    "answer": "Hello to you",
                }
            ]
        }
    )

    run_id: str
    session_key: str
    workspace: str
    state: str
    reason: str = ""
    messages: list[str] = Field(default_factory=list, description="What it began over.")
    steered: list[str] = Field(default_factory=list, description="What came in while it ran.")
    answer: str | None = None
    mode: str
    conversation: int
    began_ms: int
    ended_ms: int | None = None
    tokens: int = 0

    @classmethod
    def of(cls, row: StateRow, state: str = "") -> RunView:
        """A run as the store has it; `state` is that of one that goes on at this moment."""
        return cls(**run_facts(row, state))


def run_facts(row: StateRow, state: str = "") -> dict[str, Any]:
    """What the store knows about a run."""
    body: dict[str, Any] = json.loads(row.body)
    now = state or row.state
    return {
        "run_id": row.id,
        "session_key": row.session,
        "workspace": row.workspace,
        "state": now,
        "reason": how_ended(row)[0] if now == row.state else body.get("reason") or "",
        "messages": body.get("messages", []),
        "steered": body.get("injected", []),
        "answer": body.get("answer"),
        "mode": body.get("mode", ""),
        "conversation": body.get("conversation", 0),
        "began_ms": body.get("began_ms", 0),
        "ended_ms": body.get("ended_ms") or None,
        "tokens": body.get("tokens", 0),
    }


# ---- what operators look at ----


class LedgerView(View):
    """A call with side effects: what it was about to do, and what became of it."""

    entry_id: str
    session_key: str
    workspace: str
    run_id: str
    call_id: str
    tool: str
    effect: str
    state: str
    attempt: int
    idempotency_key: str
    arguments: Any = Field(None, description="Kept while the outcome is open; later the run has them.")
    reason: str = ""
    actor: str = Field("", description="Who settled it.")
    happened: bool | None = Field(None, description="What whoever settled it has found out; null: that is not said.")
    started_ms: int
    ended_ms: int | None = None

    @classmethod
    def of(cls, entry: LedgerEntry) -> LedgerView:
        """An entry of the ledger."""
        return cls(
            entry_id=entry.id,
            session_key=entry.owner.session,
            workspace=entry.owner.workspace,
            run_id=entry.run_id,
            call_id=entry.call_id,
            tool=entry.tool,
            effect=entry.effect.value,
            state=entry.state.value,
            attempt=entry.attempt,
            idempotency_key=entry.key,
            arguments=_read(entry.arguments),
            reason=entry.reason,
            actor=entry.actor,
            happened=entry.happened,
            started_ms=entry.started_ms,
            ended_ms=entry.ended_ms or None,
        )


def _read(arguments: str | None) -> Any:
    try:
        return None if arguments is None else json.loads(arguments)
    except ValueError:
        return arguments  # what a model has said may be no JSON


MIXED: Final = "mixed"


class LaneView(View):
    """A lane at this moment."""

    name: str
    concurrency: int = Field(description="How wide it is.")
    running: int
    waiting: int
    scheduled: int = Field(description="What waits for its time.")
    paused: bool
    closed_until_ms: int | None = None
    closed_reason: str = ""
    completed: int
    failed: int
    oldest_wait_ms: int
    mode: str | None = Field(
        None,
        description="Who makes its calls; null, as all of the following, for a lane that runs no tools. `mixed`: it "
        "differs from workspace to workspace, so name one.",
    )
    timeout_ms: int | None = Field(None, description="How long whoever makes them elsewhere may take.")
    ordered: bool | None = Field(None, description="Whether the calls of one answer go out one after another.")
    lease_ms: int | None = Field(None, description="How long a worker may be silent.")
    fallback: bool | None = Field(None, description="Whether a call that nobody has taken in time runs here.")
    labels: list[str] = Field(default_factory=list, description="What a worker must have to be given its tasks.")
    sticky: str | None = Field(None, description="Whose tasks would like to go to the same worker; empty: nobody's.")
    sticky_ms: int | None = Field(None, description="How long such a task waits for that worker.")
    background_after_ms: int | None = Field(
        None, description="After how long a call goes on in the background, if its tool allows that; null: never."
    )

    @classmethod
    def of(cls, name: str, stats: LaneStats, reason: str = "", handlers: Sequence[LaneHandlerConfig] = ()) -> LaneView:
        """A lane and its numbers; `handlers` say who makes its calls, if it has tools, in each workspace."""
        shown: dict[str, Any] = {}
        if handlers and all(each == handlers[0] for each in handlers):
            shown = {**asdict(handlers[0]), "labels": list(handlers[0].labels)}
        elif handlers:
            shown = {"mode": MIXED}
        return cls(
            name=name,
            concurrency=stats.max_concurrent,
            running=stats.running,
            waiting=stats.waiting,
            scheduled=stats.scheduled,
            paused=stats.paused,
            closed_until_ms=stats.closed_until_ms,
            closed_reason=reason,
            completed=stats.completed,
            failed=stats.failed + stats.timed_out,
            oldest_wait_ms=stats.oldest_wait_ms,
            **shown,
        )


class RateView(View):
    """How many may start in a window, and how many could at this moment."""

    count: int
    window_ms: int
    left: int
    next_ms: int = Field(description="How long until the next one may start; 0: at once.")


class WaiterView(View):
    """Something that waits for a limit. Whose it is, is said of what belongs to the caller's tenant."""

    label: str
    session_key: str | None = None
    workspace: str | None = None
    waited_ms: int


class LimitView(View):
    """A limit: the account of a model, a lane with a rate limit, or a lane that is closed now."""

    key: str
    account: str | None = Field(None, description="Whose quota it is; null for a lane that is no account.")
    closed: bool
    closed_until_ms: int | None = None
    reason: str = ""
    running: int
    waiting: int
    concurrency: int = 0
    rate: RateView | None = None
    waiters: list[WaiterView] = Field(default_factory=list, description="The first of those that wait.")


class ApprovalView(View):
    """A question of a run that somebody with the right must answer. It covers exactly these arguments, once."""

    approval_id: str
    session_key: str
    workspace: str
    run_id: str
    action: str
    arguments: dict[str, Any]
    arguments_text: str = Field(description="The same as text, exactly as they run.")
    digest: str = Field(description="Of what it is about; an answer that names it counts for nothing else.")
    state: str
    why: str = ""
    call_id: str = ""
    lane: str = ""
    asked_ms: int
    expires_ms: int
    approvers: list[str] = Field(default_factory=list)
    escalated: bool = False
    reason: str = ""
    answered_by: str = ""
    awaited: bool = Field(default=False, description="Whether its time runs: a run waits for it at this moment.")
    on_timeout: str = Field("", description="What happens when its time is over: `reject` or `auto_approve`.")
    asked_for: SenderView | None = Field(None, description="For whom the run works, while it goes on.")

    @classmethod
    def of(cls, approval: Approval, workspace: str, **now: Any) -> ApprovalView:
        """A request of a workspace; `now` are facts that only the process knows."""
        return cls(
            **now,
            arguments_text=approval.text,
            digest=approval.digest,
            approval_id=approval.id,
            session_key=approval.session_key,
            workspace=workspace,
            run_id=approval.turn_id,
            action=approval.action,
            arguments=dict(approval.arguments),
            state=approval.state.value,
            why=approval.why,
            call_id=approval.call_id,
            lane=approval.lane,
            asked_ms=approval.asked_ms,
            expires_ms=approval.expires_ms,
            approvers=list(approval.approvers),
            escalated=approval.escalated,
            reason=approval.reason,
            answered_by=approval.answered_by,
        )


class ScheduleView(View):
    """A message that is sent by the clock."""

    schedule_id: str
    session_key: str
    workspace: str
    text: str
    cron: str | None = None
    at_ms: int | None = None
    every_ms: int | None = None
    missed: str
    kind: str
    timezone: str
    next_ms: int
    paused: bool = Field(default=False, description="It sends nothing until it goes on.")
    last_ms: int | None = Field(None, description="When its time last came; null: never yet.")
    last_note: str = Field("", description="Why it sent nothing at that time.")
    last_message_id: str | None = Field(None, description="What it sent last.")
    last_disposition: str | None = Field(None, description="What has become of that.")
    last_outcome: str | None = None
    last_run_id: str | None = None

    @classmethod
    def of(cls, schedule: Schedule, workspace: str, last: Ended | None = None) -> ScheduleView:
        """A schedule of a workspace, and what has become of the message it sent last."""
        return cls(
            schedule_id=schedule.id,
            session_key=schedule.session_key,
            workspace=workspace,
            text=schedule.text,
            cron=schedule.cron,
            at_ms=schedule.at_ms,
            every_ms=schedule.every_ms,
            missed=schedule.missed,
            kind=schedule.kind.value,
            timezone=schedule.timezone,
            next_ms=schedule.next_ms,
            paused=schedule.paused,
            last_ms=schedule.last_ms or None,
            last_note=schedule.last_note,
            last_message_id=schedule.last_id or None,
            last_disposition=None if last is None else last.disposition.value,
            last_outcome=None if last is None or last.outcome is None else last.outcome.value,
            last_run_id=None if last is None else last.turn_id,
        )
