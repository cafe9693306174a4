"""Odd times to wait, from models and from workers: each has a bound, none stops a session, and none is believed."""

from __future__ import annotations

import json
import logging
import math
from typing import Any

import pytest

from laneway.agent.loop import LIMIT_MAX_MS, LIMIT_ODD_MS
from laneway.errors import ModelLimitedError, UsageError
from laneway.external import ExternalTaskResult
from laneway.models import ScriptedModel, fail, say
from laneway.transports import LocalTransport
from laneway.worker import Worker
from tests.agent_stage import Watch, opened, results, sending, session_of, use
from tests.stage import now_ms, passing, simulated
from tests.unit.agent.test_externals import desk, outside, pending

ODD: list[Any] = [-5, float("-inf"), float("nan"), float("inf"), 1e300, 10**30, "5", "soon", "", None, True, [5]]


def limited(after: Any) -> list[Any]:
    """A model that takes no calls for some time."""
    return [fail(ModelLimitedError("slow down", model="m", retry_after_ms=after))]


# ---- models ----


@pytest.mark.parametrize(
    ("after", "waited"),
    [
        (-5, 1),
        (-(10**30), 1),
        (0, 1),
        (LIMIT_MAX_MS, LIMIT_MAX_MS),
        (LIMIT_MAX_MS + 1, LIMIT_MAX_MS),
        (10**30, LIMIT_MAX_MS),
        (float("nan"), LIMIT_ODD_MS),
        (float("inf"), LIMIT_ODD_MS),
        (float("-inf"), LIMIT_ODD_MS),
        (2.5, LIMIT_ODD_MS),
        ("5", LIMIT_ODD_MS),
        ("soon", LIMIT_ODD_MS),
        (None, LIMIT_ODD_MS),
        (True, LIMIT_ODD_MS),
        ([5], LIMIT_ODD_MS),
    ],
    ids=str,
)
@simulated
async def test_a_run_whose_model_says_an_odd_time_waits_for_a_bounded_one_and_goes_on(after: Any, waited: int) -> None:
    told: list[Any] = []
    async with opened(ScriptedModel([limited(after), [say("well")]])) as session:
        session.register_hook("h", "on_rate_limit", handler=lambda event: told.append(event["payload"]))
        watch = Watch(session.subscribe())
        began = now_ms()
        assert (await session.send("go")).text == "well"
        assert waited <= now_ms() - began <= waited + 10
        [waiting] = watch.of("run_waiting")
        assert isinstance(waiting.until_ms, int)
        assert json.dumps(waiting.to_dict(), allow_nan=False)
        assert [each["retry_after_ms"] for each in told] == [waited]


@pytest.mark.parametrize(("after", "warns"), [(5, False), (-5, False), (10**30, True), ("5", True), (None, True)])
def test_a_time_that_is_none_is_in_the_log(after: Any, warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    @simulated
    async def main() -> None:
        async with opened(ScriptedModel([limited(after), [say("well")]])) as session:
            await session.send("go")

    with caplog.at_level(logging.WARNING, "laneway"):
        main()
    assert ("which is no time to wait" in caplog.text) is warns


@simulated
async def test_an_odd_time_closes_the_account_for_others_no_longer_than_for_the_run_that_heard_it() -> None:
    model = ScriptedModel([limited("soon"), [say("one")], [say("two")]])
    async with opened(model) as session:
        first = sending(session, "go")
        await passing(10)
        other = session_of(session._agent)  # noqa: SLF001 - a neighbour of the same agent
        second = sending(other, "go")
        await passing(LIMIT_ODD_MS - 100)
        assert not first.done()
        assert not second.done()
        assert "is closed for" in other.explain()
        await passing(200)
        assert {(await first).text, (await second).text} == {"one", "two"}


@simulated
async def test_a_run_that_waits_for_an_absurd_time_can_be_cancelled() -> None:
    async with opened(ScriptedModel([limited(10**30), [say("well")]])) as session:
        sent = sending(session, "go")
        await passing(10)
        assert await session.cancel()
        await passing(10)
        assert sent.done()
        assert now_ms() < 1_000


# ---- workers ----


@pytest.mark.parametrize("after", ODD, ids=repr)
@simulated
async def test_a_time_to_wait_is_no_word_of_a_result_and_the_task_goes_on(after: Any) -> None:
    """A worker that cannot do it now gives it back; there is nothing else to wait for."""
    async with outside(use("act", "a")) as (session, model, _):
        sent = sending(session, "go")
        [task] = await pending(session)
        said = {"success": False, "error": "busy", "retry_after_ms": after}
        with pytest.raises(UsageError, match=r"a result has success, result and error, not \['retry_after_ms'\]"):
            await session.complete_external_task(task["task_id"], said)
        assert await session.complete_external_task(task["task_id"], success=False, error="busy")
        await sent
        assert [each.output for each in results(model.requests[-1])] == ["busy"]
        assert now_ms() < 1_000, "nobody has waited"


@pytest.mark.parametrize("after", ODD, ids=repr)
@simulated
async def test_a_time_inside_of_a_result_is_shown_to_the_model_and_nobody_waits(after: Any) -> None:
    async with outside(use("act", "a")) as (session, model, _):
        sent = sending(session, "go")
        [task] = await pending(session)
        said = {"success": False, "result": {"retry_after_ms": after}, "error": "busy"}
        if isinstance(after, float) and not math.isfinite(after):
            with pytest.raises(UsageError, match="result must be JSON"):
                await session.complete_external_task(task["task_id"], said)
            said["result"] = {"retry_after_ms": str(after)}
        assert await session.complete_external_task(task["task_id"], said)
        await sent
        [told] = results(model.requests[-1])
        assert told.status.value == "error"
        assert told.output.endswith("busy")
        assert "retry_after_ms" in told.output
        assert now_ms() < 1_000


@pytest.mark.parametrize("after", ODD, ids=repr)
@simulated
async def test_a_handler_of_a_worker_that_raises_an_odd_time_is_one_failure(after: Any) -> None:
    calls: list[str] = []

    async def busy(task: Any) -> str:
        calls.append(task.task_id)
        raise ModelLimitedError("slow down", model="m", retry_after_ms=after)

    async with outside(use("act", "a")) as (session, model, _):
        async with Worker(LocalTransport(desk(session)), handlers={"act": busy}, name="w"):
            await session.send("go")
        [told] = results(model.requests[-1])
        assert (told.status.value, told.output) == ("error", "ModelLimitedError: slow down")
        assert len(calls) == 1
        assert now_ms() < 1_000
        assert session.host.closed_model("m") is None, "it is not a model of ours"


@pytest.mark.parametrize("after", ODD, ids=repr)
@simulated
async def test_a_handler_of_a_worker_that_answers_with_an_odd_time_is_one_failure(after: Any) -> None:
    said = {"success": False, "error": "busy", "retry_after_ms": after}
    async with outside(use("act", "a")) as (session, model, _):
        async with Worker(LocalTransport(desk(session)), handlers={"act": lambda task: said}, name="w"):
            await session.send("go")
        [told] = results(model.requests[-1])
        assert told.status.value == "error"
        assert "a result has success, result and error" in told.output
        assert now_ms() < 1_000
        end = await desk(session).outcome(next(iter(desk(session).board.finished)))
        assert isinstance(end.result, ExternalTaskResult)
        assert not end.result.success
