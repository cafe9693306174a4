"""What listeners and hooks are given is theirs: changing it changes nothing that is done, asked, told or kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from laneway.agent.session import AsyncSession
from laneway.agent_events import AGENT_EVENTS, AgentEvent
from laneway.dialogue import ToolContext, ToolOutput
from laneway.models import ScriptedModel, call, plan, say
from laneway.options import LaneHandlerConfig, PermissionPolicy, SessionQueueConfig
from laneway.policies import ConfirmationPolicy
from laneway.tools import FunctionTool
from tests.agent_stage import QUEUES, Bench, Watch, one, opened, post, prompts, results, sending, use
from tests.inbox_stage import staged
from tests.stage import passing
from tests.subagent_stage import nested

SPOILED = "spoiled"


def spoil(value: Any) -> None:
    """Change everything in a value that can be changed."""
    if isinstance(value, dict):
        for each in value.values():
            spoil(each)
        for name, each in value.items():
            value[name] = SPOILED if isinstance(each, str) else each
        value[SPOILED] = True
    elif isinstance(value, list | tuple):
        for each in value:
            spoil(each)


class Vandal(Watch):
    """A listener that spoils every event as soon as it has it."""

    def __init__(self, stream: AsyncIterator[AgentEvent]) -> None:
        self.spoiled: list[str] = []
        super().__init__(stream)

    async def _read(self) -> None:
        async for event in self._stream:
            spoil(event.to_dict())
            if any(SPOILED in str(value) for value in event.data.values()):
                self.spoiled.append(event.event_type)


def between(session: AsyncSession) -> tuple[Vandal, Watch]:
    """A vandal that hears everything before, and one that hears it after a listener."""
    vandal = Vandal(session.subscribe())
    watch = Watch(session.subscribe())
    Vandal(session.subscribe())
    return vandal, watch


# ---- events ----


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_listener_that_changes_the_arguments_of_a_call_changes_neither_the_call_nor_what_others_hear(
    queue: bool,
) -> None:
    bench, model = Bench("a"), ScriptedModel([use("act", "a"), [say("well")]])
    async with opened(model, bench, queue=queue) as session:
        vandal, watch = between(session)
        sent = sending(session, "go")
        await bench.begun("a").wait()
        await passing()
        bench.let_go()
        await sent
        await passing()
        assert "tool_start" in vandal.spoiled
        assert [event.args for event in watch.of("tool_start")] == [{"key": "a"}]
        assert bench.ended == ["a"]
        assert [each.output for each in results(model.requests[-1])] == ["result of a"]


@staged
async def test_whoever_begins_to_watch_late_hears_what_was_told_and_not_what_others_made_of_it() -> None:
    bench = Bench("a")
    async with opened(ScriptedModel([use("act", "a"), [say("well")]]), bench) as session:
        receipt = await post(session, "go")
        first = Vandal(session.watch(receipt))
        await bench.begun("a").wait()
        await passing()
        late = Watch(session.watch(receipt))
        await passing()
        bench.let_go()
        await passing()
        assert "tool_start" in first.spoiled
        assert [event.args for event in late.of("tool_start")] == [{"key": "a"}]


@staged
async def test_a_listener_that_changes_what_was_denied_changes_nothing_for_others() -> None:
    policy = PermissionPolicy(allow=("*",), deny=("act",))
    async with opened(ScriptedModel([use("act", "a"), [say("well")]]), Bench(), permission_policy=policy) as session:
        vandal, watch = between(session)
        await session.send("go")
        await passing()
        assert "permission_denied" in vandal.spoiled
        assert [event.args for event in watch.of("permission_denied")] == [{"key": "a"}]


@staged
async def test_what_is_approved_is_what_was_asked_whatever_listeners_made_of_the_question() -> None:
    bench = Bench()
    options: dict[str, Any] = {"permission_policy": PermissionPolicy(), "confirmation_policy": ConfirmationPolicy()}
    async with opened(ScriptedModel([use("act", "a"), [say("well")]]), bench, **options) as session:
        vandal, watch = between(session)
        sent = sending(session, "go")
        await passing()
        [asked] = await session.pending_confirmations()
        spoil(asked.args)
        assert "confirmation_required" in vandal.spoiled
        assert [event.args for event in watch.of("confirmation_required")] == [{"key": "a"}]
        assert [each.args for each in await session.pending_confirmations()] == [{"key": "a"}]
        assert await session.confirm_tool_use(asked.approval_id, approved=True)
        await sent
        assert bench.ended == ["a"]


@staged
async def test_a_worker_gets_the_task_as_it_was_ordered_whatever_listeners_made_of_it() -> None:
    queue = SessionQueueConfig(lane_handlers={"execute": LaneHandlerConfig("external", 1_000)})
    async with opened(ScriptedModel([use("act", "a"), [say("well")]]), Bench(), queue=queue) as session:
        vandal, watch = between(session)
        sent = sending(session, "go")
        await passing()
        [task] = await session.pending_external_tasks()
        assert "external_task_pending" in vandal.spoiled
        assert [event.payload for event in watch.of("external_task_pending")] == [{"key": "a"}]
        spoil(task["payload"])
        [lease] = await session.host.desk.claim("w")
        assert lease.task.payload == {"key": "a"}
        await session.host.desk.start(lease.task.task_id, lease.token)
        await session.complete_external_task(task["task_id"], "made elsewhere")
        await sent


@staged
async def test_a_hybrid_call_is_made_with_its_arguments_whatever_listeners_made_of_them() -> None:
    bench, queue = Bench(), SessionQueueConfig(lane_handlers={"execute": LaneHandlerConfig("hybrid")})
    async with opened(ScriptedModel([use("act", "a"), [say("well")]]), bench, queue=queue) as session:
        vandal, watch = between(session)
        await session.send("go")
        await passing()
        assert "external_task_pending" in vandal.spoiled
        assert [event.payload for event in watch.of("external_task_pending")] == [{"key": "a"}]
        assert bench.ended == ["a"]


@staged
async def test_a_listener_at_a_sub_agent_changes_nothing_for_those_at_its_parents() -> None:
    cast = nested(2)
    cast.parts["level 2"] = [[one("act", "a")]]
    bench = Bench()
    options: dict[str, Any] = {
        "permission_policy": PermissionPolicy(allow=("task",)),
        "confirmation_policy": ConfirmationPolicy(),
    }
    cast.hold("level 2")
    async with opened(cast.model, bench, subagents=True, **options) as session:
        sent = sending(session, "go")
        await passing()
        [child] = session.children()
        [grandchild] = child.children()
        vandals = [Vandal(each.subscribe()) for each in (grandchild, child, session)]
        watch = Watch(session.subscribe())
        cast.let_go()
        await passing()
        assert all("confirmation_required" in vandal.spoiled for vandal in vandals)
        assert [event.args for event in watch.of("confirmation_required")] == [{"key": "a"}]
        told = [event.event for event in watch.of("subagent_progress")]
        assert told
        assert SPOILED not in str(told)
        [asked] = await session.pending_confirmations()
        await session.confirm_tool_use(asked.approval_id, approved=True)
        await sent
        assert bench.ended == ["a"]
        assert SPOILED not in str([event.event for event in watch.of("subagent_progress")])


@staged
async def test_a_listener_that_changes_the_tasks_of_a_plan_changes_nothing_in_the_plan() -> None:
    model = ScriptedModel([[plan("first", "second")], [say("one")], [say("two")], [say("done")]])
    async with opened(model, Bench(), planning=True) as session:
        vandal, watch = between(session)
        await session.send("go")
        await passing()
        assert "task_updated" in vandal.spoiled
        told = [[task["content"] for task in event.tasks] for event in watch.of("task_updated")]
        assert told
        assert all(each == ["first", "second"] for each in told)


def test_every_event_that_holds_something_that_can_be_changed_is_spoiled_above() -> None:
    """One more event with a mapping in it belongs into these tests."""
    holding = {
        name
        for name, kind in AGENT_EVENTS.items()
        for each in kind.__dataclass_fields__.values()
        if any(word in str(each.type) for word in ("Mapping", "dict", "list", "Any"))
    }
    assert holding == {
        "confirmation_required",
        "external_task_pending",
        "permission_denied",
        "subagent_progress",
        "task_updated",
        "tool_start",
    }


# ---- hooks ----

TOLD = ("pre_tool_use", "post_tool_use", "generate_start", "generate_end", "pre_prompt", "session_start", "on_success")


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_hooks_that_change_all_they_are_given_change_nothing(queue: bool) -> None:
    bench, model = Bench(), ScriptedModel([use("act", "a"), [say("well")]])
    heard: list[tuple[str, str]] = []

    def vandal(event: Any) -> None:
        spoil(event["payload"])
        heard.append(("vandal", event["event_type"]))

    def witness(event: Mapping[str, Any]) -> None:
        assert SPOILED not in str(event), event
        heard.append(("witness", event["event_type"]))

    async with opened(model, bench, queue=queue) as session:
        for event_type in TOLD:
            session.register_hook(f"1-{event_type}", event_type, handler=vandal, config={"priority": 1})
            session.register_hook(f"2-{event_type}", event_type, handler=witness, config={"priority": 2})
        watch = Watch(session.subscribe())
        assert (await session.send("go")).text == "well"
        await passing()
        assert watch.of("hook_failed") == []
        assert SPOILED not in str([event.to_dict() for event in watch.events])
    assert bench.ended == ["a"]
    assert [prompts(request) for request in model.requests] == [["go"], ["go"]]
    assert [each.output for each in results(model.requests[-1])] == ["result of a"]
    told = {kind for who, kind in heard if who == "witness"}
    assert told == {kind for who, kind in heard if who == "vandal"}
    assert {"pre_tool_use", "post_tool_use", "pre_prompt", "generate_start"} <= told


@staged
async def test_hooks_of_the_calls_of_the_host_change_nothing() -> None:
    bench = Bench()
    given = {"key": "a"}
    async with opened(ScriptedModel(), bench, queue=True) as session:
        for event_type in ("pre_tool_use", "post_tool_use"):
            session.register_hook(event_type, event_type, handler=lambda event: spoil(event["payload"]))
        assert (await session.tool("act", given)).text == "result of a"
        assert await session.submit("execute", {"tool": "act", **given}) == "result of a"
    assert (bench.ended, given) == (["a", "a"], {"key": "a"})


class Rude(FunctionTool[Any, Any]):
    """A tool that changes what it is given."""

    async def run(self, arguments: Mapping[str, Any], context: ToolContext) -> ToolOutput:
        """Run, and spoil the arguments."""
        output = await super().run(dict(arguments), context)
        spoil(arguments)
        return output


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_a_tool_that_changes_its_arguments_changes_them_for_nobody_else(queue: bool) -> None:
    seen: list[list[str]] = []

    async def note(items: list[str]) -> str:
        seen.append(list(items))
        return "noted"

    tool = Rude(note, name="note", description="note something", effect="read")
    model = ScriptedModel([[call("note", items=["a"]).with_id("a")], [say("well")]])
    async with opened(model, [tool], queue=queue) as session:
        watch = Watch(session.subscribe())
        told: list[Any] = []
        session.register_hook("h", "post_tool_use", handler=lambda event: told.append(event["payload"]["args"]))
        await session.send("go")
        await passing()
        given = {"items": ["a"]}
        await session.tool("note", given)
        assert [event.args for event in watch.of("tool_start")] == [{"items": ["a"]}]
        assert told == [{"items": ["a"]}] * 2
    assert (seen, given) == ([["a"], ["a"]], {"items": ["a"]})
