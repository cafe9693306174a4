"""What is sent: sessions of several kinds, messages in all modes, things done to queues, durable jobs. From a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from laneway.mail import Drop, Mode, QueueOptions

__all__ = ("BY_CHANNEL", "CUTTING", "Item", "JobPlan", "MessagePlan", "Plan", "PokePlan", "platform_number")

CUTTING: Final = frozenset({Mode.INTERRUPT, Mode.ROLLBACK})
EFFECTS: Final = ("write", "idempotent", "read")
POKES: Final = {"poked": ("stop", "withdraw", "edit", "edit"), "family": ("schedule",)}
"""What else is done to sessions, by kind: only there, so that others can be held to stricter laws."""

MODES: Final[dict[str, tuple[Mode, ...]]] = {
    "plain": (Mode.FOLLOWUP,),
    "batch": (Mode.COLLECT,),
    "mixed": (Mode.COLLECT, Mode.FOLLOWUP, Mode.STEER, Mode.STEER_BACKLOG, Mode.INTERRUPT),
    "cut": (Mode.FOLLOWUP, Mode.INTERRUPT, Mode.ROLLBACK, Mode.STEER),
    "small": (Mode.COLLECT, Mode.FOLLOWUP),
    "oldest": (Mode.FOLLOWUP,),
    "full": (Mode.FOLLOWUP,),
    "refuse": (Mode.REJECT,),
    "poked": (Mode.FOLLOWUP, Mode.STEER),
    "family": (Mode.FOLLOWUP,),
}
"""The kinds of sessions and the modes of their messages; a session's kind is its channel."""

BY_CHANNEL: Final[dict[str, QueueOptions]] = {
    "small": QueueOptions(cap=3, drop=Drop.SUMMARIZE),
    "oldest": QueueOptions(cap=3, drop=Drop.OLD),
    "full": QueueOptions(cap=3, drop=Drop.NEW),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessagePlan:
    """One message to send; its platform id and its text carry its number."""

    number: int
    session: str
    channel: str
    mode: Mode

    @property
    def text(self) -> str:
        """What is said."""
        return f"m{self.number} please"

    @property
    def platform_id(self) -> str:
        """Under which id it is sent, each time it is sent."""
        return f"p{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """One durable job to enqueue."""

    number: int
    effect: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PokePlan:
    """One thing to do to a session: stop it, take a waiting message back, change one, send one by the clock."""

    number: int
    session: str
    what: str


Item = MessagePlan | JobPlan | PokePlan


class Plan:
    """Draws what is sent next."""

    def __init__(self, generator: random.Random, *, sessions: int, jobs: bool) -> None:
        self._random = generator
        self._jobs = jobs
        kinds = list(MODES)
        self._sessions = [
            (f"{kinds[index % len(kinds)]}-{index}", kinds[index % len(kinds)]) for index in range(sessions)
        ]
        self._next = 0
        self.sessions = [session for session, _ in self._sessions]
        self.messages: dict[int, MessagePlan] = {}
        self.jobs: dict[int, JobPlan] = {}
        self.pokes: dict[int, PokePlan] = {}

    def draw(self) -> Item:
        """The next thing to send."""
        self._next += 1
        if self._jobs and self._random.random() < 0.2:
            job = JobPlan(number=self._next, effect=self._random.choice(EFFECTS))
            self.jobs[job.number] = job
            return job
        session, channel = self._random.choice(self._sessions)
        if channel in POKES and self._random.random() < 0.3:
            poke = PokePlan(number=self._next, session=session, what=self._random.choice(POKES[channel]))
            self.pokes[poke.number] = poke
            return poke
        mode = self._random.choice(MODES[channel])
        message = MessagePlan(number=self._next, session=session, channel=channel, mode=mode)
        self.messages[message.number] = message
        return message


def platform_number(platform_id: str | None) -> int:
    """The number in a platform id; 0 for what the loader did not send."""
    return int(platform_id[1:]) if platform_id else 0
