"""The bench itself: samples are real, ratios and gates are computed, the table, the JSON and the picture are made."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from bench import __main__ as command
from bench import (
    agents,
    budgets,
    durable,
    externals,
    gateway,
    hosting,
    long_sessions,
    measures,
    replays,
    report,
    workers,
)
from bench.agent_workloads import AGENT_WORKLOADS
from bench.budgets import BUDGET_WORKLOADS
from bench.catalogue import MEASURES, WORKLOADS
from bench.durable_workloads import DURABLE_WORKLOADS
from bench.external_workloads import EXTERNAL_WORKLOADS
from bench.gateway_workloads import GATEWAY_WORKLOADS
from bench.hosting import HOSTING_WORKLOADS
from bench.long_sessions import LONG_WORKLOADS
from bench.replays import REPLAY_WORKLOADS
from bench.rounds import Outcome, Result, SampleError, best_of, passes, run, take_sample
from bench.sample import take
from bench.workers_workloads import WORKERS_WORKLOADS
from bench.workloads import LANES_WORKLOADS, Case, Numbers, Ratio, Workload

SMALL = {"noop_a3s": 2, "lanes_plain": 7, "lanes_floor": 7, "lanes_all_on": 7, "idle_lanes": 50}
SMALL_DURABLE = {
    "accept_thousand": 1_000,
    "accept_thousand_idle": 1_000,
    "jobs_dbos": 3,
    "jobs_huey": 10,
    "pickup_dbos": 1,
    "pickup_huey": 2,
    "restart_inbox": 300,
    "sessions_inbox": 10,
    "memory_inbox": 20,
}

TOY = Workload(
    name="toy",
    title="A toy",
    cases=(
        Case(name="ours", measure="noop_lanes", size=300, quick=100),
        Case(name="theirs", measure="noop_floor", size=300, quick=100),
    ),
    ratios=(
        Ratio(name="kept", says="", over="theirs.seconds_per_job", under="ours.seconds_per_job", gate=">=", limit=0.5),
        Ratio(name="broken", says="", over="ours.bytes_per_job", gate="<=", limit=700, unit=" B"),
        Ratio(name="told", says="", over="ours.bytes_per_job", under="theirs.bytes_per_job"),
    ),
    rounds=2,
)


def fake_samples() -> dict[str, list[Numbers]]:
    return {
        "ours": [{"seconds_per_job": 4e-6, "bytes_per_job": 800.0}, {"seconds_per_job": 2e-6, "bytes_per_job": 700.0}],
        "theirs": [
            {"seconds_per_job": 1e-6, "bytes_per_job": 400.0},
            {"seconds_per_job": 3e-6, "bytes_per_job": 400.0},
        ],
    }


def run_toy() -> tuple[Result, list[tuple[str, int]]]:
    left = fake_samples()
    asked: list[tuple[str, int]] = []

    def sample(case: Case, size: int) -> Numbers:
        asked.append((case.name, size))
        return left[case.name].pop(0)

    return run(TOY, take=sample), asked


@pytest.mark.parametrize("measure", measures.MEASURES)
def test_every_measure_gives_numbers(measure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.measures.LANES_JOBS", 300)
    monkeypatch.setattr("bench.measures.DEPTH_JOBS_LEAST", 400)
    monkeypatch.setattr("bench.measures.CANCEL_JOBS_LEAST", 400)
    numbers = take(measure, SMALL.get(measure, 200))
    assert numbers
    assert all(value >= 0 for value in numbers.values())


@pytest.mark.slow
@pytest.mark.parametrize("measure", durable.MEASURES)
def test_every_durable_measure_gives_numbers(measure: str) -> None:
    numbers = take(measure, SMALL_DURABLE.get(measure, 100))
    assert numbers
    assert all(value >= 0 for value in numbers.values())


@pytest.mark.slow
@pytest.mark.parametrize("measure", externals.MEASURES)
def test_every_measure_of_external_calls_gates_and_sub_agents_gives_numbers(measure: str) -> None:
    numbers = take(measure, {"gates": 1, "subagents": 10}.get(measure, 64))
    assert numbers
    assert measure == "external_worker" or numbers.get("in_flight_of_lane", 1) == 1  # it begins one after another
    assert numbers.get("ended_of_all", 1) == 1
    assert numbers.get("thinking_of_cap", 0) <= 1
    assert numbers.get("calling_of_cap", 0) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("measure", gateway.MEASURES)
def test_every_measure_of_the_gateway_gives_numbers(measure: str) -> None:
    numbers = take(measure, {"http_steer": 3}.get(measure, 64))
    assert numbers
    assert all(value > 0 for value in numbers.values())


@pytest.mark.slow
@pytest.mark.parametrize("measure", workers.MEASURES)
def test_every_measure_of_workers_gives_numbers(measure: str) -> None:
    numbers = take(measure, 20)
    assert numbers["best_per_second"] >= numbers["tasks_per_second"]
    assert numbers["alone_p50_ms"] > numbers["claim_p50_ms"] > 0
    assert all(value > 0 for value in numbers.values())


@pytest.mark.slow
@pytest.mark.parametrize("measure", [*budgets.MEASURES, *long_sessions.MEASURES, *hosting.MEASURES])
def test_every_measure_of_long_lives_gives_numbers(measure: str) -> None:
    numbers = take(measure, {"passivation": 10, **dict.fromkeys(long_sessions.MEASURES, 4)}.get(measure, 40))
    assert numbers
    assert all(value >= 0 for value in numbers.values())
    assert "mb" not in numbers or numbers["mb"] > 0


@pytest.mark.slow
def test_a_replay_is_quicker_than_its_run() -> None:
    numbers = take("replay_speed", 2)
    assert numbers["live_ms"] > numbers["replay_ms"] > 0


def test_what_grows_climbs_and_what_only_fills_a_cache_does_not() -> None:
    def climb(points: list[tuple[int, float]]) -> float:
        return long_sessions._numbers(points)["climb_mb"]  # noqa: SLF001 - what is gated

    turns = range(0, 10_000, 250)
    assert climb([(turn, 50 + min(turn, 3_000) / 100) for turn in turns]) == 0
    assert climb([(turn, 50 + turn / 250) for turn in turns]) == pytest.approx(19, abs=0.1)
    noisy = [(turn, 80 + (turn // 250 % 2) * 2.0) for turn in turns]
    assert climb(noisy) < 1


def test_an_idle_engine_does_not_wake_up() -> None:
    assert take("idle_lanes", 50)["wake_ups"] == 0


def test_cases_take_turns_and_every_second_round_goes_backwards() -> None:
    _, asked = run_toy()
    assert asked == [("ours", 300), ("theirs", 300), ("theirs", 300), ("ours", 300)]


def test_the_best_time_and_the_worst_memory_count() -> None:
    assert best_of(fake_samples()["ours"]) == {"seconds_per_job": 2e-6, "bytes_per_job": 800.0}


def test_ratios_and_gates_are_computed_from_the_best() -> None:
    result, _ = run_toy()
    kept, broken, told = result.outcomes
    assert [kept.value, kept.lowest, kept.highest] == pytest.approx([0.5, 0.25, 1.5])
    assert kept.passed is True
    assert (broken.value, broken.passed) == (800, False)
    assert (told.value, told.passed) == (2, None)


@pytest.mark.parametrize(
    ("gate", "value", "expected"),
    [(">=", 5.0, True), (">=", 4.9, False), ("<=", 5.0, True), ("<=", 5.1, False), (None, 5.0, None)],
)
def test_a_gate_holds_at_its_limit(gate: str | None, value: float, expected: bool | None) -> None:
    ratio = Ratio(name="x", says="", over="a.b", gate=gate, limit=5)  # type: ignore[arg-type]
    assert passes(value, ratio) is expected


def test_every_ratio_names_cases_and_measures_that_exist() -> None:
    for workload in WORKLOADS.values():
        cases = {case.name for case in workload.cases}
        assert all(case.measure in MEASURES for case in workload.cases)
        for ratio in workload.ratios:
            assert ratio.over.rpartition(".")[0] in cases
            assert ratio.under is None or ratio.under.rpartition(".")[0] in cases


LIMITS_OF_LANES = {(">=", 0.5), (">=", 500), ("<=", 1.5), ("<=", 2.5), ("<=", 700), ("<=", 20), ("<=", 0)}
LIMITS_OF_EXTERNAL_CALLS = {(">=", 2_000), (">=", 1), ("<=", 0.2), ("<=", 1)}
LIMITS_OF_THE_GATEWAY = {(">=", 0.6), ("<=", 30)}
LIMITS_OF_WORKERS = {(">=", 1_000), ("<=", 20)}
LIMITS_OF_LONG_LIVES = {("<=", 0.12), ("<=", 0.16), ("<=", 3), (">=", 20), ("<=", 0.2)}
LIMITS_OF_DURABLE_WORK = {(">=", 10_000), (">=", 0.2), (">=", 3), (">=", 40), ("<=", 2), ("<=", 3), ("<=", 16)}


@pytest.mark.parametrize(
    ("workloads", "limits", "count"),
    [
        (LANES_WORKLOADS, LIMITS_OF_LANES, 8),
        (DURABLE_WORKLOADS, LIMITS_OF_DURABLE_WORK, 10),
        (EXTERNAL_WORKLOADS, LIMITS_OF_EXTERNAL_CALLS, 8),
        (GATEWAY_WORKLOADS, LIMITS_OF_THE_GATEWAY, 2),
        (WORKERS_WORKLOADS, LIMITS_OF_WORKERS, 3),
        ((*BUDGET_WORKLOADS, *LONG_WORKLOADS, *REPLAY_WORKLOADS, *HOSTING_WORKLOADS), LIMITS_OF_LONG_LIVES, 6),
    ],
)
def test_every_gate_is_there(workloads: Sequence[Workload], limits: set[tuple[str, float]], count: int) -> None:
    gates = {(r.name, r.gate, r.limit) for w in workloads for r in w.ratios if r.gate}
    assert {(gate, limit) for _, gate, limit in gates} == limits
    assert len(gates) == count


def test_workloads_have_names_of_their_own() -> None:
    of_one_process = (LANES_WORKLOADS, DURABLE_WORKLOADS, AGENT_WORKLOADS, EXTERNAL_WORKLOADS, BUDGET_WORKLOADS)
    of_servers = (GATEWAY_WORKLOADS, WORKERS_WORKLOADS, HOSTING_WORKLOADS, LONG_WORKLOADS, REPLAY_WORKLOADS)
    assert len(WORKLOADS) == sum(map(len, (*of_one_process, *of_servers)))
    modules = (measures, durable, agents, budgets, externals, gateway, workers, hosting, long_sessions, replays)
    assert len(MEASURES) == sum(len(module.MEASURES) for module in modules)


def test_of_rates_the_highest_counts() -> None:
    assert best_of([{"accepted_per_second": 9.0}, {"accepted_per_second": 12.0}]) == {"accepted_per_second": 12.0}


def test_table_json_and_picture_are_made(tmp_path: Path) -> None:
    result, _ = run_toy()
    out = io.StringIO()
    report.show(Console(file=out, width=120), [result])
    assert out.getvalue().index("Ratios") < out.getvalue().index("Numbers of this machine")
    assert "PASS" in out.getvalue()
    assert "1 of 2 gates FAIL: toy (broken)" in out.getvalue()
    report.write_json(tmp_path / "latest.json", [result], quick=True)
    document = json.loads((tmp_path / "latest.json").read_text(encoding="utf-8"))
    assert document["quick"] is True
    assert document["results"][0]["outcomes"][0]["name"] == "kept"
    assert len(document["results"][0]["samples"]["ours"]) == 2


@pytest.mark.slow
def test_the_picture_is_made(tmp_path: Path) -> None:
    result, _ = run_toy()
    report.write_plot(tmp_path / "latest.png", [result])
    assert (tmp_path / "latest.png").read_bytes().startswith(b"\x89PNG")


def outcome(*, passed: bool | None) -> Outcome:
    return Outcome(
        workload="toy", name="x", says="", value=1, lowest=1, highest=1, unit="", gate=">=", limit=1, passed=passed
    )


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1), (None, 0)])
def test_the_exit_code_says_whether_the_gates_hold(
    passed: bool | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy, _ = run_toy()
    result = Result(
        workload="toy",
        title="",
        rounds=2,
        sizes=toy.sizes,
        samples=toy.samples,
        best=toy.best,
        outcomes=[outcome(passed=passed)],
    )
    monkeypatch.setattr(command, "run", lambda *_args, **_options: result)
    assert command.main(["--only", "floor", "--results", str(tmp_path), "--no-plot"]) == code
    assert (tmp_path / "partial.json").exists()


def test_a_sample_that_fails_is_told_and_is_no_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: object, **_options: object) -> Result:
        raise SampleError("noop_lanes(1) failed")

    monkeypatch.setattr(command, "run", broken)
    assert command.main(["--only", "floor", "--results", str(tmp_path)]) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_whole_run_writes_latest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, _ = run_toy()
    monkeypatch.setattr(command, "run", lambda *_args, **_options: result)
    command.main(["--results", str(tmp_path), "--no-plot"])
    command.main(["--quick", "--results", str(tmp_path), "--no-plot"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest.json", "partial.json"]


@pytest.mark.slow
def test_a_sample_runs_in_a_process_of_its_own() -> None:
    numbers = take_sample(TOY.cases[0], 100)
    assert numbers["seconds_per_job"] > 0


@pytest.mark.slow
def test_a_sample_whose_process_fails_says_why() -> None:
    with pytest.raises(SampleError, match="KeyError"):
        take_sample(Case(name="x", measure="nothing", size=1, quick=1), 1)
