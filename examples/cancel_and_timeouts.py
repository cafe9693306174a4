"""Four ways for a job to end early, each with an error of its own, and what happens to code that will not stop."""

from __future__ import annotations

import asyncio
from typing import Any

from laneway import AbortSignal, Job, JobFailedError, LaneConfig, Lanes


async def work(seconds: float) -> str:
    """Ends when it is told to."""
    try:
        await asyncio.sleep(seconds)
    finally:
        await asyncio.sleep(0)  # tidy up: files, connections, partial results
    return "done"


async def stubborn() -> None:
    """Swallows its cancellation. Please never write this."""
    for _ in range(10):
        try:
            await asyncio.sleep(0.02)
        except asyncio.CancelledError:
            continue


async def report(what: str, job: Job[Any]) -> None:
    try:
        await job
    except JobFailedError as error:
        print(f"{what:14} {job.state:10} {type(error).__name__}: {error.reason}")


async def main() -> None:
    config = LaneConfig(concurrency=1, cancel_grace_ms=50)
    async with Lanes({"execute": config}) as lanes:
        signal = AbortSignal()
        too_long = lanes.submit("execute", work, 5.0, timeout_ms=60)
        never_starts = lanes.submit("execute", work, 0.0, wait_timeout_ms=30)
        by_hand = lanes.submit("execute", work, 0.0)
        by_signal = lanes.submit("execute", work, 0.0, signal=signal)
        by_hand.cancel("changed my mind")
        signal.abort("the user left")
        await report("cancel()", by_hand)
        await report("AbortSignal", by_signal)
        await report("wait timeout", never_starts)
        await report("run timeout", too_long)

        await report("will not stop", lanes.submit("execute", stubborn, timeout_ms=30))
        print(f"abandoned: {lanes.stats().abandoned}; the lane goes on: {await lanes.run('execute', work, 0.0)}")


if __name__ == "__main__":
    asyncio.run(main())
