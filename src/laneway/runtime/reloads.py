"""What the engine of the inbox does when the store fails.

When it refuses the rows of a session, what was decided on them is void: the session is loaded again, and turns whose
handlers are still at work are attached to it again. The store may have kept what it said it had not, so whoever waits
for that is told as soon as it can be asked.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
from abc import abstractmethod
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from typing import Any

from laneway.errors import FencedError, UnstorableError, describe, text_of
from laneway.kernel.mailbox import Mailbox, decode_approval
from laneway.kernel.messages import TurnEntry
from laneway.mail import ApprovalState, TurnState
from laneway.rows import Owner, StateRow
from laneway.runtime.errands import Errands
from laneway.runtime.handles import Job
from laneway.runtime.turns import Turn, TurnEnd

__all__ = ("Reloads",)

# The engine is the owner of its turns and children: it alone sets their private fields.
# ruff: noqa: SLF001

_log = logging.getLogger("laneway")

RELOAD_DELAYS_S = (0.5, 1, 2, 4, 8, 10)
HOLD_MS = 3_600_000  # while a session is put together again, nothing begins in it


class Reloads(Errands):
    """Sessions whose rows the store has refused, and the turns that live on meanwhile."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._jobs: dict[Owner, Job[Any]] = {}  # the slot that was asked for
        self._turns: dict[str, Turn] = {}
        self._ends: dict[str, TurnEnd] = {}
        self._unbegun: dict[str, Owner] = {}  # turns of this process whose handler has not been called
        self._tellers: set[asyncio.Task[None]] = set()
        self._is_settling = False  # closing: what the store refuses now is found again by the next start
        self._stumbles: dict[Owner, int] = {}  # how often in a row the store has refused a session
        self._unstorable: set[Owner] = set()  # sessions with an end that can never be stored as it is
        self.on_reloaded: Callable[[Owner, list[StateRow]], None] = lambda owner, rows: None
        self.on_loaded_again: Callable[[Owner], None] = lambda owner: None

    @abstractmethod
    def _end(self, turn: Turn, state: TurnState, answer: str | None, reason: str) -> None:
        """A turn is over."""

    @abstractmethod
    def forget(self, owner: Owner) -> None:
        """Nothing is known of a session any more."""

    def _on_failure(self, owner: Owner, error: Exception) -> None:
        """The store refused the rows of a session: what is in memory leads, so it goes, and is loaded again."""
        if isinstance(error, FencedError):
            self._lose(error)
            return
        if owner in self._reloads or not self.is_open or self._is_settling:
            return
        self.last_failure = text_of(error)
        self._stumbles[owner] = self._stumbles.get(owner, 0) + 1
        if isinstance(error, UnstorableError):
            self._unstorable.add(owner)
        old = self.kernel.forget_session(owner)
        task = self.loop.create_task(self._reload(owner, old), name=f"laneway-reload {owner.session}")
        self._reloads[owner] = task

    def _lose(self, error: FencedError) -> None:
        """Another process owns the store: nothing that is said here counts any more."""
        if self._lost is None:
            self._lost = error
            _log.error("this inbox has lost its store to another owner: %s", error)
            for turn in list(self._turns.values()):
                turn._entry.live = 0
                turn._entry.state, turn._entry.reason = TurnState.FENCED, text_of(error)
                if turn._job is not None:
                    turn._job.cancel("fenced")
            self.kernel.forget_all()
            self._arm()

    async def _reload(self, owner: Owner, old: Mailbox | None) -> None:
        attempt = 0
        again = self._stumbles.get(owner, 0) - 1
        if again > 0:  # the store loads it well and refuses it again: do not spin
            await asyncio.sleep(RELOAD_DELAYS_S[min(again, len(RELOAD_DELAYS_S)) - 1])
        while True:
            try:
                loaded = await self.store.load_session(owner)
                break
            except Exception as error:  # noqa: BLE001 - a store may raise anything; it is asked again
                _log.warning("session %r cannot be loaded: %s", owner.session, describe(error))
                await asyncio.sleep(RELOAD_DELAYS_S[min(attempt, len(RELOAD_DELAYS_S) - 1)])
                attempt += 1
        del self._reloads[owner]
        mine = {turn.id: turn for turn in self._turns.values() if turn._entry.owner == owner}
        begun = {turn_id: turn for turn_id, turn in mine.items() if turn._begun}
        unbegun = {turn_id for turn_id, whose in self._unbegun.items() if whose == owner}
        now, wall = self.now(), self.wall()
        box = self.kernel.open_box(
            owner,
            requested=old.requested if old is not None and owner in self._jobs else None,
            not_before=now + HOLD_MS,
        )
        old_begun = old is not None and old.turn is not None and old.turn.id in begun
        running = {turn_id: turn._entry for turn_id, turn in begun.items()}
        attached = self.kernel.load(loaded, running=running, unbegun=unbegun, now=now, wall=wall)
        if owner in self.kernel.unreadable:
            self._leave_aside(owner, mine.values())
            return
        box.not_before = 0
        if old is not None:
            self.kernel.carry_over(old, box)
            box.failures, box.not_before, box.setup_error = old.failures, old.not_before, old.setup_error
        for entry in attached:
            self._attach(mine.pop(entry.id), entry)
        self._void(mine.values())  # the store has their ends, although it said that it had not, or never had them
        for turn_id in unbegun:
            del self._unbegun[turn_id]
        if unbegun or (old is not None and old.turn is not None and not old_begun):
            self.kernel.setup_failed(owner, "the store failed", now=now, wall=wall)
        else:
            self.kernel.reconsider(owner, now=now)
        self.carry_out()
        self.journal.after(owner, functools.partial(self._recovered, owner))
        self.on_reloaded(owner, loaded.states)
        self.on_loaded_again(owner)
        self._note_quiet()
        teller = self.loop.create_task(self._tell_what_was_stored(owner), name=f"laneway-tell {owner.session}")
        self._tellers.add(teller)
        teller.add_done_callback(self._tellers.discard)

    def _void(self, turns: Iterable[Turn]) -> None:
        for turn in turns:
            self._turns.pop(turn.id, None)
            self._ends.pop(turn.id, None)
            turn._entry.live = 0

    def _leave_aside(self, owner: Owner, turns: Iterable[Turn]) -> None:
        """A session was loaded again and cannot be read: nothing of it goes on, and nothing is written to it."""
        self.tell_set_aside(owner)
        self._void(turns)
        self._unbegun = {turn_id: whose for turn_id, whose in self._unbegun.items() if whose != owner}
        for job in (turn._job for turn in turns if turn._job is not None):
            job.cancel("its session cannot be read")
        why = self.kernel.unreadable[owner]
        self.forget(owner)
        self.kernel.unreadable[owner] = why
        self._note_quiet()

    def _recovered(self, owner: Owner, error: Exception | None) -> None:
        if error is None:  # the store takes it again
            self._stumbles.pop(owner, None)
            self._unstorable.discard(owner)

    async def _tell_what_was_stored(self, owner: Owner) -> None:
        """The store may have kept what it said it had not: whoever waits for that is told, as soon as it can say."""
        for delay in chain(RELOAD_DELAYS_S, repeat(RELOAD_DELAYS_S[-1])):
            try:
                await self._ask_what_was_stored(owner)
                break
            except Exception as error:  # noqa: BLE001 - the same
                _log.warning("what became of session %r is not known yet: %s", owner.session, describe(error))
                await asyncio.sleep(delay)

    async def _ask_what_was_stored(self, owner: Owner) -> None:
        for message_id in dict.fromkeys((*self._waiters, *self.followed)):
            item = self.kernel.items.get(message_id)
            if item is None or item.state.is_final:
                self._settle(await self.final_of(message_id))
        for approval_id in list(self._approvals):
            row = await self.store.history.state("approval", approval_id)
            mine = row is not None and Owner(row.tenant, row.workspace, row.session) == owner
            if mine and row is not None and row.state != ApprovalState.PENDING:
                self._answer(decode_approval(row, json.loads(row.body)))
        await self._retell_children(owner)

    def _attach(self, turn: Turn, entry: TurnEntry) -> None:
        """A turn that lived on while its session was loaded again; or had ended, and was not heard."""
        turn._entry = entry
        ended = self._ends.get(turn.id)
        if ended is not None and entry.owner in self._unstorable:
            ended = TurnEnd(TurnState.FAILED, None, "what it said could not be stored")
            self._unstorable.discard(entry.owner)
        if ended is not None:
            self._end(turn, *ended)
        elif entry.cancelled and turn._job is not None:
            turn._job.cancel(entry.cancelled)
