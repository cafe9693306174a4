"""Lanes on a real loop: real threads, real timers, other threads, whole processes."""

from __future__ import annotations

import asyncio
import contextvars
import re
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from laneway import (
    AbortSignal,
    JobAbortedError,
    JobCancelledError,
    JobState,
    JobTimeoutError,
    LaneConfig,
    Lanes,
    RateLimit,
    RetryPolicy,
    WaitTimeoutError,
    WrongThreadError,
)

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="nobody's")


def our_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("laneway")]


async def until(condition: threading.Event) -> None:
    """Wait for a thread without blocking the loop."""
    assert await asyncio.to_thread(condition.wait, 60)


async def test_sync_functions_run_side_by_side_in_threads_that_end_with_the_lanes() -> None:
    barrier = threading.Barrier(3)

    def meet() -> str:
        barrier.wait(60)
        return threading.current_thread().name

    async with Lanes({"lane": 3}) as lanes:
        names = await asyncio.gather(*[lanes.submit("lane", meet) for _ in range(3)])
        assert len(set(names)) == 3
        assert all(name.startswith("laneway") for name in names)
    assert our_threads() == []


async def test_more_sync_jobs_than_threads_wait_their_turn() -> None:
    running = threading.Semaphore(2)

    def work() -> bool:
        free = running.acquire(blocking=False)
        time.sleep(0.01)
        running.release()
        return free

    async with Lanes({"lane": 8}, threads_max=2) as lanes:
        assert all(await asyncio.gather(*[lanes.submit("lane", work) for _ in range(8)]))


async def test_a_thread_sees_the_context_of_the_submitter() -> None:
    def read() -> str:
        found = variable.get()
        variable.set("the thread's")
        return found

    async with Lanes({"lane": 1}) as lanes:
        variable.set("the submitter's")
        assert [await lanes.run("lane", read) for _ in range(2)] == ["the submitter's"] * 2
        assert variable.get() == "the submitter's"


async def test_a_signal_fires_from_another_thread() -> None:
    signal = AbortSignal()
    started = asyncio.Event()

    async def work() -> None:
        started.set()
        await asyncio.Event().wait()

    async with Lanes({"one": 1}) as lanes:
        running = lanes.submit("one", work, signal=signal)
        waiting = lanes.submit("one", work, signal=signal)
        await started.wait()
        thread = threading.Thread(target=signal.abort, args=("from a thread",))
        thread.start()
        for job in (running, waiting):
            with pytest.raises(JobAbortedError, match="from a thread"):
                async with asyncio.timeout(60):
                    await job
        thread.join()


async def test_a_sync_function_can_look_at_its_signal() -> None:
    signal = AbortSignal()
    started = threading.Event()

    def work() -> str:
        started.set()
        while not signal.aborted:
            time.sleep(0.001)
        return "stopped by itself"

    async with Lanes({"one": 1}) as lanes:
        job = lanes.submit("one", work, signal=signal)
        await until(started)
        signal.abort("enough")
        with pytest.raises(JobAbortedError, match="enough"):
            await job
        assert lanes.stats().abandoned == 0


async def test_a_signal_that_fires_after_the_loop_is_gone_hurts_nobody() -> None:
    signal = AbortSignal()

    async def leave() -> None:
        async with Lanes({"one": 1}) as lanes:
            lanes.submit("one", asyncio.sleep, 0, signal=signal)

    await asyncio.to_thread(asyncio.run, leave())
    signal.abort()
    assert signal.aborted


async def test_a_sync_function_keeps_its_slot_until_it_returns() -> None:
    started, release = threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        release.wait(60)
        return "late"

    async with Lanes({"one": LaneConfig(cancel_grace_ms=1)}) as lanes:
        job = lanes.submit("one", work)
        following = lanes.submit("one", asyncio.sleep, 0)
        await until(started)
        job.cancel("stop")
        await asyncio.sleep(0.05)
        assert (job.state, following.state, lanes.stats().abandoned) == (JobState.RUNNING, JobState.QUEUED, 0)
        release.set()
        with pytest.raises(JobCancelledError):
            await job
        await following


async def test_abandoned_threads_free_their_slot_and_their_late_result_is_ignored() -> None:
    started, release, returned = threading.Event(), threading.Event(), threading.Event()

    def work() -> str:
        started.set()
        release.wait(60)
        returned.set()
        return "late"

    config = LaneConfig(cancel_grace_ms=1, abandon_threads=True)
    async with Lanes({"one": config}, threads_max=2) as lanes:
        job = lanes.submit("one", work, timeout_ms=20)
        following = lanes.submit("one", int, "5")
        with pytest.raises(JobTimeoutError, match="abandoned"):
            await job
        assert await following == 5
        assert lanes.stats().abandoned == 1
        release.set()
        await until(returned)
        await asyncio.sleep(0.01)
        assert (job.state, lanes.stats().lanes["one"].completed) == (JobState.TIMED_OUT, 1)
    assert our_threads() == []


async def test_leaving_does_not_wait_for_an_abandoned_thread() -> None:
    started, release = threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        release.wait(60)

    async with Lanes({"one": LaneConfig(cancel_grace_ms=1, abandon_threads=True)}) as lanes:
        job = lanes.submit("one", work, timeout_ms=10)
        await until(started)
    assert len(our_threads()) == 1
    assert job.state is JobState.TIMED_OUT
    release.set()
    for thread in threading.enumerate():
        if thread.name.startswith("laneway"):
            thread.join(60)
    assert our_threads() == []


async def test_the_awaitable_of_a_thread_is_awaited_on_the_loop() -> None:
    loop = asyncio.get_running_loop()

    async def where() -> tuple[int, bool]:
        return threading.get_ident(), asyncio.get_running_loop() is loop

    async with Lanes({"one": 1}) as lanes:
        assert await lanes.run("one", lambda: where()) == (threading.get_ident(), True)


async def test_another_thread_posts_to_the_loop_as_the_error_says() -> None:
    loop = asyncio.get_running_loop()

    async with Lanes({"one": 1}) as lanes:

        def elsewhere() -> str:
            with pytest.raises(WrongThreadError):
                lanes.submit("one", int)
            return asyncio.run_coroutine_threadsafe(lanes.run("one", str, 5), loop).result(60)

        assert await asyncio.to_thread(elsewhere) == "5"


async def test_timers_are_real() -> None:
    async with Lanes({"one": 1, "rated": LaneConfig(rate_limit=RateLimit.per_second(50))}) as lanes:
        begin = time.monotonic()
        over = asyncio.Event()
        running = lanes.submit("one", over.wait)
        with pytest.raises(WaitTimeoutError):
            await lanes.submit("one", asyncio.sleep, 0, wait_timeout_ms=30)
        over.set()
        await running
        with pytest.raises(JobTimeoutError):
            await lanes.submit("one", asyncio.sleep, 3600, timeout_ms=30)
        assert time.monotonic() - begin >= 0.058  # times are whole milliseconds: up to one of each may be missing
        begin = time.monotonic()
        await asyncio.gather(*[lanes.submit("rated", asyncio.sleep, 0) for _ in range(52)])
        assert time.monotonic() - begin >= 0.02
        failing = [ValueError("once")]

        async def flaky() -> str:
            if failing:
                raise failing.pop()
            return "second"

        assert await lanes.run("one", flaky, retry=RetryPolicy.fixed(1, 10)) == "second"


async def test_idle_lanes_do_not_wake_the_loop() -> None:
    loop = asyncio.get_running_loop()
    async with Lanes({"one": LaneConfig(timeout_ms=60_000)}, max_concurrent=1) as lanes:
        for _ in range(10):
            await lanes.run("one", asyncio.sleep, 0)
        await asyncio.sleep(0.05)
        timers = [timer for timer in getattr(loop, "_scheduled", []) if not timer.cancelled()]
        assert timers == []


def run_script(body: str, *options: str) -> subprocess.CompletedProcess[str]:
    script = "import asyncio, sys\nfrom laneway import *\n" + textwrap.dedent(body)
    command = [sys.executable, *options, "-c", script]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.slow
def test_a_script_ends_cleanly_in_development_mode() -> None:
    done = run_script(
        """
        async def work(n): await asyncio.sleep(0.001); return n

        async def main():
            async with Lanes.for_tools() as lanes:
                jobs = [lanes.submit("query", work, n) for n in range(20)]
                jobs += [lanes.submit("execute", str, n) for n in range(20)]
                print(len(await asyncio.gather(*jobs)))

        asyncio.run(main())
        """,
        "-X",
        "dev",
        "-W",
        "error",
    )
    # On a busy machine a step may take long, which asyncio tells in this mode: that is the machine.
    said = [line for line in done.stderr.splitlines() if not re.fullmatch(r"Executing <.*> took [\d.]+ seconds", line)]
    assert (done.returncode, done.stdout.split(), said) == (0, ["40"], [])


@pytest.mark.slow
def test_an_interrupt_inside_a_job_ends_the_program() -> None:
    done = run_script(
        """
        async def interrupt(): raise KeyboardInterrupt

        async def main():
            async with Lanes({"one": 1}) as lanes:
                lanes.submit("one", interrupt)
                await asyncio.sleep(30)

        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print("interrupted")
        """
    )
    assert done.stdout.split() == ["interrupted"]
    assert done.returncode == 0


@pytest.mark.slow
def test_work_grows_no_faster_than_n_log_n_on_a_real_loop() -> None:
    async def drain(jobs: int) -> float:
        async with Lanes({"one": LaneConfig(alert_warning=None, alert_critical=None), "two": 4}) as lanes:
            begin = time.process_time()  # of this process alone: whoever else is busy does not count
            made = [lanes.submit(("one", "two")[n % 2], asyncio.sleep, 0) for n in range(jobs)]
            for job in made[::5]:
                job.cancel()
            await lanes.drain()
            return time.process_time() - begin

    def best(jobs: int) -> float:
        return min(asyncio.run(drain(jobs)) for _ in range(3))

    # Eight times the work, and room for a noisy machine: what grows faster does so each time.
    assert any(best(16_000) < best(2_000) * 8 * 2.5 for _ in range(3))
