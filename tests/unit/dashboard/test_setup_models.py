"""What schedules, limits, usage, settings and the audit log say in words, without a page."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.dashboard.node import play

pytestmark = pytest.mark.slow

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
NOON = 20_000 * DAY + 12 * HOUR


def made(module: str, name: str, cases: list[Any], **more: Any) -> list[Any]:
    """What a function of a view's model makes of each list of arguments."""
    result: list[Any] = play(
        f"views/{module}_model.js", f"return given.map((args) => m.{name}(...args));", cases, **more
    )
    return result


# ---- schedules ----


def test_cron_expressions_have_words_if_they_are_simple() -> None:
    cases = {
        "* * * * *": "every minute", "*/1 * * * *": "every minute", "*/15 * * * *": "every 15 minutes",
        "0 * * * *": "every hour, on the hour", "20 * * * *": "every hour, 20 minutes past",
        "0 */6 * * *": "every 6 hours, on the hour", "0 9 * * *": "every day at 09:00",
        "30 8,17 * * *": "every day at 08:30 and 17:30", "0 9 * * 1-5": "on weekdays at 09:00",
        "0 9 * * MON-FRI": "on weekdays at 09:00", "0 8 * * mon": "every Monday at 08:00",
        "0 8 * * 0,6": "every Sunday and Saturday at 08:00", "0 8 * * 7": "every Sunday at 08:00",
        "0 8 * * tue-thu": "Tuesday to Thursday at 08:00", "0 7 1 * *": "on day 1 of every month at 07:00",
        "0 7 1,15 * *": "on day 1 and 15 of every month at 07:00", "0 0 1 1 *": "on 1 January at 00:00",
        "0 9 * jun,jul *": "every day in June and July at 09:00", "@daily": "every day at 00:00",
        "  0   9 * * *  ": "every day at 09:00", "*/15 * * * 1-5": "every 15 minutes, on weekdays",
        "": "", "nonsense": "", "0 9 1 * mon": "", "1-5 9 * * *": "", "0 0 9 * * *": "", "0 9 L * *": "",
    }  # fmt: skip
    assert made("schedules", "cronWords", [[each] for each in cases]) == list(cases.values())


def test_lengths_of_time_are_read_as_people_write_them() -> None:
    cases: dict[str, int | None] = {
        "90": 90_000, "90s": 90_000, "15m": 15 * MINUTE, "15 min": 15 * MINUTE, "2h 30m": 150 * MINUTE,
        "1 hour": HOUR, "1.5h": 90 * MINUTE, "2 days": 2 * DAY, "1w": 7 * DAY, "3 weeks": 21 * DAY,
        "": None, "often": None, "5x": None, "h": None, "15m or so": None, "5 months": None, "5 hamsters": None,
    }  # fmt: skip
    assert made("schedules", "durationMs", [[each] for each in cases]) == list(cases.values())
    texts = {1_000: "1s", 90_000: "1m 30s", HOUR: "1h", 150 * MINUTE: "2h 30m", DAY + 1_000: "1d 1s"}
    assert made("schedules", "durationText", [[each] for each in texts]) == list(texts.values())
    assert made("schedules", "durationMs", [[each] for each in texts.values()]) == list(texts)
    words = {1_000: "every second", 1_500: "every 1.5 seconds", 2 * HOUR: "every 2 hours", 7 * DAY: "every week"}
    assert made("schedules", "everyWords", [[each] for each in words]) == list(words.values())


def test_a_form_becomes_what_the_server_is_asked_or_says_what_is_wrong_where() -> None:
    script = """
    const form = { ...m.formOf(null, { nowMs: given, zone: "Europe/Berlin" }), session_key: " daily ", text: "news" };
    const other = (change, old) => m.bodyOf({ ...form, ...change }, old);
    return [other({}), other({ way: "every", every: "15m" }), other({ way: "at", at: "2026-01-02T03:04" }),
      other({ cron: " " }), other({ way: "every", every: "x" }), other({ way: "every", every: "0.5s" }),
      other({ way: "at", at: "" }), other({ session_key: " ", text: "" }),
      other({ missed: "run" }, { schedule_id: "s" })];
    """
    first, every, once, no_cron, no_time, too_often, no_date, empty, changed = play(
        "views/schedules_model.js", script, NOON, timezone="Europe/Berlin"
    )
    assert first["body"] == {
        "session_key": "daily", "text": "news", "cron": "0 9 * * mon-fri", "timezone": "Europe/Berlin",
        "missed": "skip", "kind": "system", "reason": "",
    }  # fmt: skip
    assert every["body"]["every_ms"] == 15 * MINUTE
    assert once["body"]["at_ms"] == 1_767_319_440_000
    assert [list(each["wrong"]) for each in (no_cron, no_time, too_often, no_date)] == [
        ["cron"],
        ["every"],
        ["every"],
        ["at"],
    ]
    assert set(empty["wrong"]) == {"session_key", "text"}
    assert "session_key" not in changed["body"]


def test_a_form_shows_the_schedule_that_is_changed() -> None:
    schedule = {"session_key": "s", "text": "t", "every_ms": 90_000, "at_ms": None, "cron": None, "timezone": "UTC",
                "missed": "run", "kind": "heartbeat"}  # fmt: skip
    (form,) = made("schedules", "formOf", [[schedule, {"nowMs": NOON, "zone": "Europe/Berlin"}]])
    assert (form["way"], form["every"], form["missed"], form["kind"], form["timezone"]) == (
        "every", "1m 30s", "run", "heartbeat", "UTC",
    )  # fmt: skip


def test_a_refusal_is_said_at_its_field() -> None:
    cases = [
        [{"facts": {"setting": "cron"}, "message": "a cron expression has 5 fields", "hint": "such as"}],
        [{"facts": {"setting": "every_ms"}, "message": "no"}],
        [{"facts": {}, "message": "body.text: too short"}],
        [{"facts": {}, "message": "session 's~1' belongs to a sub-agent"}],
        [{"facts": {}, "message": "the store is away"}],
    ]
    assert made("schedules", "refusedAt", cases) == [
        {"cron": "A cron expression has 5 fields – such as"},
        {"every": "No"},
        {"text": "Body.text: too short"},
        {"session_key": "Session 's~1' belongs to a sub-agent"},
        {"": "The store is away"},
    ]


def test_the_last_time_of_a_schedule_has_a_result() -> None:
    never: dict[str, Any] = {"last_ms": None}
    ran = {"last_ms": 5, "last_message_id": "m", "last_outcome": "succeeded", "last_note": ""}
    waits = {**ran, "last_outcome": None, "last_disposition": "queued"}
    missed = {**ran, "last_note": "nobody was there"}
    odd = {**ran, "last_outcome": "timed_out"}
    results = made("schedules", "resultOf", [[each] for each in (never, ran, waits, missed, odd)])
    assert [each and (each["tone"], each["text"]) for each in results] == [
        None, ("ok", "answered"), ("wait", "queued"), ("warn", "skipped"), ("warn", "timed out"),
    ]  # fmt: skip
    assert made("schedules", "isOpen", [[each] for each in (ran, waits, missed)]) == [False, True, False]


def test_a_moment_is_told_in_another_timezone() -> None:
    cases = [[NOON, "UTC"], [NOON, "America/New_York"], [NOON, "Nowhere/Land"]]
    assert made("schedules", "inZone", cases) == ["Fri 4 Oct, 12:00", "Fri 4 Oct, 08:00", "Fri 4 Oct, 12:00"]


# ---- limits ----


def limit(key: str, **more: Any) -> dict[str, Any]:
    """A limit as the server tells it."""
    usual: dict[str, Any] = {
        "account": None,
        "closed": False,
        "closed_until_ms": None,
        "waiting": 0,
        "waiters": [],
        "rate": None,
    }
    return {"key": key, **usual, **more}


def test_limits_that_hold_somebody_up_come_first() -> None:
    used_up = limit("b", rate={"left": 0, "count": 5, "window_ms": MINUTE})
    shut = limit("z", closed=True, closed_until_ms=NOON)
    items = [limit("c"), limit("a"), used_up, limit("y", waiting=2), shut]
    (ordered,) = made("limits", "sortLimits", [[items]])
    assert [each["key"] for each in ordered] == ["z", "y", "b", "a", "c"]
    states = made("limits", "stateOf", [[shut, NOON - 1], [shut, NOON], [used_up, NOON], [limit("a"), NOON]])
    assert [each["text"] for each in states] == ["closed", "open", "used up for now", "open"]


def test_limits_say_who_waits_and_how_much_is_allowed() -> None:
    mine, other = {"session_key": "s1"}, {"session_key": None}
    cases = [
        [limit("a")],
        [limit("a", waiting=1, waiters=[other])],
        [limit("a", waiting=3, waiters=[mine, other])],
        [limit("a", waiting=1, waiters=[mine])],
    ]
    assert made("limits", "waitingWords", cases) == ["", "1 job waits for it", "and 2 more", ""]
    rates = [[{"count": 20, "window_ms": MINUTE}], [{"count": 2, "window_ms": 5_000}]]
    assert made("limits", "rateWords", rates) == ["20 a minute", "2 in 5 s"]


def test_limits_are_read_again_when_one_opens_or_the_look_is_old() -> None:
    items = [limit("a", closed=True, closed_until_ms=NOON)]
    cases = [[items, NOON - 10, NOON - 5, 4_000], [items, NOON - 10, NOON, 4_000], [items, NOON, NOON + 10, 4_000]]
    assert made("limits", "isDue", [*cases, [None, 0, 4_000, 4_000]]) == [False, True, False, True]


# ---- budgets ----


def test_budgets_have_a_row_for_each_count() -> None:
    budget = {
        "name": "daily",
        "workspace": "default",
        "shared": True,
        "scope": "tenant",
        "window": "day",
        "tokens": 1_000,
        "money": None,
        "on_exhausted": "park",
        "warn_at": 0.8,
        "counts": [],
    }
    amounts = {"tokens": {"spent": 850}, "money": {"spent": 0.01}, "until_ms": NOON, "waiting": 0}
    counts = [{"subject": "acme", "whose": "tenant acme", "share": share, **amounts} for share in (0.1, 0.85, 1.2)]
    ((new,), (full,)) = made("usage", "budgetGroups", [[[budget]], [[{**budget, "counts": counts}]]])
    assert (new["rows"], new["until"], new["isShared"], new["mark"]) == ([], None, True, 80)
    assert new["rule"] == "1,000 tokens a day for each tenant, then runs wait for the next window; warns at 80 %"
    assert full["until"] == NOON
    assert [(each["whose"], each["spent"], each["full"], each["percent"], each["tone"]) for each in full["rows"]] == [
        ("tenant acme", "850 tokens", 10, 10, "ok"),
        ("tenant acme", "850 tokens", 85, 85, "warn"),
        ("tenant acme", "850 tokens", 100, 120, "bad"),
    ]
    assert [(each["end"], each["way"]) for each in full["rows"]][1:] == [
        ("", None),
        ("used up: runs wait for the next window", None),
    ]


def test_a_count_of_a_budget_leads_to_its_session_or_run() -> None:
    amounts = {"tokens": {"spent": 8}, "money": {"spent": 0}, "share": 0.1, "until_ms": None, "waiting": 2}
    budget = {
        "name": "b",
        "workspace": "w",
        "shared": False,
        "tokens": 80,
        "money": None,
        "warn_at": 1,
        "window": "ever",
    }
    found = made(
        "usage",
        "budgetGroups",
        [
            [[{**budget, "scope": scope, "counts": [{"subject": subject, "whose": f"{scope} {subject}", **amounts}]}]]
            for scope, subject in (("session", "dave"), ("run", "turn-1"), ("principal", "user:1"), ("principal", ""))
        ],
    )
    assert [each["rows"][0]["way"] for (each,) in found] == [["chat", "dave"], ["story", "run", "turn-1"], None, None]
    assert (found[0][0]["rule"], found[0][0]["mark"]) == ("80 tokens for each session", None)
    assert (found[0][0]["rows"][0]["waiting"], found[0][0]["rows"][0]["parked"]) == (2, 0)


def test_runs_that_wait_for_a_window_are_named_up_to_three() -> None:
    runs = [{"session_key": f"s{at}", "run_id": f"turn-{at}", "until_ms": NOON} for at in range(20)]
    amounts = {"tokens": {"spent": 8}, "money": {"spent": 0}, "share": 1, "until_ms": NOON, "waiting": 0}
    count = {"subject": "acme", "whose": "tenant acme", **amounts, "parked": 50, "parked_runs": runs}
    budget = {
        "name": "b",
        "workspace": "w",
        "shared": False,
        "tokens": 8,
        "money": None,
        "warn_at": 1,
        "scope": "tenant",
    }
    (found,) = made("usage", "budgetGroups", [[[{**budget, "window": "day", "counts": [count]}]]])
    (row,) = found[0]["rows"]
    assert (row["parked"], row["unnamed"]) == (50, 47)
    assert [(each["name"], each["way"]) for each in row["runs"]][1:] == [
        ("s1", ["story", "run", "turn-1"]),
        ("s2", ["story", "run", "turn-2"]),
    ]


# ---- usage ----


def test_a_period_begins_at_midnight_here() -> None:
    begins = made("usage", "beginOf", [["today", NOON], ["7d", NOON], ["all", NOON]], timezone="America/New_York")
    midnight = 20_000 * DAY + 4 * HOUR
    assert begins == [midnight, midnight - 6 * DAY, 0]
    assert made("usage", "periodOf", [["30d"], ["<img>"], [None]]) == ["30d", "7d", "7d"]
    assert made("usage", "groupOf", [["run"], ["__proto__"]]) == ["run", "session"]


def test_days_without_a_call_are_there_with_nothing() -> None:
    items = [{"key": "2024-10-02", "input_tokens": 5, "output_tokens": 2, "cost": None}]
    (found,) = made("usage", "daySeries", [[items, NOON - 3 * DAY, NOON]])
    assert (found["input"], found["output"], found["cost"]) == ([0, 5, 0, 0], [0, 2, 0, 0], [0, 0, 0, 0])
    (alone,) = made("usage", "daySeries", [[items, 0, NOON]])
    assert len(alone["x"]) == 3
    (none,) = made("usage", "daySeries", [[[], 0, NOON]])
    assert len(none["x"]) == 1


def test_parts_are_compared_by_cost_if_one_is_known() -> None:
    small = {"input_tokens": 900, "output_tokens": 100, "cost": 0.5}
    large = {"input_tokens": 10, "output_tokens": 0, "cost": 2.0}
    free = {**small, "cost": None}
    cases = [
        [small, [small, large]],
        [large, [small, large]],
        [free, [free, {**large, "cost": None}]],
        [free, [free, large]],
    ]
    assert made("usage", "shareOf", cases) == [25, 100, 100, 0]
    totals = [{"calls": 5, "priced_calls": 5}, {"calls": 5, "priced_calls": 0}, {"calls": 5, "priced_calls": 2}]
    notes = made("usage", "priceNote", [[each] for each in totals])
    assert notes[0] == ""
    assert "not known" in notes[1]
    assert "2 of 5" in notes[2]


def test_limits_of_runs_say_how_full_they_are() -> None:
    rows = [{"name": "max_tool_rounds", "limit": 10, "used": used} for used in (1, 8, 12, None)]
    (found,) = made("usage", "limitRows", [[[*rows, {"name": "odd", "limit": None, "used": 5}]]])
    assert [(each["full"], each["tone"]) for each in found] == [
        (10, "ok"), (80, "warn"), (100, "bad"), (None, "off"), (None, "off"),
    ]  # fmt: skip
    assert [found[0]["words"], found[-1]["words"]] == ["Rounds of a run", "odd"]


# ---- settings ----


def setting(name: str, value: Any, **more: Any) -> dict[str, Any]:
    """A setting as the server tells it."""
    origin = {"layer": "default", "file": None, "line": None, "name": None, "note": None, **more.pop("origin", {})}
    return {"setting": name, "value": value, "hidden": False, "is_default": True, "says": "", "origin": origin, **more}


def test_an_origin_is_short_and_exact() -> None:
    layers = [
        {"layer": "default"}, {"layer": "default", "note": "(none)"}, {"layer": "default", "note": "of an agent"},
        {"layer": "file", "file": "/etc/laneway/agent.yaml", "line": 12, "column": 3},
        {"layer": "environment", "name": "LANEWAY_PORT"}, {"layer": "command line", "name": "--port"},
    ]  # fmt: skip
    assert made("config", "originText", [[each] for each in layers]) == [
        "default", "default", "default of an agent", "agent.yaml:12", "variable LANEWAY_PORT", "option --port",
    ]  # fmt: skip
    assert made("config", "originTitle", [[layers[3]]]) == ["file /etc/laneway/agent.yaml:12:3"]


def test_settings_are_searched_by_all_words_and_filtered_by_origin() -> None:
    cap = setting("queue.cap", 50, is_default=False, origin={"layer": "file", "file": "agent.yaml", "line": 4})
    key = setting(
        "providers.openai.api_key", None, hidden=True, is_default=False, origin={"layer": "environment", "name": "KEY"}
    )
    mode = setting("queue.mode", "followup", says="What a message does")
    items = [cap, key, mode]
    asked = [
        ["", "all"],
        ["QUEUE", "all"],
        ["queue agent.yaml", "all"],
        ["message", "all"],
        ["", "changed"],
        ["", "environment"],
        ["x y", "all"],
    ]
    found = made("config", "findSettings", [[items, *each] for each in asked])
    names = [[each["setting"].rpartition(".")[2] for each in some] for some in found]
    assert names == [
        ["cap", "api_key", "mode"],
        ["cap", "mode"],
        ["cap"],
        ["mode"],
        ["cap", "api_key"],
        ["api_key"],
        [],
    ]
    (groups,) = made("config", "groupSettings", [[[*items, setting("name", "")]]])
    assert [(each["name"], len(each["items"])) for each in groups] == [("queue", 2), ("providers", 1), ("agent", 1)]


def test_values_are_written_as_one_would_write_them() -> None:
    values = [
        setting("a", None), setting("a", None, origin={"note": "(all)"}), setting("a", ""), setting("a", [1, "x"]),
        setting("a", False), setting("a", "secret", hidden=True),
    ]  # fmt: skip
    assert made("config", "valueText", [[each] for each in values]) == [
        "not set", "all", "empty", '[1,"x"]', "false", "hidden",
    ]  # fmt: skip
    assert made("config", "wordsOf", [["use `x` or `y`"], [""]]) == [
        [["use ", False], ["x", True], [" or ", False], ["y", True]],
        [],
    ]


# ---- audit ----


def action(name: str, target: str = "main", **facts: Any) -> dict[str, Any]:
    """An action as the server tells it."""
    return {"seq": 1, "at_ms": NOON, "actor": "ada", "action": name, "target": target, "reason": "", "facts": facts}


def test_actions_are_told_in_plain_words() -> None:
    cases = {
        "paused lane main": action("lane.change", paused=True, token="t1"),
        "resumed lane main, set to 4 at once": action("lane.change", paused=False, concurrency=4),
        "changed lane query of workspace web: made external, changed lease ms": action(
            "lane.change", "query", mode="external", lease_ms=5, workspace="web"
        ),
        "closed limit openai": action("limit.close", "openai", until_ms=5),
        "added a schedule for session daily": action("schedule.add", "daily", cron="0 7 * * *"),
        "paused schedule s1 of session daily": action("schedule.change", "s1", paused=True, session_key="daily"),
        "changed schedule s1 of session daily": action("schedule.change", "s1", cron="x", session_key="daily"),
        "ran schedule s1 of session daily now": action("schedule.run", "s1", session_key="daily"),
        "approved bash a-1": action("approval.approve", "a-1", tool="bash"),
        "retried dead letter dl-1": action("dead_letter.retry", "dl-1"),
        "purged dead letter dl-1": action("dead_letter.purge", "dl-1"),
        "sent 3 letters again": action("dead_letter.retry_many", "3 letters", count=3),
        "settled a call of bash: it did not happen": action("ledger.settle", "e1", tool="bash", happened=False),
        "took task t1 back from w1 (shell)": action("task.release", "t1", worker="w1", command="shell"),
        "cancelled read in lane s:s1/query": action("job.cancel", "j1", label="read", lane="s:s1/query"),
        "revoked token t9": action("token.revoke", "t9"),
        "set budget daily of all tenants": action("budget.set", "daily", shared=True),
        "set budget people (900 tokens and $5.00 for each principal and day, then the cheaper model is asked)": action(
            "budget.set", "people", scope="principal", window="day", tokens=900, money=5, on_exhausted="cheaper"
        ),
        "set budget people (no limit of money)": action("budget.set", "people", money=None),
        "set budget people ($2.00 for each run, then runs end)": action(
            "budget.set", "people", scope="run", window="ever", money=2, on_exhausted="deny"
        ),
        "let budget daily begin anew": action("budget.reset", "daily"),
        "took budget daily of all tenants away": action("budget.clear", "daily", shared=True),
        "said whose session bob is (principal user:bob, no correlation)": action(
            "session.label", "bob", principal="user:bob", correlation_id=None
        ),
        "deleted session bob": action("session.delete", "bob"),
        "frobnicated thing x": action("thing.frobnicate", "x"),
        "odd x": action("odd", "x"),
    }
    assert made("audit", "sentenceOf", [[each] for each in cases.values()]) == list(cases)


def test_an_action_leads_to_what_it_was_done_to() -> None:
    cases = [action("lane.change"), action("schedule.add", "daily"), action("run.cancel", "r1"), action("odd", "x")]
    assert made("audit", "targetOf", [[each] for each in cases]) == [
        ["lanes", {"filter": "main"}], ["chat", "daily"], ["story", "run", "r1"], None,
    ]  # fmt: skip


def test_a_session_that_was_deleted_is_not_opened() -> None:
    entries = [
        {**action(name, target), "seq": seq}
        for seq, name, target in (
            (5, "session.label", "bob"),
            (4, "session.delete", "bob"),
            (3, "session.label", "bob"),
            (2, "schedule.add", "bob"),
            (1, "session.label", "ann"),
        )
    ]
    script = "const deleted = m.deletedOf(given); return given.map((each) => m.targetOf(each, deleted)?.[1] ?? null)"
    assert play("views/audit_model.js", script, entries) == ["bob", None, None, None, "ann"]
    assert made("audit", "targetOf", [[action("budget.set", "daily")]]) == [["usage"]]


def test_filters_become_a_question_and_actions_are_grouped_by_day() -> None:
    (asked, plain) = made("audit", "queryOf", [[{"text": " x ", "period": "24h", "action": "lane"}, NOON], [{}, NOON]])
    assert asked == {"order": "newest", "text": "x", "actor": "", "action": "lane", "target": "", "from_ms": NOON - DAY}
    assert "from_ms" not in plain
    script = """const days = m.byDay(given.map((at_ms) => ({ at_ms })), (ms) => Math.floor(ms / 86400000));
    return days.map((each) => each.items.length);"""
    assert play("views/audit_model.js", script, [NOON, NOON - 5, NOON - DAY, NOON - 3 * DAY]) == [2, 1, 1]
