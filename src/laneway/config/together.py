"""Rules about settings that belong together, and about folders: what no single value can be blamed for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Final

from laneway.config.budget_blocks import budget_of
from laneway.config.origins import UNREAD, Assignment, Origin, Written
from laneway.config.problems import Problem
from laneway.config.shape import Path
from laneway.errors import ConfigError
from laneway.spending import BudgetScope

__all__ = ("missing_folders", "together")

Found = Mapping[Path, Assignment]
FOLDERS: Final = ("skill_dirs", "agent_dirs", "cwd")
SCOPES: Final = f"one of {', '.join(BudgetScope)}"


def together(found: Found, written: Mapping[Path, Written], refused: Found | None = None) -> list[Problem]:
    """What is wrong between the settings of a file, at its top and in each of its workspaces.

    `refused` are settings that are there but cannot be used: what is wrong with them was said already.
    """
    found = {**(refused or {}), **found}
    homes = dict.fromkeys(path[:2] if path[0] == "workspaces" else () for path in (*found, *written))
    return [
        problem
        for home in homes
        for problem in (
            *_retry(found, home),
            *_rate(found, written, home),
            *_prices(found, home),
            *_escalation(found, home),
            *_servers(found, written, home),
            *_budgets(found, written, home),
        )
    ]


def _retry(found: Found, home: Path) -> Iterator[Problem]:
    block = (*home, "queue", "retry_policy")
    strategy = found.get((*block, "strategy"))
    if strategy is not None and strategy.value == "fixed" and not _is_set(found, (*block, "fixed_delay_ms")):
        yield _problem(strategy.origin, (*block, "fixed_delay_ms"), "a fixed retry needs fixed_delay_ms")


def _rate(found: Found, written: Mapping[Path, Written], home: Path) -> Iterator[Problem]:
    block = (*home, "queue", "rate_limit")
    kind, count = found.get((*block, "limit_type")), found.get((*block, "max_operations"))
    where = written[block].origin if block in written else None
    if kind is not None and kind.value is not None:
        if kind.value is not UNREAD and kind.value != "unlimited" and not _is_set(found, (*block, "max_operations")):
            yield _problem(kind.origin, (*block, "max_operations"), f"a limit {kind.value} needs max_operations")
    elif (place := count.origin if count is not None else where) is not None:
        yield _problem(place, (*block, "limit_type"), "a rate limit needs limit_type")


def _prices(found: Found, home: Path) -> Iterator[Problem]:
    pairs = {"input_price": "output_price", "output_price": "input_price"}
    depth = len(home)
    for path, each in found.items():
        if path[:depth] == home and path[depth] == "providers" and path[-1] in pairs and each.value is not None:
            other = (*path[:-1], pairs[path[-1]])
            if not _is_set(found, other):
                yield _problem(each.origin, other, f"{path[-1]} needs {other[-1]}", "a price of nothing is 0")


def _escalation(found: Found, home: Path) -> Iterator[Problem]:
    block = (*home, "confirmation")
    people = found.get((*block, "escalate_to"))
    if people is not None and people.value and not _is_set(found, (*block, "escalate_after_ms")):
        yield _problem(people.origin, (*block, "escalate_after_ms"), "escalate_to needs escalate_after_ms")


def _servers(found: Found, written: Mapping[Path, Written], home: Path) -> Iterator[Problem]:
    """A server has either a command or a url."""
    for block, origin in _named(found, written, (*home, "mcp_servers")).items():
        command, url = (*block, "command"), (*block, "url")
        if _is_set(found, command) and _is_set(found, url):
            yield _problem(found[url].origin, url, f"{'.'.join(block)} has a command and a url", "keep one of them")
        elif not _is_set(found, command) and not _is_set(found, url):
            yield _problem(origin, command, f"{'.'.join(block)} needs a command or a url")


def _budgets(found: Found, written: Mapping[Path, Written], home: Path) -> Iterator[Problem]:
    """A budget says whose and how much, and what it says fits together."""
    for block, origin in _named(found, written, (*home, "budgets")).items():
        said = {path[-1]: each for path, each in found.items() if path[:-1] == block}
        if any(each.value is UNREAD for each in said.values()):
            continue
        if not _is_set(found, (*block, "scope")):
            yield _problem(origin, (*block, "scope"), f"{'.'.join(block)} needs a scope", SCOPES)
            continue
        try:
            budget_of(block[-1], {name: each.value for name, each in said.items()})
        except ConfigError as error:
            yield _problem(origin, block, error.message, error.hint)


def _named(found: Found, written: Mapping[Path, Written], place: Path) -> dict[Path, Origin]:
    """The blocks below a place, by the names that a file gives them, and where each begins."""
    depth = len(place) + 1
    origins = [(path, each.origin) for path, each in written.items()]
    origins += [(path, each.origin) for path, each in found.items()]
    named: dict[Path, Origin] = {}
    for path, origin in origins:
        if path[: depth - 1] == place and len(path) >= depth:
            named.setdefault(path[:depth], origin)
    return named


def missing_folders(found: Found) -> list[Problem]:
    """The folders that an agent would look into, and that are not there."""
    problems: list[Problem] = []
    for path, each in found.items():
        inside = path[2:] if path[0] == "workspaces" else path
        if inside[:-1] not in ((), ("mcp_servers", *inside[1:2])) or inside[-1] not in FOLDERS:
            continue
        folders = each.value if isinstance(each.value, tuple) else (each.value,)
        for folder in folders:
            if folder is not None and not _is_folder(folder):
                name = "that it names" if each.hidden else repr(folder)
                hint = "make it, or take it out; a relative path is meant from the folder of the file"
                problems.append(_problem(each.origin, path, f"{each.written}: there is no folder {name}", hint))
    return problems


def _is_folder(path: str) -> bool:
    try:
        return os.path.isdir(os.path.expanduser(path))
    except ValueError:  # a NUL in it
        return False


def _is_set(found: Found, path: Path) -> bool:
    return path in found and found[path].value is not None


def _problem(origin: Origin, path: Path, message: str, hint: str = "") -> Problem:
    source = origin.file or origin.name
    setting = ".".join(path)
    return Problem(source=source, message=message, hint=hint, setting=setting, line=origin.line, column=origin.column)
