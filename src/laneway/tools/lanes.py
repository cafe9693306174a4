"""Which lane a tool runs in: what the configuration says, else what the tool says, else what its name says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from laneway.dialogue import ToolSpec

__all__ = ("CONTROL", "EXECUTE", "GENERATE", "QUERY", "ROUTES", "lane_of")

CONTROL: Final = "control"
QUERY: Final = "query"
EXECUTE: Final = "execute"
GENERATE: Final = "generate"

ROUTES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("read", "glob", "grep", "ls", "search", "list_files", "web_fetch", "web_search"), QUERY),
    **dict.fromkeys(("pause", "resume", "cancel"), CONTROL),
}
"""Names with a lane of their own. Every other name, known or not, runs in `execute`: the careful choice."""


def lane_of(spec: ToolSpec, overrides: Mapping[str, str] | None = None) -> str:
    """The lane of a tool; `overrides` (tool name to lane) is what the configuration says."""
    lane = (overrides or {}).get(spec.name) or spec.lane or ROUTES.get(spec.name, EXECUTE)
    return lane.lower()
