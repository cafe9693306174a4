"""Sub-agents and the gates of their parent: what it may not do they may not, and what they ask is asked at it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from laneway.models import call
from laneway.options import PermissionPolicy, SessionQueueConfig
from laneway.policies import ConfirmationPolicy
from tests.agent_stage import QUEUES, Bench, Watch, one, opened, prompts, sending
from tests.inbox_stage import staged
from tests.stage import passing
from tests.subagent_stage import Cast, nested


@pytest.mark.parametrize("queue", QUEUES)
@staged
async def test_what_the_parent_may_not_do_no_sub_agent_may(queue: bool) -> None:
    bench = Bench()
    cast = Cast(go=[[call("task", prompt="find")]], find=[[one("act", "a"), one("look", "b")]])
    policy = PermissionPolicy(allow=("*",), deny=("act",))
    async with opened(cast.model, bench, queue=queue, subagents=True, permission_policy=policy) as session:
        await session.send("go")
        denied, looked = cast.said_to("find")
        assert denied.startswith("[Denied: ")
        assert looked == "result of b"
        assert bench.began == ["b"]


@staged
async def test_hooks_of_the_parent_see_and_stop_the_calls_of_its_sub_agents() -> None:
    bench = Bench()
    cast = Cast(go=[[call("task", prompt="find")]], find=[[one("act", "a")]])
    seen: list[str] = []

    def guard(event: Any) -> dict[str, Any] | None:
        seen.append(event["payload"]["session_id"])
        return {"action": "block", "reason": "not here"}

    async with opened(cast.model, bench, subagents=True) as session:
        session.hooks.register("guard", "pre_tool_use", {"tool": "act"}, None, guard)
        await session.send("go")
        assert bench.began == []
        assert "not here" in cast.said_to("find")[0]
        assert seen[0].startswith(f"{session.session_id}~")


@staged
async def test_labels_and_tenant_of_the_parent_are_those_of_its_sub_agents() -> None:
    cast = Cast(go=[[call("task", prompt="find")]])
    cast.hold("find")
    async with opened(cast.model, subagents=True, tenant_id="acme", principal="ada", correlation_id="c1") as session:
        sent = sending(session, "go")
        await passing()
        [child] = session.children()
        assert (child.owner.tenant, child.settings.principal, child.settings.correlation_id) == ("acme", "ada", "c1")
        assert child.parent is session
        cast.let_go()
        await sent


@staged
async def test_an_approval_that_a_sub_agent_waits_for_is_answered_at_its_parent_and_holds_up_nobody() -> None:
    bench = Bench()
    cast = Cast(go=[[call("task", prompt="find"), call("task", prompt="other")]], find=[[one("act", "a")]])
    options: dict[str, Any] = {
        "permission_policy": PermissionPolicy(allow=("task",)),
        "confirmation_policy": ConfirmationPolicy(default_timeout_ms=60_000),
        "max_subagents": 1,
    }
    async with opened(cast.model, bench, queue=True, subagents=True, **options) as session:
        sent = sending(session, "go")
        await passing()
        assert "done other" in [r.output for r in session.subagents()]  # its slot is free meanwhile
        [asked] = await session.pending_confirmations()
        [child] = session.children()
        assert (asked.session_id, asked.tool_name, asked.args) == (child.session_id, "act", {"key": "a"})
        assert await session.confirm_tool_use(asked.approval_id, True)
        assert (await sent).text == "done go"
        assert bench.ended == ["a"]


@staged
async def test_external_tasks_of_a_sub_agent_are_seen_and_completed_at_its_parent() -> None:
    bench = Bench()
    cast = Cast(go=[[call("task", prompt="find")]], find=[[one("act", "a")]])
    queue = SessionQueueConfig().set_lane_handler("execute", "external")
    async with opened(cast.model, bench, queue=queue, subagents=True) as session:
        sent = sending(session, "go")
        await passing()
        [child] = session.children()
        [task] = await session.pending_external_tasks()
        assert (task["session_id"], task["payload"]) == (child.session_id, {"key": "a"})
        assert await session.complete_external_task(task["task_id"], "made elsewhere")
        assert (await sent).text == "done go"
        assert cast.said_to("find") == ["made elsewhere"]
        assert await session.complete_external_task(task["task_id"], "made elsewhere")
        assert bench.began == []


@staged
async def test_what_a_grandchild_asks_and_sends_out_is_told_at_the_first_session() -> None:
    bench = Bench()
    cast = nested(2)
    cast.parts["level 2"] = [[one("act", "a")], [one("put", "b")]]
    options: dict[str, Any] = {
        "permission_policy": PermissionPolicy(allow=("task", "put")),
        "confirmation_policy": ConfirmationPolicy(),
        "queue": SessionQueueConfig().set_lane_handler("execute", "external"),
    }
    async with opened(cast.model, bench, subagents=True, **options) as session:
        watch = Watch(session.subscribe())
        sent = sending(session, "go")
        await passing()
        [asked] = watch.of("confirmation_required")
        assert await session.confirm_tool_use(asked.approval_id, approved=True)
        for number in (1, 2):
            await passing()
            assert len(watch.of("external_task_pending")) == number
            await session.complete_external_task(watch.of("external_task_pending")[-1].task_id, "made elsewhere")
        assert (await sent).text == "done go"


@staged
async def test_a_lane_that_is_switched_is_switched_for_sub_agents_at_work_and_for_those_that_follow() -> None:
    bench = Bench()
    tasks = [{"prompt": "one"}, {"prompt": "two"}]
    cast = Cast(go=[[call("parallel_task", tasks=tasks)]], one=[[one("act", "a")]], two=[[one("act", "b")]])
    cast.hold("one", "two")
    async with opened(cast.model, bench, queue=True, subagents=True, max_parallel_tasks=1) as session:
        sent = sending(session, "go")
        await passing()
        await session.set_lane_handler("execute", "external")
        cast.let_go()
        for _ in range(2):
            await passing()
            [task] = await session.pending_external_tasks()
            await session.complete_external_task(task["task_id"], "made elsewhere")
        await sent
        assert bench.began == []


def definition(folder: Path, name: str, front: str, body: str = "") -> None:
    """A file that defines an agent."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.md").write_text(f"---\nname: {name}\ndescription: it\n{front}\n---\n{body}")


def test_a_definition_narrows_tools_and_says_who_the_sub_agent_is(tmp_path: Path) -> None:
    definition(tmp_path, "reader", "tools: [look]\nmax_tool_rounds: 2", "You read.")
    bench = Bench()

    @staged
    async def main() -> None:
        cast = Cast(
            go=[[call("task", prompt="find", agent="reader"), call("task", prompt="find", agent="writer")]],
            find=[[one("act", "a"), one("look", "b")]],
        )
        async with opened(cast.model, bench, agent_dirs=[str(tmp_path)]) as session:
            await session.send("go")
            asked = next(r for r in cast.model.requests if prompts(r) == ["find"])
            assert asked.system == "You read."
            assert "look" in [spec.name for spec in asked.tools]
            assert "act" not in [spec.name for spec in asked.tools]
            assert "there is no agent 'writer'" in cast.said_to("go")[1]
            assert "reader" in next(r for r in cast.model.requests if prompts(r) == ["go"]).system
            assert "act" not in bench.began

    main()
