"""What tests of the façade share: simulated runs, lanes in virtual time, and jobs that do as they are told."""

from __future__ import annotations

import asyncio
import contextvars
import functools
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ParamSpec

from laneway import Group, LaneConfig, Lanes, Stats
from laneway.sim.loop import run_sim
from laneway.testing import LoopClock, fake_host

P = ParamSpec("P")
SEEDS = range(5)
virtual_sleep = asyncio.sleep  # on the simulated loop this never waits: the rule against sleeping is about real time


def simulated(main: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Make a test of a coroutine: it runs in virtual time, once per seed and once without a shuffle."""

    @functools.wraps(main)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        for seed in SEEDS:
            run_sim(main(*args, **kwargs), seed=seed)
        run_sim(main(*args, **kwargs), seed=0, shuffle=False)

    return run


def new_lanes(lanes: Mapping[str, LaneConfig | int] | None = None, **options: Any) -> Lanes:
    """Lanes whose clock is the loop's and whose ids count from 1."""
    options.setdefault("host", fake_host())
    return Lanes(lanes, **options)


def grouped(lanes: Mapping[str, LaneConfig | int], **groups: Group) -> Lanes:
    """Lanes with groups."""
    return new_lanes(lanes, groups=groups)


def stepping_lanes(lanes: Mapping[str, LaneConfig | int], **options: Any) -> tuple[Lanes, LoopClock]:
    """Lanes and the clock whose wall time a test may step."""
    clock = LoopClock()
    return Lanes(lanes, host=fake_host(clock=clock), **options), clock


async def passing(ms: float = 1) -> None:
    """Let virtual time pass; everything that was ready has run by then."""
    await virtual_sleep(ms / 1000)


def now_ms() -> int:
    """The virtual time."""
    return round(asyncio.get_running_loop().time() * 1000)


class Diary:
    """Jobs that write down when they begin and end."""

    def __init__(self) -> None:
        self.began: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.running = 0
        self.peak = 0
        self._gates: dict[str, asyncio.Event] = {}

    async def work(self, name: str, ms: float = 10) -> str:
        """Run for a while and return the name."""
        self._begin(name)
        try:
            await passing(ms)
        finally:
            self._end(name)
        return name

    async def hold(self, name: str) -> str:
        """Run until `let_go` and return the name."""
        self._begin(name)
        try:
            await self._gate(name).wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        finally:
            self._end(name)
        return name

    async def fail(self, name: str, error: Exception) -> str:
        """Raise."""
        self._begin(name)
        self._end(name)
        raise error

    async def cling(self, name: str, ms: float) -> str:
        """Ignore every cancellation and return the name after a while."""
        self._begin(name)
        until = now_ms() + ms
        while now_ms() < until:
            try:
                await passing(until - now_ms())
            except asyncio.CancelledError:
                self.cancelled.append(name)
        self._end(name)
        return name

    def note(self, name: str) -> str:
        """A sync job."""
        self.began.append(name)
        self.ended.append(name)
        return name

    def let_go(self, *names: str) -> None:
        """Let jobs that hold end."""
        for name in names:
            self._gate(name).set()

    def _gate(self, name: str) -> asyncio.Event:
        return self._gates.setdefault(name, asyncio.Event())

    def _begin(self, name: str) -> None:
        self.began.append(name)
        self.running += 1
        self.peak = max(self.peak, self.running)

    def _end(self, name: str) -> None:
        self.ended.append(name)
        self.running -= 1


def seen(lanes: Lanes) -> tuple[Stats, tuple[Any, ...]]:
    """Everything a caller can see of the state: two equal ones mean that nothing has changed."""
    return lanes.stats(), tuple(lanes.jobs())


async def never() -> None:
    """A job that must not start."""
    raise AssertionError("this job must not start")


async def value(result: object = None) -> object:
    """A job that returns at once."""
    return result


def contextless() -> contextvars.Context:
    """A context in which no job and no slot is around the code: as if the task had been made elsewhere."""
    return contextvars.Context()
