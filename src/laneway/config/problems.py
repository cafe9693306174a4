"""What is wrong with a configuration: each problem with its file, line, path and way out, all of them in one error."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from laneway.config.nodes import NOWHERE, Place
from laneway.errors import ConfigError

__all__ = ("InvalidConfigError", "Problem", "Problems", "closest", "shown")

SHOWN_MAX = 60
MESSAGE_MAX = 600
PROBLEMS_MAX = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing that is wrong. `source` is a file, a variable or an option; `setting` the path as it was written."""

    source: str
    message: str
    hint: str = ""
    setting: str = ""
    value: Any = None
    line: int = 0
    column: int = 0

    @property
    def where(self) -> str:
        """`file:line:column`, as editors understand it."""
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}"
        return f"{text} ({self.hint})" if self.hint else text


class InvalidConfigError(ConfigError):
    """A configuration has problems; nothing of it is in force. `problems` lists all of them, in order."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        found = tuple(problems)
        first = found[0]
        text = str(first)
        if len(found) > 1:
            text = f"{len(found)} problems in the configuration\n" + "\n".join(f"  {each}" for each in found)
        super().__init__(text, setting=first.setting, value=first.value)
        self.problems = found
        self.file = first.source
        self.line = first.line
        self.column = first.column


class Problems:
    """Collects the problems of one source; stops counting at a bound, since a broken file has no end of them."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.found: list[Problem] = []

    @property
    def is_full(self) -> bool:
        """Whether further ones are not noted any more."""
        return len(self.found) >= PROBLEMS_MAX

    def add(self, place: Place, message: str, **facts: Any) -> None:
        """Note one problem: `facts` are `hint`, `setting` and `value`."""
        if self.is_full:
            return
        if not message.isprintable():  # what a file holds must not steer a terminal
            message = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in message)
        if len(message) > MESSAGE_MAX:
            message = f"{message[:MESSAGE_MAX]}…"
        self.found.append(Problem(source=self.source, message=message, line=place.line, column=place.column, **facts))

    def refuse(self, message: str, **facts: Any) -> None:
        """Note a problem of the source as a whole."""
        self.add(NOWHERE, message, **facts)


def closest(word: str, choices: Sequence[str]) -> str:
    """The choice that a wrong word probably meant, or nothing. Case does not matter."""
    folded = {choice.casefold(): choice for choice in reversed(choices)}
    found = difflib.get_close_matches(word.casefold()[:SHOWN_MAX], list(folded), n=1, cutoff=0.6)
    return folded[found[0]] if found else ""


def shown(value: object) -> str:
    """A value as an error names it: short, and on one line."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case int() if value.bit_length() > 200:  # str() refuses numbers of thousands of digits
            return "a number of more than 60 digits"
        case _:
            text = repr(value)
            return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
