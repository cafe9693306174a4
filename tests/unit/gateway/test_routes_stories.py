"""The routes of stories: where the time of a run and of a message went, and what came of everything in it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import ModelUnavailableError
from laneway.kernel.ledger import LedgerState
from laneway.models import call, fail, plan, say
from laneway.rows import Owner
from laneway.stores.memory import MemoryDisk, MemoryStore
from tests.agent_stage import Held
from tests.gateway_stage import GatewayStage, gateway_stage
from tests.routes_stage import EXTERNAL, LANED, UNKNOWN, body_of, busy, ended, entry_in, post, refusal, until

WRITE = call("write", path="x.txt", content="y").with_id("w1")
MINE = Owner("default", "default", "s1")
FREE = "default_model: scripted\nqueue:\n  mode: followup\n  debounce_idle: false\npermissions:\n  allow: ['*']\n"


async def story_of(stage: GatewayStage, kind: str, name: str) -> dict[str, Any]:
    """The story of a message or a run."""
    found: dict[str, Any] = await body_of(await stage.client.get(f"/v1/{kind}/{name}/story"))
    return found


async def newest_run(stage: GatewayStage, key: str = "s1") -> str:
    """The id of the newest run of a session."""
    found = await body_of(await stage.client.get(f"/v1/sessions/{key}/runs"))
    return str(found["items"][-1]["run_id"])


async def test_a_run_tells_its_rounds_and_its_calls_with_their_times(tmp_path: Path) -> None:
    script = [[say("I look"), call("ls").with_id("c1"), WRITE], [say("done")]]
    async with gateway_stage(tmp_path, script=script, text=FREE) as stage:
        sent = await stage.send("s1", "look")
        found = await story_of(stage, "runs", await newest_run(stage))
        assert (found["is_over"], found["can_resume"], found["run"]["state"]) == (True, False, "succeeded")
        (message,) = found["messages"]
        assert (message["message_id"], message["role"]) == (sent["message_id"], "began")
        assert message["arrived_ms"] <= message["heard_ms"]
        first, last = found["rounds"]
        assert (first["number"], first["state"], first["text"]) == (1, "done", "I look")
        assert first["asked_ms"] <= first["answered_ms"]
        listed, written = first["calls"]
        assert (listed["tool"], listed["lane"], listed["status"], listed["ledger"]) == ("ls", "query", "ok", None)
        assert listed["queued_ms"] <= listed["began_ms"] <= listed["ended_ms"]
        assert written["ledger"]["state"] == "done"
        assert written["arguments"] == {"path": "x.txt", "content": "y"}
        assert (last["state"], last["text"], last["calls"]) == ("final", "done", [])
        assert found["input_tokens"] == first["input_tokens"] + last["input_tokens"] > 0


async def test_the_same_is_told_after_a_restart(tmp_path: Path) -> None:
    disk = MemoryDisk()
    script = [[call("ls").with_id("c1")], [say("x" * 9000)]]
    async with gateway_stage(tmp_path, script=script, store=MemoryStore(disk)) as stage:
        await stage.send("s1", "look")
        run = await newest_run(stage)
        before = await story_of(stage, "runs", run)
    async with gateway_stage(tmp_path, store=MemoryStore(disk)) as stage:
        after = await story_of(stage, "runs", run)
        assert after == before
        assert (after["rounds"][1]["text_chars"], len(after["rounds"][1]["text"])) == (9000, 4000)
        whole = await body_of(await stage.client.get(f"/v1/runs/{run}/rounds/2"))
        assert len(whole["text"]) == 9000


async def test_a_run_that_goes_on_tells_what_it_waits_for(tmp_path: Path) -> None:
    async with busy(tmp_path, [say("second")]) as (stage, held, first):
        run = await newest_run(stage)
        now = await story_of(stage, "runs", run)
        assert (now["is_over"], now["rounds"][-1]["state"]) == (False, "asking")
        assert now["now"].startswith("The model call")
        second = await post(stage, "s1", "second")
        waits = await story_of(stage, "messages", second["message_id"])
        assert (waits["is_over"], waits["can_withdraw"], waits["can_retry"]) == (False, True, False)
        assert waits["now"]
        assert [(each["kind"], each["run_id"], each["ended_ms"]) for each in waits["waits"]] == [("run", run, None)]
        held.let_go()
        await ended(stage, first["message_id"], second["message_id"])
        told = await story_of(stage, "messages", second["message_id"])
        assert (told["is_over"], told["now"], told["can_retry"]) == (True, "", False)
        assert told["runs"] == [await newest_run(stage)]
        assert all(each["ended_ms"] is not None for each in told["waits"])


async def test_a_call_that_waits_for_an_approval_says_so(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, script=[[WRITE], [say("well")]], text=LANED) as stage:
        sent = await post(stage, "s1", "write it")
        inbox = stage.gateway.default.inbox
        await until(inbox.approvals)
        run = await newest_run(stage)
        await inbox.engine.journal.committed(MINE)  # who may answer is asked before that is on disk
        now = await story_of(stage, "runs", run)
        (asked,) = now["approvals"]
        assert (asked["action"], asked["state"], asked["call_id"], asked["ended_ms"]) == (
            "write",
            "pending",
            "w1",
            None,
        )
        assert now["rounds"][0]["calls"][0]["status"] == "asked"
        path = f"/v1/approvals/{asked['approval_id']}"
        answer = await stage.client.post(path, json={"approve": False, "reason": "not today"}, headers=stage.operator())
        assert answer.status_code == 200, answer.text
        await ended(stage, sent["message_id"])
        later = await story_of(stage, "runs", run)
        (told,) = later["approvals"]
        assert (told["state"], told["reason"]) == ("denied", "not today")
        assert told["ended_ms"] >= told["asked_ms"]
        assert later["rounds"][0]["calls"][0]["status"] == "denied"


async def test_a_call_that_somebody_else_makes_names_its_task_and_its_worker(tmp_path: Path) -> None:
    script = [[call("ls").with_id("c1")], [say("well")]]
    async with gateway_stage(tmp_path, script=script, text=EXTERNAL) as stage:
        sent = await post(stage, "s1", "look")
        desk = stage.gateway.default.host.desk
        await until(lambda: desk.count(MINE))
        run = await newest_run(stage)
        (one,) = (await story_of(stage, "runs", run))["rounds"][0]["calls"]
        assert (one["status"], one["began_ms"], one["worker"]) == ("out", None, None)
        assert "task" in one["why"]
        headers = stage.operator()
        (task,) = (await body_of(await stage.client.get("/v1/tasks", headers=headers)))["items"]
        assert one["task_id"] == task["task_id"]
        said = {"result": "a.txt"}
        path = f"/v1/tasks/{task['task_id']}/complete"
        await body_of(await stage.client.post(path, json=said, headers=headers))
        await ended(stage, sent["message_id"])
        (told,) = (await story_of(stage, "runs", run))["rounds"][0]["calls"]
        assert (told["status"], told["output"]) == ("ok", "a.txt")
        assert told["out_ms"] <= told["ended_ms"]


async def test_a_sub_agent_is_told_with_its_own_run(tmp_path: Path) -> None:
    handed = call("task", prompt="find it", description="the finder").with_id("t1")
    async with gateway_stage(
        tmp_path, script=[[handed], [say("found it")], [say("all done")]], text=f"{FREE}subagents: true\n"
    ) as stage:
        await stage.send("s1", "find it")
        found = await story_of(stage, "runs", await newest_run(stage))
        (child,) = found["children"]
        assert (child["label"], child["state"], child["call_id"]) == ("the finder", "succeeded", "t1")
        assert child["session_key"].startswith("s1~")
        own = await story_of(stage, "runs", child["run_id"])
        assert (own["parent_session"], own["run"]["answer"], own["can_resume"]) == ("s1", "found it", False)


async def test_a_plan_is_told_step_by_step(tmp_path: Path) -> None:
    script = [[plan("look", "write")], [say("looked")], [say("written")]]
    async with gateway_stage(tmp_path, script=script, text=f"{FREE}planning: true\n") as stage:
        await stage.send("s1", "do it")
        steps = (await story_of(stage, "runs", await newest_run(stage)))["plan"]
        assert [(each["content"], each["status"]) for each in steps] == [("look", "completed"), ("write", "completed")]


async def test_a_model_that_failed_is_a_wait_with_its_reason(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, script=[[fail(ModelUnavailableError("no line"))], [say("well")]]) as stage:
        stage.gateway.default.host.wait = lambda _: asyncio.sleep(0)  # type: ignore[method-assign, assignment]
        await stage.send("s1", "hello")
        (one,) = (await story_of(stage, "runs", await newest_run(stage)))["rounds"]
        waits = [wait["reason"] for wait in one["waits"] if wait["kind"] == "retry"]
        assert (one["retries"], one["state"]) == (len(waits), "final")
        assert all("no line" in reason for reason in waits)  # a wait of less than a millisecond is none


async def test_a_run_that_was_cut_off_can_be_resumed_once_for_each_key(tmp_path: Path) -> None:
    held = Held(say("never"))
    async with gateway_stage(tmp_path, script=[[call("ls")], held, [say("after all")]]) as stage:
        sent = await post(stage, "s1", "look")
        await held.asked.wait()
        run = await newest_run(stage)
        await stage.gateway.default.inbox.cancel("s1")
        await ended(stage, sent["message_id"])
        assert (await story_of(stage, "runs", run))["can_resume"]
        key = {"Idempotency-Key": "k1"}
        first = await body_of(await stage.client.post(f"/v1/runs/{run}/resume", headers=key), 202)
        await ended(stage, first["message_id"])
        again = await body_of(await stage.client.post(f"/v1/runs/{run}/resume", headers=key), 202)
        assert (again["message_id"], again["duplicate"]) == (first["message_id"], True)
        told = await story_of(stage, "runs", run)
        heir = await newest_run(stage)
        assert (told["can_resume"], told["resumed_by"]) == (False, heir)
        assert (await story_of(stage, "runs", heir))["resumed_from"] == run


async def test_a_message_is_retried_once_for_each_key(tmp_path: Path) -> None:
    async with busy(tmp_path, [say("again")]) as (stage, held, _):
        second = await post(stage, "s1", "second")
        taken = await stage.client.delete(f"/v1/messages/{second['message_id']}")
        assert taken.status_code == 200
        story = await story_of(stage, "messages", second["message_id"])
        assert (story["is_over"], story["can_retry"], story["runs"]) == (True, True, [])
        key = {"Idempotency-Key": "k1"}
        path = f"/v1/messages/{second['message_id']}/retry"
        first = await body_of(await stage.client.post(path, headers=key), 202)
        again = await body_of(await stage.client.post(path, headers=key), 202)
        assert (again["message_id"], again["duplicate"]) == (first["message_id"], True)
        held.let_go()
        await ended(stage, first["message_id"])
        shown = await body_of(await stage.client.get(f"/v1/messages/{first['message_id']}"))
        assert shown["retry_of"] == second["message_id"]


async def test_a_held_message_tells_by_whom_and_how_long(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, _, _first):
        second = (await post(stage, "s1", "second"))["message_id"]
        await body_of(await stage.client.post(f"/v1/messages/{second}/hold"))
        held = next(each for each in (await story_of(stage, "messages", second))["waits"] if each["kind"] == "held")
        assert held["ended_ms"] is None
        await body_of(await stage.client.post(f"/v1/messages/{second}/release"))
        held = next(each for each in (await story_of(stage, "messages", second))["waits"] if each["kind"] == "held")
        assert held["ended_ms"] >= held["began_ms"]


async def test_secrets_are_not_told(tmp_path: Path) -> None:
    secret = "sk-ant-api03-" + "a" * 40
    async with gateway_stage(tmp_path, script=[[call("ls", path=secret)], [say("well")]]) as stage:
        await stage.send("s1", "look")
        run = await newest_run(stage)
        told = await stage.client.get(f"/v1/runs/{run}/story")
        whole = await stage.client.get(f"/v1/runs/{run}/rounds/1")
        assert (told.status_code, whole.status_code) == (200, 200)
        assert secret not in told.text + whole.text


@pytest.mark.parametrize("path", ["runs/{}/story", "messages/{}/story", "runs/{}/rounds/1"])
async def test_stories_of_others_are_not_there(tmp_path: Path, path: str) -> None:
    async with gateway_stage(tmp_path) as stage:
        sent = await stage.send("s1", "hello")
        name = sent["message_id"] if path.startswith("messages") else await newest_run(stage)
        other = await stage.token("chat", tenant="other")
        theirs = await stage.client.get(f"/v1/{path.format(name)}", headers=other)
        unknown = await stage.client.get(f"/v1/{path.format(UNKNOWN)}", headers=other)
        assert refusal(theirs)[0] == 404
        assert theirs.text.replace(name, UNKNOWN) == unknown.text


async def test_a_round_that_there_is_not_is_not_found(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send("s1", "hello")
        run = await newest_run(stage)
        assert refusal(await stage.client.get(f"/v1/runs/{run}/rounds/7")) == (404, "not_found")
        assert refusal(await stage.client.get(f"/v1/runs/{run}/rounds/0"))[0] == 422


# ---- the ledger ----


async def test_the_ledger_is_listed_newest_first_and_by_tool_state_and_run(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        states = [LedgerState.DONE, LedgerState.UNKNOWN, LedgerState.DONE, LedgerState.UNKNOWN]
        ids = [await entry_in(stage, MINE, f"c{n}", state) for n, state in enumerate(states)]

        async def listed(**query: Any) -> tuple[list[str], str | None]:
            found = await body_of(await stage.client.get("/v1/ledger", params={"order": "newest", **query}))
            return [each["entry_id"] for each in found["items"]], found["next"]

        assert (await listed())[0] == ids[::-1]
        assert (await listed(state="unknown"))[0] == [ids[3], ids[1]]
        first, following = await listed(state="done", limit=1)
        assert first == [ids[2]]
        assert (await listed(state="done", limit=1, after=following))[0] == [ids[0]]
        assert (await listed(tool="bash", run="turn-old", limit=3)) == (ids[:0:-1], str(await _seq(stage, ids[1])))
        assert (await listed(tool="write")) == ([], None)
        assert (await listed(run="another")) == ([], None)


async def _seq(stage: GatewayStage, entry_id: str) -> int:
    row = await stage.gateway.store.history.state("intent", entry_id)
    assert row is not None
    return row.seq


@pytest.mark.parametrize(
    ("happened", "words"),
    [(True, "do not make it again"), (False, "Make it again if it is still wanted"), (None, "could not be found out")],
)
async def test_what_was_found_out_is_told_to_the_session_and_it_goes_on(
    tmp_path: Path, happened: bool | None, words: str
) -> None:
    async with gateway_stage(tmp_path, script=[[say("I go on")]]) as stage:
        entry = await entry_in(stage, MINE, "a", LedgerState.UNKNOWN)
        said = {"reason": "I have looked", "happened": happened, "go_on": True}
        path = f"/v1/ledger/{entry}/settle"
        settled = await body_of(await stage.client.post(path, json=said, headers=stage.operator()))
        assert (settled["state"], settled["happened"]) == ("settled", happened)
        await ended(stage, settled["message_id"])
        told = await body_of(await stage.client.get(f"/v1/messages/{settled['message_id']}"))
        assert (told["answer"], told["kind"]) == ("I go on", "system")
        assert words in told["text"]
        assert "I have looked" in told["text"]
        (action,) = await stage.gateway.audit.entries("default")
        assert (action.facts["happened"], action.facts["go_on"]) == (happened, True)


async def test_what_is_only_settled_is_told_to_nobody(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        entry = await entry_in(stage, MINE, "a", LedgerState.UNKNOWN)
        path = f"/v1/ledger/{entry}/settle"
        settled = await body_of(await stage.client.post(path, json={"reason": "x"}, headers=stage.operator()))
        assert (settled["message_id"], settled["happened"]) == (None, None)
        assert await stage.gateway.store.history.messages(MINE) == []


async def test_a_sub_agents_call_is_told_to_the_session_above_it(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        entry = await entry_in(stage, MINE._replace(session="s1~0123456789ab"), "a", LedgerState.UNKNOWN)
        said = {"reason": "it is there", "happened": True, "go_on": True}
        path = f"/v1/ledger/{entry}/settle"
        settled = await body_of(await stage.client.post(path, json=said, headers=stage.operator()))
        shown = await body_of(await stage.client.get(f"/v1/messages/{settled['message_id']}"))
        assert shown["session_key"] == "s1"
        await ended(stage, settled["message_id"])
