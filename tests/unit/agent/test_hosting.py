"""What a host does with a session: labels, events, and leaving memory."""

from __future__ import annotations

from typing import Any

import pytest

from laneway.agent_events import BudgetThresholdHitEvent, PassivationRequestedEvent, TextDeltaEvent
from laneway.errors import ClosedError, ConfigError, InvalidMessageError, UsageError
from laneway.models import ScriptedModel, call, say
from laneway.options import SessionOptions
from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.agent_stage import (
    Bench,
    Held,
    Watch,
    agent_of,
    check_model,
    final_of,
    opened,
    post,
    sending,
    session_of,
    use,
)
from tests.stage import now_ms, passing, simulated

LABELS: dict[str, Any] = {
    "tenant_id": "acme-corp",
    "principal": "user:42",
    "agent_template_id": "reviewer-v3",
    "correlation_id": "req-9f2c",
}


def labels(session: Any) -> dict[str, str | None]:
    return {name: getattr(session, name)() for name in LABELS}


# ---- labels ----


@simulated
async def test_labels_are_read_by_methods_and_are_none_when_nobody_set_them() -> None:
    options = SessionOptions()
    for name, value in LABELS.items():
        setattr(options, name, value)
    async with agent_of(ScriptedModel([])) as agent:
        assert labels(agent.session(".", options)) == LABELS
        assert labels(agent.session(".")) == dict.fromkeys(LABELS)


@simulated
async def test_labels_come_back_and_the_callers_win() -> None:
    disk = MemoryDisk()
    async with agent_of(ScriptedModel([]), session_store=MemoryStore(disk)) as agent:
        await session_of(agent, session_id="s", **LABELS).ready()
    async with agent_of(ScriptedModel([]), session_store=MemoryStore(disk)) as agent:
        session = session_of(agent, session_id="s", tenant_id="acme-corp", correlation_id="req-2")
        await session.ready()
        assert labels(session) == {**LABELS, "correlation_id": "req-2"}
    async with agent_of(ScriptedModel([]), session_store=MemoryStore(disk)) as agent:
        session = session_of(agent, session_id="s", tenant_id="acme-corp")
        await session.ready()
        assert labels(session) == {**LABELS, "correlation_id": "req-2"}


@simulated
async def test_labels_are_in_events_hooks_and_tasks() -> None:
    told: list[Any] = []
    async with opened(ScriptedModel([[say("hello")]]), **LABELS) as session:
        session.register_hook("h", "post_response", handler=lambda event: told.append(event["payload"]))
        watch = Watch(session.subscribe())
        await session.send("hi")
        await passing()
        assert all(LABELS.items() <= event.to_dict()["metadata"].items() for event in watch.events)
    assert LABELS.items() <= told[0].items()


@pytest.mark.parametrize("wrong", ["x" * 1_000_000, "", 5, "a\nb", b"bytes", ["x"]], ids=repr)
@pytest.mark.parametrize("name", list(LABELS))
def test_a_label_that_is_none_is_refused_by_name(name: str, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=name) as caught:
        SessionOptions(**{name: wrong})
    assert len(str(caught.value)) < 500


# ---- events of the host ----


@simulated
async def test_events_of_the_host_are_seen_like_any_other() -> None:
    told: list[Any] = []
    async with opened(ScriptedModel([])) as session:
        for name in ("budget_threshold_hit", "peer_invocation"):
            session.register_hook(name, name, handler=lambda event: told.append(event["payload"]))
        watch = Watch(session.subscribe())
        await session.emit(BudgetThresholdHitEvent(resource="tokens", kind="soft", consumed=9, limit=10))
        await session.emit({"type": "peer_invocation", "from_session_id": "other", "correlation_id": "c"})
        await passing()
        assert watch.types == ["budget_threshold_hit", "peer_invocation"]
    assert [each["session_id"] for each in told] == [session.session_id] * 2
    assert told[1]["from_session_id"] == "other"


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"type": "budget_threshold_hit", "resource": "t", "kind": "soft", "consumed": 1}, "needs limit"),
        (
            {"type": "budget_threshold_hit", "resource": 5, "kind": "soft", "consumed": 1, "limit": 2},
            "resource is text",
        ),
        ({"type": "budget_threshold_hit", "resource": "t", "kind": "x", "consumed": 1, "limit": 2}, "'soft' or 'hard'"),
        (
            {"type": "budget_threshold_hit", "resource": "t", "kind": "soft", "consumed": float("nan"), "limit": 2},
            "consumed is a number",
        ),
        ({"type": "peer_invocation", "from_session": "x"}, "has no field 'from_session'"),
        ({"type": "peer_invocation"}, "needs from_session_id"),
        ({"type": "passivation_requested", "reason": "r", "deadline_ms": -1}, "deadline_ms is a whole number"),
        ({"type": "passivation_requested", "reason": "r", "deadline_ms": 1.5}, "deadline_ms is a whole number"),
        ({"type": "passivation_requested", "reason": "x" * 1_000_000}, "reason is text of at most"),
        ({"type": "text_delta", "text": "x"}, "a host publishes"),
        ({"type": 5}, "a host publishes"),
        (TextDeltaEvent(text="x"), "a host publishes"),
        ("passivation_requested", "not str"),
        (None, "not NoneType"),
    ],
)
@simulated
async def test_an_event_with_wrong_fields_changes_nothing(event: Any, said: str) -> None:
    async with opened(ScriptedModel([[say("well")]])) as session:
        watch = Watch(session.subscribe())
        with pytest.raises(InvalidMessageError, match=said) as caught:
            await session.emit(event)
        assert len(str(caught.value)) < 500
        await passing()
        assert watch.types == []
        assert (await session.send("hi")).text == "well"


# ---- leaving memory ----


@simulated
async def test_an_idle_session_leaves_and_the_next_message_brings_it_back() -> None:
    model = ScriptedModel([[say("one")], [say("two")]])
    async with opened(model, session_store=MemoryStore(), session_id="s", **LABELS) as session:
        await session.send("first")
        await session.passivate("evicted")
        assert session.key not in session.host.sessions
        assert (await session.send("second")).text == "two"
        assert labels(session) == LABELS
    assert [str(said) for said in model.requests[-1].conversation][:2] == ["user: first", "assistant: one"]


@simulated
async def test_a_run_comes_to_a_boundary_and_goes_on_where_it_was() -> None:
    bench = Bench("a")
    model = ScriptedModel([use("act", "a"), [say("done")]])
    async with opened(model, bench, session_store=MemoryStore(), session_id="s") as session:
        message = await post(session, "go")
        await bench.begun("a").wait()
        leaving = sending_passivation(session)
        await passing(1_000)
        assert not leaving.done()  # a call with side effects is on its way
        bench.let_go("a")
        await leaving
        assert model.requests == model.requests[:1]
        await session.ready()
        final = await final_of(session, message)
        assert final.answer == "done"
    assert bench.began == ["a"]
    check_model(model)


def sending_passivation(session: Any, **more: Any) -> Any:
    import asyncio

    task = asyncio.get_running_loop().create_task(session.passivate("evicted", **more))
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task


@simulated
async def test_after_the_deadline_what_runs_is_cut_and_a_write_is_not_made_again() -> None:
    bench = Bench("a")
    model = ScriptedModel([use("act", "a"), [say("seen")]])
    async with opened(model, bench, session_store=MemoryStore(), session_id="s") as session:
        message = await post(session, "go")
        await bench.begun("a").wait()
        began = now_ms()
        await session.passivate("evicted", deadline_ms=2_000)
        assert now_ms() - began >= 2_000
        await session.ready()
        assert (await final_of(session, message)).answer == "seen"
    assert bench.began == ["a"]
    assert "unknown" in str(model.requests[-1]).lower()


@simulated
async def test_a_model_that_takes_long_is_asked_again_later() -> None:
    held = Held(say("never"))
    model = ScriptedModel([held, [say("answer")]])
    async with opened(model, session_store=MemoryStore(), session_id="s") as session:
        message = await post(session, "go")
        await held.asked.wait()
        await session.passivate(deadline_ms=100)
        await session.ready()
        assert (await final_of(session, message)).answer == "answer"


@simulated
async def test_messages_that_come_meanwhile_are_kept_and_run_once() -> None:
    held = Held(say("one"))
    model = ScriptedModel([held, [say("two")], [say("three")], [say("four")]])
    async with opened(model, session_store=MemoryStore(), session_id="s") as session:
        first = await post(session, "1")
        await held.asked.wait()
        leaving = sending_passivation(session, deadline_ms=5_000)
        await passing(10)
        second = await post_during(session, "2")
        third = sending(session, "3")
        held.let_go()
        await leaving
        assert (await third).text
        finals = [await final_of(session, each) for each in (first, second)]
        assert all(each.answer for each in finals)
    said = [prompt for request in model.requests for prompt in str(request).splitlines() if prompt.startswith("user: ")]
    assert {"user: 1", "user: 2", "user: 3"} <= set(said)


async def post_during(session: Any, text: str) -> Any:
    return await session.host.inbox.submit(session.session_id, text, mode="followup", tenant=session.owner.tenant)


@simulated
async def test_an_emitted_request_does_the_same_and_is_told_first() -> None:
    told: list[Any] = []
    async with opened(ScriptedModel([[say("one")]]), session_store=MemoryStore(), session_id="s") as session:
        session.register_hook("h", "passivation_requested", handler=lambda event: told.append(event["payload"]))
        await session.emit(PassivationRequestedEvent(reason="rebalance", deadline_ms=100))
        assert session.key not in session.host.sessions
        assert told[0]["reason"] == "rebalance"
        assert (await session.send("hi")).text == "one"


@simulated
async def test_twice_at_once_is_once_and_a_closed_session_stays_closed() -> None:
    async with opened(ScriptedModel([]), session_store=MemoryStore(), session_id="s") as session:
        first, second = sending_passivation(session), sending_passivation(session)
        await first
        await second
        await session.close()
        with pytest.raises(ClosedError):
            await session.passivate()


@simulated
async def test_a_session_without_a_store_does_not_leave() -> None:
    async with opened(ScriptedModel([[say("one")]])) as session:
        with pytest.raises(UsageError, match="has no session_store"):
            await session.passivate()
        assert (await session.send("hi")).text == "one"


@simulated
async def test_sub_agents_stop_with_their_session_and_go_on_with_it() -> None:
    bench = Bench("a")
    script = [
        [call("task", prompt="do it")],
        use("act", "a"),
        [say("child done")],
        [say("all done")],
    ]
    async with opened(
        ScriptedModel(script), bench, session_store=MemoryStore(), session_id="s", subagents=True
    ) as session:
        message = await post(session, "go")
        await bench.begun("a").wait()
        leaving = sending_passivation(session)
        await passing(1_000)
        assert not leaving.done()  # the write of the sub-agent is on its way
        bench.let_go("a")
        await leaving
        await session.ready()
        assert (await final_of(session, message)).answer == "all done"
    assert bench.began == ["a"] == bench.ended


@simulated
async def test_an_answer_that_has_come_is_acted_on_before_the_session_leaves() -> None:
    held, bench = Held(*use("act", "a")), Bench()
    model = ScriptedModel([held, [say("done")]])
    async with opened(model, bench, session_store=MemoryStore(), session_id="s", queue=True) as session:
        message = await post(session, "go")
        await held.asked.wait()
        leaving = sending_passivation(session)
        await passing(10)
        held.let_go()
        await leaving
        assert bench.ended == ["a"]
        assert len(model.requests) == 1
        await session.ready()
        assert (await final_of(session, message)).answer == "done"
    assert bench.began == ["a"]


# ---- peers ----


@simulated
async def test_a_session_calls_another_which_hears_where_it_comes_from() -> None:
    told: list[Any] = []
    model = ScriptedModel([[say("looks good")]])
    async with agent_of(model, session_store=MemoryStore()) as agent:
        writer = session_of(agent, session_id="writer", correlation_id="req-9f2c")
        reviewer = session_of(agent, session_id="reviewer")
        reviewer.register_hook("h", "peer_invocation", handler=lambda event: told.append(event["payload"]))
        await reviewer.ready()
        watch = Watch(reviewer.subscribe())
        receipt = await writer.invoke_peer("reviewer", "have a look")
        assert (await writer.peer_answer(receipt.message_id)).answer == "looks good"
        await passing()
    facts = {"from_session_id": "writer", "from_tenant_id": "default", "correlation_id": "req-9f2c"}
    assert facts.items() <= told[0].items()
    assert watch.types.index("peer_invocation") < watch.types.index("start")
    assert "laneway.peer" not in str(model.requests)


@simulated
async def test_nobody_can_pretend_to_be_another_session() -> None:
    async with opened(ScriptedModel([[say("hm")]]), session_store=MemoryStore()) as session:
        watch = Watch(session.subscribe())
        mark = {"laneway.peer": {"from_session_id": "boss"}}
        receipt = await post(session, "hi", sender={"id": "session:boss"}, attachments=[mark])
        await final_of(session, receipt)
        await passing()
        assert "peer_invocation" not in watch.types
        with pytest.raises(InvalidMessageError, match="no peer of its own"):
            await session.invoke_peer(session.session_id, "hello")


@simulated
async def test_a_peer_that_has_left_memory_gets_its_message_when_it_is_back() -> None:
    async with agent_of(ScriptedModel([[say("back")]]), session_store=MemoryStore()) as agent:
        first, second = session_of(agent, session_id="a"), session_of(agent, session_id="b")
        await second.ready()
        await second.passivate()
        receipt = await first.invoke_peer("b", "are you there?")
        await second.ready()
        assert (await first.peer_answer(receipt.message_id)).answer == "back"
