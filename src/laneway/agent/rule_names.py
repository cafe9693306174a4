"""Rules and matchers that name no tool: most likely a misspelling, and nothing else would say so."""

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

__all__ = ("warn_of_rules",)

_log = logging.getLogger("laneway")
_said: WeakKeyDictionary[AsyncAgent, set[str]] = WeakKeyDictionary()

MCP: Final = "mcp__"
OWN: Final = (SKILL, UPDATE_PLAN, *(each.__name__ for each in (task, parallel_task, spawn, request_followup)))
"""Tools that are there when they are needed: a rule about one that is not there now is none about nothing."""


def warn_of_rules(session: AsyncSession, agent: AsyncAgent) -> None:
    """A session has its tools: the log says, once for each agent, which names without a wildcard are none of them.

    That is about the rules of its permissions and the matchers of its hooks.

    Built-in tools that were left out, and tools of an MCP server that does not run, are known all the same.
    """
    if session.parent is not None:
        return
    said = _said.setdefault(agent, set())
    there = {name.casefold(): name for name in session.toolbox}
    named = [(text, tool) for text, tool in _named(session) if tool not in there and text not in said]
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
        _log.warning("%s names no tool of session %s%s", text, session.session_id, meant)


def _named(session: AsyncSession) -> list[tuple[str, str]]:
    """What names one tool, in words, and its name."""
    policy = session.settings.permission_policy
    written = (*policy.allow, *policy.deny, *policy.ask) if policy is not None and policy.enabled else ()
    rules = [parse_rule(text) for text in written]
    found = [(f"the rule {rule.text!r} of the permissions", rule.tool) for rule in rules]
    found += [(f"matcher.tool {tool!r} of the hook {hook!r}", tool.casefold()) for hook, tool in session.hooks.tools()]
    return [(text, tool) for text, tool in found if "*" not in tool and "?" not in tool]
