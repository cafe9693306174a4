"""A run in words: what it did, what it waited for, what it cost, why it ended."""

from __future__ import annotations

import pytest

from laneway.dialogue import Answer, ResultStatus, ToolCall, ToolResult, Usage
from laneway.errors import ModelError, UnknownRunError
from laneway.kernel.rounds import CallTimes, Round, RoundState, RoundWait
from laneway.kernel.run_words import state_words, tell_run
from laneway.models import ScriptedModel, fail, say
from tests.agent_stage import Bench, agent_of, session_of, use
from tests.stage import simulated


@simulated
async def test_a_run_is_told_from_its_prompt_to_its_end() -> None:
    model = ScriptedModel([use("act", "k"), [say("all is well")]], usage=Usage(input_tokens=1000, output_tokens=20))
    async with agent_of(model, Bench()) as agent:
        session = session_of(agent)
        result = await session.send("please look after it")
        words = await session.explain_run(result.run_id)
        with pytest.raises(UnknownRunError):
            await session.explain_run("none")
    lines = words.splitlines()
    assert lines[0] == f"Run {result.run_id} was asked: please look after it"
    assert "Round 2:" in lines
    assert 'act(key="k")' in words
    assert "it answered" in words
    assert "In all 2 rounds and 1 call, 2,000 tokens in and 40 out, at no known price." in lines
    assert lines[-1] == "It ended with an answer: all is well"


@simulated
async def test_a_run_that_failed_says_why() -> None:
    async with agent_of(ScriptedModel([[fail(ModelError("the key is wrong", model="m"))]])) as agent:
        session = session_of(agent)
        with pytest.raises(ModelError):
            await session.send("hello")
        (run,) = await session.runs()
        assert (await session.explain_run(run.run_id)).splitlines()[-1].startswith("It failed: ")


def test_calls_tell_how_they_ended_where_they_waited_and_who_made_them() -> None:
    answer = Answer(calls=(ToolCall(id="a", name="bash", arguments='{"command": "make"}'),), model="m")
    result = ToolResult(call_id="a", name="bash", output="no rule", status=ResultStatus.ERROR, exit_code=2)
    times = CallTimes(lane="execute", queued_ms=1_000, began_ms=4_000, ended_ms=9_000, worker="w1", attempt=2)
    waits = (RoundWait(kind="limit", reason="the quota is used up", began_ms=0, ended_ms=60_000),)
    one = Round(run_id="r", number=1, answer=answer, results={"a": result}, times={"a": times}, waits=waits)
    words = tell_run("r", "cancelled", "olga said stop", "", [one])
    assert "It waited 60.0 s: the quota is used up." in words
    assert (
        'bash(command="make") waited 3.0 s for lane execute, ran 5.0 s, on worker w1, in attempt 2: '
        "it failed with exit code 2: no rule." in words
    )
    assert words.endswith("It was cancelled: olga said stop.")
    assert tell_run("r", "running", "", "", []).startswith("Run r has not come to its first round yet.")


def test_the_state_of_a_run_is_said_as_people_say_it() -> None:
    words = [state_words(state) for state in ("succeeded", "failed", "cancelled", "interrupted", "thinking")]
    assert words == ["has succeeded", "has failed", "was cancelled", "was interrupted", "is thinking"]


def test_a_round_that_only_waited_is_told_as_one_whose_model_was_not_asked() -> None:
    waits = (RoundWait(kind="budget", reason="budget 'day' is used up", began_ms=1, ended_ms=60_001),)
    one = Round(run_id="r", number=1, state=RoundState.CUT, waits=waits, at_ms=60_001)
    words = tell_run("r", "interrupted", "its session has left memory", "", [one])
    assert "It waited 60.0 s: budget 'day' is used up." in words
    assert "The model was not asked." in words
    assert "nothing was spent" in words
    assert "answered" not in words
    one.asked_ms = 5
    assert "The model was asked, and did not come to its answer." in tell_run("r", "interrupted", "", "", [one])
