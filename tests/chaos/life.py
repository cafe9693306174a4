"""The process under test: an inbox and durable lanes on one store file, driven line by line over a socket.

In: `["message", number, session, channel, mode, text, platform_id]`, `["poke", number, session, what]`,
`["job", number, effect]`, `["wait", ids]`, `["rest", sessions]`, `["jobs"]`, `["close"]`.
Out: `["ready"]`, `["stored", number]`, `["ack", number, id, duplicate]`, `["no", number, code]`,
`["final", id, state, outcome, turn, reason]`, `["jobs", dead letters]`, `["done"]`, `["closed"]`, `["failed", code]`.
An answer is written only after `submit` or `enqueue` has returned. A life that is mute gives none: it says what it has
stored, so that whoever kills it knows of messages that are on disk and have no answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import re
import socket
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from laneway import Lanes
from laneway.errors import LanewayError
from laneway.events import MessageEnded
from laneway.inbox import Inbox
from laneway.mail import Message
from laneway.ports import Store
from laneway.rows import Batch, BatchResult
from laneway.runtime.subscriptions import Subscription
from laneway.runtime.turns import Turn
from laneway.stores.sqlite import SqliteStore
from laneway.system import SystemClock
from tests.chaos.plan import BY_CHANNEL, platform_number
from tests.chaos.witness import Witness

__all__ = ("LifeOptions", "Sabotage", "live")

Sabotage = Literal["", "hasty-store", "forget-ids", "reorder", "rerun-all"]
"""Faults that are planted to prove that the checker would find them."""

_log = logging.getLogger("chaos")
SLOW_ANSWERS = 0.2
"""How many answers are held up for a while: a kill then hits messages that are stored, and nobody was told."""
DROPPED = re.compile(r"Dropped ([\d,]+) message")


@dataclass(frozen=True, slots=True, kw_only=True)
class LifeOptions:
    """Where the process works and how."""

    folder: Path
    number: int
    on_crash: Literal["report", "rerun"]
    jobs: bool = False
    pace_ms: float = 4.0
    sabotage: Sabotage = ""
    mute: bool = False

    def store(self) -> str | Store:
        """The store, or its address."""
        path = self.folder / "chaos.db"
        return HastyStore(path) if self.sabotage == "hasty-store" else f"sqlite:///{path}"


class HastyStore(SqliteStore):
    """Says that rows are on disk a while before they are."""

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Promise."""
        task = asyncio.get_running_loop().create_task(self._commit_later(batches))
        _PROMISES.add(task)
        task.add_done_callback(_PROMISES.discard)
        return [BatchResult()] * len(batches)

    async def _commit_later(self, batches: Sequence[Batch]) -> None:
        await asyncio.sleep(0.03)
        await super().commit(batches)


_PROMISES: set[asyncio.Task[None]] = set()


class Life:
    """One process from its start to its end."""

    def __init__(self, options: LifeOptions, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._options = options
        self._reader = reader
        self._writer = writer
        self._witness = Witness(options.folder / "witness", options.number)
        self._tasks: set[asyncio.Task[None]] = set()
        self._random = random.Random()

    def say(self, *facts: Any) -> None:
        """Tell the loader."""
        self._writer.write(json.dumps(facts).encode() + b"\n")

    async def run(self) -> None:
        """Open everything, obey, close everything."""
        options = self._options
        inbox = Inbox(
            self._answer,
            store=options.store(),
            mode="followup",
            debounce_ms=5,
            cap=100_000,
            by_channel=BY_CHANNEL,
            interrupt_grace_ms=2_000,
            dedupe_ms=0 if options.sabotage == "forget-ids" else 86_400_000,
            on_crash="rerun" if options.sabotage == "rerun-all" else options.on_crash,
            concurrency=8,
            close_timeout_ms=30,
        )
        async with contextlib.AsyncExitStack() as stack:
            lanes = await self._open_lanes(stack)
            # Before it opens: opening ends what the last life left, and whoever listens is told.
            watcher = self._start(self._watch(inbox.subscribe(MessageEnded.type, buffer_max=1_000_000)))
            await stack.enter_async_context(inbox)
            self.say("ready")
            await self._obey(inbox, lanes)
        await watcher
        self.say("closed")
        await self._writer.drain()

    async def _open_lanes(self, stack: contextlib.AsyncExitStack) -> Lanes | None:
        if not self._options.jobs:
            return None
        lanes = Lanes({"work": 4}, store=self._options.store(), dlq_max_size=100_000, close_timeout_ms=30)
        lanes.handler("note", self._job)
        return await stack.enter_async_context(lanes)

    async def _obey(self, inbox: Inbox, lanes: Lanes | None) -> None:
        while line := await self._reader.readline():
            what, *facts = json.loads(line)
            match what:
                case "message":
                    self._start(self._submit(inbox, facts))
                case "poke":
                    self._start(self._poke(inbox, *facts))
                case "rest":
                    self._start(self._tell_rest(inbox, facts[0]))
                case "job":
                    assert lanes is not None
                    self._start(self._enqueue(lanes, *facts))
                case "wait":
                    self._start(self._tell_finals(inbox, facts[0]))
                case "jobs":
                    self._start(self._tell_jobs(lanes))
                case "close":
                    return
                case _:
                    raise AssertionError(what)

    def _start(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("life %d: a task failed", self._options.number, exc_info=error)
            self.say("failed", repr(error))

    # ---- messages ----

    async def _submit(self, inbox: Inbox, facts: list[Any]) -> None:
        number, session, channel, mode, text, platform_id = facts
        if self._options.sabotage == "reorder":
            await asyncio.sleep(self._random.uniform(0, 0.01))
        try:
            receipt = await inbox.submit(
                session, text, channel=channel, mode=mode, message_id=platform_id, sender="ada"
            )
        except LanewayError as error:
            self.say("no", number, error.code)
        else:
            self._witness.note("accepted", receipt.message_id, session)
            if self._options.mute:
                self.say("stored", number)
                return
            if self._random.random() < SLOW_ANSWERS:
                await asyncio.sleep(self._random.uniform(0, 0.01))
            self.say("ack", number, receipt.message_id, receipt.duplicate)

    async def _poke(self, inbox: Inbox, number: int, session: str, what: str) -> None:
        """Do something to a session, and write down when it was asked for and when it was acknowledged."""
        message_id = ""
        try:
            if waiting := inbox.pending(session):
                message_id = self._random.choice(waiting).id
            self._witness.note("poke", number)
            match what:
                case "stop":
                    await inbox.stop(session)
                case "withdraw" if message_id:
                    await inbox.withdraw(message_id)
                case "edit" if message_id:
                    await inbox.edit(message_id, f"edit {number} please")
                case "schedule":
                    due = SystemClock().wall_ms() + self._random.randrange(400)
                    await inbox.schedule(session, f"clock {number} please", at_ms=due, missed="run")
                case _:
                    what = "nothing"
        except LanewayError as error:
            self.say("no", number, error.code)
        else:
            self._witness.note("poked", number, what, session, message_id)
            self.say("ack", number, message_id, False)

    async def _answer(self, turn: Turn) -> str | None:
        """The agent: some answer at once, some take their time and look for messages, some fail."""
        messages = [_seen(message) for message in turn.messages]
        dropped = None if messages else DROPPED.search(turn.prompt)
        told = int(dropped[1].replace(",", "")) if dropped else 0
        self._witness.note("begin", turn.id, turn.session_key, messages, told)
        how = "cut"
        try:
            nature = self._random.random()
            if turn.session_key.startswith("family") and turn.kind == "user":
                await self._raise_child(turn)
            for _ in range(0 if nature < 0.4 else self._random.randrange(1, 6)):
                await asyncio.sleep(self._random.uniform(0, 2 * self._options.pace_ms / 1000))
                taken = [_seen(message) for message in await turn.boundary()]
                if taken:
                    self._witness.note("took", turn.id, taken)
            if nature > 0.97:
                how = "failed"
                raise RuntimeError("this turn was to fail")
            if nature > 0.9:
                await turn.reply("a part of the answer")
            how = "ok"
            return f"done by {turn.id}" if nature < 0.95 else None
        finally:
            self._witness.note("end", turn.id, how)

    async def _raise_child(self, turn: Turn) -> None:
        """Start a sub-agent; some turns wait for it, the others leave it alone and hear of its end in a message."""
        label = f"kid of {turn.id}"
        is_awaited = self._random.random() < 0.5
        child = turn.spawn(self._be_a_child, label, is_awaited, label=label)
        if is_awaited:
            await child

    async def _be_a_child(self, label: str, is_awaited: bool) -> None:
        self._witness.note("child", label, is_awaited)
        await asyncio.sleep(self._random.uniform(0, 4 * self._options.pace_ms / 1000))

    async def _watch(self, events: Subscription) -> None:
        """Write down every end that the inbox makes public."""
        async for event in events:
            assert isinstance(event, MessageEnded)
            self._witness.note("final", event.message_id, event.state, event.outcome or "")

    async def _tell_finals(self, inbox: Inbox, ids: list[str]) -> None:
        for message_id in ids:
            try:
                final = await inbox.wait(message_id)
            except LanewayError as error:
                self.say("final", message_id, "", error.code, "", "")
            else:
                told = (final.disposition, final.outcome or "", final.turn_id or "", final.reason)
                self.say("final", message_id, *told)
        self.say("done")

    async def _tell_rest(self, inbox: Inbox, sessions: list[str]) -> None:
        """Say when nothing runs and nothing waits any more, what the inbox sent itself included."""

        def is_busy() -> bool:
            return bool(inbox.lanes.stats().running) or any(inbox.pending(session) for session in sessions)

        while inbox.schedules() or is_busy():  # noqa: ASYNC110 - it looks from outside, as a host would
            await asyncio.sleep(0.02)
        self.say("done")

    async def _tell_jobs(self, lanes: Lanes | None) -> None:
        if lanes is not None:
            await lanes.drain()
            self.say("jobs", [[letter.id, letter.reason] for letter in lanes.dead_letters.list()])
        self.say("done")

    # ---- jobs ----

    async def _enqueue(self, lanes: Lanes, number: int, effect: Any) -> None:
        try:
            job = await lanes.enqueue("work", "note", {"number": number}, effect=effect)
        except LanewayError as error:
            self.say("no", number, error.code)
        else:
            self.say("ack", number, job.id, False)

    async def _job(self, payload: dict[str, Any]) -> int:
        number: int = payload["number"]
        self._witness.note("job-begin", number)
        await asyncio.sleep(self._random.uniform(0, self._options.pace_ms / 1000))
        self._witness.note("job-end", number)
        return number


def _seen(message: Message) -> tuple[str, int, str]:
    return message.id, platform_number(message.message_id), message.text


def live(options: LifeOptions, ours: socket.socket) -> int:
    """Be the process under test; the exit code."""
    logging.basicConfig(filename=options.folder / "log", level=logging.WARNING, force=True)

    async def main() -> int:
        reader, writer = await asyncio.open_connection(sock=ours)
        life = Life(options, reader, writer)
        try:
            await life.run()
        except LanewayError as error:
            _log.exception("life %d (pid %d) failed", options.number, os.getpid())
            life.say("failed", error.code)
            await writer.drain()
            return 3
        return 0

    return asyncio.run(main())
