"""The process under test of the agents' chaos: many sessions on one store, driven line by line over a socket.

In: `["message", number, session, mode, text]`, `["wait", ids]`, `["report"]`, `["close"]`.
Out: `["ready"]`, `["ack", number, id]`, `["no", number, code]`, `["final", id, state, outcome, reason]`,
`["session", name, {…}]`, `["done"]`, `["closed"]`, `["failed", error]`.

A message names its calls: `#17 look,put|pay` wants two calls in one answer and then one more. The model keeps nothing:
it reads from the conversation which of them were asked for, and asks for the next ones. So it never asks for a call
twice that the conversation knows of, unless the conversation says that it was not started.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import random
import re
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from laneway.agent import AsyncAgent
from laneway.agent.session import AsyncSession
from laneway.dialogue import (
    Answer,
    Chunk,
    ModelRequest,
    Prompt,
    TextChunk,
    ToolCall,
    ToolContext,
    Utterance,
)
from laneway.errors import ClosedError, LanewayError, ModelUnavailableError
from laneway.options import PermissionPolicy, SessionQueueConfig
from laneway.ports import Store
from laneway.stores.sessions import FileSessionStore
from laneway.tools import FunctionTool
from tests.chaos.agent_scene import kill_in_commits, problems_of
from tests.chaos.life import HastyStore
from tests.chaos.witness import Witness

__all__ = ("EFFECTS", "FILE", "KINDS", "AgentLifeOptions", "Sabotage", "live", "plans_in")

Sabotage = Literal["", "hasty-store", "run-writes-again"]
"""Faults that are planted to prove that the checker would find them."""

FILE: Final = "sessions.db"
KINDS: Final = ("plain", "lanes", "short")  # without a queue, with one, with a model that forgets early
EFFECTS: Final = {"look": "read", "put": "idempotent", "pay": "write"}
BESIDE: Final = ("look", "put")  # tools that may run beside their neighbours
PLAN: Final = re.compile(r"#(\d+) ([a-z,|]*)")
NOTHING_DONE: Final = frozenset({"skipped", "cancelled"})
MEMORY: Final = "What was asked for: "
_log = logging.getLogger("chaos")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLifeOptions:
    """Where the process works, and after how many points it kills itself (0: it does not)."""

    folder: Path
    number: int
    sessions: tuple[str, ...]
    fuse: int = 0
    pace_ms: float = 3.0
    sabotage: Sabotage = ""
    passivates: bool = False  # sessions leave memory all the time
    labelled: bool = False  # it says whose its sessions are; later lives have to know it

    def store(self) -> Store:
        """The store of all sessions."""
        return HastyStore(self.folder / FILE) if self.sabotage == "hasty-store" else FileSessionStore(self.folder)


class Fuse:
    """Counts points down, wherever they are, and kills the process at the last one."""

    def __init__(self, left: int) -> None:
        self.point = ""
        self._left = left

    def reach(self, point: str) -> None:
        """The process is at a point."""
        if self.hits(point):
            self.kill(point)

    def hits(self, _: str) -> bool:
        """Count it; whether it is the last."""
        self._left -= 1
        return self._left == 0

    def kill(self, _: str) -> None:
        """The end."""
        os.kill(os.getpid(), signal.SIGKILL)


# ---- the model ----


def plans_in(conversation: Sequence[Utterance]) -> tuple[dict[str, list[list[str]]], dict[str, str]]:
    """What messages want, as the names of calls by message and answer, and how each call that was asked for ended."""
    wanted: dict[str, list[list[str]]] = {}
    ended: dict[str, str] = {}
    names: dict[str, str] = {}
    for said in conversation:
        if isinstance(said, Prompt):
            _, found, memory = said.text.partition(MEMORY)
            if found:
                kept, statuses = json.loads(memory)
                wanted |= kept
                ended |= statuses
            else:
                wanted |= {number: _names(number, plan) for number, plan in PLAN.findall(said.text)}
        elif isinstance(said, Answer):
            names |= {call.id: json.loads(call.arguments)["name"] for call in said.calls}
        else:
            ended |= {names.get(each.call_id, each.call_id): each.status.value for each in said.results}
    return wanted, ended


def _names(number: str, plan: str) -> list[list[str]]:
    return [
        [f"{tool} {number}.{turn}.{place}" for place, tool in enumerate(part.split(","))]
        for turn, part in enumerate(plan.split("|"))
        if part
    ]


class Mind:
    """The model: asks for what messages want, and answers when it has it."""

    def __init__(self, witness: Witness, fuse: Fuse, *, pace_ms: float, context_tokens: int | None) -> None:
        self.name = f"mind-{context_tokens or 'wide'}"
        self.context_tokens = context_tokens
        self._witness = witness
        self._fuse = fuse
        self._pace_ms = pace_ms
        self._random = random.Random()

    async def stream(self, request: ModelRequest) -> AsyncIterator[Chunk]:
        """One answer."""
        self._fuse.reach("model")
        conversation = request.conversation
        wanted, ended = plans_in(conversation)
        if request.purpose == "summary":
            await self._pause()
            yield Answer(text=f"{MEMORY}{json.dumps([wanted, ended])}")
            return
        if problems := list(problems_of(conversation)):
            self._witness.note("malformed", request.session_id, problems)
        yield TextChunk("Let me see. ")
        await self._pause()
        self._fuse.reach("streaming")
        if self._random.random() < 0.02:
            raise ModelUnavailableError("the provider stumbled", model=self.name)
        yield self._answer(wanted, ended)

    def _answer(self, wanted: dict[str, list[list[str]]], ended: dict[str, str]) -> Answer:
        for number, rounds in wanted.items():
            for names in rounds:
                left = [name for name in names if ended.get(name, "skipped") in NOTHING_DONE]
                if left:
                    return Answer(text=f"For #{number}.", calls=tuple(map(_call, left)))
        return Answer(text=f"Done with {len(wanted)} messages.")

    async def _pause(self) -> None:
        await asyncio.sleep(self._random.uniform(0, 2 * self._pace_ms / 1000))


def _call(name: str) -> ToolCall:
    return ToolCall(id=f"c-{secrets.token_hex(6)}", name=name.split()[0], arguments=json.dumps({"name": name}))


# ---- the life ----


class Life:
    """One process from its start to its end."""

    def __init__(self, options: AgentLifeOptions, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._options = options
        self._reader = reader
        self._writer = writer
        self._witness = Witness(options.folder / "witness", options.number)
        self._fuse = Fuse(options.fuse)
        self._random = random.Random()
        self._tasks: set[asyncio.Task[None]] = set()
        self.sessions: dict[str, AsyncSession] = {}

    def say(self, *facts: Any) -> None:
        """Tell the loader."""
        self._writer.write(json.dumps(facts).encode() + b"\n")

    async def run(self) -> None:
        """Open every session, which go on by themselves; obey; close."""
        kill_in_commits(self._fuse)
        tools = [self._tool(name, effect) for name, effect in EFFECTS.items()]
        policy = PermissionPolicy(allow=("*",))
        agent = AsyncAgent(tools=tools, builtin_tools=False, permission_policy=policy)
        store = self._options.store()
        async with agent:
            for name in self._options.sessions:
                self.sessions[name] = self._session(agent, name, store)
            await asyncio.gather(*(session.ready() for session in self.sessions.values()))
            self.say("ready")
            if self._options.passivates:
                for session in self.sessions.values():
                    self._start(self._passivate_often(session))
            await self._obey()
        self.say("closed")
        await self._writer.drain()

    def _session(self, agent: AsyncAgent, name: str, store: Store) -> AsyncSession:
        kind = name.partition("-")[0]
        window = 600 if kind == "short" else None
        model = Mind(self._witness, self._fuse, pace_ms=self._options.pace_ms, context_tokens=window)
        return agent.session(
            self._options.folder,
            session_id=name,
            session_store=store,
            model=model,
            queue_config=SessionQueueConfig() if kind != "plain" else None,
            principal=f"user:{name}" if self._options.labelled else None,
        )

    async def _passivate_often(self, session: AsyncSession) -> None:
        while True:
            await asyncio.sleep(self._random.uniform(0, 10 * self._options.pace_ms / 1000))
            self._witness.note("leaving", session.session_id)
            self._fuse.reach("leaving")
            deadline_ms = self._random.choice((0, 1, 5, 1_000))
            try:
                await session.passivate("chaos", deadline_ms=deadline_ms)
                self._witness.note("left", session.session_id)
                self._fuse.reach("left")
                await session.ready()
            except ClosedError:  # the process is being closed
                return

    async def _obey(self) -> None:
        while line := await self._reader.readline():
            what, *facts = json.loads(line)
            match what:
                case "message":
                    self._start(self._submit(*facts))
                case "wait":
                    self._start(self._tell_finals(facts[0]))
                case "report":
                    self._start(self._report())
                case "close":
                    return
                case _:
                    raise AssertionError(what)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("life %d: a task failed", self._options.number, exc_info=error)
            self.say("failed", repr(error))

    async def _submit(self, number: int, name: str, mode: str, text: str) -> None:
        session = self.sessions[name]
        send = {"steer": session.steer, "interrupt": session.interrupt}.get(mode, session.followup)
        try:
            receipt = await send(text, message_id=f"p{number}")
        except LanewayError as error:
            if error.code != "closed":
                _log.error("message %d of %s was refused", number, name, exc_info=error)
            self.say("no", number, error.code)
        else:
            self.say("ack", number, receipt.message_id)

    def _tool(self, kind: str, effect: str) -> FunctionTool[Any, Any]:
        async def run(name: str, context: ToolContext) -> str:
            self._fuse.reach("tool")
            await asyncio.sleep(self._random.uniform(0, self._options.pace_ms / 1000))
            self._witness.note("effect", name, context.key)
            self._fuse.reach("effect")
            await asyncio.sleep(self._random.uniform(0, self._options.pace_ms / 1000))
            return f"{name} is done"

        said = "idempotent" if self._options.sabotage == "run-writes-again" and effect == "write" else effect
        return FunctionTool(
            run,
            name=kind,
            description=kind,
            effect=said,
            parallel=kind in BESIDE,
            lane="query" if kind == "look" else None,
        )

    # ---- when all is over ----

    async def _tell_finals(self, ids: list[str]) -> None:
        inbox = next(iter(self.sessions.values())).host.inbox
        for message_id in ids:
            try:
                final = await inbox.wait(message_id)
            except LanewayError as error:
                self.say("final", message_id, "", error.code, "")
            else:
                self.say("final", message_id, final.disposition, final.outcome or "", final.reason)
        self.say("done")

    async def _report(self) -> None:
        for name, session in self.sessions.items():
            history = await session.history()
            _, ended = plans_in(history)
            ledger = [[entry.tool, entry.state.value, entry.key] for entry in await session.ledger()]
            memory = hashlib.sha256(repr(history).encode()).hexdigest()
            problems = list(problems_of([*history, Prompt(text="next")]))
            self.say(
                "session",
                name,
                {
                    "ended": ended,
                    "ledger": ledger,
                    "memory": memory,
                    "problems": problems,
                    "principal": session.principal(),
                },
            )
        self.say("done")


def live(options: AgentLifeOptions, ours: socket.socket) -> int:
    """Be the process under test; the exit code."""
    logging.basicConfig(filename=options.folder / "log", level=logging.ERROR, force=True)

    async def main() -> int:
        reader, writer = await asyncio.open_connection(sock=ours)
        life = Life(options, reader, writer)
        try:
            await life.run()
        except LanewayError as error:
            _log.exception("life %d failed", options.number)
            life.say("failed", error.code)
            await writer.drain()
            return 3
        return 0

    return asyncio.run(main())
