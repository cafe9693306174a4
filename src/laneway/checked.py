"""Settings that are checked when they are set: the checks, and `Checked`, an object that has them.

A check takes the name of a setting and its value, and gives back what is kept, or refuses it where it was written.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast

from laneway.errors import ConfigError
from laneway.records import Effect, check_whole

__all__ = (
    "COUNT_MAX",
    "Check",
    "Checked",
    "Switch",
    "anything",
    "by_tool",
    "effect",
    "flag",
    "is_loopback",
    "listed",
    "made_of",
    "number",
    "one_of",
    "optional",
    "path_text",
    "record",
    "refuse_unknown",
    "string",
    "text",
    "whole",
    "word",
)

COUNT_MAX = 1_000_000_000

T = TypeVar("T")
Check = Callable[[str, Any], Any]


def one_of(setting: str, value: object, allowed: Iterable[str]) -> str:
    """A word out of some, whatever its case; refused with the nearest of them."""
    words = tuple(map(str, allowed))
    word = value.strip().casefold() if isinstance(value, str) else ""
    if word in words:
        return word
    close = difflib.get_close_matches(word, words, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"one of {', '.join(words)}"
    raise ConfigError(f"{setting} cannot be {value!r}", setting=setting, value=value, hint=hint)


def refuse_unknown(what: str, names: Iterable[object], known: Iterable[str]) -> None:
    """Refuse the first name that is not known, with the nearest that is."""
    words = tuple(known)
    for name in names:
        if name not in words:
            close = difflib.get_close_matches(str(name), words, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(words)}"
            raise ConfigError(f"{what} has no setting {name!r}", setting=str(name), hint=hint)


def flag(setting: str, value: object) -> bool:
    """True or False."""

    if isinstance(value, Switch):
        return bool(value)
    if not isinstance(value, bool):
        raise ConfigError(f"{setting} must be True or False, not {value!r}", setting=setting, value=value)
    return value


def text(setting: str, value: object) -> str:
    """Text that is not empty."""

    if not isinstance(value, str) or not value:
        raise ConfigError(f"{setting} must be text, not {value!r}", setting=setting, value=value)
    return value


def string(setting: str, value: object) -> str:
    """Text, which may be empty."""

    if not isinstance(value, str):
        raise ConfigError(f"{setting} must be text, not {value!r}", setting=setting, value=value)
    return value


def anything(_: str, value: T) -> T:
    """Whatever it is."""

    return value


def whole(least: int, most: int = COUNT_MAX) -> Check:
    """A whole number in a range."""

    return lambda setting, value: check_whole(value, setting=setting, least=least, most=most)


def number(least: float, most: float) -> Check:
    """A number in a range."""

    def check(setting: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
            said = f"{setting} must be a number from {least} to {most}, not {value!r}"
            raise ConfigError(said, setting=setting, value=value)
        return float(value)

    return check


def optional(check: Check) -> Check:
    """None, or what another check takes."""

    return lambda setting, value: None if value is None else check(setting, value)


def word(*words: str) -> Check:
    """One of some words."""

    return lambda setting, value: one_of(setting, value, words)


def path_text(setting: str, value: object) -> str:
    """A path, as text."""

    # Whatever a path object is, `__fspath__` gives its text; this module knows no file system.
    found = getattr(value, "__fspath__", None)
    return text(setting, found() if callable(found) else value)


def record(kind: type[T]) -> Check:
    """A record, or a mapping that it can be made of."""

    def check(setting: str, value: object) -> T:
        if isinstance(value, kind):
            return value
        if isinstance(value, Mapping):
            return made_of(kind, value, what=setting)
        raise ConfigError(f"{setting} must be a {kind.__name__}, not {value!r}", setting=setting, value=value)

    return check


def by_tool(check: Check) -> Check:
    """A mapping from names of tools to values."""

    def checked(setting: str, value: object) -> dict[str, Any]:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{setting} maps tools to settings, not {value!r}", setting=setting, value=value)
        return {text(setting, name): check(f"{setting}.{name}", each) for name, each in value.items()}

    return checked


def effect(setting: str, value: object) -> Effect:
    """An effect by its name."""

    return Effect(one_of(setting, value, tuple(Effect)))


@functools.lru_cache(maxsize=100)  # a server asks for its own address with each request
def is_loopback(host: str) -> bool:
    """Whether a host is this machine alone. A name may lead anywhere, whatever it begins with."""
    import ipaddress  # few need it

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listed(setting: str, value: object) -> tuple[Any, ...]:
    """A list of things."""

    if isinstance(value, str | Mapping) or not isinstance(value, Iterable):
        raise ConfigError(f"{setting} must be a list, not {value!r}", setting=setting, value=value)
    return tuple(value)


def made_of(kind: type[T], values: Mapping[str, Any], *, what: str) -> T:
    """A record made of a mapping, as a configuration file gives it; unknown and missing names are refused."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{what} must be a mapping, not {values!r}", setting=what, value=values)
    known = fields(cast("Any", kind))
    refuse_unknown(what, values, (each.name for each in known))
    for each in known:
        if each.name not in values and each.default is MISSING and each.default_factory is MISSING:
            raise ConfigError(f"{what} needs {each.name}", setting=f"{what}.{each.name}")
    return kind(**values)


def _apart(value: Any) -> Any:
    """A value for another owner: what can be changed is copied, what is somebody's object is not."""
    if isinstance(value, Switch):
        return bool(value)
    if isinstance(value, Checked):
        return value.copy()
    return dict(value) if type(value) is dict else value


class Checked:
    """An object whose settings are known by name and checked whenever they are set."""

    __slots__ = ()

    CHECKS: ClassVar[Mapping[str, Check]] = {}

    def __new__(cls, *_: Any, **values: Any) -> Self:
        if not values.keys() <= cls.CHECKS.keys():
            refuse_unknown(cls.__name__, values, cls.CHECKS)
        return super().__new__(cls)

    if not TYPE_CHECKING:  # type checkers would take it as leave to set any attribute

        def __setattr__(self, name: str, value: Any) -> None:
            if name not in self.CHECKS:
                refuse_unknown(type(self).__name__, (name,), self.CHECKS)
            object.__setattr__(self, name, self.CHECKS[name](name, value))

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """What a configuration file says; nested mappings become the records they stand for."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"{cls.__name__} is made of a mapping, not {values!r}", value=values)
        refuse_unknown(cls.__name__, values, cls.CHECKS)
        return cls(**values)

    def to_mapping(self) -> dict[str, Any]:
        """Every setting by its name; a change of the mapping changes nothing here."""
        return {name: _apart(getattr(self, name)) for name in self.CHECKS}

    def copy(self) -> Self:
        """Another one with the same settings; changing one does not change the other."""
        return type(self)(**self.to_mapping())

    def __reduce__(self) -> tuple[Any, ...]:
        # Slots behind checks cannot be filled from outside; this serves `copy`, `deepcopy` and `pickle`.
        return type(self).from_mapping, (self.to_mapping(),)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.to_mapping() == cast("Self", other).to_mapping()

    __hash__ = None  # type: ignore[assignment] # it changes

    def __repr__(self) -> str:
        plain = type(self)().to_mapping()
        shown = {name: value for name, value in self.to_mapping().items() if value != plain[name]}
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in shown.items())})"


class Switch:
    """A setting that is read as True or False and called to be switched on: `if config.enable_dlq`, `enable_dlq()`.

    It is equal to the bool that it stands for, but is not that object: write `if config.enable_dlq:`, not `is True`.
    """

    __slots__ = ("_on", "_turn_on")

    def __init__(self, *, on: bool, turn_on: Callable[[int | None], Any]) -> None:
        self._on = on
        self._turn_on = turn_on

    def __bool__(self) -> bool:
        return self._on

    def __eq__(self, other: object) -> bool:
        return bool(other) is self._on if isinstance(other, bool | Switch) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._on)

    def __repr__(self) -> str:
        return repr(self._on)

    def __call__(self, max_size: int | None = None) -> Any:
        """Switch it on and give back the settings; `max_size` is how many dead letters are kept."""
        return self._turn_on(max_size)
