"""What the overview and the guide make of what a server tells."""

from __future__ import annotations

from typing import Any

from tests.unit.dashboard.node import play

OVERVIEW = "views/overview_model.js"
GUIDE = "views/guide_model.js"
NOTHING: dict[str, Any] = {"running": 0, "waiting": 0, "sessions": 0, "at_work": [], "groups": []}


def cares(count: int, *, more: bool = False) -> dict[str, Any]:
    """Things of one kind."""
    return {"count": count, "more": more, "items": []}


# ---- the overview ----


def test_one_sentence_says_what_goes_on() -> None:
    busy = {**NOTHING, "running": 1, "waiting": 2}
    given = [
        [NOTHING, {}],
        [busy, {"approvals": cares(1)}],
        [{**busy, "running": 3, "waiting": 1}, {"ledger": cares(200, more=True), "lanes": cares(1)}],
    ]
    assert play(OVERVIEW, "return given.map(([now, needs]) => m.sentenceOf(now, needs))", given) == [
        "Nothing runs, nothing waits, nothing needs you.",
        "1 session is at work, 2 messages wait, 1 thing needs you.",
        "3 sessions are at work, 1 message waits, more than 201 things need you.",
    ]


def test_the_most_urgent_comes_first_and_what_is_none_is_left_out() -> None:
    given = {"limits": cares(1), "approvals": cares(2), "runs": cares(0), "ledger": cares(200, more=True)}
    script = "return m.needs(given).map((each) => [each.name, m.countOf(each)])"
    assert play(OVERVIEW, script, given) == [["approvals", "2"], ["ledger", "200+"], ["limits", "1"]]


def test_the_words_of_a_run_do_not_repeat_its_badge() -> None:
    given = [
        {"doing": "waiting", "state": "running", "words": "waits for an approval: bash"},
        {"doing": "waiting", "state": "running", "words": "waits: what is left of budget 'daily' is too little"},
        {"doing": "tools", "state": "running", "words": "runs bash"},
    ]
    assert play(OVERVIEW, "return given.map((each) => m.restOf(each))", given) == [
        "for an approval: bash",
        "what is left of budget 'daily' is too little",
        "runs bash",
    ]


def test_there_is_a_way_out_of_every_wait() -> None:
    def group(why: str, words: str = "", lane: str = "", *examples: str) -> dict[str, Any]:
        return {"why": why, "words": words, "lane": lane, "examples": list(examples)}

    given = [
        group("slot", "its turn waits: lane 'main' is paused", "main", "a"),
        group("slot", "its turn waits for a slot", "main", "a"),
        group("approval", "", "", "a"),
        group("run", "", "", "a"),
        group("held", "", "", "a", "b"),
        group("rests", "", "", "a"),
    ]
    assert play(OVERVIEW, "return given.map((each) => m.wayOut(each))", given) == [
        {"text": "Resume lane", "lane": "main"},
        {"text": "Look at the lanes", "route": "lanes", "params": []},
        {"text": "Answer it", "route": "approvals", "params": []},
        {"text": "Open", "route": "chat", "params": ["a"]},
        {"text": "Look at the sessions", "route": "sessions", "params": []},
        {"text": "Look at it", "route": "sessions", "params": ["a"]},
    ]


def test_many_events_are_read_once_and_what_came_meanwhile_once_more() -> None:
    script = """
    let clock = 0, reads = 0, finish = null;
    const timers = [];
    const read = () => { reads += 1; return new Promise((resolve) => { finish = resolve; }); };
    const pace = m.pacer(read, { gapMs: 500, later: (fn, ms) => timers.push([fn, ms]), time: () => clock });
    for (let n = 0; n < 100; n += 1) pace.told();
    const first = timers.map(([, ms]) => ms);
    timers.shift()[0]();
    for (let n = 0; n < 100; n += 1) pace.told();
    const during = timers.length;
    clock = 300;
    finish();
    await new Promise((resolve) => setTimeout(resolve));
    const after = timers.map(([, ms]) => ms);
    timers.shift()[0]();
    clock = 400;
    finish();
    await new Promise((resolve) => setTimeout(resolve));
    return { first, during, after, reads, left: timers.length };
    """
    assert play(OVERVIEW, script) == {"first": [0], "during": 0, "after": [1200], "reads": 2, "left": 0}


def test_a_history_becomes_times_and_numbers() -> None:
    total = {"ended": [1, 2, 3], "wait_p95_ms": [None, 5, 6]}
    given: list[Any] = [None, {"total": {"ended": []}}, {"at_ms": 20_000, "step_ms": 5_000, "total": total}]
    assert play(OVERVIEW, "return given.map((each) => m.traffic(each))", given) == [
        None,
        None,
        {"x": [10_000, 15_000, 20_000], "ended": [1, 2, 3], "wait": [None, 5, 6]},
    ]


# ---- the guide ----

EVENTS: list[tuple[str, dict[str, Any], str]] = [
    ("message.accepted", {"message_id": "m1", "mode": "collect", "state": "queued", "reason": "it runs at once"}, "1"),
    ("turn.started", {"turn_id": "t1", "reason": "a slot was free"}, "2"),
    ("tool_start", {"type": "tool_start", "payload": {"tool_name": "wait", "lane": "query"}}, ""),
    ("message.accepted", {"message_id": "m2", "mode": "steer", "state": "parked", "reason": "it goes in"}, "3"),
    ("message.injected", {"message_id": "m2"}, "4"),
    ("turn.replied", {"text": "hello"}, "5"),
    ("turn.ended", {"state": "succeeded"}, "6"),
]
FOLD = "const all = (events) => events.reduce((state, event) => m.fold(state, ...event), m.NOTHING);"


def test_the_guide_knows_how_far_it_is_from_what_its_session_told() -> None:
    script = f"""{FOLD}
    const at = (count, seen) => m.progress(all(given.slice(0, count)), seen);
    return [at(0), at(1), at(2), at(5), at(7), at(7, true)].map(({{ next }}) => next);
    """
    assert play(GUIDE, script, EVENTS) == [1, 1, 2, 3, 3, 4]
    script = f"{FOLD} const end = all([...given, ...given]); return [end.steering, end.answer, end.phase, end.run]"
    assert play(GUIDE, script, [event for event in EVENTS if event[2]]) == ["in", "hello", "ended", "t1"]


def test_an_event_that_comes_twice_is_one_line() -> None:
    script = f"{FOLD} return [all(given).lines.length, all([...given, ...given]).lines.length]"
    assert play(GUIDE, script, [event for event in EVENTS if event[2]]) == [6, 6]


def test_a_message_that_came_too_late_to_steer_is_said_to_be_late() -> None:
    script = f"{FOLD} return [all(given).steering, m.whyNoSteer(all(given)), m.whyNoSteer(m.NOTHING)]"
    late = [EVENTS[0], EVENTS[1], EVENTS[3], EVENTS[6]]
    steering, after, before = play(GUIDE, script, late)
    assert steering == "late"
    assert after.startswith("The run has ended already")
    assert before.startswith("Send the first message")


def test_a_lane_is_filled_with_two_more_and_never_with_many() -> None:
    assert play(GUIDE, "return given.map((width) => m.manyOf(width))", [1, 4, 1000, None]) == [3, 6, 10, 6]
