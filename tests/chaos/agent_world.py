"""The loader of the agents' chaos: starts the process under test, feeds it, kills it, and lets the next one go on.

Half of the kills come from outside at random moments; the other half come from inside, at a random point: in a model
call, before and after the effect of a tool, before, in the middle of and after a commit.
"""

from __future__ import annotations

import functools
import random
import signal
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.chaos.agent_life import KINDS, AgentLifeOptions, Sabotage, live
from tests.chaos.loader import ChaosError, Process

__all__ = ("AgentAnswers", "AgentMessage", "AgentWorldOptions", "Ended", "run_agent_world")

WINDOW: Final = 20
CLOSED_S: Final = 20.0
CHUNK: Final = 200
PLANS: Final = (
    "",
    "look",
    "put",
    "pay",
    "look,look,pay",
    "put|pay",
    "pay,put,look",
    "look|put,pay|pay",
    "pay,pay|look,look",
    "put,put|put",
)
MODES: Final = {"followup": 13, "steer": 6, "interrupt": 1}
ENDINGS: Final = {
    "fuse": 8,  # it kills itself at a random point
    "time": 5,  # at a random moment
    "start": 2,  # while it opens its sessions and goes on with what the last one left
    "close": 2,  # while it closes
    "clean": 1,  # not killed at all: it closes and ends
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentWorldOptions:
    """One store, many lives."""

    folder: Path
    seed: int
    kills: int
    sessions: int = 12
    per_life: int = 20
    sabotage: Sabotage = ""
    rest_s: float = 60.0
    passivates: bool = False


class AgentMessage(NamedTuple):
    """A message that is sent: what it wants is in its text."""

    number: int
    session: str
    mode: str
    plan: str

    @property
    def text(self) -> str:
        """What the model reads."""
        return f"#{self.number} {self.plan}"


class Ended(NamedTuple):
    """What `wait` said about a message."""

    state: str
    outcome: str
    reason: str


@dataclass(slots=True)
class AgentAnswers:
    """What the loader was told. `first` and `again`: what sessions said of themselves before and after a restart."""

    messages: dict[int, AgentMessage] = field(default_factory=dict)
    acks: dict[int, str] = field(default_factory=dict)
    finals: dict[str, Ended] = field(default_factory=dict)
    first: dict[str, dict[str, Any]] = field(default_factory=dict)
    again: dict[str, dict[str, Any]] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    resent: int = 0


class AgentWorld:
    """One store and everything that happens to it."""

    def __init__(self, options: AgentWorldOptions) -> None:
        self._options = options
        self._random = random.Random(options.seed)
        self.sessions = tuple(f"{KINDS[number % len(KINDS)]}-{number}" for number in range(options.sessions))
        self.answers = AgentAnswers()
        self._again: deque[AgentMessage] = deque()  # sent before, and not answered
        self._flying: dict[int, AgentMessage] = {}
        self._reports = self.answers.first
        self._quota = 0
        self._is_answered = False

    def run(self) -> None:
        """Kill as often as wanted, let it come to rest, and look at it once more after a restart."""
        endings = list(ENDINGS)
        while self.answers.kills.total() < self._options.kills:
            ending = self._random.choices(endings, list(ENDINGS.values()))[0]
            self._quota = self._random.randrange(1 + self._options.per_life)
            getattr(self, f"_{ending}")()
        self._rest()

    def _begin(self, fuse: int = 0, *, is_last: bool = False) -> Process:
        self.answers.lives += 1
        options = AgentLifeOptions(
            folder=self._options.folder,
            number=self.answers.lives,
            sessions=self.sessions,
            fuse=fuse,
            sabotage=self._options.sabotage,
            passivates=self._options.passivates and not is_last,
            labelled=not is_last,
        )
        return Process(functools.partial(live, options), self._options.folder / "log")

    # ---- how lives end ----

    def _fuse(self) -> None:
        process = self._begin(fuse=self._random.randrange(1, 120))
        self._feed(process, lambda: process.is_over, self._random.uniform(0.3, 0.6))
        self._kill(process, "fuse")

    def _time(self) -> None:
        process = self._begin()
        self._feed(process, lambda: process.is_over, self._random.uniform(0.05, 0.4))
        self._kill(process, "time")

    def _start(self) -> None:
        process = self._begin()
        self._feed(process, lambda: process.is_over, self._random.uniform(0, 0.1))
        self._kill(process, "start")

    def _close(self) -> None:
        process = self._begin()
        self._feed(process, lambda: process.is_over, self._random.uniform(0.1, 0.4))
        process.send("close")
        self._listen(process, lambda: process.is_over, self._random.choice((0.002, 0.01, 0.05)))
        self._kill(process, "close")

    def _clean(self) -> None:
        process = self._begin()
        self._feed(process, lambda: process.is_over, self._random.uniform(0.1, 0.4))
        self._end(process)

    def _end(self, process: Process) -> None:
        process.send("close")
        self._listen(process, lambda: process.is_over, CLOSED_S)
        if not process.is_over:
            self._kill(process, "hung")
            raise ChaosError(f"life {self.answers.lives} did not close within {CLOSED_S} s")
        self._bury(process, 0)

    # ---- feeding and listening ----

    def _feed(self, process: Process, is_enough: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_enough() and (left := deadline - time.monotonic()) > 0:
            while len(self._flying) < WINDOW and (self._again or self._quota > 0):
                self._send(process)
            self._hear(process, min(left, 0.05))

    def _listen(self, process: Process, is_enough: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_enough() and (left := deadline - time.monotonic()) > 0 and not process.is_over:
            self._hear(process, min(left, 0.05))

    def _send(self, process: Process) -> None:
        if self._again:
            message = self._again.popleft()
            self.answers.resent += 1
        else:
            self._quota -= 1
            draw = self._random
            number = len(self.answers.messages) + 1
            mode = draw.choices(list(MODES), list(MODES.values()))[0]
            message = AgentMessage(number, draw.choice(self.sessions), mode, draw.choice(PLANS))
            self.answers.messages[number] = message
        self._flying[message.number] = message
        process.send("message", message.number, message.session, message.mode, message.text)

    def _hear(self, process: Process, seconds: float) -> None:
        for what, *facts in process.hear(seconds):
            match what:
                case "ready" | "closed":
                    pass
                case "done":
                    self._is_answered = True
                case "ack":
                    self.answers.acks[facts[0]] = facts[1]
                    del self._flying[facts[0]]
                case "no" if facts[1] == "closed":
                    pass  # it is sent to the next one
                case "final":
                    self.answers.finals[facts[0]] = Ended(*facts[1:])
                case "session":
                    self._reports[facts[0]] = facts[1]
                case _:
                    raise ChaosError(f"life {self.answers.lives} said {[what, *facts]}; see {self._options.folder}/log")

    def _kill(self, process: Process, ending: str) -> None:
        process.signal(signal.SIGKILL)
        self.answers.kills[ending] += 1
        self._bury(process, -signal.SIGKILL, 0)

    def _bury(self, process: Process, *codes: int) -> None:
        """What it said before its end counts; what it did not answer is sent again."""
        while not process.is_over:
            self._hear(process, 1.0)
        code = process.bury()
        if code not in codes:
            raise ChaosError(f"life {self.answers.lives} ended with {code}; see {self._options.folder}/log")
        self._again = deque(sorted({*self._flying.values(), *self._again}))
        self._flying.clear()

    def _rest(self) -> None:
        """The last life but one: everything comes to its end. The last one: it says what it remembers."""
        process = self._begin(is_last=True)
        self._quota = 0
        self._feed(process, lambda: not self._flying and not self._again, self._options.rest_s)
        deadline = time.monotonic() + self._options.rest_s
        ids = list(self.answers.acks.values())
        chunks = [ids[start : start + CHUNK] for start in range(0, len(ids), CHUNK)]
        questions: list[tuple[Any, ...]] = [*(("wait", chunk) for chunk in chunks), ("report",)]
        if not all(self._ask(process, deadline, *question) for question in questions):
            self._kill(process, "hung")  # the checker says what did not come to its end
            return
        self._end(process)
        self._reports = self.answers.again
        process = self._begin(is_last=True)
        self._ask(process, time.monotonic() + self._options.rest_s, "report")
        self._end(process)

    def _ask(self, process: Process, deadline: float, *question: Any) -> bool:
        """Ask, and listen until the answer is complete; whether it was."""
        self._is_answered = False
        process.send(*question)
        self._listen(process, lambda: self._is_answered, deadline - time.monotonic())
        return self._is_answered


def run_agent_world(options: AgentWorldOptions) -> AgentWorld:
    """Make a world and let everything happen in it."""
    options.folder.mkdir(parents=True, exist_ok=True)
    world = AgentWorld(options)
    world.run()
    return world
