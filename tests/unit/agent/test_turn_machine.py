"""The turn machine: what a run does next, step by step, without a loop, a model or a tool."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.dialogue import Answer, Prompt, Results, ResultStatus, ToolCall, ToolResult
from laneway.kernel.rounds import Round, RoundState
from laneway.kernel.texts import SKIPPED
from laneway.kernel.turn_machine import Act, AskModel, Close, Fail, Finish, Limits, TurnMachine


def machine(**options: int | str) -> TurnMachine:
    """A machine in which calls whose name begins with `r` may run beside each other."""
    limits = Limits(max_tool_rounds=int(options.pop("rounds", 5)), max_calls_per_answer=int(options.pop("calls", 8)))
    more: dict[str, Any] = {name: value for name, value in options.items() if isinstance(value, int)}
    made = TurnMachine(
        "run",
        limits=limits,
        may_run_beside=lambda call: call.name.startswith("r"),
        resumed_from=str(options.get("resumed_from", "")),
        **more,
    )
    made.say([Prompt(text="go")], ["m1"])
    return made


def asks(*names: str) -> Answer:
    """An answer with one call for each name; the ids are the names."""
    return Answer(calls=tuple(ToolCall(id=name, name=name) for name in names))


def done(machine: TurnMachine, *ids: str) -> None:
    """These calls have ended well."""
    for name in ids:
        machine.result(ToolResult(call_id=name, name=name, output=f"of {name}"))


def batch(machine: TurnMachine) -> list[str]:
    """The ids of the calls that are to be made now."""
    step = machine.next()
    assert isinstance(step, Act), step
    return [call.id for call in step.calls]


def test_it_begins_with_the_model_and_ends_with_an_answer_without_calls() -> None:
    run = machine()
    assert run.next() == AskModel(1)
    one = run.answered(Answer(text="hello"))
    assert run.next() == Finish(one)
    assert (one.state, one.number, one.messages) == (RoundState.FINAL, 1, ("m1",))
    assert run.said() == [Prompt(text="go"), one.answer]


def test_an_empty_answer_is_the_end_too() -> None:
    run = machine()
    one = run.answered(Answer())
    assert run.next() == Finish(one)
    assert run.said() == [Prompt(text="go")]  # nothing was said: nothing is told to the model later


@pytest.mark.parametrize(
    ("names", "batches"),
    [
        (["r1", "r2", "r3"], [["r1", "r2", "r3"]]),
        (["w1", "w2"], [["w1"], ["w2"]]),
        (["r1", "r2", "w1", "r3", "r4"], [["r1", "r2"], ["w1"], ["r3", "r4"]]),
        (["w1", "r1", "w2"], [["w1"], ["r1"], ["w2"]]),
    ],
)
def test_neighbours_that_may_run_together_and_everything_else_is_a_barrier(
    names: list[str], batches: list[list[str]]
) -> None:
    run = machine()
    run.answered(asks(*names))
    seen = []
    while isinstance(step := run.next(), Act):
        seen.append([call.id for call in step.calls])
        done(run, *seen[-1])
    assert seen == batches
    assert isinstance(run.next(), Close)


def test_a_batch_that_is_partly_done_offers_only_the_rest() -> None:
    run = machine()
    run.answered(asks("r1", "r2", "r3"))
    done(run, "r2")
    assert batch(run) == ["r1", "r3"]


def test_results_go_back_in_the_order_of_the_calls_whatever_the_order_of_their_ends() -> None:
    run = machine()
    one = run.answered(asks("r1", "r2", "r3"))
    done(run, "r3", "r1", "r2")
    step = run.next()
    assert step == Close(one)
    run.close(one)
    assert run.next() == AskModel(2)
    told = run.said()[-1]
    assert isinstance(told, Results)
    assert [each.call_id for each in told.results] == ["r1", "r2", "r3"]


def test_the_first_result_of_a_call_counts() -> None:
    run = machine()
    one = run.answered(asks("w1"))
    done(run, "w1")
    run.result(ToolResult(call_id="w1", name="w1", output="again", status=ResultStatus.CANCELLED))
    assert one.results["w1"].output == "of w1"


def test_a_result_without_a_call_and_an_answer_into_an_open_round_are_refused() -> None:
    run = machine()
    with pytest.raises(AssertionError, match="no round"):
        done(run, "w1")
    one = run.answered(asks("w1"))
    with pytest.raises(AssertionError, match="without a call"):
        done(run, "w2")
    with pytest.raises(AssertionError, match="a round is open"):
        run.answered(Answer(text="too early"))
    with pytest.raises(AssertionError, match="no result"):
        run.close(one)


def test_what_is_said_meanwhile_skips_the_calls_that_have_not_ended_and_is_heard_next() -> None:
    run = machine()
    one = run.answered(asks("w1", "w2", "w3"))
    done(run, "w1")
    skipped = run.say([Prompt(text="rather")], ["m2"])
    assert [call.id for call in skipped] == ["w2", "w3"]
    assert [one.results[name].output for name in ("w2", "w3")] == [SKIPPED, SKIPPED]
    assert run.next() == Close(one)
    run.close(one)
    assert run.next() == AskModel(2)
    assert run.said()[-1] == Prompt(text="rather")
    two = run.answered(Answer(text="yes"))
    assert (two.prompts, two.messages) == ((Prompt(text="rather"),), ("m2",))


@pytest.mark.parametrize(
    ("ids", "told_apart"),
    [
        (("", ""), ("call-1", "call-2")),
        (("a", "a", "a"), ("a", "a+", "a++")),
        (("call-2", ""), ("call-2", "call-2+")),
        (("", "call-1"), ("call-1", "call-1+")),
        (("a+", "a", "a"), ("a+", "a", "a++")),
    ],
)
def test_calls_with_no_id_or_the_same_one_are_told_apart(ids: tuple[str, ...], told_apart: tuple[str, ...]) -> None:
    run = machine()
    one = run.answered(Answer(calls=tuple(ToolCall(id=name, name="w") for name in ids)))
    assert tuple(call.id for call in one.answer.calls) == told_apart
    done(run, *told_apart)
    assert one.is_whole
    assert run.next() == Close(one)


def test_calls_beyond_the_limit_are_refused_at_once_and_the_others_run() -> None:
    run = machine(calls=2)
    one = run.answered(asks("r1", "r2", "r3", "r4"))
    assert batch(run) == ["r1", "r2"]
    assert [one.results[name].status for name in ("r3", "r4")] == [ResultStatus.ERROR] * 2
    assert "4 calls in one answer, at most 2" in one.results["r3"].output


def test_it_fails_when_the_rounds_of_tools_are_used_up() -> None:
    run = machine(rounds=2)
    for name in ("w1", "w2"):
        one = run.answered(asks(name))
        done(run, name)
        run.close(one)
    step = run.next()
    assert isinstance(step, Fail)
    assert "2 rounds of tools" in step.reason
    assert run.next() == step


def test_the_rounds_of_the_run_that_it_goes_on_for_count() -> None:
    run = machine(rounds=3, first=3, resumed_from="before")
    assert run.next() == AskModel(3)
    one = run.answered(asks("w1"))
    done(run, "w1")
    run.close(one)
    assert (one.number, one.resumed_from) == (3, "before")
    assert isinstance(run.next(), Fail)


def test_only_the_first_round_names_the_run_that_it_goes_on_for() -> None:
    run = machine(first=2, resumed_from="before")
    one = run.answered(asks("w1"))
    done(run, "w1")
    run.close(one)
    assert run.answered(Answer(text="x")).resumed_from == ""


# ---- ends before the time ----


def test_a_cut_gives_every_open_call_its_result_and_keeps_what_ended() -> None:
    run = machine()
    one = run.answered(asks("w1", "w2"))
    done(run, "w1")
    ends = [
        ToolResult(call_id=call.id, name=call.name, output="cut", status=ResultStatus.CANCELLED)
        for call in run.open_calls()
    ]
    assert run.cut(ends) == [one]
    assert (one.state, one.results["w1"].output, one.results["w2"].output) == (RoundState.CUT, "of w1", "cut")


def test_a_cut_before_the_first_answer_keeps_what_was_said() -> None:
    run = machine()
    (one,) = run.cut([])
    assert (one.state, one.prompts, one.messages) == (RoundState.CUT, (Prompt(text="go"),), ("m1",))
    assert one.utterances() == (Prompt(text="go"),)


def test_a_cut_after_a_steer_keeps_both_the_round_and_what_was_said() -> None:
    run = machine()
    first = run.answered(asks("w1", "w2"))
    done(run, "w1")
    run.say([Prompt(text="rather")], ["m2"])
    changed = run.cut([])
    assert changed == run.rounds  # both have to be written down: nobody has closed the first
    assert [one.state for one in run.rounds] == [RoundState.DONE, RoundState.CUT]
    assert first.is_whole
    assert changed[-1].prompts == (Prompt(text="rather"),)


def test_a_cut_of_a_run_whose_answer_is_written_changes_nothing() -> None:
    run = machine()
    one = run.answered(Answer(text="hello"))
    one.seq = 7
    assert run.cut([]) == []
    assert one.state is RoundState.FINAL


def test_an_answer_that_was_cut_before_anybody_heard_it_is_no_part_of_the_conversation() -> None:
    run = machine()
    one = run.answered(Answer(text="hello"))
    assert run.cut([]) == [one]
    assert (one.state, one.utterances()) == (RoundState.CUT, (Prompt(text="go"),))


def test_a_cut_run_that_is_to_be_forgotten_is_forgotten_from_its_first_round_on() -> None:
    run = machine()
    one = run.answered(asks("w1"))
    done(run, "w1")
    run.close(one)
    run.answered(asks("w2"))
    run.cut([ToolResult(call_id="w2", name="w2", output="cut")], forget=True)
    assert [each.state for each in run.rounds] == [RoundState.FORGOTTEN] * 2


# ---- going on ----


def test_an_open_round_that_is_taken_over_goes_on_with_what_is_open() -> None:
    old = Round(run_id="run", number=2, answer=asks("w1", "r1", "r2"), prompts=(Prompt(text="go"),))
    old.results["w1"] = ToolResult(call_id="w1", name="w1", output="known")
    run = TurnMachine(
        "run", limits=Limits(), may_run_beside=lambda call: call.name.startswith("r"), resumed_from="before", first=2
    )
    run.take_over(old)
    assert batch(run) == ["r1", "r2"]
    done(run, "r1", "r2")
    assert run.next() == Close(old)
    run.close(old)
    assert run.next() == AskModel(3)


def test_rounds_that_a_summary_tells_are_left_out() -> None:
    run = machine()
    one = run.answered(asks("w1"))
    done(run, "w1")
    run.close(one)
    one.seq = 7
    two = run.answered(asks("w2"))
    two.seq = 9
    run.leave_out(7)
    assert run.said()[0] == two.answer
