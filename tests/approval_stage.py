"""What tests of approvals share: sessions that ask about their calls, what is asked, and lives of one disk."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any, TypeGuard

from laneway.agent.session import AsyncSession
from laneway.models import ScriptedModel
from laneway.policies import ConfirmationPolicy, PermissionPolicy
from laneway.records import Fields
from laneway.rows import Batch, BatchResult, Row, StateRow
from laneway.stores.memory import MemoryDisk
from tests.agent_stage import Bench, agent_of, session_of
from tests.inbox_stage import CutStore
from tests.stage import passing

ASK = PermissionPolicy(allow=("*",), ask=("act", "put", "look", "note"))
SPAN = 30_000


def asks(**policy: Any) -> dict[str, Any]:
    """The settings of a session that asks about its calls."""
    return {"permission_policy": ASK, "confirmation_policy": ConfirmationPolicy(**policy)}


async def pending(session: AsyncSession) -> list[Fields]:
    """What is asked at this moment."""
    await passing()
    return await session.pending_confirmations()


async def the_one(session: AsyncSession) -> Fields:
    """The one request that there is."""
    (found,) = await pending(session)
    return found


def rows_of(disk: MemoryDisk) -> list[StateRow]:
    """The requests on a disk, oldest first."""
    return sorted((row for row in disk.states.values() if row.kind == "approval"), key=lambda row: row.seq)


class Store(CutStore):
    """A store whose process dies as soon as a request for approval is on disk in a certain state."""

    dies_at = ""
    commits_left = 1_000_000  # it dies at the last of them, which is not on disk

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Make it durable, and perhaps die then."""
        self.commits_left -= 1
        if self.commits_left == 0:
            self.is_dead = True
        done = await super().commit(batches)
        if self.dies_at in {row.state for batch in batches for row in batch.rows if is_request(row)}:
            self.is_dead = True
            await asyncio.get_running_loop().create_future()
        return done


def is_request(row: Row) -> TypeGuard[StateRow]:
    """Whether it is the row of a request for approval."""
    return isinstance(row, StateRow) and row.kind == "approval"


class Lives:
    """One disk, and the processes on it, one after the other; ids count on."""

    def __init__(self, *script: Any, **policy: Any) -> None:
        self.disk = MemoryDisk()
        self.model = ScriptedModel(list(script))
        self.bench = Bench()
        self.options = {**asks(**policy), "session_id": "s"}
        self.stores: list[Store] = []

    @contextlib.asynccontextmanager
    async def life(self, *, dies: bool = False, **options: Any) -> AsyncIterator[AsyncSession]:
        """A process; with `dies` it is killed at the end: nothing that it does from then on is on disk."""
        store = Store(self.disk)
        self.stores.append(store)
        agent = agent_of(self.model, self.bench)
        session = session_of(agent, session_store=store, **{**self.options, **options})
        await session.ready()
        try:
            yield session
        finally:
            if dies:
                engine = session.host.inbox.engine
                store.is_dead = True
                engine.journal._flush = lambda: None  # type: ignore[method-assign]  # noqa: SLF001 - it is dead
                engine.kernel.closing = True
            else:
                await agent.close()
        _GRAVES.append((agent, session))


_GRAVES: list[Any] = []  # what was killed must not be collected before its loop ends
