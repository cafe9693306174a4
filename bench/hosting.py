"""What is measured of sessions that leave memory: how fast a gateway lets them go, and how fast each is back."""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path
from typing import Final

from bench.agents import Plain
from bench.durable import percentiles, scratch
from bench.measures import Measure, resident_bytes
from bench.workloads import Numbers, Ratio, Workload, case
from laneway.config import load_agent
from laneway.gateway.access import LOCAL
from laneway.gateway.service import Gateway
from laneway.gateway.settings import GatewaySettings, WorkspaceSpec

TEXT: Final = "default_model: scripted\nqueue:\n  mode: followup\n  debounce_idle: false\n"
TENANT: Final = "default"


async def passivation(sessions: int) -> Numbers:
    """So many sessions of a gateway with SQLite: each has a turn, leaves memory, and is woken by its next message.

    `p50_ms` is from a message to its answer where its session has to be opened first, `warm_ms` the same of its next
    message, right after, when it is in memory. `bytes_per_session` is what one costs while it is in memory,
    `bytes_at_rest` what is left when all are out, both as the system sees it: what the allocator holds for the next
    ones counts as left. `blocks_…` are the same as the allocator sees it, in pieces of memory that somebody holds.
    """
    with scratch() as folder:
        gateway = _gateway(folder, sessions)
        async with gateway:
            workspace = gateway.default
            before, blocks = _memory(), sys.getallocatedblocks()
            for number in range(sessions):
                await _turn(gateway, f"s{number}")
            full, full_blocks = _memory(), sys.getallocatedblocks()
            began = time.perf_counter()
            for number in range(sessions):
                assert await workspace.passivate(TENANT, f"s{number}", "measured")
            leaving = time.perf_counter() - began
            assert not workspace.live_sessions()
            rest, rest_blocks = _memory(), sys.getallocatedblocks()
            took: list[float] = []
            warm: list[float] = []
            for number in range(sessions):
                for times in (took, warm):
                    began = time.perf_counter()
                    await _turn(gateway, f"s{number}")
                    times.append(time.perf_counter() - began)
            return {
                **percentiles(took, "ms"),
                "warm_ms": percentiles(warm, "ms")["p50_ms"],
                "left_per_second": sessions / leaving,
                "woken_per_second": sessions / sum(took),
                "bytes_per_session": max(0, full - before) / sessions,
                "bytes_at_rest": max(0, rest - before) / sessions,
                "blocks_per_session": max(0, full_blocks - blocks) / sessions,
                "blocks_at_rest": max(0, rest_blocks - blocks) / sessions,
            }


def _gateway(folder: Path, sessions: int) -> Gateway:
    settings = GatewaySettings(store=f"sqlite:///{folder}/laneway.db", sessions_max=sessions * 2)
    spec = WorkspaceSpec(name="default", folder=folder, agent=load_agent(TEXT, environ={}), model=Plain())
    return Gateway(settings, [spec], environ={})


async def _turn(gateway: Gateway, key: str) -> None:
    receipt = await gateway.submit(gateway.default, LOCAL, key, "hello")
    final = await gateway.default.inbox.wait(receipt.message_id)
    assert final.answer == "hi"


def _memory() -> int:
    gc.collect()
    return resident_bytes()


PASSIVATION: Final = Workload(
    name="passivation",
    title="Sessions of a gateway that leave memory, and are woken by their next message",
    cases=(case("laneway", "passivation", 10_000, 300),),
    ratios=(
        Ratio(
            name="wake-up, of a turn",
            says="a message to a session at rest, to its answer, against the next one to the same session",
            over="laneway.p50_ms",
            under="laneway.warm_ms",
            gate="<=",
            limit=3,
        ),
        Ratio(name="wake-up p50", says="the first of these two", over="laneway.p50_ms", unit=" ms"),
        Ratio(name="wake-up p99", says="the same at the 99th percentile", over="laneway.p99_ms", unit=" ms"),
        Ratio(name="leaving", says="sessions that leave in a second", over="laneway.left_per_second", unit="/s"),
        Ratio(name="in memory", says="what an idle session costs", over="laneway.bytes_per_session", unit=" B"),
        Ratio(
            name="at rest, of in memory",
            says="pieces of memory that are held for a session at rest, against one in memory",
            over="laneway.blocks_at_rest",
            under="laneway.blocks_per_session",
            gate="<=",
            limit=0.2,
        ),
    ),
    rounds=1,
)
HOSTING_WORKLOADS: Final = (PASSIVATION,)
MEASURES: Final[dict[str, Measure]] = {"passivation": passivation}
