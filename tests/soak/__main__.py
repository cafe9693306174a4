"""`python -m tests.soak [--clients N] [--rate N] [--seconds N]`: a real server under a steady load.

2,000 clients watch a session each, 200 messages a second come in, for a minute or for as long as you say. Nothing may
be lost, and the memory of the server has to stay flat.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.soak.load import Load, run_load

# ruff: noqa: T201 - it reports on standard output

GROWTH_MAX: Final = 0.05


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 when nothing was lost and the memory stayed flat."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--clients", type=int, default=2_000, help="open streams, each on a session of its own")
    parser.add_argument("--rate", type=int, default=200, help="messages a second")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="laneway-soak-") as folder:
        given = {name: getattr(options, name) for name in ("clients", "rate", "seconds", "seed")}
        result = asyncio.run(run_load(Load(folder=Path(folder) / "world", say=print, **given)))
    print(f"accepted {result.accepted:,}, refused {result.refused}, ended {result.ended:,}, lost {len(result.lost)}")
    print(f"accept: p50 {result.accept_ms(0.5):.1f} ms, p99 {result.accept_ms(0.99):.1f} ms")
    print(f"until its end was heard: p50 {result.answer_ms(0.5):.1f} ms, p99 {result.answer_ms(0.99):.1f} ms")
    memory = result.memory_kb or [0]
    print(f"memory of the server: {memory[0] / 1024:.0f} MB, then {memory[-1] / 1024:.0f} MB", end="")
    print(
        f"; last quarter against the one before: {result.growth():+.1%}; sender at most {result.behind_s:.2f} s behind"
    )
    return int(bool(result.lost) or result.refused > 0 or result.growth() > GROWTH_MAX)


if __name__ == "__main__":
    sys.exit(main())
