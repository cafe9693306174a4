"""Runs that are written down, made again, compared, and gone on with from a step."""

from __future__ import annotations

import asyncio
import json
import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from laneway import replay
from laneway.agent import AsyncAgent, AsyncSession
from laneway.agent.forking import forked_from
from laneway.dialogue import Prompt, Results, Usage
from laneway.errors import (
    HistoryError,
    LanewayError,
    ModelUnavailableError,
    ReplayDivergedError,
    StoreUnavailableError,
    UnknownRunError,
    UsageError,
)
from laneway.models import ScriptedModel, fail, say
from laneway.replay import RunHistory
from laneway.rows import Batch, BatchResult
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.system import FixedClock, HostEnv, SequentialIdGenerator
from laneway.testing.faults import FaultyStore
from tests.agent_stage import ALLOW, Bench, Held, final_of, opened, post, sending, use
from tests.approval_stage import asks
from tests.stage import passing, simulated


def ops(history: RunHistory) -> list[str]:
    return [step["op"] for step in history.steps if step["op"] != "event"]


def step_of(history: RunHistory, op: str, number: int = 1) -> int:
    """The number of the step that is the n-th of its kind."""
    return [at for at, step in enumerate(history.steps, 1) if step["op"] == op][number - 1]


def recorded(script: list[Any], bench: Bench | list[Any], **more: Any) -> Any:
    options = {"session_store": MemoryStore(), "session_id": "s", "record": True, "system": "Be brief.", **more}
    return opened(ScriptedModel(script), bench, **options)


async def history_of(session: AsyncSession, text: str = "go") -> RunHistory:
    return await session.run_history((await session.send(text)).run_id)


@simulated
async def test_a_run_replays_to_the_same_bytes() -> None:
    async with recorded([use("look", "a", "b"), use("act", "c"), [say("done")]], Bench(), queue=True) as session:
        history = await history_of(session)
        text = replay.dump(history)
        again = replay.run(replay.loads(text))
        assert replay.dump(again.history) == text
        assert again.text == "done"
        assert (await session.replay(history)).text == "done"
        acts = [step["calls"] for step in history.steps if step["op"] == "act"]
        assert acts == [["a", "b"], ["c"]]


@simulated
async def test_what_was_said_before_is_in_the_history() -> None:
    async with recorded([[say("one")], [say("two")]], Bench()) as session:
        await session.send("first")
        history = await history_of(session, "second")
        (base,) = [step for step in history.steps if step["op"] == "base"]
        assert base["said"] == [{"prompt": "first"}, {"answer": {"text": "one", **_told(base)}}]
        assert replay.run(history).text == "two"


def _told(base: dict[str, Any]) -> dict[str, Any]:
    answer = base["said"][1]["answer"]
    return {name: answer[name] for name in ("model", "usage")}


@simulated
async def test_a_long_text_is_kept_once_and_comes_back_whole() -> None:
    long = "x" * 20_000
    async with recorded([[say(long)]], Bench()) as session:
        history = await history_of(session)
        assert replay.run(history).text == long


@simulated
async def test_faults_of_the_model_are_steps() -> None:
    async with recorded([[fail(ModelUnavailableError("away"))], [say("done")]], Bench()) as session:
        history = await history_of(session)
        assert [each for each in ops(history) if each in ("ask", "failed")] == ["ask", "failed", "ask"]
        assert replay.run(history).text == "done"


@simulated
async def test_another_system_prompt_is_named() -> None:
    store = MemoryStore()
    async with recorded([[say("done")]], Bench(), session_store=store) as session:
        history = await history_of(session)
    async with recorded([], Bench(), session_id="t", system="Be long.") as other:
        with pytest.raises(ReplayDivergedError, match="the system prompt is another one") as error:
            await other.replay(history)
    assert vars(error.value)["step"] == step_of(history, "ask")


@simulated
async def test_another_tool_is_named() -> None:
    async with recorded([[say("done")]], Bench()) as session:
        history = await history_of(session)
    bench = Bench()
    bench.tools = [tool for tool in bench.tools if tool.spec.name != "nail"]
    async with recorded([], bench, session_id="t") as other:
        with pytest.raises(ReplayDivergedError, match="tool 'nail': recorded was there, now is not there"):
            await other.replay(history)


@simulated
async def test_a_step_that_was_changed_is_the_first_that_differs() -> None:
    async with recorded([use("act", "c"), [say("done")]], Bench()) as session:
        history = await history_of(session)
    at = step_of(history, "result")
    steps = [dict(step) for step in history.steps]
    steps[at - 1]["output"] = "something else"
    changed = history.with_steps(steps)
    with pytest.raises(ReplayDivergedError) as error:
        replay.run(changed)
    assert vars(error.value)["step"] == step_of(history, "close")
    found = replay.diff(history, changed)
    assert found is not None
    assert (found.step, found.recorded, found.now) == (at, "result of c", "something else")
    assert replay.diff(history, history) is None


@simulated
async def test_of_two_histories_one_may_go_on() -> None:
    async with recorded([use("act", "c"), [say("done")]], Bench()) as session:
        history = await history_of(session)
    shorter = history.with_steps(history.steps[:-1])
    found = replay.diff(history, shorter)
    assert found is not None
    assert (found.op, found.now) == ("finish", None)
    assert (found.step, found.other_step) == (len(history.steps), len(shorter.steps) + 1)
    back = replay.diff(shorter, history)
    assert back is not None
    assert (back.recorded, back.step, back.other_step) == (None, len(shorter.steps) + 1, len(history.steps))


def renamed(history: RunHistory, old: str, new: str) -> RunHistory:
    """A history in which a model has made up another id."""
    return history.with_steps(json.loads(json.dumps(list(history.steps)).replace(f'"{old}"', f'"{new}"')))


@simulated
async def test_ids_that_a_model_makes_up_do_not_count() -> None:
    async with recorded([use("act", "c"), [say("done")]], Bench()) as session:
        history = await history_of(session)
    (call,) = history.steps[step_of(history, "answered") - 1]["calls"]
    other = renamed(history, call, "toolu_01")
    assert replay.diff(history, other) is None
    at = step_of(history, "result")
    steps = [dict(step) for step in other.steps]
    steps[at - 1]["output"] = "something else"
    found = replay.diff(history, other.with_steps(steps))
    assert found is not None
    assert (found.step, found.now) == (at, "something else")


@simulated
async def test_of_runs_that_were_not_recorded_what_was_said_is_compared() -> None:
    found: list[RunHistory] = []
    for text in ("done", "done", "otherwise"):
        async with recorded([use("act", "c"), [say(text)]], Bench(), record=False) as session:
            history = await history_of(session)
            found.append(renamed(history, history.run_id, f"turn-{len(found)}"))
    assert replay.diff(found[0], found[1]) is None
    parting = replay.diff(found[0], found[2])
    assert parting is not None
    assert (parting.op, parting.step) == ("round", 4)


@simulated
async def test_a_run_that_was_not_recorded_is_told_by_its_rounds() -> None:
    async with recorded([use("act", "c"), [say("done")]], Bench(), record=False) as session:
        history = await history_of(session)
        assert not history.is_recorded
        assert ops(history) == ["machine", "base", "round", "round"]
        assert replay.run(history).text == "done"


@simulated
async def test_a_fork_goes_on_live_and_does_nothing_again() -> None:
    bench = Bench()
    script = [use("act", "c"), [say("done")], use("act", "d"), [say("otherwise")]]
    async with recorded(script, bench) as session:
        history = await history_of(session)
        before = await session.history()
        fork = await session.fork(history.run_id, step_of(history, "ask", 2))
        await fork.wait_idle()
        assert bench.ended == ["c", "d"]
        assert [str(each) for each in await fork.history()][-1] == "assistant: otherwise"
        assert await session.history() == before
        assert (await forked_from(fork)).from_run == history.run_id
        with pytest.raises(UnknownRunError, match="is no fork"):
            await forked_from(session)


@simulated
async def test_a_fork_within_a_round_makes_what_is_open() -> None:
    bench = Bench()
    script = [[*use("act", "a"), *use("put", "b")], [say("done")], [say("otherwise")]]
    async with recorded(script, bench) as session:
        history = await history_of(session)
        fork = await session.fork(history.run_id, step_of(history, "act", 2))
        await fork.wait_idle()
        assert bench.ended == ["a", "b", "b"]


@simulated
@pytest.mark.parametrize("more", [1, 2, 3])
async def test_a_write_that_had_begun_before_the_step_keeps_its_result_in_the_fork(more: int) -> None:
    bench = Bench()
    script = [[*use("act", "a"), *use("act", "b")], [say("done")], [say("otherwise")]]
    async with recorded(script, bench) as session:
        history = await history_of(session)
        step = step_of(history, "act") + more
        assert step <= step_of(history, "result")
        fork = await session.fork(history, step)
        await fork.wait_idle()
        assert bench.began == ["a", "b", "b"], "the second had not begun"
        (results,) = (each for each in await fork.history() if isinstance(each, Results))
        assert [each.output for each in results.results] == ["result of a", "result of b"]


@simulated
@pytest.mark.parametrize("tool", ["look", "put"])
async def test_what_reads_or_is_idempotent_is_made_again_by_a_fork_within_it(tool: str) -> None:
    bench = Bench()
    async with recorded([use(tool, "a"), [say("done")], [say("otherwise")]], bench) as session:
        history = await history_of(session)
        fork = await session.fork(history, step_of(history, "result"))
        await fork.wait_idle()
        assert bench.began == ["a", "a"]


async def last_results(session: AsyncSession) -> list[tuple[str, str]]:
    """What became of the calls of the newest round with calls."""
    found = [each for each in await session.history() if isinstance(each, Results)]
    return [(each.status.value, each.output) for each in found[-1].results]


@simulated
@pytest.mark.parametrize("record", [True, False])
async def test_a_fork_at_the_end_of_a_run_at_work_does_not_make_its_write_beside_it(record: bool) -> None:
    bench = Bench("a")
    script = [use("act", "a"), [say("otherwise")], [say("done")]]
    async with recorded(script, bench, record=record) as session:
        run = sending(session, "go")
        await bench.begun("a").wait()
        fork = await session.fork((await session.runs())[-1].run_id, prompt="what now?")
        await fork.wait_idle()
        assert bench.began == ["a"]
        ((status, output),) = await last_results(fork)
        assert status == "unknown"
        assert "had begun before the fork" in output
        bench.let_go("a")
        assert (await run).text == "done"


@simulated
@pytest.mark.parametrize("record", [True, False])
async def test_a_fork_of_a_run_whose_process_died_does_not_make_its_write_again(record: bool) -> None:
    disk, bench = MemoryDisk(), Bench("a")
    store = Dying(disk)
    async with recorded([use("act", "a")], bench, session_store=store, record=record) as session:
        sending(session, "go")
        await bench.begun("a").wait()
        store.is_dead = True
        run_id = (await session.runs())[-1].run_id
    told = [say("later")]
    options: dict[str, Any] = {"session_store": MemoryStore(disk), "record": record}
    async with recorded([told] * 9, bench, **options) as again:
        await again.wait_idle()
        fork = await again.fork(run_id, prompt="what now?")
        await fork.wait_idle()
        assert [status for status, _ in await last_results(fork)] == ["unknown"]
        assert bench.began == ["a"]
        if not record:  # then its checkpoint says so for good
            return
        (entry,) = await again.ledger("unknown")
        await again.settle(entry.id, "it is in the books", happened=True)
        fork = await again.fork(run_id, prompt="what now?")
        await fork.wait_idle()
        ((status, output),) = await last_results(fork)
        assert status == "ok"
        assert output.endswith("it happened: it is in the books]")
        assert bench.began == ["a"]


@simulated
async def test_a_fork_of_a_run_that_waits_for_an_approval_asks_for_it_anew() -> None:
    bench = Bench()
    script = [use("act", "a"), [say("otherwise")], [say("done")]]
    async with recorded(script, bench, **asks()) as session:
        run = sending(session, "go")
        await passing()
        fork = await session.fork((await session.runs())[-1].run_id, prompt="what now?")
        await passing()
        (again,) = await fork.approvals()
        await fork.approve(again.id)
        await fork.wait_idle()
        assert await last_results(fork) == [("ok", "result of a")]
        (waiting,) = await session.approvals()
        await session.deny(waiting.id)
        await run


@simulated
@pytest.mark.parametrize(
    ("op", "which", "more"), [("ask", 2, 0), ("ask", 2, 1), ("act", 1, 0), ("act", 1, 1), ("close", 1, 0)]
)
async def test_a_fork_is_compared_with_its_run_from_its_step_on(op: str, which: int, more: int) -> None:
    script = [[*use("act", "a"), *use("put", "b")], [say("done")], [say("otherwise")]]
    async with recorded(script, Bench()) as session:
        history = await history_of(session)
        step = step_of(history, op, which) + more
        fork = await session.fork(history, step, prompt="Only half")
        await fork.wait_idle()
        again = await fork.run_history((await fork.runs())[0].run_id)
        assert again.about["fork"] == {"run_id": history.run_id, "step": step}
        assert replay.loads(replay.dump(again)) == again
        found, turned = replay.diff(history, again), replay.diff(again, history)
        assert found is not None
        assert turned is not None
        assert (found.fork_step, found.told, found.op) == (step, "Only half", "answered")
        assert found.step == step_of(history, "answered", 2)
        assert found.other_step == step_of(again, "answered")
        assert (turned.step, turned.other_step, turned.told) == (found.other_step, found.step, "Only half")
        assert (turned.recorded, turned.now) == (found.now, found.recorded)


@simulated
async def test_what_a_fork_is_told_is_in_its_conversation_and_its_model_is_told_once() -> None:
    model = ScriptedModel([use("act", "a"), [say("done")], [say("otherwise")], [say("plain")]])
    options: dict[str, Any] = {"session_store": MemoryStore(), "session_id": "s", "record": True}
    async with opened(model, Bench(), **options) as session:
        history = await history_of(session)
        step = step_of(history, "ask", 2)
        for prompt, told in (("Only half", f"at step {step}: Only half"), ("", f"at step {step}")):
            fork = await session.fork(history, step, prompt=prompt)
            await fork.wait_idle()
            entries = await session.host.inbox.engine.store.history.entries(fork.owner)
            assert entries[0].text == f"Go on from {history.run_id} {told}"
            sent = [str(each) for each in model.requests[-1].conversation]
            assert sum(each.count("Only half") for each in sent) == bool(prompt)
            assert not any("Go on from" in each for each in sent)


@simulated
async def test_a_fork_that_does_the_same_is_the_same_and_its_next_run_is_no_fork() -> None:
    script = [use("act", "a"), [say("done")], [say("done")], [say("done")], [say("more")]]
    async with recorded(script, Bench()) as session:
        history = await history_of(session)
        fork = await session.fork(history, step_of(history, "ask", 2))
        told = await session.fork(history, step_of(history, "ask", 2), prompt="Really?")
        await fork.wait_idle()
        await told.wait_idle()
        first = await fork.run_history((await fork.runs())[0].run_id)
        other = await told.run_history((await told.runs())[0].run_id)
        assert replay.diff(history, first) is None
        found = replay.diff(history, other)
        assert found is not None
        assert (found.where, found.recorded, found.now) == ("what was said to the model", None, "Really?")
        assert "fork" not in (await history_of(fork, "more")).about


@simulated
async def test_a_fork_from_any_of_the_first_steps_knows_what_was_said_before() -> None:
    async with recorded([[say("one")], [say("two")], *[[say("fork")]] * 20], Bench()) as session:
        await session.send("first")
        history = await history_of(session, "second")
        ops = [step["op"] for step in history.steps]
        assert ops.index("base") < ops.index("ask")
        for step in range(1, ops.index("ask") + 2):
            fork = await session.fork(history, step, prompt="third")
            await fork.wait_idle()
            said = [str(each) for each in await fork.history()]
            assert said[:2] == ["user: first", "assistant: one"], (step, ops)
            assert said[-1] == "assistant: fork"


@simulated
async def test_a_fork_at_what_was_said_is_told_otherwise() -> None:
    async with recorded([[say("done")], [say("otherwise")], [say("too")]], Bench()) as session:
        history = await history_of(session, "Pay all")
        for at, prompt, then in (
            (step_of(history, "say"), "Pay half", "Pay all"),
            (step_of(history, "ask"), "Half", ""),
        ):
            fork = await session.fork(history, at, prompt=prompt)
            await fork.wait_idle()
            found = replay.diff(history, await fork.run_history((await fork.runs())[0].run_id))
            assert found is not None
            assert found.told == prompt
            assert found.op == ("say" if then else "answered")
            assert not then or (found.recorded, found.now) == (then, prompt)


@simulated
async def test_the_other_system_prompt_of_a_fork_is_shown_as_text() -> None:
    async with recorded([use("act", "a"), [say("done")], [say("done")]], Bench()) as session:
        history = await history_of(session)
        fork = await session.fork(history, step_of(history, "ask", 2), system="Be kind.")
        await fork.wait_idle()
        found = replay.diff(history, await fork.run_history((await fork.runs())[0].run_id))
        assert found is not None
        assert (found.where, found.recorded, found.now) == ("the system prompt is another one", "Be brief.", "Be kind.")


@simulated
async def test_a_fork_at_its_beginning_asks_anew() -> None:
    async with recorded([[say("one")], [say("two")], [say("three")]], Bench()) as session:
        await session.send("first")
        history = await history_of(session, "second")
        fork = await session.fork(history, step_of(history, "ask"), session_id="mine")
        await fork.wait_idle()
        said = [str(each) for each in await fork.history()]
        assert said == ["user: first", "assistant: one", "user: second", "assistant: three"]
        assert fork.session_id == "mine"


@pytest.mark.parametrize("asked", [1, 2])
@simulated
async def test_a_fork_asks_anew_with_what_came_with_the_question(asked: int) -> None:
    """Before the first answer the question is a message again; behind a round it was steered in, and is told again."""
    held, more = Held(*use("look", "a")), [{"type": "text", "text": "a picture of it"}]
    async with recorded([held, [say("one")], [say("two")]], Bench()) as session:
        first = await post(session, "look", attachments=more if asked == 1 else ())
        await held.asked.wait()
        if asked == 2:
            await session.steer("and at this", attachments=more)
        held.let_go()
        await final_of(session, first)
        run_id = (await session.runs())[-1].run_id
        history = await session.run_history(run_id)
        fork = await session.fork(history, step_of(history, "ask", asked))
        await fork.wait_idle()
        told = [each.attachments for each in await fork.history() if isinstance(each, Prompt) and each.attachments]
        assert told == [tuple(more)]


@simulated
async def test_a_fork_at_the_end_needs_a_prompt() -> None:
    async with recorded([[say("one")], [say("two")]], Bench()) as session:
        history = await history_of(session)
        with pytest.raises(UsageError, match="there is nothing to go on with"):
            await session.fork(history)
        fork = await session.fork(history, prompt="and now?")
        await fork.wait_idle()
        assert [str(each) for each in await fork.history()][-2:] == ["user: and now?", "assistant: two"]


@simulated
async def test_a_fork_at_the_end_of_a_run_that_was_rolled_back_needs_a_prompt() -> None:
    held = Held(say("never"))
    async with recorded([[say("one")], held, [say("two")], [say("three")]], Bench()) as session:
        await session.send("first")
        lost = sending(session, "second")
        await held.asked.wait()
        run_id = (await session.runs())[-1].run_id
        assert (await session.send("third", mode="rollback")).text == "two"
        await asyncio.gather(lost, return_exceptions=True)
        history = await session.run_history(run_id)
        with pytest.raises(UsageError, match="there is nothing to go on with"):
            await session.fork(history)
        fork = await session.fork(history, prompt="and now?")
        await fork.wait_idle()
        said = [str(each) for each in await fork.history()]
        assert said == ["user: first", "assistant: one", "user: and now?", "assistant: three"]


@simulated
async def test_rounds_before_a_fork_do_not_count_against_what_it_may_do() -> None:
    script = [use("look", "a"), use("look", "b"), use("look", "c"), use("look", "d")]
    async with recorded(script, Bench(), max_tool_rounds=1) as session:
        with pytest.raises(LanewayError, match="max_tool_rounds"):
            await session.send("go")
        fork = await session.fork((await session.runs())[-1].run_id, prompt="answer now")
        await fork.wait_idle()
        assert (await fork.runs())[0].rounds == 1, "it may do as much as a run of its own"
        assert "max_tool_rounds" in (await fork.runs())[0].reason


@simulated
async def test_events_made_again_count_the_tokens_of_the_whole_run() -> None:
    usage = Usage(input_tokens=10, output_tokens=5)
    model = ScriptedModel([use("look", "a"), use("look", "b"), [say("done")]], usage=usage)
    async with opened(model, Bench(), session_store=MemoryStore(), session_id="s") as session:
        result = await session.send("go")
        live = [each["payload"]["total_tokens"] for each in session.trace_events() if each["type"] == "turn_end"]
        again = [each for each in await session.run_events(result.run_id) if each.event_type == "turn_end"]
        assert [each.data["total_tokens"] for each in again] == live == [15, 30, 45]


@simulated
async def test_a_run_that_waits_before_its_first_round_is_not_told_as_over() -> None:
    held = Held(say("done"))
    async with recorded([held], Bench()) as session:
        sent = sending(session, "go")
        await held.asked.wait()
        run_id = (await session.runs())[-1].run_id
        assert "has not come to its first round yet" in await session.explain_run(run_id)
        with pytest.raises(UnknownRunError, match="has no checkpoint") as error:
            await session.run_history(run_id)
        assert "ask again later" in str(error.value.hint)
        held.let_go()
        await sent


@simulated
async def test_a_step_that_is_not_there_is_refused() -> None:
    async with recorded([[say("one")]], Bench()) as session:
        history = await history_of(session)
        for step in (0, len(history.steps) + 2, True):
            with pytest.raises(UsageError, match="has no step"):
                await session.fork(history, step)


@simulated
async def test_a_fork_into_a_session_with_a_past_is_refused() -> None:
    async with recorded([[say("one")], [say("two")]], Bench()) as session:
        history = await history_of(session)
        fork = await session.fork(history, prompt="more", session_id="mine")
        await fork.wait_idle()
        await fork.close()
        with pytest.raises(UsageError, match="has a past already"):
            await session.fork(history, prompt="more", session_id="mine")


@simulated
async def test_two_forks_into_one_session_at_once_are_one() -> None:
    async with recorded([[say("one")], [say("two")]], Bench()) as session:
        history = await history_of(session)
        both = [session.fork(history, prompt="more", session_id="mine") for _ in range(2)]
        ends = await asyncio.gather(*both, return_exceptions=True)
        (fork,) = (end for end in ends if isinstance(end, AsyncSession))
        assert sum(isinstance(end, LanewayError) for end in ends) == 1
        await fork.wait_idle()
        assert [str(each) for each in await fork.history()][-2:] == ["user: more", "assistant: two"]


class Dying(MemoryStore):
    """A store whose process dies before or after a commit: from then on nothing is written, and nobody is answered."""

    commits_left = -1
    writes_last = False
    is_dead = False

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self.died = asyncio.Event()

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        if self.commits_left == 0:
            self.is_dead = True
            self.died.set()
            if self.writes_last:
                self.writes_last = False
                await super().commit(batches)
        self.commits_left -= 1
        if self.is_dead:
            raise StoreUnavailableError("the process is dead", hint="this is a test")
        return await super().commit(batches)


async def forked_with(disk: MemoryDisk, commits: int, *, written: bool) -> str:
    """Fork on a store that dies at a commit; what a later process finds in the new session."""
    bench = Bench()
    store = Dying(disk)
    async with recorded(
        [use("act", "c"), [say("done")], *[[say("otherwise")]] * 50], bench, session_store=store
    ) as one:
        history = await history_of(one)
        store.commits_left, store.writes_last = commits, written
        fork = asyncio.ensure_future(one.fork(history, step_of(history, "ask", 2), session_id="mine"))
        await asyncio.wait([fork], timeout=5)
        store.commits_left = -1
        store.is_dead = True
        fork.cancel()
        ends = list[Any](await asyncio.gather(fork, return_exceptions=True))
        assert isinstance(ends[0], AsyncSession | StoreUnavailableError | asyncio.CancelledError), ends
    later = MemoryStore(disk)
    async with recorded([[say("otherwise")]] * 3, bench, session_store=later, session_id="mine") as fork_:
        await fork_.wait_idle()
        assert bench.ended == ["c"]
        return " / ".join(str(each) for each in await fork_.history())


@simulated
@pytest.mark.parametrize(("op", "which", "commits"), [("ask", 2, 0), ("ask", 2, 2), ("act", 1, 3), ("act", 1, 5)])
async def test_a_fork_whose_process_died_is_told_its_prompt_once(op: str, which: int, commits: int) -> None:
    disk, bench = MemoryDisk(), Bench()
    store = Dying(disk)
    script = [use("act", "c"), [say("done")], use("act", "d"), *[[say("otherwise")]] * 9]
    async with recorded(script, bench, session_store=store) as session:
        history = await history_of(session)
        store.commits_left, store.writes_last = commits, True
        step = step_of(history, op, which)
        fork = asyncio.ensure_future(session.fork(history, step, prompt="Only half", session_id="mine"))
        await asyncio.wait([fork], timeout=5)
        await store.died.wait()
        fork.cancel()
        await asyncio.gather(fork, return_exceptions=True)
    async with recorded([[say("later")]] * 3, bench, session_store=MemoryStore(disk), session_id="mine") as again:
        await again.wait_idle()
        told = [str(each) for each in await again.history()]
        assert [each for each in told if "Only half" in each] == ["user: Only half"]


@simulated
async def test_a_process_that_dies_at_any_commit_of_a_fork_leaves_all_of_it_or_nothing() -> None:
    found = [
        (await forked_with(MemoryDisk(), commits, written=written)).rpartition(" / ")[2]
        for commits in range(5)
        for written in (False, True)
    ]
    assert set(found) == {"", "assistant: otherwise"}, found


@simulated
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_fork_that_the_store_refuses_can_be_asked_for_again(when: Any) -> None:
    store = FaultyStore(MemoryStore())
    async with recorded([[say("one")], [say("two")]], Bench(), session_store=store) as session:
        history = await history_of(session)
        store.fail_next(when, owner=session.owner._replace(session="mine"))
        try:
            fork = await session.fork(history, prompt="more", session_id="mine")
        except StoreUnavailableError:
            assert when == "before"
            fork = await session.fork(history, prompt="more", session_id="mine")
        await fork.wait_idle()
        said = [str(each) for each in await fork.history()]
        assert said == ["user: go", "assistant: one", "user: more", "assistant: two"]
        assert (await forked_from(fork)).message_id


# ---- files ----


@pytest.fixture
def text() -> str:
    steps = ({"op": "machine", "limits": [1, 1], "c": 0, "from": "", "first": 1, "plan": None}, {"op": "code", "x": 1})
    return replay.dump(RunHistory(about={"run_id": "r"}, steps=steps))


def test_a_file_that_ends_anywhere_is_refused(text: str) -> None:
    for at in range(len(text) - 1):
        with pytest.raises(HistoryError) as error:
            replay.loads(text[:at])
        assert vars(error.value)["problem"] in ("foreign", "damaged", "cut off")
    assert replay.loads(text[:-1]) == replay.loads(text)


def test_a_changed_letter_is_found_with_its_line(text: str) -> None:
    lines = text.splitlines()
    for number in range(len(lines)):
        changed = lines.copy()
        changed[number] = changed[number].replace("1", "2", 1) if "1" in changed[number] else "{}"
        with pytest.raises(HistoryError):
            replay.loads("\n".join(changed))


def test_lines_that_were_swapped_or_added_are_found(text: str) -> None:
    first, second, third, last = text.splitlines()
    for lines in (
        [first, third, second, last],
        [first, second, second, third, last],
        [first, second, third, last, last],
    ):
        with pytest.raises(HistoryError, match=r"damaged: (line|it goes on)"):
            replay.loads("\n".join(lines))


@pytest.mark.parametrize("foreign", ["", "{}", "[]", "hello", '{"kind":"else","d":""}', "\x00\x01", "[" * 100_000])
def test_a_foreign_file_is_refused(foreign: str) -> None:
    with pytest.raises(HistoryError, match="is no history of a run"):
        replay.loads(foreign)


def test_a_newer_file_is_refused(text: str) -> None:
    head, _, rest = text.partition("\n")
    newer = json.dumps({**json.loads(head), "v": 99})
    with pytest.raises(HistoryError, match="is newer: it has version 99, this Laneway knows 1"):
        replay.loads(f"{newer}\n{rest}")


def test_files_are_written_whole(tmp_path: Any, text: str) -> None:
    path = tmp_path / "run.jsonl"
    history = replay.loads(text)
    replay.save(history, path)
    assert replay.load(path) == history
    assert [each.name for each in tmp_path.iterdir()] == ["run.jsonl"]
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(HistoryError, match="it is no text"):
        replay.load(path)
    with pytest.raises(HistoryError, match="cannot be read"):
        replay.load(tmp_path / "nothing")


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, text: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "gone").symlink_to("nowhere")
    for each in (tmp_path, tmp_path / "pipe", tmp_path / "loop", tmp_path / "gone", "/dev/zero", "a\0b", "x" * 10_000):
        with pytest.raises(HistoryError) as error:
            replay.load(each)
        assert vars(error.value)["problem"] == "unreadable"
        assert error.value.hint
    (tmp_path / "file").write_text(text)
    (tmp_path / "link").symlink_to("file")
    assert replay.load(tmp_path / "link") == replay.loads(text)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_another_encoding_is_no_history(tmp_path: Path, text: str, encoding: str) -> None:
    (tmp_path / "file").write_bytes(text.encode(encoding))
    with pytest.raises(HistoryError, match="is no history of a run"):
        replay.load(tmp_path / "file")


@pytest.mark.slow
@pytest.mark.parametrize("begins", ["", '{"kind":"laneway.run","v":1,"d":"', "["])
def test_a_line_of_a_hundred_million_letters_is_refused(tmp_path: Path, begins: str) -> None:
    (tmp_path / "file").write_bytes(begins.encode() + b"x" * 100_000_000)
    with pytest.raises(HistoryError) as error:
        replay.load(tmp_path / "file")
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    "step",
    [{"op": "nonsense"}, {"op": "say"}, {"op": "answered", "answer": [], "t": 0}, {"op": "base"}, {"op": "cut"}],
)
def test_steps_that_nobody_wrote_are_refused(text: str, step: dict[str, Any]) -> None:
    history = replay.loads(text)
    with pytest.raises((HistoryError, ReplayDivergedError)):
        replay.run(history.with_steps([history.steps[0], step]))


# ---- the same host ----


async def test_with_the_same_host_two_runs_write_the_same_file() -> None:
    def host() -> HostEnv:
        clock, ids = FixedClock(1_700_000_000_000), SequentialIdGenerator()
        return HostEnv(clock=clock, ids=ids, random=random.Random(1))

    async def told() -> str:
        script: list[Any] = [use("look", "a"), use("act", "c"), [say("done")]]
        options: dict[str, Any] = {"record": True, "permission_policy": ALLOW, "session_store": MemoryStore()}
        model = ScriptedModel(script)
        async with AsyncAgent(model, tools=Bench().tools, builtin_tools=False, host=host(), **options) as agent:
            return replay.dump(await history_of(agent.session(".", session_id="s")))

    assert await told() == await told()


@simulated
async def test_a_record_grows_as_the_conversation_does() -> None:
    disk = MemoryDisk()
    bench = Bench()
    script = [answer for at in range(40) for answer in (use("act", f"c{at}"), [say(f"answer {at}")])]
    async with recorded(script, bench, session_store=MemoryStore(disk)) as session:
        sizes = []
        for _ in range(40):
            await session.send("go on")
            sizes.append(sum(len(row.body) for row in disk.states.values() if row.kind == "record"))
    first, last = sizes[9], sizes[39]
    assert last / first < 4.5  # four times as many turns
