"""What the views of tasks, workers and dead letters count, fold and say, without a page."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.dashboard.node import play

pytestmark = pytest.mark.slow

TASK: dict[str, Any] = {
    "task_id": "t1",
    "tool": "read",
    "state": "started",
    "effect": "read",
    "worker": "w",
    "why": "",
    "labels": [],
    "lane": "query",
    "progress": None,
    "lease_ms": 30_000,
    "lease_left_ms": 20_000,
    "heard_ago_ms": 10_000,
    "remaining_ms": 60_000,
    "attempt": 1,
}
WORKER: dict[str, Any] = {
    "name": "box",
    "token": "fleet",
    "tenant": None,
    "instance": "i",
    "health": "working",
    "holds": 1,
    "concurrency": 4,
    "asked_ago_ms": 100,
    "is_lost": False,
    "shares_name": False,
    "unstarted": 0,
    "completed": 0,
    "failed": 0,
    "lost": 0,
    "seen_ago_ms": 5,
}


def tasks(script: str, given: Any = None) -> Any:
    """Play with the model of tasks."""
    return play("views/tasks_model.js", script, given)


def workers(script: str, given: Any = None) -> Any:
    """Play with the model of workers."""
    return play("views/workers_model.js", script, given)


def letters(script: str, given: Any = None) -> Any:
    """Play with the model of dead letters."""
    return play("views/letters_model.js", script, given)


# ---- tasks ----


def test_a_task_has_moments_that_tick_and_a_lease_that_worries_in_time() -> None:
    found = tasks(
        """const task = m.placed(given, 1000000);
        const at = (ms) => m.leaseOf(task, 1000000 + ms);
        return [task.heardAt, task.leaseUntil, task.until, at(0), at(12000).tone, at(19900).tone, at(99000).left,
          m.leaseOf(m.placed({ ...given, state: "pending" }, 5), 5),
          m.placed({ ...given, state: "failed" }, 5).until];""",
        TASK,
    )
    assert found[:3] == [990_000, 1_020_000, 1_060_000]
    assert found[3] == {"left": pytest.approx(2 / 3), "tone": "ok"}
    assert found[4:] == ["warn", "bad", 0, None, None]


def test_tasks_that_wait_for_the_same_are_told_of_once() -> None:
    whys = ["no worker has asked for tasks lately", "it waits up to 120 ms for the worker that began the one before it"]
    given = [
        {**TASK, "task_id": str(number), "state": "pending", "why": why.replace("120", str(number))}
        for number, why in enumerate([whys[1], whys[0], whys[1]])
    ]
    found = tasks("return m.reasons(given).map((each) => [each.why, each.tasks.length]);", [*given, TASK])
    assert found == [["it waits up to a moment for the worker that began the one before it", 2], [whys[0], 1]]
    cases = [
        *whys,
        "no worker takes such tasks: box has no label gpu",
        "worker 'x' was last heard of 12 s ago, and …",
        "",
    ]
    assert tasks("return given.map(m.remedy);", cases) == ["start", "", "fit", "start", ""]


def test_events_change_the_list_or_say_that_it_is_stale() -> None:
    found = tasks(
        """const list = [given, { ...given, task_id: "t2", state: "pending" }];
        const tell = (type, payload) => m.told(list, type, { payload });
        return [tell("external_task_progress", { task_id: "t1", text: "half", percent: 50 }),
          tell("external_task_started", { task_id: "t2", worker: "w9", attempt: 2 }),
          tell("external_task_completed", { task_id: "t1" }), tell("external_task_progress", { task_id: "t7" }),
          tell("turn.ended", {}), m.told(list, "gap"), m.told(list, "text_delta", null)]
          .map(({ tasks, isStale }) => [tasks.map((each) => [each.state, each.worker, each.progress]), isStale]);""",
        TASK,
    )
    same = [["started", "w", None], ["pending", "w", None]]
    assert found == [
        [[["started", "w", {"text": "half", "percent": 50}], same[1]], False],
        [[same[0], ["started", "w9", None]], True],
        [same, True],
        [same, True],
        [same, False],
        [same, True],
        [same, False],
    ]


def test_results_are_texts_or_json_and_arguments_fit_into_a_line() -> None:
    found = tasks("""return [m.resultOf("3 passed", false), m.resultOf("", true), m.resultOf('{"a": [1]}', true),
      Object.keys(m.resultOf("{a}", true))];""")
    assert found == [{"value": "3 passed"}, {"value": None}, {"value": {"a": [1]}}, ["error"]]
    cases = [{"command": "ls\n -l"}, {"a": 1, "b": "x"}, [1, "x"], "text", None, {}, 5, {"command": "x" * 300}]
    lines = tasks("return given.map((each) => m.inOneLine(each, 20));", cases)
    assert lines == ["ls -l", "a: 1, b: x", '[1,"x"]', "text", "", "", "5", f"{'x' * 19}…"]


def test_what_cannot_be_taken_back_is_said_before() -> None:
    found = tasks(
        """const say = (more, action) => m.warningOf({ ...given, ...more }, action);
        return [say({ effect: "write" }, "cancel"), say({ effect: "write" }, "release"), say({}, "release"),
          say({ state: "leased", effect: "write" }, "release"), say({ state: "pending" }, "cancel"),
          say({}, "cancel")];""",
        TASK,
    )
    parts = ["unknown", "unknown", "begin it anew", "has not begun", "Nobody has begun", "next sign of life"]
    assert [part in each for part, each in zip(parts, found, strict=True)] == [True] * 6


def test_only_known_filters_are_taken_from_an_address() -> None:
    query = {"session": "s", "tool": "", "show": "ended", "x": "y", "state": "failed"}
    assert tasks("return [m.filtersOf(given), m.filtersOf(undefined)];", query) == [
        {"session": "s", "state": "failed"},
        {},
    ]


# ---- workers ----


@pytest.mark.parametrize(
    ("change", "state"),
    [
        ({}, "working"),
        ({"health": "waiting", "holds": 0, "asked_ago_ms": None}, "waiting"),
        ({"asked_ago_ms": 6_000}, "draining"),
        ({"asked_ago_ms": 6_000, "holds": 4}, "working"),
        ({"asked_ago_ms": 6_000, "concurrency": 0}, "working"),
        ({"asked_ago_ms": None}, "working"),
        ({"health": "quiet", "asked_ago_ms": 90_000}, "quiet"),
        ({"health": "idle", "is_lost": True}, "lost"),
        ({"health": "strange"}, "idle"),
    ],
)
def test_how_a_worker_does(change: dict[str, Any], state: str) -> None:
    found = workers("return m.healthOf(given);", {**WORKER, **change})
    assert (found["state"], bool(found["text"])) == (state, True)


def test_workers_in_numbers_and_in_order() -> None:
    given = [
        {**WORKER, "name": "b"},
        {**WORKER, "name": "a", "health": "quiet", "holds": 0},
        {**WORKER, "name": "c", "is_lost": True},
        {**WORKER, "name": "a", "seen_ago_ms": 9, "instance": "2", "holds": 7},
    ]
    found = workers("return [m.totals(given), m.ordered(given).map((each) => each.name + each.instance)];", given)
    assert found == [{"there": 2, "away": 2, "used": 8, "slots": 11}, ["ci", "a2", "bi", "ai"]]
    slots = workers("return given.map(m.slotsOf);", [WORKER, {**WORKER, "concurrency": 0}, {**WORKER, "holds": 9}])
    assert [(each["used"], each["all"]) for each in slots] == [(1, 4), (1, None), (9, 9)]
    notes = workers(
        "return given.map((each) => m.notesOf(each).length);",
        [
            WORKER,
            {**WORKER, "shares_name": True},
            {**WORKER, "unstarted": 3},
            {**WORKER, "unstarted": 3, "completed": 1},
        ],
    )
    assert notes == [0, 1, 1, 0]
    keys = workers("return new Set(given.map(m.keyOf)).size;", given)
    assert keys == 4


def test_the_command_that_starts_a_worker_has_nothing_for_a_shell_in_it() -> None:
    found = workers("""return [m.startCommand("http://h:1"), m.startCommand("http://h:1", ["query", "execute"]),
      m.startCommand("http://h:1", ["query", "$(rm -rf ~)"])];""")
    base = "laneway worker --connect http://h:1 --token-file worker.token"
    assert found == [base, f"{base} --lanes query,execute", base]


# ---- dead letters ----


def test_letters_are_chosen_as_files_are() -> None:
    found = letters("""const order = ["a", "b", "c", "d", "e"];
      const steps = [["b"], ["d", true], ["c"], ["e", true], ["z", true]];
      let choice = m.NOBODY; const seen = [];
      for (const [id, shift] of steps) {
        choice = m.toggled(choice, order, id, shift);
        seen.push([...choice.ids].sort().join(""));
      }
      const all = m.toggledAll(m.NOBODY, order);
      return [seen, [...all.ids].join(""), m.toggledAll(all, order).ids.size, m.toggledAll(m.NOBODY, []).ids.size,
        [...m.kept(all, ["b", "x"]).ids], m.kept(all, order) === all, m.NOBODY.ids.size,
        m.toggled(all, order, "c").ids.size];""")
    assert found == [["b", "bcd", "bd", "bcde", "bcdez"], "abcde", 0, 0, ["b"], True, 0, 4]


def test_filters_become_questions() -> None:
    found = letters("""const now = 1000000000000;
      return [m.queryOf({}, now), m.queryOf({ text: " hi ", error: "", kind: "call", age: "hour", show: "x" }, now),
        m.queryOf({ age: "older" }, now), m.isNarrow({}), m.isNarrow({ age: "day" }), m.isNarrow({ age: "nonsense" }),
        m.filterOf({ text: "x", show: "retried", token: "y" }), m.filterOf(undefined)];""")
    assert found == [
        {}, {"kind": "call", "text": "hi", "since_ms": 999_996_400_000}, {"until_ms": 999_395_200_000}, False, True,
        False, {"text": "x"}, {},
    ]  # fmt: skip


def test_what_came_of_many_is_summed_with_what_needs_a_look_first() -> None:
    found = letters("""const items = [["a", "sent"], ["b", "gone"], ["c", "refused"], ["d", "sent"]]
        .map(([letter_id, outcome]) => ({ letter_id, outcome }));
      const sum = m.summed(items);
      return [sum.rows.map((each) => each.letter_id).join(""), m.sentenceOf(sum), m.sentenceOf(m.summed([])),
        m.sentenceOf(m.summed([{ letter_id: "x", outcome: "purged" }])), m.pieces(["a", "b", "c"], 2),
        m.pieces([])];""")
    assert found == [
        "cbad", "2 sent again, 1 refused, 1 gone already.", "Nothing was left to do.", "1 forgotten.",
        [["a", "b"], ["c"]], [],
    ]  # fmt: skip


def test_what_is_typed_for_a_letter_is_checked_before_it_is_sent() -> None:
    found = letters("""const letter = { kind: "message", status: "open", text: "hi" };
      const of = (kind) => m.editable({ kind, status: "open" });
      return [m.editable(letter), of("job"), of("call"),
        m.editable({ ...letter, status: "retried" }), m.flawOf("text", "  ") !== "", m.flawOf("text", "x"),
        m.flawOf("args", "{") !== "", m.flawOf("args", "{}") !== "", m.flawOf("args", "[1]"), m.changeOf("args", "[1]"),
        m.changeOf("text", "[1]"), m.contentOf(letter), m.contentOf({ kind: "job", arguments: [1] })];""")
    assert found == [
        "text", "args", "", "", True, "", True, True, "", {"args": [1]}, {"text": "[1]"}, "hi", "[\n  1\n]",
    ]  # fmt: skip
