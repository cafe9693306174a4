"""A concurrency limiter: three slots, a status line that follows every change, and a limit you can change live."""

from __future__ import annotations

import asyncio

from laneway import JobCancelledError, Lanes, Snapshot


async def chat(name: str) -> str:
    """Stands for one agent request."""
    await asyncio.sleep(0.2)
    return f"{name}: done"


async def main() -> None:
    async with Lanes.limiter(3) as lanes:

        def show(_change: Snapshot) -> None:
            print(lanes.status_line())

        stop_showing = lanes.on_change(show)
        jobs = [lanes.submit("agent", chat, f"chat {number}", label=f"chat {number}") for number in range(1, 8)]

        print("\nwhat runs and waits:")
        for info in lanes.jobs():
            print(f"  {info.label:8} {info.state:8} {lanes.explain(info.id)}")

        print("\ncancel the last one, then make room for four:")
        jobs[-1].cancel("the user closed the window")
        lanes.resize("agent", 4)

        print("\ncancel everything that still waits:")
        print(f"{lanes.cancel_waiting()} cancelled")

        print("\nwait for the rest:")
        results = await asyncio.gather(*jobs, return_exceptions=True)
        stop_showing()
        for job, result in zip(jobs, results, strict=True):
            told = f"cancelled ({result.reason})" if isinstance(result, JobCancelledError) else result
            print(f"  {job.state:10} {told}")


if __name__ == "__main__":
    asyncio.run(main())
