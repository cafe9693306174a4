"""What the composer says and keeps, without a page."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.dashboard.node import play

pytestmark = pytest.mark.slow

MODEL = "views/composer_model.js"


def effects(cases: list[list[Any]]) -> list[str]:
    found: list[str] = play(MODEL, "return given.map(([mode, facts]) => m.effectOf(mode, facts));", cases)
    return found


def test_what_a_message_does_now_depends_on_what_runs() -> None:
    idle, line, second = effects([["steer", {}], ["collect", {"waiting": 1}], ["followup", {"waiting": 2}]])
    assert idle == "Nothing runs: it is answered at once."
    assert "1 message is before it" in line
    assert "2 messages are before it" in second
    busy = {"state": "acting"}
    words = effects([[mode, busy] for mode in ("collect", "followup", "steer", "steer-backlog", "interrupt", "reject")])
    for part, said in zip(
        ("answered together", "run of its own", "next step", "afterwards", "ends the run", "refused"),
        words,
        strict=True,
    ):
        assert part in said
    starting, late, ends = effects(
        [
            ["steer", {"state": "starting"}],
            ["steer", {"state": "delivering"}],
            ["interrupt", {"state": "acting", "isEnding": True}],
        ]
    )
    assert "only starting" in starting
    assert "nothing goes in any more" in late
    assert "being ended" in ends


def test_every_mode_has_a_name_and_the_own_one_says_which_it_is() -> None:
    names = play(MODEL, "return m.MODES.map((mode) => m.modeName(mode, 'steer'));")
    assert names[0] == "As set: Steer"
    assert len(set(names)) == len(names) == 6


def test_commands_are_completed_while_they_are_typed() -> None:
    script = "return given.map((text) => m.completions(text).map((each) => each.name));"
    texts = ["", "hello /status", "/st", "/STA", "/status", "/queue ", "/queue l", "/nothing", "/steer now", "/st\nx"]
    none, inside, st, upper, whole, queue, queue_l, unknown, more, lines = play(MODEL, script, texts)
    assert none == inside == whole == unknown == more == lines == []
    assert st == ["/status", "/steer", "/stop"]
    assert upper == ["/status"]
    assert "/queue list" in queue
    assert queue_l == ["/queue list"]


def test_what_was_on_its_way_is_kept_over_a_reload_and_nonsense_is_not() -> None:
    kept = json.dumps(
        [
            {"key": "k1", "text": "a", "mode": "", "state": "sending"},
            {"key": "k2", "text": "b", "mode": "steer", "state": "refused", "error": "no"},
            {"key": 3, "text": "c"},
            None,
        ]
    )
    script = "return given.map((text) => m.outboxOf(text).map((each) => [each.key, each.state, each.error]));"
    first, *rest = play(MODEL, script, [kept, "", "{", '{"a": 1}', "null"])
    assert first == [["k1", "again", ""], ["k2", "refused", "no"]]
    assert rest == [[], [], [], []]


def test_only_what_may_work_later_is_sent_again() -> None:
    errors = [
        {"name": "Offline"},
        {"status": 503},
        {"status": 429},
        {"status": 400},
        {"status": 409},
        {"status": 413},
        {},
    ]
    assert play(MODEL, "return given.map((error) => m.isWorthAgain(error));", errors) == [True] * 3 + [False] * 4
    pauses = play(MODEL, "return [m.pauseOf(0), m.pauseOf(1), m.pauseOf(9), m.pauseOf(0, 20000)];")
    assert pauses == [400, 800, 10_000, 20_000]


def test_calls_of_workers_and_in_the_background_say_where_they_are() -> None:
    calls: list[dict[str, Any]] = [
        {"state": "queued", "lane": "execute"},
        {"state": "running", "task": {"state": "pending", "worker": ""}},
        {"state": "running", "task": {"state": "started", "worker": "w1", "progress": {"percent": 41.6, "text": ""}}},
        {"state": "ok", "task": {"state": "completed", "worker": "w1"}},
        {"state": "background", "background": {"id": "b", "state": "running"}},
        {"state": "background", "background": {"id": "b", "state": "error"}},
        {"state": "unknown"},
    ]
    found = play(
        "views/chat_blocks.js", "return given.map((call) => Object.values(m.callStatus({ lane: '', ...call })));", calls
    )
    assert found == [
        ["wait", "queued in execute"],
        ["wait", "waits for a worker"],
        ["run", "w1 does it, 42 %"],
        ["ok", "done"],
        ["run", "goes on in the background"],
        ["bad", "ended in the background: error"],
        ["warn", "nobody knows how far it came"],
    ]


def test_a_name_of_a_session_is_checked_before_it_is_sent() -> None:
    script = "return given.map((name) => m.nameTrouble(name));"
    good, dotted, *bad = play(
        "views/new_session.js", script, ["ok: 1", "a..", " ", "a/b", "x" * 201, "a\nb", ".", " .. "]
    )
    assert good == dotted == ""
    assert all(bad)
