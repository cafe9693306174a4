"""Fixed seeds in both tiers, the seeds that found something once, and proof that a seed is one schedule."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from laneway.sim.campaign import TIERS, Summary, run_for, run_seed, seeds_from
from laneway.sim.kernel_tier import run_kernel_seed
from laneway.sim.trace import Outcome, SimFailedError, Tier, Trace

CHUNK = 10
KERNEL_SEEDS = range(0, 100, CHUNK)
ENGINE_SEEDS = range(0, 200, CHUNK)
REGRESSIONS = Path(__file__).with_name("regressions.txt")


def regressions() -> list[tuple[int, Tier, str]]:
    """What regressions.txt says."""
    found: list[tuple[int, Tier, str]] = []
    for line in REGRESSIONS.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            seed, tier, what = line.split(maxsplit=2)
            found.append((int(seed), "kernel" if tier == "kernel" else "engine", what))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("first", KERNEL_SEEDS)
def test_the_kernel_keeps_every_law(first: int) -> None:
    outcomes = [run_kernel_seed(seed) for seed in range(first, first + CHUNK)]
    assert sum(outcome.starts for outcome in outcomes) > CHUNK


@pytest.mark.slow
@pytest.mark.parametrize("first", ENGINE_SEEDS)
def test_the_engine_keeps_every_law(first: int) -> None:
    outcomes = [run_seed(seed, "engine") for seed in range(first, first + CHUNK)]
    assert sum(outcome.starts for outcome in outcomes) > CHUNK


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "tier", "what"), regressions())
def test_what_was_found_once_stays_mended(seed: int, tier: Tier, what: str) -> None:
    assert run_seed(seed, tier).seed == seed, what


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 4, 11])
def test_both_doors_of_the_kernel_decide_the_same(seed: int) -> None:
    """`step(command)` only unpacks a command and calls the handler."""
    assert run_kernel_seed(seed, door="step").digest == run_kernel_seed(seed, door="handlers").digest


@pytest.mark.slow
@pytest.mark.parametrize("tier", TIERS)
def test_a_seed_is_one_schedule_whatever_the_hash_seed(tier: Tier) -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        command = [sys.executable, "-m", "laneway", "sim", "--seed", "7", "--tier", tier, "--json"]
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
        digests.add(json.loads(done.stdout)["digest"])
    assert digests == {run_seed(7, tier).digest}


def test_a_campaign_stops_when_its_time_is_up() -> None:
    times = iter((0.0, 0.4, 0.9, 1.3))
    summary = run_for(seeds_from(5, TIERS), first_seed=5, seconds=1.0, clock=lambda: next(times))
    assert (summary.seeds, summary.seconds) == (3, 1.3)
    assert summary.line().startswith("ok: 3 seeds from 5, ")


def test_a_summary_adds_up() -> None:
    summary = Summary(first_seed=1)
    for _ in range(2):
        summary.add(Outcome(seed=1, tier="kernel", digest="", steps=50, starts=3, faults=2, virtual_ms=9))
    summary.seconds = 0.5
    assert summary.line() == "ok: 2 seeds from 1, 100 steps, 6 starts, 4 faults, 0.5 s, 200 steps/s"


def test_a_failure_says_how_to_see_it_again() -> None:
    trace = Trace(tail=2)
    for number in range(3):
        trace.add(number, "start", f"job-{number}", "attempt 1")
    failure = SimFailedError(seed=123, tier="kernel", problem="it broke", tail=trace.tail())
    assert str(failure).splitlines() == [
        "       1 start        job-1      attempt 1",
        "       2 start        job-2      attempt 1",
        "FAILED it broke",
        "replay: laneway sim --seed 123 --tier kernel",
    ]


def test_the_trace_of_a_run_can_be_read() -> None:
    lines: list[str] = []
    run_seed(7, "kernel", Trace(sink=lines.append))
    assert lines[0].split()[:3] == ["0", "world", "7"]
    assert any(line.split()[1:2] == ["start"] for line in lines)
