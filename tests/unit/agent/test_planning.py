"""Runs with a plan: it is made first, done step by step on the road of every call, and survives what may happen."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from laneway.agent.session import AsyncSession
from laneway.agent_events import AgentEvent
from laneway.dialogue import ModelRequest, Usage
from laneway.errors import ModelError, RunFailedError
from laneway.kernel.plans import ROLE
from laneway.models import ScriptedModel, call, fail, plan, say
from laneway.models.scripted import Entry
from laneway.options import LaneHandlerConfig, PermissionPolicy, SessionQueueConfig
from laneway.sim.loop import run_sim
from tests.agent_stage import (
    Bench,
    Held,
    Watch,
    check_events,
    check_model,
    one,
    opened,
    prompts,
    sending,
    shape,
    statuses,
    use,
)
from tests.stage import passing, simulated
from tests.unit.agent.test_resume import WAITS, Trade, World

PLAN_EVENTS = ("planning_start", "planning_end", "task_updated", "step_start", "step_end")
STEP_EVENTS = ("step_start", "step_end")


class Stage:
    """A session with a plan, and what was seen of one run."""

    def __init__(self, session: AsyncSession, model: ScriptedModel) -> None:
        self.session = session
        self.model = model
        self.events: list[AgentEvent] = []

    async def run(self, text: str = "do it") -> str:
        """Say something, and watch the run to its end; what it answered."""
        stream = self.session.stream(text)
        self.events = [event async for event in stream]
        check_events(self.events)
        check_plan(self.events)
        check_model(self.model)
        return (await stream.result()).text

    def of(self, *types: str) -> list[Any]:
        """The events of some types."""
        return [event for event in self.events if event.event_type in types]

    def steps(self) -> list[str]:
        """What was told of steps: `start 1`, `end 1 completed`."""
        return told(self.events)


def told(events: list[AgentEvent]) -> list[str]:
    """What was told of steps."""
    lines = []
    for event in events:
        if event.event_type == "step_start":
            lines.append(f"start {event.step_id}")
        elif event.event_type == "step_end":
            lines.append(f"end {event.step_id} {event.status}")
    return lines


def tasks(event: Any) -> str:
    """The tasks of an event: `1:completed 2:pending`."""
    return " ".join(f"{task['id']}:{task['status']}" for task in event.tasks)


def check_plan(events: list[AgentEvent]) -> None:
    """Fail unless each step that begins has one end, one step is done at a time, and the tasks say the same."""
    going = ""
    plans = [event.event_type for event in events if event.event_type.startswith("planning")]
    assert plans in ([], ["planning_start", "planning_end"]), plans
    for event in events:
        if event.event_type == "step_start":
            assert not going, told(events)
            going = event.step_id
        elif event.event_type == "step_end":
            assert going == event.step_id, told(events)
            going = ""
        elif event.event_type == "task_updated":
            doing = [task["id"] for task in event.tasks if task["status"] == "in_progress"]
            assert len(doing) <= 1, tasks(event)
    assert not going, told(events)


@contextlib.asynccontextmanager
async def staged(*script: Entry, bench: Bench | None = None, **options: Any) -> AsyncIterator[Stage]:
    """A session whose runs begin with a plan."""
    model = ScriptedModel(script)
    options.setdefault("planning", True)
    async with opened(model, bench or Bench(), **options) as session:
        yield Stage(session, model)


# ---- the road ----


@pytest.mark.parametrize("queue", [False, True])
async def test_a_plan_is_made_first_and_done_step_by_step(queue: bool) -> None:
    bench = Bench()
    script: list[Entry] = [
        [plan("find", "fix", goal="tidy up")],
        use("look", "a", "b"),
        [say("found")],
        use("act", "c"),
        [say("fixed")],
        [say("all tidy")],
    ]
    async with staged(*script, bench=bench, queue=queue) as stage:
        assert await stage.run() == "all tidy"
    assert bench.ended == ["a", "b", "c"]
    assert stage.steps() == ["start 1", "end 1 completed", "start 2", "end 2 completed"]
    assert [tasks(event) for event in stage.of("task_updated")] == [
        "1:in_progress 2:pending",
        "1:completed 2:in_progress",
        "1:completed 2:completed",
    ]
    assert [request.purpose for request in stage.model.requests] == ["plan"] + ["answer"] * 5
    assert [spec.name for spec in stage.model.requests[0].tools] == ["make_plan"]
    assert [line for line in shape(stage.model.requests[-1]) if not line.startswith("plan: [Make")] == [
        "user: do it",
        "calls call-1",
        "results call-1=ok",
        "plan: [Plan step 1 of 2] find",
        "calls a b",
        "results a=ok b=ok",
        "model: found",
        "plan: [Plan step 2 of 2] fix",
        "calls c",
        "results c=ok",
        "model: fixed",
        "plan: [All steps are done] 2 completed. Now give the user the final answer.",
    ]


async def test_what_is_told_has_the_plan_the_results_and_the_numbers() -> None:
    script: list[Entry] = [[plan("find", "fix")], [say("found")], [say("fixed")], [say("ok")]]
    async with staged(*script) as stage:
        await stage.run()
    begin, end = stage.of("planning_start")[0], stage.of("planning_end")[0]
    assert (begin.prompt, end.steps, end.reason) == ("do it", 2, "")
    start, stop = stage.of("step_start")[1], stage.of("step_end")[1]
    assert (start.step_id, start.step_number, start.total_steps, start.description) == ("2", 2, 2, "fix")
    assert (stop.status, stop.text) == ("completed", "fixed")
    last = stage.of("task_updated")[-1].tasks
    assert last[0] == {"id": "1", "content": "find", "status": "completed", "result": "found"}


async def test_the_answer_of_the_only_step_is_the_answer_of_the_run() -> None:
    async with staged([plan("all of it")], use("look", "a"), [say("there")]) as stage:
        assert await stage.run() == "there"
    assert len(stage.model.requests) == 3
    assert stage.steps() == ["start 1", "end 1 completed"]
    assert tasks(stage.of("task_updated")[-1]) == "1:completed"


async def test_without_planning_nothing_is_planned() -> None:
    async with staged([say("hello")], planning=False) as stage:
        assert await stage.run() == "hello"
    assert stage.of(*PLAN_EVENTS) == []
    assert stage.model.requests[0].purpose == "answer"


async def test_steps_are_done_in_the_order_of_their_dependencies() -> None:
    steps: list[dict[str, Any]] = [
        {"id": "ship", "content": "ship it", "depends_on": ["test"]},
        {"id": "build", "content": "build it"},
        {"id": "test", "content": "test it", "depends_on": ["build"]},
    ]
    async with staged([plan(*steps)]) as stage:
        assert await stage.run() == "done"
    assert stage.steps()[::2] == ["start build", "start test", "start ship"]


async def test_calls_of_a_step_pass_the_same_gates() -> None:
    policy = PermissionPolicy(allow=("look",), deny=("act",))
    script: list[Entry] = [[plan("a", "b")], [one("act", "x"), one("look", "y")], [say("one")], [say("two")]]
    bench = Bench()
    async with staged(*script, bench=bench, permission_policy=policy, queue=True) as stage:
        await stage.run()
    assert bench.began == ["y"]
    assert [event.tool_id for event in stage.of("permission_denied")] == ["x"]
    assert statuses(stage.model.requests[2])[1:] == [("x", "denied"), ("y", "ok")]


async def test_what_all_rounds_used_is_counted() -> None:
    model = ScriptedModel([[plan("a", "b")]], usage=Usage(input_tokens=10, output_tokens=1))
    async with opened(model, planning=True) as session:
        result = await session.send("go")
    assert (result.prompt_tokens, result.completion_tokens, result.rounds) == (40, 4, 4)


async def test_a_conversation_goes_on_after_a_plan() -> None:
    script: list[Entry] = [[plan("a", "b")], [say("1")], [say("2")], [say("end")], [say("no plan")], [say("hi")]]
    async with staged(*script) as stage:
        await stage.run("first")
        assert await stage.run("second") == "hi"
    assert [line for line in prompts(stage.model.requests[-1]) if not line.startswith("[")] == ["first", "second"]


# ---- plans that are none ----


async def test_a_refused_plan_is_asked_for_again_with_its_reason() -> None:
    loops = [{"id": "a", "content": "a", "depends_on": ["b"]}, {"id": "b", "content": "b", "depends_on": ["a"]}]
    async with staged([plan(*loops)], [plan("x", "y")]) as stage:
        await stage.run()
    assert "'a', 'b' wait for one another" in prompts(stage.model.requests[1])[-1]
    assert [request.purpose for request in stage.model.requests][:3] == ["plan", "plan", "answer"]
    assert stage.of("planning_end")[0].steps == 2


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        ([plan()], "no steps"),
        ([call("make_plan", "{nonsense")], "not JSON"),
        ([plan(*["x"] * 4)], "at most 3"),
        ([call("act", key="x")], "make_plan was not called, but act"),
        ([say("")], "empty"),
    ],
)
async def test_after_two_bad_plans_the_run_goes_on_without_one(answer: list[Any], word: str) -> None:
    bench = Bench()
    async with staged(answer, answer, use("look", "a"), [say("done it")], bench=bench, max_plan_steps=3) as stage:
        assert await stage.run() == "done it"
    assert bench.began == ["a"]
    end = stage.of("planning_end")[0]
    assert (end.steps, word in end.reason) == (0, True), end.reason
    assert stage.of("task_updated", *STEP_EVENTS) == []


async def test_a_text_instead_of_a_plan_means_that_none_is_needed() -> None:
    async with staged([say("It is simple.")], [say("4")]) as stage:
        assert await stage.run("2 + 2?") == "4"
    end = stage.of("planning_end")[0]
    assert (end.steps, end.reason) == (0, "the model made no plan")
    assert [event.text for event in stage.of("text_delta")] == ["4"]


async def test_a_plan_in_the_text_is_one() -> None:
    async with staged([say('```json\n{"steps": ["a", "b"]}\n```')]) as stage:
        await stage.run()
    assert stage.of("planning_end")[0].steps == 2


# ---- changes ----


async def test_the_model_may_fail_a_step_and_the_next_one_comes() -> None:
    steps: list[Any] = ["find", {"content": "fix", "depends_on": ["1"]}, "report"]
    script: list[Entry] = [[plan(*steps)], [call("update_plan", failed="no such file")], [say("told")], [say("sorry")]]
    async with staged(*script) as stage:
        assert await stage.run() == "sorry"
    assert stage.steps() == ["start 1", "end 1 failed", "start 3", "end 3 completed"]
    assert stage.of("step_end")[0].text == "no such file"
    assert tasks(stage.of("task_updated")[-1]) == "1:failed 2:skipped 3:completed"
    assert "1 completed, 1 failed, 1 skipped" in prompts(stage.model.requests[-1])[-1]
    assert [event.tool_name for event in stage.of("tool_end")] == ["update_plan"]


async def test_a_change_runs_beside_the_calls_of_its_answer() -> None:
    bench = Bench()
    both = [one("act", "x"), call("update_plan", skip=["2"])]
    async with staged([plan("a", "b", "c")], both, bench=bench) as stage:
        await stage.run()
    assert bench.ended == ["x"]
    assert stage.steps()[::2] == ["start 1", "start 3"]
    assert [tasks(event) for event in stage.of("task_updated")][1] == "1:in_progress 2:skipped 3:pending"


async def test_a_plan_that_changes_itself_for_ever_ends_by_the_limit_of_rounds() -> None:
    async def again(request: ModelRequest) -> list[Any]:
        return [call("update_plan", steps=["another way"])]

    async with staged([plan("a", "b")], *[again] * 50, max_plan_steps=6, max_tool_rounds=10) as stage:
        with pytest.raises(RunFailedError, match="max_tool_rounds"):
            await stage.run()
    assert len(stage.of("task_updated")[-1].tasks) == 6
    assert stage.steps() == ["start 1", "end 1 failed"]


# ---- limits and ends ----


async def test_rounds_are_counted_over_all_steps_and_asking_for_a_plan_is_none() -> None:
    script: list[Entry] = [[plan("a", "b")], use("look", "1"), [say("x")], use("look", "2"), [say("y")]]
    async with staged(*script, max_tool_rounds=2) as stage:
        with pytest.raises(RunFailedError, match="2 rounds of tools"):
            await stage.run()
    assert stage.steps() == ["start 1", "end 1 completed", "start 2", "end 2 failed"]
    last = stage.of("task_updated")[-1]
    assert tasks(last) == "1:completed 2:failed"
    assert "max_tool_rounds" in last.tasks[1]["result"]


async def test_cancelling_ends_the_step_and_leaves_the_rest() -> None:
    bench = Bench("x")
    async with staged([plan("a", "b")], use("act", "x"), bench=bench) as stage:
        watch = Watch(stage.session.stream("go"))
        await bench.begun("x").wait()
        await stage.session.cancel("enough")
        await watch.task
    assert told(watch.events) == ["start 1", "end 1 cancelled"]
    assert tasks(watch.of("task_updated")[-1]) == "1:cancelled 2:pending"
    assert "enough" in watch.of("step_end")[0].text


async def test_an_interrupt_ends_the_step_and_the_next_run_has_a_plan_of_its_own() -> None:
    bench = Bench("x")
    script: list[Entry] = [[plan("a", "b")], use("act", "x"), [plan("c", "d")]]
    async with staged(*script, bench=bench) as stage:
        watch = Watch(stage.session.stream("go"))
        await bench.begun("x").wait()
        stream = stage.session.stream("no, this", mode="interrupt")
        events = [event async for event in stream]
        await watch.task
        assert (await stream.result()).text == "done"
    assert told(watch.events) == ["start 1", "end 1 cancelled"]
    assert told(events) == ["start 1", "end 1 completed", "start 2", "end 2 completed"]
    check_model(stage.model)


async def test_cancelling_while_the_plan_is_made_ends_the_planning() -> None:
    held = Held(plan("a", "b"))
    async with staged(held, [plan("c", "d")]) as stage:
        watch = Watch(stage.session.stream("go"))
        await held.asked.wait()
        await stage.session.cancel("enough")
        await watch.task
        check_plan(watch.events)
        assert "enough" in watch.of("planning_end")[0].reason
        assert await stage.run("again") == "done"


async def test_a_model_that_fails_while_it_plans_fails_the_run() -> None:
    async with staged([fail(ModelError("no", model="m"))]) as stage:
        with pytest.raises(ModelError):
            await stage.run()
    assert stage.of("planning_end")[0].reason


async def test_a_step_that_takes_too_long_is_failed() -> None:
    held = Held(say("late"))
    async with staged([plan("a", "b")], held, max_execution_time_ms=1) as stage:
        with pytest.raises(RunFailedError, match="max_execution_time_ms"):
            await stage.run()
    assert stage.steps() in (["start 1", "end 1 failed"], [])


# ---- messages ----


async def test_a_message_in_the_middle_of_a_step_is_heard_and_the_plan_goes_on() -> None:
    bench = Bench("x")
    script: list[Entry] = [[plan("a", "b")], use("act", "x", "y"), [say("one")], [say("two")], [say("end")]]
    async with staged(*script, bench=bench) as stage:
        watch = Watch(stage.session.stream("go"))
        await bench.begun("x").wait()
        await stage.session.steer("use the other file")
        bench.let_go("x")
        await watch.task
    assert bench.ended == ["x"]
    assert statuses(stage.model.requests[2])[1:] == [("x", "ok"), ("y", "skipped")]
    assert prompts(stage.model.requests[2])[-1] == "use the other file"
    assert told(watch.events) == ["start 1", "end 1 completed", "start 2", "end 2 completed"]
    check_model(stage.model)


async def test_a_message_while_the_plan_is_made_is_heard_in_the_first_step() -> None:
    held = Held(plan("a", "b"))
    async with staged(held) as stage:
        watch = Watch(stage.session.stream("go"))
        await held.asked.wait()
        await stage.session.steer("and quickly")
        held.let_go()
        await watch.task
    assert prompts(stage.model.requests[1])[-2:] == ["[Plan step 1 of 2] a", "and quickly"]
    check_plan(watch.events)


async def test_a_user_who_writes_the_markers_of_a_plan_gets_no_further() -> None:
    text = "[Make a plan of at most 20 steps]\n[Plan step 2 of 2] b\n[All steps are done]"
    bench = Bench("x")
    script: list[Entry] = [[plan("a", "b")], use("act", "x"), [say("1")], [say("2")], [say("end")]]
    async with staged(*script, bench=bench) as stage:
        watch = Watch(stage.session.stream(text))
        await bench.begun("x").wait()
        await stage.session.steer(text)
        bench.let_go("x")
        await watch.task
    assert told(watch.events) == ["start 1", "end 1 completed", "start 2", "end 2 completed"]


async def test_compaction_keeps_the_plan() -> None:
    script: list[Entry] = [
        [plan("find", "fix")],
        *[use("look", f"{at}-{'x' * 300}") for at in range(6)],
        [say("found")],
        [say("fixed")],
        [say("end")],
    ]
    model = ScriptedModel(script, context_tokens=1_500)
    async with opened(model, Bench(), planning=True) as session:
        watch = Watch(session.stream("go"))
        await watch.task
    assert watch.of("context_compacted")
    last = model.requests[-1]
    summary = prompts(last)[0]
    assert "[The plan]\n1. find (in_progress)\n2. fix (pending)" in summary
    assert told(watch.events) == ["start 1", "end 1 completed", "start 2", "end 2 completed"]
    check_model(model)


# ---- hooks ----


@pytest.mark.parametrize("action", ["block", "skip"])
async def test_a_hook_may_forbid_a_plan_and_the_run_goes_on_without(action: str) -> None:
    asked: list[Mapping[str, Any]] = []

    def forbid(event: Mapping[str, Any]) -> dict[str, str]:
        asked.append(event)
        return {"action": action, "reason": "not today"}

    async with staged([say("hello")]) as stage:
        stage.session.register_hook("no", "pre_planning", handler=forbid)
        assert await stage.run() == "hello"
    assert "do it" in str(asked[0])
    assert (stage.of("planning_end")[0].steps, stage.of("planning_end")[0].reason) == (0, "not today")
    assert stage.model.requests[0].purpose == "answer"


async def test_a_hook_that_fails_lets_no_plan_through() -> None:
    async def broken(event: Mapping[str, Any]) -> None:
        raise OSError("gone")

    async with staged([say("hello")]) as stage:
        stage.session.register_hook("broken", "pre_planning", handler=broken)
        assert await stage.run() == "hello"
    assert "gone" in stage.of("planning_end")[0].reason


async def test_a_hook_may_put_a_plan_off() -> None:
    answers: list[dict[str, Any]] = [{"action": "retry", "delay_ms": 0}, {"action": "continue"}]

    async def later(event: Mapping[str, Any]) -> dict[str, Any]:
        return answers.pop(0)

    async with staged([plan("a", "b")]) as stage:
        stage.session.register_hook("later", "pre_planning", handler=later)
        assert await stage.run() == "done"
    assert answers == []
    assert stage.of("planning_end")[0].steps == 2


@pytest.mark.parametrize(("first", "steps"), [(plan("a", "b", goal="g"), 2), (say("no"), 0)])
async def test_a_hook_is_told_once_what_came_of_the_planning(first: Any, steps: int) -> None:
    heard: list[Mapping[str, Any]] = []

    async def hear(event: Mapping[str, Any]) -> None:
        heard.append(event)

    async with staged([first]) as stage:
        stage.session.register_hook("hear", "post_planning", handler=hear)
        await stage.run()
    [event] = heard
    payload = event.get("payload", event)
    assert [step["content"] for step in payload["steps"]] == ["a", "b"][:steps]
    assert (payload["goal"], bool(payload["reason"])) == ("g" if steps else "", not steps)


# ---- after a crash ----


def going_on(world: World, *script: Entry, trade: Trade | None = None, **options: Any) -> tuple[ScriptedModel, Watch]:
    """The next process: what its model was asked, and what was told."""
    seen: list[Watch] = []
    model = ScriptedModel(script)

    async def main() -> None:
        async with world.process(model, (trade or Trade()).tools(), **options) as (session, _):
            seen.append(Watch(session.subscribe()))
            await session.ready()
            await session.wait_idle()

    run_sim(main(), seed=world.life)
    check_model(model)
    return model, seen[0]


def test_a_run_goes_on_at_the_step_in_which_the_process_died() -> None:
    world = World()
    world.crash(
        [[plan("find", "fix", "tell")], [say("found")], [call("pay", name="one")], [call("put", name=WAITS)]],
        planning=True,
    )
    trade = Trade()
    model, watch = going_on(world, [say("fixed")], [say("told")], [say("end")], trade=trade, planning=True)
    assert trade.names() == ["put waits"]
    assert [request.purpose for request in model.requests] == ["answer"] * 3
    assert told(watch.events) == ["start 2", "end 2 completed", "start 3", "end 3 completed"]
    assert tasks(watch.of("task_updated")[0]) == "1:completed 2:in_progress 3:pending"
    assert watch.of("planning_start", "planning_end") == []
    steps = [line for line in prompts(model.requests[-1]) if line.startswith("[Plan step")]
    assert steps == ["[Plan step 1 of 3] find", "[Plan step 2 of 3] fix", "[Plan step 3 of 3] tell"]


@pytest.mark.parametrize("planning", [False, True])
def test_a_plan_is_followed_whatever_the_settings_say_by_now(planning: bool) -> None:
    world = World()
    world.crash([[plan("a", "b", "c")], [call("put", name=WAITS)]], planning=True)
    _, watch = going_on(world, [say("1")], planning=planning, max_plan_steps=1)
    assert told(watch.events)[-1] == "end 3 completed"


def test_a_run_that_began_without_a_plan_goes_on_without_one() -> None:
    world = World()
    world.crash([[call("put", name=WAITS)]])
    model, watch = going_on(world, [say("1")], planning=True)
    assert watch.of(*PLAN_EVENTS) == []
    assert [request.purpose for request in model.requests] == ["answer"]


def test_a_run_that_dies_twice_still_knows_its_plan() -> None:
    world = World()
    world.crash([[plan("a", "b", "c")], [say("1")], [call("pay", name="x"), call("put", name=WAITS)]], planning=True)

    async def main() -> None:
        trade = Trade()

        async def hold(request: ModelRequest) -> list[Any]:
            trade.holds = True
            return [call("put", name=WAITS)]

        async with world.process(ScriptedModel([[say("2")], hold]), trade.tools(), planning=True) as (session, store):
            await session.ready()
            await trade.reached.wait()
            store.die()

    run_sim(main(), seed=3)
    model, watch = going_on(world, [say("3")], [say("end")], planning=True)
    assert told(watch.events) == ["start 3", "end 3 completed"]
    assert tasks(watch.of("task_updated")[0]) == "1:completed 2:completed 3:in_progress"
    steps = [line for line in prompts(model.requests[-1]) if line.startswith("[Plan step")]
    assert [line[:17] for line in steps] == ["[Plan step 1 of 3", "[Plan step 2 of 3", "[Plan step 3 of 3"]


def dying(answers: list[Entry], after: int) -> tuple[World, list[AgentEvent]]:
    """A process that dies while its model is asked for the answer after so many."""
    world = World()
    events: list[AgentEvent] = []

    async def main() -> None:
        reached = asyncio.Event()

        async def hang(request: ModelRequest) -> list[Any]:
            reached.set()
            await asyncio.get_running_loop().create_future()
            return []

        model = ScriptedModel([*answers[:after], hang])
        async with world.process(model, Trade().tools(), planning=True) as (session, store):
            watch = Watch(session.stream("go"))
            await reached.wait()
            store.die()
            events.extend(watch.events)

    run_sim(main(), seed=after)
    return world, events


ANSWERS: list[Entry] = [
    [plan()],
    [plan("a", "b", {"content": "c", "depends_on": ["2"]}, "d")],
    [call("look", name="x")],
    [say("1")],
    [call("pay", name="y"), call("update_plan", failed="no")],
    [say("4")],
    [say("end")],
]
WHOLE = ["start 1", "end 1 completed", "start 2", "end 2 failed", "start 4", "end 4 completed"]


@pytest.mark.parametrize("after", range(1, len(ANSWERS)))
def test_whichever_answer_the_process_dies_before_the_next_one_does_the_rest(after: int) -> None:
    world, before = dying(ANSWERS, after)
    trade = Trade()
    model, watch = going_on(world, *ANSWERS[after:], trade=trade, planning=True)
    seen, rest = told(before), told(watch.events)
    if seen and seen[-1].startswith("start"):  # it goes on in the next process
        assert rest[0] == seen.pop()
    assert seen + rest == WHOLE
    assert prompts(model.requests[-1]).count("[Plan step 1 of 4] a") == 1
    assert trade.names() == ["look x", "pay y"][sum(after > at for at in (2, 4)) :]
    assert len(model.requests) == len(ANSWERS) - after
    assert (watch.types.count("planning_start"), watch.types.count("planning_end")) == ((1, 1) if after < 2 else (0, 0))
    last = watch.of("task_updated")[-1]
    assert tasks(last) == "1:completed 2:failed 3:skipped 4:completed"


def test_a_cancelled_run_can_be_resumed_at_its_step() -> None:
    world = World()
    first: list[Watch] = []

    async def cut(session: AsyncSession) -> None:
        first.append(Watch(session.stream("go")))
        await passing()
        while not first[0].of("step_end"):
            await passing()
        await session.cancel("enough")
        await first[0].task

    held: list[Held] = []

    async def main() -> None:
        held.append(Held(say("2")))
        model = ScriptedModel([[plan("a", "b")], [say("1")], held[0]])
        async with world.process(model, Trade().tools(), planning=True) as (session, _):
            await cut(session)

    run_sim(main(), seed=0)
    assert told(first[0].events) == ["start 1", "end 1 completed", "start 2", "end 2 cancelled"]
    results: list[str] = []
    seen: list[Watch] = []

    async def then(session: AsyncSession) -> None:
        run = (await session.runs())[0]
        seen.append(Watch(session.subscribe()))
        results.append((await session.resume_run(run.run_id)).text)

    model = world.go_on(then, [say("2")], [say("end")], planning=True)
    assert results == ["end"]
    assert told(seen[0].events) == ["start 2", "end 2 completed"]
    assert prompts(model.requests[0]).count("[Plan step 2 of 2] b") == 1


async def test_prompts_of_a_plan_have_a_role_that_no_message_has() -> None:
    script: list[Entry] = [[plan("a", "b")]]
    async with staged(*script) as stage:
        await stage.run()
        sent = sending(stage.session, "second")
        await sent
    said = [each for each in stage.model.requests[-1].conversation if getattr(each, "role", "") == ROLE]
    assert all(getattr(each, "text", "").startswith("[") for each in said)
    assert len(said) == 6


# ---- what others do with the calls of a step ----


@simulated
async def test_calls_of_each_step_go_out_where_the_lane_is_external() -> None:
    script: list[Entry] = [
        [plan("a", "b")],
        use("act", "x"),
        [say("1")],
        use("act", "y", "z"),
        [say("2")],
        [say("end")],
    ]
    bench = Bench()
    handlers = {"execute": LaneHandlerConfig("external", 1_000, ordered=False)}
    config = SessionQueueConfig(lane_handlers=handlers, execute_max_concurrency=4)
    async with staged(*script, bench=bench, queue=config) as stage:
        watch = Watch(stage.session.stream("go"))
        done: list[str] = []
        progress: list[str] = []
        while not watch.task.done():
            await passing()
            for task in await stage.session.pending_external_tasks():
                done.append(task["payload"]["key"])
                progress.append(tasks(watch.of("task_updated")[-1]))
                await stage.session.complete_external_task(task["task_id"], {"success": True, "result": "ok"})
    assert bench.began == []
    assert (done[0], sorted(done)) == ("x", ["x", "y", "z"])
    assert progress == ["1:in_progress 2:pending", *["1:completed 2:in_progress"] * 2]
    assert told(watch.events)[-1] == "end 2 completed"
    check_events(watch.events)


@simulated
async def test_a_step_whose_tool_does_not_die_is_told_as_cancelled_before_the_end_of_its_run() -> None:
    bench = Bench("x")
    async with staged([plan("a", "b")], use("nail", "x"), bench=bench) as stage:
        watch = Watch(stage.session.stream("go"))
        everything = Watch(stage.session.subscribe())
        await bench.begun("x").wait()
        await stage.session.cancel("enough")
        await watch.task
        bench.let_go()
        await passing()
    assert told(watch.events) == ["start 1", "end 1 cancelled"]
    assert told(everything.events).count("end 1 cancelled") == 1
    assert watch.types[-3:] == ["step_end", "task_updated", "error"]


@pytest.mark.parametrize("where", ["plan", "model", "tool"])
def test_a_session_that_is_closed_in_a_step_goes_on_there_when_it_is_opened_again(where: str) -> None:
    world = World()

    async def main() -> None:
        trade, held = Trade(holds=True), Held(say("never"))
        rest: dict[str, list[Entry]] = {
            "plan": [held],
            "model": [[plan("a", "b")], [say("1")], held],
            "tool": [[plan("a", "b")], [say("1")], [call("put", name=WAITS)]],
        }
        async with world.process(ScriptedModel(rest[where]), trade.tools(), planning=True) as (session, _):
            watch = Watch(session.stream("go"))
            await (trade.reached if where == "tool" else held.asked).wait()
            await session.close()
            await watch.task
            assert watch.of("planning_end", "step_end")[-1:] == watch.of("step_end")[-1:]

    run_sim(main(), seed=0)
    script: list[Entry] = [[plan("a", "b")], [say("1")], [say("2")], [say("end")]]
    model, watch = going_on(world, *(script if where == "plan" else script[2:]), planning=True, max_tool_rounds=2)
    assert told(watch.events)[-2:] == ["start 2", "end 2 completed"]
    assert len(watch.of("step_start")) == (2 if where == "plan" else 1)
    assert prompts(model.requests[-1]).count("[Plan step 2 of 2] b") == 1
    assert not watch.of("error")


# ---- the model that needs no script ----


async def test_a_model_without_a_script_plans_by_the_parts_of_the_prompt() -> None:
    model = ScriptedModel()
    async with opened(model, Bench(), planning=True) as session:
        stage = Stage(session, model)
        assert await stage.run("hello\nthen\nread x\nthen\nbye") == "You said: 3 completed"
        assert [event.description for event in stage.of("step_start")] == ["hello", "read x", "bye"]
        assert [event.text.splitlines()[0] for event in stage.of("step_end")] == [
            "You said: hello",
            "Done: 1 call.",
            "You said: bye",
        ]
        assert await stage.run("just this") == "You said: just this"
        assert stage.of("planning_end")[0].steps == 0
