"""A worker whose only handler does nothing: `LANEWAY_TOKEN=… python -m bench.workers_hand URL`."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import uvloop

from bench.workers_load import CONCURRENCY, begun_now
from laneway.transports.http import HttpTransport
from laneway.worker import Worker


async def noop(_task: Any) -> list[float]:
    """Nothing."""
    return list(begun_now())


async def main(url: str) -> None:
    """Work until somebody ends it."""
    transport = HttpTransport(url, token=os.environ["LANEWAY_TOKEN"])
    await Worker(transport, handlers={"noop": noop}, concurrency=CONCURRENCY).run()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1]))
