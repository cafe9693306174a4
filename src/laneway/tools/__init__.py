"""Tools: functions that an agent may call, and those that it has from the start.

`@tool` and `Toolbox` cost nothing at import. What a built-in tool needs (processes, HTTP, patterns) is imported by
`builtin_tools`, pydantic at the first look at a tool's parameters.
"""

from __future__ import annotations

from laneway.tools.lanes import lane_of
from laneway.tools.outputs import ToolRefusedError
from laneway.tools.registry import FunctionTool, Toolbox, tool

__all__ = ("FunctionTool", "ToolRefusedError", "Toolbox", "lane_of", "tool")
