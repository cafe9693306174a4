"""What the random worlds found, each as the smallest case that showed it."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.errors import LaneCycleError, LaneFullError
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
    """T wants a and b back, J has a and waits for b: b goes to J."""
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
    """The pool chooses once all lanes that may start have been looked at."""
    desk = capped()
    desk.submit("x", "low", "high")
    desk.submit("y", "low")
    desk.submit("z", "high")
    assert desk.finish("x", now=1) == ["z"]


def test_of_two_jobs_due_in_one_tick_the_better_lane_goes_first() -> None:
    """Both were looked at before either started."""
    desk = capped()
    desk.submit("y", "low", spec=JobSpec(delay_ms=5))
    desk.submit("z", "high", spec=JobSpec(delay_ms=5))
    assert desk.tick(5) == ["z"]


def test_a_lane_whose_jobs_were_all_cancelled_is_no_longer_parked() -> None:
    """Was an assertion in the pool when time moved on."""
    desk = Desk({"a": 1, "c": LaneConfig(ageing_ms=10)}, threads_max=1)
    desk.submit("j1", "a", threaded=True, now=12)
    desk.submit("j2", "session:2", "c", spec=LATER, threaded=True, now=12)
    desk.kernel.stop_waiting(None, "asked", now=12)
    desk.submit("j3", "a", now=38)
    assert desk.finish("j1", now=38) == ["j3"]


def test_a_job_that_needs_the_group_of_an_earlier_lane_does_not_block_its_last_lane() -> None:
    """j5 is in front of c and wants the group, which b has: c goes on without it."""
    desk = Desk({"a": 1, "b": LaneConfig(priority=0), "c": 1}, groups={"g": Group(1, ["a", "b"])})
    desk.submit("j4", "a", "c")
    desk.submit("j5", "a", "c")
    desk.submit("j11", "b")
    desk.submit("j15", "c", spec=LAST)
    assert sorted(desk.finish("j4")) == ["j11", "j15"]


def test_a_job_set_aside_for_a_group_comes_back_once() -> None:
    """It was put aside and recalled without end."""
    lanes: dict[str, int | LaneConfig] = {"a": LaneConfig(boost=Boost.standard(20)), "b": 1, "c": 1}
    desk = Desk(lanes, groups={"g": Group(1, ["a", "b"])})
    desk.kernel.close_lane("a", 9, 12, "busy", now=3)
    desk.submit("j4", "session:2", "a", "c", now=3)
    desk.submit("j14", "b", now=5)
    desk.tick(10)
    desk.kernel.reopen_lane("a", now=10)
    assert desk.finish("j14", now=10) == ["j4"]


def test_a_job_that_ages_past_a_blocked_one_starts_at_that_moment() -> None:
    """The slot needs no shared cap, for the job around it has it; the one in front of it does."""
    desk = Desk({"a": LaneConfig(concurrency=3, ageing_ms=10), "c": 1}, max_concurrent=1)
    desk.submit("j6", "c")
    desk.submit("j12", "a")
    desk.submit("j15", "a")
    desk.slot("s19", "a", up="j6", spec=LATER)
    assert desk.wait(20, "j6", "s19") == ["j12"]
    assert desk.kernel.next_due() == 10
    assert desk.tick(10) == ["s19"]


def test_a_slot_whose_outer_slot_ended_first_is_not_counted_twice() -> None:
    """s34 is part of j23 once s29 has ended: the cap is counted once for both."""
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
    """The short way for plain jobs must see it too."""
    desk = Desk({"a": 1})
    desk.kernel.resize("a", 0, 2, now=0)
    desk.submit("j1", "a")
    desk.submit("j2", "a")
    with pytest.raises(LaneFullError):
        desk.submit("j3", "a")


def test_a_job_whose_earlier_lane_opens_in_this_tick_takes_part_in_the_choice() -> None:
    """session:2 opens and j11 is due in one tick: the level decides."""
    desk = Desk({"b": 2})
    desk.kernel.close_lane("session:2", 4, 36, "busy", now=32)
    desk.submit("j11", "b", spec=LAST, now=32)
    desk.submit("j12", "b", now=32)
    desk.finish("j11", End.RETRY_LATER, now=32, after_ms=4)
    assert desk.submit("j13", "session:2", "b", now=32) == []
    assert desk.tick(36) == ["j13"]


def test_an_overdue_start_counts_as_one_however_it_came_about() -> None:
    """b was overdue when j15 started, so the next start belongs to the lane that is not overdue."""
    lanes: dict[str, int | LaneConfig] = {"a": LaneConfig(concurrency=2, ageing_ms=10), "b": LaneConfig(ageing_ms=25)}
    desk = Desk(lanes, max_concurrent=1)
    desk.submit("j14", "b", now=176)
    desk.submit("j15", "b", now=206)
    assert desk.finish("j14", now=241) == ["j15"]
    desk.submit("j18", "a", now=241)
    desk.submit("j19", "b", now=242)
    assert desk.finish("j15", now=261) == ["j19"]


def test_a_lane_at_its_depth_takes_only_jobs_that_can_start_at_once() -> None:
    """y would wait in session:1 now, and in a later."""
    desk = Desk({"a": LaneConfig(queued_max=0), "b": 1}, max_concurrent=5)
    desk.submit("x", "session:1", "b")
    with pytest.raises(LaneFullError):
        desk.submit("y", "session:1", "a")


def test_a_retry_on_its_way_through_its_first_lane_keeps_its_place_in_the_next() -> None:
    """x is abandoned and j14 is due in one tick."""
    desk = Desk({"b": LaneConfig(cancel_grace_ms=1)})
    desk.submit("j14", "session:1", "b")
    desk.finish("j14", End.RETRY_LATER, after_ms=5)
    desk.submit("x", "b")
    desk.submit("j15", "b")
    desk.kernel.stop(JobId("x"), now=0)
    assert desk.tick(10) == ["j14"]


def test_a_job_that_only_passes_a_lane_needs_no_cap_and_starts_when_it_has_aged() -> None:
    """j18 in front of it waits for the cap; j23 wants only to go on to c."""
    desk = Desk({"a": 1, "b": LaneConfig(ageing_ms=25), "c": 1}, max_concurrent=1)
    desk.submit("s3", "a", now=2)
    desk.submit("j4", "c", now=2)
    desk.submit("j18", "b", now=2)
    desk.submit("j23", "b", "c", spec=LAST, now=12)
    assert desk.wait(24, "s3", "j23", now=12) == ["j4"]
    assert desk.kernel.next_due() is not None
    desk.tick(113)
    assert desk.kernel.jobs[JobId("j23")].stage == 1


def test_a_slot_without_a_unit_of_the_group_uses_no_reservation() -> None:
    """Two units are kept for a; s22 has none of them."""
    desk = Desk({"a": 2, "b": 2}, groups={"g": Group(3, ["a", "b"], {"a": 2})})
    desk.submit("j3", "b")
    desk.slot("s22", "a", up="j3")
    assert desk.submit("j13", "b") == []
    assert desk.submit("j1", "a") == ["j1"]


def test_a_job_stays_lent_while_a_wait_inside_it_has_not_returned() -> None:
    """s12 waits for session:1, which j44 has; j44 waits for a, so j2 must not take a back before."""
    desk = Desk({"a": 1})
    desk.submit("j2", "a")
    desk.slot("s12", "session:1", "a", up="j2")
    desk.submit("j35", "session:2", "a")
    assert desk.wait(36, "s12", "j35") == ["j35"]
    desk.slot("s37", "a", up="j2")
    desk.submit("j39", "a")
    desk.wait(40, "s37", "j39")
    desk.submit("j44", "session:1", "a", up="s12")
    started = [*desk.finish("j35", now=1), *desk.finish("j39", now=2)]
    assert started == ["j39", "j44"]
    desk.finish("j44", now=3)
    assert desk.state("j2") is desk.state("s12") is JobState.RUNNING


def test_two_waits_in_one_job_take_back_together() -> None:
    """Without children: s20 wants a, which s23 has, and s23 waits for c."""
    desk = Desk({"a": 1, "b": 1, "c": 1}, max_concurrent=1)
    desk.submit("s9", "session:2", "c")
    desk.slot("s20", "session:1", "a", "b", up="s9")
    desk.submit("s23", "a", "c", spec=LATER)
    desk.submit("j29", "b")
    assert desk.wait(30, "s20", "j29") == ["j29"]
    desk.submit("j31", "b", "c")
    desk.wait(32, "s9", "j31")
    started = [*desk.finish("j29", now=1), *desk.finish("j31", now=2)]
    assert started == ["j31", "s23"]
    desk.finish("s23", now=3)
    assert desk.state("s9") is desk.state("s20") is JobState.RUNNING


def test_an_alarm_of_a_forgotten_lane_leaves_its_successor_alone() -> None:
    """session:2 was forgotten and made again; two jobs ran in it at once."""
    desk = Desk({"a": 1}, threads_max=1)
    desk.submit("t", "a", threaded=True)
    desk.submit("x", "session:2", spec=LATER, threaded=True)
    desk.kernel.stop(JobId("x"), now=0)
    assert desk.submit("y", "session:2", now=111) == ["y"]
    desk.tick(60_009)
    assert desk.submit("z", "session:2", now=60_010) == []


def test_a_circle_through_a_slot_whose_job_has_ended_is_refused() -> None:
    """s37 waits for s18, which stands alone and waits for j4, of which s9 is a part."""
    desk = Desk({"b": 1, "c": LaneConfig(concurrency=2, cancel_grace_ms=5)})
    desk.submit("j4", "session:2")
    desk.slot("s9", "c", up="j4")
    desk.submit("j7", "c")
    desk.slot("s18", "session:1", up="j7")
    desk.wait(32, "s18", "j4")
    desk.kernel.stop(JobId("j7"), now=0)
    desk.tick(5)
    desk.submit("s37", "session:1", now=6)
    with pytest.raises(LaneCycleError):
        desk.wait(38, "s9", "s37", now=6)


def test_a_job_that_was_set_aside_has_aged_meanwhile() -> None:
    """j11 has waited in a for two levels when session:1 opens."""
    desk = Desk({"a": LaneConfig(ageing_ms=10)})
    desk.kernel.close_lane("session:1", 20, 37, "busy", now=17)
    desk.submit("j11", "session:1", "a", spec=LAST, now=17)
    desk.submit("x", "a", now=17)
    desk.submit("j15", "a", spec=LAST, now=28)
    desk.tick(37)
    desk.submit("j16", "a", now=37)
    assert desk.finish("x", now=37) == ["j11"]


def test_a_job_that_needs_a_thread_as_well_is_compared_with_all_others() -> None:
    """Threads are free; under the shared cap the level of the head decides."""
    desk = Desk({"b": 1, "c": 1}, max_concurrent=1)
    desk.submit("x", "b", "c")
    desk.submit("j10", "b", threaded=True)
    desk.submit("j6", "c", spec=LAST)
    assert desk.finish("x") == ["j10"]


def test_waits_of_a_slot_that_was_hung_up_twice_return_after_its_job_has_ended() -> None:
    """Its waits have to be found under what it hangs in now."""
    desk = Desk({"a": 1, "b": 1})
    desk.submit("s1", "session:1", "b")
    desk.slot("s3", "session:1", "a", up="s1")
    desk.slot("s8", "b", up="s3")
    desk.finish("s3")
    desk.submit("j13", "b")
    desk.slot("s17", "session:1", "b", up="s8")
    assert desk.wait(18, "s17", "j13") == ["j13"]
    desk.finish("s8")
    assert desk.submit("j21", "session:1", up="s17") == ["j21"]
    desk.wait(22, "s17", "j21")
    desk.finish("s1")
    desk.finish("j13", now=1)
    desk.finish("j21", now=1)
    assert desk.state("s17") is JobState.RUNNING


def test_an_overdue_start_counts_for_the_threads_too() -> None:
    """The same in lanes that share nothing but the threads."""
    desk = Desk({"a": LaneConfig(ageing_ms=25), "b": LaneConfig(ageing_ms=25)}, threads_max=1)
    desk.submit("j1", "b", threaded=True)
    desk.submit("j3", "a", threaded=True)
    desk.submit("j16", "b", threaded=True, now=125)
    desk.submit("j26", "a", threaded=True, now=264)
    assert desk.finish("j1", now=264) == ["j3"]
    assert desk.finish("j3", now=264) == ["j26"]


def test_a_job_that_passes_into_a_better_lane_is_compared_before_the_next_start() -> None:
    """j0 starts, so j1 passes a and heads the better lane c."""
    lanes: dict[str, int | LaneConfig] = {"a": 3, "b": LaneConfig(priority=3), "c": LaneConfig(priority=1)}
    desk = Desk(lanes, max_concurrent=2)
    desk.submit("j0", "a", spec=JobSpec(delay_ms=1))
    desk.submit("j1", "a", "c", spec=JobSpec(delay_ms=1))
    desk.submit("j2", "b", spec=JobSpec(delay_ms=1))
    assert desk.tick(1) == ["j0", "j1"]


def test_a_take_back_that_meets_a_reservation_lets_others_start() -> None:
    """Of three units s1 and j2 have two, and a has what is reserved for it: the third is for s22."""
    desk = Desk({"a": 1, "b": 3, "c": 1, "d": 1}, groups={"g": Group(3, ["a", "b"], {"a": 1})}, max_concurrent=3)
    desk.submit("s1", "b")
    desk.submit("j2", "a")
    desk.submit("j10", "c")
    desk.submit("j20", "d")
    assert desk.wait(21, "j2", "j20") == ["j20"]
    desk.kernel.cancel_wait(21, now=0)
    desk.slot("s22", "b", up="j10")
    assert desk.wait(23, "j10", "s22") == ["s22"]
    assert desk.state("j2") is JobState.RUNNING
