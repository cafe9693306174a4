"""Scenarios 25 to 34 and 36 of the behaviour page against the real agent loop: scripted model, real tools and lanes."""

from __future__ import annotations

import pytest

from laneway.agent_events import SteeredEvent
from laneway.errors import RunCancelledError
from laneway.kernel.texts import SKIPPED
from laneway.mail import MessageState, Mode, Outcome
from laneway.models import ScriptedModel, say
from tests.agent_stage import (
    QUEUES,
    Bench,
    Delivered,
    Held,
    Watch,
    check_events,
    check_model,
    final_of,
    one,
    opened,
    post,
    prompts,
    results,
    sending,
    shape,
    use,
)
from tests.inbox_stage import GUEST, OWNER, CutStore, staged
from tests.stage import passing

PLAN = ("t1", "t2", "t3", "t4", "t5")
LONG = "x" * 4_000  # a thousand tokens


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_25_a_steer_lets_the_first_tool_end_and_skips_the_other_four(queue: bool) -> None:
    """Steer, five sequential tools, message during the first / it ends, four paired skips, the model hears of it."""
    bench = Bench("t1")
    model = ScriptedModel([use("act", *PLAN), [say("redirected")]])
    async with opened(model, bench, queue=queue) as session:
        stream = session.stream("go")
        watch = Watch(stream)
        await bench.begun("t1").wait()
        receipt = await post(session, "rather this", "steer")
        assert receipt.disposition is MessageState.PARKED
        await passing()
        assert bench.began == ["t1"]
        bench.let_go()
        result = await stream.result()
        steered = await final_of(session, receipt)
        await watch.task
    assert result.text == "redirected"
    assert bench.ended == ["t1"]
    assert (steered.disposition, steered.outcome) == (MessageState.STEERED, Outcome.SUCCEEDED)
    assert (steered.turn_id, steered.answer) == (result.run_id, "redirected")
    assert shape(model.requests[1]) == [
        "user: go",
        "calls t1 t2 t3 t4 t5",
        "results t1=ok t2=skipped t3=skipped t4=skipped t5=skipped",
        "user: rather this",
    ]
    assert [each.output for each in results(model.requests[1])] == ["result of t1", *[SKIPPED] * 4]
    check_events(watch.events)
    (told,) = watch.of("steered")
    assert isinstance(told, SteeredEvent)
    assert (told.text, told.skipped) == ("rather this", PLAN[1:])


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_26_the_plan_after_the_redirect_runs_normally(queue: bool) -> None:
    """Steer / tools of the plan after the redirect / run normally."""
    bench = Bench("t1")
    model = ScriptedModel([use("act", "t1", "t2"), use("act", "u1", "u2", "u3"), [say("done")]])
    async with opened(model, bench, queue=queue) as session:
        task = sending(session, "go")
        await bench.begun("t1").wait()
        await post(session, "rather this", "steer")
        bench.let_go()
        assert (await task).text == "done"
    assert bench.ended == ["t1", "u1", "u2", "u3"]
    assert shape(model.requests[2])[3:] == [
        "user: rather this",
        "calls u1 u2 u3",
        "results u1=ok u2=ok u3=ok",
    ]


@staged
async def test_27_no_call_of_a_launched_batch_is_recalled_not_even_one_that_waits_for_a_slot() -> None:
    """Parallel batch launched / message / none recalled."""
    keys = ("p1", "p2", "p3", "p4", "p5", "p6")  # the lane `query` takes four at once
    bench = Bench(*keys)
    model = ScriptedModel([[*use("look", *keys), one("act", "w")], [say("seen")]])
    async with opened(model, bench, queue=True) as session:
        task = sending(session, "go")
        await bench.begun("p4").wait()
        await passing()
        assert sorted(bench.began) == list(keys[:4])
        receipt = await post(session, "and this", "steer")
        await passing()
        assert bench.cancelled == []
        bench.let_go()
        assert (await task).text == "seen"
        assert (await final_of(session, receipt)).disposition is MessageState.STEERED
    assert sorted(bench.ended) == list(keys)
    assert shape(model.requests[1]) == [
        "user: go",
        "calls p1 p2 p3 p4 p5 p6 w",
        "results p1=ok p2=ok p3=ok p4=ok p5=ok p6=ok w=skipped",
        "user: and this",
    ]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_28_a_steer_that_came_too_late_is_the_next_turn_before_what_came_later(queue: bool) -> None:
    """The turn ends before the steer is taken / a later message arrives / the steer is the next turn, order kept."""
    answer = Held(say("finished"))
    model = ScriptedModel([answer, [say("to the steer")], [say("to the later one")]])
    async with opened(model, queue=queue) as session:
        said = Delivered(await session.ready())
        first = sending(session, "go")
        await answer.asked.wait()
        steer = await post(session, "steer", "steer")
        later = await post(session, "later", "followup")
        assert (steer.disposition, later.disposition) == (MessageState.PARKED, MessageState.QUEUED)
        answer.let_go()
        assert (await first).text == "finished"
        ends = [await final_of(session, each) for each in (steer, later)]
        assert await said.texts() == ["finished", "to the steer", "to the later one"]
    assert [end.disposition for end in ends] == [MessageState.RAN, MessageState.RAN]
    assert [end.answer for end in ends] == ["to the steer", "to the later one"]
    assert [prompts(request)[-1] for request in model.requests] == ["go", "steer", "later"]
    check_model(model)


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_29_a_refused_steer_does_not_keep_the_next_one_out(queue: bool) -> None:
    """Two steers, the first refused / second / still tried."""
    bench = Bench("t1")
    model = ScriptedModel([use("act", "t1"), [say("with the second")], [say("to the first")]])
    async with opened(model, bench, queue=queue) as session:
        old = await post(session, "go", thread="A")
        await bench.begun("t1").wait()
        refused = await post(session, "first", "steer", thread="B")
        taken = await post(session, "second", "steer", thread="A")
        assert (refused.disposition, taken.disposition) == (MessageState.QUEUED, MessageState.PARKED)
        assert "another thread" in refused.reason
        bench.let_go()
        ends = [await final_of(session, each) for each in (old, refused, taken)]
    assert [end.disposition for end in ends] == [MessageState.RAN, MessageState.RAN, MessageState.STEERED]
    assert [end.answer for end in ends] == ["with the second", "to the first", "with the second"]
    assert [prompts(request)[-1] for request in model.requests] == ["go", "second", "first"]
    check_model(model)


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_30_a_steer_during_compaction_is_held_and_then_goes_in(queue: bool) -> None:
    """Steer during compaction / held, then injected."""
    summary = Held(say("what was said"))
    model = ScriptedModel([[say("first answer")], [say("both heard")]], context_tokens=1_000, summaries=[summary])
    async with opened(model, queue=queue) as session:
        await session.send(LONG)
        second = sending(session, "second")
        await summary.asked.wait()
        receipt = await post(session, "and this", "steer")
        assert receipt.disposition is MessageState.PARKED
        await passing()
        assert (await session.host.inbox.status(receipt.message_id)).disposition is MessageState.PARKED
        summary.let_go()
        assert (await second).text == "both heard"
        end = await final_of(session, receipt)
    assert (end.disposition, end.answer) == (MessageState.STEERED, "both heard")
    assert [request.purpose for request in model.requests] == ["answer", "summary", "answer"]
    assert shape(model.requests[2]) == [
        "system: [Summary of the conversation so far]\nwhat was said",
        "user: second",
        "user: and this",
    ]


@pytest.mark.parametrize(("thread", "sender"), [("B", OWNER), ("A", GUEST)])
@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_31_a_steer_from_another_thread_or_with_other_rights_waits(queue: bool, thread: str, sender: str) -> None:
    """Steer from another thread / waits."""
    bench = Bench("t1")
    model = ScriptedModel([use("act", "t1", "t2"), [say("undisturbed")], [say("to the other")]])
    async with opened(model, bench, queue=queue) as session:
        old = await post(session, "go", thread="A", sender=OWNER)
        await bench.begun("t1").wait()
        other = await post(session, "mine", "steer", thread=thread, sender=sender)
        assert other.disposition is MessageState.QUEUED
        assert other.reason.startswith("not steered")
        bench.let_go()
        ends = [await final_of(session, each) for each in (old, other)]
    assert bench.ended == ["t1", "t2"]
    assert [end.answer for end in ends] == ["undisturbed", "to the other"]
    assert ends[0].turn_id != ends[1].turn_id
    assert prompts(model.requests[1]) == ["go"]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_32_an_interrupt_cuts_the_tools_pairs_their_calls_and_runs_the_newest(queue: bool) -> None:
    """Interrupt / message / turn cancelled, calls paired, nothing of the old turn is delivered after, newest runs."""
    bench = Bench("t1")
    model = ScriptedModel([[say("wait"), *use("act", "t1", "t2")], [say("new answer")]])
    async with opened(model, bench, queue=queue) as session:
        said = Delivered(await session.ready())
        stream = session.stream("go")
        watch = Watch(stream)
        await bench.begun("t1").wait()
        newest = await session.interrupt("stop that")
        with pytest.raises(RunCancelledError, match=newest.message_id):
            await stream.result()
        end = await final_of(session, newest)
        await watch.task
        bench.let_go()
        assert await said.texts() == ["new answer"]
        assert [entry.state.value for entry in await session.ledger()] == ["unknown"]
    assert (end.disposition, end.answer) == (MessageState.RAN, "new answer")
    assert (bench.began, bench.cancelled, bench.ended) == (["t1"], ["t1"], [])
    assert shape(model.requests[1]) == [
        "user: go",
        "model: wait",
        "calls t1 t2",
        "results t1=unknown t2=cancelled",
        "user: stop that",
    ]
    check_events(watch.events)
    assert watch.events[-1].error_kind == "run_cancelled"


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_32_an_interrupt_cuts_the_model_and_nothing_it_would_have_said_is_heard(queue: bool) -> None:
    """The same, while the model writes its answer."""
    answer = Held(say("old answer"))
    model = ScriptedModel([[say("half"), answer.gate.wait, say(" more")], [say("new answer")]])
    async with opened(model, queue=queue) as session:
        said = Delivered(await session.ready())
        stream = session.stream("go")
        watch = Watch(stream)
        await passing()
        assert watch.text == "half"
        newest = await session.interrupt("stop that")
        end = await final_of(session, newest)
        answer.let_go()
        with pytest.raises(RunCancelledError):
            await stream.result()
        assert await said.texts() == ["new answer"]
        await watch.task
    assert watch.text == "half"
    assert (end.disposition, end.outcome) == (MessageState.RAN, Outcome.SUCCEEDED)
    assert shape(model.requests[1]) == ["user: go", "user: stop that"]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_33_a_finished_answer_is_delivered_and_a_message_after_the_last_tool_is_next(queue: bool) -> None:
    """Answer finished and a message arrives after the last tool / answer delivered, message is the next turn."""
    bench = Bench()
    answer = Held(say("finished"))
    model = ScriptedModel([use("act", "t1"), answer, [say("next")]])
    store = CutStore()
    async with opened(model, bench, queue=queue, session_store=store) as session:
        said = Delivered(await session.ready())
        first = sending(session, "go")
        await answer.asked.wait()
        store.delay_ms = 50  # the end of the turn takes a while to be stored
        answer.let_go()
        await passing(10)
        receipt = await post(session, "late", "steer")
        assert (await first).text == "finished"
        store.delay_ms = 0
        end = await final_of(session, receipt)
        assert await said.texts() == ["finished", "next"]
    assert (end.disposition, end.answer) == (MessageState.RAN, "next")
    assert shape(model.requests[2])[-2:] == ["model: finished", "user: late"]
    check_model(model)


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_34_system_messages_skip_nothing(queue: bool) -> None:
    """Only system messages pending / boundary / no skip."""
    bench = Bench("t1")
    model = ScriptedModel([use("act", "t1", "t2"), [say("done")], [say("noted")]])
    async with opened(model, bench, queue=queue) as session:
        first = sending(session, "go")
        await bench.begun("t1").wait()
        note = await post(session, "a child has ended", "steer", kind="system")
        assert note.disposition is MessageState.QUEUED
        bench.let_go()
        assert (await first).text == "done"
        end = await final_of(session, note)
    assert bench.ended == ["t1", "t2"]
    assert (end.disposition, end.answer) == (MessageState.RAN, "noted")
    assert shape(model.requests[1]) == ["user: go", "calls t1 t2", "results t1=ok t2=ok"]
    check_model(model)


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize("mode", [str(mode) for mode in Mode])
@staged
async def test_36_a_new_conversation_ends_the_run_and_nothing_old_leaks_into_it(mode: str, queue: bool) -> None:
    """`/new` while busy in any mode / then / not queued, nothing leaks."""
    bench = Bench("t1")
    model = ScriptedModel([[say("old text"), *use("act", "t1", "t2")], [say("fresh")]])
    async with opened(model, bench, queue=queue, mode=mode) as session:
        said = Delivered(await session.ready())
        watch = Watch(session.stream("old"))
        await bench.begun("t1").wait()
        waits = await post(session, "waits")
        reply = await session.host.inbox.command(session.session_id, "/new")
        assert "new conversation" in (reply or "")
        await watch.task
        assert (await session.send("hello")).text == "fresh"
        assert (await final_of(session, waits)).disposition is MessageState.WITHDRAWN
        assert [str(each) for each in await session.history()] == ["user: hello", "assistant: fresh"]
        assert await said.texts() == ["fresh"]
    assert shape(model.requests[1]) == ["user: hello"]
    assert (bench.began, bench.ended) == (["t1"], [])
    check_events(watch.events)
