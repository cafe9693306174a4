"""Laneway: the traffic system for AI agents. It decides what runs, when, and what happens to what has to wait.

A name is loaded from its module when it is first used: to import Laneway costs nothing that nobody asked for. A new
name goes to three places below: the imports that type checkers read, `__all__`, and `_HOMES`.
"""

TYPE_CHECKING = False  # what type checkers take for True; `typing` itself is not needed here

if TYPE_CHECKING:
    from laneway.errors import (
        ApprovalExpiredError,
        ClosedError,
        ConfigError,
        ConflictError,
        DeniedError,
        DrainingError,
        DuplicateJobError,
        FencedError,
        GiveUp,
        InternalError,
        InterruptSignalError,
        InvalidJobError,
        InvalidMessageError,
        InvalidTransitionError,
        JobAbortedError,
        JobCancelledError,
        JobFailedError,
        JobTimeoutError,
        LaneCycleError,
        LaneFullError,
        LanewayError,
        MailboxFullError,
        MessageStateError,
        PermissionDeniedError,
        RetryLater,
        StoreCorruptError,
        StoreInUseError,
        StoreUnavailableError,
        StoreVersionError,
        UnavailableError,
        UnknownHandlerError,
        UnknownJobError,
        UnknownLaneError,
        UnknownMessageError,
        UnknownStoreError,
        UnstorableError,
        UsageError,
        WaitTimeoutError,
        WrongThreadError,
    )
    from laneway.inbox import Inbox
    from laneway.lanes import JobOptions, Lanes, LaneScope
    from laneway.mail import (
        Approval,
        ApprovalState,
        Drop,
        Final,
        HistoryEntry,
        Message,
        MessageKind,
        MessageState,
        Mode,
        OnCrash,
        Outcome,
        PendingMessage,
        QueueOptions,
        QueueSettings,
        Receipt,
        Route,
        Schedule,
        Sender,
        SessionView,
        Stopped,
        Story,
        StoryStep,
        TurnState,
    )
    from laneway.ports import History, Store
    from laneway.records import (
        Boost,
        BoostStep,
        DeadLetter,
        DrainReport,
        Effect,
        Explanation,
        Group,
        HistogramStats,
        JobId,
        JobInfo,
        JobState,
        LaneConfig,
        LaneMetrics,
        LaneStats,
        Priority,
        RateLimit,
        RetryPolicy,
        Snapshot,
        Stats,
        WaitReason,
    )
    from laneway.runtime.dead_letters import DeadLetters
    from laneway.runtime.handles import Job, Slot
    from laneway.runtime.signals import AbortSignal
    from laneway.runtime.subscriptions import Subscription
    from laneway.runtime.turns import Child, Turn
    from laneway.system import FixedClock, HostEnv, SequentialIdGenerator

__version__ = "0.1.0"

__all__ = (
    "AbortSignal",
    "Approval",
    "ApprovalExpiredError",
    "ApprovalState",
    "Boost",
    "BoostStep",
    "Child",
    "ClosedError",
    "ConfigError",
    "ConflictError",
    "DeadLetter",
    "DeadLetters",
    "DeniedError",
    "DrainReport",
    "DrainingError",
    "Drop",
    "DuplicateJobError",
    "Effect",
    "Explanation",
    "FencedError",
    "Final",
    "FixedClock",
    "GiveUp",
    "Group",
    "HistogramStats",
    "History",
    "HistoryEntry",
    "HostEnv",
    "Inbox",
    "InternalError",
    "InterruptSignalError",
    "InvalidJobError",
    "InvalidMessageError",
    "InvalidTransitionError",
    "Job",
    "JobAbortedError",
    "JobCancelledError",
    "JobFailedError",
    "JobId",
    "JobInfo",
    "JobOptions",
    "JobState",
    "JobTimeoutError",
    "LaneConfig",
    "LaneCycleError",
    "LaneFullError",
    "LaneMetrics",
    "LaneScope",
    "LaneStats",
    "Lanes",
    "LanewayError",
    "MailboxFullError",
    "Message",
    "MessageKind",
    "MessageState",
    "MessageStateError",
    "Mode",
    "OnCrash",
    "Outcome",
    "PendingMessage",
    "PermissionDeniedError",
    "Priority",
    "QueueOptions",
    "QueueSettings",
    "RateLimit",
    "Receipt",
    "RetryLater",
    "RetryPolicy",
    "Route",
    "Schedule",
    "Sender",
    "SequentialIdGenerator",
    "SessionView",
    "Slot",
    "Snapshot",
    "Stats",
    "Stopped",
    "Store",
    "StoreCorruptError",
    "StoreInUseError",
    "StoreUnavailableError",
    "StoreVersionError",
    "Story",
    "StoryStep",
    "Subscription",
    "Turn",
    "TurnState",
    "UnavailableError",
    "UnknownHandlerError",
    "UnknownJobError",
    "UnknownLaneError",
    "UnknownMessageError",
    "UnknownStoreError",
    "UnstorableError",
    "UsageError",
    "WaitReason",
    "WaitTimeoutError",
    "WrongThreadError",
)

_HOMES = {
    name: module
    for module, names in {
        "errors": (
            "ApprovalExpiredError ClosedError ConfigError ConflictError DeniedError DrainingError "
            "DuplicateJobError FencedError GiveUp InternalError InterruptSignalError InvalidJobError "
            "InvalidMessageError InvalidTransitionError JobAbortedError JobCancelledError JobFailedError "
            "JobTimeoutError LaneCycleError LaneFullError LanewayError MailboxFullError MessageStateError "
            "PermissionDeniedError RetryLater StoreCorruptError StoreInUseError StoreUnavailableError "
            "StoreVersionError UnavailableError UnknownHandlerError UnknownJobError UnknownLaneError "
            "UnknownMessageError UnknownStoreError UnstorableError UsageError WaitTimeoutError WrongThreadError"
        ),
        "inbox": "Inbox",
        "lanes": "JobOptions Lanes LaneScope",
        "mail": (
            "Approval ApprovalState Drop Final HistoryEntry Message MessageKind MessageState Mode OnCrash Outcome "
            "PendingMessage QueueOptions QueueSettings Receipt Route Schedule Sender SessionView Stopped Story "
            "StoryStep TurnState"
        ),
        "ports": "History Store",
        "records": (
            "Boost BoostStep DeadLetter DrainReport Effect Explanation Group HistogramStats JobId JobInfo "
            "JobState LaneConfig LaneMetrics LaneStats Priority RateLimit RetryPolicy Snapshot Stats WaitReason"
        ),
        "runtime.dead_letters": "DeadLetters",
        "runtime.handles": "Job Slot",
        "runtime.signals": "AbortSignal",
        "runtime.subscriptions": "Subscription",
        "runtime.turns": "Child Turn",
        "system": "FixedClock HostEnv SequentialIdGenerator",
    }.items()
    for name in names.split()
}
"""Where each public name is at home."""

_PARTS = frozenset({"errors", "events", "stores"})
"""Modules that are there without being imported by name."""


if not TYPE_CHECKING:  # so that a misspelt name is still found by type checkers

    def __getattr__(name: str) -> object:
        """A public name, from where it is at home."""
        import importlib

        if name in _PARTS:
            return importlib.import_module(f"laneway.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'laneway' has no attribute {name!r}")
        value = getattr(importlib.import_module(f"laneway.{_HOMES[name]}"), name)
        globals()[name] = value  # from now on it is simply there
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
