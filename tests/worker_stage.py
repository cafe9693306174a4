"""A desk, one worker of it, and a line between them that can be cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from laneway import Inbox
from laneway.errors import TransportUnavailableError
from laneway.external import ExternalTask, ExternalTaskResult, Lease, Progress
from laneway.kernel.task_entries import TaskEnd
from laneway.ports import Transport
from laneway.runtime.task_desk import TaskDesk
from laneway.testing import fake_host
from laneway.testing.transports import DeskStage
from laneway.transports import LocalTransport
from laneway.worker import Worker
from tests.inbox_stage import Agent, new_inbox
from tests.stage import now_ms

__all__ = ("LEASE", "Bench", "Shaky", "bench", "outcomes", "real_bench")

LEASE = 900


class Shaky:
    """A transport that writes down what is said, and can be cut: before the host hears, or before the worker does."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.said: list[str] = []
        self.deaf: set[str] = set()  # the host does not hear these
        self.mute: set[str] = set()  # the worker does not hear the answers to these
        self.silent: list[str] = []  # nobody ever answers the next of these
        self.limits: list[int] = []
        self.wanted: list[dict[str, Any]] = []
        self.overrides: dict[str, Any] = {}  # what is asked for instead
        self.asked_at: list[int] = []
        self.news: list[tuple[int, Progress]] = []  # when the host heard how far somebody was
        self.beaten = asyncio.Event()

    async def _say(self, what: str, task_id: str, call: Any) -> Any:
        if what in self.silent:
            self.silent.remove(what)
            call.close()
            await asyncio.get_running_loop().create_future()
        if what in self.deaf:
            call.close()
            raise TransportUnavailableError("nobody answers")
        self.said.append(f"{what} {task_id}".strip())
        answer = await call
        if what in self.mute:
            raise TransportUnavailableError("the answer was lost")
        return answer

    async def claim(self, worker: str, *, limit: int = 1, **wanted: Any) -> list[Lease]:
        """Take tasks."""
        self.limits.append(limit)
        self.asked_at.append(now_ms())
        self.wanted.append({name: wanted[name] for name in ("commands", "lanes")})
        wanted = {"limit": limit, **wanted, **self.overrides}
        leases: list[Lease] = await self._say("claim", "", self._inner.claim(worker, **wanted))
        return leases

    async def start(self, task_id: str, token: str) -> None:
        """Begin."""
        await self._say("start", task_id, self._inner.start(task_id, token))

    async def heartbeat(self, task_id: str, token: str, progress: Progress | None = None) -> bool:
        """A sign of life."""
        try:
            wanted: bool = await self._say("heartbeat", task_id, self._inner.heartbeat(task_id, token, progress))
        finally:
            self.beaten.set()
        if progress is not None:
            self.news.append((now_ms(), progress))
        return wanted

    async def complete(self, task_id: str, token: str, result: ExternalTaskResult) -> bool:
        """The end."""
        counts: bool = await self._say("complete", task_id, self._inner.complete(task_id, token, result))
        return counts

    async def release(self, task_id: str, token: str, reason: str = "", *, begun: bool = False) -> None:
        """Give back."""
        await self._say("release", task_id, self._inner.release(task_id, token, reason, begun=begun))

    async def close(self) -> None:
        """Nothing to close."""

    def times(self, what: str) -> int:
        """How often something was said."""
        return sum(each.split()[0] == what for each in self.said)


class Bench:
    """A desk and one worker of it."""

    def __init__(self, desk: TaskDesk) -> None:
        self.desk = desk
        self.stage = DeskStage(desk, lambda: LocalTransport(desk), lease_ms=LEASE)
        self.line = Shaky(LocalTransport(desk))
        self.began: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.gate = asyncio.Event()
        self.peak = 0

    async def hold(self, task: ExternalTask) -> str:
        """A handler that lasts until the gate opens."""
        self.began.append(task.task_id)
        self.peak = max(self.peak, len(self.began) - len(self.ended))
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled.append(task.task_id)
            raise
        finally:
            self.ended.append(task.task_id)
        return f"did {task.task_id}"

    def worker(self, **options: Any) -> Worker:
        """A worker with that handler."""
        options.setdefault("handlers", {"bash": self.hold})
        return Worker(self.line, name="w", host=fake_host(), **options)

    async def put(self, *ids: str, effect: str = "read", **facts: Any) -> None:
        """Tasks."""
        for task_id in ids:
            await self.stage.put(task_id, effect, **facts)

    async def end(self, task_id: str = "t") -> TaskEnd:
        """How a task has ended."""
        return await self.desk.outcome(task_id)

    async def did(self, task_id: str = "t") -> ExternalTaskResult:
        """What became of a task."""
        result = (await self.end(task_id)).result
        assert result is not None
        return result


@asynccontextmanager
async def bench() -> AsyncIterator[Bench]:
    async with new_inbox() as inbox:
        desk = TaskDesk(inbox.engine)
        yield Bench(desk)
        desk.close()


@asynccontextmanager
async def real_bench() -> AsyncIterator[Bench]:
    async with Inbox(Agent()) as inbox:
        desk = TaskDesk(inbox.engine)
        yield Bench(desk)
        desk.close()


async def outcomes(on: Bench, worker: Worker, calls: Sequence[tuple[str, dict[str, Any]]]) -> list[ExternalTaskResult]:
    """What becomes of some calls, one after another."""
    found: list[ExternalTaskResult] = []
    async with worker:
        for number, (command, payload) in enumerate(calls):
            await on.put(f"t{number}", effect="write", command_type=command, payload=payload, lease_ms=30_000)
            found.append(await on.did(f"t{number}"))
    return found
