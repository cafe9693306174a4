"""The conversation of a session: its runs, what was said in them, and what became of each message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.gateway_stage import GatewayStage, gateway_stage
from tests.routes_stage import UNKNOWN, body_of, busy, ended, post, refusal

PAGE = "/v1/sessions/s1/conversation"


async def page(stage: GatewayStage, **query: Any) -> dict[str, Any]:
    found: dict[str, Any] = await body_of(await stage.client.get(PAGE, params=query))
    return found


async def test_a_conversation_has_its_runs_lines_and_messages(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send("s1", "one")
        found = await page(stage)
        [run], [message] = found["runs"], found["messages"]
        assert (run["state"], run["messages"]) == ("succeeded", [message["message_id"]])
        assert (message["text"], message["disposition"], message["run_id"]) == ("one", "ran", run["run_id"])
        assert [(each["role"], each["run_id"]) for each in found["lines"]] == [
            ("user", run["run_id"]),
            ("assistant", run["run_id"]),
        ]
        assert (found["before"], found["conversation"]) == (None, run["conversation"])
        assert found["seq"] > max(each["seq"] for each in found["lines"])


async def test_older_runs_are_read_page_by_page_and_each_once(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        for number in range(5):
            await stage.send("s1", f"m{number}")
        said: list[str] = []
        query: dict[str, Any] = {"limit": 2}
        pages = 0
        while True:
            found = await page(stage, **query)
            assert len(found["runs"]) <= 2
            assert {each["run_id"] for each in found["lines"]} == {each["run_id"] for each in found["runs"]}
            said = [each["text"] for each in found["lines"] if each["role"] == "user"] + said
            pages += 1
            if found["before"] is None:
                break
            query["before"] = found["before"]
        assert (said, pages) == ([f"m{number}" for number in range(5)], 3)


async def test_what_got_no_run_says_what_became_of_it(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, _, first):
        taken_back = await post(stage, "s1", "second")
        waits = await post(stage, "s1", "third")
        command = await post(stage, "s1", "/status")
        await body_of(await stage.client.delete(f"/v1/messages/{taken_back['message_id']}"))
        found = await page(stage)
        became = {each["message_id"]: each["disposition"] for each in found["messages"]}
        assert became == {
            first["message_id"]: "running",
            taken_back["message_id"]: "withdrawn",
            command["message_id"]: "command",
        }
        assert found["runs"][0]["state"] == "thinking"
        assert waits["message_id"] not in became  # the queue has those that wait


async def test_what_came_into_a_run_is_with_it(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, held, first):
        second = await post(stage, "s1", "also this", mode="steer")
        held.let_go()
        await ended(stage, first["message_id"], second["message_id"])
        found = await page(stage)
        ids = {each["message_id"]: each for each in found["messages"]}
        assert set(ids) == {first["message_id"], second["message_id"]}
        assert {each["message_id"] for each in found["lines"] if each["role"] == "user"} == set(ids)


async def test_some_messages_are_asked_for_by_their_ids(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, _, first):
        second = await post(stage, "s1", "second")
        elsewhere = await post(stage, "s2", "of another session")
        ids = [second["message_id"], elsewhere["message_id"], UNKNOWN, first["message_id"], second["message_id"]]
        found = await body_of(await stage.client.get("/v1/sessions/s1/messages", params={"id": ids}))
        assert [(each["text"], each["disposition"], each["position"]) for each in found["items"]] == [
            ("second", "queued", 1),
            ("first", "running", None),
        ]
        many = {"id": [f"m{number}" for number in range(101)]}
        assert refusal(await stage.client.get("/v1/sessions/s1/messages", params=many)) == (422, "invalid_request")
        assert refusal(await stage.client.get("/v1/sessions/s1/messages")) == (422, "invalid_request")


@pytest.mark.parametrize("query", [{"limit": 0}, {"limit": 201}, {"before": "x"}, {"before": "9" * 19}])
async def test_pages_that_cannot_be_are_refused(tmp_path: Path, query: dict[str, Any]) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send("s1", "one")
        assert refusal(await stage.client.get(PAGE, params=query))[0] in (400, 422)


async def test_a_session_that_nobody_has_sent_anything_has_an_empty_conversation(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        found = await body_of(await stage.client.get(f"/v1/sessions/{UNKNOWN}/conversation"))
        assert (found["runs"], found["messages"], found["lines"], found["before"]) == ([], [], [], None)
        assert (found["settings"]["mode"]["value"], found["waiting"]) == ("followup", 0)
        assert refusal(await stage.client.get(f"/v1/sessions/{UNKNOWN}/messages?id=m1")) == (404, "not_found")
