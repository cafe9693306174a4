"""Stories and the ledger, without a page: sentences, bars, steps, and what is said to the server."""

from __future__ import annotations

from typing import Any

from tests.unit.dashboard.node import play

CALL: dict[str, Any] = {
    "call_id": "c1",
    "tool": "bash",
    "arguments": {},
    "lane": "execute",
    "status": "ok",
    "why": "",
    "queued_ms": 1200,
    "out_ms": None,
    "began_ms": 1500,
    "ended_ms": 2500,
    "attempt": 1,
    "worker": None,
    "task_id": None,
    "exit_code": None,
    "output": "",
    "output_chars": 0,
    "ledger": None,
}
ROUND: dict[str, Any] = {
    "number": 1,
    "state": "done",
    "asked_ms": 1000,
    "answered_ms": 1200,
    "waits": [],
    "retries": 0,
    "model": "scripted",
    "input_tokens": 1,
    "output_tokens": 1,
    "cost": None,
    "messages": ["m1"],
    "text": "",
    "text_chars": 0,
    "has_reasoning": False,
    "calls": [],
}
RUN: dict[str, Any] = {
    "run": {"run_id": "r1", "session_key": "s1", "state": "acting", "reason": "", "began_ms": 900, "ended_ms": None},
    "now": "",
    "is_over": False,
    "messages": [],
    "rounds": [],
    "rounds_before": 0,
    "approvals": [],
    "children": [],
    "plan": [],
    "steps": [],
}
MESSAGE: dict[str, Any] = {
    "message": {"message_id": "m1", "disposition": "queued", "position": 2, "reason": "", "arrived_ms": 100},
    "now": "turn-1 has run for 3000 ms",
    "is_over": False,
    "waits": [],
    "runs": [],
    "steps": [],
}


def a_run(*rounds: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """A story of a run."""
    return {**RUN, "rounds": list(rounds), **facts}


def a_round(*calls: dict[str, Any], **facts: Any) -> dict[str, Any]:
    """A round."""
    return {**ROUND, "calls": list(calls), **facts}


def ended(state: str, reason: str = "") -> dict[str, Any]:
    """A run that has ended."""
    return {"is_over": True, "run": {**RUN["run"], "state": state, "reason": reason, "ended_ms": 3000}}


def whys(*stories: tuple[Any, Any]) -> list[list[Any]]:
    """What each says about this moment."""
    script = "return given.map(([r, q]) => { const w = m.whyNow(r, q); return [w.text, w.tone, w.since]; })"
    found: list[list[Any]] = play("views/story_model.js", script, [list(each) for each in stories])
    return found


def test_one_sentence_says_why_it_waits() -> None:
    asking = a_round(state="asking", answered_ms=None)
    limit = {"kind": "limit", "reason": "too many calls", "began_ms": 1100, "ended_ms": None}
    slot = {"kind": "lane", "reason": "model", "began_ms": 1100, "ended_ms": None}
    pending = {"state": "pending", "action": "write", "asked_ms": 5, "expires_ms": 9, "call_id": "c1"}
    queued = {**CALL, "status": "queued", "began_ms": None, "ended_ms": None, "why": "2 jobs are before it."}
    out = {**queued, "status": "out", "out_ms": 1300, "why": "nobody has the label gpu"}
    running = {**CALL, "status": "running", "ended_ms": None, "worker": "w1"}
    assert whys(
        (None, MESSAGE),
        (a_run(asking), None),
        (a_run({**asking, "waits": [limit]}), None),
        (a_run({**asking, "waits": [slot]}, now="The model call: it waits\nmore"), None),
        (a_run(a_round(queued), approvals=[pending]), None),
        (a_run(a_round(queued, running)), None),
        (a_run(a_round(out)), None),
        (a_run(a_round(running)), None),
        (a_run(), None),
    ) == [
        ["Place 2: a run has gone on for 3 s.", "wait", 100],
        ["The model is at work on round 1.", "run", 1000],
        ["The provider takes no calls: too many calls.", "warn", 1100],
        ["The model call: it waits", "wait", 1100],
        ["Waits for an approval of write.", "warn", 5],
        ["bash waits in lane execute: 2 jobs are before it (and 1 more call).", "wait", 1200],
        ["bash waits for a worker: nobody has the label gpu.", "wait", 1300],
        ["bash runs in lane execute by w1.", "run", 1500],
        ["It is acting.", "run", 900],
    ]


def test_one_sentence_says_how_it_ended() -> None:
    dropped = {**MESSAGE["message"], "disposition": "dropped", "reason": "20 waited"}
    merged = {**MESSAGE, "is_over": True, "message": {**MESSAGE["message"], "disposition": "merged"}}
    assert [each[:2] for each in whys(
        (a_run(**ended("succeeded", "it answered")), None),
        (a_run(**ended("failed", "no model")), None),
        (a_run(**ended("cancelled", "too slow")), None),
        (a_run(**ended("succeeded")), merged),
        (None, {**MESSAGE, "is_over": True, "message": dropped}),
    )] == [
        ["It answered.", "ok"],
        ["It failed: no model.", "bad"],
        ["It was ended: too slow.", "off"],
        ["It was merged into a run with others. The run answered.", "ok"],
        ["It was dropped: 20 waited.", "bad"],
    ]  # fmt: skip


def drawn(run: Any, message: Any, now: int) -> dict[str, Any]:
    """The bars of a story."""
    found: dict[str, Any] = play(
        "views/story_bars.js", "return m.bars(given[0], given[1], given[2])", [run, message, now]
    )
    return found


def test_bars_show_waits_and_work_in_their_order() -> None:
    out = {**CALL, "call_id": "c2", "tool": "ls", "out_ms": 1300, "began_ms": 1900, "status": "error"}
    approval = {"state": "approved", "action": "bash", "call_id": "c1", "asked_ms": 1200, "ended_ms": 1250}
    chart = drawn(a_run(a_round(CALL, out), approvals=[approval], **ended("succeeded")), None, 9999)
    told = [
        [row["label"], *[(each["kind"], each["from"], each["to"]) for each in row["segments"]]] for row in chart["rows"]
    ]
    assert told == [
        ["model 1", ("model", 1000, 1200)],
        ["bash", ("approval", 1200, 1250), ("lane", 1200, 1500), ("tool", 1500, 2500)],
        ["ls", ("lane", 1200, 1300), ("worker", 1300, 1900), ("failed", 1900, 2500)],
    ]
    assert (chart["from"], chart["to"], chart["left"]) == (900, 3000, 0)


def test_what_goes_on_ends_now_and_what_is_not_known_is_not_drawn() -> None:
    running = {**CALL, "status": "running", "ended_ms": None}
    chart = drawn(a_run(a_round(running)), None, 7000)
    last = chart["rows"][-1]["segments"][-1]
    assert (last["to"], last["open"], chart["to"]) == (7000, True, 7000)
    old = {**CALL, "queued_ms": None, "began_ms": None, "ended_ms": None}
    lost = {**CALL, "status": "unknown", "ended_ms": None}
    chart = drawn(a_run(a_round(old, lost, asked_ms=None), **ended("interrupted")), None, 7000)
    assert [[row["label"], [each["kind"] for each in row["segments"]]] for row in chart["rows"]] == [["bash", ["lane"]]]


def test_a_message_without_a_run_has_bars_of_its_waits() -> None:
    waits = [{"kind": "run", "reason": "run r0", "began_ms": 100, "ended_ms": None, "run_id": "r0"}]
    chart = drawn(None, {**MESSAGE, "waits": waits}, 600)
    assert (chart["from"], chart["to"]) == (100, 600)
    assert chart["rows"][0]["segments"][0]["title"] == "waited for another run of its session, 500 ms"


def test_a_long_run_is_drawn_from_its_end() -> None:
    rounds = [a_round(number=number) for number in range(1, 301)]
    chart = drawn(a_run(*rounds, **ended("succeeded")), None, 0)
    assert (len(chart["rows"]), chart["left"], chart["rows"][-1]["label"]) == (80, 220, "model 300")


def test_times_that_overlap_count_once() -> None:
    other = {**CALL, "call_id": "c2", "began_ms": 2000, "ended_ms": 3000}
    script = "return m.totals(given, null, 0)"
    sums = play("views/story_bars.js", script, a_run(a_round(CALL, other), **ended("succeeded")))
    assert sums == {"worked": 200 + 1500, "waited": 800}


def test_a_cheaper_model_that_a_budget_has_chosen_is_no_bar() -> None:
    chosen = {"kind": "cheaper", "reason": "model 'small' is asked instead", "began_ms": 1100, "ended_ms": 1100}
    noted = drawn(a_run(a_round(waits=[chosen]), **ended("succeeded")), None, 9999)
    assert noted == drawn(a_run(a_round(), **ended("succeeded")), None, 9999)


def test_what_a_round_waits_for_is_not_work() -> None:
    waits = [{"kind": "budget", "reason": "", "began_ms": 200, "ended_ms": 900, "run_id": None}]
    run = a_run({**a_round(), "asked_ms": 100, "answered_ms": 1_000, "waits": waits}, **ended("succeeded"))
    assert play("views/story_bars.js", "return m.totals(given, null, 0)", run) == {"waited": 700, "worked": 200}


def test_a_run_whose_model_was_not_asked_had_no_round_and_cost_nothing() -> None:
    run = a_run({**a_round(), "was_asked": False, "asked_ms": None}, **ended("interrupted"))
    told = play(
        "views/story_model.js", "return [m.spentWords(given), m.steps(given, null).map((each) => each.title)]", run
    )
    assert told[0] == {"rounds": 0, "cost": "nothing: the model was not asked"}
    assert "Round 1: the model was not asked" in told[1]
    rests = play("views/story_model.js", "return m.whyNow(given, null)", {**run, "rests": "its session rests: a"})
    assert (rests["text"], rests["tone"]) == ("It is at rest: its session rests: a.", "wait")


def test_scales_have_few_even_places() -> None:
    spans = [1, 90, 1000, 61_000, 3_600_000 * 5, 86_400_000 * 400]
    found = play("views/story_bars.js", "return given.map((span) => m.ticks(0, span).map((each) => each.text))", spans)
    assert [len(each) <= 6 for each in found] == [True] * len(spans)
    assert found[2] == ["0 ms", "200 ms", "400 ms", "600 ms", "800 ms"]


def test_steps_are_told_in_order_and_each_once() -> None:
    events = [
        {
            "at_ms": 900,
            "type": "turn.started",
            "reason": "a slot was free",
            "actor": "inbox",
            "run_id": "r1",
            "facts": {},
        },
        {"at_ms": 900, "type": "message.started", "reason": "", "actor": "inbox", "run_id": "r1", "facts": {}},
        {
            "at_ms": 2600,
            "type": "turn.ended",
            "reason": "",
            "actor": "ada",
            "run_id": "r1",
            "facts": {"state": "failed"},
        },
    ]
    came = {
        "at_ms": 100,
        "type": "message.accepted",
        "reason": "",
        "actor": "inbox",
        "run_id": "",
        "facts": {"position": 1},
    }
    steered = {"message_id": "m2", "role": "steered", "text": "no", "heard_ms": 1900, "arrived_ms": 1800, "sender": ""}
    began = {**steered, "message_id": "m1", "role": "began", "heard_ms": 900}
    child = {
        "child_id": "sub-1",
        "label": "finder",
        "state": "succeeded",
        "began_ms": 1600,
        "ended_ms": 1700,
        "tokens": 1,
    }
    run = a_run(a_round(CALL), steps=events, messages=[began, steered], children=[child], **ended("failed"))
    script = "return m.steps(given[0], given[1]).map((each) => [each.at, each.what, each.title, each.tone])"
    told = play("views/story_model.js", script, [run, {**MESSAGE, "steps": [came, *events]}])
    assert told == [
        [100, "event", "It came", "off"],
        [900, "event", "A run took it", "off"],
        [900, "event", "The run began", "off"],
        [1200, "round", "Round 1: the model wants 1 call", "run"],
        [1200, "call", "bash", "ok"],
        [1600, "child", "Sub-agent: finder", "run"],
        [1900, "message", "A message was steered in", "run"],
        [2600, "event", "The run ended: failed", "bad"],
    ]


def test_a_call_says_what_it_took() -> None:
    out = {**CALL, "out_ms": 1300, "worker": "w\u202e1", "attempt": 2, "exit_code": 1}
    unknown = {**CALL, "lane": None, "queued_ms": None, "began_ms": None, "ended_ms": None}
    found = play("views/story_model.js", "return given.map(m.callWords)", [CALL, out, unknown])
    assert found == [
        "waited 300 ms in lane execute, ran 1 s",
        "waited 100 ms in lane execute, 200 ms for a worker, ran 1 s, by w⟨U+202E⟩1, attempt 2, exit code 1",
        "",
    ]


def test_only_what_concerns_a_story_has_it_read_again() -> None:
    cases: list[tuple[str, dict[str, Any]]] = [
        ("tool_end", {"metadata": {"run_id": "r1"}}),
        ("tool_end", {"metadata": {"run_id": "r2"}}),
        ("text_delta", {"metadata": {"run_id": "r1"}}),
        ("message.moved", {"message_id": "m1"}),
        ("turn.ended", {"turn_id": "r0"}),
        ("session.typing", {}),
    ]
    script = "return given.map(([type, facts]) => m.concerns(type, facts, { runId: 'r1', messageId: 'm1' }))"
    assert play("views/story_model.js", script, cases) == [True, False, False, True, True, False]


# ---- the ledger ----


def test_three_ways_out_are_said_to_the_server() -> None:
    script = """return [m.settlement("happened", " seen "), m.settlement("again", "x"), m.settlement("leave", "x"),
      m.settlement("happened", "x", false), m.wrongReason("  "), m.wrongReason("x".repeat(2001)), m.wrongReason("x")]"""
    *sent, empty, long, fine = play("views/ledger_model.js", script)
    assert sent == [
        {"reason": "seen", "happened": True, "go_on": True},
        {"reason": "x", "happened": False, "go_on": True},
        {"reason": "x", "happened": None, "go_on": False},
        {"reason": "x", "happened": True, "go_on": False},
    ]
    assert (bool(empty), bool(long), fine) == (True, True, "")


def test_what_was_settled_leaves_the_list_of_unknown_ones() -> None:
    script = """const items = [{ entry_id: "a", state: "unknown" }, { entry_id: "b", state: "unknown" }];
      const done = { entry_id: "a", state: "settled", actor: "ada", happened: false, reason: "looked" };
      const left = m.replaced(items, done, "unknown"), failed = { state: "failed", reason: "no" };
      return [left.map((each) => each.entry_id), m.replaced(items, done, "").map((each) => each.state),
        [...m.stillMarked(new Set(["a", "b"]), left)], m.endWords(done), m.endWords(failed)]"""
    assert play("views/ledger_model.js", script) == [
        ["b"],
        ["settled", "unknown"],
        ["b"],
        "settled by ada: it had no effect; looked",
        "no",
    ]
