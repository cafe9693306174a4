"""Replaying runs: how long it takes against the run itself, and what recording costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

from bench.agents import Plain, look
from bench.measures import Measure
from bench.workloads import Numbers, Ratio, Workload, case
from laneway import AsyncAgent, MemorySessionStore, replay
from laneway.dialogue import Chunk, ModelRequest

__all__ = ("MEASURES", "REPLAY_WORKLOADS")

MODEL_S: Final = 0.2
CALLS: Final = 4


class Slow(Plain):
    """A model that takes 200 ms for each answer."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """One answer."""
        await asyncio.sleep(MODEL_S)
        async for chunk in super().stream(request):
            yield chunk


async def replay_speed(runs: int) -> Numbers:
    """A run with a round of tools: live with a model of 200 ms, and again from the text of its file."""
    async with AsyncAgent(
        model=Slow(CALLS), tools=[look], builtin_tools=False, session_store=MemorySessionStore(), record=True
    ) as agent:
        session = agent.session(".")
        began = time.perf_counter()
        names = [(await session.send("go")).run_id for _ in range(runs)]
        live_s = time.perf_counter() - began
        files = [replay.dump(await session.run_history(name)) for name in names]
    began, worked = time.perf_counter(), time.process_time()
    again = [replay.dump(replay.run(replay.loads(each)).history) for each in files]
    replay_s, cpu_s = time.perf_counter() - began, time.process_time() - worked
    assert again == files
    size = sum(map(len, files)) / runs
    times = {"live_ms": live_s, "replay_ms": replay_s, "replay_cpu_ms": cpu_s}
    return {**{name: each / runs * 1e3 for name, each in times.items()}, "bytes": size}


async def _turns(turns: int, *, record: bool) -> Numbers:
    async with AsyncAgent(
        model=Plain(CALLS), tools=[look], builtin_tools=False, session_store=MemorySessionStore(), record=record
    ) as agent:
        began = time.perf_counter()
        for _ in range(turns):  # of a session each: a long conversation would be measured else
            session = agent.session(".")
            await session.send("go")
            await session.close()
        return {"ms": (time.perf_counter() - began) / turns * 1e3}


async def recording_on(turns: int) -> Numbers:
    """Turns that are recorded."""
    return await _turns(turns, record=True)


async def recording_off(turns: int) -> Numbers:
    """Turns that are not."""
    return await _turns(turns, record=False)


MEASURES: Final[dict[str, Measure]] = {
    "replay_speed": replay_speed,
    "recording_on": recording_on,
    "recording_off": recording_off,
}
REPLAY_WORKLOADS: Final = (
    Workload(
        name="replay",
        title="Replaying runs",
        cases=(
            case("replay", "replay_speed", 20, 5),
            case("recorded", "recording_on", 500, 50),
            case("plain", "recording_off", 500, 50),
        ),
        ratios=(
            Ratio(
                name="replay",
                says="a run of two answers with a model of 200 ms against its replay",
                over="replay.live_ms",
                under="replay.replay_ms",
                gate=">=",
                limit=20,
            ),
            Ratio(
                name="recording",
                says="a turn that is recorded against one that is not",
                over="recorded.ms",
                under="plain.ms",
            ),
        ),
        rounds=1,
    ),
)
