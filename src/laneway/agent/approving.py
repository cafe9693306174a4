"""What a session is told by people: approvals of what it wants to do, and commands. Neither ever queues."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from laneway.dialogue import copied
from laneway.errors import ConflictError, LanewayError, UsageError, text_of
from laneway.kernel import directives, texts
from laneway.kernel.mailbox import ApprovalEntry
from laneway.mail import Approval, Sender
from laneway.records import Fields
from laneway.runtime.commands import Commands

if TYPE_CHECKING:
    from laneway.agent.agent import AsyncAgent
    from laneway.agent.confirmations import Confirmations
    from laneway.agent.host import Host
    from laneway.agent.session import AsyncSession
    from laneway.rows import Owner

__all__ = ("Approving",)

COMPACTED = "The conversation was compacted."


class Approving(ABC):
    """Approvals and commands of a session."""

    session_id: str
    owner: Owner
    host: Host
    confirmations: Confirmations
    _agent: AsyncAgent

    @abstractmethod
    async def ready(self) -> Any:
        """Open what is needed."""

    @abstractmethod
    async def compact(self) -> bool:
        """Replace the older part of the conversation by a summary."""

    @abstractmethod
    async def submit_compaction(self) -> str:
        """Ask for that, when it is its turn; the id of the message."""

    def keep_task(self, task: asyncio.Task[Any]) -> None:
        """Own a task until it has ended."""
        self._agent.keep(task)

    # ---- approvals ----

    async def approvals(self) -> list[Approval]:
        """What waits for an approval here, such as a call, or going on after a crash with `on_crash="ask"`."""
        await self.ready()
        return self.host.inbox.approvals(self.session_id, tenant=self.owner.tenant)

    async def approve(self, approval_id: str, *, by: str = "host") -> bool:
        """Say yes to a request. False: it is not pending here (any more)."""
        return await self._is_pending(approval_id) and await self.host.inbox.approve(approval_id, by=by)

    async def deny(self, approval_id: str, reason: str = "", *, by: str = "host") -> bool:
        """Say no to a request. False: it is not pending here (any more)."""
        return await self._is_pending(approval_id) and await self.host.inbox.deny(approval_id, reason, by=by)

    async def _is_pending(self, approval_id: str) -> bool:
        """Whether a request is pending here, or in a sub-agent."""
        here = [one.id for one in await self.approvals()]
        return approval_id in here or approval_id in [one.approval.id for one in self._asked()]

    async def pending_confirmations(self) -> list[Fields]:
        """The calls that wait for somebody's approval, here and in the sub-agents of this session, oldest first.

        Each has `approval_id`, `tool_id`, `tool_name`, `args` (exactly what will be done), `remaining_ms`, `lane`,
        `session_id`, and `reason`: why somebody has to be asked.
        """
        await self.ready()
        now = self.host.inbox.engine.now()
        return [_shown(entry, now) for entry in self._asked()]

    async def confirm_tool_use(
        self,
        tool_id: str,
        approved: bool,  # noqa: FBT001 - the call form that people know
        reason: str | None = None,
        *,
        args: Mapping[str, Any] | None = None,
        by: str = "host",
    ) -> bool:
        """Answer for one call, by its id or by that of its request. False: it does not wait (any more).

        `reason` reaches the model when the answer is no. With `args` the answer counts for exactly these arguments:
        others are refused with `ConflictError`, and the call goes on waiting.
        """
        if not isinstance(approved, bool):
            raise UsageError(f"approved is True or False, not {approved!r:.80}")
        await self.ready()
        found = [one.approval for one in self._asked() if tool_id == one.approval.id]
        found = found or [one.approval for one in self._asked() if tool_id == one.approval.call_id]
        if len({one.session_key for one in found}) > 1:  # ids of calls are the model's: sub-agents may use the same
            found = [one for one in found if one.session_key == self.session_id] or found
        if not found:
            return False
        if args is None and found[0].id != tool_id and self._was_asked_before(tool_id):
            raise ConflictError(
                f"another call with the id {tool_id!r} has been asked about before",
                hint=f"say which request: {found[0].id}, or give its args",
                approval_id=found[0].id,
            )
        if len(found) > 1:
            ids = ", ".join(one.id for one in found)
            raise ConflictError(f"{len(found)} calls with the id {tool_id!r} wait", hint=f"say which request: {ids}")
        approval = found[0]
        if args is not None and not _is_about(approval, args):
            raise ConflictError(
                f"request {approval.id} is about other arguments than these",
                hint="pending_confirmations() shows what will be done; nothing was changed",
                approval_id=approval.id,
            )
        inbox = self.host.inbox
        if approved:
            return await inbox.approve(approval.id, by=by)
        return await inbox.deny(approval.id, reason or "", by=by)

    async def cancel_confirmations(self, reason: str = "cancelled by the host") -> int:
        """Take back every request for the approval of a call, here and in sub-agents: the calls are denied."""
        await self.ready()
        engine = self.host.inbox.engine
        asked = self._asked()
        count = 0
        for owner in dict.fromkeys(entry.owner for entry in asked):
            ids = [entry.approval.id for entry in asked if entry.owner == owner]
            count += await engine.change(
                owner, engine.kernel.withdraw_approvals, owner, ids, text_of(reason), by="host"
            )
        return count

    def _was_asked_before(self, call_id: str) -> bool:
        """Whether an answer may be meant for an earlier call: ids of calls are the model's, who may use one again."""
        return sum(each.confirmations.asked[call_id] for each in self._family()) > 1

    def _asked(self) -> list[ApprovalEntry]:
        """The requests about calls that are pending, here and in sub-agents."""
        boxes = self.host.inbox.engine.kernel.boxes
        found = [
            entry
            for each in self._family()
            if each.owner in boxes
            for entry in boxes[each.owner].approvals.values()
            if entry.approval.call_id
        ]
        return sorted(found, key=lambda entry: entry.seq)

    def _family(self) -> Iterator[Approving]:
        """This session, and its sub-agents at every depth."""
        yield self
        for child in cast("AsyncSession", self).children():
            yield from child._family()  # noqa: SLF001 - the same family

    # ---- commands ----

    async def command(self, text: str, *, sender: Sender | str | Mapping[str, Any] | None = None) -> str | None:
        """Carry out a command (`/approve`, `/stop`, `/status`, `/compact` …) and return its reply; None: it is none.

        It never queues. Without a sender the host itself speaks, and may do all.
        """
        await self.ready()
        who = Sender.parse(sender)
        directive = directives.parse(text) if isinstance(text, str) else None
        owner = self.owner
        if isinstance(directive, directives.Compact):
            return Commands.denial(directive, who) or await self._compact_now()
        if isinstance(directive, directives.Approve | directives.Deny):
            asked = {entry.approval.id: entry.owner for entry in self._asked()}
            owner = asked.get(directive.approval_id, owner)  # that of a sub-agent is answered here, too
        return await self.host.inbox.command(owner.session, text, sender=who, tenant=owner.tenant)

    async def _compact_now(self) -> str:
        """At once if nothing runs; else as soon as it can be done, and whoever asks need not wait for that."""
        box = self.host.inbox.engine.kernel.boxes.get(self.owner)
        try:
            if box is None or box.is_idle:
                return COMPACTED if await self.compact() else texts.compact_reply(started=False)
            await self.submit_compaction()
        except LanewayError as error:
            return f"The conversation could not be compacted: {text_of(error)}"
        return texts.compact_reply(started=True)


def _is_about(approval: Approval, args: Mapping[str, Any]) -> bool:
    try:
        return approval.is_about(approval.action, args)
    except (TypeError, ValueError, RecursionError):
        return False  # no JSON is what nobody has asked for


def _shown(entry: ApprovalEntry, now: int) -> Fields:
    approval = entry.approval
    whole = approval.expires_ms - approval.asked_ms
    return Fields(
        approval_id=approval.id,
        tool_id=approval.call_id,
        tool_name=approval.action,
        args=copied(dict(approval.arguments)),
        remaining_ms=max(0, entry.expires_at - now if entry.is_awaited else whole),
        lane=approval.lane,
        session_id=approval.session_key,
        reason=approval.why,
    )
