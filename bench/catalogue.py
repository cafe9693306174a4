"""Everything there is to measure: the workloads in the order they run, and the measures by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bench import agents, budgets, durable, externals, gateway, hosting, long_sessions, measures, replays, workers
from bench.agent_workloads import AGENT_WORKLOADS
from bench.budgets import BUDGET_WORKLOADS
from bench.durable_workloads import DURABLE_WORKLOADS
from bench.external_workloads import EXTERNAL_WORKLOADS
from bench.gateway_workloads import GATEWAY_WORKLOADS
from bench.hosting import HOSTING_WORKLOADS
from bench.long_sessions import LONG_WORKLOADS
from bench.measures import Measure
from bench.replays import REPLAY_WORKLOADS
from bench.workers_workloads import WORKERS_WORKLOADS
from bench.workloads import LANES_WORKLOADS, Workload

__all__ = ("MEASURES", "WORKLOADS")

WORKLOADS: Final[Mapping[str, Workload]] = {
    workload.name: workload
    for workload in (
        *LANES_WORKLOADS,
        *DURABLE_WORKLOADS,
        *AGENT_WORKLOADS,
        *BUDGET_WORKLOADS,
        *LONG_WORKLOADS,
        *REPLAY_WORKLOADS,
        *EXTERNAL_WORKLOADS,
        *GATEWAY_WORKLOADS,
        *WORKERS_WORKLOADS,
        *HOSTING_WORKLOADS,
    )
}
MEASURES: Final[Mapping[str, Measure]] = {
    **measures.MEASURES,
    **durable.MEASURES,
    **agents.MEASURES,
    **budgets.MEASURES,
    **long_sessions.MEASURES,
    **replays.MEASURES,
    **externals.MEASURES,
    **gateway.MEASURES,
    **workers.MEASURES,
    **hosting.MEASURES,
}
