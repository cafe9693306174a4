"""A store read without its server says what the server said, and is not touched by it."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from laneway.models import call, say
from tests.agent_stage import Held
from tests.cli_stage import NOWHERE, CliStage, cli_stage, run
from tests.routes_stage import LANED, dead_message, post

pytestmark = pytest.mark.slow

ONLY_A_PROCESS_KNOWS = {"settings", "in_memory", "lanes", "waited_ms", "reason", "server"}
ONLY_OF_RUNS = {"prompt", "rounds", "prompt_tokens", "completion_tokens", "awaited", "on_timeout", "asked_for"}


def known(value: Any, *hidden: str) -> Any:
    """What a store can know of an answer."""
    names = ONLY_A_PROCESS_KNOWS | set(hidden)
    if isinstance(value, dict):
        return {name: known(each, *hidden) for name, each in value.items() if name not in names}
    return [known(each, *hidden) for each in value] if isinstance(value, list) else value


@contextlib.asynccontextmanager
async def lived_in(folder: Path) -> AsyncIterator[CliStage]:
    """A server with some of everything: an answer, a run that goes on, what waits, a request, a dead letter."""
    held = Held(say("never"))
    script = [[say("hello back")], [say("dead")], [call("write", path="a", content="b")], held]
    async with cli_stage(folder, script=script, text=LANED) as cli:
        await cli.server.send("s1", "hello")
        await dead_message(cli.server, "s1", "a dead one")
        asked = await post(cli.server, "asks", "write it")
        assert asked["disposition"] == "queued"
        inbox = cli.server.gateway.default.inbox
        while not inbox.approvals():
            await cli.json("approve")
        await post(cli.server, "busy", "long")
        await held.asked.wait()
        await post(cli.server, "busy", "waits", mode="followup")
        await cli.json("cron", "add", "s1", "good morning", "--every", "1h")
        await cli.json("queue", "mode", "s1", "steer")
        try:
            yield cli
        finally:
            held.let_go()


async def test_a_store_in_use_says_what_its_server_says(tmp_path: Path) -> None:
    async with lived_in(tmp_path) as cli:
        first = (await cli.json("run", "ls", "s1"))["items"][0]
        waits = (await cli.json("queue", "ls", "busy"))["items"][0]
        (letter,) = (await cli.json("dlq", "ls"))["items"]
        for words in (
            ("session", "ls"),
            ("session", "ls", "--active"),
            ("session", "show", "s1"),
            ("session", "show", "busy"),
            ("queue", "ls"),
            ("queue", "ls", "busy"),
            ("queue", "show", waits["message_id"]),
            ("queue", "show", first["messages"][0]),
            ("run", "ls", "s1"),
            ("run", "show", first["run_id"]),
            ("run", "explain", first["run_id"]),
            ("approve",),
            ("cron", "ls"),
            ("task", "ls"),
            ("dlq", "ls"),
            ("dlq", "show", letter["letter_id"]),
        ):
            hidden = {*ONLY_OF_RUNS, "waits_for"} if words[0] == "session" else ONLY_OF_RUNS
            from_server = known(await cli.json(*words), *hidden)
            from_store = known(await cli.json(*words, "--store", cli.store), *hidden)
            assert _phases(from_store) == _phases(from_server), words
        assert (await cli.run("session", "transcript", "s1", "--store", cli.store)).stdout == (
            await cli.run("session", "transcript", "s1")
        ).stdout
        assert (await cli.json("session", "show", "s1", "--store", cli.store))["settings"] == {
            "mode": {"value": "steer", "origin": "session"}
        }


def _phases(value: Any) -> Any:
    """A process knows the phase of a run a little earlier than its store."""
    text = json.dumps(value, sort_keys=True)
    for phase in ("starting", "thinking", "acting", "waiting"):
        text = text.replace(f'"state": "{phase}"', '"state": "(under way)"')
    return json.loads(text)


async def test_reading_a_store_changes_nothing_in_it(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        await cli.run("send", "s1", "hello", "--wait")
        store = cli.store
    before = dump(tmp_path / "laneway.db")
    for words in (("status",), ("session", "show", "s1"), ("queue", "ls"), ("run", "ls", "s1"), ("dlq", "ls")):
        result = run(*words, "--store", store)
        assert result.exit_code == 0, result.output
    assert dump(tmp_path / "laneway.db") == before


def dump(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    try:
        return list(connection.iterdump())
    finally:
        connection.close()


async def test_the_store_of_the_environment_stands_in_for_a_server_that_is_not_there(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        await cli.run("send", "s1", "hello", "--wait")
        store = cli.store
        assert (await cli.json("status", STORE="sqlite:////nowhere/x.db"))["server"]["url"] == cli.server.url
    result = run("session", "ls", "--json", URL=NOWHERE, STORE=store)
    assert [each["session_key"] for each in json.loads(result.stdout)["items"]] == ["s1"]
    assert "Read from the store" in run("status", URL=NOWHERE, STORE=store).stdout


def test_when_neither_answers_both_are_named(tmp_path: Path) -> None:
    result = run("session", "ls", URL=NOWHERE, STORE=f"sqlite:///{tmp_path}/none.db")
    assert result.exit_code == 4
    assert NOWHERE in result.stderr
    assert "none.db" in result.stderr
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    ("store", "code"),
    [("memory:", 2), ("sqlite:///:memory:", 2), ("redis://x", 2), ("sqlite:////no/such/folder/x.db", 4)],
)
def test_what_is_no_store_is_said_so(store: str, code: int) -> None:
    result = run("session", "ls", "--store", store)
    assert (result.exit_code, result.stdout) == (code, "")
    assert result.stderr.startswith("laneway: ")


def test_a_file_that_is_no_store_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("not a database, but long enough to be looked at as one" * 100)
    connection = sqlite3.connect(tmp_path / "other.db")
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    for name in ("text.db", "other.db"):
        result = run("session", "ls", "--store", f"sqlite:///{tmp_path}/{name}")
        assert result.exit_code == 4, result.output
        assert "damaged" in result.stderr


async def test_unknown_ids_in_a_store_are_usage_errors(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        await cli.run("send", "s1", "hello", "--wait")
        for words in (
            ("session", "show", "gone"),
            ("session", "transcript", "gone"),
            ("queue", "show", "gone"),
            ("run", "show", "gone"),
            ("run", "explain", "gone"),
            ("run", "ls", "gone"),
            ("task", "show", "gone"),
            ("dlq", "show", "gone"),
        ):
            result = await cli.run(*words, "--store", cli.store)
            assert (words, result.exit_code) == (words, 2), result.output
            assert "gone" in result.stderr


async def test_another_tenant_and_tokens_are_not_in_what_is_read(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        token = (await cli.server.token("chat", tenant="ada"))["Authorization"].removeprefix("Bearer ")
        receipt = await cli.json("send", "hers", "hello", "--wait", TOKEN=token)
        assert (await cli.json("session", "ls", "--store", cli.store))["items"] == []
        assert (await cli.run("queue", "show", receipt["message_id"], "--store", cli.store)).exit_code == 2
        hers = await cli.json("session", "ls", "--store", cli.store, "--tenant", "ada")
        assert [each["session_key"] for each in hers["items"]] == ["hers"]


async def test_of_several_workspaces_one_has_to_be_named(tmp_path: Path) -> None:
    from tests.gateway_stage import spec_of

    specs = [spec_of(tmp_path, name="one"), spec_of(tmp_path, name="two")]
    async with cli_stage(tmp_path, specs=specs) as cli:
        for name in ("one", "two"):
            sent = await cli.json("send", f"in-{name}", "x", "--wait", "--workspace", name)
            assert sent["workspace"] == name
        unsaid = await cli.run("session", "ls", "--store", cli.store)
        assert (unsaid.exit_code, "one, two" in unsaid.stderr) == (2, True)
        found = await cli.json("session", "ls", "--store", cli.store, "--workspace", "two")
        assert [each["session_key"] for each in found["items"]] == ["in-two"]
        assert [each["session_key"] for each in (await cli.json("session", "ls"))["items"]] == ["in-one"]


async def test_a_store_tells_of_no_changes_and_knows_no_lanes(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        await cli.server.send("s1", "hello")
        watched = await cli.run("queue", "ls", "--watch", "--store", cli.store)
        assert (watched.exit_code, "--watch needs a server" in watched.stderr) == (2, True)
        assert (await cli.run("lane", "ls", "--store", cli.store)).exit_code == 2


async def test_a_request_that_is_answered_asks_nobody_any_more(tmp_path: Path) -> None:
    async with lived_in(tmp_path) as cli:
        store = cli.store
    assert len(json.loads(run("approve", "--store", store, "--json").stdout)["items"]) == 1
    with contextlib.closing(sqlite3.connect(tmp_path / "laneway.db")) as connection, connection:
        connection.execute("UPDATE states SET state = 'approved' WHERE kind = 'approval'")  # then its server was killed
    assert json.loads(run("approve", "--store", store, "--json").stdout)["items"] == []
    assert "asks to be allowed" not in run("status", "--store", store).stdout


async def test_sessions_are_listed_by_their_labels_with_a_server_and_without(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        for key, who in (("a", "user:42"), ("b", "user:7"), ("c", "user:42")):
            await cli.json("session", "label", key, "--principal", who)
            await cli.server.send(key, "hello")
        for more in ((), ("--store", cli.store)):
            found = await cli.json("session", "ls", "--label", "principal=user:42", *more)
            assert [each["session_key"] for each in found["items"]] == ["a", "c"]
            one = await cli.json("session", "ls", "--label", "principal=user:42", "--limit", "1", *more)
            assert ([each["session_key"] for each in one["items"]], one["next"]) == (["a"], "a")
            nobody = await cli.run("session", "ls", "--label", "principal=nobody", *more)
            assert "No session has principal=nobody." in nobody.stdout + nobody.stderr
            wrong = await cli.run("session", "ls", "--label", "colour=red", *more)
            assert wrong.exit_code == 2
            assert "the names are tenant_id, principal" in wrong.stderr
