"""A world drawn from one integer: which lanes there are, what jobs do, and how often what goes wrong.

Swarm testing: a feature that is always on hides the bugs that need it to be off, so the seed first draws which
features and faults exist in this world at all, and only then how common each is.
"""

from __future__ import annotations

import fnmatch
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from laneway.records import Boost, Group, LaneConfig, RateLimit, RetryPolicy

__all__ = ("World", "draw_world")

T = TypeVar("T")

LANE_NAMES = ("control", "query", "execute", "generate", "main", "cron")
SCOPES = ("s1", "s2")
SESSION_LANE = LaneConfig(concurrency=1, exclusive=True)
PLAIN_LANE = LaneConfig()
AGEING_MS = (None, 40, 300, 2_000, 60_000)

# What can happen, and how likely it is at most in a world that has it at all.
CHANCES: Mapping[str, float] = {
    # of an attempt
    "fail": 0.4,
    "retry_later": 0.3,
    "give_up": 0.2,
    "hang": 0.2,
    "stubborn": 0.5,  # does not end when asked to
    "twice": 0.2,  # reports its end twice
    "parent": 0.6,
    "foreign": 0.3,  # waits for a job that is not its own child
    "slots": 0.4,
    "strands": 0.3,  # does several things at once
    "orphans": 0.5,  # ends without waiting for all it began
    "give_up_wait": 0.3,
    # of a submit
    "threaded": 0.4,
    "several": 0.4,  # lanes
    "session": 0.5,
    "scope": 0.3,
    "unknown": 0.1,
    "retry": 0.5,
    "repeatable": 0.5,  # effect read or idempotent
    "timeout": 0.3,
    "wait_timeout": 0.2,
    "delay": 0.2,
    "deadline": 0.4,
    "low": 0.7,  # a level below USER
    "tenants": 0.8,
    # from outside
    "cancel": 0.15,
    "cancel_waiting": 0.03,
    "resize": 0.1,
    "pause": 0.08,
    "close": 0.08,
    "drain": 0.02,
    "loose_slot": 0.2,  # a slot taken outside any job
    # of the clocks
    "late_tick": 0.3,
    "clock_back": 0.1,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Everything that a seed decides before the run begins."""

    seed: int
    lanes: Mapping[str, LaneConfig]
    groups: Mapping[str, Group]
    max_concurrent: int | None
    threads_max: int
    creates_unknown: bool
    listens: bool  # whether anybody listens to events
    sessions: tuple[str, ...]
    chances: Mapping[str, float]
    tenants: Mapping[str, float]
    flood: str | None  # a lane that never runs out of work
    actions: int  # from outside, in the first phase
    gap_ms: int  # between two of them, on average
    work_ms: int  # of a job, on average

    def chance(self, name: str) -> float:
        """How likely something is in this world; 0 when it does not exist here."""
        return self.chances.get(name, 0.0)

    def config_of(self, name: str) -> LaneConfig:
        """The settings of a lane, those made on the fly included."""
        config = self.lanes.get(name) or self.lanes.get(name.rpartition("/")[2])
        if config is None:
            config = SESSION_LANE if name.rpartition("/")[2].startswith("session:") else PLAIN_LANE
        return config

    def group_of(self, name: str) -> str | None:
        """The group that a lane is in."""
        for group_name, group in self.groups.items():
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in group.lanes):
                return group_name
        return None

    def describe(self) -> str:
        """The world in one line."""
        widths = " ".join(f"{name}:{config.concurrency}" for name, config in self.lanes.items())
        groups = " ".join(f"{name}:{group.cap}" for name, group in self.groups.items())
        return (
            f"lanes {widths}; groups {groups or '-'}; max_concurrent {self.max_concurrent}; {len(self.chances)} perils"
        )


def draw_world(seed: int, *, actions: int = 150) -> World:
    """The world of a seed."""
    rng = random.Random(f"world {seed}")
    names = rng.sample(LANE_NAMES, rng.randint(1, 4))
    lanes = {name: _draw_lane(rng) for name in names}
    chances = {name: rng.random() * most for name, most in CHANCES.items() if rng.random() < 0.5}
    groups = _draw_groups(rng, [name for name in names if name != "control"])
    flood = None
    if rng.random() < 0.25:  # constant pressure on few slots: what starves, starves here
        flood = rng.choice(names)
        chances.pop("hang", None)
    max_concurrent = rng.choice((None, None, 1, 2, 3, 5)) if flood is None else rng.randint(1, 3)
    return World(
        seed=seed,
        lanes=lanes,
        groups=groups,
        max_concurrent=max_concurrent,
        threads_max=rng.choice((1, 2, 4, 64)),
        creates_unknown=rng.random() < 0.3,
        listens=rng.random() < 0.5,
        sessions=tuple(f"session:{key}" for key in "abc"[: rng.randint(1, 3)]),
        chances=chances,
        tenants={name: rng.choice((1.0, 1.0, 2.0, 0.5)) for name in ("default", "ann", "bob")[: rng.randint(1, 3)]},
        flood=flood,
        actions=actions,
        gap_ms=rng.choice((2, 10, 40)),
        work_ms=rng.choice((5, 20, 60)),
    )


def _draw_lane(rng: random.Random) -> LaneConfig:
    def sometimes(value: T, chance: float = 0.2) -> T | None:
        return value if rng.random() < chance else None

    concurrency = rng.choice((1, 1, 1, 2, 2, 3, 4))  # 0 comes by a resize, and is healed
    return LaneConfig(
        concurrency=concurrency,
        priority=rng.randint(0, 5),
        queued_max=sometimes(rng.randint(0, 8)),
        timeout_ms=sometimes(rng.randint(1, 300)),
        wait_timeout_ms=sometimes(rng.randint(1, 1_000), 0.1),
        cancel_grace_ms=rng.choice((0, 10, 100, 1_000)),
        abandon_threads=rng.random() < 0.5,
        retry=sometimes(RetryPolicy.exponential(rng.randint(1, 3), rng.randint(0, 50), jitter=0.5)),
        rate_limit=sometimes(RateLimit(count=rng.randint(1, 5), window_ms=rng.choice((20, 100, 1_000)))),
        boost=sometimes(rng.choice((Boost.standard(400), Boost.aggressive(), Boost.aggressive(200)))),
        ageing_ms=rng.choice(AGEING_MS),
        pressure_threshold=sometimes(3),
        fair_by=rng.choice((None, None, "tenant", "session")),
        exclusive=concurrency == 1 and rng.random() < 0.15,
        alert_warning=sometimes(4),
        alert_critical=sometimes(8),
    )


def _draw_groups(rng: random.Random, names: list[str]) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    rest = list(names)
    for group in ("left", "right"):
        if not rest or rng.random() < 0.5:
            continue
        members = rest[: rng.randint(1, len(rest))]
        rest = rest[len(members) :]
        cap = rng.randint(1, 4)
        # Never everything: lanes without a reservation would wait for ever, and rightly so.
        reserve = {member: 1 for member in members[: cap - 1] if rng.random() < 0.4}
        patterns = [*members, *(f"*/{member}" for member in members if rng.random() < 0.5)]
        groups[group] = Group(cap, patterns, reserve)
    return groups
