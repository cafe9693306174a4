"""What a fork from a step does with the calls that were open there.

A call that had not begun at the step is made. So is one that had begun, if its tool reads or is idempotent. A write
that had begun is never made: it may have had its effect. It keeps the result that it has come to since, in the history
or in the store; if there is none, its result is `unknown`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from laneway.dialogue import ResultStatus, ToolCall, ToolResult
from laneway.errors import HistoryError
from laneway.kernel.histories import FOREIGN, ODD_SHAPES, Op, to_answer, to_result
from laneway.kernel.ledger import LedgerEntry, LedgerState, key_of
from laneway.kernel.rounds import Round
from laneway.records import Effect

__all__ = ("Known", "OpenCall", "OpenCalls", "kept_result")

UNKNOWN: Final = (
    "[Unknown: this call had begun before the fork, and nobody knows what became of it; it may have had its effect]"
)
SETTLED: Final = "[{actor} has looked what became of this call, which had begun before the fork: {found}]"
BY_LEDGER: Final = "[This call had begun before the fork; by the ledger it is {state}, and what it said is not kept]"
_HAPPENED: Final = {True: "it happened", False: "it did not happen", None: "that could not be found out"}


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenCall:
    """A call without a result at a step; `has_begun` None: an earlier run may have begun with it."""

    call: ToolCall
    number: int  # of its round
    has_begun: bool | None
    effect: Effect | None  # what its tool said of itself then
    result: ToolResult | None  # what it has come to later


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What a store knows of a run by now; `origin` is the first of the runs that it goes on for."""

    rounds: Mapping[int, Round]
    entries: Mapping[str, LedgerEntry]
    origin: str

    def about(self, call: OpenCall) -> tuple[ToolResult | None, LedgerEntry | None] | None:
        """What has become of a call, and its entry in the ledger; None: it is not a call of this run."""
        one = self.rounds.get(call.number)
        if one is None or call.call not in one.answer.calls:
            return None
        entry = self.entries.get(key_of(self.origin, call.number, call.call.id))
        return one.results.get(call.call.id), entry


def kept_result(open_call: OpenCall, known: Known | None, today: Effect | None = None) -> ToolResult | None:
    """The result with which a fork goes on instead of making a call; None: it makes it."""
    found = known.about(open_call) if known is not None else None
    stored, entry = found or (None, None)
    has_begun = open_call.has_begun
    if has_begun is None:  # the ledger knows: what has an effect has an entry before it begins
        has_begun = found is None or entry is not None
    effects = {open_call.effect, today, entry.effect if entry is not None else None} - {None}
    if not has_begun or (effects and Effect.WRITE not in effects):
        return None
    results = [each for each in (open_call.result, stored) if each is not None]
    if found is not None and entry is None and not results:
        return None  # it was to begin, and has not: it waits for an approval, say
    sure = (each for each in results if each.status is not ResultStatus.UNKNOWN)
    return next(sure, None) or _by_ledger(open_call.call, entry)


def _by_ledger(call: ToolCall, entry: LedgerEntry | None) -> ToolResult:
    text, status = UNKNOWN, ResultStatus.UNKNOWN
    if entry is not None and entry.state is LedgerState.SETTLED:
        found = ": ".join(each for each in (_HAPPENED[entry.happened], entry.reason) if each)
        text = SETTLED.format(actor=entry.actor or "Somebody", found=found)
        if entry.happened is not None:
            status = ResultStatus.OK if entry.happened else ResultStatus.ERROR
    elif entry is not None and entry.state in (LedgerState.DONE, LedgerState.FAILED):
        text = BY_LEDGER.format(state=entry.state)
        status = ResultStatus.OK if entry.state is LedgerState.DONE else ResultStatus.ERROR
    return ToolResult(call_id=call.id, name=call.name, output=text, status=status)


# ---- from the steps of a history ----


@dataclass(slots=True, kw_only=True)
class _Calls:
    """The calls of one round, and at which steps they began and ended."""

    step: int
    number: int
    calls: Sequence[ToolCall]
    effects: Mapping[str, Effect]
    is_from_before: bool = False
    end: int | None = None
    began: dict[str, int] = field(default_factory=dict)
    ended: dict[str, tuple[int, ToolResult | None]] = field(default_factory=dict)

    def finish(self, step: int, results: Iterable[Op]) -> None:
        for each in results:
            self.ended.setdefault(each["call"], (step, to_result(each)))


class OpenCalls:
    """The calls that were open at each step of a history."""

    def __init__(self, steps: Sequence[Op]) -> None:
        self._rounds: list[_Calls] = []
        self._effects: dict[str, Effect] = {}
        for number, step in enumerate(steps, 1):
            try:
                self._read(number, step)
            except ODD_SHAPES as error:
                raise HistoryError(
                    f"step {number} of the history has not the shape of its kind ({error!r})",
                    hint=FOREIGN,
                    problem="damaged",
                    line=number + 1,
                ) from error

    def at(self, step: int) -> tuple[OpenCall, ...]:
        """The calls that had no result before a step, in order."""
        one = next((each for each in reversed(self._rounds) if each.step < step), None)
        if one is None or (one.end is not None and one.end < step):
            return ()
        found: list[OpenCall] = []
        for call in one.calls:
            ended = one.ended.get(call.id)
            if ended is None or ended[0] >= step:
                found.append(self._open(one, call, step))
        return tuple(found)

    @staticmethod
    def _open(one: _Calls, call: ToolCall, step: int) -> OpenCall:
        began, ended = one.began.get(call.id), one.ended.get(call.id)
        has_begun: bool | None = began is not None and began < step
        if began is None and one.is_from_before:  # else it is this run that begins with it, or skips it, later
            has_begun = None if ended is None or ended[1] is not None else False
        return OpenCall(
            call=call,
            number=one.number,
            has_begun=has_begun,
            effect=one.effects.get(call.name),
            result=None if ended is None else ended[1],
        )

    def _read(self, number: int, step: Op) -> None:
        match step["op"]:
            case "code":
                self._effects = {**self._effects, **{each["name"]: Effect(each["effect"]) for each in step["tools"]}}
            case "answered":
                given = to_answer(step["answer"]).calls
                calls = [replace(call, id=name) for name, call in zip(step["calls"], given, strict=True)]
                self._begin(number, step["n"], calls).finish(number, step["at_once"])
            case "take_over" | "round":
                told = step["round"]
                one = self._begin(number, told["n"], to_answer(told["answer"]).calls)
                one.is_from_before = True
                one.finish(number, told["results"])
                one.end = None if told["state"] == "acting" else number
            case op:
                if self._rounds:
                    self._go_on(self._rounds[-1], number, op, step)

    def _begin(self, number: int, of_round: int, calls: Sequence[ToolCall]) -> _Calls:
        one = _Calls(step=number, number=of_round, calls=calls, effects=self._effects)
        self._rounds.append(one)
        return one

    @staticmethod
    def _go_on(one: _Calls, number: int, op: str, step: Op) -> None:
        match op:
            case "act":
                one.began.update({name: number for name in step["calls"] if name not in one.began})
            case "result":
                one.finish(number, [step])
            case "say":
                one.ended.update({name: (number, None) for name in step["skipped"] if name not in one.ended})
            case "cut":
                one.finish(number, step["results"])
                one.end = number
            case "close" | "finish" | "fail":
                one.end = number
            case _:
                pass  # it is not about a call
