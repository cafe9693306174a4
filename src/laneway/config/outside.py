"""Settings from outside of files: variables of the environment and `--set` options.

A variable is `LANEWAY_` and the path of a setting, as a file would write it, in capitals and joined by underscores:
`LANEWAY_QUEUE_DEBOUNCE_MS`, `LANEWAY_LANES_MAIN_CONCURRENCY`, `LANEWAY_MESSAGES_QUEUE_MODE`. Names in it are taken in
lower case, unless a file has the name in another spelling; a name alone, for the short form of a block, has to be known
from a file or the defaults. An empty variable sets nothing. Variables that begin with none of the blocks are left
alone: the command line has variables of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from laneway.config.agent_blocks import SESSION_LANE
from laneway.config.kinds import RefusedError
from laneway.config.origins import Assignment, Layer, Origin
from laneway.config.problems import Problem, Problems, closest, shown
from laneway.config.reading import fill, name_problem, unknown_key
from laneway.config.settings import Settings
from laneway.config.shape import Block, Each, Leaf, Way, root
from laneway.options import SESSION_LANES

__all__ = ("PREFIX", "SKIPPED", "read_environment", "read_overrides", "variable_of")

PREFIX: Final = "LANEWAY_"
SKIPPED: Final = frozenset({"name", "description", "system", "environment"})
"""What belongs to one workspace alone; `LANEWAY_NAME` would be too easily set by accident, `LANEWAY_SYSTEM` too."""

KNOWN_NAMES: Final = {"lane": ("main", "subagent", "cron"), SESSION_LANE: SESSION_LANES}
SEGMENT: Final = re.compile(r"""\.?(?:"([^"]*)"|'([^']*)'|([^."']+))""")


@dataclass(frozen=True, slots=True)
class _Found:
    """A setting that a name leads to, with the names that the path gives and how it reads as a path."""

    leaf: Leaf
    names: tuple[str, ...]
    written: str
    is_known: bool = False
    is_short: bool = False


def variable_of(path: Iterable[str]) -> str:
    """The variable of a path."""
    return PREFIX + "_".join(_variable_part(part) for part in path)


def _variable_part(part: str) -> str:
    return re.sub(r"[^A-Z0-9]", "_", part.upper())


def read_environment(environ: Mapping[str, str], known: Sequence[str]) -> tuple[list[Assignment], list[Problem]]:
    """What the environment sets. `known` are the names of lanes and channels that files use."""
    assignments: dict[tuple[str, ...], Assignment] = {}
    found: list[Problem] = []
    for variable in sorted(environ):
        if not variable.startswith(PREFIX) or not environ[variable]:
            continue
        problems = Problems(variable)
        match = _match(variable, known, problems)
        if match is not None and (made := _assignment(match, environ[variable], problems, variable)):
            before = assignments.setdefault(made.path, made)
            if before is not made:
                problems.refuse(f"says the same as {before.origin.name}", hint="keep one of them")
        found.extend(problems.found)
    return list(assignments.values()), found


def _match(variable: str, known: Sequence[str], problems: Problems) -> _Found | None:
    rest = variable.removeprefix(PREFIX)
    spelled = {_variable_part(name): name for name in (*Settings().lanes, *known)}
    candidates = list(_candidates(_reachable(), rest, (), "", spelled))
    if candidates:
        # `LANES_MAIN_CONCURRENCY` is a setting of `main` rather than a lane `main_concurrency` in short form.
        return max(candidates, key=lambda found: (found.is_known, not found.is_short, -len("".join(found.names))))
    heads = [name.upper() for name, way in root().keys.items() if not isinstance(way, Leaf)]
    if any(rest.startswith(f"{head}_") for head in heads):
        meant = closest(variable, _all_variables())
        problems.refuse("no setting has this variable", hint=f"did you mean {meant}?" if meant else "")
    return None


def _reachable() -> Block:
    block = root()
    keys = {
        name: way
        for name, way in block.keys.items()
        if name not in SKIPPED and not (isinstance(way, Each) and not way.outside)
    }
    return Block(says=block.says, keys=keys)


def _candidates(
    way: Way, rest: str, names: tuple[str, ...], written: str, spelled: Mapping[str, str]
) -> Iterator[_Found]:
    """Every setting that the rest of a variable can mean from here."""
    match way:
        case Leaf():
            if not rest:
                yield _Found(way, names, written)
        case Block():
            if not rest and way.shorthand is not None:
                yield _Found(way.shorthand, names, written, is_short=True)
            for key, inner in way.keys.items():
                head = key.upper()
                if rest == head or rest.startswith(f"{head}_"):
                    path = f"{written}.{key}" if written else key
                    yield from _candidates(inner, rest[len(head) + 1 :], names, path, spelled)
        case Each():
            words = rest.split("_")
            for count in range(1, len(words) + 1):
                part, behind = "_".join(words[:count]), "_".join(words[count:])
                name = spelled.get(part, part.lower())
                if name_problem(way.names, name):
                    continue
                for found in _candidates(way.way, behind, (*names, name), f"{written}.{name}", spelled):
                    # The short form is for names that are known: a setting with a typo is not the name of a new lane.
                    is_known = part in spelled or way.names == SESSION_LANE
                    if is_known or not found.is_short:
                        yield replace(found, is_known=is_known)


def _all_variables() -> list[str]:
    def below(way: Way, head: str) -> Iterator[str]:
        match way:
            case Leaf():
                yield head
            case Block():
                for key, inner in way.keys.items():
                    yield from below(inner, f"{head}_{key.upper()}")
            case Each():
                for name in KNOWN_NAMES.get(way.names, ()):
                    yield from below(way.way, f"{head}_{name.upper()}")

    return list(below(_reachable(), PREFIX.removesuffix("_")))


def _assignment(found: _Found, text: str, problems: Problems, name: str) -> Assignment | None:
    """Check the value. A problem never shows it: variables hold secrets."""
    setting = found.leaf.setting
    try:
        value = _read(found.leaf, text)
    except RefusedError:
        message = f"{found.written} must be {setting.kind.says}, not what the variable holds"
        problems.refuse(message, setting=found.written)
        return None
    return _made(found, value, Origin(layer=Layer.ENVIRONMENT, name=name))


def _made(found: _Found, value: Any, origin: Origin) -> Assignment:
    return Assignment(
        path=fill(found.leaf.target, found.names),
        value=value,
        origin=origin,
        written=found.written,
        hidden=found.leaf.setting.hides(value),
    )


def _read(leaf: Leaf, text: str) -> Any:
    return None if leaf.is_optional and text.strip() == "null" else leaf.setting.kind.read_text(text)


def read_overrides(overrides: Sequence[str]) -> tuple[list[Assignment], list[Problem]]:
    """What `--set path=value` options set; of two for one setting the later counts."""
    assignments: dict[tuple[str, ...], Assignment] = {}
    found: list[Problem] = []
    for override in overrides:
        path, equals, text = override.partition("=")
        problems = Problems(f"--set {path.strip()}")
        parts = _split(path.strip())
        if not equals or not parts:
            problems.refuse("an option is path=value", hint="--set queue.mode=steer")
        elif (match := _descend(parts, problems)) and (made := _override(match, text, problems)):
            assignments.pop(made.path, None)
            assignments[made.path] = made
        found.extend(problems.found)
    return list(assignments.values()), found


def _split(path: str) -> list[str]:
    """The parts of a dotted path; a part in quotes may have dots of its own."""
    parts: list[str] = []
    at = 0
    while at < len(path):
        match = SEGMENT.match(path, at)
        if match is None or (at == 0) == match[0].startswith("."):
            return []
        parts.append(next(group for group in match.groups() if group is not None))
        at = match.end()
    return parts


def _descend(parts: Sequence[str], problems: Problems) -> _Found | None:
    way: Way = _reachable()
    names: tuple[str, ...] = ()
    written: list[str] = []
    for part in parts:
        here = ".".join((*written, part))
        if isinstance(way, Block):
            name = way.find(part)
            if name is None:
                problems.refuse(f"there is no setting {here}", setting=here, hint=unknown_key(way, part))
                return None
            way = way.keys[name]
        elif isinstance(way, Each):
            if wrong := name_problem(way.names, part):
                problems.refuse(wrong, setting=here)
                return None
            names = (*names, part)
            way = way.way
        else:
            problems.refuse(f"there is no setting {here}", setting=here, hint=f"{'.'.join(written)} is a value")
            return None
        written.append(part)
    if isinstance(way, Block) and way.shorthand is not None:
        way = way.shorthand
    if isinstance(way, Leaf):
        return _Found(way, names, ".".join(written))
    hint = unknown_key(way, "") if isinstance(way, Block) else f"name one {way.names}"
    problems.refuse(f"{'.'.join(written)} is a block, not a value", setting=".".join(written), hint=hint)
    return None


def _override(found: _Found, text: str, problems: Problems) -> Assignment | None:
    setting = found.leaf.setting
    try:
        value = _read(found.leaf, text)
    except RefusedError as refused:
        is_secret = setting.secret is not None
        message = (
            f"{found.written} must be {setting.kind.says}, not {'what stands there' if is_secret else shown(text)}"
        )
        problems.refuse(message, setting=found.written, hint=refused.hint, value=None if is_secret else text)
        return None
    return _made(found, value, Origin(layer=Layer.COMMAND_LINE, name=f"--set {found.written}"))
