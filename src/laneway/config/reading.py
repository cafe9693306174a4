"""From the nodes of a file to assignments: a key is known or refused, a value checked, and all problems are noted."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from laneway.config.agent_blocks import SESSION_LANE
from laneway.config.kinds import Kind, RefusedError, Several, Tree
from laneway.config.nodes import Entry, Items, Node, Place, Scalar, Table
from laneway.config.origins import UNREAD, Assignment, Layer, Origin, Written
from laneway.config.problems import Problems, closest, shown
from laneway.config.references import Expanded, Template, expand
from laneway.config.shape import STAR, Block, Each, Leaf, Path, Way, words
from laneway.errors import ConfigError
from laneway.kernel.registry import NAME_MAX, check_name
from laneway.options import SESSION_LANES

__all__ = ("Reading", "fill", "name_problem", "unknown_key")

KNOWN_MAX: Final = 12


def fill(target: Path, names: tuple[str, ...]) -> Path:
    """A target with the names of the file in the places of its stars."""
    waiting = iter(names)
    return tuple(next(waiting) if part == STAR else part for part in target)


def name_problem(kind: str, name: str) -> str:
    """What is wrong with a name that a file gives to a lane, a channel or a model; nothing if it is good."""
    if kind == SESSION_LANE:
        meant = closest(name, SESSION_LANES)
        hint = f"did you mean {meant}?" if meant else ", ".join(SESSION_LANES)
        return "" if name in SESSION_LANES else f"there is no lane {shown(name)} in a session ({hint})"
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


class _NotedError(Exception):
    """A value is wrong, and what is wrong with it was noted already."""


@dataclass(slots=True)
class _Taken:
    """The texts of one value with their references followed."""

    texts: dict[Scalar, Expanded] = field(default_factory=dict)

    @property
    def hidden(self) -> bool:
        """Whether a variable was read."""
        return any(each.hidden for each in self.texts.values())

    def read(self, node: Node, kind: Kind) -> Any:
        """A value of a kind; what came from a variable is text, whatever the kind."""
        if not isinstance(node, Scalar):
            raise RefusedError
        found = self.texts.get(node)
        if found is None:
            return kind.read(node.value)
        return kind.read_text(found.text) if found.names else kind.read(found.text)


@dataclass(slots=True, kw_only=True)
class Reading:
    """Reads one file. `assignments` are what it sets, in its order.

    `blocks` says where each block of the settings began, `written` which of them stand there with keys or as an empty
    block, `named` which lanes, channels and workspaces there are. `refused` are settings that stand there and cannot be
    used, or are misspelled: nobody should say that they are missing. With a `folder`, that of the file, relative paths
    are meant from there.
    """

    layer: Layer
    environ: Mapping[str, str]
    problems: Problems
    folder: str = ""
    assignments: list[Assignment] = field(default_factory=list)
    blocks: dict[Path, tuple[str, Place]] = field(default_factory=dict)
    written: dict[Path, Written] = field(default_factory=dict)
    named: list[Path] = field(default_factory=list)
    refused: dict[Path, Assignment] = field(default_factory=dict)
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
        if isinstance(entry.node, Table):
            origin = self._origin(home, entry.place)
            self.written.setdefault(home, Written(origin=origin, keys=len(entry.node.entries)))
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
                self._note_misspelled(block, entry, names, path)
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
                self._look_into(each, entry, (*names, entry.key), path)
            elif self._is_first(entry, seen, entry.key, path):
                if each.home:
                    self._name((*fill(each.home, names), entry.key), entry)
                self._way(each.way, entry, (*names, entry.key), path)

    def _look_into(self, each: Each, entry: Entry, names: tuple[str, ...], written: str) -> None:
        """Say what is wrong below a name that cannot be one; nothing of it is taken."""
        aside = Reading(layer=self.layer, environ=self.environ, problems=self.problems, folder=self.folder)
        aside._way(each.way, entry, names, written)

    def _note_misspelled(self, block: Block, entry: Entry, names: tuple[str, ...], written: str) -> None:
        """A key that there is not may be meant as one that there is."""
        way = block.keys.get(block.find(closest(entry.key, words(block))) or "")
        if isinstance(way, Leaf):
            self._note_refused(fill(way.target, names), entry.place, written)

    def _note_refused(self, target: Path, place: Place, written: str) -> None:
        origin = self._origin(target, place)
        self.refused.setdefault(target, Assignment(path=target, value=UNREAD, origin=origin, written=written))

    def _name(self, home: Path, entry: Entry) -> None:
        self.named.append(home)
        if isinstance(entry.node, Table):
            self.written.setdefault(home, Written(origin=self._origin(home, entry.place), keys=len(entry.node.entries)))

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
        taken = _Taken()
        if not self._references_hold(node, taken, written):
            self._note_refused(target, node.place, written)
            return
        try:
            value = self._value_of(leaf, node, taken, written)
        except (RefusedError, _NotedError) as refused:
            if isinstance(refused, RefusedError):
                self._refuse(leaf, node, taken, refused, written)
            self._note_refused(target, node.place, written)
            return
        if self.folder and leaf.setting.rooted is not None:
            value = leaf.setting.rooted(value, self.folder)
        origin = self._origin(target, node.place)
        hidden = taken.hidden or leaf.setting.hides(value)
        self._assign(Assignment(path=target, value=value, origin=origin, written=written, hidden=hidden), node.place)

    def _origin(self, target: Path, place: Place) -> Origin:
        layer, source = self._layer_of(target), self.problems.source
        return Origin(layer=layer, file=source, line=place.line, column=place.column)

    def _value_of(self, leaf: Leaf, node: Node, taken: _Taken, written: str) -> Any:
        kind = leaf.setting.kind
        match node:
            case Scalar(value=None) if leaf.is_optional:
                return None
            case Scalar():
                return taken.read(node, kind)
            case Items() if isinstance(kind, Several) and len(node.nodes) <= kind.most:
                return self._several(leaf, kind, node, taken, written)
            case Table() if isinstance(kind, Tree):
                return self._plain(node, taken, written)
            case _:
                raise RefusedError

    def _several(self, leaf: Leaf, kind: Several, node: Items, taken: _Taken, written: str) -> tuple[Any, ...]:
        """The items of a list; each wrong one is told at its own place."""
        values, wrong = [], False
        for number, item in enumerate(node.nodes):
            try:
                values.append(taken.read(item, kind.item))
            except RefusedError as refused:
                setting = dataclasses.replace(leaf.setting, kind=kind.item)
                one = dataclasses.replace(leaf, setting=setting, is_optional=False)
                self._refuse(one, item, taken, refused, f"{written}[{number}]")
                wrong = True
        if wrong:
            raise _NotedError
        return tuple(values)

    def _plain(self, node: Node, taken: _Taken, written: str) -> Any:
        """A tree of plain values, with the references put in."""
        match node:
            case Scalar():
                found = taken.texts.get(node)
                return node.value if found is None else found.text
            case Items():
                return [self._plain(each, taken, written) for each in node.nodes]
            case Table():
                seen: dict[str, Entry] = {}
                kept = [e for e in node.entries if self._is_first(e, seen, e.key, f"{written}.{e.key}")]
                return {each.key: self._plain(each.node, taken, f"{written}.{each.key}") for each in kept}

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

    def _references_hold(self, node: Node, taken: _Taken, written: str) -> bool:
        """Follow the references in a value, in lists and blocks too; note each that leads nowhere."""
        match node:
            case Scalar(value=str() | Template() as text):
                expanded = taken.texts[node] = expand(text, self.environ)
                return self._reference_holds(expanded, node, written)
            case Scalar():
                return True
            case Items():
                inside = [(each, written) for each in node.nodes]
            case Table():
                inside = [(each.node, f"{written}.{each.key}") for each in node.entries]
        wrong = [each for each, path in inside if not self._references_hold(each, taken, path)]
        return not wrong

    def _reference_holds(self, expanded: Expanded, node: Scalar, written: str) -> bool:
        if expanded.broken:
            self.problems.add(node.place, f"{written}: {expanded.broken}", setting=written)
        for name in expanded.missing:
            default = f'env("{name}", "…")' if isinstance(node.value, Template) else f"${{{name}:-…}}"
            self.problems.add(
                node.place,
                f"{written} refers to the variable {name}, which is not set",
                setting=written,
                hint=f"set it, or give a default: {default}",
            )
        return not expanded.broken and not expanded.missing

    def _refuse(self, leaf: Leaf, node: Node, taken: _Taken, refused: RefusedError, written: str) -> None:
        facts: dict[str, Any] = {"setting": written, "hint": refused.hint}
        expanded = taken.texts.get(node) if isinstance(node, Scalar) else None
        if expanded is not None and expanded.names:
            found = "what " + " and ".join(f"${{{name}}}" for name in expanded.names) + " holds"
            facts["hint"] = ""  # it might tell the value
        elif not isinstance(node, Scalar):
            found = _what(node)
        elif leaf.setting.secret is not None and node.value is not None:
            found = "what stands there"
        else:
            found = shown(node.value)
            facts["value"] = node.value
        allowed = leaf.setting.kind.says + (", or null" if leaf.is_optional else "")
        self.problems.add(node.place, f"{written} must be {allowed}, not {found}", **facts)

    def _not_a_block(self, node: Node, written: str, hint: str) -> None:
        # A key that was written without its block is text here, and must not be shown.
        found = "text" if isinstance(node, Scalar) and isinstance(node.value, str) else _what(node)
        self.problems.add(node.place, f"{written} must be a block with keys, not {found}", setting=written, hint=hint)


def _identity(way: Way, name: str) -> str:
    """One word for all names of a setting."""
    return way.target[-1] if isinstance(way, Leaf) else name


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
