"""What a docstring says about a function and its parameters, in the three styles people write.

Google (`Args:`), NumPy (`Parameters` underlined) and Sphinx (`:param name:`). Sections that tell a caller in Python
something (`Returns`, `Raises` …) are not for a model and are left out.
"""

from __future__ import annotations

import inspect
import re
from typing import Final, NamedTuple

__all__ = ("Described", "describe_function")

_ARGUMENTS: Final = frozenset({"args", "arguments", "parameters", "params", "keyword args", "keyword arguments"})
_OTHERS: Final = frozenset({"returns", "return", "yields", "raises", "see also", "attributes"})
_GOOGLE_ENTRY: Final = re.compile(r"(\*{0,2}\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ENTRY: Final = re.compile(r"(\*{0,2}\w+)\s*(?::.*)?$")
_SPHINX_ENTRY: Final = re.compile(r":(param|parameter|arg|argument)\s+(?:[^:]*?\s)?(\*{0,2}\w+)\s*:\s*(.*)")
_SPHINX_OTHER: Final = re.compile(r":(returns?|rtype|raises?|type|yields?)\b.*:")


class Described(NamedTuple):
    """The text of a function and that of each parameter."""

    text: str
    parameters: dict[str, str]


def describe_function(doc: str | None) -> Described:
    """Take a docstring apart; never fails, at worst everything is the text."""
    lines = inspect.cleandoc(doc or "").splitlines()
    kept: list[str] = []
    parameters: dict[str, str] = {}
    at = 0
    while at < len(lines):
        title, body_at = _title(lines, at)
        if title is None:
            at = _sphinx(lines, at, kept, parameters)
            continue
        underlined = body_at == at + 2
        body, at = _body(lines, body_at, underlined=underlined)
        if title in _ARGUMENTS:
            parameters.update(_entries(body, underlined=underlined))
    return Described("\n".join(kept).strip(), parameters)


def _title(lines: list[str], at: int) -> tuple[str | None, int]:
    """The section that begins here, and where its body does."""
    line = lines[at].rstrip()
    word = line.rstrip(":").casefold()
    if word not in _ARGUMENTS and word not in _OTHERS:
        return None, at
    if line.endswith(":"):
        return word, at + 1
    if at + 1 < len(lines) and len(lines[at + 1].strip()) >= 3 and set(lines[at + 1].strip()) == {"-"}:
        return word, at + 2
    return None, at


def _body(lines: list[str], at: int, *, underlined: bool) -> tuple[list[str], int]:
    """The lines of a section: indented ones; under a NumPy title, all up to the next title."""
    first = at
    while at < len(lines):
        line = lines[at]
        if underlined:
            if _title(lines, at)[0] is not None:
                break
        elif line and not line[0].isspace():
            break
        at += 1
    return lines[first:at], at


def _entries(body: list[str], *, underlined: bool) -> dict[str, str]:
    """The parameters of a section; a line that is indented deeper than its entry goes on with it."""
    entry = _NUMPY_ENTRY if underlined else _GOOGLE_ENTRY
    filled = [line for line in body if line.strip()]
    depth = min((len(line) - len(line.lstrip()) for line in filled), default=0)
    found: dict[str, str] = {}
    name = ""
    for line in filled:
        is_entry = len(line) - len(line.lstrip()) == depth
        match = entry.match(line.strip()) if is_entry else None
        if match:
            name = match[1].lstrip("*")
            found[name] = "" if underlined else match[2]
        elif name:
            found[name] = f"{found[name]} {line.strip()}".strip()
    return found


def _sphinx(lines: list[str], at: int, kept: list[str], parameters: dict[str, str]) -> int:
    """One line outside of a section, with the lines that go on with it; returns the next place."""
    line = lines[at].strip()
    match = _SPHINX_ENTRY.match(line)
    if match is None and not _SPHINX_OTHER.match(line):
        kept.append(lines[at].rstrip())
        return at + 1
    said = [match[3] if match else ""]
    at += 1
    while at < len(lines) and lines[at][:1].isspace() and lines[at].strip():
        said.append(lines[at].strip())
        at += 1
    if match:
        parameters[match[2].lstrip("*")] = " ".join(said).strip()
    return at
