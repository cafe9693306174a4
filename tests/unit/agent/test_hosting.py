"""What a host does with a session: labels, events, and leaving memory."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

from laneway.agent.hosting import DEADLINE_MS
from laneway.agent_events import BudgetThresholdHitEvent, PassivationRequestedEvent, TextDeltaEvent
from laneway.dialogue import ModelRequest
from laneway.errors import (
    ClosedError,
    ConfigError,
    InvalidMessageError,
    ModelLimitedError,
    ModelUnavailableError,
    PassivatedError,
    StoreUnavailableError,
    UnknownMessageError,
    UsageError,
)
from laneway.mail import Outcome
from laneway.models import ScriptedModel, call, fail, say
from laneway.options import SessionOptions
from laneway.sim.loop import run_sim
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.testing.faults import FaultyStore
from laneway.tools import FunctionTool
from tests.agent_stage import (
    Bench,
    Held,
    Watch,
    agent_of,
    check_model,
    final_of,
    one,
    opened,
    post,
    sending,
    session_of,
    use,
)
from tests.approval_stage import asks, the_one
from tests.stage import now_ms, passing, simulated
from tests.subagent_stage import Cast

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
        (
            {"type": "budget_threshold_hit", "resource": "t", "kind": "soft", "consumed": 10**400, "limit": 2},
            "consumed is a number",
        ),
        (
            {"type": "budget_threshold_hit", "resource": "t", "kind": "soft", "consumed": 1, "limit": -(10**5000)},
            "limit is a number",
        ),
        ({"type": "passivation_requested", "reason": "r", "deadline_ms": 10**5000}, "deadline_ms is a whole number"),
        ({"type": "peer_invocation", "from_session_id": "\ud800"}, "from_session_id has a character"),
        ({"type": "peer_invocation", "from_session_id": "a\x1b[31m"}, "from_session_id has a character"),
        ({"type": "peer_invocation", "from_session_id": "a", 5: 6}, "has no field 5"),
        ({}, "a host publishes"),
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
async def test_a_run_that_waits_for_people_is_at_a_boundary() -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a", "b"), [say("done")]])
    async with opened(model, bench, session_store=MemoryStore(), session_id="s", **asks()) as session:
        message = await post(session, "go")
        first = await the_one(session)
        began = now_ms()
        await session.passivate("evicted")
        assert now_ms() == began
        assert await session.confirm_tool_use(first["approval_id"], approved=True)
        second = await the_one(session)
        began = now_ms()
        await session.passivate("evicted")
        assert now_ms() == began
        assert bench.began == ["a"]
        assert await session.confirm_tool_use(second["approval_id"], approved=True)
        assert (await final_of(session, message)).answer == "done"
    assert bench.began == ["a", "b"]
    check_model(model)


@simulated
async def test_a_run_that_waits_for_people_is_at_no_boundary_while_another_call_runs() -> None:
    bench = Bench("b")
    bench.tools.append(bench.tool("peek", lane="query", effect="read"))
    model = ScriptedModel([[one("look", "a"), one("peek", "b")], [say("done")]])
    async with opened(model, bench, queue=True, session_store=MemoryStore(), session_id="s", **asks()) as session:
        message = await post(session, "go")
        await bench.begun("b").wait()
        asked = await the_one(session)
        leaving = sending_passivation(session)
        await passing(1_000)
        assert not leaving.done()
        bench.let_go("b")
        await leaving
        assert now_ms() < DEADLINE_MS
        assert await session.confirm_tool_use(asked["approval_id"], approved=True)
        assert (await final_of(session, message)).answer == "done"
    assert bench.began == ["b", "a"]


@pytest.mark.parametrize(
    "error",
    [
        ModelLimitedError("slow down", model="scripted", retry_after_ms=3_600_000),
        ModelUnavailableError("away", model="scripted"),
    ],
)
@simulated
async def test_a_run_that_waits_for_a_provider_is_at_a_boundary(error: Exception) -> None:
    model = ScriptedModel([[fail(error)], [say("done")]])
    async with opened(model, session_store=MemoryStore(), session_id="s") as session:
        message = await post(session, "go")
        await passing(100)
        began = now_ms()
        await session.passivate("evicted")
        assert now_ms() == began
        assert len(model.requests) == 1
        await session.ready()
        assert (await final_of(session, message)).answer == "done"


@simulated
async def test_a_session_that_is_paused_while_it_waits_for_a_provider_asks_nothing_more() -> None:
    model = ScriptedModel([[fail(ModelUnavailableError("away", model="scripted"))], [say("done")]])
    async with opened(model, session_id="s") as session:
        message = await post(session, "go")
        await passing(100)
        session.pause()
        await passing(60_000)
        assert len(model.requests) == 1
        session.resume()
        assert (await final_of(session, message)).answer == "done"


@pytest.mark.parametrize("tool", ["spawn", "task"])
@simulated
async def test_a_call_of_a_parent_is_waited_for_although_its_sub_agent_rests(tool: str) -> None:
    bench = Bench("w", "c")
    bench.tools[2] = bench.tool("act", effect="write", parallel=True)
    cast = Cast(go=[[call(tool, prompt="sub").with_id("t"), one("act", "w")]], sub=[use("check", "c")])
    async with opened(
        cast.model, bench, queue=True, session_store=MemoryStore(), session_id="s", subagents=True
    ) as session:
        message = await post(session, "go")
        await bench.begun("w").wait()
        await bench.begun("c").wait()
        leaving = sending_passivation(session)
        bench.let_go("c")
        await passing(1_000)
        assert not leaving.done()
        bench.let_go("w")
        await leaving
        assert now_ms() < DEADLINE_MS
        await session.ready()
        assert (await final_of(session, message)).outcome is Outcome.SUCCEEDED
    assert bench.cancelled == []


@simulated
async def test_a_pause_outlives_a_passivation() -> None:
    model = ScriptedModel([[say("one")], [say("two")]])
    async with opened(model, session_store=MemoryStore(), session_id="s") as session:
        assert (await session.send("1")).text == "one"
        session.pause()
        await session.passivate()
        message = await post(session, "2")
        await passing(60_000)
        assert len(model.requests) == 1
        session.resume()
        assert (await final_of(session, message)).answer == "two"


@simulated
async def test_a_close_does_not_wait_for_the_deadline_of_a_passivation() -> None:
    held = Held(say("never"))
    async with opened(ScriptedModel([held]), session_store=MemoryStore(), session_id="s") as session:
        await post(session, "go")
        await held.asked.wait()
        leaving = sending_passivation(session, deadline_ms=3_600_000)
        await passing(10)
        await session.close()
        await leaving
        assert now_ms() < DEADLINE_MS


@simulated
async def test_a_deadline_can_be_pulled_in_at_every_step_of_a_passivation() -> None:
    async with opened(ScriptedModel([[say("yes")]]), session_store=MemoryStore(), session_id="s") as session:
        await session.send("hello")
        leaving = sending_passivation(session)
        steps = 0
        while not leaving.done():
            session.hurry(0)  # it raised when the session was at rest and not gone yet
            steps += 1
            await asyncio.sleep(0)
        await leaving
        assert steps > 3
        assert session.key not in session.host.sessions


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
async def test_a_run_whose_session_leaves_does_not_go_on_because_the_store_failed_meanwhile() -> None:
    bench, store = Bench("a"), FaultyStore(MemoryStore())
    model = ScriptedModel([use("nail", "a"), [say("seen")], [say("and this")]])
    async with opened(model, bench, session_store=store, session_id="s") as session:
        message = await post(session, "go")
        await bench.begun("a").wait()
        store.fail_next(error=StoreUnavailableError("the disk is full"), times=2)  # and the session is loaded again
        leaving = sending_passivation(session, deadline_ms=0)
        await passing(1_000)
        bench.let_go("a")
        await leaving
        assert len(model.requests) == 1
        await session.ready()
        assert (await final_of(session, message)).answer == "seen"
    assert bench.began == ["a"]


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
    script: list[Any] = [
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


@simulated
async def test_whoever_waits_for_an_answer_is_told_that_it_comes_later_and_need_not_be_asked_for_again() -> None:
    held = Held(say("never"))
    model = ScriptedModel([held, [say("at last")], [say("at last")]])
    async with opened(model, session_store=MemoryStore(), session_id="s") as session:
        waiting = sending(session, "hello")
        await held.asked.wait()
        watch = Watch(session.stream("and this"))
        await passing(1)
        await session.passivate(deadline_ms=0)
        with pytest.raises(PassivatedError, match=r"session 's' has left memory before .* had its answer") as told:
            await waiting
        (ended,) = watch.of("error")
        assert ended.error_kind == "passivated"
        assert (await session.wait(told.value.message_id)).text == "at last"


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
async def test_the_answer_of_a_peer_is_for_the_session_that_has_asked() -> None:
    async with agent_of(ScriptedModel([[say("secret")]] * 2), session_store=MemoryStore()) as agent:
        asker, peer = session_of(agent, session_id="a"), session_of(agent, session_id="b")
        stranger = session_of(agent, session_id="a", tenant_id="other")
        await peer.ready()
        asked = await asker.invoke_peer("b", "what is it?")
        assert (await asker.peer_answer(asked.message_id)).answer == "secret"
        own = await post(peer, "to myself")
        for who, message_id in ((stranger, asked.message_id), (asker, own.message_id), (asker, "m-999")):
            with pytest.raises(UnknownMessageError):
                await who.peer_answer(message_id)
        with pytest.raises(InvalidMessageError, match="must not be empty"):
            await asker.invoke_peer("b", "")
        odds: list[Any] = [["x"], {}, 5, None]
        for odd in odds:
            with pytest.raises(InvalidMessageError, match="the id of a message is text, not"):
                await asker.peer_answer(odd)


@simulated
async def test_sessions_that_wait_for_each_other_in_a_ring_are_told() -> None:
    ring = {"a": "b", "b": "c", "c": "a"}
    sessions: dict[str, Any] = {}

    async def ask(me: str) -> str:
        receipt = await sessions[me].invoke_peer(ring[me], f"from {me}")
        return str((await sessions[me].peer_answer(receipt.message_id)).answer)

    def answers(me: str) -> Any:
        return lambda request: [call("ask", me=me)] if str(request.conversation[-1]).startswith("user") else [say(me)]

    tool = FunctionTool(ask, name="ask", description="asks a peer", effect="write")
    store = MemoryStore()
    async with contextlib.AsyncExitStack() as stack:
        for name in ring:
            agent = await stack.enter_async_context(
                agent_of(ScriptedModel([answers(name)] * 4), [tool], session_store=store)
            )
            sessions[name] = session_of(agent, session_id=name)
            await sessions[name].ready()
        assert (await sessions["a"].send("go")).text == "a"
        assert "waits by session 'b' for" in str(await sessions["c"].history())


@simulated
async def test_a_ring_that_goes_through_a_sub_agent_is_seen_as_well() -> None:
    sessions: dict[str, Any] = {}

    async def ask(me: str, whom: str) -> str:
        receipt = await sessions[me].invoke_peer(whom, f"from {me}")
        return str((await sessions[me].peer_answer(receipt.message_id)).answer)

    def of_a(request: ModelRequest) -> list[Any]:
        said = str(request.conversation[-1])
        if said == "user: go":
            return [call("task", prompt="ask b")]
        return [call("ask", me="a", whom="b")] if said == "user: ask b" else [say("a is done")]

    def of_b(request: ModelRequest) -> list[Any]:
        said = str(request.conversation[-1])
        return [call("ask", me="b", whom="a")] if said.startswith("user") else [say("b is done")]

    tool = FunctionTool(ask, name="ask", description="asks a peer", effect="write")
    store = MemoryStore()
    async with (
        agent_of(ScriptedModel([of_a] * 8), [tool], session_store=store, subagents=True) as one,
        agent_of(ScriptedModel([of_b] * 8), [tool], session_store=store) as other,
    ):
        sessions |= {"a": session_of(one, session_id="a"), "b": session_of(other, session_id="b")}
        await sessions["b"].ready()
        assert (await sessions["a"].send("go")).text == "a is done"
        assert "for turn-" in str(await sessions["b"].history())


@simulated
async def test_a_peer_that_has_left_memory_gets_its_message_when_it_is_back() -> None:
    async with agent_of(ScriptedModel([[say("back")]]), session_store=MemoryStore()) as agent:
        first, second = session_of(agent, session_id="a"), session_of(agent, session_id="b")
        await second.ready()
        await second.passivate()
        receipt = await first.invoke_peer("b", "are you there?")
        assert receipt.reason == "nobody has its session open: it runs as soon as somebody does, here or elsewhere"
        await second.ready()
        assert (await first.peer_answer(receipt.message_id)).answer == "back"


def test_a_message_that_comes_while_a_session_is_opened_and_leaves_again_is_taken() -> None:
    async def main() -> None:
        model = ScriptedModel([[say("yes")]] * 20)
        async with agent_of(model) as agent:
            session = session_of(agent, session_id="s", session_store=MemoryStore())
            await session.passivate("away", deadline_ms=0)
            first, _, second = await asyncio.gather(
                session.followup("one"), session.passivate("away again", deadline_ms=0), session.followup("two")
            )
            await session.wait_idle()
            finals = [await session.host.inbox.wait(each.message_id) for each in (first, second)]
            assert [final.outcome for final in finals] == [Outcome.SUCCEEDED] * 2

    for seed in (*range(10), 18, 72, 73):  # the last three did not take it once
        run_sim(main(), seed=seed)


def test_a_session_does_not_leave_before_a_message_that_is_on_its_way_is_on_disk() -> None:
    async def main(seed: int) -> None:
        store = FaultyStore(MemoryStore(), random.Random(seed))
        store.slow, store.delay_ms = 1.0, 20
        async with agent_of(ScriptedModel([[say("yes")]] * 20)) as agent:
            session = session_of(agent, session_id="s", session_store=store)
            await session.ready()
            sent = [asyncio.ensure_future(session.followup(f"m{at}", message_id=f"p{at}")) for at in range(3)]
            await passing(seed)
            await session.passivate("away", deadline_ms=0)
            receipts = await asyncio.gather(*sent)
            await session.wait_idle()
            finals = [await session.host.inbox.wait(each.message_id) for each in receipts]
            assert [final.outcome for final in finals] == [Outcome.SUCCEEDED] * 3, finals

    for seed in range(20):
        run_sim(main(seed), seed=seed)


@simulated
async def test_a_hook_hears_of_a_passivation_that_has_no_time_and_does_not_hold_it_up() -> None:
    heard: list[str] = []

    async def hear(event: Any) -> None:
        heard.append(event["payload"]["reason"])
        await passing(20_000)
        heard.append("too late")

    async with opened(ScriptedModel([]), session_store=MemoryStore(), session_id="s") as session:
        session.register_hook("slow", "passivation_requested", handler=hear)
        began = now_ms()
        await session.passivate("evicted", deadline_ms=0)
        assert now_ms() - began <= 2_000
        assert heard == ["evicted"]
