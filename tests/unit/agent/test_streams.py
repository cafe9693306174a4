"""Whoever watches a run: streams that are left, come late or overlap, and what the conversation is like meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from laneway.agent import AsyncAgent
from laneway.agent.results import RunResult
from laneway.agent.streams import EventLog
from laneway.agent_events import ExternalTaskProgressEvent, TextDeltaEvent
from laneway.dialogue import ModelRequest, Results, ToolContext
from laneway.errors import (
    ClosedError,
    ConfigError,
    InvalidMessageError,
    LanewayError,
    ModelError,
    RunCancelledError,
    UsageError,
)
from laneway.mail import Mode
from laneway.models import ScriptedModel, call, fail, say, think
from laneway.models.scripted import Piece
from laneway.options import SessionQueueConfig
from laneway.rows import Batch
from laneway.sim.loop import SimLoop
from laneway.stores.memory import MemoryStore
from laneway.testing.faults import FaultyStore
from laneway.tools import tool
from tests.agent_stage import (
    QUEUES,
    Bench,
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
    sending,
    session_of,
    shape,
    statuses,
    use,
)
from tests.inbox_stage import CutStore, staged
from tests.stage import now_ms, passing

# ---- what a stream tells ----


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_stream_tells_the_run_from_its_start_to_its_end(queue: bool) -> None:
    bench = Bench()
    model = ScriptedModel([[think("hm"), say("let me"), one("act", "a")], [say("done")]])
    async with opened(model, bench, queue=queue) as session:
        watch = Watch(stream := session.stream("go"))
        await watch.task
        result = await stream.result()
    kinds = [kind for kind in watch.types if kind != "tool_input_delta"]
    assert kinds == [
        "start",
        "turn_start",
        "reasoning_delta",
        "text_delta",
        "tool_queued",
        "tool_start",
        "tool_end",
        "turn_end",
        "turn_start",
        "text_delta",
        "turn_end",
        "end",
    ]
    check_events(watch.events)
    assert {event.run_id for event in watch.events} == {result.run_id, stream.run_id}
    assert [event.seq for event in watch.events] == sorted({event.seq for event in watch.events})
    assert watch.events[-1].text == result.text == "done"
    assert watch.events[-1].total_tokens == result.total_tokens
    assert (watch.events[-1].tool_calls_count, result.tool_calls_count, result.rounds) == (1, 1, 2)


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_nothing_is_sent_before_somebody_reads_the_stream(queue: bool) -> None:
    model = ScriptedModel([[say("hello")]])
    async with opened(model, queue=queue) as session:
        stream = session.stream("go")
        await passing(10)
        assert model.requests == []
        await stream.start()
        await stream.start()
        assert (await stream.result()).text == "hello"
    assert len(model.requests) == 1


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_breaking_out_of_a_stream_leaves_the_run_going(queue: bool) -> None:
    bench = Bench("a")
    model = ScriptedModel([use("act", "a"), [say("done")]])
    async with opened(model, bench, queue=queue) as session:
        stream = session.stream("go")
        async for event in stream:
            if event.event_type == "tool_start":
                break
        await stream.aclose()
        bench.let_go()
        assert (await stream.result()).text == "done"
        assert [event async for event in stream] == []
    assert bench.ended == ["a"]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_reader_that_is_cancelled_leaves_the_run_going(queue: bool) -> None:
    bench = Bench("a")
    model = ScriptedModel([use("act", "a"), [say("done")]])
    async with opened(model, bench, queue=queue) as session:
        watch = Watch(stream := session.stream("go"))
        await bench.begun("a").wait()
        send = sending(session, "second")
        await passing()
        watch.task.cancel()
        send.cancel()
        await asyncio.gather(watch.task, send, return_exceptions=True)
        bench.let_go()
        assert (await stream.result()).text == "done"
        await session.wait_idle()
    assert bench.cancelled == []
    assert [prompts(request)[-1] for request in model.requests] == ["go", "go", "second"]  # it was taken already


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_whoever_comes_late_gets_the_text_so_far(queue: bool) -> None:
    gate = asyncio.Event()
    model = ScriptedModel([[say("the first half"), gate.wait, say(" and the second")]], chunk_size=2)
    async with opened(model, queue=queue) as session:
        early = Watch(session.stream("go", message_id="m"))
        await passing()
        late = Watch(session.stream("go", message_id="m"))  # the same message again: the same run
        await passing()
        assert late.text == early.text == "the first half"
        assert late.types == ["start", "turn_start", "text_delta"]
        gate.set()
        await asyncio.gather(early.task, late.task)
    assert late.text == early.text == "the first half and the second"
    assert late.events[-1].text == "the first half and the second"
    check_events(early.events)
    check_events(late.events)
    assert len(model.requests) == 1


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_whoever_asks_again_after_the_end_gets_the_end(queue: bool) -> None:
    model = ScriptedModel([[say("hello")]])
    async with opened(model, queue=queue) as session:
        first = await session.send("go", message_id="m")
        second = await session.send("go", message_id="m")
        watch = Watch(session.stream("go", message_id="m"))
        await watch.task
    assert (second.text, second.run_id) == (first.text, first.run_id)
    assert watch.types == ["end"]
    assert watch.events[0].text == "hello"
    assert len(model.requests) == 1


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_steered_message_is_watched_from_where_it_goes_in(queue: bool) -> None:
    bench = Bench("a")
    model = ScriptedModel([use("act", "a", "b"), [say("with both")]])
    async with opened(model, bench, queue=queue) as session:
        first = Watch(session.stream("go"))
        await bench.begun("a").wait()
        second = Watch(session.stream("rather", mode="steer"))
        await passing()
        assert second.types == ["message_queued"]
        assert second.events[0].disposition == "parked"
        bench.let_go()
        await asyncio.gather(first.task, second.task)
    assert second.types[0] == "message_queued"
    assert second.types[-1] == "end"
    assert second.text == "with both"
    assert "steered" in second.types
    assert "start" not in second.types
    check_events(first.events)
    assert len(second.of("end", "error")) == 1


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_message_that_waits_is_told_so_and_then_sees_its_own_run_only(queue: bool) -> None:
    held = Held(say("first"))
    model = ScriptedModel([held, [say("second")]])
    async with opened(model, queue=queue) as session:
        one_ = Watch(session.stream("one"))
        await held.asked.wait()
        two = Watch(session.stream("two"))
        await passing()
        assert two.types == ["message_queued"]
        assert (two.events[0].position, two.events[0].disposition) == (1, "queued")
        held.let_go()
        await asyncio.gather(one_.task, two.task)
    assert (one_.text, two.text) == ("first", "second")
    check_events(two.events)
    assert two.types[:2] == ["message_queued", "start"]


@pytest.mark.parametrize("pause_ms", [0, 1])
@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("mode", ["interrupt", "rollback"])
@staged
async def test_a_superseded_message_gets_one_error_and_its_stream_ends(mode: str, queue: bool, pause_ms: int) -> None:
    bench = Bench("n")
    model = ScriptedModel([use("nail", "n"), [say("newest")]])  # it cannot be interrupted: the others wait
    async with opened(model, bench, queue=queue) as session:
        old = Watch(session.stream("old"))
        await bench.begun("n").wait()
        middle = Watch(session.stream("middle", mode=mode))
        if pause_ms:  # else both are in one commit, and the first is superseded before anybody has its receipt
            await passing(pause_ms)
        newest = Watch(session.stream("newest", mode=mode))
        await passing()
        bench.let_go()
        await asyncio.gather(old.task, middle.task, newest.task)
    assert old.types[-1] == "error"
    assert sorted(watch.types[-1] for watch in (middle, newest)) == ["end", "error"]
    assert len(middle.of("end", "error")) == len(newest.of("end", "error")) == 1
    check_events(old.events)


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_rejected_message_is_refused_and_its_stream_has_one_error(queue: bool) -> None:
    held = Held(say("done"))
    model = ScriptedModel([held])
    async with opened(model, queue=queue) as session:
        first = sending(session, "go")
        await held.asked.wait()
        watch = Watch(session.stream("no", mode="reject"))
        await watch.task
        with pytest.raises(RunCancelledError, match="rejected"):
            await session.send("no", mode="reject")
        held.let_go()
        assert (await first).text == "done"
    assert watch.types == ["error"]


@pytest.mark.parametrize("text", ["", "\ud800", "x" * 1_000_001])
@staged
async def test_a_refused_message_is_refused_to_every_reader_and_the_session_lives_on(text: str) -> None:
    model = ScriptedModel([[say("hello")]])
    async with opened(model) as session:
        stream = session.stream(text)
        for _ in range(2):
            with pytest.raises(InvalidMessageError):
                await anext(stream)
            with pytest.raises(InvalidMessageError):
                await stream.result()
        with pytest.raises(ConfigError, match="nope"):
            await session.send("hi", mode="nope")
        assert (await session.send("hi")).text == "hello"
    assert len(model.requests) == 1


@staged
async def test_a_second_session_of_one_name_is_refused_and_the_first_lives_on() -> None:
    model = ScriptedModel([[say("hello")], [say("again")]])
    async with agent_of(model) as agent:
        first = session_of(agent, session_id="s")
        assert (await first.send("hi")).text == "hello"
        second = session_of(agent, session_id="s")
        with pytest.raises(ConfigError, match="open already"):
            await second.send("hi")
        await second.close()
        assert (await first.send("hi")).text == "again"
    assert len(model.requests) == 2


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_everybody_who_waits_for_a_failed_run_gets_the_same_error(queue: bool) -> None:
    model = ScriptedModel([[fail(ModelError("the key is wrong", model="scripted"))]])
    async with opened(model, queue=queue) as session:
        stream = session.stream("go", message_id="m")
        sends = [session.send("go", message_id="m") for _ in range(3)]
        ends = await asyncio.gather(stream.result(), *sends, stream.result(), return_exceptions=True)
        ends += await asyncio.gather(stream.result(), return_exceptions=True)
    assert [(type(end), str(end)) for end in ends] == [(ModelError, "the key is wrong")] * 6


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_nothing_is_kept_of_runs_that_have_ended_and_closing_leaves_nothing_behind(queue: bool) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimLoop)
    bench, model = Bench(), busy_model()
    async with opened(model, bench, queue=queue) as session:
        for number in range(2):
            modes = ("followup", "steer", "interrupt", "reject")
            sends = [session.send(f"{mode} {number}", mode=mode) for mode in modes]
            await asyncio.gather(*sends, return_exceptions=True)
            async for event in session.stream(f"stream {number}"):
                if event.event_type == "turn_start":
                    break
            await session.wait_idle()
        await passing()
        tables = (session._runs, session._run_of, session._following, session._waiting, session.host.followed)  # noqa: SLF001
        assert [len(table) for table in tables] == [0] * 5
        assert len(session._following) <= 1  # noqa: SLF001 - the last stream was left and not closed
    await passing()
    assert loop.pending_timers() == 0
    assert [task.get_name() for task in loop.pending_tasks()] == ["main"]


# ---- the order of calls ----


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_reads_run_side_by_side_in_a_queue_and_one_after_another_without_one(queue: bool) -> None:
    keys = ("k1", "k2", "k3", "k4", "k5", "k6")
    bench = Bench(*keys)
    model = ScriptedModel([use("look", *keys), [say("done")]])
    async with opened(model, bench, queue=queue) as session:
        task = sending(session, "go")
        await passing()
        assert sorted(bench.began) == (list(keys[:4]) if queue else ["k1"])
        for key in reversed(keys):  # they end in the wrong order
            bench.let_go(key)
            await passing()
        await task
    assert bench.peak == (4 if queue else 1)
    assert statuses(model.requests[1]) == [(key, "ok") for key in keys]


@staged
async def test_a_call_that_is_no_read_waits_for_those_before_it_and_holds_those_after_it() -> None:
    keys = ("r1", "r2", "w1", "r3")
    bench = Bench(*keys)
    model = ScriptedModel([[*use("look", "r1", "r2"), one("act", "w1"), one("look", "r3")], [say("done")]])
    async with opened(model, bench, queue=True) as session:
        task = sending(session, "go")
        seen = []
        for batch in (("r1", "r2"), ("w1",), ("r3",)):
            await passing()
            seen.append(tuple(sorted(bench.running)))
            bench.let_go(*batch)
        await task
    assert seen == [("r1", "r2"), ("w1",), ("r3",)]


@pytest.mark.parametrize("way", ["tool", "lane"])
@staged
async def test_calls_of_a_parallel_tool_or_an_unordered_lane_go_out_together(way: str) -> None:
    bench = Bench("a", "b")
    config = SessionQueueConfig()
    if way == "lane":
        config.set_lane_handler("execute", "internal", ordered=False)
    fleet = bench.tool("fleet", effect="write", parallel=way == "tool")
    model = ScriptedModel([use("fleet", "a", "b"), [say("done")]])
    async with opened(model, [fleet], queue=config) as session:
        task = sending(session, "go")
        await bench.begun("a").wait()
        await bench.begun("b").wait()
        bench.let_go()
        await task
        assert [entry.state.value for entry in await session.ledger()] == ["done", "done"]
    assert bench.peak == 2


@pytest.mark.parametrize(("effect", "tries"), [("read", 4), ("idempotent", 4), ("write", 1)])
@staged
async def test_a_failing_call_is_tried_again_by_its_effect_and_has_one_end(effect: str, tries: int) -> None:
    contexts: list[ToolContext] = []

    @tool(effect=effect)
    async def breaks(context: ToolContext) -> str:
        """Break."""
        contexts.append(context)
        raise ValueError("broken")

    model = ScriptedModel([[call("breaks").with_id("a")], [say("noted")]])
    async with opened(model, [breaks], queue=SessionQueueConfig().with_lane_features()) as session:
        watch = Watch(stream := session.stream("go"))
        assert (await stream.result()).text == "noted"
        await watch.task
        assert len(session.dead_letters()) == 1
        states = [entry.state.value for entry in await session.ledger()]
    assert [context.attempt for context in contexts] == list(range(1, tries + 1))
    assert len({context.key for context in contexts}) == 1
    assert [event.attempt for event in watch.of("tool_start")] == list(range(1, tries + 1))
    assert statuses(model.requests[1]) == [("a", "error")]
    assert states == ([] if effect == "read" else ["failed"])
    check_events(watch.events)


@staged
async def test_a_subscription_hears_of_every_run_and_ends_with_the_session() -> None:
    model = ScriptedModel([[say("one")], [say("two")]])
    async with opened(model) as session:
        watch = Watch(session.subscribe())
        await session.send("1")
        await session.send("2")
    await watch.task
    assert watch.types.count("end") == 2
    assert watch.text == "onetwo"


# ---- overlapping sends ----


def busy_model() -> ScriptedModel:
    """A model that looks something up for every prompt, and then says which prompt it was."""

    async def answer(request: ModelRequest) -> Sequence[Piece]:
        for _ in range(3):
            await asyncio.sleep(0)
        last = request.conversation[-1]
        number = len(request.conversation)
        if isinstance(last, Results):
            return [say(f"to {prompts(request)[-1]}")]
        return [one("look", f"l{number}"), one("look", f"m{number}"), one("act", f"a{number}")]

    return ScriptedModel([answer] * 1_000)


@pytest.mark.slow
@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("mode", [str(mode) for mode in Mode])
@staged
async def test_fifty_sends_at_once_never_corrupt_the_conversation(mode: str, queue: bool) -> None:
    bench, model = Bench(), busy_model()
    async with opened(model, bench, queue=queue) as session:
        watch = Watch(session.subscribe())
        texts = [f"message {number:02}" for number in range(50)]
        ends = await asyncio.gather(*(session.send(text, mode=mode) for text in texts), return_exceptions=True)
        await session.wait_idle()
        history = await session.history()
        again = await session.send("last")
    await watch.task
    check_model(model)
    assert [end for end in ends if not isinstance(end, RunResult | LanewayError)] == []
    assert again.text == "to last"
    heard = " ".join(prompts(model.requests[-1]))
    if mode in ("followup", "steer", "collect", "steer-backlog"):
        assert not [end for end in ends if isinstance(end, BaseException)]
        assert all(text in heard for text in texts), "a message is lost"
    if mode == "followup":
        assert [end.text for end in ends if not isinstance(end, BaseException)] == [f"to {text}" for text in texts]
    began, ended = watch.of("start"), watch.of("end", "error")
    assert [event.run_id for event in began] == [event.run_id for event in ended], "one run at a time, one end each"
    assert history
    calls = [(event.run_id, event.tool_id) for event in watch.of("tool_end")]
    assert len(calls) == len(set(calls))


@pytest.mark.slow
@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_mix_of_modes_at_random_moments_never_corrupts_the_conversation(queue: bool) -> None:
    bench, model = Bench(), busy_model()
    modes = [mode for mode in Mode if mode is not Mode.REJECT]
    async with opened(model, bench, queue=queue) as session:
        tasks = []
        for number in range(30):
            tasks.append(sending(session, f"message {number}", mode=modes[number * 7 % len(modes)]))
            for _ in range(number * 5 % 13):
                await asyncio.sleep(0)
            if number % 11 == 10:
                await session.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        await session.wait_idle()
        assert (await session.send("last")).text == "to last"
    assert [end for end in ends if not isinstance(end, RunResult | LanewayError)] == []
    check_model(model)


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_two_sessions_of_one_agent_do_not_disturb_each_other(queue: bool) -> None:
    bench = Bench("a")
    left, right = ScriptedModel([use("act", "a"), [say("left")]]), ScriptedModel([[say("right")], [say("more")]])
    async with agent_of(left, bench) as agent:
        one_ = session_of(agent, queue=queue)
        two = session_of(agent, queue=queue, model=right)
        watch = Watch(one_.stream("left"))
        await bench.begun("a").wait()
        assert (await two.send("right")).text == "right"
        assert now_ms() == 0
        await two.cancel()
        two.pause()
        await two.close()
        bench.let_go()
        await watch.task
        with pytest.raises(ClosedError):
            await two.send("closed")
        assert (await one_.send("again")).text == "done"
    assert watch.text == "left"
    check_events(watch.events)
    assert prompts(left.requests[-1]) == ["left", "again"]
    assert prompts(right.requests[-1]) == ["right"]


@staged
async def test_many_sessions_share_one_model_and_none_hears_of_another() -> None:
    model = ScriptedModel()
    async with agent_of(model) as agent:
        sessions = [session_of(agent, queue=number % 2 == 0) for number in range(8)]
        results = await asyncio.gather(*(session.send(f"I am {n}") for n, session in enumerate(sessions)))
        more = await asyncio.gather(*(session.send("and now?") for session in sessions))
    assert [result.text for result in results] == [f"You said: I am {n}" for n in range(8)]
    assert {result.text for result in more} == {"You said: and now?"}
    for request in model.requests:
        assert len({text for text in prompts(request) if text.startswith("I am")}) == 1


# ---- closing, pausing ----


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_closing_a_session_in_a_run_ends_it_and_every_stream(queue: bool, stored: bool) -> None:
    bench = Bench("a")
    model = ScriptedModel([use("act", "a", "b"), [say("never")]])
    async with opened(model, bench, queue=queue, session_store=MemoryStore() if stored else None) as session:
        watch = Watch(session.stream("go"))
        waits = Watch(session.stream("waits"))
        hears = Watch(session.subscribe())
        await bench.begun("a").wait()
        await passing()
        send = sending(session, "as well")
        await passing()
        await asyncio.gather(session.close(), session.close())
        await asyncio.gather(watch.task, waits.task, hears.task)
        with pytest.raises(LanewayError):
            await send
        with pytest.raises(ClosedError):
            await session.send("too late")
    assert watch.types[-1] == "error"
    check_events(watch.events)
    assert waits.types[-1] == "error"
    assert len(waits.of("end", "error")) == 1
    assert (bench.began, bench.cancelled) == (["a"], ["a"])
    assert len(model.requests) == 1


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("delay_ms", [1, 20, 60])
@staged
async def test_a_stream_whose_message_is_being_stored_while_the_session_closes_ends(delay_ms: int, busy: bool) -> None:
    held, store = Held(say("never")), CutStore()
    model = ScriptedModel([held])
    async with opened(model, session_store=store) as session:
        await session.ready()
        if busy:
            sending(session, "go")
            await held.asked.wait()
        store.delay_ms = 50
        stream = session.stream("late")
        watch = Watch(stream)
        await passing(delay_ms)
        await session.close()
        (problem,) = await asyncio.wait_for(asyncio.gather(watch.task, return_exceptions=True), 1_000)
    assert isinstance(problem, ClosedError) or watch.types[-1] == "error"
    assert len(watch.of("end", "error")) <= 1


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_session_is_not_idle_while_it_is_being_read_again(queue: bool) -> None:
    store, held = FaultyStore(MemoryStore()), Held(say("hello"))
    model = ScriptedModel([held])
    async with opened(model, queue=queue, session_store=store) as session:
        watch = Watch(session.subscribe())
        receipt = await post(session, "go")
        await held.asked.wait()
        store.fail_next(times=2)
        store.fail_next(call="load", times=2)
        held.let_go()
        await passing()
        assert store.faults
        await session.wait_idle()
        end = await session.host.inbox.status(receipt.message_id)
    await watch.task
    assert end.answer == "hello"
    assert watch.types[-1] == "end"


@staged
async def test_closing_a_session_that_was_never_used_needs_nothing() -> None:
    model = ScriptedModel([])
    async with opened(model) as session:
        await session.close()
        await session.close()
    assert model.requests == []


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_paused_session_starts_nothing_new_and_goes_on_when_it_is_resumed(queue: bool) -> None:
    bench = Bench("a")
    model = ScriptedModel([use("act", "a", "b"), [say("done")]])
    async with opened(model, bench, queue=queue) as session:
        task = sending(session, "go")
        await bench.begun("a").wait()
        session.pause()
        session.pause()
        assert session.is_paused
        bench.let_go()
        await passing(1_000)
        assert (bench.ended, bench.began) == (["a"], ["a"])
        session.resume()
        session.resume()
        assert not session.is_paused
        assert (await task).text == "done"
    assert bench.ended == ["a", "b"]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_message_to_a_paused_session_waits_for_the_model(queue: bool) -> None:
    model = ScriptedModel([[say("hello")]])
    async with opened(model, queue=queue) as session:
        await session.ready()
        session.pause()
        task = sending(session, "go")
        await passing(1_000)
        assert model.requests == []
        assert not task.done()
        session.resume()
        assert (await task).text == "hello"


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_paused_run_can_be_cancelled_interrupted_and_closed(queue: bool) -> None:
    model = ScriptedModel([[say("new")]])
    async with opened(model, queue=queue) as session:
        await session.ready()
        session.pause()
        task = sending(session, "go")
        await passing()
        assert await session.cancel("enough")
        with pytest.raises(RunCancelledError, match="enough"):
            await task
        old = sending(session, "old")
        await passing()
        new = await session.interrupt("new")
        with pytest.raises(RunCancelledError):
            await old
        session.resume()
        assert (await final_of(session, new)).answer == "new"
        session.pause()
        sending(session, "closed")
        await passing()
    assert len(model.requests) == 1
    assert prompts(model.requests[0]) == ["go", "old", "new"]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_cut_right_after_a_steer_while_paused_loses_nothing_that_was_said(queue: bool) -> None:
    bench, store = Bench("a"), CutStore()
    model = ScriptedModel([use("check", "a", "b"), [say("here")]])
    async with opened(model, bench, queue=queue, session_store=store) as session:
        task = sending(session, "go")
        await bench.begun("a").wait()
        await post(session, "rather", "steer")

        def pausing(batch: Batch) -> bool:
            session.pause()  # while the boundary is being stored: the round is whole and not on disk yet
            return False

        store.refuse = pausing
        bench.let_go()
        await passing()
        assert session.is_paused
        store.refuse = lambda batch: False
        await session.cancel()
        session.resume()
        with pytest.raises(RunCancelledError):
            await task
        await session.wait_idle()
        await session.send("are you there?")
    heard = prompts(model.requests[-1])
    assert (heard.count("go"), heard[-1]) == (1, "are you there?")
    assert "rather" in heard
    assert "results a=ok b=skipped" in shape(model.requests[-1])
    check_model(model)


def test_a_session_on_another_loop_is_refused_in_words() -> None:
    agent = AsyncAgent(ScriptedModel([[say("hello")]]), builtin_tools=False)
    session = agent.session(".")
    assert asyncio.run(session.send("go")).text == "hello"
    with pytest.raises(UsageError, match="another event loop"):
        asyncio.run(session.send("again"))
    with pytest.raises(UsageError, match="another event loop"):
        asyncio.run(session.close())
    with pytest.raises(UsageError, match="another event loop"):
        asyncio.run(agent.close())


@staged
async def test_a_workspace_that_is_not_there_is_told_by_the_tools_that_need_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = ScriptedModel([[call("read", path="a")], [say("I see")]])
    async with AsyncAgent(model) as agent:
        assert (await agent.session("/no/such/folder").send("go")).text == "I see"
    assert "the workspace /no/such/folder is not there" in str(model.requests[-1])
    assert "does not exist" in caplog.text


def test_of_how_far_a_task_has_come_a_run_keeps_only_the_newest() -> None:
    log = EventLog()
    task: dict[str, Any] = {"lane": "execute", "command_type": "bash", "worker": "w1"}
    for percent in range(100):
        for task_id in ("t1", "t2"):
            log.add(ExternalTaskProgressEvent(**task, task_id=task_id, percent=percent))
        log.add(TextDeltaEvent(text="x"))
    kept = [event for event in log.events if isinstance(event, ExternalTaskProgressEvent)]
    assert [(event.task_id, event.percent) for event in kept] == [("t1", 99), ("t2", 99)]
    assert len(log.events) == 3
