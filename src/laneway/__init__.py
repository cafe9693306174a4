"""Laneway: the traffic system for AI agents. It decides what runs, when, and what happens to what has to wait.

A name is loaded from its module when it is first used: to import Laneway costs nothing that nobody asked for. A new
name goes to three places below: the imports that type checkers read, `__all__`, and `_HOMES`.
"""

TYPE_CHECKING = False  # what type checkers take for True; `typing` itself is not needed here

if TYPE_CHECKING:
    from laneway.agent import (
        AgentStream,
        AsyncAgent,
        AsyncSession,
        EventStream,
        RunInfo,
        RunResult,
    )
    from laneway.agent_events import (
        AgentEvent,
    )
    from laneway.dialogue import (
        Answer,
        ModelRequest,
        Prompt,
        Results,
        ResultStatus,
        ToolCall,
        ToolContext,
        ToolOutput,
        ToolResult,
        ToolSpec,
        Usage,
    )
    from laneway.errors import (
        ApprovalExpiredError,
        ArchiveError,
        BudgetExhaustedError,
        ClosedError,
        ConfigError,
        ConflictError,
        DeniedError,
        DrainingError,
        DuplicateJobError,
        FencedError,
        GiveUp,
        HistoryError,
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
        LeaseLostError,
        MailboxFullError,
        MessageStateError,
        ModelError,
        ModelLimitedError,
        ModelUnavailableError,
        NotAuthenticatedError,
        NotFoundError,
        OverloadedError,
        PassivatedError,
        PermissionDeniedError,
        PromptTooLongError,
        RateLimitedError,
        RealModelForbiddenError,
        ReplayDivergedError,
        RetryLater,
        RunCancelledError,
        RunFailedError,
        StoreCorruptError,
        StoreInUseError,
        StoreUnavailableError,
        StoreVersionError,
        ToolArgumentsError,
        ToolFailedError,
        TransportUnavailableError,
        UnavailableError,
        UnknownHandlerError,
        UnknownJobError,
        UnknownLaneError,
        UnknownMessageError,
        UnknownRunError,
        UnknownSessionError,
        UnknownStoreError,
        UnknownTaskError,
        UnstorableError,
        UsageError,
        WaitTimeoutError,
        WrongThreadError,
    )
    from laneway.external import (
        ExternalTask,
        ExternalTaskResult,
        Lease,
        Progress,
        TaskState,
    )
    from laneway.identity import Identity
    from laneway.inbox import (
        Inbox,
    )
    from laneway.kernel.ledger import (
        LedgerEntry,
        LedgerState,
    )
    from laneway.lanes import (
        JobOptions,
        Lanes,
        LaneScope,
    )
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
    from laneway.options import (
        LaneHandlerConfig,
        PriorityBoostConfig,
        RateLimitConfig,
        RetryPolicyConfig,
        SessionOptions,
        SessionQueueConfig,
        SessionRetentionLimits,
    )
    from laneway.policies import (
        ConfirmationPolicy,
        Hook,
        McpServerConfig,
        PermissionPolicy,
    )
    from laneway.ports import (
        History,
        Model,
        Store,
        Tool,
        Transport,
    )
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
    from laneway.runtime.dead_letters import (
        DeadLetters,
    )
    from laneway.runtime.handles import (
        Job,
        Slot,
    )
    from laneway.runtime.signals import (
        AbortSignal,
    )
    from laneway.runtime.subscriptions import (
        Subscription,
    )
    from laneway.runtime.turns import (
        Child,
        Turn,
    )
    from laneway.spending import (
        Budget,
        BudgetScope,
        BudgetWindow,
        OnExhausted,
        Unpriced,
    )
    from laneway.stores.sessions import (
        FileSessionStore,
        MemorySessionStore,
        SqliteSessionStore,
    )
    from laneway.sync import (
        Agent,
        RunStream,
        Session,
    )
    from laneway.system import (
        FixedClock,
        HostEnv,
        SequentialIdGenerator,
    )
    from laneway.tools import (
        Toolbox,
        tool,
    )
    from laneway.transports import (
        HttpTransport,
        LocalTransport,
    )
    from laneway.worker import (
        Worker,
        WorkerLimits,
    )

__version__ = "0.1.0"

__all__ = (
    "AbortSignal",
    "Agent",
    "AgentEvent",
    "AgentStream",
    "Answer",
    "Approval",
    "ApprovalExpiredError",
    "ApprovalState",
    "ArchiveError",
    "AsyncAgent",
    "AsyncSession",
    "Boost",
    "BoostStep",
    "Budget",
    "BudgetExhaustedError",
    "BudgetScope",
    "BudgetWindow",
    "Child",
    "ClosedError",
    "ConfigError",
    "ConfirmationPolicy",
    "ConflictError",
    "DeadLetter",
    "DeadLetters",
    "DeniedError",
    "DrainReport",
    "DrainingError",
    "Drop",
    "DuplicateJobError",
    "Effect",
    "EventStream",
    "Explanation",
    "ExternalTask",
    "ExternalTaskResult",
    "FencedError",
    "FileSessionStore",
    "Final",
    "FixedClock",
    "GiveUp",
    "Group",
    "HistogramStats",
    "History",
    "HistoryEntry",
    "HistoryError",
    "Hook",
    "HostEnv",
    "HttpTransport",
    "Identity",
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
    "LaneHandlerConfig",
    "LaneMetrics",
    "LaneScope",
    "LaneStats",
    "Lanes",
    "LanewayError",
    "Lease",
    "LeaseLostError",
    "LedgerEntry",
    "LedgerState",
    "LocalTransport",
    "MailboxFullError",
    "McpServerConfig",
    "MemorySessionStore",
    "Message",
    "MessageKind",
    "MessageState",
    "MessageStateError",
    "Mode",
    "Model",
    "ModelError",
    "ModelLimitedError",
    "ModelRequest",
    "ModelUnavailableError",
    "NotAuthenticatedError",
    "NotFoundError",
    "OnCrash",
    "OnExhausted",
    "Outcome",
    "OverloadedError",
    "PassivatedError",
    "PendingMessage",
    "PermissionDeniedError",
    "PermissionPolicy",
    "Priority",
    "PriorityBoostConfig",
    "Progress",
    "Prompt",
    "PromptTooLongError",
    "QueueOptions",
    "QueueSettings",
    "RateLimit",
    "RateLimitConfig",
    "RateLimitedError",
    "RealModelForbiddenError",
    "Receipt",
    "ReplayDivergedError",
    "ResultStatus",
    "Results",
    "RetryLater",
    "RetryPolicy",
    "RetryPolicyConfig",
    "Route",
    "RunCancelledError",
    "RunFailedError",
    "RunInfo",
    "RunResult",
    "RunStream",
    "Schedule",
    "Sender",
    "SequentialIdGenerator",
    "Session",
    "SessionOptions",
    "SessionQueueConfig",
    "SessionRetentionLimits",
    "SessionView",
    "Slot",
    "Snapshot",
    "SqliteSessionStore",
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
    "TaskState",
    "Tool",
    "ToolArgumentsError",
    "ToolCall",
    "ToolContext",
    "ToolFailedError",
    "ToolOutput",
    "ToolResult",
    "ToolSpec",
    "Toolbox",
    "Transport",
    "TransportUnavailableError",
    "Turn",
    "TurnState",
    "UnavailableError",
    "UnknownHandlerError",
    "UnknownJobError",
    "UnknownLaneError",
    "UnknownMessageError",
    "UnknownRunError",
    "UnknownSessionError",
    "UnknownStoreError",
    "UnknownTaskError",
    "Unpriced",
    "UnstorableError",
    "Usage",
    "UsageError",
    "WaitReason",
    "WaitTimeoutError",
    "Worker",
    "WorkerLimits",
    "WrongThreadError",
    "tool",
)

_HOMES = {
    name: module
    for module, names in {
        "agent": "AgentStream AsyncAgent AsyncSession EventStream RunInfo RunResult",
        "agent_events": "AgentEvent",
        "dialogue": (
            "Answer ModelRequest Prompt Results ResultStatus ToolCall ToolContext ToolOutput ToolResult ToolSpec Usage"
        ),
        "errors": (
            "ApprovalExpiredError ArchiveError BudgetExhaustedError ClosedError ConfigError ConflictError DeniedError "
            "DrainingError "
            "DuplicateJobError FencedError GiveUp HistoryError InternalError InterruptSignalError InvalidJobError "
            "InvalidMessageError InvalidTransitionError JobAbortedError JobCancelledError JobFailedError "
            "JobTimeoutError LaneCycleError LaneFullError LanewayError LeaseLostError MailboxFullError "
            "MessageStateError ModelError ModelLimitedError ModelUnavailableError NotAuthenticatedError "
            "NotFoundError OverloadedError PassivatedError PermissionDeniedError PromptTooLongError RateLimitedError "
            "RealModelForbiddenError ReplayDivergedError "
            "RetryLater RunCancelledError RunFailedError StoreCorruptError StoreInUseError StoreUnavailableError "
            "StoreVersionError ToolArgumentsError ToolFailedError TransportUnavailableError UnavailableError "
            "UnknownHandlerError UnknownJobError UnknownLaneError UnknownMessageError UnknownRunError "
            "UnknownSessionError UnknownStoreError UnknownTaskError UnstorableError UsageError WaitTimeoutError "
            "WrongThreadError"
        ),
        "external": "ExternalTask ExternalTaskResult Lease Progress TaskState",
        "identity": "Identity",
        "inbox": "Inbox",
        "kernel.ledger": "LedgerEntry LedgerState",
        "lanes": "JobOptions Lanes LaneScope",
        "mail": (
            "Approval ApprovalState Drop Final HistoryEntry Message MessageKind MessageState Mode OnCrash Outcome "
            "PendingMessage QueueOptions QueueSettings Receipt Route Schedule Sender SessionView Stopped Story "
            "StoryStep TurnState"
        ),
        "options": (
            "LaneHandlerConfig PriorityBoostConfig RateLimitConfig RetryPolicyConfig SessionOptions SessionQueueConfig "
            "SessionRetentionLimits"
        ),
        "policies": "ConfirmationPolicy Hook McpServerConfig PermissionPolicy",
        "ports": "History Model Store Tool Transport",
        "records": (
            "Boost BoostStep DeadLetter DrainReport Effect Explanation Group HistogramStats JobId JobInfo "
            "JobState LaneConfig LaneMetrics LaneStats Priority RateLimit RetryPolicy Snapshot Stats WaitReason"
        ),
        "runtime.dead_letters": "DeadLetters",
        "runtime.handles": "Job Slot",
        "runtime.signals": "AbortSignal",
        "runtime.subscriptions": "Subscription",
        "runtime.turns": "Child Turn",
        "spending": "Budget BudgetScope BudgetWindow OnExhausted Unpriced",
        "stores.sessions": "FileSessionStore MemorySessionStore SqliteSessionStore",
        "sync": "Agent RunStream Session",
        "system": "FixedClock HostEnv SequentialIdGenerator",
        "tools": "tool Toolbox",
        "transports": "HttpTransport LocalTransport",
        "worker": "Worker WorkerLimits",
    }.items()
    for name in names.split()
}
"""Where each public name is at home."""

_PARTS = frozenset({"agent_events", "errors", "events", "models", "replay", "stores", "tools", "transports"})
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
