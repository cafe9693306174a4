"""How an operator ends a job: by whoever it belongs to, so that everybody who waits for it is told the right thing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.errors import ConflictError, UnknownJobError
from laneway.gateway.traffic_jobs import MODEL, TOOL, TURN, Work
from laneway.records import JobState

if TYPE_CHECKING:
    from laneway.gateway.service import Gateway
    from laneway.gateway.workspaces import Workspace
    from laneway.kernel.jobs import Entry
    from laneway.rows import Owner

__all__ = ("end_job",)


async def end_job(gateway: Gateway, entry: Entry, work: Work, reason: str) -> str:
    """End a job; what was done, in words. Raises `ConflictError` for what may not be ended now."""
    engine, owner = gateway.lanes.engine, work.owner
    if entry.id not in engine.kernel.jobs:
        # It has ended while the audit was written. What its session does by now is something else, and goes on.
        raise UnknownJobError(job_id=entry.id)
    workspace = None if owner is None else gateway.workspaces.get(owner.workspace)
    if owner is not None and workspace is not None:
        if work.kind == TURN and entry.attempt == 0:
            return await _withdraw(workspace, owner, entry, reason)
        if work.kind == TURN or (work.kind == MODEL and work.run_id):
            return await _end_run(workspace, owner, entry, reason)
        if work.kind == TOOL:
            _check_interruptible(workspace, owner, entry, work)
    if not engine.stop(entry.id, reason):
        raise ConflictError(
            f"job {entry.id} cannot be ended from outside", hint="it is ending, or is a slot in use", job_id=entry.id
        )
    return "the call of the tool was ended; the model is told so" if work.kind == TOOL else "the job was ended"


async def _end_run(workspace: Workspace, owner: Owner, entry: Entry, reason: str) -> str:
    if not await workspace.inbox.cancel(owner.session, reason, tenant=owner.tenant):
        raise ConflictError(f"the run of job {entry.id} is ending already", hint="wait for its end", job_id=entry.id)
    return f"the run of session {owner.session!r} was told to end"


async def _withdraw(workspace: Workspace, owner: Owner, entry: Entry, reason: str) -> str:
    """The turn has not begun: without the messages that it would be about, nobody needs its slot."""
    inbox = workspace.inbox
    box = inbox.engine.kernel.boxes.get(owner)
    head = None if box is None else box.next_item()
    batch = [] if box is None or head is None else [item.id for item in box.batch_from(head)]
    for message_id in batch:
        await inbox.withdraw(message_id, reason, actor="operator")
    inbox.engine.drop_slot(owner)
    if not batch and entry.state is JobState.QUEUED:
        raise ConflictError(
            f"job {entry.id} is about to start", hint="look again, and end the run that it has become", job_id=entry.id
        )
    return f"{len(batch)} waiting message{'' if len(batch) == 1 else 's'} of session {owner.session!r} withdrawn"


def _check_interruptible(workspace: Workspace, owner: Owner, entry: Entry, work: Work) -> None:
    session = workspace.host.sessions.get((owner.tenant, owner.session))
    tool = None if session is None else session.toolbox.get(work.tool)
    begun = entry.state in (JobState.RUNNING, JobState.LENT)
    if tool is not None and begun and not tool.spec.interruptible:
        raise ConflictError(
            f"tool {work.tool!r} says that it may not be interrupted", hint="wait for its end", job_id=entry.id
        )
