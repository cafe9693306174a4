"""Rules of permissions that name no tool are told in the log, once, with what was probably meant."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from laneway.agent import AsyncAgent
from laneway.models import ScriptedModel
from laneway.options import Hook, PermissionPolicy
from laneway.policies import McpServerConfig
from laneway.tools import tool


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


async def warned(caplog: pytest.LogCaptureFixture, *, sessions: int = 1, **options: Any) -> list[str]:
    """What the log says when sessions of an agent with one tool are opened."""
    with caplog.at_level(logging.WARNING, "laneway"):
        async with AsyncAgent(ScriptedModel([]), tools=[pay], **options) as agent:
            for _ in range(sessions):
                await agent.session().ready()
    return [record.getMessage() for record in caplog.records if "names no tool" in record.getMessage()]


@pytest.mark.parametrize("where", ["allow", "deny", "ask"])
@pytest.mark.parametrize("rule", ["pya", "Pya(x)"])
async def test_a_misspelled_tool_is_told_with_what_was_meant(
    caplog: pytest.LogCaptureFixture, where: str, rule: str
) -> None:
    rules: dict[str, Any] = {where: (rule,)}
    (line,) = await warned(caplog, permission_policy=PermissionPolicy(**rules))
    assert f"the rule {rule!r} of the permissions names no tool" in line
    assert "(did you mean 'pay'?)" in line


async def test_a_name_that_is_near_nothing_is_told_without_a_guess(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = await warned(caplog, permission_policy=PermissionPolicy(deny=["xxxxxxxx"]))
    assert "did you mean" not in line


@pytest.mark.parametrize(
    "rule",
    [
        "pay",
        "PAY(x)",
        "p?y*",
        "zzz*",
        "*",
        "bash(git *)",
        "web_fetch",
        "Skill",
        "task",
        "request_followup",
        "update_plan",
    ],
)
@pytest.mark.parametrize("builtin", [True, False])
async def test_what_is_a_tool_or_a_pattern_or_laneways_own_is_not_told(
    caplog: pytest.LogCaptureFixture, rule: str, builtin: bool
) -> None:
    policy = PermissionPolicy(allow=[rule])
    assert await warned(caplog, permission_policy=policy, builtin_tools=builtin) == []


async def test_it_is_told_once_for_an_agent_whatever_the_number_of_its_sessions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert len(await warned(caplog, sessions=3, permission_policy=PermissionPolicy(allow=["pya"], deny=["pya"]))) == 1
    caplog.clear()
    assert len(await warned(caplog, permission_policy=PermissionPolicy(allow=["pya"]))) == 1


async def test_a_policy_that_is_off_is_not_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    assert await warned(caplog, permission_policy=PermissionPolicy(allow=["pya"], enabled=False)) == []


@pytest.mark.slow
async def test_tools_of_a_server_that_does_not_run_may_be_named(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    server = McpServerConfig(command=str(tmp_path / "no-such-program"))
    policy = PermissionPolicy(allow=["mcp__s__find", "pya"])
    (line,) = await warned(caplog, permission_policy=policy, mcp_servers={"s": server})
    assert "'pya'" in line


async def test_tools_of_a_server_that_there_is_not_are_told(caplog: pytest.LogCaptureFixture) -> None:
    assert len(await warned(caplog, permission_policy=PermissionPolicy(allow=["mcp__s__find"]))) == 1


async def test_a_matcher_of_a_hook_that_names_no_tool_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def watch(tool: str, name: str) -> Hook:
        return Hook(name, "pre_tool_use", {"tool": tool}, handler=lambda event: None)

    hooks = [watch("pya", "a"), watch("Pay", "b"), watch("p*", "c"), watch("bash", "d"), watch("mcp__x__y*", "e")]
    (line,) = await warned(caplog, sessions=2, hooks=hooks)
    assert line.startswith("matcher.tool 'pya' of the hook 'a' names no tool of session")
    assert "(did you mean 'pay'?)" in line
