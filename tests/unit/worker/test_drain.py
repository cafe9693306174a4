"""Stopping: what has begun is finished or given back, whoever asks for it and however little time there is."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from laneway.external import ExternalTask
from laneway.worker import Worker
from tests.inbox_stage import staged
from tests.stage import now_ms, passing
from tests.worker_stage import Shaky, bench, real_bench


@pytest.mark.parametrize(
    ("effect", "state", "attempt"), [("read", "pending", 2), ("idempotent", "pending", 2), ("write", "unknown", 0)]
)
def test_what_has_begun_and_does_not_end_in_time_is_given_back(effect: str, state: str, attempt: int) -> None:
    @staged
    async def run() -> None:
        async with bench() as on:
            async with on.worker() as worker:
                await on.put("t", effect=effect, lease_ms=300_000)
                await passing(5)
                await worker.stop(timeout_ms=100)
                assert now_ms() < 1_000, "nobody waits for the end of the lease"
                assert (on.cancelled, worker.stats.returned) == (["t"], 1)
                assert await on.stage.state("t") == state
            if attempt:
                async with on.worker():
                    on.gate.set()
                    assert (await on.end()).state == "completed"
                    [lease] = [each for each in on.began if each == "t"][1:]
                    assert lease == "t"

    run()
    assert state


@staged
async def test_a_second_stop_cuts_the_first_one_short() -> None:
    async with bench() as on, on.worker() as worker:
        await on.put("t", lease_ms=300_000)
        await passing(5)
        first = asyncio.get_running_loop().create_task(worker.stop(timeout_ms=60_000))
        await passing(100)
        assert not first.done()
        await worker.stop(timeout_ms=0)
        await first
        assert now_ms() < 1_000
        assert on.line.said[-1] == "release t"


@staged
async def test_a_result_that_nobody_has_heard_is_said_a_last_time() -> None:
    async with bench() as on, on.worker() as worker:
        await on.put("t", effect="write", lease_ms=300_000)
        await passing(5)
        on.line.deaf = {"complete"}
        on.gate.set()
        await passing(3_000)
        on.line.deaf = set()
        await worker.stop(timeout_ms=0)
        assert (await on.end()).state == "completed"
        assert on.line.times("release") == 0, "it was done: it must not be done again"


class Old(Shaky):
    """A transport that was written before what has begun could be given back."""

    async def release(self, task_id: str, token: str, reason: str = "") -> None:  # type: ignore[override] # the point
        """Give back."""
        await super().release(task_id, token, reason)


@staged
async def test_a_transport_that_cannot_give_back_what_has_begun_is_not_asked_to() -> None:
    async with bench() as on:
        on.line = Old(on.line)
        async with on.worker() as worker:
            await on.put("t")
            await passing(5)
            await worker.stop(timeout_ms=0)
            assert on.line.times("release") == 0
            assert on.cancelled == ["t"]


@staged
async def test_a_host_that_is_away_does_not_hold_up_the_stop() -> None:
    async with bench() as on, on.worker() as worker:
        await on.put("t", "u", lease_ms=300_000)
        await passing(5)
        on.line.silent = ["release", "release"]
        await worker.stop(timeout_ms=0)
        assert now_ms() <= 10_100
        assert worker.stats.running == 0


@staged
async def test_all_claims_of_all_lanes_end_with_a_stop() -> None:
    async with bench() as on, on.worker(concurrency={"execute": 1, "query": 2, "generate": 1}) as worker:
        await passing(50)
        await worker.stop()
        assert now_ms() < 100
        assert len(on.line.asked_at) == 6, "each lane asks who is there, and then waits"


async def test_a_thread_that_does_not_end_is_given_back_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("laneway.worker.worker.STOP_GRACE_S", 0.01)
    begun, end = threading.Event(), threading.Event()

    def block(task: ExternalTask) -> str:
        begun.set()
        end.wait(60)
        return "late"

    async with real_bench() as on:
        worker = Worker(on.line, handlers={"bash": block}, name="w")
        ended = asyncio.Event()
        worker.watch(lambda news: ended.set() if news.kind == "ended" else None)
        running = asyncio.get_running_loop().create_task(worker.run())
        await on.put("t", effect="write", lease_ms=30_000)
        await asyncio.to_thread(begun.wait, 60)
        await worker.stop(timeout_ms=0)
        assert await on.stage.state("t") == "unknown"
        assert worker.stats.running == 1, "whoever runs it can tell that something was left behind"
        await running
        end.set()
        await ended.wait()
        assert on.line.times("release") == 1, "it is said once"


@staged
async def test_a_task_that_ends_after_all_while_another_is_handed_back_ends_nothing_else() -> None:
    async def stubborn(task: ExternalTask) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await passing(12_000)  # longer than a worker waits for it

    async with bench() as on:
        worker = on.worker(handlers={"bash": stubborn}, concurrency=2)
        released = on.line.release

        async def slowly(*said: Any, **more: Any) -> None:
            await passing(4_000)
            await released(*said, **more)

        on.line.release = slowly  # type: ignore[method-assign] # a packet is lost, say
        running = asyncio.get_running_loop().create_task(worker.run())
        await on.put("one", "two", lease_ms=300_000)
        await passing(5)
        await worker.stop(timeout_ms=0)
        await running
        assert sorted(each for each in on.line.said if each.startswith("release")) == ["release one", "release two"]
