"""What is measured of the gateway over HTTP, which ratios come of it, and which are gates."""

from __future__ import annotations

from typing import Final

from bench.workloads import Ratio, Workload, case

__all__ = ("GATEWAY_WORKLOADS",)

HTTP: Final = Workload(
    name="http",
    title="Messages accepted over HTTP, against a bare FastAPI route that writes one row as durably",
    cases=(
        case("bare, one", "http_bare_one", 2_000, 300),
        case("accept, one", "http_accept_one", 2_000, 300),
        case("bare, many", "http_bare_many", 6_400, 640),
        case("accept, many", "http_accept_many", 6_400, 640),
        case("answer, many", "http_accept_idle", 1_600, 640),
    ),
    ratios=(
        Ratio(
            name="accept over HTTP, 32 senders",
            says="accepted a second, of what the bare route takes",
            over="accept, many.accepted_per_second",
            under="bare, many.accepted_per_second",
            gate=">=",
            limit=0.6,
        ),
        Ratio(
            name="accept over HTTP, one sender",
            says="the same, one after the other",
            over="accept, one.accepted_per_second",
            under="bare, one.accepted_per_second",
        ),
        Ratio(
            name="accepted and answered",
            says="the same when each message also begins a run that answers it",
            over="answer, many.accepted_per_second",
            under="bare, many.accepted_per_second",
        ),
        Ratio(name="accept p99", says="32 senders", over="accept, many.p99_ms", unit=" ms"),
    ),
    rounds=3,
)

STEER: Final = Workload(
    name="steer",
    title="A steer sent over HTTP while a call is at work",
    cases=(case("steer", "http_steer", 60, 20),),
    ratios=(
        Ratio(
            name="a steer over HTTP adds",
            says="from the end of the call that was at work until the run has heard it",
            over="steer.p50_ms",
            gate="<=",
            limit=30,
            unit=" ms",
        ),
    ),
    rounds=3,
)

GATEWAY_WORKLOADS: Final = (HTTP, STEER)
