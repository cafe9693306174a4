"""`python -m tests.chaos [--kills N] [--seed S]`: kill an inbox, and agents, until they lose something.

A loader (the parent) sends messages and durable jobs and notes which of them were accepted. The process under test
writes down what really runs in a side file, the witness, before it does anything else. SIGKILL comes at random
instants, also during start, recovery and close; then the next process goes on with the same store, and everything
without an answer is sent again under the same platform id. At the end the checker holds the answers, the witness and
the store against each other.

Agents come afterwards (`--agent-kills`): their sessions go on by themselves, and their tools write down their effects.
Nothing is lost, no write is made twice, and whatever a model is sent is well formed.

Gateways come next (`--gateway-kills`): real servers under load from HTTP clients, which come back and miss nothing.

Workers come last (`--worker-kills`): a server and five workers of it, all of them killed, with a bad network between
them. `make chaos` does all four.

The seed decides what is sent and when it kills, not what the system makes of it: two runs are alike, not equal.
"""

from __future__ import annotations

import argparse
import functools
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, Protocol, Self, TypeVar, get_args

from tests.chaos.agent_checker import AgentEvidence, AgentVerdict, judge_agents, read_account
from tests.chaos.agent_life import FILE
from tests.chaos.agent_life import Sabotage as AgentSabotage
from tests.chaos.agent_world import AgentWorldOptions, run_agent_world
from tests.chaos.checker import Evidence, Verdict, judge, read_stored
from tests.chaos.gateway_checker import GatewayVerdict, verdict_on
from tests.chaos.gateway_world import GatewayWorldOptions, run_gateway_world
from tests.chaos.life import Sabotage
from tests.chaos.loader import ChaosError, WorldOptions, run_world
from tests.chaos.witness import read_witness
from tests.chaos.worker_checker import WorkerVerdict
from tests.chaos.worker_checker import verdict_on as verdict_on_workers
from tests.chaos.worker_world import Sabotage as WorkerSabotage
from tests.chaos.worker_world import WorkerWorldOptions, run_worker_world

# ruff: noqa: T201 - it reports on standard output

KILLS: Final = 2_000
AGENT_KILLS: Final = 500
GATEWAY_KILLS: Final = 150
WORKER_KILLS: Final = 200
KILLS_PER_WORLD: Final = 100
AGENT_KILLS_PER_WORLD: Final = 50
GATEWAY_KILLS_PER_WORLD: Final = 30
WORKER_KILLS_PER_WORLD: Final = 50
SHOWN_MAX: Final = 5
ON_CRASH: Final[tuple[Literal["report", "rerun"], ...]] = ("report", "rerun")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--kills", type=int, help="how often to kill an inbox in all (2,000; 0 with --agent-kills)")
    parser.add_argument("--agent-kills", type=int, help="how often to kill agents in all (500; 0 with --kills)")
    parser.add_argument("--gateway-kills", type=int, help="how often to kill a gateway in all (150; 0 with the others)")
    parser.add_argument("--worker-kills", type=int, help="how often to kill workers and their gateway in all (200)")
    parser.add_argument("--worlds", type=int, help=f"how many stores (one for every {KILLS_PER_WORLD} kills)")
    parser.add_argument("--seed", type=int, help="what is sent, and when it is killed")
    parser.add_argument("--on-crash", choices=ON_CRASH, help="only this one, instead of both in turn")
    faults = sorted({*get_args(Sabotage), *get_args(AgentSabotage), *get_args(WorkerSabotage)})
    parser.add_argument("--sabotage", choices=faults, default="", help="plant a fault that must be found")
    parser.add_argument("--rest", type=float, default=60.0, metavar="SECONDS", help="how long all may take to end")
    parser.add_argument("--no-jobs", action="store_true", help="messages only, no durable jobs")
    parser.add_argument("--folder", type=Path, help="where the stores are made, and kept")
    options = parser.parse_args(arguments)
    asked = (options.kills, options.agent_kills, options.gateway_kills, options.worker_kills)
    only_some = any(each is not None for each in asked)
    options.kills = options.kills or 0 if only_some else KILLS
    options.agent_kills = options.agent_kills or 0 if only_some else AGENT_KILLS
    options.gateway_kills = options.gateway_kills or 0 if only_some else GATEWAY_KILLS
    options.worker_kills = options.worker_kills or 0 if only_some else WORKER_KILLS
    return options


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


def run_agents_and_judge(options: AgentWorldOptions) -> AgentVerdict:
    """One world of agents, and what is to be said about it."""
    world = run_agent_world(options)
    stored = read_stored(options.folder / FILE, ())
    account = read_account(options.folder / "witness")
    return judge_agents(AgentEvidence(answers=world.answers, account=account, problems=stored.problems))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 0 when nothing is wrong, 1 when something is, 2 when the process under test misbehaved in another way."""
    options = parse(arguments)
    options.seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 31)
    home = options.folder or Path(tempfile.mkdtemp(prefix="laneway-chaos-"))
    if home.exists() and any(home.iterdir()):
        print(f"{home} is not empty: what is left of another run would be taken for this one's", file=sys.stderr)
        return 2
    parts = (
        (_inboxes, options.kills),
        (_agents, options.agent_kills),
        (_gateways, options.gateway_kills),
        (_workers, options.worker_kills),
    )
    codes = [part(options, home) for part, kills in parts if kills]
    if not any(codes) and not options.folder:
        shutil.rmtree(home)
    return max(codes, default=0)


def _inboxes(options: argparse.Namespace, home: Path) -> int:
    """Kill inboxes; the exit code."""

    def worlds() -> Iterator[tuple[str, Path, Callable[[], Verdict]]]:
        count = options.worlds or max(2, options.kills // KILLS_PER_WORLD)
        for index in range(count):
            on_crash = options.on_crash or ON_CRASH[index % 2]
            world = WorldOptions(
                folder=home / f"world-{index}",
                seed=options.seed + index,
                kills=-(-options.kills // count),
                on_crash=on_crash,
                jobs=not options.no_jobs,
                sabotage=options.sabotage,
                rest_s=options.rest,
            )
            name = f"world {index} (seed {world.seed}, {on_crash})"
            yield name, world.folder, functools.partial(run_and_judge, world)

    return _run("chaos", worlds(), Verdict(), options, home)


def _agents(options: argparse.Namespace, home: Path) -> int:
    """Kill agents; the exit code."""

    def worlds() -> Iterator[tuple[str, Path, Callable[[], AgentVerdict]]]:
        count = options.worlds or max(1, options.agent_kills // AGENT_KILLS_PER_WORLD)
        for index in range(count):
            world = AgentWorldOptions(
                folder=home / f"agents-{index}",
                seed=options.seed + index,
                kills=-(-options.agent_kills // count),
                sabotage=options.sabotage,
                rest_s=options.rest,
            )
            yield f"agents {index} (seed {world.seed})", world.folder, functools.partial(run_agents_and_judge, world)

    return _run("chaos of agents", worlds(), AgentVerdict(), options, home)


def _gateways(options: argparse.Namespace, home: Path) -> int:
    """Kill gateways; the exit code."""

    def worlds() -> Iterator[tuple[str, Path, Callable[[], GatewayVerdict]]]:
        count = options.worlds or max(1, options.gateway_kills // GATEWAY_KILLS_PER_WORLD)
        for index in range(count):
            world = GatewayWorldOptions(
                folder=home / f"gateway-{index}",
                seed=options.seed + index,
                kills=-(-options.gateway_kills // count),
                rest_s=options.rest,
            )
            run = functools.partial(lambda each: verdict_on(run_gateway_world(each)), world)
            yield f"gateway {index} (seed {world.seed})", world.folder, run

    return _run("chaos of gateways", worlds(), GatewayVerdict(), options, home)


def _workers(options: argparse.Namespace, home: Path) -> int:
    """Kill workers and their gateways; the exit code."""

    def worlds() -> Iterator[tuple[str, Path, Callable[[], WorkerVerdict]]]:
        count = options.worlds or max(1, options.worker_kills // WORKER_KILLS_PER_WORLD)
        for index in range(count):
            world = WorkerWorldOptions(
                folder=home / f"workers-{index}",
                seed=options.seed + index,
                kills=-(-options.worker_kills // count),
                sabotage=options.sabotage,
                rest_s=options.rest,
            )
            run = functools.partial(lambda each: verdict_on_workers(run_worker_world(each)), world)
            yield f"workers {index} (seed {world.seed})", world.folder, run

    return _run("chaos of workers", worlds(), WorkerVerdict(), options, home)


class Judged(Protocol):
    """What is said about a world, and about all of them."""

    wrong: dict[str, list[str]]

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""

    def add(self, other: Self) -> None:
        """Take another one in."""

    def line(self) -> str:
        """The tally in one line."""


J = TypeVar("J", bound=Judged)


def _run(
    what: str,
    worlds: Iterator[tuple[str, Path, Callable[[], J]]],
    total: J,
    options: argparse.Namespace,
    home: Path,
) -> int:
    """Run worlds, one after the other, and tell what came of them."""
    began = time.monotonic()
    for name, folder, run in worlds:
        try:
            verdict = run()
        except ChaosError as error:
            print(f"{name}: {error}", flush=True)
            return 2
        total.add(verdict)
        print(f"{name}: {verdict.line()}", flush=True)
        _show(verdict)
        if verdict.is_good and not options.folder:
            shutil.rmtree(folder)
    took = time.monotonic() - began
    end = "PASS" if total.is_good else f"FAIL, see {home}"
    print(f"{what}: {total.line()}; seed {options.seed}, {took:.0f} s: {end}", flush=True)
    return 0 if total.is_good else 1


def _show(verdict: Judged) -> None:
    for kind, places in verdict.wrong.items():
        for place in places[:SHOWN_MAX]:
            print(f"  {kind}: {place}")
        if len(places) > SHOWN_MAX:
            print(f"  {kind}: … and {len(places) - SHOWN_MAX} more")


if __name__ == "__main__":
    sys.exit(main())
