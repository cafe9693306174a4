"""YAML 1.2 with places, from the event stream of PyYAML.

PyYAML knows YAML 1.1: it would read `no` as a flag and `010` as eight. Its scanner and parser are used only; what a
plain scalar means is decided here by the core schema of YAML 1.2. Events come one by one and the tree is built without
recursion, so that depth and size are bounded while the file is read. Aliases share their node; `<<` is understood.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, field
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

__all__ = ("read_yaml",)

NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})
FLAGS: Final = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
DECIMAL: Final = re.compile(r"[-+]?[0-9]+", re.ASCII)
OTHER_WHOLE: Final = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+", re.ASCII)
FRACTION: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", re.ASCII)
INFINITE: Final = re.compile(r"[-+]?\.(?:inf|Inf|INF)")
NOT_A_NUMBER: Final = frozenset({".nan", ".NaN", ".NAN"})
DIGITS_MAX: Final = 300
MERGE: Final = "<<"
TEXT_TAG: Final = "tag:yaml.org,2002:str"


def read_yaml(text: str) -> Node | None:
    """The one document of the text, or None when there is none."""
    yaml = _library()
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            builder.take(event)
    except yaml.reader.ReaderError as error:
        raise UnreadableError(_place_at(text, error.position), "a character that YAML does not allow") from None
    except yaml.MarkedYAMLError as error:
        raise _syntax(error, text) from None
    except (ValueError, OverflowError):  # an escape such as \UFFFFFFFF names no character
        raise UnreadableError(builder.last, "an escape that names no character") from None
    return builder.document


def _library() -> Any:
    try:
        return importlib.import_module("yaml")
    except ImportError:
        raise UnreadableError(
            NOWHERE, "reading YAML needs PyYAML", "install laneway with the extra `config`, or use JSON, JSON5 or TOML"
        ) from None


def _syntax(error: Any, text: str) -> UnreadableError:
    mark = error.problem_mark or error.context_mark
    place = Place(mark.line + 1, mark.column + 1) if mark else NOWHERE
    said = ", ".join(part for part in (error.context, error.problem) if part) or "not YAML"
    tab = mark is not None and text[mark.index : mark.index + 1] == "\t"
    return UnreadableError(place, said, "YAML is indented by spaces, not by tabs" if tab else "")


def _place_at(text: str, position: int) -> Place:
    before = text[:position]
    return Place(before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1)


@dataclass(slots=True)
class _Open:
    """A list or a table that is not at its end yet."""

    place: Place
    anchor: str | None
    is_table: bool
    nodes: list[Node] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    key: tuple[str, Place] | None = None
    weight: int = 1


@dataclass(frozen=True, slots=True)
class _Weighed:
    """What is known of a node: how many nodes it is with all aliases followed, and its text if it may be a key."""

    weight: int
    anchor: str | None
    text: str | None = None


class _Builder:
    """Takes the events in order and has the document at the end."""

    def __init__(self) -> None:
        self.document: Node | None = None
        self.last = NOWHERE
        self._documents = 0
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[Node, int]] = {}
        self._count = 0

    def take(self, event: Any) -> None:
        """Handle one event."""
        place = self.last = Place(event.start_mark.line + 1, event.start_mark.column + 1)
        match type(event).__name__:
            case "DocumentStartEvent":
                self._start(event, place)
            case "ScalarEvent":
                self._count += 1
                self._add(_scalar(event, place), _Weighed(1, event.anchor, event.value))
            case "AliasEvent":
                if event.anchor not in self._anchors:
                    raise UnreadableError(place, f"there is no anchor &{event.anchor} before this alias")
                node, weight = self._anchors[event.anchor]
                self._count += weight
                self._add(node, _Weighed(weight, None, str(node.value) if isinstance(node, Scalar) else None))
            case "SequenceStartEvent" | "MappingStartEvent" as name:
                _check_tag(event.tag, place)
                check_depth(len(self._open) + 1, place)
                self._count += 1
                self._open.append(_Open(place, event.anchor, name == "MappingStartEvent"))
            case "SequenceEndEvent":
                done = self._open.pop()
                self._add(Items(tuple(done.nodes), done.place), _Weighed(done.weight, done.anchor))
            case "MappingEndEvent":
                done = self._open.pop()
                self._add(_table(done), _Weighed(done.weight, done.anchor))
            case _:
                pass  # where the stream and the document begin and end
        check_nodes(self._count, place, "aliases count each time")

    def _start(self, event: Any, place: Place) -> None:
        self._documents += 1
        if self._documents > 1:
            raise UnreadableError(place, "a second document begins", "a configuration is one document")
        if event.version not in (None, (1, 2)):
            raise UnreadableError(place, "the file says that it is not YAML 1.2", "take the %YAML line out")

    def _add(self, node: Node, facts: _Weighed) -> None:
        if facts.anchor is not None:
            self._anchors[facts.anchor] = (node, facts.weight)
        if not self._open:
            self.document = node
            return
        parent = self._open[-1]
        parent.weight += facts.weight
        if not parent.is_table:
            parent.nodes.append(node)
        elif parent.key is None:
            if facts.text is None:
                raise UnreadableError(self.last, "a key is text, not a list or a block")
            parent.key = (facts.text, self.last)
        else:
            key, place = parent.key
            parent.key = None
            parent.entries.append(Entry(key, place, node))


def _table(done: _Open) -> Table:
    """The table with what `<<` brings behind what is written, so that the written counts."""
    written = [entry for entry in done.entries if entry.key != MERGE]
    merged: list[Entry] = []
    for entry in done.entries:
        if entry.key != MERGE:
            continue
        for node in entry.node.nodes if isinstance(entry.node, Items) else (entry.node,):
            if not isinstance(node, Table):
                raise UnreadableError(entry.place, "`<<` takes a block or a list of blocks")
            merged.extend(Entry(each.key, each.place, each.node, merged=True) for each in node.entries)
    return Table((*written, *merged), done.place)


def _scalar(event: Any, place: Place) -> Scalar:
    _check_tag(event.tag, place, text_allowed=True)
    is_plain = event.implicit[0] and event.tag is None
    return Scalar(_meaning(event.value) if is_plain else event.value, place)


def _check_tag(tag: str | None, place: Place, *, text_allowed: bool = False) -> None:
    if tag in (None, "!") or (text_allowed and tag == TEXT_TAG):
        return
    raise UnreadableError(place, f"the tag {tag} is not read", "write the value without a tag")


def _meaning(text: str) -> object:
    if text in NULLS:
        return None
    if text in FLAGS:
        return FLAGS[text]
    if DECIMAL.fullmatch(text):
        return int(text) if len(text) <= DIGITS_MAX else float("inf")
    if OTHER_WHOLE.fullmatch(text):
        return int(text, 0) if len(text) <= DIGITS_MAX else float("inf")
    if FRACTION.fullmatch(text):
        return float(text)
    if INFINITE.fullmatch(text):
        return float(text.replace(".", ""))
    return float("nan") if text in NOT_A_NUMBER else text
