"""Values that only an agent has: rules of permissions, and names of models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from laneway.config.kinds import RefusedError, Text
from laneway.config.problems import closest
from laneway.errors import ConfigError
from laneway.kernel.permissions import PATH_TOOLS, parse_rule
from laneway.records import LABEL_MAX, check_labels

__all__ = ("LabelText", "ModelName", "RuleText")

SCRIPTED: Final = "scripted"
_RULE: Final = r"[A-Za-z0-9_.:/*?-]+\s*(?:\(\s*\S[\s\S]*\))?"
_ANY_CASE: Final = "|".join(
    "".join(f"[{letter}{letter.upper()}]" if letter.isalpha() else letter for letter in name)
    for name in sorted(PATH_TOOLS)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleText:
    """A rule as permissions have it, read by who will hold it against calls."""

    most: int = 4096

    @property
    def says(self) -> str:
        """Examples: the whole of it is on a page of its own."""
        return "a rule such as `read` or `bash(git *)`"

    def read(self, value: object) -> str:
        """The text of a rule; the hint says what is wrong with one that is none."""
        text = Text(least=1, most=self.most).read(value)
        try:
            parse_rule(text)
        except ConfigError as error:
            raise RefusedError(error.message.removeprefix(f"{text!r} is no rule: ")) from None
        return text

    def read_text(self, text: str) -> str:
        """As it stands."""
        return self.read(text)

    def schema(self) -> dict[str, Any]:
        """The shape of a rule, and no pattern of a path that means nothing."""
        pattern = rf"^(?!\s*(?:{_ANY_CASE})\s*\([\s\S]*[\[\]{{}}])\s*{_RULE}\s*$"
        return {"type": "string", "minLength": 1, "maxLength": self.most, "pattern": pattern}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelText:
    """A label that a worker has or must have."""

    @property
    def says(self) -> str:
        """Examples."""
        return "a word such as `gpu` or `os=linux`"

    def read(self, value: object) -> str:
        """A word without spaces and commas."""
        text = Text(least=1, most=LABEL_MAX).read(value)
        try:
            check_labels([text])
        except ConfigError:
            raise RefusedError("without spaces and commas") from None
        return text

    def read_text(self, text: str) -> str:
        """As it stands."""
        return self.read(text)

    def schema(self) -> dict[str, Any]:
        """A string without spaces, commas and control characters."""
        pattern = r"^[^\s,\u0000-\u001f]+$"
        return {"type": "string", "minLength": 1, "maxLength": LABEL_MAX, "pattern": pattern}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelName:
    """A model by its name. Whether there is such a provider shows when it is opened."""

    most: int = 500

    @property
    def says(self) -> str:
        """Both forms."""
        return f"`{SCRIPTED}` or `<provider>/<model>`"

    def read(self, value: object) -> str:
        """A name of one of the forms."""
        name = Text(least=1, most=self.most).read(value)
        provider, _, model = name.partition("/")
        if name == SCRIPTED or (provider and model):
            return name
        meant = closest(name, (SCRIPTED,)) or f"openai/{name.strip('/:')}"
        raise RefusedError(f"did you mean {meant!r}?" if meant == SCRIPTED else f"write {meant!r}, for example")

    def read_text(self, text: str) -> str:
        """As it stands."""
        return self.read(text)

    def schema(self) -> dict[str, Any]:
        """The forms."""
        return {"type": "string", "maxLength": self.most, "pattern": rf"^(?:{SCRIPTED}$|[^/]+/[\s\S])"}
