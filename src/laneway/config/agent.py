"""The settings of an agent: a file, or the text of one, in; `AgentSettings` out.

They are the agent's part of the settings that every file can have, with the `queue` block as a `SessionQueueConfig` and
the permissions as a `PermissionPolicy`. The environment is a layer above the file here too: `LANEWAY_DEFAULT_MODEL`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from laneway.config.agent_blocks import ProviderBlock
from laneway.config.budget_blocks import budget_of
from laneway.config.effective import Effective, load, load_text
from laneway.config.files import FORMATS
from laneway.config.origins import Layer
from laneway.config.problems import InvalidConfigError, Problem
from laneway.config.settings import TOOL_QUEUE, Settings
from laneway.identity import Identity
from laneway.mail import QueueOptions
from laneway.options import (
    LaneHandlerConfig,
    PriorityBoostConfig,
    RateLimitConfig,
    RetryPolicyConfig,
    SessionOptions,
    SessionQueueConfig,
    SessionRetentionLimits,
)
from laneway.policies import ConfirmationPolicy, McpServerConfig, PermissionPolicy
from laneway.records import Effect
from laneway.spending import Budget

__all__ = ("AgentSettings", "agent_settings", "load_agent")

P = TypeVar("P")
BLOCK: Final = re.compile(r'[\w-]+(?:\s+(?:"[^"]*"|[\w-]+))*\s*\{')
PAIR: Final = re.compile(r"""(?:["']?[\w.-]+["']?)\s*=(?!=)\s*(?P<value>.*)""")
KEY: Final = re.compile(r"""(?:["'][^"']*["']|[\w. -]+)\s*:(?:\s|$)|---|- """)
SECTION: Final = re.compile(r"\[\[?[^\[\]]+\]\]?\s*(?:#.*)?")
NAMED: Final = {".hcl": "HCL", ".yaml": "YAML", ".toml": "TOML", ".json5": "JSON"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """What a configuration says about an agent; None where it says nothing.

    `queue` is None when tools are not queued. `messages` is what the same block says about messages to a busy session,
    without its defaults. `settings` is all that was read, for `inbox_options` and others.
    """

    default_model: str | None = None
    providers: Mapping[str, ProviderBlock] = field(default_factory=dict)
    system: str | None = None
    tools: tuple[str, ...] | None = None
    disabled_tools: tuple[str, ...] = ()
    tool_lanes: Mapping[str, str] = field(default_factory=dict)
    tool_effects: Mapping[str, Effect] = field(default_factory=dict)
    queue: SessionQueueConfig | None = None
    messages: QueueOptions = field(default_factory=QueueOptions)
    permissions: PermissionPolicy | None = None
    confirmation: ConfirmationPolicy | None = None
    retention_limits: SessionRetentionLimits | None = None
    max_tool_rounds: int | None = None
    max_calls_per_answer: int | None = None
    max_execution_time_ms: int | None = None
    tool_timeout_ms: int | None = None
    background_after_ms: int | None = None
    background_tools: tuple[str, ...] | None = None
    output_max: int | None = None
    auto_compact: bool | None = None
    auto_compact_threshold: float | None = None
    record: bool | None = None
    session_store: str | None = field(default=None, repr=False)
    on_crash: str | None = None
    environment: tuple[str, ...] | None = None
    skill_dirs: tuple[str, ...] = ()
    agent_dirs: tuple[str, ...] = ()
    mcp_servers: Mapping[str, McpServerConfig] = field(default_factory=dict, repr=False)
    planning: bool | None = None
    max_plan_steps: int | None = None
    subagents: bool | None = None
    max_subagents: int | None = None
    max_parallel_tasks: int | None = None
    max_subagent_depth: int | None = None
    budgets: tuple[Budget, ...] = ()
    identity: Identity = field(default_factory=Identity)
    settings: Settings = field(default_factory=Settings, repr=False)

    def session_options(self) -> SessionOptions:
        """What holds for each session, unless the session says otherwise. Models, tools and stores are not in it."""
        same = ("system", "max_tool_rounds", "max_calls_per_answer", "max_execution_time_ms", "tool_timeout_ms")
        more = ("output_max", "auto_compact", "auto_compact_threshold", "on_crash", "planning", "max_plan_steps")
        last = (
            "subagents",
            "max_subagents",
            "max_parallel_tasks",
            "max_subagent_depth",
            "background_after_ms",
            "record",
        )
        plain: dict[str, Any] = {name: getattr(self, name) for name in (*same, *more, *last)}
        return SessionOptions(
            tool_lanes=self.tool_lanes or None,
            tool_effects=self.tool_effects or None,
            queue_config=None if self.queue is None else self.queue.copy(),
            permission_policy=self.permissions,
            confirmation_policy=self.confirmation,
            retention_limits=self.retention_limits,
            skill_dirs=self.skill_dirs or None,
            agent_dirs=self.agent_dirs or None,
            background_tools=self.background_tools or None,
            mcp_servers=self.mcp_servers or None,
            budgets=self.budgets or None,
            mode=self.messages.mode,
            messages=None if self.messages.is_empty else self.messages,
            **plain,
            **dict[str, Any](self.identity.labels),
        )


def load_agent(source: str | os.PathLike[str], *, environ: Mapping[str, str]) -> AgentSettings:
    """The settings of an agent from a file, or from the text of one.

    Text is what has a line break or a brace, or an `=` or `:` and no ending of a file. It is HCL, YAML, TOML or JSON by
    its looks; errors name what it was taken for. Raises `InvalidConfigError` with all problems.
    """
    if isinstance(source, os.PathLike):
        return agent_settings(load(source, environ=environ))
    if not isinstance(source, str) or not source.strip():
        message = "an agent is configured by the path of a file, or by the text of one"
        raise InvalidConfigError([Problem(source="the configuration", message=message)])
    if not _is_text(source):
        return agent_settings(load(source, environ=environ))
    ending = _format_of(source)
    text = source.removeprefix("\ufeff")
    return agent_settings(load_text(text, ending, source=f"the text, read as {NAMED[ending]}", environ=environ))


def agent_settings(effective: Effective) -> AgentSettings:
    """The agent's part of settings that were loaded."""
    settings = effective.settings
    given: dict[str, Any] = {
        each.name: value
        for each in fields(AgentSettings)
        if hasattr(settings, each.name) and (value := getattr(settings, each.name)) is not None
    }
    given["queue"] = _queue(effective)
    given["messages"] = _messages(effective)
    given["permissions"] = _policy(effective, "permissions", PermissionPolicy)
    given["confirmation"] = _policy(effective, "confirmation", ConfirmationPolicy)
    kept = _kept(settings.retention_limits)
    given["retention_limits"] = replace(SessionRetentionLimits.usual(), **kept) if kept else None
    given["mcp_servers"] = {name: McpServerConfig(**_kept(each)) for name, each in settings.mcp_servers.items()}
    given["identity"] = Identity(**_kept(settings.identity))
    given["budgets"] = tuple(budget_of(name, _kept(each)) for name, each in settings.budgets.items())
    return AgentSettings(**given, settings=settings)


def _is_text(source: str) -> bool:
    if "\n" in source or "{" in source:
        return True
    return ("=" in source or ":" in source) and Path(source).suffix.lower() not in FORMATS


def _format_of(text: str) -> str:
    """What a text looks like: the first line that can be only one of them decides."""
    if text.lstrip("\ufeff \t\r\n").startswith("{"):
        return ".json5"
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line.startswith(("#", "//", "/*")):
            continue
        if pair := PAIR.match(line):
            value = pair["value"]
            if value.startswith(("'", '"""')) or "." in line[: pair.start("value")]:
                return ".toml"
            if value.startswith(("env(", "<<")) or value.endswith("{"):
                return ".hcl"
        elif BLOCK.match(line):
            return ".hcl"
        elif KEY.match(line):
            return ".yaml"
        elif SECTION.fullmatch(line):
            return ".toml"
    return ".hcl" if "=" in text else ".yaml"


def _queue(effective: Effective) -> SessionQueueConfig | None:
    """The lanes of tools, if the settings say anything of them."""
    home = ("queue",)
    block = effective.settings.queue
    is_empty = home in effective.written and effective.written[home].keys == 0
    if not is_empty and not any(path[1] in TOOL_QUEUE for path in _said(effective, home)):
        return None
    given = {name: value for name in TOOL_QUEUE if (value := getattr(block, name)) is not None}
    records = (
        ("retry_policy", RetryPolicyConfig),
        ("rate_limit", RateLimitConfig),
        ("priority_boost", PriorityBoostConfig),
    )
    for name, record in records:
        values = _kept(given.pop(name))
        if any(_said(effective, (*home, name))) or (*home, name) in effective.written:
            given[name] = record(**values)
    given["lane_handlers"] = {lane: LaneHandlerConfig(**_kept(each)) for lane, each in block.lane_handlers.items()}
    return SessionQueueConfig(**given)


def _messages(effective: Effective) -> QueueOptions:
    names = {path[1] for path in _said(effective, ("queue",))}
    options = {each.name: getattr(effective.settings.queue, each.name) for each in fields(QueueOptions)}
    return QueueOptions(**{name: value for name, value in options.items() if name in names})


def _policy(effective: Effective, name: str, record: Callable[..., P]) -> P | None:
    """What a block of the settings says, if it is there."""
    home = (name,)
    if not any(_said(effective, home)) and home not in effective.written:
        return None
    return record(**_kept(getattr(effective.settings, name)))


def _said(effective: Effective, home: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """What somebody has set or written below a block."""
    depth = len(home)
    for value in effective.values:
        if value.path[:depth] == home and value.origin.layer is not Layer.DEFAULT:
            yield value.path
    yield from (path for path in effective.written if path[:depth] == home and len(path) > depth)


def _kept(block: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(block).items() if value is not None}
