"""Every command against a real server: what it shows, its JSON, and how it ends when something is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from laneway.errors import ModelError
from laneway.kernel.ledger import LedgerState
from laneway.models import call, fail, say
from laneway.rows import Owner
from tests.agent_stage import Held
from tests.cli_stage import NOWHERE, CliStage, cli_stage, run
from tests.routes_stage import EXTERNAL, LANED, dead_message, ended, entry_in, post

pytestmark = pytest.mark.slow

GONE = "nobody-knows"
EVIL = "\x1b]0;owned\x07\x1b[31m<script>\x9b2J\u202e"
COMMANDS: dict[str, tuple[str, ...]] = {
    "send": ("send", "s1", "hello"),
    "status": ("status",),
    "top": ("top", "--once"),
    "queue ls": ("queue", "ls"),
    "queue show": ("queue", "show", GONE),
    "queue edit": ("queue", "edit", GONE, "text"),
    "queue move": ("queue", "move", GONE, "1"),
    "queue hold": ("queue", "hold", GONE),
    "queue release": ("queue", "release", GONE),
    "queue drop": ("queue", "drop", GONE),
    "queue retry": ("queue", "retry", GONE),
    "queue steer": ("queue", "steer", GONE),
    "queue mode": ("queue", "mode", GONE, "steer"),
    "lane ls": ("lane", "ls"),
    "lane set": ("lane", "set", GONE, "-c", "3"),
    "lane pause": ("lane", "pause", GONE),
    "lane resume": ("lane", "resume", GONE),
    "run ls": ("run", "ls", GONE),
    "run show": ("run", "show", GONE),
    "run explain": ("run", "explain", GONE),
    "run cancel": ("run", "cancel", GONE),
    "run resume": ("run", "resume", GONE),
    "session ls": ("session", "ls"),
    "session show": ("session", "show", GONE),
    "session export": ("session", "export", GONE, "out"),
    "session delete": ("session", "delete", GONE, "--yes"),
    "session import": ("session", "import", __file__),
    "session transcript": ("session", "transcript", GONE),
    "session stop": ("session", "stop", GONE),
    "session label": ("session", "label", "s1", "--principal", "user:42"),
    "session passivate": ("session", "passivate", GONE),
    "task ls": ("task", "ls"),
    "task show": ("task", "show", GONE),
    "task complete": ("task", "complete", GONE, "--result", "x"),
    "worker ls": ("worker", "ls"),
    "worker show": ("worker", "show", GONE),
    "dlq ls": ("dlq", "ls"),
    "dlq show": ("dlq", "show", GONE),
    "dlq edit": ("dlq", "edit", GONE, "--text", "x"),
    "dlq retry": ("dlq", "retry", GONE),
    "dlq purge": ("dlq", "purge", GONE),
    "ledger ls": ("ledger", "ls"),
    "ledger settle": ("ledger", "settle", GONE, "--reason", "x"),
    "approve": ("approve", GONE),
    "deny": ("deny", GONE),
    "cron ls": ("cron", "ls"),
    "cron add": ("cron", "add", "s1", "hello", "--every", "1h"),
    "cron rm": ("cron", "rm", GONE),
}
READS_STORE = {
    "status", "queue ls", "queue show", "run ls", "run show", "run explain", "session ls", "session show",
    "session export", "session transcript", "task ls", "task show", "dlq ls", "dlq show", "cron ls",
}  # fmt: skip
NEEDS_NO_ID = {name for name, words in COMMANDS.items() if GONE not in words}


@contextlib.asynccontextmanager
async def busy(folder: Path, *more: Any, **options: Any) -> AsyncIterator[tuple[CliStage, Held]]:
    """A server whose session `s1` is at work until the test lets it go."""
    held = Held(say("first answer"))
    async with cli_stage(folder, script=[held, *more], **options) as cli:
        await post(cli.server, "s1", "first")
        await held.asked.wait()
        try:
            yield cli, held
        finally:
            held.let_go()


async def become(is_so: Callable[[], Any]) -> None:
    """Wait until something on the server is so."""
    while not is_so():  # noqa: ASYNC110 - a real server, and whatever the test asks it
        await asyncio.sleep(0.005)


# ---- what is wrong ----


@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_server_a_command_says_how_to_get_one(name: str) -> None:
    result = run(*COMMANDS[name], URL=NOWHERE)
    assert result.exit_code == 4, result.output
    assert result.stdout == ""
    assert result.stderr.startswith(f"laneway: no server answers at {NOWHERE}")
    assert "laneway serve" in result.stderr
    assert ("--store" in result.stderr) is (name in READS_STORE)


async def test_with_a_token_that_does_not_count_every_command_is_refused(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        await cli.server.token("chat")
        for name, words in COMMANDS.items():
            result = await cli.run(*words, TOKEN="lw_wrong")
            assert (name, result.exit_code) == (name, 5), result.output
            assert "token" in result.stderr


async def test_an_unknown_id_is_a_usage_error_and_names_it(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        for name in sorted(set(COMMANDS) - NEEDS_NO_ID):
            result = await cli.run(*COMMANDS[name])
            assert (name, result.exit_code) == (name, 2), result.output
            assert "there is no" in result.stderr
            assert GONE in result.stderr
            assert result.stdout == ""


async def test_what_operators_do_needs_their_token_on_this_machine_too(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        for words in (
            ("lane", "pause", "main"),
            ("cron", "add", "s1", "x", "--every", "1h"),
            ("dlq", "retry", GONE),
            ("dlq", "purge", GONE),
        ):
            result = await cli.run(*words, TOKEN=None)
            assert result.exit_code == 5, result.output
            assert "token" in result.stderr


async def test_a_tool_of_an_agent_operates_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from laneway.tools.processes import MARK

    monkeypatch.setenv(MARK, "1")
    async with cli_stage(tmp_path) as cli:
        result = await cli.run("lane", "pause", "main")
        assert result.exit_code == 5
        assert "called by a tool" in result.stderr
        assert (await cli.run("status")).exit_code == 0


# ---- sending ----


async def test_a_message_is_sent_waited_for_and_answered(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        result = await cli.run("send", "s1", "hello", "there", "--wait")
        assert (result.exit_code, result.stdout) == (0, "You said: hello there\n")
        found = await cli.json("send", "s1", "again", "--wait")
        assert (found["disposition"], found["outcome"], found["answer"]) == ("ran", "succeeded", "You said: again")
        receipt = await cli.json("send", "s1", "quick")
        assert set(receipt) >= {"message_id", "disposition", "position"}


async def test_a_message_comes_from_standard_input(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        result = await cli.run("send", "s1", "-", "--wait", given="two\nlines\n")
        assert result.stdout == "You said: two\nlines\n"
        assert (await cli.run("send", "s1", "-", given=" \n")).exit_code == 2


async def test_the_same_key_is_taken_once(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        first = await cli.json("send", "s1", "hello", "--key", "k1")
        again = await cli.json("send", "s1", "hello", "--key", "k1")
        assert again["message_id"] == first["message_id"]
        assert again["duplicate"] is True
        assert (await cli.run("send", "s1", "other", "--key", "k1")).exit_code == 3


async def test_the_exit_code_is_that_of_the_outcome(tmp_path: Path) -> None:
    async with busy(tmp_path) as (cli, _):
        rejected = await cli.run("send", "s1", "now", "--mode", "reject", "--wait")
        assert rejected.exit_code == 3, rejected.output
        assert "rejected" in rejected.stderr
        waiting = asyncio.create_task(cli.process("send", "s1", "later", "--wait"))
        inbox = cli.server.gateway.default.inbox
        await become(lambda: inbox.pending("s1"))
        await cli.json("queue", "drop", inbox.pending("s1")[0].id)
        dropped = await waiting
        assert dropped.exit_code == 3
        assert "withdrawn" in dropped.stderr
        cut = asyncio.create_task(cli.process("send", "s1", "third", "--wait"))
        await become(lambda: inbox.pending("s1"))
        await cli.json("session", "stop", "s1")
        assert (await cut).exit_code == 3


async def test_a_run_that_fails_or_is_cancelled_ends_with_its_own_code(tmp_path: Path) -> None:
    held = Held(say("never"))
    async with cli_stage(tmp_path, script=[[fail(ModelError("the model broke"))], held]) as cli:
        failed = await cli.run("send", "s1", "go", "--wait")
        assert (failed.exit_code, failed.stdout) == (6, "")
        assert "the run failed" in failed.stderr
        waiting = asyncio.create_task(cli.process("send", "s2", "go", "--wait"))
        await held.asked.wait()
        (found,) = (await cli.json("run", "ls"))["items"]
        result = await cli.run("run", "cancel", found["run_id"], "--reason", "too slow")
        assert "is being cancelled" in result.stdout
        cancelled = await waiting
        assert cancelled.exit_code == 6
        assert "too slow" in cancelled.stderr


async def test_a_message_that_failed_is_sent_again(tmp_path: Path) -> None:
    async with cli_stage(tmp_path, script=[[fail(ModelError("the model broke"))], [say("now")]]) as cli:
        await cli.run("send", "s1", "go", "--wait")
        (failed,) = (await cli.json("run", "ls", "s1"))["items"]
        again = await cli.json("queue", "retry", failed["messages"][0])
        await ended(cli.server, again["message_id"])
        assert (await cli.json("queue", "show", again["message_id"]))["message"]["answer"] == "now"
        assert (await cli.run("queue", "retry", again["message_id"])).exit_code == 3  # it is done


async def test_a_command_in_a_message_is_answered(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        result = await cli.run("send", "s1", "/status", "--wait")
        assert result.exit_code == 0
        assert "idle" in result.stdout


# ---- looking ----


async def test_what_waits_is_shown_with_its_place_and_why(tmp_path: Path) -> None:
    async with busy(tmp_path, [say("second answer")]) as (cli, _):
        second = await post(cli.server, "s1", "second thing")
        shown = (await cli.run("queue", "ls")).stdout
        assert second["message_id"] in shown
        assert "second thing" in shown
        (found,) = (await cli.json("queue", "ls", "s1"))["items"]
        assert (found["position"], found["text"]) == (1, "second thing")
        story = await cli.run("queue", "show", second["message_id"])
        assert "Waits at place 1" in story.stdout


async def test_status_is_one_screen_of_80_columns(tmp_path: Path) -> None:
    async with busy(tmp_path, text=LANED) as (cli, _):
        await post(cli.server, "s1", "a text that is much too long for one line " * 5)
        result = await cli.run("status", COLUMNS="80")
        assert result.exit_code == 0
        assert "is ready" in result.stdout
        assert all(len(each) <= 80 for each in result.stdout.splitlines()), result.stdout
        assert "\x1b" not in result.stdout
        found = await cli.json("status")
        assert found["server"]["ready"] is True
        assert [each["session_key"] for each in found["sessions"]] == ["s1"]
        assert found["waiting"][0]["reason"]
        once = await cli.json("top", "--once")
        assert {*once, "unknown_calls", "tenants"} == set(found)
        assert "s1" in (await cli.run("top", "--once")).stdout


async def test_a_tenant_sees_its_status_without_the_lanes_of_all(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        token = (await cli.server.token("chat", tenant="ada"))["Authorization"].removeprefix("Bearer ")
        await cli.run("send", "s1", "hello", "--wait", TOKEN=token)
        assert (await cli.json("status", TOKEN=token))["lanes"] is None
        assert [each["session_key"] for each in (await cli.json("session", "ls", TOKEN=token))["items"]] == ["s1"]
        assert (await cli.json("session", "ls"))["items"] == []
        assert len((await cli.json("session", "ls", "--tenant", "ada"))["items"]) == 1


async def test_sessions_and_runs_are_shown(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        await cli.run("send", "s1", "hello", "--wait")
        assert "s1" in (await cli.run("session", "ls")).stdout
        shown = (await cli.run("session", "show", "s1")).stdout
        assert "You said: hello" in shown
        assert "mode followup" in shown
        found = await cli.json("session", "show", "s1")
        assert [each["role"] for each in found["history"]] == ["user", "assistant"]
        (run_,) = (await cli.json("run", "ls", "s1"))["items"]
        assert run_["state"] == "succeeded"
        assert "You said: hello" in (await cli.run("run", "ls", "s1")).stdout
        assert "Answer:" in (await cli.run("run", "show", run_["run_id"])).stdout
        assert (await cli.json("run", "show", run_["run_id"]))["answer"] == "You said: hello"
        for more in ((), ("--store", cli.store)):
            explained = (await cli.run("run", "explain", run_["run_id"], *more)).stdout
            assert "turn.started" in explained
            assert "It ended with an answer" in explained
        assert (await cli.json("run", "explain", run_["run_id"]))["steps"]
        assert (await cli.run("run", "ls")).stdout == "Nothing runs.\n"


async def test_a_transcript_is_written_to_a_file_once(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        await cli.run("send", "s1", "hello", "--wait")
        target = tmp_path / "out.jsonl"
        result = await cli.run("session", "transcript", "s1", str(target))
        assert result.exit_code == 0, result.output
        assert [json.loads(each)["text"] for each in target.read_text().splitlines()] == ["hello", "You said: hello"]
        assert (await cli.run("session", "transcript", "s1", str(target))).exit_code == 3
        assert (await cli.run("session", "transcript", "s1", str(target), "--overwrite")).exit_code == 0
        printed = (await cli.run("session", "transcript", "s1")).stdout.splitlines()
        assert len(printed) == 2
        assert (await cli.run("session", "transcript", GONE, str(tmp_path / "none"))).exit_code == 2
        assert not (tmp_path / "none").exists()
        assert not (tmp_path / "none.part").exists()


async def test_lanes_are_shown_and_changed(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        assert "main" in (await cli.run("lane", "ls")).stdout
        assert (await cli.json("lane", "set", "main", "-c", "7", "--reason", "more"))["concurrency"] == 7
        assert "is paused" in (await cli.run("lane", "pause", "main")).stdout
        assert "paused" in (await cli.run("lane", "ls")).stdout
        assert (await cli.json("lane", "resume", "main"))["paused"] is False
        nothing = await cli.run("lane", "set", "main")
        assert (nothing.exit_code, "nothing is to be changed" in nothing.stderr) == (2, True)
        audit = await cli.server.gateway.audit.entries("default")
        assert [each.reason for each in audit][:1] == ["more"]


# ---- changing what waits ----


async def test_the_queue_is_changed_from_the_command_line(tmp_path: Path) -> None:
    async with busy(tmp_path, [say("2")], [say("3")], [say("4")]) as (cli, held):
        ids = [(await post(cli.server, "s1", text))["message_id"] for text in ("b", "c", "d")]
        assert (await cli.json("queue", "edit", ids[0], "new", "text"))["text"] == "new text"
        assert (await cli.json("queue", "move", ids[2], "1"))["position"] == 1
        assert (await cli.json("queue", "hold", ids[1]))["disposition"] == "held"
        assert "waits again" in (await cli.run("queue", "release", ids[1])).stdout
        assert "was taken back" in (await cli.run("queue", "drop", ids[1])).stdout
        assert (await cli.run("queue", "drop", ids[1])).exit_code == 3
        assert (await cli.json("queue", "steer", ids[0]))["disposition"] == "parked"
        held.let_go()
        await ended(cli.server, *ids)


async def test_the_mode_of_a_session_is_shown_changed_and_given_back(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        await cli.run("send", "s1", "hello", "--wait")
        assert "followup" in (await cli.run("queue", "mode", "s1")).stdout
        found = await cli.json("queue", "mode", "s1", "steer", "--cap", "5")
        assert (found["settings"]["mode"]["value"], found["settings"]["cap"]["value"]) == ("steer", 5)
        assert (await cli.json("queue", "mode", "s1", "--reset"))["settings"]["mode"]["value"] == "followup"
        assert (await cli.run("queue", "mode", "s1", "fly")).exit_code == 2
        assert (await cli.run("queue", "mode", "s1", "steer", "--reset")).exit_code == 2


async def test_a_session_is_stopped(tmp_path: Path) -> None:
    async with busy(tmp_path) as (cli, _):
        await post(cli.server, "s1", "second")
        result = await cli.run("session", "stop", "s1", "--reason", "enough")
        assert result.stdout == "Stopped: 1 waiting message, 1 run.\n"
        assert (await cli.run("session", "stop", "s1")).stdout == "Nothing ran or waited there.\n"


async def test_a_run_that_has_ended_is_not_cancelled_or_resumed(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        await cli.run("send", "s1", "hello", "--wait")
        (found,) = (await cli.json("run", "ls", "s1"))["items"]
        assert (await cli.run("run", "cancel", found["run_id"])).exit_code == 3
        assert (await cli.run("run", "resume", found["run_id"])).exit_code in (2, 3)


# ---- answers, letters, clocks, tasks ----

WRITE = [call("write", path="a.txt", content="exactly this")]


async def test_a_call_is_approved_for_exactly_what_was_shown(tmp_path: Path) -> None:
    async with cli_stage(tmp_path, script=[WRITE, [say("written")]], text=LANED) as cli:
        waiting = asyncio.create_task(cli.process("send", "s1", "go", "--wait"))
        await become(cli.server.gateway.default.inbox.approvals)
        (asked,) = (await cli.json("approve"))["items"]
        shown = (await cli.run("approve")).stdout
        assert "exactly this" in shown
        assert asked["approval_id"] in shown
        assert asked["approval_id"] in (await cli.run("status")).stdout
        assert (await cli.run("approve", asked["approval_id"], TOKEN=None)).exit_code == 5
        result = await cli.run("approve", asked["approval_id"], "--reason", "fine")
        assert result.exit_code == 0, result.output
        assert '"exactly this"' in result.stdout
        assert "is approved" in result.stdout
        assert (await waiting).stdout == "written\n"
        assert (tmp_path / "a.txt").read_text() == "exactly this"
        assert (await cli.run("approve", asked["approval_id"])).exit_code == 3
        assert (await cli.run("approve")).stdout == "Nothing waits for an approval.\n"


async def test_a_call_is_denied_with_a_reason(tmp_path: Path) -> None:
    async with cli_stage(tmp_path, script=[WRITE, [say("as you wish")]], text=LANED) as cli:
        waiting = asyncio.create_task(cli.process("send", "s1", "go", "--wait"))
        await become(cli.server.gateway.default.inbox.approvals)
        (asked,) = (await cli.json("approve"))["items"]
        assert (await cli.json("deny", asked["approval_id"], "--reason", "not today"))["state"] == "denied"
        assert (await waiting).stdout == "as you wish\n"
        assert not (tmp_path / "a.txt").exists()


async def test_dead_letters_are_mended_sent_again_and_forgotten(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        ids = [await dead_message(cli.server, "s1", text) for text in ("helo", "b", "c")]
        assert ids[0] in (await cli.run("dlq", "ls")).stdout
        assert len((await cli.json("dlq", "ls"))["items"]) == 3
        assert "no model" in (await cli.run("dlq", "show", ids[0])).stdout
        assert (await cli.json("dlq", "edit", ids[0], "--text", "hello"))["text"] == "hello"
        (sent,) = (await cli.json("dlq", "retry", ids[0]))["items"]
        await ended(cli.server, sent["message_id"])
        assert "You said: hello" in (await cli.run("queue", "show", sent["message_id"])).stdout
        assert (await cli.run("dlq", "purge")).exit_code == 2
        assert (await cli.run("dlq", "purge", "--all")).exit_code == 2  # nobody is there to be asked
        assert (await cli.run("dlq", "purge", ids[1])).stdout == "1 dead letter forgotten.\n"
        assert (await cli.json("dlq", "purge", "--all", "--yes"))["items"] == [ids[2]]
        assert (await cli.run("dlq", "ls")).stdout == "There are no dead letters.\n"
        assert (await cli.run("dlq", "edit", ids[0])).exit_code == 2
        assert (await cli.run("dlq", "edit", ids[0], "--args", "{broken")).exit_code == 2


async def test_a_call_that_was_cut_off_is_shown_and_settled(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        assert "it is known what became of it" in (await cli.run("ledger", "ls")).stdout
        entry = await entry_in(cli.server, Owner("default", "default", "s1"), "a", LedgerState.UNKNOWN)
        assert "1 call was cut off" in (await cli.run("status")).stdout
        listed = (await cli.run("ledger", "ls")).stdout
        assert entry in listed
        assert '{"command": "deploy"}' in listed
        assert (await cli.run("ledger", "settle", entry)).exit_code == 2  # nobody has said what was found
        assert "is settled: it arrived" in (await cli.run("ledger", "settle", entry, "--reason", "it arrived")).stdout
        assert (await cli.json("ledger", "ls"))["items"] == []
        assert [each["state"] for each in (await cli.json("ledger", "ls", "--all"))["items"]] == ["settled"]
        every = (await cli.run("ledger", "ls", "--all")).stdout
        assert "it arrived" in every
        assert "null" not in every
        assert "cut off" not in (await cli.run("status")).stdout


async def test_messages_are_sent_by_the_clock(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        added = await cli.json("cron", "add", "s1", "good", "morning", "--cron", "0 9 * * 1-5", "--timezone", "UTC")
        assert added["text"] == "good morning"
        assert "sends it in 1 h" in (await cli.run("cron", "add", "s1", "x", "--every", "90m")).stdout
        assert (await cli.json("cron", "add", "s2", "x", "--at", "2d"))["at_ms"]
        shown = (await cli.run("cron", "ls")).stdout
        assert "0 9 * * 1-5" in shown
        assert "every 1 h 30 min" in shown
        assert len((await cli.json("cron", "ls", "s1"))["items"]) == 2
        name = added["schedule_id"]
        assert "is paused" in (await cli.run("cron", "pause", name, "--reason", "holidays")).stdout
        assert "paused" in (await cli.run("cron", "ls")).stdout
        assert (await cli.json("cron", "resume", name))["paused"] is False
        sent = await cli.json("cron", "run", name)
        await cli.server.gateway.default.inbox.wait(sent["message_id"])
        (ran,) = [each for each in (await cli.json("cron", "ls"))["items"] if each["schedule_id"] == name]
        assert (ran["last_message_id"], ran["last_outcome"]) == (sent["message_id"], "succeeded")
        assert await cli.json("cron", "ls", "--store", cli.store) == await cli.json("cron", "ls")
        assert (await cli.run("cron", "pause", "nix")).exit_code == 2
        assert "was removed" in (await cli.run("cron", "rm", added["schedule_id"])).stdout
        assert (await cli.run("cron", "rm", added["schedule_id"])).exit_code == 2
        assert (await cli.run("cron", "add", "s1", "x")).exit_code == 2
        assert (await cli.run("cron", "add", "s1", "x", "--cron", "whenever")).exit_code == 2


async def test_external_tasks_are_shown_and_handed_to_nobody(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    script = [[call("read", path="a.txt")], [say("done")]]
    async with cli_stage(tmp_path, script=script, text=EXTERNAL) as cli:
        await post(cli.server, "s1", "go")
        desk = cli.server.gateway.default.host.desk
        await become(desk.tasks)
        (found,) = (await cli.json("task", "ls"))["items"]
        assert found["task_id"] in (await cli.run("task", "ls")).stdout
        assert '"a.txt"' in (await cli.run("task", "show", found["task_id"])).stdout
        assert (await cli.json("task", "show", found["task_id"]))["state"] == "pending"


# ---- strangers ----


async def test_nothing_in_a_message_acts_on_the_terminal(tmp_path: Path) -> None:
    async with busy(tmp_path, [say("x")]) as (cli, held):
        waits = await post(cli.server, "s1", EVIL, sender=EVIL.replace("\x1b", "")[:50] or "x")
        commands = [
            ("queue", "ls"), ("queue", "show", waits["message_id"]), ("status",), ("session", "show", "s1"),
            ("queue", "ls", "--json"), ("session", "show", "s1", "--json"), ("status", "--json"),
        ]  # fmt: skip
        for words in commands:
            shown = (await cli.run(*words)).output
            assert not set(shown) & set("\x1b\x07\x9b\u202e"), words
        held.let_go()
        await ended(cli.server, waits["message_id"])
        for words in (("session", "show", "s1"), ("session", "transcript", "s1"), ("run", "ls", "s1")):
            result = await cli.run(*words)
            assert result.exit_code == 0
            assert not set(result.output) & set("\x1b\x07\x9b\u202e"), words


async def test_an_answer_that_is_hostile_is_shown_as_text(tmp_path: Path) -> None:
    async with cli_stage(tmp_path, script=[[say(EVIL)]]) as cli:
        result = await cli.run("send", "s1", "go", "--wait")
        assert result.stdout.startswith("␛]0;owned␇␛[31m<script>")
        assert not set(result.stdout) & set("\x1b\x07\x9b\u202e")


async def test_a_server_that_is_none_is_said_to_be_none(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        result = await cli.run("session", "ls", "--url", f"{cli.server.url}/elsewhere")
        assert result.exit_code in (2, 4)
        assert result.stderr.startswith("laneway: ")
