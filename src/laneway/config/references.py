"""References to the environment in the texts of a file: `${NAME}`, `${NAME:-default}`, `env("NAME")`.

`env("NAME", "default")` has a default too, and `$${` stands for a plain `${`. A format that knows by itself which parts
of a text are references gives a `Template` in place of the text. What a variable holds may be a secret: it goes into
the settings and nowhere else. Errors name the variable, and `config explain` hides the value. The one exception is the
folder of a workspace: what is wrong in a file there is told with the path of that file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ("PATTERN", "Expanded", "Template", "Variable", "expand", "is_variable_name")

NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
CALL: Final = re.compile(
    rf"""\s*env\(\s*(?:"(?P<double>{NAME})"|'(?P<single>{NAME})')\s*"""
    r"""(?:,\s*(?:"(?P<default>[^"]*)"|'(?P<other>[^']*)')\s*)?\)\s*""",
    re.ASCII,
)
LIKE_CALL: Final = re.compile(r"\s*env\(.*", re.DOTALL)
PART: Final = re.compile(rf"\$\$\{{|\$\{{(?P<name>{NAME})(?::-(?P<default>[^}}]*))?\}}|(?P<broken>\$\{{)", re.ASCII)
PATTERN: Final = (
    rf"""^\s*env\(\s*("{NAME}"|'{NAME}')\s*(,\s*("[^"]*"|'[^']*')\s*)?\)\s*$"""
    rf"""|(^|[^$])\$\{{{NAME}(:-[^}}]*)?\}}"""
)
"""The same for a JSON Schema: what a text with a reference looks like."""


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable that a text refers to, and what counts when it is not set or empty."""

    name: str
    default: str | None = None

    def __str__(self) -> str:
        return f"${{{self.name}}}" if self.default is None else f"${{{self.name}:-{self.default}}}"


@dataclass(frozen=True, slots=True, repr=False)
class Template:
    """A text and the variables in it, in order. What looks like a reference in its plain parts is none."""

    parts: tuple[str | Variable, ...]

    def __repr__(self) -> str:
        return repr("".join(map(str, self.parts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Expanded:
    """The text with the variables put in. `names` are those it refers to, `hidden` says whether one was read."""

    text: str
    names: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    hidden: bool = False
    broken: str = ""


def is_variable_name(name: str) -> bool:
    """Whether a variable may have this name."""
    return re.fullmatch(NAME, name, re.ASCII) is not None


def expand(text: str | Template, environ: Mapping[str, str]) -> Expanded:
    """Put the variables in. A default counts when the variable is not set or empty, as in a shell."""
    if isinstance(text, Template):
        return _filled(text.parts, environ)
    if call := CALL.fullmatch(text):
        default = call["other"] if call["default"] is None else call["default"]
        return _filled((Variable(call["double"] or call["single"], default),), environ)
    if LIKE_CALL.fullmatch(text):
        return Expanded(text=text, broken='env("NAME") takes the name of a variable in quotes')
    if "${" not in text:
        return Expanded(text=text)
    parts: list[str | Variable] = []
    broken, end = "", 0
    for part in PART.finditer(text):
        parts.append(text[end : part.start()])
        end = part.end()
        if part["broken"]:
            broken = "a reference is ${NAME} or ${NAME:-default}; $${ stands for a plain ${"
        else:
            parts.append("${" if part["name"] is None else Variable(part["name"], part["default"]))
    parts.append(text[end:])
    return _filled(tuple(parts), environ, broken)


def _filled(parts: tuple[str | Variable, ...], environ: Mapping[str, str], broken: str = "") -> Expanded:
    pieces: list[str] = []
    names: dict[str, None] = {}
    missing: dict[str, None] = {}
    hidden = False
    for part in parts:
        if isinstance(part, str):
            pieces.append(part)
            continue
        names[part.name] = None
        value = environ.get(part.name)
        if value is None and part.default is None:
            missing[part.name] = None
        use_default = part.default is not None and not value
        hidden = hidden or not (use_default or value is None)
        pieces.append((part.default if use_default else value) or "")
    return Expanded(text="".join(pieces), names=tuple(names), missing=tuple(missing), hidden=hidden, broken=broken)
