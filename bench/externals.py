"""What is measured of calls that others make or stop: external tasks, gates, sub-agents."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.agents import Plain, look
from bench.durable import scratch
from bench.measures import Measure, Stopwatch
from bench.workloads import Numbers
from laneway import Answer, AsyncAgent, AsyncSession, ModelRequest, SessionQueueConfig, SqliteSessionStore, tool
from laneway.dialogue import Chunk, Prompt, TextChunk, ToolCall, compact_json
from laneway.external import ExternalTask, ExternalTaskResult
from laneway.options import PermissionPolicy
from laneway.transports import LocalTransport
from laneway.worker import Worker

ANSWER: Final = 64
"""Calls in one answer: as many as a session takes."""
WIDTH: Final = 16
ANYTHING: Final = PermissionPolicy(allow=("*",))


@tool(lane="execute", effect="write")
async def change(name: str) -> str:
    """Change something; nobody runs it here."""
    raise AssertionError(f"{name} ran here")


# ---- external tasks ----


class InFlight:
    """How many tasks are out at once."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0
        self.done = 0

    @contextlib.contextmanager
    def one(self) -> Any:
        """While somebody works at a task."""
        self.now += 1
        self.peak = max(self.peak, self.now)
        try:
            yield
        finally:
            self.now -= 1
            self.done += 1


async def external_calls(tasks: int) -> Numbers:
    """Reads of one session, made by whoever asks for them: polled at every event, completed side by side."""
    async with _session("query") as session:
        return await _measured(session, tasks, _serve_by_polling)


async def external_writes(tasks: int) -> Numbers:
    """The same with writes: the intent of each is kept before it goes out, and its end before the model hears of it."""
    async with _session("execute") as session:
        return await _measured(session, tasks, _serve_by_polling)


async def external_writes_on_disk(tasks: int) -> Numbers:
    """The same with everything on disk."""
    with scratch() as folder:
        async with _session("execute", session_store=SqliteSessionStore(folder / "sessions.db")) as session:
            return await _measured(session, tasks, _serve_by_polling)


async def external_workers(tasks: int) -> Numbers:
    """Reads of one session, made by as many workers as its lane is wide: claim, start and complete, as frames."""
    async with _session("query") as session:
        return await _measured(session, tasks, _serve_by_workers)


async def external_worker(tasks: int) -> Numbers:
    """The same by one `Worker` that does as many tasks at once."""
    async with _session("query") as session:
        return await _measured(session, tasks, _serve_by_worker)


@contextlib.asynccontextmanager
async def _session(lane: str, **options: Any) -> AsyncIterator[AsyncSession]:
    name = "look" if lane == "query" else "change"
    agent = AsyncAgent(
        model=Plain(ANSWER, name), tools=[look, change], builtin_tools=False, permission_policy=ANYTHING, **options
    )
    config = SessionQueueConfig(query_max_concurrency=WIDTH, execute_max_concurrency=WIDTH)
    config.set_lane_handler(lane, "external", ordered=False)
    async with agent:
        yield await agent.session(".", queue_config=config).ready()


async def _measured(session: AsyncSession, tasks: int, serve: Any) -> Numbers:
    """Turns of 64 tasks, until there were enough; the first one warms up. What counts is the time of a whole turn."""
    turns = max(1, tasks // ANSWER)
    seen = InFlight()
    async with serve(session, seen):
        await session.send("warm up")
        before = seen.done
        watch = Stopwatch()
        for _ in range(turns):
            result = await session.send("go")
            assert result.tool_calls_count == ANSWER
        seconds, wall = watch.seconds(), watch.wall()
    done = seen.done - before
    assert done == turns * ANSWER, done
    assert seen.peak <= WIDTH, seen.peak
    return {
        "tasks_per_second": done / seconds,  # without the time in which others had the cores
        "tasks_per_second_by_wall": done / wall,
        "in_flight": float(seen.peak),
        "in_flight_of_lane": seen.peak / WIDTH,
    }


@contextlib.asynccontextmanager
async def _serve_by_polling(session: AsyncSession, seen: InFlight) -> AsyncIterator[None]:
    """What a program does that has the session in its hands."""
    mine: set[str] = set()

    async def complete(task_id: str) -> None:
        with seen.one():
            await asyncio.sleep(0)  # others are asked meanwhile
            outcome = {"success": True, "result": {"output": "done", "exit_code": 0}}
            assert await session.complete_external_task(task_id, outcome)
        mine.discard(task_id)

    async def serve() -> None:
        async with asyncio.TaskGroup() as group:
            async for event in session.subscribe():
                if event.event_type != "external_task_pending" or event.task_id in mine:
                    continue
                for task in await session.pending_external_tasks():
                    task_id = task["task_id"]
                    if task_id not in mine:
                        mine.add(task_id)
                        group.create_task(complete(task_id))

    serving = asyncio.ensure_future(serve())
    try:
        yield
    finally:
        await _end(serving)


@contextlib.asynccontextmanager
async def _serve_by_workers(session: AsyncSession, seen: InFlight) -> AsyncIterator[None]:
    """What workers do that reach the desk through a transport."""

    async def work(name: str) -> None:
        transport = LocalTransport(session.host.desk)
        while True:
            for lease in await transport.claim(name, lanes=["query"], wait_ms=60_000):
                task_id = lease.task["task_id"]
                with seen.one():
                    await transport.start(task_id, lease.token)
                    result = ExternalTaskResult(result={"output": "done", "exit_code": 0})
                    assert await transport.complete(task_id, lease.token, result)

    workers = [asyncio.ensure_future(work(f"worker-{number}")) for number in range(WIDTH)]
    try:
        yield
    finally:
        for worker in workers:
            await _end(worker)


@contextlib.asynccontextmanager
async def _serve_by_worker(session: AsyncSession, seen: InFlight) -> AsyncIterator[None]:
    """What a program does that leaves everything to a `Worker`."""

    async def handle(_task: ExternalTask) -> dict[str, Any]:
        with seen.one():
            await asyncio.sleep(0)
            return {"output": "done", "exit_code": 0}

    worker = Worker(LocalTransport(session.host.desk), handlers={"look": handle}, concurrency=WIDTH)
    async with worker:
        yield


async def _end(task: asyncio.Future[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


# ---- gates ----

SKILL_FILE: Final = """---
name: careful
description: Looks things up and nothing else.
allowed-tools: look(*), grep(*), read(*)
---
Look before you say anything.
"""
RULES: Final = PermissionPolicy(
    deny=("bash(rm *)", "write(**/.env*)", "look(secret*)"), ask=("bash(*)", "write(*)"), allow=("look(*)", "read(*)")
)
GATED_CALLS: Final = 50


async def gates(rounds: int) -> Numbers:
    """A call with four hooks, a policy of seven rules and a skill against one with none of them, in turns.

    Twice: with hooks that are coroutines, and with plain functions, each call of which has a thread to itself.
    """
    with scratch() as folder:
        (folder / "careful").mkdir()
        (folder / "careful" / "SKILL.md").write_text(SKILL_FILE, encoding="utf-8")
        async with AsyncAgent(model=Plain(GATED_CALLS), tools=[look], builtin_tools=False) as agent:
            kinds = ("", "coroutines", "functions")
            took: dict[str, list[float]] = {kind: [] for kind in kinds}
            for number in range(rounds + 1):
                for kind in kinds if number % 2 else reversed(kinds):
                    took[kind].append(await _call_ms(agent, folder, hooks=kind))
    plain, by_coroutines, by_functions = (min(took[kind][1:]) for kind in kinds)
    return {"plain_ms": plain, "added_ms": by_coroutines - plain, "added_by_functions_ms": by_functions - plain}


async def _call_ms(agent: AsyncAgent, folder: Path, *, hooks: str) -> float:
    options: dict[str, Any] = {"permission_policy": RULES, "skill_dirs": [str(folder)]} if hooks else {}
    session = await agent.session(".", queue_config=SessionQueueConfig(), **options).ready()
    asked = 0

    def hook(_event: Mapping[str, Any]) -> dict[str, Any]:
        nonlocal asked
        asked += 1
        return {"action": "continue"}

    async def async_hook(event: Mapping[str, Any]) -> dict[str, Any]:
        return hook(event)

    if hooks:
        session.use_skill("careful")
        for number in range(4):
            matcher = {"tool": "look"} if number % 2 else None
            handler = async_hook if hooks == "coroutines" else hook
            session.register_hook(f"hook-{number}", "pre_tool_use", matcher, {"priority": number}, handler)
    gc.collect()
    # A turn of a few milliseconds that never sleeps: its time on a core is the same on a busy machine.
    began = time.process_time()
    result = await session.send("go")
    seconds = time.process_time() - began
    assert result.tool_calls_count == GATED_CALLS
    assert asked == (4 * GATED_CALLS if hooks else 0), asked
    await session.close()
    return seconds * 1e3 / GATED_CALLS


# ---- sub-agents ----

SUBAGENTS_MAX: Final = 8
BRANCH: Final = "branch"
LEAF: Final = "leaf"


class Foreman:
    """A model for agents of two kinds: a `branch` hands its work to a `leaf`, and both use a tool first."""

    name = "foreman"
    context_tokens = None

    def __init__(self, busy: InFlight) -> None:
        self._busy = busy

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """One answer; while it is made, its sub-agent is at work."""
        with self._busy.one():
            await asyncio.sleep(0)
            told = [said for said in request.conversation if isinstance(said, Prompt)][-1].text
            rounds = sum(1 for said in request.conversation if isinstance(said, Answer))
            if rounds == 0:
                yield Answer(calls=tuple(_call(number, "look", name=str(number)) for number in range(2)))
            elif rounds == 1 and told.startswith(BRANCH):
                yield Answer(calls=(_call(0, "task", prompt=told.replace(BRANCH, LEAF)),))
            else:
                yield TextChunk("done")
                yield Answer(text=f"{told} is done")


def _call(number: int, tool_name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"c{number}", name=tool_name, arguments=compact_json(arguments))


async def subagents(count: int) -> Numbers:
    """That many sub-agents at once, every second of which has one of its own; each calls tools and ends."""
    busy = InFlight()

    @tool(name="look", lane="query", effect="read")
    async def busy_look(name: str) -> str:
        """Look something up."""
        with tools.one():
            await asyncio.sleep(0.001)
        return name

    tools = InFlight()
    agent = AsyncAgent(
        model=Foreman(busy),
        tools=[busy_look],
        builtin_tools=False,
        permission_policy=ANYTHING,
        subagents=True,
        max_subagents=SUBAGENTS_MAX,
        max_parallel_tasks=count,
        queue_config=SessionQueueConfig(),
    )
    async with agent:
        session = await agent.session(".").ready()
        watch = Stopwatch()
        prompts = [f"{BRANCH if number % 2 else LEAF} {number}" for number in range(count)]
        ends = await session.parallel_task(prompts)
        seconds = watch.seconds()
    nested = count // 2
    assert tools.done == 2 * (count + nested), tools.done
    ended = sum(end["status"] == "succeeded" and end["output"].endswith("is done") for end in ends)
    return {
        "ended_of_all": ended / count,
        "seconds": seconds,
        "thinking": float(busy.peak),
        "thinking_of_cap": busy.peak / SUBAGENTS_MAX,
        "calling_of_cap": tools.peak / (2 * SUBAGENTS_MAX),
    }


MEASURES: Final[dict[str, Measure]] = {
    measure.__name__: measure
    for measure in (
        external_calls,
        external_writes,
        external_writes_on_disk,
        external_workers,
        external_worker,
        gates,
        subagents,
    )
}
