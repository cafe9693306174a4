"""Jobs that wait for jobs: a parent lends its slot while it waits, so even one slot is enough for a whole tree."""

from __future__ import annotations

import asyncio

from laneway import LaneCycleError, Lanes


async def main() -> None:
    async with Lanes({"agent": 1}) as lanes:

        async def research(topic: str, depth: int) -> str:
            print(f"{'  ' * (2 - depth)}begin {topic}")
            if depth:
                # Two children in the lane that this very job runs in. It has one slot; nobody is stuck.
                parts = await asyncio.gather(
                    *[lanes.run("agent", research, f"{topic}.{number}", depth - 1) for number in (1, 2)]
                )
            else:
                await asyncio.sleep(0.01)
                parts = []
            print(f"{'  ' * (2 - depth)}end   {topic}")
            return f"{topic}({', '.join(parts)})" if parts else topic

        job = lanes.submit("agent", research, "roads", 2)
        await asyncio.sleep(0.005)
        print(f"-- {job.explain()}")
        print(await job)

        async def wait_for_myself() -> None:
            await own_job

        own_job = lanes.submit("agent", wait_for_myself)
        try:
            await own_job
        except LaneCycleError as error:
            print(f"refused: {error.hint}")


if __name__ == "__main__":
    asyncio.run(main())
