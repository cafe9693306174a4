"""A session that runs for very long: what it holds in memory, with caps and without.

`python -m bench.long_sessions TURNS FILE.svg` draws the memory of both over their turns.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import sys
from pathlib import Path
from statistics import fmean
from typing import Final

from bench.agents import Plain
from bench.durable import scratch
from bench.measures import Measure
from bench.workloads import Numbers, Ratio, Workload, case
from laneway import AsyncAgent, SessionRetentionLimits, SqliteSessionStore

__all__ = ("LONG_WORKLOADS", "MEASURES")

PAGE_BYTES: Final = resource.getpagesize()
CONVERSATION: Final = 100
TEXT: Final = "tell me more about it " * 100
CAPS: Final = SessionRetentionLimits(
    max_runs_retained=100, max_events_per_run=1_000, max_trace_events=1_000, max_terminal_subagent_tasks=10
)
Points = list[tuple[int, float]]
STYLE: Final = (
    "text { font: 12px sans-serif; fill: #1f2328 } rect { fill: #fff } line { stroke: #ddd } "
    "polyline { fill: none; stroke-width: 2 } polyline.one { stroke: #0b6e4f } polyline.other { stroke: #c44900 } "
    "text.one { fill: #0b6e4f } text.other { fill: #c44900 } "
    "@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } rect { fill: #0d1117 } line { stroke: #30363d } "
    "polyline.one { stroke: #3fb58a } text.one { fill: #3fb58a } "
    "polyline.other { stroke: #f0883e } text.other { fill: #f0883e } }"
)


def resident_mb() -> float:
    """What this process holds, in millions of bytes."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / 1e6


async def live(turns: int, limits: SessionRetentionLimits) -> Points:
    """The memory of a session over its turns; a conversation of it has a hundred."""
    points: Points = []
    with scratch() as folder:
        store = SqliteSessionStore(folder / "sessions.db")
        async with AsyncAgent(model=Plain(), builtin_tools=False, session_store=store) as agent:
            session = agent.session(".", retention_limits=limits)
            for number in range(turns):
                await session.send(f"{number}: {TEXT}")
                if number % CONVERSATION == CONVERSATION - 1:
                    await session.command("/new")
                if number % max(turns // 40, 1) == 0:
                    points.append((number, resident_mb()))
    return points


def _numbers(points: Points) -> Numbers:
    """What it holds at the end, and how far the line of best fit climbs from the middle of its life to the end.

    The first half does not count: the page cache of the store, 32 MiB, fills until about turn 3,000, caps or not.
    """
    later = points[len(points) // 2 :]
    return {"mb": points[-1][1], "climb_mb": max(0.0, _slope(later) * (later[-1][0] - later[0][0]))}


def _slope(points: Points) -> float:
    """MB for each turn, by least squares."""
    middle_x, middle_y = fmean(x for x, _ in points), fmean(y for _, y in points)
    spread = sum((x - middle_x) ** 2 for x, _ in points)
    return sum((x - middle_x) * (y - middle_y) for x, y in points) / spread if spread else 0.0


async def long_session(turns: int) -> Numbers:
    """With caps."""
    return _numbers(await live(turns, CAPS))


async def long_session_uncapped(turns: int) -> Numbers:
    """Without any."""
    return _numbers(await live(turns, SessionRetentionLimits()))


MEASURES: Final[dict[str, Measure]] = {
    "long_session": long_session,
    "long_session_uncapped": long_session_uncapped,
}
LONG_WORKLOADS: Final = (
    Workload(
        name="long-session",
        title="A session of ten thousand turns: what it holds in memory",
        cases=(
            case("capped", "long_session", 10_000, 500),
            case("uncapped", "long_session_uncapped", 10_000, 500),
        ),
        ratios=(
            Ratio(
                name="climb with caps",
                says="how far its memory climbs in the second half of its turns, by the line of best fit",
                over="capped.climb_mb",
                gate="<=",
                limit=3,
                unit=" MB",
            ),
            Ratio(name="climb without", says="the same without caps", over="uncapped.climb_mb", unit=" MB"),
            Ratio(name="memory with caps", says="of the process, at the end", over="capped.mb", unit=" MB"),
        ),
        rounds=1,
    ),
)


def draw(lines: dict[str, Points]) -> str:
    """A picture of some lines."""
    wide, high, left, top = 640, 280, 60, 30
    most_x = max(x for points in lines.values() for x, _ in points)
    most_y = max(y for points in lines.values() for _, y in points) * 1.1
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide + 120} {high + 80}" role="img">',
        "<title>Memory of one session over its turns: flat with caps, growing without</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{wide + 120}" height="{high + 80}"/>',
        f'<text x="{left}" y="18" font-size="14">Memory of one session over its turns, in MB</text>',
    ]
    for step in range(5):
        y, mb = top + high - step * high / 4, most_y * step / 4
        parts.append(f'<line x1="{left}" x2="{left + wide}" y1="{y:.0f}" y2="{y:.0f}"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end">{mb:.0f}</text>')
        x = left + step * wide / 4
        parts.append(f'<text x="{x:.0f}" y="{top + high + 20}" text-anchor="middle">{most_x * step / 4:,.0f}</text>')
    for (name, points), kind in zip(lines.items(), ("one", "other"), strict=False):
        path = " ".join(
            f"{left + x * wide / max(most_x, 1):.1f},{top + high - y * high / most_y:.1f}" for x, y in points
        )
        parts.append(f'<polyline points="{path}" class="{kind}"/>')
        last = top + high - points[-1][1] * high / most_y
        end = left + points[-1][0] * wide / max(most_x, 1) - 60
        parts.append(f'<text x="{end:.0f}" y="{last - 8:.0f}" class="{kind}">{name}</text>')
    return "\n".join([*parts, "</svg>\n"])


if __name__ == "__main__":
    turns, target = int(sys.argv[1]), Path(sys.argv[2])
    capped = asyncio.run(live(turns, CAPS))
    print("capped", _numbers(capped), capped, flush=True)
    target.write_text(draw({"with caps": capped}))
    uncapped = asyncio.run(live(turns, SessionRetentionLimits()))
    print("uncapped", _numbers(uncapped), uncapped)
    target.write_text(draw({"with caps": capped, "without": uncapped}))
