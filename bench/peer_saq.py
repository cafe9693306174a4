"""No-op tasks with saq: lists in Redis, and the news of a job by its channel.

`python -m bench.peer_saq FOLDER WORKERS TASKS [durable]` prints its numbers. The workers are those of its command.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from typing import Any

from saq import Queue, Status
from saq.job import TERMINAL_STATUSES

from bench.peer_redis import URL, redis
from bench.workers_load import CONCURRENCY, PATIENCE_S, Begun, Plan, Wait, begun_now, measured, processes, report
from bench.workloads import Numbers


async def noop(_context: object) -> list[float]:
    """Nothing."""
    return list(begun_now())


def settings() -> dict[str, Any]:
    """What its command reads."""
    return {"queue": Queue.from_url(os.environ[URL]), "functions": [noop], "concurrency": CONCURRENCY}


async def main(plan: Plan, *, is_durable: bool) -> Numbers:
    """Start everything, and measure."""
    numbers = itertools.count()
    async with redis(plan.folder, is_durable=is_durable) as url:
        queue = Queue.from_url(url)
        await queue.connect()
        # one listener stays: else the channel would be closed after each task that runs alone
        staying = asyncio.ensure_future(queue.listen(["nobody"], lambda *_: False, timeout=None))

        async def offer() -> Wait:
            key = f"task-{next(numbers)}"
            ended = asyncio.ensure_future(queue.listen([key], _is_over, timeout=PATIENCE_S))
            job = await queue.enqueue("noop", key=key)
            assert job is not None

            async def wait() -> Begun:
                await ended
                await job.refresh()
                if job.status is not Status.COMPLETE:  # a worker that began took it for one that an earlier one left
                    return await (await offer())()
                at, pid = job.result
                return Begun(at, int(pid))

            return wait

        async with processes(plan.workers, "-m", "saq", "bench.peer_saq.settings", **{URL: url}):
            found = await measured(offer, plan)
        staying.cancel()
        return found


def _is_over(_key: str, status: Status) -> bool:
    return status in TERMINAL_STATUSES


if __name__ == "__main__":
    report(main(Plan.from_arguments(sys.argv[1:4]), is_durable="durable" in sys.argv))
