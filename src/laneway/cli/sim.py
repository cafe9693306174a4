"""`laneway sim`: run the simulator, on fresh seeds for a while or on one seed to see it again."""

from __future__ import annotations

import json
import random
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from laneway.sim.trace import SimFailedError, Tier, Trace

__all__ = ("sim",)

FAILED = 1
TAIL = 40


def sim(
    seed: Annotated[int | None, typer.Option(help="Run this one seed.")] = None,
    seconds: Annotated[float, typer.Option(help="Run fresh seeds for this long.")] = 5.0,
    tier: Annotated[
        Literal["kernel", "engine", "mailroom", "mail", "agent", "gates", "workers", "budgets", "keeping", "all"],
        typer.Option(
            help="Lanes: kernel or engine. Inbox: mailroom or mail. Agents: agent; with gates: gates. "
            "Workers and their network: workers. What is spent on models: budgets. "
            "Sessions that are pruned, deleted, moved and forked: keeping. Or all."
        ),
    ] = "all",
    trace: Annotated[bool, typer.Option("--trace", help="Print every transition.")] = False,
    tail: Annotated[int, typer.Option(help="How many lines to print before a failure.")] = TAIL,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Simulate worlds in which everything goes wrong, and check every law after every step."""
    from laneway.sim.campaign import TIERS, run_for, seeds_from  # they load all of Laneway; a list of commands need not
    from laneway.sim.trace import SimFailedError, Trace

    tiers: tuple[Tier, ...] = TIERS if tier == "all" else (tier,)
    try:
        if seed is not None:
            for each in tiers:
                _run_one(seed, each, Trace(tail=tail, sink=print if trace else None), as_json=as_json)
            return
        first = random.SystemRandom().randrange(1_000_000_000)
        if not as_json:
            print(f"seeds from {first}")
        summary = run_for(seeds_from(first, tiers), first_seed=first, seconds=seconds, clock=time.monotonic)
        print(json.dumps(asdict(summary)) if as_json else summary.line())
    except SimFailedError as failure:
        _report(failure, as_json=as_json)
        raise typer.Exit(FAILED) from None


def _run_one(seed: int, tier: Tier, trace: Trace, *, as_json: bool) -> None:
    from laneway.sim.campaign import run_seed

    outcome = run_seed(seed, tier, trace)
    if as_json:
        print(json.dumps(asdict(outcome)))
        return
    print(
        f"ok: seed {seed}, tier {tier}, {outcome.steps:,} steps, {outcome.starts:,} starts, {outcome.faults:,} faults, "
        f"{outcome.virtual_ms / 1000:.1f} virtual s, trace {outcome.digest}"
    )


def _report(failure: SimFailedError, *, as_json: bool) -> None:
    if as_json:
        facts = {"seed": failure.seed, "tier": failure.tier, "problem": failure.problem, "replay": failure.replay}
        print(json.dumps({**facts, "tail": list(failure.tail)}))
    else:
        print(failure)
