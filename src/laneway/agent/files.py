"""From a configuration to an agent: what a file says, as the arguments of `AsyncAgent`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from laneway.errors import ConfigError

if TYPE_CHECKING:
    from laneway.config.agent import AgentSettings

__all__ = ("arguments_of",)


def arguments_of(settings: AgentSettings, environ: Mapping[str, str]) -> dict[str, Any]:
    """The arguments that make an agent as its configuration says."""
    from laneway.models import ProviderSettings

    options = settings.session_options().to_mapping()
    given = {name: value for name, value in options.items() if value is not None}
    if settings.default_model is not None:
        given["model"] = settings.default_model
    if settings.session_store is not None:
        given["session_store"] = settings.session_store
    if settings.environment is not None:
        given["environment"] = {name: environ[name] for name in settings.environment if name in environ}
    return {
        **given,
        "providers": {name: ProviderSettings.from_block(block) for name, block in settings.providers.items()},
        "builtin_tools": _builtin(settings),
    }


def _builtin(settings: AgentSettings) -> tuple[str, ...]:
    from laneway.tools import builtin_tools

    known = [tool.spec.name for tool in builtin_tools()]
    for name in settings.disabled_tools:
        if name not in known:
            hint = f"there are: {', '.join(known)}"
            raise ConfigError(f"there is no built-in tool {name!r}", setting="disabled_tools", value=name, hint=hint)
    wanted = known if settings.tools is None else list(settings.tools)
    return tuple(name for name in wanted if name not in settings.disabled_tools)
