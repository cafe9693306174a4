"""The network between workers and their host: it drops, doubles, delays, reorders and crosses frames, and it is cut.

Every worker has a link of its own. A frame that arrives is answered by whatever host there is at that moment, in a task
that dies with that host; an answer goes back the same way. Whoever asks gets an answer, `OSError`, or nothing for a
while and then `TransportUnavailableError`, as over a real connection.

`SimPlaces` is the loop: it knows which process a task belongs to, so that one process can die alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar
from typing import Any

from laneway.errors import TransportUnavailableError
from laneway.sim.loop import SimLoop
from laneway.sim.mail_world import MailDice
from laneway.sim.workers_world import LinkWorld
from laneway.transports.wire import FrameTransport

__all__ = ("PLACE", "Link", "SimPlaces")

PLACE: ContextVar[str] = ContextVar("laneway_sim_place", default="")
"""The process that the running code belongs to; empty: the simulator."""
Answer = Callable[[str, str], Awaitable[str]]
"""Answers a frame of a worker, whose link is named; raises `OSError` when there is no host."""


class SimPlaces(SimLoop):
    """A simulated loop on which several processes live."""

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None, **kwargs: Any
    ) -> asyncio.Task[Any]:
        """A task of the process that makes it."""
        task = super().create_task(coro, name=name, context=context, **kwargs)
        task.place = PLACE.get() if context is None else context.get(PLACE, "")  # type: ignore[attr-defined]
        return task

    def start_in(self, place: str, coro: Any, *, name: str) -> asyncio.Task[Any]:
        """A task of a process."""
        token = PLACE.set(place)
        try:
            return self.create_task(coro, name=name)
        finally:
            PLACE.reset(token)

    def tasks_of(self, place: str) -> list[asyncio.Task[Any]]:
        """What a process has not ended, in the order in which it was begun."""
        return [task for task in self.pending_tasks() if getattr(task, "place", "") == place]

    async def kill(self, place: str) -> bool:
        """Nothing of a process runs any more. False: it does not end."""
        for _ in range(100):
            tasks = self.tasks_of(place)
            if not tasks:
                return True
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=1)
        return False


class Link:
    """The way of one worker process to the host."""

    def __init__(self, name: str, world: LinkWorld, dice: MailDice, answer: Answer, loop: SimPlaces) -> None:
        self.name = name
        self.is_cut = False  # its worker is dead: nothing gets out any more
        self._world = world
        self._dice = dice
        self._answer = answer
        self._loop = loop
        self._last = ""  # an answer that can arrive instead of another one

    def transport(self) -> FrameTransport:
        """A transport over this link."""
        return FrameTransport(self.exchange)

    async def exchange(self, frame: str) -> str:
        """Carry a frame to the host, and the answer back."""
        if self.is_cut:
            raise OSError("this process is dead")
        if self._happens("reset"):
            raise ConnectionResetError("simulated")
        arrived: asyncio.Future[str] = self._loop.create_future()
        carriers = [self._send(frame, arrived)]
        if self._happens("twice"):
            carriers.append(self._send(frame, arrived))
        try:
            async with asyncio.timeout(None) as limit:
                for carrier in carriers:
                    carrier.add_done_callback(lambda _: self._lost(carriers, arrived, limit))
                answer = await arrived
        except TimeoutError:
            raise TransportUnavailableError("simulated: no answer came") from None
        except asyncio.CancelledError:
            if not self._happens("orphans"):  # the host sees that the connection is gone
                for carrier in carriers:
                    carrier.cancel()
            raise
        if self.is_cut:
            raise OSError("this process is dead")
        return self._changed(answer)

    def _lost(self, carriers: list[asyncio.Task[None]], arrived: asyncio.Future[str], limit: asyncio.Timeout) -> None:
        """When no answer can come any more, whoever waits gives up after a while."""
        if not arrived.done() and all(carrier.done() for carrier in carriers):
            limit.reschedule(self._loop.time() + self._world.patience_ms / 1000)

    def _send(self, frame: str, arrived: asyncio.Future[str]) -> asyncio.Task[None]:
        carrying = self._carry(frame, arrived)
        return self._loop.start_in("", carrying, name=f"sim frame of {self.name}")

    async def _carry(self, frame: str, arrived: asyncio.Future[str]) -> None:
        await self._travel()
        if self._happens("drop_request") or self._is_cut_off("requests"):
            return
        try:
            answer = await self._answer(self.name, frame)
        except OSError as error:
            if not arrived.done():
                arrived.set_exception(error)
                arrived.exception()  # whoever asked may have gone
            return
        await self._travel()
        if self._happens("drop_answer") or self._is_cut_off("answers"):
            return
        if not arrived.done():
            arrived.set_result(answer)

    async def _travel(self) -> None:
        delay_ms = 0 if self._dice.honest else self._world.delay_ms
        await asyncio.sleep(self._dice.span(delay_ms) if delay_ms else 0)

    def _changed(self, answer: str) -> str:
        if self._happens("garbage"):
            return self._dice.one(("", "{", "[]", '{"v": 7}', answer[: len(answer) // 2]))
        if self._last and self._happens("crossed"):
            return self._last
        self._last = answer
        return answer

    def _is_cut_off(self, way: str) -> bool:
        if self._dice.honest:
            return False
        now = self._loop.time() * 1000
        return any(at <= now < end and what in (way, "all") for at, end, what in self._world.cuts)

    def _happens(self, name: str) -> bool:
        chance = self._world.chances.get(name, 0.0)
        if self._dice.honest or not chance or self._dice.rng.random() >= chance:
            return False
        self._dice.faults += 1
        return True
