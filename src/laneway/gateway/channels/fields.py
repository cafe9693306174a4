"""The block of one channel in the configuration, read with care: what is wrong names its setting, and no secret."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from laneway.config.problems import closest
from laneway.errors import ConfigError, LanewayError
from laneway.gateway.channels.port import Place, Rights
from laneway.records import DURATION_MAX_MS
from laneway.runtime.envelope import check_key

__all__ = ("Fields",)

NAME_MAX: Final = 60
LIST_MAX: Final = 10_000
RIGHTS: Final = ("queue", "stop")


class Fields:
    """The values of one block. Every read takes a value out; `done` complains about what is left."""

    def __init__(self, name: str, block: object) -> None:
        self._path = f"gateway.channels.{name}"
        if not isinstance(block, Mapping):
            raise ConfigError("a channel is a block with its kind and settings", setting=self._path)
        if not name.replace("-", "").replace("_", "").isalnum() or len(name) > NAME_MAX or not name.isascii():
            raise ConfigError(
                f"a channel has a name of letters, digits, - and _, at most {NAME_MAX}", setting=self._path, value=name
            )
        self.name = name
        self._left: dict[str, Any] = dict(block)
        self._asked: list[str] = []

    def wrong(self, setting: str, message: str, hint: str = "") -> ConfigError:
        """What is wrong with a setting. The value is left out: it may be a secret."""
        path = f"{self._path}.{setting}"
        return ConfigError(f"{path} {message}", setting=path, hint=hint)

    def missing(self, setting: str, hint: str = "") -> ConfigError:
        """A setting that has to be there is not; what is there instead may be meant."""
        near = closest(setting, [str(each) for each in self._left])
        return self.wrong(setting, "is missing", f"did you mean it by {near}?" if near else hint)

    def _take(self, setting: str, default: Any) -> Any:
        self._asked.append(setting)
        return self._left.pop(setting, default)

    def text(self, setting: str, default: str | None = None, *, hint: str = "") -> str:
        """Some text; without a default it has to be there."""
        value = self._take(setting, default)
        if value is None:
            raise self.missing(setting, hint)
        if not isinstance(value, str) or (default is None and not value.strip()):
            raise self.wrong(setting, "is text", hint)
        return value.strip()

    def word(self, setting: str, default: str, among: Collection[str]) -> str:
        """One of some words."""
        value = self._take(setting, default)
        if value == "":
            raise self.missing(setting, f"one of: {', '.join(among)}")
        if not isinstance(value, str) or value not in among:
            near = closest(value, list(among)) if isinstance(value, str) else ""
            raise self.wrong(setting, f"is one of: {', '.join(among)}", f"did you mean {near}?" if near else "")
        return value

    def flag(self, setting: str, *, default: bool) -> bool:
        """Yes or no."""
        value = self._take(setting, default)
        if not isinstance(value, bool):
            raise self.wrong(setting, "is true or false")
        return value

    def whole(self, setting: str, default: int, *, least: int = 1, most: int = DURATION_MAX_MS) -> int:
        """A whole number."""
        value = self._take(setting, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.wrong(setting, f"is a whole number from {least:,} to {most:,}")
        return value

    def texts(self, setting: str) -> tuple[str, ...]:
        """A list of texts; numbers are taken as text, and one value as a list of one."""
        value = self._take(setting, ())
        listed = [value] if isinstance(value, str | int) and not isinstance(value, bool) else value
        if not isinstance(listed, list | tuple) or len(listed) > LIST_MAX:
            raise self.wrong(setting, f"is a list of at most {LIST_MAX:,}")
        for each in listed:
            if isinstance(each, bool) or not isinstance(each, str | int) or not str(each).strip():
                raise self.wrong(setting, "is a list of texts or numbers, none of them empty")
        return tuple(str(each).strip() for each in listed)

    def place(self) -> Place:
        """Where its conversations are, and who may do what there."""
        tenant = self.text("tenant", "default")
        try:
            check_key(tenant, "tenant")
        except LanewayError as error:
            raise self.wrong("tenant", f"is no tenant: {error.message}") from None
        everybody = self.texts("rights") if "rights" in self._left else RIGHTS
        unknown = sorted(set(everybody) - set(RIGHTS))
        if unknown:
            raise self.wrong("rights", f"knows {', '.join(RIGHTS)}", "list approvers and owners by their ids")
        return Place(
            name=self.name,
            workspace=self.text("workspace", ""),
            tenant=tenant,
            rights=Rights(
                owners=frozenset(self.texts("owners")),
                approvers=frozenset(self.texts("approvers")),
                everybody=tuple(sorted(everybody)),
            ),
        )

    def done(self) -> None:
        """Complain about what nobody has asked for."""
        for setting in self._left:
            near = closest(str(setting), self._asked)
            there = f"did you mean {near}?" if near else f"there are: {', '.join(sorted(set(self._asked)))}"
            raise self.wrong(str(setting), "is no setting of a channel of this kind", there)
