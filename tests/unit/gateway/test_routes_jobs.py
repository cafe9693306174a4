"""Single jobs: what they are, and how an operator ends them; whoever waits for one is told the right thing."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from laneway.models import ScriptedModel, call, say
from laneway.records import JobId
from laneway.rows import Owner
from tests.agent_stage import Held
from tests.gateway_stage import GatewayStage
from tests.routes_stage import body_of, ended, post, refusal, until
from tests.traffic_stage import Gate, job_in, still


async def cancelled(stage: GatewayStage, job_id: str, reason: str = "") -> dict[str, Any]:
    """End a job as an operator does."""
    answer = await stage.client.post(f"/v1/jobs/{job_id}/cancel", json={"reason": reason}, headers=stage.operator())
    found: dict[str, Any] = await body_of(answer, 202)
    return found


async def test_a_call_of_a_tool_is_ended_alone_and_the_model_is_told(tmp_path: Path) -> None:
    told = Held(say("as you wish"))
    async with still(tmp_path, script=[[call("bash", command="sleep 600")], told]) as (stage, _, _):
        sent = await post(stage, "ada", "hello")
        await until(lambda: job_in(stage, "s:ada/execute"))
        job_id = job_in(stage, "s:ada/execute")
        await until(lambda: stage.gateway.lanes.engine.kernel.jobs[JobId(job_id)].state == "running")
        shown = await body_of(await stage.client.get(f"/v1/jobs/{job_id}"))
        assert (shown["job"]["kind"], shown["job"]["tool"], shown["lane"]) == ("tool", "bash", "s:ada/execute")
        assert "has run for" in shown["detail"]
        done = await cancelled(stage, job_id, "it hangs")
        assert done == {"id": job_id, "kind": "tool", "done": "the call of the tool was ended; the model is told so"}
        await told.asked.wait()
        told.let_go()
        await ended(stage, sent["message_id"])
        final = await stage.gateway.default.inbox.status(sent["message_id"])
        assert (final.outcome, final.answer) == ("succeeded", "as you wish")
        audit = await body_of(await stage.client.get("/v1/audit", headers=stage.operator()))
        (entry,) = [each for each in audit["items"] if each["action"] == "job.cancel"]
        assert (entry["target"], entry["reason"], entry["facts"]["lane"]) == (job_id, "it hangs", "s:ada/execute")


async def test_what_the_model_is_told_of_a_call_that_was_ended_says_so(tmp_path: Path) -> None:
    model = ScriptedModel([[call("read", path="a.txt")], [say("good")]])
    async with still(tmp_path, model=model) as (stage, _, _):
        await stage.client.patch("/v1/lanes/query", json={"paused": True}, headers=stage.operator())
        sent = await post(stage, "ada", "hello")
        await until(lambda: job_in(stage, "s:ada/query"))
        await cancelled(stage, job_in(stage, "s:ada/query"), "not needed")
        await ended(stage, sent["message_id"])
        ended_alone = (
            "[Cancelled: this call was ended from outside before it had started; the run goes on (not needed)]"
        )
        assert ended_alone in str(model.requests[-1])
        assert (await stage.gateway.default.inbox.status(sent["message_id"])).answer == "good"


async def test_a_call_with_an_effect_that_was_ended_while_it_ran_is_unknown_and_the_next_one_is_made(
    tmp_path: Path,
) -> None:
    model = ScriptedModel([[call("bash", command="sleep 600"), call("bash", command="echo two")], [say("good")]])
    async with still(tmp_path, model=model) as (stage, _, _):
        sent = await post(stage, "ada", "hello")
        await until(lambda: job_in(stage, "s:ada/execute"))
        await cancelled(stage, job_in(stage, "s:ada/execute"), "too slow")
        await ended(stage, sent["message_id"])
        told = str(model.requests[-1])
        assert "too slow" in told
        assert "two" in told


async def test_a_tool_that_may_not_be_interrupted_is_not(tmp_path: Path) -> None:
    async with still(tmp_path, script=[[call("bash", command="sleep 600")], [say("good")]]) as (stage, _, _):
        await post(stage, "ada", "hello")
        await until(lambda: job_in(stage, "s:ada/execute"))
        job_id = job_in(stage, "s:ada/execute")
        await until(lambda: stage.gateway.lanes.engine.kernel.jobs[JobId(job_id)].state == "running")
        session = stage.gateway.default.live_session("default", "ada")
        assert session is not None
        spec = session.toolbox["bash"].spec
        session.toolbox = {"bash": SimpleNamespace(spec=replace(spec, interruptible=False))}
        answer = await stage.client.post(f"/v1/jobs/{job_id}/cancel", headers=stage.operator())
        assert refusal(answer) == (409, "conflict")
        assert "may not be interrupted" in answer.json()["detail"]
        session.toolbox = {"bash": SimpleNamespace(spec=spec)}
        await cancelled(stage, job_id)


async def test_a_turn_that_runs_is_ended_as_its_run(tmp_path: Path) -> None:
    held = Held(say("never"))
    async with still(tmp_path, script=[held, [say("next")]]) as (stage, _, _):
        sent = await post(stage, "ada", "hello")
        await held.asked.wait()
        done = await cancelled(stage, job_in(stage, "main"))
        assert done["done"] == "the run of session 'ada' was told to end"
        await ended(stage, sent["message_id"])
        final = await stage.gateway.default.inbox.status(sent["message_id"])
        assert final.outcome == "interrupted"
        assert (await stage.send("ada", "again"))["message_id"]


@pytest.mark.parametrize("lane", ["main", "model:scripted"])
async def test_the_next_run_of_a_session_is_not_ended_for_a_job_that_ended_while_the_audit_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lane: str
) -> None:
    first, second = Held(say("one")), Held(say("two"))
    async with still(tmp_path, script=[first, second]) as (stage, _, _):
        await post(stage, "ada", "hello")
        await first.asked.wait()
        sent = await post(stage, "ada", "and this")
        write = stage.gateway.audit.record

        async def slow(*given: Any, **facts: Any) -> None:
            await write(*given, **facts)
            first.let_go()
            await second.asked.wait()

        operator, job_id = stage.operator(), job_in(stage, lane)
        monkeypatch.setattr(stage.gateway.audit, "record", slow)
        answer = await stage.client.post(f"/v1/jobs/{job_id}/cancel", headers=operator)
        assert refusal(answer) == (404, "unknown_job")
        second.let_go()
        await ended(stage, sent["message_id"])
        assert (await stage.gateway.default.inbox.status(sent["message_id"])).outcome == "succeeded"


async def test_what_came_later_is_not_withdrawn_for_a_turn_that_was_given_up_while_the_audit_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with still(tmp_path) as (stage, _, _):
        stage.gateway.lanes.pause("main")
        first = await post(stage, "ada", "one")
        await until(lambda: job_in(stage, "main"))
        operator, job_id, later = stage.operator(), job_in(stage, "main"), list[dict[str, Any]]()
        write = stage.gateway.audit.record

        async def slow(*given: Any, **facts: Any) -> None:
            await write(*given, **facts)
            await stage.client.delete(f"/v1/messages/{first['message_id']}", headers=operator)
            stage.gateway.default.inbox.engine.drop_slot(Owner("default", "default", "ada"))
            later.append(await post(stage, "ada", "two"))
            await until(lambda: job_in(stage, "main") not in ("", job_id))

        monkeypatch.setattr(stage.gateway.audit, "record", slow)
        answer = await stage.client.post(f"/v1/jobs/{job_id}/cancel", headers=operator)
        assert refusal(answer) == (404, "unknown_job")
        waiting = stage.gateway.default.inbox.pending("ada")
        assert [each.message.id for each in waiting] == [later[0]["message_id"]]


async def test_with_the_call_of_a_model_its_run_ends(tmp_path: Path) -> None:
    held = Held(say("never"))
    async with still(tmp_path, script=[held]) as (stage, _, _):
        sent = await post(stage, "ada", "hello")
        await held.asked.wait()
        job_id = job_in(stage, "model:scripted")
        assert (await body_of(await stage.client.get(f"/v1/jobs/{job_id}")))["job"]["kind"] == "model"
        assert (await cancelled(stage, job_id))["kind"] == "model"
        await ended(stage, sent["message_id"])
        assert (await stage.gateway.default.inbox.status(sent["message_id"])).outcome == "interrupted"


async def test_for_a_turn_that_waits_its_messages_are_withdrawn_and_its_place_is_free(tmp_path: Path) -> None:
    async with still(tmp_path) as (stage, _, _):
        stage.gateway.lanes.pause("main")
        sent = await post(stage, "ada", "hello")
        await until(lambda: job_in(stage, "main"))
        done = await cancelled(stage, job_in(stage, "main"), "not now")
        assert done["done"] == "1 waiting message of session 'ada' withdrawn"
        final = await stage.gateway.default.inbox.status(sent["message_id"])
        assert (final.disposition, final.reason) == ("withdrawn", "not now")
        assert job_in(stage, "main") == ""
        stage.gateway.lanes.resume("main")
        assert (await stage.send("ada", "hello again"))["message_id"]


async def test_only_what_the_turn_would_be_about_is_withdrawn(tmp_path: Path) -> None:
    async with still(tmp_path) as (stage, _, _):
        stage.gateway.lanes.pause("main")
        first = await post(stage, "ada", "one")
        second = await post(stage, "ada", "two")
        await until(lambda: job_in(stage, "main"))
        await cancelled(stage, job_in(stage, "main"))
        inbox = stage.gateway.default.inbox
        assert (await inbox.status(first["message_id"])).disposition == "withdrawn"
        assert [each.message.id for each in inbox.pending("ada")] == [second["message_id"]]
        stage.gateway.lanes.resume("main")
        await ended(stage, second["message_id"])


async def test_why_a_job_waits_is_told_with_who_is_before_it(tmp_path: Path) -> None:
    async with still(tmp_path) as (stage, _, _):
        lanes, gate = stage.gateway.lanes, Gate()

        async def turn(_: Owner) -> None:
            await gate()

        lanes.resize("main", 1)
        first = lanes.submit("main", turn, Owner("default", "default", "ada"), label="turn of ada")
        second = lanes.submit("main", turn, Owner("default", "default", "bob"), label="turn of bob")
        other = lanes.submit("main", turn, Owner("acme", "default", "zebra"), label="turn of zebra")
        shown = await body_of(await stage.client.get(f"/v1/jobs/{second.id}"))
        assert (shown["position"], shown["lane"], shown["job"]["reason"]) == (1, "main", "lane")
        assert [each["id"] for each in shown["blocked_by"]] == [first.id]
        assert "1 of 1 taken" in shown["detail"]
        assert refusal(await stage.client.get(f"/v1/jobs/{other.id}")) == (404, "unknown_job")
        answer = await stage.client.post(f"/v1/jobs/{other.id}/cancel", headers=stage.operator())
        assert refusal(answer) == (404, "unknown_job")
        first.cancel()
        second.cancel()
        await until(lambda: other.state == "running")
        last = lanes.submit("main", turn, Owner("default", "default", "cleo"), label="turn of cleo")
        told = await stage.client.get(f"/v1/jobs/{last.id}")
        assert "zebra" not in told.text
        assert told.json()["blocked_by"][0]["foreign"] is True
        gate.open.set()


async def test_jobs_that_never_were_or_have_ended_or_are_ending_are_refused_clearly(tmp_path: Path) -> None:
    async with still(tmp_path) as (stage, _, _):
        operator = stage.operator()
        assert refusal(await stage.client.get("/v1/jobs/none")) == (404, "unknown_job")
        assert refusal(await stage.client.post("/v1/jobs/none/cancel", headers=operator)) == (404, "unknown_job")
        assert refusal(await stage.client.post("/v1/jobs/none/cancel"))[0] == 401
        stopping, gate = asyncio.Event(), Gate()

        async def stubborn(_: Owner) -> None:
            try:
                await gate()
            finally:
                stopping.set()
                await asyncio.shield(gate.open.wait())

        job = stage.gateway.lanes.submit("main", stubborn, Owner("default", "default", "ada"))
        await until(lambda: job.state == "running")
        await asyncio.sleep(0)
        stage.gateway.lanes.engine.stop(job.id, "enough")
        await stopping.wait()
        answer = await stage.client.post(f"/v1/jobs/{job.id}/cancel", headers=operator)
        assert refusal(answer) == (409, "conflict")
        assert "ending already" in answer.json()["detail"]
        gate.open.set()
        await until(job.done)
        assert refusal(await stage.client.get(f"/v1/jobs/{job.id}")) == (404, "unknown_job")
