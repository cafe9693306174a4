"""From a path to nodes: size, encoding, format. Whatever is wrong with a file becomes a problem with its place."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from laneway.config.formats.hcl import read_hcl
from laneway.config.formats.json5 import read_json5
from laneway.config.formats.toml import read_toml
from laneway.config.formats.yaml import read_yaml
from laneway.config.nodes import FILE_BYTES_MAX, Node, Place, UnreadableError
from laneway.config.problems import Problems

__all__ = ("FORMATS", "WORKSPACE_FILE", "WORKSPACE_FILES", "find_workspace_file", "parse_text", "read_file")

FORMATS: Final[Mapping[str, Callable[[str], Node | None]]] = {
    ".yaml": read_yaml,
    ".yml": read_yaml,
    ".json": read_json5,
    ".json5": read_json5,
    ".jsonc": read_json5,
    ".toml": read_toml,
    ".hcl": read_hcl,
    ".acl": read_hcl,
}
"""The endings of files and who reads them. JSON is read as JSON5: comments and trailing commas harm nobody."""

WORKSPACE_FILE: Final = "agent"
WORKSPACE_FILES: Final = tuple(WORKSPACE_FILE + ending for ending in FORMATS)
"""The name of a workspace's own file, before its ending."""

CONTROL: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
UTF16: Final = (b"\xff\xfe", b"\xfe\xff")


def read_file(path: str | os.PathLike[str], problems: Problems) -> Node | None:
    """The nodes of a file; None for an empty one and for one with problems."""
    raw = _bytes_of(path, problems)
    if raw is None:
        return None
    text = _text_of(raw, problems)
    return None if text is None else parse_text(text, Path(path).suffix, problems)


def parse_text(text: str, ending: str, problems: Problems) -> Node | None:
    """The nodes of a text in the format of an ending."""
    reader = FORMATS.get(ending.lower())
    if reader is None:
        problems.refuse(f"there is no format for {ending or 'a file without an ending'}", hint=", ".join(FORMATS))
        return None
    if len(text) > FILE_BYTES_MAX:
        problems.refuse(f"the text is larger than {FILE_BYTES_MAX // 1024:,} KiB")
        return None
    if control := CONTROL.search(text):
        problems.add(_place(text, control.start()), "a control character", hint="is this a text file?")
        return None
    if not text.strip():
        return None
    try:
        return reader(text)
    except UnreadableError as error:
        problems.add(error.place, error.message, hint=error.hint)
        return None


def find_workspace_file(folder: str | os.PathLike[str], problems: Problems) -> Path | None:
    """The file of a workspace, `agent.yaml` or with another ending; None if it has none."""
    try:
        if not Path(folder).is_dir():
            problems.refuse("there is no such folder", hint="a workspace is a folder")
            return None
        found = [path for name in WORKSPACE_FILES if (path := Path(folder, name)).is_file()]
    except (OSError, ValueError) as error:
        problems.refuse(f"the folder cannot be read: {_reason(error)}")
        return None
    if len(found) > 1:
        problems.refuse(
            "there is more than one file for this workspace: " + " and ".join(path.name for path in found),
            hint="keep one of them",
        )
        return None
    return found[0] if found else None


def _bytes_of(path: str | os.PathLike[str], problems: Problems) -> bytes | None:
    try:
        if Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir():
            problems.refuse("it is not a plain file")
            return None
        with Path(path).open("rb") as file:
            raw = file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        problems.refuse("there is no such file")
    except IsADirectoryError:
        problems.refuse("this is a folder, not a file")
    except (OSError, ValueError) as error:
        problems.refuse(f"the file cannot be read: {_reason(error)}")
    else:
        if len(raw) <= FILE_BYTES_MAX:
            return raw
        problems.refuse(f"the file is larger than {FILE_BYTES_MAX // 1024:,} KiB")
    return None


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _text_of(raw: bytes, problems: Problems) -> str | None:
    if raw.startswith(UTF16):
        problems.add(Place(1, 1), "the file is UTF-16", hint="save it as UTF-8")
        return None
    try:
        return raw.decode("utf-8-sig")  # some editors begin a file with a mark of its encoding; it says nothing
    except UnicodeDecodeError as error:
        good = raw[: error.start].decode("utf-8-sig")
        problems.add(_place(good, len(good)), "the file is not UTF-8 text", hint="save it as UTF-8")
        return None


def _place(text: str, at: int) -> Place:
    before = text[:at]
    return Place(before.count("\n") + 1, at - before.rfind("\n"))
