"""Calls that take long go on in the background: what the model hears, how often, and what ends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from laneway.agent.session import AsyncSession
from laneway.errors import ConfigError, RunCancelledError
from laneway.kernel.checkpoints import digest_of, note_of
from laneway.models import ScriptedModel, call, plan, say
from laneway.options import LaneHandlerConfig, SessionQueueConfig
from laneway.policies import ConfirmationPolicy, Hook, PermissionPolicy
from laneway.tools import FunctionTool
from tests.agent_stage import (
    QUEUES,
    Bench,
    Held,
    Watch,
    check_events,
    check_model,
    one,
    opened,
    prompts,
    results,
    sending,
    statuses,
    use,
)
from tests.stage import passing, simulated

AFTER = 50
NOTE = "[System note] The background call "


def bench_of(*held: str, **options: Any) -> Bench:
    """Tools that may go on in the background: `mill` writes, `comb` reads, `stamp` is idempotent."""
    bench = Bench(*held)
    bench.tools += [
        bench.tool("mill", effect="write", background=True, **options),
        bench.tool("comb", effect="read", background=True, **options),
        bench.tool("stamp", effect="idempotent", background=True, **options),
    ]
    return bench


@asynccontextmanager
async def stage(*script: Any, held: str = "a", **options: Any) -> AsyncIterator[tuple[AsyncSession, Any, Bench]]:
    """A session whose calls go on in the background after 50 ms."""
    bench = options.pop("bench", None) or bench_of(*held.split())
    model = ScriptedModel([*script])
    options.setdefault("queue", True)
    options.setdefault("background_after_ms", AFTER)
    async with opened(model, bench, **options) as session:
        await session.ready()
        yield session, model, bench
    check_model(model)


def notes(model: Any) -> list[str]:
    """What the model was told of ends, each time it was told."""
    last = model.requests[-1]
    return [text for text in prompts(last) if text.startswith(NOTE)]


# ---- moving, and the end ----


@pytest.mark.parametrize("queue", QUEUES)
def test_a_call_that_takes_long_goes_on_and_its_end_comes_as_one_message(queue: bool) -> None:
    @simulated
    async def main() -> None:
        script = (use("mill", "a"), [say("it runs")], [say("it is ground")])
        async with stage(*script, queue=queue) as (session, model, bench):
            watch = Watch(session.subscribe())
            assert (await session.send("grind")).text == "it runs"
            [result] = results(model.requests[-1])
            [listed] = session.background()
            assert result.status.value == "background"
            assert not result.is_error
            assert listed.background_id in result.output
            assert (listed.tool_id, listed.tool_name, listed.after_ms) == ("a", "mill", AFTER)
            assert f"in the background for 0 ms, as {listed.background_id}" in session.explain()
            assert str(await session.command("/status")).endswith("background calls: 1.")
            assert [entry.state.value for entry in await session.ledger()] == ["intended"]
            assert session.delegates.at_work()
            bench.let_go("a")
            await session.wait_idle()
            assert notes(model) == [f"{NOTE}{listed.background_id} of mill has ended. Result:\nresult of a"]
            assert [entry.state.value for entry in await session.ledger()] == ["done"]
            assert bench.began == ["a"]
            assert session.background() == []
            assert session.explain().startswith("Nothing runs")
            [moved] = watch.of("tool_backgrounded")
            [end] = watch.of("background_end")
            assert (moved.tool_id, moved.tool_name, moved.after_ms) == ("a", "mill", AFTER)
            assert (end.background_id, end.tool_output, end.status.value) == (
                moved.background_id,
                "result of a",
                "ok",
            )
            assert [event.status.value for event in watch.of("tool_end")] == ["background"]

    main()


@simulated
async def test_a_call_that_ends_in_time_and_one_whose_tool_does_not_allow_it_stay_where_they_are() -> None:
    async with stage([one("mill", "quick")], [one("act", "a")], [say("done")]) as (session, model, bench):
        sent = sending(session, "go")
        await bench.begun("a").wait()
        await passing(10 * AFTER)
        assert session.background() == []
        bench.let_go("a")
        assert (await sent).text == "done"
        assert statuses(model.requests[-1]) == [("quick", "ok"), ("a", "ok")]


@simulated
async def test_without_a_threshold_nothing_is_moved() -> None:
    async with stage(use("mill", "a"), [say("done")], background_after_ms=None) as (session, model, bench):
        sent = sending(session, "go")
        await bench.begun("a").wait()
        await passing(1_000_000)
        assert session.background() == []
        bench.let_go("a")
        await sent
        assert statuses(model.requests[-1]) == [("a", "ok")]


@simulated
async def test_tools_may_be_named_by_the_session() -> None:
    options: dict[str, Any] = {"background_tools": ["act"]}
    async with stage(use("act", "a"), [say("on")], [say("off")], **options) as (session, model, bench):
        await session.send("go")
        assert statuses(model.requests[-1]) == [("a", "background")]
        bench.let_go("a")
        await session.wait_idle()
        assert len(notes(model)) == 1


@simulated
async def test_the_threshold_of_the_lane_goes_before_that_of_the_session() -> None:
    config = SessionQueueConfig(lane_handlers={"execute": LaneHandlerConfig(background_after_ms=10 * AFTER)})
    async with stage(use("mill", "a"), [say("on")], [say("off")], queue=config) as (session, _, bench):
        sent = sending(session, "go")
        await bench.begun("a").wait()
        await passing(5 * AFTER)
        assert session.background() == []
        await sent
        assert [each.after_ms for each in session.background()] == [10 * AFTER]
        bench.let_go("a")
        await session.wait_idle()


@simulated
async def test_a_threshold_of_nothing_moves_whatever_does_not_end_at_once() -> None:
    async with stage(use("mill", "a"), [say("on")], [say("off")], background_after_ms=0) as (session, model, bench):
        await session.send("go")
        assert statuses(model.requests[-1]) == [("a", "background")]
        bench.let_go("a")
        await session.wait_idle()
        assert len(notes(model)) == 1


@pytest.mark.parametrize("wrong", [-1, 1.5, "soon", True])
def test_a_threshold_is_a_number_of_milliseconds(wrong: Any) -> None:
    async def main() -> None:
        with pytest.raises(ConfigError):
            async with opened(ScriptedModel(), background_after_ms=wrong):
                pass

    simulated(main)()


@pytest.mark.parametrize("early", [-1, 0, 1])
@pytest.mark.parametrize("queue", QUEUES)
def test_an_end_that_races_with_the_threshold_is_told_once(early: int, queue: bool) -> None:
    @simulated
    async def main() -> None:
        script = (use("mill", "a"), [say("first")], [say("second")])
        async with stage(*script, queue=queue) as (session, model, bench):
            sent = sending(session, "go")
            await bench.begun("a").wait()
            await passing(AFTER + early)
            bench.let_go("a")
            await sent
            await session.wait_idle()
            [(_, status)] = statuses(model.requests[-1])
            assert (status == "background") == (len(notes(model)) == 1)
            assert [entry.state.value for entry in await session.ledger()] == ["done"]
            assert bench.began == ["a"]

    main()


@simulated
async def test_an_end_goes_into_the_run_that_goes_on_and_costs_no_call() -> None:
    late = Held(one("act", "x"), one("act", "y"))
    async with stage(use("mill", "a"), late, [say("done")]) as (session, model, bench):
        sent = sending(session, "go")
        await late.asked.wait()
        bench.held.add("x")
        late.let_go()
        await bench.begun("x").wait()
        bench.let_go("a")
        await passing()
        assert session.background() == []
        bench.let_go("x")
        assert (await sent).text == "done"
        assert len(notes(model)) == 1
        assert statuses(model.requests[-1]) == [("a", "background"), ("x", "ok"), ("y", "ok")]
        await session.wait_idle()
        assert len(model.requests) == 3


@pytest.mark.parametrize("gap", range(8))
def test_an_end_that_races_with_the_end_of_the_run_is_told_once(gap: int) -> None:
    @simulated
    async def main() -> None:
        last = Held(say("first"))
        async with stage(use("mill", "a"), last, [say("second")]) as (session, model, bench):
            sent = sending(session, "go")
            await last.asked.wait()
            last.let_go()
            for _ in range(gap):
                await asyncio.sleep(0)
            bench.let_go("a")
            await sent
            await session.wait_idle()
            assert len(notes(model)) == 1
            assert len(model.requests) == 3

    main()


@simulated
async def test_two_calls_of_one_answer_go_on_each_with_its_own_end() -> None:
    script = ([one("comb", "a"), one("comb", "b")], [say("both run")], [say("one")], [say("two")])
    options: dict[str, Any] = {"tool_lanes": {"comb": "query"}, "held": "a b"}
    async with stage(*script, **options) as (session, model, bench):
        await session.send("go")
        assert statuses(model.requests[-1]) == [("a", "background"), ("b", "background")]
        assert len({each.background_id for each in session.background()}) == 2
        bench.let_go("b")
        await passing()
        assert [each.tool_id for each in session.background()] == ["a"]
        bench.let_go("a")
        await session.wait_idle()
        told = notes(model)
        assert ["result of b" in told[0], "result of a" in told[1]] == [True, True]
        assert len(told) == 2


@simulated
async def test_a_call_in_the_background_keeps_its_slot() -> None:
    config = SessionQueueConfig(execute_max_concurrency=1)
    script = (use("mill", "a"), use("mill", "b"), [say("done")], [say("again")])
    async with stage(*script, queue=config) as (session, _, bench):
        sent = sending(session, "go")
        await bench.begun("a").wait()
        await passing(10 * AFTER)
        assert bench.began == ["a"]
        assert session.queue_stats().lanes["execute"].active == 1
        bench.let_go("a")
        await sent
        assert bench.began == ["a", "b"]
        await session.wait_idle()


@simulated
async def test_a_call_that_fails_in_the_background_is_told_as_failed() -> None:
    async def break_down(key: str) -> str:
        await passing(10 * AFTER)
        raise OSError("the mill is broken")

    bench = bench_of()
    bench.tools.append(FunctionTool(break_down, name="wreck", description="wreck", background=True))
    async with stage(use("wreck", "a"), [say("on")], [say("off")], bench=bench) as (session, model, _):
        await session.send("go")
        await session.wait_idle()
        [note] = notes(model)
        assert "of wreck failed. Result:\n[Failed: OSError: the mill is broken]" in note
        assert [entry.state.value for entry in await session.ledger()] == ["failed"]


@simulated
async def test_a_call_that_runs_out_of_time_in_the_background_may_have_had_its_effect() -> None:
    async with stage(use("mill", "a"), [say("on")], [say("off")], tool_timeout_ms=500) as (session, model, _):
        await session.send("go")
        await session.wait_idle()
        [note] = notes(model)
        assert "timed out" in note
        assert "look before you do it again" in note
        assert [entry.state.value for entry in await session.ledger()] == ["unknown"]


@simulated
async def test_a_result_that_is_too_long_for_a_message_is_an_artifact() -> None:
    async def print_much(key: str) -> str:
        await passing(10 * AFTER)
        return f"begin {'x' * 29_000} end"

    bench = bench_of()
    bench.tools.append(FunctionTool(print_much, name="press", description="press", effect="read", background=True))
    async with stage(use("press", "a"), [say("on")], [say("off")], bench=bench) as (session, model, _):
        watch = Watch(session.subscribe())
        await session.send("go")
        await session.wait_idle()
        [note] = notes(model)
        [end] = watch.of("background_end")
        assert len(note) < 21_000
        assert "begin x" in note
        assert "x end" in note
        assert end.artifact is not None
        assert end.artifact in note
        digest = digest_of(note_of(end.artifact))
        (call_round, *_, told) = session.book.rounds
        assert digest in call_round.named, "it names it from the commit with the message on"
        assert digest in told.named, "and so does the round that was told"


@simulated
async def test_a_retry_of_a_read_goes_on_after_its_run_has_ended() -> None:
    tries: list[int] = []

    async def stumble(key: str) -> str:
        tries.append(1)
        await passing(2 * AFTER)
        if len(tries) < 3:
            raise OSError("once more")
        return "at last"

    bench = bench_of()
    bench.tools.append(FunctionTool(stumble, name="trip", description="trip", effect="read", background=True))
    config = SessionQueueConfig(retry_policy={"strategy": "fixed", "fixed_delay_ms": 500})
    async with stage(use("trip", "a"), [say("on")], [say("off")], bench=bench, queue=config) as (session, model, _):
        assert (await session.send("go")).text == "on"
        await session.wait_idle()
        assert len(tries) == 3
        assert "at last" in notes(model)[0]


@simulated
async def test_a_stream_of_the_run_is_whole() -> None:
    async with stage(use("mill", "a"), [say("on")], [say("off")]) as (session, _, bench):
        watch = Watch(session.stream("go"))
        await watch.task
        check_events(watch.events)
        bench.let_go("a")
        await session.wait_idle()


# ---- gates ----


@simulated
async def test_the_time_of_an_approval_does_not_count_and_hooks_hear_of_the_real_end() -> None:
    heard: list[dict[str, Any]] = []
    hook = Hook("ends", "post_tool_use", handler=lambda event: heard.append(event["payload"]))
    gates: dict[str, Any] = {
        "permission_policy": PermissionPolicy(ask=("mill",)),
        "confirmation_policy": ConfirmationPolicy(enabled=True),
        "hooks": [hook],
    }
    async with stage(use("mill", "a"), [say("on")], [say("off")], **gates) as (session, model, bench):
        sent = sending(session, "go")
        while not await session.pending_confirmations():
            await passing()
        await passing(10 * AFTER)
        assert session.background() == []
        assert await session.confirm_tool_use("a", True)
        await sent
        assert statuses(model.requests[-1]) == [("a", "background")]
        assert heard == []
        bench.let_go("a")
        await session.wait_idle()
        [told] = heard
        assert (told["tool_id"], told["result"]["status"], told["result"]["output"]) == ("a", "ok", "result of a")
        assert told["by"] == "model"


@simulated
async def test_what_only_ends_in_the_background_have_begun_goes_on_five_times_and_then_waits() -> None:
    keys = [f"k{number}" for number in range(8)]
    script = [piece for key in keys for piece in (use("mill", key), [say(f"on {key}")])]
    async with stage(*script, [say("off")], held=" ".join(keys)) as (session, model, bench):
        await session.send("go")
        for key in keys[:5]:
            bench.let_go(key)
            await passing(10 * AFTER)
        assert bench.began == keys[:6]
        assert session.background() == []
        assert session.current_run() is not None
        bench.let_go()
        await session.wait_idle()
        assert [status for _, status in statuses(model.requests[-1])] == ["background"] * 5 + ["ok"]


# ---- ending ----


@simulated
async def test_stop_ends_a_call_in_the_background_and_the_conversation_says_what_is_known() -> None:
    async with stage(use("mill", "a"), [say("on")], [say("later")]) as (session, model, bench):
        await session.send("go")
        stopped = await session.host.inbox.stop(session.session_id)
        assert (stopped.children, stopped.calls) == (0, 1)
        await session.wait_idle()
        assert bench.cancelled == ["a"]
        assert len(model.requests) == 2
        assert [entry.state.value for entry in await session.ledger()] == ["unknown"]
        await session.send("and now?")
        assert statuses(model.requests[-1]) == [("a", "unknown")]
        assert notes(model) == []


@simulated
async def test_the_answer_to_stop_counts_calls_in_the_background() -> None:
    async with stage(use("comb", "a"), [say("on")]) as (session, _, _bench):
        await session.send("go")
        reply = await session.command("/stop")
        assert str(reply).endswith("0 sub-agents, 1 background call.")
        await session.wait_idle()
        assert session.background() == []


@simulated
async def test_cancelling_a_run_ends_its_calls_in_the_background_without_a_message() -> None:
    last = Held(say("never"))
    async with stage([one("mill", "a")], last, [say("next")]) as (session, model, bench):
        sent = sending(session, "go")
        await last.asked.wait()
        assert len(session.background()) == 1
        assert await session.cancel("enough")
        with pytest.raises(RunCancelledError):
            await sent
        await session.wait_idle()
        assert bench.cancelled == ["a"]
        assert session.background() == []
        assert (await session.send("and now?")).text == "next"
        assert statuses(model.requests[-1]) == [("a", "unknown")]
        assert notes(model) == []
        assert [entry.state.value for entry in await session.ledger()] == ["unknown"]


@simulated
async def test_one_of_them_may_be_ended_and_that_is_told() -> None:
    async with stage(use("comb", "a"), [say("on")], [say("off")]) as (session, model, bench):
        await session.send("go")
        [call] = session.background()
        assert not await session.cancel_background("bg-nobody")
        assert await session.cancel_background(call.background_id, "not needed")
        assert not await session.cancel_background(call.background_id)
        await session.wait_idle()
        assert bench.cancelled == ["a"]
        [note] = notes(model)
        assert "of comb was cancelled" in note


@simulated
async def test_a_call_that_may_not_be_interrupted_is_unknown_when_it_does_not_end_in_its_grace() -> None:
    bench = bench_of("a", interruptible=False)
    async with stage(use("mill", "a"), [say("on")], [say("off")], bench=bench) as (session, model, _):
        await session.send("go")
        [call] = session.background()
        ending = asyncio.ensure_future(session.cancel_background(call.background_id, "enough"))
        await passing(1_000)
        assert not ending.done()
        assert await ending
        await session.wait_idle()
        assert bench.cancelled == []
        assert [entry.state.value for entry in await session.ledger()] == ["unknown"]
        assert "it did not end" in notes(model)[0]
        bench.let_go("a")
        await passing()
        assert len(notes(model)) == 1


@simulated
async def test_what_a_call_says_after_its_grace_changes_nothing_that_hooks_have_heard() -> None:
    heard: list[str] = []
    bench = bench_of("a", interruptible=False)

    async def hear(event: Mapping[str, Any]) -> None:
        heard.append(event["payload"]["result"]["status"])
        bench.let_go("a")
        await passing()

    gates: dict[str, Any] = {"bench": bench, "hooks": [Hook("ends", "post_tool_use", handler=hear)]}
    async with stage(use("mill", "a"), [say("on")], [say("off")], **gates) as (session, model, _):
        await session.send("go")
        [call] = session.background()
        assert await session.cancel_background(call.background_id, "enough")
        await session.wait_idle()
        assert heard == ["unknown"]
        assert "it did not end" in notes(model)[0]
        assert [entry.state.value for entry in await session.ledger()] == ["unknown"]


@pytest.mark.parametrize("queue", QUEUES)
def test_a_call_that_may_not_be_interrupted_ends_with_its_session_after_its_grace(queue: bool) -> None:
    @simulated
    async def main() -> None:
        bench = bench_of("a", interruptible=False)
        async with stage(use("mill", "a"), [say("on")], bench=bench, queue=queue) as (session, _, _bench):
            await session.send("go")
            assert len(session.background()) == 1
            await session.close()
            await passing()
            assert bench.cancelled == ["a"]

    main()


@pytest.mark.parametrize("queue", QUEUES)
def test_a_call_that_was_given_up_and_still_works_ends_with_its_session(queue: bool) -> None:
    @simulated
    async def main() -> None:
        bench = bench_of("a", interruptible=False)
        async with stage(use("mill", "a"), [say("on")], bench=bench, queue=queue) as (session, _, _bench):
            await session.send("go")
            [call] = session.background()
            assert await session.cancel_background(call.background_id)
            assert session.background() == []
            assert bench.cancelled == []  # it may not be interrupted, and was given up after its grace
            await session.close()
            assert bench.cancelled == ["a"]

    main()


@simulated
async def test_closing_a_session_without_a_store_ends_them() -> None:
    async with stage(use("mill", "a"), [say("on")]) as (session, _, bench):
        await session.send("go")
        await session.close()
        assert bench.cancelled == ["a"]
        assert session.background() == []


# ---- plans and sub-agents ----


@simulated
async def test_a_step_of_a_plan_waits_for_its_calls() -> None:
    script = ([plan("grind", "bake")], use("mill", "a"), [say("ground")], [say("baked")], [say("done")])
    async with stage(*script, planning=True) as (session, model, bench):
        sent = sending(session, "go")
        await bench.begun("a").wait()
        await passing(10 * AFTER)
        assert session.background() == []
        bench.let_go("a")
        await sent
        assert statuses(model.requests[2])[-1] == ("a", "ok")


@simulated
async def test_a_sub_agent_has_ended_when_its_calls_in_the_background_have() -> None:
    bench = bench_of("a")
    script = ([call("task", prompt="grind")], use("mill", "a"), [say("it runs")], [say("it is ground")], [say("done")])
    async with stage(*script, bench=bench, subagents=True) as (session, model, _):
        sent = sending(session, "go")
        await bench.begun("a").wait()
        await passing(10 * AFTER)
        [child] = session.children()
        assert [each.tool_id for each in child.background()] == ["a"]
        assert not sent.done()
        bench.let_go("a")
        assert (await sent).text == "done"
        [result] = results(model.requests[-1])
        assert result.output == "it is ground"


@simulated
async def test_a_sub_agent_that_is_ended_takes_its_calls_in_the_background_with_it() -> None:
    bench = bench_of("a")
    script = ([call("task", prompt="grind")], use("mill", "a"), [say("it runs")])
    async with stage(*script, bench=bench, subagents=True) as (session, _, _):
        sent = sending(session, "go")
        await bench.begun("a").wait()
        await passing(10 * AFTER)
        [child] = session.children()
        assert len(child.background()) == 1
        await session.host.inbox.stop(session.session_id)
        with pytest.raises(RunCancelledError):
            await sent
        await session.wait_idle()
        assert bench.cancelled == ["a"]
        assert child.background() == []
