"""Fixed seeds of the inbox in both tiers, and the seeds that found something once."""

from __future__ import annotations

from pathlib import Path

import pytest

from laneway.sim.campaign import run_seed
from laneway.sim.mail_kernel_tier import run_mailroom_seed
from laneway.sim.mail_tier import run_mail_seed
from laneway.sim.trace import SimFailedError, Tier, Trace

CHUNK = 20
MAIL_SEEDS = range(100, 180, CHUNK)
MAILROOM_SEEDS = range(0, 40, CHUNK)
MAIL_TIERS: tuple[Tier, ...] = ("mailroom", "mail")
REGRESSIONS = Path(__file__).with_name("mail_regressions.txt")


def regressions() -> list[tuple[int, Tier, str]]:
    """What mail_regressions.txt says."""
    found: list[tuple[int, Tier, str]] = []
    for line in REGRESSIONS.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            seed, tier, what = line.split(maxsplit=2)
            found.append((int(seed), "mailroom" if tier == "mailroom" else "mail", what))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("first", MAILROOM_SEEDS)
def test_the_mailroom_keeps_every_law(first: int) -> None:
    outcomes = [run_mailroom_seed(seed) for seed in range(first, first + CHUNK)]
    assert sum(outcome.starts for outcome in outcomes) > CHUNK


@pytest.mark.slow
@pytest.mark.parametrize("first", MAIL_SEEDS)
def test_the_inbox_keeps_every_law(first: int) -> None:
    outcomes = [run_mail_seed(seed) for seed in range(first, first + CHUNK)]
    assert sum(outcome.starts for outcome in outcomes) > CHUNK
    assert sum(outcome.faults for outcome in outcomes) > CHUNK


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "tier", "what"), regressions())
def test_what_was_found_once_stays_mended(seed: int, tier: Tier, what: str) -> None:
    assert run_seed(seed, tier).seed == seed, what


def test_a_failure_of_the_inbox_says_how_to_see_it_again() -> None:
    failure = SimFailedError(seed=9, tier="mail", problem="it broke", tail=())
    assert str(failure).splitlines() == ["FAILED it broke", "replay: laneway sim --seed 9 --tier mail"]


@pytest.mark.slow
@pytest.mark.parametrize("tier", MAIL_TIERS)
def test_the_trace_of_a_run_shows_every_change_of_a_message(tier: Tier) -> None:
    lines: list[str] = []
    run_seed(7, tier, Trace(sink=lines.append))
    assert lines[0].split()[:3] == ["0", "world", "7"]
    assert any(line.split()[1:2] == ["row"] and "-> running" in line for line in lines)
