"""Many dead letters at once: filters, one action for all of them, races, and stores that fail in between."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from laneway.gateway import letter_lists
from laneway.gateway.tokens import GATEWAY
from laneway.records import RetryPolicy
from laneway.rows import Batch, BatchResult, MessageRow, Owner, StateRow
from laneway.stores.memory import MemoryDisk, MemoryStore
from laneway.testing.faults import FaultyStore
from tests.gateway_stage import GatewayStage, gateway_stage
from tests.routes_stage import LANED, UNKNOWN, body_of, busy, dead_message, ended, post, refusal

LETTERS = "/v1/dead-letters"


async def listed(stage: GatewayStage, **asked: Any) -> list[str]:
    """The ids of the letters that fit."""
    answer = await body_of(await stage.client.get(LETTERS, params=asked))
    return [each["letter_id"] for each in answer["items"]]


async def deal(stage: GatewayStage, action: str, body: dict[str, Any], key: str = "") -> dict[str, Any]:
    """Send letters again, or forget them."""
    headers = stage.operator() | ({"Idempotency-Key": key} if key else {})
    answer: dict[str, Any] = await body_of(await stage.client.post(f"{LETTERS}/{action}", json=body, headers=headers))
    return answer


def outcomes(answer: dict[str, Any]) -> list[str]:
    """What became of each letter."""
    return [each["outcome"] for each in answer["items"]]


async def copies(stage: GatewayStage, text: str) -> int:
    """How many messages that say this are no dead letters."""
    rows = await stage.gateway.store.history.messages(Owner("default", "default"), limit=10_000)
    return sum(f'"{text}"' in row.body and row.state != "dead_lettered" for row in rows)


# ---- lists ----


async def test_letters_are_found_by_what_they_are_and_say(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=LANED) as stage:
        hello, other = await dead_message(stage, "s1", "Hello world"), await dead_message(stage, "s2", "other things")
        session = await stage.gateway.default.session("default", "s1")
        with pytest.raises(ZeroDivisionError):
            await session.submit("query", lambda: 1 / 0)
        (call,) = await listed(stage, kind="call")
        assert await listed(stage) == [call, hello, other]
        assert await listed(stage, order="newest") == [call, other, hello]
        assert await listed(stage, kind="message") == [hello, other]
        assert await listed(stage, session="s2") == [other]
        assert await listed(stage, session="s1", kind="message") == [hello]
        assert await listed(stage, text="hELLO") == [hello]
        assert await listed(stage, error="NO MODEL") == [hello, other]
        assert await listed(stage, error="division") == await listed(stage, lane="quer") == [call]
        assert await listed(stage, tool="message") == [hello, other]
        died = (await body_of(await stage.client.get(f"{LETTERS}/{hello}")))["died_ms"]
        assert hello in await listed(stage, since_ms=died)
        assert hello not in await listed(stage, until_ms=died)
        for wrong in ({"kind": "song"}, {"status": "lost"}, {"since_ms": -1}, {"text": "x" * 1001}):
            assert refusal(await stage.client.get(LETTERS, params=wrong)) == (422, "invalid_request")
        for wrong in ({"after": "c."}, {"after": "c.12"}, {"after": "-1"}, {"after": "c.x.y"}):
            assert refusal(await stage.client.get(LETTERS, params=wrong))[0] == 400


@pytest.mark.parametrize("order", ["oldest", "newest"])
async def test_pages_go_through_letters_in_memory_and_messages(tmp_path: Path, order: str) -> None:
    async with gateway_stage(tmp_path, text=LANED) as stage:
        for number in range(3):
            await dead_message(stage, "s1", f"message {number}")
        session = await stage.gateway.default.session("default", "s1")
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                await session.submit("query", lambda: 1 / 0)
        whole = await listed(stage, order=order)
        for limit in (1, 2, 3, 4):
            found: list[str] = []
            after = ""
            while after is not None:
                params = {"limit": limit, "after": after, "order": order}
                page = await body_of(await stage.client.get(LETTERS, params=params))
                assert len(page["items"]) <= limit
                found += [each["letter_id"] for each in page["items"]]
                after = page["next"]
            assert found == whole
        assert len(whole) == 6


async def test_what_became_of_a_letter_is_told(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        sent, gone, kept = [await dead_message(stage, "s1", text) for text in ("one", "two", "three")]
        operator = stage.operator()
        await stage.client.patch(f"{LETTERS}/{sent}", json={"text": "uno"}, headers=operator)
        became = (await body_of(await stage.client.post(f"{LETTERS}/{sent}/retry", headers=operator), 202))[
            "message_id"
        ]
        assert (await stage.client.delete(f"{LETTERS}/{gone}", headers=operator)).status_code == 204
        assert await listed(stage) == [kept]
        assert await listed(stage, status="retried") == [sent]
        assert await listed(stage, status="purged") == [gone]
        assert await listed(stage, status="any") == [sent, gone, kept]
        found = await body_of(await stage.client.get(f"{LETTERS}/{sent}"))
        assert (found["status"], found["message_id"], found["text"], found["edited"]) == (
            "retried",
            became,
            "uno",
            True,
        )
        message = await body_of(await stage.client.get(f"/v1/messages/{became}"))
        assert (message["text"], message["retry_of"]) == ("uno", sent)
        assert refusal(await stage.client.patch(f"{LETTERS}/{gone}", json={"text": "x"}, headers=operator))[0] == 404


async def test_a_request_looks_through_so_many_messages_and_says_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letter_lists, "SCAN", 2)
    monkeypatch.setattr(letter_lists, "SCANNED_MAX", 4)
    async with gateway_stage(tmp_path) as stage:
        letters = [await dead_message(stage, "s1", f"message {number}") for number in range(6)]
        first = await body_of(await stage.client.get(LETTERS, params={"text": "message 5"}))
        assert (first["items"], bool(first["next"])) == ([], True)
        rest = await body_of(await stage.client.get(LETTERS, params={"text": "message 5", "after": first["next"]}))
        assert [each["letter_id"] for each in rest["items"]] == letters[5:]


# ---- many ----


async def test_many_are_sent_again_in_their_order_and_each_is_told_of(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        letters = [await dead_message(stage, f"s{number % 2}", f"text {number}") for number in range(6)]
        operator = stage.operator()
        await stage.client.delete(f"{LETTERS}/{letters[5]}", headers=operator)
        answer = await deal(stage, "retry", {"ids": [*letters, letters[0], UNKNOWN], "reason": "the model is back"})
        assert outcomes(answer) == ["sent"] * 5 + ["gone"] * 2
        assert answer["next"] is None
        sent = [each["message_id"] for each in answer["items"][:5]]
        await ended(stage, *sent)
        for letter, message in zip(letters, sent, strict=False):
            found = await body_of(await stage.client.get(f"/v1/messages/{message}"))
            assert found["retry_of"] == letter
        for key, wanted in (("s0", ["text 0", "text 2", "text 4"]), ("s1", ["text 1", "text 3"])):
            lines = (await body_of(await stage.client.get(f"/v1/sessions/{key}/history")))["items"]
            assert [each["text"] for each in lines if each["role"] == "user"][-len(wanted) :] == wanted
        (entry,) = [each for each in await stage.gateway.audit.entries("default") if each.action.endswith("_many")]
        assert (entry.action, entry.reason) == ("dead_letter.retry_many", "the model is back")
        assert entry.facts["count"] == 7


async def test_all_that_fit_a_filter_are_dealt_with_part_by_part(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        letters = [await dead_message(stage, "s1", f"text {number}") for number in range(5)]
        kept = await dead_message(stage, "s2", "another")
        first = await deal(stage, "purge", {"filter": {"text": "text"}, "limit": 2})
        assert ([each["letter_id"] for each in first["items"]], outcomes(first)) == (letters[:2], ["purged"] * 2)
        rest = await deal(stage, "purge", {"filter": {"session": "s1"}, "after": first["next"], "limit": 500})
        assert ([each["letter_id"] for each in rest["items"]], rest["next"]) == (letters[2:], None)
        assert await listed(stage) == [kept]
        assert outcomes(await deal(stage, "retry", {"filter": {}})) == ["sent"]


async def test_calls_and_jobs_are_sent_again_among_messages(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path, text=LANED) as stage:
        await dead_message(stage, "s1", "hello")
        session = await stage.gateway.default.session("default", "s1")
        with pytest.raises(ZeroDivisionError):
            await session.submit("query", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await stage.gateway.lanes.run("main", lambda: 1 / 0, retry=RetryPolicy.fixed(1, 0))
        body = {"ids": await listed(stage)}
        first = await deal(stage, "retry", body, "k1")
        assert sorted(each["kind"] for each in first["items"]) == ["call", "job", "message"]
        again = await deal(stage, "retry", body, "k1")
        assert [(each["message_id"], each["job_id"]) for each in again["items"]] == [
            (each["message_id"], each["job_id"]) for each in first["items"]
        ]
        assert outcomes(again) == ["sent"] * 3


async def test_one_that_is_refused_changes_nothing_for_the_others(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, held, _):
        letters = [await dead_message(stage, key, "again") for key in ("s2", "s3")]
        options = {"mode": "followup", "cap": 1, "drop": "new"}
        changed = await stage.client.patch("/v1/sessions/s1/settings", json=options, headers=stage.operator())
        assert changed.status_code == 200, changed.text
        row = await stage.gateway.store.history.message(letters[0])
        assert row is not None
        full = row._replace(id="msg-full", session="s1", seq=stage.gateway.store.next_seq())
        full = full._replace(body=full.body.replace('"s2"', '"s1"'))
        owner = Owner("default", "default", "s1")
        await stage.gateway.store.commit([Batch(owner, stage.gateway.store.epoch, (full,))])
        await post(stage, "s1", "waits")
        answer = await deal(stage, "retry", {"ids": [letters[0], "msg-full", letters[1]]})
        assert outcomes(answer) == ["sent", "refused", "sent"]
        assert (answer["items"][1]["code"], bool(answer["items"][1]["detail"])) == ("mailbox_full", True)
        assert await listed(stage) == ["msg-full"]
        held.let_go()
        await ended(stage, *(each["message_id"] for each in answer["items"] if each["message_id"]))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"ids": []},
        {"ids": ["x"], "filter": {}},
        {"ids": ["x"] * 501},
        {"filter": {"kind": "song"}},
        {"filter": {"colour": "red"}},
        {"filter": {}, "limit": 501},
        {"ids": [1]},
    ],
)
async def test_what_names_no_letters_is_refused(tmp_path: Path, body: dict[str, Any]) -> None:
    async with gateway_stage(tmp_path, store=MemoryStore()) as stage:
        for action in ("retry", "purge"):
            answer = await stage.client.post(f"{LETTERS}/{action}", json=body, headers=stage.operator())
            assert refusal(answer) == (422, "invalid_request")


async def test_only_operators_deal_with_many_and_only_with_their_own(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        letter = await dead_message(stage, "s1", "hello")
        other, chat = await stage.token("operate", tenant="other"), await stage.token("chat")
        for action in ("retry", "purge"):
            path = f"{LETTERS}/{action}"
            assert refusal(await stage.client.post(path, json={"ids": [letter]}, headers=chat))[0] == 403
            answer = await body_of(await stage.client.post(path, json={"ids": [letter, UNKNOWN]}, headers=other))
            assert outcomes(answer) == ["gone", "gone"]
            everything = await body_of(await stage.client.post(path, json={"filter": {}}, headers=other))
            assert everything == {"items": [], "next": None}
        mine = await stage.token("operate")
        assert [each["letter_id"] for each in (await body_of(await stage.client.get(LETTERS, headers=mine)))["items"]]


# ---- races ----


async def test_the_same_request_again_changes_nothing(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        for number in range(3):
            await dead_message(stage, "s1", f"text {number}")
        body = {"filter": {"text": "text"}}
        answers = await asyncio.gather(*(deal(stage, "retry", body, "once") for _ in range(3)))
        late = await dead_message(stage, "s1", "text, but later")
        again = await deal(stage, "retry", body, "once")
        assert all(each["items"] == again["items"] for each in answers)
        assert outcomes(again) == ["sent"] * 3
        assert await listed(stage) == [late]
        headers = {**stage.operator(), "Idempotency-Key": "once"}
        other = await stage.client.post(f"{LETTERS}/purge", json=body, headers=headers)
        assert refusal(other) == (409, "conflict")
        assert await listed(stage) == [late]
        single = {**stage.operator(), "Idempotency-Key": "single"}
        sent = [await stage.client.post(f"{LETTERS}/{late}/retry", headers=single) for _ in range(2)]
        assert (await body_of(sent[0], 202)) == (await body_of(sent[1], 202))


async def test_of_many_who_change_a_letter_at_once_each_finds_what_the_one_before_has_made_of_it(
    tmp_path: Path,
) -> None:
    async with gateway_stage(tmp_path) as stage:
        for number in range(8):
            letter, operator = await dead_message(stage, "s1", f"first {number}"), stage.operator()
            path = f"{LETTERS}/{letter}"
            asked = [
                stage.client.patch(path, json={"text": f"second {number}"}, headers=operator),
                stage.client.post(f"{path}/retry", headers=operator),
                stage.client.delete(path, headers=operator),
                stage.client.post(f"{LETTERS}/retry", json={"ids": [letter]}, headers=operator),
                stage.client.post(f"/v1/messages/{letter}/retry", headers=operator),
            ]
            turned = asked[number % 5 :] + asked[: number % 5]
            await asyncio.gather(*turned)
            sent = await copies(stage, f"first {number}") - 1 + await copies(stage, f"second {number}")
            found = await body_of(await stage.client.get(path))
            assert found["status"] in ("retried", "purged")
            assert sent == 1 if found["status"] == "retried" else sent <= 1


async def test_a_dead_message_that_its_sender_sends_again_is_no_dead_letter_any_more(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        letter = await dead_message(stage, "s1", "hello")
        sent = await body_of(await stage.client.post(f"/v1/messages/{letter}/retry"), 202)
        assert await listed(stage) == []
        assert (await body_of(await stage.client.get(f"{LETTERS}/{letter}")))["message_id"] == sent["message_id"]
        answer = await stage.client.post(f"/v1/messages/{letter}/retry")
        assert refusal(answer) == (409, "conflict")
        assert answer.json()["message_id"] == sent["message_id"]


# ---- stores that fail ----


class Watched(MemoryStore):
    """Keeps what was committed together."""

    def __init__(self, disk: MemoryDisk) -> None:
        super().__init__(disk)
        self.batches: list[Batch] = []

    async def commit(self, batches: Sequence[Batch]) -> list[BatchResult]:
        """Make batches durable."""
        self.batches += batches
        return await super().commit(batches)


async def test_the_new_message_and_the_end_of_the_letter_are_one_commit(tmp_path: Path) -> None:
    store = Watched(MemoryDisk())
    async with gateway_stage(tmp_path, store=store) as stage:
        letters = [await dead_message(stage, "s1", f"text {number}") for number in range(3)]
        await stage.client.patch(f"{LETTERS}/{letters[1]}", json={"text": "mended"}, headers=stage.operator())
        store.batches.clear()
        answer = await deal(stage, "retry", {"ids": letters})
        for letter, each in zip(letters, answer["items"], strict=True):
            marked = [batch for batch in store.batches if _marks(batch, letter)]
            (first, *_) = [batch for batch in store.batches if _brings(batch, each["message_id"])]
            assert marked == [first]


def _marks(batch: Batch, letter: str) -> bool:
    return any(isinstance(row, StateRow) and (row.kind, row.id) == ("dead_letter", letter) for row in batch.rows)


def _brings(batch: Batch, message_id: str) -> bool:
    return any(isinstance(row, MessageRow) and row.id == message_id for row in batch.rows)


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_crash_in_between_sends_none_twice(tmp_path: Path, when: Any) -> None:
    """The process ends while the third of five is being sent; the next one is asked the same again."""
    disk = MemoryDisk()
    store = FaultyStore(MemoryStore(disk))
    body: dict[str, Any]
    async with gateway_stage(tmp_path, store=store) as stage:
        letters = [await dead_message(stage, f"s{number}", f"text {number}") for number in range(5)]
        body = {"ids": letters}
        store.fail_next(when, owner=Owner("default", "default", "s2"), times=1)
        first = await deal(stage, "retry", body, "k")
        lost = outcomes(first)[2]
        assert lost == ("refused" if when == "before" else "sent")
        assert outcomes(first) == ["sent", "sent", lost, "sent", "sent"]
    async with gateway_stage(tmp_path, store=MemoryStore(disk)) as stage:
        again = await deal(stage, "retry", body, "k")
        assert outcomes(again) == ["sent"] * 5
        for number in range(5):
            assert await copies(stage, f"text {number}") == 2  # that which died had been sent once before
            if number != 2 or when == "after":
                assert again["items"][number]["message_id"] == first["items"][number]["message_id"]
        assert await listed(stage) == []


async def test_a_letter_whose_purge_could_not_be_stored_waits_as_before(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore(MemoryDisk()))
    async with gateway_stage(tmp_path, store=store) as stage:
        letters = [await dead_message(stage, f"s{number}", "hello") for number in range(2)]
        store.fail_next("before", owner=Owner("default", "default", "s0"))
        answer = await deal(stage, "purge", {"ids": letters})
        assert outcomes(answer) == ["refused", "purged"]
        assert answer["items"][0]["code"] == "store_unavailable"
        assert await listed(stage) == letters[:1]


async def test_what_cannot_be_planned_is_not_begun(tmp_path: Path) -> None:
    store = FaultyStore(MemoryStore(MemoryDisk()))
    async with gateway_stage(tmp_path, store=store) as stage:
        letter = await dead_message(stage, "s1", "hello")
        store.fail_next("before", owner=Owner("default", GATEWAY, letter_lists.PLANS))
        headers = {**stage.operator(), "Idempotency-Key": "k"}
        answer = await stage.client.post(f"{LETTERS}/retry", json={"ids": [letter]}, headers=headers)
        assert refusal(answer)[0] == 503
        assert await listed(stage) == [letter]
        assert outcomes(await deal(stage, "retry", {"ids": [letter]}, "k")) == ["sent"]
