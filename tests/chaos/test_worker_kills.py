"""Real workers and a real gateway are killed under load, with a bad network between them: nothing is lost or twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.worker_checker import verdict_on
from tests.chaos.worker_world import WorkerWorldOptions, run_worker_world

KILLS = 20


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_workers_and_gateways_that_are_killed_twenty_times_lose_nothing_and_write_nothing_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = run_worker_world(WorkerWorldOptions(folder=tmp_path / "world", seed=20261116, kills=KILLS))
    verdict = verdict_on(found)
    with capsys.disabled():
        print(f"\nchaos of workers: {verdict.line()}")  # noqa: T201 - the tally
    assert verdict.wrong == {}
    assert (found.again["kill worker"], found.again["kill gateway"]) == (15, 5)
    assert (found.again["stop worker"], found.again["stop gateway"]) == (4, 1)
    assert found.again["weather"] > KILLS
    assert verdict.counts["completed"] > 2 * KILLS
