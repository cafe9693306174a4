"""Playing a run on a simulated loop to its end, whatever the end is: for the tiers that have a loop."""

from __future__ import annotations

import contextlib
import logging
from typing import Protocol

from laneway.sim.loop import SimDeadlockError, SimLoop, SimStalledError
from laneway.sim.shadow import LawBrokenError
from laneway.sim.trace import SimFailedError, Tier, Trace

__all__ = ("Run", "play_to_end")


class Run(Protocol):
    """What is played."""

    broken: LawBrokenError | None
    broken_tail: tuple[str, ...]

    async def play(self) -> None:
        """Everything, until all is checked."""

    def give_up(self) -> None:
        """The run has failed: what still goes on shall come to its end."""


def play_to_end(run: Run, loop: SimLoop, trace: Trace, *, seed: int, tier: Tier) -> None:
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
