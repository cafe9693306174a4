"""Where the tools of an agent come from beside its own: MCP servers, shared by its sessions.

A server is started when the first session opens that wants it, and ended with the agent. One that cannot be started
fails no session: its tools are not there, `AsyncAgent.mcp_status` says why, and sessions get them when it is.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from laneway.errors import ConfigError, LanewayError

if TYPE_CHECKING:
    from laneway.agent.session import AsyncSession
    from laneway.policies import McpServerConfig
    from laneway.ports import Tool
    from laneway.tools.mcp import McpSource
    from laneway.tools.mcp_tools import McpStatus, McpTool

__all__ = ("ToolSources", "check_servers")


def check_servers(servers: Mapping[str, McpServerConfig]) -> None:
    """Refuse servers that nobody here could speak to."""
    if any(config.enabled for config in servers.values()) and importlib.util.find_spec("mcp") is None:
        hint = "install laneway with the extra `mcp`"
        raise ConfigError("MCP servers need the extra `mcp`: it is not installed", setting="mcp_servers", hint=hint)


class ToolSources:
    """The MCP servers of an agent. Sessions that ask for the same server in the same way share it."""

    def __init__(self) -> None:
        self._sources: list[McpSource] = []
        self._version = 0
        self._given: WeakKeyDictionary[AsyncSession, tuple[int, frozenset[str]]] = WeakKeyDictionary()

    async def equip(self, session: AsyncSession) -> None:
        """Start what a session wants, as far as it can be started, and give it the tools of that.

        A sub-agent has what its parent has given it.
        """
        servers = _wanted(session)
        if not servers:
            return
        make = await asyncio.to_thread(_load)  # the SDK takes its time
        sources = [self._source(make, name, config) for name, config in servers.items()]
        for problem in await asyncio.gather(*(source.start() for source in sources), return_exceptions=True):
            if isinstance(problem, BaseException) and not isinstance(problem, LanewayError):
                raise problem
        self._give(session)

    def renew(self, session: AsyncSession) -> None:
        """A run begins: it has the tools that there are now."""
        given = self._given.get(session)
        if given is not None and given[0] != self._version:
            self._give(session)

    def status(self) -> dict[str, McpStatus]:
        """How each server is, by its name; a second one of the same name has a number behind it."""
        found: dict[str, McpStatus] = {}
        for source in self._sources:
            name, number = source.name, 1
            while name in found:
                number += 1
                name = f"{source.name} ({number})"
            found[name] = source.status
        return found

    async def refresh(self) -> dict[str, McpStatus]:
        """Ask every server again for its tools, and start those that do not run; runs that begin now have them."""
        for problem in await asyncio.gather(*(source.refresh() for source in self._sources), return_exceptions=True):
            if isinstance(problem, BaseException) and not isinstance(problem, LanewayError):
                raise problem
        return self.status()

    def give_up(self) -> None:
        """Nobody waits any longer for servers that have not started yet."""
        for source in self._sources:
            source.give_up()

    async def close(self) -> None:
        """End every server."""
        await asyncio.gather(*(source.close() for source in self._sources))

    def _source(self, make: type[McpSource], name: str, config: McpServerConfig) -> McpSource:
        found = self._find(name, config)
        if found is None:
            found = make(name, config, on_change=self._changed)
            self._sources.append(found)
        return found

    def _find(self, name: str, config: McpServerConfig) -> McpSource | None:
        return next((each for each in self._sources if (each.name, each.config) == (name, config)), None)

    def _changed(self) -> None:
        self._version += 1

    def _give(self, session: AsyncSession) -> None:
        """Put the tools of its servers into the toolbox of a session, in the place of those it had from them."""
        _, before = self._given.get(session, (0, frozenset[str]()))
        own = {name: tool for name, tool in session.toolbox.items() if name not in before}
        effects = session.settings.tool_effects
        found: dict[str, Tool] = {}
        for name, config in _wanted(session).items():
            source = self._find(name, config)
            for tool in source.tools() if source is not None else ():
                named = _named(tool, name, {**own, **found})
                effect = effects.get(named.spec.name)
                found[named.spec.name] = named if effect is None else named.changed(effect=effect)
        self._given[session] = (self._version, frozenset(found))
        session.toolbox = {**own, **found}
        session.tool_specs = tuple(tool.spec for tool in session.toolbox.values())


def _wanted(session: AsyncSession) -> dict[str, McpServerConfig]:
    if session.parent is not None:
        return {}
    return {name: config for name, config in session.settings.mcp_servers.items() if config.enabled}


def _named(tool: McpTool, server: str, taken: Mapping[str, Any]) -> McpTool:
    """A tool under a name that nothing else has."""
    if tool.spec.name not in taken:
        return tool
    from laneway.tools.mcp_tools import marked

    return tool.changed(name=marked(tool.spec.name, server, tool.server_name))


def _load() -> type[McpSource]:
    from laneway.tools import mcp_http, mcp_stdio  # noqa: F401 - so that no connection has to wait for them
    from laneway.tools.mcp import McpSource

    return McpSource
