"""The routes of histories: a run as a file, held against today's code, and gone on with in a new session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from laneway import replay
from laneway.models import call, say
from tests.gateway_stage import GatewayStage, gateway_stage
from tests.routes_stage import body_of, refusal

RECORDING = """
default_model: scripted
system: Be brief.
record: true
permissions:
  allow: ["*"]
"""


async def ran(stage: GatewayStage, text: str = "look") -> str:
    await stage.send("s1", text)
    found = await body_of(await stage.client.get("/v1/sessions/s1/runs"))
    return str(found["items"][-1]["run_id"])


def stage_of(folder: Path, *script: Any, **options: Any) -> Any:
    return gateway_stage(folder, script=[[call("ls")], [say("nothing there")], *script], **options)


async def test_a_run_is_one_file_that_replays_anywhere(tmp_path: Path) -> None:
    async with stage_of(tmp_path, text=RECORDING) as stage:
        run = await ran(stage)
        answer = await stage.client.get(f"/v1/runs/{run}/history")
        assert answer.headers["content-type"] == "application/x-ndjson"
        history = replay.loads(answer.text)
        assert history.is_recorded
        assert replay.run(history).text == "nothing there"
        found = await body_of(await stage.client.get(f"/v1/runs/{run}/replay"))
        assert (found["same"], found["recorded"], found["steps"]) == (True, True, len(history.steps))


async def test_a_run_goes_on_from_a_step_in_a_new_session(tmp_path: Path) -> None:
    async with stage_of(tmp_path, [say("otherwise")]) as stage:
        run = await ran(stage)
        history = replay.loads((await stage.client.get(f"/v1/runs/{run}/history")).text)
        body = {"step": len(history.steps), "session_key": "mine"}
        answer = await stage.client.post(f"/v1/runs/{run}/fork", json=body)
        assert answer.status_code == 202, answer.text
        assert answer.headers["location"] == "/v1/sessions/mine"
        forked = answer.json()
        await stage.gateway.default.inbox.wait(forked["message_id"])
        (found,) = (await body_of(await stage.client.get("/v1/sessions/mine/runs")))["items"]
        assert found["answer"] == "otherwise"
        before = (await body_of(await stage.client.get("/v1/sessions/s1/runs")))["items"]
        assert [each["answer"] for each in before] == ["nothing there"]


async def test_the_same_key_forks_once(tmp_path: Path) -> None:
    async with stage_of(tmp_path, [say("one")], [say("two")]) as stage:
        run = await ran(stage)
        headers = {"Idempotency-Key": "k"}
        first = await stage.client.post(f"/v1/runs/{run}/fork", json={"prompt": "more"}, headers=headers)
        again = await stage.client.post(f"/v1/runs/{run}/fork", json={"prompt": "more"}, headers=headers)
        assert (first.status_code, again.status_code) == (202, 202)
        assert first.json()["session_key"] == again.json()["session_key"]
        other = await stage.client.post(f"/v1/runs/{run}/fork", json={"prompt": "more"})
        assert other.json()["session_key"] != first.json()["session_key"]


async def test_what_cannot_be_forked_is_refused(tmp_path: Path) -> None:
    async with stage_of(tmp_path) as stage:
        run = await ran(stage)
        refused = await stage.client.post(f"/v1/runs/{run}/fork")
        assert refusal(refused) == (400, "usage")
        assert "nothing to go on with" in refused.text
        refused = await stage.client.post(f"/v1/runs/{run}/fork", json={"step": 999})
        assert refusal(refused) == (400, "usage")
        assert "has no step 999" in refused.text
        for path in ("history", "replay"):
            assert (await stage.client.get(f"/v1/runs/nobody-knows/{path}")).status_code == 404
