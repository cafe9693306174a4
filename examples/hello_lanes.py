"""The smallest useful program: two lanes, seven jobs, and the order in which they run."""

from __future__ import annotations

import asyncio

from laneway import LaneConfig, Lanes, Priority


async def look_up(word: str) -> str:
    """Stands for a quick question to a server."""
    await asyncio.sleep(0.05)
    print(f"  looked up {word}")
    return word.upper()


async def build(name: str) -> str:
    """Stands for slow work that must not run twice at once."""
    await asyncio.sleep(0.1)
    print(f"  built {name}")
    return f"{name} is ready"


async def main() -> None:
    lanes = {"query": LaneConfig(concurrency=2, priority=1), "execute": LaneConfig(concurrency=1, priority=2)}
    async with Lanes(lanes) as traffic:
        # `submit` never waits: it hands back a job that you can await, cancel or ask.
        first = traffic.submit("execute", build, "the ground floor")
        later = traffic.submit("execute", build, "the index", priority=Priority.BACKGROUND)
        words = [traffic.submit("query", look_up, word) for word in ("road", "rail", "river")]
        urgent = traffic.submit("execute", build, "the answer")

        print(f"at the start: {traffic.stats().running} run, {traffic.stats().waiting} wait")
        print(f"why does the third word wait? {words[2].explain()}")
        print(await asyncio.gather(*words))
        # One slot, and a level for each job: the answer overtakes the index.
        print([await job for job in (first, urgent, later)])

        # `run` is `submit` and `await` in one.
        print(await traffic.run("query", look_up, "road's end"))


if __name__ == "__main__":
    asyncio.run(main())
