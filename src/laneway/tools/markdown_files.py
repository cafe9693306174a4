"""Markdown files with front matter, as skills and definitions of agents are written: read from folders.

```text
---
name: release
description: How a release is made.
---
The text below is the body.
```

No file can make reading a folder fail: one that is broken is left out, with a line in the log and a `FileProblem` that
says why. Only a folder that cannot be listed is an error, because then the path is wrong. Links may not lead out of
their folder, and whatever is not a plain file is not opened.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import logging
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from laneway.errors import ConfigError, text_of
from laneway.kernel.permissions import check_policy
from laneway.kernel.texts import clip
from laneway.policies import PermissionPolicy
from laneway.tools.outputs import clean

if TYPE_CHECKING:
    from laneway.config.nodes import Node

__all__ = (
    "FILES_MAX",
    "FILE_BYTES_MAX",
    "FileProblem",
    "FileRefusedError",
    "Page",
    "Shelf",
    "read_folders",
)

_log = logging.getLogger("laneway")

FILE_BYTES_MAX: Final = 1_048_576
FILES_MAX: Final = 1_000
"""How many are read from all folders together."""
NAMES_MAX: Final = 10_000
"""How many names of one folder are looked at."""
HEAD_MAX: Final = 16_384
RULES_MAX: Final = 1_000
DESCRIPTION_MAX: Final = 1_024
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}")
FENCE: Final = "---"
NOT_MEANT: Final = frozenset({"readme.md", "license.md", "changelog.md"})
"""Files that people put beside the others, and that nobody means."""


class FileRefusedError(Exception):
    """Why a file is left out."""


class NoFrontMatterError(FileRefusedError):
    """It is a file like any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileProblem:
    """A file that was left out, and why."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


TOOL_FIELDS: Final = ("allowed-tools", "tools", "allowedtools", "tool")
"""How people write the field that names the tools."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A file that could be read: what its front matter says, and the text below. The methods refuse what is wrong."""

    path: str
    fields: Mapping[str, object]
    body: str

    def name(self) -> str:
        """Its name; it must have one."""
        name = self._text("name")
        if not name:
            raise FileRefusedError("it has no name")
        if not NAME.fullmatch(name):
            raise FileRefusedError(f"{name!r:.100} cannot be a name: 1 to 64 of A-Z, a-z, 0-9, _ - . : are allowed")
        return name

    def description(self) -> str:
        """What it is for, on one line; empty if it does not say."""
        return clip(" ".join(clean(self._text("description")).split()), DESCRIPTION_MAX)

    def word(self, key: str) -> str | None:
        """A text that may be left out."""
        return self._text(key) or None

    def flag(self, *keys: str) -> bool:
        """True or false; false if it does not say."""
        value = self._value(*keys)
        if value is not None and not isinstance(value, bool):
            raise FileRefusedError(f"{keys[0]} is true or false, not {value!r:.100}")
        return bool(value)

    def count(self, key: str, *, most: int) -> int | None:
        """A whole number from 1 on that may be left out."""
        value = self._value(key)
        if value is not None and (type(value) is not int or not 1 <= value <= most):
            raise FileRefusedError(f"{key} is a whole number from 1 to {most:,}, not {value!r:.100}")
        return value if isinstance(value, int) else None

    def rules(self, *keys: str) -> tuple[str, ...] | None:
        """Rules as permissions have them: a list, or a text with commas or blanks between. None: it does not say."""
        if not any(key in self.fields for key in keys):
            self._refuse_near(keys[0])
            return None
        value = self._value(*keys)
        if isinstance(value, str):
            found = tuple(_rules_in(value))
        elif isinstance(value, tuple) and all(isinstance(each, str) for each in value):
            found = tuple(each.strip() for each in value)
        else:
            raise FileRefusedError(f"{keys[0]} is a list of tools, or their names with commas between")
        if len(found) > RULES_MAX:
            raise FileRefusedError(f"{keys[0]} has {len(found):,} rules, at most {RULES_MAX:,} are read")
        try:
            check_policy(PermissionPolicy(allow=found))
        except ConfigError as error:
            raise FileRefusedError(f"{keys[0]}: {error}") from None
        return tuple(dict.fromkeys(found))

    def _refuse_near(self, key: str) -> None:
        """A field that was meant to narrow the tools must not be overlooked: that would allow all."""
        for given in map(str, self.fields):
            word = given.casefold().replace("_", "-")
            if word in TOOL_FIELDS or difflib.get_close_matches(word, TOOL_FIELDS, n=1, cutoff=0.8):
                raise FileRefusedError(f"{given!r:.100} is no field of it: did you mean {key!r}?")

    def _text(self, key: str) -> str:
        value = self._value(key)
        if value is not None and not isinstance(value, str):
            raise FileRefusedError(f"{key} is text, not {value!r:.100}")
        return (value or "").strip()

    def _value(self, *keys: str) -> object:
        """The value under one of these spellings."""
        found = [key for key in keys if key in self.fields]
        if len(found) > 1:
            raise FileRefusedError(f"{' and '.join(found)} are the same")
        return self.fields[found[0]] if found else None


class Named(Protocol):
    """Something that is known by its name."""

    @property
    def name(self) -> str:
        """Its name."""


T = TypeVar("T", bound=Named)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelf(Generic[T]):
    """What some folders hold, by name, in the order of the folders and of their file names; and what was left out."""

    entries: Mapping[str, T] = field(default_factory=dict)
    problems: tuple[FileProblem, ...] = ()


def read_folders(
    folders: Sequence[str], make: Callable[[Page], T], *, setting: str, what: str, nested: str = ""
) -> Shelf[T]:
    """Everything that `make` makes of the files `<name>.md` and, with `nested`, `<name>/<nested>` in these folders.

    `make` raises `FileRefusedError` for a page that it cannot use. Raises `ConfigError` for a folder that is not there.
    """
    entries: dict[str, T] = {}
    taken: dict[str, str] = {}  # by their names without case: whose they are
    problems: list[FileProblem] = []

    def leave_out(path: str, reason: str) -> None:
        problem = FileProblem(path=text_of(path), reason=text_of(reason))
        _log.warning("the %s %s is left out: %s", what, problem.path, problem.reason)
        problems.append(problem)

    roots: dict[str, str] = {}
    for each in folders:
        roots.setdefault(os.path.realpath(os.path.expanduser(each)), each)
    for root, given in roots.items():
        # The folder of one skill itself, in which further files belong to the skill.
        is_one = bool(nested) and os.path.lexists(os.path.join(root, nested))
        for path in _paths(root, nested, setting, given=given):
            if len(entries) >= FILES_MAX:
                leave_out(path, f"there are {FILES_MAX:,} already; nothing more is read from this folder")
                break
            try:
                made = make(_page(path, root, setting))
                known = taken.get(made.name.casefold())
                if known is not None:
                    raise FileRefusedError(f"there is one of the name {made.name!r} already, in {known}")  # noqa: TRY301
            except NoFrontMatterError as error:
                if not is_one or os.path.basename(path) == nested:
                    leave_out(path, str(error))
                continue
            except FileRefusedError as error:
                leave_out(path, str(error))
                continue
            taken[made.name.casefold()] = path
            entries[made.name] = made
    return Shelf(entries=entries, problems=tuple(problems))


def _paths(root: str, nested: str, setting: str, *, given: str) -> Iterator[str]:
    """The files of a folder that are meant, in alphabetical order."""
    try:
        names = sorted(os.listdir(root))
    except OSError as error:
        text = f"{setting}: the folder {text_of(root)!r} cannot be read: {error.strerror}"
        hint = "make it, or take it out"
        if not os.path.isabs(os.path.expanduser(given)):
            hint += f"; {text_of(given)!r} is meant from the folder of the process, in a file from that of the file"
        raise ConfigError(text, setting=setting, value=root, hint=hint) from None
    for name in names[:NAMES_MAX]:
        path = os.path.join(root, name)
        if name.startswith(".") or name.casefold() in NOT_MEANT:
            continue
        if os.path.isdir(path):
            inner = os.path.join(path, nested)
            if nested and os.path.lexists(inner):
                yield inner
        elif name.casefold().endswith(".md"):
            yield path


# ---- one file ----


def _page(path: str, root: str, setting: str) -> Page:
    text = _text_of_file(path, root)
    head, body = _split(text)
    return Page(path=path, fields=_fields(head, setting), body=clean(body).strip())


def _text_of_file(path: str, root: str) -> str:
    real = os.path.realpath(path)
    if os.path.commonpath((real, root)) != root:
        raise FileRefusedError("it is a link that leads out of its folder")
    try:
        # Without O_NONBLOCK a pipe of that name would be waited for.
        handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise FileRefusedError("it is not a plain file")
            with open(handle, "rb", closefd=False) as file:
                content = file.read(FILE_BYTES_MAX + 1)
        finally:
            os.close(handle)
    except OSError as error:
        raise FileRefusedError(f"it cannot be read: {error.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise FileRefusedError(f"it has more than {FILE_BYTES_MAX:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileRefusedError(f"it is not UTF-8 (at byte {error.start:,})") from None


def _split(text: str) -> tuple[str, str]:
    """The front matter and the body."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if lines[0].rstrip() != FENCE:
        raise NoFrontMatterError("it does not begin with front matter: its first line must be ---")
    size = 0
    for number, line in enumerate(lines[1:], 1):
        if line.rstrip() == FENCE:
            return "\n".join(lines[1:number]), "\n".join(lines[number + 1 :])
        size += len(line) + 1
        if size > HEAD_MAX:
            raise FileRefusedError(f"its front matter has more than {HEAD_MAX:,} characters")
    raise FileRefusedError("its front matter has no end: a second line --- is missing")


@functools.lru_cache(maxsize=1024)  # every session reads its folders; parsing costs more than reading
def _fields(head: str, setting: str) -> Mapping[str, object]:
    """What front matter says; never changed by anybody."""
    from laneway.config.formats.yaml import read_yaml
    from laneway.config.nodes import Table, UnreadableError

    if importlib.util.find_spec("yaml") is None:
        hint = "install laneway with the extra `agent`"
        raise ConfigError("front matter is YAML, and PyYAML is not installed", setting=setting, hint=hint)
    try:
        node = read_yaml(head)
    except UnreadableError as error:
        # The line before the front matter counts, too.
        raise FileRefusedError(f"line {error.place.line + 1}: {error.message}") from None
    if not isinstance(node, Table):
        raise FileRefusedError("its front matter has no fields")
    fields: dict[str, object] = {}
    for entry in node.entries:
        if entry.key in fields and not entry.merged:
            raise FileRefusedError(f"line {entry.place.line + 1}: {entry.key!r:.100} stands there twice")
        fields.setdefault(entry.key, _plain(entry.node))
    return MappingProxyType(fields)


def _plain(node: Node) -> object:
    """The value of a node; lists as tuples."""
    from laneway.config.nodes import Items, Scalar

    if isinstance(node, Scalar):
        return node.value
    if isinstance(node, Items):
        return tuple(_plain(each) for each in node.nodes)
    return {entry.key: _plain(entry.node) for entry in node.entries}


def _rules_in(text: str) -> Iterator[str]:
    """The rules in a text: commas and white space are between them, unless they stand in brackets."""
    depth = 0
    rule = ""
    for char in text:
        if depth == 0 and (char == "," or char.isspace()):
            if rule:
                yield rule
            rule = ""
            continue
        depth += (char == "(") - (char == ")")
        rule += char
    if rule:
        yield rule
