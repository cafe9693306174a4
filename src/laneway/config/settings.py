"""The declaration: every setting that a configuration can have, once.

A block is a frozen dataclass; the annotation of a field says what it can be and what it means. Everything else is made
from that: the reader, the variables of the environment, the JSON Schema, the reference page. To add a part, write its
block here and give `Settings` a field of it.

`ALSO` lists the other places where a setting may stand, since people bring the files that they have:

- the shape of `messages.queue` and `agents.defaults` (camelCase, JSON5, process-wide);
- the shape of `queue` with `lanes` and `drop_policy` (snake_case, YAML, a file of its own for each workspace).

The second shape has other defaults: a session that is idle waits out the debounce too, and `main` has one slot.

The file of an agent has a `queue` block as well, and there it means the lanes of the agent's tools. One block takes the
keys of both, because no key is in both, because both stand at the top of a file under this name in files that people
have, and because one agent may need both: what happens to a message while it is busy, and how wide its lanes are. What
is set decides what there is: tools are queued when a key of theirs is set, or when the block is empty; the file has the
second shape when `queue` sets anything for messages, or nothing for tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from laneway.config.agent_blocks import (
    DIRS,
    EFFECT,
    NAMES,
    SESSION_LANE,
    TOOL_LANE,
    TOOL_NAMES,
    BoostBlock,
    HandlerBlock,
    PermissionsBlock,
    ProviderBlock,
    RateBlock,
    RetentionLimitsBlock,
    RetryBlock,
)
from laneway.config.agent_kinds import ModelName
from laneway.config.budget_blocks import BudgetBlock
from laneway.config.declaring import (
    MS,
    SOME_MS,
    SOME_WIDTH,
    WIDTH,
    Setting,
    Sub,
    from_folder,
    store_from_folder,
    with_password,
)
from laneway.config.gate_blocks import ConfirmationBlock, McpBlock
from laneway.config.gateway_blocks import GatewayBlock
from laneway.config.identity_blocks import IdentityBlock
from laneway.config.kinds import Choice, Flag, Number, Text, Whole, word_of
from laneway.mail import CAP_MAX, Drop, Mode, OnCrash
from laneway.options import SESSION_LANES
from laneway.records import CONCURRENCY_MAX, Effect

__all__ = (
    "ALSO",
    "QUEUE_SHAPE",
    "QUEUE_SHAPE_DEFAULTS",
    "TOOL_QUEUE",
    "Also",
    "ChannelBlock",
    "LaneBlock",
    "QueueBlock",
    "Settings",
    "SpawnBlock",
    "WorkspaceBlock",
)


_CRASHES: Final = (OnCrash.REPORT, OnCrash.RERUN)  # to resume is for agent sessions


def _on_crash(word: str) -> OnCrash:
    meant = OnCrash(word.strip().casefold())
    if meant not in _CRASHES:
        raise ValueError(word)
    return meant


CAP: Final = Whole(least=1, most=CAP_MAX)
MODE: Final = Choice(
    words=Mode,
    parse=Mode.parse,
    aliases=(
        *("queue", "queued", "steering", "steers", "steer+backlog", "steerbacklog", "followups", "follow-up"),
        *("follow-ups", "coalesce", "collects", "interrupts", "abort", "rejects", "rollbacks"),
    ),
)
DROP: Final = Choice(words=Drop, parse=Drop.parse, aliases=("oldest", "newest", "summary", "summarise"))
ON_CRASH: Final = Choice(words=_CRASHES, parse=_on_crash)
INHERITED: Final = "what the queue says"


def _lanes() -> Mapping[str, LaneBlock]:
    return {"main": LaneBlock(concurrency=4), "subagent": LaneBlock(concurrency=8), "cron": LaneBlock(concurrency=3)}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelBlock:
    """What is different for the messages of one channel; None: what the queue says."""

    mode: Annotated[Mode | None, Setting(kind=MODE, says="The mode of its messages.", unset=INHERITED)] = None
    debounce_ms: Annotated[int | None, Setting(kind=MS, says="Their quiet window.", unset=INHERITED)] = None
    cap: Annotated[int | None, Setting(kind=CAP, says="How many may wait.", unset=INHERITED)] = None
    drop: Annotated[
        Drop | None,
        Setting(kind=DROP, says="What gives way beyond that.", aliases=("drop_policy",), unset=INHERITED),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueBlock:
    """What happens to a message whose session is busy, and how the tools of an agent's session are queued."""

    mode: Annotated[Mode, Setting(kind=MODE, says="What a message does when its session is busy.")] = Mode.COLLECT
    debounce_ms: Annotated[
        int, Setting(kind=MS, says="How long it must be quiet before collected messages go out together.")
    ] = 1000
    max_wait_ms: Annotated[
        int | None,
        Setting(kind=MS, says="The longest that messages are held back for quiet.", unset="ten times `debounce_ms`"),
    ] = None
    debounce_idle: Annotated[
        bool, Setting(kind=Flag(), says="Whether a message to an idle session waits for quiet too.")
    ] = False
    cap: Annotated[int, Setting(kind=CAP, says="How many messages of a session may wait.")] = 20
    drop: Annotated[Drop, Setting(kind=DROP, says="What gives way beyond the cap.", aliases=("drop_policy",))] = (
        Drop.SUMMARIZE
    )
    interrupt_grace_ms: Annotated[int, Setting(kind=MS, says="How long an interrupted turn has to end.")] = 15_000
    dedupe_ms: Annotated[int, Setting(kind=MS, says="How long a message id is remembered, to know a repeat.")] = (
        86_400_000
    )
    expires_ms: Annotated[
        int | None,
        Setting(kind=SOME_MS, says="After how long a message that still waits has expired.", unset="never"),
    ] = None
    on_crash: Annotated[
        OnCrash, Setting(kind=ON_CRASH, says="What becomes of a message whose turn a crash cut short.")
    ] = OnCrash.REPORT
    control_max_concurrency: Annotated[
        int | None, Setting(kind=SOME_WIDTH, says="Tools: how many run at once in lane `control`.", unset="2")
    ] = None
    query_max_concurrency: Annotated[
        int | None, Setting(kind=SOME_WIDTH, says="Tools: how many run at once in lane `query`.", unset="4")
    ] = None
    execute_max_concurrency: Annotated[
        int | None, Setting(kind=SOME_WIDTH, says="Tools: how many run at once in lane `execute`.", unset="2")
    ] = None
    generate_max_concurrency: Annotated[
        int | None, Setting(kind=SOME_WIDTH, says="How many calls of models run at once in lane `generate`.", unset="1")
    ] = None
    enable_dlq: Annotated[
        bool | None,
        Setting(kind=Flag(), says="Tools: whether calls that failed for good are kept.", unset="`false`"),
    ] = None
    dlq_max_size: Annotated[
        int | None, Setting(kind=Whole(least=1, most=10_000_000), says="How many of them are kept.", unset="1,000")
    ] = None
    enable_metrics: Annotated[
        bool | None, Setting(kind=Flag(), says="Tools: whether calls are counted and measured.", unset="`false`")
    ] = None
    enable_alerts: Annotated[
        bool | None, Setting(kind=Flag(), says="Tools: whether it is told when many calls wait.", unset="`false`")
    ] = None
    default_timeout_ms: Annotated[
        int | None, Setting(kind=SOME_MS, says="Tools: how long a call may run.", unset="no limit")
    ] = None
    storage_path: Annotated[
        str | None,
        Setting(
            kind=Text(least=1, most=4096),
            says="A folder that keeps dead letters and submitted payloads over a restart.",
            unset="none: in memory",
            rooted=from_folder,
        ),
    ] = None
    pressure_threshold: Annotated[
        int | None,
        Setting(
            kind=Whole(least=1, most=1_000_000_000),
            says="Tools: from how many waiting calls on a lane is under pressure.",
            unset="never",
        ),
    ] = None
    lane_timeouts: Annotated[
        Mapping[str, int],
        Setting(kind=SOME_MS, says="Tools: how long a call may run in one lane.", names=SESSION_LANE),
    ] = field(default_factory=dict)
    retry_policy: Annotated[
        RetryBlock, Sub(says="Tools: whether and when a read or an idempotent call that failed runs again.")
    ] = field(default_factory=RetryBlock)
    rate_limit: Annotated[RateBlock, Sub(says="Tools: how many calls of each lane may start in a window.")] = field(
        default_factory=RateBlock
    )
    priority_boost: Annotated[BoostBlock, Sub(says="Tools: how a call climbs as its deadline comes near.")] = field(
        default_factory=BoostBlock
    )
    lane_handlers: Annotated[
        Mapping[str, HandlerBlock],
        Sub(says="Tools: who runs the calls of a lane.", names=SESSION_LANE, shorthand="mode"),
    ] = field(default_factory=dict)
    by_channel: Annotated[
        Mapping[str, ChannelBlock],
        Sub(says="What is different for one channel.", names="channel", shorthand="mode"),
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneBlock:
    """One lane."""

    concurrency: Annotated[int, Setting(kind=WIDTH, says="The width: how many jobs run at once. 0 pauses.")] = 1
    priority: Annotated[
        int, Setting(kind=Whole(least=0, most=9), says="Which lane is served first at a shared cap: 0 before 1.")
    ] = 3
    queued_max: Annotated[
        int | None,
        Setting(kind=Whole(least=0, most=1_000_000_000), says="How many jobs may wait.", unset="any number"),
    ] = None
    timeout_ms: Annotated[int | None, Setting(kind=SOME_MS, says="How long an attempt may run.", unset="no limit")] = (
        None
    )
    wait_timeout_ms: Annotated[int | None, Setting(kind=SOME_MS, says="How long a job may wait.", unset="no limit")] = (
        None
    )
    ageing_ms: Annotated[
        int | None,
        Setting(
            kind=SOME_MS,
            says="After how long a waiting job gains a level, and a lane is overdue.",
            unset="never",
        ),
    ] = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnBlock:
    """Sub-agents."""

    max_concurrent: Annotated[
        int | None,
        Setting(
            kind=Whole(least=1, most=CONCURRENCY_MAX),
            says="How many sub-agents run at once; the width of lane `subagent` too, unless that is set.",
            unset="the width of lane `subagent`",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkspaceBlock:
    """A workspace and where its folder is."""

    path: Annotated[str, Setting(kind=Text(most=4096), says="The folder, as seen from that of the file.")] = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that is configured, for one workspace or for none."""

    name: Annotated[str, Setting(kind=Text(most=200), says="What the workspace is called.")] = ""
    description: Annotated[str, Setting(kind=Text(most=10_000), says="What it is for.")] = ""
    max_concurrent: Annotated[
        int | None,
        Setting(kind=WIDTH, says="A cap over all lanes together but `control`.", unset="no such cap"),
    ] = None
    default_model: Annotated[
        str | None,
        Setting(
            kind=ModelName(),
            says="The model of an agent: `scripted`, or a provider and a model such as `openai/gpt-5`.",
            unset="the one that a session names",
        ),
    ] = None
    system: Annotated[
        str | None, Setting(kind=Text(most=1_000_000), says="What a model is told before all else.", unset="nothing")
    ] = None
    tools: Annotated[
        tuple[str, ...] | None, Setting(kind=TOOL_NAMES, says="The built-in tools that an agent has.", unset="all")
    ] = None
    disabled_tools: Annotated[
        tuple[str, ...] | None, Setting(kind=TOOL_NAMES, says="The built-in tools that it has not.", unset="none")
    ] = None
    max_tool_rounds: Annotated[
        int | None,
        Setting(kind=Whole(least=1, most=1_000_000), says="How often a run may call tools and ask again.", unset="50"),
    ] = None
    max_calls_per_answer: Annotated[
        int | None,
        Setting(kind=Whole(least=1, most=1_000_000), says="How many calls one answer may make.", unset="64"),
    ] = None
    max_execution_time_ms: Annotated[
        int | None, Setting(kind=SOME_MS, says="How long a run may take.", unset="no limit")
    ] = None
    tool_timeout_ms: Annotated[
        int | None, Setting(kind=SOME_MS, says="How long a call of a tool may take.", unset="no limit")
    ] = None
    background_after_ms: Annotated[
        int | None,
        Setting(
            kind=MS,
            says="After how long a call goes on in the background, if its tool allows that or is named below.",
            unset="never",
        ),
    ] = None
    background_tools: Annotated[
        tuple[str, ...] | None,
        Setting(kind=NAMES, says="Tools, beside those that say so, whose calls may go on there.", unset="none"),
    ] = None
    output_max: Annotated[
        int | None,
        Setting(
            kind=Whole(least=1, most=1_000_000_000),
            says="How many characters of a tool's output a model is shown.",
            unset="30,000",
        ),
    ] = None
    auto_compact: Annotated[
        bool | None,
        Setting(kind=Flag(), says="Whether a long conversation is summed up by itself.", unset="`true`"),
    ] = None
    auto_compact_threshold: Annotated[
        float | None,
        Setting(
            kind=Number(least=0.05, most=1), says="At which share of the model's context that happens.", unset="0.8"
        ),
    ] = None
    record: Annotated[
        bool | None,
        Setting(kind=Flag(), says="Whether runs are written down, to be replayed to the same bytes.", unset="`false`"),
    ] = None
    session_store: Annotated[
        str | None,
        Setting(
            kind=Text(least=1, most=4096),
            says="Where sessions are kept: an address such as `sqlite:///agent.db`, or a folder.",
            aliases=("sessions_dir",),
            unset="in memory",
            secret=with_password,
            rooted=store_from_folder,
        ),
    ] = field(default=None, repr=False)
    on_crash: Annotated[
        str | None,
        Setting(
            kind=word_of("resume", "report", "ask"),
            says="What becomes of a run that a crash cut short.",
            unset="`resume`",
        ),
    ] = None
    environment: Annotated[
        tuple[str, ...] | None,
        Setting(kind=NAMES, says="The variables that the shell tool may see.", unset="a few harmless ones"),
    ] = None
    skill_dirs: Annotated[
        tuple[str, ...] | None,
        Setting(kind=DIRS, says="The folders with skills.", unset="none", rooted=from_folder),
    ] = None
    agent_dirs: Annotated[
        tuple[str, ...] | None,
        Setting(kind=DIRS, says="The folders with definitions of sub-agents.", unset="none", rooted=from_folder),
    ] = None
    planning: Annotated[
        bool | None, Setting(kind=Flag(), says="Whether a run makes a plan first.", unset="`false`")
    ] = None
    max_plan_steps: Annotated[
        int | None, Setting(kind=Whole(least=1, most=1_000), says="How many steps a plan may have.", unset="20")
    ] = None
    subagents: Annotated[
        bool | None,
        Setting(
            kind=Flag(),
            says="Whether the model may hand work to sub-agents.",
            unset="if there are definitions of sub-agents",
        ),
    ] = None
    max_subagents: Annotated[
        int | None,
        Setting(
            kind=Whole(least=1, most=1_000_000),
            says="How many sub-agents of all sessions of a store may be at work at once.",
            unset="8",
        ),
    ] = None
    max_parallel_tasks: Annotated[
        int | None,
        Setting(
            kind=Whole(least=1, most=1_000_000),
            says="How many sub-agents one run may have at work at once.",
            unset="any number",
        ),
    ] = None
    max_subagent_depth: Annotated[
        int | None,
        Setting(kind=Whole(least=0, most=100), says="How deep sub-agents may have sub-agents; 0: none.", unset="3"),
    ] = None
    budgets: Annotated[Mapping[str, BudgetBlock], Sub(says="What may be spent on models.", names="budget")] = field(
        default_factory=dict
    )
    identity: Annotated[IdentityBlock, Sub(says="To whom the sessions are attributed.")] = field(
        default_factory=IdentityBlock
    )
    tool_lanes: Annotated[
        Mapping[str, str], Setting(kind=TOOL_LANE, says="The lane in which a tool runs.", names="tool")
    ] = field(default_factory=dict)
    tool_effects: Annotated[
        Mapping[str, Effect], Setting(kind=EFFECT, says="What a tool does to the world.", names="tool")
    ] = field(default_factory=dict)
    queue: Annotated[QueueBlock, Sub(says="What happens to messages, and how the tools of a session are queued.")] = (
        field(default_factory=QueueBlock)
    )
    providers: Annotated[
        Mapping[str, ProviderBlock], Sub(says="How a provider of models is reached.", names="provider")
    ] = field(default_factory=dict)
    permissions: Annotated[PermissionsBlock, Sub(says="Which calls of tools may be made.")] = field(
        default_factory=PermissionsBlock
    )
    confirmation: Annotated[ConfirmationBlock, Sub(says="Who is asked about calls that somebody has to approve.")] = (
        field(default_factory=ConfirmationBlock)
    )
    retention_limits: Annotated[
        RetentionLimitsBlock, Sub(says="How much a session keeps in memory of what is over.")
    ] = field(default_factory=RetentionLimitsBlock)
    mcp_servers: Annotated[Mapping[str, McpBlock], Sub(says="Servers of tools that speak MCP.", names="server")] = (
        field(default_factory=dict)
    )
    lanes: Annotated[Mapping[str, LaneBlock], Sub(says="The lanes.", names="lane", shorthand="concurrency")] = field(
        default_factory=_lanes
    )
    spawn: Annotated[SpawnBlock, Sub(says="Sub-agents.")] = field(default_factory=SpawnBlock)
    gateway: Annotated[GatewayBlock, Sub(says="The server: how it is reached, and what it bears.")] = field(
        default_factory=GatewayBlock
    )
    workspaces: Annotated[
        Mapping[str, WorkspaceBlock],
        Sub(
            says="The workspaces. What stands at the top of a file, all but `gateway`, may stand in one too.",
            names="workspace",
            shorthand="path",
            outside=False,
        ),
    ] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Also:
    """A second place for a setting or a block. In `target`, `*` stands for a name that the file gives."""

    place: str
    target: str


ALSO: Final = (
    Also("messages.queue", "queue"),
    Also("messages.queue.debounce_ms_by_channel", "queue.by_channel.*.debounce_ms"),
    Also("queue.debounce_ms_by_channel", "queue.by_channel.*.debounce_ms"),
    Also("queue.lanes", "lanes"),
    Also("agents.defaults.max_concurrent", "lanes.main.concurrency"),
    Also("agents.defaults.subagents.max_concurrent", "lanes.subagent.concurrency"),
    Also("providers.*.models.*.limit.context", "providers.*.models.*.context_tokens"),
    Also("providers.*.models.*.limit.output", "providers.*.models.*.output_max"),
    Also("builtins.spawn.config.max_concurrent", "spawn.max_concurrent"),
)

QUEUE_SHAPE: Final = ("queue",)
"""The block whose presence at the top of a file says that the file has the second shape."""

TOOL_QUEUE: Final = frozenset(
    {
        *(f"{lane}_max_concurrency" for lane in SESSION_LANES),
        *("enable_dlq", "dlq_max_size", "enable_metrics", "enable_alerts", "default_timeout_ms", "storage_path"),
        *("pressure_threshold", "lane_timeouts", "retry_policy", "rate_limit", "priority_boost", "lane_handlers"),
    }
)
"""The keys of `queue` that are about tools; all others are about messages."""

QUEUE_SHAPE_DEFAULTS: Final[Mapping[tuple[str, ...], Any]] = {
    ("queue", "debounce_idle"): True,
    ("lanes", "main", "concurrency"): 1,
}
