"""The errors that jobs end with, as their callers see them."""

from __future__ import annotations

import contextlib
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
from laneway.kernel.jobs import Entry
from laneway.kernel.protocol import SettleJob, Stop
from laneway.records import JobId, JobState
from laneway.runtime.handles import Job

_ABANDONED = "; it did not stop within its grace and was abandoned: what it still does outside cannot be stopped"


def repr_of(error: BaseException) -> str:
    """An error as a dead letter shows it, whatever its own `__repr__` does."""
    try:
        return repr(error)
    except Exception:  # noqa: BLE001 - somebody else's __repr__
        return f"<{type(error).__name__}>"


def called(job_id: JobId, label: str) -> str:
    """What a reader knows a job by."""
    return f"{label} ({job_id})" if label else job_id


def error_of(job: Job[Any], effect: SettleJob) -> BaseException:
    """What `await job` raises: the function's own exception if there is one, else what ended the job."""
    lane, own, name = job.lane_name, job._error, called(job.id, job.spec.label)  # noqa: SLF001 - same layer
    if effect.stop is not None:
        return stop_error(job, effect.stop, effect.reason, lane=lane, abandoned=effect.abandoned)
    if effect.state is JobState.CANCELLED:
        return JobCancelledError(
            f"job {name} in lane {lane!r} was cancelled from inside: {effect.reason}",
            job_id=job.id,
            lane=lane,
            reason=effect.reason,
            hint="something inside the job raised CancelledError; nobody cancelled the job",
        )
    if isinstance(own, Exception) and not isinstance(own, RetryLater | GiveUp):
        note = f"in lane {lane!r}, job {name}, attempt {effect.attempt}"
        with contextlib.suppress(Exception):  # a frozen exception takes no notes
            if note not in getattr(own, "__notes__", ()):
                own.add_note(note)
        return own
    attempts = f"{effect.attempt} attempt{'s' if effect.attempt != 1 else ''}"
    error = JobFailedError(
        f"job {name} in lane {lane!r} failed after {attempts}: {effect.reason}",
        job_id=job.id,
        lane=lane,
        reason=effect.reason,
        hint="it is among lanes.dead_letters" if effect.state is JobState.DEAD else "",
    )
    error.__cause__ = own
    return error


def stop_error(entry: Entry, stop: Stop, reason: str, *, lane: str, abandoned: bool = False) -> JobFailedError:
    """What a job that was ended from outside raises: a cancel, an abort and the two timeouts are told apart."""
    why = (f": {reason}" if reason else "") + (_ABANDONED if abandoned else "")
    where = f"job {called(entry.id, entry.spec.label)} in lane {lane!r}"
    kind: type[JobFailedError]
    match stop:
        case Stop.CANCEL:
            kind, text, hint = JobCancelledError, "was cancelled", "submit it again if it is still wanted"
        case Stop.ABORT:
            kind, text, hint = JobAbortedError, "was aborted", "submit it again with a new AbortSignal"
        case Stop.TIMEOUT:
            kind, text, hint = JobTimeoutError, "timed out", "raise timeout_ms, or make it faster"
        case Stop.WAIT_TIMEOUT:
            kind, text, hint = WaitTimeoutError, "never started", "raise wait_timeout_ms, or the width of the lane"
        case _:
            assert_never(stop)
    return kind(f"{where} {text}{why}", job_id=entry.id, lane=lane, reason=reason, hint=hint)
