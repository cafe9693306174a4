"""What jobs and callers bring along (odd exceptions, odd reasons, odd cancels) never costs a lane its life."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from laneway import (
    AbortSignal,
    ConfigError,
    GiveUp,
    JobAbortedError,
    JobCancelledError,
    JobFailedError,
    JobState,
    Lanes,
    RetryPolicy,
    WrongThreadError,
)


class UnprintableError(Exception):
    """Neither text nor representation."""

    def __str__(self) -> str:
        raise AttributeError("no text")

    def __repr__(self) -> str:
        raise AttributeError("no representation")


@dataclass(frozen=True)
class FrozenError(Exception):
    """Takes no notes."""

    number: int = 1


async def fine() -> str:
    return "fine"


@pytest.mark.parametrize("error", [UnprintableError(), FrozenError(), GeneratorExit(), StopAsyncIteration()])
async def test_whatever_a_job_raises_its_awaiter_is_told_and_the_lane_lives_on(error: BaseException) -> None:
    async def fail() -> None:
        raise error

    async with Lanes({"a": 1}) as lanes:
        first, second = lanes.submit("a", fail), lanes.submit("a", fine)
        with pytest.raises((type(error), JobFailedError)):
            await first
        assert await second == "fine"
        with pytest.raises((type(error), JobFailedError)):
            await lanes.run("a", fail, retry=RetryPolicy.fixed(1, 0))
        assert await lanes.run("a", fine) == "fine"


async def test_a_sync_function_that_raises_stop_iteration_fails() -> None:
    empty: Callable[[], object] = iter(()).__next__
    async with Lanes({"a": 1}) as lanes:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await lanes.run("a", empty)
        assert await lanes.run("a", fine) == "fine"


@pytest.mark.parametrize("reason", [None, 5, ValueError("why"), UnprintableError()])
async def test_a_reason_may_be_anything(reason: Any) -> None:
    async with Lanes({"a": 1}) as lanes:
        running = lanes.submit("a", asyncio.sleep, 60)
        await asyncio.sleep(0)
        assert running.cancel(reason)
        with pytest.raises(JobCancelledError):
            await running
        signal = AbortSignal()
        aborted = lanes.submit("a", asyncio.sleep, 60, signal=signal)
        signal.abort(reason)
        with pytest.raises(JobAbortedError):
            await aborted
        assert signal.aborted

        async def give_up() -> None:
            raise GiveUp(reason)

        with pytest.raises(JobFailedError):
            await lanes.run("a", give_up)
        assert isinstance(lanes.dead_letters.list()[0].reason, str)


async def test_a_task_cancelled_by_others_before_its_first_step_ends_its_job() -> None:
    async with Lanes({"a": 1}) as lanes:
        job = lanes.submit("a", asyncio.sleep, 60)
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        with pytest.raises(JobCancelledError, match="before its first step"):
            await job
        assert await lanes.run("a", fine) == "fine"


async def test_a_release_on_another_thread_is_refused_and_the_slot_can_still_be_released() -> None:
    async with Lanes({"a": 1}) as lanes:
        slot = await lanes.slot("a").acquire()
        refused: list[BaseException] = []

        def release() -> None:
            try:
                slot.release()
            except WrongThreadError as error:
                refused.append(error)

        thread = threading.Thread(target=release)
        thread.start()
        thread.join()
        assert len(refused) == 1
        slot.release()
        assert await lanes.run("a", fine) == "fine"


async def test_an_absurd_weight_is_refused() -> None:
    async with Lanes({"a": 1}) as lanes:
        for weight in (10**400, 1e308, 0, -1, float("nan")):
            with pytest.raises(ConfigError, match="weight"):
                lanes.submit("a", fine, weight=weight)
        assert lanes.stats().waiting == 0


async def test_a_handle_that_is_cancelled_frees_the_job_that_waits_for_it() -> None:
    release = asyncio.Event()
    async with Lanes({"a": 2}) as lanes:
        first = lanes.submit("a", release.wait, key="k")
        second = lanes.submit("a", release.wait, key="k")

        async def parent() -> str:
            try:
                await second
            except JobCancelledError:
                return "told"
            return "not told"

        waiting = lanes.submit("a", parent)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert second.cancel()
        assert await waiting == "told"
        assert first.state is JobState.RUNNING
        release.set()
        assert await first


async def test_reopen_ends_a_drain_and_what_comes_after_it_is_safe() -> None:
    release = asyncio.Event()
    async with Lanes({"a": 1}) as lanes:
        held = lanes.submit("a", release.wait)
        draining = asyncio.ensure_future(lanes.drain(60_000))
        await asyncio.sleep(0)
        lanes.reopen()
        after = lanes.submit("a", fine)
        report = await draining
        assert (report.finished, report.cancelled) == (False, 0)
        release.set()
        assert await held
        assert await after == "fine"


async def test_what_a_callback_submits_belongs_to_no_job() -> None:
    """Else a callback could slip a second writer into the exclusive lane of the job that happened to cause it."""
    order: list[str] = []

    async def stranger() -> None:
        order.append("stranger")

    async with Lanes({"a": 2}) as lanes:
        jobs: list[object] = []

        async def turn() -> None:
            await lanes.run("a", fine)
            order.append("turn ends")

        def callback(_: object) -> None:
            if not jobs:
                jobs.append(lanes.submit("session:s", stranger))

        job = lanes.submit("session:s", turn)
        await asyncio.sleep(0)
        stop = lanes.on_change(callback)
        await job
        stop()
    assert order == ["turn ends", "stranger"]


async def test_cancelled_jobs_do_not_live_on_in_the_queue() -> None:
    class Payload:
        """Something to be let go of."""

    alive: list[Any] = []

    async def use(_: Payload) -> None:
        """Never runs."""

    async with Lanes({"a": 1}, max_concurrent=1) as lanes:
        lanes.pause("a")
        for _ in range(500):
            payload = Payload()
            alive.append(weakref.ref(payload))
            lanes.submit("a", use, payload)
        del payload
        assert lanes.cancel_waiting() == 500
        gc.collect()
        assert sum(ref() is not None for ref in alive) == 0


async def test_forgotten_lanes_under_a_shared_cap_let_their_jobs_go() -> None:
    class Payload:
        """Something to be let go of."""

    alive: list[Any] = []

    async def use(_: Payload) -> None:
        await asyncio.sleep(0)

    async with Lanes({"main": 4}, max_concurrent=2) as lanes:
        for wave in range(20):
            jobs = []
            for number in range(50):
                payload = Payload()
                alive.append(weakref.ref(payload))
                jobs.append(lanes.submit([f"session:{wave}-{number}", "main"], use, payload))
            for job in jobs:
                await job
        del payload, jobs, job
        gc.collect()
        assert sum(ref() is not None for ref in alive) < 200


async def test_a_task_factory_is_passed_by() -> None:
    """An eager factory would run the code of one job in the middle of a decision about others."""
    made: list[str] = []
    loop = asyncio.get_running_loop()

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(coroutine.__qualname__)
        return asyncio.Task(coroutine, loop=loop, **options)

    async with Lanes({"a": 1}) as lanes:
        loop.set_task_factory(factory)
        try:
            assert [await job for job in [lanes.submit("a", fine) for _ in range(3)]] == ["fine"] * 3
        finally:
            loop.set_task_factory(None)
    assert made == []
