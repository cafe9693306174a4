"""What operators change about who makes the calls of a lane, while calls are made: nothing is lost by it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from laneway.external import ExternalTaskResult, Lease
from laneway.gateway.tool_lanes import NEVER, LaneChange
from laneway.models import call, say
from laneway.options import LaneHandlerConfig
from laneway.stores.memory import MemoryStore
from tests.gateway_stage import GatewayStage, gateway_stage, spec_of
from tests.routes_stage import EXTERNAL, LANED, body_of, ended, post, refusal, until

HANDLER: dict[str, Any] = {
    "mode": "external",
    "timeout_ms": 1_234,
    "ordered": False,
    "lease_ms": 5_000,
    "fallback": True,
    "labels": ["os=linux", "gpu"],
    "sticky": "session",
    "sticky_ms": 7,
    "background_after_ms": 8,
}


def handler_in(stage: GatewayStage, key: str, lane: str = "query") -> LaneHandlerConfig:
    """Who makes the calls of a lane of a session."""
    session = stage.gateway.default.live_session("default", key)
    assert session is not None
    assert session.lanes is not None
    return session.lanes.handler_of(lane)


async def changed(stage: GatewayStage, lane: str, **said: Any) -> dict[str, Any]:
    """Change a lane as an operator does."""
    answer = await stage.client.patch(f"/v1/lanes/{lane}", json=said, headers=stage.operator())
    found: dict[str, Any] = await body_of(answer)
    return found


# ---- what can be said ----


async def test_everything_about_who_makes_the_calls_of_a_lane_can_be_changed(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=LANED, store=MemoryStore()) as stage:
        await stage.send("s1", "hello")
        shown = await changed(stage, "query", **HANDLER)
        in_force = {**HANDLER, "labels": ["gpu", "os=linux"]}
        assert in_force.items() <= shown.items()
        listed = {each["name"]: each for each in (await body_of(await stage.client.get("/v1/lanes")))["items"]}
        assert in_force.items() <= listed["s:s1/query"].items()
        assert listed["main"]["timeout_ms"] is None
        await stage.send("s2", "hello")
        expected = LaneHandlerConfig(**{**HANDLER, "labels": ("gpu", "os=linux")})
        assert [handler_in(stage, key) for key in ("s1", "s2")] == [expected, expected]
        assert handler_in(stage, "s1", "execute") == LaneHandlerConfig()
        (entry,) = await stage.gateway.audit.entries("default")
        assert HANDLER.items() <= entry.facts.items()


async def test_a_later_change_leaves_the_rest_and_can_take_things_back(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=LANED, store=MemoryStore()) as stage:
        await stage.send("s1", "hello")
        await changed(stage, "query", **HANDLER)
        await changed(stage, "query", labels=[], sticky="", background_after_ms=None)
        await stage.send("s2", "hello")
        kept = {**HANDLER, "labels": (), "sticky": "", "background_after_ms": None}
        for key in ("s1", "s2"):
            assert handler_in(stage, key) == LaneHandlerConfig(**kept)


@pytest.mark.parametrize(
    "said",
    [
        {"labels": ["a b"]},
        {"labels": ["a,b"]},
        {"labels": [""]},
        {"labels": "gpu"},
        {"labels": [f"l{number}" for number in range(51)]},
        {"sticky": "worker"},
        {"sticky_ms": -1},
        {"lease_ms": 0},
        {"ordered": "no"},
        {"fallback": 1},
        {"background_after_ms": -1},
        {"label": ["gpu"]},
    ],
)
async def test_what_cannot_be_is_refused_and_changes_nothing(tmp_path: Path, said: dict[str, Any]) -> None:
    async with gateway_stage(tmp_path, text=LANED, store=MemoryStore()) as stage:
        answer = await stage.client.patch("/v1/lanes/query", json=said, headers=stage.operator())
        assert refusal(answer) == (422, "invalid_request")
        await stage.send("s1", "hello")
        assert handler_in(stage, "s1") == LaneHandlerConfig()


async def test_a_change_for_one_workspace_leaves_the_others_alone(tmp_path: Path) -> None:
    specs = []
    for name, text in (("shop", EXTERNAL), ("lab", f"{EXTERNAL}lanes: {{main: 3}}\n")):
        (tmp_path / name).mkdir()
        specs.append(spec_of(tmp_path / name, name=name, text=text))
    async with gateway_stage(tmp_path, specs=specs, store=MemoryStore()) as stage:
        places = stage.gateway.workspaces
        for name, place in places.items():
            sent = await stage.client.post(f"/v1/sessions/s1/messages?workspace={name}", json={"text": "hello"})
            await place.inbox.wait(sent.json()["message_id"])

        async def modes(lane: str, **params: str) -> str | None:
            items = (await body_of(await stage.client.get("/v1/lanes", params=params)))["items"]
            (found,) = [each["mode"] for each in items if each["name"] == lane]
            return str(found)

        def handlers() -> list[str]:
            sessions = [place.live_session("default", "s1") for place in places.values()]
            return [each.lanes.handler_of("query").mode for each in sessions if each is not None and each.lanes]

        shown = await changed(stage, "query?workspace=shop", mode="internal", concurrency=7)
        assert (shown["mode"], shown["concurrency"]) == ("internal", 7)
        assert handlers() == ["internal", "external"]
        assert [await modes("query", workspace=name) for name in places] == ["internal", "external"]
        assert await modes("query") == "mixed"
        entry = (await stage.gateway.audit.entries("default"))[-1]
        assert entry.facts["workspace"] == "shop"

        listed = await body_of(await stage.client.get("/v1/lanes", params={"workspace": "lab"}))
        names = [each["name"] for each in listed["items"]]
        assert [name for name in names if name.startswith("s:")] == []  # those of the default workspace
        (own,) = [name for name in names if name.endswith("/query")]
        for lane, status in (
            (f"{own}?workspace=lab", 200),
            (f"{own}?workspace=shop", 409),
            ("main?workspace=shop", 200),
            ("shop/main?workspace=shop", 200),
            ("shop/main?workspace=lab", 409),
        ):
            answer = await stage.client.patch(
                f"/v1/lanes/{quote(lane, safe='/?=')}", json={"concurrency": 2}, headers=stage.operator()
            )
            assert answer.status_code == status, answer.text
        lanes = (await body_of(await stage.client.get("/v1/lanes")))["items"]
        assert {each["name"]: each["concurrency"] for each in lanes if each["name"].endswith("/main")} == {
            "shop/main": 2,
            "lab/main": 3,
        }

        await changed(stage, "query", mode="hybrid")
        assert handlers() == ["hybrid", "hybrid"]
        assert await modes("query") == "hybrid"


async def test_who_has_no_token_hears_how_to_get_one(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=LANED, store=MemoryStore()) as stage:
        answer = await stage.client.patch("/v1/lanes/query", json={"paused": True})
        assert refusal(answer) == (401, "not_authenticated")
        assert answer.json()["hint"] == (
            "a server that is started in a terminal prints one; else laneway token create NAME --scope operate makes "
            "one, on its store while no server has that open"
        )


async def test_a_lane_that_is_nearly_named_is_guessed(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=LANED, store=MemoryStore()) as stage:
        for name, hint in (("exekute", "did you mean 'execute'?"), ("zzz", "lanes here: those of GET /v1/lanes")):
            answer = await stage.client.patch(f"/v1/lanes/{name}", json={"paused": True}, headers=stage.operator())
            assert (answer.json()["code"], answer.json()["hint"]) == ("unknown_lane", hint)


async def test_the_list_of_lanes_says_who_makes_the_calls(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=EXTERNAL, store=MemoryStore()) as stage:
        await stage.send("s1", "hello")
        lanes = {each["name"]: each for each in (await body_of(await stage.client.get("/v1/lanes")))["items"]}
        modes = {name: lanes[name]["mode"] for name in ("main", "query", "execute", "s:s1/query", "s:s1/execute")}
        assert modes == {
            "main": None,
            "query": "external",
            "execute": "internal",
            "s:s1/query": "external",
            "s:s1/execute": "internal",
        }


def test_changes_add_up_and_the_newest_wins() -> None:
    before = LaneChange(mode="external", labels=("a",), background_after_ms=5)
    both = LaneChange(labels=(), background_after_ms=NEVER, concurrency=2).over(before)
    assert both.handler == {"mode": "external", "labels": (), "background_after_ms": None}
    assert both.without_handler == LaneChange(concurrency=2)


# ---- while calls are made ----


async def claimed(stage: GatewayStage, worker: str = "w1", limit: int = 10) -> list[Lease]:
    """Take what waits, and begin with it."""
    leases = await stage.gateway.hall.claim(worker, limit=limit)
    for lease in leases:
        await stage.gateway.hall.start(lease.task["task_id"], lease.token)
    return leases


async def finish(stage: GatewayStage, lease: Lease, said: str = "made elsewhere") -> None:
    """A worker says what came of a task."""
    assert await stage.gateway.hall.complete(lease.task["task_id"], lease.token, ExternalTaskResult(result=said))


def outputs(stage: GatewayStage, key: str = "s1") -> list[str]:
    """What the model was told of its calls, oldest first."""
    model = stage.gateway.default.spec.model
    return [result.output for each in model.requests[-1].conversation for result in getattr(each, "results", ())]


async def test_a_lane_that_becomes_internal_leaves_what_is_out_with_its_workers(tmp_path: Path) -> None:
    """Two calls are out, one with a worker and one that nobody has taken; the third is made here after the switch."""
    (tmp_path / "here.txt").write_text("made here")
    script = [
        [call("ls", path="a"), call("ls", path="b")],
        [call("read", path="here.txt")],
        [say("done")],
    ]
    async with gateway_stage(tmp_path, script=script, text=EXTERNAL, store=MemoryStore()) as stage:
        sent = await post(stage, "s1", "look")
        desk = stage.gateway.default.host.desk
        await until(lambda: len(desk.tasks()) == 2)
        (first,) = await claimed(stage, limit=1)
        await changed(stage, "query", mode="internal")
        assert len(desk.tasks()) == 2
        assert await stage.gateway.hall.heartbeat(first.task["task_id"], first.token)
        (second,) = await claimed(stage, "w2")  # what waited still waits for a worker
        await finish(stage, second, "second")
        await finish(stage, first, "first")
        await ended(stage, sent["message_id"])
        assert outputs(stage)[:2] == ["first", "second"]
        assert "made here" in outputs(stage)[2]
        assert desk.tasks() == []


async def test_calls_that_wait_for_their_slot_go_where_they_were_sent_when_they_were_asked_for(tmp_path: Path) -> None:
    """Three calls in a lane of two: the third has no task yet when the lane is switched, and is not lost."""
    script = [[call("ls", path=name) for name in "abc"], [say("done")]]
    async with gateway_stage(tmp_path, script=script, text=EXTERNAL, store=MemoryStore()) as stage:
        sent = await post(stage, "s1", "look")
        desk = stage.gateway.default.host.desk
        await until(lambda: len(desk.tasks()) == 2)
        await changed(stage, "query", mode="internal")
        for said in ("a", "b", "c"):
            await until(desk.tasks)
            (lease,) = await claimed(stage, limit=1)
            assert lease.task["payload"] == {"path": said}
            await finish(stage, lease, said)
        await ended(stage, sent["message_id"])
        assert outputs(stage) == ["a", "b", "c"]


async def test_a_lane_that_becomes_external_lets_the_calls_that_run_here_end_here(tmp_path: Path) -> None:
    script = [[call("wait", seconds=0.05)], [call("ls")], [say("done")]]
    async with gateway_stage(tmp_path, script=script, text=LANED, store=MemoryStore()) as stage:
        sent = await post(stage, "s1", "look")
        host = stage.gateway.default.host
        await until(lambda: any(lane.running for lane in host.lanes.stats().lanes.values()))
        await until(lambda: (run := next(iter(host.sessions.values())).current_run()) is not None and run.tools)
        await changed(stage, "query", mode="external")
        await changed(stage, "execute", mode="external")
        assert host.desk.tasks() == []
        await until(host.desk.tasks)
        (lease,) = await claimed(stage)
        assert lease.task["command_type"] == "ls"
        await finish(stage, lease)
        await ended(stage, sent["message_id"])
        assert outputs(stage)[1] == "made elsewhere"
        assert "wait" in outputs(stage)[0]


async def test_a_hybrid_lane_makes_its_calls_here_and_tells_those_who_watch(tmp_path: Path) -> None:
    script = [[call("ls")], [call("ls")], [say("done")]]
    async with gateway_stage(tmp_path, script=script, text=EXTERNAL, store=MemoryStore()) as stage:
        told: list[str] = []
        stage.gateway.default.observers.append(lambda _, event: told.append(event.event_type))
        sent = await post(stage, "s1", "look")
        desk = stage.gateway.default.host.desk
        await until(desk.tasks)
        waiting = asyncio.ensure_future(stage.gateway.hall.claim("w2", wait_ms=60_000, commands=["bash"]))
        await changed(stage, "query", mode="hybrid")
        (lease,) = await claimed(stage)
        await finish(stage, lease)
        await ended(stage, sent["message_id"])
        assert outputs(stage)[0] == "made elsewhere"
        assert outputs(stage)[1] != "made elsewhere"
        tasks = [each for each in told if each.startswith("external_task")]
        made_elsewhere, made_here = ("pending", "started", "completed"), ("pending", "completed")
        assert tasks == [f"external_task_{each}" for each in (*made_elsewhere, *made_here)]
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


async def test_labels_of_a_lane_hold_from_the_next_call_on(tmp_path: Path) -> None:
    script = [[call("ls")], [call("ls")], [say("done")]]
    async with gateway_stage(tmp_path, script=script, text=EXTERNAL, store=MemoryStore()) as stage:
        sent = await post(stage, "s1", "look")
        desk, hall = stage.gateway.default.host.desk, stage.gateway.hall
        await until(desk.tasks)
        await changed(stage, "query", labels=["gpu"])
        (lease,) = await claimed(stage, "plain")
        await finish(stage, lease)
        await until(desk.tasks)
        assert await hall.claim("plain") == []
        (task,) = (await body_of(await stage.client.get("/v1/tasks")))["items"]
        assert task["labels"] == ["gpu"]
        assert task["why"] == "no worker takes such tasks: plain has no label gpu"
        (lease,) = await hall.claim("strong", labels=["gpu", "os=linux"])
        await finish(stage, lease)
        await ended(stage, sent["message_id"])
        assert outputs(stage) == ["made elsewhere"] * 2


async def test_a_lane_that_went_with_its_session_while_the_audit_was_written_is_not_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_stage(tmp_path, text=LANED, store=MemoryStore()) as stage:
        await stage.send("s1", "hello")
        session = stage.gateway.default.live_session("default", "s1")
        assert session is not None
        operator, write = stage.operator(), stage.gateway.audit.record
        lanes = stage.gateway.lanes.engine.kernel.registry.lanes
        assert "s:s1/query" in lanes

        async def slow(*given: Any, **facts: Any) -> None:
            await write(*given, **facts)
            await session.close()

        monkeypatch.setattr(stage.gateway.audit, "record", slow)
        answer = await stage.client.patch("/v1/lanes/s:s1/query", json={"paused": True}, headers=operator)
        assert refusal(answer) == (404, "unknown_lane")
        assert "s:s1/query" not in lanes
