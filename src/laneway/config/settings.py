"""The declaration: every setting that a configuration can have, once.

A block is a frozen dataclass; the annotation of a field says what it can be and what it means. Everything else is made
from that: the reader, the variables of the environment, the JSON Schema, the reference page. To add a part, write its
block here and give `Settings` a field of it.

`ALSO` lists the other places where a setting may stand, since people bring the files that they have:

- the shape of `messages.queue` and `agents.defaults` (camelCase, JSON5, process-wide);
- the shape of `queue` with `lanes` and `drop_policy` (snake_case, YAML, a file of its own for each workspace).

The second shape has other defaults: a session that is idle waits out the debounce too, and `main` has one slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from laneway.config.kinds import Choice, Flag, Kind, Text, Whole
from laneway.mail import CAP_MAX, Drop, Mode, OnCrash
from laneway.records import CONCURRENCY_MAX, DURATION_MAX_MS

__all__ = (
    "ALSO",
    "QUEUE_SHAPE",
    "QUEUE_SHAPE_DEFAULTS",
    "Also",
    "ChannelBlock",
    "LaneBlock",
    "QueueBlock",
    "Setting",
    "Settings",
    "SpawnBlock",
    "Sub",
    "WorkspaceBlock",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value: what it can be, what it means, other names for it. `unset` says what None stands for."""

    kind: Kind
    says: str
    aliases: tuple[str, ...] = ()
    unset: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sub:
    """A block inside a block; with `names`, one block for each name that the file gives.

    `shorthand` is the setting that a bare value means: `main: 4` is `main: {concurrency: 4}`. `outside` says whether
    variables and options reach into it.
    """

    says: str
    names: str = ""
    shorthand: str = ""
    outside: bool = True


def _on_crash(word: str) -> OnCrash:
    return OnCrash(word.strip().casefold())


_CRASHES: Final = (OnCrash.REPORT, OnCrash.RERUN)  # to resume is for agent sessions


MS: Final = Whole(least=0, most=DURATION_MAX_MS, unit="milliseconds")
SOME_MS: Final = Whole(least=1, most=DURATION_MAX_MS, unit="milliseconds")
CAP: Final = Whole(least=1, most=CAP_MAX)
WIDTH: Final = Whole(least=0, most=CONCURRENCY_MAX)
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
    """What happens to a message whose session is busy."""

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
    queue: Annotated[QueueBlock, Sub(says="What happens to messages.")] = field(default_factory=QueueBlock)
    lanes: Annotated[Mapping[str, LaneBlock], Sub(says="The lanes.", names="lane", shorthand="concurrency")] = field(
        default_factory=_lanes
    )
    spawn: Annotated[SpawnBlock, Sub(says="Sub-agents.")] = field(default_factory=SpawnBlock)
    workspaces: Annotated[
        Mapping[str, WorkspaceBlock],
        Sub(
            says="The workspaces. What may stand at the top of a file may stand in one too, for it alone.",
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
    Also("builtins.spawn.config.max_concurrent", "spawn.max_concurrent"),
)

QUEUE_SHAPE: Final = ("queue",)
"""The block whose presence at the top of a file says that the file has the second shape."""

QUEUE_SHAPE_DEFAULTS: Final[Mapping[tuple[str, ...], Any]] = {
    ("queue", "debounce_idle"): True,
    ("lanes", "main", "concurrency"): 1,
}
