"""Tools: functions that an agent may call, and those that it has from the start.

`@tool` and `Toolbox` cost nothing at import. What a built-in tool needs (processes, HTTP, patterns) is imported by
`builtin_tools`, pydantic at the first look at a tool's parameters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from laneway.tools.lanes import lane_of
from laneway.tools.outputs import ToolRefusedError
from laneway.tools.registry import FunctionTool, Toolbox, tool

if TYPE_CHECKING:
    from laneway.ports import Tool
    from laneway.tools.shell import ShellSettings
    from laneway.tools.web import WebSettings

__all__ = ("FunctionTool", "ToolRefusedError", "Toolbox", "builtin_tools", "lane_of", "tool")


def builtin_tools(*, shell: ShellSettings | None = None, web: WebSettings | None = None) -> list[Tool]:
    """The tools every agent has: read, write, edit, patch, ls, glob, grep, bash, wait, web_fetch.

    The workspace is that of the call (`ToolContext.workspace`), so one list serves any number of sessions.
    """
    from laneway.tools.shell import shell_tools
    from laneway.tools.web import web_fetch_tool
    from laneway.tools.workspace import workspace_tools

    return [*workspace_tools(), *shell_tools(shell), web_fetch_tool(web)]
