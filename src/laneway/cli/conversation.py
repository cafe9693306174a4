"""What happens in a session, as somebody reads it who talks there: text, calls of tools, what waits, what is asked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from laneway.cli.link import LOST, Told
from laneway.cli.tables import age, clean, dumps, line, ordinal

__all__ = ("Conversation", "Screen")

ARGUMENTS_MAX: Final = 120
OUTPUT_MAX: Final = 100


class Screen(Protocol):
    """Where a conversation is shown. All texts it gets are clean."""

    def text(self, piece: str) -> None:
        """A piece of the answer."""

    def end_text(self) -> None:
        """The answer, or a part of it, is whole."""

    def drop_text(self) -> None:
        """What was shown of the answer since its last end does not count."""

    def note(self, text: str, style: str = "dim") -> None:
        """Something about the conversation, on lines of its own."""


class Conversation:
    """Follows one session and shows it. `own` are the messages that were sent from here and have not ended."""

    def __init__(self, screen: Screen) -> None:
        self.screen = screen
        self.run_id = ""
        self.began_ms = 0
        self.waiting: set[str] = set()
        self.own: set[str] = set()
        self._sent: set[str] = set()
        self._begun: set[str] = set()
        self._said = False
        self._failed = False
        self._lost = False

    @property
    def is_working(self) -> bool:
        """Whether a run is going on."""
        return bool(self.run_id)

    def sent(self, receipt: Mapping[str, Any]) -> None:
        """A message was sent from here; say what became of it, unless it runs at once."""
        message_id = str(receipt.get("message_id", ""))
        disposition, position = str(receipt.get("disposition", "")), receipt.get("position")
        if receipt.get("reply"):
            self._aside(str(receipt["reply"]), "cyan")
            return
        if disposition == "command":
            return
        self.own.add(message_id)
        self._sent.add(message_id)
        reason = f": {line(receipt['reason'])}" if receipt.get("reason") else ""
        if disposition == "parked":
            self._aside(f"goes into the run at its next step ({message_id}){reason}")
        elif message_id in self._begun:
            pass  # its run was faster than the receipt
        elif disposition in ("queued", "held") and (self.is_working or (position or 1) > 1):
            place = f"{ordinal(int(position))} in line" if position else disposition
            self._aside(f"waits, {place} ({message_id}){reason}")
        elif disposition not in ("queued", "running", "parked", "held"):
            self.own.discard(message_id)
            self._aside(f"{disposition}{reason}", "yellow")

    def hear(self, told: Told) -> None:
        """Show one event. That the connection is gone is said once, until something comes again."""
        was_lost, self._lost = self._lost, told.event == LOST
        if was_lost and self._lost:
            return
        handler = HEARD.get(told.event)
        if handler is not None:
            handler(self, told)

    def _aside(self, text: str, style: str = "dim") -> None:
        self.screen.end_text()
        self.screen.note(clean(text), style)

    # ---- the stream itself ----

    def on_lost(self, told: Told) -> None:
        """The connection is gone for the moment."""
        self._aside(f"connection lost, trying again: {line(told.data.get('reason', ''))}", "yellow")

    def on_so_far(self, told: Told) -> None:
        """A run was going on when the stream opened: this is what it has said so far."""
        payload = told.payload
        self.run_id = str(payload.get("run_id") or payload.get("turn_id") or "")
        self.screen.drop_text()
        if payload.get("text"):
            self._said = True
            self.screen.text(clean(payload["text"]))
        for call in payload.get("calls") or ():
            if call.get("state") == "asked":
                self._ask(call)
            elif call.get("state") == "running":
                self._aside(f"→ {_call(call)}")

    # ---- runs ----

    def on_turn_started(self, told: Told) -> None:
        """A run begins."""
        self.run_id = str(told.data.get("turn_id", ""))
        self.began_ms = int(told.data.get("at_ms") or 0)
        self._said = self._failed = False
        self._begun = set(map(str, told.data.get("messages") or ()))
        self.waiting -= self._begun

    def on_start(self, told: Told) -> None:
        """A run begins over a prompt; what others have sent is shown."""
        messages = set(map(str, told.payload.get("messages") or ()))
        if messages and not messages & self._sent:
            self._aside(f"> {line(told.payload.get('prompt', ''))}")

    def on_text(self, told: Told) -> None:
        """A piece of the answer."""
        self._said = True
        self.screen.text(clean(told.payload.get("text", "")))

    def on_model_retry(self, told: Told) -> None:
        """The model is asked again: its text so far is void."""
        self.screen.drop_text()
        payload = told.payload
        self._aside(f"the model failed ({line(payload.get('error', ''))}), again in {age(payload.get('delay_ms'))}")

    def on_tool_start(self, told: Told) -> None:
        """A call begins."""
        self._aside(f"→ {_call(told.payload)}")

    def on_tool_end(self, told: Told) -> None:
        """A call has ended."""
        payload = told.payload
        name, status = payload.get("tool_name", ""), str(payload.get("status", ""))
        took = f", {age(payload.get('duration_ms'))}" if payload.get("duration_ms") else ""
        if status == "ok":
            self._aside(f"✓ {name}{took}")
        elif status == "background":
            self._aside(f"… {name} goes on in the background")
        else:
            self._aside(f"✗ {name} {status}{took}: {line(payload.get('tool_output', ''), OUTPUT_MAX)}", "yellow")

    def on_denied(self, told: Told) -> None:
        """A gate has refused a call."""
        self._aside(f"✗ {_call(told.payload)} was refused: {line(told.payload.get('reason', ''))}", "yellow")

    def on_waiting(self, told: Told) -> None:
        """The run waits for something."""
        self._aside(f"waits: {line(told.payload.get('reason', ''))}")

    def on_budget(self, told: Told) -> None:
        """A budget is nearly used up, or has chosen what becomes of a call that does not fit."""
        said = told.payload.get("message") or f"budget {told.payload.get('resource', '')} is nearly used up"
        self._aside(line(said), "yellow")

    def on_steered(self, told: Told) -> None:
        """Messages have come into the run."""
        skipped = told.payload.get("skipped") or ()
        more = f"; {len(skipped)} call{'s' if len(skipped) != 1 else ''} skipped" if skipped else ""
        self.waiting -= set(map(str, told.payload.get("messages") or ()))
        self._aside(f"↪ the run has read: {line(told.payload.get('text', ''), OUTPUT_MAX)}{more}")

    def on_step(self, told: Told) -> None:
        """A step of a plan begins."""
        payload = told.payload
        place = f"{payload.get('step_number')} of {payload.get('total_steps')}"
        self._aside(f"step {place}: {line(payload.get('description', ''))}")

    def on_subagent_start(self, told: Told) -> None:
        """A sub-agent begins."""
        self._aside(f"⇉ {line(told.payload.get('agent', ''))}: {line(told.payload.get('description', ''))}")

    def on_subagent_end(self, told: Told) -> None:
        """A sub-agent has ended."""
        self._aside(f"⇇ {line(told.payload.get('agent', ''))} {told.payload.get('status', '')}")

    def on_external(self, told: Told) -> None:
        """A call waits for a worker."""
        payload = told.payload
        self._aside(f"waits for a worker: {payload.get('command_type', '')} in lane {payload.get('lane', '')}")

    def on_error(self, told: Told) -> None:
        """The run has ended without an answer."""
        self._failed = True
        self._aside(line(told.payload.get("error", "it failed")), "red")

    def on_turn_ended(self, told: Told) -> None:
        """A run has ended; its answer is shown if its pieces were not."""
        answer, state = told.data.get("answer"), str(told.data.get("state", ""))
        if answer and not self._said:
            self.screen.text(clean(answer))
        self.screen.end_text()
        if state not in ("", "succeeded") and not self._failed:
            reason = f": {line(told.data['reason'])}" if told.data.get("reason") else ""
            self.screen.note(clean(f"{state}{reason}"), "yellow")
        self.run_id, self.began_ms = "", 0
        self._said = self._failed = False

    # ---- approvals ----

    def on_asked(self, told: Told) -> None:
        """A call waits for somebody's approval: it is shown whole, as it would be made."""
        self._ask(told.payload)

    def _ask(self, payload: Mapping[str, Any]) -> None:
        approval = payload.get("approval_id", "")
        limit = f" within {age(payload['timeout_ms'])}" if payload.get("timeout_ms") else ""
        why = f" ({line(payload['reason'])})" if payload.get("reason") else ""
        self._aside(f"? {payload.get('tool_name', '')} asks to be allowed{limit}{why}:", "bold yellow")
        self.screen.note(clean(dumps(payload.get("args") or {})), "yellow")
        self.screen.note(clean(f"  /approve {approval}   or   /deny {approval}"), "yellow")

    def on_answered(self, told: Told) -> None:
        """A request for approval was answered."""
        payload = told.payload
        by = f" by {line(payload['answered_by'])}" if payload.get("answered_by") else ""
        verb = "approved" if payload.get("approved") else "not approved"
        reason = f": {line(payload['reason'])}" if payload.get("reason") else ""
        self._aside(f"{payload.get('tool_name', '')} was {verb}{by}{reason}")

    def on_expired(self, told: Told) -> None:
        """Nobody has answered a request in time."""
        self._aside(f"nobody answered: {told.payload.get('tool_name', '')} was {told.payload.get('action_taken', '')}")

    # ---- messages ----

    def on_accepted(self, told: Told) -> None:
        """A message waits."""
        self.waiting.add(str(told.data.get("message_id", "")))

    def on_begun(self, told: Told) -> None:
        """A message does not wait any more."""
        self.waiting.discard(str(told.data.get("message_id", "")))

    def on_returned(self, told: Told) -> None:
        """A message that a run had read waits again."""
        self.waiting.add(str(told.data.get("message_id", "")))

    def on_message_waited(self, told: Told) -> None:
        """A message waits for long; only one from here is of interest."""
        if str(told.data.get("message_id", "")) in self.own and told.data.get("reason"):
            self._aside(f"still waits: {line(told.data['reason'])}")

    def on_ended(self, told: Told) -> None:
        """A message is final. What did not get a run is said."""
        message_id, state = str(told.data.get("message_id", "")), str(told.data.get("state", ""))
        self.waiting.discard(message_id)
        if message_id not in self.own:
            return
        self.own.discard(message_id)
        if state not in ("ran", "merged", "steered", "command"):
            reason = f": {line(told.data['reason'])}" if told.data.get("reason") else ""
            self._aside(f"your message was {state}{reason}", "yellow")


def _call(payload: Mapping[str, Any]) -> str:
    name = payload.get("tool_name") or payload.get("name") or ""
    args = payload.get("args") or payload.get("arguments") or {}
    shown = ", ".join(f"{key}={dumps(value, indent=None)}" for key, value in args.items()) if args else ""
    return f"{name}({line(shown, ARGUMENTS_MAX)})"


HEARD: Final = {
    LOST: Conversation.on_lost,
    "so_far": Conversation.on_so_far,
    "turn.started": Conversation.on_turn_started,
    "start": Conversation.on_start,
    "text_delta": Conversation.on_text,
    "model_retry": Conversation.on_model_retry,
    "tool_start": Conversation.on_tool_start,
    "tool_end": Conversation.on_tool_end,
    "background_end": Conversation.on_tool_end,
    "permission_denied": Conversation.on_denied,
    "run_waiting": Conversation.on_waiting,
    "budget_threshold_hit": Conversation.on_budget,
    "steered": Conversation.on_steered,
    "step_start": Conversation.on_step,
    "subagent_start": Conversation.on_subagent_start,
    "subagent_end": Conversation.on_subagent_end,
    "external_task_pending": Conversation.on_external,
    "error": Conversation.on_error,
    "turn.ended": Conversation.on_turn_ended,
    "confirmation_required": Conversation.on_asked,
    "confirmation_received": Conversation.on_answered,
    "confirmation_timeout": Conversation.on_expired,
    "message.accepted": Conversation.on_accepted,
    "message.started": Conversation.on_begun,
    "message.injected": Conversation.on_begun,
    "message.returned": Conversation.on_returned,
    "message.waited": Conversation.on_message_waited,
    "message.ended": Conversation.on_ended,
}
"""What is shown of a session; all else passes by."""
