"""Many seeds in a row, for a while: what ran, in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import assert_never

from laneway.sim.agent_tier import run_agent_seed
from laneway.sim.budget_tier import run_budgets_seed
from laneway.sim.engine_tier import run_engine_seed
from laneway.sim.gates_tier import run_gates_seed
from laneway.sim.keeping_tier import run_keeping_seed
from laneway.sim.kernel_tier import run_kernel_seed
from laneway.sim.mail_kernel_tier import run_mailroom_seed
from laneway.sim.mail_tier import run_mail_seed
from laneway.sim.trace import Outcome, Tier, Trace
from laneway.sim.workers_tier import run_workers_seed

__all__ = ("TIERS", "Summary", "run_for", "run_seed")

TIERS: tuple[Tier, ...] = ("kernel", "engine", "mailroom", "mail", "agent", "gates", "workers", "budgets", "keeping")


@dataclass(slots=True, kw_only=True)
class Summary:
    """What a campaign did."""

    first_seed: int
    seeds: int = 0
    steps: int = 0
    starts: int = 0
    faults: int = 0
    seconds: float = 0.0

    def add(self, outcome: Outcome) -> None:
        """Count one run."""
        self.seeds += 1
        self.steps += outcome.steps
        self.starts += outcome.starts
        self.faults += outcome.faults

    def line(self) -> str:
        """The numbers as one line."""
        rate = round(self.steps / self.seconds) if self.seconds else 0
        return (
            f"ok: {self.seeds} seeds from {self.first_seed}, {self.steps:,} steps, {self.starts:,} starts, "
            f"{self.faults:,} faults, {self.seconds:.1f} s, {rate:,} steps/s"
        )


def run_seed(seed: int, tier: Tier, trace: Trace | None = None) -> Outcome:
    """Run one seed of one tier; raise `SimFailedError` when a law is broken."""
    match tier:
        case "kernel":
            return run_kernel_seed(seed, trace=trace)
        case "engine":
            return run_engine_seed(seed, trace=trace)
        case "mailroom":
            return run_mailroom_seed(seed, trace=trace)
        case "mail":
            return run_mail_seed(seed, trace=trace)
        case "agent":
            return run_agent_seed(seed, trace=trace)
        case "gates":
            return run_gates_seed(seed, trace=trace)
        case "workers":
            return run_workers_seed(seed, trace=trace)
        case "budgets":
            return run_budgets_seed(seed, trace=trace)
        case "keeping":
            return run_keeping_seed(seed, trace=trace)
        case _:
            assert_never(tier)


def seeds_from(first: int, tiers: Sequence[Tier]) -> Iterator[tuple[int, Tier]]:
    """Seeds without end, each in every tier."""
    while True:
        for tier in tiers:
            yield first, tier
        first += 1


def run_for(
    runs: Iterable[tuple[int, Tier]], *, first_seed: int, seconds: float, clock: Callable[[], float]
) -> Summary:
    """Run one after another until the time is up (a run that has begun is finished)."""
    summary = Summary(first_seed=first_seed)
    began = clock()
    for seed, tier in runs:
        summary.add(run_seed(seed, tier))
        summary.seconds = clock() - began
        if summary.seconds >= seconds:
            break
    return summary
