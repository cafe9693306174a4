"""Making a run again from its history, and saying where two histories part.

What was told to the machine of a run is told to a new one; what that decides is logged in the same way and held against
the history, step by step. Nothing is asked and nothing is called. Without `code` the machine gets the system prompt and
the tools that are written in the history; with it, those of today.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Protocol

from laneway.dialogue import Prompt, ToolCall, Utterance
from laneway.errors import HistoryError, ReplayDivergedError
from laneway.kernel import histories
from laneway.kernel.histories import INPUTS, LoggedMachine, Op, RunHistory, Said
from laneway.kernel.plans import Course, plan_tools
from laneway.kernel.plans import replay as replay_plan
from laneway.kernel.rounds import Round, RoundState
from laneway.kernel.turn_machine import Act, AskModel, Fail, Finish, Limits

__all__ = ("Code", "Difference", "Player", "Replay", "asked", "code_step", "diff", "play")

SHOWN: Final = 200
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Where two histories part: the number of the step, what it is about, and the two values."""

    step: int
    op: str
    where: str
    recorded: Any
    now: Any

    def __str__(self) -> str:
        return f"step {self.step} ({self.op}): {self.where}: recorded {_shown(self.recorded)}, now {_shown(self.now)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A run that was made again: as it is written down now, its rounds, and what was said and not answered yet."""

    history: RunHistory
    rounds: tuple[Round, ...]
    base: tuple[Utterance, ...]
    pending: tuple[Prompt, ...]

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
            except (KeyError, TypeError, ValueError, AttributeError, AssertionError) as error:
                if self._code is None and not isinstance(error, AssertionError):
                    raise HistoryError(
                        f"step {number} ({step.get('op')}) of the history cannot be told: {error!r}",
                        hint="it was not written by this Laneway; export the run again",
                        problem="damaged",
                        line=number + 1,
                    ) from error
                now = {"op": step["op"], "is_impossible": str(error) or "the machine does not take it now"}
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
            self._make(step)
            return self._logged.pop()
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
        rounds, calls = step["limits"]
        course: Course | None = None
        if step["plan"] is not None:
            found = replay_plan(self._line)
            course = found[0] if found is not None else Course(step["plan"])
        self._logged.clear()
        self.machine = LoggedMachine(
            self._history.run_id,
            log=self._logged.append,
            limits=Limits(max_tool_rounds=rounds, max_calls_per_answer=calls),
            may_run_beside=self._is_beside,
            conversation=step["c"],
            resumed_from=step["from"],
            first=step["first"],
            course=course,
        )

    # ---- what the machine decides ----

    def _ask(self, step: Op, machine: LoggedMachine) -> Op:
        number, purpose, code = step["n"], step["purpose"], self._known_code
        if purpose != "summary":
            decided = machine.next()
            if not isinstance(decided, AskModel):
                return {**step, "n": type(decided).__name__}
            number, purpose = decided.number, decided.purpose
            if self._code is not None:
                course = machine.course
                code = code_step(self._code.system(), plan_tools(course, tuple(self._code.tools())))
        now = asked(machine, self._said, number=number, purpose=purpose, more=step["more"], code=code)
        return {**now, "t": step["t"]}

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

    # ---- what it is told ----

    def _say(self, step: Op, machine: LoggedMachine) -> None:
        machine.say(map(histories.to_prompt, step["prompts"]), step["messages"], skips=step["skips"])

    def _plan(self, step: Op, machine: LoggedMachine) -> None:
        machine.begin_plan(Course(step["most"]))

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
        if then != now:
            _diverged(history, difference(number, then, now))
        steps.append(now)
    return player.result(steps)


def _diverged(history: RunHistory, found: Difference) -> NoReturn:
    raise ReplayDivergedError(
        f"run {history.run_id} goes another way now: {found}",
        hint="the code, the tools or the prompts are not those of the run; a fork goes on from that step with today's",
        run_id=history.run_id,
        step=found.step,
        op=found.op,
        where=found.where,
        recorded=found.recorded,
        now=found.now,
    )


def diff(one: RunHistory, other: RunHistory) -> Difference | None:
    """Where two histories part; None if they do not. Times, ids of runs and what watchers were told do not count."""
    left, right = _comparable(one), _comparable(other)
    for (number, then), (_, now) in zip(left, right, strict=False):
        if _without_ids(then) != _without_ids(now):
            return difference(number, _without_ids(then), _without_ids(now))
    if len(left) != len(right):
        longer, is_one = (left, True) if len(left) > len(right) else (right, False)
        number, step = longer[min(len(left), len(right))]
        told = f"{step['op']} and what follows"
        return Difference(
            step=number,
            op=step["op"],
            where="one of them goes on",
            recorded=told if is_one else None,
            now=None if is_one else told,
        )
    return None


def _comparable(history: RunHistory) -> list[tuple[int, Op]]:
    left_out = ("event", "chunks", "machine")
    return [(number, step) for number, step in enumerate(history.steps, 1) if step["op"] not in left_out]


def _without_ids(step: Op) -> Op:
    """A step without what is different in every run."""
    leave = {"t", "seqs", "digest", "rounds", "upto", "messages", "from"}
    return {name: value for name, value in step.items() if name not in leave}


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
        where, old, new = _of_request(name, then, now)
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
        return "what is done next", f"round {then['n']}, {then['purpose']}", f"round {now['n']}, {now['purpose']}"
    return f"what the model is sent ({name})", old, new


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
