"""Approvals: what runs ask, and the answers of those who may give them."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, Literal

from fastapi import Query
from pydantic import BaseModel, ConfigDict, Field, StrictBool

from laneway.errors import ConflictError, PermissionDeniedError
from laneway.gateway.deps import CallerOf, GatewayOf, OperatorOf, WorkspaceOf
from laneway.gateway.lookup import find_approval, in_family
from laneway.gateway.views import LIMIT_MAX, ApprovalView, Page, SenderView, page_of, router_of, seq_of
from laneway.gateway.workspaces import Workspace
from laneway.kernel.mailbox import decode_approval
from laneway.mail import Approval, ApprovalState

__all__ = ("router",)

router = router_of("approvals")

APPROVAL: Final = "approval"


class Verdict(BaseModel):
    """Yes or no. With `args` or `digest` it counts for exactly these arguments, and for no others."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"approve": True}, {"approve": False, "reason": "not on a Friday"}]},
    )

    approve: StrictBool
    reason: str = Field("", max_length=2_000, description="Told to the model when the answer is no.")
    args: dict[str, Any] | None = Field(None, description="What the caller has seen and answers for.")
    digest: str | None = Field(None, max_length=128, description="The same in short: that of the request.")


@router.get("/approvals", summary="What waits for an approval")
async def ls(
    caller: CallerOf,
    workspace: WorkspaceOf,
    session: Annotated[str, Query(max_length=400, description="Of one session and its sub-agents only.")] = "",
    state: Annotated[
        Literal["pending", "decided"], Query(description="What waits, oldest first; or what has ended, newest first.")
    ] = "pending",
    after: Annotated[str, Query(max_length=19, description="Only with `decided`.")] = "",
    limit: Annotated[int, Query(ge=1, le=LIMIT_MAX, description="Only with `decided`.")] = 50,
) -> Page[ApprovalView]:
    """Every pending request of the caller's tenant, those of sub-agents included, oldest first.

    With `state=decided` what became of earlier ones, newest first; with `session` only those it asked itself.
    """
    if state == "decided":
        return await _decided(workspace, caller.tenant, session, before=seq_of(after), limit=limit)
    pending = workspace.inbox.approvals(tenant=caller.tenant)
    found = [each for each in pending if not session or in_family(each.session_key, session)]
    found.sort(key=lambda each: (each.asked_ms, each.id))
    return Page(items=[_view(workspace, caller.tenant, each) for each in found])


async def _decided(workspace: Workspace, tenant: str, session: str, *, before: int, limit: int) -> Page[ApprovalView]:
    """Requests that have ended. The store has pending ones, too: those are passed over, so a page may be short."""
    history = workspace.inbox.engine.store.history
    rows = await history.states_newest(workspace.owner(tenant, session), APPROVAL, before_seq=before, limit=limit)
    ended = [decode_approval(row, json.loads(row.body)) for row in rows if row.state != ApprovalState.PENDING]
    return page_of([ApprovalView.of(each, workspace.name) for each in ended], [row.seq for row in rows], limit)


def _view(workspace: Workspace, tenant: str, approval: Approval) -> ApprovalView:
    """A request, with what only this process knows of one that is pending."""
    if approval.state is not ApprovalState.PENDING:
        return ApprovalView.of(approval, workspace.name)
    box = workspace.inbox.engine.kernel.boxes.get(workspace.owner(tenant, approval.session_key))
    entry = None if box is None else box.approvals.get(approval.id)
    turn = None if box is None else box.turn
    sender = None if turn is None else turn.sender
    session = workspace.host.sessions.get((tenant, approval.session_key))
    policy = workspace.spec.agent.confirmation if session is None else session.settings.confirmation_policy
    return ApprovalView.of(
        approval,
        workspace.name,
        awaited=entry is not None and entry.is_awaited,
        on_timeout="reject" if policy is None else policy.timeout_action,
        asked_for=None if sender is None else SenderView(id=sender.id, name=sender.name),
    )


@router.get("/approvals/{approval_id}", summary="One request for approval")
async def show(approval_id: str, gateway: GatewayOf, caller: CallerOf) -> ApprovalView:
    """A request, pending or answered."""
    workspace, approval = await find_approval(gateway, caller, approval_id)
    return _view(workspace, caller.tenant, approval)


@router.post("/approvals/{approval_id}", summary="Answer a request")
async def answer(approval_id: str, body: Verdict, gateway: GatewayOf, caller: OperatorOf) -> ApprovalView:
    """Say yes or no. The answer covers exactly the arguments of the request, once."""
    workspace, approval = await find_approval(gateway, caller, approval_id)
    if approval.state is not ApprovalState.PENDING:
        raise _not_pending(approval)
    if not approval.may_be_answered_by(caller.sender()):
        raise PermissionDeniedError(
            f"{caller.name} is none of those who may answer this request", hint="ask one of its approvers"
        )
    other = body.digest is not None and body.digest != approval.digest
    if other or (body.args is not None and not _is_about(approval, body.args)):
        raise ConflictError(
            "this request is about other arguments than these; nothing was changed",
            hint=f"look at it: GET /v1/approvals/{approval_id}",
            approval_id=approval_id,
        )
    action = "approval.approve" if body.approve else "approval.deny"
    facts = {"session_key": approval.session_key, "tool": approval.action}
    await gateway.audit.record(caller, action, approval_id, reason=body.reason, **facts)
    inbox = workspace.inbox
    if body.approve:
        counts = await inbox.approve(approval_id, by=caller.name)
    else:
        counts = await inbox.deny(approval_id, body.reason, by=caller.name)
    _, now = await find_approval(gateway, caller, approval_id)
    if not counts:
        raise _not_pending(now)
    return ApprovalView.of(now, workspace.name)


def _is_about(approval: Approval, args: dict[str, Any]) -> bool:
    try:
        return approval.is_about(approval.action, args)
    except (TypeError, ValueError, RecursionError):
        return False


def _not_pending(approval: Approval) -> ConflictError:
    by = f" by {approval.answered_by}" if approval.answered_by else ""
    return ConflictError(
        f"request {approval.id} is {approval.state.value}{by}",
        hint="an answer counts once",
        approval_id=approval.id,
        state=approval.state.value,
    )
