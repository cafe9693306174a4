"""The model of a replay: which steps are listed, what one says in full, what is said of the whole."""

from __future__ import annotations

from typing import Any

from tests.unit.dashboard.node import play

MODEL = "views/replay_model.js"


def a_step(number: int, op: str = "say", **body: Any) -> dict[str, Any]:
    return {"number": number, "op": op, "text": op, "at_ms": None, "body": body, "is_cut": False}


STEPS = [a_step(1, "machine"), a_step(2, "event"), a_step(3, "chunks"), a_step(4, "ask"), a_step(5, "event")]


def test_events_can_be_left_out_but_not_the_one_that_is_looked_at() -> None:
    script = """return [{}, { events: false }, { events: false, selected: 2 }].map((how) =>
      m.listed(given, how).map((each) => each.number))"""
    assert play(MODEL, script, STEPS) == [[1, 2, 3, 4, 5], [1, 4], [1, 2, 4]]


def test_steps_are_gone_through_one_by_one_and_end_at_the_ends() -> None:
    script = "return given[1].map(([from, by]) => m.stepAfter(given[0], from, by))"
    cases = [[1, 1], [1, -1], [5, 1], [5, -1], [4, 2], [99, 1]]
    assert play(MODEL, script, [STEPS, cases]) == [2, 1, 5, 4, 5, 1]
    assert play(MODEL, "return [m.stepAfter([], 3, 1)]") == [3]


def test_an_address_names_a_step_that_there_is() -> None:
    script = "return given.map(([text, total]) => m.stepOf(text, total))"
    cases = [["7", 10], ["70", 10], ["0", 10], ["-1", 10], ["x", 10], [None, 10], ["1e3", 10], ["3", 0]]
    assert play(MODEL, script, cases) == [7, 10, 1, 1, 1, 1, 1, 1]


def test_it_is_said_whether_a_run_would_go_the_same_way() -> None:
    same = {"same": True, "step": None, "where": ""}
    other = {"same": False, "step": 1200, "where": "the system prompt is another one"}
    script = "return given.map(([replay, how]) => m.verdictOf(replay, how))"
    cases = [
        [same, {"recorded": True, "isOver": True}],
        [same, {"recorded": False, "isOver": True}],
        [same, {"recorded": True, "isOver": False}],
        [other, {"recorded": True, "isOver": True}],
    ]
    told = play(MODEL, script, cases)
    assert [(each["tone"], each["title"]) for each in told] == [
        ("ok", "It would go the same way today"),
        ("off", "Its rounds would be the same today"),
        ("ok", "It would go the same way today"),
        ("warn", "It would go another way today, from step 1,200 on"),
    ]
    assert "told from checkpoints" in told[1]["text"]
    assert "not over" in told[2]["text"]
    assert told[3]["text"] == "The system prompt is another one."


def test_two_runs_part_at_a_step_of_each() -> None:
    script = "return given.map((each) => m.comparedWords(each).title)"
    parts = {"same": False, "where": "what was said", "this": {"step": 2}, "other": {"step": 2}}
    cases = [{"same": True}, parts, {**parts, "other": {"step": 4}}]
    assert play(MODEL, script, cases) == [
        "Both runs are the same, step by step",
        "They part at step 2: what was said",
        "They part at step 2 here and step 4 there: what was said",
    ]


def test_a_fork_is_named_with_where_it_begins_and_what_it_is_told() -> None:
    script = "return given.map((each) => m.forkWords(each))"
    found = {"run_id": "r1", "other_run_id": "r2", "fork_run_id": "r2", "fork_step": 18, "told": "Half"}
    cases = [{"run_id": "r1", "fork_run_id": None}, found, {**found, "fork_run_id": "r1", "told": ""}]
    assert play(MODEL, script, cases) == [
        "",
        "The other run goes on from step 18 of this one: up to there they are the same. It is told: Half",
        "This run goes on from step 18 of the other: up to there they are the same.",
    ]


def test_a_fork_says_what_becomes_of_each_open_call() -> None:
    def open_call(tool: str, fork: str, *, has_begun: bool = True) -> dict[str, Any]:
        return {"call_id": tool, "tool": tool, "fork": fork, "has_begun": has_begun}

    cases = [
        {},
        {"open_calls": [open_call("pay", "made", has_begun=False)]},
        {"open_calls": [open_call("look", "made"), open_call("read", "made")]},
        {"open_calls": [open_call("pay", "kept"), open_call("ship", "unknown")]},
    ]
    told = play(MODEL, "return given.map((each) => m.forkStart(each))", cases)
    kept = "What has its result before this step is kept and not done again."
    assert told[0] == kept
    assert told[1].startswith(f"{kept} 1 call (pay) is made, for real; to have the model decide anew")
    assert told[2].startswith(f"{kept} 2 calls (look, read) are made once more, for real")
    assert "1 call (pay) had begun and is not made again: the result is kept." in told[3]
    assert "1 call (ship) had begun, and nobody knows what came of it: it is not made again" in told[3]


def test_a_step_in_full_has_its_texts_and_facts() -> None:
    answer = {
        "text": "One moment.",
        "calls": [["c1", "pay", '{"bill":"rent"}'], ["c2", "look", '{"bill":']],
        "model": "m1",
        "usage": [9, 5, 0, 0, None],
    }
    steps = [
        a_step(1, "say", prompts=["hi", {"text": "more", "role": "system", "attachments": [{}]}], skipped=[]),
        a_step(2, "answered", n=1, answer=answer, is_final=False, at_once=[]),
        a_step(3, "result", call="c1", tool="pay", status="timed_out", output="paid"),
        a_step(4, "event", type="tool_start", data={"tool_name": "pay"}),
        a_step(5, "something_new", a=1),
    ]
    said, answered, result, event, new = play(MODEL, "return given.map(m.partsOf)", steps)
    assert said == [
        {"name": "Said by the user", "text": "hi"},
        {"name": "Said by system (1 attachment)", "text": "more"},
    ]
    assert [part["name"] for part in answered] == ["", "Text", "Wants pay", "Wants look", ""]
    assert answered[2]["text"] == '{\n  "bill": "rent"\n}'
    assert answered[3]["text"] == '{"bill":'
    assert answered[4]["facts"] == [["Model", "m1"], ["Tokens in", "9"], ["Tokens out", "5"]]
    assert result[0]["facts"] == [["Tool", "pay"], ["Ended", "timed out"], ["Call", "c1"]]
    assert result[1] == {"name": "Output", "text": "paid"}
    assert event[1] == {"name": "What it told", "value": {"tool_name": "pay"}}
    assert new == [{"name": "As it is written", "value": {"a": 1}}]


def test_a_step_that_was_cut_anywhere_is_shown_all_the_same() -> None:
    ops = [
        "machine",
        "base",
        "say",
        "add",
        "go_on",
        "code",
        "plan",
        "ask",
        "failed",
        "chunks",
        "answered",
        "act",
        "result",
        "amend",
        "close",
        "finish",
        "fail",
        "event",
        "round",
    ]
    odd: list[dict[str, Any]] = [{}, {"prompts": ["…"]}, {"answer": {"calls": ["…", ["c1"]]}}, {"round": {}}]
    odd += [{"said": ["…", {"answer": {}}]}, {"results": ["…"]}, {"tools": ["…"], "round": {"results": ["…"]}}]
    steps = [a_step(1, op, **body) for op in ops for body in odd]
    script = "return given.map((step) => [m.partsOf(step), m.kindOf(step.op), m.toneOf(step)])"
    assert len(play(MODEL, script, steps)) == len(steps)


def test_very_many_parts_are_counted_at_the_end() -> None:
    step = a_step(1, "base", said=[{"prompt": str(number)} for number in range(150)])
    parts = play(MODEL, "return m.partsOf(given)", step)
    assert (len(parts), parts[-1]["name"]) == (101, "50 more parts")
