"""Every exception of Laneway, named by who has to do something about it.

```text
LanewayError                 code (stable text), the facts as attributes, a hint
├─ UsageError                the caller is wrong: fix the call
│  ├─ ConfigError            a setting has a value it cannot have
│  ├─ InvalidJobError        what was submitted is not something that can run
│  ├─ UnknownLaneError       no lane has that name
│  ├─ UnknownJobError        no live job (or dead letter) has that id
│  ├─ LaneCycleError         the wait would wait for itself
│  ├─ WrongThreadError       called outside the event loop that owns the lanes
│  ├─ UnknownHandlerError    no handler has that name
│  ├─ InvalidMessageError    what was sent is not a message that can be kept
│  ├─ UnknownMessageError    no message has that id
│  ├─ UnknownStoreError      no store is behind that address
│  ├─ ArchiveError           the file is no session, or not one that can be imported
│  ├─ UnknownRunError        there is nothing to resume under that id
│  ├─ UnknownSessionError    the store has no session of that name
│  ├─ UnknownTaskError       no external task has that id
│  ├─ NotFoundError          there is no such thing, or it is not yours
│  ├─ HistoryError           a file is no history of a run that can be used
│  ├─ ToolArgumentsError     the arguments of a call do not fit the tool
│  └─ ModelError             the provider of a model refuses the call as it is
│     ├─ PromptTooLongError  the conversation is longer than the model can take in
│     └─ RealModelForbiddenError  calls of real models are switched off
├─ ConflictError             valid, but not now: look at the state, then decide
│  ├─ InvalidTransitionError a job cannot change in that way from its state
│  ├─ DuplicateJobError      the key belongs to a job with another function
│  ├─ LaneFullError          the lane holds as many waiting jobs as it may
│  ├─ DrainingError          no new work is taken while draining
│  ├─ ClosedError            these lanes are closed (or not open yet)
│  │  └─ PassivatedError     the session has left memory; what it was told goes on later
│  ├─ MailboxFullError       the session holds as many waiting messages as it may
│  ├─ MessageStateError      a message cannot change in that way from its state
│  ├─ FencedError            somebody else owns this now; what the old owner says is refused
│  ├─ LeaseLostError         the task is no longer this worker's; what it says of it is refused
│  ├─ RateLimitedError       too many requests from one caller
│  ├─ ReplayDivergedError    what happens now is not what was recorded
│  ├─ StoreInUseError        another process has the store open
│  └─ StoreVersionError      the store was written by a newer Laneway
├─ UnavailableError          the world is wrong: a later try may help
│  ├─ StoreUnavailableError  the store refused: the disk is full, read-only, broken …
│  │  ├─ StoreCorruptError   what is on disk is not what was written
│  │  └─ UnstorableError     what was to be written can never be stored as it is
│  ├─ TransportUnavailableError  nobody answers at the other end
│  ├─ OverloadedError        the gateway takes no more work for a while
│  └─ ModelUnavailableError  the provider of a model cannot answer now
│     └─ ModelLimitedError   … and says for how long: too many requests, or the quota is used up
├─ DeniedError               a policy said no
│  ├─ NotAuthenticatedError  no token, or one that does not count (any more)
│  ├─ PermissionDeniedError  the sender lacks the right
│  ├─ ApprovalExpiredError   nobody answered in time
│  └─ BudgetExhaustedError   a budget, or its guard, allows no further call of a model
├─ JobFailedError            a job ended without a value
│  ├─ JobCancelledError      somebody cancelled it
│  ├─ JobAbortedError        its AbortSignal fired
│  ├─ JobTimeoutError        it ran longer than timeout_ms
│  ├─ WaitTimeoutError       it waited longer than wait_timeout_ms
│  ├─ ToolFailedError        a tool that was called by the host says no
│  └─ RunFailedError         a run of an agent ended without an answer
│     └─ RunCancelledError   somebody ended it
└─ InternalError             our bug
Signals (not errors)         raised inside a job to steer it: RetryLater, GiveUp; to a turn: InterruptSignalError
```

One table, `REACTIONS`, maps the bases to an HTTP status and an exit code.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Final, NamedTuple

__all__ = (
    "REACTIONS",
    "ApprovalExpiredError",
    "ArchiveError",
    "BudgetExhaustedError",
    "ClosedError",
    "ConfigError",
    "ConflictError",
    "DeniedError",
    "DrainingError",
    "DuplicateJobError",
    "FencedError",
    "GiveUp",
    "HistoryError",
    "InternalError",
    "InterruptSignalError",
    "InvalidJobError",
    "InvalidMessageError",
    "InvalidTransitionError",
    "JobAbortedError",
    "JobCancelledError",
    "JobFailedError",
    "JobTimeoutError",
    "LaneCycleError",
    "LaneFullError",
    "LanewayError",
    "LeaseLostError",
    "MailboxFullError",
    "MessageStateError",
    "ModelError",
    "ModelLimitedError",
    "ModelUnavailableError",
    "NotAuthenticatedError",
    "NotFoundError",
    "OverloadedError",
    "PassivatedError",
    "PermissionDeniedError",
    "PromptTooLongError",
    "RateLimitedError",
    "Reaction",
    "RealModelForbiddenError",
    "ReplayDivergedError",
    "RetryLater",
    "RunCancelledError",
    "RunFailedError",
    "StoreCorruptError",
    "StoreInUseError",
    "StoreUnavailableError",
    "StoreVersionError",
    "ToolArgumentsError",
    "ToolFailedError",
    "TransportUnavailableError",
    "UnavailableError",
    "UnknownHandlerError",
    "UnknownJobError",
    "UnknownLaneError",
    "UnknownMessageError",
    "UnknownRunError",
    "UnknownSessionError",
    "UnknownStoreError",
    "UnknownTaskError",
    "UnstorableError",
    "UsageError",
    "WaitTimeoutError",
    "WrongThreadError",
    "describe",
    "reaction_to",
    "text_of",
)


def text_of(value: object) -> str:
    """Any value as text, whatever its own `__str__` does: what people pass as a reason must never break anything."""
    if type(value) is not str:
        try:
            value = str(value)
        except Exception:  # noqa: BLE001 - somebody else's __str__
            return f"<{type(value).__name__}>"
    assert isinstance(value, str)
    if value.isascii():
        return value
    return value.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair could not be stored


def describe(error: BaseException) -> str:
    """An error in one line: its kind and what it says."""
    return f"{type(error).__name__}: {text_of(error)}"


def _rebuild(cls: type[LanewayError], state: dict[str, Any]) -> LanewayError:
    error = cls.__new__(cls)
    error.__dict__.update(state)
    return error


class LanewayError(Exception):
    """The root: a stable `code`, the facts as attributes, and a `hint` that names the way out."""

    code: ClassVar[str] = "laneway"

    def __init__(self, message: str, *, hint: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.__dict__.update(facts)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Keyword-only constructors cannot be rebuilt from args; errors must survive process pools and stores.
        return _rebuild, (type(self), dict(self.__dict__))


class UsageError(LanewayError):
    """The caller is wrong; nothing changed. Fix the call."""

    code = "usage"


class ConfigError(UsageError):
    """A setting has a value it cannot have; what was in force stays in force."""

    code = "config"

    def __init__(self, message: str, *, setting: str = "", value: object = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.setting = setting
        self.value = value


class InvalidJobError(UsageError):
    """What was submitted cannot run: not callable, wrong lane order, wrong argument."""

    code = "invalid_job"


class UnknownLaneError(UsageError):
    """No lane has that name, and unknown lanes are not created on the fly."""

    code = "unknown_lane"

    def __init__(self, *, lane: str, suggestion: str | None = None, known: tuple[str, ...] = ()) -> None:
        hint = f"did you mean {suggestion!r}?" if suggestion else "lanes here: " + (", ".join(known) or "none")
        super().__init__(f"there is no lane {lane!r}", hint=hint)
        self.lane = lane
        self.suggestion = suggestion


class UnknownJobError(UsageError):
    """No live job has that id: it never existed, or it has ended and was forgotten."""

    code = "unknown_job"

    def __init__(self, *, job_id: str, hint: str = "it never existed, or it has ended") -> None:
        super().__init__(f"there is no job {job_id!r}", hint=hint)
        self.job_id = job_id


class LaneCycleError(UsageError):
    """Waiting for that job would wait for itself; the awaited job is untouched."""

    code = "lane_cycle"

    def __init__(self, *, job_id: str, target_id: str, path: tuple[str, ...]) -> None:
        super().__init__(
            f"job {job_id!r} cannot wait for {target_id!r}: " + " waits for ".join(path),
            hint="submit it without awaiting, or await it from outside the job",
        )
        self.job_id = job_id
        self.target_id = target_id
        self.path = path


class WrongThreadError(UsageError):
    """Lanes belong to the event loop they were opened on; other threads post to that loop."""

    code = "wrong_thread"

    def __init__(self, *, call: str) -> None:
        super().__init__(
            f"{call} was called outside the event loop that owns these lanes",
            hint="from another thread use asyncio.run_coroutine_threadsafe; a sync job returns the coroutine instead",
        )
        self.call = call


class UnknownHandlerError(UsageError):
    """No handler has that name; durable work is kept by the name of its handler."""

    code = "unknown_handler"

    def __init__(self, *, handler: str, known: tuple[str, ...] = ()) -> None:
        shown = ", ".join(known) or "none"
        super().__init__(
            f"there is no handler {handler!r}", hint=f"register it with @lanes.handler({handler!r}); there are: {shown}"
        )
        self.handler = handler


class InvalidMessageError(UsageError):
    """What was sent cannot be kept as a message; nothing was stored."""

    code = "invalid_message"


class UnknownMessageError(UsageError):
    """No message has that id."""

    code = "unknown_message"

    def __init__(self, *, message_id: str) -> None:
        super().__init__(f"there is no message {message_id!r}", hint="ids are those that receipts carry")
        self.message_id = message_id


class ModelError(UsageError):
    """The provider of a model refuses the call as it is (a wrong key, an unknown model, a prompt that is too long)."""

    code = "model"

    def __init__(self, message: str, *, model: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.model = model


class PromptTooLongError(ModelError):
    """The conversation is longer than the model can take in: make it shorter, then ask again."""

    code = "prompt_too_long"


class RealModelForbiddenError(ModelError):
    """Calls of real models are switched off here, as tests do."""

    code = "real_model_forbidden"


class ToolArgumentsError(UsageError):
    """The arguments of a call do not fit the tool; nothing was run."""

    code = "tool_arguments"


class UnknownRunError(UsageError):
    """There is nothing to resume under that id."""

    code = "unknown_run"


class UnknownSessionError(UsageError):
    """A store has no session of that name; `near` are the names there that are like it."""

    code = "unknown_session"

    def __init__(self, *, session_id: str, tenant: str = "default", store: str, near: Iterable[str] = ()) -> None:
        whose = "" if tenant == "default" else f" of tenant {tenant!r}"
        names = tuple(near)
        guess = f"did you mean {' or '.join(map(repr, names))}? " if names else ""
        super().__init__(
            f"there is no session {session_id!r}{whose} in {store}",
            hint=f"{guess}agent.session(session_id={session_id!r}) begins a new one; agent.stored_sessions() lists all",
        )
        self.session_id = session_id
        self.tenant = tenant
        self.store = store
        self.near = names


class UnknownTaskError(UsageError):
    """No external task has that id."""

    code = "unknown_task"


class NotFoundError(UsageError):
    """There is no such thing, or it belongs to somebody else: both look the same from outside."""

    code = "not_found"

    def __init__(self, *, what: str, name: str, hint: str = "") -> None:
        super().__init__(f"there is no {what} {name!r}", hint=hint)
        self.what = what
        self.name = name


class HistoryError(UsageError):
    """A file is no history of a run that can be used: foreign, newer, damaged or cut off. Nothing was done with it."""

    code = "history"


class UnknownStoreError(UsageError):
    """No store is behind that address."""

    code = "unknown_store"


class ArchiveError(UsageError):
    """The file is no exported session, is damaged, or was written by a newer Laneway; nothing was imported."""

    code = "archive"


class ConflictError(LanewayError):
    """Valid, but not now; nothing changed. Look at the state, then decide."""

    code = "conflict"


class InvalidTransitionError(ConflictError):
    """A job cannot change in that way from the state it is in."""

    code = "invalid_transition"

    def __init__(self, *, job_id: str, state: str, trigger: str) -> None:
        super().__init__(
            f"job {job_id!r} is {state}; {trigger} is not possible from there",
            hint="look at its state first; a final state never changes",
        )
        self.job_id = job_id
        self.state = state
        self.trigger = trigger


class DuplicateJobError(ConflictError):
    """The key belongs to a live job that runs another function."""

    code = "duplicate_job"

    def __init__(self, *, key: str, job_id: str) -> None:
        super().__init__(
            f"key {key!r} belongs to job {job_id!r}, which runs another function",
            hint="use another key, or wait until that job has ended",
        )
        self.key = key
        self.job_id = job_id


class LaneFullError(ConflictError):
    """The lane holds as many waiting jobs as it may; nothing was queued."""

    code = "lane_full"

    def __init__(self, *, lane: str, queued_max: int, waiting: int) -> None:
        super().__init__(
            f"lane {lane!r} is full: its slots are taken, {waiting} wait, and at most {queued_max} may",
            hint="try again when it has moved on, raise queued_max, or cancel what waits",
        )
        self.lane = lane
        self.queued_max = queued_max
        self.waiting = waiting


class DrainingError(ConflictError):
    """No new work is taken: the lanes are draining before a restart or a stop."""

    code = "draining"

    def __init__(self, *, purpose: str) -> None:
        way_out = "try again after the restart" if purpose == "restart" else "call reopen() to take work again"
        super().__init__(f"the lanes are draining for a {purpose} and take no new work", hint=way_out)
        self.purpose = purpose


class ClosedError(ConflictError):
    """The lanes are closed, or were never opened."""

    code = "closed"

    def __init__(self, *, opened: bool, what: str = "lanes") -> None:
        name = what.capitalize()
        this = "these lanes are" if what == "lanes" else f"this {what} is"
        if opened:
            super().__init__(f"{this} closed", hint=f"make a new {name}")
        else:
            super().__init__(
                f"{this} not open yet",
                hint=f"use {'them' if what == 'lanes' else 'it'} inside `async with {name}(...) as {what}:`",
            )
        self.opened = opened


class PassivatedError(ClosedError):
    """The session has left memory before a message had its answer; that is stored, and goes on when it is opened."""

    code = "passivated"

    def __init__(self, *, session_id: str, message_id: str) -> None:
        ConflictError.__init__(
            self,
            f"session {session_id!r} has left memory before {message_id} had its answer",
            hint="do not send it again, it is stored: wait(message_id) opens the session and waits for the answer",
        )
        self.opened = True
        self.session_id = session_id
        self.message_id = message_id


class MailboxFullError(ConflictError):
    """The session holds as many waiting messages as its cap allows, and its policy is to refuse newcomers."""

    code = "mailbox_full"

    def __init__(self, *, session_key: str, cap: int) -> None:
        super().__init__(
            f"session {session_key!r} is full: {cap} {'message waits' if cap == 1 else 'messages wait'} there already",
            hint="send it again later, raise the cap, or choose drop='old' or 'summarize'",
        )
        self.session_key = session_key
        self.cap = cap


class RateLimitedError(ConflictError):
    """Too many requests from one caller; nothing was done. `retry_after_ms` says when it may try again."""

    code = "rate_limited"

    def __init__(self, message: str, *, retry_after_ms: int, hint: str = "send fewer requests at once") -> None:
        super().__init__(message, hint=hint)
        self.retry_after_ms = retry_after_ms


class ReplayDivergedError(ConflictError):
    """What happens now is not what was recorded: `step` is the first that differs, `where` says in what.

    `recorded` and `now` are the two values.
    """

    code = "replay_diverged"


class MessageStateError(ConflictError):
    """A message cannot change in that way from the state it is in; nothing changed."""

    code = "message_state"

    def __init__(self, *, message_id: str, state: str, call: str, hint: str = "") -> None:
        super().__init__(f"message {message_id} is {state}: {call} is not possible", hint=hint)
        self.message_id = message_id
        self.state = state
        self.call = call


class FencedError(ConflictError):
    """Somebody else owns this now: what an old owner says or writes is refused."""

    code = "fenced"


class LeaseLostError(ConflictError):
    """The task is no longer this worker's: its lease has ended, or the task has."""

    code = "lease_lost"


class StoreInUseError(ConflictError):
    """Another process has the store open; a store has one owner at a time."""

    code = "store_in_use"


class StoreVersionError(ConflictError):
    """The store was written by a newer Laneway; it is left as it is."""

    code = "store_version"


class UnavailableError(LanewayError):
    """Something outside is wrong; a later try may help."""

    code = "unavailable"


class StoreUnavailableError(UnavailableError):
    """The store refused or could not be reached; nothing was half done."""

    code = "store_unavailable"


class StoreCorruptError(StoreUnavailableError):
    """What is on disk is not what was written; it is left as it is."""

    code = "store_corrupt"


class UnstorableError(StoreUnavailableError):
    """What was to be written can never be stored as it is: trying again does not help, and nothing was written."""

    code = "unstorable"


class OverloadedError(UnavailableError):
    """So much waits that nothing more is taken for a while; nothing was done."""

    code = "overloaded"

    def __init__(self, message: str, *, retry_after_ms: int, hint: str = "try again later") -> None:
        super().__init__(message, hint=hint)
        self.retry_after_ms = retry_after_ms


class TransportUnavailableError(UnavailableError):
    """Nobody answers at the other end of a transport; a later try may help."""

    code = "transport_unavailable"


class ModelUnavailableError(UnavailableError):
    """The provider of a model cannot answer now: no connection, a fault of its own, a stream that was cut."""

    code = "model_unavailable"

    def __init__(self, message: str, *, model: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.model = model


class ModelLimitedError(ModelUnavailableError):
    """The provider takes no calls for this model for `retry_after_ms`: too many requests, or a quota is used up."""

    code = "model_limited"

    def __init__(self, message: str, *, retry_after_ms: int, model: str = "", hint: str = "") -> None:
        super().__init__(message, model=model, hint=hint)
        self.retry_after_ms = retry_after_ms


class DeniedError(LanewayError):
    """A policy said no."""

    code = "denied"


class NotAuthenticatedError(DeniedError):
    """No token was given, or one that is wrong, expired or revoked: which of these is not said."""

    code = "not_authenticated"


class PermissionDeniedError(DeniedError):
    """The sender lacks the right; nothing changed."""

    code = "permission_denied"


class ApprovalExpiredError(DeniedError):
    """Nobody answered in time."""

    code = "approval_expired"


class BudgetExhaustedError(DeniedError, RuntimeError):
    """A budget, or the guard of a session, allows no further call of a model; the session stays open."""

    code = "budget_exhausted"

    def __init__(self, reason: str, *, resource: str = "", hint: str = "", **facts: Any) -> None:
        of = f" ({resource})" if resource else ""
        super().__init__(f"Budget exhausted{of}: {reason}", hint=hint, **facts)
        self.resource = resource
        self.reason = reason


class JobFailedError(LanewayError):
    """A job ended without a value, and its own exception is not at hand."""

    code = "job_failed"

    def __init__(self, message: str, *, job_id: str, lane: str = "", reason: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.job_id = job_id
        self.lane = lane
        self.reason = reason


class JobCancelledError(JobFailedError):
    """Somebody cancelled the job; `reason` says why."""

    code = "job_cancelled"


class JobAbortedError(JobFailedError):
    """The job's AbortSignal fired."""

    code = "job_aborted"


class JobTimeoutError(JobFailedError):
    """The job ran longer than its timeout_ms."""

    code = "job_timeout"


class WaitTimeoutError(JobFailedError):
    """The job waited longer than its wait_timeout_ms and never started."""

    code = "wait_timeout"


class ToolFailedError(JobFailedError):
    """A tool that the host called itself has answered with an error; the message is what it said."""

    code = "tool_failed"

    def __init__(self, message: str, *, tool: str) -> None:
        super().__init__(message, job_id=tool, reason=message)
        self.tool = tool


class RunFailedError(JobFailedError):
    """A run of an agent ended without an answer, and its own exception is not at hand; `reason` says why.

    `is_intended`: a policy has ended it, as it is meant to, and nothing went wrong.
    """

    code = "run_failed"
    is_intended = False

    def __init__(self, message: str, *, run_id: str = "", reason: str = "", hint: str = "") -> None:
        super().__init__(message, job_id=run_id, reason=reason, hint=hint)
        self.run_id = run_id


class RunCancelledError(RunFailedError):
    """A run of an agent was ended before it had answered."""

    code = "run_cancelled"


class InternalError(LanewayError):
    """Our bug: an invariant of Laneway does not hold."""

    code = "internal"

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="this is a bug in Laneway; please report it with this text and the traceback")


class RetryLater(Exception):
    """Raised by a job to be queued again after `after_ms`; costs no retry, at most 100 times."""

    def __init__(self, after_ms: int, reason: str = "") -> None:
        if type(after_ms) is not int or after_ms < 0:
            raise ConfigError(
                f"after_ms must be a whole number of milliseconds, not {after_ms!r}", setting="after_ms", value=after_ms
            )
        super().__init__(reason or f"again after {after_ms} ms")
        self.after_ms = after_ms
        self.reason = text_of(reason)


class GiveUp(Exception):
    """Raised by a job that knows that no further attempt will help; it becomes a dead letter."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = text_of(reason)


class InterruptSignalError(Exception):
    """Raised at a boundary of a turn that was interrupted: a newer message runs instead. Let it pass."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = text_of(reason)


class Reaction(NamedTuple):
    """What the outside sees of an error: an HTTP status and an exit code."""

    http_status: int
    exit_code: int


REACTIONS: Final[dict[type[LanewayError], Reaction]] = {
    UsageError: Reaction(400, 2),
    NotFoundError: Reaction(404, 2),
    UnknownJobError: Reaction(404, 2),
    UnknownLaneError: Reaction(404, 2),
    UnknownMessageError: Reaction(404, 2),
    UnknownRunError: Reaction(404, 2),
    UnknownSessionError: Reaction(404, 2),
    UnknownTaskError: Reaction(404, 2),
    MailboxFullError: Reaction(429, 3),
    LaneFullError: Reaction(429, 3),
    RateLimitedError: Reaction(429, 3),
    FencedError: Reaction(503, 4),  # to be tried again, with whoever owns it now
    ConflictError: Reaction(409, 3),
    UnavailableError: Reaction(503, 4),
    NotAuthenticatedError: Reaction(401, 5),
    DeniedError: Reaction(403, 5),
    JobFailedError: Reaction(502, 6),
    InternalError: Reaction(500, 70),
    LanewayError: Reaction(500, 1),
}
"""The one table from causes to what the outside sees; the nearest base of an error decides."""


def reaction_to(error: LanewayError) -> Reaction:
    """The status and exit code of an error: those of its nearest base in `REACTIONS`."""
    return next(REACTIONS[base] for base in type(error).__mro__ if base in REACTIONS)
