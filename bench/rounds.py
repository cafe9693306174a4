"""Taking samples in turns, and what comes of them: the best of each case, the ratios, the verdicts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from bench.workloads import Case, Numbers, Ratio, Workload

ROOT: Final = Path(__file__).resolve().parent.parent
SAMPLE_SECONDS_MAX: Final = 900
WORST_COUNTS: Final = frozenset(
    {
        "blocks_at_rest",
        "bytes_at_rest",
        "bytes_per_job",
        "bytes_per_session",
        "calling_of_cap",
        "idle_resident_mb",
        "resident_per_job",
        "selects",
        "thinking_of_cap",
        "wake_ups",
    }
)
HIGHEST: Final = WORST_COUNTS | {
    "accepted_per_second",
    "best_per_second",
    "burst_per_second",
    "left_per_second",
    "rows_per_commit",
    "tasks_per_second",
    "tasks_per_second_by_wall",
    "woken_per_second",
}
"""Where the highest number counts: it is the worst of a cost, or the best of a speed."""

TakeSample = Callable[[Case, int], Numbers]


class SampleError(Exception):
    """A sample's process failed or took too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A ratio that was measured. `lowest` and `highest` are those of single rounds."""

    workload: str
    name: str
    says: str
    value: float
    lowest: float
    highest: float
    unit: str
    gate: str | None
    limit: float | None
    passed: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A workload that was run: the samples of each case, the best numbers, the ratios."""

    workload: str
    title: str
    rounds: int
    sizes: Mapping[str, int]
    samples: Mapping[str, Sequence[Numbers]]
    best: Mapping[str, Numbers]
    outcomes: Sequence[Outcome]

    def as_json(self) -> dict[str, Any]:
        """Everything, for latest.json."""
        return asdict(self)


def take_sample(case: Case, size: int) -> Numbers:
    """Run one measure in a fresh process."""
    command = [sys.executable, "-m", "bench.sample", case.measure, str(size)]
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=SAMPLE_SECONDS_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        raise SampleError(f"{case.measure}({size}) did not end within {SAMPLE_SECONDS_MAX} s") from None
    if done.returncode:
        raise SampleError(f"{case.measure}({size}) failed:\n{done.stderr.strip()}")
    numbers: Numbers = json.loads(done.stdout)
    return numbers


def run(
    workload: Workload,
    *,
    quick: bool = False,
    rounds: int | None = None,
    take: TakeSample = take_sample,
    on_sample: Callable[[str], None] = lambda _: None,
) -> Result:
    """Run the cases of a workload in turns; every second round goes backwards."""
    rounds = rounds or (min(2, workload.rounds) if quick else workload.rounds)
    samples: dict[str, list[Numbers]] = {case.name: [] for case in workload.cases}
    for number in range(rounds):
        for case in workload.cases if number % 2 == 0 else reversed(workload.cases):
            on_sample(f"{workload.name}: {case.name}, round {number + 1} of {rounds}")
            samples[case.name].append(take(case, case.at(quick=quick)))
    best = {name: best_of(taken) for name, taken in samples.items()}
    return Result(
        workload=workload.name,
        title=workload.title,
        rounds=rounds,
        sizes={case.name: case.at(quick=quick) for case in workload.cases},
        samples=samples,
        best=best,
        outcomes=[outcome_of(ratio, workload.name, best, samples) for ratio in workload.ratios],
    )


def best_of(samples: Sequence[Numbers]) -> Numbers:
    """The lowest of each number (times), or the highest (the worst memory must hold, and of rates more is better)."""
    return {metric: (max if metric in HIGHEST else min)(sample[metric] for sample in samples) for metric in samples[0]}


def outcome_of(
    ratio: Ratio, workload: str, best: Mapping[str, Numbers], samples: Mapping[str, Sequence[Numbers]]
) -> Outcome:
    """The ratio of the best samples, and how far single rounds lie apart."""
    value = _value(ratio, best)
    rounds = len(next(iter(samples.values())))
    singles = [_value(ratio, {name: taken[number] for name, taken in samples.items()}) for number in range(rounds)]
    return Outcome(
        workload=workload,
        name=ratio.name,
        says=ratio.says,
        value=value,
        lowest=min(singles),
        highest=max(singles),
        unit=ratio.unit,
        gate=ratio.gate,
        limit=ratio.limit if ratio.gate else None,
        passed=passes(value, ratio),
    )


def passes(value: float, ratio: Ratio) -> bool | None:
    """Whether a gate holds; None where there is none."""
    match ratio.gate:
        case ">=":
            return value >= ratio.limit
        case "<=":
            return value <= ratio.limit
        case None:
            return None


def _value(ratio: Ratio, numbers: Mapping[str, Numbers]) -> float:
    over = _number(ratio.over, numbers)
    if ratio.under is None:
        return over
    return over / max(_number(ratio.under, numbers), 1e-12)


def _number(path: str, numbers: Mapping[str, Numbers]) -> float:
    case, _, metric = path.rpartition(".")
    return numbers[case][metric]
