"""Plain functions run on threads; a long one looks at a signal, because a thread cannot be stopped from outside."""

from __future__ import annotations

import asyncio
import threading
import time

from laneway import AbortSignal, JobAbortedError, Lanes


def digest(text: str) -> str:
    """Blocks its thread, not the loop."""
    time.sleep(0.05)
    return f"{text} on {threading.current_thread().name.partition('_')[0]}"


def count_for_ever(signal: AbortSignal) -> int:
    """Cooperates: looks at the signal between two pieces of work."""
    number = 0
    while not signal.aborted:
        number += 1
        time.sleep(0.01)
    return number


async def main() -> None:
    async with Lanes({"execute": 4}, threads_max=2) as lanes:
        jobs = [lanes.submit("execute", digest, name) for name in ("one", "two", "three")]
        print(f"four slots but two threads: {jobs[2].explain()}")
        print(await asyncio.gather(*jobs))

        signal = AbortSignal()
        job = lanes.submit("execute", count_for_ever, signal, signal=signal)
        await asyncio.sleep(0.05)
        signal.abort("enough")
        try:
            await job
        except JobAbortedError as error:
            print(f"{job.state}: {error.reason}; its slot was held until the function returned")


if __name__ == "__main__":
    asyncio.run(main())
