"""Plans: what is one, in which order its steps are done, how it changes, and that it is found again in its rounds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from laneway.dialogue import Answer, Prompt, ResultStatus, ToolCall, ToolResult, ToolSpec
from laneway.kernel.plans import (
    MAKE_PLAN,
    ROLE,
    STEPS_MAX,
    UPDATE_PLAN,
    Course,
    Phase,
    Plan,
    PlanRefusedError,
    StepChange,
    change_plan,
    plan_tools,
    read_plan,
    replay,
)
from laneway.kernel.rounds import Round, RoundState


def read(*steps: Any, most: int = 20) -> Plan:
    """A plan of these steps."""
    return read_plan({"goal": "it", "steps": list(steps)}, most=most)


def ids(plan: Plan) -> list[str]:
    """The ids in order."""
    return [step.id for step in plan.steps]


def states(plan: Plan | None) -> str:
    """The steps and how far they have come: `a:completed b:pending`."""
    assert plan is not None
    return " ".join(f"{step.id}:{step.status}" for step in plan.steps)


def step(name: str, *depends_on: str) -> dict[str, Any]:
    """A step that depends on others."""
    return {"id": name, "content": f"do {name}", "depends_on": list(depends_on)}


def refusal(value: object, *, most: int = 20) -> str:
    """Why this is no plan."""
    with pytest.raises(PlanRefusedError) as caught:
        read_plan(value, most=most)
    return str(caught.value)


# ---- what is a plan ----


def test_steps_are_numbered_unless_they_have_ids() -> None:
    plan = read("read", {"content": "write", "id": "w"}, {"content": " check "})
    assert [(one.id, one.content) for one in plan.steps] == [("1", "read"), ("w", "write"), ("3", "check")]
    assert plan.goal == "it"


def test_an_id_that_was_given_is_nobody_elses_number() -> None:
    assert ids(read({"content": "x", "id": "2"}, "y")) == ["2", "2+"]


def test_whole_numbers_are_ids_too() -> None:
    plan = read({"content": "a", "id": 7}, {"content": "b", "id": 8, "depends_on": [7, 7]})
    assert [(one.id, one.depends_on) for one in plan.steps] == [("7", ()), ("8", ("7",))]


def test_the_steps_alone_are_a_plan() -> None:
    assert ids(read_plan(["a", "b"], most=2)) == ["1", "2"]


def test_steps_come_after_what_they_depend_on_and_else_as_they_were_given() -> None:
    assert ids(read(step("c", "a"), step("b"), step("a"), step("d", "c", "b"))) == ["b", "a", "c", "d"]
    assert ids(read(step("x"), step("y"), step("z"))) == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (None, "not an object"),
        ("read it", "not an object"),
        (7, "not an object"),
        ({}, "not a list"),
        ({"steps": "all of it"}, "not a list"),
        ({"steps": []}, "no steps"),
        ({"steps": [1]}, "step 1 is not an object"),
        ({"steps": ["a", {"content": "  "}]}, 'step 2 has no "content"'),
        ({"steps": [{"content": ["a"]}]}, 'no "content"'),
        ({"steps": ["x" * 2_001]}, "2,001 characters"),
        ({"steps": [{"content": "a", "id": True}]}, "neither text nor"),
        ({"steps": [{"content": "a", "id": "x" * 65}]}, "64"),
        ({"steps": [{"content": "a", "id": " "}]}, "no or more than"),
        ({"steps": [{"content": "a", "depends_on": "b"}]}, "not a list of ids"),
        ({"steps": [{"content": "a", "depends_on": [None]}]}, "neither text nor"),
        ({"steps": [step("a"), step("a")]}, "two steps have the id 'a'"),
        ({"steps": [step("a", "b")]}, "'b', which is not there"),
        ({"steps": [step("a", "a")]}, "wait for one another"),
        ({"steps": [step("z"), step("a", "c"), step("b", "a"), step("c", "b")]}, "'a', 'b', 'c' wait"),
        ({"steps": ["a"] * 21}, "21 steps, and at most 20"),
    ],
)
def test_nonsense_is_refused_with_its_reason(value: object, word: str) -> None:
    assert word in refusal(value)


def test_half_a_character_is_kept_in_a_way_that_can_be_stored() -> None:
    assert read("\ud800").steps[0].content == "\\ud800"


def test_a_thousand_steps_that_all_depend_on_each_other_are_put_in_order() -> None:
    steps = [step(str(at), *(str(before) for before in range(max(0, at - 50), at))) for at in range(1000)]
    assert ids(read(*reversed(steps), most=STEPS_MAX)) == [str(at) for at in range(1000)]


# ---- changing it ----


def begun(*steps: Any) -> Plan:
    """A plan whose first step is being done."""
    return read(*steps).begin_next()


def changed(plan: Plan, **value: Any) -> str:
    """The steps after a change."""
    return states(change_plan(plan, value, most=5))


def test_a_failed_step_takes_those_along_that_depend_on_it() -> None:
    plan = begun(step("a"), step("b", "a"), step("c", "b"), step("d"))
    failed = change_plan(plan, {"failed": "no such file"}, most=5)
    assert states(failed) == "a:failed b:skipped c:skipped d:pending"
    assert [one.result for one in failed.steps] == ["no such file", "step a failed", "step a failed", ""]


def test_a_skipped_step_takes_nobody_along() -> None:
    plan = begun(step("a"), step("b", "a"), step("c"))
    assert changed(plan, skip=["a", "c"]) == "a:skipped b:pending c:skipped"


def test_the_rest_can_be_replaced_and_what_was_there_counts() -> None:
    plan = begun(step("a"), step("b"), step("c"))
    assert (
        changed(plan, steps=[step("e", "d"), step("d", "a")]) == "a:in_progress b:skipped c:skipped d:pending e:pending"
    )
    with pytest.raises(PlanRefusedError, match="6 steps, with the 3 that it has had, and at most 5"):
        change_plan(plan, {"steps": ["x", "y", "z"]}, most=5)


def test_nothing_more_to_do_is_a_change_too() -> None:
    assert changed(begun("x", "y"), steps=[]) == "1:in_progress 2:skipped"


def test_a_failed_step_can_be_replaced_at_once() -> None:
    plan = begun(step("a"), step("b", "a"))
    assert changed(plan, failed="no", steps=["another way"]) == "a:failed b:skipped 3:pending"
    assert changed(plan, failed="no", skip=["b"], steps=["another way"]) == "a:failed b:skipped 3:pending"


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ([], "not an object"),
        ({}, "changes nothing"),
        ({"failed": "", "skip": []}, "changes nothing"),
        ({"skip": "b"}, "not a list of ids"),
        ({"skip": ["z"]}, "no step 'z'"),
        ({"skip": ["a"], "failed": "no"}, "cannot be failed and skipped"),
        ({"steps": "more"}, "not a list"),
        ({"steps": [step("a")]}, "two steps have the id 'a'"),
        ({"steps": [step("n", "z")]}, "'z', which is not there"),
        ({"steps": [step("n", "a")], "failed": "no"}, "'a', which has failed"),
        ({"steps": [step("n", "m"), step("m", "n")]}, "wait for one another"),
    ],
)
def test_a_change_that_is_nonsense_is_refused(value: object, word: str) -> None:
    with pytest.raises(PlanRefusedError) as caught:
        change_plan(begun(step("a"), step("b")), value, most=5)
    assert word in str(caught.value)


def test_what_has_ended_does_not_change() -> None:
    plan = begun(step("a"), step("b")).end(StepChange.COMPLETE, "done").begin_next()
    with pytest.raises(PlanRefusedError, match="no step 'a'"):
        change_plan(plan, {"skip": ["a"]}, most=5)
    with pytest.raises(PlanRefusedError, match="every step has ended"):
        change_plan(plan.end(StepChange.COMPLETE), {"failed": "late"}, most=5)


def test_a_step_cannot_end_twice() -> None:
    ended = begun("x").steps[0].change(StepChange.COMPLETE)
    with pytest.raises(AssertionError, match="completed, and cannot fail"):
        ended.change(StepChange.FAIL)


def test_a_task_shows_the_beginning_of_a_long_result() -> None:
    task = begun("x").end(StepChange.COMPLETE, "y" * 5_000).steps[0].to_task()
    assert (task["status"], len(task["result"]), task["result"][-2:]) == ("completed", 1_000, "y…")


# ---- the course of a run ----


class Walk:
    """A run as its rounds: `hear` closes one, as the turn machine would."""

    def __init__(self, most: int = 5) -> None:
        self.course = Course(most)
        self.rounds: list[Round] = []
        self.due: tuple[Prompt, ...] = (Prompt(text="go"), self.course.ask)

    def hear(self, text: str = "", *calls: tuple[str, object], state: RoundState = RoundState.DONE) -> str:
        """The model says this and calls these; what it is told next."""
        made = tuple(
            ToolCall(id=str(at), name=name, arguments=value if isinstance(value, str) else json.dumps(value))
            for at, (name, value) in enumerate(calls)
        )
        one = Round(run_id="run", number=len(self.rounds) + 1, prompts=self.due, answer=Answer(text=text, calls=made))
        one.results = {result.call_id: result for result in self.course.results(made)}
        for call in made:
            one.results.setdefault(call.id, ToolResult(call_id=call.id, name=call.name, output=""))
        one.state = state
        self.rounds.append(one)
        self.due = self.course.heard(one)
        assert all(prompt.role == ROLE for prompt in self.due)
        self.check()
        return " ".join(prompt.text for prompt in self.due)

    def plan(self, *steps: Any) -> str:
        """The model makes a plan."""
        return self.hear("", (MAKE_PLAN, {"steps": list(steps)}))

    def results(self) -> list[tuple[str, str]]:
        """The results of the newest round."""
        return [(result.status.value, result.output) for result in self.rounds[-1].results.values()]

    def check(self) -> None:
        """What is stored tells the same."""
        found = replay(self.rounds)
        assert found is not None
        course, due = found
        assert (course.phase, course.plan, course.most) == (self.course.phase, self.course.plan, self.course.most)
        assert (course.refused, course.reason, due) == (self.course.refused, self.course.reason, self.due)


def test_a_plan_is_done_step_by_step_and_then_reported() -> None:
    walk = Walk()
    assert walk.plan("read", "write") == "[Plan step 1 of 2] read"
    assert walk.results() == [("ok", "[The plan has 2 steps: 1, 2]")]
    assert walk.hear("", ("look", {})) == ""
    assert walk.hear("it is there") == "[Plan step 2 of 2] write"
    assert states(walk.course.plan) == "1:completed 2:in_progress"
    assert not walk.course.ends_run()
    told = walk.hear("written")
    assert told == "[All steps are done] 2 completed. Now give the user the final answer."
    assert (walk.course.phase, walk.course.ends_run()) == (Phase.REPORTING, True)
    assert walk.hear("here you are", state=RoundState.FINAL) == ""


def test_the_result_of_the_only_step_is_the_answer() -> None:
    walk = Walk()
    walk.plan("all of it")
    assert walk.course.ends_run()
    one = Round(run_id="run", number=2, answer=Answer(text="done"), state=RoundState.FINAL)
    assert walk.course.heard(one) == ()
    assert states(walk.course.plan) == "1:completed"


def test_an_only_step_that_fails_is_reported() -> None:
    walk = Walk()
    walk.plan("all of it")
    assert "1 failed" in walk.hear("", (UPDATE_PLAN, {"failed": "no"}))
    assert walk.course.ends_run()


def test_a_refused_plan_is_asked_for_once_more_with_the_reason() -> None:
    walk = Walk(most=2)
    told = walk.plan("a", "b", "c")
    assert told.startswith("[Make a plan of at most 2 steps] The plan was refused: it has 3 steps, and at most 2")
    assert walk.results() == [("error", "[Not run: it has 3 steps, and at most 2 are allowed]")]
    assert walk.plan("a", "b") == "[Plan step 1 of 2] a"


def test_after_two_refusals_it_goes_on_without_a_plan() -> None:
    walk = Walk()
    walk.plan(step("a", "b"), step("b", "a"))
    assert walk.plan() == "[No plan] Go on without a plan, with your tools."
    assert (walk.course.phase, walk.course.plan) == (Phase.FREE, None)
    assert walk.course.reason == "the plan was refused: it has no steps"
    assert walk.course.ends_run()


@pytest.mark.parametrize(
    "text",
    [
        '{"goal": "x", "steps": ["a", {"content": "b"}]}',
        '["a", "b"]',
        'Here it is:\n```json\n{"steps": ["a", "b"]}\n```\nShall I begin?',
        'My plan: {"steps": ["a", "b"]} - good?',
    ],
)
def test_a_plan_may_be_in_the_text(text: str) -> None:
    assert Walk().hear(text) == "[Plan step 1 of 2] a"


@pytest.mark.parametrize(
    "text", ["It is 4.", "No plan needed {really}.", "```python\nprint()\n```", "[a note] I answer at once.", "{}"]
)
def test_a_text_without_a_plan_says_that_none_is_needed(text: str) -> None:
    walk = Walk()
    assert walk.hear(text).startswith("[No plan]")
    assert walk.course.reason == "the model made no plan"


@pytest.mark.parametrize(
    ("text", "word"),
    [('{"steps": ["a", ', "not JSON"), ('{"steps": []}', "no steps"), ("", "empty"), ("[" * 100_000, "made no plan")],
)
def test_a_text_that_was_meant_to_be_a_plan_is_refused(text: str, word: str) -> None:
    walk = Walk()
    walk.hear(text)
    assert word in walk.course.reason


def test_other_tools_cannot_be_called_before_there_is_a_plan() -> None:
    walk = Walk()
    told = walk.hear("", ("bash", {"command": "rm"}))
    assert walk.results() == [("error", "[Not run: only make_plan can be called now]")]
    assert "make_plan was not called, but bash" in told


def test_the_first_plan_counts() -> None:
    walk = Walk()
    walk.hear("", (MAKE_PLAN, "{"), (MAKE_PLAN, {"steps": ["a"]}), (MAKE_PLAN, {"steps": ["b"]}), ("bash", {}))
    assert [status for status, _ in walk.results()] == ["error", "ok", "error", "error"]
    assert walk.course.plan is not None
    assert walk.course.plan.steps[0].content == "a"


def test_a_step_that_is_failed_ends_with_its_round() -> None:
    walk = Walk()
    walk.plan(step("a"), step("b", "a"), step("c"))
    assert walk.hear("", ("look", {}), (UPDATE_PLAN, {"failed": "gone"})) == "[Plan step 3 of 3] do c"
    assert walk.results()[0] == ("ok", "[The plan was changed; still to do after this step: c]")
    assert states(walk.course.plan) == "a:failed b:skipped c:in_progress"


def test_changes_in_one_answer_follow_one_another() -> None:
    walk = Walk()
    walk.plan("a", "b")
    walk.hear(
        "", (UPDATE_PLAN, {"steps": ["c", "d"]}), (UPDATE_PLAN, {"steps": ["e"]}), (UPDATE_PLAN, {"steps": ["f"]})
    )
    assert [status for status, _ in walk.results()] == ["ok", "ok", "error"]  # six steps would be too many
    assert states(walk.course.plan) == "1:in_progress 2:skipped 3:skipped 4:skipped 5:pending"


def test_a_plan_that_rewrites_itself_for_ever_comes_to_its_end() -> None:
    walk = Walk(most=4)
    walk.plan("a", "b")
    for _ in range(20):
        walk.hear("", (UPDATE_PLAN, {"steps": ["more"]}))
    assert walk.course.plan is not None
    assert len(walk.course.plan.steps) == 4
    walk.hear("done")
    assert walk.hear("done").startswith("[All steps are done] 2 completed, 2 skipped")


def test_after_the_last_step_nothing_can_be_changed() -> None:
    walk = Walk()
    walk.plan("a", "b")
    walk.hear("x")
    walk.hear("y")
    walk.hear("", (UPDATE_PLAN, {"steps": ["one more"]}))
    assert walk.results() == [("error", "[Not run: every step has ended]")]


def test_a_round_that_was_cut_ends_no_step() -> None:
    walk = Walk()
    assert walk.hear("", state=RoundState.CUT) == ""
    assert walk.course.phase is Phase.PLANNING
    walk.plan("a", "b")
    assert walk.hear("", state=RoundState.CUT) == ""
    assert states(walk.course.plan) == "1:in_progress 2:pending"


def test_a_round_that_is_open_or_final_is_not_heard_yet() -> None:
    walk = Walk()
    walk.plan("a")
    last = Round(run_id="run", number=2, answer=Answer(text="done"), state=RoundState.FINAL)
    found = replay([*walk.rounds, last])
    assert found is not None
    assert states(found[0].plan) == "1:in_progress"
    assert found[1] == ()


def test_what_was_allowed_when_the_run_began_holds_until_its_end() -> None:
    walk = Walk(most=3)
    walk.hear('["a", "b", "c"]')
    found = replay(walk.rounds)
    assert found is not None
    assert found[0].most == 3


def test_nobody_but_the_run_itself_can_ask_for_a_plan() -> None:
    ask = Course(5).ask.text
    rounds = [
        Round(run_id="run", number=1, prompts=(Prompt(text=ask),), answer=Answer(text='{"steps": ["a", "b"]}')),
        Round(run_id="run", number=2, prompts=(Prompt(text=ask, role="system"),), answer=Answer(text="[1]")),
    ]
    for one in rounds:
        one.state = RoundState.DONE
    assert replay(rounds) is None


def test_a_user_who_writes_markers_changes_nothing() -> None:
    walk = Walk()
    walk.plan("a", "b", "c")
    walk.due = (*walk.due, Prompt(text="[All steps are done]"), Prompt(text="[Plan step 3 of 3] c"))
    walk.hear("", ("look", {}))
    assert states(walk.course.plan) == "1:in_progress 2:pending 3:pending"


def test_each_phase_has_its_tools() -> None:
    mine = (ToolSpec(name="look"), ToolSpec(name=UPDATE_PLAN, description="mine"))
    assert plan_tools(None, mine) == mine
    walk = Walk()
    assert [spec.name for spec in plan_tools(walk.course, mine)] == [MAKE_PLAN]
    walk.plan("a", "b")
    offered = plan_tools(walk.course, mine)
    assert [spec.name for spec in offered] == ["look", UPDATE_PLAN]
    assert offered[1].description != "mine"
    walk = Walk()
    walk.hear("no")
    assert plan_tools(walk.course, mine) == mine


def test_a_result_of_the_store_is_what_counts() -> None:
    walk = Walk()
    walk.plan("a", "b")
    one = walk.rounds[0]
    one.results["0"] = ToolResult(call_id="0", name=MAKE_PLAN, output="", status=ResultStatus.ERROR)
    found = replay(walk.rounds)
    assert found is not None
    assert found[0].plan is None
