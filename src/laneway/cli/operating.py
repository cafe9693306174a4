"""Commands of operators are not for the tools of agents.

A tool's process is marked, and such a command refuses to run there. It is a soft line: whoever can run a program can
also clear a variable. The hard one is that an operator needs a token, which tools are never given.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from laneway.errors import PermissionDeniedError
from laneway.tools.processes import MARK

__all__ = ("refuse_in_tools",)


def refuse_in_tools(environ: Mapping[str, str] | None = None) -> None:
    """Refuse to go on in a process that was started by a tool of an agent."""
    if MARK in (os.environ if environ is None else environ):
        raise PermissionDeniedError(
            "this command is for operators, and was called by a tool of an agent",
            hint="run it in a shell of your own",
            right="operate",
        )
