"""What becomes of the durable jobs that a store holds when it is opened.

A process that ended left decisions open: jobs that ran, and attempts that had failed. They are taken here, and stored
before anything runs.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from laneway.errors import LanewayError, UnknownLaneError
from laneway.kernel.jobs import Trigger, verdict_on
from laneway.kernel.protocol import End, FinishJob
from laneway.kernel.scheduler import Kernel
from laneway.ports import Store
from laneway.rows import Batch, StateRow
from laneway.runtime.claims import claim
from laneway.runtime.garbage import collector_at_rest
from laneway.runtime.job_rows import KIND, JobRecord, RowState

__all__ = ("Moment", "load_jobs")

_log = logging.getLogger("laneway")


class Moment(NamedTuple):
    """When a store is opened, by both clocks, and a random number from 0 to 1 for the retries."""

    now: int
    wall_ms: int
    jitter: float


async def load_jobs(store: Store, workspace: str, kernel: Kernel, moment: Moment) -> list[JobRecord]:
    """Claim a workspace and read its durable jobs, with every decision taken that was open."""
    loaded = await store.load_workspace(workspace)
    batches = [claim(store, "lanes", workspace, loaded.states)]
    with collector_at_rest():
        records = [record for row in loaded.states if row.kind == KIND and (record := _read(row)) is not None]
    for name in dict.fromkeys(name for record in records for name in record.lanes):
        try:
            kernel.registry.check_known(name)
        except UnknownLaneError:
            _log.warning("durable jobs wait in lane %r, which is not configured: they run there one at a time", name)
    changed = [record for record in records if _decide(record, kernel, moment)]
    for record in changed:
        rows = () if record.gone else (record.to_row(),)
        batches.append(Batch(record.owner, store.epoch, rows, (record.row_key,) if record.gone else ()))
    for result in await store.commit(batches):
        if result.error is not None:
            raise result.error
    return [record for record in records if not record.gone]


def _read(row: StateRow) -> JobRecord | None:
    try:
        return JobRecord.from_row(row)
    except ValueError as error:
        _log.error("durable job %s cannot be read, and stays in the store as it is: %s", row.id, error)
        return None


def _decide(record: JobRecord, kernel: Kernel, moment: Moment) -> bool:
    """Take what decision is open about a job; says whether its row has to change."""
    before = record.state
    if before is RowState.DEAD:
        return False
    if before is RowState.RUNNING:
        record.interrupt("the process ended", wall_ms=moment.wall_ms, crashed=True)
    elif before is RowState.FAILED:
        _decide_failed(record, kernel, moment)
    if record.state is not RowState.DEAD and not record.gone:
        try:
            kernel.check_restored(record.lanes, now=moment.now)
        except LanewayError as error:
            record.die(f"it cannot be put back into its lanes: {error}", wall_ms=moment.wall_ms)
    return record.gone or record.state is not before


def _decide_failed(record: JobRecord, kernel: Kernel, moment: Moment) -> None:
    """The process ended between a failure and what was to follow: decide as it would have been decided."""
    policy = kernel.policy_for(record.spec, record.lanes, now=moment.now)
    ended = FinishJob(record.id, record.attempt, End(record.end), record.reason, record.after_ms, moment.jitter)
    verdict = verdict_on(ended, policy, failures=record.failures, deferrals=record.deferrals)
    record.failures += not verdict.deferred
    record.deferrals += verdict.deferred
    record.history = (*record.history, f"attempt {record.attempt}: {verdict.reason}")
    match verdict.trigger:
        case Trigger.RETRY:
            record.schedule(verdict.delay_ms, wall_ms=record.ended_ms)
        case Trigger.DIE:
            record.die(verdict.reason, wall_ms=record.ended_ms, error=record.error)
        case _:
            _log.warning("durable job %s failed just before the restart: %s", record.id, verdict.reason)
            record.gone = True
