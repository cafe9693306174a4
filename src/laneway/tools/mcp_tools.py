"""The tools of an MCP server as tools of an agent: their names, their schemas, and what comes back of a call.

What a server says is not trusted further than it must be. Names are made fit for every provider, a schema that is none
is replaced by an open one, and the hints of a server about itself (`readOnlyHint`, `idempotentHint` …) are not read:
lane and effect come from the configuration.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from laneway.dialogue import Intent, ToolContext, ToolOutput, ToolSpec, compact_json
from laneway.policies import McpServerConfig
from laneway.records import Effect
from laneway.tools.lanes import EXECUTE
from laneway.tools.mcp_schemas import ForeignParameters
from laneway.tools.outputs import cap_output, clean

__all__ = (
    "TOOLS_MAX",
    "Make",
    "McpStatus",
    "McpTool",
    "Offered",
    "marked",
    "names_of",
    "object_schema",
    "text_of_result",
    "tools_of",
)

_log = logging.getLogger("laneway")

TOOLS_MAX: Final = 500
NAME_MAX: Final = 64
SERVER_NAME_MAX: Final = 1_000
DESCRIPTION_MAX: Final = 10_000
SCHEMA_MAX: Final = 100_000
MARK_CHARS: Final = 8
OPEN: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
_STRANGE: Final = re.compile(r"[^A-Za-z0-9_-]")


class Make(Protocol):
    """Makes a call of a tool, by the name the server knows it by."""

    def __call__(
        self, tool: str, arguments: Mapping[str, Any], context: ToolContext, *, effect: Effect
    ) -> Awaitable[ToolOutput]:
        """What comes of it; `effect` decides what is said when nobody knows how far it came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class McpStatus:
    """How an MCP server is: `stopped`, `starting`, `running`, `failed` or `closed`; `error` says why it is not there.

    `tools` counts the tools that it offers, `starts` how often it was started.
    """

    name: str
    state: str
    tools: int = 0
    starts: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class Offered:
    """A tool as a server offers it, as far as it can be used."""

    name: str
    description: str
    schema: Any

    @classmethod
    def of(cls, name: Any, description: Any, schema: Any) -> Offered | None:
        """What a server says, with bounds; None if it has no name that could be used."""
        if not isinstance(name, str) or not 0 < len(name) <= SERVER_NAME_MAX:
            return None
        said = clean(description)[:DESCRIPTION_MAX] if isinstance(description, str) else ""
        return cls(name, said, object_schema(schema))


class McpTool:
    """A tool of a server."""

    def __init__(self, name: str, spec: ToolSpec, make: Make) -> None:
        self.server_name = name  # what the server calls it
        self.spec = spec
        self._make = make
        self._parameters = ForeignParameters(spec.name, spec.parameters)

    def __repr__(self) -> str:
        return f"<tool {self.spec.name}>"

    def changed(self, **changes: Any) -> McpTool:
        """The same with another name or effect."""
        return McpTool(self.server_name, replace(self.spec, **changes), self._make)

    def check(self, arguments: str) -> dict[str, Any]:
        """The arguments of a call, held against the schema of the server as far as that is safe."""
        return self._parameters.check(arguments)

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Have the server do it."""
        output = await self._make(self.server_name, arguments, context, effect=self.spec.effect)
        return await cap_output(output, context)

    @property
    def can_reconcile(self) -> bool:
        """MCP has no way to ask what became of a call."""
        return False

    async def reconcile(self, intent: Intent, context: ToolContext) -> ToolOutput | None:
        """Nobody knows."""
        return None


# ---- what a server offers ----


def tools_of(server: str, config: McpServerConfig, offered: Iterable[Offered], make: Make) -> list[McpTool]:
    """The wanted tools of a server, at most `TOOLS_MAX`, with lanes and effects as the configuration says."""
    kept = {each.name: each for each in offered if not config.tools or each.name in config.tools}
    _tell_unknown(server, config, kept)
    if len(kept) > TOOLS_MAX:
        _log.warning("MCP server %s offers %d tools; the first %d are used", server, len(kept), TOOLS_MAX)
        kept = dict(list(kept.items())[:TOOLS_MAX])
    names = names_of(server, kept)
    tools = []
    for name, each in kept.items():
        spec = ToolSpec(
            name=names[name],
            description=each.description,
            parameters=each.schema,
            lane=config.lanes.get(name, config.lane or EXECUTE),
            effect=Effect(config.effects.get(name, config.effect or Effect.WRITE)),
            parallel=name in config.parallel,
        )
        tools.append(McpTool(name, spec, make))
    return tools


def _tell_unknown(server: str, config: McpServerConfig, known: Mapping[str, Any]) -> None:
    named = dict.fromkeys((*config.tools, *config.lanes, *config.effects, *config.parallel))
    strange = [name for name in named if name not in known]
    if strange:
        _log.warning("MCP server %s has no tools %s, which its configuration names", server, ", ".join(strange))


def object_schema(given: Any) -> dict[str, Any]:
    """A JSON Schema of an object: the given one, or an open one if that is none or too large."""
    if not isinstance(given, Mapping) or not isinstance(given.get("properties", {}), Mapping):
        return dict(OPEN)
    kind = given.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        return dict(OPEN)
    try:
        size = len(compact_json(given))
    except (TypeError, ValueError, RecursionError):
        return dict(OPEN)
    return {**OPEN, **given, "type": "object"} if size <= SCHEMA_MAX else dict(OPEN)


def names_of(server: str, tools: Iterable[str]) -> dict[str, str]:
    """`mcp__<server>__<tool>` of each, fit for every provider; what does not fit, or falls together, gets a mark."""
    plain = {tool: _STRANGE.sub("_", f"mcp__{server}__{tool}") for tool in tools}
    counts = Counter(plain.values())
    return {tool: name if _fits(tool, name, counts) else marked(name, server, tool) for tool, name in plain.items()}


def _fits(tool: str, name: str, counts: Counter[str]) -> bool:
    return len(name) <= NAME_MAX and (counts[name] == 1 or not _STRANGE.search(tool))


def marked(name: str, server: str, tool: str) -> str:
    """A name that only this tool of this server has."""
    digest = hashlib.sha256(f"{server}\0{tool}".encode(errors="replace")).hexdigest()[:MARK_CHARS]
    return f"{name[: NAME_MAX - MARK_CHARS - 1]}_{digest}"


# ---- what comes back ----


def text_of_result(content: Iterable[Any], structured: Any) -> str:
    """What a model gets to see of a result: its texts, what else there is in words, or its structured content."""
    parts = [_shown(each) for each in content]
    if not any(parts) and structured is not None:
        return compact_json(structured)
    return "\n".join(parts)


def _shown(block: Any) -> str:
    kind = getattr(block, "type", "")
    if kind == "text":
        return str(block.text)
    if kind in ("image", "audio"):
        return f"[{kind}, {block.mime_type}, {len(block.data) * 3 // 4} bytes; it is not shown]"
    if kind == "resource_link":
        return f"[resource {block.name}: {block.uri}]"
    if kind == "resource":
        text = getattr(block.resource, "text", None)
        return str(text) if text is not None else f"[resource {block.resource.uri}: no text; it is not shown]"
    return f"[{kind or 'something'} that is not shown]"
