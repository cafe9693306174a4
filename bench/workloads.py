"""Which cases are measured together, which ratios come of them, and which are gates: lanes in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

__all__ = ("LANES_WORKLOADS", "Case", "Numbers", "Ratio", "Workload", "case")

Numbers = dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One measure at one size; `quick` is the size of a quick run."""

    name: str
    measure: str
    size: int
    quick: int

    def at(self, *, quick: bool) -> int:
        """The size to run."""
        return self.quick if quick else self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """A number that means the same on every machine: `over` ÷ `under`, or `over` alone.

    Both are `case.metric`. A gate is `>=` or `<=` a limit.
    """

    name: str
    says: str
    over: str
    under: str | None = None
    gate: Literal[">=", "<="] | None = None
    limit: float = 0.0
    unit: str = "×"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Cases that take turns, and the ratios between them."""

    name: str
    title: str
    cases: tuple[Case, ...]
    ratios: tuple[Ratio, ...]
    rounds: int = 5


def case(name: str, measure: str, size: int, quick: int) -> Case:
    """A case in one line."""
    return Case(name=name, measure=measure, size=size, quick=quick)


FLOOR: Final = Workload(
    name="floor",
    title="No-op async jobs, concurrency 8",
    cases=(
        case("lanes", "noop_lanes", 100_000, 10_000),
        case("floor", "noop_floor", 100_000, 10_000),
        case("semaphore", "noop_semaphore", 100_000, 10_000),
    ),
    ratios=(
        Ratio(
            name="of the floor",
            says="speed of Lanes against a heap, a counter, a task and a future per job",
            over="floor.seconds_per_job",
            under="lanes.seconds_per_job",
            gate=">=",
            limit=0.5,
        ),
        Ratio(
            name="of a semaphore",
            says="speed of Lanes against asyncio.Semaphore(8) and a task per job",
            over="semaphore.seconds_per_job",
            under="lanes.seconds_per_job",
        ),
    ),
)

A3S: Final = Workload(
    name="a3s",
    title="Against a3s-lane 0.4.0, concurrency 8",
    cases=(case("lanes", "noop_lanes", 100_000, 10_000), case("a3s", "noop_a3s", 200, 40)),
    ratios=(
        Ratio(
            name="of a3s-lane",
            says="speed of Lanes against a3s-lane 0.4.0 from Python (which runs no Python code)",
            over="a3s.seconds_per_job",
            under="lanes.wall_per_job",  # its threads cannot be timed otherwise, so both by the wall clock
            gate=">=",
            limit=500,
        ),
    ),
    rounds=2,
)

LEVELS: Final = Workload(
    name="levels",
    title="Three levels mixed, concurrency 8",
    cases=(
        case("lanes", "levels_lanes", 100_000, 10_000),
        case("floor", "levels_floor", 100_000, 10_000),
    ),
    ratios=(
        Ratio(
            name="of the floor, three levels",
            says="speed with USER, SCHEDULED and BACKGROUND in turn",
            over="floor.seconds_per_job",
            under="lanes.seconds_per_job",
        ),
    ),
    rounds=3,
)

SESSIONS: Final = Workload(
    name="sessions",
    title="A session lane, then `main`, over 1,000 sessions",
    cases=(
        case("plain", "noop_lanes", 100_000, 10_000),
        case("sessions", "sessions_lanes", 100_000, 10_000),
    ),
    ratios=(
        Ratio(
            name="session then main, of one lane",
            says="speed of jobs that need two lanes against jobs that need one",
            over="plain.seconds_per_job",
            under="sessions.seconds_per_job",
        ),
    ),
    rounds=3,
)

DEPTH: Final = Workload(
    name="depth",
    title="10,000 against 1,000,000 queued",
    cases=(
        case("small", "depth_lanes", 10_000, 1_000),
        case("large", "depth_lanes", 1_000_000, 100_000),
        case("floor small", "depth_floor", 10_000, 1_000),
        case("floor large", "depth_floor", 1_000_000, 100_000),
    ),
    ratios=(
        Ratio(
            name="cost at 1M queued, of 10k",
            says="submit and drain, per job (a quick run: 100k of 1k)",
            over="large.seconds_per_job",
            under="small.seconds_per_job",
            gate="<=",
            limit=1.5,
        ),
        Ratio(
            name="the floor's, for comparison",
            says="what memory and garbage collection do to a bare heap",
            over="floor large.seconds_per_job",
            under="floor small.seconds_per_job",
        ),
    ),
    rounds=2,
)

LANES: Final = Workload(
    name="lanes",
    title="10 against 10,000 lanes, 100,000 jobs",
    cases=(
        case("10 plain", "lanes_plain", 10, 10),
        case("10,000 plain", "lanes_plain", 10_000, 1_000),
        case("10 all on", "lanes_all_on", 10, 10),
        case("10,000 all on", "lanes_all_on", 10_000, 1_000),
        case("floor 10", "lanes_floor", 10, 10),
        case("floor 10,000", "lanes_floor", 10_000, 1_000),
    ),
    ratios=(
        Ratio(
            name="cost with 10,000 lanes, of 10",
            says="one level, no fair share, no shared cap (a quick run: 1,000 lanes)",
            over="10,000 plain.seconds_per_job",
            under="10 plain.seconds_per_job",
            gate="<=",
            limit=1.5,
        ),
        Ratio(
            name="the floor's, 10,000 at once",
            says="what 10,000 tasks at once cost the event loop, without any lanes",
            over="floor 10,000.seconds_per_job",
            under="floor 10.seconds_per_job",
        ),
        Ratio(
            name="cost with 10,000 lanes, all on",
            says="three levels, fair share of 16 tenants, a shared cap of 8",
            over="10,000 all on.seconds_per_job",
            under="10 all on.seconds_per_job",
            gate="<=",
            limit=2.5,
        ),
    ),
    rounds=3,
)

MEMORY: Final = Workload(
    name="memory",
    title="Memory of 100,000 jobs in a paused lane, their handles counted",
    cases=(
        case("lanes", "memory_lanes", 100_000, 20_000),
        case("floor", "memory_floor", 100_000, 20_000),
    ),
    ratios=(
        Ratio(
            name="bytes per queued job",
            says="what Python asked its allocator for",
            over="lanes.bytes_per_job",
            gate="<=",
            limit=700,
            unit=" B",
        ),
        Ratio(
            name="of the floor's bytes",
            says="the same against a heap entry and a future",
            over="lanes.bytes_per_job",
            under="floor.bytes_per_job",
        ),
    ),
    rounds=1,
)

PICKUP: Final = Workload(
    name="pickup",
    title="Pickup on an idle engine: submit to the first line of the job",
    cases=(
        case("lanes", "pickup_lanes", 20_000, 2_000),
        case("floor", "pickup_floor", 20_000, 2_000),
    ),
    ratios=(
        Ratio(
            name="pickup p50, of the floor's",
            says="an idle engine, one job at a time",
            over="lanes.p50_us",
            under="floor.p50_us",
            gate="<=",
            limit=20,
        ),
        Ratio(
            name="pickup p99, of the floor's",
            says="the same at the 99th percentile",
            over="lanes.p99_us",
            under="floor.p99_us",
        ),
    ),
    rounds=3,
)

CANCEL: Final = Workload(
    name="cancel",
    title="Cancel from the middle of the queue",
    cases=(
        case("1k", "cancel_lanes", 1_000, 1_000),
        case("100k", "cancel_lanes", 100_000, 20_000),
    ),
    ratios=(
        Ratio(
            name="cost of a cancel: 100k, of 1k",
            says="500 cancels in random order (a quick run: 20k)",
            over="100k.seconds_per_cancel",
            under="1k.seconds_per_cancel",
        ),
    ),
    rounds=3,
)

IDLE: Final = Workload(
    name="idle",
    title="Idle for two seconds after 1,000 jobs that had timeouts",
    cases=(case("lanes", "idle_lanes", 2_000, 300),),
    ratios=(
        Ratio(
            name="wake-ups when idle",
            says="turns of the event loop beyond those of the measuring sleep",
            over="lanes.wake_ups",
            gate="<=",
            limit=0,
            unit="",
        ),
        Ratio(
            name="CPU time when idle",
            says="beyond that of the measuring sleep",
            over="lanes.cpu_ms",
            unit=" ms",
        ),
    ),
    rounds=1,
)

LANES_WORKLOADS: Final = (FLOOR, A3S, LEVELS, SESSIONS, DEPTH, LANES, MEMORY, PICKUP, CANCEL, IDLE)
