"""Jobs as the scheduler sees them: states, the table of transitions, back-off.

Every change of state goes through `move`, which knows only the table: what is absent there is illegal and
says so. The diagram in the docs is drawn from the same table.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from laneway.errors import InvalidTransitionError
from laneway.kernel.protocol import End, FinishJob, Hold, JobSpec, Stop
from laneway.records import JobId, JobState, RetryPolicy

if TYPE_CHECKING:
    from laneway.kernel.lanes import Lane, Resource
    from laneway.kernel.lending import Bereavement, Return, Wait
    from laneway.kernel.queues import Fifo


DEFERRALS_MAX = 100


class Trigger(StrEnum):
    """What can happen to a job."""

    BECOME_DUE = "become due"
    START = "start"
    LEND = "lend"
    TAKE_BACK = "take back"
    SUCCEED = "succeed"
    FAIL = "fail"
    CANCEL = "cancel"
    TIME_OUT = "time out"
    RETRY = "retry"
    DIE = "die"


_S = JobState
_T = Trigger

TRANSITIONS: Final[dict[tuple[JobState, Trigger], JobState]] = {
    (_S.SCHEDULED, _T.BECOME_DUE): _S.QUEUED,
    (_S.SCHEDULED, _T.CANCEL): _S.CANCELLED,
    (_S.QUEUED, _T.START): _S.RUNNING,
    (_S.QUEUED, _T.CANCEL): _S.CANCELLED,
    (_S.QUEUED, _T.TIME_OUT): _S.TIMED_OUT,
    (_S.RUNNING, _T.LEND): _S.LENT,
    (_S.LENT, _T.TAKE_BACK): _S.RUNNING,
    (_S.RUNNING, _T.SUCCEED): _S.SUCCEEDED,
    (_S.RUNNING, _T.FAIL): _S.FAILED,
    (_S.RUNNING, _T.CANCEL): _S.CANCELLED,
    (_S.RUNNING, _T.TIME_OUT): _S.TIMED_OUT,
    (_S.RUNNING, _T.RETRY): _S.SCHEDULED,
    (_S.RUNNING, _T.DIE): _S.DEAD,
    # A job can end while its slots are lent: a task it left behind still waits for another job.
    (_S.LENT, _T.SUCCEED): _S.SUCCEEDED,
    (_S.LENT, _T.FAIL): _S.FAILED,
    (_S.LENT, _T.CANCEL): _S.CANCELLED,
    (_S.LENT, _T.TIME_OUT): _S.TIMED_OUT,
    (_S.LENT, _T.RETRY): _S.SCHEDULED,
    (_S.LENT, _T.DIE): _S.DEAD,
}


class Entry:
    """One live job (or slot) with everything the kernel knows about it; only the kernel writes it.

    The engine's handles extend it: two objects for each job would make the garbage collector cost more than all
    decisions about the job. What nearly every job needs has a slot. The rest has a default here and costs memory
    only in jobs that use it: `__dict__` comes into being with the first of them that is set.
    """

    __slots__ = (
        "__dict__",
        "attempt",
        "id",
        "lanes",
        "phase",
        "place",
        "queued_at",
        "rank",
        "simple",
        "spec",
        "spot",
        "started_at",
        "state",
        "submitted_at",
        "units",
    )

    stage: int = 0  # which of its lanes it waits for
    places: list[int] | None = None  # one place per lane, for jobs with several
    aside: Lane | None = None  # the lane whose token or group it waits for while out of its queue
    threaded: bool = False
    durable: bool = False  # it is kept in a store
    held: Hold | None = None  # what a scheduled job waits for that has no time
    held_until: int = 0  # when it is due once it is no longer held
    due_at: int | None = None  # when its delay or its last retry was due
    failures: int = 0  # attempts that failed
    deferrals: int = 0  # RetryLater so far
    aged: int = 0  # levels gained by waiting
    boost: int = 0  # levels gained by a deadline
    wanted: int = 0  # lent jobs that wait for it
    up: Entry | None = None  # the job it was submitted from
    inside: bool = False  # a slot inside `up`, part of the same job
    inner: list[Entry] | None = None  # slots inside it
    is_slot: bool = False
    is_part: bool = False  # a slot inside a job: the job is counted, it is not
    history: list[str] | None = None  # what went wrong in earlier attempts
    lent: bool = False
    waits: int = 0  # outstanding waits of this job or of slots inside it
    returns: list[Return] | None = None
    waiters: list[Wait] | None = None
    mourners: list[Bereavement] | None = None
    stop: Stop | None = None  # it is being ended from outside
    reason: str = ""
    actor: str = "scheduler"
    started_at: int  # set at each start, not read before

    def admit(self, job_id: JobId, lanes: tuple[Lane, ...], spec: JobSpec, place: int, now: int) -> None:
        """Begin to be a job: it waits, from now on, at this place."""
        self.id = job_id
        self.lanes = lanes
        self.spec = spec
        self.place = place  # where it stands in its lane: sequence, never time
        self.state = JobState.QUEUED
        self.phase = 0  # counts queueings and starts, so that old timers and marks are recognised
        self.attempt = 0
        self.rank = 0  # level now
        self.simple = False  # may take the short way to its end: one plain lane, never stopped, lent or waited for
        self.spot: Fifo | None = None  # the queue it stands in
        self.units: tuple[Resource, ...] = ()  # what it holds (or has lent)
        self.submitted_at = now
        self.queued_at = now  # when it came to the lane it waits for now

    @property
    def since(self) -> int:
        """When it began to wait for this attempt."""
        return self.submitted_at if self.due_at is None else self.due_at

    @property
    def lane(self) -> Lane:
        """The lane that the work itself belongs to: the last of its lanes."""
        return self.lanes[-1]


def move(entry: Entry, trigger: Trigger) -> None:
    """Change the state of a job by the table; what the table does not know is refused."""
    state = TRANSITIONS.get((entry.state, trigger))
    if state is None:
        raise InvalidTransitionError(job_id=entry.id, state=entry.state, trigger=trigger)
    entry.state = state


class Verdict(NamedTuple):
    """What follows an attempt that did not succeed: `trigger` is RETRY, FAIL or DIE. A deferral costs no retry."""

    trigger: Trigger
    reason: str
    delay_ms: int = 0
    deferred: bool = False


def verdict_on(ended: FinishJob, policy: RetryPolicy, *, failures: int, deferrals: int) -> Verdict:
    """Decide between another attempt and an end; the counts are those before this attempt ended."""
    reason = ended.reason
    if ended.end is End.GAVE_UP:
        return Verdict(Trigger.DIE, reason)
    if ended.end is End.RETRY_LATER:
        if deferrals < DEFERRALS_MAX:
            return Verdict(Trigger.RETRY, reason, ended.after_ms, deferred=True)
        reason = f"it raised RetryLater more than {DEFERRALS_MAX} times ({reason})"
    if failures < policy.max_retries:
        return Verdict(Trigger.RETRY, reason, backoff_ms(policy, retry=failures + 1, jitter=ended.jitter))
    return Verdict(Trigger.DIE if policy.max_retries else Trigger.FAIL, reason)


def backoff_ms(policy: RetryPolicy, *, retry: int, jitter: float) -> int:
    """The delay before retry number `retry` (from 1); `jitter` is a random number from 0 to 1."""
    try:
        grown = policy.initial_delay_ms * policy.factor ** (retry - 1)
    except OverflowError:
        grown = float(policy.max_delay_ms)
    capped = min(grown, policy.max_delay_ms)
    return int(capped * (1.0 - policy.jitter * jitter))
