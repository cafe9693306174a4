"""The block of labels: to whom the sessions of an agent are attributed, in the words of their host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

from laneway.config.declaring import Setting
from laneway.config.kinds import RefusedError, Text
from laneway.errors import ConfigError
from laneway.identity import IDENTITY_MAX, identity_label, tenant_label

__all__ = ("IdentityBlock",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Label(Text):
    """A label of a session, checked as a session would."""

    check: Callable[[str, object], str]

    def read(self, value: object) -> str:
        """Text that can be stored and shown."""
        text = Text.read(self, value)
        try:
            return self.check("label", text)
        except ConfigError as error:
            raise RefusedError(error.hint or "") from error


LABEL: Final = Label(least=1, most=IDENTITY_MAX, check=identity_label)
TENANT: Final = Label(least=1, most=IDENTITY_MAX, check=tenant_label)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityBlock:
    """Labels that Laneway carries along and never reads. What a session says itself counts more."""

    tenant_id: Annotated[
        str | None,
        Setting(kind=TENANT, says="Whose sessions they are; in a server the token says that.", unset="nobody's"),
    ] = None
    principal: Annotated[
        str | None, Setting(kind=LABEL, says="The person or service on whose behalf they work.", unset="none")
    ] = None
    agent_template_id: Annotated[
        str | None, Setting(kind=LABEL, says="The template that the agent was made from.", unset="none")
    ] = None
    correlation_id: Annotated[str | None, Setting(kind=LABEL, says="What they are part of.", unset="none")] = None
