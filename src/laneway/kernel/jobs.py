"""Jobs as the scheduler sees them: states, the table of transitions, back-off.

Every change of state goes through `move`, which knows only the table: what is absent there is illegal and
says so. The diagram in the docs is drawn from the same table.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from laneway.errors import InvalidTransitionError
from laneway.kernel.protocol import JobSpec, Stop
from laneway.records import JobId, JobState, RetryPolicy

if TYPE_CHECKING:
    from laneway.kernel.lanes import Lane, Resource
    from laneway.kernel.lending import Bereavement, Return, Wait
    from laneway.kernel.queues import Fifo


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
    """One live job (or slot) with everything the kernel knows about it. Never leaves the kernel."""

    __slots__ = (
        "actor",
        "aged",
        "aside",
        "attempt",
        "boost",
        "deferrals",
        "failures",
        "id",
        "inner",
        "inside",
        "is_slot",
        "lanes",
        "lent",
        "mourners",
        "payload",
        "phase",
        "place",
        "places",
        "queued_at",
        "rank",
        "reason",
        "returns",
        "since",
        "spec",
        "spot",
        "stage",
        "started_at",
        "state",
        "stop",
        "submitted_at",
        "threaded",
        "units",
        "up",
        "waiters",
        "waits",
        "wanted",
    )

    def __init__(self, job_id: JobId, lanes: tuple[Lane, ...], spec: JobSpec, payload: Any, place: int) -> None:
        self.id = job_id
        self.lanes = lanes
        self.spec = spec
        self.payload = payload
        self.place = place  # where it stands in its lane: sequence, never time
        self.places: list[int] | None = None  # one place per lane, for jobs with several
        self.stage = 0  # which of its lanes it waits for
        self.state = JobState.QUEUED
        self.phase = 0  # counts queueings and starts, so that old timers and marks are recognised
        self.attempt = 0
        self.failures = 0  # attempts that failed
        self.deferrals = 0  # RetryLater so far
        self.submitted_at = 0
        self.since = 0  # when it began to wait for this attempt
        self.queued_at = 0  # when it came to the lane it waits for now
        self.started_at = 0
        self.aged = 0  # levels gained by waiting
        self.boost = 0  # levels gained by a deadline
        self.rank = 0  # level now
        self.wanted = 0  # lent jobs that wait for it
        self.spot: Fifo | None = None  # the queue it stands in
        self.aside: Lane | None = None  # the lane whose token or group it waits for while out of its queue
        self.units: tuple[Resource, ...] = ()  # what it holds (or has lent)
        self.up: Entry | None = None  # the job it was submitted from
        self.inside = False  # a slot inside `up`, part of the same job
        self.inner: list[Entry] | None = None  # slots inside it
        self.is_slot = False
        self.threaded = False
        self.lent = False
        self.waits = 0  # outstanding waits of this job or of slots inside it
        self.returns: list[Return] | None = None
        self.waiters: list[Wait] | None = None
        self.mourners: list[Bereavement] | None = None
        self.stop: Stop | None = None  # it is being ended from outside
        self.reason = ""
        self.actor = "scheduler"

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


def backoff_ms(policy: RetryPolicy, *, retry: int, jitter: float) -> int:
    """The delay before retry number `retry` (from 1); `jitter` is a random number from 0 to 1."""
    try:
        grown = policy.initial_delay_ms * policy.factor ** (retry - 1)
    except OverflowError:
        grown = float(policy.max_delay_ms)
    capped = min(grown, policy.max_delay_ms)
    return int(capped * (1.0 - policy.jitter * jitter))
