"""The past of a session, for whoever looks: of one in memory from there, of one at rest from its store.

To look starts nothing. A session that is not in memory is not opened for it, so a run that was cut does not go on
because somebody reads what it did.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from laneway.agent.book import Book
from laneway.agent.replays import reading_book
from laneway.errors import ClosedError
from laneway.kernel.mailbox import session_id
from laneway.runtime import claims

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from laneway.agent.host import Host
    from laneway.ports import History, Ids, Store
    from laneway.rows import Owner
    from laneway.system import HostEnv

__all__ = ("Looking", "Past")


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
            ids = claims.ids_for(self._env.ids, store)
            yield Past(store.history, reading_book(store.history, self.owner), ids, is_live=False)
        finally:
            await store.close()

    async def _conversation(self, past: Past) -> int:
        """Which conversation the session is in."""
        if past.is_live:
            return self.host.inbox.engine.conversation(self.owner)
        row = await past.history.state("session", session_id(self.owner))
        return 0 if row is None else int(json.loads(row.body)["conversation"])
