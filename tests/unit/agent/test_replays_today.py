"""A run that is made again with what a session has today, and two runs that differ only in timing."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from laneway import replay
from laneway.agent import AsyncSession
from laneway.errors import HistoryError, ReplayDivergedError, UsageError
from laneway.kernel.history_words import tell_steps
from laneway.models import ScriptedModel, call, say
from laneway.replay import RunHistory
from laneway.stores.memory import MemoryStore
from tests.agent_stage import Bench, opened, sending, use
from tests.stage import passing, simulated

SCRIPT: list[Any] = [use("act", "a"), use("look", "b", "c"), [say("done")]]


def recorded(script: list[Any], bench: Bench, **more: Any) -> Any:
    return opened(ScriptedModel(script), bench, session_store=MemoryStore(), record=True, **more)


async def history_of(session: AsyncSession) -> RunHistory:
    return await session.run_history((await session.send("go")).run_id)


CHANGES: dict[str, tuple[dict[str, Any], str, str]] = {
    "rounds": ({"max_tool_rounds": 1}, "ask", "now it fails: 1 rounds of tools without an answer, and max_tool_rounds"),
    "calls": ({"max_calls_per_answer": 1}, "answered", "2 calls in one answer, at most 1 are run"),
    "output": ({"max_output_tokens": 5}, "ask", "the setting max_output_tokens: recorded None, now 5"),
    "temperature": ({"temperature": 0.9}, "ask", "the setting temperature: recorded None, now 0.9"),
    "thinking": ({"thinking_budget": 2_000}, "ask", "the setting thinking_budget: recorded None, now 2000"),
    "planning": ({"planning": True}, "ask", "what is done next: recorded round 1, answer, now round 1, plan"),
}


@pytest.mark.parametrize(("more", "op", "told"), CHANGES.values(), ids=CHANGES.keys())
@simulated
async def test_a_setting_that_would_change_a_run_is_named(more: dict[str, Any], op: str, told: str) -> None:
    async with recorded(SCRIPT, Bench()) as session:
        history = await history_of(session)
        await session.replay(history)
    async with recorded([], Bench(), **more) as other:
        with pytest.raises(ReplayDivergedError) as error:
            await other.replay(history)
    assert told in str(error.value)
    assert vars(error.value)["op"] == op
    assert replay.dump(replay.run(history).history) == replay.dump(history)  # which takes them from the file


@simulated
async def test_a_limit_that_is_not_reached_changes_nothing() -> None:
    async with recorded(SCRIPT, Bench()) as session:
        history = await history_of(session)
    async with recorded([], Bench(), max_tool_rounds=3, max_calls_per_answer=2) as other:
        again = await other.replay(history)
    assert replay.dump(again.history) == replay.dump(history)


@simulated
async def test_a_run_that_a_limit_has_ended_would_go_on_with_a_higher_one() -> None:
    async with recorded(SCRIPT, Bench(), max_tool_rounds=1) as session:
        task = sending(session, "go")
        with pytest.raises(Exception, match="max_tool_rounds"):
            await task
        (found,) = await session.runs()
        history = await session.run_history(found.run_id)
    async with recorded([], Bench(), max_tool_rounds=9) as other:
        with pytest.raises(ReplayDivergedError, match="it goes on: max_tool_rounds is 9"):
            await other.replay(history)


@simulated
async def test_a_plan_that_is_not_wanted_any_more_is_named() -> None:
    async with recorded([[say("no plan")], [say("done")]], Bench(), planning=True) as session:
        history = await history_of(session)
        await session.replay(history)
    async with recorded([], Bench()) as other:
        with pytest.raises(ReplayDivergedError) as error:
            await other.replay(history)
    assert vars(error.value)["op"] == "plan"


@simulated
async def test_another_order_of_the_tools_is_named() -> None:
    async with recorded(SCRIPT, Bench()) as session:
        history = await history_of(session)
    bench = Bench()
    bench.tools.reverse()
    async with recorded([], bench) as other:
        with pytest.raises(ReplayDivergedError, match="the order of the tools"):
            await other.replay(history)


@simulated
async def test_which_of_two_calls_ended_first_is_no_difference() -> None:
    histories = []
    for order in (("b", "c"), ("c", "b")):
        bench = Bench("b", "c")
        async with recorded(SCRIPT, bench, queue=True) as session:
            task = sending(session, "go")
            for key in order:
                await bench.begun(key).wait()
            for key in order:
                bench.let_go(key)
                while key not in bench.ended:
                    await passing()
                await passing()
            histories.append(await session.run_history((await task).run_id))
    results = [[step["call"] for step in each.steps if step["op"] == "result"] for each in histories]
    assert results == [["a", "b", "c"], ["a", "c", "b"]]
    assert replay.diff(*histories) is None
    changed = [{**step, "output": "other"} if step.get("call") == "b" else step for step in histories[1].steps]
    found = replay.diff(histories[0], histories[1].with_steps(changed))
    assert found is not None
    assert (found.recorded, found.now) == ("result of b", "other")


ODD: list[dict[str, Any]] = [
    {"op": "answered", "n": 1, "answer": {"calls": [{}]}, "t": 0},
    {"op": "answered", "n": 1, "answer": {"calls": [[]]}, "t": 0},
    {"op": "answered", "n": 1, "answer": {"calls": 5}, "t": 0},
    {"op": "ask"},
    {"op": "ask", "n": 1, "purpose": "answer", "tools": 5, "new": 3, "more": 7, "t": 0},
    {"op": "result"},
    {"op": "act"},
    {"op": "act", "calls": [[]]},
    {"op": "round", "round": 5},
    {"op": "cut", "seqs": [[]], "results": [], "forget": False, "t": 0},
]


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
@simulated
async def test_a_step_of_another_shape_is_refused_and_told_by_its_name(odd: dict[str, Any]) -> None:
    async with recorded(SCRIPT, Bench()) as session:
        history = await history_of(session)
    for at in (6, 12, len(history.steps) - 1):
        steps = [*history.steps[:at], odd, *history.steps[at + 1 :]]
        strange = history.with_steps(steps)
        with contextlib.suppress(HistoryError, ReplayDivergedError):  # and nothing else
            replay.run(strange)
        with contextlib.suppress(HistoryError):
            replay.diff(history, strange)
        assert len(list(tell_steps(steps))) == len(steps)


@simulated
async def test_what_a_fork_is_told_is_found_after_the_end_of_a_call_that_cannot_be_made() -> None:
    script = [[*use("act", "a"), *use("nothing", "b")], [say("done")], [say("otherwise")]]
    async with recorded(script, Bench()) as session:
        history = await history_of(session)
        step = next(at for at, each in enumerate(history.steps, 1) if each["op"] == "act")
        assert await told_by_fork(session, history, step, "Only half") == "Only half"


@simulated
async def test_a_fork_is_not_told_what_reminds_it_of_its_plan() -> None:
    plan = [call("make_plan", goal="", steps=[{"content": "look"}, {"content": "tell"}])]
    script = [plan, use("act", "a"), *([[say("done")]] * 6)]
    async with recorded(script, Bench(), planning=True) as session:
        history = await history_of(session)
        step = next(at for at, each in enumerate(history.steps, 1) if each["op"] == "close") + 1
        assert await told_by_fork(session, history, step, "") == ""
        assert await told_by_fork(session, history, step, "Only half") == "Only half"


async def told_by_fork(session: AsyncSession, history: RunHistory, step: int, prompt: str) -> str:
    fork = await session.fork(history, step, prompt=prompt)
    await fork.wait_idle()
    found = replay.diff(history, await fork.run_history((await fork.runs())[0].run_id))
    assert found is not None
    assert found.fork_step == step
    return found.told


@simulated
async def test_a_history_is_made_again_and_compared_by_the_path_of_its_file(tmp_path: Path) -> None:
    async with recorded(SCRIPT, Bench()) as session:
        history = await history_of(session)
    file = tmp_path / "run.jsonl"
    replay.save(history, file)
    for source in (file, str(file)):
        assert replay.run(source).text == "done"
        assert replay.diff(source, history) is None
    for wrong in (None, 5, b"run.jsonl", ["run.jsonl"]):
        with pytest.raises(UsageError, match="neither the history of a run nor the path of one"):
            replay.run(wrong)  # type: ignore[arg-type]
    with pytest.raises(HistoryError, match="cannot be read"):
        replay.run(str(tmp_path / "none.jsonl"))
