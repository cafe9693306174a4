"""Everything that happens, as a stream of events; and the numbers that it adds up to."""

from __future__ import annotations

import asyncio

from laneway import LaneConfig, Lanes, RetryPolicy
from laneway.events import JobEvent

failed: set[str] = set()


async def work(name: str) -> None:
    """Fails the first time if its name says so."""
    await asyncio.sleep(0.02)
    if name == "shaky" and name not in failed:
        failed.add(name)
        raise ConnectionError("no answer")


async def main() -> None:
    config = LaneConfig(concurrency=2, pressure_threshold=2, retry=RetryPolicy.fixed(2, delay_ms=10))
    async with Lanes({"query": config}) as lanes:
        with_everything = lanes.subscribe()

        async def narrate() -> int:
            count = 0
            async for event in with_everything:  # ends when the lanes are closed, or with_everything.close()
                count += 1
                what = f"{event.label} {event.reason}" if isinstance(event, JobEvent) else ""
                print(f"  {event.type:24} {what}".rstrip())
            return count

        async with asyncio.TaskGroup() as group:
            narrator = group.create_task(narrate())
            jobs = [lanes.submit("query", work, name, label=name) for name in ("calm", "shaky", "third", "fourth")]
            await asyncio.gather(*jobs)
            with_everything.close()
        print(f"{narrator.result()} events")

        numbers = lanes.metrics()["query"]
        print(f"{numbers.stats.completed} completed, {numbers.stats.retried} retried")
        print(f"wait: p50 {numbers.wait.p50_ms} ms, longest {numbers.wait.max_ms} ms")


if __name__ == "__main__":
    asyncio.run(main())
