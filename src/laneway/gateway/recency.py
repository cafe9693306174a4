"""Which sessions something happened in last: the order in which people look for them.

The store has no index for it, because every commit would pay for one. So the order is kept in memory, of the tenants
whose sessions somebody has asked for: read once from the store, from then on brought up to date by what happens. Each
change gives a session a number that is higher than all others (for stored events it is about the number of the event),
so whoever knows one number can ask for what is older, page by page, and for what has changed since.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

from laneway.agent.subagents import is_child_id
from laneway.events import Event, SessionEvent

if TYPE_CHECKING:
    from laneway.agent_events import AgentEvent
    from laneway.rows import LastEvent, Owner

__all__ = ("Recency", "Seen")

TENANTS_MAX: Final = 100
SESSIONS_MAX: Final = 500_000
QUIET: Final = frozenset({"text_delta", "reasoning_delta", "tool_input_delta", "tool_output_delta", "task_updated"})
"""Events of a run that come many times a second and change nothing that a list of sessions shows."""


class Seen(NamedTuple):
    """When something last happened in a session; `order` is higher for what happened later."""

    order: int
    at_ms: int


class _Book:
    """The sessions of one tenant, the one that was quiet longest first."""

    def __init__(self, sessions_max: int) -> None:
        self.sessions: OrderedDict[str, Seen] = OrderedDict()
        self.newest = 0
        self._sessions_max = sessions_max

    def note(self, key: str, number: int, at_ms: int) -> None:
        """Something has happened in a session, after everything that was noted before."""
        if key not in self.sessions:
            if is_child_id(key):
                return
            if len(self.sessions) >= self._sessions_max:
                self.sessions.popitem(last=False)
        self.newest = max(number, self.newest + 1)
        self.sessions[key] = Seen(self.newest, at_ms)
        self.sessions.move_to_end(key)


class Recency:
    """When something last happened in each session of a workspace, those of sub-agents left out."""

    def __init__(
        self,
        read: Callable[[str], Awaitable[list[LastEvent]]],
        wall_ms: Callable[[], int],
        *,
        tenants_max: int = TENANTS_MAX,
        sessions_max: int = SESSIONS_MAX,
    ) -> None:
        self._read = read
        self._wall_ms = wall_ms
        self._tenants_max = tenants_max
        self._sessions_max = sessions_max
        self._books: OrderedDict[str, _Book] = OrderedDict()  # the tenant that nobody asked for longest first
        self._reading: dict[str, asyncio.Future[_Book]] = {}
        self._meanwhile: dict[str, dict[str, tuple[int, int]]] = {}  # what happens to a tenant that is being read

    def on_mail_event(self, event: Event) -> None:
        """Something has happened to a message or a turn."""
        if isinstance(event, SessionEvent):
            self._note(event.tenant, event.session_key, event.seq, event.at_ms)

    def on_agent_event(self, owner: Owner, event: AgentEvent) -> None:
        """Something has happened in a run."""
        if event.event_type not in QUIET and (owner.tenant in self._books or owner.tenant in self._meanwhile):
            self._note(owner.tenant, owner.session, 0, self._wall_ms())

    def forget(self, tenant: str, key: str) -> None:
        """A session was deleted."""
        book = self._books.get(tenant)
        if book is not None:
            book.sessions.pop(key, None)

    def _note(self, tenant: str, key: str, number: int, at_ms: int) -> None:
        book = self._books.get(tenant)
        if book is not None:
            book.note(key, number, at_ms)
        elif tenant in self._meanwhile:
            later = self._meanwhile[tenant]
            later.pop(key, None)  # to the end: it is the last that something happened in
            later[key] = (number, at_ms)

    async def load(self, tenant: str) -> None:
        """See to it that the sessions of a tenant are known."""
        if tenant in self._books:
            self._books.move_to_end(tenant)
            return
        reading = self._reading.get(tenant)
        if reading is not None:
            await asyncio.shield(reading)
            return
        self._reading[tenant] = reading = asyncio.get_running_loop().create_future()
        self._meanwhile[tenant] = {}
        try:
            rows = await self._read(tenant)
            book = _Book(self._sessions_max)
            for row in rows:
                book.note(row.session, row.seq, row.at_ms)
            for key, (number, at_ms) in self._meanwhile[tenant].items():
                book.note(key, number, at_ms)
            self._books[tenant] = book
            while len(self._books) > self._tenants_max:
                self._books.popitem(last=False)
            reading.set_result(book)
        except BaseException as error:
            reading.set_exception(error if isinstance(error, Exception) else RuntimeError("it was given up"))
            reading.exception()  # nobody else may wait for it
            raise
        finally:
            del self._meanwhile[tenant], self._reading[tenant]

    def count(self, tenant: str) -> int:
        """How many sessions of a tenant are known."""
        book = self._books.get(tenant)
        return 0 if book is None else len(book.sessions)

    def newest(self, tenant: str) -> int:
        """The number of the last change that was noted for a tenant."""
        book = self._books.get(tenant)
        return 0 if book is None else book.newest

    def seen(self, tenant: str, key: str) -> Seen | None:
        """When something last happened in a session."""
        book = self._books.get(tenant)
        return None if book is None else book.sessions.get(key)

    def newest_first(
        self, tenant: str, *, before: int = 0, since: int = 0, among: Collection[str] | None = None
    ) -> Iterator[tuple[str, Seen]]:
        """Sessions of a tenant, or those `among` some; `before` and `since` are such numbers.

        To be walked through in one breath. A few that are named cost what they are, however many there are.
        """
        book = self._books.get(tenant)
        sessions = book.sessions if book is not None else OrderedDict[str, Seen]()
        if among is None:
            found: Iterable[tuple[str, Seen]] = reversed(sessions.items())
        else:
            known = [(key, sessions[key]) for key in among if key in sessions]
            found = sorted(known, key=lambda each: each[1].order, reverse=True)
        for key, seen in found:
            if seen.order <= since:
                return
            if not before or seen.order < before:
                yield key, seen
