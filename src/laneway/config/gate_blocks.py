"""The blocks of what may stop a call and of where tools come from: approvals, and servers of tools.

What nobody sets is None here, as in the other blocks of an agent; the defaults are those of `laneway.policies`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from laneway.config.agent_blocks import EFFECT, NAMES, TOOL_LANE
from laneway.config.declaring import SOME_MS, Setting, always, from_folder
from laneway.config.kinds import Flag, Several, Text, word_of
from laneway.records import Effect

__all__ = ("ConfirmationBlock", "McpBlock")

LANES: Final = Several(item=TOOL_LANE, most=100)
VALUE: Final = Text(most=10_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationBlock:
    """Who is asked about calls that somebody has to approve."""

    enabled: Annotated[
        bool | None,
        Setting(kind=Flag(), says="Whether anybody is asked; if not, such calls are denied.", unset="`true`"),
    ] = None
    default_timeout_ms: Annotated[
        int | None, Setting(kind=SOME_MS, says="How long a call waits for an answer.", unset="30,000")
    ] = None
    timeout_action: Annotated[
        str | None,
        Setting(
            kind=word_of("reject", "auto_approve"),
            says="What happens if nobody has answered by then.",
            unset="`reject`",
        ),
    ] = None
    yolo_lanes: Annotated[
        tuple[str, ...] | None, Setting(kind=LANES, says="The lanes whose calls are not asked about.", unset="none")
    ] = None
    approvers: Annotated[
        tuple[str, ...] | None,
        Setting(
            kind=NAMES,
            says="The ids of senders who may answer in chat.",
            unset="whoever has the right `approve`, and owners",
        ),
    ] = None
    escalate_after_ms: Annotated[
        int | None,
        Setting(kind=SOME_MS, says="After how long those in `escalate_to` may answer, too.", unset="never"),
    ] = None
    escalate_to: Annotated[
        tuple[str, ...] | None, Setting(kind=NAMES, says="Their ids; needs `escalate_after_ms`.", unset="nobody")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class McpBlock:
    """A server of tools that speaks MCP: a program, or an address."""

    command: Annotated[
        str | None, Setting(kind=Text(least=1, most=4096), says="The program to start.", unset="needed without a `url`")
    ] = None
    args: Annotated[
        tuple[str, ...] | None,
        Setting(kind=Several(item=VALUE), says="Its arguments.", unset="none", secret=always),
    ] = field(default=None, repr=False)
    env: Annotated[
        Mapping[str, str],
        Setting(
            kind=VALUE, says="A variable that it sees, beside a few harmless ones.", names="variable", secret=always
        ),
    ] = field(default_factory=dict, repr=False)
    cwd: Annotated[
        str | None,
        Setting(
            kind=Text(least=1, most=4096),
            says="The folder in which it is started.",
            unset="that of this process",
            rooted=from_folder,
        ),
    ] = None
    url: Annotated[
        str | None,
        Setting(
            kind=Text(begins=("http://", "https://"), most=4096),
            says="The address of a server that runs already.",
            unset="needed without a `command`",
            secret=always,
        ),
    ] = field(default=None, repr=False)
    headers: Annotated[
        Mapping[str, str], Setting(kind=VALUE, says="A header of each request.", names="header", secret=always)
    ] = field(default_factory=dict, repr=False)
    lane: Annotated[str | None, Setting(kind=TOOL_LANE, says="The lane of its tools.", unset="`execute`")] = None
    effect: Annotated[Effect | None, Setting(kind=EFFECT, says="What its tools do to the world.", unset="`write`")] = (
        None
    )
    lanes: Annotated[
        Mapping[str, str],
        Setting(kind=TOOL_LANE, says="The lane of one tool, by the server's name for it.", names="tool"),
    ] = field(default_factory=dict)
    effects: Annotated[
        Mapping[str, Effect],
        Setting(kind=EFFECT, says="What one tool does to the world, by the server's name for it.", names="tool"),
    ] = field(default_factory=dict)
    parallel: Annotated[
        tuple[str, ...] | None,
        Setting(kind=NAMES, says="The tools of which neighbouring calls may run together.", unset="none"),
    ] = None
    tools: Annotated[tuple[str, ...] | None, Setting(kind=NAMES, says="The tools that are wanted.", unset="all")] = None
    timeout_ms: Annotated[
        int | None, Setting(kind=SOME_MS, says="How long it may take to answer a call.", unset="60,000")
    ] = None
    start_timeout_ms: Annotated[
        int | None, Setting(kind=SOME_MS, says="How long it may take to start.", unset="30,000")
    ] = None
    enabled: Annotated[bool | None, Setting(kind=Flag(), says="Whether it is used.", unset="`true`")] = None
