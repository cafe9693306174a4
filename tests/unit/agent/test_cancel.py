"""How runs and calls end before their time: cancelled, interrupted, too long, out of quota."""

from __future__ import annotations

import asyncio
import threading

import pytest

from laneway.dialogue import ToolContext
from laneway.errors import ModelLimitedError, ModelUnavailableError, RunCancelledError, RunFailedError
from laneway.mail import MessageState
from laneway.models import ScriptedModel, call, cut, fail, say
from laneway.models.scripted import Piece
from laneway.options import SessionQueueConfig
from laneway.tools import tool
from tests.agent_stage import (
    QUEUES,
    Bench,
    Delivered,
    Held,
    Watch,
    agent_of,
    check_events,
    check_model,
    final_of,
    one,
    opened,
    post,
    prompts,
    results,
    sending,
    session_of,
    shape,
    statuses,
    use,
)
from tests.inbox_stage import CutStore, staged
from tests.stage import now_ms, passing

# ---- cancelling ----


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_cancelling_ends_the_run_at_once_and_what_waits_stays(queue: bool) -> None:
    bench = Bench("a")
    model = ScriptedModel([use("act", "a", "b"), [say("to the next")], [say("here")]])
    async with opened(model, bench, queue=queue) as session:
        watch = Watch(stream := session.stream("go"))
        await bench.begun("a").wait()
        waits = await post(session, "next", "followup")
        assert [each.name for each in session.active_tools()] == ["act"]
        assert await session.cancel("enough")
        with pytest.raises(RunCancelledError, match="enough") as caught:
            await stream.result()
        assert now_ms() == 0
        assert (await final_of(session, waits)).answer == "to the next"
        await watch.task
        assert not await session.cancel()
        assert (caught.value.run_id, caught.value.reason) == (stream.run_id, "enough")
    bench.let_go()
    assert (bench.began, bench.cancelled, bench.ended) == (["a"], ["a"], [])
    assert shape(model.requests[1]) == ["user: go", "calls a b", "results a=unknown b=cancelled", "user: next"]
    check_events(watch.events)
    assert watch.events[-1].error_kind == "run_cancelled"


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_run_is_cancelled_by_its_id_only_while_it_is_the_one_that_runs(queue: bool) -> None:
    held = Held(say("done"))
    model = ScriptedModel([[say("first")], held])
    async with opened(model, queue=queue) as session:
        first = await session.send("one")
        second = sending(session, "two")
        await held.asked.wait()
        assert not await session.cancel_run(first.run_id)
        assert not await session.cancel_run("no-such-run")
        info = session.current_run()
        assert info is not None
        assert await session.cancel_run(info.run_id)
        with pytest.raises(RunCancelledError):
            await second
        assert session.current_run() is None


@pytest.mark.parametrize("effect", ["look", "check", "act", "put"])
@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_what_the_model_hears_of_a_cut_call_depends_on_what_the_call_does(queue: bool, effect: str) -> None:
    bench = Bench("a")
    model = ScriptedModel([[one(effect, "a")], [say("here")]])
    async with opened(model, bench, queue=queue) as session:
        task = sending(session, "go")
        await bench.begun("a").wait()
        await session.cancel()
        with pytest.raises(RunCancelledError):
            await task
        await session.send("are you there?")
        states = [entry.state.value for entry in await session.ledger()]
    has_effect = effect in ("act", "put")
    assert statuses(model.requests[1]) == [("a", "unknown" if has_effect else "cancelled")]
    assert states == (["unknown"] if has_effect else [])


@staged
async def test_a_cancelled_call_that_waited_for_its_slot_never_runs() -> None:
    bench = Bench("p1", "p2")
    model = ScriptedModel([use("look", "p1", "p2", "p3", "p4"), [say("here")]])
    config = SessionQueueConfig(query_max_concurrency=2)
    async with opened(model, bench, queue=config) as session:
        watch = Watch(stream := session.stream("go"))
        await bench.begun("p1").wait()
        await bench.begun("p2").wait()
        assert session.queue_stats().lanes["query"].pending == 2
        await session.cancel()
        with pytest.raises(RunCancelledError):
            await stream.result()
        await watch.task
        bench.let_go()
        await passing(10_000)
        await session.send("are you there?")
        stats = session.queue_stats()
        assert (stats.total_pending, stats.total_active) == (0, 0)
    assert sorted(bench.began) == ["p1", "p2"]
    assert bench.ended == []
    assert statuses(model.requests[1]) == [(key, "cancelled") for key in ("p1", "p2", "p3", "p4")]
    check_events(watch.events)
    assert len(watch.of("tool_end")) == 4


@pytest.mark.parametrize("queue", QUEUES)
async def test_a_cancelled_sync_tool_is_left_to_its_thread_and_nothing_follows_it(queue: bool) -> None:
    began, gate, later = threading.Event(), threading.Event(), []

    @tool
    def blocks() -> str:
        """Block."""
        began.set()
        gate.wait(60)
        return "too late"

    @tool
    def follows() -> str:
        """Must not run."""
        later.append(1)
        return ""

    model = ScriptedModel([[call("blocks").with_id("a"), call("follows").with_id("b")], [say("here")]])
    async with opened(model, [blocks, follows], queue=queue) as session:
        watch = Watch(stream := session.stream("go"))
        await asyncio.to_thread(began.wait, 60)
        assert await session.cancel()
        with pytest.raises(RunCancelledError):
            await stream.result()
        assert not gate.is_set()  # the run has ended although the thread has not
        gate.set()
        await watch.task
        await session.send("are you there?")
    assert later == []
    assert statuses(model.requests[1]) == [("a", "unknown"), ("b", "cancelled")]
    check_events(watch.events)
    assert len(watch.of("tool_end")) == 2


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_tool_that_may_not_be_interrupted_ends_and_its_result_is_kept(queue: bool) -> None:
    bench = Bench("n")
    model = ScriptedModel([[one("nail", "n"), one("act", "b")], [say("new")]])
    async with opened(model, bench, queue=queue) as session:
        task = sending(session, "go")
        await bench.begun("n").wait()
        newest = await session.interrupt("stop")
        await passing(1_000)
        assert not task.done()
        bench.let_go()
        with pytest.raises(RunCancelledError):
            await task
        assert (await final_of(session, newest)).answer == "new"
        assert [entry.state.value for entry in await session.ledger()] == ["done"]
    assert (bench.began, bench.ended, bench.cancelled) == (["n"], ["n"], [])
    assert statuses(model.requests[1]) == [("n", "ok"), ("b", "cancelled")]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_tool_that_will_not_die_is_fenced_after_the_grace_and_the_newest_runs(queue: bool) -> None:
    gate = asyncio.Event()

    @tool(effect="read")
    async def clings() -> str:
        """Ignore every cancellation."""
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    model = ScriptedModel([[call("clings").with_id("a")], [say("new")], [say("here")]])
    async with opened(model, [clings], queue=queue) as session:
        said = Delivered(await session.ready())
        watch = Watch(stream := session.stream("go"))
        await passing()
        newest = await session.interrupt("stop")
        end = await final_of(session, newest)
        assert now_ms() <= 20_000
        with pytest.raises(RunCancelledError):
            await stream.result()
        await watch.task
        gate.set()
        await passing(1_000)
        await session.send("are you there?")
        assert await said.texts() == ["new", "here"]
    assert (end.disposition, end.answer) == (MessageState.RAN, "new")
    assert len(watch.of("end", "error")) == 1
    check_model(model)


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_cancelling_while_the_intent_is_being_stored_never_runs_the_call(queue: bool) -> None:
    bench, store = Bench(), CutStore()
    held = Held(one("act", "a"))
    model = ScriptedModel([held, [say("here")]])
    async with opened(model, bench, queue=queue, session_store=store) as session:
        task = sending(session, "go")
        await held.asked.wait()
        store.delay_ms = 50
        held.let_go()
        await passing(20)
        assert await session.cancel()
        store.delay_ms = 0
        with pytest.raises(RunCancelledError):
            await task
        await passing(1_000)
        await session.send("are you there?")
        states = [entry.state.value for entry in await session.ledger()]
    assert bench.began == []
    assert states in ([], ["failed"])
    assert statuses(model.requests[1]) == [("a", "cancelled")]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_steer_into_a_run_that_is_then_cancelled_has_a_turn_of_its_own(queue: bool) -> None:
    bench = Bench("a", "c")
    model = ScriptedModel([use("act", "a"), use("act", "c"), [say("to the steer")]])
    async with opened(model, bench, queue=queue) as session:
        watch = Watch(session.subscribe())
        task = sending(session, "go")
        await bench.begun("a").wait()
        steer = await post(session, "rather", "steer")
        bench.let_go("a")
        await bench.begun("c").wait()
        await session.cancel("enough")
        with pytest.raises(RunCancelledError):
            await task
        end = await final_of(session, steer)
    await watch.task
    assert (end.disposition, end.answer) == (MessageState.RAN, "to the steer")
    assert "run_resumed" not in watch.types
    assert shape(model.requests[2])[-3:] == ["calls c", "results c=unknown", "user: rather"]
    check_model(model)


@pytest.mark.slow
@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_run_that_is_cancelled_again_and_again_leaves_a_good_conversation(queue: bool) -> None:
    for turns in range(0, 40, 3):
        bench = Bench()
        model = ScriptedModel([[say("x"), *use("look", "a", "b"), one("act", "c")], [say("done")], [say("here")]])
        async with opened(model, bench, queue=queue) as session:
            await session.ready()
            watch = Watch(stream := session.stream("go"))
            for _ in range(turns):
                await asyncio.sleep(0)
            await session.cancel()
            await asyncio.gather(stream.result(), return_exceptions=True)
            await watch.task
            assert (await session.send("are you there?")).text in ("here", "done", "x")
            started = [event.tool_id for event in watch.of("tool_start")]
        check_events(watch.events)
        check_model(model)
        assert len(set(started)) == len(started)


# ---- too long ----


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_run_that_takes_too_long_is_ended_with_a_clear_error(queue: bool) -> None:
    bench = Bench("a")
    model = ScriptedModel([use("act", "a", "b"), [say("here")]])
    async with opened(model, bench, queue=queue, max_execution_time_ms=5_000) as session:
        watch = Watch(stream := session.stream("go"))
        with pytest.raises(RunFailedError, match=r"longer than max_execution_time_ms \(5000\)"):
            await stream.result()
        assert now_ms() == 5_000
        await watch.task
        assert (await session.send("are you there?")).text == "here"
    assert bench.cancelled == ["a"]
    assert statuses(model.requests[1]) == [("a", "unknown"), ("b", "cancelled")]
    check_events(watch.events)
    assert watch.events[-1].error_kind == "run_failed"


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_model_that_never_answers_is_ended_by_the_time_limit_of_the_run(queue: bool) -> None:
    model = ScriptedModel([Held(), [say("here")]])
    async with opened(model, queue=queue, max_execution_time_ms=3_000) as session:
        with pytest.raises(RunFailedError, match="3000"):
            await session.send("go")
        assert now_ms() == 3_000
        assert (await session.send("are you there?")).text == "here"


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("name", ["look", "act"])
@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_tool_that_never_ends_is_cut_after_its_time_and_the_run_goes_on(
    queue: bool, name: str, own: bool
) -> None:
    bench = Bench("a")
    slow = bench.tool("slow", effect="read" if name == "look" else "write", timeout_ms=2_000 if own else None)
    limit = 2_000 if own else 7_000
    config = SessionQueueConfig(default_timeout_ms=7_000) if queue else False
    model = ScriptedModel([[one("slow", "a"), one("act", "b")], [say("on we go")], [say("here")]])
    async with opened(model, [slow, *bench.tools], queue=config, tool_timeout_ms=7_000) as session:
        watch = Watch(stream := session.stream("go"))
        assert (await stream.result()).text == "on we go"
        assert now_ms() == limit
        await watch.task
        assert (await session.send("are you there?")).text == "here"
        states = [entry.state.value for entry in await session.ledger()]
    assert (bench.cancelled, bench.ended) == (["a"], ["b"])
    assert statuses(model.requests[1]) == [("a", "timed_out"), ("b", "ok")]
    told = results(model.requests[1])[0].output
    assert told.startswith("[Timed out: ")
    assert ("may have had its effect" in told) is (name == "act")
    assert states == (["unknown", "done"] if name == "act" else ["done"])
    check_events(watch.events)


@staged
async def test_the_timeout_of_a_lane_wins_over_the_default() -> None:
    bench = Bench("a")
    config = SessionQueueConfig(default_timeout_ms=60_000, lane_timeouts={"execute": 1_500})
    model = ScriptedModel([[one("check", "a")], [say("done")]])
    async with opened(model, bench, queue=config) as session:
        await session.send("go")
        assert now_ms() == 1_500
    assert statuses(model.requests[1]) == [("a", "timed_out")]


@staged
async def test_a_model_call_has_no_timeout_but_that_of_its_own_lane() -> None:
    held = Held(say("late"))
    model = ScriptedModel([held])
    async with opened(model, queue=SessionQueueConfig(default_timeout_ms=1_000)) as session:
        task = sending(session, "go")
        await passing(100_000)
        assert not task.done()
        held.let_go()
        assert (await task).text == "late"


# ---- out of quota, and cut off ----


def limited(ms: int) -> list[Piece]:
    """An answer that says: come back later."""
    return [fail(ModelLimitedError("429 too many requests", model="scripted", retry_after_ms=ms))]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_run_that_is_out_of_quota_waits_and_goes_on_by_itself(queue: bool) -> None:
    model = ScriptedModel([limited(30_000), limited(5_000), [say("at last")]])
    async with opened(model, queue=queue) as session:
        watch = Watch(stream := session.stream("go"))
        await passing(10)
        info = session.current_run()
        assert info is not None
        assert info.state == "waiting"
        assert (await stream.result()).text == "at last"
        assert now_ms() == 35_000
        await watch.task
    waits = watch.of("run_waiting")
    assert [event.until_ms - waits[0].at_ms for event in waits] == [30_000, 35_000]
    assert "429" in waits[0].reason
    assert watch.of("model_retry") == []
    check_events(watch.events)


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_no_other_session_of_that_model_asks_before_the_time_and_explain_says_why(queue: bool) -> None:
    model = ScriptedModel([limited(30_000), [say("one")], [say("two")]])
    other = ScriptedModel([[say("another model")]], name="other")
    async with agent_of(model) as agent:
        first = session_of(agent, queue=queue)
        second = session_of(agent, queue=queue)
        third = session_of(agent, queue=queue, model=other)
        task = sending(first, "go")
        await passing(10)
        waits = sending(second, "me too")
        assert (await third.send("and I?")).text == "another model"
        await passing(10)
        assert now_ms() == 20
        lanes = second.host.inbox.lanes
        told = [str(lanes.explain(job.id)) for job in lanes.jobs() if any("model:" in name for name in job.lanes)]
        assert any("429" in each or "closed" in each for each in told), told
        assert {(await task).text, (await waits).text} == {"one", "two"}
        assert now_ms() == 30_000
    assert len(model.requests) == 3


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_run_that_waits_for_its_quota_can_be_cancelled_at_once(queue: bool) -> None:
    model = ScriptedModel([limited(3_600_000)])
    async with opened(model, queue=queue) as session:
        task = sending(session, "go")
        await passing(10)
        assert await session.cancel("enough")
        with pytest.raises(RunCancelledError, match="enough"):
            await task
        assert now_ms() == 10
    assert len(model.requests) == 1


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_wait_for_a_quota_is_cut_by_the_time_limit_of_the_run(queue: bool) -> None:
    model = ScriptedModel([limited(3_600_000)])
    async with opened(model, queue=queue, max_execution_time_ms=9_000) as session:
        with pytest.raises(RunFailedError, match="9000"):
            await session.send("go")
        assert now_ms() == 9_000
    assert len(model.requests) == 1


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_cut_stream_is_asked_for_again_and_its_half_is_void(queue: bool) -> None:
    bench = Bench()
    model = ScriptedModel([[cut("half")], [say("whole"), one("act", "a")], [cut("x")], [say("done")]])
    async with opened(model, bench, queue=queue) as session:
        watch = Watch(stream := session.stream("go"))
        assert (await stream.result()).text == "done"
        assert now_ms() == 1_000
        await watch.task
    assert bench.ended == ["a"]
    assert shape(model.requests[3]) == ["user: go", "model: whole", "calls a", "results a=ok"]
    assert [event.attempt for event in watch.of("model_retry")] == [1, 1]
    check_events(watch.events)


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_model_that_stays_away_ends_the_run_and_no_tool_runs_twice(queue: bool) -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), *([cut("x")] for _ in range(4)), [say("here")]])
    async with opened(model, bench, queue=queue) as session:
        with pytest.raises(ModelUnavailableError):
            await session.send("go")
        assert now_ms() == 10_500
        assert (await session.send("are you there?")).text == "here"
    assert bench.ended == ["a"]
    assert shape(model.requests[-1]) == ["user: go", "calls a", "results a=ok", "user: are you there?"]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_steer_that_comes_while_the_run_waits_for_its_quota_is_the_next_turn(queue: bool) -> None:
    model = ScriptedModel([limited(5_000), [say("first")], [say("second")]])
    async with opened(model, queue=queue) as session:
        task = sending(session, "go")
        await passing(10)
        receipt = await post(session, "steer", "steer")
        assert receipt.disposition is MessageState.QUEUED
        assert (await task).text == "first"
        assert (await final_of(session, receipt)).answer == "second"
    assert [prompts(request)[-1] for request in model.requests] == ["go", "go", "steer"]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_tool_hears_which_call_it_is_and_shows_what_it_does(queue: bool) -> None:
    seen: list[ToolContext] = []

    @tool(effect="idempotent")
    async def reports(context: ToolContext) -> str:
        """Report."""
        seen.append(context)
        context.report("half")
        return "whole"

    model = ScriptedModel([[call("reports").with_id("a")], [say("done")]])
    async with opened(model, [reports], queue=queue) as session:
        watch = Watch(stream := session.stream("go"))
        result = await stream.result()
        await watch.task
    (context,) = seen
    assert (context.run_id, context.call_id, context.attempt) == (result.run_id, "a", 1)
    assert context.key
    assert [event.text for event in watch.of("tool_output_delta")] == ["half"]
