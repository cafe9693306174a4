"""The past of a session, for whoever looks: of one in memory from there, of one at rest from its store.

To look starts nothing. A session that is not in memory is not opened for it, so a run that was cut does not go on
because somebody reads what it did.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from laneway.agent.book import Book
from laneway.agent.replays import FORK, reading_book
from laneway.agent.subagents import is_child_id
from laneway.errors import ClosedError, UnknownSessionError
from laneway.identity import IDENTITY
from laneway.kernel.mailbox import session_id
from laneway.runtime import claims

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from laneway.agent.host import Host
    from laneway.ports import History, Ids, Store
    from laneway.rows import Owner
    from laneway.system import HostEnv

__all__ = ("Looking", "Past")


NAMES_MAX: Final = 10_000
"""So many names are looked through for one that is like another."""
PAGE: Final = 1_000


class Past(NamedTuple):
    """What a session has said and done. `is_live`: it is in memory, and what it does now is known there."""

    history: History
    book: Book
    ids: Ids
    is_live: bool


class Looking(ABC):
    """The side of a session that its past is read by."""

    host: Host
    book: Book
    owner: Owner
    _env: HostEnv
    _store: Store | None
    _closed: bool
    _opening: asyncio.Task[None] | None
    _leaving: asyncio.Task[None] | None
    is_resumed: bool = False
    """Whoever made it has said that the store knows it: if not, that is an error, and nothing is begun."""

    @abstractmethod
    async def ready(self) -> Any:
        """Open what is needed."""

    @abstractmethod
    def _check_loop(self) -> None:
        """Refuse another event loop."""

    @contextlib.asynccontextmanager
    async def _past(self) -> AsyncIterator[Past]:
        """Its past, to be read; a session that is at rest stays there."""
        while self._leaving is not None:
            await asyncio.gather(asyncio.shield(self._leaving), return_exceptions=True)
        if self._closed:
            raise ClosedError(opened=True, what="session")
        self._check_loop()
        store = self._store
        if store is None or self._opening is not None:
            await self.ready()
            yield Past(self.host.inbox.engine.store.history, self.book, self.host.env.ids, is_live=True)
            return
        await store.open()
        try:
            await self._check_known(store.history)
            ids = claims.ids_for(self._env.ids, store)
            yield Past(store.history, reading_book(store.history, self.owner), ids, is_live=False)
        finally:
            await store.close()

    async def _check_known(self, history: History) -> None:
        """Refuse a session that its store should know, and does not."""
        owner = self.owner
        if not self.is_resumed or await _is_known(history, owner):
            self.is_resumed = False  # it need not be looked for again
            return
        names: list[str] = []
        while len(names) < NAMES_MAX:
            page = await history.sessions(owner.tenant, owner.workspace, after=names[-1] if names else "", limit=PAGE)
            names += page
            if len(page) < PAGE:
                break
        near = difflib.get_close_matches(owner.session, [name for name in names if not is_child_id(name)], n=3)
        path = getattr(self._store, "path", None)
        store = str(path) if path else f"this {type(self._store).__name__}"
        raise UnknownSessionError(session_id=owner.session, tenant=owner.tenant, store=store, near=near)

    async def _conversation(self, past: Past) -> int:
        """Which conversation the session is in."""
        if past.is_live:
            return self.host.inbox.engine.conversation(self.owner)
        row = await past.history.state("session", session_id(self.owner))
        return 0 if row is None else int(json.loads(row.body)["conversation"])


async def _is_known(history: History, owner: Owner) -> bool:
    """Whether anything was ever said or done in a session, or somebody has said whose it is."""
    if await history.messages(owner, limit=1) or await history.states(owner, "turn", limit=1):
        return True
    name = session_id(owner)
    return any([await history.state(kind, name) is not None for kind in (IDENTITY, "session", FORK)])
