"""Fixed seeds of gates and workers, the seeds that found something once, and that the laws can be broken."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from laneway.agent.confirmations import Confirmations
from laneway.agent.gates import Asked, Gates, Refusal
from laneway.kernel import stored_mail
from laneway.kernel.mailbox import ChildEntry
from laneway.kernel.task_board import TaskBoard
from laneway.kernel.task_entries import TaskEntry, TaskNews
from laneway.rows import StateRow
from laneway.sim.campaign import run_seed
from laneway.sim.gates_tier import run_gates_seed
from laneway.sim.trace import SimFailedError
from tests.simulation.seed_lists import regressions

CHUNK = 10
SEEDS = range(0, 100, CHUNK)
SABOTAGE_SEEDS = range(80)


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS)
def test_gates_and_workers_keep_every_law(first: int) -> None:
    outcomes = [run_gates_seed(seed) for seed in range(first, first + CHUNK)]
    assert sum(outcome.starts for outcome in outcomes) > CHUNK
    assert sum(outcome.faults for outcome in outcomes) > CHUNK


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "what"), regressions("gates_regressions.txt"))
def test_what_was_found_once_stays_mended(seed: int, what: str) -> None:
    assert run_seed(seed, "gates").seed == seed, what


@pytest.mark.slow
def test_a_session_leaves_although_a_sub_agent_that_is_being_ended_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def talkative(row: StateRow) -> ChildEntry:
        child = child_of(row)
        child.silenced = False  # so that it gets work again, which is held then
        return child

    child_of = stored_mail._child_of  # noqa: SLF001 - a bug is planted there
    monkeypatch.setattr(stored_mail, "_child_of", talkative)
    assert run_gates_seed(7000324).starts > 0


@pytest.mark.slow
def test_a_seed_is_the_same_run_every_time() -> None:
    assert run_gates_seed(3) == run_gates_seed(3)


# ---- the laws can be broken ----


async def _open_gate(self: Gates, asked: Asked) -> Refusal | None:
    return None


async def _nobody_asked(self: Confirmations, asked: Asked) -> Refusal | None:
    return None


def _give_back_writes(self: TaskBoard, entry: TaskEntry, wall: int) -> TaskNews:
    self._give_back(entry)
    return TaskNews("requeued", entry)


def _any_token(self: TaskBoard, entry: TaskEntry, token: str, result: Any, *, wall: int) -> bool:
    if entry.is_live:
        self._finish(entry, result, wall)
    return True


def _run_seeds() -> None:
    for seed in SABOTAGE_SEEDS:
        run_gates_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "broken", "law"),
    [
        (Gates, "admit", _open_gate, "starts"),
        (Confirmations, "ask", _nobody_asked, "nobody has approved that"),
        (TaskBoard, "_lose_lease", _give_back_writes, "is begun a second time"),
        (TaskBoard, "complete", _any_token, "two outcomes of|without its lease was answered"),
    ],
)
def test_the_simulator_finds(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, broken: Callable[..., Any], law: str
) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(SimFailedError) as failure:
        _run_seeds()
    assert re.search(law, failure.value.problem), failure.value.problem
    assert failure.value.replay.endswith("--tier gates")
