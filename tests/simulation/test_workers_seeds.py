"""Fixed seeds of workers beyond a bad network, and the seeds that found something once."""

from __future__ import annotations

import pytest

from laneway.sim.campaign import run_seed
from laneway.sim.trace import Trace
from laneway.sim.workers_tier import run_workers_seed
from laneway.sim.workers_world import LIES
from tests.simulation.seed_lists import regressions

CHUNK = 10
SEEDS = range(0, 120, CHUNK)


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS)
def test_workers_and_their_host_keep_every_law(first: int) -> None:
    outcomes = [run_workers_seed(seed) for seed in range(first, first + CHUNK)]
    assert sum(outcome.starts for outcome in outcomes) > 5 * CHUNK
    assert sum(outcome.faults for outcome in outcomes) > 5 * CHUNK


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "what"), regressions("workers_regressions.txt"))
def test_what_was_found_once_stays_mended(seed: int, what: str) -> None:
    assert run_seed(seed, "workers").seed == seed, what


@pytest.mark.slow
def test_a_seed_is_the_same_run_every_time() -> None:
    assert run_workers_seed(3) == run_workers_seed(3)


@pytest.mark.slow
def test_the_seeds_have_everything_that_can_happen_to_a_task() -> None:
    """A law that nothing ever comes near says little: what the worlds have in them is counted."""
    told: set[str] = set()

    def hear(line: str) -> None:
        _, what, *rest = line.split()
        told.add(what)
        told.update(f"{what} {word}" for word in rest[1:3])

    for seed in range(40):
        run_workers_seed(seed, trace=Trace(sink=hear))
    ends = {"ended completed", "ended failed", "ended timed_out", "ended withdrawn", "ended unknown"}
    said = {"settled completed", "requeued pending", "progress started", "start lease_lost", "complete lease_lost"}
    happened = {"crash", "restart", "reopen", "stall", "wall_jumps", "kill", "drain", "claim rate_limited"}
    lies = {f"lie {lie}" for lie in LIES}
    assert (ends | said | happened | lies) - told == set()
