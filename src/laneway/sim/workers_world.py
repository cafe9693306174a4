"""The world of one seed for workers: workspaces, tasks, who works, how bad the network is, and the perils."""

from __future__ import annotations

import random
from dataclasses import dataclass

from laneway.records import Effect
from laneway.rows import Owner

__all__ = ("LIES", "Errand", "LinkWorld", "WorkerWorld", "WorkersWorld", "draw_workers_world")

CHANCES: dict[str, float] = {
    # the store
    "fail_before": 0.1,
    "fail_after": 0.1,
    "fail_one": 0.15,
    "own_error": 0.02,
    "slow": 0.5,
    "state_fails": 0.1,  # a question about one task goes unanswered
    # the host
    "crash": 0.7,
    "restart": 0.5,
    "reopen": 0.6,  # a session is closed, and opened again
    "stall": 0.4,  # the process stands still for a while: its timers are late
    "wall_jumps": 0.4,
    # those who want something
    "withdraw": 0.2,
    "poll": 0.3,
    "host_completes": 0.1,
    "unwanted": 0.2,  # what an earlier process has left is withdrawn
    # workers
    "killed": 0.3,
    "drains": 0.3,
    "raises": 0.2,
    "refuses": 0.2,
    "late": 0.15,  # work takes longer than its lease, and signs of life do not get through
    "reports": 0.5,
}
LINK: dict[str, float] = {
    "drop_request": 0.15,
    "drop_answer": 0.15,
    "twice": 0.15,  # a request arrives a second time
    "crossed": 0.05,  # the answer to another question arrives
    "reset": 0.1,  # nobody answers, and that is known at once
    "orphans": 0.5,  # the host does not notice that whoever asked has gone
    "garbage": 0.03,
}
LABELS = ("gpu", "os=linux", "big")
LANES = ("query", "execute")
COMMANDS = ("read", "bash", "deploy")
TENANTS = ("default", "acme")
LIES = (
    *("hoard", "vanish", "early", "twice", "start_twice", "stale", "forged", "stolen", "foreign_task", "babble"),
    *("beat_on", "release_ended", "two_results", "give_up", "crowd", "honest"),
)
"""What workers do that nobody should."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkWorld:
    """How bad the way between one worker and the host is."""

    chances: dict[str, float]
    delay_ms: int
    patience_ms: int  # when a lost answer is given up
    cuts: tuple[tuple[int, int, str], ...]  # from, until, and what does not get through: `requests`, `answers`, `all`


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerWorld:
    """A worker that is what it says. `tenant` None: its token serves every tenant."""

    name: str
    lanes: tuple[str, ...]
    commands: tuple[str, ...]
    labels: tuple[str, ...]
    workspaces: tuple[str, ...]
    tenant: str | None
    width: int
    lease_ms: int | None
    wait_ms: int
    link: LinkWorld


@dataclass(frozen=True, slots=True, kw_only=True)
class Errand:
    """What is asked for."""

    owner: Owner
    lane: str
    command: str
    effect: Effect
    labels: tuple[str, ...]
    sticky: str
    sticky_ms: int
    timeout_ms: int
    lease_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkersWorld:
    """What a seed has decided before the run."""

    seed: int
    workspaces: tuple[str, ...]
    owners: tuple[Owner, ...]
    workers: tuple[WorkerWorld, ...]
    liars: tuple[tuple[str, str | None, LinkWorld], ...]  # name, tenant
    lies: tuple[str, ...]
    chances: dict[str, float]
    tasks: int  # of each session
    burst: int
    gap_ms: int
    work_ms: int
    slow_ms: int
    lease_ms: tuple[int, ...]
    sticky: tuple[str, ...]
    sticky_ms: int

    def describe(self) -> str:
        """The world in one line."""
        return (
            f"{len(self.workspaces)} workspaces, {len(self.owners)} sessions, {len(self.workers)} workers, "
            f"{len(self.liars)} liars ({','.join(self.lies)}); leases {self.lease_ms}; {len(self.chances)} perils"
        )

    def errand(self, rng: random.Random, owner: Owner) -> Errand:
        """Something that a session asks for."""
        sticky = rng.choice(self.sticky)
        names = {"": "", "session": owner.session, "workspace": owner.workspace, "tenant": owner.tenant}
        return Errand(
            owner=owner,
            lane=rng.choice(LANES),
            command=rng.choice(COMMANDS),
            effect=rng.choice((Effect.READ, Effect.IDEMPOTENT, Effect.WRITE, Effect.WRITE)),
            labels=tuple(sorted(rng.sample(LABELS, rng.choice((0, 0, 0, 1, 2))))),
            sticky=f"{sticky}:{names[sticky]}" if sticky else "",
            sticky_ms=self.sticky_ms,
            timeout_ms=rng.choice((2_000, 20_000, 1_000_000, 1_000_000)),
            lease_ms=rng.choice(self.lease_ms),
        )


def draw_workers_world(seed: int) -> WorkersWorld:
    """The world of a seed."""
    rng = random.Random(f"workers world {seed}")
    chances = {name: rng.random() * most for name, most in CHANCES.items() if rng.random() < 0.5}
    is_calm = rng.random() < 0.15
    workspaces = ("alpha", "beta", "gamma")[: rng.choice((1, 2, 2, 3))]
    owners = tuple(
        Owner(tenant, workspace, f"s-{tenant}") for workspace in workspaces for tenant in TENANTS[: rng.choice((1, 2))]
    )
    liars = 0 if is_calm else rng.choice((0, 1, 1, 2))
    return WorkersWorld(
        seed=seed,
        workspaces=workspaces,
        owners=owners,
        workers=tuple(_draw_worker(rng, number, workspaces, is_calm=is_calm) for number in range(rng.randint(1, 4))),
        liars=tuple((f"liar{n}", rng.choice((None, *TENANTS)), _draw_link(rng, is_calm=False)) for n in range(liars)),
        lies=tuple(lie for lie in LIES if rng.random() < 0.5) or ("honest",),
        chances={} if is_calm else chances,  # without faults: what breaks here is plain
        tasks=rng.choice((4, 8, 16)),
        burst=rng.choice((1, 1, 4)),
        gap_ms=rng.choice((5, 100, 500)),
        work_ms=rng.choice((5, 50, 400)),
        slow_ms=rng.choice((5, 50, 500)),
        lease_ms=rng.choice(((200,), (1_000,), (200, 3_000))),
        sticky=rng.choice((("",), ("", "session"), ("session", "workspace", "tenant"))),
        sticky_ms=rng.choice((20, 300, 2_000)),
    )


def _draw_worker(rng: random.Random, number: int, workspaces: tuple[str, ...], *, is_calm: bool) -> WorkerWorld:
    """The first one takes everything, so that everything can end."""
    takes_all = number == 0
    return WorkerWorld(
        # Now and then two have one name.
        name=f"w{number if takes_all or rng.random() < 0.85 else number - 1}",
        lanes=() if takes_all or rng.random() < 0.6 else (rng.choice(LANES),),
        commands=COMMANDS if takes_all else tuple(sorted(rng.sample(COMMANDS, rng.randint(1, 3)))),
        labels=LABELS if takes_all else tuple(sorted(rng.sample(LABELS, rng.randint(0, 3)))),
        workspaces=() if takes_all or rng.random() < 0.6 else (rng.choice(workspaces),),
        tenant=None if takes_all or rng.random() < 0.5 else rng.choice(TENANTS),
        width=rng.choice((1, 2, 4)),
        lease_ms=rng.choice((None, None, 100, 5_000)),
        wait_ms=rng.choice((50, 1_000, 20_000)),
        link=_draw_link(rng, is_calm=is_calm),
    )


def _draw_link(rng: random.Random, *, is_calm: bool) -> LinkWorld:
    chances = {name: rng.random() * most for name, most in LINK.items() if rng.random() < 0.5}
    cuts: list[tuple[int, int, str]] = []
    at = 0
    for _ in range(0 if is_calm else rng.choice((0, 0, 1, 3))):
        at += rng.randint(1, 4_000)
        end = at + rng.choice((50, 500, 5_000))
        cuts.append((at, end, rng.choice(("requests", "answers", "all"))))
        at = end
    return LinkWorld(
        chances={} if is_calm else chances,
        delay_ms=rng.choice((0, 2, 20, 300)),
        patience_ms=rng.choice((300, 2_000)),
        cuts=tuple(cuts),
    )
