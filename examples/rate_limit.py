"""A rate limit of your own, and a provider that says Retry-After."""

from __future__ import annotations

import asyncio
import time

from laneway import LaneConfig, Lanes, RateLimit, RetryLater


async def main() -> None:
    config = LaneConfig(concurrency=5, rate_limit=RateLimit(count=2, window_ms=100))
    async with Lanes({"model": config}) as lanes:
        closed = lanes.subscribe("queue.lane.closed")
        begin = time.monotonic()
        asked = 0

        async def ask(question: str) -> str:
            nonlocal asked
            asked += 1
            if asked == 5:  # the provider answers 429 with Retry-After: 0.3
                seconds = 0.3
                until_ms = time.time_ns() // 1_000_000 + int(seconds * 1000)
                lanes.close_until("model", until_ms, "429 from the provider")
                raise RetryLater(int(seconds * 1000), "429 from the provider")
            return f"{question} answered after {time.monotonic() - begin:.1f} s"

        jobs = [lanes.submit("model", ask, f"question {number}") for number in range(1, 8)]
        print("five slots are free, but the bucket holds two tokens:")
        print(f"  {jobs[2].explain()}")
        for job in jobs[:4]:
            print(await job)
        await anext(closed)
        print("the provider said stop:")
        print(f"  {jobs[-1].explain()}")
        for job in jobs[4:]:
            print(await job)


if __name__ == "__main__":
    asyncio.run(main())
