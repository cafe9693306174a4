"""References to the environment in the texts of a file: `${NAME}`, `${NAME:-default}`, `env("NAME")`.

`$${` stands for a plain `${`. What a variable holds may be a secret: it goes into the settings and nowhere else. Errors
name the variable, and `config explain` hides the value. The one exception is the folder of a workspace: what is wrong
in a file there is told with the path of that file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

__all__ = ("PATTERN", "Expanded", "expand")

NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
CALL: Final = re.compile(rf"""\s*env\(\s*(?:"(?P<double>{NAME})"|'(?P<single>{NAME})')\s*\)\s*""", re.ASCII)
LIKE_CALL: Final = re.compile(r"\s*env\(.*", re.DOTALL)
PART: Final = re.compile(rf"\$\$\{{|\$\{{(?P<name>{NAME})(?::-(?P<default>[^}}]*))?\}}|(?P<broken>\$\{{)", re.ASCII)
PATTERN: Final = rf"""^\s*env\(\s*("{NAME}"|'{NAME}')\s*\)\s*$|(^|[^$])\$\{{{NAME}(:-[^}}]*)?\}}"""
"""The same for a JSON Schema: what a text with a reference looks like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expanded:
    """The text with the variables put in. `names` are those it refers to, `hidden` says whether one was read."""

    text: str
    names: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    hidden: bool = False
    broken: str = ""


def expand(text: str, environ: Mapping[str, str]) -> Expanded:
    """Put the variables in. A default counts when the variable is not set or empty, as in a shell."""
    if call := CALL.fullmatch(text):
        name = call["double"] or call["single"]
        missing = () if name in environ else (name,)
        return Expanded(text=environ.get(name, ""), names=(name,), missing=missing, hidden=not missing)
    if LIKE_CALL.fullmatch(text):
        return Expanded(text=text, broken='env("NAME") takes the name of a variable in quotes')
    if "${" not in text:
        return Expanded(text=text)
    pieces: list[str] = []
    names: dict[str, None] = {}
    missing_names: dict[str, None] = {}
    hidden, broken, end = False, "", 0
    for part in PART.finditer(text):
        pieces.append(text[end : part.start()])
        end = part.end()
        name, default = part["name"], part["default"]
        if part["broken"]:
            broken = "a reference is ${NAME} or ${NAME:-default}; $${ stands for a plain ${"
        elif name is None:
            pieces.append("${")
        else:
            names[name] = None
            value = environ.get(name)
            if value is None and default is None:
                missing_names[name] = None
            use_default = default is not None and not value
            hidden = hidden or not (use_default or value is None)
            pieces.append(default if use_default else value or "")
    pieces.append(text[end:])
    return Expanded(
        text="".join(pieces), names=tuple(names), missing=tuple(missing_names), hidden=hidden, broken=broken
    )
