"""What a session goes by: its options over those of its agent over the defaults, every value known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from laneway.mail import Mode, QueueOptions
from laneway.options import SessionOptions, SessionQueueConfig, SessionRetentionLimits, merge
from laneway.policies import ConfirmationPolicy, Hook, McpServerConfig, PermissionPolicy
from laneway.records import Effect
from laneway.spending import Budget

__all__ = ("SessionSettings", "settled")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """The settings of one session; the fields are those of `SessionOptions`."""

    system: str = ""
    tool_lanes: Mapping[str, str] = field(default_factory=dict)
    tool_effects: Mapping[str, Effect] = field(default_factory=dict)
    queue_config: SessionQueueConfig | None = None
    permission_policy: PermissionPolicy | None = None
    confirmation_policy: ConfirmationPolicy | None = None
    hooks: tuple[Hook, ...] = ()
    skill_dirs: tuple[str, ...] = ()
    agent_dirs: tuple[str, ...] = ()
    mcp_servers: Mapping[str, McpServerConfig] = field(default_factory=dict)
    planning: bool = False
    max_plan_steps: int = 20
    max_parallel_tasks: int | None = None
    subagents: bool | None = None  # None: if there are definitions of agents
    max_subagents: int | None = None
    max_subagent_depth: int = 3
    mode: Mode = Mode.FOLLOWUP  # a call of `send` is a question of its own: two of them are not merged unasked
    messages: QueueOptions | None = None
    on_crash: str = "resume"
    max_tool_rounds: int = 50
    max_calls_per_answer: int = 64
    max_execution_time_ms: int | None = None
    tool_timeout_ms: int | None = None
    background_after_ms: int | None = None
    background_tools: tuple[str, ...] = ()
    output_max: int = 30_000
    auto_compact: bool = True
    auto_compact_threshold: float = 0.8
    temperature: float | None = None
    thinking_budget: int | None = None
    max_output_tokens: int | None = None
    budget_guard: Any = None
    budget_on_error: str = "allow"
    budget_guard_timeout_ms: int = 5_000
    budgets: tuple[Budget, ...] = ()
    record: bool = False
    retention_limits: SessionRetentionLimits = field(default_factory=SessionRetentionLimits.usual)
    tenant_id: str | None = None
    principal: str | None = None
    agent_template_id: str | None = None
    correlation_id: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    artifacts_dir: str = ""


def settled(base: SessionOptions, over: SessionOptions) -> tuple[SessionOptions, SessionSettings]:
    """The options of a session and what they come to."""
    options = merge(base, over)
    names = SessionSettings.__dataclass_fields__
    given: dict[str, Any] = {
        name: value for name, value in options.to_mapping().items() if name in names and value is not None
    }
    return options, SessionSettings(**given)
