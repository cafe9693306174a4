"""What a file says, before anybody asks what it means: scalars, lists and tables, each with its place in the file.

Every format is read into these. The bounds hold for all of them: a file that goes beyond one is refused early, so that
a hostile or broken file costs neither memory nor time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

__all__ = (
    "DEPTH_MAX",
    "FILE_BYTES_MAX",
    "NODES_MAX",
    "NOWHERE",
    "Entry",
    "Items",
    "Node",
    "Place",
    "Scalar",
    "Table",
    "UnreadableError",
    "check_depth",
    "check_nodes",
)

FILE_BYTES_MAX: Final = 1_048_576
DEPTH_MAX: Final = 32
NODES_MAX: Final = 20_000


@dataclass(frozen=True, slots=True)
class Place:
    """A line and a column, both from 1; 0 where the format does not tell."""

    line: int
    column: int


NOWHERE: Final = Place(0, 0)


@dataclass(frozen=True, slots=True)
class Scalar:
    """One value: text, a number, a flag, None, or something that only its format knows (a date in TOML)."""

    value: object
    place: Place


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    nodes: tuple[Node, ...]
    place: Place


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of a table and what it is set to. `merged` ones came by `<<` and give way to written ones."""

    key: str
    place: Place
    node: Node
    merged: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Keys in the order of the file. A key may stand here twice: who reads the table refuses it by its path."""

    entries: tuple[Entry, ...]
    place: Place


Node: TypeAlias = Scalar | Items | Table


class UnreadableError(Exception):
    """The text is not what its format allows; nothing of the file is used. Becomes a problem with its place."""

    def __init__(self, place: Place, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.place = place
        self.message = message
        self.hint = hint


def check_depth(depth: int, place: Place) -> None:
    """Refuse blocks inside blocks without end."""
    if depth > DEPTH_MAX:
        raise UnreadableError(place, f"the blocks are nested more than {DEPTH_MAX} deep")


def check_nodes(count: int, place: Place, hint: str = "") -> None:
    """Refuse more values than any configuration has."""
    if count > NODES_MAX:
        raise UnreadableError(place, f"there are more than {NODES_MAX:,} values", hint)
