"""What may stop a call, and where tools come from: permissions, confirmations, hooks, and servers of tools.

Records as a user or a configuration file writes them; each checks what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from laneway.checked import effect, flag, listed, made_of, one_of, string, text
from laneway.errors import ConfigError
from laneway.records import DURATION_MAX_MS, Effect, check_whole

__all__ = ("ConfirmationPolicy", "Hook", "McpServerConfig", "PermissionPolicy")

DECISIONS = ("allow", "deny", "ask")
TIMEOUT_ACTIONS = ("reject", "auto_approve")
LANES = ("control", "query", "execute", "generate")
RULE_MAX = 4_096


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionPolicy:
    """Which calls of tools may be made: rules such as `read`, `bash(git *)`, `write(**/.env*)` or `*`.

    A rule in `deny` beats one in `ask`, which beats one in `allow`; what no rule matches gets `default_decision`.
    `enabled=False` is the same as no policy: reads are made, everything else asks.
    """

    allow: Sequence[str] = ()
    deny: Sequence[str] = ()
    ask: Sequence[str] = ()
    default_decision: str = "ask"
    enabled: bool = True

    def __post_init__(self) -> None:
        for setting in DECISIONS:
            rules: object = getattr(self, setting)
            if isinstance(rules, str) or not isinstance(rules, Iterable):
                raise ConfigError(f"{setting} must be a list of rules, not {rules!r}", setting=setting, value=rules)
            kept = tuple(rules)
            for rule in kept:
                if not isinstance(rule, str) or not 0 < len(rule) <= RULE_MAX:
                    text = f"{setting}: a rule is 1 to {RULE_MAX} characters of text, not {rule!r}"
                    raise ConfigError(text, setting=setting, value=rule, hint="bash(git *), for one")
            object.__setattr__(self, setting, kept)
        decision = one_of("default_decision", self.default_decision, DECISIONS)
        object.__setattr__(self, "default_decision", decision)
        flag("enabled", self.enabled)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """What a configuration file says."""
        return made_of(cls, values, what="permissions")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmationPolicy:
    """Who is asked about calls that the permissions say `ask` about, and what happens if nobody answers.

    A call waits `default_timeout_ms` for an answer; then `timeout_action` decides: `reject`, or `auto_approve`. Calls
    in `yolo_lanes` are not asked about. `approvers` are the ids of senders who may answer in chat; empty: whoever has
    the right `approve`, and owners. After `escalate_after_ms` without an answer those in `escalate_to` may answer, too,
    and an event says so. The code of the host may always answer. `enabled=False` is the same as no policy: nobody is
    asked, and such calls are denied.
    """

    enabled: bool = True
    default_timeout_ms: int = 30_000
    timeout_action: str = "reject"
    yolo_lanes: Sequence[str] = ()
    approvers: Sequence[str] = ()
    escalate_after_ms: int | None = None
    escalate_to: Sequence[str] = ()

    def __post_init__(self) -> None:
        flag("enabled", self.enabled)
        check_whole(self.default_timeout_ms, setting="default_timeout_ms", least=1, most=DURATION_MAX_MS)
        action = one_of("timeout_action", self.timeout_action, TIMEOUT_ACTIONS)
        object.__setattr__(self, "timeout_action", action)
        lanes = tuple(one_of("yolo_lanes", lane, LANES) for lane in listed("yolo_lanes", self.yolo_lanes))
        object.__setattr__(self, "yolo_lanes", lanes)
        for name in ("approvers", "escalate_to"):
            people = tuple(text(name, each) for each in listed(name, getattr(self, name)))
            object.__setattr__(self, name, people)
        if self.escalate_after_ms is not None:
            check_whole(self.escalate_after_ms, setting="escalate_after_ms", least=1, most=DURATION_MAX_MS)
        if self.escalate_to and self.escalate_after_ms is None:
            raise ConfigError("escalate_to needs escalate_after_ms", setting="escalate_after_ms")


@dataclass(frozen=True, slots=True)
class Hook:
    """Code that is told what happens in a session, and may stop it; the arguments of `register_hook`.

    `matcher` says which events it is for: `tool`, `path_pattern`, `command_pattern` (a regular expression),
    `session_id`, `skill`. `config` has `priority` (low first), `timeout_ms`, `max_retries`, `async_execution`.
    `handler` gets `{"event_type": …, "payload": {…}}`.
    """

    hook_id: str
    event_type: str
    matcher: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None
    handler: Callable[[Mapping[str, Any]], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServerConfig:
    """A server of tools that speaks MCP: a program (`command`, `args`, `env`), or an address (`url`, `headers`).

    Its tools are named `mcp__<server>__<tool>`. `lane` and `effect` hold for all of them (execute and write if nothing
    is said); `lanes`, `effects` and `parallel` say it of one, by the name the server gives it. `tools` are those that
    are wanted; empty: all.
    """

    command: str | None = None
    args: Sequence[str] = field(default=(), repr=False)  # this, and the others that are not shown, may hold secrets
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    cwd: str | None = None
    url: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    lane: str | None = None
    effect: Effect | str | None = None
    lanes: Mapping[str, str] = field(default_factory=dict)
    effects: Mapping[str, Effect | str] = field(default_factory=dict)
    parallel: Sequence[str] = ()
    tools: Sequence[str] = ()
    timeout_ms: int = 60_000
    start_timeout_ms: int = 30_000
    enabled: bool = True

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ConfigError("an MCP server has either a command or a url", setting="command")
        for name in ("command", "cwd", "url"):
            if getattr(self, name) is not None:
                text(name, getattr(self, name))
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ConfigError("the url of an MCP server begins with http:// or https://", setting="url")
        for name in ("args", "parallel", "tools"):
            object.__setattr__(self, name, tuple(string(name, each) for each in listed(name, getattr(self, name))))
        for name in ("env", "headers"):
            _check_mapping(name, getattr(self, name), string)
        if self.lane is not None:
            object.__setattr__(self, "lane", one_of("lane", self.lane, LANES))
        if self.effect is not None:
            object.__setattr__(self, "effect", effect("effect", self.effect))
        lanes = _check_mapping("lanes", self.lanes, lambda setting, value: one_of(setting, value, LANES))
        object.__setattr__(self, "lanes", lanes)
        object.__setattr__(self, "effects", _check_mapping("effects", self.effects, effect))
        check_whole(self.timeout_ms, setting="timeout_ms", least=1, most=DURATION_MAX_MS)
        check_whole(self.start_timeout_ms, setting="start_timeout_ms", least=1, most=DURATION_MAX_MS)
        flag("enabled", self.enabled)


def _check_mapping(setting: str, value: object, check: Callable[[str, Any], Any]) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{setting} must be a mapping, not {value!r}", setting=setting, value=value)
    return {text(setting, name): check(f"{setting}.{name}", each) for name, each in value.items()}
