"""Plans: how a run is broken into steps, and which of them is next.

```text
            make_plan             the last step has ended
 planning ────────────▶ stepping ────────────────────────▶ reporting
     │ refused twice, or none wanted
     └────────────────▶ free
```

A `Course` follows one run. It keeps nothing that is not in the rounds of that run: heard again in order, they give the
same course, so a run that goes on in another process goes on at its step. What it says to the model are prompts with a
role of their own (`ROLE`), which nothing that a user, a tool or a model writes can have.

A plan always ends: every step that was ever in it counts against `most`, and each ends once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from heapq import heappop, heappush
from typing import Any, Final, assert_never

from laneway.dialogue import Prompt, ResultStatus, ToolCall, ToolResult, ToolSpec
from laneway.errors import text_of
from laneway.kernel.rounds import Round, RoundState
from laneway.records import Effect

__all__ = (
    "MAKE_PLAN",
    "ROLE",
    "UPDATE_PLAN",
    "Course",
    "Phase",
    "Plan",
    "PlanRefusedError",
    "PlanStep",
    "StepChange",
    "StepStatus",
    "change_plan",
    "plan_tools",
    "read_plan",
    "replay",
)

ROLE: Final = "plan"
"""The role of what a plan says to the model."""

MAKE_PLAN: Final = "make_plan"
UPDATE_PLAN: Final = "update_plan"
TRIES: Final = 2  # how often a plan is asked for
STEPS_MAX: Final = 1_000
CONTENT_MAX: Final = 2_000
ID_MAX: Final = 64
TEXT_MAX: Final = 200_000  # in a longer text nobody looks for a plan
RESULT_SHOWN: Final = 1_000

ASK: Final = (
    "[Make a plan of at most {most} steps] Call make_plan before you do anything. The steps are given back to you one"
    " by one, and you have your tools in each of them. If one short answer is enough, say so instead."
)
AGAIN: Final = "[Make a plan of at most {most} steps] The plan was refused: {reason}. Call make_plan with a better one."
NO_PLAN: Final = "[No plan] Go on without a plan, with your tools."
STEP: Final = "[Plan step {number} of {total}] {content}"
DONE: Final = "[All steps are done]"
ALL_DONE: Final = DONE + " {told}. Now give the user the final answer."
_ASKED: Final = re.compile(r"\[Make a plan of at most (\d{1,4}) steps\]")
_FENCE: Final = re.compile(r"```[a-z]*\n(.*?)```", re.DOTALL)


class PlanRefusedError(Exception):
    """Why something is no plan, or no change of one; told to the model."""


class StepStatus(StrEnum):
    """How far a step has come."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"
    SKIPPED = "skipped"


class StepChange(StrEnum):
    """What may happen to a step."""

    BEGIN = "begin"
    COMPLETE = "complete"
    FAIL = "fail"
    SKIP = "skip"


STEP_TRANSITIONS: Final[Mapping[tuple[StepStatus, StepChange], StepStatus]] = {
    (StepStatus.PENDING, StepChange.BEGIN): StepStatus.IN_PROGRESS,
    (StepStatus.PENDING, StepChange.SKIP): StepStatus.SKIPPED,
    (StepStatus.IN_PROGRESS, StepChange.COMPLETE): StepStatus.COMPLETED,
    (StepStatus.IN_PROGRESS, StepChange.FAIL): StepStatus.FAILED,
    (StepStatus.IN_PROGRESS, StepChange.SKIP): StepStatus.SKIPPED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanStep:
    """One step. `result` is what came of it: the text that ended it, or why it failed or was skipped."""

    id: str
    content: str
    depends_on: tuple[str, ...] = ()
    status: StepStatus = StepStatus.PENDING
    result: str = ""

    def change(self, change: StepChange, result: str = "") -> PlanStep:
        """The step after this; what the table does not list is illegal."""
        after = STEP_TRANSITIONS.get((self.status, change))
        assert after is not None, f"step {self.id!r} is {self.status}, and cannot {change}"
        return replace(self, status=after, result=result)

    def to_task(self) -> dict[str, Any]:
        """What whoever watches is told of it."""
        shown = self.result if len(self.result) <= RESULT_SHOWN else self.result[: RESULT_SHOWN - 1] + "…"
        return {"id": self.id, "content": self.content, "status": self.status.value, "result": shown}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The steps in the order in which they are done, those that were replaced among them."""

    steps: tuple[PlanStep, ...]
    goal: str = ""

    @property
    def current(self) -> PlanStep | None:
        """The step that is being done."""
        return next((step for step in self.steps if step.status is StepStatus.IN_PROGRESS), None)

    def number(self, step_id: str) -> int:
        """The place of a step, from 1."""
        return next(number for number, step in enumerate(self.steps, 1) if step.id == step_id)

    def find(self, step_id: str) -> PlanStep | None:
        """The step with this id."""
        return next((step for step in self.steps if step.id == step_id), None)

    def begin_next(self) -> Plan:
        """The first step that waits is begun; without one, nothing changes."""
        assert self.current is None, "one step at a time"
        waiting = next((step for step in self.steps if step.status is StepStatus.PENDING), None)
        return self if waiting is None else self.with_step(waiting.change(StepChange.BEGIN))

    def end(self, change: StepChange, result: str = "") -> Plan:
        """The step that is being done has ended. What depends on a failed one is skipped, and what depends on that."""
        current = self.current
        assert current is not None, "no step is being done"
        ended = self.with_step(current.change(change, result))
        if change is not StepChange.FAIL:
            return ended
        lost = {current.id}
        for step in ended.steps:  # in the order of dependencies
            if step.status is StepStatus.PENDING and lost & set(step.depends_on):
                lost.add(step.id)
                ended = ended.with_step(step.change(StepChange.SKIP, f"step {current.id} failed"))
        return ended

    def with_step(self, step: PlanStep) -> Plan:
        """The plan with this step in the place of the one with its id."""
        return replace(self, steps=tuple(step if each.id == step.id else each for each in self.steps))

    def told(self) -> str:
        """How many steps ended how."""
        states = [step.status for step in self.steps]
        ends = (StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.SKIPPED)
        return ", ".join(f"{states.count(end)} {end}" for end in ends if end in states)

    def outline(self) -> str:
        """The plan in lines, for a summary."""
        lines = [f"{number}. {step.content} ({step.status})" for number, step in enumerate(self.steps, 1)]
        return "\n".join([f"[The plan] {self.goal}".rstrip(), *lines])


# ---- reading what a model has written ----


def read_plan(value: object, *, most: int) -> Plan:
    """A plan as a model wrote it, checked and in order: `{"goal", "steps"}`, or the steps alone."""
    if isinstance(value, list):
        value = {"steps": value}
    if not isinstance(value, dict):
        raise PlanRefusedError('it is not an object with "steps"')
    goal = value.get("goal")
    steps = _read_steps(value.get("steps"), known=(), most=most, counted=0)
    if not steps:
        raise PlanRefusedError("it has no steps")
    return Plan(steps=steps, goal=_cut(text_of(goal).strip()) if isinstance(goal, str) else "")


def change_plan(plan: Plan, value: object, *, most: int) -> Plan:
    """The plan after a change: `failed` (why this step cannot be done), `skip` (ids), `steps` (instead of the rest)."""
    current = plan.current
    if current is None:
        raise PlanRefusedError("every step has ended")
    if not isinstance(value, dict):
        raise PlanRefusedError('it is not an object with "failed", "skip" or "steps"')
    failed, skip, steps = value.get("failed"), value.get("skip"), value.get("steps")
    if not failed and not skip and steps is None:
        raise PlanRefusedError('it changes nothing: give "failed", "skip" or "steps"')
    ids = _ids(skip or [], "skip")
    if failed and current.id in ids:
        raise PlanRefusedError(f"step {current.id!r} cannot be failed and skipped")
    for step_id in ids:
        known = plan.find(step_id)
        if known is None or known.status not in (StepStatus.PENDING, StepStatus.IN_PROGRESS):
            raise PlanRefusedError(f"there is no step {step_id!r} that could be skipped")
    if steps is not None:
        plan = _with_rest(plan, steps, most=most, fails=current.id if failed else "")
    for step_id in ids:
        known = plan.find(step_id)
        assert known is not None
        if known.status in (StepStatus.PENDING, StepStatus.IN_PROGRESS):  # else it has just been replaced
            plan = plan.with_step(known.change(StepChange.SKIP, "not needed"))
    if failed:
        plan = plan.end(StepChange.FAIL, _cut(text_of(failed).strip()) if isinstance(failed, str) else "")
    return plan


def _with_rest(plan: Plan, value: object, *, most: int, fails: str) -> Plan:
    """The plan with other steps after the one that is being done."""
    made = _read_steps(value, known={step.id for step in plan.steps}, most=most, counted=len(plan.steps))
    failed = {step.id for step in plan.steps if step.status is StepStatus.FAILED} | {fails}
    for step in made:
        lost = failed.intersection(step.depends_on)
        if lost:
            raise PlanRefusedError(f"step {step.id!r} depends on {min(lost)!r}, which has failed")
    for step in plan.steps:
        if step.status is StepStatus.PENDING:
            plan = plan.with_step(step.change(StepChange.SKIP, "replaced"))
    return replace(plan, steps=(*plan.steps, *made))


def _read_steps(value: object, *, known: Collection[str], most: int, counted: int) -> tuple[PlanStep, ...]:
    if not isinstance(value, list):
        raise PlanRefusedError('"steps" is not a list')
    total = counted + len(value)
    if total > most:
        with_those = f", with the {counted} that it has had" if counted else ""
        raise PlanRefusedError(f"it has {total:,} steps{with_those}, and at most {most} are allowed")
    given = [_read_step(each, counted + number) for number, each in enumerate(value, 1)]
    taken = {*known, *(step.id for step in given if step.id)}
    steps: list[PlanStep] = []
    for number, step in enumerate(given, counted + 1):
        name = step.id or str(number)
        while not step.id and name in taken:
            name += "+"
        taken.add(name)
        steps.append(replace(step, id=name))
    names = [step.id for step in steps]
    twice = next((name for at, name in enumerate(names) if name in known or name in names[:at]), None)
    if twice is not None:
        raise PlanRefusedError(f"two steps have the id {twice!r}")
    return _in_order(steps, known)


def _read_step(value: object, number: int) -> PlanStep:
    """One step; its id is empty if the model gave none."""
    if isinstance(value, str):
        value = {"content": value}
    if not isinstance(value, dict):
        raise PlanRefusedError(f'step {number} is not an object with "content"')
    content = value.get("content")
    if not isinstance(content, str) or not content.strip():
        raise PlanRefusedError(f'step {number} has no "content"')
    if len(content) > CONTENT_MAX:
        raise PlanRefusedError(f"step {number} has {len(content):,} characters, and at most {CONTENT_MAX:,} are read")
    given = value.get("id")
    depends_on = value.get("depends_on")
    return PlanStep(
        id="" if given is None or given == "" else _id(given, f"the id of step {number}"),
        content=text_of(content.strip()),
        depends_on=_ids([] if depends_on is None else depends_on, f"depends_on of step {number}"),
    )


def _ids(value: object, what: str) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise PlanRefusedError(f"{what} is not a list of ids")
    return tuple(dict.fromkeys(_id(each, f"an id in {what}") for each in value))


def _id(value: object, what: str) -> str:
    """An id as text; models write numbers as well."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise PlanRefusedError(f"{what} is neither text nor a whole number")
    name = text_of(value).strip()
    if not 0 < len(name) <= ID_MAX:
        raise PlanRefusedError(f"{what} has no or more than {ID_MAX} characters")
    return name


def _in_order(steps: Sequence[PlanStep], known: Collection[str]) -> tuple[PlanStep, ...]:
    """Each step after those that it depends on; else as they were given."""
    places = {step.id: at for at, step in enumerate(steps)}
    after: dict[int, list[int]] = {}
    waits: list[int] = []
    for at, step in enumerate(steps):
        unknown = next((name for name in step.depends_on if name not in places and name not in known), None)
        if unknown is not None:
            raise PlanRefusedError(f"step {step.id!r} depends on {unknown!r}, which is not there")
        own = [places[name] for name in step.depends_on if name in places]
        waits.append(len(own))
        for place in own:
            after.setdefault(place, []).append(at)
    ready = [at for at, count in enumerate(waits) if not count]
    order: list[PlanStep] = []
    while ready:
        at = heappop(ready)
        order.append(steps[at])
        for next_at in after.get(at, ()):
            waits[next_at] -= 1
            if not waits[next_at]:
                heappush(ready, next_at)
    if len(order) < len(steps):
        stuck = ", ".join(repr(step.id) for step in steps if step not in order)
        raise PlanRefusedError(f"the steps {_cut(stuck)} wait for one another")
    return tuple(order)


def _cut(text: str) -> str:
    return text if len(text) <= CONTENT_MAX else text[: CONTENT_MAX - 1] + "…"


def _parsed(text: str) -> object:
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise PlanRefusedError(f"it is not JSON: {text_of(error)[:200]}") from None


def _in_text(text: str) -> object | None:
    """What looks like a plan in a text; None if nothing does."""
    text = text.strip()
    if not text or len(text) > TEXT_MAX:
        return None
    fenced = _FENCE.search(text)
    inner = fenced.group(1).strip() if fenced else text
    if inner.startswith(("{", "[")):
        if '"steps"' not in inner and not inner.startswith("["):
            return None
        try:
            return _parsed(inner)
        except PlanRefusedError:
            if '"steps"' in inner:  # it was meant to be one
                raise
            return None
    begin, end = text.find("{"), text.rfind("}")
    if '"steps"' not in text[begin:end] or begin < 0:
        return None
    try:
        return _parsed(text[begin : end + 1])
    except PlanRefusedError:
        return None


# ---- what a run does with it ----


class Phase(StrEnum):
    """Where a run with a plan is."""

    PLANNING = "planning"  # the model is asked for a plan
    STEPPING = "stepping"  # a step is being done
    REPORTING = "reporting"  # all have ended: the final answer is missing
    FREE = "free"  # there is no plan


class Course:
    """The plan of one run, and how far it has come."""

    def __init__(self, most: int) -> None:
        self.most = min(most, STEPS_MAX)
        self.phase = Phase.PLANNING
        self.plan: Plan | None = None
        self.refused = 0
        self.reason = ""  # why there is no plan
        self.tool_rounds = 0  # rounds with calls, but for those in which a plan was asked for

    @property
    def ask(self) -> Prompt:
        """What asks for a plan."""
        return Prompt(text=ASK.format(most=self.most), role=ROLE)

    def takes(self, call: ToolCall) -> bool:
        """Whether a call is about the plan, and reaches no tool."""
        if self.phase is Phase.PLANNING:
            return True
        return call.name == UPDATE_PLAN and self.phase is not Phase.FREE

    def results(self, calls: Iterable[ToolCall]) -> list[ToolResult]:
        """The results of the calls that it takes, one for each. Nothing changes before their round is heard."""
        found: list[ToolResult] = []
        plan = self.plan
        for call in calls:
            if not self.takes(call):
                continue
            status = ResultStatus.OK
            try:
                plan, text = self._made(call, plan) if self.phase is Phase.PLANNING else self._changed(call, plan)
            except PlanRefusedError as error:
                status, text = ResultStatus.ERROR, f"[Not run: {error}]"
            found.append(ToolResult(call_id=call.id, name=call.name, output=text, status=status))
        return found

    def _made(self, call: ToolCall, plan: Plan | None) -> tuple[Plan, str]:
        if call.name != MAKE_PLAN:
            raise PlanRefusedError(f"only {MAKE_PLAN} can be called now")
        if plan is not None:
            raise PlanRefusedError("there is a plan already")
        made = read_plan(_parsed(call.arguments), most=self.most)
        return made, f"[The plan has {len(made.steps)} steps: {', '.join(step.id for step in made.steps)}]"

    def _changed(self, call: ToolCall, plan: Plan | None) -> tuple[Plan, str]:
        if plan is None or self.phase is not Phase.STEPPING:
            raise PlanRefusedError("every step has ended")
        changed = change_plan(plan, _parsed(call.arguments), most=self.most)
        left = [step.id for step in changed.steps if step.status is StepStatus.PENDING]
        return changed, f"[The plan was changed; still to do after this step: {', '.join(left) or 'nothing'}]"

    def ends_run(self) -> bool:
        """Whether an answer without calls would be the answer of the run."""
        match self.phase:
            case Phase.PLANNING:
                return False
            case Phase.STEPPING:
                assert self.plan is not None
                return len(self.plan.steps) == 1  # its result is the answer
            case Phase.REPORTING | Phase.FREE:
                return True
            case _ as never:
                assert_never(never)

    def heard(self, one: Round) -> tuple[Prompt, ...]:
        """A round has come to its end: what it changes, and what the model is told next."""
        if one.answer.calls and self.phase is not Phase.PLANNING:
            self.tool_rounds += 1
        match self.phase:
            case Phase.PLANNING:
                return self._heard_plan(one)
            case Phase.STEPPING:
                return self._heard_step(one)
            case Phase.REPORTING | Phase.FREE:
                return ()
            case _ as never:
                assert_never(never)

    def _heard_plan(self, one: Round) -> tuple[Prompt, ...]:
        try:
            plan = self._plan_of(one)
        except PlanRefusedError as error:
            self.refused += 1
            self.reason = str(error)
            if self.refused < TRIES:
                return (Prompt(text=AGAIN.format(most=self.most, reason=self.reason), role=ROLE),)
            return self._without("the plan was refused: " + self.reason)
        if plan is not None:
            self.phase, self.plan, self.reason = Phase.STEPPING, plan.begin_next(), ""
            return (self._step_prompt(),)
        if one.state is not RoundState.DONE:
            return ()  # it was cut: nothing came of it
        return self._without("the model made no plan")

    def _without(self, reason: str) -> tuple[Prompt, ...]:
        self.phase, self.reason = Phase.FREE, reason
        return (Prompt(text=NO_PLAN, role=ROLE),)

    def _plan_of(self, one: Round) -> Plan | None:
        """The plan in an answer. What became of its calls is written down; what is in a text is judged again."""
        answer = one.answer
        for call in answer.calls:
            if one.results[call.id].status is ResultStatus.OK:
                return read_plan(_parsed(call.arguments), most=STEPS_MAX)
        if one.state is not RoundState.DONE:
            return None
        found = _in_text(answer.text)
        if found is not None:
            return read_plan(found, most=self.most)
        if answer.calls:
            said = next((one.results[call.id] for call in answer.calls if call.name == MAKE_PLAN), None)
            called = f"{MAKE_PLAN} was not called, but {_cut(answer.calls[0].name)}"
            raise PlanRefusedError(said.output.removeprefix("[Not run: ").removesuffix("]") if said else called)
        if not answer.text.strip():
            raise PlanRefusedError("the answer was empty")
        return None

    def _heard_step(self, one: Round) -> tuple[Prompt, ...]:
        plan = self.plan
        assert plan is not None
        for call in one.answer.calls:
            if call.name == UPDATE_PLAN and one.results[call.id].status is ResultStatus.OK:
                plan = change_plan(plan, _parsed(call.arguments), most=STEPS_MAX)
        if not one.answer.calls and one.state in (RoundState.DONE, RoundState.FINAL):
            plan = plan.end(StepChange.COMPLETE, one.answer.text)
        if plan.current is not None:
            self.plan = plan
            return ()
        self.plan = plan = plan.begin_next()
        if plan.current is not None:
            return (self._step_prompt(),)
        self.phase = Phase.REPORTING
        if one.state is RoundState.FINAL:
            return ()
        return (Prompt(text=ALL_DONE.format(told=plan.told()), role=ROLE),)

    def _step_prompt(self) -> Prompt:
        plan = self.plan
        assert plan is not None
        step = plan.current
        assert step is not None
        text = STEP.format(number=plan.number(step.id), total=len(plan.steps), content=step.content)
        return Prompt(text=text, role=ROLE)


def replay(rounds: Sequence[Round]) -> tuple[Course, tuple[Prompt, ...]] | None:
    """The course of a run by its rounds, and what the model has to be told next; None if it was asked for no plan.

    A last round that is open or final is not heard yet: whoever goes on with it closes it, or finishes.
    """
    course: Course | None = None
    due: tuple[Prompt, ...] = ()
    for one in rounds:
        if course is None:
            asked = next((prompt for prompt in one.prompts if prompt.role == ROLE), None)
            found = _ASKED.match(asked.text) if asked is not None else None
            if found is None:
                continue
            course = Course(int(found.group(1)))
        due = course.heard(one) if one.state in (RoundState.DONE, RoundState.CUT) else ()
    return None if course is None else (course, due)


# ---- what the model may call ----

_STEPS_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {
            "id": {"type": "string", "description": "A short name; a number by default"},
            "content": {"type": "string", "description": "What is to be done"},
            "depends_on": {"type": "array", "items": {"type": "string"}, "description": "Ids of steps before it"},
        },
        "required": ["content"],
    },
}

_MAKE: Final = ToolSpec(
    name=MAKE_PLAN,
    description="Break the task into steps. Each is done in its turn, after those that it depends on.",
    parameters={
        "type": "object",
        "properties": {"goal": {"type": "string"}, "steps": _STEPS_SCHEMA},
        "required": ["steps"],
    },
    effect=Effect.READ,
    local=True,
)

_UPDATE: Final = ToolSpec(
    name=UPDATE_PLAN,
    description=(
        "Change the plan: say that the step you are doing cannot be done, skip steps that are not needed, or replace"
        " all steps that have not begun. A step that goes well needs no call: answer, and the next one comes."
    ),
    parameters={
        "type": "object",
        "properties": {
            "failed": {"type": "string", "description": "Why this step cannot be done"},
            "skip": {"type": "array", "items": {"type": "string"}, "description": "Ids of steps that are not needed"},
            "steps": {**_STEPS_SCHEMA, "description": "What is to be done after this step, instead of the rest"},
        },
    },
    effect=Effect.READ,
    local=True,
)


def plan_tools(course: Course | None, specs: tuple[ToolSpec, ...]) -> tuple[ToolSpec, ...]:
    """What the model may call now: a plan at first; then its tools, and what changes the plan."""
    if course is None or course.phase is Phase.FREE:
        return specs
    if course.phase is Phase.PLANNING:
        return (_MAKE,)
    return (*(spec for spec in specs if spec.name != UPDATE_PLAN), _UPDATE)
