"""Sessions for good: deleted without a trace, exported and imported, pruned."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx2
import pytest

from laneway.config.gateway_blocks import RetentionBlock
from laneway.gateway.app import create_app
from laneway.models import say
from laneway.rows import Owner
from tests.agent_stage import Held
from tests.gateway_stage import BASE, GatewayStage, gateway_in, gateway_stage
from tests.routes_stage import body_of, busy, post, refusal


def traces(folder: Path, words: str) -> int:
    """How many rows of the file have these words anywhere."""
    with closing(sqlite3.connect(f"file:{folder}/laneway.db?mode=ro", uri=True)) as connection:
        return sum(
            any(words in str(value) for value in row)
            for table in ("messages", "states", "entries", "blob_uses")
            for row in connection.execute(f"SELECT * FROM {table}")  # noqa: S608 - names from here
        )


async def test_a_deleted_session_leaves_no_trace_but_in_the_audit_log(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        secret = "the password is swordfish " * 400
        await stage.send("s1", secret)
        await stage.send("s2", "hello")
        assert traces(tmp_path, "swordfish") > 1
        operator = stage.operator()
        gone = await body_of(await stage.client.delete("/v1/sessions/s1", headers=operator, params={"reason": "law"}))
        assert gone["rows"] > 4
        assert traces(tmp_path, "swordfish") == 0
        assert refusal(await stage.client.get("/v1/sessions/s1")) == (404, "not_found")
        listed = await body_of(await stage.client.get("/v1/sessions", params={"order": "recent"}))
        assert [each["session_key"] for each in listed["items"]] == ["s2"]
        log = await body_of(await stage.client.get("/v1/audit", headers=operator))
        assert [(each["action"], each["target"], each["reason"]) for each in log["items"]] == [
            ("session.delete", "s1", "law")
        ]
        await stage.send("s1", "who am I?")
        told = await body_of(await stage.client.get("/v1/sessions/s1/history"))
        assert [each["text"] for each in told["items"]] == ["who am I?", "You said: who am I?"]


async def test_a_session_at_work_is_ended_and_deleted(tmp_path: Path) -> None:
    async with busy(tmp_path) as (stage, _, _first):
        await post(stage, "s1", "second")
        assert refusal(await stage.client.get("/v1/sessions/s1/export")) == (409, "conflict")
        await body_of(await stage.client.delete("/v1/sessions/s1", headers=stage.operator()))
        owner = Owner("default", "default", "s1")
        assert await stage.gateway.store.history.events(owner) == []
        assert stage.gateway.default.live_session("default", "s1") is None
        assert refusal(await stage.client.get("/v1/sessions/s1")) == (404, "not_found")


async def test_only_operators_delete_and_import(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send("s1", "hello")
        assert (await stage.client.delete("/v1/sessions/s1")).status_code in (401, 403)
        assert (await stage.client.post("/v1/sessions/import", content=b"{}\n")).status_code in (401, 403)
        assert (await stage.client.get("/v1/sessions/s1")).status_code == 200


async def test_a_session_moves_from_one_gateway_to_another(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with gateway_stage(tmp_path / "a") as stage:
        await stage.send("s1", "remember me")
        answer = await stage.client.get("/v1/sessions/s1/export")
        assert answer.status_code == 200
        file = answer.content
    async with gateway_stage(tmp_path / "b", script=[[say("of course")]]) as stage:
        found = await _import(stage, file, key="moved")
        assert (found["session_key"], found["rows"]) == ("moved", file.count(b"\n") - 2)
        await stage.send("moved", "do you?")
        told = await body_of(await stage.client.get("/v1/sessions/moved/history"))
        assert [each["text"] for each in told["items"]] == [
            "remember me",
            "You said: remember me",
            "do you?",
            "of course",
        ]
        model = stage.gateway.default.spec.model
        assert "remember me" in str(model.requests[-1])
        again = await stage.client.post("/v1/sessions/import", content=file, headers=stage.operator())
        assert refusal(again) == (409, "conflict")
        spoilt = await stage.client.post("/v1/sessions/import", content=file[:-9], headers=stage.operator())
        assert refusal(spoilt) == (400, "archive")
        log = (await stage.client.get("/v1/audit", headers=stage.operator())).json()["items"]
        told = [(each["action"], each["target"]) for each in log if each["action"].startswith("session.import")]
        assert told == [
            ("session.import_begin", "moved"),
            ("session.import", "moved"),
            ("session.import_begin", "s1"),
            ("session.import_refused", "s1"),
        ]
        assert [each["session_key"] for each in (await body_of(await stage.client.get("/v1/sessions")))["items"]] == [
            "moved"
        ]


async def _import(stage: GatewayStage, file: bytes, **params: str) -> dict[str, object]:
    answer = await stage.client.post("/v1/sessions/import", content=file, params=params, headers=stage.operator())
    found: dict[str, object] = await body_of(answer)
    return found


async def test_old_runs_go_and_what_runs_and_is_heard_stays(tmp_path: Path) -> None:
    held = Held(say("at last"))
    script = [[say(f"answer {at}")] for at in range(6)]
    async with gateway_stage(tmp_path, script=[*script, held], retention=RetentionBlock(max_runs=2)) as stage:
        gateway = stage.gateway
        gateway.default.inbox._dedupe_ms = 0  # noqa: SLF001 - nothing is spared
        for at in range(3):
            await stage.send("s1", f"say {at}")
        assert (await gateway.pruning.prune()).rows == 0, "the model hears all of it"
        await stage.send("s1", "/new")
        for at in range(3, 6):
            await stage.send("s1", f"say {at}")
        last = await post(stage, "s1", "and now")
        await held.asked.wait()
        assert (await gateway.pruning.prune()).rows > 6
        owner = Owner("default", "default", "s1")
        kept = [row.text for row in await gateway.store.history.entries(owner) if row.role == "user"]
        assert kept == ["say 3", "say 4", "say 5", "and now"]
        held.let_go()
        assert (await gateway.default.inbox.wait(last["message_id"])).answer == "at last"


async def test_an_export_that_is_overtaken_ends_without_its_last_line_and_one_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway_in(tmp_path) as gateway:
        app = create_app(gateway)
        transport = httpx2.ASGITransport(app=app)
        async with httpx2.AsyncClient(transport=transport, base_url=BASE) as client:
            stage = GatewayStage(gateway, client)
            await stage.send("s1", "hello")
            sent: list[dict[str, Any]] = []

            async def send(message: Any) -> None:
                sent.append(message)
                if len(sent) == 2:  # the first line is on its way
                    await stage.send("s1", "something happens")

            async def receive() -> dict[str, Any]:
                await asyncio.Event().wait()
                raise AssertionError("nobody waits for that")

            scope = {
                "type": "http",
                "asgi": {"version": "3.0", "spec_version": "2.3"},
                "http_version": "1.1",
                "method": "GET",
                "scheme": "http",
                "path": "/v1/sessions/s1/export",
                "raw_path": b"/v1/sessions/s1/export",
                "query_string": b"",
                "root_path": "",
                "headers": [(b"host", b"127.0.0.1:8420")],
                "client": ("127.0.0.1", 1),
                "server": ("127.0.0.1", 8420),
            }
            await app(scope, receive, send)
    assert sent[0]["status"] == 200
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}
    assert b'"sha256"' not in b"".join(each.get("body", b"") for each in sent)
    (told,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert told.getMessage().startswith("the export of session 's1' is not whole: ConflictError: session 's1' has")
    assert told.exc_info is None


async def test_a_start_sets_aside_a_session_that_cannot_be_read_and_serves_the_others(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        for key in ("broken", "well"):
            await stage.send(key, "hello")
    with closing(sqlite3.connect(tmp_path / "laneway.db")) as connection, connection:
        row = ("session", "x", "default", "default", "broken", 1, 1, "open", "{}")
        names = "kind, id, tenant, workspace, session, seq, live, state, body"
        connection.execute(f"INSERT INTO states ({names}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)  # noqa: S608 - from here
    async with gateway_stage(tmp_path) as stage:
        await stage.send("well", "still here?")
        refused = await stage.client.post("/v1/sessions/broken/messages", json={"text": "and you?"})
        assert refusal(refused) == (503, "store_corrupt")
        assert "session 'broken' was set aside" in refused.json()["detail"]
        assert (await stage.client.get("/v1/sessions")).status_code == 200
        await body_of(await stage.client.delete("/v1/sessions/broken", headers=stage.operator()))
        await stage.send("broken", "hello again")


async def test_an_import_names_no_session_of_another_tenant_and_takes_its_own_name_for_the_tenant(
    tmp_path: Path,
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with gateway_stage(tmp_path / "a") as stage:
        acme = await stage.token("chat", "operate", tenant="acme")
        bravo = await stage.token("chat", "operate", tenant="bravo")
        await stage.send("merger-with-zed", "go", headers=acme)
        file = (await stage.client.get("/v1/sessions/merger-with-zed/export", headers=acme)).content
        refused = await stage.client.post("/v1/sessions/import", content=file, params={"key": "mine"}, headers=bravo)
        assert refusal(refused) == (409, "conflict")
        assert "zed" not in refused.text
    async with gateway_stage(tmp_path / "b") as stage:
        bravo = await stage.token("chat", "operate", tenant="bravo")
        await body_of(
            await stage.client.post("/v1/sessions/import", content=file, params={"key": "mine"}, headers=bravo)
        )
        shown = await body_of(await stage.client.get("/v1/sessions/mine", headers=bravo))
        assert shown["identity"] == {"tenant_id": "bravo"}


async def test_a_file_that_a_start_could_not_read_is_refused_and_the_next_start_is_well(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send("s1", "hello")
        lines = (await stage.client.get("/v1/sessions/s1/export")).content.splitlines(keepends=True)[:-1]
        await body_of(await stage.client.delete("/v1/sessions/s1", headers=stage.operator()))
        lines.append(b'["s","","session","x",9,1,"open","{}"]\n')
        end = {"rows": len(lines) - 1, "sha256": sha256(b"".join(lines)).hexdigest()}
        file = b"".join([*lines, json.dumps(end).encode() + b"\n"])
        answer = await stage.client.post("/v1/sessions/import", content=file, headers=stage.operator())
        assert refusal(answer) == (400, "archive")
        assert f"line {len(lines)}" in answer.json()["detail"]
    async with gateway_stage(tmp_path) as stage:
        await stage.send("s1", "hello")


async def test_an_import_leaves_the_labels_of_a_key_alone(tmp_path: Path) -> None:
    async with gateway_stage(tmp_path) as stage:
        await stage.send("chat", "hello")
        file = (await stage.client.get("/v1/sessions/chat/export")).content
        operator = stage.operator()
        await body_of(await stage.client.delete("/v1/sessions/chat", headers=operator))
        labels = {"principal": "user:42"}
        await body_of(await stage.client.put("/v1/sessions/mine/labels", headers=operator, json=labels))
        taken = await stage.client.post("/v1/sessions/import", headers=operator, params={"key": "mine"}, content=file)
        assert refusal(taken) == (409, "conflict")
        assert (await body_of(await stage.client.get("/v1/sessions/mine")))["identity"] == labels
        await body_of(
            await stage.client.post("/v1/sessions/import", headers=operator, params={"key": "other"}, content=file)
        )
