"""Completion asks a server for a moment, and is silent when there is none."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.cli import completion
from laneway.cli.completion import (
    complete_approval,
    complete_lane,
    complete_message,
    complete_run,
    complete_session,
)
from tests.cli_stage import NOWHERE, run

COMPLETIONS = [complete_session, complete_message, complete_run, complete_lane, complete_approval]


@pytest.mark.parametrize("complete", COMPLETIONS)
def test_without_a_server_nothing_is_offered(complete: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEWAY_URL", NOWHERE)
    assert complete("") == []


@pytest.mark.parametrize("complete", COMPLETIONS)
@pytest.mark.parametrize("url", ["nonsense", "ftp://x"])
def test_an_address_that_is_none_is_no_fault(complete: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANEWAY_URL", url)
    assert complete("x") == []


def test_names_that_fit_are_offered_with_a_word_about_them(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [
        {"session_key": "s1", "state": "idle"},
        {"session_key": "s2", "state": "thinking"},
        {"session_key": "other", "state": "idle"},
        {"session_key": "s\x1b[31m", "state": "idle"},  # would act on the terminal
    ]
    monkeypatch.setattr(completion, "_items", lambda path, **params: items)
    assert complete_session("s") == [("s1", "idle"), ("s2", "thinking")]


def test_messages_that_wait_and_runs_that_go_on_are_found_by_their_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "/sessions": [
            {"session_key": "s1", "waiting": 1, "run_id": "turn-1"},
            {"session_key": "s2", "waiting": 0, "run_id": None},
        ],
        "/sessions/s1/pending": [{"message_id": "msg-1", "text": "two\nlines"}],
    }
    monkeypatch.setattr(completion, "_items", lambda path, **params: answers[path])
    assert complete_message("msg") == [("msg-1", "two lines")]
    assert complete_run("turn") == [("turn-1", "s1")]


def test_a_shell_can_be_given_completion() -> None:
    result = run("--show-completion", "bash")
    assert result.exit_code == 0
    assert "_LANEWAY_COMPLETE" in result.stdout
