"""Definitions of agents: which files count, what they say, and what a model is told of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from laneway.agent.definitions import Definitions
from laneway.errors import ConfigError

WHOLE = """---
name: reviewer
description: Reads a change and says what is wrong with it.
tools: read, grep, bash(git diff *)
model: scripted
max_tool_rounds: 12
---
You review changes.
"""


def put(folder: Path, name: str, text: str) -> None:
    """A file with a definition."""
    (folder / f"{name}.md").write_text(text, encoding="utf-8")


def test_a_definition_is_what_its_file_says(tmp_path: Path) -> None:
    put(tmp_path, "reviewer", WHOLE)
    definitions = Definitions([str(tmp_path)])
    found = definitions.get("reviewer")
    assert found is not None
    assert (found.description, found.system) == (
        "Reads a change and says what is wrong with it.",
        "You review changes.",
    )
    assert found.tools == found.allowed == ("read", "grep", "bash(git diff *)")
    assert (found.model, found.max_tool_rounds) == ("scripted", 12)
    assert (definitions.names(), len(definitions), definitions.problems) == (("reviewer",), 1, ())


def test_a_tool_is_offered_if_some_call_of_it_may_be_allowed(tmp_path: Path) -> None:
    put(tmp_path, "reviewer", WHOLE)
    put(tmp_path, "all", "---\nname: all\n---\n")
    put(tmp_path, "mcp", "---\nname: mcp\ntools: [mcp__x__*]\n---\n")
    definitions = Definitions([str(tmp_path)])
    names = ("read", "Bash", "write", "mcp__x__find")
    offered = {each: [definitions.get(each).offers(name) for name in names] for each in definitions.names()}  # type: ignore[union-attr]
    assert offered == {
        "all": [True, True, True, True],
        "mcp": [False, False, False, True],
        "reviewer": [True, True, False, False],
    }


@pytest.mark.parametrize("tools", ["model: scripted", "description: x"])
def test_without_tools_it_has_those_of_its_parent(tmp_path: Path, tools: str) -> None:
    put(tmp_path, "x", f"---\nname: x\n{tools}\n---\n")
    found = Definitions([str(tmp_path)]).get("x")
    assert found is not None
    assert found.allowed is None


@pytest.mark.parametrize("tools", ["tools: []", "tools: ''"])
def test_with_an_empty_list_of_tools_it_has_none(tmp_path: Path, tools: str) -> None:
    put(tmp_path, "x", f"---\nname: x\n{tools}\n---\n")
    found = Definitions([str(tmp_path)]).get("x")
    assert found is not None
    assert found.allowed == ()
    assert not found.offers("read")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("You review.", "does not begin with front matter"),
        ("---\ndescription: x\n---\n", "it has no name"),
        ("---\nname: x\ntools:\n---\n", "tools is a list"),
        ("---\nname: x\ntools: bash(\n---\n", "bracket is not closed"),
        ("---\nname: x\nmodel: 5\n---\n", "model is text, not 5"),
        ("---\nname: x\nmax_tool_rounds: 0\n---\n", "max_tool_rounds is a whole number from 1 to 1,000,000, not 0"),
        ("---\nname: x\nmax_tool_rounds: true\n---\n", "max_tool_rounds is a whole number"),
        ("---\nname: x\nmax_tool_rounds: ten\n---\n", "max_tool_rounds is a whole number"),
    ],
)
def test_a_broken_file_is_left_out_with_its_reason(tmp_path: Path, text: str, reason: str) -> None:
    put(tmp_path, "broken", text)
    put(tmp_path, "reviewer", WHOLE)
    definitions = Definitions([str(tmp_path)])
    assert definitions.names() == ("reviewer",)
    assert len(definitions.problems) == 1
    assert reason in definitions.problems[0].reason


def test_folders_inside_are_not_definitions(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    put(tmp_path / "inner", "SKILL", WHOLE)
    assert Definitions([str(tmp_path)]).names() == ()


def test_a_folder_that_is_not_there_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="agent_dirs: the folder") as caught:
        Definitions([str(tmp_path / "nowhere")])
    assert caught.value.setting == "agent_dirs"


def test_a_model_is_told_names_and_what_they_are_for(tmp_path: Path) -> None:
    put(tmp_path, "reviewer", WHOLE)
    definitions = Definitions([str(tmp_path)])
    assert definitions.system_text() == (
        "Agents that you can hand a task to, by name:\n- reviewer: Reads a change and says what is wrong with it."
    )
    assert definitions.unknown("reviewr") == "there is no agent 'reviewr'; did you mean 'reviewer'?"
    assert definitions.unknown("x") == "there is no agent 'x'; there are: reviewer"


def test_no_folders_are_no_definitions() -> None:
    definitions = Definitions()
    assert (definitions.names(), definitions.get("x"), definitions.system_text()) == ((), None, "")
    assert definitions.unknown("x") == "there is no agent 'x'; there are: none"
