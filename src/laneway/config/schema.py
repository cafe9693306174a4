"""A JSON Schema (draft 2020-12) of the configuration, made from the declaration.

It allows what the reader allows, in every spelling, and refuses the rest. Two things it cannot know: whether a variable
that a value refers to is set, and that two keys with names in them mean the same channel.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, Final

from laneway.config.agent_blocks import SESSION_LANE
from laneway.config.kinds import REFERENCE
from laneway.config.references import PATTERN
from laneway.config.settings import ALSO
from laneway.config.shape import STAR, Block, Each, Leaf, Path, Way, root, spellings
from laneway.kernel.registry import NAME_MAX
from laneway.options import SESSION_LANES

__all__ = ("DIALECT", "json_schema")

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
WORKSPACE: Final = ("workspaces", STAR)
Json = dict[str, Any]


def json_schema() -> Json:
    """The schema of a main file; that of a workspace's file is the same without `workspaces` and `gateway`."""
    defs: dict[str, Json] = {
        "reference": {
            "description": 'From the environment: ${NAME}, ${NAME:-default}, env("NAME") or env("NAME", "default").',
            "type": "string",
            "pattern": PATTERN,
        }
    }
    top = _block(root(), (), defs)
    return {"$schema": DIALECT, "title": "Laneway configuration", **top, "$defs": dict(sorted(defs.items()))}


def _way(way: Way, path: Path, defs: dict[str, Json]) -> Json:
    """A reference to the definition of what stands at a path; it is made when it is met first."""
    place = way.target if isinstance(way, Leaf) else path
    if len(place) > len(WORKSPACE) and place[: len(WORKSPACE)] == WORKSPACE:
        place = place[len(WORKSPACE) :]  # in a workspace everything is as at the top
    name = ".".join(place).replace(STAR, "each")
    if name not in defs:
        match way:
            case Leaf():
                defs[name] = _leaf(way)
            case Block():
                defs[name] = _block(way, path, defs)
            case Each():
                defs[name] = _each(way, path, defs)
    return {"$ref": f"#/$defs/{name}"}


def _leaf(leaf: Leaf) -> Json:
    choices: list[Json] = [leaf.setting.kind.schema(), REFERENCE]
    if leaf.is_optional:
        choices.append({"type": "null"})
    return {"description": leaf.setting.says, "anyOf": choices}


def _block(block: Block, path: Path, defs: dict[str, Json]) -> Json:
    properties: dict[str, Json] = {}
    groups: dict[str, list[str]] = {}
    for name, way in block.keys.items():
        schema = _way(way, (*path, name), defs)
        properties.update(dict.fromkeys(spellings(name), schema))
        same = way.target[-1] if isinstance(way, Leaf) else name
        groups.setdefault(same, []).extend(spellings(name))
    twice = [{"required": list(pair)} for group in groups.values() for pair in itertools.combinations(group, 2)]
    twice += _second_places(block, path[len(WORKSPACE) :] if path[: len(WORKSPACE)] == WORKSPACE else path)
    made: Json = {"type": ["object", "null"], "properties": properties, "additionalProperties": False}
    if block.says:
        made["description"] = block.says
    if twice:
        made["not"] = {"type": "object", "anyOf": twice}
    if block.shorthand is not None:
        return {"anyOf": [made, _way(block.shorthand, (), defs)]}
    return made


def _each(each: Each, path: Path, defs: dict[str, Json]) -> Json:
    names: Json = {"maxLength": NAME_MAX}
    if each.names == SESSION_LANE:
        names = {"enum": list(SESSION_LANES)}
    else:
        slashes = r"(?!.*(?:^|/)(?:/|$))" if each.names == "lane" else ""
        names["pattern"] = rf"^{slashes}\S(?:.*\S)?$"
    return {
        "description": each.says,
        "type": ["object", "null"],
        "propertyNames": names,
        "additionalProperties": _way(each.way, (*path, STAR), defs),
    }


def _second_places(block: Block, path: Path) -> Iterator[Json]:
    """What a block may not have together: two places for one block inside it, or for one setting."""
    depth = len(path)
    for also in ALSO:
        target, place = tuple(also.target.split(".")), tuple(also.place.split("."))
        if target[:depth] != path or place[:depth] != path or (STAR in path) != (STAR in target):
            continue
        target, place = target[depth:], place[depth:]
        if STAR in target or not target:
            continue
        for other in _places_of(target):
            if other != place:
                yield {"allOf": [_present(block, place), _present(block, other)]}


def _places_of(target: Path) -> Iterator[Path]:
    yield target
    for also in ALSO:
        head = tuple(also.target.split("."))
        if target[: len(head)] == head and target != head:
            yield (*also.place.split("."), *target[len(head) :])


def _present(way: Way, path: Path) -> Json:
    """That a file says something at a path, in any spelling."""
    if not path:
        return {}
    first, rest = path[0], path[1:]
    match way:
        case Block():
            inner = _present(way.keys[first], rest)
            choices = [_has(key, inner) for key in spellings(first)]
            if way.shorthand is not None and way.shorthand.target[-1] == first:
                choices.append({"not": {"type": ["object", "null"]}})
            return choices[0] if len(choices) == 1 else {"anyOf": choices}
        case Each():
            return _has(first, _present(way.way, rest))
        case Leaf():
            return {}


def _has(key: str, inner: Json) -> Json:
    made: Json = {"type": "object", "required": [key]}
    if inner:
        made["properties"] = {key: inner}
    return made
