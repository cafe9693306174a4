"""What handlers do: they take in, reply, spawn, ask and fail as drawn, and write down what they really got."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from laneway.errors import (
    ClosedError,
    FencedError,
    InterruptSignalError,
    JobFailedError,
    LanewayError,
    StoreUnavailableError,
    UsageError,
)
from laneway.mail import TurnState
from laneway.runtime.turns import Child, Turn
from laneway.sim.mail_books import Books, ChildRecord, Life, TurnRecord
from laneway.sim.mail_world import MailDice, MailWorld
from laneway.sim.shadow import LawBrokenError
from laneway.sim.tally import Boom
from laneway.stores.memory import MemoryDisk

__all__ = ("Agents",)

ACTS_MAX = 5
HANG_MS = 3_000
BREED_MAX = 120  # follow-ups and sub-agents of one run
FOLLOWUPS_MAX = 5
PHASES = ("acting", "compacting", "waiting", "delivering", "thinking")
STUBBORN_TIMES = 3
STORE_TROUBLE = (StoreUnavailableError, ClosedError)


class Agents:
    """All handlers of one run."""

    def __init__(
        self,
        world: MailWorld,
        dice: MailDice,
        books: Books,
        disk: MemoryDisk,
        guard: Callable[[Callable[[], object]], None],
    ) -> None:
        self._world = world
        self._dice = dice
        self._books = books
        self._disk = disk
        self._guard = guard
        self._bred = 0
        self._acts: dict[str, Callable[[TurnRecord], Awaitable[None]]] = {
            "think": self._think,
            "boundary": self._boundary,
            "consume": self._consume,
            "reply": self._reply,
            "spawn": self._spawn,
            "followup": self._followup,
            "approval": self._approval,
            "question": self._question,
            "phase": self._phase,
            "usage": self._usage,
            "peek": self._peek,
        }

    def handler(self, life: Life) -> Callable[[Turn], Awaitable[str | None]]:
        """The handler of one process."""

        async def answer(turn: Turn) -> str | None:
            return await self._work(life, turn)

        return answer

    async def _work(self, life: Life, turn: Turn) -> str | None:
        records: list[TurnRecord] = []
        seqs = {message.id: row.seq for message in turn.messages if (row := self._disk.messages.get(message.id))}
        self._guard(lambda: records.append(self._books.begin(life, turn, seqs)))
        if not records:
            return None  # a law is broken, and the run is over
        record = records[0]
        end = "cancel"
        try:
            answer = await self._live(record)
            end = "return" if answer is None or isinstance(answer, str) else "garbage"
            if isinstance(answer, str) and "\ud800" in answer:
                end = "garbage"
            record.answer = answer if isinstance(answer, str) and end == "return" else None
        except Exception:
            end = "raise"
            raise
        finally:
            self._books.leave(record, end)
        return answer  # type: ignore[return-value]  # garbage is part of the game

    async def _live(self, record: TurnRecord) -> object:
        stubborn = STUBBORN_TIMES if self._dice.happens("stubborn") else 0
        while True:
            try:
                for _ in range(self._dice.rng.randint(0, ACTS_MAX)):
                    await self._step(record)
                if self._dice.happens("hang"):
                    await self._hang(record.life)
                return self._answer()
            except asyncio.CancelledError:
                if record.life.is_dead or not stubborn:
                    raise
                stubborn -= 1
            except InterruptSignalError:
                if not record.turn.cancelled:
                    self._guard(lambda: _broken(f"turn {record.turn.id} was interrupted by nobody"))
                if not stubborn:
                    raise
                stubborn -= 1
                await self._sleep(record, self._world.work_ms * 5)
            except FencedError:
                self._check_fenced(record)
                if not stubborn:
                    raise
                stubborn -= 1

    async def _step(self, record: TurnRecord) -> None:
        act = self._dice.one(self._world.acts) if not self._dice.honest else "think"
        if act in ("followup", "spawn") and self._breed() > BREED_MAX:
            act = "think"  # each of them makes a further turn: without a bound a world would never end
        try:
            await self._acts[act](record)
        except STORE_TROUBLE:
            if not self._dice.happens("swallow"):
                raise
        self._guard(lambda: self._books.check_single(record.owner))

    def _breed(self) -> int:
        self._bred += 1
        return self._bred

    def _check_fenced(self, record: TurnRecord) -> None:
        if not record.turn.state.is_final and not record.life.is_lost and not record.life.is_dead:
            state = record.turn.state
            self._guard(lambda: _broken(f"turn {record.turn.id} is {state}, and was told that it is fenced"))

    def _answer(self) -> object:
        if self._dice.happens("raise"):
            raise Boom("drawn")
        if self._dice.happens("garbage"):
            return self._dice.one((7, b"bytes", "half \ud800 of a pair", ["a list"]))
        return self._dice.one((None, "", self._books.next_tag("answer-"), self._books.next_tag("answer-")))

    async def _sleep(self, record: TurnRecord, most_ms: int) -> None:
        """Sleep for a while, and no longer than the process lives."""
        await asyncio.sleep(self._dice.span(most_ms))
        if record.life.is_dead:
            raise asyncio.CancelledError

    async def _hang(self, life: Life) -> None:
        while not self._dice.honest:
            await asyncio.sleep(self._dice.span(HANG_MS))
            if life.is_dead:
                raise asyncio.CancelledError

    # ---- acts ----

    async def _think(self, record: TurnRecord) -> None:
        await self._sleep(record, self._world.work_ms)

    async def _boundary(self, record: TurnRecord) -> None:
        messages = await record.turn.boundary()
        self._guard(lambda: self._books.take(record, messages))

    async def _consume(self, record: TurnRecord) -> None:
        messages = await record.turn.consume_pending()
        self._guard(lambda: self._books.take(record, messages))

    async def _peek(self, record: TurnRecord) -> None:
        record.turn.peek_pending()
        await asyncio.sleep(0)

    async def _usage(self, record: TurnRecord) -> None:
        record.turn.add_usage(self._dice.rng.randint(0, 9))
        await asyncio.sleep(0)

    async def _reply(self, record: TurnRecord) -> None:
        text = self._books.next_tag("part-")
        was_final = record.turn.state.is_final
        await record.turn.reply(text)
        record.said.append(text)
        if was_final:
            self._guard(lambda: _broken(f"turn {record.turn.id} had ended, and its reply was taken"))
        found = any(
            row.text == text and row.turn_id == record.turn.id
            for row in self._disk.drawers[record.owner].entries.values()
        )
        if not found:
            self._guard(lambda: _broken(f"the reply {text} of {record.turn.id} was taken, and is not in the store"))

    async def _phase(self, record: TurnRecord) -> None:
        async with record.turn.phase(TurnState(self._dice.one(PHASES))):
            await self._sleep(record, self._world.work_ms)
            if self._dice.rng.random() < 0.5:
                await self._boundary(record)

    async def _followup(self, record: TurnRecord) -> None:
        deep = record.turn.depth
        try:
            await record.turn.request_followup(self._books.next_tag("followup-"))
        except UsageError:
            if deep < FOLLOWUPS_MAX:
                self._guard(lambda: _broken(f"follow-up number {deep} was refused"))
            return

    async def _approval(self, record: TurnRecord) -> None:
        timeout_ms = self._dice.rng.choice((1, 100, 2_000, 120_000))
        asked = self._books.next_tag("action-")
        approval = await record.turn.ask_approval(asked, {"n": 1}, timeout_ms=timeout_ms)
        if approval.action != asked or approval.state == "pending":
            self._guard(lambda: _broken(f"{asked} was answered by {approval}"))

    async def _question(self, record: TurnRecord) -> None:
        message = await record.turn.ask(
            self._books.next_tag("question-"), timeout_ms=self._dice.rng.choice((1, 300, 5_000))
        )
        if message is not None:
            self._guard(lambda: self._books.take(record, [message]))

    # ---- sub-agents ----

    async def _spawn(self, record: TurnRecord) -> None:
        child = ChildRecord(label=self._books.next_tag("child-"), owner=record.owner, life=record.life)
        limit = self._dice.rng.choice((None, None, 50, 5_000))
        fn = self._child if self._dice.rng.random() < 0.8 else self._threaded_child
        handle = record.turn.spawn(fn, child, label=child.label, timeout_ms=limit)
        child.id = handle.id
        self._books.children[child.label] = child
        if self._dice.rng.random() < 0.5:
            await self._await_child(child, handle)

    async def _await_child(self, child: ChildRecord, handle: Child) -> None:
        try:
            child.awaited = True
            await handle
        except (Boom, JobFailedError):
            pass
        except StoreUnavailableError:
            child.doubtful = True
        except LanewayError:
            pass
        except asyncio.CancelledError:
            child.awaited = handle.done()
            if handle.done():
                child.doubtful = True  # it ended in the same moment: its turn got the result, or did not
            raise

    def _threaded_child(self, child: ChildRecord) -> str:
        child.ran += 1
        if self._dice.happens("raise"):
            raise Boom(child.label)
        return f"result of {child.label}"

    async def _child(self, child: ChildRecord) -> str:
        child.ran += 1
        if child.ran > 1:
            self._guard(lambda: _broken(f"sub-agent {child.label} ran twice"))
        await asyncio.sleep(self._dice.span(self._world.work_ms * 2))
        if child.life.is_dead:
            raise asyncio.CancelledError
        if self._dice.happens("hang"):
            await self._hang(child.life)
        if self._dice.happens("raise"):
            raise Boom(child.label)
        return f"result of {child.label}"


def _broken(problem: str) -> None:
    raise LawBrokenError(problem)
