"""Who is outside of the inbox: senders, and operators who edit, move, hold, stop and schedule at the wrong moment."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol, TypeVar

from laneway.errors import (
    ClosedError,
    FencedError,
    InterruptSignalError,
    MailboxFullError,
    MessageStateError,
    StoreUnavailableError,
    UnknownMessageError,
)
from laneway.inbox import Inbox
from laneway.mail import Drop, MessageKind, MessageState, Mode, Receipt
from laneway.rows import Owner
from laneway.sim.mail_books import Books, Letter, Verdict
from laneway.sim.mail_world import MailDice, MailWorld
from laneway.sim.shadow import LawBrokenError
from laneway.stores.memory import MemoryDisk

__all__ = ("CallLostError", "People", "Stage")

T = TypeVar("T")
TROUBLE = (StoreUnavailableError, ClosedError, FencedError)
GONE = (UnknownMessageError, MessageStateError)
JUMP_MS = 1_800_000  # less than half of any dedupe window but 0
FREED = frozenset(
    {
        *(MessageState.WITHDRAWN, MessageState.EXPIRED, MessageState.DROPPED, MessageState.SUMMARIZED),
        *(MessageState.SUPERSEDED, MessageState.REJECTED, MessageState.DEAD_LETTERED),
    }
)


class CallLostError(Exception):
    """The process died before it answered."""


class Stage(Protocol):
    """What people need of the run."""

    wall: list[int]

    @property
    def inbox(self) -> Inbox:
        """The inbox that is open now."""

    async def call(
        self, what: str, call: Callable[[Inbox], Coroutine[Any, Any, T]], patience: float | None = None
    ) -> T:
        """Call the inbox that is open now; `CallLostError` when its process dies meanwhile, or patience ends."""

    def say(self, what: str, subject: str = "", detail: str = "") -> None:
        """One line of the trace."""

    def guard(self, check: Callable[[], object]) -> None:
        """Note a broken law."""

    def watch(self, letter: Letter) -> None:
        """Somebody waits for the end of a message."""


class People:
    """Senders and operators of one run."""

    def __init__(self, world: MailWorld, dice: MailDice, books: Books, disk: MemoryDisk, stage: Stage) -> None:
        self._world = world
        self._dice = dice
        self._books = books
        self._disk = disk
        self._stage = stage
        self._dedupes = world.options.get("dedupe_ms") != 0

    # ---- senders ----

    def _letter(self) -> Letter:
        dice, world = self._dice, self._world
        tenant, session = dice.one(world.sessions)
        kind = MessageKind.USER
        if dice.happens("system"):
            kind = MessageKind.SYSTEM
        elif dice.happens("heartbeat"):
            kind = MessageKind.HEARTBEAT
        tag = self._books.next_tag("m")
        letter = Letter(
            tag=tag,
            owner=Owner(tenant, self._world.workspace, session),
            texts=[f"{tag} hello"],
            route=dice.one(world.routes),
            sender=dice.one(world.senders),
            mode=dice.one(world.modes),
            kind=kind,
        )
        if dice.rng.random() < 0.4:
            letter.platform_id = f"p{tag}"
        if world.options["commands"] and kind is MessageKind.USER and dice.happens("inline"):
            letter.prefix = dice.one(
                ("/steer ", "/followup ", "/queue interrupt ", "/queue collect cap:3 debounce:10ms ")
            )
        return letter

    async def send(self) -> None:
        """Send a message, sometimes a burst of them, sometimes twice."""
        letters = [self._letter()]
        while self._dice.happens("burst") and len(letters) < 8:
            letters.append(self._letter())
        for letter in letters:
            self._books.letters[letter.tag] = letter
        create = asyncio.get_running_loop().create_task
        # Named as the simulator's own: when the process of the inbox dies, its senders live on.
        sending = [create(self._send(letter), name=f"sim send {letter.tag}") for letter in letters]
        results = await asyncio.gather(*sending, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    async def _send(self, letter: Letter) -> None:
        receipt = await self._submit(letter)
        if receipt is None:
            return
        letter.id = receipt.message_id
        letter.verdict = Verdict.ACCEPTED
        if receipt.disposition is MessageState.COMMAND:
            letter.verdict = Verdict.COMMAND  # it lacked the right to choose: it was answered, and never runs
        self._stage.guard(lambda: self._check_stored(letter, receipt))
        if self._dice.rng.random() < 0.5:
            self._stage.watch(letter)
        if letter.platform_id is not None and self._dedupes and self._dice.happens("duplicate"):
            await self._send_again(letter)

    async def _submit(self, letter: Letter) -> Receipt | None:
        self._stage.say("send", letter.tag, f"{letter.owner.session} {letter.mode} {letter.kind}")
        expires = self._world.expires_ms if self._dice.rng.random() < 0.1 else None

        def submit(inbox: Inbox) -> Coroutine[Any, Any, Receipt]:
            return inbox.submit(
                letter.owner.session,
                letter.prefix + letter.texts[0],
                channel=letter.route.channel,
                account=letter.route.account,
                thread=letter.route.thread,
                chat_type=letter.route.chat_type,
                sender=letter.sender,
                message_id=letter.platform_id,
                mode=letter.mode,
                kind=letter.kind,
                tenant=letter.owner.tenant,
                expires_ms=expires,
            )

        patience = self._dice.span(self._world.slow_ms) if self._dice.happens("give_up") else None
        try:
            receipt = await self._stage.call(f"submit {letter.tag}", submit, patience)
        except MailboxFullError:
            if letter.verdict is Verdict.SENT:
                letter.verdict = Verdict.REFUSED
            self._stage.say("refused", letter.tag, "full")
            return None
        except (*TROUBLE, CallLostError) as error:
            if letter.verdict is Verdict.SENT:
                letter.verdict = Verdict.FAILED
            self._stage.say("failed", letter.tag, type(error).__name__)
            return None
        self._stage.say("receipt", letter.tag, f"{receipt.message_id} {receipt.disposition}; {receipt.reason}")
        return receipt

    def _check_stored(self, letter: Letter, receipt: Receipt) -> None:
        row = self._disk.messages.get(receipt.message_id)
        if row is None:
            raise LawBrokenError(f"{letter.tag} has a receipt, and the store does not have it")
        if receipt.duplicate:
            raise LawBrokenError(f"{letter.tag} was sent once, and called a duplicate")
        if not receipt.reason and receipt.disposition is not MessageState.QUEUED:
            raise LawBrokenError(f"the receipt of {letter.tag} says {receipt.disposition} for no reason")

    async def _send_again(self, letter: Letter) -> None:
        """A platform delivers a message twice."""
        await asyncio.sleep(self._dice.span(self._world.gap_ms))
        before = self._disk.messages[letter.id].state
        receipt = await self._submit(letter)
        if receipt is None:
            return
        after = self._disk.messages[letter.id].state
        if receipt.message_id != letter.id and not {MessageState(before), MessageState(after)} & FREED:
            self._stage.guard(lambda: _broken(f"{letter.tag} is {letter.id}, and the same again {receipt.message_id}"))

    # ---- operators ----

    async def meddle(self) -> None:
        """Do something to a queue or a session."""
        if not self._world.meddling:
            return
        what = self._dice.one(self._world.meddling)
        act: Callable[[], Awaitable[None]] = getattr(self, f"_do_{what}")
        with contextlib.suppress(*TROUBLE, *GONE, CallLostError):  # the inbox may be gone, and so may the message
            await act()

    def _waiting(self) -> Letter | None:
        """A letter whose message waits, as far as its sender knows."""
        known = [letter for letter in self._books.letters.values() if letter.id]
        waiting = [letter for letter in known if self._disk.messages[letter.id].state in ("queued", "parked", "held")]
        return self._dice.one(waiting or known) if known else None

    async def _do_edit(self) -> None:
        letter = self._waiting()
        if letter is not None:
            text = f"{letter.tag} edited {len(letter.texts)}"
            letter.texts.append(text)
            self._stage.say("edit", letter.id, text)
            await self._stage.call("edit", lambda inbox: inbox.edit(letter.id, text))

    async def _on_waiting(self, what: str, call: Callable[[Inbox, str], Coroutine[Any, Any, Any]]) -> None:
        letter = self._waiting()
        if letter is not None:
            letter.touched = True
            self._stage.say(what, letter.id)
            await self._stage.call(what, lambda inbox: call(inbox, letter.id))

    async def _do_move(self) -> None:
        position = self._dice.rng.randint(1, 4)
        await self._on_waiting("move", lambda inbox, message_id: inbox.move(message_id, position))

    async def _do_hold(self) -> None:
        await self._on_waiting("hold", lambda inbox, message_id: inbox.hold(message_id))

    async def _do_release(self) -> None:
        await self._on_waiting("release", lambda inbox, message_id: inbox.release(message_id))

    async def _do_withdraw(self) -> None:
        await self._on_waiting("withdraw", lambda inbox, message_id: inbox.withdraw(message_id))

    async def _do_steer_now(self) -> None:
        await self._on_waiting("steer_now", lambda inbox, message_id: inbox.steer_now(message_id))

    async def _do_retry(self) -> None:
        known = [letter for letter in self._books.letters.values() if letter.id]
        if known:
            letter = self._dice.one(known)
            self._stage.say("retry", letter.id)
            with contextlib.suppress(MailboxFullError):
                await self._stage.call("retry", lambda inbox: inbox.retry(letter.id))

    async def _do_approve(self) -> None:
        await self._answer("approve")

    async def _do_deny(self) -> None:
        await self._answer("deny")

    async def _answer(self, what: str) -> None:
        pending = self._stage.inbox.approvals(tenant=self._session().tenant)
        if pending:
            approval = self._dice.one(pending)
            self._stage.say(what, approval.id)
            await self._stage.call(what, lambda inbox: getattr(inbox, what)(approval.id))

    def _session(self) -> Owner:
        tenant, session = self._dice.one(self._world.sessions)
        return Owner(tenant, self._world.workspace, session)

    async def _do_stop(self) -> None:
        owner = self._session()
        self._books.stop(owner)
        self._stage.say("stop", owner.session)
        await self._stage.call("stop", lambda inbox: inbox.stop(owner.session, tenant=owner.tenant))

    async def _command(self, text: str) -> None:
        owner = self._session()
        self._books.stop(owner)
        sender = self._dice.one(self._world.senders)
        self._stage.say("command", owner.session, text)
        reply = await self._stage.call(
            text, lambda inbox: inbox.command(owner.session, text, sender=sender, tenant=owner.tenant)
        )
        if not reply:
            self._stage.guard(lambda: _broken(f"{text!r} was not answered"))

    async def _do_new(self) -> None:
        await self._command("/new")

    async def _do_queue_set(self) -> None:
        mode, cap, drop = self._dice.one(list(Mode)), self._dice.rng.randint(1, 5), self._dice.one(list(Drop))
        parts = [mode.value, f"cap:{cap}", f"drop={drop.value}", "debounce:50ms"]
        await self._command(" ".join(["/queue", *parts[: self._dice.rng.randint(1, 4)]]))

    async def _do_queue_reset(self) -> None:
        await self._command("/queue default")

    async def _do_queue_clear(self) -> None:
        await self._command("/queue clear")

    async def _do_queue_cancel(self) -> None:
        letter = self._waiting()
        if letter is not None:
            await self._command(f"/queue cancel {letter.id}")

    async def _do_status(self) -> None:
        await self._command(self._dice.one(("/status", "/queue", "/queue list", "/queue nonsense")))
        owner = self._session()
        self._stage.inbox.pending(owner.session, tenant=owner.tenant)
        letter = self._waiting()
        if letter is not None:
            story = await self._stage.call("explain", lambda inbox: inbox.explain(letter.id))
            if not story.steps:
                self._stage.guard(lambda: _broken(f"{letter.id} has no story"))

    async def _do_schedule(self) -> None:
        owner, rng = self._session(), self._dice.rng
        kind = self._dice.one((MessageKind.SYSTEM, MessageKind.HEARTBEAT))
        when: dict[str, Any] = {"every_ms": rng.randint(1_000, 5_000)}
        if rng.random() < 0.3:
            when = {
                "at_ms": self._stage.wall[0] + round(asyncio.get_running_loop().time() * 1000) + rng.randint(0, 900)
            }
        when["missed"] = self._dice.one(("skip", "run"))
        tag = self._books.next_tag("tick-")
        self._stage.say("schedule", tag, f"{owner.session} {kind} {when}")
        await self._stage.call(
            "schedule",
            lambda inbox: inbox.schedule(owner.session, f"{tag} now", tenant=owner.tenant, kind=kind, **when),
        )

    async def _do_unschedule(self) -> None:
        schedules = self._stage.inbox.schedules(tenant=self._session().tenant)
        if schedules:
            schedule = self._dice.one(schedules)
            await self._stage.call("unschedule", lambda inbox: inbox.unschedule(schedule.id))

    async def _do_jump(self) -> None:
        by = self._dice.rng.randint(-JUMP_MS, JUMP_MS)
        self._stage.wall[0] += by
        self._stage.say("jump", "", f"{by} ms")

    async def _do_middleware(self) -> None:
        """Somebody without a `Turn` at hand takes what waits into the turn that runs."""
        owner = self._session()
        with contextlib.suppress(InterruptSignalError):
            taken = await self._stage.call(
                "consume", lambda inbox: inbox.consume_pending(owner.session, tenant=owner.tenant)
            )
            for message in taken:
                turn_id = self._disk.messages[message.id].turn_id
                self._books.taken.setdefault(turn_id, []).append(message.id)

    async def _do_pause(self) -> None:
        self._stage.say("pause", self._lane())
        self._stage.inbox.lanes.pause(self._lane())
        await asyncio.sleep(0)

    async def _do_resume(self) -> None:
        self._stage.inbox.lanes.resume(self._lane())
        await asyncio.sleep(0)

    async def _do_drain(self) -> None:
        """The lanes take no work for a while; messages are still accepted."""
        lanes = self._stage.inbox.lanes
        self._stage.say("drain")
        draining = asyncio.get_running_loop().create_task(lanes.drain(timeout_ms=None), name="call drain")
        await asyncio.sleep(self._dice.span(self._world.gap_ms))
        draining.cancel()
        await asyncio.wait([draining])
        with contextlib.suppress(ClosedError):
            lanes.reopen()

    def _lane(self) -> str:
        workspace = self._world.workspace
        return "main" if workspace == "default" or not self._world.shares_lanes else f"{workspace}/main"

    async def _do_squeeze(self) -> None:
        """Somebody takes waiting jobs out of the lanes; the turns they were for are asked for again."""
        inbox = self._stage.inbox
        self._stage.say("squeeze", "", f"{inbox.lanes.cancel_waiting(self._lane())} waiting")
        await asyncio.sleep(0)


def _broken(problem: str) -> None:
    raise LawBrokenError(problem)
