"""No-op tasks with Laneway: a gateway as `laneway serve` starts it, its store on disk, and `laneway worker` over HTTP.

`python -m bench.workers_host FOLDER WORKERS TASKS [EFFECT]` prints its numbers. Tasks are offered where agents offer
them, on the desk of a workspace. A task is on disk before a worker sees it, and so is its end before anybody hears of
it; of one that is no `read`, the start is on disk before the worker may begin.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from bench.workers_load import CONCURRENCY, Begun, Offer, Plan, Wait, measured, processes, report
from bench.workloads import Numbers
from laneway.external import TaskState
from laneway.gateway.access import Scope
from laneway.gateway.launch import ServeOptions, prepare
from laneway.gateway.server import Server, _config, bind, url_of
from laneway.gateway.service import Gateway
from laneway.kernel.task_entries import TaskOrder
from laneway.records import Effect
from laneway.rows import Owner
from laneway.system import HostEnv

AGENT: Final = "default_model: scripted\n"
SESSIONS: Final = 8
"""Tasks of one session follow each other in the journal, so there are several."""
TIMEOUT_MS: Final = 60_000
LEASE_MS: Final = 30_000


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[Gateway]:
    """A gateway that listens on a free port."""
    (folder / "agent.yaml").write_text(AGENT)
    (folder / "work").mkdir()
    overrides = ("gateway.port=0", f"gateway.store=sqlite:///{folder}/laneway.db")
    options = ServeOptions(
        config=str(folder / "agent.yaml"), workspaces=(str(folder / "work"),), overrides=overrides, folder=folder
    )
    launch = prepare(options, os.environ)
    with contextlib.closing(bind(launch.settings)) as listener:
        settings = replace(launch.settings, port=listener.getsockname()[1])
        gateway = Gateway(settings, launch.workspaces, env=HostEnv())
        async with gateway:
            is_ready = asyncio.Event()
            server = Server(_config(gateway), gateway, is_ready.set)
            serving = asyncio.ensure_future(server.serve(sockets=[listener]))
            await is_ready.wait()
            try:
                yield gateway
            finally:
                gateway.begin_stop()
                server.should_exit = True
                await serving


def offering(gateway: Gateway, effect: Effect) -> Offer:
    """Offers tasks on the desk of the workspace."""
    desk = gateway.default.host.desk
    numbers = itertools.count()

    async def offer() -> Wait:
        number = next(numbers)
        order = TaskOrder(
            owner=Owner("default", gateway.default.name, f"s{number % SESSIONS}"),
            task_id=f"task-{number}",
            lane="query",
            command_type="noop",
            payload={},
            timeout_ms=TIMEOUT_MS,
            lease_ms=LEASE_MS,
            effect=effect,
            key=f"key-{number}",
        )
        await desk.post(order)

        async def wait() -> Begun:
            end = await desk.outcome(order.task_id)
            assert end.state is TaskState.COMPLETED, end
            assert end.result is not None
            at, pid = end.result.result
            return Begun(at, pid)

        return wait

    return offer


async def main(plan: Plan, effect: Effect) -> Numbers:
    """Start everything, and measure."""
    how = ("--handlers", "bench.workers_hand", "--concurrency", str(CONCURRENCY), "--quiet")
    async with served(plan.folder) as gateway, contextlib.AsyncExitStack() as workers:
        for number in range(plan.workers):
            token = gateway.tokens.create_for_now(f"worker-{number}", (Scope.WORKER,))
            worker = ("-m", "laneway", "worker", "--connect", url_of(gateway.settings), *how)
            await workers.enter_async_context(processes(1, *worker, LANEWAY_TOKEN=token))
        return await measured(offering(gateway, effect), plan)


if __name__ == "__main__":
    report(main(Plan.from_arguments(sys.argv[1:4]), Effect(sys.argv[4] if len(sys.argv) > 4 else "write")))
