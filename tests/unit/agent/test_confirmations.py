"""Somebody is asked before a call is made, about exactly what will be done: answers, ends, rights, races."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import pytest

from laneway.agent.session import AsyncSession
from laneway.errors import ConflictError, RunCancelledError, UsageError
from laneway.mail import ApprovalState, MessageState, Mode, Outcome, Sender
from laneway.models import ScriptedModel, call, say
from laneway.options import SessionQueueConfig
from laneway.policies import ConfirmationPolicy
from laneway.sync import Agent
from laneway.testing import LoopClock, fake_host
from laneway.tools import FunctionTool
from tests.agent_stage import (
    QUEUES,
    Bench,
    Watch,
    agent_of,
    check_events,
    check_model,
    final_of,
    one,
    opened,
    post,
    results,
    sending,
    session_of,
    statuses,
    use,
)
from tests.approval_stage import ASK, SPAN, asks, pending, the_one
from tests.inbox_stage import staged
from tests.stage import now_ms, passing

# ---- answers ----


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_call_waits_for_its_approval_and_is_made_then(queue: bool) -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [say("done")]])
    async with opened(model, bench, queue=queue, **asks()) as session:
        watch = Watch(session.stream("go"))
        found = await the_one(session)
        assert dict(found) == {
            "approval_id": found.approval_id,
            "tool_id": "a",
            "tool_name": "act",
            "args": {"key": "a"},
            "remaining_ms": SPAN - 1,
            "lane": "execute",
            "session_id": session.session_id,
            "reason": found.reason,
        }
        assert "act" in found.reason
        assert bench.began == []
        run = session.current_run()
        assert run is not None
        assert (run.state, found.approval_id in run.reason, "until 2023-11-14T22:13:50" in run.reason) == (
            "waiting",
            True,
            True,
        )
        assert (await session.run_snapshot(run.run_id)).reason == run.reason
        assert found.approval_id in session.explain()
        assert await session.confirm_tool_use("a", True)
        await watch.task
        assert await session.pending_confirmations() == []
        assert not await session.confirm_tool_use("a", True)
    assert bench.ended == ["a"]
    assert statuses(model.requests[1]) == [("a", "ok")]
    asked, answered = watch.of("confirmation_required", "confirmation_received")
    assert (asked.approval_id, asked.tool_id, asked.args, asked.timeout_ms) == (
        found.approval_id,
        "a",
        {"key": "a"},
        SPAN,
    )
    assert (answered.approval_id, answered.approved, answered.answered_by) == (found.approval_id, True, "host")
    assert watch.types.index("confirmation_received") < watch.types.index("tool_queued")
    check_events(watch.events)
    check_model(model)


@pytest.mark.parametrize("by_request", [False, True])
@staged
async def test_a_no_reaches_the_model_with_its_reason(by_request: bool) -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [say("done")]])
    async with opened(model, bench, **asks()) as session:
        watch = Watch(session.stream("go"))
        found = await the_one(session)
        name = found.approval_id if by_request else "a"
        assert await session.confirm_tool_use(name, False, "not on a Friday", by="ada")
        await watch.task
    assert bench.began == []
    (result,) = results(model.requests[1])
    assert (result.status.value, result.output) == ("denied", "[Denied: ada did not approve it: not on a Friday]")
    (answered,) = watch.of("confirmation_received")
    assert (answered.approved, answered.reason, answered.answered_by) == (False, "not on a Friday", "ada")
    (denied,) = watch.of("permission_denied")
    assert denied.gate == "approval"
    check_events(watch.events)


@pytest.mark.parametrize("action", ["reject", "auto_approve"])
@staged
async def test_silence_is_answered_by_the_policy_with_a_warning_before(action: str) -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [say("done")]])
    async with opened(model, bench, **asks(default_timeout_ms=5_000, timeout_action=action)) as session:
        await session.ready()
        at = now_ms()
        watch = Watch(session.stream("go"))
        await watch.task
        assert now_ms() == at + 5_000
    (warned,) = watch.of("confirmation_warning")
    (over,) = watch.of("confirmation_timeout")
    assert (warned.remaining_ms, warned.tool_id) == (1_000, "a")
    taken = {"reject": "rejected", "auto_approve": "auto_approved"}[action]
    assert (over.action_taken, over.approval_id) == (taken, warned.approval_id)
    (result,) = results(model.requests[1])
    if action == "reject":
        assert result.output == "[Denied: nobody approved it within 5000 ms]"
        assert bench.began == []
    else:
        assert bench.ended == ["a"]
    assert watch.of("confirmation_received") == []


@staged
async def test_what_is_approved_is_made_with_exactly_these_arguments_whoever_changes_what_they_saw() -> None:
    made: list[Any] = []

    async def note(items: list[str], deep: dict[str, int]) -> str:
        made.append((items, deep))
        return "noted"

    tool = FunctionTool(note, name="note", description="note", effect="write")
    model = ScriptedModel([[call("note", items=["a"], deep={"n": 1}).with_id("n1")], [say("done")]])
    async with opened(model, [tool], **asks()) as session:
        watch = Watch(session.stream("go"))
        found = await the_one(session)
        found.args["items"].append("evil")
        (event,) = watch.of("confirmation_required")
        event.args["deep"]["n"] = 2
        assert await session.confirm_tool_use("n1", True, args={"deep": {"n": 1}, "items": ["a"]})
        await watch.task
    assert made == [(["a"], {"n": 1})]


@staged
async def test_a_yes_to_what_somebody_has_changed_in_memory_is_a_no() -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [say("done")]])
    async with opened(model, bench, **asks()) as session:
        sent = sending(session, "go")
        await passing()
        (approval,) = await session.approvals()
        changed: Any = approval.arguments
        changed["key"] = "b"
        assert await session.approve(approval.id)
        await sent
    assert bench.began == []
    assert [end for _, end in statuses(model.requests[1])] == ["denied"]


@pytest.mark.parametrize("args", [{"key": "b"}, {}, {"key": "a", "more": 1}, {"key": object()}, {"key": ["a"]}])
@staged
async def test_an_answer_for_other_arguments_changes_nothing(args: Mapping[str, Any]) -> None:
    bench = Bench()
    async with opened(ScriptedModel([use("act", "a"), [say("done")]]), bench, **asks()) as session:
        sent = sending(session, "go")
        found = await the_one(session)
        for approved in (True, False):
            with pytest.raises(ConflictError):
                await session.confirm_tool_use("a", approved, args=args)
        assert [each.approval_id for each in await pending(session)] == [found.approval_id]
        assert bench.began == []
        assert await session.confirm_tool_use("a", True, args={"key": "a"})
        await sent
    assert bench.ended == ["a"]


@pytest.mark.parametrize("approved", ["yes", 1, None, "false"])
@staged
async def test_an_answer_is_true_or_false(approved: Any) -> None:
    async with opened(ScriptedModel([use("act", "a"), [say("done")]]), Bench(), **asks()) as session:
        sent = sending(session, "go")
        await the_one(session)
        with pytest.raises(UsageError):
            await session.confirm_tool_use("a", approved)
        assert len(await pending(session)) == 1
        assert await session.confirm_tool_use("a", False)
        await sent


@staged
async def test_an_approval_covers_one_call_once() -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [call("act", key="a").with_id("a2")], [say("done")]])
    async with opened(model, bench, **asks()) as session:
        sent = sending(session, "go")
        first = await the_one(session)
        assert await session.confirm_tool_use("a", True)
        await passing()
        second = await the_one(session)
        assert (second.args, second.tool_id) == (first.args, "a2")
        assert second.approval_id != first.approval_id
        assert await session.confirm_tool_use("a2", False)
        await sent
    assert bench.began == ["a"]


@staged
async def test_arguments_that_nobody_can_be_shown_are_denied() -> None:
    class Odd(FunctionTool[Any, Any]):
        def check(self, arguments: str) -> dict[str, Any]:
            return {"key": object()}

    async def run(key: str) -> str:
        raise AssertionError(key)

    tool = Odd(run, name="act", description="odd", effect="write")
    model = ScriptedModel([use("act", "a"), [say("done")]])
    async with opened(model, [tool], **asks()) as session:
        assert (await session.send("go")).text == "done"
        assert await session.approvals() == []
    assert "nobody could be asked" in results(model.requests[1])[0].output


@pytest.mark.parametrize("policy", [None, ConfirmationPolicy(enabled=False)])
@staged
async def test_without_anybody_to_ask_such_calls_are_denied(policy: ConfirmationPolicy | None) -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [say("done")]])
    async with opened(model, bench, permission_policy=ASK, confirmation_policy=policy) as session:
        await session.send("go")
    assert bench.began == []
    assert "nobody is there to ask" in results(model.requests[1])[0].output


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_calls_of_a_lane_that_is_passed_are_not_asked_about(queue: bool) -> None:
    bench = Bench()
    model = ScriptedModel([use("look", "q"), use("act", "a"), [say("done")]])
    async with opened(model, bench, queue=queue, **asks(yolo_lanes=("query",))) as session:
        sent = sending(session, "go")
        found = await the_one(session)
        assert (bench.ended, found.tool_name) == (["q"], "act")
        assert await session.confirm_tool_use("a", True)
        await sent
    assert bench.ended == ["q", "a"]


# ---- several at once ----


@staged
async def test_a_batch_is_asked_about_at_once_and_each_call_starts_with_its_own_answer() -> None:
    bench = Bench("free")
    calls = [one("check", "free"), *(one("look", key) for key in ("a", "b", "c"))]
    config = SessionQueueConfig()
    tools = [bench.tool("check", effect="read", lane="query"), *bench.tools[:1]]
    model = ScriptedModel([calls, [say("done")]])
    async with opened(model, tools, queue=config, **asks()) as session:
        watch = Watch(session.stream("go"))
        assert sorted(each.tool_id for each in await pending(session)) == ["a", "b", "c"]
        assert bench.began == ["free"]  # what needs no approval does not wait for it
        run = session.current_run()
        assert run is not None
        assert run.reason.count("of look until") == 3
        turn = session.host.inbox.engine.running_turn(session.owner)
        assert turn is not None
        assert await session.confirm_tool_use("b", True)
        await passing()
        assert (bench.began, turn.state) == (["free", "b"], "waiting")
        assert await session.confirm_tool_use("a", False)
        await passing()
        assert turn.state == "waiting"
        assert await session.confirm_tool_use("c", True)
        await passing()
        assert turn.state == "acting"
        bench.let_go()
        await watch.task
    assert statuses(model.requests[1]) == [("free", "ok"), ("a", "denied"), ("b", "ok"), ("c", "ok")]
    check_events(watch.events)
    check_model(model)


@staged
async def test_every_call_that_waits_can_be_taken_back_and_the_run_goes_on() -> None:
    bench = Bench()
    model = ScriptedModel([use("look", "a", "b"), [say("done")]])
    async with opened(model, bench, queue=True, **asks()) as session:
        watch = Watch(session.stream("go"))
        assert len(await pending(session)) == 2
        assert await session.cancel_confirmations("nobody is here") == 2
        assert await session.cancel_confirmations() == 0
        await watch.task
        states = {row.state for row in await session.host.inbox.engine.store.history.states(session.owner, "approval")}
    assert states == {"withdrawn"}
    assert {each.output for each in results(model.requests[1])} == {
        "[Denied: the request for its approval was withdrawn: nobody is here]"
    }
    assert [event.approved for event in watch.of("confirmation_received")] == [False, False]


@staged
async def test_the_same_id_in_two_sessions_is_answered_where_it_is_said() -> None:
    bench = Bench()
    async with agent_of(ScriptedModel([use("act", "a"), use("act", "a"), [say("x")], [say("x")]]), bench) as agent:
        first, second = session_of(agent, **asks()), session_of(agent, **asks())
        sends = [sending(first, "go"), sending(second, "go")]
        mine, theirs = await the_one(first), await the_one(second)
        assert not await first.confirm_tool_use(theirs.approval_id, True)
        assert not await first.approve(theirs.approval_id)
        assert await first.confirm_tool_use("a", True)
        await sends[0]
        assert mine.approval_id != theirs.approval_id
        assert [each.approval_id for each in await pending(second)] == [theirs.approval_id]
        assert await second.cancel_confirmations() == 1
        await sends[1]


# ---- rights ----

ADA, BOB = Sender(id="ada"), Sender(id="bob")
EVE = Sender(id="eve", rights=("approve",))
OLGA = Sender(id="olga", owner=True)


@staged
async def test_only_approvers_owners_and_the_host_answer_and_others_are_told() -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), use("act", "b"), use("act", "c"), [say("done")]])
    async with opened(model, bench, **asks(approvers=("ada",))) as session:
        sent = sending(session, "go")
        for who, key in ((ADA, "a"), (OLGA, "b"), (None, "c")):
            found = await the_one(session)
            for stranger in (BOB, EVE, "zed"):
                for say_it in ("/approve", "/deny"):
                    reply = await session.command(f"{say_it} {found.approval_id}", sender=stranger)
                    assert "You may not do that: this request names who may answer it" in (reply or "")
            assert [each.tool_id for each in await pending(session)] == [key]
            assert f"Request {found.approval_id} is approved." == await session.command(
                f"/approve {found.approval_id}", sender=who
            )
            late = await session.command(f"/deny {found.approval_id} no", sender=who)
            assert late == f"Request {found.approval_id} is approved."
            too_late = await session.command(f"/deny {found.approval_id} no", sender=EVE)
            assert "this request names who may answer it" in (too_late or "")
            await passing()
        await sent
    assert bench.ended == ["a", "b", "c"]


@staged
async def test_without_named_approvers_the_right_decides() -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [say("done")]])
    async with opened(model, bench, **asks()) as session:
        watch = Watch(session.stream("go"))
        found = await the_one(session)
        assert "right 'approve'" in (await session.command(f"/approve {found.approval_id}", sender=ADA) or "")
        assert "No request" in (await session.command("/approve nonsense", sender=EVE) or "")
        assert "denied" in (await session.command(f"/deny {found.approval_id} too risky", sender=EVE) or "")
        await watch.task
    assert results(model.requests[1])[0].output == "[Denied: eve did not approve it: too risky]"


@staged
async def test_after_a_while_others_may_answer_and_the_run_is_told() -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [say("done")]])
    policy = asks(approvers=("ada",), escalate_after_ms=10_000, escalate_to=("bob",))
    async with opened(model, bench, **policy) as session:
        watch = Watch(session.stream("go"))
        found = await the_one(session)
        assert "may not" in (await session.command(f"/approve {found.approval_id}", sender=BOB) or "")
        await passing(10_000)
        (event,) = watch.of("confirmation_escalated")
        assert (event.approval_id, event.escalated_to, event.remaining_ms) == (found.approval_id, ("bob",), 20_000)
        assert "approved" in (await session.command(f"/approve {found.approval_id}", sender=BOB) or "")
        await watch.task
    assert bench.ended == ["a"]
    assert watch.of("confirmation_received")[0].answered_by == "bob"


# ---- commands ----


@staged
async def test_commands_never_queue_and_plain_text_is_none() -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [say("done")]])
    async with opened(model, bench, **asks()) as session:
        sent = sending(session, "go")
        await the_one(session)
        assert await session.command("yes") is None
        assert "waiting" in (await session.command("/status") or "")
        assert "followup" in (await session.command("/queue") or "")
        assert "right 'stop'" in (await session.command("/compact", sender=BOB) or "")
        assert await session.pending() == []
        assert "1 running turn" in (await session.command("/stop") or "")
        with pytest.raises(RunCancelledError):
            await sent
        assert await session.pending_confirmations() == []
    assert bench.began == []


@staged
async def test_compact_compacts_when_nothing_runs_and_is_put_in_line_when_something_does() -> None:
    bench = Bench()
    model = ScriptedModel([[say("one")], [say("two")], use("act", "a"), [say("three")]])
    async with opened(model, bench, **asks()) as session:
        assert await session.command("/compact") == "There is nothing to compact."
        await session.send("a")
        await session.send("b")
        assert await session.command("/compact") == "The conversation was compacted."
        assert model.requests[2].purpose == "summary"
        sent = sending(session, "c")
        found = await the_one(session)
        assert await session.command("/compact") == "The conversation is being compacted."
        assert [each.tool_id for each in await pending(session)] == [found.tool_id]
        assert await session.confirm_tool_use("a", True)
        await sent
        await session.wait_idle()
        assert model.requests[5].purpose == "summary"


@staged
async def test_a_new_conversation_ends_what_waits_for_an_approval_and_leaks_nothing() -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [say("fresh")]])
    async with opened(model, bench, **asks()) as session:
        old = await post(session, "old")
        found = await the_one(session)
        assert "new conversation" in (await session.command("/new") or "")
        assert (await final_of(session, old)).outcome is Outcome.INTERRUPTED
        assert f"Request {found.approval_id} is withdrawn." == await session.command(f"/approve {found.approval_id}")
        await session.send("hello")
    assert bench.began == []
    assert "old" not in str(model.requests[-1])


# ---- what comes in meanwhile ----


@pytest.mark.parametrize("mode", list(Mode))
@staged
async def test_a_message_while_an_approval_is_pending(mode: Mode) -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [say("one")], [say("two")]])
    async with opened(model, bench, **asks()) as session:
        watch = Watch(session.stream("go"))
        found = await the_one(session)
        receipt = await post(session, "yes, do it", mode)
        await passing()
        cuts, refused = mode in (Mode.INTERRUPT, Mode.ROLLBACK), mode is Mode.REJECT
        assert receipt.disposition is (MessageState.REJECTED if refused else MessageState.QUEUED)
        if cuts:
            assert await session.pending_confirmations() == []
            assert not await session.confirm_tool_use("a", True)
            reply = await session.command(f"/approve {found.approval_id}")
            assert reply == f"Request {found.approval_id} is superseded."
        else:
            assert [each.tool_id for each in await pending(session)] == ["a"]
            assert await session.confirm_tool_use("a", True)
        await watch.task
        if not refused:
            assert (await final_of(session, receipt)).outcome is Outcome.SUCCEEDED
    (answered,) = watch.of("confirmation_received")
    assert answered.approved is not cuts
    assert watch.of("steered") == []
    assert bench.ended == ([] if cuts else ["a"])
    check_events(watch.events)
    check_model(model)


@pytest.mark.parametrize("how", ["cancel", "cancel_run", "stop", "close", "agent"])
@staged
async def test_a_run_that_is_ended_takes_its_request_with_it(how: str) -> None:
    bench = Bench()
    async with opened(ScriptedModel([use("act", "a"), [say("done")]]), bench, **asks()) as session:
        sent = sending(session, "go")
        found = await the_one(session)
        engine = session.host.inbox.engine
        log = session.host.inbox.subscribe("approval.ended")
        if how == "cancel":
            assert await session.cancel("enough")
        elif how == "cancel_run":
            run = session.current_run()
            assert run is not None
            assert await session.cancel_run(run.run_id)
        elif how == "stop":
            await session.host.inbox.stop(session.session_id)
        elif how == "close":
            await session.close()
        if how != "agent":
            with contextlib.suppress(Exception):
                await sent
            await passing()
            assert engine.kernel.boxes.get(session.owner) is None or not engine.kernel.boxes[session.owner].approvals
    with contextlib.suppress(Exception):
        await sent
    ended: list[Any] = [event async for event in log]
    assert [(event.approval_id, event.state) for event in ended] == [(found.approval_id, ApprovalState.WITHDRAWN)]
    assert bench.began == []


@staged
async def test_a_run_that_takes_too_long_takes_its_requests_back_and_says_so() -> None:
    bench = Bench()
    model = ScriptedModel([use("look", "a", "b"), [say("done")]])
    async with opened(model, bench, queue=True, max_execution_time_ms=5_000, **asks()) as session:
        watch = Watch(session.stream("go"))
        assert len(await pending(session)) == 2
        await watch.task
        await passing()
        assert await pending(session) == []
        assert session.current_run() is None
        box = session.host.inbox.engine.kernel.boxes.get(session.owner)
        assert box is None or box.answers == {}
    assert [event.approved for event in watch.of("confirmation_received")] == [False, False]
    assert bench.began == []
    check_events(watch.events)


@pytest.mark.parametrize("early", [0, 1])
@staged
async def test_an_answer_at_the_moment_of_the_expiry_is_late(early: int) -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [say("done")]])
    async with opened(model, bench, **asks(default_timeout_ms=1_000)) as session:
        watch = Watch(session.stream("go"))
        found = await the_one(session)
        await passing(found.remaining_ms - early)
        assert await session.confirm_tool_use("a", True) is bool(early)
        await watch.task
    assert bench.ended == ["a"] * early
    assert len(watch.of("confirmation_received", "confirmation_timeout")) == 1


@staged
async def test_two_answers_at_once_are_one() -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [say("done")]])
    async with opened(model, bench, **asks()) as session:
        watch = Watch(session.stream("go"))
        await the_one(session)
        answers = await asyncio.gather(
            session.confirm_tool_use("a", True, by="ada"), session.confirm_tool_use("a", False, by="bob")
        )
        await watch.task
    assert sorted(answers) == [False, True]
    (event,) = watch.of("confirmation_received")
    assert event.answered_by == ("ada" if answers[0] else "bob")
    assert bench.ended == (["a"] if answers[0] else [])


@pytest.mark.parametrize("jump_ms", [-86_400_000, 86_400_000])
@staged
async def test_a_clock_that_is_set_neither_ends_nor_keeps_a_request(jump_ms: int) -> None:
    clock, bench = LoopClock(), Bench()
    agent = agent_of(ScriptedModel([use("act", "a"), [say("done")]]), bench)
    agent._env = fake_host(clock=clock)  # noqa: SLF001 - the clock of this test
    async with agent:
        session = session_of(agent, **asks())
        sent = sending(session, "go")
        found = await the_one(session)
        at = now_ms()
        clock.jump_wall(jump_ms)
        again = await the_one(session)
        assert again.remaining_ms == found.remaining_ms - (now_ms() - at)
        await sent
        assert now_ms() == at + found.remaining_ms
    assert bench.began == []


# ---- hooks ----


class Listening:
    """Hooks of a session that only listen to requests for approval."""

    def __init__(self, session: AsyncSession, answer: bool | None = None) -> None:
        self.session = session
        self.answer = answer
        self.heard: list[Mapping[str, Any]] = []

    async def __call__(self, event: Mapping[str, Any]) -> None:
        payload = event["payload"]
        self.heard.append(payload)
        if self.answer is not None and payload["state"] == "pending":
            await self.session.confirm_tool_use(payload["approval_id"], self.answer, "said by a hook", by="hook")


@pytest.mark.parametrize("answer", [None, True, False])
@staged
async def test_a_hook_hears_of_a_request_and_of_its_end_and_may_answer_it(answer: bool | None) -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [say("done")]])
    async with opened(model, bench, **asks()) as session:
        hook = Listening(session, answer)
        session.register_hook("h", "on_confirmation", handler=hook)
        sent = sending(session, "go")
        await passing()
        if answer is None:
            assert await session.confirm_tool_use("a", True)
        await sent
    states = ["pending", "denied" if answer is False else "approved"]
    assert [heard["state"] for heard in hook.heard] == states
    assert {heard["tool"] for heard in hook.heard} == {"act"}
    assert hook.heard[0]["args"] == {"key": "a"}
    assert bench.ended == ([] if answer is False else ["a"])


@staged
async def test_a_hook_that_raises_or_hangs_keeps_no_answer_from_anybody() -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [say("done")]])

    async def hang(event: Mapping[str, Any]) -> None:
        await asyncio.get_running_loop().create_future()

    def fail(event: Mapping[str, Any]) -> None:
        raise ValueError("no")

    async with opened(model, bench, **asks()) as session:
        session.register_hook("hang", "on_confirmation", config={"timeout_ms": 1_000}, handler=hang)
        session.register_hook("fail", "on_confirmation", handler=fail)
        sent = sending(session, "go")
        await the_one(session)
        assert await session.confirm_tool_use("a", True)
        await sent
    assert bench.ended == ["a"]


@staged
async def test_what_a_hook_has_changed_is_what_somebody_is_asked_about() -> None:
    bench = Bench()
    model = ScriptedModel([use("act", "a"), [say("done")]])

    async def change(event: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"action": "continue", "args": {"key": "b"}}

    async with opened(model, bench, **asks()) as session:
        session.register_hook("h", "pre_tool_use", handler=change)
        sent = sending(session, "go")
        found = await the_one(session)
        assert found.args == {"key": "b"}
        assert await session.confirm_tool_use("a", True, args={"key": "b"})
        await sent
    assert bench.ended == ["b"]


# ---- sub-agents ----


def delegating(*script: Any) -> ScriptedModel:
    """A model whose first session has another one do it."""
    return ScriptedModel([[call("task", prompt="do it", description="work").with_id("t")], *script])


@pytest.mark.parametrize("way", ["call", "request", "command"])
@staged
async def test_what_a_sub_agent_asks_is_answered_at_its_parent(way: str) -> None:
    bench = Bench()
    model = delegating(use("act", "a"), [say("child")], [say("parent")])
    async with opened(model, bench, subagents=True, **asks(approvers=("ada",))) as session:
        sent = sending(session, "go")
        found = await the_one(session)
        assert (found.tool_id, found.session_id.startswith(f"{session.session_id}~")) == ("a", True)
        assert await session.approvals() == []  # of its own
        if way == "command":
            assert "may not" in (await session.command(f"/approve {found.approval_id}", sender=EVE) or "")
            assert "approved" in (await session.command(f"/approve {found.approval_id}", sender=ADA) or "")
        else:
            assert await session.confirm_tool_use("a" if way == "call" else found.approval_id, True)
        assert (await sent).text == "parent"
    assert bench.ended == ["a"]


@pytest.mark.parametrize("depth", [1, 2, 3])
@staged
async def test_an_answer_that_comes_too_late_counts_for_no_other_call_with_the_same_id_at_any_depth(depth: int) -> None:
    bench = Bench()
    tasks = [[call("task", prompt="do it", description="work").with_id(f"t{n}")] for n in range(depth)]
    again = [[call("act", key="ada").with_id("c")], [call("act", key="eve").with_id("c")]]
    model = ScriptedModel([*tasks, *again, *[[say("done")]] * (depth + 1)])
    async with opened(model, bench, subagents=True, max_subagent_depth=3, **asks()) as session:
        sent = sending(session, "go")
        assert (await the_one(session)).args == {"key": "ada"}
        assert await session.cancel_confirmations("too late") == 1
        await passing()
        found = await the_one(session)
        assert found.args == {"key": "eve"}
        with pytest.raises(ConflictError, match="has been asked about before"):
            await session.confirm_tool_use("c", True)
        assert await session.confirm_tool_use(found.approval_id, False)
        await sent
    assert bench.began == []


@staged
async def test_taking_back_and_ending_reaches_what_sub_agents_ask() -> None:
    bench = Bench()
    model = delegating(use("act", "a"), use("act", "b"), [say("late")])
    async with opened(model, bench, subagents=True, **asks()) as session:
        sent = sending(session, "go")
        assert (await the_one(session)).tool_id == "a"
        assert await session.cancel_confirmations("not now") == 1
        await passing()
        assert (await the_one(session)).tool_id == "b"
        assert await session.cancel("enough")
        with pytest.raises(RunCancelledError):
            await sent
        assert await pending(session) == []
        rows = await session.host.inbox.engine.store.history.states(session.owner, "approval")
        assert rows == []  # they belong to the child
    assert bench.began == []


def test_a_sync_session_asks_and_is_answered_in_a_plain_loop() -> None:
    made: list[str] = []

    def act(key: str) -> str:
        made.append(key)
        return "acted"

    tool = FunctionTool(act, name="act", description="act", effect="write")
    model = ScriptedModel([use("act", "a"), use("act", "b"), [say("done")]])
    with Agent(model=model, tools=[tool], builtin_tools=False, **asks()) as agent, agent.session(".") as session:
        for event in session.stream("go"):
            if event.event_type == "confirmation_required":
                (waits,) = session.pending_confirmations()
                assert waits.approval_id == event.approval_id
                yes = event.tool_id == "a"
                if yes:
                    assert session.confirm_tool_use(event.tool_id, approved=True, args=waits.args)
                else:
                    assert session.cancel_confirmations("enough") == 1
                assert session.command(f"/approve {event.approval_id}") is not None
        assert session.command("hello") is None
    assert made == ["a"]
    assert [end for _, end in statuses(model.requests[2])] == ["ok", "denied"]
