"""The layers put on top of each other: what is in force, and where each value came from.

The strongest last: defaults, the main file, the workspace (its block in the main file, then its own file), the
environment, the command line. Every layer is read before anything is refused, so that one error has all problems.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from laneway.config.files import find_workspace_file, parse_text, read_file
from laneway.config.nodes import Node
from laneway.config.origins import Assignment, Layer, Origin, Written
from laneway.config.outside import read_environment, read_overrides
from laneway.config.problems import InvalidConfigError, Problem, Problems, closest
from laneway.config.reading import Reading
from laneway.config.settings import QUEUE_SHAPE, QUEUE_SHAPE_DEFAULTS, TOOL_QUEUE, Settings
from laneway.config.shape import Declared, DeclaredSub, root, settings_of, subs_of
from laneway.config.shape import Path as Keys
from laneway.config.together import missing_folders, together

__all__ = ("Effective", "Value", "check", "load", "load_text")

AnyPath = str | os.PathLike[str]
OTHER_SHAPE = ("messages", "agents")


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One setting in force. A hidden value came from a variable that a file refers to: do not show it."""

    path: Keys
    value: Any
    origin: Origin
    hidden: bool = False

    def __repr__(self) -> str:
        value = "(hidden)" if self.hidden else repr(self.value)
        return f"Value({self.name} = {value}, from {self.origin})"

    @property
    def name(self) -> str:
        """The path as one writes it."""
        return ".".join(f'"{part}"' if "." in part or not part else part for part in self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effective:
    """The settings in force and the origin of every one of them, in the order of the declaration.

    `written` has the blocks that files have, the empty ones too, without those of other workspaces.
    """

    settings: Settings
    values: tuple[Value, ...]
    files: tuple[str, ...] = ()
    written: Mapping[Keys, Written] = field(default_factory=dict)

    def origin(self, name: str) -> Origin:
        """Where a setting came from, by its path: `queue.mode`."""
        return self.value(name).origin

    def value(self, name: str) -> Value:
        """A setting by its path."""
        found = next((value for value in self.values if value.name == name), None)
        if found is None:
            names = [value.name for value in self.values]
            raise KeyError(f"{name} (did you mean {closest(name, names)}?)")
        return found


@dataclass(slots=True)
class _Layers:
    """What was read so far, weakest first."""

    environ: Mapping[str, str]
    assignments: list[Assignment] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    named: list[Keys] = field(default_factory=list)
    written: dict[Keys, Written] = field(default_factory=dict)
    refused: dict[Keys, Assignment] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    shape: Origin | None = None
    is_shape_known: bool = False

    def read(self, path: AnyPath, layer: Layer) -> Reading:
        """Take in a file."""
        problems = Problems(os.fspath(path))
        self.files.append(problems.source)
        folder = os.path.dirname(os.path.abspath(problems.source))
        return self.take(read_file(path, problems), layer, problems, folder)

    def take(self, node: Node | None, layer: Layer, problems: Problems, folder: str = "") -> Reading:
        """Take in what was read, and what was wrong with it."""
        reading = Reading(layer=layer, environ=self.environ, problems=problems, folder=folder)
        reading.read(node, root(in_workspace=layer is Layer.WORKSPACE))
        self.problems += problems.found
        self.assignments += reading.assignments
        self.named += reading.named
        self.written |= reading.written
        self.refused |= reading.refused
        return reading

    def note_shape(self, reading: Reading, home: Keys) -> None:
        """The first file that shows a shape decides; later ones only override values."""
        if self.is_shape_known:
            return
        written, place = reading.blocks.get(home, ("", None))
        if place is not None and written == ".".join(home) and not _is_for_tools(reading, home):
            source = reading.problems.source
            self.shape = Origin(layer=Layer.DEFAULT, note=f"for {written}: at {source}:{place.line}")
        others = (*written.split(".")[:1], *(each.written.split(".")[0] for each in reading.assignments))
        self.is_shape_known = self.shape is not None or any(each in OTHER_SHAPE for each in others)


def _is_for_tools(reading: Reading, home: Keys) -> bool:
    """Whether `queue` says something, and all of it is about the lanes of tools."""
    head, depth = ".".join(home) + ".", len(home)
    said = [each.path for each in reading.assignments if each.written.startswith(head)]
    said += [path for path in reading.written if path[:depth] == home and len(path) > depth]
    return bool(said) and all(path[:depth] == home and path[depth] in TOOL_QUEUE for path in said)


def load(
    config: AnyPath | None = None,
    *,
    environ: Mapping[str, str],
    workspace: AnyPath | None = None,
    overrides: Sequence[str] = (),
) -> Effective:
    """Read everything that configures a process, or one workspace of it.

    `workspace` is a folder, or the name of one that the main file lists. `environ` is the environment, `overrides` are
    `path=value` as on the command line. Raises `InvalidConfigError` with all problems; nothing is half in force.
    """
    layers = _Layers(environ)
    main = None if config is None else layers.read(config, Layer.FILE)
    if main is not None:
        layers.note_shape(main, QUEUE_SHAPE)
    if workspace is not None:
        _read_workspace(layers, main, workspace)
    return _in_force(layers, overrides)


def load_text(text: str, ending: str, *, source: str, environ: Mapping[str, str]) -> Effective:
    """The same for the text of a main file in the format of an ending; `source` is what errors call it."""
    layers = _Layers(environ)
    problems = Problems(source)
    main = layers.take(parse_text(text, ending, problems), Layer.FILE, problems)
    layers.note_shape(main, QUEUE_SHAPE)
    return _in_force(layers, ())


def check(path: AnyPath, *, environ: Mapping[str, str]) -> tuple[Problem, ...]:
    """Everything that is wrong with one file, in the order of its lines; folders that it names have to be there."""
    layers = _Layers(environ)
    layers.read(path, Layer.FILE)
    found = _by_path(layers.assignments)
    problems = [*layers.problems, *together(found, layers.written, layers.refused), *missing_folders(found)]
    return tuple(sorted(problems, key=lambda problem: (problem.line, problem.column)))


def _in_force(layers: _Layers, overrides: Sequence[str]) -> Effective:
    from_environ, problems = read_environment(layers.environ, [path[-1] for path in layers.named])
    from_options, more_problems = read_overrides(overrides)
    layers.problems += [*problems, *more_problems]
    stronger = [*from_environ, *from_options]
    if not problems and not more_problems:  # else what is said to be missing may have been meant by those
        layers.problems += together(_by_path((*layers.assignments, *stronger)), layers.written, layers.refused)
    if layers.problems:
        raise InvalidConfigError(layers.problems)
    return _merged(layers, stronger)


def _by_path(assignments: Iterable[Assignment]) -> dict[Keys, Assignment]:
    return {each.path: each for each in assignments}


def _read_workspace(layers: _Layers, main: Reading | None, workspace: AnyPath) -> None:
    """Find the workspace by its name or its folder; then its block in the main file, then its own file."""
    wanted = os.fspath(workspace)
    name = None if main is None else _name_of(main, wanted)
    folder = wanted
    if main is not None and name is not None:
        home = ("workspaces", name)
        layers.note_shape(main, (*home, *QUEUE_SHAPE))
        inline = [replace(each, path=each.path[2:]) for each in main.assignments if each.path[:2] == home]
        layers.assignments += [each for each in inline if each.path != ("path",)]
        layers.named += [each[2:] for each in main.named if each[:2] == home and len(each) > len(home)]
        layers.written |= {path[2:]: each for path, each in main.written.items() if path[:2] == home != path}
        layers.refused |= {path[2:]: each for path, each in main.refused.items() if path[:2] == home != path}
        folder = next((_folder(main, each.value) for each in inline if each.path == ("path",)), "")
    if not folder:
        return
    problems = Problems(folder)
    file = find_workspace_file(folder, problems)
    layers.problems += problems.found
    if file is not None:
        layers.note_shape(layers.read(file, Layer.WORKSPACE), QUEUE_SHAPE)


def _name_of(main: Reading, wanted: str) -> str | None:
    """The name under which the main file lists a workspace that is wanted by its name or by its folder."""
    if ("workspaces", wanted) in main.named:
        return wanted
    paths = [each for each in main.assignments if each.path[0] == "workspaces" and each.path[2:] == ("path",)]
    return next((each.path[1] for each in paths if _is_same(_folder(main, each.value), wanted)), None)


def _folder(main: Reading, path: str) -> str:
    return str(Path(main.problems.source).parent / path) if path else ""


def _is_same(folder: str, wanted: str) -> bool:
    try:
        return bool(folder) and Path(folder).resolve() == Path(wanted).resolve()
    except (OSError, ValueError, RuntimeError):
        return False


def _merged(layers: _Layers, stronger: Iterable[Assignment]) -> Effective:
    found: dict[Keys, Value] = {}
    for each in _defaults(layers, (*layers.assignments, *stronger)):
        found[each.path] = each
    for assignment in (*layers.assignments, *stronger):
        found[assignment.path] = Value(
            path=assignment.path, value=assignment.value, origin=assignment.origin, hidden=assignment.hidden
        )
    builder = _Builder(found=found, named=layers.named)
    settings = builder.build(Settings, ())
    values = tuple(found[path] for path in dict.fromkeys((*builder.order, *found)))
    return Effective(settings=settings, values=values, files=tuple(layers.files), written=layers.written)


def _defaults(layers: _Layers, assignments: Sequence[Assignment]) -> Iterator[Value]:
    """Defaults that depend on what was said elsewhere; `_build` knows the others."""
    if layers.shape is not None:
        for path, value in QUEUE_SHAPE_DEFAULTS.items():
            yield Value(path=path, value=value, origin=layers.shape)
    spawn = [each for each in assignments if each.path == ("spawn", "max_concurrent")]
    if spawn and spawn[-1].value is not None:
        origin = Origin(layer=Layer.DEFAULT, note=f"as spawn.max_concurrent: {spawn[-1].origin.where}")
        path = ("lanes", "subagent", "concurrency")
        yield Value(path=path, value=spawn[-1].value, origin=origin, hidden=spawn[-1].hidden)


@dataclass(slots=True, kw_only=True)
class _Builder:
    """Makes the blocks of the settings from flat values, and puts in the defaults that nobody set."""

    found: dict[Keys, Value]
    named: Sequence[Keys]
    order: list[Keys] = field(default_factory=list)

    def build(self, block: type[Any], prefix: Keys, usual: Any = None) -> Any:
        """A block; `usual` has its defaults if they are not those of the declaration."""
        fields = {
            each.name: self._each(each, prefix)
            if each.setting.names
            else self._value(each, prefix, each.default if usual is None else getattr(usual, each.name))
            for each in settings_of(block)
        }
        for inner in subs_of(block):
            path = (*prefix, inner.name)
            fields[inner.name] = self._named(inner, path) if inner.sub.names else self.build(inner.block, path)
        return block(**fields)

    def _value(self, declared: Declared, prefix: Keys, default: Any) -> Any:
        path = (*prefix, declared.name)
        self.order.append(path)
        if path not in self.found:
            note = f"({declared.setting.unset})" if default is None else ""
            self.found[path] = Value(path=path, value=default, origin=Origin(layer=Layer.DEFAULT, note=note))
        return self.found[path].value

    def _each(self, declared: Declared, prefix: Keys) -> dict[str, Any]:
        home = (*prefix, declared.name)
        paths = [path for path in self.found if path[:-1] == home]
        self.order += paths
        return {path[-1]: self.found[path].value for path in paths}

    def _named(self, inner: DeclaredSub, path: Keys) -> dict[str, Any]:
        usual = inner.make()
        depth = len(path)
        given = [each[depth] for each in (*self.named, *self.found) if each[:depth] == path and len(each) > depth]
        names = dict.fromkeys((*usual, *given))
        return {name: self.build(inner.block, (*path, name), usual.get(name)) for name in names}
