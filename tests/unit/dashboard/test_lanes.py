"""What the lanes view makes of the stream: folded, in rows, in words, and over time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.dashboard.node import play

pytestmark = pytest.mark.slow

MODEL = "views/lanes_model.js"
WINDOW = "views/lanes_window.js"


def track(name: str, **more: Any) -> dict[str, Any]:
    """A lane as the stream tells it."""
    return {"name": name, "kind": "shared", "concurrency": 1, **more}


def of_session(key: str, lane: str = "execute", **more: Any) -> dict[str, Any]:
    """A lane of a session."""
    name = f"session:{key}" if lane == "session" else f"s:{key}/{lane}"
    role = "session" if lane == "session" else "tools"
    return {
        "name": name,
        "kind": "session",
        "role": role,
        "session": key,
        "workspace": "default",
        "concurrency": 1,
        **more,
    }


def look(*lanes: dict[str, Any], at: int = 1_000, **more: Any) -> dict[str, Any]:
    """The beginning of a stream."""
    return {"at_ms": at, "lanes": list(lanes), "gone": [], "count": len(lanes), "totals": {"running": 1}, **more}


def test_lanes_are_folded_from_looks_and_changes() -> None:
    given = [
        ["look", look(track("main", running=1), track("cron"))],
        ["changes", look(track("main", waiting=2), track("new"), at=2_000, gone=["cron", "never"])],
        ["step", {"total": {}}],
        ["look", look(track("other"))],
    ]
    script = """
      const traffic = m.noTraffic();
      return given.map(([type, facts]) => {
        m.fold(traffic, type, facts);
        const facts_of = (each) => [each.name, each.running, each.waiting, each.jobs.length, each.paused];
        const lanes = [...traffic.lanes.values()].map(facts_of);
        return [lanes, traffic.version, traffic.shape, traffic.totals.lent];
      });"""
    first, second, third, fourth = play(MODEL, script, given)
    assert first == [[["main", 1, 0, 0, False], ["cron", 0, 0, 0, False]], 1, 3, 0]
    assert second == [[["main", 0, 2, 0, False], ["new", 0, 0, 0, False]], 2, 5, 0]
    assert third[:2] == second[:2]  # a step is for the plots
    assert fourth[0] == [["other", 0, 0, 0, False]]


def test_rows_are_grouped_and_what_is_busy_comes_first() -> None:
    given = look(
        track("generate", role="template"),
        track("model:x", role="model"),
        track("cron", role="turns"),
        track("main", role="turns", running=1),
        track("other/main", kind="workspace", workspace="other"),
        of_session("zoe", "execute", running=1, jobs=[{"id": "j1", "tool": "bash"}]),
        of_session("zoe", "session", running=1),
        of_session("ada", "query"),
        of_session("ada", "control"),
    )
    script = """
      const traffic = m.fold(m.noTraffic(), "look", given);
      const named = (row) => (row.type === "lane" ? row.id : `${row.type} ${row.id}`);
      const show = (options) => m.rowsOf(traffic, options).map(named);
      return [
        show(),
        show({ onlyBusy: true }),
        show({ filter: "BASH" }),
        show({ filter: "ada quer" }),
        show({ filter: "nothing" }),
        show({ opened: new Map([["shared", false], ["sessions", false]]) }),
      ];"""
    everything, busy, by_tool, by_words, nothing, folded = play(MODEL, script, given)
    assert everything == [
        "head shared",
        *("main", "cron", "model:x"),
        "head workspace:other",
        "other/main",
        "head sessions",
        "session session:default\nzoe",
        *("session:zoe", "s:zoe/execute"),
        "session session:default\nada",
        *("s:ada/control", "s:ada/query"),
        "head templates",
    ]
    assert busy == [
        "head shared",
        "main",
        "head sessions",
        "session session:default\nzoe",
        *("session:zoe", "s:zoe/execute"),
    ]
    assert by_tool == ["head sessions", "session session:default\nzoe", "s:zoe/execute"]
    assert by_words == ["head sessions", "session session:default\nada", "s:ada/query"]
    assert nothing == []
    assert folded == ["head shared", "head workspace:other", "other/main", "head sessions", "head templates"]


def test_many_sessions_are_folded_and_one_that_was_busy_keeps_its_place_for_a_while() -> None:
    lanes = [of_session(f"s{number:04}", lane) for number in range(1_000) for lane in ("control", "query", "execute")]
    script = """
      const traffic = m.fold(m.noTraffic(), "look", given);
      const sessions = () => m.rowsOf(traffic).filter((row) => row.type === "session");
      const first = () => sessions().slice(0, 2).map((row) => row.session);
      const told = [m.rowsOf(traffic).length, first()];
      const busy = { ...given.lanes[2999], running: 1 };
      m.fold(traffic, "changes", { at_ms: 2000, lanes: [busy], totals: {} });
      told.push(first());
      m.fold(traffic, "changes", { at_ms: 50000, lanes: [given.lanes[1]], totals: {} });
      told.push(first());
      m.fold(traffic, "changes", { at_ms: 50001, lanes: [busy], totals: {} });
      m.fold(traffic, "changes", { at_ms: 56000, lanes: [given.lanes[2999]], totals: {} });
      told.push(first());
      m.fold(traffic, "changes", { at_ms: 90000, lanes: [given.lanes[0]], totals: {} });
      told.push(first());
      const took = performance.now();
      for (let turn = 0; turn < 100; turn += 1) m.rowsOf(traffic);
      return [...told, (performance.now() - took) / 100];"""
    count, idle, at_work, still, after, later, took_ms = play(MODEL, script, look(*lanes))
    assert count == 1_001
    assert (idle, later) == (["s0000", "s0001"], ["s0000", "s0001"])
    assert at_work == still == after == ["s0999", "s0000"]
    assert took_ms < 100  # some 2 ms on a quiet machine


def test_slots_that_are_free_are_drawn_up_to_a_number() -> None:
    script = """
      const slots = (facts) => m.freeSlots(m.filled(facts), 12);
      return [
        slots({ concurrency: 3, running: 1, jobs: [{ id: "a" }] }),
        slots({ concurrency: 3, running: 1, jobs: [{ id: "a", lent: true }, { id: "b" }] }),
        slots({ concurrency: 40, running: 2, jobs: [{ id: "a" }, { id: "b" }] }),
        slots({ concurrency: 1, running: 3, jobs: [{}, {}, {}] }),
        slots({ concurrency: 1000000 }),
      ];"""
    assert play(MODEL, script) == [
        {"cells": 2, "more": 0, "unlimited": False},
        {"cells": 2, "more": 0, "unlimited": False},
        {"cells": 10, "more": 28, "unlimited": False},
        {"cells": 0, "more": 0, "unlimited": False},
        {"cells": 0, "more": 0, "unlimited": True},
    ]


def test_jobs_and_lanes_in_words() -> None:
    script = """
      const jobs = [
        { kind: "turn", session: "ada" }, { kind: "tool", tool: "bash" }, { kind: "model", label: "gpt" },
        { id: "j", foreign: true },
      ];
      const lanes = [
        { name: "s:ada/execute", kind: "session" }, { name: "session:ada", kind: "session", role: "session" },
        { name: "model:a/b", role: "model" }, { name: "waiting/control", role: "waits" },
      ];
      const states = [
        {}, { paused: true, closed_until_ms: 5 }, { closed_until_ms: 5 }, { alert: "critical", waiting: 9 },
        { pressure: true }, { waiting: 1, running: 1, concurrency: 1 }, { waiting: 1, running: 0, concurrency: 1 },
      ];
      return [
        jobs.map((job) => m.jobName(job)), m.jobName(jobs[0], true), lanes.map((lane) => m.shortName(m.filled(lane))),
        states.map((state) => m.trouble(m.filled(state))),
        m.whyText({ why: "waits: lane 'x' is paused" }), m.whyText({}),
        m.jobsOf([
          m.filled({ jobs: [{ id: "b", since_ms: 2 }], queue: [{ id: "a", since_ms: 1 }] }),
          m.filled({ jobs: [{ id: "b", since_ms: 2 }] }),
        ]),
      ];"""
    names, short, lanes, states, why, nothing, jobs = play(MODEL, script)
    assert (names, short) == (["ada", "bash", "gpt", "another tenant"], "turn")
    assert lanes == ["execute", "turns of this session", "a/b", "answers"]
    assert states == ["", "paused", "closed", "critical", "pressure", "full", ""]
    assert (why, nothing) == ("lane 'x' is paused", "")
    assert [job["id"] for job in jobs] == ["a", "b"]


def test_what_waits_longest_is_found() -> None:
    given = look(
        track("main", waiting=1, oldest_since_ms=500), track("a", waiting=2, oldest_since_ms=100), track("idle")
    )
    script = """
      const traffic = m.fold(m.noTraffic(), "look", given);
      return [m.longestWait(traffic).name, m.longestWait(m.noTraffic())];"""
    assert play(MODEL, script, given) == ["a", None]


def test_series_go_on_step_by_step_and_take_no_step_twice() -> None:
    numbers = {
        "started": [1, 2, 3],
        "ended": [0, 0, 1],
        "failed": [0, 0, 0],
        "wait_p50_ms": [None, 5, None],
        "wait_p95_ms": [None, 9, None],
        "waiting": [0, 0, 4],
        "running": [1, 1, 1],
    }
    given = {"at_ms": 30_000, "step_ms": 5_000, "steps": 3, "total": numbers, "lanes": {"main": numbers}}
    script = """
      const total = m.seriesOf(given);
      const now = { started: 7, ended: 8, failed: 1, wait_p50_ms: 2, wait_p95_ms: 3, waiting: 0, running: 0 };
      const step = { at_ms: 35000, total: now, lanes: {} };
      const later = m.withStep(total, step);
      return [total.times, later.times, later.started, later.wait_p50_ms, m.withStep(later, step) === later,
        m.withStep(m.seriesOf(given, "main"), step, "main").started, m.seriesOf(given, "none").waiting];"""
    times, later, started, waits, is_same, quiet, unknown = play(MODEL, script, given)
    assert (times, later) == ([20_000, 25_000, 30_000], [25_000, 30_000, 35_000])
    assert (started, waits, is_same) == ([2, 3, 7], [5, None, 2], True)
    assert (quiet, unknown) == ([2, 3, 0], [0, 0, 0])


def test_only_rows_that_are_seen_are_elements() -> None:
    script = """
      const rows = Array.from({ length: 5000 }, (_, at) => ({ height: at % 5 ? 60 : 40 }));
      const offsets = m.offsetsOf(rows, (row) => row.height);
      const at = (top, height) => m.windowOf(offsets, top, height, 0);
      const total = offsets.at(-1);
      const none = [m.windowOf([0], 0, 500), m.offsetsOf([], () => 1)];
      return [total, at(0, 500), at(140000, 500), at(total, 500), ...none];"""
    total, top, middle, end, none, empty = play(WINDOW, script)
    assert total == 280_000
    assert top == {"from": 0, "to": 10}
    assert middle == {"from": 2_500, "to": 2_510}
    assert end["to"] == 5_000
    assert (none, empty) == ({"from": 0, "to": 0}, [0])
