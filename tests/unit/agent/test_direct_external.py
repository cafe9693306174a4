"""Calls of the host itself in lanes of somebody else: how long they may take, falling back, and big results."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from laneway.agent.session import AsyncSession
from laneway.dialogue import ToolOutput
from laneway.errors import JobTimeoutError
from laneway.external import ExternalTaskResult, Lease
from laneway.models import ScriptedModel, say
from laneway.options import LaneHandlerConfig, SessionQueueConfig
from tests.agent_stage import QUEUES, Bench, Watch, opened, results, sending, use
from tests.stage import now_ms, passing, simulated
from tests.unit.agent.test_externals import desk, outside, pending

TIMEOUT = 1_000
FALLS_BACK = {"execute": LaneHandlerConfig("external", TIMEOUT, fallback=True)}
STAYS_OUT = {"execute": LaneHandlerConfig("external", TIMEOUT)}
WAYS = ("tool", "submit")


def calling(session: AsyncSession, way: str, key: str = "a", **more: Any) -> asyncio.Task[str]:
    """A call of the host, in one of its two ways; its text."""

    async def call() -> str:
        if way == "submit":
            text: str = await session.submit("execute", {"tool": "act", "key": key}, **more)
            return text
        return (await session.tool("act", {"key": key})).text

    task = asyncio.get_running_loop().create_task(call(), name=f"{way} {key}")
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task


async def begun(session: AsyncSession) -> Lease:
    """A worker has taken the next task and has begun."""
    [lease] = await desk(session).claim("w", wait_ms=TIMEOUT)
    await desk(session).start(lease.task.task_id, lease.token)
    return lease


# ---- nobody takes it ----


@pytest.mark.parametrize("way", WAYS)
@simulated
async def test_a_call_that_nobody_takes_in_time_falls_back_on_this_process_once(way: str) -> None:
    async with outside(lane_handlers=FALLS_BACK) as (session, _, bench):
        made = calling(session, way)
        await passing(TIMEOUT - 10)
        assert bench.began == []
        assert await made == "result of a"
        assert bench.ended == ["a"]
        assert now_ms() >= TIMEOUT
        assert await session.pending_external_tasks() == []
        assert await desk(session).claim("late") == []


@pytest.mark.parametrize("way", WAYS)
@simulated
async def test_a_call_that_nobody_takes_in_time_and_that_may_not_fall_back_is_an_error_and_not_made(way: str) -> None:
    async with outside(lane_handlers=STAYS_OUT) as (session, _, bench):
        said = await calling(session, way)
        assert said == f"[Timed out: nobody completed it within {TIMEOUT} ms]"
        assert (bench.began, now_ms()) == ([], TIMEOUT)


@simulated
async def test_a_call_that_timed_out_is_an_error_for_the_host() -> None:
    async with outside(lane_handlers=STAYS_OUT) as (session, _, _bench):
        output = await session.tool("act", {"key": "a"})
        assert output.is_error
        assert output.exit_code is None


# ---- somebody has it ----


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("who", ["a worker that has begun", "somebody who polls"])
@simulated
async def test_a_call_that_somebody_may_have_begun_never_falls_back(way: str, who: str) -> None:
    async with outside(lane_handlers=FALLS_BACK) as (session, _, bench):
        made = calling(session, way)
        await passing()
        if who == "somebody who polls":
            assert len(await session.pending_external_tasks()) == 1
        else:
            lease = await begun(session)
            while not made.done():
                await passing(LaneHandlerConfig("external").lease_ms // 3)
                await desk(session).heartbeat(lease.task.task_id, lease.token)
        assert (await made).startswith("[Timed out: ")
        assert bench.began == []


@pytest.mark.parametrize("way", WAYS)
@simulated
async def test_a_call_whose_worker_gave_it_back_falls_back(way: str) -> None:
    async with outside(lane_handlers=FALLS_BACK) as (session, _, bench):
        made = calling(session, way)
        [lease] = await desk(session).claim("w", wait_ms=TIMEOUT)
        await desk(session).release(lease.task.task_id, lease.token)
        assert await made == "result of a"
        assert bench.ended == ["a"]


@pytest.mark.parametrize("way", WAYS)
@simulated
async def test_a_result_in_time_is_the_result_and_nothing_runs_here(way: str) -> None:
    async with outside(lane_handlers=FALLS_BACK) as (session, _, bench):
        made = calling(session, way)
        lease = await begun(session)
        await passing(TIMEOUT - 100)
        assert await desk(session).complete(lease.task.task_id, lease.token, ExternalTaskResult(result="there"))
        assert await made == "there"
        await passing(10 * TIMEOUT)
        assert bench.began == []


@pytest.mark.parametrize("way", WAYS)
@simulated
async def test_a_worker_that_says_no_is_an_error_and_nothing_falls_back(way: str) -> None:
    async with outside(lane_handlers=FALLS_BACK) as (session, _, bench):
        made = calling(session, way)
        lease = await begun(session)
        no = ExternalTaskResult(success=False, error="the disk is full")
        await desk(session).complete(lease.task.task_id, lease.token, no)
        assert await made == "the disk is full"
        await passing(10 * TIMEOUT)
        assert bench.began == []


# ---- whose time counts ----


@pytest.mark.parametrize("way", WAYS)
@simulated
async def test_the_time_of_the_task_counts_and_not_that_of_the_tool_or_its_lane(way: str) -> None:
    handlers = {"execute": LaneHandlerConfig("external", 60_000)}
    queue = SessionQueueConfig(lane_handlers=handlers, default_timeout_ms=50, lane_timeouts={"execute": 50})
    bench = Bench()
    tool = bench.tool("act", effect="write", timeout_ms=50)
    async with opened(ScriptedModel(), [tool], queue=queue, tool_timeout_ms=50) as session:
        made = calling(session, way)
        await passing(30_000)
        assert not made.done()
        [task] = await session.pending_external_tasks()
        assert await session.complete_external_task(task["task_id"], "there")
        assert await made == "there"
        assert bench.began == []


@simulated
async def test_a_time_that_the_host_gives_ends_its_call_and_withdraws_its_task() -> None:
    async with outside(lane_handlers=FALLS_BACK) as (session, _, bench):
        made = calling(session, "submit", timeout_ms=100)
        lease = await begun(session)
        with pytest.raises(JobTimeoutError):
            await made
        assert now_ms() < TIMEOUT
        await passing(10 * TIMEOUT)
        assert bench.began == [], "whoever gives up does not want it made here either"
        assert not await desk(session).heartbeat(lease.task.task_id, lease.token)
        assert desk(session).tasks() == []


@pytest.mark.parametrize("way", WAYS)
@simulated
async def test_a_caller_who_goes_away_takes_the_task_along(way: str) -> None:
    async with outside(lane_handlers=FALLS_BACK) as (session, _, bench):
        made = calling(session, way)
        await pending(session)
        made.cancel()
        with pytest.raises(asyncio.CancelledError):
            await made
        await passing()
        assert desk(session).tasks() == []
        await passing(10 * TIMEOUT)
        assert bench.began == []


@pytest.mark.parametrize("queue", QUEUES)
@simulated
async def test_a_call_here_whose_caller_goes_away_is_ended_with_and_without_a_queue(queue: bool) -> None:
    bench = Bench("a")
    async with opened(ScriptedModel(), bench, queue=queue) as session:
        made = calling(session, "tool")
        await bench.begun("a").wait()
        made.cancel()
        with pytest.raises(asyncio.CancelledError):
            await made
        await passing()
        assert (bench.cancelled, bench.running) == (["a"], set())


# ---- big results ----

BIG = "x" * 200_000


def is_cut(text: str) -> bool:
    """Whether only a part of a long text is there, and it says so."""
    return len(text) <= 1_000 and text.startswith("xxx") and "characters" in text


@pytest.mark.parametrize(
    "result",
    [
        ExternalTaskResult(result=BIG),
        ExternalTaskResult(result={"output": BIG}),
        ExternalTaskResult(result={"stdout": "xxx", "stderr": BIG}),
        ExternalTaskResult(success=False, error=BIG),
        ExternalTaskResult(success=False, result=BIG, error=BIG),
    ],
    ids=["text", "output", "stderr", "error", "both"],
)
def test_a_big_result_is_cut_for_the_model_and_for_the_host_and_kept_whole_beside(
    result: ExternalTaskResult, tmp_path: Path
) -> None:
    kept: list[str] = []

    async def main() -> None:
        model, queue = ScriptedModel([use("act", "a"), [say("done")]]), SessionQueueConfig(lane_handlers=STAYS_OUT)
        options: dict[str, Any] = {"output_max": 1_000, "artifacts_dir": str(tmp_path)}
        async with opened(model, Bench(), queue=queue, **options) as session:
            sent = sending(session, "go")
            [task] = await pending(session)
            assert await session.complete_external_task(task["task_id"], result)
            await sent
            [told] = results(model.requests[-1])
            assert is_cut(told.output)
            assert told.artifact is not None
            kept.append(told.artifact)
            made = asyncio.ensure_future(session.tool("act", {"key": "b"}))
            [task] = await pending(session)
            assert await session.complete_external_task(task["task_id"], result)
            output: ToolOutput = await made
            assert is_cut(output.text)
            assert output.is_error is not result.success

    simulated(main)()
    assert kept
    for name in kept:
        [whole] = tmp_path.rglob(name)
        assert BIG in whole.read_text()


@simulated
async def test_what_is_told_of_a_big_error_is_short() -> None:
    async with outside(use("act", "a"), use("act", "b")) as (session, _, _bench):
        watch = Watch(session.subscribe())
        sent = sending(session, "go")
        for said in (BIG, "no"):
            [task] = await pending(session)
            assert await session.complete_external_task(task["task_id"], success=False, error=said)
            await passing()
        await sent
        big, short = watch.of("external_task_completed")
        assert big.error == BIG[:2_000]
        assert (short.error, short.state, short.success) == ("no", "failed", False)


@simulated
async def test_a_failure_without_a_word_is_told_without_one() -> None:
    async with outside(use("act", "a")) as (session, model, _):
        watch = Watch(session.subscribe())
        sent = sending(session, "go")
        [task] = await pending(session)
        assert await session.complete_external_task(task["task_id"], success=False)
        await sent
        [end] = watch.of("external_task_completed")
        assert (end.success, end.error) == (False, None)
        assert [each.output for each in results(model.requests[-1])] == ["the worker says that it failed"]
