"""Which session belongs to which, by their keys."""

from __future__ import annotations

import pytest

from laneway.agent.subagents import root_of
from laneway.gateway.lookup import in_family

CHILD, GRANDCHILD = "a~0123456789ab", "a~0123456789ab~ba9876543210"


@pytest.mark.parametrize(
    ("key", "root"),
    [
        ("a", "a"),
        (CHILD, "a"),
        (GRANDCHILD, "a"),
        ("a~b", "a~b"),
        ("a~b~0123456789ab", "a~b"),
        ("~0123456789ab", "~0123456789ab"),
    ],
)
def test_a_sub_agent_works_for_the_session_at_the_top(key: str, root: str) -> None:
    assert root_of(key) == root


@pytest.mark.parametrize(
    ("key", "of", "is_one"),
    [
        ("a", "a", True),
        (CHILD, "a", True),
        (GRANDCHILD, "a", True),
        (GRANDCHILD, CHILD, True),
        (CHILD, GRANDCHILD, False),
        ("a~b", "a", False),
        ("a~b~0123456789ab", "a", False),
        ("ab", "a", False),
    ],
)
def test_a_session_that_only_looks_like_one_of_a_family_is_none(key: str, of: str, is_one: bool) -> None:
    assert in_family(key, of) is is_one
