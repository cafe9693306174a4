"""Events over HTTP: ids, replay, what is under way, heartbeat, and an explicit end."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from laneway.agent_events import TurnStartEvent
from laneway.errors import ModelError, StoreUnavailableError
from laneway.gateway.feeds import Feed, Marked, Pace
from laneway.gateway.hub import Hub
from laneway.gateway.streams import EventStreamResponse
from laneway.gateway.workspaces import Workspace
from laneway.models import call, fail, say
from laneway.rows import Owner
from tests.gateway_stage import GatewayStage, serving
from tests.stage import passing, simulated
from tests.stream_stage import Ear, Heard, events_of, listening, scope_of, staged

STORED = [
    "message.accepted",
    "message.started",
    "turn.started",
    "turn.replied",
    "message.ended",
    "turn.ended",
]


async def all_of(stage: GatewayStage, path: str, **headers: str) -> list[Heard]:
    """What a stream says until it ends by itself."""
    answer = await stage.client.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    return events_of(answer.content)


async def post(stage: GatewayStage, key: str, text: str, **more: Any) -> str:
    """Send a message and do not wait for it."""
    answer = await stage.client.post(f"/v1/sessions/{key}/messages", json={"text": text, **more})
    return str(answer.json()["message_id"])


async def run_id_of(stage: GatewayStage, message_id: str) -> str:
    """The run that has answered a message."""
    return str((await stage.gateway.default.inbox.status(message_id)).turn_id)


# ---- sessions ----


async def test_a_session_is_watched_live_from_its_first_message_on(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, app), listening(app, "/v1/sessions/new/events") as ear:
        assert (ear.status, ear.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
        assert (ear.headers["cache-control"], "content-length" in ear.headers) == ("no-store", False)
        await stage.send("new", "hello")
        ended = await ear.next("turn.ended")
        assert (ended.data["answer"], ended.data["state"]) == ("You said: hello", "succeeded")
        assert [event for event in ear.types() if event in STORED] == STORED
        ids = [int(event) for event in ear.ids()]
        assert ids == sorted(set(ids))
        assert len(ids) == len(STORED)
        told = [event for event in ear.heard if event.type == "text_delta"]
        assert (told[0].id, told[0].data["payload"]["text"]) == ("", "You said: hello")


async def test_what_is_replayed_has_the_shape_and_the_ids_that_it_had_live(tmp_path: Path) -> None:
    async with staged(tmp_path, script=[[say("word " * 200)]]) as (stage, app):
        async with listening(app, "/v1/sessions/s1/events") as ear:
            await stage.send("s1", "hello")
            await ear.next("turn.ended")
        replayed = await all_of(stage, "/v1/sessions/s1/events?replay=all&follow=false")
        live = [event for event in ear.heard if event.id]
        assert replayed == [*live, Heard("close", "", {"reason": "caught_up"})]
        assert live[-1].data["answer"] == live[3].data["text"] == "word " * 200


async def test_who_comes_back_gets_what_it_has_missed_and_nothing_else(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, app):
        async with listening(app, "/v1/sessions/s1/events") as ear:
            await stage.send("s1", "one")
            last = (await ear.next("turn.ended")).id
        await stage.send("s2", "elsewhere")
        await stage.send("s1", "two")
        async with listening(app, "/v1/sessions/s1/events", {"Last-Event-ID": last}) as again:
            await again.next("turn.ended")
            await stage.send("s1", "three")
            await again.next("turn.ended")
        answers = [event.data["answer"] for event in again.heard if event.type == "turn.ended"]
        assert answers == ["You said: two", "You said: three"]
        assert len(again.ids()) == len(set(again.ids())) == 2 * len(STORED)
        assert min(map(int, again.ids())) > int(last)


async def test_who_is_cut_before_the_first_event_misses_nothing_either(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, app):
        await stage.send("s1", "before")
        async with listening(app, "/v1/sessions/s1/events") as ear:
            await ear.until(lambda each: bool(each.raw))
        begin = ear.raw.decode().partition("id: ")[2].strip()
        await stage.send("s1", "meanwhile")
        missed = await all_of(stage, "/v1/sessions/s1/events?follow=false", **{"Last-Event-ID": begin})
        assert ear.raw.decode() == f"retry: 1000\nid: {begin}\n\n"
        assert [event.data["answer"] for event in missed if event.type == "turn.ended"] == ["You said: meanwhile"]
        assert [event.type for event in missed if event.id] == STORED


async def test_the_header_comes_before_the_address(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, _):
        await stage.send("s1", "one")
        everything = await all_of(stage, "/v1/sessions/s1/events?replay=all&follow=false")
        path = f"/v1/sessions/s1/events?follow=false&last_event_id={everything[0].id}"
        by_address = await all_of(stage, path)
        by_header = await all_of(stage, path, **{"Last-Event-ID": everything[-2].id})
        assert by_address == everything[1:]
        assert [event.type for event in by_header] == ["close"]


async def test_who_comes_in_the_middle_hears_what_was_told_so_far_and_every_piece_once(tmp_path: Path) -> None:
    gate = asyncio.Event()
    script = [[say("Let me look. "), call("read", path="nothing")], [say("It is "), gate.wait, say("gone.")]]
    async with staged(tmp_path, script=script) as (stage, app), listening(app, "/v1/sessions/s1/events") as early:
        message_id = await post(stage, "s1", "look")
        await early.until(lambda ear: ear.types().count("text_delta") == 2)
        async with listening(app, "/v1/sessions/s1/events") as late:
            so_far = (await late.next("so_far")).data
            gate.set()
            ended = await late.next("turn.ended")
    assert (so_far["turn"], so_far["text"], so_far["messages"]) == (2, "It is ", [message_id])
    assert so_far["run_id"] == ended.data["turn_id"]
    [first] = so_far["rounds"]
    assert (first["turn"], first["text"]) == (1, "Let me look. ")
    assert [(each["tool_name"], each["state"], each["args"]) for each in first["calls"]] == [
        ("read", "error", {"path": "nothing"})
    ]
    pieces = [event.data["payload"]["text"] for event in late.heard if event.type == "text_delta"]
    assert so_far["text"] + "".join(pieces) == ended.data["answer"] == "It is gone."


async def test_all_sessions_of_a_tenant_are_watched_in_one_stream(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, app):
        async with listening(app, "/v1/events") as ear:
            await stage.send("a", "one")
            await stage.send("b", "two")
            await ear.until(lambda each: each.types().count("turn.ended") == 2)
        live = [event for event in ear.heard if event.id]
        replayed = await all_of(stage, "/v1/events?replay=all&follow=false")
        assert replayed[:-1] == live
        assert {event.data["session_key"] for event in live} == {"a", "b"}
        half = live[len(live) // 2]
        rest = await all_of(stage, "/v1/events?follow=false", **{"Last-Event-ID": half.id})
        assert rest[:-1] == live[len(live) // 2 + 1 :]


@pytest.mark.slow
async def test_numbers_only_grow_while_many_sessions_are_at_work(tmp_path: Path) -> None:
    async with staged(tmp_path, store=None) as (stage, app):
        async with listening(app, "/v1/events") as ear:
            texts = [(f"s{number % 20}", str(number)) for number in range(60)]
            await asyncio.gather(*(stage.send(key, text) for key, text in texts))
            await ear.until(lambda each: each.types().count("turn.ended") == len(texts))
        ids = [int(each) for each in ear.ids()]
        replayed = await all_of(stage, "/v1/events?replay=all&follow=false")
        assert ids == sorted(set(ids))
        assert [event for event in ear.heard if event.id] == replayed[:-1]


async def test_another_tenant_sees_nothing_of_a_session_with_the_same_name(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, app):
        mine, other = await stage.token(), await stage.token(tenant="other")
        async with (
            listening(app, "/v1/sessions/s1/events", other) as session,
            listening(app, "/v1/events", other) as everything,
        ):
            receipt = await stage.send("s1", "secret", headers=mine)
            await stage.client.post("/v1/sessions/s1/messages", json={"text": "own"}, headers=other)
            await session.next("turn.ended")
            await everything.next("turn.ended")
        run_id = await run_id_of(stage, receipt["message_id"])
        refused = await stage.client.get(f"/v1/runs/{run_id}/events", headers=other)
        unknown = await stage.client.get("/v1/runs/nobody/events", headers=other)
        past = await stage.client.get("/v1/events?replay=all&follow=false", headers=other)
        assert b"secret" not in session.raw + everything.raw + past.content
        assert (refused.status_code, refused.json().keys()) == (unknown.status_code, unknown.json().keys())
        assert refused.status_code == 404


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/sessions/s1/events?last_event_id=x", 400),
        ("/v1/sessions/s1/events?replay=some", 400),
        ("/v1/sessions/s1/events?follow=perhaps", 422),
        ("/v1/sessions/%0a/events", 400),
        ("/v1/sessions/s1/events?workspace=nowhere", 404),
        ("/v1/events?last_event_id=-5", 400),
        ("/v1/runs/nobody/events", 404),
        ("/v1/runs/nobody/events?last_event_id=7", 400),
    ],
)
async def test_what_makes_no_sense_is_refused_before_the_stream_begins(tmp_path: Path, path: str, status: int) -> None:
    async with staged(tmp_path) as (stage, _):
        answer = await stage.client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
        assert len(stage.gateway.default.hub) == 0


async def test_a_stream_needs_a_token_when_there_are_tokens(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, _):
        await stage.token()
        answer = await stage.client.get("/v1/events")
        assert answer.status_code == 401


# ---- runs ----


async def test_a_run_that_has_ended_is_told_again_round_by_round(tmp_path: Path) -> None:
    script = [[say("Looking. "), call("read", path="nothing")], [say("Gone.")]]
    async with staged(tmp_path, script=script) as (stage, _):
        run_id = await run_id_of(stage, (await stage.send("s1", "look"))["message_id"])
        told = await all_of(stage, f"/v1/runs/{run_id}/events")
        assert [event.id for event in told if event.id] == ["r1", "r2", "end"]
        assert [event.type for event in told] == [
            *("start", "turn_start", "text_delta", "tool_end", "turn_end"),
            *("turn_start", "text_delta", "turn_end", "end", "turn.ended", "close"),
        ]
        assert told[-2].data["answer"] == "Gone."
        assert {event.data["metadata"]["session_id"] for event in told if "metadata" in event.data} == {"s1"}
        rest = await all_of(stage, f"/v1/runs/{run_id}/events", **{"Last-Event-ID": "r1"})
        assert rest == told[5:]
        nothing = await all_of(stage, f"/v1/runs/{run_id}/events", **{"Last-Event-ID": "end"})
        assert nothing == [Heard("close", "", {"reason": "ended"})]
        future = await all_of(stage, f"/v1/runs/{run_id}/events", **{"Last-Event-ID": "r9"})
        assert [event.type for event in future] == ["gap", "turn.ended", "close"]


async def test_a_run_that_goes_on_is_told_from_the_round_that_was_seen_last(tmp_path: Path) -> None:
    gate = asyncio.Event()
    script = [
        [say("One. "), call("read", path="a")],
        [say("Two. "), gate.wait, call("read", path="b")],
        [say("Three.")],
    ]
    async with staged(tmp_path, script=script) as (stage, app):
        async with listening(app, "/v1/sessions/s1/events") as session:
            await post(stage, "s1", "look")
            run_id = (await session.next("turn.started")).data["turn_id"]
            await session.until(lambda ear: ear.types().count("text_delta") == 2)
        async with listening(app, f"/v1/runs/{run_id}/events") as whole:
            so_far = await whole.next("so_far")
            async with listening(app, f"/v1/runs/{run_id}/events", {"Last-Event-ID": "r1"}) as rest:
                await rest.next("so_far")
                gate.set()
                assert await rest.end() == "ended"
            assert await whole.end() == "ended"
    assert (so_far.data["turn"], so_far.data["text"], so_far.data["rounds"]) == (2, "Two. ", [])
    assert whole.ids() == ["r1", "r2", "r3", "end"]
    assert rest.ids() == ["r2", "r3", "end"]
    assert rest.types()[0] == "so_far"
    texts = [event.data["payload"]["text"] for event in whole.heard if event.type == "text_delta"]
    assert texts == ["One. ", "Three."]


async def test_a_run_that_fails_ends_its_stream_with_the_reason(tmp_path: Path) -> None:
    gate = asyncio.Event()
    script = [[say("a"), gate.wait, fail(ModelError("the model has a bug"))]]
    async with staged(tmp_path, script=script) as (stage, app):
        async with listening(app, "/v1/sessions/s1/events") as session:
            await post(stage, "s1", "look")
            run_id = (await session.next("turn.started")).data["turn_id"]
        async with listening(app, f"/v1/runs/{run_id}/events") as run:
            gate.set()
            ended = await run.next("turn.ended")
            assert await run.end() == "ended"
        assert (ended.id, ended.data["state"], ended.data["answer"]) == ("end", "failed", None)
        assert "the model has a bug" in ended.data["reason"]


# ---- ends ----


async def test_leaving_changes_nothing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with staged(tmp_path, script=[[say("a"), gate.wait, say("b")]]) as (stage, app):
        before = asyncio.all_tasks()
        async with listening(app, "/v1/sessions/s1/events") as ear:
            message_id = await post(stage, "s1", "look")
            await ear.next("text_delta")
            assert len(stage.gateway.default.hub) == 1
        assert len(stage.gateway.default.hub) == 0
        assert not {task.get_name() for task in asyncio.all_tasks() - before} & {"laneway-stream-ear"}
        gate.set()
        final = await stage.gateway.default.inbox.wait(message_id)
        assert final.answer == "ab"


async def test_a_server_that_stops_says_so_and_takes_no_new_streams(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, app), listening(app, "/v1/sessions/s1/events") as ear:
        await stage.send("s1", "hello")
        stage.gateway.begin_stop()
        assert await ear.end() == "stopping"
        assert ear.is_over
        refused = await stage.client.get("/v1/sessions/s1/events")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")


async def test_a_revoked_token_ends_its_streams(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, app):
        headers, other = await stage.token(name="one"), await stage.token(name="other")
        token = next(each for each in stage.gateway.tokens.tokens() if each.name == "one")
        async with (
            listening(app, "/v1/sessions/s1/events", headers) as ear,
            listening(app, "/v1/sessions/s1/events", other) as stays,
        ):
            await stage.gateway.tokens.revoke(token.id)
            assert await ear.end() == "revoked"
            await stage.send("s1", "hello", headers=other)
            await stays.next("turn.ended")


async def test_a_slow_reader_is_cut_and_misses_nothing_when_it_comes_back(tmp_path: Path) -> None:
    async with staged(tmp_path, buffer_max=20) as (stage, app):
        async with listening(app, "/v1/sessions/s1/events") as slow:
            await stage.send("s1", "0")
            last = (await slow.next("turn.ended")).id
            slow.stall()
            for number in range(1, 6):
                await stage.send("s1", str(number))
            slow.go_on()
            assert await slow.end() == "slow"
        seen = slow.ids()
        rest = await all_of(stage, "/v1/sessions/s1/events?follow=false", **{"Last-Event-ID": seen[-1]})
        everything = await all_of(stage, "/v1/sessions/s1/events?replay=all&follow=false")
        assert seen + [event.id for event in rest if event.id] == [event.id for event in everything if event.id]
        assert int(seen[-1]) >= int(last)


async def test_the_next_process_on_the_same_store_has_everything_that_was_stored(tmp_path: Path) -> None:
    async with staged(tmp_path, store=None) as (stage, app), listening(app, "/v1/sessions/s1/events") as ear:
        await stage.send("s1", "one")
        await ear.next("turn.ended")
        last = ear.ids()[1]
        await stage.send("s1", "two")
    async with staged(tmp_path, store=None) as (stage, app):
        async with listening(app, "/v1/sessions/s1/events", {"Last-Event-ID": last}) as again:
            await again.until(lambda each: each.types().count("turn.ended") == 2)
            await stage.send("s1", "three")
            await again.until(lambda each: each.types().count("turn.ended") == 3)
        whole = await all_of(stage, "/v1/sessions/s1/events?replay=all&follow=false")
        assert again.ids() == [event.id for event in whole if event.id and int(event.id) > int(last)]


# ---- the response by itself ----


class Fed(Feed):
    """A feed that gives what a test says."""

    def __init__(self, hub: Hub, groups: Any, *, heartbeat_ms: int = 1_000) -> None:
        workspace: Any = None
        super().__init__(workspace, hub.watch("default", "s1"), Pace(heartbeat_ms=heartbeat_ms))
        self._groups = groups

    async def groups(self) -> Any:
        for group in self._groups:
            if isinstance(group, Exception):
                raise group
            yield group
        async for frames in self._live():
            yield [Marked(frame, "") for frame in frames]


@simulated
async def test_a_heartbeat_comes_after_silence_only() -> None:
    hub = Hub("w")
    ear = Ear()
    response = EventStreamResponse(lambda: Fed(hub, []))
    task = asyncio.get_running_loop().create_task(response(scope_of("/"), ear.receive, ear.send))
    for _ in range(5):
        await passing(700)
        hub.on_agent_event(Owner("default", "w", "s1"), TurnStartEvent(turn=1))
    await passing(2_500)
    assert ear.types() == ["turn_start"] * 5 + ["comment"] * 2
    ear.leave()
    await task
    assert len(hub) == 0


@simulated
async def test_a_client_that_takes_nothing_at_all_is_given_up() -> None:
    hub = Hub("w")
    ear = Ear()
    ear.stall()
    response = EventStreamResponse(lambda: Fed(hub, []), send_timeout_ms=5_000)
    task = asyncio.get_running_loop().create_task(response(scope_of("/"), ear.receive, ear.send))
    await passing(6_000)
    assert (task.done(), len(hub), ear.raw) == (True, 0, b"")


async def test_a_store_that_fails_in_the_middle_ends_the_stream_with_a_word() -> None:
    hub = Hub("w")
    ear = Ear()
    trouble = StoreUnavailableError("the store /home/ada/laneway.db is gone")
    response = EventStreamResponse(lambda: Fed(hub, [trouble]), hide="/home/ada/laneway.db")
    await response(scope_of("/"), ear.receive, ear.send)
    [close] = ear.heard
    assert close.data == {"reason": "store_unavailable", "detail": "the store is gone"}
    assert (ear.is_over, len(hub)) == (True, 0)


async def test_a_stream_that_is_cancelled_leaves_no_watcher() -> None:
    hub = Hub("w")
    ear = Ear()
    response = EventStreamResponse(lambda: Fed(hub, []))
    task = asyncio.get_running_loop().create_task(response(scope_of("/"), ear.receive, ear.send))
    await ear.until(lambda each: each.status == 200)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(hub) == 0


# ---- a real server ----


@pytest.mark.slow
async def test_five_hundred_watchers_of_one_session_all_hear_everything(tmp_path: Path) -> None:
    async with staged(tmp_path) as (stage, app), contextlib.AsyncExitStack() as stack:
        ears = [await stack.enter_async_context(listening(app, "/v1/sessions/s1/events")) for _ in range(500)]
        await stage.send("s1", "hello")
        for ear in ears:
            await ear.next("turn.ended")
        assert {ear.raw for ear in ears} == {ears[0].raw}
        workspace: Workspace = stage.gateway.default
        assert len(workspace.hub) == 500


@pytest.mark.slow
async def test_a_real_client_reads_a_stream_of_a_real_server(tmp_path: Path) -> None:
    async with serving(tmp_path) as stage, stage.client.stream("GET", "/v1/sessions/s1/events") as answer:
        assert answer.headers["transfer-encoding"] == "chunked"
        sending = asyncio.get_running_loop().create_task(stage.send("s1", "hello"))
        async for line in answer.aiter_lines():
            if line.startswith("data: ") and '"turn.ended"' in line:
                break
        assert json.loads(line.removeprefix("data: "))["answer"] == "You said: hello"
        await sending
