"""The routes of messages: sent once, looked at, changed while they wait, sent again."""

from __future__ import annotations

from pathlib import Path

import pytest

from laneway.models import call, say
from laneway.stores.memory import MemoryStore
from tests.gateway_stage import gateway_stage
from tests.routes_stage import UNKNOWN, body_of, busy, ended, post, refusal

ACTIONS = ("steer", "hold", "release", "move", "retry")


async def test_a_message_is_shown_with_what_became_of_it(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        receipt = await stage.send("s1", "hello", sender="ada", sender_name="Ada", attachments=[{"a": 1}], thread="t")
        found = await body_of(await stage.client.get(f"/v1/messages/{receipt['message_id']}"))
        assert (found["disposition"], found["outcome"], found["answer"]) == ("ran", "succeeded", "You said: hello")
        assert found["sender"] == {"id": "ada", "name": "Ada"}
        assert (found["text"], found["attachments"], found["thread"]) == ("hello", [{"a": 1}], "t")
        assert found["workspace"] == "default"


async def test_waiting_messages_are_edited_held_released_moved_and_withdrawn(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, held, _):
        second = (await post(stage, "s1", "second"))["message_id"]
        third = (await post(stage, "s1", "third"))["message_id"]
        edited = await body_of(await stage.client.patch(f"/v1/messages/{second}", json={"text": "2nd"}))
        assert (edited["text"], edited["disposition"], edited["position"]) == ("2nd", "queued", 1)
        moved = await body_of(await stage.client.post(f"/v1/messages/{third}/move", json={"position": 1}))
        assert moved["position"] == 1
        kept = await body_of(await stage.client.post(f"/v1/messages/{third}/hold"))
        assert kept["disposition"] == "held"
        freed = await body_of(await stage.client.post(f"/v1/messages/{third}/release"))
        assert freed["disposition"] == "queued"
        gone = await body_of(await stage.client.delete(f"/v1/messages/{third}"))
        assert gone["disposition"] == "withdrawn"
        held.let_go()
        await ended(stage, second)
        assert (await stage.gateway.default.inbox.status(second)).disposition == "ran"


async def test_a_message_that_has_ended_is_not_changed_and_says_why(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        one = (await stage.send("s1", "hello"))["message_id"]
        answers = [
            await stage.client.patch(f"/v1/messages/{one}", json={"text": "x"}),
            await stage.client.delete(f"/v1/messages/{one}"),
            await stage.client.post(f"/v1/messages/{one}/steer"),
            await stage.client.post(f"/v1/messages/{one}/hold"),
            await stage.client.post(f"/v1/messages/{one}/release"),
            await stage.client.post(f"/v1/messages/{one}/move", json={"position": 1}),
            await stage.client.post(f"/v1/messages/{one}/retry"),
        ]
        assert [refusal(each) for each in answers] == [(409, "message_state")] * 7
        assert all(each.json()["hint"] and each.json()["state"] == "ran" for each in answers)


async def test_taking_a_message_back_twice_is_a_conflict(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, _, _first):
        one = (await post(stage, "s1", "second"))["message_id"]
        assert (await stage.client.delete(f"/v1/messages/{one}")).status_code == 200
        assert refusal(await stage.client.delete(f"/v1/messages/{one}")) == (409, "message_state")


async def test_a_steered_message_goes_into_what_runs(tmp_path: Path) -> None:
    async with busy(tmp_path, [say("both")], begins=call("ls")) as (stage, held, first):
        one = (await post(stage, "s1", "second"))["message_id"]
        found = await body_of(await stage.client.post(f"/v1/messages/{one}/steer"))
        assert found["disposition"] == "parked"
        held.let_go()
        await ended(stage, one, first["message_id"])
        assert (await stage.gateway.default.inbox.status(one)).disposition == "steered"


async def test_what_did_not_succeed_is_sent_again(tmp_path: Path) -> None:
    async with busy(tmp_path, [say("now")]) as (stage, _, first):
        one = first["message_id"]
        assert refusal(await stage.client.post(f"/v1/messages/{one}/retry")) == (409, "message_state")
        await stage.gateway.default.inbox.cancel("s1")
        await ended(stage, one)
        answer = await stage.client.post(f"/v1/messages/{one}/retry")
        again = await body_of(answer, 202)
        assert answer.headers["location"] == f"/v1/messages/{again['message_id']}"
        await ended(stage, again["message_id"])
        found = await body_of(await stage.client.get(f"/v1/messages/{again['message_id']}"))
        assert (found["retry_of"], found["answer"]) == (one, "now")


async def test_the_life_of_a_message_is_told(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        one = (await stage.send("s1", "hello"))["message_id"]
        story = await body_of(await stage.client.get(f"/v1/messages/{one}/explain"))
        assert story["steps"][0]["type"] == "message.accepted"
        assert story["message"]["message_id"] == one
        assert "hello" in story["text"]


async def test_unknown_messages_and_those_of_others_are_the_same(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        one = (await stage.send("s1", "hello"))["message_id"]
        other = await stage.token("chat", tenant="other")
        for name in (UNKNOWN, one):
            asked = [
                await stage.client.get(f"/v1/messages/{name}", headers=other),
                await stage.client.patch(f"/v1/messages/{name}", json={"text": "x"}, headers=other),
                await stage.client.delete(f"/v1/messages/{name}", headers=other),
                await stage.client.get(f"/v1/messages/{name}/explain", headers=other),
                *[
                    await stage.client.post(
                        f"/v1/messages/{name}/{each}", json={"position": 1} if each == "move" else None, headers=other
                    )
                    for each in ACTIONS
                ],
            ]
            assert [refusal(each) for each in asked] == [(404, "unknown_message")] * 9
            assert len({each.text.replace(name, "") for each in asked}) == 1


@pytest.mark.parametrize(
    "change",
    [{"text": "other"}, {"sender": "bob"}, {"attachments": [{"b": 1}]}, {"mode": "steer"}],
)
async def test_a_key_that_was_used_for_another_message_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    async with gateway_stage(tmp_path) as stage:
        headers = {"Idempotency-Key": "k"}
        sent = {"text": "hello", "sender": "ada", "attachments": [{"a": 1}]}
        assert (await stage.client.post("/v1/sessions/s1/messages", json=sent, headers=headers)).status_code == 202
        other = await stage.client.post("/v1/sessions/s1/messages", json={**sent, **change}, headers=headers)
        assert refusal(other) == (409, "conflict")


async def test_the_same_message_with_the_same_key_is_taken_once(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        sent = {"text": "hello", "mode": "followup", "sender": "ada", "attachments": [{"a": 1}]}
        answers = [
            await stage.client.post("/v1/sessions/s1/messages", json=sent, headers={"Idempotency-Key": "k"})
            for _ in range(3)
        ]
        assert len({each.json()["message_id"] for each in answers}) == 1
        assert [each.headers.get("idempotent-replayed") for each in answers] == [None, "true", "true"]


async def test_a_message_with_options_in_its_text_is_the_same_the_second_time(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        headers = {"Idempotency-Key": "k"}
        for text in ("/steer hello", "/queue cap:5 hello"):
            first = await post(stage, text[1:4], text, headers=headers)
            again = await post(stage, text[1:4], text, headers=headers)
            assert first["message_id"] == again["message_id"]


async def test_a_full_mailbox_says_how_full_it_is_and_when_to_come_back(tmp_path: Path) -> None:
    text = "default_model: scripted\nqueue:\n  mode: followup\n  cap: 1\n  drop: new\n"
    async with busy(tmp_path, text=text) as (stage, _, _first):
        await post(stage, "s1", "second")
        answer = await stage.client.post("/v1/sessions/s1/messages", json={"text": "third"})
        assert refusal(answer) == (429, "mailbox_full")
        assert (answer.json()["cap"], answer.json()["waiting"]) == (1, 1)
        assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    "body",
    [{}, {"text": 1}, {"text": "x", "mode": "fast"}, {"text": "x", "more": 1}, {"text": "x", "expires_ms": 0}, []],
)
async def test_what_is_no_message_is_refused(tmp_path: Path, body: object) -> None:
    async with gateway_stage(tmp_path) as stage:
        answer = await stage.client.post("/v1/sessions/s1/messages", json=body)
        assert refusal(answer) == (422, "invalid_request")
        assert await stage.gateway.default.inbox.sessions() == []


@pytest.mark.parametrize("key", ["ünïcødé 🙂", "a b", "telegram:7", "a%2Bb", "x" * 300, "~", "%C3%A9"])
async def test_keys_with_odd_characters_work(tmp_path: Path, key: str) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send(key, "hello")
        answer = await stage.client.get(f"/v1/sessions/{key}")
        assert answer.status_code == 200


@pytest.mark.parametrize("key", ["x" * 401, "a%0Ab", "%00", "%20"])
async def test_keys_that_cannot_be_are_refused_with_a_problem(tmp_path: Path, key: str) -> None:
    async with gateway_stage(tmp_path) as stage:
        sent = await stage.client.post(f"/v1/sessions/{key}/messages", json={"text": "x"})
        assert refusal(sent)[0] == 400
        assert refusal(await stage.client.get(f"/v1/sessions/{key}"))[0] == 400


async def test_a_message_to_a_subagent_is_refused(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        answer = await stage.client.post("/v1/sessions/s1~0123456789ab/messages", json={"text": "x"})
        assert refusal(answer) == (400, "invalid_message")


async def test_a_worker_may_not_read_messages(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        one = (await stage.send("s1", "hello"))["message_id"]
        worker = await stage.token("worker")
        assert refusal(await stage.client.get(f"/v1/messages/{one}", headers=worker)) == (403, "permission_denied")
        assert (await stage.client.get(f"/v1/messages/{one}")).status_code == 200  # a worker's token closes nothing
        await stage.token("chat")
        assert refusal(await stage.client.get(f"/v1/messages/{one}")) == (401, "not_authenticated")


async def test_whoever_writes_to_a_server_that_has_lost_its_store_is_told_to_come_again(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, store=(store := MemoryStore())) as stage:
        await stage.send("s1", "hello")
        usurper = MemoryStore(disk=store.disk)
        await usurper.open()
        for _ in range(2):
            answer = await stage.client.post("/v1/sessions/s1/messages", json={"text": "and now?"})
            assert refusal(answer) == (503, "fenced")
            assert int(answer.headers["Retry-After"]) >= 1
        await usurper.close()


async def test_a_waiting_message_is_sent_as_another_mode(tmp_path: Path) -> None:
    async with busy(tmp_path, [say("cut")]) as (stage, _, first):
        one = (await post(stage, "s1", "second"))["message_id"]
        await body_of(await stage.client.post(f"/v1/messages/{one}/hold"))
        both = {"text": "2nd", "mode": "collect"}
        found = await body_of(await stage.client.patch(f"/v1/messages/{one}", json=both))
        assert (found["text"], found["mode"], found["disposition"]) == ("2nd", "collect", "queued")
        cut = await body_of(await stage.client.patch(f"/v1/messages/{one}", json={"mode": "interrupt"}))
        assert cut["mode"] == "interrupt"
        await ended(stage, first["message_id"], one)
        assert (await stage.gateway.default.inbox.status(first["message_id"])).outcome == "interrupted"
        assert (await stage.gateway.default.inbox.status(one)).answer == "cut"


@pytest.mark.parametrize("body", [{}, {"mode": "fast"}, {"text": None}, {"mode": "steer", "x": 1}])
async def test_a_change_that_says_nothing_or_nonsense_changes_nothing(tmp_path: Path, body: dict[str, object]) -> None:
    async with busy(tmp_path) as (stage, _, _first):
        one = (await post(stage, "s1", "second"))["message_id"]
        assert refusal(await stage.client.patch(f"/v1/messages/{one}", json=body)) == (422, "invalid_request")
        assert (await body_of(await stage.client.get(f"/v1/messages/{one}")))["mode"] == "followup"


async def test_a_waiting_message_cannot_be_sent_as_one_that_is_refused(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, _, _first):
        one = (await post(stage, "s1", "second"))["message_id"]
        assert refusal(await stage.client.patch(f"/v1/messages/{one}", json={"mode": "reject"})) == (
            409,
            "message_state",
        )
