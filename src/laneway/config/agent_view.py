"""The values in force as an agent has them: some defaults are others than those of an inbox, some settings unused."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from laneway.config.effective import Effective, Value, load
from laneway.config.origins import Layer, Origin
from laneway.config.settings import TOOL_QUEUE, Settings
from laneway.config.shape import Path, settings_of, subs_of
from laneway.mail import Drop, Mode

__all__ = (
    "AGENT_DEFAULTS",
    "Seen",
    "is_of_agent",
    "seen_by_agent",
    "seen_by_inbox",
    "seen_by_server",
    "server_defaults",
    "words_for",
)

OF_BOTH: Final = frozenset({"name", "description", "gateway", "workspaces"})
OF_INBOX: Final = frozenset({"max_concurrent", "lanes", "spawn"})
MESSAGES: Final = frozenset({"mode", "debounce_ms", "cap", "drop"})
"""What a session of an agent takes from the settings of messages."""

AGENT_DEFAULTS: Final[Mapping[Path, Any]] = {
    ("queue", "mode"): Mode.FOLLOWUP,
    ("queue", "cap"): 100_000,
    ("queue", "drop"): Drop.NEW,
    ("on_crash",): "resume",
}
"""Where an agent differs. Its host says the same; a test holds both together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A value, and whether whoever looks at it goes by it."""

    value: Value
    is_used: bool = True


def is_of_agent(effective: Effective) -> bool:
    """Whether somebody has set anything that only an agent has."""
    top = {each.name for each in settings_of(Settings)} | {each.name for each in subs_of(Settings)}
    own = top - OF_BOTH - OF_INBOX - {"queue"}
    said = [value.path for value in effective.values if value.origin.layer is not Layer.DEFAULT]
    tools = {("queue", key) for key in TOOL_QUEUE}
    return any(path[0] in own or path[:2] in tools for path in (*said, *effective.written))


def seen_by_inbox(effective: Effective) -> tuple[Seen, ...]:
    """Every value as it is."""
    return tuple(Seen(value=value) for value in effective.values)


def seen_by_agent(effective: Effective) -> tuple[Seen, ...]:
    """The values that an agent goes by, with its own defaults; and those that somebody has set for nothing."""
    found: list[Seen] = []
    for value in effective.values:
        is_set = value.origin.layer is not Layer.DEFAULT
        if not is_set and value.path in AGENT_DEFAULTS:
            origin = Origin(layer=Layer.DEFAULT, note="of an agent")
            found.append(Seen(value=replace(value, value=AGENT_DEFAULTS[value.path], origin=origin)))
        elif _is_used(value.path):
            found.append(Seen(value=value))
        elif is_set:
            found.append(Seen(value=value, is_used=False))
    return tuple(found)


def seen_by_server(effective: Effective) -> tuple[Seen, ...]:
    """The values that a server goes by: its inbox has the settings of messages and lanes, its agents have the rest."""
    others = {("queue", "on_crash"), ("spawn",)}  # runs have checkpoints; sub-agents their own settings
    found: list[Seen] = []
    for value in effective.values:
        is_set = value.origin.layer is not Layer.DEFAULT
        if value.path == ("on_crash",) and not is_set:
            origin = Origin(layer=Layer.DEFAULT, note="of an agent")
            found.append(Seen(value=replace(value, value=AGENT_DEFAULTS[value.path], origin=origin)))
        elif value.path[:2] not in others and value.path[:1] not in others:
            found.append(Seen(value=value))
        elif is_set:
            found.append(Seen(value=value, is_used=False))
    return tuple(found)


@functools.cache
def server_defaults() -> Mapping[Path, Any]:
    """What every setting of a server is when nobody says anything; those with names of their own are not there."""
    return {seen.value.path: seen.value.value for seen in seen_by_server(load(environ={}))}


@functools.cache
def words_for(path: Path) -> str:
    """What the declaration says about a setting; empty if it is not known."""
    return _words_in(Settings, path)


def _words_in(block: type[Any], path: Path) -> str:
    if not path:
        return ""
    for declared in settings_of(block):
        if declared.name == path[0]:
            return declared.setting.says
    for inner in subs_of(block):
        if inner.name == path[0]:
            return _words_in(inner.block, path[2:] if inner.sub.names else path[1:])
    return ""


def _is_used(path: Path) -> bool:
    if path[0] == "queue":
        return path[1] in MESSAGES or path[1] in TOOL_QUEUE
    return path[0] not in OF_INBOX
