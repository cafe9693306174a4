"""The world of one seed for the inbox: sessions, people, settings, and how likely which fault is.

As in `world`, each peril is left out of half of the worlds, so that every seed is another mix.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from laneway.mail import Drop, Mode, QueueOptions, Route, Sender, SessionView

__all__ = ("ACTS", "MailDice", "MailWorld", "SimClock", "draw_mail_world")

T = TypeVar("T")

ACTS = (
    *("think", "boundary", "consume", "reply", "spawn", "followup"),
    *("approval", "question", "phase", "usage", "peek"),
)
"""What a handler may do between its first line and its end."""

MEDDLING = (
    *("edit", "move", "hold", "release", "withdraw", "steer_now", "retry", "approve", "deny"),
    *("stop", "new", "queue_set", "queue_reset", "queue_clear", "queue_cancel", "status"),
    *("schedule", "unschedule", "jump", "middleware", "squeeze", "pause", "resume", "drain"),
)
"""What operators do."""

CHANCES: dict[str, float] = {
    # the store
    "fail_before": 0.12,  # nothing of a commit was applied, and it says so
    "fail_after": 0.12,  # all of it was applied, and it says it was not
    "fail_one": 0.2,  # one batch of several failed; whether it was applied is drawn
    "own_error": 0.02,  # the store raises something that is no LanewayError
    "slow": 0.5,
    "load_fails": 0.4,
    "find_fails": 0.2,
    "read_fails": 0.1,
    # the process
    "crash": 0.7,
    "takeover": 0.3,
    "restart": 0.5,
    # handlers
    "raise": 0.2,
    "hang": 0.08,
    "stubborn": 0.3,
    "garbage": 0.1,
    "swallow": 0.3,
    # callers
    "duplicate": 0.3,
    "give_up": 0.1,
    "system": 0.15,
    "heartbeat": 0.1,
    "burst": 0.2,
    "inline": 0.3,  # a command in front of the text
}


class SimClock:
    """The clock of one process: its monotonic time begins anywhere, and the wall clock can be stepped."""

    def __init__(self, wall: list[int], *, base_ms: int) -> None:
        self._wall = wall  # shared by all processes of a run
        self._base_ms = base_ms

    def wall_ms(self) -> int:
        """The shared wall clock."""
        return self._wall[0] + round(asyncio.get_running_loop().time() * 1000)

    def monotonic_ms(self) -> int:
        """The time of the loop, counted from a beginning of its own."""
        return self._base_ms + round(asyncio.get_running_loop().time() * 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class MailWorld:
    """What a seed has decided before the run."""

    seed: int
    workspace: str
    shares_lanes: bool  # the lanes were there before the inbox, and outlive it
    sessions: tuple[tuple[str, str], ...]  # tenant and session key
    routes: tuple[Route, ...]
    senders: tuple[Sender | None, ...]
    modes: tuple[Mode | None, ...]  # None: whatever is configured
    options: dict[str, Any]  # of `Inbox`
    chances: dict[str, float]
    acts: tuple[str, ...]
    meddling: tuple[str, ...]
    clients: int
    actions: int
    gap_ms: int
    work_ms: int
    slow_ms: int
    expires_ms: int

    def describe(self) -> str:
        """The world in one line."""
        shown = {name: "chosen" if callable(value) else value for name, value in self.options.items()}
        options = " ".join(f"{name}:{value}" for name, value in shown.items())
        return f"{len(self.sessions)} sessions, {len(self.routes)} routes; {options}; {len(self.chances)} perils"


class MailDice:
    """What is drawn during a run. After healing everybody is honest."""

    def __init__(self, world: MailWorld) -> None:
        self.rng = random.Random(f"mail dice {world.seed}")
        self.honest = False
        self.faults = 0
        self._chances = world.chances

    def happens(self, name: str) -> bool:
        """Whether a peril strikes now."""
        chance = self._chances.get(name, 0.0)
        if self.honest or not chance or self.rng.random() >= chance:
            return False
        self.faults += 1
        return True

    def span(self, most_ms: int) -> float:
        """A while, in seconds: from 0 to `most_ms`, sometimes much longer."""
        longer = 10 if self.rng.random() < 0.05 else 1
        return self.rng.randint(0, most_ms * longer) / 1000

    def one(self, things: Sequence[T]) -> T:
        """One of several."""
        return things[self.rng.randrange(len(things))]


def draw_mail_world(seed: int, *, actions: int = 25) -> MailWorld:
    """The world of a seed."""
    rng = random.Random(f"mail world {seed}")
    names = [(tenant, key) for key in ("a", "b", "c") for tenant in ("default", "acme")]
    chances = {name: rng.random() * most for name, most in CHANCES.items() if rng.random() < 0.5}
    if rng.random() < 0.15:
        chances = {}  # a world without faults: what breaks here is plain
    modes: list[Mode | None] = [None, *rng.sample(list(Mode), rng.randint(1, len(Mode)))]
    return MailWorld(
        seed=seed,
        workspace=rng.choice(("default", "default", "team")),
        shares_lanes=rng.random() < 0.3,
        sessions=tuple(rng.sample(names, rng.choice((1, 1, 2, 3, 6)))),
        routes=_draw_routes(rng),
        senders=_draw_senders(rng),
        modes=tuple(modes),
        options=_draw_options(rng),
        chances=chances,
        acts=tuple(act for act in ACTS if rng.random() < 0.6) or ("think",),
        meddling=tuple(each for each in MEDDLING if rng.random() < 0.4),
        clients=rng.randint(1, 4),
        actions=actions,
        gap_ms=rng.choice((20, 100, 400, 2_000)),
        work_ms=rng.choice((5, 50, 300, 1_500)),
        slow_ms=rng.choice((5, 50, 500)),
        expires_ms=rng.choice((100, 1_000, 10_000)),
    )


def _draw_routes(rng: random.Random) -> tuple[Route, ...]:
    routes = [
        Route(),
        Route(channel="telegram"),
        Route(channel="telegram", thread="7"),
        Route(channel="telegram", account="second"),
        Route(channel="slack", chat_type="group"),
    ]
    return tuple(rng.sample(routes, rng.choice((1, 1, 2, 3))))


def _draw_senders(rng: random.Random) -> tuple[Sender | None, ...]:
    senders = [
        None,
        Sender(id="ada", owner=True),
        Sender(id="bob"),
        Sender(id="cy", name="ada"),  # a name is no right
        Sender(id="dee", rights=("queue", "stop")),
    ]
    return tuple(rng.sample(senders, rng.choice((1, 1, 2, 3, 5))))


def _draw_options(rng: random.Random) -> dict[str, Any]:
    debounce = rng.choice((0, 100, 1_000))
    options: dict[str, Any] = {
        "mode": rng.choice((*(mode.value for mode in Mode), _choose_mode)),
        "debounce_ms": debounce,
        "debounce_idle": rng.random() < 0.3,
        "cap": rng.choice((1, 2, 3, 5, 20)),
        "drop": rng.choice(("old", "new", "summarize", "summarize")),
        "interrupt_grace_ms": rng.choice((0, 50, 1_000, 15_000)),
        "on_crash": rng.choice(("report", "rerun")),
        "commands": rng.random() < 0.5,
        "concurrency": rng.choice((1, 1, 2, 4)),
        "close_timeout_ms": rng.choice((0, 100, 5_000)),
    }
    if rng.random() < 0.3:
        options["by_channel"] = {"telegram": rng.choice(list(Mode)), "slack": QueueOptions(cap=2, drop=Drop.OLD)}
    if rng.random() < 0.2:
        options["workspace_options"] = QueueOptions(debounce_ms=30, mode=rng.choice((None, *Mode)))
    if rng.random() < 0.3:
        options["max_wait_ms"] = rng.choice((0, 200, 3_000))
    if rng.random() < 0.2:
        options["expires_ms"] = rng.choice((200, 2_000))
    if rng.random() < 0.1:
        options["dedupe_ms"] = 0
    return options


def _choose_mode(view: SessionView) -> Mode:
    """A mode that looks at the session."""
    if not view.busy:
        return Mode.COLLECT
    return Mode.STEER if view.waiting < 2 else Mode.FOLLOWUP
