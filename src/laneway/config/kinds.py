"""What values a setting can have: how they are read from a file and from text, and what a JSON Schema says of them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol

from laneway.config.problems import closest
from laneway.errors import ConfigError

__all__ = (
    "REFERENCE",
    "Choice",
    "Flag",
    "Kind",
    "Number",
    "RefusedError",
    "Several",
    "Text",
    "Tree",
    "Whole",
    "word_of",
)

REFERENCE: Final = {"$ref": "#/$defs/reference"}
"""What a JSON Schema says of a text that refers to the environment."""

WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
TRUE: Final = frozenset({"true", "yes", "on", "1"})
FALSE: Final = frozenset({"false", "no", "off", "0"})


class RefusedError(Exception):
    """The value is not one that the setting can have; `hint` may know what was meant."""

    def __init__(self, hint: str = "") -> None:
        super().__init__(hint)
        self.hint = hint


class Kind(Protocol):
    """The values of a setting."""

    @property
    def says(self) -> str:
        """What is allowed, to be read after `must be`."""
        ...

    def read(self, value: object) -> Any:
        """The value as the settings carry it; `RefusedError` if it is not allowed."""
        ...

    def read_text(self, text: str) -> Any:
        """The same from text: a variable of the environment, an option of the command line."""
        ...

    def schema(self) -> dict[str, Any]:
        """What JSON Schema says of it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A whole number in a range. `1e3` and `1000.0` are whole too: JSON makes no difference between them."""

    least: int
    most: int
    unit: str = ""

    @property
    def says(self) -> str:
        """The range, with its unit."""
        unit = f" {self.unit}" if self.unit else ""
        return f"a whole number from {self.least:,} to {self.most:,}{unit}"

    def read(self, value: object) -> int:
        """Flags and text are no numbers; NaN, infinity and fractions are not whole."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise RefusedError
        if isinstance(value, float) and not value.is_integer():
            raise RefusedError
        number = int(value)
        if not self.least <= number <= self.most:
            raise RefusedError
        return number

    def read_text(self, text: str) -> int:
        """Decimal digits with an optional sign."""
        if not WHOLE.fullmatch(text.strip()):
            raise RefusedError
        return self.read(int(text))

    def schema(self) -> dict[str, Any]:
        """An integer in the range."""
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """A number in a range, whole or not."""

    least: float
    most: float

    @property
    def says(self) -> str:
        """The range."""
        return f"a number from {self.least:,} to {self.most:,}"

    def read(self, value: object) -> float:
        """Flags and text are no numbers, NaN is in no range."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.least <= value <= self.most:
            raise RefusedError
        return float(value)

    def read_text(self, text: str) -> float:
        """As Python reads a number."""
        try:
            number = float(text)
        except ValueError:
            raise RefusedError from None
        return self.read(number if math.isfinite(number) else None)

    def schema(self) -> dict[str, Any]:
        """A number in the range."""
        return {"type": "number", "minimum": self.least, "maximum": self.most}


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """Yes or no."""

    @property
    def says(self) -> str:
        """Both values."""
        return "true or false"

    def read(self, value: object) -> bool:
        """A flag only: `yes` and `on` are text in YAML 1.2."""
        if not isinstance(value, bool):
            raise RefusedError
        return value

    def read_text(self, text: str) -> bool:
        """The usual words, in any case."""
        word = text.strip().casefold()
        if word not in TRUE | FALSE:
            raise RefusedError
        return word in TRUE

    def schema(self) -> dict[str, Any]:
        """A boolean."""
        return {"type": "boolean"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Text of a bounded length. With `begins`, one of these is how it begins."""

    most: int
    least: int = 0
    begins: tuple[str, ...] = ()

    @property
    def says(self) -> str:
        """The bounds."""
        if self.begins:
            return f"text that begins with {' or '.join(self.begins)}"
        return f"text of {f'{self.least:,} to' if self.least else 'at most'} {self.most:,} characters"

    def read(self, value: object) -> str:
        """Numbers are no text: quote them."""
        if isinstance(value, int | float):
            raise RefusedError("put quotes around it")
        if not isinstance(value, str) or not self.least <= len(value) <= self.most:
            raise RefusedError
        if self.begins and not value.startswith(self.begins):
            raise RefusedError
        return value

    def read_text(self, text: str) -> str:
        """As it stands."""
        return self.read(text)

    def schema(self) -> dict[str, Any]:
        """A string."""
        made: dict[str, Any] = {"type": "string", "maxLength": self.most}
        if self.least:
            made["minLength"] = self.least
        if self.begins:
            made["pattern"] = "^(?:" + "|".join(map(re.escape, self.begins)) + ")"
        return made


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of some words. `aliases` are other words that `parse` takes; upper case is taken too."""

    words: type[StrEnum] | tuple[str, ...]
    parse: Callable[[str], str]
    aliases: tuple[str, ...] = ()

    @property
    def says(self) -> str:
        """The words."""
        return "one of " + ", ".join(self.words)

    def read(self, value: object) -> str:
        """A word, or an alias of one."""
        if not isinstance(value, str):
            raise RefusedError
        try:
            return self.parse(value)
        except (ConfigError, ValueError):
            meant = closest(value, [*map(str, self.words), *self.aliases])
            raise RefusedError(f"did you mean {meant!r}?" if meant else "") from None

    def read_text(self, text: str) -> str:
        """The same."""
        return self.read(text)

    def schema(self) -> dict[str, Any]:
        """The words for those who complete them, and a pattern for how else they may be written."""
        words = [*map(str, self.words), *self.aliases]
        pattern = "|".join("".join(map(self._letter, word)) for word in words)
        return {"anyOf": [{"enum": words}, {"type": "string", "pattern": rf"^\s*(?:{pattern})\s*$"}]}

    def _letter(self, letter: str) -> str:
        if letter == "-":
            return "[-_]" if self._takes_underscores else "-"
        return f"[{letter}{letter.upper()}]" if letter.isalpha() else re.escape(letter)

    @property
    def _takes_underscores(self) -> bool:
        compound = next((word for word in self.words if "-" in word), None)
        return compound is not None and self._reads(compound.replace("-", "_"))

    def _reads(self, word: str) -> bool:
        try:
            self.read(word)
        except RefusedError:
            return False
        return True


def word_of(*words: str) -> Choice:
    """One of some words that are no enum."""

    def parse(text: str) -> str:
        word = text.strip().casefold()
        if word not in words:
            raise ValueError(word)
        return word

    return Choice(words=words, parse=parse)


@dataclass(frozen=True, slots=True, kw_only=True)
class Several:
    """A list of values of one kind. Who reads a file looks at each item by itself, to know its place."""

    item: Kind
    most: int = 1000

    @property
    def says(self) -> str:
        """What the items are."""
        return f"a list of at most {self.most:,}, each {self.item.says}"

    def read(self, value: object) -> tuple[Any, ...]:
        """A list only: a single value goes into brackets."""
        if not isinstance(value, list | tuple):
            raise RefusedError("put it into a list")
        if len(value) > self.most:
            raise RefusedError
        return tuple(self.item.read(each) for each in value)

    def read_text(self, text: str) -> tuple[Any, ...]:
        """Items with commas between them."""
        return self.read([self.item.read_text(part.strip()) for part in text.split(",") if part.strip()])

    def schema(self) -> dict[str, Any]:
        """An array."""
        return {"type": "array", "maxItems": self.most, "items": {"anyOf": [self.item.schema(), REFERENCE]}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """A block with any keys, kept as it is."""

    @property
    def says(self) -> str:
        """No more than that it is a block."""
        return "a block with keys"

    def read(self, value: object) -> dict[str, Any]:
        """A mapping of plain values."""
        if not isinstance(value, dict):
            raise RefusedError
        return value

    def read_text(self, text: str) -> dict[str, Any]:
        """A JSON object."""
        try:
            return self.read(json.loads(text))
        except (ValueError, RecursionError):
            raise RefusedError("write it as JSON") from None

    def schema(self) -> dict[str, Any]:
        """Any object."""
        return {"type": "object"}
