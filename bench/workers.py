"""What is measured of workers in other processes: Laneway over HTTP, and two others over Redis, in the same way.

Each sample starts everything anew: a host, its workers, and for the others a Redis. What differs is told here, because
no number tells it:

- Laneway keeps a task, its start and its end in SQLite with `synchronous = FULL`: what was answered survives a power
  cut. Redis as it comes writes a snapshot now and then; with `durable` it syncs its log before it answers.
- A worker of Laneway asks before it begins, and begins when the host has answered; that is one round trip more for each
  task. It is how a `write` is never begun twice.
- The others speak the protocol of Redis, Laneway speaks HTTP with JSON, so that a worker needs no more than that.
- taskiq has no news of a result, so whoever waits asks again and again; saq tells it, and Laneway does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from typing import Final

from bench.durable import scratch
from bench.measures import Measure
from bench.workloads import Numbers

__all__ = ("MEASURES",)

SAMPLE_S: Final = 120
SAID_MAX: Final = 4_000


async def workers_one(tasks: int) -> Numbers:
    """Laneway, one worker."""
    return await _sample("bench.workers_host", 1, tasks)


async def workers_four(tasks: int) -> Numbers:
    """Laneway, four workers."""
    return await _sample("bench.workers_host", 4, tasks)


async def workers_taskiq_one(tasks: int) -> Numbers:
    """taskiq, one worker."""
    return await _sample("bench.peer_taskiq", 1, tasks)


async def workers_taskiq_four(tasks: int) -> Numbers:
    """taskiq, four workers."""
    return await _sample("bench.peer_taskiq", 4, tasks)


async def workers_saq_one(tasks: int) -> Numbers:
    """saq, one worker."""
    return await _sample("bench.peer_saq", 1, tasks)


async def workers_saq_four(tasks: int) -> Numbers:
    """saq, four workers."""
    return await _sample("bench.peer_saq", 4, tasks)


async def workers_taskiq_durable(tasks: int) -> Numbers:
    """taskiq, four workers, and a Redis that syncs before it answers."""
    return await _sample("bench.peer_taskiq", 4, tasks, "durable")


async def workers_saq_durable(tasks: int) -> Numbers:
    """The same with saq."""
    return await _sample("bench.peer_saq", 4, tasks, "durable")


async def _sample(module: str, workers: int, tasks: int, *more: str) -> Numbers:
    """Run it in a group of processes of its own, all of which end with it."""
    with scratch() as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, str(folder), str(workers), str(tasks), *more),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        listening = asyncio.ensure_future(_tail(process.stderr))
        try:
            async with asyncio.timeout(SAMPLE_S):
                said = await process.stdout.readline()
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            why = await listening
    assert said, why
    numbers: Numbers = json.loads(said)
    return numbers


async def _tail(stream: asyncio.StreamReader) -> str:
    """The end of what was said; all of it is read, so that nobody waits for room."""
    kept = b""
    while piece := await stream.read(SAID_MAX):
        kept = (kept + piece)[-SAID_MAX:]
    return kept.decode(errors="replace")


MEASURES: Final[dict[str, Measure]] = {
    each.__name__: each
    for each in (
        workers_one,
        workers_four,
        workers_taskiq_one,
        workers_taskiq_four,
        workers_saq_one,
        workers_saq_four,
        workers_taskiq_durable,
        workers_saq_durable,
    )
}
