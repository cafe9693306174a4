"""Rules of permissions that name no tool: most likely a misspelling, and nothing else would say so."""

from __future__ import annotations

import difflib
import logging
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from laneway.agent.skills import SKILL
from laneway.agent.subagent_tools import parallel_task, request_followup, spawn, task
from laneway.kernel.permissions import parse_rule
from laneway.kernel.plans import UPDATE_PLAN
from laneway.tools import builtin_tools

if TYPE_CHECKING:
    from laneway.agent.agent import AsyncAgent
    from laneway.agent.session import AsyncSession
    from laneway.policies import PermissionPolicy

__all__ = ("warn_of_rules",)

_log = logging.getLogger("laneway")
_said: WeakKeyDictionary[AsyncAgent, set[str]] = WeakKeyDictionary()

MCP: Final = "mcp__"
OWN: Final = (SKILL, UPDATE_PLAN, *(each.__name__ for each in (task, parallel_task, spawn, request_followup)))
"""Tools that are there when they are needed: a rule about one that is not there now is none about nothing."""


def warn_of_rules(session: AsyncSession, agent: AsyncAgent) -> None:
    """A session has its tools: the log says, once for each agent, which rules without a wildcard name none of them.

    Built-in tools that were left out, and tools of an MCP server that does not run, are known all the same.
    """
    policy = session.settings.permission_policy
    if policy is None or not policy.enabled or session.parent is not None:
        return
    said = _said.setdefault(agent, set())
    there = {name.casefold(): name for name in session.toolbox}
    named = [(text, tool) for text, tool in _named(policy) if tool not in there and text not in said]
    if not named:
        return
    known = there | {name.casefold(): name for name in (*OWN, *(tool.spec.name for tool in builtin_tools()))}
    has_all = all(each.state == "running" for each in agent.mcp_status().values())
    for text, tool in named:
        if tool in known or text in said or (tool.startswith(MCP) and not has_all):
            continue
        said.add(text)
        close = difflib.get_close_matches(tool, known, n=1)
        meant = f" (did you mean {known[close[0]]!r}?)" if close else ""
        _log.warning("the rule %r of the permissions names no tool of session %s%s", text, session.session_id, meant)


def _named(policy: PermissionPolicy) -> list[tuple[str, str]]:
    """The rules that name one tool, and its name."""
    rules = [parse_rule(text) for text in (*policy.allow, *policy.deny, *policy.ask)]
    return [(rule.text, rule.tool) for rule in rules if "*" not in rule.tool and "?" not in rule.tool]
