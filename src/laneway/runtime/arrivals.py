"""Messages on their way in, and questions about them: the part of the inbox engine that callers meet first.

Messages of one session keep their order, whatever has to be looked up for one of them: those with a platform id are
held against what the store has seen, in one question for all that came together, and whoever comes later waits behind.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, NamedTuple

from laneway.errors import (
    ClosedError,
    ConflictError,
    FencedError,
    LanewayError,
    StoreCorruptError,
    StoreUnavailableError,
    UnknownMessageError,
    UsageError,
    WrongThreadError,
    describe,
)
from laneway.events import Event
from laneway.kernel.mailroom import Mailroom
from laneway.kernel.messages import Item, route_key
from laneway.kernel.reception import AT_ONCE
from laneway.kernel.waits import Waits
from laneway.mail import Final, Message, MessageState, Outcome, QueueOptions, QueueSettings, Receipt
from laneway.ports import Clock, Ids, Store
from laneway.rows import Lookup, MessageRow, Owner, Row
from laneway.runtime.journal import Journal
from laneway.runtime.subscriptions import Audience, Subscription

__all__ = ("Arrival", "Arrivals", "Beside", "fail", "final_from", "receipt_of")

_log = logging.getLogger("laneway")

_FREED = frozenset(
    {
        MessageState.WITHDRAWN,
        MessageState.EXPIRED,
        MessageState.DROPPED,
        MessageState.SUMMARIZED,
        MessageState.SUPERSEDED,
        MessageState.REJECTED,
        MessageState.DEAD_LETTERED,
    }
)
"""Given up before its turn began: the platform's id may be used again."""


Beside = Callable[[Receipt], Row | None]


class Arrival(NamedTuple):
    """A message on its way in. `resolve` gives the settings in force at the moment it is taken.

    `beside` makes a row of its receipt that is stored in the same commit, if there is to be one. `check` is called when
    it is taken, and may refuse it.
    """

    message: Message
    resolve: Callable[[Message], tuple[Message, QueueSettings]]
    lane: str
    expires_ms: int
    dedupe_ms: int
    beside: Beside | None = None
    check: Callable[[], None] | None = None


Taken = tuple[Receipt, asyncio.Future[None]]
"""The receipt of a message, and when it is on disk."""


class Arrivals(ABC):
    """Takes messages in, tells what becomes of them, and keeps the time."""

    def __init__(self, kernel: Mailroom, *, store: Store, clock: Clock, ids: Ids, workspace: str) -> None:
        self.kernel = kernel
        self.store = store
        self.now = clock.monotonic_ms
        self.wall = clock.wall_ms
        self.ids = ids
        self.workspace = workspace
        self.journal: Journal
        self.loop: asyncio.AbstractEventLoop
        self.thread = 0
        self.is_open = False
        self.is_shut = False
        self.last_failure = ""
        self._lost: FencedError | None = None
        self._arrivals: deque[tuple[Arrival | None, asyncio.Future[Any]]] = deque()
        self._looking: asyncio.Task[None] | None = None
        self._looked_up: list[tuple[Arrival | None, asyncio.Future[Any]]] = []  # what that task is about
        self._unstored: dict[tuple[Owner, str, str], Item] = {}  # dedupe of what the store does not have yet
        self._waiters: dict[str, list[asyncio.Future[Final]]] = {}
        self.rings = Waits(self._is_turn)
        self.on_awaited: Callable[[Owner], None] = lambda owner: None
        """Hears that somebody waits for a message of a session."""
        self._reloads: dict[Owner, asyncio.Task[None]] = {}
        self._audience = Audience(self._note_listening)
        self.on_settled: Callable[[Final], None] = lambda final: None
        """Hears of every message that is final and on disk."""
        self.followed: Collection[str] = ()
        """The messages that `on_settled` waits for."""
        self.doomed: dict[Owner, bool] = {}
        """Sessions that take no messages, because they are being deleted or imported; False: it came to no end, and
        the next start will erase what is left."""
        self.on_doomed: Callable[[Owner], None] = lambda owner: None
        """Hears of a session that is being deleted, when that is certain: nothing more is to be sent there."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due: int | None = None

    @abstractmethod
    def carry_out(self) -> None:
        """Do what the kernel has decided."""

    def check_thread(self, call: str) -> None:
        """Refuse callers on other threads: everything here belongs to one loop."""
        if threading.get_ident() != self.thread:
            raise WrongThreadError(call=call)

    @abstractmethod
    def turns_around(self) -> dict[Owner, str]:
        """The turns that the calling code runs in, by their sessions."""

    @property
    def is_at_work(self) -> bool:
        """Whether it is open, not closing, and still the owner of its store."""
        return self.is_open and not self.kernel.closing and self._lost is None

    def check_open(self) -> None:
        """Refuse callers before opening and after closing, and when somebody else owns the store."""
        if not self.is_open:
            raise ClosedError(opened=hasattr(self, "journal"), what="inbox")
        self.check_thread("the inbox")
        if self._lost is not None:
            raise self._lost

    def _shut(self) -> None:
        """Leave no timer, task or waiting caller behind."""
        self.is_shut = True
        if self._timer is not None:
            self._timer.cancel()
        closed = ClosedError(opened=True, what="inbox")
        if self._looking is not None:
            self._looking.cancel()
            for _, done in self._looked_up:  # before its first step, nobody but this can tell them
                fail(done, closed)
        while self._arrivals:
            fail(self._arrivals.popleft()[1], closed)
        for waiters in self._waiters.values():
            for waiter in waiters:
                fail(waiter, closed)
        self._audience.close()

    # ---- messages in ----

    async def accept(self, arrival: Arrival) -> Receipt:
        """Take a message in; returns when it is on disk. Messages of one session keep their order."""
        if arrival.message.message_id is None and self._looking is None and not self._arrivals:
            try:
                receipt, stored = self._decide(arrival, None)
            except LanewayError:
                self.carry_out()  # a refusal may be worth telling
                raise
        else:
            done = self.loop.create_future()
            self._arrivals.append((arrival, done))
            self._pump()
            receipt, stored = await done
        try:
            await stored
        except StoreUnavailableError:
            found = await self._find_stored(receipt.message_id)
            if found is None:
                raise
            return found
        return self._as_it_is(receipt)

    def _as_it_is(self, receipt: Receipt) -> Receipt:
        """What was to run at once may wait all the same: the lane is paused, or full."""
        item = self.kernel.items.get(receipt.message_id) if receipt.reason == AT_ONCE else None
        reason = self.kernel.slot_reason(item.owner) if item is not None else ""
        return replace(receipt, reason=reason) if reason else receipt

    def arrival(
        self,
        message: Message,
        resolve: Callable[[Message], tuple[Message, QueueSettings]],
        *,
        lane: str = "main",
        expires_ms: int = 0,
        dedupe_ms: int = 0,
    ) -> Arrival:
        """A message on its way in."""
        self.check_open()
        return Arrival(message, resolve, lane, expires_ms, dedupe_ms)

    async def in_order(self) -> None:
        """Wait until every message that came before has been taken: a command must not overtake them."""
        if self._looking is not None or self._arrivals:
            turnstile: asyncio.Future[Any] = self.loop.create_future()
            self._arrivals.append((None, turnstile))
            self._pump()
            await turnstile

    def _pump(self) -> None:
        """Take in what has arrived: at once, or when the store has said which of them it has seen before."""
        if self._looking is not None or not self._arrivals:
            return
        group = list(self._arrivals)
        self._arrivals.clear()
        self._looking = self.loop.create_task(self._look_up(group), name="laneway-dedupe")
        self._looked_up = group

    async def _look_up(self, group: list[tuple[Arrival | None, asyncio.Future[Any]]]) -> None:
        asked = [one for one, _ in group if one is not None and one.message.message_id is not None and one.dedupe_ms]
        lookups = [self._lookup(one.message, one.dedupe_ms) for one in asked]
        seen: dict[int, MessageRow] = {}
        error: Exception | None = None
        try:
            rows = await self.store.find(lookups) if lookups else []
            seen = {id(arrival): row for arrival, row in zip(asked, rows, strict=True) if row is not None}
        except LanewayError as failure:
            error = failure if self.is_open else ClosedError(opened=True, what="inbox")
        except Exception as failure:  # noqa: BLE001 - a store may raise anything; those who wait are told
            error = StoreUnavailableError(f"the store failed: {describe(failure)}")
        except asyncio.CancelledError:
            for _, done in group:
                fail(done, ClosedError(opened=True, what="inbox"))
            raise
        finally:
            self._looking = None
        for arrival, done in group:
            if arrival is None:
                if not done.done():
                    done.set_result(None)
            elif error is not None and arrival in asked:
                fail(done, error)
            elif not done.done():  # else its sender gave up before it was taken
                self._take(arrival, seen.get(id(arrival)), done)
        self._pump()

    def _lookup(self, message: Message, dedupe_ms: int) -> Lookup:
        since = self.wall() - dedupe_ms
        return Lookup(self.owner_of(message), route_key(message.route), message.message_id or "", since)

    def owner_of(self, message: Message) -> Owner:
        """Whose message it is."""
        return Owner(message.tenant, self.workspace, message.session_key)

    def _take(self, arrival: Arrival, seen: MessageRow | None, done: asyncio.Future[Taken]) -> None:
        """Hand a message to the kernel; whoever sent it gets the receipt and waits for the commit."""
        try:
            done.set_result(self._decide(arrival, seen))
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to this sender alone
            self.carry_out()  # a refusal may be worth telling
            fail(done, error)

    def _decide(self, arrival: Arrival, seen: MessageRow | None) -> Taken:
        owner = self.owner_of(arrival.message)
        self.check_session(owner)
        self.begin_anew(owner)
        known = self._seen_before(owner, arrival, seen)
        if known is not None:
            return known
        if arrival.check is not None:
            arrival.check()
        message, settings = arrival.resolve(arrival.message)
        item = Item(owner, message, seq=self.store.next_seq(), lane=arrival.lane, expires_ms=arrival.expires_ms)
        receipt = self.kernel.accept(item, settings, now=self.now(), wall=self.wall())
        row = None if arrival.beside is None else arrival.beside(receipt)
        if row is not None:
            self.journal.add(owner, row)
        return receipt, self._store_new(item)

    def _store_new(self, item: Item) -> asyncio.Future[None]:
        owner, platform_id = item.owner, item.message.message_id
        if platform_id is not None:
            key = (owner, item.route_key, platform_id)
            self._unstored[key] = item
            self.journal.after(owner, lambda _: self._forget_unstored(key))
        self.carry_out()
        return self.journal.committed(owner)

    def _forget_unstored(self, key: tuple[Owner, str, str]) -> None:
        self._unstored.pop(key, None)

    def _seen_before(self, owner: Owner, arrival: Arrival, seen: MessageRow | None) -> Taken | None:
        platform_id = arrival.message.message_id
        if platform_id is None or not arrival.dedupe_ms:
            return None
        item = self._unstored.get((owner, route_key(arrival.message.route), platform_id))
        if item is not None and item.state not in _FREED:
            receipt = Receipt(message_id=item.id, disposition=item.state, reason=item.reason, duplicate=True)
            return receipt, self.journal.committed(owner)
        if seen is not None and MessageState(seen.state) not in _FREED:
            done = self.loop.create_future()
            done.set_result(None)
            return receipt_of(seen, duplicate=True), done
        return None

    async def _find_stored(self, message_id: str) -> Receipt | None:
        """The store failed: did it take the message all the same?"""
        try:
            row = await self.store.history.message(message_id)
        except LanewayError:
            return None
        return None if row is None else receipt_of(row)

    def check_session(self, owner: Owner) -> None:
        """Refuse callers while a session is being loaded again, and those of one that cannot be read."""
        self.check_loaded(owner)
        self.check_readable(owner)

    def check_readable(self, owner: Owner) -> None:
        """Refuse callers of a session that was set aside: what is stored of it stays as it is."""
        why = self.kernel.unreadable.get(owner)
        if why is not None:
            raise StoreCorruptError(
                f"session {owner.session!r} was set aside, because it cannot be read: {why}",
                hint="delete it, or put a backup of the store in its place; other sessions are not concerned",
                session=owner.session,
            )

    def tell_set_aside(self, owner: Owner) -> None:
        """Say in one line that a session was set aside, if it was."""
        why = self.kernel.unreadable.get(owner)
        if why is not None:
            _log.error(
                "session %r of tenant %r in workspace %r cannot be read and is set aside: %s "
                "(delete it, or put a backup of the store in its place; other sessions go on)",
                *(owner.session, owner.tenant, owner.workspace, why),
            )

    def check_loaded(self, owner: Owner) -> None:
        """Refuse callers while a session is being loaded again."""
        self.check_open()
        if owner in self._reloads:
            raise StoreUnavailableError(
                f"session {owner.session!r} is being loaded again after the store failed: {self.last_failure}",
                hint="try again in a moment",
            )

    def check_doomed(self, owner: Owner) -> None:
        """Refuse callers while a session is being deleted or imported, is half deleted, or cannot be read."""
        self.check_readable(owner)
        if self.doomed.get(owner):
            raise ConflictError(f"session {owner.session!r} is being deleted or imported", hint="wait, then try again")
        if owner in self.doomed:
            raise ConflictError(
                f"session {owner.session!r} was to be deleted, and the store failed meanwhile", hint="delete it again"
            )

    def begin_anew(self, owner: Owner) -> None:
        """Somebody says what is to be kept: from now on a session that was deleted is written again."""
        self.check_doomed(owner)
        self.journal.erased.pop(owner, None)

    # ---- changes to a session ----

    async def change(self, owner: Owner, call: Callable[..., Any], *args: Any, **facts: Any) -> Any:
        """Call the kernel for one session and wait until what it decided is on disk."""
        self.check_session(owner)
        result = call(*args, now=self.now(), wall=self.wall(), **facts)
        self.carry_out()
        if self.journal.has(owner):
            await self.journal.committed(owner)
        return result

    async def set_options(
        self,
        owner: Owner,
        options: QueueOptions,
        actor: str,
        settings_of: Callable[[Owner], QueueSettings] | None = None,
    ) -> None:
        """Give a session settings of its own; a smaller cap acts on what waits already."""
        self.check_session(owner)
        self.kernel.set_options(owner, options, actor=actor, wall=self.wall())
        if settings_of is not None:
            self.kernel.apply_cap(owner, settings_of(owner), now=self.now(), wall=self.wall())
        self.carry_out()
        await self.journal.committed(owner)

    async def record_command(self, item: Item, reply: str) -> None:
        """Keep a message that was a command."""
        self.check_session(item.owner)
        if item.owner not in self.doomed:
            self.begin_anew(item.owner)
        self.kernel.record_command(item, reply, wall=self.wall())
        await self._store_new(item)

    async def reloaded(self, owner: Owner) -> None:
        """Wait until a session that is being loaded again is loaded."""
        while owner in self._reloads:
            await asyncio.wait([self._reloads[owner]])

    def is_reloading(self, owner: Owner) -> bool:
        """Whether a session is being loaded again after the store failed."""
        return owner in self._reloads

    async def seen(self, message: Message, dedupe_ms: int) -> Receipt | None:
        """The first receipt of a message that came before."""
        if message.message_id is None or not dedupe_ms:
            return None
        row = (await self.store.find([self._lookup(message, dedupe_ms)]))[0]
        return None if row is None or MessageState(row.state) in _FREED else receipt_of(row, duplicate=True)

    def conversation(self, owner: Owner) -> int:
        """Which conversation a session is in."""
        session = self.kernel.sessions.get(owner)
        return session.conversation if session is not None else 0

    def peek_pending(self, owner: Owner) -> list[Message]:
        """What waits in a session."""
        box = self.kernel.boxes.get(owner)
        return [item.message for item in box.waiting_items()] if box is not None else []

    # ---- ends ----

    async def wait(self, message_id: str) -> Final:
        """Wait until a message is final."""
        self.check_open()
        item = self.kernel.items.get(message_id)
        owner = None if item is None or item.state.is_final else item.owner
        waiting = {} if owner is None else self._check_ring(message_id, owner)
        waiter: asyncio.Future[Final] = self.loop.create_future()
        self._waiters.setdefault(message_id, []).append(waiter)
        try:
            if item is None or item.state.is_final:
                final = await self.final_of(message_id)
                if final.disposition.is_final and not waiter.done():
                    return final
            if owner is not None:
                self.on_awaited(owner)
            return await waiter
        finally:
            if owner is not None:
                self.rings.end(waiting, owner)
            waiters = self._waiters.get(message_id)
            if waiters is not None:
                if waiter in waiters:
                    waiters.remove(waiter)
                if not waiters:
                    del self._waiters[message_id]

    def _is_turn(self, owner: Owner, turn_id: str) -> bool:
        """Whether a turn is the one that runs in a session."""
        box = self.kernel.boxes.get(owner)
        return box is not None and box.turn is not None and box.turn.id == turn_id

    def _check_ring(self, message_id: str, owner: Owner) -> dict[Owner, str]:
        """Whose turns are about to wait for a message of a session; refused if that would be for ever."""
        turns = self.turns_around()
        for mine, turn_id in turns.items():
            if ring := self.rings.ring(mine, owner):
                through = [f"session {each.session!r}" for each in ring if each not in (mine, owner)]
                by = f" by {', '.join(through)}" if through else ""
                raise UsageError(
                    f"{turn_id} waits for {message_id}, which waits{by} for {turn_id} to end",
                    hint="return first; wait for messages of a session outside its turns",
                )
        self.rings.begin(turns, owner)
        return turns

    def _settle(self, final: Final) -> None:
        """Tell whoever waits for a message, if it is final."""
        if not final.disposition.is_final:
            return
        for waiter in self._waiters.get(final.message_id, ()):
            if not waiter.done():
                waiter.set_result(final)
        self.on_settled(final)

    async def final_of(self, message_id: str) -> Final:
        """What the store says has become of a message."""
        row = await self.store.history.message(message_id)
        if row is None or row.workspace != self.workspace:
            raise UnknownMessageError(message_id=message_id)
        final = final_from(row)
        if final.turn_id is None or not final.disposition.is_final:
            return final
        turn = await self.store.history.state("turn", final.turn_id)
        return final if turn is None else replace(final, answer=json.loads(turn.body).get("answer"))

    # ---- telling and time ----

    def subscribe(self, keys: tuple[str, ...], buffer_max: int) -> Subscription:
        """A new stream of events; before opening too, to hear what becomes of what the last process left."""
        if self.is_shut:
            raise ClosedError(opened=True, what="inbox")
        return self._audience.admit(keys, "", buffer_max)

    def listen(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Call somebody with every event at once, when it is on disk; returns how to stop."""
        return self._audience.listen(listener)

    def _note_listening(self, listening: bool) -> None:  # noqa: FBT001 - all there is to say
        self.kernel.listening = listening

    def _arm(self) -> None:
        due = self.kernel.next_due()
        if due == self._timer_due:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_due = due
        if due is not None:
            self._timer = self.loop.call_later(max(0, due - self.now()) / 1000, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._timer_due = None
        self.kernel.tick(now=self.now(), wall=self.wall())
        self.carry_out()


def final_from(row: MessageRow) -> Final:
    """What has become of a stored message; its answer is with its turn."""
    state = MessageState(row.state)
    return Final(
        message_id=row.id,
        disposition=state,
        outcome=Outcome(row.outcome) if row.outcome else None,
        turn_id=row.turn_id if row.turn_id and state is not MessageState.SUMMARIZED else None,  # only a line was told
        reason=row.reason,
        session_key=row.session,
    )


def receipt_of(row: MessageRow, *, duplicate: bool = False) -> Receipt:
    """The receipt of a stored message."""
    return Receipt(message_id=row.id, disposition=MessageState(row.state), reason=row.reason, duplicate=duplicate)


def fail(waiter: asyncio.Future[Any], error: Exception) -> None:
    """Tell a waiting caller, if it still waits."""
    if not waiter.done():
        waiter.set_exception(error)
