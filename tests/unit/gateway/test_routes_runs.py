"""The routes of runs: looked at, ended, gone on with; and of what they ask."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from laneway.mail import Approval, ApprovalState
from laneway.models import call, say
from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.agent_stage import Held
from tests.gateway_stage import GatewayStage, gateway_stage
from tests.routes_stage import LANED, UNKNOWN, body_of, busy, ended, post, refusal, until

WRITE = [call("write", path="x.txt", content="y")]
ARGS = {"path": "x.txt", "content": "y"}


async def the_run(stage: GatewayStage, key: str = "s1") -> dict[str, Any]:
    """The newest run of a session."""
    found = await body_of(await stage.client.get(f"/v1/sessions/{key}/runs"))
    run: dict[str, Any] = found["items"][-1]
    return run


async def test_a_run_tells_what_it_did_and_what_it_took(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, script=[[call("ls")], [say("nothing there")]]) as stage:
        sent = await stage.send("s1", "look")
        found = await body_of(await stage.client.get(f"/v1/runs/{(await the_run(stage))['run_id']}"))
        assert (found["state"], found["answer"], found["prompt"]) == ("succeeded", "nothing there", "look")
        assert (found["messages"], found["rounds"]) == ([sent["message_id"]], 2)
        assert found["prompt_tokens"] > 0
        assert found["ended_ms"] >= found["began_ms"]


async def test_runs_are_listed_page_by_page(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        for text in ("one", "two", "three"):
            await stage.send("s1", text)
        first = await body_of(await stage.client.get("/v1/sessions/s1/runs", params={"limit": 2}))
        rest = await body_of(await stage.client.get("/v1/sessions/s1/runs", params={"after": first["next"]}))
        answers = [each["answer"] for each in first["items"] + rest["items"]]
        assert answers == ["You said: one", "You said: two", "You said: three"]
        assert rest["next"] is None


async def test_a_run_that_goes_on_is_ended_once(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, _, first):
        run = (await the_run(stage))["run_id"]
        answer = await stage.client.post(f"/v1/runs/{run}/cancel", json={"reason": "too slow"})
        assert answer.status_code == 202
        await ended(stage, first["message_id"])
        found = await body_of(await stage.client.get(f"/v1/runs/{run}"))
        assert (found["state"], found["reason"]) == ("cancelled", "too slow")
        again = await stage.client.post(f"/v1/runs/{run}/cancel")
        assert refusal(again) == (409, "conflict")
        assert (again.json()["state"], again.json()["hint"]) == ("cancelled", "it has ended")


async def test_a_run_that_was_cut_off_is_gone_on_with(tmp_path: Path) -> None:
    held = Held(say("never"))
    async with gateway_stage(tmp_path, script=[[call("ls")], held, [say("after all")]]) as stage:
        sent = await post(stage, "s1", "look")
        await held.asked.wait()
        run = (await the_run(stage))["run_id"]
        assert refusal(await stage.client.post(f"/v1/runs/{run}/resume")) == (409, "conflict")
        await stage.gateway.default.inbox.cancel("s1")
        await ended(stage, sent["message_id"])
        receipt = await body_of(await stage.client.post(f"/v1/runs/{run}/resume"), 202)
        await ended(stage, receipt["message_id"])
        newest = await the_run(stage)
        found = await body_of(await stage.client.get(f"/v1/runs/{newest['run_id']}"))
        assert (found["answer"], found["resumed_from"]) == ("after all", run)


async def test_a_run_with_its_answer_is_not_gone_on_with(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send("s1", "hello")
        done = (await the_run(stage))["run_id"]
        answer = await stage.client.post(f"/v1/runs/{done}/resume")
        assert refusal(answer) == (409, "conflict")
        assert answer.json()["hint"] == f"its answer is that of run {done}"
        assert len((await body_of(await stage.client.get("/v1/sessions/s1/runs")))["items"]) == 1


async def test_a_run_says_what_it_waits_for(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, held, first):
        run = (await the_run(stage))["run_id"]
        now = await body_of(await stage.client.get(f"/v1/runs/{run}/explain"))
        assert now["text"].startswith("The model call")
        assert now["story"].splitlines()[-1].startswith("It is ")
        held.let_go()
        await ended(stage, first["message_id"])
        later = await body_of(await stage.client.get(f"/v1/runs/{run}/explain"))
        assert later["text"] == f"Run {run} has succeeded: it answered."
        assert [step["type"] for step in later["steps"]][-1] == "turn.ended"
        assert later["story"].splitlines()[-1].startswith("It ended with an answer: ")


async def test_runs_of_an_earlier_process_are_there(tmp_path: Path) -> None:
    disk = MemoryDisk()
    async with gateway_stage(tmp_path, store=MemoryStore(disk)) as stage:
        await stage.send("s1", "hello")
        run = (await the_run(stage))["run_id"]
    async with gateway_stage(tmp_path, store=MemoryStore(disk)) as stage:
        found = await body_of(await stage.client.get(f"/v1/runs/{run}/explain"))
        assert found["steps"]
        assert found["story"].startswith(f"Run {run} was asked: hello\nRound 1:")
        assert not stage.gateway.default.host.sessions, "a session was opened to look"
        assert (await body_of(await stage.client.get(f"/v1/runs/{run}")))["rounds"] == 1


async def test_unknown_runs_and_those_of_others_are_the_same(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send("s1", "hello")
        run = (await the_run(stage))["run_id"]
        other = await stage.token("chat", tenant="other")
        for name in (UNKNOWN, run):
            asked = [
                await stage.client.get(f"/v1/runs/{name}", headers=other),
                await stage.client.get(f"/v1/runs/{name}/explain", headers=other),
                await stage.client.post(f"/v1/runs/{name}/cancel", headers=other),
                await stage.client.post(f"/v1/runs/{name}/resume", headers=other),
            ]
            assert [refusal(each) for each in asked] == [(404, "unknown_run")] * 4
            assert {each.text.replace(name, "") for each in asked} == {asked[0].text.replace(name, "")}


async def test_a_reason_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, _, _first):
        run = (await the_run(stage))["run_id"]
        answer = await stage.client.post(f"/v1/runs/{run}/cancel", json={"reason": "x" * 2001})
        assert refusal(answer) == (422, "invalid_request")
        assert (await the_run(stage))["state"] == "thinking"


# ---- approvals ----


@contextlib.asynccontextmanager
async def asking(folder: Path, *script: Any, text: str = LANED) -> AsyncIterator[tuple[GatewayStage, dict[str, Any]]]:
    """A gateway with a session whose run asks for an approval."""
    answers = script or (WRITE, [say("written")])
    async with gateway_stage(folder, script=list(answers), text=text, store=MemoryStore()) as stage:
        await post(stage, "s1", "go")
        await until(stage.gateway.default.inbox.approvals)
        found = await body_of(await stage.client.get("/v1/approvals"))
        yield stage, found["items"][0]


async def test_a_request_is_approved_for_exactly_its_arguments(tmp_path: Path) -> None:
    async with asking(tmp_path) as (stage, asked):
        path, operator = f"/v1/approvals/{asked['approval_id']}", stage.operator()
        assert (asked["action"], asked["arguments"], asked["state"]) == ("write", ARGS, "pending")
        other = await stage.client.post(path, json={"approve": True, "args": {**ARGS, "content": 1}}, headers=operator)
        assert refusal(other) == (409, "conflict")
        assert (await body_of(await stage.client.get(path)))["state"] == "pending"
        said = await stage.client.post(path, json={"approve": True, "args": ARGS, "reason": "fine"}, headers=operator)
        assert (await body_of(said))["state"] == "approved"
        await until(lambda: (tmp_path / "x.txt").exists())
        entries = await stage.gateway.audit.entries("default")
        assert [(each.action, each.target, each.reason) for each in entries] == [
            ("approval.approve", asked["approval_id"], "fine")
        ]


async def test_an_answer_counts_for_what_was_seen_and_what_became_of_it_is_kept(tmp_path: Path) -> None:
    async with asking(tmp_path) as (stage, asked):
        path, operator = f"/v1/approvals/{asked['approval_id']}", stage.operator()
        assert json.loads(asked["arguments_text"]) == ARGS
        assert (asked["awaited"], asked["on_timeout"], asked["asked_for"]["id"]) == (True, "reject", "local")
        other = await stage.client.post(path, json={"approve": True, "digest": "0" * 64}, headers=operator)
        assert refusal(other) == (409, "conflict")
        assert (await body_of(await stage.client.get("/v1/approvals?state=decided")))["items"] == []
        said = await stage.client.post(path, json={"approve": True, "digest": asked["digest"]}, headers=operator)
        assert (await body_of(said))["state"] == "approved"
        decided = await body_of(await stage.client.get("/v1/approvals", params={"state": "decided", "limit": 1}))
        assert [(each["approval_id"], each["state"]) for each in decided["items"]] == [
            (asked["approval_id"], "approved")
        ]
        older = await stage.client.get("/v1/approvals", params={"state": "decided", "after": decided["next"]})
        assert (await body_of(older))["items"] == []
        elsewhere = await stage.client.get("/v1/approvals", params={"state": "decided", "session": "s2"})
        assert (await body_of(elsewhere))["items"] == []


def test_numbers_that_others_take_for_the_same_have_another_digest() -> None:
    common: dict[str, Any] = {"id": "a", "session_key": "s", "turn_id": "t", "asked_ms": 0, "expires_ms": 1}
    values = (1, 1.0, True, "1", 2**60, "\ud800")
    asked = [
        Approval(**common, action="pay", arguments={"sum": value}, state=ApprovalState.PENDING) for value in values
    ]
    assert len({each.digest for each in asked}) == 6
    shown = [each.text.split(": ")[1].split("\n")[0] for each in asked]
    assert shown == ["1", "1.0", "true", '"1"', str(2**60), '"\\ud800"']


async def test_a_request_is_denied_with_a_reason_and_answered_once(tmp_path: Path) -> None:
    async with asking(tmp_path) as (stage, asked):
        path, operator = f"/v1/approvals/{asked['approval_id']}", stage.operator()
        said = await body_of(await stage.client.post(path, json={"approve": False, "reason": "no"}, headers=operator))
        assert (said["state"], said["reason"], said["answered_by"]) == ("denied", "no", "operator")
        again = await stage.client.post(path, json={"approve": True}, headers=operator)
        assert refusal(again) == (409, "conflict")
        assert again.json()["state"] == "denied"
        assert (await body_of(await stage.client.get("/v1/approvals")))["items"] == []
        assert not (tmp_path / "x.txt").exists()


async def test_nobody_without_the_scope_answers_a_request(tmp_path: Path) -> None:
    async with asking(tmp_path) as (stage, asked):
        path, said = f"/v1/approvals/{asked['approval_id']}", {"approve": True}
        assert refusal(await stage.client.post(path, json=said)) == (401, "not_authenticated")
        chat = await stage.token("chat")
        assert refusal(await stage.client.post(path, json=said, headers=chat)) == (403, "permission_denied")
        other = await stage.token("operate", tenant="other")
        unknown = await stage.client.post(f"/v1/approvals/{UNKNOWN}", json=said, headers=other)
        theirs = await stage.client.post(path, json=said, headers=other)
        assert [refusal(unknown), refusal(theirs)] == [(404, "not_found")] * 2
        assert unknown.text.replace(UNKNOWN, asked["approval_id"]) == theirs.text
        assert stage.gateway.default.inbox.approvals()[0].state == "pending"
        assert await stage.gateway.audit.entries("default") == []


async def test_a_request_that_names_its_approvers_takes_no_other_answer(tmp_path: Path) -> None:
    text = LANED.replace("enabled: true", 'enabled: true\n  approvers: ["ada"]')
    async with asking(tmp_path, text=text) as (stage, asked):
        path = f"/v1/approvals/{asked['approval_id']}"
        bob, ada = await stage.token("operate", name="bob"), await stage.token("operate", name="ada")
        said = {"approve": True}
        assert refusal(await stage.client.post(path, json=said, headers=bob)) == (403, "permission_denied")
        assert (await body_of(await stage.client.post(path, json=said, headers=ada)))["answered_by"] == "ada"


@pytest.mark.parametrize("body", [{}, {"approve": "perhaps"}, {"approve": True, "args": []}, {"approve": True, "x": 1}])
async def test_what_is_no_answer_is_refused(tmp_path: Path, body: dict[str, Any]) -> None:
    async with asking(tmp_path) as (stage, asked):
        answer = await stage.client.post(f"/v1/approvals/{asked['approval_id']}", json=body, headers=stage.operator())
        assert refusal(answer) == (422, "invalid_request")
        assert len(stage.gateway.default.inbox.approvals()) == 1


async def test_requests_of_subagents_are_those_of_the_session_they_work_for(tmp_path: Path) -> None:
    script = ([call("task", prompt="write it")], WRITE, [say("below")], [say("above")])
    async with asking(tmp_path, *script, text=f"{LANED}subagents: true\n") as (stage, asked):
        assert asked["session_key"].startswith("s1~")
        of_s1 = await body_of(await stage.client.get("/v1/approvals", params={"session": "s1"}))
        of_s2 = await body_of(await stage.client.get("/v1/approvals", params={"session": "s2"}))
        assert (len(of_s1["items"]), len(of_s2["items"])) == (1, 0)
        path = f"/v1/approvals/{asked['approval_id']}"
        assert (await stage.client.post(path, json={"approve": True}, headers=stage.operator())).status_code == 200
        await until(lambda: (tmp_path / "x.txt").exists())
        await until(lambda: not stage.gateway.default.inbox.engine.kernel.items)
        child = await the_run(stage, asked["session_key"])
        assert (await body_of(await stage.client.get(f"/v1/runs/{child['run_id']}")))["answer"] == "below"
        resumed = await stage.client.post(f"/v1/runs/{child['run_id']}/resume")
        assert refusal(resumed) == (409, "conflict")
