"""What a channel still has to say, read from the store: in the order of each session, at least once.

An event only says that there is something to read. What is read is what the store has behind the cursor of the
session, so memory holds names of sessions and nothing else, a restart goes on where the process before it was, and
there is no difference between the past and the present.

The cursor of a session is a row: the number of the last event that was said whole, and how many pieces of the next one
were. It is written after each piece. A crash between sending and writing sends that piece again: at most one for each
session that was being told something, of which there are `WORKERS` at most.

What cannot be said now is tried again later and holds up its own session only. What cannot be said at all ends in the
log of the operators; its text stays in the transcript.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from laneway.errors import FencedError, GiveUp, LanewayError, RetryLater, describe
from laneway.events import Event, SessionEvent
from laneway.gateway.channels.letters import SPOKEN, Letters
from laneway.gateway.channels.port import ChannelRefusedError, Outgoing, Place, Speaker
from laneway.gateway.feeds import Past
from laneway.gateway.tokens import GATEWAY
from laneway.gateway.writing import write_row
from laneway.kernel.jobs import backoff_ms
from laneway.records import RetryPolicy
from laneway.rows import Owner, StateRow

if TYPE_CHECKING:
    from laneway.gateway.service import Gateway

__all__ = ("PATIENT", "STOP_MS", "Later", "Outbox", "later")

_log = logging.getLogger("laneway.channels")

KIND: Final = "channel_cursor"
KIND_OF_CHANNEL: Final = "channel"
WORKERS: Final = 8
PAGE: Final = 1_000
SEQ_MAX: Final = 2**63 - 1
DEFERRALS_MAX: Final = 100
STOP_MS: Final = 5_000
PATIENT: Final = RetryPolicy(max_retries=12, initial_delay_ms=1_000, factor=2.0, max_delay_ms=600_000, jitter=0.5)
"""About forty minutes."""

Later = Callable[[int, Callable[[], None]], Callable[[], object]]
"""Calls a function after so many milliseconds; what it returns takes that back."""


def later(delay_ms: int, call: Callable[[], None]) -> Callable[[], object]:
    """The timer of the loop."""
    return asyncio.get_running_loop().call_later(delay_ms / 1000, call).cancel


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """How far a session has been told: everything up to `seq`, and `pieces` of the event `partial`."""

    seq: int
    partial: int = 0
    pieces: int = 0


@dataclass(slots=True)
class Tries:
    """How often it was tried to say one thing."""

    failures: int = 0
    deferrals: int = 0


class Outbox:
    """Says everything that the sessions of one channel have to be told."""

    def __init__(  # noqa: PLR0913 - keyword-only: what the channel lends it
        self,
        gateway: Gateway,
        place: Place,
        speaker: Speaker,
        *,
        account: str = "",
        policy: RetryPolicy = PATIENT,
        call_later: Later = later,
        on_refused: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self._gateway = gateway
        self._store = gateway.store
        self._workspace = gateway.workspace(place.workspace)
        self._place = place
        self._speaker = speaker
        self._letters = Letters(self._store.history, place, account)
        self._policy = policy
        self._later = call_later
        self._on_refused = on_refused
        self._owner = Owner(place.tenant, GATEWAY, f"channel:{place.name}")
        self._root = f"{place.tenant}/{self._workspace.name}/{place.name}"
        self._since = 0
        self._cursors: dict[str, Cursor] = {}
        self._tries: dict[str, Tries] = {}
        self._queue: asyncio.Queue[str] = asyncio.Queue()
        self._waiting: set[str] = set()
        self._busy: set[str] = set()
        self._woken: set[str] = set()  # while they were busy
        self._put_off: dict[str, Callable[[], object]] = {}
        self._quiet = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._unlisten: Callable[[], None] = lambda: None
        self._is_open = False
        self._has_store = False

    # ---- opening and closing ----

    async def open(self) -> None:
        """Begin where the last process was. What was left to say is said in the background."""
        await self._store.open()  # a use of our own: it outlasts the gateway by what is said at the end
        try:
            self._since = await self._first()
            await self._load()
        except BaseException:
            await self._store.close()
            raise
        self._is_open = self._has_store = True
        self._unlisten = self._workspace.inbox.engine.listen(self._hear)
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._work(), name="laneway-channel-outbox") for _ in range(WORKERS)]
        self._tasks.append(loop.create_task(self._look_back(), name="laneway-channel-look-back"))

    async def close(self, timeout_ms: int = STOP_MS) -> None:
        """Say what can be said in a moment; the rest is said after the next start."""
        if not self._has_store:
            return
        self._has_store = False
        if self._is_open:  # else it was refused before, and says nothing more
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    await self.quiet()
            self.end()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._store.close()

    def end(self) -> None:
        """Say nothing more."""
        self._is_open = False
        self._unlisten()
        for take_back in self._put_off.values():
            take_back()
        self._put_off.clear()
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        self._quiet.set()

    async def quiet(self) -> None:
        """Wait until there is nothing to say, but for what is put off."""
        if self._tasks:
            await asyncio.wait(self._tasks[-1:])
        self._note_quiet()
        await self._quiet.wait()

    async def _first(self) -> int:
        """From which event on this channel speaks: what was there before it was set up is none of its business."""
        row = await self._store.history.state(KIND_OF_CHANNEL, self._root)
        if row is not None:
            return row.seq
        seq = self._store.next_seq()
        await self._commit(StateRow(KIND_OF_CHANNEL, self._root, *self._owner, seq, 0, "open", "{}"))
        return seq

    async def _load(self) -> None:
        after = -1
        while rows := await self._store.history.states(self._owner, KIND, after_seq=after, limit=PAGE):
            for row in rows:
                body = json.loads(row.body)
                if body["root"] == self._root:
                    self._cursors[body["session"]] = Cursor(
                        seq=body["seq"], partial=body["partial"], pieces=body["pieces"]
                    )
            if len(rows) < PAGE:
                break
            after = rows[-1].seq

    async def _look_back(self) -> None:
        """Look at every session once: something may have been left to say."""
        after = self._place.prefix
        failures = 0
        while True:
            try:
                keys = await self._store.history.sessions(
                    self._place.tenant, self._workspace.name, after=after, limit=PAGE
                )
            except LanewayError as error:
                failures += 1
                _log.warning("channel %r cannot look at its sessions yet: %s", self._place.name, error)
                await self._pause(backoff_ms(PATIENT, retry=failures, jitter=self._gateway.env.random.random()))
                continue
            mine = [key for key in keys if key.startswith(self._place.prefix)]
            for key in mine:
                self.wake(key)
            if len(keys) < PAGE or len(mine) < len(keys):
                return
            after = keys[-1]

    async def _pause(self, delay_ms: int) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        take_back = self._later(delay_ms, lambda: None if done.done() else done.set_result(None))
        try:
            await done
        finally:
            take_back()

    # ---- whom to tell something ----

    def _hear(self, event: Event) -> None:
        if (
            isinstance(event, SessionEvent)
            and event.type in SPOKEN
            and event.tenant == self._place.tenant
            and event.session_key.startswith(self._place.prefix)
        ):
            self.wake(event.session_key)

    def wake(self, session: str) -> None:
        """There may be something to say in a session."""
        if not self._is_open or session in self._waiting or session in self._put_off:
            return
        if session in self._busy:
            self._woken.add(session)
            return
        self._waiting.add(session)
        self._quiet.clear()
        self._queue.put_nowait(session)

    async def _work(self) -> None:
        while True:
            session = await self._queue.get()
            self._waiting.discard(session)
            self._busy.add(session)
            try:
                await self._tell(session)
            except ChannelRefusedError as error:
                self._refuse(str(error))
                return
            except FencedError:
                self._refuse("another process owns the store now")
                return
            except Exception as error:  # noqa: BLE001 - one session must not end the others
                _log.warning("channel %r: session %r waits: %s", self._place.name, session, describe(error))
                self._put_off_for(session, self._delay_ms(session))
            finally:
                self._busy.discard(session)
                if session in self._woken:
                    self._woken.discard(session)
                    self.wake(session)
                self._note_quiet()

    def _note_quiet(self) -> None:
        if not (self._waiting or self._busy):
            self._quiet.set()

    def _refuse(self, reason: str) -> None:
        if self._is_open:
            self.end()
            self._on_refused(reason)

    # ---- telling ----

    async def _tell(self, session: str) -> None:
        """Say everything that the store has for a session, as far as that is possible now."""
        cursor = self._cursors.get(session) or Cursor(seq=self._since)
        past = Past(self._store.history, self._workspace.owner(self._place.tenant, session))
        async for page in past.pages(cursor.seq, SEQ_MAX):
            for frame in page:
                said = await self._letters.of(frame) if frame.type in SPOKEN else None
                if said is None:
                    cursor = self._cursors.get(session) or cursor
                    if not cursor.partial:
                        self._cursors[session] = Cursor(seq=frame.seq)
                elif not await self._say(session, said):
                    return

    async def _say(self, session: str, said: Outgoing) -> bool:
        """Say one thing. False: later, and nothing else before it."""
        pieces = self._speaker.pieces(said)
        cursor = self._cursors.get(session) or Cursor(seq=self._since)
        done = cursor.pieces if cursor.partial == said.seq else 0
        for number in range(done, len(pieces)):
            try:
                await self._speaker.send(said, pieces[number], number)
            except RetryLater as error:
                if self._defer(session, error):
                    return False
                await self._give_up(session, said, f"put off {DEFERRALS_MAX} times: {error.reason}")
                break
            except GiveUp as error:
                await self._give_up(session, said, error.reason)
                break
            except ChannelRefusedError:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a platform does, it is tried again
                if self._try_again(session, describe(error)):
                    return False
                await self._give_up(session, said, f"tried {self._policy.max_retries + 1} times: {describe(error)}")
                break
            self._tries.pop(session, None)
            if number + 1 < len(pieces):
                self._cursors[session] = Cursor(seq=cursor.seq, partial=said.seq, pieces=number + 1)
                await self._save(session)
        self._tries.pop(session, None)
        self._cursors[session] = Cursor(seq=said.seq)
        if pieces:
            await self._save(session)
        return True

    def _defer(self, session: str, error: RetryLater) -> bool:
        tries = self._tries.setdefault(session, Tries())
        tries.deferrals += 1
        if tries.deferrals > DEFERRALS_MAX:
            return False
        self._put_off_for(session, error.after_ms)
        return True

    def _try_again(self, session: str, why: str) -> bool:
        """Try once more in a while; False when that was done often enough."""
        delay_ms = self._delay_ms(session)
        if self._tries[session].failures > self._policy.max_retries:
            return False
        _log.info("channel %r: session %r is told again in %d ms: %s", self._place.name, session, delay_ms, why)
        self._put_off_for(session, delay_ms)
        return True

    def _delay_ms(self, session: str) -> int:
        """One more failure, and how long to wait after it."""
        tries = self._tries.setdefault(session, Tries())
        tries.failures += 1
        return backoff_ms(self._policy, retry=tries.failures, jitter=self._gateway.env.random.random())

    def _put_off_for(self, session: str, delay_ms: int) -> None:
        def again() -> None:
            self._put_off.pop(session, None)
            self.wake(session)

        if self._is_open:
            self._put_off[session] = self._later(delay_ms, again)

    async def _give_up(self, session: str, said: Outgoing, reason: str) -> None:
        _log.error("channel %r gave up on %s for session %r: %s", self._place.name, said.id, session, reason)
        try:
            target = f"{self._place.name}/{session}/{said.id}"
            await self._gateway.audit.record(self._place.caller, "channel.gave_up", target, reason=reason)
        except LanewayError as error:
            _log.error("that could not be written to the log of operators: %s", error)

    # ---- how far it has come ----

    async def _save(self, session: str) -> None:
        """Keep the cursor. If that fails, memory is right all the same, and the next one is kept."""
        cursor = self._cursors[session]
        body = json.dumps({"root": self._root, "session": session, **asdict(cursor)})
        try:
            seq = self._store.next_seq()
            await self._commit(StateRow(KIND, f"{self._root}/{session}", *self._owner, seq, 0, "told", body))
        except FencedError:
            raise
        except LanewayError as error:
            _log.warning("channel %r cannot note what it said: %s", self._place.name, error)

    async def _commit(self, row: StateRow) -> None:
        await write_row(self._store, row, what="the cursor of a channel")
