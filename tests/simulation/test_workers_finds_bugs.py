"""The simulator of workers finds bugs: each test puts one in and counts the seeds it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from laneway.errors import LanewayError, RateLimitedError
from laneway.external import ExternalTaskResult
from laneway.kernel.task_board import TaskBoard
from laneway.kernel.task_entries import Kind, TaskEntry, TaskNews, Wanted
from laneway.rows import Owner
from laneway.runtime import worker_book
from laneway.runtime.journal import Journal
from laneway.runtime.task_desk import TaskDesk
from laneway.runtime.task_hall import Guest, TaskHall
from laneway.runtime.worker_book import HOLD_MAX, WorkerBook, WorkerRecord
from laneway.sim.trace import SimFailedError
from laneway.sim.workers_tier import run_workers_seed
from laneway.worker.host_line import HostLine

pytestmark = pytest.mark.slow

# The bugs are put in where nobody else may look.
# ruff: noqa: SLF001


def first_failure(*, seeds: int) -> SimFailedError:
    """The first failure among the seeds; without one the simulator is blind to this bug."""
    for seed in range(seeds):
        try:
            run_workers_seed(seed)
        except SimFailedError as failure:
            return failure
    pytest.fail(f"not found in {seeds} seeds")


def test_a_write_that_is_given_to_another_worker_after_it_began_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_back(self: TaskBoard, entry: TaskEntry, said: str, wall: int) -> TaskNews:
        self._give_back(entry)
        return TaskNews("requeued", entry, said)

    monkeypatch.setattr(TaskBoard, "_abandon", give_back)
    failure = first_failure(seeds=30)
    assert "two workers may begin" in failure.problem or "begun a second time" in failure.problem
    assert failure.replay == f"laneway sim --seed {failure.seed} --tier workers"


def test_a_start_that_a_restart_forgets_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    load = TaskBoard.load

    def load_fresh(self: TaskBoard, entry: TaskEntry, *, now: int) -> None:
        load(self, entry, now=now)
        entry.confirmed = False

    monkeypatch.setattr(TaskBoard, "load", load_fresh)
    problem = first_failure(seeds=60).problem
    assert "two workers may begin" in problem or "begun a second time" in problem


def test_a_result_that_counts_without_its_lease_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def any_token(self: TaskBoard, entry: TaskEntry, token: str, result: ExternalTaskResult, *, wall: int) -> bool:
        if entry.is_live:
            self._finish(entry, result, wall)
        return True

    monkeypatch.setattr(TaskBoard, "complete", any_token)
    problem = first_failure(seeds=30).problem
    ways = ("two outcomes of", "was accepted, and the disk says", "nobody has said that")  # who is first to notice
    assert any(each in problem for each in ways)


def test_what_is_told_before_it_is_stored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def at_once(self: Journal, owner: Owner) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    monkeypatch.setattr(Journal, "committed", at_once)
    problem = first_failure(seeds=20).problem
    assert "the disk says" in problem or "is not on disk" in problem


def test_an_end_that_is_told_by_the_row_before_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    saved = TaskDesk._saved

    def told_by_any(self: TaskDesk, saving: Any, error: Exception | None) -> None:
        newest = self._unsaved.get(saving.entry.task_id)
        saved(self, newest if newest is not None and newest.entry is saving.entry else saving, error)

    monkeypatch.setattr(TaskDesk, "_saved", told_by_any)
    problem = first_failure(seeds=60).problem
    assert "the disk says" in problem


def test_two_leases_at_once_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease ends after half of its time."""

    def half(self: TaskBoard, entry: TaskEntry, now: int) -> None:
        entry.lease_number += 1
        entry.lease_due = now + max(1, entry.silence_ms // 2)
        self._set_timer(entry.lease_due, entry, entry.lease_number)

    monkeypatch.setattr(TaskBoard, "_renew", half)
    assert "live lease" in first_failure(seeds=30).problem


@pytest.mark.parametrize("what", ["label", "lane", "command"])
def test_a_task_that_goes_to_a_worker_that_never_asked_for_it_is_found(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    fits = Wanted.fits

    def fits_more(self: Wanted, kind: Kind, worker: str) -> bool:
        blind: dict[str, Callable[[], Wanted]] = {
            "label": lambda: self._replace(labels=frozenset(kind.labels)),
            "lane": lambda: self._replace(lanes=frozenset()),
            "command": lambda: self._replace(commands=frozenset()),
        }
        return fits(blind[what](), kind, worker)

    monkeypatch.setattr(Wanted, "fits", fits_more)
    assert f"never asked for {what}" in first_failure(seeds=60).problem


def test_a_worker_that_is_heard_about_another_tenants_task_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_to_all(guest: Guest, desk: TaskDesk, entry: TaskEntry) -> TaskDesk:
        return desk

    monkeypatch.setattr(TaskHall, "_open_to", staticmethod(open_to_all))
    problem = first_failure(seeds=60).problem
    assert "and was heard" in problem


def test_a_hold_that_never_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    due_of = TaskBoard._due_of

    def never(self: TaskBoard, entry: TaskEntry, number: int) -> int | None:
        return None if number == -2 else due_of(self, entry, number)

    monkeypatch.setattr(TaskBoard, "_due_of", never)
    assert "waits for w" in first_failure(seeds=60).problem


def test_a_task_that_nobody_is_told_of_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes back to those that wait is not offered to them."""
    serve = TaskHall.serve

    def only_new(self: TaskHall, desk: TaskDesk, entry: TaskEntry) -> None:
        if not entry.worker:
            serve(self, desk, entry)

    monkeypatch.setattr(TaskHall, "serve", only_new)
    assert "waits, and so does" in first_failure(seeds=30).problem


def test_a_worker_that_hoards_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at how many tasks in a row it has not begun."""
    monkeypatch.setattr(WorkerRecord, "room", property(lambda self: HOLD_MAX - len(self.holds())))
    assert "has begun none of its last" in first_failure(seeds=60).problem


def test_a_refused_worker_that_gets_tasks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def check_room(self: WorkerBook, record: WorkerRecord) -> None:
        if not record.room:
            raise RateLimitedError("no room", retry_after_ms=1_000)

    monkeypatch.setattr(WorkerBook, "check", check_room)
    monkeypatch.setattr(worker_book, "REFUSE_AFTER", 3)  # ten in a row are rare in so short a life
    assert "is refused for" in first_failure(seeds=60).problem


def test_a_worker_that_begins_before_it_may_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    start = HostLine.start

    async def hopeful(self: HostLine, *lease: Any) -> None:
        try:
            await start(self, *lease)
        except (LanewayError, TimeoutError):
            return  # somebody will have heard it

    monkeypatch.setattr(HostLine, "start", hopeful)
    assert "nobody has told it to" in first_failure(seeds=30).problem


def test_leases_that_never_end_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks at the time: what a dead worker had is lost."""
    due_of = TaskBoard._due_of

    def never(self: TaskBoard, entry: TaskEntry, number: int) -> int | None:
        return None if number >= 0 else due_of(self, entry, number)

    monkeypatch.setattr(TaskBoard, "_due_of", never)
    monkeypatch.setattr("laneway.sim.workers_tier.HEALED_S", 60.0)
    assert "stuck" in first_failure(seeds=30).problem
