"""Playing a run on a simulated loop to its end, whatever the end is: for the tiers that have a loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Protocol

from laneway.sim.loop import SimDeadlockError, SimLoop, SimStalledError
from laneway.sim.shadow import LawBrokenError
from laneway.sim.trace import Outcome, SimFailedError, Tier, Trace

__all__ = ("LivingRun", "Run", "nothing", "play_to_end")


class Run(Protocol):
    """What is played."""

    broken: LawBrokenError | None
    broken_tail: tuple[str, ...]

    @property
    def starts(self) -> int:
        """How much was begun."""

    @property
    def faults(self) -> int:
        """How much went wrong on purpose."""

    async def play(self) -> None:
        """Everything, until all is checked."""

    def give_up(self) -> None:
        """The run has failed: what still goes on shall come to its end."""


def play_to_end(run: Run, loop: SimLoop, trace: Trace, *, seed: int, tier: Tier) -> Outcome:
    """Play a run and close its loop; raise `SimFailedError` when a law is broken."""
    problem = None
    cause: BaseException | None = None
    quiet = logging.getLogger("laneway")
    level = quiet.level
    quiet.setLevel(logging.CRITICAL + 1)  # by the method: a level that is set by hand is remembered wrongly
    try:
        loop.run_until_complete(loop.create_task(run.play(), name="sim main"))
        loop.cancel_leftovers()
        if loop.exceptions:
            problem = loop.picture("exceptions reached the loop")
    except (LawBrokenError, SimDeadlockError, SimStalledError) as error:
        problem, cause = str(error), error
    except Exception as error:  # noqa: BLE001 - whatever escapes is what the run found
        problem, cause = f"the run raised {error!r}", error
    finally:
        if problem is not None:
            run.give_up()
            with contextlib.suppress(Exception):  # the run has failed already; this only tidies up
                loop.cancel_leftovers()
        quiet.setLevel(level)
        loop.close()
    tail = trace.tail()
    if run.broken is not None:
        problem, cause, tail = str(run.broken), run.broken, run.broken_tail
    if problem is not None:
        raise SimFailedError(seed=seed, tier=tier, problem=problem, tail=tail) from cause
    return Outcome(
        seed=seed,
        tier=tier,
        digest=trace.digest(),
        steps=loop.steps,
        starts=run.starts,
        faults=run.faults,
        virtual_ms=round(loop.time() * 1000),
    )


class LivingRun:
    """What runs with processes that live and die have in common: a trace, and laws that are broken on the way."""

    def __init__(self, trace: Trace, loop: SimLoop) -> None:
        self.broken: LawBrokenError | None = None  # found where raising would only be somebody's outcome
        self.broken_tail: tuple[str, ...] = ()
        self._trace = trace
        self._loop = loop
        self._failed = asyncio.Event()

    def say(self, what: str, subject: str = "", detail: str = "") -> None:
        """One line of the trace."""
        self._trace.add(round(self._loop.time() * 1000), what, subject, detail)

    def _break(self, problem: str) -> None:
        if self.broken is None:
            self.broken = LawBrokenError(problem)
            self.broken_tail = self._trace.tail()
            self._failed.set()

    def _check_broken(self) -> None:
        if self.broken is not None:
            raise self.broken

    async def _end_tasks(self) -> None:
        """A process has died: nothing of it runs any more."""
        for _ in range(100):
            tasks = [task for task in self._loop.pending_tasks() if not task.get_name().startswith("sim ")]
            if not tasks:
                return
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1)
        raise LawBrokenError(self._loop.picture("a dead process goes on"))


def nothing(*_args: object, **_facts: object) -> None:
    """What a dead process does."""
