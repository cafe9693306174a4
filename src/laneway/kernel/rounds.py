"""The rounds of a run: what was said to the model, what it answered, and what became of every call it asked for.

A round is the unit of a checkpoint. Its row is written when its calls have ended; when one of them has side effects, it
is written before that call starts, too (`acting`), so that after a crash everybody knows what was about to be done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from laneway.dialogue import Answer, Prompt, Results, ResultStatus, ToolCall, ToolResult, Usage, Utterance

__all__ = ("CallTimes", "Round", "RoundState", "RoundWait", "open_result", "unstarted_result")


class RoundState(StrEnum):
    """How far a round has come."""

    ACTING = "acting"  # its calls are being made
    DONE = "done"  # every call has its result
    FINAL = "final"  # the model asked for nothing more: its text is the answer of the run
    CUT = "cut"  # the run was ended in it; every call has a result all the same
    FORGOTTEN = "forgotten"  # the run was rolled back: no part of the conversation any more


@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimes:
    """Where the time of a call went, by the wall clock; 0: nobody knows, or it has not happened.

    `out_ms` is when it was offered to others as `task_id`; `worker` is who has made it.
    """

    lane: str = ""
    queued_ms: int = 0
    began_ms: int = 0
    ended_ms: int = 0
    attempt: int = 1
    out_ms: int = 0
    task_id: str = ""
    worker: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundWait:
    """Something that a run waited for before its model answered: `lane`, `limit`, `retry`, `paused`, `compacting`.

    `cheaper` was not waited for: a budget has chosen another model then.
    """

    kind: str
    reason: str
    began_ms: int
    ended_ms: int = 0  # 0: it still does


@dataclass(slots=True, kw_only=True)
class Round:
    """One round of one run. `results` is filled as calls end, by call id."""

    run_id: str
    number: int  # from 1
    conversation: int = 1
    state: RoundState = RoundState.ACTING
    prompts: tuple[Prompt, ...] = ()  # what was said since the round before: the user's text, steered messages
    messages: tuple[str, ...] = ()  # the ids of the messages these prompts were made of
    resumed_from: str = ""  # in the first round of a run that goes on for another
    answer: Answer = field(default_factory=Answer)
    is_copy: bool = False  # its answer was given to another run, which has paid for it
    counted: tuple[int, ...] = ()
    """About how many tokens the system text and the tools had with which its provider has counted its usage, and how
    many things had been said before; empty: nobody knows."""
    results: dict[str, ToolResult] = field(default_factory=dict)
    seq: int = 0  # its place among the rounds of the session
    at_ms: int = 0
    asked_ms: int = 0  # when its model was asked; 0: nobody knows
    waits: tuple[RoundWait, ...] = ()  # before it answered
    times: dict[str, CallTimes] = field(default_factory=dict)  # by call id; for people, nothing depends on them
    named: tuple[str, ...] = field(default=(), repr=False, compare=False)
    """The hashes of blobs that its row has named, or may have: it goes on naming them, so that they go with it."""
    _told: tuple[Utterance, ...] | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def is_whole(self) -> bool:
        """Whether every call has its result."""
        return all(call.id in self.results for call in self.answer.calls)

    @property
    def usage(self) -> Usage:
        """What its run has used for it: nothing for an answer that was another run's, so that no call counts twice."""
        return Usage() if self.is_copy else self.answer.usage

    @property
    def was_asked(self) -> bool:
        """Whether its model was asked; a run may be ended while it only waits to ask it."""
        is_open = self.state in (RoundState.CUT, RoundState.FORGOTTEN) and not self.asked_ms
        return not is_open or self.has_answer

    @property
    def has_answer(self) -> bool:
        """Whether anything of an answer is there."""
        answer = self.answer
        return bool(answer.text or answer.reasoning or answer.calls or answer.usage.total_tokens)

    def utterances(self) -> tuple[Utterance, ...]:
        """The round as a part of the conversation; a call without a result gets one that says so."""
        if self.state is RoundState.ACTING:
            return self._tell()
        if self._told is None:  # it changes no more
            self._told = self._tell()
        return self._told

    def amend(self, result: ToolResult) -> None:
        """Put the real end of a call in the place of what was said of it meanwhile."""
        self.results[result.call_id] = result
        self._told = None

    def _tell(self) -> tuple[Utterance, ...]:
        said: list[Utterance] = list(self.prompts)
        if self.answer.text or self.answer.reasoning or self.answer.calls:
            said.append(self.answer)
        if self.answer.calls:
            said.append(
                Results(results=tuple(self.results.get(call.id) or open_result(call) for call in self.answer.calls))
            )
        return tuple(said)


def open_result(call: ToolCall) -> ToolResult:
    """The result of a call of which nothing has been heard."""
    text = "[Unknown: nothing has been heard of this call; it may have had its effect]"
    return ToolResult(call_id=call.id, name=call.name, output=text, status=ResultStatus.UNKNOWN)


def unstarted_result(call: ToolCall) -> ToolResult:
    """The result of a call that had no effect: it never started, or it was a read."""
    text = "[Cancelled: the run was ended before this call came to its end]"
    return ToolResult(call_id=call.id, name=call.name, output=text, status=ResultStatus.CANCELLED)
