"""What the random worlds found, each as the smallest case that showed it."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.errors import LaneFullError
from laneway.kernel.protocol import Effect, End, JobSpec, StartJob
from laneway.kernel.scheduler import Kernel
from laneway.records import Boost, Group, JobId, JobState, LaneConfig, Priority
from tests.property.worlds import Setup

PLAIN = JobSpec()
LATER = JobSpec(priority=Priority.SCHEDULED)
LAST = JobSpec(priority=Priority.BACKGROUND)


class Desk:
    """A kernel with short words."""

    def __init__(self, lanes: dict[str, int | LaneConfig], **more: Any) -> None:
        configs = {
            name: lane if isinstance(lane, LaneConfig) else LaneConfig(concurrency=lane) for name, lane in lanes.items()
        }
        self.kernel: Kernel = Setup(lanes=configs, **more).kernel()
        self.kernel.listening = False

    def submit(self, job_id: str, *lanes: str, spec: JobSpec = PLAIN, now: int = 0, **more: Any) -> list[str]:
        return starts(self.kernel.submit(JobId(job_id), lanes, spec, now=now, **more))

    def slot(self, job_id: str, *lanes: str, up: str, spec: JobSpec = PLAIN, now: int = 0) -> list[str]:
        return self.submit(job_id, *lanes, spec=spec, now=now, up=up, is_slot=True)

    def wait(self, wait_id: int, node: str, target: str, now: int = 0) -> list[str]:
        return starts(self.kernel.begin_wait(wait_id, JobId(node), JobId(target), now=now))

    def finish(self, job_id: str, end: End = End.SUCCEEDED, *, now: int = 0, after_ms: int = 0) -> list[str]:
        return starts(self.kernel.finish(JobId(job_id), 1, end, now=now, after_ms=after_ms))

    def tick(self, now: int) -> list[str]:
        return starts(self.kernel.tick(now=now))

    def state(self, job_id: str) -> JobState:
        return self.kernel.jobs[JobId(job_id)].state


def starts(effects: list[Effect]) -> list[str]:
    return [effect.job_id for effect in effects if isinstance(effect, StartJob)]


def test_a_taker_keeps_no_lane_that_a_job_on_its_way_needs() -> None:
    """P1: T wants a and b back, J has a and waits for b: b goes to J."""
    desk = Desk({"a": 1, "b": 1, "c": 1})
    desk.submit("T", "a", "b")
    desk.submit("K", "c", up="T")
    desk.wait(1, "T", "K")
    desk.submit("X", "b")
    desk.submit("J", "a", "b")
    assert desk.finish("K", now=1) == []
    assert desk.finish("X", now=2) == ["J"]
    desk.finish("J", now=3)
    assert desk.state("T") is JobState.RUNNING


def capped() -> Desk:
    lanes: dict[str, int | LaneConfig] = {"low": LaneConfig(priority=3), "high": LaneConfig(priority=1)}
    return Desk(lanes, max_concurrent=1)


def test_one_finish_that_frees_two_lanes_lets_the_better_one_go_first() -> None:
    """P2."""
    desk = capped()
    desk.submit("x", "low", "high")
    desk.submit("y", "low")
    desk.submit("z", "high")
    assert desk.finish("x", now=1) == ["z"]


def test_of_two_jobs_due_in_one_tick_the_better_lane_goes_first() -> None:
    """P2, by time."""
    desk = capped()
    desk.submit("y", "low", spec=JobSpec(delay_ms=5))
    desk.submit("z", "high", spec=JobSpec(delay_ms=5))
    assert desk.tick(5) == ["z"]


def test_a_lane_whose_jobs_were_all_cancelled_is_no_longer_parked() -> None:
    """P3: was an assertion in the pool when time moved on."""
    desk = Desk({"a": 1, "c": LaneConfig(ageing_ms=10)}, threads_max=1)
    desk.submit("j1", "a", threaded=True, now=12)
    desk.submit("j2", "session:2", "c", spec=LATER, threaded=True, now=12)
    desk.kernel.stop_waiting(None, "asked", now=12)
    desk.submit("j3", "a", now=38)
    assert desk.finish("j1", now=38) == ["j3"]


def test_a_job_that_needs_the_group_of_an_earlier_lane_does_not_block_its_last_lane() -> None:
    """P4."""
    desk = Desk({"a": 1, "b": LaneConfig(priority=0), "c": 1}, groups={"g": Group(1, ["a", "b"])})
    desk.submit("j4", "a", "c")
    desk.submit("j5", "a", "c")
    desk.submit("j11", "b")
    desk.submit("j15", "c", spec=LAST)
    assert sorted(desk.finish("j4")) == ["j11", "j15"]


@pytest.mark.timeout(5)
def test_a_job_set_aside_for_a_group_comes_back_once() -> None:
    """P5: was an endless loop."""
    lanes: dict[str, int | LaneConfig] = {"a": LaneConfig(boost=Boost.standard(20)), "b": 1, "c": 1}
    desk = Desk(lanes, groups={"g": Group(1, ["a", "b"])})
    desk.kernel.close_lane("a", 9, 12, "busy", now=3)
    desk.submit("j4", "session:2", "a", "c", now=3)
    desk.submit("j14", "b", now=5)
    desk.tick(10)
    desk.kernel.reopen_lane("a", now=10)
    assert desk.finish("j14", now=10) == ["j4"]


def test_a_job_that_ages_past_a_blocked_one_starts_at_that_moment() -> None:
    """P6: the slot needs no shared cap, for the job around it has it; the one in front of it does."""
    desk = Desk({"a": LaneConfig(concurrency=3, ageing_ms=10), "c": 1}, max_concurrent=1)
    desk.submit("j6", "c")
    desk.submit("j12", "a")
    desk.submit("j15", "a")
    desk.slot("s19", "a", up="j6", spec=LATER)
    assert desk.wait(20, "j6", "s19") == ["j12"]
    assert desk.kernel.next_due() == 10
    assert desk.tick(10) == ["s19"]


def test_a_slot_whose_outer_slot_ended_first_is_not_counted_twice() -> None:
    """P7."""
    desk = Desk({"a": 1, "b": 1, "control": 1}, max_concurrent=1)
    desk.kernel.close_lane("b", 18, 18, "busy", now=0)
    desk.submit("j18", "session:1", "b")
    desk.submit("j23", "a")
    desk.slot("s29", "control", up="j23")
    desk.slot("s34", "session:1", "a", up="s29")
    desk.wait(35, "s29", "s34")
    desk.finish("s29")
    desk.kernel.stop(JobId("j18"), now=0)
    root = desk.kernel.registry.root
    assert root is not None
    assert root.held <= 1


def test_a_depth_given_by_resize_holds() -> None:
    """P8."""
    desk = Desk({"a": 1})
    desk.kernel.resize("a", 0, 2, now=0)
    desk.submit("j1", "a")
    desk.submit("j2", "a")
    with pytest.raises(LaneFullError):
        desk.submit("j3", "a")


def test_a_job_whose_earlier_lane_opens_in_this_tick_takes_part_in_the_choice() -> None:
    """P9."""
    desk = Desk({"b": 2})
    desk.kernel.close_lane("session:2", 4, 36, "busy", now=32)
    desk.submit("j11", "b", spec=LAST, now=32)
    desk.submit("j12", "b", now=32)
    desk.finish("j11", End.RETRY_LATER, now=32, after_ms=4)
    assert desk.submit("j13", "session:2", "b", now=32) == []
    assert desk.tick(36) == ["j13"]


def test_an_overdue_start_counts_as_one_however_it_came_about() -> None:
    """P10: b was overdue when j15 started, so the next start belongs to the lane that is not overdue."""
    lanes: dict[str, int | LaneConfig] = {"a": LaneConfig(concurrency=2, ageing_ms=10), "b": LaneConfig(ageing_ms=25)}
    desk = Desk(lanes, max_concurrent=1)
    desk.submit("j14", "b", now=176)
    desk.submit("j15", "b", now=206)
    assert desk.finish("j14", now=241) == ["j15"]
    desk.submit("j18", "a", now=241)
    desk.submit("j19", "b", now=242)
    assert desk.finish("j15", now=261) == ["j19"]
