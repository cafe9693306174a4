"""Which cases of agents are measured together, which ratios come of them, and which are gates."""

from __future__ import annotations

from typing import Final

from bench.workloads import Ratio, Workload, case

__all__ = ("AGENT_WORKLOADS",)


TURN: Final = Workload(
    name="turn",
    title="A turn without tools, and a model that answers at once",
    cases=(
        case("laneway", "turn_laneway", 400, 60),
        case("laneway on disk", "turn_laneway_sqlite", 400, 60),
        case("pydantic-ai", "turn_pydantic_ai", 400, 60),
    ),
    ratios=(
        Ratio(
            name="turn above the model",
            says="memory store, tools in lanes: what a turn costs",
            over="laneway.p50_ms",
            gate="<=",
            limit=2,
            unit=" ms",
        ),
        Ratio(
            name="turn, of pydantic-ai's",
            says="`Agent.run` with a `FunctionModel`, which keeps nothing",
            over="laneway.p50_ms",
            under="pydantic-ai.p50_ms",
            gate="<=",
            limit=1,
        ),
        Ratio(
            name="turn on disk",
            says="the same with every message and answer in SQLite",
            over="laneway on disk.p50_ms",
            unit=" ms",
        ),
    ),
    rounds=5,
)

READS: Final = Workload(
    name="reads",
    title="Reads in one answer, through the queue",
    cases=(
        case("4 of 100 ms", "reads_slow", 4, 4),
        case("20 trivial", "reads_trivial", 20, 20),
    ),
    ratios=(
        Ratio(
            name="4 reads of 100 ms",
            says="in a lane that is four wide; the whole turn",
            over="4 of 100 ms.ms",
            gate="<=",
            limit=115,
            unit=" ms",
        ),
        Ratio(
            name="20 trivial reads",
            says="memory store; the whole turn",
            over="20 trivial.ms",
            gate="<=",
            limit=10,
            unit=" ms",
        ),
    ),
    rounds=5,
)

CHECKPOINT: Final = Workload(
    name="checkpoint",
    title="Writing a round down, and a conversation of 1,000 turns",
    cases=(
        case("raw commit", "accept_raw", 1_000, 300),
        case("checkpoint", "checkpoint", 1_000, 200),
        case("conversation", "conversation", 1_000, 100),
    ),
    ratios=(
        Ratio(
            name="checkpoint p50, of a raw commit",
            says="one round with half a kilobyte of output, until it is on disk",
            over="checkpoint.p50_us",
            under="raw commit.p50_us",
            gate="<=",
            limit=3,
        ),
        Ratio(
            name="bytes on disk, of storing it once",
            says="a question of 240, a result of 3,500 and an answer of 560 characters in each turn",
            over="conversation.bytes",
            under="conversation.once",
            gate="<=",
            limit=1.5,
        ),
        Ratio(
            name="resume of a conversation",
            says="opening the session and reading what was said",
            over="conversation.resume_ms",
            gate="<=",
            limit=300,
            unit=" ms",
        ),
    ),
    rounds=3,
)

STREAMING: Final = Workload(
    name="streaming",
    title="1,000 sessions streaming on one loop, 20 pieces a second each",
    cases=(case("sessions", "streaming", 1_000, 100),),
    ratios=(
        Ratio(name="event delay p50", says="from the model to the reader", over="sessions.p50_ms", unit=" ms"),
        Ratio(name="event delay p99", says="the same", over="sessions.p99_ms", unit=" ms"),
        Ratio(
            name="memory of a live session",
            says="resident, while it streams",
            over="sessions.bytes_per_session",
            unit=" B",
        ),
    ),
    rounds=2,
)

IMPORT: Final = Workload(
    name="import",
    title="Importing it, in a fresh process",
    cases=(
        case("asyncio", "import_asyncio", 10, 5),
        case("laneway", "import_laneway", 10, 5),
        case("the agent", "import_agent", 10, 5),
    ),
    ratios=(
        Ratio(
            name="import, of asyncio's",
            says="`import laneway`: names are loaded when they are used",
            over="laneway.ms",
            under="asyncio.ms",
            gate="<=",
            limit=3,
        ),
        Ratio(
            name="import of the agent, of asyncio's",
            says="`from laneway import AsyncAgent, tool`: everything an agent needs before its first run",
            over="the agent.ms",
            under="asyncio.ms",
        ),
    ),
    rounds=3,
)

AGENT_WORKLOADS: Final = (TURN, READS, CHECKPOINT, STREAMING, IMPORT)
