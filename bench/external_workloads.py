"""What is measured of calls that others make or stop, which ratios come of it, and which are gates."""

from __future__ import annotations

from typing import Final

from bench.workloads import Ratio, Workload, case

__all__ = ("EXTERNAL_WORKLOADS",)


EXTERNAL: Final = Workload(
    name="external",
    title="External tasks of one session, 64 in an answer, in a lane that is 16 wide",
    cases=(
        case("polled", "external_calls", 3_200, 640),
        case("workers", "external_workers", 3_200, 640),
        case("a Worker", "external_worker", 3_200, 640),
        case("writes", "external_writes", 3_200, 640),
        case("writes on disk", "external_writes_on_disk", 3_200, 640),
    ),
    ratios=(
        Ratio(
            name="external tasks/s",
            says="reads, asked for and completed by the code that has the session; whole turns",
            over="polled.tasks_per_second",
            gate=">=",
            limit=2_000,
            unit="",
        ),
        Ratio(
            name="external tasks/s, workers",
            says="the same by workers that claim, start and complete each task through the local transport",
            over="workers.tasks_per_second",
            gate=">=",
            limit=2_000,
            unit="",
        ),
        Ratio(
            name="external tasks/s, a Worker",
            says="the same by one `Worker`, which also shows signs of life",
            over="a Worker.tasks_per_second",
            unit="",
        ),
        Ratio(
            name="external writes/s",
            says="the intent is kept before a task goes out, its end before the model hears of it",
            over="writes.tasks_per_second",
            unit="",
        ),
        Ratio(
            name="external writes/s on disk",
            says="the same in SQLite",
            over="writes on disk.tasks_per_second",
            unit="",
        ),
        Ratio(
            name="in flight, of the lane",
            says="the most tasks that were out at once, of what the lane allows",
            over="polled.in_flight_of_lane",
            gate=">=",
            limit=1,
        ),
        Ratio(
            name="in flight with workers",
            says="the same",
            over="workers.in_flight_of_lane",
            gate=">=",
            limit=1,
        ),
    ),
    rounds=3,
)

GATES: Final = Workload(
    name="gates",
    title="A call of a read tool, with gates and without",
    cases=(case("gates", "gates", 20, 5),),
    ratios=(
        Ratio(
            name="gates add to a call",
            says="CPU time: four hooks that are coroutines, a policy of seven rules, a skill that names its tools",
            over="gates.added_ms",
            gate="<=",
            limit=0.2,
            unit=" ms",
        ),
        Ratio(
            name="the same, hooks on threads",
            says="four hooks that are plain functions: each call has a thread to itself, so that its time can end",
            over="gates.added_by_functions_ms",
            unit=" ms",
        ),
    ),
    rounds=3,
)

SUBAGENTS: Final = Workload(
    name="subagents",
    title="100 sub-agents at once, every second with one of its own, all with tools",
    cases=(case("sub-agents", "subagents", 100, 20),),
    ratios=(
        Ratio(
            name="sub-agents that end, of all",
            says="succeeded, with their answer",
            over="sub-agents.ended_of_all",
            gate=">=",
            limit=1,
        ),
        Ratio(
            name="at work at once, of the cap",
            says="sub-agents whose model is being asked; eight may be at work",
            over="sub-agents.thinking_of_cap",
            gate="<=",
            limit=1,
        ),
        Ratio(
            name="calls at once, of the cap",
            says="two calls of each of eight",
            over="sub-agents.calling_of_cap",
            gate="<=",
            limit=1,
        ),
        Ratio(name="time for all", says="150 sub-agents, 300 calls", over="sub-agents.seconds", unit=" s"),
    ),
    rounds=2,
)

EXTERNAL_WORKLOADS: Final = (EXTERNAL, GATES, SUBAGENTS)
