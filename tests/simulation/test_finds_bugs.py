"""The simulator is worth something only if it finds bugs: each test puts one in and counts the seeds it takes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from laneway.kernel.admission import Admission
from laneway.kernel.lanes import NEVER, Lane, Pool, Resource, TokenBucket
from laneway.kernel.queues import Waiting
from laneway.kernel.timers import Timers
from laneway.runtime.engine import Engine
from laneway.sim.engine_tier import run_engine_seed
from laneway.sim.kernel_tier import run_kernel_seed
from laneway.sim.trace import SimFailedError

pytestmark = pytest.mark.slow


def first_failure(run: Callable[[int], object], *, seeds: int) -> SimFailedError:
    """The first failure among the seeds; without one the simulator is blind to this bug."""
    for seed in range(seeds):
        try:
            run(seed)
        except SimFailedError as failure:
            return failure
    pytest.fail(f"not found in {seeds} seeds")


def test_a_lost_wake_up_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit of a shared cap comes free and nobody looks."""
    mark = Admission.mark

    def mark_lanes_only(self: Admission, resource: Resource) -> None:
        if not isinstance(resource, Pool):
            mark(self, resource)

    monkeypatch.setattr(Admission, "mark", mark_lanes_only)
    failure = first_failure(run_kernel_seed, seeds=20)
    assert "lost wake-up" in failure.problem


def test_a_cap_overrun_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane lets jobs in whatever its width."""
    monkeypatch.setattr(Lane, "is_open", lambda self: not self.paused)
    failure = first_failure(run_kernel_seed, seeds=10)
    assert "hold what" in failure.problem


def test_a_starved_lane_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Overdue lanes do not go first any more: under constant load the low ones wait for ever."""
    monkeypatch.setattr(Lane, "late_at", lambda self: NEVER)
    failure = first_failure(run_kernel_seed, seeds=150)
    assert "starves" in failure.problem


def test_taking_back_too_much_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs take back what they lent whether it is free or not."""
    monkeypatch.setattr(Resource, "can_take", lambda self, taker: True)
    failure = first_failure(run_kernel_seed, seeds=40)
    assert "took back" in failure.problem or "hold what" in failure.problem


def test_a_rate_limit_that_never_runs_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting takes no token."""
    monkeypatch.setattr(TokenBucket, "take", lambda self, now: None)
    failure = first_failure(run_kernel_seed, seeds=40)
    assert "without a token" in failure.problem


def test_awaited_jobs_that_do_not_go_first_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that a lent job waits for keeps its place in the line."""
    monkeypatch.setattr(Waiting, "prefer", lambda self, entry: None)
    failure = first_failure(run_kernel_seed, seeds=40)
    assert "started before" in failure.problem


def test_an_exclusive_lane_shared_by_two_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane that is lent to descendants goes to anybody."""
    monkeypatch.setattr(Lane, "head", lambda self, now: self.queue.head(now))
    failure = first_failure(run_kernel_seed, seeds=40)
    assert "exclusive lane" in failure.problem


def test_an_engine_that_forgets_its_timer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every third due time is dropped, so that nobody ticks for it."""
    numbers = count(1)
    set_timer = Timers.set

    def forgetful(self: Timers, *args: Any) -> None:
        if next(numbers) % 3:
            set_timer(self, *args)

    monkeypatch.setattr(Timers, "set", forgetful)
    failure = first_failure(run_engine_seed, seeds=40)
    assert failure.tier == "engine"


def test_an_engine_that_never_asks_jobs_to_end_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts that are to end are abandoned instead, and run on after closing."""
    monkeypatch.setattr(Engine, "_cancel_attempt", lambda self, *args: None)
    failure = first_failure(run_engine_seed, seeds=60)
    assert failure.replay == f"laneway sim --seed {failure.seed} --tier engine"
