"""What is written, watched row by row: final states stay, every change is legal and told, fenced turns are silent.

The witness sees each batch before the disk does. It knows only the table of transitions, not the kernel.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from laneway.kernel.messages import MESSAGE_TRANSITIONS, Change
from laneway.mail import FINAL_MESSAGE_STATES, FINAL_TURN_STATES, MessageState, TurnState
from laneway.rows import Batch, EntryRow, EventRow, MessageRow, Owner, StateKey, StateRow
from laneway.stores.memory import MemoryDisk

__all__ = ("MailWitness",)

FIRST_STATES = (MessageState.QUEUED, MessageState.PARKED)
ENDED_AT_ONCE = (MessageState.REJECTED, MessageState.DROPPED, MessageState.COMMAND)
SAYING = ("turn.replied",)


def _steps() -> dict[MessageState, frozenset[MessageState]]:
    """Where one change can lead from each state."""
    return {
        state: frozenset(after for (before, _), after in MESSAGE_TRANSITIONS.items() if before is state)
        for state in MessageState
    }


STEPS = _steps()
UNPARKED = MESSAGE_TRANSITIONS[MessageState.PARKED, Change.UNPARK]


class MailWitness:
    """Watches what is written to one disk."""

    def __init__(self, disk: MemoryDisk, *, fail: Callable[[str], None], say: Callable[[str, str, str], None]) -> None:
        self._disk = disk
        self._fail = fail
        self._say = say
        self.told: dict[str, MessageState] = {}  # what the events say each message is
        self.stories: dict[str, list[str]] = {}
        self.ended_turns: dict[str, TurnState] = {}

    def __call__(self, batch: Batch) -> None:
        """A batch is about to be written."""
        ended = dict(self.ended_turns)  # a turn's last words are written together with its end
        events = [row for row in batch.rows if isinstance(row, EventRow)]
        for event in sorted(events, key=lambda event: event.seq):
            self._event(event, ended)
        for row in batch.rows:
            match row:
                case MessageRow():
                    self._message(row)
                case StateRow():
                    self._state(row, batch)
                case EntryRow():
                    if row.role == "assistant" and row.turn_id in ended and "forgotten" not in row.body:
                        self._fail(f"turn {row.turn_id} is {ended[row.turn_id]}, and says {row.text!r}")
                case EventRow():
                    pass
        for row in batch.rows:
            if (row.tenant, row.workspace, row.session) != tuple(batch.owner):
                self._fail(f"a row of {row[:4]} in a batch of {batch.owner}")

    # ---- rows ----

    def _message(self, row: MessageRow) -> None:
        state = MessageState(row.state)
        before = self._disk.messages.get(row.id)
        if before is not None and (before.state, before.outcome) != (row.state, row.outcome):
            was = MessageState(before.state)
            if was in FINAL_MESSAGE_STATES:
                self._fail(f"{row.id} was {was} {before.outcome} and becomes {state} {row.outcome}: {row.reason}")
            self._say("row", row.id, f"{was} -> {state} {row.outcome} {row.turn_id}; {row.reason}")
        elif before is None:
            self._say("row", row.id, f"{state} {row.session} {row.body[:60]}; {row.reason}")
        if state in FINAL_MESSAGE_STATES and row.live and state is not MessageState.SUMMARIZED:
            self._fail(f"{row.id} is {state}, and live")
        if state not in FINAL_MESSAGE_STATES and not row.live:
            self._fail(f"{row.id} is {state}, and not live: a restart would lose it")
        has_outcome = state in (MessageState.RAN, MessageState.MERGED, MessageState.STEERED)
        if bool(row.outcome) != has_outcome:
            self._fail(f"{row.id} is {state} with outcome {row.outcome!r}")
        if not row.reason and row.outcome != "succeeded":
            self._fail(f"{row.id} is {state} for no reason")
        told = self.told.get(row.id)
        if told is not state and not (told is MessageState.PARKED and state is UNPARKED):
            self._fail(f"{row.id} is {state}, but its events say {told}: {self._story(row.id)}")

    def _state(self, row: StateRow, batch: Batch) -> None:
        before = self._disk.states.get(StateKey(row.kind, row.id))
        if before is not None and not before.live and before.state != row.state:
            self._fail(f"{row.kind} {row.id} was {before.state} for good and becomes {row.state}")
        if row.kind != "turn":
            return
        state = TurnState(row.state)
        if (state in FINAL_TURN_STATES) == bool(row.live):
            self._fail(f"turn {row.id} is {state} with live={row.live}")
        if state in FINAL_TURN_STATES:
            self.ended_turns[row.id] = state
        if row.live:
            drawer = self._disk.drawers.get(Owner(row.tenant, row.workspace, row.session))
            live = drawer.live_states if drawer is not None else {}
            ending = {other.id for other in batch.rows if isinstance(other, StateRow) and not other.live}
            others = [key.id for key in live if key.kind == "turn" and key.id != row.id and key.id not in ending]
            if others:
                self._fail(f"turn {row.id} of {row.session} is written while {others[0]} is live")
        if before is None or before.state != row.state:
            self._say("turn", row.id, f"{row.session} {row.state} {row.body[:100]}")

    # ---- events ----

    def _event(self, row: EventRow, ended: dict[str, TurnState]) -> None:
        facts: dict[str, Any] = json.loads(row.body)
        if row.type in SAYING and row.turn_id in ended:
            self._fail(f"turn {row.turn_id} is {ended[row.turn_id]}, and {row.type}: {facts.get('text')!r}")
        if row.type.startswith("message."):
            self._message_event(row, facts)

    def _message_event(self, row: EventRow, facts: dict[str, Any]) -> None:
        state = MessageState(facts["state"])
        before = self.told.get(row.message_id)
        self.stories.setdefault(row.message_id, []).append(f"{row.type}={state}")
        self.told[row.message_id] = state
        if not facts.get("reason") and facts.get("outcome") != "succeeded":
            self._fail(f"{row.type} of {row.message_id} has no reason")
        if before is None:
            legal = state in FIRST_STATES or state in ENDED_AT_ONCE
        else:
            legal = state is before or state in STEPS[before]
            if before is MessageState.PARKED and not legal:
                legal = state in STEPS[UNPARKED]  # the end of a turn unparks without a word of its own
        if before is not None and before in FINAL_MESSAGE_STATES:
            legal = False
        if not legal:
            self._fail(f"{row.message_id} goes from {before} to {state}: {self._story(row.message_id)}")

    def _story(self, message_id: str) -> str:
        return ", ".join(self.stories.get(message_id, ["no events"]))
