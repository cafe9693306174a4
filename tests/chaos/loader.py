"""The loader: starts the process under test, feeds it, kills it, starts it again, and notes what was accepted.

It has no threads and no event loop, so that it may fork: the process under test begins in the middle of a warm
interpreter, and a life costs milliseconds instead of the time it takes to import everything.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import select
import signal
import socket
import sys
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from tests.chaos.life import LifeOptions, Sabotage, live
from tests.chaos.plan import Item, JobPlan, MessagePlan, Plan, PokePlan

__all__ = ("Answers", "ChaosError", "Ended", "Process", "WorldOptions", "run_world")

WINDOW: Final = 100
READY_S: Final = 20.0
CLOSED_S: Final = 20.0
CHUNK: Final = 500
PLAIN: Final = "plain"
"""Sessions in which every message that is taken begins, so that one that is taken twice begins twice."""
ENDINGS: Final = {
    "acks": 6,  # after some acknowledgements
    "time": 4,  # at a random moment
    "start": 3,  # while it opens the store and puts in order what the last one left
    "close": 2,  # while it closes
    "stop": 1,  # it is stopped, goes on, and is killed; meanwhile somebody else asks for the store
    "mute": 1,  # when it has stored messages and answered none; the first kill of a world is this one
    "clean": 1,  # not killed at all: it closes and ends
}


class ChaosError(Exception):
    """The process under test did something that it must not do, or does nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldOptions:
    """One store, many lives."""

    folder: Path
    seed: int
    kills: int
    on_crash: Literal["report", "rerun"] = "report"
    sessions: int = 48
    per_life: int = 400
    jobs: bool = False
    sabotage: Sabotage = ""
    rest_s: float = 60.0


class Ended(NamedTuple):
    """What `wait` said about a message."""

    state: str
    outcome: str
    turn_id: str
    reason: str


@dataclass(slots=True)
class Answers:
    """What the loader was told. Acknowledged ids are by number; `unsure` jobs were never answered."""

    acks: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    finals: dict[str, Ended] = field(default_factory=dict)
    job_acks: dict[int, str] = field(default_factory=dict)
    dead_jobs: dict[str, str] = field(default_factory=dict)
    unsure: set[int] = field(default_factory=set)
    kills: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    resent: int = 0
    unanswered: int = 0  # were stored, and whoever had sent them was never told
    duplicates: int = 0
    intruders: int = 0
    pokes: int = 0


class Process:
    """A life as seen from outside: it calls `life` with its end of a socket, and exits with what that returns."""

    def __init__(self, life: Callable[[socket.socket], int], log: Path) -> None:
        self._socket, theirs = socket.socketpair()
        sys.stdout.flush()
        self.pid = os.fork()
        if not self.pid:
            _be_the_child(life, log, theirs, self._socket)
        theirs.close()
        self._buffer = b""
        self.is_over = False

    def send(self, *facts: Any) -> None:
        """Tell it something; a process that has died hears nothing."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(json.dumps(facts).encode() + b"\n")

    def hear(self, seconds: float) -> list[list[Any]]:
        """What it said; waits at most that long for the first word."""
        if self.is_over or not select.select([self._socket], [], [], max(0.0, seconds))[0]:
            return []
        try:
            heard = self._socket.recv(1 << 16)
        except ConnectionResetError:
            heard = b""
        self.is_over = not heard
        *lines, self._buffer = (self._buffer + heard).split(b"\n")
        return [json.loads(line) for line in lines]

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def bury(self) -> int:
        """Wait for its end; the exit code (negative: the signal)."""
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._socket.close()
        return code


def _be_the_child(
    life: Callable[[socket.socket], int], log: Path, ours: socket.socket, not_ours: socket.socket
) -> None:
    code = 70
    try:
        not_ours.close()
        code = life(ours)
    except BaseException:  # noqa: BLE001 - nothing of the parent may run in the child, whatever happens
        with log.open("a", encoding="utf-8") as lines:
            traceback.print_exc(file=lines)
    finally:
        os._exit(code)


class World:
    """One store and everything that happens to it."""

    def __init__(self, options: WorldOptions) -> None:
        self._options = options
        self._random = random.Random(options.seed)
        self.plan = Plan(self._random, sessions=options.sessions, jobs=options.jobs)
        self.answers = Answers()
        self._life = LifeOptions(
            folder=options.folder, number=0, on_crash=options.on_crash, jobs=options.jobs, sabotage=options.sabotage
        )
        self._again: deque[MessagePlan] = deque()  # sent before, and not answered
        self._flying: dict[int, Item] = {}
        self._sent: set[int] = set()
        self._stored: set[int] = set()  # by this life, which answers nothing
        self._quota = 0
        self._is_answered = False
        self._is_closing = False

    def run(self) -> None:
        """Kill as often as wanted, then let it come to rest."""
        endings = list(ENDINGS)
        while self.answers.kills.total() < self._options.kills:
            drawn = self._random.choices(endings, list(ENDINGS.values()))[0]
            ending = drawn if self.answers.kills else "mute"
            self._quota = self._random.randrange(self._options.per_life // 4, self._options.per_life)
            getattr(self, f"_{ending}")(self._begin(mute=ending == "mute"))
        self._rest()

    def _begin(self, *, mute: bool = False) -> Process:
        self.answers.lives += 1
        self._life = replace(self._life, number=self.answers.lives, mute=mute)
        return self._process(self._life)

    def _process(self, options: LifeOptions) -> Process:
        return Process(functools.partial(live, options), options.folder / "log")

    # ---- how lives end ----

    def _acks(self, process: Process) -> None:
        wanted = len(self.answers.acks) + self._random.randrange(1, 1 + self._options.per_life)
        self._feed(process, lambda: len(self.answers.acks) >= wanted or self._is_fed, 10.0)
        self._kill(process, "acks")

    def _time(self, process: Process) -> None:
        self._feed(process, lambda: False, self._random.uniform(0.01, 0.25))
        self._kill(process, "time")

    def _start(self, process: Process) -> None:
        self._feed(process, lambda: False, self._random.uniform(0, 0.03))
        self._kill(process, "start")

    def _close(self, process: Process) -> None:
        self._feed(process, lambda: self._is_fed, self._random.uniform(0.02, 0.2))
        process.send("close")
        self._listen(process, lambda: False, self._random.choice((0.002, 0.01, 0.04, 0.08)) * self._random.random())
        self._kill(process, "close")

    def _stop(self, process: Process) -> None:
        self._feed(process, lambda: self._is_fed, self._random.uniform(0.02, 0.2))
        process.signal(signal.SIGSTOP)
        self._intrude()
        process.signal(signal.SIGCONT)
        self._feed(process, lambda: self._is_fed, self._random.uniform(0, 0.1))
        self._kill(process, "stop")

    def _mute(self, process: Process) -> None:
        self._feed(process, lambda: any(self.plan.messages[each].channel == PLAIN for each in self._stored), READY_S)
        self._kill(process, "mute")
        self.answers.unanswered += len(self._stored)
        self._stored.clear()

    def _clean(self, process: Process) -> None:
        self._feed(process, lambda: self._is_fed, self._random.uniform(0.02, 0.2))
        self._is_closing = True
        process.send("close")
        self._listen(process, lambda: process.is_over, CLOSED_S)
        if not process.is_over:
            self._kill(process, "hung")
            raise ChaosError(f"life {self._life.number} did not close within {CLOSED_S} s")
        self._bury(process, 0)
        self._is_closing = False

    def _intrude(self) -> None:
        """A second process must be refused while the first has the store, however quiet the first one is."""
        if not (self._life.folder / "chaos.db.lock").exists():
            return
        intruder = self._process(replace(self._life, number=0))
        heard: list[list[Any]] = []
        deadline = time.monotonic() + READY_S
        while not intruder.is_over and time.monotonic() < deadline:
            heard += intruder.hear(1.0)
            if heard and heard[0] == ["ready"]:
                break
        intruder.signal(signal.SIGKILL)
        intruder.bury()
        if heard and heard[0] == ["ready"]:
            raise ChaosError("two processes had the store at once")
        self.answers.intruders += heard == [["failed", "store_in_use"]]

    # ---- feeding and listening ----

    @property
    def _is_fed(self) -> bool:
        return self._quota <= 0 and not self._flying and not self._again

    def _feed(self, process: Process, is_enough: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_enough() and (left := deadline - time.monotonic()) > 0 and not process.is_over:
            while len(self._flying) < WINDOW and (self._again or self._quota > 0):
                self._send(process)
            self._hear(process, min(left, 0.05))

    def _listen(self, process: Process, is_enough: Callable[[], bool], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_enough() and (left := deadline - time.monotonic()) > 0 and not process.is_over:
            self._hear(process, min(left, 0.05))

    def _send(self, process: Process) -> None:
        if self._again:
            item: Item = self._again.popleft()
        else:
            item = self.plan.draw()
            self._quota -= 1
        self._flying[item.number] = item
        if isinstance(item, JobPlan):
            process.send("job", item.number, item.effect)
            return
        if isinstance(item, PokePlan):
            process.send("poke", item.number, item.session, item.what)
            return
        self.answers.resent += item.number in self._sent
        self._sent.add(item.number)
        process.send("message", item.number, item.session, item.channel, item.mode, item.text, item.platform_id)

    def _hear(self, process: Process, seconds: float) -> None:
        for line in process.hear(seconds):
            self._note(*line)

    def _note(self, what: str, *facts: Any) -> None:
        answers = self.answers
        match what:
            case "ready" | "closed":
                pass
            case "done":
                self._is_answered = True
            case "stored":
                self._stored.add(facts[0])
            case "ack":
                number, item_id, is_duplicate = facts
                item = self._flying.pop(number)
                match item:
                    case MessagePlan():
                        answers.acks[number] = item_id
                        answers.duplicates += is_duplicate
                    case JobPlan():
                        answers.job_acks[number] = item_id
                    case PokePlan():
                        answers.pokes += 1
            case "no":
                self._note_refusal(*facts)
            case "final":
                message_id, *told = facts
                answers.finals[message_id] = Ended(*told)
            case "jobs":
                answers.dead_jobs = dict(facts[0])
            case _:
                raise ChaosError(f"life {self._life.number} said {[what, *facts]}; see {self._life.folder / 'log'}")

    def _note_refusal(self, number: int, code: str) -> None:
        if code == "closed" or (code == "store_unavailable" and self._is_closing):
            # It stays among those that fly, and is sent to the next one. Of what a slow disk still had before it when
            # the patience of the closing was over, nobody knows whether it was written; the same id tells the next one.
            return
        item = self._flying.pop(number)
        if isinstance(item, PokePlan):
            return  # the message has left the queue meanwhile
        if code != "mailbox_full":
            raise ChaosError(f"{item} was refused: {code}; see {self._life.folder / 'log'}")
        self.answers.refused[number] = code

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
            raise ChaosError(f"life {self._life.number} ended with {code}; see {self._life.folder / 'log'}")
        left = sorted(self._flying)
        messages = [item for number in left if isinstance(item := self._flying[number], MessagePlan)]
        self.answers.unsure |= {number for number in left if isinstance(self._flying[number], JobPlan)}
        self._flying.clear()
        self._again = deque(sorted([*messages, *self._again], key=lambda message: message.number))

    def _rest(self) -> None:
        """The last life: everything is sent, everything comes to its end."""
        process = self._begin()
        self._quota = 0
        self._feed(process, lambda: self._is_fed, self._options.rest_s)
        waited = [message_id for message_id in self.answers.acks.values() if message_id]
        chunks = [waited[start : start + CHUNK] for start in range(0, len(waited), CHUNK)]
        deadline = time.monotonic() + self._options.rest_s
        questions: list[tuple[Any, ...]] = [("wait", chunk) for chunk in chunks]
        questions += [("rest", self.plan.sessions), ("jobs",)]
        if all(self._ask(process, deadline, *question) for question in questions):
            self._clean(process)
        else:
            self._kill(process, "hung")  # the checker says what did not come to its end

    def _ask(self, process: Process, deadline: float, *question: Any) -> bool:
        """Ask, and listen until the answer is complete; whether it was."""
        self._is_answered = False
        process.send(*question)
        self._listen(process, lambda: self._is_answered, deadline - time.monotonic())
        return self._is_answered


def run_world(options: WorldOptions) -> World:
    """Make a world and let everything happen in it."""
    options.folder.mkdir(parents=True, exist_ok=True)
    world = World(options)
    world.run()
    return world
