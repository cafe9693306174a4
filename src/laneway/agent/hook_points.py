"""Where a session and its runs ask and tell their hooks, and what they say to them.

Calls of tools are in `gates`, approvals in `confirmations`, skills and plans where they are. What is said first is
always `session_id`, `run_id` and the labels of the session.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from laneway.agent.hooks import Hooks
from laneway.agent_events import AgentEvent, BudgetThresholdHitEvent
from laneway.dialogue import Answer, ModelRequest, Prompt, ToolCall, Usage
from laneway.errors import LanewayError, RunFailedError, text_of
from laneway.kernel.hooks import HookAction

if TYPE_CHECKING:
    from laneway.agent.loop import Run
    from laneway.agent.session import AsyncSession
    from laneway.ports import Model

__all__ = ("RunHooks", "hooks_of", "tell_closed", "tell_opened")

WITHHELD = "[A message was withheld: {reason}]"


def hooks_of(session: AsyncSession) -> Hooks:
    """The hooks that the options of a session name."""
    settings = session.settings

    def on_event(event: AgentEvent) -> None:
        found = session.host.sessions.get((session.key[0], event.session_id))  # itself, or one of its sub-agents
        (found or session).emit_event(event, event.run_id)

    return Hooks(
        settings.hooks,
        run_in_thread=session._in_thread,  # noqa: SLF001 - it makes them
        on_event=on_event,
        labels=session.identity.labels,
    )


async def tell_opened(session: AsyncSession) -> None:
    """A session is open; no turn of it has begun."""
    if session.hooks.wants("session_start"):
        tools = [spec.name for spec in session.tool_specs]
        await session.hooks.tell(
            "session_start", {**_place(session), **_model(session.model), "available_tools": tools}
        )


async def tell_closed(session: AsyncSession) -> None:
    """A session is being closed, and nothing runs in it any more. Whoever was told without waiting ends, too."""
    if session.hooks.wants("session_end"):
        await session.hooks.tell("session_end", _place(session))
    await session.hooks.wait_told(session.session_id)


def _place(session: AsyncSession) -> dict[str, Any]:
    return {"session_id": session.session_id, "working_directory": session.workspace}


def _model(model: Model) -> dict[str, str]:
    provider, _, model_name = model.name.partition("/")
    return {"model_provider": provider, "model_name": model_name or provider}


class RunHooks:
    """The hooks around one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._session = run.session
        self._hooks = run.session.hooks
        self._began_ms = run.now()

    def _payload(self, **more: Any) -> dict[str, Any]:
        return {"session_id": self._session.session_id, "run_id": self._run.id, **more}

    async def _ask(self, event_type: str, payload: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
        """Why it must not be, and what was changed."""
        verdict = await self._hooks.decide(event_type, payload, wait=self._session.host.wait)
        if verdict.action is HookAction.CONTINUE:
            return "", verdict.arguments
        return verdict.reason, None

    def _blocked(self, what: str, reason: str) -> RunFailedError:
        """What ends the run. That is what a hook is there for; of one that has failed, the log has a word already."""
        error = RunFailedError(f"a hook blocks {what}: {reason}", run_id=self._run.id, reason=reason)
        error.is_intended = True
        return error

    # ---- prompts ----

    async def prompt(self, prompt: Prompt, messages: Iterable[str]) -> Prompt:
        """What the model hears of this prompt; raises `RunFailedError` if that is nothing."""
        if not self._hooks.wants("pre_prompt"):
            return prompt
        said, reason = await self._heard(prompt, messages)
        if reason:
            raise self._blocked("the prompt", reason)
        return said

    async def later_prompt(self, prompt: Prompt, message_id: str) -> Prompt:
        """What the model hears of a message that comes into the run: itself, or that there was one."""
        if not self._hooks.wants("pre_prompt"):
            return prompt
        said, reason = await self._heard(prompt, (message_id,))
        return withheld(reason) if reason else said

    async def _heard(self, prompt: Prompt, messages: Iterable[str]) -> tuple[Prompt, str]:
        payload = self._payload(
            prompt=prompt.text, message_ids=list(messages), working_directory=self._session.workspace
        )
        reason, changes = await self._ask("pre_prompt", payload)
        return (prompt if changes is None else replace(prompt, text=text_of(changes["prompt"]))), reason

    # ---- the model ----

    async def generate_start(self, make: Callable[[], ModelRequest]) -> None:
        """The model is about to be asked; raises `RunFailedError` if it must not be."""
        if not self._hooks.wants("generate_start"):
            return
        request = make()
        said = [each.text for each in request.conversation if isinstance(each, Prompt)]
        payload = self._payload(
            prompt=said[-1] if said else "",
            system_prompt=request.system,
            **_model(self._session.model),
            available_tools=[spec.name for spec in request.tools],
            purpose=request.purpose,
        )
        reason, _ = await self._ask("generate_start", payload)
        if reason:
            raise self._blocked("the call of the model", reason)

    async def generate_end(self, answer: Answer, *, purpose: str, took_ms: int) -> None:
        """The model has answered."""
        if self._hooks.wants("generate_end"):
            payload = self._payload(
                **_model(self._session.model),
                response_text=answer.text,
                tool_calls=[_call(call) for call in answer.calls],
                usage=_usage(answer.usage),
                duration_ms=took_ms,
                purpose=purpose,
            )
            await self._hooks.tell("generate_end", payload)

    async def rate_limited(self, error: LanewayError, *, retry_after_ms: int, until_ms: int) -> None:
        """The provider takes no calls for a while."""
        if self._hooks.wants("on_rate_limit"):
            payload = self._payload(
                **_model(self._run.called), error=text_of(error), retry_after_ms=retry_after_ms, until_ms=until_ms
            )
            await self._hooks.tell("on_rate_limit", payload)

    async def threshold_hit(self, event: BudgetThresholdHitEvent) -> None:
        """A budget is nearly used up, or used up."""
        if self._hooks.wants("budget_threshold_hit"):
            await self._hooks.tell("budget_threshold_hit", self._payload(**event.data))

    # ---- the end ----

    async def responded(self, answer: Answer) -> None:
        """The run has its answer, and is about to end with it."""
        await self._session.skills.leave(self._run)
        if self._hooks.wants("post_response"):
            await self._hooks.tell("post_response", self._end(response_text=answer.text))
        if self._hooks.wants("on_success"):
            await self._hooks.tell("on_success", self._end(response_text=answer.text))

    async def failed(self, error: BaseException) -> None:
        """The run ends without an answer."""
        await self._session.skills.leave(self._run)
        if self._hooks.wants("on_error"):
            kind = error.code if isinstance(error, LanewayError) else type(error).__name__
            await self._hooks.tell("on_error", self._end(error=text_of(error) or kind, error_kind=kind))

    def _end(self, **more: Any) -> dict[str, Any]:
        run = self._run
        return self._payload(
            prompt=run.turn.prompt,
            **more,
            tool_calls_count=run.calls_made,
            usage=_usage(run.usage),
            duration_ms=max(0, run.now() - self._began_ms),
        )


def withheld(reason: str) -> Prompt:
    """What the model hears instead of a message that a hook has blocked."""
    return Prompt(text=WITHHELD.format(reason=reason), role="system")


def _call(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = json.loads(call.arguments or "{}")
    except ValueError:  # a model may write anything
        arguments = call.arguments
    return {"tool_id": call.id, "tool": call.name, "args": arguments}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.total_tokens,
        "cache_read_tokens": usage.cache_read_tokens,
        "cache_write_tokens": usage.cache_write_tokens,
        "cost": usage.cost,
    }
