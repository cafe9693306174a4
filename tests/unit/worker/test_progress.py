"""Progress: what a handler says is heard with the next sign of life, soon, seldom, and only the latest word."""

from __future__ import annotations

import asyncio
import threading
from itertools import pairwise
from typing import Any

from laneway.external import ExternalTask, Progress
from laneway.testing import fake_host
from laneway.worker import Worker, WorkerNews
from tests.inbox_stage import staged
from tests.stage import now_ms, passing
from tests.worker_stage import LEASE, Bench, Shaky, bench, real_bench


def telling(on: Bench, *words: tuple[int, str]) -> Worker:
    """A worker whose handler says words, each so many milliseconds after the last one, and holds then."""

    async def tell(task: ExternalTask) -> str:
        for pause, word in words:
            await passing(pause)
            task.progress_is(word)
        return await on.hold(task)

    return on.worker(handlers={"bash": tell})


@staged
async def test_the_first_word_brings_a_sign_of_life_forward() -> None:
    async with bench() as on, telling(on, (10, "half")):
        await on.put("t", lease_ms=30_000)
        await passing(300)
        assert [(at <= 260, word) for at, word in on.line.news] == [(True, Progress("half"))]
        assert (await on.desk.find("t")) is not None
        [task] = on.desk.tasks()
        assert task.progress == {"text": "half", "percent": None}


@staged
async def test_many_words_are_sent_once_a_second_and_only_the_last_of_them() -> None:
    async with bench() as on, telling(on, *((10, f"step {number}") for number in range(500))):
        await on.put("t", lease_ms=30_000)
        await passing(7_000)
        times = [at for at, _ in on.line.news]
        assert all(later - one >= 1_000 for one, later in pairwise(times))
        assert 5 <= len(times) <= 7
        assert on.line.news[-1][1] == Progress("step 499"), "the last word is never lost"
        assert on.line.times("heartbeat") == len(times), "without news, this lease needs a sign in ten seconds"


@staged
async def test_what_is_over_in_a_moment_needs_no_sign_of_life() -> None:
    async def tell(task: ExternalTask) -> str:
        task.progress_is("begun")
        await passing(200)
        task.progress_is("nearly")
        return "done"

    async with bench() as on, on.worker(handlers={"bash": tell}):
        await on.put("t", lease_ms=30_000)
        assert (await on.did()).result == "done"
        assert on.line.times("heartbeat") == 0


@staged
async def test_a_worker_without_news_beats_as_before() -> None:
    async with bench() as on, on.worker():
        await on.put("t")
        await passing(10 * LEASE)
        assert on.line.times("heartbeat") >= 28
        assert on.line.news == []


@staged
async def test_a_word_that_nobody_heard_is_said_again_unless_there_is_a_newer_one() -> None:
    async with bench() as on, telling(on, (10, "one"), (10, "two")):
        on.line.deaf = {"heartbeat"}
        await on.put("t", lease_ms=30_000)
        await passing(500)
        on.line.deaf = set()
        await passing(2_000)
        assert [word for _, word in on.line.news] == [Progress("two")]


@staged
async def test_a_word_after_the_end_is_nobodys() -> None:
    kept: list[ExternalTask] = []

    async def keep(task: ExternalTask) -> str:
        kept.append(task)
        return "ok"

    async with bench() as on, on.worker(handlers={"bash": keep}):
        await on.put("t", lease_ms=30_000)
        await on.end()
        await passing(1)
        kept[0].progress_is("late")
        await passing(5_000)
        assert (on.line.news, on.line.times("heartbeat")) == ([], 0)


class Old(Shaky):
    """A transport that was written before there was progress."""

    async def heartbeat(self, task_id: str, token: str) -> bool:  # type: ignore[override] # that is the point
        """A sign of life."""
        return await super().heartbeat(task_id, token)


@staged
async def test_a_transport_that_knows_no_progress_gets_none() -> None:
    async with bench() as on:
        line: Any = Old(on.line)

        async def tell(task: ExternalTask) -> str:
            task.progress_is("half", 50)
            return await on.hold(task)

        async with Worker(line, handlers={"bash": tell}, host=fake_host()):
            await on.put("t")
            await passing(3 * LEASE)
            assert line.times("heartbeat") >= 3
            assert on.cancelled == []


async def test_a_handler_on_a_thread_may_say_how_far_it_is() -> None:
    heard = threading.Event()

    def work(task: ExternalTask) -> str:
        for percent in range(101):
            task.progress_is(f"{percent} of 100", percent)
        assert heard.wait(60)
        return threading.current_thread().name[:14]

    news: list[WorkerNews] = []

    def listen(each: WorkerNews) -> None:
        news.append(each)
        if each.kind == "progress" and each.progress == Progress("100 of 100", 100):
            heard.set()

    async with real_bench() as on:
        worker = Worker(on.line, handlers={"bash": work})
        worker.watch(listen)
        async with worker:
            await on.put("t", lease_ms=30_000)
            assert (await on.did()).result == "laneway-worker"
            await asyncio.sleep(0)
    assert [each.kind for each in news if each.kind != "progress"] == ["ready", "began", "ended"]
    assert 1 <= sum(each.kind == "progress" for each in news) <= 101


@staged
async def test_who_watches_and_raises_disturbs_nobody() -> None:
    async with bench() as on:
        worker = on.worker()
        worker.watch(lambda news: 1 // 0)  # type: ignore[arg-type] # it raises
        async with worker:
            on.gate.set()
            await on.put("t")
            assert (await on.end()).state == "completed"
            assert now_ms() < 1_000
