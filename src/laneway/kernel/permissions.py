"""Whether a call of a tool may be made: rules, and how they are held against a call.

A rule is the name of a tool (`read`, `mcp_*`, `*`), or a name and a pattern in brackets: `bash(git *)`,
`write(**/.env*)`. What the pattern is held against depends on the tool:

- `bash`: its command. `bash(git *)` is a pattern of a whole simple command, `bash(git:*)` means a command that begins
  with these words.
- tools with a path (`read`, `write`, `edit` …): the path, without `.` and `..`. `*` stays inside one name, `**` does
  not.
- `web_fetch`: the address; scheme, host, port and path each by itself.
- any other tool: its arguments as JSON, keys in alphabetical order.

Rules that forbid are read widely and rules that allow narrowly. A `deny` or `ask` rule counts if any part of a call
matches it: any command of a script, inside substitutions and behind `sudo` too, whatever the case of the letters. An
`allow` rule counts only if all of the call matches: every command of a script that consists of nothing but simple
commands and operators between them. What cannot be read for certain is matched by every `deny` and `ask` rule of its
tool and by no `allow` rule that has a pattern. This guards against mistakes and tricks in the text of a call; it is no
sandbox: a variable, a link or a script file can still hide what is done.
"""

from __future__ import annotations

import functools
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from laneway.dialogue import ToolSpec
from laneway.errors import ConfigError
from laneway.kernel.shell_text import MANY, ONE, ShellText, Simple, read_shell
from laneway.kernel.url_text import is_allowed_url, read_url, ways_to
from laneway.options import PermissionPolicy
from laneway.records import Effect

__all__ = ("Decision", "Hides", "Rule", "Verdict", "allows_url", "check_policy", "decide", "hides", "parse_rule")

Hides = Callable[[str, str], bool]
"""Whether a path of the workspace may not be shown by, or given to, a tool."""

SHELL_TOOLS = frozenset({"bash", "shell"})
URL_TOOLS = frozenset({"web_fetch"})
PATH_TOOLS = frozenset(
    {"copy", "delete", "edit", "glob", "grep", "list_files", "ls", "move", "patch", "read", "search", "write"}
)
SEARCH_TOOLS = frozenset({"glob", "grep", "list_files", "ls", "search"})
PATH_ARGUMENTS = ("path", "source", "destination", "src", "dst", "to", "from", "new_path", "old_path")
SUBJECT_MAX = 1_000_000
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/*?")


class Verdict(StrEnum):
    """What is done about a call."""

    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is done about a call, the rule that says so (empty if none does), and why, for people and models."""

    verdict: Verdict
    rule: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule, read. `pattern` is None when it is about every call of its tools."""

    text: str
    tool: str
    pattern: str | None = None

    def is_for(self, tool: str) -> bool:
        """Whether it is about that tool."""
        return matches(self.tool, tool.casefold())

    @property
    def is_total(self) -> bool:
        """Whether it is about every call, whatever its arguments."""
        return self.pattern is None


@dataclass(frozen=True, slots=True)
class _Rules:
    allow: tuple[Rule, ...]
    deny: tuple[Rule, ...]
    ask: tuple[Rule, ...]


# ---- reading rules ----


def parse_rule(text: str) -> Rule:
    """Read a rule; raises `ConfigError` for one that cannot be a rule."""
    stripped = text.strip()
    name, bracket, rest = stripped.partition("(")
    name = name.strip()
    problem = ""
    if not name or not _NAME_CHARACTERS.issuperset(name):
        problem = "it does not begin with the name of a tool"
    elif bracket and not rest.endswith(")"):
        problem = "its bracket is not closed"
    elif bracket and not rest[:-1].strip():
        problem = "its brackets are empty"
    elif bracket and name.casefold() in PATH_TOOLS and any(mark in rest for mark in "[]{}"):
        problem = "patterns of paths know *, ** and ? only"
    if problem:
        hint = "read, bash(git *), write(**/.env*) and * are rules"
        raise ConfigError(f"{text!r} is no rule: {problem}", setting="permissions", value=text, hint=hint)
    pattern = rest[:-1].strip() if bracket else None
    return Rule(text=stripped, tool=name.casefold(), pattern=None if pattern in ("*", "**") else pattern)


@functools.lru_cache(maxsize=1024)
def _read(policy: PermissionPolicy) -> _Rules:
    def rules(texts: Iterable[str]) -> tuple[Rule, ...]:
        return tuple(parse_rule(text) for text in texts)

    return _Rules(rules(policy.allow), rules(policy.deny), rules(policy.ask))


def check_policy(policy: PermissionPolicy) -> None:
    """Refuse a policy with a rule that cannot be one."""
    _read(policy)


# ---- deciding ----


def decide(
    policy: PermissionPolicy | None, spec: ToolSpec, arguments: Mapping[str, Any], *, workspace: str = ""
) -> Decision:
    """Whether a call may be made: `deny` beats `ask` beats `allow`, and what no rule matches gets the default.

    Without a policy reads are made and everything else asks. `workspace` is the folder that paths are meant in.
    """
    name = spec.name
    if policy is None or not policy.enabled:
        if spec.effect is Effect.READ:
            return Decision(verdict=Verdict.ALLOW, reason=f"{name} only reads")
        return Decision(verdict=Verdict.ASK, reason=f"no policy says that {name} may be called")
    rules = _read(policy)
    call = _call_of(name, arguments, workspace)
    for verdict, candidates in ((Verdict.DENY, rules.deny), (Verdict.ASK, rules.ask)):
        for rule in candidates:
            if rule.is_for(name) and (rule.is_total or call.touches(rule)):
                what = "forbids" if verdict is Verdict.DENY else "asks about"
                reason = f"the rule {rule.text!r} {what} this call of {name}"
                if not rule.is_total and not call.is_readable:
                    reason += ", which cannot be read for certain"
                return Decision(verdict=verdict, rule=rule.text, reason=reason)
    allowing = [rule for rule in rules.allow if rule.is_for(name)]
    total = next((rule for rule in allowing if rule.is_total), None)
    used = (total,) if total is not None else call.covered_by(allowing)
    if used:
        text = ", ".join(dict.fromkeys(rule.text for rule in used))
        return Decision(verdict=Verdict.ALLOW, rule=text, reason=f"the rule {text!r} allows it")
    default = Verdict(policy.default_decision)
    says = {Verdict.ALLOW: "allows it", Verdict.DENY: "forbids it", Verdict.ASK: "asks"}[default]
    about = call.uncovered(allowing) if allowing else ""
    return Decision(
        verdict=default, reason=f"no rule is about {about or f'this call of {name}'}, and the policy then {says}"
    )


class _Call(ABC):
    """A call as rules see it. `is_readable` says whether it is certain what it would do."""

    is_readable = True

    @abstractmethod
    def touches(self, rule: Rule) -> bool:
        """Whether any part of it matches a rule that forbids."""

    @abstractmethod
    def covered_by(self, rules: list[Rule]) -> tuple[Rule, ...]:
        """The rules that allow all of it; empty if they do not."""

    def uncovered(self, rules: list[Rule]) -> str:
        """The part of it that none of these rules allows, though they may allow others; empty if there is none."""
        return ""


def _call_of(name: str, arguments: Mapping[str, Any], workspace: str) -> _Call:
    tool = name.casefold()
    if tool in SHELL_TOOLS:
        return _ShellCall(arguments.get("command"))
    if tool in PATH_TOOLS and (not arguments or any(name in arguments for name in (*PATH_ARGUMENTS, "pattern"))):
        return _PathCall(arguments, workspace)
    if tool in URL_TOOLS:
        return _UrlCall(arguments.get("url"))
    return _OtherCall(arguments)


# ---- what a call comes upon while it runs ----


def hides(policy: PermissionPolicy | None, workspace: str = "") -> Hides | None:
    """A predicate for tools that come upon paths which the call does not name; None if no rule hides any.

    It is asked with a path from the workspace on and the name of the tool. What may not be read is hidden from tools
    that search and list, as well as what `deny` says of them. A link is asked about by the name of what it leads to.
    """
    if policy is None or not policy.enabled:
        return None
    denied = [rule for rule in _read(policy).deny if not rule.is_total]
    rules: dict[str, tuple[str, ...]] = {}
    for tool in PATH_TOOLS:
        names = (tool, "read") if tool in SEARCH_TOOLS else (tool,)
        found = [rule.pattern.casefold() for rule in denied if rule.pattern and any(map(rule.is_for, names))]
        rules[tool] = tuple(dict.fromkeys(found))
    if not any(rules.values()):
        return None
    root = normal_path(workspace).casefold() if workspace else ""

    def is_hidden(path: str, tool: str = "grep") -> bool:
        patterns = rules.get(tool.casefold(), ())
        if not patterns:
            return False
        inside = normal_path(path.casefold())
        ways = (inside, normal_path(f"{root}/{inside}")) if root else (inside,)
        return any(_is_path(pattern, way, widely=True) for pattern in patterns for way in ways)

    return is_hidden


def allows_url(policy: PermissionPolicy | None, tool: str = "web_fetch") -> Callable[[str], bool] | None:
    """A predicate for where a redirect leads: only what a call of its own could reach unasked; None if that is all."""
    if policy is None or not policy.enabled:
        return None
    rules = _read(policy)
    allows_all = any(rule.is_total and rule.is_for(tool) for rule in rules.allow) or policy.default_decision == "allow"
    if allows_all and not any(rule.is_for(tool) for rule in (*rules.deny, *rules.ask)):
        return None
    spec = ToolSpec(name=tool, effect=Effect.READ)
    return lambda url: decide(policy, spec, {"url": url}).verdict is Verdict.ALLOW


# ---- commands ----


class _ShellCall(_Call):
    def __init__(self, command: object) -> None:
        self._text: ShellText | None = read_shell(command) if isinstance(command, str) else None
        self._whole = command if isinstance(command, str) else ""
        self.is_readable = self._text is not None and self._text.is_readable

    def touches(self, rule: Rule) -> bool:
        text = self._text
        if text is None or not text.is_readable:
            return True
        pattern = (rule.pattern or "*").casefold()
        if _is_command(pattern, self._whole.casefold().strip(), widely=True):
            return True
        return any(_is_simple(pattern, simple, widely=True) for simple in text.commands)

    def covered_by(self, rules: list[Rule]) -> tuple[Rule, ...]:
        if self._text is None or not self._text.plain:
            return ()
        used = []
        for simple in self._text.plain:
            rule = next((rule for rule in rules if _is_simple(rule.pattern or "*", simple, widely=False)), None)
            if rule is None:
                return ()
            used.append(rule)
        return tuple(used)

    def uncovered(self, rules: list[Rule]) -> str:
        if self._text is None or not self._text.is_readable or not self._text.commands:
            return ""
        if self._text.plain is None:
            return "a command with more in it than simple commands (variables, redirections, substitutions …)"
        parts = self._text.plain
        for simple in parts if len(parts) > 1 else ():
            if not any(_is_simple(rule.pattern or "*", simple, widely=False) for rule in rules):
                return f"the part {simple.canonical[:100]!r} of this command"
        return ""


def _is_simple(pattern: str, simple: Simple, *, widely: bool) -> bool:
    if not widely:
        return any(_is_command(pattern, text) for text in (simple.canonical, simple.raw))
    head = pattern[:1]
    if head in ("*", "?"):
        if simple.is_part:
            return False  # what a star at the beginning says of the end of a command it says of the whole one
    elif head not in (simple.words[0][:1].casefold(), simple.raw[:1].casefold(), "'"):
        return False
    texts = {simple.canonical, simple.raw, " ".join(simple.words)}
    if any(_is_command(pattern, text.casefold(), widely=True) for text in texts):
        return True
    if not simple.unsure or head in ("*", "?"):
        return False
    return _is_command(pattern, " ".join(simple.wide).casefold(), widely=True, fits=could_match)


def _is_command(
    pattern: str, text: str, *, widely: bool = False, fits: Callable[[str, str], bool] | None = None
) -> bool:
    fits = fits or matches
    prefix = pattern.removesuffix(":*").rstrip() if pattern.endswith(":*") else None
    if prefix is not None:
        return fits(prefix, text) or fits(f"{prefix} *", text)
    if widely and pattern.endswith(" *") and fits(pattern[:-2].rstrip(), text):
        return True  # `rm *` forbids `rm` alone too
    return fits(pattern, text)


# ---- paths ----


class _PathCall(_Call):
    def __init__(self, arguments: Mapping[str, Any], workspace: str) -> None:
        given = [arguments[name] for name in PATH_ARGUMENTS if arguments.get(name) is not None]
        self.is_readable = all(isinstance(path, str) and "\0" not in path for path in given)
        self._paths = [str(path) for path in given] or ["."]
        self._workspace = normal_path(workspace) if workspace else ""

    def touches(self, rule: Rule) -> bool:
        if not self.is_readable:
            return True
        pattern = (rule.pattern or "**").casefold()
        return any(_is_path(pattern, path, widely=True) for given in self._paths for path in self._seen_as(given))

    def _seen_as(self, given: str) -> set[str]:
        """Every way to write a path that a rule could mean."""
        ways = set()
        for path in (given, given.strip(), given.replace("\\", "/")):
            normal = normal_path(path)
            ways |= {path, normal}
            if self._workspace:
                whole = normal if normal.startswith("/") else normal_path(f"{self._workspace}/{normal}")
                ways |= {whole, _inside(whole, self._workspace)}
        return {way.casefold() for way in ways if way}

    def covered_by(self, rules: list[Rule]) -> tuple[Rule, ...]:
        used = []
        for given in self._paths if self.is_readable else ():
            normal = normal_path(given)
            inside = _inside(normal, self._workspace) if self._workspace else ""
            ways = [way for way in (normal, inside) if way and not way.startswith("~") and ".." not in way.split("/")]
            found = (rule for rule in rules for way in ways if _is_path(rule.pattern or "**", way, widely=False))
            rule = next(found, None)
            if rule is None:
                return ()
            used.append(rule)
        return tuple(used)


def normal_path(path: str) -> str:
    """A path without `.`, `..` and double slashes, as far as that can be said without looking at the disk."""
    parts: list[str] = []
    for part in path.split("/"):
        if part in ("", "."):
            continue
        if part == ".." and parts and parts[-1] != "..":
            parts.pop()
        elif part != ".." or not path.startswith("/"):
            parts.append(part)
    return ("/" if path.startswith("/") else "") + "/".join(parts) or "."


def _inside(path: str, folder: str) -> str:
    """A path as it is called inside a folder; empty if it is not in there."""
    if path == folder:
        return "."
    stem = folder.rstrip("/") + "/"
    return path.removeprefix(stem) if path.startswith(stem) else ""


def _is_path(pattern: str, path: str, *, widely: bool) -> bool:
    """Segment by segment; a rule that forbids and is not tied to the root is about that name anywhere."""
    wanted = normal_path(pattern)
    if not wanted.startswith("/") and path.startswith("/"):
        if not widely:
            return False  # a relative rule allows nothing outside the workspace
        wanted = f"**/{wanted}"
    elif wanted.startswith("/") and not path.startswith("/"):
        return False
    return _match_segments(wanted.strip("/").split("/"), path.strip("/").split("/"))


def _match_segments(pattern: list[str], path: list[str]) -> bool:
    """Two fingers: the newest `**` takes one name more whenever what follows it does not fit."""
    at = mark = back = 0
    star = -1
    while mark < len(path):
        if at < len(pattern) and pattern[at] == "**":
            star, back = at, mark
            at += 1
        elif at < len(pattern) and matches(pattern[at], path[mark]):
            at += 1
            mark += 1
        elif star >= 0:
            back += 1
            at, mark = star + 1, back
        else:
            return False
    return all(part == "**" for part in pattern[at:])


# ---- addresses ----


class _UrlCall(_Call):
    def __init__(self, url: object) -> None:
        self._text = url if isinstance(url, str) else None
        self._url = read_url(url) if isinstance(url, str) else None
        self.is_readable = self._url is not None

    def touches(self, rule: Rule) -> bool:
        if self._text is None or self._url is None:
            return True
        pattern = (rule.pattern or "*").casefold()
        return any(matches(pattern, way) for way in ways_to(self._text))

    def covered_by(self, rules: list[Rule]) -> tuple[Rule, ...]:
        url = self._url
        if url is None:
            return ()
        return tuple([rule for rule in rules if is_allowed_url(rule.pattern or "*", url, matches)][:1])


# ---- other tools ----


class _OtherCall(_Call):
    def __init__(self, arguments: Mapping[str, Any]) -> None:
        self._texts: list[str] | None = None
        self.is_readable = False
        try:
            tight = json.dumps(arguments, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
            loose = json.dumps(arguments, ensure_ascii=False, sort_keys=True)
        except (TypeError, ValueError, RecursionError):
            return
        if len(loose) <= SUBJECT_MAX:
            self._texts = [tight, loose]
            self.is_readable = True

    def touches(self, rule: Rule) -> bool:
        if self._texts is None:
            return True
        pattern = (rule.pattern or "*").casefold()
        return any(matches(pattern, text.casefold()) for text in self._texts)

    def covered_by(self, rules: list[Rule]) -> tuple[Rule, ...]:
        texts = self._texts or ()
        return tuple([rule for rule in rules if any(matches(rule.pattern or "*", text) for text in texts)][:1])


# ---- patterns ----


def matches(pattern: str, text: str) -> bool:
    """Whether a text fits a pattern in which `*` is any text and `?` any character.

    Two fingers instead of a regular expression: a pattern with many stars cannot make it slow beyond the product of
    both lengths.
    """
    if pattern and text and pattern[0] not in ("*", "?", text[0]):
        return False
    at = mark = back = 0
    star = -1
    while mark < len(text):
        if at < len(pattern) and pattern[at] == "*":
            star, back = at, mark
            at += 1
        elif at < len(pattern) and pattern[at] in ("?", text[mark]):
            at += 1
            mark += 1
        elif star >= 0:
            back += 1
            at, mark = star + 1, back
        else:
            return False
    return not pattern[at:].strip("*")


def could_match(pattern: str, text: str) -> bool:
    """Whether a text of which parts are not known yet may come to fit a pattern.

    Steps through the text with all the places of the pattern at which one may be by then.
    """
    if len(pattern) * len(text) > SUBJECT_MAX:
        return True
    end = len(pattern)
    places = _with_stars(pattern, {0})
    for char in text:
        if not places:
            return False
        if char == MANY:
            places = set(range(min(places), end + 1))
        elif char == ONE:
            places = {
                at for place in places for at in range(place, pattern.find(" ", place) % (end + 1) + 1) if at <= end
            }
        else:
            moved = {at + 1 for at in places if at < end and pattern[at] in ("?", char)}
            places = moved | {at for at in places if at < end and pattern[at] == "*"}
        places = _with_stars(pattern, places)
    return end in places


def _with_stars(pattern: str, places: set[int]) -> set[int]:
    """A star may also be nothing."""
    reached = set(places)
    for place in places:
        at = place
        while at < len(pattern) and pattern[at] == "*":
            at += 1
            reached.add(at)
    return reached
