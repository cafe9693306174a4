"""Single jobs in the lanes: what one is and why it waits, and how an operator ends it."""

from __future__ import annotations

from pydantic import Field

from laneway.errors import ConflictError, UnknownJobError
from laneway.gateway.access import Caller
from laneway.gateway.deps import CallerOf, GatewayOf, OperatorOf
from laneway.gateway.job_ends import end_job
from laneway.gateway.lookup import sees_shared
from laneway.gateway.routes.traffic import JobView
from laneway.gateway.service import Gateway
from laneway.gateway.traffic_look import Look
from laneway.gateway.views import Reason, View, router_of
from laneway.kernel.explain import explain
from laneway.kernel.jobs import Entry
from laneway.records import JobId, JobState

__all__ = ("router",)

router = router_of("jobs")


class JobDetails(View):
    """A job, and why it is where it is."""

    job: JobView
    lane: str = Field(description="The lane it waits for, or runs in.")
    detail: str = Field(description="Why it is where it is, in a sentence.")
    position: int | None = None
    blocked_by: list[JobView] = Field(default_factory=list, description="Who has what it waits for; at most five.")


class JobEnd(View):
    """What was done to end a job. It has ended when it is no longer in its lane."""

    id: str
    kind: str
    done: str = Field(description="What was ended, in words.")


@router.get("/jobs/{job_id}", summary="What a job is and why it waits")
async def show(job_id: str, gateway: GatewayOf, caller: CallerOf) -> JobDetails:
    """A job of the caller's tenant that runs or waits in a lane."""
    look = gateway.traffic.fresh()
    entry = _find(gateway, look, caller, job_id)
    engine = gateway.lanes.engine
    why = explain(engine.kernel, entry.id, now=look.now, wall_ms=look.wall)
    shown = look.job(entry, None, caller.tenant, why.position or 0)
    others = [engine.kernel.jobs[each] for each in why.blocked_by if each in engine.kernel.jobs]
    is_told = all(look.work_of(each).owner == look.work_of(entry).owner for each in others)
    return JobDetails(
        job=JobView(**shown),
        lane=why.lane,
        detail=why.detail if is_told or entry.state is not JobState.QUEUED else str(shown["why"]),
        position=why.position,
        blocked_by=[JobView(**look.job(each, None, caller.tenant)) for each in others],
    )


@router.post("/jobs/{job_id}/cancel", status_code=202, summary="End a job")
async def cancel(job_id: str, gateway: GatewayOf, caller: OperatorOf, body: Reason | None = None) -> JobEnd:
    """End a job that runs or waits.

    A call of a tool is ended alone, and the model is told so. With a call of a model its run ends. A turn that runs is
    ended as a run is; for one that waits, the messages that it would have been about are withdrawn.
    """
    look = gateway.traffic.fresh()
    entry = _find(gateway, look, caller, job_id)
    work = look.work_of(entry)
    if entry.stop is not None:
        raise ConflictError(f"job {job_id} is ending already", hint="wait for its end", job_id=job_id)
    said = "" if body is None else body.reason
    facts = {"label": entry.spec.label, "lane": entry.lane.name, "kind": work.kind, "run_id": work.run_id}
    await gateway.audit.record(caller, "job.cancel", job_id, reason=said, **facts)
    reason = said or f"cancelled by {caller.name}"
    done = await end_job(gateway, entry, work, reason)
    return JobEnd(id=job_id, kind=work.kind, done=done)


def _find(gateway: Gateway, look: Look, caller: Caller, job_id: str) -> Entry:
    """A job of the caller's tenant. One that nobody knows the owner of is for those who see what all share."""
    entry = gateway.lanes.engine.kernel.jobs.get(JobId(job_id))
    owner = None if entry is None else look.work_of(entry).owner
    if entry is None or (owner.tenant != caller.tenant if owner is not None else not sees_shared(caller)):
        raise UnknownJobError(job_id=job_id)
    return entry
