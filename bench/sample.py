"""One sample in a process of its own: `python -m bench.sample MEASURE SIZE` prints its numbers as JSON."""

from __future__ import annotations

import asyncio
import json
import sys

from bench.catalogue import MEASURES
from bench.measures import CountingSelector
from bench.workloads import Numbers


def take(measure: str, size: int) -> Numbers:
    """Run one measure on a fresh event loop that counts its turns."""
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(CountingSelector())) as runner:
        return runner.run(MEASURES[measure](size))


if __name__ == "__main__":
    print(json.dumps(take(sys.argv[1], int(sys.argv[2]))))
