"""The last quarter of an hour of the lanes: what lanes have counted, step by step, with a clock that stands still."""

from __future__ import annotations

from typing import Any

from laneway.gateway.traffic_history import LANES_MAX, STEP_MS, STEPS, TrafficHistory
from laneway.kernel.protocol import End, JobSpec
from laneway.kernel.registry import Registry
from laneway.kernel.scheduler import Kernel
from laneway.records import JobId, LaneConfig

WALL = 1_700_000_000_000


class Road:
    """A kernel, its history, and a time that only the test moves."""

    def __init__(self, **lanes: int) -> None:
        configs = {name: LaneConfig(concurrency=width) for name, width in lanes.items()}
        registry = Registry(configs, groups={}, max_concurrent=None, threads_max=4, creates_unknown=True)
        self.kernel = Kernel(registry)
        self.history = TrafficHistory(registry)
        self.now = 0
        self._jobs = 0

    def submit(self, *lanes: str) -> JobId:
        self._jobs += 1
        job_id = JobId(f"job-{self._jobs}")
        self.kernel.submit(job_id, lanes, JobSpec(), now=self.now)
        return job_id

    def finish(self, job_id: JobId, end: End = End.SUCCEEDED) -> None:
        self.kernel.finish(job_id, 1, end, self.now, "it broke" if end is End.FAILED else "")

    def step(self) -> dict[str, Any]:
        """Five seconds later; the newest step of all lanes."""
        self.now += STEP_MS
        kernel = self.kernel
        self.history.sample(at_ms=WALL + self.now, running=kernel.running, waiting=kernel.waiting)
        return self.newest("total")

    def newest(self, name: str) -> dict[str, Any]:
        found = self.history.read([name])
        series = found["total"] if name == "total" else found["lanes"][name]
        return {key: values[-1] for key, values in series.items()}


QUIET = {"started": 0, "ended": 0, "failed": 0, "wait_p50_ms": None, "wait_p95_ms": None, "waiting": 0, "running": 0}


def test_a_step_tells_what_began_and_ended_in_it_and_how_long_that_had_waited() -> None:
    road = Road(main=1)
    first, second = road.submit("main"), road.submit("main")
    told = road.step()
    assert told == {**QUIET, "started": 1, "wait_p50_ms": 0, "wait_p95_ms": 0, "waiting": 1, "running": 1}
    road.finish(first)
    road.finish(second, End.FAILED)
    told = road.step()
    assert (told["started"], told["ended"], told["failed"]) == (1, 2, 1)
    assert told["wait_p50_ms"] == told["wait_p95_ms"]
    assert STEP_MS <= told["wait_p95_ms"] <= STEP_MS * 1.03  # lanes count in buckets of that width
    assert road.newest("main") == told
    assert road.step() == QUIET
    assert road.newest("main") == QUIET


def test_waits_are_those_of_the_step_and_not_of_all_time() -> None:
    road = Road(main=1)
    for _ in range(100):
        road.finish(road.submit("main"))
    road.step()
    first = road.submit("main")
    second = road.submit("main")
    road.step()
    road.now += 1_000
    road.finish(first)
    road.finish(second)
    told = road.step()
    assert told["started"] == 1
    assert told["wait_p50_ms"] >= 6_000


def test_the_newest_steps_are_kept_in_their_places() -> None:
    road = Road(main=1)
    road.finish(road.submit("main"))
    road.step()
    for _ in range(STEPS - 1):
        road.step()
    found = road.history.read(["main"])
    assert found["at_ms"] == WALL + STEPS * STEP_MS
    assert (found["steps"], found["step_ms"]) == (STEPS, STEP_MS)
    assert found["lanes"]["main"]["ended"] == [1] + [0] * (STEPS - 1)
    road.step()
    assert road.history.read(["main"])["lanes"]["main"]["ended"] == [0] * STEPS
    assert road.history.read(["main"])["total"]["ended"] == [0] * STEPS


def test_lanes_that_are_gone_still_count_in_the_total_and_once() -> None:
    road = Road(main=5)
    for number in range(3):  # lanes made on the fly go with their last job
        road.finish(road.submit(f"s{number}/other"))
    assert "s0/other" not in road.kernel.registry.lanes
    assert road.step()["ended"] == 3
    assert road.step()["ended"] == 0
    job = road.submit("s1/other")
    assert road.step()["started"] == 1
    road.finish(job)
    told = road.step()
    assert (told["started"], told["ended"]) == (0, 1)
    assert road.step() == QUIET


def test_a_lane_that_comes_again_under_its_name_begins_to_count_anew() -> None:
    road = Road()
    job = road.submit("s1/other")
    road.step()
    road.finish(job)
    again = road.submit("s1/other")  # the lane was forgotten in between
    told = road.step()
    assert (told["started"], told["ended"]) == (1, 1)
    assert road.newest("s1/other")["started"] == 1
    road.finish(again)
    assert road.step()["ended"] == 1


def test_a_turn_is_in_two_lanes_and_counts_once_in_the_total() -> None:
    road = Road(main=2)
    road.finish(road.submit("session:ada", "main"))
    assert road.step()["ended"] == 1
    job = road.submit("session:ada", "main")
    assert road.step()["started"] == 1
    assert (road.newest("main")["running"], road.newest("session:ada")["running"]) == (1, 1)
    road.finish(job)
    assert road.step()["ended"] == 1


def test_quiet_lanes_cost_no_memory_and_the_number_of_others_is_bounded() -> None:
    road = Road(**{f"lane{number}": 1 for number in range(LANES_MAX + 500)})
    road.step()
    assert road.history.size == {"lanes": 0, "numbers": 0}
    for number in range(LANES_MAX + 500):
        road.finish(road.submit(f"lane{number}"))
        if number == 10:
            road.step()
            road.step()
    road.step()
    assert road.history.size["lanes"] == LANES_MAX
    wanted = ["lane0", "lane500", f"lane{LANES_MAX + 499}"]
    assert list(road.history.read(wanted)["lanes"]) == ["lane500"]  # the quiet ones went; of too many, the first stay
    assert sum(road.history.read()["total"]["ended"]) == LANES_MAX + 500


def test_a_lane_is_in_its_ring_as_long_as_something_is_in_it() -> None:
    road = Road(main=1)
    job = road.submit("main")
    road.step()
    road.step()
    road.step()
    assert road.history.read(["main"])["lanes"]["main"]["running"][-3:] == [1, 1, 1]
    road.finish(job)
    road.step()
    assert road.history.newest["main"][:2] == (0, 1)
    road.step()
    assert road.history.newest == {}
