"""The tools with which a model hands work to sub-agents: `task`, `parallel_task`, `spawn`, and `request_followup`.

They run here whoever else runs the calls of their lane. Each may be made again with the same key: it then finds the
sub-agent, or the message, that it made before.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from laneway.agent.subagents import SUCCEEDED, SUSPENDED, Errand, Subagent
from laneway.dialogue import ToolContext, ToolOutput, ToolSpec
from laneway.errors import ConfigError, LanewayError, UsageError, text_of
from laneway.records import DURATION_MAX_MS
from laneway.tools.lanes import EXECUTE
from laneway.tools.outputs import cap_output
from laneway.tools.registry import FunctionTool

if TYPE_CHECKING:
    from laneway.agent.loop import Run
    from laneway.agent.subagents import Delegates
    from laneway.dialogue import Intent
    from laneway.ports import Tool

__all__ = ("SubagentTool", "TaskBrief", "with_subagent_tools")

TASKS_MAX: Final = 1_000
Work = Callable[[Mapping[str, Any], ToolContext], Awaitable[ToolOutput]]


@dataclass
class TaskBrief:
    """One task of several: what to do, by which agent, and a few words about it."""

    prompt: str
    agent: str = ""
    description: str = ""


@functools.cache
def _made(shown: Callable[..., None]) -> FunctionTool[..., None]:
    """Once for all sessions: the schema of a tool takes its time."""
    return FunctionTool(shown, effect="idempotent", lane=EXECUTE, parallel=True)


class SubagentTool:
    """One of the tools."""

    can_reconcile = False

    def __init__(self, shown: Callable[..., None], work: Work, *, waits: bool) -> None:
        made = _made(shown)
        # How long a sub-agent may take is said by the call, not by the lane.
        limit = DURATION_MAX_MS if waits else None
        self.spec: ToolSpec = replace(made.spec, local=True, waits=waits, timeout_ms=limit)
        self.check: Callable[[str], dict[str, Any]] = made.check
        self._work = work

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Do it."""
        try:
            return await cap_output(await self._work(arguments, context), context)
        except UsageError as error:
            return ToolOutput(text=f"[Not started: {text_of(error)}]", is_error=True)

    async def reconcile(self, intent: Intent, context: ToolContext) -> ToolOutput | None:
        """It is made again, and finds what it made before."""
        return None


# ---- what the model is shown ----


def task(prompt: str, agent: str = "", description: str = "", timeout_ms: int | None = None) -> None:
    """Hand a task to a sub-agent and wait for its answer.

    The sub-agent begins with nothing but the prompt: say everything that it has to know. Several calls in one
    answer work side by side.

    Args:
        prompt: What to do, and what to answer.
        agent: The name of the agent that is to do it; empty: one like you.
        description: A few words about it, for people.
        timeout_ms: End it after so many milliseconds.
    """


def parallel_task(tasks: list[TaskBrief]) -> None:
    """Hand several tasks to sub-agents that work side by side, and wait for all answers.

    Args:
        tasks: The tasks; each begins with nothing but its prompt.
    """


def spawn(prompt: str, agent: str = "", description: str = "") -> None:
    """Hand a task to a sub-agent and go on at once. You get a message when it has ended, however that is.

    Args:
        prompt: What to do, and what to answer.
        agent: The name of the agent that is to do it; empty: one like you.
        description: A few words about it, for people.
    """


def request_followup(text: str) -> None:
    """Go on in a further turn after this one, which begins with your text. At most five in a row.

    Args:
        text: What to do then.
    """


def with_subagent_tools(delegates: Delegates, toolbox: Mapping[str, Tool]) -> Mapping[str, Tool]:
    """A toolbox with the tools of a model that may hand work to sub-agents, if it may."""
    if not delegates.is_on:
        return toolbox
    work = _Work(delegates)
    made = (
        SubagentTool(task, work.task, waits=True),
        SubagentTool(parallel_task, work.parallel_task, waits=True),
        SubagentTool(spawn, work.spawn, waits=False),
        SubagentTool(request_followup, work.request_followup, waits=False),
    )
    twice = [tool.spec.name for tool in made if tool.spec.name in toolbox]
    if twice:
        hint = "name your own otherwise, or say subagents=False"
        raise ConfigError(f"there are two tools {twice[0]!r}", setting="tools", value=twice[0], hint=hint)
    return {**toolbox, **{tool.spec.name: tool for tool in made}}


class _Work:
    """What the tools do."""

    def __init__(self, delegates: Delegates) -> None:
        self._delegates = delegates

    def _run(self, context: ToolContext) -> Run | None:
        """The run whose model wants it; None for the host itself."""
        return self._delegates.session.live_run(context.run_id)

    def _key(self, context: ToolContext) -> str:
        return context.key or self._delegates.session.host.env.ids.new_id("errand")

    async def task(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        errand = Errand(key=self._key(context), tool_id=context.call_id, **arguments)
        [sub] = await self._wait([errand], context)
        if sub.status == SUCCEEDED:
            return ToolOutput(text=sub.output)
        return ToolOutput(text=f"[The sub-agent {_how(sub)}: {sub.output or 'it left no text'}]", is_error=True)

    async def parallel_task(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        briefs = arguments["tasks"]
        if not 0 < len(briefs) <= TASKS_MAX:
            raise UsageError(f"tasks has 1 to {TASKS_MAX:,} tasks, not {len(briefs):,}")
        key = self._key(context)
        errands = [
            Errand(key=f"{key}/{number}", tool_id=context.call_id, **brief) for number, brief in enumerate(briefs, 1)
        ]
        subs = await self._wait(errands, context)
        parts = [
            f"[{number}. {_titled(sub)}{_how(sub)}]\n{sub.output or '[it left no text]'}"
            for number, sub in enumerate(subs, 1)
        ]
        return ToolOutput(text="\n\n".join(parts), is_error=all(sub.status != SUCCEEDED for sub in subs))

    async def spawn(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        errand = Errand(key=self._key(context), tool_id=context.call_id, awaited=False, **arguments)
        sub, is_new = await self._delegates.spawn(errand, self._run(context))
        told = "It works, and you get a message when it has ended." if is_new else "It was started before."
        return ToolOutput(text=f"[Started sub-agent {sub}. {told}]")

    async def request_followup(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        run = self._run(context)
        if run is None:
            raise UsageError("only a run can go on in a further turn", hint="send a message")
        engine = self._delegates.session.host.inbox.engine
        try:
            await engine.request_followup(run.turn, arguments["text"], key=context.key or None)
        except LanewayError as error:
            return ToolOutput(text=f"[Not asked for: {text_of(error)}]", is_error=True)
        return ToolOutput(text="[A further turn follows this one.]")

    async def _wait(self, errands: list[Errand], context: ToolContext) -> list[Subagent]:
        delegates, run = self._delegates, self._run(context)
        for errand in errands:
            delegates.check(errand)
        subs = [delegates.start(errand, run) for errand in errands]
        await delegates.wait(subs, goes_on=run)
        if any(sub.status == SUSPENDED for sub in subs):
            raise asyncio.CancelledError  # the session is being closed; whoever opens it again attaches to them
        return subs


def _titled(sub: Subagent) -> str:
    title = sub.errand.description or sub.errand.agent
    return f"{title}: " if title else ""


def _how(sub: Subagent) -> str:
    return {"timed_out": "timed out", "cancelled": "was cancelled"}.get(sub.status, sub.status)
