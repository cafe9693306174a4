"""The queue, the sessions and the approvals of the dashboard without a page: slices, moves, order, words."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.dashboard.node import play

pytestmark = pytest.mark.slow

QUEUE = "views/queue_model.js"
SESSIONS = "views/sessions_model.js"
APPROVALS = "views/approvals_model.js"
ITEMS = """
const item = (position, id = `m${position}`) => ({ message_id: id, position, text: id });
const items = (from, to) => Array.from({ length: to - from + 1 }, (_, index) => item(from + index));
const ids = (queue) => Array.from(queue.slots, (each) => each?.message_id ?? "-").join(" ");
const whole = (total) => m.withSlice(m.emptyQueue(), { items: items(1, total), total });
"""


# ---- the queue ----


def test_slices_are_put_where_they_belong_and_what_was_not_read_is_a_gap() -> None:
    found = play(
        QUEUE,
        ITEMS
        + """
        const first = m.withSlice(m.emptyQueue(), { items: items(1, 2), total: 6 });
        const both = m.withSlice(first, { items: items(5, 6), total: 6 });
        const fresh = m.withSlice(both, { items: [item(1, "m2"), item(2, "m5")], total: 4 }, { fresh: true });
        const late = m.withSlice(both, { items: [item(4, "m5")], total: 5 });
        return { both: ids(both), gaps: [m.hasGap(both, 0, 2), m.hasGap(both, 1, 4), m.hasGap(both, 4, 99)],
          fresh: ids(fresh), late: ids(late),
          rows: m.rowsOf(fresh).map((each) => [each.message_id, each.isUnread ?? false]) };
        """,
    )
    assert found["both"] == "m1 m2 - - m5 m6"
    assert found["gaps"] == [False, True, False]
    assert found["fresh"] == "m2 m5 - -"
    assert found["late"] == "m1 m2 - m5 -"  # a message is at one place, and there are five of them now
    assert found["rows"] == [["m2", False], ["m5", False], ["place-3", True], ["place-4", True]]


def test_what_is_seen_is_read_with_some_rows_around_it() -> None:
    cases = [[0, 20], [500, 520], [9_990, 10_000, 10_000], [0, 5, 3], [0, 2_000]]
    assert play(QUEUE, "return given.map((args) => m.sliceFor(...args));", cases) == [
        {"after": 0, "limit": 100},
        {"after": 470, "limit": 100},
        {"after": 9_900, "limit": 130},
        {"after": 0, "limit": 100},
        {"after": 0, "limit": 1_000},
    ]


def test_a_slice_covers_what_is_seen_or_it_does_not() -> None:
    cases = [
        [{"after": 0, "limit": 100}, [0, 20], 10_000],
        [{"after": 0, "limit": 100}, [90, 110], 10_000],
        [{"after": 0, "limit": 100}, [90, 110], 100],
        [{"after": 50, "limit": 100}, [40, 60], 1_000],
        [{"after": 9_900, "limit": 130}, [9_980, 10_006], 10_000],
        [{"after": 0, "limit": 100}, [0, 30], 0],
    ]
    found = play(QUEUE, "return given.map((args) => m.covers(...args));", cases)
    assert found == [True, False, True, False, True, True]


def test_any_move_is_what_taking_out_and_putting_in_would_be() -> None:
    assert play(
        QUEUE,
        ITEMS
        + """
        let wrong = 0;
        for (let total = 1; total <= 6; total += 1)
        for (let from = 1; from <= total; from += 1)
        for (let to = -1; to <= total + 2; to += 1) {
          const queue = m.moved(whole(total), `m${from}`, to);
          const plain = items(1, total).map((each) => each.message_id);
          const [id] = plain.splice(from - 1, 1);
          plain.splice(Math.min(Math.max(to, 1), total) - 1, 0, id);
          const places = queue.slots.map((each, index) => each.position === index + 1);
          if (ids(queue) !== plain.join(" ") || places.includes(false) || queue.total !== total) wrong += 1;
        }
        const gap = m.withSlice(m.emptyQueue(), { items: [item(1), item(4)], total: 4 });
        return [wrong, ids(m.moved(gap, "m1", 3)), ids(m.moved(gap, "nobody", 3))];
        """,
    ) == [0, "- - m1 m4", "m1 - - m4"]


def test_one_that_is_gone_or_changed_leaves_the_others_as_they_are() -> None:
    found = play(
        QUEUE,
        ITEMS
        + """
        const gone = m.without(whole(3), "m2");
        return [ids(gone), gone.total, gone.slots.map((each) => each.position), ids(m.without(gone, "m2")),
          m.changed(gone, "m3", { text: "new" }).slots[1].text, gone.slots[1].text];
        """,
    )
    assert found == ["m1 m3", 2, [1, 2], "m1 m3", "new", "m3"]


def test_of_many_wishes_for_a_message_the_last_is_sent_one_at_a_time() -> None:
    assert play(
        QUEUE,
        """
        const sent = [];
        let open = [];
        let done = 0;
        const send = (id, position) => { sent.push([id, position]); return new Promise((go) => open.push(go)); };
        const moves = m.mover(send, () => { done += 1; });
        const flush = async () => { open.splice(0).forEach((go) => go()); for (let n = 0; n < 9; n += 1) await null; };
        moves.wish("a", 2); moves.wish("a", 3); moves.wish("b", 1); moves.wish("a", 5);
        const under = [sent.length, moves.isBusy, done];
        await flush(); await flush(); await flush();
        return [under, sent, moves.isBusy, done];
        """,
    ) == [[1, True, 0], [["a", 2], ["b", 1], ["a", 5]], False, 1]


def test_reasons_and_refusals_are_said_as_people_say_them() -> None:
    reasons = {
        "turn-27db-1 has run for 12000 ms": "a run has gone on for 12 s",
        "turn-1 has run for 5 ms and waits for approval approval-1 (9000 ms left)": (
            "a run has gone on for 5 ms and waits for an approval (9 s left)"
        ),
        "it goes into turn-1 at its next boundary": "it goes into the run at its next boundary",
        "it waits for a quiet moment: 800 ms more": "it waits for a quiet moment: 800 ms more",
        "it is held until somebody releases it": "it is held until somebody releases it",
    }
    assert play(QUEUE, "return given.map(m.whyWords);", list(reasons)) == list(reasons.values())
    refusals: list[Any] = [
        {"name": "Refused", "status": 409, "code": "message_state", "facts": {"state": "running"}, "message": "x"},
        {"name": "Refused", "status": 409, "code": "message_state", "facts": {"state": "withdrawn"}, "message": "x"},
        {"name": "Refused", "status": 409, "code": "conflict", "facts": {}, "message": "nothing runs there"},
        {"name": "Refused", "status": 422, "code": "invalid_request", "facts": {}, "message": "x"},
        {"name": "Offline", "message": "nobody"},
    ]
    assert play(QUEUE, "return given.map(m.refusedWords);", refusals) == [
        "It has begun meanwhile, so it was not changed.",
        "It was withdrawn meanwhile, so it was not changed.",
        "Nothing runs there.",
        "",
        "",
    ]


def test_only_settings_that_differ_are_sent_and_nonsense_is_not() -> None:
    values = {"mode": "collect", "debounce_ms": 1000, "cap": 20, "drop": "summarize"}
    settings = {name: {"value": value, "origin": "default"} for name, value in values.items()}
    forms: list[Any] = [{}, {"cap": " 30 ", "mode": "steer"}, {"cap": "0"}, {"cap": "1.5", "debounce_ms": "-1"}]
    forms.append({"debounce_ms": "9" * 20, "drop": "old"})
    found = play(
        QUEUE,
        "return given[1].map((form) => m.settingsChange(given[0], form));",
        [settings, [{**values, **each} for each in forms]],
    )
    assert [each["change"] for each in found] == [{}, {"cap": 30, "mode": "steer"}, {}, {}, {"drop": "old"}]
    assert [sorted(each["wrong"]) for each in found] == [[], [], ["cap"], ["cap", "debounce_ms"], ["debounce_ms"]]


# ---- sessions ----


def test_what_changes_comes_first_unless_somebody_points_at_the_list() -> None:
    found = play(
        SESSIONS,
        """
        const idle = { run_id: null, waiting: 0, approvals: 0 };
        const one = (session_key, order, more = {}) => ({ session_key, order, ...idle, ...more });
        const keys = (items) => items.map((each) => each.session_key).join("");
        const names = (list) => [keys(list.items), keys(list.later)];
        const list = { items: [one("c", 3), one("b", 2), one("a", 1)], later: [] };
        const fresh = [one("d", 5), one("a", 4)];
        const held = m.merged(list, fresh, { hold: true });
        const isShown = (item) => m.fits(item, { state: "busy" });
        const busy = { items: [one("c", 3, { run_id: "r" }), one("b", 2, { run_id: "r" })], later: [] };
        return [names(m.merged(list, fresh)), names(held), held.items[2].order, names(m.merged(held, [])),
          names(m.merged(busy, [one("c", 6), one("x", 7), one("y", 8, { run_id: "r" })], { isShown })),
          names(m.merged(busy, [one("c", 6)], { isShown, hold: true }))];
        """,
    )
    assert found == [["dacb", ""], ["cba", "d"], 4, ["dacb", ""], ["yb", ""], ["cb", ""]]


def test_a_session_fits_by_its_name_and_by_what_goes_on() -> None:
    idle = {"session_key": "Telegram:Ada", "run_id": None, "waiting": 0, "approvals": 0, "state": "idle"}
    waits = {**idle, "waiting": 2, "state": "waiting"}
    runs = {**waits, "run_id": "r", "state": "acting"}
    asks = {**runs, "approvals": 1, "state": "waiting"}
    cases = [
        [item, {"state": state}] for item in (idle, waits, runs, asks) for state in ("", "busy", "waiting", "needs")
    ]
    assert play(SESSIONS, "return given.map((args) => m.fits(...args));", cases) == [
        True, False, False, False,
        True, False, True, False,
        True, True, True, False,
        True, True, True, True,
    ]  # fmt: skip
    words = [[idle, {"words": each}] for each in ("ada", "TELE", "bob", "")]
    assert play(SESSIONS, "return given.map((args) => m.fits(...args));", words) == [True, True, False, True]
    assert play(SESSIONS, "return given.map((each) => m.stateOf(each).word);", [idle, waits, runs, asks]) == [
        "idle", "waiting", "acting", "needs an answer",
    ]  # fmt: skip
    assert play(SESSIONS, "return m.stateOf(given);", {**waits, "resting": True}) == {"word": "rests", "tone": "wait"}


def test_it_is_said_where_a_session_is() -> None:
    there = {"in_memory": True, "resting": False}
    cases: list[dict[str, Any]] = [
        there,
        {"in_memory": False, "resting": False},
        {"in_memory": False, "resting": True, "resting_reason": "its session rests: a"},
    ]
    told = play(SESSIONS, "return given.map(m.memoryWords);", cases)
    assert told[:2] == ["", "It is not in memory. Its next message brings it back."]
    assert told[2] == "It has left memory with work undone: its session rests: a."
    done = [{**each, "was_in_memory": was} for each in cases for was in (True, False)]
    words = play(SESSIONS, "return given.map(m.passivatedWords);", done)
    assert words[2:] == [
        "It has left memory.",
        "It was not in memory.",
        "It has left memory: its session rests: a.",
        "It has left memory: its session rests: a.",
    ]


def test_a_new_session_has_a_name_that_can_be_one() -> None:
    names = ["", "  ", "a", "x" * 200, "x" * 201, "a\nb", "a/b", "日本", ".", "..", "..."]
    assert [not each for each in play(SESSIONS, "return given.map(m.keyProblem);", names)] == [
        False, False, True, True, False, False, False, True, False, False, True,
    ]  # fmt: skip
    assert play(SESSIONS, "return [m.freshKey(() => 0), m.keyProblem(m.freshKey())];") == ["web-000000", ""]


# ---- approvals ----


def test_arguments_are_shown_as_they_are_and_what_hides_is_seen() -> None:
    texts = ['{"a": 1}', "x\u202ey\u200b", "⟨U+202E⟩", "a\n" * 40, "y" * 5_000]
    given = [{"arguments_text": text} for text in texts]
    found = play(APPROVALS, "return given.map(m.argumentsOf);", given)
    assert [each["text"] for each in found[:3]] == ['{"a": 1}', "x⟨U+202E⟩y⟨U+200B⟩", "⟨U+202E⟩"]
    assert [each["hidden"] for each in found] == [0, 2, 0, 0, 0]
    assert [each["cut"] for each in found] == [None, None, None, 31, 1_200]


def test_how_near_the_end_is_and_what_comes_then() -> None:
    asked = {"asked_ms": 0, "expires_ms": 100_000, "awaited": True, "on_timeout": "reject"}
    cases = [[asked, at] for at in (0, 80_001, 95_000, 200_000)] + [[{**asked, "awaited": False}, 95_000]]
    assert play(APPROVALS, "return given.map((args) => m.urgency(...args));", cases) == [
        "wait",
        "warn",
        "bad",
        "bad",
        "off",
    ]
    kinds: list[Any] = [asked, {**asked, "on_timeout": "auto_approve"}, {**asked, "awaited": False}]
    words = play(APPROVALS, "return given.map(m.afterwards);", kinds)
    assert ["refused" in words[0], "runs without" in words[1], "stands still" in words[2]] == [True, True, True]


def test_who_was_slower_is_told_what_was_decided() -> None:
    cases = [
        {"status": 409, "facts": {"state": "denied"}, "message": "request a is denied by bob"},
        {"status": 409, "facts": {}, "message": "this request is about other arguments"},
        {"status": 404, "facts": {}, "message": "x"},
        {"status": 500, "facts": {}, "message": "x"},
    ]
    assert play(APPROVALS, "return given.map(m.decidedMeanwhile);", cases) == [
        "Already decided: request a is denied by bob. Your answer changed nothing.",
        "this request is about other arguments",
        "This request is gone.",
        "",
    ]
    lists = [[{"approval_id": "a"}, {"approval_id": "b"}], [{"approval_id": "b"}, {"approval_id": "c"}]]
    assert play(APPROVALS, "return m.settled(...given);", lists) == ["a"]
