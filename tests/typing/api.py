"""How the public surface is typed: checked by mypy, never run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import assert_type

from laneway import (
    AbortSignal,
    DeadLetter,
    DrainReport,
    Explanation,
    Job,
    JobId,
    JobInfo,
    JobState,
    LaneConfig,
    LaneMetrics,
    Lanes,
    LaneScope,
    Priority,
    RetryPolicy,
    Slot,
    Snapshot,
    Stats,
    Subscription,
)
from laneway.events import Event


async def fetch(url: str, retries: int) -> bytes:
    return url.encode() * retries


def count(text: str) -> int:
    return len(text)


def later(text: str) -> Awaitable[int]:
    raise NotImplementedError(text)


async def jobs(lanes: Lanes) -> None:
    assert_type(lanes.submit("query", fetch, "url", 3), Job[bytes])
    assert_type(await lanes.submit("query", fetch, "url", 3), bytes)
    assert_type(lanes.submit("query", count, "text"), Job[int])
    assert_type(lanes.submit("query", later, "text"), Job[int])
    assert_type(lanes.submit(["session:a", "query"], partial(fetch, "url"), 3), Job[bytes])
    assert_type(await lanes.run("query", fetch, "url", 3), bytes)
    assert_type(await lanes.run("query", count, "text", timeout_ms=5), int)
    job = lanes.submit(
        "query",
        fetch,
        "url",
        3,
        priority=Priority.BACKGROUND,
        timeout_ms=1,
        wait_timeout_ms=1,
        deadline_ms=1,
        delay_ms=0,
        retry=RetryPolicy.exponential(3),
        effect="read",
        tenant="ada",
        weight=0.5,
        key="k",
        label="mine",
        signal=AbortSignal(),
    )
    assert_type(job.id, JobId)
    assert_type(job.state, JobState)
    assert_type(job.attempt, int)
    assert_type(job.done(), bool)
    assert_type(job.cancel("reason"), bool)
    assert_type(job.explain(), Explanation)


async def wrong_arguments(lanes: Lanes) -> None:
    lanes.submit("query", fetch, 5, 3)  # type: ignore[arg-type, call-arg]
    lanes.submit("query", fetch, "url")  # type: ignore[arg-type]
    lanes.submit("query", fetch, "url", 3, nonsense=1)  # type: ignore[call-overload]


async def slots(lanes: Lanes) -> None:
    assert_type(lanes.slot("query"), Slot)
    async with lanes.slot("query", label="deploy", wait_timeout_ms=5) as slot:
        assert_type(slot, Slot)
        assert_type(slot.id, JobId | None)
        slot.release()


async def questions(lanes: Lanes) -> None:
    assert_type(lanes.stats(), Stats)
    assert_type(lanes.jobs("query", JobState.RUNNING), list[JobInfo])
    assert_type(lanes.metrics(), dict[str, LaneMetrics])
    assert_type(lanes.status_line(), str)
    assert_type(lanes.explain("job-1"), Explanation)
    assert_type(lanes.cancel("job-1"), bool)
    assert_type(lanes.cancel_waiting(), int)
    assert_type(lanes.dead_letters.list(), list[DeadLetter])
    assert_type(await lanes.drain(5, purpose="restart"), DrainReport)
    assert_type(lanes.scope("s1"), LaneScope)
    subscription = lanes.subscribe("query")
    assert_type(subscription, Subscription)
    async for event in subscription:
        assert_type(event, Event)

    def told(snapshot: Snapshot) -> None:
        assert_type(snapshot.running, int)

    assert_type(lanes.on_change(told), Callable[[], None])


async def opening() -> None:
    async with Lanes({"query": LaneConfig(concurrency=4), "execute": 2}, max_concurrent=8) as lanes:
        assert_type(lanes, Lanes)
    async with Lanes.for_tools() as tools:
        assert_type(tools, Lanes)
    assert_type(Lanes.limiter(3), Lanes)
