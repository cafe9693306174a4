"""Which cases of durable work are measured together, which ratios come of them, and which are gates."""

from __future__ import annotations

from typing import Final

from bench.workloads import Ratio, Workload, case

__all__ = ("DURABLE_WORKLOADS",)


ACCEPT: Final = Workload(
    name="accept",
    title="Accepting a message, until it is on disk",
    cases=(
        case("raw commit", "accept_raw", 2_000, 300),
        case("1 sender", "accept_one", 2_000, 200),
        case("1 sender, busy", "accept_one_busy", 2_000, 200),
        case("1 sender, ids", "accept_one_dedupe", 2_000, 200),
        case("50 senders", "accept_fifty", 10_000, 1_000),
        case("1,000 senders", "accept_thousand", 50_000, 5_000),
        case("1,000 answered", "accept_thousand_idle", 50_000, 5_000),
    ),
    ratios=(
        Ratio(
            name="accept p50, of a raw commit",
            says="one sender, an idle agent: the message and its turn are stored together",
            over="1 sender.p50_us",
            under="raw commit.p50_us",
            gate="<=",
            limit=2,
        ),
        Ratio(
            name="accept p50, busy, of a raw commit",
            says="one sender, an agent at work: the message waits",
            over="1 sender, busy.p50_us",
            under="raw commit.p50_us",
            gate="<=",
            limit=2,
        ),
        Ratio(
            name="accept p50, ids, of a raw commit",
            says="the same with platform ids, which are looked up first",
            over="1 sender, ids.p50_us",
            under="raw commit.p50_us",
        ),
        Ratio(
            name="accept p99, of a raw commit's",
            says="one sender, an agent at work",
            over="1 sender, busy.p99_us",
            under="raw commit.p99_us",
        ),
        Ratio(
            name="accepted per second",
            says="1,000 senders, each with a session whose agent is at work",
            over="1,000 senders.accepted_per_second",
            gate=">=",
            limit=10_000,
            unit="/s",
        ),
    ),
    rounds=5,
)

DURABLE: Final = Workload(
    name="durable",
    title="Durable jobs: enqueue, start, finish",
    cases=(
        case("lanes", "jobs_lanes", 20_000, 2_000),
        case("raw loop", "jobs_raw", 50_000, 5_000),
        case("huey", "jobs_huey", 1_000, 200),
        case("dbos", "jobs_dbos", 200, 30),
    ),
    ratios=(
        Ratio(
            name="of a raw SQLite loop",
            says="speed against the same three writes in groups of 100, FULL, with nothing around them",
            over="raw loop.wall_per_job",  # its writes are in one thread and ours in two: only the wall clock is fair
            under="lanes.wall_per_job",
            gate=">=",
            limit=0.2,
        ),
        Ratio(
            name="of huey",
            says="speed against huey on SQLite, eight threads",
            over="huey.wall_per_job",
            under="lanes.wall_per_job",
            gate=">=",
            limit=3,
        ),
        Ratio(
            name="of dbos",
            says="speed against dbos on SQLite, asked every 10 ms",
            over="dbos.wall_per_job",
            under="lanes.wall_per_job",
            gate=">=",
            limit=40,
        ),
    ),
    rounds=3,
)

DURABLE_PICKUP: Final = Workload(
    name="durable-pickup",
    title="From the call to the first line, stored on the way",
    cases=(
        case("lanes", "pickup_jobs", 1_000, 100),
        case("inbox", "pickup_messages", 1_000, 100),
        case("huey", "pickup_huey", 40, 8),
        case("dbos", "pickup_dbos", 40, 8),
    ),
    ratios=(
        Ratio(
            name="pickup p50 of a durable job",
            says="idle lanes, one job at a time",
            over="lanes.p50_ms",
            gate="<=",
            limit=3,
            unit=" ms",
        ),
        Ratio(
            name="pickup p50 of a message",
            says="an idle inbox, one message at a time",
            over="inbox.p50_ms",
            gate="<=",
            limit=3,
            unit=" ms",
        ),
        Ratio(name="pickup p50, of huey's", says="speed", over="huey.p50_ms", under="lanes.p50_ms"),
        Ratio(name="pickup p50, of dbos's", says="speed", over="dbos.p50_ms", under="lanes.p50_ms"),
    ),
    rounds=3,
)

INBOX: Final = Workload(
    name="inbox",
    title="10,000 sessions, ten messages each, one turn for each message",
    cases=(
        case("sessions", "sessions_inbox", 10_000, 300),
        case("idle memory", "memory_inbox", 6_000, 600),
    ),
    ratios=(
        Ratio(
            name="cost of an idle session",
            says="what Python keeps for a session that was busy; half a machine word is what tables round up",
            over="idle memory.bytes_per_session",
            gate="<=",
            limit=16,
            unit=" B",
        ),
        Ratio(
            name="memory with 10,000 idle sessions",
            says="resident, all of the process (a quick run: 300 sessions)",
            over="sessions.idle_resident_mb",
            unit=" MB",
        ),
    ),
    rounds=1,
)

RESTART: Final = Workload(
    name="restart",
    title="A restart with 100,000 waiting messages",
    cases=(case("inbox", "restart_inbox", 100_000, 5_000),),
    ratios=(
        Ratio(
            name="restart, 100,000 waiting",
            says="until the first of them runs (a quick run: 5,000)",
            over="inbox.restart_seconds",
            gate="<=",
            limit=3,
            unit=" s",
        ),
    ),
    rounds=2,
)

DURABLE_WORKLOADS: Final = (ACCEPT, DURABLE, DURABLE_PICKUP, INBOX, RESTART)
