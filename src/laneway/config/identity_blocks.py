"""The block of labels: to whom the sessions of an agent are attributed, in the words of their host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

from laneway.config.declaring import Setting
from laneway.config.kinds import Text
from laneway.identity import IDENTITY_MAX

__all__ = ("IdentityBlock",)

LABEL: Final = Text(least=1, most=IDENTITY_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityBlock:
    """Labels that Laneway carries along and never reads. What a session says itself counts more."""

    tenant_id: Annotated[
        str | None,
        Setting(kind=LABEL, says="Whose sessions they are; in a server the token says that.", unset="nobody's"),
    ] = None
    principal: Annotated[
        str | None, Setting(kind=LABEL, says="The person or service on whose behalf they work.", unset="none")
    ] = None
    agent_template_id: Annotated[
        str | None, Setting(kind=LABEL, says="The template that the agent was made from.", unset="none")
    ] = None
    correlation_id: Annotated[str | None, Setting(kind=LABEL, says="What they are part of.", unset="none")] = None
