"""What is compared with another tool: each check does the thing for real and says what it has seen.

Every check runs in a process of its own, in an empty folder: `python -m bench.head_checks NAME` prints what it has seen
as JSON. Commands that must not run, or must run once, append a line to a file, and the lines are counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final

from bench.agents import reads_slow, reads_trivial
from bench.externals import external_calls, external_workers
from bench.rounds import best_of
from laneway import (
    Agent,
    AsyncAgent,
    AsyncSession,
    LaneConfig,
    Lanes,
    LanewayError,
    SessionOptions,
    SessionQueueConfig,
    SqliteSessionStore,
    tool,
)
from laneway.models import ScriptedModel, call, say
from laneway.options import LaneHandlerConfig, PermissionPolicy

ROOT: Final = Path(__file__).resolve().parent.parent
ANYTHING: Final = PermissionPolicy(allow=("*",))
RUNS: Final = "runs.log"
COMMAND: Final = f"echo run >> {RUNS}"
SCRIPTED: Final = 'default_model = "scripted"\n'

Seen = tuple[str, bool]
"""What was seen, in words, and whether that is what we promise."""
Check = Callable[[Path], Coroutine[Any, Any, Seen]]


def runs(folder: Path) -> int:
    """How often the command was run in this folder."""
    log = folder / RUNS
    return len(log.read_text(encoding="utf-8").splitlines()) if log.exists() else 0


def scripted(command: str = COMMAND) -> ScriptedModel:
    """A model that runs one command and is done."""
    return ScriptedModel([[call("bash", command=command)], [say("done")]])


def external(timeout_ms: int = 60_000) -> SessionQueueConfig:
    """What the documents of the peer recommend, with `execute` for others to run."""
    return SessionQueueConfig().with_lane_features().set_lane_handler("execute", "external", timeout_ms)


async def pending(session: AsyncSession) -> list[Any]:
    """Wait until tasks are out; what is out then."""
    await session.ready()
    events = session.subscribe()
    async with asyncio.timeout(30):
        while not (tasks := await session.pending_external_tasks()):
            await anext(events)
    events.close()
    return list(tasks)


# ---- is it there, and is it quick ----


async def queue_present(folder: Path) -> Seen:
    """Make a session in every way there is, and ask it for its queue."""

    def made_without_a_loop() -> list[bool]:
        with Agent.create(SCRIPTED) as agent:
            by_keyword = agent.session(folder, queue_config=SessionQueueConfig()).has_queue()
            by_options = agent.session(folder, SessionOptions(queue_config=SessionQueueConfig())).has_queue()
        with Agent.create(SCRIPTED + "queue { enable_metrics = true }\n") as agent:
            return [by_keyword, by_options, agent.session(folder).has_queue()]

    found = await asyncio.to_thread(made_without_a_loop)
    async with AsyncAgent.create(SCRIPTED) as agent:
        found.append((await agent.session(folder, queue_config=SessionQueueConfig()).ready()).has_queue())
        try:
            await agent.session(folder).set_lane_handler("execute", mode="external")
            refused = False
        except LanewayError:
            refused = True
    said = "an exception" if refused else "nothing"
    return f"{sum(found)} of {len(found)} ways to make one; {said} without one", all(found) and refused


async def slow_reads(_folder: Path) -> Seen:
    """Four reads of 100 ms in one answer."""
    took = (await reads_slow(4))["ms"]
    return f"{took:.0f} ms", took <= 115


async def quick_reads(_folder: Path) -> Seen:
    """Twenty reads that do nothing in one answer."""
    took = (await reads_trivial(20))["ms"]
    return f"{took:.1f} ms", took <= 10


async def external_rate(_folder: Path) -> Seen:
    """Tasks of one session, completed at once: by the time that this process had a core, and by the wall clock."""
    said, good = [], True
    for name, measure in (("polled", external_calls), ("by workers", external_workers)):
        best = best_of([await measure(1_920) for _ in range(3)])
        own, wall = best["tasks_per_second"], best["tasks_per_second_by_wall"]
        said.append(f"{own:,.0f} {name} ({wall:,.0f} by the wall clock)")
        good = good and own >= 2_000
    return ", ".join(said), good


async def in_flight(folder: Path) -> Seen:
    """Count what is out while nobody answers, in lanes of several widths."""
    widths, found = (1, 2, 7, 16), []
    for width in widths:
        calls = [call("bash", command=COMMAND) for _ in range(3 * width)]
        handler = LaneHandlerConfig("external", ordered=False)
        config = SessionQueueConfig(execute_max_concurrency=width, lane_handlers={"execute": handler})
        async with AsyncAgent(ScriptedModel([calls, [say("done")]]), permission_policy=ANYTHING) as agent:
            session = agent.session(folder, queue_config=config)
            sent = asyncio.ensure_future(session.send("go"))
            await pending(session)
            await asyncio.sleep(0.05)
            found.append(len(await session.pending_external_tasks()))
            await session.cancel()
            await asyncio.gather(sent, return_exceptions=True)
    good = found == list(widths) and runs(folder) == 0
    return f"{', '.join(map(str, found))} in lanes {', '.join(map(str, widths))} wide", good


# ---- what must not run, or run once ----


async def worker_says_no(folder: Path) -> Seen:
    """A worker answers `success: false`; nobody answers; what runs here?"""
    offered = 0
    async with AsyncAgent(scripted(), permission_policy=ANYTHING) as agent:
        session = agent.session(folder, queue_config=external())
        events = []
        async for event in session.stream("go"):
            events.append(event)
            if event.event_type == "external_task_pending":
                offered += 1
                for task in await session.pending_external_tasks():
                    await session.complete_external_task(task["task_id"], {"success": False, "error": "refused"})
        told = [event.tool_output for event in events if event.event_type == "tool_end"]
    async with AsyncAgent(scripted(), permission_policy=ANYTHING) as agent:
        silent = await agent.session(folder, queue_config=external(timeout_ms=200)).send("go")
    await asyncio.sleep(1)
    good = runs(folder) == 0 and offered == 1 and "refused" in told[0] and silent.text == "done"
    return f"offered {_times(offered)}, runs here {runs(folder)} times; nobody answers: the same", good


async def timeout(folder: Path) -> Seen:
    """A command of one second in a lane whose calls may take 0.3."""
    config = SessionQueueConfig().with_lane_features().set_timeout(300)
    async with AsyncAgent(scripted(f"{COMMAND}; sleep 1"), permission_policy=ANYTHING) as agent:
        session = await agent.session(folder, queue_config=config).ready()
        began = time.perf_counter()
        await session.send("go")
        took = time.perf_counter() - began
        await asyncio.sleep(2)
    return f"{_times(runs(folder))}, the turn took {took:.1f} s", runs(folder) == 1 and took < 1


async def cancel(folder: Path) -> Seen:
    """Cancel a run whose task is out: how long until everybody knows, and does it run afterwards?"""
    took = []
    for _ in range(5):
        async with AsyncAgent(scripted(), permission_policy=ANYTHING) as agent:
            session = agent.session(folder, queue_config=external(timeout_ms=1_500))
            sent = asyncio.ensure_future(session.send("go"))
            [task] = await pending(session)
            began = time.perf_counter()
            await session.cancel()
            await asyncio.wait([sent])
            took.append(time.perf_counter() - began)
            assert isinstance(sent.exception(), LanewayError)
            if await session.pending_external_tasks():
                return f"{task['task_id']} is still out", False
    await asyncio.sleep(2)  # longer than the task had
    worst = max(took) * 1e3
    return f"{worst:.0f} ms (the slowest of 5), runs {runs(folder)} times", worst < 50 and runs(folder) == 0


async def kill(folder: Path) -> Seen:
    """Kill a process whose task is out, with SIGKILL; start another one."""
    waiting = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.head_checks", "--wait", str(folder), cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert waiting.stdout is not None
    async with asyncio.timeout(60):
        task_id = (await waiting.stdout.readline()).decode().strip()
        waiting.send_signal(signal.SIGKILL)
        await waiting.wait()
    async with _keeping(folder, ScriptedModel([[say("done")]])) as agent:
        session = await agent.session(folder, session_id="s1", queue_config=external()).ready()
        tasks = [task["task_id"] for task in await pending(session)]
        answer: dict[str, Any] = {"success": True, "result": {"output": "from afar", "exit_code": 0}}
        accepted = [await session.complete_external_task(task_id, answer) for _ in range(2)]
        async with asyncio.timeout(30):
            await session.wait_idle()
        said = [str(each) for each in await session.history()]
    kept = tasks == [task_id]
    once = sum("from afar" in line for line in said) == 1 and "done" in said[-1]
    good = kept and accepted == [True, True] and once and runs(folder) == 0
    return ("the task is there, its result counts once, the run ends" if good else f"{tasks}, {accepted}, {said}"), good


def _keeping(folder: Path, model: ScriptedModel) -> AsyncAgent:
    return AsyncAgent(model, permission_policy=ANYTHING, session_store=SqliteSessionStore(folder / "sessions.db"))


async def wait_with_task(folder: Path) -> None:
    """The process that is killed: says the id of its task, and waits."""
    async with _keeping(folder, scripted()) as agent:
        session = agent.session(folder, session_id="s1", queue_config=external())
        sent = asyncio.ensure_future(session.send("go"))
        [task] = await pending(session)
        print(task["task_id"], flush=True)
        await sent


# ---- the rest ----

HIGH_MS: Final = 20
AGEING_MS: Final = 500


async def low_lane(folder: Path) -> Seen:
    """Submit to a low lane while a high one is full: with slots of its own, and under one cap for both."""

    async def nap() -> None:
        await asyncio.sleep(HIGH_MS / 1000)

    async with AsyncAgent.create(SCRIPTED) as agent:
        session = await agent.session(folder, queue_config=SessionQueueConfig()).ready()
        busy = asyncio.ensure_future(session.submit_batch("query", [nap] * 400))
        own = []
        for _ in range(20):
            await asyncio.sleep(0.02)
            asked = time.perf_counter()
            own.append(await session.submit("execute", time.perf_counter) - asked)
        assert not busy.done()
        busy.cancel()
        await asyncio.gather(busy, return_exceptions=True)
    widths = {
        "query": LaneConfig(concurrency=4, priority=1),
        "execute": LaneConfig(concurrency=2, priority=2, ageing_ms=AGEING_MS),
    }
    async with Lanes(widths, max_concurrent=4) as lanes:
        jobs = [lanes.submit("query", nap) for _ in range(800)]
        await asyncio.sleep(0.05)
        asked = time.perf_counter()
        shared = await lanes.run("execute", time.perf_counter) - asked
        still = sum(not job.done() for job in jobs)
        lanes.cancel_waiting()
        await asyncio.gather(*jobs, return_exceptions=True)
    limit = (AGEING_MS + 2 * HIGH_MS) / 1000 + 0.1  # and what a busy machine takes
    good = max(own) < 0.1 and shared <= limit and still > 0
    return (
        f"{max(own) * 1e3:.0f} ms at most; {shared * 1e3:.0f} ms where both share one cap and the high lane is full",
        good,
    )


async def idle_cpu(folder: Path) -> Seen:
    """Two hundred sessions with queues that have worked and were closed; then look at the CPU for three seconds."""

    @tool(lane="query", effect="read")
    def look(name: str) -> str:
        """Look something up."""
        return name

    def work() -> float:
        with Agent.create(SCRIPTED, tools=[look]) as agent:
            for _ in range(200):
                session = agent.session(folder, queue_config=SessionQueueConfig().with_lane_features())
                session.send("hello")
                session.close()
                del session
            time.sleep(0.5)
            before = time.process_time()
            time.sleep(3)
            return (time.process_time() - before) / 3

    share = await asyncio.to_thread(work)
    return f"{share * 100:.2f} % of a core", share < 0.002


async def config_block(folder: Path) -> Seen:
    """The whole `queue` block of the peer's documents, in a file."""
    from tests.seed_config import SEED_000

    path = folder / "agent.hcl"
    path.write_text(SCRIPTED + SEED_000, encoding="utf-8")
    async with AsyncAgent.create(path) as agent:
        session = await agent.session(folder).ready()
        found = session.options.queue_config
        assert found is not None
        widths = [lane["max_concurrency"] for lane in session.queue_stats()["lanes"].values()]
        events = [event.event_type async for event in session.stream("hello")]
    assert found.retry_policy is not None
    assert found.rate_limit is not None
    assert found.priority_boost is not None
    assert found.storage_path is not None
    honoured = [
        widths == [2, 10, 5, 1],
        bool(found.enable_metrics) and bool(found.enable_dlq) and bool(found.enable_alerts),
        Path(found.storage_path).name == "queue_data",
        found.default_timeout_ms == 60_000,
        (found.retry_policy.strategy, found.retry_policy.max_retries) == ("exponential", 3),
        found.retry_policy.initial_delay_ms == 100,
        (found.rate_limit.limit_type, found.rate_limit.max_operations) == ("per_second", 100),
        (found.priority_boost.strategy, found.priority_boost.deadline_ms) == ("standard", 300_000),
        found.pressure_threshold == 50,
        found.lane_timeouts == {"query": 30_000, "execute": 120_000},
        events[-1] == "end",
    ]
    return f"every setting is in force ({sum(honoured)} of {len(honoured)} checks)", all(honoured)


def _times(number: int) -> str:
    return {1: "once", 2: "twice"}.get(number, f"{number} times")


CHECKS: Final[dict[str, Check]] = {
    check.__name__: check
    for check in (
        queue_present,
        slow_reads,
        quick_reads,
        external_rate,
        in_flight,
        worker_says_no,
        timeout,
        cancel,
        kill,
        low_lane,
        idle_cpu,
        config_block,
    )
}


def main(arguments: list[str]) -> int:
    """One check, or the process that is killed."""
    if arguments[0] == "--wait":
        asyncio.run(wait_with_task(Path(arguments[1])))
        return 0
    with tempfile.TemporaryDirectory(prefix="head-") as folder:
        os.environ["LANEWAY_REAL_MODELS"] = "0"
        with contextlib.chdir(folder):  # what is written beside the process stays here, too
            said, good = asyncio.run(CHECKS[arguments[0]](Path(folder)))
    print(json.dumps({"said": said, "good": good}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
