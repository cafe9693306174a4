"""What chat answers by itself: help, and commands that are mistyped."""

from __future__ import annotations

import pytest

from laneway.cli.chat_words import COMMANDS, Words
from laneway.kernel.directives import parse

LOCAL = {"/help", "/quit"}


@pytest.mark.parametrize("text", ["/help", " /HELP ", "/help!", "/help me"])
def test_help_lists_every_command(text: str) -> None:
    said = Words().answer(text)
    assert all(name in said for name in COMMANDS)


@pytest.mark.parametrize("name", sorted(set(COMMANDS) - LOCAL))
def test_every_listed_command_is_one_and_goes_to_the_server(name: str) -> None:
    assert parse(f"{name} x") is not None
    assert Words().answer(f"{name} x") == ""


@pytest.mark.parametrize("text", ["hello", "/usr/bin is full", "/foo bar", "what does /stauts do?", "", "/"])
def test_what_resembles_no_command_is_a_message(text: str) -> None:
    assert Words().answer(text) == ""


def test_a_mistyped_command_is_held_back_once() -> None:
    words = Words()
    assert "did you mean /status?" in words.answer("/stauts")
    assert words.answer("/stauts") == ""
    assert "did you mean /status?" in words.answer("/stauts")
    assert words.answer("no") == ""
    assert words.answer("/stauts") != ""
