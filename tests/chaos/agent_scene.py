"""The process under test of the crash table: one agent session that plays a scene and kills itself where it is told.

A scene is JSON: the rounds that the model asks for, how the session is made, and at which point this life ends. What
really happens goes to the witness, line by line, before anything else does: every call of a model with what it was
told, every tool that begins, every effect with the key of its call. A life that is not killed writes a report.

The model keeps nothing. How far a conversation has come it reads from the conversation itself, and it makes new ids for
its calls each time it is asked, as providers do: a call that is asked for twice is not the same call.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import resource
import secrets
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from laneway.agent import AsyncAgent
from laneway.agent.session import AsyncSession
from laneway.dialogue import (
    Answer,
    Chunk,
    ModelRequest,
    Prompt,
    Results,
    TextChunk,
    ToolCall,
    ToolContext,
    ToolOutput,
    Utterance,
)
from laneway.errors import ModelLimitedError, StoreUnavailableError
from laneway.kernel.rounds import Round
from laneway.options import PermissionPolicy, SessionQueueConfig
from laneway.rows import Batch, BatchResult, MessageRow, StateRow
from laneway.stores import sqlite_writer
from laneway.stores.sessions import FileSessionStore, SqliteSessionStore
from laneway.stores.sqlite_writes import write_group
from laneway.tools import FunctionTool, tool
from tests.chaos.witness import Witness

__all__ = ("SESSION", "Player", "Scene", "kill_in_commits", "live", "problems_of", "told", "warm_up")

SESSION: Final = "chat"
SUMMARY: Final = "The work has come to round "
ROUND: Final = re.compile(rf"{SUMMARY}(\d+)\.")
CONTEXT_TOKENS: Final = 400
LONG: Final = "a long story " * 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What one life plays. `rounds` are the calls of each answer, as `[tool, name]`; then comes the answer in words."""

    folder: str
    life: int = 1
    session: str = SESSION
    reads: bool = True  # the report has the conversation and the ledger in it
    rounds: list[list[list[str]]] = field(default_factory=list)
    messages: list[str] = field(default_factory=lambda: ["go"])
    kill: str = ""  # a point; `point#2` is the second time it is reached
    queue: bool = True
    store: str = "file"
    on_crash: str = "resume"
    steer: str = ""  # said while the model gives its first answer
    early: str = ""  # steered while the session opens, before the run of the last life has gone on
    limited: bool = False  # the model's first call of this life is refused for a long time
    compacts: bool = False
    remembers: bool = False  # the rounds are played once, not once for each message
    lacks: list[str] = field(default_factory=list)  # tools that this life does not have
    resume: str = ""  # "last": call resume_run with the newest run
    close: bool = True
    full_ms: int = 0  # for how long the disk is full, from the first call of a tool on


class Killer:
    """Counts the points that are reached, and ends the process at the one that was named."""

    def __init__(self, kill: str, witness: Witness) -> None:
        self.point, _, nth = kill.partition("#")
        self._nth = int(nth or 1)
        self._seen: Counter[str] = Counter()
        self._witness = witness

    def reach(self, point: str) -> None:
        """The process is at this point."""
        if self.hits(point):
            self.kill(point)

    def hits(self, point: str) -> bool:
        """Count it; whether it is the one."""
        self._seen[point] += 1
        return point == self.point and self._seen[point] == self._nth

    def kill(self, point: str) -> None:
        """The end, as if the power of this process were cut."""
        self._witness.note("killed", point)
        os.kill(os.getpid(), signal.SIGKILL)


# ---- the store ----


def tags_of(batches: Sequence[Batch]) -> set[str]:
    """What a commit is about."""
    tags: set[str] = set()
    for row in (row for batch in batches for row in batch.rows):
        if isinstance(row, MessageRow):
            tags.add({"queued": "accepted", "running": "begun"}.get(row.state, row.state))
        elif isinstance(row, StateRow) and row.kind == "intent":
            tags.add("intent" if row.state == "intended" else "outcome")
        elif isinstance(row, StateRow) and row.kind in ("round", "compaction"):
            tags.add(row.kind if row.kind == "compaction" else f"round-{row.state}")
    return tags


class Kills(Protocol):
    """Something that may end the process at a point that is reached."""

    @property
    def point(self) -> str:
        """The point that was named, if one was."""

    def reach(self, point: str) -> None:
        """The process is at this point."""

    def hits(self, point: str) -> bool:
        """Count it; whether it is the one."""

    def kill(self, point: str) -> None:
        """The end."""


def kill_in_commits(killer: Kills, tags_of: Callable[[Sequence[Batch]], set[str]] = tags_of) -> None:
    """Have the writer of the store look out: before a transaction, when all of it is written but `COMMIT`, after it."""

    def watched(connection: sqlite3.Connection, path: str, batches: Sequence[Batch], **more: Any) -> list[BatchResult]:
        tags = tags_of(batches)
        for tag in tags:
            killer.reach(f"commit:{tag}:before")
        hits = [killer.hits(f"commit:{tag}:middle") for tag in tags]  # all of them are counted
        if any(hits):

            def on_statement(statement: str) -> None:
                if statement.strip().upper().startswith("COMMIT"):
                    killer.kill(killer.point)

            connection.set_trace_callback(on_statement)
        results = write_group(connection, path, batches, **more)
        for tag in tags:
            killer.reach(f"commit:{tag}:after")
        return results

    vars(sqlite_writer)["write_group"] = watched  # this process has only this scene to play


# ---- the model ----


def told(conversation: Sequence[Utterance]) -> list[list[str]]:
    """The results that a conversation tells, as `[name of the call, status]`."""
    calls = {
        call.id: f"{call.name} {json.loads(call.arguments)['name']}"
        for said in conversation
        if isinstance(said, Answer)
        for call in said.calls
    }
    return [
        [calls.get(result.call_id, result.call_id), result.status.value]
        for said in conversation
        if isinstance(said, Results)
        for result in said.results
    ]


def problems_of(conversation: Sequence[Utterance]) -> Iterator[str]:
    """What no provider would accept: a call without exactly one result right behind it, in order; a result alone."""
    for place, said in enumerate(conversation):
        after = conversation[place + 1] if place + 1 < len(conversation) else None
        before = conversation[place - 1] if place else None
        if isinstance(said, Answer) and said.calls:
            wanted = [call.id for call in said.calls]
            got = [result.call_id for result in after.results] if isinstance(after, Results) else []
            if wanted != got:
                yield f"calls {wanted} are followed by results {got}"
            if len(set(wanted)) != len(wanted):
                yield f"calls share an id: {wanted}"
        if isinstance(said, Results) and not (isinstance(before, Answer) and before.calls):
            yield f"results of no calls: {said}"
        if isinstance(said, Answer) and isinstance(before, Answer):
            yield f"two answers in a row: {before} / {said}"
    if conversation and isinstance(conversation[-1], Answer):
        yield "it ends with an answer: there is nothing to be asked"


def progress_of(conversation: Sequence[Utterance], *, forgets: bool) -> int:
    """The round that a conversation has come to; one that forgets begins anew after every answer in words."""
    done = 0
    for said in conversation:
        if isinstance(said, Prompt) and (found := ROUND.search(said.text)):
            done = int(found[1])
        elif isinstance(said, Answer) and said.calls:
            done = max(done, int(said.calls[0].id.split("-")[1]))
        elif isinstance(said, Answer) and forgets:
            done = 0
    return done


class Player:
    """The model of a scene."""

    name = "player"

    def __init__(self, scene: Scene, killer: Killer, witness: Witness) -> None:
        self.context_tokens = CONTEXT_TOKENS if scene.compacts else None
        self.session: AsyncSession | None = None
        self._scene = scene
        self._killer = killer
        self._witness = witness
        self._calls = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """One answer: the calls of the round that the conversation has come to, or words."""
        conversation = request.conversation
        what = "summary" if request.purpose == "summary" else "model"
        prompts = [said.text for said in conversation if isinstance(said, Prompt)]
        problems = [] if what == "summary" else list(problems_of(conversation))
        self._witness.note(what, prompts, told(conversation), problems)
        self._calls += 1
        self._killer.reach(f"{what}:before")
        if self._scene.limited and self._calls == 1:
            raise ModelLimitedError("the quota is used up", retry_after_ms=600_000, model=self.name)
        try:
            yield TextChunk("Let ")
            self._killer.reach(f"{what}:during")
            await asyncio.sleep(0)
            if self._scene.steer and self._calls == 1 and what == "model":
                assert self.session is not None
                await self.session.steer(self._scene.steer, message_id=f"p-{self._scene.steer}")
                self._killer.reach("steered")
            yield self._answer(what, conversation, prompts)
        finally:
            self._killer.reach(f"{what}:after")

    def _answer(self, what: str, conversation: Sequence[Utterance], prompts: list[str]) -> Answer:
        done = progress_of(conversation, forgets=not self._scene.remembers)
        if what == "summary":
            return Answer(text=f"{SUMMARY}{done}.")
        if done < len(self._scene.rounds):
            calls = tuple(
                ToolCall(
                    id=f"c-{done + 1}-{secrets.token_hex(4)}",
                    name=name,
                    arguments=json.dumps({"name": argument}),
                )
                for name, argument in self._scene.rounds[done]
            )
            return Answer(text=f"Round {done + 1}.", calls=calls)
        return Answer(text=f"Done: {', '.join(prompts)[-60:]}")


# ---- the tools ----


class Disk:
    """A disk that is full for a while: the system refuses whatever makes a file longer than the store is now."""

    def __init__(self, folder: str, full_ms: int) -> None:
        self._files = [Path(folder) / "sessions.db", Path(folder) / "sessions.db-wal"]
        self._full_ms = full_ms

    def fill(self) -> None:
        """From now on, and once."""
        if self._full_ms:
            longest = max(file.stat().st_size for file in self._files if file.exists())
            free = resource.getrlimit(resource.RLIMIT_FSIZE)
            resource.setrlimit(resource.RLIMIT_FSIZE, (longest, free[1]))
            later = asyncio.get_running_loop().call_later
            later(self._full_ms / 1000, resource.setrlimit, resource.RLIMIT_FSIZE, free)
            self._full_ms = 0


def trade(killer: Killer, witness: Witness, book: Path, disk: Disk) -> list[FunctionTool[..., Any]]:
    """Tools of every effect. Each notes that it begins, then its effect, with its key. `book` is the witness."""

    async def work(kind: str, name: str, context: ToolContext) -> str:
        witness.note("begin", kind, name, context.key)
        disk.fill()
        killer.reach("tool:before")
        killer.reach(f"{kind} {name}:before")
        witness.note("effect", kind, name, context.key)
        killer.reach("tool:during")
        killer.reach(f"{kind} {name}:during")
        await asyncio.sleep(0)
        killer.reach("tool:after")
        return LONG if name == "long" else f"{kind} of {name}"

    @tool(lane="query", effect="read")
    async def look(name: str, context: ToolContext) -> str:
        """Look something up."""
        return await work("look", name, context)

    @tool(effect="idempotent")
    async def put(name: str, context: ToolContext) -> str:
        """Put something somewhere."""
        return await work("put", name, context)

    @tool(effect="write")
    async def pay(name: str, context: ToolContext) -> str:
        """Pay somebody."""
        return await work("pay", name, context)

    gate = Meeting(killer)

    @tool(effect="write", parallel=True)
    async def pay_beside(name: str, context: ToolContext) -> str:
        """Pay somebody while others are paid."""
        said = await work("pay_beside", name, context)
        await gate.meet()
        return said

    @tool(effect="idempotent", parallel=True)
    async def put_beside(name: str, context: ToolContext) -> str:
        """Put something somewhere while others do."""
        said = await work("put_beside", name, context)
        await gate.meet()
        return said

    def find_out(intent: Any) -> ToolOutput | None:
        witness.note("asked", intent.tool, intent.arguments["name"], intent.key)
        lines = [json.loads(line) for line in book.read_text(encoding="utf-8").splitlines() if line]
        if any(what == "effect" and intent.key in facts for what, _, *facts in lines):
            return ToolOutput(text="it was paid")
        return ToolOutput(text="it was not paid", is_error=True)

    @tool(effect="write", reconcile=find_out)
    async def pay_known(name: str, context: ToolContext) -> str:
        """Pay somebody by a bank that can be asked."""
        return await work("pay_known", name, context)

    return [look, put, pay, pay_beside, put_beside, pay_known]


class Meeting:
    """Where calls that run beside each other wait until two of them are there."""

    def __init__(self, killer: Killer) -> None:
        self._killer = killer
        self._both = asyncio.Event()
        self._here = 0

    async def meet(self) -> None:
        """Wait for the other one; kill when both are in the middle of their work."""
        self._here += 1
        if self._here == 2:
            self._killer.reach("both:during")
            self._both.set()
        if self._killer.point == "both:during":
            await self._both.wait()


# ---- the life ----


def opened(scene: Scene) -> FileSessionStore | SqliteSessionStore:
    """The store of a scene, by one of its two names."""
    folder = Path(scene.folder)
    return FileSessionStore(folder) if scene.store == "file" else SqliteSessionStore(folder / "sessions.db")


async def play(scene: Scene) -> dict[str, Any]:
    """Play the scene to its end, if it has one; what is to be reported."""
    book = Path(scene.folder) / "witness"
    witness = Witness(book, scene.life)
    killer = Killer(scene.kill, witness)
    kill_in_commits(killer)
    model = Player(scene, killer, witness)
    disk = Disk(scene.folder, scene.full_ms)
    tools = [each for each in trade(killer, witness, book, disk) if each.name not in scene.lacks]
    agent = AsyncAgent(model=model, tools=tools, builtin_tools=False, permission_policy=PermissionPolicy(allow=("*",)))
    session = agent.session(
        scene.folder,
        session_id=scene.session,
        session_store=opened(scene),
        queue_config=SessionQueueConfig() if scene.queue else None,
        on_crash=scene.on_crash,
    )
    model.session = session
    watcher = asyncio.get_running_loop().create_task(watch(session, killer))
    await session.ready()
    if scene.early:
        await session.steer(scene.early, message_id=f"p-{scene.early}")
    killer.reach("opened")
    report: dict[str, Any] = {}
    if scene.resume:
        report["resumed"] = await resumed(session)
    await send_all(session, scene, killer)
    rows = await session.host.inbox.engine.store.history.messages(session.owner, limit=1000)
    for row in rows:
        await session.host.inbox.wait(row.id)
    report |= await report_of(session, reads=scene.reads)
    if scene.close:
        await agent.close()
    watcher.cancel()
    return report


async def watch(session: AsyncSession, killer: Killer) -> None:
    """Kill at an event that is told."""
    async for event in session.subscribe():
        killer.reach(f"event:{event.event_type}")


async def resumed(session: AsyncSession) -> dict[str, Any]:
    """Go on with the newest run by hand."""
    for row in await session.host.inbox.engine.store.history.messages(session.owner, limit=1000):
        await session.host.inbox.wait(row.id)  # what the last life left has its end
    runs = await session.runs()
    old = runs[-1] if not runs[-1].resumed_from and runs[-1].rounds else runs[0]
    rounds = [_facts(one) for one in session.book.run(old.run_id)]
    result = await session.resume_run(old.run_id)
    after = [_facts(one) for one in session.book.run(old.run_id)]
    return {"old": old.run_id, "new": result.run_id, "text": result.text, "intact": rounds == after}


def _facts(one: Round) -> dict[str, Any]:
    return {name: value for name, value in asdict(one).items() if not name.startswith("_")}


async def send_all(session: AsyncSession, scene: Scene, killer: Killer) -> None:
    """Send what the store does not have yet."""
    known = await session.host.inbox.engine.store.history.messages(session.owner, limit=1000)
    have = {row.platform_id for row in known}
    killer.reach("submit:before")
    for text in scene.messages:
        while f"p-{text}" not in have:
            try:
                await session.followup(text, message_id=f"p-{text}")
            except StoreUnavailableError:  # the disk is full: nothing was accepted
                await asyncio.sleep(0.05)
            else:
                have.add(f"p-{text}")
    killer.reach("submit:after")


async def report_of(session: AsyncSession, *, reads: bool) -> dict[str, Any]:
    """What the session says of itself when all is over."""
    rows = await session.host.inbox.engine.store.history.messages(session.owner, limit=1000)
    finals = [await session.host.inbox.wait(row.id) for row in rows]
    messages = [
        [
            row.platform_id,
            json.loads(row.body).get("text", ""),
            final.disposition.value,
            final.outcome and final.outcome.value,
            final.answer,
            final.reason,
        ]
        for row, final in zip(rows, finals, strict=True)
    ]
    if not reads:
        return {"messages": messages}
    history = await session.history()
    return {
        "messages": messages,
        "told": told(history),
        "history": [asdict(said) for said in history],
        "problems": list(problems_of([*history, Prompt(text="next")])),
        "ledger": [[entry.tool, entry.state.value, entry.key, entry.attempt] for entry in await session.ledger()],
        "runs": [[run.run_id, run.state, run.resumed_from] for run in await session.runs()],
    }


def warm_up() -> None:
    """Load everything that a life needs, so that a fork has it."""
    import laneway.models  # noqa: F401

    witness = Witness(Path(os.devnull), 0)
    for each in trade(Killer("", witness), witness, Path(os.devnull), Disk("", 0)):
        each.check('{"name": "x"}')


def live(facts: dict[str, Any]) -> int:
    """Be the process under test; the exit code."""
    scene = Scene(**facts)
    logging.basicConfig(filename=Path(scene.folder) / "log", level=logging.WARNING, force=True)
    report = asyncio.run(asyncio.wait_for(play(scene), 15))
    (Path(scene.folder) / f"report-{scene.life}").write_text(json.dumps(report), encoding="utf-8")
    return 0
