"""What is measured of agents: a turn, tools in lanes, checkpoints, a long conversation, many sessions, the import."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from bench.durable import percentiles, scratch
from bench.measures import Measure, Stopwatch, resident_bytes
from bench.workloads import Numbers
from laneway import Answer, AsyncAgent, AsyncSession, ModelRequest, Prompt, SessionQueueConfig, SqliteSessionStore, tool
from laneway.dialogue import Chunk, Results, ResultStatus, TextChunk, ToolCall, ToolResult
from laneway.kernel.rounds import Round, RoundState

WARM_UP: Final = 20
SLOW_MS: Final = 100
PIECES: Final = 20
PAUSE_S: Final = 0.05
OUTPUT: Final = "A line of some file, as a tool would read it, with words in it that a model might need.\n" * 40
QUESTION: Final = "Please have a look at the next part of the file and tell me what you make of it. " * 3
REMARK: Final = "It goes on as before: the words are those of the part that you have seen, and nothing is new. " * 6


class Plain:
    """A model that answers at once; it asks for `calls` calls of a tool first, if it is told to."""

    name = "plain"
    context_tokens = None

    def __init__(self, calls: int = 0, tool_name: str = "look") -> None:
        self._calls = calls
        self._tool = tool_name

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """One answer."""
        if self._calls and isinstance(request.conversation[-1], Prompt):
            made = [ToolCall(id=f"c{n}", name=self._tool, arguments=f'{{"name":"{n}"}}') for n in range(self._calls)]
            yield Answer(calls=tuple(made))
            return
        yield TextChunk("hi")
        yield Answer(text="hi")


@tool(lane="query", effect="read")
async def look(name: str) -> str:
    """Look something up."""
    return name


@tool(lane="query", effect="read")
async def wait_a_little(name: str) -> str:
    """Look something up that takes its time."""
    await asyncio.sleep(SLOW_MS / 1000)
    return name


# ---- turns ----


async def turn_laneway(turns: int) -> Numbers:
    """A turn without tools, a queue and the memory store: milliseconds above the model's own time, which is none."""
    async with AsyncAgent(model=Plain(), builtin_tools=False) as agent:
        return await _turns(agent, turns)


async def turn_laneway_sqlite(turns: int) -> Numbers:
    """The same with everything on disk."""
    with scratch() as folder:
        store = SqliteSessionStore(folder / "sessions.db")
        async with AsyncAgent(model=Plain(), builtin_tools=False, session_store=store) as agent:
            return await _turns(agent, turns)


async def _turns(agent: AsyncAgent, turns: int) -> Numbers:
    took: list[float] = []
    for start in range(0, turns, 100):  # sessions of a hundred turns: the length of a conversation is not the subject
        session = agent.session(".", queue_config=SessionQueueConfig())
        for number in range(WARM_UP * (start == 0) + min(100, turns - start)):
            began = time.perf_counter()
            await session.send("hello")
            if start or number >= WARM_UP:
                took.append(time.perf_counter() - began)
        await session.close()
    return percentiles(took, "ms")


async def turn_pydantic_ai(turns: int) -> Numbers:
    """A turn of pydantic-ai with a `FunctionModel`, which keeps nothing."""
    from pydantic_ai import Agent
    from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
    from pydantic_ai.models.function import AgentInfo, FunctionModel

    def answer(_messages: list[ModelMessage], _info: AgentInfo) -> ModelResponse:
        return ModelResponse(parts=[TextPart("hi")])

    agent = Agent(FunctionModel(answer))
    took: list[float] = []
    for number in range(WARM_UP + turns):
        began = time.perf_counter()
        await agent.run("hello")
        if number >= WARM_UP:
            took.append(time.perf_counter() - began)
    return percentiles(took, "ms")


# ---- tools ----


async def reads_slow(reads: int) -> Numbers:
    """That many reads of 100 ms in one answer, in a lane that is four wide."""
    return await _reads(reads, "wait_a_little", rounds=3)


async def reads_trivial(reads: int) -> Numbers:
    """That many reads that do nothing, in one answer, through the queue."""
    return await _reads(reads, "look", rounds=20)


async def _reads(reads: int, name: str, *, rounds: int) -> Numbers:
    took: list[float] = []
    async with AsyncAgent(model=Plain(reads, name), tools=[look, wait_a_little], builtin_tools=False) as agent:
        for _ in range(rounds):
            session = await agent.session(".", queue_config=SessionQueueConfig()).ready()
            gc.collect()
            began = time.perf_counter()  # the best of some is nobody's luck; what others had cannot be told this finely
            result = await session.send("go")
            took.append(time.perf_counter() - began)
            assert result.tool_calls_count == reads
            await session.close()
    return {"ms": min(took) * 1e3}


# ---- checkpoints ----


async def checkpoint(rounds: int) -> Numbers:
    """Writing down a round with one result of half a kilobyte, until it is on disk."""
    with scratch() as folder:
        store = SqliteSessionStore(folder / "sessions.db")
        async with AsyncAgent(model=Plain(), builtin_tools=False, session_store=store) as agent:
            session = await agent.session(".").ready()
            await session.book.load()
            took: list[float] = []
            for number in range(WARM_UP + rounds):
                one = _round(f"run-{number}", 1, OUTPUT[:512])
                began = time.perf_counter()
                session.book.keep(one)
                await session.book.committed()
                if number >= WARM_UP:
                    took.append(time.perf_counter() - began)
    return percentiles(took)


def _round(run_id: str, number: int, output: str) -> Round:
    call = ToolCall(id="c1", name="read", arguments='{"path":"notes.txt"}')
    result = ToolResult(call_id="c1", name="read", output=output, status=ResultStatus.OK)
    return Round(
        run_id=run_id,
        number=number,
        state=RoundState.DONE,
        prompts=(Prompt(text=QUESTION),),
        answer=Answer(calls=(call,)),
        results={"c1": result},
    )


# ---- a long conversation ----


class Reader(Plain):
    """A model that reads once and then says something about it."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """One answer."""
        if isinstance(request.conversation[-1], Results):
            yield Answer(text=REMARK)
        else:
            yield Answer(calls=(ToolCall(id="c1", name="read_part", arguments='{"name":"notes.txt"}'),))


async def conversation(turns: int) -> Numbers:
    """That many turns with a tool call each: bytes on disk, of storing every text once, and the time to resume."""
    parts = iter(range(turns + 1))

    @tool(lane="query", effect="read")
    async def read_part(name: str) -> str:
        """Read the next part of a file."""
        return f"{name} {next(parts)}\n{OUTPUT}"

    with scratch() as folder:
        path = folder / "sessions.db"
        agent = AsyncAgent(
            model=Reader(), tools=[read_part], builtin_tools=False, session_store=SqliteSessionStore(path)
        )
        async with agent:
            session = agent.session(".", session_id="long")
            for _ in range(turns):
                await session.send(QUESTION)
            texts = [str(each) for each in await session.history()]
        agent = AsyncAgent(
            model=Reader(), tools=[read_part], builtin_tools=False, session_store=SqliteSessionStore(path)
        )
        async with agent:
            watch = Stopwatch()
            session = await agent.session(".", session_id="long").ready()
            said = await session.history()
            seconds = watch.seconds()
        assert len(said) == turns * 4
        once = _stored_once(folder / "once.db", texts)
        return {"resume_ms": seconds * 1e3, "bytes": float(path.stat().st_size), "once": float(once)}


def _stored_once(path: Path, texts: list[str]) -> int:
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE said (seq INTEGER PRIMARY KEY, text TEXT NOT NULL)")
        raw.executemany("INSERT INTO said (text) VALUES (?)", [(text,) for text in texts])
    raw.close()
    return path.stat().st_size


# ---- many sessions ----


class Ticking(Plain):
    """A model that says when it says something."""

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """Pieces, with a pause after each."""
        text = ""
        for _ in range(PIECES):
            piece = f"{time.perf_counter():.9f} "
            text += piece
            yield TextChunk(piece)
            await asyncio.sleep(PAUSE_S)
        yield Answer(text=text)


async def streaming(sessions: int) -> Numbers:
    """That many sessions streaming at once on one loop: from a piece of text to the reader, and memory of each."""
    delays: list[float] = []

    async def read(session: AsyncSession) -> None:
        async for event in session.stream("go"):
            if event.event_type != "text_delta":
                continue
            delays.append(time.perf_counter() - float(event.text.split()[-1]))

    async with AsyncAgent(model=Ticking(), builtin_tools=False) as agent:
        gc.collect()
        before = resident_bytes()
        made = [await agent.session(".", queue_config=SessionQueueConfig()).ready() for _ in range(sessions)]
        tasks = [asyncio.ensure_future(read(session)) for session in made]
        await asyncio.sleep(PAUSE_S * PIECES / 2)
        live = (resident_bytes() - before) / sessions
        await asyncio.gather(*tasks)
    delays.sort()
    return {
        "p50_ms": delays[len(delays) // 2] * 1e3,
        "p99_ms": delays[len(delays) * 99 // 100] * 1e3,
        "bytes_per_session": live,
    }


# ---- the import ----


async def import_laneway(times: int) -> Numbers:
    """`import laneway`, in a fresh process, above starting Python."""
    return _import("import laneway", times)


async def import_agent(times: int) -> Numbers:
    """`from laneway import AsyncAgent, tool`."""
    return _import("from laneway import AsyncAgent, tool", times)


async def import_asyncio(times: int) -> Numbers:
    """`import asyncio`."""
    return _import("import asyncio", times)


def _import(statement: str, times: int) -> Numbers:
    code = f"import time; t = time.perf_counter(); {statement}; print(time.perf_counter() - t)"
    took = []
    for _ in range(times):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
        took.append(float(done.stdout))
    return {"ms": min(took) * 1e3}


MEASURES: Final[dict[str, Measure]] = {
    measure.__name__: measure
    for measure in (
        turn_laneway,
        turn_laneway_sqlite,
        turn_pydantic_ai,
        reads_slow,
        reads_trivial,
        checkpoint,
        conversation,
        streaming,
        import_laneway,
        import_agent,
        import_asyncio,
    )
}
