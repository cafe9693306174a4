"""The stage on which a transport is checked: a desk with tasks, and connections of workers to it.

`desk_stage` is enough for most: it makes a desk in this process and needs both ends of a wire. Whoever has a host of
another kind writes a `TransportStage`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Protocol

from laneway.external import ExternalTaskResult, Progress
from laneway.kernel.mailroom import Mailroom, Rules
from laneway.kernel.task_entries import TaskOrder
from laneway.ports import Transport
from laneway.records import Effect
from laneway.rows import Owner
from laneway.runtime.mail_engine import MailEngine
from laneway.runtime.task_desk import TaskDesk
from laneway.stores.memory import MemoryStore
from laneway.system import HostEnv
from laneway.transports.wire import Desk, serve

__all__ = ("LONG_MS", "DeskStage", "OpenStage", "TransportStage", "Wire", "desk_stage")

OWNER: Final = Owner("default", "default", "conformance")
LONG_MS: Final = 600_000


class TransportStage(Protocol):
    """What the checks need."""

    lease_ms: int
    """How long leases are here: short where time is real, but far longer than an answer takes."""

    def connect(self) -> Transport:
        """A new connection of a worker, by the transport that is checked."""

    async def put(self, task_id: str, effect: str = "read", **facts: Any) -> None:
        """A task that can be claimed: `lane`, `command_type`, `payload` and so on as `TaskOrder` has them."""

    def withdraw(self, task_id: str) -> None:
        """Nobody wants a task any more."""

    async def state(self, task_id: str) -> str:
        """The state of a task, as the host sees it."""

    async def result(self, task_id: str) -> ExternalTaskResult | None:
        """The result of a task that has ended."""

    async def progress(self, task_id: str) -> Progress | None:
        """How far a task is, as its worker has told the host."""

    async def passing(self, ms: int) -> None:
        """Let time pass."""

    async def raw(self, frame: str) -> str:
        """What the host answers to a frame of anybody."""


OpenStage = Callable[[], AbstractAsyncContextManager[TransportStage]]
"""A new stage, without tasks."""

Wire = Callable[[Desk], AbstractAsyncContextManager[Callable[[], Transport]]]
"""Both ends of a transport: listens for a desk, and yields what connects a worker to it."""


class DeskStage:
    """A stage over a desk in this process; `connect` makes a transport to it."""

    def __init__(
        self,
        desk: TaskDesk,
        connect: Callable[[], Transport],
        *,
        lease_ms: int = 1_000,
        raw: Callable[[str], Awaitable[str]] | None = None,
    ) -> None:
        self.desk = desk
        self.lease_ms = lease_ms
        self.connect = connect
        self._raw = raw

    async def put(self, task_id: str, effect: str = "read", **facts: Any) -> None:
        """A task that can be claimed."""
        order: dict[str, Any] = {
            "owner": OWNER,
            "lane": "execute",
            "command_type": "bash",
            "payload": {},
            "timeout_ms": LONG_MS,
            "lease_ms": self.lease_ms,
            "key": f"key-{task_id}",
            **facts,
        }
        await self.desk.post(TaskOrder(task_id=task_id, effect=Effect(effect), **order))

    def withdraw(self, task_id: str) -> None:
        """Nobody wants a task any more."""
        self.desk.withdraw(task_id, "the check says so")

    async def state(self, task_id: str) -> str:
        """The state of a task."""
        self.desk.tasks()  # what has run out of time by now has ended
        entry = await self.desk.find(task_id)
        return entry.state.value if entry is not None else "nothing"

    async def result(self, task_id: str) -> ExternalTaskResult | None:
        """The result of a task that has ended."""
        return (await self.desk.outcome(task_id)).result

    async def progress(self, task_id: str) -> Progress | None:
        """How far a task is."""
        entry = await self.desk.find(task_id)
        return entry.progress if entry is not None else None

    async def passing(self, ms: int) -> None:
        """Let time pass: of a real loop, or of a simulated one."""
        await asyncio.sleep(ms / 1000)

    async def raw(self, frame: str) -> str:
        """What the host answers."""
        return await (self._raw(frame) if self._raw is not None else serve(self.desk, frame))


def desk_stage(wire: Wire, *, lease_ms: int = 1_000, host: HostEnv | None = None) -> OpenStage:
    """What sets the stage of each check: a new desk in this process, and a new wire to it.

    `lease_ms` is short, because checks wait for the ends of leases, and far more than an answer takes. Take a `host`
    whose clock is that of the loop if time is simulated.
    """

    @asynccontextmanager
    async def stage() -> AsyncIterator[TransportStage]:
        async with _desk(host or HostEnv()) as desk, wire(desk) as connect:
            try:
                yield DeskStage(desk, connect, lease_ms=lease_ms)
            finally:
                desk.close()  # first: a wire that waits for its questions to end would wait for claims

    return stage


@asynccontextmanager
async def _desk(host: HostEnv) -> AsyncIterator[TaskDesk]:
    """A desk whose tasks are nobody's: there are no sessions and no lanes here."""
    rows = MemoryStore()
    mailroom = Mailroom(Rules(), next_seq=rows.next_seq)
    options: dict[str, Any] = {"store": rows, "clock": host.clock, "ids": host.ids, "workspace": OWNER.workspace}
    engine = MailEngine(mailroom, **options, lanes=None, handler=_nobody)
    await engine.open()
    try:
        yield TaskDesk(engine)
    finally:
        await engine.close(0)


async def _nobody(_turn: object) -> None:
    """No messages here."""
