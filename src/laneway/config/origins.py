"""Where a value came from, and the values with their origins before they become settings."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

__all__ = ("UNREAD", "Assignment", "Layer", "Origin", "Written")

UNREAD: Final = object()
"""The value of a setting that stands in a file and could not be read."""


class Layer(StrEnum):
    """Who may set a value, the strongest last."""

    DEFAULT = "default"
    FILE = "file"
    WORKSPACE = "workspace"  # the file of the workspace, or its block in the main file
    ENVIRONMENT = "environment"
    COMMAND_LINE = "command line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """One layer and the place in it. `name` is the variable or the option, `note` why a default is what it is."""

    layer: Layer
    file: str = ""
    line: int = 0
    column: int = 0
    name: str = ""
    note: str = ""

    @property
    def where(self) -> str:
        """`file:line:column`, the variable or the option."""
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file or self.name

    def __str__(self) -> str:
        if self.layer in (Layer.DEFAULT, Layer.WORKSPACE, Layer.ENVIRONMENT):
            return " ".join(part for part in (self.layer, self.note or self.where) if part)
        return self.where


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A block that stands in a file, and how many keys it has there: an empty one says something too."""

    origin: Origin
    keys: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One layer sets one value. `written` is the path as it stands there; a hidden value came from a variable."""

    path: tuple[str, ...]
    value: Any
    origin: Origin
    written: str
    hidden: bool = False
