"""The life of one message as people read it: every change with its time, its reason and who made it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from laneway.kernel import texts
from laneway.mail import Final, Message, StoryStep
from laneway.rows import EventRow

__all__ = ("step_of", "tell")

_WORDS = {
    "message.accepted": "accepted",
    "message.parked": "parked for the running turn",
    "message.edited": "edited",
    "message.moved": "moved",
    "message.held": "held",
    "message.released": "released",
    "message.started": "started",
    "message.injected": "steered into the running turn",
    "message.returned": "returned to its place",
    "message.ended": "ended",
    "turn.started": "turn began",
    "turn.replied": "turn replied",
    "turn.cancelling": "turn asked to end",
    "turn.ended": "turn ended",
    "approval.asked": "turn asked for an approval",
    "approval.escalated": "approval escalated",
    "approval.ended": "approval ended",
    "child.started": "turn started a sub-agent",
    "child.ended": "sub-agent ended",
}


def step_of(row: EventRow) -> StoryStep:
    """A stored event as one step of a story."""
    facts: dict[str, Any] = json.loads(row.body)
    reason, actor = facts.pop("reason", ""), facts.pop("actor", "inbox")
    return StoryStep(at_ms=row.at_ms, type=row.type, reason=reason, actor=actor, turn_id=row.turn_id, facts=facts)


def tell(message: Message, final: Final, steps: Sequence[StoryStep]) -> str:
    """The whole story, one line for each step, with times counted from the arrival."""
    sender = f" from {texts.safe_name(message.sender.name or message.sender.id)}" if message.sender else ""
    outcome = f", {final.outcome}" if final.outcome is not None else ""
    end = f"{final.disposition}{outcome}" if final.disposition.is_final else f"{final.disposition}, on its way"
    lines = [f"Message {message.id}{sender} in session {message.session_key!r}: {end}", f"  {_quote(message.text)}"]
    for step in steps:
        after = step.at_ms - message.arrived_ms
        word = _WORDS.get(step.type, step.type)
        actor = f" by {step.actor}" if step.actor not in ("", "inbox") else ""
        lines.append(f"  {after:+8d} ms  {word}{actor}{_details(step)}")
    return "\n".join(lines)


def _details(step: StoryStep) -> str:
    facts = step.facts
    parts: list[str] = []
    if step.type == "message.accepted":
        parts.append(f"mode {facts.get('mode')}, position {facts.get('position')}")
    if facts.get("wait_ms"):
        parts.append(f"waited {facts['wait_ms']} ms")
    if step.type == "message.ended":
        outcome = f", {facts['outcome']}" if facts.get("outcome") else ""
        parts.append(f"{facts.get('state')}{outcome}")
    if step.type == "turn.ended":
        parts.append(f"{facts.get('state')} after {facts.get('run_ms')} ms")
    if step.type == "turn.replied":
        parts.append(_quote(str(facts.get("text", ""))))
    if step.type.startswith("approval."):
        parts.append(
            f"{facts.get('action')}, {facts.get('approval_id')}" if facts.get("action") else str(facts.get("state"))
        )
    if step.type.startswith("child."):
        parts.append(" ".join(str(facts[name]) for name in ("label", "state") if facts.get(name)))
    if step.turn_id and step.type.startswith(("turn.", "message.started", "message.injected")):
        parts.append(step.turn_id)
    if step.reason:
        parts.append(step.reason)
    return ": " + "; ".join(parts) if parts else ""


def _quote(text: str) -> str:
    return f"“{texts.summary_line(text)}”"
