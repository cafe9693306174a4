"""TOML with places. `tomllib` reads the values and tells no places; a scan of the same text finds the keys.

The scan knows just enough of the grammar to pass over values. It goes first, since it is bounded and `tomllib` is not:
a key of a million parts would cost all memory. Where it meets something that it does not know it stops, and `tomllib`
says what is wrong there. A key that it did not find takes the place of its table.
"""

from __future__ import annotations

import contextlib
import re
import tomllib
from typing import Any, Final

from laneway.config.nodes import (
    NOWHERE,
    Entry,
    Items,
    Node,
    Place,
    Scalar,
    Table,
    UnreadableError,
    check_depth,
    check_nodes,
)

__all__ = ("read_toml",)

Keys = tuple[str, ...]
WHERE: Final = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")
BLANK: Final = re.compile(r"(?:[ \t\n\r]+|#[^\n]*)*")
BARE: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
TEXTS: Final = re.compile(
    "|".join(
        (
            r'"""(?:[^\\]|\\[\s\S])*?"{3,5}(?!")',
            r"'''[\s\S]*?'{3,5}(?!')",
            r'"(?:[^"\\\n]|\\.)*"',
            r"'[^'\n]*'",
        )
    )
)
PLAIN: Final = re.compile(r"[^\s,\[\]{}#\"']+(?: [0-9:.+Z-]+)?")


def read_toml(text: str) -> Node | None:
    """The document; an empty one is an empty table."""
    text = text.replace("\r\n", "\n")
    places = _places_of(text)
    try:
        values = tomllib.loads(text)
    except RecursionError:
        raise UnreadableError(NOWHERE, "the values are nested too deep") from None
    except ValueError as error:
        raise _syntax(str(error), text) from None
    return _Builder(places).table(values, (), Place(1, 1))


def _syntax(said: str, text: str) -> UnreadableError:
    where = WHERE.search(said)
    if where is None:  # the one that says no place: Python does not read numbers of thousands of digits
        return UnreadableError(NOWHERE, "a number has too many digits")
    if where[1]:
        return UnreadableError(Place(int(where[1]), int(where[2])), said[: where.start()])
    last = text.rfind("\n") + 1
    return UnreadableError(Place(text.count("\n") + 1, len(text) - last + 1), said[: where.start()])


def _places_of(text: str) -> dict[Keys, tuple[Place, Place]]:
    scan = _Scan(text)
    with contextlib.suppress(_LostError):
        scan.run()
    return scan.places


class _LostError(Exception):
    """The scan met something that it does not know."""


class _Builder:
    """Joins values and places."""

    def __init__(self, places: dict[Keys, tuple[Place, Place]]) -> None:
        self._places = places
        self._count = 0

    def table(self, values: dict[str, Any], path: Keys, place: Place) -> Table:
        """A table with the places of its keys."""
        check_depth(len(path) + 1, place)
        entries = []
        for key, value in values.items():
            key_place, value_place = self._places.get((*path, key), (place, place))
            entries.append(Entry(key, key_place, self._node(value, (*path, key), value_place)))
        return Table(tuple(entries), place)

    def _node(self, value: object, path: Keys, place: Place) -> Node:
        self._count += 1
        check_nodes(self._count, place)
        if isinstance(value, dict):
            return self.table(value, path, place)
        if isinstance(value, list):
            check_depth(len(path) + 1, place)
            return Items(tuple(self._node(each, (*path, ""), place) for each in value), place)
        return Scalar(value, place)


class _Scan:
    """Finds where each key and its value stand."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self.places: dict[Keys, tuple[Place, Place]] = {}
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self._line = 0
        self._count = 0

    def run(self) -> None:
        """Pass over the whole text."""
        table: Keys = ()
        self._skip()
        while self._at < len(self._text):
            if self._peek() == "[":
                begin = self._place()
                brackets = 2 if self._text.startswith("[[", self._at) else 1
                self._pass(brackets)
                table = self._keys((), value=begin)
                self._pass(brackets)
            else:
                self._pair(table)
            self._skip()

    def _place(self) -> Place:
        while self._line + 1 < len(self._lines) and self._lines[self._line + 1] <= self._at:
            self._line += 1
        return Place(self._line + 1, self._at - self._lines[self._line] + 1)

    def _peek(self) -> str:
        if self._at >= len(self._text):
            raise _LostError
        return self._text[self._at]

    def _skip(self) -> None:
        self._at = BLANK.match(self._text, self._at).end()  # type: ignore[union-attr]  # it matches nothing too

    def _pass(self, count: int) -> None:
        self._at += count
        self._skip()

    def _take(self, *patterns: re.Pattern[str]) -> str:
        for pattern in patterns:
            if match := pattern.match(self._text, self._at):
                self._at = match.end()
                return match[0]
        raise _LostError

    def _pair(self, table: Keys) -> None:
        path = self._keys(table, value=self._place())
        self._pass(1)  # the equals sign
        self.places[path] = (self.places[path][0], self._place())
        self._value(path)

    def _keys(self, table: Keys, *, value: Place) -> Keys:
        """A dotted key; each part is noted with its place."""
        path = table
        while True:
            begin = self._place()
            path = (*path, self._key())
            check_depth(len(path), begin)
            self._count += 1
            check_nodes(self._count, begin)
            self.places.setdefault(path, (begin, value))
            self._skip()
            if self._peek() != ".":
                return path
            self._pass(1)

    def _key(self) -> str:
        word = self._take(BARE, TEXTS)
        if word[0] not in "\"'":
            return word
        try:
            (key,) = tomllib.loads(f"{word} = 0")
        except ValueError:
            raise _LostError from None
        return key

    def _value(self, path: Keys) -> None:
        match self._peek():
            case "{":
                self._inside("}", path)
            case "[":
                self._inside("]", path)
            case _:
                self._take(TEXTS, PLAIN)

    def _inside(self, bracket: str, path: Keys) -> None:
        check_depth(len(path) + 1, self._place())
        self._pass(1)
        while self._peek() != bracket:
            if bracket == "}":
                self._pair(path)
            else:
                self._value((*path, ""))
            self._skip()
            self._pass(self._peek() == ",")
        self._at += 1
