"""Finding what a request names. What belongs to another tenant is not there: the answer is that of an unknown id."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from laneway.agent.subagents import root_of
from laneway.errors import NotFoundError, PermissionDeniedError, UnknownTaskError
from laneway.gateway.labels import has_labels
from laneway.kernel.ledger import INTENT, LedgerEntry, decode_entry
from laneway.kernel.mailbox import decode_approval
from laneway.runtime.envelope import check_key

if TYPE_CHECKING:
    from laneway.gateway.access import Caller
    from laneway.gateway.service import Gateway
    from laneway.gateway.workspaces import Workspace
    from laneway.kernel.messages import TurnEntry
    from laneway.kernel.task_entries import TaskEntry
    from laneway.mail import Approval, Schedule
    from laneway.rows import Owner, StateRow

__all__ = (
    "current_turn",
    "find_approval",
    "find_entry",
    "find_schedule",
    "find_session",
    "find_task",
    "in_family",
    "rest_of",
    "run_now",
    "sees_shared",
)

APPROVAL: Final = "approval"


async def find_session(workspace: Workspace, caller: Caller, key: str) -> Owner:
    """Whose rows those of a session are; refuses one that nobody has ever sent anything or said whose it is."""
    owner = workspace.owner(caller.tenant, check_key(key, "session key"))
    engine = workspace.inbox.engine
    if owner in engine.kernel.boxes or owner in engine.kernel.sessions:
        return owner
    if workspace.inbox.schedules(key, tenant=caller.tenant):
        return owner
    if await engine.store.history.messages(owner, limit=1):
        return owner
    if await has_labels(workspace, owner):
        return owner
    raise NotFoundError(what="session", name=key, hint="a session begins with its first message")


def current_turn(workspace: Workspace, owner: Owner) -> TurnEntry | None:
    """The turn that goes on in a session."""
    box = workspace.inbox.engine.kernel.boxes.get(owner)
    return None if box is None else box.turn


def run_now(workspace: Workspace, owner: Owner, run_id: str | None) -> str:
    """What a run that goes on here waits for at this moment; empty if it does not."""
    session = workspace.host.sessions.get((owner.tenant, owner.session))
    now = None if session is None else session.current_run()
    return session.explain() if session is not None and now is not None and now.run_id == run_id else ""


def rest_of(workspace: Workspace, row: StateRow) -> str:
    """What a run waits for that was cut because its session left memory; empty if it does not go on by itself."""
    owner, rest = workspace.owner(row.tenant, row.session), workspace.rest
    if not rest.holds(owner, json.loads(row.body).get("messages", ())):
        return ""
    return rest.words((row.tenant, root_of(row.session)))


def in_family(key: str, root: str) -> bool:
    """Whether a session is this one, or that of a sub-agent below it."""
    return key == root or (key.startswith(f"{root}~") and root_of(key) == root_of(root))


async def find_entry(gateway: Gateway, caller: Caller, entry_id: str) -> tuple[Workspace, LedgerEntry]:
    """An entry of the ledger of the caller's tenant."""
    found = await _state(gateway, caller, INTENT, entry_id)
    if found is None:
        raise NotFoundError(what="ledger entry", name=entry_id, hint="GET /v1/ledger lists them")
    return found[0], decode_entry(found[1])


async def find_approval(gateway: Gateway, caller: Caller, approval_id: str) -> tuple[Workspace, Approval]:
    """A request for approval of the caller's tenant, pending or answered."""
    gateway.check_open()
    for workspace in gateway.workspaces.values():
        for approval in workspace.inbox.approvals(tenant=caller.tenant):
            if approval.id == approval_id:
                return workspace, approval
    found = await _state(gateway, caller, APPROVAL, approval_id)
    if found is None:
        raise NotFoundError(what="approval", name=approval_id, hint="GET /v1/approvals lists what is asked")
    body: dict[str, Any] = json.loads(found[1].body)
    return found[0], decode_approval(found[1], body)


def find_schedule(gateway: Gateway, caller: Caller, schedule_id: str) -> tuple[Workspace, Schedule]:
    """A schedule of the caller's tenant."""
    gateway.check_open()
    for workspace in gateway.workspaces.values():
        for schedule in workspace.inbox.schedules(tenant=caller.tenant):
            if schedule.id == schedule_id:
                return workspace, schedule
    raise NotFoundError(what="schedule", name=schedule_id, hint="GET /v1/schedules lists them")


async def find_task(gateway: Gateway, caller: Caller, task_id: str) -> tuple[Workspace, TaskEntry]:
    """An external task of the caller's tenant, also one that has ended."""
    gateway.check_open()
    for workspace in gateway.workspaces.values():
        entry = await workspace.host.desk.find(task_id)
        if entry is not None and entry.owner.tenant == caller.tenant and (entry.published or not entry.is_live):
            return workspace, entry
    raise UnknownTaskError(f"there is no task {task_id!r}", hint="GET /v1/tasks lists them")


async def _state(gateway: Gateway, caller: Caller, kind: str, row_id: str) -> tuple[Workspace, StateRow] | None:
    gateway.check_open()
    row = await gateway.store.history.state(kind, row_id)
    if row is None or row.tenant != caller.tenant or row.workspace not in gateway.workspaces:
        return None
    return gateway.workspaces[row.workspace], row


def sees_shared(caller: Caller) -> bool:
    """Whether a caller may see what belongs to no tenant."""
    try:
        caller.check_shared()
    except PermissionDeniedError:
        return False
    return True
