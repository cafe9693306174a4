"""From the nodes of a file to assignments: a key is known or refused, a value checked, and all problems are noted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from laneway.config.kinds import RefusedError
from laneway.config.nodes import Entry, Items, Node, Place, Scalar, Table
from laneway.config.origins import Assignment, Layer, Origin
from laneway.config.problems import Problems, closest, shown
from laneway.config.references import Expanded, expand
from laneway.config.shape import STAR, Block, Each, Leaf, Path, Way, words
from laneway.errors import ConfigError
from laneway.kernel.registry import NAME_MAX, check_name

__all__ = ("Reading", "fill", "name_problem", "unknown_key")

KNOWN_MAX: Final = 12


def fill(target: Path, names: tuple[str, ...]) -> Path:
    """A target with the names of the file in the places of its stars."""
    waiting = iter(names)
    return tuple(next(waiting) if part == STAR else part for part in target)


def name_problem(kind: str, name: str) -> str:
    """What is wrong with a name that a file gives to a lane, a channel or a workspace; nothing if it is good."""
    if kind == "lane":
        try:
            check_name(name)
        except ConfigError as error:
            return error.message
        return ""
    if 0 < len(name) <= NAME_MAX and name.isprintable() and name == name.strip():
        return ""
    return f"a {kind} name is 1 to {NAME_MAX} printable characters without blanks at its ends, not {shown(name)}"


def unknown_key(block: Block, key: str) -> str:
    """The hint for a key that a block does not have."""
    meant = closest(key, words(block))
    if meant:
        return f"did you mean {meant}?"
    known = list(block.keys)
    return "known here: " + ", ".join(known[:KNOWN_MAX]) + (", …" if len(known) > KNOWN_MAX else "")


@dataclass(slots=True, kw_only=True)
class Reading:
    """Reads one file. `assignments` are what it sets, in its order.

    `blocks` says where each block of the settings began, `named` which lanes, channels and workspaces there are.
    """

    layer: Layer
    environ: Mapping[str, str]
    problems: Problems
    assignments: list[Assignment] = field(default_factory=list)
    blocks: dict[Path, tuple[str, Place]] = field(default_factory=dict)
    named: list[Path] = field(default_factory=list)
    _set: dict[Path, Assignment] = field(default_factory=dict)

    def read(self, node: Node | None, block: Block) -> None:
        """Take in the document; None is an empty one."""
        if node is None or (isinstance(node, Scalar) and node.value is None):
            return
        if not isinstance(node, Table):
            self.problems.add(
                node.place, f"the file holds {_what(node)} where a block with keys belongs", hint=_keys_hint(block)
            )
            return
        self._table(node, block, (), "")

    def _way(self, way: Way, entry: Entry, names: tuple[str, ...], written: str) -> None:
        match way:
            case Leaf():
                self._leaf(way, entry.node, names, written)
            case Block():
                self._enter(way.home, entry, names, written)
                self._block(way, entry.node, names, written)
            case Each():
                self._enter(way.home, entry, names, written)
                self._each(way, entry.node, names, written)

    def _enter(self, home: Path, entry: Entry, names: tuple[str, ...], written: str) -> None:
        """Note that a block of the settings is filled here, and refuse a second place for it."""
        if not home:
            return
        home = fill(home, names)
        if home not in self.blocks:
            self.blocks[home] = (written, entry.place)
            return
        first, place = self.blocks[home]
        if first != written:
            self.problems.add(
                entry.place,
                f"{written} and {first} (line {place.line}) are two places for the same settings",
                setting=written,
                hint="keep one of them",
            )

    def _block(self, block: Block, node: Node, names: tuple[str, ...], written: str) -> None:
        match node:
            case Table():
                self._table(node, block, names, written)
            case Scalar(value=None):
                pass  # a key with everything under it commented out
            case Scalar() if block.shorthand is not None:
                self._leaf(block.shorthand, node, names, written)
            case _:
                self._not_a_block(node, written, _keys_hint(block))

    def _table(self, table: Table, block: Block, names: tuple[str, ...], written: str) -> None:
        seen: dict[str, Entry] = {}
        for entry in table.entries:
            if self.problems.is_full:
                return  # to look for what was meant costs time
            path = f"{written}.{entry.key}" if written else entry.key
            name = block.find(entry.key)
            if name is None:
                self.problems.add(
                    entry.place,
                    f"there is no setting {path}",
                    setting=path,
                    hint=unknown_key(block, entry.key),
                )
            elif self._is_first(entry, seen, _identity(block.keys[name], name), path):
                self._way(block.keys[name], entry, names, path)

    def _each(self, each: Each, node: Node, names: tuple[str, ...], written: str) -> None:
        if isinstance(node, Scalar) and node.value is None:
            return
        if not isinstance(node, Table):
            self._not_a_block(node, written, f"one key for each {each.names}")
            return
        seen: dict[str, Entry] = {}
        for entry in node.entries:
            path = f"{written}.{entry.key}"
            if wrong := name_problem(each.names, entry.key):
                self.problems.add(entry.place, wrong, setting=path)
            elif self._is_first(entry, seen, entry.key, path):
                if each.home:
                    self.named.append((*fill(each.home, names), entry.key))
                self._way(each.way, entry, (*names, entry.key), path)

    def _is_first(self, entry: Entry, seen: dict[str, Entry], name: str, path: str) -> bool:
        """Whether the key is new in its block. What `<<` brings gives way without a word."""
        before = seen.setdefault(name, entry)
        if before is entry:
            return True
        if not entry.merged:
            how = "set twice" if before.key == entry.key else f"set as {before.key} too"
            self.problems.add(
                entry.place,
                f"{path} is {how} (line {before.place.line})",
                setting=path,
                hint="keep one of them",
            )
        return False

    def _leaf(self, leaf: Leaf, node: Node, names: tuple[str, ...], written: str) -> None:
        target = fill(leaf.target, names)
        expanded: Expanded | None = None
        if isinstance(node, Scalar) and isinstance(node.value, str):
            expanded = expand(node.value, self.environ)
            if not self._references_hold(expanded, node.place, written):
                return
        try:
            value = _value_of(leaf, node, expanded)
        except RefusedError as refused:
            self._refuse(leaf, node, expanded, refused, written)
            return
        source = self.problems.source
        origin = Origin(layer=self._layer_of(target), file=source, line=node.place.line, column=node.place.column)
        hidden = expanded is not None and expanded.hidden
        self._assign(Assignment(path=target, value=value, origin=origin, written=written, hidden=hidden), node.place)

    def _layer_of(self, target: Path) -> Layer:
        inline = target[0] == "workspaces" and target[2:] != ("path",)
        return Layer.WORKSPACE if inline else self.layer

    def _assign(self, assignment: Assignment, place: Place) -> None:
        before = self._set.setdefault(assignment.path, assignment)
        if before is not assignment:
            self.problems.add(
                place,
                f"{assignment.written} says the same as {before.written} (line {before.origin.line})",
                setting=assignment.written,
                hint="keep one of them",
            )
            return
        self.assignments.append(assignment)

    def _references_hold(self, expanded: Expanded, place: Place, written: str) -> bool:
        if expanded.broken:
            self.problems.add(place, f"{written}: {expanded.broken}", setting=written)
        for name in expanded.missing:
            self.problems.add(
                place,
                f"{written} refers to the variable {name}, which is not set",
                setting=written,
                hint=f"set it, or give a default: ${{{name}:-…}}",
            )
        return not expanded.broken and not expanded.missing

    def _refuse(self, leaf: Leaf, node: Node, expanded: Expanded | None, refused: RefusedError, written: str) -> None:
        facts: dict[str, Any] = {"setting": written, "hint": refused.hint}
        if expanded is not None and expanded.names:
            found = "what " + " and ".join(f"${{{name}}}" for name in expanded.names) + " holds"
            facts["hint"] = ""  # it might tell the value
        elif isinstance(node, Scalar):
            found = shown(node.value)
            facts["value"] = node.value
        else:
            found = _what(node)
        allowed = leaf.setting.kind.says + (", or null" if leaf.is_optional else "")
        self.problems.add(node.place, f"{written} must be {allowed}, not {found}", **facts)

    def _not_a_block(self, node: Node, written: str, hint: str) -> None:
        found = shown(node.value) if isinstance(node, Scalar) else _what(node)
        self.problems.add(node.place, f"{written} must be a block with keys, not {found}", setting=written, hint=hint)


def _identity(way: Way, name: str) -> str:
    """One word for all names of a setting."""
    return way.target[-1] if isinstance(way, Leaf) else name


def _value_of(leaf: Leaf, node: Node, expanded: Expanded | None) -> Any:
    kind = leaf.setting.kind
    if not isinstance(node, Scalar):
        raise RefusedError
    if node.value is None and leaf.is_optional:
        return None
    if expanded is None:
        return kind.read(node.value)
    return kind.read_text(expanded.text) if expanded.names else kind.read(expanded.text)


def _what(node: Node) -> str:
    match node:
        case Table():
            return "a block"
        case Items():
            return "a list"
        case Scalar():
            return shown(node.value)


def _keys_hint(block: Block) -> str:
    return "keys here: " + ", ".join(list(block.keys)[:KNOWN_MAX])
