"""The schemas of strangers: what an MCP server says about the arguments of its tools, checked with a bound.

A check runs on the event loop, where a schema that is meant ill (or written without care) would hold up everybody: a
regular expression may run for ever, references may double until they are millions, a document may be deep or huge. So
this is no full check. It knows the keywords that models get wrong, needs no regular expression, fetches nothing, and
stops after `STEPS_MAX` steps. The server checks its arguments itself; this tells a model sooner, and in better words.

One law holds: what the whole schema takes, is taken. Whatever is not known, not understood or left out because of a
bound forbids nothing. Therefore everything here only ever adds conditions: `not`, `if`, `contains` and the "exactly
one" of `oneOf` would turn what was left out into a refusal, and are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final
from urllib.parse import unquote

from laneway.tools.schemas import PROBLEMS_MAX, parse_arguments, place_of, refusal, shown_value, unknown_argument

__all__ = ("ForeignParameters",)

STEPS_MAX: Final = 10_000
DEPTH_MAX: Final = 60
NAMED_MAX: Final = 20
NAMES_LENGTH_MAX: Final = 1_000
A_STEP: Final = 50  # so many looks into a list, or characters of a reference, count as one step
OLD_DRAFT: Final = "draft-0"  # in `$schema` of the drafts before 2019: what stands beside a `$ref` is not read

Path = tuple[Any, ...]
Check = Callable[[Any], bool]

KINDS: Final[Mapping[str, Check]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: _is_number(value),
    "integer": lambda value: _is_number(value) and value == value // 1,
}
LENGTHS: Final = (
    ("minLength", str, "characters", False),
    ("maxLength", str, "characters", True),
    ("minItems", list, "items", False),
    ("maxItems", list, "items", True),
    ("minProperties", dict, "properties", False),
    ("maxProperties", dict, "properties", True),
)
"""The keyword, what it is about, what it counts, and whether that is the most (or the least) there may be."""


class ForeignParameters:
    """Arguments of a tool of a server, held against its schema as far as that is safe."""

    def __init__(self, tool: str, schema: Mapping[str, Any]) -> None:
        self._tool = tool
        self._schema = schema

    def check(self, arguments: str) -> dict[str, Any]:
        """The arguments of a call, parsed and held against the schema."""
        values = parse_arguments(arguments, self._tool)
        problems = list(islice(_Reading(self._schema).problems(values), PROBLEMS_MAX))
        if problems:
            raise refusal(self._tool, problems)
        return values


class _Reading:
    """One reading of a schema, with the steps that are left for it."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._left = STEPS_MAX
        self._is_old = OLD_DRAFT in str(root.get("$schema", ""))

    def problems(self, value: Any) -> Iterator[str]:
        """What is wrong with a value, in words."""
        return self._visit(self._root, value, (), 0)

    def _spend(self, size: int = 0) -> bool:
        """Whether there is a step left."""
        self._left -= 1 + size // A_STEP
        return self._left >= 0

    def _visit(self, schema: Any, value: Any, path: Path, depth: int) -> Iterator[str]:
        if depth > DEPTH_MAX or not self._spend():
            return
        if schema is False:
            yield f"{_at(path)}there must be nothing"
            return
        if not isinstance(schema, dict) or (depth and _is_document(schema)):
            return
        if isinstance(schema.get("$ref"), str):
            yield from self._visit(self._find(schema["$ref"]), value, path, depth + 1)
            if self._is_old:
                return
        yield from self._plain(schema, value, path)
        yield from self._combined(schema, value, path, depth)
        if isinstance(value, dict):
            yield from self._members(schema, value, path, depth)
        elif isinstance(value, list):
            yield from self._items(schema, value, path, depth)

    # ---- what a schema says of a value itself ----

    def _plain(self, schema: dict[str, Any], value: Any, path: Path) -> Iterator[str]:
        kinds = schema.get("type")
        kinds = kinds if isinstance(kinds, list) else [kinds]
        named = [kind for kind in kinds if isinstance(kind, str) and kind in KINDS]
        is_known = self._spend(len(kinds)) and 0 < len(named) == len(kinds)
        if is_known and not any(KINDS[kind](value) for kind in named):
            yield f"{_at(path)}{shown_value(value)} is not of type {', '.join(named[:NAMED_MAX])}"
        options: Any = schema["enum"] if "enum" in schema else [schema["const"]] if "const" in schema else None
        is_known = isinstance(options, list) and not isinstance(value, dict | list) and self._spend(len(options))
        if is_known and value not in options:
            some = ", ".join(shown_value(each) for each in options[:NAMED_MAX])
            more = ", …" if len(options) > NAMED_MAX else ""
            yield f"{_at(path)}{shown_value(value)} is not one of {some}{more}"
        yield from _sizes(schema, value, path)

    # ---- schemas in schemas ----

    def _combined(self, schema: dict[str, Any], value: Any, path: Path, depth: int) -> Iterator[str]:
        every = schema.get("allOf")
        for each in every if isinstance(every, list) else ():
            yield from self._visit(each, value, path, depth + 1)
        for word in ("anyOf", "oneOf"):
            some = schema.get(word)
            if not isinstance(some, list) or not some or not self._spend():
                continue
            if not any(self._fits(each, value, depth) for each in some):
                yield f"{_at(path)}{shown_value(value)} fits none of the {len(some)} things that it may be"

    def _fits(self, schema: Any, value: Any, depth: int) -> bool:
        return next(self._visit(schema, value, (), depth + 1), None) is None

    def _members(self, schema: dict[str, Any], value: dict[str, Any], path: Path, depth: int) -> Iterator[str]:
        required = schema.get("required")
        if isinstance(required, list) and self._spend(len(required)):
            missing = (each for each in required if isinstance(each, str) and each not in value)
            yield from (f"{place_of((*path, each))!r} is missing" for each in missing)
        known = schema.get("properties", {})
        if not isinstance(known, dict) or not self._spend(len(value)):
            return
        for name, each in value.items():
            if name in known:
                yield from self._visit(known[name], each, (*path, name), depth + 1)
        rest = schema.get("additionalProperties", True)
        if rest is True or "patternProperties" in schema:  # which are additional, only these patterns know
            return
        for name, each in value.items():
            if name in known or self._left < 0:
                continue
            if rest is False:
                yield _unknown(name, known, path)
            else:
                yield from self._visit(rest, each, (*path, name), depth + 1)

    def _items(self, schema: dict[str, Any], value: list[Any], path: Path, depth: int) -> Iterator[str]:
        first = schema.get("items" if self._is_old else "prefixItems")
        first = first if isinstance(first, list) else []
        for number, (inner, each) in enumerate(zip(first, value, strict=False)):
            yield from self._visit(inner, each, (*path, number), depth + 1)
        rest = schema.get("items")
        if not isinstance(rest, dict):  # false says how many there may be, which maxItems says better
            return
        for number in range(len(first), len(value)):
            if self._left < 0:
                return
            yield from self._visit(rest, value[number], (*path, number), depth + 1)

    def _find(self, reference: str) -> Any:
        """What a reference into this document means; True, which forbids nothing, if it is none or leads nowhere."""
        if not (reference == "#" or reference.startswith("#/")) or not self._spend(len(reference)):
            return True
        found: Any = self._root
        for part in unquote(reference).split("/")[1:]:
            name = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isascii() and name.isdigit() and len(name) < 7:
                found = found[int(name)] if int(name) < len(found) else True
            else:
                return True
            if _is_document(found):
                return True
        return found


def _sizes(schema: dict[str, Any], value: Any, path: Path) -> Iterator[str]:
    if isinstance(value, str | list | dict):
        for word, kind, what, is_most in LENGTHS:
            bound: Any = schema.get(word)
            if not _is_number(bound) or not isinstance(value, kind):
                continue
            if len(value) > bound if is_most else len(value) < bound:
                least_or_most = "at most" if is_most else "at least"
                yield f"{_at(path)}it has {len(value)} {what}, not {least_or_most} {shown_value(bound)}"
    elif _is_number(value):
        least, most = schema.get("minimum"), schema.get("maximum")
        above, below = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
        if _is_number(least) and value < least:
            yield f"{_at(path)}{shown_value(value)} is less than {shown_value(least)}"
        if _is_number(most) and value > most:
            yield f"{_at(path)}{shown_value(value)} is more than {shown_value(most)}"
        if _is_number(above) and value <= above:
            yield f"{_at(path)}{shown_value(value)} is not more than {shown_value(above)}"
        if _is_number(below) and value >= below:
            yield f"{_at(path)}{shown_value(value)} is not less than {shown_value(below)}"


def _is_document(schema: Any) -> bool:
    """Whether it is a document inside of another: its references would mean something else."""
    return isinstance(schema, dict) and (isinstance(schema.get("$id"), str) or isinstance(schema.get("id"), str))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _unknown(name: str, known: Mapping[str, Any], path: Path) -> str:
    if not path and len(known) <= NAMED_MAX and sum(map(len, known)) <= NAMES_LENGTH_MAX:
        return unknown_argument(name, list(known))
    names = ", ".join(shown_value(each) for each in islice(known, NAMED_MAX)) or "none"
    more = ", …" if len(known) > NAMED_MAX else ""
    return f"there is no argument {place_of((*path, name))!r} (there are: {names}{more})"


def _at(path: Path) -> str:
    return f"{place_of(path)!r}: " if path else ""
