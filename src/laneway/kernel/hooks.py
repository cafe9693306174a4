"""Hooks, as far as they are pure: the events there are, whom a hook is for, and what its answer means.

A gate is asked before something happens, and may stop it. It fails closed: what is not understood is a no. An observer
is told of something that has happened (or is about to end), and stops nothing.

What a matcher says is read widely, because a gate that is not asked stops nobody: letters count the same in either
case but in `command_pattern`, a path is held against every way to write it, and what cannot be read for certain fits.
"""

from __future__ import annotations

import copy
import difflib
import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from laneway.checked import flag, one_of, refuse_unknown, text
from laneway.dialogue import ToolSpec
from laneway.errors import ConfigError, text_of
from laneway.kernel.permissions import PATH_ARGUMENTS, PATH_TOOLS, Verdict, decide, matches, parse_rule
from laneway.policies import PermissionPolicy
from laneway.records import DURATION_MAX_MS, Effect, check_whole

__all__ = (
    "EVENTS",
    "GATES",
    "OBSERVERS",
    "SILENT",
    "HookAction",
    "HookConfig",
    "HookRule",
    "HookVerdict",
    "Matcher",
    "NonsenseError",
    "changed",
    "hook_rule",
    "own_copy",
    "read_answer",
)

GATES: Final = ("pre_tool_use", "pre_prompt", "generate_start", "pre_planning")
"""Asked before something happens."""
OBSERVERS: Final = (
    "post_tool_use",
    "generate_end",
    "session_start",
    "session_end",
    "skill_load",
    "skill_unload",
    "post_response",
    "on_error",
    "on_success",
    "post_planning",
    "on_rate_limit",
    "on_confirmation",
    "budget_threshold_hit",
    "passivation_requested",
    "peer_invocation",
)
"""Told of what has happened."""
SILENT: Final = (
    "pre_context_perception",
    "post_context_perception",
    "pre_memory_recall",
    "post_memory_recall",
    "pre_reasoning",
    "post_reasoning",
)
"""Of things that Laneway does not do: taken, and never called."""
EVENTS: Final = (*GATES, *OBSERVERS, *SILENT)

ABOUT_TOOLS: Final = ("pre_tool_use", "post_tool_use", "on_confirmation")
ABOUT_SKILLS: Final = ("pre_tool_use", "post_tool_use", "skill_load", "skill_unload")
MATCHABLE: Final = {
    "tool": ABOUT_TOOLS,
    "path_pattern": ABOUT_TOOLS,
    "command_pattern": ABOUT_TOOLS,
    "session_id": EVENTS,
    "skill": ABOUT_SKILLS,
}
"""What a matcher may say, and the events whose payload has it."""

COMMAND_ARGUMENTS: Final = ("command", "cmd", "commands", "script")
PATH_NAMES: Final = (*PATH_ARGUMENTS, "cwd", "dir", "directory", "file", "filename", "files", "folder", "paths")
PATH_ENDINGS: Final = ("_path", "_paths", "_file", "_files", "_dir", "_folder", "_directory")
COMMAND_MAX: Final = 100_000
REASON_MAX: Final = 2_000
ID_MAX: Final = 200
PRIORITY_MAX: Final = 1_000_000
RETRIES_MAX: Final = 100
_READ: Final = ToolSpec(name="read", effect=Effect.READ)


# ---- whom a hook is for ----


@dataclass(frozen=True, slots=True, kw_only=True)
class Matcher:
    """Which events a hook is for; what is empty says nothing. Everything that is said must hold."""

    tool: str = ""
    path_pattern: str = ""
    command_pattern: re.Pattern[str] | None = None
    session_id: str = ""
    skill: str = ""

    def fits(self, payload: Mapping[str, Any]) -> bool:
        """Whether a hook with this matcher is asked about an event with this payload."""
        if self.session_id and not _is_called(self.session_id, payload.get("session_id")):
            return False
        if self.tool and not _is_called(self.tool, _tool_of(payload)):
            return False
        if self.skill and not _is_called(self.skill, payload.get("skill", payload.get("skill_name"))):
            return False
        if self.command_pattern is not None and not _runs(self.command_pattern, payload):
            return False
        return not self.path_pattern or _touches(self.path_pattern, payload)


def _is_called(pattern: str, name: object) -> bool:
    return isinstance(name, str) and matches(pattern.casefold(), name.casefold())


def _tool_of(payload: Mapping[str, Any]) -> object:
    return payload.get("tool", payload.get("tool_name"))


def _arguments(payload: Mapping[str, Any]) -> Mapping[str, Any]:
    found = payload.get("args")
    return found if isinstance(found, Mapping) else {}


def _runs(pattern: re.Pattern[str], payload: Mapping[str, Any]) -> bool:
    for name, value in _arguments(payload).items():
        if value is None or name.casefold() not in COMMAND_ARGUMENTS:
            continue
        command = " ".join(map(text_of, value)) if isinstance(value, list | tuple) else value
        if not isinstance(command, str) or len(command) > COMMAND_MAX or pattern.search(command):
            return True
    return False


def _touches(pattern: str, payload: Mapping[str, Any]) -> bool:
    workspace = text_of(payload.get("working_directory") or "")
    policy = _forbidding(pattern)
    for path in _paths_in(payload):
        if decide(policy, _READ, {"path": path}, workspace=workspace).verdict is Verdict.DENY:
            return True
    return False


@functools.lru_cache(maxsize=1024)
def _forbidding(pattern: str) -> PermissionPolicy:
    """A pattern fits the paths that a rule with it would forbid to read: one meaning of patterns everywhere."""
    return PermissionPolicy(deny=(f"read({pattern})",), default_decision="allow")


def _paths_in(payload: Mapping[str, Any]) -> Iterator[object]:
    is_there = False
    for name, value in _arguments(payload).items():
        word = name.casefold()
        if value is None or not (word in PATH_NAMES or word.endswith(PATH_ENDINGS)):
            continue
        is_there = True
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value
    if not is_there and text_of(_tool_of(payload)).casefold() in PATH_TOOLS:
        yield "."


# ---- how it is called ----


@dataclass(frozen=True, slots=True, kw_only=True)
class HookConfig:
    """How a hook is called: low priorities first; so long at most; again so often if it raises or takes too long."""

    priority: int = 100
    timeout_ms: int = 5_000
    async_execution: bool = False
    max_retries: int = 0

    def __post_init__(self) -> None:
        check_whole(self.priority, setting="config.priority", least=-PRIORITY_MAX, most=PRIORITY_MAX)
        check_whole(self.timeout_ms, setting="config.timeout_ms", least=1, most=DURATION_MAX_MS)
        check_whole(self.max_retries, setting="config.max_retries", least=0, most=RETRIES_MAX)
        flag("config.async_execution", self.async_execution)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRule:
    """A hook without its code."""

    hook_id: str
    event_type: str
    matcher: Matcher = field(default_factory=Matcher)
    config: HookConfig = field(default_factory=HookConfig)

    @property
    def is_gate(self) -> bool:
        """Whether it may stop something."""
        return self.event_type in GATES


def hook_rule(
    hook_id: str,
    event_type: str,
    matcher: Mapping[str, Any] | None = None,
    config: Mapping[str, Any] | None = None,
) -> HookRule:
    """A hook as somebody registers it; raises `ConfigError` for what could not work as it is meant."""
    if len(text("hook_id", hook_id)) > ID_MAX:
        raise ConfigError(f"hook_id must be at most {ID_MAX} characters", setting="hook_id", value=hook_id)
    event = one_of("event_type", event_type, EVENTS)
    rule = HookRule(hook_id=hook_id, event_type=event, matcher=_matcher(event, matcher), config=_config(config))
    if rule.is_gate and rule.config.async_execution:
        raise ConfigError(
            f"a hook for {event} is waited for, so it cannot have async_execution",
            setting="config.async_execution",
            value=True,
            hint="leave it out, or watch what has happened: post_tool_use, generate_end, post_response",
        )
    return rule


def _matcher(event: str, given: Mapping[str, Any] | None) -> Matcher:
    values = _settings("matcher", given, MATCHABLE)
    for name, value in values.items():
        setting = f"matcher.{name}"
        text(setting, value)
        if event not in MATCHABLE[name]:  # it would never be called, and nobody would notice
            said = f"{setting} does not go with {event}, which is not about one"
            raise ConfigError(said, setting=setting, value=value, hint=f"it goes with {', '.join(MATCHABLE[name])}")
    pattern = values.get("command_pattern")
    if pattern is not None:
        try:
            values["command_pattern"] = re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            said = f"matcher.command_pattern is no regular expression: {error}"
            raise ConfigError(said, setting="matcher.command_pattern", value=pattern) from None
    if "path_pattern" in values:
        try:
            parse_rule(_forbidding(values["path_pattern"]).deny[0])
        except ConfigError as error:
            said = f"matcher.path_pattern is no pattern of paths: {error}"
            facts = {"setting": "matcher.path_pattern", "value": values["path_pattern"]}
            raise ConfigError(said, **facts, hint="src/*.py, **/.env* and /etc/** are patterns") from None
    return Matcher(**values)


def _config(given: Mapping[str, Any] | None) -> HookConfig:
    return HookConfig(**_settings("config", given, HookConfig.__dataclass_fields__))


def _settings(what: str, given: Mapping[str, Any] | None, known: Mapping[str, object]) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"{what} must be a mapping, not {given!r}", setting=what, value=given)
    refuse_unknown(what, given, known)
    return dict(given)


# ---- what it answers ----


class HookAction(StrEnum):
    """What a gate does with what it was asked about."""

    CONTINUE = "continue"
    BLOCK = "block"
    SKIP = "skip"
    RETRY = "retry"


@dataclass(frozen=True, slots=True, kw_only=True)
class HookVerdict:
    """What the hooks of one event say together. `arguments` are what they have changed; None: nothing.

    `hook_id` is the hook that has changed them last.
    """

    action: HookAction = HookAction.CONTINUE
    reason: str = ""
    arguments: dict[str, Any] | None = None
    delay_ms: int = 0
    hook_id: str = ""


class NonsenseError(ValueError):
    """What a gate has answered is no answer."""


CHANGES: Final = ("modified", "args", "arguments")
ANSWERS: Final = ("action", "reason", "delay_ms", *CHANGES)
RETRY_MS: Final = 1_000
WAY_OUT: Final = "None or 'continue' goes on; 'block' or {'action': 'block', 'reason': …} does not"


def read_answer(answer: object, rule: HookRule) -> HookVerdict:
    """What a gate has answered; raises `NonsenseError` for what is no answer."""
    if answer is None:
        return HookVerdict()
    if isinstance(answer, str):
        answer = {"action": answer}
    if not isinstance(answer, Mapping):
        raise NonsenseError(f"it answered with a {type(answer).__name__}, which is no answer ({WAY_OUT})")
    for name in answer:
        if name not in ANSWERS:
            close = difflib.get_close_matches(text_of(name), ANSWERS, n=1)
            raise NonsenseError(f"its answer has {text_of(name)[:100]!r}" + (f", not {close[0]!r}" if close else ""))
    action = _action(answer.get("action"))
    arguments = _changes(answer, action, rule.event_type)
    delay_ms = answer.get("delay_ms", RETRY_MS)
    if action is not HookAction.RETRY:
        delay_ms = 0
    elif type(delay_ms) is not int or not 0 <= delay_ms <= DURATION_MAX_MS:
        raise NonsenseError(f"its delay_ms is no whole number of milliseconds from 0 to {DURATION_MAX_MS:,}")
    reason = text_of(answer.get("reason") or "")[:REASON_MAX]
    if not reason and action is not HookAction.CONTINUE:
        said = {HookAction.BLOCK: "blocks it", HookAction.SKIP: "skips it", HookAction.RETRY: "puts it off"}[action]
        reason = f"the hook {rule.hook_id!r} {said}"
    return HookVerdict(action=action, reason=reason, arguments=arguments, delay_ms=delay_ms)


def _action(value: object) -> HookAction:
    if value is None:
        raise NonsenseError(f"its answer has no action ({WAY_OUT})")
    if isinstance(value, str):
        word = value.strip().casefold()
        if word in tuple(HookAction):
            return HookAction(word)
        raise NonsenseError(f"it answered {value[:100]!r}, which is none of {', '.join(HookAction)}")
    raise NonsenseError(f"its action is a {type(value).__name__}, not one of {', '.join(HookAction)}")


def _changes(answer: Mapping[str, Any], action: HookAction, event: str) -> dict[str, Any] | None:
    given = {name: answer[name] for name in CHANGES if answer.get(name) is not None}
    if not given or action is HookAction.BLOCK:
        return None
    if len(given) > 1:
        raise NonsenseError(f"its answer has both {' and '.join(given)}")
    [(name, value)] = given.items()
    if action is not HookAction.CONTINUE:
        raise NonsenseError(f"its answer has {name}, which goes with {HookAction.CONTINUE} only, not with {action}")
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise NonsenseError(f"{name} in its answer is not a mapping of names to values")
    if event == "pre_prompt" and not (value.keys() == {"prompt"} and isinstance(value["prompt"], str)):
        raise NonsenseError(f"{name} in its answer is not {{'prompt': text}}, all that {event} may change")
    if event not in ("pre_tool_use", "pre_prompt"):
        raise NonsenseError(f"its answer has {name}, and {event} may change nothing")
    return {key: own_copy(each) for key, each in value.items()}  # what the hook does with it later changes nothing


def changed(event_type: str, payload: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The payload for the hooks that are asked after one has changed something."""
    if event_type == "pre_tool_use":
        return {**payload, "args": arguments}
    return {**payload, **arguments}


_PLAIN: Final = frozenset({str, int, float, bool, type(None)})


def own_copy(value: Any) -> Any:
    """What `deepcopy` makes of JSON values, in a fifth of the time; payloads are trees."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is dict:
        return {key: own_copy(each) for key, each in value.items()}
    if kind is list:
        return [own_copy(each) for each in value]
    return copy.deepcopy(value)
