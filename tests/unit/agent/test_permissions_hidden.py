"""What a rule forbids to read stays out of what other tools come upon."""

from __future__ import annotations

import pytest

from laneway.kernel.permissions import hides
from laneway.options import PermissionPolicy


@pytest.mark.parametrize(
    "policy",
    [
        None,
        PermissionPolicy(deny=("read(x)",), enabled=False),
        PermissionPolicy(allow=("read(src/**)",)),
        PermissionPolicy(deny=("bash(rm *)", "web_fetch(evil.com)", "read")),
        PermissionPolicy(ask=("read(x)",)),
    ],
)
def test_a_policy_that_forbids_no_path_hides_nothing_and_costs_nothing(policy: PermissionPolicy | None) -> None:
    assert hides(policy, "/w") is None


@pytest.mark.parametrize("tool", ["grep", "glob", "ls", "read"])
@pytest.mark.parametrize("rule", ["*(**/.env*)", "read(**/.env*)", "read(/w/**/.env)", "Read(./x/../.env)"])
def test_what_may_not_be_read_is_hidden_from_tools_that_search(tool: str, rule: str) -> None:
    is_hidden = hides(PermissionPolicy(deny=(rule,)), "/w")
    assert is_hidden is not None
    assert is_hidden(".env", tool)
    assert is_hidden("./.ENV", tool)
    assert not is_hidden("env", tool)
    assert not is_hidden(".", tool)


def test_a_rule_of_one_tool_hides_nothing_from_others() -> None:
    is_hidden = hides(PermissionPolicy(deny=("grep(logs/**)", "write(**/.env)")), "/w")
    assert is_hidden is not None
    assert is_hidden("logs/a", "grep")
    assert not is_hidden("logs/a", "read")
    assert not is_hidden("logs/a", "glob")
    assert is_hidden("a/.env", "write")
    assert not is_hidden("a/.env", "grep")
    assert not is_hidden("a/.env", "no_such_tool")
