"""A run in words: what it did, what it waited for, what it cost, why it ended."""

from __future__ import annotations

import pytest

from laneway.dialogue import Usage
from laneway.errors import RunFailedError, UnknownRunError
from laneway.models import ScriptedModel, say
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
    async with agent_of(ScriptedModel([])) as agent:
        session = session_of(agent)
        with pytest.raises(RunFailedError):
            await session.send("hello")
        (run,) = await session.runs()
        assert (await session.explain_run(run.run_id)).splitlines()[-1].startswith("It failed: ")
