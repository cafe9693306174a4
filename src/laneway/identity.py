"""Who a session belongs to, in the words of its host: four labels that Laneway carries along.

Two of them are read: `tenant_id` keeps sessions apart, and budgets of the scope `principal` count by `principal`.
All are in hooks, traces, events, external tasks and stored sessions, and come back when a session is opened again; what
the caller says then counts more than what is stored, and what an operator has said counts most.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Final

from laneway.errors import ConfigError

__all__ = (
    "AT_WORK",
    "IDENTITY",
    "IDENTITY_LABELS",
    "IDENTITY_MAX",
    "Identity",
    "identity_label",
    "tenant_label",
    "wanted_labels",
)

IDENTITY: Final = "identity"
"""The kind of the row that keeps the labels of a session."""
IDENTITY_MAX: Final = 400
"""So many characters a label may have."""


def identity_label(setting: str, value: object) -> str:
    """A label: text of some length that can be stored and shown."""
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{setting} must be text, not {value!r:.100}", setting=setting, hint="None: no label")
    if len(value) > IDENTITY_MAX:
        said = f"{setting} has {len(value):,} characters, and a label may have {IDENTITY_MAX}"
        raise ConfigError(said, setting=setting, hint="put what is long elsewhere, and its id here")
    if not value.isprintable():
        raise ConfigError(
            f"{setting} has a character that cannot be shown: {value!r:.100}", setting=setting, hint="plain text"
        )
    return value


def tenant_label(setting: str, value: object) -> str:
    """A label that can be the name of a tenant, too: it is a part of paths and keys."""
    tenant = identity_label(setting, value)
    if "/" in tenant or tenant in (".", "..") or not tenant.strip():
        raise ConfigError(
            f"{setting} cannot be {tenant!r:.100}: it names a tenant",
            setting=setting,
            value=tenant,
            hint="text without '/' that is not blank, '.' or '..'",
        )
    return tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """The labels of a session; None: there is none."""

    tenant_id: str | None = None
    principal: str | None = None
    agent_template_id: str | None = None
    correlation_id: str | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is not None:
                check = tenant_label if each.name == "tenant_id" else identity_label
                check(each.name, value)

    @property
    def labels(self) -> dict[str, str]:
        """Those that are set."""
        return {name: value for name in IDENTITY_LABELS if (value := getattr(self, name)) is not None}

    def over(self, stored: Mapping[str, object]) -> Identity:
        """These labels, and what was stored where they say nothing."""
        kept = {name: value for name, value in stored.items() if name in IDENTITY_LABELS and isinstance(value, str)}
        return Identity(**{**kept, **self.labels})


IDENTITY_LABELS: Final = tuple(each.name for each in fields(Identity))


def wanted_labels(texts: Iterable[str]) -> dict[str, str]:
    """The labels that sessions are looked for by, each written as `principal=user:42`."""
    wanted: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or name not in IDENTITY_LABELS:
            raise ConfigError(
                f"no session is labelled {text!r:.100}",
                setting="label",
                value=text,
                hint=f"name=value, and the names are {', '.join(IDENTITY_LABELS)}",
            )
        if wanted.setdefault(name, identity_label(name, value)) != value:
            raise ConfigError(f"{name} is asked for twice", setting="label", value=text, hint="a session has one")
    return wanted


AT_WORK: ContextVar[Identity | None] = ContextVar("laneway_identity", default=None)
"""The labels of the session whose run goes on here: every line of the log that is written in it has them."""
