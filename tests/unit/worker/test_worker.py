"""Workers: nothing begins before the host says so, nothing that was begun is forgotten, and a stop is a good one."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from laneway.errors import UsageError
from laneway.external import ExternalTaskResult, Lease
from laneway.testing import fake_host
from laneway.transports import FrameTransport, LocalTransport
from laneway.worker import Worker
from tests.inbox_stage import staged
from tests.stage import passing
from tests.worker_stage import LEASE, Shaky, bench

# ---- the way of a task ----


@staged
async def test_a_worker_claims_starts_does_and_completes() -> None:
    async with bench() as on, on.worker() as worker:
        on.gate.set()
        await on.put("t", effect="write")
        assert await on.did() == ExternalTaskResult(result="did t")
        await passing(1)
        assert [each for each in on.line.said if each != "claim"] == ["start t", "complete t"]
        assert worker.stats[:3] == (0, 1, 1)


@staged
async def test_nothing_begins_before_the_start_is_answered() -> None:
    async with bench() as on, on.worker():
        on.line.deaf = {"start"}
        await on.put("t", effect="write")
        await passing(LEASE // 2)
        assert on.began == []
        on.line.deaf = set()
        on.gate.set()
        assert (await on.end()).state == "completed"
        assert on.began == ["t"]


@staged
async def test_a_start_whose_answer_was_lost_is_said_again_and_begins_once() -> None:
    async with bench() as on, on.worker():
        on.line.mute = {"start"}
        on.gate.set()
        await on.put("t", effect="write")
        await passing(20)
        on.line.mute = set()
        assert (await on.end()).state == "completed"
        assert on.began == ["t"]
        assert on.line.times("start") > 1


@staged
async def test_a_write_whose_start_came_too_late_is_told_to_be_unbegun() -> None:
    async with bench() as on, on.worker():
        on.line.mute = {"start"}
        await on.put("t", effect="write")
        await passing(10)
        on.line.deaf = {"start"}
        assert (await on.end()).state == "unknown", "the host heard that it begins, and nothing more"
        on.line.mute = on.line.deaf = set()
        await passing(10_000)
        assert on.began == []
        end = await on.end()
        assert (end.state, end.reason) == ("failed", "the worker could not reach its host in time, and did not begin")


@staged
async def test_a_task_that_is_somebody_elses_by_then_is_not_begun() -> None:
    async with bench() as on, on.worker(concurrency=1) as worker:
        on.line.deaf = {"start"}
        await on.put("t", effect="write")
        await passing(LEASE + 10)
        other = (await LocalTransport(on.desk).claim("other"))[0]
        await on.desk.start("t", other.token)
        on.line.deaf = set()
        await passing(500)
        assert on.began == []
        assert worker.stats.refused == 1
        assert await on.desk.complete("t", other.token, ExternalTaskResult(result="by the other"))


@staged
async def test_a_worker_does_as_many_at_once_as_it_may_and_asks_for_no_more() -> None:
    async with bench() as on, on.worker(concurrency=3) as worker:
        await on.put(*(f"t{number}" for number in range(7)))
        await passing(5)
        assert (on.began, worker.stats.running) == (["t0", "t1", "t2"], 3)
        on.gate.set()
        ends = [await on.end(f"t{number}") for number in range(7)]
        assert {end.state for end in ends} == {"completed"}
        assert on.peak == 3
        assert max(on.line.limits) == 3


@staged
async def test_signs_of_life_come_three_times_in_a_lease() -> None:
    async with bench() as on, on.worker():
        await on.put("t", effect="write")
        await passing(10 * LEASE + 50)
        assert 28 <= on.line.times("heartbeat") <= 30
        on.gate.set()
        assert (await on.end()).state == "completed"


@staged
async def test_an_idle_worker_asks_once_in_its_wait() -> None:
    async with bench() as on, on.worker(wait_ms=20_000):
        await passing(60_010)
        assert on.line.times("claim") <= 5, "the first one only asks whether somebody is there"


# ---- work that nobody wants any more ----


@staged
async def test_withdrawn_work_is_stopped_at_the_next_sign_of_life() -> None:
    async with bench() as on, on.worker() as worker:
        await on.put("t")
        await passing(5)
        on.desk.withdraw("t", "the run was ended")
        await passing(LEASE // 3 + 5)
        assert on.cancelled == ["t"]
        assert worker.stats[:1] == (0,)
        assert worker.stats.stopped == 1
        assert on.line.times("complete") == 0


@staged
async def test_work_whose_time_is_over_is_stopped() -> None:
    async with bench() as on, on.worker() as worker:
        await on.put("t", timeout_ms=100)
        assert (await on.end()).state == "timed_out"
        await passing(5)
        assert (on.cancelled, worker.stats.stopped) == (["t"], 1)


@staged
async def test_work_whose_lease_was_lost_is_stopped() -> None:
    async with bench() as on, on.worker(concurrency=1) as worker:
        await on.put("t")
        await passing(5)
        on.line.deaf = {"heartbeat"}
        await passing(LEASE)
        assert on.cancelled == []
        other = (await LocalTransport(on.desk).claim("other"))[0]
        assert other.task.attempt == 2
        on.line.deaf = set()
        await passing(LEASE // 2)
        assert (on.cancelled, worker.stats.stopped) == (["t"], 1)


# ---- a host that cannot be reached ----


@staged
async def test_a_result_waits_until_the_host_is_back() -> None:
    async with bench() as on, on.worker():
        await on.put("t", effect="write")
        await passing(5)
        on.line.deaf = {"heartbeat", "complete", "claim"}
        on.gate.set()
        assert (await on.end()).state == "unknown"
        on.line.deaf = set()
        await passing(6_000)
        assert (await on.end()).state == "completed", "a late result of a write settles it"
        assert on.began == ["t"]


@staged
async def test_a_result_whose_answer_was_lost_counts_once() -> None:
    async with bench() as on, on.worker() as worker:
        on.line.mute = {"complete"}
        on.gate.set()
        await on.put("t")
        await on.end()
        await passing(1_000)
        on.line.mute = set()
        await passing(6_000)
        assert worker.stats.completed == 1
        assert on.line.times("complete") > 1


@staged
async def test_a_worker_asks_again_with_growing_pauses() -> None:
    async with bench() as on:
        on.line.deaf = {"claim"}
        async with on.worker():
            await passing(60_000)
            times = on.line.asked_at
            pauses = [later - one for one, later in pairwise(times)]
            assert pauses[0] <= 110
            assert 2_500 <= max(pauses) <= 5_000
            assert 10 <= len(times) <= 40
            on.line.deaf = set()
            on.gate.set()
            await on.put("t")
            assert (await on.end()).state == "completed"


@pytest.mark.parametrize("what", ["claim", "start", "heartbeat", "complete"])
def test_a_host_that_never_answers_is_asked_again(what: str) -> None:
    @staged
    async def run() -> None:
        async with bench() as on:
            on.line.silent = [what]
            async with on.worker(wait_ms=1_000):
                await on.put("t", effect="write", lease_ms=300_000)
                await passing(200_000)
                on.gate.set()
                assert (await on.end()).state == "completed"
                await passing(70_000)
                assert on.line.times("complete") == 1
                assert on.line.silent == []

    run()
    assert what


class Nonsense(Shaky):
    """A transport that refuses for good, or breaks in ways of its own."""

    def __init__(self, error: Exception) -> None:
        super().__init__(FrameTransport(print))  # type: ignore[arg-type] # nobody gets that far
        self.error = error
        self.asked = 0

    async def claim(self, worker: str, **wanted: Any) -> list[Lease]:
        """No."""
        self.asked += 1
        raise self.error


@staged
async def test_what_the_host_refuses_for_good_ends_the_worker() -> None:
    line = Nonsense(UsageError("a worker has a name"))
    with pytest.raises(UsageError, match="a worker has a name"):
        await Worker(line, handlers={"bash": print}).run()
    assert line.asked == 1


@staged
async def test_an_error_of_the_transport_itself_is_survived() -> None:
    line = Nonsense(ZeroDivisionError("oops"))
    async with Worker(line, handlers={"bash": print}, host=fake_host()):
        await passing(2_000)
        assert line.asked > 3


# ---- stopping ----


@staged
async def test_a_worker_that_stops_finishes_what_runs_and_takes_nothing_more() -> None:
    async with bench() as on:
        worker = on.worker(concurrency=1)
        running = asyncio.get_running_loop().create_task(worker.run())
        await on.put("t", "next", effect="write")
        await passing(5)
        stopping = asyncio.get_running_loop().create_task(worker.stop())
        await passing(5)
        assert not stopping.done()
        on.gate.set()
        await stopping
        await running
        assert [(await on.stage.state(name)) for name in ("t", "next")] == ["completed", "pending"]
        await worker.stop()
        with pytest.raises(UsageError):
            await worker.run()


@staged
async def test_a_worker_that_stops_gives_back_what_it_has_not_begun() -> None:
    async with bench() as on:
        worker = on.worker()
        running = asyncio.get_running_loop().create_task(worker.run())
        on.line.deaf = {"start"}
        await on.put("t", effect="write")
        await passing(20)
        assert await on.stage.state("t") == "leased"
        await worker.stop()
        await running
        assert await on.stage.state("t") == "pending"
        assert on.began == []


@staged
async def test_a_worker_that_stops_says_that_a_write_was_not_begun_if_the_host_may_believe_so() -> None:
    async with bench() as on:
        worker = on.worker()
        running = asyncio.get_running_loop().create_task(worker.run())
        on.line.mute = {"start"}
        await on.put("t", effect="write")
        await on.put("r", effect="idempotent")
        await passing(20)
        await worker.stop()
        await running
        assert (await on.end()).state == "failed"
        assert await on.stage.state("r") == "started", "another worker gets it when the lease has ended"
        assert on.began == []


@staged
async def test_a_stop_that_takes_too_long_cuts_the_work_short() -> None:
    async with bench() as on:
        worker = on.worker()
        running = asyncio.get_running_loop().create_task(worker.run())
        await on.put("t", effect="write")
        await passing(5)
        await worker.stop(timeout_ms=100)
        await running
        assert on.cancelled == ["t"]
        assert (await on.end()).state == "unknown"


@staged
async def test_a_worker_that_is_cancelled_leaves_nothing_behind() -> None:
    async with bench() as on:
        worker = on.worker()
        running = asyncio.get_running_loop().create_task(worker.run())
        await on.put("t")
        await passing(5)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (on.cancelled, worker.stats.running) == (["t"], 0)
        await on.put("u")
        await passing(LEASE + 10)
        assert sorted(task.state for task in on.desk.tasks()) == ["pending", "pending"]


@staged
async def test_a_worker_that_never_ran_stops_at_once() -> None:
    async with bench() as on:
        await on.worker().stop()
        async with on.worker():
            assert on.line.said == []
        assert on.line.said == []
