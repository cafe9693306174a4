"""A host that does not answer: how long a worker waits, what it says in the log, and what ends it."""

from __future__ import annotations

import asyncio
import logging
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from laneway.errors import (
    ConflictError,
    DrainingError,
    LanewayError,
    LeaseLostError,
    NotAuthenticatedError,
    RateLimitedError,
    TransportUnavailableError,
    UnknownLaneError,
)
from laneway.external import ExternalTaskResult, Lease
from laneway.worker.host_line import FIRST_DELAY_S, LAST_DELAY_S, Pauses, asked_pause_s, is_for_good
from tests.inbox_stage import staged
from tests.stage import passing
from tests.worker_stage import Shaky, bench


def later(ms: Any) -> TransportUnavailableError:
    return TransportUnavailableError("not now", retry_after_ms=ms)


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (NotAuthenticatedError("who are you"), True),
        (UnknownLaneError(lane="x"), True),
        (ConflictError("no"), True),
        (RateLimitedError("slower", retry_after_ms=10), False),
        (DrainingError(purpose="restart"), False),
        (TransportUnavailableError("nobody"), False),
        (OSError(), False),
    ],
)
def test_only_what_a_host_would_say_again_ends_a_worker(error: Exception, ends: bool) -> None:
    assert is_for_good(error) is ends


def test_pauses_grow_and_are_drawn_so_that_workers_do_not_come_at_once() -> None:
    for seed in range(20):
        pauses = Pauses(Random(seed))
        found = [pauses.next_s(OSError()) for _ in range(12)]
        longest = [min(FIRST_DELAY_S * 2**number, LAST_DELAY_S) for number in range(12)]
        assert all(most / 2 <= each <= most for each, most in zip(found, longest, strict=True))
    assert len({Pauses(Random(seed)).next_s(OSError()) for seed in range(20)}) == 20


def test_a_pause_that_the_host_asks_for_is_never_shortened() -> None:
    for seed in range(20):
        assert 2.0 <= Pauses(Random(seed)).next_s(later(2_000)) <= 2.5


@pytest.mark.parametrize(
    ("said", "pause_s"),
    [(1_500, 1.5), (0, 0), (-5, 0), (None, 0), ("9", 0), (True, 0), (10**12, 300), (float("nan"), 0)],
)
def test_a_pause_that_makes_no_sense_is_none(said: Any, pause_s: float) -> None:
    assert asked_pause_s(later(said)) == pause_s


class Full(Shaky):
    """A host that refuses claims, and says when to come back."""

    def __init__(self, inner: Any, error: LanewayError) -> None:
        super().__init__(inner)
        self.error: LanewayError | None = error

    async def claim(self, worker: str, *, limit: int = 1, **wanted: Any) -> list[Lease]:
        """Not now."""
        leases = await super().claim(worker, limit=limit, **{**wanted, "wait_ms": 0 if self.error else 20_000})
        if self.error is not None:
            raise self.error
        return leases


@staged
async def test_a_worker_that_is_told_to_slow_down_does_and_goes_on() -> None:
    async with bench() as on:
        on.line = Full(on.line, RateLimitedError("too many leases end unstarted", retry_after_ms=8_000))
        async with on.worker():
            await passing(60_000)
            pauses = [late - early for early, late in pairwise(on.line.asked_at)]
            assert len(pauses) >= 5
            assert all(8_000 <= each <= 10_001 for each in pauses)
            on.line.error = None
            on.gate.set()
            await on.put("t")
            assert (await on.end()).state == "completed"


@staged
async def test_stop_ends_a_long_pause() -> None:
    async with bench() as on:
        on.line = Full(on.line, RateLimitedError("slower", retry_after_ms=200_000))
        async with on.worker() as worker:
            await passing(10)
            await asyncio.wait_for(worker.stop(), 1)
            assert len(on.line.asked_at) == 1


@staged
async def test_that_nobody_answers_is_said_once_and_once_that_somebody_does() -> None:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.levelno >= logging.WARNING and "the host" in record.getMessage():
                lines.append(record.getMessage())

    keep = Keep()
    logging.getLogger("laneway").addHandler(keep)
    try:
        async with bench() as on, on.worker(concurrency={"execute": 1, "query": 1}):
            await on.put("t")
            await passing(10)
            on.line.deaf = {"claim", "heartbeat", "complete"}
            on.gate.set()
            await passing(15_000)
            assert ["does not answer" in each for each in lines] == [True]
            on.line.deaf = set()
            await passing(10_000)
            assert ["answers again, after" in each for each in lines] == [False, True]
            lines.clear()
    finally:
        logging.getLogger("laneway").removeHandler(keep)


class Small(Shaky):
    """A host that takes no large results."""

    async def complete(self, task_id: str, token: str, result: ExternalTaskResult) -> bool:
        """Only small ones."""
        if result.success:
            raise UnknownLaneError(lane="too large")
        return await super().complete(task_id, token, result)


@staged
async def test_a_result_that_the_host_will_not_take_is_told_as_a_failure() -> None:
    async with bench() as on:
        on.line = Small(on.line)
        async with on.worker() as worker:
            on.gate.set()
            await on.put("t", effect="write")
            assert "its result was refused" in ((await on.did()).error or "")
            await passing(1)
            assert worker.stats.failed == 1


class Lost(Shaky):
    """A host that has given every result to somebody else."""

    async def complete(self, task_id: str, token: str, result: ExternalTaskResult) -> bool:
        """No."""
        self.said.append(f"complete {task_id}")
        raise LeaseLostError("somebody else has it", task_id=task_id)


@staged
async def test_a_result_of_a_lost_lease_is_said_once() -> None:
    async with bench() as on:
        on.line = Lost(on.line)
        async with on.worker() as worker:
            on.gate.set()
            await on.put("t")
            await passing(500)
            assert (on.line.times("complete"), worker.stats.refused) == (1, 1)


@pytest.mark.parametrize("what", ["start", "heartbeat"])
def test_a_question_that_a_lease_depends_on_is_asked_again_before_the_lease_ends(what: str) -> None:
    @staged
    async def run() -> None:
        async with bench() as on, on.worker():
            on.line.silent = [what, what, what]  # three connections are dead, and nobody says so
            await on.put("t", effect="write", lease_ms=9_000)
            await passing(20_000)
            assert on.line.silent == []
            assert on.began == ["t"]
            on.gate.set()
            assert (await on.end()).state == "completed"
            assert (await on.end()).attempt == 1

    run()
    assert what


class Late(Shaky):
    """A transport with a short patience of its own."""

    async def heartbeat(self, *_args: Any, **_more: Any) -> bool:
        """Nobody has answered, it says."""
        self.said.append("heartbeat t")
        raise TimeoutError


@staged
async def test_a_transport_that_is_late_at_once_is_not_asked_all_the_time() -> None:
    async with bench() as on:
        on.line = Late(on.line)
        async with on.worker():
            await on.put("t", effect="write", lease_ms=9_000)
            await passing(8_000)
            assert 2 <= on.line.times("heartbeat") <= 3


class Revoked(Shaky):
    """A host that does not know the token any more, but leaves a claim that waits as it is."""

    async def heartbeat(self, *args: Any, **more: Any) -> bool:
        """No."""
        raise NotAuthenticatedError("this needs a token that counts")


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_worker_whose_token_counts_no_more_ends_with_what_it_does(
    concurrency: int, caplog: pytest.LogCaptureFixture
) -> None:
    @staged
    async def run() -> None:
        async with bench() as on:
            on.line = Revoked(on.line)
            worker = on.worker(concurrency=concurrency)
            running = asyncio.ensure_future(worker.run())
            await on.put("t", effect="write", lease_ms=3_000)
            await passing(500)
            assert on.began == ["t"]
            await passing(1_000)
            assert on.cancelled == ["t"]
            with pytest.raises(NotAuthenticatedError):
                await running

    run()
    assert "the host says no: this needs a token that counts" in caplog.text


@staged
async def test_a_host_that_comes_after_its_worker_does_not_answer_again() -> None:
    said: list[str] = []
    async with bench() as on:
        on.line.deaf = {"claim"}
        worker = on.worker()
        worker.watch(lambda news: said.append(news.text) if news.kind == "back" else None)
        async with worker:
            for _ in range(2):
                on.line.deaf = {"claim"}
                await passing(30_000)
                on.line.deaf = set()
                await passing(10_000)
    assert [each.startswith("the host answers, after") for each in said] == [True, False]
    assert said[1].startswith("the host answers again, after")
