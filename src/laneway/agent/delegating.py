"""What a session says and does about its sub-agents and its calls in the background; a part of `AsyncSession`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from laneway.agent.streams import EventStream
from laneway.agent.subagents import CANCELLED, MARK, SUSPENDED, Errand, Subagent, closed, is_child_id
from laneway.errors import LanewayError, RunCancelledError, RunFailedError, UsageError

if TYPE_CHECKING:
    from laneway.agent.background import Background
    from laneway.agent.host import Host
    from laneway.agent.loop import Run
    from laneway.agent.results import RunResult
    from laneway.agent.session import AsyncSession
    from laneway.agent.subagents import Delegates
    from laneway.agent_events import AgentEvent
    from laneway.records import Fields
    from laneway.rows import Owner

__all__ = ("Delegating",)


class Delegating(ABC):
    """Sub-agents of a session: started by its host, asked about, watched."""

    delegates: Delegates
    background_calls: Background
    host: Host
    owner: Owner
    key: tuple[str, str]
    parent: AsyncSession | None
    depth: int
    is_waited_for = False  # by its parent
    _runs: dict[str, Run]
    _watchers: list[EventStream]
    _run: Run | None
    _opening: asyncio.Task[None] | None

    @abstractmethod
    async def ready(self) -> Any:
        """Open what is needed."""

    async def task(
        self, prompt: str, *, agent: str = "", description: str = "", timeout_ms: int | None = None
    ) -> RunResult:
        """Have a sub-agent do something, in a session of its own, and wait for its answer.

        `agent` is the name of a definition in `agent_dirs`; empty: one like this session. Raises what `send` would
        raise; a sub-agent that takes longer than `timeout_ms` is ended. Cancelling this ends the sub-agent.
        """
        [sub] = await self._delegate([_errand(prompt, agent=agent, description=description, timeout_ms=timeout_ms)])
        if sub.result is not None:
            return sub.result
        if isinstance(sub.error, LanewayError):
            raise sub.error
        facts: dict[str, Any] = {"run_id": "", "reason": sub.output}
        if sub.status == CANCELLED:
            raise RunCancelledError(f"the sub-agent was ended: {sub.output}", **facts)
        raise RunFailedError(f"the sub-agent failed: {sub.output}", **facts)

    async def parallel_task(self, tasks: Iterable[str | Mapping[str, Any]]) -> list[Fields]:
        """Have sub-agents do several things side by side; what became of each, in order.

        A task is a prompt, or a mapping with `prompt`, `agent`, `description` and `timeout_ms`. Each result has
        `status` (succeeded, failed, timed_out, cancelled), `output` and more, by item or by attribute.
        """
        errands = [_errand(each) if isinstance(each, str) else _errand(**_checked(each)) for each in tasks]
        return [sub.report() for sub in await self._delegate(errands)]

    async def spawn(self, prompt: str, *, agent: str = "", description: str = "", timeout_ms: int | None = None) -> str:
        """Have a sub-agent do something, and go on; its end becomes exactly one message to this session.

        Returns its id as soon as it is stored; `subagents()` says what becomes of it.
        """
        await self.ready()
        errand = _errand(prompt, agent=agent, description=description, timeout_ms=timeout_ms)
        task_id, _ = await self.delegates.spawn(replace(errand, key=self._new_key(), awaited=False), None)
        return task_id

    async def cancel_subagent(self, task_id: str, reason: str = "cancelled by the caller") -> bool:
        """End one sub-agent. False: there is none of that id at work."""
        await self.ready()
        return await self.delegates.cancel(task_id, reason)

    def children(self) -> list[AsyncSession]:
        """The sessions of the sub-agents that are at work for this one."""
        return [child for child in self.delegates.sessions() if child.delegates.is_open]

    def subagents(self) -> list[Fields]:
        """The sub-agents of this session, oldest first: those at work, and the newest that have ended.

        Each has `task_id`, `agent`, `description`, `child_session_id`, `status`, `output`, `duration_ms`.
        """
        return self.delegates.reports()

    # ---- calls in the background ----

    def background(self) -> list[Fields]:
        """The calls of this session that are in the background, oldest first.

        Each has `background_id`, `tool_id`, `tool_name`, `run_id`, `lane`, `since_ms` (when it was moved there),
        `running_ms` (for how long), `after_ms`, and `task_id` if somebody else makes it.
        """
        return self.background_calls.reports()

    async def cancel_background(self, background_id: str, reason: str = "cancelled by the caller") -> bool:
        """End one call in the background; its end is told as any other. False: there is none of that id at work."""
        await self.ready()
        return await self.background_calls.cancel(background_id, reason)

    async def _delegate(self, errands: list[Errand]) -> list[Subagent]:
        await self.ready()
        for errand in errands:
            self.delegates.check(errand)
        subs = [self.delegates.start(replace(errand, key=self._new_key())) for errand in errands]
        await self.delegates.wait(subs)
        if any(sub.status == SUSPENDED for sub in subs):
            raise closed()
        return subs

    def _new_key(self) -> str:
        return self.host.env.ids.new_id("errand")

    # ---- what sub-agents need of a session ----

    def is_family(self, owner: Owner) -> bool:
        """Whether something belongs to this session, or to a sub-agent of it, at work or not."""
        own = self.owner
        return owner == own or (
            owner[:2] == own[:2] and owner.session.startswith(f"{own.session}{MARK}") and is_child_id(owner.session)
        )

    def waiting_line(self) -> tuple[tuple[str, str], ...]:
        """This session, and those that wait for it: a tool here must not wait for any of them."""
        above = self.parent.waiting_line() if self.parent is not None and self.is_waited_for else ()
        return (*above, self.key)

    async def opened(self) -> None:
        """Wait until it has been opened, or could not be."""
        if self._opening is not None:
            await asyncio.wait([self._opening])

    def live_run(self, run_id: str | None = None) -> Run | None:
        """A run whose end was not told yet; without an id the one that goes on."""
        return self._run if run_id is None else self._runs.get(run_id)

    def relay(self, push: Callable[[AgentEvent], None]) -> None:
        """Hand every event of this session on, at once."""
        self._watchers.append(_Relay(push, self._watchers.remove))


class _Relay(EventStream):
    """Somebody who hears of every event at once, and keeps none."""

    def __init__(self, push: Callable[[AgentEvent], None], on_close: Callable[[EventStream], None]) -> None:
        super().__init__(on_close, ends_with_run=False)
        self._push = push

    def push(self, event: AgentEvent) -> None:
        """Hand it on."""
        self._push(event)


def _errand(
    prompt: str, *, agent: str = "", description: str = "", timeout_ms: int | None = None, key: str = ""
) -> Errand:
    for name, value in (("prompt", prompt), ("agent", agent), ("description", description)):
        if not isinstance(value, str):
            raise UsageError(f"{name} is text, not {value!r}")
    return Errand(key=key, prompt=prompt, agent=agent, description=description, timeout_ms=timeout_ms)


def _checked(brief: object) -> dict[str, Any]:
    known = ("prompt", "agent", "description", "timeout_ms")
    if not isinstance(brief, Mapping) or "prompt" not in brief or not set(brief) <= set(known):
        raise UsageError(f"a task is a prompt, or a mapping of {', '.join(known)}; not {brief!r:.200}")
    return dict(brief)
