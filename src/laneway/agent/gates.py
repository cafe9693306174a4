"""The gates that a call passes before it is queued: hooks, permissions, the skill filter, approvals; in this order.

Every gate fails closed: what raises, hangs or answers nonsense is a no. A call that passes is made with exactly the
arguments that the last gate has seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from laneway.dialogue import ResultStatus, ToolOutput, ToolResult, compact_json, copied
from laneway.errors import LanewayError, describe, text_of
from laneway.kernel.hooks import HookAction, HookVerdict
from laneway.kernel.permissions import Verdict, decide

if TYPE_CHECKING:
    from laneway.agent.loop import Run
    from laneway.agent.session import AsyncSession
    from laneway.ports import Tool

__all__ = ("Asked", "Gates", "Refusal")


@dataclass(slots=True)
class Asked:
    """A call that wants to be made; `run` is None for one of the host itself, who needs nobody's approval.

    `text` is its arguments as JSON: as the model wrote them, unless a hook has changed them.
    """

    call_id: str
    tool: Tool
    arguments: dict[str, Any]
    text: str
    lane: str
    run: Run | None = None
    key: str = ""
    approval_reason: str = ""  # why somebody has to be asked; empty: nobody has to

    @property
    def name(self) -> str:
        """What the tool is called."""
        return self.tool.spec.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a call is not made."""

    gate: str  # hook, permission, skill or approval
    reason: str
    status: ResultStatus = ResultStatus.DENIED

    @property
    def output(self) -> str:
        """What the model is told."""
        what = {ResultStatus.SKIPPED: "Skipped", ResultStatus.ERROR: "Not run"}.get(self.status, "Denied")
        return f"[{what}: {self.reason}]"


class Gates:
    """The gates of one session."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session

    async def admit(self, asked: Asked) -> Refusal | None:
        """Every gate that needs nobody's approval. What is left to ask is in `asked.approval_reason`."""
        session = self._session
        if session.hooks.wants("pre_tool_use"):
            refusal = await self._ask_hooks(asked)
            if refusal is not None:
                return refusal
        settings = session.settings
        decision = decide(settings.permission_policy, asked.tool.spec, asked.arguments, workspace=session.workspace)
        if decision.verdict is Verdict.DENY:
            return Refusal(gate="permission", reason=decision.reason)
        reason = session.skills.refusal(asked)
        if reason:
            return Refusal(gate="skill", reason=reason)
        asked.approval_reason = decision.reason if decision.verdict is Verdict.ASK and asked.run is not None else ""
        if asked.approval_reason and asked.lane in session.confirmations.bypassed_lanes:
            asked.approval_reason = ""
        if asked.approval_reason and not session.confirmations.is_on:
            return Refusal(gate="approval", reason=f"{asked.approval_reason}, and nobody is there to ask")
        return None

    async def _ask_hooks(self, asked: Asked) -> Refusal | None:
        session = self._session
        verdict = await session.hooks.decide("pre_tool_use", self._payload(asked), wait=session.host.wait)
        if verdict.action is HookAction.SKIP:
            return Refusal(gate="hook", reason=verdict.reason, status=ResultStatus.SKIPPED)
        if verdict.action is not HookAction.CONTINUE:
            return Refusal(gate="hook", reason=verdict.reason)
        return self._change(asked, verdict)

    def _payload(self, asked: Asked) -> dict[str, Any]:
        session = self._session
        return {
            "session_id": session.session_id,
            "run_id": asked.run.id if asked.run is not None else "",
            "tool": asked.name,
            "tool_id": asked.call_id,
            "args": copied(asked.arguments),  # a hook that keeps them must not reach what will be done
            "lane": asked.lane,
            "effect": asked.tool.spec.effect.value,
            "skill": session.skills.name_of(asked.run),
            "working_directory": session.workspace,
            "recent_tools": asked.run.recent_tools() if asked.run is not None else [],
            "by": "host" if asked.run is None else "model",
        }

    def _change(self, asked: Asked, verdict: HookVerdict) -> Refusal | None:
        """What a hook has made of the arguments is checked like what the model has said."""
        if verdict.arguments is None:
            return None
        try:
            text = compact_json(verdict.arguments)
            asked.arguments = asked.tool.check(text)
            asked.text = text
        except (LanewayError, TypeError, ValueError) as error:
            said = text_of(error)
        except Exception as error:  # noqa: BLE001 - a tool of one's own may raise anything
            said = describe(error)
        else:
            return None
        who = f"the hook {verdict.hook_id!r} has changed the arguments (what it gives stands for all of them)"
        return Refusal(gate="hook", reason=f"{who}: {said}")

    @property
    def wants_ends(self) -> bool:
        """Whether any hook is told how calls end."""
        return self._session.hooks.wants("post_tool_use")

    async def tell_output(self, asked: Asked, output: ToolOutput, took_ms: int) -> None:
        """A call of the host has ended: the hooks are told, if there are any."""
        if self.wants_ends:
            status = ResultStatus.ERROR if output.is_error else ResultStatus.OK
            code = output.exit_code
            result = ToolResult(
                call_id=asked.call_id, name=asked.name, output=output.text, status=status, exit_code=code
            )
            await self.tell_end(asked, result, took_ms)

    async def tell_end(self, asked: Asked, result: ToolResult, took_ms: int) -> None:
        """A call has ended: the hooks are told."""
        payload = self._payload(asked)
        payload["result"] = {
            "success": not result.is_error,
            "status": result.status.value,
            "output": result.output,
            "exit_code": result.exit_code,
            "duration_ms": took_ms,
        }
        await self._session.hooks.tell("post_tool_use", payload)
