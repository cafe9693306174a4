"""The routes of histories: a run as a file, held against today's code, and gone on with in a new session."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from laneway import replay
from laneway.agent.identified import read_labels
from laneway.gateway.labels import set_labels
from laneway.gateway.views import run_facts
from laneway.kernel.histories import short_digest
from laneway.models import call, say
from laneway.rows import Owner, StateRow
from laneway.stores.memory import MemoryStore
from laneway.testing.faults import FaultyStore
from tests.agent_stage import Held
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
        assert first.json()["message_id"]
        assert first.json() == again.json()
        other = await stage.client.post(f"/v1/runs/{run}/fork", json={"prompt": "more"})
        assert other.json()["session_key"] != first.json()["session_key"]


async def test_the_same_key_forks_once_at_the_same_time_too(tmp_path: Path) -> None:
    async with stage_of(tmp_path, [say("one")], [say("two")]) as stage:
        run = await ran(stage)
        headers, body = {"Idempotency-Key": "k"}, {"prompt": "more"}
        both = [stage.client.post(f"/v1/runs/{run}/fork", json=body, headers=headers) for _ in range(3)]
        answers = await asyncio.gather(*both)
        assert [answer.status_code for answer in answers] == [202] * 3
        assert answers[0].json() == answers[1].json() == answers[2].json()


async def test_a_fork_that_the_store_refused_goes_on_when_it_is_asked_for_again(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore())
    async with stage_of(tmp_path, [say("otherwise")], store=store) as stage:
        run = await ran(stage)
        path, headers = f"/v1/runs/{run}/fork", {"Idempotency-Key": "k"}
        name = f"fork-{short_digest(f'{run}/k')}"
        store.fail_next(owner=Owner("default", "default", name))
        refused = await stage.client.post(path, json={"prompt": "more"}, headers=headers)
        assert refusal(refused)[0] == 503
        await stage.gateway.default.inbox.engine.reloaded(Owner("default", "default", name))
        answer = await stage.client.post(path, json={"prompt": "more"}, headers=headers)
        assert answer.status_code == 202, answer.text
        final = await stage.gateway.default.inbox.wait(answer.json()["message_id"])
        assert final.answer == "otherwise"


async def test_a_fork_is_told_what_it_is_told_even_if_it_looks_like_a_command(tmp_path: Path) -> None:
    async with stage_of(tmp_path, [say("it is a word")]) as stage:
        run = await ran(stage)
        answer = await stage.client.post(f"/v1/runs/{run}/fork", json={"prompt": "/status"})
        final = await stage.gateway.default.inbox.wait(answer.json()["message_id"])
        assert final.answer == "it is a word"


async def test_what_cannot_be_forked_is_refused(tmp_path: Path) -> None:
    async with stage_of(tmp_path) as stage:
        run = await ran(stage)
        refused = await stage.client.post(f"/v1/runs/{run}/fork")
        assert refusal(refused) == (400, "usage")
        assert "nothing to go on with" in refused.text
        refused = await stage.client.post(f"/v1/runs/{run}/fork", json={"step": 999})
        assert refusal(refused) == (400, "usage")
        assert "has no step 999" in refused.text
        for name in (".", ".."):
            refused = await stage.client.post(f"/v1/runs/{run}/fork", json={"prompt": "more", "session_key": name})
            assert refusal(refused) == (400, "invalid_message")
            assert f"cannot be '{name}'" in refused.text
        for path in ("history", "replay", "steps", "steps/1", f"diff?other={run}"):
            assert (await stage.client.get(f"/v1/runs/nobody-knows/{path}")).status_code == 404


async def test_a_name_that_another_fork_has_is_refused_with_a_key_too(tmp_path: Path) -> None:
    async with stage_of(tmp_path, [say("one")], [say("two")], [say("three")]) as stage:
        first = await ran(stage)
        second = await ran(stage, "again")
        body = {"prompt": "more", "session_key": "mine"}
        made = await stage.client.post(f"/v1/runs/{first}/fork", json=body, headers={"Idempotency-Key": "a"})
        assert made.status_code == 202
        other = await stage.client.post(f"/v1/runs/{second}/fork", json=body, headers={"Idempotency-Key": "b"})
        assert refusal(other) == (400, "usage")
        assert "has a past already" in other.text


async def test_a_run_is_told_step_by_step_in_pages(tmp_path: Path) -> None:
    async with stage_of(tmp_path, text=RECORDING) as stage:
        run = await ran(stage, "look " + "x" * 10_000)
        history = replay.loads((await stage.client.get(f"/v1/runs/{run}/history")).text)
        first = await body_of(await stage.client.get(f"/v1/runs/{run}/steps?limit=4"))
        facts = {name: first[name] for name in ("run_id", "session_key", "workspace", "state", "recorded", "total")}
        assert facts == {
            "run_id": run,
            "session_key": "s1",
            "workspace": "default",
            "state": "succeeded",
            "recorded": True,
            "total": len(history.steps),
        }
        assert (len(first["items"]), first["next"]) == (4, "4")
        rest = await body_of(await stage.client.get(f"/v1/runs/{run}/steps?after=4"))
        assert rest["next"] is None
        told = first["items"] + rest["items"]
        assert [each["number"] for each in told] == list(range(1, len(history.steps) + 1))
        assert [each["op"] for each in told] == [step["op"] for step in history.steps]
        assert "1 call is made: ls" in [each["text"] for each in told]
        beyond = await body_of(await stage.client.get(f"/v1/runs/{run}/steps?after=99999"))
        assert (beyond["items"], beyond["next"]) == ([], None)


async def test_a_long_step_is_cut_in_a_list_and_whole_alone(tmp_path: Path) -> None:
    async with stage_of(tmp_path, text=RECORDING) as stage:
        text = "look " + "x" * 10_000
        run = await ran(stage, text)
        items = (await body_of(await stage.client.get(f"/v1/runs/{run}/steps")))["items"]
        (said,) = [each for each in items if each["op"] == "say"]
        assert said["is_cut"]
        assert len(said["body"]["prompts"][0]) < 3_000
        whole = await body_of(await stage.client.get(f"/v1/runs/{run}/steps/{said['number']}"))
        assert (whole["is_cut"], whole["body"]["prompts"]) == (False, [text])
        missing = await stage.client.get(f"/v1/runs/{run}/steps/{len(items) + 1}")
        assert refusal(missing) == (404, "not_found")


async def test_a_run_that_was_not_recorded_says_so(tmp_path: Path) -> None:
    async with stage_of(tmp_path) as stage:
        run = await ran(stage)
        found = await body_of(await stage.client.get(f"/v1/runs/{run}/steps"))
        assert found["recorded"] is False
        assert [each["op"] for each in found["items"]] == ["machine", "base", "round", "round"]


async def test_another_prompt_is_shown_as_it_was_and_as_it_is(tmp_path: Path) -> None:
    async with stage_of(tmp_path, text=RECORDING) as stage:
        run = await ran(stage)
    async with stage_of(tmp_path, text=RECORDING.replace("brief", "kind")) as stage:
        found = await body_of(await stage.client.get(f"/v1/runs/{run}/replay"))
        assert (found["same"], found["where"]) == (False, "the system prompt is another one")
        assert "Be brief." in found["then"]
        assert "Be kind." in found["now"]
        items = (await body_of(await stage.client.get(f"/v1/runs/{run}/steps")))["items"]
        assert items[found["step"] - 1]["op"] == "ask"


async def test_two_runs_are_compared_step_by_step(tmp_path: Path) -> None:
    async with stage_of(tmp_path, [call("ls")], [say("something there")], text=RECORDING) as stage:
        first = await ran(stage)
        same = await body_of(await stage.client.get(f"/v1/runs/{first}/diff?other={first}"))
        assert (same["same"], same["this"], same["other"]) == (True, None, None)
        sent = await stage.client.post("/v1/sessions/s2/messages", json={"text": "look"})
        await stage.gateway.default.inbox.wait(sent.json()["message_id"])
        (second,) = (await body_of(await stage.client.get("/v1/sessions/s2/runs")))["items"]
        found = await body_of(await stage.client.get(f"/v1/runs/{first}/diff?other={second['run_id']}"))
        assert found["same"] is False
        assert (found["run_id"], found["other_run_id"]) == (first, second["run_id"])
        assert found["this"]["text"] == "Round 2: the model answers: nothing there"
        assert found["other"]["text"] == "Round 2: the model answers: something there"
        missing = await stage.client.get(f"/v1/runs/{first}/diff")
        assert missing.status_code == 422


async def test_a_run_and_its_fork_are_compared_from_the_step_of_the_fork_on(tmp_path: Path) -> None:
    async with stage_of(tmp_path, [say("otherwise")], text=RECORDING) as stage:
        run = await ran(stage)
        items = (await body_of(await stage.client.get(f"/v1/runs/{run}/steps")))["items"]
        step = [each["number"] for each in items if each["op"] == "ask"][1]
        body = {"step": step, "session_key": "mine", "prompt": "Look again"}
        forked = (await stage.client.post(f"/v1/runs/{run}/fork", json=body)).json()
        await stage.gateway.default.inbox.wait(forked["message_id"])
        (fork,) = (await body_of(await stage.client.get("/v1/sessions/mine/runs")))["items"]
        found = await body_of(await stage.client.get(f"/v1/runs/{run}/diff?other={fork['run_id']}"))
        assert (found["fork_run_id"], found["fork_step"], found["told"]) == (fork["run_id"], step, "Look again")
        assert found["this"]["text"] == "Round 2: the model answers: nothing there"
        assert found["other"]["text"] == "Round 2: the model answers: otherwise"


async def test_looking_at_a_run_does_not_stir_a_session_that_rests(tmp_path: Path) -> None:
    held = Held(say("never"))
    async with gateway_stage(tmp_path, script=[held, [say("done")]], text=RECORDING) as stage:
        workspace = stage.gateway.default
        await stage.client.post("/v1/sessions/s1/messages", json={"text": "go"})
        await held.asked.wait()
        left = await stage.client.post("/v1/sessions/s1/passivate", json={"deadline_ms": 0}, headers=stage.operator())
        assert (await body_of(left))["resting"]
        listed = await body_of(await stage.client.get("/v1/sessions?order=recent"))
        assert [each["resting"] for each in listed["items"]] == [True]
        (run,) = (await body_of(await stage.client.get("/v1/sessions/s1/runs")))["items"]
        replayed = await body_of(await stage.client.get(f"/v1/runs/{run['run_id']}/replay"))
        assert replayed["same"]
        steps = await body_of(await stage.client.get(f"/v1/runs/{run['run_id']}/steps"))
        assert steps["items"][0]["op"] == "machine"
        assert workspace.rest.resting == {("default", "s1")}
        assert workspace.agent.sessions() == []


async def test_another_key_does_not_get_the_fork_of_the_first_one(tmp_path: Path) -> None:
    async with stage_of(tmp_path, [say("one")], [say("two")]) as stage:
        run = await ran(stage)
        path = f"/v1/runs/{run}/fork"
        body = {"prompt": "more", "session_key": "mine"}
        first = await stage.client.post(path, json=body, headers={"Idempotency-Key": "a"})
        assert first.status_code == 202
        other = await stage.client.post(path, json=body | {"prompt": "less"}, headers={"Idempotency-Key": "b"})
        without = await stage.client.post(path, json=body)
        assert refusal(other)[0] == refusal(without)[0] == 400
        assert "has a past already" in other.text
        again = await stage.client.post(path, json=body, headers={"Idempotency-Key": "a"})
        assert again.json() == first.json()


@pytest.mark.parametrize("named", [{}, {"session_key": "mine"}])
async def test_the_same_key_with_another_body_is_refused(tmp_path: Path, named: dict[str, str]) -> None:
    async with stage_of(tmp_path, [say("one")], [say("two")]) as stage:
        run = await ran(stage)
        path, headers = f"/v1/runs/{run}/fork", {"Idempotency-Key": "k"}
        first = await stage.client.post(path, json={"prompt": "more", **named}, headers=headers)
        assert first.status_code == 202
        for body in ({"prompt": "less"}, {"prompt": "more", "step": 2}):
            again = await stage.client.post(path, json={**body, **named}, headers=headers)
            assert again.status_code == 409, again.text
            assert "by another request" in again.text


async def test_a_fork_is_not_poured_into_a_session_at_work(tmp_path: Path) -> None:
    held = Held(say("later"))
    async with stage_of(tmp_path, held, [say("never")]) as stage:
        run = await ran(stage)
        sent = await body_of(await stage.client.post("/v1/sessions/busy/messages", json={"text": "wait"}), 202)
        await held.asked.wait()
        answer = await stage.client.post(f"/v1/runs/{run}/fork", json={"prompt": "more", "session_key": "busy"})
        assert refusal(answer)[0] == 400
        assert "has a past already" in answer.text
        held.let_go()
        await stage.gateway.default.inbox.wait(sent["message_id"])
        (found,) = (await body_of(await stage.client.get("/v1/sessions/busy/runs")))["items"]
        assert found["answer"] == "later"


async def test_a_fork_may_have_a_name_in_any_script(tmp_path: Path) -> None:
    async with stage_of(tmp_path, [say("one")]) as stage:
        run = await ran(stage)
        answer = await stage.client.post(f"/v1/runs/{run}/fork", json={"prompt": "more", "session_key": "日本 é"})
        assert answer.status_code == 202, answer.text
        assert answer.headers["location"] == "/v1/sessions/%E6%97%A5%E6%9C%AC%20%C3%A9"
        assert (await stage.client.get(answer.headers["location"])).status_code == 200


async def test_a_fork_has_the_labels_of_the_session_of_its_run(tmp_path: Path) -> None:
    async with stage_of(tmp_path, [say("one")], [say("two")]) as stage:
        run = await ran(stage)
        labels = {"principal": "user:42", "correlation_id": "c1"}
        workspace = stage.gateway.default
        await set_labels(workspace, workspace.owner("default", "s1"), labels)
        await set_labels(workspace, workspace.owner("default", "mine"), {"principal": "user:7"})
        for name, expected in (("other", labels), ("mine", {**labels, "principal": "user:7"})):
            body = {"prompt": "more", "session_key": name}
            forked = await body_of(await stage.client.post(f"/v1/runs/{run}/fork", json=body), 202)
            await workspace.inbox.wait(forked["message_id"])
            found = await body_of(await stage.client.get(f"/v1/sessions/{name}"))
            assert found["identity"] == expected
            kept = await read_labels(workspace.inbox.engine, workspace.owner("default", name))
            assert dict(kept.labels) == expected


async def test_steps_say_what_a_fork_does_with_open_calls_however_long_the_answer_is(tmp_path: Path) -> None:
    script = [[say("x" * 3_000), call("write", path="a", content="b")], [say("done")]]
    async with gateway_stage(tmp_path, script=script, text=RECORDING) as stage:
        run = await ran(stage)
        found = (await body_of(await stage.client.get(f"/v1/runs/{run}/steps")))["items"]
        open_calls = {each["number"]: each["open_calls"] for each in found}
        act, result = (next(each["number"] for each in found if each["op"] == op) for op in ("act", "result"))
        assert [(each["tool"], each["fork"], each["has_begun"]) for each in open_calls[act]] == [
            ("write", "made", False)
        ]
        assert [(each["fork"], each["has_begun"]) for each in open_calls[result]] == [("kept", True)]
        assert open_calls[result + 1] == open_calls[1] == []
        one = await body_of(await stage.client.get(f"/v1/runs/{run}/steps/{act}"))
        assert one["open_calls"] == open_calls[act]


async def test_a_run_at_work_says_what_it_does_and_what_it_waits_for(tmp_path: Path) -> None:
    first, second = Held(call("write", path="a", content="b")), Held(say("done"))
    async with gateway_stage(tmp_path, script=[first, second], text=RECORDING) as stage:
        sent = await body_of(await stage.client.post("/v1/sessions/s1/messages", json={"text": "go"}), 202)
        await first.asked.wait()
        ((run,),) = [
            [each["run_id"] for each in (await body_of(await stage.client.get("/v1/sessions/s1/runs")))["items"]]
        ]
        none = await stage.client.get(f"/v1/runs/{run}/steps")
        assert none.status_code == 404
        assert f"run {run} has not come to its first checkpoint yet." in none.json()["detail"]
        first.let_go()
        await second.asked.wait()
        assert (await body_of(await stage.client.get(f"/v1/runs/{run}/steps")))["state"] == "thinking"
        second.let_go()
        await stage.gateway.default.inbox.wait(sent["message_id"])


def test_a_run_whose_process_died_does_not_say_that_it_runs_again() -> None:
    body = '{"reason": "the process ended while it ran; it runs again"}'
    row = StateRow("turn", "turn-1", "default", "default", "s1", 1, 0, "interrupted", body)
    assert run_facts(row)["reason"] == "the process ended while it ran"


async def test_a_run_and_its_forks_know_each_other(tmp_path: Path) -> None:
    async with stage_of(tmp_path, [say("one")], [say("two")], [say("three")]) as stage:
        run = await ran(stage)
        assert (await body_of(await stage.client.get(f"/v1/runs/{run}/forks")))["items"] == []
        for name in ("first", "second"):
            body = {"prompt": "more", "session_key": name}
            forked = (await stage.client.post(f"/v1/runs/{run}/fork", json=body)).json()
            await stage.gateway.default.inbox.wait(forked["message_id"])
        found = (await body_of(await stage.client.get(f"/v1/runs/{run}/forks")))["items"]
        assert [(each["session_key"], each["from_run"]) for each in found] == [("second", run), ("first", run)]
        (heir,) = (await body_of(await stage.client.get("/v1/sessions/first/runs")))["items"]
        for path in (f"/v1/runs/{heir['run_id']}", f"/v1/runs/{heir['run_id']}/story"):
            told = await body_of(await stage.client.get(path))
            assert told["forked_from"] == {"run_id": run, "step": found[1]["step"]}
        assert (await body_of(await stage.client.get(f"/v1/runs/{run}")))["forked_from"] is None
        other = await stage.token("operate", tenant="other")
        assert refusal(await stage.client.get(f"/v1/runs/{run}/forks", headers=other))[0] == 404
