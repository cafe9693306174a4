"""What is measured of workers over HTTP, which ratios come of it, and which are gates."""

from __future__ import annotations

from typing import Final

from bench.workloads import Ratio, Workload, case

__all__ = ("WORKERS_WORKLOADS",)

WORKERS: Final = Workload(
    name="workers",
    title="No-op tasks for workers in other processes: 64 offered at once, 16 at once in each worker",
    cases=(
        case("1 worker", "workers_one", 1_000, 200),
        case("taskiq, 1 worker", "workers_taskiq_one", 1_000, 200),
        case("saq, 1 worker", "workers_saq_one", 1_000, 200),
        case("4 workers", "workers_four", 1_000, 200),
        case("taskiq, 4 workers", "workers_taskiq_four", 1_000, 200),
        case("saq, 4 workers", "workers_saq_four", 1_000, 200),
    ),
    ratios=(
        Ratio(
            name="tasks/s, 1 worker",
            says="writes over HTTP: the task, its start and its end on disk; until the host knows the outcome",
            over="1 worker.tasks_per_second",
            gate=">=",
            limit=1_000,
            unit="",
        ),
        Ratio(
            name="tasks/s, 4 workers",
            says="the same",
            over="4 workers.tasks_per_second",
            gate=">=",
            limit=1_000,
            unit="",
        ),
        Ratio(
            name="a claim when idle",
            says="from the offer of a task to the first line of its handler, one at a time",
            over="1 worker.claim_p50_ms",
            gate="<=",
            limit=20,
            unit=" ms",
        ),
        Ratio(name="a claim when idle, p99", says="the slow end of the same", over="1 worker.claim_p99_ms", unit=" ms"),
        Ratio(
            name="of taskiq's tasks/s, 1 worker",
            says="each at its best: 64 at once, or all at once; its Redis syncs nothing",
            over="1 worker.best_per_second",
            under="taskiq, 1 worker.best_per_second",
        ),
        Ratio(
            name="of taskiq's tasks/s, 4 workers",
            says="the same",
            over="4 workers.best_per_second",
            under="taskiq, 4 workers.best_per_second",
        ),
        Ratio(
            name="of saq's tasks/s, 1 worker",
            says="the same against saq",
            over="1 worker.best_per_second",
            under="saq, 1 worker.best_per_second",
        ),
        Ratio(
            name="of saq's tasks/s, 4 workers",
            says="the same",
            over="4 workers.best_per_second",
            under="saq, 4 workers.best_per_second",
        ),
        Ratio(
            name="of saq's CPU for a task",
            says="all processes together, Redis included; 4 workers. It hardly depends on what else the machine does",
            over="4 workers.cpu_ms_per_task",
            under="saq, 4 workers.cpu_ms_per_task",
        ),
        Ratio(
            name="of saq's round trip, alone",
            says="one task at a time, from its offer to its outcome: three commits and a start against none",
            over="1 worker.alone_p50_ms",
            under="saq, 1 worker.alone_p50_ms",
        ),
    ),
    rounds=2,
)

WORKERS_DURABLE: Final = Workload(
    name="workers-durable",
    title="The same, four workers, against a Redis that syncs its log before it answers",
    cases=(
        case("4 workers", "workers_four", 1_000, 200),
        case("taskiq, durable", "workers_taskiq_durable", 1_000, 200),
        case("saq, durable", "workers_saq_durable", 1_000, 200),
    ),
    ratios=(
        Ratio(
            name="of taskiq's, when it is durable",
            says="tasks a second, each at its best",
            over="4 workers.best_per_second",
            under="taskiq, durable.best_per_second",
        ),
        Ratio(
            name="of saq's, when it is durable",
            says="the same",
            over="4 workers.best_per_second",
            under="saq, durable.best_per_second",
        ),
    ),
    rounds=2,
)

WORKERS_WORKLOADS: Final = (WORKERS, WORKERS_DURABLE)
