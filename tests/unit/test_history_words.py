"""Steps of histories in plain words, and cut to what can be taken in at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from laneway import replay
from laneway.kernel.history_words import SHOWN, shortened, tell_step, tell_steps

SCENES = sorted((Path(__file__).parents[1] / "data" / "histories").glob("*.jsonl"))

CALLS = {"calls": [["c1", "pay", '{"bill":"rent"}'], ["c2", "look", "{}"]], "text": "One moment."}
TOLD: list[tuple[dict[str, Any], str]] = [
    (
        {"op": "machine", "limits": [50, 64], "c": 0, "from": "", "first": 1, "plan": None},
        "The run begins, at most 50 rounds of tools",
    ),
    (
        {"op": "machine", "limits": [1_000_000, 1], "from": "run-1", "first": 3},
        "It goes on for run run-1, with round 3",
    ),
    ({"op": "base", "said": []}, "Nothing was said before it"),
    ({"op": "base", "said": [{"prompt": "hi"}]}, "Before it, 1 thing was said"),
    ({"op": "say", "prompts": ["Pay the\n rent"], "skipped": []}, "It is told: Pay the rent"),
    (
        {"op": "code", "system": "Be brief.", "tools": [{"name": "pay"}]},
        "From here on: system prompt (9 characters), 1 tool: pay",
    ),
    (
        {"op": "ask", "n": 1, "purpose": "answer", "same": 1, "new": ["a", "b"]},
        "The model is asked for an answer in round 1 (3 parts of conversation)",
    ),
    (
        {"op": "ask", "n": 0, "purpose": "summary", "same": 0, "new": ["a"]},
        "The model is asked for a summary of what was said (1 part of conversation)",
    ),
    ({"op": "failed", "error": "no route"}, "The model did not answer: no route"),
    ({"op": "chunks", "pieces": [["text", 5]]}, "The answer came in 1 piece"),
    (
        {"op": "answered", "n": 1, "answer": CALLS, "calls": ["c1", "c2"], "is_final": False},
        'Round 1: the model wants 2 calls: pay {"bill":"rent"}, look {}; says: One moment.',
    ),
    ({"op": "act", "calls": ["c1", "c2"]}, "2 calls are made: pay, look"),
    (
        {"op": "result", "call": "c1", "tool": "pay", "status": "ok", "output": "paid"},
        "pay has ended (ok): paid",
    ),
    (
        {"op": "result", "call": "c2", "tool": "look", "status": "timed_out", "output": "", "exit_code": 3},
        "look has ended (timed out, exit code 3)",
    ),
    ({"op": "close", "n": 1}, "Round 1 is whole"),
    ({"op": "say", "prompts": [{"text": "no"}], "skipped": ["c2"]}, "It is told (it skips look): no"),
    (
        {"op": "event", "type": "tool_start", "data": {"tool_name": "pay"}},
        "Event: tool start (pay)",
    ),
    ({"op": "answered", "n": 2, "answer": {"text": "Done."}, "is_final": True}, "Round 2: the model answers: Done."),
    ({"op": "finish", "n": 2}, "The run has its answer, in round 2"),
    ({"op": "fail", "reason": "max_tool_rounds"}, "A limit ends the run: max_tool_rounds"),
    ({"op": "cut", "results": [{}], "forget": False}, "It was ended before it had its answer; 1 call cut off"),
]


def test_every_step_is_told_in_words_and_calls_by_their_tools() -> None:
    assert list(tell_steps(step for step, _ in TOLD)) == [words for _, words in TOLD]


@pytest.mark.parametrize("file", SCENES, ids=lambda path: path.stem)
def test_no_step_of_a_recorded_run_is_told_by_its_name_alone(file: Path) -> None:
    steps = replay.load(file).steps
    told = list(tell_steps(steps))
    assert [step["op"] for step, words in zip(steps, told, strict=True) if words == step["op"]] == []
    assert max(map(len, told)) <= SHOWN
    assert not any("\n" in words for words in told)


@pytest.mark.parametrize(
    "step",
    [{"op": "new"}, {"op": "ask"}, {"op": "result", "output": 3}, {"op": "act", "calls": 7}, {"op": "event"}],
    ids=str,
)
def test_a_step_of_an_unknown_shape_is_told_by_its_name(step: dict[str, Any]) -> None:
    assert tell_step(step) == step["op"]


def test_a_long_step_is_one_short_line() -> None:
    told = tell_step({"op": "say", "prompts": ["x " * 1_000_000]})
    assert len(told) == SHOWN
    assert told.endswith("…")


def test_a_step_is_cut_where_it_is_too_long() -> None:
    step = {"op": "result", "output": "x" * 50, "more": list(range(100)), "last": 1}
    assert shortened(step, 1_000) == (step, False)
    found, is_cut = shortened(step, 40)
    assert is_cut
    assert found["output"].startswith("xxx")
    assert found["output"].endswith("…")
    assert len(json.dumps(found)) < 80
    assert shortened({"a": ["b"]}, 0) == ({}, True)


def test_what_is_nested_without_end_is_cut() -> None:
    deep: Any = 1
    for _ in range(5_000):
        deep = [deep]
    found, is_cut = shortened(deep, 1_000_000)
    assert is_cut
    assert "…" in json.dumps(found, ensure_ascii=False)


def test_how_a_call_ended_stands_behind_an_output_that_was_cut() -> None:
    step = {"call": "c", "tool": "bash", "output": "x" * 5_000, "status": "error", "exit_code": 3, "more": "y" * 100}
    body, is_cut = shortened(step, 2_000)
    assert is_cut
    assert len(body["output"]) < 2_100
    assert (body["status"], body["exit_code"]) == ("error", 3)
    assert "more" not in body
