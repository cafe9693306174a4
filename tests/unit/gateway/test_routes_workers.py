"""The list of workers, and what the list of tasks says of who works on them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from laneway.external import ExternalTaskResult, Progress
from laneway.gateway.task_facts import RESULT_MAX
from laneway.gateway.task_views import WorkerView
from laneway.kernel.task_entries import TaskEntry, TaskOrder
from laneway.models import call, say
from laneway.records import Effect
from laneway.rows import Owner
from laneway.runtime.task_hall import Guest
from laneway.runtime.worker_book import WorkerRecord
from laneway.stores.memory import MemoryStore
from tests.agent_stage import Held
from tests.gateway_stage import GatewayStage, gateway_stage, spec_of
from tests.routes_stage import EXTERNAL, UNKNOWN, body_of, post, refusal, until
from tests.stream_stage import listening, staged

EVENTS = "/v1/sessions/s1/events"
ABOUT = {"instance": "i-1", "concurrency": 4, "version": "1.2", "host": "box", "pid": 77}


async def listed(stage: GatewayStage, path: str = "/v1/workers", **more: Any) -> list[dict[str, Any]]:
    """The items of a page."""
    found: list[dict[str, Any]] = (await body_of(await stage.client.get(path, **more)))["items"]
    return found


async def task_in(
    stage: GatewayStage,
    task_id: str,
    *,
    lane: str = "query",
    tool: str = "ls",
    labels: tuple[str, ...] = (),
    **more: Any,
) -> TaskEntry:
    """A task of a session, that nobody has taken yet."""
    owner = Owner(more.pop("tenant", "default"), "default", more.pop("session", "s1"))
    order = order_of(task_id, owner=owner, lane=lane, tool=tool, labels=labels, **more)
    return await stage.gateway.default.host.desk.post(order)


def order_of(task_id: str, *, owner: Owner, lane: str = "query", tool: str = "ls", **more: Any) -> TaskOrder:
    """A call that somebody else is to make."""
    return TaskOrder(
        owner=owner,
        task_id=task_id,
        lane=lane,
        command_type=tool,
        payload={"path": "."},
        timeout_ms=60_000,
        lease_ms=30_000,
        effect=more.pop("effect", Effect.READ),
        **more,
    )


# ---- workers ----


async def test_a_worker_is_listed_with_what_it_said_of_itself_and_how_it_does(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=EXTERNAL, store=MemoryStore()) as stage:
        await task_in(stage, "t1", labels=("gpu",))
        hall, guest = stage.gateway.hall, Guest("builder")
        (lease,) = await hall.claim(
            "w1",
            lanes=["query", "execute"],
            commands=["ls"],
            labels=["gpu", "os=linux"],
            workspaces=["default"],
            about=ABOUT,
            guest=guest,
        )
        (worker,) = await listed(stage)
        assert worker["last_seen_ms"] >= worker["first_seen_ms"] > 0
        assert min(worker["seen_ago_ms"], worker["asked_ago_ms"]) >= 0
        del worker["last_seen_ms"], worker["first_seen_ms"], worker["seen_ago_ms"], worker["asked_ago_ms"]
        assert worker == {
            "name": "w1",
            "health": "working",
            "token": "builder",
            "tenant": None,
            **ABOUT,
            "lanes": ["execute", "query"],
            "commands": ["ls"],
            "labels": ["gpu", "os=linux"],
            "workspaces": ["default"],
            "tasks": ["t1"],
            "holds": 1,
            "completed": 0,
            "failed": 0,
            "lost": 0,
            "is_lost": False,
            "unstarted": 0,
            "shares_name": False,
        }
        await hall.start("t1", lease.token, guest=guest)
        await hall.complete("t1", lease.token, ExternalTaskResult(result="done"), guest=guest)
        one = await body_of(await stage.client.get("/v1/workers/w1"))
        assert (one["health"], one["completed"], one["tasks"]) == ("idle", 1, [])
        assert refusal(await stage.client.get(f"/v1/workers/{UNKNOWN}")) == (404, "not_found")


async def test_a_worker_that_waits_for_a_task_is_waiting_and_a_shared_name_is_told(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=EXTERNAL, store=MemoryStore()) as stage:
        hall = stage.gateway.hall
        waits = [
            asyncio.ensure_future(hall.claim("a/b", wait_ms=60_000, about={"instance": name})) for name in ("x", "y")
        ]
        await asyncio.sleep(0)
        both = await listed(stage)
        assert [(each["health"], each["shares_name"], each["instance"]) for each in both] == [
            ("waiting", True, "x"),
            ("waiting", True, "y"),
        ]
        assert (await body_of(await stage.client.get("/v1/workers/a/b")))["name"] == "a/b"
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def test_workers_are_listed_page_by_page_and_those_of_one_name_together(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=EXTERNAL, store=MemoryStore()) as stage:
        for name, instance in (("a", "1"), ("b", "1"), ("b", "2"), ("c", "1")):
            await stage.gateway.hall.claim(name, about={"instance": instance})
        first = await body_of(await stage.client.get("/v1/workers", params={"limit": 2}))
        assert [each["name"] for each in first["items"]] == ["a", "b", "b"]
        rest = await body_of(await stage.client.get("/v1/workers", params={"limit": 2, "after": first["next"]}))
        assert [each["name"] for each in rest["items"]] == ["c"]
        assert rest["next"] is None


async def test_a_tenant_sees_only_the_workers_that_serve_it_alone(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=EXTERNAL, store=MemoryStore()) as stage:
        hall = stage.gateway.hall
        for name, tenant in (("of-all", None), ("of-acme", "acme"), ("of-other", "other")):
            await hall.claim(name, guest=Guest("t", tenant))
        seen = {
            "acme": await stage.token("chat", tenant="acme"),
            "other": await stage.token("operate", tenant="other"),
            "*": await stage.token("operate", tenant="*"),
        }
        names = {who: [each["name"] for each in await listed(stage, headers=headers)] for who, headers in seen.items()}
        assert names == {"acme": ["of-acme"], "other": ["of-other"], "*": ["of-acme", "of-all", "of-other"]}
        for name in ("of-all", "of-other"):
            theirs = await stage.client.get(f"/v1/workers/{name}", headers=seen["acme"])
            unknown = await stage.client.get(f"/v1/workers/{UNKNOWN}", headers=seen["acme"])
            assert theirs.text.replace(name, UNKNOWN) == unknown.text


async def test_a_worker_token_lists_nothing(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=EXTERNAL, store=MemoryStore()) as stage:
        worker = await stage.token("worker", tenant="*")
        for path in ("/v1/workers", "/v1/tasks", "/v1/workers/w1"):
            assert refusal(await stage.client.get(path, headers=worker)) == (403, "permission_denied")


def test_a_worker_with_very_many_tasks_is_shown_with_a_hundred_of_them() -> None:
    record = WorkerRecord(name="w")
    owner = Owner("default", "default", "s1")
    for number in range(150):
        entry = TaskEntry(
            owner=owner,
            task_id=f"t{number}",
            lane="query",
            command_type="ls",
            payload="{}",
            timeout_ms=1,
            lease_ms=1,
            effect=Effect.READ,
            published=True,
            holder=record,
        )
        entry.state = type(entry.state).LEASED
        record.own.held[entry.task_id] = entry
    shown = WorkerView.of(record, 0)
    assert (len(shown.tasks), shown.holds) == (100, 150)


# ---- tasks ----


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, ["t1", "t2", "t3"]),
        ({"lane": "query"}, ["t1", "t3"]),
        ({"tool": "bash"}, ["t2"]),
        ({"session": "s2"}, ["t3"]),
        ({"run": "turn-7"}, ["t2"]),
        ({"worker": "w1"}, ["t1"]),
        ({"state": "leased"}, ["t1"]),
        ({"state": "pending", "lane": "query"}, ["t3"]),
        ({"state": "completed"}, []),
        ({"worker": "w2"}, []),
    ],
)
async def test_tasks_are_found_by_what_they_are(tmp_path: Path, params: dict[str, str], expected: list[str]) -> None:
    async with gateway_stage(tmp_path, text=EXTERNAL, store=MemoryStore()) as stage:
        await task_in(stage, "t1")
        await task_in(stage, "t2", lane="execute", tool="bash", run_id="turn-7")
        await task_in(stage, "t3", session="s2~0123456789ab")
        await stage.gateway.hall.claim("w1", lanes=["query"])
        found = await listed(stage, "/v1/tasks", params=params)
        assert [each["task_id"] for each in found] == expected


async def test_tasks_are_listed_page_by_page_also_when_some_end_meanwhile(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=EXTERNAL, store=MemoryStore()) as stage:
        for number in range(4):
            await task_in(stage, f"t{number}")
        page = await body_of(await stage.client.get("/v1/tasks", params={"limit": 2}))
        assert [each["task_id"] for each in page["items"]] == ["t0", "t1"]
        stage.gateway.default.host.desk.withdraw("t1", "test")
        rest = await listed(stage, "/v1/tasks", params={"after": page["next"]})
        assert [each["task_id"] for each in rest] == ["t2", "t3"]
        assert refusal(await stage.client.get("/v1/tasks", params={"after": "x"})) == (400, "invalid_message")


async def test_a_task_that_waits_says_why_and_one_that_runs_says_how_far_it_is(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=EXTERNAL, store=MemoryStore()) as stage:
        hall = stage.gateway.hall
        await task_in(stage, "t1")
        (task,) = await listed(stage, "/v1/tasks")
        assert (task["why"], task["lease_left_ms"]) == ("no worker has asked for tasks lately", None)
        (lease,) = await hall.claim("w1")
        await hall.start("t1", lease.token)
        await hall.heartbeat("t1", lease.token, Progress("12 of 40", 30))
        await task_in(stage, "t2")
        await task_in(stage, "t3", labels=("gpu",))
        found = {each["task_id"]: each for each in await listed(stage, "/v1/tasks")}
        assert found["t1"]["progress"] == {"text": "12 of 40", "percent": 30}
        assert (found["t1"]["state"], found["t1"]["worker"], found["t1"]["why"]) == ("started", "w1", "")
        assert 0 < found["t1"]["lease_left_ms"] <= 30_000
        assert found["t2"]["why"] == "every worker that could take it is busy: w1"
        assert found["t3"]["why"] == "no worker takes such tasks: w1 has no label gpu"
        assert found["t3"]["labels"] == ["gpu"]
        one = await body_of(await stage.client.get("/v1/tasks/t3"))
        assert one["why"] == found["t3"]["why"]


async def test_why_a_task_waits_tells_nothing_of_the_workers_of_other_tenants(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=EXTERNAL, store=MemoryStore()) as stage:
        await task_in(stage, "t1", tenant="acme")
        await stage.gateway.hall.claim("zebra", guest=Guest("t", "other"))
        acme = await stage.token("chat", tenant="acme")
        (task,) = await listed(stage, "/v1/tasks", headers=acme)
        assert task["why"] == "no worker has asked for tasks lately"


async def test_a_task_that_has_ended_is_found_by_its_state_with_what_came_of_it(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=EXTERNAL, store=MemoryStore()) as stage:
        desk, hall = stage.gateway.default.host.desk, stage.gateway.hall
        for number in range(4):
            await task_in(stage, f"t{number}")
        for number, result in enumerate(
            (
                ExternalTaskResult(result={"output": "fine"}),
                ExternalTaskResult(success=False, error="no such file"),
                ExternalTaskResult(result="x" * 50_000),
            )
        ):
            (lease,) = await hall.claim("w1")
            await hall.start(f"t{number}", lease.token)
            await hall.complete(f"t{number}", lease.token, result)
        desk.withdraw("t3", "not needed")
        await until(lambda: not desk.tasks())
        assert await listed(stage, "/v1/tasks") == []
        done = await listed(stage, "/v1/tasks", params={"state": "completed", "worker": "w1"})
        assert [(each["task_id"], each["worker"]) for each in done] == [("t0", "w1"), ("t2", "w1")]
        page = await body_of(await stage.client.get("/v1/tasks", params={"state": "completed", "limit": 1}))
        more = await listed(stage, "/v1/tasks", params={"state": "completed", "after": page["next"]})
        assert [each["task_id"] for each in more] == ["t2"]
        shown = [await body_of(await stage.client.get(f"/v1/tasks/t{number}")) for number in range(4)]
        assert [each["state"] for each in shown] == ["completed", "failed", "completed", "withdrawn"]
        assert (shown[0]["result"], shown[0]["result_cut"]) == ({"output": "fine"}, False)
        assert (shown[1]["result"], shown[1]["error"]) == (None, "no such file")
        assert (len(shown[2]["result"]), shown[2]["result_cut"]) == (RESULT_MAX, True)
        assert "not needed" in shown[3]["reason"]
        assert all(each["ended_ms"] >= each["created_ms"] and each["remaining_ms"] == 0 for each in shown)
        other = await stage.token("chat", tenant="other")
        assert await listed(stage, "/v1/tasks", params={"state": "completed"}, headers=other) == []


async def test_the_run_and_the_message_that_wait_for_a_task_say_why_nobody_takes_it(tmp_path: Path) -> None:
    held = Held(say("never"))
    async with gateway_stage(tmp_path, script=[[call("ls")], held], text=EXTERNAL, store=MemoryStore()) as stage:
        sent = await post(stage, "s1", "look")
        await until(stage.gateway.default.host.desk.tasks)
        (task,) = await listed(stage, "/v1/tasks")
        why = f"task {task['task_id']} is pending"
        run = await body_of(await stage.client.get(f"/v1/runs/{task['run_id']}/explain"))
        assert why in run["text"]
        assert "no worker has asked for tasks lately" in run["text"]
        message = await body_of(await stage.client.get(f"/v1/messages/{sent['message_id']}/explain"))
        assert "no worker has asked for tasks lately" in message["text"]


async def test_what_becomes_of_a_task_is_told_on_the_stream_of_its_session(tmp_path: Path) -> None:
    script = [[call("ls")], [say("done")]]
    async with staged(tmp_path, script=script, text=EXTERNAL) as (stage, app), listening(app, EVENTS) as ear:

        async def told(kind: str) -> dict[str, Any]:
            payload: dict[str, Any] = (await ear.next(f"external_task_{kind}")).data["payload"]
            return payload

        await post(stage, "s1", "look")
        hall, task_id = stage.gateway.hall, (await told("pending"))["task_id"]
        (lease,) = await hall.claim("w1")
        await hall.start(task_id, lease.token)
        await hall.heartbeat(task_id, lease.token, Progress("half", 50))
        await hall.complete(task_id, lease.token, ExternalTaskResult(result="fine"))
        assert (await told("started"))["worker"] == "w1"
        progress = await told("progress")
        assert (progress["task_id"], progress["text"], progress["percent"]) == (task_id, "half", 50)
        assert (await told("completed"))["state"] == "completed"


async def test_tasks_of_all_workspaces_come_in_one_order_page_by_page(tmp_path: Path) -> None:
    specs = []
    for name in ("shop", "lab"):
        (tmp_path / name).mkdir()
        specs.append(spec_of(tmp_path / name, name=name, text=EXTERNAL))
    async with gateway_stage(tmp_path, specs=specs, store=MemoryStore()) as stage:
        wanted = []
        for number, name in enumerate(("shop", "shop", "shop", "lab", "shop", "lab", "lab")):
            order = order_of(f"t{number}", owner=Owner("default", name, "s1"))
            await stage.gateway.workspaces[name].host.desk.post(order)
            wanted.append(f"t{number}")
        for state in ("pending", "completed"):
            for limit in (1, 2, 3, 200):
                seen, after = list[str](), ""
                while after is not None:
                    params = {"workspace": "*", "state": state, "limit": limit, "after": after}
                    page = await body_of(await stage.client.get("/v1/tasks", params=params))
                    assert len(page["items"]) <= limit
                    seen += [each["task_id"] for each in page["items"]]
                    after = page["next"]
                assert seen == wanted, (state, limit)
            for each in stage.gateway.workspaces.values():
                desk = each.host.desk
                for task in desk.tasks():
                    await desk.complete_by_host(task.task_id, ExternalTaskResult(result="done"))
        assert refusal(await stage.client.get("/v1/tasks", params={"workspace": "none"})) == (404, "not_found")
        both = {"Laneway-Workspace": "lab"}
        assert (await stage.client.get("/v1/tasks", params={"workspace": "*"}, headers=both)).status_code == 400
