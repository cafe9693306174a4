"""What the workers of the chaos do: they write down that they begin, take some time, and write down that they are done.

`laneway worker --handlers tests/chaos/worker_handlers.py`. Every line is on disk before the work goes on, in a file
that all workers share. The label of a call is in its arguments; a nonce is drawn each time that it is done.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
import time
import uuid
from typing import Final

from laneway.external import ExternalTask
from laneway.worker import Worker

__all__ = ("JOURNAL", "label_of", "worker")

JOURNAL: Final = "CHAOS_JOURNAL"
EFFECTS: Final = {"bash": "write", "read": "read", "wait": "idempotent"}  # as they are, whatever a task says
LINE_MAX: Final = 4_096  # one write to a file that is appended to is one piece up to here

worker = Worker(name="chaos", concurrency=3)


def label_of(task: ExternalTask) -> str:
    """Which call it is, whoever makes it."""
    payload = task["payload"]
    match task["command_type"]:
        case "bash":
            return str(payload["command"])
        case "read":
            return str(payload["path"])
        case _:
            return f"wait-{payload['seconds']:.0f}"


@functools.cache
def _journal() -> int:
    return os.open(os.environ[JOURNAL], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _note(what: str, task: ExternalTask, nonce: str) -> None:
    facts = [what, task["task_id"], label_of(task), EFFECTS[task["command_type"]], task["attempt"], nonce, os.getpid()]
    line = f"{json.dumps(facts)}\n".encode()
    assert len(line) <= LINE_MAX
    os.write(_journal(), line)
    os.fsync(_journal())


def _takes_s() -> float:
    """Mostly short; now and then longer than a lease, so that signs of life matter."""
    drawn = random.random()
    if drawn < 0.6:
        return random.uniform(0, 0.05)
    return random.uniform(0.05, 0.6) if drawn < 0.9 else random.uniform(1.0, 2.5)


def _done(task: ExternalTask, nonce: str) -> dict[str, object]:
    _note("ended", task, nonce)
    return {"output": f"done {label_of(task)} {nonce}", "exit_code": 0}


@worker.handler("bash")
def write(task: ExternalTask) -> dict[str, object]:
    """A write, on a thread."""
    nonce = uuid.uuid4().hex[:12]
    _note("begun", task, nonce)
    time.sleep(_takes_s())
    return _done(task, nonce)


@worker.handler("read", "wait")
async def read(task: ExternalTask) -> dict[str, object]:
    """A read, or something idempotent."""
    nonce = uuid.uuid4().hex[:12]
    _note("begun", task, nonce)
    end_s, takes_s = time.monotonic(), _takes_s()
    while (passed := time.monotonic() - end_s) < takes_s:
        task.progress_is("at it", min(100, 100 * passed / takes_s))
        await asyncio.sleep(0.1)
    return _done(task, nonce)
