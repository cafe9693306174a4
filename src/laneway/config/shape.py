"""The tree of what a file may say, made from the declaration: which key leads to which setting.

A `Leaf` is a setting, a `Block` has keys, an `Each` has one block or setting for each name that the file gives. Targets
are paths of settings in which `*` waits for such a name. Every key may be written in snake_case, camelCase and
kebab-case.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Final, TypeAlias, get_args, get_type_hints

from laneway.config.declaring import Setting, Sub
from laneway.config.settings import ALSO, Settings

__all__ = (
    "STAR",
    "Block",
    "Declared",
    "DeclaredSub",
    "Each",
    "Leaf",
    "Path",
    "Way",
    "root",
    "settings_of",
    "spellings",
    "subs_of",
    "words",
)

Path: TypeAlias = tuple[str, ...]
STAR: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A place for a value."""

    target: Path
    setting: Setting
    is_optional: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A place with keys. `keys` has the snake_case names, aliases included; a bare value goes to `shorthand`.

    `home` is the block of the settings that it fills: a file may fill it from one place only.
    """

    says: str
    keys: Mapping[str, Way]
    shorthand: Leaf | None = None
    home: Path = ()

    def find(self, key: str) -> str | None:
        """The name that a key spells."""
        return _spelled(tuple(self.keys)).get(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Each:
    """A place with names that the file chooses: lanes, channels, models. `names` says what they are names of."""

    says: str
    names: str
    way: Leaf | Block
    outside: bool = True
    home: Path = ()


Way: TypeAlias = Leaf | Block | Each


def spellings(name: str) -> tuple[str, ...]:
    """`debounce_ms`, `debounceMs`, `debounce-ms`."""
    first, *rest = name.split("_")
    return tuple(dict.fromkeys((name, first + "".join(map(str.capitalize, rest)), name.replace("_", "-"))))


@functools.cache
def _spelled(names: Path) -> Mapping[str, str]:
    return {spelling: name for name in names for spelling in spellings(name)}


def words(block: Block) -> list[str]:
    """Every key that a block knows, in every spelling."""
    return [spelling for name in block.keys for spelling in spellings(name)]


@dataclass(frozen=True, slots=True)
class Declared:
    """A setting of a declared block."""

    name: str
    setting: Setting
    default: Any
    is_optional: bool


@dataclass(frozen=True, slots=True)
class DeclaredSub:
    """A block inside a declared block; `make` gives its default."""

    name: str
    sub: Sub
    block: type[Any]
    make: Callable[[], Any]


def settings_of(block: type[Any]) -> tuple[Declared, ...]:
    """The settings of a declared block."""
    return tuple(
        Declared(field.name, facts, None if facts.names else field.default, NoneType in get_args(kind))
        for field, kind, facts in _annotated(block)
        if isinstance(facts, Setting)
    )


def subs_of(block: type[Any]) -> tuple[DeclaredSub, ...]:
    """The blocks inside a declared block."""
    return tuple(
        DeclaredSub(field.name, facts, get_args(kind)[1] if facts.names else kind, _maker(field))
        for field, kind, facts in _annotated(block)
        if isinstance(facts, Sub)
    )


def _annotated(block: type[Any]) -> tuple[tuple[dataclasses.Field[Any], Any, Any], ...]:
    key: Any = block
    return _read_once(key)


@functools.cache  # to evaluate annotations is slow
def _read_once(block: Any) -> tuple[tuple[dataclasses.Field[Any], Any, Any], ...]:
    hints = get_type_hints(block, include_extras=True)
    return tuple((field, *get_args(hints[field.name])) for field in dataclasses.fields(block))


def _maker(field: dataclasses.Field[Any]) -> Callable[[], Any]:
    assert field.default_factory is not dataclasses.MISSING
    return field.default_factory


@functools.cache
def root(*, in_workspace: bool = False) -> Block:
    """What stands at the top of a file: of the main one, or of the file of a workspace."""
    keys = _with_also(_keys_of(Settings, ()), ())
    workspaces = keys.pop("workspaces")
    assert isinstance(workspaces, Each)
    assert isinstance(workspaces.way, Block)
    if in_workspace:
        del keys["gateway"]  # one server has many workspaces
    else:
        prefix = ("workspaces", STAR)
        inside = _with_also(_keys_of(Settings, prefix), prefix)
        del inside["workspaces"], inside["gateway"]
        block = dataclasses.replace(workspaces.way, keys={**workspaces.way.keys, **inside})
        keys["workspaces"] = dataclasses.replace(workspaces, way=block)
    return Block(says="The configuration.", keys=keys)


def _keys_of(block: type[Any], target: Path) -> dict[str, Way]:
    keys: dict[str, Way] = {}
    for each in settings_of(block):
        keys.update(dict.fromkeys((each.name, *each.setting.aliases), _setting(each, (*target, each.name))))
    for inner in subs_of(block):
        keys[inner.name] = _sub(inner, (*target, inner.name))
    return keys


def _setting(declared: Declared, target: Path) -> Way:
    setting = declared.setting
    if not setting.names:
        return Leaf(target=target, setting=setting, is_optional=declared.is_optional)
    leaf = Leaf(target=(*target, STAR), setting=setting, is_optional=False)
    return Each(says=setting.says, names=setting.names, way=leaf, home=target)


def _sub(declared: DeclaredSub, target: Path) -> Way:
    sub = declared.sub
    keys = _keys_of(declared.block, (*target, STAR) if sub.names else target)
    shorthand = keys.get(sub.shorthand)
    assert shorthand is None or isinstance(shorthand, Leaf)
    if not sub.names:
        return Block(says=sub.says, keys=keys, shorthand=shorthand, home=target)
    block = Block(says=sub.says, keys=keys, shorthand=shorthand)
    return Each(says=sub.says, names=sub.names, way=block, outside=sub.outside, home=target)


def _with_also(keys: dict[str, Way], prefix: Path) -> dict[str, Way]:
    """Put in the second places of `ALSO`. Each finds its target in the tree as it was declared."""
    declared = dict(keys)
    for also in ALSO:
        place, target = tuple(also.place.split(".")), tuple(also.target.split("."))
        top = Block(says="", keys=declared)
        keys = _insert(keys, place, _inside(top, target) if STAR in place else _resolve(top, target, len(prefix)))
    return keys


def _inside(way: Way, target: Path) -> Way:
    """The way at a path whose names are those of the place: it keeps its stars."""
    for part in target:
        assert not isinstance(way, Leaf)
        way = way.keys[part] if isinstance(way, Block) else way.way
    return way


def _resolve(way: Way, target: Path, depth: int) -> Way:
    """The way at a path; a name in the path takes the place of its star, a star stays one."""
    for position, part in enumerate(target):
        match way:
            case Block():
                way = way.keys[part]
            case Each() if part == STAR:
                inner = _resolve(way.way, target[position + 1 :], depth + position + 1)
                assert isinstance(inner, Leaf)
                return dataclasses.replace(way, way=inner, home=())
            case Each():
                way = _named(way.way, depth + position, part)
            case Leaf():
                raise AssertionError(f"{target} goes on behind a setting")
    return way


def _named(way: Leaf | Block, position: int, name: str) -> Leaf | Block:
    """Fill in the star at a position of the targets."""
    match way:
        case Leaf():
            target = (*way.target[:position], name, *way.target[position + 1 :])
            return dataclasses.replace(way, target=target)
        case Block():
            keys: dict[str, Way] = {}
            for key, inner in way.keys.items():
                assert not isinstance(inner, Each)
                keys[key] = _named(inner, position, name)
            return dataclasses.replace(way, keys=keys)


def _insert(keys: dict[str, Way], place: Path, way: Way) -> dict[str, Way]:
    first, *rest = place
    if not rest:
        assert first not in keys
        return {**keys, first: way}
    there = keys.get(first, Block(says="", keys={}))
    if isinstance(there, Each):
        assert isinstance(there.way, Block)
        _, *rest = rest  # the star
        block = dataclasses.replace(there.way, keys=_insert(dict(there.way.keys), tuple(rest), way))
        return {**keys, first: dataclasses.replace(there, way=block)}
    assert isinstance(there, Block)
    return {**keys, first: dataclasses.replace(there, keys=_insert(dict(there.keys), tuple(rest), way))}
