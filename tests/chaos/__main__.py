"""`python -m tests.chaos [--kills N] [--seed S]`: kill an inbox until it loses something. See `make chaos`.

A loader (the parent) sends messages and durable jobs and notes which of them were accepted. The process under test
writes down what really runs in a side file, the witness, before it does anything else. SIGKILL comes at random
instants, also during start, recovery and close; then the next process goes on with the same store, and everything
without an answer is sent again under the same platform id. At the end the checker holds the answers, the witness and
the store against each other.

The seed decides what is sent and when it kills, not what the system makes of it: two runs are alike, not equal.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, get_args

from tests.chaos.checker import Evidence, Verdict, judge, read_stored
from tests.chaos.life import Sabotage
from tests.chaos.loader import ChaosError, WorldOptions, run_world
from tests.chaos.witness import read_witness

# ruff: noqa: T201 - it reports on standard output

KILLS_PER_WORLD: Final = 100
SHOWN_MAX: Final = 5
ON_CRASH: Final[tuple[Literal["report", "rerun"], ...]] = ("report", "rerun")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--kills", type=int, default=2_000, help="how often to kill in all (2,000)")
    parser.add_argument("--worlds", type=int, help=f"how many stores (one for every {KILLS_PER_WORLD} kills)")
    parser.add_argument("--seed", type=int, help="what is sent, and when it is killed")
    parser.add_argument("--on-crash", choices=ON_CRASH, help="only this one, instead of both in turn")
    parser.add_argument("--sabotage", choices=get_args(Sabotage), default="", help="plant a fault that must be found")
    parser.add_argument("--rest", type=float, default=60.0, metavar="SECONDS", help="how long all may take to end")
    parser.add_argument("--no-jobs", action="store_true", help="messages only, no durable jobs")
    parser.add_argument("--folder", type=Path, help="where the stores are made, and kept")
    return parser.parse_args(arguments)


def run_and_judge(options: WorldOptions) -> Verdict:
    """One world, and what is to be said about it."""
    world = run_world(options)
    stored = read_stored(options.folder / "chaos.db", world.plan.sessions)
    evidence = Evidence(
        messages=world.plan.messages,
        jobs=world.plan.jobs,
        answers=world.answers,
        account=read_witness(options.folder / "witness"),
        stored=stored,
        is_rerun=options.on_crash == "rerun",
    )
    return judge(evidence)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 when nothing is wrong, 1 when something is, 2 when the process under test misbehaved in another way."""
    options = parse(arguments)
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    worlds = options.worlds or max(2, options.kills // KILLS_PER_WORLD)
    home = options.folder or Path(tempfile.mkdtemp(prefix="laneway-chaos-"))
    if home.exists() and any(home.iterdir()):
        print(f"{home} is not empty: what is left of another run would be taken for this one's", file=sys.stderr)
        return 2
    total = Verdict()
    began = time.monotonic()
    for index in range(worlds):
        on_crash = options.on_crash or ON_CRASH[index % 2]
        world = WorldOptions(
            folder=home / f"world-{index}",
            seed=seed + index,
            kills=-(-options.kills // worlds),
            on_crash=on_crash,
            jobs=not options.no_jobs,
            sabotage=options.sabotage,
            rest_s=options.rest,
        )
        try:
            verdict = run_and_judge(world)
        except ChaosError as error:
            print(f"world {index} (seed {world.seed}, {on_crash}): {error}", flush=True)
            return 2
        total.add(verdict)
        print(f"world {index} (seed {world.seed}, {on_crash}): {verdict.line()}", flush=True)
        _show(verdict)
        if verdict.is_good and not options.folder:
            shutil.rmtree(world.folder)
    took = time.monotonic() - began
    print(f"chaos: {total.line()}; seed {seed}, {took:.0f} s: {'PASS' if total.is_good else f'FAIL, see {home}'}")
    if total.is_good and not options.folder:
        shutil.rmtree(home)
    return 0 if total.is_good else 1


def _show(verdict: Verdict) -> None:
    for kind, places in verdict.wrong.items():
        for place in places[:SHOWN_MAX]:
            print(f"  {kind}: {place}")
        if len(places) > SHOWN_MAX:
            print(f"  {kind}: … and {len(places) - SHOWN_MAX} more")


if __name__ == "__main__":
    sys.exit(main())
