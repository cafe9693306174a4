"""The turn machine: what a run of an agent does next.

```text
 starting ──▶ thinking ──▶ acting ──▶ (round done) ──▶ thinking … ──▶ delivering
                 ▲            │
                 └─ a message was steered in: calls that have not started are skipped
```

With a plan, an answer without calls ends a step; only the last one ends the run (`laneway.kernel.plans`).

It holds the rounds of one run and decides; `laneway.agent.loop` does what it decides and tells it what came of it.
Every call of an answer gets exactly one result, and results go back in the order of the calls, whatever happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from laneway.dialogue import Answer, Prompt, ResultStatus, ToolCall, ToolResult, Utterance
from laneway.kernel.plans import Course, Phase
from laneway.kernel.rounds import Round, RoundState
from laneway.kernel.texts import SKIPPED

__all__ = ("Act", "AskModel", "Close", "Fail", "Finish", "Limits", "Step", "TurnMachine")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far a run may go."""

    max_tool_rounds: int = 50
    max_calls_per_answer: int = 64


@dataclass(frozen=True, slots=True)
class AskModel:
    """Ask the model for an answer or (`purpose`) a plan; `number` is the round this begins."""

    number: int
    purpose: str = "answer"


@dataclass(frozen=True, slots=True)
class Act:
    """Make these calls, together; nothing else runs meanwhile."""

    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True)
class Close:
    """Every call of the round has its result: write it down."""

    round: Round


@dataclass(frozen=True, slots=True)
class Finish:
    """The model has nothing more to ask for: this is the answer of the run."""

    round: Round


@dataclass(frozen=True, slots=True)
class Fail:
    """The run cannot go on."""

    reason: str


Step = AskModel | Act | Close | Finish | Fail


class TurnMachine:
    """The rounds of one run."""

    def __init__(
        self,
        run_id: str,
        *,
        limits: Limits,
        may_run_beside: Callable[[ToolCall], bool],
        conversation: int = 1,
        resumed_from: str = "",
        first: int = 1,
        course: Course | None = None,
    ) -> None:
        self.run_id = run_id
        self.limits = limits
        self.course = course  # with a plan
        self.rounds: list[Round] = []
        self._may_run_beside = may_run_beside
        self._conversation = conversation
        self._resumed_from = resumed_from
        self._said: list[Prompt] = []
        self._messages: list[str] = []
        self._begun: frozenset[str] = frozenset()
        self._left_out = 0  # rounds up to this place are told by a summary
        self._first = first  # the number of its first round: a run that goes on for another one goes on counting

    # ---- what happens ----

    def say(self, prompts: Iterable[Prompt], messages: Iterable[str], *, skips: bool = True) -> tuple[ToolCall, ...]:
        """Something is said to the model, before its next answer. Calls that have not started are skipped: which.

        Without `skips` none is: what is said is not about what the model does now.
        """
        self._said += prompts
        self._messages += messages
        if not skips:
            return ()
        skipped = tuple(call for call in self.open_calls() if call.id not in self._begun)
        for call in skipped:
            self.result(ToolResult(call_id=call.id, name=call.name, output=SKIPPED, status=ResultStatus.SKIPPED))
        return skipped

    def begin_plan(self, course: Course) -> None:
        """The model is asked for a plan before anything else."""
        assert not self.rounds, "only at the beginning"
        self.course = course
        self._said.append(course.ask)

    def answered(self, answer: Answer, *, at_ms: int = 0) -> Round:
        """The model has answered: a round begins. Calls beyond the limit, or about the plan, get a result at once."""
        assert self.round is None or self.round.is_whole, "a round is open"
        one = Round(
            run_id=self.run_id,
            number=self._first + len(self.rounds),
            conversation=self._conversation,
            prompts=tuple(self._said),
            messages=tuple(self._messages),
            resumed_from="" if self.rounds else self._resumed_from,
            answer=replace(answer, calls=_told_apart(answer.calls)),
            at_ms=at_ms,
        )
        self._said, self._messages = [], []
        self.rounds.append(one)
        if not answer.calls and (self.course is None or self.course.ends_run()):
            one.state = RoundState.FINAL
        for call in one.answer.calls[self.limits.max_calls_per_answer :]:
            most = self.limits.max_calls_per_answer
            text = f"[Not run: {len(answer.calls):,} calls in one answer, at most {most} are run]"
            self.result(ToolResult(call_id=call.id, name=call.name, output=text, status=ResultStatus.ERROR))
        for result in () if self.course is None else self.course.results(one.answer.calls):
            self.result(result)
        return one

    def result(self, result: ToolResult) -> None:
        """A call has ended. The first result counts."""
        one = self.round
        assert one is not None, "no round is open"
        assert any(call.id == result.call_id for call in one.answer.calls), "a result without a call"
        one.results.setdefault(result.call_id, result)

    def take_over(self, one: Round, begun: Iterable[str] = ()) -> None:
        """Go on with the open round of a run that was cut off; what is open in it is made now.

        Calls in `begun` had started before: whatever is said, they are made again, and never told as skipped.
        """
        self._begun = frozenset(begun)
        assert not self.rounds, "only at the beginning"
        assert one.number == self._first, "it keeps its number"
        self.rounds.append(one)

    def add(self, prompts: Iterable[Prompt]) -> None:
        """Something more is said before the next answer; calls that are open are made all the same."""
        self._said += prompts

    def go_on(self, messages: Iterable[str], prompts: Iterable[Prompt]) -> None:
        """It goes on for a run over these messages; `prompts` remind the model, if others have spoken meanwhile."""
        self._messages += messages
        self._said += prompts
        one = self.round
        if one is not None:
            one.messages = tuple(dict.fromkeys((*one.messages, *self._messages)))
            one.prompts = (*self._said, *one.prompts)
            self._messages, self._said = [], []

    def had_begun(self, call: ToolCall) -> bool:
        """Whether a call of the round that was taken over had begun before, in a run that was cut off."""
        return call.id in self._begun and self.round is self.rounds[0]

    def cut(self, results: Iterable[ToolResult], *, forget: bool = False, at_ms: int = 0) -> list[Round]:
        """The run is ended here: open calls get these results. The rounds that have to be written down."""
        for result in results:
            self.result(result)
        last = self.round
        if last is not None and last.state is RoundState.FINAL and not last.seq:
            last.answer = Answer()  # nobody has heard it, and nobody will; what was asked stays
            last.state = RoundState.ACTING
            last._told = None  # noqa: SLF001 - it has changed after all
        changed = [one for one in self.rounds if one.state is RoundState.ACTING]
        if last is not None and last.state is RoundState.ACTING and not last.answer.calls and last.answer.text:
            self.close(last)  # it has ended a step of the plan
        for one in changed:
            if one.state is RoundState.ACTING:
                one.state = RoundState.DONE if self._said else RoundState.CUT
        if self._said:
            last = self.answered(Answer(), at_ms=at_ms)
            last.state = RoundState.CUT
            changed.append(last)
        if forget:
            changed = list(self.rounds)
            for one in changed:
                one.state = RoundState.FORGOTTEN
        return changed

    # ---- what is next ----

    @property
    def round(self) -> Round | None:
        """The newest round."""
        return self.rounds[-1] if self.rounds else None

    def open_calls(self) -> tuple[ToolCall, ...]:
        """Calls of the newest round that have no result yet."""
        one = self.round
        return () if one is None else tuple(call for call in one.answer.calls if call.id not in one.results)

    def said(self) -> list[Utterance]:
        """What this run adds to the conversation so far, with what the model will hear next."""
        told: list[Utterance] = []
        for one in self.rounds:
            if not one.seq or one.seq > self._left_out:
                told += one.utterances()
        return told + self._said

    def leave_out(self, upto_seq: int) -> None:
        """Rounds up to this place in the store are told by a summary from now on."""
        self._left_out = upto_seq

    def next(self) -> Step:
        """What to do now. Asking again without telling anything in between gives the same answer."""
        one = self.round
        if one is not None and one.state is RoundState.FINAL:
            return Finish(one)
        if self.open_calls():
            return Act(self._batch())
        if one is not None and one.state is RoundState.ACTING:
            return Close(one)
        done = self._tool_rounds()
        if done >= self.limits.max_tool_rounds:
            return Fail(
                f"{done} rounds of tools without an answer, and max_tool_rounds is {self.limits.max_tool_rounds}"
            )
        plans = self.course is not None and self.course.phase is Phase.PLANNING
        return AskModel(self._first + len(self.rounds), "plan" if plans else "answer")

    def close(self, one: Round) -> None:
        """The round is whole: it changes no more. With a plan, the model may be told of its next step."""
        assert one.is_whole, "a call has no result"
        one.state = RoundState.DONE
        if self.course is not None:
            self._said += self.course.heard(one)

    def _tool_rounds(self) -> int:
        """How many rounds of tools there were, those of the runs that this one goes on for among them."""
        if self.course is not None:
            return self.course.tool_rounds
        return self._first - 1 + sum(1 for each in self.rounds if each.answer.calls)

    def _batch(self) -> tuple[ToolCall, ...]:
        """The next calls to make: neighbours that may run beside each other, or one alone, as a barrier."""
        one = self.round
        assert one is not None
        batch: list[ToolCall] = []
        for call in one.answer.calls:
            if call.id in one.results:
                continue  # an end that is known already (of a resumed round) is no barrier
            if batch and not (self._may_run_beside(call) and self._may_run_beside(batch[-1])):
                break
            batch.append(call)
        return tuple(batch)


def _told_apart(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """Calls with an id of their own each: a model may send none, or the same one twice."""
    seen: set[str] = set()
    apart = []
    for number, call in enumerate(calls, 1):
        name = call.id or f"call-{number}"
        while name in seen:
            name += "+"
        seen.add(name)
        apart.append(call if name == call.id else replace(call, id=name))
    return tuple(apart)
