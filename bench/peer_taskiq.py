"""No-op tasks with taskiq: Redis streams, which know what was acknowledged, and results in Redis.

`python -m bench.peer_taskiq FOLDER WORKERS TASKS [durable]` prints its numbers. The workers are those of its command.
"""

from __future__ import annotations

import os
import sys
from typing import Final

from taskiq import AsyncBroker
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from bench.peer_redis import URL, redis
from bench.workers_load import CONCURRENCY, Begun, Plan, Wait, begun_now, measured, processes, report
from bench.workloads import Numbers

CHECK_S: Final = 0.01
"""How often it asks for a result. Its default is 0.2 s, which would be most of what is measured."""


def make_broker() -> AsyncBroker:
    """The broker, for the workers and for whoever offers tasks."""
    url = os.environ[URL]
    backend: RedisAsyncResultBackend[list[float]] = RedisAsyncResultBackend(url, result_ex_time=60)
    broker = RedisStreamBroker(url).with_result_backend(backend)
    broker.register_task(noop, task_name="noop")
    return broker


async def noop() -> list[float]:
    """Nothing."""
    return list(begun_now())


async def main(plan: Plan, *, is_durable: bool) -> Numbers:
    """Start everything, and measure."""
    async with redis(plan.folder, is_durable=is_durable) as url:
        os.environ[URL] = url
        broker = make_broker()
        task = broker.find_task("noop")
        assert task is not None
        await broker.startup()

        async def offer() -> Wait:
            kicked = await task.kiq()

            async def wait() -> Begun:
                at, pid = (await kicked.wait_result(check_interval=CHECK_S)).return_value
                return Begun(at, int(pid))

            return wait

        options = ("--workers", str(plan.workers), "--max-async-tasks", str(CONCURRENCY), "--log-level", "WARNING")
        async with processes(1, "-m", "taskiq", "worker", "bench.peer_taskiq:make_broker", *options):
            return await measured(offer, plan)


if __name__ == "__main__":
    report(main(Plan.from_arguments(sys.argv[1:4]), is_durable="durable" in sys.argv))
