"""Confirmations: somebody is asked before a call is made, about exactly what will be done.

A request is a row of the inbox: it outlives the process. A run that goes on after a crash asks about the same call
with the same key, and gets the same request, or the answer that came meanwhile. The slots of a turn are free while it
waits; several calls of one answer are asked about at the same time.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, assert_never

from laneway.agent.gates import Refusal
from laneway.agent_events import (
    AgentEvent,
    ConfirmationEscalatedEvent,
    ConfirmationReceivedEvent,
    ConfirmationRequiredEvent,
    ConfirmationTimeoutEvent,
    ConfirmationWarningEvent,
)
from laneway.dialogue import copied
from laneway.errors import FencedError, InterruptSignalError, LanewayError, text_of
from laneway.mail import Approval, ApprovalState

if TYPE_CHECKING:
    from laneway.agent.gates import Asked
    from laneway.agent.loop import Run
    from laneway.agent.session import AsyncSession
    from laneway.policies import ConfirmationPolicy

__all__ = ("Confirmations",)

HOOK = "on_confirmation"
TAKEN = {"reject": "rejected", "auto_approve": "auto_approved"}


class Confirmations:
    """The requests for approval of one session."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self.asked: Counter[str] = Counter()  # how often, by the id of the call
        policy = session.settings.confirmation_policy
        self.policy = policy if policy is not None and policy.enabled else None
        self._waits: dict[str, tuple[Run, Approval]] = {}  # by request: what waits for an answer here

    @property
    def is_on(self) -> bool:
        """Whether somebody can be asked."""
        return self.policy is not None

    @property
    def bypassed_lanes(self) -> tuple[str, ...]:
        """Lanes whose calls nobody is asked about."""
        return tuple(self.policy.yolo_lanes) if self.policy is not None else ()

    async def ask(self, asked: Asked) -> Refusal | None:
        """Ask about one call and wait; None: it may be made, with exactly these arguments."""
        run, policy = asked.run, self.policy
        if run is None or policy is None:
            return Refusal(gate="approval", reason=f"{asked.approval_reason}, and nobody is there to ask")
        run.turn._check()  # noqa: SLF001 - a run that is being ended asks nobody
        self.asked[asked.call_id] += 1
        telling = _Telling(self._session, asked)
        on_news = functools.partial(self._news, asked, run, policy, telling)
        try:
            wanted = self._request(asked, run, policy)
            exactly = json.dumps(wanted.arguments, ensure_ascii=False)
            self._keep_round(run)
            answer = await run.turn._engine.ask_for(run.turn, wanted, on_news)  # noqa: SLF001 - its own engine
        except (InterruptSignalError, FencedError):
            raise
        except LanewayError as error:  # it cannot be shown, or not be kept: nobody can say yes to it
            return Refusal(gate="approval", reason=f"nobody could be asked: {text_of(error)}")
        finally:
            self._leave(asked, run)
        await telling.end()
        refusal = _refusal(answer, policy)
        if refusal is None:
            asked.arguments = json.loads(exactly)
            if not answer.is_about(asked.name, asked.arguments):  # somebody has changed what they were shown
                return Refusal(gate="approval", reason="what was approved is not what was asked for")
        return refusal

    def _request(self, asked: Asked, run: Run, policy: ConfirmationPolicy) -> Approval:
        return run.turn._engine.new_approval(  # noqa: SLF001 - as above
            run.turn,
            asked.name,
            asked.arguments,
            policy.default_timeout_ms,
            why=text_of(asked.approval_reason),
            call_id=asked.call_id,
            lane=asked.lane,
            key=asked.key,
            approvers=tuple(policy.approvers),
            escalate_after_ms=policy.escalate_after_ms or 0,
            escalate_to=tuple(policy.escalate_to),
        )

    @staticmethod
    def _keep_round(run: Run) -> None:
        """In the same commit as the request: whoever goes on after a crash finds the call that it is about."""
        one = run.machine.round
        if one is not None:
            run.book.keep_unsaved()
            run.book.keep(one)

    # ---- telling ----

    def _news(self, asked: Asked, run: Run, policy: ConfirmationPolicy, telling: _Telling, *news: Any) -> None:
        what, approval, remaining_ms = news
        if what == "asked":
            self._waits[approval.id] = (run, approval)
            # A process that ends while a run waits for people says nothing against the run, however often it happens.
            run.turn._engine.note_progress(run.turn)  # noqa: SLF001 - its own engine
        elif what == "ended":
            self._waits.pop(approval.id, None)
        run.waits_for = self._waits_for(run)
        run.calls.away(asked.call_id, is_away=what != "ended")
        run.emit(_event(what, approval, policy, remaining_ms))
        if what in ("asked", "ended"):
            telling.tell(approval)

    def _waits_for(self, run: Run) -> str:
        """What a run waits for, in one sentence; empty if nothing."""
        mine = [approval for other, approval in self._waits.values() if other is run]
        if not mine:
            return ""
        each = [f"{one.id} of {one.action} until {_time(one.expires_ms)}" for one in mine]
        return f"an approval is pending: {', '.join(each)}"

    def _leave(self, asked: Asked, run: Run) -> None:
        """A call waits no more, whatever the reason."""
        run.calls.away(asked.call_id, is_away=False)
        for name, (other, approval) in list(self._waits.items()):
            if other is run and approval.key == asked.key:
                del self._waits[name]
                run.waits_for = self._waits_for(run)


class _Telling:
    """Tells the hooks what happens to one request, in order, without keeping the request waiting."""

    def __init__(self, session: AsyncSession, asked: Asked) -> None:
        self._session = session
        self._asked = asked
        self._last: asyncio.Task[None] | None = None

    def tell(self, approval: Approval) -> None:
        """Tell them how it is now."""
        hooks, run = self._session.hooks, self._asked.run
        if not hooks.wants(HOOK) or run is None:
            return
        payload = {
            "session_id": self._session.session_id,
            "run_id": run.id,
            "approval_id": approval.id,
            "tool": approval.action,
            "tool_id": approval.call_id,
            "args": copied(dict(approval.arguments)),
            "lane": approval.lane,
            "working_directory": self._session.workspace,
            "state": approval.state.value,
            "reason": approval.reason or approval.why,
            "answered_by": approval.answered_by,
            "expires_ms": approval.expires_ms,
        }
        self._last = run.loop.create_task(self._say(self._last, payload), name="laneway-on-confirmation")
        self._session.keep_task(self._last)

    async def _say(self, before: asyncio.Task[None] | None, payload: dict[str, Any]) -> None:
        if before is not None:
            await asyncio.wait([before])
        await self._session.hooks.tell(HOOK, payload)

    async def end(self) -> None:
        """Wait until they have been told; each hook has its own limit."""
        if self._last is not None:
            await asyncio.wait([self._last])


def _event(what: str, approval: Approval, policy: ConfirmationPolicy, remaining_ms: int) -> AgentEvent:
    ids: dict[str, Any] = {"approval_id": approval.id, "tool_id": approval.call_id, "tool_name": approval.action}
    if what == "asked":
        args = copied(dict(approval.arguments))  # whoever changes these changes nothing
        timeout_ms = policy.default_timeout_ms
        return ConfirmationRequiredEvent(**ids, args=args, timeout_ms=timeout_ms, reason=approval.why)
    if what == "warned":
        return ConfirmationWarningEvent(**ids, remaining_ms=remaining_ms)
    if what == "escalated":
        return ConfirmationEscalatedEvent(**ids, escalated_to=approval.escalate_to, remaining_ms=remaining_ms)
    if approval.state is ApprovalState.EXPIRED:
        return ConfirmationTimeoutEvent(**ids, action_taken=TAKEN[policy.timeout_action])
    approved = approval.state is ApprovalState.APPROVED
    return ConfirmationReceivedEvent(**ids, approved=approved, reason=approval.reason, answered_by=approval.answered_by)


def _refusal(answer: Approval, policy: ConfirmationPolicy) -> Refusal | None:
    """What an answer means for the call."""
    said = f": {answer.reason}" if answer.reason else ""
    match answer.state:
        case ApprovalState.APPROVED:
            return None
        case ApprovalState.EXPIRED if policy.timeout_action == "auto_approve":
            return None
        case ApprovalState.EXPIRED:
            reason = f"nobody approved it within {policy.default_timeout_ms} ms"
        case ApprovalState.DENIED:
            reason = f"{answer.answered_by or 'somebody'} did not approve it{said}"
        case ApprovalState.SUPERSEDED:
            reason = f"the request for its approval was superseded{said}"
        case ApprovalState.WITHDRAWN:
            reason = f"the request for its approval was withdrawn{said}"
        case ApprovalState.PENDING:
            raise AssertionError("nobody has answered")
        case _:
            assert_never(answer.state)
    return Refusal(gate="approval", reason=reason)


def _time(wall_ms: int) -> str:
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="seconds")
