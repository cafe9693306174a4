"""Commands in chat, carried out: who may give them, what they do, what they answer. They never queue."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import assert_never

from laneway.errors import LanewayError, PermissionDeniedError
from laneway.kernel import directives, texts
from laneway.kernel.mailbox import decode_approval
from laneway.kernel.settings import merge
from laneway.mail import Approval, ApprovalState, QueueOptions, QueueSettings, Sender
from laneway.rows import Owner
from laneway.runtime.mail_engine import MailEngine

__all__ = ("Commands",)


class Commands:
    """Carries out directives for the sessions of one inbox."""

    def __init__(self, engine: MailEngine, settings_of: Callable[[Owner], QueueSettings]) -> None:
        self._engine = engine
        self._settings_of = settings_of

    async def run(self, owner: Owner, directive: directives.Directive, sender: Sender | None) -> str:
        """Do what a command says; the answer is the reply. Whoever lacks the right changes nothing and is told."""
        denied = self.denial(directive, sender)
        if denied is not None:
            return denied
        actor = sender.id if sender is not None else "host"
        if isinstance(directive, directives.QueueSet | directives.QueueReset | directives.New):
            self._engine.begin_anew(owner)  # what it changes is part of the session, and holds after a restart, too
        match directive:
            case directives.QueueShow():
                return texts.settings_reply(self._settings_of(owner), self._waiting(owner))
            case directives.QueueSet(options=options):
                return await self._set(owner, options, actor)
            case directives.QueueReset():
                await self._engine.set_options(owner, QueueOptions(), actor, self._settings_of)
                return texts.reset_reply(self._settings_of(owner))
            case directives.QueueClear():
                engine = self._engine
                count: int = await engine.change(
                    owner, engine.kernel.clear, owner, "the queue was cleared", actor=actor
                )
                return texts.cleared_reply(count)
            case directives.QueueList():
                return texts.list_reply(self._engine.kernel.pending(owner, now=self._engine.now()))
            case directives.QueueCancel(message_id=message_id):
                return await self._cancel(owner, message_id, actor)
            case directives.Stop():
                return await self._stop(owner, actor)
            case directives.New():
                stopped = await self._engine.change(owner, self._engine.kernel.new_conversation, owner, actor=actor)
                return texts.new_reply(stopped.waiting + stopped.debounced, bool(stopped.turns))
            case directives.Compact():
                started = await self._engine.compact(owner)
                return texts.compact_reply(started=started)
            case directives.Help():
                return texts.help_reply()
            case directives.Status():
                return self._status(owner)
            case directives.Approve(approval_id=approval_id):
                return await self._answer(owner, approval_id, ApprovalState.APPROVED, "", sender)
            case directives.Deny(approval_id=approval_id, reason=reason):
                return await self._answer(owner, approval_id, ApprovalState.DENIED, reason, sender)
            case directives.Invalid(reply=reply):
                return reply
            case directives.Inline() | directives.SendAs():
                raise AssertionError("a message with options of its own is no command")
            case _:
                assert_never(directive)

    @staticmethod
    def denial(directive: directives.Directive, sender: Sender | None) -> str | None:
        """What a sender is told who lacks the right; None if it has it. The host itself may do all.

        Who may answer a request is decided when it is looked at: it may name its approvers.
        """
        if isinstance(directive, directives.Approve | directives.Deny):
            return None
        right = directives.required_right(directive)
        return texts.denied_reply(right) if right is not None and sender is not None and not sender.may(right) else None

    def _waiting(self, owner: Owner) -> int:
        box = self._engine.kernel.boxes.get(owner)
        return box.waiting if box is not None else 0

    async def _set(self, owner: Owner, options: QueueOptions, actor: str) -> str:
        session = self._engine.kernel.sessions.get(owner)
        before = session.options if session is not None else QueueOptions()
        await self._engine.set_options(owner, merge(options, before), actor, self._settings_of)
        return texts.changed_reply(options)

    async def _cancel(self, owner: Owner, message_id: str, actor: str) -> str:
        kernel = self._engine.kernel
        item = kernel.items.get(message_id)
        found = item is not None and item.owner == owner
        if found:
            try:
                await self._engine.change(owner, kernel.withdraw, message_id, "cancelled by a command", actor=actor)
            except LanewayError:
                found = False
        return texts.cancelled_reply(message_id, found=found)

    async def _stop(self, owner: Owner, actor: str) -> str:
        why = "stopped by a command"
        stopped = await self._engine.change(owner, self._engine.kernel.stop, owner, why, actor=actor)
        return texts.stop_reply(
            stopped.waiting, stopped.debounced, bool(stopped.turns), stopped.children, calls=stopped.calls
        )

    def _status(self, owner: Owner) -> str:
        kernel, now = self._engine.kernel, self._engine.now()
        box = kernel.boxes.get(owner)
        turn = box.turn if box is not None else None
        waiting = box.waiting_items() if box is not None else []
        return texts.status_reply(
            texts.SessionStatus(
                state=turn.state if turn is not None else None,
                mode=self._settings_of(owner).mode,
                waiting=len(waiting),
                oldest_wait_ms=max((now - item.arrived_at for item in waiting), default=None),
                running_ms=now - turn.began_at if turn is not None else None,
                last_wait_ms=turn.wait_ms if turn is not None else None,
                tokens=turn.tokens if turn is not None and turn.tokens else None,
                calls=sum(child.is_call for child in box.children.values()) if box is not None else 0,
            )
        )

    async def _answer(
        self, owner: Owner, approval_id: str, state: ApprovalState, reason: str, sender: Sender | None
    ) -> str:
        engine = self._engine
        owner = engine.asked_in(owner, approval_id)
        by = sender.id if sender is not None else "host"
        facts = {"reason": reason, "by": by, "sender": sender}
        try:
            answered = await engine.change(owner, engine.kernel.answer_approval, owner, approval_id, state, **facts)
        except PermissionDeniedError:
            box = engine.kernel.boxes.get(owner)
            entry = box.approvals.get(approval_id) if box is not None else None
            return _refused(entry.approval if entry is not None else None)
        if answered is not None:
            return texts.approval_reply(approval_id, answered.state)
        row = await engine.store.history.state("approval", approval_id)
        if row is not None and Owner(row.tenant, row.workspace, row.session) == owner:
            known = decode_approval(row, json.loads(row.body))
            if not known.may_be_answered_by(sender):
                return _refused(known)
            return texts.approval_reply(approval_id, known.state.value)
        may = sender is None or sender.may("approve")
        return texts.approval_reply(approval_id, "") if may else texts.denied_reply("approve")


def _refused(approval: Approval | None) -> str:
    """Why a sender may not answer, and the way out: a request that names its approvers asks for no right."""
    if approval is not None and approval.approvers:
        return texts.not_an_approver_reply()
    return texts.denied_reply("approve")
