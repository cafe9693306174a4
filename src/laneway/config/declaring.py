"""How a setting is declared: what it can be, what it means, and whether it may be shown."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from laneway.config.kinds import Kind, Whole
from laneway.records import CONCURRENCY_MAX, DURATION_MAX_MS

__all__ = (
    "MS",
    "SOME_MS",
    "SOME_WIDTH",
    "WIDTH",
    "Setting",
    "Sub",
    "always",
    "from_folder",
    "store_from_folder",
    "with_password",
)

MS: Final = Whole(least=0, most=DURATION_MAX_MS, unit="milliseconds")
SOME_MS: Final = Whole(least=1, most=DURATION_MAX_MS, unit="milliseconds")
WIDTH: Final = Whole(least=0, most=CONCURRENCY_MAX)
SOME_WIDTH: Final = Whole(least=1, most=CONCURRENCY_MAX)
CREDENTIALS: Final = re.compile(r"://[^/?#]*@")


def always(_: object) -> bool:
    """A secret, whatever it is."""
    return True


def with_password(value: object) -> bool:
    """A secret if it is an address with credentials in it."""
    return isinstance(value, str) and CREDENTIALS.search(value) is not None


def from_folder(value: Any, folder: str) -> Any:
    """A relative path, or each of several, as seen from a folder."""
    if isinstance(value, tuple):
        return tuple(from_folder(each, folder) for each in value)
    if not isinstance(value, str) or not value.strip() or value.startswith("~"):
        return value
    return os.path.abspath(os.path.join(folder, value))


def store_from_folder(value: Any, folder: str) -> Any:
    """The same for a store: a folder, or an address with a path in it."""
    if not isinstance(value, str) or ":" not in value:
        return from_folder(value, folder)
    scheme, _, rest = value.partition(":")
    path = rest.removeprefix("///")
    if scheme.strip().casefold() != "sqlite" or path in ("", rest) or path.startswith(":"):
        return value  # it has no path, or is no address: whoever opens it says so
    return f"{scheme}:///{from_folder(path, folder)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value: what it can be, what it means, other names for it. `unset` says what None stands for.

    With `names`, one value for each name that the file gives. `secret` says which values are shown nowhere; errors show
    no value of a setting that has one. `rooted` takes a value and the folder of the file in which it stands, from which
    relative paths are meant.
    """

    kind: Kind
    says: str
    aliases: tuple[str, ...] = ()
    unset: str = ""
    names: str = ""
    secret: Callable[[Any], bool] | None = None
    rooted: Callable[[Any, str], Any] | None = None

    def hides(self, value: object) -> bool:
        """Whether a value is a secret."""
        return self.secret is not None and self.secret(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sub:
    """A block inside a block; with `names`, one block for each name that the file gives.

    `shorthand` is the setting that a bare value means: `main: 4` is `main: {concurrency: 4}`. `outside` says whether
    variables and options reach into it.
    """

    says: str
    names: str = ""
    shorthand: str = ""
    outside: bool = True
