"""What moves in the lanes: looks, changes, and who may see what of them."""

from __future__ import annotations

import json
from pathlib import Path

from laneway.gateway.traffic import TICK
from laneway.gateway.traffic_look import RUNNING_MAX, WAITING_MAX, Look
from laneway.models import call, say
from laneway.rows import Owner
from tests.agent_stage import Held
from tests.gateway_stage import GatewayStage
from tests.routes_stage import body_of, post, refusal, until
from tests.stream_stage import listening
from tests.traffic_stage import Gate, job_in, still, tracks


def compared(stage: GatewayStage) -> bool:
    """What the timer would do."""
    traffic = stage.gateway.traffic
    differs = traffic.compare()
    if differs:
        traffic.hub.nudge(TICK)
    return differs


# ---- one look ----


async def test_a_look_shows_slots_queue_and_why_something_waits(tmp_path: Path) -> None:
    held = Held(say("done"))
    async with still(tmp_path, script=[held, held, held]) as (stage, _, clock):
        for key in ("ada", "bob", "cleo"):
            await post(stage, key, "hello")
        await until(lambda: stage.gateway.lanes.engine.kernel.waiting == 1 and job_in(stage, "s:bob/generate"))
        clock.advance(5_000)
        seen = await tracks(stage)
        main = seen["main"]
        assert (main["kind"], main["role"], main["concurrency"]) == ("shared", "turns", 2)
        assert (main["running"], main["waiting"], main["more_queue"]) == (2, 1, 0)
        first, second = main["jobs"]
        assert (first["kind"], first["session"], first["state"]) == ("turn", "ada", "running")
        assert first["run"].startswith("turn-")
        assert first["since_ms"] == clock.wall_ms() - 5_000
        assert second["session"] == "bob"
        (waits,) = main["queue"]
        assert (waits["session"], waits["position"], waits["reason"]) == ("cleo", 1, "lane")
        assert waits["why"] == "waits for a slot of lane 'main': 2 of 2 taken"
        assert main["oldest_since_ms"] == clock.wall_ms() - 5_000
        own = seen["session:cleo"]
        assert (own["kind"], own["session"], own["role"]) == ("session", "cleo", "session")
        assert own["jobs"][0]["state"] == "queued"  # it has the slot of its session, and waits for the next
        generate = seen["s:ada/generate"]
        assert (generate["session"], generate["role"], generate["mode"]) == ("ada", "tools", "internal")
        (asked,) = generate["jobs"]
        assert (asked["kind"], asked["run"], asked["lanes"]) == (
            "model",
            first["run"],
            ["s:ada/generate", "model:scripted"],
        )
        assert seen["generate"]["role"] == "template"
        assert seen["model:scripted"]["role"] == "model"
        body = await body_of(await stage.client.get("/v1/traffic"))
        assert body["totals"]["waiting"] == 1
        assert body["at_ms"] == clock.wall_ms()
        held.let_go()


async def test_a_look_says_of_a_lane_what_holds_it_up(tmp_path: Path) -> None:
    async with still(tmp_path) as (stage, _, clock):
        lanes, operator = stage.gateway.lanes, stage.operator()
        said = {"paused": True, "reason": "maintenance"}
        await body_of(await stage.client.patch("/v1/lanes/main", json=said, headers=operator))
        lanes.close_until("cron", clock.wall_ms() + 7_000, "quota")
        gate = Gate()
        for _ in range(3):
            lanes.submit("main", gate)
            lanes.submit("cron", gate)
        seen = await tracks(stage)
        assert (seen["main"]["paused"], seen["main"]["pause_reason"], seen["main"]["waiting"]) == (
            True,
            "maintenance",
            3,
        )
        assert {job["reason"] for job in seen["main"]["queue"]} == {"paused"}
        assert (seen["cron"]["closed_until_ms"], seen["cron"]["closed_reason"]) == (clock.wall_ms() + 7_000, "quota")
        assert seen["cron"]["queue"][0]["until_ms"] == clock.wall_ms() + 7_000
        await body_of(await stage.client.patch("/v1/lanes/main", json={"paused": False}, headers=operator))
        again = (await tracks(stage))["main"]
        assert (again["paused"], again["pause_reason"], again["running"]) == (False, "", 2)
        gate.open.set()
        lanes.reopen("cron")


async def test_a_lane_shows_so_many_jobs_and_says_how_many_more(tmp_path: Path) -> None:
    async with still(tmp_path) as (stage, _, _):
        lanes, gate = stage.gateway.lanes, Gate()
        lanes.resize("main", RUNNING_MAX + 5)
        for _ in range(RUNNING_MAX + 5 + WAITING_MAX + 9):
            lanes.submit("main", gate)
        main = (await tracks(stage))["main"]
        assert (len(main["jobs"]), main["more_jobs"], main["running"]) == (RUNNING_MAX, 5, RUNNING_MAX + 5)
        assert (len(main["queue"]), main["more_queue"], main["waiting"]) == (WAITING_MAX, 9, WAITING_MAX + 9)
        assert [job["position"] for job in main["queue"]] == list(range(1, WAITING_MAX + 1))
        gate.open.set()


async def test_lent_slots_are_told_with_who_has_them(tmp_path: Path) -> None:
    async with still(tmp_path) as (stage, _, _):
        lanes, gate, owner = stage.gateway.lanes, Gate(), Owner("default", "default", "ada")

        async def parent(_: Owner) -> None:
            await lanes.submit("main", gate, label="child")

        lanes.resize("main", 1)
        job = lanes.submit("main", parent, owner, label="turn of ada")
        await until(lambda: lanes.engine.kernel.lent == 1)
        main = (await tracks(stage))["main"]
        lender, borrower = main["jobs"]
        assert (main["lent"], main["borrowed"], main["running"]) == (1, 1, 1)
        assert (lender["lent"], lender["lent_to"], lender["state"]) == (True, [borrower["id"]], "lent")
        assert (borrower["borrowed_from"], borrower["label"], borrower["session"]) == (lender["id"], "child", "ada")
        gate.open.set()
        await job


async def test_lists_of_lanes_come_in_pages_and_for_one_workspace(tmp_path: Path) -> None:
    async with still(tmp_path, workspaces=("default", "other")) as (stage, _, _):
        everything = await tracks(stage)
        assert everything["other/main"]["kind"] == "workspace"
        assert (everything["other/main"]["workspace"], everything["other/main"]["role"]) == ("other", "turns")
        assert "other/main" not in await tracks(stage, workspace="default")
        assert "main" in await tracks(stage, workspace="other")
        page = await body_of(await stage.client.get("/v1/traffic", params={"limit": 3}))
        assert len(page["items"]) == 3
        rest = await tracks(stage, after=page["next"])
        assert sorted([*rest, *(each["name"] for each in page["items"])]) == sorted(everything)


# ---- tenants ----


async def test_what_other_tenants_do_is_seen_as_taken_slots_and_nothing_else(tmp_path: Path) -> None:
    held = Held(say("done"))
    async with still(tmp_path, script=[held] * 4) as (stage, app, _):
        acme = await stage.token("chat", "operate", tenant="acme")
        for key in ("zebra-1", "zebra-2", "zebra-3"):
            await post(stage, key, "zebra text", headers=acme)
        await until(lambda: stage.gateway.lanes.engine.kernel.waiting == 1 and held.asked.is_set())
        operator = stage.operator()
        answer = await stage.client.get("/v1/traffic", headers=operator)
        assert "zebra" not in answer.text
        assert "acme" not in answer.text
        main = next(each for each in answer.json()["items"] if each["name"] == "main")
        assert [(job["foreign"], job["id"], job["kind"]) for job in main["jobs"]] == [(True, "", "turn")] * 2
        assert main["queue"][0]["why"] == "waits for a slot of lane 'main': 2 of 2 taken"
        for path in ("/v1/traffic/events", "/v1/traffic/history"):
            told = await stage.client.get(path, params={"follow": "false"}, headers=operator)
            assert (told.status_code, "zebra" in told.text) == (200, False)
        own = await tracks(stage, {**operator, "Laneway-Tenant": "acme"})
        assert {"session:acme%~zebra-1", "session:acme%~zebra-3"} <= set(own)
        async with listening(app, "/v1/traffic/events", operator) as ear:
            await ear.next("look")
            held.let_go()
            await until(lambda: not stage.gateway.lanes.engine.kernel.jobs)
            assert compared(stage)
            await ear.next("changes")
            assert b"zebra" not in ear.raw  # names of lanes that are gone, neither
        assert refusal(await stage.client.get("/v1/traffic", headers=acme)) == (403, "permission_denied")
        assert refusal(await stage.client.get("/v1/traffic/events", headers=acme)) == (403, "permission_denied")
        assert refusal(await stage.client.get("/v1/traffic/history", headers=acme)) == (403, "permission_denied")


async def test_why_another_tenants_job_waits_names_no_lane_of_its_sessions(tmp_path: Path) -> None:
    async with still(tmp_path) as (stage, _, _):
        lanes, gate = stage.gateway.lanes, Gate()
        owner = Owner("acme", "default", "zebra")
        lanes.submit("t:zebra/own", gate)

        async def turn(_: Owner) -> None:
            await gate()

        lanes.submit(("main", "t:zebra/own"), turn, owner)  # has the shared lane, waits for that of its session
        (job,) = (await tracks(stage))["main"]["jobs"]
        assert (job["state"], job["why"], job["foreign"]) == ("queued", "waits for a lane of its session", True)
        gate.open.set()


# ---- the stream ----


async def test_the_stream_begins_with_everything_and_goes_on_with_what_changed(tmp_path: Path) -> None:
    async with still(tmp_path) as (stage, app, clock), listening(app, "/v1/traffic/events") as ear:
        first = await ear.next()
        names = [lane["name"] for lane in first.data["lanes"]]
        assert (first.type, first.data["count"], names) == ("look", len(names), sorted(names))
        assert next(lane for lane in first.data["lanes"] if lane["name"] == "main") == {
            "name": "main",
            "kind": "shared",
            "role": "turns",
            "concurrency": 2,
        }
        assert not compared(stage)
        gate = Gate()
        job = stage.gateway.lanes.submit("main", gate)
        clock.advance(10)
        assert compared(stage)
        told = (await ear.next("changes")).data
        assert [(lane["name"], lane["running"]) for lane in told["lanes"]] == [("main", 1)]
        assert (told["totals"]["running"], told["gone"]) == (1, [])
        gate.open.set()
        await job
        stage.gateway.lanes.pause("cron")
        assert compared(stage)
        told = (await ear.next("changes")).data
        assert {lane["name"]: lane.get("paused", False) for lane in told["lanes"]} == {"cron": True, "main": False}


async def test_lanes_that_go_are_told_once(tmp_path: Path) -> None:
    async with still(tmp_path) as (stage, app, _), listening(app, "/v1/traffic/events") as ear:
        await ear.next("look")
        gate = Gate()
        job = stage.gateway.lanes.submit("thing", gate)
        compared(stage)
        assert [lane["name"] for lane in (await ear.next("changes")).data["lanes"]] == ["thing"]
        gate.open.set()
        await job
        compared(stage)
        assert (await ear.next("changes")).data["gone"] == ["thing"]
        brief = stage.gateway.lanes.submit("fleeting", Gate())  # comes and goes between two looks
        brief.cancel()
        compared(stage)
        stage.gateway.lanes.pause("main")
        compared(stage)
        assert (await ear.next("changes")).data["gone"] == []


async def test_the_lanes_of_a_session_come_and_go_with_it(tmp_path: Path) -> None:
    async with still(tmp_path) as (stage, app, _), listening(app, "/v1/traffic/events") as ear:
        await ear.next("look")
        await stage.send("ada", "hello")
        compared(stage)
        told = (await ear.next("changes")).data
        mine = [lane["name"] for lane in told["lanes"] if lane.get("session") == "ada"]
        assert mine == ["s:ada/control", "s:ada/execute", "s:ada/generate", "s:ada/query"]
        said = {"mode": "external"}
        await body_of(await stage.client.patch("/v1/lanes/s:ada/query", json=said, headers=stage.operator()))
        compared(stage)
        lanes = {lane["name"]: lane for lane in (await ear.next("changes")).data["lanes"]}
        assert lanes["s:ada/query"]["mode"] == "external"


async def test_who_reads_slowly_gets_what_is_there_by_then_and_is_not_cut(tmp_path: Path) -> None:
    async with still(tmp_path) as (stage, app, _), listening(app, "/v1/traffic/events") as ear:
        await ear.next("look")
        ear.stall()
        gate = Gate()
        for _ in range(5_000):
            stage.gateway.lanes.submit("main", gate)
            compared(stage)
        ear.go_on()
        told = await ear.next("changes")
        while told.data["lanes"][0]["waiting"] < 4_998:
            told = await ear.next("changes")
        assert ear.types().count("changes") <= 3
        assert len(told.data["lanes"][0]["queue"]) == WAITING_MAX
        gate.open.set()


async def test_many_lanes_come_in_parts(tmp_path: Path) -> None:
    async with still(tmp_path) as (stage, app, _):
        gate = Gate()
        for number in range(600):
            stage.gateway.lanes.submit(f"lane{number:03}", gate)
        async with listening(app, "/v1/traffic/events") as ear:
            first = await ear.next("look")
            names = {lane["name"] for lane in first.data["lanes"]}
            while len(names) < first.data["count"]:
                more = (await ear.next("changes")).data["lanes"]
                assert len(more) <= 250
                names |= {lane["name"] for lane in more}
            assert {f"lane{number:03}" for number in range(600)} <= names
        gate.open.set()


async def test_the_newest_step_of_the_history_is_told(tmp_path: Path) -> None:
    async with still(tmp_path) as (stage, app, clock), listening(app, "/v1/traffic/events") as ear:
        await ear.next("look")
        await stage.gateway.lanes.submit("main", _nothing)
        clock.advance(5_000)
        stage.gateway.traffic.step()
        told = (await ear.next("step")).data
        assert (told["total"]["started"], told["total"]["ended"], told["at_ms"]) == (1, 1, clock.wall_ms())
        assert told["lanes"]["main"]["ended"] == 1
        series = await body_of(await stage.client.get("/v1/traffic/history", params={"lane": ["main", "none"]}))
        assert list(series["lanes"]) == ["main"]
        assert (series["lanes"]["main"]["ended"][-1], series["total"]["ended"][-1], series["at_ms"]) == (
            1,
            1,
            clock.wall_ms(),
        )
        shared = await body_of(await stage.client.get("/v1/traffic/history"))
        assert "main" in shared["lanes"]


async def _nothing() -> None:
    pass


async def test_a_stream_ends_with_the_server_and_with_its_token(tmp_path: Path) -> None:
    async with still(tmp_path) as (stage, app, _):
        headers = await stage.token("operate", tenant="*", name="gone soon")
        async with listening(app, "/v1/traffic/events", headers) as ear:
            await ear.next("look")
            (token,) = stage.gateway.tokens.tokens()
            await stage.gateway.tokens.revoke(token.id)
            assert await ear.end() == "revoked"
        async with listening(app, "/v1/traffic/events", stage.operator()) as ear:
            await ear.next("look")
            stage.gateway.begin_stop()
            assert await ear.end() == "stopping"
        answer = await stage.client.get("/v1/traffic/events", headers=stage.operator())
        assert refusal(answer) == (503, "overloaded")


async def test_with_nobody_watching_nothing_is_compared(tmp_path: Path) -> None:
    async with still(tmp_path) as (stage, app, _):
        traffic = stage.gateway.traffic
        assert not traffic.is_comparing
        traffic.period_ms = 1
        async with listening(app, "/v1/traffic/events") as ear:
            await ear.next("look")
            assert traffic.is_comparing
            stage.gateway.lanes.pause("main")
            await ear.next("changes")  # the timer has seen it
        await until(lambda: not traffic.is_comparing)


async def test_follow_false_ends_after_the_look(tmp_path: Path) -> None:
    async with still(tmp_path) as (stage, _, _):
        answer = await stage.client.get("/v1/traffic/events", params={"follow": "false"})
        events = [line for line in answer.text.splitlines() if line.startswith("event: ")]
        assert events == ["event: look", "event: close"]
        close = json.loads(answer.text.splitlines()[-2].removeprefix("data: "))
        assert close == {"reason": "caught_up"}


async def test_a_look_costs_the_lanes_nothing_and_changes_nothing(tmp_path: Path) -> None:
    script = [[call("bash", command="echo hello")], [say("done")]]
    async with still(tmp_path, script=script) as (stage, _, _):
        before = stage.gateway.lanes.stats()
        Look(stage.gateway, {}).totals()
        await tracks(stage)
        assert stage.gateway.lanes.stats() == before
        assert (await stage.send("ada", "hello"))["message_id"]
