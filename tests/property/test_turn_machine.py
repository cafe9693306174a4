"""Laws of the turn machine: random answers, ends in any order, messages, cuts and resumes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from laneway.dialogue import Answer, ModelRequest, Prompt, Results, ResultStatus, ToolCall, ToolResult, Utterance
from laneway.kernel.plans import MAKE_PLAN, UPDATE_PLAN, Course, Phase, StepStatus, replay
from laneway.kernel.rounds import Round, RoundState
from laneway.kernel.turn_machine import Act, AskModel, Close, Fail, Finish, Limits, Step, TurnMachine
from tests.agent_stage import check_conversation

NAMES = st.sampled_from(["r1", "r2", "r3", "w1", "w2"])
IDS = st.sampled_from(["", "a", "b", "a+", "call-1", "call-2"])
CALLS = st.lists(st.builds(ToolCall, id=IDS, name=NAMES), max_size=6)
ROUNDS_MAX, CALLS_MAX = 6, 4


def may_run_beside(call: ToolCall) -> bool:
    """Reads may."""
    return call.name.startswith("r")


class Runs(RuleBasedStateMachine):
    """A run as the loop would drive it, but with everything at random."""

    def __init__(self) -> None:
        super().__init__()
        self.flying: list[ToolCall] = []  # made, and not ended
        self.made: set[tuple[int, str]] = set()  # every call that was ever offered, by its round
        self.runs = 1
        self.over = False
        self.said = 0

    @initialize()
    def begin(self) -> None:
        self.machine = self._new("run-1")
        self.machine.say([Prompt(text="go")], ["m0"])

    def _new(self, run_id: str, *, first: int = 1, resumed_from: str = "") -> TurnMachine:
        limits = Limits(max_tool_rounds=ROUNDS_MAX, max_calls_per_answer=CALLS_MAX)
        return TurnMachine(run_id, limits=limits, may_run_beside=may_run_beside, first=first, resumed_from=resumed_from)

    def _step(self) -> Step:
        return self.machine.next()

    def _is_next(self, kind: type[Step]) -> bool:
        return not self.over and not self.flying and isinstance(self._step(), kind)

    # ---- what happens ----

    @precondition(lambda self: self._is_next(AskModel))
    @rule(calls=CALLS, text=st.sampled_from(["", "text"]))
    def answer(self, calls: list[ToolCall], text: str) -> None:
        step = self._step()
        assert isinstance(step, AskModel)
        one = self.machine.answered(Answer(text=text, calls=tuple(calls)))
        assert one.number == step.number
        assert [call.name for call in one.answer.calls] == [call.name for call in calls]
        assert len({call.id for call in one.answer.calls}) == len(calls)
        assert all(call.id for call in one.answer.calls)
        refused = [call.id for call in one.answer.calls if call.id in one.results]
        assert refused == [call.id for call in one.answer.calls[CALLS_MAX:]]

    @precondition(lambda self: self._is_next(Act))
    @rule()
    def act(self) -> None:
        step = self._step()
        assert isinstance(step, Act)
        one = self.machine.round
        assert one is not None
        for call in step.calls:
            assert (one.number, call.id) not in self.made, "offered twice"
            assert call.id not in one.results
            self.made.add((one.number, call.id))
        self.flying = list(step.calls)
        self._check_barrier(step.calls)

    def _check_barrier(self, calls: tuple[ToolCall, ...]) -> None:
        one = self.machine.round
        assert one is not None
        assert len(calls) == 1 or all(map(may_run_beside, calls))
        order = [call.id for call in one.answer.calls]
        places = [order.index(call.id) for call in calls]
        assert places == sorted(places)
        for call in one.answer.calls[: places[0]]:
            assert call.id in one.results, "a call before it has not ended"
        between = [one.answer.calls[place] for place in range(places[0], places[-1] + 1)]
        assert all(call in calls or call.id in one.results for call in between)

    @precondition(lambda self: bool(self.flying))
    @rule(which=st.integers(0, 10), status=st.sampled_from(list(ResultStatus)))
    def end_call(self, which: int, status: ResultStatus) -> None:
        call = self.flying.pop(which % len(self.flying))
        result = ToolResult(call_id=call.id, name=call.name, output=f"of {call.id}", status=status)
        self.machine.result(result)
        self.machine.result(replace(result, output="a second one"))  # changes nothing
        one = self.machine.round
        assert one is not None
        assert one.results[call.id] is result

    @precondition(lambda self: self._is_next(Close))
    @rule()
    def close(self) -> None:
        step = self._step()
        assert isinstance(step, Close)
        assert step.round.is_whole
        self.machine.close(step.round)
        assert isinstance(self._step(), AskModel | Fail)

    @precondition(lambda self: self._is_next(Act) or self._is_next(AskModel))
    @rule()
    def steer(self) -> None:
        before = self.machine.open_calls()
        self.said += 1
        skipped = self.machine.say([Prompt(text=f"steer {self.said}")], [f"m{self.said}"])
        assert skipped == before
        assert self.machine.open_calls() == ()
        assert self.machine.said()[-1] == Prompt(text=f"steer {self.said}")
        one = self.machine.round
        for call in skipped:
            assert one is not None
            assert one.results[call.id].status is ResultStatus.SKIPPED
            self.made.add((one.number, call.id))  # it must not be offered later

    @precondition(lambda self: not self.over and not self._is_next(Finish))
    @rule(forget=st.booleans())
    def cut(self, forget: bool) -> None:
        ends = [
            ToolResult(call_id=call.id, name=call.name, output="cut", status=ResultStatus.CANCELLED)
            for call in self.machine.open_calls()
        ]
        told = self.machine.said()
        before = {each.number: each.state for each in self.machine.rounds}
        changed = self.machine.cut(ends, forget=forget)
        self.flying = []
        self.over = True
        assert all(each.is_whole for each in self.machine.rounds)
        assert changed == [each for each in self.machine.rounds if each.state is not before.get(each.number)]
        wanted = {RoundState.FORGOTTEN} if forget else {RoundState.DONE, RoundState.CUT, RoundState.FINAL}
        assert {each.state for each in self.machine.rounds} <= wanted
        prompts = [said for said in told if isinstance(said, Prompt)]
        kept = [prompt for each in self.machine.rounds for prompt in each.prompts]
        assert kept == prompts, "what was said is lost"

    @precondition(lambda self: not self.over and not self._is_next(Finish) and self.machine.round is not None)
    @rule()
    def crash(self) -> None:
        """The process dies; another run takes the open round over, or begins after the last one that was whole."""
        last = self.machine.round
        assert last is not None
        self.runs += 1
        first = last.number if last.state is RoundState.ACTING else last.number + 1
        old, name = self.machine, f"run-{self.runs}"
        self.machine = self._new(name, first=first, resumed_from=old.run_id)
        if last.state is RoundState.ACTING:
            lost = {(last.number, call.id) for call in self.flying}
            self.made -= lost  # nobody has heard of them: they are made again
            self.made -= {(last.number, call.id) for call in old.open_calls()}
            mine = replace(last, run_id=name, resumed_from=old.run_id, results=dict(last.results))
            self.machine.take_over(mine)
            assert self.machine.open_calls() == old.open_calls()
        self.flying = []

    @precondition(lambda self: self.over or self._is_next(Finish) or self._is_next(Fail))
    @rule()
    def another(self) -> None:
        """The run is over: another one begins."""
        step = self._step()
        if isinstance(step, Finish) and not self.over:
            assert step.round.state is RoundState.FINAL
            assert step.round.answer.calls == ()
        self.made, self.flying, self.runs, self.over = set(), [], 1, False
        self.begin()

    # ---- what always holds ----

    @invariant()
    def next_is_stable(self) -> None:
        assert self._step() == self._step()

    @invariant()
    def what_the_model_would_hear_is_a_conversation(self) -> None:
        if not self.over and not self.flying and self._is_next(AskModel):
            before = [] if self.runs == 1 else [Prompt(text="go")]  # what the runs before it have told
            check_conversation(ModelRequest(conversation=(*before, *self.machine.said())))

    @invariant()
    def results_follow_their_answer_in_order(self) -> None:
        for one in self.machine.rounds:
            told = one.utterances()
            if one.answer.calls:
                assert isinstance(told[-1], Results)
                assert [each.call_id for each in told[-1].results] == [call.id for call in one.answer.calls]

    @invariant()
    def rounds_are_numbered_without_gaps_and_limited(self) -> None:
        numbers = [one.number for one in self.machine.rounds]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers))) if numbers else True
        assert sum(1 for one in self.machine.rounds if one.answer.calls) <= ROUNDS_MAX

    def teardown(self) -> None:
        """Left alone, every run comes to its end."""
        if not hasattr(self, "machine") or self.over:
            return
        for call in self.flying:
            self.machine.result(ToolResult(call_id=call.id, name=call.name, output=""))
        for _ in range(100):
            step = self._step()
            match step:
                case Act(calls):
                    for call in calls:
                        self.machine.result(ToolResult(call_id=call.id, name=call.name, output=""))
                case Close(one):
                    self.machine.close(one)
                case AskModel():
                    self.machine.answered(Answer(calls=(ToolCall(id="x", name="w1"),)))
                case Finish() | Fail():
                    return
        raise AssertionError("it never ends")


TestRuns = pytest.mark.slow(Runs.TestCase)
TestRuns.settings = settings(max_examples=150, stateful_step_count=40)


def test_the_laws_notice_a_call_that_is_offered_twice() -> None:
    runs = Runs()
    runs.begin()
    runs.answer([ToolCall(id="a", name="w1"), ToolCall(id="b", name="w2")], "")
    runs.act()
    runs.flying = []  # as if it had been forgotten
    with pytest.raises(AssertionError, match="offered twice"):
        runs.act()


# ---- with a plan ----

STEP_IDS = st.sampled_from(["a", "b", "c", "d", "1", "2", 3, ""])
SCRAPS: st.SearchStrategy[object] = st.sampled_from(
    [None, True, 7, "", "x", [], {}, "[All steps are done]", "[Plan step 1 of 1] x"]
)
STEPS = st.one_of(
    st.text("ab [", min_size=1, max_size=5),
    st.fixed_dictionaries(
        {"content": st.one_of(st.just("do it"), SCRAPS)},
        optional={"id": st.one_of(STEP_IDS, SCRAPS), "depends_on": st.one_of(st.lists(STEP_IDS, max_size=2), SCRAPS)},
    ),
    SCRAPS,
)
GOOD_STEPS = st.integers(1, 5).flatmap(
    lambda many: st.tuples(
        *(
            st.fixed_dictionaries(
                {
                    "id": st.just(str(at)),
                    "content": st.just(f"do {at}"),
                    "depends_on": st.lists(st.sampled_from([str(other) for other in range(at)]), max_size=2)
                    if at
                    else st.just([]),
                }
            )
            for at in range(many)
        )
    ).flatmap(lambda steps: st.permutations(steps))
)
PLANS = st.one_of(
    GOOD_STEPS.map(lambda steps: {"goal": "g", "steps": steps}),
    st.fixed_dictionaries({"steps": st.lists(STEPS, max_size=8)}),
    SCRAPS,
)
GOOD_CHANGES: list[object] = [
    {"failed": "no"},
    {"skip": ["1"]},
    {"skip": ["2", "3"]},
    {"steps": ["x", "y"]},
    {"steps": [{"content": "y", "depends_on": ["0"]}]},
    {"failed": "no", "steps": ["another way"]},
]
CHANGES = st.one_of(
    st.sampled_from(GOOD_CHANGES),
    st.fixed_dictionaries(
        {},
        optional={
            "failed": st.sampled_from(["", "no", True]),
            "skip": st.lists(STEP_IDS, max_size=2),
            "steps": st.lists(STEPS, max_size=3),
        },
    ),
    SCRAPS,
)
PLAN_CALLS = st.lists(
    st.one_of(
        PLANS.map(lambda value: (MAKE_PLAN, json.dumps(value))),
        CHANGES.map(lambda value: (UPDATE_PLAN, json.dumps(value))),
        st.tuples(st.sampled_from([MAKE_PLAN, UPDATE_PLAN, "w1", "r1"]), st.sampled_from(["{}", "{", "", "[]"])),
    ),
    max_size=3,
)
TEXTS = st.one_of(st.sampled_from(["", "text", "[1", '{"steps": [']), PLANS.map(json.dumps))
MOST = 6


@st.composite
def plan_answers(draw: st.DrawFn) -> Answer:
    """An answer of a model that plans well, badly, or not at all."""
    changes = st.sampled_from(GOOD_CHANGES).map(lambda value: [(UPDATE_PLAN, json.dumps(value))])
    calls = draw(st.one_of(PLAN_CALLS, changes, st.just([])))
    made = tuple(ToolCall(id=str(at), name=name, arguments=value) for at, (name, value) in enumerate(calls))
    return Answer(text=draw(TEXTS), calls=made)


class PlannedRun:
    """A run with a plan that dies as often as it is told to, and goes on by what it has written down."""

    def __init__(self, rounds_max: int) -> None:
        self.rounds_max = rounds_max
        self.lives = 1
        self.written: list[Round] = []
        self.machine = self._new(first=1)
        self.machine.say([Prompt(text="go")], ["m0"])
        self.machine.begin_plan(Course(MOST))

    def _new(self, *, first: int, course: Course | None = None) -> TurnMachine:
        return TurnMachine(
            f"run-{self.lives}",
            limits=Limits(max_tool_rounds=self.rounds_max, max_calls_per_answer=CALLS_MAX),
            may_run_beside=may_run_beside,
            first=first,
            course=course,
        )

    @property
    def course(self) -> Course:
        """How far it is."""
        assert self.machine.course is not None
        return self.machine.course

    def play(self, answers: list[Answer], crashes: set[int]) -> Step:
        """Run it with these answers, and then with empty ones; how it ended."""
        left = list(answers)
        for _ in range(300):
            self.check_plan()
            step = self.machine.next()
            match step:
                case AskModel(_, purpose):
                    assert (purpose == "plan") is (self.course.phase is Phase.PLANNING)
                    check_conversation(ModelRequest(conversation=self.heard()))
                    self.machine.answered(left.pop(0) if left else Answer(text="done"))
                case Act(calls):
                    assert all(call.name in ("w1", "r1") or self.course.phase is not Phase.PLANNING for call in calls)
                    for call in calls:
                        self.machine.result(ToolResult(call_id=call.id, name=call.name, output=""))
                case Close(one):
                    assert one.is_whole
                    self.machine.close(one)
                    self.written.append(one)
                    if len(self.written) in crashes:
                        self.crash()
                case Finish() | Fail():
                    return step
        raise AssertionError("it never ends")

    def heard(self) -> tuple[Utterance, ...]:
        """What the model hears: what was written down, and what is new."""
        own = {id(one) for one in self.machine.rounds}
        before = [each for one in self.written if id(one) not in own for each in one.utterances()]
        return (*before, *self.machine.said())

    def crash(self) -> None:
        """The process dies after a round; another one goes on where this was."""
        phase, plan, said = self.course.phase, self.course.plan, self.heard()
        found = replay(self.written)
        assert found is not None
        course, due = found
        assert (course.phase, course.plan, course.tool_rounds) == (phase, plan, self.course.tool_rounds)
        self.lives += 1
        self.machine = self._new(first=len(self.written) + 1, course=course)
        self.machine.add(due)
        assert self.heard() == said, "it goes on with another conversation"

    def check_plan(self) -> None:
        """A step is done when everything it depends on has ended, one at a time, and never after a failure of that."""
        plan = self.course.plan
        if plan is None:
            return
        assert len(plan.steps) <= MOST
        ended = {step.id: step.status for step in plan.steps}
        for step in plan.steps:
            if step.status in (StepStatus.IN_PROGRESS, StepStatus.COMPLETED):
                before = [ended[name] for name in step.depends_on]
                assert all(state in (StepStatus.COMPLETED, StepStatus.SKIPPED) for state in before), plan
        going = [step for step in plan.steps if step.status is StepStatus.IN_PROGRESS]
        assert len(going) == (self.course.phase is Phase.STEPPING)


@pytest.mark.slow
@settings(max_examples=200)
@given(
    first=st.one_of(PLANS, GOOD_STEPS),
    answers=st.lists(plan_answers(), max_size=12),
    crashes=st.sets(st.integers(1, 15), max_size=8),
    rounds_max=st.integers(1, 10),
)
def test_a_run_with_any_plan_ends_and_dies_without_losing_its_place(
    first: object, answers: list[Answer], crashes: set[int], rounds_max: int
) -> None:
    made = Answer(calls=(ToolCall(id="p", name=MAKE_PLAN, arguments=json.dumps(first)),))
    run = PlannedRun(rounds_max)
    end = run.play([made, *answers], crashes)
    steady = PlannedRun(rounds_max)
    assert type(steady.play([made, *answers], set())) is type(end)
    assert (run.course.phase, run.course.plan) == (steady.course.phase, steady.course.plan)


@pytest.mark.slow
@settings(max_examples=60)
@given(steps=GOOD_STEPS, crash=st.integers(1, 7))
def test_a_good_plan_is_done_whole_in_the_order_of_its_dependencies(steps: list[dict[str, object]], crash: int) -> None:
    made = Answer(calls=(ToolCall(id="p", name=MAKE_PLAN, arguments=json.dumps({"steps": steps})),))
    run = PlannedRun(rounds_max=10)
    end = run.play([made], {crash})
    assert isinstance(end, Finish)
    run.course.heard(end.round)
    plan = run.course.plan
    assert plan is not None
    assert {step.status for step in plan.steps} == {StepStatus.COMPLETED}
    order = [step.id for step in plan.steps]
    assert sorted(order) == sorted(str(step["id"]) for step in steps)
    assert all(order.index(name) < order.index(step.id) for step in plan.steps for name in step.depends_on)
