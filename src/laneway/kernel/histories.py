"""Histories: everything that went into one run, in order, so that it can be made again without a model or a tool.

A run is decided by a turn machine, which is pure: what it is told decides what it does. A history is the list of what
it was told (prompts, answers, results) and of what it decided (whom to ask what, which calls to make, when to end), one
step for each. To replay is to tell a new machine the same, and to hold what it decides now against what is written.

A history is a file of JSON lines. The first says what it is, the last that it is whole. Each line ends with `d`, a hash
of the line and of the hash before it: what was changed, cut off or put together from two files is found by its line.

```text
machine    a machine is made: limits, first round, the run it goes on for      base       what was said before the run
say        something is said to the model; which calls that has skipped        add, go_on the same of a resumed run
code       system prompt and tools from here on                                plan       a plan is asked for
ask        a model is asked: hashes of what it is sent                         failed     it did not answer
chunks     in which pieces an answer came                                      answered   the answer, and what follows
line       the rounds of the runs that it goes on for, if they had a plan
act        calls that are made together                                        result     what became of one
amend      the end of a call in the background                                 take_over  an open round of another run
close      a round is whole                                                    leave_out  rounds that a summary tells
finish     the run has its answer                                              cut        it was ended before
fail       a limit ends it                                                     event      what whoever watched was told
round      a round of a run that was not recorded, by its checkpoint
```
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from operator import is_
from typing import Any, Final, NoReturn

from laneway.dialogue import Answer, Prompt, Results, ResultStatus, ToolCall, ToolResult, ToolSpec, Usage, Utterance
from laneway.errors import HistoryError
from laneway.kernel.checkpoints import to_json
from laneway.kernel.plans import Course
from laneway.kernel.rounds import Round, RoundState
from laneway.kernel.turn_machine import TurnMachine

__all__ = (
    "FOREIGN",
    "INPUTS",
    "KIND",
    "ODD_SHAPES",
    "VERSION",
    "LoggedMachine",
    "Op",
    "RunHistory",
    "Said",
    "digest_of_tool",
    "from_answer",
    "from_prompt",
    "from_result",
    "from_round",
    "from_utterance",
    "read_history",
    "short_digest",
    "to_answer",
    "to_prompt",
    "to_result",
    "to_round",
    "to_spec",
    "to_utterance",
    "tool_facts",
    "write_history",
)

KIND: Final = "laneway-history"
VERSION: Final = 1
DIGEST_CHARS: Final = 16
INPUTS: Final = frozenset({"line", "code", "failed", "chunks", "event"})
"""Steps that are told and decide nothing by themselves."""
ODD_SHAPES: Final = (LookupError, TypeError, ValueError, AttributeError)
"""What comes of a step that has not the shape of its kind."""
FOREIGN: Final = "it was not written by this Laneway; export the run again"

_read = json.JSONDecoder().decode

Op = dict[str, Any]


def short_digest(text: str) -> str:
    """A hash that tells two texts apart; short, because there are many of them."""
    return sha256(text.encode(errors="surrogatepass")).hexdigest()[:DIGEST_CHARS]


# ---- values as JSON and back ----


def from_prompt(prompt: Prompt) -> Any:
    """A prompt as JSON: most are plain text of the user."""
    if prompt.role == "user" and not prompt.attachments:
        return prompt.text
    return {"text": prompt.text, "role": prompt.role, "attachments": list(prompt.attachments)}


def to_prompt(value: Any) -> Prompt:
    """The prompt that a value was made of."""
    if isinstance(value, str):
        return Prompt(text=value)
    return Prompt(text=value["text"], role=value["role"], attachments=tuple(value["attachments"]))


def from_answer(answer: Answer) -> Op:
    usage = answer.usage
    facts: Op = {
        "text": answer.text,
        "reasoning": answer.reasoning,
        "calls": [[call.id, call.name, call.arguments] for call in answer.calls],
        "model": answer.model,
        "opaque": answer.opaque,
    }
    numbers = [usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens, usage.cost]
    if usage != Usage():
        facts["usage"] = numbers
    return {name: value for name, value in facts.items() if value not in ("", [], None)}


def to_answer(value: Mapping[str, Any]) -> Answer:
    usage = Usage()
    if "usage" in value:
        ins, outs, cached, written, cost = value["usage"]
        usage = Usage(
            input_tokens=ins, output_tokens=outs, cache_read_tokens=cached, cache_write_tokens=written, cost=cost
        )
    return Answer(
        text=value.get("text", ""),
        reasoning=value.get("reasoning", ""),
        calls=tuple(ToolCall(id=name, name=tool, arguments=said) for name, tool, said in value.get("calls", ())),
        usage=usage,
        model=value.get("model", ""),
        opaque=value.get("opaque"),
    )


def from_result(result: ToolResult) -> Op:
    facts: Op = {"call": result.call_id, "tool": result.name, "output": result.output, "status": result.status.value}
    if result.exit_code is not None:
        facts["exit_code"] = result.exit_code
    if result.artifact is not None:
        facts["artifact"] = result.artifact
    return facts


def to_result(value: Mapping[str, Any]) -> ToolResult:
    return ToolResult(
        call_id=value["call"],
        name=value["tool"],
        output=value["output"],
        status=ResultStatus(value["status"]),
        exit_code=value.get("exit_code"),
        artifact=value.get("artifact"),
    )


def from_utterance(said: Utterance) -> Op:
    """A part of a conversation as JSON."""
    if isinstance(said, Prompt):
        return {"prompt": from_prompt(said)}
    if isinstance(said, Answer):
        return {"answer": from_answer(said)}
    return {"results": [from_result(each) for each in said.results]}


def to_utterance(value: Mapping[str, Any]) -> Utterance:
    """The part of a conversation that a value was made of."""
    if "prompt" in value:
        return to_prompt(value["prompt"])
    if "answer" in value:
        return to_answer(value["answer"])
    return Results(results=tuple(map(to_result, value["results"])))


def from_round(one: Round) -> Op:
    """A round as JSON, but for the times in it: those are told, not decided."""
    return {
        "run": one.run_id,
        "n": one.number,
        "c": one.conversation,
        "state": one.state.value,
        "prompts": [from_prompt(prompt) for prompt in one.prompts],
        "messages": list(one.messages),
        "from": one.resumed_from,
        "answer": from_answer(one.answer),
        "results": [from_result(one.results[call.id]) for call in one.answer.calls if call.id in one.results],
        "t": one.at_ms,
    }


def to_round(value: Mapping[str, Any]) -> Round:
    """The round that a value was made of."""
    return Round(
        run_id=value["run"],
        number=value["n"],
        conversation=value["c"],
        state=RoundState(value["state"]),
        prompts=tuple(map(to_prompt, value["prompts"])),
        messages=tuple(value["messages"]),
        resumed_from=value["from"],
        answer=to_answer(value["answer"]),
        results={each["call"]: to_result(each) for each in value["results"]},
        at_ms=value["t"],
    )


def tool_facts(spec: ToolSpec) -> Op:
    """What a model is told of a tool, and what else decides about its calls."""
    return {
        "name": spec.name,
        "description": spec.description,
        "parameters": dict(spec.parameters),
        "effect": spec.effect.value,
    }


def to_spec(value: Mapping[str, Any]) -> ToolSpec:
    """A tool that is known by its facts alone."""
    return ToolSpec(
        name=value["name"], description=value["description"], parameters=value["parameters"], effect=value["effect"]
    )


def digest_of_tool(facts: Mapping[str, Any]) -> str:
    """What tells two tools apart."""
    return short_digest(json.dumps(facts, sort_keys=True, default=str))


# ---- what a model is sent ----


class Said:
    """Hashes of what the model of one run is sent. Each part of a conversation is hashed once."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Utterance, str]] = {}
        self._told: list[str] = []
        self._last: list[Utterance] = []

    def of(self, said: Utterance) -> str:
        """The hash of one part."""
        known = self._known.get(id(said))
        if known is not None and known[0] is said:
            return known[1]
        digest = short_digest(to_json(from_utterance(said)))
        self._known[id(said)] = (said, digest)
        return digest

    def all_of(self, said: Iterable[Utterance]) -> str:
        """One hash of many parts."""
        return short_digest("".join(map(self.of, said)))

    def changes(self, said: Sequence[Utterance]) -> tuple[int, list[str]]:
        """How many parts are those of the last time, and the hashes of the others."""
        same = _alike(self._last, said)  # what is new is told at the end: the rest was hashed before
        now = self._told[:same] + [self.of(each) for each in said[same:]]
        self._last = list(said)
        while same < min(len(now), len(self._told)) and now[same] == self._told[same]:
            same += 1
        self._told = now
        return same, now[same:]


def _alike(before: Sequence[Utterance], now: Sequence[Utterance]) -> int:
    """How many parts at the beginning are the very same ones."""
    found = list(map(is_, before, now))
    return found.index(False) if False in found else len(found)


# ---- a machine that says what it is told ----


class LoggedMachine(TurnMachine):
    """A turn machine that logs everything it is told, with what it makes of it."""

    def __init__(self, run_id: str, *, log: Callable[[Op], None], **options: Any) -> None:
        super().__init__(run_id, **options)
        self._log = log
        self._inside = False
        limits, course = self.limits, self.course
        log(
            {
                "op": "machine",
                "limits": [limits.max_tool_rounds, limits.max_calls_per_answer],
                "c": self._conversation,
                "from": self._resumed_from,
                "first": self._first,
                "plan": None if course is None else course.most,
            }
        )

    def say(self, prompts: Iterable[Prompt], messages: Iterable[str], *, skips: bool = True) -> tuple[ToolCall, ...]:
        """Something is said to the model."""
        prompts, messages = list(prompts), list(messages)
        with _Once(self) as first:
            skipped = super().say(prompts, messages, skips=skips)
            if first:
                told = [from_prompt(each) for each in prompts]
                ids = [call.id for call in skipped]
                self._log({"op": "say", "prompts": told, "messages": messages, "skips": skips, "skipped": ids})
        return skipped

    def begin_plan(self, course: Course) -> None:
        """A plan is asked for first."""
        super().begin_plan(course)
        self._log({"op": "plan", "most": course.most, "prompt": from_prompt(course.ask)})

    def answered(self, answer: Answer, *, at_ms: int = 0) -> Round:
        """The model has answered."""
        with _Once(self) as first:
            one = super().answered(answer, at_ms=at_ms)
            if first:
                self._log(
                    {
                        "op": "answered",
                        "n": one.number,
                        "answer": from_answer(answer),
                        "t": at_ms,
                        "calls": [call.id for call in one.answer.calls],
                        "at_once": [from_result(each) for each in one.results.values()],
                        "is_final": one.state is RoundState.FINAL,
                    }
                )
        return one

    def result(self, result: ToolResult) -> None:
        """A call has ended."""
        with _Once(self) as first:
            known = self.round is not None and result.call_id in self.round.results
            super().result(result)
            if first:
                self._log({"op": "result", **from_result(result), **({"late": True} if known else {})})

    def take_over(self, one: Round, begun: Iterable[str] = ()) -> None:
        """Go on with the open round of another run."""
        begun = list(begun)
        super().take_over(one, begun)
        self._log({"op": "take_over", "round": from_round(one), "begun": begun})

    def add(self, prompts: Iterable[Prompt]) -> None:
        """Something more is said."""
        prompts = list(prompts)
        super().add(prompts)
        if prompts:
            self._log({"op": "add", "prompts": [from_prompt(each) for each in prompts]})

    def go_on(self, messages: Iterable[str], prompts: Iterable[Prompt]) -> None:
        """It goes on for a run over these messages."""
        messages, prompts = list(messages), list(prompts)
        super().go_on(messages, prompts)
        self._log({"op": "go_on", "messages": messages, "prompts": [from_prompt(each) for each in prompts]})

    def leave_out(self, upto_seq: int) -> None:
        """These rounds are told by a summary."""
        super().leave_out(upto_seq)
        self._log({"op": "leave_out", "upto": upto_seq, "seqs": self._seqs()})

    def amended(self, number: int, result: ToolResult) -> None:
        """The round of a call in the background has its real end now."""
        if any(one.number == number for one in self.rounds):
            self._log({"op": "amend", "n": number, **from_result(result)})

    def cut(self, results: Iterable[ToolResult], *, forget: bool = False, at_ms: int = 0) -> list[Round]:
        """The run is ended here."""
        results = list(results)
        seqs = self._seqs()
        with _Once(self) as first:
            changed = super().cut(results, forget=forget, at_ms=at_ms)
            if first:
                ends = [from_result(each) for each in results]
                states = [[one.number, one.state.value, self.digest(one)] for one in changed]
                facts = {"forget": forget, "t": at_ms, "seqs": seqs, "rounds": states}
                self._log({"op": "cut", "results": ends, **facts})
        return changed

    def close(self, one: Round) -> None:
        """A round is whole."""
        before = len(self._said)
        with _Once(self) as first:
            super().close(one)
            if first:
                told = [from_prompt(each) for each in self._said[before:]]
                self._log({"op": "close", "n": one.number, "digest": self.digest(one), "prompts": told})

    def acts(self, calls: Iterable[ToolCall]) -> None:
        """These calls are made now, together."""
        self._log({"op": "act", "calls": [call.id for call in calls]})

    def ends(self, one: Round) -> None:
        """The run has its answer."""
        self._log({"op": "finish", "n": one.number, "digest": self.digest(one)})

    def fails(self, reason: str) -> None:
        """The run cannot go on."""
        self._log({"op": "fail", "reason": reason})

    def put(self, one: Round) -> None:
        """A round that is known by its checkpoint alone."""
        assert one.number == self._first + len(self.rounds), "a round is missing"
        assert all(name in {call.id for call in one.answer.calls} for name in one.results), "a result without a call"
        self.rounds.append(one)
        self._log({"op": "round", "round": from_round(one)})

    @staticmethod
    def digest(one: Round) -> str:
        """A hash of everything that was decided about a round."""
        return short_digest(to_json(from_round(one)))

    def _seqs(self) -> list[list[int]]:
        return [[one.number, one.seq] for one in self.rounds if one.seq]

    @property
    def pending(self) -> tuple[list[Prompt], list[str]]:
        """What is said and not answered yet, and by which messages."""
        return list(self._said), list(self._messages)


class _Once:
    """What a machine tells itself while it is told something is no step of its own."""

    def __init__(self, machine: LoggedMachine) -> None:
        self._machine = machine
        self._first = False

    def __enter__(self) -> bool:
        self._first = not self._machine._inside  # noqa: SLF001 - of this very module
        self._machine._inside = True  # noqa: SLF001
        return self._first

    def __exit__(self, *_: object) -> None:
        if self._first:
            self._machine._inside = False  # noqa: SLF001


# ---- files ----


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHistory:
    """One run: who it was (`about`), and its steps in order, from 1."""

    about: Op
    steps: tuple[Op, ...]

    @property
    def run_id(self) -> str:
        """The run."""
        return str(self.about.get("run_id", ""))

    @property
    def is_recorded(self) -> bool:
        """Whether a recorder wrote it. If not, it was told from checkpoints, and what the model was sent is unknown."""
        return bool(self.about.get("recorded"))

    def forked_at(self, other: RunHistory) -> int:
        """The step from which another run goes on as the first of a fork of this one; 0: it is none."""
        fork = other.about.get("fork")
        if not isinstance(fork, Mapping) or not self.run_id or fork.get("run_id") != self.run_id:
            return 0
        step = fork.get("step")
        return step if type(step) is int and 1 <= step <= len(self.steps) + 1 else 0

    def with_steps(self, steps: Iterable[Op]) -> RunHistory:
        """The same run with other steps."""
        return replace(self, steps=tuple(steps))


def write_history(history: RunHistory) -> str:
    """A history as the text of its file."""
    lines: list[str] = []
    digest = ""
    head = {"kind": KIND, "v": VERSION, **history.about}
    for each in (head, *history.steps, {"op": "end", "lines": len(history.steps)}):
        body = to_json(each)
        digest = short_digest(digest + body)
        lines.append(f'{body[:-1]},"d":"{digest}"}}')
    return "\n".join(lines) + "\n"


def read_history(text: str, *, name: str = "the history") -> RunHistory:
    """The history in the text of a file; `HistoryError` names what is wrong, and where."""
    lines = text.split("\n")
    head = _line(lines[0], 1, "", name)
    if head is None or head.get("kind") != KIND:
        _refuse(name, "foreign", "its first line does not say that it is one", 1)
    version = head.get("v")
    if type(version) is not int or version < 1:
        _refuse(name, "damaged", "its first line has no version", 1)
    if version > VERSION:
        _refuse(name, "newer", f"it has version {version}, this Laneway knows {VERSION}", 1)
    digest, steps = str(head["d"]), list[Op]()
    for number, each in enumerate(lines[1:], 2):
        if not each:
            break
        op = _line(each, number, digest, name)
        if op is None or not isinstance(op.get("op"), str):
            if number == len(lines):
                _refuse(name, "cut off", f"it ends within line {number}", number)
            _refuse(name, "damaged", f"line {number} is not what was written", number)
        digest = op.pop("d")
        if op["op"] == "end":
            if op.get("lines") != len(steps) or any(lines[number:]):
                _refuse(name, "damaged", "it goes on after its end", number)
            about = {key: value for key, value in head.items() if key not in ("kind", "v", "d")}
            return RunHistory(about=about, steps=tuple(steps))
        steps.append(op)
    return _refuse(name, "cut off", f"it ends after line {1 + len(steps)}", 1 + len(steps))


def _line(text: str, number: int, before: str, name: str) -> Op | None:
    """One line, if it is as it was written; of the first one only whether it is one at all."""
    try:
        value = _read(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or not isinstance(value.get("d"), str):
        return None
    body, separator, _ = text.rpartition(',"d":"')
    whole = bool(separator) and short_digest(before + body + "}") == value["d"]
    if not whole and number == 1 and value.get("kind") == KIND and value.get("v") == VERSION:
        _refuse(name, "damaged", "line 1 is not what was written", 1)
    return value if whole or number == 1 else None


HINTS: Final = {
    "foreign": "give a file that `laneway run export` has written",
    "newer": "use the Laneway that wrote it, or a newer one",
    "damaged": "export the run again; nothing was done with it",
    "cut off": "export the run again, or copy the whole file; nothing was done with it",
}


def _refuse(name: str, problem: str, reason: str, line: int) -> NoReturn:
    what = "no history of a run" if problem == "foreign" else problem
    raise HistoryError(f"{name} is {what}: {reason}", hint=HINTS[problem], problem=problem, line=line)
