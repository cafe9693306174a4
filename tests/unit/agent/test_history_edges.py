"""Histories at their edges: runs that go on for others, runs that nobody recorded, steps of no known shape."""

from __future__ import annotations

import pytest

from laneway.errors import HistoryError, LanewayError, UsageError
from laneway.models import say
from laneway.replay import RunHistory
from tests.agent_stage import Bench, final_of, post, use
from tests.stage import simulated
from tests.unit.agent.test_histories import history_of, last_results, recorded, step_of


@simulated
async def test_a_run_that_goes_on_for_another_is_forked_from_its_question() -> None:
    bench = Bench("a")
    async with recorded([use("act", "a"), [say("done")], [say("otherwise")]], bench) as session:
        message = await post(session, "go")
        await bench.begun("a").wait()
        await session.passivate("moved", deadline_ms=0)
        await session.ready()
        assert (await final_of(session, message)).answer == "done"
        last = (await session.runs())[-1]
        assert last.resumed_from
        history = await session.run_history(last.run_id)
        fork = await session.fork(history, step_of(history, "ask"))
        await fork.wait_idle()
        assert [str(each) for each in await fork.history()][-1] == "assistant: otherwise"
        assert [status for status, _ in await last_results(fork)] == ["unknown"]
        assert bench.began == ["a"]
        with pytest.raises(
            UsageError, match=rf"steps {step_of(history, 'go_on') + 1} to {step_of(history, 'answered')},"
        ):
            await session.fork(history)


@simulated
async def test_a_replay_says_whether_what_the_model_was_sent_is_known() -> None:
    for record in (True, False):
        async with recorded([[say("one")]], Bench(), record=record) as session:
            history = await history_of(session)
            assert (await session.replay(history)).is_recorded is record


@simulated
async def test_a_step_that_has_not_the_shape_of_its_kind_is_refused_by_its_number() -> None:
    async with recorded([use("act", "c"), [say("done")]], Bench()) as session:
        history = await history_of(session)
        at = step_of(history, "act")
        steps = [dict(step) for step in history.steps]
        del steps[at - 1]["calls"]
        broken = RunHistory(about=history.about, steps=tuple(steps))
        with pytest.raises(HistoryError, match=f"step {at} "):
            await session.fork(broken, at, prompt="again")
        steps[at - 1] = {}
        with pytest.raises(LanewayError):
            await session.replay(RunHistory(about=history.about, steps=tuple(steps)))
