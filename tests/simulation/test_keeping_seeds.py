"""Fixed seeds of sessions that are pruned, deleted, moved and forked, and that the laws can be broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from laneway.agent import forking
from laneway.agent.book import Book
from laneway.rows import StateRow
from laneway.runtime import erasing, retention
from laneway.sim.campaign import run_seed
from laneway.sim.keeping_tier import run_keeping_seed
from laneway.sim.trace import SimFailedError
from laneway.stores.memory import MemoryDisk
from tests.simulation.seed_lists import regressions

CHUNK = 20
SABOTAGE_SEEDS = range(60)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 100, CHUNK))
def test_what_is_kept_is_whole_and_what_is_deleted_is_gone(first: int) -> None:
    outcomes = [run_keeping_seed(seed) for seed in range(first, first + CHUNK)]
    assert sum(outcome.starts for outcome in outcomes) > CHUNK
    assert sum(outcome.faults for outcome in outcomes) > CHUNK


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "what"), regressions("keeping_regressions.txt"))
def test_what_was_found_once_stays_mended(seed: int, what: str) -> None:
    assert run_seed(seed, "keeping").seed == seed, what


@pytest.mark.slow
def test_a_seed_is_the_same_run_every_time() -> None:
    assert run_keeping_seed(7) == run_keeping_seed(7)


# ---- the laws can be broken ----


async def _no_boundary(store: Any, owner: Any, limits: Any, *, now_ms: int) -> int:
    return 10**12


async def _always_clear(store: Any, owner: Any) -> bool:
    return False


def _keep_all_blobs(self: MemoryDisk, tenant: str, names: set[str]) -> None:
    return None


def _rolled_back_too(past: Any) -> list[Any]:
    return list(past.rounds)


def _written_once(self: Book, thing: Any, known: Any = Book.rows_of) -> tuple[StateRow, list[StateRow]]:
    """As if nobody ever took a blob away."""
    row, blobs = known(self, thing)
    written = self.__dict__.setdefault("written", set())
    fresh = [blob for blob in blobs if blob.id not in written]
    written |= {blob.id for blob in fresh}
    return row, fresh


def _run_seeds() -> None:
    for seed in (*SABOTAGE_SEEDS, 84):
        run_keeping_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "broken", "law"),
    [
        (
            retention,
            "boundary",
            _no_boundary,
            "is gone|replays|names a blob|goes another way|another one|not there|pruned|cannot be told",
        ),
        (erasing, "_is_marked", _always_clear, "is gone|another one"),
        (MemoryDisk, "_forget_blobs", _keep_all_blobs, "rows are left"),
        (Book, "rows_of", _written_once, "names a blob that is not there|StoreCorruptError"),
        (forking, "_kept", _rolled_back_too, "nobody would take"),
    ],
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, broken: Callable[..., Any], law: str
) -> None:
    monkeypatch.setattr(owner, name, broken)
    with pytest.raises(SimFailedError, match=law) as failure:
        _run_seeds()
    assert failure.value.replay.endswith("--tier keeping")
