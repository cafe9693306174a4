"""Making a run again from its history, and saying where two histories part.

What was told to the machine of a run is told to a new one; what that decides is logged in the same way and held against
the history, step by step. Nothing is asked and nothing is called. Without `code` the machine gets the system prompt and
the tools that are written in the history; with it, those of today.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, takewhile
from typing import Any, Final, NoReturn, Protocol

from laneway.dialogue import Prompt, ToolCall, Utterance
from laneway.errors import HistoryError, ReplayDivergedError
from laneway.kernel import histories
from laneway.kernel.histories import FOREIGN, INPUTS, ODD_SHAPES, LoggedMachine, Op, RunHistory, Said
from laneway.kernel.plans import Course, plan_tools
from laneway.kernel.plans import replay as replay_plan
from laneway.kernel.rounds import Round, RoundState
from laneway.kernel.turn_machine import Act, AskModel, Fail, Finish, Limits

__all__ = ("Code", "Difference", "Player", "Replay", "asked", "code_step", "diff", "play")

Steps = Sequence[tuple[int, Op]]
"""Steps with their numbers."""

SHOWN: Final = 200
TAKES_OVER: Final = frozenset({"base", "line", "take_over", "go_on", "code"})
"""Steps by which a fork takes its past over, and what stands for them in its run."""
OPTIONS: Final = ("max_output_tokens", "temperature", "thinking_budget")
"""Settings that a model is asked with, in the order of `more` in a step."""
BEGINS: Final = frozenset({"say", "add", "result"})
"""Steps with which a fork begins: what it is told, and the ends of calls that cannot be made any more."""
PLACES: Final[Mapping[str, str]] = {
    "say": "what was said to the model",
    "plan": "what asks for a plan",
    "ask": "what the model is sent",
    "answered": "what follows from the answer of the model",
    "act": "which calls are made",
    "result": "what became of a call",
    "take_over": "the open round that it goes on with",
    "go_on": "how it goes on for another run",
    "close": "the round",
    "finish": "the answer of the run",
    "cut": "how it was ended",
    "fail": "why it fails",
}


class Code(Protocol):
    """What decides about a run beside what it is told: the program of today."""

    def system(self) -> str:
        """The system prompt."""

    def tools(self) -> Sequence[Any]:
        """The tools, as `ToolSpec`."""

    def may_run_beside(self, call: ToolCall) -> bool:
        """Whether a call may run beside its neighbours."""

    def limits(self) -> Limits:
        """When a run ends by itself."""

    def options(self) -> Sequence[Any]:
        """The settings that a model is asked with, as in `OPTIONS`."""

    def plan_steps(self) -> int:
        """The most steps of a plan that is asked for first; 0: there is to be none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where two histories part: the number of the step, what it is about, and the two values.

    `other_step` is its number in the other history. The number after the last one is that of the end. Of a run and its
    fork, `fork_step` is where the fork begins, and `told` what it is told there and the run was not.
    """

    step: int
    op: str
    where: str
    recorded: Any
    now: Any
    other_step: int = 0
    fork_step: int = 0
    told: str = ""

    def __str__(self) -> str:
        return self.words("recorded", "now")

    def words(self, one: str, other: str) -> str:
        """The difference in a line, with names for the two histories."""
        return f"step {self.step} ({self.op}): {self.where}: {one} {_shown(self.recorded)}, {other} {_shown(self.now)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A run that was made again: as it is written down now, its rounds, and what was said and not answered yet."""

    history: RunHistory
    rounds: tuple[Round, ...]
    base: tuple[Utterance, ...]
    pending: tuple[Prompt, ...]

    @property
    def is_recorded(self) -> bool:
        """Whether it was held against what the model was sent; without `record` nobody knows that, only its rounds."""
        return self.history.is_recorded

    @property
    def text(self) -> str:
        """The answer of the run; empty if it has none."""
        return self.rounds[-1].answer.text if self.rounds and self.rounds[-1].state is RoundState.FINAL else ""


def code_step(system: str, tools: Sequence[Any]) -> Op:
    """What a model is told beside the conversation, as a step."""
    return {"op": "code", "system": system, "tools": [histories.tool_facts(spec) for spec in tools]}


def asked(  # noqa: PLR0913 - keyword-only: what goes into one request
    machine: LoggedMachine, said: Said, *, number: int, purpose: str, more: Sequence[Any], code: Op
) -> Op:
    """What a model is sent, as a step: hashes only, of what is new."""
    same, new = said.changes(machine.said())
    return {
        "op": "ask",
        "n": number,
        "purpose": purpose,
        "same": same,
        "new": new,
        "system": histories.short_digest(code["system"]),
        "tools": {each["name"]: histories.digest_of_tool(each) for each in code["tools"]},
        "more": list(more),
    }


class Player:
    """Tells a machine what a history says, one step at a time."""

    def __init__(self, history: RunHistory, code: Code | None = None) -> None:
        self._history = history
        self._code = code
        self._beside: frozenset[str] = frozenset()
        self._is_beside: Callable[[ToolCall], bool] = code.may_run_beside if code is not None else self._was_beside
        self._known_code: Op = {"op": "code", "system": "", "tools": []}
        self._logged: list[Op] = []
        self._said = Said()
        self._base: tuple[Utterance, ...] = ()
        self._line: list[Round] = []
        self._may_plan = False
        self._rounds_at_first = 0  # what max_tool_rounds was when the run began
        self.machine: LoggedMachine | None = None

    def _was_beside(self, call: ToolCall) -> bool:
        return call.id in self._beside

    def play(self, upto: int | None = None) -> Iterator[tuple[int, Op, Op]]:
        """Each step: its number, as it is written, and as it is now."""
        for number, step in enumerate(self._history.steps, 1):
            if upto is not None and number >= upto:
                return
            try:
                now = self._step(step)
            except (*ODD_SHAPES, AssertionError) as error:
                if self._code is None and not isinstance(error, AssertionError):
                    told = f"step {number} ({step.get('op')}) of the history cannot be told: {error!r}"
                    raise HistoryError(told, hint=FOREIGN, problem="damaged", line=number + 1) from error
                now = {"op": step.get("op"), "is_impossible": str(error) or "the machine does not take it now"}
            yield number, step, now

    def result(self, steps: Sequence[Op]) -> Replay:
        """What has come of it."""
        machine = self.machine
        rounds = () if machine is None else tuple(machine.rounds)
        pending = () if machine is None else tuple(machine.pending[0])
        return Replay(history=self._history.with_steps(steps), rounds=rounds, base=self._base, pending=pending)

    def _step(self, step: Op) -> Op:
        op = step["op"]
        if op == "machine":
            self._make(step)  # that a limit is another one changes nothing until it is reached
            return {**self._logged.pop(), "limits": step["limits"]}
        if op == "base":
            self._base = tuple(map(histories.to_utterance, step["said"]))
            return step if step.get("changed") else {**step, "digest": self._said.all_of(self._base)}
        if op == "code":
            self._known_code = step
        if op == "line":
            self._line = [histories.to_round(each) for each in step["rounds"]]
        if op in INPUTS:
            return step
        if self.machine is None:
            raise ValueError("it begins without a machine")
        if op == "ask":
            return self._ask(step, self.machine)
        self._logged.clear()
        told = getattr(self, f"_{op}", None)
        if told is None:
            raise ValueError(f"there is no step {op!r}")
        told(step, self.machine)
        return self._logged[-1] if self._logged else {"op": op, "is_nothing": True}

    def _make(self, step: Op) -> None:
        limits = self._limits(*step["limits"])
        course: Course | None = None
        if step["plan"] is not None:
            found = replay_plan(self._line)
            course = found[0] if found is not None else Course(step["plan"])
        self._logged.clear()
        self.machine = LoggedMachine(
            self._history.run_id,
            log=self._logged.append,
            limits=limits,
            may_run_beside=self._is_beside,
            conversation=step["c"],
            resumed_from=step["from"],
            first=step["first"],
            course=course,
        )
        self._may_plan = course is None and not step["from"] and step["first"] == 1

    def _limits(self, rounds: int, calls: int) -> Limits:
        """When the run ends by itself: as then, or as today. Rounds before a fork do not count in either."""
        self._rounds_at_first = self._rounds_at_first or rounds
        if self._code is None or not self._history.is_recorded:
            return Limits(max_tool_rounds=rounds, max_calls_per_answer=calls)
        today = self._code.limits()
        return replace(today, max_tool_rounds=today.max_tool_rounds + rounds - self._rounds_at_first)

    def _lacks_plan(self, machine: LoggedMachine) -> bool:
        """Whether a plan would be asked for today, and was not wanted then; a hook that refused is not asked again."""
        if self._code is None or not self._may_plan or machine.course is not None or machine.rounds:
            return False
        steps = self._history.steps
        was_wanted = any(each["op"] == "event" and each.get("type") == "planning_start" for each in steps)
        return self._code.plan_steps() > 0 and not was_wanted

    # ---- what the machine decides ----

    def _ask(self, step: Op, machine: LoggedMachine) -> Op:
        number, purpose, code = step["n"], step["purpose"], self._known_code
        more = step["more"] if self._code is None else self._code.options()
        if purpose != "summary":
            decided = machine.next()
            if not isinstance(decided, AskModel):
                now = f"it fails: {decided.reason}" if isinstance(decided, Fail) else type(decided).__name__
                return {**step, "n": now}
            number, purpose = decided.number, "plan" if self._lacks_plan(machine) else decided.purpose
            if self._code is not None:
                course = machine.course
                code = code_step(self._code.system(), plan_tools(course, tuple(self._code.tools())))
        asks = asked(machine, self._said, number=number, purpose=purpose, more=more, code=code)
        return {**asks, "t": step["t"]}

    def _act(self, step: Op, machine: LoggedMachine) -> None:
        self._beside = frozenset(step["calls"])
        decided = machine.next()
        if isinstance(decided, Act):
            machine.acts(decided.calls)
        else:
            self._logged.append({"op": "act", "calls": type(decided).__name__})

    def _finish(self, step: Op, machine: LoggedMachine) -> None:
        decided = machine.next()
        if isinstance(decided, Finish):
            machine.ends(decided.round)

    def _fail(self, step: Op, machine: LoggedMachine) -> None:
        decided = machine.next()
        if isinstance(decided, Fail):
            machine.fails(decided.reason)
        else:
            most = machine.limits.max_tool_rounds
            self._logged.append({"op": "fail", "reason": f"it goes on: max_tool_rounds is {most}"})

    # ---- what it is told ----

    def _say(self, step: Op, machine: LoggedMachine) -> None:
        machine.say(map(histories.to_prompt, step["prompts"]), step["messages"], skips=step["skips"])

    def _plan(self, step: Op, machine: LoggedMachine) -> None:
        most = step["most"] if self._code is None else self._code.plan_steps()
        if most:
            machine.begin_plan(Course(most))
        else:
            self._logged.append({**step, "most": 0})

    def _answered(self, step: Op, machine: LoggedMachine) -> None:
        machine.answered(histories.to_answer(step["answer"]), at_ms=step["t"])

    def _result(self, step: Op, machine: LoggedMachine) -> None:
        machine.result(histories.to_result(step))

    def _take_over(self, step: Op, machine: LoggedMachine) -> None:
        machine.take_over(histories.to_round(step["round"]), step["begun"])

    def _add(self, step: Op, machine: LoggedMachine) -> None:
        machine.add(map(histories.to_prompt, step["prompts"]))

    def _go_on(self, step: Op, machine: LoggedMachine) -> None:
        machine.go_on(step["messages"], map(histories.to_prompt, step["prompts"]))

    def _leave_out(self, step: Op, machine: LoggedMachine) -> None:
        self._put_seqs(step["seqs"], machine)
        machine.leave_out(step["upto"])

    def _amend(self, step: Op, machine: LoggedMachine) -> None:
        result = histories.to_result(step)
        for one in machine.rounds:
            if one.number == step["n"]:
                one.amend(result)
        machine.amended(step["n"], result)

    def _cut(self, step: Op, machine: LoggedMachine) -> None:
        self._put_seqs(step["seqs"], machine)
        machine.cut(map(histories.to_result, step["results"]), forget=step["forget"], at_ms=step["t"])

    def _round(self, step: Op, machine: LoggedMachine) -> None:
        machine.put(histories.to_round(step["round"]))

    def _close(self, step: Op, machine: LoggedMachine) -> None:
        one = machine.round
        if one is None or one.number != step["n"]:
            raise ValueError(f"round {step['n']} is not the open one")
        machine.close(one)

    @staticmethod
    def _put_seqs(seqs: Sequence[Sequence[int]], machine: LoggedMachine) -> None:
        places = {each[0]: each[1] for each in seqs}
        for one in machine.rounds:
            one.seq = places.get(one.number, 0)


def play(history: RunHistory, code: Code | None = None, *, upto: int | None = None) -> Replay:
    """Make a run again, up to (not with) a step; raises `ReplayDivergedError` at the first step that differs."""
    player = Player(history, code)
    steps: list[Op] = []
    for number, then, now in player.play(upto):
        if not _is_same(then, now):
            _diverged(history, difference(number, then, now))
        steps.append(now)
    return player.result(steps)


def _is_same(then: Op, now: Op) -> bool:
    """Whether two steps are the same; a model is sent its tools in an order, which a mapping does not compare."""
    return then == now and (then["op"] != "ask" or list(then.get("tools") or ()) == list(now.get("tools") or ()))


def _diverged(history: RunHistory, found: Difference) -> NoReturn:
    raise ReplayDivergedError(
        f"run {history.run_id} goes another way now: {found}",
        hint="code, tools, prompts or settings are not those of the run; a fork goes on from that step with today's",
        run_id=history.run_id,
        step=found.step,
        op=found.op,
        where=found.where,
        recorded=found.recorded,
        now=found.now,
    )


def diff(one: RunHistory, other: RunHistory) -> Difference | None:
    """Where two histories part; None if they do not. Times, ids and what watchers were told do not count.

    A run and the first run of its fork are compared from the step of the fork on.
    """
    try:
        return _diff(one, other)
    except ODD_SHAPES as error:
        names = f"runs {one.run_id!r} and {other.run_id!r}"
        raise HistoryError(
            f"{names} cannot be compared: a step has not the shape of its kind ({error!r})",
            hint=FOREIGN,
            problem="damaged",
        ) from error


def _diff(one: RunHistory, other: RunHistory) -> Difference | None:
    if one.forked_at(other):
        return _diff_of_fork(one, other)
    if other.forked_at(one):
        found = _diff_of_fork(other, one)
        return None if found is None else _turned(found)
    return _parting(one, other, _comparable(one), _comparable(other))


def _turned(found: Difference) -> Difference:
    return replace(found, step=found.other_step, other_step=found.step, recorded=found.now, now=found.recorded)


def _parting(one: RunHistory, other: RunHistory, left: Steps, right: Steps) -> Difference | None:
    """The first of these steps in which two histories differ."""
    is_alike = _made_up(left) == _made_up(right)
    renamed, again = _Renamed(left, is_alike=is_alike), _Renamed(right, is_alike=is_alike)
    for (number, then), (other_number, now) in zip(left, right, strict=False):
        before, after = renamed.of(then), again.of(now)
        if not _is_same(before, after):
            return replace(difference(number, before, after), other_step=other_number)
    if len(left) == len(right):
        return None
    longer, is_one = (left, True) if len(left) > len(right) else (right, False)
    number, step = longer[min(len(left), len(right))]
    told = f"{step['op']} and what follows"
    return Difference(
        step=number if is_one else len(one.steps) + 1,
        op=step["op"],
        where="one of them goes on",
        recorded=told if is_one else None,
        now=None if is_one else told,
        other_step=len(other.steps) + 1 if is_one else number,
    )


# ---- a run and its fork ----


def _diff_of_fork(run: RunHistory, fork: RunHistory) -> Difference | None:
    """Where the first run of a fork parts from its run, from the step of the fork on."""
    step = run.forked_at(fork)
    left = _rest_of(run, step, _kept_by(fork))
    right = [each for each in _comparable(fork) if each[1]["op"] not in TAKES_OVER]
    opening = list(takewhile(lambda each: each[1]["op"] in BEGINS, right))
    said = [each for each in opening if each[1]["op"] != "result"]
    right = [each for each in right if each not in said]
    number, told = (said[-1][0], _news([each for _, each in said], _pending(run, step))) if said else (0, "")
    facts: dict[str, Any] = {"fork_step": step, "told": told}
    if told and left and left[0][1]["op"] in ("say", "add"):
        number_then, then = left[0]
        return Difference(
            step=number_then, op=then["op"], where=PLACES["say"], recorded=_text_of(then), now=told, other_step=number,
            **facts,
        )  # fmt: skip
    found = _parting(run, fork, [_of_fork(each) for each in left], [_of_fork(each) for each in right])
    if found is not None:
        return replace(_with_texts(found, run, fork), **facts)
    if not told:
        return None
    return Difference(step=step, op="say", where=PLACES["say"], recorded=None, now=told, other_step=number, **facts)


def _kept_by(fork: RunHistory) -> set[str]:
    """The calls of the open round whose results a fork has taken over: it makes none of them."""
    taken = next((each["round"]["results"] for each in fork.steps if each["op"] == "take_over"), ())
    return {each["call"] for each in taken}


def _rest_of(run: RunHistory, step: int, kept_calls: set[str]) -> list[tuple[int, Op]]:
    """What a fork does anew: the steps from there on, and a question or calls that had no end there."""
    begin, ended = step, set[str]()
    rounds = [number for number, each in enumerate(run.steps, 1) if number >= step and each["op"] in ("close", "cut")]
    closed = min(rounds, default=len(run.steps) + 1)
    for number, each in enumerate(run.steps[: step - 1], 1):
        if each["op"] in ("ask", "act"):
            begin, ended = number, set()
        elif each["op"] in ("answered", "close"):
            begin = step
        elif each["op"] == "result":
            ended.add(each["call"])
    ended |= kept_calls
    if begin < step and run.steps[begin - 1]["op"] == "act" and ended.issuperset(run.steps[begin - 1]["calls"]):
        begin = step
    rest = [each for each in _comparable(run) if each[0] == begin or each[0] >= step]
    kept = [each for each in rest if each[1]["op"] not in TAKES_OVER and not _is_end_of(each, kept_calls, closed)]
    if begin < step and kept and kept[0][1]["op"] == "act":
        number, act = kept[0]
        kept[0] = number, {**act, "calls": [call for call in act["calls"] if call not in ended]}
    return kept


def _is_end_of(numbered: tuple[int, Op], calls: set[str], closed: int) -> bool:
    """Whether a step is the end of one of these calls, in the round that was open."""
    number, step = numbered
    return number < closed and step["op"] == "result" and step["call"] in calls


def _pending(run: RunHistory, step: int) -> list[Prompt]:
    """What the user had said at a step, and nobody had answered."""
    player = Player(run)
    for _ in player.play(step):
        pass
    return [each for each in player.result(()).pending if each.role == "user"]


def _news(said: Sequence[Op], pending: Sequence[Prompt]) -> str:
    """What a fork is told beside that; what reminds it of its plan is no news."""
    before = "\n".join(each.text for each in pending)
    prompts = [histories.to_prompt(each) for step in said for each in step["prompts"]]
    told = "\n".join(each.text for each in prompts if each.role == "user")
    return told.removeprefix(before).removeprefix("\n")


def _text_of(said: Op) -> str:
    return "\n".join(histories.to_prompt(each).text for each in said["prompts"])


def _of_fork(numbered: tuple[int, Op]) -> tuple[int, Op]:
    """A step without what a fork counts anew: what its model knew from the last time, and tokens."""
    number, step = numbered
    if step["op"] == "ask":
        step = {**step, "same": 0, "new": []}
    elif step["op"] == "answered":
        step = {**step, "answer": {name: value for name, value in step["answer"].items() if name != "usage"}}
    return number, step


def _with_texts(found: Difference, run: RunHistory, fork: RunHistory) -> Difference:
    """System prompts and tools by what they say: what they were is not compared as a step here."""
    if found.op != "ask":
        return found
    known = {**_texts_of(run), **_texts_of(fork)}
    old, new = (known.get(each, each) if isinstance(each, str) else each for each in (found.recorded, found.now))
    return replace(found, recorded=old, now=new)


def _texts_of(history: RunHistory) -> dict[str, Any]:
    codes = [each for each in history.steps if each["op"] == "code"]
    systems = {histories.short_digest(each["system"]): each["system"] for each in codes}
    return {**systems, **{histories.digest_of_tool(tool): tool for each in codes for tool in each["tools"]}}


# ---- steps that are compared ----


def _comparable(history: RunHistory) -> list[tuple[int, Op]]:
    left_out = ("event", "chunks", "machine")
    steps = [(number, step) for number, step in enumerate(history.steps, 1) if step["op"] not in left_out]
    return _in_call_order(steps)


def _in_call_order(steps: list[tuple[int, Op]]) -> list[tuple[int, Op]]:
    """Results of calls that were made together in the order of these calls: which one ended first is only timing."""
    ordered: list[tuple[int, Op]] = []
    places: dict[str, int] = {}
    for is_result, group in groupby(steps, key=lambda each: each[1]["op"] == "result"):
        found = list(group)
        if is_result:
            found.sort(key=lambda each: places.get(each[1]["call"], len(places)))
        else:
            acts = [step["calls"] for _, step in found if step["op"] == "act"]
            places = {call: at for at, call in enumerate(acts[-1])} if acts else places
        ordered += found
    return ordered


def _answers(steps: Sequence[tuple[int, Op]]) -> list[Mapping[str, Any]]:
    told = [step.get("round", step) for _, step in steps]
    return [each["answer"] for each in told if isinstance(each.get("answer"), Mapping)]


def _made_up(steps: Sequence[tuple[int, Op]]) -> list[Any]:
    """What providers make up anew in each run: the ids of calls, and what they want to have back."""
    return [
        [[call[0] for call in answer.get("calls", ())], answer.get("opaque")]
        for answer in _answers(steps)
        if "calls" in answer or "opaque" in answer
    ]


class _Renamed:
    """Steps without what is different in every run: times, ids, and what a provider makes up anew."""

    LEAVE: Final = frozenset({"t", "seqs", "digest", "rounds", "upto", "messages", "from"})
    OF_ROUNDS: Final = LEAVE | {"run", "c"}

    def __init__(self, steps: Sequence[tuple[int, Op]], *, is_alike: bool) -> None:
        self._is_alike = is_alike
        calls = [call for answer in _answers(steps) for call in answer.get("calls", ())]
        self._names = {str(call[0]): f"call {at}" for at, call in enumerate(calls, 1)}

    def of(self, step: Op) -> Op:
        """The step as it is compared."""
        kept = {name: self._value(name, value) for name, value in step.items() if name not in self.LEAVE}
        if step["op"] == "ask" and not self._is_alike:  # of hashes only how many: what is in them was compared before
            kept["new"] = len(step["new"])
        return kept

    def _value(self, name: str, value: Any) -> Any:
        if name == "round":
            value = {key: each for key, each in value.items() if key not in self.OF_ROUNDS}
        elif self._is_alike:
            return value
        if isinstance(value, Mapping):
            return {key: self._value(key, each) for key, each in value.items() if key != "opaque" or self._is_alike}
        if name == "call":
            return self._names.get(value, value)
        if name in ("calls", "skipped", "begun"):
            return [self._call(each) for each in value]
        if name in ("results", "at_once", "said"):
            return [self._value("", each) for each in value]
        return value

    def _call(self, call: Any) -> Any:
        if isinstance(call, str):
            return self._names.get(call, call)
        return [self._names.get(call[0], call[0]), *call[1:]]


def difference(number: int, then: Op, now: Op) -> Difference:
    """In what two steps differ."""
    op = str(then["op"])
    if op != now["op"]:
        return Difference(step=number, op=op, where="another step", recorded=op, now=now["op"])
    if "is_impossible" in now:
        return Difference(
            step=number, op=op, where=PLACES.get(op, op), recorded="it was taken", now=now["is_impossible"]
        )
    name = next((each for each in (*then, *now) if then.get(each) != now.get(each)), "")
    where, old, new = PLACES.get(op, op), then.get(name), now.get(name)
    if op == "ask":
        where, old, new = _of_request(name or "tools", then, now)
    elif name:
        where = f"{where} ({name})"
    return Difference(step=number, op=op, where=where, recorded=old, now=new)


def _of_request(name: str, then: Op, now: Op) -> tuple[str, Any, Any]:
    """What differs in what a model is sent."""
    old, new = then.get(name), now.get(name)
    if name == "tools" and isinstance(old, Mapping) and isinstance(new, Mapping):
        for tool in (*old, *new):
            if tool not in new:
                return f"tool {tool!r}", "was there", "is not there"
            if tool not in old:
                return f"tool {tool!r}", "was not there", "is there"
            if old[tool] != new[tool]:
                return f"tool {tool!r} is another one", old[tool], new[tool]
        return "the order of the tools", list(old), list(new)
    if name == "system":
        return "the system prompt is another one", old, new
    if name in ("same", "new"):
        return "the conversation that the model is sent", old, new
    if name in ("n", "purpose"):
        return "what is done next", _what_next(then), _what_next(now)
    if name == "more" and isinstance(old, list) and isinstance(new, list):
        settings = zip(OPTIONS, old, new, strict=False)
        return next(((f"the setting {each}", was, is_) for each, was, is_ in settings if was != is_), (name, old, new))
    return f"what the model is sent ({name})", old, new


def _what_next(step: Op) -> str:
    number = step.get("n")
    return f"round {number}, {step.get('purpose')}" if isinstance(number, int) else str(number)


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
