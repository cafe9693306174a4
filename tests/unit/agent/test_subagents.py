"""Sub-agents: who works, in which lane, with whose gates, how each end is told, and what is left afterwards."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from laneway.agent.session import AsyncSession
from laneway.errors import ClosedError, ConfigError, RunCancelledError, RunFailedError, UsageError
from laneway.mail import MessageKind
from laneway.models import call, fail, say
from laneway.tools import tool
from tests.agent_stage import (
    QUEUES,
    Bench,
    Watch,
    agent_of,
    one,
    opened,
    prompts,
    sending,
    session_of,
)
from tests.inbox_stage import staged
from tests.stage import now_ms, passing
from tests.subagent_stage import Cast, nested, notes

TOOLS = {"task", "parallel_task", "spawn", "request_followup"}


# ---- one task ----


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_task_is_done_in_a_session_of_its_own_and_its_answer_is_the_result(queue: bool) -> None:
    cast = Cast(go=[[call("task", prompt="find", description="a search")]], find=[[say("it is here")]])
    async with opened(cast.model, queue=queue, subagents=True) as session:
        watch = Watch(session.subscribe())
        assert (await session.send("go")).text == "done go"
        await passing()
        assert cast.said_to("go") == ["it is here"]
        child = next(r.session_id for r in cast.model.requests if prompts(r) == ["find"])
        assert child.startswith(f"{session.session_id}~")
        [start] = watch.of("subagent_start")
        [end] = watch.of("subagent_end")
        assert (start.child_session_id, start.description) == (child, "a search")
        assert (end.task_id, end.status, end.output) == (start.task_id, "succeeded", "it is here")
        types = watch.types
        assert types.index("subagent_start") < types.index("subagent_end") < types.index("tool_end")
        [report] = session.subagents()
        assert (report.status, report["output"], report.child_session_id) == ("succeeded", "it is here", child)


@staged
async def test_a_child_knows_nothing_of_the_conversation_of_its_parent() -> None:
    cast = Cast(go=[[call("task", prompt="find")]])
    async with opened(cast.model, subagents=True) as session:
        await session.send("a secret")
        await session.send("go")
        [request] = [r for r in cast.model.requests if "find" in prompts(r)]
        assert prompts(request) == ["find"]


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_turns_of_sub_agents_run_in_their_own_lane_and_a_waiting_parent_lends_its_slots(queue: bool) -> None:
    cast = Cast(go=[[call("task", prompt="find")]])
    cast.hold("find")
    async with opened(cast.model, queue=queue, subagents=True) as session:
        sent = sending(session, "go")
        await passing()
        lanes = session.host.lanes.stats().lanes
        assert (lanes["subagent"].running, lanes["main"].lent) == (1, 1)
        if queue:
            execute = lanes[f"s:{session.session_id}/execute"]
            assert (execute.running, execute.lent) == (0, 1)
        cast.let_go()
        assert (await sent).text == "done go"
        events = session.host.inbox.engine.store.history.events
        [began] = [e for e in await events(session.owner) if e.type == "turn.started"]
        assert '"main"' in began.body


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_calls_of_tools_beside_a_task_go_on_while_it_waits(queue: bool) -> None:
    bench = Bench()
    cast = Cast(go=[[call("task", prompt="find"), one("act", "a")]])
    cast.hold("find")
    async with opened(cast.model, bench, queue=queue, subagents=True) as session:
        sent = sending(session, "go")
        await passing()
        assert bench.ended == []  # `act` is a barrier of its own
        cast.let_go()
        await sent
        assert bench.ended == ["a"]
        assert cast.said_to("go") == ["done find", "result of a"]


# ---- many, and nested ----


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_lane_of_width_one_and_three_levels_come_to_an_end(queue: bool) -> None:
    cast = nested(3)
    async with opened(cast.model, queue=queue, subagents=True, max_subagents=1) as session:
        cast.lanes = (await session.ready()).host.lanes
        assert (await session.send("go")).text == "done go"
        assert cast.asked.count("level 3") == 1
        assert cast.peak == 1
        assert session.host.lanes.stats().lanes["subagent"].running == 0


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_two_wide_trees_in_a_narrow_lane_come_to_an_end_and_the_cap_holds(queue: bool) -> None:
    three = [{"prompt": f"branch {n}"} for n in range(3)]
    cast = Cast(go=[[call("parallel_task", tasks=three), call("task", prompt="branch 9")]])
    for n in (0, 1, 2, 9):
        cast.parts[f"branch {n}"] = [
            [call("parallel_task", tasks=[{"prompt": f"leaf {n}.{m}"} for m in range(3)])],
            [call("task", prompt=f"last {n}")],
        ]
    async with opened(cast.model, queue=queue, subagents=True, max_subagents=2) as session:
        cast.lanes = (await session.ready()).host.lanes
        assert (await session.send("go")).text == "done go"
        assert cast.peak == 2
        assert sum(text.startswith("leaf") for text in cast.asked) == 12


@pytest.mark.slow
@staged
async def test_a_hundred_parallel_sub_agents_with_tools_of_their_own_come_to_an_end() -> None:
    bench = Bench()
    cast = Cast(go=[[call("parallel_task", tasks=[{"prompt": f"part {n}"} for n in range(100)])]])
    for n in range(100):
        cast.parts[f"part {n}"] = [[one("look", f"look {n}")], [call("task", prompt=f"below {n}")]]
        cast.parts[f"below {n}"] = [[one("act", f"act {n}")]]
    async with opened(cast.model, bench, queue=True, subagents=True) as session:
        cast.lanes = (await session.ready()).host.lanes
        await session.send("go")
        [told] = cast.said_to("go")
        assert [line for line in told.splitlines() if line.startswith("[")] == [
            f"[{n}. succeeded]" for n in range(1, 101)
        ]
        assert cast.peak == 8
        assert len(bench.ended) == 200


@staged
async def test_at_most_max_parallel_tasks_of_one_run_are_at_work() -> None:
    cast = Cast(go=[[call("parallel_task", tasks=[{"prompt": f"part {n}"} for n in range(6)])]])
    cast.hold(*(f"part {n}" for n in range(6)))
    async with opened(cast.model, subagents=True, max_parallel_tasks=2) as session:
        sent = sending(session, "go")
        await passing()
        assert sorted(each.status for each in session.subagents()) == ["running"] * 2 + ["waiting"] * 4
        assert len(session.children()) == 2
        cast.let_go("part 0", "part 1", "part 2")
        await passing()
        assert len(session.children()) == 2
        cast.let_go()
        assert (await sent).text == "done go"


@staged
async def test_the_results_of_parallel_tasks_come_in_order_each_with_its_status() -> None:
    tasks = [{"prompt": "one", "description": "first"}, {"prompt": "two"}, {"prompt": "three", "agent": ""}]
    cast = Cast(go=[[call("parallel_task", tasks=tasks)]], two=[[fail(RuntimeError("no luck"))]] * 9)
    cast.hold("one")
    async with opened(cast.model, subagents=True) as session:
        sent = sending(session, "go")
        await passing(60_000)
        cast.let_go()
        await sent
        [told] = cast.said_to("go")
        assert told.startswith("[1. first: succeeded]\ndone one\n\n[2. failed]\n")
        assert told.endswith("[3. succeeded]\ndone three")
        assert "no luck" in told


@pytest.mark.parametrize(("tasks", "said"), [([], "1 to 1,000 tasks"), ([{"prompt": " "}], "needs a prompt")])
@staged
async def test_tasks_that_are_none_are_refused(tasks: list[Any], said: str) -> None:
    cast = Cast(go=[[call("parallel_task", tasks=tasks)]])
    async with opened(cast.model, subagents=True) as session:
        await session.send("go")
        assert said in cast.said_to("go")[0]
        assert session.subagents() == []


@staged
async def test_the_deepest_sub_agent_may_start_none_and_is_told_why() -> None:
    cast = nested(3)
    async with opened(cast.model, subagents=True, max_subagent_depth=2) as session:
        await session.send("go")
        assert "level 3" not in cast.asked
        [told] = cast.said_to("level 2")
        assert "nested 2 deep" in told


@staged
async def test_the_tools_are_there_only_if_they_are_wanted() -> None:
    async with agent_of(Cast().model) as agent:
        assert not TOOLS & set(session_of(agent).toolbox)
        assert not TOOLS & set(session_of(agent, subagents=True, max_subagent_depth=0).toolbox)
        wanted = session_of(agent, subagents=True)
        assert set(wanted.toolbox) >= TOOLS
        assert all(wanted.toolbox[name].spec.local for name in TOOLS)
        assert {wanted.toolbox[name].spec.effect.value for name in TOOLS} == {"idempotent"}


@staged
async def test_a_tool_of_the_same_name_is_a_mistake_that_is_told() -> None:
    async with agent_of(Cast().model, [Bench().tool("task")]) as agent:
        session_of(agent)
        with pytest.raises(ConfigError, match="two tools 'task'"):
            session_of(agent, subagents=True)


# ---- ends ----


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_child_that_fails_is_an_error_for_the_model_and_is_not_tried_again(queue: bool) -> None:
    cast = Cast(go=[[call("task", prompt="find")]], find=[[call("nothing")]] * 9)
    async with opened(cast.model, queue=queue, subagents=True, max_tool_rounds=2) as session:
        watch = Watch(session.subscribe())
        await session.send("go")
        await passing()
        [told] = cast.said_to("go")
        assert told.startswith("[The sub-agent failed: ")
        assert [end.status for end in watch.of("subagent_end")] == ["failed"]
        assert cast.asked.count("find") == 2


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_child_that_takes_too_long_is_ended_for_real(queue: bool) -> None:
    bench = Bench("a")
    cast = Cast(go=[[call("task", prompt="find", timeout_ms=5_000)]], find=[[one("act", "a")]])
    async with opened(cast.model, bench, queue=queue, subagents=True) as session:
        watch = Watch(session.subscribe())
        assert (await session.send("go")).text == "done go"
        assert now_ms() == 5_000
        assert bench.cancelled == ["a"]
        assert cast.said_to("go") == ["[The sub-agent timed out: it took longer than 5000 ms]"]
        await passing()
        assert [(end.status, end.duration_ms) for end in watch.of("subagent_end")] == [("timed_out", 5_000)]


@staged
async def test_the_time_of_a_tool_or_of_its_lane_does_not_end_a_task() -> None:
    cast = Cast(go=[[call("task", prompt="find")]])
    cast.hold("find")
    async with opened(cast.model, queue=True, subagents=True, tool_timeout_ms=10) as session:
        sent = sending(session, "go")
        await passing(100_000)
        cast.let_go()
        await sent
        assert cast.said_to("go") == ["done find"]


@pytest.mark.parametrize("how", ["cancel", "interrupt", "stop", "close"])
@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_ending_the_parent_reaches_children_and_grandchildren_before_its_end_is_told(
    how: str, queue: bool
) -> None:
    bench = Bench("a")
    cast = nested(2)
    cast.parts["level 2"] = [[one("act", "a")]]
    async with opened(cast.model, bench, queue=queue, subagents=True) as session:
        watch = Watch(session.stream("go"))
        await bench.begun("a").wait()
        seen: list[list[str]] = []
        watch.task.add_done_callback(lambda _: seen.append(list(bench.cancelled)))
        if how == "cancel":
            assert await session.cancel("enough")
        elif how == "interrupt":
            await session.interrupt("other")
        elif how == "stop":
            stopped = await session.host.inbox.stop(session.session_id)
            assert (stopped.turns, stopped.children) == (1, 1)
        else:
            await session.close()
        await watch.task
        assert seen == [["a"]]
        assert watch.events[-1].event_type == "error"
        assert [end.status for end in watch.of("subagent_end")] == ["cancelled"]
        assert session.children() == []
        if how != "close":
            await session.wait_idle()
            assert notes(cast) == []
            assert list(session.host.sessions) == [session.key]


@staged
async def test_cancelling_a_run_whose_child_waits_for_a_slot_withdraws_the_child() -> None:
    cast = Cast(go=[[call("task", prompt="find")]], first=[[call("task", prompt="slow")]])
    cast.hold("slow")
    async with agent_of(cast.model) as agent:
        first = session_of(agent, subagents=True, max_subagents=1)
        second = session_of(agent, subagents=True)
        one_sent = sending(first, "first")
        await passing()
        sent = sending(second, "go")
        await passing()
        await second.cancel("enough")
        with pytest.raises(RunCancelledError, match="enough"):
            await sent
        cast.let_go()
        assert (await one_sent).text == "done first"
        assert "find" not in cast.asked


@staged
async def test_a_child_that_the_host_ends_is_told_as_cancelled_and_the_parent_goes_on() -> None:
    cast = Cast(go=[[call("task", prompt="find")]])
    cast.hold("find")
    async with opened(cast.model, subagents=True) as session:
        sent = sending(session, "go")
        await passing()
        [report] = session.subagents()
        assert await session.cancel_subagent(report.task_id, "not needed")
        assert not await session.cancel_subagent(report.task_id)
        await sent
        assert cast.said_to("go") == ["[The sub-agent was cancelled: not needed]"]


@pytest.mark.parametrize("call_name", ["task", "spawn"])
@staged
async def test_a_tool_of_a_child_that_would_wait_for_a_session_that_waits_for_it_is_refused(call_name: str) -> None:
    cast = Cast(go=[[call(call_name, prompt="find")]], find=[[call("ask_above")]])
    sessions: list[AsyncSession] = []

    @tool
    async def ask_above() -> str:
        """Ask the session above."""
        return (await sessions[0].send("a question")).text

    async with opened(cast.model, [ask_above], queue=True, subagents=True) as session:
        sessions.append(session)
        await session.send("go")
        await session.wait_idle()
        await passing()
        [told] = cast.said_to("find")
        if call_name == "task":
            assert "waits for that session, which waits for it" in told
        else:  # nobody waits for it
            assert told == "done a question"


# ---- spawn ----


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_spawn_returns_at_once_and_the_end_is_exactly_one_message(queue: bool) -> None:
    cast = Cast(go=[[call("spawn", prompt="find", description="a search")]])
    cast.hold("find")
    async with opened(cast.model, queue=queue, subagents=True) as session:
        assert (await session.send("go")).text == "done go"
        [report] = session.subagents()
        assert report.status == "running"
        assert report.task_id in cast.said_to("go")[0]
        cast.let_go()
        await passing()
        await session.wait_idle()
        assert notes(cast) == ['[System note] Sub-agent "a search" is done. Result:\ndone find']
        assert [r.status for r in session.subagents()] == ["succeeded"]


@staged
async def test_a_spawned_child_that_ends_before_its_turn_is_told_after_it() -> None:
    cast = Cast(go=[[call("spawn", prompt="find")], [call("task", prompt="wait")]])
    cast.hold("wait")
    async with opened(cast.model, subagents=True) as session:
        sent = sending(session, "go")
        await passing()
        assert [r.status for r in session.subagents()] == ["succeeded", "running"]
        assert notes(cast) == []
        cast.let_go()
        await sent
        await passing()
        await session.wait_idle()
        assert len(notes(cast)) == 1


@pytest.mark.parametrize("how", ["failed", "timed out", "was cancelled"])
@staged
async def test_every_end_of_a_spawned_child_is_one_message(how: str) -> None:
    cast = Cast(find=[[call("nothing")]] * 5)
    if how != "failed":
        cast.hold("find")
    limit = 1_000 if how == "timed out" else None
    async with opened(cast.model, subagents=True, max_tool_rounds=1) as session:
        task_id = await session.spawn("find", description="it", timeout_ms=limit)
        await passing(2_000)
        if how == "was cancelled":
            assert await session.cancel_subagent(task_id, "not needed")
        await passing()
        await session.wait_idle()
        [note] = notes(cast)
        assert note.startswith(f'[System note] Sub-agent "it" {how}')


@staged
async def test_stop_ends_spawned_children_counts_them_and_sends_no_message() -> None:
    cast = Cast(go=[[call("spawn", prompt="one"), call("spawn", prompt="two")]])
    cast.hold("one", "two")
    async with opened(cast.model, subagents=True) as session:
        await session.send("go")
        assert (await session.host.inbox.stop(session.session_id)).children == 2
        await passing()
        assert [r.status for r in session.subagents()] == ["cancelled"] * 2
        await session.wait_idle()
        assert notes(cast) == []


@staged
async def test_cancelling_the_run_that_spawned_ends_the_child_with_one_message() -> None:
    cast = Cast(go=[[call("spawn", prompt="one")], [call("task", prompt="two")]])
    cast.hold("one", "two")
    async with opened(cast.model, subagents=True) as session:
        sent = sending(session, "go")
        await passing()
        assert await session.cancel("enough")
        with pytest.raises(RunCancelledError):
            await sent
        assert [r.status for r in session.subagents()] == ["cancelled"] * 2
        await session.wait_idle()
        assert len(notes(cast)) == 1


@staged
async def test_what_an_earlier_run_has_spawned_goes_on_when_a_later_one_is_cancelled() -> None:
    cast = Cast(go=[[call("spawn", prompt="one")]], more=[[call("task", prompt="two")]])
    cast.hold("one", "two")
    async with opened(cast.model, subagents=True) as session:
        await session.send("go")
        sent = sending(session, "more")
        await passing()
        await session.cancel("enough")
        with pytest.raises(RunCancelledError):
            await sent
        assert {r.status for r in session.subagents()} == {"cancelled", "running"}
        cast.let_go()
        await passing()
        await session.wait_idle()
        assert len(notes(cast)) == 1


@staged
async def test_a_child_has_ended_only_when_what_it_spawned_has_and_its_last_word_counts() -> None:
    cast = Cast(go=[[call("task", prompt="find")]], find=[[call("spawn", prompt="deep", description="d")]])
    cast.hold("deep")
    note = '[System note] Sub-agent "d" is done. Result:\ndone deep'
    cast.parts[note] = [[say("all of it")]]
    async with opened(cast.model, subagents=True) as session:
        sent = sending(session, "go")
        await passing()
        assert not sent.done()
        cast.let_go()
        await sent
        assert cast.said_to("go") == ["all of it"]


@staged
async def test_a_model_that_spawns_whenever_it_hears_of_an_end_is_stopped_after_five() -> None:
    cast = Cast(go=[[call("spawn", prompt="find", description="it")]])
    note = '[System note] Sub-agent "it" is done. Result:\ndone find'
    cast.parts[note] = [[call("spawn", prompt="find", description="it")]]
    async with opened(cast.model, subagents=True) as session:
        await session.send("go")
        for _ in range(20):
            await passing()
            await session.wait_idle()
        assert cast.asked.count("find") == 5
        assert "may spawn none" in cast.said_to(note)[-1]


# ---- request_followup ----


@staged
async def test_a_model_may_go_on_in_a_further_turn_at_most_five_deep() -> None:
    cast = Cast(go=[[call("request_followup", text="more")]])
    for depth in range(1, 7):
        cast.parts[f"[System note] Follow-up {depth} that you asked for:\nmore"] = [
            [call("request_followup", text="more")]
        ]
    async with opened(cast.model, subagents=True) as session:
        await session.send("go")
        await session.wait_idle()
        told = [text for text in cast.asked if "Follow-up" in text]
        assert list(dict.fromkeys(text[:25] for text in told)) == [f"[System note] Follow-up {n}" for n in range(1, 6)]
        assert "at most 5 times" in cast.said_to("[System note] Follow-up 5 that you asked for:\nmore")[-1]


@staged
async def test_the_answer_of_a_child_that_asked_for_a_further_turn_is_that_of_the_last() -> None:
    cast = Cast(go=[[call("task", prompt="find")]], find=[[call("request_followup", text="more")]])
    cast.parts["[System note] Follow-up 1 that you asked for:\nmore"] = [[say("now it is found")]]
    async with opened(cast.model, subagents=True) as session:
        await session.send("go")
        assert cast.said_to("go") == ["now it is found"]


# ---- the host ----


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_the_host_may_hand_out_tasks_itself(queue: bool) -> None:
    cast = Cast(bad=[[call("nothing")]] * 3)
    async with opened(cast.model, queue=queue, max_tool_rounds=1) as session:
        result = await session.task("find", description="it")
        assert (result.text, result.rounds) == ("done find", 1)
        with pytest.raises(RunFailedError):
            await session.task("bad")
        reports = await session.parallel_task(["one", {"prompt": "bad"}, {"prompt": "two", "description": "d"}])
        assert [each.status for each in reports] == ["succeeded", "failed", "succeeded"]
        assert [each.output for each in reports][::2] == ["done one", "done two"]
        assert await session.pending() == []


@staged
async def test_whoever_gives_up_waiting_for_a_task_ends_it() -> None:
    cast = Cast()
    cast.hold("find")
    async with opened(cast.model) as session:
        waiting = asyncio.ensure_future(session.task("find"))
        await passing()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert [each.status for each in session.subagents()] == ["cancelled"]
        assert session.children() == []


@pytest.mark.parametrize(
    ("brief", "said"),
    [
        ({"prompt": "x", "agent": "nobody"}, "no agent 'nobody'"),
        ({"prompt": " "}, "needs a prompt"),
        ({"prompt": "x", "timeout_ms": 0}, "timeout_ms"),
        ({"promt": "x"}, "a task is a prompt"),
        ({"prompt": 7}, "prompt is text"),
        (7, "a task is a prompt"),
    ],
)
@staged
async def test_a_brief_that_is_none_is_refused_and_nothing_is_started(brief: Any, said: str) -> None:
    cast = Cast()
    async with opened(cast.model) as session:
        with pytest.raises(UsageError, match=said):
            await session.parallel_task(["fine", brief])
        assert (session.subagents(), cast.asked) == ([], [])


@staged
async def test_closing_the_session_ends_the_tasks_of_its_host() -> None:
    cast = Cast()
    cast.hold("find", "far")
    async with opened(cast.model) as session:
        waiting = asyncio.ensure_future(session.task("find"))
        await session.spawn("far")
        await passing()
        await session.close()
        with pytest.raises((RunCancelledError, ClosedError)):
            await waiting


# ---- what is told, and what is left ----


@staged
async def test_progress_is_told_as_envelopes_without_pieces_of_text() -> None:
    cast = nested(2)
    async with opened(cast.model, subagents=True) as session:
        watch = Watch(session.stream("go"))
        await watch.task
        told = [event.event["type"] for event in watch.of("subagent_progress")]
        assert {"start", "tool_start", "subagent_start", "subagent_end", "end"} <= set(told)
        assert not {"text_delta", "tool_input_delta", "subagent_progress"} & set(told)


@pytest.mark.slow
@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_nothing_of_sub_agents_that_have_ended_stays_in_the_host(queue: bool) -> None:
    cast = Cast(go=[[call("parallel_task", tasks=[{"prompt": f"part {n}"} for n in range(5)])]])
    async with agent_of(cast.model) as agent:
        session = session_of(agent, queue=queue, subagents=True)
        await session.send("warm up")
        before = set(session.host.lanes.engine.kernel.registry.lanes)
        cast.hold("part 0")
        sent = sending(session, "go")
        await passing()
        children = [weakref.ref(each) for each in session.children()]
        assert children
        cast.let_go()
        await sent
        await passing()
        engine = session.host.inbox.engine
        assert list(session.host.sessions) == [session.key]
        assert session.host.guests == {session}
        assert set(session.host.lanes.engine.kernel.registry.lanes) == before
        assert not engine._children  # noqa: SLF001 - nothing else tells of a leak
        assert not engine._child_ends  # noqa: SLF001
        assert not [owner for owner in engine.kernel.boxes if owner != session.owner]
        assert agent.sessions() == [session]
        gc.collect()
        assert [ref() for ref in children] == [None] * len(children)


@pytest.mark.slow
@staged
async def test_the_list_of_sub_agents_is_bounded() -> None:
    cast = Cast()
    async with opened(cast.model) as session:
        await session.parallel_task([f"part {n}" for n in range(105)])
        assert len(session.subagents()) == 100


@staged
async def test_the_message_of_an_end_is_a_system_message_that_never_steers() -> None:
    cast = Cast(go=[[call("task", prompt="slow")]])
    cast.hold("slow")
    async with opened(cast.model, subagents=True, mode="steer") as session:
        sent = sending(session, "go")
        await passing()
        await session.spawn("find")
        await passing()
        [waits] = await session.pending()
        assert waits.message.kind is MessageKind.SYSTEM
        cast.let_go()
        await sent
        await session.wait_idle()
        assert len(notes(cast)) == 1
