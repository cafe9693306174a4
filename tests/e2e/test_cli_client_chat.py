"""Talking on a real terminal and from a pipe: text streams while one types, and leaving ends nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from laneway.models import call, say
from tests.agent_stage import Held
from tests.cli_stage import cli_stage
from tests.routes_stage import LANED, post
from tests.terminal import CTRL_C, CTRL_D, ENTER, Terminal

pytestmark = pytest.mark.slow


# ---- on a terminal ----


async def test_an_answer_streams_in_and_the_session_is_left_with_ctrl_d(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli, Terminal(cli, "chat", "s1") as screen:
        await screen.sees("A new session: s1")
        await screen.sees("s1 is idle")
        screen.type("hello" + ENTER)
        await screen.sees("You said: hello")
        screen.type(CTRL_D)
        assert await screen.ends() == 0
        history = await cli.server.gateway.default.inbox.history("s1")
        assert [each.text for each in history] == ["hello", "You said: hello"]


async def test_one_types_while_it_works_and_that_steers_the_run(tmp_path: Path) -> None:
    held = Held(say("first"))
    script = [held, [say("both seen")]]
    async with cli_stage(tmp_path, script=script) as cli, Terminal(cli, "chat", "s1", "--mode", "steer") as screen:
        await screen.sees("s1 is idle")
        screen.type("begin" + ENTER)
        await held.asked.wait()
        await screen.sees("works")
        screen.type("look here instead" + ENTER)
        await screen.sees("goes into the run at its next step")
        held.let_go()
        await screen.sees("both seen")
        screen.type("/quit" + ENTER)
        assert await screen.ends() == 0


async def test_ctrl_c_cancels_the_run_and_a_second_one_leaves(tmp_path: Path) -> None:
    held = Held(say("never"))
    async with cli_stage(tmp_path, script=[held]) as cli, Terminal(cli, "chat", "s1") as screen:
        await screen.sees("s1 is idle")
        screen.type("begin" + ENTER)
        await held.asked.wait()
        await screen.sees("works")
        screen.type(CTRL_C)
        await screen.sees("cancelled in chat")
        screen.type(CTRL_C)
        screen.type(CTRL_C)
        assert await screen.ends() == 0
        (final,) = await cli.server.gateway.default.inbox.messages("s1")
        assert final.outcome == "interrupted"


async def test_a_run_goes_on_when_one_leaves(tmp_path: Path) -> None:
    held = Held(say("the answer"))
    async with cli_stage(tmp_path, script=[held]) as cli:
        async with Terminal(cli, "chat", "s1") as screen:
            await screen.sees("s1 is idle")
            screen.type("begin" + ENTER)
            await held.asked.wait()
            await screen.sees("works")
            screen.type(CTRL_D)
            assert await screen.ends() == 0
            assert "The run goes on" in screen.shown
        held.let_go()
        (message,) = await cli.server.gateway.default.inbox.messages("s1")
        final = await cli.server.gateway.default.inbox.wait(message.message_id)
        assert final.answer == "the answer"
        async with Terminal(cli, "chat", "s1") as screen:
            await screen.sees("the answer")


async def test_a_call_that_asks_is_shown_whole_and_approved_by_a_command(tmp_path: Path) -> None:
    script = [[call("write", path="a.txt", content="exactly this")], [say("written")]]
    async with cli_stage(tmp_path, script=script, text=LANED) as cli, Terminal(cli, "chat", "s1") as screen:
        await screen.sees("s1 is idle")
        screen.type("go" + ENTER)
        await screen.sees('"content": "exactly this"')
        await screen.sees("/deny approval-")
        found = re.search(r"/approve (\S+)", screen.shown)
        assert found is not None
        screen.type(f"/approve {found[1]}{ENTER}")
        await screen.sees("written")
        screen.type(CTRL_D)
        assert await screen.ends() == 0
    assert (tmp_path / "a.txt").read_text() == "exactly this"


async def test_what_others_say_cannot_act_on_the_terminal(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[31mred\x9b2J"
    async with cli_stage(tmp_path, script=[[say(evil)]]) as cli, Terminal(cli, "chat", "s1") as screen:
        await screen.sees("s1 is idle")
        await post(cli.server, "s1", f"from elsewhere {evil}")
        await screen.sees("␛[31mred", times=2)
        assert "\x1b]0;owned" not in screen.raw
        assert "\x9b" not in screen.raw


async def test_a_server_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli, Terminal(cli, "chat", "s1", "--url", "http://127.0.0.1:9") as screen:
        assert await screen.ends() == 4
        assert "no server answers" in screen.shown


async def test_a_session_name_that_cannot_be_is_refused(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli, Terminal(cli, "chat", "a\x01b") as screen:
        assert await screen.ends() == 2


# ---- from a pipe ----


async def test_from_a_pipe_each_line_is_a_message_and_the_output_is_plain(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        done = await cli.process("chat", "s1", given="hello\n\n/status\nlast without a line end")
        assert (done.exit_code, done.stderr) == (0, "")
        first, status, last = done.stdout.splitlines()
        assert (first, last) == ("You said: hello", "You said: last without a line end")
        assert "idle" in status


async def test_from_a_pipe_a_failure_is_said_and_the_next_line_is_sent(tmp_path: Path) -> None:
    from laneway.errors import ModelError
    from laneway.models import fail

    async with cli_stage(tmp_path, script=[[fail(ModelError("it broke"))], [say("fine")]]) as cli:
        done = await cli.process("chat", "s1", given="one\ntwo\n")
        assert (done.exit_code, done.stdout) == (6, "fine\n")
        assert "the run failed" in done.stderr


async def test_from_a_pipe_nobody_to_talk_with_ends_it_at_once(tmp_path: Path) -> None:
    async with cli_stage(tmp_path) as cli:
        done = await cli.process("chat", "s1", "--url", "http://127.0.0.1:9", given="one\ntwo\n")
        assert done.exit_code == 4
        assert done.stderr.count("no server answers") == 1


# ---- top ----


async def test_top_is_live_and_ends_with_q(tmp_path: Path) -> None:
    held = Held(say("done"))
    async with cli_stage(tmp_path, script=[held]) as cli, Terminal(cli, "top") as screen:
        await screen.sees("No session has anything to do.")
        await post(cli.server, "s1", "begin")
        await held.asked.wait()
        await screen.sees("thinking")
        await screen.sees("run began")
        screen.type("q")
        assert await screen.ends() == 0
        held.let_go()


async def test_a_list_that_is_watched_shows_what_changes_until_ctrl_c(tmp_path: Path) -> None:
    held = Held(say("done"))
    async with cli_stage(tmp_path, script=[held, [say("x")]]) as cli, Terminal(cli, "queue", "ls", "--watch") as screen:
        await screen.sees("Nothing waits.")
        await post(cli.server, "s1", "begin")
        await held.asked.wait()
        await post(cli.server, "s1", "second")
        await screen.sees("second")
        screen.type(CTRL_C)
        assert await screen.ends() == 0
        held.let_go()
