"""The errors that jobs end with, as their callers see them."""

from __future__ import annotations

from typing import Any, assert_never

from laneway.errors import (
    GiveUp,
    JobAbortedError,
    JobCancelledError,
    JobFailedError,
    JobTimeoutError,
    RetryLater,
    WaitTimeoutError,
)
from laneway.kernel.protocol import SettleJob, Stop
from laneway.records import JobId, JobState
from laneway.runtime.handles import Job

_ABANDONED = "; it did not stop within its grace and was abandoned: what it still does outside cannot be stopped"


def error_of(job: Job[Any], effect: SettleJob) -> BaseException:
    """What `await job` raises: the function's own exception if there is one, else what ended the job."""
    lane, own = job.lane_name, job._error  # noqa: SLF001 - same layer
    if effect.stop is not None:
        return stop_error(job.id, lane, effect.stop, effect.reason, abandoned=effect.abandoned)
    if effect.state is JobState.CANCELLED:
        return JobCancelledError(
            f"job {job.id} in lane {lane!r} was cancelled from inside: {effect.reason}",
            job_id=job.id,
            lane=lane,
            reason=effect.reason,
        )
    if isinstance(own, Exception) and not isinstance(own, RetryLater | GiveUp):
        note = f"in lane {lane!r}, job {job.id}, attempt {effect.attempt}"
        if note not in getattr(own, "__notes__", ()):
            own.add_note(note)
        return own
    attempts = f"{effect.attempt} attempt{'s' if effect.attempt != 1 else ''}"
    error = JobFailedError(
        f"job {job.id} in lane {lane!r} failed after {attempts}: {effect.reason}",
        job_id=job.id,
        lane=lane,
        reason=effect.reason,
    )
    error.__cause__ = own
    return error


def stop_error(job_id: JobId, lane: str, stop: Stop, reason: str, *, abandoned: bool = False) -> JobFailedError:
    """What a job that was ended from outside raises: a cancel, an abort and the two timeouts are told apart."""
    why = (f": {reason}" if reason else "") + (_ABANDONED if abandoned else "")
    where = f"job {job_id} in lane {lane!r}"
    match stop:
        case Stop.CANCEL:
            return JobCancelledError(f"{where} was cancelled{why}", job_id=job_id, lane=lane, reason=reason)
        case Stop.ABORT:
            return JobAbortedError(f"{where} was aborted{why}", job_id=job_id, lane=lane, reason=reason)
        case Stop.TIMEOUT:
            return JobTimeoutError(f"{where} timed out{why}", job_id=job_id, lane=lane, reason=reason)
        case Stop.WAIT_TIMEOUT:
            return WaitTimeoutError(f"{where} never started{why}", job_id=job_id, lane=lane, reason=reason)
        case _:
            assert_never(stop)
